"""Step labels made in Potato (its `process_reward` schema), read from its own files.

=====================  =========================================================================================
file                   rows
=====================  =========================================================================================
user_state.json        `instance_id_to_label_to_value`: {ITEM: [[{`schema`, `name`}, JSON text], …]}; one person
annotations.jsonl      `instance_id`, `user_id`, `labels`: {SCHEMA: {NAME: JSON text}}
JSON lines export      `instance_id`, `annotator`, `steps`, `mode`
=====================  =========================================================================================

The JSON text is {`steps`: [{`index`, `reward`, `source`, `verified`, `ai_reward`, `ai_reasoning`, `confidence`}], `mode`}.
None of these files holds the problem or the steps: they are joined by id with the data file that was shown (`items`), JSON
lines with `id`, the problem under `task_description`, `problem`, `question`, `prompt` or `text`, and the steps under `steps`,
`structured_turns` or `cot_steps` (`potato_items`).

What a reward means:

- mode `first_error`: a click on the first wrong step writes -1 on it *and on all that follow*, which nobody judged. Only
  the first -1 counts here; what follows stays unjudged. 0 is unmarked.
- mode `per_step`: -1 and 1; null is unmarked, and 0 then is neutral. In a file where no reward is null, 0 may mean either;
  the setting `zero` (neutral or unjudged) says which.
- A label whose `source` is the AI and which nobody verified is the AI's (judge "ai"), never a person's. Where a person
  verified or changed one, both stand side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from stepmark.errors import InputError, UsageError
from stepmark.records import Judgement, LabelledSolution
from stepmark.solutions.interchange.potato_items import Keys, Shown, shown, word
from stepmark.solutions.interchange.rows import LabelledRow, Losses, Reading, origin
from stepmark.store import Row, check_readable, json_type, read_rows

STATE_KEYS = ("instance_id_to_label_to_value",)
ANNOTATION_KEYS = ("instance_id", "user_id", "labels")
EXPORT_KEYS = ("instance_id", "annotator", "steps")
_KNOWN = (*STATE_KEYS, *ANNOTATION_KEYS, *EXPORT_KEYS, "mode", "meta")
AI = "ai"
"""The judge of labels that Potato's model made."""
CONFIRMED = "confirmed the AI's label"
"""The note of a person's rating that took the AI's label over."""


def read(row: Row, settings: Reading, losses: Losses) -> Iterator[LabelledRow]:
    """The labels of one row, one solution for each person and item. Ids are the items' own.

    Raises:
        InputError: with `FILE:LINE`: another shape, an item that the data file does not have, a reward other than -1, 0, 1
            and null, a step number that the item does not have, a 0 that may mean two things.
        UsageError: no data file.
    """
    if settings.items is None:
        raise UsageError(
            "Potato's files hold labels and no text: name the data file that its annotators were shown with `items`"
        )
    check_readable(settings.items)
    facts = Path(settings.items).stat()
    yield from read_with(
        row, _items(settings.items, facts.st_mtime_ns, facts.st_size), settings, losses, settings.items
    )


def read_with(
    row: Row, items: Mapping[str, Shown], settings: Reading, losses: Losses, name: str
) -> Iterator[LabelledRow]:
    """As `read`, with the items that were shown, by id, from the data file `name`."""
    rest = {name: value for name, value in row.data.items() if name not in _KNOWN and value is not None}
    if STATE_KEYS[0] in row.data:  # the state of a person's whole session
        for key in rest:
            losses.lose(f"{key} of Potato's user_state.json is left out", row.where)
        rest = {}
    for id_, person, schema, label in _labels(row):
        item = items.get(id_)
        if item is None:
            raise InputError(
                f"there is no item {id_!r} in {name}; expected the data file that was annotated",
                where=row.where,
                field="instance_id",
            )
        judgements = _judgements(label, item, person, row, settings, losses)
        if not any(judgements):
            losses.drop(
                "nothing was marked (in Potato, a flawless solution that nobody clicked looks the same)",
                row.where,
            )
            continue
        yield LabelledRow(
            labelled=LabelledSolution(solution=item.solution, judgements=judgements),
            where=row.where,
            meta=origin(
                row,
                "potato",
                rest,
                None,
                schema=schema,
                mode=label.get("mode"),
                **_index(item),
            ),
        )


def _index(item: Shown) -> dict[str, Any]:
    """Potato's numbers of the steps, where they are not the steps' own."""
    index = list(item.step_of)
    return {} if index == list(range(len(index))) else {"index": index}


def _labels(row: Row) -> Iterator[tuple[str, str, str | None, dict[str, Any]]]:
    """Item, person, schema and the label's object."""
    data = row.data
    if all(key in data for key in EXPORT_KEYS):
        yield (
            word(data["instance_id"], row, "instance_id"),
            word(data["annotator"], row, "annotator"),
            None,
            data,
        )
        return
    if all(key in data for key in ANNOTATION_KEYS):
        id_, person = word(data["instance_id"], row, "instance_id"), word(data["user_id"], row, "user_id")
        for schema, named in _object(data["labels"], row, "labels").items():
            for value in _object(named, row, f"labels.{schema}").values():
                if (label := _label(value, row, f"labels.{schema}")) is not None:
                    yield id_, person, schema, label
        return
    if not all(key in data for key in STATE_KEYS):
        raise InputError(
            "expected Potato's user_state.json, annotations.jsonl or JSON lines export, found "
            f"{', '.join(map(repr, data))}",
            where=row.where,
        )
    person = word(data.get("user_id"), row, "user_id")
    for id_, pairs in _object(data[STATE_KEYS[0]], row, STATE_KEYS[0]).items():
        field = f"{STATE_KEYS[0]}.{id_}"
        for pair in pairs if isinstance(pairs, list) else [None]:
            match pair:
                case [{"schema": str() as schema}, value]:
                    if (label := _label(value, row, field)) is not None:
                        yield id_, person, schema, label
                case _:
                    raise InputError(
                        "expected pairs of a label's name and its value", where=row.where, field=field
                    )


