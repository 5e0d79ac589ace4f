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
from stepmark.errors import UsageError
from stepmark.metrics.aggregate import aggregate


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveOrder:
    """How items are ordered.

    Raises:
        UsageError: a setting out of its range.
    """

    convincing: float = 1.0
    """Share of convincing wrong answers among those handed out, as long as there are any, in (0, 1]. 1: all of them first; 0.8: PRM800K's mix."""
    threshold: float = 0.5
    """A score strictly under it is an error, in (0, 1): the PRM's own."""
    uncertain: float = 0.5
    """From which uncertainty on an item is uncertain, in (0, 1]: 1 is a score at the threshold, 0 a score of 0 or 1."""

    def __post_init__(self) -> None:
        for name in ("convincing", "uncertain"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise UsageError(f"{name}: expected a number over 0 and at most 1, found {value!r}")
        if not 0 < self.threshold < 1:
            raise UsageError(f"threshold: expected a number between 0 and 1, found {self.threshold!r}")


def active_order(
    items: Sequence[Item],
    settings: ActiveOrder = ActiveOrder(),
    *,
    disputed: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """For each item's id its `order`: whole numbers from the number of items down to 1, the higher the earlier.

    Args:
        items: the scores are those of their suggestions. Equal inputs give equal orders; ties stay as given.
        settings: the mix.
        disputed: severity of disputed items (`annotation.disputes`).
    """
    worst = disputed or {}
    convincing: list[tuple[float, str]] = []
    rest: list[tuple[tuple[float, float], str]] = []
    for item in items:
        scores = [None if one is None else one.score for one in item.suggestions]
        wrong = item.outcome is False and bool(scores)
        if wrong and all(score is not None and score >= settings.threshold for score in scores):
            convincing.append((-aggregate(scores, "product"), item.id))
            continue
        doubt = uncertainty(scores, settings.threshold)
        if doubt is not None and doubt >= settings.uncertain:
            rest.append(((0, -doubt), item.id))
        elif item.id in worst:
            rest.append(((1, -worst[item.id]), item.id))
        else:
            rest.append(((2, -(doubt or 0.0)), item.id))
    # The key alone: sorting is stable, so that ties keep the order given and not that of their names.
    first = [name for _, name in sorted(convincing, key=lambda entry: entry[0])]
    others = [name for _, name in sorted(rest, key=lambda entry: entry[0])]
    ordered = _mixed(first, others, settings.convincing)
    return {name: float(len(ordered) - place) for place, name in enumerate(ordered)}


def uncertainty(scores: Sequence[float | None], threshold: float = 0.5) -> float | None:
    """How near to the threshold a solution's scores come.

    Args:
        scores: probabilities, one a step; a step without one says nothing.
        threshold: between 0 and 1.

    Returns:
        The largest over the steps up to the first one under the threshold: 1 at the threshold, falling linearly to 0 at scores of 0 and 1. None
        without scores.
    """
    found: float | None = None
    for score in scores:
        if score is None:
            continue
        near = score / threshold if score < threshold else (1 - score) / (1 - threshold)
        found = near if found is None else max(found, near)
        if score < threshold:
            break
    return found


def _mixed(first: Sequence[str], others: Sequence[str], share: float) -> list[str]:
    """Of any n at the head, the n * share rounded up are of `first`, as long as both last."""
    ordered: list[str] = []
    waiting, rest = list(reversed(first)), list(reversed(others))
    taken = 0
    while waiting and rest:
        # Half a millionth off: 0.8 * 5 must not be a little over 4.
        if taken < (len(ordered) + 1) * share - 5e-7:
            ordered.append(waiting.pop())
            taken += 1
        else:
            ordered.append(rest.pop())
    return ordered + waiting[::-1] + rest[::-1]
