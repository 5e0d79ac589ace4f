"""What a choice among N candidates gives in expectation, estimated without bias from M >= N candidates.

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

Every number is the mean over **all** subsets of size N, drawn without replacement:

- best by score, in closed form. Sort by score; a candidate with `a` candidates above it is the best of a subset
  with probability C(M-a-1, N-1) / C(M, N). `k` candidates with the same score share what the ranks a .. a+k-1
  have together: (C(M-a, N) - C(M-a-k, N)) / C(M, N), split equally.
- at least one right (pass@N): 1 - C(M-c, N) / C(M, N) (Chen et al. 2021, "Evaluating Large Language Models Trained
  on Code", arXiv 2107.03374, equation 1).
- votes have no closed form: every subset is enumerated up to a stated number of subsets; above it, seeded random
  subsets stand for all, and their number is recorded.

What is not known is counted and never guessed:

- A candidate whose correctness is unknown stays in the pool, because taking it out would change what the method
  chooses. When it is chosen, the choice is `unknown`: accuracy = right / (right + wrong), and the share of unknown
  choices stands beside it.
- A candidate with a step that an exact check refutes comes after all others, whatever its score, and has no weight in a weighted vote: a
  proof outranks a score.
- A candidate without a score for an aggregate cannot be chosen by it and does not vote. A candidate without an answer
  never votes. A subset in which nothing can be chosen is wrong, and its share is the figure `nothing`. Where no candidate
  of any problem has what a method needs, the method is left out.
- A problem with fewer candidates than the largest N is not counted at any N, so that all points of a curve are about
  the same problems.

Length bias: within each problem, the rank correlation of score and length, beside that of correctness and length, which is what a
perfect score would show; and how much longer the chosen solution is than the mean.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepmark.errors import InputError, UsageError
from stepmark.evaluation.result import Item
from stepmark.metrics.aggregate import AGGREGATES, aggregate_checked, allowed, check_score
from stepmark.metrics.binary import weighted_auc
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic, shares
from stepmark.records import ScoreKind, StepScores
from stepmark.show.text import amount

TIE = 1e-9
"""Vote totals closer than this, relative to the highest, are a tie: a sum of floats depends on its order in the
last bits, and two groups with the same weights must tie whatever the order of the candidates."""

NEAR = 1.1
"""A curve has the value at its end for this much beyond it; farther out nothing is known."""

MEASURES = ("steps", "tokens")
"""What length is measured in."""

CORRECTNESS = "correct"
"""Stands beside the aggregates in `length`: correctness itself taken as the score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One solution that was sampled for a problem, and what is known of it."""

    correct: bool | None
    """Is its answer right? None when the checker could not tell."""
    answer: int | None = None
    """Its answer group: candidates with equal answers have the same number (at least 0). None: no answer."""
    steps: StepScores | None = None
    """What the PRM says of its steps; None when it was not graded."""
    outcome: float | None = None
    """What an outcome reward model says of the whole; higher is better. None when none was asked."""
    tokens: int | None = None
    """Tokens that the policy generated for it."""
    prm_tokens: int | None = None
    """Tokens that the PRM read for this candidate alone; the problem among them where it is read for each."""
    outcome_tokens: int | None = None
    """Tokens that the outcome reward model read."""
    policy: str | None = None
    """Who wrote it."""
    greedy: bool = False
    """Decoded greedily: the answer of the method `greedy`, no sample."""
    refuted: bool = False
    """An exact check proves one of its steps wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateSet:
    """A problem and its candidates; their order means nothing."""

    id: str
    """The problem's id; the unit of every interval."""
    candidates: tuple[Candidate, ...]
    prm_once: int = 0
    """Tokens that the PRM reads once for all candidates: the problem, where they share its computation."""


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


class Chosen(NamedTuple):
    """What a method's choice from a random subset is, as probabilities; right + wrong + unknown = 1."""

    right: float
    """The choice is right."""
    unknown: float
    """Something was chosen of which nobody knows whether it is right."""
    nothing: float
    """No candidate could be chosen (none has a score, nobody votes): part of what is wrong."""


