"""How good and how fast: agreement, accuracy on known items, use of suggestions, progress.

Pure functions over `Answer`s and `Item`s. Only submitted answers count. Agreement and accuracy are of an annotator's own first pass, where a
project shows suggestions only after it: what is changed afterwards agrees with the machine, not with a colleague.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from stepmark.annotation.answers import Answer
from stepmark.annotation.items import Item
from stepmark.annotation.marks import Marks
from stepmark.metrics.agreement import Alpha
from stepmark.metrics.intervals import Interval

Pass = Literal["first", "final"]
"""`first`: the marks at the first `submit`; `final`: as they stand now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairAgreement:
    """Two annotators on the items that both have answered."""

    annotators: tuple[str, str]
    items: int
    exact: Interval
    """Share with the same first error (or both none)."""
    within_one: Interval
    """Share with first errors at most one step apart; an error against none is never within one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAgreement:
    """How far annotators agree on steps. All intervals are bootstraps over items."""

    items: int
    """Items with two submitted answers or more."""
    annotators: int
    nominal: Alpha
    """Units are steps; ratings are +1, 0, -1."""
    ordinal: Alpha
    first_error_pairs: int
    """Pairs of answers to one item that both say where the first error is."""
    exact: Interval
    """Share of them with the same first error."""
    within_one: Interval
    """Share with first errors at most one step apart; an error against none is never within one."""
    pairs: tuple[PairAgreement, ...]
    """Every two annotators with items in common, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """An annotator on items whose labels are known."""

    items: int
    """Answered."""
    exact: Interval
    """Share of them answered right (`agrees`); Wilson's interval."""
    steps: Interval
    """Share of the steps rated on both sides that are rated equally; bootstrap over items (Wilson's would take the steps of one item for independent)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Seconds with the page in view, medians over submitted items; None of nothing."""

    item: float | None
    step: float | None
    """Of each item's seconds over its steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """What became of suggestions in submitted items."""

    steps: int
    """Steps with a suggested rating that the annotator rated."""
    overridden: Interval
    """Share of them whose rating is another than the suggested one; bootstrap over items."""
    disagreed_first: int
    """Of items with a first pass on record: steps whose first rating was not the suggested one."""
    adopted: Interval
    """Share of those that were changed to the suggestion afterwards; bootstrap over items."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far, and how long still."""

    submitted: int
    of: int
    """In all: answers asked for (work items times overlap). Of one annotator: items answered and those that still may come."""
    seconds_each: float | None
    """Mean seconds with the page in view of a submitted item; None before the first."""
    work_left: float | None
    """Seconds of work left at that pace, for one person; None until there is a pace."""
    eta: float | None
    """Seconds by the clock until done, at the rate of the last day; None until two answers give a rate. Of one annotator: None (others share the work)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatorQuality:
    """All figures of one annotator."""

    account: str
    gold: Accuracy
    screening: Accuracy
    passed: bool | None
    """The screening; None: not done, or there is none."""
    speed: Speed
    overrides: Overrides
    unsure: Interval
    """Share of submitted items with an unsure flag; Wilson's interval."""
    progress: Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class ScreeningState:
    """Where an annotator stands in the screening set."""

    done: int
    of: int
    right: int
    passed: bool | None
    """None until every item of the set is submitted."""


def agrees(marks: Marks, gold: Marks) -> bool:
    """Whether an answer is right: the same first error where gold has one (or none); in `per_step` every rating that gold gives."""
    raise NotImplementedError


def step_agreement(
    items: Sequence[Item],
    answers: Iterable[Answer],
    *,
    passing: Pass = "first",
    resamples: int = 1000,
    seed: int = 0,
) -> StepAgreement:
    """Agreement of all annotators on all items (gold items among them, screening items not: everyone gets those, with one right answer)."""
    raise NotImplementedError


def screening_state(
    account: str, items: Sequence[Item], answers: Iterable[Answer], pass_mark: float
) -> ScreeningState | None:
    """None where the project has no screening items."""
    raise NotImplementedError


def annotator_quality(
    account: str,
    items: Sequence[Item],
    answers: Iterable[Answer],
    *,
    overlap: int = 1,
    pass_mark: float = 0.75,
    shown: bool = True,
    seed: int = 0,
) -> AnnotatorQuality:
    """All figures of one annotator.

    Args:
        account: whose.
        items: all of the project.
        answers: of all annotators (the others' say which items are taken).
        overlap: the project's.
        pass_mark: of the screening.
        shown: whether suggestions are shown at all (`help.show` is not "never"); if not, nothing was overridden.
        seed: of the intervals.
    """
    raise NotImplementedError


def annotator_progress(
    account: str, items: Sequence[Item], answers: Iterable[Answer], *, overlap: int = 1
) -> Progress:
    """Of one annotator; quick enough for every page load."""
    raise NotImplementedError


def project_progress(
    items: Sequence[Item], answers: Iterable[Answer], *, overlap: int = 1, now: float
) -> Progress:
    """Of the whole project; `now` is Unix time."""
    raise NotImplementedError
