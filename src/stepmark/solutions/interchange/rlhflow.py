"""RLHFlow's conversations: a user turn a step, answered "+" or "-"; the question stands before the first step.

The question and the first step are glued together with a space, so that nothing but "Step 1:" parts them; the reader
wants it exactly once, or else exactly one blank line in the first turn (as RLHFlow's script for ProcessBench has it). The
number of a step ("Step 2: ") is layout and stays out of its text. What was written here is read back the same.

Written rows have a further key `meta` {`from`, `judge`, `kind`, `outcome`, `record`, ...}, as Math-Shepherd's have. The format has no word for a step that was not judged,
so a row is cut before its first; a question that holds "Step 1:" cannot be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.solutions.interchange.math_shepherd import OWN_LAYOUT, judge_and_kind, numbered
from stepmark.solutions.interchange.one_label import two_way, until_unjudged
from stepmark.solutions.interchange.rows import (
    LabelledRow,
    Losses,
    NotRepresentableError,
    Reading,
    Writing,
    origin,
    other_columns,
    outcome_told,
    plain_texts,
    restored,
    told,
)
from stepmark.store import Row, json_type

JUDGE = "RLHFlow"
"""Who judged, where the row does not say."""
KEYS = ("conversations",)

_FIRST = re.compile(r"(?<!\S)step\s+1\s*:\s*", re.I)
_NUMBER = re.compile(r"\s*step\s+\d+\s*:\s*", re.I)


def read(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One conversation.

    Raises:
        InputError: with `FILE:LINE`: other roles or another order of them, an answer that is no "+" or "-", a first turn of
            which nobody can say where the question ends, a blank question or step.
    """
    turns = _turns(row)
    signs = []
    for number, sign in enumerate(turns[1::2]):
        if sign.strip() not in ("+", "-"):
            raise InputError(
                f"expected '+' or '-', found {sign[:40]!r}",
                where=row.where,
                field=f"conversations.{2 * number + 1}.content",
            )
        signs.append(sign.strip())
    question, first = _parted(turns[0], row)
    texts = [first, *turns[2::2]]
    steps = tuple(_step(text, number, row) for number, text in enumerate(texts))
    meta = origin(row, "rlhflow", other_columns(row, KEYS))
    judge, kind = judge_and_kind(meta, JUDGE, "value")
    yield LabelledRow(
        labelled=LabelledSolution(
            solution=restored(Solution(problem=Problem(text=question), steps=steps, id=row.place), meta),
            judgements=tuple(
                (Judgement(kind=kind, judge=judge, rating=1 if sign == "+" else -1),) for sign in signs
            ),
        ),
        where=row.where,
        outcome=outcome_told(meta),
        meta=meta,
    )


def _turns(row: Row) -> list[str]:
    listed = row.data.get("conversations")
    if not isinstance(listed, list) or not listed or len(listed) % 2:
        found = f"{len(listed)} turns" if isinstance(listed, list) else json_type(listed)
        raise InputError(
            f"expected a user turn and an assistant turn for each step, found {found}",
            where=row.where,
            field="conversations",
        )
    turns = []
    for number, turn in enumerate(listed):
        wanted = "assistant" if number % 2 else "user"
        content = turn.get("content") if isinstance(turn, dict) else None
        if not isinstance(turn, dict) or turn.get("role") != wanted or not isinstance(content, str):
            raise InputError(
                f"expected a turn of the {wanted} with a text as 'content'",
                where=row.where,
                field=f"conversations.{number}",
            )
        turns.append(content)
    return turns


def _parted(turn: str, row: Row) -> tuple[str, str]:
    found = list(_FIRST.finditer(turn))
    paragraphs = [part for part in re.split(r"\n[ \t]*\n\s*", turn) if part.strip()]
    if len(found) == 1:
        question, first = turn[: found[0].start()], turn[found[0].start() :]
    elif not found and len(paragraphs) == 2:
        question, first = paragraphs
    else:
        raise InputError(
            'nobody can say where the question ends and the first step begins: expected one "Step 1:", or one blank line, '
            f'found {len(found)} x "Step 1:" and {len(paragraphs)} paragraphs',
            where=row.where,
            field="conversations.0.content",
        )
    if not question.strip():
        raise InputError(
            "expected a question before the first step", where=row.where, field="conversations.0.content"
        )
    return question.strip(), first


def _step(turn: str, number: int, row: Row) -> Step:
    match = _NUMBER.match(turn)
    start = len(turn) - len(turn.lstrip()) if match is None else match.end()
    text = turn[start:].rstrip()
    if not text:
        raise InputError(
            f"step {number} (0-based) is blank", where=row.where, field=f"conversations.{2 * number}.content"
        )
    return Step(text=text, lead=turn[:start], tail=turn[start + len(text) :])


def write(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """One conversation; steps are numbered where they are not.

    Raises:
        InputError: as `one_label.two_way`.
        NotRepresentableError: the first step was not judged, or the question or the first step holds another "Step 1:".
    """
    labels = until_unjudged(two_way(row, settings, losses), row, losses, "RLHFlow")
    texts = [
        numbered(text, number)
        for number, text in enumerate(plain_texts(row, losses, own_layout=OWN_LAYOUT)[: len(labels)], start=1)
    ]
    first = f"{row.solution.problem.text} {texts[0]}"
    if len(_FIRST.findall(first)) != 1:
        raise NotRepresentableError(
            'the question or the first step holds another "Step 1:", which ends the question in RLHFlow'
        )
    turns = []
    for text, label in zip([first, *texts[1:]], labels, strict=True):
        turns.append({"role": "user", "content": text})
        turns.append({"role": "assistant", "content": "+" if label.rating == 1 else "-"})
    yield {
        "conversations": turns,
        "meta": told(row, labels[0].judge, labels[0].kind, held=()),
    }
