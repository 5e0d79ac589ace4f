"""A process reward model: its protocol, its sessions, what it costs, and grading: solutions in, the same solutions out with step scores, one number and
the first error."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import tee
from typing import TYPE_CHECKING, Any

from stepmark.backends import BatchScorer, Ready, Release, ScoreRequest, StepScore
from stepmark.data.conversations import (
    ProblemLike,
    SolutionLike,
    check_one_problem,
    each_solution,
    problem_of,
    solution_of,
)
from stepmark.data.steps.thoughts import Reasoning
from stepmark.errors import BackendError, InputError, TooLongError, UsageError
from stepmark.metrics.aggregate import aggregate, check_score, rank_key, resolve_aggregate
from stepmark.metrics.first_error import found_error
from stepmark.models.watch import Rule, TurnJudge, Watch
from stepmark.records import (
    Finding,
    GradedSolution,
    Refusal,
    ScoreKind,
    Solution,
    Steps,
    StepScores,
    read_findings,
    scored_keys,
)
from stepmark.verifiers.checks import check_names, check_solution
from stepmark.words import amount

_ALWAYS = ("scores", "score", "aggregate", "first_error", "threshold", "prm", "score_kind")


@dataclass(kw_only=True, slots=True)
class Ledger:
    """What scoring has cost so far. Counts only grow."""

    solutions: int = 0
    """Solutions scored."""
    steps: int = 0
    """Steps scored."""
    tokens_in: int = 0
    """Tokens of all solutions, each read alone: what one-at-a-time scoring computes."""
    tokens_distinct: int = 0
    """Distinct prefix tokens among solutions that were scored together."""
    tokens_computed: int = 0
    """Tokens that went through the network. Equal to `tokens_distinct` when nothing is computed twice."""
    tokens_again: int = 0
    """Of those computed, tokens that a session had forgotten for want of memory and read once more (known of the last few times as many as there is room for)."""
    tokens_written: int = 0
    """Tokens that a generative PRM wrote."""

    @property
    def cache_hits(self) -> int:
        """Tokens that were needed and not computed, because a shared prefix had them already."""
        return self.tokens_in - self.tokens_computed


@dataclass(kw_only=True, slots=True)
class PromptTokens:
    """The prompt tokens of a policy in this process. Counts only grow."""

    given: int = 0
    """Tokens of all prompts, each request's once."""
    computed: int = 0
    """Tokens of prompts that went through the network."""
    again: int = 0
    """Of those, tokens that had been evicted (without the last tokens of prompts, which are always computed)."""
    forgotten: int = 0
    """Tokens evicted."""


class Session:
    """Scores of prefixes that grow, as a search or a watch asks for them. This one stores nothing: every prefix is scored whole.

    Args:
        prm: any.
        reason: why nothing is stored.
    """

    reason: str
    """Why every prefix is read whole; "" where a step costs its own tokens only."""
    in_process = False
    """Whether it stores keys and values in this process: a `session.CachedSession`."""

    def __init__(self, prm: PRM, reason: str) -> None:
        self.prm, self.reason = prm, reason

    def score_last(
        self, solutions: Sequence[Solution], ready: Ready | None = None
    ) -> list[StepScore | InputError]:
        """The score of the last step of each solution, in order; an `InputError` for what the PRM cannot read.

        Args:
            solutions: prefixes of solutions.
            ready: called with each reply that is there before the others.

        Raises:
            BackendError: the PRM gave NaN, or another number of scores than there are steps.
        """
        replies: list[StepScore | InputError] = []
        for _, result in checked_scores(iter(solutions), self.prm, keep_going=True):
            replies.append(last_step(result))
            if ready is not None:
                ready(len(replies) - 1, replies[-1])
        return replies

    def score(self, requests: Sequence[ScoreRequest], ready: Ready) -> list[StepScore | InputError]:
        """The same for the requests of a search."""
        return self.score_last([Solution.of(request.problem, request.steps) for request in requests], ready)

    def score_turn(self, solution: Solution, before: Solution | None) -> StepScore | InputError:
        """The score of the last turn of a conversation. `before`, what was read of it last, is not needed any more once this is scored."""
        [reply] = self.score_last([solution])
        if before is not None and before.texts != solution.texts and not isinstance(reply, InputError):
            gone = Release(problem=before.problem.text, prefixes=(before.texts,))
            self.release([gone], lambda at, reply: None)
        return reply

    def release(self, requests: Sequence[Release], ready: Ready) -> list[Any]:
        """Free what is stored for some prefixes; unknown ones are ignored."""
        return [None] * len(requests)


