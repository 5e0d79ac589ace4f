"""Calibration: does a score of 0.8 mean right four times in five, and for which steps, policies and problems does it not.

Two targets. "steps": each judged step's score against its label. "outcome": the solution's aggregate against whether its answer
is right. ECE has bins of equal width and is biased upwards where they hold few items (Guo et al. 2017, "On calibration of modern
neural networks", section 2); `floor` says how high it would be for a calibrated PRM on as many.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from stepmark.errors import UsageError
from stepmark.evaluation.cases import Case, Neutral, step_labels
from stepmark.evaluation.result import Item
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.metrics.aggregate import aggregate, check_aggregate
from stepmark.metrics.binary import bin_of, weighted_auc
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic, shares
from stepmark.metrics.scaling import logit, platt, sigmoid, temperature
from stepmark.records import ScoreKind
from stepmark.show.text import amount

Target = Literal["steps", "outcome"]
TARGETS: tuple[Target, ...] = get_args(Target)

MAPS = ("temperature", "platt")
"""Keys of an item's target that hold calibrated scores, where there are any."""

FIGURES = ("auc", "ece", "brier", "mean_score", "share_right", "gap")
"""`gap` is mean score minus share right: over 0 where the PRM is too confident. All but AUC and `share_right` need probabilities and are not
defined (nan) for other scores."""

POSITIONS = ("1", "2", "3", "4–5", "6–9", "10+")
"""Steps by their number from 1."""

_AT_ONCE = 2_000_000
"""Weights of single steps held at once: bounds the memory of a bootstrap, not its result."""


def targets_of(cases: Sequence[Case], asked: Target | None) -> tuple[Target, ...]:
    """What can be measured: the target that was asked for, else all that the data knows.

    Raises:
        UsageError: the data does not know it.
    """
    known: dict[Target, bool] = {
        "steps": any(judgements for case in cases for judgements in case.labelled.judgements),
        "outcome": any(case.outcome is not None for case in cases),
    }
    if asked is not None and not known[asked]:
        what = "judged steps" if asked == "steps" else "solutions whose answer is known to be right or wrong"
        raise UsageError(f"`target` {asked}: the data has no {what}")
    results = tuple(target for target in TARGETS if known[target] and asked in (None, target))
    if not results:
        raise UsageError(
            "the data has neither judged steps nor known outcomes to measure calibration against"
        )
    return results


def check_how(how: str | None, sheet: Sheet) -> str:
    """The aggregate that stands for a solution: the one asked for, else the PRM's own, else "min".

    Raises:
        UnknownNameError: no such aggregate.
        ScoreKindError: it means nothing for these scores.
        UsageError: "sum-logit", which is no probability and may be infinite.
    """
    if how == "sum-logit":
        raise UsageError(
            "`aggregate` sum-logit is not on the scale of the scores and may be infinite; use product"
        )
    chosen = how or sheet.aggregate or "min"
    return check_aggregate("product" if chosen == "sum-logit" else chosen, sheet.kind)


def items_of(
    sheet: Sheet,
    targets: Sequence[Target],
    *,
    how: str = "min",
    bins: int = 10,
    neutral: Neutral = "positive",
) -> list[Item]:
    """One item a case. For each target `{"scores": […], "labels": […]}`: of "steps" one entry a step, of "outcome" a single one;
    None where there is no score or no label.
    """
    items: list[Item] = []
    for row in sheet.rows:
        item: Item = {
            "id": row.case.id,
            "problem": row.case.problem,
            "group": row.case.group,
            "policy": row.case.policy,
            "kind": sheet.kind,
            "bins": bins,
            "role": None,
            "counts": True,
        }
        if "steps" in targets:
            labels = step_labels(row.case.labelled, neutral)
            item["steps"] = {"scores": list(row.scores), "labels": list(labels)}
        if "outcome" in targets:
            outcome = row.case.outcome
            item["outcome"] = {
                "scores": [solution_score(row, how)],
                "labels": [None if outcome is None else float(outcome)],
            }
        items.append(item)
    return items


def solution_score(row: CaseScores, how: str) -> float | None:
    """The aggregate of a case; None when it was not read, or a step that the aggregate needs has no score."""
    if row.steps is None or (None in (row.scores[-1:] if how == "last" else row.scores)) or not row.scores:
        return None
    return aggregate(row.scores, how, kind=row.steps.kind)


