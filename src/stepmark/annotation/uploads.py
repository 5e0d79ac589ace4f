"""Files of items that come over the network: never larger than the limit, packed or not, and never named by the sender."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request

from stepmark.annotation.reading import distinct, items_of_file
from stepmark.annotation.refusals import Refused
from stepmark.annotation.security import too_large
from stepmark.errors import InputError

if TYPE_CHECKING:
    from stepmark.annotation.items import Item
    from stepmark.annotation.project import Project

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Upload:
    """What was sent."""

    items: list[Item]
    name: str
    """What the sender calls the file: for the audit log alone."""


async def read_upload(request: Request, project: Project) -> Upload:
    """The items of the body, or of the one file of a form.

    Raises:
        Refused: too large (413), no file, or not what any format says (400).
    """
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "upload"
        name = await _receive(request, raw)
        try:
            items = await asyncio.to_thread(_read, raw, project)
        except InputError as error:
            # The place in our own folder tells the sender nothing but the line.
            words = str(error).replace(f"{folder}/", "")
            raise Refused(400, words, field=error.field) from None
    return Upload(items, name)


async def _receive(request: Request, to: Path) -> str:
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with request.form(max_files=1, max_fields=10) as form:
            sent = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            if len(sent) != 1:
                raise Refused(400, f"expected one file in the form, found {len(sent)}", field="file")
            await asyncio.to_thread(_copy, sent[0].file, to)
            return (sent[0].filename or "")[:200]
    with to.open("wb") as file:
        try:
            async for chunk in request.stream():
                file.write(chunk)
        except ClientDisconnect:
            raise Refused(400, "the connection was closed before the file was complete") from None
    return (request.query_params.get("name") or "")[:200]


def _copy(source: IO[bytes], to: Path) -> None:
    with to.open("wb") as file:
        shutil.copyfileobj(source, file)


def _read(raw: Path, project: Project) -> list[Item]:
    with raw.open("rb") as file:
        head = file.read(2)
    plain = raw.with_name("unpacked")
    if head == _GZIP:
        _unpack(raw, plain, project.limits.upload_bytes)
    else:
        raw.rename(plain)
    with plain.open("rb") as file:
        start = file.read(64).lstrip()[:1]
    named = plain.rename(plain.with_name("upload.json" if start == b"[" else "upload.jsonl"))
    if named.stat().st_size == 0:
        raise InputError("expected a file of items, found an empty one")
    return list(distinct(items_of_file(named, project)))


def _unpack(source: Path, to: Path, limit: int) -> None:
    engine = zlib.decompressobj(wbits=31)
    size = 0
    try:
        with source.open("rb") as packed, to.open("wb") as out:
            while data := packed.read(_CHUNK):
                while data:
                    piece = engine.decompress(data, _CHUNK)
                    size += len(piece)
                    if size > limit:
                        raise too_large(limit)
                    out.write(piece)
                    data = engine.unconsumed_tail
                    if engine.eof:
                        if engine.unused_data:
                            data, engine = engine.unused_data, zlib.decompressobj(wbits=31)
                        else:
                            break
    except zlib.error as error:
        raise InputError(f"expected gzip, found {error}") from None
    if not engine.eof:
        raise InputError("expected gzip, found a file that ends in the middle")
