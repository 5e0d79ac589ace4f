"""Many annotators who click without pause, in one process: the load that both label servers of `benchmarks.annotate` get.

`python -m benchmarks.annotate_load`, a job as one JSON line on its standard input, then the result as one JSON line on its standard output. Each
annotator has one connection and sends the next click when the last one is acknowledged (a closed loop). A click is one POST with one step's
reward. What a click costs is counted from the moment at which the annotator clicks until the whole answer has come, reconnecting included where the
server closes connections. An unanswered click is sent again, as the page does, until it is acknowledged.

It speaks just enough HTTP/1.1 to cost little: `processor` in the result is its own processor time.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.jobs import answer_jobs

Click = tuple[bytes, str | None]
"""A whole request, and the name of the label that it stores: "user item step"; None for a request that stores none."""
Clicks = Generator[Click, tuple[int, bytes], None]

RETRY = 0.25
"""Seconds until a refused connection is tried again."""


def request(
    method: str, path: str, host: str, headers: dict[str, str], body: dict[str, Any] | None = None
) -> bytes:
    """One HTTP request."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{k}: {v}" for k, v in headers.items())]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def rating(step: int) -> int:
    """What everyone says of a step."""
    return -1 if step % 3 == 2 else 1


def stepmark_clicks(host: str, user: dict[str, Any]) -> Clicks:
    """An annotator of stepmark: the next item, a rating for each of its steps, submitted, the next item."""
    headers, name = user["headers"], user["name"]
    path = "/api/next"
    while True:
        status, body = yield request("GET", path, host, headers), None
        given = json.loads(body)
        if status != 200 or given["item"] is None:
            raise RuntimeError(f"{name} got no item: {status} {body[:200]!r}")
        item, version = given["item"]["id"], given["version"]
        # What an earlier turn left: no step is rated twice.
        rated = sum(change["kind"] == "rate" for change in given["changes"])
        changes: list[dict[str, Any]] = [
            {"kind": "rate", "step": step, "rating": rating(step)}
            for step in range(rated, len(given["item"]["steps"]))
        ]
        for change in [*changes, {"kind": "submit"}]:
            sent = {
                "item": item,
                "id": str(uuid.uuid4()),
                "version": version,
                "change": change,
                "seconds": 1.0,
            }
            label = f"{name} {item} {change['step']}" if change["kind"] == "rate" else None
            status, body = yield request("POST", "/api/changes", host, headers, sent), label
            version += 1
            if status != 200 or not body.startswith(b'{"version":%d,' % version):
                raise RuntimeError(
                    f"{name}, {item}: expected version {version}, found {status} {body[:200]!r}"
                )
        path = f"/api/next?after={item}"


def potato_clicks(host: str, user: dict[str, Any]) -> Clicks:
    """An annotator of Potato: for each of their items a reward for each step; after each the page sends the whole item.

    Going on to the next item is not asked of the server, which makes a page for it: that is in Potato's favour.
    """
    headers, name = user["headers"], user["name"]
    for item in user["items"]:
        steps = [
            {
                "index": step,
                "reward": 0,
                "source": None,
                "verified": False,
                "ai_reward": None,
                "ai_reasoning": "",
                "confidence": None,
            }
            for step in range(user["steps"])
        ]
        for step, entry in enumerate(steps):
            entry |= {"reward": rating(step), "source": "human", "verified": True}
            said = json.dumps({"steps": steps, "mode": "per_step"})
            body = {
                "instance_id": item,
                "annotations": {"step_rewards:step_rewards": said},
                "span_annotations": [],
                "client_timestamp": "2026-01-01T00:00:00.000Z",
            }
            status, answer = yield (
                request("POST", "/updateinstance", host, headers, body),
                f"{name} {item} {step}",
            )
            if status != 200 or b'"success"' not in answer:
                raise RuntimeError(f"{name}, {item}: {status} {answer[:200]!r}")
    raise RuntimeError(f"{name} ran out of items")


