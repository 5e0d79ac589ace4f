"""What people read of a run of policy training: lines while it runs, its page, and the cards of its checkpoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Interval
from stepmark.progress import EVERY, can_estimate, clock_face, told_at
from stepmark.report import colour
from stepmark.report.evaluation import Examples, Item, Report, Section, Tile, evaluation_html
from stepmark.report.page import CardView, ProblemView, StepView
from stepmark.report.plots import Lines, Mark, Series
from stepmark.report.tables import ABSENT, Table, interval_text, markdown
from stepmark.rl.hacking import CELLS, ShownSolution, Watched
from stepmark.rl.monitor import Monitor, best_of
from stepmark.rl.policy_trainer import PolicyEvaluation, Update
from stepmark.training.report import CardFacts, card_text, smoothed
from stepmark.words import amount


class PolicyProgressLines:
    """A listener behind the monitor: prints each evaluation on standard error, and an update now and then.

    On a terminal at most one line every ten seconds; elsewhere also at most one each tenth of the run.
    """

    def __init__(
        self, monitor: Monitor, updates: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._monitor, self._updates, self._clock = monitor, updates, clock
        self._start, self._last_line = clock(), clock() - EVERY
        self._tenth = 0
        self._first: int | None = None
        """Updates of an earlier run."""

    def updated(self, update: Update) -> None:
        """Print a line, where one is due."""
        if self._first is None:
            self._first = update.number - 1
        tenth = told_at(update.number / self._updates)
        due = self._clock() - self._last_line >= EVERY and (tenth > self._tenth or sys.stderr.isatty())
        if due or update.number == self._updates:
            self._last_line, self._tenth = self._clock(), tenth
            sys.stderr.write(f"{self.line(update)}\n")

    def evaluated(self, evaluation: PolicyEvaluation) -> bool:
        """Print what the monitor measured."""
        row = self._monitor.rows[-1]
        sys.stderr.write(f"{words(row)}\n")
        if row.alarmed == row.update:
            sys.stderr.write(f"ALARM after update {row.update:,}: {_ALARM}\n")
        return False

    def line(self, update: Update) -> str:
        """As "update 12 of 100, accuracy 0.412, PRM 0.655, KL 0.003, 1:12 left": figures of the update's samples."""
        number, before = update.number, self._first or 0
        parts = [f"update {number:,} of {self._updates:,}"]
        for name, key in (("accuracy", "accuracy"), ("PRM", "reward"), ("KL", "kl")):
            value = update.figures.get(key)
            parts += [f"{name} {value:.3f}"] if value is not None else []
        if number < self._updates and can_estimate(number - before, self._updates - before):
            seconds = (self._clock() - self._start) / (number - before) * (self._updates - number)
            parts.append(f"{clock_face(seconds)} left")
        return ", ".join(parts)


def words(row: Watched) -> str:
    """An evaluation in a line."""

    def number(interval: Interval) -> str:
        # Rounded first: rounding errors of a divergence of 0 would read -0.000.
        return ABSENT if interval.value is None else f"{round(interval.value, 3) + 0.0:.3f}"

    accuracy = number(row.accuracy)
    if row.accuracy.low is not None and row.accuracy.high is not None:
        accuracy += f" [{row.accuracy.low:.3f}, {row.accuracy.high:.3f}]"
    parts = [f"after update {row.update:,}, held out: accuracy {accuracy}"]
    for name, value in (
        ("PRM return", row.step_return or row.solution_return),
        ("AUC", row.auc),
        ("KL", row.divergence),
    ):
        parts += [f"{name} {number(value)}"] if value is not None else []
    return ", ".join(parts) + (" (best)" if row.best else "")


def figure(row: Watched, name: str) -> Interval | float | None:
    """A figure by its name in `Watched`; `quadrants.CELL` is a share, `quadrants.agree` that of `both` and `neither`."""
    field, _, part = name.partition(".")
    value: Any = getattr(row, field)
    if field == "quadrants" and value is not None:
        value = value.share(*(("both", "neither") if part == "agree" else (part,)))
    result: Interval | float | None = value
    return result


