"""The policy while it is trained: it writes, tells how likely it was to write something, and learns.

One transformers causal language model with its tokenizer; with LoRA, what the adapters stand on is the reference; without, a frozen copy is.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from stepmark.backends import Completions
from stepmark.errors import CheckpointError, InputError, UsageError
from stepmark.models.policies.local import Drawn, LocalPolicy, load_language_model
from stepmark.models.quantized import QuantizedLinear


@dataclass(frozen=True, kw_only=True)
class Padded:
    """Completions behind their prompts, padded on the right."""

    ids: Tensor
    """(B, L) prompt and completion."""
    attention: Tensor
    """(B, L) bool: not padding."""
    positions: Tensor
    """(B, T): for each completion token, where in the row the token *before* it stands."""
    targets: Tensor
    """(B, T): the completion's tokens; 0 where masked."""
    mask: Tensor
    """(B, T) bool: there is a completion token."""


def padded(completions: Sequence[Drawn], device: torch.device | str) -> Padded:
    """Rows of one batch. T is at least 1, so that a batch of empty completions has a shape."""
    rows = [(*completion.prompt, *completion.ids) for completion in completions]
    width, most = max(map(len, rows)), max(1, *(len(completion.ids) for completion in completions))

    def filled(parts: Iterable[Sequence[int]], size: int) -> Tensor:
        lines = [[*part, *[0] * (size - len(part))] for part in parts]
        return torch.tensor(lines, dtype=torch.int64, device=device)

    def reached(lengths: Iterable[int], size: int) -> Tensor:
        return torch.arange(size, device=device) < torch.tensor(list(lengths), device=device)[:, None]

    return Padded(
        ids=filled(rows, width),
        attention=reached(map(len, rows), width),
        positions=filled(
            (
                range(len(completion.prompt) - 1, len(completion.prompt) + len(completion.ids) - 1)
                for completion in completions
            ),
            most,
        ),
        targets=filled((completion.ids for completion in completions), most),
        mask=reached((len(completion.ids) for completion in completions), most),
    )


def rows_of(rows: Padded, chosen: Tensor) -> Padded:
    """Some rows, with no more padding behind them than they need together."""
    width = int(rows.attention[chosen].sum(-1).max())
    return Padded(
        ids=rows.ids[chosen, :width],
        attention=rows.attention[chosen, :width],
        positions=rows.positions[chosen],
        targets=rows.targets[chosen],
        mask=rows.mask[chosen],
    )


def passes(rows: Padded, chosen: Tensor, token_budget: int) -> Iterator[Tensor]:
    """Numbers of rows in parts of like length, at most `token_budget` padded tokens each; a longer row is a part of its own."""
    lengths = rows.attention.sum(-1)
    part: list[int] = []
    for row in chosen[torch.argsort(lengths[chosen], stable=True)].tolist():
        if part and (len(part) + 1) * int(lengths[row]) > token_budget:
            yield torch.tensor(part, device=chosen.device)
            part = []
        part.append(row)
    if part:
        yield torch.tensor(part, device=chosen.device)


@torch.no_grad()
def read_rows(rows: Padded, token_budget: int, read: Callable[[Padded], Tensor]) -> Tensor:
    """What `read` gives for the rows of each pass, [rows of the pass, ...], of all rows and in their order."""
    parts = list(passes(rows, torch.arange(len(rows.mask), device=rows.mask.device), token_budget))
    values = torch.cat([read(rows_of(rows, part)) for part in parts])
    return torch.empty_like(values).index_copy_(0, torch.cat(parts), values)


