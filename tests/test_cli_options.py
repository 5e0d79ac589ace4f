"""The options of commands: where they are written, and how the help shows them."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

import stepmark.cli
from stepmark.cli import COMMANDS, _app, main
from stepmark.cli.help import shown_default

FOLDER = Path(stepmark.cli.__file__).parent
ROW = {"problem": "Add.", "steps": ["1 + 1 = 2", "2 + 2 = 5"], "answer": "4"}


def commands():
    """Each command with its words and its options."""
    root = _app()
    for name in COMMANDS:
        app = root[name]
        for words, command in [
            ((name,), app),
            *(((name, one), app[one]) for one in app if not one.startswith("-")),
        ]:
            if command.default_command is not None:
                with root.app_stack(words):
                    yield (
                        " ".join(words),
                        [
                            item
                            for item in command.assemble_argument_collection(parse_docstring=True)
                            if item.show
                        ],
                    )


def test_every_option_stands_in_one_panel_with_its_description_and_once():
    seen = 0
    for command, options in commands():
        names = [name for option in options for name in option.names]
        assert len(names) == len(set(names)), command
        for option in options:
            assert option.parameter.help, (command, option.name)
            assert len(option.parameter.group) == 1, (command, option.name)
            seen += 1
    assert seen > 1000


@pytest.mark.parametrize(
    "flag", ["--temperature", "--prm", "--policy", "--columns", "--device", "--refit-every"]
)
def test_a_flag_is_found_by_searching(flag):
    assert any(f'"{flag}"' in path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))


def test_defaults_are_shown_as_they_are_typed():
    assert shown_default((4, 16)) == "4 16"
    assert shown_default(("value", "early stop")) == "value 'early stop'"
    assert shown_default("\n") == "'\\n'"
    assert shown_default(0.7) == "0.7"
    assert [shown_default(value) for value in (None, False, True, "", (), "x" * 61)] == [None] * 6


def test_descriptions_of_several_lines_are_shown_as_one_paragraph(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "4000")
    monkeypatch.setenv("LINES", "100")  # both, or a dumb terminal has 80 columns whatever it says
    monkeypatch.setenv("TERM", "xterm")
    for words in (["evaluate", "processbench"], ["train"], ["serve"]):
        assert main([*words, "--help"]) == 0
        out = capfd.readouterr().out
        rows = [line for line in out.splitlines() if line.startswith("│")]
        assert len(rows) > 5 and all(re.match(r"│( \*)? +(--|[A-Z]+ )", row) for row in rows)
        assert not re.search(r"│ .*`", out)


def test_a_value_out_of_its_bounds_is_told_with_its_flag(capfd):
    words = ["search", "beam", "x.jsonl", "--policy", "p", "--out", "y", "--width", "0"]
    assert main(words) == 2
    assert "--width 0: expected 1 or more" in capfd.readouterr().err


def test_labels_without_a_file_are_asked_for_under_the_name_that_the_help_has(capfd):
    assert main(["evaluate", "labels"]) == 2
    assert "REFERENCE" in capfd.readouterr().err


def test_a_module_that_is_not_found_is_told_with_the_folder_that_is_not_searched(tmp_path, capfd):
    (tmp_path / "in.jsonl").write_text(json.dumps(ROW))
    assert main(["grade", str(tmp_path / "in.jsonl"), "--prm", "no_such_module_here:prm"]) == 2
    assert "PYTHONPATH=." in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="needs /dev/fd")
def test_solutions_of_a_pipe_are_labelled(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, json.dumps(ROW).encode())
    os.close(writing)
    try:
        out = tmp_path / "labels.jsonl"
        assert main(["label", "formulas", f"/dev/fd/{reading}", "--out", str(out)]) == 0
    finally:
        os.close(reading)
    [row] = map(json.loads, out.read_text().splitlines())
    assert row["judgements"][1][0]["rating"] == -1


def test_an_error_of_the_callers_own_code_says_what_is_kept(tmp_path, capfd):
    rows = [ROW, {**ROW, "steps": ["one + one = two"]}]  # whose sums this PRM cannot read
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["grade", str(tmp_path / "in.jsonl"), "--prm", "scripted_prms:arithmetic"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    err = capfd.readouterr().err
    assert "ValueError" in err and f"kept in {tmp_path / 'out'}.part" in err
