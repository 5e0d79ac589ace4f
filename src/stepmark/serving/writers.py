"""What writes the candidates behind best-of-N as a model: an OpenAI-compatible server, asked without a thread, or a policy in this process.

A request to a server ends when its client goes away: the connection is closed, and servers such as vLLM then stop writing. What a policy in this
process has begun it finishes; the result is dropped.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, final

import httpx

from stepmark.batching import Message, Write, Written
from stepmark.errors import BackendError, InputError, StepmarkError, TooLongError, UsageError
from stepmark.models.policies import Policy
from stepmark.models.policies import openai as wire
from stepmark.models.policies.transport import GarbageError, key_header, key_variable

_TOO_LONG = re.compile(
    r"context (length|window|size)|maximum.{0,40}tokens|too (long|large|many tokens)|max_model_len", re.I
)
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_ATTEMPTS = 3
_FIRST_WAIT = 0.25
LONGEST = 1024
"""Tokens of a completion from a policy in this process where the request does not say."""


class PolicyError(StepmarkError):
    """The policy failed or answered nonsense; nothing was chosen."""


class PolicyAwayError(PolicyError):
    """The policy cannot be reached, or has no room now.

    Args:
        message: what happened.
        retry_after: seconds until it may be there again.
    """

    def __init__(self, message: str, *, retry_after: float = 5.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """Completions that are asked for."""

    messages: tuple[Message, ...]
    n: int
    temperature: float
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Completions that were written."""

    texts: tuple[Written, ...]
    prompt_tokens: int | None
    """That the policy read, over all requests that it took; None where it does not tell."""
    completion_tokens: int | None
    """That it wrote, of all completions; None where it does not tell."""


class Writer(Protocol):
    """Writes completions of a conversation."""

    @property
    def name(self) -> str:
        """Its name in answers."""

    @property
    def penalties(self) -> bool:
        """Whether it knows presence and frequency penalties."""

    async def draw(self, asked: Draw) -> Drawn:
        """Write `asked.n` completions.

        Raises:
            InputError: the policy cannot read the conversation.
            PolicyError: it failed.
        """

    async def close(self) -> None:
        """Let go of what it holds."""


