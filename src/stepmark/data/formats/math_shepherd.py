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
from stepmark.data.reading import Row
from stepmark.data.solutions import text_of
from stepmark.records import Problem, Solution

ABOUT = "Math-Shepherd: input and label with ки, + and -"

KEYS = ("input", "label", "task")
sniff = rows.has(*KEYS)
MARKER = "ки"
_ANSWER = re.compile(r"the answer is\s*:?\s*(\S.*)", re.I | re.S)


def read(row: Row, _settings: rows.ReaderSettings, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One row of Math-Shepherd."""
    rows.need(row, KEYS, "Math-Shepherd")
    given, label, task = (text_of(row.data, key, row.where) for key in KEYS)
    first = rows.FIRST_STEP.search(given)
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
    steps = rows.steps_of(row, pieces, "input", MARKER)
    answer = _ANSWER.search(steps[-1].text)
    own = {} if answer is None else {"answer": answer[1].strip()}
    meta = rows.origin(row, "math-shepherd", rows.other_columns(row, KEYS), **own)
    judge, kind = rows.judge_and_kind(meta, "rollouts", "value")
    problem = Problem(text=question.strip(), source=None if task == rows.UNKNOWN else task)
    solution = Solution(problem=problem, steps=steps, id=row.place)
    yield rows.labelled(row, solution, rows.signed(signs, judge, kind), meta, outcome=signs[-1])


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


def write(row: rows.LabelledRow, settings: rows.Writing) -> Iterator[dict[str, object]]:
    """One row of Math-Shepherd."""
    labels = rows.until_unjudged(
        rows.labels_of(row, settings, neutral=False, shares=False), row, "Math-Shepherd"
    )
    question = row.solution.problem.text
    texts = list(row.solution.texts)[: len(labels)]
    if any(MARKER in text for text in (question, *texts)):
        raise rows.NotRepresentableError(
            f"the text holds the marker {MARKER!r}, which ends a step in Math-Shepherd"
        )
    if rows.FIRST_STEP.search(question):
        raise rows.NotRepresentableError(
            'the question holds "Step 1:", which ends the question in Math-Shepherd'
        )
    pieces = rows.numbered(texts)
    signs = ["+" if label.rating == 1 else "-" for label in labels]

    def text(marks: Sequence[str]) -> str:
        return f"{question} " + "\n".join(f"{p} {mark}" for p, mark in zip(pieces, marks, strict=True))

    yield {
        "input": text([MARKER] * len(pieces)),
        "label": text(signs),
        "task": row.solution.problem.source or rows.UNKNOWN,
        "meta": rows.written_meta(row, labels[0].judge, labels[0].kind, held=("problem_source",)),
    }
