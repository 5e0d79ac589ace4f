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
    Donors,
    Perturbed,
    perturbation,
    perturbed,
)
from stepmark.evaluation.perturbations.changes import calculations, other_number
from stepmark.evaluation.perturbations.text import (
    continued,
    final_answer,
    numbers,
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
DONOR = Solution.of("How long is a fence around a garden of 4 by 6 m?", ["2 * (4 + 6) = 20.", "It is 20 m."])


def _apply(name: str, solution: Solution = SHOP, seed: int = 0) -> Perturbed:
    made = perturbation(name).apply(solution, random.Random(seed), donor=DONOR)
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
    made = perturbation(name).apply(solution, random.Random(seed), donor=DONOR)
    assert solution == before
    assert made == perturbation(name).apply(solution, random.Random(seed), donor=DONOR)
    if made is None:
        return
    new = made.solution
    assert (new.problem.text, new.texts) != (solution.problem.text, solution.texts)
    assert new.problem.text.strip()
    assert new.texts and all(text.strip() for text in new.texts)
    assert made.note
    assert made.broken_step is None or 0 <= made.broken_step < len(new.steps)
    assert made.broken_step is not None or not made.proven
    if perturbation(name).keeps_meaning:
        assert new.problem == solution.problem
        assert made.broken_step is None


_COUNTS = {
    "restated-step": lambda n: n + 1,
    "filler-steps": lambda n: 2 * n - 1,
    "merged-steps": lambda n: (n + 1) // 2,
    "self-praise": lambda n: n + 1,
    "irrelevant-solution": lambda n: len(DONOR.steps),
    "answer-only": lambda n: 1,
}


@given(_solutions, _names, st.integers(0, 2**32))
def test_the_number_of_steps(solution: Solution, name: str, seed: int) -> None:
    made = perturbation(name).apply(solution, random.Random(seed), donor=DONOR)
    if made is None:
        return
    before, after = len(solution.steps), len(made.solution.steps)
    if name == "cut-steps":
        assert before < after <= 2 * before
    elif name == "truncated":
        assert 1 <= after < before
    else:
        assert after == _COUNTS.get(name, lambda n: n)(before)


@given(_solutions, st.integers(0, 2**32))
def test_phrasing_layout_and_cutting_keep_every_number_in_order(solution: Solution, seed: int) -> None:
    def amounts(one: Solution) -> list[str]:
        return re.findall(r"[0-9]+", " ".join(one.texts))

    for name in (
        "confident-phrasing",
        "hedged-phrasing",
        "bold-numbers",
        "bulleted",
        "latex-numbers",
        "plain-numbers",
        "spaced",
        "filler-steps",
        "cut-steps",
        "merged-steps",
        "self-praise",
    ):
        made = perturbation(name).apply(solution, random.Random(seed))
        if made is not None:
            assert amounts(made.solution) == amounts(solution), name


@given(_solutions, st.integers(0, 2**32))
def test_cutting_and_merging_keep_every_word(solution: Solution, seed: int) -> None:
    for name in ("cut-steps", "merged-steps", "spaced"):
        made = perturbation(name).apply(solution, random.Random(seed))
        if made is not None:
            assert " ".join(made.solution.texts).split() == " ".join(solution.texts).split(), name


@given(_solutions, st.integers(0, 2**32))
def test_one_number_of_one_step_is_altered_and_written_alike(solution: Solution, seed: int) -> None:
    made = perturbation("numbers-altered").apply(solution, random.Random(seed))
    if made is None:
        return
    at = made.broken_step
    assert at is not None
    for step, (old, new) in enumerate(zip(solution.texts, made.solution.texts, strict=True)):
        assert (old == new) == (step != at)
    pattern = r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?"
    old, new = (re.findall(pattern, one.texts[at]) for one in (solution, made.solution))
    [(was, became)] = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    assert re.sub(pattern, "#", solution.texts[at]) == re.sub(pattern, "#", made.solution.texts[at])
    assert Fraction(was.replace(",", "")) != Fraction(became.replace(",", ""))
    assert len(was.partition(".")[2]) == len(became.partition(".")[2])
    assert not re.match(r"0[0-9]", became)
    assert became == became.replace(",", "") or re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?", became)


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
    st.sampled_from(["numbers-altered", "operator-flipped"]),
    st.integers(0, 2**32),
)
def test_a_proven_error_is_one(sums: list[tuple[int, str, int]], name: str, seed: int) -> None:
    steps = [f"Here {a} {sign} {b} = {a + b if sign == '+' else a * b} pieces." for a, sign, b in sums]
    made = perturbation(name).apply(Solution.of("How many?", steps), random.Random(seed))
    assert made is not None and made.proven and made.broken_step is not None
    for step, text in enumerate(made.solution.texts):
        assert _truths(text) == [step != made.broken_step]


