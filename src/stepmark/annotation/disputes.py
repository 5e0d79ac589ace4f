"""Where annotators disagree: the adjudicator's queue, worst first, and what is shown side by side.

Only submitted answers count. Two answers to one item disagree when they put the first error elsewhere or rate a step differently; a step that
one of them left unjudged is no disagreement by itself.

Severity, in [0, 1], is that of the two answers that lie farthest apart:

- **opposite** (one says right where the other says wrong, or their first errors differ): 0.5 + 0.5 x, x the larger of the distance of the
  first errors over the number of steps ("no error" counts as the place after the last step) and the share of steps rated oppositely;
- **neutral** (they differ only by neutral against right or wrong): 0.5 x, x the share of steps on which they do.

So every opposite pair stands above every neutral one. Ties: more annotators first, then the project's order of items.

A decision takes an item off the queue. It comes back when an answer that disagrees with the decision was changed after it, or came later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from stepmark.annotation.answers import Answer, Decision
from stepmark.annotation.items import Item
from stepmark.annotation.marks import Marks, Rating


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispute:
    """An item on which annotators disagree."""

    item: str
    severity: float
    """In (0, 1]: see the module."""
    kind: Literal["opposite", "neutral"]
    why: str
    """In words; steps count from 1."""
    annotators: tuple[str, ...]
    """Who answered, by name (or letter, where asked to be blind), in the order of the letters."""
    state: Literal["open", "reopened", "decided"]
    """`reopened`: it was decided, and an answer has changed since."""
    decision: Decision | None = None
    """The newest one, where there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """The answers to one item, for the page that decides."""

    item: str
    labels: tuple[str, ...]
    """What each annotator is called on the page: the name, or a letter when blind."""
    answers: tuple[Answer, ...]
    """In the order of `labels`. `account` is the real name: not for a blind page."""
    first_errors: tuple[int | None, ...]
    """0-based, -1 for none, None where an answer does not say."""
    differing: tuple[int, ...]
    """0-based steps that the answers rate differently."""
    why: tuple[str, ...]
    """One sentence for each pair that disagrees, worst first."""
    decision: Decision | None
    version: str
    """Changes when an answer does. A decision that was made on another version is to be refused (409): the letters may have moved."""


def first_error_of(marks: Marks) -> int | None:
    """0-based first step rated -1; -1 when every step is rated and none so; None when a step before any error is unjudged."""
    raise NotImplementedError


def opposed(left: Marks, right: Marks) -> float:
    """How far two answers lie apart, in [0, 1]: see the module; 0 when they do not disagree."""
    raise NotImplementedError


def disputes(
    items: Sequence[Item],
    answers: Iterable[Answer],
    decisions: Iterable[Decision] = (),
    *,
    blind: bool = False,
    decided: bool = False,
) -> list[Dispute]:
    """The queue, worst first.

    Args:
        items: in the project's order; answers to others are left aside.
        answers: of all annotators; those not submitted are left aside.
        decisions: all of them; of several on one item the newest counts.
        blind: annotators are called by letter.
        decided: decided items are listed too, after the open ones.
    """
    raise NotImplementedError


def side_by_side(
    item: Item, answers: Iterable[Answer], decisions: Iterable[Decision] = (), *, blind: bool = False
) -> SideBySide:
    """All that the page needs to decide on one item.

    Raises:
        InputError: no submitted answer to this item.
    """
    raise NotImplementedError


def aliases(item: str, accounts: Iterable[str]) -> dict[str, str]:
    """Annotators' letters on one item: the same accounts give the same letters, and on other items other ones, so that nobody is known by his letter."""
    raise NotImplementedError


def settled(
    items: Sequence[Item], answers: Iterable[Answer], decisions: Iterable[Decision] = ()
) -> dict[str, Marks]:
    """What an item comes to, for those where that is known: the newest decision that still stands, else the marks on which all annotators agree."""
    raise NotImplementedError


def _differ(left: tuple[Rating | None, ...], right: tuple[Rating | None, ...]) -> list[int]:
    return [
        step for step, (a, b) in enumerate(zip(left, right, strict=True)) if None not in (a, b) and a != b
    ]
