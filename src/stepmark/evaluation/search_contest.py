"""Search methods at matched compute: every method with the same hard budgets, on problems with reference answers.

For each budget of a ladder, each method is made as large as it takes to spend it (`fitted`), and run on every problem with every seed.
Whether a method is worth its tokens is then asked three ways: its accuracy beside that of a majority vote and of
best-of-N with the same budget, and beside what those reach for as much as it has really spent (`search_figures`).

What is counted and what is not:

* A search that chooses nothing, an unfinished solution, or one that names no answer is wrong, and counted as such by name. An answer
  that the verifier reaches no verdict on is left out of the accuracy, and counted.
* Compute is `Cost.tokens` (or `Cost.flops`) of the search: the policy's and the PRM's together. What the fitting of sizes has cost is
  told beside it, and belongs to no method.
* Sizes are fitted on a few of the same problems, without looking at an answer.
* A problem that a method refuses is left out for all, and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stepmark.batching import Answerer, ReplyStore
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.search_entrants import Entrant, Fit, Shape, entrants, equipped, starting_size
from stepmark.evaluation.search_figures import position_sums
from stepmark.problems.answers import Verifier
from stepmark.records import Problem, Refusal
from stepmark.search.base import Budget, Candidate, Found, Searching, at_least
from stepmark.search.run import run

Item = dict[str, Any]
Unit = Literal["tokens", "flops"]

_ENOUGH = 0.9
"""Of a budget: a size that spends so much is large enough."""
_CUT = 0.5
"""Share of searches that the budget may cut short; a size that has more cut short is too large."""
_TRIALS: Mapping[Fit, int] = {"round": 5, "children": 5, "field": 8}
_FASTEST: Mapping[Fit, float] = {"round": 2.0, "children": 2.0, "field": 8.0}
"""How many times larger the next size may be; nobody knows where a search of the caller's own should begin, so it begins at 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """Settings of the comparison.

    Raises:
        UsageError: a setting out of its range.
    """

    budgets: tuple[float, ...]
    """What a problem may cost, in increasing order: one point of each curve."""
    unit: Unit = "tokens"
    """Of the budgets: tokens of both models, or floating-point operations of both, which needs their sizes."""
    methods: tuple[str, ...]
    """Which of the library's; `BASELINES` are always among them."""
    own: tuple[Searching, ...] = ()
    """Searches of the caller's own beside them; see `search_entrants.own_entrant`."""
    seeds: int = 1
    """How often each search is run, with other samples."""
    shape: Shape = field(default_factory=Shape)
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
    """Told what is done, a line each."""
    verdicts: dict[tuple[str | None, str], bool | None] = field(default_factory=dict)

    def search(self, problems: Sequence[Problem], search: Searching) -> list[Found | Refusal]:
        """One method on some problems."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """The size of a method at a budget, and how the pilot went with it."""

    method: str
    budget: str
    size: int
    spent: float | None
    """Mean of the pilot; None without one."""
    cut: float | None
    """Share of the pilot's searches that the budget ended."""
    tried: int
    """Sizes that were tried."""


@dataclass(frozen=True, kw_only=True)
class Contested:
    """A finished comparison."""

    items: list[Item]
    fits: tuple[Fitted, ...]
    refused: tuple[str, ...]
    """Problems that were left out, each with why."""


def contest(problems: Sequence[Problem], settings: Contest, arena: Arena) -> Contested:
    """Run every method at every budget with every seed.

    Items have `id`, `problem` (the id), `runs`: method -> budget -> a list along the seeds of {`right` (None: no verdict), `end`: "right",
    "wrong", "no verdict", "no answer", "unfinished" or "nothing", `stopped`, `spent` in the unit, `tokens`, `decoded`, `prm`, `candidates`,
    `found` (a candidate is right), `answer`}; and `spread`, see `search_figures.position_sums`.

    Raises:
        InputError: no problems, one without a reference answer or an id that stands twice.
        UsageError: a budget that cannot be kept; greedy sampling.
        BackendError: a model failed; what was done is in the store.
    """
    _check(problems, arena)
    named = entrants(settings.methods, settings.shape, settings.own)
    some = _evenly(problems, max(1, settings.pilot))
    sampled = {}
    if any(entrant.fit == "round" for entrant in named):
        best = next(entrant for entrant in named if entrant.name == "best-of-n")
        for budget in settings.budgets:
            mean = _mean_run(some, search_of(best, 1, budget, 0, settings, arena), settings, arena)
            sampled[budget] = mean.solutions
    fits = tuple(
        _fitted(entrant, budget, name, some, sampled.get(budget, 1.0), settings, arena)
        for entrant in named
        for budget, name in zip(settings.budgets, settings.names, strict=True)
    )
    items: dict[str | None, Item] = {
        problem.id: {"id": problem.id, "problem": problem.id, "runs": {}, "spread": []}
        for problem in problems
    }
    refused: dict[str | None, str] = {}
    for seed in range(settings.seeds):
        for budget, name in zip(settings.budgets, settings.names, strict=True):
            for entrant in named:
                size = next(fit.size for fit in fits if (fit.method, fit.budget) == (entrant.name, name))
                search = search_of(entrant, size, budget, seed, settings, arena)
                sized = "" if entrant.fit == "none" else f"size {size}, "
                arena.tell(
                    f"{entrant.name} at {name} {settings.unit}, {sized}seed {search.how.seed}: {len(problems)} problems"
                )
                for problem, found in zip(problems, arena.search(problems, search), strict=True):
                    if isinstance(found, Refusal):
                        refused[problem.id] = str(found.error)
                        continue
                    row = items[problem.id]
                    cells = row["runs"].setdefault(entrant.name, {}).setdefault(name, [])
                    cells.append(run_row(found, settings.unit, arena))
                    if entrant.name == "best-of-n" and budget == settings.budgets[-1]:
                        row["spread"] += _judged_scores(found, arena)
    kept = [item for id_, item in items.items() if id_ not in refused]
    if not kept:
        raise InputError("no problem could be searched: " + next(iter(refused.values())))
    for item in kept:
        item["spread"] = position_sums(item["spread"], arena.common.grading)
    return Contested(items=kept, fits=fits, refused=tuple(refused.values()))


