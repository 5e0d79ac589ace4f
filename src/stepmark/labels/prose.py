r"""Worked steps written as language models write them: the same calculation in many dresses.

GSM8K's lines are terse ("Natalia sold 48/2 = 24 clips in May."); what is graded later is prose ("**Step 2:** Next, to find the number of
clips, we divide 48 by 2: \( 48 \div 2 = 24 \). So Natalia sold 24 clips in May."). `parse` reads a worked line into a `Calculation`,
`write` renders one. All choices come from a `Style` and a random generator that is given, so that a right and a wrong step can be
written in the same dress: with equal styles and equal generators only what is false differs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from stepmark.labels.slips import FORMULA, NUMBER, alterable, compute, number_of, operates, plain, shown_at

_CONNECTIVES = re.compile(
    r"(?:so|then|now|therefore|thus|next|finally|first|second|third|hence|and|also|in total)\b,? +", re.I
)
_WORDS = """
the this that there he she it they his her its their in if after since each at for a an to on when with we you i
altogether all one two three four half over from by both every another during out of these those
"""
_COMMON = frozenset(_WORDS.split())
_HANGS = re.compile(
    r"(?:\b(?:because|since|as|so|if|is|of|by|that|than|and|or|for|from|to|in|at|with|be|x|y)|[-+*/=:(×,])\s*\$?$",
    re.I,
)
"""Ends of a head after which the calculation cannot be left out without a stump."""
_PLURAL = re.compile(r" ?([a-z]{3,}s)\b")
_SIGNS = {"+": "+", "-": "-", "*": "*", "/": "/"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Calculation:
    """One step with one calculation: "Natalia sold 48/2 = 24 clips in May."."""

    head: str
    """Before the calculation."""
    terms: tuple[Fraction | str, ...]
    """Numbers, the signs + - * /, and brackets, in order."""
    money: tuple[bool, ...]
    """For every term, whether a dollar sign stands before it."""
    result: Fraction
    paid: bool
    """Whether a dollar sign stands before the result."""
    tail: str
    """After the result."""

    @property
    def numbers(self) -> tuple[Fraction, ...]:
        """The numbers that it uses."""
        return tuple(t for t in self.terms if isinstance(t, Fraction))

    def value(self) -> Fraction | None:
        """What its terms come to; None for a division by zero."""
        return compute("".join(f"({t})" if isinstance(t, Fraction) else t for t in self.terms))


def parse(line: str) -> Calculation | None:
    """A worked line as a calculation; None unless it holds exactly one, shown in the text, that comes out."""
    found = list(FORMULA.finditer(line))
    if len(found) != 1 or not alterable(found[0]) or not operates(found[0][1]):
        return None
    (formula,) = found
    before, after = plain(line[: formula.start()]), plain(line[formula.end() :])
    shown = shown_at(formula[1], before)
    mention = NUMBER.search(after)
    if shown is None or mention is None or not re.fullmatch(r"\s*=\s*\$?\s*", before[shown[1] :]):
        return None
    head = before[: shown[0]]
    first_paid = head.rstrip().endswith("$")
    if first_paid:
        head = head.rstrip()[:-1]
    if "=" in head or "<" in head:
        return None
    terms: list[Fraction | str] = []
    money: list[bool] = []
    for token in re.finditer(rf"(\$)?\s*(?:({NUMBER.pattern})|([-+*/()x×÷]))", before[shown[0] : shown[1]]):
        if token[2] is not None:
            terms.append(number_of(token[2]))
        else:
            terms.append({"x": "*", "×": "*", "÷": "/"}.get(token[3], token[3]))
        money.append(token[1] is not None)
    if money and first_paid:
        money[0] = True
    value = compute(formula[1])
    assert value is not None
    made = Calculation(
        head=head,
        terms=tuple(terms),
        money=tuple(money),
        result=value,
        paid="$" in before[shown[1] :] or "$" in after[: mention.start()],
        tail=after[mention.end() :],
    )
    # A unit glued to the result ("5th", "20%") would not survive another number.
    glued = re.match(r"[A-Za-z%/.][A-Za-z0-9%]|%", made.tail)
    return (
        None
        if glued or made.value() != value or any(digits(n) is None for n in (*made.numbers, value))
        else made
    )


def digits(value: Fraction, *, paid: bool = False, commas: bool = False) -> str | None:
    """A number as people write it; None if it needs more than four decimals or is negative."""
    if value < 0 or 10**4 % value.denominator:
        return None
    text = format(Decimal(value.numerator) / Decimal(value.denominator), ",f" if commas else "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text + "0" if paid and len(text.partition(".")[2]) == 1 else text


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """How a solution is written, the same for all its steps."""

    maths: str = "plain"
    """plain, spaced, unicode, dollars, brackets or display: 48/2, 48 / 2, 48 ÷ 2, $48 \\div 2$, \\( … \\), \\[ … \\]."""
    numbering: str = "none"
    """none, words, step, bold, list or heading."""
    verbal: float = 0.5
    """Share of steps that say what is computed before computing it."""
    facts: float = 0.3
    """Share of steps that first restate what the problem says."""
    commas: bool = False
    """Thousands parted by commas."""
    final: str = "answer"
    """answer, boxed or question: how the answer is stated."""
    intro: str = "none"
    """none, ask or given: what stands before the first calculation."""


def draw_style(rng: random.Random) -> Style:
    """A style at random; every fifth is as terse as GSM8K's own."""
    if rng.random() < 0.2:
        return Style(maths=rng.choice(("plain", "spaced")), verbal=0.0, facts=0.0, commas=rng.random() < 0.5)
    return Style(
        maths=rng.choice(
            ("plain", "spaced", "spaced", "unicode", "dollars", "brackets", "brackets", "display")
        ),
        numbering=rng.choice(("none", "words", "words", "words", "step", "bold", "list", "heading")),
        verbal=rng.choice((0.3, 0.6, 0.9)),
        facts=rng.choice((0.0, 0.3, 0.6)),
        commas=rng.random() < 0.5,
        final=rng.choice(("answer", "boxed", "boxed", "question")),
        intro=rng.choice(("none", "ask", "ask", "given")),
    )


