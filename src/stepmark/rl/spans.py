"""From steps, which are stretches of text, to the policy's tokens.

The PRM that scored the steps has another tokenizer, and may have put marks of its own between them; only places in the text mean the same to
both. So steps go from text to the policy's tokens by character offsets, and never by counting tokens or looking for separators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from stepmark.errors import InputError
from stepmark.records import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSpans:
    """Where steps end among tokens."""

    ends: tuple[int, ...]
    """Place of the last token of each step, rising; the last one is the completion's last token."""
    steps: tuple[tuple[int, ...], ...]
    """Which steps of the text each is: more than one where a single token holds the ends of several."""


def token_offsets(ids: Sequence[int], text_of: Callable[[Sequence[int]], str]) -> list[int]:
    """Where in the text each token ends, in characters; not falling.

    A character of several tokens (a byte-level vocabulary) ends with the last of them; control tokens have no text.

    Args:
        ids: the completion.
        text_of: decodes some of it that follows other tokens (`PromptEncoder.text`).
    """
    whole = text_of(ids)
    ends: list[int] = []
    start = done = 0
    for count in range(1, len(ids) + 1):
        piece = text_of(ids[start:count])
        # An unfinished character decodes to a replacement mark that is not in the text yet.
        ends.append(done + len(piece.rstrip("\ufffd")))
        if piece and not piece.endswith("\ufffd") and whole.startswith(piece, done):
            start, done = count, done + len(piece)
    if ends and ends[-1] != len(whole.rstrip("\ufffd")):
        # A tokenizer whose tokens mean another text among others: from the beginning each time.
        ends = [len(text_of(ids[: n + 1]).rstrip("\ufffd")) for n in range(len(ids))]
    if ends:
        # What is unfinished when the text ends stays a mark in it.
        ends[-1] = len(whole)
    return list(accumulate(ends, max))


def step_spans(steps: Sequence[Step], offsets: Sequence[int]) -> StepSpans:
    """The last token of each step: the one that holds its last character. What follows the last step, such as an end token, is that step's too.

    Args:
        steps: cut from the completion's text, with `start`.
        offsets: of the completion's tokens (`token_offsets`).

    Raises:
        InputError: a step without a place in the text, or behind the last token.
    """
    if not steps or not offsets:
        return StepSpans(ends=(), steps=())
    ends: list[int] = []
    members: list[list[int]] = []
    token = 0
    for number, step in enumerate(steps):
        if step.start is None:
            raise InputError(
                "expected a step that was cut from the text, found one without its place",
                where=f"step {number + 1}",
            )
        last = step.start + len(step.text)
        while token < len(offsets) and offsets[token] < last:
            token += 1
        if token == len(offsets):
            raise InputError(
                f"the step ends at character {last}, the completion's tokens at {offsets[-1]}",
                where=f"step {number + 1}",
            )
        if ends and ends[-1] == token:
            members[-1].append(number)
        else:
            ends.append(token)
            members.append([number])
    ends[-1] = len(offsets) - 1
    return StepSpans(ends=tuple(ends), steps=tuple(map(tuple, members)))
