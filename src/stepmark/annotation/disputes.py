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

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from stepmark.annotation.items import Item
from stepmark.annotation.marks import (
    NO_ERROR,
    Answer,
    Decision,
    Gap,
    Marks,
    Rating,
    differing,
    gap,
    item_first,
)
from stepmark.errors import InputError


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
    """0-based steps that two answers rate differently."""
    why: tuple[str, ...]
    """One sentence for each pair that disagrees, worst first."""
    decision: Decision | None
    version: str
    """Changes when an answer does. A decision that was made on another version is to be refused (409): the letters may have moved."""


_DECISION = "the decision"


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
    by_item = _submitted(answers)
    newest = _newest(decisions)
    found: list[tuple[tuple[float, ...], Dispute]] = []
    for position, item in enumerate(items):
        given = by_item.get(item.id, [])
        decision = newest.get(item.id)
        changed = _changed(given, decision)
        if len(given) < 2 and not changed:
            continue
        names = _names(item.id, given, blind)
        voices = [(names[answer.account], answer.marks) for answer in given]
        if decision is not None and changed:
            # The answers may all agree by now, against the decision.
            voices.append((_DECISION, decision.marks))
        gaps = _gaps(_distinct(voices))
        if not gaps:
            continue
        left, right, worst = gaps[0]
        settled = decision is not None and not changed
        if settled and not decided:
            continue
        dispute = Dispute(
            item=item.id,
            severity=worst.severity,
            kind=worst.kind,
            why=_words(left, right, worst, dict(voices)),
            annotators=tuple(sorted(names[answer.account] for answer in given)),
            state="decided" if settled else "open" if decision is None else "reopened",
            decision=decision,
        )
        found.append(((settled, -worst.severity, -len(given), position), dispute))
    return [dispute for _, dispute in sorted(found, key=lambda pair: pair[0])]


def side_by_side(
    item: Item, answers: Iterable[Answer], decisions: Iterable[Decision] = (), *, blind: bool = False
) -> SideBySide:
    """All that the page needs to decide on one item.

    Raises:
        InputError: no submitted answer to this item.
    """
    given = _submitted(answers).get(item.id, [])
    if not given:
        raise InputError(
            "expected submitted answers to compare, found none", where=f"item {item.id!r}", field="item"
        )
    names = _names(item.id, given, blind)
    given.sort(key=lambda answer: names[answer.account])
    voices = [(names[answer.account], answer.marks) for answer in given]
    pairs = list(combinations([answer.marks for answer in given], 2))
    return SideBySide(
        item=item.id,
        labels=tuple(name for name, _ in voices),
        answers=tuple(given),
        first_errors=tuple(answer.marks.first_wrong for answer in given),
        differing=tuple(sorted({step for left, right in pairs for step in differing(left, right)})),
        why=tuple(_words(left, right, one, dict(voices)) for left, right, one in _gaps(voices)),
        decision=_newest(decisions).get(item.id),
        version=_version(given),
    )


def aliases(item: str, accounts: Iterable[str]) -> dict[str, str]:
    """Annotators' letters on one item: equal accounts get equal letters, and on other items other ones, so that nobody is known by a letter."""

    def mixed(account: str) -> bytes:
        return hashlib.sha256(json.dumps([item, account]).encode()).digest()

    return {account: _letters(number) for number, account in enumerate(sorted(set(accounts), key=mixed))}


def _letters(number: int) -> str:
    """Letters of a number from 0: A … Z, AA, AB and so on."""
    text = ""
    number += 1
    while number:
        number, last = divmod(number - 1, 26)
        text = chr(ord("A") + last) + text
    return text


def _names(item: str, given: Sequence[Answer], blind: bool) -> dict[str, str]:
    accounts = [answer.account for answer in given]
    return aliases(item, accounts) if blind else {account: account for account in accounts}


def _submitted(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.marks.submitted:
            found.setdefault(answer.item, []).append(answer)
    return found


def _newest(decisions: Iterable[Decision]) -> dict[str, Decision]:
    """The newest decision on each item; of those without a time, or of one time, the last."""
    found: dict[str, Decision] = {}
    for decision in decisions:
        before = found.get(decision.item)
        if before is None or before.at is None or decision.at is None or decision.at >= before.at:
            found[decision.item] = decision
    return found


def _changed(given: Sequence[Answer], decision: Decision | None) -> bool:
    """Whether an answer that disagrees with the decision came or was changed after it."""
    if decision is None:
        return False
    for answer in given:
        came = bool(decision.over) and answer.account not in decision.over
        later = answer.at is not None and decision.at is not None and answer.at > decision.at
        if (came or later) and gap(answer.marks, decision.marks):
            return True
    return False


def _distinct(voices: Sequence[tuple[str, Marks]]) -> list[tuple[str, Marks]]:
    """The first by name of all that say the same: the worst pair is among them, and there are few however many annotators there are."""
    found: dict[tuple[Rating | None, ...], tuple[str, Marks]] = {}
    for voice in sorted(voices, key=lambda voice: voice[0]):
        found.setdefault(voice[1].ratings, voice)
    return list(found.values())


def _gaps(voices: Sequence[tuple[str, Marks]]) -> list[tuple[str, str, Gap]]:
    """Every two that disagree, worst first; in alphabetical order of names among equals."""
    found = [
        (left, right, one)
        for (left, a), (right, b) in combinations(sorted(voices, key=lambda voice: voice[0]), 2)
        if (one := gap(a, b)) is not None
    ]
    return sorted(found, key=lambda entry: -entry[2].severity)


def _words(left: str, right: str, worst: Gap, said: Mapping[str, Marks]) -> str:
    steps = said[left].steps
    if worst.apart:
        first, second = worst.first_errors
        if second == NO_ERROR:
            return f"{left} finds the first error at step {_place(first)} of {steps}, {right} finds none"
        if first == NO_ERROR:
            return f"{right} finds the first error at step {_place(second)} of {steps}, {left} finds none"
        return f"{left} puts the first error at step {_place(first)}, {right} at step {_place(second)} of {steps}"
    step, more = worst.steps[0], len(worst.steps) - 1
    rest = "" if more == 0 else "; 1 more step differs" if more == 1 else f"; {more} more steps differ"
    return (
        f"{left} rates step {step + 1} of {steps} {_rating(said[left].ratings[step])}, "
        f"{right} {_rating(said[right].ratings[step])}{rest}"
    )


def _place(first: int | None) -> int:
    assert first is not None
    return first + 1


def _rating(rating: Rating | None) -> str:
    return {1: "right", 0: "neutral", -1: "wrong", None: "not"}[rating]


def _version(given: Sequence[Answer]) -> str:
    shown: list[object] = [
        [
            answer.account,
            answer.marks.ratings,
            sorted(map(item_first, answer.marks.unsure)),
            answer.marks.notes,
            answer.marks.error_types,
        ]
        for answer in sorted(given, key=lambda answer: answer.account)
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]
