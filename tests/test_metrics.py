"""Figures against brute force, known truths and numbers worked by hand."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.errors import UsageError
from stepmark.metrics.binary import expected_calibration_error, reliability, weighted_auc
from stepmark.metrics.first_error import best_threshold, first_errors
from stepmark.metrics.intervals import bootstrap, paired_bootstrap, shares, wilson
from stepmark.metrics.scaling import platt


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


@pytest.mark.parametrize("truth", [[], [-1], [0, 1], [-1, -1]])
def test_first_errors_need_both_kinds(truth):
    with pytest.raises(UsageError, match="with and without an error"):
        first_errors([[0.5, 0.5]] * len(truth), truth, 0.5)
    with pytest.raises(UsageError, match="with and without an error"):
        best_threshold([[0.5, 0.5]] * len(truth), truth)


def by_brute_force(scores, truth):
    """The highest F1 over every threshold that can make a difference."""
    values = sorted({s for row in scores for s in row})
    reached = []
    for t in [*values, values[-1] + 1]:  # between two scores nothing changes: t in (low, high] is one case
        hits = {True: [], False: []}
        for row, label in zip(scores, truth, strict=True):
            under = [i for i, s in enumerate(row) if s < t]
            hits[label >= 0].append((under[0] if under else -1) == label)
        a, b = (sum(hits[k]) / len(hits[k]) for k in (True, False))
        reached.append(2 * a * b / (a + b) if a + b else 0.0)
    return max(reached)


rows = st.lists(st.integers(-20, 20).map(lambda n: n / 10), min_size=1, max_size=4)


@given(st.lists(st.tuples(rows, st.integers(-1, 3)), min_size=1, max_size=8), rows, rows)
@settings(max_examples=200, deadline=None)
def test_the_best_threshold_is_the_best(more, one, other):
    scores = [one, other, *(row for row, _ in more)]
    truth = [-1, 0, *(min(t, len(row) - 1) for row, t in more)]
    found = best_threshold(scores, truth)
    assert found.f1 == pytest.approx(by_brute_force(scores, truth), abs=1e-12)
    assert found == first_errors(scores, truth, found.threshold)


def test_the_best_threshold_on_a_tie():
    assert best_threshold([[0.9], [0.2]], [-1, 0]).threshold == pytest.approx(0.55)  # the middle of the gap
    # 0.3 to 0.4 and 0.6 to 0.8 do equally well: the wider.
    scores, truth = [[0.3], [0.4], [0.6], [0.8]], [0, -1, 0, -1]
    assert best_threshold(scores, truth).threshold == pytest.approx(0.7)


def test_a_step_without_a_score_is_never_named_rightly():
    scores, truth = [[None, 0.1], [0.9, None]], [1, -1]
    found = first_errors(scores, truth, 0.5)
    assert (found.error_accuracy, found.correct_accuracy) == (0.0, 0.0)
    # What comes after the first error needs no score.
    assert first_errors([[0.1, None], [0.9]], [0, -1], 0.5).f1 == 1.0
    assert best_threshold([[0.1, None], [0.9]], [0, -1]).f1 == 1.0
    assert best_threshold([[None, 0.1], [0.9]], [1, -1]).f1 == 0.0


# --- intervals --------------------------------------------------------------------------------------------------------


def mean_of(values):
    column = np.asarray(values, dtype=float)
    return lambda weights: {"mean": shares(weights @ column, weights.sum(axis=1))}


def test_wilson_by_hand():
    # Wilson 1927 for 8 of 10 at 95 %: z = 1.959964; (0.8 + 0.19207) / 1.38415 -+ 1.959964 / 1.38415 * sqrt(0.016 + 0.0096036)
    found = wilson(8, 10)
    assert (found.low, found.high) == (pytest.approx(0.49016, abs=2e-5), pytest.approx(0.94331, abs=2e-5))
    assert wilson(0, 10).low == 0.0
    assert wilson(0, 10).high == pytest.approx(1.959964**2 / (10 + 1.959964**2), abs=1e-6)
    assert wilson(0, 0).value is None
    with pytest.raises(UsageError, match="0 <= successes"):
        wilson(3, 2)


def test_the_bootstrap_of_a_mean_is_the_normal_interval():
    rng = np.random.default_rng(1)
    values = rng.normal(3, 2, 4000)
    found = bootstrap(mean_of(values), range(4000), resamples=2000)["mean"]
    half = 1.96 * values.std() / 4000**0.5
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == (
        pytest.approx(values.mean() - half, abs=0.1 * half),
        pytest.approx(values.mean() + half, abs=0.1 * half),
    )


def test_items_of_one_cluster_are_drawn_together():
    # Ten problems, each item there a hundred times: no more is known than from ten items.
    values = [0.0, 1.0] * 5
    alone = bootstrap(mean_of(values), range(10), seed=3)["mean"]
    repeated = bootstrap(mean_of(np.repeat(values, 100)), np.repeat(np.arange(10), 100).tolist(), seed=3)[
        "mean"
    ]
    assert (repeated.low, repeated.high) == (alone.low, alone.high)


def test_the_bootstrap_does_not_depend_on_blocks_or_names_of_clusters(monkeypatch):
    values = np.random.default_rng(0).normal(size=50)
    whole = bootstrap(mean_of(values), range(50))["mean"]
    monkeypatch.setattr("stepmark.metrics.intervals._AT_ONCE", 170)
    named = bootstrap(mean_of(values), [f"problem {n}" for n in range(50)])["mean"]
    assert (named.low, named.high) == pytest.approx((whole.low, whole.high), rel=1e-12)
    assert bootstrap(mean_of(values), range(50), seed=1)["mean"].low != pytest.approx(whole.low, rel=1e-6)


def test_one_cluster_has_no_interval():
    # Every draw of one problem is that problem: a width of 0 would claim certainty.
    mean = mean_of([0.2, 0.9])
    interval = bootstrap(mean, ["only", "only"])["mean"]
    assert interval.value == pytest.approx(0.55)
    assert (interval.low, interval.high) == (None, None)
    difference = paired_bootstrap(mean, mean, ["only", "only"])["mean"]
    assert (difference.low, difference.high, difference.p) == (None, None, None)
    assert bootstrap(mean, ["one", "two"])["mean"].low is not None


def test_a_figure_that_is_undefined_has_no_interval():
    found = bootstrap(lambda weights: {"nothing": shares(0 * weights[:, 0], 0 * weights[:, 0])}, range(5))[
        "nothing"
    ]
    assert (found.value, found.low, found.high) == (None, None, None)


def test_the_paired_difference():
    rng = np.random.default_rng(5)
    hard = rng.normal(0, 5, 300)  # what the items share, and what a paired comparison takes away
    a, b = hard + rng.normal(0, 0.1, 300), hard + rng.normal(0.1, 0.1, 300)
    found = paired_bootstrap(mean_of(a), mean_of(b), range(300))["mean"]
    assert found.value == pytest.approx((b - a).mean())
    assert found.low is not None and found.low > 0
    assert found.p is not None and found.p < 0.01
    same = paired_bootstrap(mean_of(a), mean_of(a), range(300))["mean"]
    assert (same.value, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)


def test_the_p_value_is_uniform_under_no_difference():
    rng = np.random.default_rng(7)
    ps = []
    for trial in range(200):
        d = rng.normal(size=60)
        p = paired_bootstrap(mean_of(0 * d), mean_of(d), range(60), resamples=200, seed=trial)["mean"].p
        assert p is not None
        ps.append(p)
    # Expected 20 under 0.1; the bootstrap is a little too sure with 60 items.
    assert 8 <= sum(p < 0.1 for p in ps) <= 38


@pytest.mark.parametrize(
    ("clusters", "settings_", "said"),
    [
        ([], {}, "no items"),
        ([1], {"resamples": 5}, "100 resamples"),
        ([1], {"level": 1.0}, "confidence level"),
    ],
)
def test_what_cannot_be_resampled_is_refused(clusters, settings_, said):
    with pytest.raises(UsageError, match=said):
        bootstrap(mean_of([0.0] * len(clusters)), clusters, **settings_)


# --- scores against labels --------------------------------------------------------------------------------------------

pairs = st.lists(
    st.tuples(st.integers(0, 10).map(lambda n: n / 10), st.booleans(), st.integers(0, 3)),
    min_size=2,
    max_size=12,
)


@given(pairs)
@settings(max_examples=200, deadline=None)
def test_weights_are_repetitions(found):
    """Every figure with weights equals the figure on a list in which each item stands that often."""
    x = np.array([score for score, _, _ in found])
    y = np.array([float(label) for _, label, _ in found])
    w = np.array([[float(weight) for _, _, weight in found]])
    repeated = [(score, float(label)) for score, label, weight in found for _ in range(weight)]
    right = [score for score, label in repeated if label]
    wrong = [score for score, label in repeated if not label]
    area = weighted_auc(x, y, w)[0]
    if right and wrong:
        wins = sum((r > v) + (r == v) / 2 for r in right for v in wrong)
        assert area == pytest.approx(wins / len(right) / len(wrong))
    else:
        assert math.isnan(area)
    if repeated:
        gaps = {}
        for s, t in repeated:
            gaps.setdefault(max(round(s * 10) - 1, 0), []).append(s - t)
        expected = sum(abs(sum(gap)) for gap in gaps.values()) / len(repeated)
        assert expected_calibration_error(x, y, w, bins=10)[0] == pytest.approx(expected)


def test_a_bin_holds_its_upper_edge():
    found = reliability([0.0, 0.5, 0.5, 0.75, 1.0], [0, 1, 0, 1, 1], bins=2)
    assert [b.count for b in found] == [3, 2]  # (0, 0.5] with 0, and (0.5, 1]


def test_reliability_by_hand():
    found = reliability([0.05, 0.1, 0.55, 0.6, 0.65, 1.0], [0, 1, 1, 0, 1, 1], bins=2)
    assert [(b.low, b.high, b.count) for b in found] == [(0.0, 0.5, 2), (0.5, 1.0, 4)]
    assert [b.mean_score for b in found] == [pytest.approx(0.075), pytest.approx(0.7)]
    assert [b.share_right for b in found] == [0.5, 0.75]
    empty = reliability([0.9], [1], bins=2)[0]
    assert (empty.count, empty.mean_score, empty.share_right) == (0, None, None)
    with pytest.raises(UsageError, match="probabilities"):
        reliability([1.5], [1])


def test_draws_that_are_all_the_same_give_no_interval():
    """Eight problems of eight right: the bootstrap cannot say how far from 100 % the truth may lie."""
    problems = [f"p{n}" for n in range(8)]
    right = np.ones(8)
    found = bootstrap(lambda weights: {"share": weights @ right / weights.sum(1)}, problems)["share"]
    assert (found.value, found.low, found.high) == (1.0, None, None)
