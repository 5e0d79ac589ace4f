"""Writing: files that are finished or absent, and long runs that resume."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, TextIO, cast

from stepmark.errors import InputError, UsageError
from stepmark.store.json_rows import parse_row
from stepmark.store.reading import STDIO, count_rows, read_lines


def encode_row(row: Mapping[str, Any]) -> bytes:
    """One row as a JSON line in UTF-8, newline included.

    Raises:
        ValueError: it holds a NaN or an infinity, which JSON does not have.
    """
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()


_LEFT_OUT = b"!"
"""Begins a line of a part that stands for an input row without a result; no JSON line begins so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """What a file was when it was read; equal content, equal fingerprint."""

    bytes: int
    """Size as stored."""
    sha256: str
    """Of the bytes as stored."""
    lines: int
    """Lines of the (unpacked) text, or rows where those are not lines; for a progress bar's total."""


def fingerprint(path: str | Path) -> Fingerprint | None:
    """Read a file once and say what it is; None for a stream, which can be read only once."""
    if path == STDIO or not Path(path).is_file():
        return None
    digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
    with Path(path).open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
            size, lines, last = size + len(block), lines + block.count(b"\n"), block[-1:]
    lines += last != b"\n"
    if str(path).endswith(".gz"):
        lines = sum(1 for _ in read_lines(path, str(path)))
    rows = count_rows(path)
    return Fingerprint(bytes=size, sha256=digest.hexdigest(), lines=lines if rows is None else rows)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[TextIO]:
    """Write a UTF-8 text file that is whole or absent: it takes its name when the block ends well.

    Anything that goes wrong leaves what stood under that name before. `handle.buffer` takes bytes. A pipe
    or a device is written through, never replaced.

    Raises:
        UsageError: the folder does not exist or may not be written to.
    """
    check_writable(path)
    if is_stream(path):
        if path == STDIO:
            raise UsageError("expected a file's name, found '-'")
        with Path(path).open("w", encoding="utf-8", newline="") as handle:
            yield handle
        return
    target = Path(path).resolve()  # resolved: a link stays a link, and its target is replaced
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8", newline="") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def atomic_rows(path: str | Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Write a file of JSON lines that is whole or absent, as `atomic_write`; packed if its name ends in .gz.

    Gives the function that writes one row. Equal rows are equal files.

    Raises:
        UsageError: as `atomic_write`.
    """
    with atomic_write(path) as handle, _packed(handle, Path(path)) as sink:
        yield lambda row: _put(sink, row)


def _put(sink: BinaryIO, row: Mapping[str, Any]) -> None:
    sink.write(encode_row(row))


def check_writable(path: str | Path) -> None:
    """Refuse, before any work is done, a path that could not be written in the end.

    Raises:
        UsageError: it is a folder, or its folder does not exist or may not be written to.
    """
    if not str(path):
        raise UsageError("cannot write to a file without a name: expected one, found an empty text")
    target = Path(path)
    folder = target.resolve().parent
    if path == STDIO:
        return
    if target.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file")
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {target.parent}; make it first")
    if not os.access(target if is_stream(target) else folder, os.W_OK):
        raise UsageError(f"cannot write {path}: permission denied")


def is_stream(path: str | Path | None) -> bool:
    """Whether a name stands for something that is written through and not replaced: a pipe, a device."""
    if path is None or path == STDIO:
        return True
    # By name too: /dev/stdout is a regular file when standard output is redirected to one.
    named = Path(path).is_absolute() and Path(path).parts[1:2] in (("dev",), ("proc",))
    return named or (Path(path).exists() and not Path(path).is_file())


class RowWriter(Protocol):
    """Where the results of a run go, one for each input row, in order."""

    @property
    def done(self) -> int:
        """Input rows that an interrupted run with the same manifest had handled already."""

    @property
    def written(self) -> int:
        """Input rows handled, in this run or before."""

    @property
    def part(self) -> Path | None:
        """What `close` leaves for the next run to continue; None where nothing stays."""

    def earlier(self) -> Iterator[dict[str, Any] | InputError]:
        """Their results, in order: a row, or why there is none."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Add the result of the next input row."""

    def refuse(self, error: InputError) -> None:
        """Say that the next input row has no result, and why."""

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Make the file of everything written; `facts` are added to its manifest."""

    def discard(self) -> None:
        """Leave nothing: no file, nothing to continue."""

    def close(self) -> None:
        """Stop; what is not finished stays to be continued."""


def open_rows(path: str | Path | None, manifest: Mapping[str, Any], *, resumable: bool = True) -> RowWriter:
    """The writer for a path: None, "-", a pipe or a device are written through, a file can be resumed.

    Raises:
        UsageError: as `ResumableRows`.
    """
    if path is None or is_stream(path):
        return StreamedRows(path)
    return ResumableRows(path, manifest, resumable=resumable)


class StreamedRows:
    """Rows to standard output, a pipe or a device, each flushed when written; nothing to resume."""

    def __init__(self, path: str | Path | None) -> None:
        self.done = self.written = 0
        self.part: Path | None = None
        # Not a context: the stream lives as long as the writer, and `close` ends both.
        self._own: IO[bytes] | None = (
            None if path is None or path == STDIO else Path(path).open("wb")  # noqa: SIM115
        )

    def earlier(self) -> Iterator[dict[str, Any] | InputError]:
        """Nothing."""
        return iter(())

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row at once."""
        self.written += 1
        handle = self._own or sys.stdout.buffer
        handle.write(encode_row(row))
        handle.flush()

    def refuse(self, error: InputError) -> None:
        """Write nothing."""
        self.written += 1

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Close the stream."""
        self.close()

    def discard(self) -> None:
        """Close the stream; what went through it cannot be taken back."""
        self.close()

    def close(self) -> None:
        """Close the stream unless it is standard output."""
        if self._own is not None:
            self._own.close()


class ResumableRows:
    """Rows to a file that is finished or absent, through `PATH.part`, which a second run continues.

    `PATH.part` has one line for each input row handled: the row, or "!" and why it was left out. So the
    number of its whole lines is the number of input rows to skip, and a torn last line is cut off.

    Args:
        path: the file to make; packed with gzip when its name ends in ".gz".
        manifest: everything that decides what the rows are, as JSON: settings, `fingerprint` of the input. This
            package's version is added.
        resumable: False when the input cannot be read again (a pipe): a part left over is then refused, and
            `close` leaves none.

    Raises:
        UsageError: a part made with another manifest (the message says what differs and what to do), one
            without a manifest, one that another run is writing, or a path that cannot be written.
    """

    def __init__(self, path: str | Path, manifest: Mapping[str, Any], *, resumable: bool = True) -> None:
        check_writable(path)
        self.path = Path(path)
        self._part = self.path.with_name(self.path.name + ".part")
        self.part = self._part if resumable else None
        self.manifest_path = self.path.with_name(self.path.name + ".manifest.json")
        self._part_manifest = self._part.with_name(self._part.name + ".manifest.json")
        self._manifest = cast(
            dict[str, Any], json.loads(json.dumps({"stepmark": version("stepmark"), **manifest}))
        )
        self._resumable = resumable
        self._handle = self._part.open("a+b")
        try:
            _lock(self._handle, self._part)
            self._rows, self._refused, size = _whole_lines(self._handle)
            self.done = self.written
            if self._part.stat().st_size:  # even less than a line may be someone else's file
                self._check_manifest()
            if not self.done:
                self._write_manifest(self._part_manifest, self._manifest)
            self._handle.truncate(size)
        except BaseException:
            self._handle.close()
            raise

    def _check_manifest(self) -> None:
        remedy = f"Delete {self._part} to start again, or choose another --out"
        if not self._part_manifest.is_file():
            raise UsageError(f"{self._part} exists, and nothing says what it was made with. {remedy}")
        if not self._resumable:
            raise UsageError(
                f"{self._part} was left by an interrupted run, and a pipe cannot be read again. {remedy}"
            )
        old = json.loads(self._part_manifest.read_text(encoding="utf-8"))
        if self.done and (differences := _differences(old, self._manifest)):
            raise UsageError(
                f"{self._part} holds {self.done} rows of an interrupted run that was made otherwise: "
                f"{'; '.join(differences)}. Run with the same settings to continue it. {remedy}"
            )

    def earlier(self) -> Iterator[dict[str, Any] | InputError]:
        """The results that an interrupted run left, in the order of the input.

        Raises:
            UsageError: the part is damaged.
        """
        with self._part.open("rb") as handle:
            for line, raw in zip(range(self.done), handle, strict=False):
                try:
                    data = parse_row(raw.removeprefix(_LEFT_OUT))
                except InputError as error:
                    raise UsageError(
                        f"{self._part}:{line + 1} is damaged ({error}); delete it to start again"
                    ) from None
                yield InputError(data["error"]) if raw.startswith(_LEFT_OUT) else data

    @property
    def written(self) -> int:
        """Input rows handled, in this run or before."""
        return self._rows + self._refused

    def write(self, row: Mapping[str, Any]) -> None:
        """Add the result of the next input row; it is in the part when this returns."""
        self._append(encode_row(row))
        self._rows += 1

    def refuse(self, error: InputError) -> None:
        """Say that the next input row has no result, and why."""
        self._append(_LEFT_OUT + encode_row({"error": str(error)}))
        self._refused += 1

    def _append(self, line: bytes) -> None:
        self._handle.write(line)
        self._handle.flush()

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Make the file, then its manifest, then drop the part."""
        os.fsync(self._handle.fileno())
        self.manifest_path.unlink(missing_ok=True)  # it tells of the file that is about to be replaced
        with self._part.open("rb") as lines, atomic_write(self.path) as out, _packed(out, self.path) as sink:
            for line in lines:
                if not line.startswith(_LEFT_OUT):
                    sink.write(line)
        manifest = {**self._manifest, **facts, "rows": self._rows, "left_out": self._refused}
        self._write_manifest(self.manifest_path, manifest)
        self.discard()

    def discard(self) -> None:
        """Remove the part and its manifest."""
        self.part = None
        self._handle.close()
        self._part.unlink(missing_ok=True)  # first: a manifest without a part is harmless
        self._part_manifest.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop; the part stays to be continued, unless it is empty or cannot be."""
        if self._handle.closed:
            return
        if not self._resumable or self.written == 0:
            self.discard()
        else:
            self._handle.close()

    @staticmethod
    def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
        with atomic_write(path) as handle:
            json.dump(manifest, handle, ensure_ascii=False, indent=2, allow_nan=False)
            handle.write("\n")


def _whole_lines(handle: IO[bytes]) -> tuple[int, int, int]:
    """How many rows and how many refusals a part holds, and where its last whole line ends."""
    rows = refused = size = 0
    handle.seek(0)
    for line in handle:
        if not line.endswith(b"\n"):
            break
        rows, refused = rows + (line[:1] != _LEFT_OUT), refused + (line[:1] == _LEFT_OUT)
        size += len(line)
    return rows, refused, size


def _packed(out: TextIO, path: Path) -> AbstractContextManager[BinaryIO]:
    if not path.name.endswith(".gz"):
        return nullcontext(out.buffer)
    # Neither name nor time in the header: equal rows are equal files.
    return cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=out.buffer, mtime=0))


def _lock(handle: IO[bytes], path: Path) -> None:
    """Hold a part while this process lives, however it ends."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another run is writing {path}; wait for it, or choose another --out") from None


def _differences(old: object, new: object, at: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        found = []
        for key in keys:
            found += _differences(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))
        return found
    return [] if old == new else [f"{at} was {json.dumps(old)} and is now {json.dumps(new)}"]
