"""What a choice among N candidates gives in expectation, estimated without bias from M >= N candidates.

M candidates were sampled for a problem; what would the method have chosen from N of them? Taking the first N is a
noisy answer, taking N with replacement a biased one (a candidate competes with its own copy). Here it is the mean
over **all** subsets of size N, drawn without replacement:

- best by score, in closed form. Sort by score; a candidate with `a` candidates above it is the best of a subset
  with probability C(M-a-1, N-1) / C(M, N). `k` candidates with the same score share what the ranks a .. a+k-1
  have together: (C(M-a, N) - C(M-a-k, N)) / C(M, N), split equally.
- at least one right (pass@N): 1 - C(M-c, N) / C(M, N) (Chen et al. 2021, "Evaluating Large Language Models Trained
  on Code", arXiv 2107.03374, equation 1).
- votes have no closed form: every subset is enumerated up to a stated number of subsets; above it, seeded random
  subsets stand for all, and their number is recorded.

Every function works on plain arrays over the M candidates of one problem. `right` and `unknown` are the
probabilities that a candidate is right, and that nobody knows whether it is (1 or 0 for one candidate; an answer
group has the mean of its members).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Floats

TIE = 1e-9
"""Vote totals closer than this, relative to the highest, are a tie: a sum of floats depends on its order in the
last bits, and two groups with the same weights must tie whatever the order of the candidates."""


class Chosen(NamedTuple):
    """What a method's choice from a random subset is, as probabilities; right + wrong + unknown = 1."""

    right: float
    """The choice is right."""
    unknown: float
    """Something was chosen of which nobody knows whether it is right."""
    nothing: float
    """No candidate could be chosen (none has a score, nobody votes): part of what is wrong."""


def subset_sizes(candidates: int) -> tuple[int, ...]:
    """1, 2, 4, … up to `candidates`, and `candidates` itself.

    Raises:
        UsageError: `candidates` is under 1.
    """
    if candidates < 1:
        raise UsageError(f"there are no subsets of {candidates} candidates: expected at least 1")
    powers = [1 << exponent for exponent in range(candidates.bit_length()) if 1 << exponent <= candidates]
    return tuple(powers) if powers[-1] == candidates else (*powers, candidates)


def _check(candidates: int, size: int) -> None:
    if not 1 <= size <= candidates:
        raise UsageError(f"a subset of {size} out of {candidates} candidates: expected 1 to {candidates}")


@lru_cache(maxsize=256)
def _missed(candidates: int, size: int) -> Floats:
    """`out[a]`: the probability that a random subset holds none of `a` given candidates; a = 0 .. M."""
    total = math.comb(candidates, size)
    # Integers divided once: the quotient is correctly rounded however large the binomials are.
    out = np.array([math.comb(candidates - a, size) / total for a in range(candidates + 1)])
    out.setflags(write=False)
    return out


def chosen_shares(scores: Floats, size: int) -> Floats:
    """The probability that each candidate is the best of a random subset of `size`.

    Args:
        scores: one a candidate, shape (M,); NaN for a candidate without a score, which is never chosen. Infinite
            scores are ordered like any other. Equal scores share equally.
        size: N, 1 .. M.

    Returns:
        Shape (M,); the sum is 1 less the probability that no candidate of the subset has a score.

    Raises:
        UsageError: `size` is not within 1 .. M.
    """
    _check(len(scores), size)
    missed = _missed(len(scores), size)
    shares = np.zeros(len(scores))
    scored = ~np.isnan(scores)
    _, group, members = np.unique(-scores[scored], return_inverse=True, return_counts=True)
    above = np.cumsum(members) - members
    shares[scored] = ((missed[above] - missed[above + members]) / members)[group]
    return shares


def best_of(scores: Floats, right: Floats, unknown: Floats, size: int) -> Chosen:
    """The candidate with the highest score of a random subset of `size` (see `chosen_shares`)."""
    shares = chosen_shares(scores, size)
    nothing = _missed(len(scores), size)[int(np.count_nonzero(~np.isnan(scores)))]
    return Chosen(float(shares @ right), float(shares @ unknown), float(nothing))


