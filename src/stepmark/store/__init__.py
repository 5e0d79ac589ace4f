"""JSON lines in and out: rows read strictly, files that are finished or absent, long runs that resume.

A file that is written in one go goes through `atomic_write`, rows through `atomic_rows`. A run that takes long goes through
`open_rows`: `OUT.part` holds one line for each input row handled so far, `OUT.part.manifest.json` what
they were made with, the identities of the models among it; a second run with the same manifest continues after the last whole
line. `OUT` and then `OUT.manifest.json` appear when all is done, the manifest last: where it exists, the file is whole. A run
whose output is a folder holds it with `held`.
"""

from stepmark.store.disk import naming, storage_error
from stepmark.store.folders import LOCK_FILE, held
from stepmark.store.reading import STDIO, Row, check_readable, json_type, parse_row, read_rows
from stepmark.store.writing import (
    Fingerprint,
    ResumableRows,
    RowWriter,
    StreamedRows,
    atomic_rows,
    atomic_write,
    check_writable,
    differences,
    encode_row,
    fingerprint,
    hold,
    is_stream,
    open_rows,
)

__all__ = [
    "LOCK_FILE",
    "STDIO",
    "Fingerprint",
    "ResumableRows",
    "Row",
    "RowWriter",
    "StreamedRows",
    "atomic_rows",
    "atomic_write",
    "check_readable",
    "check_writable",
    "differences",
    "encode_row",
    "fingerprint",
    "held",
    "hold",
    "is_stream",
    "json_type",
    "naming",
    "open_rows",
    "parse_row",
    "read_rows",
    "storage_error",
]
