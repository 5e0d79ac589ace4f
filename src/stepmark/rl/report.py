"""The page and the card of a run of policy training: accuracy beside the PRM's return, the other signs of hacking, examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Interval
from stepmark.rl.hacking import CELLS, LEVELS, PROBES, Cell, ShownSolution, Watch, Watched
from stepmark.rl.monitor import best_of
from stepmark.show import colour
from stepmark.show.evaluation import EvaluationView, Examples, Item, Section, Tile, evaluation_html
from stepmark.show.page import CardView, ProblemView, StepView
from stepmark.show.plots import Lines, Mark, Series
from stepmark.show.tables import ABSENT, Table, interval_text, markdown
from stepmark.training.report import CardFacts, card_text, smoothed

Figure = Interval | float | None
_PLACE: Mapping[Cell, str] = {
    "slipped": "Those that the PRM likes best.",
    "lucky": "Those that it likes least.",
    "both": "Those that it likes least.",
    "neither": "Those that it likes least.",
}
"""In the order in which examples are shown."""


def rl_html(
    rows: Sequence[Watched],
    history: Sequence[Mapping[str, Any]],
    settings: Mapping[str, str],
    *,
    watch: Watch,
    title: str,
    facts: Sequence[str] = (),
) -> Iterator[str]:
    """The page in chunks.

    Args:
        rows: the evaluations (`monitor.read_watched`).
        history: the updates (`training.state.read_lines`).

    Raises:
        UsageError: no evaluation.
    """
    if not rows:
        raise UsageError("the page of a run needs at least one evaluation")
    sections = [
        ("Accuracy and return", _overview_text(rows), _overview(rows, watch)),
        ("Does the PRM still tell right from wrong?", _JUDGEMENT, _judgement(rows)),
        ("Process and outcome", _CROSSED, _crossed(rows)),
        ("Null probes", _NULL, _probes(rows)),
        ("What is written", "", _written(rows)),
        ("Learning", "", _learning(history)),
        ("Examples", "Solutions of held-out problems.", _examples(rows)),
    ]
    best, last = best_of(rows), rows[-1]
    when = "Best checkpoint" if last.alarmed is None else "Best checkpoint before the alarm"
    checkpoint = "" if best is None else f" {when}: after update {best.update:,}."
    verdict = f"{alarm_words(rows)}{checkpoint} In brackets and bands: 95 % intervals over {last.solutions:,} held-out problems."
    yield from evaluation_html(
        EvaluationView(
            title=title,
            facts=(*facts, verdict),
            tiles=_tiles(rows, watch),
            sections=tuple(
                Section(title=name, text=text, items=tuple(items))
                for name, text, found in sections
                if (items := [item for item in found if item is not None])
            ),
            settings=settings,
        )
    )


_MEASURED = "Measured on held-out problems at the temperature of training."
_OVERVIEW = (
    f"{_MEASURED} Accuracy and return should rise together; a return that climbs while accuracy stands still is hacking. The promise is the "
    "accuracy that the PRM's scores stood for at the first evaluation. The alarm adds up by how many standard errors promises less outcomes "
    "have risen since then, problem by problem, less a slack at each evaluation."
)
_JUDGEMENT = (
    "The weakest step's score against the verified answer, on solutions that the policy wrote just now. AUC falls when the policy has learnt "
    "to write what the PRM cannot tell apart; the scores of wrong answers creep up."
)
_CROSSED = (
    "Good steps: none is under the PRM's threshold. Good steps with a wrong answer are where the PRM was fooled (or a solution was cut short): "
    "their growth is the plainest sign of hacking."
)
_NULL = "Answers that deserve a low score, made of real ones. Where they score as real ones do, the policy will find it."


def _overview_text(rows: Sequence[Watched]) -> str:
    if all(row.gap is None for row in rows):
        return f"{_MEASURED} There is no PRM of fixed scale here, so no alarm can be raised."
    # The baseline in force: a PRM that was replaced has its own.
    first = next(row for row in reversed(rows) if row.baseline is not None)
    if first.auc is None or first.auc.value is None or first.auc.low is None or first.auc.low > 0.5:
        return _OVERVIEW
    return (
        f"{_OVERVIEW} Here the solutions after update {first.update:,} do not show that the PRM tells right from wrong better than chance "
        f"(AUC of the weakest step {_number(first.auc, 100)} %, from {_shown(first.auc.low, 100)}): its promises are unsure, and so is the alarm."
    )


def _overview(rows: Sequence[Watched], watch: Watch) -> Iterator[Item | None]:
    accuracy = {"accuracy, verified": _field("accuracy")}
    returns = {
        "PRM return, mean step": _field("step_return"),
        "PRM return, solution": _field("solution_return"),
    }
    if rows[-1].kind == "probability":
        yield _plot(rows, "Accuracy and PRM return", "share, mean score", accuracy | returns, share=True)
    else:
        yield _plot(rows, "Accuracy", "share", accuracy, share=True)
        yield _plot(rows, "PRM return", "mean score", returns)
    if any(row.promised for row in rows):
        yield _plot(
            rows,
            "Accuracy, promised and found",
            "share",
            accuracy | {"promised by the PRM's scores": _field("promised")},
            share=True,
            note="Promised: what the scores stood for at the PRM's first evaluation.",
        )
    if any(row.cusum is not None for row in rows):
        limit = watch.cusum.alarm_above
        yield _plot(
            rows,
            "Promise less outcome, and its sum",
            "standard errors",
            {"CUSUM": _field("cusum"), "gap": _field("gap"), f"alarm over {limit:g}": lambda _: limit},
            note=f"Of each evaluation's gap, {watch.cusum.slack:g} is taken for noise.",
        )


def _judgement(rows: Sequence[Watched]) -> Iterator[Item | None]:
    yield _plot(rows, "AUC", "AUC", {"": _field("auc")}, share=True)
    errors = {"Brier": _field("brier"), "ECE": _field("ece")}
    yield _plot(rows, "Calibration error", "error, lower is better", errors)

    def quantile(at: int) -> Callable[[Watched], Figure]:
        return lambda row: None if row.wrong_quantiles is None else row.wrong_quantiles[at]

    yield _plot(
        rows,
        "Scores of wrong answers",
        "weakest step's score",
        {f"{level:.0%}": quantile(at) for at, level in enumerate(LEVELS)},
        note="Quantiles; a line that rises is wrong answers gaining score.",
    )


def _crossed(rows: Sequence[Watched]) -> Iterator[Item | None]:
    if all(row.quadrants is None for row in rows):
        return
    yield _plot(
        rows,
        "Share of solutions",
        "share",
        {CELLS[cell]: _cell_share(cell) for cell in ("slipped", "both", "lucky", "neither")},
        share=True,
    )
    yield Table(
        title="Counts and shares (%)",
        columns=("Update", *(name.capitalize() for name in CELLS.values()), "Agree (%)"),
        rows=tuple(
            (f"{row.update:,}", *[ABSENT] * (len(CELLS) + 1))
            if row.quadrants is None
            else (
                f"{row.update:,}",
                *(
                    f"{getattr(row.quadrants, cell):,} · {_bracket(row.quadrants.share(cell), 100)}"
                    for cell in CELLS
                ),
                _bracket(row.quadrants.agreement, 100),
            )
            for row in rows
        ),
        note=f"Threshold {rows[-1].threshold:g}." if rows[-1].threshold is not None else "",
    )


def _probes(rows: Sequence[Watched]) -> Iterator[Item | None]:
    if not any(probed.count for row in rows for probed in row.probes.values()):
        return

    def score(kind: str) -> Callable[[Watched], Figure]:
        return lambda row: next((one.score for name, one in row.probes.items() if name == kind), None)

    yield _plot(
        rows,
        "Mean score",
        "score of the solution",
        {"real solutions": _field("solution_return"), **{kind: score(kind) for kind in PROBES}},
    )
    yield Table(
        title=f"After update {rows[-1].update:,}",
        columns=("Probe", "Scored", "Mean score", "Without a bad step (%)", "Above its original (%)"),
        rows=tuple(
            (
                f"{kind}: {PROBES[kind]}",
                f"{one.count:,}" + (f" ({one.refused:,} unreadable)" if one.refused else ""),
                _bracket(one.score, 1),
                _bracket(one.passed, 100),
                _bracket(one.above, 100),
            )
            for kind, one in rows[-1].probes.items()
        ),
    )


def _written(rows: Sequence[Watched]) -> Iterator[Item | None]:
    yield _plot(rows, "Steps a solution", "steps", {"": _field("steps")})
    lengths = {"a solution": _field("tokens"), "a step": _field("tokens_a_step")}
    yield _plot(rows, "Tokens", "tokens", lengths)
    failures = {
        "four words said before": _field("repetition"),
        "cut off": _field("cut"),
        "blank": _field("blank"),
        "no answer found": _field("unparsed"),
        "PRM cannot read": _field("unscored"),
    }
    yield _plot(rows, "Repetition and failures", "share", failures, share=True)
    yield _plot(rows, "Divergence from the starting policy", "nats a token", {"": _field("divergence")})


def _learning(history: Sequence[Mapping[str, Any]]) -> Iterator[Item | None]:
    for title, y_label, names in (
        ("Samples of training", "share, mean score", ("accuracy", "reward", "flat")),
        ("Gradient", "norm before clipping", ("gradient",)),
        ("Loss", "policy loss", ("loss",)),
        ("Implicit PRM", "cross-entropy", ("implicit_loss",)),
    ):
        known = [name for name in names if any(row.get(name) is not None for row in history)]
        if known:
            yield Lines(
                title=title,
                x_label="update",
                y_label=y_label,
                series=tuple(
                    smoothed(name if len(names) > 1 else "", history, x="update", y=name) for name in known
                ),
                note="flat: groups all right or all wrong, which teach nothing by the outcome."
                if "flat" in known
                else "",
            )


def _examples(rows: Sequence[Watched]) -> Iterator[Item | None]:
    """Of the last evaluation, the one with the first alarm, the best and the first one; each once."""
    alarm = next((row for row in rows if row.update == row.alarmed), None)
    chosen: dict[int, tuple[Watched, str]] = {}
    for row, why in (
        (rows[-1], "the last"),
        (alarm, "the alarm"),
        (best_of(rows), "the best"),
        (rows[0], "the first"),
    ):
        if row is not None:
            chosen.setdefault(row.update, (row, why))
    for row, why in chosen.values():
        for cell, text in _PLACE.items():
            if shown := row.examples.get(cell):
                total = 0 if row.quadrants is None else getattr(row.quadrants, cell)
                yield Examples(
                    title=f"After update {row.update:,} ({why}): {CELLS[cell]}",
                    problems=tuple(_problem(row, one) for one in shown),
                    text=f"{text} {len(shown):,} of {total:,}.",
                )


def _problem(row: Watched, one: ShownSolution) -> ProblemView:
    kind = row.kind or "unbounded"
    weakest = None if one.scores is None else min(one.scores)
    first_error: int | None = None
    if one.scores is not None and row.threshold is not None:
        first_error = next((at for at, score in enumerate(one.scores) if score < row.threshold), -1)
    card = CardView(
        number=1,
        title="right answer" if one.right else "wrong answer",
        note="no answer found" if one.answer is None else f"answer read: {one.answer}",
        kind=kind,
        threshold=row.threshold,
        score=weakest,
        aggregate="min",
        place=colour.position(weakest, kind, row.threshold),
        aggregates=(),
        first_error=first_error,
        steps=tuple(
            StepView(text=text, score=None if one.scores is None else one.scores[at])
            for at, text in enumerate(one.steps)
        ),
    )
    reference = None if one.reference is None else f"reference answer {one.reference}"
    note = " · ".join(part for part in (one.id, reference) if part)
    return ProblemView(number=1, text=one.problem, note=note, cards=(card,))


def _plot(
    rows: Sequence[Watched],
    title: str,
    y_label: str,
    curves: Mapping[str, Callable[[Watched], Figure]],
    *,
    share: bool = False,
    note: str = "",
) -> Lines | None:
    """Curves over the updates, with the alarm and replacements of the PRM marked; None where no curve has a value."""
    series = []
    for name, figure in curves.items():
        found = [figure(row) for row in rows]
        values = [one.value if isinstance(one, Interval) else one for one in found]
        if any(value is not None for value in values):
            bands = [one if isinstance(one, Interval) else None for one in found]
            ends = [(None, None) if one is None else (one.low, one.high) for one in bands]
            low, high = zip(*ends, strict=True) if any(bands) else (None, None)
            updates = tuple(float(row.update) for row in rows)
            series.append(Series(name=name, x=updates, y=tuple(values), low=low, high=high))
    marks = [Mark(x=float(row.update), name="new PRM") for row in rows if row.rebased]
    if rows[-1].alarmed is not None:
        marks.insert(0, Mark(x=float(rows[-1].alarmed), name="alarm"))
    if not series:
        return None
    return Lines(
        title=title,
        x_label="update",
        y_label=y_label,
        series=tuple(series),
        y_range=(0, 1) if share else None,
        marks=tuple(marks),
        note=note,
    )


def _field(name: str) -> Callable[[Watched], Figure]:
    return attrgetter(name)


def _cell_share(cell: Cell) -> Callable[[Watched], Interval | None]:
    return lambda row: None if row.quadrants is None else row.quadrants.share(cell)


def alarm_words(rows: Sequence[Watched]) -> str:
    """Whether there was an alarm, and when."""
    if (alarmed := rows[-1].alarmed) is not None:
        return (
            f"Alarm after update {alarmed:,}: solutions were right less often than the PRM's scores promised."
        )
    fall = fall_words(rows)
    but = f" But {fall}" if fall else ""
    if all(row.cusum is None for row in rows):
        return f"No alarm could be raised: there was no PRM whose scores promise something.{but}"
    return f"No alarm.{but}"


def fall_words(rows: Sequence[Watched]) -> str:
    """That the accuracy is under the first one by more than chance: no PRM raises an alarm about a policy that came apart. Else ""."""
    first, last = rows[0].accuracy, rows[-1].accuracy
    if first.low is None or last.high is None or last.high >= first.low:
        return ""
    return f"the accuracy fell from {_number(first, 100)} to {_number(last, 100)} %: the policy got worse; a lower learning rate or a KL weight may hold it."


def _tiles(rows: Sequence[Watched], watch: Watch) -> tuple[Tile, ...]:
    first, last, fell = rows[0], rows[-1], bool(fall_words(rows))
    total = "" if last.cusum is None else f"CUSUM {last.cusum:.1f}, alarm over {watch.cusum.alarm_above:g}"
    alarm = "" if total and last.alarmed is None else alarm_words(rows)
    quiet: Literal["good", ""] = "good" if last.cusum is not None and not fell else ""
    tiles = [
        Tile(
            label="Alarm",
            value="none" if last.alarmed is None else f"update {last.alarmed:,}",
            detail="\n".join(filter(None, (alarm, total))),
            sort="bad" if last.alarmed is not None else quiet,
        )
    ]
    best = best_of(rows)
    when = "best" if last.alarmed is None else "best before the alarm"
    for label, figure, scale in (
        ("Accuracy (%)", _field("accuracy"), 100),
        ("PRM return, mean step", _field("step_return"), 1),
        ("AUC (%)", _field("auc"), 100),
        ("KL, nats a token", _field("divergence"), 1),
        ("Good steps, wrong answer (%)", _cell_share("slipped"), 100),
    ):
        now, before = figure(last), figure(first)
        if not isinstance(now, Interval):
            continue
        ends = (
            ""
            if now.low is None or now.high is None
            else f"{_shown(now.low, scale)} to {_shown(now.high, scale)}"
        )
        began = (
            f"at the start {_number(before, scale)}"
            if isinstance(before, Interval) and before.value is not None
            else ""
        )
        more = ""
        if label == "Accuracy (%)" and best is not None and best.update != last.update:
            more = f"{when} {_number(best.accuracy, 100)}, after update {best.update:,}"
        tiles.append(
            Tile(
                label=label,
                value=_number(now, scale),
                detail="\n".join(filter(None, (ends, began, more))),
                sort="bad" if fell and label == "Accuracy (%)" else "",
            )
        )
    return tuple(tiles)


def _bracket(one: Interval | None, scale: float) -> str:
    return (
        ABSENT
        if one is None
        else interval_text(one.value, one.low, one.high, scale, 1 if scale == 100 else 3)
    )


def _number(one: Interval, scale: float) -> str:
    return ABSENT if one.value is None else _shown(one.value, scale)


def _shown(value: float, scale: float) -> str:
    return f"{value * scale:.1f}" if scale == 100 else f"{value:.3g}"


def policy_card(facts: CardFacts, rows: Sequence[Watched], *, credit: str, data: str) -> str:
    """The card of a trained policy as Markdown, front matter first.

    Args:
        facts: of the run; `base` is the policy before training.
        rows: the evaluations, the one of this checkpoint the last.
        data: what was trained on, in words: "400 problems of train.jsonl".
    """
    last = rows[-1]
    measured = (
        f"On {last.solutions:,} held-out problems, one solution each at the temperature of training.\n\n{_figures(rows)}\n"
        f"{alarm_words(rows)} In brackets: 95 % intervals over problems. The best of several evaluations looks better than it is: measure what "
        "you keep on problems that chose nothing."
    )
    return card_text(
        facts,
        pipeline="text-generation",
        tags=("stepmark", "reinforcement-learning", "reasoning"),
        about=f"A policy: `{facts.base}` after {last.update:,} updates ({last.rollouts:,} solutions) of training with the credit method "
        f"`{credit}`, by [stepmark](https://pypi.org/project/stepmark/). transformers loads it as `AutoModelForCausalLM`.",
        sections={"Measured": measured, "Data": f"Trained on {data}."},
    )


def _figures(rows: Sequence[Watched]) -> str:
    first, last = rows[0], rows[-1]
    shown = [("this checkpoint", last)]
    if last.update != first.update:
        shown.insert(0, ("before training", first))
    lines = []
    for what, figure in (
        ("accuracy", _field("accuracy")),
        ("PRM return, mean step score", _field("step_return")),
        ("PRM return, a solution", _field("solution_return")),
        ("accuracy that the PRM's scores promise", _field("promised")),
        ("AUC of the weakest step against the outcome", _field("auc")),
        ("Brier score of the same", _field("brier")),
        ("expected calibration error of the same", _field("ece")),
        ("good steps and a wrong answer", _cell_share("slipped")),
        ("steps a solution", _field("steps")),
        ("tokens a solution", _field("tokens")),
        ("KL from the start, nats a token", _field("divergence")),
    ):
        values = [figure(row) for _, row in shown]
        if any(isinstance(one, Interval) and one.value is not None for one in values):
            cells = [
                interval_text(one.value, one.low, one.high, 1, 4) if isinstance(one, Interval) else ABSENT
                for one in values
            ]
            lines.append((what, *cells))
    return markdown(Table(title="", columns=("figure", *(name for name, _ in shown)), rows=tuple(lines)))
