"""Train a marker head and a LoRA adapter on packed trees of labelled steps.

Every distinct prefix token of a problem is computed once; the loss is binary cross-entropy at the labelled
step ends, weighted by their number, so that it equals the loss over separate rows. Deviations from Lightman
et al. 2023: a one-unit head on the marker's hidden state instead of a rating token, LoRA instead of all
weights, and one label a distinct step instead of one a row.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from stepmark.errors import UsageError
from stepmark.metrics.binary import auc
from stepmark.models import attention
from stepmark.models.backbone import load_backbone, load_tokenizer, token_limit
from stepmark.models.encoding import Encoder
from stepmark.models.spec import ScoringSpec
from stepmark.training.data import Example, LabelledTree, batches, by_problem, coarsen, trees


@dataclass(frozen=True, kw_only=True)
class Train:
    """Settings of a training run; written beside its result."""

    rank: int = 16
    """LoRA rank, on every linear layer that is trained."""
    alpha: float = 32.0
    """LoRA scale is alpha / rank."""
    frozen_layers: int = 10
    """The lowest layers get no adapter, so that no gradient runs through them."""
    learning_rate: float = 4e-4
    """Peak of a linear warm-up and a cosine decay to a tenth."""
    warmup: float = 0.05
    """Share of the steps."""
    epochs: int = 1
    token_budget: int = 2048
    """Distinct tokens a step."""
    limit_tokens: int | None = None
    """Distinct tokens an epoch, the same number from each source; None takes everything."""
    max_tokens: int = 512
    """Longer examples are left out and counted."""
    coarsen: float = 0.5
    """Share of step borders joined away (`training.data.coarsen`), drawn anew each epoch."""
    neutral: str = "positive"
    held_out: float = 0.06
    """Share of problems kept for measuring."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What a grader does on held-out steps."""

    loss: float
    accuracy: float
    """At 0.5, without calibration."""
    auc: float
    """Probability that a right step scores above a wrong one, ties half."""
    labels: int


def split_problems(
    rows: Sequence[Example], share: float, seed: int
) -> tuple[list[list[Example]], list[list[Example]]]:
    """Training and held-out groups; a problem is wholly in one of them."""
    groups = list(by_problem(rows).values())
    order = list(range(len(groups)))
    random.Random(seed).shuffle(order)
    held = set(order[: round(len(groups) * share)])
    return (
        [g for i, g in enumerate(groups) if i not in held],
        [g for i, g in enumerate(groups) if i in held],
    )


