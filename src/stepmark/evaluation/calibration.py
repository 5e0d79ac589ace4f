"""Calibration: does a score of 0.8 mean right four times in five, and for which steps, policies and problems does it not.

Two targets. "steps": each judged step's score against its label. "outcome": the solution's aggregate against whether its answer
is right. ECE has bins of equal width and is biased upwards where they hold few items (Guo et al. 2017, "On calibration of modern
neural networks", section 2); `floor` says how high it would be for a calibrated PRM on as many.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepmark.errors import UsageError
from stepmark.evaluation.base import INTERVALS, Evaluation, Run, counted
from stepmark.evaluation.cases import Case, Neutral, step_labels, unique
from stepmark.evaluation.result import EvaluationResult, Item, shown
from stepmark.evaluation.scores import Sheet, check_how, solution_score
from stepmark.evaluation.views import (
    Column,
    Figures,
    Kind,
    card,
    examples_of,
    problem,
    table_of,
    tiles_of,
    unreadable,
)
from stepmark.metrics.binary import bin_of, reliability, weighted_auc
from stepmark.metrics.intervals import Floats, Statistic, bootstrap, ratio_statistic, shares
from stepmark.metrics.scaling import logit, platt, sigmoid
from stepmark.models.lazy import Lazy
from stepmark.records import ScoreKind
from stepmark.report.evaluation import Examples, Report, Section
from stepmark.report.evaluation import Item as Shown
from stepmark.report.plots import Bin, Reliability
from stepmark.report.tables import Table, interval_text
from stepmark.settings import settings
from stepmark.words import amount

if TYPE_CHECKING:
    from stepmark.models.spec import ScoringSpec

Target = Literal["steps", "outcome"]
TARGETS: tuple[Target, ...] = get_args(Target)

FIGURES = ("auc", "ece", "brier", "mean_score", "share_right", "gap")
"""`gap` is mean score minus share right: over 0 where the PRM is too confident. All but AUC and `share_right` need probabilities and are not
defined (nan) for other scores."""

POSITIONS = ("1", "2", "3", "4–5", "6–9", "10+")
"""Steps by their number from 1."""

_AT_ONCE = 2_000_000
"""Weights of single steps held at once: bounds the memory of a bootstrap, not its result."""


def targets_of(cases: Sequence[Case], asked: Target | None) -> tuple[Target, ...]:
    """What can be measured: the target that was asked for, else all that the data knows."""
    known: dict[Target, bool] = {
        "steps": any(judgements for case in cases for judgements in case.labelled.judgements),
        "outcome": any(case.outcome is not None for case in cases),
    }
    results = tuple(target for target in TARGETS if known[target] and asked in (None, target))
    if not results:
        wanted = {
            "steps": "judged steps",
            "outcome": "solutions whose answer is known to be right or wrong",
            None: "judged steps, or known outcomes",
        }
        target = "" if asked is None else f"`target` {asked}: "
        raise UsageError(
            f"{target}expected {wanted[asked]} to measure calibration against; the data has none"
        )
    return results


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


def position(step: int) -> str:
    """The part of `POSITIONS` that a 0-based step is in."""
    return POSITIONS[step if step < 3 else 3 if step < 5 else 4 if step < 9 else 5]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Facet:
    """A part of the scores, flat: one entry a score with a label."""

    target: Target
    name: str
    """"all", "group X", "position 4–5", "measured, platt" …"""
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
        entries = [
            (at, step, score, label)
            for at, item in enumerate(items)
            for step, (score, label) in enumerate(pairs_of(item, target))
            if score is not None and label is not None
        ]
        if not any(target in item for item in items):
            continue
        base = Facet(
            target=target,
            name="all",
            scores=np.array([score for _, _, score, _ in entries], dtype=float),
            labels=np.array([label for _, _, _, label in entries], dtype=float),
            owner=np.array([at for at, *_ in entries], dtype=np.intp),
            probability=items[0]["kind"] == "probability",
            bins=items[0]["bins"],
        )
        yield (everything := base.only("all", counts[base.owner]))
        groups = np.array([item["group"] for item in items])[everything.owner]
        names = sorted({str(name) for name in groups} - {""})
        for name in names if len(names) > 1 else ():
            yield everything.only(f"group {name}", groups == name)
        if target == "steps":
            at = np.array([position(step) for _, step, *_ in entries])[counts[base.owner]]
            for name in POSITIONS:
                if (at == name).any():
                    yield everything.only(f"position {name}", at == name)
        if roles.any():
            inside = roles[base.owner] == MEASURED
            yield base.only("measured, before", inside)
            mapped = np.array([items[at][target]["platt"][step] for at, step, *_ in entries], dtype=float)
            yield replace(base, scores=mapped, probability=True).only("measured, platt", inside)


def pairs_of(item: Item, target: Target) -> Iterator[tuple[float | None, float | None]]:
    """The scores of an item with their labels; none where it does not have the target."""
    part = item.get(target, {"scores": (), "labels": ()})
    return zip(part["scores"], part["labels"], strict=True)


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

    def summed(values: Floats) -> Floats:
        return np.bincount(facet.owner, weights=values, minlength=count).astype(float)

    return ratio_statistic(
        {
            str(at): (summed(facet.labels * (in_bin == at)), summed((in_bin == at).astype(float)))
            for at in range(facet.bins)
        }
    )


MEASURED = "measured"
FITTED = "fitted"


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


def split_by(cases: Sequence[Case], fit: float | Sequence[Case], name: str = "") -> Split:
    """Which cases to fit on: those of a share of the problems, chosen by a hash of each, or other cases, of a file of this name.

    A case whose problem, by id or text, is measured on is never fitted on.
    """
    others: Sequence[Case]
    rest: Sequence[Case]
    if isinstance(fit, float):
        words = f"{fit:.0%} of the problems"
        others = [case for case in cases if place(case.problem) < fit]
        rest = [case for case in cases if place(case.problem) >= fit]
    else:
        words, others, rest = name, fit, cases
    texts = {_plain(case.solution.problem.text) for case in rest}
    roles: dict[str, str | None] = {case.id: MEASURED for case in rest}
    dropped = 0
    for case in others:
        shared = _plain(case.solution.problem.text) in texts
        dropped += shared
        if not shared or isinstance(fit, float):
            roles[case.id] = None if shared else FITTED
    if not rest or FITTED not in roles.values():
        raise UsageError(
            f"fitting on {words} leaves nothing to fit on, or nothing to measure on: the problems must differ. Use `fit_share` 0.5 or other data"
        )
    return Split(roles=roles, words=words, apart=not isinstance(fit, float), dropped=dropped)


def place(problem: str) -> float:
    """A problem's place in [0, 1), by SHA-256 of its id or text."""
    return int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big") / 2**64


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlattMap:
    """What was fitted for one target: `sigmoid(scale * logit + shift)`."""

    scale: float
    shift: float
    count: int
    """Scores that it was fitted on."""
    certain: int
    """Of those, how many are exactly 0 or 1."""


