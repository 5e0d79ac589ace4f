"""Conversations of another trainer's policy, scored turn by turn.

Such a trainer has the tokens after the prompt and a mask of those that the policy wrote. A run of written tokens is a turn; what stands
between two turns (tool results, a user's words, the template's own) is the observation of the first of them: the PRM reads it and never
rates it, and the loss leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepmark.models.policies.local import Drawn
from stepmark.models.prm import PRM
from stepmark.records import Problem, Step
from stepmark.rl.rewarding import RewardedCompletion, StepSpans, scored


def turn_spans(written: Sequence[int] | Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """The first token of each turn and the one after its last, from the mask of tokens that the policy wrote."""
    starts = [at for at, own in enumerate(written) if own and not (at and written[at - 1])]
    ends = [at + 1 for at, own in enumerate(written) if own and not (written[at + 1 : at + 2] or (0,))[0]]
    return tuple(zip(starts, ends, strict=True))


def rate_turns(
    problems: Sequence[str],
    completions: Sequence[Sequence[int]],
    written: Sequence[Sequence[int]] | Sequence[Sequence[bool]],
    decode: Callable[[Sequence[int]], str],
    *,
    prm: PRM | None,
) -> list[RewardedCompletion]:
    """Conversations with a score for each turn; groups are 0 and outcomes 0, as of `completions.rate`.

    A conversation with a turn that decodes to nothing has no steps, and `refused` says so.

    Args:
        problems: of each conversation; those of one problem side by side share what the PRM reads.
        completions: token ids after the prompt, observations among them.
        written: of each conversation, whether the policy wrote the token; as long as its ids.
        decode: token ids to text, without control tokens.
        prm: scores turns; None for none.
    """
    rated: list[RewardedCompletion] = []
    for problem, ids, mask in zip(problems, completions, written, strict=True):
        spans = turn_spans(mask)
        until = [start for start, _ in spans[1:]] + [len(ids)]
        texts = [decode(ids[start:end]).strip() for start, end in spans]
        blank = next((turn for turn, text in enumerate(texts) if not text), None)
        steps = (
            ()
            if blank is not None
            else tuple(
                Step(text=text, observation=decode(ids[end:then]))
                for text, (_, end), then in zip(texts, spans, until, strict=True)
            )
        )
        rated.append(
            RewardedCompletion(
                problem=Problem(text=problem),
                group=0,
                drawn=Drawn(prompt=(), ids=tuple(ids), text=decode(ids), finish="stop"),
                steps=steps,
                spans=StepSpans(
                    ends=tuple(end - 1 for _, end in spans) if steps else (),
                    steps=tuple((turn,) for turn in range(len(steps))),
                ),
                verdict=None,
                outcome=0.0,
                refused=None if blank is None else f"turn {blank + 1} of {len(texts)} has no text",
            )
        )
    return rated if prm is None else scored(rated, prm)
