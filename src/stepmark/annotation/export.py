"""Labels of people as files that train: every format is written by `data.formats`, from labelled solutions made here.

In the view `decided` an item's row is the admin's decision, else what the annotators agree on (`labels.consensus`:
the first error in mode first_error, the majority in per_step), or what the only annotator says; an item without agreement is dropped, and counted.

Answers that are not submitted are left out. Unsure flags, notes, types of errors, seconds and times stand in the judgement's note and in
`meta.annotation`, and nowhere else: what a format cannot hold is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from stepmark.annotation.items import Item
from stepmark.annotation.marks import AnnotatorMarks, Decision, item_first
from stepmark.annotation.project import Project
from stepmark.data.formats.rows import Counts, LabelledRow, Writing
from stepmark.data.labelled import write_labelled
from stepmark.errors import InputError, UsageError
from stepmark.labels.consensus import Consensus, Rule
from stepmark.records import Judgement, LabelledSolution
from stepmark.registry import unknown_name
from stepmark.settings import settings
from stepmark.words import amount

View = Literal["together", "annotators", "decided"]
Steps = tuple[tuple[Judgement, ...], ...]

FORMATS: Mapping[str, tuple[str, View]] = {
    "stepmark": ("stepmark-labels", "together"),
    "prm800k": ("prm800k", "annotators"),
    "trl": ("trl", "decided"),
    "math-shepherd": ("math-shepherd", "decided"),
    "processbench": ("processbench", "decided"),
    "who-and-when": ("who-and-when", "decided"),
}
"""Name of an export: its name in `stepmark convert`, and the view that it has unless another is asked for."""

_SOURCE_FACTS = ("format", "prm800k", "annotation", "schema", "mode", "judge", "kind")
"""Keys of an item's meta that say how its source was labelled: what is exported was labelled here."""


@settings
class Exporting:
    """Settings of an export."""

    format: str = "stepmark"
    """stepmark, prm800k, trl, math-shepherd, processbench or who-and-when."""
    view: View | None = None
    """Which rows there are; None: `together` for stepmark, `annotators` for prm800k, `decided` for the others."""
    neutral: Literal["positive", "negative", "drop"] | None = None
    """What a neutral rating becomes where a format has only right and wrong."""
    unfinished: bool = False
    """Answers that do not count are exported too."""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise unknown_name("export", self.format, FORMATS)
        if self.view == "together" and self.format != "stepmark":
            raise UsageError(
                f"the view together puts several judges into a row, and {self.format} holds one: take annotators or decided"
            )


def export(
    project: Project,
    items: Iterable[Item],
    answers: Iterable[AnnotatorMarks],
    decisions: Iterable[Decision] = (),
    settings: Exporting | None = None,
    tally: Counts | None = None,
) -> Iterator[dict[str, Any] | InputError]:
    """Rows of a format, and an error in the place of each that is left out, in the order of the items; `tally` counts what is dropped.

    Raises:
        InputError: an answer or a decision to an item that is not there, or of another number of steps; a neutral rating in a format of two
            (`neutral` says what becomes of it).
    """
    counted, chosen = tally or Counts(), settings or Exporting()
    name, view = FORMATS[chosen.format]
    chosen = replace(chosen, view=chosen.view or view)
    rows = _rows(project, items, answers, decisions, chosen, counted)
    return write_labelled(rows, name, Writing(neutral=chosen.neutral, axis=project.axis), counted)


def _rows(
    project: Project,
    items: Iterable[Item],
    answers: Iterable[AnnotatorMarks],
    decisions: Iterable[Decision],
    settings: Exporting,
    tally: Counts,
) -> Iterator[LabelledRow]:
    known = {item.id: item for item in items}
    by_item: dict[str, list[AnnotatorMarks]] = {}
    for answer in answers:
        _check(answer, known)
        by_item.setdefault(answer.item, []).append(answer)
    decided: dict[str, Decision] = {}
    for decision in decisions:
        _check(decision, known)
        decided[decision.item] = decision
    for item in known.values():
        given = sorted(by_item.get(item.id, ()), key=lambda answer: answer.account)
        counted = [each for each in given if settings.unfinished or each.marks.submitted]
        maker = _RowMaker(project=project, item=item, settings=settings, tally=tally)
        for row in maker.rows(counted, decided.get(item.id)):
            tally.read += 1
            yield row


def _check(answer: AnnotatorMarks | Decision, known: Mapping[str, Item]) -> None:
    who, item = f"{answer.item} by {answer.account}", known.get(answer.item)
    if item is None:
        raise InputError(f"there is no item {answer.item!r} in the project", where=who)
    steps = len(item.solution.steps)
    if answer.marks.steps != steps or len(answer.marks.ratings) != steps:
        raise InputError(f"expected marks on {amount(steps, 'step')}, found {answer.marks.steps}", where=who)


