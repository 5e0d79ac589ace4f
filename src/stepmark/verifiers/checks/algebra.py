r"""Equations with letters, roots, π, factorials and mixed numbers, compared exactly.

Everything is decided in exact quotients of polynomials (`polynomials`). Three questions are asked:

- `false_constants`: an equation without letters whose sides differ (√18 = 3 √3, 5! = 60, 1 1/2 + 1/4 = 2).
- `false_identities`: two forms of one expression that are not equal. An equation in a letter may be a condition ("(2 - m)² = m² + 1") and
  no claim; only a link of a chain that rewrites (a = b = c), or an expansion that agrees with its product in at least half
  of its coefficients, the leading ones too, is taken for a claim.
- `lost_solutions`: an equation in one letter that has no solution in common with the equation before it, where only words that
  rewrite stand between the two ("so", "subtract 3 from both sides", "which simplifies to"). Nothing is
  said where alternatives, cases or trials may be meant.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from stepmark.verifiers.checks.equations import Formula, differ, doubted, is_modular, shown
from stepmark.verifiers.checks.expressions import (
    WORDS_THAT_COMPUTE,
    Token,
    UnreadableError,
    side_after,
    side_before,
    tokens,
    word_set,
)
from stepmark.verifiers.checks.polynomials import (
    Monomial,
    Polynomial,
    Quotient,
    coefficients,
    common_roots,
    multiply,
    read,
)
from stepmark.verifiers.checks.words import Claim

_MATH = re.compile(r"\$\$?|\\[()\[\]]")
_WORDS = re.compile(r"\\(?:text|mathrm|textrm|textit|mbox)\s?\{[^{}]{0,80}\}")
_PARTS = word_set("number sign power open close percent fraction root word pi binomial factorial")
_VERBS = {"is", "are", "was", "were", "equals", "gives"}
_COMPUTE = WORDS_THAT_COMPUTE - _VERBS | word_set("sin cos tan log ln per step case part angle")
# Not "-" and "*", which begin the items of lists.
_OPERATORS = tuple("+/=×÷")
_JOINING = {"and", "or", "if", "suppose", "assume", "assuming", "from", "to"}


@dataclass(frozen=True, slots=True)
class Equation:
    """Two expressions and an equals sign between them."""

    start: int
    end: int
    text: str
    left: Quotient
    right: Quotient
    chained: bool
    """Whether its left side is the right side of the equation before: a = b = c."""
    about: bool
    """Whether it is written with ≈."""
    kinds: frozenset[str]
    """The kinds of tokens in it."""
    decimal: bool
    """Whether a number with decimals is in it."""
    tokens: tuple[Sequence[Token], Sequence[Token]]

    @property
    def letters(self) -> frozenset[str]:
        """The unknowns of both sides."""
        return self.left.letters | self.right.letters


def equations(text: str) -> list[Equation]:
    """The equations of a text that can be read, in order."""
    pieces = _tokens(text)
    out: list[Equation] = []
    for at, token in enumerate(pieces):
        if token.kind not in ("equal", "about"):
            continue
        left, right = side_before(pieces, at, _is_part), side_after(pieces, at, _is_part)
        if not left or not right or not _free_before(pieces, left) or not _free_after(pieces, right):
            continue
        a, b = pieces[left.start : left.stop], pieces[right.start : right.stop]
        try:
            sides = read(a), read(b)
        except UnreadableError:
            continue
        before = pieces[left.start - 1] if left.start else None
        out.append(
            Equation(
                start=a[0].start,
                end=b[-1].end,
                text=text[a[0].start : b[-1].end],
                left=sides[0],
                right=sides[1],
                chained=before is not None and before.kind in ("equal", "about"),
                about=token.kind == "about",
                kinds=frozenset(t.kind for t in (*a, *b)),
                decimal=any("." in t.text for t in (*a, *b) if t.kind == "number"),
                tokens=(a, b),
            )
        )
    return out


def _tokens(text: str) -> list[Token]:
    """The tokens of a text, with the letters of formulas in their own case, and a stop at the borders of formulas."""
    inline = text.replace("\\$", "  ").count("$") % 2 == 0
    plain = _MATH.sub(lambda m: _border(text, m, inline=inline), text)
    math = _math_spans(text, inline=inline)
    for words in _WORDS.finditer(text):
        math[words.start() : words.end()] = [False] * (words.end() - words.start())
    out: list[Token] = []
    for token in tokens(plain):
        if (token.kind == "other" and token.text == "\\pi") or (token.kind == "word" and token.text == "π"):
            out.append(replace(token, kind="pi"))
        elif token.kind == "other" and token.text in ("\\binom", "\\dbinom", "\\tbinom"):
            out.append(replace(token, kind="binomial"))
        elif token.kind == "other" and token.text == "!":
            out.append(replace(token, kind="factorial"))
        elif token.kind == "word":
            shown = text[token.start : token.end]
            if (
                math[token.start]
                and len(shown) < 4
                and shown.isascii()
                and shown.islower()
                and shown.isalpha()
            ):
                for i, letter in enumerate(shown):
                    at = token.start + i
                    out.append(Token("word", letter, at, at + 1, token.gap and not i))
            else:
                out.append(replace(token, text=shown))
        else:
            out.append(token)
    return out


def _border(text: str, match: re.Match[str], *, inline: bool) -> str:
    dollar = match[0].startswith("$")
    if dollar and (not inline or text[match.start() - 1 : match.start()] == "\\"):
        return match[0]
    # 30 + \\( x \\) = 50: the formula goes on outside of its borders.
    line = text[max(0, match.start() - 40) : match.start()].rpartition("\n")[2].rstrip()
    if match[0] == "\\(" and len(line) > 1 and line[-1] in _OPERATORS:
        return "  "
    if match[0] == "\\)" and text[match.end() : match.end() + 3].lstrip()[:1] in _OPERATORS:
        return "  "
    return ";".ljust(len(match[0]))


def _math_spans(text: str, *, inline: bool) -> list[bool]:
    """For each character, whether it stands inside a formula of LaTeX."""
    inside = [False] * (len(text) + 1)
    start: int | None = None
    for match in _MATH.finditer(text):
        if match[0].startswith("$") and (not inline or text[match.start() - 1 : match.start()] == "\\"):
            continue
        if match[0] in ("\\(", "\\[") or (start is None and match[0].startswith("$")):
            start = match.end()
        elif start is not None:
            inside[start : match.start()] = [True] * (match.start() - start)
            start = None
    return inside


def _is_part(token: Token) -> bool:
    return token.kind in _PARTS and (token.kind != "word" or len(token.text) == 1)


def _free_before(pieces: Sequence[Token], side: range) -> bool:
    """Whether the expression begins where it seems to."""
    first = pieces[side.start]
    before = pieces[side.start - 1] if side.start else None
    if first.kind == "sign" and (first.text != "-" or (before is not None and before.kind == "word")):
        return False
    listed = before is None or before.kind in ("line", "stop")
    if first.kind == "sign" and listed and any(t.gap for t in pieces[side.start + 1 : side.start + 2]):
        return False  # "- 4 + 2 = 6", an item of a list
    if before is None or before.kind in ("line", "equal", "about", "open"):
        return True
    if before.kind == "relation":
        return before.text not in ("\\equiv", "≡", "\\cong")
    if before.kind == "stop":
        if before.text in ".," and first.kind == "sign":
            return False
        return first.gap or before.text == ";"
    if before.kind == "word":
        word = before.text.lower()
        if word in _JOINING:
            # "gives x = 5 and y = 6", "simplifies to 2x = 4": an unknown begins a formula, a number may go on.
            return first.gap and any(t.kind == "word" for t in pieces[side.start : side.stop])
        return first.gap and word not in _COMPUTE and len(word) > 1
    return False


def _free_after(pieces: Sequence[Token], side: range) -> bool:
    """Whether the expression ends where it seems to."""
    after = pieces[side.stop] if side.stop < len(pieces) else None
    if after is None or after.kind in ("line", "equal", "about", "close"):
        return True
    if after.kind == "relation":
        return after.text not in ("\\equiv", "≡", "\\cong")
    if after.kind == "stop":
        return after.text != "?" and not (after.text == ":" and not after.gap)
    if after.kind == "word":
        if after.text.lower() in _JOINING:
            follows = pieces[side.stop + 1] if side.stop + 1 < len(pieces) else None
            return after.gap and follows is not None and follows.kind in ("word", "stop")
        return after.gap and after.text.lower() not in _COMPUTE | {"with"} and len(after.text) > 1
    return False


# --- equations without letters ------------------------------------------------------------------------------------------

_DEGREES = re.compile(r"°|\\circ|\\degree|\bdegrees?\b|\bradians?\b")
_NEAR = 20  # calculations that may overlap an equation: those that begin last before its end
_UNREAD = ("no group", "brackets", "two expressions", "a root", "something stands", "begins with a sign")


def false_constants(text: str, read_before: Sequence[Formula], stated: Sequence[Equation]) -> Iterator[Claim]:
    """The equations without letters (of those `stated` in a step) that are false and that `equations.calculations` could not read."""
    modular: bool | None = None
    starts = [formula.start for formula in read_before]
    for equation in stated:
        if "word" in equation.kinds or equation.about:
            continue  # an unknown that cancels out may be in a condition: 2x + (35 - 2x) = 50
        near = bisect_left(starts, equation.end)
        overlap = [f for f in read_before[max(0, near - _NEAR) : near] if equation.start < f.end]
        if any(f.truth != "unknown" or not f.why.startswith(_UNREAD) for f in overlap):
            continue
        a, b = equation.tokens
        if not (_computes(a) or _computes(b)) or (len(a) == 1 and not equation.chained):
            continue  # "10 = 4", "and 1 = 3 + 4"
        try:
            if not equation.left.difference(equation.right):
                continue
            x, y = equation.left.number(), equation.right.number()
        except UnreadableError:
            continue
        rational = [side.rational for side in (equation.left, equation.right)]
        whole = any(side is not None and side.denominator == 1 for side in rational)
        if (abs(x - y) < 1 and (equation.decimal or whole)) or (
            (equation.decimal or not all(side is not None for side in rational))
            and (equation.decimal or whole)
            and abs(x - y) * 100 <= max(abs(x), abs(y))
        ):
            continue
        if "pi" in equation.kinds and _DEGREES.search(text):
            continue
        modular = is_modular(text) if modular is None else modular
        if modular or doubted(text, equation.start, equation.end):
            continue
        yield Claim(equation.start, equation.end, _sides(equation, rational, x, y))


def _computes(side: Sequence[Token]) -> bool:
    return any(
        token.kind in ("power", "fraction", "root", "pi", "binomial", "factorial")
        or (token.kind == "sign" and i > 0)
        or (token.kind == "open" and i > 0)
        for i, token in enumerate(side)
    )


def _sides(equation: Equation, rational: Sequence[Fraction | None], x: float, y: float) -> str:
    left, right = (
        shown(value) if value is not None else f"about {number:.6g}"
        for value, number in zip(rational, (x, y), strict=True)
    )
    if not _computes(equation.tokens[1]):
        return f"it is {left}"
    return f"the left side is {left}, the right side is {right}"


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
    if "/" in {t.text for side in first.tokens for t in side} and any(
        letter in dict(m) for side in (first.left, first.right) for m in side.below
    ):
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
    if not _defined(first, letter, root):
        return ""
    return f"{_one_line(first.text)} gives {letter} = {shown(root)}"


def _is_zero(equation: Equation) -> bool:
    return equation.right.rational == 0


def _defined(equation: Equation, letter: str, root: Fraction) -> bool:
    """Whether no denominator is zero at a root."""
    for side in (equation.left, equation.right):
        below = coefficients(side.below, letter)
        if below is None or not _value(below, root):
            return False
    return True


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
            return not _computes(equation.tokens[1] if side is equation.tokens[0] else equation.tokens[0])
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
    return all(word in _CONNECTING for word in words) and not re.search(r"\b(?:if|and)\s*\$?\s*$", between)
