"""Two hundred annotators at once: stepmark's label server and Potato's, under the same load on the same machine, turn about.

`python -m benchmarks.annotate [--quick] [--users N] [--install]`

Each annotator has an account and a connection of their own and clicks without pause: the next click follows when the last one is acknowledged. A label
is the same on both sides: one step's reward, stored by one POST (`/api/changes` here, `/updateinstance` there, with the body that Potato's own page sends).
Ours also has to hand out each next item and take its submission within the counted time, which count for nothing; Potato's annotators go on to their
next item without asking its server. Both store on the same disk: ours in SQLite with a wait for the disk before every answer, Potato as it does by default,
run as `potato start` runs it. The load comes from one process of its own (`annotate_load`), the same for both, whose processor time is told.

Then each server is killed (`kill -9`) in the middle of the load and started again, and what it has stored is held against what it has acknowledged.

Potato runs in an environment of its own (`--potato`, or made once with `--install` from `benchmarks/peers/potato.txt`).
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.common import PEERS, benchmark_parser, finish, peer_python

HOST = "127.0.0.1"
STEPS = 12
"""Of every item."""
FEW = 32
"""Annotators of the second figures, where Potato's were measured before."""


def solutions(count: int) -> list[dict[str, Any]]:
    """Items: sums that are worked out step by step, some wrongly."""
    made = []
    for number in range(count):
        steps = [
            f"Add {k} to {number + k - 1}: that makes {number + k + (k % 3 == 2)}."
            for k in range(1, STEPS + 1)
        ]
        made.append(
            {"id": f"item-{number:04}", "problem": f"Add 1, {STEPS} times, to {number}.", "steps": steps}
        )
    return made


