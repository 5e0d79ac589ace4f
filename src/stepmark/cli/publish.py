"""`stepmark publish`: the command of `stepmark.publish`."""

from __future__ import annotations

from stepmark.cli.twin import Call, command
from stepmark.errors import UsageError
from stepmark.integrations.hub import publish
from stepmark.show.text import amount


def _run(call: Call) -> int:
    if len(call.inputs) != 2:
        raise UsageError(
            f"expected the checkpoint's folder and the repository as OWNER/NAME, found {amount(len(call.inputs), 'word')}"
        )
    folder, repo = call.inputs
    files, commit = publish(folder, repo, **call.settings)
    for name, size in files.items():
        print(f"  {name}  {size / 1e6:.1f} MB")
    print(f"published: {commit}" if commit else "nothing was sent (--dry-run)")
    return 0


publish_command = command(
    publish,
    _run,
    file="the checkpoint's folder, and the repository as OWNER/NAME",
    many=True,
    common=("private", "message", "dry_run"),
)