@final
class Actor:
    """A policy that learns.

    Args:
        model: a transformers causal language model. Its weights are changed in place.
        rank: of LoRA; None trains all weights.
        reference: keep what the weights were at the beginning, for the divergence.
        values: add a value head, which starts at 0.
        temperature: probabilities are read at it. Write at the same (`Training.temperature`), so that the ratio of both is 1 at the beginning.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        rank: int | None = None,
        reference: bool = False,
        values: bool = False,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        if any(isinstance(part, QuantizedLinear) for part in model.modules()):
            raise UsageError(f"{name} is quantized, and cannot be trained: load it without `quantize`")
        self.name = name
        self.tokenizer = tokenizer
        self.temperature = temperature
        self._frozen = copy.deepcopy(model).requires_grad_(False) if reference and rank is None else None
        self._lora = rank is not None
        self.has_reference = reference
        """Whether what it began as is kept."""
        self.model: Any = _with_lora(model, rank, seed) if rank is not None else model.requires_grad_(True)
        self.model.eval()  # dropout would make the ratio of probabilities other than 1
        width = model.config.get_text_config().hidden_size
        self.value_head = nn.Linear(width, 1, device=self.device) if values else None
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    @classmethod
    def load(cls, place: str | Path, *, dtype: str = "auto", device: str = "auto", **settings: Any) -> Actor:
        """From a folder, a hub name or a model that ships with stepmark (`load_language_model`); `settings` are those of the class."""
        model, tokenizer = load_language_model(place, dtype=dtype, device=device)
        return cls(model, tokenizer, name=str(place), **settings)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def trained(self) -> list[nn.Parameter]:
        """The weights that learn, always in one order."""
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        return weights + (list(self.value_head.parameters()) if self.value_head is not None else [])

    def policy(self) -> LocalPolicy:
        """The policy as it is now, to sample from. Ask anew after each update: its identity is that of the weights."""
        return LocalPolicy(self.model, self.tokenizer, name=self.name)

    def write(self, requests: Sequence[Completions]) -> list[list[Drawn] | InputError]:
        """Completions with their tokens; see `LocalPolicy.draw`."""
        return self.policy().draw(requests)

    def logprobs(self, rows: Padded) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of the completions' tokens (B, T), float32 and 0 where masked, and the value head's values (B, T) or None."""
        return self._read(self.model, rows, values=True)

    @torch.no_grad()
    def reference_logprobs(self, rows: Padded) -> Tensor:
        """The same of what the policy was at the beginning."""
        if not self.has_reference:
            raise UsageError("this actor keeps no reference: make it with reference=True")
        if self._frozen is not None:
            return self._read(self._frozen, rows, values=False)[0]
        with self.model.disable_adapter():
            return self._read(self.model, rows, values=False)[0]

    def _read(self, model: Any, rows: Padded, *, values: bool) -> tuple[Tensor, Tensor | None]:
        head = self.value_head if values else None
        out = model(
            input_ids=rows.ids,
            attention_mask=rows.attention.long(),
            use_cache=False,
            output_hidden_states=head is not None,
        )
        at = rows.positions[..., None]
        logits = torch.gather(out.logits, 1, at.expand(-1, -1, out.logits.shape[-1])).float()
        table = (logits / self.temperature).log_softmax(-1)
        logprobs = torch.gather(table, -1, rows.targets[..., None])[..., 0]
        logprobs = torch.where(rows.mask, logprobs, 0.0)
        if head is None:
            return logprobs, None
        last = out.hidden_states[-1]
        hidden = torch.gather(last, 1, at.expand(-1, -1, last.shape[-1]))
        value = head(hidden.to(head.weight.dtype))[..., 0].float()
        return logprobs, torch.where(rows.mask, value, 0.0)

    def save(self, folder: Path) -> None:
        """A Hugging Face checkpoint (LoRA merged in) that `stepmark sample --policy` and transformers load."""
        # Of a copy: merging and taking out again would change the weights by their rounding.
        model = copy.deepcopy(self.model).merge_and_unload() if self._lora else self.model
        model.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)


@final
class Learner:
    """An actor with its optimizer: AdamW without weight decay, because the divergence from the start holds the weights, where anything does.

    Args:
        clip: the largest norm of the gradient.
    """

    def __init__(self, actor: Actor, rate: float, clip: float) -> None:
        self._actor, self._clip = actor, clip
        self._optimizer = torch.optim.AdamW(actor.trained(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)

    def step(self, rate: float, remedy: str) -> float:
        """Take a step along the gradients that are there; their norm before clipping.

        Raises:
            CheckpointError: it is not finite.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self._actor.trained(), self._clip)
        if not torch.isfinite(norm):
            raise CheckpointError(f"the gradient is {norm.item()}: {remedy}")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm.item()

    def state(self) -> dict[str, Any]:
        """Weights and optimizer."""
        weights = [weight.detach() for weight in self._actor.trained()]
        return {"weights": weights, "optimizer": self._optimizer.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        with torch.no_grad():
            for weight, saved in zip(self._actor.trained(), state["weights"], strict=True):
                weight.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])


def _with_lora(model: Any, rank: int, seed: int) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError:
        from stepmark.errors import MissingExtraError

        raise MissingExtraError("LoRA needs peft: pip install 'stepmark[train]'") from None
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0, bias="none"
    )
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # peft 0.21 asks transformers a question that transformers means to rename.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return get_peft_model(model, config)
