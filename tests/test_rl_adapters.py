"""What adapters to the trainers of others share, and both adapters against stand-ins for TRL and verl."""

from __future__ import annotations

import asyncio
import importlib
import math
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_adapters_world import CONTROL, PIECES
from stepmark.errors import InputError, UsageError
from stepmark.models.scripted import ScriptedPRM
from stepmark.rl.adapters.rating import (
    NO_ZERO,
    advantages,
    batch_of_rows,
    estimator,
    problem_of,
    rate,
    token_row,
)
from stepmark.rl.batch import Batch
from stepmark.rl.credit.assignment import GRPO, Discounted, MinForm, ProcessGRPO


def decode(ids):
    return "".join("" if PIECES[i] in CONTROL else PIECES[i] for i in ids)


def ids_of(*pieces):
    return [PIECES.index(piece) for piece in pieces]


PRM = ScriptedPRM({"1 + 2": 0.5, "1 + 2 = 3": 1.0, "4": 0.0, "5": 0.5, "6": 1.0})
END = "<eos>"


def test_the_problem_is_found_in_prompts_of_every_kind() -> None:
    talk = [
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": "well"},
        {"role": "user", "content": "What is 1 + 2?"},
    ]
    blocks = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is 1 + 2?"}]}]
    for prompt in ("What is 1 + 2?", talk, blocks):
        assert problem_of(prompt, {}, None) == "What is 1 + 2?"
    assert problem_of("Answer! What is 1 + 2?", {"question": "1 + 2"}, "question") == "1 + 2"
    with pytest.raises(UsageError, match=r"\['answer'\], found 'question'"):
        problem_of("x", {"answer": "3"}, "question")
    for prompt in ("  ", [{"role": "system", "content": "Be kind."}], 3):
        with pytest.raises(InputError, match="expected the problem's text"):
            problem_of(prompt, {}, None)


def test_process_credit_of_completions_by_hand() -> None:
    # Two of one problem; the step scores are 0.5, 1, 0.5, 0 with the mean 0.5 and the deviation sqrt(0.5 / 3).
    texts = [ids_of("1", " + ", "2", "\n", "6", END), ids_of("5", "\n", "4")]
    rated = rate(["p", "p"], texts, decode, prm=PRM)
    found = advantages(rated, [0, 0], [1.0, 0.0], ProcessGRPO(), asked=True, tokens=8)
    up = 0.5 / math.sqrt(0.5 / 3)
    wanted = [[up] * 6 + [0.0] * 2, [-up] * 3 + [0.0] * 5]
    # The first step of each is 0 from the mean, so all tokens carry the second one's.
    torch.testing.assert_close(found, torch.tensor(wanted))


def test_a_completion_without_an_outcome_counts_nowhere() -> None:
    texts = [ids_of("6"), ids_of("4", "\n"), ids_of("5"), ids_of("6", END)]
    rated = rate(["p"] * 4, texts, decode, prm=PRM)
    for nothing in (None, math.nan):
        found = advantages(rated, [0, 0, 0, 1], [1.0, 0.0, nothing, 1.0], ProcessGRPO(), asked=True, tokens=2)
        pair = advantages(rated[:2], [5, 5], [1.0, 0.0], ProcessGRPO(), asked=True, tokens=2)
        assert pair.abs().max() > 0.5
        torch.testing.assert_close(found[:2], pair)
        # Nor does one that is alone in its group.
        assert not found[2:].any()
    assert not advantages(rated, [0, 1, 2, 3], [1.0] * 4, MinForm(), asked=True, tokens=2).any()


def test_blank_and_unreadable_completions_keep_their_outcome() -> None:
    texts = [ids_of(END), ids_of("4", "4"), ids_of("6"), []]
    rated = rate(["p"] * 4, texts, decode, prm=PRM)
    assert [one.scores for one in rated] == [None, None, (1.0,), None]
    assert "table" in (rated[1].refused or "")
    found = advantages(rated, [0] * 4, [1.0, 0.0, 1.0, 0.0], GRPO(), asked=True, tokens=2)
    # The empty one has no token to give credit to and is left out: 1, 0, 1 have the mean 2/3 and the deviation sqrt(1/3).
    high, low = math.sqrt(3) / 3, -2 * math.sqrt(3) / 3
    torch.testing.assert_close(found, torch.tensor([[high, 0], [low, low], [high, 0], [0, 0]]))


