"""The servers of `benchmarks.serve`: ours, a naive one, vLLM; each in a process of its own, on the same checkpoint and the same cores."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import HOST, free_port
from benchmarks.serve_work import Request
from stepmark.models.encoding import Encoder
from stepmark.records import Solution
from stepmark.training.saving import Written

Kind = Literal["ours", "naive", "vllm"]
KINDS: tuple[Kind, ...] = ("ours", "naive", "vllm")
PATHS: dict[Kind, str] = {"ours": "/v1/score", "naive": "/score", "vllm": "/pooling"}
_READY: dict[Kind, str] = {"ours": "/health", "naive": "/health", "vllm": "/health"}
PATIENCE = 240.0
"""Seconds that a request may take."""
STARTING = 600.0
"""Seconds that a server may take to start: vLLM compiles."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all servers have in common."""

    made: Written
    """The checkpoint."""
    encoder: Encoder
    dtype: str
    threads: int
    server_cores: frozenset[int]
    """Where a server runs with all its threads and processes; empty: anywhere."""
    client_cores: frozenset[int]
    vllm_python: Path | None
    folder: Path
    """Of logs."""

    def tokens(self, problem: str, steps: tuple[str, ...]) -> list[int]:
        """A solution as tokens."""
        found: list[int] = self.encoder.encode(Solution.of(problem, steps)).ids.tolist()
        return found


def merged(folder: Path, dtype: str) -> Written:
    """The default PRM as one whole checkpoint, which transformers and vLLM read too; in a folder that is not there yet."""
    import torch

    from stepmark.models.backbone import load_backbone
    from stepmark.models.checkpoint import merge_adapter
    from stepmark.models.places import base_folder, default_folder
    from stepmark.models.spec import read_spec
    from stepmark.training.saving import write_merged

    adapter, base = default_folder(), base_folder()
    backbone = load_backbone(base, dtype=torch.float32, device="cpu")
    return write_merged(
        folder,
        head=merge_adapter(backbone, adapter),
        backbone=backbone,
        spec=read_spec(adapter / "stepmark.json"),
        base=base,
        dtype=getattr(torch, dtype),
    )


def command(kind: Kind, setting: Setting, port: int) -> list[str]:
    """The line that starts a server."""
    folder = str(setting.made.folder)
    if kind == "ours":
        flags = ["--prm", folder, "--name", "prm", "--dtype", setting.dtype, "--device", "auto", "--quiet"]
        flags += ["--timeout", f"{PATIENCE:g}"]  # the others have no deadline
        return [sys.executable, "-m", "stepmark", "serve", *flags, "--port", str(port)]
    if kind == "naive":
        flags = [folder, "--dtype", setting.dtype, "--port", str(port)]
        return [sys.executable, "-m", "benchmarks.serve_naive", *flags]
    assert setting.vllm_python is not None and setting.made.tag is not None
    # As the checkpoint's card says.
    pooler = {"task": "token_classify", "tok_pooling_type": "STEP", "step_tag_id": setting.made.tag}
    flags = [folder, "--served-model-name", "prm", "--runner", "pooling", "--dtype", setting.dtype]
    flags += ["--pooler-config", json.dumps(pooler), "--host", HOST, "--port", str(port)]
    return [str(setting.vllm_python), "-m", "vllm.entrypoints.cli.main", "serve", *flags]


def environment(setting: Setting) -> dict[str, str]:
    """Of every server, and of the clients."""
    kept = {name: value for name, value in os.environ.items() if not re.search("proxy", name, re.IGNORECASE)}
    # For vLLM on a CPU; the others do not know these names.
    bind = ",".join(map(str, sorted(setting.server_cores))) or "auto"
    vllm = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": bind,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    return {"HF_HUB_OFFLINE": "1", **vllm, **kept, "OMP_NUM_THREADS": str(setting.threads)}


@contextmanager
def on_cores(cores: frozenset[int]) -> Iterator[None]:
    """What is started here runs on these cores with all that it starts itself."""
    if not cores or sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Server:
    """A server that runs.

    Args:
        kind: which.
        setting: on what.

    Raises:
        RuntimeError: it did not start; with the end of its log.
    """

    def __init__(self, kind: Kind, setting: Setting) -> None:
        self.kind, self._setting, self.port = kind, setting, free_port()
        self._log = setting.folder / f"{kind}.log"
        began = time.perf_counter()
        with self._log.open("wb") as out, on_cores(setting.server_cores):
            self.process = subprocess.Popen(
                command(kind, setting, self.port),
                stdout=out,
                stderr=out,
                env=environment(setting),
                start_new_session=True,
            )
        try:
            while self._status() != 200:
                if self.process.poll() is not None or time.perf_counter() - began > STARTING:
                    raise RuntimeError(f"{kind} did not start: {self.log_end()}")
                time.sleep(0.2)
        except BaseException:
            self.stop()
            raise
        self.starting = time.perf_counter() - began
        """Seconds."""

    def _status(self) -> int:
        try:
            self.get(_READY[self.kind])
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0
        return 200

    def get(self, path: str) -> str:
        """An answer's text."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{HOST}:{self.port}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def log_end(self) -> str:
        """Of what it said."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]

    def metrics(self) -> dict[str, float]:
        """Ours: its own figures, those without labels."""
        if self.kind != "ours":
            return {}
        found = re.findall(r"^stepmark_(\w+) (\S+)$", self.get("/metrics"), re.M)
        return {name: float(value) for name, value in found}

    def processor(self) -> float:
        """Seconds of processor time that its processes have used so far; those that have ended are not counted."""
        if sys.platform != "linux":
            return math.nan
        ticks = 0
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = file.read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid:  # its session
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it, with all that it has started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(45)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def body(kind: Kind, request: Request, setting: Setting) -> str:
    """A request as a server wants it. vLLM is sent tokens, which the others have to make: that is in its favour."""
    if kind == "vllm":
        ids = [setting.tokens(one.problem, one.steps) for one in request]
        return json.dumps({"model": "prm", "input": ids, "task": "token_classify", "use_activation": False})
    return json.dumps({"solutions": [{"problem": one.problem, "steps": one.steps} for one in request]})


def scores(kind: Kind, answer: dict[str, Any], setting: Setting) -> list[list[float]]:
    """Of each solution of a request."""
    if kind == "ours":
        return [one["scores"] for one in answer["results"]]
    if kind == "naive":
        found: list[list[float]] = answer["scores"]
        return found
    spec = setting.made.spec
    assert spec is not None
    scale, shift = spec.readout.scale, spec.readout.shift
    return [
        [1 / (1 + math.exp(-(scale * row[0] + shift))) for row in one["data"]]
        for one in sorted(answer["data"], key=lambda one: one["index"])
    ]
