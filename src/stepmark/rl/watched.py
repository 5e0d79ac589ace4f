"""How a run is watched, and the record of one evaluation: plain data, as `monitor.jsonl` holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from stepmark.metrics.intervals import Interval
from stepmark.records import ScoreKind
from stepmark.rl.hacking import Cusum, Probe, Quadrants
from stepmark.rl.promise import Baseline
from stepmark.settings import settings

Cell = Literal["both", "lucky", "slipped", "neither"]
CELLS: tuple[Cell, ...] = ("both", "lucky", "slipped", "neither")
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Of the quantiles of wrong answers' scores."""


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
    bins: Annotated[int, Field(ge=1)] = 10
    """Of the calibration error."""
    resamples: Annotated[int, Field(ge=100)] = 1000
    """Of the bootstrap over problems."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """Null probes of one kind, as the PRM scores them. They deserve a low score."""

    count: int
    """Scored; of a solution too short for a probe there is none."""
    refused: int
    """The PRM could not read them."""
    score: Interval | None
    """Mean of the solution score."""
    passed: Interval | None
    """Share without a step under the threshold; None where there is no threshold."""
    above: Interval | None
    """Share that scores above the solution that it was made of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
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
    brier: Interval | None = None
    """Of the same; None for scores that are no probabilities."""
    ece: Interval | None = None
    """Expected calibration error of the same."""
    wrong: int = 0
    """Scored solutions with a wrong answer."""
    wrong_quantiles: tuple[float, ...] | None = None
    """Of their weakest steps' scores, at `LEVELS`."""
    wrong_median: Interval | None = None
    quadrants: Quadrants | None = None
    """Process against outcome; None without a threshold."""
    probes: Mapping[Probe, Probed] = field(default_factory=dict)
    steps: Interval | None = None
    """A solution."""
    tokens: Interval | None = None
    """A solution."""
    tokens_a_step: Interval | None = None
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
    examples: Mapping[Cell, tuple[Kept, ...]] = field(default_factory=dict)
