"""Exact labels: the calculator against fractions, and errors that are errors and do not show in how they are written."""

import collections
import itertools
import os
import random
import re
import time
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stepmark.errors import UsageError
from stepmark.labels.exact import KINDS, compute, exact_labels, plain, with_errors, wrong_copy
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.problems.arithmetic_solver import true_labels
from stepmark.problems.gsm8k import Worked, read_gsm8k
from stepmark.records import Problem

SEEDS = range(200)


def copies(line, **style):
    """Every wrong copy that some seed gives."""
    return {wrong_copy(line, random.Random(seed), **style) for seed in SEEDS}


# --- the calculator ---------------------------------------------------------------------------------------------------


def _with_commas(n):
    return f"{n:,}"


@st.composite
def numbers(draw):
    whole = draw(st.integers(0, 10**7))
    text = draw(st.sampled_from([str, _with_commas]))(whole)
    decimals = draw(st.sampled_from(["", "", "0", "5", "25", "333", "1000"]))
    if decimals:
        value = whole + Fraction(int(decimals), 10 ** len(decimals))
        text = f".{decimals}" if whole == 0 and draw(st.booleans()) else f"{text}.{decimals}"
        return text, value
    return text, Fraction(whole)


SPACES = st.sampled_from(["", " ", "  "])
LOOSE, TIGHT, ATOM = 0, 1, 2  # how strongly the outermost operation of a text binds


@st.composite
def _negated(draw, inner):
    text, value, binds = draw(inner)
    return (f"-{text}" if binds == ATOM else f"-({text})"), None if value is None else -value, ATOM


@st.composite
def _joined(draw, inner):
    (left, a, left_binds), (right, b, right_binds) = draw(inner), draw(inner)
    sign = draw(st.sampled_from("+-*/"))
    level = LOOSE if sign in "+-" else TIGHT
    # Brackets only where they must be, and now and then where they need not.
    if left_binds < level or draw(st.integers(0, 9)) == 0:
        left = f"({left})"
    if right_binds <= level or draw(st.integers(0, 9)) == 0:
        right = f"({right})"
    text = f"{left}{draw(SPACES)}{sign}{draw(SPACES)}{right}"
    if a is None or b is None or (sign == "/" and b == 0):
        return text, None, level
    return text, {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[sign], level


calculations = st.recursive(
    numbers().map(lambda pair: (*pair, ATOM)), lambda inner: _negated(inner) | _joined(inner), max_leaves=12
)


@given(calculations)
@settings(max_examples=300, deadline=None)
def test_compute_agrees_with_fractions(calculation):
    text, value, _ = calculation
    assume(len(text) <= 200)
    assert compute(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("48/2", 24),
        (" 0.1 + 0.2 ", Fraction(3, 10)),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("7-2-1", 4),
        ("16/4/2", 2),
        ("10/3", Fraction(10, 3)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("5.", 5),
        ("-3*-2", 6),
        ("0", 0),
        ("9" * 200, 10**200 - 1),
    ],
)
def test_compute_by_hand(text, value):
    assert compute(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "x",
            "2x",
            "pi",
            "2*y",
            "True",
            "None",
            "1 if 1 else 2",
            "[1]",
            "(1, 2)",
            "'5'",
            "f'{5}'",
            "5j",
        ),
        *(
            "abs(3)",
            "2(3)",
            "(2)(3)",
            "().__class__",
            "__import__('os')",
            "lambda: 1",
            "(a := 5)",
            "1;2",
            "1\n2",
        ),
        *(
            "2**3",
            "2^3",
            "7//2",
            "7%2",
            "50%",
            "~1",
            "+5",
            "1<2",
            "1=1",
            "5!",
            "2 3",
            "2 .5",
            "1..2",
            "1.2.3",
            "*2",
            "(2",
        ),
        *("1e5", "1e999999999", "1E3", "1_000", "0x10", "0b1", "007", "inf", "nan", "٣+٣", "²", "1\x002"),
        *("1,2", "12,34", "1234,567", "1,2345", "12,345,67", ",5", "5,", "1,000,", "0.123,456", "1, 200"),
        *("1/0", "1/(2-2)", "0/0", "5+1/0*0", "1or 2", "0or 1", "3in", "9if 1else 2"),
        *("9" * 201, "+".join(["1"] * 101), "(" * 150 + "1", "-" * 200),
    ],
)
def test_compute_refuses(text):
    before = time.thread_time()  # of this thread alone: a busy machine must not look slow
    assert compute(text) is None
    assert time.thread_time() - before < 1