def subset_sizes(candidates: int) -> tuple[int, ...]:
    """1, 2, 4, … up to `candidates` (at least 1), and `candidates` itself."""
    powers = [1 << exponent for exponent in range(candidates.bit_length())]
    return tuple(dict.fromkeys((*powers, candidates)))


def common_sizes(sets: Sequence[CandidateSet]) -> tuple[int, ...]:
    """1, 2, 4, … up to the commonest number of samples a problem (the larger one of two equally common)."""
    counts = Counter(sum(not c.greedy for c in group.candidates) for group in sets)
    counts.pop(0, None)
    if not counts:
        raise InputError("no problem has a sampled candidate: there is nothing to choose from")
    return subset_sizes(max(counts, key=lambda m: (counts[m], m)))


@lru_cache(maxsize=256)
def _missed(candidates: int, size: int) -> Floats:
    """`out[a]`: the probability that a random subset holds none of `a` given candidates; a = 0 .. M."""
    total = math.comb(candidates, size)
    # Integers divided once: the quotient is correctly rounded however large the binomials are.
    out = np.array([math.comb(candidates - a, size) / total for a in range(candidates + 1)])
    out.setflags(write=False)
    return out


def chosen_shares(scores: Floats, size: int) -> Floats:
    """The probability that each candidate is the best of a random subset of `size` (1 .. M); equal scores share equally.

    Returns:
        Shape (M,); the sum is 1 less the probability that no candidate of the subset has a score.
    """
    missed = _missed(len(scores), size)
    shares = np.zeros(len(scores))
    scored = ~np.isnan(scores)
    _, group, members = np.unique(-scores[scored], return_inverse=True, return_counts=True)
    above = np.cumsum(members) - members
    shares[scored] = ((missed[above] - missed[above + members]) / members)[group]
    return shares


def _best_of(scores: Floats, right: Floats, unknown: Floats, size: int) -> Chosen:
    """The candidate with the highest score of a random subset of `size`."""
    shares = chosen_shares(scores, size)
    nothing = _missed(len(scores), size)[int(np.count_nonzero(~np.isnan(scores)))]
    return Chosen(float(shares @ right), float(shares @ unknown), float(nothing))


def _at_least_one(right: Floats, unknown: Floats, size: int) -> Chosen:
    """The oracle; a subset without a right candidate but with one of unknown correctness counts as unknown."""
    missed = _missed(len(right), size)
    rights, unknowns = int(right.sum()), int(unknown.sum())
    return Chosen(float(1.0 - missed[rights]), float(missed[rights] - missed[rights + unknowns]), 0.0)


@lru_cache(maxsize=64)
def _subsets(candidates: int, size: int, counting: Counting) -> tuple[Floats, bool]:
    """The subsets that stand for all of that size, and whether they are all.

    Where there are more than `limit`, `draws` random ones: each is uniform over all subsets, independent of the others.

    Returns:
        Shape (M, K): 1 where candidate m is in subset k, so that a sum over candidates is a matrix product.
    """
    total = math.comb(candidates, size)
    exact = total <= max(counting.limit, 1)
    if exact:
        flat = chain.from_iterable(combinations(range(candidates), size))
        chosen = np.fromiter(flat, dtype=np.intp, count=total * size).reshape(total, size)
    else:
        generator = np.random.default_rng([counting.seed, candidates, size])
        chosen = np.argsort(generator.random((counting.draws, candidates)), axis=1)[:, :size]
    members = np.zeros((candidates, len(chosen)))
    members[chosen.T, np.arange(len(chosen))] = 1.0
    members.setflags(write=False)
    return members, exact


