"""How far a run is, on standard error: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

EVERY = 10.0
"""Seconds between two lines."""


class Progress:
    """Counts solutions, and says how fast they come and when the last will be there.

    Args:
        total: how many there are; None when that is not known (no time left is told then).
        done: how many an earlier run did; they count as done, not as fast.
        tokens: gives the number of tokens computed so far.
        verb: what is done to solutions.
        facts: gives what else is told, a few words each.
        noun: what is counted, in the singular.
        shown: whether anything is printed.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        total: int | None,
        *,
        done: int = 0,
        tokens: Callable[[], int],
        verb: str = "graded",
        facts: Callable[[], Sequence[str]] = tuple,
        noun: str = "solution",
        shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._first = self._done = done
        self._tokens = tokens
        self._verb = verb
        self._facts = facts
        self._noun = noun
        self._shown = shown
        self._clock = clock
        self._start = self._told = clock()
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        if self._shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True)
            self._bar = Bar(BarColumn(), TextColumn("{task.description}"), console=console, transient=True)
            self._bar.add_task(self.line(), total=self._total, completed=self._done)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int = 1) -> None:
        """One more solution is done, or several."""
        self._done += count
        self.tick()

    def tick(self) -> None:
        """Tell how far it is, where that is due: also between solutions, which may take long."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, description=self.line())
        elif self._shown and self._clock() - self._told >= EVERY:
            self._told = self._clock()
            sys.stderr.write(f"{self.line()}\n")
            sys.stderr.flush()

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

    def line(self) -> str:
        """As "graded 120 of 400 solutions, 12.5 solutions/s, 4,570 tokens/s, 0:22 left"; `facts` stand before the last."""
        of = "" if self._total is None else f" of {max(self._total, self._done):,}"
        parts = [f"{self._verb} {self._done:,}{of} {self._noun}s"]
        fresh = self._done - self._first
        seconds, tokens = self.seconds, self._tokens()
        rate = fresh / seconds if seconds > 0 else 0
        if rate:
            parts.append(
                f"{rate:,.1f} {self._noun}s/s" if rate >= 0.1 else f"{1 / rate:,.0f} s a {self._noun}"
            )
        if seconds > 0 and (rate or tokens):
            parts.append(f"{tokens / seconds:,.0f} tokens/s")
        parts += self._facts()
        if rate and self._total is not None and self._total >= self._done:
            parts.append(f"{_clock_face((self._total - self._done) / rate)} left")
        return ", ".join(parts)


def _clock_face(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
