"""Scores of graded traces sent to the tracer that they are from: Langfuse, LangSmith or Phoenix.

Addresses and keys are those of the tracers' own environment variables:

| target | address | keys |
| --- | --- | --- |
| `langfuse-scores` | `LANGFUSE_BASE_URL` (or `LANGFUSE_HOST`), else https://cloud.langfuse.com | `LANGFUSE_PUBLIC_KEY`, `LANGFUSE_SECRET_KEY` |
| `langsmith-feedback` | `LANGSMITH_ENDPOINT`, else https://api.smith.langchain.com | `LANGSMITH_API_KEY`; `LANGSMITH_WORKSPACE_ID`, if set |
| `phoenix-annotations` | `PHOENIX_ENDPOINT` (or `PHOENIX_COLLECTOR_ENDPOINT`), else http://localhost:6006 | `PHOENIX_API_KEY`, if set |
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from stepmark.data.labelled import convert
from stepmark.data.reading import Source
from stepmark.data.trace_scores import SCORES
from stepmark.errors import BackendError, UsageError
from stepmark.models.http import DeclinedError, Patience, Server
from stepmark.progress import Progress
from stepmark.registry import unknown_name
from stepmark.words import amount

_TOGETHER = 100
"""Annotations in one request of Phoenix."""

Body = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreEndpoint:
    """Where scores are sent, and how."""

    address: str
    headers: Mapping[str, str]
    keys: str
    """The environment variables with its keys, for errors."""
    requests: Callable[[Iterable[Body]], Iterator[tuple[str, Body, int]]]
    """The requests that carry bodies: the path, the request's body, and how many scores it holds."""


def endpoint(to: str, environment: Mapping[str, str] | None = None) -> ScoreEndpoint:
    """The endpoint of a target.

    Args:
        to: a name of `data.trace_scores.SCORES`.
        environment: environment variables; None for this process's own.
    """
    known = os.environ if environment is None else environment
    if to not in _ENDPOINTS:
        raise unknown_name("target of scores", to, SCORES)
    return _ENDPOINTS[to](known)


def push_scores(source: Source, to: str, *, transport: httpx.BaseTransport | None = None) -> str:
    """Send the scores of graded traces.

    Args:
        source: what `stepmark grade` wrote of traces.
        to: a name of `data.trace_scores.SCORES`.
        transport: sends requests; None for the network.

    Returns:
        What was sent, in one line.

    Raises:
        UnknownNameError: no such target.
        UsageError: a variable with a key is not set.
        InputError: no graded trace whose calls have ids.
        BackendError: the server failed or declined; the message says how many scores it has. Sending again replaces those that have an id there.
    """
    place = endpoint(to)
    converted = convert(source, to)
    bodies = list(converted)
    progress = Progress(len(bodies), tokens=lambda: 0, verb="sent", noun="score")
    sent = 0
    with Server(place.address, patience=Patience(), headers=place.headers, transport=transport) as server:
        for path, body, count in place.requests(bodies):
            try:
                server.ask(path, body, lambda reply: reply)
            except (DeclinedError, BackendError) as error:
                hint = ""
                if isinstance(error, DeclinedError) and error.status in (401, 403):
                    hint = f"; its keys are those of {place.keys}"
                why = (
                    f"{place.address}{path.partition('?')[0]}: {error}"
                    if isinstance(error, DeclinedError)
                    else str(error)
                )
                raise BackendError(
                    f"{why}{hint}. {amount(sent, 'score')} of {len(bodies):,} were sent; push the graded file again to send them all"
                ) from None
            sent += count
            for _ in range(count):
                progress.advance()
    left = (
        f"; left out {amount(len(converted.refused), 'row')}: {converted.refused[0]}"
        if converted.refused
        else ""
    )
    return f"sent {amount(sent, 'score')} to {place.address} ({to}){left}"


def _needed(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise UsageError(
            f"the environment variable {name} is not set: it holds a key of the server that scores are sent to"
        )
    return value


def _first(environment: Mapping[str, str], names: Iterable[str], default: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), default).rstrip("/")


def _each(path: str) -> Callable[[Iterable[Body]], Iterator[tuple[str, Body, int]]]:
    return lambda bodies: ((path, body, 1) for body in bodies)


def _langfuse(environment: Mapping[str, str]) -> ScoreEndpoint:
    names = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
    pair = ":".join(_needed(environment, name) for name in names)
    return ScoreEndpoint(
        address=_first(environment, ("LANGFUSE_BASE_URL", "LANGFUSE_HOST"), "https://cloud.langfuse.com"),
        headers={"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"},
        keys=" and ".join(names),
        requests=_each("/api/public/scores"),
    )


def _langsmith(environment: Mapping[str, str]) -> ScoreEndpoint:
    workspace = environment.get("LANGSMITH_WORKSPACE_ID")
    return ScoreEndpoint(
        address=_first(
            environment, ("LANGSMITH_ENDPOINT", "LANGCHAIN_ENDPOINT"), "https://api.smith.langchain.com"
        ),
        headers={
            "X-API-Key": _needed(environment, "LANGSMITH_API_KEY"),
            **({"X-Tenant-Id": workspace} if workspace else {}),
        },
        keys="LANGSMITH_API_KEY",
        requests=_each("/feedback"),
    )


def _phoenix(environment: Mapping[str, str]) -> ScoreEndpoint:
    key = environment.get("PHOENIX_API_KEY")

    def requests(bodies: Iterable[Body]) -> Iterator[tuple[str, Body, int]]:
        by_kind: dict[str, list[Body]] = {"span": [], "trace": []}
        for body in bodies:
            by_kind["trace" if "trace_id" in body else "span"].append(body)
        for kind, listed in by_kind.items():
            for start in range(0, len(listed), _TOGETHER):
                data = listed[start : start + _TOGETHER]
                # Answered when they are stored, so that a span that is not there is an error here.
                yield f"/v1/{kind}_annotations?sync=true", {"data": data}, len(data)

    return ScoreEndpoint(
        address=_first(
            environment, ("PHOENIX_ENDPOINT", "PHOENIX_COLLECTOR_ENDPOINT"), "http://localhost:6006"
        ),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        keys="PHOENIX_API_KEY",
        requests=requests,
    )


_ENDPOINTS: Mapping[str, Callable[[Mapping[str, str]], ScoreEndpoint]] = {
    "langfuse-scores": _langfuse,
    "langsmith-feedback": _langsmith,
    "phoenix-annotations": _phoenix,
}
