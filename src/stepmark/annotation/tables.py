"""The tables, the same on SQLite and PostgreSQL.

`changes` is the log: rows are only ever added. (item, account, version) is its key, so that not even a second process could give one log two
continuations. Everything else can be made again from the log and the items' files, or is about who may do what.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

SCHEMA = 1
"""Version of these tables; kept in `meta`."""

metadata = MetaData()

_id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only for INTEGER

meta = Table("meta", metadata, Column("key", Text, primary_key=True), Column("value", Text, nullable=False))

accounts = Table(
    "accounts",
    metadata,
    Column("id", _id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("disabled", Boolean, nullable=False, default=False),
    Column("created", Double, nullable=False),
)

invitations = Table(
    "invitations",
    metadata,
    Column("code_hash", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("expires", Double, nullable=False),
    Column("uses_left", Integer, nullable=False),
    Column("created_by", Text),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("account", _id, nullable=False),
    Column("csrf", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("expires", Double, nullable=False),
)

items = Table(
    "items",
    metadata,
    Column("id", Text, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("order", Double, nullable=False, default=0.0),
    Column("data", Text, nullable=False),
)

assignments = Table(
    "assignments",
    metadata,
    Column("item", Text, primary_key=True),
    Column("account", _id, primary_key=True, autoincrement=False),
    Column("shown_at", Double, nullable=False),
    Column("leased_until", Double, nullable=False),
    Column("state", Text, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("id", Text, nullable=False),
    Column("item", Text, primary_key=True),
    Column("account", _id, primary_key=True, autoincrement=False),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("data", Text, nullable=False),
    Column("seconds", Double),
    Column("at", Double, nullable=False),
    # One tree alone: a commit writes every page that it touches, and random ids would each touch one more. That a log holds an id once
    # is seen to where the log is folded, which has all of it before it.
    sqlite_with_rowid=False,
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", _id, primary_key=True),
    Column("item", Text, nullable=False),
    Column("account", _id, nullable=False),
    Column("data", Text, nullable=False),
    Column("at", Double, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", _id, primary_key=True),
    Column("at", Double, nullable=False),
    Column("account", Text),
    Column("action", Text, nullable=False),
    Column("detail", Text, nullable=False),
)

Index("decisions_item", decisions.c.item)
Index("audit_at", audit.c.at)
