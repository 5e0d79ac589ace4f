"""Many clients at one PRM: ours, a naive server and vLLM under the same load, one after the other on the same cores.

`python -m benchmarks.serve [--quick] [--only ours naive vllm] [--clients 16 64] [--seconds N] [--keep FILE] [--docs]`

All three serve the shipped PRM (135M) from one merged checkpoint in one precision. Ours is `stepmark serve` as it stands. The naive one
(`serve_naive`) is what people write today: FastAPI, transformers' own class, a forward pass a solution behind a lock. vLLM is started as the checkpoint's card says, with the Python that
`STEPMARK_VLLM_PYTHON` (or `--vllm`) names, and skipped by name where there is none. Each server has `--threads` threads (one, if nothing else is said) and, on Linux, as many
cores, on which all of it runs; the clients are one process on the others.

Clients ask without pause (`serve_load`), the same requests of every server, drawn from a seed (`serve_work`): `search`, the growing prefixes of beam searches, each sent whole; `bulk`, whole
candidates of shared problems; and `separate` at 16 clients, where every solution is of a problem of its own, so that what is gained there is batching alone. Scores of all servers are
compared. `tokens_computed_over_distinct` holds the server's own counter against a count of distinct prefixes made here, of all requests that were sent.

`--keep FILE` writes each turn down when it is done, and does not repeat those that the file has. `--docs` writes the tables to `docs/serve.md#load`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import HOST, benchmark_parser, finish, quantile
from benchmarks.serve_servers import (
    KINDS,
    PATHS,
    PATIENCE,
    Kind,
    Server,
    Setting,
    body,
    environment,
    merged,
    on_cores,
    scores,
)
from benchmarks.serve_work import Distinct, Request, Workload, taken
from stepmark.models.backbone import has_bfloat16, load_tokenizer
from stepmark.models.encoding import Encoder

AIMS = {"speedup_over_naive": 5.0, "tokens_computed_over_distinct": 1.05}
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
NAMES = {"ours": "`stepmark serve`", "naive": "naive", "vllm": "vLLM"}
Row = Mapping[str, Any]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "serve.md"
SHARED: tuple[Workload, ...] = ("search", "bulk")
CLIENTS = (16, 64)
SEPARATE_AT = 16
"""Clients of the workload without sharing."""
AT_ONCE = 16
"""More clients than that have longer turns, in proportion."""
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
"""By how much scores of two servers may differ: in bfloat16 they move with the shape of the batch."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A server under one load."""

    server: Kind
    workload: Workload
    clients: int
    seconds: float
    dtype: str
    threads: int

    @property
    def seed(self) -> str:
        """Of its requests: those of another turn are about other problems."""
        return f"{self.workload} {self.clients}"


class Load:
    """The process of the clients."""

    def __init__(self, setting: Setting) -> None:
        with on_cores(setting.client_cores):
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.serve_load"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(setting),
            )

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Let them ask.

        Raises:
            RuntimeError: a client got no answer, or another than scores.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the clients' process ended")
        told: dict[str, Any] = json.loads(line)
        if told["failure"]:
            raise RuntimeError(told["failure"])
        return told

    def close(self) -> None:
        """End it."""
        self.process.communicate()


class Work:
    """The requests of turns; made once for all servers.

    Args:
        setting: what the servers have in common.
        most: solutions a second that are enough.
        warm: seconds before a turn counts.
    """

    def __init__(self, setting: Setting, most: float, warm: float) -> None:
        self._setting, self._most, self._warm = setting, most, warm
        self._made: dict[str, list[list[Request]]] = {}

    def of(self, turn: Turn) -> list[list[Request]]:
        """Each client's requests."""
        if turn.seed not in self._made:
            each = self._most * (turn.seconds + self._warm) / turn.clients
            # One client alone has one request at a time in work, and is far from what a server can do.
            enough = round(each if turn.clients > 1 else each / 2) + 20
            self._made[turn.seed] = [
                taken(turn.workload, client, turn.seed, enough) for client in range(turn.clients)
            ]
        return self._made[turn.seed]

    def written(self, turn: Turn) -> Path:
        """The file that the clients read them from."""
        file = self._setting.folder / "work.jsonl"
        with file.open("w", encoding="utf-8") as out:
            for requests in self.of(turn):
                rows = [[body(turn.server, one, self._setting), len(one)] for one in requests]
                out.write(json.dumps(rows) + "\n")
        return file


