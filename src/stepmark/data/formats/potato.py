"""Step labels made in Potato (its `process_reward` schema), read from its own files, and its data files.

=====================  =========================================================================================
file                   rows
=====================  =========================================================================================
user_state.json        `instance_id_to_label_to_value`: {ITEM: [[{`schema`, `name`}, JSON text], …]}; one person
annotations.jsonl      `instance_id`, `user_id`, `labels`: {SCHEMA: {NAME: JSON text}}
JSON lines export      `instance_id`, `annotator`, `steps`, `mode`
=====================  =========================================================================================

The JSON text is {`steps`: [{`index`, `reward`, `source`, `verified`, `ai_reward`, `ai_reasoning`, `confidence`}], `mode`}. The problem and the
steps are joined by id from the data file that was shown (`items`). What a reward means:

- mode `first_error`: a click on the first wrong step writes -1 on it *and on all that follow*, which were not judged: only the first -1 counts;
- mode `per_step`: -1 and 1; null is unmarked, and 0 then is neutral. Where no reward is null, the setting `zero` says what 0 means;
- a label whose `source` is the AI and which was not verified is the AI's (judge "ai"), never a person's.

In a data file a step is a text, or an object with its text under `step_text_key` ("action") or one of `TEXT_KEYS`, else its JSON, as Potato shows
it. Only the turns of the assistant (agent, model) are steps: others are what the world said after them, or stand under the problem. `tool_calls`
[{`tool`, `input`, `output`}] belong to the step's text, what the tools answered and `observation` to its observation.

Written, each judge of a row but the AI has a record of its own; with `judge` or `consensus` there is one for the row. `mode` and the steps'
indices are those of the row's `meta.potato` or `meta`; without: `per_step`, 0 to steps - 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from stepmark.data.formats import rows
from stepmark.data.json_rows import json_type
from stepmark.data.messages import written
from stepmark.data.reading import Row, check_readable, read_rows
from stepmark.errors import UsageError
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.words import indices

ABOUT = "Potato's user_state.json, annotations.jsonl or JSON lines export (with `items`)"

PROBLEM_KEYS = ("task_description", "problem", "question", "prompt", "text")
STEPS_KEYS = ("steps", "structured_turns", "cot_steps")
TEXT_KEYS = ("action", "content", "reasoning", "text", "thought")
GRADED_ROLES = (None, "assistant", "agent", "model")


@dataclass(frozen=True, kw_only=True, slots=True)
class PotatoFields:
    """Where a row has what."""

    id: str = "id"
    problem: str | None = None
    """None: the first of `PROBLEM_KEYS` that holds a text."""
    steps: str | None = None
    """None: the first of `STEPS_KEYS` that holds a list."""
    text: str = "action"
    """Tried before the others of `TEXT_KEYS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One entry of the list of steps."""

    role: str | None
    text: str
    """With a line `tool(input)` for each tool call."""
    thought: str | None
    """What the step's object has under `thought` beside its text."""
    outputs: tuple[str, ...]
    """What the tools answered, and `observation`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """An item as it was shown: its solution, and which of Potato's step numbers is which step."""

    solution: Solution
    step_of: Mapping[int, int]
    """Potato's number of a turn: the step that it is. Turns that are not rated are not there."""
    turns: tuple[Turn, ...]
    """All entries of its list of steps."""


def shown(row: Row, keys: PotatoFields) -> Shown:
    """A row of a data file; `InputError` where it has no id, no problem, no steps, or a step without text."""
    data = row.data
    id_ = word(data.get(keys.id), row, keys.id)
    problem = data.get(keys.problem or next((k for k in PROBLEM_KEYS if isinstance(data.get(k), str)), ""))
    if not isinstance(problem, str | None):
        raise row.error(f"expected a text, found {json_type(problem)}", keys.problem)
    names = STEPS_KEYS if keys.steps is None else (keys.steps,)
    key = next((name for name in names if isinstance(data.get(name), list)), None)
    if key is None:
        raise row.error(f"expected the steps under {', '.join(names)}, found {', '.join(map(repr, data))}")
    turns = tuple(_turn(raw, row, f"{key}.{at}", keys) for at, raw in enumerate(data[key]))
    before = [problem] if problem and problem.strip() else []
    steps: list[Step] = []
    step_of: dict[int, int] = {}
    for number, turn in enumerate(turns):
        heading = str(turn.role).capitalize()
        if turn.role in GRADED_ROLES:
            step_of[number] = len(steps)
            answers = "".join(f"\n\nTool:\n{output}" for output in turn.outputs)
            steps.append(Step(text=turn.text, observation=answers))
        elif steps:
            reply = "".join(f"\n\n{heading}:\n{text}" for text in (turn.text, *turn.outputs) if text)
            steps[-1] = replace(steps[-1], observation=steps[-1].observation + reply)
        elif turn.text.strip() != (problem or "").strip():
            before.append(f"{heading}:\n{turn.text}")
    if not before or not steps:
        raise row.error(
            f"expected a problem (under {keys.problem or ', '.join(PROBLEM_KEYS)}, or a user's turn) and at least one step, "
            f"found {'no problem' if not before else 'no step'}"
        )
    answer, source = (value if isinstance(value := data.get(k), str) else None for k in ("answer", "source"))
    asked = Problem(text="\n\n".join(before), answer=answer)
    solution = Solution(problem=asked, steps=tuple(steps), id=id_, source=source)
    return Shown(solution=solution, step_of=step_of, turns=turns)


def word(value: object, row: Row, field: str) -> str:
    """A name, which may be a number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise row.error(f"expected a name, found {json_type(value)}", field)
    return str(value)


def _turn(raw: Any, row: Row, field: str, keys: PotatoFields) -> Turn:
    fields: Mapping[str, Any] = raw if isinstance(raw, dict) else {"text": raw}
    calls, outputs = [], []
    for at, call in enumerate(fields.get("tool_calls") or ()):
        name = call.get("tool", call.get("name")) if isinstance(call, dict) else None
        if not isinstance(name, str) or not name.strip():
            raise row.error(
                "expected a call with the tool's name under 'tool', its 'input' and 'output'",
                f"{field}.tool_calls.{at}",
            )
        calls.append(f"{name}({_text(call.get('input'))})")
        if call.get("output") is not None:
            outputs.append(_text(call["output"]))

    def text_under(name: str) -> str | None:
        value = fields.get(name)
        return value if isinstance(value, str) and value.strip() else None

    names = (keys.text, *TEXT_KEYS)
    key = next((name for name in names if text_under(name)), None)
    text = "" if key is None else fields[key]
    if not text and not calls:
        if not isinstance(raw, dict) or not raw:
            raise row.error(
                f"expected a text, or an object with one under {', '.join(dict.fromkeys(names))}", field
            )
        text = written(raw)  # as Potato shows it
    if (observation := text_under("observation")) is not None:
        outputs.append(observation)
    role = fields.get("role")
    return Turn(
        role=role if isinstance(role, str) else None,
        text="\n".join(part for part in (text, *calls) if part),
        thought=None if key == "thought" else text_under("thought"),
        outputs=tuple(outputs),
    )


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else written(value)


_Rating = Literal[-1, 0, 1]
STATE_KEYS = ("instance_id_to_label_to_value",)
ANNOTATION_KEYS = ("instance_id", "user_id", "labels")
EXPORT_KEYS = ("instance_id", "annotator", "steps")
_KNOWN = (*STATE_KEYS, *ANNOTATION_KEYS, *EXPORT_KEYS, "mode", "meta")
AI = "ai"
"""The judge of labels that Potato's model made."""
CONFIRMED = "confirmed the AI's label"
"""The note of a person's rating that took the AI's label over."""


def sniff(data: Mapping[str, Any]) -> bool:
    """Whether a row is of one of the three files."""
    return any(rows.has(*keys)(data) for keys in (STATE_KEYS, ANNOTATION_KEYS, EXPORT_KEYS))


def read(row: Row, settings: rows.ReaderSettings, counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """The labels of one row, one solution for each person and item. Ids are the items' own.

    Raises:
        InputError: another shape, an item or a step number that the data file does not have, a 0 that may mean two things.
        UsageError: no data file.
    """
    if settings.items is None:
        raise UsageError(
            "Potato's files hold labels and no text: name the data file that its annotators were shown with `items`"
        )
    check_readable(settings.items)
    facts = Path(settings.items).stat()
    items = _items(settings.items, facts.st_mtime_ns, facts.st_size)
    rest = {name: value for name, value in row.data.items() if name not in _KNOWN and value is not None}
    if STATE_KEYS[0] in row.data:  # the state of a person's whole session
        rest = {}
    for id_, person, schema, label in _labels(row):
        item = items.get(id_)
        if item is None:
            raise row.error(
                f"there is no item {id_!r} in {settings.items}; expected the data file that was annotated",
                "instance_id",
            )
        judgements = _judgements(label, item, person, row, settings)
        if not any(judgements):
            counts.drop(
                "nothing was marked (in Potato, a flawless solution that was not clicked looks the same)",
                row.where,
            )
            continue
        index = list(item.step_of)  # Potato's numbers of the steps, where they are not the steps' own
        numbers = {} if index == list(range(len(index))) else {"index": index}
        yield rows.LabelledRow(
            labelled=LabelledSolution(solution=item.solution, judgements=judgements),
            where=row.where,
            meta=rows.origin(row, "potato", rest, schema=schema, mode=label.get("mode"), **numbers),
        )


def _labels(row: Row) -> Iterator[tuple[str, str, str | None, dict[str, Any]]]:
    """Item, person, schema and the label's object."""
    data = row.data
    if rows.has(*EXPORT_KEYS)(data):
        id_, person = (word(data[key], row, key) for key in ("instance_id", "annotator"))
        yield id_, person, None, data
    elif rows.has(*ANNOTATION_KEYS)(data):
        id_, person = (word(data[key], row, key) for key in ("instance_id", "user_id"))
        for schema, named in _object(data["labels"], row, "labels").items():
            for value in _object(named, row, f"labels.{schema}").values():
                if (label := _label(value, row, f"labels.{schema}")) is not None:
                    yield id_, person, schema, label
    elif rows.has(*STATE_KEYS)(data):
        person = word(data.get("user_id"), row, "user_id")
        for id_, pairs in _object(data[STATE_KEYS[0]], row, STATE_KEYS[0]).items():
            field = f"{STATE_KEYS[0]}.{id_}"
            for pair in pairs if isinstance(pairs, list) else [None]:
                match pair:
                    case [{"schema": str() as schema}, value]:
                        if (label := _label(value, row, field)) is not None:
                            yield id_, person, schema, label
                    case _:
                        raise row.error("expected pairs of a label's name and its value", field)
    else:
        raise row.error(
            "expected Potato's user_state.json, annotations.jsonl or JSON lines export, found "
            f"{', '.join(map(repr, data))}"
        )


def _object(value: object, row: Row, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise row.error(f"expected an object, found {json_type(value)}", field)
    return value


def _label(value: object, row: Row, field: str) -> dict[str, Any] | None:
    """The label's object; None for a label of another schema (a choice, a text)."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return None
    try:
        label = json.loads(value)
    except ValueError as error:
        raise row.error(f"expected JSON in the label's text: {error}", field) from None
    return label if isinstance(label, dict) and "steps" in label else None


def _judgements(
    label: dict[str, Any], item: Shown, person: str, row: Row, settings: rows.ReaderSettings
) -> tuple[tuple[Judgement, ...], ...]:
    listed = label.get("steps")
    mode = label.get("mode")
    if not isinstance(listed, list) or mode not in ("first_error", "per_step"):
        raise row.error(
            "expected 'steps' (a list) and 'mode' (first_error or per_step) in the label", "steps"
        )
    marks = sorted(
        (_mark(raw, at, item, row) for at, raw in enumerate(listed)), key=lambda mark: mark["index"]
    )
    counts = _counting_rewards(mode, marks, settings, row)
    judged: list[list[Judgement]] = [[] for _ in item.solution.steps]
    over = False
    for mark in marks:
        step, reward = item.step_of.get(mark["index"]), mark.get("reward")
        if step is not None and not over:
            judged[step] += _judgements_of(mark, person, counts)
        # In this mode every later mark is the click's shadow, whatever turn it was on.
        over = over or (mode == "first_error" and reward == -1)
    return tuple(map(tuple, judged))


def _mark(raw: Any, at: int, item: Shown, row: Row) -> dict[str, Any]:
    """A step's mark, whose index and rewards are what they should be."""
    field = f"steps.{at}"
    mark = _object(raw, row, field)
    turn = mark.get("index")
    if isinstance(turn, bool) or not isinstance(turn, int) or not 0 <= turn < len(item.turns):
        raise row.error(
            f"expected a step's index, {indices(len(item.turns))}; found {turn!r}",
            f"{field}.index",
        )
    for key in ("reward", "ai_reward"):
        value = mark.get(key)
        if isinstance(value, bool) or value not in (-1, 0, 1, None):
            raise row.error(f"expected -1, 0, 1 or null, found {value!r}", f"{field}.{key}")
    return mark


def _counting_rewards(
    mode: str, marks: list[dict[str, Any]], settings: rows.ReaderSettings, row: Row
) -> tuple[_Rating, ...]:
    """The rewards that judge: 0 only where it is neutral and not unmarked."""
    if mode == "first_error" or settings.zero == "unjudged":
        return (-1, 1)
    rewards = [mark.get("reward") for mark in marks]
    if settings.zero == "neutral" or None in rewards:
        return (-1, 0, 1)
    if 0 in rewards:
        raise row.error(
            "a reward of 0 is neutral or unmarked in Potato, by a setting that its file does not hold: set "
            "`zero` neutral (allow_neutral was on) or `zero` unjudged",
            "steps",
        )
    return (-1, 1)


def _judgements_of(mark: dict[str, Any], person: str, counts: tuple[_Rating, ...]) -> Iterator[Judgement]:
    reward, by_ai = mark.get("reward"), mark.get("source") == AI
    ai = mark.get("ai_reward")
    if ai is None and by_ai:
        ai = reward
    if ai in counts:
        sure, reason = mark.get("confidence"), mark.get("ai_reasoning")
        confident = isinstance(sure, int | float) and not isinstance(sure, bool) and 0 <= sure <= 1
        yield Judgement(
            kind="correctness",
            judge=AI,
            rating=ai,
            confidence=float(sure) if confident and sure is not None else None,
            note=reason if isinstance(reason, str) and reason else None,
        )
    if reward in counts and (not by_ai or mark.get("verified") is True):
        note = CONFIRMED if by_ai else None
        yield Judgement(kind="correctness", judge=f"human:{person}", rating=reward, note=note)


@lru_cache(maxsize=1)
def _items(file: str, _changed: int, _size: int) -> Mapping[str, Shown]:
    """The data file by id, read again when it has changed; it is held in memory, since labels come in another order."""
    items: dict[str, Shown] = {}
    for row in read_rows(file):
        item = shown(row, PotatoFields())
        id_ = str(item.solution.id)
        if id_ in items:
            raise row.error(f"the id {id_!r} stands twice; expected every item once", "id")
        items[id_] = item
    return items


def write(row: rows.LabelledRow, settings: rows.Writing) -> Iterator[dict[str, Any]]:
    """The records of one row."""
    steps = row.labelled.judgements
    judges = list(dict.fromkeys(j.judge for step in steps for j in step if j.judge != AI))
    if settings.judge is not None or settings.consensus is not None:
        labels = rows.labels_of(row, settings, shares=False)
        judges = [label.judge for label in labels if label is not None][:1]
    if not judges:
        raise rows.NotRepresentableError(
            "no step was judged, and a record of Potato's holds a person's rewards"
        )
    for judge in judges:
        if settings.judge is None and settings.consensus is None:
            own = tuple(tuple(j for j in step if j.judge == judge) for step in steps)
            alone = replace(row, labelled=replace(row.labelled, judgements=own, root=()))
            labels = rows.labels_of(alone, settings, shares=False)
        yield _record(row, judge, labels)


def _record(row: rows.LabelledRow, judge: str, labels: rows.Labels) -> dict[str, Any]:
    facts = row.meta if row.meta.get("format") == "potato" else row.meta.get("potato")
    facts = facts if isinstance(facts, Mapping) else {}
    ratings = [None if label is None else label.rating for label in labels]
    first_error = facts.get("mode") == "first_error" and 0 not in ratings
    index = facts.get("index")
    if not isinstance(index, list) or len(index) != len(ratings):
        index = list(range(len(ratings)))
    unmarked = None if 0 in ratings or facts.get("allow_neutral") is not False else 0
    rewards = _cascade(ratings) if first_error else [unmarked if r is None else r for r in ratings]
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
        for step, judgements, rating in zip(steps, row.labelled.judgements, ratings, strict=True):
            step.update(_ai_fields(judgements, judge, rating))
        record["ai_prelabeled"] = True
        record["all_verified"] = all(step["verified"] for step in steps)
    return record


def _cascade(ratings: Sequence[_Rating | None]) -> list[_Rating | None]:
    """What a click on the first wrong step writes in Potato."""
    first = next((at for at, rating in enumerate(ratings) if rating == -1), len(ratings))
    return [-1 if at >= first else rating or 0 for at, rating in enumerate(ratings)]


def _ai_fields(judgements: Sequence[Judgement], judge: str, rating: _Rating | None) -> dict[str, Any]:
    """A step's fields about the AI's label."""
    ai = next((j for j in judgements if j.judge == AI), None)
    confirmed = any(j.judge == judge and j.note == CONFIRMED for j in judgements)
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
