"""`stepmark annotate`: the web app where people label steps; its verbs are what is done to its database from outside."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from stepmark.annotation.run import annotate, annotator_link, export_labels
from stepmark.cli import options as opt
from stepmark.cli import print_note

app = App(
    name="annotate",
    help="Serve a web app where people label steps.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)
_PROJECT = "the project's file, or its database: an SQLite file or a PostgreSQL URL (postgresql+psycopg://USER@HOST/NAME)"


@app.default
@opt.documented_by(annotate)
def serve_app(
    file: Annotated[
        opt.FileOrDash,
        Parameter(
            help="a project (.yaml), a Potato configuration (.yaml), or a file of items in any format that stepmark convert reads"
        ),
    ],
    /,
    *,
    port: Annotated[int, opt.in_common("--port")] = 8010,
    host: Annotated[str, opt.in_common("--host")] = "127.0.0.1",
    url: Annotated[str | None, opt.in_common("--url")] = None,
    database: Annotated[str | None, opt.in_common("--database")] = None,
    mode: Annotated[Literal["first_error", "per_step"] | None, opt.in_common("--mode")] = None,
    overlap: Annotated[int | None, opt.in_common("--overlap")] = None,
    columns: opt.Columns | None = None,
    axis: Annotated[str | None, opt.in_method("--axis")] = None,
    allow_neutral: Annotated[bool, opt.in_method("--allow-neutral")] = False,
) -> int:
    """See `stepmark.annotate`."""
    annotate(
        file,
        port=port,
        host=host,
        url=url,
        database=database,
        mode=mode,
        overlap=overlap,
        columns=columns,
        axis=axis,
        allow_neutral=allow_neutral,
    )
    return 0


@app.command
@opt.documented_by(annotator_link)
def link(
    project: Annotated[str, Parameter(help=_PROJECT)],
    name: Annotated[str, Parameter(help='the annotator\'s name; "admin" for the admin')],
    /,
    *,
    new: Annotated[bool, opt.in_common("--new")] = False,
) -> int:
    """See `annotation.run.annotator_link`."""
    print(annotator_link(project, name, new=new))
    return 0


@app.command
@opt.documented_by(export_labels)
def export(
    file: Annotated[opt.FileOrDash, Parameter(help=_PROJECT)],
    /,
    *,
    out: Annotated[opt.FileOrDash, opt.in_common("--out")] = "-",
    format: Annotated[str, opt.in_common("--format")] = "stepmark",
    view: Annotated[Literal["together", "annotators", "decided"] | None, opt.in_common("--view")] = None,
    neutral: Annotated[Literal["positive", "negative", "drop"] | None, opt.in_common("--neutral")] = None,
    force: Annotated[bool, opt.in_common("--force")] = False,
    unfinished: Annotated[bool, opt.in_method("--unfinished")] = False,
) -> int:
    """See `annotation.run.export_labels`."""
    exported = export_labels(
        file,
        out=out,
        format=format,
        view=view,
        neutral=neutral,
        force=force,
        unfinished=unfinished,
    )
    print_note(exported.summary)
    return 0
