"""Conversations written as OpenAI chat messages, OpenAI Responses and OpenTelemetry GenAI spans.

Only a conversation that was read as one can be written (`LabelledRow.messages`): the text of a step no longer says where its arguments begin.
Roles, texts, thoughts, tool calls with their arguments, results and speakers read back equal. Judgements are left out, and counted.

Responses: `input` is what precedes the first assistant turn, `output` all after it, tool results too. `agent` beside an item is the speaker, for
which the API has no place. OTLP JSON: one span a trace, the model's last call, whose input is the conversation so far; it has no times, for none
are known. Items of Responses join what one speaker writes in a row into one turn, so there two such turns cannot be written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from stepmark.data.conversations import ChatMessage, read_message
from stepmark.data.formats import rows
from stepmark.data.formats.rows import LabelledRow, Losses, NotRepresentableError, Writing

_TRACE_ID = re.compile(r"[0-9a-f]{32}")


def write_chat(row: LabelledRow, _settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A row of `messages`, as they were read.

    Raises:
        NotRepresentableError: the row was not read as a conversation.
    """
    messages = _messages(row)
    _lose_judgements(row, losses)
    fields = {"answer": row.solution.problem.answer, "source": row.solution.source}
    yield {
        "id": row.solution.id or row.origin,
        "messages": list(messages),
        **{name: value for name, value in fields.items() if value is not None},
        **rows.problem_fields(row.solution),
        "meta": rows.written_meta(row, held=rows.RECORD_FIELDS),
    }


def write_responses(row: LabelledRow, _settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A response with its input.

    Raises:
        NotRepresentableError: as `write_chat`; or two turns of one speaker in a row.
    """
    read = _read(row)
    for (item, _), (other, _) in pairwise(read):
        if item.role == other.role == "assistant" and item.speaker == other.speaker:
            raise NotRepresentableError(
                "two turns of one speaker in a row would be read back as one; chat and otel can hold them"
            )
    _lose_judgements(row, losses)
    rows.lose_fields(row, losses, "Responses", held=("id", "source"))
    first = next(at for at, (message, _) in enumerate(read) if message.role == "assistant")
    items = [_items(message, raw) for message, raw in read]
    yield {
        "id": row.solution.id or row.origin,
        "object": "response",
        **({"model": row.solution.source} if row.solution.source else {}),
        "input": [*chain(*items[:first])],
        "output": [*chain(*items[first:])],
    }


def write_otel(row: LabelledRow, _settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A trace of one span; its id is the row's where that is one of OpenTelemetry, else a digest of it.

    Raises:
        NotRepresentableError: as `write_chat`.
    """
    read = _read(row)
    _lose_judgements(row, losses)
    name = row.solution.id or row.origin
    trace = name if _TRACE_ID.fullmatch(name) else hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    rows.lose_fields(row, losses, "OTLP", held=("source", *(("id",) if trace == name else ())))
    listed = [_parts(message, raw) for message, raw in read]
    ended = read[-1][0].role == "assistant"
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": row.solution.source,
        "gen_ai.agent.name": read[-1][0].speaker if ended else None,
        "gen_ai.input.messages": json.dumps(listed[:-1] if ended else listed, ensure_ascii=False),
        "gen_ai.output.messages": json.dumps(listed[-1:] if ended else [], ensure_ascii=False),
    }
    span = {
        "traceId": trace,
        "spanId": trace[:16],
        "name": "chat",
        "attributes": [
            {"key": key, "value": {"stringValue": value}} for key, value in attributes.items() if value
        ],
    }
    yield {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def _messages(row: LabelledRow) -> Sequence[Mapping[str, Any]]:
    if row.messages is None:
        raise NotRepresentableError(
            "expected a conversation, whole (`reasoning` keep); found a solution without its messages"
        )
    return row.messages


def _read(row: LabelledRow) -> list[tuple[ChatMessage, Mapping[str, Any]]]:
    names: dict[str, str] = {}
    return [
        (read_message(message, f"messages[{at}]", row.where, names), message)
        for at, message in enumerate(_messages(row))
    ]


def _lose_judgements(row: LabelledRow, losses: Losses) -> None:
    judged = sum(map(len, row.own.judgements)) + len(row.labelled.root)
    losses.lose("judgements are left out", row.where, judged)


def _calls(raw: Mapping[str, Any]) -> Iterator[tuple[Any, str, str]]:
    """The id, name and arguments of each tool call."""
    for call in raw.get("tool_calls") or ():
        yield call.get("id"), call["function"]["name"], call["function"]["arguments"]


def _items(message: ChatMessage, raw: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A message as items of Responses."""
    if message.role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": raw.get("tool_call_id"),
            "output": message.content,
            **({"name": raw["name"]} if raw.get("name") else {}),
        }
        return
    spoken = message.role == "assistant"
    agent = {"agent": message.speaker} if spoken and message.speaker else {}
    if message.thought:
        yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": message.thought}], **agent}
    if message.content or not spoken:
        part = {"type": "output_text" if spoken else "input_text", "text": message.content}
        named = {"name": message.speaker} if message.speaker and not spoken else agent
        yield {"type": "message", "role": message.role, "content": [part], **named}
    for id, name, arguments in _calls(raw):
        yield {"type": "function_call", "call_id": id, "name": name, "arguments": arguments, **agent}


def _parts(message: ChatMessage, raw: Mapping[str, Any]) -> dict[str, Any]:
    """A message of OpenTelemetry's GenAI conventions."""
    parts: list[dict[str, Any]] = []
    if message.role == "tool":
        parts.append(
            {"type": "tool_call_response", "id": raw.get("tool_call_id"), "response": message.content}
        )
    elif message.thought:
        parts.append({"type": "reasoning", "content": message.thought})
    if message.role != "tool" and (message.content or message.role != "assistant"):
        parts.append({"type": "text", "content": message.content})
    for id, name, arguments in _calls(raw):
        parts.append({"type": "tool_call", "id": id, "name": name, "arguments": _object(arguments)})
    named = raw.get("name") if message.role == "tool" else message.speaker
    return {"role": message.role, **({"name": named} if named else {}), "parts": parts}


def _object(arguments: str) -> Any:
    """Arguments as an object, where its JSON is the same text; else the text."""
    try:
        data = json.loads(arguments)
    except ValueError:
        return arguments
    same = isinstance(data, dict) and json.dumps(data, ensure_ascii=False) == arguments
    return data if same else arguments
