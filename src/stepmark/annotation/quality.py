"""How good and how fast: agreement, accuracy on known items, speed, use of suggestions.

Pure functions over `Answer`s and `Item`s. Only submitted answers count. Agreement and accuracy are of an annotator's own first pass, where a
project shows suggestions only after it: what is changed afterwards agrees with the machine, not with a colleague.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import mean, median

import numpy as np

from stepmark.annotation.items import Item
from stepmark.annotation.marks import NO_ERROR, Answer, agrees
from stepmark.metrics.agreement import Alpha, krippendorff_alpha
from stepmark.metrics.intervals import Floats, Interval, bootstrap, shares, wilson

DAY = 86400.0
"""Seconds of the stretch of time whose rate gives the time left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How much of a project is done, and how much time the rest takes."""

    submitted: int
    of: int
    """In all: work items times overlap."""
    seconds_each: float | None
    """Mean seconds with the page in view of a submitted item; None before the first."""
    work_left: float | None
    """Seconds of work left at that pace, for one person; None until there is a pace."""
    eta: float | None
    """Seconds by the clock until done, at the rate of the last day; None until two answers give a rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A count over a count. No interval is given with it: steps of one solution are not independent of each other."""

    count: int
    of: int
    value: float | None
    """None of nothing."""


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
    answer_pairs: int
    """Pairs of answers to one item whose first errors are both known (or known to be none)."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatorQuality:
    """How well and how quickly one annotator works."""

    account: str
    gold: Accuracy
    screening: Accuracy
    passed: bool | None
    """The screening; None: not done, or there is none."""
    seconds_a_step: float | None
    """With the page in view: the median over submitted items of an item's seconds over its steps; None of nothing."""
    overridden: Share
    """Of the steps with a suggested rating that the annotator rated, those rated otherwise in the end."""
    adopted: Share
    """Of the steps whose first rating, before suggestions were shown, was not the suggested one, those that were changed to it."""
    unsure: Interval
    """Share of submitted items with an unsure flag; Wilson's interval."""


def project_progress(
    items: Sequence[Item], answers: Iterable[Answer], *, overlap: int = 1, now: float
) -> Progress:
    """Progress of the whole project at Unix time `now`: work items only; a further answer to an item that has `overlap` is not counted."""
    work = {item.id for item in items if item.role == "work"}
    given = [answer for answer in answers if answer.marks.submitted and answer.item in work]
    submitted = sum(min(overlap, count) for count in Counter(answer.item for answer in given).values())
    left = len(work) * overlap - submitted
    timed = [answer.seconds for answer in given if answer.seconds > 0]
    each = mean(timed) if timed else None
    rate = _rate([answer.at for answer in given if answer.at is not None], now)
    return Progress(
        submitted=submitted,
        of=submitted + left,
        seconds_each=each,
        work_left=None if each is None else each * left,
        eta=None if rate is None else left / rate,
    )


def _rate(times: Sequence[float], now: float) -> float | None:
    """Answers a second in the last day, pauses and all; None where no two answers, or no time, make a rate."""
    since = now - DAY
    recent = [at for at in times if since < at <= now]
    count = len(recent)
    if count == len(times):
        # The whole history: it begins with the first answer, which ends no stretch of time.
        since, count = min(recent, default=now), count - 1
    return count / (now - since) if count > 0 and now > since else None


