"""The database of a project: who labels, the items, who has which item, every change, the admin's decisions.

SQLite runs in WAL mode with `synchronous=FULL`: a commit that has returned is on disk. PostgreSQL is reached by its URL. Nothing is kept in
memory between two calls, so that exports and links are made beside a running server, and the server may be killed at any moment.

`changes` is the log: rows are only ever added. (item, annotator, version) is its key, so that not even two processes could give one log two
continuations. The admin's decision on an item is made in a log of its own, under the annotator `DECIDING`.
"""

from __future__ import annotations

import json
import secrets
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, fields
from hmac import compare_digest
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Double,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    and_,
    case,
    create_engine,
    event,
    func,
    inspect,
    make_url,
    or_,
    select,
)
from sqlalchemy.exc import DBAPIError

from stepmark.annotation.items import Item
from stepmark.annotation.marks import (
    AnnotatorMarks,
    Change,
    Decision,
    Folding,
    Marks,
    change_data,
    changes_of,
)
from stepmark.annotation.project import Project, check_change
from stepmark.errors import InputError, MissingExtraError, StepmarkError, UsageError
from stepmark.records import DEFAULT_AXIS

SCHEMA = "3"
"""Version of the tables; kept in `meta`."""
ADMIN = "admin"
"""The admin's name."""
DECIDING = 0
"""In the place of an annotator: the log in which the admin decides."""
HELD_SECONDS = 30 * 60.0
"""How long an item that someone has open is not given to others, since their last change."""
_NAME_CHARACTERS = 60

metadata = MetaData()


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(name, metadata, *columns)


def _column(name: str, kind: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **options)


