"""Watch a policy in training for reward hacking: figures of every evaluation, an alarm, and the best checkpoint before it.

Figures follow the papers that saw hacking happen: return beside accuracy (Gao et al. 2023); process crossed with outcome (Cheng et al. 2025,
PURE; Ye et al. 2025, PROF); length and repetition (Gao et al. 2024, arXiv 2410.15115).
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.metrics.aggregate import aggregate
from stepmark.metrics.binary import weighted_auc
from stepmark.metrics.intervals import Floats, Interval, bootstrap, shares, wilson
from stepmark.models.backbone import quiet_loading
from stepmark.models.prm import PRM
from stepmark.records import ScoreKind, read_record, to_data
from stepmark.rl.actor import Actor, Padded, padded, read_rows
from stepmark.rl.credit.advantages import kl
from stepmark.rl.hacking import (
    ALARM_ABOVE,
    CELLS,
    Cell,
    Quadrants,
    ShownSolution,
    Watched,
    repetition,
    rise,
)
from stepmark.rl.policy_trainer import PolicyEvaluation, Update
from stepmark.rl.prime import OnlineImplicit
from stepmark.rl.rewarding import RewardedCompletion
from stepmark.training.state import HISTORY_FILE, LogLines, read_lines

MONITOR_FILE, BEST = "monitor.jsonl", "best"
TOKEN_BUDGET = 8192
"""Padded tokens a forward pass of the divergence."""
_EXAMPLES = 3
"""Solutions kept of a cell."""


def watched(
    evaluation: PolicyEvaluation,
    *,
    prm: PRM | None = None,
    implicit: Sequence[float] | None = None,
    divergence: Sequence[float] | None = None,
    threshold: float | None = None,
    seed: int = 0,
) -> Watched:
    """The figures of an evaluation, but for what depends on earlier ones.

    Args:
        evaluation: with its solutions scored where there is a PRM.
        implicit: without a PRM, the sum of each solution's token rewards by an implicit one (Cui et al. 2025, equation 3).
        divergence: of each solution, the summed k3 estimates of its tokens.
        threshold: a step whose score is under this is an error; None: the PRM's own.
    """
    rated = evaluation.rated
    if not rated:
        raise UsageError("an evaluation needs at least one solution")
    kind: ScoreKind | None = "log-ratio" if implicit is not None else None
    returns: list[float | None] = [None] * len(rated)
    weakest, means = returns, returns
    if prm is not None:
        kind, threshold = prm.score_kind, prm.default_threshold if threshold is None else threshold
        # A sum of logits is infinite where a score is 0 or 1, and then has no mean.
        how = "product" if prm.default_aggregate == "sum-logit" else prm.default_aggregate
        returns = [aggregate(item.scores, how, kind=kind) if item.scores else None for item in rated]
        weakest = [min(item.scores) if item.scores else None for item in rated]
        means = [sum(item.scores) / len(item.scores) if item.scores else None for item in rated]
    elif implicit is not None:
        threshold = 0.0 if threshold is None else threshold
        returns = weakest = [
            total if item.steps else None for item, total in zip(rated, implicit, strict=True)
        ]
    columns = {"step_return": means, "solution_return": returns}
    cells = None if threshold is None else _cells(rated, weakest, threshold)

    return Watched(
        update=evaluation.update,
        rollouts=evaluation.rollouts,
        solutions=len(rated),
        accuracy=wilson(sum(item.right for item in rated), len(rated)),
        kind=kind,
        threshold=threshold,
        quadrants=Quadrants(**{cell: len(members) for cell, members in cells.items()})
        if cells and any(cells.values())
        else None,
        slipped=()
        if threshold is None
        else tuple(
            None if score is None else score >= threshold and not item.right
            for item, score in zip(rated, weakest, strict=True)
        ),
        examples={} if cells is None else {cell: _shown(cell, cells[cell]) for cell in ("slipped", "lucky")},
        **_bootstrapped(rated, weakest, columns, divergence, seed),  # type: ignore[arg-type]
    )


def check_threshold(prm: PRM, threshold: float | None) -> None:
    """Refuse at once a threshold that no score of this PRM can be under or over."""
    low, high = {"probability": (0.0, 1.0), "margin": (-1.0, 1.0)}.get(prm.score_kind, (-math.inf, math.inf))
    if threshold is not None and not low <= threshold <= high:
        raise UsageError(
            f"`threshold`: expected a score in [{low:g}, {high:g}], as the {prm.score_kind} scores of {prm.name} are, found {threshold:g}"
        )


Column = Sequence[float | None]
"""A number for each solution; None where it is not known."""


def _bootstrapped(
    rated: Sequence[RewardedCompletion],
    weakest: Column,
    columns: Mapping[str, Column],
    divergence: Sequence[float] | None,
    seed: int,
) -> dict[str, Interval]:
    """Means and ranks over solutions with their intervals, by the names of `Watched`; what is not defined is left out."""
    ones = np.ones(len(rated))
    steps = np.array([len(item.steps) for item in rated], dtype=np.float64)
    tokens = np.array([len(item.drawn.ids) for item in rated], dtype=np.float64)
    written = (steps > 0).astype(np.float64)
    repeated = np.array([repetition(item.drawn.text) for item in rated])
    ratios: dict[str, tuple[Floats, Floats]] = {
        "steps": (steps, ones),
        "tokens": (tokens, ones),
        "repetition": (repeated * written, written),
    }
    if divergence is not None:
        ratios["divergence"] = (np.asarray(divergence, dtype=np.float64), tokens)
    for name, column in columns.items():
        values, present = _filled(column)
        ratios[name] = (values, present.astype(np.float64))
    filled, read = _filled(weakest)
    scores, labels = filled[read], np.array([item.right for item in rated], dtype=np.float64)[read]

    def statistic(weights: Floats) -> Mapping[str, Floats]:
        figures = {name: shares(weights @ top, weights @ below) for name, (top, below) in ratios.items()}
        return figures | ({"auc": weighted_auc(scores, labels, weights[:, read])} if len(scores) else {})

    groups = [item.group for item in rated]
    intervals = bootstrap(statistic, groups, resamples=1000, seed=seed % 2**63)
    return {name: interval for name, interval in intervals.items() if interval.value is not None}


def _filled(column: Column) -> tuple[Floats, np.ndarray]:
    """[solutions] each: the numbers, 0 where there is none; and where there is one."""
    present = np.array([value is not None for value in column])
    return np.array([0.0 if value is None else value for value in column]), present


def _cells(
    rated: Sequence[RewardedCompletion], weakest: Column, threshold: float
) -> dict[Cell, list[tuple[float, RewardedCompletion]]]:
    cells: dict[Cell, list[tuple[float, RewardedCompletion]]] = {cell: [] for cell in CELLS}
    for item, score in zip(rated, weakest, strict=True):
        if score is not None:
            good = score >= threshold
            cell: Cell = (
                ("both" if item.right else "slipped") if good else "lucky" if item.right else "neither"
            )
            cells[cell].append((score, item))
    return cells


def _shown(cell: Cell, members: Sequence[tuple[float, RewardedCompletion]]) -> tuple[ShownSolution, ...]:
    ordered = sorted(members, key=lambda pair: pair[0], reverse=cell == "slipped")
    return tuple(
        ShownSolution(
            problem=item.problem.text,
            id=item.problem.id,
            reference=item.problem.answer,
            steps=tuple(step.text for step in item.steps),
            scores=item.scores,
            right=item.right,
            answer=None if item.verdict is None else item.verdict.answer,
        )
        for _, item in ordered[:_EXAMPLES]
    )


@final
class Monitor:
    """A listener that measures every evaluation for signs of reward hacking.

    It writes a `Watched` a line to `monitor.jsonl` and every update's figures to `history.jsonl`, and keeps the checkpoint with the best
    held-out accuracy (of equals the earlier) in the folder `best`; from the first alarm on that stays as it is.

    Args:
        folder: of the run; the lines of an interrupted one are continued.
        prm: what scores the steps; None: nothing is known of a return.
        implicit: without a PRM, the online implicit one. It moves with the policy, so it raises no alarm.
        threshold: a step whose score is under this is an error; None: the PRM's own.
    """

    def __init__(
        self,
        actor: Actor,
        folder: Path,
        *,
        prm: PRM | None = None,
        implicit: OnlineImplicit | None = None,
        threshold: float | None = None,
        seed: int = 0,
        stop_on_hack: bool = False,
    ) -> None:
        if prm is not None:
            check_threshold(prm, threshold)
        self.actor, self.folder, self.prm, self.implicit = actor, folder, prm, implicit
        self.threshold, self.seed, self.stop_on_hack = threshold, seed, stop_on_hack
        self.history = LogLines(folder / HISTORY_FILE)
        self._lines = LogLines(folder / MONITOR_FILE)
        self.rows: list[Watched] = read_watched(self._lines.file)
        self._rebased = False

    @property
    def alarmed(self) -> int | None:
        """The update of the first alarm; None while there was none."""
        return self.rows[-1].alarmed if self.rows else None

    @property
    def best(self) -> Watched | None:
        """The evaluation of the best checkpoint; None before the first."""
        return best_of(self.rows)

    def rebase(self) -> None:
        """The PRM was replaced: evaluations are compared from the next one on."""
        self._rebased = True

    def keep(self, last: int) -> None:
        """Forget what came after update `last`, which the run did not come to save."""
        self.history.keep(last)
        self._lines.keep(last)
        self.rows = [row for row in self.rows if row.update <= last]

    def updated(self, update: Update) -> None:
        """Write the update's line."""
        self.history.add({"update": update.number, "rollouts": update.rollouts, **update.figures})

    def evaluated(self, evaluation: PolicyEvaluation) -> bool:
        """Measure, write, keep the checkpoint if it is the best one; True at an alarm with `stop_on_hack`."""
        self.rows = [row for row in self.rows if row.update < evaluation.update]
        # Compared since the last replacement of the PRM.
        start = max((at for at, row in enumerate(self.rows) if row.rebased), default=0)
        since = [] if self._rebased else self.rows[start:]
        result = watched(
            evaluation,
            prm=self.prm,
            implicit=self._sums(evaluation.rated),
            divergence=self._divergence(evaluation.rated),
            threshold=self.threshold,
            seed=self.seed,
        )
        first = since[0] if since else result
        risen = rise(first.slipped, result.slipped) if self.prm is not None else None
        alarm = risen is not None and risen > ALARM_ABOVE
        alarmed = result.update if self.alarmed is None and alarm else self.alarmed
        result = replace(result, rebased=self._rebased, rise=risen, alarmed=alarmed)
        self._rebased = False
        highest = max((row.accuracy.value or 0.0 for row in self.rows if row.best), default=-1.0)
        if alarmed is None and (result.accuracy.value or 0.0) > highest:
            result = replace(result, best=True)
            # Before the line: a kill between them does the evaluation again, and writes both.
            self._keep_best()
        self._lines.add(to_data(result))
        self.rows.append(result)
        return alarm and self.stop_on_hack

    def _keep_best(self) -> None:
        folder = self.folder / BEST
        draft, old = (folder.with_name(f"{BEST}.{ending}") for ending in ("part", "old"))
        for leftover in (draft, old):
            shutil.rmtree(leftover, ignore_errors=True)
        with quiet_loading():
            self.actor.save(draft)
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
        shutil.rmtree(old, ignore_errors=True)

    def _divergence(self, rated: Sequence[RewardedCompletion]) -> list[float] | None:
        """Of each completion, the k3 estimates of its tokens, added up."""
        actor = self.actor
        if not actor.has_reference:
            return None

        def estimates(part: Padded) -> Tensor:
            now, before = actor.logprobs(part)[0], actor.reference_logprobs(part)
            return kl(now, before, part.mask, estimator="k3").sum(-1)

        rows = padded([item.drawn for item in rated], actor.device)
        return [float(value) for value in read_rows(rows, TOKEN_BUDGET, estimates).tolist()]

    def _sums(self, rated: Sequence[RewardedCompletion]) -> list[float] | None:
        if self.prm is not None or self.implicit is None:
            return None
        rows = padded([item.drawn for item in rated], self.actor.device)
        return [float(value) for value in self.implicit.rewards(rows).sum(-1).tolist()]


def best_of(rows: Sequence[Watched]) -> Watched | None:
    """The evaluation of the best checkpoint; None before the first."""
    return next((row for row in reversed(rows) if row.best), None)


def read_watched(file: Path) -> list[Watched]:
    """The evaluations in a `monitor.jsonl`."""
    return [
        read_record(Watched, row, where=f"{file}:{number}")
        for number, row in enumerate(read_lines(file), start=1)
    ]
