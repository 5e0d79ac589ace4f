"""JSON lines in and out: rows read strictly, files that are finished or absent, long runs that resume.

A file that is written in one go goes through `atomic_write`, rows through `atomic_rows`. A run that takes long goes through
`open_rows`: `OUT.part` holds one line for each input row handled so far, `OUT.part.manifest.json` what
they were made with, the identities of the models among it; a second run with the same manifest continues after the last whole
line. `OUT` and then `OUT.manifest.json` appear when all is done, the manifest last: where it exists, the file is whole. A run
whose output is a folder holds it with `held`.
"""

from stepmark.store.columns import Columns, parse_columns
from stepmark.store.disk import naming, storage_error
from stepmark.store.inputs import RunInput, evenly, run_input
from stepmark.store.json_rows import json_type, parse_row
from stepmark.store.reading import ENDINGS, STDIO, Row, Source, check_readable, read_rows, row_files
from stepmark.store.results import Results
from stepmark.store.writing import (
    LOCK_FILE,
    Fingerprint,
    ResumableRows,
    RowWriter,
    StreamedRows,
    atomic_rows,
    atomic_write,
    check_outputs,
    check_writable,
    differences,
    encode_row,
    fingerprint,
    held,
    is_stream,
    open_rows,
    write_beside,
)

__all__ = [
    "ENDINGS",
    "LOCK_FILE",
    "STDIO",
    "Columns",
    "Fingerprint",
    "Results",
    "ResumableRows",
    "Row",
    "RowWriter",
    "RunInput",
    "Source",
    "StreamedRows",
    "atomic_rows",
    "atomic_write",
    "check_outputs",
    "check_readable",
    "check_writable",
    "differences",
    "encode_row",
    "evenly",
    "fingerprint",
    "held",
    "is_stream",
    "json_type",
    "naming",
    "open_rows",
    "parse_columns",
    "parse_row",
    "read_rows",
    "row_files",
    "run_input",
    "storage_error",
    "write_beside",
]
