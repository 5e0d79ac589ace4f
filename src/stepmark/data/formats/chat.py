"""Rows of OpenAI chat `messages`: an assistant's turn is a step (`data.conversations`).

Only a conversation that was read as one can be written (`LabelledRow.messages`): the text of a step no longer says where its arguments begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepmark.data.conversations import ChatMessage, read_message
from stepmark.data.formats import rows
from stepmark.data.formats.rows import LabelledRow, Losses, NotRepresentableError, Writing


def write_chat(row: LabelledRow, _settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A row of `messages`, as they were read.

    Raises:
        NotRepresentableError: the row was not read as a conversation.
    """
    messages = _messages(row)
    judged = sum(map(len, row.own.judgements)) + len(row.labelled.root)
    losses.lose("judgements are left out", row.where, judged)
    fields = {"answer": row.solution.problem.answer, "source": row.solution.source}
    yield {
        "id": row.solution.id or row.origin,
        "messages": list(messages),
        **{name: value for name, value in fields.items() if value is not None},
        **rows.problem_fields(row.solution),
        "meta": rows.written_meta(row, held=rows.RECORD_FIELDS),
    }


def _messages(row: LabelledRow) -> Sequence[Mapping[str, Any]]:
    if row.messages is None:
        raise NotRepresentableError(
            "expected a conversation, whole (`reasoning` keep); found a solution without its messages"
        )
    return row.messages


def conversation(row: LabelledRow) -> list[tuple[ChatMessage, Mapping[str, Any]]]:
    """The messages of a row that was read as a conversation, as they were read and as they are.

    Raises:
        NotRepresentableError: it was not.
    """
    names: dict[str, str] = {}
    return [
        (read_message(message, f"messages[{at}]", row.where, names), message)
        for at, message in enumerate(_messages(row))
    ]
