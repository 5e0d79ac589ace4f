"""The network under training: a backbone with LoRA or all of its weights, a head, and the float32 copies that are updated."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.models import attention
from stepmark.models.backbone import load_backbone, load_tokenizer, token_limit
from stepmark.models.checkpoint import Tensors
from stepmark.models.encoding import Encoder
from stepmark.models.generative import CriticSpec
from stepmark.models.heads import output_rows
from stepmark.models.spec import ChatLayout, Layout, ScoringSpec, TextLayout
from stepmark.training.fused import fits, hidden_rows
from stepmark.training.items import Item, packed
from stepmark.training.settings import LayoutName, Weights


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
                f"`frozen_layers` is {weights.frozen_layers}, and the base has {layers} layers: none is left to train"
            )
        self.model: Any = self.backbone if weights.full else self._with_adapter(layers)
        if weights.full:
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
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        parameters |= {f"head.{name}": p for name, p in self.head.named_parameters() if p.requires_grad}
        if isinstance(self._output, torch.nn.Parameter) and self._output.requires_grad:
            parameters["output"] = self._output
        return parameters

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
                "`shard`: this objective reads the language-model head, which is not shared out; take one with a head of its own (hard, ce, "
                "soft, mse, beta-binomial, three-class, outcome), or leave `shard` out"
            )
        if self._output is None:
            if self.tied:
                tied: Tensor = self.backbone.get_input_embeddings().weight
                return tied
            rows = output_rows(Tensors(self.base), self.backbone).to(self.device, self.dtype)
            self._output = torch.nn.Parameter(rows.clone(), requires_grad=self.weights.full)
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
                f"{self.base}: {type(self.backbone).__name__} has no linear layer for LoRA; train all weights (`full`)"
            )
        with warnings.catch_warnings():
            # peft 0.21 asks transformers a question that transformers means to rename.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            model: Any = get_peft_model(
                self.backbone,
                LoraConfig(
                    r=self.weights.lora_rank,
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


MARKS = (
    "<extra_0>",  # Qwen2.5-Math-PRM's own
    "<file_sep>",  # SmolLM2, StarCoder
    "<|extra_0|>",
    "<|reserved_special_token_0|>",  # Llama 3
    "<|fim_pad|>",  # Qwen2.5, Qwen3
    "<unused0>",  # Gemma
    "<|placeholder1|>",  # Phi 3
    "[control_8]",  # Mistral
)
"""Tokens of known vocabularies that no mathematics uses, in the order in which they are looked for."""


def layout_for(
    tokenizer: Any, *, mark: str | None = None, layout: LayoutName = "auto", marked: bool = True
) -> Layout:
    """The layout of a new PRM.

    Args:
        tokenizer: the base's.
        mark: what ends a step and is read: one token of this tokenizer, or a text with a space in it, such as "Is this step right?",
            which stands on a line of its own and is read at its last token. None takes the first of `MARKS` that it has.
        layout: `chatml`: the problem as the user's turn and the steps as the assistant's, in ChatML without a system message; `chat`:
            through the tokenizer's own chat template; `text`: problem, blank line, steps. auto: chatml where the tokenizer has its two
            tokens, else chat where it has a template, else text.
        marked: a token ends a step and is read. False, for PRMs that are read from the probabilities of the text itself: a blank line
            ends it, unless `mark` names a token.

    Raises:
        UsageError: the mark is neither one token nor a text, none of the known marks is there, or the layout does not fit the tokenizer.
    """
    is_text = mark is not None and len(mark.split()) > 1 and not _is_token(tokenizer, mark)
    if is_text:
        # With its line break it ends where a token ends, whatever the next step begins with.
        mark = f"\n{mark}\n"
    else:
        mark = f"\n{_mark(tokenizer, mark)}" if marked or mark is not None else "\n\n"
    chatml = all(_is_token(tokenizer, token) for token in ("<|im_start|>", "<|im_end|>"))
    if layout == "auto":
        layout = "chatml" if chatml else "chat" if tokenizer.chat_template else "text"
    if layout == "chatml":
        if not chatml:
            raise UsageError(
                "`layout` chatml: this tokenizer has no <|im_start|> and <|im_end|>; take chat or text"
            )
        return TextLayout(
            opening="<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n",
            mark=mark,
            mark_is_text=is_text,
            special_tokens=False,
        )
    if layout == "chat":
        if not tokenizer.chat_template:
            raise UsageError("`layout` chat: this tokenizer has no chat template; take text")
        return ChatLayout(mark=mark, mark_is_text=is_text)
    return TextLayout(opening="{problem}\n\n", mark=mark, mark_is_text=is_text)


def _mark(tokenizer: Any, mark: str | None) -> str:
    if mark is not None:
        if not _is_token(tokenizer, mark):
            raise UsageError(
                f"`mark` {mark!r} is not one token of this base but "
                f"{tokenizer.tokenize(mark)}; name a token that no solution holds, or a question of several words"
            )
        return mark
    for known in MARKS:
        if _is_token(tokenizer, known):
            return known
    raise UsageError(
        f"none of the known marks ({', '.join(MARKS)}) is a token of this base; name one as `mark`: a token of its vocabulary "
        "that no solution holds"
    )


def _is_token(tokenizer: Any, text: str) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return len(ids) == 1 and ids[0] != tokenizer.unk_token_id
