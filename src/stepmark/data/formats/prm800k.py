"""PRM800K (Lightman et al. 2023): its released records, with branches, and the flat layout of third parties.

A record is one person's walk through one problem. At each step completions were rated; one was chosen, or the labeller wrote the next step, or
the walk ended. Read, a record becomes

- the *main* row: the chosen completions and the steps that the labeller wrote (rated right, with a note), up to the error at which the walk
  ended: where nothing was chosen or written, the first completion;
- a *branch* row for every other rated completion: the chosen steps before it, then it. `repeated` says how many judgements the main row has too.

Completions that were flagged or not rated are no branches; chosen ones stay as unjudged steps. Written, the rows that came from one record, as
long as they stand together, become that record again; any other row becomes a record of its own. Unjudged steps before the last judged one have
the rating null; what follows stands in `question.pre_generated_steps` alone, as phase 2 has it.

The flat layout has one row a rated completion, a solution of which only the last step is judged. It has no place for who judged or where a row
comes from. Its `answer` is the completion's own final answer, which the raw text holds after "# Answer".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from stepmark.data.formats import rows
from stepmark.data.formats.rows import (
    Item,
    LabelledRow,
    Labels,
    Losses,
    NotRepresentableError,
    Reading,
    StepLabel,
    Writing,
)
from stepmark.data.reading import Row
from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution, Problem, Refusal, Solution, Step, read_record
from stepmark.show.text import indices

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


def read(row: Row, settings: Reading, losses: Losses) -> Iterator[LabelledRow]:
    """One record: its branches in order, then its main row. Ids are NAME:LINE, and NAME:LINE/STEP.COMPLETION of a branch."""
    rows.need(row, KEYS, "PRM800K")
    names = [field.name for field in fields(RawRecord)]
    known = {name: row.data[name] for name in names if name in row.data}
    record = read_record(RawRecord, known, where=row.where)
    rest = rows.other_columns(row, names)
    if reason := _left_out(record, settings):
        losses.drop(reason, row.where)
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

    def made(
        texts: list[str],
        judgements: list[tuple[Judgement, ...]],
        id_: str,
        repeated: int,
        facts: dict[str, Any],
    ) -> LabelledRow:
        solution = Solution(problem=problem, steps=tuple(Step(text=text) for text in texts), id=id_)
        return LabelledRow(
            labelled=LabelledSolution(solution=solution, judgements=tuple(judgements)),
            where=row.where,
            repeated=repeated,
            meta=rows.origin(row, "prm800k", rest, None, prm800k=facts),
        )

    steps = record.label.steps
    for number, step in enumerate(steps):
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
        main = 0 if ends and offered else chosen
        for at, completion in enumerate(offered):
            if at == main:
                continue
            judged = _judged(completion, judge)
            if not completion.text.strip():
                losses.lose("a blank completion is left out", row.where)
            elif not judged:
                losses.lose("a completion that was flagged or not rated is left out", row.where)
            else:
                id_, facts = f"{row.place}/{number}.{at}", {"branch": [number, at]}
                yield made([*texts, completion.text], [*judgements, judged], id_, len(texts), facts)
        accepted = step.human_completion if main is None else offered[main]
        assert accepted is not None
        judged = _judged(accepted, judge)
        if main is None:
            judged = (Judgement(kind="correctness", judge=judge, rating=1, note=rows.WRITTEN),)
        elif step.human_completion is not None:
            losses.lose("a step that the labeller wrote and did not take is left out", row.where)
        if ends and not judged:
            losses.lose("a completion that was flagged or not rated is left out", row.where)
        elif not accepted.text.strip():
            raise row.error(
                "expected a text in the step that was taken, found a blank one", f"label.steps.{number}"
            )
        else:
            texts.append(accepted.text)
            judgements.append(judged)
            choices.append(chosen)
        if ends:
            losses.lose("steps after the end of the walk are left out", row.where, len(steps) - number - 1)
            break
    if texts:
        yield made(texts, judgements, row.place, 0, _facts(record, choices))


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


def write(items: Iterable[Item], settings: Writing, losses: Losses) -> Iterator[dict[str, Any] | InputError]:
    """Records, each as soon as the next row is of another one; a row in which no step is judged is left out."""
    group: list[LabelledRow] = []
    for item in items:
        if isinstance(item, LabelledRow) and group and _key(item) == _key(group[0]) is not None:
            group.append(item)
            continue
        yield from _records(group, settings, losses)
        group = []
        if isinstance(item, Refusal):
            yield item.error
        else:
            group = [item]
    yield from _records(group, settings, losses)


def _record_facts(row: LabelledRow) -> dict[str, Any]:
    facts = row.meta.get("prm800k")
    return facts if row.meta.get("format") == "prm800k" and isinstance(facts, dict) else {}


def _key(row: LabelledRow) -> str | None:
    return row.origin if _record_facts(row) else None


def _branch(row: LabelledRow) -> tuple[int, int] | None:
    """Which step and which completion of its record a row is."""
    branch = _record_facts(row).get("branch")
    match branch:
        case [int() as step, int() as at] if step == len(row.solution.steps) - 1:
            return step, at
    return None


def _records(
    group: list[LabelledRow], settings: Writing, losses: Losses
) -> Iterator[dict[str, Any] | InputError]:
    mains = [row for row in group if _branch(row) is None]
    main = mains[0] if len(mains) == 1 else None
    own: list[LabelledRow] = []
    branches: list[tuple[int, int, LabelledRow]] = []
    for row in group:
        at = _branch(row)
        if main is not None and at is not None and _leaves(row, main, at[0]):
            branches.append((*at, row))
        elif row is not main:
            own.append(row)
    for first, beside in (*((row, []) for row in own), *([(main, branches)] if main is not None else [])):
        try:
            yield _record(first, beside, settings, losses)
        except NotRepresentableError as error:
            losses.drop(error.message, first.where)
            yield error.at(first.where)


def _leaves(row: LabelledRow, main: LabelledRow, step: int) -> bool:
    texts = main.solution.texts
    return step < len(texts) and row.solution.texts[:step] == texts[:step]


def _record(
    main: LabelledRow, branches: list[tuple[int, int, LabelledRow]], settings: Writing, losses: Losses
) -> dict[str, Any]:
    labels = rows.three_way(main, settings, losses)
    texts = rows.plain_texts(main, losses)
    facts = _record_facts(main)
    if all(label is None for label in labels):
        raise NotRepresentableError("no step is judged, and a record of PRM800K holds ratings")
    # Unjudged steps before the last judged one stay, rated null.
    last = max(step for step, label in enumerate(labels) if label is not None)
    flagged = facts.get("flagged") or ()
    steps = []
    for step in range(last + 1):
        beside = [(at, row) for number, at, row in branches if number == step]
        others = [
            (at, _completion(row.solution.texts[-1], rows.three_way(row, settings, losses)[-1]))
            for at, row in beside
        ]
        own = _completion(texts[step], labels[step], flagged=step in flagged)
        steps.append(_step(own, labels[step], others, _choice(facts, step, last, labels[step])))
    if last + 1 < len(texts):
        losses.lose(
            "a row was cut after its first error, or after the last step that was judged; all its steps stand in "
            "question.pre_generated_steps",
            main.where,
        )
        facts = {"pre_generated_steps": texts, **facts}
    for row in (main, *(row for _, _, row in branches)):
        rows.lose_fields(
            row, losses, "PRM800K", held=("answer",), facts=("prm800k",) if _record_facts(row) else ()
        )
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


def _finish(labels: Labels, last: int, steps: int) -> str | None:
    """Why the walk ended, where the labels tell: at an error, or at the end of a solution all of which is judged."""
    label = labels[last]
    if label is not None and label.rating == -1:
        return "found_error"
    whole = last + 1 == steps and all(label is not None and label.rating != -1 for label in labels)
    return "solution" if whole else None


def _choice(facts: dict[str, Any], step: int, last: int, label: StepLabel | None) -> int | None:
    """The index of the completion that was chosen; None where the walk ended at it or the labeller wrote the step."""
    chosen = facts.get("chosen")
    if isinstance(chosen, list) and step < len(chosen):
        return chosen[step] if isinstance(chosen[step], int) else None
    return None if step == last and label is not None and label.rating == -1 else 0


def _step(
    completion: dict[str, Any],
    label: StepLabel | None,
    others: list[tuple[int, dict[str, Any]]],
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


def _completion(text: str, label: StepLabel | None, *, flagged: bool = False) -> dict[str, Any]:
    return {"text": text, "rating": None if label is None else label.rating, "flagged": flagged or None}


# --- the flat layout ------------------------------------------------------------------------------------------

FLAT_KEYS = ("instruction", "responses", "next_response", "rating")
HEADING = "\n\n# Answer\n\n"
"""What stands between the last step and its final answer in PRM800K."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatedCompletion:
    """One row of the flat layout, as its authors name the fields."""

    instruction: str
    responses: tuple[str, ...]
    next_response: str
    rating: Literal[-1, 0, 1] | None
    answer: str | None = None
    is_human_response: bool = False
    is_solution: bool = False
    is_preferred_response: bool = False


