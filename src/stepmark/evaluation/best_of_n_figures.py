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

Length bias: whether the score follows the length, and where the lowest step falls.

A product of step scores falls with every step, a maximum rises: the aggregate alone favours short or long solutions,
whatever the PRM knows. So, within each problem (problems differ in length, which would mix in), and on average over
problems: the rank correlation of score and length, beside that of correctness and length, which is what a perfect
score would show; and how much longer the chosen solution is than the mean.

A PRM whose lowest step is mostly the last one has drifted into an outcome reward model (Zhang et al. 2025, "The
Lessons of Developing Process Reward Models", arXiv 2501.07301, section 4); the share that chance would give, the mean
of 1 / steps, stands beside it.

Best-of-N: how often each way of choosing among N candidates gives a right answer, and at what price.

=============== ============================================================================================
method          what it answers
=============== ============================================================================================
greedy          the candidate decoded greedily, where there is one; it is no sample and never in a subset
single          one sample: the mean accuracy (pass@1)
majority        the commonest answer (self-consistency, Wang et al. 2022, arXiv 2203.11171)
best AGGREGATE  the candidate with the highest PRM score, for each aggregate of the step scores
best orm        the candidate with the highest outcome score
vote AGGREGATE  the answer with the highest sum of PRM scores (weighted vote); probabilities only
oracle          a right candidate whenever there is one: pass@N, the ceiling of every choice
=============== ============================================================================================

Every number is the expectation over all subsets of N of a problem's M candidates (`stepmark.evaluation.best_of_n_figures`).

What cannot be known is counted and never guessed:

- A candidate whose correctness is unknown stays in the pool, because taking it out would change what the method
  chooses. When it is chosen, the choice is `unknown`: accuracy = right / (right + wrong), and the share of unknown
  choices stands beside it.
- A candidate without a score for an aggregate (a step was not read; or certain 0 and 1 together, which have no sum
  of logits) cannot be chosen by it and does not vote. A candidate without an answer never votes. A subset in which
  nothing can be chosen is wrong, and its share is the figure `nothing`. Where no candidate of any problem has what a
  method needs, the method is left out.
- A problem with fewer candidates than the largest N is not counted at any N, so that all points of a curve are about
  the same problems (`summary` says how many).

The work is done once a problem (`items`); every figure is then a ratio of two means over problems, so a bootstrap
over problems is a matrix product (`statistic`).
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepmark.errors import InputError, UsageError
from stepmark.evaluation.cases import Candidate, CandidateSet, check_set, score_kind, scores_of
from stepmark.metrics.aggregate import AGGREGATES, allowed
from stepmark.metrics.binary import weighted_auc
from stepmark.metrics.intervals import Floats, shares
from stepmark.records import ScoreKind

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


MEASURES = ("steps", "tokens", "characters")
"""What length is measured in."""

CORRECTNESS = "correct"
"""Stands beside the aggregates in `by`: correctness itself taken as the score."""


def ranks(values: Floats) -> Floats:
    """1-based ranks of finite or infinite values; equal ones share their mean rank."""
    _, group, members = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(members)
    means: Floats = last - (members - 1) / 2.0
    return means[group]


def spearman(x: Floats, y: Floats) -> float | None:
    """Spearman's rank correlation with mean ranks for ties, in [-1, 1].

    None where either is constant, or with fewer than two pairs: there is no order to compare.
    """
    if len(x) < 2:
        return None
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    spread = math.sqrt(float(a @ a) * float(b @ b))
    if spread == 0.0:
        return None
    return min(1.0, max(-1.0, float(a @ b) / spread))


def length_of(
    pool: Sequence[Candidate], scores: Mapping[str, Floats], chosen: Mapping[str, Floats]
) -> dict[str, Any]:
    """The lengths of one problem's candidates, JSON-able.

    Args:
        pool: the candidates.
        scores: aggregate -> score of each, NaN where there is none.
        chosen: aggregate -> the probability that each is the best of all.

    Returns:
        For each of `MEASURES`: aggregate -> {`spearman`; `longer`: expected length of the best of all, less the mean},
        each None where it is not defined; and `lowest`: {`solutions` with at least two steps, all scored; `last`: how many have
        their lowest step last (one of k equally low steps counts 1/k); `chance`: the sum of 1 / steps}.
    """
    truth = np.array([math.nan if one.correct is None else float(one.correct) for one in pool])
    steps = [None if one.steps is None else one.steps.scores for one in pool]
    columns = (
        [len(one) if one else None for one in steps],
        [one.tokens for one in pool],
        [one.characters for one in pool],
    )
    lengths: dict[str, Any] = {}
    for measure, values in zip(MEASURES, columns, strict=True):
        length = np.array([math.nan if value is None else float(value) for value in values])
        known = ~np.isnan(length)
        lengths[measure] = {}
        for how, score in {**scores, CORRECTNESS: truth}.items():
            both = known & ~np.isnan(score)
            share = chosen.get(how)
            lengths[measure][how] = {
                "spearman": spearman(score[both], length[both]),
                "longer": None if share is None else _longer(share, length),
            }
    return lengths | {"lowest": _lowest(steps)}


def _longer(share: Floats, length: Floats) -> float | None:
    picked, known = share > 0, ~np.isnan(length)
    if not picked.any() or np.isnan(length[picked]).any():
        return None
    return float(share[picked] @ length[picked] / share[picked].sum() - length[known].mean())


def _lowest(steps: Sequence[Sequence[float | None] | None]) -> dict[str, float]:
    solutions, last, chance = 0, 0.0, 0.0
    for one in steps:
        scores = [score for score in one or () if score is not None]
        if one is None or len(scores) < len(one) or len(scores) < 2:
            continue
        solutions += 1
        low = min(scores)
        last += (scores[-1] == low) / scores.count(low)
        chance += 1.0 / len(scores)
    return {"solutions": solutions, "last": last, "chance": chance}


def length_ratios(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, tuple[list[float], list[float]]]:
    """Figures over problems as numerator and denominator columns; one that is defined for no problem is left out.

    `length/MEASURE/spearman/HOW` and `length/MEASURE/longer/HOW`: means over problems; HOW is an aggregate, `orm`, or `correct`.
    `lowest step is last`, and the same `, by chance`: shares of solutions.

    Args:
        rows: what `length_of` made, None for a problem that does not count.
    """
    ratios: dict[str, tuple[list[float], list[float]]] = {}
    hows = list(dict.fromkeys(how for row in rows if row for how in row[MEASURES[0]]))
    for measure in MEASURES:
        for what in ("spearman", "longer"):
            for how in hows:
                values = [None if row is None else row[measure][how][what] for row in rows]
                if any(value is not None for value in values):
                    ratios[f"length/{measure}/{what}/{how}"] = (
                        [value or 0.0 for value in values],
                        [float(value is not None) for value in values],
                    )
    lowest = [{"solutions": 0, "last": 0.0, "chance": 0.0} if row is None else row["lowest"] for row in rows]
    if any(one["solutions"] for one in lowest):
        solutions = [float(one["solutions"]) for one in lowest]
        ratios["lowest step is last"] = ([one["last"] for one in lowest], solutions)
        ratios["lowest step is last, by chance"] = ([one["chance"] for one in lowest], solutions)
    return ratios


Item = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counting:
    """How candidates are counted."""

    sizes: tuple[int, ...] | None = None
    """The N to report. None: 1, 2, 4, … up to the commonest number of candidates a problem, and that itself."""
    limit: int = 20_000
    """Votes are counted in every subset up to this many subsets (16 candidates have at most 12,870 of a size)."""
    draws: int = 10_000
    """Above `limit`: random subsets a problem."""
    seed: int = 0
    """Of the random subsets."""


def vote_refusal(how: str, kind: ScoreKind) -> str | None:
    """Why an aggregate cannot weigh a vote; None when it can.

    A weight must be a quantity of at least 0: a sum of log-ratios or margins would let a bad candidate vote
    against its own answer, and a shift of the scale would change the winner.
    """
    if kind != "probability":
        return f"scores of the kind {kind!r} can be negative: they are no weights"
    if how == "sum-logit":
        return "a sum of logits can be negative: it is no weight"
    return None


def common_sizes(sets: Sequence[CandidateSet]) -> tuple[int, ...]:
    """1, 2, 4, … up to the commonest number of samples a problem (the larger one of two equally common)."""
    counts = Counter(sum(not c.greedy for c in one.candidates) for one in sets)
    counts.pop(0, None)
    if not counts:
        raise InputError("no problem has a sampled candidate: there is nothing to choose from")
    return subset_sizes(max(counts, key=lambda m: (counts[m], m)))


def items(sets: Sequence[CandidateSet], settings: Counting | None = None) -> list[Item]:
    """One JSON-able row a problem, from which `figures` makes everything.

    Keys: `id` and `problem`; `candidates` (M, without the greedy one); `sizes` (the N); `counted` (M is at least the largest N);
    `methods`: name -> {`right`, `unknown`, `nothing`}, each a list along `sizes` (`single` and `greedy`: one number);
    `subsets`: N -> {`count`, `exact`} of the votes; `tokens`: {`policy`, `prm`, `outcome`, `greedy`}: the mean a
    candidate, None when one is not known, and `prm once` a problem; `missing`: counts of candidates without
    `correct`, `answer`, and a score by aggregate, and `mixed groups` of answers both right and wrong; `pool`: the
    candidates' policy, correctness, and scores by aggregate (infinite ones as "inf" and "-inf", which JSON has no
    number for); `best`: aggregate -> positions in the set of the best of all; `length`: see
    `length_of`.

    Raises:
        InputError: no problems, a problem without samples, two problems with one id, two greedy candidates, an
            answer group under 0, score kinds that differ, or a score out of range; it says where.
        UsageError: sizes that are not increasing numbers of at least 1, or more than every problem has.
    """
    if not sets:
        raise InputError("there are no problems: expected at least one with its candidates")
    settings = settings or Counting()
    sizes = settings.sizes if settings.sizes is not None else common_sizes(sets)
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
        raise UsageError(f"sizes {sizes}: expected increasing numbers of at least 1, such as 1,2,4,8")
    kind = score_kind(sets)
    seen: set[str] = set()
    for one in sets:
        if one.id in seen:
            raise InputError("two sets of candidates have this problem id: join them", where=one.id)
        seen.add(one.id)
    every = [c for one in sets for c in one.candidates]
    has = _Has(
        kind=kind,
        outcomes=any(c.outcome is not None for c in every),
        answers=any(c.answer is not None for c in every),
    )
    rows = [_item(one, sizes, has, settings) for one in sets]
    if not any(row["counted"] for row in rows):
        most = max(row["candidates"] for row in rows)
        raise UsageError(
            f"N = {sizes[-1]}, but no problem has more than {most} candidates: lower the largest size"
        )
    return rows


class _Has(NamedTuple):
    """What any candidate of any problem has; where none has it, a method is left out and not 0."""

    kind: ScoreKind | None
    outcomes: bool
    answers: bool


def _item(one: CandidateSet, sizes: tuple[int, ...], has: _Has, settings: Counting) -> Item:
    check_set(one)
    positions = [i for i, candidate in enumerate(one.candidates) if not candidate.greedy]
    pool = [one.candidates[i] for i in positions]
    greedy = [candidate for candidate in one.candidates if candidate.greedy]
    scores: dict[str, Floats] = {}
    if has.kind is not None:
        scores = {how: scores_of(pool, how, has.kind, where=one.id) for how in allowed(has.kind)}
    outcome = np.array([math.nan if c.outcome is None else c.outcome for c in pool])
    by_score = {**scores, "orm": outcome} if has.outcomes else scores
    right = np.array([float(c.correct is True) for c in pool])
    unknown = np.array([float(c.correct is None) for c in pool])
    counted = len(pool) >= sizes[-1]
    methods: dict[str, Any] = {}
    used: dict[str, Any] = {}
    if counted:
        methods, used = _methods(one, pool, by_score, right, unknown, sizes, has, settings)
    if greedy:
        methods["greedy"] = {
            "right": [float(greedy[0].correct is True)],
            "unknown": [float(greedy[0].correct is None)],
            "nothing": [0.0],
        }
    everything = {how: chosen_shares(values, len(pool)) for how, values in by_score.items()}
    return {
        "id": one.id,
        "problem": one.id,
        "candidates": len(pool),
        "sizes": list(sizes),
        "counted": counted,
        "methods": methods,
        "subsets": used,
        "tokens": {
            "policy": _mean_of([c.tokens for c in pool]),
            "prm": _mean_of([c.prm_tokens for c in pool]),
            "prm once": one.prm_once,
            "outcome": _mean_of([c.outcome_tokens for c in pool]),
            "greedy": _mean_of([c.tokens for c in greedy]),
        },
        "missing": {
            "correct": int(unknown.sum()),
            "answer": sum(c.answer is None for c in pool),
            "mixed groups": len(
                {c.answer for c in pool if c.correct is True}
                & {c.answer for c in pool if c.correct is False} - {None}
            ),
            "scores": {how: int(np.isnan(values).sum()) for how, values in by_score.items()},
        },
        "pool": {
            "policy": [c.policy for c in pool],
            "correct": [c.correct for c in pool],
            "scores": {how: [_plain(v) for v in values] for how, values in by_score.items()},
        },
        "best": {how: [positions[i] for i in np.flatnonzero(share)] for how, share in everything.items()},
        "length": length_of(pool, by_score, everything),
    }


def _methods(
    one: CandidateSet,
    pool: list[Candidate],
    by_score: dict[str, Floats],
    right: Floats,
    unknown: Floats,
    sizes: tuple[int, ...],
    has: _Has,
    settings: Counting,
) -> tuple[dict[str, Any], dict[str, Any]]:
    drawn = {
        n: subsets(len(pool), n, limit=settings.limit, draws=settings.draws, seed=settings.seed)
        for n in sizes
    }
    # Random subsets are shared by all problems; each problem deals them to its candidates in an order of its own,
    # so that their errors do not add up where candidates stand in the same order (one policy each) everywhere.
    order = np.random.default_rng([settings.seed, zlib.crc32(one.id.encode())]).permutation(len(pool))
    groups = np.array([-1 if c.answer is None else c.answer for c in pool], dtype=np.intp)[order]
    right_of, unknown_of = right[order], unknown[order]

    def votes(weights: Floats) -> dict[str, Any]:
        return _along([vote(groups, weights[order], right_of, unknown_of, drawn[n]) for n in sizes])

    methods = {"single": _along([Chosen(float(right.mean()), float(unknown.mean()), 0.0)])}
    if has.answers:
        methods["majority"] = votes(np.ones(len(pool)))
    for how, scores in by_score.items():
        methods[f"best {how}"] = _along([best_of(scores, right, unknown, n) for n in sizes])
    for how, scores in by_score.items():
        if has.answers and how != "orm" and has.kind is not None and vote_refusal(how, has.kind) is None:
            methods[f"vote {how}"] = votes(scores)
    methods["oracle"] = _along([at_least_one(right, unknown, n) for n in sizes])
    return methods, {str(n): {"count": s.count, "exact": s.exact} for n, s in drawn.items()}


def _along(chosen: list[Chosen]) -> dict[str, list[float]]:
    return {
        "right": [c.right for c in chosen],
        "unknown": [c.unknown for c in chosen],
        "nothing": [c.nothing for c in chosen],
    }


def _mean_of(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _plain(score: float) -> float | str | None:
    if math.isnan(score):
        return None
    return score if math.isfinite(score) else ("inf" if score > 0 else "-inf")


def statistic(rows: Sequence[Mapping[str, Any]]) -> Callable[[Floats], dict[str, Floats]]:
    """The figures of these rows as a function of the weights of problems.

    By name; N is a size, METHOD as in the table of this module:

    - `accuracy/METHOD/N`: right / (right + wrong), in [0, 1];
    - `gap/METHOD/N`: the selection gap, accuracy of the oracle less that of the method;
    - `over majority/METHOD/N`: accuracy of a PRM's or ORM's choice less that of the majority vote, on the same subsets;
    - `unknown/METHOD/N`, `nothing/METHOD/N`: shares of choices, only where they are not all 0;
    - `tokens/policy/N`, `tokens/prm/N`, `tokens/outcome/N`, `tokens/greedy/1`: expected tokens a problem, over the
      problems that know them; absent when none does;
    - `length/…` and `lowest step is last`: see `length_ratios`.
    """
    counted = [row["counted"] for row in rows]
    sizes = [int(n) for n in rows[0]["sizes"]]
    ratios: dict[str, tuple[list[float], list[float]]] = {}
    gaps: dict[str, tuple[str, str]] = {}
    zeros = [0.0] * len(rows)
    for method in method_names(rows):
        for at, n in enumerate(sizes if method not in {"single", "greedy"} else [1]):
            cells = [row["methods"].get(method) if row["counted"] else None for row in rows]
            unknown = [c["unknown"][at] if c else 0.0 for c in cells]
            nothing = [c["nothing"][at] if c else 0.0 for c in cells]
            has = [float(c is not None) for c in cells]
            known = [1.0 - u if c else 0.0 for c, u in zip(cells, unknown, strict=True)]
            ratios[f"accuracy/{method}/{n}"] = ([c["right"][at] if c else 0.0 for c in cells], known)
            if any(unknown):
                ratios[f"unknown/{method}/{n}"] = (unknown, has)
            if any(nothing):
                ratios[f"nothing/{method}/{n}"] = (nothing, has)
            if method not in {"oracle", "greedy"}:
                gaps[f"gap/{method}/{n}"] = (f"accuracy/oracle/{n}", f"accuracy/{method}/{n}")
            if method.startswith(("best ", "vote ")):
                gaps[f"over majority/{method}/{n}"] = (f"accuracy/{method}/{n}", f"accuracy/majority/{n}")
    for who, counts in (("policy", sorted({1, *sizes})), ("prm", sizes), ("outcome", sizes), ("greedy", [1])):
        means = [row["tokens"][who] if row["counted"] else None for row in rows]
        once = [row["tokens"]["prm once"] if who == "prm" else 0 for row in rows]
        for n in counts:
            if any(mean is not None for mean in means):
                values = [0.0 if m is None else m * n + o for m, o in zip(means, once, strict=True)]
                ratios[f"tokens/{who}/{n}"] = (values, [float(mean is not None) for mean in means])
    ratios.update(
        length_ratios([row["length"] if use else None for row, use in zip(rows, counted, strict=True)])
    )
    names = list(ratios)
    tops = np.array([ratios[name][0] for name in names] or [zeros]).T
    bottoms = np.array([ratios[name][1] for name in names] or [zeros]).T

    def compute(weights: Floats) -> dict[str, Floats]:
        values = shares(weights @ tops, weights @ bottoms)
        out = {name: values[:, i] for i, name in enumerate(names)}
        for name, (of, less) in gaps.items():
            # `single` is reported at N = 1, which the sizes need not hold; there may be no majority.
            if of in out and less in out:
                out[name] = out[of] - out[less]
        return out

    return compute


def method_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The methods that these rows hold, in the order of the table of this module."""
    found = {method for row in rows for method in row["methods"]}
    by_score = [*AGGREGATES, "orm"]
    order = ["greedy", "single", "majority", *(f"best {how}" for how in by_score)]
    order += [*(f"vote {how}" for how in by_score), "oracle"]
    return [method for method in order if method in found]


def coverage(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was counted and what could not be, in one sentence."""
    used = [row for row in rows if row["counted"]]
    greedy = sum("greedy" in row["methods"] for row in used)
    missing = {key: sum(row["missing"][key] for row in used) for key in ("correct", "answer", "mixed groups")}
    unscored = [sum(row["missing"]["scores"][how] for row in used) for how in used[0]["missing"]["scores"]]
    drawn = {
        n: max(row["subsets"][n]["count"] for row in used)
        for n in used[0]["subsets"]
        if not all(row["subsets"][n]["exact"] for row in used)
    }
    parts = [
        f"{len(used)} of {len(rows)} problems have at least {rows[0]['sizes'][-1]} candidates and count",
        f"{sum(row['candidates'] for row in used)} candidates",
        f"greedy: {greedy} problems" * bool(greedy),
        f"correctness unknown for {missing['correct']}: left out where one of them is chosen"
        * bool(missing["correct"]),
        f"{missing['answer']} without an answer never vote" * bool(missing["answer"]),
        f"up to {max(unscored, default=0)} without a score cannot be chosen by it" * any(unscored),
        f"{missing['mixed groups']} answer groups hold right and wrong candidates"
        * bool(missing["mixed groups"]),
        f"votes on random subsets ({', '.join(f'N = {n}: {count}' for n, count in drawn.items())} a problem)"
        if drawn
        else "all subsets of each size counted",
    ]
    return "; ".join(part for part in parts if part) + "."


def policy_statistic(rows: Sequence[Mapping[str, Any]]) -> Callable[[Floats], dict[str, Floats]]:
    """Figures of each policy as a function of weights (B, n) over the n problems: for a bootstrap over problems.

    A PRM that ranks the models but not the solutions of one model gains nothing when all candidates come from one policy; so AUC is taken within
    each policy, over its candidates for all problems.

    - `POLICY/candidates`: how many, weighted;
    - `POLICY/accuracy`: share of right ones among those whose correctness is known;
    - `POLICY/score/HOW`: mean score; left out where a score is infinite (sums of logits of certain steps);
    - `POLICY/auc/HOW`: the probability that a right candidate of this policy scores above a wrong one of the same
      policy, of any problem, ties half; NaN where a weighting has no right or no wrong one.

    Candidates without a policy are left out; those without a score, of that aggregate's figures alone.

    Args:
        rows: what `stepmark.evaluation.best_of_n.items` made; problems that are not counted there are counted here.
    """
    problem: dict[str, list[int]] = {}
    correct: dict[str, list[float]] = {}
    scores: dict[str, dict[str, list[float]]] = {}
    for at, row in enumerate(rows):
        pool = row["pool"]
        for i, policy in enumerate(pool["policy"]):
            if policy is None:
                continue
            problem.setdefault(policy, []).append(at)
            truth = pool["correct"][i]
            correct.setdefault(policy, []).append(math.nan if truth is None else float(truth))
            for how, values in pool["scores"].items():
                score = math.nan if values[i] is None else float(values[i])
                scores.setdefault(policy, {}).setdefault(how, []).append(score)
    columns = {
        policy: (
            np.array(problem[policy], dtype=np.intp),
            np.array(correct[policy]),
            {how: np.array(values) for how, values in scores.get(policy, {}).items()},
        )
        for policy in sorted(problem)
    }

    def compute(weights: Floats) -> dict[str, Floats]:
        out: dict[str, Floats] = {}
        for policy, (at, right, by_score) in columns.items():
            w = weights[:, at]
            known = ~np.isnan(right)
            out[f"{policy}/candidates"] = w.sum(axis=1)
            out[f"{policy}/accuracy"] = shares(w[:, known] @ right[known], w[:, known].sum(axis=1))
            for how, score in by_score.items():
                scored = ~np.isnan(score)
                if np.isfinite(score[scored]).all():
                    out[f"{policy}/score/{how}"] = shares(
                        w[:, scored] @ score[scored], w[:, scored].sum(axis=1)
                    )
                both = scored & known
                if both.any():
                    out[f"{policy}/auc/{how}"] = weighted_auc(score[both], right[both], w[:, both])
        return out

    return compute
