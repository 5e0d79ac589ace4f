"""The network under training: a backbone with LoRA or all of its weights, a head, and the float32 copies that are updated."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError, said
from stepmark.models import attention
from stepmark.models.backbone import compute_device, load_backbone, load_tokenizer, token_limit
from stepmark.models.checkpoint import Tensors
from stepmark.models.encoding import Encoder
from stepmark.models.generative import CriticSpec
from stepmark.models.heads import output_rows
from stepmark.models.spec import ScoringSpec
from stepmark.training.decoder import fits, hidden_rows
from stepmark.training.items import Item, packed


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Which weights are trained, and in what precision."""

    rank: int | None = 16
    """LoRA rank on every linear layer (Hu et al. 2021); None trains all weights of the backbone."""
    alpha: float = 32.0
    """LoRA scale is alpha / rank."""
    frozen_layers: int = 0
    """The lowest layers that are not trained: no gradient runs through them. With all weights, the embedding is frozen too."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What is computed in. Updates are made in float32 copies either way. auto: bfloat16 where the device has it."""
    device: str = "auto"
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: a third more time, far less memory."""
    shard: bool = False
    """Share the weights out among the processes of the run (`training.sharding`), for models that do not fit one device."""

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise UsageError(f"--rank must be at least 1, found {self.rank}")
        if not 0 < self.alpha < math.inf:
            raise UsageError(f"--alpha must be above 0, found {self.alpha}")
        if self.frozen_layers < 0:
            raise UsageError(f"{said('frozen_layers')} must be at least 0, found {self.frozen_layers}")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise UsageError(f"--dtype must be auto, float32 or bfloat16, found {self.dtype!r}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` on `device`."""
        if self.dtype != "auto":
            return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32
        native = (
            torch.cuda.is_bf16_supported()
            if self.place.startswith("cuda")
            else torch.cpu._is_avx512_bf16_supported()
        )
        return torch.bfloat16 if native else torch.float32

    @property
    def place(self) -> str:
        """The device itself."""
        place = compute_device(self.device)
        # Processes launched together have a device each.
        each = self.device == "auto" and place == "cuda" and "LOCAL_RANK" in os.environ
        return f"cuda:{os.environ['LOCAL_RANK']}" if each else place


def hidden_states(backbone: Any, batch: Sequence[Item], device: str) -> Tensor:
    """Hidden states of trees laid one after the other: [tokens, hidden].

    Args:
        backbone: loaded by `models.backbone.load_backbone`, with or without an adapter.
        batch: trees.
        device: where the backbone is.
    """
    if fits(backbone):
        return hidden_rows(backbone, [item.tree for item in batch], device, None)
    ids, depths, _ = packed(batch)
    state: Tensor = backbone(
        input_ids=torch.from_numpy(ids)[None].to(device),
        position_ids=torch.from_numpy(depths)[None].to(device),
        use_cache=False,
        stepmark_plan=attention.Plan.of_trees([item.tree for item in batch], device),
    ).last_hidden_state[0]
    return state