def position(step: int) -> str:
    """The part of `POSITIONS` that a 0-based step is in."""
    return POSITIONS[step if step < 3 else 3 if step < 5 else 4 if step < 9 else 5]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Facet:
    """A part of the scores, flat: one entry a score with a label."""

    target: Target
    name: str
    """"all", "group X", "position 4–5", "policy X", "measured, platt" …"""
    scores: Floats
    labels: Floats
    owner: npt.NDArray[np.intp]
    """The item of each."""
    probability: bool
    """Whether the scores are probabilities."""
    bins: int

    def __len__(self) -> int:
        return len(self.scores)

    def only(self, name: str, chosen: npt.NDArray[np.bool_]) -> Facet:
        """The part of it that is chosen."""
        return replace(
            self, name=name, scores=self.scores[chosen], labels=self.labels[chosen], owner=self.owner[chosen]
        )


def facets(items: Sequence[Item]) -> Iterator[Facet]:
    """Every part that figures are made of, in the order of the report. "all" is there even when it is empty."""
    counts = np.array([item["counts"] for item in items])
    roles = np.array([item["role"] or "" for item in items])
    for target in TARGETS:
        if not any(target in item for item in items):
            continue
        entries = [
            (at, step)
            for at, item in enumerate(items)
            if target in item
            for step, (score, label) in enumerate(
                zip(item[target]["scores"], item[target]["labels"], strict=True)
            )
            if score is not None and label is not None
        ]
        base = Facet(
            target=target,
            name="all",
            scores=np.array([items[at][target]["scores"][step] for at, step in entries], dtype=float),
            labels=np.array([items[at][target]["labels"][step] for at, step in entries], dtype=float),
            owner=np.array([at for at, _ in entries], dtype=np.intp),
            probability=items[0]["kind"] == "probability",
            bins=items[0]["bins"],
        )
        yield (everything := base.only("all", counts[base.owner]))
        for key in ("group", "policy"):
            values = np.array([item[key] or "" for item in items])[everything.owner]
            names = sorted({str(value) for value in values} - {""})
            if len(names) > 1:
                for name in names:
                    yield everything.only(f"{key} {name}", values == name)
        if target == "steps":
            at = np.array([position(step) for _, step in entries])[counts[base.owner]]
            for name in POSITIONS:
                if (at == name).any():
                    yield everything.only(f"position {name}", at == name)
        if not roles.any():
            continue
        views = [view for view in MAPS if any(view in item.get(target, {}) for item in items)]
        for role in ("measured", "fitted here"):
            inside = roles[base.owner] == role
            yield base.only(f"{role}, before", inside)
            for view in views:
                mapped = np.array([items[at][target][view][step] for at, step in entries], dtype=float)
                yield replace(base, scores=mapped, probability=True).only(f"{role}, {view}", inside)


def statistic(items: Sequence[Item]) -> Statistic:
    """`TARGET/FACET/FIGURE` for every facet and each of `FIGURES`, as functions of the items' weights."""
    parts = [(f"{facet.target}/{facet.name}", _figures(facet, len(items))) for facet in facets(items)]

    def figures(weights: Floats) -> Mapping[str, Floats]:
        return {f"{name}/{what}": value for name, of in parts for what, value in of(weights).items()}

    return figures


def _figures(facet: Facet, count: int) -> Callable[[Floats], dict[str, Floats]]:
    x, y, owner = facet.scores, facet.labels, facet.owner

    def summed(values: npt.ArrayLike) -> Floats:
        return np.bincount(owner, weights=values, minlength=count).astype(float)

    ones = summed(np.ones(len(x)))
    columns = {"share_right": (summed(y), ones)}
    if facet.probability:
        in_bin = bin_of(x, facet.bins)
        gaps = np.stack([summed((x - y) * (in_bin == at)) for at in range(facet.bins)], axis=1)
        columns |= {
            "brier": (summed((x - y) ** 2), ones),
            "mean_score": (summed(x), ones),
            "gap": (summed(x - y), ones),
        }
    ratios = ratio_statistic(columns)

    def figures(weights: Floats) -> dict[str, Floats]:
        result = dict.fromkeys(FIGURES, np.full(len(weights), np.nan))
        result["auc"] = auc_by_owner(x, y, owner, weights)
        if facet.probability:
            result["ece"] = shares(np.abs(weights @ gaps).sum(axis=1), weights @ ones)
        return result | dict(ratios(weights))

    return figures


