"""Choosing one of several solutions: by a search, or of texts that were written and graded elsewhere.

========  =========================================================================================================
best      the highest aggregate of the step scores
majority  the commonest answer (self-consistency: Wang et al. 2022, arXiv 2203.11171)
vote      the answer with the highest sum of aggregates (Li et al. 2023, "Making Language Models Better Reasoners with
          Step-Aware Verifier", arXiv 2206.02336)
========  =========================================================================================================

The verifier decides whether answers are equal. A solution without an answer does not vote; an answer without a verdict stands alone. Of
equals the earlier one is taken. Within the winning answer the solution with the highest aggregate is given (the first, where none has one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stepmark.backends import Verifying, all_of
from stepmark.errors import InputError, UsageError
from stepmark.registry import unknown_name
from stepmark.searches.base import Choice, SearchResult
from stepmark.searches.tree import Node, Tree, value_of
from stepmark.verifiers.base import Verifier
from stepmark.verifiers.base import answer_groups as verified_groups
from stepmark.verifiers.quantities import key
from stepmark.words import amount

CHOICES: tuple[Choice, ...] = ("best", "majority", "vote")
"""The names of the choices."""
TIE = 1e-9
"""Sums closer than this, relative to the higher, tie: the order of adding must not decide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picked:
    """The candidate that was picked, and why."""

    index: int
    """Of the candidate."""
    choice: Choice
    """What decided: `best` where no candidate could vote."""
    why: str
    """In words, for people."""
    votes: tuple[float | None, ...] | None = None
    """For each candidate the sum of its answer; None where it did not vote. None without a vote."""


async def choose(tree: Tree, ends: Sequence[Node], choice: Choice) -> SearchResult:
    """The result of a search whose finished solutions end at `ends`: one of them, or, where there is none, its best unfinished one.

    Where checks refuted every finished solution, these are candidates too, and none of them is chosen: the search ended as a dead end.
    """
    candidates = [tree.candidate(node) for node in ends]
    if not candidates:
        node = tree.unfinished()
        fallback = [] if node is None else [tree.candidate(node)]
        refuted = tree.refuted
        if refuted:
            why = next(step.why for step in refuted[0].path if step.refuted)
            tree.stop("dead end", f"every solution has a refuted step; of the first one: {why}")
        return tree.found([*fallback, *map(tree.candidate, refuted)], 0 if fallback else None)
    aggregates = [candidate.aggregate for candidate in candidates]
    if choice == "best":
        return tree.found(candidates, _highest(aggregates, range(len(candidates))))
    groups = await answer_groups([candidate.answer for candidate in candidates], tree.verifier)
    totals = _totals(groups, [1.0 if choice == "majority" else item for item in aggregates], empty=0.0)
    candidates = [
        replace(candidate, votes=None if group is None else totals[group])
        for candidate, group in zip(candidates, groups, strict=True)
    ]
    if not totals:
        tree.stop("dead end", "no solution names an answer, so that none could vote")
        return tree.found(candidates, None)
    return tree.found(candidates, _winner(groups, totals, aggregates))


