"""Grading: solutions in, the same solutions out with step scores, one number and the first error; `Grader` puts it on a PRM."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import tee
from typing import Any

from stepmark.errors import BackendError, InputError, UsageError
from stepmark.metrics.aggregate import aggregate, check_score, resolve_aggregate
from stepmark.metrics.first_error import found_error
from stepmark.models.prm import PRM, Session, Weights
from stepmark.models.scorer import WholePrefixSession
from stepmark.records import (
    Finding,
    Refusal,
    ScoredSolution,
    Solution,
    StepScores,
    read_findings,
    scored_keys,
)
from stepmark.solutions.checks import check, check_names
from stepmark.solutions.inputs import ProblemLike, SolutionLike, problem_of, solution_of

_ALWAYS = ("scores", "score", "aggregate", "first_error", "threshold", "prm", "score_kind")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """How step scores become a verdict."""

    aggregate: str | None = None
    """One of `metrics.aggregate.AGGREGATES`; None for the PRM's own."""
    threshold: float | None = None
    """A step strictly under it is an error, in the unit of the scores; None for the PRM's own."""
    checks: str = "none"
    """Exact checks beside the scores (`stepmark.check`): "all", "none", names with commas between them, or "auto": the PRM's
    `default_checks`."""

    def of(self, prm: PRM) -> Grade:
        """These settings with the PRM's own in the place of None (the threshold stays None if it has none).

        Raises:
            UnknownNameError: no such aggregate.
            ScoreKindError: the aggregate means nothing for this PRM's scores.
            UsageError: the threshold is not in the range of the scores.
            SettingError: `checks` names no check.
        """
        checks = self.checks
        if checks == "auto":
            checks = prm.default_checks
        check_names(checks)
        how = resolve_aggregate(self.aggregate, prm.default_aggregate, prm.score_kind)
        threshold = prm.default_threshold if self.threshold is None else self.threshold
        if threshold is not None:
            try:
                check_score(threshold, prm.score_kind, step=0)
            except InputError:
                raise UsageError(
                    f"the threshold {threshold!r} is no {prm.score_kind}, which is what {prm.name} gives"
                ) from None
        return Grade(aggregate=how, threshold=threshold, checks=checks)


def grade(
    solutions: Iterable[Solution],
    prm: PRM,
    settings: Grade = Grade(),
    *,
    orm: PRM | None = None,
    keep_going: bool = False,
) -> Iterator[ScoredSolution | Refusal]:
    """Grade a stream of solutions: one result each, in order, as they come.

    Args:
        solutions: read as needed; solutions of one problem are graded cheapest when they stand together.
        prm: scores the steps.
        settings: how to aggregate, and what counts as an error.
        orm: a second model, read at the last step only: its verdict on the whole solution.
        keep_going: yield a `Refusal` for a solution that a model cannot read, instead of raising.

    Raises:
        InputError: a solution that cannot be scored, unless `keep_going`.
        UsageError: settings that do not fit the PRM; raised at the call.
        BackendError: the model gave a wrong number of scores, or one out of its range.
    """
    return _grade(iter(solutions), prm, settings.of(prm), orm, keep_going)


def _grade(
    solutions: Iterator[Solution], prm: PRM, settings: Grade, orm: PRM | None, keep_going: bool
) -> Iterator[ScoredSolution | Refusal]:
    verdicts = None
    for_prm = solutions
    if orm is not None:  # else nothing would read the second branch, and it would hold every solution
        for_prm, for_orm = tee(solutions)
        verdicts = checked_scores(for_orm, orm, keep_going=keep_going)
    for solution, steps in checked_scores(for_prm, prm, keep_going=keep_going):
        # Ask the second model even where the first refused: the two streams must stay abreast.
        verdict = None if verdicts is None else next(verdicts)[1]  # there is one for every solution
        if isinstance(steps, Refusal):
            yield steps
        elif isinstance(verdict, Refusal):
            yield verdict
        else:
            yield _scored(solution, steps, settings, prm=prm, orm=orm, verdict=verdict)


