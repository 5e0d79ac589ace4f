"""What a format of traces is, and how calls of a model become one conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepmark.data.columns import CONTENT_NAMES, names_of
from stepmark.data.messages import Chat, Object, is_item, loaded, object_or_empty
from stepmark.data.steps.thoughts import texts_of

if TYPE_CHECKING:
    from stepmark.data.formats.rows import LabelledRow, Writer
    from stepmark.data.reading import Row

Events = Iterable[tuple[str, Object]]

ROW_COLUMNS = CONTENT_NAMES.union(names_of("problem"))
"""Columns of a row that is a problem or a solution, and so no message and no demonstration."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A format of traces: how a row of it is recognised and read."""

    name: str
    about: str
    """What it is, in one line."""
    sniff: Callable[[Object], bool]
    """Whether a row is of it."""
    read: Callable[[Chat, Sequence[Object]], None]
    """Writes the events of one conversation into a chat; where a row is a whole trace, it is the only event."""
    events: Callable[[Object], Events] | None = None
    """The events of a row, each with the id of its trace ("": the trace is the file's); None where a row is a trace."""
    conversations: Callable[[Sequence[Object]], Iterable[tuple[str, Sequence[Object]]]] | None = None
    """Parts the events of one trace into conversations with ids; None where they are one."""
    by_folder: bool = False
    """Whether a tool writes each event into a file of its own, so that the files of a folder with one event each are one trace."""
    columns: tuple[str, ...] = ()
    """The columns that are read of a row that is a trace; the others go into its `meta`."""
    label: Callable[[Row, LabelledRow], LabelledRow] | None = None
    """Adds the labels that a row of it holds."""
    write: Writer | None = None


# --- calls of a model that repeat the conversation so far -------------------------------------------------------

Call = tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]
"""One call of a model: the messages that it was given, and those that it wrote."""


def join_calls(chat: Chat, calls: Sequence[Call], expected: str, field: str = "") -> None:
    """Add the conversation of calls in the order of time: of each call what is new in it; `expected` says what a trace without calls lacks.

    A message of a prompt is one that is known where role, text (without thoughts) and tool calls are the same. Arguments are compared as JSON
    values; a logged call without arguments is the same as one with them. A call that two tracers logged counts once.
    """
    if not calls:
        raise chat.error(f"expected {expected}; found none", field)
    by_id: dict[str, list[dict[str, Any]]] = {}

    def add(message: dict[str, Any]) -> None:
        chat.messages.append(message)
        by_id.setdefault(message_key(message), []).append(message)

    before: list[str] | None = None
    for prompt, reply in calls:
        call = [_exact_key(message) for message in (*prompt, *reply)]
        if call == before:
            continue
        before = call
        matched: set[int] = set()
        for message in prompt:
            candidates = by_id.get(message_key(message), ())
            same = next((m for m in candidates if id(m) not in matched and _fill_arguments(m, message)), None)
            if same is None:
                same = message
                add(message)
            matched.add(id(same))
        for message in reply:
            add(message)


def with_id(messages: Sequence[dict[str, Any]], id: object) -> Sequence[dict[str, Any]]:
    """The messages that a call wrote, each with the id of the call."""
    for message in messages:
        if isinstance(id, str) and id and message["role"] == "assistant":
            message["id"] = id
    return messages


def in_order(events: Sequence[Object], id_: str, time: Callable[[Object], Any]) -> list[Object]:
    """Logged calls in the order of time, each id once."""
    return sorted({event.get(id_) or id(event): event for event in events}.values(), key=time)


def message_key(message: Object) -> str:
    """A message without its thoughts, and without the arguments of its calls."""
    text = message.get("content") or ""
    if message["role"] == "assistant":
        text = "\n".join(part.strip() for part, thought in texts_of(text) if not thought)
    value = loaded(text.strip())
    role = "system" if message["role"] == "developer" else message["role"]
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    return json.dumps([role, value, names], sort_keys=True)


def _exact_key(message: Object) -> str:
    calls = [loaded(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return json.dumps([message_key(message), calls], sort_keys=True)


def _fill_arguments(recorded: Object, message: Object) -> bool:
    """Whether the calls of two messages of one key have the same arguments; arguments that only one of them has are taken over."""
    pairs = [
        (call["function"], other["function"])
        for call, other in zip(recorded.get("tool_calls", ()), message.get("tool_calls", ()), strict=True)
    ]
    values = [(loaded(call["arguments"]), loaded(other["arguments"])) for call, other in pairs]
    if any(a and b and a != b for a, b in values):
        return False
    for (call, other), (value, _) in zip(pairs, values, strict=True):
        if not value:
            call["arguments"] = other["arguments"]
    return True


def logged_messages(
    chat: Chat, value: object, inside: str, speaker: str | None = None
) -> list[dict[str, Any]]:
    """The messages that an input or an output of a model call holds, in the shapes that tracers write."""
    if isinstance(value, str) and _is_conversation(content := loaded(value)):
        value = content
    if isinstance(value, Mapping):
        for key in ("messages", "contents", "generations", "choices", "candidates", "output"):
            if isinstance(value.get(key), list):
                if key in ("generations", "choices", "candidates"):
                    _check_one(chat, value[key], f"{inside}.{key}")
                return logged_messages(chat, value[key], f"{inside}.{key}", speaker)
        for key in ("message", "output", "content"):
            if isinstance(value.get(key), Mapping):
                return logged_messages(chat, value[key], f"{inside}.{key}", speaker)
        for key in ("contents", "prompt", "input", "args"):
            only = value.get(key)
            only = only[0] if isinstance(only, list) and len(only) == 1 else only
            if isinstance(only, str) and value.keys().isdisjoint(("role", "type")):
                return logged_messages(chat, only, f"{inside}.{key}", speaker)
        value = [value]
    if isinstance(value, str):
        value = [{"role": "assistant" if "out" in inside else "user", "content": value}]
    listed = chat.list_of(value, inside)
    while len(listed) == 1 and isinstance(listed[0], list):  # LangChain's batch of one
        listed = listed[0]
    own = Chat(where=chat.where)
    for at, entry in enumerate(listed):
        fields = [object_or_empty(entry).get(key) for key in ("message", "content")]
        message = next((value for value in fields if isinstance(value, Mapping)), entry)
        if isinstance(message, Mapping) and message.get("role") in _names(own):  # a tool that is its own role
            message = {**message, "role": "tool", "name": message["role"]}
        own.part = f"{chat.part}{inside}[{at}]"
        if is_item(message):
            own.item(message, speaker)
        else:
            own.append(message, speaker)
    return own.messages


def _names(chat: Chat) -> list[str]:
    return [call["function"]["name"] for message in chat.messages for call in message.get("tool_calls", ())]


def _check_one(chat: Chat, listed: Sequence[object], inside: str) -> None:
    while len(listed) == 1 and isinstance(listed[0], list):
        listed = listed[0]
    if len(listed) != 1:
        raise chat.error(f"expected one choice, found {len(listed)}", inside)


def _is_conversation(value: object) -> bool:
    """Whether JSON in a text holds messages; an answer may be JSON itself."""
    if isinstance(value, Mapping):
        return not value.keys().isdisjoint(("role", "messages", "choices", "generations"))
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(entry, Mapping) and not entry.keys().isdisjoint(("role", "type")) for entry in value
        )
    )


def of_file(data: Object) -> Iterator[tuple[str, Object]]:
    """The events of a row that is an event of its file."""
    yield "", data
