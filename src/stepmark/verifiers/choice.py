"""The verifier `choice`: the letter of a multiple-choice question."""

from __future__ import annotations

import re
from typing import Literal

from stepmark.verifiers.base import VerifierBase
from stepmark.verifiers.quantities import clean, plain

_CHOICE = re.compile(
    r"\(?\s?(?:(?:option|choice|answer)\s)?\(?\[?([A-Z])(?:[)\].:](?:\s.*)?|\)?\s?[.]?)", re.I | re.S
)


class ChoiceVerifier(VerifierBase):
    """The letter of a multiple-choice question: "B", "(B)", "B) 12 apples", "Option B"."""

    def __init__(self) -> None:
        self.name = "choice"

    def compare(self, gold: str, answer: str) -> tuple[Literal["match", "mismatch", "unparsed"], str]:
        """See `Verifier.verify`; both are bare."""
        letters = [_CHOICE.fullmatch(plain(clean(text))) for text in (gold, answer)]
        if letters[0] is None or letters[1] is None:
            return "unparsed", f"the {'reference' if letters[0] is None else 'answer'} is not a letter"
        same = letters[0].group(1).upper() == letters[1].group(1).upper()
        return "match" if same else "mismatch", "letters"
