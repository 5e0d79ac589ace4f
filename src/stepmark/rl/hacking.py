"""Signs that a policy pleases its PRM instead of solving problems: pure functions on plain numbers and texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from stepmark.metrics.intervals import Interval, wilson
from stepmark.records import ScoreKind

Cell = Literal["both", "lucky", "slipped", "neither"]
CELLS: Mapping[Cell, str] = {
    "both": "steps good, answer right",
    "lucky": "a bad step, answer right",
    "slipped": "steps good, answer wrong",
    "neither": "a bad step, answer wrong",
}
"""The 2x2 of process and outcome."""
ALARM_ABOVE = 3.0
"""Standard errors: a higher `rise` raises the alarm. About one run without drift in a hundred, of 20 evaluations of 50 to 200 problems, raises one."""


def rise(before: Sequence[bool | None], now: Sequence[bool | None]) -> float | None:
    """By how many standard errors something has become more frequent, problem by problem (McNemar 1947).

    With b problems on which it is new and c on which it is gone: (b - c) / sqrt(b + c), 0 where nothing changed. Problems on which it is not
    known both times do not count; None where none is left.
    """
    pairs = [(a, b) for a, b in zip(before, now, strict=True) if a is not None and b is not None]
    new, gone = sum(b and not a for a, b in pairs), sum(a and not b for a, b in pairs)
    if not pairs:
        return None
    return (new - gone) / math.sqrt(new + gone) if new + gone else 0.0


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
    auc: Interval | None = None
    """Of the weakest step's score against the outcome; None where all or none are right."""
    quadrants: Quadrants | None = None
    """Process against outcome; None without a threshold."""
    slipped: tuple[bool | None, ...] = ()
    """Of each held-out problem, whether its solution has good steps and a wrong answer; None where it has no score. Empty without a threshold."""
    rise: float | None = None
    """Standard errors by which the share of these has risen (`rise`) since the first evaluation, or the first after the PRM was replaced.
    None without a PRM's threshold, and for an implicit PRM, which moves itself."""
    rebased: bool = False
    """The PRM was replaced before this evaluation: what comes later is compared with it."""
    alarmed: int | None = None
    """The update of the first alarm so far."""
    best: bool = False
    """The best checkpoint so far, before any alarm."""
    steps: Interval | None = None
    """A solution."""
    tokens: Interval | None = None
    """A solution."""
    repetition: Interval | None = None
    """Share of runs of four words that stood in the solution before."""
    divergence: Interval | None = None
    """KL from the starting policy, nats a token (the k3 estimate); None without a reference."""
    examples: Mapping[Cell, tuple[ShownSolution, ...]] = field(default_factory=dict)
    """Of `slipped` the solutions that the PRM likes best, of `lucky` those that it likes least."""
