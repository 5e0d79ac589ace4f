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
  never votes. A subset in which nothing can be chosen is wrong. Where no candidate of any problem has what a method needs, the method is
  left out.
- A problem with fewer candidates than the largest N is not counted at any N, so that all points of a curve are about
  the same problems.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from stepmark.backends import INSTRUCTION
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
from stepmark.metrics.aggregate import AGGREGATES, aggregate_checked, allowed
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic
from stepmark.problems.loading import read_problems
from stepmark.records import ScoreKind, StepScores
from stepmark.report.evaluation import Examples, Report, Section
from stepmark.report.page import ProblemView
from stepmark.report.plots import Lines
from stepmark.report.tables import Table
from stepmark.sampling import Sampling
from stepmark.sampling.run import sample
from stepmark.settings import settings
from stepmark.store import run_input
from stepmark.verifiers.base import (
    Verifier,
    answer_groups,
    isolation_note,
    isolation_of,
    open_verifier,
    verifier_facts,
)
from stepmark.verifiers.checks import CheckName, check, check_names
from stepmark.verifiers.code_sandbox import Isolation
from stepmark.verifiers.finder import find_answer
from stepmark.verifiers.number import NumberVerifier
from stepmark.words import amount

TIE = 1e-9
"""Vote totals closer than this, relative to the highest, are a tie: a sum of floats depends on its order in the
last bits, and two groups with the same weights must tie whatever the order of the candidates."""

NEAR = 1.1
"""A curve has the value at its end for this much beyond it; farther out nothing is known."""


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
    """What a method's choice from a random subset is, as probabilities; what remains to 1 is wrong."""

    right: float
    """The choice is right."""
    unknown: float
    """Something was chosen of which nobody knows whether it is right."""


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
    return Chosen(float(shares @ right), float(shares @ unknown))


