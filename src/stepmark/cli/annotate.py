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
    suggest: Annotated[str | None, opt.in_common("--suggest")] = None,
    columns: opt.Columns | None = None,
    axis: Annotated[str | None, opt.in_method("--axis")] = None,
    allow_neutral: Annotated[bool, opt.in_method("--allow-neutral")] = False,
    threshold: Annotated[float | None, opt.in_method("--threshold")] = None,
) -> int:
    """Serve a web app where people label the steps of solutions; no click that it acknowledged is lost.

    Args:
        port: where the app listens.
        host: the address that it listens on. Other addresses than this machine's own need url too.
        url: how annotators reach it (https://label.example.org), where that is not http://HOST:PORT, as behind a proxy that speaks https.
        database: an SQLite file or a PostgreSQL URL (postgresql+psycopg://USER@HOST/NAME). Default: FILE with the ending .annotations.sqlite.
        mode: what is asked: the first wrong step, or a rating of each. Default: as the project says, else the first wrong step.
        overlap: how many annotators label each item. Default: as the project says, else 1.
        suggest: pre-labels: a PRM's name.
        axis: what is judged: the name of a criterion. Default: as the project says, else whether the step is right.
        allow_neutral: steps may be neutral, in mode per_step.
        threshold: a score under it suggests an error. Default: the PRM's own.
    """
    annotate(
        file,
        port=port,
        host=host,
        url=url,
        database=database,
        mode=mode,
        overlap=overlap,
        suggest=suggest,
        columns=columns,
        axis=axis,
        allow_neutral=allow_neutral,
        threshold=threshold,
    )
    return 0


@app.command
def link(
    project: Annotated[str, Parameter(help=_PROJECT)],
    name: Annotated[str, Parameter(help='the annotator\'s name; "admin" for the admin')],
    /,
    *,
    new: Annotated[bool, opt.in_common("--new")] = False,
) -> int:
    """Print the link of an annotator, who is made where there is none of this name.

    Args:
        new: make another link; the one of before is not valid any more.
    """
    print(annotator_link(project, name, new=new))
    return 0


@app.command
def export(
    file: Annotated[opt.FileOrDash, Parameter(help=_PROJECT)],
    /,
    *,
    out: Annotated[opt.FileOrDash, opt.in_common("--out")] = "-",
    format: Annotated[str, opt.in_common("--format")] = "stepmark",
    view: Annotated[Literal["together", "annotators", "decided"] | None, opt.in_common("--view")] = None,
    neutral: Annotated[Literal["positive", "negative", "drop"] | None, opt.in_common("--neutral")] = None,
    force: Annotated[bool, opt.in_common("--force")] = False,
    agreement: Annotated[
        Literal["first-error-agrees", "majority"] | None, opt.in_method("--agreement")
    ] = None,
    unfinished: Annotated[bool, opt.in_method("--unfinished")] = False,
) -> int:
    """Export the labels of a project; the app may be running.

    Args:
        out: write the rows to this file, gzipped if its name ends in .gz; "-" for standard output.
        format: the format to write: stepmark, prm800k, trl, math-shepherd, processbench, potato or who-and-when.
        view: "together", a row an item with all judgements; "annotators", a row an answer; "decided", a row an item with the decision. Default: together for stepmark, annotators for prm800k and potato, decided for the others.
        neutral: what a neutral rating becomes where a format has only right and wrong.
        force: overwrite a file that is there.
        agreement: how several annotators agree, in the view decided. Default: first-error-agrees in mode first_error, majority in per_step.
        unfinished: export answers that are not submitted too.
    """
    exported = export_labels(
        file,
        out=out,
        format=format,
        view=view,
        neutral=neutral,
        force=force,
        agreement=agreement,
        unfinished=unfinished,
    )
    print_note(exported.summary)
    return 0
