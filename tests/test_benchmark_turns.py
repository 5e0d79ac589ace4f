"""Learning in the world of tools at equal rollouts: what turn credit gains, what naive centring loses, what a watch saves."""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is run from the root of the repository and is not installed

from benchmarks import turns  # noqa: E402
from benchmarks.tool_world import EXACT, ToolWorld  # noqa: E402
from benchmarks.turns_policy import Setting, Table, cosine, success, train  # noqa: E402

torch.set_num_threads(1)
SMALL = Setting(updates=12, training=60, held_out=12, every=12)


@pytest.fixture(scope="module")
def worlds():
    return SMALL.worlds()


def end(method, worlds, rate=32.0, updates=12):
    return train(method, replace(SMALL, updates=updates), worlds, rate=rate, seed=0)[-1]


def test_turn_rewards_teach_more_than_the_outcome(worlds):
    methods = turns.LEARNING
    start = success(Table(), worlds[1])
    names = (turns.OUTCOME, "mt_grpo, exact PRM")
    outcome, by_turn = (end(methods[name], worlds, updates=5).accuracy for name in names)
    assert start < 0.3
    assert by_turn > outcome + 0.15
    near = [cosine(methods[name], SMALL, worlds[0], seed=0) for name in names]
    assert 0.1 < near[0] < near[1] < 1


def test_a_watch_with_the_truth_saves_episodes():
    problems = ToolWorld().problems(12, seed=2)
    prm = ToolWorld().prm(problems, EXACT)
    done = {
        way: [turns.watched(one, random.Random(one.id), table=Table(), prm=grader) for one in problems]
        for way, grader in (("alone", None), ("watched", prm))
    }
    rates = {way: sum(right for right, _ in each) for way, each in done.items()}
    assert rates["watched"] > rates["alone"] + 3
    assert all(count <= one.turns + 8 for (_, count), one in zip(done["watched"], problems, strict=True))


def test_a_whole_run(capsys, monkeypatch):
    small = replace(SMALL, updates=2, training=12, held_out=4, every=1, problems=2, group=4)
    monkeypatch.setattr(turns, "Setting", lambda: small)
    assert turns.main(["--quick", "--seeds", "2", "--updates", "2"]) == 0
    printed = capsys.readouterr().out
    line = json.loads(printed.splitlines()[-1])
    assert line["benchmark"] == "turns" and line["aims"] == {"rollouts_ratio_to_outcome": 0.5}
    assert {"outcome_final_accuracy", "half_trained_alone", "hackable_runs_alarmed"} <= set(line["figures"])
    assert "| outcome_broadcast | 2 |" in printed
