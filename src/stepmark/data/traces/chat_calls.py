"""Logged calls of the OpenAI chat API: `messages` (or `request`, with them) and `response` (with `choices`); each call is a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepmark.data.messages import Chat, Object, text_or_none
from stepmark.data.traces.base import logged_messages

ABOUT = "logged calls of the OpenAI chat API: request and response"
COLUMNS = ("id", "request", "messages", "response")


def _request(data: Object) -> Object:
    """What was asked: under `request`, or in the row itself."""
    return data["request"] if isinstance(data.get("request"), Mapping) else data


def sniff(data: Object) -> bool:
    """Whether a row is a call."""
    response = data.get("response")
    is_answered = isinstance(response, Mapping) and isinstance(response.get("choices"), list)
    return is_answered and isinstance(_request(data).get("messages"), list)


def read(chat: Chat, events: Sequence[Object]) -> None:
    """One call."""
    (data,) = events
    chat.messages += logged_messages(chat, _request(data)["messages"], "messages")
    chat.messages += logged_messages(chat, data["response"], "response")
    model = text_or_none(_request(data).get("model")) or text_or_none(data["response"].get("model"))
    chat.facts |= {
        "id": text_or_none(data.get("id")) or text_or_none(data["response"].get("id")),
        "source": model,
    }
