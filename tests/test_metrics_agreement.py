"""Krippendorff's alpha against his published table, tables worked by hand, and plain loops."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.errors import UsageError
from stepmark.metrics.agreement import krippendorff_alpha

# Krippendorff 2011, section E: four observers, twelve units, values 1 to 5. Published: nominal 0.743, ordinal 0.815.
OBSERVERS = (
    (1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3),
    (None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None),
)
UNITS = list(zip(*OBSERVERS, strict=True))


def plain(units, level):
    """By loops over pairs of ratings, with no matrix; None where chance would agree fully."""
    kept = [[r for r in unit if r is not None] for unit in units]
    kept = [unit for unit in kept if len(unit) > 1]
    values = [r for unit in kept for r in unit]

    def distance(a, b):
        if level == "nominal":
            return float(a != b)
        low, high = min(a, b), max(a, b)
        between = sum(low <= v <= high for v in values)
        return (between - (values.count(low) + values.count(high)) / 2) ** 2 if low != high else 0.0

    observed = sum(
        distance(a, b) / (len(unit) - 1)
        for unit in kept
        for (i, a), (j, b) in permutations(enumerate(unit), 2)
        if i != j
    ) / len(values)
    expected = sum(distance(a, b) for a, b in permutations(values, 2)) / (len(values) * (len(values) - 1))
    return None if expected == 0 else 1 - observed / expected


def test_krippendorffs_own_table():
    nominal = krippendorff_alpha(UNITS, "nominal")
    ordinal = krippendorff_alpha(UNITS, "ordinal")
    assert round(nominal.value.value, 3) == 0.743
    assert round(ordinal.value.value, 3) == 0.815
    # Unit 12 has one rating: 11 units and 40 ratings are pairable.
    assert (nominal.units, nominal.ratings, nominal.why) == (11, 40, None)
    assert nominal.value.low < 0.743 < nominal.value.high


def test_ordinal_by_hand():
    # (1,1) (0,0) (-1,-1) and (1,-1): n_-1 = 3, n_0 = 2, n_1 = 3, n = 8.
    # Ranks: middle of -1 at 1.5, of 0 at 4, of 1 at 6.5: d(-1,0) = d(0,1) = 6.25, d(-1,1) = 25.
    # D_o = 2*25/8; D_e = 2(3*2*6.25 + 2*3*6.25 + 3*3*25)/56 = 600/56; alpha = 1 - 6.25*56/600 = 5/12.
    opposite = [(1, 1), (0, 0), (-1, -1), (1, -1)]
    assert krippendorff_alpha(opposite, "ordinal").value.value == pytest.approx(5 / 12)
    # Nominal does not see how far apart: D_o = 2/8, D_e = 2(6 + 6 + 9)/56 = 42/56; alpha = 1 - 1/3.
    assert krippendorff_alpha(opposite).value.value == pytest.approx(2 / 3)


def test_undefined_and_extreme():
    none = krippendorff_alpha([(1, None), (None, -1), ()])
    assert (none.value.value, none.value.low, none.why, none.units) == (None, None, "no pairs", 0)
    one = krippendorff_alpha([(1, 1), (1, 1, None), (None, -1)])
    assert (one.value.value, one.why, one.units, one.ratings) == (None, "one category", 2, 4)
    assert krippendorff_alpha([(1, 1), (-1, -1)]).value.value == 1
    # Always opposite is worse than chance: D_o = 1, D_e = 2*2*2/(4*3): alpha = 1 - 12/8.
    assert krippendorff_alpha([(1, -1), (-1, 1)]).value.value == pytest.approx(-0.5)
    # One unit cannot be resampled.
    alone = krippendorff_alpha([(1, -1), (1, 1)], clusters=["a", "a"])
    assert alone.value.value is not None
    assert (alone.value.low, alone.value.high) == (None, None)


ratings = st.lists(
    st.lists(st.sampled_from([-1, 0, 1, None]), min_size=4, max_size=4), min_size=1, max_size=12
)


@given(ratings, st.sampled_from(["nominal", "ordinal"]))
def test_plain_loops_give_the_same(units, level):
    found = krippendorff_alpha(units, level, resamples=100).value.value
    pairable = [unit for unit in units if sum(r is not None for r in unit) > 1]
    truth = plain(units, level) if pairable else None
    assert found == (None if truth is None else pytest.approx(truth, abs=1e-12))


@given(ratings, st.sampled_from(["nominal", "ordinal"]), st.randoms(use_true_random=False))
def test_neither_the_order_of_annotators_nor_of_units_matters(units, level, shuffled):
    mixed = [list(unit) for unit in units]
    for unit in mixed:
        shuffled.shuffle(unit)
    shuffled.shuffle(mixed)
    before = krippendorff_alpha(units, level, resamples=100)
    after = krippendorff_alpha(mixed, level, resamples=100)
    assert (before.why, before.units, before.ratings) == (after.why, after.units, after.ratings)
    if before.why is None:
        assert after.value.value == pytest.approx(before.value.value, abs=1e-12)
        # Turned round, the order is the same order.
        turned = krippendorff_alpha(
            [[None if r is None else -r for r in u] for u in units], level, resamples=100
        )
        assert turned.value.value == pytest.approx(before.value.value, abs=1e-12)


def test_the_interval_draws_clusters():
    # Forty steps of four solutions, agreement within each the same: four clusters know less than forty units.
    draw = random.Random(0)
    units, clusters = [], []
    for solution, agree in enumerate((1.0, 0.9, 0.5, 0.2)):
        for _ in range(10):
            first = draw.choice((-1, 1))
            units.append((first, first if draw.random() < agree else -first))
            clusters.append(solution)
    alone = krippendorff_alpha(units, seed=3).value
    together = krippendorff_alpha(units, clusters=clusters, seed=3).value
    assert alone.value == together.value
    assert together.high - together.low > alone.high - alone.low
    assert krippendorff_alpha(units, clusters=clusters, seed=3).value == together


def test_an_interval_covers_the_truth():
    # Two raters, each right with probability 0.9 about a fair coin: they agree with 0.82, chance is 0.5, so alpha is 0.64.
    draw = random.Random(1)
    covered = 0
    for run in range(60):
        units = []
        for _ in range(120):
            truth = draw.choice((-1, 1))
            units.append([truth if draw.random() < 0.9 else -truth for _ in range(2)])
        found = krippendorff_alpha(units, resamples=200, seed=run).value
        covered += found.low <= 0.64 <= found.high
    assert covered >= 50


def test_refused():
    with pytest.raises(UsageError, match="'interval'"):
        krippendorff_alpha([(1, 1)], "interval")
    with pytest.raises(UsageError, match="one cluster for each of 2 units, found 1"):
        krippendorff_alpha([(1, 1), (1, -1)], clusters=["a"])
    with pytest.raises(UsageError, match="unit 1"):
        krippendorff_alpha([(1, 1), (1, float("nan"))])
    with pytest.raises(UsageError, match="100 resamples"):
        krippendorff_alpha([(1, 1), (1, -1)], resamples=10)
