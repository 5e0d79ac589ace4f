"""A solution as a caller has it: a text, step texts, a segmentation, a conversation or a record; always a `Solution` in the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from stepmark.errors import InputError, UsageError
from stepmark.records import Problem, Solution, Step
from stepmark.settings import checked
from stepmark.solutions.segmentation import Segmentation, check_way
from stepmark.solutions.segmentation import side_by_side as three_ways
from stepmark.solutions.segmentation import split as split_text
from stepmark.solutions.traces import read_messages
from stepmark.store import STDIO

ProblemLike: TypeAlias = str | Problem
"""A problem's text, or the record."""

SolutionLike: TypeAlias = (
    str | Sequence[str] | Sequence[Step] | Segmentation | Solution | Sequence[Mapping[str, Any]]
)
"""A text (split into steps), step texts, steps, a `Segmentation`, a `Solution`, or a list of chat messages."""


def problem_of(problem: ProblemLike) -> Problem:
    """The record of a problem.

    Raises:
        InputError: neither a text nor a `Problem`, or a blank one.
    """
    if isinstance(problem, Problem):
        return problem
    if not isinstance(problem, str):
        raise InputError(
            f"expected a problem as a text or a Problem, found {_kind(problem)}", field="problem"
        )
    if not problem.strip():
        raise InputError("expected a problem, found a blank text", field="problem")
    return Problem(text=problem)


def solution_of(
    problem: ProblemLike | None,
    solution: SolutionLike,
    *,
    split_by: str = "auto",
    marker: str | None = None,
    id: str | None = None,
) -> Solution:
    """The record of a solution.

    Args:
        problem: its problem. None where the solution says it: a `Solution`, or chat messages that begin with it.
        solution: see `SolutionLike`. Steps that are given are taken as they are; a text is split.
        split_by: how a text is split (`stepmark.split`).
        marker: the text that ends each step, for `split_by` "marker".
        id: its name; None keeps that of a `Solution`.

    Raises:
        InputError: something else, no steps, a blank step, a `Solution` of another problem.
        UnknownNameError: no such way to split.
    """
    if isinstance(solution, Solution):
        if problem is not None and problem_of(problem).text != solution.problem.text:
            raise InputError(
                f"expected a solution of the problem {problem_of(problem).text[:60]!r}, found one of {solution.problem.text[:60]!r}; "
                "give None as the problem to take the solution's own",
                field="problem",
            )
        return solution if id is None else replace(solution, id=id)
    if isinstance(solution, str):
        segmentation = split_text(solution, split_by, marker=marker)
        return Solution(problem=_needed(problem), steps=segmentation.steps, id=id, split=segmentation.how)
    if isinstance(solution, Segmentation):
        return Solution(problem=_needed(problem), steps=solution.steps, id=id, split=solution.how)
    if isinstance(solution, Mapping) or not isinstance(solution, Sequence):
        raise InputError(
            f"expected {_EXPECTED}, found {_kind(solution)}{_dict_hint(solution)}", field="solution"
        )
    if not solution:
        raise InputError("expected at least one step, found an empty list", field="steps")
    messages = [part for part in solution if isinstance(part, Mapping)]
    if len(messages) == len(solution):
        first, segmentation = read_messages(messages, how=split_by, marker=marker)
        return Solution(
            problem=first if problem is None else problem_of(problem),
            steps=segmentation.steps,
            id=id,
            split=segmentation.how,
        )
    return Solution(
        problem=_needed(problem),
        steps=tuple(_step(index, part, len(solution)) for index, part in enumerate(solution)),
        id=id,
    )


_EXPECTED = (
    "a solution as a text, a list of step texts, a Segmentation, a Solution, or a list of chat messages"
)


def _needed(problem: ProblemLike | None) -> Problem:
    if problem is None:
        raise InputError(
            "expected a problem, found None: only a Solution or chat messages say their own", field="problem"
        )
    return problem_of(problem)


def _step(index: int, part: object, count: int) -> Step:
    if isinstance(part, Step):
        return part
    place = f"step {index + 1} of {count}"
    if not isinstance(part, str):
        raise InputError(f"{place}: expected a text, found {_kind(part)}", field=f"steps[{index}]")
    if not part.strip():
        raise InputError(
            f"{place} is empty or has only white space: expected a text", field=f"steps[{index}]"
        )
    return Step(text=part)


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _dict_hint(value: object) -> str:
    if isinstance(value, Mapping):
        return " (a row of a file goes to stepmark.grade([row], prm))"
    return ""


@checked
def split_file(
    file: str | Path,
    *,
    split: str = "auto",
    marker: str | None = None,
    language: str | None = None,
    side_by_side: bool = False,
) -> dict[str, Segmentation]:
    """Split one solution into steps, and say how and why.

    Args:
        file: a text file in UTF-8 that holds one solution; "-" reads standard input. With `split` agent, a JSON file with chat messages: a
            list, or an object with "messages".
        split: how: auto, line, blank-line, numbered, sentence, marker, code, agent, whole, token.
        marker: the text that ends each step, for `split` marker and auto.
        language: the language of code that does not name its own, for `split` code and auto.
        side_by_side: show three granularities next to each other: the whole, the steps, the words.

    Returns:
        By granularity: "step" alone, or "whole", "step" and "token" with `side_by_side`.

    Raises:
        InputError: the file is not UTF-8, not what the way needs, or blank.
        UsageError: no such file, or a setting that cannot work.
    """
    check_way(split)
    if split == "agent":
        for name, value in (("side_by_side", side_by_side), ("marker", marker), ("language", language)):
            if value:
                raise UsageError(f"an agent's trace is split at its turns: leave out `{name}`")
        return {"step": _trace(file)}
    if str(file).lower().endswith((".jsonl", ".jsonl.gz", ".json.gz")):
        raise UsageError(
            f"{file}: expected one solution as plain text, found a file of rows; `stepmark grade` reads rows and splits as it goes"
        )
    text = _read_text(file)
    try:
        if side_by_side:
            return three_ways(text, split, marker=marker, language=language)
        return {"step": split_text(text, split, marker=marker, language=language)}
    except InputError as error:
        raise error.at(_place(file)) from None


def _place(file: str | Path) -> str:
    return "standard input" if file == STDIO else str(file)


def _read_text(file: str | Path) -> str:
    """The whole text, line ends as they are; a byte order mark at its start is no part of it."""
    try:
        data = sys.stdin.buffer.read() if file == STDIO else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror or error}; expected a text file, or - for standard input"
        ) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"expected UTF-8, found byte 0x{data[error.start]:02x}; convert the file first",
            where=f"{_place(file)}:{line}",
        ) from None


def _trace(file: str | Path) -> Segmentation:
    try:
        data = json.loads(_read_text(file))
    except json.JSONDecodeError as error:
        raise InputError(
            f"expected chat messages as JSON, found something else ({error.msg})",
            where=f"{_place(file)}:{error.lineno}",
        ) from None
    messages: Any = data.get("messages") if isinstance(data, dict) else data
    _, segmentation = read_messages(messages, where=_place(file), how="agent")
    return segmentation
