"""Traces of agents as their tools write them, brought into one form: chat messages (`solutions.inputs`).

===============  ===============================================================================================
format           rows
===============  ===============================================================================================
messages         chat messages alone, one a line or in one list: `role`, `content`
sharegpt         ShareGPT: `conversations` of {`from`, `value`} (or {`role`, `content`})
chat-calls       calls of the OpenAI chat API: `request` (with `messages`), `response` (with `choices`); each is a trace
responses        OpenAI Responses: `input` (a text or items), `output` (items), optional `instructions`
swe-agent        a `.traj` of SWE-agent: `trajectory`, `history`, `info`; a demonstration has `history` alone
mini-swe-agent   a `.traj.json` of mini-swe-agent: `trajectory_format`, `messages`, `info`
claude-code      a session of Claude Code: one event a line, `type`, `message`, `sessionId`
codex            a session of Codex: one event a line, `type`, `payload`
otel             OTLP JSON: `resourceSpans`, whose spans have `gen_ai.input.messages` and `gen_ai.output.messages`
langsmith        runs of LangSmith: `run_type`, `inputs`, `outputs`, `trace_id`; a root may hold `child_runs`
langfuse         a trace of Langfuse with `observations`, or observations: `traceId`, `type`, `input`, `output`
who-and-when     a conversation of AutoGen or CrewAI: `question`, and `history` of {`content`, `role`, `name`}
===============  ===============================================================================================

What a model writes until something comes back (thoughts, texts, tool calls) is one turn. Rows of events are gathered by session or trace
when the file has ended, so a file of them is held in memory. Calls of a model that repeat the conversation so far (spans, runs,
generations) add only what is new in them, in the order of time; two calls of different agents make one conversation with two speakers.

Left out: encrypted thoughts; Codex's `event_msg`, which repeats; what is neither a user's nor an assistant's line of Claude Code. A
subagent of Claude Code (`isSidechain`) is a trace of its own. Branches of a session stand in the order of the file. A picture that the
user or a tool gave is the text "[image]"; one by the assistant is refused.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Refusal
from stepmark.store import Row, json_type
from stepmark.store.columns import NAMES

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
_CALLS = ("tool_use", "tool_call", "tool-call", "server_tool_use")
_ANSWERS = ("tool_result", "tool_call_response", "tool-result")


@dataclass(kw_only=True)
class Chat:
    """A conversation that is being put together."""

    where: str
    """The place in errors; that of the event that is being read."""
    part: str = ""
    """The part of it that is being read."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Further columns of the row: `id`, `source`, `answer`."""

    def error(self, message: str, inside: str = "") -> InputError:
        """An error about what is being read."""
        return InputError(message, where=self.where, field=f"{self.part}{inside}".lstrip(".") or None)

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

    def call(self, name: object, arguments: object, id: object, speaker: str | None = None) -> None:
        """Add a tool call to the turn."""
        if not isinstance(name, str) or not name.strip():
            raise self.error(f"expected a tool's name, found {json_type(name)}", ".name")
        written = arguments if isinstance(arguments, str) else _json({} if arguments is None else arguments)
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": written}}
        self.turn(speaker).setdefault("tool_calls", []).append(call)

    def answer(self, content: object, id: object, name: object = None) -> None:
        """Add what a tool gave back."""
        message: dict[str, Any] = {"role": "tool", "content": self.plain(content), "tool_call_id": id}
        self.messages.append(message | ({"name": name} if isinstance(name, str) and name else {}))

    def plain(self, content: object) -> str:
        """A content that no one rates, as a text."""
        if isinstance(content, str):
            return content
        if isinstance(content, Sequence) and all(
            isinstance(part, dict) and "type" in part for part in content
        ):
            return "\n".join(
                str(part.get("text", part.get("content", "")))
                if part["type"] in _TEXTS
                else f"[{_kind(part)}]"
                for part in content
            )
        return "" if content is None else _json(content)

    def message(self, data: object, speaker: str | None = None) -> None:
        """Add a message of the OpenAI chat API, of Anthropic, of LangChain or of OpenTelemetry."""
        if not isinstance(data, Mapping):
            raise self.error(f"expected a message (an object), found {json_type(data)}")
        data = standard_message(data)
        kind = data.get("role") or data.get("type")
        kwargs = data.get("kwargs")
        if isinstance(kwargs, Mapping):  # as LangChain serialises it
            return self.message({**kwargs, "role": (data.get("id") or [""])[-1]}, speaker)
        lower = str(kind).lower().removesuffix("chunk")
        role = _ROLES.get(lower, lower)
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise self.error(f"expected the role of a message, found {kind!r}", ".role")
        name, content = _text(data.get("name")), data.get("parts", data.get("content"))
        speaker = (name or speaker) if role == "assistant" else name
        beside = data.get("additional_kwargs")
        extra: Object = beside if isinstance(beside, Mapping) else {}
        if role == "tool" and not _has_part(content, _ANSWERS):
            return self.answer(content, data.get("tool_call_id"), name)
        for holder in (data, extra) if role == "assistant" else ():
            thought = next((holder[key] for key in _FIELDS if _text(holder.get(key))), None)
            if thought is not None:
                self.write(role, thought, speaker, "reasoning_content")
                break
        self._content(role, content, speaker)
        if _has_part(content, _CALLS):  # Anthropic's part and LangChain's list are one call
            return None
        for call in data.get("tool_calls") or extra.get("tool_calls") or ():
            function = call.get("function", call) if isinstance(call, Mapping) else None
            if not isinstance(function, Mapping):
                raise self.error(f"expected a tool call, found {json_type(call)}", ".tool_calls")
            self.call(
                function.get("name"), function.get("arguments", function.get("args")), call.get("id"), speaker
            )
        return None

    def _content(self, role: str, content: object, speaker: str | None) -> None:
        if content is None or isinstance(content, str):
            if content or role != "assistant":
                self.write(role, content or "", speaker)
            return
        if not isinstance(content, list):
            raise self.error(f"expected a text or a list of parts, found {json_type(content)}", ".content")
        texts = []
        for at, raw in enumerate(content):
            part = {"type": "text", "text": raw} if isinstance(raw, str) else raw
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in _TEXTS:
                text = part.get("text", part.get("content", part.get("refusal", "")))
                if role == "assistant":
                    self.write(role, str(text), speaker)
                else:
                    texts.append(str(text))
            elif kind in _THOUGHTS:
                if thought := next(filter(None, map(_text, map(part.get, (kind, "text", "content")))), ""):
                    self.write("assistant", thought, speaker, "reasoning_content")
            elif kind in _CALLS:
                arguments = _first(part, ("input", "arguments", "args"))
                self.call(part.get("name", part.get("toolName")), arguments, part.get("id"), speaker)
            elif kind in _ANSWERS:
                id_ = part.get("tool_use_id", part.get("id"))
                self.answer(
                    _first(part, ("content", "response", "result")), id_, speaker if role == "tool" else None
                )
            elif kind not in _HIDDEN and role == "assistant":
                raise self.error(
                    f"expected text, thought or tool calls, found {kind!r}", f".content[{at}].type"
                )
            elif kind not in _HIDDEN:
                texts.append(f"[{_kind(part)}]")
        if texts:
            self.write(role, "\n".join(texts), speaker)

    def item(self, item: object, speaker: str | None = None) -> None:
        """Add an item of the OpenAI Responses API."""
        if not isinstance(item, Mapping):
            raise self.error(f"expected an item (an object), found {json_type(item)}")
        kind = str(item.get("type", "message"))
        speaker = _text(item.get("agent")) or speaker
        if kind == "message":
            self.message(item, speaker)
        elif kind == "reasoning":
            for part in [
                *(item.get("content") or ()),
                *(() if item.get("content") else item.get("summary") or ()),
            ]:
                text = part.get("text") if isinstance(part, Mapping) else None
                if isinstance(text, str) and text:
                    self.write("assistant", text, speaker, "reasoning_content")
        elif kind.endswith("_output"):
            self.answer(item.get("output"), item.get("call_id"), item.get("name"))
        elif kind.endswith("_call"):
            name = item["name"] if "name" in item else kind.removesuffix("_call")
            arguments = _first(item, ("arguments", "input", "action", "queries", "code"))
            self.call(name, arguments, item.get("call_id"), speaker)
            results = next(
                (item[key] for key in ("output", "outputs", "results", "result") if item.get(key)), None
            )
            if results is not None:  # a tool that runs at the server answers in its call
                self.answer(results, item.get("call_id"), name)
        else:
            raise self.error(f"expected an item of the Responses API, found {kind!r}", ".type")