def test_a_row_of_token_rewards_by_hand() -> None:
    # Steps end at tokens 1, 3 and 5; the last one's score stands before the outcome, and 0 is not nothing.
    assert token_row(1.0, (1, 3, 5), (0.25, 0.0, 0.75), tokens=6) == [0, 0.25, 0, NO_ZERO, 0.75, 1.0]
    # A last step of one token is one with the step before it, and has the lower score.
    assert token_row(0.0, (1, 2), (0.5, 0.75), tokens=3) == [0, 0.5, 0]
    assert token_row(0.0, (1, 2), (0.0, 0.75), tokens=3) == [0, NO_ZERO, 0]
    assert token_row(0.0, (1, 2), (0.0, -0.75), tokens=3) == [0, -0.75, 0]
    assert token_row(1.0, (0,), (0.5,), tokens=1) == [1.0]
    assert token_row(1.0, (), (), tokens=2) == [0, 1.0]
    for ends, scores, tokens in (((3,), (0.5,), 3), ((1,), (), 2), ((), (), 0)):
        with pytest.raises(InputError, match="one score for each step"):
            token_row(1.0, ends, scores, tokens=tokens)


@st.composite
def completions(draw):
    """Outcome, ends and scores of one completion whose last step has two tokens at least, and its tokens."""
    tokens = draw(st.integers(2, 12))
    inner = draw(st.sets(st.integers(0, tokens - 3))) if tokens > 2 else set()
    ends = (*sorted(inner), tokens - 1) if draw(st.booleans()) else ()
    number = st.sampled_from([-1.0, 0.0, 0.125, 0.5, 1.0])
    return draw(number), ends, tuple(draw(number) for _ in ends), tokens


@settings(deadline=None)
@given(st.lists(completions(), min_size=2, max_size=5))
def test_a_batch_comes_back_from_its_rows(rows) -> None:
    width = max(tokens for *_, tokens in rows) + 1
    made = [token_row(outcome, ends, scores, tokens=tokens) for outcome, ends, scores, tokens in rows]
    rewards = torch.tensor([row + [0.0] * (width - len(row)) for row in made])
    mask = torch.tensor([[place < tokens for place in range(width)] for *_, tokens in rows])
    batch, kept = batch_of_rows(rewards, mask, ["p"] * len(rows))
    assert batch is not None and kept.all()
    assert batch.outcome.tolist() == [outcome for outcome, *_ in rows]
    for row, (_, ends, scores, _) in enumerate(rows):
        here = batch.has_step[row]
        assert tuple(batch.step_ends[row][here].tolist()) == ends
        assert batch.step_rewards is not None
        assert tuple(batch.step_rewards[row][here].tolist()) == scores


def test_an_estimator_gives_the_credit_of_the_batch() -> None:
    # Problems x and y lie in between one another; the last row is padding and z is alone.
    rows = [
        token_row(1.0, (1, 3), (0.9, 0.8), tokens=4),
        token_row(0.0, (2,), (0.2,), tokens=3),
        token_row(0.0, (3,), (0.4,), tokens=4),
        token_row(1.0, (), (), tokens=2),
        token_row(1.0, (1,), (0.7,), tokens=2),
        [0.0],
    ]
    rewards = torch.tensor([row + [0.0] * (5 - len(row)) for row in rows])
    mask = torch.tensor([[place < len(row) for place in range(5)] for row in rows], dtype=torch.int64)
    mask[5] = 0
    for credit in (ProcessGRPO(), MinForm(), GRPO()):
        found, returns = estimator(credit)(
            token_level_rewards=rewards, response_mask=mask, index=["x", "y", "x", "y", "z", "x"], config={}
        )
        by_hand = Batch(
            mask=mask[:4].bool(),
            groups=torch.tensor([0, 1, 0, 1]),
            outcome=torch.tensor([1.0, 0.0, 0.0, 1.0]),
            step_ends=torch.tensor([[1, 3], [2, -1], [3, -1], [-1, -1]]),
            step_rewards=torch.tensor([[0.9, 0.8], [0.2, 0], [0.4, 0], [0, 0]]),
        )
        torch.testing.assert_close(found[:4], credit.assign(by_hand).advantages)
        assert found[:4].any() and not found[4:].any() and not found[mask == 0].any()
        assert returns is found
    margins = torch.where(mask.bool(), rewards - 0.5, 0.0)
    with pytest.raises(
        UsageError, match=r"MinForm needs a PRM whose scores are probabilities, found one of -0\.5"
    ):
        estimator(MinForm())(margins, mask, ["x", "y", "x", "y", "z", "x"], config={})
    assert estimator(MinForm(centre=False))(margins, mask, ["x", "y", "x", "y", "z", "x"], config={})[0].any()
    with pytest.raises(UsageError, match="use_kl_loss"):
        estimator(ProcessGRPO())(rewards, mask, ["x"] * 6, config={"use_kl_in_reward": True})
    with pytest.raises(UsageError, match=r"rollout\.n"):
        estimator(ProcessGRPO())(rewards, mask, list("abcdef"))