class Server(Protocol):
    """A label server in a process of its own."""

    kind: str
    port: int
    process: subprocess.Popen[bytes] | None

    def start(self) -> float:
        """Start it; the seconds until it answers."""

    def join(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Accounts with these names, as `annotate_load` wants them."""

    def stored(self) -> Counter[str]:
        """How often each label is stored, by its name: "user item step"."""


def started(server: Server, command: Sequence[str], folder: Path, path: str) -> float:
    """Start a server and wait until it answers.

    Raises:
        RuntimeError: it ended, or did not answer in two minutes; with the end of its log.
    """
    began = time.perf_counter()
    log = folder / f"{server.kind}.log"
    with log.open("ab") as out:
        server.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=out,
            stderr=out,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )
    while time.perf_counter() - began < 120 and server.process.poll() is None:
        try:
            status, _, _ = call(server.port, "GET", path)
        except OSError:
            time.sleep(0.05)
        else:
            if status < 500:
                return time.perf_counter() - began
    raise RuntimeError(
        f"{server.kind} did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}"
    )


def call(
    port: int, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: status, headers (in lower case), body."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    with closing(connection):
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Stepmark:
    """Ours."""

    kind = "stepmark"

    def __init__(self, folder: Path, items: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.database = folder / "labels.db"
        (folder / "items.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in solutions(items)), encoding="utf-8"
        )
        # Everyone labels everything, as in Potato's default.
        (folder / "project.yaml").write_text(
            "name: step_rewards\nmode: per_step\nitems: [items.jsonl]\noverlap: 100000\n",
            encoding="utf-8",
        )

    def start(self) -> float:
        """Start it; the seconds until it answers."""
        return started(
            self,
            [
                sys.executable,
                "-m",
                "stepmark",
                "annotate",
                "project.yaml",
                "--database",
                str(self.database),
                "--port",
                str(self.port),
            ],
            self.folder,
            "/health",
        )

    def _verb(self, verb: str, *flags: str) -> list[str]:
        return [sys.executable, "-m", "stepmark", "annotate", verb, str(self.database), *flags]

    def join(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Accounts by an invitation."""
        code = self._invitation(len(names))
        users = []
        for name in names:
            body = json.dumps({"code": code, "name": name})
            status, headers, answer = call(
                self.port, "POST", "/api/join", body, {"Content-Type": "application/json"}
            )
            if status != 200:
                raise RuntimeError(f"{name} could not join: {status} {answer[:300]!r}")
            cookie = headers["set-cookie"].split(";", 1)[0]
            _, _, me = call(self.port, "GET", "/api/me", None, {"Cookie": cookie})
            users.append(
                {"name": name, "headers": {"Cookie": cookie, "X-CSRF-Token": json.loads(me)["csrf"]}}
            )
        return users

    def _invitation(self, uses: int) -> str:
        command = self._verb("invite", "--uses", str(uses), "--url", f"http://127.0.0.1:{self.port}")
        told = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout
        return told.strip().rpartition("#")[2]

    def stored(self) -> Counter[str]:
        """Read from the database's file."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as database:
            rows = database.execute(
                "SELECT accounts.name, item, data FROM changes JOIN accounts ON accounts.id = account"
            ).fetchall()
        found: Counter[str] = Counter()
        for name, item, data in rows:
            change = json.loads(data)
            if change["kind"] == "rate":
                found[f"{name} {item} {change['step']}"] += 1
        return found

    def exported(self) -> set[str]:
        """Read from an export, submitted or not."""
        out = self.folder / "export.jsonl"
        command = self._verb("export", "--format", "potato", "--unfinished", "--out", str(out), "--force")
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        return {
            f"{row['annotator']} {row['instance_id']} {step['index']}"
            for row in rows
            for step in row["steps"]
            if step["reward"] != 0
        }


class Potato:
    """Potato 2.12.1, as `potato start` runs it."""

    kind = "potato"

    def __init__(self, python: Path, folder: Path, items: int) -> None:
        self.program = python.parent / "potato"
        self.folder = folder
        folder.mkdir(parents=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.items = solutions(items)
        rows = [row | {"steps": [{"action": text} for text in row["steps"]]} for row in self.items]
        (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        shutil.copy(PEERS / "potato.yaml", folder / "config.yaml")

    def start(self) -> float:
        """Start it; the seconds until it answers."""
        command = [str(self.program), "start", "config.yaml", "-p", str(self.port), "--host", HOST]
        return started(self, command, self.folder, "/")

    def join(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Log in, and open the first page, which assigns all items."""
        users = []
        for name in names:
            body = urllib.parse.urlencode({"email": name, "pass": "", "action": "login"})
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            status, headers, _ = call(self.port, "POST", "/auth", body, form)
            cookie = {"Cookie": headers["set-cookie"].split(";", 1)[0]}
            opened, _, page = call(self.port, "GET", "/annotate", None, cookie)
            if status != 302 or opened != 200 or b"step_rewards" not in page:
                raise RuntimeError(f"{name} could not log in to Potato: {status}, then {opened}")
            users.append(
                {
                    "name": name,
                    "headers": cookie,
                    "items": [item["id"] for item in self.items],
                    "steps": STEPS,
                }
            )
        return users

    def stored(self) -> Counter[str]:
        """Read from every annotator's user_state.json."""
        found: Counter[str] = Counter()
        for file in (self.folder / "annotation_output").glob("*/user_state.json"):
            state = json.loads(file.read_text(encoding="utf-8"))
            for item, labels in state["instance_id_to_label_to_value"].items():
                for _, value in labels:
                    for step in json.loads(value)["steps"]:
                        if step["reward"] != 0:
                            found[f"{state['user_id']} {item} {step['index']}"] += 1
        return found


class Load:
    """The process that clicks."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.annotate_load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, server: Server, users: list[dict[str, Any]], *, warm: float, seconds: float) -> None:
        """Let them click."""
        job = {"kind": server.kind, "host": HOST, "port": server.port, "users": users}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job | {"warm": warm, "seconds": seconds, "patience": 60}) + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """What they came to."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the load's process ended")
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def processor(process: subprocess.Popen[bytes] | None) -> float:
    """Seconds of processor time that a process has used so far."""
    assert process is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kill(server: Server) -> None:
    """`kill -9`."""
    assert server.process is not None
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One side's turn."""

    rate: float
    """Labels acknowledged a second."""
    latencies: list[float]
    share_load: float
    """Of one core, that the load's process used."""
    share_server: float
    each: float
    """Seconds of processor time that the server used for each label."""


