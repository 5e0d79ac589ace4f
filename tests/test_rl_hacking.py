"""Signs of reward hacking, by hand."""

import pytest

from stepmark.records import Solution
from stepmark.rl.hacking import PROBES, Cusum, Quadrants, probe, repetition


def test_the_cumulative_sum_by_hand() -> None:
    gaps = [0, 3, 3, 0, 5]
    assert Cusum(slack=1, alarm_above=4).path(gaps) == [0, 2, 4, 3, 7]
    assert Cusum(slack=3, alarm_above=0).path(gaps) == [0, 0, 0, 0, 2]
    # Promises that fall behind what is found are no credit for later.
    assert Cusum(slack=1, alarm_above=4).path([0, -50, 3]) == [0, 0, 2]
    # An evaluation without a gap changes nothing.
    assert Cusum(slack=1, alarm_above=4).path([None, 0, 3, None, 3]) == [None, 0, 2, None, 4]


def test_process_and_outcome_crossed() -> None:
    found = Quadrants(both=2, slipped=1, lucky=1, neither=1)
    assert found.share("both", "neither").value == pytest.approx(0.6)
    assert found.share("slipped").value == pytest.approx(0.2)


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