def standard_message(message: Object) -> dict[str, Any]:
    """A chat message with a legacy `function_call` as a tool call, and the arguments of calls as texts."""
    result = dict(message)
    if result.get("role") == "function":
        result["role"] = "tool"
    if isinstance(result.get("function_call"), Mapping) and not result.get("tool_calls"):
        result["tool_calls"] = [{"type": "function", "function": result.pop("function_call")}]
    if isinstance(result.get("tool_calls"), list):
        result["tool_calls"] = [_standard_call(call) for call in result["tool_calls"]]
    return result


def _standard_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    return {**call, "function": {**function, "arguments": _json(function["arguments"])}}


def _kind(part: Object) -> str:
    kind = str(part.get("type", part.get("modality", "part")))
    return "image" if "image" in kind else kind


def _has_part(content: object, kinds: Sequence[str]) -> bool:
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") in kinds for part in content
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _list(chat: Chat, value: object, inside: str) -> list[Any]:
    if not isinstance(value, list):
        raise chat.error(f"expected a list, found {json_type(value)}", inside)
    return value


def _objects(chat: Chat, value: object, inside: str) -> Iterator[Object]:
    """The objects of a list, each with its place in errors."""
    for at, entry in enumerate(_list(chat, value, inside)):
        chat.part = f"{inside}[{at}]"
        if not isinstance(entry, Mapping):
            raise chat.error(f"expected an object, found {json_type(entry)}")
        yield entry


