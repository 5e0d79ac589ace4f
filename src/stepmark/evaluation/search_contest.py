"""Search methods at matched compute: every method with the same hard budgets, on problems with reference answers.

For each budget, each method is made as large as it takes to spend it, and run on every problem with every seed. Its accuracy is
compared with that of a majority vote and of best-of-N at the same budget, and at what the method has really spent.

=============== ==================================================================================================
method          what its size means
=============== ==================================================================================================
greedy          nothing: it writes one solution
best-of-n,      nothing: samples are asked for until the budget is spent
majority,
weighted-vote
adaptive        nothing: the largest N is what the budget allows
beam, dvts,     steps written a round; `expand` of them after each beam or subtree, so their number is size / `expand`
early-rejection
rebase          steps written a round
mcts            children of a node; simulations are made until the budget is spent, or nothing is left to expand
your own        the field that its class names in `Searching.sized_by`, enlarged from 1 on; None there: nothing
=============== ==================================================================================================

* A search that chooses nothing, an unfinished solution, or one that names no answer is wrong, and counted as such by name. An answer
  that the verifier reaches no verdict on is left out of the accuracy, and counted.
* Compute is `Cost.tokens` (or `Cost.flops`) of the search: the policy's and the PRM's together. The cost of fitting sizes is
  reported beside it, and belongs to no method.
* Sizes are fitted on a few of the same problems, without looking at an answer.
* A problem that a method refuses is left out for all, and named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from stepmark.batching import Answerer, ReplyStore
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.result import Item
from stepmark.metrics.aggregate import aggregate
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic, shares
from stepmark.records import Problem, Refusal
from stepmark.search.base import Budget, Candidate, Choice, Found, Grading, Searching, at_least
from stepmark.search.beam import BeamSearch, DiverseTrees, EarlyRejection
from stepmark.search.best_of_n import Adaptive, BestOfN, Greedy, Majority, WeightedVote
from stepmark.search.mcts import MCTS
from stepmark.search.methods import remade
from stepmark.search.rebase import Rebase
from stepmark.search.run import run
from stepmark.settings import settings
from stepmark.show.text import amount
from stepmark.verifiers.base import Verifier

Unit = Literal["tokens", "flops"]
Fit = Literal["none", "round", "children", "field"]
"""What a size enlarges: nothing; steps a round; children of a node; a field that a search of your own names."""

METHODS = (
    "greedy", "best-of-n", "majority", "weighted-vote", "beam", "dvts", "rebase", "mcts", "adaptive", "early-rejection",
)  # fmt: skip
"""The library's methods, in the order of the tables."""

BASELINES = ("majority", "best-of-n")
"""In every comparison: what sampling alone reaches, without a PRM and with it."""

_FITS: Mapping[str, Fit] = {
    "beam": "round", "dvts": "round", "rebase": "round", "early-rejection": "round", "mcts": "children",
}  # fmt: skip
_MANY = 1_000_000
"""Samples or simulations that no budget reaches."""
_ENOUGH = 0.9
"""Of a budget: a size that spends so much is large enough."""
_CUT = 0.5
"""Share of searches that the budget may cut short; a size that has more cut short is too large."""
_TRIALS: Mapping[Fit, int] = {"round": 5, "children": 5, "field": 8}
_FASTEST: Mapping[Fit, float] = {"round": 2.0, "children": 2.0, "field": 8.0}
"""How many times larger the next size may be. A search of your own begins at 1, so it may grow faster."""
_NAME = re.compile(r"\w[\w.+:@()-]*")
"""Of a search of your own: it becomes a part of the names of figures, METHOD/BUDGET."""

ENDS = {
    **{end: ("end", end) for end in ("no answer", "unfinished", "nothing", "no verdict")},
    "stopped by budget": ("stopped", "budget"),
    "dead end": ("stopped", "dead end"),
}
"""Ways to end without a right or wrong answer: figure to the key and value of a run. All but no verdict count as wrong."""

SPREAD = ("gap", "noise", "separation")
_NEAR = 1.1


