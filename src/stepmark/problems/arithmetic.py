"""The arithmetic world: problems of many steps made from a seed, of which everything is known.

A problem is a chain: a start, then stages that add to the running quantity, subtract from it, multiply or divide it; some
add or subtract a product, which is a step of its own. It is written as bare operations or as a story, among it numbers
that nothing depends on. Every sentence comes from a template, and the pattern made from the template reads it back, so a
problem needs no other source than its text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from stepmark.errors import InputError, UsageError
from stepmark.problems.loading import Worked
from stepmark.records import Problem, Solution, Step, record_row
from stepmark.settings import checked
from stepmark.store import Results, atomic_rows, check_outputs, is_stream
from stepmark.words import amount

Number = int | Fraction
"""An exact number; whole ones are `int`."""
Sign = Literal["+", "-", "*", "/"]
Surface = Literal["formula", "story", "both"]

ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth",
)  # fmt: skip
"""The stages of a story; a problem has at most as many."""
LARGEST = 999
"""No quantity of these problems is larger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """The templates of one kind of story: `{n}` is the start, `{k}` the number of an event, `{x}` one that nothing depends on.

    `at` and an ordinal begin an event ("On the third day"). `noun` names the running quantity at the head of a line, `unit` follows its number.
    `gain` and `lose` bring or take `{g}` groups of `{k}`; `group` names the number in them. `sale` turns the quantity into dollars, `{k}` each.
    """

    name: str
    at: str
    stage: str
    noun: str
    unit: str
    opening: str
    add: str
    subtract: str
    multiply: str
    divide: str
    gain: str
    lose: str
    group: str
    distractors: tuple[str, ...]
    question: str
    sale: str | None = None
    sale_question: str | None = None


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
_EVENT_SIGNS: dict[str, Sign] = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "gain": "+", "lose": "-",
}  # fmt: skip


# -- numbers and lines

_SIGNS = {"+": "+", "-": "-", "*": "*", "/": "/", "x": "*", "×": "*", "÷": "/", "−": "-"}
_NUMBER = r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,40})(?:\.[0-9]{1,40}|/[1-9][0-9]{0,39})?"
_NAMED = re.compile(r"(?:^|[.,:!?] +)([A-Z][a-z]+(?: [a-z]+)*): *(.+?)\s*$", re.S)
_CALCULATION = re.compile(rf"({_NUMBER}) *([{re.escape(''.join(_SIGNS))}]) *({_NUMBER}) *=")
_RESULT = re.compile(rf"({_NUMBER})(?![0-9,]*[0-9/])(?: +([A-Za-z]+))?[. ]*$")
_ANSWER = re.compile(rf"[Tt]he answer is:? *({_NUMBER})(?: +[A-Za-z]+)?\.? *$")


def calculate(left: Number, sign: str, right: Number) -> Number | None:
    """`left sign right`, exactly; None for a division by zero."""
    if sign == "/":
        return _whole(Fraction(left) / right) if right else None
    return _whole(left + right if sign == "+" else left - right if sign == "-" else left * right)


def _whole(number: Number) -> Number:
    return number.numerator if number.denominator == 1 else number