def _vote(
    groups: NDArray[np.intp], weights: Floats, right: Floats, unknown: Floats, members: Floats
) -> Chosen:
    """The answer group with the highest total weight in a subset, on average over the subsets.

    Groups whose totals tie (within `TIE`) are chosen uniformly at random: the expectation over that choice. A group
    is right as often as its members are: all or none of them, when equal answers are judged alike.

    Args:
        groups: answer group of each candidate, shape (M,); negative for a candidate without an answer.
        weights: what each vote weighs, shape (M,), at least 0; NaN for a candidate that cannot vote. A subset where all
            weights are 0 is a tie of the groups that voted.
        right: shape (M,).
        unknown: shape (M,).
        members: shape (M, K).
    """
    votes = (groups >= 0) & ~np.isnan(weights)
    if not votes.any():
        return Chosen(0.0, 0.0, 1.0)
    if (groups == groups[0]).all() and votes.all():  # one answer, which every subset votes for
        return Chosen(float(right.mean()), float(unknown.mean()), 0.0)
    # A group's correctness is that of all its members, voting or not: the answer is the same.
    _, group = np.unique(groups, return_inverse=True)
    of_group = (group == np.unique(group[votes])[:, None]).astype(np.float64)  # (G, M)
    size = of_group.sum(axis=1)
    group_right, group_unknown = of_group @ right / size, of_group @ unknown / size
    ballots = of_group * votes
    totals = (ballots * np.where(votes, weights, 0.0)) @ members  # (G, K)
    if weights[votes].min() <= 0:  # else a group without a vote has 0, and one with a vote more
        totals[ballots @ members < 0.5] = -1.0
        silent = -1.0
    else:
        silent = 0.0
    highest = totals.max(axis=0)
    # Where nobody votes no group reaches infinity, so none is chosen.
    tied = (totals >= np.where(highest > silent, highest * (1.0 - TIE), np.inf)).astype(np.float64)
    won = tied @ (1.0 / np.maximum(tied.sum(axis=0), 1.0)) / members.shape[1]
    nothing = np.count_nonzero(highest <= silent) / members.shape[1]
    return Chosen(float(won @ group_right), float(won @ group_unknown), float(nothing))


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


def ranks(values: Floats) -> Floats:
    """1-based ranks of finite or infinite values; equal ones share their mean rank."""
    _, group, members = np.unique(values, return_inverse=True, return_counts=True)
    means: Floats = np.cumsum(members) - (members - 1) / 2.0
    return means[group]


def spearman(x: Floats, y: Floats) -> float | None:
    """Spearman's rank correlation with mean ranks for ties; None where either is constant, or with fewer than two pairs."""
    if len(x) < 2:
        return None
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    spread = math.sqrt(float(a @ a) * float(b @ b))
    return None if spread == 0.0 else min(1.0, max(-1.0, float(a @ b) / spread))


def _length(
    pool: Sequence[Candidate], scores: Mapping[str, Floats], chosen: Mapping[str, Floats]
) -> dict[str, Any]:
    """For each of `MEASURES`: aggregate -> {`spearman`; `longer`: expected length of the best of all, less the mean}, None where not defined."""
    truth = np.array([np.nan if c.correct is None else float(c.correct) for c in pool])
    steps = [() if c.steps is None else c.steps.scores for c in pool]
    columns = ([len(s) or None for s in steps], [c.tokens for c in pool])
    lengths: dict[str, Any] = {}
    for measure, values in zip(MEASURES, columns, strict=True):
        length = np.array([np.nan if value is None else float(value) for value in values])
        known = ~np.isnan(length)
        lengths[measure] = {}
        for how, score in {**scores, CORRECTNESS: truth}.items():
            both = known & ~np.isnan(score)
            share = chosen.get(how, np.zeros(0))
            picked = share > 0
            longer = None
            if picked.any() and not np.isnan(length[picked]).any():
                longer = float(share[picked] @ length[picked] / share[picked].sum() - length[known].mean())
            lengths[measure][how] = {"spearman": spearman(score[both], length[both]), "longer": longer}
    return lengths


