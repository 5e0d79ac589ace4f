"""What a training run gives: the checkpoint's folder, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepmark.metrics.first_error import FirstErrors
from stepmark.training.examples import Dropped
from stepmark.training.measure import Measure

if TYPE_CHECKING:
    from stepmark.models.prm import PRM


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained:
    """A checkpoint that `stepmark.train` has written, and what was measured."""

    folder: Path
    """The checkpoint; its curves and settings are in `report.html` there."""
    held_out: Measure | None
    """On problems that were not trained on, before calibration; None where none were held out."""
    first_errors: FirstErrors | None
    """On the solutions of those problems, calibrated, at the checkpoint's threshold."""
    examples: int
    """Solutions that were trained on."""
    problems: int
    """Their problems."""
    dropped: Dropped
    """What was left out, and why."""
    first: bool = True
    """Whether this is the process that writes; of one process it is."""
    new: bool = True
    """Whether it was trained now; False where an earlier run with the same settings and rows had finished it."""

    def prm(self, **settings: Any) -> PRM:
        """The PRM, loaded.

        Args:
            settings: as `load_prm` takes them.
        """
        from stepmark.models.load import load_prm

        return load_prm(str(self.folder), **settings)

    @property
    def figures(self) -> Sequence[str]:
        """What was trained on and measured, one line each."""
        lines = [f"{self.folder}: {self.examples:,} examples of {self.problems:,} problems"]
        measured = self.held_out
        if measured is None:
            return lines
        lines.append(f"held out: {measured.labels:,} labels, " + ", ".join(measured.words()))
        if self.first_errors is not None:
            lines.append(
                f"first errors of {measured.solutions:,} held-out solutions, calibrated, at {self.first_errors.threshold:g}: "
                f"F1 {self.first_errors.f1:.3f}"
            )
        return lines

    def __repr__(self) -> str:
        return f"<PRM in {'; '.join(self.figures)}>"