def one_turn(
    turn: Turn, server: Server, load: Load, work: Work, setting: Setting, distinct: Distinct, warm: float
) -> dict[str, Any]:
    """Let the clients ask one server for a while; what came of it, as plain data.

    Args:
        turn: which.
        server: runs.
        load: asks.
        work: what it asks.
        setting: what the servers have in common.
        distinct: has counted all that this server has read so far, and goes on.
        warm: seconds before the turn counts.
    """
    used, before = server.processor(), server.metrics()
    told = load.run(
        {
            "host": HOST,
            "port": server.port,
            "path": PATHS[turn.server],
            "work": str(work.written(turn)),
            "warm": warm,
            "seconds": turn.seconds,
            "patience": PATIENCE,
        }
    )
    after = server.metrics()
    read, known = distinct.read, distinct.count
    every = 0
    for requests, asked in zip(work.of(turn), told["asked"], strict=True):
        for request in requests[:asked]:
            every += len(request)
            for one in request:
                distinct.add(setting.tokens(one.problem, one.steps))
    row: dict[str, Any] = {
        **asdict(turn),
        **{key: told[key] for key in ("requests", "solutions", "latencies", "errors")},
        "asked_solutions": every,
        "tokens_read": distinct.read - read,
        "tokens_distinct": distinct.count - known,
        "processor": server.processor() - used,
        "load_share": told["processor"] / told["wall"],
        "answers": [[scores(turn.server, a, setting) for a in some] for some in told["answers"]],
    }
    for name in ("tokens_computed", "tokens_again", "batches", "compute_seconds"):
        if after:
            row[name] = after[f"{name}_total"] - before[f"{name}_total"]
    if after:
        row["wall"] = told["wall"]
    return row


def plan(options: argparse.Namespace, kinds: Sequence[Kind]) -> dict[Kind, list[Turn]]:
    """The turns of each server, those of few clients first."""
    common = {"dtype": options.dtype, "threads": options.threads}
    loads: list[tuple[Workload, int]] = [(name, clients) for name in SHARED for clients in options.clients]
    if SEPARATE_AT in options.clients:
        loads.append(("separate", SEPARATE_AT))
    return {
        kind: [
            Turn(
                server=kind,
                workload=name,
                clients=clients,
                # Many clients wait longer for each answer; a turn of which most is their first round shows a start and no load.
                seconds=options.seconds * max(1.0, clients / AT_ONCE),
                **common,
            )
            for name, clients in loads
        ]
        for kind in kinds
    }


def run(
    turns: dict[Kind, list[Turn]],
    kept: dict[Turn, dict[str, Any]],
    options: argparse.Namespace,
    setting: Setting,
) -> None:
    """All turns that have not been kept."""
    work = Work(setting, options.most, options.warm)
    load = Load(setting)
    try:
        for kind, those in turns.items():
            left = [turn for turn in those if turn not in kept]
            if not left:
                continue
            server, distinct = Server(kind, setting), Distinct()
            print(f"{kind}: answers after {server.starting:.1f} s", flush=True)
            try:
                # So that nothing is done for the first time where it counts.
                first = Turn(
                    server=kind, workload="separate", clients=4, seconds=options.warm, dtype="", threads=0
                )
                one_turn(first, server, load, work, setting, distinct, 0.0)
                for turn in left:
                    row = kept[turn] = one_turn(turn, server, load, work, setting, distinct, options.warm)
                    print(line(row), flush=True)
                    if options.keep:
                        with options.keep.open("a", encoding="utf-8") as out:
                            out.write(json.dumps(row) + "\n")
            except Exception:
                print(f"{kind}'s log ends: {server.log_end()}", file=sys.stderr)
                raise
            finally:
                server.stop()
    finally:
        load.close()


