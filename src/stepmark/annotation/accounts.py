"""Accounts, invitations and sessions; codes and tokens are shown once and stored as SHA-256 only.

Each role includes the ones before it: annotator, adjudicator, admin. `Refused` is the error of every request that is not allowed.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError
from starlette.exceptions import HTTPException

from stepmark.annotation import tables
from stepmark.annotation.database import check_text
from stepmark.errors import InputError


class Refused(HTTPException):  # FastAPI lets these pass where it reads bodies
    """A request that is refused: its status and what the answer says.

    Args:
        status: 400 malformed, 401 no session, 403 not allowed, 404 not there, 409 another version, 413 too large, 429 too often,
            503 not stored.
        error: what was expected, what was found, what to do.
        field: the field that it is about.
        headers: more headers of the answer.
        more: what else the answer's body holds.
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
        self.body: dict[str, Any] = {
            "error": error,
            **({} if field is None else {"field": field}),
            **(more or {}),
        }


Role = Literal["annotator", "adjudicator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

SESSION_DAYS = 7.0
MOST_NAME = 60


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
class Entered:
    """What logging in or joining gives."""

    account: Account
    session: Session
    cookie: str
    """The session's token, for the cookie alone."""
    token: str | None = None
    """The account's own token, shown once when it is made."""


def hashed(secret: str) -> str:
    """SHA-256 of a token, in hexadecimal. Tokens are random and long, so that no salt or slow hash is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def new_secret() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(32)


def checked_name(name: str) -> str:
    """A name as it is kept: without space around it.

    Raises:
        Refused: empty, longer than 60 characters, or with characters that do not print.
    """
    name = name.strip()
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise Refused(
            400,
            f"expected a name of 1 to {MOST_NAME} printable characters, found {len(name)} characters",
            field="name",
        )
    return name


def checked_note(text: str) -> str:
    """A text that both databases can hold.

    Raises:
        Refused: it has a NUL character or half a surrogate pair.
    """
    try:
        return check_text(text, what="a text")
    except InputError as error:
        raise Refused(400, error.message) from None


def audit(
    connection: Connection, at: float, account: str | None, action: str, detail: dict[str, Any]
) -> None:
    """Write down that something was done. Never holds a code, token or hash."""
    connection.execute(
        tables.audit.insert(),
        {"at": at, "account": account, "action": action, "detail": json.dumps(detail)},
    )


def invite(connection: Connection, role: Role, *, uses: int, hours: float, by: str | None, at: float) -> str:
    """Make an invitation and give its code, which is nowhere else."""
    code = new_secret()
    connection.execute(
        tables.invitations.insert(),
        {
            "code_hash": hashed(code),
            "role": role,
            "expires": at + hours * 3600,
            "uses_left": uses,
            "created_by": by,
        },
    )
    audit(connection, at, by, "invite", {"role": role, "uses": uses, "hours": hours})
    return code


def count_admins(connection: Connection) -> int:
    """How many accounts may invite others."""
    table = tables.accounts
    where = (table.c.role == "admin") & ~table.c.disabled
    return int(connection.execute(select(func.count()).select_from(table).where(where)).scalar_one())


class Accounts:
    """Accounts and sessions, in memory and in the database. Functions that take a connection run in the writer's thread, and what they give
    is taken over by `admit`, in the loop's.

    Args:
        clock: gives Unix time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.by_id: dict[int, Account] = {}
        self._sessions: dict[str, Session] = {}

    def load(self, connection: Connection) -> None:
        """Read all accounts and the sessions that still hold."""
        for row in connection.execute(tables.accounts.select()):
            self.by_id[row.id] = Account(
                id=row.id, name=row.name, role=row.role, disabled=row.disabled, created=row.created
            )
        alive = tables.sessions.select().where(tables.sessions.c.expires > self._clock())
        for row in connection.execute(alive):
            self._sessions[row.token_hash] = Session(
                key=row.token_hash, account=row.account, csrf=row.csrf, expires=row.expires
            )

    def name_of(self, account: int) -> str:
        """The account's name."""
        return self.by_id[account].name

    def session(self, cookie: str) -> Session | None:
        """The session of a cookie's token; None when there is none, it is over, or its account is disabled."""
        session = self._sessions.get(hashed(cookie))
        if session is None:
            return None
        if session.expires <= self._clock():
            del self._sessions[session.key]
            return None
        return None if self.by_id[session.account].disabled else session

    def admit(self, entered: Entered) -> None:
        """Take over what is on disk now."""
        self.by_id[entered.account.id] = entered.account
        self._sessions[entered.session.key] = entered.session

    def join(self, connection: Connection, code: str, name: str) -> Entered:
        """Use an invitation once: a new account, logged in.

        Raises:
            Refused: no such invitation, it is used up or over (403); the name is taken (400).
        """
        now, table = self._clock(), tables.invitations
        good = (table.c.code_hash == hashed(code)) & (table.c.expires > now) & (table.c.uses_left > 0)
        role = connection.execute(select(table.c.role).where(good)).scalar()
        if role is None:
            raise Refused(
                403, "this invitation is unknown, used up or over; ask for a new link", field="code"
            )
        connection.execute(table.update().where(good).values(uses_left=table.c.uses_left - 1))
        token = new_secret()
        same = func.lower(tables.accounts.c.name) == name.lower()
        if connection.execute(select(tables.accounts.c.id).where(same)).first() is not None:
            raise Refused(400, f"the name {name!r} is taken; choose another", field="name")
        try:
            made = connection.execute(
                tables.accounts.insert(),
                {
                    "name": name,
                    "role": role,
                    "token_hash": hashed(token),
                    "disabled": False,
                    "created": now,
                },
            )
        except IntegrityError:
            raise Refused(400, f"the name {name!r} is taken; choose another", field="name") from None
        number = made.inserted_primary_key
        assert number is not None
        account = Account(id=number[0], name=name, role=role, created=now)
        audit(connection, now, name, "join", {"role": role})
        return self._enter(connection, account, token)

    def login(self, connection: Connection, token: str) -> Entered:
        """A new session for the account of this token.

        Raises:
            Refused: no account has it, or it is disabled (403).
        """
        found = connection.execute(
            tables.accounts.select().where(tables.accounts.c.token_hash == hashed(token))
        ).first()
        if found is None or found.disabled:
            raise Refused(
                403, "no account has this token; check it, or ask for a new invitation", field="token"
            )
        account = Account(id=found.id, name=found.name, role=found.role, created=found.created)
        audit(connection, self._clock(), account.name, "login", {})
        return self._enter(connection, account, None)

    def logout(self, connection: Connection, session: Session) -> None:
        """End a session on disk; `forget` ends it in memory."""
        connection.execute(tables.sessions.delete().where(tables.sessions.c.token_hash == session.key))
        audit(connection, self._clock(), self.name_of(session.account), "logout", {})

    def forget(self, session: Session) -> None:
        """End a session in memory."""
        self._sessions.pop(session.key, None)

    def change(
        self,
        connection: Connection,
        account: Account,
        *,
        role: Role | None,
        disabled: bool | None,
        new_token: bool,
        by: str,
    ) -> tuple[Account, str | None]:
        """Another role, locked out or let in again, a new token in place of a lost one. Sessions of a disabled or re-keyed account end.

        Raises:
            Refused: nobody would be left who may invite (400).
        """
        changed = replace(
            account,
            role=account.role if role is None else role,
            disabled=account.disabled if disabled is None else disabled,
        )
        values: dict[str, Any] = {"role": changed.role, "disabled": changed.disabled}
        token = new_secret() if new_token else None
        if token is not None:
            values["token_hash"] = hashed(token)
        connection.execute(
            tables.accounts.update().where(tables.accounts.c.id == account.id).values(**values)
        )
        if count_admins(connection) == 0:
            raise Refused(400, "expected at least one admin who is not disabled to be left", field="role")
        if changed.disabled or new_token:
            connection.execute(tables.sessions.delete().where(tables.sessions.c.account == account.id))
        detail = {
            "name": account.name,
            "role": changed.role,
            "disabled": changed.disabled,
            "new_token": new_token,
        }
        audit(connection, self._clock(), by, "account", detail)
        return changed, token

    def changed(self, account: Account, *, end_sessions: bool) -> None:
        """Take over a changed account."""
        self.by_id[account.id] = account
        if end_sessions:
            self._sessions = {k: s for k, s in self._sessions.items() if s.account != account.id}

    def _enter(self, connection: Connection, account: Account, token: str | None) -> Entered:
        cookie, now = new_secret(), self._clock()
        session = Session(
            key=hashed(cookie),
            account=account.id,
            csrf=new_secret(),
            expires=now + SESSION_DAYS * 86400,
        )
        connection.execute(tables.sessions.delete().where(tables.sessions.c.expires <= now))
        connection.execute(
            tables.sessions.insert(),
            {
                "token_hash": session.key,
                "account": account.id,
                "csrf": session.csrf,
                "created": now,
                "expires": session.expires,
            },
        )
        return Entered(account=account, session=session, cookie=cookie, token=token)
