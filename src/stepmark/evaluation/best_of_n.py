"""Best of N: how often the chosen candidate is right, in expectation over all subsets of N of M candidates.

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
perfect score would show.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from stepmark.backends.replies import ReplyFile
from stepmark.data.reading import Row, read_rows
from stepmark.data.steps.splitting import check_way
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.base import INTERVALS, Evaluation, Run, check_same
from stepmark.evaluation.cases import Case
from stepmark.evaluation.result import EvaluationResult, Figure, Item, made_folder, shown
from stepmark.evaluation.scores import CaseScores, Sheet, read_scores, score_lengths, wrong_count
from stepmark.evaluation.sources import read_cases
from stepmark.evaluation.views import (
    Column,
    Figures,
    card,
    examples_of,
    problem,
    series_of,
    table_of,
    tiles_of,
    value_of,
)
from stepmark.metrics.aggregate import AGGREGATES, aggregate_checked, allowed, check_score
from stepmark.metrics.binary import weighted_auc
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic, shares
from stepmark.models.policies import Policy
from stepmark.problems.loading import read_problems
from stepmark.progress import Progress
from stepmark.records import ScoreKind, StepScores
from stepmark.report.evaluation import Examples, Report, Section
from stepmark.report.page import ProblemView
from stepmark.report.plots import Lines
from stepmark.report.tables import Table
from stepmark.sampling import Sampled, Sampling, sample
from stepmark.settings import settings
from stepmark.store import PartFile, resumed, row_key
from stepmark.verifiers.base import Verifier, answer_groups, isolation_note, isolation_of, open_verifier
from stepmark.verifiers.checks import CheckName, check, check_names
from stepmark.verifiers.code_sandbox import Isolation
from stepmark.verifiers.finder import find_answer
from stepmark.verifiers.number import NumberVerifier
from stepmark.words import amount

_TOGETHER = 16
"""Problems that are sampled at once."""

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
class SampledCandidate:
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
    candidates: tuple[SampledCandidate, ...]
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
    pool: Sequence[SampledCandidate], scores: Mapping[str, Floats]
) -> dict[str, dict[str, float | None]]:
    """For each of `MEASURES` and each score, and correctness itself: its rank correlation with the length."""
    truth = np.array([np.nan if c.correct is None else float(c.correct) for c in pool])
    steps = [len(c.steps.scores) if c.steps else None for c in pool]
    lengths: dict[str, dict[str, float | None]] = {}
    for measure, values in zip(MEASURES, (steps, [c.tokens for c in pool]), strict=True):
        length = np.array([np.nan if value is None else float(value) for value in values])
        lengths[measure] = {}
        for how, score in {**scores, CORRECTNESS: truth}.items():
            both = ~np.isnan(length) & ~np.isnan(score)
            lengths[measure][how] = spearman(score[both], length[both])
    return lengths


def items_of(sets: Sequence[CandidateSet], settings: Counting | None = None) -> list[Item]:
    """One JSON-able row a problem, from which `statistic` makes every figure.

    Keys: `candidates` (M, without the greedy one); `sizes` (the N); `counted` (M is at least the largest N);
    `methods`: name -> {`right`, `unknown`, `nothing`}, each a list along `sizes` (`single` and `greedy`: one number);
    `subsets`: N -> {`count`, `exact`} of the votes; `refuted`: how many have a refuted step; `tokens`: {`policy`, `prm`, `outcome`, `greedy`}: the mean a
    candidate, None when one is not known, and `prm once` a problem; `missing`: counts of candidates without
    `correct`, `answer`, and a score by aggregate; `pool`: the candidates' policy, correctness, and scores by aggregate (infinite
    ones as "inf" and "-inf"); `best`: aggregate -> positions in the set of the best of all; `length`: see `_length`.
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
    missing = [(row["candidates"], row["missing"]["scores"]) for row in rows]
    absent = {how for how in missing[0][1] if all(count == scores[how] for count, scores in missing)}
    if absent - {"orm"} == missing[0][1].keys() - {"orm"}:
        absent &= {"orm"}  # a PRM that could score nothing at all stays in sight
    for row in rows:
        row["methods"] = {
            name: of
            for name, of in row["methods"].items()
            if (answers or not name.startswith(("majority", "vote ")))
            and name.partition(" ")[2] not in absent
        }
        by_score = (row["missing"]["scores"], row["pool"]["scores"], row["best"])
        for scores in (*by_score, *(row["length"][measure] for measure in MEASURES)):
            for how in absent:
                scores.pop(how, None)
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
    for steps in (c.steps for c in group.candidates if c.steps is not None):
        if steps.kind != (kind := kind or steps.kind):
            raise InputError(
                f"scores of the kind {steps.kind!r} beside scores of the kind {kind!r}: grade all candidates with one PRM",
                where=group.id,
            )
        for step, score in enumerate(steps.scores):
            if score is not None:
                try:
                    check_score(score, kind, step=step)
                except InputError as error:
                    raise error.at(group.id) from None
    return kind