def turn(server: Server, load: Load, users: list[dict[str, Any]], *, warm: float, seconds: float) -> Turn:
    """Let all annotators click for a while.

    Raises:
        RuntimeError: an annotator was refused, or got no answer.
    """
    before = processor(server.process)
    load.begin(server, users, warm=warm, seconds=seconds)
    told = load.end()
    if told["failure"] or told["stuck"]:
        raise RuntimeError(f"{server.kind}: {told['failure']}; {told['stuck']} annotators without an answer")
    if not told["labels"]:
        raise RuntimeError(f"{server.kind} acknowledged nothing in {seconds:g} s: give it longer (--seconds)")
    used = processor(server.process) - before
    go_on(server, users, told["acknowledged"])
    return Turn(
        rate=told["labels"] / seconds,
        latencies=told["latencies"],
        share_load=told["processor"] / told["wall"],
        share_server=used / told["wall"],
        # All of the time, and all that was acknowledged in it.
        each=used / len(told["acknowledged"]),
    )


def go_on(server: Server, users: list[dict[str, Any]], acknowledged: list[str]) -> None:
    """Potato's annotators begin the next turn with items that they have not touched; ours are told by the server."""
    if server.kind == "potato":
        touched = {tuple(name.split()[:2]) for name in acknowledged}
        for user in users:
            user["items"] = [item for item in user["items"] if (user["name"], item) not in touched]


def killed(
    server: Server, load: Load, users: list[dict[str, Any]], *, seconds: float, starting: float
) -> tuple[int, int, int, float]:
    """Kill the server under load and start it again.

    Args:
        server: which.
        load: goes on all the time.
        users: who clicks.
        seconds: of load besides the time that the server needs to start.
        starting: that time, about.

    Returns:
        Labels acknowledged, of them lost, labels stored twice, seconds until it answers again.
    """
    before = server.stored()
    load.begin(server, users, warm=0.0, seconds=seconds + starting)
    time.sleep(seconds / 2)
    kill(server)
    again = server.start()
    told = load.end()
    # Potato knows nobody's session after a restart: its annotators are refused, and what they had acknowledged until then counts.
    if server.kind == "stepmark" and (told["failure"] or told["stuck"]):
        raise RuntimeError(f"after the kill: {told['failure']}; {told['stuck']} annotators without an answer")
    stored = server.stored()
    acknowledged = Counter(told["acknowledged"])
    lost = sum((acknowledged + before - stored).values())
    doubled = sum(count - 1 for count in stored.values())
    go_on(server, users, told["acknowledged"])
    return len(told["acknowledged"]), lost, doubled, again