def test_nothing_is_executed(tmp_path):
    target = tmp_path / "made"
    for text in (f"__import__('pathlib').Path({str(target)!r}).touch()", f"open({str(target)!r}, 'w')"):
        assert compute(text) is None
        line = f"It is <<{text}=1>>1 now"
        assert wrong_copy(line, random.Random(0)) is None
    assert not target.exists()


# --- wrong copies -----------------------------------------------------------------------------------------------------

FIGURE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
SHOWN = re.compile(rf"(\$?(?:{FIGURE})(?:\s*[-+*/x×÷]\s*\$?(?:{FIGURE}))+)\s*=\s*\$?({FIGURE})")


def number(text):
    return Fraction(text.replace(",", ""))


def evaluate(shown):
    """A calculation without brackets, products first; independent of the code under test."""
    tokens = re.findall(rf"{FIGURE}|[-+*/x×÷]", shown)
    terms, sign = [], 1
    value = number(tokens[0])
    for mark, text in zip(tokens[1::2], tokens[2::2], strict=True):
        operand = number(text)
        if mark in "*x×":
            value *= operand
        elif mark in "/÷":
            value /= operand
        else:
            terms.append(sign * value)
            sign, value = (1 if mark == "+" else -1), operand
    return sum(terms) + sign * value


def skeleton(line):
    """A line without what an error may change: its figures and its signs."""
    return re.sub(r"(?<=[#)\s])[-+*/x×÷](?=[\s$#])", "o", re.sub(FIGURE, "#", line))


@st.composite
def formulas(draw):
    """A calculation as people show it, as the marking writes it, its result both ways, and "$" or nothing."""
    money = draw(st.booleans())
    places = draw(st.sampled_from([0, 0, 0, 1, 2]))
    operands = draw(st.lists(st.integers(1, 4000), min_size=2, max_size=3))
    signs = draw(st.lists(st.sampled_from("+-*/"), min_size=len(operands) - 1, max_size=len(operands) - 1))
    times, over = draw(st.sampled_from(["*", "x", "×"])), draw(st.sampled_from(["/", "/", "÷"]))
    space, commas = draw(SPACES), draw(st.booleans())
    scales = [places, 0, 0][: len(operands)]
    digits = [f"{n / 10**scale:.{scale}f}" for n, scale in zip(operands, scales, strict=True)]

    def write(figures, marks):
        return figures[0] + "".join(mark + figure for mark, figure in zip(marks, figures[1:], strict=True))

    value = evaluate(write(digits, signs))
    if not (0 < value < 10**9 and 100 % value.denominator == 0):
        signs = ["+"] * len(signs)
        value = evaluate(write(digits, signs))
    marked = write(digits, signs)
    seen = [
        f"{n:,}" if commas and not scale else d for n, scale, d in zip(operands, scales, digits, strict=True)
    ]
    seen[0] = ("$" if money else "") + seen[0]
    shown = write(seen, [f"{space}{ {'*': times, '/': over}.get(sign, sign) }{space}" for sign in signs])
    result = str(value) if value.denominator == 1 else f"{float(value):.2f}".rstrip("0")
    written = result
    if value.denominator == 1 and commas:
        written = f"{int(value):,}"
    elif value.denominator != 1 and money:
        written = f"{float(value):.2f}"
    return shown, marked, result, ("$" if money else ""), written


@st.composite
def worked_lines(draw):
    parts = []
    for shown, marked, result, dollar, written in draw(st.lists(formulas(), min_size=1, max_size=3)):
        opening = draw(st.sampled_from(["He pays ", "In 7 days she needs ", "", "There are 35 boxes, so "]))
        equals = draw(st.sampled_from([" = ", "=", " =", "= "]))
        ending = draw(
            st.sampled_from(["", " pens", f" pens, so {dollar}{written} in all", " a day for 7 days", "."])
        )
        parts.append(f"{opening}{shown}{equals}{dollar}<<{marked}={result}>>{written}{ending}")
    return " and ".join(parts)


