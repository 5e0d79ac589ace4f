"""How far the work is, and how long it still takes, from what was measured so far. Only submitted answers count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from stepmark.annotation.answers import Answer
from stepmark.annotation.items import Item

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
