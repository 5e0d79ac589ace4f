"""The concept pages: their figures are made by the library."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stepmark.cli import COMMANDS

DOCS = Path(__file__).resolve().parents[1] / "docs"
STATIC = DOCS / "_static" / "concepts"
PAGES = [DOCS / name for name in ("concepts.md", "label.md", "pitfalls.md")]
NUMBERS = json.loads((STATIC / "numbers.json").read_text(encoding="utf-8"))
QUICK = (
    "outcome-and-process",
    "granularity",
    "any-of-k",
    "finite-k",
    "policies",
    "length",
)


@pytest.fixture(scope="module")
def figures():
    sys.path.insert(0, str(DOCS))
    try:
        import concept_figures
    finally:
        sys.path.remove(str(DOCS))
    return concept_figures


@pytest.mark.parametrize("name", QUICK)
def test_numbers_come_out_again(name, figures):
    assert figures.PREDICTABLE[name]().numbers == NUMBERS[name]


def test_every_figure_is_shown_and_small():
    shown = {name for page in PAGES for name in re.findall(r"concepts/([\w-]+)\.svg", page.read_text())}
    assert shown == {file.stem for file in STATIC.glob("*.svg")} == set(NUMBERS)
    for file in [*STATIC.glob("*.svg"), DOCS / "_static" / "whole-library.svg"]:
        assert file.stat().st_size < 80_000
        root = ElementTree.parse(file).getroot()  # noqa: S314  (of our own making)
        # Readable in light and dark, and of a size of its own.
        assert root.attrib["width"].replace(".", "").isdigit()
        assert "prefers-color-scheme:dark" in file.read_text(encoding="utf-8")


def test_a_picture_is_what_the_library_draws(figures):
    found = figures.PREDICTABLE["granularity"]()
    drawn = figures.picture(found.plot)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")  # noqa: S314
    assert f">{found.plot.title}</text>" in drawn


@pytest.mark.slow
def test_all_figures_in_two_minutes(figures):
    done = subprocess.run(
        [sys.executable, str(DOCS / "concept_figures.py"), "--check"], capture_output=True, text=True, check=False
    )  # fmt: skip
    # A trained network's figures differ between processors.
    assert [line for line in done.stdout.splitlines() if not line.startswith("separators:")] == []
    assert "Traceback" not in done.stderr


def test_the_whole_library_has_every_command():
    page = (DOCS / "whole-library.md").read_text(encoding="utf-8")
    picture = (DOCS / "_static" / "whole-library.svg").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert re.search(rf"`stepmark {command}\b", page), f"docs/whole-library.md leaves out {command}"
        assert re.search(rf">[^<]*\b{command}\b", picture), f"its picture leaves out {command}"
    shown = set(re.findall(r"`stepmark ([a-z]+)\b", page))
    assert shown <= set(COMMANDS)