async def answer_groups(answers: Sequence[str | None], verifier: Verifying) -> list[int | None]:
    """Sort answers into groups of equal ones by asking a verifier: for each the number of its group, from 0 by first appearance; None for None.

    An answer joins the first group whose first member it matches. `verifiers.base.answer_groups`, awaited.
    """
    groups: list[int | None] = []
    first: dict[str, int] = {}
    heads: list[str] = []
    for answer in answers:
        if answer is None or not answer.strip():
            groups.append(None)
            continue
        canonical = key(answer)
        if canonical not in first:
            verdicts = await all_of(verifier.verify(answer, head) for head in heads)
            joined = next((n for n, verdict in enumerate(verdicts) if verdict.outcome == "match"), None)
            if joined is None:
                joined = len(heads)
                heads.append(answer)
            first[canonical] = joined
        groups.append(first[canonical])
    return groups


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
    refuted: Sequence[bool] | None = None,
) -> Picked:
    """Pick one of some candidates that no search wrote: the repeats of a harness, the completions of a server.

    Args:
        aggregates: of the step scores of each candidate; None for one that could not be graded.
        answers: the final answer that each names; None for one that names none, which does not vote.
        choice: as in the module. Where no candidate can vote, the choice is `best`, and the result says so.
        verifier: says which answers are equal; needed unless the choice is `best`.
        finished: of each candidate whether its writer ended it. One that was cut off is passed over, as a search does: a text that stops
            early has the fewer steps to be wrong in. Where none is both finished and graded, all are looked at.
        refuted: of each candidate whether an exact check proves a step of it wrong. One that is refuted is never picked before one that
            is not, whatever their scores, and does not vote; where every graded one is refuted, all are looked at.

    Raises:
        InputError: there are no candidates; or no candidate has an aggregate and none can vote.
        UsageError: a vote without a verifier, or one with weights below 0.
    """
    if not aggregates:
        raise InputError("expected at least one candidate, found none")
    for what, values in (
        ("an answer or None", answers),
        ("whether it is finished,", finished),
        ("whether it is refuted,", refuted),
    ):
        if values is not None and len(values) != len(aggregates):
            raise UsageError(f"expected {what} a candidate ({len(aggregates)}), found {len(values)}")
    for eligible in (None if refuted is None else [not flag for flag in refuted], finished):
        if eligible is not None and any(
            allowed and value is not None for allowed, value in zip(eligible, aggregates, strict=True)
        ):
            aggregates = [
                value if allowed else None for allowed, value in zip(eligible, aggregates, strict=True)
            ]
            answers = [answer if allowed else None for allowed, answer in zip(eligible, answers, strict=True)]
    if choice == "best":
        return _best(aggregates, "")
    if verifier is None:
        raise UsageError(f"a choice by {choice} needs a verifier, which says what answers are equal")
    weights = [1.0 if choice == "majority" else aggregate for aggregate in aggregates]
    if any(weight is not None and weight < 0 for weight in weights):
        raise UsageError(
            "a vote is weighed by numbers of 0 and more, and an aggregate is below 0; choose the best, or by majority"
        )
    groups = verified_groups(answers, verifier)
    totals = _totals(groups, weights, empty=None)
    if not totals:
        return _best(aggregates, "no candidate could vote: none names an answer and has a score; so ")
    index = _winner(groups, totals, aggregates)
    group = groups[index]
    assert group is not None
    result = (
        f"{totals[group]:.0f} of {sum(totals.values()):.0f} votes"
        if choice == "majority"
        else f"the highest sum of scores, {totals[group]:.4g}"
    )
    return Picked(
        index=index,
        choice=choice,
        why=f"its answer has {result}; of the candidates with it this one has the highest score",
        votes=tuple(None if group is None else totals.get(group) for group in groups),
    )


def _best(aggregates: Sequence[float | None], before: str) -> Picked:
    index = _highest(aggregates, range(len(aggregates)))
    if aggregates[index] is None:
        raise InputError(f"none of the {amount(len(aggregates), 'candidate')} could be graded")
    return Picked(index=index, choice="best", why=f"{before}it has the highest score")


def _totals(
    groups: Sequence[int | None], weights: Sequence[float | None], *, empty: float | None
) -> dict[int, float]:
    """The weights of each group together; `empty` for a group without any, which None leaves out."""
    totals: dict[int, float] = {}
    for group in dict.fromkeys(group for group in groups if group is not None):
        own = [
            weight for weight, of in zip(weights, groups, strict=True) if of == group and weight is not None
        ]
        if own or empty is not None:
            totals[group] = math.fsum(own) if own else 0.0
    return totals


def _winner(
    groups: Sequence[int | None], totals: Mapping[int, float], aggregates: Sequence[float | None]
) -> int:
    """The candidate with the highest aggregate within the group with the highest total."""
    highest = max(totals.values())
    winner = next(group for group, total in totals.items() if total >= highest - TIE * abs(highest))
    return _highest(aggregates, [place for place, group in enumerate(groups) if group == winner])


def _highest(aggregates: Sequence[float | None], among: Sequence[int]) -> int:
    return max(among, key=lambda place: (value_of(aggregates[place]), -place))
