"""Settings of a training run: which weights are trained, for how long, on what share of the rows, and what is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from stepmark.errors import UsageError
from stepmark.models.lazy import check_device, note_idle
from stepmark.settings import settings
from stepmark.verifiers.checks import check_names

if TYPE_CHECKING:
    import torch

LayoutName = Literal["auto", "chatml", "chat", "text"]
TOKEN_BUDGET = 2048
"""Distinct tokens a forward pass, where the user names none."""
_RANK = 16
_ALL = "`full` trains all weights, and there is no LoRA adapter"


@settings
class Weights:
    """Which weights are trained, in what precision, and where."""

    full: bool = False
    """Train all weights instead of a LoRA adapter."""
    lora_rank: Annotated[int, Field(ge=1)] = _RANK
    """Rank of the LoRA adapter (Hu et al. 2021), which is on every linear layer; at least that of the adapter that training starts from."""
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The adapter is scaled by lora_alpha / lora_rank. Default: 2 * lora_rank."""
    frozen_layers: Annotated[int, Field(ge=0)] = 0
    """The lowest layers that are not trained: no gradient runs through them. With all weights, the embedding is frozen too."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the computation; auto is bfloat16 where the device has it. Updates are made in float32 copies either way."""
    device: str = "auto"
    """Device: auto, cpu, cuda or cuda:NUMBER."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: a third more time, far less memory."""
    shard: bool = False
    """Share the weights out among the processes that torchrun started (FSDP2), for bases that do not fit one device."""

    def __post_init__(self) -> None:
        check_device(self.device)
        if self.full:
            given = {"lora_rank": self.lora_rank != _RANK or None, "lora_alpha": self.lora_alpha}
            note_idle(given, dict.fromkeys(given, _ALL))

    @property
    def alpha(self) -> float:
        """`lora_alpha`, or its default."""
        return 2.0 * self.lora_rank if self.lora_alpha is None else self.lora_alpha

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` on `device`."""
        import torch

        from stepmark.models.backbone import has_bfloat16

        native = has_bfloat16(self.place) if self.dtype == "auto" else self.dtype == "bfloat16"
        return torch.bfloat16 if native else torch.float32

    @property
    def place(self) -> str:
        """The device itself."""
        from stepmark.models.backbone import compute_device

        place = compute_device(self.device)
        # Processes launched together have a device each.
        each = self.device == "auto" and place == "cuda" and "LOCAL_RANK" in os.environ
        return f"cuda:{os.environ['LOCAL_RANK']}" if each else place


@settings
class Training(Weights):
    """Settings of a training run; they are written beside its result."""

    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Peak of a linear warm-up and a cosine decay to a tenth. Default: 2e-4 with LoRA, 1e-5 with all weights."""
    head_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The head's learning rate, as a multiple of that of the other weights."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of the steps in which the learning rate rises."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight decay of AdamW."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """The largest norm of the gradient."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """Passes over the rows. Default: 2, and more in small sets, at most 6, until there are 120 optimizer steps."""
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Stop after this many minutes, measurements not counted; the learning rate decays by the clock where that is ahead of the steps. Two
    such runs give different weights."""
    token_budget: Annotated[int, Field(ge=1)] | None = None
    """Distinct tokens a forward pass; bounds memory. Default: 2,048, and fewer where an epoch would have under 30 optimizer steps."""
    rows_per_step: Annotated[int, Field(ge=1)] | None = None
    """Rows an optimizer step, at least, over as many forward passes as they need. Default: one forward pass a step."""
    max_tokens: Annotated[int, Field(ge=1)] | None = 1024
    """Rows of more tokens are left out and counted."""
    held_out: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the problems on which the PRM is measured and calibrated, and not trained. Default: 50 problems, at most a fifth and at
    least 0.06 of them."""
    tune_threshold: bool | None = None
    """Set the threshold to the one with the best first-error F1 on the held-out solutions, instead of 0.5. Default: where five of them are
    right and five have an error."""
    checks: str | None = None
    """Exact checks (`stepmark.check`) that run beside the PRM wherever it grades, written into the checkpoint: "all", "none", or names with
    commas between them. Default: those of the PRM that training starts from; none for a bare base."""
    baseline: str | None = None
    """The PRM that the new one is compared with on the held-out solutions, as `load_prm` takes it, or "none". Default: the PRM that
    training starts from."""
    evaluations: Annotated[int, Field(ge=1)] = 4
    """How often the held-out problems are measured, evenly over the run; the last time at its end."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Stop after this many measurements without a better held-out loss, and take the best weights. Default: run to the end."""
    save_every: Annotated[int, Field(ge=1)] = 50
    """Optimizer steps between saved states."""
    warm_start: str | None = None
    """Start from this LoRA adapter over the same base, and its head: a folder, a hub name, or "default". Default: the default PRM where no
    `base` is named and the objective and the layout are its own."""
    mark: str | None = None
    """What ends a step and is read: one token of the base, or a question of several words. Default: the first known token that the base
    has."""
    layout: LayoutName = "auto"
    """How problem and steps become text: in ChatML, by the base's chat template, or as plain text; auto: the first of them that the base has."""
    adapter: bool = False
    """Write the LoRA adapter alone, to be read over its base, instead of the whole checkpoint."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the held-out problems, the order and the first weights."""

    def __post_init__(self) -> None:
        Weights.__post_init__(self)
        if self.full and self.warm_start is not None:
            raise UsageError(
                "`warm_start` is of a LoRA adapter; with all weights (`full`), name the checkpoint itself as the `base`"
            )
        if self.full:
            note_idle({"adapter": self.adapter or None}, {"adapter": _ALL})
        if self.checks is not None:
            check_names(self.checks)

    @property
    def peak(self) -> float:
        """The learning rate at its peak."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-5 if self.full else 2e-4

    def share_held_out(self, problems: int) -> float:
        """`held_out`, or its default for this many problems."""
        return min(0.2, max(0.06, 50 / max(1, problems))) if self.held_out is None else self.held_out

    @property
    def pass_tokens(self) -> int:
        """Distinct tokens a forward pass, at most: `token_budget`, or its default, in which the longest row has room."""
        return self.token_budget or max(TOKEN_BUDGET, self.max_tokens or 0)