def _first(data: Object, keys: Sequence[str]) -> Any:
    """The value of the first of the keys that is there; None for none."""
    return next((data[key] for key in keys if key in data), None)


def _each(chat: Chat, listed: object, inside: str, add: Callable[..., None], **more: Any) -> None:
    before = chat.part
    for at, entry in enumerate(_list(chat, listed, inside)):
        chat.part = f"{before}{inside}[{at}]"
        add(entry, **more)
    chat.part = before


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# --- calls of a model that repeat the conversation so far ------------------------------------------------------


_Call = tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]
"""One call of a model: the messages that it was given, and those that it wrote."""


def _joined(chat: Chat, calls: Iterable[_Call]) -> None:
    """The conversation of calls in the order of time: of each what is new in it."""
    seen: Counter[str] = Counter()
    for prompt, reply in calls:
        repeated: Counter[str] = Counter()
        for message in prompt:
            key = _key(message)
            repeated[key] += 1
            if repeated[key] > seen[key]:
                chat.messages.append(message)
        seen |= repeated
        for message in reply:
            chat.messages.append(message)
            seen[_key(message)] += 1


def _key(message: Object) -> str:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return _json([message["role"], (message.get("content") or "").strip(), calls])


def _read(chat: Chat, add: Callable[[Chat], None]) -> list[dict[str, Any]]:
    """The messages that `add` adds to a chat of its own."""
    own = Chat(where=chat.where, part=chat.part)
    add(own)
    return own.messages


def _messages(chat: Chat, value: object, inside: str, speaker: str | None = None) -> list[dict[str, Any]]:
    """The messages that an input or an output of a model call holds, in the shapes that tracers write."""
    if isinstance(value, str):
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(value)
    if isinstance(value, Mapping):
        for key in ("messages", "generations", "choices"):
            if isinstance(value.get(key), list):
                return _messages(chat, value[key], f"{inside}.{key}", speaker)
        for key in ("message", "output"):
            if isinstance(value.get(key), Mapping):
                return _messages(chat, value[key], f"{inside}.{key}", speaker)
        value = [value]
    if isinstance(value, str):
        value = [{"role": "assistant" if "out" in inside else "user", "content": value}]
    listed = _list(chat, value, inside)
    while len(listed) == 1 and isinstance(listed[0], list):  # LangChain's batch of one
        listed = listed[0]
    unwrapped = [
        entry["message"]
        if isinstance(entry, Mapping) and isinstance(entry.get("message"), Mapping)
        else entry
        for entry in listed
    ]
    return _read(chat, lambda own: _each(own, unwrapped, inside, own.message, speaker=speaker))


