"""Labelled solutions as one HTML file that needs no network: each step with what every judge says of it, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stepmark.labels.criteria import Criterion
from stepmark.labels.labelling import Labelling
from stepmark.records import Judgement, LabelledSolution
from stepmark.report.page import CardView, JudgementView, ProblemView, StepView, Summary, page_html
from stepmark.store import atomic_write
from stepmark.words import amount

SHOWN = 2000
"""Solutions on one page."""


def write_labels_page(
    path: str | Path,
    labellings: Iterable[Labelling],
    *,
    title: str,
    criteria: Sequence[Criterion] = (),
    settings: Mapping[str, str] | None = None,
) -> None:
    """Write labelled solutions as one HTML file; the file is there complete or not at all.

    The figures at the top count every solution; the first 2,000 are shown.

    Args:
        path: where to; replaced if it exists.
        labellings: read once.
        title: of the page.
        criteria: those that were judged by; their words stand at the top.
        settings: name to value, shown on demand.

    Raises:
        UsageError: the file cannot be written.
    """
    missing = {criterion.name for criterion in criteria if criterion.missing}
    problems: dict[tuple[str, str | None], list[CardView]] = {}
    verdicts: Counter[str] = Counter()
    positions: Counter[int] = Counter()
    failing: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    judges: dict[str, None] = {}
    shown = 0
    asked: set[tuple[str, str | None]] = set()
    for labelling in labellings:
        labelled, first = labelling.labelled, labelling.first_error
        judges |= dict.fromkeys(j.judge for step in labelled.judgements for j in step)
        verdicts["unknown" if first is None else "good" if first < 0 else "bad"] += 1
        if first is not None and first >= 0:
            positions[first] += 1
        about = labelled.solution.problem
        asked.add((about.text, about.id))
        axes = _failing(labelled)
        failing.update(axis for axis, steps in axes if steps)
        opened.update(axis for axis, steps in axes if steps is None)
        if shown < SHOWN:
            shown += 1
            cards = problems.setdefault((about.text, about.id), [])
            cards.append(_card(labelling, shown, len(cards) + 1, axes, missing))
    solutions = verdicts.total()
    facts = [f"Labelled by {', '.join(judges) or 'no judge'}."]
    facts += [
        f"{criterion.name}{' (missing)' if criterion.missing else ''}: {criterion.text} Failed in {failing[criterion.name]:,} of "
        f"{amount(solutions, 'solution')}{f', open in {opened[criterion.name]:,}' if opened[criterion.name] else ''}."
        for criterion in criteria
    ]
    if shown < solutions:
        facts.append(f"The first {shown:,} of {solutions:,} solutions are shown.")
    summary = Summary(
        title=title,
        facts=tuple(facts),
        settings=settings or {},
        solutions=solutions,
        problems=len(asked),
        with_error=verdicts["bad"],
        without_error=verdicts["good"],
        unknown=verdicts["unknown"],
        positions=positions,
        kinds=(),
    )
    views = [
        ProblemView(number=at, text=text, note=id_ or "", cards=tuple(cards))
        for at, ((text, id_), cards) in enumerate(problems.items(), start=1)
    ]
    with atomic_write(path) as file:
        file.writelines(page_html(summary, views))


def _failing(labelled: LabelledSolution) -> tuple[tuple[str, tuple[int, ...] | None], ...]:
    """Each axis, with the numbers of the steps that fail it; None where none fails and one is open."""
    axes: list[tuple[str, tuple[int, ...] | None]] = []
    for axis in labelled.axes:
        values = [[_value(j) for j in step if j.axis == axis] for step in labelled.judgements]
        steps = tuple(number for number, step in enumerate(values, start=1) if 0 in step)
        axes.append((axis, None if not steps and any(None in step for step in values) else steps))
    return tuple(axes)


def _card(
    labelling: Labelling,
    number: int,
    place: int,
    axes: tuple[tuple[str, tuple[int, ...] | None], ...],
    missing: set[str],
) -> CardView:
    labelled = labelling.labelled
    solution = labelled.solution
    return CardView(
        number=number,
        title=f"Solution {place}",
        note=" · ".join(part for part in (solution.source, solution.id) if part),
        kind="probability",
        threshold=None,
        score=None,
        aggregate="",
        place=None if labelling.first_error is None else float(labelling.first_error < 0),
        aggregates=(),
        first_error=labelling.first_error,
        steps=tuple(
            StepView(
                text=step.text,
                score=None,
                observation=step.observation,
                speaker=step.speaker,
                judgements=_views(judgements, missing),
                label=_label(judgements),
            )
            for step, judgements in zip(solution.steps, labelled.judgements, strict=True)
        ),
        axes=axes,
    )


def _value(judgement: Judgement) -> float | None:
    """From 0 (wrong) to 1 (right)."""
    if judgement.rating is not None:
        return (judgement.rating + 1) / 2
    if judgement.trials:
        return (judgement.successes or 0) / judgement.trials
    return judgement.share


def _label(judgements: Sequence[Judgement]) -> float | None:
    """The lowest of the values; None where one is open and none is 0."""
    values = [_value(judgement) for judgement in judgements]
    known = [value for value in values if value is not None]
    return None if not known or (len(known) < len(values) and min(known) > 0) else min(known)


def _views(judgements: Sequence[Judgement], missing: set[str]) -> tuple[JudgementView, ...]:
    """What is shown of them: a step that is right without more words has its sign."""
    views = []
    for judgement in judgements:
        value, note = _value(judgement), judgement.note or ""
        reason = "" if note.startswith("votes: ") and value is not None else note
        failed, after = value == 0, judgement.axis in missing
        if judgement.rating is not None:
            words = {-1: "" if reason else "wrong", 0: "neutral", 1: ""}[judgement.rating]
            if failed and after:
                words = "missing after this step"
        elif judgement.trials:
            words = f"{judgement.successes} of {judgement.trials}"
        else:
            words = "open" if judgement.share is None else f"{judgement.share:g}"
        if words or reason:
            views.append(
                JudgementView(axis=judgement.axis, words=words, failed=failed, reason=reason, after=after)
            )
    return tuple(views)
