"""Rows become `Solution` records: which shapes are read, and how strictly.

A row's columns say which shape it has:

=============  =====================================================================================
shape          columns
=============  =====================================================================================
steps          `problem`, `steps` (a list of strings)
solution       `problem`, `solution` (a text, cut by `data.steps.splitting`)
candidates     `problem`, `solutions` (a list of texts, of lists of steps, or of objects with a text): a solution each
chat           `messages` (cut by `data.conversations`: an assistant turn is a step)
TRL            `prompt`, `completions` (a list of strings: the steps), optional `labels` (one a step, as beside `steps`)
a trace        of an agent, as its tool writes it (`data.traces`): brought into the shape chat first
ProcessBench   `id`, `generator`, `problem`, `steps`, `final_answer_correct`, `label`
labels         `solution`, `judgements`, as `stepmark label` writes them; the judgements are left out
graded         what `stepmark grade` wrote: what was graded is read, and the scores are left out
=============  =====================================================================================

Every shape may have `id`, `answer` (the problem's reference answer), `source` (who wrote the solution), `problem_id`, `problem_source` and
`meta`. The common names of these (`question`, `response`, `ground_truth`, ...: `data.columns`) mean the same. Any other column rides along, in
the row and in `SolutionRow.meta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stepmark.data.columns import (
    ALIASES,
    CONTENT,
    CONTENT_NAMES,
    Columns,
    chosen,
    columns_of,
    content_of,
    identifier,
    plain,
    problem_column,
    quoted,
    reference_answer,
    riding,
)
from stepmark.data.json_rows import json_type
from stepmark.data.messages import loaded, plain_messages, written
from stepmark.data.reading import Row, Source, read_rows
from stepmark.data.steps.thoughts import Reasoning
from stepmark.data.traces import chat_rows
from stepmark.errors import InputError
from stepmark.records import (
    GradedSolution,
    LabelledSolution,
    Problem,
    Refusal,
    Solution,
    Step,
    read_record,
    record_row,
)
from stepmark.words import amount

if TYPE_CHECKING:
    from stepmark.data.steps.splitting import Segmentation

GRADED_KEYS = (
    "scores", "score", "aggregate", "first_error", "first_error_step", "threshold", "prm", "score_kind", "classes", "class_names",
    "critiques", "outcome", "outcome_model", "findings", "first_error_by",
)  # fmt: skip
"""What grading adds to a row (`models.prm.to_row`); columns of others with these names move under `meta`."""

PROCESSBENCH_KEYS = ("id", "generator", "problem", "steps", "final_answer_correct", "label")


@dataclass(frozen=True, kw_only=True, slots=True)
class SolutionRow:
    """A solution, the row that it was read from, and where that stands."""

    solution: Solution
    row: dict[str, Any]
    """The row as it was read; the graded row begins with it. Of a row of several solutions, that of this one alone."""
    where: str
    """`Row.where`."""
    why: str | None = None
    """Why the text was cut as `solution.split` says; None when the steps were given."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The columns that mean nothing here."""
    own_meta: Mapping[str, Any] = field(default_factory=dict)
    """The row's own `meta`."""
    messages: Sequence[Mapping[str, Any]] | None = None
    """The conversation, of a row that is one."""

    @property
    def meta(self) -> dict[str, Any]:
        """What else the row says: the columns that mean nothing here, and its own `meta`."""
        return {**self.columns, **self.own_meta}


def read_solutions(
    source: Source,
    *,
    columns: Columns | None = None,
    how: str = "auto",
    marker: str | None = None,
    reasoning: Reasoning = "keep",
    keep_going: bool = False,
) -> Iterator[SolutionRow | Refusal]:
    """Read solutions as a stream.

    Args:
        source: as `store.read_rows`.
        columns: as there.
        how: how a `solution` or `messages` is cut into steps (`data.steps.splitting`); ready-made steps are taken as they are.
        marker: the separator, when `how` is "marker".
        reasoning: what becomes of thoughts (`data.steps.thoughts`).
        keep_going: yield a `Refusal` in the place of a row that is no solution, instead of raising.

    Raises:
        InputError: with the place and the field: whatever `store.read_rows` refuses; a misspelt or missing column, two columns that
            may be the same field, a wrong type, a blank problem, no steps, a blank step.
        UnknownNameError: no such way to cut.
    """
    rows = read_rows(source, columns=columns, keep_going=keep_going)  # a missing file is an error at once

    def solutions() -> Iterator[SolutionRow | Refusal]:
        for row in chat_rows(rows, keep_going=keep_going):
            if isinstance(row, Refusal):
                yield row
                continue
            try:
                yield from solutions_of(row, how=how, marker=marker, reasoning=reasoning)
            except InputError as error:
                if not keep_going:
                    raise
                yield Refusal(solution=None, error=error)

    return solutions()


