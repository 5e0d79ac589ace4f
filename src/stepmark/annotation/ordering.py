"""Active order: what people should label first, from what a PRM says and from disputes.

1. **Convincing wrong answers**: the final answer is wrong and the PRM finds no error (no score under the threshold), the highest product of scores
   first: the PRM has most to learn there (Lightman et al. 2023, section 4.2, "convincing wrong-answer" solutions).
2. **Uncertain**: the score of a step up to the first one under the threshold lies near the threshold; the nearest first.
3. **Disputed**: annotators disagree; the worst first.
4. The rest: by uncertainty, then as given.

Deviation from Lightman et al.: there, 80 % are convincing wrong answers and 20 % the most convincing of the rest; with `convincing=0.8` the 20 %
here come from 2 to 4 in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepmark.annotation.items import Item


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveOrder:
    """How items are ordered."""

    convincing: float = 1.0
    """Share of convincing wrong answers among those handed out, as long as there are any, in (0, 1]. 1: all of them first; 0.8: PRM800K's mix."""
    threshold: float = 0.5
    """A score strictly under it is an error, in (0, 1): the PRM's own."""
    uncertain: float = 0.5
    """From which uncertainty on an item is `uncertain`, in [0, 1]: 1 is a score at the threshold, 0 a score of 0 or 1."""


def active_order(
    items: Sequence[Item],
    settings: ActiveOrder = ActiveOrder(),
    *,
    disputed: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """For each item's id its `order`: the higher the earlier; whole numbers, no two equal.

    Args:
        items: scores are those of their suggestions; deterministic in their order.
        settings: the mix.
        disputed: severity of disputed items (`disputes.disputes`).

    Raises:
        UsageError: a setting out of its range.
    """
    raise NotImplementedError


def uncertainty(scores: Sequence[float | None], threshold: float = 0.5) -> float | None:
    """The largest over the steps up to the first error: 1 at the threshold, falling linearly to 0 at scores of 0 and 1; None without scores."""
    raise NotImplementedError
