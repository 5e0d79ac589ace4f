"""Perturbations: each is what it says, differs from the original, and depends on nothing but its arguments."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.evaluation.perturbations import (
    PERTURBATIONS,
    Perturbed,
    continued,
    other_number,
    perturbation,
    perturbed,
)
from stepmark.records import Solution

SHOP = Solution.of(
    "Ann buys 3 boxes of 12 eggs and eats 5 of the eggs. How many are left?",
    [
        "The boxes hold 3 * 12 = 36 eggs. All of them are whole.",
        "Ann eats 5 eggs, so 36 - 5 = 31 are left.",
        r"The answer is \(\boxed{31}\).",
    ],
    id="shop",
)


def _apply(name: str, solution: Solution = SHOP, seed: int = 0) -> Perturbed:
    made = perturbation(name).change(solution, random.Random(seed))
    assert made is not None
    return made


# --- what holds for all of them --------------------------------------------------------------------------------

_amount = st.one_of(
    st.integers(0, 99_999).map(str),
    st.integers(1_000, 9_999_999).map(lambda n: f"{n:,}"),
    st.decimals(0, 1000, places=2).map(str),
)
_sentence = st.one_of(
    st.tuples(_amount, st.sampled_from("+-*/"), _amount).map(
        lambda t: f"We have {t[0]} {t[1]} {t[2]} of them."
    ),
    st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda t: f"So {t[0]} + {t[1]} = {t[0] + t[1]}."),
    st.tuples(st.integers(2, 99), st.integers(2, 99)).map(
        lambda t: rf"Then \({t[0]} \times {t[1]} = {t[0] * t[1]}\) follows."
    ),
    st.sampled_from(
        [
            "The rest follows from x_1 and equation (2).",
            r"Hence \(x = \frac{3}{4}\) and $y = 2x + 1$.",
            "1. Start at 9:30 on the 3rd of May.",
            "**Step 2:** Add it to the $14,000.",
            r"The answer is \boxed{17}.",
            "- Now é is no number, nor is 007!",
            "Nothing is said here",
            "\\[ a^2 + b^2 = c^2 \\]",
        ]
    ),
)
_step = st.lists(_sentence, min_size=1, max_size=3).map(" ".join)
_solutions = st.builds(
    Solution.of,
    st.lists(_sentence, min_size=1, max_size=3).map(" ".join),
    st.lists(_step, min_size=1, max_size=5),
)
_names = st.sampled_from(list(PERTURBATIONS))


@given(_solutions, _names, st.integers(0, 2**32))
def test_a_change_is_real_well_formed_repeatable_and_leaves_the_original(
    solution: Solution, name: str, seed: int
) -> None:
    before = replace(solution, problem=replace(solution.problem))
    made = perturbation(name).change(solution, random.Random(seed))
    assert solution == before
    assert made == perturbation(name).change(solution, random.Random(seed))
    if made is None:
        return
    new = made.solution
    assert (new.problem.text, new.texts) != (solution.problem.text, solution.texts)
    assert new.problem.text.strip()
    assert new.texts and all(text.strip() for text in new.texts)
    assert made.note
    assert made.broken_step is None or 0 <= made.broken_step < len(new.steps)
    if perturbation(name).keeps_meaning:
        assert new.problem == solution.problem
        assert made.broken_step is None


_COUNTS = {"restated-step": 1, "irrelevant-step": 1, "repeated-step": 1, "dropped-step": -1}


@given(_solutions, _names, st.integers(0, 2**32))
def test_the_number_of_steps(solution: Solution, name: str, seed: int) -> None:
    made = perturbation(name).change(solution, random.Random(seed))
    if made is not None:
        assert len(made.solution.steps) == len(solution.steps) + _COUNTS.get(name, 0)


@given(_solutions, st.integers(0, 2**32))
def test_what_is_put_in_leaves_the_other_steps(solution: Solution, seed: int) -> None:
    for name in ("restated-step", "irrelevant-step", "repeated-step"):
        made = perturbation(name).change(solution, random.Random(seed))
        assert made is not None
        texts = list(made.solution.texts)
        assert any(tuple(texts[:at] + texts[at + 1 :]) == solution.texts for at in range(len(texts)))
        assert (len(set(texts)) == len(set(solution.texts))) == (name == "repeated-step")


@given(_solutions, st.integers(0, 2**32))
def test_phrasing_keeps_every_number_in_order(solution: Solution, seed: int) -> None:
    made = perturbation("confident-phrasing").change(solution, random.Random(seed))
    assert made is not None
    amounts = [re.findall(r"[0-9]+", " ".join(one.texts)) for one in (solution, made.solution)]
    assert amounts[0] == amounts[1]


@given(_solutions, st.integers(0, 2**32))
def test_formatting_adds_a_mark_before_every_step(solution: Solution, seed: int) -> None:
    made = perturbation("formatting").change(solution, random.Random(seed))
    if made is not None:
        for old, new in zip(solution.texts, made.solution.texts, strict=True):
            assert new.endswith(old)
            assert re.fullmatch(r"- |\*\*Step \d+\.\*\* |### Step \d+\n", new.removesuffix(old))


def _truths(text: str) -> list[bool]:
    """Every "a op b = c" of a text, computed here and not by the code under test."""
    found = []
    for left, sign, right, result in re.findall(
        r"(?<![\d.] )\b(\d+) (\+|-|\*|/|\\times|\\div) (\d+) = (\d+)\b", text
    ):
        a, b = Fraction(left), Fraction(right)
        value = {"+": a + b, "-": a - b, "*": a * b, "\\times": a * b}.get(sign)
        if value is None:
            value = a / b if b else None
        found.append(value == Fraction(result))
    return found


@given(
    st.lists(
        st.tuples(st.integers(2, 500), st.sampled_from(["+", "*", r"\times"]), st.integers(2, 500)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2**32),
)
def test_a_proven_error_is_one(sums: list[tuple[int, str, int]], seed: int) -> None:
    steps = [f"Here {a} {sign} {b} = {a + b if sign == '+' else a * b} pieces." for a, sign, b in sums]
    made = perturbation("wrong-number").change(Solution.of("How many?", steps), random.Random(seed))
    assert made is not None and made.broken_step is not None
    for step, text in enumerate(made.solution.texts):
        assert _truths(text) == [step != made.broken_step]


@given(_solutions, st.integers(0, 2**32))
def test_shuffled_is_a_permutation(solution: Solution, seed: int) -> None:
    made = perturbation("shuffled-steps").change(solution, random.Random(seed))
    if made is not None:
        assert sorted(made.solution.texts) == sorted(solution.texts)
        assert made.solution.texts[-1] != solution.texts[-1]


# --- by hand ---------------------------------------------------------------------------------------------------


def test_a_wrong_number_by_hand() -> None:
    """Both calculations of SHOP are true, so the altered one is proven wrong; over seeds both are met."""
    assert {_apply("wrong-number", seed=seed).broken_step for seed in range(30)} == {0, 1}
    # Whatever 7 becomes, 7 * 0 = 0 stays true; that is not altered.
    zero = Solution.of("Q?", ["So 7 * 0 = 0 it is."])
    notes = {_apply("wrong-number", zero, seed).note for seed in range(30)}
    assert len(notes) > 1 and not any(note.startswith("7 ") for note in notes)
    # Without a calculation that is true nothing can be proven.
    for text in ("There are 7 apples in all.", "So 2 + 2 = 5.", r"By Step 1, x_3 is \frac12."):
        assert perturbation("wrong-number").change(Solution.of("Q?", [text]), random.Random(0)) is None


def test_a_dropped_step_is_one_that_a_later_step_needs() -> None:
    """36 of step 1 stands in step 2, 31 of step 2 in the answer; the last step is never dropped."""
    texts = {_apply("dropped-step", seed=seed).solution.texts for seed in range(30)}
    assert texts == {SHOP.texts[1:], (SHOP.texts[0], SHOP.texts[2])}
    inert = Solution.of("What is 2 + 3?", ["We add 2 and 3.", "Let me think.", "It is 2 + 3 = 5."])
    assert perturbation("dropped-step").change(inert, random.Random(0)) is None


# --- the pieces ------------------------------------------------------------------------------------------------


@given(_amount, st.integers(0, 2**32))
def test_other_number_is_written_alike(shown: str, seed: int) -> None:
    new = other_number(shown, random.Random(seed))
    assert Fraction(new.replace(",", "")) != Fraction(shown.replace(",", ""))
    assert len(new.partition(".")[2]) == len(shown.partition(".")[2])
    assert not re.match(r"0[0-9]", new)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("The sum", "the sum"),
        ("I add", "I add"),
        ("Ann adds", None),
        ("Calculate it", None),
        ("A + B = 3", None),
        ("A number", "a number"),
        ("x = 3", None),
    ],
)
def test_continued(text: str, after: str | None) -> None:
    assert continued(text) == after


# --- the stream ------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(_solutions, min_size=1, max_size=5), st.integers(0, 100))
def test_a_change_does_not_depend_on_the_company(solutions: list[Solution], seed: int) -> None:
    solutions = [replace(one, id=str(at)) for at, one in enumerate(solutions)]
    every = {made.solution.id: made for one in solutions for _, made in perturbed(one, seed=seed)}
    few = {
        made.solution.id: made
        for one in reversed(solutions)
        for _, made in perturbed(one, ["wrong-number", "formatting"], seed)
    }
    assert few == {id: made for id, made in every.items() if id.endswith(("::wrong-number", "::formatting"))}
