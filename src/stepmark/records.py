"""What travels between the parts of the library: frozen, keyword-only records.

A record holds facts and no machine. Absence is `None`, never a number. Reading is strict: `read_record`
refuses a wrong type and an unknown key and says which.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stepmark.errors import InputError
from stepmark.words import ABSENT, amount, first_error_words, number, shortened

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from rich.console import RenderableType

ScoreKind = Literal["probability", "margin", "log-ratio", "unbounded"]
"""What a step score is.

`probability` in [0, 1]; `margin` p(good) - p(bad) in [-1, 1]; `log-ratio` of two models, centred on 0,
no bounds; `unbounded` a raw value of which only the order means something.
"""

LabelKind = Literal["correctness", "value"]
"""`correctness`: is the step true in itself. `value`: the probability of reaching the right answer."""

DEFAULT_AXIS = "correctness"
"""The axis of a judgement that names no other: whether the step is right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageSpan:
    """Where the words of a chat message stand in a text, in characters: [start, end)."""

    role: str
    """As the OpenAI chat API has it: system, user, assistant, tool."""
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A question, and what is known of its answer."""

    text: str
    """The question as the solver saw it; not empty."""
    id: str | None = None
    """The caller's name for it."""
    answer: str | None = None
    """The reference answer, as the source writes it."""
    source: str | None = None
    """The data set that it came from."""
    messages: tuple[MessageSpan, ...] = ()
    """The chat messages in `text`; empty where it is no chat, or the words of one user message."""
    tools: str | None = None
    """The tools that an agent was given, as the JSON of a list in the form of the OpenAI chat API."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One checkable piece of reasoning.

    The pieces of a solution rejoin to its text: `lead + text + observation + tail` of every step, in
    order, is the original, character for character.
    """

    text: str
    """What is graded; not blank."""
    lead: str = ""
    """Layout before the step that no grader reads: blank lines, an opening separator."""
    tail: str = ""
    """Layout after the step: the newline, the separator it was cut at."""
    observation: str = ""
    """What the world answered after the step (tool results, the user's next turn). Read by the grader as
    context of the *next* step; never rated."""
    start: int | None = None
    """Character offset of `text` in the original; None when the caller gave ready-made steps."""
    speaker: str | None = None
    """Who spoke: the name of one of several agents; None where it is not told."""
    messages: tuple[MessageSpan, ...] = ()
    """Of a conversation, the chat messages in `raw`: the words of the agent's turn without its thought and its tool calls, then what
    answered it. Empty for other steps."""
    id: str | None = field(default=None, compare=False)
    """Of an agent's turn, the id of the call that wrote it in the trace that it was read from (an observation of Langfuse, a run of LangSmith, a
    span of OpenTelemetry), or of its message; None where there is none."""

    @property
    def raw(self) -> str:
        """The step's whole share of the original text."""
        return self.lead + self.text + self.observation + self.tail


