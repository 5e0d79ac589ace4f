"""Where the figures of a run go: standard error, a history on disk, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TextIO

from stepmark.errors import MissingExtraError
from stepmark.show.evaluation import EvaluationView, Section, Tile, evaluation_html
from stepmark.show.plots import Lines, Series
from stepmark.show.progress import EVERY, can_estimate, clock_face, told_at
from stepmark.store import naming
from stepmark.training.measure import Trained
from stepmark.training.trainer import Progress


class Monitor(Protocol):
    """Records every optimizer step."""

    def record(self, progress: Progress) -> None:
        """One step is done."""

    def close(self) -> None:
        """The run has ended, or was broken off."""


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


class ProgressLines:
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


_POINTS = 200


def training_html(
    trained: Trained, history: Sequence[Mapping[str, Any]], settings: Mapping[str, str], *, title: str
) -> Iterator[str]:
    """The page in chunks.

    Args:
        trained: what the run gave.
        history: its steps (`monitor.read_history`).
        settings: name to value.
        title: of the page.
    """
    measured = [(row["step"], row["held_out"]) for row in history if row.get("held_out")]
    plots = [
        Lines(
            title="Loss a label",
            x_label="optimizer step",
            y_label="loss",
            series=(
                _smooth(history),
                *(
                    [_series("held out", [(step, found["loss"]) for step, found in measured])]
                    if measured
                    else []
                ),
            ),
            note=f"Training: means over at most {_POINTS} equal stretches of the run.",
        )
    ]
    named = (("AUC", "auc"), ("accuracy at 0.5", "accuracy"), ("first-error F1 at 0.5", "first_error_f1"))
    curves = [
        _series(name, [(step, found[key]) for step, found in measured])
        for name, key in named
        if any(found[key] is not None for _, found in measured)
    ]
    if curves:
        plots.append(
            Lines(
                title="Held-out problems, not calibrated",
                x_label="optimizer step",
                y_label="share",
                series=tuple(curves),
                y_range=(0.0, 1.0),
            )
        )
    yield from evaluation_html(
        EvaluationView(
            title=title,
            facts=(
                f"{trained.examples:,} examples of {trained.problems:,} problems were trained on.",
                *trained.dropped.lines(),
            ),
            tiles=_tiles(trained),
            sections=(Section(title="Curves", items=tuple(plots)),),
            settings=settings,
        )
    )


def _tiles(trained: Trained) -> tuple[Tile, ...]:
    found = trained.held_out
    if found is None:
        return ()
    steps, solutions = f"{found.labels:,} held-out steps", f"{found.solutions:,} held-out solutions"
    tiles = [Tile(label="Loss", value=f"{found.loss:.3f}", detail=steps)]
    if found.auc is not None:
        tiles.append(Tile(label="AUC", value=f"{found.auc:.3f}", detail=steps))
    if found.accuracy is not None:
        tiles.append(
            Tile(label="Accuracy", value=f"{found.accuracy:.3f}", detail=f"{steps}, at 0.5, not calibrated")
        )
    if trained.first_errors is not None:
        first = trained.first_errors
        tiles.append(
            Tile(
                label="First-error F1",
                value=f"{first.f1:.3f}",
                detail=f"{solutions}, calibrated, at {first.threshold:g}",
            )
        )
    return tuple(tiles)


def _series(name: str, points: Sequence[tuple[int, float | None]]) -> Series:
    return Series(name=name, x=tuple(float(step) for step, _ in points), y=tuple(y for _, y in points))


def _smooth(history: Sequence[Mapping[str, Any]]) -> Series:
    each = max(1, -(-len(history) // _POINTS))
    points = []
    for at in range(0, len(history), each):
        some = history[at : at + each]
        labels = sum(row["labels"] for row in some)
        points.append((some[-1]["step"], sum(row["loss"] * row["labels"] for row in some) / labels))
    return _series("training", points)
