"""PRM800K in the flat layout of third parties: one row a rated completion, a solution of which only the last step is judged.

It has no place for who judged or where a row comes from. Its `answer` is the completion's own final answer, which the raw text holds after "# Answer".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from stepmark.data.formats import rows
from stepmark.data.reading import Row
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step, read_record

ABOUT = "PRM800K, one row a rated completion"

KEYS = ("instruction", "responses", "next_response", "rating")
sniff = rows.has(*KEYS)
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
    fields = {name: row.data[name] for name in _NAMES if name in row.data}
    rated = read_record(RatedCompletion, fields, where=row.where)
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


def read(row: Row, _settings: rows.ReaderSettings, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One row of the flat layout."""
    rows.need(row, KEYS, "PRM800K in the flat layout")
    rated, judged = _rated(row), None
    last = rated.next_response if rated.answer is None else rated.next_response + HEADING + rated.answer
    if rated.is_human_response:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating or 1, note=rows.WRITTEN)
    elif rated.rating is not None:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating)
    flags = {"solution": rated.is_solution, "preferred": rated.is_preferred_response}
    flags = {name: flag for name, flag in flags.items() if flag}
    yield rows.LabelledRow(
        labelled=_labelled(rated, last, row.place, judged),
        where=row.where,
        meta=rows.origin(row, "prm800k-flat", rows.other_columns(row, _NAMES), prm800k=flags),
    )


def write(row: rows.LabelledRow, settings: rows.Writing) -> Iterator[dict[str, Any]]:
    """A row for each judged step."""
    labels = rows.labels_of(row, settings, shares=False)
    texts = list(row.solution.texts)
    fields = row.meta.get("prm800k")
    facts: dict[str, Any] | None = fields if isinstance(fields, dict) else None
    judged = [
        (step, label) for step, label in enumerate(labels) if label is not None and step >= row.repeated
    ]
    if not judged:
        raise rows.NotRepresentableError(
            "no step is judged, and a row of PRM800K's flat layout is a judgement"
        )
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


def _preferred(step: int, last: bool, label: Judgement, facts: dict[str, Any] | None) -> bool:
    """Whether a completion was chosen: as the source says, else as the labels do."""
    chosen = None if facts is None else facts.get("chosen")
    if isinstance(chosen, list):
        return step < len(chosen) and (chosen[step] is not None or label.note == rows.WRITTEN)
    if not last:
        return True
    return label.rating != -1 if facts is None else bool(facts.get("preferred"))
