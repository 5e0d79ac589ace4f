"""ShareGPT: `conversations` of {`from`, `value`} (or {`role`, `content`})."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepmark.data.json_rows import json_type
from stepmark.data.messages import Chat, Object, loaded, text_or_none

ABOUT = "ShareGPT: conversations of from and value"
COLUMNS = ("id", "model", "system", "conversations")


def sniff(data: Object) -> bool:
    """Whether a row has conversations; a turn that is a sign is RLHFlow's."""
    turns = data.get("conversations")
    listed = turns if isinstance(turns, list) else []
    return bool(listed) and all(isinstance(t, dict) and t.get("content") not in ("+", "-") for t in listed)


def read(chat: Chat, events: Sequence[Object]) -> None:
    """One conversation."""
    (data,) = events
    if text_or_none(data.get("system")):
        chat.write("system", data["system"])
    for turn in chat.objects(data["conversations"], "conversations"):
        role, content = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        message = {**turn, "role": role, "content": content}
        if role == "function_call":  # LLaMA-Factory's: the JSON of a call, in a turn of its own
            if not isinstance(call := loaded(content), Mapping):
                raise chat.error(f"expected a call as JSON, found {json_type(call)}", ".value")
            message = {"role": "assistant", "function_call": call}
        chat.message(message)
    chat.facts |= {"id": data.get("id"), "source": text_or_none(data.get("model"))}
