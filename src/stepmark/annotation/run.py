"""An annotation project from outside: serve it, make people's links, export its labels.

A database is an SQLite file or a PostgreSQL URL (postgresql+psycopg://USER@HOST/NAME). It holds items, labels, links and the project's settings, so
whatever is done to it needs no other file, and the app may be running meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from stepmark.annotation.export import Exporting, View, export
from stepmark.data.formats.rows import Counts
from stepmark.data.reading import read_rows
from stepmark.errors import InputError, MissingExtraError, UsageError
from stepmark.hosting import is_loopback, link_of, listen, uvicorn_config
from stepmark.settings import checked
from stepmark.store import Results, atomic_rows, check_outputs, is_stream
from stepmark.words import amount

if TYPE_CHECKING:
    from stepmark.annotation.store import Store

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
    axis: str | None = None,
    mode: Literal["first_error", "per_step"] | None = None,
    allow_neutral: bool = False,
    overlap: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> None:
    """Serve a web app where people label the steps of solutions; no click that it acknowledged is lost.

    Args:
        file: a project (.yaml), a Potato configuration (.yaml), or a file of items: solutions or labels in any format that
            `stepmark.convert` reads, or traces.
        port: where the app listens.
        host: the address that it listens on. Other addresses than this machine's own need `url` too.
        url: how annotators reach it (https://label.example.org), where that is not http://HOST:PORT, as behind a proxy that speaks https.
        database: an SQLite file or a PostgreSQL URL (postgresql+psycopg://USER@HOST/NAME). Default: FILE with the ending
            .annotations.sqlite.
        axis: what is judged: the name of a criterion. Default: as the project says, else whether the step is right.
        mode: what is asked: the first wrong step, or a rating of each. Default: as the project says, else the first wrong step.
        allow_neutral: steps may be neutral, in mode per_step.
        overlap: how many annotators label each item. Default: as the project says, else 1.
        columns: names of columns of the items, where they differ: problem=question,solution=response.

    Raises:
        InputError: the project or a file of items is not what it should be.
        UsageError: a setting that cannot work, a port that is taken, labels that were made in another mode.
        MissingExtraError: the packages of `stepmark[annotate]` are not installed.
    """
    _check_packages()
    from stepmark.annotation.project import load_project

    base = _base_url(host, port, url)
    given = {
        "axis": axis,
        "mode": mode,
        "allow_neutral": allow_neutral or None,
        "overlap": overlap,
        "columns": columns,
    }
    given = {key: value for key, value in given.items() if value is not None}
    loaded = load_project(file, given)
    for note in loaded.notes:
        _say(f"note: {note}")

    import uvicorn

    from stepmark.annotation.app import build_app
    from stepmark.annotation.items import read_items
    from stepmark.annotation.store import ADMIN, Store

    with ExitStack() as stack:
        listening = stack.enter_context(listen(host, port))
        items = read_items(loaded.project)
        store = stack.enter_context(Store(str(database or default_database(file))))
        count = store.prepare(loaded.project, items, base)
        admin = store.person(ADMIN)
        _say(f"{amount(count, 'item')}; labels are kept in {store.shown}")

        def started() -> None:
            _say(f"Your link, as the admin: {store.link_of(admin)}")
            _say(f"A link for another annotator: stepmark annotate link {store.shown} NAME")
            _say("Ctrl-C ends the server; nothing is lost.")
            sys.stderr.flush()

        app = build_app(store, loaded.project, started=started)
        # Of uvicorn's two parsers the slower one limits a header, at 16 KB. On this machine alone nobody sends endless ones.
        config = uvicorn_config(app, grace=10, http="auto" if is_loopback(host) else "h11")
        with suppress(KeyboardInterrupt):  # how people end it
            uvicorn.Server(config).run(sockets=[listening])


def default_database(file: str | Path) -> Path:
    """Where the labels of a project's file are kept by default."""
    return Path(file).with_suffix(".annotations.sqlite")


@checked
def annotator_link(project: str | Path, name: str, *, new: bool = False) -> str:
    """The link of an annotator, who is made where there is none of this name; the app may be running.

    Args:
        project: its file, or its database: an SQLite file or a PostgreSQL URL.
        name: of the annotator, "admin" for the admin. Names that differ in Unicode form or case alone are one annotator.
        new: make another link; the one of before is not valid any more.

    Returns:
        The link.

    Raises:
        InputError: a name that is blank, too long, or has control characters.
        UsageError: no database of annotations.
    """
    with _existing(project) as store:
        return store.link_of(store.person(name, new=new))


@checked
def export_labels(
    project: str | Path,
    *,
    out: str | Path | None = None,
    format: str = "stepmark",
    view: View | None = None,
    neutral: Literal["positive", "negative", "drop"] | None = None,
    unfinished: bool = False,
    force: bool = False,
) -> Results[dict[str, Any]]:
    """Export the labels of a project; the app may be running.

    Args:
        project: its file, or its database: an SQLite file or a PostgreSQL URL.
        out: write the rows to this file, gzipped if its name ends in .gz; "-" for standard output.
        format: the format to write: stepmark, prm800k, trl, math-shepherd, processbench or who-and-when.
        view: "together", a row an item with all judgements; "annotators", a row an answer; "decided", a row an item with the decision.
            Default: together for stepmark, annotators for prm800k, decided for the others.
        neutral: what a neutral rating becomes where a format has only right and wrong.
        unfinished: export answers that are not submitted too.
        force: overwrite a file that is there.

    Returns:
        The rows. `refused` and `summary` say what was left out.

    Raises:
        InputError: a neutral rating in a format that has only right and wrong, and no `neutral`.
        UsageError: no database of annotations, a setting that cannot work, or a file that is there already.
    """
    settings = Exporting(
        format=format,
        view=view,
        neutral=neutral,
        unfinished=unfinished,
    )
    check_outputs({"out": out}, project)
    written = Path(out) if out is not None and not is_stream(out) else None
    if written is not None and written.exists() and not force:
        raise UsageError(
            f"{written}: there is a file already; give another name, or overwrite it with `force`"
        )
    counts = Counts()
    rows: list[dict[str, Any]] = []
    refused: list[str] = []
    with _existing(project) as store:
        items, answers, decisions = store.items(), store.answers(store.project()), store.decisions()
        for row in export(store.project(), items, answers, decisions, settings, counts):
            if isinstance(row, InputError):
                refused.append(str(row))
            else:
                rows.append(row)
    if out is not None:
        with atomic_rows(out) as write:
            for row in rows:
                write(row)
    lines = [*(f"left out: {reason}" for reason in refused), f"annotations -> {format}", *counts.lines()]
    if not counts.read and not unfinished:
        lines.append(
            f"nothing is submitted yet ({amount(len(answers), 'answer')} begun): submit items on the page, or write them with `unfinished`"
        )
    return Results(
        (lambda: iter(rows)) if written is None else lambda: (row.data for row in read_rows(written)),
        len(rows),
        out=written,
        refused=refused,
        manifest={"counts": counts.facts()},
        summary="\n".join(lines),
    )


def _check_packages() -> None:
    for name in ("fastapi", "sqlalchemy", "uvicorn"):
        if find_spec(name) is None:
            raise MissingExtraError(f"annotation needs the package {name}: pip install 'stepmark[annotate]'")


def _existing(project: str | Path) -> Store:
    """The database of a project, by its own name or by that of the project's file."""
    _check_packages()
    from stepmark.annotation.store import Store

    path = Path(project)
    if "://" in str(project) or path.suffix in (".sqlite", ".db") or _is_sqlite(path):
        return Store(str(project), create=False)
    return Store(str(default_database(path)), create=False)


def _is_sqlite(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _base_url(host: str, port: int, url: str | None) -> str:
    if url is None and not is_loopback(host):
        raise UsageError(
            f"`host` {host} lets others in: give `url`, how they reach it (http://NAME:{port}, or https://NAME behind a proxy)"
        )
    if url is None:
        return link_of(host, port)
    base = url.rstrip("/")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query:
        raise UsageError(f"`url` {url}: expected http://NAME[:PORT] or https://NAME[:PORT]")
    return base
