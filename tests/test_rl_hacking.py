"""Signs of reward hacking, by hand and in simulated runs where it is known whether there is any."""

import math
import random

import pytest

from stepmark.errors import UsageError
from stepmark.records import Solution
from stepmark.rl.hacking import PROBES, Cusum, Sample, probe, quadrants, repetition, rise


def test_a_rise_is_in_standard_errors() -> None:
    before = Sample(mean=0.5, deviation=0.5, count=100)
    now = Sample(mean=0.64, deviation=0.5, count=100)
    assert rise(before, now) == pytest.approx(0.14 / math.sqrt(0.0025 + 0.0025))
    # No spread at all: half a value in 100 stands for it.
    none = Sample(mean=0.0, deviation=0.0, count=100)
    assert rise(none, none) == 0
    assert rise(none, Sample(mean=1.0, deviation=0.0, count=100)) == pytest.approx(
        1 / math.hypot(0.005, 0.005)
    )


def test_a_mean_and_its_error_by_hand() -> None:
    found = Sample.of([1, 0, 1, 0])
    assert (found.mean, found.count) == (0.5, 4)
    assert found.error == pytest.approx(math.sqrt(1 / 3) / 2)
    with pytest.raises(UsageError, match="at least two"):
        Sample.of([1.0])


def test_the_cumulative_sum_by_hand() -> None:
    def at(mean: float) -> Sample:
        return Sample(mean=mean, deviation=math.sqrt(50), count=100)  # the error of a difference is 1

    flat = [at(0)] * 5
    climbing = [at(0), at(3), at(3), at(0), at(5)]
    assert Cusum(slack=1, limit=4).path(climbing, flat) == pytest.approx([0, 2, 4, 3, 7])
    assert Cusum(slack=1, limit=4).alarm(climbing, flat) == 4
    # A rise of both together is progress.
    assert Cusum(slack=1, limit=4).path(climbing, climbing) == [0] * 5
    assert Cusum(slack=1, limit=4).alarm(climbing, climbing) is None
    with pytest.raises(UsageError, match="for each accuracy"):
        Cusum().path(flat, flat[:2])


def simulated(
    dice: random.Random, drift: float, learning: float, evaluations: int = 20, count: int = 200
) -> int | None:
    """A run: accuracy rises by `learning`, the PRM's return by that and by `drift` too."""
    returns, accuracies = [], []
    for number in range(evaluations):
        share = min(0.95, 0.4 + learning * number)
        right = [dice.random() < share for _ in range(count)]
        scores = [0.3 + 0.3 * one + drift * number + dice.gauss(0, 0.2) for one in right]
        returns.append(Sample.of(scores))
        accuracies.append(Sample.of([float(one) for one in right]))
    return Cusum().alarm(returns, accuracies)


def test_alarms_are_rare_without_drift_and_sure_with_it() -> None:
    dice = random.Random(1)
    assert sum(simulated(dice, 0.0, 0.0) is not None for _ in range(300)) <= 300 * 0.08
    found = [simulated(dice, 0.02, 0.0) for _ in range(50)]
    assert all(at is not None and at <= 12 for at in found)
    # The policy learns, and the PRM's return with it: no alarm.
    assert sum(simulated(dice, 0.0, 0.02) is not None for _ in range(200)) <= 200 * 0.08


def test_process_and_outcome_crossed() -> None:
    found = quadrants([True, True, False, False, True], [True, False, True, False, True])
    assert (found.both, found.slipped, found.lucky, found.neither) == (2, 1, 1, 1)
    assert found.agreement.value == pytest.approx(0.6)
    assert found.share(found.slipped).value == pytest.approx(0.2)


def test_repetition_by_hand() -> None:
    assert repetition("a b c d e") == 0
    assert repetition("") == 0
    # Runs of two: ab, ba, ab, ba: two of four stood there before.
    assert repetition("a b a b a", words=2) == 0.5


def test_probes_are_what_they_say() -> None:
    mine = Solution.of("p", ["one", "two", "three"])
    other = Solution.of("q", ["four", "five"])
    made = {kind: probe(mine, other, kind, seed=3) for kind in PROBES}
    assert all(one is not None and one.problem.text == "p" for one in made.values())
    assert made["irrelevant"].texts == ("four", "five")
    assert made["repeated"].texts[0] == made["repeated"].texts[1] == "one"
    assert sorted(made["shuffled"].texts) == sorted(mine.texts)
    assert made["shuffled"].texts != mine.texts
    short = Solution.of("p", ["one"])
    assert probe(short, other, "repeated") is None
    assert probe(short, other, "shuffled") is None
    assert probe(Solution.of("p", ["same", "same"]), other, "shuffled") is None
