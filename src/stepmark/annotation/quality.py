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
from typing import Literal

import numpy as np

from stepmark.annotation.items import Item
from stepmark.annotation.marks import NO_ERROR, Answer, Marks, agrees
from stepmark.metrics.agreement import Alpha, krippendorff_alpha
from stepmark.metrics.intervals import Floats, Interval, bootstrap, shares, wilson

DAY = 86400.0
"""Seconds of the stretch of time whose rate gives the time left."""


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


def annotator_progress(
    account: str, items: Sequence[Item], answers: Iterable[Answer], *, overlap: int = 1
) -> Progress:
    """Of one annotator. Gold items count like the others: a count that left them out would tell which they are.

    Args:
        account: whose.
        items: all of the project.
        answers: of all annotators.
        overlap: the project's: an item that this many others have submitted comes to nobody else.
    """
    open_to = {item.id: item.role for item in items if item.role != "screening"}
    mine, others = [], Counter[str]()
    for answer in answers:
        if answer.marks.submitted and answer.item in open_to:
            if answer.account == account:
                mine.append(answer)
            else:
                others[answer.item] += 1
    done = {answer.item for answer in mine}
    coming = sum(
        key not in done and (role == "gold" or others[key] < overlap) for key, role in open_to.items()
    )
    each = _mean_seconds(mine)
    return Progress(
        submitted=len(mine),
        of=len(mine) + coming,
        seconds_each=each,
        work_left=None if each is None else each * coming,
        eta=None,
    )


def project_progress(
    items: Sequence[Item], answers: Iterable[Answer], *, overlap: int = 1, now: float
) -> Progress:
    """Of the whole project: work items only.

    Args:
        items: all of the project.
        answers: of all annotators.
        overlap: the project's; a further answer to an item that has this many counts for nothing.
        now: Unix time.
    """
    work = {item.id for item in items if item.role == "work"}
    given = [answer for answer in answers if answer.marks.submitted and answer.item in work]
    counted = sum(min(overlap, count) for count in Counter(answer.item for answer in given).values())
    left = len(work) * overlap - counted
    each = _mean_seconds(given)
    rate = _rate([answer.at for answer in given if answer.at is not None], now)
    return Progress(
        submitted=counted,
        of=len(work) * overlap,
        seconds_each=each,
        work_left=None if each is None else each * left,
        eta=None if rate is None else left / rate,
    )


def _rate(times: Sequence[float], now: float) -> float | None:
    """Answers a second in the last day, pauses and all; None where no two answers, or no time, make a rate."""
    since = now - DAY
    recent = [at for at in times if since < at <= now]
    if len(recent) == len(times):
        # The whole history: it begins with the first answer, which ends no stretch of time.
        since, count = min(recent, default=now), len(recent) - 1
    else:
        count = len(recent)
    return count / (now - since) if count > 0 and now > since else None


def _mean_seconds(given: Sequence[Answer]) -> float | None:
    timed = [answer.seconds for answer in given if answer.seconds > 0]
    return mean(timed) if timed else None


