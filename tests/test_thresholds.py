"""Threshold policies: which step is taken for an error, and what is said of how the threshold was chosen."""

import pytest

from stepmark.errors import ScoreKindError, UsageError
from stepmark.evaluation.cases import Case, ratings_until
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.thresholds import ThresholdRule, policies
from stepmark.records import Solution, StepScores

NAMES = ("negative", "neutral", "positive")


def row(id, scores, *, label=-1, kind="probability", classes=None, names=NAMES):
    solution = Solution.of("p", tuple(f"step {n}" for n in range(len(scores))), id=id)
    return CaseScores(
        case=Case(id=id, labelled=ratings_until(solution, label, judge="human"), where=f"made:{id}"),
        steps=StepScores(
            scores=tuple(scores), kind=kind, classes=classes, class_names=names if classes else None
        ),
    )


def refused(id, label=0):
    made = row(id, (0.5,), label=label)
    return CaseScores(case=made.case, steps=None, refused="too long")


def of(asked, groups, *, kind="probability", threshold=None, labels=None):
    rows = tuple(one for group in groups.values() for one in group)
    sheet = Sheet(prm="made", kind=kind, rows=rows, threshold=threshold)
    return policies(asked, sheet, groups, labels or {})


def test_a_step_strictly_under_the_threshold_is_an_error():
    policy = ThresholdRule(threshold=0.5, words="")
    assert policy.found(row("a", (0.9, 0.5, 0.4, 0.1))) == 2
    assert policy.found(row("a", (0.9, 0.5))) == -1
    assert policy.found(row("a", (0.1, None))) == 0
    assert policy.found(row("a", (0.9, None, 0.1))) is None
    assert policy.found(refused("a")) is None


def test_by_classes():
    policy = ThresholdRule(threshold=None, words="")
    classes = ((0.3, 0.3, 0.4), (0.2, 0.6, 0.2), (0.4, 0.3, 0.3), None)
    assert policy.found(row("a", (0.7, 0.8, 0.6, None), classes=classes)) == 2
    assert policy.found(row("a", (0.7, 0.8), classes=classes[:2])) == -1
    assert policy.found(row("a", (0.7, None), classes=(classes[0], None))) is None
    assert policy.found(row("a", (0.5,), classes=((0.5, 0.0, 0.5),))) == -1  # a tie goes to the better class
    # Classes are read by name, not by place.
    other = row("a", (0.7, 0.6), classes=((0.4, 0.3, 0.3), (0.3, 0.3, 0.4)), names=NAMES[::-1])
    assert policy.found(other) == 1
    assert policy.found(refused("a")) is None


def test_the_prms_own():
    groups = {"a": [row("a", (0.5,))], "b": [row("b", (0.5,))]}
    found = of(None, groups, threshold=0.4)
    assert [(p.threshold, p.words) for p in found.values()] == [(0.4, "0.4, the PRM's own")] * 2
    with pytest.raises(UsageError, match=r"made has no threshold of its own; name one: `threshold` 0\.5"):
        of(None, groups)
    assert of(None, groups, threshold=0.0, kind="margin")["a"].threshold == 0.0


def test_a_number():
    groups = {"a": [row("a", (0.5,))]}
    assert of("0.25", groups)["a"] == ThresholdRule(threshold=0.25, words="0.25, given")
    assert of("1e-3", groups)["a"].threshold == 0.001
    assert of("-7", {"a": [row("a", (0.5,), kind="unbounded")]}, kind="unbounded")["a"].threshold == -7


@pytest.mark.parametrize("asked", ["nan", "inf", "-inf", "half", "", "0,5", "tuned", "Oracle", "arg max"])
def test_what_is_no_policy(asked):
    with pytest.raises(
        UsageError, match=f"`threshold` {asked}: expected a number, argmax, tuned:GROUP or oracle"
    ):
        of(asked, {"a": [row("a", (0.5,))]})


def test_argmax_by_kind():
    for kind, middle in (("probability", 0.5), ("margin", 0.0), ("log-ratio", 0.0)):
        found = of("argmax", {"a": [row("a", (0.5,), kind=kind)]}, kind=kind)
        assert found["a"].threshold == middle
        assert "argmax" in found["a"].words
    with pytest.raises(ScoreKindError, match="unbounded scores have neither"):
        of("argmax", {"a": [row("a", (0.5,), kind="unbounded")]}, kind="unbounded")


def test_argmax_by_classes():
    three = row("b", (0.7,), classes=((0.3, 0.3, 0.4),))
    # The first row was refused: the classes are found all the same.
    assert of("argmax", {"a": [refused("a"), three]})["a"].threshold is None
    # Classes of other names say nothing of which is the wrong one.
    other = row("b", (0.7,), classes=((0.3, 0.7),), names=("no", "yes"))
    assert of("argmax", {"a": [other]})["a"].threshold == 0.5


def test_tuned_and_oracle_by_hand():
    # On a, 0.2 < t <= 0.4 alone gives both; the middle is 0.3. On b, 0.6 < t <= 0.8.
    a = [row("a0", (0.2,), label=0), row("a1", (0.4,))]
    b = [row("b0", (0.6,), label=0), row("b1", (0.8,))]
    labels = {"a0": 0, "a1": -1, "b0": 0, "b1": -1}
    tuned = of("tuned:a", {"a": a, "b": b}, labels=labels)
    assert [p.threshold for p in tuned.values()] == [pytest.approx(0.3)] * 2
    oracle = of("oracle", {"a": a, "b": b}, labels=labels)
    assert [p.threshold for p in oracle.values()] == pytest.approx([0.3, 0.7])


def test_tuning_leaves_out_what_is_not_known_and_counts_what_was_not_read():
    rows = [row("a0", (0.2,), label=0), row("a1", (0.4,)), row("a2", (0.3,))]
    labels = {"a0": 0, "a1": -1, "a2": None}
    assert of("oracle", {"a": rows}, labels=labels)["a"].threshold == pytest.approx(0.3)
    # A refused solution can be found by no threshold, and is no reason to stop.
    labels |= {"a3": 0}
    assert of("oracle", {"a": [*rows, refused("a3")]}, labels=labels)["a"].threshold == pytest.approx(0.3)


def test_nothing_to_tune_on():
    a, b = [row("a0", (0.2,), label=0)], [row("b0", (0.2,))]
    labels = {"a0": 0, "b0": -1}
    with pytest.raises(UsageError, match="'gsm'; known: a, b"):
        of("tuned:gsm", {"a": a, "b": b}, labels=labels)
    with pytest.raises(UsageError, match=r"tuned:a: on 'a', .*with and without an error"):
        of("tuned:a", {"a": a, "b": b}, labels=labels)
    with pytest.raises(UsageError, match=r"oracle: on 'a', .*with and without an error"):
        of("oracle", {"a": a, "b": b}, labels=labels)
