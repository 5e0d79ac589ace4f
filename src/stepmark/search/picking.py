"""Picking one of several texts that were written and graded elsewhere: the choices of `choosing`, without a tree.

For candidates that no search wrote: the repeats of a harness, the completions of a server. What `choosing` gives as "nothing could be
chosen" cannot be an answer there, so each choice says what it falls back on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepmark.catalog import unknown_name
from stepmark.errors import InputError, UsageError
from stepmark.problems.answers import Verifier, answer_groups
from stepmark.search.choosing import TIE
from stepmark.search.nodes import value_of
from stepmark.search.searching import Choice

CHOICES: tuple[Choice, ...] = ("best", "majority", "vote")
"""The names of the choices; see `search.choosing`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picked:
    """Which candidate was taken, and why."""

    index: int
    """Of the candidate."""
    choice: Choice
    """What decided: `best` where nobody could vote."""
    why: str
    """In words, for people."""
    votes: tuple[float | None, ...] | None = None
    """For each candidate what its answer got; None where it did not vote. None without a vote."""


def check_pick(choice: str) -> Choice:
    """The same name, once it is one of `CHOICES`.

    Raises:
        UnknownNameError: it is not.
    """
    for known in CHOICES:
        if choice == known:
            return known
    raise unknown_name("choice", choice, CHOICES)


def pick(
    aggregates: Sequence[float | None],
    answers: Sequence[str | None],
    choice: Choice,
    *,
    verifier: Verifier | None = None,
    finished: Sequence[bool] | None = None,
) -> Picked:
    """Pick one of some candidates. Of equals the earlier one is taken.

    Args:
        aggregates: of the step scores of each candidate; None for one that could not be graded.
        answers: the final answer that each names; None for one that names none, which does not vote.
        choice: `best`: the highest aggregate; `majority`: the commonest answer; `vote`: the answer with the highest sum of aggregates. Of
            the candidates with the winning answer the one with the highest aggregate is taken. Where no candidate can vote, the
            choice is `best`, and the result says so.
        verifier: says which answers are equal; needed unless the choice is `best`.
        finished: of each candidate whether its writer ended it. One that was cut off is passed over, as a search does: a text that stops
            early has the fewer steps to be wrong in. Where none is both finished and graded, all are looked at.

    Raises:
        InputError: there are no candidates; or no candidate has an aggregate and none can vote.
        UsageError: a vote without a verifier, or one with weights below 0.
    """
    if not aggregates:
        raise InputError("expected at least one candidate, found none")
    if len(aggregates) != len(answers):
        raise UsageError(f"expected an answer or None a candidate ({len(aggregates)}), found {len(answers)}")
    if finished is not None:
        if len(finished) != len(aggregates):
            raise UsageError(
                f"expected whether each of {len(aggregates)} candidates is finished, found {len(finished)}"
            )
        if any(ended and one is not None for ended, one in zip(finished, aggregates, strict=True)):
            aggregates = [one if ended else None for ended, one in zip(finished, aggregates, strict=True)]
            answers = [one if ended else None for ended, one in zip(finished, answers, strict=True)]
    if choice == "best":
        return _best(aggregates, "")
    if verifier is None:
        raise UsageError(f"a choice by {choice} needs a verifier, which says what answers are equal")
    groups = answer_groups(answers, verifier)
    weights = [1.0 if choice == "majority" else aggregate for aggregate in aggregates]
    if any(weight is not None and weight < 0 for weight in weights):
        raise UsageError(
            "a vote is weighed by numbers of 0 and more, and an aggregate is below 0; choose the best, or by majority"
        )
    totals: dict[int, float] = {}
    for group in dict.fromkeys(group for group in groups if group is not None):
        mine = [
            weight for weight, of in zip(weights, groups, strict=True) if of == group and weight is not None
        ]
        if mine:
            totals[group] = math.fsum(mine)
    if not totals:
        return _best(aggregates, "no candidate could vote: none names an answer and has a score; so ")
    highest = max(totals.values())
    winner = next(group for group, total in totals.items() if total >= highest - TIE * abs(highest))
    index = _highest(aggregates, [place for place, group in enumerate(groups) if group == winner])
    said = (
        f"{totals[winner]:.0f} of {sum(totals.values()):.0f} votes"
        if choice == "majority"
        else f"the highest sum of scores, {totals[winner]:.4g}"
    )
    return Picked(
        index=index,
        choice=choice,
        why=f"its answer has {said}; of the candidates with it this one has the highest score",
        votes=tuple(None if group is None else totals.get(group) for group in groups),
    )


def _best(aggregates: Sequence[float | None], before: str) -> Picked:
    index = _highest(aggregates, range(len(aggregates)))
    if aggregates[index] is None:
        raise InputError(f"none of the {len(aggregates)} candidates could be graded")
    return Picked(index=index, choice="best", why=f"{before}it has the highest score")


def _highest(aggregates: Sequence[float | None], among: Sequence[int]) -> int:
    return max(among, key=lambda index: (value_of(aggregates[index]), -index))
