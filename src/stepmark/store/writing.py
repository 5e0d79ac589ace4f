"""Writing: files that are finished or absent, what beside them says how they were made, and places that one run at a time writes to."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO, cast

from stepmark.data.reading import ENDINGS, STDIO, count_rows, read_lines, row_files
from stepmark.errors import UsageError
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
        digests = {Path(file).name: identity for file in row_files(path) if (identity := fingerprint(file))}
        digest = hashlib.sha256(
            "".join(f"{name} {identity.sha256}\n" for name, identity in digests.items()).encode()
        )
        size, lines = (
            sum(values) for values in zip(*((p.bytes, p.lines) for p in digests.values()), strict=True)
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
    """
    check_writable(path)
    if is_stream(path):
        if path == STDIO:
            raise UsageError("expected a file's name, found '-'")
        with naming(path), Path(path).open("w", encoding="utf-8", newline="") as stream:
            yield stream
        return
    target = Path(path).resolve()  # resolved: a link stays a link, and its target is replaced
    draft = target.with_name(f".{target.name}.tmp")
    with naming(path), io.TextIOWrapper(locked(draft, target), encoding="utf-8", newline="") as handle:
        try:
            handle.truncate(0)  # what a killed process left
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
            if sys.platform == "win32":
                handle.close()
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_rows(path: str | Path | None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Write a file of JSON lines that is whole or absent, as `atomic_write`; gzipped if its name ends in .gz.

    Gives the function that writes one row. Equal rows are equal files. "-" is standard output; for None nothing is written. The manifest of
    the file that is replaced is removed.
    """
    if path is None:
        yield lambda row: None
        return
    if is_stream(path):
        check_writable(path)
        with streamed_rows(path) as write:
            yield write
        return
    with atomic_write(path) as handle:
        with _packed(handle, Path(path)) as sink:

            def write(row: Mapping[str, Any]) -> None:
                sink.write(encode_row(row))

            yield write
        manifest_of(path).unlink(missing_ok=True)


def manifest_of(path: str | Path) -> Path:
    """Where it stands how a file was made: beside it, in FILE.manifest.json."""
    return Path(f"{path}.manifest.json")


def write_manifest(path: str | Path | None, facts: Mapping[str, Any]) -> None:
    """Write OUT.manifest.json, which says how a finished file was made. Nothing is written for None and for streams (`is_stream`)."""
    if path is None or is_stream(path):
        return
    with atomic_write(manifest_of(path)) as handle:
        json.dump(
            {"stepmark": __version__, **facts},
            handle,
            ensure_ascii=False,
            indent=2,
            allow_nan=False,
            default=str,
        )
        handle.write("\n")


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


def check_writable(path: str | Path) -> None:
    """Refuse, before any work is done, a path that could not be written in the end."""
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
    """
    reserved = {
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
        if place in reserved:
            raise UsageError(
                f"`{name}` {path} is {reserved[place]} too: it would be replaced; choose another"
            )
        if reserved.get(place.parent) == "the input" and place.name.endswith(ENDINGS):
            raise UsageError(
                f"`{name}` {path} lies in the folder that is read: it would be input of the next run; choose another folder"
            )
        reserved[place] = f"`{name}`"


def is_stream(path: str | Path | None) -> bool:
    """Whether a name stands for something that is written through and not replaced: a pipe, a device."""
    if path is None or path == STDIO:
        return True
    # By name too: /dev/stdout is a regular file when standard output is redirected to one.
    named = Path(path).is_absolute() and Path(path).parts[1:2] in (("dev",), ("proc",))
    return named or (Path(path).exists() and not Path(path).is_file())


@contextmanager
def streamed_rows(path: str | Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Write rows to standard output ("-"), a pipe or a device, each at once. Gives the function that writes one row."""
    # Not a context: to close it may fail only where a write had failed.
    handle = sys.stdout.buffer if path == STDIO else Path(path).open("wb")  # noqa: SIM115

    def write(row: Mapping[str, Any]) -> None:
        with naming("standard output" if path == STDIO else path):
            handle.write(encode_row(row))
            handle.flush()

    try:
        yield write
    finally:
        if path != STDIO:
            close(handle)


def close(handle: IO[bytes]) -> None:
    """Close a file each of whose writes was flushed: what is left to write is of a write that failed, and that was reported."""
    with suppress(OSError):
        handle.close()


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
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a run that ends removes the file, and perhaps the folder
            return locked(folder / LOCK_FILE, folder)


def locked(file: Path, what: Path) -> BinaryIO:
    """A file, made if it is absent, open to read and append, and locked; `what` is written by who has it."""
    while True:
        handle = file.open("a+b")
        try:
            if not try_lock(handle):
                raise UsageError(f"another run is writing {what}; wait for it, or choose another `out`")
            with suppress(FileNotFoundError):  # the run that had it has removed it
                if os.path.samestat(os.fstat(handle.fileno()), file.stat()):
                    return handle
        except BaseException:
            handle.close()
            raise
        handle.close()
