"""A long run over rows that resumes: what it has done so far stands in `OUT.part`, and the same run goes on from there."""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self, TypeVar, cast, final

from stepmark.errors import InputError, UsageError
from stepmark.records import Refusal
from stepmark.store.disk import naming
from stepmark.store.writing import (
    atomic_rows,
    check_writable,
    close,
    differences,
    encode_row,
    locked,
    write_manifest,
)
from stepmark.version import __version__
from stepmark.words import amount

Row = TypeVar("Row")
Result = TypeVar("Result")

_BEGIN = b'{"stepmark": '
"""How a part begins."""


@final
class PartFile:
    """The results of a run so far, in JSON lines: what the run is, then `{"key": …, "result": …}` for each row that is done. Used in a `with`.

    A result belongs to its row by a key (`row_key`), wherever the row stands: the same run over a file that was corrected, reordered or made
    longer keeps the results of all rows that are as they were. What a run is, is everything that decides its results but the rows: command,
    method, settings, this package's version, and the identities of the models.

    Args:
        out: the file that is made in the end; the part stands beside it, in OUT.part. None: no file, nothing is kept.
        run: what the run is. A value that JSON does not have is written as text.
    """

    def __init__(self, out: str | Path | None, run: Mapping[str, Any]) -> None:
        self.manifest: dict[str, Any] = json.loads(json.dumps({"stepmark": __version__, **run}, default=str))
        """What the run is, the models among it once they are known."""
        self.reused = 0
        """Rows whose results an interrupted run had left."""
        self._places: dict[str, int] = {}
        self._rows = array("q")
        self._handle: BinaryIO | None = None
        if out is None:
            return
        check_writable(out)
        self._out = Path(out)
        self._part = self._out.with_name(self._out.name + ".part")
        with naming(self._part):
            self._handle = locked(self._part, self._part)
        try:
            self._made_by, size = self._read(self._handle)
            if not self._places:  # whatever run it is of, nothing was done
                size = 0
            now = {**self.manifest, "models": self._made_by.get("models")}
            self._check_same(self._made_by, now, "was made otherwise")
            self._handle.truncate(size)
        except BaseException:
            self._handle.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; the part stays, unless there is nothing in it."""
        if self._handle is None or self._handle.closed:
            return
        if self.kept:
            close(self._handle)
        else:
            self.discard()

    def _read(self, part: BinaryIO) -> tuple[dict[str, Any], int]:
        """Read a part: where each result begins; give what the run is, and where the whole lines end (the last may be torn)."""
        made_by: dict[str, Any] = {}
        size = 0
        part.seek(0)
        for number, line in enumerate(part, start=1):
            if number == 1 and line[: len(_BEGIN)] != _BEGIN[: len(line)]:
                self._refuse(f"{self._part} exists, and is no part of a run of stepmark")
            if not line.endswith(b"\n"):
                break
            try:
                data = json.loads(line)
                if number == 1:
                    made_by = dict(data)
                else:
                    key, _ = data["key"], dict(data["result"])
                    self._places.setdefault(str(key), size)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                again = ". Delete this line, and its row is done again" if number > 1 else ""
                self._refuse(f"{self._part}:{number} is damaged ({error!r}){again}")
            size += len(line)
        return made_by, size

    def _check_same(self, old: Mapping[str, Any], new: Mapping[str, Any], how: str) -> None:
        if self._places and (changed := differences(old, new)):
            holds = f"{self._part} holds {amount(len(self._places), 'row')} of an interrupted run"
            self._refuse(f"{holds} that {how}: {'; '.join(changed)}. Use the same again to continue it")

    def _refuse(self, why: str) -> NoReturn:
        raise UsageError(f"{why}. Delete {self._part} to start again, or choose another `out`")

    def identify(self, models: Mapping[str, str]) -> None:
        """Say which models make the results, by their identities, before the first row."""
        self.manifest["models"] = dict(models)
        if self._places:
            self._check_same(self._made_by, self.manifest, "another model made")
        elif self._handle is not None:
            self._append(self.manifest)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def reuse(self, key: str) -> dict[str, Any]:
        """The result that an interrupted run has left of the next row."""
        self._rows.append(self._places[key])
        self.reused += 1
        with self._part.open("rb") as part:
            return self._at(part, self._places[key])

    def add(self, key: str, result: Mapping[str, Any]) -> None:
        """Add the result of the next row; it is in the part when this returns."""
        if self._handle is not None:
            self._rows.append(self._append({"key": key, "result": result}))

    def _append(self, line: Mapping[str, Any]) -> int:
        assert self._handle is not None
        with naming(self._part):
            place = self._handle.seek(0, os.SEEK_END)
            self._handle.write(encode_row(line))
            self._handle.flush()
        return place

    @property
    def kept(self) -> int:
        """Results in the part."""
        return len(self._places) + len(self._rows) - self.reused

    @property
    def left(self) -> str:
        """What a run that stops now leaves, and how to go on."""
        if not self.kept:
            replies = self._handle is not None and Path(f"{self._out}.replies.sqlite").exists()
            answered = "no row is done; replies of models are kept, and the same command continues from there"
            return answered if replies else "nothing is kept"
        return f"{amount(self.kept, 'row is', 'rows are')} kept in {self._part}; the same command continues from there"

    def results(self) -> Iterator[dict[str, Any]]:
        """The results of this run so far, in the order of its rows."""
        with self._part.open("rb") as part:
            for place in self._rows:
                yield self._at(part, place)

    @staticmethod
    def _at(part: BinaryIO, place: int) -> dict[str, Any]:
        part.seek(place)
        return dict(json.loads(part.readline())["result"])

    def finish(
        self,
        facts: Mapping[str, Any],
        outputs: Mapping[str | Path, Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]]],
    ) -> None:
        """Make the files, of the rows that each has of a result, then the manifest with these facts too, then drop the part: a run that is
        killed on the way makes them again from the part. Without a file, nothing."""
        if self._handle is None:
            return
        with naming(self._part):
            os.fsync(self._handle.fileno())
        for path, rows in outputs.items():
            with atomic_rows(path) as write:
                for result in self.results():
                    for row in rows(result):
                        write(row)
        write_manifest(self._out, {**self.manifest, **facts})
        self.discard()

    def discard(self) -> None:
        """Remove the part."""
        if self._handle is None:
            return
        if sys.platform == "win32":
            close(self._handle)
        self._part.unlink(missing_ok=True)  # while it is locked: nobody begins to write what goes
        close(self._handle)


def resumed(
    part: PartFile,
    rows: Iterable[Row | Refusal | InputError],
    key: Callable[[Row], str],
    compute: Callable[[Iterator[Row]], Iterable[Result]],
    keep: Callable[[Row, Result], dict[str, Any]],
    *,
    keep_going: bool = True,
) -> Iterator[tuple[Row | None, dict[str, Any] | InputError, Result | None]]:
    """Do what is missing of a run, and give all of it, in the order of the rows.

    Args:
        part: what is done, and where results are kept.
        rows: read ahead as `compute` needs them; an error may stand in the place of a row.
        key: of a row: a digest of all that its result says of it.
        compute: gives a result for each row that it is given, in their order.
        keep: what is kept of a result; nothing of one for which it raises `InputError`.
        keep_going: False: such an error is raised.

    Yields:
        A row (None: an error stood in its place), what is kept of it or the error why nothing is, and its result where it was computed now.
    """
    ahead: deque[tuple[Row | InputError, str | None]] = deque()  # read and not given yet; with the key

    def is_missing(mark: str | None) -> bool:
        return mark is not None and mark not in part

    def taken(row: Row | Refusal | InputError) -> bool:
        if isinstance(row, Refusal | InputError):
            ahead.append((row.error if isinstance(row, Refusal) else row, None))
        else:
            ahead.append((row, key(row)))
        return is_missing(ahead[-1][1])

    def ready() -> Iterator[tuple[Row | None, dict[str, Any] | InputError, Result | None]]:
        """What stands before the next row that is computed."""
        while ahead and not is_missing(ahead[0][1]):
            row, mark = ahead.popleft()
            if isinstance(row, InputError):
                yield None, row, None
            else:
                yield row, part.reuse(str(mark)), None

    source = iter(rows)
    begun: list[Any] = []
    for row in source:  # of a run that goes on, the beginning passes without a row ahead
        if taken(row):
            begun.append(row)
            break
        yield from ready()
    for result in compute(chain(begun, (cast(Row, row) for row in source if taken(row)))):
        yield from ready()
        done, mark = ahead.popleft()
        assert not isinstance(done, InputError) and mark is not None
        outcome: dict[str, Any] | InputError
        try:
            outcome = keep(done, result)
        except InputError as error:
            if not keep_going:
                raise
            outcome = error
        else:
            part.add(mark, outcome)
        yield done, outcome, result
    yield from ready()