@given(_solutions, st.integers(0, 2**32))
def test_shuffled_is_a_permutation(solution: Solution, seed: int) -> None:
    steps = perturbation("steps-shuffled").apply(solution, random.Random(seed))
    if steps is not None:
        assert sorted(steps.solution.texts) == sorted(solution.texts)
        assert steps.solution.texts[-1] != solution.texts[-1]
    question = perturbation("question-shuffled").apply(solution, random.Random(seed))
    if question is not None:
        assert sorted(question.solution.problem.text.split()) == sorted(solution.problem.text.split())
        assert question.solution.texts == solution.texts


# --- by hand ---------------------------------------------------------------------------------------------------


def test_numbers_altered_by_hand() -> None:
    """Every calculation of SHOP is true, so the altered one is proven wrong; over seeds both are met."""
    met = {_apply("numbers-altered", seed=seed).broken_step for seed in range(30)}
    assert met == {0, 1}
    assert all(_apply("numbers-altered", seed=seed).proven for seed in range(30))
    unproven = Solution.of("Q?", ["There are 7 apples in all."])
    made = _apply("numbers-altered", unproven)
    assert (made.broken_step, made.proven) == (0, False)
    # Whatever 7 becomes, 7 * 0 = 0 stays true; that is not altered.
    zero = Solution.of("Q?", ["So 7 * 0 = 0 it is."])
    notes = {_apply("numbers-altered", zero, seed).note for seed in range(30)}
    assert len(notes) > 1 and not any(note.startswith("7 ") for note in notes)
    names_only = Solution.of("Q?", ["By Step 1 and equation (2), x_3 is the 4th of y5.", r"So \frac12."])
    assert perturbation("numbers-altered").apply(names_only, random.Random(0)) is None


def test_operator_flipped_by_hand() -> None:
    solution = Solution.of("Q?", ["They are 7 in all.", "Then 7 + 2 = 9."])
    made = _apply("operator-flipped", solution)
    assert made.solution.texts == ("They are 7 in all.", "Then 7 - 2 = 9.")
    assert (made.broken_step, made.proven) == (1, True)
    formula = Solution.of("Q?", [r"So \(y = 2x + 3\) - a line."])
    made = _apply("operator-flipped", formula)
    assert made.solution.texts == (r"So \(y = 2x - 3\) - a line.",)
    assert (made.broken_step, made.proven) == (0, False)
    # 2 + 0 and 4 * 1 stay as much when they are flipped; words and dates have no operators.
    nothing = Solution.of("Q?", ["2 + 0 = 2 and 4 * 1 = 4", "The well-known date 5-6 is - well - over."])
    assert perturbation("operator-flipped").apply(nothing, random.Random(0)) is None


def test_truncated_reaches_no_answer() -> None:
    for seed in range(10):
        # Step 1 says "= 31", which is the answer: only step 0 may stay.
        assert _apply("truncated", seed=seed).solution.texts == SHOP.texts[:1]
    checked = Solution.of("Q?", ["We add.", "The answer is twelve.", "Let me check it.", "It is right."])
    for seed in range(10):
        assert _apply("truncated", checked, seed).solution.texts == ("We add.",)
    at_once = Solution.of("Q?", ["It is 2 + 2 = 4.", "The answer is 4."])
    assert perturbation("truncated").apply(at_once, random.Random(0)) is None


def test_answers_without_reasoning() -> None:
    assert _apply("repeated-answer").solution.texts == (SHOP.texts[2],) * 3
    assert _apply("answer-only").solution.texts == ("The answer is 31.",)
    root = Solution.of("Q?", ["First.", r"So it is \boxed{\frac{1}{\sqrt{3}}}."])
    assert _apply("answer-only", root).solution.texts == (r"The answer is \(\frac{1}{\sqrt{3}}\).",)
    bare = Solution.of("Q?", ["The answer is 4."])
    assert perturbation("answer-only").apply(bare, random.Random(0)) is None
    assert perturbation("repeated-answer").apply(bare, random.Random(0)) is None
    talk = _apply("empty-talk").solution.texts
    assert len(set(talk)) == 3 and not any(re.search(r"\d", text) for text in talk)


