"""Logged calls of the OpenAI chat API: `request` (with `messages`), `response` (with `choices`); each call is a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepmark.data.messages import Chat, Object, text_or_none
from stepmark.data.traces.base import Trace, logged_messages


def sniff(data: Object) -> bool:
    """Whether a row is a call."""
    keys = {"request": "messages", "response": "choices"}
    return all(
        isinstance(data.get(key), Mapping) and isinstance(data[key].get(inside), list)
        for key, inside in keys.items()
    )


def read(chat: Chat, events: Sequence[Object]) -> None:
    """One call."""
    (data,) = events
    for inside in ("request", "response"):
        chat.messages += logged_messages(chat, data[inside], inside)
    chat.facts |= {"id": text_or_none(data.get("id")), "source": text_or_none(data["request"].get("model"))}


TRACE = Trace(
    name="chat-calls",
    about="logged calls of the OpenAI chat API: request and response",
    sniff=sniff,
    read=read,
    columns=("id", "request", "response"),
)
