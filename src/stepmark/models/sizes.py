"""How large models in this process are: what a token costs them, for ledgers that count operations."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from stepmark.models.policies import Policy
from stepmark.models.prm import PRM


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """What a token meets on its way through a model."""

    parameters: int
    """Weights that it is multiplied with: without the table of embeddings, with the head where the model writes."""
    attention: int
    """Layers times the width of their attention (heads times their size)."""


def weights_of(machine: Policy | PRM) -> Weights | None:
    """The weights of a policy or a PRM; None where they are not in this process, or where a token meets some of them only (experts)."""
    if "torch" not in sys.modules:  # then no model of ours is loaded, and asking must not load it
        return None
    from stepmark.models.local import HeadPRM, ImplicitPRM
    from stepmark.models.policies.local import LocalPolicy

    if isinstance(machine, LocalPolicy):
        return _weights(machine.model, head=machine.model.get_output_embeddings())
    if isinstance(machine, HeadPRM):
        return _weights(machine.engine.backbone, head=None)
    if isinstance(machine, ImplicitPRM):
        both = [_weights(engine.backbone, head=None) for engine, _ in (machine.policy, machine.reference)]
        heads = machine.policy[1].numel() + machine.reference[1].numel()
        known = [one for one in both if one is not None]
        if len(known) < len(both):
            return None
        return Weights(
            parameters=heads + sum(one.parameters for one in known),
            attention=sum(one.attention for one in known),
        )
    return None


def _weights(model: Any, head: Any) -> Weights | None:
    names = [name for name, _ in model.named_parameters()]
    if any("expert" in name for name in names):
        return None
    table = model.get_input_embeddings().weight
    # A weight that stands at two places is counted once by parameters(), and as the head it is multiplied with.
    count = sum(weight.numel() for weight in model.parameters())
    if head is None or head.weight is not table:
        count -= table.numel()
    config = model.config.get_text_config().to_dict()
    heads = config.get("num_attention_heads")
    layers, hidden = config.get("num_hidden_layers"), config.get("hidden_size")
    if heads is None or layers is None or hidden is None:
        return None
    return Weights(parameters=count, attention=layers * heads * (config.get("head_dim") or hidden // heads))