def _scores_of(pool: Sequence[SampledCandidate], how: str) -> Floats:
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
        "length": _length(pool, scores),
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
    pool: Sequence[SampledCandidate],
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
    - `length/MEASURE/HOW`: rank correlation of length and score, mean over problems; HOW is an aggregate, `orm`, or `correct`;
    - `policy/POLICY/…`: see `_policy_statistic`.
    """
    sizes, counted = [int(n) for n in rows[0]["sizes"]], [row["counted"] for row in rows]
    ways = [method for method in method_names(rows) if by_grader(method)]
    ratios: dict[str, tuple[list[float], list[float]]] = {}
    for method in method_names(rows):
        cells = [row["methods"].get(method) if row["counted"] else None for row in rows]
        has = [float(cell is not None) for cell in cells]
        for at, n in enumerate(sizes if method not in {"single", "greedy"} else [1]):
            right, unknown, nothing = (
                [cell[key][at] if cell else 0.0 for cell in cells] for key in ("right", "unknown", "nothing")
            )
            known = [of - u for of, u in zip(has, unknown, strict=True)]
            ratios[f"accuracy/{method}/{n}"] = (right, known)
            more = {"unknown": unknown, "nothing": nothing}
            ratios |= {f"{name}/{method}/{n}": (values, has) for name, values in more.items() if any(values)}
    for who, counts in (("policy", sorted({1, *sizes})), ("prm", sizes), ("outcome", sizes), ("greedy", [1])):
        means = [row["tokens"][who] if row["counted"] else None for row in rows]
        once = [row["tokens"]["prm once"] if who == "prm" else 0 for row in rows]
        for n in counts:
            ratios |= _mean(f"tokens/{who}/{n}", [None if m is None else m * n + o for m, o in zip(means, once, strict=True)])  # fmt: skip
    for measure in MEASURES:
        for how in dict.fromkeys(how for row in rows if row["counted"] for how in row["length"][measure]):
            lengths = [row["length"][measure].get(how) if row["counted"] else None for row in rows]
            ratios |= _mean(f"length/{measure}/{how}", lengths)
    compute_ratios, policies = ratio_statistic(ratios), _policy_statistic(rows)
    held_out = _held_out(ratios, ways, counted, sizes[-1])

    def compute(weights: Floats) -> dict[str, Floats]:
        out = dict(compute_ratios(weights))
        for method in ways:
            for n in sizes:
                for other, name in (("majority", "majority"), ("best orm", "orm")):
                    if method != other and (less := f"accuracy/{other}/{n}") in out:
                        out[f"over {name}/{method}/{n}"] = out[f"accuracy/{method}/{n}"] - out[less]
            out |= _at_equal_tokens(out, method, sizes)
        return out | dict(held_out(weights)) | dict(policies(weights))

    return compute


def _mean(name: str, values: Sequence[float | None]) -> dict[str, tuple[list[float], list[float]]]:
    """Numerators and denominators of the mean of what is known; none where nothing is."""
    known = [float(value is not None) for value in values]
    return {name: ([value or 0.0 for value in values], known)} if any(known) else {}


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
    counted: Sequence[bool],
    most: int,
) -> Statistic:
    """`held out/…`: of the best way, chosen on one half of the problems and measured on the other; see `statistic`."""
    names = [f"accuracy/{method}/{most}" for method in (*ways, "majority")]
    places = np.cumsum(counted)
    if not ways or names[-1] not in ratios or places[-1] < HALVES:
        return ratio_statistic({})
    compute = ratio_statistic({name: ratios[name] for name in names})
    halves = [(places % 2 == half).astype(np.float64) for half in (0, 1)]
    chosen = []
    for half in halves:
        values = compute(half[None, :])
        chosen.append(max(names[:-1], key=lambda name: np.nan_to_num(values[name][0], nan=-1.0)))

    def figures(weights: Floats) -> dict[str, Floats]:
        accuracy, majority = np.zeros(len(weights)), np.zeros(len(weights))
        for name, other in zip(chosen, reversed(halves), strict=True):
            values = compute(weights * other)
            accuracy, majority = accuracy + values[name] / 2, majority + values[names[-1]] / 2
        return {f"held out/accuracy/{most}": accuracy, f"held out/over majority/{most}": accuracy - majority}

    return figures


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
    missing = {key: sum(row["missing"][key] for row in used) for key in ("correct", "answer")}
    greedy, refuted = sum("greedy" in row["methods"] for row in used), sum(row["refuted"] for row in used)
    hows = used[0]["missing"]["scores"]
    unscored = max((sum(row["missing"]["scores"][how] for row in used) for how in hows), default=0)
    drawn = ", ".join(
        f"N = {n}: {max(row['subsets'][n]['count'] for row in used)}"
        for n in used[0]["subsets"]
        if not all(row["subsets"][n]["exact"] for row in used)
    )
    parts = [
        f"{len(used)} of {amount(len(rows), 'problem')} with at least {amount(rows[0]['sizes'][-1], 'candidate')} counted",
        amount(sum(row["candidates"] for row in used), "candidate"),
        greedy and f"greedy: {amount(greedy, 'problem')}",
        missing["correct"]
        and f"correctness unknown for {missing['correct']}: left out where one of them is chosen",
        missing["answer"] and f"{missing['answer']} without an answer never vote",
        unscored and f"up to {unscored} without a score cannot be chosen by it",
        refuted and f"{refuted} with a step that an exact check refutes come after all others",
        f"votes on random subsets ({drawn} a problem)" if drawn else "all subsets of each size counted",
    ]
    return "; ".join(part for part in parts if isinstance(part, str)) + "."


def _policy_statistic(rows: Sequence[Item]) -> Statistic:
    """Figures of each policy as a function of the weights of problems.

    - `policy/POLICY/candidates`: how many, weighted;
    - `policy/POLICY/accuracy`: share of right ones among those whose correctness is known;
    - `policy/POLICY/unknown`: share of those whose correctness is not known, where there are any;
    - `policy/POLICY/auc/HOW`: the probability that a right candidate of this policy scores above a wrong one of the same
      policy, of any problem, ties half: a PRM that ranks only the models gains nothing where all candidates come from one.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for at, row in enumerate(rows):
        for number, policy in enumerate(row["pool"]["policy"]):
            if policy is not None:
                places.setdefault(policy, []).append((at, number))

    def floats(values: Sequence[Any]) -> Floats:
        return np.array([np.nan if value is None else float(value) for value in values])

    columns = {}
    for policy, of in sorted(places.items()):
        pools = [(rows[at]["pool"], number) for at, number in of]
        right = floats([pool["correct"][number] for pool, number in pools])
        hows = rows[0]["pool"]["scores"]
        scores = {how: floats([pool["scores"][how][number] for pool, number in pools]) for how in hows}
        columns[policy] = np.array([at for at, _ in of], dtype=np.intp), right, scores

    def compute(weights: Floats) -> dict[str, Floats]:
        out: dict[str, Floats] = {}
        for policy, (at, right, scores) in columns.items():
            w, known, name = weights[:, at], ~np.isnan(right), f"policy/{policy}"
            out[f"{name}/candidates"] = w.sum(axis=1)
            if not known.all():
                out[f"{name}/unknown"] = shares(w[:, ~known].sum(axis=1), w.sum(axis=1))
            out[f"{name}/accuracy"] = shares(w[:, known] @ right[known], w[:, known].sum(axis=1))
            for how, score in scores.items():
                if (both := known & ~np.isnan(score)).any():
                    out[f"{name}/auc/{how}"] = weighted_auc(score[both], right[both], w[:, both])
        return out

    return compute