@settings
class Shape:
    """What the searches of a comparison have in common besides how steps are written and scored."""

    expand: Annotated[int, Field(ge=1)] = 4
    """Steps written after each beam or subtree (fewer where the budget does not do for so many); children of an MCTS node at least."""
    choose: Choice = "best"
    """How beam, dvts, early-rejection, mcts and adaptive choose among their finished solutions: best, majority or vote."""
    balance: float = 0.2
    """Temperature of rebase."""
    c_puct: float = 1.0
    """Exploration of mcts."""
    backup: Literal["mean", "max"] = "mean"
    """Value of a node of mcts."""
    tau: int = 16
    """Tokens after which early-rejection scores the beginning of a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """A method of a comparison: a family of searches from a small one to a large one."""

    name: str
    """In figures and tables."""
    sized: Callable[[int], Searching]
    """Size (1 or more) to the search; seed, budget, grading are put into it afterwards."""
    fit: Fit = "none"
    least: int = 1
    """The smallest size that is tried."""


def _sized(name: str, shape: Shape, size: int) -> Searching:
    """A method of the library at a size."""
    places, expand, choose = max(1, size // shape.expand), min(size, shape.expand), shape.choose
    match name:
        case "greedy":
            return Greedy()
        case "best-of-n":
            return BestOfN(n=_MANY)
        case "majority":
            return Majority(n=_MANY)
        case "weighted-vote":
            return WeightedVote(n=_MANY)
        case "adaptive":
            return Adaptive(most=_MANY, choose=choose)
        case "beam":
            return BeamSearch(width=places, expand=expand, choose=choose)
        case "dvts":
            return DiverseTrees(subtrees=places, expand=expand, choose=choose)
        case "early-rejection":
            return EarlyRejection(width=places, expand=expand, tau=shape.tau, choose=choose)
        case "rebase":
            return Rebase(width=size, balance=shape.balance)
    # An end that is selected again costs nothing, so simulations beyond what the tree holds only take time.
    return MCTS(simulations=64 * size, expand=size, c_puct=shape.c_puct, backup=shape.backup, choose=choose)


def entrants(
    names: Sequence[str], shape: Shape | None = None, own: Sequence[Searching] = ()
) -> tuple[Entrant, ...]:
    """The methods of these names, those of `BASELINES` always among them, in the order of `METHODS`; then your own.

    Raises:
        UsageError: no such method, or a search of your own whose name is taken or that cannot be sized.
    """
    shape = shape or Shape()
    for name in names:
        if name not in METHODS:
            raise UsageError(
                f"there is no search method {name!r}; known: {', '.join(METHODS)}, and a search of your own as package.module:Class"
            )
    entered = [
        Entrant(
            name=name,
            sized=partial(_sized, name, shape),
            fit=(fit := _FITS.get(name, "none")),
            least=shape.expand if fit == "children" else 1,
        )
        for name in METHODS
        if name in names or name in BASELINES
    ]
    for search in own:
        entrant = own_entrant(search)
        if entrant.name in {*METHODS, *(other.name for other in entered)}:
            raise UsageError(
                f"two searches are called {entrant.name!r}, in this comparison or in the library: give the class {type(search).__name__} "
                "a name of its own"
            )
        entered.append(entrant)
    return tuple(entered)


def own_entrant(search: Searching) -> Entrant:
    """A search of your own as an entrant, of which the field that its class names in `sized_by` is made larger, from 1.

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
    known = [part.name for part in fields(search) if part.init and type(getattr(search, part.name)) is int]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """Settings of the comparison."""

    budgets: tuple[float, ...]
    """What a problem may cost, in increasing order: one point of each curve."""
    unit: Unit = "tokens"
    """Of the budgets: tokens of both models, or floating-point operations of both, which needs their sizes."""
    entrants: tuple[Entrant, ...]
    """The methods; see `entrants`."""
    seeds: int = 1
    """How often each search is run, with other samples."""
    pilot: int = 12
    """Problems that sizes are fitted on, evenly spaced; 0 takes what a solution costs best-of-N for granted."""

    def __post_init__(self) -> None:
        budgets = self.budgets
        if not budgets or list(budgets) != sorted(set(budgets)) or not 0 < budgets[0] < math.inf:
            raise UsageError(f"budgets: expected increasing numbers above 0, found {list(budgets)}")
        if self.unit == "tokens" and any(budget != int(budget) for budget in budgets):
            raise UsageError(f"budgets: expected whole numbers of tokens, found {list(budgets)}")
        at_least("seeds", self.seeds, 1)
        at_least("pilot", self.pilot, 0)

    @property
    def names(self) -> tuple[str, ...]:
        """The budgets as figures name them."""
        return tuple(f"{budget:.15g}" for budget in self.budgets)


