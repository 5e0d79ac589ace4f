"""A policy behind an OpenAI-compatible server: vLLM, SGLang, llama.cpp, or the real one.

Raw text goes to /v1/completions. A conversation goes to /v1/chat/completions, a prefill as a last assistant message with
`continue_final_message: true, add_generation_prompt: false` (vLLM and SGLang). Many servers take that request, close the turn and answer
afresh, which gives plausible nonsense; so before the first such request the server is examined (`check_continuation`).

With `tokenizer` all prompts are rendered and tokenised here instead, as `LocalPolicy` does it, and sent as token ids. This is the surer way: a server
renders a last assistant message as its template likes, and may drop white space or what the template puts before a fresh reply.

"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, final

import httpx

from stepmark.backends import (
    ChoiceLogprobs,
    Completion,
    Completions,
    Finish,
    Message,
    Prompt,
    cut_at_stop,
    many,
)
from stepmark.errors import BackendError, CheckpointError, InputError, TooLongError, UsageError
from stepmark.models.encoding import PromptEncoder
from stepmark.models.files import CONFIGURATION, folder_of_name
from stepmark.models.http import AGAIN, Closing, DeclinedError, GarbageError, Patience, Server, usage_of
from stepmark.words import amount

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

_CHAT = "/chat/completions"
_RAW = "/completions"
_TOO_LONG = re.compile(
    r"context (length|window|size)|maximum.{0,40}tokens|too (long|large|many tokens)|max_model_len", re.I
)
_PROBE = (Message(role="user", content="Count from 1 to 9, separated by commas."),)
_ONE_TOKEN = {"max_tokens": 1, "temperature": 1.0}
"""To read probabilities; temperature 1, because some servers give log-probabilities after the temperature."""
_PROBE_PREFILL = "1, 2, 3, 4, 5, 6,"
_TOP = 20
"""Likeliest tokens that `choose` asks for: the most that vLLM allows."""


@final
class OpenAIPolicy(Closing):
    """A model served over HTTP.

    `choose` asks for the likeliest first tokens. With `tokenizer`, an option that is not among them is looked up exactly, through the log-probabilities
    of the prompt's own tokens (`echo`); without it that is a `BackendError`: a missing probability is never guessed.

    Args:
        base_url: such as `http://127.0.0.1:8000/v1`.
        model: as the server names it; None for the only one that it serves.
        tokenizer: folder or hub name of the model's tokenizer, to render and tokenise prompts here.
        api_key_env: name of the environment variable that holds the API key; None sends none.
        concurrency: requests under way at once.
        patience: waits and attempts (429, 5xx, timeouts, broken connections, unusable answers).
        logprobs: ask for the log-probability of what is written. It also tells each sample's tokens, where a server that is asked for
            several samples at once counts them together only. A server that refuses this is not asked for it again.
        transport: sends requests; None for the network.

    Raises:
        UsageError: a bad address, no API key, or several models and none named.
        BackendError: no model is named and the server does not say which it has.
        CheckpointError: no tokenizer there.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        tokenizer: str | None = None,
        api_key_env: str | None = None,
        concurrency: int = 32,
        patience: Patience | None = None,
        logprobs: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, found {concurrency}")
        again = AGAIN | frozenset(range(500, 600))
        self._server = Server(
            base_url,
            patience=patience or Patience(),
            key=api_key_env,
            transport=transport,
            rng=random.Random(0),
            again=again,
        )
        self._encoder = None if tokenizer is None else _encoder(tokenizer)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="stepmark-http")
        self._logprobs = logprobs
        self._check = threading.Lock()
        self._count = threading.Lock()
        self._continues = False
        self.name = model if model is not None else self._only_model()
        self.identity = self.name
        self.tokens_written = 0

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name={self.name!r}, address={self._server.address.rpartition('@')[2]!r})"
        )

    async def complete(self, request: Completions) -> list[Completion]:
        """See `Completing.complete`; `concurrency` requests are under way at once."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._write_one, request)

    async def choose(self, request: ChoiceLogprobs) -> list[float]:
        """See the class and `Completing.choose`."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._choose_one, request)

    def complete_many(self, requests: Sequence[Completions]) -> list[list[Completion] | InputError]:
        """The samples of each request, for callers that are no coroutine. A server that gives fewer samples than asked is asked for the rest."""
        return many(requests, self.complete)

    def choose_many(self, requests: Sequence[ChoiceLogprobs]) -> list[list[float] | InputError]:
        """Log-probabilities of the options of each request, for callers that are no coroutine."""
        return many(requests, self.choose)

    def check_continuation(self) -> None:
        """Make sure that the server continues a prefill. Done by itself before the first one, and once.

        A continued turn costs more prompt tokens than none and fewer than a closed one. Where the counts do not tell, a count to nine that was begun must
        go on.

        Raises:
            BackendError: it answers afresh, or drops the prefill.
        """
        with self._check:
            if self._continues:
                return
            begun = {"role": "assistant", "content": _PROBE_PREFILL}
            none = self._chat_body(_PROBE, "") | {"max_tokens": 1}
            continued = self._chat_body(_PROBE, _PROBE_PREFILL) | {"max_tokens": 1, "temperature": 0.0}
            closed = none | {"messages": [*none["messages"], begun]}
            low, middle, high = (self._prompt_tokens(body) for body in (none, continued, closed))
            if low is None or middle is None or high is None or not low < middle < high:
                read = partial(_written, stop=(), chat=True)
                text = self._ask(_CHAT, continued | {"max_tokens": 4}, read)[0][0].text
                if not text.lstrip().startswith("7"):
                    raise BackendError(
                        f"{self._server.address}: the server does not continue a begun reply: asked to go on "
                        f"after {_PROBE_PREFILL!r} it wrote {text!r}. Use a server that takes "
                        f"continue_final_message (vLLM, SGLang), or name the model's `tokenizer`, so that raw "
                        f"text can be sent"
                    )
            self._continues = True

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._server.close()

    def _write_one(self, request: Completions) -> list[Completion]:
        got: list[Completion] = []
        while len(got) < request.n:
            path, body = self._address(request.prompt, request.prefill)
            body |= {
                "n": request.n - len(got),
                "temperature": request.temperature,
                "max_tokens": request.max_tokens,
                **({"top_p": request.top_p} if request.top_p < 1 else {}),
                **({} if request.top_k is None else {"top_k": request.top_k}),
                **({"stop": list(request.stop)} if request.stop else {}),
                **({"logprobs": True if path == _CHAT else 1} if self._logprobs else {}),
            }
            try:
                new, count = self._ask(path, body, partial(_written, stop=request.stop, chat=path == _CHAT))
            except BackendError as error:
                if not self._logprobs or "logprob" not in str(error).lower():
                    raise
                self._logprobs = False
                continue
            with self._count:
                self.tokens_written += count
            got.extend(new)
        return got[: request.n]

    def _choose_one(self, request: ChoiceLogprobs) -> list[float]:
        path, body = self._address(request.prompt, request.prefill)
        if self._encoder is not None:
            shared, rests = self._encoder.options(request.prompt, request.prefill, request.options)
            if any(len(rest) > 1 for rest in rests):
                return [self._echo_ids(shared, rest) for rest in rests]
            body["prompt"] = shared
        body |= _ONE_TOKEN
        body |= {"logprobs": True, "top_logprobs": _TOP} if path == _CHAT else {"logprobs": _TOP}
        table = self._ask(path, body, lambda data: first_token_table(data, chat=path == _CHAT))
        if all(option in table for option in request.options):
            return [table[option] for option in request.options]
        if self._encoder is not None:
            return [self._echo_ids(shared, rest) for rest in rests]
        missing = next(option for option in request.options if option not in table)
        raise BackendError(
            f"{self._server.address}: the option {missing!r} is not among the {_TOP} likeliest tokens; name the model's `tokenizer`, with which "
            "its log-probability is read (or use a local policy)"
        )

    def _echo_ids(self, shared: list[int], rest: list[int]) -> float:
        body = self._completion_body(shared + rest) | _ONE_TOKEN | {"echo": True, "logprobs": 1}
        values = self._ask(_RAW, body, echoed_logprobs)
        ours = values[len(shared) : len(shared) + len(rest)]
        if len(values) != len(shared) + len(rest) or None in ours:
            raise BackendError(
                f"{self._server.address}: sent {amount(len(shared) + len(rest), 'token')}, the server read {len(values)}"
            )
        return sum(value for value in ours if value is not None)

    def _address(self, prompt: Prompt, prefill: str) -> tuple[str, dict[str, Any]]:
        """Where a prompt is sent, and as what."""
        if self._encoder is not None:
            return _RAW, self._completion_body(self._encoder.ids(prompt, prefill))
        if isinstance(prompt, str):
            return _RAW, self._completion_body(prompt + prefill)
        if prefill:
            self.check_continuation()
        return _CHAT, self._chat_body(prompt, prefill)

    def _completion_body(self, prompt: str | list[int]) -> dict[str, Any]:
        return {"model": self.name, "prompt": prompt}

    def _chat_body(self, prompt: tuple[Message, ...], prefill: str) -> dict[str, Any]:
        messages = [{"role": message.role, "content": message.content} for message in prompt]
        body: dict[str, Any] = {"model": self.name, "messages": messages}
        if prefill:
            messages.append({"role": "assistant", "content": prefill})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    def _ask(
        self, path: str, body: Mapping[str, Any] | None, read: Callable[[Mapping[str, Any]], Answered]
    ) -> Answered:
        try:
            return self._server.ask(path, body, read)
        except UnicodeEncodeError as error:
            raise InputError(f"the text cannot be sent, it is not valid Unicode: {error}") from None
        except DeclinedError as error:
            if error.status in (400, 413, 422) and _TOO_LONG.search(error.message):
                raise TooLongError(
                    f"{self.name}: the server refuses the request as too long: {error.message}. Start it with a "
                    f"longer context, or lower max_tokens"
                ) from None
            hint = {
                401: "; give the API key (api_key_env)",
                403: "; give the API key (api_key_env)",
                404: f"; check the address and that it serves {self.name!r}",
            }.get(error.status, "")
            raise BackendError(f"{self._server.address}{path}: {error}{hint}") from None

    def _prompt_tokens(self, body: Mapping[str, Any]) -> int | None:
        try:
            return self._server.ask(_CHAT, body, lambda data: usage_of(data, "prompt_tokens"))
        except DeclinedError:
            return None

    def _only_model(self) -> str:
        def read(data: Mapping[str, Any]) -> list[str]:
            models = data.get("data")
            if not isinstance(models, list) or not all(isinstance(m, dict) and "id" in m for m in models):
                raise GarbageError(f"expected a list of models, found {str(data)[:80]}")
            return [str(model["id"]) for model in models]

        try:
            models = self._server.ask("/models", None, read)
        except DeclinedError as error:
            raise BackendError(f"{self._server.address}/models: {error}; name the model") from None
        if len(models) != 1:
            raise UsageError(
                f"{self._server.address} serves {', '.join(models) or 'no model'}: name the one to use"
            )
        return models[0]


