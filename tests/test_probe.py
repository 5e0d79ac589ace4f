"""A probe: rollouts that were cut off, what each cost, and what is known of the problem alone."""

from __future__ import annotations

import pytest

from rollout_worlds import PROBLEM, World, solution, table
from stepmark.batching import Written
from stepmark.labels.bayes import BayesianSearch
from stepmark.labels.labelling import CUT_OFF, Rollouts, probe
from stepmark.labels.rollout import BinarySearch, EveryStep
from stepmark.labels.tree import RolloutTree
from stepmark.problems.answers import load_verifier
from stepmark.records import Judgement, LabelledSolution, Solution, Step
from stepmark.solutions.interchange import read_labelled, to_row, write_labelled
from stepmark.solutions.interchange.rows import Losses, Writing
from stepmark.store import encode_row

# Each: the prefix, what is written, why it ended, and whether 7 is its answer: True, False, or None for no verdict.
BOXED, SAID = "so \\boxed{7}\n", "The answer is 7.\n"
CASES = [
    # The prefix names the answer.
    (BOXED, "", "end", True),
    (BOXED, "That is all.", "stop", True),
    (BOXED, "", "length", None),
    (BOXED, "And now let us see whether", "length", None),
    (BOXED, "No: \\boxed{9}. And", "length", False),
    (BOXED, "No: \\boxed{9}. And that is all.", "end", False),
    (BOXED, "Yes: \\boxed{7}, which", "length", True),
    (SAID, "Or is it", "length", None),
    (SAID, "No, the answer is 9.\nFor", "length", False),
    # The prefix names none.
    ("step\n", "so \\boxed{7}", "length", True),
    ("step\n", "so \\boxed{7", "length", None),
    ("step\n", "The answer is 7.\n", "length", True),
    ("step\n", "The answer is 7", "length", None),
    ("step\n", "The answer is 7.", "length", None),
    ("step\n", "The answer is 7", "end", True),
    ("step\n", "and so on, 7 and 7", "length", None),
    # A bare answer is one only if the model ended it.
    ("", "7", "end", True),
    ("", "7", "length", None),
    ("", "", "length", None),
]


@pytest.mark.parametrize(("begun", "text", "finish", "expected"), CASES)
def test_a_rollout_that_is_cut_off_counts_only_by_an_answer_of_its_own(begun, text, finish, expected):
    world = World(lambda prefix, number: Written(text=text, finish=finish, tokens=5))
    steps = tuple(Step(text=line, tail="\n") for line in begun.splitlines()) or (Step(text="x", tail="\n"),)
    given = Solution(problem=PROBLEM, steps=steps)
    (found,) = world.run(probe(given, 1 if begun else 0, 1, Rollouts()))
    (verdict,) = found.verdicts
    assert verdict.correct is expected
    assert (found.successes, found.trials) == (int(expected is True), int(expected is not None))
    assert found.cost.unparsed == (expected is None)
    with load_verifier("number") as verifier:
        if expected is None and verifier.verify(begun + text or " ", "7").correct is not None:
            assert verdict.note == CUT_OFF


# ---------------------------------------------------------------- the problem alone


def root_of(labelled: LabelledSolution) -> list[tuple[str, int | None, int | None]]:
    return [(j.judge, j.successes, j.trials) for j in labelled.root]


def test_rollouts_of_the_problem_alone_have_a_place():
    outcomes = {0: "ynny", 1: "ynyy", 2: "nnnn", 3: "nnnn"}
    for labeller, expected in [
        (BinarySearch(k=4, check_start=True), [("binary-search", 2, 4)]),
        (BinarySearch(k=4), []),
        (EveryStep(k=4, check_start=True), [("every-step", 2, 4)]),
        (EveryStep(k=4), []),
        (RolloutTree(k=4, searches=1), [("rollout-tree", 2, 4)]),
        (BayesianSearch(root=3, max_rollouts=3, at_budget="guess"), [("bayes", 1, 3)]),
    ]:
        (found,) = table(outcomes).run(labeller.label(solution(4)))
        assert root_of(found.labelled) == expected, labeller
        assert all(j.kind == "value" for j in found.labelled.root)
    # Also where it abstains because of them, and not where no rollout had a verdict.
    (found,) = table({0: "nnnn"}).run(BinarySearch(k=4, check_start=True).label(solution(4)))
    assert root_of(found.labelled) == [("binary-search", 0, 4)]
    (found,) = table({0: "uu"}).run(BinarySearch(k=1, check_start=True).label(solution(4)))
    assert found.labelled.root == ()


def labelled(root: tuple[Judgement, ...]) -> LabelledSolution:
    return LabelledSolution(
        solution=Solution.of("p", ["a"]),
        judgements=((Judgement(kind="correctness", judge="x", rating=1),),),
        root=root,
    )


def test_the_file_format_holds_it_and_old_files_stay_readable(tmp_path):
    one = Judgement(kind="value", judge="bayes", successes=2, trials=5)
    file = tmp_path / "l.jsonl"
    rows = [to_row(labelled((one,))), to_row(labelled(()))]
    assert "root" not in rows[1]
    file.write_bytes(b"".join(map(encode_row, rows)))
    read = list(read_labelled(file))
    assert [row.labelled for row in read] == [labelled((one,)), labelled(())]
    assert next(iter(write_labelled(read, "stepmark-labels")))["root"] == [
        {"kind": "value", "judge": "bayes", "successes": 2, "trials": 5}
    ]
    losses = Losses()
    list(write_labelled(read, "trl", Writing(), losses))
    assert losses.facts()["lost"]["rollouts of the problem alone (root) are left out"] == 1