def write_number(number: Number) -> str:
    """A number in digits: whole, as a decimal where it ends, else as a fraction."""
    for places in range(1, 40 if number.denominator > 1 else 0):
        if 10**places % number.denominator == 0:
            digits = str(abs(number.numerator) * 10**places // number.denominator).zfill(places + 1)
            return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return str(number)


def read_number(text: str) -> Number:
    """What `write_number` wrote; thousands commas may stand in it."""
    return _whole(Fraction(text.replace(",", "")))


class Line(NamedTuple):
    """One step, read."""

    name: str | None
    """The quantity that it states; None for the answer."""
    result: Number
    calculation: tuple[Number, str, Number] | None = None
    """The two numbers and the sign between them; None where the step states a number alone."""
    unit: str = ""
    readable: bool = True
    """False where something stands before the result that is not one calculation of two numbers."""


def read_line(text: str) -> Line | None:
    """A step of this world; None for a text that states neither a named quantity nor the answer."""
    text = text.strip()
    answer = _ANSWER.search(text)
    if answer is not None:
        return Line(None, read_number(answer[1]))
    named = _NAMED.search(text)
    result = None if named is None else _RESULT.search(named[2])
    if named is None or result is None:
        return None
    before = named[2][: result.start()].strip()
    match = _CALCULATION.fullmatch(before)
    calculation = None if match is None else (read_number(match[1]), _SIGNS[match[2]], read_number(match[3]))
    readable = match is not None or not before
    return Line(named[1], read_number(result[1]), calculation, result[2] or "", readable)


# -- problems


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One calculation of a problem."""

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
        """Whether it computes the number in groups, beside the running quantity."""
        return self.left is not None

    @property
    def is_merge(self) -> bool:
        """Whether it brings the product before it into the running quantity."""
        return self.right is None

    def line(self, left: Number, sign: str, right: Number, result: Number) -> str:
        """A calculation as the world writes it: "Loaves after the third day: 36 - 12 = 24 loaves"."""
        numbers = f"{write_number(left)} {sign} {write_number(right)} = {write_number(result)}"
        return f"{self.name}: {numbers} {self.unit}".rstrip()


def answer_line(answer: Number) -> str:
    """The last line of a solution."""
    return f"The answer is {write_number(answer)}."


@dataclass(frozen=True, kw_only=True)
class ArithmeticProblem:
    """A problem of the arithmetic world, with its truth.

    Raises:
        InputError: its operations are not whole, change nothing or share a name.
    """

    text: str
    domain: str
    """A name in `DOMAINS`; "formula" for bare operations."""
    start: int
    operations: tuple[Operation, ...]
    distractors: tuple[int, ...] = ()
    """Numbers in the text that nothing depends on."""
    id: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.operations or len(self.places) < len(self.operations):
            raise InputError(f"expected stages, each told once, found {self.text[:80]!r}", where=self.id)
        for place, operation in enumerate(self.operations):
            left, sign, right = self.calculation(place)
            # What changes nothing could be left out and the answer still be right.
            least = 2 if sign in "*/" else 1
            if self.values[place] < 1 or any(
                x < least for x in (operation.left, operation.right) if x is not None
            ):
                raise InputError(
                    f"{operation.name}: expected a result of at least 1 and a calculation that changes the quantity, "
                    f"found {left} {sign} {right}",
                    where=self.id,
                )

    @cached_property
    def _truth(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        running, before, values = self.start, list[int](), list[int]()
        for operation in self.operations:
            before.append(running)
            left = running if operation.left is None else operation.left
            right = values[-1] if operation.right is None else operation.right
            result = calculate(left, operation.sign, right)
            if not isinstance(result, int):
                raise InputError(
                    f"{operation.name}: expected a whole result, found {left} {operation.sign} {right}",
                    where=self.id,
                )
            values.append(result)
            running = running if operation.is_product else result
        return tuple(values), (*before, running)

    @property
    def values(self) -> tuple[int, ...]:
        """The true result of each operation, in order; whole and positive."""
        return self._truth[0]

    @property
    def before(self) -> tuple[int, ...]:
        """The true running quantity before each operation and before the answer: one entry more than operations."""
        return self._truth[1]

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
            operation.line(*self.calculation(place), self.values[place])
            for place, operation in enumerate(self.operations)
        ]
        return (*lines, answer_line(self.answer))

    @property
    def problem(self) -> Problem:
        """The record, with the answer."""
        return Problem(text=self.text, id=self.id, answer=str(self.answer), source="arithmetic")

    def solution(self, steps: Sequence[str] | None = None, *, id: str | None = None) -> Solution:
        """Steps as a solution of this problem, each on a line of its own; the true ones when none are given."""
        made, start = list[Step](), 0
        for line in self.steps if steps is None else steps:
            made.append(Step(text=line, tail="\n", start=start))
            start += len(line) + 1
        return Solution(problem=self.problem, steps=tuple(made), id=id, split="line")

    @property
    def worked(self) -> Worked:
        """The true solution with its calculations marked `<<48/2=24>>`, without the answer, as GSM8K has it."""
        lines = []
        for place, line in enumerate(self.steps[:-1]):
            left, sign, right = self.calculation(place)
            result = self.values[place]
            lines.append(line.replace(f"= {result}", f"= <<{left}{sign}{right}={result}>>{result}"))
        return Worked(problem=self.problem, lines=tuple(lines))


# -- reading a problem


@cache
def _patterns(domain: Domain) -> tuple[re.Pattern[str], tuple[tuple[str, re.Pattern[str]], ...]]:
    def pattern(template: str) -> str:
        return re.sub(r"\\\{([a-z])\\\}", r"(?P<\1>[0-9]{1,6})", re.escape(template))

    stage = f"{domain.at} (?P<ordinal>{'|'.join(ORDINALS)}) {domain.stage} "
    sentences = [(kind, f"{stage}{pattern(getattr(domain, kind))}\\.") for kind in _EVENT_SIGNS]
    sentences += [("distractor", pattern(text)) for text in domain.distractors]
    ends = (("sale", domain.sale), ("question", domain.sale_question), ("question", domain.question))
    sentences += [(kind, pattern(text)) for kind, text in ends if text is not None]
    return re.compile(pattern(domain.opening)), tuple(
        (kind, re.compile(r"\s*" + text)) for kind, text in sentences
    )


def find_problem(text: str, *, id: str | None = None) -> tuple[ArithmeticProblem, str]:
    """The last problem of this world in a text, from its opening to its question, and the text after it; `InputError` where there is none."""
    openings = [
        (match, domain) for domain in DOMAINS.values() for match in _patterns(domain)[0].finditer(text)
    ]
    for opening, domain in sorted(openings, key=lambda item: -item[0].start()):
        operations, distractors = list[Operation](), list[int]()
        place, kind = opening.end(), ""
        while kind != "question":
            matches = ((kind, pattern.match(text, place)) for kind, pattern in _patterns(domain)[1])
            kind, match = next(((kind, match) for kind, match in matches if match is not None), ("", None))
            if match is None:
                break
            place = match.end()
            if kind == "distractor":
                distractors.append(int(match["x"]))
            elif kind != "question":
                operations += _operations(domain, kind, match.groupdict())
        else:
            problem = ArithmeticProblem(
                text=text[opening.start() : place],
                domain=domain.name,
                start=int(opening["n"]),
                operations=tuple(operations),
                distractors=tuple(distractors),
                id=id,
            )
            return problem, text[place:]
    raise InputError(
        f"expected a problem of the arithmetic world from its opening to its question, found {text[:80]!r}"
        f"{'…' if len(text) > 80 else ''}; make such problems with arithmetic_problems",
        where=id,
    )


def _operations(domain: Domain, kind: str, match: dict[str, str]) -> list[Operation]:
    right = int(match["k"])
    if kind == "sale":
        return [Operation(name="Money from the sale", sign="*", right=right, unit="dollars", stage="sale")]
    sign, stage = _EVENT_SIGNS[kind], f"{match['ordinal']} {domain.stage}"
    name, unit = f"{domain.noun} after the {stage}", domain.unit
    if "g" not in match:
        return [Operation(name=name, sign=sign, right=right, unit=unit, stage=stage)]
    group, left = f"{domain.group} of the {stage}", int(match["g"])
    product = Operation(name=group, sign="*", left=left, right=right, unit=unit, stage=stage)
    return [product, Operation(name=name, sign=sign, unit=unit, stage=stage)]


def read_arithmetic(text: str, *, id: str | None = None) -> ArithmeticProblem:
    """The last problem of this world in a text, whatever stands around it; `InputError` where there is none."""
    return find_problem(text, id=id)[0]


# -- making problems


@checked
def make_problems(
    *,
    count: Annotated[int, Field(ge=1)] = 100,
    out: str | Path | None = None,
    solutions: str | Path | None = None,
    steps: tuple[int, int] = (4, 16),
    surface: Surface = "both",
    distractors: Annotated[int, Field(ge=0)] = 2,
    largest: Annotated[int, Field(ge=99, le=999)] = LARGEST,
    seed: int = 0,
) -> Results[ArithmeticProblem]:
    """Make problems of the arithmetic world, whose true steps, answers and values are known.

    Args:
        count: number of problems.
        out: write the problems to this file: {"problem", "answer", "id"} a line, gzipped if its name ends in .gz; "-" for standard output.
        solutions: write the true solutions to this file: {"problem", "steps", "answer", "id"} a line, which grading and labelling read.
        steps: least and most steps of the true solution, the answer among them; from 2 to 16.
        surface: bare operations (formula), stories (story), or both.
        distractors: most numbers in a text that nothing depends on.
        largest: no quantity is larger; from 99 to 999.
        seed: another seed, other problems; equal seeds give equal problems.

    Returns:
        The problems: `text`, `answer`, `steps`, `problem` (the record), `solution(steps)`.
    """
    check_outputs({"out": out, "solutions": solutions})
    problems = list(
        arithmetic_problems(
            count, seed=seed, steps=steps, surface=surface, distractors=distractors, largest=largest
        )
    )
    if solutions is not None:
        with atomic_rows(solutions) as write:
            for problem in problems:
                row = {"problem": problem.text, "steps": list(problem.steps), "answer": str(problem.answer)}
                write({**row, "id": problem.id})
    if out is not None:
        with atomic_rows(out) as write:
            for problem in problems:
                write(record_row(problem.problem))
    written = Path(out) if out is not None and not is_stream(out) else None
    return Results(
        lambda: iter(problems),
        len(problems),
        out=written,
        summary=f"{amount(len(problems), 'problem')}" + ("" if written is None else f" in {written}"),
    )


@checked
def arithmetic_problems(
    count: int,
    *,
    seed: int = 0,
    steps: tuple[int, int] = (4, 16),
    surface: Surface = "both",
    distractors: Annotated[int, Field(ge=0)] = 2,
    largest: Annotated[int, Field(ge=99, le=999)] = LARGEST,
) -> Iterator[ArithmeticProblem]:
    """Make problems as `make_problems`; number i depends on the settings and on i alone."""
    if count < 0 or not 2 <= steps[0] <= steps[1] <= len(ORDINALS) + 1:
        raise UsageError(
            f"arithmetic problems: expected a `count` of 0 or more and least and most `steps` within 2 to {len(ORDINALS) + 1}, "
            f"found {count} and {steps}"
        )
    return _made(count, seed, steps, surface, distractors, largest)


def _made(
    count: int, seed: int, steps: tuple[int, int], surface: Surface, distractors: int, largest: int
) -> Iterator[ArithmeticProblem]:
    for number in range(count):
        dice = random.Random(f"arithmetic world 1/{seed}/{number}")
        formula = surface == "formula" or (surface == "both" and dice.random() < 0.5)
        domain = FORMULA if formula else dice.choice(STORIES)
        text = _problem_text(dice, domain, dice.randint(*steps) - 1, dice.randint(0, distractors), largest)
        yield read_arithmetic(text, id=f"arithmetic-{seed}-{number}")


def _problem_text(
    dice: random.Random, domain: Domain, operations: int, distractors: int, largest: int
) -> str:
    start = running = dice.randint(5, 60)
    sentences: list[str] = []
    question: str | None = domain.question
    stage = 0
    while operations:
        if operations == 1 and domain.sale is not None and dice.random() < 0.5:
            prices = [price for price in range(2, 10) if running * price <= largest]
            if prices:
                sentences.append(domain.sale.format(k=dice.choice(prices)))
                question = domain.sale_question
                break
        kind, numbers, running = _event(dice, running, operations, largest)
        sentences.append(
            f"{domain.at} {ORDINALS[stage]} {domain.stage} {getattr(domain, kind).format(**numbers)}."
        )
        operations -= 1 if "g" not in numbers else 2
        stage += 1
    sentences.append(str(question))
    for text in dice.sample(domain.distractors, min(distractors, len(domain.distractors))):
        sentences.insert(dice.randrange(len(sentences)), text.format(x=dice.randint(2, 90)))
    return " ".join((domain.opening.format(n=start), *sentences))


def _event(
    dice: random.Random, running: int, operations: int, largest: int
) -> tuple[str, dict[str, int], int]:
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
    if operations >= 2:
        g, k = dice.randint(2, 9), dice.randint(3, 12)
        if running + g * k <= largest:
            options.append(("gain", {"g": g, "k": k}, running + g * k))
        if running - g * k >= 2:
            options.append(("lose", {"g": g, "k": k}, running - g * k))
    return dice.choice(options)
