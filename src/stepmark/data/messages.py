"""Messages and items as models' APIs and their tracers write them, added to a conversation of chat messages (`data.conversations`).

Read are messages of the OpenAI chat API, of Anthropic, LangChain, inspect_ai and OpenTelemetry, and items of the OpenAI Responses API. What
is left out, and what stands in the place of pictures, `data.traces` says.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepmark.data.json_rows import json_type
from stepmark.errors import InputError

Object = Mapping[str, Any]

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    "humanmessage": "user",
    "ai": "assistant",
    "aimessage": "assistant",
    "model": "assistant",
    "systemmessage": "system",
    "toolmessage": "tool",
    "function": "tool",
    "functionmessage": "tool",
}
_TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal")
_THOUGHTS = ("thinking", "reasoning")
_FIELDS = ("reasoning_content", *_THOUGHTS)
_HIDDEN = ("redacted_thinking", "encrypted_reasoning")
_CALLS = ("tool_use", "tool_call", "tool-call", "server_tool_use", "mcp_tool_use")
_ANSWERS = ("tool_call_response", "tool-result")
_MEDIA = ("image", "audio", "video", "file", "document", "screenshot", "upload", "blob", "uri")
_UNSAID = ("token_count", "ghost_snapshot", "compaction", "compaction_summary", "mcp_list_tools")
"""Items of Responses and Codex that no one said."""
_RESULTS = ("output", "outputs", "results", "result", "error")
_ERROR = re.compile(r"\W*(?:\w+[ _:])?(?:error|traceback|exception)", re.IGNORECASE)
"""How the text of a failure begins that says itself that it is one."""
_KNOWN = ("type", "id", "status", "call_id", "name", *_RESULTS)
"""Fields of a call of Responses that are no arguments."""


@dataclass(kw_only=True)
class Chat:
    """A conversation that is being put together."""

    where: str | None
    """The place in errors; that of the event that is being read."""
    part: str = ""
    """The part of it that is being read."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Further columns of the row: `id`, `source`, `answer`."""

    def error(self, message: str, inside: str = "") -> InputError:
        """An error about what is being read."""
        return InputError(message, where=self.where, field=f"{self.part}{inside}".lstrip(".") or None)

    @contextlib.contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Anything else in the place of an object, anywhere in the nest, is an `InputError`."""
        try:
            yield
        except InputError:  # which is a ValueError
            raise
        except (TypeError, AttributeError, ValueError, LookupError) as error:
            raise self.error(f"expected {what}, found another shape") from error

    def list_of(self, value: object, inside: str) -> list[Any]:
        """A list."""
        if not isinstance(value, list):
            raise self.error(f"expected a list, found {json_type(value)}", inside)
        return value

    def objects(self, value: object, inside: str) -> Iterator[Object]:
        """The objects of a list, each with its place in errors."""
        for at, entry in enumerate(self.list_of(value, inside)):
            self.part = f"{inside}[{at}]"
            if not isinstance(entry, Mapping):
                raise self.error(f"expected an object, found {json_type(entry)}")
            yield entry

    def each(self, value: object, inside: str, add: Callable[[Any], None]) -> None:
        """Add what a list holds."""
        before = self.part
        for at, entry in enumerate(self.list_of(value, inside)):
            self.part = f"{before}{inside}[{at}]"
            add(entry)
        self.part = before

    def turn(self, speaker: str | None = None) -> dict[str, Any]:
        """The assistant's turn that is going on, or a new one."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or last.get("name") != speaker:
            last = {"role": "assistant", "content": ""} | ({"name": speaker} if speaker else {})
            self.messages.append(last)
        return last

    def write(self, role: str, text: str, speaker: str | None = None, key: str = "content") -> None:
        """Add a text; an assistant's goes on with its turn, and `key` says where."""
        if role == "assistant":
            turn = self.turn(speaker)
            turn[key] = "\n".join(part for part in (turn.get(key), text) if part)
        else:
            self.messages.append({"role": role, "content": text} | ({"name": speaker} if speaker else {}))

    def call(
        self, name: object, arguments: object, id: object, speaker: str | None = None, inside: str = ""
    ) -> None:
        """Add a tool call to the turn; `inside` is its place in errors."""
        if not isinstance(name, str) or not name.strip():
            raise self.error(f"expected a tool's name, found {json_type(name)}", f"{inside}.name")
        text = arguments if isinstance(arguments, str) else written({} if arguments is None else arguments)
        call = {"id": _id(id), "type": "function", "function": {"name": name, "arguments": text}}
        self.turn(speaker).setdefault("tool_calls", []).append(call)

    def answer(self, content: object, id: object, name: object = None, *, failed: bool = False) -> None:
        """Add what a tool gave back; of a tool that failed, as an error."""
        text = self.plain(content)
        if failed and not _ERROR.match(text):
            text = f"Error: {text}" if text else "Error"
        message: dict[str, Any] = {"role": "tool", "content": text, "tool_call_id": _id(id)}
        self.messages.append(message | ({"name": name} if isinstance(name, str) and name else {}))

    def plain(self, content: object) -> str:
        """A content that no one rates, as a text."""
        if isinstance(content, str):
            return content
        listed: list[Any] = content if isinstance(content, list) else [content]
        if content != [] and all(isinstance(part, Mapping) and "type" in part for part in listed):
            return "\n".join(_shown(part) or written(_open(part)) for part in listed)
        return "" if content is None else written(content)

    def append(self, data: object, speaker: str | None = None) -> None:
        """Add a message that is a turn of its own, whatever stands before it; an assistant's stays where it says nothing."""
        own = Chat(where=self.where, part=self.part)
        own.message(data, speaker)
        self.messages += own.messages or [{"role": "assistant", "content": ""}]

    def message(self, data: object, speaker: str | None = None) -> None:
        """Add a message of the OpenAI chat API, of Anthropic, of LangChain, of inspect_ai or of OpenTelemetry; an assistant's goes on with its turn."""
        if not isinstance(data, Mapping):
            raise self.error(f"expected a message (an object), found {json_type(data)}")
        kind = data.get("role") or data.get("type")
        kwargs = data.get("kwargs")
        if isinstance(kwargs, Mapping):  # as LangChain serialises it
            return self.message({**kwargs, "role": (data.get("id") or [""])[-1]}, speaker)
        lower = str(kind).lower().removesuffix("chunk")
        role = _ROLES.get(lower, lower)
        if role == "tool" and (calls := _parts(data.get("content"), lambda kind: kind == "function")):
            return self.message({"role": "assistant", "tool_calls": calls}, speaker)  # Koog's calls
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise self.error(f"expected the role of a message, found {kind!r}", ".role")
        name, content = text_or_none(data.get("name")), data.get("parts", data.get("content"))
        speaker = (name or speaker) if role == "assistant" else name
        extra = object_or_empty(data.get("additional_kwargs"))
        if role == "tool" and not _parts(content, _is_answer):
            # Of inspect_ai, which gives the model this text.
            reason = object_or_empty(data.get("error")).get("message")
            ids = data.get("tool_call_ids") or [data.get("tool_call_id")]
            broken = data.get("is_error") is True or data.get("status") == "error"
            return self.answer(reason or content, ids[0], name or data.get("function"), failed=broken)
        if role == "assistant":  # two fields that say the same are one thought
            fields = [holder.get(key) for holder in (data, extra) for key in _FIELDS]
            thoughts = {text.strip(): text for text in fields if isinstance(text, str) and text.strip()}
            for thought in thoughts.values():
                self.write(role, thought, speaker, "reasoning_content")
        if data.get("audio"):
            raise self.error("expected words as text, found audio: put its words into 'content'", ".audio")
        self._content(role, content, speaker)
        if text_or_none(data.get("refusal")):
            self.write(role, data["refusal"], speaker)
        listed = [*_maybe(data, "tool_calls"), *_maybe(data, "invalid_tool_calls")] or _maybe(
            extra, "tool_calls"
        )
        alone = data.get("function_call") or extra.get("function_call")
        # A call that Anthropic's parts hold stands in LangChain's list again.
        held = {_id(part.get("id")) for part in _parts(content, _CALLS.__contains__)}
        for at, call in enumerate(listed or ([{"function": alone}] if alone else ())):
            function = call.get("function") if isinstance(call, Mapping) else None
            body = function if isinstance(function, Mapping) else call
            if role != "assistant" or not isinstance(body, Mapping):
                spot = f"one in a {role} message" if isinstance(body, Mapping) else json_type(call)
                raise self.error(f"expected a tool call of an assistant, found {spot}", f".tool_calls[{at}]")
            if _id(call.get("id")) not in held:
                arguments = _first(body, ("arguments", "args"))
                self.call(
                    body.get("name", function), arguments, call.get("id"), speaker, f".tool_calls[{at}]"
                )
        return None

    def _content(self, role: str, content: object, speaker: str | None) -> None:
        if content in (None, []) or isinstance(content, str):
            if content or role != "assistant":
                self.write(role, str(content or ""), speaker)
            return
        if not isinstance(content, list):
            raise self.error(f"expected a text or a list of parts, found {json_type(content)}", ".content")
        texts: list[str] = []

        def flush() -> None:
            if texts:
                self.write(role, "\n".join(texts), speaker)
                texts.clear()

        for at, raw in enumerate(content):
            part: Any = {"type": "text", "text": raw} if isinstance(raw, str) else _known_part(raw)
            kind = part.get("type") if isinstance(part, Mapping) else json_type(part)
            if kind in _HIDDEN:
                continue
            if kind in _TEXTS or (role != "assistant" and isinstance(part, Mapping) and _shown(part)):
                texts.append(_shown(part))
            elif role == "assistant" and any(word in str(kind).lower() for word in _THOUGHTS):
                keys = ("summary",) if part.get("redacted") else (str(kind), "text", "content", "value")
                if thought := next(filter(None, map(text_or_none, map(part.get, keys))), ""):
                    self.write(role, thought, speaker, "reasoning_content")
            elif kind in _CALLS and role == "assistant":
                flush()
                named = object_or_empty(loaded(part.get("value"))) or part
                arguments, id_ = _first(named, ("input", "arguments", "args")), part.get("id")
                self.call(named.get("name", part.get("toolName")), arguments, id_, speaker)
                if part.get("result") is not None:
                    self.answer(part["result"], id_)
            elif _is_answer(kind):
                flush()
                id_ = part.get("tool_use_id", part.get("id"))
                result = _first(part, ("content", "response", "result"))
                name = speaker if role == "tool" else part.get("name")
                self.answer(result, id_, name, failed=part.get("is_error") is True)
            else:
                needed = (
                    "text, thought or tool calls"
                    if role == "assistant"
                    else "text, a tool's result or a file"
                )
                raise self.error(f"expected {needed}, found {kind!r}", f".content[{at}].type")
        flush()

    def item(self, item: object, speaker: str | None = None) -> None:
        """Add an item of the OpenAI Responses API."""
        if not isinstance(item, Mapping):
            raise self.error(f"expected an item (an object), found {json_type(item)}")
        kind = str(item.get("type") or _kind_of(item))
        speaker = text_or_none(item.get("agent")) or speaker
        if kind == "message":
            self.message(item, speaker)
        elif kind == "reasoning":
            for part in item.get("content") or item.get("summary") or [{"text": item.get("text")}]:
                if text := text_or_none(object_or_empty(part).get("text")):
                    self.write("assistant", text, speaker, "reasoning_content")
        elif kind.endswith("_output"):
            self.answer(item.get("output"), item.get("call_id"), item.get("name"))
        elif kind.endswith("_call"):
            name = item["name"] if "name" in item else kind.removesuffix("_call")
            arguments = _first(
                item, ("arguments", "input", "action", "actions", "operation", "queries", "code")
            )
            if arguments is None:
                arguments = {key: value for key, value in item.items() if key not in _KNOWN}
            self.call(name, arguments, item.get("call_id"), speaker)
            results = next((item[key] for key in _RESULTS if item.get(key)), None)
            if (
                results is not None or "call_id" not in item
            ):  # a tool that runs at the server answers in its call
                drawn = kind == "image_generation_call" and results is not None
                self.answer("[image]" if drawn else results, item.get("call_id"), name)
        elif kind not in _UNSAID:
            raise self.error(f"expected an item of the Responses API, found {kind!r}", ".type")


