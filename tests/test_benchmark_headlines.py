"""The claims' verdicts and the page of `benchmarks.headlines`, from figures made by hand; no model is trained."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is run from the root of the repository and is not installed

from benchmarks import headlines  # noqa: E402
from benchmarks.headlines import Block, Row, Size, World  # noqa: E402

PROBLEM = "Start with 5. In the first step add 3. In the second step multiply by 2. What is the result?"
RIGHT = "Result after the first step: 5 + 3 = 8\nResult after the second step: 8 * 2 = 16\nThe answer is 16."
SLIP = "Result after the first step: 5 + 3 = 9\nResult after the second step: 9 * 2 = 18\nThe answer is 18."
LATE = "Result after the first step: 5 + 3 = 8\nResult after the second step: 8 * 2 = 18\nThe answer is 18."


def row(difference, **fields):
    return Row(claim="A beats B", source="a paper", measured="3 against 1 %", difference=difference, **fields)


@pytest.fixture
def world(tmp_path):
    """Two problems with four solutions each: of the first the first is right, of the second all but the last."""
    made = World("no base", tmp_path, Size())
    other = PROBLEM.replace("Start with 5", "Start with 6").replace("add 3", "add 2")
    told = [(PROBLEM, text) for text in (RIGHT, SLIP, LATE, SLIP)]
    told += [(other, text.replace("5 + 3", "6 + 2")) for text in (RIGHT, RIGHT, RIGHT, LATE)]
    made.tested = [
        {"problem": problem, "solution": text, "meta": {"outcome": text.endswith("16.")}}
        for problem, text in told
    ]
    return made


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        ((2.0, 0.5, 3.5), "holds"),
        ((2.0, 0.0, 3.5), "open"),
        ((-1.0, -2.0, 0.0), "open"),
        ((-2.0, -3.5, -0.5), "does not hold"),
    ],
)
def test_the_interval_is_the_verdict(difference, verdict):
    assert row(difference).verdict == verdict


def test_labels_end_at_the_first_error():
    assert headlines.known_labels(PROBLEM, RIGHT.split("\n")) == [True, True, True]
    assert headlines.known_labels(PROBLEM, SLIP.split("\n")) == [False]
    assert headlines.known_labels(PROBLEM, LATE.split("\n")) == [True, False]
    assert headlines.known_labels(PROBLEM, ["Result after the first step: 5 + 3 = 8", "Hm."]) == [True, False]


def test_choices_votes_and_the_oracle_by_hand(world):
    # The vote on the first problem: 18 has three of four; of two, 16 and 18 have one each.
    assert world.voted(4).tolist() == [0, 1]
    assert world.voted(2).tolist() == [0.5, 1]
    assert world.oracle(4).tolist() == [1, 1]
    scores = np.array([0.2, 0.9, 0.1, 0.3, 0.5, 0.1, 0.1, 0.6])
    assert world.chosen(scores, 4).tolist() == [0, 0]
    assert world.chosen(scores, 1).tolist() == [1, 1]


def test_pairs_are_counted_to_the_first_error_in_the_order_of_the_problems(world):
    steps = [[0.9, 0.8, 0.7], [0.1, 0.5, 0.5], [0.9, 0.2, 0.5], [0.3, 0.5, 0.5]] * 2
    first, second = headlines.pairs_of(steps, world.tested)
    assert first.tolist() == [[0.9, 1], [0.8, 1], [0.7, 1], [0.1, 0], [0.9, 1], [0.2, 0], [0.3, 0]]
    assert len(second) == 3 + 3 + 3 + 2


def test_a_perfect_grader_has_all_of_the_area_over_a_reversed_one(world):
    good = [[0.9 if known else 0.1 for known in labels] for labels in world.known]
    bad = [[1 - score for score in scores] for scores in good]
    value, low, high = headlines.auc_gap(
        headlines.pairs_of(good, world.tested), headlines.pairs_of(bad, world.tested)
    )
    assert (value, low, high) == (100, 100, 100)


def test_an_interval_of_what_never_varies_is_a_point():
    assert headlines.interval(np.full(8, 0.25)) == pytest.approx((25, 25, 25))
    value, low, high = headlines.interval(np.array([1.0, 0.0] * 50))
    assert value == 50
    # The binomial's: 50 ± 1.96 * 5 points.
    assert (low, high) == (pytest.approx(40, abs=2), pytest.approx(60, abs=2))


def test_finished_rows_are_read_and_not_measured_again(world, monkeypatch):
    calls = []

    def measure(of):
        of.note("beside it")
        calls.append(of)
        return [row((2.0, 0.5, 3.5), thought="because")]

    monkeypatch.setitem(headlines.ROWS, "made", measure)
    first = world.block("made")
    assert (
        world.block("made")
        == first
        == Block(rows=[row((2.0, 0.5, 3.5), thought="because")], notes=["beside it"])
    )
    assert len(calls) == 1


def test_the_page_has_every_row_every_thought_and_every_note(world):
    blocks = {
        "one": Block(rows=[row((2.0, 0.5, 3.5))], notes=["AUC 0.9"]),
        "two": Block(rows=[row((-2.04, -3.5, -0.5), thought="Too few labels.")], notes=[]),
    }
    page = headlines.page(world, blocks)
    lines = page.splitlines()
    assert "| A beats B | a paper | 3 against 1 % | +2.0 [+0.5, +3.5] | holds |" in lines
    assert "| A beats B | a paper | 3 against 1 % | -2.0 [-3.5, -0.5] | does not hold |" in lines
    assert [line for line in lines if "Too few labels." in line] == [
        "- **A beats B** (does not hold). Too few labels."
    ]
    assert "- AUC 0.9" in lines
    assert "200 test problems with 16 solutions each, 2,400 solutions of 300 others" in page
    # One table, so that it is drawn as one.
    table = [at for at, line in enumerate(lines) if line.startswith("|")]
    assert table == list(range(table[0], table[0] + 4))
