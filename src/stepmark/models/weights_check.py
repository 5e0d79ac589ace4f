"""A checkpoint's config against its weights, before a network is built.

Names, shapes and types come from the headers of the weight files. The counts that decide how large a network is are compared first;
then the network is laid out on torch's meta device, which takes no memory, and compared tensor by tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from stepmark.errors import CheckpointError
from stepmark.models.checkpoint import FLOATING, TensorFact, Tensors

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
        if found := _NUMBERED.match(name):
            lists.setdefault(found["list"], set()).add(int(found["number"]))
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
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    stored = [fact for fact in tensors.facts.values() if fact.file in tensors.files.network]
    if quantised and any(fact.dtype not in FLOATING for fact in stored):
        size, held = sum(map(math.prod, wanted.values())), sum(fact.elements for fact in stored)
        if size > _PACKED * held:
            raise CheckpointError(
                f"{folder}/config.json describes a network of {size:,} weights, and {_files(tensors)} {held:,} numbers; {_REMEDY}"
            )
        return
    places = _places(network, wanted, tensors)
    odd = [f"{name} ({fact.dtype})" for name, fact in places.values() if fact.dtype not in FLOATING]
    if odd:
        raise CheckpointError(
            f"{folder}: weights should be of type {', '.join(sorted(FLOATING))}; found {_some(odd)}. Take the checkpoint in its "
            "full precision"
        )
    wrong = {place: (name, fact) for place, (name, fact) in places.items() if fact.shape != wanted[place]}
    tied = _tied(network)
    missing = sorted(name for name in wanted.keys() - places.keys() if name not in tied)
    left = leftover(network, (n for n, fact in tensors.facts.items() if fact.file in tensors.files.network))
    if not (wrong or missing or left):
        return
    # Of some networks transformers knows another layout (experts stored one by one, say), and converts it: as many numbers under other
    # names and in other shapes. What is still missing or left over then is refused by `check_report`.
    inside = _inside(network)
    lacking = sum(math.prod(wanted[name]) for name in (*wrong, *filter(inside, missing)))
    spare = sum(tensors.facts[name].elements for name in (*(name for name, _ in wrong.values()), *left))
    heads = sum(math.prod(wanted[name]) for name in missing if not inside(name))
    used = {name for name, _ in places.values()}
    beside = sum(
        fact.elements for name, fact in tensors.facts.items() if name not in used and not inside(name)
    )
    if lacking == spare and heads <= beside:
        return
    check_layers(network.config.to_dict(), tensors, all_of_them=True)
    shapes = [f"{name} {fact.shape}, by config.json {wanted[place]}" for place, (name, fact) in wrong.items()]
    raise CheckpointError(_disagreement(folder, missing, shapes, left))


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
    left = leftover(network, [str(key) for key in report["unexpected_keys"]])
    if missing or wrong or left:
        raise CheckpointError(_disagreement(folder, missing, wrong, left))


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
    network: Any, wanted: Mapping[str, tuple[int, ...]], tensors: Tensors
) -> dict[str, tuple[str, TensorFact]]:
    """The stored tensor for each place of the network, by transformers' rule: with or without the prefix of the backbone."""
    prefix = f"{network.base_model_prefix}."
    places: dict[str, tuple[str, TensorFact]] = {}
    for name, fact in tensors.facts.items():
        if fact.file not in tensors.files.network:
            continue
        place = next((p for p in (name, name.removeprefix(prefix), prefix + name) if p in wanted), None)
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


def _disagreement(folder: Path, missing: list[str], wrong: list[str], left: list[str]) -> str:
    found = [
        f"{what}: {_some(parts)}"
        for what, parts in (("missing", missing), ("of another shape", wrong), ("left over", left))
        if parts
    ]
    return f"{folder}: the weights do not fill the network that config.json describes ({'. '.join(found)}); {_REMEDY}"
