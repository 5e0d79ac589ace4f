"""Langfuse: a trace with `observations`, or observations: `traceId`, `type`, `input`, `output`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepmark.data.formats.rows import has
from stepmark.data.messages import Chat, Object, text_or_none
from stepmark.data.traces.base import Call, in_order, join_calls, logged_messages, with_id

ABOUT = "traces of Langfuse with observations, or observations"


def sniff(data: Object) -> bool:
    """Whether a row is a trace or an observation."""
    return isinstance(data.get("observations"), list) or has("traceId", "type", "input")(data)


def events(data: Object) -> Iterator[tuple[str, Object]]:
    """The observations of a row."""
    if isinstance(data.get("observations"), list):
        return ((str(data.get("id", "")), observation) for observation in data["observations"])
    return iter([(str(data.get("traceId", "")), data)])


def read(chat: Chat, events: Sequence[Object]) -> None:
    """The generations of a trace."""
    calls: list[Call] = []
    for observation in in_order(events, "id", lambda event: str(event.get("startTime") or "")):
        chat.where = observation["where"]
        if observation.get("type") == "GENERATION" and observation.get("output") not in (None, "", [], {}):
            prompt = logged_messages(chat, observation.get("input"), "input")
            reply = logged_messages(chat, observation.get("output"), "output")
            calls.append((prompt, with_id(reply, observation.get("id"))))
            chat.facts["source"] = text_or_none(observation.get("model"))
    join_calls(chat, calls, "an observation of the type GENERATION with an output", "observations")
