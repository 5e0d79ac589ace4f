"""What is told of held-out problems, worked out by hand; and the calibration of what was trained."""

from __future__ import annotations

import math

import pytest

from stepmark.training.measure import Graded, measure, solutions_of
from tiny_base import counted, example


def graded(problem, steps, values, scores, **more):
    return Graded(example=example(problem, list(steps), values, **more), scores=tuple(scores))


def test_figures_by_hand():
    """Four labelled steps, of which three are on their side of one half; one target of one half says nothing."""
    rows = [
        graded("p", "ab", [1.0, 0.0], [0.9, 0.2]),  # its first error is found
        graded("q", "ab", [None, 1.0], [0.7, 0.8]),  # right, and no step suspected
        graded("r", "a", [0.0], [0.6]),  # not suspected
        graded("s", "a", [0.5], [0.1]),
    ]
    found = measure(rows, loss=6.0, labels=5)
    assert (found.loss, found.labels) == (1.2, 5)
    # Right 0.9, 0.8 against wrong 0.2, 0.6: all four pairs in order.
    assert found.auc == 1.0
    # Of two wrong solutions one is named exactly, the right one is cleared: 2 (1/2) 1 / (3/2).
    assert found.first_error_f1 == pytest.approx(2 / 3)
    assert found.solutions == 3


def test_what_cannot_be_told_is_none():
    found = measure([graded("p", "a", [1.0], [0.9])], loss=0.1, labels=1)
    assert (found.auc, found.first_error_f1) == (None, None)
    nothing = measure([], loss=0.0, labels=0)
    assert math.isnan(nothing.loss)
    assert (nothing.auc, nothing.solutions) == (None, 0)


def test_outcomes_are_measured_by_the_last_step():
    rows = [
        graded("p", "ab", [1.0, None], [0.1, 0.9], outcome=True),
        graded("p", "ac", [1.0, None], [0.9, 0.4], outcome=False),
        graded("p", "ad", [1.0, None], [0.9, 0.6], outcome=False),
        graded("p", "ae", [1.0, None], [0.9, 0.6]),
    ]
    found = measure(rows, loss=1.0, labels=1, outcomes=True)
    assert found.auc == 1.0


def test_which_examples_stand_for_a_whole_solution():
    rows = [
        graded("p", "a", [1.0], [0.9]),  # others go on from it, rightly
        graded("p", "ab", [None, 1.0], [0.9, 0.8]),
        graded("p", "ac", [None, 0.0], [0.9, 0.1]),
        graded("p", "abcd", [None, None, 0.0, None], [0.9, 0.8, 0.3, 0.2]),  # cut after its error
        graded("p", "x", [None], [0.9]),  # nobody knows
        graded("p", "y", [counted(1, 4)], [0.9]),  # neither right nor wrong
        graded("q", "a", [1.0], [0.9]),  # of another problem
        graded("q", "yz", [None, 1.0], [None, 0.9]),  # a step has no score
    ]
    scores, truth = solutions_of(rows)
    assert list(zip(scores, truth, strict=True)) == [
        ([0.9, 0.8], -1),
        ([0.9, 0.1], 1),
        ([0.9, 0.8, 0.3], 2),
        ([0.9], -1),
    ]
