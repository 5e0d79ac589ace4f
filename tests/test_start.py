"""The page "Start here in five minutes" does what it says: its commands run as they stand, in an empty folder, and print what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from console_blocks import missing, script, typed
from stepmark.cli import COMMANDS, main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "start.md"


def _page(folder: Path, text: str) -> Path:
    file = folder / "page.md"
    file.write_text(text, encoding="utf-8")
    return file


def test_commands_files_and_output_of_a_page(tmp_path):
    page = _page(
        tmp_path,
        "Save this:\n\n<!-- file: rows.jsonl -->\n```json\n{\"a\": 1}\n```\n\n```console\n$ wc -l rows.jsonl\n1 rows.jsonl\n…\n"
        "$ echo one \\\n  two\none two\n```\n\n<!-- not run -->\n```console\n$ false\n```\n\n```python\n$ no\n```\n",
    )  # fmt: skip
    found = typed(page)
    assert [one.command for one in found] == [
        "cat > rows.jsonl <<'END'\n{\"a\": 1}\nEND",
        "wc -l rows.jsonl",
        "echo one \\\n  two",
    ]
    assert [one.shown for one in found] == [(), ("1 rows.jsonl", "…"), ("one two",)]
    done = subprocess.run(
        ["bash", "-c", script(page)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 rows.jsonl\none two\n"


def test_a_script_stops_at_the_first_failure(tmp_path):
    page = _page(tmp_path, "```console\n$ false\n$ echo no\n```\n")
    done = subprocess.run(
        ["bash", "-c", script(page)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_output_before_a_command_is_refused(tmp_path):
    with pytest.raises(ValueError, match="begins with 'wrote it'"):
        typed(_page(tmp_path, "```console\nwrote it\n```\n"))


def test_lines_that_are_missing():
    said = "240 solutions, 3.2 s\n  1  0.85 ━━━─ a step\nwrote x"
    assert (
        missing(("12 solutions, 1.0 s", "…", "", "  1    0.2 ━─── ✗ first error", "wrote x"), said)[0]
        != "wrote x"
    )
    assert missing(("12 solutions, …", " 1 0.9 ━━ a step"), said) == []
    assert missing(("12 problems, …", "wrote y"), said) == ["12 problems, …", "wrote y"]


def test_every_flag_on_the_page_exists():
    for one in typed(PAGE):
        words = one.command.split()
        if words[0] != "stepmark":
            continue
        assert words[1] in COMMANDS
        deep = words[1] in ("problems", "label", "search", "evaluate")
        said = StringIO()
        with redirect_stdout(said):
            assert main([*words[1 : 3 if deep else 2], "--help"]) == 0
        flags = [word for word in words if word.startswith("--")]
        assert [flag for flag in flags if flag not in said.getvalue()] == []


@pytest.mark.slow
def test_the_page_from_top_to_bottom(tmp_path):
    environment = dict(os.environ) | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",  # no hub is asked for anything
    }
    for one in typed(PAGE):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", one.command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{one.command}\n{done.stdout}{done.stderr}"
        assert missing(one.shown, done.stdout + done.stderr) == [], one.command
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "my-prm" / "stepmark.json").is_file()
    assert (tmp_path / "best-of-8" / "report.html").is_file()
