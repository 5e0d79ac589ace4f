"""Signs that a policy pleases its PRM instead of solving problems: pure functions on plain numbers and texts."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Floats, Interval, wilson
from stepmark.metrics.scaling import logit, sigmoid
from stepmark.records import ScoreKind, Solution, Step
from stepmark.settings import settings
from stepmark.show.text import amount

Probe = Literal["empty", "irrelevant", "repeated", "shuffled"]
PROBES: Mapping[Probe, str] = {
    "empty": "a step that says nothing",
    "irrelevant": "another problem's steps",
    "repeated": "the first step six times",
    "shuffled": "the steps in another order",
}
"""Null probes: solutions that deserve a low score, made of real ones."""
Cell = Literal["both", "lucky", "slipped", "neither"]
CELLS: Mapping[Cell, str] = {
    "both": "steps good, answer right",
    "lucky": "a bad step, answer right",
    "slipped": "steps good, answer wrong",
    "neither": "a bad step, answer wrong",
}
"""The 2x2 of process and outcome."""


@settings
class Cusum:
    """A one-sided cumulative sum of how much less the verifier finds than the PRM's scores promise (Page 1954).

    `S_t = max(0, S_{t-1} + gap_t - slack)`, an alarm once `S_t > alarm_above`; `gap_t` is `Baseline.gap`. An accuracy that rises as the
    scores promise leaves it at 0; a return that climbs alone, or while the accuracy falls, adds up.
    """

    slack: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.5
    """Gaps under this are taken for noise, in standard errors."""
    alarm_above: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """The sum over which the alarm is raised, in standard errors. A run of 20 evaluations without drift then raises one in about one case
    of twenty, one of 100 evaluations in about one of ten."""

    def path(self, gaps: Sequence[float | None]) -> list[float | None]:
        """S at each evaluation, 0 at the first; None at one without a gap, over which S stays as it was."""
        sums: list[float | None] = []
        total: float | None = None
        for gap in gaps:
            if gap is not None:
                total = 0.0 if total is None else max(0.0, total + gap - self.slack)
            sums.append(None if gap is None else total)
        return sums


@dataclass(frozen=True, kw_only=True, slots=True)
class Quadrants:
    """Process and outcome of solutions, crossed."""

    both: int
    """No step under the PRM's threshold, answer right."""
    lucky: int
    """A bad step, answer right."""
    slipped: int
    """No bad step, answer wrong: the PRM was fooled, or the solution was cut short. Its growth is the sign of hacking."""
    neither: int

    def share(self, *cells: Cell) -> Interval:
        """The share of these cells together, with its Wilson interval; of `both` and `neither` it is PURE's `match`."""
        counts = asdict(self)
        return wilson(sum(counts[cell] for cell in cells), sum(counts.values()))


