"""What a run of the Python API gives: its records, where they were written, what was left out, what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar, final, overload

from stepmark.errors import MissingExtraError
from stepmark.records import Record, compact, record_row
from stepmark.words import amount

R_co = TypeVar("R_co", covariant=True)

_SHOWN = 5
"""Records shown in a notebook."""


@final
class Results(Sequence[R_co], Generic[R_co]):
    """The records of a run, in the order of its input: a sequence.

    Records that were written to a file are read from it when they are asked for (by `read`, anew at each call), so that a large run needs
    no memory.
    """

    def __init__(
        self,
        read: Callable[[], Iterator[R_co]],
        count: int,
        *,
        out: Path | None = None,
        refused: Sequence[str] = (),
        manifest: Mapping[str, Any] | None = None,
        summary: str = "",
    ) -> None:
        self._read = read
        self._count = count
        self.out = out
        """The file that the records were written to; None where they are only here."""
        self.refused = tuple(refused)
        """Why rows were left out (`keep_going`), one message each."""
        self.manifest = dict(manifest or {})
        """Input, models and settings of the run."""
        self.summary = summary
        """What the command prints at its end."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[R_co]:
        return self._read()

    @overload
    def __getitem__(self, index: int) -> R_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[R_co]: ...
    def __getitem__(self, index: int | slice) -> R_co | Sequence[R_co]:
        if isinstance(index, slice):
            return list(self._read())[index]
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"there are {amount(self._count, 'record')}, found index {index}")
        return next(islice(self._read(), place, None))

    def __repr__(self) -> str:
        kind = type(self[0]).__name__ if self._count else "record"
        where = "" if self.out is None else f", in {self.out}"
        left_out = f", {amount(len(self.refused), 'row')} left out" if self.refused else ""
        return f"<{amount(self._count, kind)}{left_out}{where}>"

    def __str__(self) -> str:
        """How many there are, and what the command prints at its end."""
        return f"{self!r}\n{self.summary}" if self.summary else repr(self)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` of the records, one row each: the keys of the row that a file holds, those of nested objects with dots
        between them ("meta.level").
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("a data frame needs pandas: pip install pandas") from error
        return pandas.DataFrame([_flat(record) for record in self])

    def _repr_html_(self) -> str:
        import html

        shown = [_html(record) for record in islice(self._read(), _SHOWN)]
        more = f"<p>{self._count - _SHOWN:,} more</p>" if self._count > _SHOWN else ""
        return f"{''.join(shown)}{more}<p>{html.escape(repr(self))}</p>"


def _html(record: Any) -> str:
    import html

    shown = getattr(record, "_repr_html_", None)
    return f"<pre>{html.escape(repr(record))}</pre>" if shown is None else str(shown())


def _flat(record: Any) -> dict[str, Any]:
    if isinstance(record, Mapping):
        row = dict(record)
    elif hasattr(record, "to_dict"):
        row = record.to_dict()
    else:
        row = record_row(record) if isinstance(record, Record) else compact(record)

    def flattened(value: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
        for key, item in value.items():
            if isinstance(item, Mapping):
                yield from flattened(item, f"{before}{key}.")
            else:
                yield f"{before}{key}", item

    return dict(flattened(row, ""))
