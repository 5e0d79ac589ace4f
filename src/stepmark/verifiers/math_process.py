"""The process that runs math-verify: started, asked, and ended when it is late."""

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
import threading
import time
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from stepmark.errors import BackendError, MissingExtraError

Outcome = tuple[Literal["match", "mismatch", "unparsed"], str]
"""An outcome and its note."""

_START_SECONDS = 120.0
_PROGRAM = Path(__file__).with_name("math_worker.py")


class _WorkerError(Exception):
    """A worker that gave no answer, and why; it has been ended."""


class AnswerProcess:
    """One process of `math_worker`, started when first asked; one that is late or dies is replaced for the next request.

    Requests and replies are lines of JSON over pipes; what comes back is a word and a note. Threads that ask at once wait for one another.

    Args:
        cpu_seconds: CPU time for one pair, so that a busy machine does not change a verdict.
        wall_seconds: the same by the clock, for a worker that hangs without computing.
        memory_mb: address space of the worker, in MiB.
    """

    def __init__(
        self, *, cpu_seconds: float = 5.0, wall_seconds: float = 30.0, memory_mb: int = 2048
    ) -> None:
        self.cpu_seconds = cpu_seconds
        self.wall_seconds = wall_seconds
        self._memory = memory_mb << 20
        self.process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., AnswerProcess] | None = None
        self._unread = b""
        self._turn = threading.Lock()
        self.started = 0
        """How many workers have been started so far."""

    def ask(self, gold: str, answer: str) -> Outcome:
        """Compare two answers in a worker.

        Raises:
            MissingExtraError: math-verify is not installed.
            BackendError: the worker does not even start.
        """
        with self._turn:
            return self._ask(gold, answer)

    def _ask(self, gold: str, answer: str) -> Outcome:
        if self.process is None or self.process.poll() is not None:
            self._start()
        try:
            reply = self._exchange({"gold": gold, "answer": answer}, self.wall_seconds)
            outcome, note = reply.get("outcome"), reply.get("note")
            if outcome not in ("match", "mismatch", "unparsed") or not isinstance(note, str):
                self.close()
                raise _WorkerError("the worker answered nonsense and was ended")
        except _WorkerError as error:
            return "unparsed", str(error)
        return outcome, note[:200]

    def _start(self) -> None:
        # Not before: numbers are compared without it, and most answers are numbers.
        if find_spec("math_verify") is None:
            raise MissingExtraError(
                "these answers are no plain numbers; the verifier `math` compares them with math-verify: pip install 'stepmark[evaluate]'"
            )
        self.close()
        folder = tempfile.mkdtemp(prefix="stepmark-answers-")
        # A loader path may be what the interpreter itself needs to start; the rest of the environment stays out.
        # A fixed hash seed: the order of sympy's sets, and so its way through a comparison, must not vary.
        environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        path = [str(Path(entry).resolve()) for entry in sys.path]
        settings = {"cpu_seconds": self.cpu_seconds, "memory": self._memory, "path": path}
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-s", "-B", "-X", "utf8", str(_PROGRAM), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment | {"PYTHONHASHSEED": "0"},
            start_new_session=True,
            bufsize=0,
        )
        self._end = weakref.finalize(self, _end, self.process, folder, os.getpid())
        self._unread = b""
        self.started += 1
        try:
            self._exchange({}, _START_SECONDS)
        except _WorkerError as error:
            raise BackendError(
                f"the worker for math-verify does not start: {error}. Try: python -c 'import math_verify'"
            ) from None

    def _exchange(self, request: dict[str, str], seconds: float) -> dict[str, Any]:
        """The reply to a request; a worker that gives none is ended."""
        process, until = self.process, time.monotonic() + seconds
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            # Requests are short (answers have a bound) and the pipe is empty: this write does not block.
            process.stdin.write(json.dumps(request).encode() + b"\n")
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while b"\n" not in self._unread:
                    if not selector.select(max(0, until - time.monotonic())):
                        raise _WorkerError(f"stopped: no verdict in {seconds:g} s; the worker was ended")
                    piece = os.read(process.stdout.fileno(), 65536)
                    self._unread += piece
                    if not piece or len(self._unread) > 65536:
                        raise BrokenPipeError
            line, _, self._unread = self._unread.partition(b"\n")
            reply = json.loads(line)
            return reply if isinstance(reply, dict) else {}
        except ValueError:
            return {}
        except BrokenPipeError:
            raise _WorkerError(self._ended(process)) from None
        finally:
            if sys.exc_info()[0] is not None:
                self.close()

    def _ended(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(5)
            if code == -signal.SIGXCPU:
                return f"stopped: no verdict in {self.cpu_seconds:g} s of CPU time; the worker was ended"
            return f"the worker died ({f'signal {-code}' if code < 0 else f'exit status {code}'})"
        return "the worker closed its output"

    def close(self) -> None:
        """End the worker. The next request starts a new one."""
        if self._end is not None:
            self._end()
        self.process, self._end = None, None


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
