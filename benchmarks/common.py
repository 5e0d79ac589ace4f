"""What every benchmark shares: real data when it is there, the matrix-product peak, the last line."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from stepmark.models.backbone import has_bfloat16
from stepmark.models.places import cache_folder

PEERS = Path(__file__).parent / "peers"
HOST = "127.0.0.1"
NATIVE: Literal["bfloat16", "float32"] = (
    "bfloat16" if has_bfloat16("cuda" if torch.cuda.is_available() else "cpu") else "float32"
)
"""The precision of benchmarks by default: bfloat16 where this machine computes in it."""


def benchmark_parser(
    description: str | None, quick: str = "less data, same figures"
) -> argparse.ArgumentParser:
    """The parser of a benchmark's flags: --quick, and what the benchmark adds."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def data_folder() -> Path | None:
    """The folder of development data: `$STEPMARK_DATA`, else `shared/data` beside the checkout; None if absent."""
    named = os.environ.get("STEPMARK_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


def rows(file: Path) -> list[dict[str, Any]]:
    """All rows of a gzipped JSON lines file."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def peer_python(name: str, given: Path | None, *, install: bool) -> Path | None:
    """The Python of a peer's environment, which is no part of ours; None where there is none.

    Args:
        name: the peer; `benchmarks/peers/NAME.txt` lists what its environment holds.
        given: the Python that a flag names.
        install: make the environment where there is none.
    """
    if given is not None:
        return given
    place = cache_folder() / "peers" / name
    python = place / "bin" / "python"
    if not python.is_file() and install:
        print(f"making {place} (a minute or two, up to 1.5 GB)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "-r", str(PEERS / f"{name}.txt")], check=True
        )
    return python if python.is_file() else None


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time of a call, and its result; a GPU has finished what the call gave it."""
    settle()
    start = time.perf_counter()
    result = run()
    settle()
    return time.perf_counter() - start, result


def settle() -> None:
    """Wait for what a GPU still computes."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def matmul_peak(
    dtype: torch.dtype, device: str = "cpu", *, rows: int = 4096, width: int = 576, inner: int = 1536
) -> float:
    """Floating-point operations a second of a bare matrix product of these sizes: the best of 20."""
    a = torch.randn(rows, width, dtype=dtype, device=device)
    b = torch.randn(inner, width, dtype=dtype, device=device)
    with torch.inference_mode():
        best = min(seconds(lambda: torch.nn.functional.linear(a, b))[0] for _ in range(20))
    return 2 * rows * width * inner / best


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def quantile(latencies: list[float], share: float) -> float:
    """In milliseconds."""
    ordered = sorted(latencies)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def finish(name: str, figures: Mapping[str, float], aims: Mapping[str, float]) -> None:
    """Print the figures beside their aims, and the machine-readable last line.

    Raises:
        ValueError: a figure is not a finite number.
    """
    for key, value in figures.items():
        aim = f"   (aim {aims[key]:g})" if key in aims else ""
        print(f"{key:44} {value:10.3f}{aim}")
    machine = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    line = {
        "benchmark": name,
        # Six digits and not four decimals: a difference of 2e-5 is not none.
        "figures": {k: float(f"{v:.6g}") for k, v in figures.items()},
        "aims": dict(aims),
        "machine": machine,
    }
    print(json.dumps(line, allow_nan=False))
