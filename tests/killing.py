"""Commands that are killed with SIGKILL, or stopped, at a chosen moment: each time they are about to change what is on the disk.

`Runs` starts this file as a process that loads what commands need and computes nothing; each command is a forked child of it, so that a run costs
no import. The moments are Python's own audit events (`sys.addaudithook`) for files under one folder. A file that is opened for writing at the fatal
moment is left torn.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}
WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    """Its exit code; the signal's number, negative, of one that was killed."""
    moments: list[str]
    """The moments that it came to: "EVENT PATH"."""
    out: str
    err: str


class Runs:
    """A process that runs commands.

    Args:
        folder: whose files are watched.
        modules: imported before anything is run.
    """

    def __init__(self, folder: Path, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(folder), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            text=True,
        )

    def __call__(self, words, *, at=None) -> Ended:
        """Run a command; killed at the moment `at`, counted from 0, if it comes to that."""
        return Ended(**self._asked(words=list(map(str, words)), at=at))

    def begin(self, words, *, at) -> int:
        """Run a command up to a moment, where it stops and lives; its process."""
        return self._asked(words=list(map(str, words)), at=at, stop=True)["pid"]

    def go_on(self, pid) -> Ended:
        """Let a stopped command run to its end."""
        return Ended(**self._asked(pid=pid))

    def close(self) -> None:
        """End the process."""
        with self._process:
            self._process.stdin.close()

    def _asked(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Watch:
    """Writes down each moment, and dies or stops at one of them."""

    def __init__(self, folder, log, at, stop) -> None:
        self.folder, self.log, self.at, self.stop, self.seen = folder, log, at, stop, 0

    def __call__(self, event, arguments) -> None:
        if event not in CHANGES or (self.at is not None and self.seen > self.at):
            return
        path = arguments[0]
        if isinstance(path, int) or path is None or isinstance(path, bytes):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITING):
            return
        # What `shutil.rmtree` removes is named from the folder that it stands in.
        inside = event in ("os.remove", "os.rmdir") and arguments[1] != -1
        if not inside and not str(Path(path).absolute()).startswith(self.folder):
            return
        at, self.seen = self.seen, self.seen + 1
        # No file of ours is opened: that would be an event.
        to = f" -> {arguments[1]}" if event == "os.rename" else ""
        os.write(self.log, f"{event} {path}{to}\n".encode())
        if at != self.at:
            return
        if self.stop:
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        # What is locked before anything is written to it is empty at this moment.
        if event == "open" and not str(path).endswith((".lock", ".jsonl.part")):
            torn = os.open(path, arguments[2] | os.O_CREAT, 0o600)
            os.write(torn, b'{"half": ')
        os.kill(os.getpid(), signal.SIGKILL)


def child(request, folder, files):
    """The command, in a process of its own; does not return."""
    code = 70
    try:
        for number in (1, 2):
            os.dup2(os.open(files[number], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        log = os.open(files[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.addaudithook(Watch(folder, log, request["at"], request.get("stop", False)))
        from stepmark.cli import main

        code = main(request["words"])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def ended(pid, files):
    """What `Ended` holds."""
    _, status = os.waitpid(pid, 0)
    told = [Path(file).read_text() if Path(file).exists() else "" for file in files]
    return {
        "code": os.waitstatus_to_exitcode(status),
        "moments": told[0].splitlines(),
        "out": told[1],
        "err": told[2],
    }


def serve(folder):
    """Answer requests until there are no more."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        running = {}
        for number, line in enumerate(sys.stdin):
            request = json.loads(line)
            if "pid" in request:
                os.kill(request["pid"], signal.SIGCONT)
                answer = ended(request["pid"], running.pop(request["pid"]))
            else:
                files = [f"{place}/{number}.{name}" for name in ("moments", "out", "err")]
                pid = os.fork()
                if not pid:
                    child(request, folder, files)
                if request.get("stop"):
                    os.waitpid(pid, os.WUNTRACED)
                    running[pid], answer = files, {"pid": pid}
                else:
                    answer = ended(pid, files)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    import importlib

    for module in sys.argv[2:]:
        importlib.import_module(module)
    serve(sys.argv[1])
