"""The driver: many methods at once, their requests answered in batches, every reply recorded before it is used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeVar

from stepmark.backends.requests import (
    Completion,
    Completions,
    Release,
    Request,
    ScoreRequest,
    StepScore,
    VerdictRequest,
    content_key,
)
from stepmark.errors import BackendError, InputError, UsageError
from stepmark.records import StepScores, Verdict
from stepmark.show.text import amount

Result = TypeVar("Result")
Method = Generator[Request | tuple[Request, ...], Any, Result]
"""Yield one request to be sent its reply, or a tuple of requests to be sent a tuple of replies. The reply to
a `Completions` is a tuple of `n` `Completion`, that to a `ChoiceLogprobs` a tuple of floats, that to a `VerdictRequest` a `Verdict`, that to a `ScoreRequest` a `StepScore`, that to a `Release` None. A request
that cannot be answered raises its `InputError` inside the method, at the `yield`."""

Reply = Sequence[Completion] | Sequence[float] | Verdict | StepScore | StepScores | InputError
"""What an answerer gives for one request: samples, log-probabilities, a verdict, a score, the scores of a solution (on a cluster only), or
why it cannot be answered."""

Ready = Callable[[int, Reply], None]
"""`ready(i, reply)`: the reply to request i is there; it is recorded at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answerer:
    """What answers one kind of request."""

    identity: str
    """What shapes the replies besides the request: the model and its version. Part of every key."""
    answer: Callable[[Sequence[Any], Ready], Sequence[Reply]]
    """One reply a request, in order, or an `InputError` for a request that cannot be answered. It may report
    each reply through `ready` as soon as it is there; then it is safe even if a later one fails."""

    def observed(self, observe: Callable[[Reply], None]) -> Answerer:
        """The same answerer; `observe` is called with each reply, as soon as it is there."""

        def answer(requests: Sequence[Any], ready: Ready) -> Sequence[Reply]:
            reported = set[int]()

            def arrived(number: int, reply: Reply) -> None:
                ready(number, reply)
                reported.add(number)
                observe(reply)

            replies = self.answer(requests, arrived)
            for number, reply in enumerate(replies):
                if number not in reported:
                    observe(reply)
            return replies

        return Answerer(identity=self.identity, answer=answer)


