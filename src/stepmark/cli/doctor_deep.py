"""What `stepmark doctor --deep` does in processes of its own, where a package that breaks breaks nothing else.

    python -m stepmark.cli.doctor_deep import NAME ...
    python -m stepmark.cli.doctor_deep grade

Each prints a JSON object a line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

PROBLEM = "A bakery bakes 12 trays of 8 rolls and sells 70. How many are left?"
STEPS = ("12 * 8 = 96 rolls are baked.", "96 - 60 = 36 rolls are left.")


def main(words: Sequence[str]) -> int:
    """Import the modules that are named, or grade one solution with the default PRM."""
    # What a library prints on its way must not get between our lines.
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if words[:1] == ["import"]:
            for name in words[1:]:
                print(json.dumps({"begins": name}), file=out, flush=True)
                print(json.dumps({"module": name, "error": _import(name)}), file=out, flush=True)
            return 0
        print(json.dumps(_grade()), file=out, flush=True)
        return 0


def _import(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except BaseException as error:  # a package may raise whatever it likes, SystemExit too
        return _told(error)
    return None


def _grade() -> dict[str, Any]:
    try:
        from stepmark.models.load import load_prm

        start = time.perf_counter()
        prm = load_prm("default")
        loaded = time.perf_counter()
        first = prm.score(PROBLEM, STEPS)
        scored = time.perf_counter()
        again = prm.score(PROBLEM, STEPS)
        end = time.perf_counter()
    except BaseException as error:
        return {"error": _told(error)}
    return {
        "error": None,
        "load_seconds": loaded - start,
        "first_seconds": scored - loaded,
        "again_seconds": end - scored,
        "scores": [list(first), list(again)],
        **_torch(),
    }


def _torch() -> dict[str, Any]:
    torch = sys.modules["torch"]  # by now the default PRM has imported it
    return {
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _told(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
