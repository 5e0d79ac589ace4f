"""PRM800K in the flat layout: one row a rated completion, as third parties publish it (Lightman et al. 2023).

Keys: `instruction`, `responses` (the chosen steps before), `next_response`, `answer` (the completion's own final answer, which
the raw text holds after "# Answer"), `is_human_response`, `is_solution`, `is_preferred_response`, `rating` (-1, 0, 1; null for
a step that the labeller wrote, and for one that was not rated).

Read, a row is a solution of which only the last step is judged. Written, each judgement of a solution is a row, those that
another row repeats left out; the layout has no place for who judged or where a row comes from, and no null rating is
written but for steps that people wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step, read_record
from stepmark.solutions.interchange.one_label import WRITTEN, StepLabel, three_way
from stepmark.solutions.interchange.rows import (
    LabelledRow,
    Losses,
    NotRepresentableError,
    Reading,
    Writing,
    lose_fields,
    need,
    origin,
    other_columns,
    plain_texts,
)
from stepmark.store import Row

KEYS = ("instruction", "responses", "next_response", "rating")
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
    """A row as a solution whose last step carries the human rating, without the completion's final answer.

    The steps before were chosen, not rated, in this row. Unrated is never wrong: a row without a rating has no judgement.

    Raises:
        InputError: a row that is not of this layout.
    """
    rated, judged = _rated(row), None
    if rated.rating is not None:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating, note="PRM800K phase 1")
    return _labelled(rated, rated.next_response, row.where, judged)


def read(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One row.

    Raises:
        InputError: another layout, a blank problem or step.
    """
    need(row, KEYS, "PRM800K in the flat layout")
    rated, judged = _rated(row), None
    last = rated.next_response if rated.answer is None else rated.next_response + HEADING + rated.answer
    if rated.is_human_response:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating or 1, note=WRITTEN)
    elif rated.rating is not None:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating)
    flags = {"solution": rated.is_solution, "preferred": rated.is_preferred_response}
    flags = {name: flag for name, flag in flags.items() if flag}
    yield LabelledRow(
        labelled=_labelled(rated, last, row.place, judged),
        where=row.where,
        meta=origin(row, "prm800k-flat", other_columns(row, _NAMES), None, prm800k=flags),
    )


def write(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A row for each judged step.

    Raises:
        InputError: as `one_label.three_way`.
        NotRepresentableError: no step is judged in this row.
    """
    labels = three_way(row, settings, losses)
    texts = plain_texts(row, losses)
    known = row.meta.get("prm800k")
    facts: dict[str, Any] | None = known if isinstance(known, dict) else None
    judged = [
        (step, label) for step, label in enumerate(labels) if label is not None and step >= row.repeated
    ]
    if not judged:
        raise NotRepresentableError("no step is judged, and a row of PRM800K's flat layout is a judgement")
    losses.lose("the layout has no place for who judged", row.where, len(judged))
    lose_fields(row, losses, "PRM800K's flat layout", held=(), facts=("prm800k",))
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
            "is_human_response": label.note == WRITTEN,
            "is_solution": last and facts is not None and (bool(facts.get("solution")) or finished),
            "is_preferred_response": preferred,
            "rating": None if label.note == WRITTEN else label.rating,
        }


def _preferred(step: int, last: bool, label: StepLabel, facts: dict[str, Any] | None) -> bool:
    """Whether a completion was chosen: as the source says, else as the labels do."""
    chosen = None if facts is None else facts.get("chosen")
    if isinstance(chosen, list):
        return step < len(chosen) and (chosen[step] is not None or label.note == WRITTEN)
    if not last:
        return True
    return label.rating != -1 if facts is None else bool(facts.get("preferred"))
