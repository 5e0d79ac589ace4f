"""The sandbox of the code verifier: how a program and its tests are started in one, watched and ended.

`bubblewrap` is a sandbox: namespaces for processes, network, mounts and IPC, and a file system that holds the interpreter only.
`unsafe` is none: resource limits and an empty folder. `docs/verifiers.md#programs` has the table of what each keeps apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from stepmark.errors import BackendError, SettingError
from stepmark.settings import settings

Isolation = Literal["bubblewrap", "unsafe"]
"""What keeps a program apart from the machine: a sandbox, or nothing but limits on what a process uses."""
ISOLATIONS: tuple[Isolation, ...] = ("bubblewrap", "unsafe")

_TMP = "/tmp"  # noqa: S108 (inside a sandbox: a file system of its own)
_POLL_SECONDS = 0.1
_LONGEST_OUTPUT = 64 << 10

_ARCHITECTURES = {
    # The number of the architecture, and of shmget, shmat, memfd_create and memfd_secret in it (linux/audit.h, unistd.h).
    "x86_64": (0xC000003E, (29, 30, 319, 447)),
    "aarch64": (0xC00000B7, (194, 196, 279, 447)),
}
_X32 = 0x40000000  # the bit of x86_64's second set of system calls


def _without_shared_memory() -> bytes:
    """A seccomp filter (classic BPF) that refuses memory which no process's address space counts: System V's, and files in memory.

    `Sandbox` mounts no /dev/shm that can be written. On an architecture without an entry there is no filter.
    """
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return b""
    architecture, calls = known
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    refuse, allow = 0x00050001, 0x7FFF0000  # EPERM; go on
    last = len(calls) + 4
    lines = [
        (load, 0, 0, 4),
        (equal, 0, last - 1, architecture),
        (load, 0, 0, 0),
        (at_least, last - 3, 0, _X32),
    ]
    lines += [(equal, last - 4 - at, 0, call) for at, call in enumerate(calls)]
    lines += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


@settings
class CodeLimits:
    """What one program may use; the tests have the same limits, in a process of their own."""

    seconds: Annotated[int, Field(ge=1)] = 10
    """CPU seconds of each process and of all that live together; seconds of the run in which the machine had a processor free for it."""
    wall_seconds: int = 120
    """Seconds by the clock, more than `seconds`; past them there is no verdict, for the machine may be at fault."""
    memory_mb: Annotated[int, Field(ge=128)] = 1024
    """MiB of address space of each process."""
    processes: Annotated[int, Field(ge=1)] = 16
    """Processes and threads, in bubblewrap."""
    file_mb: Annotated[int, Field(ge=1)] = 16
    """MiB of one file; 64 MiB is all that the temporary folder of bubblewrap holds."""
    open_files: Annotated[int, Field(ge=16)] = 64
    """Open files of a process."""

    def __post_init__(self) -> None:
        if self.wall_seconds <= self.seconds:
            raise SettingError("wall_seconds", self.wall_seconds, f"more than {self.seconds} (`seconds`)")


def install_line() -> str:
    """What installs bubblewrap on this machine, or what to do instead."""
    if platform.system() != "Linux":
        return "bubblewrap needs Linux: use a Linux machine, container or virtual machine"
    return "install the package bubblewrap (Debian, Ubuntu: apt-get install bubblewrap)"


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxResult:
    """The outcome of one program, and why."""

    outcome: Literal["match", "mismatch", "unparsed"]
    note: str


class Sandbox:
    """Runs programs and their tests in one kind of isolation; `BackendError` where it is not available. Any number of threads may call `run` at once."""

    def __init__(self, isolation: Isolation, limits: CodeLimits) -> None:
        if os.name != "posix":
            raise BackendError("the code verifier needs Linux (or, without a sandbox, another Unix)")
        self.isolation: Isolation = isolation
        self.limits = limits
        self._bwrap = shutil.which("bwrap")
        self._worker = Path(__file__).with_name("code_worker.py").read_text("utf-8")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closings = 0
        self._lock = threading.Lock()
        if isolation == "bubblewrap" and self._bwrap is None:
            raise BackendError("bubblewrap is not installed")

    def run(self, task: dict[str, Any]) -> SandboxResult:
        """Run one task (see `code_worker.check`) and end all that it started."""
        token, closings = secrets.token_hex(16), self._closings
        message = json.dumps({**task, "token": token}).encode()
        with tempfile.TemporaryDirectory(prefix="stepmark-code-", ignore_cleanup_errors=True) as folder:
            from_program, to_checker = os.pipe()
            from_checker, to_program = os.pipe()
            processes: list[subprocess.Popen[bytes]] = []
            try:
                processes.append(self._start("serve", folder, from_checker, to_checker))
                processes.append(self._start("check", folder, from_program, to_program))
            finally:
                for end in (from_program, from_checker, to_program):
                    os.close(end)
                # The task goes ahead of all that the program may write, which writes nothing until it is asked.
                with contextlib.suppress(BrokenPipeError), os.fdopen(to_checker, "wb") as out:
                    out.write(struct.pack(">I", len(message)) + message)
                output, over = self._watch(processes) if len(processes) == 2 else (b"", None)
                ended = processes[0].poll() if processes else None
                errors = b"".join(map(self._end, processes))
        if self._closings != closings:
            return SandboxResult(outcome="unparsed", note="the verifier was closed")
        return over or _result(token, output, errors, ended)

    def _start(self, role: str, folder: str, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
        alone = self.isolation == "bubblewrap"
        # Limits on processes do not bind root, and signals and files go by user: as root, a user that nobody has, another
        # for each process.
        uid = 30_000 + secrets.randbelow(30_000) if alone and os.geteuid() == 0 else None
        limits = {
            "CORE": 0,
            "AS": self.limits.memory_mb << 20,
            "CPU": self.limits.seconds,
            "FSIZE": self.limits.file_mb << 20,
            "NOFILE": self.limits.open_files,
        }
        if alone:
            limits["NPROC"] = self.limits.processes + 2  # bubblewrap's own
        python = [os.path.realpath(sys.executable), "-P", "-s", "-S", "-B", "-X", "utf8", "-c", self._worker]
        rules, to_rules = os.pipe()
        with os.fdopen(to_rules, "wb") as out:
            out.write(_without_shared_memory())
        try:
            process = subprocess.Popen(  # noqa: S603
                [*(self._bubblewrap(rules) if alone else ()), *python, json.dumps([role, limits, uid])],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.PIPE,
                cwd=folder,
                # A fixed hash seed: the order of a set must not decide a verdict.
                env={"HOME": _TMP if alone else folder, "PYTHONHASHSEED": "0"},
                start_new_session=True,
                pass_fds=(rules,) if alone else (),
            )
        finally:
            os.close(rules)
        with self._lock:
            self._running.add(process)
        return process

    def _watch(self, processes: list[subprocess.Popen[bytes]]) -> tuple[bytes, SandboxResult | None]:
        """What the checker writes until its end, and a result where a limit on time ended the run."""
        stream = processes[1].stderr
        assert stream is not None
        seconds, wall = self.limits.seconds, self.limits.wall_seconds
        start, output = time.monotonic(), b""
        selector = selectors.DefaultSelector()
        selector.register(stream, selectors.EVENT_READ)
        while len(output) < _LONGEST_OUTPUT:
            if selector.select(_POLL_SECONDS):
                piece = os.read(stream.fileno(), 4096)
                if not piece:
                    break
                output += piece
                continue
            elapsed = time.monotonic() - start
            times = [_times(process.pid) for process in processes]
            # Time in the queue is the machine's fault, unless the program's own processes stand there.
            own = elapsed - sum(waited for _, waited in times)
            if max(own, *(ran for ran, _ in times)) > seconds + 1:
                note = f"over its time limit of {seconds} s"
                return output, SandboxResult(outcome="mismatch", note=note)
            if elapsed > wall:
                note = f"no result in {wall} s by the clock; the machine may be too busy"
                return output, SandboxResult(outcome="unparsed", note=note)
        return output, None

    def _end(self, process: subprocess.Popen[bytes]) -> bytes:
        """End a process with all of its session, and return what it wrote to standard error that was not read."""
        _kill(process)
        process.wait()
        assert process.stderr is not None
        with self._lock:
            self._running.discard(process)
        with process.stderr as stream:
            return stream.read(_LONGEST_OUTPUT)

    def close(self) -> None:
        """End all that runs."""
        with self._lock:
            self._closings += 1
            running = list(self._running)
        for process in running:
            _kill(process)

    def _bubblewrap(self, rules: int) -> list[str]:
        assert self._bwrap is not None
        command = [self._bwrap, "--die-with-parent", "--unshare-cgroup-try"]
        command += ["--seccomp", str(rules)] if _without_shared_memory() else []
        command += [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts")]
        if os.geteuid() == 0:
            # Not a user namespace: root in it would still be root to the limit on processes. The worker takes on a user of
            # its own, and loses these with it.
            command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            command += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
        bound: set[str] = set()
        for path in self._read_only():
            # bwrap makes folders on the way that only root may pass through; the program is another user.
            for parent in reversed([str(parent) for parent in Path(path).parents][:-1]):
                if parent not in bound:
                    bound.add(parent)
                    command += ["--perms", "0755", "--dir", parent]
            if Path(path).is_symlink():
                command += ["--symlink", str(Path(path).readlink()), path]
            else:
                command += ["--ro-bind", path, path]
        command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        command += ["--perms", "1777", "--size", str(64 << 20), "--tmpfs", _TMP]
        return [*command, "--remount-ro", "/", "--chdir", _TMP, "--"]

    @staticmethod
    def _read_only() -> list[str]:
        """What of this machine's files is seen inside: what the interpreter needs."""
        system = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache"]
        paths = [path for path in system if os.path.lexists(path)]
        python = os.path.realpath(sys.executable)
        for path in (sys.base_prefix, sys.base_exec_prefix, str(Path(python).parent.parent)):
            real = os.path.realpath(path)
            if real in {"/", os.path.realpath(Path.home())}:
                raise BackendError(f"the interpreter's folder is {real}; showing it would show everything")
            if not any(real == seen or real.startswith(seen + "/") for seen in paths):
                paths.append(real)
        return paths


