"""JSON lines in and out: rows read strictly, files that are finished or absent, long runs that resume.

A file that is written in one go goes through `atomic_write`, rows through `atomic_rows`. A run that takes long keeps its results in a
`PartFile` and is done by `resumed`: the same run later computes only what is missing. `OUT` and then `OUT.manifest.json` appear when all is
done, the manifest last: where it exists, the file is whole. A run whose output is a folder holds it with `held`.
"""

from stepmark.store.disk import naming as naming
from stepmark.store.disk import storage_error as storage_error
from stepmark.store.inputs import RunInput as RunInput
from stepmark.store.inputs import evenly as evenly
from stepmark.store.inputs import run_input as run_input
from stepmark.store.part import PartFile as PartFile
from stepmark.store.part import resumed as resumed
from stepmark.store.results import Results as Results
from stepmark.store.writing import LOCK_FILE as LOCK_FILE
from stepmark.store.writing import Fingerprint as Fingerprint
from stepmark.store.writing import atomic_rows as atomic_rows
from stepmark.store.writing import atomic_write as atomic_write
from stepmark.store.writing import check_outputs as check_outputs
from stepmark.store.writing import check_writable as check_writable
from stepmark.store.writing import differences as differences
from stepmark.store.writing import encode_row as encode_row
from stepmark.store.writing import fingerprint as fingerprint
from stepmark.store.writing import held as held
from stepmark.store.writing import is_stream as is_stream
from stepmark.store.writing import row_key as row_key
from stepmark.store.writing import streamed_rows as streamed_rows
from stepmark.store.writing import write_beside as write_beside
from stepmark.store.writing import write_manifest as write_manifest
