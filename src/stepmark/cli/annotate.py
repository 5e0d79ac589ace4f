"""`stepmark annotate`: the web app where people label steps, and what is done to its project from outside."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from stepmark.cli.flags import ColumnsFlag, Flag, columns_of
from stepmark.errors import MissingExtraError, StepmarkError, UsageError

if TYPE_CHECKING:
    from stepmark.annotation.database import Database
    from stepmark.annotation.items import Item
    from stepmark.annotation.project import Project
    from stepmark.annotation.security import Site


LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8010
"""Not 8000, which is vLLM's; `stepmark serve` has 8008."""
MOST_HEADER_BYTES = 16 * 1024
"""Of one request, for other machines than this."""
# Fetch standard, "port blocking": what browsers do not open (net::ERR_UNSAFE_PORT), of those that anybody may listen on.
REFUSED_BY_BROWSERS = frozenset(
    (1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080)
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotateOptions:
    """How a project is served, or what else is done to it."""

    port: int = DEFAULT_PORT
    """Where the app listens."""
    host: str | None = None
    """The address that it listens on, 127.0.0.1 unless another is said here; then --url is needed too."""
    url: str | None = None
    """How annotators reach it (https://label.example.org), where that is not http://HOST:PORT: behind a proxy that speaks https, say."""
    database: str | None = None
    """An SQLite file or a PostgreSQL URL (postgresql+psycopg://USER@HOST/NAME). Left out: FILE with the ending .annotations.sqlite."""
    mode: Literal["first_error", "per_step"] | None = None
    """What is asked: the first wrong step, or a rating of each. Comes before what FILE says."""
    allow_neutral: Flag = False
    """Mode per_step: steps may be neutral."""
    overlap: int | None = None
    """How many annotators label each item."""
    order: Literal["given", "active"] | None = None
    """active: convincing wrong answers first, then uncertain and disputed ones."""
    suggest: str | None = None
    """Pre-labels: a PRM's name, a file of `stepmark grade`, or labels in any format that `stepmark convert` reads."""
    judge: str | None = None
    """Whose labels are suggested, where --suggest names a file with several judges."""
    threshold: float | None = None
    """A score under it suggests an error; left out: the PRM's own."""
    columns: ColumnsFlag = None
    """Which column of the items is what, where the names differ: problem=question,solution=response (docs: files)."""
    invite: Literal["annotator", "adjudicator", "admin"] | None = None
    """Print an invitation link for this role and end; the app may be running."""
    uses: int = 1
    """How many may use the link of --invite."""
    hours: float = 72.0
    """How long the link of --invite holds."""
    export: str | None = None
    """Write the labels in this format and end: stepmark, prm800k, trl, math-shepherd, processbench or potato. The app may be running."""
    out: Path | None = None
    """The file of --export, packed if it ends in .gz."""
    view: Literal["together", "annotators", "decided"] | None = None
    """Which rows --export writes: one an item with all judgements, one an answer, or one an item with what holds."""
    agreement: Literal["first-error-agrees", "first-error-majority", "intersection", "majority"] | None = None
    """What several annotators say together in the view decided."""
    neutral: Literal["positive", "negative", "drop"] | None = None
    """What a neutral rating becomes where a format has only right and wrong."""
    drop_unsure: Flag = False
    """Steps that their annotator is unsure of have no judgement in the export."""
    unfinished: Flag = False
    """Export answers that are not submitted or verified too."""
    control: Flag = False
    """Export gold items and the screening set too."""
    backup: Path | None = None
    """Write everything to this file, as it is now, and end; the app may be running."""
    restore: Path | None = None
    """Put the backup of this file in the place of the database and end."""
    force: Flag = False
    """Let --backup, --restore and --export overwrite what is there."""


def annotate_command(file: Path, /, *, options: AnnotateOptions = AnnotateOptions()) -> int:
    """Serve a web app where people label the steps of solutions; nothing that it acknowledged is ever lost.

    Args:
        file: a project (.yaml), a Potato configuration (.yaml), or a file of items: solutions or labels in any format that `stepmark convert`
            reads, or traces.
        options: the flags.
    """
    try:
        import fastapi  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"stepmark annotate needs the package {error.name}: pip install 'stepmark[annotate]'"
        ) from None
    doing = [name for name in ("invite", "export", "backup", "restore") if getattr(options, name) is not None]
    if len(doing) > 1:
        raise UsageError(f"--{doing[0]} and --{doing[1]}: expected one of them at a time")
    if (options.out is None) != (options.export is None):
        raise UsageError("--export FORMAT and --out FILE go together")
    database = options.database or str(file.with_suffix(".annotations.sqlite"))
    if options.restore is not None:
        return _restore(options.restore, database, options.force)
    if options.backup is not None:
        return _backup(options.backup, database, options.force)
    site = _site(options)
    if options.invite is not None:
        return _invite(options, database, site)
    project = _project(file, options)
    if options.export is not None:
        return _export(options, project, database)
    return _serve(options, project, database, site)


