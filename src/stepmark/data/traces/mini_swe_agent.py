"""mini-swe-agent: a `.traj.json` with `trajectory_format`, `messages` and `info`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepmark.data.formats.rows import has
from stepmark.data.messages import Chat, Object

ABOUT = "trajectories of mini-swe-agent: .traj.json"
COLUMNS = ("trajectory_format", "messages")
sniff = has("trajectory_format", "messages")


def read(chat: Chat, events: Sequence[Object]) -> None:
    """The messages of a trajectory."""
    (data,) = events
    for message in chat.objects(data["messages"], "messages"):
        extra = message.get("extra")
        if message.get("role") == "exit":
            continue
        if isinstance(message.get("output"), list):
            chat.each(message["output"], ".output", chat.item)
        elif "role" not in message or str(message.get("type", "")).endswith("_output"):
            chat.item(message)
        elif message["role"] == "user" and isinstance(extra, Mapping) and "returncode" in extra:
            chat.answer(message.get("content"), None)
        else:
            chat.append(message)
