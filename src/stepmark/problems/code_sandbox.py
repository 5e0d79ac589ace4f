"""Sandboxes for the code verifier: which there are, how a worker is started in one, and how it surely ends.

Two; `docs/code-verifier.md` has the table of what each keeps apart:

- `bubblewrap`: the `bwrap` program; namespaces for processes, network, mounts, IPC, a file system that holds the interpreter only.
- `process`: resource limits, a session of its own, an empty folder; as root also an unprivileged user. Not a security boundary.
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
from typing import Any, Literal

from stepmark.errors import BackendError, UsageError

Isolation = Literal["bubblewrap", "process"]
"""What keeps a program apart from the machine: a sandbox, or no more than limits on what a process uses."""

ISOLATIONS: tuple[Isolation, ...] = ("bubblewrap", "process")
"""All of them."""

_INSTALL = {
    "debian": "apt-get install bubblewrap",
    "ubuntu": "apt-get install bubblewrap",
    "fedora": "dnf install bubblewrap",
    "rhel": "dnf install bubblewrap",
    "suse": "zypper install bubblewrap",
    "arch": "pacman -S bubblewrap",
    "alpine": "apk add bubblewrap",
}
"""The line that installs bubblewrap, by the family of the Linux distribution."""

_HERE = Path(__file__)
_GRACE_SECONDS = 30.0
_TMP = "/tmp"  # noqa: S108 (inside a sandbox: a file system of its own)
_TMP_BYTES = 64 << 20
_LONGEST_OUTPUT = 256 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeLimits:
    """What one program may use, its child processes included where it says so."""

    seconds: int = 10
    """Seconds of its own: computing, sleeping or waiting; time in which the machine had no processor free for it does not count.
    Also the CPU seconds of all its processes together, those that have ended too; and those that the tests take over what it returns."""
    wall_seconds: int = 120
    """Seconds by the clock; past them there is no verdict, for the machine may be at fault."""
    memory_mb: int = 1024
    """MiB of address space of each process; of resident memory of all together, with the files of a temporary folder in memory."""
    processes: int = 32
    """Processes and threads."""
    file_mb: int = 16
    """MiB of one file; 64 MiB is all that the temporary folder holds, where it is a file system of its own."""
    open_files: int = 64
    """Open files of a process."""

    def __post_init__(self) -> None:
        for name in ("seconds", "wall_seconds", "memory_mb", "processes", "file_mb", "open_files"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name}: expected a whole number from 1, found {value!r}")
        if self.wall_seconds <= self.seconds:
            raise UsageError(
                f"wall_seconds: expected more than seconds ({self.seconds}), found {self.wall_seconds}"
            )
        if self.memory_mb < 128:
            raise UsageError(
                f"memory_mb: expected at least 128, found {self.memory_mb}: the interpreter needs some"
            )


def install_line() -> str:
    """The line to type that installs bubblewrap on this machine, or what to do instead."""
    if platform.system() != "Linux":
        return "bubblewrap needs Linux: use a Linux machine, container or virtual machine"
    release = {}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
    families = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    lines = [_INSTALL[name] for name in families if name in _INSTALL]
    return lines[0] if lines else "install the package bubblewrap (https://github.com/containers/bubblewrap)"


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxResult:
    """What came out of a sandbox."""

    outcome: Literal["match", "mismatch", "unparsed"]
    """Of the program."""
    note: str
    """Why."""
    ran: bool
    """Whether the worker started. False: the sandbox failed, and `note` has its last words."""


class Sandbox:
    """Runs workers in one kind of isolation. Any number of threads may call `run` at once.

    Args:
        isolation: which kind.
        limits: for each program.

    Raises:
        BackendError: it cannot be had on this machine, and why.
    """

    def __init__(self, isolation: Isolation, limits: CodeLimits) -> None:
        if os.name != "posix":
            raise BackendError("the code verifier needs Linux (or, without isolation, another Unix)")
        self.isolation: Isolation = isolation
        self.limits = limits
        self._as_root = os.geteuid() == 0
        self._python = os.path.realpath(sys.executable)
        self._sources = [
            _HERE.with_name(name).read_text("utf-8") for name in ("code_worker.py", "code_checker.py")
        ]
        self._bwrap = shutil.which("bwrap")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        if isolation == "bubblewrap" and self._bwrap is None:
            raise BackendError("bubblewrap is not installed")

    def run(self, task: dict[str, Any]) -> SandboxResult:
        """Run one task (see `code_worker`) and end all that it started."""
        token = secrets.token_hex(16)
        folder = tempfile.mkdtemp(prefix="stepmark-code-")
        try:
            uid, out_of_memory = _free_uid() if self._as_root else None, _memory_kills()
            if uid is not None and self.isolation == "process":
                os.chown(folder, uid, uid)
            process = subprocess.Popen(  # noqa: S603
                self._command(uid),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                # A fixed hash seed: the order of a set must not decide a verdict.
                env={"HOME": folder if self.isolation == "process" else _TMP, "PYTHONHASHSEED": "0"},
                start_new_session=True,
                bufsize=0,
            )
            with self._lock:
                self._running.add(process)
            try:
                output = self._exchange(
                    process, json.dumps({**task, "token": token}).encode(), token.encode()
                )
            finally:
                closed = self._end(process)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if closed:
            return SandboxResult(outcome="unparsed", note="the verifier was closed", ran=True)
        return self._result(output, token, out_of_memory)

    def close(self) -> None:
        """End all that runs."""
        with self._lock:
            running = list(self._running)
            self._closed.update(running)
        for process in running:
            _kill(process)

    def _result(self, output: bytes, token: str, out_of_memory: int) -> SandboxResult:
        lines = output.decode("utf-8", "replace").splitlines()
        ours = [line.removeprefix(token + " ") for line in lines if line.startswith(token + " ")]
        if not ours:
            last = next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no output")
            return SandboxResult(
                outcome="unparsed", note=f"the sandbox ended without a result: {last}", ran=False
            )
        data: dict[str, Any] = {"killed": True, "note": "the sandbox was ended before its result"}
        # By whom? In a process namespace the program cannot reach its supervisor.
        data["outcome"] = "unparsed" if self.isolation == "bubblewrap" else "mismatch"
        if len(ours) > 1:
            with contextlib.suppress(ValueError):
                data = json.loads(ours[1])
        if data["killed"] and _memory_kills() != out_of_memory:
            data = {"outcome": "unparsed", "note": "killed while the machine ran out of memory"}
        return SandboxResult(outcome=data["outcome"], note=data["note"], ran=True)

    def _exchange(self, process: subprocess.Popen[bytes], task: bytes, token: bytes) -> bytes:
        """Hand the task over, read until the second line with the token, the end, or the deadline."""
        assert process.stdin is not None and process.stdout is not None
        deadline = time.monotonic() + self.limits.wall_seconds + _GRACE_SECONDS
        unsent, output = memoryview(struct.pack(">Q", len(task)) + task), b""
        os.set_blocking(process.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            while time.monotonic() < deadline:
                for key, _ in selector.select(1.0):
                    if key.fileobj is process.stdin:
                        try:
                            unsent = unsent[os.write(process.stdin.fileno(), unsent[:65536]) :]
                        except BlockingIOError:
                            continue
                        except BrokenPipeError:
                            unsent = unsent[len(unsent) :]
                        if not unsent:
                            # It stays open: the supervisor takes its end for ours.
                            selector.unregister(process.stdin)
                    else:
                        got = os.read(process.stdout.fileno(), 65536)
                        output += got
                        if not got or len(output) > _LONGEST_OUTPUT or _complete(output, token):
                            return output
        return output

    def _end(self, process: subprocess.Popen[bytes]) -> bool:
        """End a worker; whether `close` did so before."""
        _kill(process)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with self._lock:
            self._running.discard(process)
            closed = process in self._closed
            self._closed.discard(process)
        return closed

    # --- command lines ---

    def _command(self, uid: int | None) -> list[str]:
        limits = self.limits
        alone = self.isolation == "bubblewrap"
        settings = {
            "seconds": limits.seconds,
            "wall_seconds": limits.wall_seconds,
            "memory_bytes": limits.memory_mb << 20,
            "file_bytes": limits.file_mb << 20,
            "open_files": limits.open_files,
            # Inside a process namespace the sandbox's own few count too.
            "processes": limits.processes + 4,
            "uid": uid,
            "alone": alone,
            "library": uid is not None and not alone,
        }
        python = [self._python, "-P", "-s", "-S", "-B", "-X", "utf8", "-c"]
        worker = [*python, self._sources[0], json.dumps(settings), self._sources[1]]
        return [*self._bubblewrap(), *worker] if alone else worker

    def _bubblewrap(self) -> list[str]:
        assert self._bwrap is not None
        command = [self._bwrap, "--die-with-parent", "--as-pid-1", "--unshare-cgroup-try"]
        command += [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts")]
        if self._as_root:
            # Not a user namespace: root in it would still be root to the process limit, which does not bind root. The worker
            # gives the program a user of its own, and for that keeps three capabilities.
            for name in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
                command += ["--cap-add", name]
        else:
            command += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
        made: set[str] = set()
        for path in self._read_only():
            # bwrap makes folders on the way that only root may pass through; the program is another user.
            for parent in reversed([str(parent) for parent in Path(path).parents][:-1]):
                if parent not in made:
                    made.add(parent)
                    command += ["--perms", "0755", "--dir", parent]
            if Path(path).is_symlink():
                command += ["--symlink", str(Path(path).readlink()), path]
            else:
                command += ["--ro-bind", path, path]
        command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        command += ["--perms", "1777", "--size", str(_TMP_BYTES), "--tmpfs", _TMP]
        return [*command, "--remount-ro", "/", "--chdir", _TMP, "--"]

    def _read_only(self) -> list[str]:
        """What of this machine's files is seen inside: what the interpreter needs."""
        system = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache"]
        paths = [path for path in system if os.path.lexists(path)]
        for path in (sys.base_prefix, sys.base_exec_prefix, str(Path(self._python).parent.parent)):
            real = os.path.realpath(path)
            if real in {"/", os.path.realpath(Path.home())}:
                raise BackendError(f"the interpreter's folder is {real}; showing it would show everything")
            if not any(real == seen or real.startswith(seen + "/") for seen in paths):
                paths.append(real)
        return paths


def _complete(output: bytes, token: bytes) -> bool:
    at = output.rfind(token)
    return output.count(token) > 1 and b"\n" in output[at:]


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The group is the session of the worker's start; a process namespace ends with its first process, which is in it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _memory_kills() -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _free_uid() -> int:
    """A user id that nobody has, another for each program: limits and signals go by user."""
    largest = 1 << 16
    with contextlib.suppress(OSError, ValueError, IndexError):
        # A container may map few ids.
        largest = max(
            int(a) + int(n)
            for a, _, n in (line.split() for line in Path("/proc/self/uid_map").read_text().splitlines())
        )
    largest = min(largest, 1 << 31)
    return largest - 3 - secrets.randbelow(min(largest // 4, 1 << 20))
