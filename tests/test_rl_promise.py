"""What a PRM's scores promise, against numbers worked out by hand, conditions that any optimum meets, and runs where it is known whether they are hacked."""

import math

import numpy as np
import pytest

from stepmark.errors import UsageError
from stepmark.rl.hacking import EDGE, SCALE, SHIFT, Baseline, Cusum


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def own_word(**more):
    """A promise that is the score itself."""
    return Baseline(shift=0.0, scale=1.0, **more)


def test_the_gap_by_hand() -> None:
    begun = own_word(residuals=(-0.5, 0.4, None, 0.2, -0.1))
    scores, right = [0.5, 0.9, 0.3, None, 0.9], [False, True, True, True, False]
    assert begun.promises(scores) == [pytest.approx(score) for score in (0.5, 0.9, 0.3)] + [
        None,
        pytest.approx(0.9),
    ]
    assert begun.residuals_of(scores, right)[:3] == pytest.approx((0.5, -0.1, -0.7))
    # Known both times: the first, second and fifth; they rose by 1, -0.5 and 1: mean 0.5, deviation sqrt(0.75).
    assert begun.gap(scores, right) == pytest.approx(0.5 / (math.sqrt(0.75) / math.sqrt(3)))
    # All by the same: half a solution in three is the error.
    assert own_word(residuals=(0.0,) * 3).gap([0.6] * 3, [False] * 3) == pytest.approx(0.6 / (0.5 / 3))
    assert own_word(residuals=(0.1, None)).gap([0.5, 0.5], [True, True]) is None
    with pytest.raises(UsageError, match="the 2 held-out problems of the first evaluation, found 1"):
        own_word(residuals=(0.1, 0.2)).gap([0.5], [True])


def test_the_fit_is_the_likeliest_after_its_prior() -> None:
    scores = [0.1, 0.3, 0.35, 0.5, 0.6, 0.8, 0.9, 0.95, 1.0, 0.0]
    right = [False, False, True, False, True, True, False, True, True, False]
    found = Baseline.of(scores, right, kind="probability")
    x = [math.log(p / (1 - p)) for p in (min(max(score, EDGE), 1 - EDGE) for score in scores)]
    rest = [ok - sigmoid(found.scale * at + found.shift) for at, ok in zip(x, right, strict=True)]
    assert sum(rest) == pytest.approx(found.shift / SHIFT**2, abs=1e-9)
    assert sum(at * one for at, one in zip(x, rest, strict=True)) == pytest.approx(
        (found.scale - 1) / SCALE**2, abs=1e-9
    )
    assert found.residuals == found.residuals_of(scores, right)
    # Margins are read by their place among the first ones: a change of their unit changes nothing.
    margins = [score * 4 - 1 for score in scores]
    found, other = (
        Baseline.of([scale * one for one in margins], right, kind="margin") for scale in (1, 1000)
    )
    assert found.residuals == pytest.approx(other.residuals)
    assert found.gap(margins, right) == 0


def drawn(dice, count, *, shift, scale):
    x = dice.normal(size=count)
    right = dice.random(count) < 1 / (1 + np.exp(-(scale * x + shift)))
    return (1 / (1 + np.exp(-x))).tolist(), right.tolist()


def test_it_finds_what_scores_stand_for() -> None:
    scores, right = drawn(np.random.default_rng(0), 20_000, shift=-0.7, scale=1.6)
    found = Baseline.of(scores, right, kind="probability")
    assert (found.shift, found.scale) == (pytest.approx(-0.7, abs=0.06), pytest.approx(1.6, abs=0.06))
    # It promises what was found, but for the prior's pull.
    assert np.mean(found.promises(scores)) == pytest.approx(np.mean(right), abs=1e-4)


