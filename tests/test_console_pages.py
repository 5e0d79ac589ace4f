"""The blocks of the pages: each page is typed from top to bottom into an empty folder, Python and shell in turn, and prints what it shows.

Blocks of ```` ```{code-block} console ```` need a network, a server or a GPU; test_shown_commands parses those.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from console_blocks import missing, typed

ROOT = Path(__file__).resolve().parents[1]
LIGHT = (
    "cat > ",
    "stepmark split",
    "stepmark convert",
    "stepmark doctor",
    "stepmark families",
    "stepmark label formulas",
)
"""Beginnings of commands that load no model."""
PAGES = [
    pytest.param(
        page,
        id=page.stem,
        marks=[] if all(one.command.startswith(LIGHT) for one in typed(page)) else [pytest.mark.slow],
    )
    for page in sorted((ROOT / "docs").glob("*.md"))
    if page.stem != "start" and typed(page)  # test_start has that page
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    environment = dict(os.environ) | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    for one in typed(page, python=True):
        if one.python:
            exec(compile(one.command, page.name, "exec", dont_inherit=True), namespace)  # noqa: S102
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", one.command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"$ {one.command}\n{output}"
        assert missing(one.shown, output) == [], f"$ {one.command}\n{output}"


def test_every_guide_page_that_can_be_run_is_run() -> None:
    assert len(PAGES) >= 17
