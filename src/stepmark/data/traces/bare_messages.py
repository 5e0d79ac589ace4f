"""Chat messages alone, one a line or in one list: {`role`, `content`}."""

from __future__ import annotations

from collections.abc import Sequence

from stepmark.data.messages import Chat, Object
from stepmark.data.traces.base import ROW_COLUMNS, of_file

NAME = "messages"
ABOUT = "chat messages alone, one a line or in one list"
events = of_file


def sniff(data: Object) -> bool:
    """Whether a row is a message."""
    has_content = not data.keys().isdisjoint(("content", "parts", "tool_calls"))
    return isinstance(data.get("role"), str) and has_content and data.keys().isdisjoint(ROW_COLUMNS)


def read(chat: Chat, events: Sequence[Object]) -> None:
    """The messages of a file."""
    for event in events:
        chat.where = event["where"]
        chat.append(event)
