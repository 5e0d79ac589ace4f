"""What best-of-N as a model is asked: its settings, and a request read as a conversation for the policy and a problem for the PRM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepmark.batching import Message
from stepmark.errors import UsageError
from stepmark.search.searching import Choice
from stepmark.serving.chat_wire import MOST_CANDIDATES, ChatMessage, ChatRequest, Wanted
from stepmark.serving.grading import check_split
from stepmark.serving.refusals import Refused
from stepmark.serving.writers import Draw

Search = Literal["best-of-n", "majority", "weighted-vote", "beam", "dvts", "rebase", "mcts"]
SEARCHES: dict[Search, tuple[Choice, str]] = {
    "best-of-n": ("best", "best-of-{n}"),
    "majority": ("majority", "majority-of-{n}"),
    "weighted-vote": ("vote", "vote-of-{n}"),
    "beam": ("best", "beam-of-{n}"),
    "dvts": ("best", "dvts-of-{n}"),
    "rebase": ("best", "rebase-of-{n}"),
    "mcts": ("best", "mcts-of-{n}"),
}
"""The searches that answer as a model, by their names in `stepmark search`: how each chooses, and its name as a model."""

NOTHING_SAID = Wanted.model_validate({})
"""How candidates are drawn and chosen by a request that says nothing of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completing:
    """How completions are drawn and chosen where a request does not say. Flags of `stepmark serve`.

    Raises:
        UsageError: a setting out of its range.
        UnknownNameError: no such way to cut.
    """

    search: Search = "best-of-n"
    """How one is chosen."""
    n: int = 8
    """Candidates."""
    most: int = 64
    """Candidates that a request may ask for."""
    temperature: float = 0.7
    """Of the candidates."""
    split: str = "auto"
    """How a candidate is cut into steps."""
    marker: str | None = None
    """The text that ends each step, for split "marker" and "auto"."""
    verifier: str = "math"
    """What says which answers are equal, for votes."""
    name: str | None = None
    """The model's name for clients; None: such as best-of-8."""
    timeout: float = 300.0
    """Seconds that an answer may take."""
    at_once: int = 32
    """Requests that the policy works on at once."""

    def __post_init__(self) -> None:
        for name, good, wanted in (
            ("n", 1 <= self.n <= self.most, f"1 to {self.most}"),
            ("most", 1 <= self.most <= MOST_CANDIDATES, f"1 to {MOST_CANDIDATES}"),
            ("temperature", 0 <= self.temperature <= 2, "0 to 2"),
            ("timeout", 0 < self.timeout < float("inf"), "more than 0 seconds"),
            ("at_once", self.at_once >= 1, "1 or more"),
        ):
            if not good:
                raise UsageError(f"{name}: expected {wanted}, found {getattr(self, name)}")
        if self.stepwise:
            if not self.temperature:
                raise UsageError("temperature: at 0 all steps after one are one; expected more than 0")
            if self.split not in ("auto", "line", "marker"):
                raise UsageError(
                    f"split: {self.search} ends steps at a line's end, or at --marker; expected auto, line or marker, found {self.split!r}"
                )
        if self.n > 1 and not self.temperature:
            raise UsageError(f"temperature: at 0 all {self.n} candidates are one; expected more than 0")
        try:
            check_split(self.split, self.marker)
        except Refused as refused:
            raise UsageError(refused.error["message"]) from None

    @property
    def stepwise(self) -> bool:
        """Whether it writes step by step."""
        return self.search in ("beam", "dvts", "rebase", "mcts")

    @property
    def choice(self) -> Choice:
        """How one is chosen."""
        return SEARCHES[self.search][0]

    @property
    def model(self) -> str:
        """The model's name for clients."""
        return self.name or SEARCHES[self.search][1].format(n=self.n)


def conversation(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """A request's messages as the policy reads them.

    Raises:
        Refused: the last turn is not the user's, or a turn says nothing.
    """
    read = []
    for number, one in enumerate(messages):
        parts = "".join(part.text for part in one.content)
        if not parts.strip():
            raise Refused(
                "invalid_request", "expected a text that is not blank", field=f"messages.{number}.content"
            )
        read.append(Message(role="system" if one.role == "developer" else one.role, content=parts))
    if read[-1].role != "user":
        raise Refused(
            "invalid_request",
            f"expected the last turn to be the user's, found the {read[-1].role}'s: a begun reply cannot be continued here",
            field=f"messages.{len(read) - 1}.role",
        )
    return tuple(read)


def problem_of(messages: Sequence[Message]) -> str:
    """What the PRM reads as the problem: the conversation without what the system says.

    A single turn stands as it is; several stand under headings, as `solutions.traces` writes a conversation out.
    """
    turns = [message for message in messages if message.role != "system"]
    if len(turns) == 1:
        return turns[0].content
    return "\n\n".join(f"{message.role.capitalize()}:\n{message.content}" for message in turns)


def draw_of(body: ChatRequest, settings: Completing) -> Draw:
    """What a request asks of the policy.

    Raises:
        Refused: a parameter that cannot be honoured; it is named.
    """
    if body.refused is not None:
        raise Refused("invalid_request", body.refused[1], field=body.refused[0])
    wanted = body.stepmark or NOTHING_SAID
    n = settings.n if wanted.n is None else wanted.n
    if n > settings.most:
        raise Refused(
            "invalid_request",
            f"expected at most {settings.most} candidates, found {n} (--n-most)",
            field="stepmark.n",
        )
    temperature = settings.temperature if body.temperature is None else body.temperature
    if n > 1 and not temperature:
        raise Refused(
            "invalid_request",
            f"at temperature 0 all {n} candidates are one: leave it out ({settings.temperature:g}), or ask for one with stepmark.n = 1",
            field="temperature",
        )
    stop = body.stop or []
    if not all(stop):
        raise Refused("invalid_request", "expected texts that are not empty", field="stop")
    if (
        None not in (body.max_tokens, body.max_completion_tokens)
        and body.max_tokens != body.max_completion_tokens
    ):
        raise Refused(
            "invalid_request",
            "max_tokens says something else; give one of them",
            field="max_completion_tokens",
        )
    return Draw(
        messages=conversation(body.messages),
        n=n,
        temperature=temperature,
        top_p=body.top_p,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        stop=tuple(stop),
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )
