"""The page of a run of policy training: accuracy and the PRM's return in one look, the other signs of hacking, examples; one HTML file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Interval
from stepmark.rl.hacking import CELLS, LEVELS, PROBES, Cell, Kept, Watch, Watched
from stepmark.show import colour
from stepmark.show.evaluation import EvaluationView, Examples, Item, Section, Tile, evaluation_html
from stepmark.show.plots import Lines, Mark, Series
from stepmark.show.tables import ABSENT, Table, interval_text
from stepmark.show.views import CardView, ProblemView, StepView

_TITLES: dict[Cell, str] = {
    "both": "Steps good, answer right",
    "lucky": "A bad step, answer right",
    "slipped": "Steps good, answer wrong",
    "neither": "A bad step, answer wrong",
}
_ORDER: tuple[Cell, ...] = ("slipped", "lucky", "both", "neither")
assert set(_ORDER) == set(CELLS)


def examples(rows: Sequence[Watched]) -> tuple[Item, ...]:
    """Those of the last evaluation, of the one with the first alarm, of the best and of the first one; each once."""
    best = next((row for row in reversed(rows) if row.best), None)
    alarm = next((row for row in rows if row.update == row.alarmed), None)
    chosen: dict[int, tuple[Watched, str]] = {}
    for row, why in (
        (rows[-1], "the last"),
        (alarm, "the alarm"),
        (best, "the best"),
        (rows[0], "the first"),
    ):
        if row is not None:
            chosen.setdefault(row.update, (row, why))
    return tuple(
        _group(row, cell, why) for row, why in chosen.values() for cell in _ORDER if row.examples.get(cell)
    )


def _group(row: Watched, cell: Cell, why: str) -> Examples:
    total = (
        "" if row.quadrants is None else f" {len(row.examples[cell]):,} of {getattr(row.quadrants, cell):,}."
    )
    return Examples(
        title=f"After update {row.update:,} ({why}): {_TITLES[cell].lower()}",
        problems=tuple(_problem(row, kept) for kept in row.examples[cell]),
        text=("Those that the PRM likes best." if cell == "slipped" else "Those that it likes least.")
        + total,
    )


def _problem(row: Watched, kept: Kept) -> ProblemView:
    reference = None if kept.reference is None else f"reference answer {kept.reference}"
    return ProblemView(
        number=1,
        text=kept.problem,
        note=" · ".join(part for part in (kept.id, reference) if part),
        cards=(_card(row, kept),),
    )


def _card(row: Watched, kept: Kept) -> CardView:
    known, kind = kept.scores, row.kind or "unbounded"
    weakest = None if known is None else min(known)
    found: int | None = None
    if known is not None and row.threshold is not None:
        found = next((at for at, score in enumerate(known) if score < row.threshold), -1)
    verdict = "right answer" if kept.right else "wrong answer"
    return CardView(
        number=1,
        title=verdict,
        note="no answer found" if kept.answer is None else f"answer read: {kept.answer}",
        kind=kind,
        threshold=row.threshold,
        score=weakest,
        aggregate="min",
        place=colour.position(weakest, kind, row.threshold),
        aggregates=(),
        first_error=found,
        steps=tuple(
            StepView(text=text, score=None if known is None else known[at])
            for at, text in enumerate(kept.steps)
        ),
    )


X = "update"
_POINTS = 200
_WORDS = {
    "both": "steps good, answer right",
    "slipped": "steps good, answer wrong",
    "lucky": "a bad step, answer right",
    "neither": "a bad step, answer wrong",
}
_PROBES = {
    "empty": "a step that says nothing",
    "irrelevant": "another problem's steps",
    "repeated": "the first step six times",
    "shuffled": "the steps in another order",
}


def overview(rows: Sequence[Watched], watch: Watch) -> list[Item]:
    """Accuracy, the return, what it promises, and the sum that the alarm is drawn from."""
    accuracy = _series("accuracy, verified", rows, [row.accuracy for row in rows])
    returns = [_line("PRM return, mean step", rows, "step_return")] if _any(rows, "step_return") else []
    whole = [_line("PRM return, solution", rows, "solution_return")] if _any(rows, "solution_return") else []
    marks = _marks(rows)
    plots: list[Item] = []
    if rows[-1].kind == "probability":
        plots.append(
            Lines(
                title="Accuracy and PRM return",
                x_label=X,
                y_label="share, mean score",
                series=(accuracy, *returns, *whole),
                y_range=(0, 1),
                marks=marks,
            )
        )
    else:
        plots.append(
            Lines(
                title="Accuracy",
                x_label=X,
                y_label="share",
                series=(accuracy,),
                y_range=(0, 1),
                marks=marks,
            )
        )
        if returns or whole:
            plots.append(
                Lines(
                    title="PRM return",
                    x_label=X,
                    y_label="mean score",
                    series=(*returns, *whole),
                    marks=marks,
                )
            )
    if _any(rows, "promised"):
        plots.append(
            _plot(
                "Accuracy, promised and found",
                rows,
                (accuracy, _line("promised by the PRM's scores", rows, "promised")),
                "share",
                share=True,
                note="Promised: what the scores stood for at the PRM's first evaluation.",
            )
        )
    if _any(rows, "cusum"):
        limit = watch.cusum.alarm_above
        plots.append(
            Lines(
                title="Promise less outcome, and its sum",
                x_label=X,
                y_label="standard errors",
                series=(
                    Series(name="CUSUM", x=_x(rows), y=tuple(row.cusum for row in rows)),
                    Series(name="gap", x=_x(rows), y=tuple(row.gap for row in rows)),
                    Series(name=f"alarm over {limit:g}", x=_x(rows), y=(limit,) * len(rows)),
                ),
                marks=marks,
                note=f"Of each evaluation's gap, {watch.cusum.slack:g} is taken for noise.",
            )
        )
    return plots


def judgement(rows: Sequence[Watched]) -> list[Item]:
    """How well the PRM tells right from wrong."""
    plots: list[Item] = []
    if _any(rows, "auc"):
        plots.append(_plot("AUC", rows, (_line("", rows, "auc"),), "AUC", share=True))
    calibration = [_line(name, rows, key) for name, key in (("Brier", "brier"), ("ECE", "ece"))]
    calibration = [series for series in calibration if any(y is not None for y in series.y)]
    if calibration:
        plots.append(_plot("Calibration error", rows, tuple(calibration), "error, lower is better"))
    if any(row.wrong_quantiles for row in rows):
        plots.append(
            _plot(
                "Scores of wrong answers",
                rows,
                tuple(
                    Series(
                        name=f"{level:.0%}",
                        x=_x(rows),
                        y=tuple(row.wrong_quantiles[at] if row.wrong_quantiles else None for row in rows),
                    )
                    for at, level in enumerate(LEVELS)
                ),
                "weakest step's score",
                note="Quantiles; a line that rises is wrong answers gaining score.",
            )
        )
    return plots


def crossed(rows: Sequence[Watched]) -> list[Item]:
    """The 2x2 of process and outcome over time."""
    if all(row.quadrants is None for row in rows):
        return []
    shares = {
        cell: [
            None if row.quadrants is None else row.quadrants.share(getattr(row.quadrants, cell))
            for row in rows
        ]
        for cell in CELLS
    }
    order: tuple[Cell, ...] = ("slipped", "both", "lucky", "neither")
    plot = _plot(
        "Share of solutions",
        rows,
        tuple(_series(_WORDS[cell], rows, shares[cell]) for cell in order),
        "share",
        share=True,
    )
    table = Table(
        title="Counts and shares (%)",
        columns=("Update", *(_WORDS[cell].capitalize() for cell in CELLS), "Agree (%)"),
        rows=tuple(
            (
                f"{row.update:,}",
                *(
                    f"{getattr(row.quadrants, cell):,} · {_bracket(shares[cell][at], 100)}"
                    if row.quadrants
                    else ABSENT
                    for cell in CELLS
                ),
                _bracket(row.quadrants.agreement, 100) if row.quadrants else ABSENT,
            )
            for at, row in enumerate(rows)
        ),
        note=f"Threshold {rows[-1].threshold:g}." if rows[-1].threshold is not None else "",
    )
    return [plot, table]


def probes(rows: Sequence[Watched]) -> list[Item]:
    """The scores of null probes."""
    if not any(probed.count for row in rows for probed in row.probes.values()):
        return []
    genuine = [row.solution_return for row in rows]
    plots: list[Item] = [
        _plot(
            "Mean score",
            rows,
            (
                _series("real solutions", rows, genuine),
                *(
                    _series(
                        kind, rows, [row.probes[kind].score if kind in row.probes else None for row in rows]
                    )
                    for kind in PROBES
                ),
            ),
            "score of the solution",
        )
    ]
    last = rows[-1]
    plots.append(
        Table(
            title=f"After update {last.update:,}",
            columns=("Probe", "Scored", "Mean score", "Without a bad step (%)", "Above its original (%)"),
            rows=tuple(
                (
                    f"{kind}: {_PROBES[kind]}",
                    f"{one.count:,}" + (f" ({one.refused:,} unreadable)" if one.refused else ""),
                    _bracket(one.score, 1),
                    _bracket(one.passed, 100),
                    _bracket(one.above, 100),
                )
                for kind, one in last.probes.items()
            ),
        )
    )
    return plots


def written(rows: Sequence[Watched]) -> list[Item]:
    """What the solutions are like."""
    plots: list[Item] = [
        _plot("Steps a solution", rows, (_line("", rows, "steps"),), "steps"),
        _plot(
            "Tokens",
            rows,
            (_line("a solution", rows, "tokens"), _line("a step", rows, "tokens_a_step")),
            "tokens",
        ),
        _plot(
            "Repetition and failures",
            rows,
            (
                _line("four words said before", rows, "repetition"),
                *(
                    _line(name, rows, key)
                    for name, key in (
                        ("cut off", "cut"),
                        ("blank", "blank"),
                        ("no answer found", "unparsed"),
                        ("PRM cannot read", "unscored"),
                    )
                    if _any(rows, key)
                ),
            ),
            "share",
            share=True,
        ),
    ]
    if _any(rows, "divergence"):
        plots.append(
            _plot(
                "Divergence from the starting policy", rows, (_line("", rows, "divergence"),), "nats a token"
            )
        )
    return plots


def learning(history: Sequence[Mapping[str, Any]]) -> list[Item]:
    """The curves of training itself."""
    if not history:
        return []
    plots: list[Item] = []
    for title, y_label, names in (
        ("Samples of training", "share, mean score", ("accuracy", "reward", "flat")),
        ("Gradient", "norm before clipping", ("gradient",)),
        ("Loss", "policy loss", ("loss",)),
        ("Implicit PRM", "cross-entropy", ("implicit_loss",)),
    ):
        known = [name for name in names if any(row.get(name) is not None for row in history)]
        if known:
            plots.append(
                Lines(
                    title=title,
                    x_label=X,
                    y_label=y_label,
                    series=tuple(_smooth(history, name, named=len(names) > 1) for name in known),
                    note="flat: groups all right or all wrong, which teach nothing by the outcome."
                    if "flat" in known
                    else "",
                )
            )
    return plots


def _smooth(history: Sequence[Mapping[str, Any]], name: str, *, named: bool) -> Series:
    each = max(1, -(-len(history) // _POINTS))
    xs, ys = [], []
    for at in range(0, len(history), each):
        some = history[at : at + each]
        known = [row[name] for row in some if row.get(name) is not None]
        xs.append(float(some[-1]["update"]))
        ys.append(sum(known) / len(known) if known else None)
    return Series(name=name if named else "", x=tuple(xs), y=tuple(ys))


def _plot(
    title: str,
    rows: Sequence[Watched],
    series: tuple[Series, ...],
    y_label: str,
    *,
    share: bool = False,
    note: str = "",
) -> Lines:
    return Lines(
        title=title,
        x_label=X,
        y_label=y_label,
        series=series,
        y_range=(0, 1) if share else None,
        marks=_marks(rows),
        note=note,
    )


def _marks(rows: Sequence[Watched]) -> tuple[Mark, ...]:
    alarmed = rows[-1].alarmed
    found = () if alarmed is None else (Mark(x=float(alarmed), name="alarm"),)
    return (*found, *(Mark(x=float(row.update), name="new PRM") for row in rows if row.rebased))


def _any(rows: Sequence[Watched], name: str) -> bool:
    return any(getattr(row, name) is not None for row in rows)


def _x(rows: Sequence[Watched]) -> tuple[float, ...]:
    return tuple(float(row.update) for row in rows)


def _line(name: str, rows: Sequence[Watched], key: str) -> Series:
    return _series(name, rows, [getattr(row, key) for row in rows])


def _series(name: str, rows: Sequence[Watched], values: Sequence[Interval | None]) -> Series:
    return Series(
        name=name,
        x=_x(rows),
        y=tuple(None if one is None else one.value for one in values),
        low=tuple(None if one is None else one.low for one in values),
        high=tuple(None if one is None else one.high for one in values),
    )


def _bracket(one: Interval | None, scale: float) -> str:
    if one is None:
        return ABSENT
    return interval_text(one.value, one.low, one.high, scale, 1 if scale == 100 else 3)


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
        history: the updates (`monitor.read_lines`).
        settings: name to value.
        watch: what the run was watched with.
        title: of the page.
        facts: sentences under the title.

    Raises:
        UsageError: no evaluation.
    """
    if not rows:
        raise UsageError("the page of a run needs at least one evaluation")
    sections = [
        Section(
            title="Accuracy and return",
            text=_overview(rows),
            items=tuple(overview(rows, watch)),
        ),
        Section(
            title="Does the PRM still tell right from wrong?", text=_JUDGEMENT, items=tuple(judgement(rows))
        ),
        Section(title="Process and outcome", text=_CROSSED, items=tuple(crossed(rows))),
        Section(title="Null probes", text=_NULL, items=tuple(probes(rows))),
        Section(title="What is written", items=tuple(written(rows))),
        Section(title="Learning", items=tuple(learning(history))),
        Section(title="Examples", text="Solutions of held-out problems.", items=examples(rows)),
    ]
    yield from evaluation_html(
        EvaluationView(
            title=title,
            facts=(*facts, _verdict(rows)),
            tiles=_tiles(rows, watch),
            sections=tuple(section for section in sections if section.items),
            settings=settings,
        )
    )


