"""Traces of agents as their tools write them, brought into one form: chat messages (`data.conversations`).

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

Left out: encrypted thoughts; Codex's `event_msg`, which repeats; what is neither a user's nor an assistant's line of Claude Code, and what
Claude Code itself wrote as an assistant ("<synthetic>"); calls of a model that failed. A subagent of Claude Code (`isSidechain`) is a trace
of its own. Branches of a session stand in the order of the file. A picture that the user or a tool gave is the text "[image]"; one by the
assistant is refused. A tool that ran at the server answers in its call; a log that does not hold what it gave has an empty answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepmark.data.columns import COMMON, CONTENT
from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row
from stepmark.data.traces.messages import Chat, Object, is_item, loaded, text_or_none, written
from stepmark.errors import InputError
from stepmark.records import Refusal

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
    functions = [call["function"] for call in message.get("tool_calls", ())]
    # Tools that log write arguments anew, with other blanks.
    calls = [(function["name"], loaded(function["arguments"])) for function in functions]
    return written([message["role"], (message.get("content") or "").strip(), calls])


def _messages(chat: Chat, value: object, inside: str, speaker: str | None = None) -> list[dict[str, Any]]:
    """The messages that an input or an output of a model call holds, in the shapes that tracers write."""
    if isinstance(value, str) and _is_conversation(content := loaded(value)):
        value = content
    if isinstance(value, Mapping):
        for key in ("messages", "generations", "choices", "output"):
            if isinstance(value.get(key), list):
                if key in ("generations", "choices"):
                    _check_one(chat, value[key], f"{inside}.{key}")
                return _messages(chat, value[key], f"{inside}.{key}", speaker)
        for key in ("message", "output"):
            if isinstance(value.get(key), Mapping):
                return _messages(chat, value[key], f"{inside}.{key}", speaker)
        value = [value]
    if isinstance(value, str):
        value = [{"role": "assistant" if "out" in inside else "user", "content": value}]
    listed = chat.list_of(value, inside)
    while len(listed) == 1 and isinstance(listed[0], list):  # LangChain's batch of one
        listed = listed[0]
    own = Chat(where=chat.where)
    for at, entry in enumerate(listed):
        held = entry.get("message") if isinstance(entry, Mapping) else None
        message = held if isinstance(held, Mapping) else entry
        own.part = f"{chat.part}{inside}[{at}]"
        if is_item(message):
            own.item(message, speaker)
        else:
            own.append(message, speaker)
    return own.messages


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


# --- the formats ------------------------------------------------------------------------------------------------


def _bare(chat: Chat, events: Sequence[Object]) -> None:
    for event in events:
        chat.where = event["where"]
        chat.append(event)


def _sharegpt(chat: Chat, events: Sequence[Object]) -> None:
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


def _chat_call(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    for inside in ("request", "response"):
        chat.messages += _messages(chat, data[inside], inside)
    chat.facts |= {"id": text_or_none(data.get("id")), "source": text_or_none(data["request"].get("model"))}


def _responses(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    if text_or_none(data.get("instructions")):
        chat.write("system", data["instructions"])
    if isinstance(data.get("input"), str):
        chat.write("user", data["input"])
    elif data.get("input") is None:
        raise chat.error("expected what was asked, a text or items, beside 'output'; found none", "input")
    else:
        chat.each(data["input"], "input", chat.item)
    chat.each(data["output"], "output", chat.item)
    chat.facts = {"id": text_or_none(data.get("id")), "source": text_or_none(data.get("model"))}


def _swe_agent(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    for message in chat.objects(data.get("history"), "history"):
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
            chat.append(plain)


def _mini_swe_agent(chat: Chat, events: Sequence[Object]) -> None:
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


def _claude_code(chat: Chat, events: Sequence[Object]) -> None:
    for event in events:
        chat.where = event["where"]
        if event.get("type") not in ("user", "assistant"):
            continue
        chat.part = "message"
        message = event.get("message")
        if not isinstance(message, Mapping):
            raise chat.error(f"expected a message (an object), found {json_type(message)}")
        if message.get("model") == "<synthetic>":  # an error of the API, which the model did not write
            continue
        chat.message({"role": event["type"], "content": message.get("content")})
        if chat.facts.get("source") is None and text_or_none(message.get("model")):
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
        elif event["type"] == "turn_context" and text_or_none(payload.get("model")):
            chat.facts["source"] = payload["model"]
        elif event["type"] == "session_meta":
            chat.facts.setdefault("id", text_or_none(payload.get("id")))
            base = payload.get("base_instructions")
            if rules := text_or_none(payload.get("instructions")) or (
                text_or_none(base.get("text")) if isinstance(base, Mapping) else None
            ):
                chat.write("system", rules)


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
        speaker = text_or_none(attributes.get("gen_ai.agent.name"))
        instructions = attributes.get("gen_ai.system_instructions")
        system = [{"role": "system", "parts": loaded(instructions)}] if instructions else []
        sent, written = (loaded(attributes.get(f"gen_ai.{side}.messages")) for side in ("input", "output"))
        prompt = [
            *_messages(chat, system, ""),
            *(_messages(chat, sent, "gen_ai.input.messages") if sent else ()),
        ]
        reply = _messages(chat, written, "gen_ai.output.messages", speaker)
        calls.append((prompt, reply))
        chat.facts["source"] = text_or_none(
            attributes.get("gen_ai.response.model", attributes.get("gen_ai.request.model"))
        )
    if not calls:
        raise chat.error(
            "expected spans with gen_ai.input.messages and gen_ai.output.messages, found none in this trace; tracers write them "
            "where the capture of contents is switched on"
        )
    _joined(chat, calls)


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
        speaker = text_or_none(metadata.get("lc_agent_name"))
        if not run.get("outputs"):
            continue
        prompt = _messages(chat, run.get("inputs"), "inputs")
        reply = _messages(chat, run["outputs"], "outputs", speaker)
        if not models:  # a chain's outputs repeat its inputs
            reply = (
                reply[len(prompt) :] if [*map(_key, reply)][: len(prompt)] == [*map(_key, prompt)] else reply
            )
        calls.append((prompt, reply))
        chat.facts["source"] = text_or_none(metadata.get("ls_model_name"))
    if not calls:
        raise chat.error(
            "expected a run whose run_type is 'llm', or a root with messages, that has outputs; found none",
            "run_type",
        )
    _joined(chat, calls)


def _langfuse(chat: Chat, events: Sequence[Object]) -> None:
    calls: list[_Call] = []
    for observation in sorted(events, key=lambda event: str(event.get("startTime") or "")):
        chat.where = observation["where"]
        if observation.get("type") == "GENERATION" and observation.get("output") not in (None, "", [], {}):
            prompt = _messages(chat, observation.get("input"), "input")
            reply = _messages(chat, observation.get("output"), "output")
            calls.append((prompt, reply))
            chat.facts["source"] = text_or_none(observation.get("model"))
    if not calls:
        raise chat.error(
            "expected an observation of the type GENERATION with an output, found none", "observations"
        )
    _joined(chat, calls)


def _who_and_when(chat: Chat, events: Sequence[Object]) -> None:
    (data,) = events
    chat.write("user", data["question"] if isinstance(data.get("question"), str) else "")
    for entry in chat.objects(data["history"], "history"):
        text = entry.get("content")
        if not isinstance(text, str):
            raise chat.error("expected an entry with a text under 'content'")
        # Every entry is a step, also a blank one: the labels count entries.
        speaker = text_or_none(entry.get("name")) or text_or_none(entry.get("role"))
        message = {"role": "assistant", "content": text if text.strip() else "(nothing)"}
        chat.messages.append(message | ({"name": speaker} if speaker else {}))
    chat.facts = {
        "id": text_or_none(data.get("question_ID")),
        "answer": text_or_none(data.get("ground_truth")),
    }


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
        waiting += reversed(run.get("child_runs") or ())


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
    return isinstance(data.get("role"), str) and said and data.keys().isdisjoint(_OF_ROWS)


def _is_of_swe_agent(data: Object) -> bool:
    if "trajectory" in data:
        return "history" in data
    history = data.get("history")
    entries = isinstance(history, list) and all(
        isinstance(entry, Mapping) and "role" in entry for entry in history
    )
    return bool(entries and history) and data.keys().isdisjoint(_OF_ROWS)


def _is_of_agents(data: Object) -> bool:
    return _has("question", "history")(data) and data.keys().isdisjoint(_OF_SOLUTIONS)


def _is_sharegpt(data: Object) -> bool:
    turns = data.get("conversations")
    listed = turns if isinstance(turns, list) else []
    # A turn that is a sign is RLHFlow's.
    return bool(listed) and all(isinstance(t, dict) and t.get("content") not in ("+", "-") for t in listed)


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


_OF_SOLUTIONS = frozenset(name for field in CONTENT for name in (field, *COMMON.get(field, ())))
_OF_ROWS = _OF_SOLUTIONS | {"problem", *COMMON["problem"]}
"""Columns of a row that is a problem or a solution, and so no message and no demonstration."""
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
        about="conversations of AutoGen and CrewAI, as Who&When holds them", matches=_is_of_agents, read=_who_and_when,
        used=("question", "history", "question_ID", "ground_truth"),
    ),
}  # fmt: skip
"""Name: format. `interchange.trace_writers` writes two of them."""


def trace_format(data: Object) -> str | None:
    """The name of the format that a row is of; None for one that is no such trace."""
    return next((name for name, format in TRACES.items() if format.matches(data)), None)


def chat_rows(rows: Iterable[Row | Refusal], *, keep_going: bool = False) -> Iterator[Row | Refusal]:
    """The same rows, with those of traces as rows of `messages`; events stand as one row a trace, after the last row."""
    gathered: dict[tuple[str, str, str], tuple[Row, list[Object]]] = {}
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
                    # Events that name no trace are those of their file; a folder has several.
                    _, events = gathered.setdefault((name, key, "" if key else row.file), (row, []))
                    events.append({**event, "where": row.where})
            except (TypeError, AttributeError):  # an object is something else, anywhere in the nest
                raise row.error(f"expected a row of {name}, found another shape") from None
    for (name, key, _), (row, events) in gathered.items():
        yield from _chat_row(row, name, events, key, keep_going)


def _chat_row(
    row: Row, name: str, events: Sequence[Object], key: str, keep_going: bool
) -> Iterator[Row | Refusal]:
    chat = Chat(where=row.where)
    try:
        with chat.reading(f"a trace of {name}"):
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