def wait_for_disk(folder: Path) -> float:
    """Milliseconds that writing 4 KiB to the end of a file and waiting for the disk takes: the median of 100."""
    times = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(100):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def quantile(latencies: list[float], share: float) -> float:
    """In milliseconds."""
    ordered = sorted(latencies)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def compare(
    sides: Sequence[tuple[Server, list[dict[str, Any]]]],
    load: Load,
    *,
    turns: int,
    warm: float,
    seconds: float,
    suffix: str,
) -> dict[str, float]:
    """All sides, turn about."""
    done: dict[str, list[Turn]] = {server.kind: [] for server, _ in sides}
    for _ in range(turns):
        for server, users in sides:
            one = turn(server, load, users, warm=warm, seconds=seconds)
            done[server.kind].append(one)
            print(
                f"  {server.kind:9} {one.rate:8.0f} labels/s, p50 {quantile(one.latencies, 0.5):7.1f} ms, p99 {quantile(one.latencies, 0.99):7.1f} ms, "
                f"of a core: server {one.share_server:.2f}, load {one.share_load:.2f}; load average {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    figures: dict[str, float] = {}
    for kind, those in done.items():
        prefix = "" if kind == "stepmark" else f"{kind}_"
        every = [latency for one in those for latency in one.latencies]
        figures |= {
            f"{prefix}labels_per_second{suffix}": statistics.median(one.rate for one in those),
            f"{prefix}p50_ms{suffix}": quantile(every, 0.5),
            f"{prefix}p99_ms{suffix}": quantile(every, 0.99),
            f"{prefix}load_share{suffix}": max(one.share_load for one in those),
            f"{prefix}server_share{suffix}": max(one.share_server for one in those),
            f"{prefix}server_ms_a_label{suffix}": 1000 * statistics.median(one.each for one in those),
        }
    if "potato" in done:
        ratios = [a.rate / b.rate for a, b in zip(done["stepmark"], done["potato"], strict=True)]
        figures[f"rate_over_potato{suffix}"] = statistics.median(ratios)
        # What a busy machine does not change.
        costs = [b.each / a.each for a, b in zip(done["stepmark"], done["potato"], strict=True)]
        figures[f"rate_over_potato_in_processor_time{suffix}"] = statistics.median(costs)
    return figures


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--turns", type=int)
    parser.add_argument("--seconds", type=float, help="of each turn")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--potato", type=Path, help="the Python of Potato's environment")
    parser.add_argument("--install", action="store_true")
    parser.add_argument(
        "--folder", type=Path, help="on the disk to measure; the system's temporary one by default"
    )
    arguments = parser.parse_args()
    turns = arguments.turns or (2 if arguments.quick else 5)
    seconds = arguments.seconds or (8.0 if arguments.quick else 20.0)
    kills = arguments.kills or (1 if arguments.quick else 5)
    # Enough for 10,000 labels a second.
    items = round(10_000 * (turns + kills + 1) * (seconds + 2) / STEPS / arguments.users) + 50
    python = peer_python("potato", arguments.potato, install=arguments.install)
    if python is None:
        print(
            "skipped: Potato 2.12.1 is not here; --install makes an environment for it, or name its Python with --potato"
        )
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        figures = run(Path(name), python, arguments.users, items, turns=turns, seconds=seconds, kills=kills)
    aims: dict[str, float] = {"p99_ms": 100.0, "labels_lost": 0.0, "labels_doubled": 0.0}
    if python is not None:
        aims["rate_over_potato"] = 5.0
    finish("annotate", figures, aims)


def run(
    folder: Path, python: Path | None, count: int, items: int, *, turns: int, seconds: float, kills: int
) -> dict[str, float]:
    """All figures."""
    figures: dict[str, float] = {"load_before": os.getloadavg()[0], "disk_ms": wait_for_disk(folder)}
    servers: list[Server] = [Stepmark(folder / "stepmark", items)]
    if python is not None:
        servers.append(Potato(python, folder / "potato", items))
    load = Load()
    try:
        names = [f"annotator-{number:03}" for number in range(count)]
        sides = []
        starting = {}
        for server in servers:
            starting[server.kind] = server.start()
            sides.append((server, server.join(names)))
        print(
            f"{count} annotators, {items} items of {STEPS} steps, {turns} turns of {seconds:g} s", flush=True
        )
        figures |= compare(sides, load, turns=turns, warm=1.0, seconds=seconds, suffix="")
        if count > FEW:
            few = [(server, users[:FEW]) for server, users in sides]
            print(f"{FEW} annotators", flush=True)
            figures |= compare(few, load, turns=1, warm=1.0, seconds=seconds, suffix=f"_{FEW}")
        for server, users in sides:
            prefix = "" if server.kind == "stepmark" else f"{server.kind}_"
            counts = [
                killed(server, load, users, seconds=seconds, starting=starting[server.kind])
                for _ in range(kills if not prefix else 1)
            ]
            # What is in the log and comes out of no export is lost as well.
            hidden = len(set(server.stored()) - server.exported()) if isinstance(server, Stepmark) else 0
            figures |= {
                f"{prefix}labels_acknowledged": float(sum(one[0] for one in counts)),
                f"{prefix}labels_lost": float(sum(one[1] for one in counts) + hidden),
                f"{prefix}labels_doubled": float(sum(one[2] for one in counts)),
                f"{prefix}restart_seconds": statistics.median(one[3] for one in counts),
            }
            print(
                f"  {server.kind}, kill -9 under load, {len(counts)} times: {sum(one[0] for one in counts)} labels acknowledged, "
                f"{sum(one[1] for one in counts) + hidden} lost, {sum(one[2] for one in counts)} doubled",
                flush=True,
            )
    finally:
        load.close()
        for server in servers:
            if server.process is not None and server.process.poll() is None:
                kill(server)
    figures["load_after"] = os.getloadavg()[0]
    return figures


if __name__ == "__main__":
    main()
