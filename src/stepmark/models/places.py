"""Where a checkpoint lies that is named: by its short name, its name on the hub, or its folder."""

from __future__ import annotations

from pathlib import Path

from stepmark.catalog import Catalog
from stepmark.errors import CheckpointError
from stepmark.models.published import full_name, nearest_names

NAMES = Catalog("PRM", {"default": "stepmark.models.default:default_folder"})
"""PRMs with a short name: each gives the folder of its checkpoint."""


def folder_of(name: str) -> Path:
    """The folder of a checkpoint, fetched where it does not lie here.

    Args:
        name: a short name, a name on the hub, or a folder.

    Raises:
        CheckpointError: there is none; the message gives the nearest known names.
    """
    from stepmark.models.checkpoint import find_checkpoint

    if name in NAMES:
        folder: Path = NAMES.load(name)()
        return folder
    try:
        return find_checkpoint(full_name(name))
    except CheckpointError as error:
        if near := nearest_names(name, NAMES):
            raise CheckpointError(f"{error}. Did you mean {' or '.join(map(repr, near))}?") from error
        raise


def has_neutral_class(name: str, *, family: str | None = None, tokenizer: str | None = None) -> bool:
    """Whether `neutral` means something for a PRM that is read from a checkpoint, which is fetched where it does not lie here.

    Args:
        name: as `load_prm` takes it, of a PRM for which `models.named.idle_settings` has no `neutral`.
        family: as given.
        tokenizer: as given.

    Raises:
        CheckpointError: as `load_prm`.
    """
    from stepmark.models.detect import spec_of

    place = name if tokenizer is None else tokenizer
    return spec_of(folder_of(place), place, family).readout.neutral is not None
