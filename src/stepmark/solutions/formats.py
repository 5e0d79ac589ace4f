"""Files of solutions become `Solution` records: which shapes are read, and how strictly.

A row's keys say which shape it has; every shape may carry `id`, `answer`, `source` and `meta` too.

=============  =====================================================================================
shape          keys
=============  =====================================================================================
steps          `problem`, `steps` (a list of strings)
solution       `problem`, `solution` (a text, cut by `solutions.segmentation`)
TRL            `prompt`, `completions` (a list of strings), optional `labels` (one a completion)
chat           `messages` (cut by `solutions.traces`: an assistant turn is a step)
ProcessBench   `id`, `generator`, `problem`, `steps`, `final_answer_correct`, `label`
=============  =====================================================================================

A key that no shape knows is refused, because it is a typo as often as not; a caller's own data rides under
`meta`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from stepmark.errors import InputError
from stepmark.records import Problem, Refusal, Solution, Step
from stepmark.store import Row, json_type, read_rows

if TYPE_CHECKING:
    from stepmark.solutions.segmentation import Segmentation

GRADED_KEYS = (
    "scores",
    "score",
    "aggregate",
    "first_error",
    "first_error_step",
    "threshold",
    "prm",
    "score_kind",
    "classes",
    "class_names",
    "critiques",
    "outcome",
    "outcome_model",
)
"""What grading adds to a row (`models.grading.to_row`); no input row may have them."""

_COMMON = ("id", "answer", "source", "meta")
_SHAPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # shape: (the keys that it must have, the further keys that it may have)
    "ProcessBench": (("id", "generator", "problem", "steps", "final_answer_correct", "label"), ()),
    "chat": (("messages",), ()),
    "TRL": (("prompt", "completions"), ("labels",)),
    "steps": (("problem", "steps"), ()),
    "solution": (("problem", "solution"), ()),
}
_KNOWN = tuple(dict.fromkeys(key for must, may in _SHAPES.values() for key in (*must, *may, *_COMMON)))
_OTHER_WORDS = {
    "question": "problem",
    "query": "problem",
    "instruction": "problem",
    "response": "solution",
    "output": "solution",
    "generation": "solution",
    "completion": "completions",
    "conversation": "messages",
    "conversations": "messages",
    "ground_truth": "answer",
    "metadata": "meta",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SolutionRow:
    """A solution, the row that it was read from, and where that stands."""

    solution: Solution
    row: dict[str, Any]
    """The row as it was read; the graded row begins with it."""
    where: str
    """`FILE:LINE`."""
    why: str | None = None
    """Why the text was cut as `solution.split` says; None when the steps were given."""


@overload
def read_solutions(
    path: str | Path, *, how: str = "auto", marker: str | None = None, keep_going: Literal[False] = False
) -> Iterator[SolutionRow]: ...
@overload
def read_solutions(
    path: str | Path, *, how: str = "auto", marker: str | None = None, keep_going: bool
) -> Iterator[SolutionRow | Refusal]: ...
def read_solutions(
    path: str | Path, *, how: str = "auto", marker: str | None = None, keep_going: bool = False
) -> Iterator[SolutionRow | Refusal]:
    """Read a file of solutions as a stream.

    Args:
        path: JSON lines, gzip when the name ends in ".gz"; "-" for standard input.
        how: how a `solution` or `messages` is cut into steps (`solutions.segmentation`); ready-made steps are
            taken as they are.
        marker: the separator, when `how` is "marker".
        keep_going: yield a `Refusal` in the place of a row that is no solution, instead of raising.

    Raises:
        InputError: with `FILE:LINE` and the field: whatever `store.read_rows` refuses; an unknown or missing key,
            a wrong type, a blank problem, no steps, a blank step, both `steps` and `solution`.
        UnknownNameError: no such way to cut.
    """
    rows = read_rows(path, keep_going=keep_going)
    return _read_solutions(rows, how, marker, keep_going)


def _read_solutions(
    rows: Iterator[Row | Refusal], how: str, marker: str | None, keep_going: bool
) -> Iterator[SolutionRow | Refusal]:
    for row in rows:
        if isinstance(row, Refusal):
            yield row
            continue
        try:
            yield read_solution(row.data, where=row.where, how=how, marker=marker)
        except InputError as error:
            if not keep_going:
                raise
            yield Refusal(solution=None, error=error)


def read_solution(
    row: dict[str, Any], *, where: str = "row", how: str = "auto", marker: str | None = None
) -> SolutionRow:
    """One row as a solution; see `read_solutions`."""
    try:
        return _read_solution(row, where, how, marker)
    except InputError as error:
        raise error.at(where) from None


def _read_solution(row: dict[str, Any], where: str, how: str, marker: str | None) -> SolutionRow:
    shape = _shape(row)
    id_ = row.get("id")
    if isinstance(id_, bool) or not isinstance(id_, str | int | None):
        raise InputError(f"expected a string or a whole number, found {json_type(id_)}", field="id")
    answer, source = _optional_text(row, "answer"), _optional_text(row, "source")
    if row.get("meta") is not None and not isinstance(row["meta"], dict):
        raise InputError(f"expected an object, found {json_type(row['meta'])}", field="meta")
    if shape == "ProcessBench":
        source = _check_processbench(row)

    cut: Segmentation | None = None
    if shape == "chat":
        from stepmark.solutions.traces import read_messages

        problem, cut = read_messages(_list(row, "messages"), where=where, how=how, marker=marker)
        problem = replace(problem, answer=answer or problem.answer)
    else:
        problem = Problem(text=_text(row, "prompt" if shape == "TRL" else "problem"), answer=answer)
    if shape == "solution":
        from stepmark.solutions.segmentation import split

        text = _text(row, "solution")
        if how == "agent":
            raise InputError(
                "a plain text has no turns to cut by 'agent'; a conversation goes under 'messages'",
                field="solution",
            )
        cut = split(text, how, marker=marker)
    steps = cut.steps if cut is not None else _ready_steps(row, "completions" if shape == "TRL" else "steps")
    if shape == "TRL":
        _check_trl_labels(row, len(steps))
    solution = Solution(
        problem=problem,
        steps=steps,
        id=None if id_ is None else str(id_),
        split=None if cut is None else cut.how,
        source=source,
    )
    return SolutionRow(solution=solution, row=row, where=where, why=None if cut is None else cut.why)


def _shape(row: dict[str, Any]) -> str:
    """The shape that a row's keys make.

    Raises:
        InputError: none, two at once, or a key too many.
    """
    graded = [key for key in GRADED_KEYS if key in row]
    if len(graded) > 2:
        raise InputError(
            f"unknown key: this row was graded already ({', '.join(graded)} are what grading adds). Give the file "
            "that was graded, or take these keys out first",
            field=graded[0],
        )
    if graded:
        raise InputError(
            "unknown key: grading writes it. Take it out, or put data of your own under 'meta'",
            field=graded[0],
        )
    if "steps" in row and "solution" in row:
        raise InputError("found both 'steps' and 'solution': expected one of them", field="solution")
    shape = next((name for name, (must, _) in _SHAPES.items() if all(key in row for key in must)), None)
    must, may = _SHAPES[shape] if shape else ((), ())
    for key in row:
        if key not in (*must, *may, *_COMMON) and (shape or key not in _KNOWN):
            raise _unknown_key(key, shape)
    if shape is None:
        raise InputError(f"expected {_EXPECTED}; found {_quoted(row) if row else 'an empty object'}")
    return shape


def _unknown_key(key: str, shape: str | None) -> InputError:
    must, may = _SHAPES[shape] if shape else (_KNOWN, ())
    known = dict.fromkeys((*must, *may, *_COMMON))
    near = [word for word in (_OTHER_WORDS.get(key.lower()),) if word in known]
    near = near or difflib.get_close_matches(key.lower(), list(known), n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if shape in ("steps", "solution") and key in _SHAPES["ProcessBench"][0]:
        hint = f" A ProcessBench row has all of {_quoted(_SHAPES['ProcessBench'][0])}."
    expected = (
        f"Known beside {_quoted(must)}: {_quoted((*may, *_COMMON))}" if shape else f"Expected {_EXPECTED}"
    )
    return InputError(f"unknown key.{hint} {expected}; data of your own goes under 'meta'", field=key)


def _quoted(keys: Iterable[str]) -> str:
    return ", ".join(repr(key) for key in keys)


_EXPECTED = "the keys 'problem' and 'steps', or 'problem' and 'solution', or 'prompt' and 'completions', or 'messages'"


def _text(row: dict[str, Any], key: str) -> str:
    value = row[key]
    if not isinstance(value, str):
        hint = ". A conversation goes under 'messages'" if key == "prompt" and isinstance(value, list) else ""
        raise InputError(f"expected a string, found {json_type(value)}{hint}", field=key)
    if not value.strip():
        raise InputError(
            f"expected a text, found {'only white space' if value else 'an empty string'}", field=key
        )
    return value


def _optional_text(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"expected a string or null, found {json_type(value)}", field=key)
    return value


def _list(row: dict[str, Any], key: str) -> list[Any]:
    value = row[key]
    if not isinstance(value, list):
        raise InputError(f"expected a list, found {json_type(value)}", field=key)
    if not value:
        raise InputError("expected at least one entry, found an empty list", field=key)
    return value


def _ready_steps(row: dict[str, Any], key: str) -> tuple[Step, ...]:
    texts = _list(row, key)
    for index, text in enumerate(texts):
        place = f"step {index} (0-based; number {index + 1} of {len(texts)})"
        if not isinstance(text, str):
            raise InputError(f"{place}: expected a string, found {json_type(text)}", field=key)
        if not text.strip():
            found = "only white space" if text else "an empty string"
            raise InputError(f"{place}: expected a text, found {found}", field=key)
    return tuple(Step(text=text) for text in texts)


def _check_trl_labels(row: dict[str, Any], steps: int) -> None:
    if row.get("labels") is None:
        return
    labels = _list(row, "labels")
    if len(labels) != steps:
        raise InputError(f"expected one label a completion ({steps}), found {len(labels)}", field="labels")
    for index, label in enumerate(labels):
        if not isinstance(label, bool | int | float):
            raise InputError(
                f"label {index} (0-based): expected true, false or a number, found {json_type(label)}",
                field="labels",
            )


def _check_processbench(row: dict[str, Any]) -> str:
    generator, correct, label = row["generator"], row["final_answer_correct"], row["label"]
    if not isinstance(generator, str):
        raise InputError(f"expected a string, found {json_type(generator)}", field="generator")
    if not isinstance(correct, bool):
        raise InputError(f"expected true or false, found {json_type(correct)}", field="final_answer_correct")
    steps = _list(row, "steps")
    if isinstance(label, bool) or not isinstance(label, int) or not -1 <= label < len(steps):
        raise InputError(
            f"expected the 0-based index of the first wrong step ({len(steps)} steps) or -1, found {label!r}",
            field="label",
        )
    return generator