def _result(token: str, output: bytes, errors: bytes, ended: int | None) -> SandboxResult:
    lines = output.decode("utf-8", "replace").splitlines()
    ours = [line.removeprefix(token + " ") for line in lines if line.startswith(token + " ")]
    words = [*lines, *errors.decode("utf-8", "replace").splitlines()]
    last = next((line.strip()[:300] for line in reversed(words) if line.strip()), "no output")
    result = {"state": "failed", "note": "the tests' process ended without a result"}
    if len(ours) > 1:
        result = json.loads(ours[1])
    if not ours or result["state"] == "broken":
        return SandboxResult(outcome="unparsed", note=f"the sandbox ended without a result: {last}")
    if result["state"] == "ended" and ended is not None and ended % 128 != 0:
        # Its own, or bubblewrap's word of it: 128 and the signal.
        number = -ended if ended < 0 else ended - 128
        with contextlib.suppress(ValueError):
            result["note"] += f" ({signal.Signals(number).name})"
    outcomes: dict[str, Literal["match", "mismatch", "unparsed"]] = {"passed": "match", "faulty": "unparsed"}
    return SandboxResult(outcome=outcomes.get(result["state"], "mismatch"), note=result["note"][:1000])


def _times(process: int) -> tuple[float, float]:
    """CPU seconds of a process and its descendants together, and the most that one of them stood in the queue for a processor."""
    ran = waited = 0.0
    with contextlib.suppress(OSError, ValueError, IndexError):
        ran, waited = (
            int(field) / 1e9 for field in Path(f"/proc/{process}/schedstat").read_text().split()[:2]
        )
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            more, longest = _times(int(child))
            ran, waited = ran + more, max(waited, longest)
    return ran, waited


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The group is the session of its start; a namespace of processes ends with bubblewrap, its first process.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