def is_graded(row: Row) -> bool:
    """Whether grading wrote a row (`models.prm.to_row`)."""
    return {"scores", "prm"} <= row.data.keys()


def graded_data(row: Row) -> dict[str, Any] | None:
    """The row that grading wrote, with its scores; None for another row."""
    if isinstance(row.record, GradedSolution):
        return record_row(row.record)
    return row.data if row.record is None and is_graded(row) else None


def ungraded(row: Row) -> Row:
    """The same; of a row that grading wrote, what was graded: the steps that have scores, with their critiques under `meta`."""
    if not is_graded(row):
        return row
    if isinstance(row.record, GradedSolution):
        solution = row.record.solution
        return replace(row, data=record_row(solution), record=solution)
    data = {key: value for key, value in row.data.items() if key not in GRADED_KEYS}
    if data.get("steps") is not None and data.get("messages") is not None:
        from stepmark.data.conversations import read_messages

        problem, cut = read_messages(data["messages"], where=row.where)
        if [step.text for step in cut.steps] == data["steps"]:
            del data["steps"]  # the conversation says more
        else:
            data["problem"] = problem.text
            del data["messages"]
    elif data.get("steps") is not None:
        for column in columns_of(data, "solution"):
            del data[column]  # it was cut into these steps
    as_read = {
        key: value
        for key, value in row.as_read.items()
        if key not in GRADED_KEYS and (key != "steps" or key in data)
    }
    if row.data.get("critiques") is not None:
        data["meta"] = {**(data.get("meta") or {}), "critiques": row.data["critiques"]}
    return replace(row, data=data, original=as_read)


def solutions_of(
    row: Row, *, how: str = "auto", marker: str | None = None, reasoning: Reasoning = "keep"
) -> Iterator[SolutionRow]:
    """The solutions of a row: one, or one for each candidate, whose id is ID#0, ID#1, ... (without an id, NAME:LINE#0)."""
    row = _without_graded_names(ungraded(row))
    solution = None
    if isinstance(row.record, Solution | LabelledSolution):
        # A record may say more than its row: what lies between steps.
        solution = row.record if isinstance(row.record, Solution) else row.record.solution
    elif _is_labelled(row.data):
        solution = read_record(Solution, row.data["solution"], where=row.where)
        if not solution.steps:
            raise row.error("expected at least one step, found none", "solution.steps")
    if solution is not None:
        yield SolutionRow(solution=solution, row=record_row(solution), where=row.where)
        return
    where = row.where
    try:
        candidates = _candidates(row)
        if candidates is None:
            yield _read_solution(row.data, where, how, marker, reasoning, row.as_read)
        for number, candidate in enumerate(candidates or ()):
            where = f"{row.where} (candidate {number})"
            yield _read_solution(candidate, where, how, marker, reasoning, candidate)
    except InputError as error:
        missing = ("problem",) if content_of(row.data) else CONTENT
        raise row.about(error, *missing).at(where) from None


def read_solution(
    row: dict[str, Any],
    *,
    where: str = "row",
    how: str = "auto",
    marker: str | None = None,
    reasoning: Reasoning = "keep",
) -> SolutionRow:
    """One row of one solution; see `read_solutions`."""
    row = _aside(row)
    try:
        return _read_solution(row, where, how, marker, reasoning, row)
    except InputError as error:
        raise error.at(where) from None


def _without_graded_names(row: Row) -> Row:
    if row.record is not None or _is_labelled(row.data):
        return row
    taken = {key: row.data[key] for key in GRADED_KEYS if key in row.data}
    return replace(row, data=_aside(row.data), original=_aside(row.as_read, taken)) if taken else row


