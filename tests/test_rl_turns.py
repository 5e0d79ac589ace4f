"""Credit for turns against numbers worked out by hand and plain Python."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stepmark.errors import InputError, UsageError
from stepmark.rl.batch import Batch
from stepmark.rl.credit.assignment import MTGRPO, Discounted
from stepmark.rl.credit.turns import (
    Turns,
    discounted,
    mt_grpo,
    outcome_broadcast,
    over_tokens,
    turn_of_tokens,
)

D = torch.float64
NONE = math.nan


def turns(rewards: list[list[float]], outcome: list[float], groups: list[int] | None = None) -> Turns:
    table = torch.tensor(rewards, dtype=D)
    return Turns(
        rewards=table,
        present=~table.isnan(),
        outcome=torch.tensor(outcome, dtype=D),
        groups=torch.tensor(groups or [0] * len(outcome)),
    )


def close(found: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=D))


def both() -> Turns:
    """Two conversations of one problem: two turns, right; one turn, wrong."""
    return turns([[0.5, 0.0], [0.1, NONE]], [1.0, 0.0])


ROOT = 1 / math.sqrt(2)  # of two numbers, by the sample's deviation


def test_returns_by_hand():
    close(both().returns(gamma=0.5), [[0.5 + 0.5 * 1.0, 1.0], [0.1, 0.0]])


def test_the_outcome_counts_once_a_conversation():
    close(outcome_broadcast(both()), [[ROOT, ROOT], [-ROOT, 0.0]])
    close(outcome_broadcast(both(), scale=False), [[0.5, 0.5], [-0.5, 0.0]])


def test_discounted_returns_share_one_baseline():
    mean = (1.0 + 1.0 + 0.1) / 3
    close(discounted(both(), gamma=0.5, scale=False), [[1 - mean, 1 - mean], [0.1 - mean, 0.0]])


def test_mt_grpo_by_hand():
    three = turns([[1.0, 0.0, 9.0], [0.0, 1.0, 9.0]], [1.0, 0.0])  # the last turn's own reward is not read
    close(mt_grpo(three), [[2 * ROOT, 0.0, ROOT], [-2 * ROOT, 0.0, -ROOT]])
    close(mt_grpo(three, coefficient=0.0), outcome_broadcast(three).tolist())


def test_tool_output_is_left_out():
    turn_of = turn_of_tokens([[(0, 2), (4, 5)], [(1, 3)]], 6)
    assert turn_of.tolist() == [[0, 0, -1, -1, 1, -1], [-1, 0, 0, -1, -1, -1]]
    advantages = torch.tensor([[1.0, 2.0], [3.0, 9.0]])
    assert over_tokens(advantages, turn_of).tolist() == [[1, 1, 0, 0, 2, 0], [0, 3, 3, 0, 0, 0]]
    for bad in ([(0, 0)], [(0, 2), (1, 3)], [(0, 7)]):
        with pytest.raises(UsageError, match="row 0"):
            turn_of_tokens([bad], 6)


def test_bad_turns_are_named():
    with pytest.raises(InputError, match="at least one turn"):
        turns([[NONE, 1.0]], [0.0])
    with pytest.raises(InputError, match="finite"):
        turns([[math.inf]], [0.0])
    with pytest.raises(InputError, match="shape"):
        turns([[1.0]], [0.0, 1.0])


def test_no_turns_are_named():
    for shape in ((2, 0), (2,)):
        table = torch.zeros(shape, dtype=D)
        with pytest.raises(InputError, match="at least one turn"):
            Turns(
                rewards=table,
                present=table.bool(),
                outcome=torch.zeros(2),
                groups=torch.zeros(2, dtype=torch.int64),
            )


# --- against plain Python --------------------------------------------------------------------------------------

REWARDS = st.lists(
    st.lists(st.sampled_from([0.0, 0.25, 0.6, 1.0]), min_size=1, max_size=4), min_size=1, max_size=5
)


def centred(value: float, among: list[float], scale: bool) -> float:
    less = value - sum(among) / len(among)
    spread = statistics.stdev(among) if len(among) > 1 else 0.0
    return less if not scale else less / spread if spread else 0.0


@given(REWARDS, st.data(), st.sampled_from([1.0, 0.9, 0.5, 0.0]), st.booleans())
def test_every_credit_as_its_sentence_says(rewards, data, gamma, scale):
    """Each function, turn by turn; the order of conversations, other groups and padding change nothing."""
    rows = range(len(rewards))
    wins = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(rows), max_size=len(rows)))
    groups = data.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows)))
    width = max(map(len, rewards)) + 1
    table = turns([row + [NONE] * (width - len(row)) for row in rewards], wins, groups)
    earned = [[*row[:-1], row[-1] + win] for row, win in zip(rewards, wins, strict=True)]
    back = [[sum(gamma**j * r for j, r in enumerate(row[k:])) for k in range(len(row))] for row in earned]
    found = [
        outcome_broadcast(table, scale=scale),
        discounted(table, gamma=gamma, scale=scale),
        mt_grpo(table, coefficient=0.5, scale=scale),
    ]
    for row in rows:
        group = [other for other in rows if groups[other] == groups[row]]
        outcome = centred(wins[row], [wins[other] for other in group], scale)
        for k in range(width):
            if k >= len(rewards[row]):
                assert [each[row, k].item() for each in found] == [0.0] * 3
                continue
            own = 0.0
            if k < len(rewards[row]) - 1:
                inner = [rewards[other][k] for other in group if len(rewards[other]) > k + 1]
                own = centred(rewards[row][k], inner, scale)
            expected = [
                outcome,
                centred(back[row][k], [value for other in group for value in back[other]], scale),
                outcome + 0.5 * own,
            ]
            assert [each[row, k].item() for each in found] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("credit", [Discounted(), MTGRPO()])
def test_splitting_what_a_tool_wrote_changes_nothing(credit):
    """Two turns of three and two tokens, with a tool's output between them; and a batch that no PRM could read."""

    def batch(output: int) -> Batch:
        mask = torch.tensor([[True] * 3 + [False] * output + [True] * 2] * 2)
        return Batch(
            mask=mask,
            groups=torch.zeros(2, dtype=torch.int64),
            outcome=torch.tensor([1.0, 0.0]),
            step_ends=torch.tensor([[2, 4 + output]] * 2),
            step_rewards=torch.tensor([[0.2, 0.9], [0.7, 0.1]]),
        )

    short, long = batch(1), batch(3)
    assert torch.equal(credit.advantages(short)[short.mask], credit.advantages(long)[long.mask])
    assert not credit.advantages(long)[~long.mask].any()
    none = replace(short, step_ends=torch.zeros((2, 0), dtype=torch.int64), step_rewards=torch.zeros((2, 0)))
    assert not credit.advantages(none).any()
