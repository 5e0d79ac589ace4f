"""What a PRM is trained on: files of labelled solutions in any format, data sets on the hub, or rows in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from stepmark.errors import UsageError
from stepmark.models.files import fetch
from stepmark.records import Refusal
from stepmark.solutions.formats import GRADED_KEYS
from stepmark.solutions.interchange import LabelledRow, Losses, Reading
from stepmark.solutions.interchange.conversion import first_row, items_of_rows
from stepmark.solutions.interchange.formats import detect
from stepmark.store import ENDINGS, Columns, Row, Source, check_readable, row_files

_READING = Reading()


Rows = Source | Sequence[str | Path]


def training_rows(
    rows: Rows,
    *,
    split: str = "train",
    columns: Columns | None = None,
    reading: Reading = _READING,
    losses: Losses | None = None,
) -> Iterator[LabelledRow]:
    """Labelled rows of one or several sources, one after the other.

    A problem without a source of its own is of the file that it stands in: sources are balanced by it (`Training.limit_tokens`).

    Rows that a generative PRM has graded (`stepmark grade`) are read as what was graded, with its `critiques` under `meta`; its scores are
    no labels. Labels are those of the row or, beside a critique, of any other row.

    Args:
        rows: names of files in any format of `stepmark convert`, or "OWNER/NAME" of data sets on the hub; or rows in Python.
        split: which files of a hub data set are taken: those with this word in their name, or all where none has it.
        columns: as `store.read_rows`.
        reading: how to read.
        losses: takes note of what is left out in reading.

    Raises:
        InputError: with `FILE:LINE`: a row that is not of its format, an unknown format.
        UsageError: no such data set.
    """
    names = _names(rows)
    if names is None:
        yield from _read(rows, columns, reading, losses or Losses())
        return
    for name in names:
        for file in _files(name, split):
            for row in _read(file, columns, reading, losses or Losses()):
                yield row if row.solution.problem.source is not None else _with_source(row, Path(name).name)


def check_sources(rows: Rows | None) -> None:
    """Refuse, before anything is loaded, rows that cannot be read: no names, or files that are not there.

    Raises:
        InputError: there is no such file.
        UsageError: no name at all.
    """
    names = None if rows is None else _names(rows)
    if names == []:
        raise UsageError("expected rows: files of labelled solutions, or data sets on the hub")
    for name in names or ():
        if _is_local(name) and not Path(name).expanduser().is_dir():
            check_readable(Path(name).expanduser())


def _is_local(name: str) -> bool:
    """Whether a name is of a file or folder here, and not of a data set on the hub."""
    return Path(name).expanduser().exists() or name.count("/") != 1 or name.endswith(ENDINGS)


def names_of(rows: Rows) -> Sequence[str]:
    """The names of the sources, for the card."""
    names = _names(rows)
    return ["rows"] if names is None else names


def _names(rows: Rows) -> list[str] | None:
    """The names of files or data sets; None for rows in Python."""
    if isinstance(rows, str | Path):
        return [str(rows)]
    named = isinstance(rows, list | tuple) and all(isinstance(row, str | Path) for row in rows)
    return [str(row) for row in rows] if named else None


def _read(source: Source, columns: Columns | None, reading: Reading, losses: Losses) -> Iterator[LabelledRow]:
    first, rows = first_row(source, columns)
    format = detect(_as_given(first))
    for item in items_of_rows(map(_as_given, rows), format, reading, losses):
        if isinstance(item, Refusal):
            raise item.error
        yield item


def _as_given(row: Row) -> Row:
    """A row that was graded with critiques, without what grading added (`models.grading.to_row`) and with them under `meta`."""
    data = row.data
    if not {"critiques", "scores", "prm"} <= data.keys():
        return row
    fields = {key: value for key, value in data.items() if key not in GRADED_KEYS}
    if "messages" in fields:
        fields.pop("steps", None)  # as they were cut from the messages, which say more
    elif "steps" in fields:
        fields.pop("solution", None)  # it was cut into these steps
    meta = fields.get("meta")
    fields["meta"] = {**(meta if isinstance(meta, dict) else {}), "critiques": data["critiques"]}
    return replace(row, data=fields)


def _with_source(row: LabelledRow, source: str) -> LabelledRow:
    solution = row.solution
    named = replace(solution, problem=replace(solution.problem, source=source))
    return replace(row, labelled=replace(row.labelled, solution=named))


def _files(name: str, split: str) -> list[str]:
    path = Path(name).expanduser()
    if path.is_dir():
        return row_files(path)
    if _is_local(name):
        return [str(path)]
    return [str(f) for f in hub_files(name, split)]


def hub_files(name: str, split: str) -> list[Path]:
    """A hub data set's files of one split, downloaded.

    Args:
        name: "OWNER/NAME".
        split: a word in the file names, "train" say; where no file has it, all are taken.

    Raises:
        UsageError: there is no such file here and the hub cannot be reached or has no such data set.
        MissingExtraError: huggingface_hub is not installed.
    """
    folder = fetch(name, [f"*{ending}" for ending in ENDINGS], kind="dataset")
    files = sorted(f for f in folder.rglob("*") if f.name.endswith(ENDINGS) and f.is_file())
    chosen = [f for f in files if split in f.name] or files
    if not chosen:
        raise UsageError(f"{name}: the data set holds no {', '.join(ENDINGS)}")
    return chosen