def _at_least_one(right: Floats, unknown: Floats, size: int) -> Chosen:
    """The oracle; a subset without a right candidate but with one of unknown correctness counts as unknown."""
    missed = _missed(len(right), size)
    rights, unknowns = int(right.sum()), int(unknown.sum())
    return Chosen(float(1.0 - missed[rights]), float(missed[rights] - missed[rights + unknowns]))


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

    `groups` are answer groups, negative for a candidate without an answer; `weights` are at least 0, NaN for a candidate that cannot vote. Both have
    shape (M,), as `right` and `unknown`; `members` has shape (M, K). A subset where all weights are 0 is a tie of the groups that voted.
    """
    votes = (groups >= 0) & ~np.isnan(weights)
    if not votes.any():
        return Chosen(0.0, 0.0)
    if (groups == groups[0]).all() and votes.all():  # one answer, which every subset votes for
        return Chosen(float(right.mean()), float(unknown.mean()))
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
    return Chosen(float(won @ group_right), float(won @ group_unknown))


def can_vote(how: str, kind: ScoreKind) -> bool:
    """Whether an aggregate can weigh a vote.

    A weight must be a quantity of at least 0: a sum of log-ratios or margins would let a bad candidate vote
    against its own answer, and a shift of the scale would change the winner.
    """
    return kind == "probability" and how != "sum-logit"


def items_of(sets: Sequence[CandidateSet], settings: Counting | None = None) -> list[Item]:
    """One JSON-able row a problem, from which `statistic` makes every figure.

    Keys: `candidates` (M, without the greedy one); `sizes` (the N); `counted` (M is at least the largest N);
    `methods`: name -> {`right`, `unknown`}, each a list along `sizes` (`single` and `greedy`: one number);
    `subsets`: N -> {`count`, `exact`} of the votes; `refuted`: how many have a refuted step; `tokens`: {`policy`, `prm`, `outcome`, `greedy`}: the mean a
    candidate, None when one is not known, and `prm once` a problem; `missing`: counts of candidates without
    `correct`, `answer`, and a score by aggregate; `best`: aggregate -> positions in the set of the best of all.
    """
    if not sets:
        raise InputError("there are no problems: expected at least one with its candidates")
    settings = settings or Counting()
    sizes = settings.sizes if settings.sizes is not None else common_sizes(sets)
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
        raise UsageError(f"sizes {sizes}: expected increasing numbers of at least 1, such as 1,2,4,8")
    for group in sets:
        if sum(candidate.greedy for candidate in group.candidates) > 1:
            raise InputError("expected at most one greedy candidate, found several", where=group.id)
    kinds = {one.steps.kind for group in sets for one in group.candidates if one.steps is not None}
    kind = kinds.pop() if kinds else None
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
        for how in absent:
            del row["missing"]["scores"][how], row["best"][how]
    if not any(row["counted"] for row in rows):
        most = max(row["candidates"] for row in rows)
        raise UsageError(
            f"N = {sizes[-1]}, but no problem has more than {amount(most, 'candidate')}: lower the largest size"
        )
    return rows


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
        methods["greedy"] = _along([Chosen(float(correct is True), float(correct is None))])
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
        "best": {how: [positions[at] for at in np.flatnonzero(share)] for how, share in everything.items()},
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

    methods = {"single": _along([Chosen(float(right.mean()), float(unknown.mean()))])}
    methods["majority"] = votes(np.ones(len(pool)))
    for how, values in scores.items():
        methods[f"best {how}"] = _along([_best_of(values, right, unknown, n) for n in drawn])
    for how, values in weights.items():
        if how != "orm" and kind is not None and can_vote(how, kind):
            methods[f"vote {how}"] = votes(values)
    methods["oracle"] = _along([_at_least_one(right, unknown, n) for n in drawn])
    return methods


def _along(chosen: Sequence[Chosen]) -> dict[str, list[float]]:
    return {key: [getattr(choice, key) for choice in chosen] for key in Chosen._fields}


def _mean_of(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


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
    - `unknown/METHOD/N`: share of choices, only where they are not all 0;
    - `tokens/policy/N`, `tokens/prm/N`, `tokens/outcome/N`, `tokens/greedy/1`: expected tokens a problem, over the
      problems that know them; absent when none does.
    """
    sizes, counted = [int(n) for n in rows[0]["sizes"]], [row["counted"] for row in rows]
    ways = [method for method in method_names(rows) if by_grader(method)]
    ratios: dict[str, tuple[list[float], list[float]]] = {}
    for method in method_names(rows):
        cells = [row["methods"].get(method) if row["counted"] else None for row in rows]
        has = [float(cell is not None) for cell in cells]
        for at, n in enumerate(sizes if method not in {"single", "greedy"} else [1]):
            right, unknown = ([cell[key][at] if cell else 0.0 for cell in cells] for key in Chosen._fields)
            known = [of - u for of, u in zip(has, unknown, strict=True)]
            ratios[f"accuracy/{method}/{n}"] = (right, known)
            if any(unknown):
                ratios[f"unknown/{method}/{n}"] = unknown, has
    for who, counts in (("policy", sorted({1, *sizes})), ("prm", sizes), ("outcome", sizes), ("greedy", [1])):
        means = [row["tokens"][who] if row["counted"] else None for row in rows]
        once = [row["tokens"]["prm once"] if who == "prm" else 0 for row in rows]
        for n in counts:
            ratios |= _mean(f"tokens/{who}/{n}", [None if m is None else m * n + o for m, o in zip(means, once, strict=True)])  # fmt: skip
    compute_ratios = ratio_statistic(ratios)
    held_out = _held_out(ratios, ways, counted, sizes[-1])

    def compute(weights: Floats) -> dict[str, Floats]:
        out = dict(compute_ratios(weights))
        for method in ways:
            for n in sizes:
                for other, name in (("majority", "majority"), ("best orm", "orm")):
                    if method != other and (less := f"accuracy/{other}/{n}") in out:
                        out[f"over {name}/{method}/{n}"] = out[f"accuracy/{method}/{n}"] - out[less]
            out |= _at_equal_tokens(out, method, sizes)
        return out | dict(held_out(weights))

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
    """With a policy, candidates a problem."""
    temperature: Annotated[float, Field(ge=0)] = 0.8
    """With a policy, sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """With a policy, sample among the likeliest tokens that together hold this share of the probability."""
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """With a policy, the longest solution."""
    prompt: Literal["chat", "text"] = "chat"
    """With a policy, ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str = INSTRUCTION
    """With a policy, the text after the problem."""
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
                cases = read_cases([self._sample(run)], how=self.split)
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
        figures = run.figures(items, statistic(items))
        most = items[0]["sizes"][-1]
        best = best_way(items, figures, most)
        report = Report(
            title=f"Best of N: {sheet.prm}",
            verdict=_verdict(items, figures, how, most),
            facts=(
                coverage(items),
                f"The PRM's choice, where one is named, is by its {how} of step scores.",
                *_of_writers(sheet),
                *(
                    ["No weighted votes: scores that can be negative are no weights."]
                    if sheet.kind != "probability"
                    else []
                ),
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
                Section(title="Tokens", items=_token_table(items, figures)),
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
            sizes=list(items[0]["sizes"]),
        )

    def _sample(self, run: Run) -> Path:
        """Sample candidates into candidates.jsonl as `stepmark.sample` does, or take those of an earlier run with the same settings."""
        assert run.policy is not None
        path = made_folder(run.folder) / "candidates.jsonl"
        problems = run.spaced(
            [problem for file in run.data for problem in read_problems(file, columns=run.columns)]
        )
        sampling: dict[str, Any] = {
            "n": self.n,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "seed": run.seed,
            "prompt": self.prompt,
            "instruction": self.instruction,
        }
        judge: dict[str, Any] = {
            "verifier": self.verifier,
            "answers": self.answers,
            "isolation": self.isolation,
        }
        if path.exists():
            facts = {**asdict(Sampling(greedy=False, **sampling)), **verifier_facts(**judge)}
            facts |= {"limit": None, "columns": None}
            asked = {
                "policy": run.policy.name,
                "settings": facts,
                "input": run_input(problems).manifest,
                "models": {"policy": run.policy.identity},
            }
            check_same(path, asked)
            run.note(f"{path} has the candidates of an earlier run with these settings")
        else:
            sample(problems, run.policy, **sampling, **judge, out=path, progress=run.progress)
        return path


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


def _token_table(items: Sequence[Item], figures: Figures) -> tuple[Table, ...]:
    """Expected tokens a problem by N, where they are known."""
    sizes = [str(n) for n in items[0]["sizes"]]
    readers = {"policy": "Policy", "prm": "PRM", "outcome": "Outcome model"}
    columns: dict[str, Column] = {
        label: ("count", f"tokens/{who}/{{}}")
        for who, label in readers.items()
        if f"tokens/{who}/{sizes[-1]}" in figures
    }
    if not columns:
        return ()
    note = "Means over the problems whose candidates all have a count. A choice by PRM or a weighted vote pays policy and PRM; a majority vote only the policy."
    return (table_of("Tokens a problem", "N", sizes, columns, figures, note=note),)


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
