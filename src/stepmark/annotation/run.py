"""An annotation project from outside: serve it, invite people, export its labels, back it up, restore it.

A database is an SQLite file or a PostgreSQL URL (postgresql+psycopg://USER@HOST/NAME). It holds items, labels, accounts and the project's
settings, so whatever is done to it needs no other file, and the app may be running meanwhile (but for `restore_labels`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from stepmark.annotation.exporting import Agreement, Exporting, View, export
from stepmark.data.formats.rows import Losses
from stepmark.data.reading import read_rows
from stepmark.errors import InputError, MissingExtraError, UsageError
from stepmark.hosting import is_loopback, link_of, listen, uvicorn_config
from stepmark.settings import checked
from stepmark.show.text import amount
from stepmark.store import Results, atomic_rows, check_outputs, check_writable, is_stream

if TYPE_CHECKING:
    from stepmark.annotation.database import Database
    from stepmark.annotation.items import Item
    from stepmark.annotation.security import Site

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8010
"""Not 8000, which is vLLM's; `stepmark serve` has 8008."""


@checked
def annotate(
    file: str | Path,
    *,
    port: Annotated[int, Field(ge=1, le=65535)] = DEFAULT_PORT,
    host: str = LOOPBACK,
    url: str | None = None,
    database: str | None = None,
    mode: Literal["first_error", "per_step"] | None = None,
    allow_neutral: bool = False,
    overlap: int | None = None,
    order: Literal["given", "active"] | None = None,
    suggest: str | None = None,
    threshold: float | None = None,
    columns: Mapping[str, str] | None = None,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve a web app where people label the steps of solutions; nothing that it acknowledged is ever lost.

    Args:
        file: a project (.yaml), a Potato configuration (.yaml), or a file of items: solutions or labels in any format that
            `stepmark.convert` reads, or traces.
        port: where the app listens.
        host: the address that it listens on. Other addresses than this machine's own need `url` too.
        url: how annotators reach it (https://label.example.org), where that is not http://HOST:PORT, as behind a proxy that speaks https.
        database: an SQLite file or a PostgreSQL URL (postgresql+psycopg://USER@HOST/NAME). Default: FILE with the ending
            .annotations.sqlite.
        mode: what is asked: the first wrong step, or a rating of each. Default: as the project says, else the first wrong step.
        allow_neutral: steps may be neutral, in mode per_step.
        overlap: how many annotators label each item. Default: as the project says, else 1.
        order: "active" puts convincing wrong answers first, then uncertain and disputed ones. Default: as the project says, else as given.
        suggest: pre-labels: a PRM's name, or a file of `stepmark grade`.
        threshold: a score under it suggests an error. Default: the PRM's own.
        columns: names of columns of the items, where they differ: problem=question,solution=response.
        on_start: called with the database's name once the app listens.

    Raises:
        InputError: the project or a file of items is not what it should be.
        UsageError: a setting that cannot work, a port that is taken, labels that were made in another mode, a project that is served already.
        MissingExtraError: the packages of `stepmark[annotate]` are not installed.
    """
    _check_packages()
    from stepmark.annotation.project import load_project

    where = database or str(Path(file).with_suffix(".annotations.sqlite"))
    site = _site(host, port, url)
    given = {
        "mode": mode,
        "allow_neutral": allow_neutral or None,
        "overlap": overlap,
        "order": order,
        "columns": columns,
    }
    given = {key: value for key, value in given.items() if value is not None}
    loaded = load_project(file, given, suggest=suggest is not None)
    for note in loaded.notes:
        _say(f"note: {note}")

    import uvicorn

    from stepmark.annotation.app import build_app, secured
    from stepmark.annotation.database import Database
    from stepmark.annotation.live import Live
    from stepmark.annotation.stored import first_code, prepare, store_setting

    with Database(where) as opened, opened.lock(), ExitStack() as stack:
        listening = stack.enter_context(listen(host, port))
        count = prepare(loaded.project, opened, suggest=_suggester(suggest, threshold))
        _say(f"{amount(count, 'item')}; labels are kept in {opened.shown}")
        with opened.writing() as connection:
            store_setting(connection, "link", site.link)
        code = first_code(opened)
        live = Live(loaded.project, opened)

        def started() -> None:
            _say(f"Serving on {site.link} (Ctrl-C ends it; nothing is lost)")
            if code is not None:
                _say(f"Your link, for the first admin, once: {site.link}/join#{code}")
            if on_start is not None:
                on_start(opened.shown)
            sys.stderr.flush()

        app = secured(build_app(live, site, started=started), live, site)
        # Of uvicorn's two parsers the slower one limits a header, at 16 KB. On this machine alone nobody sends endless ones.
        config = uvicorn_config(app, grace=10, http="auto" if is_loopback(host) else "h11")
        # The writer's thread gets the lock back from the loop this quickly.
        sys.setswitchinterval(0.001)
        with suppress(KeyboardInterrupt):  # how people end it
            uvicorn.Server(config).run(sockets=[listening])


@checked
def invite(
    database: str | Path,
    *,
    role: Literal["annotator", "adjudicator", "admin"] = "annotator",
    uses: Annotated[int, Field(ge=1)] = 1,
    hours: Annotated[float, Field(gt=0, le=24 * 90)] = 72.0,
    url: str | None = None,
) -> str:
    """Make an invitation link; the app may be running.

    Args:
        database: of the project: an SQLite file or a PostgreSQL URL.
        role: role of the people who use the link.
        uses: how many may use it.
        hours: how long it holds, up to 2160 (90 days).
        url: how they reach the app, as http://NAME:PORT. Default: as at its last start.

    Returns:
        The link.

    Raises:
        UsageError: no database of annotations.
    """
    from stepmark.annotation import accounts
    from stepmark.annotation.stored import setting

    given = None if url is None else _site(LOOPBACK, DEFAULT_PORT, url).link
    with _existing(database) as opened, opened.writing() as connection:
        code = accounts.invite(connection, role, uses=uses, hours=hours, by=None, at=time.time())
        link = given or setting(connection, "link") or _site(LOOPBACK, DEFAULT_PORT, None).link
    return f"{link}/join#{code}"


@checked
def export_labels(
    database: str | Path,
    *,
    out: str | Path | None = None,
    format: str = "stepmark",
    view: View | None = None,
    agreement: Agreement | None = None,
    neutral: Literal["positive", "negative", "drop"] | None = None,
    unfinished: bool = False,
    force: bool = False,
) -> Results[dict[str, Any]]:
    """Export the labels of a project; the app may be running.

    Args:
        database: of the project: an SQLite file or a PostgreSQL URL.
        out: write the rows to this file, gzipped if its name ends in .gz; "-" for standard output.
        format: the format to write: stepmark, prm800k, trl, math-shepherd, processbench, potato or who-and-when.
        view: "together", a row an item with all judgements; "annotators", a row an answer; "decided", a row an item with the decision.
            Default: together for stepmark, annotators for prm800k and potato, decided for the others.
        agreement: how several annotators agree, in the view decided. Default: first-error-agrees in mode first_error, intersection in
            per_step.
        neutral: what a neutral rating becomes where a format has only right and wrong.
        unfinished: export answers that are not submitted or verified too.
        force: overwrite a file that is there.

    Returns:
        The rows. `refused` and `summary` say what was left out.

    Raises:
        InputError: a neutral rating in a format that has only right and wrong, and no `neutral`.
        UsageError: no database of annotations, a setting that cannot work, or a file that is there already.
    """
    from stepmark.annotation.accounts import audit
    from stepmark.annotation.stored import answers_of, decisions_of, items_of, stored_project

    settings = Exporting(
        format=format,
        view=view,
        agreement=agreement,
        neutral=neutral,
        unfinished=unfinished,
    )
    check_outputs({"out": out}, database)
    written = Path(out) if out is not None and not is_stream(out) else None
    if written is not None and written.exists() and not force:
        raise UsageError(
            f"{written}: there is a file already; give another name, or overwrite it with `force`"
        )
    losses = Losses()
    rows: list[dict[str, Any]] = []
    refused: list[str] = []
    with _existing(database) as opened:
        with opened.reading() as connection:
            project = stored_project(connection, opened.shown)
            items, answers = items_of(connection), answers_of(connection, project)
            decisions = decisions_of(connection)
        for row in export(project, items, answers, decisions, settings, losses):
            if isinstance(row, InputError):
                refused.append(str(row))
            else:
                rows.append(row)
        if out is not None:
            with atomic_rows(out) as write:
                for row in rows:
                    write(row)
        with opened.writing() as connection:
            audit(connection, time.time(), None, "export", {"format": format, "rows": losses.written})
    lines = [*(f"left out: {reason}" for reason in refused), f"annotations -> {format}", *losses.lines()]
    return Results(
        (lambda: iter(rows)) if written is None else lambda: (row.data for row in read_rows(written)),
        len(rows),
        out=written,
        refused=refused,
        manifest={"losses": losses.facts()},
        summary="\n".join(lines),
    )


@checked
def backup_labels(database: str | Path, *, out: str | Path, force: bool = False) -> str:
    """Write everything in a project's database to a file, as it is now; the app may be running.

    Args:
        database: an SQLite file or a PostgreSQL URL.
        out: the backup, one SQLite file.
        force: overwrite a file that is there.

    Returns:
        What was done, in words.

    Raises:
        UsageError: no database of annotations, or a file that is there already.
    """
    from stepmark.annotation.accounts import audit
    from stepmark.annotation.database import backup

    check_writable(out)
    with _existing(database) as opened:
        backup(opened, Path(out), force=force)
        with opened.writing() as connection:
            audit(connection, time.time(), None, "backup", {})
        return f"{out}: a copy of everything in {opened.shown}"


@checked
def restore_labels(backup: str | Path, *, database: str, force: bool = False) -> str:
    """Put a backup in the place of a project's database; the app must not be running.

    Args:
        backup: the file that `backup_labels` wrote.
        database: an SQLite file or a PostgreSQL URL.
        force: replace what is in the database.

    Returns:
        What was done, in words.

    Raises:
        InputError: the file is no backup, or damaged.
        UsageError: the database holds something (unless `force`), or is being served.
    """
    _check_packages()
    from stepmark.annotation.accounts import audit
    from stepmark.annotation.database import restore

    restore(Path(backup), database, force=force)
    with _existing(database) as opened:
        with opened.writing() as connection:
            audit(connection, time.time(), None, "restore", {"from": Path(backup).name})
        return f"{opened.shown}: everything is as in {backup}"


def _check_packages() -> None:
    for name in ("fastapi", "sqlalchemy", "uvicorn"):
        if find_spec(name) is None:
            raise MissingExtraError(f"annotation needs the package {name}: pip install 'stepmark[annotate]'")


def _existing(database: str | Path) -> Database:
    _check_packages()
    from stepmark.annotation.database import Database

    return Database(str(database), create=False)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _site(host: str, port: int, url: str | None) -> Site:
    from stepmark.annotation.security import Site, host_names

    if url is None and not is_loopback(host):
        raise UsageError(
            f"`host` {host} lets others in: give `url`, how they reach it (http://NAME:{port}, or https://NAME behind a proxy)"
        )
    link = None if url is None else url.rstrip("/")
    if link is not None:
        parts = urlsplit(link)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query:
            raise UsageError(f"`url` {url}: expected http://NAME[:PORT] or https://NAME[:PORT]")
    return Site(hosts=host_names(host, port, link), link=link or link_of(host, port))


def _suggester(
    source: str | None, threshold: float | None
) -> Callable[[Sequence[Item]], Sequence[Item]] | None:
    if source is None:
        if threshold is not None:
            raise UsageError("`threshold` is of suggestions: give `suggest` too")
        return None

    def suggester(items: Sequence[Item]) -> Sequence[Item]:
        from stepmark.annotation.reading import suggest

        suggested = suggest(items, source, threshold=threshold)
        if suggested.without:
            item, why = suggested.without[0]
            more = ", …" if len(suggested.without) > 1 else ""
            _say(f"no suggestion for {amount(len(suggested.without), 'item')}: {item}: {why}{more}")
        return suggested.items

    return suggester