def auc_by_owner(x: Floats, y: Floats, owner: npt.NDArray[np.intp], weights: Floats) -> Floats:
    """AUC for B weightings (B, items) of the owners of the scores; nan where one has no right or no wrong one."""
    if not len(x):
        return np.full(len(weights), np.nan)
    block = max(1, _AT_ONCE // len(x))
    order = np.argsort(x, kind="stable")
    x, y, owner = x[order], y[order], owner[order]
    return np.concatenate(
        [
            weighted_auc(x, y, weights[start : start + block][:, owner])
            for start in range(0, len(weights), block)
        ]
    )


def floor(facet: Facet) -> float | None:
    """About what ECE a calibrated PRM with these very scores would show, because bins hold few items.

    In each bin the sum of score - label then has variance `sum of s (1 - s)`, and its expected size, were it normal, is the
    root of that times sqrt(2 / pi). The items are taken for independent: with many steps of few problems it is higher.
    None for scores that are no probabilities, and for labels that are shares.
    """
    if not facet.probability or not len(facet) or bool(((facet.labels != 0) & (facet.labels != 1)).any()):
        return None
    variances = np.bincount(
        bin_of(facet.scores, facet.bins), weights=facet.scores * (1 - facet.scores), minlength=facet.bins
    )
    return float(np.sqrt(variances).sum()) * math.sqrt(2 / math.pi) / len(facet)


def bin_statistic(facet: Facet, count: int) -> Statistic:
    """The share that is right in each bin, named by its 0-based number, for the intervals of a reliability diagram."""
    in_bin = bin_of(facet.scores, facet.bins)
    return ratio_statistic(
        {
            str(at): (
                np.bincount(facet.owner, weights=facet.labels * (in_bin == at), minlength=count).astype(
                    float
                ),
                np.bincount(facet.owner, weights=in_bin == at, minlength=count).astype(float),
            )
            for at in range(facet.bins)
        }
    )


MEASURED = "measured"
FITTED = "fitted here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Which cases a map is fitted on and which it is measured on."""

    roles: Mapping[str, str | None]
    """Case id to `FITTED`, `MEASURED`, or None for neither."""
    words: str
    """On what it is fitted."""
    apart: bool = False
    """Whether what is fitted on is other data, and in no figure but those that are fitted here."""
    dropped: int
    """Cases of the part to fit on that are in neither, because their problems are measured on."""


def split_by(
    cases: Sequence[Case],
    *,
    share: float | None = None,
    group: str = "",
    others: Sequence[Case] | None = None,
) -> Split:
    """Which cases to fit on: a share of the problems, chosen by a hash of each; or other cases; or those of one group.

    A case whose problem, by id or text, is measured on is never fitted on.

    Args:
        cases: the data.
        share: of the problems.
        group: of the cases; with `others` their name.
        others: cases of another file.

    Raises:
        UsageError: a share out of (0, 1), no such group, or one side is empty.
    """
    if share is not None:
        if not 0 < share < 1:
            raise UsageError(f"`fit_share` {share:g}: expected a share between 0 and 1, such as 0.5")
        chosen, words = (
            {case.id for case in cases if place(case.problem) < share},
            f"{share:.0%} of the problems",
        )
    elif others is not None:
        chosen, words = {case.id for case in others}, group
    else:
        chosen, words = {case.id for case in cases if case.group == group}, group
        if not chosen:
            known = ", ".join(sorted({case.group for case in cases} - {""})) or "none"
            raise UsageError(f"`fit` {group}: there is no such file, and no such group; groups: {known}")
    rest = [case for case in cases if others is not None or case.id not in chosen]
    texts = {_plain(case.solution.problem.text) for case in rest}
    ids = {case.problem for case in rest} if others is None else set()
    roles: dict[str, str | None] = {case.id: MEASURED for case in rest}
    dropped = 0
    for case in cases if others is None else others:
        if case.id in chosen:
            shared = case.problem in ids or _plain(case.solution.problem.text) in texts
            dropped += shared
            if not shared or others is None:
                roles[case.id] = None if shared else FITTED
    if others is not None and FITTED not in roles.values():
        raise UsageError(
            f"`fit` {group}: all its problems are in the data too; nothing is fitted and measured on the same problems. "
            "Name other data, or use `fit_share` 0.5"
        )
    if not rest or FITTED not in roles.values():
        where = "to measure on" if not rest else "to fit on whose problems are not measured on too"
        raise UsageError(f"fitting on {words} leaves nothing {where}; use `fit_share` 0.5 or other data")
    return Split(
        roles=roles,
        words=words,
        apart=others is not None,
        dropped=dropped,
    )


def place(problem: str) -> float:
    """A problem's place in [0, 1), by SHA-256 of its id or text."""
    return int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big") / 2**64


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


@dataclass(frozen=True, kw_only=True, slots=True)
class Maps:
    """What was fitted for one target."""

    scale: float
    """Platt: `sigmoid(scale * logit + shift)`."""
    shift: float
    temperature: float | None
    """`sigmoid(logit / temperature)`; None when none fits or the scores have no middle."""
    no_temperature: str
    """Why there is none; "" when there is one."""
    count: int
    """Scores that it was fitted on."""
    certain: int
    """Of those, how many are exactly 0 or 1."""


def fit(items: Sequence[Item], target: Target) -> Maps:
    """Fit both maps on the items whose role is `FITTED`.

    Raises:
        UsageError: no right or no wrong ones there, or scores that are all the same; says which target.
    """
    x, y = [], []
    for item in items:
        if item["role"] == FITTED and target in item:
            for score, label in zip(item[target]["scores"], item[target]["labels"], strict=True):
                if score is not None and label is not None:
                    x.append(score)
                    y.append(label)
    kind = items[0]["kind"]
    logits = list(logits_of(x, kind, edges(items, target)))
    try:
        scale, shift = platt(logits, y)
    except UsageError as error:
        raise UsageError(
            f"{target}: nothing can be fitted on the {amount(len(y), 'score')} to fit on: {error}"
        ) from None
    warmth, why = None, "unbounded scores have no middle that a temperature could keep"
    if kind != "unbounded":
        try:
            warmth, why = temperature(logits, y), ""
        except UsageError as error:
            why = str(error)
    return Maps(
        scale=scale,
        shift=shift,
        temperature=warmth,
        no_temperature=why,
        count=len(y),
        certain=sum(score in (0.0, 1.0) for score in x) if kind == "probability" else 0,
    )


def apply(items: Sequence[Item], maps: Mapping[Target, Maps]) -> None:
    """Put the calibrated scores into every item, under "platt" and "temperature", where there is a map."""
    for target in TARGETS:
        if target not in maps:
            continue
        result = maps[target]
        bounds = edges(items, target)
        for item in items:
            if target not in item:
                continue
            part = item[target]
            known = [score for score in part["scores"] if score is not None]
            logits = logits_of(known, item["kind"], bounds)
            if result.temperature is not None:
                part["temperature"] = _put(part["scores"], sigmoid(logits / result.temperature))
            part["platt"] = _put(part["scores"], sigmoid(result.scale * logits + result.shift))


def _put(scores: Sequence[float | None], values: Floats) -> list[float | None]:
    left = iter(values)
    return [None if score is None else float(next(left)) for score in scores]


Edges = tuple[float, float]


def edges(items: Sequence[Item], target: Target) -> Edges:
    """What a probability of exactly 0, and one of exactly 1, is taken for: half as far from it as the nearest other score.

    A logit of 0 or 1 is infinite, and a bound picked by hand would decide the fit: PRMs in bfloat16 call 1 all that is over
    0.998. No label is used.
    """
    known = [
        s for item in items if target in item for s in item[target]["scores"] if s is not None and 0 < s < 1
    ]
    if not known:
        return 0.25, 0.75
    return min(known) / 2, 1 - (1 - max(known)) / 2


def logits_of(scores: Sequence[float], kind: ScoreKind, bounds: Edges) -> Floats:
    """Probabilities as logits; scores of other kinds as they are."""
    if kind != "probability":
        return np.asarray(scores, dtype=float)
    return logit([bounds[0] if s == 0 else bounds[1] if s == 1 else s for s in scores])
