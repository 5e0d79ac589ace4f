"""`stepmark split`, called as the command table calls it."""

import io
import json
import sys

import pytest

from stepmark.cli import main

TEXT = "Let us see.\n\nStep 1: Add 2\nand 3.\n\nStep 2: It is 5.\n"


@pytest.fixture
def solution(tmp_path):
    path = tmp_path / "solution.txt"
    path.write_text(TEXT)
    return str(path)


def stdin(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_it_says_what_it_picked_and_numbers_the_steps(solution, capsys):
    assert main(["split", solution]) == 0
    assert capsys.readouterr().out == (
        'numbered: 3 steps (it has a numbered list, "Step 1" to "Step 2")\n'
        "\n1  Let us see.\n"
        "\n2  Step 1: Add 2\n   and 3.\n"
        "\n3  Step 2: It is 5.\n"
    )


def test_json_holds_every_character(solution, capsys):
    assert main(["split", solution, "--split", "line", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["Let us see.", "Step 1: Add 2", "and 3.", "Step 2: It is 5."]
    assert all(set(row) == {"text", "start", "lead", "tail"} for row in rows)
    assert "".join(row["lead"] + row["text"] + row["tail"] for row in rows) == TEXT
    assert all(TEXT[row["start"] :].startswith(row["text"]) for row in rows)


def test_standard_input_marker_and_line_ends(monkeypatch, capsys):
    stdin(monkeypatch, "\ufeffa ки\r\nb ки".encode())
    assert main(["split", "-", "--split", "marker", "--marker", "ки", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["lead"], row["text"], row["tail"]) for row in rows] == [
        ("", "a", " ки"),
        ("\r\n", "b", " ки"),
    ]


def test_an_agent_trace(tmp_path, capsys):
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "name": "f", "content": "7"},
        {"role": "assistant", "content": "It is 7."},
    ]
    for data in (messages, {"messages": messages}):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(data))
        assert main(["split", str(path), "--split", "agent"]) == 0
        assert capsys.readouterr().out == (
            "agent: 2 steps (asked for)\n\n1  f({})\n   | Tool (f):\n   | 7\n\n2  It is 7.\n"
        )
        assert main(["split", str(path), "--split", "agent", "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["observation"] for row in rows] == ["\n\nTool (f):\n7", ""]


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (b"ab\n\xff", [], "standard input:2: expected UTF-8, found byte 0xff"),
        (b" \n", [], "standard input, field 'solution': expected a solution, found a blank text"),
        (b"a", ["--split", "lines"], "Did you mean 'line'"),
        (b"a", ["--split", "marker"], "needs a marker"),
        (b"a", ["--split", "line", "--marker", "x"], "not by 'line'"),
        (b"{]", ["--split", "agent"], "standard input:1: expected chat messages as JSON"),
        (b"[]", ["--split", "agent"], "standard input, field 'messages': expected at least one assistant"),
        (b"[]", ["--split", "agent", "--marker", "x"], "leave out --marker"),
    ],
)
def test_bad_input_ends_with_2_and_prints_no_step(monkeypatch, capsys, data, arguments, message):
    stdin(monkeypatch, data)
    assert main(["split", "-", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_files_that_cannot_be_read(tmp_path, capsys):
    assert main(["split", str(tmp_path / "none.txt")]) == 2
    assert "none.txt: No such file or directory" in capsys.readouterr().err
    assert main(["split", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err
    assert main(["split", "rows.jsonl"]) == 2
    assert "`stepmark grade` reads rows" in capsys.readouterr().err
