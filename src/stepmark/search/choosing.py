"""Choosing one of the solutions that a search has finished.

========  =========================================================================================================
best      the highest aggregate of the step scores
majority  the commonest answer (self-consistency: Wang et al. 2022, arXiv 2203.11171)
vote      the answer with the highest sum of aggregates (Li et al. 2023, "Making Language Models Better Reasoners with
          Step-Aware Verifier", arXiv 2206.02336)
========  =========================================================================================================

Answers are equal where the verifier says so, not where their texts are; a solution without an answer does not vote, and an answer that
no verdict is reached on stands alone. Of equals the earlier one is taken, here and everywhere. Within the winning answer the solution
with the highest aggregate is given (the first, where none has one).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from stepmark.batching import Request, Verify
from stepmark.problems.quantities import key
from stepmark.records import Verdict
from stepmark.search.growing import Tree
from stepmark.search.nodes import Node, value_of
from stepmark.search.searching import Candidate, Choice, Found

TIE = 1e-9
"""Sums closer than this, relative to the higher, tie: the order of adding must not decide."""


def choose(tree: Tree, ends: Sequence[Node], choice: Choice) -> Generator[Any, Any, Found]:
    """The result of a search: one of its finished solutions, or, where there is none, its best unfinished one.

    Args:
        tree: of the search.
        ends: the last nodes of the finished solutions.
        choice: how.
    """
    candidates = [tree.candidate(node) for node in ends]
    if not candidates:
        node = tree.unfinished()
        some = [] if node is None else [tree.candidate(node)]
        return (yield from tree.found(some, 0 if some else None))
    if choice == "best":
        chosen = _highest(candidates, range(len(candidates)))
        return (yield from tree.found(candidates, chosen))
    groups = yield from answer_groups([candidate.answer for candidate in candidates])
    weights = [1.0 if choice == "majority" else candidate.aggregate for candidate in candidates]
    totals: dict[int, float] = {}
    for group in dict.fromkeys(group for group in groups if group is not None):
        totals[group] = math.fsum(
            weight for weight, of in zip(weights, groups, strict=True) if of == group and weight is not None
        )
    voted = [
        replace(candidate, votes=None if group is None else totals[group])
        for candidate, group in zip(candidates, groups, strict=True)
    ]
    if not totals:
        tree.stop("dead end", "no solution names an answer, so that none could vote")
        return (yield from tree.found(voted, None))
    highest = max(totals.values())
    winner = next(group for group, total in totals.items() if total >= highest - TIE * abs(highest))
    return (
        yield from tree.found(
            voted, _highest(voted, [i for i, group in enumerate(groups) if group == winner])
        )
    )


def answer_groups(answers: Sequence[str | None]) -> Generator[Any, Any, list[int | None]]:
    """Sort answers into groups of equal ones by asking a verifier; as `problems.answers.answer_groups`, but as a method.

    An answer joins the first group whose first member it matches.

    Returns:
        For each answer the number of its group, from 0 by first appearance; None for None.
    """
    groups: list[int | None] = []
    known: dict[str, int] = {}
    heads: list[str] = []
    for answer in answers:
        if answer is None or not answer.strip():
            groups.append(None)
            continue
        canonical = key(answer)
        if canonical not in known:
            asks: tuple[Request, ...] = tuple(Verify(answer=answer, gold=head) for head in heads)
            verdicts: Sequence[Verdict] = (yield asks) if asks else ()
            joined = next((n for n, verdict in enumerate(verdicts) if verdict.outcome == "match"), None)
            if joined is None:
                joined = len(heads)
                heads.append(answer)
            known[canonical] = joined
        groups.append(known[canonical])
    return groups


def _highest(candidates: Sequence[Candidate], among: Sequence[int]) -> int:
    return max(among, key=lambda index: (value_of(candidates[index].aggregate), -index))
