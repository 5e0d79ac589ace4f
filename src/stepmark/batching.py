"""Runs many methods at once and answers their requests in batches.

A *method* (a labeller, a search, a generative PRM) is a generator: it yields requests, is sent replies,
and returns its result. It does no I/O, so its code can be the paper's pseudo-code::

    def two_opinions(question):
        first, second = yield Write(prompt=question, n=2, temperature=0.7)
        odds = yield Choose(prompt=question, options=(first.text, second.text))
        return odds

`run` drives many of them in rounds. In each round it gathers what all live methods ask, answers all requests
of one kind in one call of their answerer, records each reply in the store *before* a method sees it, and
sends the replies back. A run that was stopped, whatever stopped it, is therefore resumed by running it again
over the same store: recorded replies are replayed and only what is missing is asked.

What counts as the same request: everything that shapes the reply (the kind, the answerer's identity, prompt,
prefill, sampling settings, seed) is hashed into one key (`content_key`), and the samples of a `Write` are
numbered under that key. `n` is not part of the key: asking for 16 where 8 are recorded asks for 8 more.

* `Write(first=None)`, the default, means *fresh* samples: the driver numbers the samples of equal requests
  one after the other, in the order in which they are asked, so no sample is handed out twice in one run. The
  order depends on the methods, their order and `in_flight`, not on timing, so the same run replays the same
  samples.
* `Write(first=0)` means *exactly* the samples 0..n-1: equal requests share them, within a run and between
  runs. A generative PRM asks so, because the score of a prefix must not depend on who else asked for it.
* A `Choose` is a fact about the model and is always shared.

Rounds keep replay exact and the calls large; their price is that a round lasts as long as its slowest
request. More methods `in_flight` hide that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

from stepmark.errors import BackendError, InputError, UsageError

Role = Literal["system", "user", "assistant"]

Finish = Literal["end", "stop", "length", "end or stop"]
"""Why a text ended: `end` the model ended it, `stop` a stop string, `length` `max_tokens` or the model's
context, `end or stop` the server does not say which of the two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


