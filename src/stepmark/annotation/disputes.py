"""What several answers to the same items say together: disagreements, and agreement beyond chance.

Pure functions over `AnnotatorMarks` and `Item`s; only submitted answers count. Agreement is of an annotator's own first pass, where a project shows
suggestions only after it: what is changed afterwards agrees with the machine, not with a colleague.

Two answers to one item disagree when they put the first error elsewhere or rate a step differently; a step that one of them left unjudged is no
disagreement by itself.

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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from stepmark.annotation.items import Item
from stepmark.annotation.marks import NO_ERROR, AnnotatorMarks, Decision, Marks, item_first
from stepmark.errors import InputError
from stepmark.metrics.agreement import Alpha, krippendorff_alpha
from stepmark.metrics.intervals import Floats, Interval, bootstrap, shares, wilson


def differing(left: Marks, right: Marks) -> list[int]:
    """0-based steps that both rate, differently."""
    pairs = enumerate(zip(left.ratings, right.ratings, strict=True))
    return [step for step, (a, b) in pairs if a is not None and b is not None and a != b]


def severity(left: Marks, right: Marks) -> float | None:
    """How far two answers differ, in (0, 1] (see the module); None when they do not."""
    steps, differ = left.steps, differing(left, right)
    opposite = sum(left.ratings[step] == -(right.ratings[step] or 0) for step in differ)
    firsts = (left.first_wrong, right.first_wrong)
    # "No error" is the place after the last step.
    places = [steps if first == NO_ERROR else first for first in firsts if first is not None]
    distance = abs(places[0] - places[1]) if len(places) == 2 else 0
    if opposite or distance:
        return 0.5 + 0.5 * max(distance, opposite) / steps
    return 0.5 * len(differ) / steps if differ else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispute:
    """An item on which annotators disagree."""

    item: str
    severity: float
    """In (0, 1]: see the module."""
    annotators: tuple[str, ...]
    """Who answered, by name."""
    state: Literal["open", "reopened", "decided"]
    """`reopened`: it was decided, and an answer has changed since."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """The answers to one item, for the page that decides."""

    answers: tuple[AnnotatorMarks, ...]
    """By name."""
    differing: tuple[int, ...]
    """0-based steps that two answers rate differently."""
    decision: Decision | None
    version: str
    """Changes when an answer does. A decision that was made on another version is refused (409)."""


def disputes(
    items: Sequence[Item], answers: Iterable[AnnotatorMarks], decisions: Iterable[Decision] = ()
) -> list[Dispute]:
    """The queue, worst first, decided items after the open ones.

    Answers that are not submitted or to other items are ignored; of several decisions on one item the last counts.
    """
    by_item, newest = _submitted(answers), {decision.item: decision for decision in decisions}
    queue: list[tuple[tuple[float, ...], Dispute]] = []
    for position, item in enumerate(items):
        given, decision = by_item.get(item.id, []), newest.get(item.id)
        changed = decision is not None and any(_is_after(answer, decision) for answer in given)
        settled = decision is not None and not changed
        marks = [answer.marks for answer in given]
        if decision is not None and changed:
            # The answers may all agree by now, against the decision.
            marks.append(decision.marks)
        # Of those with equal ratings one: there are few different ones.
        pairs = combinations({each.ratings: each for each in marks}.values(), 2)
        worst = max((far for pair in pairs if (far := severity(*pair)) is not None), default=None)
        if worst is not None:
            dispute = Dispute(
                item=item.id,
                severity=worst,
                annotators=tuple(sorted(answer.account for answer in given)),
                state="decided" if settled else "open" if decision is None else "reopened",
            )
            queue.append(((settled, -worst, -len(given), position), dispute))
    return [dispute for _, dispute in sorted(queue, key=lambda pair: pair[0])]


def side_by_side(
    item: Item, answers: Iterable[AnnotatorMarks], decisions: Iterable[Decision] = ()
) -> SideBySide:
    """All that the page needs to decide on one item.

    Raises:
        InputError: no submitted answer to this item.
    """
    given = sorted(_submitted(answers).get(item.id, []), key=lambda answer: answer.account)
    if not given:
        raise InputError(
            "expected submitted answers to compare, found none", where=f"item {item.id!r}", field="item"
        )
    pairs = combinations((answer.marks for answer in given), 2)
    return SideBySide(
        answers=tuple(given),
        differing=tuple(sorted({step for left, right in pairs for step in differing(left, right)})),
        decision={decision.item: decision for decision in decisions}.get(item.id),
        version=_version(given),
    )


def _submitted(answers: Iterable[AnnotatorMarks]) -> dict[str, list[AnnotatorMarks]]:
    by_item: dict[str, list[AnnotatorMarks]] = {}
    for answer in answers:
        if answer.marks.submitted:
            by_item.setdefault(answer.item, []).append(answer)
    return by_item


def _is_after(answer: AnnotatorMarks, decision: Decision) -> bool:
    """Whether an answer that disagrees with the decision came or was changed after it."""
    came = bool(decision.over) and answer.account not in decision.over
    later = answer.at is not None and decision.at is not None and answer.at > decision.at
    return (came or later) and severity(answer.marks, decision.marks) is not None


def _version(given: Sequence[AnnotatorMarks]) -> str:
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


def project_progress(
    items: Sequence[Item], answers: Iterable[AnnotatorMarks], *, overlap: int = 1
) -> dict[str, int]:
    """How many answers are submitted, and how many there are to be: items times overlap. A further answer to an item that has `overlap` is not
    counted."""
    known = {item.id for item in items}
    given = Counter(answer.item for answer in answers if answer.marks.submitted and answer.item in known)
    return {"submitted": sum(min(overlap, count) for count in given.values()), "of": len(known) * overlap}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAgreement:
    """How far annotators agree on steps. All intervals are bootstraps over items."""

    items: int
    """Items with two submitted answers or more."""
    annotators: int
    nominal: Alpha
    """Units are steps; ratings are +1, 0, -1."""
    ordinal: Alpha
    answer_pairs: int
    """Pairs of answers to one item whose first errors are both known (or known to be none)."""
    exact: Interval
    """Share of them with the same first error."""
    within_one: Interval
    """Share with first errors at most one step apart; an error against none is never within one."""


def step_agreement(
    items: Sequence[Item], answers: Iterable[AnnotatorMarks], *, resamples: int = 1000, seed: int = 0
) -> StepAgreement:
    """Agreement of all annotators.

    `resamples` (at least 100) and `seed` are of the intervals' draws.
    """
    by_item: dict[str, list[AnnotatorMarks]] = {item.id: [] for item in items}
    for answer in answers:
        if answer.marks.submitted and answer.item in by_item:
            by_item[answer.item].append(answer)
    # In the order of the items: equal inputs give equal draws, in whatever order the answers come.
    shared = {id: sorted(given, key=lambda a: a.account) for id, given in by_item.items() if len(given) > 1}
    table, members = [], []
    counts: list[list[int]] = []
    for id, given in shared.items():
        for ratings in zip(*(answer.first_marks.ratings for answer in given), strict=True):
            table.append(ratings)
            members.append(id)
        firsts = [answer.first_marks.first_wrong for answer in given]
        known = [(a, b) for a, b in combinations(firsts, 2) if a is not None and b is not None]
        same = sum(a == b for a, b in known)
        near = sum(abs(a - b) == 1 and NO_ERROR not in (a, b) for a, b in known)
        counts.append([len(known), same, same + near])
    exact, within_one = _pair_shares([count for count in counts if count[0]], resamples, seed)
    return StepAgreement(
        items=len(shared),
        annotators=len({answer.account for given in shared.values() for answer in given}),
        nominal=krippendorff_alpha(table, "nominal", clusters=members, resamples=resamples, seed=seed),
        ordinal=krippendorff_alpha(table, "ordinal", clusters=members, resamples=resamples, seed=seed),
        answer_pairs=sum(count[0] for count in counts),
        exact=exact,
        within_one=within_one,
    )


def _pair_shares(counts: Sequence[Sequence[int]], resamples: int, seed: int) -> tuple[Interval, Interval]:
    """The shares of pairs that are exact, and within one; from (pairs, exact, within one) of each item."""
    if not counts:
        return wilson(0, 0), wilson(0, 0)
    table = np.array(counts, dtype=np.float64)

    def statistic(weights: Floats) -> dict[str, Floats]:
        of, exact, within = (weights @ table).T
        return {"exact": shares(exact, of), "within": shares(within, of)}

    def checked(interval: Interval) -> Interval:
        if interval.value in (0.0, 1.0):
            # All items alike: resamples differ in nothing, and would make three items look certain.
            return wilson(len(counts) if interval.value else 0, len(counts))
        return replace(interval, low=None, high=None) if len(counts) == 1 else interval

    drawn = bootstrap(statistic, range(len(counts)), resamples=resamples, seed=seed)
    return checked(drawn["exact"]), checked(drawn["within"])
