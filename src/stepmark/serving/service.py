"""What a server serves with: the PRM, its batcher and metrics, perhaps a chat model, and how the server ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

from stepmark.models.policies import Policy
from stepmark.models.prm import PRM, Grade
from stepmark.models.remote.wire import ModelEntry, PRMFacts
from stepmark.serving.backend import backend_of
from stepmark.serving.batcher import Batcher
from stepmark.serving.errors import Refused
from stepmark.serving.metrics import Metrics
from stepmark.serving.settings import CHAT, DEFAULTS, ChatModel, ServerSettings
from stepmark.verifiers.base import BatchVerifier, Verifier, load_verifier
from stepmark.version import __version__

_DEFAULT_BUDGET = 4096


@final
class Service:
    """What the routes and the guard share. `await start()` before the first request.

    Args:
        prm: what is served.
        settings: limits.
        policy: of the chat model; None: the PRM alone is served.
        chat: how it answers as a chat model.
        log: takes lines for the operator; None for silence.
        log_requests: a line for each request too.

    Raises:
        UsageError: settings that do not fit the PRM.
    """

    def __init__(
        self,
        prm: PRM,
        settings: ServerSettings = DEFAULTS,
        *,
        policy: Policy | None = None,
        chat: ChatModel = CHAT,
        log: Callable[[str], None] | None = None,
        log_requests: bool = True,
    ) -> None:
        self.prm, self.settings, self.policy, self.chat = prm, settings, policy, chat
        self.log: Callable[[str], None] = log or (lambda line: None)
        self.log_requests = log_requests
        self.name = settings.name or served_name(prm.name)
        """What clients call the PRM."""
        self.grade = Grade(
            aggregate=settings.aggregate, threshold=settings.threshold, checks=settings.checks
        ).of(prm)
        """How step scores become verdicts where a request does not say."""
        budget = settings.token_budget or _own_budget(prm) or _DEFAULT_BUDGET
        backend = backend_of(prm, memory_tokens=settings.memory_tokens)
        self.metrics = Metrics()
        self.batcher = Batcher(
            backend,
            token_budget=budget,
            queue_tokens=settings.queue_tokens or 32 * budget,
            metrics=self.metrics,
        )
        self.metrics.add_prm(self.name, __version__, prm.score_kind, prm.ledger, lambda: backend.memory)
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="stepmark-split")
        """Splits texts into steps, and runs exact checks."""
        facts = PRMFacts(
            version=__version__,
            identity=self.name + prm.identity.removeprefix(prm.name),
            score_kind=prm.score_kind,
            default_aggregate=self.grade.aggregate or prm.default_aggregate,
            default_threshold=self.grade.threshold,
            default_checks=self.grade.checks,
            max_tokens=backend.max_tokens,
            prefix_cache=backend.caches,
            pooling=backend.pooling,
            max_solutions=settings.max_solutions,
        )
        created = int(time.time())
        self.models = [
            ModelEntry(id=self.name, created=created, max_model_len=facts.max_tokens, stepmark=facts)
        ]
        """What /v1/models lists."""
        self.verifier: BatchVerifier | None = None
        self._checker: Verifier | None = None
        self.searches = 0
        """Searches of the chat model that run now."""
        if policy is not None:
            self._checker = load_verifier(chat.verifier, isolation=chat.isolation)
            self.verifier = BatchVerifier(self._checker)
            self.models.append(ModelEntry(id=chat.search, created=created))
        self._stopping: asyncio.Task[None] | None = None

    @property
    def draining(self) -> bool:
        """Whether the server shuts down."""
        return self._stopping is not None

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
        self.threads.shutdown(wait=False)
        if self._checker is not None:
            await asyncio.to_thread(self._checker.close)


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Cancel what is done here when its time is over.

    Raises:
        Refused: it is (504).
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise Refused("deadline", f"the answer was not ready within {seconds:g} s") from None


def served_name(name: str) -> str:
    """A PRM's name for clients: of a folder only the last part, so that paths of this machine are not shown."""
    path = Path(name).expanduser()
    if not name.startswith(("http://", "https://")) and (path.is_absolute() or path.exists()):
        return path.resolve().name or name
    return name


def _own_budget(prm: PRM) -> int | None:
    """The token budget of a PRM that computes in this process."""
    if "torch" not in sys.modules:  # without it no PRM does
        return None
    from stepmark.models.local_prm import LocalPRM

    return prm.engines[0].token_budget if isinstance(prm, LocalPRM) else None