class PRM:
    """A process reward model: reads a prefix of a solution and scores its last step. A PRM of your own derives from it: `class MyPRM(stepmark.PRM)`.

    The score of step t depends on the problem and on steps 1..t, never on what follows. A subclass has the attributes below, `identity` and
    `score_many`; all else is made of them.
    """

    name: str
    """Its name in outputs: a short name, a hub name, a folder, an address."""
    score_kind: ScoreKind
    """What its scores are."""
    default_aggregate: str
    """How its authors make one number of the step scores (`metrics/aggregate.py`)."""
    default_threshold: float | None
    """The score under which a step is an error; None when its scores have no such point."""
    ledger: Ledger
    """What it has cost so far."""

    if TYPE_CHECKING:  # an attribute or a property

        @property
        def identity(self) -> str:
            """What tells it from every PRM that gives other scores: equal identities, equal scores.

            Scores are recorded under it, and a run is continued under it only. Where weights decide the scores, a digest of them is
            part of it (`models.identity.named`); a PRM of fixed rules may give its name, and changes it with the rules.
            """

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions, one result each, in their order, without holding them all.

        Solutions of one problem that stand together share the computation of every common prefix.

        Args:
            solutions: read as needed; may be endless.
            keep_going: yield a `Refusal` for a solution that cannot be scored instead of raising.

        Raises:
            InputError: a blank problem or step, a marker inside the text, too many tokens; unless `keep_going`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no score_many")

    @property
    def default_checks(self) -> str:
        """The exact checks that run beside it where a caller says "auto": those that its checkpoint names, "all" beside the PRM that ships."""
        return "none"

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """A session for a search: it scores prefixes that grow.

        Args:
            memory_tokens: tokens whose keys and values are stored at most; None: 65,536. Ignored by a PRM that stores nothing.
        """
        del memory_tokens
        reason = "its keys and values are out of reach: it is no model that stepmark loaded into this process"
        return Session(self, reason)

    def score(
        self,
        problem: ProblemLike | None,
        solution: SolutionLike | None = None,
        *,
        steps: Steps | None = None,
        split: str = "auto",
        marker: str | None = None,
    ) -> list[float | None]:
        """Score every step of one solution.

        Args:
            problem: its text or record; None where the solution says it.
            solution: a text, a `Segmentation`, a record of a solution, or a list of chat messages.
            steps: the texts of its steps, instead of `solution`.
            split: how a text is split into steps (`stepmark.split`).
            marker: the text that ends each step, for `split` "marker".

        Returns:
            One score a step, of the kind `score_kind`; None for a step that was not read.

        Raises:
            InputError: a blank problem or step, a marker inside the text, too many tokens.
            BackendError: a server or a policy failed.
        """
        record = solution_of(problem, solution, steps=steps, split_by=split, marker=marker)
        [(_, result)] = checked_scores(iter([record]), self)
        assert isinstance(result, StepScores)
        return list(result.scores)

    def grade(
        self,
        problem: ProblemLike | None,
        solution: SolutionLike | None = None,
        *,
        steps: Steps | None = None,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str = "auto",
        split: str = "auto",
        marker: str | None = None,
    ) -> GradedSolution:
        """Grade one solution: step scores, one number for the whole, the first error.

        Args:
            problem: its text or record; None where the solution says it.
            solution: a text, a `Segmentation`, a record of a solution, or a list of chat messages.
            steps: the texts of its steps, instead of `solution`.
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
        record = solution_of(problem, solution, steps=steps, split_by=split, marker=marker)
        [scored] = grade([record], self, Grade(aggregate=aggregate, threshold=threshold, checks=checks))
        assert isinstance(scored, GradedSolution)
        return scored

    def grade_many(
        self,
        problem: ProblemLike | None,
        solutions: Iterable[SolutionLike | Steps],
        *,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str = "auto",
        split: str = "auto",
        marker: str | None = None,
        keep_going: bool = False,
    ) -> list[GradedSolution]:
        """Grade several solutions, each as `grade` does; the results stand in the order of the solutions. `rank` sorts them.

        The solutions of one problem share the computation of what they have in common. Each result says in `index` where it stands.

        Args:
            problem: the text or record of the problem of them all; None where each solution says its own.
            solutions: each as for `grade`, or a list of the texts of its steps.
            aggregate, threshold, checks, split, marker: as for `grade`.
            keep_going: leave out solutions that the PRM cannot read (too long, a marker in the text) instead of raising.

        Raises:
            InputError: one that cannot be scored; the message says which.
            UsageError: an aggregate or a threshold that does not fit the PRM's scores.
            BackendError: a server or a policy failed.
        """
        records = each_solution(problem, solutions, split_by=split, marker=marker)
        results = grade(
            records,
            self,
            Grade(aggregate=aggregate, threshold=threshold, checks=checks),
            keep_going=True,
        )
        graded = []
        for index, result in enumerate(results):
            if isinstance(result, GradedSolution):
                graded.append(replace(result, index=index))
            elif not keep_going:
                raise result.error.at(f"solution {index} (0-based)")
        return graded

    def rank(
        self,
        problem: ProblemLike | None,
        solutions: Iterable[SolutionLike | Steps],
        *,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str = "auto",
        split: str = "auto",
        marker: str | None = None,
        keep_going: bool = False,
    ) -> list[GradedSolution]:
        """Grade candidate solutions of one problem and sort them, best first.

        A solution with a step that an exact check proves to be wrong comes after all others; then the score decides, the highest first.
        One without a score (a step was not read) comes after those that have one; equals keep their order.

        Args:
            problem, solutions, threshold, checks, split, marker, keep_going: as for `grade_many`.
            aggregate: what they are sorted by; None for the PRM's own.

        Raises:
            InputError: no solutions, or one that cannot be scored; the message says which.
            UsageError: an aggregate or a threshold that does not fit the PRM's scores.
            BackendError: a server or a policy failed.
        """
        records = each_solution(problem, solutions, split_by=split, marker=marker)
        check_one_problem(records)
        graded = self.grade_many(
            None,
            records,
            aggregate=aggregate,
            threshold=threshold,
            checks=checks,
            keep_going=keep_going,
        )
        return sorted(graded, key=lambda solution: rank_key(solution.score, refuted=solution.refuted))

    def watch(
        self,
        problem: ProblemLike,
        *,
        threshold: float | None = None,
        aggregate: str | None = None,
        patience: int = 1,
        retries: int = 3,
        floor: float | None = None,
        reasoning: Reasoning = "keep",
        checks: str = "auto",
        judge: TurnJudge | None = None,
    ) -> Watch:
        """Score an agent's turns as they come: `watch.add(message)` gives the score, what is wrong in words, and what to do.

        Args:
            problem: what the agent was asked; its text or record.
            threshold: a turn whose score is under it is weak; None for the PRM's own.
            aggregate: how turns become one number; None for the PRM's own.
            patience: weak turns in a row after which the advice is to go back to the first of them.
            retries: how often to go back; the next time the advice is to stop.
            floor: a running aggregate under it is a stop; None for none.
            reasoning: what becomes of thoughts: "keep" them in the turn, grade them "only", or "drop" them.
            checks: exact checks of each turn, as in `stepmark.grade`; "auto" for the PRM's own. A turn that they refute is weak.
            judge: says which criteria a turn fails (`stepmark.labels.Judge.watching`); such a turn is weak.

        Raises:
            UsageError: no threshold, or a setting that cannot work.
        """
        own = self.default_threshold if threshold is None else threshold
        if own is None:
            raise UsageError(f"{self.name} has no threshold of its own; give one (`threshold`)")
        how = resolve_aggregate(aggregate, self.default_aggregate, self.score_kind)
        rule = Rule(
            kind=self.score_kind,
            threshold=own,
            aggregate=how,
            patience=patience,
            retries=retries,
            floor=floor,
        )
        asked = problem_of(problem)
        names = self.default_checks if checks == "auto" else checks
        return Watch(asked, self.open_session(), rule, reasoning, checks=names, judge=judge)

    def describe(self, *, family: str | None = None, place: Mapping[str, object] | None = None) -> str:
        """One line for `__repr__`: with how it is read, and where it computes (device and precision, or an address)."""
        facts = {
            "name": self.name,
            **({} if family is None else {"family": family}),
            "score_kind": self.score_kind,
            "aggregate": self.default_aggregate,
            "threshold": self.default_threshold,
            **(place or {}),
        }
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in facts.items())})"


def identity_of(prm: PRM) -> str:
    """The identity of a PRM; a `UsageError` for a user's PRM without one."""
    identity = getattr(prm, "identity", None)
    if not isinstance(identity, str) or not identity:
        raise UsageError(
            f"{prm.name}: a {type(prm).__name__} has no identity, a text that changes whenever its scores would, so that scores of "
            "two models never come under one name. Add the property `identity`; a PRM of fixed rules may return its name "
            "(docs/extending.md)"
        )
    return identity


