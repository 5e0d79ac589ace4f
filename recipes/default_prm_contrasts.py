r"""Right steps beside wrong ones, in the same dress: branches for training a grader densely.

For one worked problem `contrasts` gives a tree of prose steps (`prose`): the right solution, and at every step one or more wrong steps that
end there. Nothing after an error is judged. Kinds of errors:

==============  =======================================================================================================
`value`         a right calculation with a wrong result
`operand`       another number of the problem, of an earlier step, or of nowhere, calculated rightly
`operation`     a wrong sign, calculated rightly; where the step says in words what it does, the words say the wrong thing too
`omission`      one of three or more numbers is forgotten
`surplus`       a further number of the problem or of an earlier step is used
`skipped`       the result of the step before is not used, but a number that went into it, as if that step had not been
`misread`       the step restates the problem with another number, or with more for less, and goes on from there
`given`         the list of what is given holds such a misreading
`early stop`    the result of a step on the way is given as the answer
`overshoot`     the answer is calculated on with a further number
`question`      the problem is changed (one number), the step is not
==============  =======================================================================================================

A wrong step states another result than the right one, from the same starting point; whether that is *always* an error is argued, not proven,
for `misread` (a restated fact that the problem does not say).

Worked steps written as language models write them: the same calculation in many dresses.

GSM8K's lines are terse ("Natalia sold 48/2 = 24 clips in May."); what is graded later is prose ("**Step 2:** Next, to find the number of
clips, we divide 48 by 2: \( 48 \div 2 = 24 \). So Natalia sold 24 clips in May."). `parse` reads a worked line into a `Calculation`,
`write` renders one. All choices come from a `Style` and a random generator that is given, so that a right and a wrong step can be
written in the same dress: with equal styles and equal generators only what is false differs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from stepmark.labels.exact import (
    FORMULA,
    NUMBER,
    alterable,
    another,
    compute,
    number_of,
    numbers,
    operates,
    plain,
    replace_number,
    shown_at,
)
from stepmark.problems.loading import Worked
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step

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


_RELATIONS = (
    ("more", "fewer"), ("more", "less"), ("twice", "half"), ("twice", "three times"), ("double", "triple"), ("older", "younger"),
    ("taller", "shorter"), ("longer", "shorter"), ("before", "after"), ("increase", "decrease"), ("increased", "decreased"),
    ("half", "a third"), ("one-third", "one-fourth"), ("a quarter", "a third"), ("each", "in total"), ("gives", "gets"), ("bought", "sold"),
    ("per hour", "per day"), ("a day", "a week"), ("a week", "a month"), ("first", "second"), ("faster", "slower"), ("cheaper", "more expensive"),
    ("hours", "minutes"), ("weeks", "days"), ("years", "months"), ("every day", "every week"), ("remaining", "first"),
)  # fmt: skip
_OPPOSITE = {
    "more": ("+", "-"),
    "fewer": ("-", "+"),
    "less": ("-", "+"),
    "twice": ("*", "/"),
    "half": ("/", "*"),
    "older": ("+", "-"),
    "younger": ("-", "+"),
}


def wrong_twin(
    made: Calculation,
    earlier: Sequence[Calculation],
    asked: Sequence[Fraction],
    known: Sequence[Fraction],
    fact: str | None,
    rng: random.Random,
) -> tuple[str, Calculation, str | None] | None:
    """A wrong twin of a calculation, consistent with itself.

    Args:
        made: the right one.
        earlier: the calculations of the steps before.
        asked: the numbers that the problem gives.
        known: the results of the steps before.
        fact: what the step restates of the problem, if it does.
        rng: chooses kind and place.

    Returns:
        The kind, the calculation, and the fact as the step restates it; None where the kind that was drawn has no place.
    """
    kinds = ["value"] * 3 + ["operand"] * 4 + ["operation"] * 4 + ["skipped", "omission"] * 3 + ["surplus"]
    kinds += ["misread"] * 6 if fact is not None else []
    kind = rng.choice(kinds)
    places = [i for i, t in enumerate(made.terms) if isinstance(t, Fraction)]
    signs = [i for i, t in enumerate(made.terms) if isinstance(t, str) and t in "+-*/"]
    terms = list(made.terms)
    money = list(made.money)
    if kind == "value":
        new = another(made.result, rng)
        if abs(new - made.result) * 50 < made.result and made.result.denominator != 1:
            return None
        return _told(kind, made, made.result, replace(made, result=new), fact)
    if kind == "misread":
        assert fact is not None
        made_false = misread(fact, set(asked), rng)
        if made_false is None:
            return None
        false, had, has = made_false
        if had is not None and has is not None and had in made.numbers:
            terms = [has if t == had else t for t in terms]
        elif had is None:
            for word, (right, opposite) in _OPPOSITE.items():
                if (
                    re.search(rf"\b{word}\b", fact)
                    and not re.search(rf"\b{word}\b", false)
                    and [terms[i] for i in signs] == [right]
                ):
                    terms[signs[0]] = opposite
        return recomputed(kind, made, terms, money, false, same=True)
    if kind == "operand":
        at = rng.choice(places)
        old = terms[at]
        assert isinstance(old, Fraction)
        pool = [n for n in (*asked, *known, *known) if n != old and n > 1 and n not in made.numbers]
        terms[at] = rng.choice(pool) if pool and rng.random() < 0.7 else another(old, rng)
    elif kind == "operation":
        at = rng.choice(signs)
        terms[at] = rng.choice([s for s in "+-*/" if s != terms[at]])
    elif kind == "skipped":
        used = [one for one in earlier if one.result in made.numbers]
        if not used:
            return None
        step = rng.choice(used)
        pool = [n for n in step.numbers if n != step.result and n > 1]
        if not pool:
            return None
        new = rng.choice(pool)
        terms = [new if t == step.result else t for t in terms]
    elif kind == "omission":
        if len(places) < 3 or "(" in terms or len(terms) != 2 * len(places) - 1:
            return None
        at = rng.randrange(len(places))
        cut = slice(0, 2) if at == 0 else slice(2 * at - 1, 2 * at + 1)
        del terms[cut], money[cut]
    elif kind == "surplus":
        pool = [n for n in (*asked, *known) if n > 1 and n not in made.numbers]
        if not pool or len(places) > 3:
            return None
        same = [terms[i] for i in signs]
        terms += [same[-1] if rng.random() < 0.6 else rng.choice("+-*/"), rng.choice(pool)]
        money += [False, money[0]]
    return recomputed(kind, made, terms, money, fact)


def recomputed(
    kind: str,
    made: Calculation,
    terms: list[Fraction | str],
    money: list[bool],
    fact: str | None,
    *,
    same: bool = False,
) -> tuple[str, Calculation, str | None] | None:
    """With its result computed again; None if that tells the error by its looks or does not change the result."""
    new = replace(made, terms=tuple(terms), money=tuple(money))
    value = new.value()
    if value is None or value <= 0 or digits(value) is None or (value == made.result and not same):
        return None
    whole = made.result.denominator == 1
    if (whole and value.denominator != 1) or value > 100_000 * max(Fraction(1), made.result) or value == 1:
        return None
    if value * 200 < made.result or value > made.result * 200:
        return None
    return _told(kind, made, made.result, replace(new, result=value), fact)


def _told(
    kind: str, old: Calculation, was: Fraction, new: Calculation, fact: str | None
) -> tuple[str, Calculation, str | None]:
    """The words around the calculation say what it says."""
    head, tail = new.head, new.tail
    gone = [n for n in old.numbers if n not in new.numbers]
    came = [n for n in new.numbers if n not in old.numbers]
    if len(gone) == 1 and len(came) == 1:
        head = replace_number("", head, gone[0], came[0], head)
        tail = replace_number("", tail, gone[0], came[0], tail)
    if was != new.result and was > 1:
        tail = replace_number("", tail, was, new.result, tail)
    return kind, replace(new, head=head, tail=tail), fact


def misread(
    fact: str, given: set[Fraction], rng: random.Random
) -> tuple[str, Fraction | None, Fraction | None] | None:
    """A fact with another number or relation, and what was exchanged; None where nothing can be."""
    pairs = [(a, b) for x, y in _RELATIONS for a, b in ((x, y), (y, x)) if re.search(rf"\b{a}\b", fact)]
    found = [
        m
        for m in NUMBER.finditer(fact)
        if not re.match(r"[A-Za-z/%]|[.,:][0-9]", fact[m.end() : m.end() + 2])
    ]
    if pairs and (not found or rng.random() < 0.4):
        a, b = rng.choice(pairs)
        return re.sub(rf"\b{a}\b", b, fact, count=1), None, None
    if not found:
        return None
    place = rng.choice(found)
    old = number_of(place[0])
    others = [n for n in given if n != old and n > 1]
    new = rng.choice(others) if others and rng.random() < 0.5 else another(old, rng)
    if digits(new) is None or new == old:
        return None
    return (
        fact[: place.start()]
        + replace_number(fact[: place.start()], place[0], old, new, fact)
        + fact[place.end() :],
        old,
        new,
    )


def overshoot(last: Calculation, asked: Sequence[Fraction], rng: random.Random) -> Calculation | None:
    """A step too many: the answer calculated on with a further number of the problem; None where that gives no plain number."""
    pool = [n for n in asked if n > 1 and n not in last.numbers]
    if not pool:
        return None
    number = rng.choice(pool)
    sign = rng.choice("+-*/")
    made = replace(
        last, terms=(last.result, sign, number), money=(last.paid, False, last.paid and sign in "+-")
    )
    error = recomputed("overshoot", last, list(made.terms), list(made.money), None)
    return None if error is None else error[1]


def carried(made: Calculation, before: Calculation | None, false: Calculation) -> Calculation | None:
    """A calculation after a false one, with the false result in place of the right one; None where that is not sure."""
    if before is None or before.result == false.result:
        return None
    if made.numbers.count(before.result) != 1:
        return made if before.result not in made.numbers else None
    terms = [false.result if t == before.result else t for t in made.terms]
    new = replace(made, terms=tuple(terms))
    value = new.value()
    if value is None or digits(value) is None or value <= 0:
        return None
    return _told("", made, made.result, replace(new, result=value), None)[1]


_TRIES = 6


@dataclass(frozen=True, slots=True)
class _Step:
    """A line of the worked solution: with its one calculation, or only as text."""

    text: str
    made: Calculation | None


class _Tree:
    """The branches of one problem under way."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rows: list[LabelledSolution] = []
        self.texts: set[tuple[str, ...]] = set()

    def add(self, before: Sequence[str], last: str, error: str | None) -> bool:
        """One branch; False if the same text was there already."""
        key = (*before, last)
        if key in self.texts:
            return False
        self.texts.add(key)
        judgement = Judgement(
            kind="correctness", judge="exact", rating=1 if error is None else -1, note=error
        )
        self.rows.append(
            LabelledSolution(
                solution=Solution(
                    problem=self.problem, steps=tuple(Step(text=t) for t in key), id=self.problem.id
                ),
                judgements=(*((),) * len(before), (judgement,)),
            )
        )
        return True


