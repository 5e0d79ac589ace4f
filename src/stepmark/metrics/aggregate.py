"""From step scores to one number for the solution.

===========  =====================================================================  ==================
name         what it is                                                             score kinds
===========  =====================================================================  ==================
product      the product of the steps: P(every step is right), were they            probability
             independent (Lightman et al. 2023, section 2.6; the usual default)
min          the weakest step                                                       all
mean         the arithmetic mean (RLHFlow's best-of-n script)                       all but unbounded
last         the last step, read as a verdict on the whole                          all
max          the strongest step; for study                                          all
sum-logit    the sum of log(p / (1 - p))                                            probability
softmin      the sum of softmax(-s / T) * s with T = 0.1: PURE's min-form           all but unbounded
             (Cheng et al. 2025, "Stop Summation", arXiv 2504.15275, section 3)
===========  =====================================================================  ==================

A product or a logit of something that is no probability means nothing, and of an unbounded score only the
order means something; both are refused. An aggregate of no scores raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stepmark.errors import InputError, ScoreKindError
from stepmark.records import ScoreKind
from stepmark.registry import unknown_name

AGGREGATES: tuple[str, ...] = ("product", "min", "mean", "last", "max", "sum-logit", "softmin")
"""Every way to make one number of step scores."""

SOFTMIN_TEMPERATURE = 0.1
"""PURE's temperature, in units of the score."""

_NEEDS_PROBABILITY = frozenset({"product", "sum-logit"})
_NEEDS_A_SCALE = frozenset({"mean", "softmin"})

_BOUNDS: dict[str, tuple[float, float]] = {
    "probability": (0.0, 1.0),
    "margin": (-1.0, 1.0),
    "log-ratio": (-math.inf, math.inf),
    "unbounded": (-math.inf, math.inf),
}


def rank_key(score: float | None, *, refuted: bool = False) -> tuple[bool, bool, float]:
    """What solutions are sorted by, the best first: a proof outranks a score, and a score outranks none.

    A solution with a step that an exact check proves to be wrong (`refuted`: `GradedSolution.refuted`, or any finding of `stepmark.check`)
    comes after all others. Among equals of that, the highest score comes first, and one without a score last. Every place that ranks or
    chooses solutions sorts by this key (`min` chooses the best); a vote gives what is refuted no weight.

    >>> sorted([(0.9, True), (None, False), (0.2, False)], key=lambda one: rank_key(one[0], refuted=one[1]))
    [(0.2, False), (None, False), (0.9, True)]
    """
    return refuted, score is None, 0.0 if score is None else -score


def allowed(kind: ScoreKind) -> tuple[str, ...]:
    """The aggregates that mean something for this kind of score, in the order of `AGGREGATES`."""
    refused: frozenset[str] = frozenset()
    if kind != "probability":
        refused |= _NEEDS_PROBABILITY
    if kind == "unbounded":
        refused |= _NEEDS_A_SCALE
    return tuple(how for how in AGGREGATES if how not in refused)


def check_aggregate(how: str, kind: ScoreKind) -> str:
    """The same name, once it is known and means something for this kind of score.

    Raises:
        UnknownNameError: no such aggregate.
        ScoreKindError: it is meaningless for `kind`.
    """
    if how not in AGGREGATES:
        raise unknown_name("aggregate", how, AGGREGATES)
    if how not in allowed(kind):
        why = (
            "only the order of unbounded scores means something"
            if how in _NEEDS_A_SCALE
            else f"a {how} is made of probabilities"
        )
        raise ScoreKindError(
            f"{how!r} has no meaning for scores of the kind {kind!r}: {why}. Use one of: {', '.join(allowed(kind))}"
        )
    return how


def check_score(score: float, kind: ScoreKind, *, step: int) -> float:
    """The score of step `step` (0-based), once it is a finite number in the range of its kind.

    Raises:
        InputError: it is not; the message says what was found.
    """
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise InputError(f"the score of step {step} (0-based) is {score!r}: expected a number")
    low, high = _BOUNDS[kind]
    if not (math.isfinite(score) and low <= score <= high):
        expected = f"a number in [{low:g}, {high:g}]" if math.isfinite(low) else "a finite number"
        raise InputError(f"the score of step {step} (0-based) is {score!r}: expected {expected} ({kind})")
    return float(score)


