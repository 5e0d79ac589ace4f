"""JSON over HTTP with retries: the one caller of score servers, `/pooling` servers and OpenAI-compatible servers."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import re
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar, final

import httpx

from stepmark.errors import BackendError, UnreachableError, UsageError

_LOG = logging.getLogger("stepmark")
AGAIN = frozenset({408, 425, 429, 500, 502, 503})
"""HTTP statuses after which a request is sent again. 504 is not among them: a score server did not compute in time as much as it was sent."""
FIRST_ANSWER = 2.0
"""Seconds for which an address is tried where connections are refused and nothing has ever answered."""
CONNECT = 10.0
"""Seconds for a connection: a server that is there takes one at once, however long its answer takes."""
KEY_VARIABLE = "STEPMARK_API_KEY"
"""The environment variable whose key is sent to a server that is named by its address alone. A variable of ours, so that a key
that was set for another service never goes to whatever server is named."""

Parsed = TypeVar("Parsed")


class GarbageError(Exception):
    """A reply with a status of success that does not hold what it must; sent again like a failure."""


class UnansweredError(BackendError):
    """No usable answer in all attempts, or in time; `why` says what the last attempt came to."""

    def __init__(self, message: str, why: str) -> None:
        self.why = why
        super().__init__(message)


class DeclinedError(Exception):
    """The server understood and declined: sending again would not help. What it means is for the caller to decide.

    Args:
        status: the HTTP status.
        url: the address of the request.
        message: the server's words.
        type: the server's word for the kind of error; None where it gave none.
        field: the field of the request that it is about.
    """

    def __init__(
        self, status: int, url: str, message: str, *, type: str | None = None, field: str | None = None
    ) -> None:
        self.status, self.url, self.message, self.type, self.field = status, url, message, type, field
        super().__init__(f"HTTP {status}: {message}")

    def as_backend_error(self) -> BackendError:
        """For callers to whom it is a failure like any other."""
        hint = f" (an API key is sent where {KEY_VARIABLE} holds one)" * (self.status in (401, 403))
        return BackendError(f"{self.url}: {self}{hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long to wait for a server, and how often to retry."""

    retries: int = 6
    """Further attempts after the first."""
    first_wait: float = 0.5
    """Seconds before the second attempt; doubled with each, and drawn from its upper half."""
    max_wait: float = 60.0
    """No wait is longer, in seconds. A server that asks for a longer one (`Retry-After`) is given up."""
    timeout: float = 600.0
    """Seconds without a byte before an attempt counts as failed; and for which a server may ask to be waited for."""


def key_variable() -> str | None:
    """`KEY_VARIABLE` where it holds a key, else None: none is sent."""
    return KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else None


def key_header(variable: str | None) -> dict[str, str]:
    """The header that carries the key of an environment variable, none for None; a `UsageError` where it is not set."""
    if variable is None:
        return {}
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"the environment variable {variable} holds no API key: set it")
    return {"Authorization": f"Bearer {key}"}


