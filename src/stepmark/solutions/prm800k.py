"""PRM800K phase 1 as labelled solutions: one rated completion a row.

Source: Lightman et al. 2023, "Let's verify step by step"; the rows are the flat layout with `instruction`,
`responses` (the chosen steps before), `next_response` and `rating` (-1, 0, 1, or null where the step was
written by a person and not rated).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step, read_record
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