def line(row: dict[str, Any]) -> str:
    """A turn for people."""
    computed = (
        f", computed/distinct {row['tokens_computed'] / row['tokens_distinct']:.3f}" if "wall" in row else ""
    )
    times = (
        [duration(quantile(row["latencies"], share)) for share in (0.5, 0.99)]
        if row["latencies"]
        else ["-"] * 2
    )
    return (
        f"  {row['server']:6} {row['workload']:8} {row['clients']:3} clients: {row['requests'] / row['seconds']:7.2f} requests/s, "
        f"{row['solutions'] / row['seconds']:7.2f} solutions/s, p50 {times[0]:>7}, p99 {times[1]:>7}, "
        f"errors {sum(row['errors'].values())}, read/distinct {row['tokens_read'] / row['tokens_distinct']:.2f}{computed}, "
        f"processor {1000 * row['processor'] / row['asked_solutions']:.0f} ms a solution, clients {row['load_share']:.2f} of a core, "
        f"load average {os.getloadavg()[0]:.1f}"
    )


def read_kept(file: Path | None) -> dict[Turn, dict[str, Any]]:
    """What an earlier run has written down."""
    found = {}
    if file is not None and file.is_file():
        for text in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(text)
            found[Turn(**{name: row[name] for name in Turn.__dataclass_fields__})] = row
    return found


def check_scores(rows: Sequence[dict[str, Any]], dtype: str) -> dict[str, float]:
    """The largest difference between ours and each other server, on the first requests of every client.

    Raises:
        SystemExit: larger than the precision explains.
    """
    worst: dict[str, float] = {}
    ours = {(row["workload"], row["clients"]): row["answers"] for row in rows if row["server"] == "ours"}
    for row in rows:
        mine = ours.get((row["workload"], row["clients"]))
        if row["server"] == "ours" or mine is None:
            continue
        for one, other in zip(flat(mine, row["answers"]), flat(row["answers"], mine), strict=True):
            name = f"scores_differ_from_{row['server']}"
            worst[name] = max(worst.get(name, 0.0), abs(one - other))
    for name, value in worst.items():
        if not value <= TOLERANCE[dtype]:
            raise SystemExit(f"{name}: {value:.4f}, more than {TOLERANCE[dtype]:g}")
    return worst


def flat(answers: list[Any], beside: list[Any]) -> list[float]:
    """All scores of the requests that both have answered."""
    return [
        score
        for some, others in zip(answers, beside, strict=True)
        for answer, _ in zip(some, others, strict=False)
        for solution in answer
        for score in solution
    ]


