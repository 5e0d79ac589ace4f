"""Step labels made in Potato (its `process_reward` schema), read from its own files.

=====================  =========================================================================================
file                   rows
=====================  =========================================================================================
user_state.json        `instance_id_to_label_to_value`: {ITEM: [[{`schema`, `name`}, JSON text], …]}; one person
annotations.jsonl      `instance_id`, `user_id`, `labels`: {SCHEMA: {NAME: JSON text}}
JSON lines export      `instance_id`, `annotator`, `steps`, `mode`
=====================  =========================================================================================

The JSON text is {`steps`: [{`index`, `reward`, `source`, `verified`, `ai_reward`, `ai_reasoning`, `confidence`}], `mode`}.
None of these files holds the problem or the steps: they are joined by id with the data file that was shown (`--items`), JSON
lines with `id`, the problem under `task_description`, `problem`, `question`, `prompt` or `text`, and the steps under `steps`,
`structured_turns` or `cot_steps`. A step is a text or an object with its text under `action`, `content`, `reasoning`,
`text` or `thought`. Where steps have a `role`, only the assistant's (or agent's) are steps: the others are what the world
said after them, and a user's turns before the first stand under the problem. Potato rates those turns too; that is left out.

What a reward means:

- mode `first_error`: a click on the first wrong step writes -1 on it *and on all that follow*, which nobody judged. Only
  the first -1 counts here; what follows stays unjudged. 0 is unmarked.
- mode `per_step`: -1 and 1; null is unmarked, and 0 then is neutral. In a file where no reward is null, 0 may mean either;
  `--zero neutral` or `--zero unjudged` says which.
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
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.solutions.interchange.files import rows_of
from stepmark.solutions.interchange.rows import LabelledRow, Losses, Reading, origin
from stepmark.store import Row, check_readable, json_type

STATE_KEYS = ("instance_id_to_label_to_value",)
ANNOTATION_KEYS = ("instance_id", "user_id", "labels")
EXPORT_KEYS = ("instance_id", "annotator", "steps")
AI = "ai"
"""The judge of labels that Potato's model made."""

_PROBLEM_KEYS = ("task_description", "problem", "question", "prompt", "text")
_STEPS_KEYS = ("steps", "structured_turns", "cot_steps")
_TEXT_KEYS = ("action", "content", "reasoning", "text", "thought")
_GRADED_ROLES = (None, "assistant", "agent", "model")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """An item as it was shown: its solution, and which of Potato's step numbers is which step."""

    solution: Solution
    step_of: Mapping[int, int]
    turns: int


def read(row: Row, settings: Reading, losses: Losses) -> Iterator[LabelledRow]:
    """The labels of one row, one solution for each person and item. Ids are the items' own.

    Raises:
        InputError: with `FILE:LINE`: another shape, an item that the data file does not have, a reward other than -1, 0, 1
            and null, a step number that the item does not have, a 0 that may mean two things.
        UsageError: no data file.
    """
    if settings.items is None:
        raise UsageError(
            "Potato's files hold labels and no text: name the data file that its annotators were shown with --items FILE"
        )
    check_readable(settings.items)
    facts = Path(settings.items).stat()
    items = _items(settings.items, facts.st_mtime_ns, facts.st_size)
    for id_, person, schema, label in _labels(row):
        shown = items.get(id_)
        if shown is None:
            raise InputError(
                f"there is no item {id_!r} in {settings.items}; expected the data file that was annotated",
                where=row.where,
                field="instance_id",
            )
        judgements = _judgements(label, shown, person, row, settings, losses)
        if not any(judgements):
            losses.drop(
                "nothing was marked (in Potato, a flawless solution that nobody clicked looks the same)",
                row.where,
            )
            continue
        yield LabelledRow(
            labelled=LabelledSolution(solution=shown.solution, judgements=judgements),
            where=row.where,
            meta=origin(row, "potato", schema=schema, mode=label.get("mode")),
        )


def _labels(row: Row) -> Iterator[tuple[str, str, str | None, dict[str, Any]]]:
    """Item, person, schema and the label's object."""
    data = row.data
    if all(key in data for key in EXPORT_KEYS):
        yield (
            _word(data["instance_id"], row, "instance_id"),
            _word(data["annotator"], row, "annotator"),
            None,
            data,
        )
        return
    if all(key in data for key in ANNOTATION_KEYS):
        id_, person = _word(data["instance_id"], row, "instance_id"), _word(data["user_id"], row, "user_id")
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
    person = _word(data.get("user_id"), row, "user_id")
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


