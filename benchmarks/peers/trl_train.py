"""Train with TRL's PRMTrainer, in TRL's own environment, a step at a time on request.

`python trl_train.py JOB.json`. It imports nothing of stepmark. It prints one JSON line when it is ready, then waits for a line on its
standard input, trains one optimizer step, prints how long that took, waits again, and after the last step saves the model and
prints a last line. So two trainers can take turns on a machine whose speed changes with time.

What it changes of TRL's defaults, each in TRL's favour or for equal work: no gradient checkpointing, rows in the given order, a given
learning rate for each step, no saving and no logging while it trains.
"""

# What it imports is in TRL's environment, not in ours.
# mypy: disable-error-code="import-not-found,misc"

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
os.environ["OMP_NUM_THREADS"] = str(job["threads"])
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset, Features, Value, disable_progress_bars  # noqa: E402
from datasets import List as Items  # noqa: E402
from transformers import AutoModelForTokenClassification, AutoTokenizer, TrainerCallback  # noqa: E402
from trl.experimental.prm import PRMConfig, PRMTrainer  # noqa: E402

PRECISIONS = {
    # name: (how the weights are kept, autocast)
    "bfloat16": (torch.bfloat16, False),
    "autocast": (torch.float32, True),
    "float32": (torch.float32, False),
}


def tell(**what: Any) -> None:
    """One JSON line."""
    print(json.dumps(what), flush=True)


class Turns(TrainerCallback):
    """Stops after each optimizer step until it is told to go on; the waiting is not timed."""

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates
        self.began = self.cpu = 0.0

    def wait(self) -> None:
        """Until the benchmark gives the turn."""
        if not sys.stdin.readline():
            raise SystemExit("the benchmark is gone")
        self.began, self.cpu = time.perf_counter(), time.process_time()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Waits for the first turn."""
        self.wait()

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Sets the learning rate."""
        for group in optimizer.param_groups:
            group["lr"] = self.rates[state.global_step]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Says what the turn took."""
        tell(
            seconds=time.perf_counter() - self.began,
            cpu=time.process_time() - self.cpu,
            step=state.global_step,
        )
        if state.global_step < state.max_steps:
            self.wait()


def main() -> None:
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    weights, autocast = PRECISIONS[job["precision"]]
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForTokenClassification.from_pretrained(job["model"], num_labels=2, dtype=weights)
    rows = [json.loads(line) for line in Path(job["rows"]).read_text(encoding="utf-8").splitlines()]
    data = Dataset.from_list(
        [{key: row[key] for key in ("prompt", "completions", "labels")} for row in rows],
        features=Features(
            {"prompt": Value("string"), "completions": Items(Value("string")), "labels": Items(Value("bool"))}
        ),
    )
    settings = PRMConfig(
        output_dir=job["out"],
        use_cpu=True,
        bf16=autocast,
        gradient_checkpointing=False,
        per_device_train_batch_size=job["batch"],
        gradient_accumulation_steps=job["accumulate"],
        num_train_epochs=1,
        learning_rate=max(job["rates"]),
        lr_scheduler_type="constant",
        weight_decay=0.0,
        adam_beta1=job["betas"][0],
        adam_beta2=job["betas"][1],
        max_grad_norm=job["clip"],
        seed=job["seed"],
        train_sampling_strategy="sequential",
        train_on_last_step_only=job["last_step_only"],
        max_length=None,
        dataloader_pin_memory=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    began = time.perf_counter()
    trainer = PRMTrainer(
        model=model,
        args=settings,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[Turns(job["rates"])],
    )
    prepared = time.perf_counter() - began
    # Once through without a step: memory is taken and kernels are chosen before anything is timed.
    trainer.model.train()
    trainer.model(**next(iter(trainer.get_train_dataloader()))).loss.backward()
    trainer.model.zero_grad()
    tell(
        ready=True,
        prepared=prepared,
        tokens=sum(len(ids) for ids in trainer.train_dataset["input_ids"]),
        labels=sum(label != -100 for row in trainer.train_dataset["labels"] for label in row),
        rows=len(trainer.train_dataset),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        versions={
            "trl": trl.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        },
    )
    assert not model.is_gradient_checkpointing
    trainer.train()
    model.save_pretrained(job["out"])
    tokenizer.save_pretrained(job["out"])
    tell(done=True)


if __name__ == "__main__":
    main()
