"""What credit assignment reads: a batch of completions with their rewards, as tensors.

B completions of at most T tokens, cut into at most S steps. All tensors have the same device; floats have the same type.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepmark.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Completions and their rewards.

    Raises:
        InputError: shapes that do not fit, a reward that is no finite number, a step that ends where no token is. The error names
            the row and the step.
    """

    mask: Tensor
    """(B, T) bool: the tokens that are trained on. Padding, the prompt and what the policy did not write are False."""
    groups: Tensor
    """(B,) int64: completions of one problem share a number."""
    outcome: Tensor
    """(B,) float: the verifier's reward, 1 for a right answer and 0 for a wrong one, as a rule."""
    step_ends: Tensor
    """(B, S) int64: place of the last token of each step, rising; -1 after the last step."""
    step_rewards: Tensor | None = None
    """(B, S) float: a PRM's score of each step; what stands behind the last step is not read. None where no PRM was asked."""
    token_rewards: Tensor | None = None
    """(B, T) float: an implicit PRM's reward of each token, `beta * (log pi_phi - log pi_ref)`."""
    values: Tensor | None = None
    """(B, T) float: a critic's value of the state *before* each token."""

    def __post_init__(self) -> None:
        if self.mask.dtype != torch.bool or self.mask.ndim != 2:
            raise InputError(f"mask: expected a bool tensor (B, T), found {_shape(self.mask)}", field="mask")
        rows, tokens = self.mask.shape
        for name, tensor, shape in (
            ("groups", self.groups, (rows,)),
            ("outcome", self.outcome, (rows,)),
            ("step_rewards", self.step_rewards, tuple(self.step_ends.shape)),
            ("token_rewards", self.token_rewards, (rows, tokens)),
            ("values", self.values, (rows, tokens)),
        ):
            if tensor is not None and tuple(tensor.shape) != shape:
                raise InputError(f"{name}: expected the shape {shape}, found {_shape(tensor)}", field=name)
        ends, present = self.step_ends, self.has_step
        if ends.ndim != 2 or len(ends) != rows:
            raise InputError(f"step_ends: expected ({rows}, S), found {_shape(ends)}", field="step_ends")
        inside = torch.gather(self.mask, 1, ends.clamp(0, tokens - 1)) & (ends < tokens) | ~present
        rising = ~present[:, 1:] | (present[:, :-1] & (ends[:, 1:] > ends[:, :-1]))
        if not (rising.all() and inside.all()):
            row = int(torch.nonzero(~rising.all(-1) | ~inside.all(-1))[0])
            raise InputError(
                f"step_ends: expected rising places of trained tokens under {tokens}, -1 after the last step, found {ends[row].tolist()}",
                where=f"row {row}",
                field="step_ends",
            )
        for name, tensor, read in (
            ("outcome", self.outcome, torch.ones_like(self.outcome, dtype=torch.bool)),
            ("step_rewards", self.step_rewards, present),
            ("token_rewards", self.token_rewards, self.mask),
            ("values", self.values, self.mask),
        ):
            if tensor is not None and (bad := read & ~torch.isfinite(tensor)).any():
                row, *place = torch.nonzero(bad)[0].tolist()
                where = f", {'step' if name == 'step_rewards' else 'token'} {place[0]}" if place else ""
                raise InputError(
                    f"{name}: expected finite numbers, found {tensor[(row, *place)].item()}; a reward that is none cannot be trained on",
                    where=f"row {row}{where}",
                    field=name,
                )

    @property
    def has_step(self) -> Tensor:
        """(B, S) bool: where there is a step."""
        return self.step_ends >= 0

    @property
    def last_token(self) -> Tensor:
        """(B,) int64: place of the last token that is trained on; -1 for a completion without any."""
        places = torch.arange(self.mask.shape[1], device=self.mask.device)
        return (
            torch.where(self.mask, places, -1).amax(-1)
            if len(places)
            else self.groups.new_full((len(self.mask),), -1)
        )

    @property
    def step_of(self) -> Tensor:
        """(B, T) int64: the step that each token belongs to: the first one that ends there or later; -1 after the last one's end and
        for tokens that are not trained on."""
        places = torch.arange(self.mask.shape[1], device=self.mask.device)
        # Behind the last step stands a place that no token reaches, so that the rows stay sorted.
        ends = torch.where(self.has_step, self.step_ends, self.mask.shape[1])
        values = torch.searchsorted(ends.contiguous(), places.expand(len(ends), -1).contiguous())
        return torch.where(self.mask & (values < self.has_step.sum(-1, keepdim=True)), values, -1)

    @property
    def step_lengths(self) -> Tensor:
        """(B, S) int64: trained tokens of each step; 0 where there is none."""
        of = self.step_of
        lengths = torch.zeros_like(self.step_ends)
        return lengths.scatter_add(1, of.clamp_min(0), (of >= 0).to(lengths.dtype))


def _shape(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
