"""`stepmark publish`: the command of `stepmark.publish`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stepmark.cli import options as opt
from stepmark.integrations.hub import publish


@opt.documented_by(publish)
def publish_command(
    folder: Annotated[str, Parameter(help="the checkpoint's folder")],
    repo: Annotated[str, Parameter(help="the repository as OWNER/NAME; made if it does not exist")],
    /,
    *,
    private: Annotated[bool, opt.in_common("--private")] = False,
    message: Annotated[str | None, opt.in_common("--message")] = None,
    dry_run: Annotated[bool, opt.in_common("--dry-run")] = False,
) -> int:
    """See `stepmark.publish`."""
    files, commit = publish(folder, repo, private=private, message=message, dry_run=dry_run)
    for name, size in files.items():
        print(f"  {name}  {size / 1e6:.1f} MB")
    print(f"published: {commit}" if commit else "nothing was sent (--dry-run)")
    return 0