# Sessions.


def scorer(prm: PRM, *, session: Session | None = None, memory_tokens: int | None = None) -> BatchScorer:
    """A PRM as a search asks it, one step after the other.

    Args:
        prm: as `load_prm` gives it.
        session: an open session of this PRM; None opens one, with `memory_tokens`.
    """
    session = prm.open_session(memory_tokens=memory_tokens) if session is None else session
    return BatchScorer(identity_of(prm), session.score, session.release)


def why_whole_prefixes(prm: PRM) -> str:
    """Why a search must have this PRM read every prefix whole; "" where a step costs its own tokens only."""
    return prm.open_session().reason


def last_step(result: StepScores | Refusal, *, cached: bool = False) -> StepScore | InputError:
    """The score of the last step of a solution that was scored whole; `cached` where its prefix was not read anew, so that the step costs its own tokens."""
    if isinstance(result, Refusal):
        return result.error
    score = result.scores[-1]
    if score is None:
        return TooLongError("the step lies past what this model reads")
    classes = None if result.classes is None else result.classes[-1]
    root, rest = result.problem_tokens, result.solution_tokens
    if root is None or rest is None or (cached and result.step_tokens is None):
        return StepScore(score=score, tokens=None, root=None, classes=classes)
    if cached and result.step_tokens is not None:
        return StepScore(score=score, tokens=result.step_tokens[-1], root=root, classes=classes)
    return StepScore(score=score, tokens=root + rest, root=0, classes=classes)


