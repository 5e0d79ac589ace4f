"""PRM800K (Lightman et al. 2023): its released records, with branches.

A record is one person's walk through one problem. At each step completions were rated; one was chosen, or the labeller wrote the next step, or
the walk ended. Read, a record becomes

- the *main* row: the chosen completions and the steps that the labeller wrote (rated right, with a note), up to the error at which the walk
  ended: where nothing was chosen or written, the first completion;
- a *branch* row for every other rated completion: the chosen steps before it, then it. `repeated` says how many judgements the main row has too.

Completions that were flagged or not rated are no branches; chosen ones stay as unjudged steps. Written, the rows that came from one record, as
long as they stand together, become that record again; any other row becomes a record of its own. Unjudged steps before the last judged one have
the rating null; what follows stands in `question.pre_generated_steps` alone, as phase 2 has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, Literal

from stepmark.data.formats import rows
from stepmark.data.reading import Row
from stepmark.errors import InputError
from stepmark.records import Judgement, Problem, Refusal, Solution, Step, read_record
from stepmark.words import indices

ABOUT = "PRM800K's released records, with branches"

KEYS = ("labeler", "question", "label")
sniff = rows.has(*KEYS)
FLAGS = ("is_quality_control_question", "is_initial_screening_question")
FINISHES = ("found_error", "solution", "bad_problem", "give_up")


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedStep:
    """A step that was offered or written, as its authors name the fields."""

    text: str
    rating: Literal[-1, 0, 1] | None = None
    flagged: bool | None = None
    source: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RatedStep:
    """What was offered at one step, and what was taken."""

    completions: tuple[OfferedStep, ...] | None = None
    human_completion: OfferedStep | None = None
    chosen_completion: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """The label of a record."""

    steps: tuple[RatedStep, ...]
    total_time: int | float | None = None
    """Milliseconds."""
    finish_reason: Literal["found_error", "solution", "bad_problem", "give_up"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The problem of a record; the last three fields in phase 2 only."""

    problem: str
    ground_truth_answer: str | None = None
    ground_truth_solution: str | None = None
    pre_generated_steps: tuple[str, ...] | None = None
    pre_generated_answer: str | None = None
    pre_generated_verifier_score: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRecord:
    """One line of the released files."""

    labeler: str
    timestamp: str | None = None
    generation: int | None = None
    is_quality_control_question: bool = False
    is_initial_screening_question: bool = False
    question: Question
    label: Walk


_Fields = Mapping[str, "_Fields | None"]


def _names(cls: type, **inner: _Fields) -> _Fields:
    return {field.name: inner.get(field.name) for field in fields(cls)}


_FIELDS = _names(
    RawRecord,
    question=_names(Question),
    label=_names(
        Walk,
        steps=_names(RatedStep, completions=_names(OfferedStep), human_completion=_names(OfferedStep)),
    ),
)
"""What is read of a record; phase 1 has other fields too (`corrected_rating`)."""


def _known(
    value: Any, names: _Fields | None, rest: Collection[str], counts: rows.Counts, at: str = ""
) -> Any:
    """A value without the fields that are not read, which are counted; those in `rest` are taken care of."""
    if names is None or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [_known(entry, names, (), counts, at) for entry in value]
    counts.passed.update(f"{at}{name}" for name in value if name not in names and name not in (*rest, "meta"))
    return {
        name: _known(inner, names[name], (), counts, f"{at}{name}.")
        for name, inner in value.items()
        if name in names
    }


IN_META = (
    "ground_truth_solution",
    "pre_generated_steps",
    "pre_generated_answer",
    "pre_generated_verifier_score",
)


