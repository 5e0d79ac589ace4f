"""An implicit PRM that learns from outcomes while the policy moves (Cui et al. 2025, PRIME)."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.rl.actor import Actor, Padded, passes, read_rows, rows_of
from stepmark.rl.settings import Implicit

_SETTINGS = Implicit()


@final
class OnlineImplicit:
    """Rewards tokens by a log-ratio of two models and fits one of them to outcomes, on the policy's own tokens.

    The order is PRIME's "after": a batch is rewarded by what was learnt from the ones before it, then learnt from. The cross-entropy is
    `BCE(sigmoid(beta * sum over tokens of log pi_phi / pi_ref), outcome)` (equation 3). `model` is pi_phi, an `Actor` with its reference.
    """

    def __init__(self, model: Actor, settings: Implicit = _SETTINGS, *, token_budget: int = 8192) -> None:
        if not model.has_reference:
            raise UsageError("an implicit PRM is a ratio to a reference: make its actor with reference=True")
        self.model, self.settings, self._token_budget = model, settings, token_budget
        self.optimizer = torch.optim.AdamW(
            model.trained(), lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )

    def rewards(self, rows: Padded) -> Tensor:
        """(B, T): `beta * (log pi_phi - log pi_ref)` of each token, 0 where masked."""
        return read_rows(rows, self._token_budget, lambda part: self.settings.beta * self._ratios(part))

    def _ratios(self, rows: Padded) -> Tensor:
        return self.model.logprobs(rows)[0] - self.model.reference_logprobs(rows)

    def learn(self, rows: Padded, outcomes: Tensor) -> dict[str, float]:
        """One optimizer step on the batch's cross-entropy: `implicit_loss`, and `implicit_right`, the share of completions whose summed reward has
        the sign of their outcome.
        """
        self.optimizer.zero_grad(set_to_none=True)
        count, total, right = len(outcomes), 0.0, 0
        for part in passes(rows, torch.arange(count, device=rows.mask.device), self._token_budget):
            logits = self.settings.beta * self._ratios(rows_of(rows, part)).sum(-1)
            loss = F.binary_cross_entropy_with_logits(logits, outcomes[part].float(), reduction="sum") / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
            right += int(((logits > 0) == (outcomes[part] > 0.5)).sum())
        norm = torch.nn.utils.clip_grad_norm_(self.model.trained(), self.settings.clip)
        if not torch.isfinite(norm):
            raise CheckpointError(f"the implicit PRM's gradient is {norm.item()}: lower its learning rate")
        self.optimizer.step()
        return {"implicit_loss": total, "implicit_right": right / count}

    def state(self) -> dict[str, Any]:
        """Weights and optimizer."""
        return {
            "weights": [weight.detach() for weight in self.model.trained()],
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from there."""
        self.model.load_weights(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
