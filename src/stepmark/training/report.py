"""The page of a training run: its curves, its figures, its settings, as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepmark.show.evaluation import EvaluationView, Section, Tile, evaluation_html
from stepmark.show.plots import Lines, Series
from stepmark.training.trained import Trained

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
