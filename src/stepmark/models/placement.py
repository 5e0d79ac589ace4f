"""A network whose weights are read tensor by tensor: in 8 or 4 bit, or its layers spread over several devices.

transformers maps a checkpoint's files and keeps the maps; here each tensor is read, converted and put into its place, and its map is closed before the
next is read. What is resident is then what stays, plus one tensor. A network that is spread looks from outside like a network on its first device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepmark.errors import CheckpointError, UsageError
from stepmark.models import attention
from stepmark.models.backbone import bound_kernels, check_report, checked_config, load_network
from stepmark.models.checkpoint import Tensors, merge_adapter, read_config
from stepmark.models.files import present
from stepmark.models.lazy import Bits
from stepmark.models.quantized import QuantizedLinear


def load_placed(
    maker: Any,
    folder: Path,
    base: Path,
    *,
    dtype: torch.dtype,
    devices: Sequence[str],
    quantize: Bits | None,
    attn_implementation: str | None = None,
) -> tuple[Any, dict[str, Tensor]]:
    """The network of a checkpoint, or of an adapter over one, in evaluation mode; and the adapter's tensors that have no place in it.

    Args:
        maker, attn_implementation: as for `backbone.load_network`.
        folder: of the checkpoint or the adapter.
        base: the checkpoint's folder, which for an adapter is another.
        dtype: that it computes in, and of the weights that are not quantized.
        devices: over which the layers are spread, by the memory that is free there; one for a network on one device.
        quantize: of the layers' weights.

    Raises:
        CheckpointError: as `load_network`; an adapter that does not fit; an architecture whose layers cannot be found.
        UsageError: the checkpoint is quantized already.
    """
    arranged = quantize is not None or len(devices) > 1
    if arranged and base == folder:
        network = stream_network(
            maker,
            base,
            dtype=dtype,
            devices=devices,
            quantize=quantize,
            attn_implementation=attn_implementation,
        )
        return network, {}
    network = load_network(
        maker,
        base,
        dtype=dtype,
        device="cpu" if arranged else devices[0],
        attn_implementation=attn_implementation,
    ).eval()
    others = {} if base == folder else merge_adapter(network.base_model, folder)
    if arranged:
        arrange(network, network.get_parameter, dtype, devices, quantize)
    return network, others


def stream_network(
    maker: Any,
    folder: Path,
    *,
    dtype: torch.dtype,
    devices: Sequence[str],
    quantize: Bits | None,
    attn_implementation: str | None = None,
) -> Any:
    """The network of a whole checkpoint, as `load_network` gives it; arguments and errors as for `load_placed`."""
    bound_kernels()
    config = checked_config(folder)
    if read_config(folder).get("quantization_config") is not None:
        raise UsageError(f"{folder} is quantized already and cannot be quantized again; name one `device`")
    chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    try:
        with torch.device("meta"):
            network = maker.from_config(config, dtype=dtype, **chosen).eval()
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    tensors = Tensors(folder)
    prefix = f"{network.base_model_prefix}."
    own = dict(network.named_parameters(remove_duplicate=False))
    names: dict[str, str] = {}
    for name in tensors.facts:
        forms = (name, name.removeprefix(prefix), prefix + name)
        names[next((form for form in forms if form in own), name)] = name
    if (head := _tied_head(network)) is not None:
        table = _weight_of(network, network.get_input_embeddings())
        if {head, table} <= names.keys() and not torch.equal(*(tensors.get(names[x]) for x in (head, table))):
            # As transformers does: a head of its own is used, whatever the config says.
            network.get_output_embeddings().weight = nn.Parameter(torch.empty_like(own[head]))
        else:
            del own[head]
    shapes = {name: tensors.facts[names[name]].shape for name in own.keys() & names.keys()}
    report = {
        "missing_keys": sorted(own.keys() - names.keys()),
        "mismatched_keys": [
            f"{name} {tuple(own[name].shape)}, in the weights {shape}"
            for name, shape in shapes.items()
            if shape != tuple(own[name].shape)
        ],
        "unexpected_keys": sorted(tensors.names),
    }
    check_report(folder, network, report)
    if network.can_generate() and present(folder / "generation_config.json"):
        from transformers import GenerationConfig

        network.generation_config = GenerationConfig.from_pretrained(folder)
    arrange(network, lambda name: tensors.get(names[name]), dtype, devices, quantize)
    return network


def _tied_head(network: Any) -> str | None:
    """The name of a language-model head's weight that is the embeddings' too; None where there is none."""
    head = network.get_output_embeddings()
    shared = head is not None and head.weight is network.get_input_embeddings().weight
    return _weight_of(network, head) if shared else None


def _weight_of(network: Any, module: nn.Module) -> str:
    return next(f"{name}.weight" for name, other in network.named_modules() if other is module)


def arrange(
    network: Any,
    read: Callable[[str], Tensor],
    dtype: torch.dtype,
    devices: Sequence[str],
    quantize: Bits | None,
) -> None:
    """Put every weight of a network into its place, in place.

    Args:
        network: a decoder, alone or with a language-model head; its weights are on any device ("meta" too).
        read: gives the weight of a name; it is read once.
        dtype, devices, quantize: see `load_placed`.
    """
    decoder = network.base_model
    prefix = "" if decoder is network else f"{network.base_model_prefix}."
    layers = dict(decoder.named_children()).get("layers")
    if not isinstance(layers, nn.ModuleList):
        raise CheckpointError(
            f"the layers of a {type(network).__name__} cannot be found, which quantization and several devices need: load it as it is, and name one `device`"
        )
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    places = [devices[at] for at in spread(sizes, [free_memory(device) for device in devices])]

    def layer_of(name: str) -> int | None:
        part, _, rest = f"{name.removeprefix(prefix)}.".partition(".")
        return int(rest.split(".")[0]) if part == "layers" and rest else None

    def place(name: str) -> str:
        return places[layer_of(name) or 0]

    tied = _tied_head(network)
    for name, module in list(network.named_modules()):
        inside = layer_of(name) is not None
        becomes = quantize if inside and isinstance(module, nn.Linear) else None
        for leaf, _ in list(module.named_parameters(recurse=False)):
            # What is quantized is read from its map; what stays is copied, so that the map is closed.
            stays = becomes is None or leaf != "weight"
            if f"{name}.{leaf}" == tied:
                module.weight = network.get_input_embeddings().weight
                continue
            weight = read(f"{name}.{leaf}" if name else leaf).detach()
            # With gradients, as transformers loads it: torch would copy a head without them for every row of a batch that reads its last token.
            setattr(module, leaf, nn.Parameter(weight.to(place(name), dtype, copy=stays)))
        if becomes is not None:
            network.set_submodule(name, QuantizedLinear(module, becomes))
            del module.weight  # and with it the map, which this loop would hold to its end
        elif any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            network.set_submodule(name, type(module)(network.config).to(place(name)))  # tables of positions
        elif name and not list(module.children()):
            module.to(place(name))
    if len(set(places)) > 1:
        follow(decoder, places)


def spread(sizes: Sequence[int], free: Sequence[int]) -> list[int]:
    """The device of each layer: runs of neighbours, each device's share of the sizes being its share of the free memory."""
    total, room = sum(sizes), sum(free)
    ends = [sum(free[: at + 1]) / room * total for at in range(len(free))]
    middles = [sum(sizes[:at]) + size / 2 for at, size in enumerate(sizes)]
    return [next((at for at, end in enumerate(ends) if middle < end), len(free) - 1) for middle in middles]