@given(worked_lines(), st.integers(0, 10**6))
@settings(max_examples=250, deadline=None)
def test_a_wrong_copy_is_wrong_and_looks_like_its_line(line, seed):
    right = plain(line)
    wrong = wrong_copy(line, random.Random(seed))
    assert wrong == wrong_copy(line, random.Random(seed))
    if wrong is None:  # only where the result is 1 and the noun after it forbids another
        assert re.search(r"=1>>1 [a-z]", line)
        return
    assert wrong != right
    assert "<<" not in wrong and ">>" not in wrong
    assert skeleton(wrong) == skeleton(right)
    was, now = SHOWN.findall(right), SHOWN.findall(wrong)
    assert len(was) == len(now) >= 1
    changed = [(a, b) for a, b in zip(was, now, strict=True) if a != b]
    assert changed
    # The first calculation that is not as before: false, or another one carried out rightly.
    (old, _), (new, result) = changed[0]
    assert evaluate(new) != number(result) or evaluate(new) != evaluate(old)
    for (_, old_result), (_, new_result) in changed:
        # A later one only follows: 1 + 2 - 2 with 12 for 2 is as right as it was.
        old_number, new_number = number(old_result), number(new_result)
        # Nothing in how the number is written tells: whole stays whole, decimals end as they did, commas stay.
        assert old_number.denominator != 1 or "." in old_result or "." not in new_result
        assert not re.search(r"\.\d*0$", new_result) or re.search(r"\.\d\d$", old_result)
        if old_number >= 1000 and new_number >= 1000:
            assert ("," in old_result) == ("," in new_result)
        assert new_number != 0


@given(st.text(alphabet="ab 12.,$=+-*/x()<>", max_size=60), st.integers(0, 99))
@settings(max_examples=300, deadline=None)
def test_any_line_gives_a_different_line_or_none(line, seed):
    wrong = wrong_copy(line, random.Random(seed))
    assert wrong is None or wrong != plain(line)


def test_the_three_errors_by_hand():
    found = copies("Natalia sold 48/2 = <<48/2=24>>24 clips in May")
    parts = [re.fullmatch(r"Natalia sold (\d+)([-+*/])(\d+) = (\d+) clips in May", line) for line in found]
    assert all(parts)
    kinds = collections.Counter()
    for part in parts:
        a, sign, b, result = int(part[1]), part[2], int(part[3]), Fraction(part[4])
        value = {"+": a + b, "-": a - b, "*": a * b, "/": Fraction(a, b)}[sign]
        if (a, sign, b) == (48, "/", 2):
            assert result != 24
            kinds["result"] += 1
        else:
            assert result == value != 24
            kinds["operation" if (a, b) == (48, 2) else "number"] += 1
            assert sign == "/" or (a, b) == (48, 2)
    assert {"result", "number", "operation"} <= kinds.keys()
    assert "Natalia sold 48-2 = 46 clips in May" in found
    assert "Natalia sold 48/2 = 25 clips in May" in found


def test_the_slip_is_carried_through_the_rest_of_the_line():
    for line in copies("She has 2*3 = <<2*3=6>>6 pens, so 6 in all; not 16, 6.5, 1,006 or 60"):
        shown = re.fullmatch(r"She has (.+) = (\d+) pens, so (\d+) in all; not 16, 6.5, 1,006 or 60", line)
        assert shown
        assert shown[2] == shown[3] != "6"


@pytest.mark.parametrize(
    "line",
    [
        "She adds 3+2 = <<3+2=5>>five apples to the 15",  # the 5 of 15 is no mention
        "She adds 3+2 = <<3+2=5>>2.5 times 2",
        "She reads 3+2 <<3+2=5>>",
        "She reads 3+2 <<3+2=5>> a day, 5 in all",
        "no calculation at all",
        "10/3 = <<10/3=3.33>>3.33",  # rounded: what is wrong is not sure
        "2+2 = <<2+2=5>>5",  # wrong already
        "2+2 = <<2+2=5>>4",
        "Let x = <<100=100>>100",
        "Suppose the price is = $<<100=100>>100",
        "There are <<5=5>>5 days",  # a given and not a result
        "2^3 = <<2^3=8>>8",
        "He has S + <<+30+46=76>>76",
    ],
)
def test_no_copy_where_none_is_sure(line):
    assert copies(line) == {None}


def test_another_way_to_the_same_number_is_no_error():
    assert all(
        evaluate(copy.partition(" = ")[0]) != 4 or not copy.endswith("= 4")
        for copy in copies("2 x 2 = <<2*2=4>>4")
    )
    assert not any(copy.startswith("2 + 2") for copy in copies("2 x 2 = <<2*2=4>>4"))


def test_an_error_stays_about_as_large_as_the_truth():
    for copy in copies("40 + 25 = <<40+25=65>>65"):
        assert 6.5 <= int(copy.partition(" = ")[2]) <= 650


def test_a_solved_unknown_gets_another_value():
    found = copies("Dividing by 2, x = $<<100=100>>100")
    assert None not in found
    assert all(re.fullmatch(r"Dividing by 2, x = \$\d+", line) for line in found)
    assert "Dividing by 2, x = $100" not in found


