"""Credit for turns: from the rewards of a conversation's turns to an advantage for each turn. All functions are pure.

B conversations of at most K turns; `groups` says which are of one problem. An advantage per turn becomes one per token by
`over_tokens(advantages, turn_of)`, where `turn_of` (`turn_of_tokens`) is -1 at what the policy did not write: tool output, the
user's words, padding. Such tokens are left out of the loss.

**A trap** (verl issue 7244): to centre each reward by the mean of its turn index, and then to sum what is left from turn k on. How many means
are subtracted then depends on when this conversation stops, which the policy decides at turn k, so every further turn is charged its mean
reward. Example: turn 1 earns 0; a conversation that goes on earns 1 at turn 2. Centred by index both are worth 0, so going on is never
learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stepmark.errors import InputError, UsageError
from stepmark.rl.credit.advantages import normalised, over_step_tokens, to_go


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Conversations and their rewards.

    Raises:
        InputError: shapes that do not fit, a conversation without a turn or with a gap, a reward that is no finite number.
    """

    rewards: Tensor
    """(B, K) float: of each turn, without the outcome; what stands behind the last turn is not read."""
    present: Tensor
    """(B, K) bool: which turns there are; True up to the last, then False."""
    outcome: Tensor
    """(B,) float: of the whole conversation."""
    groups: Tensor
    """(B,) int64: conversations of one problem share a number."""

    def __post_init__(self) -> None:
        rows = len(self.outcome)
        for name, tensor, shape in (
            ("present", self.present, self.rewards.shape),
            ("rewards", self.rewards, (rows, *self.rewards.shape[1:])),
            ("groups", self.groups, (rows,)),
        ):
            if tuple(tensor.shape) != tuple(shape):
                raise InputError(
                    f"{name}: expected the shape {tuple(shape)}, found {tuple(tensor.shape)}", field=name
                )
        if self.rewards.ndim != 2 or not self.rewards.shape[1]:
            raise InputError(
                f"expected rewards of at least one turn, (B, K), found {tuple(self.rewards.shape)}",
                field="rewards",
            )
        gap = (self.present[:, 1:] & ~self.present[:, :-1]).any(-1) | ~self.present[:, 0]
        bad = ~torch.isfinite(self.outcome) | (self.present & ~torch.isfinite(self.rewards)).any(-1)
        if gap.any():
            row = int(torch.nonzero(gap)[0])
            raise InputError(
                "expected at least one turn, and none after the last", where=f"row {row}", field="present"
            )
        if bad.any():
            row = int(torch.nonzero(bad)[0])
            raise InputError("expected finite rewards", where=f"row {row}", field="rewards")

    @property
    def known(self) -> Tensor:
        """(B, K): the rewards, 0 behind the last turn."""
        return torch.where(self.present, self.rewards, 0.0)

    def returns(self, *, gamma: float = 1.0) -> Tensor:
        """(B, K): what each turn and those after it earn, discounted by turn; the outcome is earned by the last turn."""
        last = self.present & ~torch.nn.functional.pad(self.present[:, 1:], (0, 1))
        earned = self.known + torch.where(last, self.outcome[:, None], 0.0)
        return torch.where(self.present, to_go(earned, gamma=gamma), 0.0)


def outcome_broadcast(turns: Turns, *, scale: bool = True) -> Tensor:
    """(B, K): GRPO's advantage of the outcome at every turn (Shao et al. 2024, section 4.1.2), the baseline of the others.

    Mean and deviation are taken over conversations, not turns, so that a long conversation counts once.
    """
    among = torch.ones_like(turns.outcome, dtype=torch.bool)
    advantage = normalised(turns.outcome, turns.groups, among, scale=scale)
    return torch.where(turns.present, advantage[:, None], 0.0)


def discounted(turns: Turns, *, gamma: float = 0.95, scale: bool = True) -> Tensor:
    """(B, K): the discounted return of each turn, normalised over all turns of the group (Kevin, arXiv 2507.11948; verifiers 1554).

    Turns of different places share one baseline, so early turns look good where rewards come late and gamma is 1.
    """
    return normalised(turns.returns(gamma=gamma), turns.groups, turns.present, scale=scale)


def mt_grpo(turns: Turns, *, coefficient: float = 1.0, scale: bool = True) -> Tensor:
    """(B, K): the outcome's advantage at every turn, plus that of the turn's own reward at every turn but the last.

    MT-GRPO (Zeng et al. 2025, arXiv 2505.11821), for K turns; their code has two, and `coefficient` is its `turn_advantage_coef`. No
    epsilon is added to the deviation (theirs: 1e-4). A conversation of one turn has no turn reward; theirs then normalises the sum of both
    rewards. What later turns earn is not credited to earlier ones, so no baseline depends on the end.
    """
    inner = turns.present & torch.nn.functional.pad(turns.present[:, 1:], (0, 1))
    own = _by_index(turns.known, turns, inner, scale=scale)
    return outcome_broadcast(turns, scale=scale) + coefficient * own


def _by_index(values: Tensor, turns: Turns, among: Tensor, *, scale: bool) -> Tensor:
    """`values` normalised among the turns of one place in the group."""
    columns = [
        normalised(values[:, place], turns.groups, among[:, place], scale=scale)
        for place in range(values.shape[1])
    ]
    return torch.stack(columns, dim=1)


def turn_of_tokens(spans: Sequence[Sequence[tuple[int, int]]], tokens: int) -> Tensor:
    """(B, T) int64: the turn that each token was written in; -1 where the policy did not write it.

    Args:
        spans: for each conversation, the first token of each turn and the one after its last.
        tokens: T.

    Raises:
        UsageError: spans that are empty, overlap or lie outside.
    """
    turn_of = torch.full((len(spans), tokens), -1, dtype=torch.int64)
    for row, turns in enumerate(spans):
        before = 0
        for turn, (start, end) in enumerate(turns):
            if not before <= start < end <= tokens:
                raise UsageError(
                    f"row {row}, turn {turn}: expected tokens after {before} and up to {tokens}, found {start} to {end}"
                )
            turn_of[row, start:end] = turn
            before = end
    return turn_of


def over_tokens(advantages: Tensor, turn_of: Tensor) -> Tensor:
    """(B, T): each turn's advantage at its own tokens, 0 at what the policy did not write."""
    return over_step_tokens(advantages, turn_of)
