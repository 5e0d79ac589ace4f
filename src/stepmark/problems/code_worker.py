"""What runs inside the sandbox of the code verifier: three processes, of which only one ever holds the program.

Started by `code_sandbox` as the source text of a script (`python -c`), so it imports nothing of stepmark. Its arguments are
the limits and the source of `code_checker`; one task (a secret token, the program, the tests) comes on its standard input.

::

    supervisor   reads the task, watches time and memory, kills everything at the end, writes the one result line
      program    runs the model's program and answers calls; forked *before* the task is read, so neither the tests
                 nor the token were ever in its memory
      checker    runs the tests; what they call by the program's names goes over a socket

All may have one user, and yet the program reaches neither the memory nor the open files of the other two: these are "not
dumpable" (Linux), which forbids ptrace and /proc/PID/{mem,fd}. It may kill the checker, which fails it. The supervisor is the first
process of its namespace, which the program cannot kill; without a namespace its death fails the program too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522
_POLL_SECONDS = 0.1
_LONGEST_RESULT = 64 << 10
_SOCKET_BYTES, _FILE_BYTES = 256 << 10, 2 << 10
"""What the kernel may keep for a socket and for a file in memory, besides what is in it."""
_GRACE_SECONDS = 1.0
"""For the checker, to notice that the program has ended."""


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


_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Which column of `_DENIED` holds for a machine, and the kernel's number for its system calls."""

_DENIED = {
    # Memory that no process shows as its own.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "vmsplice": (278, 75),
    # Network and local servers. `socketpair`, which asyncio needs, stays.
    "socket": (41, 198),
    # Namespaces of its own, in which the program would be root.
    "unshare": (272, 97),
    "setns": (308, 268),
    # A lower share of the processor than the machine would give, which would make its own waiting the machine's fault.
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
}
"""System calls that the program may not make, with their numbers on x86-64 and on ARM64."""

_DENIED_WITH = (
    ("clone", (56, 220), 0, 0x10000000, 0x10000000, True),  # CLONE_NEWUSER
    ("mmap", (9, 222), 3, 1, 1, True),  # MAP_SHARED: its pages outlive the process that counts them
    ("rt_sigaction", (13, 134), 0, 0xFFFFFFFF, signal.SIGCHLD, True),  # ignored, the time of children is lost
    ("kill", (62, 129), 0, 0xFFFFFFFF, 0xFFFFFFFF, True),  # -1: all that this user runs
    ("setsockopt", (54, 208), 2, 0xFFFFFFFF, 7, True),  # SO_SNDBUF: the kernel's memory, see _SOCKET_BYTES
    ("prlimit64", (302, 261), 0, 0xFFFFFFFF, 0, False),  # another process, such as the supervisor
)
"""System calls that it may not make where an argument, masked, is a value, or is not: name, numbers, argument, mask, value, which."""

_CLONE3 = 435
"""Its flags lie in memory, where a filter cannot look; where it does not exist, the C library falls back to `clone`."""


def _filter_calls() -> None:
    """Take away the system calls above, for this process and all that it starts.

    Raises:
        OSError: the kernel does not filter system calls.
    """
    if sys.platform != "linux" or os.uname().machine not in _MACHINES or sys.maxsize < 1 << 32:
        return
    column, audit = _MACHINES[os.uname().machine]
    # Of the classic packet filter: load a word of the call's data, and with a mask, jump on equal (true, false), return.
    load, mask, equal, at_least, give = 0x20, 0x54, 0x15, 0x35, 0x06
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050000
    rules = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, kill), (load, 0, 0, 0)]
    if column == 0:  # x32, a second table of calls
        rules += [(at_least, 0, 1, 0x40000000), (give, 0, 0, refuse | errno.EPERM)]
    rules += [(equal, 0, 1, _CLONE3), (give, 0, 0, refuse | errno.ENOSYS)]
    for numbers in _DENIED.values():
        rules += [(equal, 0, 1, numbers[column]), (give, 0, 0, refuse | errno.EPERM)]
    for _, numbers, argument, bits, value, same in _DENIED_WITH:
        rules += [(equal, 0, 5, numbers[column]), (load, 0, 0, 16 + 8 * argument), (mask, 0, 0, bits)]
        rules += [(equal, not same, same, value), (give, 0, 0, refuse | errno.EPERM), (load, 0, 0, 0)]
    rules.append((give, 0, 0, allow))
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(rules), ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(header)), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not filter system calls")


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
    _filter_calls()


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
        if settings["alone"]:
            os.setsid()  # a signal to its process group would reach bubblewrap's process outside
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
            os._exit(3)  # the parent is gone
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


