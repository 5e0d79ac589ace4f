"""Writing Potato's step-reward records: one for each annotator and item (`potato` reads).

::

    {"instance_id": "trace_42", "annotator": "alice", "mode": "per_step",
     "steps": [{"index": 0, "reward": 1}, {"index": 1, "reward": null}]}

- `mode` and the steps' indices are those of the row's `meta.potato` {`mode`, `index`, `allow_neutral`}, or of its `meta` where Potato's own files
  were read; without: `per_step`, 0 to steps - 1. `index` counts turns of users and tools too, for which nothing is written.
- Mode `first_error`: 1 before the first wrong step; -1 on it **and on all that follow**, as Potato writes; nobody judged those, and they are
  counted. 0 is unmarked.
- Mode `per_step`: -1 and 1; unmarked is null, and 0 neutral. With `allow_neutral` false, unmarked is 0.
- Where an AI's labels stand beside a person's (judge "ai"), steps have `source`, `verified`, `ai_reward` and `confidence` too, and the record
  `ai_prelabeled` and `all_verified`.

Each judge of a row but the AI has a record of its own; with `judge` or `consensus` there is one for the row. The records hold no text: they are joined
with the items by `instance_id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from stepmark.records import Judgement
from stepmark.solutions.interchange.one_label import Labels, three_way
from stepmark.solutions.interchange.potato import AI, CONFIRMED
from stepmark.solutions.interchange.rows import LabelledRow, Losses, NotRepresentableError, Writing

_Rating = Literal[-1, 0, 1]


def write(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """The records of one row.

    Raises:
        InputError: as `one_label.three_way`.
        NotRepresentableError: nobody but an AI judged a step.
    """
    steps = row.labelled.judgements
    if settings.judge is None and settings.consensus is None:
        judges = list(dict.fromkeys(j.judge for step in steps for j in step if j.judge != AI))
        records = [_record(row, judge, settings, losses) for judge in judges]
    else:
        labels = three_way(row, settings, losses)
        judge = next((label.judge for label in labels if label is not None), None)
        records = [] if judge is None else [_made(row, judge, labels, losses)]
    if not records:
        raise NotRepresentableError("nobody judged a step, and a record of Potato's holds a person's rewards")
    losses.lose(
        "the problem and the texts of the steps are left out: Potato joins them by instance_id", row.where
    )
    losses.lose(
        "notes are left out",
        row.where,
        sum(j.note not in (None, CONFIRMED) for step in steps for j in step if j.judge != AI),
    )
    yield from records


def _record(row: LabelledRow, judge: str, settings: Writing, losses: Losses) -> dict[str, Any]:
    own = tuple(tuple(j for j in step if j.judge == judge) for step in row.labelled.judgements)
    alone = replace(row, labelled=replace(row.labelled, judgements=own, root=()))
    return _made(row, judge, three_way(alone, settings, losses), losses)


def _facts(row: LabelledRow) -> Mapping[str, Any]:
    if row.meta.get("format") == "potato":
        return row.meta
    facts = row.meta.get("potato")
    return facts if isinstance(facts, dict) else {}


def _made(row: LabelledRow, judge: str, labels: Labels, losses: Losses) -> dict[str, Any]:
    facts = _facts(row)
    ratings = [None if label is None else label.rating for label in labels]
    first_error = facts.get("mode") == "first_error" and 0 not in ratings
    index = facts.get("index")
    if not isinstance(index, list) or len(index) != len(ratings):
        index = list(range(len(ratings)))
    unmarked = None if 0 in ratings or facts.get("allow_neutral") is not False else 0
    rewards = (
        _cascade(row, ratings, losses) if first_error else [unmarked if r is None else r for r in ratings]
    )
    steps: list[dict[str, Any]] = [
        {"index": at, "reward": reward} for at, reward in zip(index, rewards, strict=True)
    ]
    record: dict[str, Any] = {
        "instance_id": row.solution.id or row.origin,
        "annotator": judge.removeprefix("human:"),
        "mode": "first_error" if first_error else "per_step",
        "steps": steps,
    }
    if any(j.judge == AI for step in row.labelled.judgements for j in step):
        told = [
            _beside(said, judge, rating)
            for said, rating in zip(row.labelled.judgements, ratings, strict=True)
        ]
        record["steps"] = steps = [step | more for step, more in zip(steps, told, strict=True)]
        record["ai_prelabeled"] = True
        record["all_verified"] = all(step["verified"] for step in steps)
    return record


def _cascade(row: LabelledRow, ratings: Sequence[_Rating | None], losses: Losses) -> list[_Rating | None]:
    """What a click on the first wrong step writes in Potato."""
    first = next((at for at, rating in enumerate(ratings) if rating == -1), len(ratings))
    losses.lose(
        "Potato's first_error records say -1 of the steps after the error, which nobody judged",
        row.where,
        len(ratings) - first - 1 if first < len(ratings) else 0,
    )
    return [-1 if at >= first else rating or 0 for at, rating in enumerate(ratings)]


def _beside(said: Sequence[Judgement], judge: str, rating: _Rating | None) -> dict[str, Any]:
    """A step's fields about the AI's label."""
    ai = next((j for j in said if j.judge == AI), None)
    confirmed = any(j.judge == judge and j.note == CONFIRMED for j in said)
    waiting = rating is None and ai is not None and ai.rating is not None
    fields: dict[str, Any] = {
        "source": AI if confirmed or waiting else "human",
        "verified": not waiting,
        "ai_reward": None if ai is None else ai.rating,
        "confidence": None if ai is None else ai.confidence,
    }
    if waiting and ai is not None:
        fields["reward"] = ai.rating
    return fields