def _encoder(path: str) -> PromptEncoder:
    from transformers import AutoTokenizer

    folder = folder_of_name(path, CONFIGURATION)
    try:
        return PromptEncoder(AutoTokenizer.from_pretrained(folder, trust_remote_code=False), path)
    except Exception as error:  # whatever a corrupt file makes transformers or tokenizers raise
        raise CheckpointError(f"{path}: expected a tokenizer; {type(error).__name__}: {error}") from error


Data = Mapping[str, Any]


def choices_of(data: Data) -> list[Data]:
    """The choices; at least one."""
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(c, dict) for c in choices):
        raise GarbageError(f"expected a list of choices, found {str(choices)[:80]}")
    return choices


def _written(data: Data, *, stop: Sequence[str], chat: bool) -> tuple[list[Completion], int]:
    """The texts of one reply, and the tokens of them all as far as the server counts them."""
    choices, total = choices_of(data), usage_of(data, "completion_tokens")
    texts = []
    for choice in choices:
        text, cut = cut_at_stop(_text(choice, chat=chat), stop)
        logprobs = _token_logprobs(choice, chat=chat)
        texts.append(
            Completion(
                text=text,
                finish="stop" if cut else _finish(choice, stop),
                tokens=len(logprobs) if logprobs is not None else total if len(choices) == 1 else None,
                logprob=sum(logprobs) if logprobs is not None else None,
                prompt_tokens=usage_of(data, "prompt_tokens"),
                # Of vLLM with `--enable-prompt-tokens-details`, and OpenAI.
                cached_tokens=usage_of(data, "prompt_tokens_details", "cached_tokens"),
            )
        )
    return texts, total or 0


