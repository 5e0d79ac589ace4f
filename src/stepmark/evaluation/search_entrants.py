"""Search methods as entrants of a comparison: of each, a family of searches from a small one to a large one.

=============== ==================================================================================================
method          what a size means
=============== ==================================================================================================
greedy          nothing: it writes one solution
best-of-n,      nothing: samples are asked for until the budget is spent
majority,
weighted-vote
adaptive        nothing: the largest N is what the budget allows
beam,           steps written a round; `expand` of them after each beam, so the width is size / `expand`
early-rejection
dvts            steps written a round; `expand` of them after each subtree's best
rebase          steps written a round
mcts            children of a node; simulations are made until the budget is spent, or nothing is left to expand
one's own       the field that its class names in `Searching.sized_by`, enlarged from 1 on; None there: nothing, its
                settings stay as they are and the budget alone bounds it
=============== ==================================================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from stepmark.errors import UsageError
from stepmark.search.base import Choice, Searching
from stepmark.search.beam import BeamSearch, DiverseTrees, EarlyRejection
from stepmark.search.best_of_n import Adaptive, BestOfN, Greedy, Majority, WeightedVote
from stepmark.search.mcts import MCTS
from stepmark.search.methods import remade
from stepmark.search.rebase import Rebase
from stepmark.settings import settings

Fit = Literal["none", "round", "children", "field"]
"""How a method comes to spend its budget: of itself; by more steps a round; by more children of a node; by a larger value of the field that
a search of the caller's own names."""

MANY = 1_000_000
"""Samples or simulations that no budget reaches."""


@settings
class Shape:
    """What the searches of a comparison have in common besides how steps are written and scored."""

    expand: Annotated[int, Field(ge=1)] = 4
    """Steps written after each beam or subtree (fewer where the budget does not do for so many); children of an MCTS node at least."""
    choose: Choice = "best"
    """How beam, dvts, early-rejection, mcts and adaptive choose among their finished solutions: best, majority or vote."""
    rebase_choose: Choice = "vote"
    """How rebase does; its paper votes."""
    balance: float = 0.2
    """Temperature of rebase."""
    c_puct: float = 1.0
    """Exploration of mcts."""
    backup: Literal["mean", "max"] = "mean"
    """Value of a node of mcts."""
    tau: int = 16
    """Tokens after which early-rejection scores the beginning of a step."""
    adaptive_pilot: int = 4
    """Of adaptive: the least N."""
    q: float = 0.99
    """Of adaptive: the probability that a right solution is among the N."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """A method of a comparison."""

    name: str
    """In figures and tables."""
    sized: Callable[[int], Searching]
    """Size (1 or more) to the search; seed, budget, grading are put into it afterwards."""
    fit: Fit = "none"
    least: int = 1
    """The smallest size that is tried."""


def _beam(shape: Shape, size: int) -> Searching:
    return BeamSearch(width=max(1, size // shape.expand), expand=min(size, shape.expand), choose=shape.choose)


def _dvts(shape: Shape, size: int) -> Searching:
    return DiverseTrees(
        subtrees=max(1, size // shape.expand), expand=min(size, shape.expand), choose=shape.choose
    )


def _rejection(shape: Shape, size: int) -> Searching:
    return EarlyRejection(
        width=max(1, size // shape.expand),
        expand=min(size, shape.expand),
        tau=shape.tau,
        choose=shape.choose,
    )


def _rebase(shape: Shape, size: int) -> Searching:
    return Rebase(width=size, balance=shape.balance, choose=shape.rebase_choose)


def _mcts(shape: Shape, size: int) -> Searching:
    # An end that is selected again costs nothing, so simulations beyond what the tree holds only take time.
    return MCTS(
        simulations=64 * size,
        expand=size,
        c_puct=shape.c_puct,
        backup=shape.backup,
        choose=shape.choose,
    )


def _adaptive(shape: Shape, _: int) -> Searching:
    return Adaptive(pilot=shape.adaptive_pilot, most=MANY, q=shape.q, choose=shape.choose)


_SIZED: Mapping[str, tuple[Callable[[Shape, int], Searching], Fit]] = {
    "greedy": (lambda shape, size: Greedy(), "none"),
    "best-of-n": (lambda shape, size: BestOfN(n=MANY), "none"),
    "majority": (lambda shape, size: Majority(n=MANY), "none"),
    "weighted-vote": (lambda shape, size: WeightedVote(n=MANY), "none"),
    "beam": (_beam, "round"),
    "dvts": (_dvts, "round"),
    "rebase": (_rebase, "round"),
    "mcts": (_mcts, "children"),
    "adaptive": (_adaptive, "none"),
    "early-rejection": (_rejection, "round"),
}

METHODS: tuple[str, ...] = tuple(_SIZED)
"""Every method, in the order of the tables."""

BASELINES = ("majority", "best-of-n")
"""What every comparison holds: what sampling alone reaches, without a PRM and with it."""


_NAME = re.compile(r"\w[\w.+:@()-]*")
"""Of a search of the caller's own: it becomes a part of the names of figures, METHOD/BUDGET."""