def module(monkeypatch, name, **content):
    made = ModuleType(name)
    for key, value in content.items():
        setattr(made, key, value)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture
def trl(monkeypatch):
    """The adapter over a stand-in of TRL's trainer: same names, and the order of its calls."""

    class GRPOTrainer:
        def __init__(self, **options):
            self.args = options["args"]
            self.reward_funcs = options["reward_funcs"]
            self.processing_class = options["processing_class"]
            self.num_generations = 2
            self.reward_weights = torch.tensor([1.0, 0.5])
            self.model = SimpleNamespace(training=True)
            self.accelerator = SimpleNamespace(process_index=0)
            self._metrics = {"train": {name: [] for name in ("prm/score", "prm/steps", "prm/refused")}}

        def _calculate_rewards(self, inputs, prompts, completions, ids):
            given = [f(prompts=prompts, completions=completions) for f in self.reward_funcs]
            return torch.tensor(
                [[math.nan if one is None else one for one in row] for row in zip(*given, strict=True)]
            )

        def _generate_and_score_completions(self, inputs):
            ids = [row["ids"] for row in inputs]
            prompts = [row["prompt"] for row in inputs]
            self._calculate_rewards(inputs, prompts, [decode(one) for one in ids], ids)
            width = max(map(len, ids)) + 1
            mask = torch.tensor([[int(place < len(one)) for place in range(width)] for one in ids])
            return {"completion_mask": mask, "advantages": torch.zeros(len(ids)), **self.args}

    module(monkeypatch, "trl", GRPOTrainer=GRPOTrainer)
    module(monkeypatch, "accelerate.utils", gather_object=lambda rows: rows)
    monkeypatch.delitem(sys.modules, "stepmark.rl.adapters.trl", raising=False)
    yield importlib.import_module("stepmark.rl.adapters.trl")
    monkeypatch.delitem(sys.modules, "stepmark.rl.adapters.trl")


TEXTS = [ids_of("1", " + ", "2", "\n", "6", END), ids_of("5", "\n", "4")]
TALK, WROTE = ids_of("5", END, "9", "9", "6", END), [1, 1, 0, 0, 1, 1]
"""Two turns, and what came back after the first."""
ROWS = [{"prompt": "p", "ids": ids} for ids in TEXTS]


def trainer_of(trl, **options):
    usual = {
        "model": None,
        "args": {},
        "reward_funcs": [lambda **_: [1.0, None], lambda **_: [1.0, 1.0]],
        "processing_class": SimpleNamespace(decode=lambda ids, skip_special_tokens: decode(ids)),
        "credit": ProcessGRPO(process_weight=0.5),
        "prm": PRM,
    }
    return trl.ProcessGRPOTrainer(**(usual | options))


def test_trl_advantages_are_replaced_in_training_only(trl) -> None:
    trainer = trainer_of(trl)
    found = trainer._generate_and_score_completions(ROWS)["advantages"]
    # Outcomes 1.5 and 0.5 are 0.5 from their mean, with the deviation sqrt(0.5); half of that and half of the process credit.
    up = 0.5 * 0.5 / math.sqrt(0.5) + 0.5 * 0.5 / math.sqrt(0.5 / 3)
    torch.testing.assert_close(found, torch.tensor([[up] * 6 + [0.0], [-up] * 3 + [0.0] * 4]))
    assert trainer._metrics["train"] == {"prm/score": [0.5], "prm/steps": [2.0], "prm/refused": [0.0]}
    trainer.model.training = False
    assert trainer._generate_and_score_completions(ROWS)["advantages"].tolist() == [0.0, 0.0]


