"""What runs inside the sandbox of the code verifier: three processes, of which only one ever holds the program.

Started by `code_sandbox` as the source text of a script (`python -c`), so it imports nothing of stepmark. Its arguments are
the limits and the source of `code_checker`; one task (a secret token, the program, the tests) comes on its standard input.

::

    supervisor   reads the task, watches time and memory, kills everything at the end, writes the one result line
      program    runs the model's program and answers calls; forked *before* the task is read, so neither the tests
                 nor the token were ever in its memory
      checker    runs the tests; what they call by the program's names goes over a socket

All may have one user, and yet the program reaches neither the memory nor the open files of the other two: these are "not
dumpable" (Linux), which forbids ptrace and /proc/PID/{mem,fd}. It can at most kill them, and then there is no result.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522
_POLL_SECONDS = 0.1
_LONGEST_RESULT = 64 << 10


def _prctl(option: int, value: int) -> None:
    # Absent outside Linux; the sandbox's page says what is then lost.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _drop_capabilities() -> None:
    # Inside a user namespace the process may be its root, and could undo the read-only mounts.
    with contextlib.suppress(OSError, AttributeError):
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())


def _limit(kind: str, soft: int, hard: int | None = None) -> None:
    number = getattr(resource, f"RLIMIT_{kind}", None)
    if number is None:
        return
    _, ceiling = resource.getrlimit(number)
    wanted = [soft, soft if hard is None else hard]
    if ceiling != resource.RLIM_INFINITY:
        wanted = [min(value, ceiling) for value in wanted]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(number, (wanted[0], wanted[1]))


def _become(settings: dict[str, Any], *, processes: int) -> None:
    """Take the limits on, then lose every right: the program's process and the checker's."""
    _limit("CORE", 0)
    _limit("AS", settings["memory_bytes"])
    # The soft limit is SIGXCPU, which tells the cause but can be ignored; the hard one is SIGKILL.
    _limit("CPU", settings["seconds"], settings["seconds"] + 1)
    _limit("FSIZE", settings["file_bytes"])
    _limit("NOFILE", settings["open_files"])
    _limit("MEMLOCK", 0)
    _limit("MSGQUEUE", 0)
    _limit("NPROC", processes)
    uid = settings["uid"]
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _drop_capabilities()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)


_LIBRARY: list[int] = []
"""Open folders of the interpreter's library, see `main`."""


def _fork(settings: dict[str, Any], keep: tuple[int, ...], processes: int, work: Callable[[], None]) -> int:
    """A child that holds nothing but `keep`, with the three standard streams on /dev/null."""
    child = os.fork()
    if child:
        return child
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        before = 3
        for number in sorted((*keep, *_LIBRARY)):
            os.closerange(before, number)
            before = number + 1
        os.closerange(before, os.sysconf("SC_OPEN_MAX"))
        sys.argv = ["program"]
        _become(settings, processes=processes)
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


# --- the supervisor --------------------------------------------------------------------------------------------------


def _read_exactly(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        got = os.read(0, min(size - len(data), 1 << 20))
        if not got:
            os._exit(3)  # whoever asked is gone
        data += got
    return bytes(data)


def _processes() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return []


def _user_of(process: int) -> int | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}").stat().st_uid
    return None


def _others(settings: dict[str, Any]) -> Iterator[int]:
    """The processes of this sandbox besides the supervisor, as far as they can be told from others."""
    if settings["alone"]:
        yield from set(_processes()) - {1, os.getpid()}  # 1 is the sandbox's own init
    elif settings["uid"] is not None:
        yield from (process for process in _processes() if _user_of(process) == settings["uid"])
    else:
        yield from _descendants(os.getpid())