def contrasts(
    worked: Worked, rng: random.Random, *, wrong: float = 1.5, joined: float = 0.35, changed: float = 0.3
) -> Iterator[LabelledSolution]:
    """The branches of one worked problem.

    Args:
        worked: a problem with a solution whose calculations are marked.
        rng: chooses style and errors.
        wrong: wrong steps for each right one, on average.
        joined: probability that a step is joined with the one after it.
        changed: probability that a second tree follows, of the problem with one of its numbers changed.

    Yields:
        Solutions judged at their last step. Nothing if fewer than half of the lines hold one clear calculation, or the last one does not
        give the answer.
    """
    steps = [_Step(plain(line), parse(line)) for line in worked.lines]
    last = steps[-1].made
    clear = sum(step.made is not None for step in steps)
    if (
        last is None
        or clear < 0.6 * len(steps)
        or digits(last.result) != (worked.problem.answer or "").replace(",", "")
    ):
        return
    style = draw_style(rng)
    yield from _solution(worked.problem, steps, style, rng, wrong, joined)
    if rng.random() < changed:
        yield from _changed(worked.problem, steps, draw_style(rng), rng)


def _solution(
    problem: Problem, steps: Sequence[_Step], style: Style, rng: random.Random, wrong: float, joined: float
) -> Iterator[LabelledSolution]:
    tree = _Tree(problem)
    before: list[str] = []
    facts = [s.rstrip(".") for s in sentences_of(problem.text) if s.endswith(".") and len(s) < 160]
    last = steps[-1].made
    assert last is not None
    if style.intro != "none":
        given = [f for f in facts if NUMBER.search(f)][:4]
        state = rng.getstate()
        text = write_intro(problem.text, given, style, rng)
        tree.add(before, text, None)
        misreadings = [misread(f, numbers(problem.text), rng) for f in given]
        places = [i for i, m in enumerate(misreadings) if m is not None]
        if style.intro == "given" and places and rng.random() < 0.8:
            at = rng.choice(places)
            false = misreadings[at]
            assert false is not None
            after = rng.getstate()
            rng.setstate(state)
            tree.add(
                before,
                write_intro(problem.text, [*given[:at], false[0], *given[at + 1 :]], style, rng),
                "given",
            )
            rng.setstate(after)
        before.append(text)
    known: list[Fraction] = []
    earlier: list[Calculation] = []
    asked = sorted(numbers(problem.text))
    prefix = ""
    waiting: list[tuple[str, Calculation, str]] = []  # errors in the first half of a joined step
    for k, step in enumerate(steps):
        number = len(before) + 1 if style.intro == "none" else len(before)
        ends = k == len(steps) - 1
        seed = rng.random()
        if step.made is None:
            text = prefix + step.text
            waiting = []
        else:
            made = step.made
            if rng.random() < 0.3:
                made = commuted(made) or made
            fact = _fact(made, facts, rng) if rng.random() < style.facts else None
            dress = _Dress(style, number, seed, goes_on=prefix != "")
            text = prefix + dress.write(made, fact)
        join = not ends and rng.random() < (joined if style.verbal else joined / 4) and len(text) < 300
        boxed = style.final == "boxed" and ends and rng.random() < 0.4
        if not join:
            tree.add(before, text + (_box(step.made) if boxed and step.made else ""), None)
        if step.made is not None:
            for kind, first, start in waiting:
                second = carried(made, steps[k - 1].made, first)
                if second is not None:
                    tree.add(
                        before,
                        start + dress.write(second, fact) + (_box(second) if boxed and not join else ""),
                        kind,
                    )
            waiting = []
            count = int(wrong) + (rng.random() < wrong % 1)
            for _ in range(_TRIES * count):
                if count == 0:
                    break
                error = wrong_twin(made, earlier, asked, known, fact, rng)
                if error is None:
                    continue
                kind, false_made, false_fact = error
                false_text = prefix + dress.write(false_made, false_fact)
                if join:
                    waiting.append((kind, false_made, false_text + " "))
                    count -= 1
                    continue
                count -= tree.add(before, false_text + (_box(false_made) if boxed else ""), kind)
            if (
                not ends
                and not join
                and style.final == "boxed"
                and rng.random() < 0.25
                and made.result != last.result
            ):
                tree.add(before, text + _box(made), "early stop")
            known.append(step.made.result)
            earlier.append(step.made)
        if boxed:
            text += _box(step.made) if step.made else ""
        if join:
            prefix = text.rstrip() + " "
        else:
            prefix = ""
            before.append(text)
            if not ends and step.made is not None and step.made.result != last.result and rng.random() < 0.3:
                tree.add(
                    before,
                    write_final(step.made.result, step.made, problem.text, style, random.Random(seed)),
                    "early stop",
                )
        if ends and not boxed:
            final = random.Random(rng.random()).getstate()
            own = random.Random()
            own.setstate(final)
            tree.add(before, write_final(last.result, last, problem.text, style, own), None)
            others = [v for v in known if v != last.result]
            value = rng.choice(others) if others and rng.random() < 0.6 else another(last.result, rng)
            if digits(value) is not None and rng.random() < 0.7:
                own.setstate(final)
                tree.add(
                    before,
                    write_final(value, last, problem.text, style, own),
                    "early stop" if value in others else "value",
                )
        if ends and rng.random() < 0.12:
            extra = overshoot(last, asked, rng)
            if extra is not None:
                tree.add(before, write(extra, style, number + 1, random.Random(seed)), "overshoot")
    yield from tree.rows