def fit(items: Sequence[Item], target: Target) -> PlattMap:
    """Fit the map on the items whose role is `FITTED`."""
    pairs = [
        (score, label)
        for item in items
        if item["role"] == FITTED
        for score, label in pairs_of(item, target)
        if score is not None and label is not None
    ]
    x, y, kind = [score for score, _ in pairs], [label for _, label in pairs], items[0]["kind"]
    try:
        scale, shift = platt(list(logits_of(x, kind, edges(items, target))), y)
    except UsageError as error:
        raise UsageError(
            f"{target}: nothing can be fitted on the {amount(len(y), 'score')} to fit on: {error}"
        ) from None
    certain = sum(score in (0.0, 1.0) for score in x) if kind == "probability" else 0
    return PlattMap(scale=scale, shift=shift, count=len(y), certain=certain)


def apply(items: Sequence[Item], maps: Mapping[Target, PlattMap]) -> None:
    """Put the calibrated scores into every item, under "platt", where there is a map."""
    for target, fitted in maps.items():
        bounds = edges(items, target)
        for part, kind in ((item[target], item["kind"]) for item in items if target in item):
            known = [score for score in part["scores"] if score is not None]
            values = iter(sigmoid(fitted.scale * logits_of(known, kind, bounds) + fitted.shift))
            part["platt"] = [None if score is None else float(next(values)) for score in part["scores"]]


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