def graded(solution: Solution, steps: StepScores, prm: PRM, settings: Grade = Grade()) -> ScoredSolution:
    """What `grade` gives for a solution whose step scores are there already: for who asks the PRM in a way of its own.

    Args:
        solution: what was scored.
        steps: what the PRM gave, one score a step.
        prm: that PRM; it is not asked.
        settings: how to aggregate, and what counts as an error.

    Raises:
        UsageError: settings that do not fit the PRM.
        BackendError: a wrong number of scores, or one out of its range.
    """
    _check(solution, steps, prm)
    return _scored(solution, steps, settings.of(prm), prm=prm, orm=None, verdict=None)


def checked_scores(
    solutions: Iterator[Solution], prm: PRM, *, keep_going: bool = False
) -> Iterator[tuple[Solution, StepScores | Refusal]]:
    """Each solution with its raw result, checked: as many results as solutions, as many scores as steps, all in range.

    Raises:
        InputError: a solution that cannot be scored, unless `keep_going`.
        BackendError: the model gave something else.
    """
    waiting: deque[Solution] = deque()
    all_read = False

    def passing() -> Iterator[Solution]:
        nonlocal all_read
        for solution in solutions:
            waiting.append(solution)
            yield solution
        all_read = True

    for result in prm.score_many(passing(), keep_going=keep_going):
        if not waiting:
            raise BackendError(f"{prm.name} gave more results than there are solutions")
        solution = waiting.popleft()
        if isinstance(result, StepScores):
            _check(solution, result, prm)
        yield solution, result
    if waiting or not all_read:
        raise BackendError(
            f"{prm.name} stopped before the last solution; what it did not score has no result"
        )


def _check(solution: Solution, result: StepScores, prm: PRM) -> None:
    name = f"solution {solution.id!r}" if solution.id else f"a solution of {solution.problem.text[:60]!r}"
    if len(result.scores) != len(solution.steps):
        raise BackendError(
            f"{prm.name} gave {len(result.scores)} scores for the {len(solution.steps)} steps of {name}"
        )
    for step, score in enumerate(result.scores):
        if score is not None:
            try:
                check_score(score, result.kind, step=step)
            except InputError as error:
                raise BackendError(f"{prm.name}, {name}: {error}") from None


def _scored(
    solution: Solution,
    steps: StepScores,
    settings: Grade,
    *,
    prm: PRM,
    orm: PRM | None,
    verdict: StepScores | None,
) -> ScoredSolution:
    how = resolve_aggregate(settings.aggregate, prm.default_aggregate, prm.score_kind)
    needed = steps.scores[-1:] if how == "last" else steps.scores
    names, findings = check_names(settings.checks), None
    if names:
        findings = tuple(check(solution.problem.text, solution.texts, names=names))
    return ScoredSolution(
        solution=solution,
        steps=steps,
        score=None if None in needed else aggregate(steps.scores, how, kind=steps.kind),
        aggregate=how,
        first_error=first_error(steps.scores, settings.threshold, findings or ()),
        threshold=settings.threshold,
        prm=prm.name,
        outcome=None if verdict is None else verdict.scores[-1],
        outcome_model=None if orm is None else orm.name,
        findings=findings,
    )


def first_error(
    scores: tuple[float | None, ...], threshold: float | None, findings: Sequence[Finding] = ()
) -> int | None:
    """The 0-based index of the first step strictly under the threshold or with a finding; -1 when there is none.

    None when that cannot be known: no threshold and no finding, or a step without a score before any error.
    """
    proven = min((finding.step for finding in findings), default=None)
    if threshold is None or proven is None:
        return proven if threshold is None else found_error(scores, threshold)
    before = found_error(scores[:proven], threshold)
    return proven if before == -1 else before