def first_token_table(data: Data, *, chat: bool) -> dict[str, float]:
    """The likeliest first tokens, as text, with their log-probabilities."""
    logprobs: Any = choices_of(data)[0].get("logprobs")
    try:
        if chat:
            return {
                entry["token"]: float(entry["logprob"]) for entry in logprobs["content"][0]["top_logprobs"]
            }
        return {str(token): float(value) for token, value in logprobs["top_logprobs"][0].items()}
    except (TypeError, KeyError, IndexError, ValueError, AttributeError):
        raise BackendError(
            f"the server gives no log-probabilities of first tokens (found {str(logprobs)[:80]}); without them it "
            f"cannot say how likely a verdict is"
        ) from None


def echoed_logprobs(data: Data) -> list[float | None]:
    """The log-probabilities of the prompt's own tokens, as `echo` gives them."""
    logprobs: Any = choices_of(data)[0].get("logprobs")
    count = usage_of(data, "prompt_tokens")
    try:
        values = list(logprobs["token_logprobs"])
    except (TypeError, KeyError):
        values = []
    if count is None or len(values) < count or count < 2:
        raise BackendError(
            "the server does not echo the log-probabilities of its prompt (`echo` of /v1/completions), which is "
            "needed where an option is not among the likeliest tokens; use vLLM or SGLang, or a local policy"
        )
    return values[:count]


