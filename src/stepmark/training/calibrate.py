"""Calibration on held-out steps: Platt scaling of the logit, and the threshold for the first error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stepmark.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class FirstErrors:
    """How well first errors are found. All in [0, 1]."""

    threshold: float
    error_accuracy: float
    """Share of wrong solutions whose first error is named exactly."""
    correct_accuracy: float
    """Share of right solutions in which no error is named."""
    f1: float
    """Their harmonic mean (ProcessBench, Zheng et al. 2024, section 3); 0 when both are 0."""


def platt(logits: Sequence[float], labels: Sequence[float]) -> tuple[float, float]:
    """The scale and shift that make sigmoid(scale * logit + shift) most likely (Platt 1999, section 2.2).

    The targets are Platt's, (right + 1) / (right + 2) and 1 / (wrong + 2) for 1 and 0: without them no scale is the
    best one where the logits part right from wrong without fault.

    Args:
        logits: raw logits.
        labels: 0 or 1, or fractions; as many.

    Raises:
        UsageError: no labels, or only one class; logits that are all the same or not finite.
    """
    y = torch.tensor(labels, dtype=torch.float64)
    if len(y) == 0 or not 0 < float(y.mean()) < 1:
        raise UsageError("calibration needs right and wrong held-out steps")
    x = torch.tensor(logits, dtype=torch.float64)
    if not bool(torch.isfinite(x).all()) or float(x.min()) == float(x.max()):
        raise UsageError(
            f"calibration needs finite logits that differ, found {float(x.min()):g} to {float(x.max()):g}; the model did "
            "not learn to tell steps apart"
        )
    right, wrong = float(y.sum()), float(len(y) - y.sum())
    y = y * (right + 1) / (right + 2) + (1 - y) / (wrong + 2)
    parameters = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [parameters],
        max_iter=200,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(parameters[0] * x + parameters[1], y)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    scale, shift = parameters.detach().tolist()
    return scale, shift


def first_errors(scores: Sequence[Sequence[float]], truth: Sequence[int], threshold: float) -> FirstErrors:
    """First-error accuracy at a threshold.

    Args:
        scores: step scores of each solution.
        truth: 0-based first error of each; -1 for none.
        threshold: a step strictly under it is taken for an error.

    Raises:
        UsageError: no wrong or no right solution.
    """
    found = [next((i for i, s in enumerate(row) if s < threshold), -1) for row in scores]
    wrong = [f == t for f, t in zip(found, truth, strict=True) if t != -1]
    right = [f == -1 for f, t in zip(found, truth, strict=True) if t == -1]
    if not wrong or not right:
        raise UsageError("first-error figures need solutions with and without an error")
    a, b = sum(wrong) / len(wrong), sum(right) / len(right)
    return FirstErrors(
        threshold=threshold, error_accuracy=a, correct_accuracy=b, f1=2 * a * b / (a + b) if a + b else 0.0
    )


def best_threshold(scores: Sequence[Sequence[float]], truth: Sequence[int]) -> FirstErrors:
    """The threshold with the highest F1 on these solutions, of 199 evenly spaced ones from 0.005 to 0.995.

    On a tie the one nearest to 0.5, and of two the lower: at the edge of what ties, a step a little worse than
    these would be on the other side.

    Raises:
        UsageError: no wrong or no right solution.
    """
    return max(
        (first_errors(scores, truth, n / 200) for n in range(1, 200)),
        key=lambda result: (result.f1, -round(abs(result.threshold - 0.5), 3)),
    )
