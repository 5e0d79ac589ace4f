"""Formulas: hand-read calculations, an independent computation, no verdict where none is sure, time on hostile text."""

import asyncio
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.labels.formulas import Formulas
from stepmark.records import Solution
from stepmark.verifiers.checks.equations import calculations


def truths(text):
    return [formula.truth for formula in calculations(text)]


RIGHT = [
    "12 * 8 = 96", "48/2 = <<48/2=24>>24 clips", r"So $3 \times 4 = 12$.", r"\[ \frac{3}{4} \cdot 12 = 9 \]",
    "She pays $3.50 * 4 = $14.00.", "1,200 + 34 = 1,234", r"1{,}200 + 34 = 1{,}234", "20% of 50 = 10", "15/60 = 25%", "15/60 * 100 = 25%",
    "100% - 20% = 80%", "(2 + 3) * 4 = 20", "2(3) + 1 = 7", "(2)(3) = 6", "2 x 3 = 6", "2 × 3 = 6", "8 ÷ 2 = 4", "-5 + 3 = -2",
    "The change is: -5 + 3 = -2", "2^{10} = 1024", "5² = 25", r"\sqrt{16} + 1 = 5", r"180^\circ - 50^\circ = 130^\circ",
    "3 eggs * 2 dollars/egg = 6 dollars", r"30 \text{ dollars} - 25 \text{ dollars} = 5 \text{ dollars}",
    "4 (from the trip) + 2 (from the sale) = 6", r"5 + 3 = \boxed{8}", "**5 + 3 = 8**", "2/3 = 0.67", "2/3 = 0.66", "10 = 7 + 3",
    "1/3 of 18 = 6", r"\frac{120^\circ}{360^\circ} = \frac{1}{3}",
]  # fmt: skip
WRONG = [
    "12 * 8 = 98", "48/2 = 25 clips", r"So $3 \times 4 = 13$.", r"\[ \frac{3}{4} \cdot 12 = 10 \]", "She pays $3.50 * 4 = $12.00.",
    "1,200 + 34 = 1,324", "20% of 50 = 12", "15/60 = 30%", "(2 + 3) * 4 = 14", "2(3) + 1 = 8", "2 x 3 = 8", "2^{10} = 1000",
    r"\sqrt{16} + 1 = 6", r"180^\circ - 50^\circ = 120^\circ", "3 eggs * 2 dollars/egg = 7 dollars",
    "15 (light blue) + 45 (dark blue) + 40 (green) = 110", r"5 + 3 = \boxed{9}", "2/3 = 0.75", "10 = 7 + 4", "The answer is 5 + 3 = 9.",
    "5! + 1 = 122", "1 1/2 + 1 = 5", r"\frac12 + \frac13 = \frac25", r"\sqrt{18} = 3\sqrt{3}", r"2\pi + \pi = 4\pi",
]  # fmt: skip
UNKNOWN = [
    "x^2 + 3 = 5", "2x + 3 = 7", "y - 4 + 2 = 5", "a_1 + 3 = 9", "3ab + 1 = 5", r"\sin 30 + 60 = 1", r"\log_{2} 8 + 1 = 4",
    "10 choose 3 * 2 = 240", "the sum of 5 + 3 = 9", "box 1 + 2 = 30 pens", "5 + 3 = 2y", "3 + 4 = 8?",
    "3 + 4 = 8, which is false", "If 3 + 4 = 8 then", "This does not give 3 + 4 = 8", "7/2 = 3", "17 ÷ 5 = 3 remainder 2", "3.33 * 3 = 10",
    "33.33 * 30 = 1000", "12.5 / 3.1 = 4.05", "3 + 4 ≈ 8", "5 + 3 = 8 * 2", "6 / 1/2 = 12", "1/2(6) = 3", "-2^2 = 4",
    "50 + 20% = 60", "24 / 2 = 1 dozen", "30 + 45 = 1 hour 15 minutes", "60 + 60 = 2 hours", "2 weeks + 3 days = 5 days",
    "7 + 8 = 3 (mod 12)", r"7 + 8 = 3 \pmod{12}", "In base 8, 7 + 1 = 10", "3,5 + 2 = 5,5", "10:30 + 2 = 12:30", "1 + 2 + ... + 10 = 55",
    "- 5 + 3 = 8", "3 - = 4", "0 / 0 = 5",
]  # fmt: skip
NOTHING = [
    "", "no numbers", "x = 5", "5 = 5", "3 != 4", "3 + 4 == 8", "3 + 4 <= 8", "3 + 4 => 8", "3 + 4 > 5", "In 8 years = 34",
    "1/2 inch = 20 miles", r"|3 - 5| = 3", r"\binom{5}{2} \neq 3",
]  # fmt: skip