def step_agreement(
    items: Sequence[Item], answers: Iterable[Answer], *, resamples: int = 1000, seed: int = 0
) -> StepAgreement:
    """Agreement of all annotators. Screening items are left aside: passing them is what made the annotators alike there.

    `resamples` (at least 100) and `seed` are of the intervals' draws.

    Raises:
        UsageError: settings that make no interval.
    """
    by_item: dict[str, list[Answer]] = {item.id: [] for item in items if item.role != "screening"}
    for answer in answers:
        if answer.marks.submitted and answer.item in by_item:
            by_item[answer.item].append(answer)
    # In the order of the items: equal inputs give equal draws, in whatever order the answers come.
    shared = {id: sorted(given, key=lambda a: a.account) for id, given in by_item.items() if len(given) > 1}
    table, members = [], []
    by_pair: dict[tuple[str, str], list[int]] = {}
    counts: list[list[int]] = []
    for id, given in shared.items():
        for ratings in zip(*(answer.first_marks.ratings for answer in given), strict=True):
            table.append(ratings)
            members.append(id)
        firsts = {answer.account: answer.first_marks.first_wrong for answer in given}
        of_item = [0, 0, 0]
        for (left, one), (right, other) in combinations(firsts.items(), 2):
            if one is None or other is None:
                continue
            same = one == other
            near = same or (NO_ERROR not in (one, other) and abs(one - other) == 1)
            for count in (of_item, by_pair.setdefault((left, right), [0, 0, 0])):
                count[0] += 1
                count[1] += same
                count[2] += near
        counts.append(of_item)
    exact, within_one = _pair_shares([count for count in counts if count[0]], resamples, seed)
    return StepAgreement(
        items=len(shared),
        annotators=len({answer.account for given in shared.values() for answer in given}),
        nominal=krippendorff_alpha(table, "nominal", clusters=members, resamples=resamples, seed=seed),
        ordinal=krippendorff_alpha(table, "ordinal", clusters=members, resamples=resamples, seed=seed),
        answer_pairs=sum(count[0] for count in counts),
        exact=exact,
        within_one=within_one,
        pairs=tuple(
            # One pair an item: independent, so that Wilson's interval holds.
            PairAgreement(annotators=pair, items=of, exact=wilson(same, of), within_one=wilson(near, of))
            for pair, (of, same, near) in sorted(by_pair.items())
        ),
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


def annotator_quality(
    account: str,
    items: Sequence[Item],
    answers: Iterable[Answer],
    *,
    pass_mark: float = 0.75,
    shown: bool = True,
) -> AnnotatorQuality:
    """Accuracy, speed and use of suggestions of one annotator.

    `pass_mark` is of the screening: the share of items to be right, in [0, 1]. `shown`: suggestions are shown at all (`help.show` is not
    "never"); if not, nothing was overridden.
    """
    by_id = {item.id: item for item in items}
    mine = [a for a in answers if a.account == account and a.marks.submitted and a.item in by_id]
    screening = _accuracy(mine, by_id, "screening")
    to_screen = sum(item.role == "screening" for item in items)
    right = screening.exact.value
    timed = [answer for answer in mine if answer.seconds > 0]
    rated = [
        (first, final, suggestion.rating)
        for answer in (mine if shown else [])
        for first, final, suggestion in zip(
            answer.first_pass.ratings if answer.first_pass else [None] * answer.marks.steps,
            answer.marks.ratings,
            by_id[answer.item].suggestions or [None] * answer.marks.steps,
            strict=True,
        )
        if suggestion is not None and suggestion.rating is not None
    ]
    return AnnotatorQuality(
        account=account,
        gold=_accuracy(mine, by_id, "gold"),
        screening=screening,
        passed=None if right is None or screening.items < to_screen else right >= pass_mark,
        seconds_a_step=median(answer.seconds / answer.marks.steps for answer in timed) if timed else None,
        overridden=_share([final != suggested for _, final, suggested in rated if final is not None]),
        adopted=_share(
            [final == suggested for first, final, suggested in rated if first not in (None, suggested)]
        ),
        unsure=wilson(sum(bool(answer.marks.unsure) for answer in mine), len(mine)),
    )


def _accuracy(mine: Sequence[Answer], items: Mapping[str, Item], role: str) -> Accuracy:
    right = [
        agrees(answer.first_marks, gold)
        for answer in mine
        if items[answer.item].role == role and (gold := items[answer.item].gold) is not None
    ]
    return Accuracy(items=len(right), exact=wilson(sum(right), len(right)))


def _share(hits: Sequence[bool]) -> Share:
    return Share(count=sum(hits), of=len(hits), value=sum(hits) / len(hits) if hits else None)
