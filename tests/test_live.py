"""`stepmark watch`: a session that grows, and the hook of an agent."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stepmark.cli import main
from stepmark.data.reading import Row
from stepmark.errors import InputError, TooLongError
from stepmark.models.scripted import ScriptedPRM
from stepmark.scoring.hook import hook_reply
from stepmark.scoring.live import LiveScores, SessionFile, TurnScore

ASK = "Pens cost 4 each; I buy 3 and a 5 euro book."
FIRST, WRONG, RIGHT = "4 * 3 = 12.", "12 + 5 = 18.", "12 + 5 = 17."


def entry(kind: str, content: Any, uuid: str, parent: str | None, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content} | ({"model": "m"} if kind == "assistant" else {})
    known = {"type": kind, "sessionId": "s", "uuid": uuid, "parentUuid": parent, "message": message}
    return {**known, "isSidechain": False, **more}


SESSION = [
    entry("user", ASK, "a", None),
    entry("assistant", FIRST, "b", "a"),
    entry("user", "Go on.", "c", "b"),
    entry("assistant", WRONG, "d", "c"),
]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def prm() -> ScriptedPRM:
    return ScriptedPRM(lambda problem, steps: 0.2 if "18" in steps[-1] else 0.9)


def scored(live: LiveScores, file: SessionFile, *, settled: bool = True) -> list[tuple[int, float | None]]:
    file.poll()
    results = list(live.update(file.rows, settled=settled))
    return [(one.turn, one.score) for one in results if isinstance(one, TurnScore)]


def refuse(error: InputError) -> None:
    raise AssertionError(error)


# --- the file ----------------------------------------------------------------------------------------------------


def test_every_prefix_of_a_file_is_read_as_the_lines_that_are_whole_in_it(tmp_path: Path):
    path, text = tmp_path / "s.jsonl", lines(SESSION).encode()
    file = SessionFile(path, refuse)
    assert not file.poll()  # not there yet
    for size in range(len(text) + 1):
        path.write_bytes(text[:size])
        file.poll()
        assert [row.data for row in file.rows] == SESSION[: text[:size].count(b"\n")]
    assert file.restarts == 0
    assert [row.line for row in file.rows] == [1, 2, 3, 4]


def test_a_last_line_without_a_break_is_read_at_the_end(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION).rstrip("\n"))
    file = SessionFile(path, refuse)
    file.poll()
    assert len(file.rows) == 3
    file = SessionFile(path, refuse)
    file.poll(end=True)
    assert len(file.rows) == 4


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    "other", [SESSION[:2], [*SESSION[:1], *[entry("assistant", RIGHT * 40, "x", "a")] * 9]]
)
def test_a_file_that_was_cut_or_replaced_is_read_anew(
    tmp_path: Path, other: list[dict[str, Any]], replaced: bool
):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION))
    file = SessionFile(path, refuse)
    file.poll()
    if replaced:
        (tmp_path / "new").write_text(lines(other))
        (tmp_path / "new").rename(path)
    else:
        path.write_text(lines(other))  # the same file, shorter or longer than before
    assert file.poll()
    assert [row.data for row in file.rows] == other
    assert file.restarts == 1
    path.unlink()
    assert not file.poll()
    assert [row.data for row in file.rows] == other


def test_a_line_that_is_no_json_is_told_once_and_passed_over(tmp_path: Path):
    path, told = tmp_path / "s.jsonl", list[InputError]()
    path.write_text(lines(SESSION[:2]) + "{half\n" + lines(SESSION[2:]))
    file = SessionFile(path, told.append)
    file.poll()
    file.poll()
    assert [error.where for error in told] == [f"{path}:3"]
    assert [row.data for row in file.rows] == SESSION


def test_a_document_that_is_half_written_leaves_the_rows_of_before(tmp_path: Path):
    path = tmp_path / "s.json"
    chat = [{"role": "user", "content": ASK}, {"role": "assistant", "content": FIRST}]
    path.write_text(json.dumps(chat))
    file, live = SessionFile(path, refuse), LiveScores(prm())
    assert scored(live, file) == [(0, 0.9)]
    longer = json.dumps(
        [*chat, {"role": "user", "content": "Go on."}, {"role": "assistant", "content": WRONG}]
    )
    path.write_text(longer[:-20])
    assert scored(live, file) == []
    path.write_text(longer)
    assert scored(live, file) == [(1, 0.2)]


def test_a_folder_of_events_is_followed(tmp_path: Path):
    def event(number: int, **fields: Any) -> None:
        row = {"id": number, "timestamp": f"2026-01-01T00:00:0{number}", **fields}
        (tmp_path / f"{number}.json").write_text(json.dumps(row))

    file, live = SessionFile(tmp_path, refuse), LiveScores(prm())
    event(0, source="user", action="message", args={"content": ASK})
    event(1, source="agent", action="message", args={"content": FIRST})
    assert scored(live, file) == [(0, 0.9)]
    event(2, source="user", action="message", args={"content": "Go on."})
    event(3, source="agent", action="message", args={"content": WRONG})
    assert scored(live, file) == [(1, 0.2)]


# --- the scores --------------------------------------------------------------------------------------------------


def test_each_turn_is_scored_once_when_it_is_complete(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    file, live = SessionFile(path, refuse), LiveScores(prm())
    expected = [(1, []), (2, []), (3, [(0, 0.9)]), (4, [])]
    for count, results in expected:  # a turn that nothing answered may go on
        path.write_text(lines(SESSION[:count]))
        assert scored(live, file, settled=False) == results
    assert scored(live, file) == [(1, 0.2)]
    assert scored(live, file) == []


def test_a_rewound_turn_is_scored_anew_and_what_stands_before_it_is_not(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION))
    file, live = SessionFile(path, refuse), LiveScores(prm())
    assert scored(live, file) == [(0, 0.9), (1, 0.2)]
    path.write_text(lines([*SESSION, entry("user", "Again.", "e", "b"), entry("assistant", RIGHT, "f", "e")]))
    assert scored(live, file) == [(1, 0.9)]


def test_a_subagent_is_a_conversation_of_its_own(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    side = [
        entry("user", "What is 6 + 6?", "x", None, isSidechain=True, agentId="k"),
        entry("assistant", "6 + 6 = 12.", "y", "x", isSidechain=True, agentId="k"),
    ]
    path.write_text(lines([*SESSION[:2], *side, *SESSION[2:]]))
    file, live = SessionFile(path, refuse), LiveScores(prm())
    file.poll()
    results = [one for one in live.update(file.rows, settled=True) if isinstance(one, TurnScore)]
    assert [(one.conversation, one.turn) for one in results] == [("s", 0), ("s", 1), ("s/k", 0)]


def test_turns_that_do_not_fit_are_read_behind_the_later_half():
    """A model that reads 4 turns, by counting: the fifth is read behind 2 of the 4 before it."""
    read: list[int] = []

    def script(problem: str, steps: tuple[str, ...]) -> float:
        if len(steps) > 4 or steps[-1].startswith("long"):
            raise TooLongError("too long")
        read.append(len(steps))
        return 0.9

    turns = [f"turn {n}" for n in range(7)] + ["long", "after"]
    messages = [{"role": "user", "content": ASK}]
    for text in turns:
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    from stepmark.data.reading import read_rows

    rows = list(read_rows([{"messages": messages}]))
    results = list(LiveScores(ScriptedPRM(script)).update(rows, settled=True))
    assert all(isinstance(one, TurnScore) for one in results)
    assert [one.read_from for one in results] == [0, 0, 0, 0, 2, 2, 4, 7, 8]
    assert [one.score for one in results] == [0.9] * 7 + [None, 0.9]
    assert results[7].unread == "too long"


def test_the_prm_reads_the_ends_of_a_long_answer_and_the_result_shows_all_of_it():
    seen: list[str] = []

    class Prm(ScriptedPRM):
        def score_many(self, solutions, **how):  # type: ignore[no-untyped-def]
            for solution in solutions:
                seen.extend(one.observation for one in solution.steps[-2:-1])
                yield from super().score_many([solution], **how)

    from stepmark.data.reading import read_rows

    chat = [
        {"role": "user", "content": ASK},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "a" * 50 + "b" * 50},
        {"role": "assistant", "content": "Done."},
    ]
    live = LiveScores(Prm(lambda problem, steps: 0.9), longest=20)
    first, _ = live.update(list(read_rows([{"messages": chat}])), settled=True)
    whole = "\n\nTool (f):\n" + "a" * 50 + "b" * 50
    assert isinstance(first, TurnScore)
    assert first.step.observation == whole
    assert seen == [f"{whole[:10]}[… {len(whole) - 20} characters …]{'b' * 10}"]


def test_an_exact_check_needs_no_prm(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION))
    file, live = SessionFile(path, refuse), LiveScores(None)
    file.poll()
    results = [one for one in live.update(file.rows, settled=True) if isinstance(one, TurnScore)]
    assert [(one.score, one.weak, one.refuted) for one in results] == [
        (None, False, False),
        (None, True, True),
    ]
    assert "17" in results[1].reason


# --- the command -------------------------------------------------------------------------------------------------


def test_the_command_prints_a_line_a_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION))
    assert main(["watch", str(path), "--prm", "none", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["turn"], row["text"], row["score"]) for row in rows] == [(1, FIRST, None), (2, WRONG, None)]
    assert rows[1]["feedback"] and not rows[0]["feedback"]
    assert "2 turns" in err


def test_a_session_without_a_turn_is_a_failure_that_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION[:1]))
    assert main(["watch", str(path), "--prm", "none"]) == 1
    assert "assistant" in capsys.readouterr().err
    assert main(["watch", str(tmp_path / "missing.jsonl"), "--prm", "none"]) == 1


def test_a_file_is_followed_until_ctrl_c(tmp_path: Path):
    path, out = tmp_path / "s.jsonl", tmp_path / "out"
    words = ["watch", str(path), "--prm", "none", "--follow", "--interval", "0.05", "--json"]
    with out.open("wb") as file:
        run = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a background job ignores it
                "from stepmark.cli import main; sys.exit(main(sys.argv[1:]))",
                *words,
            ],
            stdout=file,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    try:
        assert run.stderr is not None
        assert b"waiting" in run.stderr.readline()

        def wait_for(count: int) -> None:
            deadline = time.monotonic() + 120
            while out.read_bytes().count(b"\n") < count:
                assert time.monotonic() < deadline and run.poll() is None
                time.sleep(0.02)

        text = lines(SESSION)
        half = text.index('"d"')
        with path.open("w") as session:
            session.write(text[:half])
            session.flush()
            wait_for(1)
            session.write(text[half:])
            session.flush()
            wait_for(2)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 0
    assert b"2 turns" in err and b"Traceback" not in err
    assert [json.loads(line)["turn"] for line in out.read_text().splitlines()] == [1, 2]


# --- the hook ----------------------------------------------------------------------------------------------------


def payload(path: Path, event: str = "Stop", **more: Any) -> dict[str, Any]:
    return {
        "session_id": "s",
        "transcript_path": str(path),
        "hook_event_name": event,
        "stop_hook_active": False,
        **more,
    }


def test_a_stop_with_a_refuted_turn_is_blocked_once(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION))
    reply = hook_reply(payload(path), LiveScores(None))
    assert reply is not None
    assert reply["decision"] == "block"
    assert "17" in reply["reason"] and WRONG in reply["reason"]
    assert hook_reply(payload(path, stop_hook_active=True), LiveScores(None)) is None


@pytest.mark.parametrize("event", ["Stop", "SubagentStop"])
def test_only_turns_since_the_last_question_count(tmp_path: Path, event: str):
    path = tmp_path / "s.jsonl"
    path.write_text(
        lines([*SESSION, entry("user", "And 2 + 2?", "e", "d"), entry("assistant", "2 + 2 = 4.", "f", "e")])
    )
    assert hook_reply(payload(path, event), LiveScores(prm())) is None
    key = "agent_transcript_path" if event == "SubagentStop" else "transcript_path"
    assert hook_reply({**payload(path, event), key: str(path)}, LiveScores(prm(), threshold=0.95)) is not None


def test_a_weak_turn_blocks_with_its_score(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION))
    reply = hook_reply(payload(path), LiveScores(prm(), checks="none"))
    assert reply is not None and "0.2" in reply["reason"] and "0.5" in reply["reason"]


def test_a_transcript_that_lags_is_completed_by_the_hooks_own_fields(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION[:3]))
    assert hook_reply(payload(path), LiveScores(None)) is None
    assert hook_reply(payload(path, last_assistant_message=WRONG), LiveScores(None)) is not None
    path.write_text(lines(SESSION))  # it is written by now: the same turn, once
    late = hook_reply(payload(path, last_assistant_message=WRONG), LiveScores(None))
    assert late is not None and late["reason"].count(WRONG) == 1


def test_after_a_tool_its_turn_is_judged(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    call = {"type": "tool_use", "id": "t1", "name": "note", "input": {"text": WRONG}}
    path.write_text(lines([*SESSION[:3], entry("assistant", [call], "d", "c")]))
    tool = {"tool_name": "note", "tool_input": {"text": WRONG}, "tool_response": "ok"}
    there = hook_reply(
        payload(path, "PostToolUse", tool_use_id="t1", **tool), LiveScores(prm(), checks="none")
    )
    assert there is not None and there["decision"] == "block"
    path.write_text(lines(SESSION[:3]))
    lagging = hook_reply(
        payload(path, "PostToolUse", tool_use_id="t1", **tool), LiveScores(prm(), checks="none")
    )
    assert lagging == there
    assert hook_reply(payload(path, "PreToolUse", tool_use_id="t1", **tool), LiveScores(prm())) is None


def test_codex_session_is_read_and_one_without_a_transcript_goes_on(tmp_path: Path):
    path = tmp_path / "rollout.jsonl"

    def item(role: str, text: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        message = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        return {"type": "response_item", "payload": message}

    rows = [
        {"type": "session_meta", "payload": {"id": "s"}},
        item("user", ASK),
        item("assistant", WRONG.replace("12 + 5", "4 * 3 + 5")),
    ]
    path.write_text(lines(rows))
    assert hook_reply(payload(path, turn_id="1", model="m"), LiveScores(None)) is not None
    assert hook_reply({**payload(path), "transcript_path": None}, LiveScores(None)) is None


def hook(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code = main(["watch", "--hook", *words])
    return code, *capsys.readouterr()


def test_the_hook_command_answers_on_standard_output(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION))
    code, out, _ = hook(json.dumps(payload(path)), monkeypatch, capsys)
    assert code == 0
    assert json.loads(out).keys() == {"decision", "reason"}
    path.write_text(lines(SESSION[:2]))
    assert hook(json.dumps(payload(path)), monkeypatch, capsys)[:2] == (0, "")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"hook_event_name": "Stop", "transcript_path": "/nowhere/s.jsonl"}']
)
def test_a_hook_that_fails_never_blocks(text: str, monkeypatch, capsys):
    code, out, err = hook(text, monkeypatch, capsys)
    assert (code, out) == (1, "")
    assert err


@pytest.mark.parametrize(
    "words",
    [
        ["watch", "--hook", "--treshold", "0.3"],
        ["watch", "--hook", "--threshold", "low"],
        ["watch", "--hok"],
        ["wach", "--hook"],
        ["watch", "--hook", "--config", "/nowhere.toml"],
        ["watch", "--hook", "--judge", "http://127.0.0.1:9/v1"],
        ["watch", "--hook", "--votes", "0"],
    ],
)
def test_a_mistyped_hook_never_ends_with_2_which_blocks(words: list[str], capsys):
    assert main(words) == 1
    assert capsys.readouterr().err


JUDGE_RULES = """
import json, stepmark

