"""OpenHands: events of a session, in a list, one a line, one a file of a folder, or under `history` of an evaluation's output.

Events before 1.0 have `action` and `args`, or `observation` and `content`; `tool_call_metadata` holds the model's reply. Later ones have a `kind`:
"MessageEvent", "ActionEvent", "ObservationEvent". Changes of state, statistics and what the environment did by itself are left out. Calls of one reply
are one turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepmark.data.messages import Chat, Object, object_or_empty, text_or_none

ABOUT = "events of OpenHands: a session, or the history of an evaluation"
BY_FOLDER = True

_SOURCES = ("agent", "user", "environment")
_NOT_SAID = (
    "recall", "change_agent_state", "agent_state_changed", "null", "condensation", "condensation_request", "send_message", "start",
    "pause", "resume",
)  # fmt: skip
_NO_ARGUMENTS = (
    "thought", "hidden", "blocking", "confirmation_state", "security_risk", "keep_prompt", "is_static",
)  # fmt: skip


def _is_event(data: object) -> bool:
    event = object_or_empty(data)
    if str(event.get("kind")).endswith(("Event", "Observation", "Action", "Condensation")):
        return "source" in event
    done = isinstance(event.get("action"), str) or isinstance(event.get("observation"), str)
    return done and event.get("source") in _SOURCES


def _history(data: Object) -> list[Any] | None:
    """The events of an evaluation's output; older ones are pairs of an action and its observation."""
    for field in ("history", "events", "trajectory"):
        listed = data.get(field)
        if isinstance(listed, list) and listed:
            flat = [e for entry in listed for e in (entry if isinstance(entry, list) else [entry])]
            if any(map(_is_event, flat)):
                return flat
    return None


def sniff(data: Object) -> bool:
    """Whether a row is an event, or holds a history of them."""
    return _is_event(data) or _history(data) is not None


def events(data: Object) -> Iterator[tuple[str, Object]]:
    """The events of a row."""
    listed = _history(data)
    if listed is None:
        yield "", data
    else:
        key = text_or_none(data.get("instance_id")) or text_or_none(data.get("id")) or ""
        for event in listed:
            yield key, event


def read(chat: Chat, events: Sequence[Object]) -> None:
    """A session."""
    seen: set[object] = set()
    reply: object = None
    for event in events:
        chat.where = event["where"]
        id_ = event.get("id")
        if id_ is not None and id_ in seen:
            continue
        seen.add(id_)
        reply = _with_kind(chat, event, reply) if "kind" in event else _before_kinds(chat, event, reply)


# --- events before 1.0 ------------------------------------------------------------------------------------------


def _before_kinds(chat: Chat, event: Object, reply: object) -> object:
    """Add an event; gives the id of the model's reply that the turn is of."""
    kind = event.get("action") or event.get("observation")
    args, metadata = (object_or_empty(event.get(name)) for name in ("args", "tool_call_metadata"))
    if kind in _NOT_SAID:
        return reply
    if "observation" in event:
        failed = kind == "error" or object_or_empty(event.get("extras")).get("error") is True
        name = text_or_none(metadata.get("function_name"))
        text = text_or_none(event.get("content")) or event.get("message")
        chat.answer(text, metadata.get("tool_call_id"), name, failed=failed)
        return reply
    if kind == "system":
        chat.write("system", str(args.get("content") or event.get("message") or ""))
    elif event.get("source") == "user":
        chat.write("user", str(args.get("content") or event.get("message") or ""))
    elif event.get("source") == "agent":
        return _action(chat, event, args, metadata, reply)
    return reply


def _action(chat: Chat, event: Object, args: Object, metadata: Object, reply: object) -> object:
    kind = str(event.get("action"))
    response = object_or_empty(metadata.get("model_response"))
    if text_or_none(response.get("model")):
        chat.facts.setdefault("source", response["model"])
    answered = response.get("id")
    choices = response.get("choices") or [{}]
    message = object_or_empty(choices[0]).get("message")
    if isinstance(message, Mapping):
        if answered is None or answered != reply:
            chat.append({**message, "role": "assistant"})  # with every call of the reply
        return answered
    text = args.get("content") if kind == "message" else args.get("thought")
    text = text or (event.get("message") if kind == "message" else "")
    turn: dict[str, Any] = {"role": "assistant", "content": str(text or "")}
    if kind not in ("message", "think"):
        rest = {k: v for k, v in args.items() if k not in _NO_ARGUMENTS and v not in (None, "")}
        turn["function_call"] = {"name": kind, "arguments": rest}
    chat.append(turn)
    return answered


# --- events of 1.0 and later ------------------------------------------------------------------------------------


def _with_kind(chat: Chat, event: Object, reply: object) -> object:
    kind = event["kind"]
    if kind == "SystemPromptEvent":
        chat.write("system", chat.plain([event.get("system_prompt")]))
        listed = [tool for tool in event.get("tools") or () if object_or_empty(tool).get("function")]
        if listed:
            chat.facts.setdefault("tools", listed)
    elif kind == "MessageEvent":
        message = object_or_empty(event.get("llm_message"))
        chat.append({k: message.get(k) for k in ("role", "content", "reasoning_content", "tool_calls")})
    elif kind == "ActionEvent":
        call = object_or_empty(event.get("tool_call"))
        function = object_or_empty(call.get("function")) or call
        blocks = [object_or_empty(block).get("thinking") for block in event.get("thinking_blocks") or ()]
        named = {
            "name": function.get("name") or event.get("tool_name"),
            "arguments": function.get("arguments", event.get("action")),
        }
        turn = {
            "role": "assistant",
            "content": event.get("thought") or "",
            "reasoning_content": event.get("reasoning_content") or "\n".join(filter(None, blocks)),
            "tool_calls": [{"id": event.get("tool_call_id"), "function": named}],
        }
        answered = event.get("llm_response_id")
        if answered is not None and answered == reply:
            chat.message({**turn, "content": "", "reasoning_content": ""})
        else:
            chat.append(turn)
        return answered
    elif "tool_call_id" in event:  # ObservationEvent, AgentErrorEvent, UserRejectObservation
        observation = event.get("observation")
        content, failed = event.get("error") or event.get("rejection_reason"), True
        if isinstance(observation, Mapping):
            failed = observation.get("is_error") is True or bool(observation.get("error"))
            content = next(
                (observation[k] for k in ("content", "output", "error", "message") if observation.get(k)),
                observation,
            )
        chat.answer(content, event.get("tool_call_id"), event.get("tool_name"), failed=failed)
    return reply
