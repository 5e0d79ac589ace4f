"""`stepmark annotate`: the web app where people label steps; its verbs are what is done to its database from outside."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from stepmark.annotation.run import annotate, annotator_link, export_labels
from stepmark.cli.twin import Call, command, report

app = App(
    name="annotate",
    help="Serve a web app where people label steps.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)
_PROJECT = "the project's file, or its database: an SQLite file or a PostgreSQL URL (postgresql+psycopg://USER@HOST/NAME)"


def _serve(call: Call) -> int:
    annotate(call.inputs[0], **call.settings)
    return 0


def _export(call: Call) -> int:
    settings = dict(call.settings)
    report(export_labels(call.inputs[0], out=settings.pop("out") or "-", **settings).summary)
    return 0


def link(
    project: Annotated[str, Parameter(help=_PROJECT)],
    name: Annotated[str, Parameter(help='the annotator\'s name; "admin" for the admin')],
    /,
    *,
    new: Annotated[
        bool, Parameter(help="make another link; the one of before is not valid any more")
    ] = False,
) -> int:
    """Print the link of an annotator, who is made where there is none of this name."""
    print(annotator_link(project, name, new=new))
    return 0


app.default(
    command(
        annotate,
        _serve,
        file="a project (.yaml), a Potato configuration (.yaml), or a file of items in any format that stepmark convert reads",
        common=("port", "host", "url", "database", "mode", "overlap", "suggest", "columns"),
    )
)
app.command(link)
app.command(
    command(export_labels, _export, file=_PROJECT, common=("out", "format", "view", "neutral", "force")),
    name="export",
)
