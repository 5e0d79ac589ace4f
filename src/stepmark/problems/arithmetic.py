"""The arithmetic world: problems of many steps made from a seed, of which everything is known.

A problem is a chain: a start, then stages that add to the running quantity, subtract from it, multiply or divide it; some
add or subtract a product, which is a step of its own. It is written as bare operations or as a story, with numbers among it
that nothing depends on. `arithmetic_problems` makes them, `read_arithmetic` reads one back from any text that holds it.

The sentences of the arithmetic world: how its problems and steps are written, and how they are read back.

Every sentence comes from a template here, and every template is read back by the pattern made from it, so what a text says
needs no other source than the text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from stepmark.errors import InputError, UsageError
from stepmark.problems.gsm8k import Worked
from stepmark.records import Problem, Solution, Step, record_row
from stepmark.settings import checked
from stepmark.store import Results, atomic_rows, check_outputs, is_stream

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


Sign = Literal["+", "-", "*", "/"]
_SIGN_OF: dict[str, Sign] = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "gain": "+",
    "lose": "-",
    "sale": "*",
}
LARGEST = 999
"""No quantity of these problems is larger."""
SOURCE = "arithmetic"
"""`Problem.source` of these problems."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One calculation of a problem, by which it names a quantity."""

    name: str
    """The quantity that it gives, at the head of its line; no two of a problem are alike."""
    sign: Sign
    left: int | None = None
    """A given number; None for the running quantity."""
    right: int | None = None
    """A given number; None for the product of the operation before."""
    unit: str = ""
    stage: str = ""
    """The stage it belongs to: "third day"."""

    @property
    def is_product(self) -> bool:
        """Whether it works out the number in groups, on the side of the running quantity."""
        return self.left is not None

    @property
    def is_merge(self) -> bool:
        """Whether it brings the product before it into the running quantity."""
        return self.right is None


@dataclass(frozen=True, kw_only=True)
class ArithmeticProblem:
    """A problem of the arithmetic world, with its truth."""

    text: str
    domain: str
    """A name in `arithmetic_text.DOMAINS`; "formula" for bare operations."""
    start: int
    operations: tuple[Operation, ...]
    distractors: tuple[int, ...] = ()
    """Numbers in the text that nothing depends on."""
    id: str | None = field(default=None, compare=False)

    @cached_property
    def values(self) -> tuple[int, ...]:
        """The true result of each operation, in order; whole and at least 2."""
        values: list[int] = []
        running: Number = self.start
        for operation in self.operations:
            left = running if operation.left is None else operation.left
            right = values[-1] if operation.right is None else operation.right
            result = reckon(left, operation.sign, right)
            if not isinstance(result, int):
                raise InputError(
                    f"{operation.name}: expected a whole result, found {left} {operation.sign} {right}",
                    where=self.id,
                )
            values.append(result)
            running = running if operation.is_product else result
        return tuple(values)

    @cached_property
    def before(self) -> tuple[int, ...]:
        """The running quantity, truly, before each operation and before the answer: one entry more than operations."""
        running, before = self.start, []
        for operation, value in zip(self.operations, self.values, strict=True):
            before.append(running)
            running = running if operation.is_product else value
        return (*before, running)

    @property
    def answer(self) -> int:
        """The true answer."""
        return self.values[-1]

    @cached_property
    def places(self) -> dict[str, int]:
        """The number of each operation, by its name."""
        return {operation.name: place for place, operation in enumerate(self.operations)}

    def calculation(self, place: int) -> tuple[int, Sign, int]:
        """Operation `place` with its true numbers."""
        operation = self.operations[place]
        left = self.before[place] if operation.left is None else operation.left
        right = self.values[place - 1] if operation.right is None else operation.right
        return left, operation.sign, right

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """The true solution: a line a calculation, then the answer."""
        lines = [
            step_line(operation, *self.calculation(place), self.values[place])
            for place, operation in enumerate(self.operations)
        ]
        return (*lines, answer_line(self.answer))

    @property
    def difficulty(self) -> int:
        """Steps of the true solution, its answer line among them."""
        return len(self.operations) + 1

    @property
    def problem(self) -> Problem:
        """The record, with the answer."""
        return Problem(text=self.text, id=self.id, answer=str(self.answer), source=SOURCE)

    def solution(self, steps: Sequence[str] | None = None, *, id: str | None = None) -> Solution:
        """Steps as a solution of this problem, each on a line of its own; the true ones when none are given."""
        lines = self.steps if steps is None else steps
        places = [0]
        for line in lines:
            places.append(places[-1] + len(line) + 1)
        return Solution(
            problem=self.problem,
            steps=tuple(
                Step(text=line, tail="\n", start=start)
                for line, start in zip(lines, places[:-1], strict=True)
            ),
            id=id,
            split="line",
        )

    @property
    def worked(self) -> Worked:
        """The true solution with its calculations marked `<<48/2=24>>`, without the answer, as GSM8K has it."""
        lines = []
        for place, line in enumerate(self.steps[:-1]):
            left, sign, right = self.calculation(place)
            result = self.values[place]
            lines.append(line.replace(f"= {result}", f"= <<{left}{sign}{right}={result}>>{result}"))
        return Worked(problem=self.problem, lines=tuple(lines))


