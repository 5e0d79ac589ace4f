"""The files that one row, one rollout and one step of a search go through, as docs/architecture.md lists them: `python -m benchmarks.walks`.

Models are loaded before. From the moment at which a run begins with its rows (`store.resumed`), every function of stepmark that is called names
its file, in the order of the first calls. `ASIDE` is left out: records, settings, and what refuses, words, shows and keeps them.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import stepmark
from stepmark.labels.rollout import EveryStep
from stepmark.models.policies import load_policy
from stepmark.searches.base import Steps
from stepmark.searches.beam import BeamSearch

ROOT = Path(stepmark.__file__).parent
ASIDE = (
    "backends/__init__.py", "errors.py", "models/lazy.py", "models/load.py", "progress.py", "records.py", "registry.py", "settings.py",
    "store/", "words.py",
)  # fmt: skip


def walk(run: Callable[[], object]) -> list[str]:
    """The files that are entered while something runs."""
    files: dict[str, None] = {}
    begun: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        if code.co_name == "resumed":
            begun.append(code.co_name)
        name = Path(code.co_filename).relative_to(ROOT).as_posix()
        if begun and not name.startswith(ASIDE):
            files.setdefault(name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(files)


def main() -> None:
    """Print the three walks."""
    prm = stepmark.load_prm("default", dtype="float32")
    (problem,) = stepmark.ArithmeticWorld().problems(1, steps=(4, 4))
    policy = load_policy("stepmark:arithmetic")
    rows = [
        {"problem": f"What is {number} + 3, doubled?", "solution": "2 + 3 = 5\n5 * 2 = 10", "answer": "10"}
        for number in (2, 2.0)
    ]
    solved = [
        {"problem": problem.text, "solution": "Let us begin.", "answer": problem.answer, "id": id_}
        for id_ in "ab"
    ]
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(99))

        def out() -> str:
            return f"{folder}/{next(numbers)}.jsonl"

        label = EveryStep(k=1)
        beam = BeamSearch(width=1, how=Steps(max_steps=1))
        for name, run in {
            "a row is graded": lambda: stepmark.grade(rows, prm, out=out(), progress=False),
            "a rollout becomes a label": lambda: stepmark.label(
                solved, policy, method=label, verifier="number", out=out(), progress=False
            ),
            "a search step becomes a score": lambda: stepmark.search(
                solved, policy, prm, method=beam, out=out(), progress=False
            ),
        }.items():
            files = walk(run)
            print(f"{name}: {len(files)} files")
            print("".join(f"  {number}. {file}\n" for number, file in enumerate(files, 1)))


if __name__ == "__main__":
    main()