def write(
    made: Calculation,
    style: Style,
    number: int,
    rng: random.Random,
    *,
    fact: str | None = None,
    goes_on: bool = False,
) -> str:
    """A calculation as a step.

    Args:
        made: what the step says.
        style: the solution's.
        number: of the step, from 1.
        rng: the step's own; with an equal one another calculation comes out in the same dress.
        fact: what the problem says, to be restated first.
        goes_on: it is a later sentence of a step and has no number of its own.
    """
    draws = [rng.random() for _ in range(6)]
    opening = "" if goes_on else _opening(style, number, draws[0])
    money = any(made.money) or made.paid
    body = _maths(made, style)
    bare = _CONNECTIVES.sub("", made.head, count=1) if _CONNECTIVES.match(made.head) else made.head
    result = ("$" if made.paid else "") + (digits(made.result, paid=money, commas=style.commas) or "")
    stump = _HANGS.search(bare.rstrip()) is not None and bare.strip() != ""
    told = _capital(bare) + result + made.tail
    parts: list[str] = []
    if fact is not None:
        lead = (
            "We know that {}.",
            "From the problem, {}.",
            "The problem says that {}.",
            "Given that {},",
            "Since {},",
        )
        parts.append(lead[int(draws[1] * len(lead))].format(_small(fact)))
    if draws[2] < style.verbal and not stump:
        aim = _aim(made, draws[3])
        parts.append(_close(f"{aim}{_say(made, style, draws[4])}:", body, style))
        said = ("So, ", "Thus, ", "This means that ", "Therefore, ", "So ", "")[int(draws[5] * 6)]
        parts.append(said + (_small(told) if said else told) if len(told.split()) > 1 else "")
    elif style.maths == "display" and not stump:
        parts.append(f"{_capital(told)}\n\\[ {_inner(made, style)} \\]")
    else:
        parts.append(f"{bare}{body}{made.tail}")
    text = ""
    for part in (p.strip() for p in parts if p.strip()):
        fitted = _capital(part) if text.endswith(".") else _small(part) if text.endswith(",") else part
        text = f"{text} {fitted}" if text else part
    text = opening + (_small(text) if opening.endswith(", ") else _capital(text))
    return text if text.rstrip()[-1:] in ".!?])" or text.endswith("\\]") else text.rstrip() + "."


def _close(lead: str, body: str, style: Style) -> str:
    return f"{lead}\n{body}\n" if style.maths == "display" else f"{lead} {body}."


def _opening(style: Style, number: int, draw: float) -> str:
    if style.numbering == "words":
        if number == 1:
            return ("First, ", "First, ", "To start, ", "To begin, ")[int(draw * 4)]
        return ("Next, ", "Then, ", "Now, ", "After that, ", "Next, ", "")[int(draw * 6)]
    return {
        "none": "",
        "step": f"Step {number}: ",
        "bold": f"**Step {number}:** ",
        "list": f"{number}. ",
        "heading": f"### Step {number}\n",
    }[style.numbering]


def _aim(made: Calculation, draw: float) -> str:
    unit = _PLURAL.match(made.tail)
    if draw < 0.5:
        return "we "
    if made.paid:
        return ("to find the amount of money, we ", "to get the amount in dollars, we ")[draw < 0.75]
    if unit is not None:
        return (f"to find the number of {unit[1]}, we ", f"to calculate the {unit[1]}, we ")[draw < 0.6]
    return ("to find this, we ", "we can now ")[draw < 0.75]


def _say(made: Calculation, style: Style, draw: float) -> str:
    """In words: "divide 48 by 2" where the calculation is that simple, else "calculate"."""
    signs = {t for t in made.terms if isinstance(t, str)}
    names = [
        ("$" if paid else "") + (digits(t, paid=paid, commas=style.commas) or "")
        for t, paid in zip(made.terms, made.money, strict=True)
        if isinstance(t, Fraction)
    ]
    if draw < 0.2 or len(signs) != 1 or (len(names) > 2 and signs & {"-", "/"}):
        return "calculate" if draw < 0.5 else "compute the following"
    listed = names[0] + " and " + names[1] if len(names) == 2 else ", ".join(names[:-1]) + " and " + names[-1]
    (sign,) = signs
    if sign == "+":
        return f"add {listed}"
    if sign == "-":
        return f"subtract {names[1]} from {names[0]}"
    if sign == "/":
        return f"divide {names[0]} by {names[1]}"
    return f"multiply {names[0]} by {names[1]}" if len(names) == 2 else f"multiply {listed}"


