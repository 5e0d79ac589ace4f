"""RLHFlow's conversations: a user turn a step, answered "+" or "-"; the question stands before the first step.

The question and the first step are glued together with a space, so that nothing but "Step 1:" parts them; the reader
wants it exactly once, or else exactly one blank line in the first turn (as RLHFlow's script for ProcessBench has it). The
number of a step ("Step 2: ") is layout and stays out of its text. Written rows have `meta` as Math-Shepherd's have, are cut before the
first step that was not judged, and cannot hold a question with "Step 1:" in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stepmark.records import LabelledSolution, Problem, Solution
from stepmark.solutions.interchange.math_shepherd import OWN_LAYOUT, STEP_NUMBER, numbered
from stepmark.solutions.interchange.rows import (
    LabelledRow,
    Losses,
    NotRepresentableError,
    Reading,
    Writing,
    judge_and_kind,
    origin,
    other_columns,
    outcome_of,
    plain_texts,
    restored,
    signed,
    step_of,
    two_way,
    until_unjudged,
    written_meta,
)
from stepmark.store import Row, json_type

KEYS = ("conversations",)
_FIRST = re.compile(r"(?<!\S)step\s+1\s*:\s*", re.I)


def read(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One conversation.

    Raises:
        InputError: other roles or another order of them, an answer that is no "+" or "-", a first turn that does not say where
            the question ends, a blank question or step.
    """
    turns = _turns(row)
    signs = [sign.strip() for sign in turns[1::2]]
    for number, sign in enumerate(signs):
        if sign not in ("+", "-"):
            field = f"conversations.{2 * number + 1}.content"
            raise row.error(f"expected '+' or '-', found {sign[:40]!r}", field)
    question, first = _parted(turns[0], row)
    steps = tuple(step_of(text, STEP_NUMBER) for text in (first, *turns[2::2]))
    for number, step in enumerate(steps):
        if not step.text:
            raise row.error(f"step {number} (0-based) is blank", f"conversations.{2 * number}.content")
    meta = origin(row, "rlhflow", other_columns(row, KEYS))
    judge, kind = judge_and_kind(meta, "RLHFlow", "value")
    solution = restored(Solution(problem=Problem(text=question), steps=steps, id=row.place), meta)
    judgements = signed((sign == "+" for sign in signs), judge, kind)
    yield LabelledRow(
        labelled=LabelledSolution(solution=solution, judgements=judgements),
        where=row.where,
        outcome=outcome_of(meta),
        meta=meta,
    )


def _turns(row: Row) -> list[str]:
    listed = row.data.get("conversations")
    if not isinstance(listed, list) or not listed or len(listed) % 2:
        found = f"{len(listed)} turns" if isinstance(listed, list) else json_type(listed)
        raise row.error(
            f"expected a user turn and an assistant turn for each step, found {found}", "conversations"
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
    starts = list(_FIRST.finditer(turn))
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


def write(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """One conversation; steps are numbered where they are not.

    Raises:
        InputError: as `rows.two_way`.
        NotRepresentableError: the first step was not judged, or the question or the first step holds another "Step 1:".
    """
    labels = until_unjudged(two_way(row, settings, losses), row, losses, "RLHFlow")
    texts = plain_texts(row, losses, own_layout=OWN_LAYOUT)[: len(labels)]
    texts = [numbered(text, number) for number, text in enumerate(texts, start=1)]
    texts[0] = f"{row.solution.problem.text} {texts[0]}"
    if len(_FIRST.findall(texts[0])) != 1:
        raise NotRepresentableError(
            'the question or the first step holds another "Step 1:", which ends the question in RLHFlow'
        )
    turns = []
    for text, label in zip(texts, labels, strict=True):
        turns.append({"role": "user", "content": text})
        turns.append({"role": "assistant", "content": "+" if label.rating == 1 else "-"})
    yield {"conversations": turns, "meta": written_meta(row, labels[0].judge, labels[0].kind, held=())}
