"""The labelled solutions that an export writes: one item's answers and decision, in one of the views (`exporting`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stepmark.annotation.answers import Answer, Decision
from stepmark.annotation.items import Item
from stepmark.annotation.marks import Marks, item_first
from stepmark.annotation.project import Project
from stepmark.labels.consensus import Consensus
from stepmark.records import Judgement, LabelledSolution
from stepmark.solutions.interchange import LabelledRow, Losses
from stepmark.solutions.interchange.potato import AI, CONFIRMED
from stepmark.solutions.interchange.prm800k_raw import IN_META

if TYPE_CHECKING:
    from stepmark.annotation.exporting import Exporting


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
