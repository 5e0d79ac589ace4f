"""What people said, as files that train: every format is written by `solutions.interchange`, from labelled solutions made here.

Which rows there are (`view`):

============  ==========================================================================================================
`together`    one row an item, with the judgements of all annotators side by side, each as judge "human:NAME"
`annotators`  one row for each annotator and item
`decided`     one row an item: the adjudicator's decision where there is one; else what the annotators agree on (`agreement`, a rule of
              `labels.consensus`, as judge "consensus:RULE"); where there is one annotator, what that one says. An item without agreement is
              dropped, and counted
============  ==========================================================================================================

What is not there: answers that do not count (not submitted; with `require_verification`, a suggestion that nobody verified), gold items and the screening
set, unless `control` asks for them. A step that nobody judged, after the first error say, has no judgement. What a format cannot hold is
counted.

How a thing is carried:

- an unsure step, a note, a type of error: in the judgement's note, and whole in `meta.annotation` (stepmark); `flagged` (PRM800K);
- seconds and the time of the last change: `meta.annotation` (stepmark); `total_time` and `timestamp` (PRM800K);
- the suggestions of an item: `ai_reward`, `confidence`, `source` and `verified` (Potato), where the project shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from stepmark.annotation.answers import Answer, Decision
from stepmark.annotation.export_rows import RowMaker
from stepmark.annotation.items import Item, counts
from stepmark.annotation.project import Project
from stepmark.catalog import unknown_name
from stepmark.errors import InputError, UsageError
from stepmark.settings import settings
from stepmark.solutions.interchange import LabelledRow, Losses, Writing, write_labelled

View = Literal["together", "annotators", "decided"]
Agreement = Literal["first-error-agrees", "first-error-majority", "intersection", "majority"]

FORMATS: Mapping[str, tuple[str, View]] = {
    "stepmark": ("stepmark-labels", "together"),
    "prm800k": ("prm800k", "annotators"),
    "trl": ("trl", "decided"),
    "math-shepherd": ("math-shepherd", "decided"),
    "processbench": ("processbench", "decided"),
    "potato": ("potato", "annotators"),
}
"""Name of an export: its name in `stepmark convert`, and the view that it has unless another is asked for."""


@settings
class Exporting:
    """Settings of an export."""

    format: str = "stepmark"
    """stepmark, prm800k, trl, math-shepherd, processbench or potato."""
    view: View | None = None
    """Which rows there are; None: `together` for stepmark, `annotators` for prm800k and potato, `decided` for the others."""
    agreement: Agreement | None = None
    """What annotators say together, in the view `decided`; None: `first-error-agrees` in mode first_error, `intersection` in per_step."""
    neutral: Literal["positive", "negative", "drop"] | None = None
    """What a neutral rating becomes where a format has only right and wrong."""
    drop_unsure: bool = False
    """A step that its annotator is unsure of has no judgement; an item that they are unsure of has none at all."""
    unfinished: bool = False
    """Answers that do not count are exported too."""
    control: bool = False
    """Gold items and the screening set are exported too."""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise unknown_name("export", self.format, FORMATS)
        if self.view == "together" and self.format not in ("stepmark", "potato"):
            raise UsageError(
                f"the view together puts several judges into a row, and {self.format} holds one: take annotators or decided"
            )


_EXPORTING = Exporting()


def export(
    project: Project,
    items: Iterable[Item],
    answers: Iterable[Answer],
    decisions: Iterable[Decision] = (),
    settings: Exporting = _EXPORTING,
    losses: Losses | None = None,
) -> Iterator[dict[str, Any] | InputError]:
    """Rows of a format, and an error in the place of each that is left out, in the order of the items.

    Args:
        project: says what counts.
        items: of the project; an answer to another item is an error.
        answers: one an annotator and item.
        decisions: the last of an item holds.
        settings: which format, which rows.
        losses: counts what is read (labelled solutions), written, dropped and lost.

    Raises:
        InputError: an answer or a decision to an item that is not there, or of another number of steps; a neutral rating in a format of two
            (`neutral` says what becomes of it).
    """
    counted = losses or Losses()
    name, view = FORMATS[settings.format]
    chosen = replace(settings, view=settings.view or view)
    rows = _rows(project, items, answers, decisions, chosen, counted)
    return write_labelled(rows, name, Writing(neutral=settings.neutral), counted)


def _rows(
    project: Project,
    items: Iterable[Item],
    answers: Iterable[Answer],
    decisions: Iterable[Decision],
    settings: Exporting,
    losses: Losses,
) -> Iterator[LabelledRow]:
    known = {item.id: item for item in items}
    by_item: dict[str, list[Answer]] = {}
    for answer in answers:
        _check(answer, known)
        by_item.setdefault(answer.item, []).append(answer)
    decided: dict[str, Decision] = {}
    for decision in decisions:
        _check(decision, known)
        decided[decision.item] = decision
    for item in known.values():
        if item.role != "work" and not settings.control:
            losses.lose(f"answers to {item.role} items are left out", item.id, len(by_item.get(item.id, ())))
            continue
        given = sorted(by_item.get(item.id, ()), key=lambda answer: answer.account)
        counted = [one for one in given if settings.unfinished or counts(item, one.marks, project.help)]
        losses.lose("answers that do not count yet are left out", item.id, len(given) - len(counted))
        maker = RowMaker(project=project, item=item, settings=settings, losses=losses)
        for row in maker.rows(counted, decided.get(item.id)):
            losses.read += 1
            yield row


def _check(answer: Answer | Decision, known: Mapping[str, Item]) -> None:
    who = f"{answer.item} by {answer.account}"
    item = known.get(answer.item)
    if item is None:
        raise InputError(f"there is no item {answer.item!r} in the project", where=who)
    steps = len(item.solution.steps)
    if answer.marks.steps != steps or len(answer.marks.ratings) != steps:
        raise InputError(f"expected marks on {steps} steps, found {answer.marks.steps}", where=who)