_NAMES = [field.name for field in fields(RatedCompletion)]


def _rated(row: Row) -> RatedCompletion:
    known = {name: row.data[name] for name in _NAMES if name in row.data}
    rated = read_record(RatedCompletion, known, where=row.where)
    if not all(text.strip() for text in (rated.instruction, *rated.responses, rated.next_response)):
        raise row.error("an empty problem or step")
    return rated


def _labelled(rated: RatedCompletion, last: str, id_: str, judged: Judgement | None) -> LabelledSolution:
    # Without `answer`: that is this completion's own final answer, wrong as often as not.
    problem = Problem(text=rated.instruction, source="PRM800K")
    steps = tuple(Step(text=text) for text in (*rated.responses, last))
    return LabelledSolution(
        solution=Solution(problem=problem, steps=steps, id=id_),
        judgements=((),) * len(rated.responses) + (() if judged is None else (judged,),),
    )


def rated_completion(row: Row) -> LabelledSolution:
    """A row of the flat layout as a solution whose last step carries the human rating, without the completion's final answer.

    A row without a rating has no judgement: unrated is never wrong.
    """
    rated, judged = _rated(row), None
    if rated.rating is not None:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating, note="PRM800K phase 1")
    return _labelled(rated, rated.next_response, row.where, judged)


