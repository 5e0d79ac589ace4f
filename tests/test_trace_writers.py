"""Conversations that are written and read back: arguments, results, thoughts and speakers survive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.data.formats.rows import LabelledRow
from stepmark.data.labelled import convert, read_labelled, write_labelled
from stepmark.errors import InputError

AIRLINE = Path(__file__).parents[2] / "shared" / "data" / "agents" / "tau_bench_airline_gpt4o.jsonl.gz"

TEXTS = st.text(alphabet='ab {}"\\:\n\u00e9([', min_size=1, max_size=12).filter(
    lambda text: bool(text.strip())
)
SPEAKERS = st.sampled_from([None, "planner", "web surfer"])


@st.composite
def turns(draw: st.DrawFn, number: int, speaker: str | None) -> list[dict[str, Any]]:
    """An assistant's turn, and what comes back: results of its calls, a user's words, or both."""
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | TEXTS)}
    if speaker is not None:
        message["name"] = speaker
    if draw(st.booleans()):
        message["reasoning_content"] = draw(TEXTS)
    names = draw(st.lists(st.sampled_from(["search", "book"]), max_size=2))
    if not names and message["content"] is None:
        message["content"] = draw(TEXTS)
    back: list[dict[str, Any]] = []
    for at, name in enumerate(names):
        arguments = draw(st.dictionaries(TEXTS, st.integers() | TEXTS, max_size=2))
        written = draw(st.sampled_from([json.dumps(arguments), json.dumps(arguments, indent=1), "{broken"]))
        call = {"id": f"c{number}{at}", "type": "function", "function": {"name": name, "arguments": written}}
        message.setdefault("tool_calls", []).append(call)
        back.append({"role": "tool", "tool_call_id": call["id"], "content": draw(TEXTS)})
        if draw(st.booleans()):
            back[-1]["name"] = draw(st.sampled_from([name, "other"]))
    if not back or draw(st.booleans()):
        back.append({"role": draw(st.sampled_from(["user", "system"])), "content": draw(TEXTS | st.just(""))})
    return [message, *back]


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    opening = [
        {"role": role, "content": draw(TEXTS)}
        for role in draw(st.sampled_from([["user"], ["system", "user"]]))
    ]
    parts = [draw(turns(number, draw(SPEAKERS))) for number in range(draw(st.integers(1, 3)))]
    messages = [message for part in parts for message in part]
    return opening + (messages if draw(st.booleans()) else messages[: -len(parts[-1]) + 1])


def again(rows: list[Any]) -> Iterator[LabelledRow]:
    written = convert(rows, "chat")
    return read_labelled(json.loads(json.dumps(list(written))), format="chat")


@given(messages=conversations())
def test_a_conversation_survives(messages: list[dict[str, Any]]) -> None:
    row = {"id": "row", "source": "model", "messages": messages}
    (first,) = read_labelled([row])
    (second,) = again([row])
    assert second.solution == first.solution
    assert second.messages is not None and first.messages is not None
    calls = [[m.get("tool_calls") for m in r.messages if m.get("tool_calls")] for r in (first, second)]
    assert calls[0] == calls[1]


def test_real_traces_survive() -> None:
    if not AIRLINE.exists():
        pytest.skip(f"no traces at {AIRLINE}")
    settings: dict[str, Any] = {"columns": {"messages": "traj"}}
    first = list(read_labelled(AIRLINE, **settings))
    written = list(write_labelled(first, "chat"))
    assert len(written) == len(first) == 200
    for before, after in zip(
        first, read_labelled(json.loads(json.dumps(written)), format="chat"), strict=True
    ):
        assert replace(after.solution, id=None) == replace(before.solution, id=None)


def test_what_is_no_conversation_is_refused() -> None:
    ask, reply = {"role": "user", "content": "To Oslo."}, {"role": "assistant", "content": "140 euros."}
    row = {"id": "row", "answer": "140", "messages": [ask, reply]}
    for rows, settings in (([{"problem": "2 + 2?", "steps": ["4"]}], {}), ([row], {"reasoning": "drop"})):
        with pytest.raises(InputError):
            convert(rows, "chat", **settings)
    (twice,) = again([{"messages": [ask, reply, reply]}])
    assert twice.solution.texts == ("140 euros.", "140 euros.")