class Grader:
    """The methods of a PRM that ask its `score_many`. A PRM of your own derives from it: `class MyPRM(stepmark.Grader)`."""

    __slots__ = ()

    @property
    def default_checks(self: PRM) -> str:
        """The exact checks that run beside it where a caller says "auto": "all" beside the PRM that ships, "none" beside any other."""
        return "all" if self.name == "default" else "none"

    @property
    def size(self) -> Weights | None:
        """The weights that a token meets; None for a model that is not in this process, or of which a token meets a part (experts)."""
        return None

    def open_session(self: PRM, *, memory_tokens: int | None = None) -> Session:
        """A session for a search: it scores prefixes that grow.

        Args:
            memory_tokens: tokens whose keys and values are stored at most; None: 65,536. Ignored by a PRM that stores nothing.
        """
        del memory_tokens
        reason = "its keys and values are out of reach: it is no model that stepmark loaded into this process"
        return WholePrefixSession(self, reason)

    def score(
        self: PRM,
        problem: ProblemLike | None,
        solution: SolutionLike,
        *,
        split: str = "auto",
        marker: str | None = None,
    ) -> list[float | None]:
        """Score every step of one solution.

        Args:
            problem: its text or record; None where the solution says it.
            solution: a text, step texts, a `Segmentation`, a `Solution` or a list of chat messages.
            split: how a text is split into steps (`stepmark.split`).
            marker: the text that ends each step, for `split` "marker".

        Returns:
            One score a step, of the kind `score_kind`; None for a step that was not read.

        Raises:
            InputError: a blank problem or step, a marker inside the text, too many tokens.
            BackendError: a server or a policy failed.
        """
        record = solution_of(problem, solution, split_by=split, marker=marker)
        [(_, result)] = checked_scores(iter([record]), self)
        assert isinstance(result, StepScores)
        return list(result.scores)

    def grade(
        self: PRM,
        problem: ProblemLike | None,
        solution: SolutionLike,
        *,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str = "auto",
        split: str = "auto",
        marker: str | None = None,
    ) -> ScoredSolution:
        """Grade one solution: step scores, one number for the whole, the first error.

        Args:
            problem: its text or record; None where the solution says it.
            solution: a text, step texts, a `Segmentation`, a `Solution` or a list of chat messages.
            aggregate: how step scores become one number (`stepmark.aggregate`); None for the PRM's own.
            threshold: a step whose score is under it is an error; None for the PRM's own.
            checks: exact checks that run beside the PRM (`stepmark.check`): "all", "none", names with commas between them, or "auto":
                all of them beside the default PRM, none beside any other. What they find changes `first_error` and no score.
            split: how a text is split into steps (`stepmark.split`).
            marker: the text that ends each step, for `split` "marker".

        Raises:
            InputError: a blank problem or step, a marker inside the text, too many tokens.
            UsageError: an aggregate or a threshold that does not fit the PRM's scores.
            BackendError: a server or a policy failed.
        """
        record = solution_of(problem, solution, split_by=split, marker=marker)
        [scored] = grade([record], self, Grade(aggregate=aggregate, threshold=threshold, checks=checks))
        assert isinstance(scored, ScoredSolution)
        return scored

    def rank(
        self: PRM,
        problem: ProblemLike,
        solutions: Iterable[SolutionLike],
        *,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str = "auto",
        split: str = "auto",
        marker: str | None = None,
    ) -> list[ScoredSolution]:
        """Grade candidate solutions of one problem and sort them, best first.

        Shared prefixes are computed once. Each result says in `index` where it stood in the input. Solutions of equal score keep their
        order; one without a score (a step was not read) comes last.

        Args:
            problem: its text or record.
            solutions: each as for `grade`.
            aggregate: what they are sorted by; None for the PRM's own.
            threshold: as for `grade`.
            checks: as for `grade`; the order is by score alone.
            split: as for `grade`.
            marker: as for `grade`.

        Raises:
            InputError: no solutions, or one that cannot be scored; the message says which.
            UsageError: an aggregate or a threshold that does not fit the PRM's scores.
            BackendError: a server or a policy failed.
        """
        if isinstance(solutions, str):
            raise InputError(
                "expected a list of solutions, found one text; grade it with grade()", field="solutions"
            )
        shared = problem_of(problem)
        records = []
        for index, solution in enumerate(solutions):
            try:
                records.append(solution_of(shared, solution, split_by=split, marker=marker))
            except InputError as error:
                raise error.at(f"solution {index} (0-based)") from None
        if not records:
            raise InputError("expected at least one solution to rank, found none", field="solutions")
        results = grade(records, self, Grade(aggregate=aggregate, threshold=threshold, checks=checks))
        scored = [
            replace(result, index=index)
            for index, result in enumerate(results)
            if isinstance(result, ScoredSolution)
        ]
        return sorted(scored, key=lambda result: (result.score is None, -(result.score or 0.0)))


