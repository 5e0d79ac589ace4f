"""A probe: rollouts that were cut off, what each cost, and what is known of the problem alone."""

from __future__ import annotations

import json

import pytest

from rollout_worlds import PROBLEM, RIGHT, WRONG, World, solution, table
from stepmark.batching import Written
from stepmark.errors import InputError
from stepmark.labels.bayes import BayesianSearch
from stepmark.labels.consensus import side_by_side
from stepmark.labels.labelling import CUT_OFF, Rollouts, probe
from stepmark.labels.rollout import BinarySearch, EveryStep
from stepmark.labels.tree import RolloutTree
from stepmark.problems.answers import load_verifier
from stepmark.problems.code import CodeVerifier
from stepmark.records import Judgement, LabelledSolution, Solution, Step, Verdict
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


def test_a_cut_off_program_is_no_wrong_program():
    from stepmark.labels.labelling import own_verdict

    tests = json.dumps({"text": "Double.", "test_list": ["assert double(2) == 4"], "task_id": 1})
    good = "```python\ndef double(x):\n    return 2 * x\n```\n"
    with CodeVerifier(isolation="unsafe") as verifier:
        for begun, text, finish, expected in [
            ("", good + "This", "length", True),
            ("", good.removesuffix("```\n"), "length", None),
            ("", "def double(x):\n    return", "length", None),
            ("", "def double(x):\n    return", "end", False),
            (good, "This function", "length", None),
            (good, "It works.", "end", True),
        ]:
            verdict = verifier.verify(begun + text, tests)
            written = Written(text=text, finish=finish)
            assert own_verdict(begun, written, verdict).correct is expected, (begun, text, finish)


def test_a_verifier_that_does_not_say_what_it_compared_gives_no_verdict_on_a_cut():
    from stepmark.labels.labelling import own_verdict

    verdict = Verdict(outcome="match", verifier="mine")
    assert own_verdict("", Written(text="so \\boxed{7} and", finish="length"), verdict).correct is None
    assert own_verdict("", Written(text="so \\boxed{7} and", finish="end"), verdict) is verdict


def test_which_rollout_cost_what_is_known():
    world = World(
        lambda prefix, number: Written(text=(RIGHT, WRONG, "?")[number], finish="end", tokens=3 + number)
    )
    given = solution(3)
    (found,) = world.run(probe(given, 1, 3, Rollouts()))
    assert found.tokens == (3, 4, 5)
    assert [verdict.correct for verdict in found.verdicts] == [True, False, None]
    (first,) = world.run(probe(given, 1, 1, Rollouts()))
    (rest,) = world.run(probe(given, 1, 2, Rollouts(), first=1))
    assert first.joined(rest) == found
    assert (found.cost.rollouts, found.cost.tokens, found.cost.probes, found.cost.unparsed) == (3, 12, 1, 1)
    untold = World(lambda prefix, number: Written(text=RIGHT, finish="end", tokens=None if number else 3))
    (found,) = untold.run(probe(given, 1, 2, Rollouts()))
    assert found.tokens == (3, None)
    assert found.cost.tokens is None


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
        (RolloutTree(k=4, searches=1, length="words"), [("rollout-tree", 2, 4)]),
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


@pytest.mark.parametrize(
    ("root", "field"),
    [
        ([{"kind": "correctness", "judge": "x", "rating": 1}], "root.0.kind"),
        ([{"kind": "value", "judge": "x", "successes": 3, "trials": 2}], "root.0"),
        ([{"kind": "value", "judge": "x", "share": 2.0}], "root.0.share"),
        ("x", "root"),
    ],
)
def test_a_root_that_cannot_be_is_refused(tmp_path, root, field):
    file = tmp_path / "l.jsonl"
    file.write_bytes(encode_row({**to_row(labelled(())), "root": root}))
    with pytest.raises(InputError) as caught:
        list(read_labelled(file))
    assert caught.value.field == field


def test_sources_side_by_side_keep_both():
    one, two = (Judgement(kind="value", judge=name, successes=1, trials=2) for name in "ab")
    (both,) = side_by_side([labelled((one,))], [labelled((two, one))])
    assert both.root == (one, two)
