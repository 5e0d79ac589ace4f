"""Models on the workers of a Ray cluster: a policy, a PRM or a verifier, awaited like any other.

Names, settings, requests and replies travel, pickled by Ray between processes of this program; models, files and code do not. Every node has the
same stepmark installed, and the cluster is trusted: anyone who can reach its ports can run code on it.

Tasks, their order and the cache stay with the caller, and a request names everything that shapes its reply, so nothing here decides a result. What
waits is cut into chunks, one chunk a worker at a time. Ray places the workers and restarts those that die. The chunk of a worker that died is asked
again request by request, so that a request that kills its worker (it does not fit into memory, say) is found, and named after three workers.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import socket
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, cast, final

from pydantic import Field

from stepmark.backends.base import Batch, BatchPolicy, Completing, Ready, Release, batched, many, spawn
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
from stepmark.version import __version__
from stepmark.words import amount

Fact = str | int | float | bool | None
Request = Completions | ChoiceLogprobs | VerdictRequest | ScoreRequest | Release | ScoreSolution
Reply = Sequence[Completion] | Sequence[float] | Verdict | StepScore | StepScores | InputError | None

DEATHS = 3
"""Workers that one request may kill, and times that a worker may die before it is ready."""
LARGEST = 64
"""Samples, or solutions, in the largest chunk."""
_SMALLEST = 8
"""Solutions in a chunk at least, however few there are: they are read together."""
_CHUNKS_A_WORKER = 3
_WHOLE_PROBLEM = 4 * LARGEST
"""Solutions of one problem that are still one chunk."""
_PATIENCE = 120.0
"""Seconds that a run without any worker waits for a node with room for one."""

Chunk = dict[int, Request]
"""Requests for one worker, by their place among all that were asked."""


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

    def start(
        self, build: str, arguments: Mapping[str, Any], *, most: int, homes: bool = False
    ) -> closing[RayWorkers]:
        """The workers of a run, for a `with`; see `RayWorkers`."""
        return closing(RayWorkers(build, arguments, self, most=most, homes=homes))


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerModels:
    """The models of one worker."""

    answers: Mapping[type, tuple[str, Batch]]
    """By type of request: the identity of the model that is asked, and what computes a batch of these requests."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """What the caller must know of the models; the same on every worker."""
    counters: Callable[[], Mapping[str, int]] = dict
    """What this worker has spent so far; the caller adds them up."""


def policy_answers(policy: Completing) -> dict[type, tuple[str, Batch]]:
    """The part of a policy in `WorkerModels.answers`."""
    if isinstance(policy, BatchPolicy):
        complete, choose = policy.complete_many, policy.choose_many
        return {Completions: (policy.identity, complete), ChoiceLogprobs: (policy.identity, choose)}
    return {
        Completions: (policy.identity, lambda requests, ready: many(requests, policy.complete)),
        ChoiceLogprobs: (policy.identity, lambda requests, ready: many(requests, policy.choose)),
    }


Answered = tuple[Mapping[int, Reply], StepmarkError | None, Mapping[str, int]]
"""What a worker made of a chunk: replies by place (all of them, unless there was an error), the error, and what it has spent since it was built."""


@final
class ClusterWorker:
    """The Ray actor: builds models, and answers chunks of requests with them, one call at a time.

    Args:
        function: "package.module:function", which returns `WorkerModels`.
        arguments: its arguments, as JSON.
        folder: where the driver runs; relative paths are read from there, if this machine has it too.
    """

    def __init__(self, function: str, arguments: str, folder: str) -> None:
        self._function, self._arguments, self._folder = function, arguments, folder
        self._models: WorkerModels | None = None

    def build(self) -> tuple[dict[str, Fact], str] | StepmarkError:
        """Build the models; what must be the same on all workers, and where this one runs."""
        if Path(self._folder).is_dir():
            os.chdir(self._folder)
        try:
            models: WorkerModels = pkgutil.resolve_name(self._function)(**json.loads(self._arguments))
        except BaseException as error:  # whatever it is, the driver must report it
            return in_words(error)
        self._models = models
        identities = {kind.__name__: identity for kind, (identity, _) in models.answers.items()}
        facts = {"stepmark": __version__, **identities, **models.facts}
        return facts, f"process {os.getpid()} on {socket.gethostname()}"

    def answer(self, requests: Sequence[Request]) -> Answered:
        """Answer a chunk of requests of one type; an exception is returned in words, beside the replies so far."""
        replies: dict[int, Reply] = {}
        failure: StepmarkError | None = None
        try:
            # Ray may put a call before `build` where a worker died.
            if self._models is None and isinstance(error := self.build(), StepmarkError):
                raise error
            assert self._models is not None
            identity, compute = self._models.answers[type(requests[0])]
            computed = compute(requests, replies.__setitem__)
            if len(computed) != len(requests):
                raise BackendError(
                    f"{identity} gave {amount(len(computed), 'reply', 'replies')} to {amount(len(requests), 'request')}"
                )
            replies = dict(enumerate(computed))
        except BaseException as error:
            failure = in_words(error)
        for place, reply in replies.items():
            if isinstance(reply, InputError):
                # The driver may not have the user's own subclass, and pickle does not know its constructor.
                replies[place] = InputError(reply.message, where=reply.where, field=reply.field)
        spent = {} if self._models is None else dict(self._models.counters())
        return replies, failure, spent


def in_words(error: BaseException) -> StepmarkError:
    """The same error as one that survives pickling; a note says where it came from, if it was not raised on purpose."""
    if isinstance(error, StepmarkError):
        return (UsageError if error.exit_code == UsageError.exit_code else BackendError)(str(error))
    plain = BackendError(f"{type(error).__name__}: {error}")
    plain.add_note("".join(traceback.format_exception(error)))
    return plain


@dataclass(kw_only=True, slots=True, eq=False)
class _Worker:
    """One worker as the driver sees it; after a death Ray gives the same actor another process."""

    number: int
    actor: Any
    greeting: Any
    """The call of `build`, until it is answered; then the worker is ready, and this is None."""
    call: Any = None
    """Its chunk, of whichever round, until it is done: never two at once, so that what kills it is known."""
    where: str = ""
    spent: Mapping[str, int] = field(default_factory=dict)
    """By its current process."""

    @property
    def name(self) -> str:
        return f"worker {self.number}" + (f" ({self.where})" if self.where else "")

    def failure(self, error: StepmarkError) -> StepmarkError:
        """Its error, which then names it."""
        error.args = (f"{self.name}: {error}",)
        return error


def _report(line: str) -> None:
    sys.stderr.write(f"ray: {line}\n")
    sys.stderr.flush()


@final
class RayWorkers:
    """The workers of a run on a Ray cluster. It is made when the first one is ready; several threads may ask at once.

    Args:
        build: "package.module:function", by which every worker builds its models.
        arguments: its arguments.
        cluster: its address, and what each worker is given.
        most: how many workers there are at most where `cluster` does not say how many.
        homes: whether requests about one problem go to one worker, as long as it lives: for models that keep what they have read.
        tell: called with a line of text about workers that start and die.

    Raises:
        MissingExtraError: ray is not installed.
        UsageError: the address has another form, or what `build` raised.
        BackendError: there is no such cluster, it has no room, its nodes have another stepmark, or workers die before they are ready.
    """

    def __init__(
        self,
        build: str,
        arguments: Mapping[str, Any],
        cluster: Cluster,
        *,
        most: int = LARGEST,
        homes: bool = False,
        tell: Callable[[str], None] = _report,
    ) -> None:
        assert cluster.ray is not None
        self._cpus, self._gpus = cluster.ray_cpus, cluster.ray_gpus
        self._homes: dict[int, int] | None = {} if homes else None
        self._turns = count()
        self._tell = tell
        self._spent: Counter[str] = Counter()
        self._lock = Lock()
        self._workers: list[_Worker] = []
        self.facts: Mapping[str, Fact] = {"stepmark": __version__}
        """What the workers report of their models; also the identities, by the name of the request's type."""
        self._ray, self._ours = connect(cluster.ray)
        try:
            size = cluster.ray_workers or min(self._room(), most)
            if size < 1:
                raise BackendError(f"no node of the cluster has room for a worker: {self._needs()}")
            kind = self._ray.remote(ClusterWorker).options(
                num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=-1, scheduling_strategy="SPREAD"
            )
            for number in range(1, size + 1):
                actor = kind.remote(build, json.dumps(dict(arguments)), str(Path.cwd()))
                self._workers.append(_Worker(number=number, actor=actor, greeting=_greeting(actor)))
            self._tell(f"{amount(size, 'worker')} on a Ray cluster with {self._has()}")
            while not self._ready():
                self._wait(())
            starting = [worker.greeting for worker in self._workers if worker.greeting is not None]
            if homes and starting:  # problems are dealt out to the workers that are ready, and stay there
                self._ray.wait(starting, num_returns=len(starting), timeout=_PATIENCE)
        except BaseException:
            self.close()
            raise

    @property
    def counters(self) -> Mapping[str, int]:
        """What all workers have spent; of dead ones, their last report."""
        return sum((Counter(worker.spent) for worker in self._workers), self._spent.copy())

    @property
    def size(self) -> int:
        """How many workers there are when all are well."""
        return max(1, len(self._workers))

    def answer(self, requests: Sequence[Request], ready: Ready) -> list[Any]:
        """Answer requests; the replies of each chunk are reported when it is done.

        Raises:
            BackendError: no worker is left; a request killed three workers; the workers' model failed. In the last case the other
                workers' chunks are awaited and reported first.
            StepmarkError: whatever else the workers' model raised.
        """
        replies: list[Any] = [None] * len(requests)
        limit = self._limit(sum(map(_samples, requests)))
        by_type = sorted(enumerate(requests), key=lambda one: type(one[1]).__name__)
        if self._homes is None:
            answered = self._replies(cut(by_type, limit), {})
        else:
            shares = self._shares(by_type, self._homes)
            answered = self._replies(iter(()), {home: deque(cut(shares[home], limit)) for home in shares})
        for place, reply in answered:
            replies[place] = reply
            ready(place, reply)
        return replies

    def stream(self, requests: Iterable[Request], *, expected: int | None = None) -> Iterator[Reply]:
        """Answer a stream of requests, one reply each, in order, reading only as far ahead as keeps all workers busy.

        Args:
            requests: read as needed; may be endless. Neighbours about one problem go to one worker together.
            expected: how many there are about, so that few are shared out too; None where that is not known.

        Raises:
            StepmarkError: as `answer`.
        """
        limit = LARGEST if expected is None else max(_SMALLEST, self._limit(expected))
        replies: dict[int, Reply] = {}
        yielded = read = 0

        def chunks() -> Iterator[Chunk]:
            nonlocal read
            for chunk in cut(enumerate(requests), limit):
                while read - yielded > _CHUNKS_A_WORKER * self.size * LARGEST:
                    yield {}
                read += len(chunk)
                yield chunk

        for place, reply in self._replies(chunks(), {}):
            replies[place] = reply
            while yielded in replies:
                yield replies.pop(yielded)
                yielded += 1

    def close(self) -> None:
        """End the workers and leave the cluster."""
        self._spent = Counter(self.counters)
        if self._ray.is_initialized():
            for worker in self._workers:
                self._ray.kill(worker.actor)
            if self._ours:
                self._ray.shutdown()
        self._workers = []

    def _limit(self, samples: int) -> int:
        """Samples in a chunk: several chunks for every worker."""
        return min(LARGEST, ceil(samples / (_CHUNKS_A_WORKER * self.size)))

    def _shares(
        self, requests: Sequence[tuple[int, Request]], homes: dict[int, int]
    ) -> dict[int, list[tuple[int, Request]]]:
        """The requests of each worker that has read their problems, by its number; new problems are dealt out in turn."""
        shares: dict[int, list[tuple[int, Request]]] = {}
        ready = self._ready() or self._workers
        numbers = [worker.number for worker in ready]
        with self._lock:
            for place, request in requests:
                about = hash(_about(request))
                if homes.get(about) not in numbers:
                    if isinstance(request, Release):
                        continue  # no worker that lives has read it
                    homes[about] = numbers[next(self._turns) % len(numbers)]
                shares.setdefault(homes[about], []).append((place, request))
        return shares

    def _replies(
        self, source: Iterator[Chunk], homed: dict[int, deque[Chunk]]
    ) -> Iterator[tuple[int, Reply]]:
        """Replies as they come, with their places; each idle worker is given the next chunk.

        `source` has chunks for any worker, and an empty one where nothing may be read for now; `homed` those of each worker, by its number.
        """
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
                if worker in busy:
                    continue
                own = homed.get(worker.number) or again
                if not own and (chunk := next(source, {})):
                    own.append(chunk)
                if own and (call := self._ask(worker, own[0])) is not None:
                    calls[call] = worker, own.popleft()
            # Where there are workers, and yet no chunk for them, all are done.
            if not calls and (failure is not None or (ready and not again and not any(homed.values()))):
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
                why = f"{worker.name} died: {_short(error)}"
                self._tell(f"{why}; {amount(len(chunk), 'request')} will be asked again")
                again.extendleft({place: request} for place, request in reversed(chunk.items()))
                deaths.update(chunk.keys())
                for place, request in chunk.items():
                    if deaths[place] == DEATHS and failure is None:
                        failure = BackendError(
                            f"{DEATHS} workers died over one request, {_named(request)}. The last: {why}. If it needs more memory than a "
                            "worker has, give workers more or ask for fewer tokens at once; every other reply is recorded"
                        )
                continue
            replies, broke, _ = answered
            places = list(chunk)
            for place, reply in replies.items():
                yield places[place], reply
            if broke is not None:
                failure = failure or worker.failure(broke)
        if failure is not None:
            raise failure

    def _wait(self, calls: Collection[Any]) -> Any | None:
        """One of the calls that is done; None where a worker may have become ready, or free.

        Raises:
            BackendError: there is nothing to wait for, and no node has room for a worker.
        """
        under_way = [worker.call or worker.greeting for worker in self._workers]
        others = [call for call in under_way if call is not None and call not in calls]
        done, _ = self._ray.wait([*calls, *others], num_returns=1, timeout=_PATIENCE)
        if not done and not calls and not self._room():
            raise BackendError(
                f"no worker is left and for {_PATIENCE:.0f} s the cluster had no room for one: {self._needs()}. Replies so far are "
                "recorded: add a node, or wait, then run the same again"
            )
        return next((call for call in done if call not in others), None)

    def _ready(self) -> list[_Worker]:
        """The workers that have built their models; notes which calls are done, and has those that died built again.

        Raises:
            StepmarkError: what a worker's building raised, or a worker that is not as the others, or every one died over it.
        """
        with self._lock:
            under_way = {worker.call or worker.greeting: worker for worker in self._workers}
            under_way.pop(None, None)
            if under_way:
                done, _ = self._ray.wait(list(under_way), num_returns=len(under_way), timeout=0)
                for call in done:
                    worker = under_way[call]
                    if worker.call is None:
                        self._greet(worker)
                    else:
                        self._free(worker)
            return [worker for worker in self._workers if worker.greeting is None]

    def _greet(self, worker: _Worker) -> None:
        try:
            built = self._ray.get(worker.greeting)
        except self._ray.exceptions.RayError as error:
            why = f"{worker.name} died {DEATHS} times before it was ready: {_short(error)}"
            self._workers.remove(worker)
            self._ray.kill(worker.actor)
            if not self._workers:
                raise BackendError(f"no worker is left. {why}. Replies so far are recorded") from error
            self._tell(f"{why}; it is not started again")
            return
        if isinstance(built, StepmarkError):
            raise worker.failure(built)
        facts, where = built
        expected = {name: fact for name, fact in self.facts.items() if facts.get(name) != fact}
        if expected:
            wanted, found = (
                ", ".join(f"{name} {of.get(name)}" for name in expected) for of in (expected, facts)
            )
            raise BackendError(
                f"worker {worker.number} ({where}): expected {wanted}, as here and on the first worker, found {found}: every node needs the same models, in the "
                "same place, and the same versions"
            )
        if worker.where:
            self._tell(f"{worker.name} is there again, as {where}")
        worker.where, worker.greeting, self.facts = where, None, facts

    def _free(self, worker: _Worker) -> None:
        """Its call is done; where it died of it, Ray starts it again, and what it had spent is kept."""
        call, worker.call = worker.call, None
        try:
            _, _, worker.spent = self._ray.get(call)
        except self._ray.exceptions.RayTaskError:
            pass  # raised where it was asked
        except self._ray.exceptions.RayError:
            self._spent.update(worker.spent)
            worker.spent, worker.greeting = {}, _greeting(worker.actor)

    def _ask(self, worker: _Worker, chunk: Chunk) -> Any | None:
        """The call that answers a chunk; None where the worker is at work for another round."""
        with self._lock:
            if worker.call is not None or worker.greeting is not None:
                return None
            worker.call = worker.actor.answer.remote(list(chunk.values()))
            return worker.call

    def _room(self) -> int:
        """How many workers fit on the nodes that are there."""
        needed = {"CPU": self._cpus, "GPU": self._gpus}
        return sum(
            int(min(has.get(what, 0) // each for what, each in needed.items() if each))
            for has in self._resources()
        )

    def _resources(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _needs(self) -> str:
        gpus = f" and {self._gpus:g} GPU" if self._gpus else ""
        return f"a worker needs {self._cpus:g} CPU{gpus}, the cluster has {self._has()}"

    def _has(self) -> str:
        alive = self._resources()
        cpus, gpus = (sum(has.get(what, 0) for has in alive) for what in ("CPU", "GPU"))
        unused = "" if self._gpus else " (workers are given none)"
        return f"{amount(len(alive), 'node')}, {cpus:g} CPUs" + (f", {gpus:g} GPUs{unused}" if gpus else "")


@final
class RayModel:
    """A model of the workers: a policy, a PRM or a verifier, awaited like any other.

    Args:
        workers: which have it.
        kind: the type of its requests.
    """

    def __init__(self, workers: RayWorkers, kind: type) -> None:
        self._workers = workers
        self.identity = str(workers.facts[kind.__name__])

    async def complete(self, request: Completions) -> Sequence[Completion]:
        """See `Completing.complete`."""
        return cast("Sequence[Completion]", await batched(self._together, request))

    async def choose(self, request: ChoiceLogprobs) -> Sequence[float]:
        """See `Completing.choose`."""
        return cast("Sequence[float]", await batched(self._together, request))

    async def score_step(self, request: ScoreRequest) -> StepScore:
        """See `StepScoring.score_step`."""
        return cast("StepScore", await batched(self._together, request))

    def release(self, problem: str, prefixes: Sequence[tuple[str, ...]]) -> None:
        """See `StepScoring.release`."""
        if prefixes:
            spawn(batched(self._together, Release(problem=problem, prefixes=tuple(prefixes))))

    async def verify(self, answer: str, gold: str) -> Verdict:
        """See `Verifying.verify`."""
        request = VerdictRequest(answer=answer, gold=gold)
        return cast("Verdict", await batched(self._together, request, quick=True))

    def _together(self, requests: Sequence[Request], ready: Ready) -> list[Any]:
        # A method of its own: the workers may compute for several models at once.
        return self._workers.answer(requests, ready)


def cut(requests: Iterable[tuple[int, Request]], limit: int) -> Iterator[Chunk]:
    """Chunks of neighbours of one type, of at most `limit` samples or one request; up to 256 solutions of one problem stay together."""
    chunk: Chunk = {}
    size = 0
    before: Any = None
    for place, request in requests:
        alike = type(request) is type(before)
        together = isinstance(request, ScoreSolution) and alike and _about(request) == _about(before)
        most = _WHOLE_PROBLEM if together else limit
        if chunk and (not alike or size + _samples(request) > most):
            yield chunk
            chunk, size = {}, 0
        chunk[place] = request
        size, before = size + _samples(request), request
    if chunk:
        yield chunk


def _samples(request: Request) -> int:
    return request.n if isinstance(request, Completions) else 1


def _about(request: Request) -> str:
    """The problem, prompt or answer of a request: what is answered quicker where the like was answered before."""
    if isinstance(request, ScoreSolution):
        return request.solution.problem.text
    if isinstance(request, ScoreRequest | Release):
        return request.problem
    if isinstance(request, VerdictRequest):
        return request.answer
    return request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content


def _named(request: Request) -> str:
    text = _about(request)
    which = f"the {type(request).__name__} about {'…' * (len(text) > 160)}{text[-160:]!r}"
    if isinstance(request, ScoreSolution) and request.solution.id is not None:
        which += f" with the id {request.solution.id!r}"
    return which


def _greeting(actor: Any) -> Any:
    """A call of `build`, which Ray repeats where the worker dies over it."""
    return actor.build.options(max_task_retries=DEATHS - 1).remote()


def connect(address: str) -> tuple[Any, bool]:
    """Join a cluster: the module `ray`, and whether this call joined it, not our caller before.

    Raises:
        UsageError: the address has another form.
        BackendError: there is no cluster.
        MissingExtraError: ray, or the client that the address needs, is not installed.
    """
    # Read when ray is loaded: it otherwise reports about this machine to its makers.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError:
        raise MissingExtraError("a Ray cluster needs ray: pip install 'stepmark[cluster]'") from None
    if ray.is_initialized():
        return ray, False
    if address not in ("local", "auto"):
        _check_reachable(address)
    more = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **more)
    except ImportError as error:  # Ray's client needs grpcio
        raise MissingExtraError(
            f"{address} needs Ray's client: pip install 'stepmark[cluster]' ({error})"
        ) from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendError(
            f"cannot join a Ray cluster at {address!r}: {error}. Start one with `ray start --head`, or run this on one of its nodes, or "
            "give ray://HOST:10001, or 'local'"
        ) from error
    return ray, True


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


def _short(error: Exception) -> str:
    """What happened, from Ray's report, which is a page of advice."""
    words = " ".join(str(error).split())
    for before in ("The actor is dead because ", " is unavailable: ", "The actor died because "):
        words = words.rpartition(before)[2]
    for after in (" Some common causes", " rpc_code", " Node Id"):
        words = words.partition(after)[0]
    return words[:240].rstrip(".") or type(error).__name__