_ALARM = "the share of solutions with good steps and a wrong answer has risen: the policy writes what pleases the PRM"
_PLOTS: tuple[tuple[str, str, Mapping[str, str], str], ...] = (
    ("Accuracy", "share", {"": "accuracy"}, ""),
    (
        "PRM return",
        "mean score",
        {"mean step": "step_return", "solution": "solution_return"},
        "Accuracy and return should rise together: a return that climbs while accuracy stands still is hacking.",
    ),
    (
        "Process and outcome",
        "share",
        {what: f"quadrants.{cell}" for cell, what in CELLS.items()} | {"agree": "quadrants.agree"},
        "Good steps: none is under the PRM's threshold. Good steps with a wrong answer are where the PRM was fooled (or a solution was cut "
        "short): a growing share is the clearest sign of hacking.",
    ),
    (
        "AUC of the weakest step against the outcome",
        "AUC",
        {"": "auc"},
        "Falls when the policy has learnt to write what the PRM cannot tell apart; 0.5 is chance.",
    ),
    ("Steps a solution", "steps", {"": "steps"}, ""),
    ("Tokens a solution", "tokens", {"": "tokens"}, ""),
    ("Runs of four words that stood in the solution before", "share", {"": "repetition"}, ""),
    ("Divergence from the starting policy", "nats a token", {"": "divergence"}, ""),
)
"""Title, unit, curves (name to what `figure` finds) and a note. A curve without a value is left out, and a plot without a curve."""
_FIGURES = {
    "accuracy": "accuracy",
    "PRM return, mean step score": "step_return",
    "PRM return, a solution": "solution_return",
    "AUC of the weakest step against the outcome": "auc",
    "good steps and a wrong answer": "quadrants.slipped",
    "steps a solution": "steps",
    "tokens a solution": "tokens",
    "KL from the start, nats a token": "divergence",
}
"""Of the page and the card: what they say, and what `figure` finds."""


def rl_html(
    rows: Sequence[Watched],
    history: Sequence[Mapping[str, Any]],
    settings: Mapping[str, str],
    *,
    title: str,
    facts: Sequence[str] = (),
) -> Iterator[str]:
    """The page in chunks, from the evaluations (`monitor.read_watched`) and the updates (`training.state.read_lines`)."""
    if not rows:
        raise UsageError("the page of a run needs at least one evaluation")
    best, last = best_of(rows), rows[-1]
    when = "Best checkpoint" if last.alarmed is None else "Best checkpoint before the alarm"
    checkpoint = "" if best is None else f" {when}: after update {best.update:,}."
    verdict = f"{alarm_words(rows)}{checkpoint} In brackets and bands: 95 % intervals over {amount(last.solutions, 'held-out problem')}."
    parts = {
        "Held-out problems, at the temperature of training": (
            _measured(rows, "Before and after", "the last weights"),
            *_plots(rows),
        ),
        "Learning": tuple(_learning(history)),
        "Examples": tuple(_examples(rows)),
    }
    yield from evaluation_html(
        Report(
            title=title,
            facts=(*facts, verdict),
            tiles=(_alarm_tile(rows),),
            sections=tuple(Section(title=name, items=items) for name, items in parts.items() if items),
            settings=settings,
        )
    )


def _plots(rows: Sequence[Watched]) -> Iterator[Item]:
    for title, unit, curves, note in _PLOTS:
        series = tuple(_series(rows, curve, place) for curve, place in curves.items())
        drawable = tuple(line for line in series if any(value is not None for value in line.y))
        if drawable:
            limits = (0, 1) if unit in ("share", "AUC") else None
            marks = tuple(_marks(rows))
            yield Lines(
                title=title,
                x_label="update",
                y_label=unit,
                series=drawable,
                y_range=limits,
                marks=marks,
                note=note,
            )


def _series(rows: Sequence[Watched], name: str, place: str) -> Series:
    figures = [figure(row, place) for row in rows]
    bands = [(item.low, item.high) if isinstance(item, Interval) else (None, None) for item in figures]
    low, high = zip(*bands, strict=True)
    banded = any(isinstance(item, Interval) for item in figures)
    return Series(
        name=name,
        x=tuple(float(row.update) for row in rows),
        y=tuple(item.value if isinstance(item, Interval) else item for item in figures),
        low=low if banded else None,
        high=high if banded else None,
    )


def _marks(rows: Sequence[Watched]) -> Iterator[Mark]:
    """The alarm and replacements of the PRM."""
    if rows[-1].alarmed is not None:
        yield Mark(x=float(rows[-1].alarmed), name="alarm")
    yield from (Mark(x=float(row.update), name="new PRM") for row in rows if row.rebased)


def _learning(history: Sequence[Mapping[str, Any]]) -> Iterator[Item]:
    for title, unit, names in (
        ("Samples of training", "share, mean score", ("accuracy", "reward", "flat")),
        ("Samples that failed", "share", ("cut", "blank", "unparsed", "unscored", "refuted")),
        ("Implicit PRM", "cross-entropy", ("implicit_loss",)),
    ):
        recorded = [name for name in names if any(row.get(name) is not None for row in history)]
        series = tuple(
            smoothed(name if len(names) > 1 else "", history, x="update", y=name) for name in recorded
        )
        note = (
            "flat: groups all right or all wrong, which teach nothing by the outcome."
            if "flat" in recorded
            else ""
        )
        if series:
            yield Lines(title=title, x_label="update", y_label=unit, series=series, note=note)


def _examples(rows: Sequence[Watched]) -> Iterator[Item]:
    """Of the last evaluation, and the one with the first alarm."""
    for row in rows:
        if row is not rows[-1] and row.update != row.alarmed:
            continue
        for cell, shown in row.examples.items():
            if shown and row.quadrants is not None:
                liked = "best" if cell == "slipped" else "least"
                yield Examples(
                    title=f"After update {row.update:,}: {CELLS[cell]}",
                    problems=tuple(_problem(row, item) for item in shown),
                    text=f"Those that the PRM likes {liked}. {len(shown):,} of {getattr(row.quadrants, cell):,}.",
                )


