"""The mixed traffic of `benchmarks.serve_soak`: what clients ask, and all that clients do wrong."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import httpx

from benchmarks.serve_work import requests


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
        work = requests("shared", number, f"soak {self._seed}")
        deeds: list[tuple[Callable[..., Coroutine[Any, Any, None]], float]] = [
            (self._score, 6),
            (self._rank, 2),
            (self._session, 2),
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
        await self._post("rank", "/v1/rank", {"problem": bodies[0]["problem"], "candidates": texts})

    async def _session(self, bodies: list[dict[str, Any]], dice: random.Random) -> None:
        """Prefixes that grow; some are released, every second session is left open."""
        opened = await self._post("open", "/v1/sessions", {"problem": bodies[0]["problem"]})
        if opened.status_code != 200:
            return
        at = f"/v1/sessions/{opened.json()['id']}"
        node = None
        for text in bodies[0]["steps"]:
            steps = [{"after": node, "text": text}, {"after": node, "text": f"{text} Yes."}]
            answer = await self._post("extend", f"{at}/steps", {"steps": steps})
            if answer.status_code != 200:
                return
            results = answer.json()["results"]
            node = results[0].get("node")
            if node is None:
                return
            if "node" in results[1]:
                await self._post("release", f"{at}/release", {"nodes": [results[1]["node"]]})
        if dice.random() < 0.5:
            self.sent += 1
            self.answers[f"close {(await self._http.delete(at)).status_code}"] += 1

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
                ("/v1/sessions/none-such/steps", {"steps": [{"text": "a"}]}),
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
        path = dice.choice(["/v1/models", "/docs", "/openapi.json", "/health", "/ready"])
        self.sent += 1
        self.answers[f"look {(await self._http.get(path)).status_code}"] += 1