def test_trl_gives_tool_output_no_credit(trl) -> None:
    ids = [TALK, ids_of("4", END)]
    masks = torch.tensor([WROTE, [1, 1, 1, 1, 1, 1]])  # TRL pads it with ones
    trainer = trainer_of(trl, args={"tool_mask": masks}, credit=Discounted(gamma=1.0, scale=False))
    rows = [{"prompt": "p", "ids": one} for one in ids]
    found = trainer._generate_and_score_completions(rows)["advantages"]
    # Scores 0.5 and 1, and 0; outcomes 1.5 and 0.5. Returns 3 and 2.5, and 0.5; their mean is 2.
    turn_of = torch.tensor([[*WROTE, *[0] * (found.shape[1] - len(WROTE))]]) > 0
    first, second = found[0][turn_of[0]].unique(sorted=True).flip(0).tolist()
    assert (first, second) == pytest.approx((1.0, 0.5))
    torch.testing.assert_close(found[1], torch.tensor([-1.5, -1.5, *[0.0] * 5]))
    assert not found[0][~turn_of[0]].any()


def test_trl_reward_function(trl) -> None:
    reward = trl.prm_reward(PRM, aggregate="mean", problem="question")
    assert reward.__name__ == "prm_mean"
    talk = [[{"role": "assistant", "content": "5\n6"}], [{"role": "assistant", "content": None}]]
    assert reward(prompts=["", ""], completions=talk, question=["p", "p"], trainer_state=None) == [0.75, None]
    assert trl.prm_reward(PRM)(prompts=["p"], completions=["5\n6"]) == [0.5]
    with pytest.raises(UsageError, match="question"):
        reward(prompts=["p"], completions=["5"])


@pytest.fixture
def verl(monkeypatch):
    """The adapter over a stand-in of what it takes of verl 0.9.1."""
    registered: dict[str, object] = {}

    def register(name):
        return lambda what: registered.setdefault(name, what)

    class AgentLoopOutput:
        reward_score = None

        def __init__(self, **fields):
            self.model_fields_set = set(fields)
            self.__dict__.update(fields)

        def as_dict(self):
            assert self.reward_score is None
            return {"responses": self.response_ids}

    class SingleTurnAgentLoop:
        async def run(self, sampling_params, **row):
            return AgentLoopOutput(response_ids=TEXTS[0], extra_fields=row)

    class ToolAgentLoop:
        async def run(self, sampling_params, **row):
            return AgentLoopOutput(response_ids=TALK, response_mask=WROTE, extra_fields={})

    class NaiveRewardManager:
        def __init__(self, config, tokenizer, compute_score, reward_router_address, reward_model_tokenizer):
            self.tokenizer, self.compute_score = tokenizer, compute_score

        async def run_single(self, data):
            return {"reward_score": self.compute_score(), "reward_extra_info": {"acc": self.compute_score()}}

    loops = "verl.experimental.agent_loop"
    managers = "verl.experimental.reward_loop.reward_manager"
    module(monkeypatch, "verl")
    loop = SimpleNamespace(AgentLoopOutput=AgentLoopOutput, register=register)
    module(monkeypatch, loops, agent_loop=loop)
    module(monkeypatch, f"{loops}.single_turn_agent_loop", SingleTurnAgentLoop=SingleTurnAgentLoop)
    module(monkeypatch, f"{loops}.tool_agent_loop", ToolAgentLoop=ToolAgentLoop)
    naive = SimpleNamespace(NaiveRewardManager=NaiveRewardManager)
    module(monkeypatch, managers, register=register, naive=naive)
    module(monkeypatch, "verl.trainer.ppo.core_algos", register_adv_est=register)
    monkeypatch.delitem(sys.modules, "stepmark.rl.adapters.verl", raising=False)
    yield SimpleNamespace(adapter=importlib.import_module("stepmark.rl.adapters.verl"), registered=registered)
    monkeypatch.delitem(sys.modules, "stepmark.rl.adapters.verl")


