"""Every `stepmark` command that README, docs and recipes show is one that the command line takes: its options, their values, its arguments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cyclopts import App

from stepmark.cli import COMMANDS, main
from stepmark.cli.help_examples import examples

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shown(text: str) -> list[str]:
    """What stands after `stepmark` in the shell lines of a page."""
    found = []
    for block in re.findall(r"^```(?:console|\{code-block\} console)\n(.*?)^```$", text, re.M | re.S):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            command = re.match(
                r"(?:\$ )?(?:[A-Z]+=\S+ )?(?:\S.* -m )?(?:for .*; do )?stepmark(?:\.cli)? (.*)", line
            )
            if command and "pip install" not in line:
                found.append(command[1].partition(" # ")[0].partition(";")[0])
    return found + re.findall(r"<code>stepmark ([^<]*)</code>", text)


@pytest.fixture(scope="module")
def app():
    one = App(name="stepmark")
    for name, (place, _) in COMMANDS.items():
        one.command(place, name=name)
    return one


@pytest.mark.parametrize(
    "page", [page for page in PAGES if shown(page.read_text("utf-8"))], ids=lambda p: p.name
)
def test_commands_are_taken_as_they_stand(app, page):
    for command in shown(page.read_text(encoding="utf-8")):
        app.parse_args(shlex.split(command), exit_on_error=False, print_error=False)


def test_the_cards_name_all_that_their_commands_need(app):
    """What no command runs without has a default on the command line and is asked for later."""
    cards = re.findall(r"<code>stepmark ([^<]*)</code>", (ROOT / "docs/index.md").read_text(encoding="utf-8"))
    needs = {
        "label": {"--policy", "--out"},
        "search": {"--policy", "--out"},
        "rl": {"--policy", "--out"},
        "evaluate": {"--data"},
        "train": {"--out"},
    }
    assert len(cards) > 5
    assert not [card for card in cards if needs.get(card.split()[0], set()) - set(card.split())]


def test_what_is_shown_is_found():
    text = (
        "```console\n$ stepmark grade a.jsonl \\\n    --out b.jsonl\nwrote b.jsonl\n$ PYTHONPATH=. stepmark label own x\n```\n"
        "```{code-block} console\ntorchrun --n 2 -m stepmark train y\nfor part in *; do stepmark grade z; done\n```\n"
        "```python\nstepmark grade no\n```\n"
    )
    assert shown(text) == ["grade a.jsonl --out b.jsonl", "label own x", "train y", "grade z"]
    assert sum(len(shown(page.read_text(encoding="utf-8"))) for page in PAGES) > 100


def test_the_help_of_every_command_gives_two_examples_that_are_taken(app, capfd):
    for name in COMMANDS:
        inner = [one for one in app[name] if not one.startswith("-")]
        for command in ([name], *([name, one] for one in inner)):
            for line in examples(command):
                words = shlex.split(line.partition(" | ")[0])
                assert words[:2] == ["stepmark", name]
                app.parse_args(words[1:], exit_on_error=False, print_error=False)
    assert main(["search", "rebase", "--help"]) == 0
    assert "Examples:\n  stepmark search rebase" in capfd.readouterr().out
