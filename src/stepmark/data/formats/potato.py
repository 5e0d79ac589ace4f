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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from stepmark.data.formats import rows
from stepmark.data.json_rows import json_type, parse_value
from stepmark.data.messages import Chat, written
from stepmark.data.reading import Row, check_readable, read_rows
from stepmark.errors import UsageError
from stepmark.records import Judgement, Problem, Solution, Step, read_record
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
class Shown:
    """An item as it was shown."""

    solution: Solution
    step_of: Mapping[int, int]
    """Potato's number of a turn: the step that it is. Turns that are not rated are not there."""
    thoughts: tuple[str, ...]
    """What each step's object has under `thought` beside its text."""
    turns: int
    """How many entries its list of steps has."""


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
    before = [problem] if problem and problem.strip() else []
    steps: list[Step] = []
    thoughts: list[str] = []
    step_of: dict[int, int] = {}
    for number, raw in enumerate(data[key]):
        text, thought, outputs = _turn(raw, row, f"{key}.{number}", keys)
        role = raw.get("role") if isinstance(raw, dict) else None
        role = role if isinstance(role, str) else None
        if role in GRADED_ROLES:
            step_of[number] = len(steps)
            steps.append(Step(text=text, observation="".join(f"\n\nTool:\n{output}" for output in outputs)))
            thoughts.append(thought)
        elif steps:
            reply = "".join(f"\n\n{str(role).capitalize()}:\n{part}" for part in (text, *outputs) if part)
            steps[-1] = replace(steps[-1], observation=steps[-1].observation + reply)
        elif text.strip() != (problem or "").strip():
            before.append(f"{str(role).capitalize()}:\n{text}")
    if not before or not steps:
        raise row.error(
            f"expected a problem (under {keys.problem or ', '.join(PROBLEM_KEYS)}, or a user's turn) and at least one step, "
            f"found {'no problem' if not before else 'no step'}"
        )
    answer, source = (value if isinstance(value := data.get(k), str) else None for k in ("answer", "source"))
    asked = Problem(text="\n\n".join(before), answer=answer)
    solution = Solution(problem=asked, steps=tuple(steps), id=id_, source=source)
    return Shown(solution=solution, step_of=step_of, thoughts=tuple(thoughts), turns=len(data[key]))


def word(value: object, row: Row, field: str) -> str:
    """A name, which may be a number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise row.error(f"expected a name, found {json_type(value)}", field)
    return str(value)


def _turn(raw: Any, row: Row, field: str, keys: PotatoFields) -> tuple[str, str, list[str]]:
    """The text of an entry of the list of steps, with a line `tool(input)` for each tool call; its thought; and what came back."""
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
        outputs += [] if call.get("output") is None else [_text(call["output"])]
    texts = {name: value for name, value in fields.items() if isinstance(value, str) and value.strip()}
    names = (keys.text, *TEXT_KEYS)
    key = next((name for name in names if name in texts), None)
    if key is None and not calls and (not isinstance(raw, dict) or not raw):
        raise row.error(
            f"expected a text, or an object with one under {', '.join(dict.fromkeys(names))}", field
        )
    text = texts[key] if key is not None else "" if calls else written(raw)  # as Potato shows it
    outputs += [texts["observation"]] if "observation" in texts else []
    thought = "" if key == "thought" else texts.get("thought", "")
    return "\n".join(part for part in (text, *calls) if part), thought, outputs


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else written(value)


STATE_KEYS = ("instance_id_to_label_to_value",)
ANNOTATION_KEYS = ("instance_id", "user_id", "labels")
EXPORT_KEYS = ("instance_id", "annotator", "steps")
_KNOWN = (*STATE_KEYS, *ANNOTATION_KEYS, *EXPORT_KEYS, "mode", "meta")
AI = "ai"
"""The judge of labels that Potato's model made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMarks:
    """The mark of one step, as Potato names its fields."""

    index: int
    reward: rows.Rating | None = None
    source: str | None = None
    verified: bool | None = None
    ai_reward: rows.Rating | None = None
    ai_reasoning: str | None = None
    confidence: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRewards:
    """The marks of one person on one item."""

    steps: tuple[StepMarks, ...]
    mode: Literal["first_error", "per_step"]


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
    for id_, person, schema, raw in _labels(row):
        item = items.get(id_)
        if item is None:
            raise row.error(
                f"there is no item {id_!r} in {settings.items}; expected the data file that was annotated",
                "instance_id",
            )
        label = read_record(StepRewards, raw, where=row.where, lenient=True)
        judgements = _judgements(label, item, person, row, settings)
        if not any(judgements):
            counts.drop(
                "nothing was marked (in Potato, a flawless solution that was not clicked looks the same)",
                row.where,
            )
            continue
        meta = rows.origin(row, "potato", rest, schema=schema, mode=label.mode)
        yield rows.labelled(row, item.solution, judgements, meta)


