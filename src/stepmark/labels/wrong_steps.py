"""One calculation made wrong, so that it is still consistent with itself: the errors of `contrast`."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from stepmark.labels.prose import Calculation, digits
from stepmark.labels.slips import NUMBER, another, number_of, replace_number

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
