"""Credit assignment: from a batch's rewards to an advantage for each token. Every function takes a `Batch` and names its paper.

Where the papers are silent or differ from their published code, the docstring of the function says what is done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from stepmark.rl.batch import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What a method reads beside outcomes."""

    steps: bool = False
    """Step rewards: a PRM."""
    tokens: bool = False
    """Token rewards: an implicit PRM."""
    values: bool = False
    """A critic."""
    probabilities: bool = False
    """Step rewards that are probabilities, and no margins or the like."""


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """What a batch's tokens are worth."""

    advantages: Tensor
    """(B, T), 0 where masked."""
    returns: Tensor | None = None
    """(B, T): what a critic is fitted to; None for methods without one."""


class Credit(Protocol):
    """A way to assign credit: a frozen dataclass of settings."""

    @property
    def name(self) -> str:
        """The method's name in records of a run."""

    @property
    def needs(self) -> Needs:
        """What the batch must hold."""

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """The advantages of a batch.

        Args:
            batch: with what `needs` says.
            kl: (B, T): what the divergence from the reference adds to each token's reward (`kl.kl_reward`), or None.
        """