def _project(file: Path, options: AnnotateOptions) -> Project:
    from stepmark.annotation.loading import load_project

    settings: dict[str, Any] = {
        "mode": options.mode,
        "allow_neutral": options.allow_neutral or None,
        "overlap": options.overlap,
        "order": options.order,
        "columns": columns_of(options.columns),
    }
    loaded = load_project(file, {key: value for key, value in settings.items() if value is not None})
    for note in loaded.notes:
        print(f"note: {note}", file=sys.stderr)
    return loaded.project


def _site(options: AnnotateOptions) -> Site:
    from urllib.parse import urlsplit

    from stepmark.annotation.security import Site, host_names, is_loopback

    if not 1 <= options.port <= 65535:
        raise UsageError(f"--port {options.port}: expected 1 to 65535")
    if options.url is None and options.port in REFUSED_BY_BROWSERS:
        raise UsageError(
            f"--port {options.port}: browsers open no page there, because the port is another protocol's; give another"
        )
    host = options.host or LOOPBACK
    if options.url is None and not is_loopback(host):
        raise UsageError(
            f"--host {host} lets others in: say with --url how they reach it (http://NAME:{options.port}, or https://NAME behind a proxy)"
        )
    url = None if options.url is None else options.url.rstrip("/")
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query:
            raise UsageError(f"--url {options.url}: expected http://NAME[:PORT] or https://NAME[:PORT]")
    link = url or f"http://{f'[{host}]' if ':' in host else host}:{options.port}"
    return Site(hosts=host_names(host, options.port, url), link=link)


def _serve(options: AnnotateOptions, project: Project, database: str, site: Site) -> int:
    import uvicorn

    from stepmark.annotation.database import Database
    from stepmark.annotation.live import Live
    from stepmark.annotation.security import is_loopback
    from stepmark.annotation.server import build_app, guarded
    from stepmark.annotation.starting import first_code, note_link, prepare

    with Database(database) as opened, opened.lock(), ExitStack() as stack:
        try:
            listening = stack.enter_context(_listen(options.host or LOOPBACK, options.port))
            count = prepare(project, opened, suggest=_suggester(options))
        except StepmarkError:
            opened.abandon()
            raise
        print(f"{count:,} items; labels are kept in {opened.shown}", file=sys.stderr)
        note_link(opened, site.link)
        code = first_code(opened)
        live = Live(project, opened)

        def started() -> None:
            print(_welcome(options, site, code), file=sys.stderr, flush=True)

        config = uvicorn.Config(
            guarded(build_app(live, site, started=started), live, site),
            loop="auto",
            # Of uvicorn's two parsers the slower one limits a header. On this machine alone, or behind a proxy, nobody sends endless ones.
            http="auto" if is_loopback(options.host or LOOPBACK) else "h11",
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            ws="none",
            lifespan="on",
            access_log=False,
            log_level="warning",
            # A forwarded address is what anybody may write into a header.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=10,
        )
        # The writer's thread gets the lock back from the loop this quickly.
        sys.setswitchinterval(0.001)
        with suppress(KeyboardInterrupt):  # how people end it
            uvicorn.Server(config).run(sockets=[listening])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be listened on ({os.strerror(error.errno or 0)}); give another --port"
        ) from None


def _welcome(options: AnnotateOptions, site: Site, code: str | None) -> str:
    lines = [f"Serving on {site.link} (Ctrl-C ends it; nothing is lost)"]
    if code is not None:
        lines.append(f"Your link, for the first admin, once: {site.link}/join#{code}")
    lines.append("To let others in: the page People, or the same command with --invite annotator")
    return "\n".join(lines)


