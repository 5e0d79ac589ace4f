"""The verifier `number`: one number against one number, exactly."""

from __future__ import annotations

import re
from typing import Literal

from stepmark.errors import UsageError
from stepmark.verifiers.base import VerifierBase
from stepmark.verifiers.quantities import Quantity, clean, plain, read_quantity, same_quantity


class NumberVerifier(VerifierBase):
    """One number against one number, exactly, by `quantities.read_quantity`; anything else is unparsed. With `percent` "sign" 10% is also 10."""

    def __init__(self, *, percent: Literal["distinct", "sign"] = "distinct") -> None:
        if percent not in {"distinct", "sign"}:
            raise UsageError(f"percent: expected 'distinct' or 'sign', found {percent!r}")
        self.name = "number"
        self.percent: Literal["distinct", "sign"] = percent

    def compare(self, gold: str, answer: str) -> tuple[Literal["match", "mismatch", "unparsed"], str]:
        """See `Verifier.verify`; both are bare."""
        left, right = read_quantity(gold), read_quantity(answer)
        within = number_within(answer) if right is None else None
        if left is None or (right is None and within is None):
            return "unparsed", f"the {'reference' if left is None else 'answer'} is not one number"
        number, how = (
            (right, "") if right is not None else (within[0], f"{within[1]}; ") if within else (left, "")
        )
        same, rule = same_quantity(left, number, percent=self.percent)
        return "match" if same else "mismatch", how + rule


_TOKEN = re.compile(
    r"(?<![\w.])-?[$€£¥₹]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?(?:(?:st|nd|rd|th)\b)?(?:\s?%)?"
)
_NEXT = re.compile(r"\s?([A-Za-z./]+(?:\^\d)?)(?:\s([A-Za-z./]+))?(?:\s([A-Za-z./]+))?")
_HEDGED = re.compile(
    r"n't\b|\b(?:not|no|find|calculate|compute|check|first|let|cannot|never|except|between|half|twice|double|triple|dozens?|least|most|(?:more|less|fewer|greater|"
    r"smaller|other) than \W?\d|(?<!in )all|any|every|where|when|such)\b",
    re.I,
)


def number_within(answer: str) -> tuple[Quantity, str] | None:
    """The number of an answer that is more than a number, and the rule by which it was found: the right-hand side of a calculation ("4 * 15 = 60"), or the
    only number of a sentence without a negation or a comparison ("The house cost $90,000.").
    """
    text = plain(clean(answer))
    left, equals, right = text.rpartition("=")
    if equals and re.search(r"\d", left) and not re.search(r"[<>!]\s?$|\\", left):
        number = read_quantity(right)
        return None if number is None else (number, "the right-hand side")
    if (
        re.search(r"[\\=+*^<>_{}]", text)
        or len(re.findall(r"[A-Za-z]{2,}", text)) < 2
        or _HEDGED.search(text)
    ):
        return None
    tokens = list(_TOKEN.finditer(text))
    if len(tokens) != 1 or len(re.findall(r"\d+", text)) != len(re.findall(r"\d+", tokens[0].group())):
        return None
    digits = tokens[0].group().rstrip(",")
    following = _NEXT.match(text, tokens[0].end())
    words = [word.rstrip(".") for word in following.groups() if word] if following else []
    for many in range(len(words), 0, -1):
        quantity = read_quantity(" ".join((digits, *words[:many])))
        if (
            quantity is not None
            and (quantity.unit is not None or quantity.percent or quantity.forms)
            and quantity.words is None
        ):
            return quantity, "the only number of the sentence"
    quantity = read_quantity(digits)
    return None if quantity is None else (quantity, "the only number of the sentence")
