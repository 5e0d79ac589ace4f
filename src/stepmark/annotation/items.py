"""What annotators are shown: one solution, cut into steps, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepmark.annotation.marks import Marks
from stepmark.records import Solution


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of a rendered trace (`inline_with_trace`)."""

    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    """Tool calls: (name, arguments or input as text)."""
    outputs: tuple[str, ...] = ()
    """What the tools answered."""
    step: int | None = None
    """The step that this turn is; None for a turn that nobody rates (the user's, a tool's)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """What a machine says of one step."""

    judge: str
    """Whose it is: a PRM's name, "rollout", a judge's name."""
    rating: Literal[-1, 0, 1] | None = None
    """What it amounts to; None when it says no more than a number."""
    score: float | None = None
    """In [0, 1]; None where it gives none."""
    reason: str | None = None
    """In words, where there are any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A solution to be labelled."""

    id: str
    """Unique in the project."""
    solution: Solution
    trace: tuple[Turn, ...] = ()
    """The whole trace as it is shown when the project has `inline_with_trace`; empty: the steps alone."""
    outcome: bool | None = None
    """Whether the final answer is right; None when nobody says."""
    suggestions: tuple[Suggestion | None, ...] = ()
    """One a step, or empty when there are none."""
    gold: Marks | None = None
    """What is known to be right: for the screening set and hidden gold items. Never sent to an annotator."""
    role: Literal["work", "gold", "screening"] = "work"
    order: float = 0.0
    """The higher the earlier, where the project says `order: active`; made from scores and disputes."""
    potato_index: tuple[int, ...] | None = None
    """For each step, its index in Potato's list of steps, which counts turns of users and tools too; None: the same."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What else the source row held, kept for the export."""