def test_only_the_calculation_itself_is_altered():
    # 2*3 also stands inside 12*35; 5+1 inside 5+1.5 and 1,005+1.
    for line in copies("Of the 12*35 pens, 2*3 = <<2*3=6>>6, leaving 12*35"):
        assert line.startswith("Of the 12*35 pens, ") and line.endswith(", leaving 12*35")
    for line in copies("Of 5+1.5 and 1,005+1 she takes six: <<5+1=6>>6"):
        assert line.startswith("Of 5+1.5 and 1,005+1 she takes six: ")


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("12 x 400 = $<<12*400=4800>>4,800", r"\$(\d{1,3}|\d{1,2},\d{3}|\d{3},\d{3})"),
        ("12 x 400 = $<<12*400=4800>>4800", r"\$\d+"),
        ("2 x 1.25 = $<<2*1.25=2.5>>2.50", r"\$\d+\.\d\d"),
        ("2 x 1.25 = $<<2*1.25=2.50>>2.50", r"\$\d+\.\d\d"),
        ("3 x 1.25 = $<<3*1.25=3.75>>3.75", r"\$\d+(\.\d\d)?"),
        ("3 x 1.25 = <<3*1.25=3.75>>3.75 kg", r"(\d+(\.\d?[1-9])?) kg"),
        ("7/2 = $<<7/2=3.5>>3.5", r"\$\d+(\.\d[1-9]?)?"),
        ("2 x 1.25 = <<2*1.25=2.5>>2.5 kg", r"(\d+(\.\d[1-9]?)?) kg"),
        ("3 x .25 = <<3*.25=.75>>.75 kg", r"([1-9]\d*)?(\.\d\d?)? kg"),
        ("7/2 = <<7/2=3.5>>3.5 hours", r"\d+(\.\d[1-9]?)? hours"),
        ("1000/8 = <<1000/8=125>>125 a 1,000", r"(\d{1,3}|\d,\d{3}) a 1,000"),
        ("1000/8 = <<1000/8=125>>125 a 1000", r"(\d{1,3}|\d{4}) a 1000"),
    ],
)
def test_a_wrong_result_is_written_like_the_right_one(line, result):
    for copy in copies(line):
        assert re.fullmatch(result, copy.partition(" = ")[2]), copy


def test_an_altered_number_is_written_like_the_right_one():
    altered = set()
    for copy in copies("18.00 x 2,000 = <<18.00*2000=36000>>36,000") | copies(
        "$18.00 x 20 = <<18.00*20=360>>360"
    ):
        shown = re.match(r"\$?(\d+\.\d\d) [-+*/x] ([\d,]+) = ([\d,]+)", copy)
        assert shown, copy
        altered.add(shown[1])
    assert len(altered) > 3


def test_the_noun_after_one_gives_nothing_away():
    for copy in copies("They are 8 - 7 = <<8-7=1>>1 mile apart"):
        shown = re.fullmatch(r"They are (.+) = 1 mile apart", copy)
        assert evaluate(shown[1]) != 1
    for copy in copies("They are 8 - 5 = <<8-5=3>>3 miles apart"):
        assert " = 1 " not in copy
    assert copies("They are <<8-7=1>>1 mile apart") == {None}


def test_times_is_written_as_the_solution_writes_it():
    line = "She has 30 + 2 = <<30+2=32>>32 pens"
    for style, sign in (("5 x 3 = 15", "x"), ("$5 × 3 = $15", "×"), ("5*3 = 15", "*"), ("boxes", "*")):
        found = copies(line, style=style)
        assert f"She has 30 {sign} 2 = 60 pens" in found
        assert not any(
            other in copy for copy in found for other in {"30 x 2", "30 × 2", "30 * 2"} - {f"30 {sign} 2"}
        )


def test_a_negative_result_keeps_its_sign():
    found = copies("20-30 = <<20-30=-10>>-10 degrees")
    assert all(re.fullmatch(r"\d+[-+*/]\d+ = -\d+ degrees", copy) for copy in found)
    assert "20-30 = -10 degrees" not in found


def test_plain_keeps_all_that_people_write():
    assert plain("48/2 = $<<48/2=24>>24, as 24 < 48 and <<2>1=1>>1 > 0") == "48/2 = $24, as 24 < 48 and 1 > 0"


# --- labels -----------------------------------------------------------------------------------------------------------


def worked(*lines, answer="10"):
    return Worked(problem=Problem(text="How many?", answer=answer, id="f:1", source="GSM8K"), lines=lines)


