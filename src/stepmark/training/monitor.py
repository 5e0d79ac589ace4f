"""Where the figures of a training run go besides its history: standard error, TensorBoard, Weights & Biases."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from stepmark.errors import MissingExtraError
from stepmark.show.progress import EVERY, can_estimate, clock_face, told_at
from stepmark.training.trainer import Progress


class Monitor(Protocol):
    """Records every optimizer step."""

    def record(self, progress: Progress) -> None:
        """One step is done."""

    def close(self) -> None:
        """The run has ended, or was broken off."""


class ProgressLines:
    """A line for each measurement; between them one every ten seconds on a terminal, elsewhere also at most one a tenth of the run."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._last_line = clock()
        self._tenth = 0
        self._first: int | None = None
        """Steps of an earlier run."""
        self._losses: list[tuple[float, float]] = []

    def record(self, progress: Progress) -> None:
        """Print its line, where one is due."""
        self._losses = [*self._losses[-49:], (progress.loss * progress.labels, progress.labels)]
        if self._first is None:
            self._first = progress.step - 1
            self._tenth = told_at(self._first / progress.steps)
        tenth = told_at(progress.step / progress.steps)
        due = self._clock() - self._last_line >= EVERY and (tenth > self._tenth or self._stream.isatty())
        if progress.held_out is None and progress.step < progress.steps and not due:
            return
        self._last_line, self._tenth = self._clock(), tenth
        loss = sum(loss for loss, _ in self._losses) / sum(labels for _, labels in self._losses)
        parts = [
            f"step {progress.step:,} of {progress.steps:,}",
            f"loss {loss:.3f} (last {len(self._losses)})",
            f"{progress.rows_per_second:,.1f} rows/s, {progress.tokens_per_second:,.0f} tokens/s",
        ]
        if can_estimate(progress.step - self._first, progress.steps - self._first):
            parts.append(f"{clock_face(progress.seconds_left)} left")
        if (measured := progress.held_out) is not None:
            parts.append(f"held out: {', '.join(measured.words())}")
            if measured.first_error_f1 is not None:
                parts.append(f"first-error F1 {measured.first_error_f1:.3f}")
        print(", ".join(parts), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing: the stream stays open."""


class TensorBoard:
    """Event files for TensorBoard in a folder.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("`log` tensorboard needs it: pip install tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder))

    def record(self, progress: Progress) -> None:
        """Its scalars."""
        for name, value in scalars(progress).items():
            self._writer.add_scalar(name, value, progress.step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class WandB:
    """A run on Weights & Biases; where and whether it is sent is decided by its own settings (WANDB_MODE, WANDB_PROJECT).

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError("`log` wandb needs it: pip install wandb") from error
        self._run: Any = wandb.init(name=name, config=dict(settings), resume="allow")

    def record(self, progress: Progress) -> None:
        """Its scalars."""
        self._run.log(scalars(progress), step=progress.step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def scalars(progress: Progress) -> dict[str, float]:
    """What a step has to plot; what is not known is left out."""
    named = (
        ("train", progress, ("loss", "gradient", "learning_rate")),
        ("speed", progress, ("tokens_per_second", "rows_per_second")),
        ("held_out", progress.held_out, ("loss", "accuracy", "auc", "first_error_f1")),
    )
    return {
        f"{part}/{name}": value
        for part, record, names in named
        if record is not None
        for name in names
        if (value := getattr(record, name)) is not None
    }
