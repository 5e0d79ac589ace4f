"""One request to a server, asked again as often as is reasonable, and the errors that it can end in."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, final

import httpx

from stepmark.errors import BackendError, UnreachableError, UsageError

_LOG = logging.getLogger("stepmark")
_AGAIN = (408, 425, 429)

FIRST_ANSWER = 2.0
"""Seconds for which an address is tried where connections are refused and nothing has ever answered."""

CONNECT = 10.0
"""Seconds for a connection: a server that is there takes one at once, however long its answer takes."""

KEY_VARIABLE = "STEPMARK_API_KEY"
"""The environment variable whose key is sent to a server that is named by its address alone. A variable of ours, so that a key
that was set for another service never goes to whatever server is named."""
Parsed = TypeVar("Parsed")


class GarbageError(Exception):
    """A reply with status 200 that does not hold what it must; asked again like a failure."""


class RefusedError(Exception):
    """The server understood and refused: asking again would not help."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(f"HTTP {status}: {message}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long to wait, and how often to ask again."""

    retries: int = 6
    """Further attempts after the first."""
    first_wait: float = 0.5
    """Seconds before the second attempt; doubled with each, and drawn from its upper half."""
    max_wait: float = 60.0
    """No wait is longer, in seconds. A server that asks for a longer one (`Retry-After`) is given up."""
    timeout: float = 600.0
    """Seconds without a byte before an attempt counts as failed."""


@final
class Contact:
    """What a client knows of a server between its attempts: whether it has ever answered, and when a retry was last shown.

    Retries are shown as warnings of the logger "stepmark", which Python prints on standard error unless a program says otherwise. Many
    requests fail at once, so that there is at most one a second.

    Args:
        clock: seconds, from any origin; only grows.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.answered = False
        self._given_up = False
        self._clock = clock
        self._shown: float | None = None
        self._lock = threading.Lock()

    def check(self, url: str, error: httpx.RequestError, *, since: float, pause: float) -> None:
        """Give up an address where nothing is, and where nothing was: a server that is restarted is waited for.

        Args:
            url: what was asked.
            error: of the attempt.
            since: when the first attempt was made, by the clock.
            pause: seconds until the next; infinite after the last.

        Raises:
            UnreachableError: no connection, and no time for another attempt.
        """
        if self.answered or not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return
        spent = self._clock() - since
        # Of many requests the first one waits, and not each in its turn.
        if self._given_up or spent + pause > FIRST_ANSWER:
            self._given_up = True
            raise UnreachableError(
                f"{url}: nothing answers there ({type(error).__name__}: {error}), tried for {spent:.1f} s. No score was made from it. Start "
                "the server, or check the address and the port"
            )

    def show(self, url: str, reason: str, pause: float) -> None:
        """Show that a request is sent again, unless a retry was shown within the last second."""
        now = self._clock()
        with self._lock:
            if self._shown is not None and now - self._shown < 1:
                return
            self._shown = now
        _LOG.warning("%s: %s; next attempt in %.1f s", url, reason, pause)


def key_variable() -> str | None:
    """`KEY_VARIABLE` where it holds a key, else None: none is sent."""
    return KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else None


def key_header(variable: str | None) -> dict[str, str]:
    """The header that carries the key of an environment variable; none for None.

    Raises:
        UsageError: the variable is not set.
    """
    if variable is None:
        return {}
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"the environment variable {variable} holds no API key: set it")
    return {"Authorization": f"Bearer {key}"}


@final
class Server:
    """A JSON-over-HTTP server.

    Args:
        base_url: such as `http://127.0.0.1:8000/v1`.
        api_key_env: name of the environment variable that holds the key; None sends none.
        patience: waits and attempts.
        rng: draws the jitter of the waits.

    Raises:
        UsageError: an address without http:// or https://, or the variable is not set.
    """

    def __init__(
        self, base_url: str, *, api_key_env: str | None, patience: Patience, rng: random.Random
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise UsageError(f"a server's address begins with http:// or https://, found {base_url!r}")
        self.base_url = base_url.rstrip("/")
        self._patience = patience
        self._rng = rng
        self._contact = Contact()
        self._client = httpx.Client(
            headers=key_header(api_key_env),
            timeout=httpx.Timeout(patience.timeout, connect=min(patience.timeout, CONNECT)),
        )

    def ask(
        self, path: str, body: Mapping[str, Any] | None, parse: Callable[[Mapping[str, Any]], Parsed]
    ) -> Parsed:
        """POST `body` (GET without one) and parse the reply.

        Raises:
            RefusedError: a 4xx answer other than 408, 425, 429, or a redirect.
            BackendError: no usable answer after all attempts.
            UnreachableError: nothing answers there, and nothing has before.
        """
        url = f"{self.base_url}{path}"
        since = time.monotonic()
        for attempt in range(self._patience.retries + 1):
            asked_to_wait = None
            failure: httpx.RequestError | None = None
            try:
                response = self._client.request("GET" if body is None else "POST", url, json=body)
                self._contact.answered = True
                if response.status_code in _AGAIN or response.status_code >= 500:
                    reason = f"HTTP {response.status_code}: {_message(response)}"
                    asked_to_wait = _retry_after(response)
                elif response.status_code >= 300:
                    raise RefusedError(response.status_code, _message(response))
                else:
                    return parse(_json(response))
            except httpx.RequestError as error:
                failure, reason = error, f"{type(error).__name__}: {error}"
            except GarbageError as error:
                reason = str(error)
            if attempt < self._patience.retries:
                pause = self._pause(url, attempt, asked_to_wait, reason)
                if failure is not None:
                    self._contact.check(url, failure, since=since, pause=pause)
                self._contact.show(url, reason, pause)
                time.sleep(pause)
            elif failure is not None:
                self._contact.check(url, failure, since=since, pause=math.inf)
        raise BackendError(
            f"{url}: no usable answer in {self._patience.retries + 1} attempts; the last: {reason}. No score was "
            f"made from it. Look after the server and run again: recorded replies are not asked again"
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _pause(self, url: str, attempt: int, asked: float | None, reason: str) -> float:
        longest = self._patience.max_wait
        if asked is None:
            full = min(self._patience.first_wait * 2**attempt, longest)
            pause: float = full * (0.5 + 0.5 * self._rng.random())
            return pause
        if asked > longest:
            raise BackendError(
                f"{url}: the server asks to wait {asked:.0f} s, more than {longest:.0f} s ({reason}); run again "
                f"later, or raise max_wait"
            )
        # A little more than asked, so that waiting threads do not all come back in the same moment.
        return asked + self._patience.first_wait * self._rng.random()


def _json(response: httpx.Response) -> Mapping[str, Any]:
    try:
        data = response.json()
    except ValueError:
        raise GarbageError(f"expected JSON, found {response.text[:80]!r}") from None
    if not isinstance(data, dict):
        raise GarbageError(f"expected a JSON object, found {response.text[:80]!r}")
    return data


def _message(response: httpx.Response) -> str:
    """What the server says is wrong: OpenAI's {"error": {"message"}}, vLLM's {"message"}, or the text."""
    try:
        data = response.json()
    except ValueError:
        return response.text[:200]
    if isinstance(data, dict):
        inner = data.get("error", data)
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):
            return str(inner["message"])
    return response.text[:200]


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds that the server asks to wait: a number or a date."""
    value = response.headers.get("Retry-After")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
