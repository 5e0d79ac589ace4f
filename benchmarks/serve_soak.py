"""Whether a score server keeps what it should let go: mixed traffic for minutes, and its memory, files and threads meanwhile.

`python -m benchmarks.serve_soak --minutes N [--prm default] [--clients 12]`

Clients ask for scores, orders and growing prefixes, and do all that clients do wrong: they hang up while the server works, send what is refused, give no time, and send
half of a body. Every `--every` seconds the server's resident memory, open files and threads are read, and its own counters.

The answer is the slope of the memory over the second part of the run (after `--warm`, a third of it if nothing else is said, in which caches fill and the allocator settles), with a 95 % interval:
least squares over the medians of 12 blocks, because neighbouring samples are alike. It is flat if the interval includes 0, or if its upper end is under `--bound` bytes a request: what is
kept of a request by mistake is a kilobyte and more. In the end the traffic stops, and what is left must be what was there before: no request, as many files and threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import HOST, finish, free_port
from benchmarks.serve_work import requests

BLOCKS = 12
_T = 2.228  # Student's t, 97.5 %, 10 degrees of freedom
_PAGE = os.sysconf("SC_PAGE_SIZE") if sys.platform != "win32" else 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The server at one moment."""

    seconds: float
    """Since the traffic began."""
    requests: int
    """Sent so far."""
    resident: int
    """Bytes."""
    files: int
    threads: int
    memory_tokens: int
    open: int
    """Requests in work, this one not counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slope:
    """Bytes a second with a 95 % interval."""

    value: float
    low: float
    high: float


def slope_of(samples: Sequence[Sample]) -> Slope:
    """Of the resident memory: least squares over the medians of blocks.

    Raises:
        ValueError: fewer samples than blocks.
    """
    if len(samples) < BLOCKS:
        raise ValueError(
            f"expected at least {BLOCKS} samples after the warm-up, found {len(samples)}: run longer"
        )
    cuts = [round(i * len(samples) / BLOCKS) for i in range(BLOCKS + 1)]
    blocks = [samples[a:b] for a, b in pairwise(cuts)]
    x = [statistics.fmean(one.seconds for one in block) for block in blocks]
    y = [float(statistics.median(one.resident for one in block)) for block in blocks]
    mean = statistics.fmean(x)
    spread = math.fsum((a - mean) ** 2 for a in x)
    slope, start = statistics.linear_regression(x, y)
    rest = math.fsum((b - start - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    half = _T * math.sqrt(rest / (BLOCKS - 2) / spread)
    return Slope(value=slope, low=slope - half, high=slope + half)


class Traffic:
    """Clients that ask and misbehave.

    Args:
        http: reaches the server.
        seed: of what they do.
    """

    def __init__(self, http: httpx.AsyncClient, seed: int) -> None:
        self._http, self._seed = http, seed
        self.sent = 0
        self.answers: Counter[str] = Counter()
        """By what was done and what came of it."""
        self.over = False

    async def client(self, number: int) -> None:
        """One client, until it is over."""
        dice = random.Random(f"{self._seed} {number}")
        work = requests("search" if number % 2 else "bulk", number, f"soak {self._seed}")
        deeds: list[tuple[Callable[..., Coroutine[Any, Any, None]], float]] = [
            (self._score, 6),
            (self._rank, 2),
            (self._grow, 2),
            (self._hang_up, 3),
            (self._refused, 2),
            (self._late, 1),
            (self._half_a_body, 1),
            (self._look, 1),
        ]
        while not self.over:
            [(deed, _)] = dice.choices(deeds, [weight for _, weight in deeds])
            bodies = [{"problem": one.problem, "steps": one.steps} for one in next(work)]
            await deed(bodies, dice)

    async def _post(self, what: str, path: str, body: Any, **more: Any) -> httpx.Response:
        self.sent += 1
        answer = await self._http.post(path, json=body, **more)
        self.answers[f"{what} {answer.status_code}"] += 1
        return answer

    async def _score(self, bodies: list[dict[str, Any]], dice: random.Random) -> None:
        await self._post("score", "/v1/score", {"solutions": bodies})

    async def _rank(self, bodies: list[dict[str, Any]], dice: random.Random) -> None:
        texts = ["\n".join(one["steps"]) for one in bodies]
        await self._post("rank", "/v1/rank", {"problem": bodies[0]["problem"], "solutions": texts})

    async def _grow(self, bodies: list[dict[str, Any]], dice: random.Random) -> None:
        """Prefixes that grow, each with a step that is not continued beside it."""
        problem, steps = bodies[0]["problem"], bodies[0]["steps"]
        for count in range(1, len(steps) + 1):
            prefix = list(steps[:count])
            beside = [*prefix[:-1], f"{prefix[-1]} Yes."]
            both = [{"problem": problem, "steps": one} for one in (prefix, beside)]
            answer = await self._post("grow", "/v1/score", {"solutions": both})
            if answer.status_code != 200:
                return

    async def _hang_up(self, bodies: list[dict[str, Any]], dice: random.Random) -> None:
        asking = asyncio.create_task(self._post("hang up", "/v1/score", {"solutions": bodies}))
        await asyncio.wait([asking], timeout=dice.random() * 0.2)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
            return
        self.answers["hung up"] += 1

    async def _refused(self, bodies: list[dict[str, Any]], dice: random.Random) -> None:
        path, body = dice.choice(
            [
                ("/v1/score", {"solutions": [{"problm": "x"}]}),
                ("/v1/score", {"problem": f"{dice.random()}", "steps": [""]}),
                ("/v1/score", {"problem": "p", "steps": ["a"], "model": f"{dice.random()}"}),
                ("/v1/score", {"problem": "p " * 30_000, "steps": ["a"]}),
                (f"/nowhere/{dice.random()}", {}),
                ("/pooling", {"input": [[10**9]]}),
            ]
        )
        await self._post("refused", path, body)

    async def _late(self, bodies: list[dict[str, Any]], dice: random.Random) -> None:
        await self._post("late", "/v1/score", {"solutions": bodies, "timeout": dice.random() * 0.05 + 1e-4})

    async def _half_a_body(self, bodies: list[dict[str, Any]], dice: random.Random) -> None:
        self.sent += 1
        _, writer = await asyncio.open_connection(self._http.base_url.host, self._http.base_url.port)
        head = "POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
        writer.write(head.encode() + json.dumps(bodies).encode()[:5000])
        await writer.drain()
        await asyncio.sleep(dice.random() * 0.1)
        writer.transport.abort()
        self.answers["half a body"] += 1

    async def _look(self, bodies: list[dict[str, Any]], dice: random.Random) -> None:
        path = dice.choice(["/v1/models", "/docs", "/openapi.json", "/health"])
        self.sent += 1
        self.answers[f"look {(await self._http.get(path)).status_code}"] += 1


async def sample(pid: int, http: httpx.AsyncClient, began: float, sent: int) -> Sample:
    """Read all of it now."""
    answer = await http.get("/metrics")
    told = {name: float(value) for name, value in re.findall(r"^stepmark_(\w+) (\S+)$", answer.text, re.M)}
    place = Path(f"/proc/{pid}")
    status = (place / "status").read_text(encoding="utf-8")
    threads = re.search(r"^Threads:\s+(\d+)", status, re.M)
    assert threads is not None
    return Sample(
        seconds=time.perf_counter() - began,
        requests=sent,
        resident=int((place / "statm").read_text(encoding="utf-8").split()[1]) * _PAGE,
        files=len(list((place / "fd").iterdir())),
        threads=int(threads[1]),
        memory_tokens=int(told["memory_tokens"]),
        open=int(told["http_requests_open"]) - 1,
    )


def told(one: Sample) -> str:
    """A sample for people."""
    return (
        f"{one.seconds:7.0f} s {one.requests:8} requests: {one.resident / 2**20:8.1f} MiB, {one.files} files, {one.threads} threads, "
        f"{one.memory_tokens} tokens kept, {one.open} in work"
    )


async def soak(
    pid: int, url: str, options: argparse.Namespace
) -> tuple[list[Sample], Sample, Sample, Counter[str]]:
    """The traffic. Samples under it, one before it and one after it, and what was answered."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=options.clients)
    async with (
        httpx.AsyncClient(base_url=url, timeout=300.0, limits=limits, trust_env=False) as http,
        httpx.AsyncClient(base_url=url, timeout=300.0, trust_env=False) as watcher,
    ):
        began = time.perf_counter()
        # One request of each kind that has a thread of its own, which starts with the first.
        await http.post("/v1/score", json={"problem": "1 + 1?", "steps": ["1 + 1 = 2"]})
        await http.post("/v1/rank", json={"problem": "1 + 1?", "solutions": ["1 + 1 = 2"]})
        before = await sample(pid, watcher, began, 0)
        print(f"before {told(before)}", flush=True)
        traffic = Traffic(http, options.seed)
        samples: list[Sample] = []
        async with asyncio.TaskGroup() as group:
            for number in range(options.clients):
                group.create_task(traffic.client(number))
            ends, printed = began + 60 * options.minutes, 0.0
            while time.perf_counter() < ends:
                await asyncio.sleep(options.every)
                samples.append(await sample(pid, watcher, began, traffic.sent))
                if samples[-1].seconds >= printed:
                    print(f"       {told(samples[-1])}", flush=True)
                    printed = samples[-1].seconds + max(options.every, 60 * options.minutes / 20)
            traffic.over = True
    # Its connections are closed now.
    async with httpx.AsyncClient(base_url=url, timeout=300.0, trust_env=False) as watcher:
        after = await sample(pid, watcher, began, traffic.sent)
        for _ in range(30):
            if after.open == 0 and after.files <= before.files:
                break
            await asyncio.sleep(1)
            after = await sample(pid, watcher, began, traffic.sent)
    print(f"after  {told(after)}", flush=True)
    return samples, before, after, traffic.answers


