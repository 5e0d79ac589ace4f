"""Calibration against known truths, Newton's method, brute force and the metric worked by hand."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.errors import UsageError
from stepmark.training.calibrate import best_threshold, first_errors, platt

torch.set_num_threads(1)


def drawn(n, scale, shift, spread, seed=0):
    """Logits, and labels that are 1 with probability sigmoid(scale * logit + shift)."""
    rng = random.Random(seed)
    logits = [rng.gauss(0, spread) for _ in range(n)]
    return logits, [float(rng.random() < 1 / (1 + math.exp(-(scale * x + shift)))) for x in logits]


def newton(logits, labels):
    """Platt's fit by damped Newton steps in numpy, on his targets."""
    x, y = np.array(logits), np.array(labels, dtype=float)
    right, wrong = y.sum(), len(y) - y.sum()
    t = y * (right + 1) / (right + 2) + (1 - y) / (wrong + 2)

    def loss(at):
        z = at[0] * x + at[1]
        return (np.logaddexp(0, z) - t * z).sum()

    design = np.stack([x, np.ones_like(x)])
    at = np.array([0.0, math.log((right + 1) / (wrong + 1))])
    for _ in range(100):
        p = 1 / (1 + np.exp(-(at @ design)))
        step = np.linalg.solve((design * (p * (1 - p))) @ design.T, design @ (p - t))
        size = 1.0
        while loss(at - size * step) > loss(at) and size > 1e-6:
            size /= 2
        at = at - size * step
    return at


# --- Platt scaling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "shift", "spread"), [(0.7, -1.2, 3), (2.0, 1.0, 1), (0.15, 0.5, 8)])
def test_platt_recovers_what_labels_were_drawn_from(scale, shift, spread):
    found = platt(*drawn(20_000, scale, shift, spread))
    assert found == pytest.approx((scale, shift), rel=0.08, abs=0.05)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        drawn(300, 2, 1, 1),
        drawn(50, 0.1, 0, 30),
        drawn(200, -1, 0.5, 2),
        ([1.0, 2.0, 3.0, 4.0], [0, 0.25, 1, 0.5]),
        (
            [-5.0, -3.0, 2.0, 4.0],
            [0, 0, 1, 1],
        ),  # parted without fault: no scale would be the best without targets
        ([16.0, 15.0, -16.0, -15.0, 1.0], [1, 1, 0, 0, 0]),
    ],
)
def test_platt_equals_newtons_method(logits, labels):
    assert platt(logits, labels) == pytest.approx(newton(logits, labels), rel=1e-4, abs=1e-4)


def test_platt_leaves_calibrated_logits_alone():
    # 3 of 4 right at one logit, 1 of 4 at the other, many times over: the logits already say so.
    logits = [math.log(3)] * 4000 + [-math.log(3)] * 4000
    labels = [1.0, 1.0, 1.0, 0.0] * 1000 + [1.0, 0.0, 0.0, 0.0] * 1000
    assert platt(logits, labels) == pytest.approx((1, 0), abs=2e-3)


@pytest.mark.parametrize(
    ("logits", "labels"), [([], []), ([1.0, 2.0], [1, 1]), ([1.0, 2.0], [0, 0]), ([1.0], [1.0])]
)
def test_platt_needs_both_classes(logits, labels):
    with pytest.raises(UsageError, match="right and wrong"):
        platt(logits, labels)


@pytest.mark.parametrize(
    "logits", [[1.0, 1.0, 1.0], [math.nan, 1.0, 2.0], [math.inf, 1.0, 2.0], [-math.inf, 0.0, 1.0]]
)
def test_platt_makes_no_number_of_logits_that_tell_nothing(logits):
    with pytest.raises(UsageError, match="finite logits that differ"):
        platt(logits, [0, 1, 1])


def test_platt_needs_as_many_labels():
    with pytest.raises(ValueError, match="size"):
        platt([1.0, 2.0], [0, 1, 1])


# --- first errors -----------------------------------------------------------------------------------------------------


