"""Clients that ask without pause, in one process: the load that every server of `benchmarks.serve` gets.

`python -m benchmarks.serve_load`, a job as one JSON line on its standard input, then the result as one JSON line on its standard output. Each client has one connection and
sends its next request when the last one is answered (a closed loop). After the counted time nothing new is sent and what is in work is waited for, so that
a slow answer counts as slow: latencies are those of requests that were *sent* in the counted time, the rate is made of answers that *came* in it.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.jobs import answer_jobs

KEPT = 2
"""First answers of each client that are given back, to be compared."""
RETRY = 0.25
"""Seconds until a broken connection is made again."""


@dataclass(slots=True)
class Tally:
    """What all clients came to."""

    began: float
    """When counting begins (`time.perf_counter`)."""
    ends: float
    latencies: list[float] = field(default_factory=list)
    """Seconds, of each request sent in the counted time."""
    requests: int = 0
    """Answered in the counted time."""
    solutions: int = 0
    """In them."""
    errors: dict[str, int] = field(default_factory=dict)
    """Answers that were none, by what they were."""

    def wrong(self, what: str) -> None:
        """Count an error."""
        self.errors[what] = self.errors.get(what, 0) + 1


class Client:
    """One client and its connection.

    Args:
        place: host and port.
        path: where its requests go.
        work: its requests: body, and how many solutions are in it.
        tally: what all came to.
    """

    def __init__(self, place: tuple[str, int], path: str, work: list[list[Any]], tally: Tally) -> None:
        self._place, self._path, self._work, self._tally = place, path, work, tally
        self.asked = 0
        """Requests that were sent and answered."""
        self.answers: list[Any] = []
        """The first ones."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        """Ask until the time is over.

        Raises:
            RuntimeError: it has asked all there was before, or the server declined.
        """
        tally = self._tally
        try:
            while time.perf_counter() < tally.ends:
                if self.asked == len(self._work):
                    raise RuntimeError("a client ran out of requests: more are made with --most")
                body, solutions = self._work[self.asked]
                sent = time.perf_counter()
                answer = await self._answered(body.encode())
                now = time.perf_counter()
                self.asked += 1
                if answer is None:
                    continue
                if len(self.answers) < KEPT:
                    self.answers.append(json.loads(answer))
                if sent >= tally.began:
                    tally.latencies.append(now - sent)
                if tally.began <= now < tally.ends:
                    tally.requests += 1
                    tally.solutions += solutions
        finally:
            await self._close()

    async def _answered(self, body: bytes) -> bytes | None:
        """Ask until there is an answer; what is none is counted. None where the server failed.

        Raises:
            RuntimeError: the server declined.
        """
        while True:
            wait = RETRY
            try:
                status, headers, answer = await self._once(body)
            except (OSError, EOFError, ValueError) as error:
                self._tally.wrong(type(error).__name__)
                await self._close()
            else:
                if status == 200:
                    return answer
                self._tally.wrong(str(status))
                if status in (500, 502, 504):
                    return None
                if status not in (429, 503):
                    raise RuntimeError(f"{status}: {answer[:300]!r}")
                wait = float(headers.get("retry-after", RETRY))
            await asyncio.sleep(wait)

    async def _once(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._place)
        reader, writer = self._streams
        host = f"{self._place[0]}:{self._place[1]}"
        writer.write(
            f"POST {self._path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            answer = b"".join([part async for part in _chunks(reader)])
        else:
            answer = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection", "").lower() == "close":
            await self._close()
        return int(head[0].split()[1]), headers, answer

    async def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _chunks(reader: asyncio.StreamReader) -> Any:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")


async def load(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job: {host, port, path, work: a file with a JSON line of requests for each client, warm, seconds, patience}."""
    work = [json.loads(line) for line in Path(job["work"]).read_text(encoding="utf-8").splitlines()]
    now = time.perf_counter()
    tally = Tally(began=now + job["warm"], ends=now + job["warm"] + job["seconds"])
    place = (job["host"], job["port"])
    clients = [Client(place, job["path"], one, tally) for one in work]
    processor = time.process_time()
    failure = None
    try:
        async with (
            asyncio.timeout(job["warm"] + job["seconds"] + job["patience"]),
            asyncio.TaskGroup() as group,
        ):
            for one in clients:
                group.create_task(one.run())
    except TimeoutError:
        failure = f"requests without an answer {job['patience']:g} s after the end"
    except ExceptionGroup as errors:
        failure = str(errors.exceptions[0])
    return {
        "requests": tally.requests,
        "solutions": tally.solutions,
        "seconds": job["seconds"],
        "latencies": sorted(tally.latencies),
        "errors": tally.errors,
        "asked": [one.asked for one in clients],
        "answers": [one.answers for one in clients],
        "failure": failure,
        "processor": time.process_time() - processor,
        "wall": time.perf_counter() - now,
    }


if __name__ == "__main__":
    answer_jobs(load)