def _object(value: object, row: Row, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"expected an object, found {json_type(value)}", where=row.where, field=field)
    return value


def _label(value: object, row: Row, field: str) -> dict[str, Any] | None:
    """The label's object; None for a label of another schema (a choice, a text)."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return None
    try:
        label = json.loads(value)
    except ValueError as error:
        raise InputError(
            f"expected JSON in the label's text: {error}", where=row.where, field=field
        ) from None
    return label if isinstance(label, dict) and "steps" in label else None


def _judgements(
    label: dict[str, Any], item: Shown, person: str, row: Row, settings: Reading, losses: Losses
) -> tuple[tuple[Judgement, ...], ...]:
    listed = label.get("steps")
    mode = label.get("mode")
    if not isinstance(listed, list) or mode not in ("first_error", "per_step"):
        raise InputError(
            "expected 'steps' (a list) and 'mode' (first_error or per_step) in the label",
            where=row.where,
            field="steps",
        )
    marks = sorted((_mark(raw, at, item, row) for at, raw in enumerate(listed)), key=lambda mark: mark.turn)
    zero = _meaning_of_zero(mode, marks, settings, row)
    judged: list[list[Judgement]] = [[] for _ in item.solution.steps]
    over = False
    for mark in marks:
        step = item.step_of.get(mark.turn)
        if step is None:
            losses.lose(
                "a mark on a turn of the user or a tool is left out", row.where, mark.reward in (-1, 1)
            )
        elif over:
            losses.lose("a mark after the first error, which Potato wrote and nobody judged", row.where)
        else:
            judged[step] += _said(mark, person, zero)
        # In this mode every later mark is the click's shadow, whatever turn it was on.
        over = over or (mode == "first_error" and mark.reward == -1)
    return tuple(map(tuple, judged))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mark:
    turn: int
    reward: Literal[-1, 0, 1] | None
    by_ai: bool
    verified: bool
    ai_reward: Literal[-1, 0, 1] | None
    ai_reason: str | None
    confidence: float | None


_REWARDS: dict[object, Literal[-1, 0, 1] | None] = {-1: -1, 0: 0, 1: 1, None: None}


def _mark(raw: Any, at: int, item: Shown, row: Row) -> _Mark:
    field = f"steps.{at}"
    step = _object(raw, row, field)
    turn = step.get("index")
    if isinstance(turn, bool) or not isinstance(turn, int) or not 0 <= turn < item.listed:
        raise InputError(
            f"expected the index of one of {item.listed} steps, found {turn!r}",
            where=row.where,
            field=f"{field}.index",
        )
    for key in ("reward", "ai_reward"):
        value = step.get(key)
        if isinstance(value, bool | str | list | dict) or value not in _REWARDS:
            raise InputError(
                f"expected -1, 0, 1 or null, found {value!r}", where=row.where, field=f"{field}.{key}"
            )
    confidence, reason = step.get("confidence"), step.get("ai_reasoning")
    sure = isinstance(confidence, int | float) and not isinstance(confidence, bool) and 0 <= confidence <= 1
    return _Mark(
        turn=turn,
        reward=_REWARDS[step.get("reward")],
        by_ai=step.get("source") == AI,
        verified=step.get("verified", step.get("source") != AI) is True,
        ai_reward=_REWARDS[step.get("ai_reward")],
        ai_reason=reason if isinstance(reason, str) and reason else None,
        confidence=float(confidence) if sure and confidence is not None else None,
    )


def _meaning_of_zero(
    mode: str, marks: list[_Mark], settings: Reading, row: Row
) -> Literal["neutral", "unjudged"]:
    if mode == "first_error":
        return "unjudged"
    if settings.zero is not None:
        return settings.zero
    if any(mark.reward is None for mark in marks):
        return "neutral"
    if any(mark.reward == 0 for mark in marks):
        raise InputError(
            "a reward of 0 is neutral or unmarked in Potato, by a setting that its file does not hold: set "
            "`zero` neutral (allow_neutral was on) or `zero` unjudged",
            where=row.where,
            field="steps",
        )
    return "unjudged"


def _said(mark: _Mark, person: str, zero: str) -> Iterator[Judgement]:
    def meant(reward: Literal[-1, 0, 1] | None) -> bool:
        return reward is not None and (reward != 0 or zero == "neutral")

    ai = mark.ai_reward if mark.ai_reward is not None else mark.reward if mark.by_ai else None
    if meant(ai):
        yield Judgement(
            kind="correctness", judge=AI, rating=ai, confidence=mark.confidence, note=mark.ai_reason
        )
    if meant(mark.reward) and (mark.verified or not mark.by_ai):
        note = CONFIRMED if mark.by_ai else None
        yield Judgement(kind="correctness", judge=f"human:{person}", rating=mark.reward, note=note)


@lru_cache(maxsize=1)
def _items(file: str, _changed: int, _size: int) -> Mapping[str, Shown]:
    """The data file by id, read again when it has changed; it is held in memory, since labels come in another order."""
    items: dict[str, Shown] = {}
    for row in read_rows(file):
        item = shown(row, Keys())
        id_ = str(item.solution.id)
        if id_ in items:
            raise InputError(
                f"the id {id_!r} stands twice; expected every item once", where=row.where, field="id"
            )
        items[id_] = item
    return items
