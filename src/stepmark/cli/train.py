"""`stepmark train`: a grader from step-labelled solutions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal


def train_command(
    *data: Path,
    out: Path,
    base: str = "stepmark:smollm2-135m-instruct",
    rank: int = 16,
    frozen_layers: int = 10,
    learning_rate: float = 4e-4,
    epochs: int = 1,
    token_budget: int = 2048,
    limit_tokens: int | None = None,
    max_tokens: int = 512,
    coarsen: float = 0.5,
    neutral: Literal["positive", "negative"] = "positive",
    held_out: float = 0.06,
    seed: int = 0,
) -> int:
    """Train a PRM (LoRA adapter and marker head) on step labels.

    Interrupted, the same command goes on where it was; the state lies in OUT.run until the checkpoint is there.

    Parameters
    ----------
    data
        Files of JSON lines, plain or gzip: PRM800K in the flat layout (instruction, responses, next_response,
        rating), or GSM8K (question, answer), in whose worked solutions errors are put on purpose.
    out
        The checkpoint's folder; must not exist.
    base
        The base model: a folder, a hub name, or the built-in one.
    rank
        LoRA rank.
    frozen_layers
        The lowest layers that get no adapter.
    learning_rate
        Peak learning rate.
    epochs
        Passes over the data.
    token_budget
        Distinct tokens a step.
    limit_tokens
        Distinct tokens an epoch, the same number from each source; all of them by default.
    max_tokens
        Longer examples are left out and counted.
    coarsen
        Share of step borders joined away, so that steps of many lengths are seen.
    neutral
        What a neutral rating counts as.
    held_out
        Share of problems kept for measuring and calibration.
    seed
        Of everything random.
    """
    from stepmark.training.recipe import labelled_rows, train_marker_prm
    from stepmark.training.train import Train

    settings = Train(
        rank=rank,
        frozen_layers=frozen_layers,
        learning_rate=learning_rate,
        epochs=epochs,
        token_budget=token_budget,
        limit_tokens=limit_tokens,
        max_tokens=max_tokens,
        coarsen=coarsen,
        neutral=neutral,
        held_out=held_out,
        seed=seed,
    )
    recent: list[float] = []

    def report(figures: dict[str, float]) -> None:
        recent.append(figures["loss"])
        del recent[:-50]
        if figures["step"] % 10 == 0 or figures["step"] == figures["steps"]:
            left = (figures["steps"] - figures["step"]) * figures["seconds_per_step"] / 60
            print(
                f"step {figures['step']:.0f} of {figures['steps']:.0f}, loss {sum(recent) / len(recent):.3f} (last "
                f"{len(recent)}), {figures['tokens_per_second']:.0f} tokens/s, {left:.0f} min left"
                + (f", {figures['refused']:.0f} examples left out" if figures["step"] <= 10 else ""),
                file=sys.stderr,
                flush=True,
            )

    done = train_marker_prm(labelled_rows(data, seed=seed), out, settings, base=base, report=report)
    print(
        f"{done.folder}: {done.examples} examples of {done.problems} problems; held out: {done.held_out.labels} steps, loss "
        f"{done.held_out.loss:.3f}, accuracy {done.held_out.accuracy:.3f}, AUC {done.held_out.auc:.3f}; first-error F1 "
        f"{done.first_errors.f1:.3f} at the threshold {done.first_errors.threshold:g}"
    )
    return 0
