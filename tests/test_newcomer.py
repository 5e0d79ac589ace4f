"""A newcomer's path: a fresh clone, a home of its own, README's commands, then the page "Start here in five minutes", as they are typed.

Slow: it installs what the README installs. `pytest -m slow -s tests/test_newcomer.py` shows how long each command took.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from console_blocks import Typed, missing, typed

ROOT = Path(__file__).resolve().parents[1]

NOT_TYPED = {
    "make test": "it is what runs this",
    "pip install": "`make demo` installs the same from the clone",
    "--prm qwen-7b": "needs the hub",
}
"""Commands of the README that are not typed here, by what stands in them, and why. The page that comes after does all of it on data of its own."""


@dataclass
class Reader:
    """Somebody with a clone and nothing else."""

    home: Path
    clone: Path
    times: list[tuple[float, str]] = field(default_factory=list)

    def types(self, shell: str, where: Path, *, limit: float = 900) -> str:
        """What a command prints on both streams; it must succeed."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_", "LANG", "LC_"))
        }
        environment = kept | {
            "HOME": str(self.home),
            "PATH": os.pathsep.join(
                [str(self.clone / ".venv" / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
            ),
            # The interpreter of these tests: another may be too old.
            "PYTHON": str(Path(sys.base_prefix) / "bin" / "python3"),
            "HF_HUB_OFFLINE": "1",
        }
        start = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{shell}"],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )
        self.times.append((time.monotonic() - start, shell.splitlines()[0]))
        assert done.returncode == 0, f"$ {shell}\n{done.stdout}"
        assert "Traceback" not in done.stdout, f"$ {shell}\n{done.stdout}"
        return done.stdout

    def follows(self, commands: list[Typed], where: Path) -> None:
        """Types each command, and looks for the output that the page shows."""
        for one in commands:
            output = self.types(one.command, where)
            assert missing(one.shown, output) == [], f"$ {one.command}\n{output}"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    if not (ROOT / ".git").exists() or shutil.which("git") is None or shutil.which("make") is None:
        pytest.skip("needs git, make and a clone of the repository")
    folder = tmp_path_factory.mktemp("newcomer")
    home = folder / "home"
    home.mkdir()
    line = ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder / "stepmark")]
    subprocess.run(line, check=True)
    one = Reader(home=home, clone=folder / "stepmark")
    yield one
    told = [f"{seconds:7.1f} s  {shell}" for seconds, shell in one.times]
    print("\n".join(["", *told, f"{sum(seconds for seconds, _ in one.times):7.1f} s  in all"]))


def why_not(shell: str) -> str | None:
    return next((reason for part, reason in NOT_TYPED.items() if part in shell), None)


@pytest.mark.slow
def test_the_readme(reader):
    page = reader.clone / "README.md"
    here = [one for one in typed(page) if why_not(one.command) is None]
    first, *rest = here
    assert first.command.split()[:2] == ["make", "demo"]
    said = reader.types(first.command, reader.clone)
    # What the README shows of it: some of the lines, each without the time at its end.
    texts = re.findall(r"^```text\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    shown = next(body for body in texts if "first error" in body).splitlines()
    assert missing(tuple(f"{line}…" for line in shown if line), said) == [], said
    rows = [
        json.loads(line) for line in (reader.clone / "demo" / "graded.jsonl").read_text("utf-8").splitlines()
    ]
    assert rows and all(len(row["scores"]) == len(row["steps"]) for row in rows)
    report = (reader.clone / "demo" / "report.html").read_text("utf-8")
    assert "first error" in report and not re.search(r"(src|href)=[\"']https?:", report)

    work = reader.home / "work"
    work.mkdir()
    text = page.read_text("utf-8")
    own = next(body for body in re.findall(r"^```json\n(.*?)^```$", text, re.M | re.S) if '"steps"' in body)
    (work / "solutions.jsonl").write_text(own, "utf-8")
    python = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))
    (work / "readme.py").write_text(python, "utf-8")
    for one in rest:
        where = reader.clone if one.command.startswith(("make ", "bash ")) else work
        reader.follows([one], where)
    reader.types("python readme.py", work)
    graded = [json.loads(line) for line in (work / "graded.jsonl").read_text("utf-8").splitlines()]
    assert [len(row["scores"]) for row in graded] == [2, 2]
    assert {one.command.split()[1] for one in rest} >= {"grade", "families"}


@pytest.mark.slow
def test_start_here(reader):
    page = reader.clone / "docs" / "start.md"
    if not (reader.clone / ".venv" / ".demo").exists():
        reader.types("make demo", reader.clone)
    installing = re.findall(r"^\$ (pip install .*)$", page.read_text("utf-8"), re.M)
    assert installing, "docs/start.md says how to install"
    for line in installing:
        reader.types(
            line.replace("pip install", "python -m pip --disable-pip-version-check install --quiet", 1),
            reader.clone,
        )
    work = reader.home / "start"
    work.mkdir()
    reader.follows(typed(page), work)
    # A PRM of one's own, on data of one's own, is there and is read.
    assert any((folder / "config.json").is_file() for folder in work.iterdir() if folder.is_dir())
    assert json.loads(reader.types("stepmark doctor --json", work))["healthy"] is True


TYPED = ("make demo", "stepmark grade", "stepmark families", "stepmark doctor")
"""Commands of the README that run for anybody."""


def test_every_command_of_the_readme_is_typed_or_has_its_reason():
    commands = [one.command for one in typed(ROOT / "README.md")]
    left = [command for command in commands if why_not(command) is None]
    assert left[0].startswith("make demo")
    for command in left:
        assert command.startswith(TYPED), f"say in NOT_TYPED why nobody types here: {command}"
    idle = [part for part in NOT_TYPED if not any(part in command for command in commands)]
    assert idle == [], "reasons without a command"
