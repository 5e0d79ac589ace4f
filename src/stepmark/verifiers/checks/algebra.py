r"""Equations with unknowns, compared exactly.

- `false_identities`: two forms of one expression that are not equal. An equation in a letter may be a condition ("(2 - m)² = m² + 1") and
  no claim; only a link of a chain that rewrites (a = b = c), or an expansion that agrees with its product in at least half
  of its coefficients, the leading ones too, is taken for a claim.
- `lost_solutions`: an equation in one letter that has no solution in common with the equation before it, where only words that
  rewrite stand between the two ("so", "subtract 3 from both sides", "which simplifies to"). Nothing is
  said where alternatives, cases or trials may be meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from stepmark.verifiers.checks.claims import Claim
from stepmark.verifiers.checks.equations import Equation, computes, differ, doubted, is_modular, shown
from stepmark.verifiers.checks.expressions import Token, word_set
from stepmark.verifiers.checks.polynomials import (
    Monomial,
    Polynomial,
    Quotient,
    UnreadableError,
    coefficients,
    common_roots,
    multiply,
)

# --- two forms of one expression ----------------------------------------------------------------------------------------


_EXPANDS = re.compile(r"\b(?:expand|expansion|factor|foil|distribut)\w*", re.I)
_CONDITION = re.compile(r"\b(?:both|sides?|equations?|solv\w+|set|squar\w+|where|when)\b", re.I)


def false_identities(text: str, problem: str, stated: Sequence[Equation]) -> Iterator[Claim]:
    """The equations in a text that state two forms of an expression to be equal, and that are false."""
    for at, equation in enumerate(stated):
        if equation.about or equation.decimal or not equation.letters:
            continue
        if equation.left.letters != equation.right.letters or "i" in equation.letters:
            continue
        # A capital letter may be a matrix or an event.
        if any(letter.isupper() for letter in equation.letters):
            continue
        head = stated[at - 1] if at and equation.chained else None
        try:
            if not equation.left.difference(equation.right):
                continue
            above = multiply(equation.left.above, equation.right.below)
            other = multiply(equation.right.above, equation.left.below)
        except UnreadableError:
            continue
        around = text[max(0, equation.start - 100) : equation.start] + text[equation.end : equation.end + 60]
        announced = _EXPANDS.search(around) is not None and not _CONDITION.search(around)
        if not (_is_rewritten(equation, head, above, other, announced=announced)):
            continue
        if _squeezed(equation.text) in _squeezed(problem) or doubted(text, equation.start, equation.end):
            continue
        if is_modular(text):
            continue
        yield Claim(equation.start, equation.end, _right_form(equation))


def _is_rewritten(
    equation: Equation, head: Equation | None, above: Polynomial, other: Polynomial, *, announced: bool
) -> bool:
    """Whether the right side is meant as another form of the left one."""
    monomials = {*above, *other}
    same = sum(above.get(m, 0) == other.get(m, 0) for m in monomials)
    if equation.chained:
        # f(x) = (x + 1)² = …: the chain begins with a name, or its first link is an identity itself.
        # What agrees in few coefficients may be a condition all the same: k = (6 - y) z = (5 - z) y.
        named = head is None or _is_identity(head) or _is_name(head.tokens[0], equation)
        return named and (3 * same >= len(monomials) or _has_quotient(equation))
    a, b = equation.tokens
    if announced and _is_composite(b) and not _is_composite(a) and not _has_quotient(equation):
        return len(monomials) > 1 and _leading(above) == _leading(
            other
        )  # "we factor x² - 5x + 6 = (x - 1)(x - 6)"
    if len(monomials) < 2 or not _is_composite(a) or _is_composite(b) or _has_quotient(equation):
        return False
    if len(monomials) == 2:
        return same == 1 and (announced or () not in monomials)  # 2(a + 3b) - (a - b) = a + 5b
    return (announced or 2 * same >= len(monomials)) and _leading(above) == _leading(other)


def _is_identity(equation: Equation) -> bool:
    try:
        return bool(equation.letters) and not equation.left.difference(equation.right)
    except UnreadableError:
        return False


def _has_quotient(equation: Equation) -> bool:
    return any(set(side.below) != {()} for side in (equation.left, equation.right))


def _is_name(side: Sequence[Token], equation: Equation) -> bool:
    return len(side) == 1 and side[0].kind == "word" and side[0].text not in equation.letters


def _is_composite(side: Sequence[Token]) -> bool:
    """Whether a sum in brackets is multiplied or raised: something is left to expand."""
    return any(token.kind == "open" for token in side)


def _leading(polynomial: Polynomial) -> dict[Monomial, Fraction]:
    degree = max((sum(power for _, power in monomial) for monomial in polynomial), default=0)
    return {m: x for m, x in polynomial.items() if sum(power for _, power in m) == degree}


def _squeezed(text: str) -> str:
    return re.sub(r"\s|\$|\\left|\\right|&|\{|\}", "", text)


def _right_form(equation: Equation) -> str:
    a, b = equation.tokens
    if _is_composite(b) and not _is_composite(a) and (product := _polynomial(equation.right)):
        return f"the product is {product}"
    form = _polynomial(equation.left)
    return f"it is {form}" if form else "the two sides are not equal"


def _polynomial(quotient: Quotient) -> str:
    """A polynomial with rational coefficients as text, highest powers first; "" for anything else."""
    if set(quotient.below) != {()}:
        return ""
    terms = {m: x / quotient.below[()] for m, x in quotient.above.items()}
    if len(terms) > 8:
        return ""
    text = ""
    for monomial in sorted(terms, key=lambda m: (-sum(p for _, p in m), m)):
        x = terms[monomial]
        letters = "".join(letter if power == 1 else f"{letter}^{power}" for letter, power in monomial)
        size = "" if abs(x) == 1 and letters else shown(abs(x))
        sign = ("-" if x < 0 else "") if not text else (" - " if x < 0 else " + ")
        text += f"{sign}{size}{letters}"
    return text or "0"


# --- an equation and the one before it ----------------------------------------------------------------------------------

_CONNECTING = word_set("""
so then thus therefore hence now next finally which this that it we can i you get gives give us have
obtain obtained find stated simplify simplifies simplified simplifying to into becomes become the
equation expression both sides side left right hand from by on of subtract subtracting subtracted add
adding divide dividing multiply multiplying solve solving for yields yield implies means is equivalent
rewrite rewritten as combining combine like terms expand expanding distribute distributing isolate
isolating cross first second third fourth fifth sixth ok okay yes positive negative root solution value
unique only answer step rearranging rearrange be written see just same our going need and if follows
again longrightarrow rightarrow text quad qquad begin end align aligned gather simplification
""")
_BETWEEN_WORD = re.compile(r"[A-Za-z]+")
_ALTERNATIVES = re.compile(
    r"\b(?:or|either|case|cases|try|trying|let|suppose|assume|if|when|where|try|check|root|roots|factors?)\b|\\pm|±|∓",
    re.I,
)
_LONGEST_BETWEEN = 160
_HIGHEST_ROUNDED = 5


def lost_solutions(
    text: str, stated: Sequence[Equation], before: str, last: Equation | None
) -> Iterator[Claim]:
    """The equations of a step that have no solution in common with the equation that they are made from: the one before, or the `last` of the step `before`."""
    if is_modular(text) or is_modular(before):
        return
    previous, own = last, False
    for equation in stated:
        if previous is not None and not equation.chained:
            between = text[: equation.start]
            between = between[previous.end :] if own else f"{before[previous.end :]} {between}"
            claim = _lost(previous, equation, between)
            conditional = bool(claim) and _conditional(text if own else before, previous)
            if claim and not conditional and not doubted(text, equation.start, equation.end):
                yield Claim(equation.start, equation.end, claim)
        previous, own = equation, True


def _conditional(text: str, equation: Equation) -> bool:
    """Whether alternatives are in the sentence of the equation that comes first."""
    sentence = re.split(r"\.\s|\n", text[max(0, equation.start - 80) : equation.start])[-1]
    return _ALTERNATIVES.search(sentence) is not None


def _lost(first: Equation, then: Equation, between: str) -> str:
    """What solves the first equation, if nothing that solves it solves the second; "" otherwise."""
    if len(between) > _LONGEST_BETWEEN or len(first.letters) != 1 or first.letters != then.letters:
        return ""
    (letter,) = first.letters
    if not _rewrites(between, letter, defines=_is_definition(then)) or first.about or then.about:
        return ""
    if _is_definition(first) or first.chained:
        return ""
    if not _BETWEEN_WORD.search(between) and _is_zero(first) and _is_zero(then):
        return ""  # factors, one by one
    below = any(letter in dict(m) for side in (first.left, first.right) for m in side.below)
    if below and any(t.text == "/" for side in first.tokens for t in side):
        return ""  # 28-y/y for (28-y)/y
    try:
        p, q = (coefficients(equation.left.difference(equation.right), letter) for equation in (first, then))
        if p is None or q is None or len(p) < 2 or len(q) < 2 or len(common_roots(p, q)) > 1:
            return ""
    except UnreadableError:
        return ""
    other = -q[0] / q[1] if len(q) == 2 else None
    if len(p) != 2:
        if first.decimal or then.decimal:
            # A rounded solution nearly solves it.
            if other is None or len(p) > _HIGHEST_ROUNDED:
                return ""
            total, size = _value(p, other), _value([abs(c) for c in p], abs(other))
            if abs(total) * 20 <= size:
                return ""
        return f"no solution of {_one_line(first.text)} solves it"
    root = -p[0] / p[1]
    decimal = first.decimal or then.decimal
    if other is not None and (decimal or _is_definition(then)) and not differ(root, other, exact=not decimal):
        return ""  # rounded
    return f"{_one_line(first.text)} gives {letter} = {shown(root)}"


def _is_zero(equation: Equation) -> bool:
    return equation.right.rational == 0


def _value(polynomial: Sequence[Fraction], at: Fraction) -> Fraction:
    """The value of a polynomial, its constant first (Horner)."""
    total = Fraction(0)
    for coefficient in reversed(polynomial):
        total = total * at + coefficient
    return total


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _is_definition(equation: Equation) -> bool:
    """Whether a letter is set to a number: what follows may set it to another."""
    for side, other in ((equation.tokens[0], equation.right), (equation.tokens[1], equation.left)):
        if len(side) == 1 and side[0].kind == "word" and not other.letters:
            return not computes(equation.tokens[1] if side is equation.tokens[0] else equation.tokens[0])
    return False


def _rewrites(between: str, letter: str, *, defines: bool) -> bool:
    """Whether only words that announce a rewritten equation stand between two equations."""
    words = [word.lower() for word in _BETWEEN_WORD.findall(between) if word != letter]
    if words == ["and"]:
        return defines  # "3x = 15 and x = 5", but not "x - 1 = 0 and x - 5 = 0"
    if between.strip(" $.;\\()[]").startswith(",") and not words:
        return False
    if "equation" in words and {"first", "second", "third", "fourth", "fifth"} & set(words):
        return False
    return all(word in _CONNECTING for word in words)
