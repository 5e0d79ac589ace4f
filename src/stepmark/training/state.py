"""The state of a run in progress, as files: saved whole or not at all, refused by another run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepmark.errors import UsageError
from stepmark.store import atomic_write, naming
from stepmark.training.examples import Example
from stepmark.training.items import Item
from stepmark.training.objectives.base import Objective
from stepmark.training.parallel import Workers
from stepmark.training.settings import Train

_WHOLE = "state.pt"
_PARTS = "parts.json"
"""Written when the parts of all processes are there; names the step that they are of."""


def identity(
    settings: Train,
    objective: Objective,
    base: Path,
    steps: Sequence[Sequence[Sequence[Item]]],
    held_out: Sequence[Sequence[Example]],
) -> str:
    """What a run is told by: a state goes on with the same batches or with none.

    Args:
        settings, objective, base: of the run.
        steps: the batches.
        held_out: examples that decide when to stop; none where they do not.
    """
    rows = hashlib.sha256()
    for item in (item for step in steps for part in step for item in part):
        for numbers in (item.tree.ids, item.tree.parents, item.reads, item.weights):
            rows.update(np.asarray(numbers, dtype=np.float64).tobytes())
        rows.update(repr(item.targets).encode())
        rows.update(repr([row.example.outcome for row in item.rows]).encode())
    facts = {
        "settings": asdict(settings),
        "objective": repr(objective),
        "base": str(base),
        "rows": rows.hexdigest(),
        "held_out": hashlib.sha256(
            repr([(e.solution.texts, e.targets, e.outcome) for group in held_out for e in group]).encode()
        ).hexdigest(),
    }
    return json.dumps(facts, sort_keys=True)


def save(folder: Path, state: Mapping[str, Any], workers: Workers, *, run: str, parts: bool) -> None:
    """Save a state; all processes call this.

    Args:
        folder: made if it is absent; of parts, one that all processes see.
        state: tensors and plain values; `done` is the number of steps.
        workers: the processes.
        run: what the run is told by.
        parts: whether each process has a state of its own; else the first one's is everyone's.
    """
    if not parts:
        if workers.first:
            _put(folder / _WHOLE, {"run": run, **state})
        return
    _put(folder / _part(state["done"], workers), dict(state))
    workers.wait()
    if workers.first:
        with atomic_write(folder / _PARTS) as handle:
            json.dump({"run": run, "done": state["done"], "processes": workers.size}, handle)
    workers.wait()
    kept = _part(state["done"], workers)
    for old in folder.glob(f"state-*-{workers.rank}.pt"):
        if old.name != kept:
            old.unlink()


def load(folder: Path, workers: Workers, *, run: str, parts: bool, device: str) -> dict[str, Any] | None:
    """The saved state of this run; None where there is none.

    Args:
        folder, workers, run, parts: as `save`.
        device: where its tensors go.

    Raises:
        UsageError: it is of another run, or of another number of processes.
    """
    for name, ours in ((_WHOLE, not parts), (_PARTS, parts)):
        if (folder / name).is_file() and not ours:
            raise _another(folder / name)
    if parts:
        if not (folder / _PARTS).is_file():
            return None
        facts = json.loads((folder / _PARTS).read_text(encoding="utf-8"))
        if facts["run"] != run:
            raise _another(folder / _PARTS)
        if facts["processes"] != workers.size:
            raise UsageError(
                f"{folder} holds the state of a run of {facts['processes']} processes, and these are {workers.size}: with --shard each "
                f"goes on with its own part. Start {facts['processes']}, or delete the folder to start again"
            )
        file = folder / _part(facts["done"], workers)
        found: dict[str, Any] = torch.load(file, weights_only=True, map_location=device)
        return found
    if not (folder / _WHOLE).is_file():
        return None
    found = torch.load(folder / _WHOLE, weights_only=True, map_location=device)
    if found.get("run") != run:
        raise _another(folder / _WHOLE)
    return found


def _part(done: int, workers: Workers) -> str:
    return f"state-{done}-{workers.rank}.pt"


def _another(file: Path) -> UsageError:
    return UsageError(
        f"{file} is of a run with other settings, another base or other rows; delete it or choose another folder"
    )


def _put(file: Path, state: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".part")
    write_tensors(temporary, state)
    temporary.rename(file)


def write_tensors(file: Path, state: Mapping[str, Any]) -> None:
    """Write tensors and plain values with `torch.save`; where that fails, nothing is left.

    Raises:
        StorageError: the disk is full or broken.
    """
    try:
        # Through a file of Python's: torch's own writer does not say what the system refused.
        with naming(file), file.open("wb") as handle:
            torch.save(dict(state), handle)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
