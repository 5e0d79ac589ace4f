"""What OpenAI-compatible servers answer, read strictly: a field that must be there and is not is garbage.

Served by: vLLM (adds `stop_reason`, `prompt_logprobs`), SGLang (adds `matched_stop`), llama.cpp, OpenAI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.batching import Finish, Written, cut_at_stop
from stepmark.errors import BackendError
from stepmark.models.policies.transport import GarbageError

Data = Mapping[str, Any]


def choices_of(data: Data) -> list[Data]:
    """The choices; at least one."""
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(c, dict) for c in choices):
        raise GarbageError(f"expected a list of choices, found {str(choices)[:80]}")
    return choices


def usage_of(data: Data, field: str) -> int | None:
    """`prompt_tokens` or `completion_tokens`; None when the server does not count."""
    return _count(data.get("usage"), field)


def cached_of(data: Data) -> int | None:
    """`usage.prompt_tokens_details.cached_tokens` (vLLM with `--enable-prompt-tokens-details`, OpenAI); None when it is not told."""
    usage = data.get("usage")
    return _count(usage.get("prompt_tokens_details") if isinstance(usage, dict) else None, "cached_tokens")


def _count(counts: object, field: str) -> int | None:
    count = counts.get(field) if isinstance(counts, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def written_of(data: Data, stop: Sequence[str], *, chat: bool) -> list[Written]:
    """The texts of one reply."""
    choices = choices_of(data)
    total, prompt, cached = (
        usage_of(data, "completion_tokens"),
        usage_of(data, "prompt_tokens"),
        cached_of(data),
    )
    texts = []
    for choice in choices:
        text, cut = cut_at_stop(_text(choice, chat=chat), stop)
        logprobs = _token_logprobs(choice, chat=chat)
        texts.append(
            Written(
                text=text,
                finish="stop" if cut else _finish(choice, stop),
                tokens=len(logprobs) if logprobs is not None else total if len(choices) == 1 else None,
                logprob=sum(logprobs) if logprobs is not None else None,
                prompt_tokens=prompt,
                cached_tokens=cached,
            )
        )
    return texts


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


def echoed_logprobs(data: Data) -> tuple[list[str], list[float | None]]:
    """The prompt's own tokens as text and their log-probabilities, as `echo` gives them."""
    logprobs: Any = choices_of(data)[0].get("logprobs")
    count = usage_of(data, "prompt_tokens")
    try:
        tokens, values = list(logprobs["tokens"]), list(logprobs["token_logprobs"])
    except (TypeError, KeyError):
        tokens, values = [], []
    if count is None or len(tokens) < count or len(values) < count or count < 2:
        raise BackendError(
            "the server does not echo the log-probabilities of its prompt (`echo` of /v1/completions), which is "
            "needed where an option is not among the likeliest tokens; use vLLM or SGLang, or a local policy"
        )
    return tokens[:count], values[:count]


def chat_prompt_logprobs(data: Data) -> tuple[list[str], list[float | None]]:
    """The same from vLLM's `prompt_logprobs` of /v1/chat/completions."""
    tokens: list[str] = []
    values: list[float | None] = []
    try:
        # Asked with 0 alternatives, a row holds the prompt's own token only; the first row is null.
        for row in data.get("prompt_logprobs") or ():
            entries: list[Any] = (
                [{"decoded_token": "", "logprob": None}] if row is None else list(row.values())
            )
            [entry] = entries
            tokens.append(str(entry["decoded_token"]))
            values.append(entry["logprob"])
    except (TypeError, KeyError, ValueError, AttributeError):
        tokens = []
    if not tokens:
        raise BackendError(
            "an option is not among the likeliest tokens, and the server does not give `prompt_logprobs` "
            "(vLLM does); name the model's `tokenizer`, so that raw text can be sent, or use a local policy"
        )
    return tokens, values


def tail_logprob(tokens: Sequence[str], values: Sequence[float | None], option: str) -> float:
    """The log-probability of the last tokens, which must spell the option exactly."""
    text, total = "", 0.0
    for token, value in zip(reversed(tokens), reversed(values), strict=True):
        if len(text) >= len(option) or value is None:
            break
        text = token + text
        total += value
    if text != option:
        raise BackendError(
            f"the server's tokens do not part at the option {option!r}: its last tokens spell {text!r}; name the "
            f"model's `tokenizer` (or use a local policy), which handles that"
        )
    return total


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
