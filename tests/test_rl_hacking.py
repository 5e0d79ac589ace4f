"""Signs of reward hacking, by hand."""

import math

import numpy as np
import pytest

from stepmark.rl.hacking import ALARM_ABOVE, Quadrants, repetition, rise


def test_process_and_outcome_crossed() -> None:
    found = Quadrants(both=2, slipped=1, lucky=1, neither=1)
    assert found.share("both", "neither").value == pytest.approx(0.6)
    assert found.share("slipped").value == pytest.approx(0.2)


def test_repetition_by_hand() -> None:
    assert repetition("a b c d e") == 0
    assert repetition("") == 0
    # Runs of two: ab, ba, ab, ba: two of four stood there before.
    assert repetition("a b a b a", words=2) == 0.5


def test_the_rise_by_hand() -> None:
    # New on three problems, gone on one; the last is not known the second time.
    before = [False, False, False, True, True, False, True]
    now = [True, True, True, False, True, False, None]
    assert rise(before, now) == pytest.approx((3 - 1) / math.sqrt(4))
    assert rise(now, before) == pytest.approx(-1)
    assert rise(before, before) == 0
    assert rise([None, True], [True, None]) is None
    assert rise([], []) is None


def simulated(dice, *, count=200, learning=0.0, drift=0.0, separation=0.5, evaluations=20):
    """A run's alarm: problems grow easier by `learning` logits at each evaluation; the PRM's logit tells right from wrong, and `drift` comes on top."""
    hard = 1.5 * dice.normal(size=count) - 0.3

    def slipped(at):
        right = dice.random(count) < 1 / (1 + np.exp(-(hard + learning * at)))
        logits = separation * (2 * right - 1.0) + dice.normal(size=count) + drift * at
        return ((logits >= 0) & ~right).tolist()

    first = slipped(0)
    return next((at for at in range(1, evaluations + 1) if rise(first, slipped(at)) > ALARM_ABOVE), None)


def test_alarms_are_rare_without_drift_and_sure_with_it() -> None:
    dice = np.random.default_rng(3)
    for count in (50, 200):
        assert sum(simulated(dice, count=count) is not None for _ in range(100)) <= 5
    found = [simulated(dice, drift=0.2) for _ in range(30)]
    assert all(at is not None and at <= 10 for at in found)
    # The policy learns, and the scores rise with the right answers: whether they tell much or little.
    for separation in (0.2, 1.5):
        assert sum(simulated(dice, learning=0.05, separation=separation) is not None for _ in range(30)) <= 1
