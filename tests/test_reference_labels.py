"""First errors located against worked solutions, by hand-worked problems."""

from __future__ import annotations

import pytest

from stepmark.records import Solution

reference = pytest.importorskip("default_prm_reference", reason="recipes are not here (an installed package)")

PROBLEM = (
    "Ann has 12 pens. She buys 4 boxes of 5 pens each and gives half of all her pens away. How many are left?"
)
WORKED = "She buys 4*5 = <<4*5=20>>20 pens.\nShe has 12+20 = <<12+20=32>>32 pens.\n32/2 = <<32/2=16>>16 pens are left."


def located(*steps, references=(WORKED,), problem=PROBLEM):
    suspect = reference.locate_error(Solution.of(problem, list(steps)), references)
    return None if suspect is None else (suspect.step, suspect.reason)


def test_a_false_calculation_is_located_before_anything_else():
    assert located("She buys 4 * 5 = 24 pens.", "She has 12 + 24 = 36 pens.") == (0, "calculation")


def test_a_result_that_no_worked_solution_holds():
    assert located("She buys 4 * 5 = 20 pens.", "She has 12 * 20 = 240 pens.", "240 / 2 = 120") == (
        1,
        "result",
    )
    # The problem's own numbers are no results: 4 + 8 = 12 is suspect though 12 is given.
    assert located("She buys 4 + 8 = 12 boxes.", "12 + 20 = 32") == (0, "result")
    assert located("She has 20 - 8 = 12 pens.") == (0, "result")
    assert located("She has 5 * 4 - 20 + 5 = 5 pens.", "The answer is 5.") == (0, "result")


def test_another_way_to_a_sound_result_is_no_error():
    # 64 stands in no worked solution, but 64 / 2 = 32 leads back to a sound result.
    assert located("Twice all is 2 * 32 = 64 pens.", "So she has 64 / 2 = 32.", "32 - 20 = 12 are left.") == (
        2,
        "result",
    )
    assert located("12 + 20 = 32", "32 - 16 = 16", "16 + 1 = 17 are left.") == (2, "result")


def test_a_number_out_of_nowhere():
    assert located("She buys 20 pens.", "There are 45 pens in a box.", "So 16.") == (1, "number")
    # Numbers of the problem in words and small counts are none.
    assert located("She gives half of the 12 pens away, and 3 boxes.", "So 99.") == (1, "number")


def test_only_the_answer_is_wrong():
    # Nothing else is suspect: the step that first comes to the answer, or the last one.
    assert located("4 * 5 = 20", "12 + 20 = 32", "So 32 are left.") == (1, "answer")
    assert located("She buys 20 pens.", "So 20 are left.") == (1, "answer")


def test_right_samples_are_worked_solutions_too():
    steps = ("A pen and its half: 12 / 2 = 6.", "20 / 2 = 10.", "6 + 10 = 16. Then 16 + 2 = 18.")
    assert located(*steps) == (2, "result")  # 6 + 10 = 16 leads back
    steps = ("12 / 2 = 6", "20 / 2 = 10", "6 * 10 = 60")
    assert located(*steps) == (0, "result")
    assert located(*steps, references=[WORKED, "12 / 2 = 6\n20 / 2 = 10\n6 + 10 = 16"]) == (2, "result")


def test_nothing_to_compare_with():
    assert located("4 * 5 = 20", references=[]) is None
    assert located("4 * 5 = 20", references=["It is 12, or 4, or 5."]) is None


def test_labels_carry_their_reason_and_confidence():
    solution = Solution.of(PROBLEM, ["4 * 5 = 20", "12 * 20 = 240", "240 / 2 = 120"])
    labelled = reference.label_by_reference(
        solution, [WORKED], correct=False, precision=reference.Precision(before=0.5, result=0.6)
    )
    assert labelled is not None
    (before,), (wrong,), after = labelled.judgements
    assert (before.rating, before.confidence) == (1, 0.5)
    assert (wrong.rating, wrong.confidence, wrong.judge) == (-1, 0.6, "reference")
    assert wrong.note == "result: 12 * 20 = 240: no worked solution comes to this"
    assert after == ()
    # Half of the steps before a wrong answer alone come after the error: they are not labelled.
    answer = reference.label_by_reference(
        Solution.of(PROBLEM, ["12 + 20 = 32", "So 20."]), [WORKED], correct=False
    )
    assert answer is not None
    assert [len(step) for step in answer.judgements] == [0, 1]
    right = reference.label_by_reference(solution, [], correct=True)
    assert right is not None
    assert [[j.rating for j in step] for step in right.judgements] == [[1]] * 3
    assert reference.label_by_reference(solution, [], correct=False) is None