def figures_of(rows: Sequence[Row]) -> dict[str, float]:
    """The figures, by name; what was not measured has none."""
    found: dict[str, float] = {}
    by = {(row["server"], row["workload"], row["clients"]): row for row in rows}
    for (server, workload, clients), row in by.items():
        at = f"_{workload}_at_{clients}"
        prefix = "" if server == "ours" else f"{server}_"
        found |= {
            f"{prefix}requests_per_second{at}": rate(row, "requests"),
            f"{prefix}solutions_per_second{at}": rate(row, "solutions"),
            f"{prefix}errors{at}": float(sum(row["errors"].values())),
            f"{prefix}processor_ms_a_solution{at}": 1000 * each(row),
        }
        if row["latencies"]:
            found |= {
                f"{prefix}p50_ms{at}": quantile(row["latencies"], 0.5),
                f"{prefix}p99_ms{at}": quantile(row["latencies"], 0.99),
            }
        if server == "ours":
            found |= {
                f"tokens_computed_over_distinct{at}": row["tokens_computed"] / row["tokens_distinct"],
                f"tokens_read_over_distinct{at}": row["tokens_read"] / row["tokens_distinct"],
                f"solutions_a_batch{at}": row["asked_solutions"] / row["batches"],
                f"share_of_time_in_the_model{at}": row["compute_seconds"] / row["wall"],
            }
        elif ours := by.get(("ours", workload, clients)):
            if theirs := rate(row, "solutions"):
                found[f"speedup_over_{server}{at}"] = rate(ours, "solutions") / theirs
            found[f"speedup_over_{server}_in_processor_time{at}"] = each(row) / each(ours)
    ratios = [value for name, value in found.items() if name.startswith("tokens_computed_over_distinct_")]
    if ratios:
        found["tokens_computed_over_distinct"] = max(ratios)
    # In processor time: what a busy machine does not change.
    speedups = [
        found[name]
        for workload in SHARED
        for clients in {turn[2] for turn in by}
        if (name := f"speedup_over_naive_in_processor_time_{workload}_at_{clients}") in found
    ]
    if speedups:
        found["speedup_over_naive"] = min(speedups)
    if shares := [row["load_share"] for row in rows]:
        found["clients_share_of_a_core"] = max(shares)
    return found


def rate(row: Row, what: str) -> float:
    """A second."""
    count: int = row[what]
    return count / float(row["seconds"])


def each(row: Row) -> float:
    """Seconds of processor time that the server used for each solution, all of the time and all that was asked in it."""
    return float(row["processor"]) / int(row["asked_solutions"])


