"""A run over rows that can be interrupted: what decides its results, the part that it continues from, its progress, its records.

`stepmark.sample`, `stepmark.label` and `stepmark.search` are such runs. A piece of work (a problem, a solution) gives one line, which is in
the part of the output before the next piece is done; the rows of the output are made of the lines at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, final

from stepmark.data.reading import Source
from stepmark.errors import InputError, UsageError
from stepmark.show.progress import Progress
from stepmark.store.inputs import RunInput
from stepmark.store.results import Results
from stepmark.store.writing import ResumableRows, check_outputs, is_stream

Item = TypeVar("Item")
Record = TypeVar("Record")


@final
class ResumableRun(Generic[Record]):
    """The results of a run: in the part of a file, from which the same run continues, or in memory. Used in a `with`.

    Args:
        command: that makes the same file.
        given: the input.
        facts: what else decides the results. A value that JSON does not have is written as text.
        out: the file that is made in the end; None: the records are kept in memory.

    Raises:
        UsageError: a part that other facts made, or that another run is writing.
    """

    def __init__(
        self, command: str, given: RunInput, facts: Mapping[str, Any], *, out: str | Path | None
    ) -> None:
        self.given = given
        self.manifest: dict[str, Any] = json.loads(
            json.dumps({"command": command, "input": given.manifest, **facts}, default=str)
        )
        """What decides the results, and who made them."""
        self.records: list[Record] = []
        """Of a run without a file."""
        self._out = None if out is None else Path(out)
        self._rows = (
            None if out is None else ResumableRows(out, self.manifest, key=lambda line: line.get("key"))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rows is not None:
            self._rows.close()

    @property
    def done(self) -> int:
        """Lines that an interrupted run has left."""
        return 0 if self._rows is None else self._rows.done

    def identify(self, models: Mapping[str, str]) -> None:
        """Record the identities of the models, before the first line.

        Raises:
            UsageError: other models made the lines of the part.
        """
        self.manifest["models"] = dict(models)
        if self._rows is not None:
            self._rows.identify(models)

    def earlier(self) -> Iterator[dict[str, Any]]:
        """The lines that an interrupted run has left."""
        return islice(self.lines(), self.done)

    def lines(self) -> Iterator[dict[str, Any]]:
        """All lines so far; none of a run without a file."""
        if self._rows is not None:
            yield from (line for line in self._rows.results() if not isinstance(line, InputError))

    def earlier_line(self, key: str | None) -> dict[str, Any] | None:
        """The line of a piece of work whose rows are as they were in an interrupted run over an earlier form of the input; None where
        there is none."""
        return None if self._rows is None else self._rows.earlier_result(key)

    def add(self, line: Mapping[str, Any], records: Iterable[Record], *, key: str | None = None) -> None:
        """Add the result of the next piece of work, whose rows have this key (`row_key`): a line, which is in the part when this
        returns, or, for a run without a file, its records."""
        if self._rows is None:
            self.records += records
        else:
            self._rows.write({**line, "key": key})

    @contextmanager
    def working(self, progress: Progress, *, keep_going: bool) -> Iterator[None]:
        """Show the progress; where the work is interrupted or a row cannot be used, report how to continue."""
        try:
            with progress, explained(self.given, keep_going=keep_going):
                yield
        except KeyboardInterrupt:
            continued = f"{progress.done} {progress.noun}s are kept; the same command continues"
            raise KeyboardInterrupt("nothing is kept" if self._rows is None else continued) from None

    def empty(self, message: str, refused: Sequence[str]) -> InputError:
        """The error of a run that has no result; nothing stays of it."""
        if self._rows is not None:
            self._rows.discard()
        return InputError(message + (f": {refused[0]}" if refused else ""), where=self.given.name)

    def finish(
        self,
        facts: Mapping[str, Any],
        outputs: Mapping[str | Path, Callable[[dict[str, Any]], Sequence[Mapping[str, Any]]]],
    ) -> None:
        """Make the files, of the rows that each has of a line, then drop the part; `facts` are added to the manifest."""
        if self._rows is not None:
            self._rows.finish(facts, {str(path): rows for path, rows in outputs.items()})

    def results(
        self,
        read: Callable[[str | Path], Iterator[Record]],
        count: int,
        *,
        refused: Sequence[str],
        summary: str,
        facts: Mapping[str, Any] | None = None,
    ) -> Results[Record]:
        """What the run gives; `read` reads the `count` records of its file."""
        records, out = self.records, self._out
        return Results(
            (lambda: iter(records)) if out is None else lambda: read(out),
            count,
            out=out,
            refused=refused,
            manifest={**self.manifest, **(facts or {})},
            summary=summary,
        )


def check_files(outputs: Mapping[str, str | Path | None], source: Source) -> None:
    """Refuse outputs of a run, by setting, that cannot be written: they are files, and replace neither the input nor one another.

    Raises:
        UsageError: it says which setting and what to do.
    """
    for name, path in outputs.items():
        if path is not None and is_stream(path):
            raise UsageError(f"`{name}` {path}: expected a file's name")
    check_outputs(outputs, source)


@contextmanager
def explained(given: RunInput, *, keep_going: bool) -> Iterator[None]:
    """Add to the error of a row what leaves such rows out; the error of the whole input stays as it is."""
    try:
        yield
    except InputError as error:
        if not keep_going and error.where not in (None, given.name):
            error.add_note("with `keep_going`, such rows are left out and listed")
        raise


def usable(rows: Iterable[Item | InputError], *, keep_going: bool) -> Iterator[Item | InputError]:
    """Rows, up to the first that cannot be used; with `keep_going` all of them.

    Raises:
        InputError: that row's error.
    """
    for row in rows:
        if isinstance(row, InputError) and not keep_going:
            raise row
        yield row
