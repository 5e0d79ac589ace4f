"""A project that was begun in Potato goes on here: its labels become changes of accounts.

Read are `user_state.json`, `annotations.jsonl` and JSON lines exports, anywhere in the folder, in this order; an item and a person that stood in
one already are passed over. What a reward means is said in `solutions.interchange.potato`: in mode `first_error` only the first -1 counts, and what an
AI said and nobody verified is nobody's mark. Potato has no `submit`: an answer that is complete is submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepmark.annotation.items import Item
from stepmark.annotation.marks import Change, Folding, Rating, marks_of_ratings
from stepmark.annotation.project import Project
from stepmark.errors import InputError
from stepmark.solutions.interchange import LabelledRow, Losses, Reading
from stepmark.solutions.interchange.potato import AI, read_with
from stepmark.solutions.interchange.potato_items import Shown
from stepmark.store import read_rows

_NAMES = ("user_state.json", "annotations.jsonl", "prm_training_data.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """What one person did to one item, as if it had been done here."""

    item: str
    account: str
    changes: tuple[Change, ...]


def resumed(
    folder: str | Path, project: Project, items: Sequence[Item], losses: Losses | None = None
) -> list[Resumed]:
    """The labels in a folder of Potato's (its `output_annotation_dir`), or in one of its files.

    Args:
        folder: where they are.
        project: says the mode, and whether a 0 is neutral.
        items: those of the project.
        losses: takes note of what is not taken over.

    Raises:
        InputError: with `FILE:LINE`: not Potato's, an item that the project has not, a step that the item has not; with the folder, no file.
    """
    path = Path(folder)
    files = [path] if path.is_file() else [file for name in _NAMES for file in sorted(path.rglob(name))]
    if not files:
        raise InputError(
            f"expected {', '.join(_NAMES[:-1])} or {_NAMES[-1]} in the folder, found none", where=str(path)
        )
    counted = losses or Losses()
    shown = {item.id: _shown(item) for item in items}
    reading = Reading(zero="neutral" if project.allow_neutral else "unjudged")
    found: dict[tuple[str, str], Resumed] = {}
    for file in files:
        for row in read_rows(file):
            for labelled in read_with(row, shown, reading, counted, "the project"):
                one = _resumed(labelled, project, counted)
                if one is not None:
                    found.setdefault((one.item, one.account), one)
    return list(found.values())


def _shown(item: Item) -> Shown:
    index = item.potato_index or range(len(item.solution.steps))
    return Shown(
        solution=item.solution,
        step_of={turn: step for step, turn in enumerate(index)},
        listed=len(item.trace) or len(item.solution.steps),
    )


def _resumed(row: LabelledRow, project: Project, losses: Losses) -> Resumed | None:
    people = [
        judgement.judge for step in row.labelled.judgements for judgement in step if judgement.judge != AI
    ]
    if not people:
        losses.drop("labels of Potato's AI that nobody verified", row.where)
        return None
    ratings: list[Rating | None] = []
    verified: list[int] = []
    for number, step in enumerate(row.labelled.judgements):
        own = next((judgement.rating for judgement in step if judgement.judge == people[0]), None)
        ratings.append(own)
        if own is not None and len(step) > 1:
            verified.append(number)
    changes: list[Change] = []
    if project.mode == "first_error":
        first = marks_of_ratings(ratings).first_wrong
        if first is None:
            losses.drop("marks that do not tell the first error", row.where)
            return None
        changes.append(Change(kind="first_error", step=first))
    else:
        changes += [
            Change(kind="rate", step=number, rating=rating)
            for number, rating in enumerate(ratings)
            if rating is not None
        ]
    changes += [Change(kind="verify", step=number, on=True) for number in verified]
    folding = Folding(project.mode, len(ratings), allow_neutral=project.allow_neutral)
    for change in changes:
        folding.take(change)
    if folding.marks().complete:
        changes.append(Change(kind="submit"))
    return Resumed(
        item=row.solution.id or row.origin,
        account=people[0].removeprefix("human:"),
        changes=tuple(changes),
    )
