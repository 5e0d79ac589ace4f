"""What tells one model from another: a fingerprint of the files that decide what a checkpoint computes.

Every byte of the weights counts, so weights replaced by others of equal size are another model. Hashing them takes about a second a gigabyte and core.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, final

from stepmark.errors import CheckpointError
from stepmark.models.files import CONFIGURATION, check_file, weight_files
from stepmark.models.places import adapter_base

_State = tuple[int, int, int, int, int]
"""What changes whenever a file's content does: size, nanoseconds of modification (as a program may set it) and of change (as the kernel
sets it), inode, device."""


@final
class CheckpointFiles:
    """The files of a checkpoint that decide what it computes, those of an adapter's base among them.

    Make it before the weights are read: `fingerprint` then refuses to name what was loaded after files that have changed since.

    Args:
        folder: in the Hugging Face layout.
        weights: False where only tokenizer and spec are read, because the model computes elsewhere.

    Raises:
        CheckpointError: no weights there, or an adapter whose base cannot be found.
    """

    def __init__(self, folder: str | Path, *, weights: bool = True) -> None:
        self.folder = Path(folder)
        self._weights = weights
        self._states = {file: _state(file) for file in _deciding(self.folder, weights)}
        base = adapter_base(self.folder) if weights else None
        self._base = None if base is None else CheckpointFiles(base[1])
        self._fingerprint: str | None = None

    def fingerprint(self) -> str:
        """64 hexadecimal digits, equal for equal content under equal names; the folder's own name and place do not count.

        Raises:
            CheckpointError: a file has changed, come or gone since this object was made.
        """
        if self._fingerprint is None:
            digest = hashlib.sha256()
            with _threads() as pool:
                for file, content in zip(self._states, pool.map(_digest, self._states), strict=True):
                    digest.update(f"{file.name} {content}\n".encode())
            self._check_unchanged()
            if self._base is not None:
                digest.update(f"base {self._base.fingerprint()}\n".encode())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def _check_unchanged(self) -> None:
        now = {file: _state(file) for file in _deciding(self.folder, self._weights)}
        differing = [file for file in {**self._states, **now} if self._states.get(file) != now.get(file)]
        if differing:
            raise CheckpointError(
                f"{differing[0]} was changed while the checkpoint was being read, so that nobody knows which weights are in "
                "use; run again when the checkpoint is finished"
            )


def named(name: str, *decisive: object) -> str:
    """`NAME#DIGEST`: a name, and 12 digits of a digest of the `repr` of all else that decides what a model gives."""
    digest = hashlib.sha256()
    for value in decisive:
        digest.update(f"{value!r}\n".encode())
    return f"{name}#{digest.hexdigest()[:12]}"


def tensors_fingerprint(tensors: Iterable[tuple[str, Any]]) -> str:
    """The fingerprint of a model in memory, for one that was read from no folder: every byte of its torch tensors, by name."""
    import torch

    def of_tensor(entry: tuple[str, Any]) -> str:
        name, tensor = entry
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return f"{name} {tuple(tensor.shape)} {tensor.dtype} {hashlib.sha256(content).hexdigest()}\n"

    with _threads() as pool:
        return hashlib.sha256("".join(pool.map(of_tensor, sorted(tensors))).encode()).hexdigest()


def checkpoint_fingerprint(folder: str | Path) -> str:
    """The fingerprint of a checkpoint's folder as it is now; raises as `CheckpointFiles`."""
    return CheckpointFiles(folder).fingerprint()


def _deciding(folder: Path, weights: bool) -> Iterator[Path]:
    """The files that decide, in the order of their names."""
    files = sorted(file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else []
    tensors = weight_files(folder).every if weights else ()
    beside = (file for file in files if any(fnmatch(file.name, pattern) for pattern in CONFIGURATION))
    yield from sorted({*beside, *tensors})


def _state(file: Path) -> _State:
    check_file(file)
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _threads() -> ThreadPoolExecutor:
    """For hashing, which holds no lock of Python's."""
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
