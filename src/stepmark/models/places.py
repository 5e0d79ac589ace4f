"""Where a checkpoint lies that is named: by its short name, its name on the hub, or its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from stepmark.catalog import Catalog, unknown_name
from stepmark.errors import CheckpointError
from stepmark.models.default import BASE_NAME, base_folder
from stepmark.models.families import full_name, nearest_names
from stepmark.models.files import ADAPTER_FILE, CONFIGURATION, folder_of_name, present, read_object

NAMES = Catalog("PRM", {"default": "stepmark.models.default:default_folder"})
"""PRMs with a short name: each gives the folder of its checkpoint."""


BUILT_IN_BASE = f"stepmark:{BASE_NAME}"
"""What an adapter of ours names as its base: the model that is made from the installed package."""


def _arithmetic_folder() -> Path:
    folder = Path(__file__).parent / "checkpoints" / "arithmetic"
    if not (folder / "model.safetensors").is_file():
        raise CheckpointError(
            f"this installation of stepmark lacks the tiny model of the arithmetic world ({folder}); install it again"
        )
    return folder


ARITHMETIC = "stepmark:arithmetic"
"""The tiny language model of the arithmetic world, that ships with stepmark: a policy, and a base for a PRM."""
BUILT_IN: Mapping[str, Callable[[], Path]] = {BUILT_IN_BASE: base_folder, ARITHMETIC: _arithmetic_folder}
"""Checkpoints that need no folder and no network, by name: what gives the folder of each."""


def built_in(name: str) -> Path | None:
    """The folder of a built-in checkpoint; None for any other name.

    Raises:
        UnknownNameError: a name as theirs that none of them has.
    """
    if name.startswith("stepmark:") and name not in BUILT_IN:
        raise unknown_name("model that ships with stepmark", name, BUILT_IN)
    return BUILT_IN[name]() if name in BUILT_IN else None


def find_checkpoint(name: str) -> Path:
    """The folder of a checkpoint: a built-in one (`BUILT_IN`), a local folder, or a download from the hub.

    Raises:
        CheckpointError: neither a folder nor to be had from the hub.
        UnknownNameError: no built-in one has this name.
    """
    return built_in(name) or folder_of_name(name, [*CONFIGURATION, "*.safetensors", "*.bin"])


def adapter_base(folder: Path) -> tuple[str, Path] | None:
    """What an adapter names as its base, and the folder of that; None for a whole checkpoint.

    Raises:
        CheckpointError: its config cannot be read or names no base, or the base is not to be had.
    """
    file = folder / ADAPTER_FILE
    if not present(file):
        return None
    named = read_object(file).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise CheckpointError(f"{file} names no base_model_name_or_path")
    base = find_checkpoint(named)
    if base == folder or present(base / ADAPTER_FILE):
        raise CheckpointError(
            f"{file} names {named!r} as its base, which is an adapter itself; merge them with peft, or name the whole model"
        )
    return named, base


def folder_of(name: str) -> Path:
    """The folder of a checkpoint, fetched where it does not lie here.

    Args:
        name: a short name, a name on the hub, or a folder.

    Raises:
        CheckpointError: there is none; the message gives the nearest known names.
    """
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
        name: as `load_prm` takes it, of a PRM for which `models.load.idle_settings` has no `neutral`.
        family: as given.
        tokenizer: as given.

    Raises:
        CheckpointError: as `load_prm`.
    """
    from stepmark.models.detect import spec_of

    place = name if tokenizer is None else tokenizer
    return spec_of(folder_of(place), place, family).readout.neutral is not None
