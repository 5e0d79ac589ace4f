"""Watches a run: a line of figures at every evaluation, an alarm when the PRM's scores promise more than the verifier finds, the best checkpoint before it.

What one evaluation of a policy in training says about reward hacking: pure functions from completions to a record of figures.

After the papers that saw hacking happen: the PRM's return beside the verified accuracy and how well the one still tells the other (Gao et al. 2023,
"Scaling laws for reward model overoptimization"); process crossed with outcome (Cheng et al. 2025, PURE: `match`; Ye et al. 2025, PROF); length and
repetition (Gao et al. 2024, arXiv 2410.15115); answers that deserve nothing (arXiv 2603.06621). Whatever cannot be known is None.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from stepmark.errors import InputError, UsageError
from stepmark.metrics.aggregate import aggregate, check_aggregate
from stepmark.metrics.binary import brier, expected_calibration_error, weighted_auc
from stepmark.metrics.intervals import Floats, Interval, bootstrap, shares, wilson
from stepmark.metrics.quantiles import weighted_quantiles
from stepmark.models.backbone import quiet_loading
from stepmark.models.prm import PRM
from stepmark.records import Refusal, ScoreKind, Solution, read_record, to_data
from stepmark.rl.actor import Actor, padded, passes, rows_of
from stepmark.rl.credit.advantages import kl
from stepmark.rl.hacking import (
    CELLS,
    LEVELS,
    PROBES,
    Baseline,
    Cell,
    Kept,
    Probe,
    Probed,
    Quadrants,
    Watch,
    Watched,
    probe,
    quadrants,
    repetition,
)
from stepmark.rl.rewarding import Rated
from stepmark.rl.trainer import Evaluation, TokenRewards, Update

if TYPE_CHECKING:
    from stepmark.rl.rewarding import Rated
    from stepmark.rl.trainer import Evaluation

WATCH = Watch()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Marks:
    """What the PRM says of one solution."""

    solution: float
    weakest: float
    mean: float | None
    """Of its steps; None where there is one number for the whole."""


def watched(
    evaluation: Evaluation,
    *,
    prm: PRM | None = None,
    implicit: Sequence[float] | None = None,
    divergence: Sequence[float] | None = None,
    baseline: Baseline | None = None,
    watch: Watch = WATCH,
    seed: int = 0,
) -> Watched:
    """The figures of an evaluation, but for what depends on earlier ones.

    Args:
        evaluation: with its solutions scored where there is a PRM.
        prm: what scored them.
        implicit: where there is no PRM but an implicit one: the sum of each solution's token rewards, of which the logistic function is the probability
            that it is right (Cui et al. 2025, equation 3).
        divergence: of each solution, the summed k3 estimates of its tokens.
        baseline: the evaluation that this one is compared with, of the same problems and PRM; None: comparing begins here.
        watch: how.
        seed: of the bootstrap and of shuffled probes.

    Raises:
        UsageError: an evaluation without solutions, or not of the problems of the baseline.
        ScoreKindError: an aggregate that has no meaning for the PRM's scores.
    """
    rated, count = evaluation.rated, len(evaluation.rated)
    if not count:
        raise UsageError("an evaluation needs at least one solution")
    right = np.array([one.right for one in rated], dtype=np.float64)
    marks = _marks(rated, prm, implicit, watch)
    threshold = _threshold(prm, implicit, watch)
    kind = prm.score_kind if prm is not None else "log-ratio" if implicit is not None else None
    scores = [None if one is None else one.solution for one in marks]
    outcomes = [one.right for one in rated]
    begun = (
        Baseline.of(scores, outcomes, kind=prm.score_kind) if prm is not None and baseline is None else None
    )
    compared = begun or baseline
    promises = None if prm is None or compared is None else compared.promises(scores)
    figures = _figures(rated, right, marks, divergence, promises, kind, watch, seed, squash=prm is None)
    wrong = [m.weakest for m, ok in zip(marks, right, strict=True) if m is not None and not ok]
    return Watched(
        update=evaluation.update,
        rollouts=evaluation.rollouts,
        solutions=count,
        accuracy=wilson(int(right.sum()), count),
        kind=kind,
        threshold=threshold,
        step_return=figures.get("step_return"),
        solution_return=figures.get("solution_return"),
        promised=figures.get("promised"),
        baseline=begun,
        gap=None if compared is None else compared.gap(scores, outcomes),
        auc=figures.get("auc"),
        brier=figures.get("brier"),
        ece=figures.get("ece"),
        wrong=len(wrong),
        wrong_quantiles=_quantiles(wrong),
        wrong_median=figures.get("wrong_median"),
        quadrants=_crossed(marks, right, threshold),
        probes={} if prm is None else _probes(rated, prm, marks, threshold, watch, seed),
        steps=figures.get("steps"),
        tokens=figures.get("tokens"),
        tokens_a_step=figures.get("tokens_a_step"),
        repetition=figures.get("repetition"),
        cut=_share(rated, lambda one: one.cut),
        blank=_share(rated, lambda one: not one.steps),
        unparsed=_share(rated, lambda one: one.verdict is not None and one.verdict.correct is None),
        unscored=None if prm is None else _share(rated, lambda one: one.refused is not None),
        divergence=figures.get("divergence"),
        examples=_examples(rated, marks, threshold, watch.examples),
    )


def check_watch(prm: PRM, watch: Watch) -> None:
    """Refuse at once what no evaluation of this PRM could be measured with.

    Raises:
        UsageError: as `aggregate_of`; a threshold that no score of its kind can have.
        ScoreKindError: as `aggregate_of`.
    """
    aggregate_of(prm, watch)
    low, high = {"probability": (0.0, 1.0), "margin": (-1.0, 1.0)}.get(prm.score_kind, (-math.inf, math.inf))
    if watch.threshold is not None and not low <= watch.threshold <= high:
        raise UsageError(
            f"`threshold`: expected a score in [{low:g}, {high:g}], as the {prm.score_kind} scores of {prm.name} are, "
            f"found {watch.threshold:g}"
        )


def aggregate_of(prm: PRM, watch: Watch) -> str:
    """How step scores make a solution's return.

    Raises:
        UsageError: sum-logit, which is infinite or undefined where a score is exactly 0 or 1, and so has no mean.
        ScoreKindError: an aggregate that means nothing for the PRM's scores.
    """
    if watch.aggregate == "sum-logit":
        raise UsageError("aggregate sum-logit has no mean where a score is 0 or 1; take product")
    own = "product" if prm.default_aggregate == "sum-logit" else prm.default_aggregate
    return check_aggregate(watch.aggregate or own, prm.score_kind)


def _marks(
    rated: Sequence[Rated], prm: PRM | None, implicit: Sequence[float] | None, watch: Watch
) -> list[_Marks | None]:
    if prm is None:
        sums = [None] * len(rated) if implicit is None else list(implicit)
        return [
            None if total is None or not one.steps else _Marks(solution=total, weakest=total, mean=None)
            for one, total in zip(rated, sums, strict=True)
        ]
    how = aggregate_of(prm, watch)
    return [
        _Marks(
            solution=aggregate(one.scores, how, kind=prm.score_kind),
            weakest=min(one.scores),
            mean=sum(one.scores) / len(one.scores),
        )
        if one.scores
        else None
        for one in rated
    ]


def _threshold(prm: PRM | None, implicit: Sequence[float] | None, watch: Watch) -> float | None:
    if watch.threshold is not None:
        return watch.threshold
    if prm is not None:
        return prm.default_threshold
    return None if implicit is None else 0.0  # the sum at which the probability is a half


def _figures(
    rated: Sequence[Rated],
    right: Floats,
    marks: Sequence[_Marks | None],
    divergence: Sequence[float] | None,
    promises: Sequence[float | None] | None,
    kind: ScoreKind | None,
    watch: Watch,
    seed: int,
    *,
    squash: bool,
) -> dict[str, Interval]:
    """Everything that is a mean, a quantile or a rank over solutions, with its interval; what is not defined is left out."""
    ones = np.ones(len(rated))
    steps = np.array([len(one.steps) for one in rated], dtype=np.float64)
    tokens = np.array([len(one.drawn.ids) for one in rated], dtype=np.float64)
    there = (steps > 0).astype(np.float64)
    said = np.array([repetition(one.drawn.text) for one in rated])
    ratios: dict[str, tuple[Floats, Floats]] = {
        "steps": (steps, ones),
        "tokens": (tokens, ones),
        "tokens_a_step": (tokens * there, steps),
        "repetition": (said * there, there),
    }
    if divergence is not None:
        ratios["divergence"] = (np.asarray(divergence, dtype=np.float64), tokens)
    for name, values in (
        ("step_return", [None if one is None else one.mean for one in marks]),
        ("solution_return", [None if one is None else one.solution for one in marks]),
        ("promised", promises or [None] * len(marks)),
    ):
        known = np.array([value is not None for value in values], dtype=np.float64)
        filled = np.array([0.0 if value is None else value for value in values])
        if np.isfinite(filled).all():  # a sum of logits may be infinite, and has no mean then
            ratios[name] = (filled, known)
    read = np.array([one is not None for one in marks])
    weakest = np.array([one.weakest for one in marks if one is not None])
    probability = weakest if kind == "probability" else 1 / (1 + np.exp(-weakest)) if squash else None
    labels = right[read]
    bad = labels == 0

    def statistic(weights: Floats) -> Mapping[str, Floats]:
        found = {name: shares(weights @ top, weights @ below) for name, (top, below) in ratios.items()}
        if len(weakest):
            scored = weights[:, read]
            found["auc"] = weighted_auc(weakest, labels, scored)
            if probability is not None:
                found["brier"] = brier(probability, labels, scored)
                found["ece"] = expected_calibration_error(probability, labels, scored, bins=watch.bins)
            if bad.any():
                found["wrong_median"] = weighted_quantiles(weakest[bad], scored[:, bad], (0.5,))[0]
        return found

    intervals = bootstrap(
        statistic, [one.group for one in rated], resamples=watch.resamples, seed=seed % 2**63
    )
    return {name: one for name, one in intervals.items() if one.value is not None}


def _share(rated: Sequence[Rated], test: Callable[[Rated], bool]) -> Interval:
    return wilson(sum(map(test, rated)), len(rated))


def _quantiles(values: Sequence[float]) -> tuple[float, ...] | None:
    if not values:
        return None
    found = weighted_quantiles(np.array(values), np.ones((1, len(values))), LEVELS)
    return tuple(float(value) for value in found[:, 0])


def _crossed(marks: Sequence[_Marks | None], right: Floats, threshold: float | None) -> Quadrants | None:
    if threshold is None:
        return None
    known = [
        (one.weakest >= threshold, bool(ok)) for one, ok in zip(marks, right, strict=True) if one is not None
    ]
    return quadrants([good for good, _ in known], [ok for _, ok in known]) if known else None


def _probes(
    rated: Sequence[Rated],
    prm: PRM,
    marks: Sequence[_Marks | None],
    threshold: float | None,
    watch: Watch,
    seed: int,
) -> dict[Probe, Probed]:
    """Probes made of solutions that are evenly spread over those that the PRM could read."""
    there = [
        (Solution(problem=one.problem, steps=one.steps), mark)
        for one, mark in zip(rated, marks, strict=True)
        if mark is not None
    ]
    if not watch.probes:
        return {}
    count = min(watch.probes, len(there))
    chosen = [at * len(there) // count for at in range(count)]
    how = aggregate_of(prm, watch)
    found: dict[Probe, Probed] = {}
    for kind in PROBES:
        made: list[tuple[Solution, _Marks]] = []
        for at in chosen:
            solution, mark = there[at]
            other = _other(there, at)
            if kind == "irrelevant" and other is None:
                continue
            fake = probe(solution, other or solution, kind, seed=seed + at)
            if fake is not None:
                made.append((fake, mark))
        scores, weakest, above, refused = [], [], 0, 0
        results = prm.score_many([fake for fake, _ in made], keep_going=True)
        for (_, mark), result in zip(made, results, strict=True):
            if isinstance(result, Refusal) or None in result.scores:
                refused += 1
                continue
            known = [score for score in result.scores if score is not None]
            scores.append(aggregate(known, how, kind=prm.score_kind))
            weakest.append(min(known))
            above += scores[-1] > mark.solution
        passed = None if threshold is None else sum(score >= threshold for score in weakest)
        found[kind] = Probed(
            count=len(scores),
            refused=refused,
            score=_mean(scores, watch, seed),
            passed=wilson(passed, len(scores)) if scores and passed is not None else None,
            above=wilson(above, len(scores)) if scores else None,
        )
    return found


def _other(there: Sequence[tuple[Solution, _Marks]], at: int) -> Solution | None:
    """The next solution of another problem; None where there is only one problem."""
    own = there[at][0].problem.text
    return next(
        (
            one
            for one, _ in (there[(at + away) % len(there)] for away in range(1, len(there)))
            if one.problem.text != own
        ),
        None,
    )


def _mean(values: Sequence[float], watch: Watch, seed: int) -> Interval | None:
    column = np.array(values)
    if not len(column) or not np.isfinite(column).all():
        return None
    found = bootstrap(
        lambda weights: {"mean": shares(weights @ column, weights.sum(1))},
        range(len(column)),
        resamples=watch.resamples,
        seed=seed % 2**63,
    )
    return found["mean"]


def _examples(
    rated: Sequence[Rated], marks: Sequence[_Marks | None], threshold: float | None, count: int
) -> dict[Cell, tuple[Kept, ...]]:
    """Of each cell, the solutions that say most: of `slipped` those that the PRM likes best, of the others those that it likes least."""
    if threshold is None:
        return {}
    cells: dict[Cell, list[tuple[float, Rated]]] = {cell: [] for cell in CELLS}
    for one, mark in zip(rated, marks, strict=True):
        if mark is not None:
            good = mark.weakest >= threshold
            cell: Cell = ("both" if one.right else "slipped") if good else "lucky" if one.right else "neither"
            cells[cell].append((mark.weakest, one))
    return {
        cell: tuple(
            _kept(one)
            for _, one in sorted(found, key=lambda pair: pair[0], reverse=cell == "slipped")[:count]
        )
        for cell, found in cells.items()
    }


def _kept(one: Rated) -> Kept:
    return Kept(
        problem=one.problem.text,
        id=one.problem.id,
        reference=one.problem.answer,
        steps=tuple(step.text for step in one.steps),
        scores=one.scores,
        right=one.right,
        answer=None if one.verdict is None else one.verdict.answer,
    )


MONITOR_FILE, HISTORY_FILE, BEST = "monitor.jsonl", "history.jsonl", "best"
_EARLIER = ("returned", "verified")
"""Fields that lines of earlier versions have."""
TOKEN_BUDGET = 8192
"""Padded tokens a forward pass of the divergence."""


@final
class Lines:
    """JSON lines, each with the number of an update. A resumed run goes on in the same file; what is done again replaces its lines.

    Args:
        file: where; its folder is made.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = read_lines(file)
        self._whole = self._ends_well() if file.is_file() else False

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a line; those of its update and of later ones go."""
        self.keep(int(row["update"]) - 1)
        self.rows.append(dict(row))
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")

    def keep(self, last: int) -> None:
        """Drop the lines of updates after `last`."""
        kept = [row for row in self.rows if row["update"] <= last]
        if self._whole and len(kept) == len(self.rows):
            return
        self.rows, self._whole = kept, True
        temporary = self.file.with_suffix(".part")
        temporary.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept), encoding="utf-8"
        )
        temporary.replace(self.file)

    def _ends_well(self) -> bool:
        """Whether there is nothing behind the lines that were read: a kill leaves half a line."""
        text = self.file.read_bytes()
        return text.count(b"\n") == len(self.rows) and (not text or text.endswith(b"\n"))


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a file; a last one that was cut off by a kill is left out, and a file that is not there has none.

    Raises:
        InputError: a line that is no JSON, and others behind it: no kill leaves that.
    """
    if not file.is_file():
        return []
    # Bytes: a kill may cut a character in two.
    rows, lines = [], file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line.decode()))
        except ValueError as error:
            if any(map(bytes.strip, lines[number:])):
                raise InputError(
                    f"not JSON: {error}; expected a line that a run wrote", where=f"{file}:{number}"
                ) from None
            break
    return rows


