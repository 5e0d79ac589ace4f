"""Backbones: the network under a PRM's head, loaded by transformers with the tree attention in place.

Only native architectures are loaded; `auto_map` in a config (remote code) is never followed.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stepmark.errors import CheckpointError, UsageError
from stepmark.models import attention
from stepmark.models.checkpoint import FLOATING, TensorFact, Tensors
from stepmark.models.files import ADAPTER_FILE, check_file, present, read_object


def load_backbone(folder: Path, *, dtype: torch.dtype, device: str) -> Any:
    """The decoder without a language-model head, in evaluation mode.

    Raises:
        CheckpointError: missing or corrupt files, an architecture that transformers does not have, or weights
            that do not fill the network.
    """
    from transformers import AutoModel

    attention.register()
    bound_kernels()
    config = checked_config(
        folder, lambda config: AutoModel.from_config(config, attn_implementation=attention.NAME)
    )
    model = load_network(AutoModel, folder, config, dtype=dtype, attn_implementation=attention.NAME)
    return model.eval().to(device)


def load_network(
    maker: Any, folder: Path, config: Any, *, dtype: torch.dtype | str, attn_implementation: str | None = None
) -> Any:
    """A network with the weights of a checkpoint, which are known to fill it.

    Args:
        maker: transformers' class for the task (`AutoModel`, `AutoModelForCausalLM`).
        folder: of the checkpoint.
        config: from `checked_config`.
        dtype: of the network; "auto" as the checkpoint is stored.
        attn_implementation: None for transformers' own choice.

    Raises:
        CheckpointError: the weights cannot be read, or do not fill the network.
    """
    try:
        with quiet_loading():
            model, report = maker.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=attn_implementation,
                trust_remote_code=False,
                # So that a wrong shape is reported to us; it is an error below.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever a corrupt file makes transformers or safetensors raise
        raise CheckpointError(f"{folder}: the weights cannot be read: {error}") from error
    check_report(folder, model, report)
    return model


def compute_device(device: str) -> str:
    """The device that a setting means.

    Args:
        device: "auto" (CUDA where there is one), "cpu", "cuda", or "cuda:N".

    Raises:
        UsageError: another name, or a device that this machine does not have.
    """
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if cards else "cpu"
    matched = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if matched is None:
        raise UsageError(
            f"device should be auto, cpu, cuda or cuda:N (the number of a GPU), found {device!r}"
        )
    if device != "cpu" and int(matched[1] or 0) >= cards:
        has = f"has the GPUs cuda:0 to cuda:{cards - 1}" if cards else "or this build of torch has no CUDA"
        raise UsageError(f"device {device}: this machine {has}; use {'one of them' if cards else 'cpu'}")
    return device


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No bars and no report of unused tensors from transformers: heads are read by us, and what is missing is an error of ours."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def checked_config(folder: Path, build: Callable[[Any], Any]) -> Any:
    """The config of a checkpoint, known to describe the network that its weights fill.

    Args:
        folder: of the checkpoint.
        build: makes the network from the config, on torch's meta device.

    Raises:
        CheckpointError: config and weights disagree, or one of them cannot be read.
    """
    raw = read_config(folder)
    if present(folder / ADAPTER_FILE):
        raise CheckpointError(
            f"{folder} holds both config.json and {ADAPTER_FILE}: is it a whole model or an adapter? Delete the one that it is not"
        )
    tensors = Tensors(folder)
    check_layers(raw, tensors)
    config = load_config(folder)
    check_layers({"num_hidden_layers": getattr(config.get_text_config(), "num_hidden_layers", None)}, tensors)
    limit = token_limit(config)
    if limit is not None and limit < 1:
        raise CheckpointError(
            f"{folder}/config.json: max_position_embeddings and sliding_window should be at least 1, found {limit}"
        )
    quantised = raw.get("quantization_config") is not None
    check_network(folder, lambda: build(copy.deepcopy(config)), tensors, quantised=quantised)
    return config


def load_config(folder: Path) -> Any:
    """The checkpoint's config as its native class, whatever remote code it names."""
    from transformers import AutoConfig

    raw = read_config(folder)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{folder}/config.json names no model_type")
    settings = {k: v for k, v in raw.items() if k not in ("auto_map", "model_type", "architectures")}
    try:
        return AutoConfig.for_model(model_type, **settings)
    except ValueError as error:
        raise CheckpointError(
            f"{folder}: transformers has no architecture {model_type!r}, and stepmark runs no remote code"
        ) from error
    except Exception as error:  # a setting of a wrong type or value: the config classes raise what they like
        raise CheckpointError(f"{folder}/config.json: {' '.join(str(error).split())}") from error


