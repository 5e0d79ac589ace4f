"""Every step, binary search and the probe against written-down worlds: labels, counts of rollouts and probes, resuming."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_worlds import NONE, OUTCOMES, PROBLEM, RIGHT, WRONG, Cut, CutStore, World, solution, table
from stepmark.backends import Completion
from stepmark.backends.replies import MemoryReplies
from stepmark.data.formats.own import to_row
from stepmark.data.labelled import read_labelled, write_labelled
from stepmark.errors import InputError, UsageError
from stepmark.labels.bayes import BayesianSearch
from stepmark.labels.labellers import label
from stepmark.labels.labelling import CUT_OFF, Labelling, Rollouts, probe
from stepmark.labels.rollout import OWN_ANSWER, BinarySearch, EveryStep, hard_label, soft_label
from stepmark.labels.rollout_tree import RolloutTree
from stepmark.problems.arithmetic_world import (
    ArithmeticPolicy,
    KnownSolution,
    SolverSettings,
    wrong_solutions,
)
from stepmark.records import Judgement, LabelledSolution, Solution, Step
from stepmark.store import encode_row
from stepmark.verifiers.base import BatchVerifier, load_verifier
from stepmark.verifiers.number import NumberVerifier


def evidence(found: Labelling) -> list[tuple[int, int] | None]:
    """(successes, trials) of each step."""
    result = []
    for own in found.labelled.judgements:
        values = [(j.successes, j.trials) for j in own if j.kind == "value"]
        assert len(values) <= 1
        result.append(values[0] if values else None)
    return result


def ratings(found: Labelling) -> list[int | None]:
    return [
        next((j.rating for j in own if j.kind == "correctness"), None) for own in found.labelled.judgements
    ]


# ---------------------------------------------------------------- every step

TABLE = {1: "nyn", 2: "nnn", 3: "ynn"}


@pytest.mark.parametrize(
    ("savings", "rollouts", "probes", "expected"),
    [
        ({}, 9, 3, [(1, 3), (0, 3), (1, 3), (0, 1)]),
        ({"stop_at_success": True}, 2 + 3 + 1, 3, [(1, 2), (0, 3), (1, 1), (0, 1)]),
        ({"stop_at_error": True}, 6, 2, [(1, 3), (0, 3), None, (0, 1)]),
        ({"stop_at_success": True, "stop_at_error": True}, 5, 2, [(1, 2), (0, 3), None, (0, 1)]),
    ],
)
def test_every_step_by_hand(savings, rollouts, probes, expected):
    world = table(TABLE)
    found = world.run(EveryStep(k=3, **savings).label, solution(4))
    assert found.first_error == 1
    assert not found.abstained
    assert evidence(found) == expected
    assert ratings(found) == [1, -1, None, None]
    assert (found.cost.rollouts, found.cost.probes, found.cost.unparsed) == (rollouts, probes, 0)
    assert len(world.asked) == len(set(world.asked)) == rollouts
    assert found.labelled.judgements[3][0].note == OWN_ANSWER
    assert found.method == "every-step" == found.labelled.judgements[0][0].judge


def test_hard_and_soft_labels_are_views():
    found = table({1: "yynu", 2: "nnnn"}).run(EveryStep(k=4).label, solution(3))
    values = [own[0] for own in found.labelled.judgements]
    assert [hard_label(value) for value in values] == [True, False, False]
    assert [soft_label(value) for value in values] == [2 / 3, 0, 0]
    nothing = Judgement(kind="value", judge="x")
    assert hard_label(nothing) is soft_label(nothing) is None
    shared = Judgement(kind="value", judge="x", share=0.25)
    assert (hard_label(shared), soft_label(shared)) == (True, 0.25)


def test_a_solution_without_an_answer_is_rolled_out_to_its_end():
    world = table({1: "yy", 2: "yn", 3: "nn"})
    found = world.run(EveryStep(k=2).label, solution(3, ending="so it goes"))
    assert evidence(found) == [(2, 2), (1, 2), (0, 2)]
    assert found.first_error == 2
    assert found.cost.rollouts == 6


@pytest.mark.parametrize("stop_at_error", [False, True])
@pytest.mark.parametrize(
    ("outcomes", "first_error", "rollouts"),
    [
        # Prefix 2 gets k more, which settle it.
        ({1: "yn", 2: "uuun", 3: "nn"}, 1, (2 + 4 + 2, 2 + 4)),
        # Prefix 2 stays unknown and could be the first bad one.
        ({1: "yn", 2: "uuuu", 3: "nn"}, None, (2 + 4 + 2, 2 + 4 + 2)),
        # Prefix 2 stays unknown, and a success after it settles it.
        ({1: "yn", 2: "uuuu", 3: "ny"}, 3, (2 + 4 + 2, 2 + 4 + 2)),
        # One verdict is enough by default.
        ({1: "yn", 2: "nu", 3: "nn"}, 1, (6, 4)),
        # Unknown after the error: no matter.
        ({1: "nn", 2: "uuuu", 3: "nn"}, 0, (2 + 4 + 2, 2)),
    ],
)
def test_unparsed_rollouts_are_in_no_count(outcomes, first_error, rollouts, stop_at_error):
    world = table(outcomes)
    found = world.run(EveryStep(k=2, stop_at_error=stop_at_error).label, solution(4))
    assert found.first_error == first_error
    assert found.abstained == (first_error is None)
    assert found.cost.rollouts == len(world.asked) == rollouts[stop_at_error]
    read = [outcomes[t] for t in outcomes if not stop_at_error or first_error is None or t <= first_error + 1]
    assert found.cost.unparsed == sum(text.count("u") for text in read)
    if first_error is None:
        assert ratings(found) == [None] * 4
        assert evidence(found) == [(1, 2), None, (0, 2), (0, 1)]


letters = st.text(alphabet="ynu", min_size=6, max_size=6)


@settings(max_examples=60, deadline=None)
@given(outcomes=st.lists(letters, min_size=1, max_size=7), ending=st.sampled_from([RIGHT, WRONG]))
def test_savings_change_no_first_error_and_agree_with_the_definition(outcomes, ending):
    world = table(dict(enumerate(outcomes, start=1)))
    solved = solution(len(outcomes) + 1, ending=ending)
    seen = set()
    for stop_at_success in (False, True):
        for stop_at_error in (False, True):
            labeller = EveryStep(k=3, stop_at_success=stop_at_success, stop_at_error=stop_at_error)
            found = world.run(labeller.label, solved)
            seen.add((found.first_error, found.abstained))
            for own, letters_of in zip(evidence(found), outcomes, strict=False):
                if own is not None and not stop_at_success:
                    asked = letters_of[:3] if set(letters_of[:3]) != {"u"} else letters_of
                    assert own == (asked.count("y"), asked.count("y") + asked.count("n"))
    # From the definition: one symbol a prefix, y good, n bad, u unknown; the unknown before a success are good.
    word = "".join(
        "y" if "y" in part else "n" if "n" in part else "u"
        for part in ((text[:3] if set(text[:3]) != {"u"} else text) for text in outcomes)
    ) + ("y" if ending == RIGHT else "n")
    bad = word.find("n")
    good_until = word.rfind("y", 0, bad if bad >= 0 else None) + 1
    unknown = "u" in word[good_until : bad if bad >= 0 else None]
    assert seen == {(None, True) if unknown else (bad, False)}


# ---------------------------------------------------------------- binary search


def test_binary_search_by_hand():
    # Steps 1 to 4 are good, 5 is the error: 4 good, 6 bad, 5 bad.
    world = table({t: "n" * 7 + "y" if t < 5 else "n" * 8 for t in range(1, 8)})
    found = world.run(BinarySearch().label, solution(8))
    assert found.first_error == 4
    assert [prefix.count("\n") for prefix in world.prefixes] == [4] * 8 + [6] * 8 + [5] * 8
    assert (found.cost.probes, found.cost.rollouts) == (3, 24)
    assert evidence(found) == [None, None, None, (1, 8), (0, 8), (0, 8), None, (0, 1)]
    assert ratings(found) == [1, 1, 1, 1, -1, None, None, None]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_binary_search_is_linear_search_on_monotone_worlds(data):
    steps = data.draw(st.integers(1, 20))
    error = data.draw(st.integers(1, steps), label="the first bad prefix")
    good = letters.filter(lambda text: "y" in text[:3])
    bad = st.text(alphabet="nu", min_size=6, max_size=6).filter(lambda text: "n" in text[:3])
    outcomes = {t: data.draw(good if t < error else bad) for t in range(1, steps)}
    world = table(outcomes)
    linear = world.run(EveryStep(k=3).label, solution(steps))
    assert linear.first_error == error - 1
    for stop_at_success in (False, True):
        labeller = BinarySearch(k=3, stop_at_success=stop_at_success)
        found = world.run(labeller.label, solution(steps))
        assert found.first_error == error - 1
        assert math.floor(math.log2(steps)) <= found.cost.probes <= math.ceil(math.log2(steps))
        assert found.cost.rollouts <= 3 * found.cost.probes
        assert ratings(found) == ratings(linear)


# ---------------------------------------------------------------- a world with known truth


def chance_every_step(known: KnownSolution, k: int) -> float:
    """That every prefix before the first error has a success of k, and the first one with it has none."""
    bad = known.first_error + 1
    good = math.prod(1 - (1 - v) ** k for v in known.values[1:bad])
    return good * ((1 - known.values[bad]) ** k if bad < len(known.labels) else 1)


def chance_binary(known: KnownSolution, k: int) -> float:
    """That every probe on the way to the first error shows the side that it is on."""
    low, high, chance = 0, len(known.labels), 1.0
    while high - low > 1:
        middle = (low + high) // 2
        failing = (1 - known.values[middle]) ** k
        if middle <= known.first_error:
            low, chance = middle, chance * (1 - failing)
        else:
            high, chance = middle, chance * failing
    return chance


@pytest.mark.parametrize("repair_rate", [0.0, 0.3])
def test_exactness_is_what_v_says(repair_rate):
    policy = ArithmeticPolicy(SolverSettings(repair_rate=repair_rate))
    cases = [one for one in wrong_solutions(24, seed=11, settings=policy.settings) if not one.repaired]
    verifier = BatchVerifier(NumberVerifier())
    shares: dict[type, list[float]] = {EveryStep: [], BinarySearch: []}
    for k in (1, 4, 12):
        for labeller, chance in ((EveryStep(k=k), chance_every_step), (BinarySearch(k=k), chance_binary)):
            found = list(label([one.solution for one in cases], labeller, policy, verifier))
            exact = [one.first_error == known.first_error for one, known in zip(found, cases, strict=True)]
            chances = [chance(known, k) for known in cases]
            # Four standard deviations of a sum of independent draws; half a case where there are none.
            margin = 4 * math.sqrt(sum(p * (1 - p) for p in chances)) + 0.5
            assert abs(sum(exact) - sum(chances)) < margin
            shares[type(labeller)].append(sum(exact) / len(cases))
            lengths = [len(known.labels) for known in cases]
            if isinstance(labeller, EveryStep):
                assert [one.cost.rollouts for one in found] == [k * (length - 1) for length in lengths]
            assert sum(one.cost.unparsed for one in found) == 0
    for exact_shares in shares.values():
        if repair_rate == 0:
            # Nothing rescues a wrong prefix: more rollouts can only help.
            assert exact_shares == sorted(exact_shares)
            assert exact_shares[-1] > 0.9
        else:
            # One lucky recovery of 12 makes a wrong prefix good: more rollouts hurt.
            assert exact_shares[-1] < exact_shares[1]


# ---------------------------------------------------------------- what all share

LABELLERS = [
    EveryStep(k=3),
    EveryStep(k=3, stop_at_success=True, stop_at_error=True, check_start=True),
    BinarySearch(k=3),
    BinarySearch(k=3, stop_at_success=True, check_start=True),
    BayesianSearch(batch=1, max_rollouts=3),
]
SAMPLE = {0: "nyn", 1: "nny", 2: "uuu" + "nny", 3: "yyn", 4: "nnn", 5: "nun"}


@pytest.mark.parametrize(
    "labeller", LABELLERS, ids=("every", "every-saving", "binary", "binary-saving", "bayes")
)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_that_was_stopped_anywhere_goes_on(labeller, recorded):
    solutions = [solution(5), solution(6), solution(3, ending=NONE.split("\n")[0])]
    whole = table(SAMPLE)
    store = MemoryReplies()
    expected = whole.label(solutions, labeller, store=store)
    assert all(isinstance(one, Labelling) for one in expected)
    # Solutions of one problem share every common prefix.
    assert len(whole.asked) == len(set(whole.asked))
    after = 0
    while True:
        after += 1
        broken, cut = table(SAMPLE), CutStore(after, recorded=recorded)
        try:
            again = broken.label(solutions, labeller, store=cut)
        except Cut:
            before = len(cut.kept)
            world = table(SAMPLE)
            assert world.label(solutions, labeller, store=cut) == expected
            assert before <= len(cut.kept) == len(store)
            # Only what the store failed to record is asked for again.
            lost = [key for key in cut.lost if key in set(whole.asked)]
            assert sorted(broken.asked + world.asked) == sorted(whole.asked + lost)
        else:
            assert again == expected
            break
    assert after == len(store) + 1


@pytest.mark.parametrize(
    "labeller", LABELLERS, ids=("every", "every-saving", "binary", "binary-saving", "bayes")
)
def test_how_many_are_in_flight_changes_nothing(labeller):
    solutions = [solution(5), solution(6), solution(3, ending=NONE.split("\n")[0]), solution(4)]
    seen = []
    for in_flight in (1, 2, 64):
        world = table(SAMPLE)
        found = world.label(solutions, labeller, store=MemoryReplies(), in_flight=in_flight)
        seen.append((found, sorted(world.asked)))
    assert seen[0] == seen[1] == seen[2]


def test_fewer_rollouts_than_verdicts_needed():
    for kind in (EveryStep, BinarySearch):
        with pytest.raises(UsageError, match="`least` 3: expected at most `k`, which is 2"):
            kind(k=2, least=3)


def test_a_prefix_that_the_policy_cannot_read_refuses_the_solution_alone():
    def write(prefix: str, number: int) -> str:
        if prefix.count("\n") == 3:
            raise InputError("too long")
        return OUTCOMES["y"]

    world = World(write)
    found = world.label([solution(5), solution(3)], EveryStep(k=2))
    assert str(found[0].error) == "too long"
    assert found[1].first_error == 2


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
    # What happens to be the last sentence before a cut is no conclusion.
    ("step\n", "So they have 7 pens.", "end", True),
    ("step\n", "So they have 7 pens.", "length", None),
    ("step\n", "So they have 7 pens.\n", "length", None),
    ("step\n", "and so on, 7 and 7", "length", None),
    # A bare answer is one only if the model ended it.
    ("", "7", "end", True),
    ("", "7", "length", None),
    ("", "", "length", None),
]


@pytest.mark.parametrize(("begun", "text", "finish", "expected"), CASES)
def test_a_rollout_that_is_cut_off_counts_only_by_an_answer_of_its_own(begun, text, finish, expected):
    world = World(lambda prefix, number: Completion(text=text, finish=finish, tokens=5))
    steps = tuple(Step(text=line, tail="\n") for line in begun.splitlines()) or (Step(text="x", tail="\n"),)
    given = Solution(problem=PROBLEM, steps=steps)
    found = world.run(probe, given, 1 if begun else 0, 1, Rollouts())
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
        found = table(outcomes).run(labeller.label, solution(4))
        assert root_of(found.labelled) == expected, labeller
        assert all(j.kind == "value" for j in found.labelled.root)
    # Also where it abstains because of them, and not where no rollout had a verdict.
    found = table({0: "nnnn"}).run(BinarySearch(k=4, check_start=True).label, solution(4))
    assert root_of(found.labelled) == [("binary-search", 0, 4)]
    found = table({0: "uu"}).run(BinarySearch(k=1, check_start=True).label, solution(4))
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
    assert len(list(write_labelled(read, "trl"))) == len(read)


@pytest.mark.parametrize("labeller", [EveryStep(k=2), BinarySearch(k=2), BayesianSearch(max_rollouts=4)])
def test_rollouts_without_text_rate_no_step(labeller):
    """A server that answers "" with finish "stop" said nothing of the steps before."""
    world = World(lambda prefix, number: Completion(text="", finish="stop"))
    labelled = world.run(labeller.label, solution(9))
    assert labelled.abstained and labelled.first_error is None
    rated = [j.rating for own in labelled.labelled.judgements for j in own if j.kind == "correctness"]
    assert rated == []
    trials = [j.trials for own in labelled.labelled.judgements[:-1] for j in own]
    assert trials == []


def test_an_empty_rollout_after_a_marked_answer_stands_by_it():
    begun = Solution(problem=PROBLEM, steps=(Step(text="3 + 4 = 7"), Step(text="The answer is **7**.")))
    world = World(lambda prefix, number: Completion(text="\n", finish="end"))
    probed = world.run(probe, begun, 2, 2, Rollouts())
    assert (probed.successes, probed.trials) == (2, 2)
    for other in ("3 + 4 = 7", "So there are 7 eggs."):
        unmarked = Solution(problem=PROBLEM, steps=(Step(text=other),))
        probed = world.run(probe, unmarked, 1, 2, Rollouts())
        assert (probed.successes, probed.trials) == (0, 0)