def _word(value: object, row: Row, field: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"expected a name, found {json_type(value)}", where=row.where, field=field)
    return str(value)


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
    label: dict[str, Any], shown: _Shown, person: str, row: Row, settings: Reading, losses: Losses
) -> tuple[tuple[Judgement, ...], ...]:
    listed = label.get("steps")
    mode = label.get("mode")
    if not isinstance(listed, list) or mode not in ("first_error", "per_step"):
        raise InputError(
            "expected 'steps' (a list) and 'mode' (first_error or per_step) in the label",
            where=row.where,
            field="steps",
        )
    marks = sorted((_mark(raw, at, shown, row) for at, raw in enumerate(listed)), key=lambda mark: mark.turn)
    zero = _meaning_of_zero(mode, marks, settings, row)
    judged: list[list[Judgement]] = [[] for _ in shown.solution.steps]
    over = False
    for mark in marks:
        step = shown.step_of.get(mark.turn)
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


def _mark(raw: Any, at: int, shown: _Shown, row: Row) -> _Mark:
    field = f"steps.{at}"
    step = _object(raw, row, field)
    turn = step.get("index")
    if isinstance(turn, bool) or not isinstance(turn, int) or not 0 <= turn < shown.turns:
        raise InputError(
            f"expected the index of one of {shown.turns} steps, found {turn!r}",
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
            "a reward of 0 is neutral or unmarked in Potato, by a setting that its file does not hold: say with "
            "--zero neutral (allow_neutral was on) or --zero unjudged",
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
        note = "confirmed the AI's label" if mark.by_ai else None
        yield Judgement(kind="correctness", judge=f"human:{person}", rating=mark.reward, note=note)


@lru_cache(maxsize=1)
def _items(file: str, _changed: int, _size: int) -> Mapping[str, _Shown]:
    """The data file by id, read again when it has changed; it is held in memory, since labels come in another order."""
    items: dict[str, _Shown] = {}
    for row in rows_of(file):
        id_ = _word(row.data.get("id"), row, "id")
        if id_ in items:
            raise InputError(
                f"the id {id_!r} stands twice; expected every item once", where=row.where, field="id"
            )
        items[id_] = _shown(row, id_)
    return items


def _shown(row: Row, id_: str) -> _Shown:
    problem = next((row.data[key] for key in _PROBLEM_KEYS if isinstance(row.data.get(key), str)), "")
    key = next((key for key in _STEPS_KEYS if isinstance(row.data.get(key), list)), None)
    if key is None:
        raise InputError(
            f"expected the steps under {', '.join(_STEPS_KEYS)}, found {', '.join(map(repr, row.data))}",
            where=row.where,
        )
    before: list[str] = [problem] if problem.strip() else []
    steps: list[Step] = []
    step_of: dict[int, int] = {}
    for turn, raw in enumerate(row.data[key]):
        role = raw.get("role") if isinstance(raw, dict) else None
        text = _text_of_turn(raw, row, f"{key}.{turn}")
        if role in _GRADED_ROLES:
            step_of[turn] = len(steps)
            steps.append(Step(text=text))
        elif steps:
            last = steps[-1]
            said = f"\n\n{str(role).capitalize()}:\n{text}"
            steps[-1] = Step(text=last.text, observation=last.observation + said)
        elif text.strip() != problem.strip():
            before.append(f"{str(role).capitalize()}:\n{text}")
    if not before or not steps:
        raise InputError(
            f"expected a problem (under {', '.join(_PROBLEM_KEYS)}, or a user's turn) and at least one step, found "
            f"{'no problem' if not before else 'no step'}",
            where=row.where,
        )
    answer = row.data.get("answer")
    return _Shown(
        solution=Solution(
            problem=Problem(text="\n\n".join(before), answer=answer if isinstance(answer, str) else None),
            steps=tuple(steps),
            id=id_,
        ),
        step_of=step_of,
        turns=len(row.data[key]),
    )


def _text_of_turn(raw: Any, row: Row, field: str) -> str:
    found = raw
    if isinstance(raw, dict):
        found = next(
            (raw[key] for key in _TEXT_KEYS if isinstance(raw.get(key), str) and raw[key].strip()), None
        )
        if found is None and raw:
            found = json.dumps(raw, ensure_ascii=False)  # as Potato shows it
    if not isinstance(found, str) or not found.strip():
        raise InputError(
            f"expected a text, or an object with one under {', '.join(_TEXT_KEYS)}",
            where=row.where,
            field=field,
        )
    return found