# --- the formats ------------------------------------------------------------------------------------------------


def _bare(chat: Chat, events: Sequence[Object]) -> None:
    for event in events:
        chat.where = event["where"]
        chat.message(event)


def _sharegpt(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    if _text(data.get("system")):
        chat.write("system", data["system"])
    for turn in _objects(chat, data["conversations"], "conversations"):
        message = {
            "role": turn.get("from", turn.get("role")),
            "content": turn.get("value", turn.get("content")),
        }
        if (
            message["role"] == "function_call"
        ):  # as LLaMA-Factory writes a call: its JSON in a turn of its own
            message = {"role": "assistant", "function_call": _call_of(chat, message["content"])}
        chat.message({**turn, **message})
    chat.facts |= {"id": data.get("id"), "source": _text(data.get("model"))}


def _call_of(chat: Chat, text: object) -> Object:
    with contextlib.suppress(TypeError, json.JSONDecodeError):
        if isinstance(call := json.loads(text), dict):  # type: ignore[arg-type]
            return call
    raise chat.error(
        f'expected a call as JSON, {{"name": …, "arguments": …}}, found {json_type(text)}', ".value"
    )


def _chat_call(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    if len(data["response"]["choices"]) != 1:
        raise chat.error(f"expected one choice, found {len(data['response']['choices'])}", "response.choices")
    for inside in ("request", "response"):
        chat.messages += _messages(chat, data[inside], inside)
    chat.facts |= {"id": _text(data.get("id")), "source": _text(data["request"].get("model"))}


def _responses(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    if _text(data.get("instructions")):
        chat.write("system", data["instructions"])
    if isinstance(data.get("input"), str):
        chat.write("user", data["input"])
    elif data.get("input") is None:
        raise chat.error("expected what was asked, a text or items, beside 'output'; found none", "input")
    else:
        _each(chat, data["input"], "input", chat.item)
    _each(chat, data["output"], "output", chat.item)
    chat.facts = {"id": _text(data.get("id")), "source": _text(data.get("model"))}


def _swe_agent(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    for message in _objects(chat, data.get("history"), "history"):
        if message.get("is_demo") or message.get("message_type") == "demonstration":
            continue
        if message.get("message_type") == "observation":
            ids = message.get("tool_call_ids") or [None]
            chat.answer(message.get("content"), ids[0])
        else:
            plain = {key: value for key, value in message.items() if key not in ("thought", "name")}
            thinking = message.get("thinking_blocks")
            if thinking:
                plain["content"] = [*thinking, {"type": "text", "text": chat.plain(message.get("content"))}]
            chat.message(plain)


def _mini_swe_agent(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    for message in _objects(chat, data["messages"], "messages"):
        extra = message.get("extra")
        if message.get("role") == "exit":
            continue
        if isinstance(message.get("output"), list):
            _each(chat, message["output"], ".output", chat.item)
        elif "role" not in message or str(message.get("type", "")).endswith("_output"):
            chat.item(message)
        elif message["role"] == "user" and isinstance(extra, Mapping) and "returncode" in extra:
            chat.answer(message.get("content"), None)
        else:
            chat.message(message)


def _claude_code(chat: Chat, events: Sequence[Object]) -> None:
    for event in events:
        chat.where = event["where"]
        if event.get("type") not in ("user", "assistant"):
            continue
        chat.part = "message"
        message = event.get("message")
        if not isinstance(message, Mapping):
            raise chat.error(f"expected a message (an object), found {json_type(message)}")
        chat.message({"role": event["type"], "content": message.get("content")})
        if chat.facts.get("source") is None and _text(message.get("model")):
            chat.facts["source"] = message["model"]


def _codex(chat: Chat, events: Sequence[Object]) -> None:
    for event in events:
        chat.where, chat.part = event["where"], "payload"
        payload = event.get("payload")
        if not isinstance(payload, Mapping):
            raise chat.error(f"expected an object, found {json_type(payload)}")
        if event["type"] == "response_item":
            chat.item(payload)
        elif event["type"] == "compacted":
            chat.write("user", str(payload.get("message", "")))
        elif event["type"] == "turn_context" and _text(payload.get("model")):
            chat.facts["source"] = payload["model"]
        elif event["type"] == "session_meta" and _text(payload.get("instructions")):
            chat.write("system", payload["instructions"])


def _otel(chat: Chat, events: Sequence[Object]) -> None:
    calls: list[_Call] = []
    for span in sorted(events, key=lambda span: int(span.get("startTimeUnixNano") or 0)):
        chat.where = span["where"]
        attributes = _attributes(span.get("attributes"))
        for event in span.get("events") or ():
            attributes = {**_attributes(event.get("attributes")), **attributes}
        if (
            "gen_ai.output.messages" not in attributes
            or attributes.get("gen_ai.operation.name") == "invoke_agent"
        ):
            continue
        speaker = _text(attributes.get("gen_ai.agent.name"))
        instructions = attributes.get("gen_ai.system_instructions")
        system = [{"role": "system", "parts": _loaded(instructions)}] if instructions else []
        sent = attributes.get("gen_ai.input.messages")
        prompt = [
            *_messages(chat, system, ""),
            *(_messages(chat, sent, "gen_ai.input.messages") if sent else ()),
        ]
        reply = _messages(chat, attributes["gen_ai.output.messages"], "gen_ai.output.messages", speaker)
        calls.append((prompt, reply))
        chat.facts["source"] = _text(
            attributes.get("gen_ai.response.model", attributes.get("gen_ai.request.model"))
        )
    if not calls:
        raise chat.error(
            "expected spans with gen_ai.input.messages and gen_ai.output.messages, found none in this trace; tracers write them "
            "where the capture of contents is switched on"
        )
    _joined(chat, calls)


def _loaded(value: object) -> object:
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value


def _attributes(listed: object) -> dict[str, Any]:
    pairs = listed if isinstance(listed, list) else []
    return {
        pair["key"]: _value(pair.get("value")) for pair in pairs if isinstance(pair, dict) and "key" in pair
    }


def _value(value: object) -> Any:
    """A value of OTLP JSON as plain JSON."""
    if not isinstance(value, Mapping):
        return value
    if "arrayValue" in value:
        return [_value(entry) for entry in value["arrayValue"].get("values", ())]
    if "kvlistValue" in value:
        return _attributes(value["kvlistValue"].get("values"))
    return next(iter(value.values()), None)


def _langsmith(chat: Chat, events: Sequence[Object]) -> None:
    calls: list[_Call] = []
    runs = sorted(events, key=lambda run: str(run.get("dotted_order") or run.get("start_time") or ""))
    models = [run for run in runs if run.get("run_type") == "llm"]
    whole = [run for run in runs if not run.get("parent_run_id") and run.get("run_type") != "llm"]
    for run in models or whole[:1]:
        chat.where = run["where"]
        extra = run.get("extra")
        metadata = (extra.get("metadata") if isinstance(extra, Mapping) else None) or {}
        speaker = _text(metadata.get("lc_agent_name"))
        prompt = _messages(chat, run.get("inputs"), "inputs")
        reply = _messages(chat, run.get("outputs"), "outputs", speaker)
        if not models:  # a chain's outputs repeat its inputs
            reply = (
                reply[len(prompt) :] if [*map(_key, reply)][: len(prompt)] == [*map(_key, prompt)] else reply
            )
        calls.append((prompt, reply))
        chat.facts["source"] = _text(metadata.get("ls_model_name"))
    if not calls:
        raise chat.error(
            "expected a run whose run_type is 'llm', or a root with messages; found none", "run_type"
        )
    _joined(chat, calls)


def _langfuse(chat: Chat, events: Sequence[Object]) -> None:
    calls: list[_Call] = []
    for observation in sorted(events, key=lambda event: str(event.get("startTime") or "")):
        chat.where = observation["where"]
        if observation.get("type") == "GENERATION":
            prompt = _messages(chat, observation.get("input"), "input")
            reply = _messages(chat, observation.get("output"), "output")
            calls.append((prompt, reply))
            chat.facts["source"] = _text(observation.get("model"))
    if not calls:
        raise chat.error("expected an observation of the type GENERATION, found none", "observations")
    _joined(chat, calls)


def _who_and_when(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    chat.write("user", data["question"] if isinstance(data.get("question"), str) else "")
    for entry in _objects(chat, data["history"], "history"):
        text = entry.get("content")
        if not isinstance(text, str):
            raise chat.error("expected an entry with a text under 'content'")
        # Every entry is a step, also a blank one: the labels count entries.
        speaker = _text(entry.get("name")) or _text(entry.get("role"))
        message = {"role": "assistant", "content": text if text.strip() else "(nothing)"}
        chat.messages.append(message | ({"name": speaker} if speaker else {}))
    chat.facts = {"id": _text(data.get("question_ID")), "answer": _text(data.get("ground_truth"))}


# --- recognising and gathering ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TraceFormat:
    """A format of traces."""

    about: str
    """What it is, in one line."""
    matches: Callable[[Object], bool]
    """Whether a row is of it."""
    read: Callable[[Chat, Sequence[Object]], None]
    """Writes the events of one trace into a chat; a format of whole traces has one."""
    events: Callable[[Object], Iterable[tuple[str, Object]]] | None = None
    """The events of a row, each with the trace that it belongs to; None where a row is a trace."""
    used: tuple[str, ...] = ()
    """The columns that are read of a row that is a trace; the others go into its `meta`."""


def _spans(data: Object) -> Iterator[tuple[str, Object]]:
    for resource in data["resourceSpans"]:
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield str(span.get("traceId", "")), span


def _runs(data: Object) -> Iterator[tuple[str, Object]]:
    key = str(data.get("trace_id") or data.get("id") or "")
    waiting = [data]
    while waiting:
        run = waiting.pop()
        yield key, {name: value for name, value in run.items() if name != "child_runs"}
        waiting += run.get("child_runs") or ()


def _observations(data: Object) -> Iterator[tuple[str, Object]]:
    if isinstance(data.get("observations"), list):
        return ((str(data.get("id", "")), observation) for observation in data["observations"])
    return iter([(str(data.get("traceId", "")), data)])


def _of_session(data: Object) -> Iterator[tuple[str, Object]]:
    side = f"/{data.get('agentId') or 'subagent'}" if data.get("isSidechain") else ""
    if data.get("type") in ("user", "assistant"):
        yield f"{data.get('sessionId', '')}{side}", data


def _has(*keys: str) -> Callable[[Object], bool]:
    return lambda data: all(key in data for key in keys)


def _is_message(data: Object) -> bool:
    said = not data.keys().isdisjoint(("content", "parts", "tool_calls"))
    return isinstance(data.get("role"), str) and said and data.keys().isdisjoint(NAMES)


def _is_of_swe_agent(data: Object) -> bool:
    if "trajectory" in data:
        return "history" in data
    history = data.get("history")
    entries = isinstance(history, list) and all(
        isinstance(entry, Mapping) and "role" in entry for entry in history
    )
    return bool(entries and history) and data.keys().isdisjoint(NAMES)


def _is_sharegpt(data: Object) -> bool:
    # A turn that is a sign is RLHFlow's.
    turns = data.get("conversations")
    return (
        bool(turns)
        and isinstance(turns, list)
        and all(isinstance(turn, dict) and turn.get("content") not in ("+", "-") for turn in turns)
    )


def _is_chat_call(data: Object) -> bool:
    keys = {"request": "messages", "response": "choices"}
    return all(
        isinstance(data.get(k), Mapping) and isinstance(data[k].get(inside), list)
        for k, inside in keys.items()
    )


def _is_response(data: Object) -> bool:
    output = data.get("output")
    items = isinstance(output, list) and any(isinstance(item, dict) and "type" in item for item in output)
    return items and (data.get("object") == "response" or "input" in data)


def _is_of_session(data: Object) -> bool:
    return isinstance(data.get("type"), str) and not data.keys().isdisjoint(
        ("sessionId", "leafUuid", "snapshot")
    )


def _is_observed(data: Object) -> bool:
    return isinstance(data.get("observations"), list) or _has("traceId", "type", "input")(data)


_CODEX = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")

TRACES: Mapping[str, TraceFormat] = {
    "messages": TraceFormat(
        about="chat messages alone, one a line or in one list", matches=_is_message, read=_bare,
        events=lambda data: [("", data)],
    ),
    "sharegpt": TraceFormat(
        about="ShareGPT: conversations of from and value", matches=_is_sharegpt, read=_sharegpt,
        used=("id", "model", "system", "conversations"),
    ),
    "chat-calls": TraceFormat(
        about="logged calls of the OpenAI chat API: request and response", matches=_is_chat_call, read=_chat_call,
        used=("id", "request", "response"),
    ),
    "responses": TraceFormat(
        about="OpenAI Responses: input and output items", matches=_is_response, read=_responses,
        used=("id", "object", "model", "instructions", "input", "output"),
    ),
    "swe-agent": TraceFormat(
        about="trajectories of SWE-agent: .traj", matches=_is_of_swe_agent, read=_swe_agent, used=("trajectory", "history"),
    ),
    "mini-swe-agent": TraceFormat(
        about="trajectories of mini-swe-agent: .traj.json", matches=_has("trajectory_format", "messages"), read=_mini_swe_agent,
        used=("trajectory_format", "messages"),
    ),
    "claude-code": TraceFormat(
        about="sessions of Claude Code: .jsonl", matches=_is_of_session, read=_claude_code, events=_of_session
    ),
    "codex": TraceFormat(
        about="sessions of Codex: .jsonl", matches=lambda data: data.get("type") in _CODEX and "payload" in data, read=_codex,
        events=lambda data: [("", data)],
    ),
    "otel": TraceFormat(
        about="OpenTelemetry GenAI spans: OTLP JSON", matches=_has("resourceSpans"), read=_otel, events=_spans
    ),
    "langsmith": TraceFormat(
        about="runs of LangSmith", matches=_has("run_type", "inputs"), read=_langsmith, events=_runs
    ),
    "langfuse": TraceFormat(
        about="traces of Langfuse with observations, or observations", matches=_is_observed, read=_langfuse, events=_observations
    ),
    "who-and-when": TraceFormat(
        about="conversations of AutoGen and CrewAI, as Who&When holds them", matches=_has("question", "history"), read=_who_and_when,
        used=("question", "history", "question_ID", "ground_truth"),
    ),
}  # fmt: skip
"""Name: format. `interchange.trace_writers` writes two of them."""


def trace_format(data: Object) -> str | None:
    """The name of the format that a row is of; None for one that is no such trace."""
    return next((name for name, format in TRACES.items() if format.matches(data)), None)


def chat_rows(rows: Iterable[Row | Refusal], *, keep_going: bool = False) -> Iterator[Row | Refusal]:
    """The same rows, with those of traces as rows of `messages`; events stand as one row a trace, after the last row."""
    gathered: dict[tuple[str, str], tuple[Row, list[Object]]] = {}
    for row in rows:
        name = None if isinstance(row, Refusal) or row.record is not None else trace_format(row.data)
        if isinstance(row, Refusal) or name is None:
            yield row
        elif (split := TRACES[name].events) is None:
            yield from _chat_row(row, name, [row.data], "", keep_going)
        else:
            try:
                for key, event in split(row.data):
                    if not isinstance(event, Mapping):
                        raise row.error(f"expected an event (an object), found {json_type(event)}")
                    _, events = gathered.setdefault((name, key), (row, []))
                    events.append({**event, "where": row.where})
            except (TypeError, AttributeError):  # an object is something else, anywhere in the nest
                raise row.error(f"expected a row of {name}, found another shape") from None
    for (name, key), (row, events) in gathered.items():
        yield from _chat_row(row, name, events, key, keep_going)


def _chat_row(
    row: Row, name: str, events: Sequence[Object], key: str, keep_going: bool
) -> Iterator[Row | Refusal]:
    chat = Chat(where=row.where)
    try:
        TRACES[name].read(chat, events)
    except InputError as error:
        if not keep_going:
            raise
        yield Refusal(solution=None, error=error)
        return
    messages = [
        message
        for message in chat.messages
        if message["role"] != "assistant"
        or any((message.get(key) or "").strip() for key in ("content", "reasoning_content"))
        or message.get("tool_calls")
    ]
    facts = {"id": key or None, **chat.facts}
    if TRACES[name].events is None:
        rest = {key: value for key, value in row.data.items() if key not in TRACES[name].used}
        facts["meta"] = {key: value for key, value in rest.items() if value is not None} or None
    data = {"messages": messages, **{name: value for name, value in facts.items() if value is not None}}
    yield replace(row, data=data, original=None)