def judged(
    samples: Sequence[Sample], before: Sample, after: Sample, warm: float, bound: float
) -> tuple[dict[str, float], list[str]]:
    """The figures, and what is wrong.

    Args:
        samples: under the traffic.
        before: the first one.
        after: the last one.
        warm: seconds that are not looked at.
        bound: bytes a request.
    """
    late = [one for one in samples if one.seconds >= warm]
    slope = slope_of(late)
    rate = (late[-1].requests - late[0].requests) / (late[-1].seconds - late[0].seconds)
    figures = {
        "requests": float(after.requests),
        "requests_per_second": rate,
        "mebibytes_before": before.resident / 2**20,
        "mebibytes_after": after.resident / 2**20,
        "mebibytes_peak": max(one.resident for one in samples) / 2**20,
        "kibibytes_a_minute": 60 * slope.value / 1024,
        "kibibytes_a_minute_low": 60 * slope.low / 1024,
        "kibibytes_a_minute_high": 60 * slope.high / 1024,
        "bytes_a_request": slope.value / rate,
        "bytes_a_request_high": slope.high / rate,
        "files_more": float(after.files - before.files),
        "threads_more": float(after.threads - before.threads),
        "requests_left": float(after.open),
    }
    faults = []
    flat = slope.low <= 0 or slope.high / rate < bound
    figures["flat"] = float(flat)
    if not flat:
        faults.append(
            f"memory grows by {slope.value / rate:.0f} bytes a request, more than {bound:g} with 97.5 % confidence or nearly so"
        )
    faults += [f"{name}: {figures[name]:g}" for name in ("files_more", "requests_left") if figures[name] > 0]
    return figures, faults


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if something was kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--warm", type=float, help="minutes")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between samples")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--prm", default="default")
    parser.add_argument(
        "--memory-tokens", type=int, default=4096, help="few, so that the memory is full soon"
    )
    parser.add_argument("--bound", type=float, default=200.0, help="bytes a request that count as none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if sys.platform != "linux":
        parser.error("memory, files and threads of another process are read from /proc, which is Linux's")
    # So that the server is not left behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    port = free_port()
    flags = ["--prm", options.prm, "--device", "cpu", "--port", str(port), "--quiet"]
    flags += ["--memory-tokens", str(options.memory_tokens)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, "-m", "stepmark", "serve", *flags], stderr=log)
        try:
            url = f"http://{HOST}:{port}"
            wait_for(process, url)
            samples, before, after, answers = asyncio.run(soak(process.pid, url, options))
        except BaseException:
            log.seek(0)
            print(log.read()[-3000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait()
        log.seek(0)
        said = log.read().decode(errors="replace")
    print("; ".join(f"{what}: {count}" for what, count in sorted(answers.items())))
    figures, faults = judged(
        samples,
        before,
        after,
        60 * (options.minutes / 3 if options.warm is None else options.warm),
        options.bound,
    )
    faults += [f"an answer with {what.split()[-1]}" for what in answers if what.endswith((" 500", " 502"))]
    faults += ["the server logged a failure"] * ("Traceback" in said)
    for fault in faults:
        print(f"NOT FLAT: {fault}")
    finish("serve_soak", figures, {"flat": 1.0, "files_more": 0.0, "requests_left": 0.0})
    return 1 if faults else 0


def wait_for(process: subprocess.Popen[bytes], url: str) -> None:
    """Until it takes requests.

    Raises:
        RuntimeError: it ended.
    """
    with httpx.Client(base_url=url, trust_env=False) as http:
        while process.poll() is None:
            with suppress(httpx.HTTPError):
                if http.get("/health").status_code == 200:
                    return
            time.sleep(0.1)
    raise RuntimeError("the server did not start")


if __name__ == "__main__":
    sys.exit(main())
