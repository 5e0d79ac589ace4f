"""`stepmark publish`: a checkpoint on the Hugging Face hub, once all that belongs to it is there."""

from __future__ import annotations

import sys

from stepmark.cli.flags import Flag
from stepmark.errors import UsageError


def publish_command(
    folder: str,
    repo: str,
    /,
    *,
    private: Flag = False,
    message: str | None = None,
    incomplete_card: Flag = False,
    no_load: Flag = False,
    dry_run: Flag = False,
) -> int:
    """Publish a checkpoint with its card on the Hugging Face hub.

    First it is looked at: the files of a whole checkpoint are there, stepmark reads it and scores with it, and its card says licence, base,
    data and figures. Then the files that belong to a checkpoint are uploaded in one commit; states, optimizers and logs are not. The token
    is that of `hf auth login`, or HF_TOKEN.

    Args:
        folder: the checkpoint, whole or an adapter, as `stepmark train` writes it.
        repo: OWNER/NAME; made if it does not exist.
        private: make the repository private.
        message: of the commit.
        incomplete_card: publish though the card lacks something; what it lacks is printed.
        no_load: do not read the checkpoint, which takes the memory of the whole model.
        dry_run: print what would be uploaded, and send nothing.
    """
    from stepmark.integrations.hub import plan, publish, refusal

    planned = plan(folder, repo, incomplete_card=incomplete_card, load=not no_load)
    print(f"{planned.repo}: {len(planned.upload)} files, {_bytes(planned.size)}")
    for file in planned.upload:
        print(f"  {file.name}  {_bytes(file.size)}")
    if planned.left:
        print(f"left out: {', '.join(planned.left)}")
    for note in planned.notes:
        print(f"note: {note}", file=sys.stderr)
    if planned.problems:
        raise UsageError(refusal(planned))
    if dry_run:
        print("nothing was sent (--dry-run)")
        return 0
    published = publish(planned, private=private, message=message)
    print(f"published: {published.commit}")
    if published.strays:
        print(
            f"note: {repo} also holds {', '.join(published.strays)}, of an earlier upload; delete them on the hub",
            file=sys.stderr,
        )
    return 0


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
