"""Conversations through SkyRL's own code with stepmark's parts in it, in SkyRL's environment: `python skyrl_rewarding.py JOB.json`.

The rollout is made up; what SkyRL does with it is real: its batch tensors and its computing of advantages by the registered estimators.
"""

import asyncio
import json
import sys
import typing
from pathlib import Path
from types import SimpleNamespace

import typing_extensions

# ruff: noqa: E402 - SkyRL 0.3.0 is for Python 3.12, where pydantic reads typing's own.
typing.TypedDict = typing_extensions.TypedDict

import numpy as np
import torch
from skyrl.backends.skyrl_train.utils.ppo_utils import compute_advantages_and_returns
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.generators.base import BatchMetadata, GeneratorInterface

from rl_adapters_world import CONTROL, PIECES, steps_prm
from stepmark.rl.adapters import skyrl

job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


class MadeUp(GeneratorInterface):
    """The conversations of the job; rewards as a number."""

    async def generate(self, input_batch):
        return {
            "prompt_token_ids": [[1, 2]] * len(job["ids"]),
            "response_ids": job["ids"],
            "loss_masks": job["written"],
            "rewards": job["outcomes"],
            "stop_reasons": ["stop"] * len(job["ids"]),
            "rollout_metrics": {},
            "rollout_logprobs": None,
        }


def decode(ids, skip_special_tokens):
    return "".join("" if PIECES[i] in CONTROL else PIECES[i] for i in ids)


generator = skyrl.TurnRewardGenerator(
    MadeUp(), SimpleNamespace(decode=decode), steps_prm(), problem="question"
)
output = asyncio.run(
    generator.generate(
        {
            "prompts": [[{"role": "user", "content": "?"}]] * len(job["ids"]),
            "env_extras": [{"question": problem} for problem in job["problems"]],
            "batch_metadata": BatchMetadata(global_step=1, training_phase="train"),
        }
    )
)
tensors = convert_prompts_responses_to_batch_tensors(
    SimpleNamespace(pad_token_id=PIECES.index("<pad>")),
    output["prompt_token_ids"],
    output["response_ids"],
    output["rewards"],
    output["loss_masks"],
)
_, _, response_mask, rewards, loss_mask, *_ = tensors
advantages, _ = compute_advantages_and_returns(
    token_level_rewards=rewards,
    response_mask=response_mask,
    index=np.array(job["problems"]),
    adv_estimator="stepmark-discounted",
    config=SimpleNamespace(use_kl_in_reward=False),
)
width = rewards.shape[1]
own = [row[width - len(ids) :].tolist() for row, ids in zip(advantages * loss_mask, job["ids"], strict=True)]
Path(job["out"]).write_text(json.dumps({"advantages": own, "metrics": output["rollout_metrics"]}))
assert torch.equal(response_mask.sum(1), torch.tensor(list(map(len, job["ids"]))))
