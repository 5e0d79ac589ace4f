"""What both ways of writing a checkpoint share: a folder that is whole or not there, and the record of what it holds."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.models.encoding import Encoder
from stepmark.models.spec import ChatLayout, DialogueLayout, PieceLayout, ScoringSpec

TRAIN_FILE = "train.json"
"""Beside the weights: the settings of the run."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A checkpoint on disk, and what a reader must know of it."""

    folder: Path
    layout: Literal["token-classification", "qwen2-prm", "causal-lm", "adapter"]
    architecture: str | None
    """As `config.json` names it; None for an adapter."""
    spec: ScoringSpec | None
    """As it stands in the folder. The head may be another than was given: the same function in the layout's form."""
    tag: int | None
    """The token id that step ends carry and nothing else in a graded text, which servers want to know; None where there is no such
    token, and for an adapter."""


def step_tag(spec: ScoringSpec, tokenizer: Any) -> int | None:
    """The token at every step end, where it stands nowhere else in a text that is graded; None where there is no such token.

    Raises:
        CheckpointError: the tokenizer does not serve the spec's layout.
    """
    Encoder(tokenizer, spec.layout, max_tokens=None, outcome_only=spec.outcome_only).check()
    layout = spec.layout
    if (
        isinstance(layout, DialogueLayout)
        or layout.mark_is_text
        or not layout.mark.strip()
        or spec.outcome_only
    ):
        return None
    if isinstance(layout, PieceLayout) and layout.read_back:
        return None
    if isinstance(layout, ChatLayout) and layout.ending == "turn":
        return None
    tag = int(tokenizer(layout.mark.strip(), add_special_tokens=False)["input_ids"][0])
    # Of other words a tokenizer makes one token alone and another one after a space.
    return tag if tag in tokenizer.added_tokens_decoder else None


def refuse_infinite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse weights that are no numbers.

    Raises:
        CheckpointError: a tensor holds NaN or an infinity.
    """
    for name, tensor in tensors:
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{name} holds NaN or an infinity: training diverged; nothing was written")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that gets its name when it is whole; after an error there is none.

    Raises:
        UsageError: it exists.
    """
    _refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield work
        # mkdtemp lets nobody else in; a checkpoint is as open as any folder.
        mask = os.umask(0)
        os.umask(mask)
        work.chmod(0o777 & ~mask)
        _refuse_existing(folder)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise UsageError(f"{folder} exists; delete it or choose another")


def write_json(file: Path, data: object) -> None:
    """One JSON file of a new folder."""
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