_OF = {"steps": "steps", "outcome": "solutions"}
Facets = Mapping[tuple[str, str], Facet]
_HEADINGS = {"steps": "Steps", "outcome": "Outcomes"}

_SHOWN = 5
"""Examples of each sort."""


@settings
class Calibration(Evaluation):
    """Does a score of 0.8 mean right four times in five: reliability, ECE, Brier, AUC, by position and policy.

    The data are labelled solutions: ProcessBench, PRMBench, candidates, PRM800K (flat) or TRL files, or a folder of them.
    """

    name: ClassVar[str] = "calibration"
    target: Target | None = None
    """What a score is compared with: "steps", the label of its step; "outcome", whether the solution's answer is right. Default: all that the data has."""
    bins: Annotated[int, Field(ge=1)] = 10
    """Bins of equal width, of the reliability diagram and ECE."""
    aggregate: str | None = None
    """How step scores become one number for the solution. Default: the PRM's own."""
    fit: str | None = None
    """Fit Platt scaling on this other data file."""
    fit_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fit on this share of the problems, chosen by a hash of each, and measure on the rest."""
    store: str | Path | None = None
    """Write the fitted Platt map into this checkpoint's stepmark.json; it must be the PRM that graded."""
    neutral: Neutral = "positive"
    """What the neutral class of a three-class PRM, and a neutral human rating, count as."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if self.fit is not None and self.fit_share is not None:
            raise UsageError("expected `fit` or `fit_share`, found both")
        if self.store is not None:
            self._spec(run)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> EvaluationResult:
        """See `Evaluation.measure`."""
        cases = run.take(self.read(run))
        whole, split = self._split(cases, run)
        targets = targets_of(cases, self.target)
        if self.store is not None and "steps" not in targets:
            raise UsageError(
                "`store`: a checkpoint scores steps, and nothing is fitted to steps here: the data judges none, or `target` is outcome"
            )
        result, maps = self.calibrated(run.grade(whole), run, targets, split=split)
        if self.store is not None:
            assert split is not None
            self._store(run, maps["steps"], split, result)
        return result

    def _split(self, cases: list[Case], run: Run) -> tuple[list[Case], Split | None]:
        """The cases to grade, and what is fitted on."""
        if self.fit is None:
            return cases, None if self.fit_share is None else split_by(cases, self.fit_share)
        other = replace(run, data=(run.add_input(self.fit),), facts=[])
        others = other.take(self.read(other))
        split = split_by(cases, others, Path(self.fit).name)
        return unique([*cases, *(case for case in others if split.roles.get(case.id) == FITTED)]), split

    def _spec(self, run: Run) -> ScoringSpec:
        """The spec that the checkpoint's scores are made with, once a map may be stored there."""
        from stepmark.models.checkpoint import spec_of
        from stepmark.models.spec import SPEC_FILE, check_readout

        assert self.store is not None
        store, prm = Path(self.store), run.prm
        if self.fit is None and self.fit_share is None:
            raise UsageError("`store` needs a map that is fitted: give `fit` or `fit_share` too")
        graded = run.scores is None and isinstance(prm, Lazy) and Path(prm.name).resolve() == store.resolve()
        if not graded or not store.is_dir():
            raise UsageError(
                f"`store` {store}: expected the folder of the checkpoint that grades here, `prm` {store} without `scores`, because a map "
                "belongs to the checkpoint that it was fitted on"
            )
        family = prm.arguments.get("family") if isinstance(prm, Lazy) else None
        if family is not None and (store / SPEC_FILE).is_file():
            raise UsageError(
                f"`family` {family} passes over {store / SPEC_FILE}, into which `store` writes; leave one of them out"
            )
        spec = spec_of(store, str(store), family)
        check_readout(spec.readout)
        return spec

    def _store(self, run: Run, maps: PlattMap, split: Split, result: EvaluationResult) -> None:
        from stepmark.models.spec import store_calibration

        assert self.store is not None
        if maps.scale <= 0:
            raise UsageError(
                f"`store`: the fitted scale is {maps.scale:.4g}, so that higher scores would become lower; nothing was stored"
            )
        figures = {
            f"{part}, {what}": result.figures[f"steps/{part}/{what}"].value
            for part in ("measured, before", "measured, platt")
            for what in ("ece", "brier")
        }
        new = store_calibration(
            Path(self.store),
            self._spec(run),
            scale=maps.scale,
            shift=maps.shift,
            note={"on": split.words, "steps": maps.count, "data": list(result.data), "figures": figures},
        )
        run.note(
            f"stored in {Path(self.store) / 'stepmark.json'}: scale {new.readout.scale:.4g}, shift {new.readout.shift:+.4g}; what was there "
            f"stands in {Path(self.store) / 'calibration.json'}"
        )

    def calibrated(
        self, sheet: Sheet, run: Run, targets: Sequence[Target], *, split: Split | None = None
    ) -> tuple[EvaluationResult, Mapping[Target, PlattMap]]:
        """The result of graded cases, and what was fitted."""
        how = check_how(self.aggregate, sheet)
        items = items_of(sheet, targets, how=how, bins=self.bins, neutral=self.neutral)
        maps: dict[Target, PlattMap] = {}
        if split is not None:
            for item in items:
                item["role"] = split.roles[item["id"]]
                item["counts"] = not (split.apart and item["role"] == FITTED)
            maps = {target: fit(items, target) for target in targets}
            apply(items, maps)
        parts: dict[tuple[str, str], Facet] = {(facet.target, facet.name): facet for facet in facets(items)}
        words = (
            {f"{target}/measured, platt": f"fitted on {split.words}, measured on the rest" for target in maps}
            if split
            else {}
        )
        figures = run.figures(items, statistic(items), words)
        intervals = INTERVALS if split is None else f"{INTERVALS[:-1]}; the fitted map is held fixed in them."
        report = Report(
            title=f"Calibration: {sheet.prm}",
            verdict=" ".join(verdict(target, figures) for target in targets),
            facts=(
                *_measured_on(items, targets, how),
                *_left_out(sheet, items, targets),
                *_fitted(maps, split),
                intervals,
            ),
            tiles=tiles_of(
                figures,
                {
                    f"{label}, {target}": (kind, f"{target}/{name}")
                    for target in targets
                    for label, (kind, name) in _TILES.items()
                },
            ),
            sections=_sections(sheet, items, targets, parts, figures, maps, how, run),
        )
        result = run.result(
            self,
            report,
            figures,
            items,
            prm=sheet.prm,
            identity=sheet.identity,
            targets=list(targets),
            bins=items[0]["bins"],
            how=how,
        )
        return result, maps


