"""Sans-I/O HTTP requests and retries.

An exchange is a generator: it yields a `Send` and is sent the response (or the error of the connection), or yields a `Wait` and is
sent None; it returns what the answer holds. `Client` and `AsyncClient` only do the sending and the waiting, each in its own way, so
that attempts, waits and checks are written once.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, final

import httpx

from stepmark.errors import BackendError, UsageError
from stepmark.models.policies.transport import CONNECT, KEY_VARIABLE, Contact, Patience

_AGAIN = frozenset({408, 425, 429, 500, 502, 503})
_LONGEST = 3600.0
"""Seconds: no request may take longer."""

PATIENT = Patience()
"""The default of clients."""

Verb = Literal["GET", "POST", "DELETE"]
Result = TypeVar("Result")
Value = TypeVar("Value")
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """A request to be sent."""

    verb: Verb
    url: str
    body: bytes | None
    """JSON; None for none."""
    timeout: float
    """Seconds without a byte before it counts as failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """A pause."""

    seconds: float


Exchange = Generator[Send | Wait, httpx.Response | httpx.RequestError | None, Result]
"""Yield a `Send` to be sent a response (read to its end) or the error instead of one; yield a `Wait` to be sent None."""


class UnansweredError(BackendError):
    """No usable answer in all attempts, or in time.

    Args:
        message: for people.
        why: what the last attempt came to.
    """

    def __init__(self, message: str, why: str) -> None:
        self.why = why
        super().__init__(message)


class DeclinedError(Exception):
    """The server understood and declined: asking again would not help. What it means is for the caller to say.

    Args:
        status: the HTTP status.
        url: what was asked.
        message: the server's words.
        type: the server's word for the kind of error; None where it gave none.
        field: the field of the request that it is about.
    """

    def __init__(
        self, status: int, url: str, message: str, *, type: str | None = None, field: str | None = None
    ) -> None:
        self.status, self.url, self.message, self.type, self.field = status, url, message, type, field
        super().__init__(f"{url}: HTTP {status}: {message}")

    def as_backend_error(self) -> BackendError:
        """For callers to whom it is a failure like any other."""
        hint = f" (an API key is sent where {KEY_VARIABLE} holds one)" * (self.status in (401, 403))
        return BackendError(f"{self}{hint}")


