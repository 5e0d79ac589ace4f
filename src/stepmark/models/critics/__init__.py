"""Critics: how a generative PRM asks for a critique of each step and reads the verdict from it.

One module a family. A critic is its settings (a frozen dataclass) and one method (`batching.Method`) that
grades one solution. What the critics share is here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stepmark.batching import Method, Prompt
from stepmark.errors import InputError, MarkerInTextError

# Control tokens of chat templates (ChatML, Llama, DeepSeek): `<|im_end|>`, `<｜Assistant｜>`. At least three
# letters, so that "a<|x|>b" stays mathematics.
_CONTROL = re.compile(r"<\|[A-Za-z][A-Za-z0-9_]{2,}\|>|<｜[^｜<>\n]{1,40}｜>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Critiqued:
    """What a critic says of one solution: one entry a step, in order."""

    scores: tuple[float | None, ...]
    """In [0, 1]: the mean over the critiques that gave a verdict. None for a step that no critique came to."""
    critiques: tuple[tuple[str, ...], ...]
    """All critiques of each step, those without a verdict too."""
    without_verdict: int
    """Verdicts that were asked for and are missing, over all steps and critiques."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Text that a critic is to learn, in the place where grading will want it."""

    prefill: str
    """What stands before it in the reply, given."""
    text: str
    chosen: bool = False
    """Grading reads its probability after the prefill (`batching.Choose`) instead of having it written (`batching.Write`)."""
    ends: bool = False
    """The model is to stop after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """One critique as training text: what a critic asks when it grades this step, and what it should be told."""

    prompt: Prompt
    parts: tuple[Part, ...]
    reply: str
    """The whole reply, as a later turn's history has it."""
    verdict: bool
    """What it says in the end."""
    whole: bool
    """Whether the verdict is about all steps so far, or of this one alone."""
    said: tuple[bool | None, ...]
    """What it says of single steps on the way; None where nothing."""


class Critic(Protocol):
    """A family of generative PRMs, with its settings."""

    @property
    def samples(self) -> int:
        """Critiques a step."""

    @property
    def causal(self) -> bool:
        """Whether the score of step t depends on the steps up to t only."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts with a meaning in this family's format, refused inside a problem or a step."""

    def grade(self, problem: str, steps: tuple[str, ...], context: tuple[str, ...]) -> Method[Critiqued]:
        """Grade every step of one solution.

        Args:
            problem: not blank.
            steps: what is graded; at least one, none blank.
            context: each step as the later ones see it: with what the world answered after it.

        Raises:
            InputError: no critique of some step gave a verdict.
        """


def refuse_markers(text: str, field: str, markers: Sequence[str]) -> None:
    """Refuse text that the model would read as structure.

    Raises:
        MarkerInTextError: a control token of a chat template, or one of the family's own markers.
    """
    control = _CONTROL.search(text)
    marker_found = (
        control.group() if control else next((marker for marker in markers if marker in text), None)
    )
    if marker_found is not None:
        raise MarkerInTextError(
            f"the text holds {marker_found!r}, which this PRM reads as structure; remove or rewrite it",
            field=field,
        )


def probability_of_first(logprobs: Sequence[float]) -> float | None:
    """P(first option) among two, from their log-probabilities; None where both are impossible.

    Any constant that both share cancels out.
    """
    first, second = logprobs
    if first == second == -math.inf or math.isnan(first) or math.isnan(second):
        return None
    gap = second - first
    # The exponent is never positive: no overflow, and no loss where the probability is near 0 or 1.
    return 1 / (1 + math.exp(gap)) if gap <= 0 else math.exp(-gap) / (1 + math.exp(-gap))


def mean_verdict(
    verdicts: Sequence[float | None], *, step: int, steps: int, critiques: Sequence[str], expected: str
) -> float:
    """The mean of the verdicts that are there.

    A critique without a verdict says nothing about the step: it is left out, never counted as wrong or as
    one half.

    Args:
        verdicts: one a critique; None where it gave none.
        step: 0-based number of the step, for the message.
        steps: how many there are.
        critiques: what was written.
        expected: what a verdict looks like.

    Raises:
        InputError: none is there.
    """
    there = [verdict for verdict in verdicts if verdict is not None]
    if not there:
        last = critiques[-1] if critiques else ""
        raise InputError(
            f"step {step + 1} of {steps}: none of the {len(verdicts)} critiques gave a verdict (expected "
            f"{expected}); the last one ends {last[-120:]!r}. Ask for more samples or more max_tokens",
            field=f"steps[{step}]",
        )
    return math.fsum(there) / len(there)
