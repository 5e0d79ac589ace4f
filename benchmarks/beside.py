"""`python -m benchmarks.beside`: whether stepmark's extras resolve beside the libraries that its users work with.

Resolution only: uv reads the metadata of the index at hand and installs nothing. `make peers` runs it. It prints the table of
`docs/install.md` and ends with 1 if a row does not resolve.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "local,train,serve,annotate,evaluate"
PEERS = (
    "vllm==0.33.0",
    "sglang==0.5.23",
    "trl==1.16.0",
    "trl[vllm]==1.16.0",
    "verl==0.9.1",
    "verl[fsdp]==0.9.1",
    "verl[vllm]==0.9.1",
)
SHOWN = ("torch", "transformers", "accelerate", "peft", "fastapi", "pydantic", "numpy")
"""Packages whose versions the table shows."""


def resolve(uv: str, python: str, requirements: list[str]) -> dict[str, str] | str:
    """Versions by package name of a resolution, or the resolver's error.

    Args:
        uv: the program.
        python: the version of Python to resolve for.
        requirements: lines of a requirements file.
    """
    run = subprocess.run(
        [
            uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-strip-extras",
            "--python-version", python, "-",
        ],
        input="\n".join(requirements),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if run.returncode:
        return " ".join(run.stderr.split())
    return dict(re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", run.stdout, re.M))


def row(uv: str, python: str, peer: str) -> tuple[list[str], str]:
    """A row of the table, and the resolver's error ("" if there is none)."""
    versions = resolve(uv, python, [peer, f"stepmark[{EXTRAS}] @ {ROOT.as_uri()}"])
    if isinstance(versions, str):
        return [peer.replace("==", " "), "no", *["–"] * len(SHOWN)], versions
    return [peer.replace("==", " "), "yes", *(versions.get(shown, "–") for shown in SHOWN)], ""


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", default="uv", help="the program uv")
    parser.add_argument("--python", default="3.11", help="the version of Python to resolve for")
    options = parser.parse_args()
    print(f"Python {options.python}, {datetime.now(UTC):%Y-%m-%d}, stepmark[{EXTRAS}]\n")
    print("| beside | together | " + " | ".join(SHOWN) + " |")
    print("| --- " * (2 + len(SHOWN)) + "|")
    errors = []
    for peer in PEERS:
        cells, error = row(options.uv, options.python, peer)
        print("| " + " | ".join(cells) + " |", flush=True)
        if error:
            errors.append(f"{peer}: {error}")
    print("\n".join(errors), file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