def judge():
    def reply(request, number):
        text = request.prompt[-1].content
        verdict = "fail" if "Done." in text and "pytest" not in text else "pass"
        return json.dumps({"tested": {"verdict": verdict, "reason": "Run the tests first."}})
    return stepmark.ScriptedPolicy(reply, name="rules")
"""


def test_a_judge_makes_a_turn_weak_in_the_terminal_and_in_the_hook(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "live_judge_rules.py").write_text(JUDGE_RULES)
    (tmp_path / "team.toml").write_text('[criteria]\ntested = "The tests ran."\n')
    judge = ["--judge", "live_judge_rules:judge", "--criteria", str(tmp_path / "team.toml"), "--votes", "1"]
    path = tmp_path / "s.jsonl"
    path.write_text(lines([*SESSION[:3], entry("assistant", "Done.", "d", "c")]))
    assert main(["watch", str(path), "--prm", "none", "--json", *judge]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["weak"] for row in rows] == [False, True]
    assert [(one["criterion"], one["source"]) for one in rows[1]["feedback"]] == [("tested", "judge")]
    code, out, _ = hook(json.dumps(payload(path)), monkeypatch, capsys, *judge)
    assert code == 0 and "Run the tests first." in json.loads(out)["reason"]
    path.write_text(lines([*SESSION[:3], entry("assistant", "pytest passed. Done.", "d", "c")]))
    assert hook(json.dumps(payload(path)), monkeypatch, capsys, *judge)[:2] == (0, "")


def test_a_turn_that_the_judge_cannot_read_says_so_and_the_others_are_judged():
    from stepmark.labels import Judge
    from stepmark.models.scripted import ScriptedPolicy

    reply = '{"tested": {"verdict": "fail", "reason": "No test ran."}}'
    judge = Judge(criteria={"tested": "The tests ran."}, votes=1, temperature=0)
    live = LiveScores(None, judge=judge.watching(ScriptedPolicy(lambda request, number: reply)))
    rows = [{"role": "user", "content": ASK}, {"role": "assistant", "content": "First."}]
    rows += [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "<paragraph_0> Next."}]
    read = [Row(data=row, file="s", line=at) for at, row in enumerate(rows, start=1)]
    first, second = live.update(read, settled=True)
    assert isinstance(first, TurnScore) and isinstance(second, TurnScore)
    assert (first.weak, first.unread) == (True, None)
    assert not second.weak and second.unread


@pytest.mark.parametrize(
    "words", [["--prm", "/nowhere/prm"], ["--checks", "spelling"], ["session.jsonl"], ["--follow"]]
)
def test_a_hook_with_a_setting_that_cannot_work_never_blocks(words: list[str], monkeypatch, capsys):
    code, out, _ = hook(json.dumps({"hook_event_name": "Stop"}), monkeypatch, capsys, *words)
    assert (code, out) == (1, "")


def test_a_hook_imports_no_torch(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    path.write_text(lines(SESSION))
    code = (
        "import sys; from stepmark.cli import main; main(['watch', '--hook']); print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(payload(path)),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.stdout.splitlines()[-1] == "False"


def test_spans_of_messages_move_with_what_is_left_out():
    """Every message of a shortened turn begins and ends as before; the words that stand whole are the same."""
    from stepmark.data.reading import read_rows
    from stepmark.scoring.live import conversations

    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    chat = [
        {"role": "user", "content": ASK * 9},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "a" * 90},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Done."},
    ]
    (row,) = conversations(list(read_rows([{"messages": chat}])))
    assert not isinstance(row, InputError)
    step = row.solution.steps[0]
    for longest in (0, 1, 30, 60, 90, 200):
        short = LiveScores(None, longest=longest)._shortened(step)
        assert len(short.messages) == len(step.messages) == 3
        for before, after in zip(step.messages, short.messages, strict=True):
            whole, cut = step.raw[before.start : before.end], short.raw[after.start : after.end]
            assert cut == whole or "…" in cut
        assert short.raw[short.messages[0].start : short.messages[0].end] == "I look."
        if longest >= 60:
            assert short.raw[short.messages[2].start : short.messages[2].end] == "And?"
