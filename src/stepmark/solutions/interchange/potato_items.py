"""Potato's data files: rows of any keys with a list of steps, as `process_reward` shows them.

A row has an id, a problem, and a list of steps. A step is a text, or an object with its text under the key that the configuration names
(`step_text_key`, "action") or else under `content`, `reasoning`, `text` or `thought`; one without any is its JSON, as Potato shows it. An
object may have

- `role`: only the assistant's (or agent's, or model's) turns are steps. The others are what the world said after them, and a user's turns
  before the first stand under the problem. Potato rates those turns too.
- `tool_calls` [{`tool`, `input`, `output`}]: the calls belong to the step's text, one line `tool(input)` each; what the tools answered is
  the step's observation.
- `observation`: what the world answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Problem, Solution, Step
from stepmark.store import Row, json_type

PROBLEM_KEYS = ("task_description", "problem", "question", "prompt", "text")
STEPS_KEYS = ("steps", "structured_turns", "cot_steps")
TEXT_KEYS = ("action", "content", "reasoning", "text", "thought")
GRADED_ROLES = (None, "assistant", "agent", "model")


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
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
    """Without tool calls; "" only where there are some."""
    thought: str | None
    """What the step's object has under `thought` beside its text."""
    calls: tuple[tuple[str, str], ...]
    """(tool, input as text)."""
    outputs: tuple[str, ...]
    """What the tools answered, and `observation`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """An item as it was shown: its solution, and which of Potato's step numbers is which step."""

    solution: Solution
    step_of: Mapping[int, int]
    """Potato's number of a turn: the step that it is. Turns that nobody rates are not there."""
    listed: int
    """How many entries its list of steps has."""
    turns: tuple[Turn, ...] = ()
    """All of them."""


def shown(row: Row, keys: Keys) -> Shown:
    """A row of a data file.

    Raises:
        InputError: with `FILE:LINE`: no id, no problem, no steps, a step without text.
    """
    id_ = word(row.data.get(keys.id), row, keys.id)
    problem = _problem(row, keys)
    key = _steps_key(row, keys)
    turns = tuple(_turn(raw, row, f"{key}.{at}", keys) for at, raw in enumerate(row.data[key]))
    before: list[str] = [problem] if problem.strip() else []
    steps: list[Step] = []
    step_of: dict[int, int] = {}
    for number, turn in enumerate(turns):
        heading = str(turn.role).capitalize()
        if turn.role in GRADED_ROLES:
            step_of[number] = len(steps)
            calls = "\n".join(f"{name}({given})" for name, given in turn.calls)
            steps.append(
                Step(
                    text="\n".join(part for part in (turn.text, calls) if part),
                    observation="".join(f"\n\nTool:\n{output}" for output in turn.outputs),
                )
            )
        elif steps:
            last = steps[-1]
            said = "".join(f"\n\n{heading}:\n{text}" for text in (turn.text, *turn.outputs) if text)
            steps[-1] = Step(text=last.text, observation=last.observation + said)
        elif turn.text.strip() != problem.strip():
            before.append(f"{heading}:\n{turn.text}")
    if not before or not steps:
        raise InputError(
            f"expected a problem (under {keys.problem or ', '.join(PROBLEM_KEYS)}, or a user's turn) and at least one step, "
            f"found {'no problem' if not before else 'no step'}",
            where=row.where,
        )
    answer, source = (row.data.get(name) for name in ("answer", "source"))
    return Shown(
        solution=Solution(
            problem=Problem(text="\n\n".join(before), answer=answer if isinstance(answer, str) else None),
            steps=tuple(steps),
            id=id_,
            source=source if isinstance(source, str) else None,
        ),
        step_of=step_of,
        listed=len(turns),
        turns=turns,
    )


def word(value: object, row: Row, field: str) -> str:
    """A name, which may be a number.

    Raises:
        InputError: it is neither.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"expected a name, found {json_type(value)}", where=row.where, field=field)
    return str(value)


def _problem(row: Row, keys: Keys) -> str:
    if keys.problem is not None:
        value = row.data.get(keys.problem)
        if value is not None and not isinstance(value, str):
            raise InputError(
                f"expected a text, found {json_type(value)}", where=row.where, field=keys.problem
            )
        return value or ""
    return next((row.data[key] for key in PROBLEM_KEYS if isinstance(row.data.get(key), str)), "")


def _steps_key(row: Row, keys: Keys) -> str:
    wanted = STEPS_KEYS if keys.steps is None else (keys.steps,)
    key = next((key for key in wanted if isinstance(row.data.get(key), list)), None)
    if key is None:
        raise InputError(
            f"expected the steps under {', '.join(wanted)}, found {', '.join(map(repr, row.data))}",
            where=row.where,
        )
    return key


def _turn(raw: Any, row: Row, field: str, keys: Keys) -> Turn:
    fields: Mapping[str, Any] = raw if isinstance(raw, dict) else {"text": raw}
    role = fields.get("role")
    calls = tuple(_call(call, row, f"{field}.tool_calls.{at}") for at, call in enumerate(_calls(fields)))
    names = (keys.text, *TEXT_KEYS)
    found = next((k for k in names if isinstance(fields.get(k), str) and fields[k].strip()), None)
    text: Any = None if found is None else fields[found]
    if found is None and calls:
        text = ""
    elif found is None and isinstance(raw, dict) and raw:
        text = json.dumps(raw, ensure_ascii=False)  # as Potato shows it
    if not isinstance(text, str):
        raise InputError(
            f"expected a text, or an object with one under {', '.join(dict.fromkeys(names))}",
            where=row.where,
            field=field,
        )
    thought = fields.get("thought")
    observation = fields.get("observation")
    outputs = [output for _, output in calls if output is not None]
    if isinstance(observation, str) and observation.strip():
        outputs.append(observation)
    return Turn(
        role=role if isinstance(role, str) else None,
        text=text,
        thought=thought if isinstance(thought, str) and thought.strip() and found != "thought" else None,
        calls=tuple(call for call, _ in calls),
        outputs=tuple(outputs),
    )


def _calls(fields: Mapping[str, Any]) -> list[Any]:
    calls = fields.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _call(raw: Any, row: Row, field: str) -> tuple[tuple[str, str], str | None]:
    name = raw.get("tool", raw.get("name")) if isinstance(raw, dict) else None
    if not isinstance(name, str) or not name.strip():
        raise InputError(
            "expected a call with the tool's name under 'tool', its 'input' and 'output'",
            where=row.where,
            field=field,
        )
    given, output = raw.get("input"), raw.get("output")
    return (name, _text(given)), None if output is None else _text(output)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