def read(row: Row, settings: rows.ReaderSettings, counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One record: its branches in order, then its main row. Ids are NAME:LINE, and NAME:LINE/STEP.COMPLETION of a branch."""
    rows.need(row, KEYS, "PRM800K")
    names = [field.name for field in fields(RawRecord)]
    rest = rows.other_columns(row, names)
    record = read_record(RawRecord, _known({**row.data}, _FIELDS, rest, counts), where=row.where)
    if reason := _left_out(record, settings):
        counts.drop(reason, row.where)
        return
    if not record.question.problem.strip():
        raise row.error("expected a text, found a blank one", "question.problem")
    judge = f"human:{record.labeler}"
    problem = Problem(
        text=record.question.problem, answer=record.question.ground_truth_answer, source="PRM800K"
    )
    texts: list[str] = []
    judgements: list[tuple[Judgement, ...]] = []
    choices: list[int | None] = []

    def labelled(
        id_: str, facts: dict[str, Any], *last: tuple[str, tuple[Judgement, ...]]
    ) -> rows.LabelledRow:
        """The steps so far, and the last of a branch."""
        steps = tuple(Step(text=text) for text in (*texts, *(text for text, _ in last)))
        meta = rows.origin(row, "prm800k", rest, prm800k=facts)
        solution = Solution(problem=problem, steps=steps, id=id_)
        read = rows.labelled(row, solution, (*judgements, *(judged for _, judged in last)), meta)
        return replace(read, repeated=len(texts) if last else 0)

    for number, step in enumerate(record.label.steps):
        offered, chosen = step.completions or (), step.chosen_completion
        if not offered and step.human_completion is None:
            break
        if chosen is not None and not 0 <= chosen < len(offered):
            raise row.error(
                f"expected a completion's index, {indices(len(offered))}; found {chosen}"
                if offered
                else f"expected null, for there is no completion; found {chosen}",
                f"label.steps.{number}.chosen_completion",
            )
        ends = chosen is None and step.human_completion is None
        main = 0 if ends else chosen
        for at, completion in enumerate(offered):
            judged = _judged(completion, judge)
            if at != main and judged and completion.text.strip():
                facts = {"branch": [number, at]}
                yield labelled(f"{row.place}/{number}.{at}", facts, (completion.text, judged))
        if main is None:
            accepted = step.human_completion
            judged = (Judgement(kind="correctness", judge=judge, rating=1, note=rows.WRITTEN),)
        else:
            accepted = offered[main]
            judged = _judged(accepted, judge)
        assert accepted is not None
        if ends and not judged:
            break
        if not accepted.text.strip():
            raise row.error(
                "expected a text in the step that was taken, found a blank one", f"label.steps.{number}"
            )
        texts.append(accepted.text)
        judgements.append(judged)
        choices.append(chosen)
        if ends:
            break
    if texts:
        yield labelled(row.place, _facts(record, choices))


def _left_out(record: RawRecord, settings: rows.ReaderSettings) -> str | None:
    if record.label.finish_reason == "bad_problem":
        return "the labeller marked the problem as bad"
    if settings.quality_control:
        return None
    if record.is_initial_screening_question:
        return "a screening question, served to every labeller (kept with `quality_control`)"
    if record.is_quality_control_question:
        return "a quality-control question, served to every labeller (kept with `quality_control`)"
    return None


def _judged(completion: OfferedStep, judge: str) -> tuple[Judgement, ...]:
    if completion.rating is None or completion.flagged:
        return ()
    return (Judgement(kind="correctness", judge=judge, rating=completion.rating),)


def _facts(record: RawRecord, chosen: list[int | None]) -> dict[str, Any]:
    steps = record.question.pre_generated_steps
    facts: dict[str, Any] = {
        "chosen": chosen,
        "timestamp": record.timestamp,
        "generation": record.generation,
        "total_time": record.label.total_time,
        "finish_reason": record.label.finish_reason,
        **{name: getattr(record, name) or None for name in FLAGS},
        **{name: getattr(record.question, name) for name in IN_META},
        "pre_generated_steps": None if steps is None else list(steps),
    }
    return {name: value for name, value in facts.items() if value is not None}


def write_all(
    items: Iterable[rows.Item], settings: rows.Writing, counts: rows.Counts
) -> Iterator[dict[str, Any] | InputError]:
    """Records, each as soon as the next row is of another one; a row in which no step is judged is left out."""
    for _, together in groupby(items, _source):
        group = list(together)
        labelled = [item for item in group if isinstance(item, rows.LabelledRow)]
        yield from (item.error for item in group if isinstance(item, Refusal))
        mains = [row for row in labelled if _branch(row) is None]
        main = mains[0] if len(mains) == 1 else None
        own: list[rows.LabelledRow] = []
        branches: list[rows.LabelledRow] = []
        for row in labelled:
            if row is not main:
                (branches if main is not None and _leaves(row, main) else own).append(row)
        for row in own if main is None else [*own, main]:
            try:
                yield _record(row, branches if row is main else [], settings)
            except rows.NotRepresentableError as error:
                counts.drop(error.message, row.where)
                yield error.at(row.where)


def _source(item: rows.Item) -> object:
    """What the rows of one record share; of any other row nothing."""
    return item.origin if isinstance(item, rows.LabelledRow) and _record_facts(item) else object()


def _record_facts(row: rows.LabelledRow) -> dict[str, Any]:
    facts = row.meta.get("prm800k")
    return facts if row.meta.get("format") == "prm800k" and isinstance(facts, dict) else {}


def _branch(row: rows.LabelledRow) -> tuple[int, int] | None:
    """Which step and which completion of its record a row is."""
    match _record_facts(row).get("branch"):
        case [int() as step, int() as at] if step == len(row.solution.steps) - 1:
            return step, at
    return None


def _leaves(row: rows.LabelledRow, main: rows.LabelledRow) -> bool:
    """Whether a row is a branch of the main row."""
    branch, texts = _branch(row), main.solution.texts
    return branch is not None and branch[0] < len(texts) and row.solution.texts[:-1] == texts[: branch[0]]


def _record(
    main: rows.LabelledRow, branches: Sequence[rows.LabelledRow], settings: rows.Writing
) -> dict[str, Any]:
    labels = rows.labels_of(main, settings, shares=False)
    texts = list(main.solution.texts)
    facts = _record_facts(main)
    if all(label is None for label in labels):
        raise rows.NotRepresentableError("no step is judged, and a record of PRM800K holds ratings")
    # Unjudged steps before the last judged one stay, rated null.
    last = max(step for step, label in enumerate(labels) if label is not None)
    others: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for row in branches:
        if (branch := _branch(row)) is not None:
            rated = rows.labels_of(row, settings, shares=False)[-1]
            others.setdefault(branch[0], []).append((branch[1], _completion(row.solution.texts[-1], rated)))
    steps = [
        _step(
            _completion(texts[step], label, flagged=step in (facts.get("flagged") or ())),
            label,
            others.get(step, []),
            _choice(facts, step, last, label),
        )
        for step, label in enumerate(labels[: last + 1])
    ]
    if last + 1 < len(texts):
        facts = {"pre_generated_steps": texts, **facts}
    judge = next(label.judge for label in labels if label is not None)
    finish = facts.get("finish_reason")
    if finish not in FINISHES:
        finish = _finish(labels, last, len(texts))
    return {
        "labeler": judge.removeprefix("human:"),
        "timestamp": facts.get("timestamp"),
        "generation": facts.get("generation"),
        **{name: bool(facts.get(name)) for name in FLAGS},
        "question": {
            "problem": main.solution.problem.text,
            "ground_truth_answer": main.solution.problem.answer,
            **{name: facts[name] for name in IN_META if name in facts},
        },
        "label": {"steps": steps, "total_time": facts.get("total_time"), "finish_reason": finish},
    }


def _finish(labels: rows.Labels, last: int, steps: int) -> str | None:
    """Why the walk ended, where the labels tell: at an error, or at the end of a solution all of which is judged."""
    label = labels[last]
    if label is not None and label.rating == -1:
        return "found_error"
    whole = last + 1 == steps and all(label is not None and label.rating != -1 for label in labels)
    return "solution" if whole else None


def _choice(facts: dict[str, Any], step: int, last: int, label: Judgement | None) -> int | None:
    """The index of the completion that was chosen; None where the walk ended at it or the labeller wrote the step."""
    chosen = facts.get("chosen")
    if isinstance(chosen, list) and step < len(chosen):
        return chosen[step] if isinstance(chosen[step], int) else None
    return None if step == last and label is not None and label.rating == -1 else 0


def _step(
    completion: dict[str, Any],
    label: Judgement | None,
    others: Sequence[tuple[int, dict[str, Any]]],
    choice: int | None,
) -> dict[str, Any]:
    if label is not None and label.note == rows.WRITTEN:
        written = {"text": completion["text"], "rating": None, "source": "human", "flagged": False}
        completions = [completion for _, completion in others] or None
        return {"completions": completions, "human_completion": written, "chosen_completion": None}
    listed = sorted([*others, (choice or 0, completion)], key=lambda pair: pair[0])
    position = [number for number, _ in listed].index(choice or 0)
    return {
        "completions": [completion for _, completion in listed],
        "human_completion": None,
        "chosen_completion": None if choice is None else position,
    }


def _completion(text: str, label: Judgement | None, *, flagged: bool = False) -> dict[str, Any]:
    return {"text": text, "rating": None if label is None else label.rating, "flagged": flagged or None}