def items(sets: Sequence[CandidateSet], settings: Counting | None = None) -> list[Item]:
    """One JSON-able row a problem, from which `statistic` and `policy_statistic` make every figure.

    Keys: `candidates` (M, without the greedy one); `sizes` (the N); `counted` (M is at least the largest N);
    `methods`: name -> {`right`, `unknown`, `nothing`}, each a list along `sizes` (`single` and `greedy`: one number);
    `subsets`: N -> {`count`, `exact`} of the votes; `refuted`: how many have a refuted step; `tokens`: {`policy`, `prm`, `outcome`, `greedy`}: the mean a
    candidate, None when one is not known, and `prm once` a problem; `missing`: counts of candidates without
    `correct`, `answer`, and a score by aggregate; `pool`: the candidates' policy, correctness, and scores by aggregate (infinite
    ones as "inf" and "-inf"); `best`: aggregate -> positions in the set of the best of all; `length`: see `_length`.

    Raises:
        InputError: no problems, or a set that cannot be evaluated; it says where.
        UsageError: sizes that are not increasing numbers of at least 1, or more than every problem has.
    """
    if not sets:
        raise InputError("there are no problems: expected at least one with its candidates")
    settings = settings or Counting()
    sizes = settings.sizes if settings.sizes is not None else common_sizes(sets)
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
        raise UsageError(f"sizes {sizes}: expected increasing numbers of at least 1, such as 1,2,4,8")
    seen: set[str] = set()
    kind: ScoreKind | None = None
    for group in sets:
        if group.id in seen:
            raise InputError("two sets of candidates have this problem id: join them", where=group.id)
        seen.add(group.id)
        kind = _check_set(group, kind)
    rows = [_item(group, sizes, kind, settings) for group in sets]
    # Where no candidate of any problem has what a method needs, the method is left out and not 0.
    every = [c for group in sets for c in group.candidates]
    answers = any(c.answer is not None for c in every)
    outcomes = any(c.outcome is not None for c in every)
    for row in rows:
        row["methods"] = {
            name: of
            for name, of in row["methods"].items()
            if (answers or not name.startswith(("majority", "vote "))) and (outcomes or name != "best orm")
        }
        if not outcomes:
            by_score = (row["missing"]["scores"], row["pool"]["scores"], row["best"])
            for scores in (*by_score, *(row["length"][measure] for measure in MEASURES)):
                scores.pop("orm", None)
    if not any(row["counted"] for row in rows):
        most = max(row["candidates"] for row in rows)
        raise UsageError(
            f"N = {sizes[-1]}, but no problem has more than {amount(most, 'candidate')}: lower the largest size"
        )
    return rows


def _check_set(group: CandidateSet, kind: ScoreKind | None) -> ScoreKind | None:
    """Refuse a set that cannot be evaluated; the kind of the step scores so far."""
    greedy = sum(c.greedy for c in group.candidates)
    if greedy == len(group.candidates):
        raise InputError("the problem has no sampled candidate: leave it out, or sample some", where=group.id)
    if greedy > 1:
        raise InputError(f"expected at most one greedy candidate, found {greedy}", where=group.id)
    for c in group.candidates:
        if c.steps is not None and c.steps.kind != (kind := kind or c.steps.kind):
            raise InputError(
                f"scores of the kind {c.steps.kind!r} beside scores of the kind {kind!r}: grade all candidates with one PRM",
                where=group.id,
            )
        if c.steps is not None:
            try:
                for step, score in enumerate(c.steps.scores):
                    if score is not None:
                        check_score(score, c.steps.kind, step=step)
            except InputError as error:
                raise error.at(group.id) from None
    return kind


def _scores_of(pool: Sequence[Candidate], how: str) -> Floats:
    """The aggregate of each candidate, shape (M,); NaN for a candidate that has none.

    It has none when it was not graded, when a step was not read (save before the last one, for "last"), or when a sum
    of logits meets a certain 0 and a certain 1 together. Infinite sums of logits are kept: they are in order.
    """
    values = np.full(len(pool), np.nan)
    for at, candidate in enumerate(pool):
        scores = () if candidate.steps is None else candidate.steps.scores
        scores = scores[-1:] if how == "last" else scores
        known = [score for score in scores if score is not None]  # each was checked with its set
        if known and len(known) == len(scores) and not (how == "sum-logit" and {0.0, 1.0} <= set(known)):
            values[at] = aggregate_checked(known, how)
    return values