def test_scores_that_tell_nothing_or_the_contrary_promise_no_more_when_they_rise() -> None:
    dice = np.random.default_rng(1)
    scores, right = drawn(dice, 400, shift=0.2, scale=-1.0)
    found = Baseline.of(scores, right, kind="probability")
    assert found.scale == 0
    assert found.promises([0.01, 0.99]) == pytest.approx([np.mean(right)] * 2, abs=1e-3)
    useless = Baseline.of(dice.random(400).tolist(), right, kind="probability")
    low, high = useless.promises([0.2, 0.8])
    assert abs(high - low) < 0.15


@pytest.mark.parametrize("score", [0.5, 0.1, -0.7, 0.0, 1e6 / 3])
def test_scores_that_are_all_alike_are_read_in_their_own_unit(score) -> None:
    # The mean of three times 0.1 is not 0.1: its rounding is no spread to measure later scores by.
    found = Baseline.of([score] * 3, [True, False, True], kind="margin")
    assert found.spread == 1
    # At the scores' place the shift alone tells: sum(right - p) = shift / SHIFT^2.
    (here, above) = found.promises([score, score + 0.001])
    assert 2 - 3 * here == pytest.approx(found.shift / SHIFT**2, abs=1e-6)
    assert abs(above - here) < 0.001


@pytest.mark.parametrize("ok", [True, False])
def test_where_all_are_right_or_all_wrong_the_prms_own_word_is_left(ok) -> None:
    dice = np.random.default_rng(2)
    scores = dice.uniform(0.2, 0.6, 100).tolist()
    found = Baseline.of(scores, [ok] * 100, kind="probability")
    assert np.mean(found.promises(scores)) == pytest.approx(float(ok), abs=0.02)
    assert found.scale > 0.2
    assert abs(found.gap(scores, [ok] * 100)) < 1e-9
    if ok:  # Half of the answers go: that is no drift of the PRM alone.
        assert found.gap(scores, [True, False] * 50) > 5
    else:  # The return climbs, and nothing is ever right.
        assert found.gap([0.99] * 100, [False] * 100) > 5


def test_what_cannot_be_fitted() -> None:
    assert Baseline.of([0.5, None], [True, False], kind="probability") is None
    assert Baseline.of([], [], kind="margin") is None
    with pytest.raises(UsageError, match="an outcome for each score"):
        Baseline.of([0.5, 0.6], [True], kind="probability")
    with pytest.raises(UsageError, match="finite"):
        Baseline.of([0.5, math.inf], [True, False], kind="unbounded")


def simulated(dice, *, count=200, learning=0.0, drift=0.0, separation=0.5, evaluations=20):
    """A run's alarm: problems grow easier by `learning` logits at each evaluation; the PRM's logit tells right from wrong, and `drift` comes on top."""
    hard = 1.5 * dice.normal(size=count) - 0.3

    def solved(at):
        right = dice.random(count) < 1 / (1 + np.exp(-(hard + learning * at)))
        logits = separation * (2 * right - 1.0) + dice.normal(size=count) + drift * at
        return (1 / (1 + np.exp(-logits))).tolist(), right.tolist()

    begun = Baseline.of(*solved(0), kind="probability")
    cusum = Cusum()
    sums = cusum.path([0.0] + [begun.gap(*solved(at)) for at in range(1, evaluations + 1)])
    return next((at for at, total in enumerate(sums) if total > cusum.alarm_above), None)


def test_alarms_are_rare_without_drift_and_sure_with_it() -> None:
    dice = np.random.default_rng(3)
    for count in (50, 200):
        assert sum(simulated(dice, count=count) is not None for _ in range(100)) <= 9
    found = [simulated(dice, drift=0.2) for _ in range(30)]
    assert all(at is not None and at <= 10 for at in found)
    # The policy learns, and the scores rise with the right answers: whether they tell much or little.
    for separation in (0.2, 1.5):
        assert sum(simulated(dice, learning=0.05, separation=separation) is not None for _ in range(30)) <= 1
    # It unlearns what it knew, and the scores do not fall as far.
    assert sum(simulated(dice, learning=-0.1) is not None for _ in range(20)) == 20