def test_labels_by_hand():
    lines = ("She has 2*3 = <<2*3=6>>6 pens.", "Let us go on.", "With 4 more: 6+4 = <<6+4=10>>10.")
    rows = list(exact_labels(worked(*lines), random.Random(0)))
    texts = [row.solution.texts for row in rows]
    first, second, third = "She has 2*3 = 6 pens.", "Let us go on.", "With 4 more: 6+4 = 10."
    assert [len(t) for t in texts] == [1, 1, 2, 3, 3, 4, 4]
    assert texts[0] == (first,)
    assert texts[1][0] != first
    assert texts[2] == (first, second)
    assert texts[3] == (first, second, third)
    assert texts[4][:2] == (first, second) and texts[4][2] != third
    assert texts[5] == (first, second, third, "The answer is 10.")
    assert texts[6][:3] == (first, second, third)
    assert re.fullmatch(r"The answer is (?!10\.)\d+\.", texts[6][3])
    assert [row.judgements[-1][0].rating for row in rows] == [1, -1, 1, 1, -1, 1, -1]
    for row in rows:
        assert row.judgements[:-1] == ((),) * (len(row.solution.steps) - 1)
        (judgement,) = row.judgements[-1]
        assert (judgement.kind, judgement.judge, judgement.successes, judgement.trials) == (
            "correctness",
            "exact",
            None,
            None,
        )
        assert row.solution.problem == worked(*lines).problem
        assert row.solution.id == "f:1"


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("1,200", r"\d{3}|\d{1,2},\d{3}"),
        ("1200", r"\d{3,5}"),
        ("2.50", r"\d+\.\d\d"),
        ("-5", r"-\d+"),
        ("0", r"[1-9]\d*"),
    ],
)
def test_a_wrong_answer_is_written_like_the_right_one(answer, wrong):
    for seed in SEEDS:
        last = list(exact_labels(worked("So.", answer=answer), random.Random(seed)))[-1]
        found = re.fullmatch(rf"The answer is ({wrong})\.", last.solution.texts[-1])
        assert found, last.solution.texts
        assert last.judgements[-1][0].rating == -1
        assert number(found[1]) != number(answer)


@pytest.mark.parametrize("answer", ["six", "3/4", "5 pm", "1e3"])
def test_an_answer_that_is_no_number_gets_no_wrong_copy(answer):
    rows = list(exact_labels(worked("So.", answer=answer), random.Random(0)))
    assert [row.solution.texts[-1] for row in rows] == ["So.", f"The answer is {answer}."]
    assert [row.judgements[-1][0].rating for row in rows] == [1, 1]


@given(
    st.lists(worked_lines() | st.just("We are nearly there."), min_size=1, max_size=5), st.integers(0, 10**6)
)
@settings(max_examples=60, deadline=None)
def test_every_prefix_is_right(lines, seed):
    right = tuple(plain(line) for line in lines)
    rows = list(exact_labels(worked(*lines), random.Random(seed)))
    assert rows == list(exact_labels(worked(*lines), random.Random(seed)))
    whole = (*right, "The answer is 10.")
    expected = 1
    for row in rows:
        texts, rating = row.solution.texts, row.judgements[-1][0].rating
        assert texts[:-1] == whole[: len(texts) - 1]
        assert (rating == 1) == (texts[-1] == whole[len(texts) - 1])
        assert all(judged == () for judged in row.judgements[:-1])
        if rating == 1:
            assert len(texts) == expected
            expected += 1
        else:
            assert len(texts) == expected - 1
            assert len(texts) == len(whole) or "<<" in lines[len(texts) - 1]
    assert expected == len(whole) + 1


# --- errors carried to the end ----------------------------------------------------------------------------------------

MARKED = worked(
    "She packs 6*7 = <<6*7=42>>42 pens in the week.",
    "She sells 9 of them, so 42 - 9 = <<42-9=33>>33 pens are left.",
    "These weigh 33*4 = <<33*4=132>>132 grams.",
    answer="132",
)


def note_kind(row):
    """The kind of error that a solution has; None for a right one."""
    (note,) = [j[0].note for j in row.judgements if j and j[0].rating == -1] or [None]
    return None if note is None else note.partition(":")[0]


def every(item, kind, seeds=SEEDS):
    """The wrong solutions of one kind that some seed gives, as texts, with the place of the error."""
    found = set()
    for seed in seeds:
        for row in with_errors(item, random.Random(seed), kinds=(kind,)):
            if note_kind(row) is not None:
                ratings = [judged[0].rating if judged else None for judged in row.judgements]
                place = ratings.index(-1)
                assert ratings == [1] * place + [-1] + [None] * (len(ratings) - place - 1)
                found.add((place, row.solution.texts))
    return found


