"""RLHFlow's conversations: a user turn a step, answered "+" or "-".

The question stands before the first step, parted from it by "Step 1:" exactly once, or else by exactly one blank line (as RLHFlow's script for
ProcessBench has it). The format has no word for a step that was not judged, so a row is cut before its first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row
from stepmark.records import Problem, Solution
from stepmark.words import amount

ABOUT = "RLHFlow: conversations of steps and + or -"

KEYS = ("conversations",)
sniff = rows.has(*KEYS)


def read(row: Row, _settings: rows.ReaderSettings, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One conversation."""
    turns = _turns(row)
    signs = [sign.strip() for sign in turns[1::2]]
    for number, sign in enumerate(signs):
        if sign not in ("+", "-"):
            field = f"conversations.{2 * number + 1}.content"
            raise row.error(f"expected '+' or '-', found {sign[:40]!r}", field)
    question, first = _parted(turns[0], row)
    steps = rows.steps_of(row, (first, *turns[2::2]), "conversations")
    meta = rows.origin(row, "rlhflow", rows.other_columns(row, KEYS))
    judge, kind = rows.judge_and_kind(meta, "RLHFlow", "value")
    solution = Solution(problem=Problem(text=question), steps=steps, id=row.place)
    yield rows.labelled(row, solution, rows.signed((sign == "+" for sign in signs), judge, kind), meta)


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
    starts = list(rows.FIRST_STEP.finditer(turn))
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


def write(row: rows.LabelledRow, settings: rows.Writing) -> Iterator[dict[str, Any]]:
    """One conversation; steps are numbered where they are not."""
    labels = rows.until_unjudged(rows.labels_of(row, settings, neutral=False, shares=False), row, "RLHFlow")
    texts = rows.numbered(row.solution.texts[: len(labels)])
    texts[0] = f"{row.solution.problem.text} {texts[0]}"
    if len(rows.FIRST_STEP.findall(texts[0])) != 1:
        raise rows.NotRepresentableError(
            'the question or the first step holds another "Step 1:", which ends the question in RLHFlow'
        )
    turns = []
    for text, label in zip(texts, labels, strict=True):
        turns.append({"role": "user", "content": text})
        turns.append({"role": "assistant", "content": "+" if label.rating == 1 else "-"})
    yield {"conversations": turns, "meta": rows.written_meta(row, labels[0].judge, labels[0].kind, held=())}