def entrants(
    names: tuple[str, ...], shape: Shape | None = None, own: Sequence[Searching] = ()
) -> list[Entrant]:
    """The methods of these names, those of `BASELINES` always among them, in the order of `METHODS`; then one's own.

    Args:
        names: of the library's methods.
        shape: what they have in common; it is not put into one's own.
        own: searches of the caller's own, each with its settings; see `own_entrant`.

    Raises:
        UsageError: no such method, or one of the caller's own that cannot be told from another or cannot be sized.
    """
    shape = shape or Shape()
    for name in names:
        if name not in _SIZED:
            raise UsageError(
                f"there is no search method {name!r}; known: {', '.join(METHODS)}, and a search of your own as package.module:Class"
            )
    found = [
        Entrant(
            name=name,
            sized=partial(_SIZED[name][0], shape),
            fit=_SIZED[name][1],
            least=shape.expand if _SIZED[name][1] == "children" else 1,
        )
        for name in METHODS
        if name in names or name in BASELINES
    ]
    for search in own:
        entrant = own_entrant(search)
        if entrant.name in {*METHODS, *(one.name for one in found)}:
            raise UsageError(
                f"two searches are called {entrant.name!r}, in this comparison or in the library: give the class {type(search).__name__} "
                "a name of its own"
            )
        found.append(entrant)
    return found


def own_entrant(search: Searching) -> Entrant:
    """A search of the caller's own as an entrant.

    Where its class names a field in `sized_by`, that is made larger, from 1, until the pilot spends 90 % of the budget or the budget ends more
    than half of its searches (`search.contest`).
    Else its settings stay as they are: it spends what they take, and the budget cuts it short.

    Args:
        search: with its settings; how steps are written, grading, budget and sizes are put into it afterwards.

    Raises:
        UsageError: it has no `search`, its name cannot stand in a figure's, or `sized_by` names no field that takes every whole number from 1.
    """
    kind = type(search).__name__
    name = getattr(search, "name", None)
    if not callable(getattr(search, "search", None)):
        raise UsageError(f"the search {kind} is abstract: expected search(problem)")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise UsageError(
            f"the search {kind} is called {name!r}: expected a name of letters, digits and -_.+:@(), for the names of figures"
        )
    by = search.sized_by
    if by is None:
        return Entrant(name=name, sized=lambda size: search)
    known = [one.name for one in fields(search) if one.init and type(getattr(search, one.name)) is int]
    if by not in known:
        have = f"has the whole numbers {', '.join(known)}" if known else "has no field that is a whole number"
        raise UsageError(
            f"the search {name}: sized_by is {by!r}, expected the name of a field that is a whole number; it {have}"
        )

    def sized(size: int) -> Searching:
        larger: dict[str, Any] = {by: size}
        try:
            return remade(search, **larger)
        except UsageError as error:
            raise UsageError(
                f"the search {name}: {by}, which sized_by names, must take every whole number from 1, and refused {size}: {error}"
            ) from error

    sized(1)
    return Entrant(name=name, sized=sized, fit="field")


S = TypeVar("S", bound=Searching)


def equipped(search: S, common: Searching) -> S:
    """A search with how steps are written, grading, budget and sizes of another one."""
    return remade(search, how=common.how, grading=common.grading, budget=common.budget, sizes=common.sizes)


def starting_size(entrant: Entrant, solutions: float) -> int:
    """The first size that is tried: steps a round for so many solutions.

    Args:
        entrant: which.
        solutions: that best-of-N writes for the budget.
    """
    return entrant.least if entrant.fit != "round" else max(entrant.least, math.floor(solutions))
