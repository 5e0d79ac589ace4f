"""Work spread over a Ray cluster: actors, each with its own models.

What travels, by Ray's own means (pickle, between processes of this program): the name of the function that builds the answerers with its
settings as JSON; requests; replies. No model, no file, no code. Every node has the same stepmark installed, and the cluster is trusted:
anyone who can reach its ports can run code on it.

Nothing here decides a result: tasks, their order and the cache stay with the caller, and each request names everything that shapes its reply. Requests travel in chunks, one chunk a worker at a time. Ray places the workers and restarts those that die. The chunk
of a worker that died is asked again request by request, so that a request that kills its worker (it does not fit into memory, say) is
found, and named after three workers.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Annotated, Any, final

from pydantic import Field

from stepmark.backends.base import BatchPolicy, BatchScorer, Completing, Ready, Release, batched, many
from stepmark.backends.requests import (
    ChoiceLogprobs,
    Completion,
    Completions,
    ScoreRequest,
    ScoreSolution,
    StepScore,
    VerdictRequest,
)
from stepmark.errors import BackendError, InputError, MissingExtraError, StepmarkError, UsageError
from stepmark.records import StepScores, Verdict
from stepmark.settings import settings
from stepmark.show.text import amount
from stepmark.version import __version__

Fact = str | int | float | bool | None
Request = Completions | ChoiceLogprobs | VerdictRequest | ScoreRequest | Release
Ask = Request | ScoreSolution
"""What a worker may be asked."""
Reply = Sequence[Completion] | Sequence[float] | Verdict | StepScore | StepScores | InputError
"""What it gives for one request."""

DEATHS = 3
"""Workers that one request may kill, and times that a worker may die before it is ready."""
LARGEST = 64
"""Samples, or solutions, in the largest chunk."""
_SMALLEST = 8
"""Solutions in a chunk at least, however few there are: they are read together."""
_CHUNKS_A_WORKER = 3
_WHOLE_PROBLEM = 4 * LARGEST
"""Solutions of one problem that are still one chunk."""
_CHARACTERS = 1 << 20
"""Of the solutions in a chunk, after which it ends."""
_PATIENCE = 120.0
"""Seconds that a run without any worker waits for a node with room for one."""

Chunk = dict[int, Ask]
"""Requests for one worker, by their place in the round."""


@settings
class Cluster:
    """A Ray cluster, and what each of its workers is given. They decide no result: a run may be continued with others or without."""

    ray: str | None = None
    """Spread the work over a Ray cluster: auto (the one this machine is in), HOST:PORT, ray://HOST:PORT, or local."""
    ray_workers: Annotated[int, Field(ge=1)] | None = None
    """Workers on the cluster, each with its own models. Default: as many as have room now."""
    ray_cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1
    """Processors that each worker is given, and threads of its models."""
    ray_gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """GPUs that each worker is given; 0.5 puts two on one."""

    def check(self, device: str = "auto") -> None:
        """Refuse settings of workers without a cluster, or a `device` that is a GPU where no worker is given one.

        Raises:
            UsageError: it says what to set.
        """
        if self.ray is None:
            if self != Cluster():
                raise UsageError(
                    "`ray_workers`, `ray_cpus` and `ray_gpus` are about a cluster: give `ray` ADDRESS too"
                )
        elif device.startswith("cuda") and self.ray_gpus == 0:
            raise UsageError("`device` cuda: a worker sees no GPU that it is not given; set `ray_gpus` to 1")

    def start(self, build: Build, *, most: int, homes: bool = False) -> RayWorkers:
        """The workers of a run, for a `with`; see `RayWorkers`."""
        return RayWorkers(build, self, most=most, homes=homes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answerer:
    """What answers one kind of request on a worker."""

    identity: str
    """What shapes the replies besides the request: the model and its version."""
    answer: Callable[[Sequence[Any], Ready], Sequence[Any]]
    """One reply a request, in order, or an `InputError` for a request that cannot be answered; see `base.Batch`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """How every worker makes its answerers."""

    function: str
    """"package.module:function", called as `function(**settings)`; returns a `dict[type, Answerer]`, or a `Built`."""
    settings: Mapping[str, str | int | float | bool | None]
    """Its arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """Answerers, and what the driver must know of their models."""

    answerers: Mapping[type, Answerer]
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Of the models: names, sizes. The same on every worker."""
    counters: Callable[[], Mapping[str, int]] = dict
    """What this worker has spent so far; the driver adds them up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """What a worker that is ready reports; the same on all of them."""

    version: str
    """Of its stepmark."""
    identities: Mapping[type, str]
    """Of its answerers."""
    facts: Mapping[str, Fact]
    place: str = field(compare=False)
    """Where it runs, for messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """An exception in a worker, in words: not every exception survives pickling."""

    message: str
    usage: bool
    """Whether the caller must change something."""
    trace: str | None
    """Where it came from, if it was not raised on purpose."""

    @staticmethod
    def of(error: BaseException) -> Trouble:
        """Describe an exception."""
        if isinstance(error, StepmarkError):
            return Trouble(message=str(error), usage=error.exit_code == UsageError.exit_code, trace=None)
        trace = "".join(traceback.format_exception(error))
        return Trouble(message=f"{type(error).__name__}: {error}", usage=False, trace=trace)

    def error(self, worker: str) -> StepmarkError:
        """The exception to raise in the driver, which also names the worker."""
        kind = UsageError if self.usage else BackendError
        error = kind(f"{worker}: {self.message}")
        if self.trace is not None:
            error.add_note(self.trace)
        return error


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What a worker made of a chunk."""

    replies: Mapping[int, Reply]
    """By place in the chunk; all of them, unless there was trouble."""
    trouble: Trouble | None
    spent: Mapping[str, int]
    """What the worker has spent since it was built."""


@final
class ClusterWorker:
    """The Ray actor: builds answerers and answers chunks of requests with them, one call at a time.

    Args:
        function: see `Build`.
        settings: its arguments, as JSON.
        folder: where the driver runs; relative paths are read from there, if this machine has it too.
    """

    def __init__(self, function: str, settings: str, folder: str) -> None:
        self._function = function
        self._settings = settings
        self._folder = folder
        self._built = Built(answerers={})

    def build(self) -> Hello | Trouble:
        """Build the answerers and report who they are."""
        if Path(self._folder).is_dir():
            os.chdir(self._folder)
        module, _, name = self._function.partition(":")
        try:
            made = getattr(importlib.import_module(module), name)(**json.loads(self._settings))
        except BaseException as error:  # whatever it is, the driver must report it
            return Trouble.of(error)
        self._built = made if isinstance(made, Built) else Built(answerers=made)
        return Hello(
            version=__version__,
            identities={kind: which.identity for kind, which in self._built.answerers.items()},
            facts=self._built.facts,
            place=f"process {os.getpid()} on {socket.gethostname()}",
        )

    def answer(self, requests: Sequence[Ask]) -> Answered:
        """Answer a chunk of requests of one kind; an exception becomes `Trouble`, beside the replies so far."""
        made: dict[int, Reply] = {}
        # Ray may put a call before `build` where a worker died.
        built = None if self._built.answerers else self.build()
        if isinstance(built, Trouble):
            return Answered(replies={}, trouble=built, spent={})
        trouble = None
        try:
            answerer = self._built.answerers[type(requests[0])]
            replies = answerer.answer(requests, made.__setitem__)
            if len(replies) != len(requests):
                raise BackendError(
                    f"{answerer.identity} gave {amount(len(replies), 'reply', 'replies')} to {amount(len(requests), 'request')}"
                )
            made = dict(enumerate(replies))
        except BaseException as error:
            trouble = Trouble.of(error)
        plain = {place: _plain(reply) for place, reply in made.items()}
        return Answered(replies=plain, trouble=trouble, spent=dict(self._built.counters()))


def _plain(reply: Reply) -> Reply:
    if isinstance(reply, InputError):
        # The driver may not have the user's own subclass, and pickle does not know its constructor.
        return InputError(reply.message, where=reply.where, field=reply.field)
    return reply


@dataclass(kw_only=True, slots=True, eq=False)
class _Worker:
    """One worker as the driver sees it; after a death Ray gives the same actor another process."""

    number: int
    actor: Any
    greeting: Any
    """The call of `build`, until it is answered; then the worker is ready, and this is None."""
    where: str = ""
    spent: Mapping[str, int] = field(default_factory=dict)
    """By its current process."""

    @property
    def name(self) -> str:
        return f"worker {self.number}" + (f" ({self.where})" if self.where else "")


def _report(line: str) -> None:
    sys.stderr.write(f"ray: {line}\n")
    sys.stderr.flush()


@final
class RayWorkers:
    """Answers requests on a Ray cluster; use it in a `with`. It is made ready when the first worker is.

    Several threads may ask at once.

    Args:
        build: how every worker makes its answerers.
        cluster: its address, and what each worker is given.
        most: how many workers there are at most where `cluster` does not say how many.
        homes: whether requests about one problem go to one worker, as long as it lives: for workers that keep what they have read.
        tell: called with a line of text about workers that start and die.

    Raises:
        MissingExtraError: ray is not installed.
        UsageError: the address has another form, or what `build` raised.
        BackendError: there is no such cluster, it has no room, its nodes have another stepmark, or workers die before they are ready.
    """

    def __init__(
        self,
        build: Build,
        cluster: Cluster,
        *,
        most: int = LARGEST,
        homes: bool = False,
        tell: Callable[[str], None] = _report,
    ) -> None:
        assert cluster.ray is not None
        self._ray = loaded_ray()
        self._cpus, self._gpus = cluster.ray_cpus, cluster.ray_gpus
        self._homes: dict[int, int] | None = {} if homes else None
        self._turns = count()
        self._tell = tell
        self._hello: Hello | None = None
        self._spent: Counter[str] = Counter()
        self._lock = Lock()
        self._workers: list[_Worker] = []
        self.tokens_written = 0
        """Tokens of all texts that came back so far, as far as the workers count them."""
        self._ours = connect(self._ray, cluster.ray)
        try:
            size = cluster.ray_workers or min(self._room(), most)
            if size < 1:
                raise BackendError(f"{self._wanted()}, and no node of the cluster has that: {self._has()}")
            # A call that was lost is asked again by `_replies`, but for that which builds.
            kind = self._ray.remote(ClusterWorker).options(
                num_cpus=self._cpus,
                num_gpus=self._gpus,
                max_restarts=-1,
                max_task_retries=DEATHS - 1,
                scheduling_strategy="SPREAD",
            )
            for number in range(1, size + 1):
                actor = kind.remote(build.function, json.dumps(dict(build.settings)), str(Path.cwd()))
                self._workers.append(_Worker(number=number, actor=actor, greeting=actor.build.remote()))
            self._tell(f"{amount(size, 'worker')} on a Ray cluster with {self._has()}")
            while not self._ready():
                self._wait(())
            starting = [worker.greeting for worker in self._workers if worker.greeting is not None]
            if homes and starting:  # problems are dealt out to the workers that are ready, and stay there
                self._ray.wait(starting, num_returns=len(starting), timeout=_PATIENCE)
                self._ready()
        except BaseException:
            self.close()
            raise
        assert self._hello is not None
        self.facts: Mapping[str, Fact] = self._hello.facts
        """What the workers report of their models."""
        self.identities: Mapping[type, str] = self._hello.identities
        """Of what answers each kind of request."""

    def policy(self) -> BatchPolicy:
        """The workers' policies, as one."""
        return _RayPolicy(self)

    def prm(self) -> BatchScorer:
        """The workers' PRMs, as one."""
        return BatchScorer(self.identities[ScoreRequest], self.answer, self.answer)

    def verifier(self) -> _RayVerifier:
        """The workers' verifiers, as one."""
        return _RayVerifier(self)

    @property
    def counters(self) -> Mapping[str, int]:
        """What all workers have spent; of dead ones, their last report."""
        return sum((Counter(worker.spent) for worker in self._workers), self._spent.copy())

    def answer(self, requests: Sequence[Request], ready: Ready) -> list[Any]:
        """Answer requests of one kind; the replies of each chunk are reported when it is done.

        Raises:
            BackendError: no worker is left; a request killed three workers; the workers' answerer failed. In the last case the
                other workers' chunks are awaited and reported first.
            StepmarkError: whatever else the workers' answerer raised.
        """
        replies: list[Any] = [None] * len(requests)
        if self._homes is not None:
            chunks: Iterable[Chunk] = ()
            homed = self._at_home(requests, self._homes)
        else:
            # Without homes no worker keeps anything that could be released.
            asked = {} if requests and isinstance(requests[0], Release) else dict(enumerate(requests))
            chunks, homed = cut(asked, self.size), {}
        for place, reply in self._replies(chunks, homed):
            replies[place] = reply
            self.tokens_written += _tokens(reply)
            ready(place, reply)
        return replies

    def stream(self, requests: Iterable[ScoreSolution], *, expected: int | None = None) -> Iterator[Reply]:
        """Answer a stream of requests, one reply each, in order, reading only as far ahead as keeps all workers busy.

        Args:
            requests: read as needed; may be endless. Neighbours about one problem go to one worker together.
            expected: how many there are about, so that few are shared out too; None where that is not known.

        Raises:
            StepmarkError: as `answer`.
        """
        limit = LARGEST
        if expected is not None:
            limit = min(limit, max(_SMALLEST, ceil(expected / (_CHUNKS_A_WORKER * self.size))))
        replies: dict[int, Reply] = {}
        ends: deque[int] = deque()  # of the chunks with a reply that was not given yet
        turn = read = 0

        def chunks() -> Iterator[Chunk | None]:
            nonlocal read
            for chunk in gathered(requests, limit):
                # As many chunks may be done and wait for an earlier one as are under way.
                while len(ends) >= 2 * self.size:
                    yield None
                yield dict(enumerate(chunk, start=read))
                read += len(chunk)
                ends.append(read)

        for place, reply in self._replies(chunks(), {}):
            replies[place] = reply
            while turn in replies:
                yield replies.pop(turn)
                turn += 1
            while ends and ends[0] <= turn:
                ends.popleft()

    @property
    def size(self) -> int:
        """How many workers there are when all are well."""
        return max(1, len(self._workers))

    def close(self) -> None:
        """End the workers and leave the cluster."""
        self._spent = Counter(self.counters)
        if self._ray.is_initialized():
            for worker in self._workers:
                self._ray.kill(worker.actor)
            if self._ours:
                self._ray.shutdown()
        self._workers = []

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _replies(
        self, source: Iterable[Chunk | None], homed: dict[int, deque[Chunk]]
    ) -> Iterator[tuple[int, Reply]]:
        """Replies as they come, with their places; each idle worker is given the next chunk.

        `source` has chunks for any worker, read as needed, and None where nothing may be read for now; `homed` those of each worker, by its
        number.
        """
        chunks, more = iter(source), True
        again: deque[Chunk] = deque()
        deaths: Counter[int] = Counter()
        calls: dict[Any, tuple[_Worker, Chunk]] = {}
        failure: StepmarkError | None = None
        while True:
            ready = self._ready()
            for number in homed.keys() - {worker.number for worker in ready}:
                again.extend(homed.pop(number))
            busy = [worker for worker, _ in calls.values()]
            for worker in ready if failure is None else ():
                chunk: Chunk | None = None
                if worker in busy:
                    continue
                if own := homed.get(worker.number):
                    chunk = own.popleft()
                elif again:
                    chunk = again.popleft()
                elif more:
                    try:
                        chunk = next(chunks)
                    except StopIteration:
                        more = False
                if chunk:
                    ask = worker.actor.answer.options(max_task_retries=0)
                    calls[ask.remote(list(chunk.values()))] = worker, chunk
            if not calls and (failure is not None or not (more or again or any(homed.values()))):
                break
            call = self._wait(calls)
            if call is None:
                continue
            worker, chunk = calls.pop(call)
            try:
                answered: Answered = self._ray.get(call)
            except self._ray.exceptions.RayTaskError as error:
                raise BackendError(f"{worker.name} failed in an unexpected way: {error}") from error
            except self._ray.exceptions.RayError as error:
                why = f"{worker.name} died: {short(error)}"
                self._died(worker)
                self._tell(f"{why}; {amount(len(chunk), 'request')} will be asked again")
                again.extendleft({place: request} for place, request in reversed(chunk.items()))
                deaths.update(chunk.keys())
                deadly = next((place for place in chunk if deaths[place] == DEATHS), None)
                if deadly is not None:
                    failure = failure or _deadly(chunk[deadly], why)
                continue
            worker.spent = answered.spent
            places = list(chunk)
            for place, reply in answered.replies.items():
                yield places[place], reply
            if answered.trouble is not None:
                failure = failure or answered.trouble.error(worker.name)
        if failure is not None:
            raise failure

    def _wait(self, calls: Iterable[Any]) -> Any | None:
        """One of the calls that is done; None where a worker may have become ready.

        Raises:
            BackendError: there is nothing to wait for, and no node has room for a worker.
        """
        greetings = [worker.greeting for worker in self._workers if worker.greeting is not None]
        done, _ = self._ray.wait([*calls, *greetings], num_returns=1, timeout=_PATIENCE)
        if not done and not calls and not self._room():
            raise BackendError(
                f"no worker is left and for {_PATIENCE:.0f} s the cluster had no room for one: {self._wanted()}, and it has "
                f"{self._has()}. Replies so far are recorded: add a node, or wait, then run the same again"
            )
        return next((call for call in done if call not in greetings), None)

    def _ready(self) -> list[_Worker]:
        """The workers that have built their answerers.

        Raises:
            StepmarkError: what a worker's building raised, or a worker that is not as the others, or every one died over it.
        """
        with self._lock:
            starting = {worker.greeting: worker for worker in self._workers if worker.greeting is not None}
            if starting:
                done, _ = self._ray.wait(list(starting), num_returns=len(starting), timeout=0)
                for call in done:
                    self._greet(starting[call])
            return [worker for worker in self._workers if worker.greeting is None]

    def _greet(self, worker: _Worker) -> None:
        try:
            hello: Hello | Trouble = self._ray.get(worker.greeting)
        except self._ray.exceptions.RayError as error:
            why = f"{worker.name} died {DEATHS} times before it was ready: {short(error)}"
            self._workers.remove(worker)
            self._ray.kill(worker.actor)
            if not self._workers:
                raise BackendError(f"no worker is left. {why}. Replies so far are recorded") from error
            self._tell(f"{why}; it is not started again")
            return
        if isinstance(hello, Trouble):
            raise hello.error(worker.name)
        self._check_same(worker, hello)
        if worker.where:
            self._tell(f"{worker.name} is there again, as {hello.place}")
        worker.where, worker.greeting = hello.place, None
        self._hello = self._hello or hello

    def _died(self, worker: _Worker) -> None:
        """Ray starts it again; what it had spent is kept."""
        with self._lock:
            self._spent.update(worker.spent)
            worker.spent = {}
            if worker.greeting is None:
                worker.greeting = worker.actor.build.remote()

    def _check_same(self, worker: _Worker, hello: Hello) -> None:
        if hello.version != __version__:
            raise BackendError(
                f"{worker.name} has stepmark {hello.version}, here is {__version__}: install the same on every node"
            )
        if self._hello not in (None, hello):
            assert self._hello is not None
            ours, theirs = (
                _differing(item, two) for item, two in ((self._hello, hello), (hello, self._hello))
            )
            raise BackendError(
                f"{worker.name} answers as {theirs}, the first worker as {ours}: every node needs the same model, in the same place, and "
                "the same versions"
            )

    def _at_home(self, requests: Sequence[Request], homes: dict[int, int]) -> dict[int, deque[Chunk]]:
        """Chunks of a round for the workers that have read the problems; new problems are dealt out in turn."""
        shares: dict[int, dict[int, Request]] = {}
        with self._lock:
            numbers = [worker.number for worker in self._workers if worker.greeting is None]
            numbers = numbers or [worker.number for worker in self._workers]
            for place, request in enumerate(requests):
                about = hash(_about(request))
                if homes.get(about) not in numbers:
                    if isinstance(request, Release):
                        continue  # no worker that lives has read it
                    homes[about] = numbers[next(self._turns) % len(numbers)]
                shares.setdefault(homes[about], {})[place] = request
        return {home: deque(cut(share, self.size)) for home, share in shares.items()}

    def _room(self) -> int:
        """How many workers fit on the nodes that are there."""
        room = 0
        for has in self._resources():
            fits = [has.get("CPU", 0) // self._cpus]
            if self._gpus:
                fits.append(has.get("GPU", 0) // self._gpus)
            room += int(min(fits))
        return room

    def _resources(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _wanted(self) -> str:
        gpus = f" and {self._gpus:g} GPU" if self._gpus else ""
        return f"a worker needs {self._cpus:g} CPU{gpus}"

    def _has(self) -> str:
        alive = self._resources()
        cpus, gpus = (sum(has.get(what, 0) for has in alive) for what in ("CPU", "GPU"))
        unused = "" if self._gpus else " (workers are given none)"
        shown = f", {gpus:g} GPUs{unused}" if gpus else ""
        return f"{len(alive)} node{'s' * (len(alive) != 1)}, {cpus:g} CPUs{shown}"


def policy_answerers(policy: Completing) -> dict[type, Answerer]:
    """What answers for a policy on a worker of a cluster."""

    def completed(requests: Sequence[Completions], ready: Ready) -> Sequence[Any]:
        if isinstance(policy, BatchPolicy):
            return policy.complete_many(requests, ready)
        return many(requests, policy.complete)

    def chosen(requests: Sequence[ChoiceLogprobs], ready: Ready) -> Sequence[Any]:
        if isinstance(policy, BatchPolicy):
            return policy.choose_many(requests, ready)
        return many(requests, policy.choose)

    return {
        Completions: Answerer(identity=policy.identity, answer=completed),
        ChoiceLogprobs: Answerer(identity=policy.identity, answer=chosen),
    }


@final
class _RayPolicy(BatchPolicy):
    def __init__(self, workers: RayWorkers) -> None:
        self._workers = workers
        self.name = self.identity = workers.identities[Completions]

    @property
    def tokens_written(self) -> int:  # type: ignore[override]
        return self._workers.tokens_written

    def complete_many(
        self, requests: Sequence[Completions], ready: Ready | None = None
    ) -> Sequence[Sequence[Completion] | InputError]:
        return self._workers.answer(requests, ready or _unheard)

    def choose_many(
        self, requests: Sequence[ChoiceLogprobs], ready: Ready | None = None
    ) -> Sequence[Sequence[float] | InputError]:
        return self._workers.answer(requests, ready or _unheard)


@final
class _RayVerifier:
    def __init__(self, workers: RayWorkers) -> None:
        self._workers = workers
        self.identity = workers.identities[VerdictRequest]

    async def verify(self, answer: str, gold: str) -> Verdict:
        verdict: Verdict = await batched(
            self._workers.answer, VerdictRequest(answer=answer, gold=gold), quick=True
        )
        return verdict


def _unheard(place: int, reply: object) -> None:
    """Nobody asked to be told early."""


def cut(requests: Mapping[int, Request], workers: int) -> list[Chunk]:
    """Chunks of neighbours, which share their prompt: several for every worker, at most `LARGEST` samples each, at least a request."""
    total = sum(map(size_of, requests.values()))
    limit = min(LARGEST, ceil(total / (_CHUNKS_A_WORKER * workers)))
    chunks: list[Chunk] = []
    room = 0
    for place, request in requests.items():
        if size_of(request) > room:
            chunks.append({})
            room = limit
        chunks[-1][place] = request
        room -= size_of(request)
    return chunks


def gathered(requests: Iterable[ScoreSolution], limit: int) -> Iterator[list[ScoreSolution]]:
    """Chunks of neighbours of about `limit` solutions; those of one problem stay together, up to 256 of them."""
    chunk: list[ScoreSolution] = []
    characters = 0
    for request in requests:
        full = len(chunk) >= limit or characters >= _CHARACTERS
        same = bool(chunk) and chunk[-1].solution.problem.text == request.solution.problem.text
        if chunk and full and (not same or len(chunk) >= _WHOLE_PROBLEM or characters >= 4 * _CHARACTERS):
            yield chunk
            chunk, characters = [], 0
        chunk.append(request)
        characters += sum(map(len, request.solution.texts))
    if chunk:
        yield chunk


def size_of(request: Ask) -> int:
    """Samples that it asks for."""
    return request.n if isinstance(request, Completions) else 1


def _deadly(request: Ask, why: str) -> BackendError:
    lever = "`token_budget`" if isinstance(request, ScoreSolution) else "max_tokens"
    return BackendError(
        f"{DEATHS} workers died over one request, {_named(request)}. The last: {why}. If it needs more memory than a worker "
        f"has, give workers more or lower {lever}; every other reply is recorded"
    )


def _named(request: Ask) -> str:
    if isinstance(request, VerdictRequest):
        return f"the Verify of {request.answer[-80:]!r} against {request.gold[-80:]!r}"
    if isinstance(request, ScoreRequest | Release):
        return f"the {type(request).__name__} of a prefix of the problem {request.problem[-160:]!r}"
    if isinstance(request, ScoreSolution):
        named = "" if request.solution.id is None else f" with the id {request.solution.id!r}"
        return f"the scores of a solution of the problem {request.solution.problem.text[-160:]!r}{named}"
    prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
    asked = (
        amount(len(request.options), "option")
        if isinstance(request, ChoiceLogprobs)
        else amount(request.n, "sample")
    )
    after = f" and whose reply begins {request.prefill[:80]!r}" if request.prefill else ""
    return f"the {type(request).__name__} of {asked} whose prompt ends {prompt[-160:]!r}{after}"


def _about(request: Ask) -> object:
    """What requests have in common that are answered quicker where the like was answered before."""
    if isinstance(request, ScoreRequest | Release):
        return "prm", request.problem
    if isinstance(request, Completions | ChoiceLogprobs):
        return "policy", request.prompt
    return request


def _tokens(reply: Reply) -> int:
    if isinstance(reply, InputError) or not isinstance(reply, Sequence):
        return 0
    return sum(sample.tokens or 0 for sample in reply if isinstance(sample, Completion))


def _differing(one: Hello, other: Hello) -> list[str]:
    """What of one worker's answerers and models is not the other's."""
    identities = {who for kind, who in one.identities.items() if other.identities.get(kind) != who}
    facts = {f"{name} {value}" for name, value in one.facts.items() if other.facts.get(name) != value}
    return sorted(identities | facts)


def loaded_ray() -> Any:
    """The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    # Read when ray is loaded: it otherwise reports about this machine to its makers.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise MissingExtraError("a Ray cluster needs ray: pip install 'stepmark[cluster]'") from None


def connect(ray: Any, address: str) -> bool:
    """Join the cluster; whether this call did, and not our caller before.

    Raises:
        UsageError: the address has another form.
        BackendError: there is no cluster.
        MissingExtraError: the address needs Ray's client, which is not installed.
    """
    if ray.is_initialized():
        return False
    own = address == "local"
    if not own and address != "auto":
        _check_reachable(address)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            **({"include_dashboard": False} if own else {}),
        )
    except ImportError as error:  # Ray's client needs grpcio
        raise MissingExtraError(
            f"{address} needs Ray's client: pip install 'stepmark[cluster]' ({error})"
        ) from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendError(
            f"cannot join a Ray cluster at {address!r}: {error}. Start one with `ray start --head`, or run this on one of its nodes, or "
            "give ray://HOST:10001, or 'local'"
        ) from error
    return True


def _check_reachable(address: str) -> None:
    # Ray itself tries for a minute and then ends the process.
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"the cluster's address: expected auto, HOST:PORT, ray://HOST:PORT or local, found {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise BackendError(
            f"nothing answers at {address} ({error}): is the cluster up? Ray prints its address when it starts"
        ) from None


def short(error: Exception) -> str:
    """What happened, from Ray's report, which is a page of advice."""
    words = " ".join(str(error).split())
    for before, after in (
        ("The actor is dead because ", " Some common causes"),
        ("The actor died because ", " Node Id"),
        (" is unavailable: ", " rpc_code"),
    ):
        if before in words:
            return words.rpartition(before)[2].partition(after)[0][:240].rstrip(".")
    return words[:240] or type(error).__name__
