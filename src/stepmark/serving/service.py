"""A server's life: it loads, it serves, it drains; and what it serves with."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, final

from stepmark.metrics.aggregate import resolve_aggregate
from stepmark.models.prm import PRM, Grade
from stepmark.models.remote.wire import ModelEntry, PRMFacts
from stepmark.serving.backend import backend_of
from stepmark.serving.batcher import Batcher
from stepmark.serving.errors import Refused, retry
from stepmark.serving.sessions import Sessions
from stepmark.serving.settings import DEFAULTS, ServerSettings

if TYPE_CHECKING:
    from fastapi import APIRouter

ARRIVED = "stepmark.arrived"
"""The ASGI scope's key for when a request arrived, on the service's clock; the guard sets it."""

State = Literal["loading", "ready", "draining", "failed"]
_DEFAULT_BUDGET = 4096
_LOADING_RETRY = 5.0
_DRAINING_RETRY = 2.0


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Live:
    """A PRM that is loaded, and what serves it."""

    name: str
    """What clients call it."""
    prm: PRM
    batcher: Batcher
    sessions: Sessions
    grade: Grade
    """How step scores become verdicts where a request does not say."""
    facts: PRMFacts
    created: int
    """When it was loaded, in Unix time."""

    @property
    def entry(self) -> ModelEntry:
        """As /v1/models lists it."""
        return ModelEntry(
            id=self.name, created=self.created, max_model_len=self.facts.max_tokens, stepmark=self.facts
        )


class Extension(Protocol):
    """More that a server does with its PRM, at addresses of its own."""

    @property
    def router(self) -> APIRouter:
        """Its routes."""

    def load(self, prm: PRM) -> None:
        """Load what it needs, in the thread that has just loaded the PRM.

        Raises:
            StepmarkError: it cannot be loaded; the server then ends with that error.
        """

    async def start(self, live: Live) -> Sequence[ModelEntry]:
        """Begin to serve; gives what /v1/models lists of it."""

    async def stop(self) -> None:
        """End. What it asks of the batcher is refused from here on."""


@final
class Service:
    """What the routes and the guard share.

    Args:
        load: makes the PRM; called once, in a thread of its own.
        settings: limits.
        extensions: what else is served.
        log: takes lines for the operator; None for silence.
        log_requests: a line for each request too.
        clock: seconds, for deadlines.
    """

    def __init__(
        self,
        load: Callable[[], PRM],
        settings: ServerSettings = DEFAULTS,
        *,
        extensions: Sequence[Extension] = (),
        log: Callable[[str], None] | None = None,
        log_requests: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.extensions, self.clock = settings, extensions, clock
        self.splitter = ThreadPoolExecutor(1, thread_name_prefix="stepmark-split")
        """Splits texts into steps, and runs exact checks."""
        self.live: Live | None = None
        """What is served; None until it is loaded."""
        self.models: list[ModelEntry] = []
        """What /v1/models lists."""
        self.error: BaseException | None = None
        """Why it could not be loaded."""
        self.log_requests = log_requests
        self.when_loaded: Callable[[asyncio.Task[None]], object] | None = None
        """Called once the PRM is served, or could not be loaded (`error`)."""
        self._load, self._log = load, log
        self._built: Live | None = None
        self._draining = False
        self._loading: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        """Where it is in its life."""
        if self.error is not None:
            return "failed"
        if self._draining:
            return "draining"
        return "loading" if self.live is None else "ready"

    def log(self, line: str) -> None:
        """Tell the operator."""
        if self._log is not None:
            self._log(line)

    def need(self) -> Live:
        """What is served.

        Raises:
            Refused: 503, with Retry-After: it is not loaded, or takes nothing new.
        """
        if self.state == "ready" and self.live is not None:
            return self.live
        if self.state == "loading":
            raise Refused(
                "unavailable",
                "the model is loading; /ready says when it is there",
                headers=retry(_LOADING_RETRY),
            )
        why = "the model could not be loaded" if self.state == "failed" else "the server is shutting down"
        raise Refused("unavailable", why, headers=retry(_DRAINING_RETRY))

    def start(self) -> asyncio.Task[None]:
        """Begin to load; the task ends when it serves.

        Raises:
            StepmarkError: out of the task, what `load` raised.
        """
        if self._loading is None:
            self._loading = asyncio.create_task(self._begin())
            # Its error is `error` too; nobody need wait for the task.
            self._loading.add_done_callback(lambda task: task.cancelled() or task.exception())
            if self.when_loaded is not None:
                self._loading.add_done_callback(self.when_loaded)
        return self._loading

    def stop(self) -> asyncio.Task[None]:
        """Take nothing new, finish what is in work within the time of grace, and end; a second call is the same."""
        if self._stopping is None:
            self._draining = True
            self._stopping = asyncio.create_task(self._end())
        return self._stopping

    async def _begin(self) -> None:
        try:
            prm = await _in_thread(self._loaded)
            live = self._built = await self._lively(prm)
            models = [live.entry]
            for extension in self.extensions:
                models += await extension.start(live)
        except BaseException as error:
            self.error = error
            raise
        self.models, self.live = models, live

    def _loaded(self) -> PRM:
        prm = self._load()
        for extension in self.extensions:
            extension.load(prm)
        return prm

    async def _lively(self, prm: PRM) -> Live:
        settings = self.settings
        grade = Grade(aggregate=settings.aggregate, threshold=settings.threshold, checks=settings.checks).of(
            prm
        )
        budget = settings.token_budget or _engine_budget(prm) or _DEFAULT_BUDGET
        backend = backend_of(prm, memory_tokens=settings.memory_tokens)
        batcher = Batcher(
            backend, token_budget=budget, queue_tokens=settings.queue_tokens or 32 * budget, clock=self.clock
        )
        await batcher.start()
        name = settings.name or served_name(prm.name)
        identity = prm.identity
        facts = PRMFacts(
            version=version("stepmark"),
            identity=name + identity.removeprefix(prm.name),
            score_kind=prm.score_kind,
            default_aggregate=resolve_aggregate(grade.aggregate, prm.default_aggregate, prm.score_kind),
            default_threshold=grade.threshold,
            default_checks=grade.checks,
            family=_family(prm),
            max_tokens=backend.max_tokens,
            sessions=backend.incremental,
            pooling=backend.pooling,
            max_solutions=settings.max_solutions,
            max_body=settings.max_body,
            session_nodes=settings.session_nodes,
        )
        return Live(
            name=name,
            prm=prm,
            batcher=batcher,
            sessions=Sessions(
                batcher,
                limit=settings.sessions,
                nodes=settings.session_nodes,
                memory=settings.session_memory,
                idle=settings.session_idle,
            ),
            grade=grade,
            facts=facts,
            created=int(time.time()),
        )

    async def _end(self) -> None:
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
            await asyncio.wait([self._loading])
            # Not a failure: nobody waits for it any more.
            self.error = None
        if self._built is not None:
            await self._built.batcher.stop(grace=self.settings.grace)
            self._built.sessions.end_all()
            for extension in self.extensions:
                await extension.stop()
        self.splitter.shutdown(wait=False)


async def _in_thread(make: Callable[[], PRM]) -> PRM:
    """Run it in a daemon thread: loading cannot be interrupted, and a server that stops must not wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[PRM] = loop.create_future()

    def deliver(result: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if done.done() else result())

    def run() -> None:
        try:
            prm = make()
        except BaseException as error:
            failure = error
            deliver(lambda: done.set_exception(failure))
        else:
            deliver(lambda: done.set_result(prm))

    threading.Thread(target=run, name="stepmark-load", daemon=True).start()
    return await done


def served_name(name: str) -> str:
    """A PRM's name for clients: of a folder only the last part, so that paths of this machine are not shown."""
    path = Path(name).expanduser()
    if not name.startswith(("http://", "https://")) and (path.is_absolute() or path.exists()):
        return path.resolve().name or name
    return name


def _engine_budget(prm: PRM) -> int | None:
    if "torch" not in sys.modules:  # without it no PRM computes in this process
        return None
    from stepmark.models.local import HeadPRM, ImplicitPRM

    if isinstance(prm, HeadPRM):
        return prm.engine.token_budget
    return prm.policy[0].token_budget if isinstance(prm, ImplicitPRM) else None


def _family(prm: PRM) -> str | None:
    if "torch" not in sys.modules:
        return None
    from stepmark.models.local import WindowedPRM

    return prm.spec.family if isinstance(prm, WindowedPRM) else None
