"""An implicit PRM that learns from outcomes while the policy moves (Cui et al. 2025, PRIME)."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.rl.actor import Actor, Learner, Padded, passes, read_rows, rows_of
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
        self._learner = Learner(model, settings.learning_rate, settings.clip)
        self.state, self.load_state = self._learner.state, self._learner.load_state

    def rewards(self, rows: Padded) -> Tensor:
        """(B, T): `beta * (log pi_phi - log pi_ref)` of each token, 0 where masked."""
        return read_rows(rows, self._token_budget, lambda part: self.settings.beta * self._ratios(part))

    def _ratios(self, rows: Padded) -> Tensor:
        return self.model.logprobs(rows)[0] - self.model.reference_logprobs(rows)

    def learn(self, rows: Padded, outcomes: Tensor) -> dict[str, float]:
        """One optimizer step on the batch's cross-entropy: `implicit_loss`, and `implicit_right`, the share of completions whose summed reward has
        the sign of their outcome.
        """
        count, total, right = len(outcomes), 0.0, 0
        for part in passes(rows, torch.arange(count, device=rows.mask.device), self._token_budget):
            logits = self.settings.beta * self._ratios(rows_of(rows, part)).sum(-1)
            loss = F.binary_cross_entropy_with_logits(logits, outcomes[part].float(), reduction="sum") / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
            right += int(((logits > 0) == (outcomes[part] > 0.5)).sum())
        self._learner.step(self.settings.learning_rate, "lower the implicit PRM's learning rate")
        return {"implicit_loss": total, "implicit_right": right / count}
