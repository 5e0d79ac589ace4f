"""Math-Shepherd's rows (Wang et al. 2024): hard labels of steps, of which the last is the outcome.

============  ==============================================================================
key           what
============  ==============================================================================
`input`       the question, then each step as "Step 1: … ки", a line break between steps
`label`       the same text with "+" or "-" where the marker "ки" stands
`task`        "GSM8K" or "MATH": the problem's source
============  ==============================================================================

"+" says that at least one rollout of an unknown number reached the answer, "-" that none did. From the last step nothing
is left to roll out: its label says whether the answer is right. The number of a step ("Step 2: ") and the marker are
layout and stay out of its text. Nothing but "Step 1:" parts the question and the solution.

Written rows have a further key `meta` {`from`, `judge`, `kind`, `outcome`, `record`, ...}, which this reader takes back: `record` holds the fields
of the solution that have no place here (`id`, `answer`, `source`, `problem_id`). The format has no word for a step that was not judged, so a row is cut before its first; a text that holds the marker, and a question that holds
"Step 1:", cannot be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stepmark.errors import InputError
from stepmark.records import Judgement, LabelKind, LabelledSolution, Problem, Solution, Step
from stepmark.solutions.interchange.one_label import two_way, until_unjudged
from stepmark.solutions.interchange.rows import (
    LabelledRow,
    Losses,
    NotRepresentableError,
    Reading,
    Writing,
    need,
    origin,
    other_columns,
    outcome_told,
    plain_texts,
    restored,
    text_of,
    told,
)
from stepmark.store import Row

JUDGE = "rollouts"
"""Who judged, where the row does not say."""
KEYS = ("input", "label", "task")
UNKNOWN = "unknown"
"""What is written where a format wants a word that nobody said; it is read as None."""

_STEP_NUMBER = re.compile(r"\s*step\s+\d+\s*:\s*", re.I)
_FIRST_STEP = re.compile(r"(?<!\S)step\s+1\s*:", re.I)
_ANSWER = re.compile(r"the answer is\s*:?\s*(\S.*)", re.I | re.S)
MARKER = "ки"
OWN_LAYOUT = re.compile(rf"step\s+\d+\s*:|{MARKER}", re.I)
"""What is written around steps anew."""


def read(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One row.

    Raises:
        InputError: with `FILE:LINE`: another format; no "Step 1:"; a label that is not its input with + and - for the
            markers; text after the last marker; a blank step.
    """
    need(row, KEYS, "Math-Shepherd")
    given, label, task = (text_of(row, key) for key in KEYS)
    first = _FIRST_STEP.search(given)
    if first is None:
        raise InputError(
            'expected "Step 1:" after the question, which alone says where the solution begins; found none: take the row out',
            where=row.where,
            field="input",
        )
    question, written = given[: first.start()], given[first.start() :]
    if not question.strip():
        raise InputError('expected a question before "Step 1:"', where=row.where, field="input")
    *pieces, rest = written.split(MARKER)
    if rest.strip() or not pieces:
        raise InputError(
            f'expected every step to end in " {MARKER}", found {rest.strip()[:60]!r} after the last',
            where=row.where,
            field="input",
        )
    signs = _signs(row, question, pieces, label)
    steps = []
    for number, piece in enumerate(pieces):
        step = _shepherd_step(piece)
        if step is None:
            raise InputError(f"step {number} (0-based) is blank", where=row.where, field="input")
        steps.append(step)
    answer = _ANSWER.search(steps[-1].text)
    own = {} if answer is None else {"answer": answer[1].strip()}
    meta = origin(row, "math-shepherd", other_columns(row, KEYS), None, **own)
    judge, kind = judge_and_kind(meta, JUDGE, "value")
    problem = Problem(text=question.strip(), source=None if task == UNKNOWN else task)
    solution = restored(Solution(problem=problem, steps=tuple(steps), id=row.place), meta)
    yield LabelledRow(
        labelled=LabelledSolution(
            solution=solution,
            judgements=tuple(
                (Judgement(kind=kind, judge=judge, rating=1 if sign == "+" else -1),) for sign in signs
            ),
        ),
        where=row.where,
        outcome=outcome_told(meta) if "outcome" in meta else signs[-1] == "+",
        meta=meta,
    )


def judge_and_kind(meta: dict[str, object], judge: str, kind: LabelKind) -> tuple[str, LabelKind]:
    """What a row's `meta` says of its labels, else what its format says."""
    known, said = meta.get("judge"), meta.get("kind")
    kinds: dict[object, LabelKind] = {"correctness": "correctness", "value": "value"}
    return (known if isinstance(known, str) and known else judge), kinds.get(said, kind)


def _signs(row: Row, question: str, pieces: Sequence[str], label: str) -> list[str]:
    """The sign that stands in the label where each marker stands in the input."""
    at, signs = 0, []
    for number, piece in enumerate((question + pieces[0], *pieces[1:])):
        sign = label[at + len(piece) : at + len(piece) + 1]
        if not label.startswith(piece, at) or sign not in ("+", "-"):
            raise InputError(
                f"step {number} (0-based): expected the text of the input and then + or -, "
                f"found {label[at : at + len(piece) + 1][-60:]!r}",
                where=row.where,
                field="label",
            )
        signs.append(sign)
        at += len(piece) + 1
    if label[at:].strip():
        raise InputError(
            f"expected nothing after the last step, found {label[at:].strip()[:60]!r}",
            where=row.where,
            field="label",
        )
    return signs


def _shepherd_step(piece: str) -> Step | None:
    numbered = _STEP_NUMBER.match(piece)
    start = len(piece) - len(piece.lstrip()) if numbered is None else numbered.end()
    text = piece[start:].rstrip()
    if not text:
        return None
    return Step(text=text, lead=piece[:start], tail=piece[start + len(text) :] + MARKER)


def write(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, object]]:
    """One row.

    Raises:
        InputError: as `one_label.two_way`.
        NotRepresentableError: the first step was not judged, or a text cannot stand in this format.
    """
    labels = until_unjudged(two_way(row, settings, losses), row, losses, "Math-Shepherd")
    question = row.solution.problem.text
    texts = plain_texts(row, losses, own_layout=OWN_LAYOUT)[: len(labels)]
    if any(MARKER in text for text in (question, *texts)):
        raise NotRepresentableError(
            f"the text holds the marker {MARKER!r}, which ends a step in Math-Shepherd"
        )
    if _FIRST_STEP.search(question):
        raise NotRepresentableError('the question holds "Step 1:", which ends the question in Math-Shepherd')
    if row.outcome != (labels[-1].rating == 1) or len(labels) < len(row.solution.steps):
        losses.lose(
            "Math-Shepherd takes the last label for the outcome, and here it is none (meta.outcome says what is known)",
            row.where,
        )
    pieces = [numbered(text, number) for number, text in enumerate(texts, start=1)]
    signs = ["+" if label.rating == 1 else "-" for label in labels]

    def text(marks: Sequence[str]) -> str:
        return f"{question} " + "\n".join(f"{p} {mark}" for p, mark in zip(pieces, marks, strict=True))

    yield {
        "input": text([MARKER] * len(pieces)),
        "label": text(signs),
        "task": row.solution.problem.source or UNKNOWN,
        "meta": told(row, labels[0].judge, labels[0].kind, held=("problem_source",)),
    }


def numbered(text: str, number: int) -> str:
    """A step with its number before it, unless it has it already."""
    own = re.match(rf"\s*step\s+{number}\s*:", text, re.I)
    return text if own else f"Step {number}: {text}"
