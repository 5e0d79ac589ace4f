"""A PRM that is named: which settings mean something for it, and the one that a function of one's own makes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stepmark.catalog import Catalog
from stepmark.errors import UsageError
from stepmark.models.files import local_folder
from stepmark.models.identity import identity_of
from stepmark.models.prm import PRM
from stepmark.models.published import find_published

MEANT = {
    "family": "says how a checkpoint is read",
    "reference": "is for implicit PRMs",
    "model": "names one of a server's models",
    "tokenizer": "is for a PRM on a server that takes token ids",
    "samples": "is for PRMs that write critiques",
    "seed": "is for PRMs that write critiques",
    "neutral": "is for PRMs of three classes",
    "truncate": "is for PRMs that are read from a checkpoint here",
    "dtype": "is the precision of a model in this process",
    "device": "is where a model in this process computes",
    "token_budget": "is how much a model in this process computes at once",
}
"""What `load_prm`'s settings are for that mean nothing for some PRMs."""

UNSAID: Mapping[str, object] = {
    "seed": 0,
    "neutral": "positive",
    "truncate": False,
    "dtype": "auto",
    "device": "auto",
}
"""Those of them whose value is not None where nothing is said: one that is given in so many words is no other."""

COMPUTING = ("dtype", "device", "token_budget")
"""Those about a model in this process."""

SHARED = (*COMPUTING, "truncate")
"""Those that a command takes once for the PRM and the outcome model beside it."""

_READING = ("family", "reference", "samples", "neutral", "truncate")


def is_server(name: str) -> bool:
    """Whether a PRM's or policy's name is the address of a server."""
    return name.startswith(("http://", "https://"))


def is_factory(name: str) -> bool:
    """Whether a PRM's name is "package.module:factory"."""
    return ":" in name and not is_server(name) and "/" not in name


def writes_critiques(name: str, *, family: str | None = None, tokenizer: str | None = None) -> bool:
    """Whether a PRM named so is read as one that writes critiques.

    Args:
        name: no factory's.
        family: as given.
        tokenizer: as given; of a server, the checkpoint that lies here.

    Raises:
        CheckpointError: what the checkpoint says of itself cannot be read.
    """
    from stepmark.models.generative import GENERATIVE, critic_spec_of

    if family is not None:
        return family in GENERATIVE
    place = name if tokenizer is None else tokenizer
    published = find_published(place)
    if published is not None:
        return published.family in GENERATIVE
    # Only of what lies here: whether to fetch a name from the hub is not decided by asking this.
    folder = local_folder(place)
    return folder is not None and critic_spec_of(folder) is not None


def idle_settings(name: str, *, family: str | None = None, tokenizer: str | None = None) -> dict[str, str]:
    """The settings that mean nothing for a PRM, as far as its name tells; each with what the PRM is instead, and what to do.

    Args:
        name: as `load_prm` takes it.
        family: as given.
        tokenizer: as given.

    Raises:
        CheckpointError: what the checkpoint says of itself cannot be read.
    """
    if is_factory(name):
        return dict.fromkeys(MEANT, f"{name} makes its PRM itself: say it in that function")
    idle: dict[str, str] = {}
    served = is_server(name)
    if served:
        idle |= dict.fromkeys(
            COMPUTING, f"{name} is a server, which computes by itself: leave it out here, and say it there"
        )
    else:
        idle |= dict.fromkeys(("model", "tokenizer"), f"{name} is not the address of one: leave it out")
    if writes_critiques(name, family=family, tokenizer=tokenizer):
        read = f"{name} is read as one that writes critiques: leave it out"
        return dict.fromkeys(("reference", "neutral", "token_budget", "truncate"), read) | idle
    if served and tokenizer is None:
        # What only other servers are asked for is said in the words for the server that is asked.
        reads = (
            f"{name} without `tokenizer` is taken for a stepmark server, which decides how its PRM is read"
        )
        return idle | {
            key: f"{reads}: give {key} to `stepmark serve`, or, of any other server, name its `tokenizer`"
            for key in (*_READING, "seed")
        }
    read = f"{name} is read as one that writes none: leave it out, or name its `family` (stepmark families)"
    idle |= dict.fromkeys(("samples", "seed"), read)
    if served:
        idle["reference"] = f"{name} computes one model only: leave it out"
    return idle


def check_device(device: str) -> None:
    """Refuse a device that is none, before a model is loaded.

    Raises:
        UsageError: not auto, cpu, cuda or one of several.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UsageError(f"`device` {device}: expected auto, cpu, cuda or cuda:NUMBER")


def read_by(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of settings that are given for several models at once, those that this one reads.

    Args:
        name: as `load_prm` takes it, without family and tokenizer.
        settings: some of `SHARED`.

    Raises:
        CheckpointError: what the checkpoint says of itself cannot be read.
    """
    idle = idle_settings(name)
    return {key: value for key, value in settings.items() if key not in idle}


def refuse_idle(given: Mapping[str, object], idle: Mapping[str, str]) -> None:
    """Refuse settings that would be passed over in silence.

    Args:
        given: name to value; None, and what `UNSAID` has: left out.
        idle: what means nothing here; see `idle_settings`.

    Raises:
        UsageError: one of them is given.
    """
    for name, why in idle.items():
        value = given.get(name)
        if value is not None and value != UNSAID.get(name):
            said = "" if value is True else f" {value}"
            raise UsageError(f"--{name.replace('_', '-')}{said}: this {MEANT[name]}, and {why}")


def prm_of(name: str, names: Catalog) -> PRM:
    """The PRM that a function or class of one's own makes.

    Args:
        name: "package.module:factory".
        names: the catalog that imports it.

    Raises:
        UsageError: there is none, it is nothing to call, it raised what is no error of stepmark's, it gave no PRM, or one without an identity.
    """
    made: PRM = names.make(name, ("name", "score_kind", "default_aggregate", "score_many"))
    identity_of(made)
    return made
