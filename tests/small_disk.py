"""A disk that is soon full, for tests: a tmpfs of some KiB where it can be mounted, or a limit on the size of files."""

from __future__ import annotations

import contextlib
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A folder on a disk of its own.

    Args:
        folder: where it is mounted; made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._mounted = False

    def resize(self, kib: int) -> None:
        """Give the disk another size; the test is skipped where disks cannot be mounted."""
        options = f"size={kib}k" + (",remount" if self._mounted else "")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"a disk of {kib} KiB cannot be mounted here: {done.stderr.decode().strip()}")
        self._mounted = True

    def close(self) -> None:
        """Take it away with what is on it."""
        if self._mounted:
            subprocess.run(["umount", "--lazy", self.folder], check=True)


@contextlib.contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes, as if a quota were used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