def step_line(operation: Operation, left: Number, sign: str, right: Number, result: Number) -> str:
    """A calculation as the world writes it: "Loaves after the third day: 36 - 12 = 24 loaves"."""
    unit = f" {operation.unit}" if operation.unit else ""
    return (
        f"{operation.name}: {write_number(left)} {sign} {write_number(right)} = {write_number(result)}{unit}"
    )


def answer_line(answer: Number) -> str:
    """The last line of a solution."""
    return f"The answer is {write_number(answer)}."


@checked
def make_problems(
    *,
    count: Annotated[int, Field(ge=1)] = 100,
    out: str | Path | None = None,
    solutions: str | Path | None = None,
    steps: tuple[int, int] = (4, 16),
    surface: Literal["formula", "story", "both"] = "both",
    distractors: Annotated[int, Field(ge=0)] = 2,
    largest: Annotated[int, Field(ge=99, le=999)] = LARGEST,
    seed: int = 0,
) -> Results[ArithmeticProblem]:
    """Make problems of the arithmetic world, whose true steps, answers and values are known.

    Args:
        count: how many.
        out: write the problems to this file: {"problem", "answer", "id"} a line, packed if its name ends in .gz; "-" for standard output.
        solutions: write the true solutions to this file: {"problem", "steps", "answer", "id"} a line, which grading and labelling read.
        steps: least and most steps of the true solution, the answer among them; from 2 to 16.
        surface: bare operations (formula), stories (story), or both.
        distractors: most numbers in a text that nothing depends on.
        largest: no quantity is larger; from 99 to 999.
        seed: another seed, other problems; equal seeds give equal problems.

    Returns:
        The problems: `text`, `answer`, `steps`, `problem` (the record), `solution(steps)`.

    Raises:
        UsageError: a setting out of its range, or an output that cannot be written.
    """
    check_outputs({"out": out, "solutions": solutions})
    made = list(
        arithmetic_problems(
            count, seed=seed, steps=steps, surface=surface, distractors=distractors, largest=largest
        )
    )
    if solutions is not None:
        with atomic_rows(solutions) as write:
            for problem in made:
                row = {
                    "problem": problem.text,
                    "steps": list(problem.steps),
                    "answer": problem.problem.answer,
                    "id": problem.id,
                }
                write(row)
    if out is not None:
        with atomic_rows(out) as write:
            for problem in made:
                write(record_row(problem.problem))
    written = Path(out) if out is not None and not is_stream(out) else None
    return Results(
        lambda: iter(made),
        len(made),
        out=written,
        summary=f"{len(made):,} problems" + ("" if written is None else f" in {written}"),
    )


def arithmetic_problems(
    count: int,
    *,
    seed: int = 0,
    steps: tuple[int, int] = (4, 16),
    surface: Literal["formula", "story", "both"] = "both",
    distractors: int = 2,
    largest: int = LARGEST,
) -> Iterator[ArithmeticProblem]:
    """Make problems; number i depends on the settings and on i alone, so more of them begin with the same.

    Args:
        count: how many.
        seed: another seed, other problems.
        steps: least and most steps of the true solution, the answer line among them; each number is as likely. From 2
            to 16.
        surface: bare operations, stories, or either with equal chances.
        distractors: most numbers in a text that nothing depends on; each number of them from 0 up is as likely.
        largest: no quantity is larger; from 99 to 999.

    Raises:
        UsageError: a setting out of its range.
    """
    if not 99 <= largest <= LARGEST:
        raise UsageError(f"largest: expected a number from 99 to {LARGEST}, found {largest}")
    if not 2 <= steps[0] <= steps[1] <= len(ORDINALS) + 1:
        raise UsageError(
            f"steps: expected least and most within 2 to {len(ORDINALS) + 1}, found {steps[0]} and {steps[1]}"
        )
    if count < 0 or distractors < 0:
        raise UsageError(
            f"count and distractors must be 0 or more, found count {count}, distractors {distractors}"
        )
    if surface not in {"formula", "story", "both"}:
        raise UsageError(f"surface: expected 'formula', 'story' or 'both', found {surface!r}")
    for number in range(count):
        dice = random.Random(f"arithmetic world 1/{seed}/{number}")
        formula = surface == "formula" or (surface == "both" and dice.random() < 0.5)
        domain = FORMULA if formula else dice.choice(STORIES)
        text = _tell(dice, domain, dice.randint(*steps) - 1, dice.randint(0, distractors), largest)
        yield read_arithmetic(text, id=f"{SOURCE}-{seed}-{number}")


