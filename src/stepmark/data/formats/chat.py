"""Rows of OpenAI chat `messages`: an assistant's turn is a step (`data.conversations`).

Only a conversation that was read as one can be written (`LabelledRow.messages`): the text of a step no longer says where its arguments begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepmark.data.columns import columns_of
from stepmark.data.formats import rows
from stepmark.data.formats.solutions import reader

ABOUT = "OpenAI chat messages; an assistant's turn is a step"


def sniff(data: Mapping[str, Any]) -> bool:
    """Whether a row has messages."""
    return "messages" in data or bool(columns_of(data, "messages"))


def write(row: rows.LabelledRow, _settings: rows.Writing) -> Iterator[dict[str, Any]]:
    """A row of `messages`, as they were read.

    Raises:
        rows.NotRepresentableError: the row was not read as a conversation.
    """
    messages = rows.messages_of(row)
    yield {
        **rows.solution_fields(row.solution),
        "id": row.solution.id or row.origin,
        "messages": list(messages),
        "meta": rows.written_meta(row, held=rows.RECORD_FIELDS),
    }


read = reader("chat")
