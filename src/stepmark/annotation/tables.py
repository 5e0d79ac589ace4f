"""The tables, the same on SQLite and PostgreSQL.

`changes` is the log: rows are only ever added. (item, account, version) is its key, so that not even a second process could give one log two
continuations. Everything else can be made again from the log and the items' files, or is about who may do what.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, Table, Text

SCHEMA = 1
"""Version of these tables; kept in `meta`."""

metadata = MetaData()

_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only for INTEGER


def _table(name: str, key: str, columns: dict[str, Any], **options: Any) -> Table:
    """A table whose columns are all filled, but for those with a "?"; "!" marks unique ones."""
    keys = key.split()
    made = [
        Column(
            column.rstrip("?!"),
            kind,
            primary_key=column in keys,
            autoincrement=len(keys) == 1 and kind is _ID,
            nullable=column.endswith("?"),
            unique=column.endswith("!") or None,
        )
        for column, kind in columns.items()
    ]
    return Table(name, metadata, *made, **options)


meta = _table("meta", "key", {"key": Text, "value": Text})
accounts = _table(
    "accounts",
    "id",
    {"id": _ID, "name!": Text, "role": Text, "token_hash!": Text, "disabled": Boolean, "created": Double},
)
invitations = _table(
    "invitations",
    "code_hash",
    {"code_hash": Text, "role": Text, "expires": Double, "uses_left": Integer, "created_by?": Text},
)
sessions = _table(
    "sessions",
    "token_hash",
    {"token_hash": Text, "account": _ID, "csrf": Text, "created": Double, "expires": Double},
)
items = _table(
    "items",
    "id",
    {"id": Text, "position": Integer, "role": Text, "steps": Integer, "order": Double, "data": Text},
)
assignments = _table(
    "assignments",
    "item account",
    {"item": Text, "account": _ID, "shown_at": Double, "leased_until": Double, "state": Text},
)
changes = _table(
    "changes",
    "item account version",
    {
        "id": Text,
        "item": Text,
        "account": _ID,
        "version": Integer,
        "data": Text,
        "seconds?": Double,
        "at": Double,
    },
    # One tree alone: a commit writes every page that it touches, and random ids would each touch one more. That a log holds an id once
    # is seen to where the log is folded, which has all of it before it.
    sqlite_with_rowid=False,
)
decisions = _table("decisions", "id", {"id": _ID, "item": Text, "account": _ID, "data": Text, "at": Double})
audit = _table("audit", "id", {"id": _ID, "at": Double, "account?": Text, "action": Text, "detail": Text})

Index("decisions_item", decisions.c.item)
Index("audit_at", audit.c.at)