def search_of(
    entrant: Entrant, size: int, budget: float, seed: int, settings: Contest, arena: Arena
) -> Searching:
    """A method's search at a size, with a budget, and with the samples of the seed-th run."""
    common = arena.common
    limit = Budget(tokens=int(budget)) if settings.unit == "tokens" else Budget(flops=budget)
    how = replace(common.how, seed=common.how.seed + seed)
    return equipped(entrant.sized(size), replace(common, how=how, budget=limit))


def spent(found: Found, unit: Unit) -> float:
    """What a search has cost, in the unit of the budgets."""
    value = found.cost.tokens if unit == "tokens" else found.cost.flops
    assert value is not None, "a budget that needs a count is refused where it is not told"
    return float(value)


def run_row(found: Found, unit: Unit, arena: Arena) -> dict[str, Any]:
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
        "spent": spent(found, unit),
        "tokens": found.cost.tokens,
        "decoded": found.cost.decoded,
        "prm": found.cost.prm,
        "candidates": sum(one.finished for one in found.candidates),
        "found": any(arena.right(found.problem, one) is True for one in found.candidates),
        "answer": None if chosen is None else chosen.answer,
    }


def _judged_scores(found: Found, arena: Arena) -> list[tuple[bool, tuple[float, ...]]]:
    """Of each finished candidate whether it is right, and its step scores; those without a verdict or a score are left out."""
    judged = []
    for one in found.candidates:
        right = arena.right(found.problem, one)
        scores = tuple(score for score in one.scores if score is not None)
        if right is not None and one.finished and scores and len(scores) == len(one.scores):
            judged.append((right, scores))
    return judged


def _fitted(
    entrant: Entrant,
    budget: float,
    name: str,
    some: Sequence[Problem],
    solutions: float,
    settings: Contest,
    arena: Arena,
) -> Fitted:
    """The size at which a method spends a budget.

    A size is enlarged in proportion to what it leaves unspent until the pilot spends 90 % of the budget on average. Of methods that are
    worse off when they are cut short, one that has more than half of its searches ended by the budget is too large, and so is one that
    spends no more than a smaller one: the middle between that and the largest good size is tried next, half of it where none is good yet.
    """
    if entrant.fit == "none":
        return Fitted(method=entrant.name, budget=name, size=1, spent=None, cut=None, tried=0)
    size = best = starting_size(entrant, solutions)
    measured: _Mean | None = None
    good = 0  # the largest size that is not too large; 0 as long as there is none
    too_large: int | None = None
    tried = 0
    while settings.pilot and tried < _TRIALS[entrant.fit]:
        tried += 1
        arena.tell(f"fitting {entrant.name} at {name} {settings.unit}: size {size} on {len(some)} problems")
        now = _mean_run(some, search_of(entrant, size, budget, 0, settings, arena), settings, arena)
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
            size = _larger(entrant, size, budget / max(now.spent, 1e-9))
        else:
            size = max(entrant.least, (good + too_large) // 2)
        # Of a beam, sizes between two multiples of k are one search.
        if entrant.sized(size) == entrant.sized(best):
            break
    return Fitted(
        method=entrant.name,
        budget=name,
        size=best,
        spent=None if measured is None else measured.spent,
        cut=None if measured is None else measured.cut,
        tried=tried,
    )


def _larger(entrant: Entrant, size: int, unspent: float) -> int:
    """The next size, in proportion to what is unspent; the next one that makes another search."""
    least = max(size + 1, round(size * min(_FASTEST[entrant.fit], unspent)))
    here = entrant.sized(size)
    return next((larger for larger in range(least, 2 * least) if entrant.sized(larger) != here), least)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mean:
    spent: float
    cut: float
    solutions: float


def _mean_run(problems: Sequence[Problem], search: Searching, settings: Contest, arena: Arena) -> _Mean:
    found = [one for one in arena.search(problems, search) if isinstance(one, Found)]
    if not found:
        return _Mean(spent=0.0, cut=0.0, solutions=1.0)
    return _Mean(
        spent=math.fsum(spent(one, settings.unit) for one in found) / len(found),
        cut=sum(one.stopped == "budget" for one in found) / len(found),
        solutions=max(1.0, sum(len(one.candidates) for one in found) / len(found)),
    )


def _evenly(problems: Sequence[Problem], count: int) -> list[Problem]:
    count = min(count, len(problems))
    return [problems[at * len(problems) // count] for at in range(count)]


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
