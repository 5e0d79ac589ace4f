"""The page of a run of policy training: accuracy and the PRM's return in one look, the other signs of hacking, examples; one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Interval
from stepmark.rl.report_examples import examples
from stepmark.rl.report_plots import crossed, judgement, learning, overview, probes, written
from stepmark.rl.watched import Watch, Watched
from stepmark.show.evaluation import EvaluationView, Section, Tile, evaluation_html
from stepmark.show.tables import ABSENT


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