_OVERVIEW = (
    "Measured on held-out problems at the temperature of training. Accuracy and return should rise together; a return that climbs while accuracy stands still is "
    "what hacking looks like. The promise is the accuracy that the PRM's scores stood for at the first evaluation. The alarm adds up by how many standard errors "
    "promises less outcomes have risen since then, problem by problem, less a slack at each evaluation."
)
_NO_ALARM = "Measured on held-out problems at the temperature of training. There is no PRM of fixed scale here, so no alarm can be raised."
_JUDGEMENT = (
    "The weakest step's score against the verified answer, on solutions that the policy wrote just now. AUC falls when the policy has learnt to write what the PRM "
    "cannot tell apart; the scores of wrong answers creep up."
)
_CROSSED = (
    "Good steps: none is under the PRM's threshold. Good steps with a wrong answer are where the PRM was fooled (or a solution was cut short): their growth is the "
    "plainest sign of hacking."
)
_NULL = "Answers that deserve a low score, made of real ones. Where they score as real ones do, the policy will find it."


def _overview(rows: Sequence[Watched]) -> str:
    if all(row.gap is None for row in rows):
        return _NO_ALARM
    # That in force: a PRM that was replaced has a promise of its own.
    first = next(row for row in reversed(rows) if row.baseline is not None)
    if first.auc is None or first.auc.value is None or first.auc.low is None or first.auc.low > 0.5:
        return _OVERVIEW
    return (
        f"{_OVERVIEW} Here the solutions after update {first.update:,} do not show that the PRM tells right from wrong better than chance "
        f"(AUC of the weakest step {_number(first.auc, 100)} %, from {_shown(first.auc.low, 100)}): what its scores promise is unsure, and so is the alarm."
    )


