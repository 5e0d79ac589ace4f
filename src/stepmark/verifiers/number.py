"""The verifier `number`: one number against one number, exactly."""

from __future__ import annotations

from typing import Literal

from stepmark.verifiers.base import VerifierBase
from stepmark.verifiers.quantities import read_quantity, same_quantity, same_time, without_letter


class NumberVerifier(VerifierBase):
    """One number against one number, exactly, by `quantities.read_quantity`; anything else is unparsed."""

    def __init__(self) -> None:
        self.name = "number"

    def compare(self, gold: str, answer: str) -> tuple[Literal["match", "mismatch", "unparsed"], str]:
        """See `Verifier.verify`; both are bare."""
        times = same_time(gold, answer)
        if times is not None:
            return "match" if times[0] else "mismatch", times[1]
        left, right = read_quantity(without_letter(gold)), read_quantity(without_letter(answer))
        if left is None or right is None:
            return "unparsed", f"the {'reference' if left is None else 'answer'} is not one number"
        same, rule = same_quantity(left, right)
        return "match" if same else "mismatch", rule
