"""Who&When's conversations of AutoGen and CrewAI: `question`, and `history` of {`content`, `role`, `name`}. Every entry is a step."""

from __future__ import annotations

from collections.abc import Sequence

from stepmark.data.messages import Chat, Object, text_or_none
from stepmark.data.traces.base import SOLUTION_COLUMNS, Trace, has


def sniff(data: Object) -> bool:
    """Whether a row is a conversation."""
    return has("question", "history")(data) and data.keys().isdisjoint(SOLUTION_COLUMNS)


def read(chat: Chat, events: Sequence[Object]) -> None:
    """One conversation; an entry without a text is a step too, for the labels count entries."""
    (data,) = events
    chat.write("user", data["question"] if isinstance(data.get("question"), str) else "")
    for entry in chat.objects(data["history"], "history"):
        text = entry.get("content")
        if not isinstance(text, str):
            raise chat.error("expected an entry with a text under 'content'")
        speaker = text_or_none(entry.get("name")) or text_or_none(entry.get("role"))
        message = {"role": "assistant", "content": text if text.strip() else "(nothing)"}
        chat.messages.append(message | ({"name": speaker} if speaker else {}))
    chat.facts = {
        "id": text_or_none(data.get("question_ID")),
        "answer": text_or_none(data.get("ground_truth")),
    }


TRACE = Trace(
    name="who-and-when",
    about="conversations of AutoGen and CrewAI, as Who&When holds them",
    sniff=sniff,
    read=read,
    columns=("question", "history", "question_ID", "ground_truth"),
)
