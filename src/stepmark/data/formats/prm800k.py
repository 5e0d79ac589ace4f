"""PRM800K (Lightman et al. 2023): its released records, with branches.

A record is one person's walk through one problem. At each step completions were rated; one was chosen, or the labeller wrote the next step, or
the walk ended. Read, a record becomes

- the *main* row: the chosen completions and the steps that the labeller wrote (rated right, with a note), up to the error at which the walk
  ended: where nothing was chosen or written, the first completion;
- a *branch* row for every other rated completion: the chosen steps before it, then it. `repeated` says how many judgements the main row has too.

Completions that were flagged or not rated are no branches; chosen ones stay as unjudged steps. Written, each row is a record of its own. Unjudged
steps before the last judged one have the rating null; what follows stands in `question.pre_generated_steps` alone, as phase 2 has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from stepmark.data.formats import rows
from stepmark.data.reading import Row
from stepmark.records import Judgement, Problem, Solution, Step, read_record
from stepmark.words import indices

ABOUT = "PRM800K's released records, with branches"

KEYS = ("labeler", "question", "label")
sniff = rows.has(*KEYS)
FLAGS = ("is_quality_control_question", "is_initial_screening_question")


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


IN_META = (
    "ground_truth_solution",
    "pre_generated_steps",
    "pre_generated_answer",
    "pre_generated_verifier_score",
)


def read(row: Row, settings: rows.ReaderSettings, counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One record: its branches in order, then its main row. Ids are NAME:LINE, and NAME:LINE/STEP.COMPLETION of a branch."""
    rows.need(row, KEYS, "PRM800K")
    rest = rows.other_columns(row, [field.name for field in fields(RawRecord)])
    record = read_record(RawRecord, row.data, where=row.where, lenient=True)
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
        if ends:
            break
    if texts:
        yield labelled(row.place, _facts(record))


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


def _facts(record: RawRecord) -> dict[str, Any]:
    steps = record.question.pre_generated_steps
    facts: dict[str, Any] = {
        "timestamp": record.timestamp,
        "generation": record.generation,
        "total_time": record.label.total_time,
        "finish_reason": record.label.finish_reason,
        **{name: getattr(record, name) or None for name in FLAGS},
        **{name: getattr(record.question, name) for name in IN_META},
        "pre_generated_steps": None if steps is None else list(steps),
    }
    return {name: value for name, value in facts.items() if value is not None}


def write(row: rows.LabelledRow, settings: rows.Writing) -> Iterator[dict[str, Any]]:
    """A record of one completion a step; a row in which no step is judged is left out."""
    labels = rows.labels_of(row, settings, shares=False)
    texts = row.solution.texts
    known = row.meta.get("prm800k")
    facts: dict[str, Any] = known if isinstance(known, dict) else {}
    judged = [step for step, label in enumerate(labels) if label is not None]
    if not judged:
        raise rows.NotRepresentableError("no step is judged, and a record of PRM800K holds ratings")
    last = labels[judged[-1]]
    assert last is not None
    ends = last.rating == -1
    steps = [
        {
            "completions": [
                {"text": text, "rating": None if label is None else label.rating, "flagged": None}
            ],
            "human_completion": None,
            "chosen_completion": None if ends and step == judged[-1] else 0,
        }
        for step, (text, label) in enumerate(zip(texts, labels[: judged[-1] + 1], strict=False))
    ]
    if len(steps) < len(texts):
        facts = {"pre_generated_steps": list(texts), **facts}
    whole = len(judged) == len(texts) and all(label is not None and label.rating != -1 for label in labels)
    yield {
        "labeler": last.judge.removeprefix("human:"),
        "timestamp": facts.get("timestamp"),
        "generation": facts.get("generation"),
        **dict.fromkeys(FLAGS, False),
        "question": {
            "problem": row.solution.problem.text,
            "ground_truth_answer": row.solution.problem.answer,
            **{name: facts[name] for name in IN_META if name in facts},
        },
        "label": {
            "steps": steps,
            "total_time": facts.get("total_time"),
            "finish_reason": "found_error" if ends else "solution" if whole else None,
        },
    }
