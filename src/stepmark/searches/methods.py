"""The searches by name, the library's and a caller's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stepmark.errors import StepmarkError, UsageError, told
from stepmark.registry import Registry
from stepmark.searches.base import Search, Searching

S = TypeVar("S")


METHODS = Registry(
    "search",
    {
        "greedy": "stepmark.searches.sampled:Greedy",
        "best-of-n": "stepmark.searches.sampled:BestOfN",
        "majority": "stepmark.searches.sampled:Majority",
        "weighted-vote": "stepmark.searches.sampled:WeightedVote",
        "beam": "stepmark.searches.beam:BeamSearch",
        "dvts": "stepmark.searches.beam:DiverseTrees",
        "rebase": "stepmark.searches.rebase:Rebase",
        "mcts": "stepmark.searches.mcts:MCTS",
    },
    call="search",
    base=lambda: Searching,
    expected="a class, or a function whose call gives one, that is a frozen dataclass derived from stepmark.searches.base.Searching (or "
    "Choosing, Expanding) with a name and `async def search(problem, policy, prm, verifier)`",
    page="extending.md",
    decided={
        "grading": "`aggregate` and the PRM",
        "budget": "`budget`, of an evaluation `budgets`",
    },
)
"""The library's searches. To add one: a module with its class, whose docstring begins with its line in lists, and a line here."""

OF_THE_RUN = ("grading", "budget")
"""Fields of every search that a run fills in, from the PRM and from its own settings."""


def load_search(
    method: str | Search, settings: Sequence[str] = ()
) -> tuple[Search, Mapping[str, Any] | None]:
    """A search, and where it is from if it is a caller's own; see `Registry.method`."""
    return METHODS.method(method, settings)


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
        shown = ", ".join(f"{name}={value!r}" for name, value in changes.items())
        raise UsageError(
            f"{kind.__module__}:{kind.__qualname__} refuses {shown}: {told(error)} (STEPMARK_DEBUG=1 shows how it came there)"
        ) from error
