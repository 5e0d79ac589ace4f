"""OpenTelemetry's GenAI spans as OTLP JSON: `resourceSpans`.

The messages of a call stand in `gen_ai.input.messages` and `gen_ai.output.messages` of its span or of an event of it, or, as openllmetry writes
them, in numbered attributes: `gen_ai.prompt.0.role`, `gen_ai.completion.0.content`, `gen_ai.completion.0.tool_calls.0.name`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepmark.data.formats.rows import has
from stepmark.data.messages import Chat, Object, loaded, text_or_none
from stepmark.data.traces.base import Call, in_order, join_calls, logged_messages, message_key, with_id

ABOUT = "OpenTelemetry GenAI spans: OTLP JSON"
sniff = has("resourceSpans")

_NUMBERED = re.compile(r"(?:gen_ai|llm)\.(prompt|completion)s?\.(\d+)\.(.+)")
_OF_CALL = re.compile(r"tool_calls\.(\d+)\.(.+)")


def events(data: Object) -> Iterator[tuple[str, Object]]:
    """The spans of a row."""
    for resource in data["resourceSpans"]:
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield str(span.get("traceId", "")), span


def read(chat: Chat, events: Sequence[Object]) -> None:
    """The calls of models in a trace."""
    calls: list[Call] = []
    for span in in_order(events, "spanId", lambda span: int(span.get("startTimeUnixNano") or 0)):
        chat.where = span["where"]
        attributes = _attributes(span.get("attributes"))
        for event in span.get("events") or ():
            attributes = {**_attributes(event.get("attributes")), **attributes}
        if attributes.get("gen_ai.operation.name") == "invoke_agent":
            continue
        speaker = text_or_none(attributes.get("gen_ai.agent.name"))
        if "gen_ai.output.messages" in attributes:
            call = _call(chat, attributes, speaker)
        elif any(match for match in map(_NUMBERED.match, attributes) if match and match[1] == "completion"):
            call = _numbered_call(chat, attributes, speaker)
        else:
            continue
        calls.append((call[0], with_id(call[1], span.get("spanId"))))
        chat.facts["source"] = text_or_none(
            attributes.get("gen_ai.response.model", attributes.get("gen_ai.request.model"))
        )
    expected = (
        "spans with gen_ai.input.messages and gen_ai.output.messages (or gen_ai.prompt.0.content and gen_ai.completion.0.content), "
        "which tracers write where the capture of contents is switched on"
    )
    join_calls(chat, calls, expected)


def _call(chat: Chat, attributes: Mapping[str, Any], speaker: str | None) -> Call:
    instructions = loaded(attributes.get("gen_ai.system_instructions"))
    sent, written = (loaded(attributes.get(f"gen_ai.{side}.messages")) for side in ("input", "output"))
    prompt = logged_messages(chat, sent, "gen_ai.input.messages") if sent else []
    if instructions:
        parts = {"content": instructions} if isinstance(instructions, str) else {"parts": instructions}
        system = logged_messages(chat, [{"role": "system", **parts}], "gen_ai.system_instructions")
        prompt_keys = set(map(message_key, prompt))
        prompt = [*(message for message in system if message_key(message) not in prompt_keys), *prompt]
    return prompt, logged_messages(chat, written, "gen_ai.output.messages", speaker)


def _numbered_call(chat: Chat, attributes: Mapping[str, Any], speaker: str | None) -> Call:
    sides: dict[str, dict[int, dict[str, Any]]] = {"prompt": {}, "completion": {}}
    for name, value in attributes.items():
        if match := _NUMBERED.fullmatch(name):
            message = sides[match[1]].setdefault(int(match[2]), {})
            if call := _OF_CALL.fullmatch(match[3]):
                message.setdefault("tool_calls", {}).setdefault(int(call[1]), {})[call[2]] = value
            elif match[3] == "content" and isinstance(value, str):
                parts = loaded(value)
                is_list = isinstance(parts, list) and all(isinstance(p, dict) and "type" in p for p in parts)
                message["content"] = parts if is_list and parts else value
            else:
                message[match[3]] = value
    thoughts = [message for message in sides["completion"].values() if message.get("role") == "thinking"]
    choices = [message for message in sides["completion"].values() if message.get("role") != "thinking"]
    if thoughts:  # of Anthropic's models
        reasoning = "\n".join(str(message.get("content") or "") for message in thoughts)
        sides["completion"] = {0: {**(choices[0] if choices else {}), "reasoning_content": reasoning}}
    if len(choices) > 1:
        raise chat.error(f"expected one choice, found {len(choices)}", "gen_ai.completion")
    messages = {}
    for side, numbered in sides.items():
        messages[side] = [
            {
                "role": "user",
                **message,
                **({"role": "assistant"} if side == "completion" else {}),
                **({"tool_calls": [*message["tool_calls"].values()]} if "tool_calls" in message else {}),
            }
            for _, message in sorted(numbered.items())
        ]
    prompt = logged_messages(chat, messages["prompt"], "gen_ai.prompt")
    return prompt, logged_messages(chat, messages["completion"], "gen_ai.completion", speaker)


def _attributes(listed: object) -> dict[str, Any]:
    pairs = listed if isinstance(listed, list) else []
    return {
        pair["key"]: _value(pair.get("value")) for pair in pairs if isinstance(pair, dict) and "key" in pair
    }


def _value(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "arrayValue" in value:
        return [_value(entry) for entry in value["arrayValue"].get("values", ())]
    if "kvlistValue" in value:
        return _attributes(value["kvlistValue"].get("values"))
    return next(iter(value.values()), None)