def by_problem(sheet: Sheet) -> dict[str, list[CaseScores]]:
    """The rows of each problem, in the order of its first."""
    problems: dict[str, list[CaseScores]] = {}
    for row in sheet.rows:
        problems.setdefault(row.case.problem, []).append(row)
    return problems


def checked(cases: Sequence[Case], verifier: Verifier) -> list[Case]:
    """The cases with an outcome for each whose row does not say whether its answer is right, by comparing that with the reference."""
    missing = [case for case in cases if case.unchecked]
    # Each text is read once: what it answers is compared, and votes. Programs do not vote.
    votes = (
        verifier.name != "code" and len(missing) == len(cases) and all(case.answer is None for case in cases)
    )
    known, notes = list(cases), []
    for at, case in enumerate(cases):
        if case.unchecked:
            gold, text = case.solution.problem.answer or "", "".join(step.raw for step in case.solution.steps)
            if not gold.strip():
                raise InputError(
                    f'nothing says whether candidate {case.id} is right: give it "correct" (true, false, or null for unknown), or give the row '
                    '"answer", the reference, to compare it with',
                    where=case.where,
                    field="correct",
                )
            verdict = verifier.verify(case.answer or text, gold)
            notes.append(verdict.note)
            found = find_answer(text, "stated") if votes else None
            answer = case.answer if found is None else found.text
            known[at] = replace(case, outcome=verdict.correct, unchecked=False, answer=answer)
    if known and all(case.outcome is None for case in known):
        raise InputError(
            f'of {len(known):,} candidates none is known to be right or wrong{f" (the first: {notes[0]})" if notes else ""}: expected "correct" '
            "true or false, or answers that `verifier` can compare with the reference",
            where=known[0].where,
            field="correct",
        )
    return known


def _fits(rows: Sequence[Row], scores: str | Path, model: str | None) -> Callable[[Case], None]:
    """A check of each candidate as it is read: that a file of scores has one for each of its steps."""
    lengths = score_lengths(rows, model=model)

    def check(case: Case) -> None:
        if (length := lengths.get(case.id)) is not None and length != len(case.solution.steps):
            raise wrong_count(case, length, str(scores))

    return check