_TILES: dict[str, tuple[Kind, str]] = {
    "AUC (%)": ("share", "all/auc"),
    "ECE (%)": ("share", "all/ece"),
    "Brier": ("number", "all/brier"),
    "Gap (points)": ("share", "all/gap"),
    "ECE after Platt (%)": ("share", "measured, platt/ece"),
}


def _sections(
    sheet: Sheet,
    items: Sequence[Item],
    targets: Sequence[Target],
    parts: Facets,
    figures: Figures,
    maps: Mapping[Target, PlattMap],
    how: str,
    run: Run,
) -> list[Section]:
    first: list[Shown] = []
    by_part: list[Shown] = []
    diagrams: list[Shown] = []

    for target in targets:
        labels = {}
        if target in maps:
            labels = {
                "measured, before": "measured on the rest, as scored",
                "measured, platt": f"the same by Platt, {maps[target].scale:.3g} * logit {maps[target].shift:+.3g}",
            }
        names = [name for of, name in parts if of == target]
        positions = [name for name in names if name.startswith("position ")]
        whole = [name for name in names if name not in positions]
        title = "Steps" if target == "steps" else f"Outcomes (the {how} of the steps)"
        first.append(facet_table(f"Calibration: {title}", "Part", target, whole, parts, figures, labels))
        if len(positions) > 1:
            by_part.append(facet_table("Steps by position", "Position", target, positions, parts, figures))
        diagrams += [
            reliability_plot(facet, items, run)
            for name in (labels or ["all"])
            if (facet := parts[target, name]).probability and len(facet)
        ]
    return [
        Section(
            title="Figures",
            text="ECE: the distance between mean score and share right, averaged over bins of equal width. Bins with few items bias it "
            "upwards, and its interval more: it may lie above the value. Floor: about the ECE of a calibrated PRM on as many independent "
            "items. Gap: mean score minus share right; above 0 the PRM is overconfident.",
            items=(*first, *diagrams),
        ),
        Section(title="By part", items=tuple(by_part)),
        Section(title="Examples", items=examples(sheet, items, targets)),
    ]