def free_memory(device: str) -> int:
    """Bytes that are free on a GPU; 1 on any other device, of which there is one."""
    return torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else 1


def follow(network: Any, places: Sequence[str]) -> None:
    """Have the input of each layer moved to the layer's device, and the network's output to the first layer's.

    Args:
        network: a decoder, whose layers are on their devices.
        places: the device of each layer.
    """
    plans: dict[str, tuple[attention.Plan, attention.Plan]] = {}

    def moving(device: str) -> Callable[[nn.Module, Any, Any], tuple[Any, Any]]:
        def hook(module: nn.Module, args: Any, keywords: dict[str, Any]) -> tuple[Any, Any]:
            plan = keywords.get(attention.PLAN)
            if isinstance(plan, attention.Plan) and device != places[0]:
                if device not in plans or plans[device][0] is not plan:
                    plans[device] = (plan, plan_on(plan, device))
                keywords = {**keywords, attention.PLAN: plans[device][1]}
            return moved(args, device), moved(keywords, device)

        return hook

    for layer, device in zip(network.layers, places, strict=True):
        layer.register_forward_pre_hook(moving(device), with_kwargs=True)

    def home(module: nn.Module, args: Any) -> Any:
        plans.clear()  # they hold keys and values of the pass
        return moved(args, places[0])

    network.norm.register_forward_pre_hook(home)


def plan_on(plan: attention.Plan, device: str) -> attention.Plan:
    """A plan whose index tensors and masks are on a device; keys and values, each on its layer's device, are those of the plan itself."""
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    shared = {name: values.pop(name) for name in ("carried", "kept")}
    return replace(plan, **moved(values, device), **shared)


def moved(value: Any, device: str) -> Any:
    """Tensors in tuples, lists, dicts and dataclasses on a device; a plan stays as it is."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, (tuple, list)):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, (attention.Plan, type)):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{key: moved(part, device) for key, part in parts.items()})
    return value