def to_row(scored: ScoredSolution, row: Mapping[str, Any]) -> dict[str, Any]:
    """The graded row: the row as it was read, then what grading adds.

    `records.scored_keys` says what. Where the row's text was cut here, `steps` holds the pieces, so that the scores have something to
    stand beside.

    Raises:
        InputError: the score is infinite (a sum of logits at a probability of exactly 0 or 1); JSON has no
            number for that.
    """
    steps = scored.steps
    if scored.score is not None and abs(scored.score) == float("inf"):
        at = steps.scores.index(1.0 if scored.score > 0 else 0.0)
        raise InputError(
            f"the {scored.aggregate} is {scored.score}, because step {at} (0-based) has a probability of exactly "
            f"{steps.scores[at]:g}; a file cannot hold that. Score in float32, or take another aggregate"
        )
    given = "steps" in row or "completions" in row
    return {**row, **({} if given else {"steps": list(scored.solution.texts)}), **scored_keys(scored)}


def from_row(solution: Solution, row: Mapping[str, Any]) -> ScoredSolution:
    """A graded row read back, given the solution that its input row holds; the inverse of `to_row`.

    Raises:
        InputError: a key is missing, or there is not one score of the kind a step.
    """
    if missing := [key for key in _ALWAYS if key not in row]:
        raise InputError(f"expected a graded row, found no {', '.join(missing)}", field=missing[0])
    classes, names, critiques = row.get("classes"), row.get("class_names"), row.get("critiques")
    steps = StepScores(
        scores=tuple(row["scores"]),
        kind=row["score_kind"],
        classes=None
        if classes is None
        else tuple(None if shares is None else tuple(shares) for shares in classes),
        class_names=None if names is None else tuple(names),
        critiques=None if critiques is None else tuple(tuple(written) for written in critiques),
    )
    if len(steps.scores) != len(solution.steps):
        raise InputError(
            f"expected {len(solution.steps)} scores, one a step, found {len(steps.scores)}", field="scores"
        )
    for step, score in enumerate(steps.scores):
        if score is not None:
            check_score(score, steps.kind, step=step)
    scored = ScoredSolution(
        solution=solution,
        steps=steps,
        score=row["score"],
        aggregate=row["aggregate"],
        first_error=row["first_error"],
        threshold=row["threshold"],
        prm=row["prm"],
        outcome=row.get("outcome"),
        outcome_model=row.get("outcome_model"),
        findings=None if row.get("findings") is None else read_findings(row["findings"], len(steps.scores)),
    )
    # Files of before have no such key.
    if row.get("first_error_step", scored.first_error_step) != scored.first_error_step:
        raise InputError(
            f"expected {scored.first_error_step}, the number from 1 of the step that first_error ({scored.first_error}) counts from 0, "
            f"found {row['first_error_step']!r}",
            field="first_error_step",
        )
    if row.get("first_error_by", scored.first_error_by) != scored.first_error_by:
        raise InputError(
            f"expected {scored.first_error_by!r}, found {row['first_error_by']!r}", field="first_error_by"
        )
    return scored