def _measured_on(items: Sequence[Item], targets: Sequence[Target], how: str) -> list[str]:
    inside = [item for item in items if item["counts"]]
    compared = {
        "steps": "Steps: the score of every judged step against its label.",
        "outcome": f"Outcome: the {how} of a solution's steps against whether its answer is right.",
    }
    parts = [f"{counted(inside)}.", *(compared[target] for target in targets)]
    if inside and inside[0]["kind"] != "probability":
        parts.append(
            f"The scores are of the kind {inside[0]['kind']}, no probabilities: only AUC is defined, and the rest once a map is "
            "fitted (`fit`, `fit_share`)."
        )
    return [" ".join(parts)]


def _left_out(sheet: Sheet, items: Sequence[Item], targets: Sequence[Target]) -> list[str]:
    facts = unreadable(sheet, "(in no figure)")
    for target in targets:
        pairs = [pair for item in items if item["counts"] for pair in pairs_of(item, target)]
        unjudged = sum(label is None for _, label in pairs)
        unread = sum(score is None and label is not None for score, label in pairs)
        if unjudged:
            facts.append(
                f"In no figure: {unjudged:,} of {amount(len(pairs), _OF[target][:-1])} without a label"
                + (" (such as steps after the first error)." if target == "steps" else ".")
            )
        if unread:
            facts.append(
                f"In no figure: {amount(unread, _OF[target][:-1])} with a label and without a score."
            )
    return facts


def _fitted(maps: Mapping[Target, PlattMap], split: Split | None) -> list[str]:
    if split is None:
        return []
    facts = []
    for target, item in maps.items():
        facts.append(
            f"Fitted for {target} on {split.words} ({amount(item.count, 'score')}): Platt scale {item.scale:.4g}, shift {item.shift:+.4g}."
        )
        if item.scale <= 0:
            facts.append("The scale is not positive: higher scores do not go with right ones there.")
        if item.certain:
            facts.append(
                f"{item.certain:,} of these scores are exactly 0 or 1; their logit is that of half as far from it as the nearest other score."
            )
    if split.dropped:
        facts.append(
            f"{amount(split.dropped, 'solution')} of {split.words} not fitted on, because their problems are measured on."
        )
    return facts


