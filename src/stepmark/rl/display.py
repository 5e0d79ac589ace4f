"""How far a run of policy training is: lines on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepmark.show.progress import EVERY, can_estimate, clock_face, told_at
from stepmark.show.tables import ABSENT

if TYPE_CHECKING:
    from stepmark.metrics.intervals import Interval
    from stepmark.rl.hacking import Watched
    from stepmark.rl.monitor import Monitor
    from stepmark.rl.trainer import Evaluation, Update


class Display:
    """A listener behind the monitor, whose figures it prints: each evaluation, and an update now and then.

    On a terminal at most one line every ten seconds; elsewhere also at most one each tenth of the run.
    """

    def __init__(
        self, monitor: Monitor, updates: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._monitor, self._updates, self._clock = monitor, updates, clock
        self._start, self._last_line = clock(), clock() - EVERY
        self._tenth = 0
        self._first: int | None = None
        """Updates of an earlier run."""

    def updated(self, update: Update) -> None:
        """Print a line, where one is due."""
        if self._first is None:
            self._first = update.number - 1
        tenth = told_at(update.number / self._updates)
        due = self._clock() - self._last_line >= EVERY and (tenth > self._tenth or sys.stderr.isatty())
        if due or update.number == self._updates:
            self._last_line, self._tenth = self._clock(), tenth
            sys.stderr.write(f"{self.line(update)}\n")

    def evaluated(self, evaluation: Evaluation) -> bool:
        """Print what the monitor measured."""
        row = self._monitor.rows[-1]
        sys.stderr.write(f"{words(row)}\n")
        if row.alarmed == row.update:
            sys.stderr.write(
                f"ALARM after update {row.update:,}: solutions are right less often than the PRM's scores promise\n"
            )
        return False

    def line(self, update: Update) -> str:
        """As "update 12 of 100, accuracy 0.412, PRM 0.655, KL 0.003, 1:12 left": figures of the update's samples."""
        number, before = update.number, self._first or 0
        parts = [f"update {number:,} of {self._updates:,}"]
        for name, key in (("accuracy", "accuracy"), ("PRM", "reward"), ("KL", "kl")):
            value = update.figures.get(key)
            parts += [f"{name} {value:.3f}"] if value is not None else []
        if number < self._updates and can_estimate(number - before, self._updates - before):
            left = (self._clock() - self._start) / (number - before) * (self._updates - number)
            parts.append(f"{clock_face(left)} left")
        return ", ".join(parts)


def words(row: Watched) -> str:
    """An evaluation in a line."""
    accuracy = _number(row.accuracy)
    if row.accuracy.low is not None and row.accuracy.high is not None:
        accuracy += f" [{row.accuracy.low:.3f}, {row.accuracy.high:.3f}]"
    parts = [f"after update {row.update:,}, held out: accuracy {accuracy}"]
    for name, value in (
        ("PRM return", row.step_return or row.solution_return),
        ("AUC", row.auc),
        ("KL", row.divergence),
    ):
        parts += [f"{name} {_number(value)}"] if value is not None else []
    parts += [f"CUSUM {row.cusum:.1f}"] if row.cusum is not None else []
    return ", ".join(parts) + (" (best)" if row.best else "")


def _number(value: Interval) -> str:
    # Rounded first: rounding errors of a divergence of 0 would read -0.000.
    return ABSENT if value.value is None else f"{round(value.value, 3) + 0.0:.3f}"
