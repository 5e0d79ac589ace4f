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
from stepmark.annotation.marks import NO_ERROR, Answer, Decision, Marks, Rating, item_first
from stepmark.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """How two answers to one item differ."""

    kind: Literal["opposite", "neutral"]
    severity: float
    """In (0, 1]: see the module."""
    steps: tuple[int, ...]
    """0-based steps rated oppositely; where there is none, those that only one of the two rates neutral."""
    first_errors: tuple[int | None, int | None]
    """As `Marks.first_wrong` gives them."""


def differing(left: Marks, right: Marks) -> list[int]:
    """0-based steps that both rate, differently."""
    pairs = enumerate(zip(left.ratings, right.ratings, strict=True))
    return [step for step, (a, b) in pairs if a is not None and b is not None and a != b]


def gap(left: Marks, right: Marks) -> Gap | None:
    """How two answers differ; None when they do not."""
    steps, differ = left.steps, differing(left, right)
    opposite = [step for step in differ if left.ratings[step] == -(right.ratings[step] or 0)]
    firsts = (left.first_wrong, right.first_wrong)
    # "No error" is the place after the last step.
    places = [steps if first == NO_ERROR else first for first in firsts if first is not None]
    distance = abs(places[0] - places[1]) if len(places) == 2 else 0
    if opposite or distance:
        severity = 0.5 + 0.5 * max(distance, len(opposite)) / steps
        return Gap(kind="opposite", severity=severity, steps=tuple(opposite), first_errors=firsts)
    if differ:
        severity = 0.5 * len(differ) / steps
        return Gap(kind="neutral", severity=severity, steps=tuple(differ), first_errors=firsts)
    return None


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
    """Who answered, by name (or letter, where asked to be blind), in that order."""
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
    """0-based, -1 for none, None where an answer leaves it open."""
    differing: tuple[int, ...]
    """0-based steps that two answers rate differently."""
    why: tuple[str, ...]
    """One sentence for each pair that disagrees, worst first."""
    decision: Decision | None
    version: str
    """Changes when an answer does. A decision that was made on another version is refused (409): the letters may have moved."""


def disputes(
    items: Sequence[Item],
    answers: Iterable[Answer],
    decisions: Iterable[Decision] = (),
    *,
    blind: bool = False,
    decided: bool = False,
) -> list[Dispute]:
    """The queue, worst first. Answers that are not submitted or to other items are ignored; of several decisions on one item the newest counts.

    `blind`: annotators are called by letter. `decided`: decided items are listed too, after the open ones.
    """
    by_item, newest = _submitted(answers), _newest(decisions)
    queue: list[tuple[tuple[float, ...], Dispute]] = []
    for position, item in enumerate(items):
        given, decision = by_item.get(item.id, []), newest.get(item.id)
        changed = decision is not None and any(_is_after(answer, decision) for answer in given)
        settled = decision is not None and not changed
        if settled and not decided:
            continue
        names = _names(item.id, given, blind)
        marks = {names[answer.account]: answer.marks for answer in given}
        if decision is not None and changed:
            # The answers may all agree by now, against the decision.
            marks["the decision"] = decision.marks
        # Of those with equal ratings the first by name: the worst pair is among them, and there are few of them.
        distinct = {marks[name].ratings: name for name in sorted(marks, reverse=True)}
        gaps = _gaps({name: marks[name] for name in distinct.values()})
        if not gaps:
            continue
        left, right, worst = gaps[0]
        dispute = Dispute(
            item=item.id,
            severity=worst.severity,
            kind=worst.kind,
            why=_words(left, right, worst, marks),
            annotators=tuple(sorted(names.values())),
            state="decided" if settled else "open" if decision is None else "reopened",
            decision=decision,
        )
        queue.append(((settled, -worst.severity, -len(given), position), dispute))
    return [dispute for _, dispute in sorted(queue, key=lambda pair: pair[0])]


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
    marks = {names[answer.account]: answer.marks for answer in given}
    pairs = combinations(marks.values(), 2)
    return SideBySide(
        item=item.id,
        labels=tuple(marks),
        answers=tuple(given),
        first_errors=tuple(answer.marks.first_wrong for answer in given),
        differing=tuple(sorted({step for left, right in pairs for step in differing(left, right)})),
        why=tuple(_words(left, right, worst, marks) for left, right, worst in _gaps(marks)),
        decision=_newest(decisions).get(item.id),
        version=_version(given),
    )


