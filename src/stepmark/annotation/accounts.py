"""Accounts, invitations and sessions; codes and tokens are shown once and stored as SHA-256 only.

Each role includes the ones before it: annotator, adjudicator, admin.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError
from starlette.exceptions import HTTPException

from stepmark.annotation import tables
from stepmark.show.text import amount

Role = Literal["annotator", "adjudicator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

SESSION_DAYS = 7.0
MOST_NAME = 60


class RequestError(HTTPException):  # FastAPI lets these pass where it reads bodies
    """A refused request: 400 malformed, 401 no session, 403 not allowed, 404 not there, 409 another version, 413 too large, 503 not stored.

    `error` says what was expected, what was found, what to do; `field` which field it is about; `more` goes into the answer's body too.
    """

    def __init__(
        self,
        status: int,
        error: str,
        *,
        field: str | None = None,
        headers: dict[str, str] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(status, error, headers)
        self.body: dict[str, Any] = {"error": error} | ({"field": field} if field else {}) | (more or {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """A person who may log in."""

    id: int
    name: str
    role: Role
    disabled: bool = False
    created: float = 0.0
    """Unix time."""

    def may(self, role: Role) -> bool:
        """Whether this account's role is `role` or one above it."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A browser that is logged in."""

    key: str
    """SHA-256 of the cookie's token."""
    account: int
    csrf: str
    expires: float
    """Unix time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """What logging in or joining gives."""

    name: str
    role: Role
    cookie: str
    """The session's token, for the cookie alone."""
    token: str | None = None
    """The account's own token, shown once when it is made."""


