"""Exact labels: errors put on purpose into worked solutions whose calculations are marked.

A line such as "She sold 48/2 = <<48/2=24>>24 clips" says what is computed, so an altered copy is wrong for a
known reason. Three errors are made, each a branch that ends at its first error: a wrong result of a right
calculation, a wrong number in a calculation that is then carried out rightly, and a wrong operation likewise.
Nothing is executed: calculations are read by a parser for + - * / and computed in exact fractions.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from fractions import Fraction

from stepmark.problems.gsm8k import Worked
from stepmark.records import Judgement, LabelledSolution, Solution, Step

_FORMULA = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+")
_SIGN = re.compile(r"(?<=[\d)\s])[-+*/x×÷]")
_OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def compute(expression: str) -> Fraction | None:
    """The value of an expression of numbers, + - * / and brackets; None if it is anything else.

    Integers may be written with thousands commas. Division by zero gives None.
    """
    if len(expression) > 200:
        return None
    try:
        tree = ast.parse(expression.replace(",", "").strip(), mode="eval")
        return _value(tree.body, expression.replace(",", "").strip())
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr, source: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        # From the text and not from the float, which has rounded 0.1 already.
        return Fraction(ast.get_source_segment(source, node) or "")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, source)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left, source), _value(node.right, source)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        return left * right if isinstance(node.op, ast.Mult) else left / right
    raise ValueError("not a calculation")


def plain(line: str) -> str:
    """A worked line as people write it: without its `<<…>>`."""
    return re.sub(r"<<[^<>]*>>", "", line)


def exact_labels(worked: Worked, rng: random.Random) -> Iterator[LabelledSolution]:
    """The worked solution with every step right, and for each step one copy in which that step is wrong.

    Args:
        worked: the solution; a line whose marked calculation does not come out, or that has none, gets no
            wrong copy.
        rng: chooses the errors.

    Yields:
        For each step k, first the solution up to k with k judged right, then, where one can be made, with k
        altered and judged wrong. The last step is the answer, "The answer is …".
    """
    right = [plain(line) for line in worked.lines]
    answer = worked.problem.answer
    assert answer is not None
    for k, line in enumerate(worked.lines):
        yield _labelled(worked, right[:k], right[k], 1)
        wrong = wrong_copy(line, rng)
        if wrong is not None:
            yield _labelled(worked, right[:k], wrong, -1)
    yield _labelled(worked, right, f"The answer is {answer}.", 1)
    value = compute(answer)
    if value is not None:
        yield _labelled(worked, right, f"The answer is {_write(_other(value, rng))}.", -1)


def _labelled(worked: Worked, before: list[str], last: str, rating: int) -> LabelledSolution:
    assert rating in (-1, 1)
    return LabelledSolution(
        solution=Solution(
            problem=worked.problem, steps=tuple(Step(text=t) for t in (*before, last)), id=worked.problem.id
        ),
        judgements=(
            *((),) * len(before),
            (Judgement(kind="correctness", judge="exact", rating=1 if rating == 1 else -1),),
        ),
    )


def wrong_copy(line: str, rng: random.Random) -> str | None:
    """A worked line made wrong in one of its calculations; None if none of them can be altered surely.

    The altered result is never the right one, and it replaces every mention of the right one after the
    calculation in that line, as a solver's slip would.
    """
    found = [
        m for m in _FORMULA.finditer(line) if compute(m[1]) is not None and compute(m[1]) == compute(m[2])
    ]
    if not found:
        return None
    formula = rng.choice(found)
    expression, result = formula[1], formula[2]
    value = compute(expression)
    assert value is not None
    before, after = plain(line[: formula.start()]), plain(line[formula.end() :])
    shown = _shown(expression, before)
    kind = rng.choice(("result", "result", "number", "operation"))
    if kind != "result" and shown is not None:
        start, end = shown
        altered = _alter(before[start:end], kind, rng)
        new = compute(_as_written(altered)) if altered is not None else None
        if altered is not None and new is not None and new != value and _writable(new):
            return before[:start] + altered + before[end:] + _replace(after, result, _write(new, like=result))
    wrong = _write(_other(value, rng), like=result)
    return before + _replace(after, result, wrong) if result in after else None


def _shown(expression: str, before: str) -> tuple[int, int] | None:
    """Where the calculation stands in the text before it: signs for money and spaces may come between."""
    tokens = re.findall(r"\d[\d,]*(?:\.\d+)?|\.\d+|[-+*/()]", expression)
    pattern = r"[\s$]*".join("[*x×]" if t == "*" else "[/÷]" if t == "/" else re.escape(t) for t in tokens)
    places = list(re.finditer(pattern, before)) if tokens else []
    return places[-1].span() if places else None


def _alter(shown: str, kind: str, rng: random.Random) -> str | None:
    """A calculation as it stands in the text with one number or one sign changed, its spacing kept."""
    places = list((_NUMBER if kind == "number" else _SIGN).finditer(shown))
    if not places:
        return None
    place = rng.choice(places)
    if kind == "number":
        new = _write(_other(Fraction(place[0].replace(",", "")), rng))
    else:
        new = rng.choice([s for s in "+-*/" if s != _as_written(place[0])])
    return shown[: place.start()] + new + shown[place.end() :]


def _as_written(shown: str) -> str:
    """A calculation in the signs that `compute` reads."""
    return re.sub(r"[$\s]", "", shown).replace("x", "*").replace("×", "*").replace("÷", "/")


def _other(value: Fraction, rng: random.Random) -> Fraction:
    """A different number of the kind that slips make: off by a little, a digit changed, a factor of ten."""
    whole = int(value)
    options = [value + d for d in (-10, -2, -1, 1, 2, 10)] + [value * 10, value * 2]
    digits = str(abs(whole))
    if len(digits) > 1:
        at = rng.randrange(len(digits))
        digit = rng.choice([d for d in "0123456789" if d != digits[at] and not (at == 0 and d == "0")])
        options += [Fraction(digits[:at] + digit + digits[at + 1 :]) + abs(value) - abs(whole)] * 4
        swapped = Fraction(digits[:-2] + digits[-1] + digits[-2])
        options.append(swapped + abs(value) - abs(whole))
    return rng.choice([o for o in options if o != value and o >= 0 and _writable(o)] or [value + 1])


def _writable(value: Fraction) -> bool:
    return value >= 0 and 10**4 % value.denominator == 0 and value < 10**9


def _write(value: Fraction, *, like: str = "") -> str:
    """A number in digits, with at least as many decimals as `like` has."""
    text = str(value.numerator) if value.denominator == 1 else f"{float(value):.4f}".rstrip("0")
    decimals = len(like.partition(".")[2])
    have = len(text.partition(".")[2])
    if decimals > have:
        text += ("" if have else ".") + "0" * (decimals - have)
    return text


def _replace(text: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![\d.]){re.escape(old)}(?![\d]|\.\d)", new, text)