Pass = Literal["first", "final"]
"""`first`: the marks at the first `submit`; `final`: as they stand now."""


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
    """Pairs of answers to one item that both say where the first error is, or that there is none."""
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
    steps: Share
    """Of the steps rated on both sides, those rated equally."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Seconds with the page in view, medians over submitted items; None of nothing."""

    item: float | None
    step: float | None
    """Of each item's seconds over its steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """What became of suggestions in submitted items."""

    overridden: Share
    """Of the steps with a suggested rating that the annotator rated, those rated otherwise in the end."""
    adopted: Share
    """Of the steps whose first rating, before suggestions were shown, was not the suggested one, those that were changed to it."""


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


def step_agreement(
    items: Sequence[Item],
    answers: Iterable[Answer],
    *,
    passing: Pass = "first",
    resamples: int = 1000,
    seed: int = 0,
) -> StepAgreement:
    """Agreement of all annotators. Screening items are left aside: passing them is what made the annotators alike there.

    Args:
        items: of the project; answers to others are left aside.
        answers: of all annotators.
        passing: which marks of an answer count.
        resamples: of the intervals; at least 100.
        seed: of their draws.

    Raises:
        UsageError: settings that make no interval.
    """
    known = {item.id for item in items if item.role != "screening"}
    by_item: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.marks.submitted and answer.item in known:
            by_item.setdefault(answer.item, []).append(answer)
    # In the order of the items: equal inputs give equal draws, in whatever order the answers come.
    shared = {item.id: by_item[item.id] for item in items if len(by_item.get(item.id, ())) > 1}
    table, members = [], []
    by_pair: dict[tuple[str, str], list[int]] = {}
    counts: list[tuple[int, int, int]] = []
    for name, given in shared.items():
        given.sort(key=lambda answer: answer.account)
        marks = [_marks(answer, passing) for answer in given]
        for ratings in zip(*(one.ratings for one in marks), strict=True):
            table.append(ratings)
            members.append(name)
        said = [
            (answer.account, first)
            for answer, one in zip(given, marks, strict=True)
            if (first := one.first_wrong) is not None
        ]
        pairs = exact = within = 0
        for (left, one), (right, other) in combinations(said, 2):
            same = one == other
            near = same or (NO_ERROR not in (one, other) and abs(one - other) == 1)
            pairs, exact, within = pairs + 1, exact + same, within + near
            both = by_pair.setdefault((left, right), [0, 0, 0])
            both[0] += 1
            both[1] += same
            both[2] += near
        counts.append((pairs, exact, within))
    of_pairs = sum(count[0] for count in counts)
    found = [
        # One pair an item: independent, so that Wilson's interval holds.
        PairAgreement(annotators=who, items=of, exact=wilson(same, of), within_one=wilson(near, of))
        for who, (of, same, near) in sorted(by_pair.items())
    ]
    exact_share, within_share = _hits([count for count in counts if count[0]], resamples, seed)
    return StepAgreement(
        items=len(shared),
        annotators=len({answer.account for given in shared.values() for answer in given}),
        nominal=krippendorff_alpha(table, "nominal", clusters=members, resamples=resamples, seed=seed),
        ordinal=krippendorff_alpha(table, "ordinal", clusters=members, resamples=resamples, seed=seed),
        answer_pairs=of_pairs,
        exact=exact_share,
        within_one=within_share,
        pairs=tuple(found),
    )


def screening_state(
    account: str, items: Sequence[Item], answers: Iterable[Answer], pass_mark: float
) -> ScreeningState | None:
    """Where an annotator stands in the screening set; None where the project has none.

    Args:
        account: whose.
        items: all of the project; those of the role `screening` have gold marks.
        answers: of this annotator, or of all.
        pass_mark: share of items to be right, in [0, 1].
    """
    known = {item.id: item for item in items if item.role == "screening"}
    if not known:
        return None
    mine = [a for a in answers if a.account == account and a.marks.submitted and a.item in known]
    right = sum(_right(answer, known[answer.item]) for answer in mine)
    done = len(mine) == len(known)
    return ScreeningState(
        done=len(mine), of=len(known), right=right, passed=right / len(known) >= pass_mark if done else None
    )


def annotator_quality(
    account: str,
    items: Sequence[Item],
    answers: Iterable[Answer],
    *,
    overlap: int = 1,
    pass_mark: float = 0.75,
    shown: bool = True,
) -> AnnotatorQuality:
    """All figures of one annotator.

    Args:
        account: whose.
        items: all of the project.
        answers: of all annotators (the others' say which items are taken).
        overlap: the project's.
        pass_mark: of the screening.
        shown: whether suggestions are shown at all (`help.show` is not "never"); if not, nothing was overridden.
    """
    everything = list(answers)
    by_id = {item.id: item for item in items}
    mine = [a for a in everything if a.account == account and a.marks.submitted and a.item in by_id]
    state = screening_state(account, items, mine, pass_mark)
    return AnnotatorQuality(
        account=account,
        gold=_accuracy(mine, {key: item for key, item in by_id.items() if item.role == "gold"}),
        screening=_accuracy(mine, {key: item for key, item in by_id.items() if item.role == "screening"}),
        passed=None if state is None else state.passed,
        speed=_speed(mine),
        overrides=_overrides(mine if shown else [], by_id),
        unsure=wilson(sum(bool(answer.marks.unsure) for answer in mine), len(mine)),
        progress=annotator_progress(account, items, everything, overlap=overlap),
    )


def _marks(answer: Answer, passing: Pass) -> Marks:
    return answer.marks if passing == "final" or answer.first_pass is None else answer.first_pass


def _right(answer: Answer, item: Item) -> bool:
    return item.gold is not None and agrees(_marks(answer, "first"), item.gold)


def _accuracy(mine: Sequence[Answer], known: Mapping[str, Item]) -> Accuracy:
    answered = [(a, known[a.item]) for a in mine if a.item in known and known[a.item].gold is not None]
    steps: list[bool] = []
    for answer, item in answered:
        assert item.gold is not None
        both = zip(_marks(answer, "first").ratings, item.gold.ratings, strict=True)
        steps += [said == right for said, right in both if said is not None and right is not None]
    return Accuracy(
        items=len(answered),
        exact=wilson(sum(_right(answer, item) for answer, item in answered), len(answered)),
        steps=_share(steps),
    )


def _share(hits: Sequence[bool]) -> Share:
    return Share(count=sum(hits), of=len(hits), value=sum(hits) / len(hits) if hits else None)


def _speed(mine: Sequence[Answer]) -> Speed:
    timed = [answer for answer in mine if answer.seconds > 0]
    return Speed(
        item=median(answer.seconds for answer in timed) if timed else None,
        step=median(answer.seconds / answer.marks.steps for answer in timed) if timed else None,
    )


def _overrides(mine: Sequence[Answer], by_id: Mapping[str, Item]) -> Overrides:
    overridden: list[bool] = []
    adopted: list[bool] = []
    for answer in mine:
        for step, suggestion in enumerate(by_id[answer.item].suggestions):
            if suggestion is None or suggestion.rating is None:
                continue
            final = answer.marks.ratings[step]
            if final is not None:
                overridden.append(final != suggestion.rating)
            if answer.first_pass is not None:
                first = answer.first_pass.ratings[step]
                if first is not None and first != suggestion.rating:
                    adopted.append(final == suggestion.rating)
    return Overrides(overridden=_share(overridden), adopted=_share(adopted))


def _hits(counts: Sequence[tuple[int, int, int]], resamples: int, seed: int) -> tuple[Interval, Interval]:
    """The shares of pairs that are exact, and within one; from (pairs, exact, within one) of each item."""
    if not counts:
        return wilson(0, 0), wilson(0, 0)
    table = np.array(counts, dtype=np.float64)

    def statistic(weights: Floats) -> dict[str, Floats]:
        of, exact, within = (weights @ table).T
        return {"exact": shares(exact, of), "within": shares(within, of)}

    drawn = bootstrap(statistic, range(len(counts)), resamples=resamples, seed=seed)
    found = []
    for interval in (drawn["exact"], drawn["within"]):
        if interval.value in (0.0, 1.0):
            # All items alike: resamples differ in nothing, and would call three items certain.
            found.append(wilson(len(counts) if interval.value else 0, len(counts)))
        elif len(counts) == 1:
            found.append(replace(interval, low=None, high=None))
        else:
            found.append(interval)
    return found[0], found[1]
