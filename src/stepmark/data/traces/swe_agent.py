"""SWE-agent: a `.traj` with `trajectory`, `history` and `info`; a demonstration has `history` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepmark.data.messages import Chat, Object
from stepmark.data.traces.base import ROW_COLUMNS

ABOUT = "trajectories of SWE-agent: .traj"
COLUMNS = ("trajectory", "history")


def sniff(data: Object) -> bool:
    """Whether a row is a trajectory or a demonstration."""
    if "trajectory" in data:
        return "history" in data
    history = data.get("history")
    entries = isinstance(history, list) and all(
        isinstance(entry, Mapping) and "role" in entry for entry in history
    )
    return bool(entries and history) and data.keys().isdisjoint(ROW_COLUMNS)


def read(chat: Chat, events: Sequence[Object]) -> None:
    """The history of a trajectory, without the demonstrations in its prompt."""
    (data,) = events
    acted = False
    for message in chat.objects(data.get("history"), "history"):
        if message.get("is_demo") or message.get("message_type") == "demonstration":
            continue
        acted = acted or message.get("role") == "assistant"
        # The task itself is logged as the first observation.
        if acted and message.get("message_type") == "observation":
            ids = message.get("tool_call_ids") or [None]
            chat.answer(message.get("content"), ids[0])
        else:
            plain = {key: value for key, value in message.items() if key not in ("thought", "name")}
            thinking = message.get("thinking_blocks")
            if thinking:
                plain["content"] = [*thinking, {"type": "text", "text": chat.plain(message.get("content"))}]
            chat.append(plain)