def _tell(dice: random.Random, domain: Domain, operations: int, distractors: int, largest: int) -> str:
    """A problem's text with as many operations."""
    start = running = dice.randint(5, 60)
    sentences: list[str] = []
    left, stage = operations, 0
    while left:
        if left == 1 and domain.sale is not None and dice.random() < 0.5:
            prices = [price for price in range(2, 10) if running * price <= largest]
            if prices:
                sentences += [domain.sale.format(k=dice.choice(prices)), str(domain.sale_question)]
                break
        kind, numbers, running = _event(dice, running, left, largest)
        sentences.append(domain.sentence(kind, ORDINALS[stage], **numbers))
        left -= 1 if "g" not in numbers else 2
        stage += 1
    if not sentences[-1].endswith("?"):
        sentences.append(domain.question)
    for text in dice.sample(domain.distractors, min(distractors, len(domain.distractors))):
        sentences.insert(dice.randrange(len(sentences)), text.format(x=dice.randint(2, 90)))
    return " ".join((domain.opening.format(n=start), *sentences))


def _event(dice: random.Random, running: int, left: int, largest: int) -> tuple[str, dict[str, int], int]:
    """An event that can happen to this quantity: its kind, its numbers, the quantity after it (in 2 … `largest`)."""
    options: list[tuple[str, dict[str, int], int]] = []
    more, less = min(99, largest - running), min(99, running - 2)
    if more >= 2:
        k = dice.randint(2, more)
        options += [("add", {"k": k}, running + k)] * 2
    if less >= 2:
        k = dice.randint(2, less)
        options += [("subtract", {"k": k}, running - k)] * 2
    factors = [k for k in range(2, 7) if running * k <= largest]
    if factors:
        k = dice.choice(factors)
        options += [("multiply", {"k": k}, running * k)] * (2 if running < 100 else 1)
    parts = [k for k in (2, 4, 5, 10) if running % k == 0 and running // k >= 2]
    if parts:
        k = dice.choice(parts)
        options += [("divide", {"k": k}, running // k)] * 2
    if left >= 2:
        g, k = dice.randint(2, 9), dice.randint(3, 12)
        if running + g * k <= largest:
            options.append(("gain", {"g": g, "k": k}, running + g * k))
        if running - g * k >= 2:
            options.append(("lose", {"g": g, "k": k}, running - g * k))
    return dice.choice(options)


def read_arithmetic(text: str, *, id: str | None = None) -> ArithmeticProblem:
    """The last problem of this world in a text, whatever stands around it.

    Raises:
        InputError: there is none from its opening to its question.
    """
    story = find_story(text)
    if story is None:
        raise InputError(
            f"expected a problem of the arithmetic world from its opening to its question, found {text[:80]!r}"
            f"{'…' if len(text) > 80 else ''}; make such problems with arithmetic_problems",
            where=id,
        )
    return problem_of(story, text[slice(*story.span)], id=id)


def problem_of(story: Story, text: str, *, id: str | None = None) -> ArithmeticProblem:
    """The problem that the sentences tell."""
    domain = DOMAINS[story.domain.name]
    operations: list[Operation] = []
    extras: list[int] = []
    for sentence in story.sentences:
        if sentence.kind == "distractor":
            extras.append(sentence.numbers["x"])
        elif sentence.kind in _SIGN_OF:
            operations += _operations(domain, sentence.kind, sentence.ordinal, sentence.numbers)
    problem = ArithmeticProblem(
        text=text,
        domain=domain.name,
        start=story.start,
        operations=tuple(operations),
        distractors=tuple(extras),
        id=id,
    )
    if not operations or len(problem.places) < len(operations):
        raise InputError(f"expected stages, each told once, found {text[:80]!r}", where=id)
    for operation, value in zip(operations, problem.values, strict=True):
        # What changes nothing, or nothing any more, could be left out and the answer still be right.
        least = 2 if operation.sign in "*/" else 1
        if value < 1 or any(x is not None and x < least for x in (operation.left, operation.right)):
            raise InputError(
                f"{operation.name}: expected results of at least 1 and a calculation that changes the quantity, "
                f"found {problem.calculation(problem.places[operation.name])} = {value}",
                where=id,
            )
    return problem


def _operations(domain: Domain, kind: str, ordinal: str, numbers: dict[str, int]) -> list[Operation]:
    sign, right = _SIGN_OF[kind], numbers["k"]
    stage = f"{ordinal} {domain.stage}"
    if kind == "sale":
        return [Operation(name=SALE, sign=sign, right=right, unit=DOLLARS, stage="sale")]
    name = domain.name_of(ordinal)
    if "g" not in numbers:
        return [Operation(name=name, sign=sign, right=right, unit=domain.unit, stage=stage)]
    product = Operation(
        name=domain.group_of(ordinal),
        sign="*",
        left=numbers["g"],
        right=right,
        unit=domain.unit,
        stage=stage,
    )
    return [product, Operation(name=name, sign=sign, unit=domain.unit, stage=stage)]
