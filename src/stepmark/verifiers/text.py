"""The verifier `text`: the same words."""

from __future__ import annotations

import unicodedata
from typing import Literal

from stepmark.verifiers.base import VerifierBase
from stepmark.verifiers.quantities import key


class TextVerifier(VerifierBase):
    """The same text, but for case, spacing, mathematics signs and the final full stop. Knows no mathematics."""

    def __init__(self) -> None:
        self.name = "text"

    def compare(self, gold: str, answer: str) -> tuple[Literal["match", "mismatch", "unparsed"], str]:
        """See `Verifier.verify`; both are bare."""
        return "match" if same_words(gold, answer) else "mismatch", "text"


def same_words(left: str, right: str) -> bool:
    """Whether two texts differ only in case, spacing and markup."""
    return (
        unicodedata.normalize("NFC", key(left)).casefold()
        == unicodedata.normalize("NFC", key(right)).casefold()
    )