def _key(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


meta = _table("meta", _key("key", Text), _column("value", Text))
annotators = _table(
    "annotators",
    Column("id", Integer, primary_key=True),
    _column("name", Text),
    _column("name_key", Text, unique=True),
    _column("token", Text),
)
items = _table(
    "items",
    _key("id", Text),
    _column("position", Integer),
    _column("steps", Integer),
    _column("data", Text),
)
assignments = _table(
    "assignments",
    _key("item", Text),
    _key("annotator", Integer),
    _column("held_until", Double),
    _column("submitted", Boolean),
)
changes = _table(
    "changes",
    _key("item", Text),
    _key("annotator", Integer),
    _key("version", Integer),
    _column("id", Text),
    _column("data", Text),
    _column("seconds", Double),
    _column("at", Double),
)
decisions = _table(
    "decisions", Column("id", Integer, primary_key=True), _column("item", Text), _column("data", Text)
)

_ITEM = TypeAdapter(Item)
_DECISION = TypeAdapter(Decision)
_PROJECT = TypeAdapter(Project)


class RefusedError(StepmarkError):
    """A request that the project's state does not allow; `status` is HTTP's."""

    def __init__(self, status: int, message: str, *, field: str | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": message, **({} if field is None else {"field": field}), **more}


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """Who labels."""

    id: int
    name: str
    token: str
    """What their link ends with."""

    @property
    def is_admin(self) -> bool:
        """Whether this is the admin."""
        return name_key(self.name) == ADMIN


def name_key(name: str) -> str:
    """What two names share that differ in Unicode form or case alone."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


@dataclass(slots=True)
class Log:
    """All changes of one annotator on one item, folded."""

    folding: Folding
    ids: dict[str, Change]
    """Of the changes that the page sent."""
    seconds: float = 0.0
    at: float | None = None
    """Unix time of the last change."""
    first_pass: Marks | None = None
    """The marks at the first submit."""

    def take(self, id: str, change: Change, seconds: float, at: float) -> None:
        """Add a change.

        Raises:
            InputError: it cannot be here.
        """
        self.folding.take(change)
        self.ids[id] = change
        self.seconds += seconds
        self.at = at
        if self.first_pass is None and self.folding.submitted:
            self.first_pass = self.folding.marks()


class Store:
    """A project's database: an SQLAlchemy URL of SQLite or PostgreSQL, or the path of an SQLite file. `clock` gives Unix time."""

    def __init__(self, url: str, *, create: bool = True, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.url = _database_url(url)
        path = Path(self.url.partition(":///")[2]) if self.url.startswith("sqlite") else None
        self.shown = str(path or make_url(self.url).render_as_string(hide_password=True))
        """The database's name for messages, without a password."""
        if path is not None and not path.exists():
            if not create:
                raise UsageError(f"{path}: expected a database of annotations, found no file")
            try:
                path.touch(mode=0o600)  # it holds what people said, and their links
            except OSError as error:
                raise UsageError(f"{path}: cannot be made: {error.strerror}") from None
        self.engine = _engine(self.url)
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, create: bool) -> None:
        try:
            if "meta" not in inspect(self.engine).get_table_names():
                if not create:
                    raise UsageError(
                        f"{self.shown}: expected a database of annotations, found none of its tables"
                    )
                with self.writing() as connection:
                    metadata.create_all(connection)
                    connection.execute(meta.insert(), {"key": "schema", "value": SCHEMA})
            version = self.setting("schema")
        except DBAPIError as error:
            reason = str(error.orig).strip().splitlines()[0] if error.orig else "unknown"
            raise UsageError(f"{self.shown}: cannot be opened as a database: {reason}") from None
        if version != SCHEMA:
            raise UsageError(
                f"{self.shown}: expected tables of version {SCHEMA}, found {version}; use the stepmark that made them"
            )

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database for as long as it is open."""
        with self.engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: all of it or nothing."""
        # SQLite takes its write lock at once: a later upgrade could fail half-way.
        with (
            self.engine.connect() as connection,
            connection.execution_options(stepmark_immediate=True).begin(),
        ):
            yield connection

    def setting(self, key: str) -> str | None:
        """A value of the table `meta`; None where there is none."""
        with self.reading() as connection:
            return _setting(connection, key)

    # The project and its items.

    def prepare(self, project: Project, new_items: Sequence[Item], link: str) -> int:
        """Bring the database up to the project's files; `link` is what people's links begin with. Gives how many items there are now.

        Raises:
            InputError: an id stands for another solution than before, and that one is labelled.
            UsageError: there are labels of another mode or axis: they would mean something else now.
        """
        data = _PROJECT.dump_json(project).decode()
        with self.writing() as connection:
            labelled = set(connection.execute(select(changes.c.item).distinct()).scalars())
            made, now = (json.loads(each) for each in (_setting(connection, "project") or data, data))
            made.setdefault("axis", DEFAULT_AXIS)  # a database of before there were several
            for key in ("axis", "mode", "allow_neutral"):
                if labelled and made[key] != now[key]:
                    raise UsageError(
                        f"{self.shown}: its labels were made with {key} {made[key]!r}, the project says {now[key]!r}; "
                        "put the setting back, or give another `database`"
                    )
            _set(connection, "project", data)
            _set(connection, "link", link)
            known = {row.id: row.data for row in connection.execute(select(items.c.id, items.c.data))}
            for item in new_items:
                if "\0" in item.id:
                    raise InputError("expected an id, found one with a NUL character", where=repr(item.id))
                data, before = json.dumps(_ITEM.dump_python(item, mode="json")), known.get(item.id)
                steps = len(item.solution.steps)
                if before is None:
                    row = {"id": item.id, "position": len(known), "steps": steps, "data": data}
                    connection.execute(items.insert(), row)
                elif before != data:
                    if item.id in labelled and _item(before).solution != item.solution:
                        raise InputError(
                            "this id stands for another solution than before, and there are labels of that one; "
                            "give the new solution another id",
                            where=item.id,
                        )
                    connection.execute(
                        items.update().where(items.c.id == item.id).values(steps=steps, data=data)
                    )
                known[item.id] = data
            return len(known)

    def project(self) -> Project:
        """The settings of the project at its last start."""
        stored = self.setting("project")
        if stored is None:
            raise UsageError(
                f"{self.shown}: it holds no project yet; serve one first: stepmark annotate FILE"
            )
        # Other versions may have more settings.
        names = {field.name for field in fields(Project)}
        known = {key: value for key, value in json.loads(stored).items() if key in names}
        return _PROJECT.validate_json(json.dumps(known))

    def items(self, only: Set[str] | None = None) -> list[Item]:
        """Items in their order: all, or those whose ids are in `only`."""
        query = select(items.c.id, items.c.data).order_by(items.c.position)
        if only is not None and len(only) < 500:
            query = query.where(items.c.id.in_(only))
        with self.reading() as connection:
            return [_item(row.data) for row in connection.execute(query) if only is None or row.id in only]

    def item(self, id: str) -> Item:
        """One item.

        Raises:
            RefusedError: there is no such item (404).
        """
        with self.reading() as connection:
            return _one_item(connection, id)

    # Who labels.

    def person(self, name: str, *, new: bool = False) -> Person:
        """The annotator of this name, made where there is none; `new`: with another token, so that the link of before ends.

        Raises:
            InputError: a name that is blank, too long, or has control characters.
        """
        name = unicodedata.normalize("NFC", " ".join(name.split()))
        if not 0 < len(name) <= _NAME_CHARACTERS or any(unicodedata.category(c)[0] == "C" for c in name):
            raise InputError(
                f"expected a name of 1 to {_NAME_CHARACTERS} characters, none of them a control character; found {name[:80]!r}",
                field="name",
            )
        same_name = annotators.c.name_key == name_key(name)
        with self.writing() as connection:
            row = connection.execute(annotators.select().where(same_name)).first()
            token = secrets.token_urlsafe(24)
            if row is None:
                values = {"name": name, "name_key": name_key(name), "token": token}
                connection.execute(annotators.insert(), values)
            elif new:
                connection.execute(annotators.update().where(same_name).values(token=token))
            row = connection.execute(annotators.select().where(same_name)).one()
            return Person(id=row.id, name=row.name, token=row.token)

    def people(self) -> list[Person]:
        """All annotators, in the order in which they came."""
        with self.reading() as connection:
            rows = connection.execute(annotators.select().order_by(annotators.c.id))
            return [Person(id=row.id, name=row.name, token=row.token) for row in rows]

    def person_of(self, token: str) -> Person | None:
        """Whose token this is. How long it takes does not tell how much of it is right."""
        given = token.encode()
        matching = [person for person in self.people() if compare_digest(person.token.encode(), given)]
        return matching[0] if matching else None

    def link_of(self, person: Person) -> str:
        """The address that lets this person in; what stands behind "#" is never sent to a server."""
        return f"{self.setting('link')}/#{person.token}"

    # Who gets which item.

    def next_item(
        self, project: Project, me: int, *, after: str | None = None
    ) -> Item | Literal["done", "waiting"]:
        """The item that an annotator labels now, or why there is none; it is theirs for `HELD_SECONDS`.

        First what they have open or reopened, then the next one that is not taken, then what they skipped. `after` is the item that they
        leave: where it is not submitted, others may have it at once.
        """
        now, mine = self.clock(), assignments.alias("mine")
        joined = items.outerjoin(mine, and_(mine.c.item == items.c.id, mine.c.annotator == me))
        open_to_me = func.coalesce(mine.c.submitted, False).is_(False)
        rank = case(
            (items.c.id == (after or ""), 3),
            (mine.c.held_until > now, 0),
            (mine.c.item.is_(None), 1),
            else_=2,
        )
        query = select(items.c.id, items.c.data).select_from(joined).where(open_to_me)
        free = query.where(_taken(me, now) < project.overlap).order_by(rank, items.c.position).limit(1)
        with self.writing() as connection:
            # Two people who ask at once must not be given the same last place.
            connection.execute(select(meta.c.value).where(meta.c.key == "schema").with_for_update())
            if after is not None:
                _assign(connection, after, me, held_until=0.0)
            row = connection.execute(free).first()
            if row is None:
                waits = query.where(_taken(me, None) < project.overlap).limit(1)
                return "done" if connection.execute(waits).first() is None else "waiting"
            if not _assign(connection, row.id, me, held_until=now + HELD_SECONDS):
                values = {"item": row.id, "annotator": me, "submitted": False}
                connection.execute(assignments.insert(), {**values, "held_until": now + HELD_SECONDS})
            return _item(row.data)

    def progress(self, project: Project, me: int) -> dict[str, int]:
        """How many items an annotator has submitted, and how many there are for them as far as is known now."""
        mine = select(assignments.c.item).where(assignments.c.annotator == me, assignments.c.submitted)
        remaining = select(func.count()).where(items.c.id.not_in(mine), _taken(me, None) < project.overlap)
        with self.reading() as connection:
            submitted = connection.execute(select(func.count()).select_from(mine.subquery())).scalar_one()
            return {"submitted": submitted, "of": submitted + connection.execute(remaining).scalar_one()}

    # The logs.

    def log(self, project: Project, me: int, item: Item) -> Log:
        """What an annotator has changed on an item that was given to them.

        Raises:
            RefusedError: it never was (403).
        """
        with self.reading() as connection:
            _check_assigned(connection, item.id, me)
            return _log(connection, project, me, item)

    def take(
        self, project: Project, me: int, item: Item, id: str, change: Change, seconds: float = 0.0
    ) -> Log:
        """Add a change to a log; it is on disk when this returns. The same id again changes nothing.

        Raises:
            RefusedError: it cannot be made (400), or the item was never given to them (403).
        """
        now = self.clock()
        with self.writing() as connection:
            _check_assigned(connection, item.id, me)
            log = _log(connection, project, me, item)
            if id in log.ids:
                if log.ids[id] != change:
                    raise RefusedError(
                        400, f"the id {id} was used for another change; every change has its own", field="id"
                    )
                return log
            try:
                check_change(project, change)
            except StepmarkError as error:
                raise RefusedError(400, str(error), field="change.text") from None
            _add(connection, me, item.id, log, id, change, seconds, now)
            if me != DECIDING:
                until, submitted = now + HELD_SECONDS, log.folding.submitted
                _assign(connection, item.id, me, held_until=until, submitted=submitted)
            return log

    def take_over(self, project: Project, item: Item, marks: Marks) -> Log:
        """Put an annotator's ratings and error types in the place of those in the admin's decision on an item."""
        with self.writing() as connection:
            log = _log(connection, project, DECIDING, item)
            for change in changes_of(marks):
                _add(connection, DECIDING, item.id, log, secrets.token_hex(8), change, 0.0, self.clock())
            return log

    def answers(
        self, project: Project, *, item: str | None = None, annotator: int | None = None
    ) -> list[AnnotatorMarks]:
        """Every annotator's marks on every item that they changed (or on one `item`, or of one annotator), folded from the log."""
        query = (
            select(changes, annotators.c.name, items.c.steps)
            .join_from(changes, annotators, changes.c.annotator == annotators.c.id)
            .join(items, changes.c.item == items.c.id)
            .order_by(items.c.position, annotators.c.id, changes.c.version)
        )
        if item is not None:
            query = query.where(changes.c.item == item)
        if annotator is not None:
            query = query.where(changes.c.annotator == annotator)
        answers = []
        with self.reading() as connection:
            logs = groupby(connection.execute(query), lambda row: (row.item, row.name, row.steps))
            for (id, name, steps), rows in logs:
                log = _folded(project, rows, steps)
                marks = log.folding.marks()
                answers.append(
                    AnnotatorMarks(
                        item=id,
                        account=name,
                        marks=marks,
                        first_pass=None if log.first_pass == marks else log.first_pass,
                        seconds=log.seconds,
                        at=log.at,
                    )
                )
        return answers

    # The admin's decisions.

    def decide(self, decision: Decision) -> None:
        """Store a decision; an earlier one on the item stays in the table, and the newest holds."""
        data = json.dumps(_DECISION.dump_python(decision, mode="json"))
        with self.writing() as connection:
            connection.execute(decisions.insert(), {"item": decision.item, "data": data})

    def decisions(self, item: str | None = None) -> list[Decision]:
        """The newest decision on each item (or on one)."""
        query = select(decisions.c.item, decisions.c.data).order_by(decisions.c.id)
        if item is not None:
            query = query.where(decisions.c.item == item)
        with self.reading() as connection:
            rows = connection.execute(query)
            return list({row.item: _DECISION.validate_json(row.data) for row in rows}.values())

    def deciding(self, project: Project, item: Item) -> Log:
        """The log in which the admin decides on an item."""
        with self.reading() as connection:
            return _log(connection, project, DECIDING, item)


def shows_suggestions(project: Project, me: int, item: Item, log: Log) -> bool:
    """Whether this annotator may see the suggestions of the item now. Deciding is about people's marks alone."""
    show = project.help.show
    shown = show == "before" or (show == "after" and log.first_pass is not None)
    return shown and me != DECIDING and any(suggestion is not None for suggestion in item.suggestions)


def _add(
    connection: Connection,
    me: int,
    item: str,
    log: Log,
    id: str,
    change: Change,
    seconds: float,
    now: float,
) -> None:
    missing = log.folding.marks().missing if change.kind == "submit" else None
    # Nobody spends more time than passes; before the first change that is not known.
    seconds = round(seconds if log.at is None else min(seconds, max(now - log.at, 0.0)), 3)
    try:
        log.take(id, change, seconds, now)
    except InputError as error:
        step = {} if missing is None or missing[0] is None else {"step": missing[0]}
        raise RefusedError(400, error.message, field=f"change.{error.field or 'kind'}", **step) from None
    row = {"item": item, "annotator": me, "version": log.folding.version, "id": id}
    data = json.dumps(change_data(change))
    connection.execute(changes.insert(), {**row, "data": data, "seconds": seconds, "at": now})


def _log(connection: Connection, project: Project, me: int, item: Item) -> Log:
    of_log = (changes.c.item == item.id) & (changes.c.annotator == me)
    rows = connection.execute(changes.select().where(of_log).order_by(changes.c.version))
    return _folded(project, rows, len(item.solution.steps))


def _folded(project: Project, rows: Iterable[Any], steps: int) -> Log:
    log = Log(Folding(project.mode, steps, allow_neutral=project.allow_neutral), {})
    for row in rows:
        log.take(row.id, Change(**json.loads(row.data)), row.seconds, row.at)
    return log


def _taken(me: int, now: float | None) -> Any:
    """How many places of an item others have: by submissions, and until `now` by having it open."""
    theirs = assignments.alias()
    holds = theirs.c.submitted if now is None else or_(theirs.c.submitted, theirs.c.held_until > now)
    query = select(func.count()).where(theirs.c.item == items.c.id, theirs.c.annotator != me, holds)
    return query.correlate(items).scalar_subquery()


def _assign(connection: Connection, item: str, me: int, **values: Any) -> bool:
    mine = (assignments.c.item == item) & (assignments.c.annotator == me)
    return connection.execute(assignments.update().where(mine).values(**values)).rowcount > 0


def _check_assigned(connection: Connection, item: str, me: int) -> None:
    mine = (assignments.c.item == item) & (assignments.c.annotator == me)
    # Locked, so that two changes of one log that come at once are added one after the other.
    row = connection.execute(select(assignments.c.item).where(mine).with_for_update()).first()
    if row is None and me != DECIDING:
        raise RefusedError(403, "this item is not yours: choose Label for your next one", field="item")


def _one_item(connection: Connection, id: str) -> Item:
    data = connection.execute(select(items.c.data).where(items.c.id == id)).scalar()
    if data is None:
        raise RefusedError(404, "there is no such item", field="item")
    return _item(data)


def _item(data: str) -> Item:
    return _ITEM.validate_json(data)


def _setting(connection: Connection, key: str) -> str | None:
    value: str | None = connection.execute(select(meta.c.value).where(meta.c.key == key)).scalar()
    return value


def _set(connection: Connection, key: str, value: str) -> None:
    connection.execute(meta.delete().where(meta.c.key == key))
    connection.execute(meta.insert(), {"key": key, "value": value})


def _database_url(url: str) -> str:
    if "://" not in url:
        return f"sqlite:///{Path(url).absolute()}"
    scheme, _, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        return f"postgresql+psycopg://{rest}"
    if scheme not in ("sqlite", "postgresql+psycopg"):
        raise UsageError(
            f"`database` {scheme}://…: expected a file for SQLite, sqlite:///FILE, or postgresql+psycopg://USER@HOST/NAME"
        )
    return url


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        try:
            return create_engine(url, pool_pre_ping=True)
        except ModuleNotFoundError:
            raise MissingExtraError(
                "PostgreSQL needs the package psycopg: pip install 'stepmark[annotate,postgres]'"
            ) from None
    engine = create_engine(url, connect_args={"timeout": 30})

    # The driver by itself begins a transaction too late for a consistent read.
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "trusted_schema=OFF"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        now = connection.get_execution_options().get("stepmark_immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if now else "BEGIN")

    return engine
