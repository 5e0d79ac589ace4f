"""Codex: a session (one event a line, {`type`, `payload`}), or what `codex exec --json` prints ({`type`: "item.completed", `item`}).

A session says most things twice. Items of the Responses API (`response_item`) are read first. Of the events (`event_msg`) the user's texts count where
no such item holds them; the assistant's texts, thoughts and calls where the session has no such items of that sort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.data.json_rows import json_type
from stepmark.data.messages import Chat, Object, object_or_empty, text_or_none
from stepmark.data.traces.base import of_file

ABOUT = "sessions of Codex, and of codex exec: .jsonl"
events = of_file

_SESSION = ("session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state")
_EXEC = (
    "thread.started", "turn.started", "turn.completed", "turn.failed", "item.started", "item.updated", "item.completed", "error",
)  # fmt: skip
_NO_ARGUMENTS = (
    "type", "id", "status", "server", "tool", "result", "results", "error", "duration", "exit_code", "aggregated_output",
    "formatted_output", "stdout", "stderr", "content_items", "success", "cwd", "parsed_cmd", "source", "process_id",
)  # fmt: skip
"""Fields of an item of a tool that are not what the model asked of it."""
_ANSWERS = (
    "aggregated_output", "formatted_output", "stdout", "result", "content_items", "error", "stderr",
)  # fmt: skip


def sniff(data: Object) -> bool:
    """Whether a row is an event."""
    if data.get("type") in _SESSION and "payload" in data:
        return True
    known = {"type", "item", "thread_id", "usage", "error", "message"}
    return data.get("type") in _EXEC and data.keys() <= known


def read(chat: Chat, events: Sequence[Object]) -> None:
    """The events of a session."""
    items = [_payload(chat, event) for event in events if event["type"] == "response_item"]
    written = Counter(_text(item) for item in items if item.get("type", "message") == "message")
    logged: dict[object, Counter[str]] = {}
    texts = {_part(item) for item in items}
    for event in events:
        chat.where, chat.part = event["where"], "payload"
        if event["type"] in _EXEC:
            chat.part = "item"
            if event["type"] == "thread.started":
                chat.facts.setdefault("id", text_or_none(event.get("thread_id")))
            elif event["type"] == "item.completed":
                _add(chat, event.get("item"))
            continue
        payload = _payload(chat, event)
        kind = payload.get("type")
        if event["type"] == "response_item":
            chat.item(payload)
        elif event["type"] == "compacted":
            chat.write("user", str(payload.get("message", "")))
        elif event["type"] == "turn_context" and text_or_none(payload.get("model")):
            chat.facts["source"] = payload["model"]
        elif event["type"] == "session_meta":
            chat.facts.setdefault("id", text_or_none(payload.get("id")))
            base = object_or_empty(payload.get("base_instructions")).get("text")
            if rules := text_or_none(payload.get("instructions")) or text_or_none(base):
                chat.write("system", rules)
        elif event["type"] == "event_msg" and kind in ("item_completed", "user_message", "agent_message"):
            item = payload.get("item") if kind == "item_completed" else _of_message(payload)
            text, part = _text(item), _PARTS.get(_kind(item), "call")
            if part in ("user", "assistant"):
                # Each source counts by itself: what it says once more than was written so far is new.
                counted = logged.setdefault(kind, Counter())
                counted[text] += 1
                if counted[text] <= written[text]:
                    continue
            if part == "user" or part not in texts:
                written[text] += part in ("user", "assistant")
                _add(chat, item)


_PARTS = {
    "usermessage": "user",
    "hookprompt": "user",
    "agentmessage": "assistant",
    "plan": "assistant",
    "reasoning": "thought",
}
"""What an item of a turn is; any other is a call of a tool."""


def _part(item: Object) -> str:
    """What an item of the Responses API is, in the same words."""
    kind = item.get("type", "message")
    if kind == "message":
        return "assistant" if item.get("role") == "assistant" else "user"
    if kind == "reasoning":
        return "thought" if item.get("summary") or item.get("content") else ""
    return "call" if str(kind).endswith("_call") else ""


def _payload(chat: Chat, event: Object) -> Object:
    payload = event.get("payload")
    if not isinstance(payload, Mapping):
        chat.where, chat.part = event["where"], "payload"
        raise chat.error(f"expected an object, found {json_type(payload)}")
    return payload


def _of_message(payload: Object) -> dict[str, Any]:
    return {"type": payload["type"], "text": payload.get("message")}


def _kind(item: object) -> str:
    """The type of an item; sessions write "AgentMessage", and `codex exec` "agent_message"."""
    return str(object_or_empty(item).get("type")).replace("_", "").lower()


def _text(item: object) -> str:
    content = object_or_empty(item).get("content", object_or_empty(item).get("text"))
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [object_or_empty(part).get("text") for part in parts]
    return "".join(text for text in texts if isinstance(text, str)).strip()


def _add(chat: Chat, item: object) -> None:
    if not isinstance(item, Mapping):
        raise chat.error(f"expected an item (an object), found {json_type(item)}", ".item")
    kind = _kind(item)
    if kind in ("usermessage", "agentmessage", "plan", "hookprompt"):
        parts = item.get("content")
        listed = [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
        text = "\n".join(
            chat.plain([{**part, "type": str(part.get("type", "text")).lower()}]) for part in listed
        )
        text = text or text_or_none(item.get("text")) or ""
        if text:
            chat.write("user" if kind in ("usermessage", "hookprompt") else "assistant", text)
    elif kind == "reasoning":
        texts = item.get("raw_content") or item.get("summary_text") or [item.get("text")]
        for text in filter(None, map(text_or_none, texts if isinstance(texts, list) else [texts])):
            chat.write("assistant", text, key="reasoning_content")
    elif kind in ("todolist", "error", "contextcompaction", "subagentactivity", "sleep"):
        return
    else:
        id_ = text_or_none(item.get("id"))
        arguments = item.get("arguments")
        if arguments is None:
            arguments = {k: v for k, v in item.items() if k not in _NO_ARGUMENTS and v is not None}
        chat.call(text_or_none(item.get("tool")) or _snake(str(item.get("type"))), arguments, id_)
        answer = next((item[key] for key in _ANSWERS if item.get(key)), "")
        if isinstance(answer, Mapping):
            answer = answer.get("content", answer.get("message", answer))
        failed = str(item.get("status")).lower() in ("failed", "declined") or item.get("success") is False
        chat.answer(answer, id_, failed=failed or item.get("exit_code") not in (None, 0))


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).strip("_")
