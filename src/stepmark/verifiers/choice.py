"""The verifier `choice`: the letter of a multiple-choice question."""

from __future__ import annotations

import re
from typing import Literal

from stepmark.verifiers.base import VerifierBase
from stepmark.verifiers.finder import FoundAnswer, find_letter
from stepmark.verifiers.quantities import clean, plain

_CHOICE = re.compile(
    r"\(?\s?(?:(?:option|choice|answer)\s)?\(?\[?([A-Z])(?:[)\].:](?:\s.*)?|\)?\s?[.]?)", re.I | re.S
)


class ChoiceVerifier(VerifierBase):
    """The letter of a multiple-choice question: "B", "(B)", "B) 12 apples", "Option B"."""

    def __init__(self) -> None:
        self.name = "choice"

    def find(self, text: str | None) -> FoundAnswer | None:
        """See `VerifierBase.find`; a concluding statement counts by the option that it names ("so option B costs $12")."""
        answer = super().find(text)
        if (
            text is not None
            and answer is not None
            and answer.way in ("statement", "whole")
            and _letter(answer.text) is None
        ):
            return find_letter(text) or answer
        return answer

    def compare(self, gold: str, answer: str) -> tuple[Literal["match", "mismatch", "unparsed"], str]:
        """See `Verifier.verify`; both are bare."""
        left, right = _letter(gold), _letter(answer)
        if left is None or right is None:
            return "unparsed", f"the {'reference' if left is None else 'answer'} is not a letter"
        return "match" if left == right else "mismatch", "letters"


def _letter(text: str) -> str | None:
    match = _CHOICE.fullmatch(plain(clean(text)))
    return None if match is None else match[1].upper()