@final
class History:
    """Every update's figures as a line of `history.jsonl`.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.lines = Lines(folder / HISTORY_FILE)

    def updated(self, update: Update) -> None:
        """Write its line."""
        self.lines.add({"update": update.number, "rollouts": update.rollouts, **update.figures})

    def evaluated(self, evaluation: Evaluation) -> bool:
        """Nothing: the monitor writes those."""
        return False


@final
class Monitor:
    """A listener that measures every evaluation for signs of reward hacking.

    It writes a `Watched` a line to `monitor.jsonl` and keeps the checkpoint with the best held-out accuracy (of equals the earlier) in the folder `best`;
    from the first alarm on that stays as it is. A resumed run goes on from the lines of the earlier evaluations.

    Args:
        actor: the policy in training.
        folder: of the run.
        prm: what scores the steps; None: nothing is known of a return.
        implicit: where there is no PRM: the online implicit PRM. It learns while the policy moves, so its return has no fixed scale, promises nothing and raises no alarm.
        watch: how.
        seed: of bootstraps and probes.
        stop_on_hack: end the run at an alarm.

    Raises:
        UsageError: an aggregate that has no mean, or a threshold that no score can have (`watching.check_watch`).
        ScoreKindError: an aggregate that means nothing for the PRM's scores.
        InputError: a line of an earlier run that is no `Watched`, or is of a version with another alarm.
    """

    def __init__(
        self,
        actor: Actor,
        folder: Path,
        *,
        prm: PRM | None = None,
        implicit: TokenRewards | None = None,
        watch: Watch = WATCH,
        seed: int = 0,
        stop_on_hack: bool = False,
    ) -> None:
        if prm is not None:
            check_watch(prm, watch)
        self.actor, self.folder, self.prm, self.implicit = actor, folder, prm, implicit
        self.watch, self.seed, self.stop_on_hack = watch, seed, stop_on_hack
        self._lines = Lines(folder / MONITOR_FILE)
        if prm is not None and any(map(_is_earlier, self._lines.rows)):
            raise InputError(
                f"{self._lines.file} is of an earlier version of stepmark, which drew the alarm from other figures: this run cannot be gone on with. "
                "Begin it in another folder"
            )
        self.rows: list[Watched] = read_watched(self._lines.file)
        self._rebased = False

    @property
    def alarmed(self) -> int | None:
        """The update of the first alarm; None while there was none."""
        return self.rows[-1].alarmed if self.rows else None

    @property
    def best(self) -> Watched | None:
        """The evaluation of the checkpoint that is kept as the best one; None before the first."""
        return next((row for row in reversed(self.rows) if row.best), None)

    def rebase(self) -> None:
        """Say that the PRM was replaced: its promises are fitted and compared from the next evaluation on, no more with earlier ones."""
        self._rebased = True

    def keep(self, last: int) -> None:
        """Forget evaluations after update `last`, which the run did not come to save."""
        self._lines.keep(last)
        self.rows = [row for row in self.rows if row.update <= last]

    def updated(self, update: Update) -> None:
        """Nothing: updates are the history's."""

    def evaluated(self, evaluation: Evaluation) -> bool:
        """Measure, write, keep the checkpoint if it is the best one; True at an alarm with `stop_on_hack`."""
        self.rows = [row for row in self.rows if row.update < evaluation.update]
        found = watched(
            evaluation,
            prm=self.prm,
            implicit=self._sums(evaluation.rated),
            divergence=self._divergence(evaluation.rated),
            baseline=None if self._rebased else _baseline(self.rows),
            watch=self.watch,
            seed=self.seed,
        )
        found = replace(found, rebased=self._rebased)
        self._rebased = False
        found = replace(found, cusum=_cusum([*self.rows, found], self.watch))
        alarm = found.cusum is not None and found.cusum > self.watch.cusum.alarm_above
        found = replace(found, alarmed=found.update if self.alarmed is None and alarm else self.alarmed)
        best = max((_monitor_share(row) for row in self.rows if row.best), default=-1.0)
        if found.alarmed is None and _monitor_share(found) > best:
            found = replace(found, best=True)
            # Before the line: a kill between them does the evaluation again, and writes both.
            self._keep_best()
        self._lines.add(to_data(found))
        self.rows.append(found)
        return alarm and self.stop_on_hack

    def _keep_best(self) -> None:
        folder, draft, old = (
            self.folder / BEST,
            self.folder / f"{BEST}.part",
            self.folder / f"{BEST}.old",
        )
        for leftover in (draft, old):
            shutil.rmtree(leftover, ignore_errors=True)
        with quiet_loading():
            self.actor.save(draft)
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
        shutil.rmtree(old, ignore_errors=True)

    @torch.no_grad()
    def _divergence(self, rated: Sequence[Rated]) -> list[float] | None:
        """Of each completion, the k3 estimates of its tokens, added up."""
        if not self.actor.has_reference:
            return None
        rows = padded([one.drawn for one in rated], self.actor.device)
        out = torch.zeros(len(rated), device=rows.mask.device)
        for part in passes(rows, torch.arange(len(rated), device=rows.mask.device), TOKEN_BUDGET):
            chosen = rows_of(rows, part)
            now, before = self.actor.logprobs(chosen)[0], self.actor.reference_logprobs(chosen)
            out[part] = kl(now, before, chosen.mask, estimator="k3").sum(-1)
        return [float(value) for value in out.tolist()]

    def _sums(self, rated: Sequence[Rated]) -> list[float] | None:
        if self.prm is not None or self.implicit is None:
            return None
        rows = padded([one.drawn for one in rated], self.actor.device)
        return [float(value) for value in self.implicit.rewards(rows).sum(-1).tolist()]