Steps = Sequence[str] | Sequence[Step]
"""The steps of a solution as callers have them: texts, or what `stepmark.split` gives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """A problem and the steps written for it."""

    problem: Problem
    steps: tuple[Step, ...]
    """At least one."""
    id: str | None = None
    """The caller's name for it."""
    split: str | None = None
    """How the text was cut into steps ("line", "agent", …); None when steps were given."""
    source: str | None = None
    """Who wrote it: a model's name, a person."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The graded text of every step."""
        return tuple(step.text for step in self.steps)

    @property
    def text(self) -> str:
        """The whole solution as one text: the original where it was cut into steps; ready-made steps are put on a line each."""
        cut = any(step.start is not None or step.lead or step.tail for step in self.steps)
        return ("" if cut else "\n").join(step.raw for step in self.steps)

    @classmethod
    def of(cls, problem: str, steps: Steps, *, id: str | None = None) -> Solution:
        """A solution from plain strings, or from steps as `stepmark.split` gives them.

        Raises:
            InputError: `steps` is one text, which would become one step a letter; or something in it is neither a text nor a `Step`.
        """
        if isinstance(steps, str | bytes):
            raise InputError(
                "expected a list of step texts, found a text: stepmark.split(text) gives its steps",
                field="steps",
            )
        if not isinstance(problem, str):
            raise InputError(f"expected a text, found {type(problem).__name__}", field="problem")
        if not isinstance(steps, Iterable) or isinstance(steps, Mapping):
            raise InputError(f"expected a list of step texts, found {type(steps).__name__}", field="steps")
        as_steps = tuple(Step(text=step) if isinstance(step, str) else step for step in steps)
        for at, step in enumerate(as_steps):
            if not isinstance(step, Step):
                raise InputError(
                    f"expected a text or a Step, found {type(step).__name__}", field=f"steps[{at}]"
                )
        return cls(problem=Problem(text=problem), steps=as_steps, id=id)

    def _repr_html_(self) -> str:
        from stepmark.report.html import steps_fragment

        return steps_fragment(
            self.texts, problem=self.problem.text, headline=f"{amount(len(self.steps), 'step')}, not graded"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledSolution:
    """A solution that a policy wrote, as one text, with the verdict on its final answer."""

    problem: Problem
    text: str
    """As the policy wrote it; not blank. `stepmark.split` cuts it into steps."""
    id: str | None = None
    """The problem's id, "#", and the number of the sample, from 0."""
    source: str | None = None
    """The policy."""
    outcome: bool | None = None
    """Whether the final answer is right; None where there is no verdict."""
    note: str | None = None
    """The rule that decided, or why there is no verdict; None where no verdict was asked for."""
    tokens: int | None = None
    """How many tokens it has; None where the policy does not report that."""
    finish: str | None = None
    """How it ended: "end" (of its own), "stop" (at a stop text), "length" (cut off at `max_tokens`), "end or stop"."""
    logprob: float | None = None
    """The sum of its tokens' log-probabilities, at most 0; None where the policy does not report them."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the problem's row."""

    def _repr_html_(self) -> str:
        from stepmark.report.html import steps_fragment

        verdict = {True: "right", False: "wrong", None: "no verdict"}[self.outcome]
        return steps_fragment([self.text], problem=self.problem.text, headline=verdict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One judgement of one step, with its evidence. Judgements live side by side; consensus is a view."""

    kind: LabelKind
    judge: str
    """Who: "human", a model's name, "rollout", a rule."""
    rating: Literal[-1, 0, 1] | None = None
    """Correctness by a person or a judge: wrong, neutral, right. None when the judge gave none."""
    successes: int | None = None
    """Rollouts from here that reached the right answer."""
    trials: int | None = None
    """Rollouts made from here."""
    share: float | None = None
    """The share of rollouts that succeeded, in [0, 1], where the source gives no numbers; None where it does."""
    confidence: float | None = None
    """How sure the judge is of its rating, in [0, 1]: a posterior probability, a share of votes. None when not said."""
    note: str | None = None
    """Where it comes from: a file, an experiment. Of a criterion, the judge's reason."""
    axis: str = DEFAULT_AXIS
    """What is judged: the name of a criterion. A rating of -1 says that the step fails it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledSolution:
    """A solution whose steps carry judgements: `judgements[i]` are those of step i, possibly none."""

    solution: Solution
    judgements: tuple[tuple[Judgement, ...], ...]
    root: tuple[Judgement, ...] = ()
    """Of the problem alone, before any step: what rollouts from there came to. Each is of the kind `value`."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of its judgements, in the order of their first appearance."""
        steps = (self.root, *self.judgements)
        return tuple(dict.fromkeys(judgement.axis for step in steps for judgement in step))

    def on_axis(self, axis: str) -> LabelledSolution:
        """The solution with the judgements on one axis alone."""
        if self.axes in ((), (axis,)):
            return self
        root, *judgements = (
            tuple(judgement for judgement in step if judgement.axis == axis)
            for step in (self.root, *self.judgements)
        )
        return replace(self, judgements=tuple(judgements), root=root)

    @property
    def labels(self) -> tuple[str, ...]:
        """The judgements of each step in words: "right", "3 of 4" (rollouts), "tested: wrong" (on an axis), several with commas between them; ""
        for none."""
        return tuple(", ".join(map(_words, step)) for step in self.judgements)

    def to_dict(self) -> dict[str, Any]:
        """The solution's row, and the labels in words; plain data."""
        return {**record_row(self.solution), "labels": list(self.labels)}

    def _repr_html_(self) -> str:
        from stepmark.report.html import steps_fragment

        return steps_fragment(
            self.solution.texts,
            problem=self.solution.problem.text,
            headline=amount(sum(map(len, self.judgements)), "judgement"),
            notes=self.labels,
        )


def _words(judgement: Judgement) -> str:
    if judgement.axis != DEFAULT_AXIS:
        return f"{judgement.axis}: {_words(replace(judgement, axis=DEFAULT_AXIS))}"
    if judgement.rating is not None:
        return {-1: "wrong", 0: "neutral", 1: "right"}[judgement.rating]
    if judgement.trials is not None:
        return f"{judgement.successes} of {judgement.trials}"
    if judgement.share is not None:
        return f"share {judgement.share:g}"
    return "unrated"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepScores:
    """What a PRM says of one solution: one entry a step, in order."""

    scores: tuple[float | None, ...]
    """In the range of `kind`. None only for a step that was not read: cut off by `truncate`, not the last step
    when an outcome reward model reads, or past the error at which a critique stopped."""
    kind: ScoreKind
    classes: tuple[tuple[float, ...] | None, ...] | None = None
    """Probabilities a step, in the order of `class_names`: of the classes of a PRM of three classes, which sum to 1, or of the labels of a
    PRM of several labels, each by itself."""
    class_names: tuple[str, ...] | None = None
    """("negative", "neutral", "positive"), or the labels."""
    critiques: tuple[tuple[str, ...], ...] | None = None
    """What a generative PRM wrote for each step: the evidence for its score."""
    problem_tokens: int | None = None
    """Tokens that the PRM read before the first step: its template and the problem, which candidates share. None
    when the PRM does not tell."""
    solution_tokens: int | None = None
    """Tokens that it read of the steps."""
    step_tokens: tuple[int, ...] | None = None
    """Tokens that each step adds to the prefix before it, up to where its score is read; 0 for a step that was not read. None
    when the PRM does not tell."""


CheckName = Literal["equation", "unit", "algebra", "answer"]
"""An exact check of a solution (`stepmark.check`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A step that a check proves to be wrong."""

    step: int
    """The step, counted from 0."""
    check: CheckName
    """The check that found it."""
    written: str
    """What the step says, as it is written: "60 * 2.5 = 120"."""
    right: str
    """What is right: "it is 150"."""
    start: int
    end: int
    """Where: `steps[step][start:end]`, in characters."""

    def __str__(self) -> str:
        """What was written and what is right, on one line."""
        return f"{' '.join(self.written.split())}: {self.right}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedStep:
    """A step of a graded solution."""

    number: int
    """Its place as people count, from 1."""
    text: str
    """What was graded."""
    score: float | None
    """None for a step that was not read."""
    findings: tuple[Finding, ...] = ()
    """What exact checks prove to be wrong in it."""
    critiques: tuple[str, ...] = ()
    """What a generative PRM wrote of it."""
    classes: Mapping[str, float] = field(default_factory=dict)
    """The probability of each class or label by its name, for PRMs that have several (`StepScores.classes`)."""

    @property
    def refuted(self) -> bool:
        """Whether an exact check proves that it is wrong."""
        return bool(self.findings)


_SHOWN = 12
"""Steps of a graded solution whose text shows them all."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class GradedSolution:
    """A graded solution: step scores, one number for the whole, the first error. `len` counts its steps, and it iterates over them."""

    solution: Solution
    step_scores: StepScores
    """What the PRM gave for the steps."""
    score: float | None
    """The aggregate of the step scores. None when a step has none."""
    aggregate: str
    """How `score` was made from the steps: "product", "min", …"""
    first_error: int | None
    """0-based index of the first step that is under the threshold or that a check proves to be wrong; -1 when there is none; None when
    that cannot be known (a step without a score before any error, or a score kind without a threshold)."""
    threshold: float | None
    """A step strictly under it counts as an error; None when none applies."""
    prm: str
    """The PRM's name."""
    outcome: float | None = None
    """One verdict on the whole solution by an outcome reward model, where one was asked."""
    outcome_model: str | None = None
    """That model's name."""
    index: int | None = None
    """Its place among the solutions that were given together, 0-based; None where it was graded alone."""
    findings: tuple[Finding, ...] | None = None
    """What exact checks prove to be wrong, in the order of the text; None where no check ran. They change `first_error` and no score, and
    a solution with a finding is ranked last."""

    @property
    def steps(self) -> tuple[GradedStep, ...]:
        """The steps, each with its text, score and findings."""
        critiques = self.step_scores.critiques or ((),) * len(self.scores)
        classes = self.step_scores.classes or (None,) * len(self.scores)
        names = self.step_scores.class_names or ()
        by_step: dict[int, list[Finding]] = {}
        for finding in self.findings or ():
            by_step.setdefault(finding.step, []).append(finding)
        return tuple(
            GradedStep(
                number=at + 1,
                text=text,
                score=score,
                findings=tuple(by_step.get(at, ())),
                critiques=critique,
                classes=dict(zip(names, shares or (), strict=False)),
            )
            for at, (text, score, critique, shares) in enumerate(
                zip(self.solution.texts, self.scores, critiques, classes, strict=True)
            )
        )

    @property
    def scores(self) -> tuple[float | None, ...]:
        """The scores of the steps, in order; None for a step that was not read."""
        return self.step_scores.scores

    @property
    def score_kind(self) -> ScoreKind:
        """What a step score is."""
        return self.step_scores.kind

    @property
    def problem(self) -> Problem:
        """The problem that it solves."""
        return self.solution.problem

    @property
    def id(self) -> str | None:
        """The caller's name for the solution."""
        return self.solution.id

    @property
    def text(self) -> str:
        """The whole solution as one text."""
        return self.solution.text

    @property
    def refuted(self) -> bool:
        """Whether an exact check proves that a step is wrong."""
        return bool(self.findings)

    @property
    def first_error_step(self) -> int | None:
        """The number of the first error's step as people count, from 1; None when there is none, or it is not known."""
        return step_number(self.first_error)

    @property
    def first_error_by(self) -> Literal["score", "check"] | None:
        """What found the first error: "score" (under the threshold) or "check" (a finding alone); None where there is no first error."""
        if self.first_error is None or self.first_error < 0:
            return None
        score = self.scores[self.first_error]
        if self.threshold is not None and score is not None and score < self.threshold:
            return "score"
        return (
            "check" if any(finding.step == self.first_error for finding in self.findings or ()) else "score"
        )

    def finding_lines(self) -> dict[int, tuple[str, ...]]:
        """The findings in words, by the step that they are about: {1: ("60 * 2.5 = 120: it is 150",)}."""
        return {step.number - 1: tuple(map(str, step.findings)) for step in self.steps if step.findings}

    def to_dict(self) -> dict[str, Any]:
        """The row that `stepmark grade` writes for it: problem, steps, scores, score, first error; plain data."""
        return record_row(self)

    def show(self, title: str | None = None) -> None:
        """Print the problem and every step with its score, in colour on a terminal.

        Args:
            title: what stands before the score where the solution has no `id`.
        """
        from rich.console import Console

        Console().print(self._lines(title))

    def _lines(self, title: str | None = None) -> RenderableType:
        from stepmark.report.terminal import solution_lines

        return solution_lines(
            self.problem.text,
            self.solution.texts,
            self.scores,
            kind=self.score_kind,
            first_error=self.first_error,
            threshold=self.threshold,
            headline=self._headline(),
            outcome=None
            if self.outcome_model is None
            else f"outcome {'not read' if self.outcome is None else number(self.outcome)}",
            title=self.id or title,
            findings=self.finding_lines(),
        )

    def __len__(self) -> int:
        return len(self.solution.steps)

    def __iter__(self) -> Iterator[GradedStep]:
        return iter(self.steps)

    def __getitem__(self, index: int) -> GradedStep:
        return self.steps[index]

    def __str__(self) -> str:
        """One line for the whole, and one a step; of a long solution the first and last steps and those that are wrong."""
        lines = [f"{self._headline()} · {first_error_words(self.first_error)}"]
        count, before = len(self), 0
        width = len(str(count))
        for step in self.steps:
            is_wrong = step.number - 1 == self.first_error or step.refuted
            if count > _SHOWN and 5 < step.number <= count - 2 and not is_wrong:
                continue
            if step.number > before + 1:
                lines.append(f"{'':>{width}}  … {amount(step.number - before - 1, 'more step')}")
            before = step.number
            score = "not read" if step.score is None else number(step.score)
            mark = " ✗" if is_wrong else ""
            lines.append(f"{step.number:>{width}}  {score:>8}{mark}  {shortened(step.text)}")
            lines += [f"{'':>{width}}            {finding}" for finding in step.findings]
        return "\n".join(lines)

    def __repr__(self) -> str:
        name = "" if self.id is None else f"id={self.id!r}, "
        scores = ", ".join("None" if score is None else number(score) for score in self.scores)
        total = None if self.score is None else float(number(self.score))
        return (
            f"GradedSolution({name}score={total}, first_error_step={self.first_error_step}, scores=({scores}), "
            f"prm={self.prm!r})"
        )

    if not TYPE_CHECKING:  # a checker of types knows the attributes that there are

        def __getattr__(self, name: str) -> Any:
            from difflib import get_close_matches

            names = [known for known in dir(type(self)) if not known.startswith("_")]
            near = [] if name.startswith("_") else get_close_matches(name, names, n=1, cutoff=0.75)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(names)}"
            raise AttributeError(f"a graded solution has no attribute {name!r}{hint}")

    def _headline(self) -> str:
        return f"{self.aggregate} {ABSENT if self.score is None else number(self.score)}"

    def _repr_html_(self) -> str:
        from stepmark.report.html import solution_fragment

        return solution_fragment(
            problem=self.problem.text,
            steps=self.solution.texts,
            scores=self.scores,
            kind=self.score_kind,
            first_error=self.first_error,
            threshold=self.threshold,
            outcome=None if self.outcome is None else f"{self.outcome_model or 'outcome'} {self.outcome:.3f}",
            headline=self._headline(),
            findings=self.finding_lines(),
        )


def step_number(first_error: int | None) -> int | None:
    """The number, from 1, of the step that a `first_error` counts from 0; None where it is -1 (none) or None (not known)."""
    return None if first_error is None or first_error < 0 else first_error + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a verifier says of one answer against the reference answer."""

    outcome: Literal["match", "mismatch", "unparsed"]
    """`unparsed`: no verdict could be reached (no answer found, not understood, or the check was stopped). It is
    neither right nor wrong, and `note` says why."""
    verifier: str
    """The verifier's name: "math", "number", …"""
    answer: str | None = None
    """The answer that was compared, as it stood in the text; None when there was none."""
    note: str | None = None
    """The rule that decided, or what stood in the way."""

    @property
    def correct(self) -> bool | None:
        """True for a match, False for a mismatch, None where there is no verdict."""
        return None if self.outcome == "unparsed" else self.outcome == "match"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A solution that could not be graded, kept beside those that could."""

    solution: Solution | None
    """None when the row could not even be read as a solution."""
    error: InputError


Record = Problem | Solution | SampledSolution | LabelledSolution | GradedSolution
"""The records that stand in files and in lists of rows."""

Read = TypeVar("Read")


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(type_: type[Any], lenient: bool) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter, with_config

    if type_ not in _ADAPTERS:
        config = ConfigDict(extra="ignore" if lenient else "forbid", strict=True)
        _ADAPTERS[type_] = TypeAdapter(with_config(config)(type_))
    return _ADAPTERS[type_]


def read_record(
    type_: type[Read], data: Mapping[str, Any], *, where: str | None = None, lenient: bool = False
) -> Read:
    """Read a record strictly from plain data (as JSON gives it); `lenient`: fields that it does not have are passed over.

    Raises:
        InputError: a field is missing, has a wrong type, or is unknown; the error names it.
    """
    from pydantic import ValidationError

    try:
        # Through JSON: strict mode then takes a list for a tuple field and still refuses "3" for 3.
        record: Read = _adapter(type_, lenient).validate_json(json.dumps(data))
        return record
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        result = f", found {first.get('input')!r}"
        if first["type"] == "value_error":  # the record's own check, which says what it found
            result = ""
        message = first["msg"].removeprefix("Value error, ") + result
        raise InputError(f"{type_.__name__}: {message}", where=where, field=path or None) from None


def read_findings(data: Any, steps: int) -> tuple[Finding, ...]:
    """The findings of a solution of so many steps, from plain data.

    Raises:
        InputError: anything else than a list of findings, or a finding about a step that is not there.
    """
    if not isinstance(data, list):
        raise InputError(f"expected a list of findings, found {data!r:.80}", field="findings")
    findings = tuple(read_record(Finding, finding) for finding in data)
    for finding in findings:
        if not 0 <= finding.step < steps:
            raise InputError(f"expected a step from 0 to {steps - 1}, found {finding.step}", field="findings")
    return findings


def to_data(record: Any) -> dict[str, Any]:
    """A record as plain data, ready for JSON; `read_record` reads it back."""
    return asdict(record)


def compact(record: Any) -> Any:
    """A record as plain data, without the fields that have their default."""
    if isinstance(record, tuple):
        return [compact(item) for item in record]
    if not is_dataclass(record):
        return record
    values = [(own, getattr(record, own.name)) for own in fields(record)]
    return {
        own.name: compact(value) for own, value in values if own.default is MISSING or value != own.default
    }


def record_row(record: Record) -> dict[str, Any]:
    """A record as the row that files hold: of problems, of solutions, of `stepmark sample`, of `stepmark-labels`, of `stepmark grade`."""
    if isinstance(record, LabelledSolution):
        row: dict[str, Any] = compact(record)
        return row
    if isinstance(record, GradedSolution):
        return {**record_row(record.solution), **scored_keys(record)}
    if isinstance(record, SampledSolution):
        facts = {name: getattr(record, name) for name in SAMPLE_FACTS}
        return {
            "problem": record.problem.text,
            "solution": record.text,
            "answer": record.problem.answer,
            "id": record.id,
            "source": record.source,
            "meta": {**record.meta, **facts},
        }
    if isinstance(record, Problem):
        fields: dict[str, Any] = {
            "problem": record.text,
            "answer": record.answer,
            "id": record.id,
            "source": record.source,
        }
    else:
        problem = record.problem
        fields = {
            "problem": problem.text,
            "steps": list(record.texts),
            "answer": problem.answer,
            "id": record.id,
            "source": record.source,
            "problem_id": problem.id,
            "problem_source": problem.source,
        }
    return {key: value for key, value in fields.items() if value is not None}


SAMPLE_FACTS = ("outcome", "tokens", "finish", "logprob", "note")
"""Fields of a `SampledSolution` that stand in `meta` of its row."""


def scored_keys(scored: GradedSolution) -> dict[str, Any]:
    """What grading adds to a row.

    Always `scores`, `score`, `aggregate`, `first_error`, `first_error_step`, `threshold`, `prm`, `score_kind`; where there are any,
    `classes` with `class_names`, `critiques`, `outcome` with `outcome_model`; where checks ran, `findings` and `first_error_by`.
    """
    steps = scored.step_scores
    keys: dict[str, Any] = {
        "scores": list(steps.scores),
        "score": scored.score,
        "aggregate": scored.aggregate,
        "first_error": scored.first_error,
        "first_error_step": scored.first_error_step,
        "threshold": scored.threshold,
        "prm": scored.prm,
        "score_kind": steps.kind,
    }
    if steps.classes is not None:
        keys["classes"] = [None if row is None else list(row) for row in steps.classes]
        keys["class_names"] = None if steps.class_names is None else list(steps.class_names)
    if steps.critiques is not None:
        keys["critiques"] = [list(written) for written in steps.critiques]
    if scored.outcome_model is not None:
        keys |= {"outcome": scored.outcome, "outcome_model": scored.outcome_model}
    if scored.findings is not None:
        keys |= {
            "findings": [asdict(finding) for finding in scored.findings],
            "first_error_by": scored.first_error_by,
        }
    return keys
