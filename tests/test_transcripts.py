"""Transcripts of agents as they really are: repeated entries, rewound branches, calls that repeat the conversation, failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepmark.data.labelled import detect, read_labelled
from stepmark.data.reading import read_rows
from stepmark.data.solutions import SolutionRow, read_solutions

ASK, FIRST, SECOND = "Pens cost 4 each; I buy 3 and a 5 euro book.", "4 * 3 = 12.", "12 + 5 = 17."


def one(rows: Any) -> SolutionRow:
    (row,) = read_solutions(rows)
    assert isinstance(row, SolutionRow)
    return row


# --- Claude Code -------------------------------------------------------------------------------------------------


def entry(kind: str, content: Any, uuid: str, parent: str | None, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content} | ({"model": "m"} if kind == "assistant" else {})
    known = {"type": kind, "sessionId": "s", "uuid": uuid, "parentUuid": parent, "message": message}
    return {**known, "isSidechain": False, **more}


START = [entry("user", ASK, "a", None), entry("assistant", FIRST, "b", "a")]


def test_an_entry_that_stands_twice_is_read_once():
    rows = [*START, *START, entry("user", "Go on.", "c", "b"), entry("assistant", SECOND, "d", "c")]
    read = one(rows)
    assert read.solution.texts == (FIRST, SECOND)
    assert read.solution.problem.text == ASK
    assert read.solution.steps[0].observation == "\n\nUser:\nGo on."


def test_a_copy_with_other_notes_beside_it_is_the_same_entry():
    again = [{**row, "timestamp": "2026-01-02", "gitBranch": "x"} for row in START]
    rows = [
        START[0],
        *again,
        START[1],
        entry("user", "Go on.", "c", "b"),
        entry("assistant", SECOND, "d", "c"),
    ]
    assert one(rows).solution.texts == (FIRST, SECOND)


def test_a_rewound_branch_is_left_out():
    rows = [
        *START,
        entry("user", "Add 20.", "c", "b"),
        entry("assistant", "12 + 20 = 32.", "d", "c"),
        entry("user", "Add the book.", "e", "b"),
        entry("assistant", SECOND, "f", "e"),
    ]
    read = one(rows)
    assert read.solution.texts == (FIRST, SECOND)
    assert "20" not in read.solution.steps[0].observation


def test_entries_of_which_none_names_a_parent_are_one_conversation():
    rows = [
        entry("user", ASK, "a", None),
        entry("assistant", FIRST, "b", None),
        entry("user", "Go on.", "c", None),
        entry("assistant", SECOND, "d", None),
        entry("user", "Thank you.", "e", None),
    ]
    read = one(rows)
    assert read.solution.problem.text == ASK
    assert read.solution.texts == (FIRST, SECOND)


def test_of_an_edited_first_question_the_live_one_is_the_problem():
    rows = [
        entry("user", "Pens cost 9 each.", "x", None),
        entry("assistant", "9 * 3 = 27.", "y", "x"),
        *START,
        {"type": "system", "sessionId": "s", "uuid": "z", "parentUuid": "b", "content": "hook"},
        entry("user", "Go on.", "c", "z"),
        entry("assistant", SECOND, "d", "c"),
    ]
    read = one(rows)
    assert (read.solution.problem.text, read.solution.texts) == (ASK, (FIRST, SECOND))


def test_answers_of_calls_in_parallel_belong_to_the_live_branch():
    """Claude Code writes one reply as several entries, and each answer hangs on the entry of its call."""

    def use(id_: str) -> list[dict[str, Any]]:
        return [{"type": "tool_use", "id": id_, "name": "Read", "input": {"file": id_}}]

    def result(id_: str) -> list[dict[str, Any]]:
        return [{"type": "tool_result", "tool_use_id": id_, "content": f"content of {id_}"}]

    first, second = (entry("assistant", use(i), u, p) for i, u, p in (("t1", "b", "a"), ("t2", "c", "b")))
    for part in (first, second):
        part["message"]["id"] = "reply"
    rows = [
        entry("user", ASK, "a", None),
        first,
        entry("user", result("t1"), "d", "b"),
        second,
        entry("user", result("t2"), "e", "c"),
        entry("assistant", SECOND, "f", "d"),
    ]
    read = one(rows)
    assert len(read.solution.steps) == 2
    assert read.solution.steps[0].text == 'Read({"file": "t1"})\nRead({"file": "t2"})'
    assert "content of t1" in read.solution.steps[0].observation
    assert "content of t2" in read.solution.steps[0].observation


def test_a_compaction_does_not_cut_the_session():
    rows = [
        *START,
        {"type": "system", "subtype": "compact_boundary", "sessionId": "s", "uuid": "k", "parentUuid": None, "logicalParentUuid": "b"},
        entry("user", "Summary: pens are 12.", "c", "k", isCompactSummary=True),
        entry("assistant", SECOND, "d", "c"),
    ]  # fmt: skip
    assert one(rows).solution.texts == (FIRST, SECOND)


def test_a_session_that_another_continues_is_a_part_of_it():
    later = [
        entry("user", "Go on.", "c", "b", sessionId="t"),
        entry("assistant", SECOND, "d", "c", sessionId="t"),
    ]
    read = one([*START, *later])
    assert (read.solution.id, read.solution.texts) == ("t", (FIRST, SECOND))


def test_subagents_without_names_are_chains_of_their_own():
    side = {"isSidechain": True}
    rows = [
        *START,
        entry("user", "Find A.", "p", "b", **side),
        entry("user", "Find B.", "q", None, **side),
        entry("assistant", "A.", "r", "p", **side),
        entry("assistant", "B.", "v", "q", **side),
    ]
    assert [row.solution.texts for row in read_solutions(rows)] == [(FIRST,), ("A.",), ("B.",)]


def test_a_tool_that_failed_says_so():
    failed = [{"type": "tool_result", "tool_use_id": "t", "content": "No such file.", "is_error": True}]
    call = [{"type": "tool_use", "id": "t", "name": "Read", "input": {}}]
    rows = [entry("user", ASK, "a", None), entry("assistant", call, "b", "a"), entry("user", failed, "c", "b"), entry("assistant", SECOND, "d", "c")]  # fmt: skip
    assert one(rows).solution.steps[0].observation == "\n\nTool (Read):\nError: No such file."
    chat = {"messages": [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": call},
        {"role": "user", "content": failed},
        {"role": "assistant", "content": SECOND},
    ]}  # fmt: skip
    assert one([chat]).solution.steps[0].observation == "\n\nTool (Read):\nError: No such file."


# --- calls of a model that repeat the conversation ---------------------------------------------------------------

CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 12, "b": 5}'}}


def with_arguments(arguments: Any) -> dict[str, Any]:
    return {**CALL, "function": {"name": "add", "arguments": arguments}}


def said(content: str, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


QUESTION, TOOL = {"role": "user", "content": ASK}, {"role": "tool", "tool_call_id": "c", "content": "17"}
REPEATED = [
    pytest.param([said(f"<think>Pens first.</think>\n\n{FIRST}"), said(FIRST)], id="thought in the text"),
    pytest.param([said(FIRST, reasoning_content="Pens first."), said(FIRST)], id="thought beside the text"),
    pytest.param([said(f"[THINK]Pens.[/THINK]{FIRST}"), said(f" {FIRST}\n")], id="white space"),
    pytest.param([said(FIRST, with_arguments("{}")), said(FIRST, CALL)], id="no arguments"),
    pytest.param([said(FIRST, with_arguments(None)), said(FIRST, CALL)], id="null arguments"),
    pytest.param(
        [said(FIRST, CALL), said(FIRST, with_arguments('{"b":5,"a":12}'))], id="keys in another order"
    ),
    pytest.param(
        [said(FIRST, CALL), said(FIRST, with_arguments({"b": 5, "a": 12}))], id="arguments as an object"
    ),
]


def langfuse(calls: list[tuple[list[Any], Any]]) -> list[dict[str, Any]]:
    return [{"id": "t", "observations": [
        {"id": str(n), "traceId": "t", "type": "GENERATION", "startTime": str(n), "input": given, "output": written, "model": "m"}
        for n, (given, written) in enumerate(calls)
    ]}]  # fmt: skip


def langsmith(calls: list[tuple[list[Any], Any]]) -> list[dict[str, Any]]:
    return [
        {"id": str(n), "trace_id": "t", "run_type": "llm", "dotted_order": str(n), "inputs": {"messages": given}, "outputs": {"choices": [{"message": written}]}}
        for n, (given, written) in enumerate(calls)
    ]  # fmt: skip


def otlp(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    listed = [
        {"traceId": "t", "spanId": str(n), "startTimeUnixNano": str(n), "attributes": [
            {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}} for key, value in span.items()
        ]}
        for n, span in enumerate(spans)
    ]  # fmt: skip
    return [{"resourceSpans": [{"scopeSpans": [{"spans": listed}]}]}]


def otel(calls: list[tuple[list[Any], Any]]) -> list[dict[str, Any]]:
    return otlp(
        [{"gen_ai.input.messages": given, "gen_ai.output.messages": [written]} for given, written in calls]
    )


def openllmetry(calls: list[tuple[list[Any], Any]]) -> list[dict[str, Any]]:
    spans = []
    for given, written in calls:
        attributes = {}
        for side, messages in (("prompt", given), ("completion", [written])):
            for n, message in enumerate(messages):
                for key, value in message.items():
                    if key == "tool_calls":
                        for m, call in enumerate(value):
                            attributes[f"gen_ai.{side}.{n}.tool_calls.{m}.id"] = call["id"]
                            for inner, text in call["function"].items():
                                attributes[f"gen_ai.{side}.{n}.tool_calls.{m}.{inner}"] = text
                    else:
                        attributes[f"gen_ai.{side}.{n}.{key}"] = value
        spans.append(attributes)
    return otlp(spans)


@pytest.mark.parametrize("tracer", [langfuse, langsmith, otel, openllmetry])
@pytest.mark.parametrize("turn", REPEATED)
def test_three_calls_are_three_turns(tracer, turn):
    logged, repeated = turn
    calls = [
        ([QUESTION], logged),
        ([QUESTION, repeated, TOOL], said("Now the book.")),
        (
            [QUESTION, repeated, TOOL, said("Now the book."), {"role": "user", "content": "Sum?"}],
            said(SECOND),
        ),
    ]
    read = one(tracer(calls))
    assert len(read.solution.steps) == 3
    assert read.solution.problem.text == ASK
    assert read.solution.steps[2].text == SECOND
    if "tool_calls" in logged:
        (line,) = [line for line in read.solution.steps[0].text.splitlines() if line.startswith("add(")]
        assert json.loads(line.removeprefix("add(").removesuffix(")")) == {"a": 12, "b": 5}


def test_other_arguments_are_another_turn():
    other = with_arguments('{"a": 1, "b": 2}')
    calls = [([QUESTION], said("", CALL)), ([QUESTION, said("", CALL), TOOL], said("", other))]
    assert len(one(langfuse(calls)).solution.steps) == 2


def test_a_call_that_two_tracers_logged_counts_once():
    calls = [([QUESTION], said(FIRST)), ([QUESTION], said(FIRST)), ([QUESTION, said(FIRST)], said(SECOND))]
    assert one(otel(calls)).solution.texts == (FIRST, SECOND)


def test_a_span_that_stands_twice_is_read_once():
    calls = [
        ([QUESTION], said(FIRST)),
        ([QUESTION, said(FIRST), {"role": "user", "content": "On."}], said(SECOND)),
    ]
    assert one([*otel(calls), *otel(calls)]).solution.texts == (FIRST, SECOND)
    assert one([*langsmith(calls), *langsmith(calls)]).solution.texts == (FIRST, SECOND)
    (trace,) = langfuse(calls)
    assert one([{**trace, "observations": trace["observations"] * 2}]).solution.texts == (FIRST, SECOND)


@pytest.mark.parametrize("rules", ["Be brief.", [{"type": "text", "content": "Be brief."}]])
def test_a_system_prompt_in_both_attributes_is_one(rules):
    system = {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]}
    rows = otlp([
        {"gen_ai.system_instructions": rules, "gen_ai.input.messages": [system, QUESTION], "gen_ai.output.messages": [said(FIRST)]},
    ])  # fmt: skip
    assert one(rows).solution.problem.text == f"System:\nBe brief.\n\nUser:\n{ASK}"


# --- SWE-agent, SWE-smith, OpenHands, Codex -----------------------------------------------------------------------


def test_the_task_of_swe_agent_is_the_problem():
    history = [
        {"role": "system", "content": "Fix bugs.", "message_type": "system_prompt"},
        {"role": "user", "content": ASK, "message_type": "observation"},
        {"role": "assistant", "content": FIRST, "message_type": "action"},
        {"role": "user", "content": "OK", "message_type": "observation"},
        {"role": "assistant", "content": SECOND, "message_type": "action"},
    ]
    read = one([{"trajectory": [], "history": history, "info": {}}])
    assert read.solution.problem.text == f"System:\nFix bugs.\n\nUser:\n{ASK}"
    assert read.solution.steps[0].observation == "\n\nTool:\nOK"


def test_messages_may_be_json_text(tmp_path):
    messages = [QUESTION, said(FIRST, CALL), {"role": "tool", "content": [{"type": "text", "text": "17"}], "tool_call_ids": ["c"]}, said(SECOND)]  # fmt: skip
    rows = [{"messages": json.dumps(messages), "instance_id": "i", "resolved": True, "model": "m"}]
    read = one(rows)
    assert read.solution.problem.text == ASK
    assert read.solution.steps[1].text == SECOND
    assert read.solution.steps[0].observation == "\n\nTool (add):\n17"
    assert detect(next(read_rows(rows))) == "chat"
    assert next(read_labelled(rows)).solution.texts == read.solution.texts


def openhands() -> list[dict[str, Any]]:
    def of(n: int, source: str, **more: Any) -> dict[str, Any]:
        return {"id": n, "timestamp": "t", "source": source, "message": "", **more}

    return [
        of(0, "user", action="message", args={"content": ASK}),
        of(1, "environment", observation="agent_state_changed", content="", extras={}),
        of(2, "agent", action="run", args={"command": "echo 12", "thought": FIRST, "hidden": False}),
        of(3, "agent", observation="run", content="12", cause=2, extras={"metadata": {"exit_code": 0}}),
        of(4, "agent", observation="error", content="broken", cause=2),
        of(5, "agent", action="message", args={"content": SECOND}),
    ]


@pytest.mark.parametrize("shape", ["list", "history", "pairs"])
def test_events_of_openhands(shape, tmp_path):
    events: Any = openhands()
    if shape == "pairs":
        events = [[events[0], events[1]], [events[2], events[3]], [events[4], events[5]]]
    file = tmp_path / "events.json"
    file.write_text(json.dumps(events if shape == "list" else {"instance_id": "i", "history": events}))
    assert detect(next(read_rows(file))) == "openhands"
    read = one(file)
    assert read.solution.problem.text == ASK
    assert read.solution.texts == (f'{FIRST}\nrun({{"command": "echo 12"}})', SECOND)
    assert read.solution.steps[0].observation == "\n\nTool:\n12\n\nTool:\nError: broken"
    assert read.solution.id == (None if shape == "list" else "i")


def test_events_of_openhands_with_kinds():
    def text(said: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": said, "cache_prompt": False}]

    def action(n: str, tool: str, **more: Any) -> dict[str, Any]:
        call = {"id": n, "name": tool, "arguments": "{}", "origin": "completion"}
        return {"kind": "ActionEvent", "id": f"a{n}", "source": "agent", "thought": [], "tool_name": tool, "tool_call_id": n, "tool_call": call, "llm_response_id": "r", **more}  # fmt: skip

    rows = [
        {"kind": "ConversationStateUpdateEvent", "id": "0", "source": "environment", "key": "stats", "value": {}},
        {"kind": "SystemPromptEvent", "id": "1", "source": "agent", "system_prompt": {"type": "text", "text": "Help."}},
        {"kind": "MessageEvent", "id": "2", "source": "user", "llm_message": {"role": "user", "content": text(ASK)}},
        action("x", "terminal", thought=text(FIRST), reasoning_content="Pens first."),
        action("y", "look"),
        {"kind": "ObservationEvent", "id": "5", "source": "environment", "tool_name": "terminal", "tool_call_id": "x",
         "observation": {"content": text("12"), "is_error": False, "kind": "TerminalObservation"}},
        {"kind": "AgentErrorEvent", "id": "6", "source": "agent", "tool_name": "look", "tool_call_id": "y", "error": "no eyes"},
        {"kind": "MessageEvent", "id": "7", "source": "agent", "llm_message": {"role": "assistant", "content": text(SECOND)}},
    ]  # fmt: skip
    read = one(rows)
    assert read.solution.problem.text == f"System:\nHelp.\n\nUser:\n{ASK}"
    assert read.solution.texts == (f"Pens first.\n{FIRST}\nterminal({{}})\nlook({{}})", SECOND)
    assert read.solution.steps[0].observation == "\n\nTool (terminal):\n12\n\nTool (look):\nError: no eyes"


def item(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "event_msg", "payload": {"type": "item_completed", "item": {"type": kind, **more}}}


def test_a_codex_session_of_completed_items():
    rows = [
        {"type": "session_meta", "payload": {"id": "s"}},
        {"type": "turn_context", "payload": {"model": "m"}},
        item("UserMessage", id="1", content=[{"type": "text", "text": ASK}]),
        item("Reasoning", id="2", summary_text=["Pens first."], raw_content=[]),
        item("AgentMessage", id="3", content=[{"type": "Text", "text": FIRST}]),
        item("CommandExecution", id="4", command=["sh", "-c", "expr 12 + 5"], status="failed", exit_code=1, aggregated_output="17\n"),
        item("McpToolCall", id="5", server="s", tool="check", arguments={"n": 17}, result={"content": [{"type": "text", "text": "yes"}]}),
        item("AgentMessage", id="6", content=[{"type": "Text", "text": SECOND}]),
    ]  # fmt: skip
    read = one(rows)
    assert (read.solution.id, read.solution.source, read.solution.problem.text) == ("s", "m", ASK)
    assert [step.text for step in read.solution.steps] == [
        f'Pens first.\n{FIRST}\ncommand_execution({{"command": ["sh", "-c", "expr 12 + 5"]}})',
        'check({"n": 17})',
        SECOND,
    ]
    assert read.solution.steps[0].observation == "\n\nTool (command_execution):\nError: 17\n"
    assert read.solution.steps[1].observation == "\n\nTool (check):\nyes"


def test_what_codex_says_twice_is_read_once():
    """The user's text may stand in an event alone; the assistant's stand in both."""

    def response(kind: str, **more: Any) -> dict[str, Any]:
        return {"type": "response_item", "payload": {"type": kind, **more}}

    rules = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "# AGENTS.md"}]}
    rows = [
        {"type": "response_item", "payload": rules},
        item("UserMessage", content=[{"type": "text", "text": ASK}]),
        {"type": "event_msg", "payload": {"type": "user_message", "message": ASK}},
        response("message", role="assistant", content=[{"type": "output_text", "text": FIRST}]),
        item("AgentMessage", content=[{"type": "Text", "text": FIRST}]),
        {"type": "event_msg", "payload": {"type": "agent_message", "message": FIRST}},
        response("function_call", name="shell", arguments="{}", call_id="c"),
        item("CommandExecution", command=["x"], status="completed", exit_code=0, aggregated_output="17"),
        response("function_call_output", call_id="c", output="17"),
        response("message", role="assistant", content=[{"type": "output_text", "text": SECOND}]),
    ]
    read = one(rows)
    assert read.solution.problem.text == f"User:\n# AGENTS.md\n\nUser:\n{ASK}"
    assert read.solution.texts == (f"{FIRST}\nshell({{}})", SECOND)


def test_what_codex_exec_prints():
    rows = [
        {"type": "thread.started", "thread_id": "s"},
        {"type": "turn.started"},
        {"type": "item.completed", "item": {"id": "0", "type": "user_message", "text": ASK}},
        {"type": "item.completed", "item": {"id": "1", "type": "reasoning", "text": "Pens first."}},
        {"type": "item.started", "item": {"id": "2", "type": "command_execution", "command": "expr 12 + 5"}},
        {"type": "item.completed", "item": {"id": "2", "type": "command_execution", "command": "expr 12 + 5", "aggregated_output": "17\n", "exit_code": 0, "status": "completed"}},
        {"type": "item.completed", "item": {"id": "3", "type": "agent_message", "text": SECOND}},
        {"type": "turn.completed", "usage": {}},
    ]  # fmt: skip
    read = one(rows)
    assert (read.solution.id, read.solution.problem.text) == ("s", ASK)
    assert read.solution.texts == ('Pens first.\ncommand_execution({"command": "expr 12 + 5"})', SECOND)


def test_numbered_attributes_of_openllmetry():
    rows = otlp([
        {"gen_ai.prompt.0.role": "system", "gen_ai.prompt.0.content": "Help.", "gen_ai.prompt.1.role": "user",
         "gen_ai.prompt.1.content": [{"type": "text", "text": ASK}], "gen_ai.completion.0.role": "assistant",
         "gen_ai.completion.0.content": FIRST, "gen_ai.completion.0.finish_reason": "stop", "gen_ai.response.model": "m"},
    ])  # fmt: skip
    read = one(rows)
    assert (read.solution.source, read.solution.texts) == ("m", (FIRST,))
    assert read.solution.problem.text == f"System:\nHelp.\n\nUser:\n{ASK}"


def test_a_thought_that_openllmetry_writes_as_a_completion():
    rows = otlp([
        {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": ASK, "gen_ai.completion.0.role": "thinking",
         "gen_ai.completion.0.content": "Pens first.", "gen_ai.completion.1.role": "assistant", "gen_ai.completion.1.content": FIRST},
    ])  # fmt: skip
    (read,) = read_solutions(rows, how="agent")
    assert isinstance(read, SolutionRow)
    assert read.solution.texts == (f"Pens first.\n{FIRST}",)


def test_a_greeting_before_the_question_belongs_to_the_problem():
    greeting = said("Hi! How can I help?")
    read = one(
        [{"messages": [greeting, QUESTION, said(FIRST), {"role": "user", "content": "On."}, said(SECOND)]}]
    )
    assert read.solution.problem.text == f"Assistant:\nHi! How can I help?\n\nUser:\n{ASK}"
    assert read.solution.texts == (FIRST, SECOND)


def test_parts_of_gemini_are_read():
    contents = [
        {"role": "user", "parts": [{"text": ASK}]},
        {"role": "model", "parts": [{"function_call": {"name": "add", "args": {"a": 12, "b": 5}}}]},
        {"role": "user", "parts": [{"function_response": {"name": "add", "response": {"sum": 17}}}]},
    ]
    reply = {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": "Pens.", "thought": True}, {"text": SECOND}]}}
        ]
    }
    read = one(
        langfuse([({"contents": contents[:1]}, {"content": contents[1]}), ({"contents": contents}, reply)])
    )
    assert read.solution.problem.text == ASK
    assert read.solution.texts == ('add({"a": 12, "b": 5})', f"Pens.\n{SECOND}")
    assert read.solution.steps[0].observation == '\n\nTool (add):\n{"sum": 17}'


def test_a_logged_call_has_its_messages_beside_its_response():
    row = {
        "messages": [QUESTION],
        "response": {"model": "m", "choices": [{"message": said(FIRST)}]},
        "cost": 0.1,
    }
    read = one([row])
    assert (read.solution.source, read.solution.texts) == ("m", (FIRST,))


def test_event_files_of_a_folder_are_one_session(tmp_path):
    for event in openhands():
        event["timestamp"] = f"2026-01-01T00:00:{event['id']:02}"
        (tmp_path / f"{10 - event['id']}.json").write_text(json.dumps(event))  # names do not tell the order
    read = one(tmp_path)
    assert read.solution.problem.text == ASK
    assert read.solution.texts[-1] == SECOND
    assert len(read.solution.steps) == 2


def test_a_session_of_the_gemini_cli():
    call = {"id": "c", "name": "add", "args": {"a": 12, "b": 5}, "status": "success", "result": [
        {"functionResponse": {"id": "c", "name": "add", "response": {"output": "17"}}}]}  # fmt: skip
    failed = {**call, "id": "d", "status": "error", "result": [], "resultDisplay": "No such tool"}
    rows = [{"sessionId": "s", "projectHash": "p", "messages": [
        {"id": "1", "type": "user", "content": [{"text": ASK}]},
        {"id": "2", "type": "gemini", "content": FIRST, "thoughts": [{"subject": "Plan", "description": "Pens first."}], "toolCalls": [call, failed], "model": "m"},
        {"id": "2", "type": "gemini", "content": FIRST, "toolCalls": [call]},
        {"id": "3", "type": "info", "content": "Update available"},
        {"id": "4", "type": "gemini", "content": SECOND, "model": "m"},
    ]}]  # fmt: skip
    assert detect(next(read_rows(rows))) == "gemini-cli"
    read = one(rows)
    assert (read.solution.id, read.solution.source, read.solution.problem.text) == ("s", "m", ASK)
    arguments = '{"a": 12, "b": 5}'
    assert read.solution.texts == (f"Plan: Pens first.\n{FIRST}\nadd({arguments})\nadd({arguments})", SECOND)
    assert read.solution.steps[0].observation == "\n\nTool (add):\n17\n\nTool (add):\nError: No such tool"


def test_a_session_that_was_copied_into_its_next_file_is_read_once(tmp_path):
    more = [entry("user", "Go on.", "c", "b"), entry("assistant", SECOND, "d", "c")]
    other = [entry("user", ASK, "p", None), entry("assistant", "12.", "q", "p")]
    fork = [*START, entry("user", "Stop.", "x", "b"), entry("assistant", "Done.", "y", "x")]
    for name, rows in {"a": START, "b": [*START, *more], "c": other, "d": fork, "e": [*START, *more]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = [row.solution.texts for row in read_solutions(tmp_path, how="agent")]
    assert read == [(FIRST, SECOND), ("12.",), (FIRST, "Done.")]


def test_texts_of_codex_that_stand_in_events_alone_are_read_beside_logged_calls():
    """Newer sessions log calls as items of the Responses API, and what was said as completed items."""
    rows = [
        item("UserMessage", content=[{"type": "text", "text": ASK}]),
        {"type": "response_item", "payload": {"type": "reasoning", "encrypted_content": "gAAA", "summary": []}},
        item("AgentMessage", content=[{"type": "Text", "text": FIRST}]),
        {"type": "response_item", "payload": {"type": "custom_tool_call", "name": "exec", "input": "expr 12 + 5", "call_id": "c"}},
        item("CommandExecution", command=["expr"], status="completed", exit_code=0, aggregated_output="17"),
        {"type": "response_item", "payload": {"type": "custom_tool_call_output", "call_id": "c", "output": "17"}},
        item("AgentMessage", content=[{"type": "Text", "text": SECOND}]),
    ]  # fmt: skip
    read = one(rows)
    assert read.solution.problem.text == ASK
    assert read.solution.texts == (f"{FIRST}\nexec(expr 12 + 5)", SECOND)
    assert read.solution.steps[0].observation == "\n\nTool (exec):\n17"


def test_what_a_user_of_codex_says_twice_is_said_twice():
    def both(text: str) -> list[dict[str, Any]]:
        return [item("UserMessage", content=[{"type": "text", "text": text}]), {"type": "event_msg", "payload": {"type": "user_message", "message": text}}]  # fmt: skip

    def reply(text: str) -> dict[str, Any]:
        return item("AgentMessage", content=[{"type": "Text", "text": text}])

    read = one([*both(ASK), reply(FIRST), *both("Go on."), reply(SECOND), *both("Go on."), reply("Done.")])
    assert read.solution.texts == (FIRST, SECOND, "Done.")
    assert [step.observation for step in read.solution.steps] == ["\n\nUser:\nGo on."] * 2 + [""]