def read_flat(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One row of the flat layout."""
    rows.need(row, FLAT_KEYS, "PRM800K in the flat layout")
    rated, judged = _rated(row), None
    last = rated.next_response if rated.answer is None else rated.next_response + HEADING + rated.answer
    if rated.is_human_response:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating or 1, note=rows.WRITTEN)
    elif rated.rating is not None:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating)
    flags = {"solution": rated.is_solution, "preferred": rated.is_preferred_response}
    flags = {name: flag for name, flag in flags.items() if flag}
    yield LabelledRow(
        labelled=_labelled(rated, last, row.place, judged),
        where=row.where,
        meta=rows.origin(row, "prm800k-flat", rows.other_columns(row, _NAMES), None, prm800k=flags),
    )


def write_flat(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A row for each judged step."""
    labels = rows.three_way(row, settings, losses)
    texts = rows.plain_texts(row, losses)
    known = row.meta.get("prm800k")
    facts: dict[str, Any] | None = known if isinstance(known, dict) else None
    judged = [
        (step, label) for step, label in enumerate(labels) if label is not None and step >= row.repeated
    ]
    if not judged:
        raise NotRepresentableError("no step is judged, and a row of PRM800K's flat layout is a judgement")
    losses.lose("the layout has no place for who judged", row.where, len(judged))
    rows.lose_fields(row, losses, "PRM800K's flat layout", held=(), facts=("prm800k",))
    for step, label in judged:
        last = step == len(texts) - 1
        text, heading, answer = texts[step].partition(HEADING)
        parted = bool(heading and text.strip() and HEADING not in answer)
        preferred = _preferred(step, last, label, facts)
        finished = preferred and facts is not None and facts.get("finish_reason") == "solution"
        yield {
            "instruction": row.solution.problem.text,
            "responses": texts[:step],
            "next_response": text if parted else texts[step],
            "answer": answer if parted else None,
            "is_human_response": label.note == rows.WRITTEN,
            "is_solution": last and facts is not None and (bool(facts.get("solution")) or finished),
            "is_preferred_response": preferred,
            "rating": None if label.note == rows.WRITTEN else label.rating,
        }


def _preferred(step: int, last: bool, label: StepLabel, facts: dict[str, Any] | None) -> bool:
    """Whether a completion was chosen: as the source says, else as the labels do."""
    chosen = None if facts is None else facts.get("chosen")
    if isinstance(chosen, list):
        return step < len(chosen) and (chosen[step] is not None or label.note == rows.WRITTEN)
    if not last:
        return True
    return label.rating != -1 if facts is None else bool(facts.get("preferred"))
