"""`stepmark train`: the command of `stepmark.train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.training.examples import LabelRules
from stepmark.training.run import REPORT_FILE, Log, train
from stepmark.training.settings import LayoutName, Training


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The settings of `training.settings.Training` that are flags."""

    epochs: Annotated[int | None, opt.in_common("--epochs")] = None
    """Passes over the rows. Default: 2, and more in small sets, at most 6, until there are 120 optimizer steps."""
    learning_rate: Annotated[float | None, opt.in_common("--learning-rate")] = None
    """Peak of a linear warm-up and a cosine decay to a tenth. Default: 2e-4 with LoRA, 1e-5 with all weights."""
    full: Annotated[bool, opt.in_common("--full")] = False
    """Train all weights instead of a LoRA adapter."""
    seed: Annotated[int, opt.in_common("--seed")] = 0
    """Seed of the held-out problems, the order and the first weights."""
    held_out: Annotated[float | None, opt.in_data("--held-out")] = None
    """Share of the problems on which the PRM is measured and calibrated, and not trained. Default: 50 problems, at most a fifth and at least 0.06 of them."""
    baseline: Annotated[str | None, opt.in_data("--baseline")] = None
    """The PRM that the new one is compared with on the held-out solutions, or "none". Default: the PRM that training starts from."""
    max_tokens: Annotated[int | None, opt.in_data("--max-tokens")] = 1024
    """Rows of more tokens are left out and counted."""
    lora_rank: Annotated[int, opt.in_model("--lora-rank")] = 16
    """Rank of the LoRA adapter (Hu et al. 2021), which is on every linear layer; at least that of the adapter that training starts from."""
    lora_alpha: Annotated[float | None, opt.in_model("--lora-alpha")] = None
    """The adapter is scaled by lora_alpha / lora_rank. Default: 2 * lora_rank."""
    frozen_layers: Annotated[int, opt.in_model("--frozen-layers")] = 0
    """The lowest layers that are not trained: no gradient runs through them. With all weights, the embedding is frozen too."""
    warm_start: Annotated[str | None, opt.in_model("--warm-start")] = None
    """Start from this LoRA adapter over the same base, and its head: a folder, a hub name, or "default". Default: the default PRM where no base is named and the objective and the layout are its own."""
    mark: Annotated[str | None, opt.in_model("--mark")] = None
    """What ends a step and is read: one token of the base, or a question of several words. Default: the first known token that the base has."""
    layout: Annotated[LayoutName, opt.in_model("--layout")] = "auto"
    """How problem and steps become text: in ChatML, by the base's chat template, or as plain text; auto: the first of them that the base has."""
    checks: Annotated[str | None, opt.in_model("--checks")] = None
    """Exact checks (stepmark.check) that run beside the PRM wherever it grades, written into the checkpoint: "all", "none", or names with commas between them. Default: those of the PRM that training starts from; none for a bare base."""
    head_rate: Annotated[float, opt.in_method("--head-rate")] = 1.0
    """The head's learning rate, as a multiple of that of the other weights."""
    weight_decay: Annotated[float, opt.in_method("--weight-decay")] = 0.0
    """Weight decay of AdamW."""
    minutes: Annotated[float | None, opt.in_method("--minutes")] = None
    """Stop after this many minutes, measurements not counted; the learning rate decays by the clock where that is ahead of the steps. Two such runs give different weights."""
    rows_per_step: Annotated[int | None, opt.in_method("--rows-per-step")] = None
    """Rows an optimizer step, at least, over as many forward passes as they need. Default: one forward pass a step."""
    tune_threshold: Annotated[
        bool | None, opt.in_method("--tune-threshold", negative="--no-tune-threshold")
    ] = None
    """Set the threshold to the one with the best first-error F1 on the held-out solutions, instead of 0.5. Default: where five of them are right and five have an error."""
    evaluations: Annotated[int, opt.in_method("--evaluations")] = 4
    """How often the held-out problems are measured, evenly over the run; the last time at its end."""
    patience: Annotated[int | None, opt.in_method("--patience")] = None
    """Stop after this many measurements without a better held-out loss, and take the best weights. Default: run to the end."""
    adapter: Annotated[bool, opt.in_output("--adapter")] = False
    """Write the LoRA adapter alone, to be read over its base, instead of the whole checkpoint."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], opt.in_machine("--dtype")] = "auto"
    """Precision of the computation; auto is bfloat16 where the device has it. Updates are made in float32 copies either way."""
    device: Annotated[str, opt.in_machine("--device")] = "auto"
    """Device: auto, cpu, cuda or cuda:NUMBER."""
    token_budget: Annotated[int | None, opt.in_machine("--token-budget")] = None
    """Distinct tokens a forward pass; bounds memory. Default: 2,048, and fewer where an epoch would have under 30 optimizer steps."""
    gradient_checkpointing: Annotated[bool, opt.in_machine("--gradient-checkpointing")] = False
    """Compute activations again in the backward pass: a third more time, far less memory."""
    shard: Annotated[bool, opt.in_machine("--shard")] = False
    """Share the weights out among the processes that torchrun started (FSDP2), for bases that do not fit one device."""


def train_command(
    *file: Annotated[
        opt.FileOrDash,
        Parameter(
            help="labelled solutions: files in any format of stepmark convert, or OWNER/NAME of data sets on the hub. For worked solutions "
            "without labels: stepmark label exact first",
            required=True,
        ),
    ],
    out: Annotated[opt.FileOrDash, opt.in_common("--out")],
    base: Annotated[str | None, opt.in_common("--base")] = None,
    objective: Annotated[str | None, opt.in_common("--objective")] = None,
    settings: Annotated[tuple[str, ...], opt.in_common("--set")] = (),
    family: Annotated[str | None, opt.in_common("--family")] = None,
    columns: opt.Columns | None = None,
    training: TrainingOptions = TrainingOptions(),
    held_out_data: Annotated[tuple[str, ...], opt.in_data("--held-out-data")] = (),
    rules: Annotated[LabelRules, opt.in_data("*")] = LabelRules(),
    log: Annotated[tuple[Log, ...], opt.in_output("--log")] = (),
) -> int:
    """Train a PRM on step-labelled solutions.

    Args:
        out: the checkpoint's folder: new, or that of this run.
        base: the model that is trained: a folder, a hub name, or a built-in one. Default: the default PRM goes on being trained, or its base where the objective or the layout is another.
        objective: what is fitted: hard, ce, soft, mse, beta-binomial, three-class, target-tokens, outcome, implicit-ce, implicit-dpo, generative, or "package.module:Class". Default: hard; with family, the one for its head.
        settings: a field of the objective, as name=value; repeat for several.
        family: train in the prompt, layout and head of this published family (stepmark families). Default: a layout of stepmark's own.
        held_out_data: measure and calibrate on these rows instead of a share of the problems.
        log: send figures to these too: tensorboard, wandb, trackio.
    """
    trained = train(
        file,
        out=out,
        base=base,
        objective=objective,
        settings=settings,
        family=family,
        rules=rules,
        training=Training(**vars(training)),
        held_out_data=held_out_data or None,
        columns=columns,
        log=log,
        on_warning=print_note,
    )
    if not trained.first:
        return 0
    if not trained.new:
        print(
            f"{trained.folder}: this run is done, and everything is there; its page is {trained.folder / REPORT_FILE}"
        )
        return 0
    for line in trained.dropped.lines():
        print_note(line)
    print(*trained.figures, f"curves: {trained.folder / REPORT_FILE}", sep="\n")
    return 0