def _labels(row: Row) -> Iterator[tuple[str, str, str | None, dict[str, Any]]]:
    """Item, person, schema and the label's object."""
    data = row.data
    rows.need(
        row,
        EXPORT_KEYS if "annotator" in data else () if STATE_KEYS[0] in data else ANNOTATION_KEYS,
        "Potato",
    )
    person = word(
        data.get("annotator", data.get("user_id")), row, "annotator" if "annotator" in data else "user_id"
    )
    if "annotator" in data:
        yield word(data["instance_id"], row, "instance_id"), person, None, data
        return
    pairs: list[tuple[Any, str, Any]] = []
    with Chat(where=row.where).reading("the labels of Potato"):
        if STATE_KEYS[0] in data:
            for id_, listed in data[STATE_KEYS[0]].items():
                pairs += [(id_, named["schema"], value) for named, value in listed]
        else:
            for schema, named in data["labels"].items():
                pairs += [(data["instance_id"], schema, value) for value in named.values()]
    for id_, schema, value in pairs:
        if not isinstance(value, str) or not value.lstrip().startswith("{"):
            continue  # of another schema: a choice, a text
        label = parse_value(value)
        if isinstance(label, dict) and "steps" in label:
            yield word(id_, row, "instance_id"), person, str(schema), label


def _judgements(
    label: StepRewards, item: Shown, person: str, row: Row, settings: rows.ReaderSettings
) -> list[tuple[Judgement, ...]]:
    counts = _counting_rewards(label, settings, row)
    judged: list[tuple[Judgement, ...]] = [()] * len(item.solution.steps)
    for mark in sorted(label.steps, key=lambda mark: mark.index):
        if not 0 <= mark.index < item.turns:
            raise row.error(
                f"expected a step's index, {indices(item.turns)}; found {mark.index}", "steps.index"
            )
        if (step := item.step_of.get(mark.index)) is not None:
            judged[step] += tuple(_judgements_of(mark, person, counts))
        if label.mode == "first_error" and mark.reward == -1:
            break  # every later mark is the click's shadow, whatever turn it was on
    return judged


def _counting_rewards(label: StepRewards, settings: rows.ReaderSettings, row: Row) -> Sequence[int]:
    """The rewards that judge: 0 only where it is neutral and not unmarked."""
    rewards = [mark.reward for mark in label.steps]
    if label.mode == "first_error" or settings.zero == "unjudged":
        return (-1, 1)
    if 0 in rewards and settings.zero is None and None not in rewards:
        raise row.error(
            "a reward of 0 is neutral or unmarked in Potato, by a setting that its file does not hold: set "
            "`zero` neutral (allow_neutral was on) or `zero` unjudged",
            "steps",
        )
    return (-1, 0, 1) if settings.zero == "neutral" or None in rewards else (-1, 1)


def _judgements_of(mark: StepMarks, person: str, counts: Sequence[int]) -> Iterator[Judgement]:
    by_ai = mark.source == AI
    ai = mark.reward if mark.ai_reward is None and by_ai else mark.ai_reward
    if ai in counts:
        sure = mark.confidence is not None and 0 <= mark.confidence <= 1
        yield Judgement(
            kind="correctness",
            judge=AI,
            rating=ai,
            confidence=mark.confidence if sure else None,
            note=mark.ai_reasoning or None,
        )
    if mark.reward in counts and (not by_ai or mark.verified):
        note = "confirmed the AI's label" if by_ai else None
        yield Judgement(kind="correctness", judge=f"human:{person}", rating=mark.reward, note=note)


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
