"""Where the replies of models are kept (`backends.ReplyStore`): in a SQLite file, or for a while in memory.

The file is what makes a long run resumable: a reply is on disk before anything is computed from it.

"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import final

from stepmark.errors import StepmarkError, UsageError
from stepmark.store import naming

# "stpm" in ASCII: lets us refuse a SQLite file that something else made.
_APPLICATION = 0x7374706D
# 2: each reply with a digest of it; replies of version 1 are read without.
_VERSION = 2
_AT_ONCE = 500


def _digest(key: str, reply: str) -> str:
    """Of a reply under its key: neither may be changed, and no two replies change places."""
    return hashlib.sha256(f"{key}\n{reply}".encode()).hexdigest()[:32]


@final
class ReplyFile:
    """Replies in one SQLite file, made if it is absent.

    Several threads may share it. Several processes may too: the first reply recorded under a key stands, and
    all of them use it. A reply that was altered since it was recorded is refused when it is asked for.

    Args:
        path: the file; its folder must exist.

    Raises:
        UsageError: the path is not a reply store, was made by a newer version, is damaged, or cannot be opened.
        StorageError: the disk is full or broken, or may not be written; of every method.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = str(path)
        self._lock = threading.Lock()
        with self._explained("cannot open a reply store here ({})"):
            self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        other = "expected a reply store (SQLite), found something else ({}); name another file"
        try:
            with self._explained(other):
                self._prepare()
        except StepmarkError:
            self._db.close()
            raise

    @contextmanager
    def _explained(self, otherwise: str = "the reply store cannot be used ({})") -> Iterator[None]:
        """Turn an error of SQLite into one that says what to do: `otherwise`, filled with it, where neither disk nor damage is the cause."""
        try:
            with naming(self.path):
                yield
        except sqlite3.Error as error:
            why = otherwise.format(error)
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT:
                why = f"the reply store is damaged ({error}): restore it, or delete it; what it recorded is then asked for again"
            raise UsageError(f"{self.path}: {why}") from None

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        # FULL: a reply that was paid for survives a power cut too, and model calls dwarf the cost.
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("BEGIN IMMEDIATE")
        application, version, tables = (
            self._db.execute(query).fetchone()[0]
            for query in (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_master",
            )
        )
        wrong = None
        if application == _APPLICATION and version > _VERSION:
            wrong = f"the reply store has format {version}, this stepmark reads {_VERSION}; upgrade stepmark"
        elif application != _APPLICATION and tables:
            wrong = "expected a reply store, found another program's SQLite file; name another file"
        if wrong is not None:
            raise UsageError(f"{self.path}: {wrong}")
        if not tables:
            self._db.execute(
                "CREATE TABLE replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL, "
                "made TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, digest TEXT) WITHOUT ROWID"
            )
            self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
        elif version < _VERSION:
            self._db.execute("ALTER TABLE replies ADD COLUMN digest TEXT")
        if version < _VERSION:
            self._db.execute(f"PRAGMA user_version = {_VERSION}")
        self._db.execute("COMMIT")

    def __len__(self) -> int:
        """Replies recorded."""
        with self._lock, self._explained():
            return int(self._db.execute("SELECT count(*) FROM replies").fetchone()[0])

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        """Those of the keys that are recorded, with their replies.

        Raises:
            UsageError: a reply is not what was recorded.
        """
        rows: list[tuple[str, str, str | None]] = []
        with self._lock, self._explained():
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                rows += self._db.execute(
                    f"SELECT key, reply, digest FROM replies WHERE key IN ({marks})",  # noqa: S608
                    part,
                )
        for key, reply, digest in rows:
            if digest is not None and digest != _digest(key, reply):
                raise UsageError(
                    f"{self.path}: the reply under {key} was changed after it was recorded: its digest does not fit. Delete it (sqlite3 "  # noqa: S608
                    f"{self.path} \"DELETE FROM replies WHERE key = '{key}'\"), and it is asked for again; or name another file"
                )
        return {key: reply for key, reply, _ in rows}

    def put(self, replies: Mapping[str, str]) -> dict[str, str]:
        """Record replies, durably; gives what now stands under each key (the first one recorded)."""
        with self._lock, self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(
                    "INSERT OR IGNORE INTO replies (key, reply, digest) VALUES (?, ?, ?)",
                    [(key, reply, _digest(key, reply)) for key, reply in replies.items()],
                )
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite ends it by itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise
        return self.get(list(replies))

    def close(self) -> None:
        """Close the file; nothing is lost without it."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> ReplyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class MemoryReplies:
    """The replies used last, in memory, at most `limit`; the oldest are forgotten."""

    def __init__(self, limit: int = 20_000) -> None:
        self.name = "replies in memory"
        self._limit = limit
        self._replies: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        """Those of the keys that are still there, with their replies."""
        with self._lock:
            stored = {key: self._replies[key] for key in keys if key in self._replies}
            for key in stored:
                self._replies.move_to_end(key)
        return stored

    def put(self, replies: Mapping[str, str]) -> dict[str, str]:
        """Keep replies; gives what now stands under each key."""
        with self._lock:
            standing = {key: self._replies.setdefault(key, reply) for key, reply in replies.items()}
            while len(self._replies) > self._limit:
                self._replies.popitem(last=False)
        return standing


@contextmanager
def open_replies(out: str | Path | None) -> Iterator[ReplyFile | MemoryReplies]:
    """The replies of a run: in OUT.replies.sqlite, or in memory where it writes no file; raises as `ReplyFile`."""
    if out is None:
        yield MemoryReplies()
        return
    with closing(ReplyFile(f"{out}.replies.sqlite")) as replies:
        yield replies
