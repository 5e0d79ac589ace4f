"""Downloads from the Hugging Face hub, and what their failures mean to the user."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from stepmark.errors import CheckpointError, MissingExtraError, UsageError
from stepmark.models.files import local_folder, present

Kind = Literal["model", "dataset"]

_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


CONFIGURATION = ("*.json", "*.model", "*.txt", "*.jinja")
"""The files of a checkpoint without its weights: config, tokenizer, chat template, scoring spec."""


def folder_of_name(name: str, patterns: Sequence[str]) -> Path:
    """The folder of a checkpoint: one of this machine, else a download from the hub.

    Args:
        name: of a folder, or "OWNER/NAME".
        patterns: which files of a hub repository are fetched, as in a shell.

    Raises:
        CheckpointError: neither a folder nor to be had from the hub.
    """
    folder = local_folder(name)
    if folder is not None:
        return folder
    occupied = present(Path(name))
    if occupied or name.startswith((".", "/", "~")) or name.count("/") != 1:
        link = ": that is a file, or a link that leads nowhere" if occupied else ""
        raise CheckpointError(
            f"there is no folder {name!r}{link}; expected a checkpoint's folder, or a hub name OWNER/NAME"
        )
    return fetch(name, patterns)


def fetch(name: str, patterns: Sequence[str], *, kind: Kind = "model") -> Path:
    """The folder of a hub repository, downloaded where it is not in the hub's cache.

    Args:
        name: "OWNER/NAME".
        patterns: which files, as in a shell.
        kind: of the repository.

    Raises:
        CheckpointError: a model that could not be fetched; the message says why, and what to do.
        UsageError: the same of a data set.
        MissingExtraError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingExtraError(
            "reading from the hub needs huggingface_hub: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(name, repo_type=kind, allow_patterns=list(patterns)))
    except Exception as error:  # every kind of network and hub failure ends here
        refused = CheckpointError if kind == "model" else UsageError
        here = "folder" if kind == "model" else "file"
        raise refused(
            f"there is no local {here} {name!r}, and {_reason(name, error, kind)}; or name a local {here}"
        ) from error


def _reason(name: str, error: BaseException, kind: Kind) -> str:
    """Why a download failed and what to do, in one sentence without its full stop."""
    thing = "data set" if kind == "dataset" else "model"
    page = f"https://huggingface.co/{'datasets/' if kind == 'dataset' else ''}{name}"
    # By name: the classes and their homes differ between versions of huggingface_hub.
    names = {one.__name__ for cause in _chain(error) for one in type(cause).__mro__}
    status = next(filter(None, map(_status, _chain(error))), None)
    if "GatedRepoError" in names or "LocalTokenNotFoundError" in names or status == 403:
        return f"the hub gives the {thing} {name!r} only to users who accepted its terms: accept them at {page}, then {_LOGIN}"
    if "RepositoryNotFoundError" in names or status in (401, 404):
        return f"the hub has no {thing} {name!r} that you may see: check the spelling; if it is private, {_LOGIN}"
    if "HFValidationError" in names:
        return f"{name!r} is not a name that a {thing} of the hub can have (OWNER/NAME): check the spelling"
    if any(isinstance(cause, OSError) and cause.errno == errno.ENOSPC for cause in _chain(error)):
        return f"the disk is full: make room for the {thing}, or set HF_HOME to a folder on another disk"
    if "OfflineModeIsEnabled" in names:
        return (
            f"HF_HUB_OFFLINE forbids to download it: unset it, or fetch {name!r} into the hub's cache first"
        )
    if status is not None and status >= 500:
        return f"the hub failed with status {status}: try again later"
    unreachable = names & {
        "ConnectError", "ConnectionError", "ConnectTimeout", "TimeoutException", "ProxyError", "TimeoutError", "Timeout",
        "LocalEntryNotFoundError", "TransportError",
    }  # fmt: skip
    if unreachable:
        part = "is only partly here, and " if "IncompleteSnapshotError" in names else ""
        return f"{f'the {thing} {part}' if part else ''}the hub cannot be reached: check the network and its proxy settings"
    message = " ".join(str(error).split())
    return f"it could not be fetched from the hub ({type(error).__name__}: {message}): check the name and the network"


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def _status(error: BaseException) -> int | None:
    """The HTTP status of a hub error; None for an error of another kind."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
