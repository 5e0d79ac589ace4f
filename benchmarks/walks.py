"""The files that one row, one rollout and one step of a search go through, as docs/architecture.md lists them: `python -m benchmarks.walks`.

Models are loaded before. From the moment at which a run begins with its rows (`store.resumed`), of a search from its method to its choice, every
function of stepmark that is called names its file, in the order of the first calls; a folder of `FOLDERS` counts once. `ASIDE` is left out: records, settings, the opening of files and
models, and what refuses, words, shows and keeps them.
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
    "backends/__init__.py", "data/json_rows.py", "data/table_rows.py", "errors.py", "models/lazy.py", "models/load.py",
    "models/policies/__init__.py", "progress.py", "records.py", "registry.py", "settings.py", "store/", "words.py",
)  # fmt: skip
FOLDERS = ("data/steps", "verifiers/checks")


def walk(run: Callable[[], object], begin: str = "resumed", end: str = "") -> list[str]:
    """The files that are entered while something runs, from the first call of the function `begin` to that of `end`."""
    files: dict[str, None] = {}
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        seen.add(code.co_qualname)
        name = Path(code.co_filename).relative_to(ROOT).as_posix()
        if begin in seen and end not in seen and not name.startswith(ASIDE):
            files.setdefault(next((folder for folder in FOLDERS if name.startswith(folder)), name))

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
        beam = BeamSearch(width=2, how=Steps(max_steps=2))
        for name, files in {
            "a row is graded": walk(lambda: stepmark.grade(rows, prm, out=out(), progress=False)),
            "a rollout becomes a label": walk(
                lambda: stepmark.label(
                    solved, policy, method=label, verifier="number", out=out(), progress=False
                )
            ),
            "a search step becomes a score": walk(
                lambda: stepmark.search(solved, policy, prm, method=beam, out=out(), progress=False),
                "BeamSearch.search",
                "choose",
            ),
        }.items():
            print(f"{name}: {len(files)} files")
            print("".join(f"  {number}. {file}\n" for number, file in enumerate(files, 1)))


if __name__ == "__main__":
    main()
