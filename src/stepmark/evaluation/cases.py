"""What an evaluation measures against: solutions whose truth is known, each with where it was read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stepmark.errors import InputError
from stepmark.labels.labelling import judged_until
from stepmark.metrics.aggregate import aggregate, check_score
from stepmark.metrics.intervals import Floats
from stepmark.records import Judgement, LabelledSolution, ScoreKind, Solution, StepScores


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
    difficulty: str | None = None
    """As the data names it."""
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

    Args:
        labelled: the solution.
        neutral: what a neutral rating counts as.
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
    """
    for step, judgements in enumerate(labelled.judgements):
        label = _label(judgements, neutral)
        if label is None:
            return None
        by_rating = any(j.rating is not None for j in judgements)
        if label < 0.5 if by_rating else label == 0:
            return step
    return -1


def ratings_until(solution: Solution, first: int, *, judge: str) -> LabelledSolution:
    """A solution judged up to its first error: right before it, wrong at it, nothing said of what follows.

    Args:
        solution: the solution.
        first: 0-based; -1 for none, which judges every step right.
        judge: who judged.
    """
    judgements = judged_until(first, len(solution.steps), judge)
    return LabelledSolution(solution=solution, judgements=tuple(judgements))


def unique(cases: Iterable[Case]) -> list[Case]:
    """All of them.

    Raises:
        InputError: two have one id.
    """
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One solution that was sampled for a problem, and what is known of it."""

    correct: bool | None
    """Is its answer right? None when the checker could not tell."""
    answer: int | None = None
    """Its answer group: candidates with equal answers have the same number (at least 0). None: no answer."""
    steps: StepScores | None = None
    """What the PRM says of its steps; None when it was not graded."""
    outcome: float | None = None
    """What an outcome reward model says of the whole; higher is better. None when none was asked."""
    tokens: int | None = None
    """Tokens that the policy generated for it."""
    prm_tokens: int | None = None
    """Tokens that the PRM read for this candidate alone; the problem among them where it is read for each."""
    outcome_tokens: int | None = None
    """Tokens that the outcome reward model read."""
    characters: int | None = None
    """Length of its text, for the length bias."""
    policy: str | None = None
    """Who wrote it."""
    greedy: bool = False
    """Decoded greedily: the answer of the method `greedy`, no sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateSet:
    """A problem and its candidates; their order means nothing."""

    id: str
    """The problem's id; the unit of every interval."""
    candidates: tuple[Candidate, ...]
    prm_once: int = 0
    """Tokens that the PRM reads once for all candidates: the problem, where they share its computation."""


def score_kind(sets: Iterable[CandidateSet]) -> ScoreKind | None:
    """The kind of all step scores; None when nothing was graded.

    Raises:
        InputError: there are two kinds; they cannot be compared.
    """
    found: ScoreKind | None = None
    for one in sets:
        for candidate in one.candidates:
            if candidate.steps is not None:
                if found is not None and candidate.steps.kind != found:
                    raise InputError(
                        f"scores of the kind {candidate.steps.kind!r} beside scores of the kind {found!r}: "
                        "grade all candidates with one PRM",
                        where=one.id,
                    )
                found = candidate.steps.kind
    return found


def check_set(one: CandidateSet) -> None:
    """Refuse a set that cannot be evaluated.

    Raises:
        InputError: no samples, two greedy candidates, an answer group under 0, an outcome that is not finite.
    """
    if sum(not c.greedy for c in one.candidates) == 0:
        raise InputError("the problem has no sampled candidate: leave it out, or sample some", where=one.id)
    if sum(c.greedy for c in one.candidates) > 1:
        raise InputError("the problem has more than one greedy candidate: expected at most one", where=one.id)
    for position, c in enumerate(one.candidates):
        if c.answer is not None and c.answer < 0:
            raise InputError(
                f"candidate {position} (0-based) has the answer group {c.answer}: expected at least 0, or None",
                where=one.id,
                field="answer",
            )
        if c.outcome is not None and not math.isfinite(c.outcome):
            raise InputError(
                f"candidate {position} (0-based) has the outcome score {c.outcome!r}: expected a finite number",
                where=one.id,
                field="outcome",
            )


def scores_of(pool: Sequence[Candidate], how: str, kind: ScoreKind, *, where: str) -> Floats:
    """The aggregate of each candidate, shape (M,); NaN for one that has none.

    It has none when it was not graded, when a step was not read (save before the last one, for "last"), or when a sum
    of logits meets a certain 0 and a certain 1 together. Infinite sums of logits are kept: they are in order.

    Raises:
        InputError: a score out of the range of its kind; `where` names the problem.
    """
    values: list[float] = []
    for candidate in pool:
        scores = () if candidate.steps is None else candidate.steps.scores
        read = [s for s in scores if s is not None]
        try:
            for step, score in enumerate(scores):
                if score is not None:
                    check_score(score, kind, step=step)
            if (
                not scores
                or (len(read) < len(scores) and (how != "last" or scores[-1] is None))
                or (how == "sum-logit" and {0.0, 1.0} <= set(read))
            ):
                values.append(math.nan)
            else:
                values.append(aggregate(scores, how, kind=kind))
        except InputError as error:
            raise error.at(where) from None
    return np.array(values)
