"""PRM800K's released records (Lightman et al. 2023), with branches.

A record is one person's walk through one problem. At each step one or more completions were rated; one was chosen, or the
labeller wrote the next step, or the walk ended. Read, a record becomes

- the *main* row: the chosen completions and the steps that the labeller wrote (rated right, by a judgement whose note says
  so), up to the error at which the walk ended: where nothing was chosen or written, the first completion;
- a *branch* row for every other rated completion: the chosen steps before it, then it. The judgements of the steps before
  stand in the main row too; `repeated` says how many, so that nothing is counted twice.

Completions that were flagged or not rated are no branches; chosen ones stay as steps that nobody judged. Screening and
quality-control questions, which every labeller was served, and problems marked as bad are left out and counted. Neutral
stays neutral. What nobody rated after the error has no row; `meta` keeps the pre-generated steps.

Written, the rows that came from one record, as long as they stand together, become that record again. Any other row becomes
a record of its own: steps before the last that nobody judged have the rating null; what follows the first error unjudged is
cut from `label` and kept in `question.pre_generated_steps`, as phase 2 has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step, read_record
from stepmark.solutions.interchange.one_label import WRITTEN
from stepmark.solutions.interchange.rows import LabelledRow, Losses, Reading, need, origin, other_columns
from stepmark.store import Row

KEYS = ("labeler", "question", "label")
FLAGS = ("is_quality_control_question", "is_initial_screening_question")
FINISHES = ("found_error", "solution", "bad_problem", "give_up")


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """A step that was offered or written, as its authors name the fields."""

    text: str
    rating: Literal[-1, 0, 1] | None = None
    flagged: bool | None = None
    source: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RatedStep:
    """What was offered at one step, and what was taken."""

    completions: tuple[Completion, ...] | None = None
    human_completion: Completion | None = None
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


@dataclass(kw_only=True, slots=True)
class _Line:
    """The main line so far."""

    texts: list[str]
    judged: list[tuple[Judgement, ...]]
    chosen: list[int | None]


def read(row: Row, settings: Reading, losses: Losses) -> Iterator[LabelledRow]:
    """One record: its branches in order, then its main row. Ids are NAME:LINE, and NAME:LINE/STEP.COMPLETION of a branch.

    Raises:
        InputError: with `FILE:LINE`: another shape, a choice that was not offered, a blank problem or chosen step.
    """
    need(row, KEYS, "PRM800K")
    names = [field.name for field in fields(RawRecord)]
    known = {name: row.data[name] for name in names if name in row.data}
    record = read_record(RawRecord, known, where=row.where)
    rest = other_columns(row, names)
    if reason := _left_out(record, settings):
        losses.drop(reason, row.where)
        return
    if not record.question.problem.strip():
        raise InputError("expected a text, found a blank one", where=row.where, field="question.problem")
    judge = f"human:{record.labeler}"
    problem = Problem(
        text=record.question.problem, answer=record.question.ground_truth_answer, source="PRM800K"
    )

    def made(
        texts: list[str], judged: list[tuple[Judgement, ...]], id_: str, repeated: int, facts: dict[str, Any]
    ) -> LabelledRow:
        return LabelledRow(
            labelled=LabelledSolution(
                solution=Solution(problem=problem, steps=tuple(Step(text=text) for text in texts), id=id_),
                judgements=tuple(judged),
            ),
            where=row.where,
            repeated=repeated,
            meta=origin(row, "prm800k", rest, None, prm800k=facts),
        )

    line = _Line(texts=[], judged=[], chosen=[])
    steps = record.label.steps
    for number, step in enumerate(steps):
        offered = step.completions or ()
        if not offered and step.human_completion is None:
            break
        chosen = step.chosen_completion
        if chosen is not None and not 0 <= chosen < len(offered):
            raise InputError(
                f"expected the index of one of {len(offered)} completions, found {chosen}",
                where=row.where,
                field=f"label.steps.{number}.chosen_completion",
            )
        ends = chosen is None and step.human_completion is None
        main = 0 if ends and offered else chosen
        for at, completion in enumerate(offered):
            if at == main:
                continue
            if not completion.text.strip():
                losses.lose("a blank completion is left out", row.where)
            elif completion.flagged or completion.rating is None:
                losses.lose("a completion that was flagged or not rated is left out", row.where)
            else:
                yield made(
                    [*line.texts, completion.text],
                    [*line.judged, _judged(completion, judge)],
                    f"{row.place}/{number}.{at}",
                    len(line.texts),
                    {"branch": [number, at]},
                )
        taken = step.human_completion if main is None else offered[main]
        assert taken is not None
        judged = _judged(taken, judge)
        if main is None:
            judged = (Judgement(kind="correctness", judge=judge, rating=1, note=WRITTEN),)
        elif step.human_completion is not None:
            losses.lose("a step that the labeller wrote and did not take is left out", row.where)
        if ends and not judged:
            losses.lose("a completion that was flagged or not rated is left out", row.where)
        else:
            if not taken.text.strip():
                raise InputError(
                    "expected a text in the step that was taken, found a blank one",
                    where=row.where,
                    field=f"label.steps.{number}",
                )
            line.texts.append(taken.text)
            line.judged.append(judged)
            line.chosen.append(chosen)
        if ends:
            losses.lose("steps after the end of the walk are left out", row.where, len(steps) - number - 1)
            break
    if line.texts:
        yield made(line.texts, line.judged, row.place, 0, _facts(record, line.chosen))


def _left_out(record: RawRecord, settings: Reading) -> str | None:
    if record.label.finish_reason == "bad_problem":
        return "the labeller marked the problem as bad"
    if settings.quality_control:
        return None
    if record.is_initial_screening_question:
        return "a screening question, served to every labeller (kept with `quality_control`)"
    if record.is_quality_control_question:
        return "a quality-control question, served to every labeller (kept with `quality_control`)"
    return None


def _judged(completion: Completion, judge: str) -> tuple[Judgement, ...]:
    if completion.rating is None or completion.flagged:
        return ()
    return (Judgement(kind="correctness", judge=judge, rating=completion.rating),)


def _facts(record: RawRecord, chosen: list[int | None]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "chosen": chosen,
        "timestamp": record.timestamp,
        "generation": record.generation,
        "total_time": record.label.total_time,
        "finish_reason": record.label.finish_reason,
        **{name: getattr(record, name) or None for name in FLAGS},
        **{name: getattr(record.question, name) for name in IN_META},
    }
    kept = {name: value for name, value in facts.items() if value is not None}
    if "pre_generated_steps" in kept:
        kept["pre_generated_steps"] = list(kept["pre_generated_steps"])
    return kept
