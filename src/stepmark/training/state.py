"""The state of a run in progress, as files: saved whole or not at all, refused by another run.

`run.json` says what the run is: everything that decides its result. It is written before the first state.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepmark.errors import UsageError
from stepmark.models.identity import checkpoint_fingerprint
from stepmark.models.places import folder_of
from stepmark.models.spec import SPEC_FILE
from stepmark.store import LOCK_FILE, atomic_write, differences, held, naming
from stepmark.training.card import CARD_FILE
from stepmark.training.checkpoint import TRAIN_FILE
from stepmark.training.examples import Example
from stepmark.training.items import Item
from stepmark.training.objectives.base import Objective
from stepmark.training.parallel import Workers
from stepmark.training.settings import Training

RUN_FILE = "run.json"
_WHOLE = "state.pt"
_PARTS = "parts.json"
"""Written when the parts of all processes are there; names the step that they are of."""


def run_of(
    settings: Training, objective: Objective, base: Path, *, source: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a run is before its rows are read: settings, objective, and the models that it starts from, by their files.

    Args:
        settings, objective: of the run.
        base: its folder.
        source: of an objective of the caller's own: the hashes of its modules.
    """
    return {
        "base": str(base),
        "base_fingerprint": checkpoint_fingerprint(base),
        "warm_start_fingerprint": None
        if settings.warm_start is None
        else checkpoint_fingerprint(folder_of(settings.warm_start)),
        "objective": repr(objective),
        **({} if source is None else {"source": dict(source)}),
        "settings": asdict(settings),
    }


def rows_of(
    steps: Sequence[Sequence[Sequence[Item]]], held_out: Sequence[Sequence[Example]]
) -> dict[str, str]:
    """What a run is trained on, as two digests: a state is continued with the same batches only.

    Args:
        steps: the batches.
        held_out: examples that decide when to stop; none where they do not.
    """
    batches, watched = hashlib.sha256(), hashlib.sha256()
    for item in (item for step in steps for part in step for item in part):
        for numbers in (item.tree.ids, item.tree.parents, item.reads, item.weights):
            batches.update(np.asarray(numbers, dtype=np.float64).tobytes())
        batches.update(repr(item.targets).encode())
        batches.update(repr([row.example.outcome for row in item.rows]).encode())
    watched.update(
        repr([(e.solution.texts, e.targets, e.outcome) for group in held_out for e in group]).encode()
    )
    return {"rows": batches.hexdigest(), "rows_of_patience": watched.hexdigest()}


def is_saved(folder: Path) -> bool:
    """Whether a state lies there."""
    return any((folder / name).is_file() for name in (_WHOLE, _PARTS))


def drop_state(folder: Path) -> None:
    """Remove what makes a state one; parts that nothing names are of no use to anybody."""
    for name in (_WHOLE, _PARTS):
        (folder / name).unlink(missing_ok=True)


