"""Rewriting what comes after an error: every number that depends on it, and no other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from stepmark.labels.slips import FORMULA, NUMBER, compute, fits, number_of, plain, replace_number
from stepmark.problems.gsm8k import Worked

# Numbers that stand for themselves: per cent, minutes, months, a dozen.
_CONSTANTS = frozenset(Fraction(n) for n in (1, 2, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000))
_WORDS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty
"""
_NUMBER_WORDS = {word: Fraction(n) for n, word in enumerate(_WORDS.split())} | {
    "thirty": Fraction(30), "forty": Fraction(40), "fifty": Fraction(50), "sixty": Fraction(60), "seventy": Fraction(70),
    "eighty": Fraction(80), "ninety": Fraction(90), "hundred": Fraction(100), "dozen": Fraction(12),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Book:
    """A worked solution and what is known of its numbers."""

    worked: Worked
    right: list[str]
    style: str
    answer: Fraction
    given: frozenset[Fraction]
    """Numbers of the problem, and those that stand for themselves."""

    @classmethod
    def of(cls, worked: Worked) -> Book | None:
        """None where nothing can be carried: no numeric answer."""
        answer = worked.problem.answer or ""
        value = compute(answer)
        if value is None or not NUMBER.fullmatch(answer.removeprefix("-")):
            return None
        right = [plain(line) for line in worked.lines]
        given = numbers(worked.problem.text) | _CONSTANTS
        return cls(worked, right, "\n".join(right), value, frozenset(given))


class NotSureError(Exception):
    """Whether a number depends on the error cannot be told."""


@dataclass(slots=True)
class Carry:
    """Rewrites what comes after an error."""

    book: Book
    seen: set[Fraction]
    """Numbers that stood in the solution so far, other than as an altered result."""
    changed: dict[Fraction, Fraction] = field(default_factory=dict)
    kept: set[Fraction] = field(default_factory=set)
    """Results that come after the error and do not depend on it."""
    answer: Fraction | None = None
    """What the solution's answer has become; None where no result so far is the answer."""

    def alter(self, old: Fraction, new: Fraction) -> None:
        """From here on a result is another.

        Raises:
            NotSureError: the number stands for something else too.
        """
        if (
            old in self.seen
            or old in self.book.given
            or old in self.kept
            or self.changed.get(old, new) != new
        ):
            raise NotSureError
        self.changed[old] = new

    def line(self, line: str, start: int = 0, before: str = "", first: Fraction | None = None) -> str:
        """A line with all that depends on the error computed again.

        Args:
            line: with its marks.
            start: offset from which it is carried; what is before stands already in `before`.
            before: that part, rewritten.
            first: the result that follows right at `start`, where there is one.
        """
        text, at, due = before, start, first
        for formula in FORMULA.finditer(line, start):
            text += self._text(text, line[at : formula.start()], due)
            at, due = formula.end(), self._result(formula)
            if due in self.changed and due in numbers(plain(line[start : formula.start()])):
                raise NotSureError  # "He has 15 because 3 * 5 = 15": the first was written before it was known
        return text + self._text(text, line[at:], due)

    def _result(self, formula: re.Match[str]) -> Fraction:
        old, stated = compute(formula[1]), compute(formula[2])
        parts = [number_of(number) for number in NUMBER.findall(formula[1])]
        if old is None or old != stated:
            if any(part in self.changed for part in parts) or stated in self.changed:
                raise NotSureError
            return Fraction(0)
        new = compute(self._swap("", formula[1]))
        if new is None or (new != old and not fits(new, old)):
            raise NotSureError
        if new != old:
            self.alter(old, new)
        elif old in self.changed:
            raise NotSureError
        else:
            self.kept.add(old)
        if old == self.book.answer:
            self.answer = new
        return old

    def _text(self, before: str, text: str, due: Fraction | None) -> str:
        """Plain text with every altered number replaced."""
        for word in re.findall(r"[a-z]+", text.lower()):
            if _NUMBER_WORDS.get(word) in self.changed:
                raise NotSureError
        for number in NUMBER.finditer(text):
            after = text[number.end() : number.end() + 1]
            if number_of(number[0]) in self.changed and (after == "%" or after.isalpha()):
                raise NotSureError
        if (
            due is not None
            and due in self.changed
            and due not in {number_of(n) for n in NUMBER.findall(text)[:1]}
        ):
            raise NotSureError
        return self._swap(before, text)

    def _swap(self, before: str, text: str) -> str:
        """All altered numbers at once: a new one may equal another's old one."""
        pieces, at = [], 0
        for number in NUMBER.finditer(text):
            value = number_of(number[0])
            pieces.append(text[at : number.start()])
            lead = before + text[: number.start()]
            new = self.changed.get(value)
            pieces.append(
                number[0] if new is None else replace_number(lead, number[0], value, new, self.book.style)
            )
            at = number.end()
        return "".join(pieces) + text[at:]

    def rest(self, lines: Sequence[str]) -> list[str]:
        """The lines after the error, and the answer."""
        steps = [self.line(line) for line in lines]
        answer = self.book.worked.problem.answer or ""
        value = self.book.answer
        new = self.answer
        if new is None:
            new = self.changed.get(value, value)
        elif new == value and value in self.changed:
            raise NotSureError
        return [
            *steps,
            answer_line(replace_number("", answer, value, new, self.book.style) if new != value else answer),
        ]


def carry_from(book: Book, place: int, upto: int | None = None) -> Carry:
    """What is known before an error in line `place`, of which the first `upto` characters are right."""
    head = "\n".join(book.right[:place])
    line = book.worked.lines[place]
    own = plain(line[: len(line) if upto is None else upto])
    carry = Carry(book, seen=numbers(head) | numbers(own))
    for formula in FORMULA.finditer("\n".join(book.worked.lines[:place])):
        if compute(formula[1]) == book.answer:
            carry.answer = book.answer
    return carry


def numbers(text: str) -> set[Fraction]:
    """Every number in a text, in digits or in words."""
    words = {_NUMBER_WORDS[word] for word in re.findall(r"[a-z]+", text.lower()) if word in _NUMBER_WORDS}
    return words | {number_of(number) for number in NUMBER.findall(text)}


def answer_line(answer: str) -> str:
    """The last step."""
    return f"The answer is {answer}."
