"""A score server in this process, without a port, and a client at it; every answer is held against the OpenAPI document."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs fastapi: pip install stepmark[serve]")

from fastapi import FastAPI

from stepmark.models.prm import PRM
from stepmark.models.scripted import ScriptedPRM
from stepmark.serving.app import serve_in_process
from stepmark.serving.guard import Keys
from stepmark.serving.settings import DEFAULTS, ServerSettings

PROBLEM = "A bakery bakes 12 trays of 8 rolls and sells 70. How many are left?"


def sums(problem: str, steps: tuple[str, ...]) -> float:
    """0.9 where "a * b = c" or the like is true, 0.2 where it is not."""
    a, sign, b, _, right = steps[-1].split()[:5]
    found = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
    return 0.9 if found == int(right) else 0.2


def prm(**more: Any) -> ScriptedPRM:
    """Knows sums."""
    return ScriptedPRM(more.pop("script", sums), name=more.pop("name", "sums"), **more)


def documented(document: dict[str, Any], method: str, path: str, status: int) -> bool:
    """Whether the document knows that a route may give that status; True for what is no route."""
    for template, methods in document["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            route = methods.get(method.lower())
            return route is None or bool({str(status), "default"} & set(route["responses"]))
    return True


_document: list[dict[str, Any]] = []
"""It is the same of all servers without keys."""


@asynccontextmanager
async def site(
    model: PRM, settings: ServerSettings = DEFAULTS, *, keys: Keys | None = None, **more: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, FastAPI]]:
    """The server and a client."""
    async with serve_in_process(model, settings, keys=keys, **more) as app:
        if not _document:
            _document.append(app.openapi())
        [document] = _document

        async def check(answer: httpx.Response) -> None:
            request = answer.request
            assert documented(document, request.method, request.url.path, answer.status_code), (
                f"{request.method} {request.url.path} gave {answer.status_code}, which its document does not say"
            )

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://stepmark", event_hooks={"response": [check]}
        ) as client:
            yield client, app


def talk(
    conversation: Callable[[httpx.AsyncClient], Awaitable[None]],
    model: PRM | None = None,
    settings: ServerSettings = DEFAULTS,
    **more: Any,
) -> None:
    """Have a conversation with a server that was made for it."""

    async def whole() -> None:
        async with site(prm() if model is None else model, settings, **more) as (client, _):
            await conversation(client)

    asyncio.run(whole())
