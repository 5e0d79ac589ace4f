"""What a server serves with: the PRM, its batcher and sessions, and how the server ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, final

from stepmark.metrics.aggregate import resolve_aggregate
from stepmark.models.prm import PRM, Grade
from stepmark.models.remote.wire import ModelEntry, PRMFacts
from stepmark.serving.backend import backend_of
from stepmark.serving.batcher import Batcher
from stepmark.serving.errors import Refused, retry
from stepmark.serving.sessions import Sessions
from stepmark.serving.settings import DEFAULTS, ServerSettings
from stepmark.version import __version__

if TYPE_CHECKING:
    from fastapi import APIRouter

ARRIVED = "stepmark.arrived"
"""The ASGI scope's key for when a request arrived, on the service's clock; the guard sets it."""

_DEFAULT_BUDGET = 4096


@final
class Service:
    """What the routes and the guard share. `await start()` before the first request.

    Args:
        prm: what is served.
        settings: limits.
        log: takes lines for the operator; None for silence.
        log_requests: a line for each request too.
        clock: seconds, for deadlines.

    Raises:
        UsageError: settings that do not fit the PRM.
    """

    def __init__(
        self,
        prm: PRM,
        settings: ServerSettings = DEFAULTS,
        *,
        log: Callable[[str], None] | None = None,
        log_requests: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.prm, self.settings, self.clock = prm, settings, clock
        self.log: Callable[[str], None] = log or (lambda line: None)
        self.log_requests = log_requests
        self.name = settings.name or served_name(prm.name)
        """What clients call the PRM."""
        self.grade = Grade(
            aggregate=settings.aggregate, threshold=settings.threshold, checks=settings.checks
        ).of(prm)
        """How step scores become verdicts where a request does not say."""
        own_budget, family = _engine_facts(prm)
        budget = settings.token_budget or own_budget or _DEFAULT_BUDGET
        backend = backend_of(prm, memory_tokens=settings.memory_tokens)
        self.batcher = Batcher(
            backend, token_budget=budget, queue_tokens=settings.queue_tokens or 32 * budget, clock=clock
        )
        self.sessions = Sessions(
            self.batcher,
            limit=settings.sessions,
            nodes=settings.session_nodes,
            memory=settings.session_memory,
        )
        self.splitter = ThreadPoolExecutor(1, thread_name_prefix="stepmark-split")
        """Splits texts into steps, and runs exact checks."""
        self.facts = PRMFacts(
            version=__version__,
            identity=self.name + prm.identity.removeprefix(prm.name),
            score_kind=prm.score_kind,
            default_aggregate=resolve_aggregate(self.grade.aggregate, prm.default_aggregate, prm.score_kind),
            default_threshold=self.grade.threshold,
            default_checks=self.grade.checks,
            family=family,
            max_tokens=backend.max_tokens,
            sessions=backend.incremental,
            pooling=backend.pooling,
            max_solutions=settings.max_solutions,
            max_body=settings.max_body,
            session_nodes=settings.session_nodes,
        )
        self.created = int(time.time())
        """Unix time."""
        self.models = [
            ModelEntry(
                id=self.name, created=self.created, max_model_len=self.facts.max_tokens, stepmark=self.facts
            )
        ]
        """What /v1/models lists."""
        self.routers: list[APIRouter] = []
        """Further addresses."""
        self.closing: list[Callable[[], Awaitable[None]]] = []
        """What else ends with the server."""
        self._stopping: asyncio.Task[None] | None = None

    @property
    def draining(self) -> bool:
        """Whether the server shuts down."""
        return self._stopping is not None

    def check_open(self) -> None:
        """Refuse what is new while the server shuts down.

        Raises:
            Refused: 503, with Retry-After.
        """
        if self.draining:
            raise Refused("unavailable", "the server is shutting down", headers=retry(2.0))

    async def start(self) -> None:
        """Begin to compute."""
        await self.batcher.start()

    def stop(self) -> asyncio.Task[None]:
        """Take nothing new, finish what is in work within the time of grace, and end; a second call is the same."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._end())
        return self._stopping

    async def _end(self) -> None:
        await self.batcher.stop(grace=self.settings.grace)
        self.sessions.end_all()
        for close in self.closing:
            await close()
        self.splitter.shutdown(wait=False)


def served_name(name: str) -> str:
    """A PRM's name for clients: of a folder only the last part, so that paths of this machine are not shown."""
    path = Path(name).expanduser()
    if not name.startswith(("http://", "https://")) and (path.is_absolute() or path.exists()):
        return path.resolve().name or name
    return name


def _engine_facts(prm: PRM) -> tuple[int | None, str | None]:
    """The token budget and the family of a PRM that computes in this process."""
    if "torch" not in sys.modules:  # without it no PRM does
        return None, None
    from stepmark.models.local import LocalPRM, WindowedPRM

    family = prm.spec.family if isinstance(prm, WindowedPRM) else None
    return prm.engines[0].token_budget if isinstance(prm, LocalPRM) else None, family
