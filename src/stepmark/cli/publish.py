"""`stepmark publish`: the command of `stepmark.publish`."""

from __future__ import annotations

from stepmark.cli.twin import Call, command, report
from stepmark.errors import UsageError
from stepmark.integrations.hub import Plan, publish
from stepmark.show.text import amount


def _run(call: Call) -> int:
    if len(call.inputs) != 2:
        raise UsageError(
            f"expected the checkpoint's folder and the repository as OWNER/NAME, found {amount(len(call.inputs), 'word')}"
        )
    folder, repo = call.inputs
    published = publish(folder, repo, on_plan=_print_plan, **call.settings)
    if published is None:
        print("nothing was sent (--dry-run)")
        return 0
    print(f"published: {published.commit}")
    if published.strays:
        strays = ", ".join(published.strays)
        report(f"note: {repo} also holds {strays}, of an earlier upload; delete them on the hub")
    return 0


def _print_plan(planned: Plan) -> None:
    print(f"{planned.repo}: {amount(len(planned.upload), 'file')}, {_bytes(planned.size)}")
    for name, size in planned.upload.items():
        print(f"  {name}  {_bytes(size)}")
    if planned.left:
        print(f"left out: {', '.join(planned.left)}")
    for note in planned.notes:
        report(f"note: {note}")


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


publish_command = command(
    publish,
    _run,
    file="the checkpoint's folder, and the repository as OWNER/NAME",
    many=True,
    common=("private", "message", "incomplete_card", "no_load", "dry_run"),
    drop=("on_plan",),
)