Prompt = str | tuple[Message, ...]
"""Raw text, read as it stands, or a conversation, rendered by the model's own chat template."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """A request for `n` independent texts that continue one prompt.

    Raises:
        UsageError: a setting out of its range.
    """

    prompt: Prompt
    prefill: str = ""
    """The beginning of the reply, given; what is written continues it, character for character."""
    n: int = 1
    temperature: float = 0.0
    """0 is greedy: always the likeliest token."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that together hold this share of the probability."""
    top_k: int | None = None
    """Sample among this many likeliest tokens; None for all."""
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    """The text ends before the first of these strings."""
    seed: int = 0
    """Part of what makes a sample: another seed gives other samples."""
    first: int | None = None
    """Number of the first sample; None for fresh ones (see the module)."""

    def __post_init__(self) -> None:
        _check_prompt(self.prompt)
        for name, good, wanted in (
            ("n", self.n >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k is None or self.top_k >= 1, "None or at least 1"),
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("stop", all(self.stop), "without empty strings"),
            ("first", self.first is None or self.first >= 0, "None or 0 and more"),
        ):
            if not good:
                raise UsageError(f"Write: {name} must be {wanted}, found {getattr(self, name)!r}")
        if self.temperature == 0 and self.n > 1:
            raise UsageError(
                f"Write: at temperature 0 all {self.n} samples are one; set a temperature or n=1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """One text that was written for a `Write`."""

    text: str
    """What follows prompt and prefill; the stop string that ended it is not part of it."""
    finish: Finish
    tokens: int | None = None
    """Tokens written, the end token or the stop string's included; None when the server does not say."""
    logprob: float | None = None
    """Sum of the natural-log probabilities of those tokens under the model itself (temperature 1, nothing
    cut off); None when not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choose:
    """A request for the log-probability of each option as the next text.

    The reply is a tuple of natural logarithms, one an option, in order. It may be short of a constant that
    is the same for all options (see the policy), so compare them or normalise over them.

    Raises:
        UsageError: fewer than two options, an empty one, or the same one twice.
    """

    prompt: Prompt
    prefill: str = ""
    options: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_prompt(self.prompt)
        if len(self.options) < 2 or not all(self.options) or len(set(self.options)) < len(self.options):
            raise UsageError(f"Choose: options must be two or more different texts, found {self.options!r}")


Request = Write | Choose
Result = TypeVar("Result")
Method = Generator[Request | tuple[Request, ...], Any, Result]
"""Yield one request to be sent its reply, or a tuple of requests to be sent a tuple of replies. The reply to
a `Write` is a tuple of `n` `Written`, that to a `Choose` a tuple of floats. A request that cannot be answered
raises its `InputError` inside the method, at the `yield`."""

Reply = Sequence[Written] | Sequence[float] | InputError
"""What an answerer gives for one request: samples, log-probabilities, or why it cannot be answered."""

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


class ReplyStore(Protocol):
    """Where replies are kept: a mapping from key to text that only grows."""

    def get(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Those of the keys that are recorded, with their replies."""

    def put(self, replies: Mapping[str, str]) -> Mapping[str, str]:
        """Record replies; durable on return.

        Returns:
            What now stands under each key: the earlier reply where one was already recorded.
        """


def content_key(request: Request, identity: str) -> str:
    """A stable SHA-256 of everything that shapes the reply, in hexadecimal.

    The number of samples and the number of the first are left out: samples are numbered under the key.
    """
    content = {name: value for name, value in asdict(request).items() if name not in ("n", "first")}
    record = {"format": 1, "kind": type(request).__name__, "by": identity, "request": content}
    return hashlib.sha256(json.dumps(record, sort_keys=True, allow_nan=False).encode()).hexdigest()


def sample_seed(request: Write, number: int) -> int:
    """The seed of sample `number` of a request, in [0, 2**63): other samples and other prompts draw apart."""
    digest = hashlib.sha256(f"{content_key(request, '')}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first stop string, and whether there was one."""
    places = [place for place in (text.find(string) for string in stop) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


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
        wanted = [self._sample_keys(request) for request in flat]
        have: dict[str, Any] = self._recorded([key for keys in wanted for key in keys])
        by_kind: dict[type, list[tuple[Request, list[str]]]] = {}
        claimed = set(have)
        for request, keys in zip(flat, wanted, strict=True):
            for start, end in _gaps([key in claimed for key in keys]):
                claimed.update(keys[start:end])
                part = request
                if isinstance(request, Write):
                    part = replace(request, n=end - start, first=int(keys[start].rpartition("/")[2]))
                by_kind.setdefault(type(request), []).append((part, keys[start:end]))
        for kind, parts in by_kind.items():
            self._ask(self._answerer(kind), parts, have)

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
        if not isinstance(request, Write):
            return [f"{key}/0"]
        first = request.first
        if first is None:
            first = self._handed_out.get(key, 0)
            self._handed_out[key] = first + request.n
        return [f"{key}/{number}" for number in range(first, first + request.n)]

    def _recorded(self, keys: list[str]) -> dict[str, Any]:
        if self._store is None or not keys:
            return {}
        return {key: _unpack(text) for key, text in self._store.get(list(dict.fromkeys(keys))).items()}

    def _ask(self, answerer: Answerer, parts: list[tuple[Request, list[str]]], have: dict[str, Any]) -> None:
        def ready(index: int, reply: Reply) -> None:
            request, keys = parts[index]
            if isinstance(reply, InputError):
                have.update(dict.fromkeys(keys, reply))
                return
            fits = len(keys) if isinstance(request, Write) else len(request.options)
            if len(reply) != fits:
                raise BackendError(
                    f"{answerer.identity}: a {type(request).__name__} for {fits} got {len(reply)} in reply"
                )
            samples = list(reply) if isinstance(request, Write) else [reply]
            packed = {key: _pack(sample) for key, sample in zip(keys, samples, strict=True)}
            standing = packed if self._store is None else self._store.put(packed)
            # Read back even what was just made: a replay must not differ from the first run.
            have.update((key, _unpack(standing[key])) for key in keys)

        replies = answerer.answer([request for request, _ in parts], ready)
        if len(replies) != len(parts):
            raise BackendError(f"{answerer.identity} gave {len(replies)} replies to {len(parts)} requests")
        for index, reply in enumerate(replies):
            if parts[index][1][0] not in have:
                ready(index, reply)


def _check_prompt(prompt: Prompt) -> None:
    if not prompt:
        raise UsageError("a request needs a prompt: a text, or at least one message")


def _gaps(there: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The runs of False, as (start, end)."""
    start = None
    for place, filled in enumerate([*there, True]):
        if not filled and start is None:
            start = place
        elif filled and start is not None:
            yield start, place
            start = None


def _assemble(request: Request, keys: list[str], have: Mapping[str, object]) -> object:
    got = [have[key] for key in keys]
    failed = next((part for part in got if isinstance(part, InputError)), None)
    return failed or (tuple(got) if isinstance(request, Write) else got[0])


def _pack(sample: object) -> str:
    return json.dumps(asdict(sample) if isinstance(sample, Written) else list(sample))  # type: ignore[call-overload]


def _unpack(text: str) -> Written | tuple[float, ...]:
    try:
        data = json.loads(text)
        return Written(**data) if isinstance(data, dict) else tuple(float(value) for value in data)
    except (ValueError, TypeError) as error:
        raise InputError(f"a recorded reply cannot be read ({error}): {text[:80]!r}") from None
