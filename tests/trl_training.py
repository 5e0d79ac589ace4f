"""Trains a tiny random policy with `ProcessGRPOTrainer`, in TRL's own environment, and writes down all that the test has to know.

`python trl_training.py JOB.json`, as one process or as several (the variables of torch.distributed are in the environment). It writes
`<out>.<rank>.json`: of each batch, the completions, the advantages that TRL's loss was given, and what it masks.
"""

# ruff: noqa: S106 - these tokens are words of a vocabulary, not secrets

import json
import os
import random
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

from rl_adapters_world import PIECES, conversations, first, second, steps_prm
from stepmark.rl.adapters.trl import ProcessGRPOTrainer, prm_reward
from stepmark.rl.credit.assignment import CREDITS

job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.set_num_threads(1)
NAMES = ("completion_ids", "completion_mask", "advantages")


def tokenizer() -> PreTrainedTokenizerFast:
    """Pieces of text, some longer than a character, one with the end of a step inside; decoding joins them."""
    made = Tokenizer(
        models.WordLevel({piece: number for number, piece in enumerate(PIECES)}, unk_token="<unk>")
    )
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>", padding_side="left"
    )


class Recorded(ProcessGRPOTrainer):
    """Writes down each batch as it was made, in the order of its rows, and what the loss is given of it."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        batch = {name: output[name].tolist() for name in NAMES}
        batches.append(
            batch | {"problems": [row["problem"] for row in inputs], "training": self.model.training}
        )
        return output

    def _compute_loss(self, model, inputs):
        used.append({name: inputs[name].tolist() for name in NAMES})
        return super()._compute_loss(model, inputs)


def rollouts(prompts, trainer):
    """The same completions however many processes share the batch: drawn by the place in the whole batch."""
    prompt_ids = [trainer.processing_class.encode(prompt) for prompt in prompts]
    if job["turns"]:
        ids, masks = conversations(len(prompts), seed=trainer.state.global_step)
        written.append(masks)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": ids,
            "logprobs": [[0.0] * len(one) for one in ids],
            "env_mask": masks,
        }
    ids = []
    for row in range(len(prompts)):
        place = rank * len(prompts) + row
        dice = random.Random(f"{trainer.state.global_step} {place}")
        words = [dice.randrange(len(PIECES) - 3) for _ in range(dice.randrange(1, job["tokens"]))]
        # Every third one is cut off: it has no end token.
        ids.append(words if place % 3 == 0 else [*words, PIECES.index("<eos>")])
    return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": [[0.0] * len(one) for one in ids]}


torch.manual_seed(0)
words = tokenizer()
policy = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(PIECES),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
        initializer_range=0.3,
    )
)
batches: list[dict] = []
used: list[dict] = []
written: list[list[list[int]]] = []
data = Dataset.from_list([{"prompt": "1" if n % 2 else "2", "problem": f"problem {n}"} for n in range(12)])
prm = steps_prm()
rewards = [first, second, *([prm_reward(prm, aggregate="mean", problem="problem")] if job["plain"] else [])]
trainer = Recorded(
    model=policy,
    reward_funcs=rewards,
    args=GRPOConfig(
        output_dir=job["out"],
        per_device_train_batch_size=job["batch"] // processes,
        per_device_eval_batch_size=4,
        num_generations=4,
        max_completion_length=job["tokens"],
        reward_weights=[1.0, 0.5, *([0.25] if job["plain"] else [])],
        steps_per_generation=job["generations"],
        gradient_accumulation_steps=job["generations"],
        mask_truncated_completions=job["mask_cut"],
        max_steps=3,
        optim="sgd",
        learning_rate=0.1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        shuffle_dataset=False,
        seed=3,
    ),
    train_dataset=data,
    eval_dataset=data.select(range(1)),
    processing_class=words,
    rollout_func=rollouts if job["scripted"] or job["turns"] else None,
    credit=CREDITS.load(job["credit"])(),
    prm=prm,
    problem="problem",
)
before = torch.cat([weight.detach().flatten() for weight in policy.parameters()])
trainer.train()
after = torch.cat([weight.detach().flatten() for weight in policy.parameters()])
if job["evaluate"]:
    trainer.evaluate()
result = {
    "batches": batches,
    "used": used,
    "written": written,
    "log": trainer.state.log_history,
    "moved": float((after - before).abs().max()),
    "weights": after.tolist(),
}
Path(f"{job['out']}.{rank}.json").write_text(json.dumps(result), encoding="utf-8")