def _suggester(options: AnnotateOptions) -> Callable[[Sequence[Item]], Sequence[Item]] | None:
    if options.suggest is None:
        if options.judge is not None or options.threshold is not None:
            raise UsageError("--judge and --threshold are about --suggest: give that too")
        return None
    source = options.suggest

    def suggester(items: Sequence[Item]) -> Sequence[Item]:
        from stepmark.annotation.suggesting import suggest

        found = suggest(items, source, threshold=options.threshold, judge=options.judge)
        if found.without:
            item, why = found.without[0]
            print(
                f"no suggestion for {len(found.without)} items: {item}: {why}"
                + (", …" if len(found.without) > 1 else ""),
                file=sys.stderr,
            )
        return found.items

    return suggester


def _invite(options: AnnotateOptions, database: str, site: Site) -> int:
    from stepmark.annotation.accounts import invite
    from stepmark.annotation.starting import noted_link

    assert options.invite is not None
    if options.uses < 1 or not 0 < options.hours <= 24 * 90:
        raise UsageError("--uses: expected 1 or more; --hours: expected more than 0, at most 2160")
    with _existing(database) as opened, opened.writing() as connection:
        code = invite(
            connection,
            options.invite,
            uses=options.uses,
            hours=options.hours,
            by=None,
            at=time.time(),
        )
        known = noted_link(connection)
    elsewhere = options.url is not None or options.port != DEFAULT_PORT or known is None
    print(f"{site.link if elsewhere else known}/join#{code}")
    return 0


def _export(options: AnnotateOptions, project: Project, database: str) -> int:
    from stepmark.annotation.accounts import audit
    from stepmark.annotation.database import check_settings
    from stepmark.annotation.exporting import Exporting, export
    from stepmark.annotation.stored import answers_of, decisions_of, items_of
    from stepmark.errors import InputError
    from stepmark.solutions.interchange import Losses
    from stepmark.store import atomic_rows, check_writable

    assert options.export is not None
    assert options.out is not None
    settings = Exporting(
        format=options.export,
        view=options.view,
        agreement=options.agreement,
        neutral=options.neutral,
        drop_unsure=options.drop_unsure,
        unfinished=options.unfinished,
        control=options.control,
    )
    if options.out.exists() and not options.force:
        raise UsageError(
            f"{options.out}: there is a file already; give another name, or --force to overwrite it"
        )
    check_writable(options.out)
    losses = Losses()
    with _existing(database) as opened:
        check_settings(opened, project, keep=True)
        with opened.reading() as connection:
            items, answers = items_of(connection), answers_of(connection, project)
            decisions = decisions_of(connection)
        with atomic_rows(options.out) as write:
            for row in export(project, items, answers, decisions, settings, losses):
                if isinstance(row, InputError):
                    print(f"left out: {row}", file=sys.stderr)
                else:
                    write(row)
        with opened.writing() as connection:
            audit(connection, time.time(), None, "export", {"format": options.export, "rows": losses.written})
    print("\n".join([f"annotations -> {options.export}", *losses.lines()]), file=sys.stderr)
    return 0


def _backup(to: Path, database: str, force: bool) -> int:
    from stepmark.annotation.accounts import audit
    from stepmark.annotation.backup import backup

    with _existing(database) as opened:
        backup(opened, to, force=force)
        with opened.writing() as connection:
            audit(connection, time.time(), None, "backup", {})
        print(f"{to}: a copy of everything in {opened.shown}", file=sys.stderr)
    return 0


def _restore(source: Path, database: str, force: bool) -> int:
    from stepmark.annotation.accounts import audit
    from stepmark.annotation.backup import restore
    from stepmark.annotation.database import Database

    restore(source, database, force=force)
    with Database(database, create=False) as opened:
        with opened.writing() as connection:
            audit(connection, time.time(), None, "restore", {"from": source.name})
        print(f"{opened.shown}: everything is as in {source}", file=sys.stderr)
    return 0


def _existing(database: str) -> Database:
    from stepmark.annotation.database import Database

    return Database(database, create=False)