class Closing(ABC):
    """What has connections: `close`, or a `with` block, closes them."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class Server(Closing):
    """One server, asked with retries. Safe for threads.

    Retries are shown as warnings of the logger "stepmark", one a second at most.

    Args:
        address: such as `http://127.0.0.1:8000/v1`.
        patience: attempts and waits.
        key: the environment variable with the API key; None sends none.
        headers: further headers of each request.
        transport: sends requests; None for the network.
        sleep: waits some seconds; None for `time.sleep`.
        rng: draws the jitter of the waits.
        clock: seconds, from any origin; only grows.
        again: HTTP statuses that are retried.

    Raises:
        UsageError: no address of a server, or the variable is not set.
    """

    def __init__(
        self,
        address: str,
        *,
        patience: Patience,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        again: frozenset[int] = AGAIN,
    ) -> None:
        _parsed(address)
        self.address = address.rstrip("/")
        self.patience = patience
        self._http = httpx.Client(headers={**key_header(key), **(headers or {})}, transport=transport)
        # For callers that drop it without closing it: a command line, a notebook.
        weakref.finalize(self, self._http.close)
        self._rng, self._sleep, self._clock, self._again = rng or random.Random(), sleep, clock, again
        self._answered = self._given_up = False
        self._shown: float | None = None
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether it can no longer be asked."""
        return self._http.is_closed

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        parse: Callable[[Mapping[str, Any]], Parsed],
    ) -> Parsed:
        """Send a request until there is an answer.

        A failure is retried `Patience.retries` times, after growing pauses. A `Retry-After` of the server is obeyed and does not use up an attempt;
        the server is given up after `Patience.timeout` seconds of it.

        Args:
            path: from the address on.
            body: sent as JSON with POST; None: GET.
            parse: reads the answer.

        Raises:
            DeclinedError: any status that is neither a success nor retried.
            BackendError: no answer, one that is no JSON object, or one that `parse` refuses.
            UnreachableError: nothing answers there, and nothing has before.
            UnicodeEncodeError: half of a surrogate pair in the body.
            UsageError: it is closed.
        """
        url, begun, failures, why = self.address + path, self._clock(), 0, "nothing was tried"

        while True:
            reply = self._send("GET" if body is None else "POST", url, body, self.patience.timeout)
            pause = None
            if isinstance(reply, httpx.RequestError):
                why = f"{type(reply).__name__}: {reply}"
            else:
                self._answered = True
                if reply.is_success:
                    try:
                        return parse(_json(reply, url))
                    except GarbageError as error:
                        why = str(error)
                elif reply.status_code not in self._again:
                    raise _declined(reply, url)
                else:
                    why = str(_declined(reply, url))
                    pause = _retry_after(reply)
            if pause is None:
                failures += 1
                if failures > self.patience.retries:
                    self._check_reachable(url, reply, since=begun, pause=math.inf)
                    raise UnansweredError(
                        f"{url}: no usable answer in {failures} attempts; the last: {why}. No score was made from it. Look after the server and "
                        "run again",
                        why,
                    )
                full = min(self.patience.first_wait * 2 ** (failures - 1), self.patience.max_wait)
                pause = full * (0.5 + 0.5 * self._rng.random())
                self._check_reachable(url, reply, since=begun, pause=pause)
            else:
                waited = self._clock() - begun
                if pause > self.patience.max_wait or waited + pause > self.patience.timeout:
                    raise UnansweredError(
                        f"{url}: after {waited:.0f} s the server asks to wait another {pause:.0f} s ({why}); run again later, or raise max_wait",
                        why,
                    )
                # A little more than asked, so that waiting clients do not all come back in the same moment.
                pause += self.patience.first_wait * self._rng.random()
            self._show(url, why, pause)
            (self._sleep or time.sleep)(pause)

    def _send(
        self, verb: str, url: str, body: Mapping[str, Any] | None, timeout: float
    ) -> httpx.Response | httpx.RequestError:
        """The response, read to its end; or the error instead of one."""
        if self.closed:
            raise UsageError(f"{url}: the client is closed; make another one")
        content = None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        try:
            return self._http.request(
                verb,
                url,
                content=content,
                headers=None if body is None else {"Content-Type": "application/json"},
                timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT)),
            )
        except httpx.RequestError as error:
            return error

    def _check_reachable(
        self, url: str, reply: httpx.Response | httpx.RequestError, *, since: float, pause: float
    ) -> None:
        """Give up an address where nothing has ever answered; a server that is restarted is waited for."""
        if self._answered or not isinstance(reply, httpx.ConnectError | httpx.ConnectTimeout):
            return
        spent = self._clock() - since
        # Of many requests the first one waits, and not each in its turn.
        if self._given_up or spent + pause > FIRST_ANSWER:
            self._given_up = True
            raise UnreachableError(
                f"{url}: nothing answers there ({type(reply).__name__}: {reply}), tried for {spent:.1f} s. No score was made from it. Start "
                "the server, or check the address and the port"
            )

    def _show(self, url: str, why: str, pause: float) -> None:
        now = self._clock()
        with self._lock:
            if self._shown is not None and now - self._shown < 1:
                return
            self._shown = now
        _LOG.warning("%s: %s; next attempt in %.1f s", url, why, pause)


def root_of(address: str) -> str:
    """The address of a PRM's server without /v1.

    Raises:
        UsageError: no address of a server, or one with credentials: it is the PRM's name, which stands in logs and outputs.
    """
    url = _parsed(address)
    if url.userinfo:
        place = f"{url.scheme}://…@{url.netloc.decode()}"
        raise UsageError(
            f"expected a server's address, found {place!r}: a key is not part of it, {KEY_VARIABLE} holds it"
        )
    return address.rstrip("/").removesuffix("/v1")


def _parsed(address: str) -> httpx.URL:
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        shown = re.sub("//[^/]*@", "//…@", address)  # what may be a password
        raise UsageError(f"expected a server's address such as http://127.0.0.1:8000, found {shown!r}")
    return url


def _json(response: httpx.Response, url: str) -> Mapping[str, Any]:
    def no_constant(name: str) -> float:
        # json.loads takes NaN and Infinity, which are no JSON, and would make scores of them.
        raise BackendError(
            f"{url}: the server answers {name}, which is no number in JSON; no score was made from it"
        )

    try:
        data = json.loads(response.content, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise GarbageError(f"expected JSON, found {response.text[:80]!r}") from None
    if not isinstance(data, dict):
        raise GarbageError(f"expected a JSON object, found {response.text[:80]!r}")
    return data


def usage_of(data: Mapping[str, Any], *path: str) -> int | None:
    """A count of `usage`, such as `prompt_tokens`; None when the server does not count."""
    count = data.get("usage")
    for field in path:
        count = count.get(field) if isinstance(count, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _declined(response: httpx.Response, url: str) -> DeclinedError:
    """The server's error: our and OpenAI's {"error": {"message", …}}, vLLM's {"message"}, or the text."""
    try:
        data = json.loads(response.content)
    except (ValueError, RecursionError):
        data = None
    inner = data.get("error", data) if isinstance(data, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("message"), str):
        return DeclinedError(response.status_code, url, response.text[:300])
    kind, field = (value if isinstance(value := inner.get(name), str) else None for name in ("type", "field"))
    return DeclinedError(response.status_code, url, inner["message"], type=kind, field=field)


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds that the server asks to wait."""
    value = response.headers.get("Retry-After", "")
    return float(value) if re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII) else None
