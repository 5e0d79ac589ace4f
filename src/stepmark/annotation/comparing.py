"""Two people's marks on one item, held against each other. Unjudged is never wrong, and never a disagreement by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepmark.annotation.marks import NO_ERROR, Marks


def agrees(marks: Marks, gold: Marks) -> bool:
    """Whether an answer is right: it gives every rating that gold gives. In mode `first_error`: the same first error, or none as gold."""
    return all(right in (None, said) for said, right in zip(marks.ratings, gold.ratings, strict=True))


def differing(left: Marks, right: Marks) -> list[int]:
    """0-based steps that both rate, differently."""
    pairs = enumerate(zip(left.ratings, right.ratings, strict=True))
    return [step for step, (a, b) in pairs if a is not None and b is not None and a != b]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """How two answers to one item differ."""

    kind: Literal["opposite", "neutral"]
    severity: float
    """In (0, 1]; the rule stands in `annotation.disputes`."""
    steps: tuple[int, ...]
    """0-based steps rated oppositely; where there is none, those that one of the two rates neutral."""
    first_errors: tuple[int | None, int | None]
    """As `Marks.first_wrong` says."""

    @property
    def apart(self) -> bool:
        """Whether both say where the first error is, and say different places."""
        left, right = self.first_errors
        return left is not None and right is not None and left != right


def gap(left: Marks, right: Marks) -> Gap | None:
    """How two answers differ; None when they do not."""
    steps = left.steps
    differ = differing(left, right)
    opposite = [step for step in differ if left.ratings[step] == -(right.ratings[step] or 0)]
    one, other = left.first_wrong, right.first_wrong
    distance = 0
    if one is not None and other is not None:
        # "No error" is the place after the last step.
        distance = abs((steps if one == NO_ERROR else one) - (steps if other == NO_ERROR else other))
    if opposite or distance:
        severity = 0.5 + 0.5 * max(distance, len(opposite)) / steps
        return Gap(kind="opposite", severity=severity, steps=tuple(opposite), first_errors=(one, other))
    if differ:
        return Gap(
            kind="neutral", severity=0.5 * len(differ) / steps, steps=tuple(differ), first_errors=(one, other)
        )
    return None