def facet_table(
    title: str,
    first: str,
    target: Target,
    names: Sequence[str],
    parts: Facets,
    figures: Figures,
    labels: Mapping[str, str] = {},
) -> Table:
    """The figures of some facets of one target; `labels` name them where their names do not."""
    columns: dict[str, Column] = {
        "Count": lambda name: len(parts[target, name]),
        "Share right (%)": f"{target}/{{}}/share_right",
        "Mean score (%)": f"{target}/{{}}/mean_score",
        "Gap (points)": f"{target}/{{}}/gap",
        "AUC (%)": f"{target}/{{}}/auc",
        "Brier": ("number", f"{target}/{{}}/brier"),
        "ECE (%)": f"{target}/{{}}/ece",
        "Floor (%)": ("share", lambda name: floor(parts[target, name])),
    }
    return table_of(
        title,
        first,
        names,
        columns,
        figures,
        label=lambda name: labels.get(name, name.partition(" ")[2] or name),
    )


def reliability_plot(facet: Facet, items: Sequence[Item], run: Run) -> Reliability:
    """The reliability diagram of probabilities, with intervals over problems."""
    problems = [item["problem"] for item in items]
    intervals = bootstrap(bin_statistic(facet, len(items)), problems, resamples=run.resamples, seed=run.seed)
    view = {"all": "as scored", "measured, before": "measured, as scored"}.get(
        facet.name, "measured, by Platt"
    )
    return Reliability(
        title=f"Reliability: {_OF[facet.target]}, {view}",
        bins=tuple(
            Bin(
                **asdict(entry),
                share_low=intervals[str(at)].low,
                share_high=intervals[str(at)].high,
            )
            for at, entry in enumerate(reliability(list(facet.scores), list(facet.labels), bins=facet.bins))
        ),
        note="Points under the diagonal: too confident.",
    )


def verdict(target: Target, figures: Figures) -> str:
    """Whether the PRM tells right from wrong at all, and whether it is too confident or not confident enough, where the interval tells."""
    auc, gap = figures[f"{target}/all/auc"], figures[f"{target}/all/gap"]
    words = ""
    # Scores that are all the same have no interval.
    if auc.value is not None and (auc.value if auc.low is None else auc.low) <= 0.5:
        words = f"this PRM does not tell right from wrong here: AUC {shown(auc)}, chance is 50, and no calibration helps; "
    if gap.value is None:
        words += "whether the PRM is too confident is not defined for these scores"
    elif gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
        words += f"neither over- nor underconfident as far as the data can tell ({shown(gap)} points)"
    elif gap.low > 0:
        words += f"overconfident by {shown(gap)} points"
    else:
        words += f"underconfident by {interval_text(-gap.value, -gap.high, -gap.low)} points"
    return f"{_HEADINGS[target]}: {words}."


def examples(sheet: Sheet, items: Sequence[Item], targets: Sequence[Target]) -> tuple[Examples, ...]:
    """The wrong ones with the highest scores, and the right ones with the lowest."""
    sorts: dict[str, list[tuple[int, str]]] = {}
    for target in targets:
        for truth, sort, end in ((0, "wrong", "highest"), (1, "right", "lowest")):
            scored = [
                (score if truth else -score, at, step)
                for at, item in enumerate(items)
                if item["counts"]
                for step, (score, label) in enumerate(pairs_of(item, target))
                if score is not None and label == truth
            ]
            worst: dict[int, tuple[int, str]] = {}
            for score, at, step in sorted(scored)[: 50 * _SHOWN]:
                subject = "the answer" if target == "outcome" else f"step {step + 1}"
                worst.setdefault(at, (at, f"truth: {subject} is {sort}; it scores {abs(score):.3g}"))
            sorts[f"{_HEADINGS[target]}: {sort}, and scored {end}"] = list(worst.values())[:_SHOWN]
    return examples_of(
        sorts, lambda one: problem(sheet.rows[one[0]], card(sheet.rows[one[0]], sheet, one[1]))
    )
