"""PRM800K in the flat layout of third parties: one row a rated completion, a solution of which only the last step is judged; it is read only.

Its `answer` is the completion's own final answer, which the raw text holds after "# Answer".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from stepmark.data.formats import rows
from stepmark.data.reading import Row
from stepmark.records import Judgement, Problem, Solution, Step, read_record

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


def read(row: Row, _settings: rows.ReaderSettings, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One row of the flat layout; one without a rating has no judgement."""
    rows.need(row, KEYS, "PRM800K in the flat layout")
    rated, judged = read_record(RatedCompletion, row.data, where=row.where, lenient=True), None
    if not all(text.strip() for text in (rated.instruction, *rated.responses, rated.next_response)):
        raise row.error("an empty problem or step")
    if rated.is_human_response:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating or 1, note=rows.WRITTEN)
    elif rated.rating is not None:
        judged = Judgement(kind="correctness", judge="human", rating=rated.rating)
    last = rated.next_response if rated.answer is None else rated.next_response + HEADING + rated.answer
    steps = tuple(Step(text=text) for text in (*rated.responses, last))
    # Without `answer`: that is this completion's own final answer, wrong as often as not.
    problem = Problem(text=rated.instruction, source="PRM800K")
    flags = {"solution": rated.is_solution, "preferred": rated.is_preferred_response}
    known = {name: flag for name, flag in flags.items() if flag}
    rest = rows.other_columns(row, [field.name for field in fields(RatedCompletion)])
    yield rows.labelled(
        row,
        Solution(problem=problem, steps=steps, id=row.place),
        ((),) * len(rated.responses) + (() if judged is None else (judged,),),
        rows.origin(row, "prm800k-flat", rest, prm800k=known),
    )
