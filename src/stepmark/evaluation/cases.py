"""What an evaluation measures against: solutions whose truth is known, each with where it was read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from stepmark.errors import InputError
from stepmark.labels.labelling import judged_until
from stepmark.records import Judgement, LabelledSolution, Solution


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A solution, what is known of its steps and of its end, and where it stands."""

    id: str
    """Unique in its data; scores are joined by it."""
    labelled: LabelledSolution
    """The solution and its judgements, possibly none."""
    where: str
    """Its file and line, as FILE:LINE."""
    group: str = ""
    """The part of the data that it belongs to: a subset, a class of errors."""
    outcome: bool | None = None
    """Whether the final answer is right; None when that is not known."""
    policy: str | None = None
    """Who wrote the solution."""
    answer: str | None = None
    """The solution's final answer, where the data gives it."""
    tokens: int | None = None
    """Tokens that the policy wrote, where the data gives them."""
    greedy: bool = False
    """Written without sampling."""
    unchecked: bool = False
    """Its row does not say whether the answer is right: `outcome` is None because nothing has compared it yet."""

    @property
    def solution(self) -> Solution:
        """The solution alone."""
        return self.labelled.solution

    @property
    def problem(self) -> str:
        """What solutions of one problem have in common: its id, else its text."""
        problem = self.solution.problem
        return problem.text if problem.id is None else problem.id


Neutral = Literal["positive", "negative"]


def step_labels(labelled: LabelledSolution, neutral: Neutral = "positive") -> tuple[float | None, ...]:
    """One label a step in [0, 1], from its judgements: 1 right, 0 wrong, None not judged.

    Ratings go before rollouts, whose label is the share that succeeded; counts go before bare shares. Several ratings
    of a step, and several bare shares, give their mean.
    """
    return tuple(_label(judgements, neutral) for judgements in labelled.judgements)


def _label(judgements: Sequence[Judgement], neutral: Neutral) -> float | None:
    ratings = [j.rating for j in judgements if j.rating is not None]
    if ratings:
        right = {1: 1.0, 0: 1.0 if neutral == "positive" else 0.0, -1: 0.0}
        return sum(right[rating] for rating in ratings) / len(ratings)
    trials = sum(j.trials or 0 for j in judgements)
    if trials:
        return sum(j.successes or 0 for j in judgements) / trials
    shares = [j.share for j in judgements if j.share is not None]
    return sum(shares) / len(shares) if shares else None


def first_error(labelled: LabelledSolution, neutral: Neutral = "positive") -> int | None:
    """The 0-based first wrong step by the judgements; -1 when all are right; None when that is not known.

    A step is wrong when its label is under 0.5; from rollouts, when none of them succeeded (Math-Shepherd's hard
    label, Wang et al. 2024, equation 3). A step that nobody judged before any wrong one leaves it unknown.

    Raises:
        InputError: a share that is neither 0 nor 1, without the counts of its rollouts.
    """
    for step, judgements in enumerate(labelled.judgements):
        label = _label(judgements, neutral)
        if label is None:
            return None
        if any(j.rating is not None for j in judgements):
            right = label >= 0.5
        else:
            right = any_success(judgements, labelled.solution.id) is True
        if not right:
            return step
    return -1


def any_success(judgements: Sequence[Judgement], where: str | None) -> bool | None:
    """Whether a rollout from a step succeeded; None where none was made.

    Raises:
        InputError: a share between 0 and 1 without its counts: from which share on a step is right is for the user to say.
    """
    tried = [j for j in judgements if j.trials or j.share is not None]
    share = next((j.share for j in tried if j.share is not None and 0 < j.share < 1), None)
    if share is not None:
        raise InputError(
            f"expected whether each step is right, found the share {share:g}, which is a value. Say from which share on a step is right: "
            "stepmark convert --hard any (Math-Shepherd's rule: one success) or --hard 0.5; null is a step that nobody judged",
            where=where,
            field="labels",
        )
    return any(j.successes or j.share for j in tried) if tried else None


def ratings_until(solution: Solution, first: int, *, judge: str) -> LabelledSolution:
    """A solution judged up to its first error: right before it, wrong at it, nothing said of what follows.

    `first` is 0-based; -1 for none judges every step right.
    """
    judgements = judged_until(first, len(solution.steps), judge)
    return LabelledSolution(solution=solution, judgements=tuple(judgements))


def unique(cases: Iterable[Case]) -> list[Case]:
    """All of them."""
    seen: dict[str, str] = {}
    kept = []
    for case in cases:
        if case.id in seen:
            raise InputError(
                f"the id {case.id!r} stands at {seen[case.id]} already; expected every row once",
                where=case.where,
                field="id",
            )
        seen[case.id] = case.where
        kept.append(case)
    return kept
