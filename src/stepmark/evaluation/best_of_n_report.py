"""Best-of-N from graded cases to a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stepmark.evaluation.candidates import Candidate, CandidateSet
from stepmark.evaluation.scores import CaseScores, Sheet


def answer_groups(answers: Sequence[str | None], same: Callable[[str, str], bool]) -> tuple[int | None, ...]:
    """Numbers for equal answers: each joins the first group whose first answer it equals.

    Args:
        answers: the candidates' answers to one problem; None for no answer, which has no group.
        same: whether two answers are equal; asked once a pair of different texts.
    """
    firsts: list[str] = []
    group_of: dict[str, int] = {}
    for answer in answers:
        if answer is None or answer in group_of:
            continue
        found = next((at for at, first in enumerate(firsts) if same(first, answer)), len(firsts))
        if found == len(firsts):
            firsts.append(answer)
        group_of[answer] = found
    return tuple(None if answer is None else group_of[answer] for answer in answers)


def candidate_sets(
    sheet: Sheet, same: Callable[[str, str], bool], *, outcomes: Mapping[str, float] | None = None
) -> list[CandidateSet]:
    """The graded cases of a sheet, one set a problem, in the order of their first case.

    A solution that the PRM refused has no score and cost no PRM tokens. The problem's tokens are charged once for all
    its candidates, as the engine computes a shared prefix once.

    Args:
        sheet: cases with their step scores.
        same: whether two answers are equal.
        outcomes: scores of an outcome reward model by case id.
    """
    problems: dict[str, list[CaseScores]] = {}
    for row in sheet.rows:
        problems.setdefault(row.case.problem, []).append(row)
    sets = []
    for id_, rows in problems.items():
        groups = answer_groups([row.case.answer for row in rows], same)
        sets.append(
            CandidateSet(
                id=id_,
                candidates=tuple(
                    _candidate(row, group, outcomes) for row, group in zip(rows, groups, strict=True)
                ),
                prm_once=max((row.steps.problem_tokens or 0 for row in rows if row.steps), default=0),
            )
        )
    return sets


def _candidate(row: CaseScores, group: int | None, outcomes: Mapping[str, float] | None) -> Candidate:
    read = row.steps.solution_tokens if row.steps is not None else (0 if row.refused is not None else None)
    return Candidate(
        correct=row.case.outcome,
        answer=group,
        steps=row.steps,
        outcome=None if outcomes is None else outcomes.get(row.case.id),
        tokens=row.case.tokens,
        prm_tokens=read,
        characters=sum(len(step.raw) for step in row.case.solution.steps),
        policy=row.case.policy,
        greedy=row.case.greedy,
    )
