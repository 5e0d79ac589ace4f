"""Math-Shepherd (Wang et al. 2024): `input` holds the question, then each step as "Step 1: … ки"; `label` is the same text with "+" or "-" where the
marker stands; `task` names the problem's source. "+" says that at least one rollout of an unknown number reached the answer. The last label says
whether the answer is right. The number of a step and the marker are layout.

Written rows have `meta` too (`rows.written_meta`), which the readers take back. The format has no word for a step that was not judged, so a row
is cut before its first; a text that holds the marker, and a question that holds "Step 1:", cannot be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stepmark.data.formats import rows
from stepmark.data.formats.rows import (
    Counts,
    Format,
    LabelledRow,
    NotRepresentableError,
    Reading,
    Writing,
    each,
    has,
)
from stepmark.data.reading import Row
from stepmark.data.solutions import text_of
from stepmark.records import LabelledSolution, Problem, Solution

KEYS = ("input", "label", "task")
UNKNOWN = "unknown"
"""What is written where a format wants a word that is not known; it is read as None."""
MARKER = "ки"
STEP_NUMBER = re.compile(r"\s*step\s+\d+\s*:\s*", re.I)
OWN_LAYOUT = re.compile(rf"step\s+\d+\s*:|{MARKER}", re.I)
"""What is written around steps anew."""
FIRST_STEP = re.compile(r"(?<!\S)step\s+1\s*:", re.I)
_ANSWER = re.compile(r"the answer is\s*:?\s*(\S.*)", re.I | re.S)


def read(row: Row, _settings: Reading, _counts: Counts) -> Iterator[LabelledRow]:
    """One row of Math-Shepherd."""
    rows.need(row, KEYS, "Math-Shepherd")
    given, label, task = (text_of(row.data, key, row.where) for key in KEYS)
    first = FIRST_STEP.search(given)
    if first is None or not given[: first.start()].strip():
        raise row.error(
            'expected a question and then "Step 1:", which alone says where the solution begins; found none: take the row out',
            "input",
        )
    question = given[: first.start()]
    *pieces, rest = given[first.start() :].split(MARKER)
    if rest.strip() or not pieces:
        actual = rest.strip()[:60]
        raise row.error(
            f'expected every step to end in " {MARKER}", found {actual!r} after the last', "input"
        )
    signs = _signs(row, question, pieces, label)
    steps = tuple(rows.step_of(piece, STEP_NUMBER, MARKER) for piece in pieces)
    for number, step in enumerate(steps):
        if not step.text:
            raise row.error(f"step {number} (0-based) is blank", "input")
    answer = _ANSWER.search(steps[-1].text)
    own = {} if answer is None else {"answer": answer[1].strip()}
    meta = rows.origin(row, "math-shepherd", rows.other_columns(row, KEYS), None, **own)
    judge, kind = rows.judge_and_kind(meta, "rollouts", "value")
    problem = Problem(text=question.strip(), source=None if task == UNKNOWN else task)
    solution = rows.restored(Solution(problem=problem, steps=steps, id=row.place), meta)
    yield LabelledRow(
        labelled=LabelledSolution(solution=solution, judgements=rows.signed(signs, judge, kind)),
        where=row.where,
        outcome=rows.outcome_of(meta) if "outcome" in meta else signs[-1],
        meta=meta,
    )


def _signs(row: Row, question: str, pieces: Sequence[str], label: str) -> list[bool]:
    """Whether "+" stands in the label where each marker stands in the input."""
    at, signs = 0, []
    for number, piece in enumerate((question + pieces[0], *pieces[1:])):
        end = at + len(piece)
        if not label.startswith(piece, at) or label[end : end + 1] not in ("+", "-"):
            raise row.error(
                f"step {number} (0-based): expected the text of the input and then + or -, "
                f"found {label[at : end + 1][-60:]!r}",
                "label",
            )
        signs.append(label[end] == "+")
        at = end + 1
    if rest := label[at:].strip():
        raise row.error(f"expected nothing after the last step, found {rest[:60]!r}", "label")
    return signs


def write(row: LabelledRow, settings: Writing) -> Iterator[dict[str, object]]:
    """One row of Math-Shepherd."""
    labels = rows.until_unjudged(rows.two_way(row, settings), row, "Math-Shepherd")
    question = row.solution.problem.text
    texts = list(row.solution.texts)[: len(labels)]
    if any(MARKER in text for text in (question, *texts)):
        raise NotRepresentableError(
            f"the text holds the marker {MARKER!r}, which ends a step in Math-Shepherd"
        )
    if FIRST_STEP.search(question):
        raise NotRepresentableError('the question holds "Step 1:", which ends the question in Math-Shepherd')
    pieces = [numbered(text, number) for number, text in enumerate(texts, start=1)]
    signs = ["+" if label.rating == 1 else "-" for label in labels]

    def text(marks: Sequence[str]) -> str:
        return f"{question} " + "\n".join(f"{p} {mark}" for p, mark in zip(pieces, marks, strict=True))

    yield {
        "input": text([MARKER] * len(pieces)),
        "label": text(signs),
        "task": row.solution.problem.source or UNKNOWN,
        "meta": rows.written_meta(row, labels[0].judge, labels[0].kind, held=("problem_source",)),
    }


def numbered(text: str, number: int) -> str:
    """A step with its number before it, unless it has it already."""
    own = re.match(rf"\s*step\s+{number}\s*:", text, re.I)
    return text if own else f"Step {number}: {text}"


FORMAT = Format(
    name="math-shepherd",
    about="Math-Shepherd: input and label with ки, + and -",
    sniff=has(*KEYS),
    read=read,
    write=each(write),
)