def _text(choice: Data, *, chat: bool) -> str:
    if not chat:
        text = choice.get("text")
    else:
        message = choice.get("message")
        if not isinstance(message, dict):
            raise GarbageError(f"expected a message in each choice, found {str(message)[:80]}")
        if message.get("reasoning_content") or message.get("reasoning"):
            raise BackendError(
                "the server takes part of the text out of the reply (a reasoning parser); start it without one"
            )
        text = message.get("content")
    if not isinstance(text, str):
        raise GarbageError(f"expected a text in each choice, found {str(text)[:80]}")
    return text


def _finish(choice: Data, stop: Sequence[str]) -> Finish:
    reason = choice.get("finish_reason")
    if reason == "length":
        return "length"
    if reason != "stop":
        raise GarbageError(f"expected finish_reason 'stop' or 'length', found {reason!r}")
    if not stop:
        return "end"
    for field in ("stop_reason", "matched_stop"):
        if field in choice:  # a string that matched; a token id or null at the model's own end
            return "stop" if isinstance(choice[field], str) else "end"
    return "end or stop"


def _token_logprobs(choice: Data, *, chat: bool) -> list[float] | None:
    """The log-probability of each written token, when they were asked for."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    try:
        if chat:
            return [float(entry["logprob"]) for entry in logprobs["content"]]
        return [float(value) for value in logprobs["token_logprobs"]]
    except (TypeError, KeyError, ValueError):
        return None
