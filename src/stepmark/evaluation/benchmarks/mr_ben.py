"""MR-Ben: the first wrong step in seven subjects (Zeng et al. 2024).

A file is an object of question to its solutions. An entry of `Model_Solution_Steps` that begins with "Step N:" or "Solution:" begins a
step, and every other entry continues the one before; the number is layout. Of a program every line with text is a step, and its label is
that line's text. Where the marked step cannot be found (14 of 2,736 wrong solutions) a solution is in no figure.

The authors' MR-Score weighs MCC, ACC_step and ACC_reason. MCC and ACC_step (our error accuracy) are given; reasons need a judge."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from stepmark.data.reading import Row, Source, read_rows
from stepmark.evaluation.base import Run
from stepmark.evaluation.first_errors import FirstErrors
from stepmark.settings import settings


@settings
class MRBen(FirstErrors):
    """First-error accuracy and F1 on MR-Ben, per subject and on average, with intervals.

    The data are its files (biology.json and so on), or a folder of them.
    """

    name: ClassVar[str] = "mr-ben"
    title: ClassVar[str] = "MR-Ben"
    question: ClassVar[str] = (
        "which step is the first wrong one, in seven subjects from medicine to programs?"
    )
    paper: ClassVar[str] = "arXiv 2406.13975"
    home: ClassVar[str] = "github.com/dvlab-research/Mr-Ben"
    licence: ClassVar[str] = "MIT"
    files: ClassVar[tuple[str, ...]] = (
        "biology.json", "chemistry.json", "coding.json", "logic.json", "math.json", "medicine.json", "physics.json",
    )  # fmt: skip
    columns_of: ClassVar[Mapping[str, str]] = {
        "id": "id", "group": "subject", "policy": "Sampled_Model", "problem": "problem", "steps": "steps",
        "label": "Model_Solution_First_Error_Step",
    }  # fmt: skip
    shown: ClassVar[Mapping[str, str]] = {**FirstErrors.shown, "MCC": "mcc"}
    also: ClassVar[tuple[str, ...]] = ("mcc",)

    def rows(self, file: Source, run: Run) -> Iterator[Row]:
        """See `FirstErrors.rows`."""
        for row in read_rows(file, columns=run.columns):
            nested = all(isinstance(value, list) for value in row.data.values())
            lists = row.data.values() if nested else [[row.data]]
            for place, data in [pair for value in lists for pair in enumerate(value)]:
                if not isinstance(data, dict):
                    raise row.error(f"expected lists of solutions, found {data!r:.80}")
                id = f"{data.get('Question_UUID')}/{place if nested else data.get('Sampled_Model')}"
                yield replace(row, data=data | {"id": id} | _read(data))

    def first_of(self, row: Row, steps: int) -> int | None:
        """See `FirstErrors.first_of`."""
        marked = row.data.get(self.columns_of["label"])
        correctness = row.data.get("Model_Solution_Correctness")
        if correctness not in ("correct", "incorrect"):
            raise row.error(
                f"expected correct or incorrect, found {correctness!r:.80}", "Model_Solution_Correctness"
            )
        if correctness == "correct":
            return -1
        numbers = row.data["numbers"]
        return numbers.index(str(marked)) if str(marked).strip() and str(marked) in numbers else None


_NUMBER = re.compile(r"\s*Step\s*(\d+)\s*[:.]?\s*|\s*(?=Solution:)", re.IGNORECASE)


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as `MRBen` reads them, and `numbers`: what a label calls each step."""
    given = data.get("Model_Solution_Steps")
    if isinstance(given, str):
        texts = numbers = [line for line in given.split("\n") if line.strip()]
    else:
        texts, numbers = [], []
        for entry in given if isinstance(given, list) else []:
            begins = _NUMBER.match(str(entry))
            if begins or not texts:
                texts.append(str(entry)[begins.end() :] if begins else str(entry))
                numbers.append(str((begins and begins[1]) or len(texts)))
            elif str(entry).strip():
                texts[-1] = f"{texts[-1]}\n{entry}".strip()
    question, options = data.get("Question"), data.get("Options")
    return {
        "subject": str(data.get("Subject")).rpartition("_")[2],
        "problem": f"{question}\n{options}" if options else question,
        "steps": texts,
        "numbers": numbers,
    }
