"""A sign after each step: Math-Shepherd's rows and RLHFlow's conversations.

Math-Shepherd (Wang et al. 2024): `input` holds the question, then each step as "Step 1: … ки"; `label` is the same text with "+" or "-" where the
marker stands; `task` names the problem's source. "+" says that at least one rollout of an unknown number reached the answer. The last label says
whether the answer is right. The number of a step and the marker are layout.

RLHFlow: a user turn a step, answered "+" or "-". The question stands before the first step, parted from it by "Step 1:" exactly once, or else by
exactly one blank line (as RLHFlow's script for ProcessBench has it).

Written rows have `meta` too (`rows.written_meta`), which the readers take back. Neither format has a word for a step that was not judged, so a row
is cut before its first; a text that holds the marker, and a question that holds "Step 1:", cannot be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.formats.rows import LabelledRow, Losses, NotRepresentableError, Reading, Writing
from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row
from stepmark.data.solutions import text_of
from stepmark.records import LabelledSolution, Problem, Solution
from stepmark.show.text import amount

KEYS = ("input", "label", "task")
UNKNOWN = "unknown"
"""What is written where a format wants a word that is not known; it is read as None."""
MARKER = "ки"
STEP_NUMBER = re.compile(r"\s*step\s+\d+\s*:\s*", re.I)
OWN_LAYOUT = re.compile(rf"step\s+\d+\s*:|{MARKER}", re.I)
"""What is written around steps anew."""
_FIRST_STEP = re.compile(r"(?<!\S)step\s+1\s*:", re.I)
_ANSWER = re.compile(r"the answer is\s*:?\s*(\S.*)", re.I | re.S)


def read(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One row of Math-Shepherd."""
    rows.need(row, KEYS, "Math-Shepherd")
    given, label, task = (text_of(row.data, key, row.where) for key in KEYS)
    first = _FIRST_STEP.search(given)
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


def write(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, object]]:
    """One row of Math-Shepherd."""
    labels = rows.until_unjudged(rows.two_way(row, settings, losses), row, losses, "Math-Shepherd")
    question = row.solution.problem.text
    texts = rows.plain_texts(row, losses, own_layout=OWN_LAYOUT)[: len(labels)]
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
        "meta": rows.written_meta(row, labels[0].judge, labels[0].kind, held=("problem_source",)),
    }


def numbered(text: str, number: int) -> str:
    """A step with its number before it, unless it has it already."""
    own = re.match(rf"\s*step\s+{number}\s*:", text, re.I)
    return text if own else f"Step {number}: {text}"


# --- RLHFlow --------------------------------------------------------------------------------------------------

RLHFLOW_KEYS = ("conversations",)


def read_rlhflow(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One conversation."""
    turns = _turns(row)
    signs = [sign.strip() for sign in turns[1::2]]
    for number, sign in enumerate(signs):
        if sign not in ("+", "-"):
            field = f"conversations.{2 * number + 1}.content"
            raise row.error(f"expected '+' or '-', found {sign[:40]!r}", field)
    question, first = _parted(turns[0], row)
    steps = tuple(rows.step_of(text, STEP_NUMBER) for text in (first, *turns[2::2]))
    for number, step in enumerate(steps):
        if not step.text:
            raise row.error(f"step {number} (0-based) is blank", f"conversations.{2 * number}.content")
    meta = rows.origin(row, "rlhflow", rows.other_columns(row, RLHFLOW_KEYS))
    judge, kind = rows.judge_and_kind(meta, "RLHFlow", "value")
    solution = rows.restored(Solution(problem=Problem(text=question), steps=steps, id=row.place), meta)
    judgements = rows.signed((sign == "+" for sign in signs), judge, kind)
    yield LabelledRow(
        labelled=LabelledSolution(solution=solution, judgements=judgements),
        where=row.where,
        outcome=rows.outcome_of(meta),
        meta=meta,
    )


def _turns(row: Row) -> list[str]:
    listed = row.data.get("conversations")
    if not isinstance(listed, list) or not listed or len(listed) % 2:
        actual = amount(len(listed), "turn") if isinstance(listed, list) else json_type(listed)
        raise row.error(
            f"expected a user turn and an assistant turn for each step, found {actual}", "conversations"
        )
    turns = []
    for number, turn in enumerate(listed):
        role = "assistant" if number % 2 else "user"
        content = turn.get("content") if isinstance(turn, dict) else None
        if not isinstance(turn, dict) or turn.get("role") != role or not isinstance(content, str):
            raise row.error(
                f"expected a turn of the {role} with a text as 'content'", f"conversations.{number}"
            )
        turns.append(content)
    return turns


def _parted(turn: str, row: Row) -> tuple[str, str]:
    """The question and the first step."""
    starts = list(_FIRST_STEP.finditer(turn))
    paragraphs = [part for part in re.split(r"\n[ \t]*\n\s*", turn) if part.strip()]
    if len(starts) == 1:
        question, first = turn[: starts[0].start()], turn[starts[0].start() :]
    elif not starts and len(paragraphs) == 2:
        question, first = paragraphs
    else:
        raise row.error(
            'it is not clear where the question ends and the first step begins: expected one "Step 1:", or one blank line, '
            f'found {len(starts)} x "Step 1:" and {len(paragraphs)} paragraphs',
            "conversations.0.content",
        )
    if not question.strip():
        raise row.error("expected a question before the first step", "conversations.0.content")
    return question.strip(), first


def write_rlhflow(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """One conversation; steps are numbered where they are not."""
    labels = rows.until_unjudged(rows.two_way(row, settings, losses), row, losses, "RLHFlow")
    texts = rows.plain_texts(row, losses, own_layout=OWN_LAYOUT)[: len(labels)]
    texts = [numbered(text, number) for number, text in enumerate(texts, start=1)]
    texts[0] = f"{row.solution.problem.text} {texts[0]}"
    if len(_FIRST_STEP.findall(texts[0])) != 1:
        raise NotRepresentableError(
            'the question or the first step holds another "Step 1:", which ends the question in RLHFlow'
        )
    turns = []
    for text, label in zip(texts, labels, strict=True):
        turns.append({"role": "user", "content": text})
        turns.append({"role": "assistant", "content": "+" if label.rating == 1 else "-"})
    yield {"conversations": turns, "meta": rows.written_meta(row, labels[0].judge, labels[0].kind, held=())}
