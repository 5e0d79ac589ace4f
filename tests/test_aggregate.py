"""Aggregates against hand-worked numbers and exact arithmetic."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.errors import InputError, ScoreKindError, UnknownNameError
from stepmark.metrics.aggregate import AGGREGATES, aggregate, allowed, resolve_aggregate

probabilities = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("product", 0.36),  # 0.9 * 0.5 * 0.8
        ("min", 0.5),
        ("mean", 2.2 / 3),
        ("last", 0.8),
        ("max", 0.9),
        ("sum-logit", math.log(9) + math.log(1) + math.log(4)),  # odds 9, 1 and 4
        # softmax(-s / 0.1): e^-9, e^-5, e^-8 over their sum
        (
            "softmin",
            (math.exp(-9) * 0.9 + math.exp(-5) * 0.5 + math.exp(-8) * 0.8)
            / (math.exp(-9) + math.exp(-5) + math.exp(-8)),
        ),
    ],
)
def test_hand_worked(how, expected):
    assert aggregate([0.9, 0.5, 0.8], how) == pytest.approx(expected, rel=1e-12)


@given(probabilities, st.sampled_from(["min", "mean", "last", "max", "softmin"]))
def test_between_the_smallest_and_the_largest(scores, how):
    assert min(scores) <= aggregate(scores, how) <= max(scores)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=300))
def test_product_is_the_exact_rational_product(scores):
    exact = math.prod((Fraction(s) for s in scores), start=Fraction(1))
    found = Fraction(aggregate(scores, "product"))
    # 300 roundings of half a unit in the last place; below the normal range the unit itself is 2^-1074.
    assert abs(found - exact) <= exact * Fraction(300, 2**53) + Fraction(1, 2**1074)


def test_product_where_it_leaves_the_range_of_a_float():
    assert aggregate([0.5] * 1074, "product") == 2.0**-1074
    assert aggregate([0.5] * 2000, "product") == math.exp(2000 * math.log(0.5)) == 0.0
    assert aggregate([2.0**-600, 2.0**-470], "product") == 2.0**-1070


@given(probabilities, st.randoms(use_true_random=False), st.sampled_from(["product", "min", "mean", "max"]))
def test_order_does_not_matter_to_the_last_bit(scores, random, how):
    shuffled = list(scores)
    random.shuffle(shuffled)
    assert aggregate(shuffled, how) == aggregate(scores, how)


@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=20))
def test_sum_logit_mirrors(scores):
    mirrored = [1 - s for s in scores]
    assert aggregate(mirrored, "sum-logit") == pytest.approx(-aggregate(scores, "sum-logit"), abs=1e-9)


def test_sum_logit_at_certainty():
    assert aggregate([0.3, 0.0], "sum-logit") == -math.inf
    assert aggregate([0.3, 1.0], "sum-logit") == math.inf
    with pytest.raises(InputError, match=r"step 2 \(0-based\).*exactly 0.*step 1 of exactly 1.*float32"):
        aggregate([0.3, 1.0, 0.0], "sum-logit")


def test_sum_logit_near_one_keeps_its_digits():
    p = 1 - 2.0**-40  # log(p / (1 - p)) = log(2^40 - 1)
    assert aggregate([p], "sum-logit") == pytest.approx(math.log(2**40 - 1), rel=1e-14)


@pytest.mark.parametrize("how", AGGREGATES)
def test_no_scores(how):
    with pytest.raises(InputError, match="no scores"):
        aggregate([], how)


@pytest.mark.parametrize("how", [h for h in AGGREGATES if h != "last"])
def test_a_step_without_a_score_is_named(how):
    with pytest.raises(InputError, match=r"step 1 \(0-based\) of 3 has no score"):
        aggregate([0.1, None, 0.2], how)


def test_last_needs_only_the_last():
    assert aggregate([None, None, 0.25], "last") == 0.25
    with pytest.raises(InputError, match=r"step 2 \(0-based\) of 3"):
        aggregate([0.1, 0.2, None], "last")


@pytest.mark.parametrize(
    ("scores", "kind", "found"),
    [
        ([0.5, math.nan], "probability", "step 1 .*nan"),
        ([1.0001], "probability", r"step 0 .*1\.0001.*\[0, 1\]"),
        ([-0.1], "probability", r"-0\.1"),
        ([0.5, -1.5], "margin", r"step 1 .*-1\.5.*\[-1, 1\]"),
        ([math.inf], "log-ratio", "finite"),
        ([-math.inf], "unbounded", "finite"),
        (["0.5"], "probability", "'0.5'"),
        ([True], "probability", "True"),
    ],
)
def test_bad_scores_are_refused(scores, kind, found):
    with pytest.raises(InputError, match=found):
        aggregate(scores, "min", kind=kind)


def test_last_does_not_hide_a_bad_score_before_it():
    with pytest.raises(InputError, match="step 0"):
        aggregate([math.nan, 0.5], "last")


@pytest.mark.parametrize("kind", ["margin", "log-ratio", "unbounded"])
@pytest.mark.parametrize("how", ["product", "sum-logit"])
def test_products_and_logits_are_for_probabilities(how, kind):
    with pytest.raises(ScoreKindError, match=f"{how}.*{kind}"):
        aggregate([0.5], how, kind=kind)
    assert how not in allowed(kind)


@pytest.mark.parametrize("how", ["mean", "softmin"])
def test_unbounded_scores_have_no_scale(how):
    with pytest.raises(ScoreKindError, match="order"):
        aggregate([0.5], how, kind="unbounded")


def test_allowed():
    assert allowed("probability") == AGGREGATES
    assert allowed("margin") == allowed("log-ratio") == ("min", "mean", "last", "max", "softmin")
    assert allowed("unbounded") == ("min", "last", "max")


def test_unknown_name():
    with pytest.raises(UnknownNameError, match="Did you mean 'product'"):
        aggregate([0.5], "prodcut")


def test_the_own_aggregate_of_a_prm_is_used_unless_one_is_set():
    assert resolve_aggregate(None, "min", "probability") == "min"
    assert resolve_aggregate("last", "min", "probability") == "last"
    with pytest.raises(ScoreKindError):
        resolve_aggregate("product", "min", "log-ratio")
    with pytest.raises(UnknownNameError, match="Did you mean 'product'"):
        resolve_aggregate("prodcut", "min", "probability")