def _maths(made: Calculation, style: Style) -> str:
    inner = _inner(made, style)
    return {"dollars": f"${inner}$", "brackets": f"\\( {inner} \\)", "display": f"\\[ {inner} \\]"}.get(
        style.maths, inner
    )


def _inner(made: Calculation, style: Style) -> str:
    latex = style.maths in ("dollars", "brackets", "display")
    signs = (
        {"*": r"\times", "/": r"\div"} if latex else {"*": "×", "/": "÷"} if style.maths == "unicode" else {}
    )
    dollar = r"\$" if latex else "$"
    cents = any(made.money) or made.paid
    pieces = []
    for term, paid in zip(made.terms, made.money, strict=True):
        if isinstance(term, Fraction):
            pieces.append((dollar if paid else "") + (digits(term, paid=paid, commas=style.commas) or ""))
        else:
            pieces.append(signs.get(term, term))
    gap = "" if style.maths == "plain" else " "
    text = gap.join(pieces).replace("( ", "(").replace(" )", ")")
    result = digits(made.result, paid=cents and made.paid, commas=style.commas)
    return f"{text} = {dollar if made.paid else ''}{result}"


def _capital(text: str) -> str:
    text = text.lstrip()
    return text[:1].upper() + text[1:]


def _small(text: str) -> str:
    """Its first letter small, unless that is a name's."""
    text = text.lstrip()
    first = re.match(r"[A-Za-z]+", text)
    if first is None or first[0].lower() not in _COMMON or first[0] == "I":
        return text
    return text[:1].lower() + text[1:]


def write_intro(question: str, facts: Sequence[str], style: Style, rng: random.Random) -> str:
    """A step before all calculations: what is asked, or what is given."""
    draw = rng.random()
    ask = asked(question)
    if style.intro == "given" and facts:
        lead = (
            "Let's list what we know:",
            "Given:",
            "From the problem we have:",
            "Let's break down the information given:",
        )
        return "\n".join([lead[int(draw * 4)], *(f"- {_capital(fact)}" for fact in facts)])
    leads = (
        f"To solve this problem, we need to find {ask}.",
        f"Let's find {ask}.",
        f"To find {ask}, we'll break it down into steps.",
        f"We need to determine {ask}. Let's go step by step.",
    )
    return leads[int(draw * 4)]


def asked(question: str) -> str:
    """What a problem asks, as the end of "we need to find …"."""
    sentences = sentences_of(question)
    last = next((s for s in reversed(sentences) if s.endswith("?")), None)
    match = re.search(r"\b(how|what|which|who|when|at what|in how)\b.*", last or "", re.I)
    if match is None:
        return "the answer"
    text = match[0].rstrip("? ")
    return text[:1].lower() + text[1:]


def sentences_of(text: str) -> list[str]:
    """A problem's sentences."""
    return [s.strip() for s in re.split(r"(?<=[.?!])\s+(?=[A-Z\"$0-9])", text.strip()) if s.strip()]


def write_final(value: Fraction, made: Calculation, question: str, style: Style, rng: random.Random) -> str:
    """The last step: the answer.

    Args:
        made: the calculation that gave it; its words are used, with `value` as the result.
    """
    draw = rng.random()
    text = digits(value, paid=made.paid, commas=style.commas) or ""
    shown = (
        "\\$" if style.final == "boxed" and made.paid and draw < 0.5 else "$" if made.paid else ""
    ) + text
    bare = _CONNECTIVES.sub("", made.head, count=1) if _CONNECTIVES.match(made.head) else made.head
    stump = _HANGS.search(bare.rstrip()) is not None and bare.strip() != ""
    told = _small(bare) + ("$" if made.paid else "") + text + made.tail.rstrip(". ") + "."
    lead = ("Therefore, ", "So, ", "Thus, ", "Finally, ", "In conclusion, ")[int(draw * 5)]
    if style.final == "boxed":
        end = (
            f"The final answer is \\boxed{{{shown}}}.",
            f"The answer is $\\boxed{{{shown}}}$.",
            f"\\boxed{{{shown}}}",
        )
        said = "" if stump or len(told.split()) < 3 else lead + told + " "
        return said + end[int(draw * 7) % 3]
    if style.final == "question":
        return f"{lead}the answer to the question of {asked(question)} is {shown}."
    return f"The answer is {text}."


def commuted(made: Calculation) -> Calculation | None:
    """The same calculation with its two numbers exchanged; None unless it is one sum or one product of two."""
    if len(made.terms) != 3 or made.terms[1] not in ("+", "*"):
        return None
    return replace(made, terms=made.terms[::-1], money=made.money[::-1])
