"""`stepmark annotate`: the web app where people label steps; its verbs are what is done to its database from outside."""

from __future__ import annotations

import sys

from cyclopts import App, Parameter

from stepmark.annotation.run import annotate, backup_labels, export_labels, invite, restore_labels
from stepmark.cli.twin import Call, command, report

app = App(
    name="annotate",
    help="Serve a web app where people label steps.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)
_DATABASE = "the project's database: an SQLite file or a PostgreSQL URL (postgresql+psycopg://USER@HOST/NAME)"


def _serve(call: Call) -> int:
    def welcome(database: str) -> None:
        print(f"To let others in: the page People, or stepmark annotate invite {database}", file=sys.stderr)

    annotate(call.inputs[0], on_start=welcome, **call.settings)
    return 0


def _invite(call: Call) -> int:
    print(invite(call.inputs[0], **call.settings))
    return 0


def _export(call: Call) -> int:
    settings = dict(call.settings)
    report(export_labels(call.inputs[0], out=settings.pop("out") or "-", **settings).summary)
    return 0


def _backup(call: Call) -> int:
    report(backup_labels(call.inputs[0], **call.settings))
    return 0


def _restore(call: Call) -> int:
    report(restore_labels(call.inputs[0], **call.settings))
    return 0


app.default(
    command(
        annotate,
        _serve,
        file="a project (.yaml), a Potato configuration (.yaml), or a file of items in any format that stepmark convert reads",
        common=("port", "host", "url", "database", "mode", "overlap", "suggest", "columns"),
        drop=("on_start",),
    )
)
app.command(command(invite, _invite, file=_DATABASE, common=("role", "uses", "hours", "url")), name="invite")
app.command(
    command(export_labels, _export, file=_DATABASE, common=("out", "format", "view", "neutral", "force")),
    name="export",
)
app.command(command(backup_labels, _backup, file=_DATABASE, common=("out", "force")), name="backup")
app.command(
    command(restore_labels, _restore, file="the backup", common=("database", "force")), name="restore"
)