def at_least_one(right: Floats, unknown: Floats, size: int) -> Chosen:
    """The oracle: right when any candidate of a random subset of `size` is right (pass@N).

    A subset without a right candidate but with one of unknown correctness counts as unknown. `right` and
    `unknown` hold 0 or 1 here.
    """
    _check(len(right), size)
    missed = _missed(len(right), size)
    rights, unknowns = int(right.sum()), int(unknown.sum())
    return Chosen(float(1.0 - missed[rights]), float(missed[rights] - missed[rights + unknowns]), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subsets:
    """The subsets of one size that stand for all of that size; shared by all problems with M candidates."""

    members: Floats
    """Shape (M, K): 1 where candidate m is in subset k. K subsets side by side, so that a sum over candidates is a
    matrix product."""
    exact: bool
    """True: these are all C(M, N) subsets. False: a seeded random sample of them."""

    @property
    def count(self) -> int:
        """K."""
        return int(self.members.shape[1])


@lru_cache(maxsize=64)
def subsets(candidates: int, size: int, *, limit: int, draws: int, seed: int) -> Subsets:
    """All subsets of `size` out of `candidates` when there are at most `limit`, else `draws` random ones.

    Each random subset is uniform over all subsets of that size, independent of the others (the same one may come
    twice). Equal arguments give equal subsets.

    Raises:
        UsageError: `size` is not within 1 .. `candidates`, or `draws` is under 1.
    """
    _check(candidates, size)
    if draws < 1:
        raise UsageError(f"{draws} random subsets: expected at least 1")
    total = math.comb(candidates, size)
    if total <= max(limit, 1):
        flat = chain.from_iterable(combinations(range(candidates), size))
        chosen = np.fromiter(flat, dtype=np.intp, count=total * size).reshape(total, size)
    else:
        generator = np.random.default_rng([seed, candidates, size])
        chosen = np.argsort(generator.random((draws, candidates)), axis=1)[:, :size]
    members = np.zeros((candidates, len(chosen)))
    members[chosen.T, np.arange(len(chosen))] = 1.0
    members.setflags(write=False)
    return Subsets(members=members, exact=total <= max(limit, 1))


def vote(groups: NDArray[np.intp], weights: Floats, right: Floats, unknown: Floats, among: Subsets) -> Chosen:
    """The answer group with the highest total weight in a subset, on average over the subsets `among`.

    Groups whose totals tie (within `TIE`) are chosen uniformly at random: the expectation over that choice. A group
    is right as often as its members are: all or none of them, when equal answers are judged alike.

    Args:
        groups: answer group of each candidate, shape (M,), any integers; negative for a candidate without an
            answer, which never votes.
        weights: what each vote weighs, shape (M,), at least 0; NaN for a candidate that cannot vote. All 1: the
            majority vote. A subset where all weights are 0 is a tie of the groups that voted.
        right: shape (M,).
        unknown: shape (M,).
        among: subsets of M candidates.

    Raises:
        UsageError: a weight is negative or infinite; a vote cannot be taken away.
    """
    votes = (groups >= 0) & ~np.isnan(weights)
    if not votes.any():
        return Chosen(0.0, 0.0, 1.0)
    if not (np.isfinite(weights[votes]) & (weights[votes] >= 0)).all():
        raise UsageError(
            "a vote's weight is negative or infinite: expected finite weights of at least 0, such as probabilities"
        )
    # A group's correctness is that of all its members, voting or not: the answer is the same.
    _, group = np.unique(groups, return_inverse=True)
    of_group = (group == np.unique(group[votes])[:, None]).astype(np.float64)  # (G, M)
    size = of_group.sum(axis=1)
    group_right, group_unknown = of_group @ right / size, of_group @ unknown / size
    ballots = of_group * votes
    totals = (ballots * np.where(votes, weights, 0.0)) @ among.members  # (G, K)
    if weights[votes].min() <= 0:  # else a group without a vote has 0, and one with a vote more
        totals[ballots @ among.members < 0.5] = -1.0
        silent = -1.0
    else:
        silent = 0.0
    highest = totals.max(axis=0)
    # Where nobody votes no group reaches infinity, so none is chosen.
    tied = (totals >= np.where(highest > silent, highest * (1.0 - TIE), np.inf)).astype(np.float64)
    won = tied @ (1.0 / np.maximum(tied.sum(axis=0), 1.0)) / among.count
    nothing = np.count_nonzero(highest <= silent) / among.count
    return Chosen(float(won @ group_right), float(won @ group_unknown), float(nothing))