def _item(group: CandidateSet, sizes: tuple[int, ...], kind: ScoreKind | None, settings: Counting) -> Item:
    positions = [at for at, candidate in enumerate(group.candidates) if not candidate.greedy]
    pool = [group.candidates[at] for at in positions]
    greedy = [candidate for candidate in group.candidates if candidate.greedy]
    scores = {} if kind is None else {how: _scores_of(pool, how) for how in allowed(kind)}
    scores["orm"] = np.array([np.nan if c.outcome is None else c.outcome for c in pool])
    right = np.array([float(c.correct is True) for c in pool])
    unknown = np.array([float(c.correct is None) for c in pool])
    refuted = np.array([c.refuted for c in pool])
    order = {how: _behind(values, refuted) for how, values in scores.items()}
    counted = len(pool) >= sizes[-1]
    methods: dict[str, Any] = {}
    drawn: dict[int, tuple[Floats, bool]] = {}
    if counted:
        drawn = {n: _subsets(len(pool), n, settings) for n in sizes}
        weights = {how: np.where(refuted & ~np.isnan(values), 0.0, values) for how, values in scores.items()}
        methods = _methods(group.id, pool, order, weights, right, unknown, kind, drawn, settings.seed)
    if greedy:
        correct = greedy[0].correct
        methods["greedy"] = _along([Chosen(float(correct is True), float(correct is None), 0.0)])
    everything = {how: chosen_shares(values, len(pool)) for how, values in order.items()}
    return {
        "id": group.id,
        "problem": group.id,
        "candidates": len(pool),
        "sizes": list(sizes),
        "counted": counted,
        "methods": methods,
        "subsets": {
            str(n): {"count": members.shape[1], "exact": exact} for n, (members, exact) in drawn.items()
        },
        "tokens": {
            "policy": _mean_of([c.tokens for c in pool]),
            "prm": _mean_of([c.prm_tokens for c in pool]),
            "prm once": group.prm_once,
            "outcome": _mean_of([c.outcome_tokens for c in pool]),
            "greedy": _mean_of([c.tokens for c in greedy]),
        },
        "missing": {
            "correct": int(unknown.sum()),
            "answer": sum(c.answer is None for c in pool),
            "scores": {how: int(np.isnan(values).sum()) for how, values in scores.items()},
        },
        "refuted": int(refuted.sum()),
        "pool": {
            "policy": [c.policy for c in pool],
            "correct": [c.correct for c in pool],
            "scores": {how: [_plain(value) for value in values] for how, values in scores.items()},
        },
        "best": {how: [positions[at] for at in np.flatnonzero(share)] for how, share in everything.items()},
        "length": _length(pool, scores, everything),
    }


def _behind(scores: Floats, refuted: NDArray[np.bool_]) -> Floats:
    """Numbers in the order of the scores, those of refuted candidates below all others; NaN for no score."""
    if not refuted.any():
        return scores
    result = np.full(len(scores), np.nan)
    scored = ~np.isnan(scores)
    keys = np.stack([~refuted[scored], scores[scored]], axis=1)
    result[scored] = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    return result


def _methods(
    id_: str,
    pool: Sequence[Candidate],
    scores: Mapping[str, Floats],
    weights: Mapping[str, Floats],
    right: Floats,
    unknown: Floats,
    kind: ScoreKind | None,
    drawn: Mapping[int, tuple[Floats, bool]],
    seed: int,
) -> dict[str, Any]:
    # Random subsets are shared by all problems; each problem deals them to its candidates in an order of its own,
    # so that their errors do not add up where candidates stand in the same order (one policy each) everywhere.
    order = np.random.default_rng([seed, zlib.crc32(id_.encode())]).permutation(len(pool))
    groups = np.array([-1 if c.answer is None else c.answer for c in pool], dtype=np.intp)[order]

    def votes(weights: Floats) -> dict[str, Any]:
        given = groups, weights[order], right[order], unknown[order]
        return _along([_vote(*given, members) for members, _ in drawn.values()])

    methods = {"single": _along([Chosen(float(right.mean()), float(unknown.mean()), 0.0)])}
    methods["majority"] = votes(np.ones(len(pool)))
    for how, values in scores.items():
        methods[f"best {how}"] = _along([_best_of(values, right, unknown, n) for n in drawn])
    for how, values in weights.items():
        if how != "orm" and kind is not None and vote_refusal(how, kind) is None:
            methods[f"vote {how}"] = votes(values)
    methods["oracle"] = _along([_at_least_one(right, unknown, n) for n in drawn])
    return methods


