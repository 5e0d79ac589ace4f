"""What a rollout tree is made of (`tree`)."""

from __future__ import annotations

from dataclasses import dataclass

from stepmark.labels.labelling import Probe
from stepmark.records import Solution, Step, Verdict


@dataclass(kw_only=True, slots=True, eq=False)
class State:
    """A prefix that was rolled out."""

    steps: tuple[Step, ...]
    found: Probe
    visits: int = 0


@dataclass(kw_only=True, slots=True, eq=False)
class Path:
    """A solution or a rollout, from the problem to its end."""

    solution: Solution
    texts: tuple[str, ...]
    """The prefix of each number of steps, from none to all."""
    own: Verdict
    """On its own answer."""
    first_error: int | None = None
    abstained: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A wrong rollout of a state, not yet searched."""

    state: State
    path: Path
    length: int