def test_the_right_solution_comes_first():
    first = next(with_errors(MARKED, random.Random(0)))
    assert first.solution.texts == (*(plain(line) for line in MARKED.lines), "The answer is 132.")
    assert [[j.rating for j in judged] for judged in first.judgements] == [[1]] * 4


def test_every_kind_is_made_and_named():
    kinds = [note_kind(row) for row in with_errors(MARKED, random.Random(1))]
    assert kinds == [
        None,
        "value",
        "operand",
        "operation",
        "unit",
        "dropped",
        "repeated",
        None,
        "jump",
        "early stop",
    ]


LINES = re.compile(
    r"She packs (\d+)([-+*/])(\d+) = (\d+) pens in the week\.\n"
    r"She sells 9 of them, so (\d+) ([-+*/]) (\d+) = (\d+) pens are left\.\n"
    r"These weigh (\d+)([-+*/])(\d+) = (\d+) grams\.\n"
    r"The answer is (\d+)\."
)


@pytest.mark.parametrize("kind", ["value", "operand", "operation"])
def test_a_slip_is_carried_to_the_answer(kind):
    found = every(MARKED, kind)
    assert {place for place, _ in found} == {0, 1, 2}
    for place, texts in found:
        got = LINES.fullmatch("\n".join(texts)).groups()
        steps = [got[0:4], got[4:8], got[8:12]]
        for i, (a, sign, b, result) in enumerate(steps):
            value = evaluate(f"{a}{sign}{b}")
            changed = (a, sign, b) != [("6", "*", "7"), ("42", "-", "9"), ("33", "*", "4")][i]
            if i < place:
                assert not changed and value == number(result)
            elif i == place:
                assert (value != number(result)) == (kind == "value")
                assert changed == (kind != "value")
                assert {"operand": sign == "*-*"[i], "operation": sign != "*-*"[i]}.get(kind, True)
            else:  # right, and from the number before
                assert value == number(result) and a == steps[i - 1][3]
        assert got[12] == steps[2][3] != "132"


def test_a_step_that_is_left_out():
    right = tuple(plain(line) for line in MARKED.lines)
    assert every(MARKED, "dropped") == {
        (0, ("She sells 9 of them, so 6 - 9 = -3 pens are left.",)) for _ in ()
    } | {(1, (right[0], "These weigh 42*4 = 168 grams.", "The answer is 168."))}


def test_a_step_that_is_done_twice():
    right = tuple(plain(line) for line in MARKED.lines)
    assert every(MARKED, "repeated") == {
        (
            1,
            (
                right[0],
                "She packs 42*7 = 294 pens in the week.",
                "She sells 9 of them, so 294 - 9 = 285 pens are left.",
                "These weigh 285*4 = 1140 grams.",
                "The answer is 1140.",
            ),
        ),
        (
            2,
            (
                *right[:2],
                "She sells 9 of them, so 33 - 9 = 24 pens are left.",
                "These weigh 24*4 = 96 grams.",
                "The answer is 96.",
            ),
        ),
        (3, (*right, "These weigh 132*4 = 528 grams.", "The answer is 528.")),
    }


def test_a_wrong_unit_and_an_early_stop():
    right = tuple(plain(line) for line in MARKED.lines)
    assert every(MARKED, "unit") == {
        (2, (*right[:2], "These weigh 33*4 = 132 kilograms.", "The answer is 132."))
    }
    assert every(MARKED, "early stop") == {
        (1, (right[0], "The answer is 42.")),
        (2, (*right[:2], "The answer is 33.")),
    }


def test_a_jump_has_a_right_twin():
    for seed in SEEDS:
        _, twin, wrong = with_errors(MARKED, random.Random(seed), kinds=("jump",))
        (place,) = [i for i, j in enumerate(wrong.judgements) if j and j[0].rating == -1]
        assert all(judged[0].rating == 1 for judged in twin.judgements)
        assert skeleton(twin.solution.texts[place]) == skeleton(wrong.solution.texts[place])
        said = [
            "She packs 42 pens in the week.",
            "She sells 9 of them, so 33 pens are left.",
            "These weigh 132 grams.",
        ][place]
        assert twin.solution.texts[place] == said != wrong.solution.texts[place]