def _descendants(process: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _kill_all(settings: dict[str, Any], children: tuple[int, ...]) -> None:
    """Kill every process of the sandbox, daemons too, and see that they are gone."""
    until = time.monotonic() + 10
    while True:
        if settings["alone"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all of this process namespace but its init and ourselves
        elif settings["uid"] is not None:
            _kill_user(settings["uid"])
        for process in {*children, *(() if settings["alone"] else _others(settings))}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        children = ()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # none left: daemons too became children of this process, their reaper
            return
        if time.monotonic() > until:
            return
        time.sleep(0.002)


def _kill_user(uid: int) -> None:
    # `kill(-1)` reaches all processes of a user at once, so a fork bomb cannot outrun it; it takes that user's identity.
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _tasks_of_user() -> int:
    count = 0
    for process in _processes():
        if _user_of(process) == os.getuid():
            with contextlib.suppress(OSError):
                count += sum(1 for _ in Path(f"/proc/{process}/task").iterdir())
    return count


def _waited(process: int) -> float:
    """Seconds that a process stood in the queue for a processor."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9


def _ran(process: int) -> float:
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def _used(settings: dict[str, Any], checker: int) -> tuple[float, int]:
    """CPU seconds and bytes of resident memory of all living processes of the sandbox but the checker and this one."""
    ticks, pages = 0, 0
    for process in _others(settings):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if process != checker:
                # Fields 14, 15 and 24 of proc(5), counted from behind the name, which may hold spaces.
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
                pages += int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


def _watch(settings: dict[str, Any], result: int, program: int, checker: int) -> tuple[str, str]:
    """Wait for the checker's result; ("result", JSON), or an outcome and a note where a limit came first."""
    start, seconds, got = time.monotonic(), settings["seconds"], b""
    while True:
        ready, _, _ = select.select([result, 0], [], [], _POLL_SECONDS)
        if 0 in ready:
            return "gone", ""  # the other end of our input closed: nobody waits any more
        if result in ready:
            piece = os.read(result, 4096)
            got += piece
            if not piece or len(got) > _LONGEST_RESULT:
                return "result", got.decode("utf-8", "replace")
            continue
        elapsed = time.monotonic() - start
        with contextlib.suppress(OSError, IndexError, ValueError):
            # Time in which the program had a processor or did not want one; what the machine made it wait is not its own.
            own = elapsed - _waited(program) - _waited(checker) - _ran(checker)
            if own > seconds + _POLL_SECONDS:
                return "mismatch", f"over its time limit of {seconds} s"
        if elapsed > settings["wall_seconds"]:
            return (
                "unparsed",
                f"no result in {settings['wall_seconds']} s by the clock; the machine may be too busy",
            )
        cpu, resident = _used(settings, checker)
        if cpu > seconds + _POLL_SECONDS:
            return "mismatch", f"over its time limit of {seconds} s, all processes together"
        if resident > settings["memory_bytes"]:
            return (
                "mismatch",
                f"over its memory limit of {settings['memory_bytes'] >> 20} MiB, all processes together",
            )


def _end_of(process: int) -> tuple[int, float] | None:
    """Wait status and CPU seconds of a process that is ending; None when it is not."""
    until = time.monotonic() + 1
    while True:
        with contextlib.suppress(ChildProcessError):
            found, status, usage = os.wait4(process, os.WNOHANG)
            if found:
                return status, usage.ru_utime + usage.ru_stime
        if time.monotonic() > until:
            return None
        time.sleep(0.002)


def _verdict(settings: dict[str, Any], found: dict[str, str], program: int) -> tuple[str, str]:
    state, note = found["state"], found["note"]
    if state in {"passed", "failed", "faulty"}:
        return {"passed": "match", "failed": "mismatch", "faulty": "unparsed"}[state], note
    end = _end_of(program)
    if end is None:
        return "mismatch", f"the program cut its connection {note}"
    status, cpu = end
    ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    # The kernel counts the limit in ticks and the usage exactly, so the usage can be a little less.
    if ended == signal.SIGXCPU or (ended == signal.SIGKILL and cpu >= 0.8 * settings["seconds"]):
        return "mismatch", f"over its time limit of {settings['seconds']} s"
    if not ended:
        return "mismatch", f"the program's process ended {note} (exit status {os.WEXITSTATUS(status)})"
    if ended == signal.SIGKILL:
        return "unparsed", f"the program was killed {note}, by itself or for want of memory on the machine"
    return "mismatch", f"the program crashed {note} ({signal.Signals(ended).name})"


def _supervise(settings: dict[str, Any], checker_module: Any) -> tuple[str, str, str]:
    program_end, checker_end = socket.socketpair()
    processes = settings["processes"]
    if not settings["alone"] and settings["uid"] is None:
        processes += _tasks_of_user()  # the limit is on all that one user runs, anywhere
    program = _fork(settings, (program_end.fileno(),), processes, lambda: checker_module.serve(program_end))
    program_end.close()
    (size,) = struct.unpack(">Q", _read_exactly(8))
    task = json.loads(_read_exactly(size))
    read, write = os.pipe()

    def check() -> None:
        found = json.dumps(checker_module.check(checker_end, task)).encode()
        with os.fdopen(write, "wb") as out:
            out.write(found)

    checker = _fork(settings, (checker_end.fileno(), write), processes, check)
    checker_end.close()
    os.close(write)
    try:
        outcome, note = _watch(settings, read, program, checker)
        if outcome == "result":
            try:
                found = json.loads(note)
            except ValueError:
                outcome, note = "unparsed", "the checker's process ended without a result"
            else:
                outcome, note = _verdict(settings, found, program)
    finally:
        _kill_all(settings, (program, checker))
    return task["token"], outcome, note


def main() -> NoReturn:
    """Read a task, run it, write one line: the token, a space, JSON with `outcome` and `note`."""
    settings = json.loads(sys.argv[1])
    checker_module = types.ModuleType("checker")
    exec(compile(sys.argv[2], "<checker>", "exec"), checker_module.__dict__)  # noqa: S102 (our own text, see the top)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if settings["library"]:
        # The interpreter's files may lie in a folder that the program's user may not pass through (/root); an open folder
        # needs no passing through.
        _LIBRARY.extend(os.open(path, os.O_RDONLY) for path in sys.path if Path(path).is_dir())
        sys.path[:] = [f"/proc/self/fd/{number}" for number in _LIBRARY]
    token, outcome, note = _supervise(settings, checker_module)
    line = f"{token} {json.dumps({'outcome': outcome, 'note': note[:1000]})}\n".encode()
    os.write(1, line)
    os._exit(0)


if __name__ == "__main__":
    main()
