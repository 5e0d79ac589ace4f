"""How far a run is, on standard error: a bar on a terminal; elsewhere a line for each tenth of the run, at most one every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

EVERY = 10.0
"""Seconds between two lines, at least."""

TENTH = 0.1
"""Share of the run between two lines, at least."""

_PAUSE = 0.2
"""A pause of more than this share of the last batch's time begins a new batch: rows that were computed together come together."""


def told_at(share: float) -> int:
    """Which tenth of a run a share of it is in: a line is due when that grows."""
    return int(share / TENTH + 1e-9)


def can_estimate(fresh: int, todo: int, *, together: int = 1) -> bool:
    """Whether a rate can be measured: a twentieth of the run and two batches are done, or as many batches as half of the run has.

    Args:
        fresh: how many this run has done.
        todo: how many it had to do.
        together: how many are worked on at once.
    """
    return fresh >= max(0.05 * todo, min(2 * together, 0.5 * todo), 2)


class Progress:
    """Counts solutions, their rate, and the time that is left.

    Args:
        total: how many there are; None when that is not known (no time left is shown then).
        tokens: gives the number of tokens computed so far.
        verb: what is done to solutions.
        facts: gives what else is shown, a few words each.
        noun: what is counted, in the singular.
        shown: whether anything is printed.
        together: how many are worked on at once, so that none of them is done long before the others.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        total: int | None,
        *,
        tokens: Callable[[], int],
        verb: str = "graded",
        facts: Callable[[], Sequence[str]] = tuple,
        noun: str = "solution",
        shown: bool = True,
        together: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._first = 0
        self.done = 0
        """How many are done, those of an earlier run among them."""
        self._tokens = tokens
        self._verb = verb
        self._facts = facts
        self.noun = noun
        """What is counted."""
        self._shown = shown
        self._together = together
        self._clock = clock
        self._start = self._last_line = clock()
        self._tenth = self._tenths()
        self._wait = EVERY
        self._bar: Bar | None = None
        # Of the batch that is coming in: when its first row came, and how long the batch before had taken to that moment.
        self._came = self._batch = self._start
        self._length = 0.0
        # Of the batches before it: their rows, and when the last of them had come.
        self._whole = (0, 0.0)

    def __enter__(self) -> Progress:
        if self._shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True)
            self._bar = Bar(BarColumn(), TextColumn("{task.description}"), console=console, transient=True)
            self._bar.add_task(self.line(), total=self._total, completed=self.done)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int = 1, *, fresh: bool = True) -> None:
        """Count one more solution, or several; what is not `fresh`, an earlier run did, so that it counts as done and not as fast."""
        if not fresh:
            self._first += count
            self.done += count
            return
        now = self._clock()
        if now - self._came > _PAUSE * self._length:
            self._whole = (self.done - self._first, self._came - self._start)
            self._batch, self._length = now, now - self._batch
        self._came = now
        self.done += count
        self.tick()

    def tick(self) -> None:
        """Show the progress where that is due: also between solutions, which may take long."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done, description=self.line())
            return
        now = self._clock()
        if not self._shown or now - self._last_line < self._wait:
            return
        if self._total is not None and self._tenths() == self._tenth:
            return
        if self._total is None:
            self._wait *= 2  # there are no tenths of what has no end
        self._last_line, self._tenth = now, self._tenths()
        sys.stderr.write(f"{self.line()}\n")
        sys.stderr.flush()

    def _tenths(self) -> int:
        todo = (self._total or 0) - self._first
        return told_at((self.done - self._first) / todo) if todo > 0 else 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the bar away while something else is printed."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None:
            self._bar.start()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._clock() - self._start

    @property
    def seconds_left(self) -> float | None:
        """At the rate of the batches that are whole; None where it cannot be known yet."""
        rows, seconds = self._whole
        fresh = self.done - self._first
        if self._total is None or self._total < self.done or not rows or not seconds:
            return 0.0 if self._total == self.done else None
        if not can_estimate(fresh, self._total - self._first, together=self._together):
            return None
        return (self._total - self.done) * seconds / rows

    def line(self) -> str:
        """As "graded 120 of 400 solutions, 12.5 solutions/s, 4,570 tokens/s, 0:22 left"; `facts` stand before the last."""
        of = "" if self._total is None else f" of {max(self._total, self.done):,}"
        parts = [f"{self._verb} {self.done:,}{of} {self.noun}s"]
        fresh = self.done - self._first
        seconds, tokens = self.seconds, self._tokens()
        rate = fresh / seconds if seconds > 0 else 0
        if rate:
            parts.append(f"{rate:,.1f} {self.noun}s/s" if rate >= 0.1 else f"{1 / rate:,.0f} s a {self.noun}")
        if seconds > 0 and (rate or tokens):
            parts.append(f"{tokens / seconds:,.0f} tokens/s")
        parts += self._facts()
        if rate and (remaining := self.seconds_left) is not None:
            parts.append(f"{clock_face(remaining)} left")
        return ", ".join(parts)


def clock_face(seconds: float) -> str:
    """As 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
