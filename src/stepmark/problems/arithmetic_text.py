"""The sentences of the arithmetic world: how its problems and steps are written, and how they are read back.

Every sentence comes from a template here, and every template is read back by the pattern made from it, so what a text says
needs no other source than the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth",
)  # fmt: skip
"""The stages of a story; a problem has at most as many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """What one kind of story is about, as templates. `{n}` is the start, `{k}` and `{g}` the numbers of an event."""

    name: str
    at: str
    """How an event begins, before the ordinal: "On the"."""
    stage: str
    """What is counted: "day"."""
    noun: str
    """The running quantity at the head of a line: "Loaves"."""
    unit: str
    """What follows its number; "" in formulas."""
    opening: str
    add: str
    subtract: str
    multiply: str
    divide: str
    gain: str
    """Gains `{g}` groups of `{k}`."""
    lose: str
    """Loses `{g}` groups of `{k}`."""
    group: str
    """Names the number in the groups of a stage."""
    distractors: tuple[str, ...]
    """Sentences with a number `{x}` that nothing depends on."""
    question: str
    sale: str | None = None
    """An end that turns the quantity into dollars, `{k}` each; None for domains without one."""
    sale_question: str | None = None

    def name_of(self, ordinal: str) -> str:
        """The running quantity after a stage."""
        return f"{self.noun} after the {ordinal} {self.stage}"

    def group_of(self, ordinal: str) -> str:
        """The number in the groups of a stage."""
        return f"{self.group} of the {ordinal} {self.stage}"

    def sentence(self, kind: str, ordinal: str, **numbers: int) -> str:
        """An event as the problem tells it."""
        clause = getattr(self, kind).format(**numbers)
        return f"{self.at} {ordinal} {self.stage} {clause}."


SALE = "Money from the sale"
"""The name of the last quantity where the story ends in a sale."""
DOLLARS = "dollars"

FORMULA = Domain(
    name="formula", at="In the", stage="step", noun="Result", unit="", opening="Start with {n}.", add="add {k}",
    subtract="subtract {k}", multiply="multiply by {k}", divide="divide by {k}", gain="add {g} times {k}",
    lose="subtract {g} times {k}", group="Product", distractors=("The number {x} is not used.", "There is also a {x}."),
    question="What is the result?",
)  # fmt: skip
"""Chains of bare operations."""