@final
class ServedWriter:
    """A model behind an OpenAI-compatible server: `/chat/completions`.

    A server that gives fewer completions than asked is asked for the rest. A full or broken one is asked three times in all.

    Args:
        address: `http://host:port/v1#model`; without `#model` the server is asked for its only one. The key in `STEPMARK_API_KEY` is sent,
            if there is one.
        transport: for tests.

    Raises:
        UsageError: no address.
    """

    penalties = True

    def __init__(self, address: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        url, _, model = address.partition("#")
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"a server's address begins with http:// or https://, found {address!r}")
        self._url = url.rstrip("/")
        self.name = model
        # No limit of its own on the answer: the request's deadline ends it.
        self._client = httpx.AsyncClient(
            headers=key_header(key_variable()),
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            transport=transport,
        )
        self._jitter = random.Random(0)

    async def draw(self, asked: Draw) -> Drawn:
        """See `Writer.draw`."""
        if not self.name:
            self.name = await self._only_model()
        texts: list[Written] = []
        prompt: int | None = 0
        completion: int | None = 0
        while len(texts) < asked.n:
            data = await self._ask("/chat/completions", self._body(asked, len(texts)))
            try:
                new = wire.written_of(data, asked.stop, chat=True)
            except (GarbageError, BackendError) as error:
                raise PolicyError(f"the policy {self.name}: {error}") from None
            read, written = wire.usage_of(data, "prompt_tokens"), wire.usage_of(data, "completion_tokens")
            prompt = None if prompt is None or read is None else prompt + read
            completion = None if completion is None or written is None else completion + written
            texts += new
        return Drawn(texts=tuple(texts[: asked.n]), prompt_tokens=prompt, completion_tokens=completion)

    async def close(self) -> None:
        """See `Writer.close`."""
        await self._client.aclose()

    def _body(self, asked: Draw, have: int) -> dict[str, Any]:
        optional = {
            "top_p": asked.top_p,
            "max_tokens": asked.max_tokens,
            "stop": list(asked.stop) or None,
            "seed": None if asked.seed is None else asked.seed + have,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
        }
        return {
            "model": self.name,
            "messages": [{"role": one.role, "content": one.content} for one in asked.messages],
            "n": asked.n - have,
            "temperature": asked.temperature,
            **{name: value for name, value in optional.items() if value is not None},
        }

    async def _ask(self, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response = await self._client.request(
                    "GET" if body is None else "POST", f"{self._url}{path}", json=body
                )
            except UnicodeEncodeError as error:
                raise InputError(f"the conversation is not valid Unicode: {error}") from None
            except httpx.RequestError as error:
                failure = PolicyAwayError(f"the policy's server does not answer ({type(error).__name__})")
            else:
                if response.status_code < 300:
                    return _object(response)
                said = _said(response)
                if response.status_code not in _AGAIN:
                    raise self._refused(response.status_code, said)
                failure = PolicyAwayError(f"the policy's server answers {response.status_code}: {said}")
            if attempt < _ATTEMPTS:
                await asyncio.sleep(_FIRST_WAIT * 2**attempt * (0.5 + 0.5 * self._jitter.random()))
        raise failure

    def _refused(self, status: int, said: str) -> StepmarkError:
        if status in (400, 413, 422):
            if _TOO_LONG.search(said):
                return TooLongError(
                    f"the policy refuses the conversation as too long: {said}", field="messages"
                )
            return InputError(f"the policy refuses the request: {said}")
        hint = "; set STEPMARK_API_KEY where the server runs" if status in (401, 403) else ""
        return PolicyError(f"the policy's server answers {status}: {said}{hint}")

    async def _only_model(self) -> str:
        data = await self._ask("/models", None)
        listed = data.get("data")
        names = [one.get("id") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        if len(names) != 1 or not isinstance(names[0], str):
            raise PolicyError(
                f"the policy's server has {len(names)} models; name one at its address, as in {self._url}#NAME"
            )
        return names[0]


@final
class ThreadWriter:
    """A policy in this process, in one thread of its own: a model is never entered twice.

    Args:
        policy: writes.
    """

    penalties = False

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = policy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stepmark-write")

    async def draw(self, asked: Draw) -> Drawn:
        """See `Writer.draw`."""
        write = Write(
            prompt=asked.messages,
            n=asked.n,
            temperature=asked.temperature,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            max_tokens=asked.max_tokens or LONGEST,
            stop=asked.stop,
            # By number where a seed is given: equal requests then get equal texts.
            seed=asked.seed or 0,
            first=None if asked.seed is None else 0,
        )
        try:
            [reply] = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._policy.write, [write]
            )
        except UsageError as error:
            raise InputError(f"the policy {self.name}: {error}") from None
        except BackendError as error:
            raise PolicyError(f"the policy {self.name}: {error}") from None
        if isinstance(reply, InputError):
            raise reply
        prompts, counts = [one.prompt_tokens for one in reply], [one.tokens for one in reply]
        return Drawn(
            texts=tuple(reply),
            prompt_tokens=prompts[0],
            completion_tokens=None if None in counts else sum(count or 0 for count in counts),
        )

    async def close(self) -> None:
        """See `Writer.close`."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _object(response: httpx.Response) -> Mapping[str, Any]:
    try:
        data = response.json()
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise PolicyError(f"the policy's server answered no JSON object: {response.text[:80]!r}")
    return data


def _said(response: httpx.Response) -> str:
    """What a server says is wrong: OpenAI's {"error": {"message"}}, vLLM's {"message"}, or the text."""
    try:
        data = response.json()
    except ValueError:
        return response.text[:200]
    inner = data.get("error", data) if isinstance(data, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("message"), str):
        return str(inner["message"])[:200]
    return response.text[:200]