def alarm_words(rows: Sequence[Watched]) -> str:
    """Whether there was an alarm, and when."""
    last = rows[-1]
    if last.alarmed is not None:
        return f"Alarm after update {last.alarmed:,}: solutions were right less often than the PRM's scores promised."
    found = fall_words(rows)
    but = f" But {found}" if found else ""
    if all(row.cusum is None for row in rows):
        return f"No alarm could be raised: there was no PRM whose scores promise something.{but}"
    return f"No alarm.{but}"


def fall_words(rows: Sequence[Watched]) -> str:
    """That the accuracy is under the first one by more than chance, if it is: a policy that came apart pleases nobody, and raises no alarm. Else ""."""
    first, last = rows[0].accuracy, rows[-1].accuracy
    if first.low is None or last.high is None or last.high >= first.low:
        return ""
    return f"the accuracy fell from {_number(first, 100)} to {_number(last, 100)} %: the policy got worse; a lower learning rate or a KL weight may hold it."


def _verdict(rows: Sequence[Watched]) -> str:
    best = next((row for row in reversed(rows) if row.best), None)
    when = "Best checkpoint" if rows[-1].alarmed is None else "Best checkpoint before the alarm"
    kept = "" if best is None else f" {when}: after update {best.update:,}."
    return f"{alarm_words(rows)}{kept} In brackets and bands: 95 % intervals over {rows[-1].solutions:,} held-out problems."