@dataclass(frozen=True, kw_only=True)
class Arena:
    """What searches run in: models, verifier, store."""

    answerers: Mapping[type, Answerer]
    verifier: Verifier
    common: Searching
    """How steps are written (with the first seed), the grading, and the sizes of the models; its budget is not read."""
    store: ReplyStore | None = None
    """Keeps every reply: an interrupted comparison continues, and examples cost nothing."""
    in_flight: int = 16
    tell: Callable[[str], None] = lambda line: None
    """Gets a line of progress for everything that is done."""
    verdicts: dict[tuple[str | None, str], bool | None] = field(default_factory=dict)

    def search(
        self,
        problems: Sequence[Problem],
        settings: Contest,
        entrant: Entrant,
        size: int,
        budget: float,
        seed: int = 0,
    ) -> list[Found | Refusal]:
        """A method at a size, with a budget and the samples of the seed-th run, on some problems."""
        common = self.common
        search = remade(
            entrant.sized(size),
            how=replace(common.how, seed=common.how.seed + seed),
            grading=common.grading,
            budget=Budget(tokens=int(budget)) if settings.unit == "tokens" else Budget(flops=budget),
            sizes=common.sizes,
        )
        # A `Searching` without `search` is abstract; every entrant has it.
        return list(
            run(problems, search, self.answerers, store=self.store, in_flight=self.in_flight)  # type: ignore[arg-type]
        )

    def right(self, problem: Problem, candidate: Candidate) -> bool | None:
        """Whether a solution's answer is right; None without a verdict. One without an answer, or unfinished, is not."""
        if not candidate.finished or candidate.answer is None:
            return False
        key = (problem.id, candidate.answer)
        if key not in self.verdicts:
            self.verdicts[key] = self.verifier.verify(candidate.text, problem.answer or "").correct
        return self.verdicts[key]


class Fitted(NamedTuple):
    """The size of a method at a budget, and how many the pilot tried."""

    size: int
    tried: int = 0


@dataclass(frozen=True, kw_only=True)
class Contested:
    """A finished comparison."""

    items: list[Item]
    fits: Mapping[tuple[str, str], Fitted]
    """By method and budget."""
    refused: tuple[str, ...]
    """Problems that were left out, each with why."""