# --- the pieces ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5 * 3 = 15 cups", ["5 * 3 = 15"]),
        (r"\(18 - 6 = 12\)", ["18 - 6 = 12"]),
        ("(it is: 3 + 4 = 7)", ["3 + 4 = 7"]),
        ("(3 + 4 = 7)", ["3 + 4 = 7"]),
        ("$3.50 x 2 = $7.00.", ["$3.50 x 2 = $7.00"]),
        (r"\frac{1}{2} \times 14,000 = 7,000", [r"\frac{1}{2} \times 14,000 = 7,000"]),
        ("x = 2 * (3 + 4) = 14", ["2 * (3 + 4) = 14"]),
        ("3x + 10 = 3(4) + 10 = 12 + 10 = 22", ["12 + 10 = 22"]),
        ("1 + 1 = 3", []),  # not true
        ("10 / 3 = 3.33", []),  # not exactly
        ("x + 2 + 3 = 5", []),  # a part of a longer formula
        ("2^3 - 1 = 2", []),
        ("2 + 3 = 5x", []),
        ("2 + 3 = 5 + 0", []),
        ("1 / 2 = 50%", []),
        ("5 = 5", []),  # nothing is computed
        (r"\sin 2 + 3 = 5", []),
    ],
)
def test_calculations(text: str, found: list[str]) -> None:
    assert [text[one.start : one.end] for one in calculations(text)] == found


@given(_amount, st.integers(0, 2**32))
def test_other_number_is_written_alike(shown: str, seed: int) -> None:
    new = other_number(shown, random.Random(seed))
    assert Fraction(new.replace(",", "")) != Fraction(shown.replace(",", ""))
    assert len(new.partition(".")[2]) == len(shown.partition(".")[2])
    assert not re.match(r"0[0-9]", new)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3 boxes of 1,200 at 0.5", ["3", "1,200", "0.5"]),
        ("Step 3: we have 4", ["4"]),
        ("2. We have 4", ["4"]),
        (r"x1, y_2, z^{3}, \frac12, the 3rd, 12:30, 007", ["3"]),
        ("from (1) and equation 2 but f(7)", ["7"]),
        (r"14{,}000 or 14\,000", []),
        (r"\tag{3} and \hspace{4mm} but {5}", ["5"]),
        ("version 1.2.3", []),
    ],
)
def test_numbers(text: str, found: list[str]) -> None:
    assert [match["number"] for match in numbers(text)] == found


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


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{3} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("The final answer is 12 apples. I hope it is correct.", "12 apples"),
        ("#### 42", "42"),
        ("She has 5 of 9.", "9"),
        ("It follows.", None),
        (r"So \boxed{3", "3"),
    ],
)
def test_final_answer(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


# --- the stream ------------------------------------------------------------------------------------------------


def _made(solutions, donors, names=tuple(PERTURBATIONS), seed=0) -> dict[str, Perturbed]:
    ring = Donors(donors)
    return {made.solution.id: made for one in solutions for _, made in perturbed(one, names, seed, ring)}


@settings(deadline=None)
@given(st.lists(_solutions, min_size=1, max_size=5), st.integers(0, 100), st.randoms(use_true_random=False))
def test_a_change_does_not_depend_on_the_company(
    solutions: list[Solution], seed: int, order: random.Random
) -> None:
    solutions = [replace(one, id=str(i)) for i, one in enumerate(solutions)]
    donors = [SHOP, DONOR, *solutions]
    together = _made(solutions, seed=seed, donors=donors)
    mixed_donors = list(donors)
    order.shuffle(mixed_donors)
    shuffled = list(solutions)
    order.shuffle(shuffled)
    assert _made(shuffled, seed=seed, donors=mixed_donors + donors) == together
    alone: dict[str, Perturbed] = {}
    for one in solutions:
        alone |= _made([one], seed=seed, donors=donors)
    assert alone == together
    # Naming fewer perturbations changes nothing of those that are named.
    few = _made(solutions, donors, seed=seed, names=["numbers-altered", "spaced"])
    assert few == {
        id: made for id, made in together.items() if id.endswith(("::numbers-altered", "::spaced"))
    }
