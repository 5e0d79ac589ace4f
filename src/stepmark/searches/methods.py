"""The searches by name, the library's and a caller's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stepmark.errors import StepmarkError, UsageError, told
from stepmark.own import Kind, Own, load_method, own
from stepmark.searches.base import Search, Searching
from stepmark.searches.beam import BeamSearch, DiverseTrees
from stepmark.searches.best_of_n import BestOfN, Greedy, Majority, WeightedVote
from stepmark.searches.mcts import MCTS
from stepmark.searches.rebase import Rebase

S = TypeVar("S")


METHODS: Mapping[str, Callable[[], Search]] = {
    "greedy": Greedy,
    "best-of-n": BestOfN,
    "majority": Majority,
    "weighted-vote": WeightedVote,
    "beam": BeamSearch,
    "dvts": DiverseTrees,
    "rebase": Rebase,
    "mcts": MCTS,
}
"""The library's searches. To add one: a module with its class, and a line here."""

OF_THE_RUN = ("grading", "budget")
"""Fields of every search that a run fills in, from the PRM and from its own settings."""

_OWN = Kind(
    what="search",
    call="search",
    base=Searching,
    wanted="a class, or a function whose call gives one, that is a frozen dataclass derived from stepmark.searches.base.Searching (or "
    "Choosing, Expanding) with a name and `async def search(problem, policy, prm, verifier)`",
    page="add-search.md",
    flags={
        "grading": "`aggregate` and the PRM",
        "budget": "`budget`, of an evaluation `budgets`",
    },
)


def own_search(name: str, settings: Sequence[str] = (), *, setting: str = "method") -> Own:
    """The search behind "package.module:Class"; see `own.own`.

    Raises:
        UsageError: as there.
    """
    return own(name, settings, _OWN, setting=setting)


def load_search(
    method: str | Search, settings: Sequence[str] = ()
) -> tuple[Search, Mapping[str, Any] | None]:
    """A search, and where it is from if it is a caller's own; see `own.load_method`."""
    return load_method(method, settings, _OWN, METHODS)


def remade(search: S, **changes: Any) -> S:
    """A search, a dataclass, with some fields changed.

    Raises:
        UsageError: its class refuses them; the message names its file and line.
    """
    try:
        return replace(search, **changes)  # type: ignore[type-var]
    except StepmarkError:
        raise
    except Exception as error:
        kind = type(search)
        given = ", ".join(f"{name}={value!r}" for name, value in changes.items())
        raise UsageError(
            f"{kind.__module__}:{kind.__qualname__} refuses {given}: {told(error)} (STEPMARK_DEBUG=1 shows how it came there)"
        ) from error