def load_tokenizer(folder: Path) -> Any:
    """The checkpoint's tokenizer.

    Raises:
        CheckpointError: there is none, or its files cannot be read.
    """
    from transformers import AutoTokenizer

    # transformers reads the config too, and passes over any other file that it cannot open.
    for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if present(folder / name):
            (read_config(folder) if name == "config.json" else read_object(folder / name))
    for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja"):
        if present(folder / name):
            check_file(folder / name)
    # Without these, transformers makes an empty tokenizer for some model types and says nothing.
    if not any(present(folder / name) for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise CheckpointError(f"{folder} holds no tokenizer (no tokenizer.json); fetch the whole checkpoint")
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever a corrupt file makes transformers or tokenizers raise
        if present(folder / "tokenizer.json"):
            read_object(folder / "tokenizer.json")  # where that is the cause, it says so
        raise CheckpointError(
            f"{folder}: the tokenizer cannot be read ({type(error).__name__}: {error}); fetch it again"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as it is."""
    file = folder / "config.json"
    if not present(file):
        raise CheckpointError(f"{folder} holds no config.json: it is not a checkpoint")
    config = read_object(file)
    labels = config.get("num_labels")
    if labels is not None and not (isinstance(labels, int) and 0 <= labels <= _MOST_LABELS):
        raise CheckpointError(
            f"{file}: num_labels should be a whole number of at most {_MOST_LABELS:,}, found {labels!r}"
        )
    return config


_MOST_LABELS = 100_000
"""transformers writes a name for each label that is claimed, whether or not a head has it."""


def token_limit(config: Any) -> int | None:
    """Tokens that the backbone reads at most: its positions, or its attention window if that is shorter.

    The tree attention has no sliding window, so a longer text would silently be read otherwise than in
    training.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    if getattr(config, "use_sliding_window", True):
        limits.append(getattr(config, "sliding_window", None))
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


_COUNT = "num_hidden_layers"
_NUMBERED = re.compile(r"^(?P<list>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)\.(?P<number>\d+)\.")


_PACKED = 32
"""Weights that one stored number may hold: one bit each of an int32."""


def check_layers(config: Mapping[str, Any], tensors: Tensors, *, all_of_them: bool = False) -> None:
    """Refuse a config that says more layers than the weights hold, or none.

    Args:
        config: `config.json` as it is; settings of models inside it are looked at too.
        tensors: of the same folder.
        all_of_them: refuse one that says fewer, too. (Some published weights hold layers that the network leaves out.)

    Raises:
        CheckpointError: the counts disagree.
    """
    for inner in config.values():
        if isinstance(inner, Mapping):
            check_layers(inner, tensors, all_of_them=all_of_them)
    count = config.get(_COUNT)
    if count is None:
        return
    file = tensors.folder / "config.json"
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise CheckpointError(f"{file}: {_COUNT} should be a whole number of at least 1, found {count!r}")
    lists: dict[str, set[int]] = {}
    for name in tensors.facts:
        if matched := _NUMBERED.match(name):
            lists.setdefault(matched["list"], set()).add(int(matched["number"]))
    # The longest list of modules is that of the layers; a head has a few.
    layers, held = max(lists.items(), key=lambda entry: len(entry[1]), default=("", set()))
    if not any(held >= set(range(min(count, len(held) + 1))) for held in lists.values()) or (
        all_of_them and len(held) != count
    ):
        what = f"{len(held)} layers ({layers}.{min(held)} to {layers}.{max(held)})" if held else "no layers"
        raise CheckpointError(f"{file} says {_COUNT} {count}, and {_files(tensors)} {what}; {_REMEDY}")


_REMEDY = "use the config.json that was published with these weights, or fetch the whole checkpoint again"


def check_network(
    folder: Path, build: Callable[[], Any], tensors: Tensors, *, quantised: bool = False
) -> None:
    """Refuse weights that do not fill the network, or that hold parts which it has no place for.

    Args:
        folder: for messages.
        build: makes the network; called with torch's meta device in place.
        tensors: of the same folder.
        quantised: the config says that the weights are packed. How, only the library of their format knows; of packed weights only
            the size of the network is checked.

    Raises:
        CheckpointError: the config makes no network; a tensor is missing, of another shape or of a type that is no plain weight; or
            weights of the backbone are left over.
    """
    if not tensors.files.network:
        raise CheckpointError(
            f"{folder} holds weights, and neither model.safetensors nor an index of shards (model.safetensors.index.json) says which "
            "are the network's; fetch the whole checkpoint"
        )
    try:
        with torch.device("meta"):
            network = build()
    except Exception as error:  # numbers that make no network: torch and transformers raise what they like
        message = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"{folder}/config.json makes no network ({type(error).__name__}: {message}); {_REMEDY}"
        ) from error
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    stored = [fact for fact in tensors.facts.values() if fact.file in tensors.files.network]
    if quantised and any(fact.dtype not in FLOATING for fact in stored):
        size, held = sum(map(math.prod, expected.values())), sum(fact.elements for fact in stored)
        if size > _PACKED * held:
            raise CheckpointError(
                f"{folder}/config.json describes a network of {size:,} weights, and {_files(tensors)} {held:,} numbers; {_REMEDY}"
            )
        return
    places = _places(network, expected, tensors)
    odd = [f"{name} ({fact.dtype})" for name, fact in places.values() if fact.dtype not in FLOATING]
    if odd:
        raise CheckpointError(
            f"{folder}: weights should be of type {', '.join(sorted(FLOATING))}; found {_some(odd)}. Take the checkpoint in its "
            "full precision"
        )
    wrong = {place: (name, fact) for place, (name, fact) in places.items() if fact.shape != expected[place]}
    tied = _tied(network)
    missing = sorted(name for name in expected.keys() - places.keys() if name not in tied)
    unused = leftover(network, (n for n, fact in tensors.facts.items() if fact.file in tensors.files.network))
    if not (wrong or missing or unused):
        return
    # Of some networks transformers knows another layout (experts stored one by one, say), and converts it: as many numbers under other
    # names and in other shapes. What is still missing or left over then is refused by `check_report`.
    inside = _inside(network)
    lacking = sum(math.prod(expected[name]) for name in (*wrong, *filter(inside, missing)))
    spare = sum(tensors.facts[name].elements for name in (*(name for name, _ in wrong.values()), *unused))
    heads = sum(math.prod(expected[name]) for name in missing if not inside(name))
    used = {name for name, _ in places.values()}
    beside = sum(
        fact.elements for name, fact in tensors.facts.items() if name not in used and not inside(name)
    )
    if lacking == spare and heads <= beside:
        return
    check_layers(network.config.to_dict(), tensors, all_of_them=True)
    shapes = [
        f"{name} {fact.shape}, by config.json {expected[place]}" for place, (name, fact) in wrong.items()
    ]
    raise CheckpointError(_disagreement(folder, missing, shapes, unused))


def check_report(folder: Path, network: Any, report: Mapping[str, Iterable[Any]]) -> None:
    """Refuse what transformers found missing, mismatched or left over when it filled the network.

    Args:
        folder: for messages.
        network: as filled.
        report: transformers' `output_loading_info`.

    Raises:
        CheckpointError: something was.
    """
    missing = sorted(str(key) for key in report["missing_keys"])
    wrong = sorted(str(key) for key in report["mismatched_keys"])
    unused = leftover(network, [str(key) for key in report["unexpected_keys"]])
    if missing or wrong or unused:
        raise CheckpointError(_disagreement(folder, missing, wrong, unused))


def leftover(network: Any, names: Iterable[str]) -> list[str]:
    """Of tensor names, those that belong to the network's own modules and have no place in it; heads are none.

    Args:
        network: any transformers model.
        names: of stored tensors.
    """
    prefix, inside = f"{network.base_model_prefix}.", _inside(network)
    ignored = [
        *(network._keys_to_ignore_on_load_unexpected or ()),
        r"rotary_emb\.inv_freq$",
        r"(^|\.)position_ids$",
    ]
    held = {*network.state_dict(), *(name for name, _ in network.named_buffers())}
    return sorted(
        name
        for name in names
        if inside(name)
        and not held & {name, name.removeprefix(prefix), prefix + name}
        and not any(re.search(pattern, name) for pattern in ignored)
    )


def _inside(network: Any) -> Callable[[str], bool]:
    """Whether a tensor's name is of the backbone, and not of a head."""
    prefix = f"{network.base_model_prefix}."
    modules = {name for name, _ in network.base_model.named_children()}
    return lambda name: name.removeprefix(prefix).split(".")[0] in modules


def _places(
    network: Any, expected: Mapping[str, tuple[int, ...]], tensors: Tensors
) -> dict[str, tuple[str, TensorFact]]:
    """The stored tensor for each place of the network, by transformers' rule: with or without the prefix of the backbone."""
    prefix = f"{network.base_model_prefix}."
    places: dict[str, tuple[str, TensorFact]] = {}
    for name, fact in tensors.facts.items():
        if fact.file not in tensors.files.network:
            continue
        place = next((p for p in (name, name.removeprefix(prefix), prefix + name) if p in expected), None)
        if place is None:
            continue
        if place in places:
            raise CheckpointError(
                f"{tensors.folder}: {places[place][0]!r} and {name!r} both fill {place!r}; keep the files of one model only"
            )
        places[place] = (name, fact)
    return places


def _tied(network: Any) -> set[str]:
    """Places that need no tensor of their own."""
    configs = (network.config, network.config.get_text_config())
    if not any(getattr(config, "tie_word_embeddings", False) for config in configs):
        return set()
    return set(network._tied_weights_keys or ())


def _files(tensors: Tensors) -> str:
    names = [file.name for file in tensors.files.network or tensors.files.every]
    return f"{names[0]} holds" if len(names) == 1 else f"the weights ({names[0]} to {names[-1]}) hold"


def _some(parts: list[str]) -> str:
    return "; ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")


def _disagreement(folder: Path, missing: list[str], wrong: list[str], unused: list[str]) -> str:
    problems = [
        f"{what}: {_some(parts)}"
        for what, parts in (("missing", missing), ("of another shape", wrong), ("left over", unused))
        if parts
    ]
    return f"{folder}: the weights do not fill the network that config.json describes ({'. '.join(problems)}); {_REMEDY}"


KEPT = 128
"""Shapes: those of a pass are there again in the next layer, and hardly any is there again in the next pass."""
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""oneDNN's compiled products, and those of ideep, which is between it and torch. Each keeps 1024 by default."""


def bound_kernels() -> None:
    """Have torch keep less of the shapes that it has computed: in bfloat16 a compiled matrix product has half a megabyte.

    Packed trees have another shape in nearly every pass, so a process that scores for long would keep a gigabyte that is never used again. Environment variables
    set the limit; they are read at the first product, and one that is set already stays as it is.
    """
    for name in CACHES:
        os.environ.setdefault(name, str(KEPT))