class Trainer:
    """A backbone with LoRA, a head, and the loop.

    Args:
        base: folder of the base model.
        spec: how solutions are read; its layout encodes the training rows.
        settings: see `Train`.
        out: folder for the state while running.

    Raises:
        CheckpointError: the base cannot be loaded, or its tokenizer lacks the layout's mark.
        UsageError: `frozen_layers` leaves nothing to train.
    """

    def __init__(
        self,
        base: Path,
        spec: ScoringSpec,
        settings: Train,
        out: Path,
        *,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(settings.seed)
        self.base, self.settings, self.spec, self.out = base, settings, spec, out
        backbone = load_backbone(base, dtype=dtype, device="cpu")
        limit = token_limit(backbone.config)
        self.encoder = Encoder(
            load_tokenizer(base),
            spec.layout,
            max_tokens=min(settings.max_tokens, limit or settings.max_tokens),
        )
        # A base without the marker would be trained, and read, at the last piece of it.
        self.encoder.check()
        layers = backbone.config.num_hidden_layers
        if settings.frozen_layers >= layers:
            # peft takes an empty list of layers for all of them.
            raise UsageError(
                f"frozen_layers is {settings.frozen_layers}, and the base has {layers} layers: none is left to train"
            )
        with warnings.catch_warnings():
            # peft 0.21 asks transformers a question that transformers means to rename.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            self.model: Any = get_peft_model(
                backbone,
                LoraConfig(
                    r=settings.rank,
                    lora_alpha=settings.alpha,
                    target_modules=[
                        "q_proj",
                        "k_proj",
                        "v_proj",
                        "o_proj",
                        "gate_proj",
                        "up_proj",
                        "down_proj",
                    ],
                    layers_to_transform=list(range(settings.frozen_layers, layers)),
                    layers_pattern="layers",
                ),
                # The adapter computes in the base's precision; the optimizer keeps float32 copies below.
                autocast_adapter_dtype=False,
            )
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(dtype)
        self.head = torch.nn.Linear(backbone.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad] + list(
            self.head.parameters()
        )
        # Updates of 1e-4 vanish in bfloat16, so they are made in float32 and copied back.
        self.masters = [p.detach().float().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        self.done = 0

    def logits(self, batch: Sequence[LabelledTree]) -> torch.Tensor:
        """Logits at the labelled step ends of a batch, [labels], tree after tree."""
        reads, start = [], 0
        for item in batch:
            reads += [start + r for r in item.reads]
            start += len(item.tree)
        ids = torch.from_numpy(np.concatenate([item.tree.ids for item in batch]))
        depths = torch.from_numpy(np.concatenate([item.tree.depths for item in batch]))
        hidden = self.model(
            input_ids=ids[None],
            position_ids=depths[None],
            use_cache=False,
            stepmark_plan=attention.Plan.of_trees([item.tree for item in batch], "cpu"),
        ).last_hidden_state[0]
        logits: torch.Tensor = self.head(hidden[torch.tensor(reads)].float()).squeeze(-1)
        return logits

    def epoch(
        self, groups: Sequence[Sequence[Example]], number: int, refused: list[Any]
    ) -> list[list[LabelledTree]]:
        """The batches of one epoch: the same for the same seed, so that a run can resume inside it."""
        settings = self.settings
        seed = settings.seed * 1000 + number
        rng = random.Random(seed)
        sources: dict[str | None, list[Sequence[Example]]] = {}
        for group in groups:
            sources.setdefault(group[0].solution.problem.source, []).append(group)
        limit = math.inf if settings.limit_tokens is None else settings.limit_tokens / len(sources)
        items: list[LabelledTree] = []
        for members in sources.values():
            rng.shuffle(members)
            coarse = ([coarsen(e, settings.coarsen, seed) for e in group] for group in members)
            size = 0
            for item in trees(coarse, self.encoder, budget=settings.token_budget, refused=refused):
                if size >= limit:
                    break
                items.append(item)
                size += len(item.tree)
        return batches(items, budget=settings.token_budget, rng=rng)

    def run(
        self,
        groups: Sequence[Sequence[Example]],
        *,
        report: Callable[[dict[str, float]], None],
        save_every: int = 50,
    ) -> None:
        """Train, resuming from the saved state of an interrupted run in `out` if there is one.

        Raises:
            UsageError: that state is of a run with other settings, another base or other rows.
        """
        refused: list[Any] = []
        plan = [self.epoch(groups, n, refused) for n in range(self.settings.epochs)]
        total = sum(len(e) for e in plan)
        run = self._identity(plan)
        self._resume(run)
        self.model.train()
        began, tokens, first = time.monotonic(), 0, self.done
        for step, batch in enumerate((b for e in plan for b in e), start=1):
            if step <= self.done:
                continue
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * self._schedule(step, total)
            labels = torch.tensor([label for item in batch for label in item.labels])
            loss = F.binary_cross_entropy_with_logits(self.logits(batch), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            for master, parameter in zip(self.masters, self.parameters, strict=True):
                master.grad = None if parameter.grad is None else parameter.grad.float()
                parameter.grad = None
            norm = torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
            self.optimizer.step()
            self._publish()
            self.done = step
            tokens += sum(len(item.tree) for item in batch)
            seconds = time.monotonic() - began
            report(
                {
                    "step": step,
                    "steps": total,
                    "loss": loss.item(),
                    "labels": len(labels),
                    "gradient": float(norm),
                    "tokens_per_second": tokens / seconds,
                    "seconds_per_step": seconds / (step - first),
                    "refused": len(refused),
                }
            )
            if step % save_every == 0:
                self._save_state(run)

    def _schedule(self, step: int, total: int) -> float:
        warm = max(1, round(total * self.settings.warmup))
        if step <= warm:
            return step / warm
        return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))

    def predict(self, groups: Sequence[Sequence[Example]]) -> Iterator[tuple[float, float]]:
        """(logit, label) of every labelled step of held-out problems."""
        self.model.eval()
        for batch in self.epoch(groups, -1, []):
            with torch.inference_mode():
                logits = self.logits(batch)
            yield from zip(logits.tolist(), (label for item in batch for label in item.labels), strict=True)

    def _publish(self) -> None:
        """Copy the float32 masters into the parameters that compute."""
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters, strict=True):
                parameter.copy_(master)

    def _state(self) -> Path:
        return self.out / "state.pt"

    def _identity(self, plan: Sequence[Sequence[Sequence[LabelledTree]]]) -> str:
        """What a run is told by: a state goes on with the same batches or with none."""
        rows = hashlib.sha256()
        for item in (item for epoch in plan for batch in epoch for item in batch):
            for numbers in (item.tree.ids, item.tree.parents, item.reads, item.labels):
                rows.update(np.asarray(numbers, dtype=np.float64).tobytes())
        return json.dumps(
            {"settings": asdict(self.settings), "base": str(self.base), "rows": rows.hexdigest()}
        )

    def _save_state(self, run: str) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        temporary = self._state().with_suffix(".part")
        torch.save(
            {
                "run": run,
                "done": self.done,
                "parameters": self.masters,
                "optimizer": self.optimizer.state_dict(),
            },
            temporary,
        )
        temporary.rename(self._state())

    def _resume(self, run: str) -> None:
        if not self._state().is_file():
            return
        state = torch.load(self._state(), weights_only=True)
        if state.get("run") != run:
            raise UsageError(
                f"{self._state()} is of a run with other settings, another base or other rows; delete it or choose "
                "another folder"
            )
        for master, saved in zip(self.masters, state["parameters"], strict=True):
            master.copy_(saved)
        self._publish()
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]


def measure(pairs: Sequence[tuple[float, float]]) -> Measure:
    """Loss, accuracy and AUC of (logit, label) pairs."""
    logits = torch.tensor([p[0] for p in pairs])
    labels = torch.tensor([p[1] for p in pairs])
    return Measure(
        loss=float(F.binary_cross_entropy_with_logits(logits, labels)),
        accuracy=float(((logits > 0) == (labels > 0.5)).float().mean()),
        auc=auc(logits.tolist(), (labels > 0.5).float().tolist()),
        labels=len(pairs),
    )
