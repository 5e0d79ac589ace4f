"""What the report page is drawn from: plain strings and numbers, already decided on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StepView:
    """One step of a card."""

    text: str
    score: float | None
    """None: not read."""
    language: str | None = None
    """The whole step is code of this language ("" for not known); None when it is not code."""
    observation: str = ""
    """What the world answered after it; shown, not rated."""
    speaker: str | None = None
    classes: tuple[tuple[str, float], ...] = ()
    """Class names and their probabilities."""
    critiques: tuple[str, ...] = ()
    """What a generative PRM wrote of it."""
    findings: tuple[str, ...] = ()
    """What exact checks prove of it: "60 * 2.5 = 120: it is 150"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardView:
    """One graded solution."""

    number: int
    """Its place in the report, from 1: its name in links."""
    title: str
    note: str
    """Who wrote it, who graded it; "" for nothing to say."""
    kind: str
    """The kind of its step scores (`stepmark.show.colour.KINDS`)."""
    threshold: float | None
    score: float | None
    aggregate: str
    place: float | None
    """Where `score` stands from 0 (bad) to 1 (good); None for no such scale."""
    aggregates: tuple[tuple[str, float | None], ...]
    """Each aggregate's name and value; None where it has no meaning for these scores."""
    first_error: int | None
    """0-based; -1 for none; None for not known."""
    steps: tuple[StepView, ...]
    best: bool = False
    outcome: float | None = None
    outcome_model: str | None = None
    outcome_place: float | None = None
    """As `place`, for the outcome."""
    disagreement: str | None = None
    """The sentence that says how outcome and steps disagree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemView:
    """One problem and its solutions side by side."""

    number: int
    text: str
    note: str
    """Its id and where it comes from; "" for nothing to say."""
    cards: tuple[CardView, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What the top of the page says of all solutions, those not shown included."""

    title: str
    facts: tuple[str, ...]
    """Sentences under the title: by what it was graded, what the numbers are, what is left out."""
    settings: Mapping[str, str]
    solutions: int
    problems: int
    with_error: int
    without_error: int
    unknown: int
    """Solutions of which it is not known whether a step is an error."""
    disagreements: int | None
    """None when no outcome was given, or none that can be called good or bad."""
    positions: Mapping[int, int]
    """How many solutions have their first error at this 0-based step."""
    kinds: tuple[str, ...]
    """The kinds of their step scores, each once."""