def candidate_sets(
    sheet: Sheet,
    verifier: Verifier | None = None,
    *,
    outcomes: Mapping[str, float] | None = None,
    outcome_tokens: Mapping[str, int] | None = None,
    refuted: Collection[str] = (),
) -> list[CandidateSet]:
    """The graded cases of a sheet, one set a problem, with answers in groups of equal ones (by default of equal numbers).

    A solution that the PRM refused has no score and cost no PRM tokens. The problem's tokens are charged once for all
    its candidates, as the engine computes a shared prefix once. Where the data gives no answer at all, answers are
    taken from the texts; where it gives no generated tokens at all, the solution's length in the PRM's tokens stands for them.
    `outcomes` and `outcome_tokens` are of an outcome reward model, by case id; `refuted` are ids of cases with a refuted step.
    """
    given = any(row.case.answer is not None for row in sheet.rows)
    counted = _counted(sheet)
    sets = []
    for id_, rows in by_problem(sheet).items():
        texts = ["".join(step.raw for step in row.case.solution.steps) for row in rows]
        answers = [row.case.answer for row in rows]
        if not given:
            answers = [None if (result := find_answer(text)) is None else result.text for text in texts]
        candidates = []
        for row, group in zip(rows, answer_groups(answers, verifier or NumberVerifier()), strict=True):
            length = None if row.steps is None else row.steps.solution_tokens
            candidates.append(
                SampledCandidate(
                    correct=row.case.outcome,
                    answer=group,
                    steps=row.steps,
                    outcome=(outcomes or {}).get(row.case.id),
                    tokens=row.case.tokens if counted else length,
                    outcome_tokens=(outcome_tokens or {}).get(row.case.id),
                    prm_tokens=0 if row.refused is not None else length,
                    policy=row.case.policy,
                    greedy=row.case.greedy,
                    refuted=row.case.id in refuted,
                )
            )
        once = max((row.steps.problem_tokens or 0 for row in rows if row.steps), default=0)
        sets.append(CandidateSet(id=id_, candidates=tuple(candidates), prm_once=once))
    return sets


def _counted(sheet: Sheet) -> bool:
    return any(row.case.tokens is not None for row in sheet.rows)


def headline(sheet: Sheet) -> str:
    """The aggregate that stands for the PRM: its own, else the product of probabilities, else the minimum."""
    known = allowed(sheet.kind)
    if sheet.aggregate in known:
        return sheet.aggregate
    return "product" if "product" in known else "min"


