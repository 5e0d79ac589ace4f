"""A batch through verl's own code with stepmark's parts in it, in verl's environment: `python verl_rewarding.py JOB.json` writes what came out.

The rollout is made up; what verl does with it is real: its reward worker, which makes the manager from its configuration and calls it; the rollout's `as_dict`; the
computing of advantages in its default trainer.
"""

# ruff: noqa: S106 - these tokens are words of a vocabulary, not secrets

import asyncio
import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
# As for Ray's workers: nothing of stepmark is imported here before verl has read this.
os.environ["VERL_USE_EXTERNAL_MODULES"] = "stepmark.rl.adapters.verl"

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, _agent_loop_registry
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker, migrate_legacy_reward_impl
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.import_utils import load_extern_object

from rl_adapters_world import PIECES

job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
torch.set_num_threads(1)

made = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(PIECES)}, unk_token="<unk>"))
made.decoder = decoders.Fuse()
words = PreTrainedTokenizerFast(
    tokenizer_object=made,
    eos_token="<eos>",
    pad_token="<pad>",
    unk_token="<unk>",
    chat_template="{{ messages }}",
)
words.save_pretrained(job["folder"])
# The lines of the documentation, in verl's own configuration.
with initialize_config_module("verl.trainer.config", version_base=None):
    config = migrate_legacy_reward_impl(compose("ppo_trainer", overrides=job["overrides"]))


async def rolled(loop, ids, mask):
    """What the registered agent loop makes of a rollout of verl's, which is made up."""

    async def run(self, sampling_params, **row):
        return AgentLoopOutput(
            prompt_ids=[1, 2],
            response_ids=ids,
            response_mask=mask,
            num_turns=2,
            metrics={},
            extra_fields={},
        )

    SingleTurnAgentLoop.run = ToolAgentLoop.run = run
    return await loop.run({}, raw_prompt=[])


async def main():
    worker = RewardLoopWorker(config)
    name = _agent_loop_registry[config.actor_rollout_ref.rollout.agent.default_agent_loop]["_target_"]
    loop_class = load_extern_object("pkg://" + name.rpartition(".")[0], name.rpartition(".")[2])
    fields, extras = [], []
    masks = job["written"] or [[1] * len(ids) for ids in job["completions"]]
    for ids, mask, problem in zip(job["completions"], masks, job["problems"], strict=True):
        loop = loop_class.__new__(loop_class)
        output = await rolled(loop, ids, mask)
        length = len(output.prompt_ids) + len(ids)
        data = verl.DataProto(
            batch=TensorDict(
                {
                    "prompts": torch.tensor([output.prompt_ids]),
                    "responses": torch.tensor([ids]),
                    "attention_mask": torch.ones(1, length, dtype=torch.int64),
                },
                batch_size=1,
            ),
            non_tensor_batch={
                "raw_prompt": np.array([[{"role": "user", "content": "?"}]], dtype=object),
                "data_source": np.array(["made up"]),
                "reward_model": np.array([{"ground_truth": "9"}]),
                "extra_info": np.array([{"question": problem}]),
                "tool_extra_fields": np.array([output.extra_fields], dtype=object),
            },
        )
        result = await worker.compute_score(data)
        output.reward_score = result["reward_score"]
        output.extra_fields["reward_extra_info"] = result["reward_extra_info"]
        fields.append(output.as_dict())
        extras.append(result["reward_extra_info"])
    return fields, extras


fields, extras = asyncio.run(main())
pad = lambda name: torch.nn.utils.rnn.pad_sequence([one[name] for one in fields], batch_first=True)  # noqa: E731
found = {}
assert config.algorithm.adv_estimator in job["estimators"]
for estimator in job["estimators"]:
    data = verl.DataProto(
        batch=TensorDict(
            {"response_mask": pad("response_mask"), "token_level_rewards": pad("rm_scores")},
            batch_size=len(fields),
        ),
        non_tensor_batch={"uid": np.array(job["problems"], dtype=object)},
    )
    keys = [f"{uid}_{row}_0" for row, uid in enumerate(job["problems"])]
    out = compute_advantage_for_multi_trajectories(
        data, keys, adv_estimator=estimator, config=config.algorithm
    )
    found[estimator] = out.batch["advantages"].tolist()
reward_function = load_extern_object("pkg://stepmark.rl.adapters.verl", "prm_score")
score = reward_function("x", "1\n2", "9", {"question": "a"}, prm="rl_adapters_world:steps_prm", unread=0.0)
result = {
    "rm_scores": [one["rm_scores"].tolist() for one in fields],
    "extras": extras,
    "advantages": found,
    "score": score["score"],
    "version": verl.__version__,
}
Path(job["out"]).write_text(json.dumps(result), encoding="utf-8")