@dataclass(slots=True)
class Tally:
    """What all annotators came to."""

    began: float
    """When counting begins (`time.perf_counter`)."""
    ends: float
    latencies: list[float] = field(default_factory=list)
    """Seconds of each label acknowledged in the counted time."""
    acknowledged: list[str] = field(default_factory=list)
    """The names of all labels acknowledged at any time."""
    again: int = 0
    """Requests that were sent again because the connection broke."""
    failure: str | None = None


class Annotator(asyncio.Protocol):
    """One annotator and their connection."""

    def __init__(self, place: tuple[str, int], clicks: Clicks, tally: Tally) -> None:
        self._place, self._clicks, self._tally = place, clicks, tally
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._request, self._label = next(clicks)
        self._clicked = time.perf_counter()
        self._waiting = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Connect; a server that is not there is tried again."""
        asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        while not self.done.done():
            try:
                await asyncio.get_running_loop().create_connection(lambda: self, *self._place)
                return
            except OSError:
                if time.perf_counter() > self._tally.ends + 30:
                    self._stop("the server is not there")
                await asyncio.sleep(RETRY)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Click."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._buffer = transport, b""
        if self._waiting:
            self._tally.again += 1
        self._waiting = True
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count an answer and click again."""
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        if at < 0:
            self._stop(f"an answer without a length: {head[:200]!r}")
            return
        length = int(lower[at + 15 :].split(b"\r\n", 1)[0])
        if len(body) < length:
            return
        self._buffer = b""
        self._waiting = False
        now, tally = time.perf_counter(), self._tally
        status = int(head[9:12])
        if status in (429, 503):  # the page sends it again
            self._waiting = True
            asyncio.get_running_loop().call_later(RETRY, self._again)
            return
        if self._label is not None and status == 200:
            tally.acknowledged.append(self._label)
            if tally.began <= now < tally.ends:
                tally.latencies.append(now - self._clicked)
        try:
            self._request, self._label = self._clicks.send((status, body))
        except (RuntimeError, ValueError, StopIteration) as error:
            self._stop(str(error))
            return
        if now >= tally.ends:
            self._stop(None)
            return
        self._clicked = now
        if b"connection: close" in lower or lower.startswith(b"http/1.0"):
            assert self._transport is not None
            self._transport.close()  # connection_lost comes, and connects again
        else:
            self._waiting = True
            assert self._transport is not None
            self._transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        """Connect again, unless done."""
        if not self.done.done():
            self.start()

    def _again(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._tally.again += 1
            self._transport.write(self._request)

    def _stop(self, failure: str | None) -> None:
        self._tally.failure = self._tally.failure or failure
        if not self.done.done():
            self.done.set_result(None)
        if self._transport is not None:
            self._transport.close()


KINDS = {"stepmark": stepmark_clicks, "potato": potato_clicks}


async def load(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job: {kind, host, port, users: [{name, headers, …}], warm, seconds}."""
    place = (job["host"], job["port"])
    now = time.perf_counter()
    tally = Tally(began=now + job["warm"], ends=now + job["warm"] + job["seconds"])
    make = KINDS[job["kind"]]
    annotators = [Annotator(place, make(f"{place[0]}:{place[1]}", user), tally) for user in job["users"]]
    processor = time.process_time()
    for one in annotators:
        one.start()
    await asyncio.wait(
        [one.done for one in annotators], timeout=job["warm"] + job["seconds"] + job["patience"]
    )
    stuck = sum(not one.done.done() for one in annotators)
    return {
        "labels": len(tally.latencies),
        "seconds": job["seconds"],
        "latencies": sorted(tally.latencies),
        "acknowledged": tally.acknowledged,
        "again": tally.again,
        "stuck": stuck,
        "failure": tally.failure,
        "processor": time.process_time() - processor,
        "wall": time.perf_counter() - now,
    }


if __name__ == "__main__":
    answer_jobs(load)