def table(rows: Sequence[Row]) -> str:
    """Markdown: a row a turn, of what other jobs of the machine do not change; `over naive` is of processor time."""
    head = (
        "| workload | clients | server | processor a solution | over naive | sent / distinct | computed / distinct |\n"
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |"
    )
    naive = {(row["workload"], row["clients"]): each(row) for row in rows if row["server"] == "naive"}
    lines = [head]
    for row in sorted(
        rows, key=lambda row: (row["workload"] == "separate", row["workload"] == "bulk", row["clients"])
    ):
        base = naive.get((row["workload"], row["clients"]))
        distinct = row["tokens_distinct"]
        cells = [
            row["workload"],
            row["clients"],
            NAMES[row["server"]],
            duration(1000 * each(row)),
            f"{base / each(row):.2f}x" if base else "",
            f"{row['tokens_read'] / distinct:.2f}",
            f"{row['tokens_computed'] / distinct:.3f}" if "tokens_computed" in row else "",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def duration(milliseconds: float) -> str:
    """For people."""
    return f"{milliseconds:.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def page(text: str, rows: Sequence[Row], figures: Mapping[str, float]) -> str:
    """A page with the tables in the place of those that it had.

    Raises:
        ValueError: the page has no such place.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the tables: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{said(rows, figures)}\n\n{END}{after}"


def lengths(rows: Sequence[Row]) -> str:
    """How long turns were."""
    usual = min(row["seconds"] for row in rows)
    longer = sorted({(row["clients"], row["seconds"]) for row in rows if row["seconds"] != usual})
    more = "".join(f", {seconds:g} with {clients} clients" for clients, seconds in longer)
    return f"{usual:g} seconds a turn{more}"


def said(rows: Sequence[Row], figures: Mapping[str, float]) -> str:
    """Under which conditions, and the figures that have an aim."""
    one = rows[0]
    sharing = statistics.median(
        row["tokens_read"] / row["tokens_distinct"] for row in rows if row["workload"] in SHARED
    )
    lines = [
        f"{lengths(rows)}, {one['dtype']}, {one['threads']} thread(s) a server, Python {platform.python_version()}. "
        f"In `search` and `bulk`, {sharing:.1f} tokens are sent for each distinct one. "
        f"Requests that failed: {sum(sum(row['errors'].values()) for row in rows)}.",
        "",
        "| figure | value | aim |",
        "| --- | ---: | ---: |",
    ]
    names = [*AIMS, *(name for name in figures if name.startswith("scores_differ"))]
    for name in names:
        if name in figures:
            aim = f"{AIMS[name]:g}" if name in AIMS else ""
            lines.append(f"| `{name}` | {figures[name]:.3g} | {aim} |")
    return "\n".join(lines)


def cores(threads: int) -> tuple[frozenset[int], frozenset[int]]:
    """For the server as many as it has threads, the last ones; for the clients the others. Both empty where there are too few."""
    if sys.platform != "linux":
        return frozenset(), frozenset()
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) <= threads:
        return frozenset(), frozenset()
    return frozenset(mine[-threads:]), frozenset(mine[:-threads])


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(__doc__, "6 seconds a turn")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    parser.add_argument(
        "--seconds", type=float, help="of each turn of up to 16 clients; 20 if nothing else is said"
    )
    parser.add_argument(
        "--dtype",
        choices=tuple(TOLERANCE),
        default="bfloat16" if has_bfloat16("cpu") else "float32",
        help="default: bfloat16 where the processor computes in it, else float32",
    )
    parser.add_argument("--threads", type=int, default=1, help="of each server")
    parser.add_argument("--server-cores", type=int, nargs="+", help="where servers run")
    parser.add_argument("--client-cores", type=int, nargs="+", help="where the clients run")
    parser.add_argument(
        "--most", type=float, default=150.0, help="solutions a second that requests are made for"
    )
    parser.add_argument("--vllm", type=Path, help="the Python of an environment with vLLM")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="write turns down, and do not repeat those that are there"
    )
    parser.add_argument("--docs", action="store_true", help="write the tables to docs/serve.md#load")
    options = parser.parse_args(argv)
    options.seconds = options.seconds or (6.0 if options.quick else 20.0)
    options.warm = 1.0 if options.quick else 3.0
    if options.seconds <= 0 or min(options.clients) < 1 or options.threads < 1:
        parser.error("expected --seconds of more than 0, --clients and --threads of 1 or more")
    named = os.environ.get("STEPMARK_VLLM_PYTHON")
    options.vllm = options.vllm or (Path(named) if named else None)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    options = arguments(argv)
    # So that no server is left behind: they have sessions of their own.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    torch.set_num_threads(options.threads)
    kinds: list[Kind] = [kind for kind in KINDS if kind in options.only]
    if "vllm" in kinds and options.vllm is None:
        print(
            "skipped: vLLM is not here; name the Python of its environment with --vllm or STEPMARK_VLLM_PYTHON"
        )
        kinds.remove("vllm")
    servers, clients = cores(options.threads)
    with tempfile.TemporaryDirectory() as name:
        made = merged(Path(name) / "prm", options.dtype)
        assert made.spec is not None
        setting = Setting(
            made=made,
            encoder=Encoder(load_tokenizer(made.folder), made.spec.layout, max_tokens=None),
            dtype=options.dtype,
            threads=options.threads,
            server_cores=frozenset(options.server_cores or servers),
            client_cores=frozenset(options.client_cores or clients),
            vllm_python=options.vllm,
            folder=Path(name),
        )
        print(
            f"{options.dtype}, {options.threads} thread(s) a server, on the cores {sorted(setting.server_cores) or 'that there are'}; "
            f"clients on {sorted(setting.client_cores) or 'the same'}; load average {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        turns = plan(options, kinds)
        kept = read_kept(options.keep)
        run(turns, kept, options, setting)
    rows = [kept[turn] for those in turns.values() for turn in those]
    print(table(rows))
    figures = {**figures_of(rows), **check_scores(rows, options.dtype)}
    if options.docs:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows, figures), encoding="utf-8")
    finish("serve", figures, {name: aim for name, aim in AIMS.items() if name in figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
