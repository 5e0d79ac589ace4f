"""PRM800K in the flat layout: one row a rated completion, as third parties publish it.

Keys: `instruction`, `responses` (the chosen steps before), `next_response`, `answer` (the completion's own final answer, which
the raw text holds after "# Answer"), `is_human_response`, `is_solution`, `is_preferred_response`, `rating` (-1, 0, 1; null for
a step that the labeller wrote, and for one that nobody rated).

Read, a row is a solution of which only the last step is judged. Written, each judgement of a solution is a row, those that
another row repeats left out; the layout has no place for who judged or where a row comes from, and no null rating is
written but for steps that people wrote.

PRM800K phase 1 as labelled solutions: one rated completion a row.

Source: Lightman et al. 2023, "Let's verify step by step"; the rows are the flat layout with `instruction`,
`responses` (the chosen steps before), `next_response` and `rating` (-1, 0, 1, or null where the step was
written by a person and not rated).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step, read_record
from stepmark.solutions.interchange.one_label import WRITTEN, StepLabel, three_way
from stepmark.solutions.interchange.rows import (
    LabelledRow,
    Losses,
    NotRepresentableError,
    Reading,
    Writing,
    lose_rest,
    need,
    origin,
    other_columns,
    plain_texts,
)
from stepmark.store import Row, read_rows


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


def read_prm800k(path: str | Path) -> Iterator[LabelledSolution]:
    """Each row as a solution whose last step carries the human rating; the steps before carry none.

    The steps before were chosen, not rated, in this row; their own rows rate them. Unrated is never wrong:
    a row without a rating gives a last step without a judgement.

    Raises:
        InputError: a row that is not of this layout, with file, line and field.
    """
    return map(rated_completion, read_rows(path))


def rated_completion(row: Row) -> LabelledSolution:
    """One row; see `read_prm800k`.

    Raises:
        InputError: as there.
    """
    known = {field.name: row.data[field.name] for field in fields(RatedCompletion) if field.name in row.data}
    rated = read_record(RatedCompletion, known, where=row.where)
    texts = (*rated.responses, rated.next_response)
    if not rated.instruction.strip() or not all(text.strip() for text in texts):
        raise InputError("an empty problem or step", where=row.where)
    judged = (
        ()
        if rated.rating is None
        else (Judgement(kind="correctness", judge="human", rating=rated.rating, note="PRM800K phase 1"),)
    )
    return LabelledSolution(
        solution=Solution(
            # Without `answer`: that is this completion's own final answer, wrong as often as not.
            problem=Problem(text=rated.instruction, source="PRM800K"),
            steps=tuple(Step(text=text) for text in texts),
            id=row.where,
        ),
        judgements=(*((),) * len(rated.responses), judged),
    )


KEYS = ("instruction", "responses", "next_response", "rating")
JUDGE = "human"
HEADING = "\n\n# Answer\n\n"
"""What stands between the last step and its final answer in PRM800K."""


def read(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One row.

    Raises:
        InputError: with `FILE:LINE`: another layout, a blank problem or step.
    """
    need(row, KEYS, "PRM800K in the flat layout")
    names = [field.name for field in fields(RatedCompletion)]
    known = {name: row.data[name] for name in names if name in row.data}
    rated = read_record(RatedCompletion, known, where=row.where)
    last = rated.next_response if rated.answer is None else rated.next_response + HEADING + rated.answer
    texts = (*rated.responses, last)
    if not rated.instruction.strip() or not all(text.strip() for text in texts):
        raise InputError("an empty problem or step", where=row.where)
    judged: tuple[Judgement, ...] = ()
    if rated.is_human_response:
        judged = (Judgement(kind="correctness", judge=JUDGE, rating=rated.rating or 1, note=WRITTEN),)
    elif rated.rating is not None:
        judged = (Judgement(kind="correctness", judge=JUDGE, rating=rated.rating),)
    flags = {
        name: True
        for name, said in (("solution", rated.is_solution), ("preferred", rated.is_preferred_response))
        if said
    }
    yield LabelledRow(
        labelled=LabelledSolution(
            solution=Solution(
                problem=Problem(text=rated.instruction, source="PRM800K"),
                steps=tuple(Step(text=text) for text in texts),
                id=row.place,
            ),
            judgements=(*((),) * len(rated.responses), judged),
        ),
        where=row.where,
        meta=origin(row, "prm800k-flat", other_columns(row, names), None, prm800k=flags),
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
    judged = [step for step in range(row.repeated, len(labels)) if labels[step] is not None]
    if not judged:
        raise NotRepresentableError("no step is judged, and a row of PRM800K's flat layout is a judgement")
    losses.lose("the layout has no place for who judged", row.where, len(judged))
    lose_rest(row, losses, "PRM800K's flat layout", held=(), facts=("prm800k",))
    for step in judged:
        label = labels[step]
        assert label is not None
        last = step == len(texts) - 1
        written = label.note == WRITTEN
        text, heading, answer = texts[step].partition(HEADING)
        if not heading or not text.strip() or HEADING in answer:
            text, answer_or_none = texts[step], None
        else:
            answer_or_none = answer
        preferred = _preferred(step, last, label, facts)
        solution = (
            last
            and facts is not None
            and (bool(facts.get("solution")) or (preferred and facts.get("finish_reason") == "solution"))
        )
        yield {
            "instruction": row.solution.problem.text,
            "responses": texts[:step],
            "next_response": text,
            "answer": answer_or_none,
            "is_human_response": written,
            "is_solution": solution,
            "is_preferred_response": preferred,
            "rating": None if written else label.rating,
        }


def _preferred(step: int, last: bool, label: StepLabel, facts: dict[str, Any] | None) -> bool:
    """Whether a completion was chosen: as the source says, else as the labels do."""
    chosen = None if facts is None else facts.get("chosen")
    if isinstance(chosen, list):
        return step < len(chosen) and (chosen[step] is not None or label.note == WRITTEN)
    if not last:
        return True
    if facts is not None:
        return bool(facts.get("preferred"))
    return label.rating != -1