@pytest.mark.parametrize(
    "lines",
    [
        # 6 is also what the problem gives; 12 is a dozen; seven is written in words; 20% is no 20.
        ("He has 2*3 = <<2*3=6>>6 pens.", "Of the 6 boxes, 6*5 = <<6*5=30>>30 are left."),
        ("He has 3*4 = <<3*4=12>>12 pens.", "That is 12*5 = <<12*5=60>>60 in all."),
        ("He has 9+8 = <<9+8=17>>17 pens.", "The seventeen pens cost 17*5 = <<17*5=85>>85."),
        ("He has 4*5 = <<4*5=20>>20 pens.", "With 20% more, 20*1.2 = <<20*1.2=24>>24."),
        ("He has 50/7 = <<50/7=7.14>>7.14 pens.", "That is 7.14*5 = <<7.14*5=35.7>>35.7."),
    ],
)
def test_where_it_is_not_sure_what_depends_nothing_is_carried(lines):
    item = Worked(problem=Problem(text="There are 6 boxes. How many?", answer="99"), lines=lines)
    for kind in ("value", "operand", "operation", "dropped", "repeated"):
        assert not {place for place, _ in every(item, kind, range(40)) if place == 0}


def test_no_carrying_without_a_number_for_an_answer():
    item = worked("He has 4*5 = <<4*5=20>>20 pens.", answer="six")
    assert [note_kind(row) for row in with_errors(item, random.Random(0))] == [None]


def test_kinds_that_are_none():
    with pytest.raises(UsageError, match=r"expected kinds among value, .*found 'typo'"):
        list(with_errors(MARKED, random.Random(0), kinds=("value", "typo")))


WORLD = list(arithmetic_problems(80, seed=11))


@cache
def world_rows():
    return [list(with_errors(problem.worked, random.Random(i))) for i, problem in enumerate(WORLD)]


def calculates(row):
    """Whether every step shows its calculation: all but jumps and their twins."""
    return all(" = " in text or "answer" in text for text in row.solution.texts)


def test_equal_seeds_give_equal_errors():
    assert list(with_errors(WORLD[5].worked, random.Random(5))) == world_rows()[5]
    assert list(with_errors(WORLD[5].worked, random.Random(6))) != world_rows()[5]


def test_the_world_agrees_on_the_first_error():
    """Its labels are computed from the problem's operations, and know nothing of how the errors were made."""
    counts = collections.Counter()
    for problem, rows in zip(WORLD, world_rows(), strict=True):
        for row in filter(calculates, rows):
            kind = note_kind(row)
            ratings = [judged[0].rating if judged else None for judged in row.judgements]
            _, first = true_labels(problem, row.solution.texts)
            place = ratings.index(-1) if -1 in ratings else -1
            # The world blames the step before which one is missing, we the first that needs it.
            assert first == place or (kind == "dropped" and 0 <= first < place), (kind, row.solution.texts)
            counts[kind, first == place] += 1
    assert all(counts[kind, True] > 10 for kind in KINDS if kind != "jump"), counts
    assert counts["dropped", False] < 0.2 * counts["dropped", True]


def test_after_the_error_everything_is_computed_rightly():
    for rows in world_rows():
        for row in filter(calculates, rows):
            kind = note_kind(row)
            shown = [SHOWN.findall(text) for text in row.solution.texts]
            for (expression, result), judged in (
                (pair, j) for s, j in zip(shown, row.judgements, strict=True) for pair in s
            ):
                wrong = bool(judged) and judged[0].rating == -1
                assert (evaluate(expression) == number(result)) != (wrong and kind == "value")
            if kind != "early stop":
                last = [pairs[-1][1] for pairs in shown if pairs][-1]
                assert row.solution.texts[-1] == f"The answer is {last}."


def pairs_of_steps(many):
    """Each wrong step, and the right step that it stands for."""
    pairs = []
    for rows in many:
        right = rows[0].solution.texts
        for before, row in itertools.pairwise(rows):
            kind = note_kind(row)
            if kind is None:
                continue
            (place,) = [k for k, j in enumerate(row.judgements) if j and j[0].rating == -1]
            if kind == "jump":
                twin = before.solution.texts[place]
            elif kind == "early stop":
                twin = right[-1]
            else:
                twin = right[place + {"repeated": -1, "dropped": 1}.get(kind, 0)]
            pairs.append((twin, row.solution.texts[place]))
    return pairs


def looks(text):
    """How a step is written, without what it says."""
    return [
        len(text),
        len(text.split()),
        *(sum(test(c) for c in text) for test in (str.isdigit, str.isupper, str.isspace, str.isalpha)),
        *(text.count(c) for c in ".,$=:%()"),
        text.count("  "),
        len(re.findall(r"\d,\d", text)),
        len(re.findall(r"\d\.\d", text)),
        len(re.findall(r"\.\d0\b|\.\d\d\b", text)),
        len(re.findall(r" [-+*/x] ", text)),
        len(re.findall(r"\d[-+*/x]\d", text)),
        text.endswith("."),
        len(re.findall(r"\b\d\b", text)),
        len(re.findall(r"0\b", text)),
    ]


