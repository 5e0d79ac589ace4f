"""Turns in the trainers of others: one batch of three conversations, worked out by hand, through every adapter's own way.

The conversations of one problem, `w` written by the policy and `o` an observation:

======  =========  ==============  ========  ==========================  =====================
        tokens     turn scores     outcome   returns (no discount)       less their mean, 1.05
======  =========  ==============  ========  ==========================  =====================
A       wwooww     0.75, 0.5       1         2.25, 1.5                   1.2, 0.45
B       wwoww      0.25, 0         0         0.25, 0                     -0.8, -1.05
C       ww         1.25            0         1.25                        0.2
======  =========  ==============  ========  ==========================  =====================
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stepmark
from stepmark.errors import UsageError
from stepmark.rl.adapters import verifiers
from stepmark.rl.adapters.rating import batch_of_rows, estimator, rate_turns, row_of, token_row, turn_spans

WORDS = ["look", " up", "add", " them", "7", " apples", "A=3", " B=4", "<eos>", "<tool>"]
CONTROL = {"<eos>", "<tool>"}
SCORES = {"look up": 0.75, "7 apples": 0.5, "add them": 0.25, "7": 0.0, "them": 1.25}
PRM = stepmark.ScriptedPRM(lambda problem, steps: SCORES[steps[-1]], score_kind="unbounded")
A, B, C = (
    ([0, 1, 6, 7, 4, 5], [1, 1, 0, 0, 1, 1]),
    ([2, 3, 9, 4, 8], [1, 1, 0, 1, 1]),
    ([3, 8], [1, 1]),
)
IDS, WRITTEN = [list(pair) for pair in zip(A, B, C, strict=True)]
OUTCOMES = [1.0, 0.0, 0.0]
CREDIT = stepmark.rl.Discounted(gamma=1.0, scale=False)
BY_HAND = [[1.2, 1.2, 0, 0, 0.45, 0.45], [-0.8, -0.8, 0, -1.05, -1.05, 0], [0.2, 0.2, 0, 0, 0, 0]]


def decode(ids, skip_special_tokens=True):
    return "".join(word for word in map(WORDS.__getitem__, ids) if word not in CONTROL)


def rated():
    return rate_turns(["How many?"] * 3, IDS, WRITTEN, decode, prm=PRM)


def padded(rows, width=6):
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


@given(st.lists(st.booleans()))
def test_spans_are_the_runs_of_what_was_written(written):
    spans = turn_spans(written)
    turn_of = stepmark.rl.turns.turn_of_tokens([spans], len(written))
    assert (turn_of[0] >= 0).tolist() == written
    for (_, end), (start, _) in pairwise(spans):
        assert end < start


def test_turns_are_scored_with_what_came_back_between_them():
    seen = []
    prm = stepmark.ScriptedPRM(lambda problem, steps: seen.append(steps) or 0.5)
    one, *_ = rate_turns(["How many?"], [A[0]], [A[1]], decode, prm=prm)
    assert [(step.text, step.observation) for step in one.steps] == [("look up", "A=3 B=4"), ("7 apples", "")]
    assert one.spans.ends == (1, 5)
    assert [each.scores for each in rated()] == [(0.75, 0.5), (0.25, 0.0), (1.25,)]


def test_a_turn_without_text_is_refused_and_named():
    (one,) = rate_turns(["How many?"], [[0, 1, 6, 8]], [[1, 1, 0, 1]], decode, prm=PRM)
    assert (one.steps, one.scores) == ((), None)
    assert one.refused == "turn 2 of 2 has no text"


def test_credit_of_turns_by_hand():
    found = stepmark.rl.advantages(rated(), [0] * 3, OUTCOMES, CREDIT, asked=True, tokens=6, written=WRITTEN)
    torch.testing.assert_close(found, torch.tensor(BY_HAND))


def test_the_methods_are_the_functions():
    turns = stepmark.rl.turns
    batch = turns.Turns(
        rewards=torch.tensor([[0.75, 0.5], [0.25, 0.0], [1.25, 0.0]]),
        present=torch.tensor([[True, True], [True, True], [True, False]]),
        outcome=torch.tensor(OUTCOMES),
        groups=torch.zeros(3, dtype=torch.int64),
    )
    spans = stepmark.rl.turns.turn_of_tokens([turn_spans(mask) for mask in WRITTEN], 6)
    for credit, advantages in (
        (stepmark.rl.Discounted(gamma=0.5), turns.discounted(batch, gamma=0.5)),
        (stepmark.rl.MTGRPO(coefficient=2.0), turns.mt_grpo(batch, coefficient=2.0)),
    ):
        found = stepmark.rl.advantages(
            rated(), [0] * 3, OUTCOMES, credit, asked=True, tokens=6, written=WRITTEN
        )
        torch.testing.assert_close(found, turns.over_tokens(advantages, spans))


def test_a_conversation_that_the_prm_cannot_read_is_in_no_group():
    ids, written = [*IDS, [0, 1, 6, 8]], [*WRITTEN, [1, 1, 0, 1]]
    four = rate_turns(["How many?"] * 4, ids, written, decode, prm=PRM)
    found = stepmark.rl.advantages(
        four, [0] * 4, [*OUTCOMES, 1.0], CREDIT, asked=True, tokens=6, written=written
    )
    torch.testing.assert_close(found, torch.tensor([*BY_HAND, [0.0] * 6]))


def test_rows_carry_turns_and_the_outcome_past_observations():
    # The outcome stands at the last token that was written, the last turn's score at the one before it.
    row = token_row(1.0, (1, 4), (0.75, 0.5), tokens=7, written=[1, 1, 0, 1, 1, 0, 0])
    assert row == [0, 0.75, 0, 0.5, 1.0, 0, 0]
    # A last turn of one token has no place of its own: it is one with the turn before it, and has the lower score.
    assert token_row(1.0, (1, 3), (0.75, 0.5), tokens=4, written=[1, 1, 0, 1]) == [0, 0.5, 0, 1.0]
    rows = [
        row_of(one, outcome, written=mask)
        for one, outcome, mask in zip(rated(), OUTCOMES, WRITTEN, strict=True)
    ]
    mask = padded(WRITTEN).bool()
    batch, there = batch_of_rows(padded(rows).float(), mask, [0, 0, 0])
    assert there.all()
    assert batch.outcome.tolist() == OUTCOMES
    assert batch.step_ends.tolist() == [[1, 5], [1, 4], [1, -1]]
    assert batch.step_rewards.tolist() == [[0.75, 0.5], [0.25, 0.0], [1.25, 0.0]]
    found, _ = estimator(CREDIT)(padded(rows).float(), mask, [0, 0, 0])
    torch.testing.assert_close(found, torch.tensor(BY_HAND))


# --- verifiers and prime-rl


class Message(SimpleNamespace):
    """What a message of verifiers is read by."""

    def model_dump(self, *, exclude_none, exclude):
        assert exclude_none
        return {
            name: value for name, value in vars(self).items() if value is not None and name not in exclude
        }


def node(role, content, mask=(), **more):
    message = Message(role=role, content=content, **more)
    return SimpleNamespace(message=message, sampled=bool(mask), mask=list(mask), advantages=None)


def trace(reward, *nodes, branches=None):
    listed = [node("user", "How many?"), *nodes]
    paths = [listed] if branches is None else branches(listed)
    return SimpleNamespace(
        id="t",
        nodes=listed,
        reward=reward,
        branches=[
            SimpleNamespace(index=i, nodes=path, messages=[one.message for one in path])
            for i, path in enumerate(paths)
        ],
    )


def traces():
    return [
        trace(
            1.0,
            node("assistant", "look up", [False, True, True]),
            node("tool", "A=3 B=4", tool_call_id="1"),
            node("assistant", "7 apples", [False, False, True, True]),
        ),
        trace(
            0.0,
            node("assistant", "add them", [True, True]),
            node("user", "Well?"),
            node("assistant", "7", [False, True, True]),
        ),
        trace(0.0, node("assistant", "them", [True, True])),
    ]


def test_traces_of_verifiers_get_the_credit_of_their_turns():
    made = traces()
    verifiers.assign_turns(made, CREDIT, prm=PRM)
    found = [[one.advantages for one in each.nodes if one.sampled] for each in made]
    assert found[0] == [pytest.approx([1.2, 1.2]), pytest.approx([0.45, 0.45])]
    assert found[1:] == [
        [pytest.approx([-0.8, -0.8]), pytest.approx([-1.05, -1.05])],
        [pytest.approx([0.2, 0.2])],
    ]
    assert all(one.advantages is None for each in made for one in each.nodes if not one.sampled)
    # One that is alone in its group has nothing to be compared with.
    made = traces()
    verifiers.assign_turns(made, CREDIT, prm=PRM, group=lambda each: each.reward)
    assert [one.advantages for one in made[0].nodes if one.sampled] == [[0.0, 0.0], [0.0, 0.0]]
    with pytest.raises(UsageError, match="found a turn without"):
        empty = traces()
        empty[0].nodes[1].mask = [False]
        verifiers.assign_turns(empty, CREDIT, prm=PRM)
    with pytest.raises(UsageError, match="PPO needs a critic"):
        verifiers.assign_turns(traces(), stepmark.rl.PPO(), prm=PRM)


def test_a_trace_with_an_empty_turn_gets_nothing_and_changes_nothing():
    made = [*traces(), trace(1.0, node("assistant", "look up", [True]), node("assistant", None, [True]))]
    assert verifiers.turn_scores(made, PRM)[-1] is None
    verifiers.assign_turns(made, CREDIT, prm=PRM)
    first = [one.advantages for one in made[0].nodes if one.sampled]
    assert first == [pytest.approx([1.2, 1.2]), pytest.approx([0.45, 0.45])]
    assert [one.advantages for one in made[-1].nodes if one.sampled] == [[0.0], [0.0]]


def test_turns_of_verifiers_are_read_on_their_branches():
    shared = node("assistant", "look up", [True])
    left, right = node("assistant", "7 apples", [True]), node("assistant", "7", [True])
    given_by_hand = node("assistant", "add them")  # not the model's: it is read, and has no score

    def branches(listed):
        return [[listed[0], shared, left], [listed[0], shared, given_by_hand, right]]

    made = trace(0.0, shared, left, given_by_hand, right, branches=branches)
    assert verifiers.turn_scores([made], PRM) == [(0.75, 0.5, 0.0)]
    call = [{"id": "1", "type": "function", "name": "add", "arguments": "{}"}]
    seen = []
    prm = stepmark.ScriptedPRM(lambda problem, steps: seen.append((problem, steps)) or 0.5)
    assert verifiers.turn_scores(
        [trace(0.0, node("assistant", "Now", [True], tool_calls=call, reasoning_content="Two of them."))], prm
    ) == [(0.5,)]
    assert seen == [("How many?", ("Two of them.\nNow\nadd({})",))]


def test_a_reward_of_verifiers_is_one_number_for_a_trace():
    reward = verifiers.prm_reward(PRM, unread=-1.0, aggregate="last")
    assert reward.__name__ == "prm_last"
    assert asyncio.run(reward(traces()[0])) == 0.5
    odd = stepmark.ScriptedPRM({"look up": 0.5})
    assert asyncio.run(verifiers.prm_reward(odd, unread=-1.0)(traces()[0])) == -1.0


# --- SkyRL, over a stand-in of what the adapter takes of it


@pytest.fixture
def skyrl(monkeypatch):
    registered = {}

    def module(name, **content):
        made = ModuleType(name)
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, name, made)

    module("skyrl")
    module(
        "skyrl.backends.skyrl_train.utils.ppo_utils",
        register_advantage_estimator=lambda name: lambda made: registered.setdefault(name, made),
    )
    module("skyrl.train.generators.base", GeneratorInterface=object)
    monkeypatch.delitem(sys.modules, "stepmark.rl.adapters.skyrl", raising=False)
    yield SimpleNamespace(
        adapter=importlib.import_module("stepmark.rl.adapters.skyrl"), estimators=registered
    )
    monkeypatch.delitem(sys.modules, "stepmark.rl.adapters.skyrl")


class Written:
    """A generator whose trajectories are the three."""

    def __init__(self, **more):
        self.more = more

    async def generate(self, input_batch):
        # As SkyRL's own: a row of token rewards, or one number.
        rewards = [[0.0, 0.5, 0, 0, 0, 0.5], [0.0] * 5, 0.0]
        return {"response_ids": IDS, "loss_masks": WRITTEN, "rewards": rewards, **self.more}


def test_skyrl_gets_rows_of_rewards_and_the_same_credit(skyrl):
    prompts = [[{"role": "user", "content": "How many?"}]] * 3
    batch = {"prompts": prompts, "batch_metadata": SimpleNamespace(training_phase="train")}
    generator = skyrl.adapter.TurnRewardGenerator(Written(), SimpleNamespace(decode=decode), PRM)
    output = asyncio.run(generator.generate(batch))
    assert output["rewards"][0] == [0, 0.75, 0, 0, 0.5, 1.0]
    assert output["rollout_metrics"] == {"prm/steps": 5 / 3, "prm/refused": 0.0, "prm/score": 2.75 / 5}
    # SkyRL's mask has observations too; its loss mask leaves them out later.
    width = 6
    rewards = torch.tensor([[0.0] * (width - len(row)) + row for row in output["rewards"]])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in IDS])
    loss = torch.tensor([[0] * (width - len(ids)) + ids for ids in WRITTEN])
    estimate = skyrl.estimators["stepmark-discounted"]
    config = SimpleNamespace(use_kl_in_reward=False)
    found, _ = estimate(
        token_level_rewards=rewards,
        response_mask=mask,
        index=["p"] * 3,
        config=config,
        values=None,
        gamma=1.0,
    )
    # At its own settings: a discount of 0.95 a turn, and the deviation.
    returns = [0.75 + 0.95 * 1.5, 1.5, 0.25, 0.0, 1.25]
    a, b, c, d, e = ((r - statistics.mean(returns)) / statistics.stdev(returns) for r in returns)
    rows = [[a, a, 0, 0, b, b], [c, c, 0, d, d], [e, e]]
    by_hand = torch.tensor([[0.0] * (width - len(row)) + row for row in rows])
    torch.testing.assert_close(found * loss, by_hand)
    with pytest.raises(UsageError, match="use_kl_loss"):
        estimate(rewards, mask, ["p"] * 3, SimpleNamespace(use_kl_in_reward=True))


def test_skyrl_evaluates_on_its_own_rewards_and_refuses_pieces(skyrl):
    words = SimpleNamespace(decode=decode)
    prompts = ["How many?"] * 3
    evaluated = skyrl.adapter.TurnRewardGenerator(Written(), words, PRM)
    batch = {"prompts": prompts, "batch_metadata": SimpleNamespace(training_phase="eval")}
    assert asyncio.run(evaluated.generate(batch))["rewards"][2] == 0.0
    pieces = skyrl.adapter.TurnRewardGenerator(Written(is_last_step=[True] * 3), words, PRM)
    with pytest.raises(UsageError, match="step_wise_trajectories"):
        asyncio.run(pieces.generate({"prompts": prompts}))
