"""Records as a 🤗 `datasets.Dataset` with typed columns, and back; data sets of others as a stream of records.

The columns are those of `integrations.columns`; what they hold is whole: `from_dataset` gives equal records back. `datasets` is needed to make
a data set and to open one, and not to read rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from stepmark.errors import InputError, MissingExtraError, UsageError
from stepmark.integrations.columns import (
    COLUMNS,
    Others,
    R,
    Shape,
    from_columns,
    known_columns,
    named,
    to_columns,
)
from stepmark.records import LabelledSolution, Problem, ScoredSolution, Solution
from stepmark.solutions.interchange.conversion import items_of_rows
from stepmark.solutions.interchange.formats import detect
from stepmark.solutions.interchange.rows import LabelledRow, Losses, Reading
from stepmark.store import read_rows


def to_dataset(records: Iterable[Problem | Solution | LabelledSolution | ScoredSolution]) -> Any:
    """A `datasets.Dataset` of records, all of one kind, with the columns of this module.

    Args:
        records: at least one; read once. Their rows are held in memory: write parts of very many.

    Raises:
        InputError: no records, or records of several kinds; it says at which.
        MissingExtraError: `datasets` is not installed.
    """
    datasets = _datasets()
    each = iter(records)
    first = next(each, None)
    if first is None:
        raise InputError("expected at least one record: a data set of none would have no columns")
    kind = type(first)
    if kind not in COLUMNS:
        raise InputError(f"expected {_names()}, found {kind.__name__}", where="record 0")
    rows = []
    for number, record in enumerate(chain([first], each)):
        if type(record) is not kind:
            raise InputError(
                f"expected a {kind.__name__}, as record 0 is, found a {type(record).__name__}",
                where=f"record {number}",
            )
        rows.append(to_columns(record))
    columns = {name: [row[name] for row in rows] for name in COLUMNS[kind]}
    features = datasets.Features({name: _feature(datasets, of) for name, of in COLUMNS[kind].items()})
    return datasets.Dataset.from_dict(columns, features=features)


def from_dataset(
    dataset: Iterable[Mapping[str, Any]],
    kind: type[R],
    *,
    columns: Mapping[str, str] | None = None,
    others: Others = "refuse",
    split: str = "auto",
    marker: str | None = None,
) -> Iterator[R]:
    """Records of a data set's rows, as a stream in their order.

    Args:
        dataset: a `datasets.Dataset`, an `IterableDataset`, or any rows.
        kind: `Problem`, `Solution`, `LabelledSolution` or `ScoredSolution`.
        columns: where another name stands for one of this module's: {"problem": "question"}. A solution that is one text, to be cut into
            steps here, is the column "solution": {"solution": "response"}.
        others: `refuse` columns that have no meaning here, for they may be misspelt; or `ignore` them.
        split: how a "solution" is cut; see `stepmark.split`.
        marker: as there.

    Raises:
        UsageError: `columns` names what this kind does not have; raised at the call.
        InputError: with `row N` (from 0) and the column: one is missing, not known, or of another type; a blank step; as many judgements
            or scores as steps are not there.
    """
    if kind not in COLUMNS:
        raise UsageError(f"expected {_names()}, found {kind!r}")
    mapping = dict(columns or {})
    for ours in mapping:
        if ours not in known_columns(kind):
            raise UsageError(
                f"columns: a {kind.__name__} has no {ours!r}; known: {', '.join(known_columns(kind))} (ours first: "
                '{"problem": "question"})'
            )
    return _records(dataset, kind, mapping, others, split, marker)


def read_dataset(
    dataset: Iterable[Mapping[str, Any]], *, format: str | None = None, name: str = "data set"
) -> Iterator[LabelledRow]:
    """Labelled solutions of a data set in one of the formats that `stepmark convert` reads: TRL, Math-Shepherd, PRM800K and more.

    Args:
        dataset: a `datasets.Dataset`, an `IterableDataset`, or any rows.
        format: its name; None tells it from the first row.
        name: of the data set, for errors and for `meta`; rows are counted from 1 there, as lines are.

    Raises:
        InputError: a row that is not of the format, a format that cannot be told, no rows.
        UnknownNameError: no such format.
    """
    rows = (replace(row, file=name, by_line=True) for row in read_rows(dataset))
    first = next(rows)
    for item in items_of_rows(chain([first], rows), format or detect(first), Reading(), Losses()):
        assert isinstance(item, LabelledRow)  # without keep_going an error is raised
        yield item


def open_dataset(source: str, *, part: str = "train", config: str | None = None) -> Any:
    """Open a data set to be read once, as a stream, without fetching or holding all of it.

    Args:
        source: a folder that `Dataset.save_to_disk` wrote, a file (.parquet, .json, .jsonl, .csv), a folder of such files, or a hub name
            OWNER/NAME.
        part: its split, such as "train" or "test". Of a single data set that was saved to disk there is only one, and this is not looked at.
        config: its configuration, where it has several.

    Returns:
        A `datasets.IterableDataset`, or a memory-mapped `datasets.Dataset`.

    Raises:
        InputError: nothing there, or it cannot be read as a data set.
        MissingExtraError: `datasets` is not installed.
    """
    datasets = _datasets()
    path = Path(source).expanduser()
    try:
        if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            found = datasets.load_from_disk(str(path))
            return found[part] if isinstance(found, datasets.DatasetDict) else found
        if path.is_file():
            builder = _BUILDERS.get(path.suffix.lower())
            if builder is None:
                raise InputError(
                    f"expected a name that ends in {', '.join(_BUILDERS)}, found {path.suffix or 'none'!r}",
                    where=source,
                )
            return datasets.load_dataset(builder, data_files={part: str(path)}, split=part, streaming=True)
        if not path.is_dir() and (source.startswith((".", "/", "~")) or source.count("/") != 1):
            raise InputError(
                "expected a folder, a file, or a hub name OWNER/NAME; there is nothing of that name",
                where=source,
            )
        return datasets.load_dataset(
            str(path) if path.is_dir() else source, config, split=part, streaming=True
        )
    except InputError:
        raise
    except Exception as error:  # of every kind: the hub's, Arrow's, a split that is not there
        raise InputError(
            f"no data set could be opened ({type(error).__name__}: {error})", where=source
        ) from error


_BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(
            "data sets of the hub need `datasets`: pip install 'stepmark[hub]'"
        ) from error
    return datasets


def _names() -> str:
    return ", ".join(kind.__name__ for kind in COLUMNS)


def _feature(datasets: Any, of: Shape) -> Any:
    if isinstance(of, str):
        return datasets.Value(of)
    if isinstance(of, dict):
        return {name: _feature(datasets, one) for name, one in of.items()}
    return datasets.List(_feature(datasets, of[0]))


def _records(
    dataset: Iterable[Mapping[str, Any]],
    kind: type[R],
    mapping: Mapping[str, str],
    others: Others,
    split: str,
    marker: str | None,
) -> Iterator[R]:
    for number, row in enumerate(dataset):
        where = f"row {number}"
        try:
            ours = named(row, kind, mapping, others)
        except InputError as error:
            raise error.at(where) from None
        try:
            yield from_columns(ours, kind, split=split, marker=marker)
        except InputError as error:
            field = error.field
            if field is not None:  # as the data set calls it
                head, dot, rest = field.partition(".")
                field = f"{mapping.get(head, head)}{dot}{rest}"
            raise InputError(error.message, where=where, field=field) from None
