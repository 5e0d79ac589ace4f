"""Watches a run: a line of figures at every evaluation, an alarm when the PRM's scores promise more than the verifier finds, the best checkpoint before it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch

from stepmark.errors import InputError
from stepmark.models.backbone import quiet_loading
from stepmark.models.prm import PRM
from stepmark.records import read_record, to_data
from stepmark.rl.actor import Actor, padded, passes, rows_of
from stepmark.rl.credit.kl import kl
from stepmark.rl.promise import Baseline
from stepmark.rl.rewarding import Rated
from stepmark.rl.trainer import Evaluation, TokenRewards, Update
from stepmark.rl.watched import Watch, Watched
from stepmark.rl.watching import WATCH, check_watch, watched

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
        best = max((_share(row) for row in self.rows if row.best), default=-1.0)
        if found.alarmed is None and _share(found) > best:
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


def _share(row: Watched) -> float:
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
