"""Requests to models and their replies; each request has one key that names everything that shapes its reply."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepmark.errors import UsageError
from stepmark.records import Solution

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

INSTRUCTION = "Solve the problem step by step, one step a line. Put the final answer in \\boxed{}."
"""What a policy is asked after the problem, by default."""


def problem_prompt(problem: str, instruction: str, form: Literal["chat", "text"]) -> Prompt:
    """A problem and an instruction below it, as the user's turn of a chat or as plain text, for base models."""
    text = f"{problem}\n\n{instruction}" if instruction else problem
    return (Message(role="user", content=text),) if form == "chat" else f"{text}\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Completions:
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
    first: int = 0
    """Number of the first sample: equal requests give equal samples, and other numbers other ones."""

    def __post_init__(self) -> None:
        _check_prompt(self.prompt)
        for name, good, requirement in (
            ("n", self.n >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k is None or self.top_k >= 1, "None or at least 1"),
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("stop", all(self.stop), "without empty strings"),
            ("first", self.first >= 0, "0 or more"),
        ):
            if not good:
                raise UsageError(f"Completions: {name} must be {requirement}, found {getattr(self, name)!r}")
        if self.temperature == 0 and self.n > 1:
            raise UsageError(
                f"Completions: at temperature 0 all {self.n} samples are one; set a temperature or n=1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One text that was written for a `Completions`."""

    text: str
    """What follows prompt and prefill; the stop string that ended it is not part of it."""
    finish: Finish
    tokens: int | None = None
    """Tokens written, the end token or the stop string's included; None when the server does not say."""
    logprob: float | None = None
    """Sum of the natural-log probabilities of those tokens under the model itself (temperature 1, nothing
    cut off); None when not known."""
    prompt_tokens: int | None = None
    """Tokens of the prompt and prefill that it continues; None when the policy does not say."""
    cached_tokens: int | None = None
    """Of those, what a server said that it took from its cache; None when it does not say. It depends on what the server was
    asked before, so it is reported and never counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceLogprobs:
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
            raise UsageError(
                f"ChoiceLogprobs: options must be two or more different texts, found {self.options!r}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictRequest:
    """A request to compare an answer with the reference; the reply is a `records.Verdict`.

    Raises:
        UsageError: no reference.
    """

    answer: str
    """A bare answer, or a whole solution that names one."""
    gold: str
    """The reference answer."""

    def __post_init__(self) -> None:
        if not self.gold.strip():
            raise UsageError("VerdictRequest: there is no reference answer to compare with")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRequest:
    """A request for a PRM's score of the last of some steps, after those before it; the reply is a `StepScore`.

    Raises:
        UsageError: no steps.
    """

    problem: str
    """The problem's text."""
    steps: tuple[str, ...]
    """The prefix: at least one step, the last of which is scored."""

    def __post_init__(self) -> None:
        if not self.steps:
            raise UsageError("ScoreRequest: there is no step to score")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepScore:
    """What a PRM says of the last step of a prefix, and what there was to read for it.

    The counts are properties of the texts, so that what a search costs does not depend on batches, caches or replays.
    """

    score: float
    """In the range of the PRM's `score_kind`; finite."""
    tokens: int | None = None
    """Tokens of this prefix that the prefix without its last step has not (the problem's own, for the first step); of a PRM
    that reads whole prefixes every time, all of them. None when the PRM does not count."""
    root: int | None = None
    """Tokens of the problem and the template before the first step, to be counted once a problem; 0 where `tokens` holds them."""
    classes: tuple[float, ...] | None = None
    """Class probabilities, for PRMs with more than two classes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreSolution:
    """A request for a PRM's scores of all steps of a solution; the reply is a `records.StepScores`.

    For grading in bulk on a cluster. Nothing of it is recorded: a graded row is.
    """

    solution: Solution
    model: Literal["prm", "orm"] = "prm"
    """The PRM, or the outcome model that is asked beside it."""


def plain(record: Any) -> dict[str, Any]:
    """The fields of a request or a reply, as JSON has them: what `dataclasses.asdict` gives, without its copies."""
    values = {name: getattr(record, name) for name in record.__slots__}
    if isinstance(prompt := values.get("prompt"), tuple):
        values["prompt"] = [{"role": turn.role, "content": turn.content} for turn in prompt]
    return values


# In every key and so in every sample's seed: other words would draw other samples.
_KINDS = {Completions: "Write", ChoiceLogprobs: "Choose", VerdictRequest: "Verify", ScoreRequest: "Score"}


def content_key(request: Completions | ChoiceLogprobs | VerdictRequest | ScoreRequest, identity: str) -> str:
    """A stable SHA-256 of everything that shapes the reply, in hexadecimal.

    The number of samples and the number of the first are left out: samples are numbered under the key.
    """
    content = {name: value for name, value in plain(request).items() if name not in ("n", "first")}
    record = {"format": 1, "kind": _KINDS[type(request)], "by": identity, "request": content}
    return hashlib.sha256(json.dumps(record, sort_keys=True, allow_nan=False).encode()).hexdigest()


def sample_seed(request: Completions, number: int) -> int:
    """The seed of sample `number` of a request, in [0, 2**63): other samples and other prompts draw apart."""
    digest = hashlib.sha256(f"{content_key(request, '')}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first stop string, and whether there was one."""
    places = [place for place in (text.find(string) for string in stop) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _check_prompt(prompt: Prompt) -> None:
    if not prompt:
        raise UsageError("a request needs a prompt: a text, or at least one message")
