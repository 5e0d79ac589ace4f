"""Sessions of the Gemini CLI: `messages` of {`type`: "user" or "gemini", `content`, `thoughts`, `toolCalls`}, beside `sessionId`.

A call holds what the tool gave back. What the CLI itself says ("info", "error") is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepmark.data.messages import Chat, Object, object_or_empty, text_or_none

ABOUT = "sessions of the Gemini CLI: .json"
COLUMNS = ("messages", "sessionId")


def sniff(data: Object) -> bool:
    """Whether a row is a session."""
    messages = data.get("messages")
    listed = messages if isinstance(messages, list) else []
    kinds = {
        message.get("type") for message in listed if isinstance(message, Mapping) and "role" not in message
    }
    return "sessionId" in data and bool(kinds & {"user", "gemini"})


def read(chat: Chat, events: Sequence[Object]) -> None:
    """One session."""
    (data,) = events
    seen: set[object] = set()
    for message in chat.objects(data["messages"], "messages"):
        kind, id_ = message.get("type"), message.get("id")
        if kind not in ("user", "gemini") or (id_ is not None and id_ in seen):
            continue
        seen.add(id_)
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        if kind == "user":
            chat.message({"role": "user", "parts": parts})
            continue
        turn = Chat(where=chat.where, part=chat.part)
        for thought in message.get("thoughts") or ():
            text = (
                [thought.get("subject"), thought.get("description")]
                if isinstance(thought, Mapping)
                else [thought]
            )
            turn.write("assistant", ": ".join(filter(None, map(text_or_none, text))), key="reasoning_content")
        turn.message({"role": "assistant", "parts": parts})
        calls = message.get("toolCalls") or ()
        for call in calls:
            turn.call(call.get("name"), call.get("args"), call.get("id"))
        chat.messages += turn.messages
        for call in calls:
            failed = call.get("status") in ("error", "cancelled")
            chat.answer(_result(call), call.get("id"), call.get("name"), failed=failed)
        chat.facts.setdefault("source", text_or_none(message.get("model")))
    chat.facts["id"] = text_or_none(data.get("sessionId"))


def _result(call: Object) -> object:
    """What a tool gave back to the model, or what it showed."""
    result = call.get("result")
    for part in result if isinstance(result, list) else ():
        answer = object_or_empty(object_or_empty(part).get("functionResponse")).get("response")
        if isinstance(answer, Mapping) and len(answer) == 1:
            return next(iter(answer.values()))
        if answer is not None:
            return answer
    return call.get("resultDisplay") if result in (None, []) else result
