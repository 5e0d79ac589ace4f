"""Credit for turns against numbers worked out by hand, and the bias of centring by turn index, exactly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stepmark.errors import InputError, UsageError
from stepmark.rl.credit.turns import (
    Turns,
    discounted,
    gigpo,
    mt_grpo,
    outcome_broadcast,
    over_tokens,
    per_turn,
    turn_of_tokens,
)

D = torch.float64
NONE = math.nan


def turns(rewards: list[list[float]], outcome: list[float], groups: list[int] | None = None) -> Turns:
    table = torch.tensor(rewards, dtype=D)
    return Turns(
        rewards=table,
        taken=~table.isnan(),
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


def test_per_turn_compares_who_took_the_turn():
    close(per_turn(both()), [[0.7, 0.0], [-0.7, 0.0]])  # returns 1.5 and 0.1; turn 2 was taken once
    close(per_turn(both(), scale=True), [[ROOT, 0.0], [-ROOT, 0.0]])


def test_mt_grpo_by_hand():
    three = turns([[1.0, 0.0, 9.0], [0.0, 1.0, 9.0]], [1.0, 0.0])  # the last turn's own reward is not read
    close(mt_grpo(three), [[2 * ROOT, 0.0, ROOT], [-2 * ROOT, 0.0, -ROOT]])
    close(mt_grpo(three, coefficient=0.0), outcome_broadcast(three).tolist())


def test_gigpo_by_hand():
    three = turns([[0.0, 0.0], [0.0, 0.0], [0.0, NONE]], [1.0, 0.0, 1.0], [0, 0, 1])
    found = gigpo(three, [["s", "a"], ["s", "b"], ["s"]], gamma=0.5, scale=False)
    # Episode: +-0.5 in group 0. Step: at s the returns are 0.5 and 0, at a and b alone; group 1 has a state s of its own.
    close(found, [[0.5 + 0.25, 0.5], [-0.5 - 0.25, -0.5], [0.0, 0.0]])
    again = gigpo(three, [["s", "s"], ["s", "b"], ["s"]], gamma=0.5, weight=2.0, scale=False)
    mean = (0.5 + 1.0 + 0.0) / 3
    close(again[:2], [[0.5 + 2 * (0.5 - mean), 0.5 + 2 * (1.0 - mean)], [-0.5 - 2 * mean, -0.5]])


def centred_by_index(given: Turns) -> Tensor:
    """The natural construction that is biased: each reward less its turn's mean, then summed to the end."""
    counts = given.taken.sum(0).clamp_min(1)
    left = torch.where(given.taken, given.known - given.known.sum(0) / counts, 0.0)
    return torch.where(given.taken, left.flip(-1).cumsum(-1).flip(-1), 0.0)


@pytest.mark.parametrize("go_on", [0.2, 0.5, 0.9])
def test_centring_by_index_hides_what_a_further_turn_earns(go_on):
    """The policy goes on with probability p at turn 1 and then earns m. The true gradient in the logit of p is p (1 - p) m.

    In a large group centring by index gives 0: it is off by minus the mean reward of the turn that was not taken by all. `per_turn` is exact.
    """
    n, m = 1000, 0.7
    going = round(n * go_on)
    given = turns([[0.0, m]] * going + [[0.0, NONE]] * (n - going), [0.0] * n)
    score = torch.tensor([1 - go_on] * going + [-go_on] * (n - going), dtype=D)  # d log pi / d logit
    true = go_on * (1 - go_on) * m
    assert (per_turn(given)[:, 0] * score).mean().item() == pytest.approx(true)
    assert (centred_by_index(given)[:, 0] * score).mean().item() == pytest.approx(0.0, abs=1e-12)
    bias = (centred_by_index(given) - per_turn(given))[:, 0]
    assert (bias[0] - bias[-1]).item() == pytest.approx(-m)  # hidden charge on going on


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
    with pytest.raises(InputError, match="one a turn"):
        gigpo(both(), [["a"], ["a"]])