class ReplyStore(Protocol):
    """Where replies are kept: a mapping from key to text that only grows."""

    @property
    def name(self) -> str:
        """What errors call it: its file."""

    def get(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Those of the keys that are recorded, with their replies."""

    def put(self, replies: Mapping[str, str]) -> Mapping[str, str]:
        """Record replies; durable on return.

        Returns:
            What now stands under each key: the earlier reply where one was already recorded.
        """


def run(
    methods: Iterable[Method[Result]],
    answerers: Mapping[type, Answerer],
    *,
    store: ReplyStore | None = None,
    in_flight: int = 64,
) -> Generator[tuple[int, Result], None, None]:
    """Run methods together; give each one's number and result, in the order of `methods`.

    Args:
        methods: read as needed; may be endless.
        answerers: request type to what answers it (`models.policies.answerers` makes them for a policy).
        store: where replies are recorded and replayed from. Without one, equal shared requests are still
            asked once within a round.
        in_flight: methods that are live at once. Up to four times as many results may wait for an earlier
            one.

    Raises:
        BackendError: an answerer failed, or gave something that does not fit the request. Every reply that
            it had reported is recorded.
        Exception: whatever a method raises ends the run. All replies so far are recorded. A method that
            should not cost the others catches its own error and returns it.
    """
    if in_flight < 1:
        raise UsageError(f"in_flight must be at least 1, found {in_flight}")
    source = enumerate(methods)
    desk = _Desk(answerers, store)
    live: dict[int, tuple[Method[Result], Request | tuple[Request, ...]]] = {}
    waiting: dict[int, Result] = {}
    turn = admitted = 0
    more = True

    def step(number: int, method: Method[Result], reply: object) -> None:
        try:
            asked = method.throw(reply) if isinstance(reply, InputError) else method.send(reply)
        except StopIteration as stop:
            waiting[number] = stop.value
            live.pop(number, None)
        else:
            live[number] = (method, asked)

    try:
        while True:
            while turn in waiting:
                yield turn, waiting.pop(turn)
                turn += 1
            while more and len(live) < in_flight and admitted - turn < 4 * in_flight:
                try:
                    number, method = next(source)
                except StopIteration:
                    more = False
                else:
                    admitted = number + 1
                    step(number, method, None)
            if live:
                numbers = list(live)
                replies = desk.answer([live[number][1] for number in numbers])
                for number, reply in zip(numbers, replies, strict=True):
                    step(number, live[number][0], reply)
            elif not more and not waiting:
                return
    finally:
        for method, _ in live.values():
            method.close()


class _Desk:
    """Answers one round: looks up, asks what is missing, records, assembles."""

    def __init__(self, answerers: Mapping[type, Answerer], store: ReplyStore | None) -> None:
        self._answerers = answerers
        self._store = store
        self._handed_out: dict[str, int] = {}

    def answer(self, asked: Sequence[Request | tuple[Request, ...]]) -> list[Any]:
        flat: list[Request] = []
        for ask in asked:
            flat.extend(ask if isinstance(ask, tuple) else (ask,))
        # Nothing is recorded of a Release, so that it has no key.
        wanted = [[] if isinstance(request, Release) else self._sample_keys(request) for request in flat]
        have = self._recorded(
            {key: request for request, keys in zip(flat, wanted, strict=True) for key in keys}
        )
        by_kind: dict[type, list[tuple[Request, list[str]]]] = {}
        claimed = set(have)
        for request, keys in zip(flat, wanted, strict=True):
            for start, end in _gaps([key in claimed for key in keys]):
                claimed.update(keys[start:end])
                part = request
                if isinstance(request, Completions):
                    part = replace(request, n=end - start, first=int(keys[start].rpartition("/")[2]))
                by_kind.setdefault(type(request), []).append((part, keys[start:end]))
        self._ask_all(by_kind, have)
        released = [request for request in flat if isinstance(request, Release)]
        if released and Release in self._answerers:
            self._answerers[Release].answer(released, _nobody)

        replies = []
        rest = iter(zip(flat, wanted, strict=True))
        for ask in asked:
            count = len(ask) if isinstance(ask, tuple) else 1
            got = [_assemble(*next(rest), have) for _ in range(count)]
            failed = next((reply for reply in got if isinstance(reply, InputError)), None)
            replies.append(failed or (tuple(got) if isinstance(ask, tuple) else got[0]))
        return replies

    def _answerer(self, kind: type) -> Answerer:
        try:
            return self._answerers[kind]
        except KeyError:
            known = ", ".join(sorted(known.__name__ for known in self._answerers)) or "nothing"
            raise UsageError(
                f"nothing here answers a {kind.__name__}; there are answerers for {known}"
            ) from None

    def _sample_keys(self, request: Request) -> list[str]:
        key = content_key(request, self._answerer(type(request)).identity)
        if not isinstance(request, Completions):
            return [f"{key}/0"]
        first = request.first
        if first is None:
            first = self._handed_out.get(key, 0)
            self._handed_out[key] = first + request.n
        return [f"{key}/{number}" for number in range(first, first + request.n)]

    def _recorded(self, requests: Mapping[str, Request]) -> dict[str, Any]:
        """Those replies that the store has, by key.

        Raises:
            InputError: one is damaged.
        """
        if self._store is None or not requests:
            return {}
        replies: dict[str, Any] = {}
        for key, text in self._store.get(list(requests)).items():
            try:
                replies[key] = _unpack(text)
                problem = _misfit(requests[key], replies[key])
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                problem = str(error)
            if problem is not None:
                raise InputError(
                    f"the recorded reply {text[:80]!r} is damaged ({problem}): restore the reply store, or delete it; what it recorded is "
                    "then asked for again",
                    where=self._store.name,
                )
        return replies

    def _ask_all(self, by_kind: dict[type, list[tuple[Request, list[str]]]], have: dict[str, Any]) -> None:
        """Ask each kind's answerer; the PRM in a thread beside the others, so that it scores while the policy writes."""
        scores = by_kind.pop(ScoreRequest, None)
        if scores is not None and not by_kind:
            self._ask(self._answerer(ScoreRequest), scores, have)
        if scores is None or not by_kind:
            for kind, parts in by_kind.items():
                self._ask(self._answerer(kind), parts, have)
            return
        # Whichever fails, the other is waited for: what it answers is recorded.
        with ThreadPoolExecutor(max_workers=1) as thread:
            scoring = thread.submit(self._ask, self._answerer(ScoreRequest), scores, have)
            for kind, parts in by_kind.items():
                self._ask(self._answerer(kind), parts, have)
            scoring.result()

    def _ask(self, answerer: Answerer, parts: list[tuple[Request, list[str]]], have: dict[str, Any]) -> None:
        def record(answered: Sequence[tuple[int, Reply]]) -> None:
            packed: dict[str, str] = {}
            for index, reply in answered:
                request, keys = parts[index]
                if isinstance(reply, InputError):
                    have.update(dict.fromkeys(keys, reply))
                    continue
                _check_reply(request, reply, len(keys), answerer.identity)
                samples = list(reply) if isinstance(request, Completions) else [reply]  # type: ignore[arg-type]
                packed.update((key, _pack(sample)) for key, sample in zip(keys, samples, strict=True))
            if packed:
                standing = packed if self._store is None else self._store.put(packed)
                # Read back even what was just made: a replay must not differ from the first run.
                have.update((key, _unpack(standing[key])) for key in packed)

        def ready(index: int, reply: Reply) -> None:
            record([(index, reply)])

        replies = answerer.answer([request for request, _ in parts], ready)
        if len(replies) != len(parts):
            raise BackendError(
                f"{answerer.identity} gave {amount(len(replies), 'reply', 'replies')} to {amount(len(parts), 'request')}"
            )
        # Those that were not reported one by one are recorded in one go: a durable write costs milliseconds.
        record([(index, reply) for index, reply in enumerate(replies) if parts[index][1][0] not in have])


def _gaps(there: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The runs of False, as (start, end)."""
    start = None
    for place, filled in enumerate([*there, True]):
        if not filled and start is None:
            start = place
        elif filled and start is not None:
            yield start, place
            start = None


def _nobody(index: int, reply: Reply) -> None:
    """Nobody waits for the reply to a Release."""


def _assemble(request: Request, keys: list[str], have: Mapping[str, object]) -> object:
    if isinstance(request, Release):
        return None
    got = [have[key] for key in keys]
    failed = next((part for part in got if isinstance(part, InputError)), None)
    return failed or (tuple(got) if isinstance(request, Completions) else got[0])


def _check_reply(request: Request, reply: Reply, samples: int, identity: str) -> None:
    """Refuse a reply that does not fit its request, or that holds a number that is none.

    Raises:
        BackendError: the message says what was expected and found.
    """
    if not isinstance(request, Completions):
        problem = _misfit(request, reply)
    elif not isinstance(reply, Sequence) or len(reply) != samples:
        count = len(reply) if isinstance(reply, Sequence) else reply
        problem = f"expected {amount(samples, 'text')} in reply to a Write, found {count!r}"
    else:
        problem = next(filter(None, (_misfit(request, sample) for sample in reply)), None)
    if problem is not None:
        raise BackendError(f"{identity}: {problem}. Nothing was recorded of it")


def _misfit(request: Request, sample: object) -> str | None:
    """Why something is no reply to a request (one of the texts, for a `Completions`); None where it is."""
    numbers: Sequence[float | None]
    if isinstance(request, Completions):
        if not isinstance(sample, Completion) or not isinstance(sample.text, str):
            return f"expected a text in reply to a Write, found {sample!r}"
        numbers, what = [sample.logprob], f"as the log-probability of {sample.text[:80]!r}"
    elif isinstance(request, ScoreRequest):
        if not isinstance(sample, StepScore):
            return f"expected a score in reply to a Score, found {sample!r}"
        numbers = [sample.score]
        what = f"as the score of step {len(request.steps) - 1} (0-based), {request.steps[-1][:80]!r}"
    elif isinstance(request, VerdictRequest):
        return (
            None
            if isinstance(sample, Verdict)
            else f"expected a verdict in reply to a Verify, found {sample!r}"
        )
    else:
        assert not isinstance(request, Release)
        fits = isinstance(sample, Sequence) and len(sample) == len(request.options)
        if not fits:
            return f"expected {len(request.options)} log-probabilities in reply to a Choose, found {sample!r}"
        # An option that the model excludes has minus infinity.
        numbers = [0.0 if number == -math.inf else number for number in sample]  # type: ignore[attr-defined]
        what = "among the log-probabilities of a Choose"
    bad = next((number for number in numbers if number is not None and not math.isfinite(number)), None)
    return None if bad is None else f"expected a finite number {what}, found {bad!r}"


def _pack(sample: object) -> str:
    if isinstance(sample, Verdict):
        return json.dumps({"verdict": asdict(sample)})
    if isinstance(sample, StepScore):
        return json.dumps({"graded": asdict(sample)})
    return json.dumps(asdict(sample) if isinstance(sample, Completion) else list(sample))  # type: ignore[call-overload]


def _unpack(text: str) -> Completion | Verdict | StepScore | tuple[float, ...]:
    data = json.loads(text)
    if not isinstance(data, dict):
        return tuple(float(value) for value in data)
    if "graded" in data:
        classes = data["graded"]["classes"]
        return StepScore(**{**data["graded"], "classes": None if classes is None else tuple(classes)})
    return Verdict(**data["verdict"]) if "verdict" in data else Completion(**data)


def together(methods: Iterable[Method[Result]]) -> Method[tuple[Result, ...]]:
    """Run methods, not yet started, in step: in each round, what those that still run ask is asked as one tuple, in their order.

    A method that calls this waits for a round as long as for one request, however many it stands for::

        first, second = yield from together([opinion(of, "this"), opinion(of, "that")])

    It takes as many rounds as the longest of them, none for none, and gives their results, in order.

    Raises:
        InputError: a request of one of them cannot be answered. It ends them all, none catches it: which part of the round failed is
            not known.
        Exception: whatever one of them raises ends the others too.
    """
    running = list(methods)
    results: dict[int, Result] = {}
    asked: dict[int, Request | tuple[Request, ...]] = {}

    def step(number: int, reply: object) -> None:
        try:
            asked[number] = running[number].send(reply)
        except StopIteration as stop:
            results[number] = stop.value
            asked.pop(number, None)

    try:
        for number in range(len(running)):
            step(number, None)
        while asked:
            asks = [ask if isinstance(ask, tuple) else (ask,) for ask in asked.values()]
            replies = iter((yield tuple(request for ask in asks for request in ask)))
            for number, ask in list(asked.items()):
                step(number, tuple(islice(replies, len(ask))) if isinstance(ask, tuple) else next(replies))
    finally:
        for method in running:
            method.close()
    return tuple(results[number] for number in range(len(running)))