@final
class Rules:
    """How one server is talked to.

    Args:
        address: `http://host:port`, with or without `/v1`.
        patience: attempts and waits.
        rng: draws the jitter of the waits.
        clock: seconds, from any origin; only grows.

    Raises:
        UsageError: no such address.
    """

    def __init__(
        self,
        address: str,
        *,
        patience: Patience,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not _is_address(address):
            raise UsageError(
                f"expected a server's address such as http://127.0.0.1:8000, found {_shown(address)}"
            )
        self.address = address.rstrip("/").removesuffix("/v1").rstrip("/")
        self.patience = patience
        self._rng, self._clock, self._contact = rng or random.Random(), clock, Contact(clock)

    def ask(
        self,
        verb: Verb,
        path: str,
        body: Mapping[str, Any] | None,
        parse: Callable[[Mapping[str, Any]], Parsed],
        *,
        timeout: float | None = None,
        tell: bool = False,
        once: bool = False,
    ) -> Exchange[Parsed]:
        """Ask until there is an answer, as often as is reasonable.

        A failure (no connection, HTTP 408, 425, 429, 500, 502, 503) is tried again `Patience.retries` times, after growing pauses. A server
        that says when to come again (`Retry-After`) is obeyed, and does not use up an attempt; it is given up when it has had
        `Patience.timeout` seconds.

        Args:
            verb: the method.
            path: from the address on.
            body: sent as JSON.
            parse: reads the answer.
            timeout: seconds for all of it: attempts and waits.
            tell: say in the body, as `timeout`, how long the answer is wanted: as long as it is waited for.
            once: one attempt, for what can as well be left undone.

        Raises:
            DeclinedError: any other status than a success.
            BackendError: no answer, one that is no JSON object, or one that `parse` refuses.
            UnreachableError: nothing answers there, and nothing has before.
        """
        url = self.address + path
        begun, failures = self._clock(), 0
        why = "nothing was tried"

        def remaining() -> float:
            return math.inf if timeout is None else begun + timeout - self._clock()

        def late() -> UnansweredError:
            return UnansweredError(
                f"{url}: no answer within the {timeout:g} s that it was given; the last: {why}", why
            )

        while True:
            left = remaining()
            if left <= 0:
                raise late()
            longest = min(left, self.patience.timeout, _LONGEST)
            # A little less, so that the server's own word comes before we hang up.
            content = {**body, "timeout": max(0.95 * longest, 0.001)} if tell and body is not None else body
            response = yield Send(verb=verb, url=url, body=_packed(content), timeout=longest)
            pause = None
            if isinstance(response, httpx.RequestError):
                why = f"{type(response).__name__}: {response}"
            else:
                assert response is not None
                self._contact.answered = True
                if response.is_success:
                    return parse(_json(response, url))
                if response.status_code not in _AGAIN:
                    raise _declined(response, url)
                why = f"HTTP {response.status_code}: {_declined(response, url).message}"
                pause = _come_again(response)
            if pause is None:
                failures += 1
                if once or failures > self.patience.retries:
                    if isinstance(response, httpx.RequestError):
                        self._contact.check(url, response, since=begun, pause=math.inf)
                    raise UnansweredError(
                        f"{url}: no usable answer in {failures} attempts; the last: {why}. No score was made from it",
                        why,
                    )
                full = min(self.patience.first_wait * 2 ** (failures - 1), self.patience.max_wait)
                pause = full * (0.5 + 0.5 * self._rng.random())
                if isinstance(response, httpx.RequestError):
                    self._contact.check(url, response, since=begun, pause=pause)
            else:
                waited = self._clock() - begun
                if once or pause > self.patience.max_wait or waited + pause > self.patience.timeout:
                    raise UnansweredError(
                        f"{url}: after {waited:.0f} s the server asks to wait another {pause:.0f} s ({why}); run again later, or "
                        "have more patience",
                        why,
                    )
                # A little more than asked, so that those who wait do not all come back in the same moment.
                pause += self.patience.first_wait * self._rng.random()
            if pause >= remaining():  # it would be slept through for nothing
                raise late()
            self._contact.show(url, why, pause)
            yield Wait(seconds=pause)


def _is_address(text: str) -> bool:
    """Whether it is a scheme, a host, perhaps a port and a path, and nothing else."""
    try:
        url = httpx.URL(text) if text.startswith(("http://", "https://")) else None
    except httpx.InvalidURL:
        url = None
    return (
        url is not None
        and bool(url.host)
        and (url.port is None or 0 < url.port < 2**16)
        and not (url.userinfo or url.query or url.fragment or "?" in text or "#" in text)
        and not any(character.isspace() for character in text)
    )


def _shown(address: str) -> str:
    """An address as an error names it: credentials are redacted."""
    scheme, at, rest = address.rpartition("@")
    if not at:
        return repr(address)
    return (
        f"{scheme.partition('://')[0] + '://…@' + rest!r}: a key is not part of it, {KEY_VARIABLE} holds it"
    )


def closed(address: str) -> UsageError:
    """For who asks with a client that is closed."""
    return UsageError(f"the client of {address} is closed; make another one")


def request_of(client: httpx.Client | httpx.AsyncClient, asked: Send) -> httpx.Request:
    """The request itself."""
    kind = None if asked.body is None else {"Content-Type": "application/json"}
    timeout = httpx.Timeout(asked.timeout, connect=min(asked.timeout, CONNECT))
    return client.build_request(asked.verb, asked.url, content=asked.body, headers=kind, timeout=timeout)


def _packed(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")


def _come_again(response: httpx.Response) -> float | None:
    """Seconds that the server asks to wait."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


def _json(response: httpx.Response, url: str) -> Mapping[str, Any]:
    if response.status_code == 204:
        return {}
    try:
        # json.loads takes NaN and Infinity, which are no JSON, and would make scores of them.
        data = json.loads(response.content, parse_constant=_no_constant)
    except ValueError as error:
        raise BackendError(f"{url}: expected JSON, found {response.text[:80]!r} ({error})") from None
    if not isinstance(data, dict):
        raise BackendError(f"{url}: expected a JSON object, found {response.text[:80]!r}")
    return data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _declined(response: httpx.Response, url: str) -> DeclinedError:
    """What the server says is wrong: our and OpenAI's {"error": {"message", …}}, or the text."""
    try:
        data = json.loads(response.content)
    except ValueError:
        data = None
    inner = data.get("error", data) if isinstance(data, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("message"), str):
        return DeclinedError(response.status_code, url, response.text[:300])
    kind, field = inner.get("type"), inner.get("field")
    return DeclinedError(
        response.status_code,
        url,
        inner["message"],
        type=kind if isinstance(kind, str) else None,
        field=field if isinstance(field, str) else None,
    )


@final
class PerProcess(Generic[Value]):
    """A value for each process, made when it is first asked for; the same one for all threads.

    Args:
        make: makes one. Threads that ask at the same time may each make one, of which all get the same; what nobody got must need no end.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._made: dict[int, Value] = {}

    @property
    def here(self) -> Value:
        """The one of the process that asks."""
        process = os.getpid()
        value = self._made.get(process)
        return self._made.setdefault(process, self._make()) if value is None else value

    @property
    def made(self) -> Value | None:
        """The same, if it has been made."""
        return self._made.get(os.getpid())
