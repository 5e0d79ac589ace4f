"""Writing: files that are finished or absent, and long runs that resume."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO, cast

from stepmark.data.json_rows import json_type, parse_row
from stepmark.data.reading import ENDINGS, STDIO, count_rows, read_lines, row_files
from stepmark.errors import InputError, UsageError
from stepmark.show.text import amount
from stepmark.store.disk import naming
from stepmark.version import __version__


def encode_row(row: Mapping[str, Any]) -> bytes:
    """One row as a JSON line in UTF-8, newline included.

    Raises:
        ValueError: it holds a NaN or an infinity, which JSON does not have.
    """
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()


def row_key(row: Mapping[str, Any]) -> str:
    """A digest of a row's content: equal rows, equal keys, in whatever order their fields stand."""
    text = json.dumps(row, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


Rows = Iterable[Mapping[str, Any]]
"""Rows to be written, as JSON objects."""

_LEFT_OUT = b"!"
"""Begins a line of a part that stands for an input row without a result; no JSON line begins so."""

_CHECKSUM = 16
"""Hexadecimal digits before each line of a part: a digest of the line and of all lines before it."""

_DRAFT = re.compile(r"[0-9a-f]{12}")
"""What stands between `.NAME.` and `.tmp` in the name of a draft."""


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
    """Read a file once and say what it is, or the files of rows in a folder; None for a stream, which can be read only once."""
    if path != STDIO and Path(path).is_dir():
        known = {Path(file).name: one for file in row_files(path) if (one := fingerprint(file))}
        digest = hashlib.sha256("".join(f"{name} {one.sha256}\n" for name, one in known.items()).encode())
        size, lines = (
            sum(values) for values in zip(*((p.bytes, p.lines) for p in known.values()), strict=True)
        )
        return Fingerprint(bytes=size, sha256=digest.hexdigest(), lines=lines)
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
        StorageError: the disk is full or broken.
    """
    check_writable(path)
    if is_stream(path):
        if path == STDIO:
            raise UsageError("expected a file's name, found '-'")
        with naming(path), Path(path).open("w", encoding="utf-8", newline="") as stream:
            yield stream
        return
    target = Path(path).resolve()  # resolved: a link stays a link, and its target is replaced
    remove_stale_drafts(target)
    with naming(path):
        draft, handle = _new_draft(target)
    try:
        with naming(path), handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
            if (
                sys.platform != "win32"
            ):  # while the lock is held: no other process takes the draft for a stale one
                draft.replace(target)
        if sys.platform == "win32":
            draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _new_draft(target: Path) -> tuple[Path, TextIO]:
    """A file beside the target that is locked while this process lives, so that others can tell it from a stale one."""
    while True:
        draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
        # Not a context: the caller's `with` closes it.
        handle = draft.open("x", encoding="utf-8", newline="")
        if try_lock(handle) and os.fstat(handle.fileno()).st_nlink:
            return draft, handle
        handle.close()  # another process took it for a stale one before it was locked
        draft.unlink(missing_ok=True)


def remove_stale_drafts(target: Path) -> None:
    """Remove the drafts of a file that killed processes left: those that no living process has locked."""
    if sys.platform == "win32":
        return
    before, after = f".{target.name}.", ".tmp"
    for draft in target.parent.iterdir():
        middle = draft.name.removeprefix(before).removesuffix(after)
        if draft.name == before + middle + after and _DRAFT.fullmatch(middle):
            with suppress(OSError), draft.open("rb") as handle:
                if try_lock(handle):
                    draft.unlink()


@contextmanager
def atomic_rows(path: str | Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Write a file of JSON lines that is whole or absent, as `atomic_write`; gzipped if its name ends in .gz.

    Gives the function that writes one row. Equal rows are equal files. "-" is standard output.

    Raises:
        UsageError: as `atomic_write`.
    """
    if path == STDIO:
        yield StreamedRows(path).write
        return
    with atomic_write(path) as handle, _packed(handle, Path(path)) as sink:
        yield lambda row: _put(sink, row)


def write_beside(out: str | Path, what: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Write what is not in an output to OUT.WHAT.jsonl, a row each; without rows there is none, also none of an earlier run.

    Returns:
        Its name.
    """
    beside = Path(f"{out}.{what}.jsonl")
    if not rows:
        beside.unlink(missing_ok=True)
        return None
    with atomic_rows(beside) as write:
        for row in rows:
            write(row)
    return str(beside)


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
    try:
        folder = target.resolve().parent
        target.is_dir()
    except (
        OSError,
        RuntimeError,
    ) as error:  # links that lead back to themselves, of which Python 3.13 says less
        raise UsageError(f"cannot write {path}: {error}") from None
    if path == STDIO:
        return
    if target.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file")
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {target.parent}; make it first")
    if not os.access(target if is_stream(target) else folder, os.W_OK):
        raise UsageError(f"cannot write {path}: permission denied")


def check_outputs(outputs: Mapping[str, str | Path | None], *inputs: object) -> None:
    """Refuse, before any work is done, outputs that cannot be written, that are an input, or that are one file.

    `outputs` are paths by setting, None where it is left out; a pipe or a device may be one, and "-" for `out`. Of inputs only names of
    files count.

    Raises:
        UsageError: it says which setting and what to do.
    """
    taken = {
        Path(source).resolve(): "the input"
        for source in inputs
        if isinstance(source, str | Path) and source != STDIO
    }
    for name, path in outputs.items():
        if path is None:
            continue
        if path == STDIO:
            if name != "out":
                raise UsageError(f"`{name}` -: expected a file's name")
            continue
        check_writable(path)
        if is_stream(path):
            continue
        place = Path(path).resolve()
        if place.name.removesuffix(".gz").endswith((".csv", ".tsv", ".parquet", ".xlsx")):
            jsonl = place.with_name(f"{place.name.split('.')[0]}.jsonl").name
            raise UsageError(
                f"`{name}` {path}: rows are written as JSON lines, not as a table: name it {jsonl}"
            )
        if place in taken:
            raise UsageError(f"`{name}` {path} is {taken[place]} too: it would be replaced; choose another")
        if taken.get(place.parent) == "the input" and place.name.endswith(ENDINGS):
            raise UsageError(
                f"`{name}` {path} lies in the folder that is read: it would be input of the next run; choose another folder"
            )
        taken[place] = f"`{name}`"


def is_stream(path: str | Path | None) -> bool:
    """Whether a name stands for something that is written through and not replaced: a pipe, a device."""
    if path is None or path == STDIO:
        return True
    # By name too: /dev/stdout is a regular file when standard output is redirected to one.
    named = Path(path).is_absolute() and Path(path).parts[1:2] in (("dev",), ("proc",))
    return named or (Path(path).exists() and not Path(path).is_file())


class StreamedRows:
    """Rows to standard output, a pipe or a device, each flushed when written; nothing to resume."""

    def __init__(self, path: str | Path | None) -> None:
        self.done = self.written = self.reused = 0
        self.part: Path | None = None
        self._name = "standard output" if path is None or path == STDIO else path
        # Not a context: the stream lives as long as the writer, and `close` ends both.
        self._own: IO[bytes] | None = (
            None if path is None or path == STDIO else Path(path).open("wb")  # noqa: SIM115
        )

    def earlier(self) -> Iterator[dict[str, Any] | InputError]:
        """Nothing."""
        return iter(())

    def earlier_result(self, key: str | None) -> dict[str, Any] | None:
        """None."""
        return None

    def identify(self, models: Mapping[str, str]) -> None:
        """Nothing: there is no manifest."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row at once."""
        self.written += 1
        handle = self._own or sys.stdout.buffer
        with naming(self._name):
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
            _close(self._own)


class ResumableRows:
    """Rows to a file that is finished or absent, through `PATH.part`, which a second run continues.

    `PATH.part` has one line for each input row handled: a checksum, then the row, or "!" and why it was left out. So the
    number of its whole lines is the number of input rows to skip, and a torn last line is cut off. The checksum is of the
    line and all before it: a line that was changed, moved or taken out is noticed.

    Where the input was changed since (a row was corrected) and nothing else, the results move to `PATH.part.earlier`, from
    which `earlier_result` gives those of rows that are as they were.

    Args:
        path: the file to make; packed with gzip when its name ends in ".gz".
        manifest: everything that decides what the rows are, as JSON: settings, `fingerprint` of the input. This
            package's version is added, and by `identify` the models.
        resumable: False when the input cannot be read again (a pipe): a part left over is then refused, and
            `close` leaves none.
        key: the key of the input row that a result belongs to, given the result; None: a part of another input is refused.

    Raises:
        UsageError: a part made with another manifest (the message says what differs and what to do), one
            without a manifest, a damaged one, one that another run is writing, or a path that cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        manifest: Mapping[str, Any],
        *,
        resumable: bool = True,
        key: Callable[[Mapping[str, Any]], str | None] | None = None,
    ) -> None:
        check_writable(path)
        self.path = Path(path)
        self._part = self.path.with_name(self.path.name + ".part")
        self.part = self._part if resumable else None
        self.manifest_path = self.path.with_name(self.path.name + ".manifest.json")
        self._part_manifest = self._part.with_name(self._part.name + ".manifest.json")
        self._manifest = cast(dict[str, Any], json.loads(json.dumps({"stepmark": __version__, **manifest})))
        self._resumable, self._key = resumable, key
        self._earlier_file = self._part.with_name(self._part.name + ".earlier")
        self._earlier: dict[str, int] = {}  # where the result of a row begins in the file
        self._reused: set[str] = set()
        with naming(self._part):
            self._handle = self._part.open("a+b")
        try:
            if not try_lock(self._handle):
                raise UsageError(f"another run is writing {self._part}; wait for it, or choose another `out`")
            for file in (self.path, self.manifest_path, self._part_manifest):
                remove_stale_drafts(file.resolve())
            size, damaged = self._count_lines()
            self.done = self.written
            old = {}
            if self._part.stat().st_size:  # even less than a line may be someone else's file
                old = self._old_manifest()
            self._made_by: object = old.pop("models", None)
            if self.done and not damaged and self._input_alone_changed(old):
                self._set_aside({**old, "models": self._made_by})
                size = 0
            self._read_earlier()
            if self.done:
                self._check_same(old, self._manifest, "was made otherwise", "Run with the same settings")
            if damaged:
                raise UsageError(
                    f"{self._part}:{self.done + 1} is damaged: its checksum does not fit: this line or one before it was changed, "
                    f"moved or taken out. {self._remedy}"
                )
            if not self.done:
                self._write_manifest(self._part_manifest, self._manifest)
            self._handle.truncate(size)
        except BaseException:
            self._handle.close()
            raise

    def _count_lines(self) -> tuple[int, bool]:
        """Count the whole lines of the part: where they end, and whether the next one is damaged (and not torn)."""
        self._rows = self._refused = size = 0
        self._checksum = b""
        self._handle.seek(0)
        for line in self._handle:
            if not line.endswith(b"\n"):
                break
            checksum = _chained(self._checksum, line[_CHECKSUM + 1 :])
            if line[: _CHECKSUM + 1] != checksum + b" ":
                return size, True
            left_out = line.startswith(_LEFT_OUT, _CHECKSUM + 1)
            self._rows, self._refused = self._rows + (not left_out), self._refused + left_out
            self._checksum, size = checksum, size + len(line)
        return size, False

    @property
    def _remedy(self) -> str:
        both = f" and {self._earlier_file}" if self._earlier else ""
        return f"Delete {self._part}{both} to start again, or choose another `out`"

    def _input_alone_changed(self, old: Mapping[str, Any]) -> bool:
        """Whether the part was made of an earlier form of the same input, with the same settings."""
        was, now = old.get("input"), self._manifest.get("input")
        if self._key is None or was == now or not isinstance(was, dict) or not isinstance(now, dict):
            return False
        return was.get("name") == now.get("name") and {**old, "input": now} == self._manifest

    def _set_aside(self, manifest: Mapping[str, Any]) -> None:
        """Move the results of the part to the file of earlier results, whose first line says what made them."""
        before: list[bytes] = []
        if self._earlier_file.exists():
            before = self._earlier_file.read_bytes().splitlines(keepends=True)[1:]
        with atomic_write(self._earlier_file) as handle:
            handle.buffer.write(encode_row(manifest))
            handle.buffer.writelines(before)
            for result in self.results():
                if not isinstance(result, InputError):
                    handle.buffer.write(encode_row(result))
        self._handle.truncate(0)
        self._rows = self._refused = self.done = 0
        self._checksum = b""

    def _read_earlier(self) -> None:
        """Index the file of earlier results, if there is one."""
        if self._key is None or not self._earlier_file.exists():
            return
        with self._earlier_file.open("rb") as handle:
            header = json.loads(handle.readline())
            self._made_by = header.pop("models", None)
            at = handle.tell()
            for line in handle:
                key = self._key(parse_row(line))
                if key is not None:
                    self._earlier[key] = at
                at += len(line)
        now = {**self._manifest, "input": header["input"]}
        if (self._manifest.get("input") or {}).get("name") != header["input"].get("name"):
            now = self._manifest
        self._check_same(header, now, "was made otherwise", "Run with the same settings")

    def earlier_result(self, key: str | None) -> dict[str, Any] | None:
        """The result of an input row that is as it was in an interrupted run over an earlier form of the input; None where there is none."""
        if key is None or key not in self._earlier:
            return None
        self._reused.add(key)
        with self._earlier_file.open("rb") as handle:
            handle.seek(self._earlier[key])
            return parse_row(handle.readline())

    @property
    def reused(self) -> int:
        """Results of unchanged rows that were taken from a run over an earlier form of the input."""
        return len(self._reused)

    def _old_manifest(self) -> dict[str, Any]:
        """What a part that is there was made with."""
        try:
            old = json.loads(self._part_manifest.read_bytes())
        except FileNotFoundError:
            raise UsageError(
                f"{self._part} exists, and nothing says what it was made with. {self._remedy}"
            ) from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self._part_manifest} is damaged ({error}). {self._remedy}") from None
        if not isinstance(old, dict):
            raise UsageError(
                f"{self._part_manifest} is damaged (expected an object, found {json_type(old)}). {self._remedy}"
            )
        if not self._resumable:
            raise UsageError(
                f"{self._part} was left by an interrupted run, and a pipe cannot be read again. {self._remedy}"
            )
        return old

    def _check_same(self, old: object, new: object, how: str, what_to_do: str, at: str = "") -> None:
        if changed := differences(old, new, at):
            raise UsageError(
                f"{self._part} holds {amount(self.done + len(self._earlier), 'row')} of an interrupted run that {how}: "
                f"{'; '.join(changed)}. {what_to_do} to continue it. {self._remedy}"
            )

    def identify(self, models: Mapping[str, str]) -> None:
        """Say which models make the rows, by their identities, before the first row is written.

        Raises:
            UsageError: the part holds rows that other models made; the message says which.
        """
        if self.done or self._earlier:
            self._check_same(
                self._made_by, dict(models), "another model made", "Use that model again", "models"
            )
        self._manifest["models"] = dict(models)
        if not self.done:
            self._write_manifest(self._part_manifest, self._manifest)

    def earlier(self) -> Iterator[dict[str, Any] | InputError]:
        """The results that an interrupted run left, in the order of the input.

        Raises:
            UsageError: the part was changed since it was opened.
        """
        return islice(self.results(), self.done)

    def results(self) -> Iterator[dict[str, Any] | InputError]:
        """All results so far, those of this run among them, in the order of the input.

        Raises:
            UsageError: as `earlier`.
        """
        with self._part.open("rb") as handle:
            for line, raw in zip(range(self.written), handle, strict=False):
                row = raw[_CHECKSUM + 1 :]
                try:
                    data = parse_row(row.removeprefix(_LEFT_OUT))
                except InputError as error:
                    raise UsageError(f"{self._part}:{line + 1} is damaged: {error}. {self._remedy}") from None
                yield InputError(data["error"]) if row.startswith(_LEFT_OUT) else data

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
        self._checksum = _chained(self._checksum, line)
        with naming(self._part):
            self._handle.write(self._checksum + b" " + line)
            self._handle.flush()

    def finish(
        self, facts: Mapping[str, Any], outputs: Mapping[str, Callable[[dict[str, Any]], Rows]] | None = None
    ) -> None:
        """Make the file, then its manifest, then drop the part: a run that is killed on the way makes them again from the part.

        Args:
            facts: are added to the manifest.
            outputs: where a result is not a row of the file: the rows of each file that is made, given a result. None: the
                results are the rows, and the manifest counts them.
        """
        with naming(self._part):
            os.fsync(self._handle.fileno())
        self.manifest_path.unlink(missing_ok=True)  # it tells of the file that is about to be replaced
        if outputs is None:
            with (
                self._part.open("rb") as lines,
                atomic_write(self.path) as out,
                _packed(out, self.path) as sink,
            ):
                for line in lines:
                    if not line.startswith(_LEFT_OUT, _CHECKSUM + 1):
                        sink.write(line[_CHECKSUM + 1 :])
            facts = {**facts, "rows": self._rows, "left_out": self._refused}
        else:
            for path, rows in outputs.items():
                with atomic_rows(path) as write:
                    for result in self.results():
                        for row in () if isinstance(result, InputError) else rows(result):
                            write(row)
        self._write_manifest(self.manifest_path, {**self._manifest, **facts})
        self.discard()

    def discard(self) -> None:
        """Remove the part and its manifest."""
        self.part = None
        _close(self._handle)
        self._part.unlink(missing_ok=True)  # first: a manifest without a part is harmless
        self._part_manifest.unlink(missing_ok=True)
        self._earlier_file.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop; the part stays to be continued, unless it is empty or cannot be."""
        if self._handle.closed:
            return
        if not self._resumable or (self.written == 0 and not self._earlier):
            self.discard()
        else:
            _close(self._handle)

    @staticmethod
    def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
        with atomic_write(path) as handle:
            json.dump(manifest, handle, ensure_ascii=False, indent=2, allow_nan=False)
            handle.write("\n")


RowWriter = StreamedRows | ResumableRows
"""Where the results of a run go, one for each input row, in order."""


def open_rows(
    path: str | Path | None,
    manifest: Mapping[str, Any],
    *,
    resumable: bool = True,
    key: Callable[[Mapping[str, Any]], str | None] | None = None,
) -> RowWriter:
    """The writer for a path: None, "-", a pipe or a device are written through, a file can be resumed.

    Raises:
        UsageError: as `ResumableRows`.
    """
    if path is None or is_stream(path):
        return StreamedRows(path)
    return ResumableRows(path, manifest, resumable=resumable, key=key)


def _close(handle: IO[bytes]) -> None:
    """Close a file each of whose writes was flushed: what is left to write is of a write that failed, and that was reported."""
    with suppress(OSError):
        handle.close()


def _chained(before: bytes, line: bytes) -> bytes:
    """The checksum of a line that comes after one with the checksum `before`."""
    return hashlib.blake2b(before + line, digest_size=_CHECKSUM // 2).hexdigest().encode()


def _packed(out: TextIO, path: Path) -> AbstractContextManager[BinaryIO]:
    if not path.name.endswith(".gz"):
        return nullcontext(out.buffer)
    # Neither name nor time in the header: equal rows are equal files.
    return cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=out.buffer, mtime=0))


def try_lock(handle: IO[Any] | int) -> bool:
    """Lock a file while it is open, so however this process ends; False where another process has it."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def differences(old: object, new: object, at: str = "") -> list[str]:
    """What differs between two manifests (plain data), a phrase for each entry: "settings.seed was 1 and is now 2"."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        results = []
        for key in keys:
            results += differences(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))
        return results
    return [] if old == new else [f"{at} was {json.dumps(old)} and is now {json.dumps(new)}"]


