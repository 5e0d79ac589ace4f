"""What every PRM does for one problem: score, grade and rank solutions as a caller has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from stepmark.errors import InputError
from stepmark.records import ScoredSolution, StepScores
from stepmark.solutions.inputs import ProblemLike, SolutionLike, problem_of, solution_of

if TYPE_CHECKING:
    from stepmark.models.prm import PRM


class Grader:
    """The methods of a PRM that ask its `score_many`. A PRM of your own derives from it: `class MyPRM(stepmark.Grader)`."""

    __slots__ = ()

    @property
    def default_checks(self: PRM) -> str:
        """The exact checks that run beside it where a caller says "auto": "all" beside the PRM that ships, "none" beside any other."""
        return "all" if self.name == "default" else "none"

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
        from stepmark.models.grading import checked_scores

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
        from stepmark.models.grading import Grade, grade

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
        from stepmark.models.grading import Grade, grade

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
            replace(one, index=index) for index, one in enumerate(results) if isinstance(one, ScoredSolution)
        ]
        return sorted(scored, key=lambda one: (one.score is None, -(one.score or 0.0)))