def check_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Refuse a state that another run left.

    Args:
        folder: of the state.
        run: what this run is, or those entries that are known already.

    Raises:
        UsageError: it says what differs.
    """
    if not is_saved(folder):
        return
    remedy = f"Delete {folder} to start again, or choose another `out`"
    if not (folder / RUN_FILE).is_file():
        raise UsageError(f"{folder} holds the state of a run, and nothing says of which. {remedy}")
    old = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    changed = differences({name: old.get(name) for name in run}, json.loads(json.dumps(run)))
    if changed:
        raise UsageError(
            f"{folder} holds the state of an interrupted run that was made otherwise: {'; '.join(changed)}. Run with the same base, "
            f"rows and settings to continue it. {remedy}"
        )


def save(
    folder: Path, state: Mapping[str, Any], workers: Workers, *, run: Mapping[str, Any], parts: bool
) -> None:
    """Save a state; all processes call this.

    Args:
        folder: made if it is absent; of parts, one that all processes see.
        state: tensors and plain values; `done` is the number of steps.
        workers: the processes.
        run: everything that decides the result, as plain data.
        parts: whether each process has a state of its own; else the first one's is everyone's.
    """
    if workers.first and not is_saved(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / RUN_FILE) as handle:
            json.dump(run, handle, ensure_ascii=False, indent=2)
            handle.write("\n")
    if not parts:
        if workers.first:
            _put(folder / _WHOLE, dict(state))
        return
    _put(folder / _part(state["done"], workers), dict(state))
    workers.wait()
    if workers.first:
        with atomic_write(folder / _PARTS) as handle:
            json.dump({"done": state["done"], "processes": workers.size}, handle)
    workers.wait()
    current = _part(state["done"], workers)
    for old in folder.glob(f"state-*-{workers.rank}.pt"):
        if old.name != current:
            old.unlink()


def load(
    folder: Path, workers: Workers, *, run: Mapping[str, Any], parts: bool, device: str
) -> dict[str, Any] | None:
    """The saved state of this run; None where there is none.

    Args:
        folder, workers, run, parts: as `save`.
        device: where its tensors go.

    Raises:
        UsageError: it is of another run, or of another number of processes.
    """
    if not is_saved(folder):
        return None
    check_run(folder, run)
    file = folder / _WHOLE
    if parts:
        saved = json.loads((folder / _PARTS).read_text(encoding="utf-8"))
        if saved["processes"] != workers.size:
            raise UsageError(
                f"{folder} holds the state of a run of {saved['processes']} processes, and these are {workers.size}: with `shard` each "
                f"goes on with its own part. Start {saved['processes']}, or delete the folder to start again"
            )
        file = folder / _part(saved["done"], workers)
    state: dict[str, Any] = torch.load(file, weights_only=True, map_location=device)
    return state


def _part(done: int, workers: Workers) -> str:
    return f"state-{done}-{workers.rank}.pt"


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


HISTORY_FILE = "history.jsonl"
"""The figures of every step."""
CHECKPOINT = "checkpoint"
"""The folder in which a checkpoint is made, beside the state of its run."""
WRITTEN = (TRAIN_FILE, SPEC_FILE, CARD_FILE, HISTORY_FILE)
"""What every finished checkpoint holds beside its weights."""
_IN_PROGRESS = re.compile(
    rf"{re.escape(LOCK_FILE)}|run\.json|history\.(jsonl|part)|state(-\d+-\d+)?\.(pt|part)|parts\.json|\.?{CHECKPOINT}(-.+)?|\..+\.tmp"
)
"""What lies in the folder of a run in progress."""


@contextmanager
def workplace(state: Path) -> Iterator[None]:
    """The folder of a run in progress, held; what is of no use to the next run goes.

    Raises:
        UsageError: another process holds it, or it is no such folder.
    """
    with held(state):
        others = sorted(one.name for one in state.iterdir() if not _IN_PROGRESS.fullmatch(one.name))
        if others:
            raise UsageError(
                f"{state} is where the run would keep its state, and holds {others[0]}, which no run wrote; move it, or choose another `out`"
            )
        try:
            yield
        finally:
            if state.is_dir() and not is_saved(state):
                for one in state.iterdir():
                    if one.is_file() and one.name != LOCK_FILE:
                        one.unlink()


def finished_notes(out: Path) -> dict[str, Any]:
    """The `train.json` of a finished run.

    Raises:
        UsageError: it is something else.
    """
    foreign = UsageError(f"{out} exists; delete it or choose another `out`")
    try:
        notes = json.loads((out / TRAIN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise foreign from None
    if not isinstance(notes, dict) or "base_fingerprint" not in notes:
        raise foreign
    return notes


def refuse_another(out: Path, notes: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Refuse a finished checkpoint of another run.

    Raises:
        UsageError: it says what differs.
    """
    changed = differences({name: notes.get(name) for name in record}, json.loads(json.dumps(record)))
    if changed:
        raise UsageError(
            f"{out} exists and was trained otherwise: {'; '.join(changed)}. Delete it or choose another `out`"
        )


def drop_leftover(state: Path, run: Mapping[str, Any]) -> None:
    """Remove the state of a run that is finished, where a kill left it.

    Args:
        state: the folder, held.
        run: the run; the state of another one stays.
    """
    with suppress(UsageError):
        check_run(state, run)
        drop(state)


def drop(state: Path) -> None:
    """Remove the folder of a run that is finished: its state first, so that a kill meanwhile leaves none that cannot be told."""
    drop_state(state)
    shutil.rmtree(state)