@settings
class BestOfNAccuracy(Evaluation):
    """Accuracy of the candidate that is chosen: greedy, by votes, by the PRM in every way, by an ORM, by an oracle.

    At N = 1, 2, 4, … every figure is the expectation over all subsets of N candidates, with intervals over problems, on an axis of the
    tokens that the policy wrote and the PRM read. The data are solutions as `stepmark grade` reads them, of which those of one problem are
    its candidates, or {"id", "question", "gold", "candidates": [{"model", "text", "answer", "correct", "tokens"}]}; without "correct", answers
    are compared with the reference. With a policy the data are problems (a
    question and its reference answer a row, GSM8K's own rows too), of which the policy samples candidates; that is resumed when it is stopped.
    """

    name: ClassVar[str] = "best-of-n"
    models: ClassVar[tuple[str, ...]] = ("prm", "orm", "policy")
    n: Annotated[int, Field(ge=1)] = 8
    """With a policy, candidates a problem; one greedy one is written beside them."""
    temperature: Annotated[float, Field(ge=0)] = 0.8
    """With a policy, sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """With a policy, sample among the likeliest tokens that together hold this share of the probability."""
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """With a policy, the longest solution."""
    prompt: Literal["chat", "text"] = "chat"
    """With a policy, ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str | None = None
    """With a policy, the text after the problem. Default: to go step by step and to box the answer."""
    verifier: str = "math"
    """What compares answers, for the votes, for candidates without "correct" and for those of a policy: math, number, choice, text, code, or "package.module:Class"."""
    answers: Literal["stated", "marked"] = "stated"
    """Which answers of a solution count: stated, also its concluding statement; marked, only a box, ####, "the answer is"."""
    isolation: Isolation | None = None
    """With the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: your files are open to them. Default: bubblewrap."""
    sizes: Sequence[Annotated[int, Field(ge=1)]] = ()
    """The N to report. Default: 1, 2, 4, … and all."""
    checks: str = "auto"
    """Exact checks (`stepmark.check`): all, none, or names with commas between them. What one refutes comes after all others and has no weight in votes. Default: those of the PRM (all with the default PRM, none with others)."""
    split: str = "auto"
    """How texts are split into steps: auto, line, blank-line, numbered, sentence, code, whole."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        check_way(self.split)
        if self.checks != "auto":
            check_names(self.checks)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> EvaluationResult:
        """See `Evaluation.measure`."""
        isolation = isolation_of(self.verifier, self.isolation)
        with open_verifier(self.verifier, answers=self.answers, isolation=self.isolation) as verifier:
            if isolation is not None:
                run.note(isolation_note(isolation))
            rows = None if run.scores is None else list(read_rows(run.scores))
            if run.policy is None:
                fits = None if rows is None or run.scores is None else _fits(rows, run.scores, run.model_name)
                cases = run.take(read_cases(run.data, how=self.split, columns=run.columns, check=fits))
            else:
                cases = read_cases([self._sample(run, verifier)], how=self.split)
            unchecked = sum(case.unchecked for case in cases)
            # Scores are joined before answers are read, which takes longer.
            given = None
            if run.scores is not None:
                given = read_scores(run.scores, cases, model=run.model_name, rows_of_file=rows)
            cases = checked(cases, verifier)
            if unchecked:
                run.note(
                    f"{amount(unchecked, 'candidate does', 'candidates do')} not say whether the answer is right: compared with the reference ({self.verifier})"
                )
            if given is None:
                sheet = run.grade(cases)
            else:
                joined = zip(given.rows, cases, strict=True)
                sheet = replace(given, rows=tuple(replace(row, case=case) for row, case in joined))
            judged = None if run.orm is None else run.grade(cases, outcome=True)
            return self.of_candidates(sheet, run, verifier=verifier, judged=judged)

    def of_candidates(
        self, sheet: Sheet, run: Run, *, verifier: Verifier | None = None, judged: Sheet | None = None
    ) -> EvaluationResult:
        """The result of graded candidates."""
        outcomes, outcome_tokens = {}, {}
        for row in () if judged is None else judged.rows:
            if (score := row.scores[-1]) is not None:
                outcomes[row.case.id] = score
            if row.steps is not None and row.steps.solution_tokens is not None:
                outcome_tokens[row.case.id] = (row.steps.problem_tokens or 0) + row.steps.solution_tokens
        names = check_names(sheet.checks if self.checks == "auto" else self.checks)
        refuted = {
            row.case.id
            for row in (sheet.rows if names else ())
            if check(row.case.solution.problem.text, row.case.solution.texts, names=names)
        }
        counting = Counting(sizes=tuple(self.sizes) or None, seed=run.seed)
        how = headline(sheet)
        items = items_of(
            candidate_sets(
                sheet, verifier, outcomes=outcomes, outcome_tokens=outcome_tokens, refuted=refuted
            ),
            counting,
        )
        figures = known(run.figures(items, statistic(items)))
        most = items[0]["sizes"][-1]
        best = best_way(items, figures, most)
        report = Report(
            title=f"Best of N: {sheet.prm}",
            verdict=_verdict(items, figures, how, most),
            facts=(
                coverage(items),
                f"The PRM's choice, where one is named, is by its {how} of step scores.",
                *_of_writers(sheet),
                *refused_votes(sheet.kind),
                INTERVALS,
            ),
            tiles=tiles_of(
                figures,
                {
                    f"{'One sample' if way == 'single' else words(way).capitalize()}, %": f"accuracy/{way}/{1 if way == 'single' else most}"
                    for way in dict.fromkeys(
                        ("single", "majority", best or "single", f"best {how}", "oracle")
                    )
                },
            ),
            sections=(
                Section(
                    title="Accuracy",
                    text="How often each way of choosing among N candidates gives a right answer. The oracle is right whenever a right "
                    "candidate is there.",
                    items=(accuracy_table(items, figures), price_plot(items, figures, how)),
                ),
                Section(title="Behind it", items=_more_tables(items, figures, how)),
                Section(title="Examples", items=_examples(sheet, items, how, names)),
            ),
        )
        return run.result(
            self,
            report,
            figures,
            items,
            prm=sheet.prm,
            identity=sheet.identity,
            **({} if judged is None else {"orm_identity": judged.identity}),
            **{
                "sizes": list(items[0]["sizes"]),
                "limit of subsets": counting.limit,
                "random subsets": counting.draws,
                "seed of subsets": counting.seed,
            },
        )

    def _sample(self, run: Run, verifier: Verifier) -> Path:
        """Sample and verify candidates into candidates.jsonl, or take those of an earlier run with the same settings."""
        assert run.policy is not None
        given: dict[str, Any] = {} if self.instruction is None else {"instruction": self.instruction}
        sampling = Sampling(
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            seed=run.seed,
            prompt=self.prompt,
            **given,
        )
        path = made_folder(run.folder) / "candidates.jsonl"
        manifest = {
            "command": "evaluate best-of-n, sampling",
            "policy": run.policy.name,
            "verifier": self.verifier,
            "answers": self.answers,
            "isolation": isolation_of(self.verifier, self.isolation),
            "limit": run.limit,
            "data": list(run.inputs),
            "sampling": asdict(sampling),
        }
        if path.exists():
            check_same(path, manifest)
            check_same(path, manifest | {"models": {"policy": run.policy.identity}})
            run.note(f"{path} has the candidates of an earlier run with these settings")
            return path
        problems = run.spaced(
            [problem for file in run.data for problem in read_problems(file, columns=run.columns)]
        )
        with (
            PartFile(path, {key: manifest[key] for key in manifest if key not in ("limit", "data")}) as part,
            closing(ReplyFile(run.folder / "replies.sqlite")) as store,
        ):
            policy: Policy = run.loaded(run.policy)
            part.identify({"policy": policy.identity})
            progress = Progress(
                len(problems),
                tokens=lambda: policy.tokens_written,
                verb="sampled",
                noun="problem",
                together=_TOGETHER,
                shown=run.progress,
            )

            done = resumed(
                part,
                problems,
                lambda problem: row_key(asdict(problem)),
                lambda left: sample(left, policy, sampling, store=store, in_flight=_TOGETHER),
                lambda _, result: _row(result, policy.name, verifier),
            )
            try:
                with progress:
                    for _, _, fresh in done:
                        progress.advance(fresh=fresh is not None)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"what was sampled is kept in {run.folder}; the same command continues"
                ) from None
            # Under a name of its own: the manifest has the policy as the caller named it.
            part.finish({**manifest, "policy_name": policy.name}, {path: lambda row: [row]})
        return path


def _row(sampled: Sampled, policy: str, verifier: Verifier) -> dict[str, Any]:
    """One row of a candidates file. A text without a verdict has `correct` null, and never counts as wrong silently."""
    if sampled.refused is not None:
        raise InputError(sampled.refused, where=sampled.problem.id)
    texts = [(written, False) for written in sampled.samples]
    texts += [(sampled.greedy, True)] if sampled.greedy is not None else []
    candidates = []
    for written, greedy in texts:
        verdict = verifier.verify(written.text, sampled.problem.answer or "")
        candidates.append(
            {
                "model": policy,
                "text": written.text,
                "answer": verdict.answer,
                "correct": verdict.correct,
                "tokens": written.tokens,
                "finish": written.finish,
                **({"greedy": True} if greedy else {}),
            }
        )
    return {
        "id": sampled.problem.id,
        "question": sampled.problem.text,
        "gold": sampled.problem.answer,
        "candidates": candidates,
    }


def _examples(
    sheet: Sheet, items: Sequence[Item], how: str, checks: Collection[CheckName]
) -> tuple[Examples, ...]:
    passed, picked = [], []
    for rows, item in zip(by_problem(sheet).values(), items, strict=True):
        pool = [row for row in rows if not row.case.greedy]
        truth = [row.case.outcome for row in pool]
        chosen = next((rows[at] for at in item["best"].get(how, [])), None)
        if chosen is None or chosen.case.outcome is None or not {True, False} <= {*truth}:
            continue
        pair = chosen, pool[truth.index(not chosen.case.outcome)]
        if not chosen.case.outcome:
            passed.append(pair)
        elif truth.count(True) * 3 <= len(truth):
            picked.append(pair)
    sorts = {
        f"A right candidate is there, and the highest {how} is of a wrong one": passed,
        "Few candidates are right, and the PRM chooses one of them": picked,
    }
    text = "The chosen candidate and another one."
    return examples_of(sorts, lambda pair: _pair(*pair, sheet, how, checks), text=text)


def known(figures: Figures) -> dict[str, Figure]:
    """The figures; without an interval those that rest on choices of which more than half are of unknown correctness.

    The resamples tell of the known choices alone, so that an interval would claim to be sure of the others.
    """
    unknown = {
        name.removeprefix("unknown/").removesuffix("/unknown")
        for name, figure in figures.items()
        if (name.startswith("unknown/") or name.endswith("/unknown")) and (figure.value or 0.0) > 0.5
    }

    def bases(name: str) -> set[str]:
        """What a figure rests on: METHOD/N, or policy/POLICY."""
        what, _, rest = name.partition("/")
        if what == "policy":
            return {name.partition("/auc/")[0].removesuffix("/accuracy")}
        if what == "held out":
            return {method for method in unknown if by_grader(method)}
        other = "best orm" if what == "over orm" else "majority"
        more = {f"{other}/{rest.rpartition('/')[2]}"} if what.startswith("over ") else set()
        return {rest} | more if what == "accuracy" or more else set()

    return {
        name: figure if unknown.isdisjoint(bases(name)) else replace(figure, low=None, high=None)
        for name, figure in figures.items()
    }


def best_way(items: Sequence[Item], figures: Figures, most: int) -> str | None:
    """The method that asks a grader and is right most often of the largest N; None where none does."""
    ways = [
        method
        for method in method_names(items)
        if by_grader(method) and (one := figures.get(f"accuracy/{method}/{most}")) and one.value is not None
    ]
    return max(ways, key=lambda method: figures[f"accuracy/{method}/{most}"].value or 0.0, default=None)


def words(method: str) -> str:
    """A method for people: "vote weighted by the product of step scores", "highest min step score"."""
    kind, _, how = method.partition(" ")
    if method in ("majority", "oracle", "best orm"):
        return {"majority": "majority vote", "oracle": "oracle"}.get(method, "highest ORM score")
    score = f"{how} step score" if how in ("min", "mean", "last", "max") else f"{how} of step scores"
    return f"vote weighted by the {score}" if kind == "vote" else f"highest {score}"


def _signed(figure: Figure) -> str:
    return f"{'+' if (figure.value or 0.0) > 0 else ''}{shown(figure)}"


def _verdict(items: Sequence[Item], figures: Figures, how: str, most: int) -> str:
    """The best way to use the PRM and its lead over the vote; its own choice; the ceiling."""
    oracle, best = figures.get(f"accuracy/oracle/{most}"), best_way(items, figures, most)
    if oracle is None or best is None:
        return ""
    if most == 1:
        return f"Every problem has one candidate, so there is nothing to choose: {shown(oracle)} % are right."
    count = sum(map(by_grader, method_names(items)))
    parts = {
        "over the majority vote": f"over majority/{best}/{most}",
        "at equal tokens": next(
            (
                name
                for n in reversed(items[0]["sizes"])
                if getattr(figures.get(name := f"over majority at equal tokens/{best}/{n}"), "value", None)
                is not None
            ),
            "",
        ),
        f"for the best of {count} ways chosen on one half of the problems and measured on the other": f"held out/over majority/{most}",
        f"for the PRM's own {words(f'best {how}')} over the ORM's choice": f"over orm/best {how}/{most}",
    }
    leads = [
        f"{_signed(figure)} {what}"
        for what, name in parts.items()
        if (figure := figures.get(name)) is not None and figure.value is not None
    ]
    unknown = figures.get(f"unknown/{best}/{most}")
    return (
        f"The best way to choose among {most} candidates: {words(best)}, right in {shown(figures[f'accuracy/{best}/{most}'])} %. "
        + (f"In points: {', '.join(leads)}. " if leads else "")
        + (f"Its choice is of unknown correctness in {shown(unknown)} %, left out. " if unknown else "")
        + f"A right candidate is there in {shown(oracle)} %."
    )


def _pair(
    chosen: CaseScores, other: CaseScores, sheet: Sheet, how: str, checks: Collection[CheckName]
) -> ProblemView:
    cards = []
    for number, (row, place) in enumerate(((chosen, "chosen"), (other, "not chosen")), start=1):
        answer = "" if row.case.answer is None else f", answer {row.case.answer}"
        note = f"{place}; {'right' if row.case.outcome else 'wrong'}{answer}"
        cards.append(card(row, sheet, note, how=how, number=number, checks=checks))
    return problem(chosen, *cards)


def _of_writers(sheet: Sheet) -> list[str]:
    """What a reader needs to know of the policies that wrote the candidates."""
    writers, facts = {row.case.policy for row in sheet.rows} - {None}, []
    if len(writers) > 1:
        facts.append(
            f"The candidates come from {amount(len(writers), 'policy', 'policies')}: choosing among them is partly choosing the policy."
        )
    if not _counted(sheet):
        facts.append(
            "The data does not say how many tokens the policies generated: where the PRM counts tokens, the length of the solutions in its "
            "tokens stands for them."
        )
    return facts


def accuracy_table(items: Sequence[Item], figures: Figures) -> Table:
    """Accuracy of every method at the largest N, its lead over the majority vote and the ORM; accuracy at the other N."""
    sizes, methods = items[0]["sizes"], method_names(items)
    most = sizes[-1]

    def defined(name: str) -> bool:
        return any((one := figures.get(name.format(of))) and one.value is not None for of in methods)

    equal = "over majority at equal tokens/{{}}/{}"
    leads = {
        "Over majority": f"over majority/{{}}/{most}",
        "Over ORM": f"over orm/{{}}/{most}",
        **{f"At equal tokens, N = {n}": name for n in sizes if defined(name := equal.format(n))},
    }
    for label in [label for label in leads if label.startswith("At")][:-1]:
        del leads[label]
    leads = {label: name for label, name in leads.items() if defined(name)}
    return table_of(
        "Accuracy by method and N, %",
        "Method",
        methods,
        {
            f"N = {most}": f"accuracy/{{}}/{most}",
            **leads,
            **{
                f"N = {n}": ("share", value_of(figures, f"accuracy/{{}}/{n}"))
                for n in dict.fromkeys((1, *sizes[:-1]))
            },
        },
        figures,
        note="Expectations over all subsets of N of a problem's candidates. Over majority: less the majority vote of as many candidates; at "
        f"equal tokens: less the majority vote that costs as much as N candidates and their grading"
        f"{'' if any(name.startswith('tokens/') for name in figures) else ' (2 N candidates, as no tokens were counted)'}.",
    )


def _more_tables(items: Sequence[Item], figures: Figures, how: str) -> tuple[Table, ...]:
    """Expected tokens a problem by N, rank correlation of score and length, and each policy, where they are known."""
    sizes = [str(n) for n in items[0]["sizes"]]
    readers = {"policy": "Policy", "prm": "PRM", "outcome": "Outcome model"}
    prices: dict[str, Column] = {label: ("count", f"tokens/{who}/{{}}") for who, label in readers.items() if f"tokens/{who}/{sizes[-1]}" in figures}  # fmt: skip
    hows = [one for one in (*AGGREGATES, "orm", CORRECTNESS) if any(f"length/{of}/{one}" in figures for of in MEASURES)]  # fmt: skip
    policies = [name[7:-9] for name in figures if name.startswith("policy/") and name.endswith("/accuracy")]
    policies.sort(key=lambda name: (-(figures[f"policy/{name}/accuracy"].value or 0.0), name))
    tables = (
        table_of(
            "Tokens a problem",
            "N",
            sizes if prices else (),
            prices,
            figures,
            note="Means over the problems whose candidates all have a count. A choice by PRM or a weighted vote pays policy and PRM; a majority vote only the policy.",
        ),
        table_of(
            "Does the score follow the length",
            "Score",
            hows,
            {f"Length in {of}": ("coefficient", f"length/{of}/{{}}") for of in MEASURES},
            figures,
            label=lambda one: "(correctness itself)" if one == CORRECTNESS else one,
            note="Rank correlation of score and length within each problem, averaged over problems; a dash where they never differ. "
            "Correctness itself: what a perfect score would show.",
        ),
        table_of(
            f"By policy ({how})",
            "Policy",
            policies,
            {
                "Candidates": value_of(figures, "policy/{}/candidates"),
                "Accuracy, %": "policy/{}/accuracy",
                "AUC within the policy": ("number", f"policy/{{}}/auc/{how}"),
            },
            figures,
            note="AUC: how often a right candidate scores above a wrong one of the same policy.",
        ),
    )
    return tuple(table for table in tables if table.rows)


def price_plot(items: Sequence[Item], figures: Figures, how: str) -> Lines:
    """Accuracy against the tokens that each method pays in all; against N where they were not counted."""
    drawn = {"greedy", "single", "majority", f"best {how}", "best orm", f"vote {how}", "oracle"}
    drawn |= {best} if (best := best_way(items, figures, items[0]["sizes"][-1])) else set()
    points: dict[str, list[tuple[float | None, int, Figure]]] = {}
    for method in method_names(items):
        for n in [1] if method in {"single", "greedy"} else items[0]["sizes"]:
            accuracy = figures.get(f"accuracy/{method}/{n}")
            if method in drawn and accuracy is not None and accuracy.value is not None:
                points.setdefault(method, []).append((_tokens(figures, method, n), n, accuracy))
    in_tokens = all(tokens is not None for tokens, _, _ in points.get("single", [(None, 1, None)]))
    series = []
    for method, of in points.items():
        if in_tokens and any(tokens is None for tokens, _, _ in of):
            continue  # a method whose tokens nobody counted has no place on this axis
        line = series_of(method, [figure for _, _, figure in of])
        xs = tuple(float(tokens if in_tokens and tokens is not None else n) for tokens, n, _ in of)
        series.append(replace(line, x=xs))
    return Lines(
        title="Accuracy against " + ("tokens" if in_tokens else "N"),
        x_label="Tokens a problem: policy and graders" if in_tokens else "N",
        y_label="Accuracy, %",
        series=tuple(series),
        log_x=True,
    )


def _tokens(figures: Figures, method: str, n: int) -> float | None:
    """What the method pays in all; None where a part of it was not counted."""
    if method == "greedy":
        readers: tuple[str, ...] = ("greedy",)
    elif method == "best orm":
        readers = ("policy", "outcome")
    else:
        readers = ("policy", "prm") if method.startswith(("best ", "vote ")) else ("policy",)
    values = [figure.value if (figure := figures.get(f"tokens/{who}/{n}")) else None for who in readers]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) and sum(known) > 0 else None


def refused_votes(kind: ScoreKind) -> tuple[str, ...]:
    """Sentences that say which weighted votes are left out, and why."""
    refusals = {how: why for how in AGGREGATES if (why := vote_refusal(how, kind)) is not None}
    if len(refusals) == len(AGGREGATES):
        return (f"No weighted votes: {refusals[AGGREGATES[0]]}.",)
    return tuple(f"No vote weighted by {how}: {why}." for how, why in refusals.items())
