"""Finding the first error: ProcessBench's F1 at a threshold, and the exact best threshold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepmark.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class FirstErrorAccuracy:
    """How well first errors are found. All but the threshold in [0, 1]."""

    threshold: float
    error_accuracy: float
    """Share of wrong solutions whose first error is named exactly."""
    correct_accuracy: float
    """Share of right solutions in which no error is named."""
    f1: float
    """Their harmonic mean (ProcessBench, Zheng et al. 2024, section 3); 0 when both are 0."""


def found_error(scores: Iterable[float | None], threshold: float) -> int | None:
    """The 0-based index of the first step strictly under the threshold; -1 for none; None when a step without a score
    comes before any error.
    """
    for step, score in enumerate(scores):
        if score is None:
            return None
        if score < threshold:
            return step
    return -1


def first_wrong(ratings: Iterable[int | None]) -> int | None:
    """The 0-based index of the first step rated -1; -1 for none; None when a step without a rating comes before any such
    step. Neutral steps (0) are no errors.
    """
    return found_error(ratings, 0)


def harmonic_mean(a: float, b: float) -> float:
    """2ab / (a + b); 0 when both are 0 (ProcessBench's script divides by zero there)."""
    return 2 * a * b / (a + b) if a + b else 0.0


def first_errors(
    scores: Sequence[Sequence[float | None]], truth: Sequence[int], threshold: float
) -> FirstErrorAccuracy:
    """First-error accuracy at a threshold.

    Args:
        scores: step scores of each solution; a step without a score counts as no answer, which is wrong.
        truth: 0-based first error of each; -1 for none.
        threshold: a step strictly under it is taken for an error.

    Raises:
        UsageError: no wrong or no right solution.
    """
    results = [found_error(row, threshold) for row in scores]
    wrong = [f == t for f, t in zip(results, truth, strict=True) if t != -1]
    right = [f == -1 for f, t in zip(results, truth, strict=True) if t == -1]
    if not wrong or not right:
        raise UsageError("first-error figures need solutions with and without an error")
    a, b = sum(wrong) / len(wrong), sum(right) / len(right)
    return FirstErrorAccuracy(
        threshold=threshold, error_accuracy=a, correct_accuracy=b, f1=harmonic_mean(a, b)
    )


def best_threshold(scores: Sequence[Sequence[float | None]], truth: Sequence[int]) -> FirstErrorAccuracy:
    """The threshold with the highest F1 on these solutions, exactly: every score is a border, none is skipped.

    A wrong solution with its first error at step k is named rightly for thresholds t in (s_k, min(s_0 … s_{k-1})];
    a right one for t <= min(s). F1 is constant between neighbouring borders, so that one candidate a gap, the middle
    of it, tries them all. Of the best gaps the widest is taken (the most stable choice), of equally wide ones the
    lowest. Under the lowest score the threshold is that score; over the highest it stands as far off as the last gap is wide.

    Raises:
        UsageError: no wrong or no right solution, or no scores.
    """
    rights, wrongs = 0, 0
    opened: dict[float, int] = {}  # score -> wrong solutions named rightly for t just over it
    closed: dict[float, int] = {}  # score -> of those, no longer for t just over it
    falling: dict[float, int] = {}  # score -> right solutions in which an error is named for t just over it
    for row, label in zip(scores, truth, strict=True):
        wrongs, rights = wrongs + (label != -1), rights + (label == -1)
        read = [score for score in (row if label == -1 else row[: label + 1]) if score is not None]
        if len(read) != (len(row) if label == -1 else label + 1):
            continue  # never named rightly: a step was not read
        if label == -1:
            low = min(read, default=None)
            if low is not None:
                falling[low] = falling.get(low, 0) + 1
            continue
        before = min(read[:-1], default=float("inf"))
        if read[-1] < before:
            opened[read[-1]] = opened.get(read[-1], 0) + 1
            closed[before] = closed.get(before, 0) + 1
    if not wrongs or not rights:
        raise UsageError("first-error figures need solutions with and without an error")
    borders = sorted({s for row in scores for s in row if s is not None})
    if not borders:
        raise UsageError("there is no score to set a threshold by")
    # Solutions without a step count as right at every threshold.
    clean = sum(
        label == -1 and all(s is not None for s in row) for row, label in zip(scores, truth, strict=True)
    )
    named = 0
    best: tuple[float, float, float] | None = None
    chosen = borders[0]
    for place, (low, high) in enumerate(
        zip([None, *borders], [*borders, None], strict=True)
    ):  # t in (low, high]
        if low is not None:
            named += opened.get(low, 0) - closed.get(low, 0)
            clean -= falling.get(low, 0)
        f1 = harmonic_mean(named / wrongs, clean / rights)
        width = (high - low) if low is not None and high is not None else 0.0
        key = (f1, width, -float(place))
        if best is None or key > best:
            best, chosen = key, _inside(low, high, borders)
    return first_errors(scores, truth, chosen)


def _inside(low: float | None, high: float | None, borders: Sequence[float]) -> float:
    """A threshold t with low < t <= high."""
    if low is not None and high is not None:
        middle = low + (high - low) / 2
        return middle if middle > low else high  # neighbouring floats have no middle
    if low is None:
        return borders[0]
    gap = borders[-1] - borders[-2] if len(borders) > 1 else 1.0
    over = low + gap
    return over if over > low else float("inf")


_ENOUGH = 10
"""Solutions from which a share says something."""
_NEARLY_ALL = 0.9


def threshold_misfit(under: int, solutions: int, threshold: float | None) -> str | None:
    """What to say where nearly all solutions of a run have a step under the threshold; None elsewhere.

    A PRM that meets texts of another kind than it was trained on scores them all lower; its order may still be good.
    """
    if threshold is None or solutions < _ENOUGH or under < _NEARLY_ALL * solutions:
        return None
    return (
        f"{under:,} of {solutions:,} solutions have a step under {threshold:g}. Unless nearly all of them are wrong, this threshold does not "
        "fit these texts, though the order of the scores may. Label about 50 of them (`stepmark annotate`, or the key `label` of ProcessBench); "
        "`stepmark evaluate processbench` on those labels with the threshold `oracle` gives the threshold that fits; with 200, `stepmark train` "
        "makes a PRM of your own"
    )