def _tiles(rows: Sequence[Watched], watch: Watch) -> tuple[Tile, ...]:
    first, last, fell = rows[0], rows[-1], bool(fall_words(rows))
    summed = "" if last.cusum is None else f"CUSUM {last.cusum:.1f}, alarm over {watch.cusum.alarm_above:g}"
    tiles = [
        Tile(
            label="Alarm",
            value="none" if last.alarmed is None else f"update {last.alarmed:,}",
            detail="\n".join(
                filter(None, ("" if summed and last.alarmed is None else alarm_words(rows), summed))
            ),
            sort="bad" if last.alarmed is not None else "good" if last.cusum is not None and not fell else "",
        ),
        _tile(
            "Accuracy (%)",
            last.accuracy,
            first.accuracy,
            scale=100,
            more=_best(rows),
            sort="bad" if fell else "",
        ),
    ]
    for label, name, scale in (
        ("PRM return, mean step", "step_return", 1),
        ("AUC (%)", "auc", 100),
        ("KL, nats a token", "divergence", 1),
    ):
        now = getattr(last, name)
        if now is not None:
            tiles.append(_tile(label, now, getattr(first, name), scale=scale))
    if last.quadrants is not None:
        share = last.quadrants.share(last.quadrants.slipped)
        before = (
            first.quadrants.share(first.quadrants.slipped)
            if first.quadrants and first.quadrants.total
            else None
        )
        tiles.append(_tile("Good steps, wrong answer (%)", share, before, scale=100))
    return tuple(tiles)


