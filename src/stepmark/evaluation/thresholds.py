"""Which score makes a step an error: threshold policies, each with the words that stand beside its numbers.

Published first-error figures mix them: binary PRMs at 0.5 or by the larger class, scalar ones at the threshold that is best on
one subset (ProcessBench's GSM8K), some at the best of each file. An oracle's number is no result, only a bound.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stepmark.errors import InputError, ScoreKindError, UsageError
from stepmark.evaluation.base import Run
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.metrics.aggregate import check_score
from stepmark.metrics.first_error import best_threshold, first_wrong
from stepmark.models.lazy import Lazy
from stepmark.records import StepScores

_MIDDLES = {"probability": 0.5, "margin": 0.0, "log-ratio": 0.0}
"""Where the two classes of a binary PRM are equally likely."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdRule:
    """How steps become errors in one group of cases."""

    threshold: float | None
    """A step strictly under it is an error; None for the larger of several classes."""
    words: str
    """What stands beside every number."""

    def found(self, row: CaseScores) -> int | None:
        """The 0-based first error that the PRM names; -1 for none; None when an unread step comes before any."""
        return None if row.steps is None else first_wrong(self.ratings(row))

    def ratings(self, row: CaseScores) -> tuple[int | None, ...]:
        """-1 for an error, 0 for the neutral class, else 1, of each step; None for one without a score."""
        if self.threshold is not None or row.steps is None:
            at = self.threshold or 0.0
            return tuple(None if score is None else -1 if score < at else 1 for score in row.scores)
        assert row.steps.classes is not None
        assert row.steps.class_names is not None
        means = [{"negative": -1, "neutral": 0}.get(name, 1) for name in row.steps.class_names]
        return tuple(
            None if shares is None else means[max(range(len(shares)), key=lambda at: (shares[at], at))]
            for shares in row.steps.classes
        )


def check_asked(asked: str | None, groups: Collection[str]) -> None:
    """Refuse what is no policy whatever the scores are; to be called before they are made."""
    if asked is None or asked in ("argmax", "oracle"):
        return
    if asked.startswith("tuned:"):
        on = asked.removeprefix("tuned:")
        if on not in groups:
            raise UsageError(f"`threshold` {asked}: there is no group {on!r}; known: {', '.join(groups)}")
        return
    try:
        number = float(asked)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"`threshold` {asked}: expected a number, argmax, tuned:GROUP or oracle")


def check_neutral(asked: str | None, run: Run) -> None:
    """Refuse argmax, which takes the neutral class for no error, where the PRM's neutral class counts as negative."""
    if asked == "argmax" and isinstance(run.prm, Lazy) and run.prm.arguments.get("neutral") == "negative":
        raise UsageError(
            "`threshold` argmax takes the neutral class for no error, which `neutral` negative contradicts; give a number"
        )


def policies(
    asked: str | None,
    sheet: Sheet,
    groups: Mapping[str, Sequence[CaseScores]],
    truth: Mapping[str, int | None],
) -> dict[str, ThresholdRule]:
    """The policy of each group.

    `asked` is a number, "argmax", "tuned:GROUP" (the best F1 on that group, used everywhere), "oracle" (the best F1 of each group on itself), or None
    for the PRM's own threshold; `truth` is the 0-based first error by case id, -1 for none, None for not known.
    """
    check_asked(asked, groups)

    def everywhere(threshold: float, words: str) -> dict[str, ThresholdRule]:
        return dict.fromkeys(groups, ThresholdRule(threshold=threshold, words=f"{threshold:.4g}, {words}"))

    if asked is None:
        if sheet.threshold is None:
            raise UsageError(
                f"{sheet.prm} has no threshold of its own; name one: `threshold` 0.5, argmax, tuned:GROUP or oracle"
            )
        return everywhere(sheet.threshold, "the PRM's own")
    if asked == "argmax":
        return dict.fromkeys(groups, _argmax(sheet))
    if asked == "oracle":
        best = {name: _best(asked, name, rows, truth) for name, rows in groups.items()}
        return {name: everywhere(t, f"the best on {name} itself (oracle)")[name] for name, t in best.items()}
    if asked.startswith("tuned:"):
        on = asked.removeprefix("tuned:")
        t = _best(asked, on, groups[on], truth)
        return everywhere(t, f"the best on {on}") | {on: everywhere(t, f"the best on {on} itself")[on]}
    number = float(asked)
    try:
        check_score(number, sheet.kind, step=0)
    except InputError:
        raise UsageError(
            f"the threshold {asked} is no {sheet.kind}, which is what {sheet.prm} gives"
        ) from None
    return everywhere(number, "given")


def _argmax(sheet: Sheet) -> ThresholdRule:
    read = [row for row in sheet.rows if row.steps is not None]
    known = [row.steps is not None and _has_negative(row.steps) for row in read]
    if any(known):
        if not all(known):
            without = read[known.index(False)].case.id
            raise UsageError(f"argmax: some solutions have classes and {without!r} has none; give a number")
        return ThresholdRule(threshold=None, words="the largest class (argmax)")
    if sheet.kind not in _MIDDLES:
        raise ScoreKindError(
            f"argmax needs classes or a middle, and {sheet.kind} scores have neither; give a number"
        )
    middle = _MIDDLES[sheet.kind]
    return ThresholdRule(threshold=middle, words=f"{middle:g}, the larger class (argmax)")


def _has_negative(steps: StepScores) -> bool:
    return bool(steps.classes) and "negative" in (steps.class_names or ())


def _best(asked: str, name: str, rows: Sequence[CaseScores], truth: Mapping[str, int | None]) -> float:
    known = [(row.scores, label) for row in rows if (label := truth[row.case.id]) is not None]
    try:
        return best_threshold([scores for scores, _ in known], [label for _, label in known]).threshold
    except UsageError as error:
        raise UsageError(f"`threshold` {asked}: on {name!r}, {error}") from None