def _along(chosen: Sequence[Chosen]) -> dict[str, list[float]]:
    return {key: [getattr(choice, key) for choice in chosen] for key in Chosen._fields}


def _mean_of(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _plain(score: float) -> float | str | None:
    if math.isnan(score):
        return None
    return score if math.isfinite(score) else ("inf" if score > 0 else "-inf")


HALVES = 10
"""Problems from which on the best way is chosen on one half and measured on the other."""


def by_grader(method: str) -> bool:
    """Whether a method asks a PRM or an ORM."""
    return method.startswith(("best ", "vote "))


def statistic(rows: Sequence[Item]) -> Statistic:
    """The figures of these rows as a function of the weights of problems.

    By name; N is a size, METHOD as in the table of this module:

    - `accuracy/METHOD/N`: right / (right + wrong), in [0, 1];
    - `gap/METHOD/N`: the selection gap, accuracy of the oracle less that of the method;
    - `over majority/METHOD/N`: accuracy of a PRM's or ORM's choice less that of the majority vote, on the same subsets;
    - `over orm/METHOD/N`: the same against the ORM's choice;
    - `over majority at equal tokens/METHOD/N`: against the vote that costs as much as N candidates and their grading: between
      two sizes on a line over the logarithm of the tokens. Where tokens were not counted, against a vote of 2 N: a grader reads what
      the policy wrote. Only where the sizes reach so far;
    - `held out/accuracy/N` and `held out/over majority/N`, at the largest N, of at least `HALVES` problems: of the best way to use the
      graders, chosen on one half of the problems and measured on the other, both ways round;
    - `unknown/METHOD/N`, `nothing/METHOD/N`: shares of choices, only where they are not all 0;
    - `tokens/policy/N`, `tokens/prm/N`, `tokens/outcome/N`, `tokens/greedy/1`: expected tokens a problem, over the
      problems that know them; absent when none does;
    - `length/MEASURE/spearman/HOW` and `length/MEASURE/longer/HOW`: means over problems; HOW is an aggregate, `orm`, or `correct`.
    """
    sizes = [int(n) for n in rows[0]["sizes"]]
    ratios: dict[str, tuple[list[float], list[float]]] = {}
    gaps: dict[str, tuple[str, str]] = {}
    for method in method_names(rows):
        for at, n in enumerate(sizes if method not in {"single", "greedy"} else [1]):
            cells = [row["methods"].get(method) if row["counted"] else None for row in rows]
            right, unknown, nothing = (
                [cell[key][at] if cell else 0.0 for cell in cells] for key in ("right", "unknown", "nothing")
            )
            has = [float(cell is not None) for cell in cells]
            known = [1.0 - u if cell else 0.0 for cell, u in zip(cells, unknown, strict=True)]
            ratios[f"accuracy/{method}/{n}"] = (right, known)
            if any(unknown):
                ratios[f"unknown/{method}/{n}"] = (unknown, has)
            if any(nothing):
                ratios[f"nothing/{method}/{n}"] = (nothing, has)
            if method not in {"oracle", "greedy"}:
                gaps[f"gap/{method}/{n}"] = (f"accuracy/oracle/{n}", f"accuracy/{method}/{n}")
            if by_grader(method):
                gaps[f"over majority/{method}/{n}"] = (f"accuracy/{method}/{n}", f"accuracy/majority/{n}")
                if method != "best orm":
                    gaps[f"over orm/{method}/{n}"] = (f"accuracy/{method}/{n}", f"accuracy/best orm/{n}")
    for who, counts in (("policy", sorted({1, *sizes})), ("prm", sizes), ("outcome", sizes), ("greedy", [1])):
        means = [row["tokens"][who] if row["counted"] else None for row in rows]
        once = [row["tokens"]["prm once"] if who == "prm" else 0 for row in rows]
        for n in counts:
            if any(mean is not None for mean in means):
                values = [0.0 if m is None else m * n + o for m, o in zip(means, once, strict=True)]
                ratios[f"tokens/{who}/{n}"] = (values, [float(mean is not None) for mean in means])
    ways = [method for method in method_names(rows) if by_grader(method)]
    held_out = _held_out(ratios, ways, rows, sizes[-1])
    compute_ratios = ratio_statistic(
        ratios | _length_ratios([row["length"] if row["counted"] else None for row in rows])
    )

    def compute(weights: Floats) -> dict[str, Floats]:
        out = dict(compute_ratios(weights))
        for name, (of, less) in gaps.items():
            # `single` is reported at N = 1, which the sizes need not hold; there may be no majority.
            if of in out and less in out:
                out[name] = out[of] - out[less]
        for method in ways:
            out |= _at_equal_tokens(out, method, sizes)
        return out | dict(held_out(weights))

    return compute


def _at_equal_tokens(figures: Mapping[str, Floats], method: str, sizes: Sequence[int]) -> dict[str, Floats]:
    """`over majority at equal tokens` of one method; see `statistic`."""
    grader = f"tokens/{'outcome' if method == 'best orm' else 'prm'}"
    votes = [n for n in sizes if f"accuracy/majority/{n}" in figures]
    counted = bool(votes) and {f"tokens/policy/{votes[0]}", f"{grader}/{votes[0]}"} <= figures.keys()
    if counted:
        xs = np.stack([figures[f"tokens/policy/{n}"] for n in votes], axis=1)
        ys = np.stack([figures[f"accuracy/majority/{n}"] for n in votes], axis=1)
    result = {}
    for n in sizes:
        if counted:
            there = between(xs, ys, figures[f"tokens/policy/{n}"] + figures[f"{grader}/{n}"])
        elif 2 * n in votes:
            there = figures[f"accuracy/majority/{2 * n}"]
        else:
            continue
        result[f"over majority at equal tokens/{method}/{n}"] = figures[f"accuracy/{method}/{n}"] - there
    return result


def between(xs: Floats, ys: Floats, at: Floats) -> Floats:
    """Straight lines over log x between the points of many curves at once: xs and ys (B, points), asked at (B,).

    Beyond an end by a tenth at most, the value at that end; nan farther out, and where x is not positive.
    """
    order = np.argsort(xs, axis=1, kind="stable")
    xs, ys = np.take_along_axis(xs, order, axis=1), np.take_along_axis(ys, order, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, asked = np.log(xs), np.log(at)[:, None]
        after = np.clip((logs <= asked).sum(axis=1), 1, max(1, xs.shape[1] - 1))[:, None]
        if xs.shape[1] == 1:
            value = ys[:, 0]
        else:
            x0, x1 = np.take_along_axis(logs, after - 1, axis=1), np.take_along_axis(logs, after, axis=1)
            y0, y1 = np.take_along_axis(ys, after - 1, axis=1), np.take_along_axis(ys, after, axis=1)
            # Two points at one x: the later one.
            part = np.where(x1 > x0, (asked - x0) / np.where(x1 > x0, x1 - x0, 1.0), 1.0)
            value = (y0 + np.clip(part, 0, 1) * (y1 - y0))[:, 0]
        near = (at * NEAR >= xs[:, 0]) & (at <= xs[:, -1] * NEAR) & (xs[:, 0] > 0)
    return np.where(near, value, np.nan)


def _held_out(
    ratios: Mapping[str, tuple[list[float], list[float]]],
    ways: Sequence[str],
    rows: Sequence[Item],
    most: int,
) -> Statistic:
    """`held out/…`: of the best way, chosen on one half of the problems and measured on the other; see `statistic`."""
    names = [f"accuracy/{method}/{most}" for method in (*ways, "majority")]
    counted = np.cumsum([row["counted"] for row in rows])
    if not ways or names[-1] not in ratios or counted[-1] < HALVES:
        return ratio_statistic({})
    compute = ratio_statistic({name: ratios[name] for name in names})
    halves = [(counted % 2 == half).astype(np.float64) for half in (0, 1)]
    chosen = []
    for half in halves:
        values = compute(half[None, :])
        right = [-1.0 if np.isnan(values[name][0]) else float(values[name][0]) for name in names[:-1]]
        chosen.append(names[right.index(max(right))])

    def figures(weights: Floats) -> dict[str, Floats]:
        accuracy, majority = np.zeros(len(weights)), np.zeros(len(weights))
        for name, other in zip(chosen, reversed(halves), strict=True):
            values = compute(weights * other)
            accuracy, majority = accuracy + values[name] / 2, majority + values[names[-1]] / 2
        return {f"held out/accuracy/{most}": accuracy, f"held out/over majority/{most}": accuracy - majority}

    return figures


def _length_ratios(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, tuple[list[float], list[float]]]:
    """Numerators and denominators over problems of what `_length` made, None for a problem that does not count."""
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
    return ratios


def method_names(rows: Sequence[Item]) -> list[str]:
    """The methods that these rows hold, in the order of the table of this module."""
    result = {method for row in rows for method in row["methods"]}
    by_score = [*AGGREGATES, "orm"]
    order = ["greedy", "single", "majority", *(f"best {how}" for how in by_score)]
    order += [*(f"vote {how}" for how in by_score), "oracle"]
    return [method for method in order if method in result]


def coverage(rows: Sequence[Item]) -> str:
    """What was counted and what could not be, in one sentence."""
    used = [row for row in rows if row["counted"]]
    greedy = sum("greedy" in row["methods"] for row in used)
    refuted = sum(row.get("refuted", 0) for row in used)
    missing = {key: sum(row["missing"][key] for row in used) for key in ("correct", "answer")}
    unscored = max(
        (sum(row["missing"]["scores"][how] for row in used) for how in used[0]["missing"]["scores"]),
        default=0,
    )
    drawn = ", ".join(
        f"N = {n}: {max(row['subsets'][n]['count'] for row in used)}"
        for n in used[0]["subsets"]
        if not all(row["subsets"][n]["exact"] for row in used)
    )
    parts = {
        f"{len(used)} of {amount(len(rows), 'problem')} with at least {amount(rows[0]['sizes'][-1], 'candidate')} counted": True,
        amount(sum(row["candidates"] for row in used), "candidate"): True,
        f"greedy: {amount(greedy, 'problem')}": greedy,
        f"correctness unknown for {missing['correct']}: left out where one of them is chosen": missing[
            "correct"
        ],
        f"{missing['answer']} without an answer never vote": missing["answer"],
        f"up to {unscored} without a score cannot be chosen by it": unscored,
        f"{refuted} with a step that an exact check refutes come after all others": refuted,
        f"votes on random subsets ({drawn} a problem)" if drawn else "all subsets of each size counted": True,
    }
    return "; ".join(part for part, applies in parts.items() if applies) + "."


def policy_statistic(rows: Sequence[Item]) -> Statistic:
    """Figures of each policy as a function of the weights of problems.

    - `POLICY/candidates`: how many, weighted;
    - `POLICY/accuracy`: share of right ones among those whose correctness is known;
    - `POLICY/unknown`: share of those whose correctness is not known, where there are any;
    - `POLICY/score/HOW`: mean score; left out where a score is infinite (sums of logits of certain steps);
    - `POLICY/auc/HOW`: the probability that a right candidate of this policy scores above a wrong one of the same
      policy, of any problem, ties half: a PRM that ranks only the models gains nothing where all candidates come from one.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for at, row in enumerate(rows):
        for number, policy in enumerate(row["pool"]["policy"]):
            if policy is not None:
                places.setdefault(policy, []).append((at, number))

    def column(of: Sequence[tuple[int, int]], key: str, how: str | None = None) -> Floats:
        values = [
            (rows[at]["pool"][key] if how is None else rows[at]["pool"][key][how])[number]
            for at, number in of
        ]
        return np.array([np.nan if value is None else float(value) for value in values])

    columns = {
        policy: (
            np.array([at for at, _ in of], dtype=np.intp),
            column(of, "correct"),
            {how: column(of, "scores", how) for how in rows[0]["pool"]["scores"]},
        )
        for policy, of in sorted(places.items())
    }

    def compute(weights: Floats) -> dict[str, Floats]:
        out: dict[str, Floats] = {}
        for policy, (at, right, by_score) in columns.items():
            w = weights[:, at]
            known = ~np.isnan(right)
            out[f"{policy}/candidates"] = w.sum(axis=1)
            if not known.all():
                out[f"{policy}/unknown"] = shares(w[:, ~known].sum(axis=1), w.sum(axis=1))
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