# Grading.


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
            UsageError: an aggregate, threshold or check that there is not, or that means nothing for this PRM's scores.
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
) -> Iterator[GradedSolution | Refusal]:
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
) -> Iterator[GradedSolution | Refusal]:
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


def graded(solution: Solution, steps: StepScores, prm: PRM, settings: Grade = Grade()) -> GradedSolution:
    """What `grade` gives for a solution whose step scores are there already.

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
            f"{prm.name} gave {amount(len(result.scores), 'score')} for the {amount(len(solution.steps), 'step')} of {name}"
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
) -> GradedSolution:
    how = resolve_aggregate(settings.aggregate, prm.default_aggregate, prm.score_kind)
    needed = steps.scores[-1:] if how == "last" else steps.scores
    findings = check_solution(solution, settings.checks)
    return GradedSolution(
        solution=solution,
        step_scores=steps,
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


def to_row(scored: GradedSolution, row: Mapping[str, Any]) -> dict[str, Any]:
    """The graded row: the row as it was read, then what grading adds (`records.scored_keys`), and the steps where the row's text was split here.

    Raises:
        InputError: the score is infinite (a sum of logits at a probability of exactly 0 or 1), which JSON cannot hold.
    """
    steps = scored.step_scores
    if scored.score is not None and abs(scored.score) == float("inf"):
        at = steps.scores.index(1.0 if scored.score > 0 else 0.0)
        raise InputError(
            f"the {scored.aggregate} is {scored.score}, because step {at} (0-based) has a probability of exactly "
            f"{steps.scores[at]:g}; a file cannot hold that. Score in float32, or take another aggregate"
        )
    return {**input_row(scored.solution, row), **scored_keys(scored)}


def input_row(solution: Solution, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a graded row begins with: the row as it was read, and the steps where its text was split here."""
    given = row.get("steps") is not None or row.get("completions") is not None
    return {**row, **({} if given else {"steps": list(solution.texts)})}


def from_row(solution: Solution, row: Mapping[str, Any]) -> GradedSolution:
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
            f"expected {amount(len(solution.steps), 'score')}, one a step, found {len(steps.scores)}",
            field="scores",
        )
    for name, entries in (("classes", steps.classes), ("critiques", steps.critiques)):
        if entries is not None and len(entries) != len(solution.steps):
            raise InputError(
                f"expected {amount(len(solution.steps), 'entry', 'entries')}, one a step, found {len(entries)}",
                field=name,
            )
    for step, score in enumerate(steps.scores):
        if score is not None:
            check_score(score, steps.kind, step=step)
    if row["first_error"] is not None and not -1 <= row["first_error"] < len(solution.steps):
        raise InputError(
            f"expected -1 to {len(solution.steps) - 1} or null, found {row['first_error']!r}",
            field="first_error",
        )
    return GradedSolution(
        solution=solution,
        step_scores=steps,
        score=row["score"],
        aggregate=row["aggregate"],
        first_error=row["first_error"],
        threshold=row["threshold"],
        prm=row["prm"],
        outcome=row.get("outcome"),
        outcome_model=row.get("outcome_model"),
        findings=None if row.get("findings") is None else read_findings(row["findings"], len(steps.scores)),
    )