def _others(settings: dict[str, Any]) -> list[int]:
    """The processes of this sandbox besides the supervisor, as far as they can be told from others; parents first, as a rule."""
    if settings["alone"]:
        return sorted(set(_processes()) - {os.getpid()})
    if settings["uid"] is not None:
        return sorted(process for process in _processes() if _user_of(process) == settings["uid"])
    return _descendants(os.getpid())


def _descendants(process: int) -> list[int]:
    below: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                below += [child, *_descendants(child)]
    return below


def _kill_all(settings: dict[str, Any], children: list[int]) -> None:
    """Kill every process of the sandbox, daemons too, and see that they are gone."""
    until = time.monotonic() + 10
    while True:
        if settings["alone"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all of this process namespace but ourselves, who are its first
        elif settings["uid"] is not None:
            _kill_user(settings["uid"])
        for process in {*children, *(() if settings["alone"] else _others(settings))}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        children = []
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


class _Run:
    """A program and its tests while they run, watched by the supervisor, which reaps all that loses its parent."""

    def __init__(self, settings: dict[str, Any], program: int, checker: int) -> None:
        self._settings, self._program, self._checker = settings, program, checker
        self._seconds: int = settings["seconds"]
        self._over = f"over its time limit of {self._seconds} s"
        self._folder = os.open(".", os.O_RDONLY)
        """In a sandbox a file system in memory, of which the program may take away the rights."""
        self._ended: dict[int, tuple[int, float]] = {}
        """Wait status and CPU seconds of the processes that were reaped."""

    def watch(self, result: int) -> tuple[str, str, bool]:
        """Wait for the checker's result, or for a limit.

        Returns:
            The outcome, a note, and whether a SIGKILL that was not sent here ended it.
        """
        start, line, ended = time.monotonic(), b"", 0.0
        seconds, most = self._seconds, self._settings["memory_bytes"]
        while True:
            ready, _, _ = select.select([result, 0], [], [], _POLL_SECONDS)
            if 0 in ready:
                return "unparsed", "nobody waits any more", False  # the other end of our input closed
            if result in ready:
                piece = os.read(result, 4096)
                line += piece
                if not piece or len(line) > _LONGEST_RESULT:
                    return self._verdict(line)
                continue
            elapsed = time.monotonic() - start
            self._reap()
            if self._program in self._ended:
                # Its children may hold the socket open, so that the checker waits on.
                ended = ended or elapsed
                if elapsed - ended > _GRACE_SECONDS:
                    return self._end_of_program("while the tests ran")
            with contextlib.suppress(OSError, IndexError, ValueError):
                if _ran(self._checker) > seconds + _POLL_SECONDS:
                    return "mismatch", f"the tests took more than {seconds} s over what it returned", False
                # Time in which the program had a processor or did not want one; what the machine made it wait is not its own.
                own = elapsed - _waited(self._program) - _waited(self._checker) - _ran(self._checker)
                if own > seconds + _POLL_SECONDS:
                    return "mismatch", self._over, False
            if elapsed > self._settings["wall_seconds"]:
                note = f"no result in {self._settings['wall_seconds']} s by the clock; the machine may be too busy"
                return "unparsed", note, False
            cpu, memory = self._used()
            if cpu > seconds + _POLL_SECONDS:
                return "mismatch", f"{self._over}, all processes together", False
            if memory > most:
                return "mismatch", f"over its memory limit of {most >> 20} MiB, all processes together", False

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.wait4(-1, os.WNOHANG))[0]:
                process, status, usage = reaped
                self._ended[process] = (status, usage.ru_utime + usage.ru_stime)

    def _used(self) -> tuple[float, int]:
        """CPU seconds of all processes but the checker, those that have ended too; bytes that all that live keep in memory."""
        ticks, pages = 0, 0
        for process in _others(self._settings):
            with contextlib.suppress(OSError, IndexError, ValueError):
                if process != self._checker:
                    # Fields 14 to 17 (its own, and of the children that it reaped) and 24 of proc(5), counted from behind the
                    # name, which may hold any bytes.
                    fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
                    ticks += sum(map(int, fields[11:15]))
                    pages += int(fields[21])
        reaped = sum(cpu for process, (_, cpu) in self._ended.items() if process != self._checker)
        memory = pages * os.sysconf("SC_PAGE_SIZE")
        if self._settings["alone"]:
            files = os.statvfs(self._folder)
            memory += (files.f_blocks - files.f_bfree) * files.f_frsize
            memory += (files.f_files - files.f_ffree) * _FILE_BYTES
            memory += Path("/proc/net/unix").read_bytes().count(b"\n") * _SOCKET_BYTES
        return ticks / os.sysconf("SC_CLK_TCK") + reaped, memory

    def _end(self, process: int) -> tuple[int, float] | None:
        """Wait status and CPU seconds of a process that is ending; None when it is not."""
        until = time.monotonic() + _GRACE_SECONDS
        while process not in self._ended and time.monotonic() < until:
            time.sleep(0.002)
            self._reap()
        return self._ended.get(process)

    def _verdict(self, line: bytes) -> tuple[str, str, bool]:
        try:
            result = json.loads(line)
        except ValueError:
            signalled = self._signal(self._end(self._checker))
            if signalled == "SIGXCPU":
                return "mismatch", f"the tests took more than {self._seconds} s over what it returned", False
            how = f" ({signalled})" if signalled else ""
            return "mismatch", f"the tests' process ended without a result{how}", signalled == "SIGKILL"
        if result["state"] == "ended":
            return self._end_of_program(result["note"])
        return (
            {"passed": "match", "failed": "mismatch", "faulty": "unparsed"}[result["state"]],
            result["note"],
            False,
        )

    def _end_of_program(self, when: str) -> tuple[str, str, bool]:
        end = self._end(self._program)
        if end is None:
            return "mismatch", f"the program cut its connection {when}", False
        signalled = self._signal(end)
        if signalled == "SIGXCPU":
            return "mismatch", self._over, False
        if not signalled:
            return (
                "mismatch",
                f"the program's process ended {when} (exit status {os.WEXITSTATUS(end[0])})",
                False,
            )
        what = "was killed" if signalled == "SIGKILL" else "crashed"
        return "mismatch", f"the program {what} {when} ({signalled})", signalled == "SIGKILL"

    def _signal(self, end: tuple[int, float] | None) -> str:
        """What ended a process, "" for nothing; SIGXCPU also where the limit on CPU seconds sent a SIGKILL."""
        if end is None or not os.WIFSIGNALED(end[0]):
            return ""
        # The kernel counts the limit in ticks and the usage exactly, so the usage can be a little less.
        if os.WTERMSIG(end[0]) == signal.SIGKILL and end[1] >= 0.8 * self._seconds:
            return "SIGXCPU"
        return signal.Signals(os.WTERMSIG(end[0])).name