STORIES = (
    Domain(
        name="bakery", at="On the", stage="day", noun="Loaves", unit="loaves", opening="A bakery has {n} loaves.",
        add="it bakes {k} more loaves", subtract="it sells {k} loaves", multiply="it bakes until it has {k} times as many loaves",
        divide="it keeps only 1 of every {k} loaves", gain="it gets {g} boxes of {k} loaves",
        lose="it gives away {g} boxes of {k} loaves", group="Loaves in the boxes",
        distractors=("The baker is {x} years old.", "The oven was built {x} years ago.", "The bakery has {x} windows."),
        question="How many loaves does the bakery have?", sale="Then all loaves are sold for {k} dollars each.",
        sale_question="How many dollars does the bakery get?",
    ),
    Domain(
        name="ferry", at="At the", stage="stop", noun="Passengers", unit="passengers", opening="A ferry has {n} passengers.",
        add="{k} people get on", subtract="{k} people get off", multiply="it fills up to {k} times as many people",
        divide="only 1 of every {k} people stays", gain="{g} groups of {k} people get on", lose="{g} groups of {k} people get off",
        group="People in the groups", distractors=("The ferry is {x} metres long.", "The captain has sailed for {x} years."),
        question="How many passengers does the ferry have?", sale="Then all passengers pay {k} dollars each.",
        sale_question="How many dollars do they pay?",
    ),
    Domain(
        name="library", at="In the", stage="week", noun="Books", unit="books", opening="A library has {n} books.",
        add="it buys {k} books", subtract="it lends out {k} books", multiply="it grows to {k} times as many books",
        divide="it keeps only 1 of every {k} books", gain="it gets {g} crates of {k} books", lose="it sends away {g} crates of {k} books",
        group="Books in the crates", distractors=("The library has {x} chairs.", "A shelf is {x} centimetres high."),
        question="How many books does the library have?", sale="Then all books are sold for {k} dollars each.",
        sale_question="How many dollars does the library get?",
    ),
    Domain(
        name="savings", at="In the", stage="month", noun="Savings", unit="dollars", opening="Mira has {n} dollars.",
        add="she earns {k} dollars", subtract="she spends {k} dollars", multiply="her money grows to {k} times as much",
        divide="she keeps only 1 of every {k} dollars", gain="she gets {g} presents of {k} dollars",
        lose="she pays {g} bills of {k} dollars", group="Dollars in the envelopes",
        distractors=("Her brother is {x} years old.", "Her house has the number {x}."),
        question="How many dollars does Mira have?",
    ),
    Domain(
        name="game", at="In the", stage="round", noun="Points", unit="points", opening="A player has {n} points.",
        add="he wins {k} points", subtract="he loses {k} points", multiply="his points are multiplied by {k}",
        divide="his points are divided by {k}", gain="he finds {g} chests of {k} points", lose="he pays {g} fines of {k} points",
        group="Points in the pile", distractors=("The game was made {x} years ago.", "There are {x} players in the club."),
        question="How many points does the player have?",
    ),
    Domain(
        name="orchard", at="In the", stage="hour", noun="Apples", unit="apples", opening="An orchard shop has {n} apples.",
        add="{k} apples are picked", subtract="{k} apples are sold", multiply="a truck brings the shop up to {k} times as many apples",
        divide="only 1 of every {k} apples is kept", gain="{g} baskets of {k} apples come in", lose="{g} baskets of {k} apples go out",
        group="Apples in the baskets", distractors=("The oldest tree is {x} years old.", "The shop is {x} metres wide."),
        question="How many apples does the shop have?", sale="Then all apples are sold for {k} dollars each.",
        sale_question="How many dollars does the shop get?",
    ),
)  # fmt: skip
"""The stories."""

DOMAINS = {domain.name: domain for domain in (FORMULA, *STORIES)}
"""All of them, by name."""