def hashed(secret: str) -> str:
    """SHA-256 of a token, in hexadecimal. Tokens have 256 random bits, so that no salt or slow hash is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def new_secret() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(32)


def audit(
    connection: Connection, at: float, account: str | None, action: str, detail: dict[str, Any]
) -> None:
    """Add a line to the audit log. It never holds a code, token or hash."""
    row = {"at": at, "account": account, "action": action, "detail": json.dumps(detail)}
    connection.execute(tables.audit.insert(), row)


def invite(connection: Connection, role: Role, *, uses: int, hours: float, by: str | None, at: float) -> str:
    """Make an invitation and give its code, which is stored nowhere."""
    code, expires = new_secret(), at + hours * 3600
    row = {"code_hash": hashed(code), "role": role, "expires": expires, "uses_left": uses, "created_by": by}
    connection.execute(tables.invitations.insert(), row)
    audit(connection, at, by, "invite", {"role": role, "uses": uses, "hours": hours})
    return code


def count_admins(connection: Connection) -> int:
    """How many accounts may invite others."""
    t = tables.accounts
    query = select(func.count()).select_from(t).where((t.c.role == "admin") & ~t.c.disabled)
    return int(connection.execute(query).scalar_one())


def add_account(connection: Connection, name: str, role: Role, token: str, now: float) -> int:
    """Add an account and give its id.

    Raises:
        RequestError: the name is taken (400), in whatever case.
    """
    t = tables.accounts
    same = select(t.c.id).where(func.lower(t.c.name) == name.lower())
    row = {"name": name, "role": role, "token_hash": hashed(token), "disabled": False, "created": now}
    refusal = RequestError(400, f"the name {name!r} is taken; choose another", field="name")
    if connection.execute(same).first() is not None:
        raise refusal
    try:
        key = connection.execute(tables.accounts.insert(), row).inserted_primary_key
    except IntegrityError:
        raise refusal from None
    assert key is not None
    return int(key[0])


def join(connection: Connection, code: str, name: str, now: float) -> Login:
    """Use an invitation once: a new account, logged in.

    Raises:
        RequestError: the name is taken or does not print (400); no such invitation, it is used up or over (403).
    """
    name = name.strip()
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        message = f"expected a name of 1 to {MOST_NAME} printable characters, found {amount(len(name), 'character')}"
        raise RequestError(400, message, field="name")
    t = tables.invitations
    valid = (t.c.code_hash == hashed(code)) & (t.c.expires > now) & (t.c.uses_left > 0)
    role = connection.execute(select(t.c.role).where(valid)).scalar()
    if role is None:
        raise RequestError(
            403, "this invitation is unknown, used up or over; ask for a new link", field="code"
        )
    connection.execute(t.update().where(valid).values(uses_left=t.c.uses_left - 1))
    token = new_secret()
    account = add_account(connection, name, role, token, now)
    audit(connection, now, name, "join", {"role": role})
    return Login(name=name, role=role, cookie=_begin_session(connection, account, now), token=token)


def login(connection: Connection, token: str, now: float) -> Login:
    """A new session for the account of this token.

    Raises:
        RequestError: no account has it, or it is disabled (403).
    """
    t = tables.accounts
    row = connection.execute(t.select().where((t.c.token_hash == hashed(token)) & ~t.c.disabled)).first()
    if row is None:
        raise RequestError(
            403, "no account has this token; check it, or ask for a new invitation", field="token"
        )
    audit(connection, now, row.name, "login", {})
    return Login(name=row.name, role=row.role, cookie=_begin_session(connection, row.id, now))


def _begin_session(connection: Connection, account: int, now: float) -> str:
    t, cookie = tables.sessions, new_secret()
    connection.execute(t.delete().where(t.c.expires <= now))
    row = {"token_hash": hashed(cookie), "account": account, "csrf": new_secret(), "created": now}
    connection.execute(t.insert(), {**row, "expires": now + SESSION_DAYS * 86400})
    return cookie


def logout(connection: Connection, session: Session, name: str, now: float) -> None:
    """End a session."""
    connection.execute(tables.sessions.delete().where(tables.sessions.c.token_hash == session.key))
    audit(connection, now, name, "logout", {})


def change_account(
    connection: Connection,
    account: Account,
    *,
    role: Role | None,
    disabled: bool | None,
    new_token: bool,
    by: str,
    now: float,
) -> str | None:
    """Set another role, lock out or let in again, replace a lost token (which is given). Sessions of a disabled or re-keyed account end.

    Raises:
        RequestError: no admin would be left (400).
    """
    t = tables.accounts
    values: dict[str, Any] = {
        "role": role or account.role,
        "disabled": account.disabled if disabled is None else disabled,
    }
    token = new_secret() if new_token else None
    hashes = {} if token is None else {"token_hash": hashed(token)}
    connection.execute(t.update().where(t.c.id == account.id).values(**values, **hashes))
    if count_admins(connection) == 0:
        raise RequestError(400, "expected at least one admin who is not disabled to be left", field="role")
    if values["disabled"] or new_token:
        connection.execute(tables.sessions.delete().where(tables.sessions.c.account == account.id))
    audit(connection, now, by, "account", {"name": account.name, **values, "new_token": new_token})
    return token


class Accounts:
    """Accounts and sessions in memory, as they are on disk; `load` again after each change. `clock` gives Unix time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.by_id: dict[int, Account] = {}
        self._sessions: dict[str, Session] = {}

    def load(self, connection: Connection) -> None:
        """Read all accounts and the sessions that still hold."""
        t, s = tables.accounts, tables.sessions
        accounts = connection.execute(select(t.c.id, t.c.name, t.c.role, t.c.disabled, t.c.created))
        self.by_id = {row.id: Account(**row._mapping) for row in accounts}
        sessions = connection.execute(s.select().where(s.c.expires > self._clock()))
        self._sessions = {
            row.token_hash: Session(
                key=row.token_hash, account=row.account, csrf=row.csrf, expires=row.expires
            )
            for row in sessions
        }

    def session(self, cookie: str) -> Session | None:
        """The session of a cookie's token; None when there is none, it is over, or its account is disabled."""
        session = self._sessions.get(hashed(cookie))
        if session is None or session.expires <= self._clock():
            return None
        return None if self.by_id[session.account].disabled else session