def separability(pairs):
    """How well looks tell wrong from right: the area under the ROC curve of a linear classifier, on held-out problems."""
    half = len(pairs) // 2
    x = np.array([looks(text) for pair in pairs for text in pair], dtype=float)
    y = np.tile([0.0, 1.0], len(pairs))
    x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    x = np.hstack([x, np.ones((len(x), 1))])
    areas = []
    for train, test in (
        (slice(0, 2 * half), slice(2 * half, None)),
        (slice(2 * half, None), slice(0, 2 * half)),
    ):
        a = x[train]
        w = np.linalg.solve(a.T @ a + 3 * np.eye(a.shape[1]), a.T @ (2 * y[train] - 1))
        score, label = x[test] @ w, y[test]
        bad, good = score[label == 1], score[label == 0]
        areas.append(((bad[:, None] > good).mean() + 0.5 * (bad[:, None] == good).mean()).item())
    return sum(areas) / 2


def test_looks_do_not_tell_wrong_from_right_in_the_world():
    pairs = pairs_of_steps(world_rows())
    assert len(pairs) > 450
    assert separability(pairs) < 0.58
    marked = [(a, b + " ") for a, b in pairs]
    assert separability(marked) > 0.6  # the test can fail: one space at the end is found


def test_looks_do_not_tell_wrong_from_right_in_gsm8k():
    folder = Path(os.environ.get("STEPMARK_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    file = folder / "gsm8k" / "train.jsonl.gz"
    if not file.is_file():
        pytest.skip("no development data: set STEPMARK_DATA to a folder with gsm8k/train.jsonl.gz")
    items = itertools.islice(read_gsm8k(file), 0, 7000, 40)
    pairs = pairs_of_steps(list(with_errors(item, random.Random(i))) for i, item in enumerate(items))
    assert len(pairs) > 600
    assert separability(pairs) < 0.55


# --- real rows --------------------------------------------------------------------------------------------------------


def test_real_rows_give_nothing_away():
    folder = Path(os.environ.get("STEPMARK_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    file = folder / "gsm8k" / "train.jsonl.gz"
    if not file.is_file():
        pytest.skip("no development data: set STEPMARK_DATA to a folder with gsm8k/train.jsonl.gz")
    pairs, calculated = [], 0
    for number_, item in enumerate(read_gsm8k(file)):
        if number_ % 12:
            continue
        rows = list(exact_labels(item, random.Random(number_)))
        calculated += sum("<<" in line for line in item.lines) + 1
        pairs += [
            (a.solution.texts[-1], b.solution.texts[-1])
            for a, b in itertools.pairwise(rows)
            if b.judgements[-1][0].rating == -1
        ]
    assert len(pairs) > 0.98 * calculated
    for right, wrong in pairs:
        assert right != wrong
        assert skeleton(right) == skeleton(wrong)
        shown = zip(SHOWN.findall(right), SHOWN.findall(wrong), strict=True)
        for (old, _), (new, result) in (pair for pair in shown if pair[0] != pair[1]):
            assert evaluate(new) != number(result) or evaluate(old) != evaluate(new)
    for what, pattern in {
        "thousands commas": r"\d,\d{3}",
        "thousands without": r"(?<![\d.,])\d{4,}",
        "dollars and cents": r"\$\d+\.\d\d(?!\d)",
        "dollars with decimals": r"\$\d+\.\d",
        "other decimals": r"(?<![\d.$])\d+\.\d",
        "a result with decimals": r"=\s*\$?\d*\.\d",
        "a one-digit result": r"=\s*\$?\d(?![\d.,])",
        "times": r"\*",
        "times as x": r"\dx\d|\d x \$?\d",
        "over": r"/",
    }.items():
        found = [
            sum(re.search(pattern, line) is not None for line in side) for side in zip(*pairs, strict=True)
        ]
        assert sum(found) >= 30, what
        assert 0.4 < found[1] / sum(found) < 0.6, (what, found)
    # Twins of one problem never differ only in a final zero, a lone zero or the number of a noun.
    assert not any(re.search(r"\.0(?!\d)", b) and not re.search(r"\.0(?!\d)", a) for a, b in pairs)
    assert not any(re.search(r"= 1 [a-z]", b) and not re.search(r"= 1 [a-z]", a) for a, b in pairs)
