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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from stepmark.annotation.items import Item, counts
from stepmark.annotation.marks import Answer, Decision, Marks, item_first
from stepmark.annotation.project import Project
from stepmark.catalog import unknown_name
from stepmark.errors import InputError, UsageError
from stepmark.labels.consensus import Consensus
from stepmark.records import Judgement, LabelledSolution
from stepmark.settings import settings
from stepmark.solutions.interchange import LabelledRow, Losses, Writing, write_labelled
from stepmark.solutions.interchange.potato import AI, CONFIRMED
from stepmark.solutions.interchange.prm800k_raw import IN_META


@dataclass(frozen=True, kw_only=True, slots=True)
class RowMaker:
    """Makes the rows of one item."""

    project: Project
    item: Item
    settings: Exporting
    losses: Losses

    def rows(self, answers: Sequence[Answer], decision: Decision | None) -> Iterator[LabelledRow]:
        """The rows of the view, from the answers that count."""
        match self.settings.view:
            case "annotators":
                self.losses.lose(
                    "decisions are left out (view annotators)", self.item.id, int(decision is not None)
                )
                for answer in answers:
                    yield self._row([answer], self._judged(answer))
            case "together":
                yield from self._together(answers, decision)
            case _:
                yield from self._decided(answers, decision)

    def _together(self, answers: Sequence[Answer], decision: Decision | None) -> Iterator[LabelledRow]:
        said: list[Answer | Decision] = [
            answer for answer in answers if decision is None or answer.account != decision.account
        ]
        self.losses.lose(
            "an adjudicator's own earlier answer gave way to the decision",
            self.item.id,
            len(answers) - len(said),
        )
        said += [] if decision is None else [decision]
        if said:
            each = [self._judged(one) for one in said]
            yield self._row(
                said, tuple(tuple(j for one in step for j in one) for step in zip(*each, strict=True))
            )

    def _decided(self, answers: Sequence[Answer], decision: Decision | None) -> Iterator[LabelledRow]:
        if decision is not None:
            yield self._row([decision], self._judged(decision))
            return
        if not answers:
            return
        if len(answers) < self.project.overlap and not self.settings.unfinished:
            self.losses.drop(
                f"an item with fewer answers than the project's overlap of {self.project.overlap}",
                self.item.id,
            )
            return
        if len(answers) == 1:
            yield self._row(answers, self._judged(answers[0]))
            return
        each = [self._judged(answer) for answer in answers]
        labelled = LabelledSolution(
            solution=self.item.solution,
            judgements=tuple(tuple(j for one in step for j in one) for step in zip(*each, strict=True)),
        )
        rule = self.settings.agreement or (
            "first-error-agrees" if self.project.mode == "first_error" else "intersection"
        )
        view = Consensus(rule=rule).view(labelled)
        if not view.kept:
            self.losses.drop(
                f"no agreement among annotators ({rule}: {view.why}), and no decision", self.item.id
            )
            return
        whole = self.settings.format == "stepmark"
        yield self._row(
            answers,
            tuple(
                ()
                if rating is None
                else (
                    Judgement(
                        kind="correctness",
                        judge=f"consensus:{rule}",
                        rating=rating,
                        confidence=confidence if whole else None,
                        note=view.reason if whole else None,
                    ),
                )
                for rating, confidence in zip(view.ratings, view.confidences, strict=True)
            ),
        )

    def _judged(self, said: Answer | Decision) -> tuple[tuple[Judgement, ...], ...]:
        """One person's ratings as judgements."""
        marks = said.marks
        nothing = self.settings.drop_unsure and None in marks.unsure
        judged: list[tuple[Judgement, ...]] = []
        for step, rating in enumerate(marks.ratings):
            dropped = nothing or (self.settings.drop_unsure and step in marks.unsure)
            self.losses.lose(
                "a rating that its annotator was unsure of is left out",
                self.item.id,
                int(dropped and rating is not None),
            )
            if rating is None or dropped:
                judged.append(())
                continue
            judged.append(
                (
                    Judgement(
                        kind="correctness",
                        judge=f"human:{said.account}",
                        rating=rating,
                        note=self._note(said, step),
                    ),
                )
            )
        return tuple(judged)

    def _note(self, said: Answer | Decision, step: int) -> str | None:
        marks = said.marks
        if self.settings.format == "potato":
            taken = step in marks.verified and self._suggested(step) == marks.ratings[step]
            return CONFIRMED if taken else None
        if self.settings.format != "stepmark":
            return None
        parts = ["decision"] if isinstance(said, Decision) else []
        parts += ["unsure"] if step in marks.unsure else []
        parts += [f"error type: {name}" for at, name in marks.error_types if at == step]
        parts += [text for at, text in marks.notes if at == step]
        return "; ".join(parts) or None

    def _suggested(self, step: int) -> int | None:
        if self.project.help.show == "never" or step >= len(self.item.suggestions):
            return None
        said = self.item.suggestions[step]
        return None if said is None else said.rating

    def _row(
        self, said: Sequence[Answer | Decision], judgements: tuple[tuple[Judgement, ...], ...]
    ) -> LabelledRow:
        item, format = self.item, self.settings.format
        if format == "potato" and self.project.help.show != "never":
            judgements = tuple((*step, *self._ai(number)) for number, step in enumerate(judgements))
        self._lose(said)
        solution = item.solution if item.solution.id is not None else replace(item.solution, id=item.id)
        return LabelledRow(
            labelled=LabelledSolution(solution=solution, judgements=judgements),
            where=item.id,
            outcome=item.outcome,
            meta=self._meta(said),
        )

    def _ai(self, step: int) -> tuple[Judgement, ...]:
        rating = self._suggested(step)
        if rating is None:
            return ()
        said = self.item.suggestions[step]
        assert said is not None
        return (Judgement(kind="correctness", judge=AI, rating=said.rating, note=said.reason),)

    def _meta(self, said: Sequence[Answer | Decision]) -> dict[str, Any]:
        item, format = self.item, self.settings.format
        own = {key: value for key, value in item.meta.items() if key not in _SOURCE_FACTS}
        meta = {"from": item.id, **own, "format": "annotation"}
        if format == "prm800k":
            return meta | {"format": "prm800k", "prm800k": self._prm800k(said)}
        if format == "potato":
            index = range(len(item.solution.steps)) if item.potato_index is None else item.potato_index
            return meta | {
                "potato": {
                    "mode": self.project.mode,
                    "allow_neutral": self.project.allow_neutral,
                    "index": list(index),
                }
            }
        facts: dict[str, Any] = {
            "project": self.project.title,
            "mode": self.project.mode,
            "role": item.role,
            "view": self.settings.view,
            "answers": [_facts(one) for one in said if isinstance(one, Answer)],
        }
        for one in said:
            if isinstance(one, Decision):
                facts["decision"] = _facts(one) | {
                    "chosen": one.chosen,
                    "reason": one.reason,
                    "over": list(one.over),
                }
        return meta | {"annotation": facts}

    def _prm800k(self, said: Sequence[Answer | Decision]) -> dict[str, Any]:
        source = self.item.meta.get("prm800k")
        kept = {key: source[key] for key in IN_META if key in source} if isinstance(source, dict) else {}
        facts: dict[str, Any] = {
            **kept,
            "is_quality_control_question": self.item.role == "gold",
            "is_initial_screening_question": self.item.role == "screening",
            "flagged": sorted({step for one in said for step in one.marks.unsure if step is not None}),
        }
        if len(said) == 1:
            facts["timestamp"] = _timestamp(said[0].at)
            facts["total_time"] = round(said[0].seconds * 1000) if isinstance(said[0], Answer) else None
            if None in said[0].marks.unsure and not _reached_an_end(said[0].marks):
                facts["finish_reason"] = "give_up"
        return facts

    def _lose(self, said: Sequence[Answer | Decision]) -> None:
        """Count what the format has no place for; those with `meta` hold it all under `annotation`."""
        format, where = self.settings.format, self.item.id
        if format in ("stepmark", "trl", "math-shepherd"):
            return
        notes = sum(len(one.marks.notes) for one in said)
        self.losses.lose(f"annotators' notes are left out ({format} has no place for them)", where, notes)
        types = sum(len(one.marks.error_types) for one in said)
        self.losses.lose(f"types of errors are left out ({format} has no place for them)", where, types)
        unsure = [step for one in said for step in one.marks.unsure if format != "prm800k" or step is None]
        self.losses.lose(
            f"that an annotator is unsure is left out ({format} has no place for it)", where, len(unsure)
        )
        timed = sum(isinstance(one, Answer) and one.seconds > 0 for one in said)
        self.losses.lose(
            f"how long annotators took is left out ({format} has no place for it)",
            where,
            0 if format == "prm800k" and len(said) == 1 else timed,
        )


_SOURCE_FACTS = ("format", "prm800k", "potato", "annotation", "schema", "mode", "index", "judge", "kind")
"""Keys of an item's meta that say how its source was labelled: what is exported was labelled here."""


def _facts(said: Answer | Decision) -> dict[str, Any]:
    marks = said.marks
    facts: dict[str, Any] = {"account": said.account, "at": said.at}
    if isinstance(said, Answer):
        facts["seconds"] = said.seconds
        facts["submitted"] = marks.submitted
        facts["verified"] = sorted(marks.verified)
        if said.first_pass is not None:
            facts["first_pass"] = list(said.first_pass.ratings)
    facts["unsure"] = sorted(marks.unsure, key=item_first)
    facts["notes"] = [list(note) for note in marks.notes]
    facts["error_types"] = [list(entry) for entry in marks.error_types]
    return facts


def _timestamp(at: float | None) -> str | None:
    """As PRM800K writes it: UTC, without a zone."""
    return None if at is None else datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat()


def _reached_an_end(marks: Marks) -> bool:
    """Whether the ratings end at an error or at the end of the solution."""
    return marks.first_wrong is not None or -1 in marks.ratings


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