def test_verl_rewards_go_from_the_manager_through_the_rollout_to_the_estimator(verl, monkeypatch) -> None:
    monkeypatch.setattr(verl.adapter, "_loaded", {"somewhere": PRM}.__getitem__)
    assert {
        "stepmark",
        "stepmark_single_turn",
        "stepmark-process-grpo",
    } <= verl.registered.keys()
    assert not {"stepmark-prime", "stepmark-ppo"} & verl.registered.keys()

    def manager(**kwargs):
        config = SimpleNamespace(reward={"reward_kwargs": kwargs})
        words = SimpleNamespace(decode=lambda ids, skip_special_tokens: decode(ids))
        return verl.registered["stepmark"](config, words, lambda: 1.0)

    for given_ in ({}, {"prm": "somewhere", "aggregate": "min"}):
        with pytest.raises(UsageError, match="reward_kwargs"):
            manager(**given_)

    ids = [*TEXTS[0], PIECES.index("<pad>")]
    batch = {"responses": torch.tensor(ids), "attention_mask": torch.tensor([0, 1, *[1] * 6, 0])}
    item = SimpleNamespace(
        batch=batch,
        non_tensor_batch={"raw_prompt": [{"role": "user", "content": "p"}], "extra_info": {"q": "p"}},
    )
    for more in ({}, {"problem": "q"}):
        found = asyncio.run(manager(prm="somewhere", **more).run_single([item]))
        assert found["reward_score"] == [0, 0, 0.5, 0, 1.0, 1.0]
        assert found["reward_extra_info"] == {"acc": 1.0, "outcome": 1.0, "steps": 2}

    output = asyncio.run(verl.registered["stepmark_single_turn"]().run({}, uid="u"))
    assert output.as_dict() == {"responses": TEXTS[0]}
    output.reward_score = found["reward_score"]
    assert output.as_dict()["rm_scores"].tolist() == [0, 0, 0.5, 0, 1.0, 1.0]
    assert output.reward_score == found["reward_score"]

    both = verl.adapter.StepRewardManager.assemble_rm_scores(
        SimpleNamespace(batch={"responses": torch.zeros(2, 7, dtype=torch.int64)}),
        [found["reward_score"], token_row(0.0, (1, 2), (0.5, 0.0), tokens=3)],
    )
    assert both.tolist() == [[0, 0, 0.5, 0, 1.0, 1.0, 0], [0, NO_ZERO, 0, 0, 0, 0, 0]]


def test_verl_scores_turns_where_tools_are_called(verl, monkeypatch) -> None:
    monkeypatch.setattr(verl.adapter, "_loaded", {"somewhere": PRM}.__getitem__)
    output = asyncio.run(verl.registered["stepmark_tool_agent"]().run({}))
    config = SimpleNamespace(reward={"reward_kwargs": {"prm": "somewhere"}})
    words = SimpleNamespace(decode=lambda ids, skip_special_tokens: decode(ids))
    item = SimpleNamespace(
        batch={"responses": torch.tensor(output.response_ids), "attention_mask": torch.ones(7)},
        non_tensor_batch={
            "raw_prompt": [{"role": "user", "content": "p"}],
            "tool_extra_fields": output.extra_fields,
        },
    )
    found = asyncio.run(verl.registered["stepmark"](config, words, lambda: 1.0).run_single([item]))
    # 5 scores 0.5 and 6 scores 1, whose place is before the outcome's; the tool's 99 has none.
    assert found["reward_score"] == [0, 0.5, 0, 0, 1.0, 1.0]
    assert found["reward_extra_info"]["steps"] == 2


def test_verl_reward_function(verl, monkeypatch) -> None:
    monkeypatch.setattr(verl.adapter, "_loaded", {"somewhere": PRM}.__getitem__)

    def ask(text, **more):
        return verl.adapter.prm_score(
            "gsm8k", text, "6", {"question": "p"}, prm="somewhere", unread=-1.0, **more
        )

    assert ask("5\n6") == {"score": 0.5}
    assert ask("5\n6", aggregate="mean") == {"score": 0.75}
    assert ask(" ") == {"score": -1.0}