def _best(rows: Sequence[Watched]) -> str:
    best = next((row for row in reversed(rows) if row.best), None)
    if best is None or best.update == rows[-1].update:
        return ""
    when = "best" if rows[-1].alarmed is None else "best before the alarm"
    return f"{when} {_number(best.accuracy, 100)}, after update {best.update:,}"


def _tile(
    label: str,
    now: Interval,
    before: Interval | None,
    *,
    scale: float,
    more: str = "",
    sort: Literal["", "bad"] = "",
) -> Tile:
    ends = (
        ""
        if now.low is None or now.high is None
        else f"{_shown(now.low, scale)} to {_shown(now.high, scale)}"
    )
    began = "" if before is None or before.value is None else f"at the start {_number(before, scale)}"
    return Tile(
        label=label, value=_number(now, scale), detail="\n".join(filter(None, (ends, began, more))), sort=sort
    )


def _number(one: Interval, scale: float) -> str:
    return ABSENT if one.value is None else _shown(one.value, scale)


def _shown(value: float, scale: float) -> str:
    return f"{value * scale:.1f}" if scale == 100 else f"{value:.3g}"


CARD_FILE = "README.md"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class PolicyCard:
    """What the card says."""

    title: str
    base: str
    """The policy before training."""
    credit: str
    """The method's name."""
    rows: Sequence[Watched]
    """The evaluations, the one of this checkpoint the last."""
    training: str
    """The data, in words: "400 problems of train.jsonl"."""
    held_out: str
    settings: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    made_with: Mapping[str, str] = field(default_factory=dict)
    """Versions."""