def aliases(item: str, accounts: Iterable[str]) -> dict[str, str]:
    """Annotators' letters on one item; on other items they have other ones, so that nobody is known by a letter."""

    def mixed(account: str) -> bytes:
        return hashlib.sha256(json.dumps([item, account]).encode()).digest()

    return {account: _letters(number) for number, account in enumerate(sorted(set(accounts), key=mixed))}


def _letters(number: int) -> str:
    """Letters of a number from 0: A … Z, AA, AB and so on."""
    rest, last = divmod(number, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("A") + last)


def _names(item: str, given: Sequence[Answer], blind: bool) -> dict[str, str]:
    accounts = [answer.account for answer in given]
    return aliases(item, accounts) if blind else {account: account for account in accounts}


def _submitted(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    by_item: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.marks.submitted:
            by_item.setdefault(answer.item, []).append(answer)
    return by_item


def _newest(decisions: Iterable[Decision]) -> dict[str, Decision]:
    """The newest decision on each item; of those without a time, or of one time, the last."""
    newest: dict[str, Decision] = {}
    for decision in decisions:
        before = newest.get(decision.item)
        if before is None or before.at is None or decision.at is None or decision.at >= before.at:
            newest[decision.item] = decision
    return newest


def _is_after(answer: Answer, decision: Decision) -> bool:
    """Whether an answer that disagrees with the decision came or was changed after it."""
    came = bool(decision.over) and answer.account not in decision.over
    later = answer.at is not None and decision.at is not None and answer.at > decision.at
    return (came or later) and gap(answer.marks, decision.marks) is not None


def _gaps(marks: Mapping[str, Marks]) -> list[tuple[str, str, Gap]]:
    """Every two that disagree, worst first; in alphabetical order of names among equals."""
    gaps = [
        (left, right, difference)
        for left, right in combinations(sorted(marks), 2)
        if (difference := gap(marks[left], marks[right])) is not None
    ]
    return sorted(gaps, key=lambda entry: -entry[2].severity)


def _words(left: str, right: str, worst: Gap, marks: Mapping[str, Marks]) -> str:
    steps = marks[left].steps
    first, second = worst.first_errors
    if first is not None and second is not None and first != second:
        if second == NO_ERROR:
            return f"{left} finds the first error at step {first + 1} of {steps}, {right} finds none"
        if first == NO_ERROR:
            return f"{right} finds the first error at step {second + 1} of {steps}, {left} finds none"
        return f"{left} puts the first error at step {first + 1}, {right} at step {second + 1} of {steps}"
    step, more = worst.steps[0], len(worst.steps) - 1
    rest = "" if more == 0 else "; 1 more step differs" if more == 1 else f"; {more} more steps differ"
    ratings = [_RATINGS[marks[name].ratings[step]] for name in (left, right)]
    return f"{left} rates step {step + 1} of {steps} {ratings[0]}, {right} {ratings[1]}{rest}"


_RATINGS: Mapping[Rating | None, str] = {1: "right", 0: "neutral", -1: "wrong", None: "not"}


def _version(given: Sequence[Answer]) -> str:
    shown = [
        [
            a.account,
            a.marks.ratings,
            sorted(map(item_first, a.marks.unsure)),
            a.marks.notes,
            a.marks.error_types,
        ]
        for a in sorted(given, key=lambda answer: answer.account)
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]
