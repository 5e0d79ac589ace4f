"""OpenAI Responses: `input` (a text or items), `output` (items), optional `instructions`."""

from __future__ import annotations

from collections.abc import Sequence

from stepmark.data.messages import Chat, Object, text_or_none

ABOUT = "OpenAI Responses: input and output items"
COLUMNS = ("id", "object", "model", "instructions", "input", "output")


def sniff(data: Object) -> bool:
    """Whether a row has output items."""
    output = data.get("output")
    items = isinstance(output, list) and any(isinstance(item, dict) and "type" in item for item in output)
    return items and "traceId" not in data and (data.get("object") == "response" or "input" in data)


def read(chat: Chat, events: Sequence[Object]) -> None:
    """A response with its input."""
    (data,) = events
    if text_or_none(data.get("instructions")):
        chat.write("system", data["instructions"])
    if isinstance(data.get("input"), str):
        chat.write("user", data["input"])
    elif data.get("input") is None:
        raise chat.error("expected what was asked, a text or items, beside 'output'; found none", "input")
    else:
        chat.each(data["input"], "input", chat.item)
    chat.each(data["output"], "output", chat.item)
    chat.facts = {"id": text_or_none(data.get("id")), "source": text_or_none(data.get("model"))}