def _kind_of(item: Object) -> str:
    """The kind of an item that does not say it."""
    if "role" not in item and "call_id" in item:
        return "function_call_output" if "output" in item else "function_call"
    return "message"


def _id(value: object) -> object:
    """An id; one that is a list or an object, as some tracers join ids, as its JSON."""
    return written(value) if isinstance(value, list | Mapping) else value


def _known_part(part: object) -> object:
    """A part of Gemini's API, which has no `type`, or of Koog's as one of a type that is known; anything else as it is."""
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "function" and isinstance(part.get("function"), Mapping):
        return {"type": "tool_call", "id": part.get("id"), **part["function"]}
    if "type" in part:
        return part
    call = _first(part, ("function_call", "functionCall"))
    if isinstance(call, Mapping):
        return {**call, "type": "tool_call", "arguments": call.get("args")}
    answer = _first(part, ("function_response", "functionResponse"))
    if isinstance(answer, Mapping):
        return {
            **answer,
            "type": "tool_result",
            "tool_use_id": answer.get("id"),
            "content": answer.get("response"),
        }
    if isinstance(part.get("text"), str):
        return {**part, "type": "thinking" if part.get("thought") is True else "text"}
    return part


def _is_answer(kind: object) -> bool:
    return kind in _ANSWERS or str(kind).endswith("tool_result")