def _aside(row: dict[str, Any], graded_values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The same; columns of others that have the names of those that grading writes (`score`) move under `meta`."""
    graded_values = (
        {key: row[key] for key in GRADED_KEYS if key in row} if graded_values is None else graded_values
    )
    meta = row.get("meta")
    if not graded_values or not isinstance(meta, dict | None):
        return row
    return {
        **{key: value for key, value in row.items() if key not in graded_values},
        "meta": {**graded_values, **(meta or {})},
    }


Label = bool | int | float | None
"""A label of a step: right or wrong, a rating, a share of rollouts; None: nobody judged it."""


def step_labels(row: Mapping[str, Any]) -> list[Label] | None:
    """The labels of a row's steps, one each, as TRL writes them; None where there are none."""
    labels = row.get("labels")
    has_steps = row.get("steps") is not None or row.get("completions") is not None
    listed = isinstance(labels, list) and all(isinstance(label, Label) for label in labels)
    return labels if has_steps and labels and listed else None


def is_solution(row: Mapping[str, Any]) -> bool:
    """Whether a row has the columns of a shape above."""
    return bool(columns_of(row, "messages") or (content_of(row) and columns_of(row, "problem")))


def _is_labelled(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("solution"), dict) and "judgements" in row


def candidates_of(row: Row) -> list[Any] | None:
    """The entries of a row of several solutions, as they are; None where it is a row of one."""
    if row.record is not None or _is_labelled(row.data):
        return None
    try:
        kind, column = _content(row.data)
        return list_of(row.data, column) if kind == "solutions" else None
    except InputError as error:
        raise error.at(row.where) from None


def _candidates(whole: Row) -> list[dict[str, Any]] | None:
    """A row for each candidate of a row that has several; None where it is a row of one solution."""
    row = whole.data
    kind, column = _content(row)
    if kind != "solutions":
        return None
    id_, id_column = identifier(row)
    rest = {name: value for name, value in row.items() if name not in (column, id_column)}
    if rest.get("problem_id") is None and id_ is not None:
        rest["problem_id"] = id_
    rows = []
    for number, content in enumerate(list_of(row, column)):
        named, actual = {**rest, "id": f"{id_ or whole.place}#{number}"}, json_type(content)
        if isinstance(content, dict):
            text = "text" if "text" in content else chosen(content, "solution") or "steps"
            writer, actual = content.get("model"), quoted(content)
            own = {key: value for key, value in content.items() if key not in (text, "model")}
            named |= {"source": writer} if isinstance(writer, str) else {}
            named |= {"meta": {**(row.get("meta") or {}), **own}} if own else {}
            content = content.get(text)  # noqa: PLW2901
        if not isinstance(content, str | list):
            raise InputError(
                f"candidate {number} (0-based): expected a text, a list of steps, or an object with 'text' or 'steps'; found {actual}",
                field=column,
            )
        rows.append({**named, "solution" if isinstance(content, str) else "steps": content})
    return rows


def _read_solution(
    row: dict[str, Any],
    where: str,
    how: str,
    marker: str | None,
    reasoning: Reasoning,
    as_read: dict[str, Any],
) -> SolutionRow:
    kind, column = _content(row)
    if kind == "solutions":
        raise InputError(f"expected one solution, found a list of them under {column!r}", field=column)
    id_, id_column = identifier(row)
    problem_id, _ = identifier(row, "problem_id")
    answer, answer_column = reference_answer(row)
    source, source_column = _optional_text(row, "source")
    problem_source, _ = _optional_text(row, "problem_source")
    own_meta = row.get("meta")
    if not isinstance(own_meta, dict | None):
        raise InputError(f"expected an object, found {json_type(own_meta)}", field="meta")
    used = {column, id_column, answer_column, source_column, "meta", "problem_id", "problem_source"}
    if kind == "steps" and all(key in row for key in PROCESSBENCH_KEYS):
        source = _check_processbench(row)
        used |= set(PROCESSBENCH_KEYS)
    if kind != "messages":
        asked = problem_column(row)
        used.add(asked)
        problem = Problem(text=text_of(row, asked))

    cut: Segmentation | None = None
    messages: Sequence[Any] | None = None
    if kind == "messages":
        from stepmark.data.conversations import read_messages

        value = row[column]
        messages = plain_messages(value if isinstance(value, str) else list_of(row, column), where, column)
        problem, cut = read_messages(messages, where=where, how=how, marker=marker, reasoning=reasoning)
        tools = loaded(row.get("tools"))
        if isinstance(tools, list) and tools and all(isinstance(tool, Mapping) for tool in tools):
            problem = replace(problem, tools=written(tools))
            used.add("tools")
        steps = cut.steps
    elif kind == "solution":
        from stepmark.data.steps.splitting import split

        text = text_of(row, column)
        if how == "agent":
            raise InputError(
                "a plain text has no turns to cut by 'agent'; a conversation goes under 'messages'",
                field=column,
            )
        cut = split(text, how, marker=marker, reasoning=reasoning)
        steps = cut.steps
    else:
        steps = tuple(Step(text=text) for text in texts_of(row, column))
        if kind == "completions" or step_labels(row) is not None:
            used.add("labels")
            _check_labels(row, len(steps))
    problem = replace(problem, answer=answer or problem.answer, id=problem_id, source=problem_source)
    return SolutionRow(
        solution=Solution(
            problem=problem, steps=steps, id=id_, split=None if cut is None else cut.how, source=source
        ),
        row=as_read,
        where=where,
        why=None if cut is None else cut.why,
        columns=riding(row, {name for name in used if name is not None}),
        own_meta=own_meta or {},
        messages=messages,
    )


def _check_foreign(row: dict[str, Any]) -> None:
    """Refuse rows that mean something else by our names; the error says what the row is."""
    for keys, format in (
        (("responses", "next_response"), "prm800k-flat"),
        (("labeler", "question", "label"), "prm800k"),
        (("input", "label", "task"), "math-shepherd"),
        (("conversations",), "rlhflow"),
    ):
        if all(key in row for key in keys):
            raise InputError(
                f"this row is of the format {format}: make labelled solutions of it with `stepmark.convert`, to stepmark-labels",
                field=keys[-1],
            )


def _content(row: dict[str, Any]) -> tuple[str, str]:
    """Where a row's solution stands: the field (`completions` for TRL's steps), and its column."""
    _check_foreign(row)
    contents = content_of(row)
    if len(contents) > 1:
        (_, first), (field, second) = contents[:2]
        raise InputError(
            f"found both {first!r} and {second!r}: expected one of them. Say which is the solution with `columns` "
            f"({field}={second}), or keep the other with `columns` (meta.{second}={second})",
            field=second,
        )
    if not contents:
        raise _no_solution(row)
    field, column = contents[0]
    if column == "completions" and columns_of(row, "problem") == ["prompt"]:
        field = "completions"
    return field, column


def _no_solution(row: dict[str, Any]) -> InputError:
    empty = next(
        (column for column, value in row.items() if value is None and plain(column) in CONTENT_NAMES), None
    )
    if empty is not None:
        return InputError("expected a solution, found null", field=empty)
    if columns_of(row, "problem") and columns_of(row, "answer"):
        answer = columns_of(row, "answer")[0]
        hint = (
            f" This row is a problem with its reference answer: stepmark sample writes solutions of it. Where {answer!r} holds the "
            f"solution itself, say so with `columns` (solution={answer})."
        )
    else:
        hint = " Say which column it is with `columns` (solution=COLUMN)."
    return InputError(
        f"expected a solution under one of {quoted((*CONTENT, *ALIASES['solution']))}, or 'prompt' and 'completions'; "
        f"found {quoted(row) or 'an empty object'}.{hint}",
    )


def text_of(data: Mapping[str, Any], key: str, where: str | None = None) -> str:
    """The text under a key; `InputError` where it is no string, or blank."""
    value = data.get(key)
    if isinstance(value, str) and value.strip():
        return value
    actual = json_type(value) if not isinstance(value, str) else _blank(value)
    hint = ""
    if isinstance(value, list):
        hint = (
            ". A conversation goes under 'messages'"
            if key == "prompt"
            else ". Steps go under 'steps', several solutions under 'solutions'"
        )
    raise InputError(f"expected a text, found {actual}{hint}", where=where, field=key)


def _blank(text: str) -> str:
    return "only white space" if text else "an empty string"


def list_of(data: Mapping[str, Any], key: str, where: str | None = None) -> list[Any]:
    """The list under a key; `InputError` where it is none, or empty."""
    value = data.get(key)
    if isinstance(value, list) and value:
        return value
    what = "at least one entry, found an empty list" if value == [] else f"a list, found {json_type(value)}"
    raise InputError(f"expected {what}", where=where, field=key)


def texts_of(data: Mapping[str, Any], key: str, where: str | None = None) -> list[str]:
    """The texts in a list of steps under a key; `InputError` where it is none, or one of them is blank or no string."""
    texts = list_of(data, key, where)
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            actual = _blank(text) if isinstance(text, str) else json_type(text)
            place = f"step {number} (0-based; number {number + 1} of {len(texts)})"
            raise InputError(f"{place}: expected a text, found {actual}", where=where, field=key)
    return texts


def _optional_text(row: dict[str, Any], name: str) -> tuple[str | None, str | None]:
    column = chosen(row, name)
    value = None if column is None else row[column]
    if not isinstance(value, str | None):
        raise InputError(f"expected a string or null, found {json_type(value)}", field=column)
    return value, column


def _check_labels(row: dict[str, Any], steps: int) -> None:
    if row.get("labels") is None:
        return
    labels = list_of(row, "labels")
    if len(labels) != steps:
        raise InputError(f"expected one label a completion ({steps}), found {len(labels)}", field="labels")
    for index, label in enumerate(labels):
        if not isinstance(label, Label):
            raise InputError(
                f"label {index} (0-based): expected true, false or a number (null: not judged), found {json_type(label)}",
                field="labels",
            )


def _check_processbench(row: dict[str, Any]) -> str:
    generator, correct, label = row["generator"], row["final_answer_correct"], row["label"]
    if not isinstance(generator, str):
        raise InputError(f"expected a string, found {json_type(generator)}", field="generator")
    if not isinstance(correct, bool):
        raise InputError(f"expected true or false, found {json_type(correct)}", field="final_answer_correct")
    steps = list_of(row, "steps")
    if isinstance(label, bool) or not isinstance(label, int) or not -1 <= label < len(steps):
        raise InputError(
            f"expected the 0-based index of the first wrong step ({amount(len(steps), 'step')}) or -1, found {label!r}",
            field="label",
        )
    return generator