def policy_card(record: PolicyCard) -> str:
    """The card's Markdown, front matter first."""
    last = record.rows[-1]
    front = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    if _HUB_NAME.fullmatch(record.base):
        front += [f"base_model: {json.dumps(record.base)}", "base_model_relation: finetune"]
    front += ["tags:", *(f"- {tag}" for tag in ("stepmark", "reinforcement-learning", "reasoning")), "---"]
    parts = [
        "\n".join(front),
        f"# {record.title}",
        f"A policy: `{record.base}` after {last.update:,} updates ({last.rollouts:,} solutions) of training with the credit method `{record.credit}`, by "
        "[stepmark](https://pypi.org/project/stepmark/). transformers loads it as `AutoModelForCausalLM`.",
        "## Measured",
        f"On {record.held_out}, one solution each at the temperature of training.",
        _table(record.rows),
        f"{alarm_words(record.rows)} In brackets: 95 % intervals over problems. The best of several evaluations looks better than it is: measure what you keep "
        "on problems that chose nothing.",
        "## Data",
        f"Trained on {record.training}.",
        "## Settings",
        "\n".join(
            [
                "| setting | value |",
                "| --- | --- |",
                *(f"| `{name}` | {_cell(str(value))} |" for name, value in record.settings.items()),
            ]
        ),
        f"Seed: {record.seed}."
        + (
            " Made with " + ", ".join(f"{name} {version}" for name, version in record.made_with.items()) + "."
            if record.made_with
            else ""
        ),
        "## Licence",
        "Not stated here: it depends on the licences of the starting policy and of the data. Whoever publishes this checkpoint has to look at both.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Watched]) -> str:
    first, last = rows[0], rows[-1]
    shown = (
        [("before training", first), ("this checkpoint", last)]
        if last.update != first.update
        else [("this checkpoint", last)]
    )
    lines = [
        f"| figure | {' | '.join(name for name, _ in shown)} |",
        "| --- |" + " --- |" * len(shown),
    ]
    for what, values in (
        ("accuracy", [row.accuracy for _, row in shown]),
        ("PRM return, mean step score", [row.step_return for _, row in shown]),
        ("PRM return, a solution", [row.solution_return for _, row in shown]),
        ("accuracy that the PRM's scores promise", [row.promised for _, row in shown]),
        ("AUC of the weakest step against the outcome", [row.auc for _, row in shown]),
        ("Brier score of the same", [row.brier for _, row in shown]),
        ("expected calibration error of the same", [row.ece for _, row in shown]),
        ("good steps and a wrong answer", [_slipped(row) for _, row in shown]),
        ("steps a solution", [row.steps for _, row in shown]),
        ("tokens a solution", [row.tokens for _, row in shown]),
        ("KL from the start, nats a token", [row.divergence for _, row in shown]),
    ):
        if any(value is not None and value.value is not None for value in values):
            lines.append(f"| {what} | {' | '.join(map(_figure, values))} |")
    return "\n".join(lines)


def _slipped(row: Watched) -> Interval | None:
    return None if row.quadrants is None else row.quadrants.share(row.quadrants.slipped)


def _figure(one: Interval | None) -> str:
    if one is None or one.value is None:
        return "not known"
    if one.low is None or one.high is None:
        return f"{one.value:.4g}"
    return f"{one.value:.4g} [{one.low:.4g}, {one.high:.4g}]"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
