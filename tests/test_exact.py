"""Exact labels: the calculator against fractions, and errors that are errors and do not show in how they are written."""

import collections
import itertools
import os
import random
import re
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stepmark.labels.exact import compute, exact_labels, plain, wrong_copy
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
    before = time.monotonic()
    assert compute(text) is None
    assert time.monotonic() - before < 1


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
    for (old, old_result), (new, new_result) in changed:
        assert evaluate(new) != number(new_result) or evaluate(old) != evaluate(new)
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
