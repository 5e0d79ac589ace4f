"""How a run of policy training goes, on standard error: a table and a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepmark.show.progress import EVERY, can_estimate, clock_face, told_at
from stepmark.show.tables import ABSENT

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress import Progress as Bar

    from stepmark.metrics.intervals import Interval
    from stepmark.rl.hacking import Watched
    from stepmark.rl.monitor import Monitor
    from stepmark.rl.trainer import Evaluation, Update

_SHOWN = 8
"""Evaluations in the table."""


class Display:
    """A listener that shows how far the run is. It stands behind the monitor, whose figures it shows.

    Args:
        monitor: of the run.
        updates: of the whole run.
        clock: seconds, for tests.
    """

    def __init__(
        self, monitor: Monitor, updates: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._monitor, self._updates, self._clock = monitor, updates, clock
        self._start, self._last_line = clock(), clock() - EVERY
        self._tenth = 0
        self._first: int | None = None
        self._latest: Update | None = None
        self._live: Live | None = None
        self._bar: Bar | None = None

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(BarColumn(), TextColumn("{task.description}"))
            self._bar.add_task("", total=self._updates)
            self._live = Live(self._picture(), console=Console(stderr=True), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def updated(self, update: Update) -> None:
        """Tell, where that is due."""
        if self._first is None:
            self._first = update.number - 1
        self._latest = update
        if self._live is not None:
            self._draw()
            return
        tenth = told_at(update.number / self._updates)
        due = tenth > self._tenth and self._clock() - self._last_line >= EVERY
        if due or update.number == self._updates:
            self._last_line, self._tenth = self._clock(), tenth
            sys.stderr.write(f"{self.line()}\n")

    def evaluated(self, evaluation: Evaluation) -> bool:
        """Tell what the monitor found."""
        row = self._monitor.rows[-1]
        if self._live is not None:
            self._draw()
        else:
            sys.stderr.write(f"{words(row)}\n")
        if row.alarmed == row.update:
            alarm = f"ALARM after update {row.update:,}: solutions are right less often than the PRM's scores promise"
            if self._live is not None:
                self._live.console.print(alarm, style="bold red")
            else:
                sys.stderr.write(f"{alarm}\n")
        return False

    def line(self) -> str:
        """As "update 12 of 100, accuracy 0.412, PRM 0.655, KL 0.003, 1:12 left"; accuracy, PRM and KL of the latest update's samples."""
        if self._latest is None:
            return f"{self._updates:,} updates"
        number, figures = self._latest.number, self._latest.figures
        parts = [f"update {number:,} of {self._updates:,}"]
        for name, key in (("accuracy", "accuracy"), ("PRM", "reward"), ("KL", "kl")):
            value = figures.get(key)
            parts += [f"{name} {value:.3f}"] if value is not None else []
        fresh = number - (self._first or 0)
        if number < self._updates and can_estimate(fresh, self._updates - (self._first or 0)):
            left = (self._clock() - self._start) / fresh * (self._updates - number)
            parts.append(f"{clock_face(left)} left")
        return ", ".join(parts)

    def _draw(self) -> None:
        assert self._live is not None
        assert self._bar is not None
        done = 0 if self._latest is None else self._latest.number
        self._bar.update(self._bar.task_ids[0], completed=done, description=self.line())
        self._live.update(self._picture())

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold cyan", title_justify="left")
        for name in ("update", "held-out accuracy", "PRM return", "AUC", "KL", "CUSUM", ""):
            table.add_column(name, justify="left" if not name else "right", no_wrap=True)
        for row in self._monitor.rows[-_SHOWN:]:
            note = " ".join(
                filter(None, ("best" if row.best else "", "ALARM" if row.alarmed == row.update else ""))
            )
            table.add_row(
                f"{row.update:,}",
                _interval(row.accuracy),
                _interval(row.step_return or row.solution_return),
                _interval(row.auc),
                _one(row.divergence),
                ABSENT if row.cusum is None else f"{row.cusum:.1f}",
                note,
                style="bold red" if row.alarmed == row.update else None,
            )
        assert self._bar is not None
        return Group(table, self._bar)


def words(row: Watched) -> str:
    """An evaluation in a line."""
    parts = [f"after update {row.update:,}, held out: accuracy {_interval(row.accuracy)}"]
    for name, value in (
        ("PRM return", row.step_return or row.solution_return),
        ("AUC", row.auc),
        ("KL", row.divergence),
    ):
        parts += [f"{name} {_one(value)}"] if value is not None else []
    parts += [f"CUSUM {row.cusum:.1f}"] if row.cusum is not None else []
    return ", ".join(parts) + (" (best)" if row.best else "")


def _one(value: Interval | None) -> str:
    # Rounded first: rounding errors of a divergence of 0 would read -0.000.
    return ABSENT if value is None or value.value is None else f"{round(value.value, 3) + 0.0:.3f}"


def _interval(value: Interval | None) -> str:
    if value is None or value.low is None or value.high is None:
        return _one(value)
    return f"{_one(value)} [{value.low:.3f}, {value.high:.3f}]"