def _problem(row: Watched, shown: ShownSolution) -> ProblemView:
    kind, scores = row.kind or "unbounded", shown.scores
    weakest, first_error = None, None
    if scores is not None:
        weakest = min(scores)
        if row.threshold is not None:
            first_error = next((at for at, score in enumerate(scores) if score < row.threshold), -1)
    card = CardView(
        number=1,
        title="right answer" if shown.right else "wrong answer",
        note="no answer found" if shown.answer is None else f"answer read: {shown.answer}",
        kind=kind,
        threshold=row.threshold,
        score=weakest,
        aggregate="min",
        place=colour.position(weakest, kind, row.threshold),
        aggregates=(),
        first_error=first_error,
        steps=tuple(
            StepView(text=text, score=None if scores is None else scores[at])
            for at, text in enumerate(shown.steps)
        ),
    )
    reference = None if shown.reference is None else f"reference answer {shown.reference}"
    note = " · ".join(part for part in (shown.id, reference) if part)
    return ProblemView(number=1, text=shown.problem, note=note, cards=(card,))


def alarm_words(rows: Sequence[Watched]) -> str:
    """Whether there was an alarm, and when."""
    if (alarmed := rows[-1].alarmed) is not None:
        return f"Alarm after update {alarmed:,}: {_ALARM}."
    fall = fall_words(rows)
    but = f" But {fall}" if fall else ""
    if all(row.rise is None for row in rows):
        return f"No alarm could be raised: there was no PRM with a threshold.{but}"
    first = next(row for row in reversed(rows) if row.rebased or row is rows[0])
    if first.auc is not None and first.auc.low is not None and first.auc.low <= 0.5:
        but += (
            f" After update {first.update:,} it is not shown that the PRM tells right from wrong better than chance (AUC of the weakest step "
            f"{_number(first.auc.value, 100)} %, interval from {_number(first.auc.low, 100)}): do not rely on the alarm."
        )
    return f"No alarm.{but}"


def fall_words(rows: Sequence[Watched]) -> str:
    """That the accuracy is under the first one by more than chance: no PRM raises an alarm about a policy that came apart. Else ""."""
    first, last = rows[0].accuracy, rows[-1].accuracy
    if first.low is None or last.high is None or last.high >= first.low:
        return ""
    return (
        f"the accuracy fell from {_number(first.value, 100)} to {_number(last.value, 100)} %: the policy got worse; "
        "a lower learning rate or a KL weight may hold it."
    )


def _alarm_tile(rows: Sequence[Watched]) -> Tile:
    alarmed, watched = rows[-1].alarmed, any(row.rise is not None for row in rows)
    return Tile(
        label="Alarm",
        value="none" if alarmed is None else f"update {alarmed:,}",
        detail="" if watched else alarm_words(rows),
        sort="bad" if alarmed is not None else "good" if watched and not fall_words(rows) else "",
    )


def _measured(rows: Sequence[Watched], title: str, now: str) -> Table:
    """The first and the last evaluation side by side; what neither has is left out."""
    shown = {"before training": rows[0], now: rows[-1]}
    if rows[-1].update == rows[0].update:
        del shown["before training"]
    cells = {
        what: [_bracket(figure(row, name), 1, 4) for row in shown.values()] for what, name in _FIGURES.items()
    }
    lines = tuple((what, *figures) for what, figures in cells.items() if {*figures} != {ABSENT})
    return Table(title=title, columns=("figure", *shown), rows=lines)


def _bracket(interval: Interval | float | None, scale: float, digits: int) -> str:
    if not isinstance(interval, Interval):
        return ABSENT
    return interval_text(interval.value, interval.low, interval.high, scale, digits)


def _number(value: float | None, scale: float) -> str:
    return ABSENT if value is None else f"{value * scale:.1f}" if scale == 100 else f"{value:.3g}"


def policy_card(facts: CardFacts, rows: Sequence[Watched], *, credit: str, data: str) -> str:
    """The card of a trained policy as Markdown, front matter first. The last evaluation is this checkpoint's."""
    last = rows[-1]
    measured = (
        f"On {amount(last.solutions, 'held-out problem')}, one solution each at the temperature of training.\n\n"
        f"{markdown(_measured(rows, '', 'this checkpoint'))}\n"
        f"{alarm_words(rows)} In brackets: 95 % intervals over problems. The best of several evaluations looks better than it is: measure what "
        "you keep on problems that chose nothing."
    )
    return card_text(
        facts,
        pipeline="text-generation",
        tags=("stepmark", "reinforcement-learning", "reasoning"),
        about=f"A policy: `{facts.base}` after {amount(last.update, 'update')} ({amount(last.rollouts, 'solution')}) of training with the credit method "
        f"`{credit}`, by stepmark. transformers loads it as `AutoModelForCausalLM`.",
        sections={"Measured": measured, "Data": f"Trained on {data}."},
    )
