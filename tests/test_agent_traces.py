"""One conversation as each tool writes it: every format gives the same steps."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from stepmark import ScriptedPRM
from stepmark.annotation.items import items_of_file
from stepmark.annotation.project import Project
from stepmark.data.formats.rows import ReaderSettings
from stepmark.data.labelled import convert, detect, read_labelled
from stepmark.data.reading import read_rows
from stepmark.data.solutions import read_solutions
from stepmark.data.traces import TRACES
from stepmark.errors import InputError
from stepmark.scoring.run import grade

ASK, SYSTEM, THOUGHT, SAID, RESULT, DONE = "To Oslo.", "Book it.", "Look.", "I search.", "140", "140 euros."
ARGUMENTS = {"to": "OSL"}
WRITTEN = json.dumps(ARGUMENTS)


def call(id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "search", "arguments": WRITTEN}}


def attributes(**known: Any) -> list[dict[str, Any]]:
    return [
        {
            "key": f"gen_ai.{key.replace('__', '.')}",
            "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)},
        }
        for key, value in known.items()
    ]


def span(start: int, given: list[Any], written: list[Any], **more: str) -> dict[str, Any]:
    known = attributes(
        operation__name="chat", request__model="m", input__messages=given, output__messages=written, **more
    )
    return {"traceId": "t1", "spanId": str(start), "startTimeUnixNano": str(start), "attributes": known}


def part(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


RESPONSES_ITEMS: list[dict[str, Any]] = [
    part("reasoning", summary=[part("summary_text", text=THOUGHT)], encrypted_content="gAAA"),
    part("message", role="assistant", content=[part("output_text", text=SAID)]),
    part("function_call", name="search", arguments=WRITTEN, call_id="c1"),
    part("function_call_output", call_id="c1", output=RESULT),
    part("message", role="assistant", content=[part("output_text", text=DONE)]),
]
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": ASK},
    {"role": "assistant", "content": SAID, "reasoning_content": THOUGHT, "tool_calls": [call()]},
    {"role": "tool", "content": RESULT, "tool_call_id": "c1"},
    {"role": "assistant", "content": DONE},
]
OTEL_TURN = {
    "role": "assistant",
    "parts": [
        part("reasoning", content=THOUGHT),
        part("text", content=SAID),
        part("tool_call", id="c1", name="search", arguments=ARGUMENTS),
    ],
    "finish_reason": "tool_call",
}
OTEL_USER = {"role": "user", "parts": [part("text", content=ASK)]}
OTEL_TOOL = {"role": "tool", "parts": [part("tool_call_response", id="c1", response=RESULT)]}
OTEL_DONE = {"role": "assistant", "parts": [part("text", content=DONE)]}
RULES = json.dumps([part("text", content=SYSTEM)])


def lang(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": kwargs}


LANG = [
    lang("SystemMessage", content=SYSTEM, type="system"),
    lang("HumanMessage", content=ASK, type="human"),
    lang(
        "AIMessage",
        content=[
            part("thinking", thinking=THOUGHT),
            part("text", text=SAID),
            part("tool_use", id="c1", name="search", input=ARGUMENTS),
        ],
        tool_calls=[{"name": "search", "args": ARGUMENTS, "id": "c1", "type": "tool_call"}],
    ),
    lang("ToolMessage", content=RESULT, tool_call_id="c1", name="search"),
    lang("AIMessageChunk", content=DONE),
]


def run(start: str, given: list[Any], written: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": start, "trace_id": "t1", "run_type": "llm", "dotted_order": start, "parent_run_id": "root",
        "inputs": {"messages": [given]}, "outputs": {"generations": [[{"text": "", "message": written}]]},
        "extra": {"metadata": {"ls_model_name": "m"}}, **more,
    }  # fmt: skip


def generation(start: str, given: list[Any], written: Any) -> dict[str, Any]:
    return {
        "id": start,
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": start,
        "input": given,
        "output": written,
        "model": "m",
    }


UUIDS = itertools.count()


def claude(kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "sessionId": "t1",
        "uuid": f"u{next(UUIDS)}",
        "message": {"role": kind, "model": "m", "content": content},
        **more,
    }


ROWS: dict[str, list[dict[str, Any]]] = {
    "messages": CHAT,
    "responses": [{"id": "t1", "object": "response", "model": "m", "instructions": SYSTEM, "input": ASK, "output": RESPONSES_ITEMS}],
    "swe-agent": [
        {
            "trajectory": [{"action": "search", "observation": RESULT}],
            "history": [
                {"role": "system", "content": SYSTEM, "agent": "main", "message_type": "system_prompt"},
                {"role": "user", "content": "An example.", "is_demo": True},
                {"role": "user", "content": [part("text", text=ASK)], "message_type": "observation_"},
                {"role": "assistant", "content": SAID, "thought": SAID, "action": "search", "tool_calls": [call()],
                 "message_type": "action", "thinking_blocks": [part("thinking", thinking=THOUGHT)]},
                {"role": "tool", "content": [part("text", text=RESULT)], "message_type": "observation", "tool_call_ids": ["c1"]},
                {"role": "assistant", "content": DONE, "message_type": "action"},
            ],
            "info": {"exit_status": "submitted"},
        }
    ],
    "mini-swe-agent": [
        {"trajectory_format": "mini-swe-agent-1.1", "info": {"exit_status": "Submitted"},
         "messages": [*CHAT, {"role": "exit", "content": "Submitted", "extra": {}}]}
    ],
    "claude-code": [
        {"type": "summary", "summary": "A flight", "leafUuid": "u"},
        claude("user", f"{SYSTEM}\n{ASK}"),
        claude("assistant", [part("thinking", thinking=THOUGHT, signature="x")]),
        claude("assistant", [part("text", text=SAID)]),
        claude("assistant", [part("tool_use", id="c1", name="search", input=ARGUMENTS)]),
        claude("user", [part("tool_result", tool_use_id="c1", content=[part("text", text=RESULT)])], toolUseResult={}),
        claude("assistant", [part("text", text=DONE)]),
        {"type": "system", "sessionId": "t1", "content": "hook"},
    ],
    "codex": [
        {"type": "session_meta", "payload": {"id": "t1", "instructions": SYSTEM}},
        {"type": "turn_context", "payload": {"model": "m"}},
        {"type": "response_item", "payload": part("message", role="user", content=[part("input_text", text=ASK)])},
        {"type": "event_msg", "payload": part("agent_reasoning", text=THOUGHT)},
        *({"type": "response_item", "payload": item} for item in RESPONSES_ITEMS),
    ],
    "otel": [
        {"resourceSpans": [{"scopeSpans": [{"spans": [
            span(2, [OTEL_USER, OTEL_TURN, OTEL_TOOL], [OTEL_DONE], system_instructions=RULES),
            {"traceId": "t1", "name": "execute_tool search", "attributes": []},
        ]}]}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [span(1, [OTEL_USER], [OTEL_TURN], system_instructions=RULES)]}]}]},
    ],
    "openhands": [
        {"id": "t1", "history": [
            {"id": 0, "source": "agent", "action": "system", "args": {"content": SYSTEM}},
            {"id": 1, "source": "user", "action": "message", "args": {"content": ASK}},
            {"id": 2, "source": "agent", "action": "call_tool_mcp", "args": {"name": "search"},
             "tool_call_metadata": {"function_name": "search", "tool_call_id": "c1", "model_response": {"id": "r1", "model": "m", "choices": [
                 {"message": {"role": "assistant", "content": SAID, "reasoning_content": THOUGHT, "tool_calls": [call()]}}]}}},
            {"id": 3, "source": "agent", "observation": "mcp", "content": RESULT, "cause": 2,
             "tool_call_metadata": {"function_name": "search", "tool_call_id": "c1", "model_response": {"id": "r1"}}},
            {"id": 4, "source": "environment", "observation": "agent_state_changed", "content": "", "extras": {"agent_state": "running"}},
            {"id": 5, "source": "agent", "action": "message", "args": {"content": DONE}},
        ]}
    ],
    "sharegpt": [
        {"id": "t1", "model": "m", "system": SYSTEM, "conversations": [
            {"from": "human", "value": ASK},
            {"from": "gpt", "value": SAID, "reasoning_content": THOUGHT},
            {"from": "function_call", "value": json.dumps({"name": "search", "arguments": ARGUMENTS})},
            {"from": "observation", "value": RESULT, "name": "search"},
            {"from": "gpt", "value": DONE},
        ]}
    ],
    "chat-calls": [
        {"id": "t1", "request": {"model": "m", "messages": CHAT[:4]}, "response": {"choices": [{"index": 0, "message": CHAT[4]}]}}
    ],
    "langsmith": [
        run("2", LANG[:4], LANG[4]),
        {"id": "root", "trace_id": "t1", "run_type": "chain", "inputs": {}, "outputs": {}, "child_runs": [run("1", LANG[:2], LANG[2])]},
    ],
    "langfuse": [
        {"id": "t1", "observations": [
            generation("2", CHAT[:4], CHAT[4]),
            {"id": "s", "traceId": "t1", "type": "SPAN"},
            generation("1", CHAT[:2], {"role": "assistant", "content": SAID, "reasoning_content": THOUGHT, "tool_calls": [call()]}),
        ]}
    ],
}  # fmt: skip


def test_every_format_has_a_case():
    assert {*ROWS, "who-and-when", "gemini-cli"} == {*TRACES}


@pytest.mark.parametrize("name", ROWS)
def test_one_conversation_in_every_format(name, tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    assert detect(next(read_rows(file))) == name
    (row,) = read_labelled(file)
    solution = row.solution
    assert ASK in solution.problem.text
    assert SYSTEM in solution.problem.text
    assert solution.texts == (f"{THOUGHT}\n{SAID}\nsearch({WRITTEN})", DONE)
    assert solution.steps[0].observation == f"\n\nTool (search):\n{RESULT}"
    assert row.meta["format"] == name
    if name != "messages" and "swe" not in name:
        assert (solution.source, solution.id) == ("m", "t1")
    (only,) = read_labelled(ROWS[name], settings=ReaderSettings(reasoning="only"))
    assert only.solution.texts == (THOUGHT,)
    (graded,) = grade(file, "scripted_prms:certain", progress=False)
    assert len(graded.scores) == 2


def of_file(file: Path, text: str) -> list[tuple[str, ...]]:
    file.write_text(text)
    return [row.solution.texts for row in read_solutions(file)]


def test_chat_messages_alone_are_a_trace(tmp_path):
    steps = (f"{THOUGHT}\n{SAID}\nsearch({WRITTEN})", DONE)
    lines = "".join(json.dumps(message) + "\n" for message in CHAT)
    assert of_file(tmp_path / "one.json", json.dumps(CHAT, indent=1)) == [steps]
    assert of_file(tmp_path / "lines.jsonl", lines) == [steps]
    assert of_file(tmp_path / "line.jsonl", json.dumps(CHAT)) == [steps]
    assert of_file(tmp_path / "several.json", json.dumps([CHAT, CHAT[:3]])) == [steps, steps[:1]]
    assert of_file(tmp_path / "each.jsonl", f"{json.dumps(CHAT)}\n{json.dumps(CHAT[:3])}\n") == [steps, steps[:1]]  # fmt: skip
    (item,) = items_of_file(tmp_path / "one.json", Project())
    assert item[1].solution.texts == steps


def test_what_is_wrong_in_a_message_is_named(tmp_path):
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([*CHAT, {"role": "robot", "content": "beep"}]))
    with pytest.raises(InputError, match=r"chat\.json, row 6, field 'role'.*'robot'"):
        list(read_solutions(file))


def test_a_row_with_a_role_and_a_solution_is_no_message():
    (row,) = read_solutions([{"role": "teacher", "content": "x", "problem": ASK, "steps": [DONE]}])
    assert row.solution.texts == (DONE,)


def test_a_demonstration_of_swe_agent_has_its_history_alone(tmp_path):
    history = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": SAID, "thought": SAID, "action": "ls"},
        {"role": "user", "content": RESULT},
        {"role": "assistant", "content": DONE},
    ]
    demo = json.dumps({"history": history, "environment": "swe_main"})
    assert of_file(tmp_path / "demo.traj", demo) == [(SAID, DONE)]


def test_an_object_as_ground_truth_is_no_answer():
    truth = {"actions": [{"name": "search"}]}
    (row,) = read_solutions([{"messages": CHAT, "ground_truth": truth}])
    assert row.solution.problem.answer is None
    assert row.meta["ground_truth"] == truth
    with pytest.raises(InputError, match="found an object"):
        list(read_solutions([{"messages": CHAT, "ground_truth": truth}], columns={"answer": "ground_truth"}))


def test_a_traj_is_one_document(tmp_path):
    file = tmp_path / "x.traj"
    file.write_text(json.dumps(ROWS["swe-agent"][0], indent=2))
    (row,) = read_solutions(file)
    assert len(row.solution.steps) == 2
    assert row.meta["info"] == {"exit_status": "submitted"}


def test_a_conversation_of_agents_has_a_step_an_entry():
    row = {
        "question": ASK,
        "question_ID": "q1",
        "ground_truth": "140",
        "history": [
            {"role": "assistant", "name": "Planner", "content": "Search."},
            {"role": "user", "name": "Terminal", "content": " "},
            {"role": "Orchestrator (thought)", "content": DONE},
        ],
        "mistake_agent": "Planner",
        "mistake_step": "0",
    }
    (read,) = read_solutions([row])
    assert [(s.speaker, s.text) for s in read.solution.steps] == [
        ("Planner", "Search."), ("Terminal", "(nothing)"), ("Orchestrator (thought)", DONE),
    ]  # fmt: skip
    assert (read.solution.id, read.solution.problem.answer) == ("q1", "140")
    assert read.meta == {"mistake_agent": "Planner", "mistake_step": "0"}


def test_who_spoke_is_in_report_rows_and_labels(tmp_path):
    row = {
        "question": ASK,
        "history": [{"name": "Planner", "content": SAID}, {"name": "Critic", "content": DONE}],
    }
    page, labels = tmp_path / "report.html", tmp_path / "labels.jsonl"
    grade([row], "scripted_prms:certain", report=page, progress=False)
    assert page.read_text().count("Critic") == 1
    convert([row], "stepmark-labels", out=labels)
    (again,) = read_labelled(labels)
    assert [step.speaker for step in again.solution.steps] == ["Planner", "Critic"]


def test_calls_of_several_agents_become_one_conversation():
    spans = [
        span(1, [OTEL_USER], [OTEL_DONE], agent__name="a"),
        span(
            2, [{"role": "user", "parts": [part("text", content="Check it.")]}], [OTEL_DONE], agent__name="b"
        ),
    ]
    (read,) = read_solutions([{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}])
    assert [step.speaker for step in read.solution.steps] == ["a", "b"]
    assert read.solution.steps[0].observation == "\n\nUser:\nCheck it."


def test_a_subagent_is_a_trace_of_its_own():
    events = [
        *ROWS["claude-code"],
        claude("user", "Find it.", isSidechain=True, agentId="x"),
        claude("assistant", "Here.", isSidechain=True, agentId="x"),
    ]
    assert [row.solution.id for row in read_solutions(events)] == ["t1", "t1/x"]


@pytest.mark.parametrize(
    ("row", "field", "message"),
    [
        ({"object": "response", "output": RESPONSES_ITEMS}, "input", "what was asked"),
        ({"input": ASK, "output": [part("message", role="wizard")]}, "output[0].role", "found 'wizard'"),
        ({"input": ASK, "output": [part("function_call", name="")]}, "output[0].name", "a tool's name"),
        ({"input": ASK, "output": [part("hologram")]}, "output[0].type", "an item of the Responses API"),
        ({"trajectory": [], "history": ["x"]}, "history[0]", "an object"),
        ({"trajectory_format": "m", "messages": {}}, "messages", "expected a list"),
        (claude("assistant", [part("image")]), "message.content[0].type", "found 'image'"),
        ({"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t"}]}]}]}, None, "capture of contents"),
        ({"resourceSpans": [3]}, None, "another shape"),
        ({"run_type": "chain", "inputs": {}, "parent_run_id": "x"}, "run_type", "found none"),
        ({"traceId": "t", "type": "SPAN", "input": None}, "observations", "GENERATION"),
        ({"question": "?", "history": [{"content": 3}]}, "history[0]", "a text under 'content'"),
    ],
)
def test_bad_traces_are_named(row, field, message, tmp_path):
    file = tmp_path / "f.jsonl"
    file.write_text(json.dumps(row))
    with pytest.raises(InputError, match=message) as caught:
        list(read_solutions(file))
    assert caught.value.where == f"{file}:1"
    assert caught.value.field == field


def test_odd_traces_are_read():
    orphan = {
        "input": ASK,
        "output": [part("function_call_output", call_id="c9", output="x"), *RESPONSES_ITEMS],
    }
    (read,) = read_solutions([orphan])
    assert read.solution.problem.text.endswith("Tool:\nx")
    turn = [
        part("function_call", name="f", arguments="{}", call_id="c"),
        part("function_call_output", call_id="c", output="y" * 2_000),
    ]
    (read,) = read_solutions([{"input": ASK, "output": turn * 5_000}])
    assert len(read.solution.steps) == 5_000
    long = [
        part("function_call", name="f", arguments="{}"),
        part("function_call_output", output="y" * 2_000_000),
    ]
    (read,) = read_solutions([{"input": ASK, "output": [*long, *RESPONSES_ITEMS]}])
    assert len(read.solution.steps[0].observation) > 2_000_000
    (empty,) = read_solutions([claude("user", ASK), claude("assistant", []), claude("assistant", DONE)])
    assert empty.solution.texts == (DONE,)


OWN = {"role": "assistant", "content": "x"}
USER = {"role": "user", "content": ASK}


def answered(*items: dict[str, Any]) -> list[tuple[str, str]]:
    (row,) = read_solutions([{"input": ASK, "output": [*items, RESPONSES_ITEMS[-1]]}])
    return [(step.text, step.observation) for step in row.solution.steps]


def test_every_item_of_responses_has_its_arguments_and_its_answer():
    """A tool at the server answers in its call, so what follows is a new turn; pictures are not read as their bytes."""
    made = answered(
        part("mcp_list_tools", tools=[]),
        part("web_search_call", id="w", status="completed", action={"query": "q"}),
        part("apply_patch_call", call_id="p", operation={"path": "a"}),
        part("apply_patch_call_output", call_id="p", output="ok"),
        part("computer_call", call_id="k", actions=[{"x": 1}]),
        part("computer_call_output", call_id="k", output=part("computer_screenshot", image_url="data:AAAA")),
        part("mcp_call", name="roll", arguments="{}", output=None, error="timeout"),
        part("image_generation_call", id="i", status="completed", result="AAAA"),
        part("code_interpreter_call", id="i", code="1 + 1", outputs=[part("logs", logs="2")]),
    )
    assert made == [
        ('web_search({"query": "q"})', "\n\nTool (web_search):\n"),
        ('apply_patch({"path": "a"})', "\n\nTool (apply_patch):\nok"),
        ('computer([{"x": 1}])', "\n\nTool (computer):\n[image]"),
        ("roll({})", "\n\nTool (roll):\ntimeout"),
        ("image_generation({})", "\n\nTool (image_generation):\n[image]"),
        ("code_interpreter(1 + 1)", '\n\nTool (code_interpreter):\n{"type": "logs", "logs": "2"}'),
        (DONE, ""),
    ]


BLOCKS = [
    USER,
    {
        "role": "assistant",
        "content": [
            part("redacted_thinking", data="x"),
            part("server_tool_use", id="s1", name="web_search", input={"q": 1}),
            part("web_search_tool_result", tool_use_id="s1", content=[{"type": "web_search_result", "title": "T", "encrypted_content": "XX"}]),
            part("tool_use", id="t1", name="ls", input={}),
            part("tool_use", id="t2", name="rm", input={}),
        ],
    },
    {
        "role": "user",
        "content": [
            part("tool_result", tool_use_id="t2", is_error=True, content="denied"),
            part("tool_result", tool_use_id="t1", content=[part("text", text="f"), part("image", source={})]),
            part("text", text="Go on."),
            part("document", source={"type": "text", "data": "Page."}),
        ],
    },
    {"role": "assistant", "content": None, "refusal": "I refuse."},
]  # fmt: skip


@pytest.mark.parametrize("rows", [BLOCKS, [{"messages": BLOCKS}], [{"request": {"messages": BLOCKS[:3]}, "response": {"choices": [{"message": BLOCKS[3]}]}}]])  # fmt: skip
def test_blocks_of_anthropic_read_alike_in_every_row(rows, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (read,) = read_solutions(file)
    assert [(step.text, step.observation) for step in read.solution.steps] == [
        ('web_search({"q": 1})', '\n\nTool (web_search):\n{"type": "web_search_result", "title": "T"}'),
        ("ls({})\nrm({})", "\n\nTool (rm):\nError: denied\n\nTool (ls):\nf\n[image]\n\nUser:\nGo on.\nPage."),
        ("I refuse.", ""),
    ]
    (labelled,) = read_labelled(file)
    ((_, item),) = items_of_file(file, Project())
    assert labelled.solution.texts == item.solution.texts == read.solution.texts
    assert labelled.messages is not None


@pytest.mark.parametrize(
    ("messages", "field", "message"),
    [
        ([USER, {"role": "user", "content": [part("tool_use", name="f")]}, OWN], "[1].content[0].type", "a tool's result or a file, found 'tool_use'"),
        ([{"role": "user", "content": [part("hologram")]}, OWN], "[0].content[0].type", "found 'hologram'"),
        ([USER, {**OWN, "content": [part("text", text="x"), part("output_audio")]}], "[1].content[1].type", "found 'output_audio'"),
        ([{**USER, "function_call": {"name": "f"}}, OWN], "[0].tool_calls[0]", "found one in a user message"),
        ([USER, {**OWN, "content": [part("thinking", thinking="x")], "audio": {"id": "a"}}], "[1].audio", "found audio"),
    ],
)  # fmt: skip
def test_unknown_parts_are_named(messages, field, message):
    with pytest.raises(InputError, match=message) as caught:
        list(read_solutions([{"messages": messages}]))
    assert caught.value.field == f"messages{field}"


def failed(start: str) -> dict[str, Any]:
    return {**run(start, LANG[:2], None), "outputs": None, "error": "RateLimitError"}


def texts(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    (row,) = read_solutions(rows)
    return row.solution.texts


def test_calls_that_failed_and_came_twice():
    """A retry is one turn; runs without times stand in their order; arguments that were written anew are the same."""
    assert texts([failed("0"), *ROWS["langsmith"]]) == (f"{THOUGHT}\n{SAID}\nsearch({WRITTEN})", DONE)
    spoken = {"role": "assistant", "content": SAID}
    child = {"run_type": "llm", "inputs": {"messages": [USER]}, "outputs": {"messages": [spoken]}}
    later = {**child, "inputs": {"messages": [USER, spoken, USER]}, "outputs": {"messages": [OWN]}}
    root = {"id": "r", "run_type": "chain", "inputs": {}, "outputs": {}, "child_runs": [child, later]}
    assert texts([root]) == (SAID, "x")
    tight = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}]}  # fmt: skip
    loose = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}
    assert texts([generation("1", [USER], tight), generation("2", [USER, loose, result], OWN)]) == ('f({"a":1})', "x")  # fmt: skip
    with pytest.raises(InputError, match="expected one choice, found 2"):
        texts([generation("1", [USER], {"choices": [{"message": OWN}, {"message": OWN}]})])


@pytest.mark.parametrize("text", ["42", '{"answer": 42}', '["a"]', "null", "[]"])
def test_an_answer_that_is_json_is_a_text(text):
    assert texts([generation("1", [USER], text)]) == (text,)


def test_each_message_is_a_turn_of_its_own():
    assert texts([USER, OWN, {**OWN, "content": "y"}, USER]) == ("x", "y")


def test_a_question_with_its_history_and_a_solution_is_no_conversation_of_agents():
    (row,) = read_solutions([{"question": ASK, "history": [USER], "response": DONE}])
    assert row.solution.texts == (DONE,)


def test_sessions_in_a_folder_stay_apart(tmp_path):
    for name in "ab":
        lines = [{**line, "payload": {**line["payload"], "id": name}} for line in ROWS["codex"]]
        lines.insert(2, {"type": "response_item", "payload": part("ghost_snapshot", ghost_commit={})})
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(row.solution.id, len(row.solution.steps)) for row in read_solutions(tmp_path)] == [
        ("a", 2),
        ("b", 2),
    ]


def test_what_claude_code_wrote_itself_is_no_turn():
    error = claude("assistant", [part("text", text="API Error")])
    error["message"]["model"] = "<synthetic>"
    assert texts([claude("user", ASK), error, claude("assistant", DONE)]) == (DONE,)


ODD: list[Any] = [None, 3, "x", [], {}, [3], [[]], {"type": 3}, {"id": 3}]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in pairs for found in places(inner, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], odd)
    return copy


@pytest.mark.parametrize("name", [*ROWS, "blocks"])
def test_a_trace_with_anything_anywhere_is_read_or_refused(name):
    rows = ROWS.get(name, [{"messages": BLOCKS}])
    for place in places(rows):
        for odd in ODD if len(place) > 1 else ():
            try:
                assert all(row.solution.steps for row in read_solutions(changed(rows, place, odd)))
            except InputError as error:
                assert error.where


def turns(count: int, seen: str) -> list[dict[str, Any]]:
    made = [CHAT[1]]
    for at in range(count):
        made += [{"role": "assistant", "content": f"Turn {at}."}, {"role": "tool", "content": seen}]
    return made


def test_odd_conversations_are_graded_to_the_report(tmp_path):
    """A tool that answers no call, two speakers at once, thousands of turns, a page of 2 MB: read, in bounded memory."""
    two = [CHAT[1], *({"role": "assistant", "name": name, "content": f"I am {name}."} for name in "ab")]
    rows = [
        {"id": "orphan", "messages": [CHAT[1], {"role": "tool", "content": "x"}, CHAT[4], {"role": "tool", "content": "y"}]},
        {"id": "two", "messages": two},
        {"id": "many", "messages": turns(5_000, "ok")},
        {"id": "long", "messages": turns(3, "y" * 2_000_000)},
    ]  # fmt: skip
    prm = ScriptedPRM(lambda problem, steps: 0.1 if len(steps) == 2 else 0.9, name="toy")
    tracemalloc.start()
    graded = list(grade(rows, prm, report=tmp_path / "report.html", progress=False))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [one.first_error for one in graded] == [-1, 1, 1, 1]
    assert [len(one.solution.steps) for one in graded] == [1, 2, 5_000, 3]
    assert [step.speaker for step in graded[1].solution.steps] == ["a", "b"]
    assert graded[0].solution.steps[0].observation == "\n\nTool:\ny"
    assert peak < 300e6
    page = (tmp_path / "report.html").read_text()
    assert page.count("First error: step 2") == 3
    with pytest.raises(InputError, match="content or tool calls") as caught:
        list(grade([{"messages": [CHAT[1], {"role": "assistant", "content": " "}]}], prm, progress=False))
    assert caught.value.field == "messages[1]"
