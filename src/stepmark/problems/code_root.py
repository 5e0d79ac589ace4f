"""Builds the file system of a sandbox out of Linux namespaces, then becomes the program that it is told.

Started by `unshare` as the source text of a script, first process of its namespaces, so it imports nothing of stepmark.
Arguments: JSON with `read_only` (paths to show, read-only), `memory_bytes` (of the temporary folder), then the command.
What is not named does not exist inside: no home, no /etc, no temporary files of others.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 2, 4, 8, 32, 4096, 16384
_MS_NOATIME, _MS_NODIRATIME, _MS_RELATIME = 1024, 2048, 1 << 21
_MNT_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LIBC = ctypes.CDLL(None, use_errno=True)


def _checked(code: int, what: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    text = [None if value is None else value.encode() for value in (source, target, kind, data)]
    _checked(_LIBC.mount(text[0], text[1], text[2], ctypes.c_ulong(flags), text[3]), f"mount {target}")


def _read_only(target: str) -> None:
    # A user namespace may not clear the flags that a mount came with; so they are repeated.
    now = os.statvfs(target).f_flag
    kept = {
        os.ST_NOEXEC: _MS_NOEXEC,
        os.ST_NOATIME: _MS_NOATIME,
        os.ST_NODIRATIME: _MS_NODIRATIME,
        os.ST_RELATIME: _MS_RELATIME,
    }
    flags = sum(flag for bit, flag in kept.items() if now & bit)
    _mount("none", target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | flags)


def _bind(path: str, root: str) -> None:
    source, target = Path(path), Path(root + path)
    if source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.readlink())
        return
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    # Not recursive: what else is mounted below stays out.
    _mount(path, str(target), None, _MS_BIND)
    _read_only(str(target))


def main() -> NoReturn:
    """Build the root, move into it, run the command."""
    settings = json.loads(sys.argv[1])
    root = temporary = "/tmp"  # noqa: S108 (what is mounted on it is seen by this namespace only)
    os.umask(0o022)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for path in settings["read_only"]:
        _bind(path, root)
    Path(f"{root}/dev").mkdir()
    for name in ("null", "zero", "random", "urandom"):
        Path(f"{root}/dev/{name}").touch()
        _mount(f"/dev/{name}", f"{root}/dev/{name}", None, _MS_BIND)
    for name in ("tmp", "proc", "old"):
        Path(f"{root}/{name}").mkdir()
    _mount(
        "tmpfs",
        root + temporary,
        "tmpfs",
        _MS_NOSUID | _MS_NODEV,
        f"size={settings['memory_bytes']},mode=1777",
    )
    # Containers often forbid a new /proc; then there is none, and the supervisor cannot measure memory or waiting.
    with contextlib.suppress(OSError):
        _mount("proc", f"{root}/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    os.chdir(root)
    _checked(_LIBC.syscall(_SYS_PIVOT_ROOT[os.uname().machine], b".", b"old"), "pivot_root")
    os.chdir("/")
    _checked(_LIBC.umount2(b"/old", _MNT_DETACH), "umount /old")
    Path("/old").rmdir()
    _mount("none", "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    os.chdir(temporary)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606


if __name__ == "__main__":
    main()
