"""The files of a checkpoint as plain data: its JSON files, and which files hold its weights. Needs no torch."""

from __future__ import annotations

import difflib
import errno
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepmark.errors import CheckpointError, MissingExtraError, UsageError

ADAPTER_FILE = "adapter_config.json"


def local_folder(name: str) -> Path | None:
    """The folder of this machine that a name means; None where it means none."""
    path = os.path.expanduser(name)  # noqa: PTH111 (Path.expanduser raises for an unknown user)
    return Path(path) if os.path.isdir(path) else None  # noqa: PTH112 (False too where it may not be looked at)


def present(file: Path) -> bool:
    """Whether there is an entry of this name, readable or not: a link that leads nowhere is not an absent file."""
    return os.path.lexists(file)


def check_file(file: Path) -> None:
    """Refuse (`CheckpointError`) what is no file that can be read: a link that leads nowhere, a folder, a pipe, a device, or no permission."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise CheckpointError(f"{file} should be a file, found a folder, a pipe or a device")
        with file.open("rb"):
            pass
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror}); fetch it again") from error


def check_written(file: Path) -> None:
    """Refuse (`CheckpointError`) a file of which less than half was ever written, as an interrupted download leaves it: its holes would be read as zeros."""
    size = file.stat().st_size
    if not hasattr(os, "SEEK_DATA") or file.stat().st_blocks * 512 >= size:
        return
    written = at = 0
    with file.open("rb") as opened:
        while at < size:
            try:
                start = os.lseek(opened.fileno(), at, os.SEEK_DATA)
            except OSError:  # a hole to the end, or a file system that does not say
                break
            at = os.lseek(opened.fileno(), start, os.SEEK_HOLE)
            written += at - start
    if written < size / 2:
        raise CheckpointError(
            f"{file} should hold {size} bytes, and {written} of them were written; the rest is a hole that reads as zeros. Fetch it again"
        )


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file; a `CheckpointError` where the file cannot be read or holds something else."""
    check_file(file)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is not JSON that can be read ({error}); correct it, or fetch it again"
        ) from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} should hold an object, found {type(data).__name__}")
    return data


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFiles:
    """Which files of a folder hold weights."""

    every: tuple[Path, ...]
    """All whose tensors are read, in the order of their names."""
    network: tuple[Path, ...]
    """Those from which transformers fills the network; none for an adapter, or where it would find none."""
    index: Path | None = None
    """The index of shards, where the network is cut into them."""
    places: Mapping[str, Path]
    """Tensor name to file, as the index says."""


def weight_files(folder: Path) -> WeightFiles:
    """Find the weights in a folder, in the order in which transformers and peft look for them.

    Raises:
        CheckpointError: none, or an index of shards that cannot be read or names a file that is not there.
    """
    if present(folder / ADAPTER_FILE):
        for name in ("adapter_model.safetensors", "adapter_model.bin"):
            if present(folder / name):
                return WeightFiles(every=(folder / name,), network=(), places={})
        raise CheckpointError(
            f"{folder} holds {ADAPTER_FILE} and no adapter_model.safetensors; fetch the whole adapter, or, if this is a "
            f"whole model, delete {ADAPTER_FILE}"
        )
    candidates = {suffix: _candidates(folder, stem, suffix) for stem, suffix in _KINDS}
    for stem, suffix in _KINDS:
        whole, index = folder / f"{stem}.{suffix}", folder / f"{stem}.{suffix}.index.json"
        if present(whole):
            return WeightFiles(every=candidates[suffix], network=(whole,), places={})
        if present(index):
            places = _places(index)
            network = tuple(sorted(set(places.values())))
            every = tuple(sorted({*candidates[suffix], *network}))
            return WeightFiles(every=every, network=network, index=index, places=places)
    for files in candidates.values():
        if files:
            return WeightFiles(every=files, network=(), places={})
    inside = sorted(file.parent for file in folder.glob("*/model*.safetensors")) if folder.is_dir() else []
    hint = f"; there are some in {inside[-1]}: name that folder" if inside else ""
    raise CheckpointError(f"{folder} holds no weights (no *.safetensors, no pytorch_model*.bin){hint}")