def repetition(text: str, *, words: int = 4) -> float:
    """Share of the runs of `words` words that stood in the text before, in [0, 1]; 0 for a text without such a run."""
    pieces = text.split()
    runs = [tuple(pieces[at : at + words]) for at in range(len(pieces) - words + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def probe(solution: Solution, other: Solution, kind: Probe, *, seed: int = 0) -> Solution | None:
    """A solution that deserves a low score, made of a real one (`PROBES`); None where that one is too short."""
    texts = solution.texts
    if kind == "empty":
        made: Sequence[str] = (".",)
    elif kind == "irrelevant":
        made = other.texts
    elif kind == "repeated":
        if len(texts) < 2:
            return None
        made = (texts[0],) * 6 + (texts[-1],)
    else:
        if len(set(texts)) < 2:
            return None
        dice, made = random.Random(seed), list(texts)
        while tuple(made) == texts:
            dice.shuffle(made)
    return Solution(problem=solution.problem, steps=tuple(Step(text=text) for text in made))


EDGE = 1e-3
"""A probability is taken for at least this far from 0 and 1: a product of many steps would else outweigh all others."""
FARTHEST = 7.0
"""Spreads from the centre that a score that is no probability counts for at most (as far as `EDGE` is from an even chance)."""
SHIFT, SCALE = 5.0, 0.5
"""Standard deviations of the priors of the shift, around 0, and of the scale, around 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The evaluation that later ones are compared with.

    The promise of a solution's score is `sigmoid(scale * x + shift)`, where `x` is the logit of a probability, and of another score its
    distance from `centre` over `spread`, `FARTHEST` at most. Both are fitted to this evaluation's outcomes (Platt 1999) with normal priors:
    the PRM's own word for probabilities, which decides where all are right or all wrong. A PRM whose scores go down where answers are right
    promises the same for every score (`scale` 0).
    """

    shift: float
    scale: float
    """At least 0."""
    centre: float | None = None
    """Of the scores; None for probabilities."""
    spread: float | None = None
    residuals: tuple[float | None, ...]
    """Of each held-out problem's solution: what its score promises less 1 for a right answer; None where it has no score."""

    @classmethod
    def of(cls, scores: Sequence[float | None], right: Sequence[bool], *, kind: ScoreKind) -> Baseline | None:
        """Fit the promise to an evaluation, with a score (None: it has none) and an outcome of each solution. None with fewer than two scores."""
        if len(scores) != len(right):
            raise UsageError(f"expected an outcome for each score, found {len(right)} and {len(scores)}")
        pairs = [(score, float(ok)) for score, ok in zip(scores, right, strict=True) if score is not None]
        known, labels = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        if not np.isfinite(known).all():
            raise UsageError("expected finite scores, found one that is not")
        if len(known) < 2:
            return None
        centre = spread = None
        if kind != "probability":
            centre, spread = float(known.mean()), float(known.std())
            # The mean of equal numbers is not always that number.
            if spread <= 1e-12 * float(np.abs(known).max()):
                spread = 1.0
        shift, scale = _fit(_read(known, centre, spread), labels)
        bare = cls(shift=shift, scale=scale, centre=centre, spread=spread, residuals=())
        return replace(bare, residuals=bare.residuals_of(scores, right))

    def promises(self, scores: Sequence[float | None]) -> list[float | None]:
        """The accuracies that scores promise, each in [0, 1]; None for None."""
        known = np.array([0.0 if score is None else score for score in scores])
        result = sigmoid(self.scale * _read(known, self.centre, self.spread) + self.shift)
        return [None if score is None else float(value) for score, value in zip(scores, result, strict=True)]

    def residuals_of(self, scores: Sequence[float | None], right: Sequence[bool]) -> tuple[float | None, ...]:
        """Promise less outcome, a solution."""
        return tuple(
            None if promise is None else promise - ok
            for promise, ok in zip(self.promises(scores), right, strict=True)
        )

    def gap(self, scores: Sequence[float | None], right: Sequence[bool]) -> float | None:
        """By how many standard errors residuals have risen since this evaluation, problem by problem; None with fewer than two scored both times.

        Differences that are all alike have no error of their own: half a solution in all of them is taken instead.
        """
        if len(scores) != len(self.residuals):
            raise UsageError(
                f"expected the {amount(len(self.residuals), 'held-out problem')} of the first evaluation, found {len(scores):,}"
            )
        pairs = zip(self.residuals_of(scores, right), self.residuals, strict=True)
        risen = np.array([now - then for now, then in pairs if now is not None and then is not None])
        if len(risen) < 2:
            return None
        error = max(float(risen.std(ddof=1)) / math.sqrt(len(risen)), 0.5 / len(risen))
        return float(risen.mean()) / error


def _read(scores: Floats, centre: float | None, spread: float | None) -> Floats:
    if centre is None or spread is None:
        return logit(np.clip(scores, EDGE, 1 - EDGE).tolist())
    return np.clip((scores - centre) / spread, -FARTHEST, FARTHEST)


def _fit(x: Floats, right: Floats) -> tuple[float, float]:
    """Shift and scale: the likeliest after the data, the scale at least 0. Newton's method with step halving; the loss is strictly convex."""
    columns = np.stack([np.ones_like(x), x], axis=1)
    mean, precision = np.array([0.0, 1.0]), np.array([SHIFT, SCALE]) ** -2

    def fitted(free: int) -> Floats:
        rows, start, pull = columns[:, :free], mean[:free], precision[:free]

        def loss(weights: Floats) -> float:
            logits = rows @ weights
            return float((np.logaddexp(0, logits) - right * logits).sum() + pull @ (weights - start) ** 2 / 2)

        weights = start.copy()
        for _ in range(100):
            p = sigmoid(rows @ weights)
            gradient = rows.T @ (p - right) + pull * (weights - start)
            curvature = rows.T @ (rows * (p * (1 - p))[:, None]) + np.diag(pull)
            direction, step = np.linalg.solve(curvature, gradient), 1.0
            while step > 1e-6 and loss(weights - step * direction) > loss(weights):
                step /= 2
            if step <= 1e-6 or float(np.abs(step * direction).max()) < 1e-12:
                break
            weights = weights - step * direction
        return weights

    shift, scale = map(float, fitted(2))
    return (shift, scale) if scale >= 0 else (float(fitted(1)[0]), 0.0)


@settings
class Watch:
    """How a run is watched."""

    cusum: Cusum = field(default_factory=Cusum)
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """In the monitor, a step whose score is under this is an error. Default: the PRM's own."""
    aggregate: str | None = None
    """In the monitor, how step scores make a solution's return: product, min, mean, last, max or softmin. Default: the PRM's own."""
    probes: Annotated[int, Field(ge=0)] = 32
    """Solutions of each evaluation of which null probes are made; 0: no probes."""
    examples: Annotated[int, Field(ge=0)] = 3
    """Solutions shown of each cell of the 2x2, of each evaluation."""
    resamples: Annotated[int, Field(ge=100)] = 1000
    """Of the bootstrap over problems."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeScores:
    """Null probes of one kind, as the PRM scores them. They deserve a low score."""

    count: int
    """Scored; of a solution too short for a probe there is none."""
    refused: int
    """The PRM could not read them."""
    score: Interval | None
    """Mean of the solution score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSolution:
    """A solution kept as an example."""

    problem: str
    id: str | None
    reference: str | None
    """The reference answer."""
    steps: tuple[str, ...]
    scores: tuple[float, ...] | None
    right: bool
    answer: str | None
    """What the verifier read as the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """The figures of one evaluation. Intervals are of 95 %: Wilson's for shares, else a bootstrap over problems."""

    update: int
    rollouts: int
    solutions: int
    accuracy: Interval
    """Share verified right."""
    kind: ScoreKind | None = None
    """What the PRM's scores are; None without a PRM."""
    threshold: float | None = None
    step_return: Interval | None = None
    """The PRM's return: the mean of solutions' mean step scores."""
    solution_return: Interval | None = None
    """The mean of solutions' aggregated scores; of an implicit PRM, of the sums of its token rewards."""
    promised: Interval | None = None
    """The accuracy that solutions' aggregated scores promise, as at the first evaluation: the mean over scored ones. None for an implicit PRM, which moves itself."""
    baseline: Baseline | None = None
    """What later evaluations are compared with; only where that begins: at the first with two scored solutions, and the first after a replacement."""
    gap: float | None = None
    """By how many standard errors promises less outcomes have risen since the baseline; None without one."""
    rebased: bool = False
    """The PRM was replaced before this evaluation: what comes later is compared with it."""
    cusum: float | None = None
    """The sum of gaps over the slack, in standard errors; None where there is no gap."""
    alarmed: int | None = None
    """The update of the first alarm so far."""
    best: bool = False
    """The best checkpoint so far, before any alarm."""
    auc: Interval | None = None
    """Of the weakest step's score against the outcome; None where all or none are right."""
    quadrants: Quadrants | None = None
    """Process against outcome; None without a threshold."""
    probes: Mapping[Probe, ProbeScores] = field(default_factory=dict)
    steps: Interval | None = None
    """A solution."""
    tokens: Interval | None = None
    """A solution."""
    repetition: Interval | None = None
    """Share of runs of four words that stood in the solution before."""
    cut: Interval | None = None
    """Share cut off at the limit of tokens."""
    blank: Interval | None = None
    unparsed: Interval | None = None
    """Share without a verdict: no answer found."""
    unscored: Interval | None = None
    """Share that the PRM could not read."""
    divergence: Interval | None = None
    """KL from the starting policy, nats a token (the k3 estimate); None without a reference."""
    examples: Mapping[Cell, tuple[ShownSolution, ...]] = field(default_factory=dict)