def resolve_aggregate(aggregate: str | None, own: str, kind: ScoreKind) -> str:
    """The aggregate that a run uses: the one that was set, or else the PRM's own.

    Args:
        aggregate: as it was set; None for the PRM's own.
        own: the PRM's own (`PRM.default_aggregate`).
        kind: of the PRM's scores.

    Raises:
        UnknownNameError: no such aggregate.
        ScoreKindError: it means nothing for this kind of score.
    """
    return check_aggregate(own if aggregate is None else aggregate, kind)


def aggregate(scores: Sequence[float | None], how: str, *, kind: ScoreKind = "probability") -> float:
    """One number of the step scores of one solution.

    Args:
        scores: one a step, in order, each in the range of `kind`. None (a step that was not read) is
            refused, save before the last step when `how` is "last".
        how: one of `AGGREGATES`; the table of this module says what each is.
        kind: what the scores are; decides what may be done with them.

    Returns:
        In [0, 1] for a product of probabilities; between the smallest and the largest score for min, mean,
        last, max and softmin; any number for sum-logit, where a step of exactly 0 makes it -inf and one of
        exactly 1 makes it inf: that is the limit, and it is not softened by an invented bound.

        A product is computed in log space (base 2: mantissas multiplied, exponents added), so no digit is
        lost on the way. Its value is still a float: under 4.9e-324, after 1075 steps of 0.5, it is 0.0.

    Raises:
        UnknownNameError: no such aggregate.
        ScoreKindError: the aggregate means nothing for this kind of score.
        InputError: no scores; a step without one; a score out of range or not finite; or a sum of logits
            of a certain 0 and a certain 1 together, which has no value.
    """
    check_aggregate(how, kind)
    if len(scores) == 0:
        raise InputError(f"there is no {how} of no scores: expected one score a step, found none")
    values: list[float] = []
    for step, score in enumerate(scores):
        if score is not None:
            values.append(check_score(score, kind, step=step))
        elif how != "last" or step == len(scores) - 1:
            raise InputError(
                f"step {step} (0-based) of {len(scores)} has no score, so the solution has no {how}. "
                "A step is without a score when it was cut off (truncated) or not read"
            )
    return _AGGREGATE[how](values)


def aggregate_checked(scores: Sequence[float], how: str) -> float:
    """As `aggregate`, of scores that are checked already: all there and of a kind that allows it."""
    return _AGGREGATE[how](list(scores))


def _product(values: list[float]) -> float:
    mantissa, exponent = 1.0, 0
    for value in sorted(values):  # sorted: the last bit must not depend on the order of the steps
        mantissa, shift = math.frexp(mantissa * math.frexp(value)[0])
        exponent += shift + math.frexp(value)[1]
    return math.ldexp(mantissa, exponent)


def _mean(values: list[float]) -> float:
    # fsum is exact, the division rounds: without the clamp the mean of three times 0.1 is above 0.1.
    return min(max(math.fsum(values) / len(values), min(values)), max(values))


def _sum_logit(values: list[float]) -> float:
    certain = {value for value in values if value in (0.0, 1.0)}
    if len(certain) == 2:
        zero, item = values.index(0.0), values.index(1.0)
        raise InputError(
            f"the sum of logits has no value: step {zero} (0-based) has a probability of exactly 0 and step "
            f"{item} of exactly 1. Probabilities saturate in low precision: score in float32, or take another "
            "aggregate"
        )
    if certain:
        return -math.inf if 0.0 in certain else math.inf
    return math.fsum(math.log(value) - math.log1p(-value) for value in values)


def _softmin(values: list[float]) -> float:
    low = min(values)
    weights = [math.exp((low - value) / SOFTMIN_TEMPERATURE) for value in values]
    # Written as the smallest score plus a weighted mean of what each is above it: exact at equality.
    above = math.fsum(w * (v - low) for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
    return min(low + above, max(values))


def _last(values: list[float]) -> float:
    return values[-1]


_AGGREGATE: dict[str, Callable[[list[float]], float]] = {
    "product": _product,
    "min": min,
    "mean": _mean,
    "last": _last,
    "max": max,
    "sum-logit": _sum_logit,
    "softmin": _softmin,
}