class Net:
    """A backbone in training.

    Args:
        base: folder of the base model.
        spec: how solutions are read; its layout encodes the training rows.
        weights: what is trained.
        max_tokens: longer rows are refused.
        seed: of the adapter's and the head's first weights.

    Raises:
        CheckpointError: the base cannot be loaded, or its tokenizer lacks the layout's mark.
        UsageError: `frozen_layers` leaves nothing to train.
    """

    def __init__(
        self,
        base: Path,
        spec: ScoringSpec | CriticSpec,
        weights: Weights,
        *,
        max_tokens: int | None,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        self.base, self.spec, self.weights = base, spec, weights
        self.device, self.dtype = weights.place, weights.torch_dtype
        # To be shared out, the weights are read into main memory: a device may not have room for all of them.
        place = "cpu" if weights.shard else self.device
        self.backbone: Any = load_backbone(base, dtype=self.dtype, device=place)
        config = self.backbone.config
        self.hidden_size = int(config.hidden_size)
        limits = [n for n in (max_tokens, token_limit(config)) if n is not None]
        self.max_tokens = min(limits, default=None)
        self.tokenizer = load_tokenizer(base)
        self._encoder: Encoder | None = None
        if isinstance(spec, ScoringSpec):
            self._encoder = Encoder(
                self.tokenizer, spec.layout, max_tokens=self.max_tokens, outcome_only=spec.outcome_only
            )
            # A base without the marker would be trained, and read, at the last piece of it.
            self._encoder.check()
        layers = int(config.num_hidden_layers)
        if weights.frozen_layers >= layers:
            # peft takes an empty list of layers for all of them.
            raise UsageError(
                f"{said('frozen_layers')} is {weights.frozen_layers}, and the base has {layers} layers: none is left to train"
            )
        self.model: Any = self._with_adapter(layers) if weights.rank is not None else self.backbone
        if weights.rank is None:
            self._freeze()
        if weights.gradient_checkpointing:
            with warnings.catch_warnings():
                # transformers 5.23 means to rename it; the new name is not in all that we support.
                warnings.filterwarnings("ignore", "`gradient_checkpointing_enable`", FutureWarning)
                self.backbone.gradient_checkpointing_enable({"use_reentrant": False})
        self._output: Tensor | None = None
        self.head: torch.nn.Module = torch.nn.Identity()

    @property
    def encoder(self) -> Encoder:
        """How solutions become tokens.

        Raises:
            CheckpointError: a critic is trained, which reads prompts and not solutions.
        """
        if self._encoder is None:
            raise CheckpointError("a generative PRM reads prompts; it has no encoder of solutions")
        return self._encoder

    @property
    def threshold(self) -> float:
        """The score under which a step counts as wrong; 0.5 where the spec names none."""
        threshold = self.spec.threshold if isinstance(self.spec, ScoringSpec) else None
        return 0.5 if threshold is None else threshold

    def set_head(self, head: torch.nn.Module) -> None:
        """The head, in float32; its parameters are trained."""
        self.head = head.float().to(self.device)

    @property
    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by name; the head's begin with "head."."""
        found = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        found |= {f"head.{name}": p for name, p in self.head.named_parameters() if p.requires_grad}
        if isinstance(self._output, torch.nn.Parameter) and self._output.requires_grad:
            found["output"] = self._output
        return found

    def hidden(self, batch: Sequence[Item]) -> Tensor:
        """Hidden states of trees laid one after the other: [tokens, hidden]. Gradients flow."""
        return hidden_states(self.backbone, batch, self.device)

    def read(self, batch: Sequence[Item]) -> Tensor:
        """The head's logits at the step ends of a batch: [reads, classes], float32."""
        if not fits(self.backbone):
            return self.read_hidden(self.hidden(batch), batch)
        _, _, reads = packed(batch)
        rows, back = np.unique(reads, return_inverse=True)
        hidden = hidden_rows(self.backbone, [item.tree for item in batch], self.device, rows)
        logits: Tensor = self.head(hidden[torch.from_numpy(back).to(self.device)].float())
        return logits

    def read_hidden(self, hidden: Tensor, batch: Sequence[Item]) -> Tensor:
        """The head's logits at the step ends, from the hidden states of the batch."""
        _, _, reads = packed(batch)
        logits: Tensor = self.head(hidden[torch.from_numpy(reads).to(self.device)].float())
        return logits

    @property
    def tied(self) -> bool:
        """Whether the language-model head is the embedding."""
        return bool(self.backbone.config.tie_word_embeddings)

    def output(self) -> Tensor:
        """The language-model head [vocabulary, hidden]: tied to the embedding, or the base's own (then trained with all weights).

        Raises:
            UsageError: the weights are shared out.
        """
        if self.weights.shard:
            raise UsageError(
                "--shard: what is trained here reads the language-model head, which is not shared out; train a head of its own (hard, ce, "
                "soft, mse, beta-binomial, three-class, outcome), or leave --shard out"
            )
        if self._output is None:
            if self.tied:
                tied: Tensor = self.backbone.get_input_embeddings().weight
                return tied
            rows = output_rows(Tensors(self.base), self.backbone).to(self.device, self.dtype)
            trained = self.weights.rank is None
            self._output = torch.nn.Parameter(rows.clone(), requires_grad=trained)
        return self._output

    def train(self, on: bool) -> None:
        """Training or evaluation mode."""
        self.model.train(on)
        self.head.train(on)

    def _freeze(self) -> None:
        if not self.weights.frozen_layers:
            return
        self.backbone.get_input_embeddings().weight.requires_grad_(False)
        for layer in self.backbone.layers[: self.weights.frozen_layers]:
            layer.requires_grad_(False)

    def _with_adapter(self, layers: int) -> Any:
        from peft import LoraConfig, get_peft_model

        # By kind and not by the names that Llama has: peft adapts those that it finds and says nothing of the others.
        linear = sorted(
            {
                name.rsplit(".", 1)[-1]
                for name, module in self.backbone.named_modules()
                if isinstance(module, torch.nn.Linear)
            }
        )
        if not linear:
            raise UsageError(
                f"{self.base}: {type(self.backbone).__name__} has no linear layer for LoRA; train all weights (--full)"
            )
        with warnings.catch_warnings():
            # peft 0.21 asks transformers a question that transformers means to rename.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            model: Any = get_peft_model(
                self.backbone,
                LoraConfig(
                    r=self.weights.rank,
                    lora_alpha=self.weights.alpha,
                    target_modules=linear,
                    layers_to_transform=list(range(self.weights.frozen_layers, layers)),
                    layers_pattern="layers",
                ),
                # The adapter computes in the base's precision; the optimizer keeps float32 copies.
                autocast_adapter_dtype=False,
            )
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.float32 if self.weights.shard else self.dtype)
        return model
