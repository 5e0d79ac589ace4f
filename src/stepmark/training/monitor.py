"""Where the figures of a run go: standard error, a history on disk, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TextIO

from stepmark.errors import MissingExtraError
from stepmark.show.progress import EVERY, can_estimate, clock_face, told_at
from stepmark.store import naming
from stepmark.training.trainer import Progress


class Monitor(Protocol):
    """Records every optimizer step."""

    def record(self, progress: Progress) -> None:
        """One step is done."""

    def close(self) -> None:
        """The run has ended, or was broken off."""


HISTORY_FILE = "history.jsonl"


class History:
    """Every step as a JSON line. A resumed run continues the file; steps that are done again replace their lines.

    Args:
        file: where; it and its folder are made at the first step.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lines: TextIO | None = None

    def keep(self, last: int) -> None:
        """Drop the lines of steps after `last`, which the run did not come to save."""
        self.close()
        rows = [row for row in read_history(self.file) if row["step"] <= last]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.file.with_suffix(".part")
        with naming(self.file):
            temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            temporary.replace(self.file)

    def record(self, progress: Progress) -> None:
        """Write its line."""
        if self._lines is None:
            self.keep(progress.step - 1)
            self._lines = self.file.open("a", encoding="utf-8")
        with naming(self.file):
            self._lines.write(json.dumps(asdict(progress)) + "\n")
            self._lines.flush()

    def close(self) -> None:
        """Close the file."""
        if self._lines is not None:
            with suppress(
                OSError
            ):  # each line was flushed: what is left is of a write that failed, and that was reported
                self._lines.close()
            self._lines = None


def read_history(file: Path) -> list[dict[str, Any]]:
    """The steps in a history; a last line that was cut off by a kill is left out, and a file that is not there has none."""
    rows: list[dict[str, Any]] = []
    if not file.is_file():
        return rows
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class Lines:
    """A line for each measurement; between them one every ten seconds on a terminal, elsewhere also at most one a tenth of the run.

    Args:
        stream: that lines are written to.
        clock: seconds, for tests.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._last_line = clock()
        self._tenth = 0
        self._first: int | None = None
        self._losses: list[tuple[float, float]] = []

    def record(self, progress: Progress) -> None:
        """Its line, where one is due."""
        self._losses.append((progress.loss * progress.labels, progress.labels))
        del self._losses[:-50]
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
        measured = progress.held_out
        if measured is not None:
            parts.append(f"held out: {', '.join(measured.words())}")
            if measured.first_error_f1 is not None:
                parts.append(f"first-error F1 {measured.first_error_f1:.3f}")
        print(", ".join(parts), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing: the stream stays open."""


class TensorBoard:
    """Event files for TensorBoard.

    Args:
        folder: where they go.

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

    Args:
        name: of the run.
        settings: shown with it.

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
        """End the run."""
        self._run.finish()


def scalars(progress: Progress) -> dict[str, float]:
    """What a step has to plot; what is not known is left out."""
    figures: dict[str, float | None] = {
        "train/loss": progress.loss,
        "train/gradient": progress.gradient,
        "train/learning_rate": progress.learning_rate,
        "speed/tokens_per_second": progress.tokens_per_second,
        "speed/rows_per_second": progress.rows_per_second,
    }
    if progress.held_out is not None:
        figures |= {
            "held_out/loss": progress.held_out.loss,
            "held_out/accuracy": progress.held_out.accuracy,
            "held_out/auc": progress.held_out.auc,
            "held_out/first_error_f1": progress.held_out.first_error_f1,
        }
    return {name: value for name, value in figures.items() if value is not None}


def close_all(monitors: Sequence[Monitor]) -> None:
    """Close them in order."""
    for monitor in monitors:
        monitor.close()
