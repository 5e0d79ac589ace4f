"""The benchmark of feedback: what its judge says, and that an agent which hears the truth does better."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # where benchmarks lie

torch = pytest.importorskip("torch")

from benchmarks.feedback import CRITERIA, RULED_OUT, judge_of, reason  # noqa: E402
from benchmarks.tool_world import ACTIONS, EXACT, ToolWorld  # noqa: E402
from benchmarks.turns import watched  # noqa: E402
from benchmarks.turns_policy import Table  # noqa: E402


def test_a_sentence_about_a_wrong_turn_rules_it_out_and_leaves_what_is_due():
    for problem in ToolWorld().problems(12, seed=7):
        states = {problem.start}
        for _ in range(4):
            states |= {problem.act(state, a) for state in states for a in ACTIONS if not state.answered}
        for state in states:
            if state.answered:
                continue
            due = problem.due(state)
            for action in {*ACTIONS} - {due}:
                criterion, sentence = reason(problem, state, action)
                assert criterion in CRITERIA
                assert action in RULED_OUT[sentence] and due not in RULED_OUT[sentence]
            assert due in RULED_OUT[reason(problem, state, due)[1]]  # the judge that errs


def test_true_sentences_help():
    problems = ToolWorld().problems(12, seed=2)
    prm, judge = ToolWorld().prm(problems, EXACT), judge_of(problems, EXACT)

    def rate(**ways):
        runs = [
            watched(
                one, random.Random(f"{one.id} {seed}"), table=Table(), prm=prm, ruled_out=RULED_OUT, **ways
            )
            for one in problems
            for seed in range(2)
        ]
        assert all(count <= one.turns + 8 for (_, count), one in zip(runs[::2], problems, strict=True))
        return sum(right for right, _ in runs)

    assert rate(judge=judge, doubt=0.0) > rate() + 3
