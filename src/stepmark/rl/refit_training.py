"""A discriminative PRM trained on from where it is: the recipe of a refit, and an objective that begins with the head that the checkpoint has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.models.checkpoint import Tensors, adapter_config
from stepmark.models.detect import spec_of
from stepmark.models.files import ADAPTER_FILE, present
from stepmark.models.generative import critic_spec_of
from stepmark.models.heads import check_head
from stepmark.models.places import NAMES, find_checkpoint
from stepmark.models.spec import Layout, LinearHead, MlpHead, ScoringSpec
from stepmark.training.examples import Target
from stepmark.training.measure import takes_a_map
from stepmark.training.net import Net
from stepmark.training.objectives.base import StepObjective
from stepmark.training.recipe import Recipe
from stepmark.training.settings import Training


@dataclass(frozen=True, kw_only=True)
class Further(StepObjective):
    """Binary cross-entropy against the share of rollouts (Wang et al. 2024, Math-Shepherd, equation 4), from a checkpoint's own head and in its own layout."""

    there: ScoringSpec
    """How the checkpoint is read."""
    folder: Path
    """Where its head is; of an adapter, `training.warm_start` puts the head in its place."""
    adapter: bool
    name: ClassVar[str] = "further"

    @property
    def marked(self) -> bool:
        """Its layout is the checkpoint's: no mark has to be looked for in the vocabulary."""
        return False

    def spec(self, layout: Layout, base: str) -> ScoringSpec:
        """As the checkpoint is read; its calibration is made anew."""
        return replace(
            self.there,
            family="stepmark",
            readout=replace(self.there.readout, scale=1.0, shift=0.0),
            architectures=(),
            settings=(),
            tensors=(),
            checkpoints=(),
        )

    def head(self, net: Net) -> torch.nn.Module:
        """The checkpoint's."""
        form = self.there.readout.head
        single = self.there.readout.activation == "sigmoid"
        if isinstance(form, LinearHead):
            made: torch.nn.Module = torch.nn.Linear(
                net.hidden_size, 1 if single else 2, bias=form.bias is not None
            )
            places = {"weight": form.weight, "bias": form.bias}
        else:
            assert isinstance(form, MlpHead), "refused by `recipe_of`"
            names = [f"{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")]
            places = {name: f"{form.prefix}.{name}" for name in names}
            made = torch.nn.Sequential(
                torch.nn.Linear(net.hidden_size, net.hidden_size),
                torch.nn.ReLU(),
                torch.nn.Linear(net.hidden_size, 2),
            )
        for parameter in made.parameters():
            torch.nn.init.zeros_(parameter)
        if not self.adapter:
            self._fill(made, places)
        return made

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Binary cross-entropy against the share."""
        shares = torch.tensor([t.value for t in targets], dtype=logits.dtype, device=logits.device)
        return F.binary_cross_entropy_with_logits(self._logit(logits), shares, reduction="none")

    def score_of(self, logits: Tensor) -> Tensor:
        """P(right)."""
        return torch.sigmoid(self._logit(logits))

    def _logit(self, logits: Tensor) -> Tensor:
        readout = self.there.readout
        if readout.activation == "sigmoid":
            return logits[:, 0]
        # The softmax of two is the sigmoid of their difference.
        return logits[:, readout.good] - logits[:, 1 - readout.good]

    def _fill(self, made: torch.nn.Module, places: dict[str, str | None]) -> None:
        tensors = Tensors(self.folder)
        readout = self.there.readout
        check_head(readout.head, tensors.facts, folder=self.folder, hidden=None, classes=readout.classes)
        for inner, parameter in made.named_parameters():
            outer = places[inner]
            assert outer is not None, "made without one"
            given = tensors.get(outer)
            if given.shape != parameter.shape:
                raise CheckpointError(
                    f"{self.folder}: {outer} has the shape {tuple(given.shape)}, and a head that is trained further {tuple(parameter.shape)}"
                )
            parameter.data.copy_(given)


def recipe_of(
    place: str,
    *,
    family: str | None,
    rank: int | None,
    learning_rate: float | None,
    epochs: int,
    token_budget: int,
    dtype: str,
    device: str,
    seed: int,
) -> Recipe:
    """How to train a PRM on from where it is.

    An adapter (as "default" is) goes on as an adapter over the same base, with its own rank; of a whole checkpoint all weights are trained, or adapters that
    are merged into what is written.

    Args:
        place: "default", a checkpoint's folder, or a hub name.
        family: how it is read; None tells it from the checkpoint.
        rank: of LoRA over a whole checkpoint; None trains all weights. Of an adapter it is the adapter's, whatever is said here.
        learning_rate: None: `Training`'s.
        epochs: over the rows.
        token_budget: distinct tokens a forward pass; longer rows are left out and counted.
        dtype: as `Training.dtype`.
        device: as `Training.device`.
        seed: of the order.

    Raises:
        UsageError: a PRM that cannot be trained on: one behind a server, a factory's, a generative or an implicit one, one with another head than a linear
            one or a multilayer perceptron with a score of right or wrong.
        CheckpointError: no such checkpoint.
    """
    folder, spec = _read(place, family)
    adapter = present(folder / ADAPTER_FILE)
    base, scale = str(folder), 32.0
    if adapter:
        config = adapter_config(folder)
        base, rank, scale = config["base_model_name_or_path"], int(config["r"]), float(config["lora_alpha"])
        if config.get("use_rslora"):
            assert rank is not None
            scale *= rank**0.5
    lora = {} if rank is None else {"lora_rank": rank, "lora_alpha": scale}
    return Recipe(
        base=base,
        objective=Further(there=spec, folder=folder, adapter=adapter),
        training=Training(
            full=rank is None,
            **lora,  # type: ignore[arg-type]
            dtype=dtype,  # type: ignore[arg-type]
            device=device,
            warm_start=str(folder) if adapter else None,
            learning_rate=learning_rate,
            epochs=epochs,
            token_budget=token_budget,
            max_tokens=token_budget,
            evaluations=1,
            # The plainest layout, which every tokenizer has: the objective takes the checkpoint's own.
            layout="text",
            adapter=adapter,
            seed=seed,
        ),
    )


def _read(place: str, family: str | None) -> tuple[Path, ScoringSpec]:
    wanted = "a refit needs the folder or hub name of a discriminative PRM"
    if place.startswith(("http://", "https://")):
        raise UsageError(f"{place}: {wanted}; a server's weights cannot be trained here")
    if ":" in place and "/" not in place:
        raise UsageError(f"{place}: {wanted}, found a factory")
    folder = NAMES.load(place)() if place in NAMES else find_checkpoint(place)
    if critic_spec_of(folder) is not None:
        raise UsageError(f"{place}: {wanted}, found a generative one")
    spec = spec_of(folder, place, family)
    readout = spec.readout
    if not isinstance(readout.head, LinearHead | MlpHead) or not takes_a_map(readout) or spec.outcome_only:
        raise UsageError(
            f"{place}: {wanted} that scores a step as right or wrong by a head of its own; this one is read as {spec.family} (a {readout.head.kind} head, "
            f"{readout.activation}). Train one with the objective soft"
        )
    return folder, spec
