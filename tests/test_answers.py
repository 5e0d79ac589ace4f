"""Finding answers and comparing them. The truth of every pair is worked by hand."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.verifiers.base import answer_groups, bare_answer, load_verifier
from stepmark.verifiers.choice import ChoiceVerifier
from stepmark.verifiers.finder import find_answer
from stepmark.verifiers.number import NumberVerifier
from stepmark.verifiers.quantities import clean, key, read_quantity, same_quantity
from stepmark.verifiers.text import TextVerifier


@pytest.mark.parametrize(
    ("text", "answer", "way"),
    [
        (r"So \boxed{\frac{1}{2}}.", r"\frac{1}{2}", "boxed"),
        (r"\boxed{1}, or rather \boxed{2}", "2", "boxed"),
        (r"a set: \boxed{\{1, 2\}}", r"\{1, 2\}", "boxed"),
        (r"\boxed{7} \boxed{}", "7", "boxed"),
        (r"$\boxed 12$", "12", "boxed"),
        (r"\fbox{A}", "A", "boxed"),
        (r"\boxed{\text{no}}", r"\text{no}", "boxed"),
        (r"{ \boxed{5}", "5", "boxed"),
        ("She has 5.\n#### 1,000", "1,000", "hashes"),
        ("#### 5\nThat is it.", "5", "hashes"),
        ("x\n\n# Answer\n\n42", "42", "heading"),
        ("### Final Answer:\n\n**12**", "12", "heading"),
        ("The answer is: 12", "12", "phrase"),
        ("the answer is 3.14.", "3.14", "phrase"),
        ("The answer is 5. The answer is 6.", "6", "phrase"),
        (r"the answer is $\frac12$.", r"\frac12", "phrase"),
        ("The answer is $5 and $6.", "$5 and $6", "phrase"),
        ("The final answer is 5. I hope it is correct.", "5", "phrase"),
        ("**Answer:** 9 apples", "9 apples", "phrase"),
        ("The answer to the question is 7.", "7", "phrase"),
        ("The answer is 5 because 2 + 3 = 5.", "5", "phrase"),
        ("Both fit less.\n(C)", "C", "letter"),
        ("so option B is right", "B", "letter"),
    ],
)
def test_where_a_solution_says_its_answer(text, answer, way):
    found = find_answer(text)
    assert found is not None
    assert (found.text, found.way) == (answer, way)
    assert text[found.start : found.start + len(found.text)] == found.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "There were 7 and 5 left.",
        r"\boxed{}",
        r"\boxed{5",
        r"\boxed{3} and \boxed{4 is never closed",
        "#### 2. Add them up\n2 + 3 = 5",
        "The answer is not 5.",
        "The answers are unknown",
        "The boxed number",
        r"\boxed{it begins" + "\n\n" + "and goes on}",
    ],
)
def test_a_solution_that_names_none(text):
    assert find_answer(text) is None


@given(st.text(alphabet="ab{}\\ boxed$#1\nanswer is:.", max_size=60))
def test_what_is_found_stands_in_the_text(text):
    found = find_answer(text)
    if found is not None:
        assert found.text.strip()
        assert text[found.start : found.start + len(found.text)] == found.text


@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{",
        "{",
        "answer is ",
        "answer ",
        " ",
        "#### a\n",
        "# answer\n\n",
        "\\",
        "1,",
        "answer to x",
        "answer: $",
        "\n",
        "option ",
    ],
)
def test_hostile_text_takes_linear_time(piece):
    def seconds(size):
        text = piece * (size // len(piece))
        began = time.thread_time()  # of this thread alone
        find_answer(text)
        return time.thread_time() - began

    # Quadratic work on 400,000 characters is minutes; the bound leaves a slow machine its room.
    assert seconds(400_000) < 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-4", -4),
        ("−4", -4),
        ("1,234.5", Fraction(2469, 2)),
        (r"12\,000", 12000),
        ("1{,}200", 1200),
        (r"-\$5", -5),
        ("$-5", -5),
        (".5", Fraction(1, 2)),
        ("2/4", Fraction(1, 2)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"-\dfrac{1}{2}", Fraction(-1, 2)),
        ("7 1/2", Fraction(15, 2)),
        ("-7 1/2", Fraction(-15, 2)),
        (r"7\frac{1}{2}", Fraction(15, 2)),
        ("2½", Fraction(5, 2)),
        ("3 million", 3_000_000),
        ("two thousand", 2000),
        ("2 dozen", 24),
        ("1e2", 100),
        (r"1.5\times 10^{3}", 1500),
        ("10^6", 1_000_000),
        ("1e-3", Fraction(1, 1000)),
        ("12_5", 7),
        ("1A_{16}", 26),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        ("forty-two", 42),
        ("6th", 6),
        ("(5)", 5),
        ("about 5.2 hours", Fraction(26, 5)),
        (r"\textbf{5}", 5),
        ("$52,500/year", 52500),
        ("= 12.", 12),
    ],
)
def test_numbers_read_exactly(text, value):
    quantity = read_quantity(text)
    assert quantity is not None
    assert quantity.value == value


@pytest.mark.parametrize(
    "text",
    ["", "x", "2x", "5m", "5!", "1, 2", "(1,2)", "3 + 4", "2^{10}", r"2\pi", "5 or more", "5:30", "9/3/2022", "1/0", "19_5",
     "5 feet 3 inches", "1e999999999", "9" * 3000, "12.5.3", "1,2", "1/3/4", "8 3/2", "no", "3 sin x"],
)  # fmt: skip
def test_what_is_not_one_number(text):
    assert read_quantity(text) is None


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
def test_a_fraction_is_read_as_it_is_written(top, bottom):
    quantity = read_quantity(rf"\frac{{{top}}}{{{bottom}}}")
    assert quantity is not None
    assert quantity.value == Fraction(top, bottom)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9))
def test_a_decimal_with_commas_is_itself(number):
    quantity = read_quantity(f"{number:,f}")
    assert quantity is not None
    assert quantity.value == Fraction(number)


PAIRS = [
    ("18", "$18.00", "match", "exact"),
    ("10", "10%", "match", "percent sign left out"),
    ("10%", "0.2", "mismatch", "percent"),
    ("10%", "0.1", "match", "percent"),
    ("12 cm", "12 m", "mismatch", "converted"),
    ("12 cm", "0.12 m", "match", "converted"),
    ("12 cm", "12 kg", "mismatch", "different kinds"),
    ("12", "12 cm", "match", "one side"),
    ("$16", "16 dollars per day", "match", "one side"),
    ("$5", "€5", "mismatch", "different kinds"),
    ("1/3", "0.333333", "mismatch", "exact"),
    ("12_5", "12", "mismatch", "base"),
    ("3000000", "3 million", "match", "scale word"),
    ("7.5", "7 1/2", "match", "mixed number"),
    ("720", "4 * 15 * 12 = 720", "match", "right-hand side"),
    ("720", "4 * 15 * 12 = 721", "mismatch", "right-hand side"),
    ("300", "The chef spent $300 on onions.", "match", "concluding statement"),
    ("12 km", "They drove 12 m in all.", "mismatch", "concluding statement"),
    ("5", "Not 5, I think.", "unparsed", "answer"),
    ("5", "To find the change we subtract from the $20 she paid.", "unparsed", "answer"),
    ("5", "Either 5 or 6 of them.", "unparsed", "answer"),
    ("5", "x + 1", "unparsed", "answer"),
    ("x", "5", "unparsed", "reference"),
]


@pytest.mark.parametrize(("gold", "answer", "outcome", "rule"), PAIRS)
def test_numbers_against_the_reference(gold, answer, outcome, rule):
    verdict = NumberVerifier().verify(answer, gold)
    assert (verdict.outcome, verdict.verifier) == (outcome, "number")
    assert verdict.answer in answer
    assert verdict.note is not None
    assert rule in verdict.note


@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        ("B", "(B)", "match"),
        ("B", "b)", "match"),
        ("(B)", "B) 12 apples", "match"),
        (r"\text{(C)}", "option C", "match"),
        ("B", "The answer is (C).", "mismatch"),
        ("B", "Bananas", "unparsed"),
        ("12", "B", "unparsed"),
    ],
)
def test_choices(gold, answer, outcome):
    assert ChoiceVerifier().verify(answer, gold).outcome == outcome


def test_texts():
    verifier = TextVerifier()
    assert verifier.verify(" no  Solution. ", "No solution").outcome == "match"
    assert verifier.verify("$x^2$", "x^2").outcome == "match"
    assert verifier.verify("1/2", "0.5").outcome == "mismatch"
    assert verifier.verify("", "x").outcome == "unparsed"


@pytest.mark.parametrize(
    ("text", "answer", "way"),
    [
        ("12 apples", "12 apples", "whole"),
        ("We add.\nThe answer is: 12", "12", "phrase"),
        ("We add 5 and 7.\nThen we have 12.", "12", "statement"),
        ("We add 5 and 7.\nThen we go on", None, None),
        ("word " * 100, None, None),
        ("  ", None, None),
        (None, None, None),
    ],
)
def test_a_solution_or_a_bare_answer(text, answer, way):
    found = bare_answer(text)
    assert (found and found.text, found and found.way) == (answer, way)


def test_the_strict_rule_reads_marks_only():
    text = "They have 7 and 5 pens. So they have 12 pens.\nThat is all of them."
    assert load_verifier("number").verify("7 + 5 = 12.\nSo they have 12 pens.", "12").outcome == "match"
    strict = load_verifier("number", answers="marked")
    assert strict.verify("7 + 5 = 12.\nSo they have 12 pens.", "12").note == "the text names no answer"
    assert strict.verify("7 + 5 = 12.\nThe answer is 12.", "12").outcome == "match"
    assert strict.verify(text, "12").outcome == "unparsed"
    assert answer_groups(["7 + 5.\nSo it is 12.", "12"], strict) == [None, 0]


def test_dress_is_no_difference():
    assert key(r"\left( 3, \dfrac{\pi}{2} \right)") == key(r"$(3,\frac{\pi}{2})$")
    assert key("7 1/2") != key("71/2")
    assert clean(r"\boxed{\boxed{5}}") == "5"
    assert key("x - y") != key("y - x")


@given(st.text(max_size=40))
def test_space_around_an_answer_is_no_difference(text):
    assert key(f"  {text}\n") == key(text)


@given(st.text(alphabet="0123456789.,%$ -/\\fracte{}^_mkgscm", max_size=30))
def test_equal_to_itself_or_no_quantity(text):
    quantity = read_quantity(text)
    if quantity is not None:
        assert same_quantity(quantity, quantity)[0]


def test_groups_for_votes():
    verifier = NumberVerifier()
    answers = ["5", None, "$5$", "6", r"\frac{10}{2}", "x", "x", "y", "", "long\ntext"]
    assert answer_groups(answers, verifier) == [0, None, 0, 1, 0, 2, 2, 3, None, None]
    assert answer_groups([], verifier) == []


def test_groups_ask_once_a_pair_of_different_answers():
    asked = []

    class Counting(NumberVerifier):
        def verify(self, answer, gold):
            asked.append((answer, gold))
            return super().verify(answer, gold)

    assert answer_groups(["1", "1", "2", "2.0", "2", "1"], Counting()) == [0, 0, 1, 1, 1, 0]
    assert asked == [("2", "1"), ("2.0", "1"), ("2.0", "2")]