@dataclass(frozen=True, kw_only=True, slots=True)
class _RowMaker:
    """Makes the rows of one item."""

    project: Project
    item: Item
    settings: Exporting
    tally: Counts

    def rows(self, answers: Sequence[AnnotatorMarks], decision: Decision | None) -> Iterator[LabelledRow]:
        """The rows of the view, from the answers that count."""
        if self.settings.view == "annotators":
            for answer in answers:
                yield self._row([answer], self._judged([answer]))
        elif self.settings.view == "together":
            own = [a for a in answers if decision is not None and a.account == decision.account]
            voices: list[AnnotatorMarks | Decision] = [answer for answer in answers if answer not in own]
            voices += [] if decision is None else [decision]
            if voices:
                yield self._row(voices, self._judged(voices))
        elif decision is not None:
            yield self._row([decision], self._judged([decision]))
        elif answers:
            judgements = self._agreed(answers)
            if judgements is not None:
                yield self._row(answers, judgements)

    def _agreed(self, answers: Sequence[AnnotatorMarks]) -> Steps | None:
        """What the annotators of an item without a decision agree on; None, and counted, where they do not."""
        overlap = self.project.overlap
        if len(answers) < overlap and not self.settings.unfinished:
            self.tally.drop(
                f"an item with fewer answers than the project's overlap of {overlap}", self.item.id
            )
            return None
        judged = self._judged(answers)
        if len(answers) == 1:
            return judged
        rule: Rule = "first-error-agrees" if self.project.mode == "first_error" else "majority"
        view = Consensus(rule=rule, axis=self.project.axis).view(
            LabelledSolution(solution=self.item.solution, judgements=judged)
        )
        if not view.kept:
            self.tally.drop(
                f"no agreement among annotators ({rule}: {view.why}), and no decision", self.item.id
            )
            return None
        whole = self.settings.format == "stepmark"

        def judgement(
            rating: Literal[-1, 0, 1], confidence: float | None, step: Sequence[Judgement]
        ) -> Judgement:
            notes = "; ".join(each.note for each in step if each.note and each.rating == rating)
            return Judgement(
                kind="correctness",
                judge=f"consensus:{rule}",
                rating=rating,
                confidence=confidence if whole else None,
                note=view.reason if whole else notes or None,
                axis=self.project.axis,
            )

        return tuple(
            () if rating is None else (judgement(rating, confidence, step),)
            for rating, confidence, step in zip(view.ratings, view.confidences, judged, strict=True)
        )

    def _judged(self, voices: Sequence[AnnotatorMarks | Decision]) -> Steps:
        return tuple(
            tuple(judgement for voice in voices for judgement in self._judgement(voice, step))
            for step in range(len(self.item.solution.steps))
        )

    def _judgement(self, voice: AnnotatorMarks | Decision, step: int) -> Iterator[Judgement]:
        rating = voice.marks.ratings[step]
        if rating is None:
            return
        note = self._note(voice, step)
        yield Judgement(
            kind="correctness",
            judge=f"human:{voice.account}",
            rating=rating,
            note=note,
            axis=self.project.axis,
        )

    def _note(self, voice: AnnotatorMarks | Decision, step: int) -> str | None:
        marks = voice.marks
        if self.settings.format == "who-and-when":
            types = [name for at, name in marks.error_types if at == step]
            return "; ".join([*types, *(text for at, text in marks.notes if at == step)]) or None
        if self.settings.format != "stepmark":
            return None
        parts = ["decision"] if isinstance(voice, Decision) else []
        parts += ["unsure"] if step in marks.unsure else []
        parts += [f"error type: {name}" for at, name in marks.error_types if at == step]
        parts += [text for at, text in marks.notes if at == step]
        return "; ".join(parts) or None

    def _row(self, voices: Sequence[AnnotatorMarks | Decision], judgements: Steps) -> LabelledRow:
        item = self.item
        solution = replace(item.solution, id=item.solution.id or item.id)
        return LabelledRow(
            labelled=LabelledSolution(solution=solution, judgements=judgements),
            where=item.id,
            outcome=item.outcome,
            meta=self._meta(voices),
        )

    def _meta(self, voices: Sequence[AnnotatorMarks | Decision]) -> dict[str, Any]:
        item = self.item
        own = {key: value for key, value in item.meta.items() if key not in _SOURCE_FACTS}
        annotation: dict[str, Any] = {
            "project": self.project.title,
            "mode": self.project.mode,
            "role": "work",
            "view": self.settings.view,
            "answers": [_facts(voice) for voice in voices if isinstance(voice, AnnotatorMarks)],
        }
        for voice in voices:
            if isinstance(voice, Decision):
                more = {"reason": voice.reason, "over": list(voice.over)}
                annotation["decision"] = _facts(voice) | more
        return {"from": item.id, **own, "format": "annotation", "annotation": annotation}


def _facts(voice: AnnotatorMarks | Decision) -> dict[str, Any]:
    marks = voice.marks
    facts: dict[str, Any] = {"account": voice.account, "at": voice.at}
    if isinstance(voice, AnnotatorMarks):
        facts["seconds"] = voice.seconds
        facts["submitted"] = marks.submitted
        if voice.first_pass is not None:
            facts["first_pass"] = list(voice.first_pass.ratings)
    facts["unsure"] = sorted(marks.unsure, key=item_first)
    facts["notes"] = [list(note) for note in marks.notes]
    facts["error_types"] = [list(entry) for entry in marks.error_types]
    return facts