LOCK_FILE = ".stepmark.lock"
"""In a folder that a run writes to, while it does; one that a killed run left is taken by the next run."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder for this run until the block ends or the process dies, however it dies.

    The folder and its parents are made where they are absent; those that are empty at the end are removed again. What is locked is a file in
    the folder: file systems that several machines of a run share lock no folders.

    Raises:
        UsageError: another run holds it, or it cannot be made.
    """
    absent = [item for item in (folder, *folder.parents) if not item.exists()]
    try:
        try:
            handle = _locked(folder)
        except OSError as error:
            raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
        with handle:
            try:
                yield
            finally:
                with suppress(OSError):
                    (folder / LOCK_FILE).unlink()
    finally:
        for item in absent:
            with suppress(OSError):
                item.rmdir()


def _locked(folder: Path) -> BinaryIO:
    """The folder's lock file, open and locked."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a run that ends removes the file, and perhaps the folder
            handle = (folder / LOCK_FILE).open("a+b")
            try:
                if not try_lock(handle):
                    raise UsageError(f"another run is writing {folder}; wait for it, or choose another `out`")
                if os.path.samestat(os.fstat(handle.fileno()), (folder / LOCK_FILE).stat()):
                    return handle
            except BaseException:
                handle.close()
                raise
            handle.close()