def contest(problems: Sequence[Problem], settings: Contest, arena: Arena) -> Contested:
    """Run every method at every budget with every seed.

    Items have `id`, `problem` (the id), `runs`: method -> budget -> a list along the seeds of {`right` (None: no verdict), `end`: "right",
    "wrong", "no verdict", "no answer", "unfinished" or "nothing", `stopped`, `spent` in the unit, `tokens`, `decoded`, `prm`, `candidates`,
    `found` (a candidate is right), `answer`}; and `spread`, see `spread_sums`.

    Raises:
        InputError: no problems, one without a reference answer or an id that stands twice.
        UsageError: a budget that cannot be kept; greedy sampling.
        BackendError: a model failed; what was done is in the store.
    """
    _check(problems, arena)
    count = min(max(1, settings.pilot), len(problems))
    pilot = [problems[at * len(problems) // count] for at in range(count)]
    budgets = list(zip(settings.budgets, settings.names, strict=True))
    solutions = dict.fromkeys(settings.budgets, 1.0)
    if any(entrant.fit == "round" for entrant in settings.entrants):
        best = next(entrant for entrant in settings.entrants if entrant.name == "best-of-n")
        for budget in settings.budgets:
            solutions[budget] = _mean_run(pilot, settings, best, 1, budget, arena).solutions
    fits = {
        (entrant.name, name): _fitted(entrant, budget, name, pilot, solutions[budget], settings, arena)
        for entrant in settings.entrants
        for budget, name in budgets
    }
    items: dict[str | None, Item] = {
        problem.id: {"id": problem.id, "problem": problem.id, "runs": {}, "spread": []}
        for problem in problems
    }
    refused: dict[str | None, str] = {}
    for seed in range(settings.seeds):
        for budget, name in budgets:
            for entrant in settings.entrants:
                size = fits[entrant.name, name].size
                sized = "" if entrant.fit == "none" else f"size {size}, "
                arena.tell(
                    f"{entrant.name} at {name} {settings.unit}, {sized}seed {arena.common.how.seed + seed}: {amount(len(problems), 'problem')}"
                )
                searched = arena.search(problems, settings, entrant, size, budget, seed)
                for problem, result in zip(problems, searched, strict=True):
                    if isinstance(result, Refusal):
                        refused[problem.id] = str(result.error)
                        continue
                    row = items[problem.id]
                    row["runs"].setdefault(entrant.name, {}).setdefault(name, []).append(
                        _run_row(result, settings.unit, arena)
                    )
                    if entrant.name == "best-of-n" and budget == settings.budgets[-1]:
                        row["spread"] += _judged_scores(result, arena)
    kept = [item for id_, item in items.items() if id_ not in refused]
    if not kept:
        raise InputError("no problem could be searched: " + next(iter(refused.values())))
    for item in kept:
        item["spread"] = spread_sums(item["spread"], arena.common.grading)
    return Contested(items=kept, fits=fits, refused=tuple(refused.values()))


def _check(problems: Sequence[Problem], arena: Arena) -> None:
    if not problems:
        raise InputError("there are no problems: expected at least one with its reference answer")
    if arena.common.how.temperature == 0:
        raise UsageError(
            "temperature 0: all samples of a prefix would be one; search needs a temperature above 0"
        )
    seen: set[str | None] = set()
    for problem in problems:
        if problem.id is None or problem.id in seen:
            raise InputError(
                "expected an id of its own for each problem", where=problem.id or problem.text[:60]
            )
        if not (problem.answer or "").strip():
            raise InputError("expected a reference answer", where=problem.id, field="answer")
        seen.add(problem.id)


def _spent(found: Found, unit: Unit) -> float:
    """What a search has cost, in the unit of the budgets."""
    value = found.cost.tokens if unit == "tokens" else found.cost.flops
    assert value is not None, "a budget in operations needs the sizes of the models"
    return float(value)


def _run_row(found: Found, unit: Unit, arena: Arena) -> dict[str, Any]:
    """One search as one JSON object; see `contest`."""
    chosen = found.solution
    right: bool | None = False
    if chosen is None:
        end = "nothing"
    elif not chosen.finished:
        end = "unfinished"
    elif chosen.answer is None:
        end = "no answer"
    else:
        right = arena.right(found.problem, chosen)
        end = "no verdict" if right is None else "right" if right else "wrong"
    return {
        "right": right,
        "end": end,
        "stopped": found.stopped,
        "spent": _spent(found, unit),
        "tokens": found.cost.tokens,
        "decoded": found.cost.decoded,
        "prm": found.cost.prm,
        "candidates": sum(candidate.finished for candidate in found.candidates),
        "found": any(arena.right(found.problem, candidate) is True for candidate in found.candidates),
        "answer": None if chosen is None else chosen.answer,
    }


def _judged_scores(found: Found, arena: Arena) -> list[tuple[bool, tuple[float, ...]]]:
    """Of each finished candidate whether it is right, and its step scores; those without a verdict or a score are left out."""
    judged = []
    for candidate in found.candidates:
        right = arena.right(found.problem, candidate)
        scores = tuple(score for score in candidate.scores if score is not None)
        if right is not None and candidate.finished and scores and len(scores) == len(candidate.scores):
            judged.append((right, scores))
    return judged


def _fitted(
    entrant: Entrant,
    budget: float,
    name: str,
    pilot: Sequence[Problem],
    solutions: float,
    settings: Contest,
    arena: Arena,
) -> Fitted:
    """The size at which a method spends a budget; `solutions` is how many best-of-N writes for it.

    A size is enlarged in proportion to what it leaves unspent until the pilot spends 90 % of the budget on average. Of methods that are
    worse off when they are cut short, one that has more than half of its searches ended by the budget is too large, and so is one that
    spends no more than a smaller one: the middle between that and the largest good size is tried next, half of it where none is good yet.
    """
    if entrant.fit == "none":
        return Fitted(1)
    size = best = entrant.least if entrant.fit != "round" else max(entrant.least, math.floor(solutions))
    measured: _Mean | None = None
    good = 0  # the largest size that is not too large; 0 as long as there is none
    too_large: int | None = None
    tried = 0
    while settings.pilot and tried < _TRIALS[entrant.fit]:
        tried += 1
        arena.tell(
            f"fitting {entrant.name} at {name} {settings.unit}: size {size} on {amount(len(pilot), 'problem')}"
        )
        now = _mean_run(pilot, settings, entrant, size, budget, arena)
        cut = entrant.fit != "children" and now.cut > _CUT
        if cut or (good and measured is not None and now.spent <= measured.spent):
            too_large = size
        else:
            good = size
        if good == size or not good:  # of sizes that are all too large, the smallest
            best, measured = size, now
        if good == size and now.spent >= _ENOUGH * budget:
            break
        if too_large is None:
            # In proportion to what is unspent; the next size that makes another search.
            least = max(size + 1, round(size * min(_FASTEST[entrant.fit], budget / max(now.spent, 1e-9))))
            same = entrant.sized(size)
            size = next(
                (larger for larger in range(least, 2 * least) if entrant.sized(larger) != same), least
            )
        else:
            size = max(entrant.least, (good + too_large) // 2)
        # Of a beam, sizes between two multiples of k are one search.
        if entrant.sized(size) == entrant.sized(best):
            break
    return Fitted(best, tried)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mean:
    spent: float
    cut: float
    solutions: float


def _mean_run(
    problems: Sequence[Problem], settings: Contest, entrant: Entrant, size: int, budget: float, arena: Arena
) -> _Mean:
    searched = arena.search(problems, settings, entrant, size, budget)
    results = [result for result in searched if isinstance(result, Found)]
    if not results:
        return _Mean(spent=0.0, cut=0.0, solutions=1.0)
    return _Mean(
        spent=fmean(_spent(result, settings.unit) for result in results),
        cut=sum(result.stopped == "budget" for result in results) / len(results),
        solutions=max(1.0, sum(len(result.candidates) for result in results) / len(results)),
    )


# -- Figures ----------------------------------------------------------------------------------------------------------

Rows = Sequence[Mapping[str, Any]]


def cells_of(rows: Rows) -> list[tuple[str, str]]:
    """(method, budget) that the items have, methods in the order of `METHODS` and others after them."""
    has = dict.fromkeys(
        (name, budget) for row in rows for name, cells in row["runs"].items() for budget in cells
    )
    order = dict.fromkeys((*METHODS, *(name for name, _ in has)))
    budgets = dict.fromkeys(budget for _, budget in has)
    return [(name, budget) for name in order for budget in budgets if (name, budget) in has]


def statistic(rows: Rows) -> Statistic:
    """The figures of these items as a function of their weights.

    For METHOD and BUDGET (as in the items of `contest`):

    - `accuracy/METHOD/BUDGET`: right / (right + wrong), over problems and seeds; in [0, 1].
    - `spent/METHOD/BUDGET`: the mean of what was really spent on a problem, in the unit of the budgets.
    - `found/METHOD/BUDGET`: share of searches with a right candidate, chosen or not.
    - `over BASELINE/METHOD/BUDGET`: accuracy less that of the baseline with the same budget.
    - `over BASELINE at equal spend/METHOD/BUDGET`: accuracy less that of the baseline for as much as the method has really spent: between the
      baseline's points by straight lines over the logarithm of compute. Not defined where the baseline was not measured near it (a tenth
      beyond its ends is near).
    - `END/METHOD/BUDGET` for each of `ENDS`: shares of searches; only where not all are 0.
    - `spread/…`: see `spread_statistic`.
    """
    cells = cells_of(rows)
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for name, budget in cells:
        runs = [row["runs"].get(name, {}).get(budget, []) for row in rows]
        columns |= _run_columns(runs, f"{name}/{budget}")
    ratios, spread = ratio_statistic(columns), spread_statistic([row["spread"] for row in rows])

    def compute(weights: Floats) -> dict[str, Floats]:
        out = dict(ratios(weights))
        return out | _differences(out, cells) | dict(spread(weights))

    return compute


def _run_columns(runs: Sequence[Rows], of: str) -> dict[str, tuple[list[float], list[float]]]:
    """The ratios of one method and budget over the problems."""

    def total(value: Callable[[Mapping[str, Any]], float]) -> list[float]:
        return [float(sum(map(value, cell))) for cell in runs]

    counts = total(lambda run: 1)
    columns = {
        f"accuracy/{of}": (
            total(lambda run: run["right"] is True),
            total(lambda run: run["right"] is not None),
        ),
        f"spent/{of}": (total(lambda run: run["spent"]), counts),
        f"found/{of}": (total(lambda run: run["found"]), counts),
    }
    for what, (key, value) in ENDS.items():
        if any(top := [float(sum(run[key] == value for run in cell)) for cell in runs]):
            columns[f"{what}/{of}"] = top, counts
    return columns


def _differences(figures: Mapping[str, Floats], cells: Sequence[tuple[str, str]]) -> dict[str, Floats]:
    out: dict[str, Floats] = {}
    for baseline in BASELINES:
        points = [budget for name, budget in cells if name == baseline]
        if not points:
            continue
        xs = np.stack([figures[f"spent/{baseline}/{budget}"] for budget in points], axis=1)
        ys = np.stack([figures[f"accuracy/{baseline}/{budget}"] for budget in points], axis=1)
        for name, budget in cells:
            if name == baseline:
                continue
            accuracy = figures[f"accuracy/{name}/{budget}"]
            if budget in points:
                out[f"over {baseline}/{name}/{budget}"] = accuracy - figures[f"accuracy/{baseline}/{budget}"]
            there = between(xs, ys, figures[f"spent/{name}/{budget}"])
            out[f"over {baseline} at equal spend/{name}/{budget}"] = accuracy - there
    return out


def between(xs: Floats, ys: Floats, at: Floats) -> Floats:
    """Straight lines over log x between the points of many curves at once: xs and ys (B, points), asked at (B,).

    Beyond an end by a tenth at most, the value at that end; nan farther out, and where x is not positive.
    """
    order = np.argsort(xs, axis=1, kind="stable")
    xs, ys = np.take_along_axis(xs, order, axis=1), np.take_along_axis(ys, order, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, asked = np.log(xs), np.log(at)[:, None]
        after = np.clip((logs <= asked).sum(axis=1), 1, max(1, xs.shape[1] - 1))[:, None]
        if xs.shape[1] == 1:
            value = ys[:, 0]
        else:
            x0, x1 = np.take_along_axis(logs, after - 1, axis=1), np.take_along_axis(logs, after, axis=1)
            y0, y1 = np.take_along_axis(ys, after - 1, axis=1), np.take_along_axis(ys, after, axis=1)
            # Two points at one x: the later one.
            part = np.where(x1 > x0, (asked - x0) / np.where(x1 > x0, x1 - x0, 1.0), 1.0)
            value = (y0 + np.clip(part, 0, 1) * (y1 - y0))[:, 0]
        near = (at * _NEAR >= xs[:, 0]) & (at <= xs[:, -1] * _NEAR) & (xs[:, 0] > 0)
    return np.where(near, value, np.nan)


def spread_sums(judged: Sequence[tuple[bool, tuple[float, ...]]], grading: Grading) -> dict[str, Any]:
    """What the spread of one problem is made of, from its solutions (right or not, and their step scores), drawn without selection.

    `right` and `wrong` (counts), `gap` (mean of the right less mean of the wrong; None where one is missing), `squares` (sum of
    squared distances from the mean of the class). Solutions whose aggregate is infinite are left out.
    """
    groups: dict[bool, list[float]] = {True: [], False: []}
    for right, scores in judged:
        try:
            value = aggregate(scores, grading.aggregate, kind=grading.kind)
        except InputError:  # certain 0 and 1 together have no sum of logits
            continue
        if math.isfinite(value):
            groups[right].append(value)
    means = {right: fmean(values) for right, values in groups.items() if values}
    return {
        "right": len(groups[True]),
        "wrong": len(groups[False]),
        "gap": means[True] - means[False] if len(means) == 2 else None,
        "squares": sum(
            math.fsum((value - mean) ** 2 for value in groups[right])
            for right, mean in sorted(means.items(), reverse=True)
        ),
    }


def spread_statistic(rows: Rows) -> Statistic:
    """How well scores separate right from wrong: `spread/…` for each of `SPREAD`, of the `spread_sums` of each problem.

    Best-of-N's solutions are drawn without selection. Within a problem, right ones score higher by a *gap* on average, and those of
    one class differ by a *noise* (standard deviation); gap / noise is the *separation*.
    """
    right, wrong, gaps, squares = (
        np.array([float(row[key] or 0.0) for row in rows]) for key in ("right", "wrong", "gap", "squares")
    )
    # The weight of a difference of two means: what its variance is divided by.
    weight = np.nan_to_num(shares(right * wrong, right + wrong))
    free = np.maximum(right - 1, 0) + np.maximum(wrong - 1, 0)

    def compute(weights: Floats) -> dict[str, Floats]:
        gap = shares(weights @ (weight * gaps), weights @ weight)
        noise = np.sqrt(shares(weights @ squares, weights @ free))
        values = (gap, noise, shares(gap, noise))
        return {f"spread/{name}": value for name, value in zip(SPREAD, values, strict=True)}

    return compute