def test_first_errors_by_hand():
    scores = [
        [0.9, 0.2, 0.9],  # found at 1, true 1
        [0.1, 0.2, 0.9],  # found at 0, true 1: the first one counts
        [0.9, 0.9, 0.9],  # none found, true 2
        [0.9, 0.9],  # none found, none there
        [0.9, 0.4, 0.1],  # found at 1, none there
        [0.8],  # none found, none there
    ]
    found = first_errors(scores, [1, 1, 2, -1, -1, -1], 0.5)
    assert found.threshold == 0.5
    assert found.error_accuracy == pytest.approx(1 / 3)
    assert found.correct_accuracy == pytest.approx(2 / 3)
    assert found.f1 == pytest.approx(2 * (1 / 3) * (2 / 3) / (1 / 3 + 2 / 3))


def test_a_step_at_the_threshold_is_no_error():
    scores, truth = [[0.5, 0.25], [0.5, 0.5]], [1, -1]
    assert first_errors(scores, truth, 0.5).f1 == 1.0
    assert first_errors(scores, truth, math.nextafter(0.5, 1)).f1 == 0.0
    assert first_errors(scores, truth, 0.25).error_accuracy == 0.0


def test_f1_is_zero_and_not_a_division_by_zero_when_both_are():
    found = first_errors([[0.9], [0.1]], [0, -1], 0.5)
    assert (found.error_accuracy, found.correct_accuracy, found.f1) == (0.0, 0.0, 0.0)


def test_f1_is_zero_when_one_is():
    found = first_errors([[0.9], [0.9]], [0, -1], 0.5)
    assert (found.error_accuracy, found.correct_accuracy, found.f1) == (0.0, 1.0, 0.0)


def test_a_solution_without_steps_has_no_error_to_find():
    assert first_errors([[], [0.1]], [-1, 0], 0.5).f1 == 1.0


@pytest.mark.parametrize("truth", [[], [-1], [0, 1], [-1, -1]])
def test_first_errors_need_both_kinds(truth):
    with pytest.raises(UsageError, match="with and without an error"):
        first_errors([[0.5, 0.5]] * len(truth), truth, 0.5)
    with pytest.raises(UsageError, match="with and without an error"):
        best_threshold([[0.5, 0.5]] * len(truth), truth)


def test_first_errors_need_as_many_truths():
    with pytest.raises(ValueError, match="zip"):
        first_errors([[0.5]], [0, -1], 0.5)


def by_brute_force(scores, truth):
    """The highest F1 in exact fractions of counts, and every threshold of the grid that reaches it."""
    reached = {}
    for n in range(1, 200):
        hits = {True: [], False: []}
        for row, t in zip(scores, truth, strict=True):
            under = [i for i, s in enumerate(row) if s < n / 200]
            hits[t >= 0].append((under[0] if under else -1) == t)
        a, b = (sum(hits[k]) / len(hits[k]) for k in (True, False))
        reached[n] = round(2 * a * b / (a + b) if a + b else 0.0, 12)
    best = max(reached.values())
    return best, [n for n, f1 in reached.items() if f1 == best]


rows = st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=1, max_size=4)


@given(st.lists(st.tuples(rows, st.integers(-1, 3)), min_size=1, max_size=8), rows, rows)
@settings(max_examples=60, deadline=None)
def test_the_best_threshold_is_the_best(more, one, other):
    scores = [one, other, *(row for row, _ in more)]
    truth = [-1, 0, *(min(t, len(row) - 1) for row, t in more)]
    best, places = by_brute_force(scores, truth)
    found = best_threshold(scores, truth)
    assert found.f1 == pytest.approx(best, abs=1e-9)
    assert round(found.threshold * 200) in places
    nearest = min(abs(n - 100) for n in places)
    assert abs(round(found.threshold * 200) - 100) == nearest
    assert found == first_errors(scores, truth, found.threshold)


def test_the_best_threshold_on_a_tie():
    # Everything between 0.2 and 0.9 parts these; 0.5 is furthest from surprises.
    assert best_threshold([[0.9], [0.2]], [-1, 0]).threshold == 0.5
    assert best_threshold([[0.9], [0.8]], [-1, 0]).threshold == pytest.approx(0.805)
    assert best_threshold([[0.2], [0.1]], [-1, 0]).threshold == pytest.approx(0.2)
    # 0.3 to 0.4 and 0.6 to 0.7 do equally well: of 0.4 and 0.605, the nearer.
    scores, truth = [[0.3], [0.4], [0.6], [0.7]], [0, -1, 0, -1]
    assert best_threshold(scores, truth).threshold == pytest.approx(0.4)