def _supervise(settings: dict[str, Any], checker_module: Any) -> tuple[str, tuple[str, str, bool]]:
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
        line = json.dumps(checker_module.check(checker_end, task)).encode()
        with os.fdopen(write, "wb") as out:
            out.write(line)

    # From here on it is the program's doing when no result comes.
    os.write(1, f"{task['token']} started\n".encode())
    children = [program]
    try:
        try:
            children.append(_fork(settings, (checker_end.fileno(), write), processes, check))
        except OSError as error:  # the program has not begun
            return task["token"], ("unparsed", f"the tests' process did not start: {error}", False)
        checker_end.close()
        os.close(write)
        return task["token"], _Run(settings, *children).watch(read)
    finally:
        _kill_all(settings, children)


def main() -> NoReturn:
    """Read a task, run it, and write two lines that begin with its token: "started", and JSON with `outcome`, `note` and `killed`."""
    settings = json.loads(sys.argv[1])
    checker_module = types.ModuleType("checker")
    exec(compile(sys.argv[2], "<checker>", "exec"), checker_module.__dict__)  # noqa: S102 (our own text, see the top)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # the first process of a namespace gets only signals that it has a handler for
    if settings["library"]:
        # The interpreter's files may lie in a folder that the program's user may not pass through (/root); an open folder
        # needs no passing through.
        _LIBRARY.extend(os.open(path, os.O_RDONLY) for path in sys.path if Path(path).is_dir())
        sys.path[:] = [f"/proc/self/fd/{number}" for number in _LIBRARY]
    token, (outcome, note, killed) = _supervise(settings, checker_module)
    result = json.dumps({"outcome": outcome, "note": note[:1000], "killed": killed})
    os.write(1, f"{token} {result}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
