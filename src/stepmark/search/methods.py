"""The searches by name, the library's and a caller's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stepmark.own import Kind, Own, load_method, own
from stepmark.search.adaptive import Adaptive
from stepmark.search.beam import BeamSearch
from stepmark.search.best_of_n import BestOfN, Greedy, Majority, WeightedVote
from stepmark.search.dvts import DiverseTrees
from stepmark.search.mcts import MCTS
from stepmark.search.rebase import Rebase
from stepmark.search.rejection import EarlyRejection
from stepmark.search.searching import Search, Searching, Steps


class Method(Search, Protocol):
    """A search whose settings a run fills in."""

    @property
    def how(self) -> Steps:
        """How the policy writes."""

    @property
    def asks_prm(self) -> bool:
        """Whether it asks a PRM, which else is not loaded."""


METHODS: Mapping[str, Callable[[], Method]] = {
    "greedy": Greedy,
    "best-of-n": BestOfN,
    "majority": Majority,
    "weighted-vote": WeightedVote,
    "beam": BeamSearch,
    "dvts": DiverseTrees,
    "rebase": Rebase,
    "mcts": MCTS,
    "adaptive": Adaptive,
    "early-rejection": EarlyRejection,
}
"""The library's searches. To add one: a module with its class, and a line here."""

OF_THE_RUN = ("grading", "budget", "sizes")
"""Fields of every search that a run fills in, from the PRM and from its own settings."""

_OWN = Kind(
    what="search",
    call="search",
    base=Searching,
    wanted="a class, or a function whose call gives one, that is a frozen dataclass derived from stepmark.search.searching.Searching (or "
    "Choosing, Expanding) with a name and search(problem)",
    page="add-search.md",
    commands=tuple(METHODS),
    flags={
        "grading": "`aggregate` and the PRM",
        "budget": "`budget` and `budget_flops`, of an evaluation `budgets`",
        "sizes": "`policy_parameters` and `prm_parameters`",
    },
)


def own_search(name: str, settings: Sequence[str] = (), *, setting: str = "method") -> Own:
    """The search behind "package.module:Class"; see `own.own`.

    Raises:
        UsageError: as there.
    """
    return own(name, settings, _OWN, setting=setting)


def load_search(
    method: str | Method, settings: Sequence[str] = ()
) -> tuple[Method, Mapping[str, Any] | None]:
    """A search, and where it is from if it is a caller's own.

    Args:
        method: a name in `METHODS`, "package.module:Class", or the search itself.
        settings: "name=value" each, for a name; of a field that is a dataclass, "how.temperature=0.5".

    Raises:
        UnknownNameError: no such search.
        UsageError: a setting that it does not have or take; settings for a search that is made already.
    """
    return load_method(method, settings, METHODS, _OWN)
