"""A Platt map in a checkpoint: it goes into the spec's readout, on top of the one that is there; what was is kept in a note."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stepmark.errors import UsageError
from stepmark.models.files import present, read_object
from stepmark.models.spec import SPEC_FILE, Readout, ScoringSpec
from stepmark.store import atomic_write

NOTE_FILE = "calibration.json"
"""Beside the spec: the last map, what it was fitted on, the readout before it, and the note before this one."""


def composed(readout: Readout, scale: float, shift: float) -> Readout:
    """The readout whose scores are `sigmoid(scale * logit(score) + shift)` of the scores of the given one.

    The given one's own map is in those scores; two affine maps of a logit are one.

    Raises:
        UsageError: scores of this readout are not the sigmoid of one logit or the softmax of two, which alone take a map; or the
            map is not finite.
    """
    check_readout(readout)
    if not (math.isfinite(scale) and math.isfinite(shift)):
        raise UsageError(f"expected a finite map, found scale {scale:g} and shift {shift:g}")
    return replace(readout, scale=scale * readout.scale, shift=scale * readout.shift + shift)


def check_readout(readout: Readout) -> None:
    """Refuse a readout that takes no map.

    Raises:
        UsageError: its activation is neither "sigmoid" nor "softmax", or it has a neutral class.
    """
    if readout.activation not in ("sigmoid", "softmax") or readout.neutral is not None:
        classes = " of three classes" if readout.neutral is not None else ""
        raise UsageError(
            f"the scores of this checkpoint are read by {readout.activation!r}{classes}; a calibration can be stored only where "
            "they are the sigmoid of one logit or the softmax of two"
        )


def store_calibration(
    folder: str | Path, spec: ScoringSpec, *, scale: float, shift: float, note: Mapping[str, Any]
) -> ScoringSpec:
    """Put a Platt map into a checkpoint, so that loading it again gives the calibrated scores.

    The note is written first and the spec last, each whole or not at all: what `load_prm` reads changes in one rename. The
    note's `after` says which readout it belongs to.

    Args:
        folder: the checkpoint.
        spec: what its scores were made with.
        scale: of the logit of those scores.
        shift: added to it.
        note: what it was fitted on and how well.

    Returns:
        The spec as it now stands in the folder.

    Raises:
        UsageError: as `composed`; the folder cannot be written to.
        CheckpointError: the note that is there cannot be read.
    """
    folder = Path(folder)
    new = replace(spec, readout=composed(spec.readout, scale, shift))
    beside = folder / NOTE_FILE
    earlier = None
    if present(beside):
        earlier = read_object(beside)
    body = {
        **note,
        "scale": scale,
        "shift": shift,
        "before": {"scale": spec.readout.scale, "shift": spec.readout.shift},
        "after": {"scale": new.readout.scale, "shift": new.readout.shift},
        **({} if earlier is None else {"earlier": earlier}),
    }
    _write(beside, body)
    _write(folder / SPEC_FILE, asdict(new))
    return new


def _write(path: Path, body: object) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