EVENTS = ("add", "subtract", "multiply", "divide", "gain", "lose")
"""The fields of a `Domain` that tell an event."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """One sentence of a problem, read."""

    kind: str
    """An event of `EVENTS`, or "distractor", "sale", "question", "sale_question"."""
    numbers: dict[str, int]
    ordinal: str = ""


@cache
def _patterns(domain: Domain) -> tuple[re.Pattern[str], tuple[tuple[str, re.Pattern[str]], ...]]:
    sentences = [
        (
            kind,
            f"{domain.at} (?P<ordinal>{'|'.join(ORDINALS)}) {domain.stage} {_blank(getattr(domain, kind))}\\.",
        )
        for kind in EVENTS
    ]
    sentences += [("distractor", _blank(text)) for text in domain.distractors]
    for kind in ("sale", "sale_question", "question"):
        text = getattr(domain, kind)
        if text is not None:
            sentences.append((kind, _blank(text)))
    return re.compile(_blank(domain.opening)), tuple(
        (kind, re.compile(r"\s*" + text)) for kind, text in sentences
    )


def _blank(template: str) -> str:
    return re.sub(r"\\\{([a-z])\\\}", r"(?P<\1>[0-9]{1,6})", re.escape(template))


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """The sentences of a problem found in a text."""

    domain: Domain
    start: int
    sentences: tuple[Sentence, ...]
    span: tuple[int, int]
    """Where the problem stands in the text."""


def find_story(text: str) -> Story | None:
    """The last problem of this world in a text, from its opening to its question; None if there is none."""
    openings = [
        (match.start(), match.end(), int(match["n"]), domain)
        for domain in DOMAINS.values()
        for match in _patterns(domain)[0].finditer(text)
    ]
    for begin, end, start, domain in sorted(openings, key=lambda found: -found[0]):
        sentences: list[Sentence] = []
        place = end
        while not (sentences and sentences[-1].kind.endswith("question")):
            read = _sentence(text, place, domain)
            if read is None:
                break
            sentences.append(read[0])
            place = read[1]
        else:
            return Story(domain=domain, start=start, sentences=tuple(sentences), span=(begin, place))
    return None


def _sentence(text: str, place: int, domain: Domain) -> tuple[Sentence, int] | None:
    for kind, pattern in _patterns(domain)[1]:
        match = pattern.match(text, place)
        if match is not None:
            found = match.groupdict()
            ordinal = found.pop("ordinal", "")
            numbers = {name: int(value) for name, value in found.items()}
            return Sentence(kind=kind, numbers=numbers, ordinal=ordinal), match.end()
    return None


Number = int | Fraction
"""An exact number; whole ones are `int`."""

SIGNS = {"+": "+", "-": "-", "*": "*", "/": "/", "x": "*", "×": "*", "÷": "/", "−": "-"}
"""Signs as people write them, and as this world does."""


def reckon(left: Number, sign: str, right: Number) -> Number | None:
    """`left sign right`, exactly; None for a division by zero."""
    if sign == "+":
        return whole(left + right)
    if sign == "-":
        return whole(left - right)
    if sign == "*":
        return whole(left * right)
    return whole(Fraction(left) / right) if right else None


def whole(number: Number) -> Number:
    """The same number, as `int` where it is whole."""
    return number.numerator if not isinstance(number, int) and number.denominator == 1 else number


def write_number(number: Number) -> str:
    """A number in digits: whole, as a decimal where it ends, else as a fraction."""
    if isinstance(number, int):
        return str(number)
    for places in range(1, 40):
        if 10**places % number.denominator == 0:
            digits = str(abs(number.numerator) * 10**places // number.denominator).zfill(places + 1)
            return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return f"{number.numerator}/{number.denominator}"


_NUMBER = r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,40})(?:\.[0-9]{1,40}|/[1-9][0-9]{0,39})?"


def read_number(text: str) -> Number:
    """What `write_number` wrote; thousands commas may stand in it."""
    return whole(Fraction(text.replace(",", "")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One step, read."""

    name: str | None
    """The quantity that it states; None for the answer."""
    result: Number
    calculation: tuple[Number, str, Number] | None = None
    """The two numbers and the sign between them; None where the step states a number alone."""
    unit: str = ""
    """The word after the result."""
    readable: bool = True
    """False where something stands before the result that is not one calculation of two numbers."""


_NAMED = re.compile(r"(?:^|[.,:!?] +)([A-Z][a-z]+(?: [a-z]+)*): *(.+?)\s*$", re.S)
_CALCULATION = re.compile(rf"({_NUMBER}) *([{re.escape(''.join(SIGNS))}]) *({_NUMBER}) *=")
_RESULT = re.compile(rf"({_NUMBER})(?![0-9,]*[0-9/])(?: +([A-Za-z]+))?[. ]*$")
_ANSWER = re.compile(rf"[Tt]he answer is:? *({_NUMBER})(?: +[A-Za-z]+)?\.? *$")


def read_line(text: str) -> Line | None:
    """A step of this world; None for a text that states neither a named quantity nor the answer."""
    text = text.strip()
    answer = _ANSWER.search(text)
    if answer is not None:
        return Line(name=None, result=read_number(answer[1]))
    named = _NAMED.search(text)
    result = None if named is None else _RESULT.search(named[2])
    if named is None or result is None:
        return None
    before = named[2][: result.start()].strip()
    found = _CALCULATION.fullmatch(before)
    return Line(
        name=named[1],
        result=read_number(result[1]),
        calculation=None
        if found is None
        else (read_number(found[1]), SIGNS[found[2]], read_number(found[3])),
        unit=result[2] or "",
        readable=found is not None or not before,
    )