_KINDS = (("model", "safetensors"), ("pytorch_model", "bin"))


def _candidates(folder: Path, stem: str, suffix: str) -> tuple[Path, ...]:
    # A .bin may be anything, training arguments say; only those of this name are opened.
    pattern = f"{stem}*.{suffix}" if suffix == "bin" else f"*.{suffix}"
    return tuple(sorted(f for f in folder.glob(pattern) if not f.name.startswith("adapter_model")))


def _places(index: Path) -> dict[str, Path]:
    """Tensor name to shard, every shard known to be there."""
    table = read_object(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise CheckpointError(f"{index}: weight_map should name the file of each tensor; fetch it again")
    for name in sorted(set(table.values())):
        if Path(name).name != name:
            raise CheckpointError(f"{index}: expected names of files beside it, found {name!r}")
        if not present(index.parent / name):
            raise CheckpointError(f"{index} names {name}, which is not there; fetch the whole checkpoint")
    return {tensor: index.parent / name for tensor, name in table.items()}


Kind = Literal["model", "dataset"]


CONFIGURATION = (
    *("config.json", "generation_config.json", "stepmark.json", "adapter_config.json", "*.index.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("chat_template.*", "*.model", "*.tiktoken"),
)
"""The files of a checkpoint that decide what it computes, without its weights: config, tokenizer, chat template, scoring spec.

Cards, logs and training records are none of them.
"""
_ANOTHER_FORM = ("*/*", "consolidated*")
"""What a model's repository holds in folders (older states, exports), and its weights once more under their maker's names."""


def folder_of_name(name: str, patterns: Sequence[str]) -> Path:
    """The folder of a checkpoint: one of this machine, else a download of the files that match the patterns from the hub.

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
            f"there is no folder {name!r}{link}; expected a checkpoint's folder, or a hub name OWNER/NAME{_near(name)}"
        )
    try:
        return fetch(name, patterns)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_near(name)}") from error


def _near(name: str) -> str:
    """The folder beside the one of that name whose name is nearest, as a question; empty where there is none."""
    path = Path(name).expanduser()
    names = [other.name for other in path.parent.iterdir() if other.is_dir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f". Did you mean {str(path.with_name(near[0]))!r}?" if near else ""


def fetch(name: str, patterns: Sequence[str], *, kind: Kind = "model") -> Path:
    """The folder of a hub repository ("OWNER/NAME"), whose files that match the patterns are downloaded where they are not in the hub's cache.

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
    ignored = list(_ANOTHER_FORM) if kind == "model" else None
    try:
        return Path(
            snapshot_download(name, repo_type=kind, allow_patterns=list(patterns), ignore_patterns=ignored)
        )
    except Exception as error:  # every kind of network and hub failure ends here
        refused = CheckpointError if kind == "model" else UsageError
        local = "folder" if kind == "model" else "file"
        cause = _cause(error)
        message = " ".join(str(cause).split())
        raise refused(
            f"there is no local {local} {name!r}, and it could not be fetched from the hub: {_remedy(cause, name)} "
            f"({type(cause).__name__}: {message})"
        ) from error


def _cause(error: BaseException) -> BaseException:
    """What the hub or the system answered, where the client wraps it in advice on the internet connection."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    inner = error.__cause__
    return inner if isinstance(error, LocalEntryNotFoundError) and inner is not None else error


def _remedy(error: BaseException, name: str) -> str:
    """What to do about an error of the hub's client."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and not all of its files are in the cache. Run once without HF_HUB_OFFLINE"
    if isinstance(error, GatedRepoError):
        return f"it is gated. Accept its terms at {constants.ENDPOINT}/{name}, and {log_in}"
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)):
        return f"there is none of that name, or it is private. Check the name; for a private one {log_in}"
    if status == 401:
        return f"the hub does not take your token. To replace it, {log_in}"
    if status == 403:
        return f"your token may not read it. Give the token that permission, or use another: {log_in}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {constants.HF_HUB_CACHE} is full. Make room, or let HF_HOME name a folder on a larger disk; what is complete "
            "is not downloaded again"
        )
    return "check the network, and run again; what is complete is not downloaded again"
