"""The other end of `answer_worker`: starts it, asks it, ends it.

Requests and replies are lines of JSON over pipes; nothing is unpickled and nothing that comes back is more than a word and
a note. No threads and no signals in this process, so it works from any thread. A worker that is late or dies is replaced
for the next request.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from stepmark.errors import BackendError, MissingExtraError

_START_SECONDS = 120.0
_OUTCOMES = ("match", "mismatch", "unparsed")
_PROGRAM = Path(__file__).with_name("answer_worker.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What the worker said of one pair, or what became of it."""

    outcome: Literal["match", "mismatch", "unparsed"]
    note: str


class AnswerProcess:
    """One worker process, started when first asked.

    Not safe for two threads at once: the caller holds a lock.

    Args:
        cpu_seconds: CPU time for one pair; the system ends a worker that needs more. Counted in CPU time so that a busy machine
            does not change a verdict.
        wall_seconds: the same by the clock, for a worker that hangs without computing.
        memory_mb: address space of the worker, in MiB.

    Raises:
        MissingExtraError: math-verify is not installed.
    """

    def __init__(
        self, *, cpu_seconds: float = 5.0, wall_seconds: float = 30.0, memory_mb: int = 2048
    ) -> None:
        if find_spec("math_verify") is None:
            raise MissingExtraError("the verifier `math` needs math-verify: pip install 'stepmark[evaluate]'")
        self._settings = {"cpu_seconds": cpu_seconds, "memory": memory_mb << 20}
        self._cpu_seconds = cpu_seconds
        self._wall_seconds = wall_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., AnswerProcess] | None = None
        self._unread = b""
        self._number = 0
        self.started = 0
        """How many workers have been started so far."""

    def ask(self, gold: str, answer: str) -> Reply:
        """Compare two answers in a worker.

        Raises:
            BackendError: the worker does not even start.
        """
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        self._number += 1
        reply = self._exchange({"id": self._number, "gold": gold, "answer": answer}, self._wall_seconds)
        if isinstance(reply, str):
            ended = self._ended(reply)
            self.close()
            return Reply(outcome="unparsed", note=ended)
        outcome, note = reply.get("outcome"), reply.get("note")
        if reply.get("id") != self._number or outcome not in _OUTCOMES or not isinstance(note, str):
            self.close()
            return Reply(outcome="unparsed", note="the worker answered nonsense and was ended")
        return Reply(outcome=outcome, note=note[:200])

    def _ended(self, how: str) -> str:
        if how == "late":
            return f"stopped: no verdict in {self._wall_seconds:g} s; the worker was ended"
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(5)
            if code == -signal.SIGXCPU:
                return f"stopped: no verdict in {self._cpu_seconds:g} s of CPU time; the worker was ended"
            return (
                f"the worker died (signal {-code})" if code < 0 else f"the worker died (exit status {code})"
            )
        return "the worker closed its output"

    def _start(self) -> None:
        folder = tempfile.mkdtemp(prefix="stepmark-answers-")
        # A loader path may be what the interpreter itself needs to start; the rest of the environment stays out.
        # A fixed hash seed: the order of sympy's sets, and so its way through a comparison, must not vary.
        environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        environment |= {"PYTHONHASHSEED": "0"}
        settings = json.dumps({**self._settings, "path": [str(Path(p).resolve()) for p in sys.path]})
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-s", "-B", "-X", "utf8", str(_PROGRAM), settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        self._end = weakref.finalize(self, _end, self._process, folder, os.getpid())
        self._unread = b""
        self.started += 1
        hello = self._read(_START_SECONDS)
        if isinstance(hello, str) or not isinstance(hello.get("ready"), str):
            how = self._ended(hello) if isinstance(hello, str) else "it answered nonsense"
            self.close()
            raise BackendError(
                f"the worker for math-verify does not start: {how}. Try: python -c 'import math_verify'"
            )

    def _exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | str:
        assert self._process is not None and self._process.stdin is not None
        try:
            # Requests are short (answers have a bound) and the pipe is empty: this write does not block.
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            return "dead"
        return self._read(seconds)

    def _read(self, seconds: float) -> dict[str, Any] | str:
        """One reply; "late" or "dead" where none came."""
        assert self._process is not None and self._process.stdout is not None
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = until - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return "late"
                got = os.read(self._process.stdout.fileno(), 65536)
                self._unread += got
                if not got or len(self._unread) > 65536:
                    return "dead"
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            data = json.loads(line)
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}

    def close(self) -> None:
        """End the worker. The next request starts a new one."""
        if self._end is not None:
            self._end()
        self._process, self._end = None, None


def _end(process: subprocess.Popen[bytes], folder: str, owner: int) -> None:
    if os.getpid() != owner:  # a fork of this process ends; the worker is not its own
        return
    # The whole session: a worker's own children too.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    shutil.rmtree(folder, ignore_errors=True)