@dataclass(frozen=True, slots=True)
class _Dress:
    """Everything about a step's looks."""

    style: Style
    number: int
    seed: float
    goes_on: bool

    def write(self, made: Calculation, fact: str | None) -> str:
        return write(made, self.style, self.number, random.Random(self.seed), fact=fact, goes_on=self.goes_on)


def _box(made: Calculation) -> str:
    return f" \\boxed{{{digits(made.result, paid=made.paid)}}}"


def _fact(made: Calculation, facts: Sequence[str], rng: random.Random) -> str | None:
    """A sentence of the problem that holds a number which the calculation uses."""
    fit = [f for f in facts if numbers(f) & set(made.numbers)]
    return rng.choice(fit) if fit else None


def _changed(
    problem: Problem, steps: Sequence[_Step], style: Style, rng: random.Random
) -> Iterator[LabelledSolution]:
    """The problem with one number changed: steps before its first use, the right step for the new number, and the old step, now wrong."""
    mentions = list(NUMBER.finditer(problem.text))
    once = [m for m in mentions if sum(number_of(o[0]) == number_of(m[0]) for o in mentions) == 1]
    rng.shuffle(once)
    for mention in once:
        old = number_of(mention[0])
        uses = [k for k, s in enumerate(steps) if s.made is not None and old in s.made.numbers]
        if (
            old < 2
            or not uses
            or re.match(r"[A-Za-z/]|[.,:][0-9]", problem.text[mention.end() : mention.end() + 2])
        ):
            continue
        k = uses[0]
        made = steps[k].made
        assert made is not None
        if old in {s.made.result for s in steps[:k] if s.made is not None} or any(
            old in numbers(s.text) for s in steps[:k]
        ):
            continue
        if sum(t == old for t in made.terms) != 1 or old in numbers(re.sub(NUMBER, "", problem.text)):
            continue
        new = another(old, rng)
        if new in numbers(problem.text) or digits(new) is None:
            continue
        error = recomputed(
            "question", made, [new if t == old else t for t in made.terms], list(made.money), None
        )
        if error is None:
            continue
        text = (
            problem.text[: mention.start()]
            + replace_number(problem.text[: mention.start()], mention[0], old, new, problem.text)
            + problem.text[mention.end() :]
        )
        tree = _Tree(replace(problem, text=text, answer=None))
        before: list[str] = []
        style = replace(style, facts=0.0)
        for i, step in enumerate(steps[:k]):
            before.append(step.text if step.made is None else write(step.made, style, i + 1, rng))
            tree.add(before[:-1], before[-1], None)
        seed = rng.random()
        tree.add(before, write(error[1], style, k + 1, random.Random(seed)), None)
        tree.add(before, write(made, style, k + 1, random.Random(seed)), "question")
        yield from tree.rows
        return