@pytest.mark.parametrize("text", RIGHT)
def test_right(text):
    assert set(truths(text)) == {"right"}


@pytest.mark.parametrize("text", WRONG)
def test_wrong(text):
    assert "wrong" in truths(text)


@pytest.mark.parametrize("text", UNKNOWN)
def test_no_verdict_where_none_is_sure(text):
    assert not {"wrong", "right"} & set(truths(text))


@pytest.mark.parametrize("text", NOTHING)
def test_no_calculation(text):
    assert truths(text) == []


def test_where_it_stands_and_why():
    text = "First 2 + 2 = 4, then 12 * 8 = 98 eggs and <<3*3=10>>10."
    first, second, third = calculations(text)
    assert [text[f.start : f.end] for f in (first, second, third)] == [f.text for f in (first, second, third)]
    assert (second.text, second.truth, second.why) == ("12 * 8 = 98", "wrong", "it is 96")
    assert (third.text, third.why) == ("<<3*3=10>>", "it is 9")
    assert first.why == "exact" and calculations("2/3 = 0.67")[0].why == "rounded to 2 decimals"


# --- against an independent computation ---------------------------------------------------------------------------------


@st.composite
def sums(draw):
    """A calculation of whole numbers without brackets, computed by grouping products first."""
    numbers = draw(st.lists(st.integers(1, 999), min_size=2, max_size=5))
    signs = draw(st.lists(st.sampled_from("+-*"), min_size=len(numbers) - 1, max_size=len(numbers) - 1))
    total, product, sign = 0, numbers[0], 1
    for following, number in zip(signs, numbers[1:], strict=True):
        if following == "*":
            product *= number
        else:
            total, product, sign = total + sign * product, number, 1 if following == "+" else -1
    times = draw(st.sampled_from(["*", "×", "x", r"\times", r"\cdot"]))
    shown = str(numbers[0])
    for following, number in zip(signs, numbers[1:], strict=True):
        shown += f" {times if following == '*' else following} {number}"
    return shown, total + sign * product


@given(
    sums(),
    st.integers(-50, 50),
    st.sampled_from(["{}", "${}$", r"\({}\)", "So {}.", "She has {} pens", "Total: {}"]),
)
@settings(max_examples=300, deadline=None)
def test_whole_numbers_against_their_sum(calculation, off, around):
    shown, value = calculation
    text = around.format(f"{shown} = {value + off}")
    (formula,) = calculations(text)
    expected = "right" if off == 0 else "wrong"
    # A result that is the first number of the next calculation does not arise: the right side is a number.
    assert formula.truth == expected, formula


@given(st.integers(1, 500), st.integers(1, 97), st.integers(1, 4), st.integers(-300, 300))
@settings(max_examples=400, deadline=None)
def test_the_rounding_rule(a, b, places, off):
    scale = 10**places
    exact = Fraction(a, b)
    cut = math.floor(exact * scale) + off
    if cut < 0:
        return
    shown = f"{cut // scale}.{cut % scale:0{places}d}"
    (formula,) = calculations(f"{a} / {b} = {shown}")
    stated = Fraction(cut, scale)
    near = (
        stated == exact
        or abs(stated - exact) <= Fraction(1, 2 * scale)
        or 0 <= exact - stated < Fraction(1, scale)
    )
    if near:
        assert formula.truth == "right"
    else:
        assert formula.truth != "right"
        if abs(stated - exact) > max(2, exact / 50):
            assert formula.truth == "wrong"


# --- the labeller -----------------------------------------------------------------------------------------------------


def labelled(steps, **options):
    return asyncio.run(Formulas(**options).label(Solution.of("p", steps)))


STEPS = ["2 + 2 = 4 pens.", "So it is.", "Then 4 * 3 = 13, so 13 + 1 = 15.", "13 - 1 = 12"]


def test_only_false_calculations_are_judged():
    found = labelled(STEPS)
    assert [[j.rating for j in step] for step in found.labelled.judgements] == [[], [], [-1], []]
    (judgement,) = found.labelled.judgements[2]
    assert (judgement.kind, judgement.judge, judgement.confidence) == ("correctness", "formulas", None)
    assert judgement.note == "4 * 3 = 13: it is 12; 13 + 1 = 15: it is 14"
    assert found.first_error is None and not found.abstained  # of the steps before nothing is known
    assert (found.cost.rollouts, found.cost.tokens) == (0, 0)
    nothing = labelled(["Hello.", "2 + 2 = 4"])
    assert nothing.abstained and nothing.first_error is None
    assert labelled(["2 + 2 = 5", "So."]).first_error == 0


# --- people's labels --------------------------------------------------------------------------------------------------