def read_watched(file: Path) -> list[Watched]:
    """The evaluations in a `monitor.jsonl`.

    Lines of versions that drew the alarm from the return's rise less the accuracy's are read without that sum, which is not comparable; that there was an alarm
    is kept.

    Raises:
        InputError: a line that is none; the error names it and the field.
    """
    return [
        read_record(Watched, _present(row), where=f"{file}:{number}")
        for number, row in enumerate(read_lines(file), start=1)
    ]


def _is_earlier(row: Mapping[str, Any]) -> bool:
    return all(name in row for name in _EARLIER)


def _present(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _is_earlier(row):
        return row
    return {name: value for name, value in row.items() if name not in _EARLIER} | {"cusum": None}


def _monitor_share(row: Watched) -> float:
    assert row.accuracy.value is not None  # an evaluation has solutions
    return row.accuracy.value


def _since(rows: Sequence[Watched]) -> Sequence[Watched]:
    """Those from the last replacement of the PRM on."""
    return rows[max((at for at, row in enumerate(rows) if row.rebased), default=0) :]


def _baseline(rows: Sequence[Watched]) -> Baseline | None:
    return next((row.baseline for row in _since(rows) if row.baseline is not None), None)


def _cusum(rows: Sequence[Watched], watch: Watch) -> float | None:
    """The cumulative sum at the last row."""
    return watch.cusum.path([row.gap for row in _since(rows)])[-1]
