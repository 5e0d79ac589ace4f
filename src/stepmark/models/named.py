"""A PRM that is named: which settings mean something for it, and the one that a function of one's own makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepmark.catalog import Catalog
from stepmark.errors import StepmarkError, UsageError
from stepmark.models.prm import PRM

MEANT = {
    "family": "says how a checkpoint is read",
    "reference": "is for implicit PRMs",
    "model": "names one of a server's models",
    "tokenizer": "is for a PRM on a server that takes token ids",
    "samples": "is for PRMs that write critiques",
}
"""What `load_prm`'s settings are for that mean nothing for some PRMs."""


def refuse_idle(given: Mapping[str, object], idle: Iterable[str], why: str) -> None:
    """Refuse settings that would be passed over in silence.

    Args:
        given: name to value; None: left out.
        idle: those of them that mean nothing here.
        why: in the message, what the PRM is instead, and what to do.

    Raises:
        UsageError: one of them is given.
    """
    for name in idle:
        if given[name] is not None:
            raise UsageError(f"--{name} {given[name]}: this {MEANT[name]}, and {why}")


def prm_of(name: str, names: Catalog) -> PRM:
    """The PRM that a function or class of one's own makes.

    Args:
        name: "package.module:factory".
        names: the catalog that imports it.

    Raises:
        UsageError: there is none, it is nothing to call, or it raised what is no error of stepmark's.
    """
    try:
        factory = names.load(name)
    except StepmarkError:
        raise  # it says itself what to do
    except Exception as error:
        raise _failed(name, "importing it", error) from error
    if not callable(factory):
        raise UsageError(
            f"{name} is a {type(factory).__name__}; expected a function or class whose call gives a PRM"
        )
    try:
        made: PRM = factory()
    except StepmarkError:
        raise
    except Exception as error:
        raise _failed(name, "its call", error) from error
    return made


def _failed(name: str, what: str, error: Exception) -> UsageError:
    return UsageError(
        f"{name}: {what} failed: {type(error).__name__}: {error} (STEPMARK_DEBUG=1 shows where)"
    )