def _shown(part: Object) -> str:
    """A part's text, or "[image]" and the like for a part that is no text; "" for another."""
    kind = str(part.get("modality") or part.get("type"))
    if part.get("type") in _TEXTS:
        return str(_first(part, ("text", "content", "value", "refusal")) or "")
    source = part.get("source")
    if isinstance(source, Mapping) and source.get("type") == "text":
        return str(source.get("data"))
    if "image" in kind or "screenshot" in kind:
        return "[image]"
    return f"[{kind}]" if any(word in kind for word in _MEDIA) else ""


def _open(part: Object) -> Object:
    return {key: value for key, value in part.items() if not key.startswith("encrypted")}


def _parts(content: object, matches: Callable[[Any], bool]) -> list[Object]:
    listed = content if isinstance(content, list) else []
    return [part for part in listed if isinstance(part, Mapping) and matches(part.get("type"))]


def _maybe(data: Object, key: str) -> Sequence[Any]:
    value = data.get(key) or []
    return value if isinstance(value, list) else [value]


def written(value: object) -> str:
    """JSON, on one line."""
    return json.dumps(value, ensure_ascii=False)


def _first(data: Object, keys: Sequence[str]) -> Any:
    return next((data[key] for key in keys if key in data), None)


def text_or_none(value: object) -> str | None:
    """A text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


def object_or_empty(value: object) -> Object:
    """An object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def loaded(value: object) -> Any:
    """JSON in a text; what is no such thing, as it is."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(value) if isinstance(value, str) else value
    return value


def is_item(value: object) -> bool:
    """Whether something is an item of the Responses API."""
    kind = object_or_empty(value).get("type")
    return isinstance(kind, str) and (
        kind in ("message", "reasoning", *_UNSAID) or kind.endswith(("_call", "_output"))
    )


def plain_messages(messages: object, where: str | None, inside: str = "messages") -> list[dict[str, Any]]:
    """The messages of a row (a list, or its JSON) as the OpenAI chat API has them; one that has that form already stays as it is, other fields and all.

    Raises:
        InputError: something else; `field` names the place, as `messages[3].role`.
    """
    if isinstance(messages, str) and isinstance(listed := loaded(messages), list):
        messages = listed  # as SWE-smith's tables hold them
    if isinstance(messages, Sequence) and not isinstance(messages, str | bytes):
        messages = list(messages)
    result: list[dict[str, Any]] = []
    chat = Chat(where=where)
    with chat.reading("chat messages"):
        for at, message in enumerate(chat.list_of(messages, inside)):
            chat.part, chat.messages = f"{inside}[{at}]", []
            chat.append(message)
            same = len(chat.messages) == 1 and all(
                message.get(key) == value for key, value in chat.messages[0].items() if value
            )
            if not same and isinstance(message, Mapping) and text_or_none(message.get("id")):
                for part in chat.messages:
                    if part["role"] == "assistant":
                        part["id"] = message["id"]
            result += [dict(message)] if same else chat.messages
    return result
