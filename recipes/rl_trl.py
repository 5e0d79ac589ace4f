"""Train a policy with process rewards in TRL's GRPOTrainer: a PRM's score of each step, and a verifier's word on each answer.

    python recipes/rl_trl.py problems.jsonl --policy Qwen/Qwen2.5-1.5B-Instruct --prm Qwen/Qwen2.5-Math-PRM-7B --out run
    accelerate launch --num_processes 8 recipes/rl_trl.py problems.jsonl --policy … --prm … --vllm colocate --out run

Needs: `pip install trl==1.16.0 'stepmark[local]'`, and GPUs for models that are worth training: weights, gradients and the states of AdamW are 16 bytes
a weight, 25 GB for 1.5B, and each process holds the PRM as well (15 GB of a 7B one), unless `--prm http://…` names a server. Problems are JSON lines
with `problem` and `answer`. With `--cpu` and a tiny policy it runs anywhere; the tests run it so. What the adapter does: `docs/rl.md#inside-other-trainers`.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from trl import GRPOConfig

from stepmark import load_prm
from stepmark.models.load import read_by
from stepmark.models.places import find_checkpoint
from stepmark.problems.loading import read_problems
from stepmark.rl.adapters.trl import ProcessGRPOTrainer
from stepmark.rl.credit.assignment import CREDITS, ProcessGRPO
from stepmark.verifiers.base import load_verifier

INSTRUCTION = "Solve the problem step by step, one step a line. Put the final answer in \\boxed{}."


def rows(file: str, *, chat: bool, instruction: str) -> Dataset:
    """TRL's rows: what the policy is shown, and beside it the problem and its answer."""
    found = []
    for problem in read_problems(file):
        text = f"{problem.text}\n\n{instruction}" if instruction else problem.text
        prompt = [{"role": "user", "content": text}] if chat else f"{text}\n\n"
        found.append({"prompt": prompt, "question": problem.text, "answer": problem.answer})
    return Dataset.from_list(found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problems")
    parser.add_argument("--policy", required=True, help="a folder or hub name")
    parser.add_argument(
        "--prm", required=True, help="a folder, hub name, server's address or package.module:factory"
    )
    parser.add_argument("--tokenizer", help="of a PRM on a vLLM server")
    parser.add_argument("--credit", default="process-grpo", choices=sorted(CREDITS))
    parser.add_argument(
        "--process-weight",
        type=float,
        default=0.5,
        help="the PRM's share beside the outcome, of process-grpo",
    )
    parser.add_argument("--verifier", default="math")
    parser.add_argument("--group", type=int, default=8, help="completions a problem")
    parser.add_argument("--batch", type=int, default=8, help="completions a process and forward pass")
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument(
        "--beta", type=float, default=0.01, help="weight of the KL term; a PRM without one gets hacked"
    )
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--prompt", choices=("chat", "text"), default="chat")
    parser.add_argument("--instruction", default=INSTRUCTION)
    parser.add_argument("--vllm", choices=("none", "colocate", "server"), default="none")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    asked = parser.parse_args()

    device = "cpu" if asked.cpu else f"cuda:{PartialState().local_process_index}"
    # A PRM on a server or from a function is where those put it.
    prm = load_prm(asked.prm, tokenizer=asked.tokenizer, **read_by(asked.prm, {"device": device}))
    verifier = load_verifier(asked.verifier, answers="marked")

    def right(completions: list[Any], answer: list[str], **columns: Any) -> list[float | None]:
        """The outcome: 1, 0, or nothing where no verdict could be reached."""
        texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
        verdicts = verifier.verify_many(zip(texts, answer, strict=True))
        return [None if one.correct is None else float(one.correct) for one in verdicts]

    trainer = ProcessGRPOTrainer(
        model=str(find_checkpoint(asked.policy)),
        reward_funcs=right,
        args=GRPOConfig(
            output_dir=asked.out,
            num_generations=asked.group,
            per_device_train_batch_size=asked.batch,
            gradient_accumulation_steps=asked.accumulate,
            max_completion_length=asked.max_tokens,
            max_steps=asked.steps,
            learning_rate=asked.learning_rate,
            beta=asked.beta,
            temperature=asked.temperature,
            mask_truncated_completions=True,
            use_vllm=asked.vllm != "none",
            vllm_mode="server" if asked.vllm == "server" else "colocate",
            use_cpu=asked.cpu,
            bf16=not asked.cpu,
            logging_steps=1,
            save_steps=max(1, asked.steps // 4),
            report_to="none",
            seed=asked.seed,
        ),
        train_dataset=rows(asked.problems, chat=asked.prompt == "chat", instruction=asked.instruction),
        credit=ProcessGRPO(process_weight=asked.process_weight)
        if asked.credit == "process-grpo"
        else CREDITS.load(asked.credit)(),
        prm=prm,
        problem="question",
    )
    trainer.train()
    trainer.save_model(asked.out)
    if trainer.is_world_process_zero():
        log = Path(asked.out) / "log.jsonl"
        log.write_text(
            "".join(json.dumps(line) + "\n" for line in trainer.state.log_history), encoding="utf-8"
        )
        print(f"the policy is in {asked.out}, what was logged in {log}")
    verifier.close()


if __name__ == "__main__":
    main()
