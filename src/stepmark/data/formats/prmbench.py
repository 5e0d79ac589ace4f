"""PRMBench (Song et al. 2025) says of every step whether it is wrong (`error_steps`, 1-based); it is read only.

The numbers of its steps ("3. ", "Step 3. ") are layout. An error step past the last says nothing, as in the benchmark's own loader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stepmark.data.formats import rows
from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row
from stepmark.data.solutions import text_of, texts_of
from stepmark.records import LabelledSolution, Problem, Solution, Step

ABOUT = "PRMBench: every wrong step"

KEYS = ("idx", "classification", "modified_question", "modified_process", "error_steps")
sniff = rows.has(*KEYS)
_NUMBER = re.compile(r"(step\s*)?\d+\.(?!\d)\s*", re.IGNORECASE)


def read(row: Row, _settings: rows.ReaderSettings, counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One row of PRMBench; the id is CLASSIFICATION_IDX."""
    rows.need(row, KEYS, "PRMBench")
    steps = tuple(unnumbered(text) for text in texts_of(row.data, "modified_process", row.where))
    labelled = prmbench_labelled(row, steps)
    columns, known = rows.other_columns(row, KEYS), row.data["classification"]
    meta = rows.origin(row, "prmbench", columns, classification=known)
    yield rows.LabelledRow(labelled=labelled, where=row.where, meta=meta)


def prmbench_labelled(row: Row, steps: tuple[Step, ...]) -> LabelledSolution:
    """What a row of PRMBench says of its steps (those of `modified_process`), every one of which is judged."""
    wrong = row.data["error_steps"]
    if not isinstance(wrong, list):
        raise row.error(f"expected a list of 1-based step numbers, found {json_type(wrong)}", "error_steps")
    for number in wrong:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise row.error(f"expected 1-based step numbers, found {number!r}", "error_steps")
    kind, index = text_of(row.data, "classification", row.where), text_of(row.data, "idx", row.where)
    problem = Problem(text=text_of(row.data, "modified_question", row.where), id=index, source="PRMBench")
    return LabelledSolution(
        solution=Solution(problem=problem, steps=steps, id=f"{kind}_{index}"),
        judgements=rows.signed((n not in wrong for n in range(1, len(steps) + 1)), "PRMBench", "correctness"),
    )


def unnumbered(step: str) -> Step:
    """A step of PRMBench. White space around it and its number ("3. ", "Step 3. ") are layout, as in the benchmark's own script, which also
    takes "3." off the decimal 3.5 and leaves nothing of a step that is a number alone: those stay.
    """
    text = step.strip()
    number = _NUMBER.match(text)
    begin = number.end() if number and number.end() < len(text) else 0
    at = step.find(text)
    return Step(text=text[begin:], lead=step[: at + begin], tail=step[at + len(text) :])
