"""What a chat model is asked: a request read as a conversation for the policy and a problem for the PRM."""

from __future__ import annotations

from collections.abc import Sequence

from stepmark.batching import Message
from stepmark.serving.chat_wire import ChatMessage, ChatRequest, Wanted
from stepmark.serving.refusals import Refused
from stepmark.serving.settings import ChatModel
from stepmark.serving.writers import Draw

NOTHING_SAID = Wanted.model_validate({})
"""How candidates are drawn and chosen by a request that says nothing of it."""


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


def draw_of(body: ChatRequest, settings: ChatModel) -> Draw:
    """What a request asks of the policy.

    Raises:
        Refused: a parameter that cannot be honoured; it is named.
    """
    if body.refused is not None:
        raise Refused("invalid_request", body.refused[1], field=body.refused[0])
    wanted = body.stepmark or NOTHING_SAID
    n = settings.n if wanted.n is None else wanted.n
    if n > settings.max_n:
        raise Refused(
            "invalid_request",
            f"expected at most {settings.max_n} candidates, found {n} (`max_n`)",
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
