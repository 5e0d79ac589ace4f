"""The state of a run in progress, as files: saved whole or not at all, refused by another run.

`run.json` says what the run is: everything that decides its result. It is written before the first state. Weights that are shared out are
saved by each process as a part of its own, and `parts.json` names the step when all of them are there.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

import torch

from stepmark.errors import InputError, UsageError
from stepmark.models.spec import SPEC_FILE
from stepmark.store import LOCK_FILE, atomic_write, differences, held, naming
from stepmark.training.parallel import ProcessGroup
from stepmark.training.report import CARD_FILE
from stepmark.training.saving import TRAIN_FILE

RUN_FILE, HISTORY_FILE, CHECKPOINT = "run.json", "history.jsonl", "checkpoint"
"""What the run is; the figures of every step, or of every update of a policy; the folder in which a checkpoint is made."""
WRITTEN = (TRAIN_FILE, SPEC_FILE, CARD_FILE, HISTORY_FILE)
"""What every finished checkpoint holds beside its weights."""
_WHOLE, _PARTS = "state.pt", "parts.json"
_IN_PROGRESS = re.compile(
    rf"{re.escape(LOCK_FILE)}|run\.json|history\.(jsonl|part)|state(-\d+-\d+)?\.(pt|part)|parts\.json|\.?{CHECKPOINT}(-.+)?|\..+\.tmp"
)
"""What lies in the folder of a run in progress."""


def is_saved(folder: Path) -> bool:
    """Whether a state lies there."""
    return any((folder / name).is_file() for name in (_WHOLE, _PARTS))


def check_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Refuse a state that another run left: `run` is what this one is, or those entries that are known already."""
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
    folder: Path, state: Mapping[str, Any], workers: ProcessGroup, *, run: Mapping[str, Any], parts: bool
) -> None:
    """Save a state; all processes call this.

    Args:
        state: tensors and plain values; `done` is the number of steps.
        run: everything that decides the result, as plain data (`recipe.record_of`).
        parts: whether each process has a state of its own; else the first one's is everyone's.
    """
    if workers.first and not is_saved(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_run(folder / RUN_FILE, run)
    if not parts:
        if workers.first:
            write_tensors(folder / _WHOLE, state)
        return
    current = folder / f"state-{state['done']}-{workers.rank}.pt"
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(current, state)
    workers.wait()
    if workers.first:
        write_run(folder / _PARTS, {"done": state["done"], "processes": workers.size})
    workers.wait()
    for old in folder.glob(f"state-*-{workers.rank}.pt"):
        if old != current:
            old.unlink()


def load(
    folder: Path, workers: ProcessGroup, *, run: Mapping[str, Any], parts: bool, device: str
) -> dict[str, Any] | None:
    """The saved state of this run; None where there is none. One of another run, or of another number of processes, is refused."""
    if not is_saved(folder):
        return None
    check_run(folder, run)
    file = folder / _WHOLE
    if parts:
        saved = json.loads((folder / _PARTS).read_text(encoding="utf-8"))
        if saved["processes"] != workers.size:
            raise UsageError(
                f"{folder} holds the state of a run of {saved['processes']} processes, and these are {workers.size}: with `shard` each "
                f"continues with its own part. Start {saved['processes']}, or delete the folder to start again"
            )
        file = folder / f"state-{saved['done']}-{workers.rank}.pt"
    state: dict[str, Any] = torch.load(file, weights_only=True, map_location=device)
    return state


def write_run(file: Path, run: Mapping[str, Any]) -> None:
    """Write plain data as a JSON file, whole or not at all."""
    with atomic_write(file) as handle:
        json.dump(run, handle, ensure_ascii=False, indent=2)
        handle.write("\n")


def write_tensors(file: Path, state: Mapping[str, Any]) -> None:
    """Write tensors and plain values with `torch.save`, whole or not at all."""
    temporary = file.with_suffix(".part")
    try:
        # Through a file of Python's: torch's own writer does not say what the system refused.
        with naming(temporary), temporary.open("wb") as handle:
            torch.save(dict(state), handle)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(file)


@final
class LogLines:
    """JSON lines in order of a number. A resumed run continues the file; what is done again replaces its lines."""

    def __init__(self, file: Path, key: str = "update") -> None:
        self.file, self._key = file, key
        file.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = read_lines(file)
        self._clean = False  # a kill may have left half a line

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a line; those of its number and of later ones go."""
        self.keep(int(row[self._key]) - 1)
        self.rows.append(dict(row))
        with naming(self.file), self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")

    def keep(self, last: int) -> None:
        """Drop the lines of numbers after `last`."""
        rows = [row for row in self.rows if row[self._key] <= last]
        if self._clean and len(rows) == len(self.rows):
            return
        self.rows, self._clean = rows, True
        temporary = self.file.with_suffix(".part")
        with naming(self.file):
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.file)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a file; a last one that was cut off by a kill is left out, and a file that is not there has none."""
    if not file.is_file():
        return []
    # Bytes: a kill may cut a character in two.
    rows, lines = [], file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line.decode()))
        except ValueError as error:
            if any(map(bytes.strip, lines[number:])):
                raise InputError(
                    f"not JSON: {error}; expected a line that a run wrote", where=f"{file}:{number}"
                ) from None
            break
    return rows


@contextmanager
def workplace(state: Path) -> Iterator[None]:
    """The folder of a run in progress, held; what is of no use to the next run goes. A folder of something else is refused."""
    with held(state):
        others = sorted(item.name for item in state.iterdir() if not _IN_PROGRESS.fullmatch(item.name))
        if others:
            raise UsageError(
                f"{state} is where the run would keep its state, and holds {others[0]}, which no run wrote; move it, or choose another `out`"
            )
        try:
            yield
        finally:
            if state.is_dir() and not is_saved(state):
                for item in state.iterdir():
                    if item.is_file() and item.name != LOCK_FILE:
                        item.unlink()


def finished_notes(out: Path) -> dict[str, Any]:
    """The `train.json` of a finished run; a folder of something else is refused."""
    with suppress(OSError, ValueError):
        notes = json.loads((out / TRAIN_FILE).read_text(encoding="utf-8"))
        if isinstance(notes, dict) and "base_fingerprint" in notes:
            return notes
    raise UsageError(f"{out} exists; delete it or choose another `out`")


def refuse_another(out: Path, notes: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Refuse a finished checkpoint of another run, with what differs."""
    changed = differences({name: notes.get(name) for name in record}, json.loads(json.dumps(record)))
    if changed:
        raise UsageError(
            f"{out} exists and was trained otherwise: {'; '.join(changed)}. Delete it or choose another `out`"
        )


def drop_state(state: Path) -> None:
    """Remove the folder of a run that is finished: its state first, so that a kill meanwhile leaves none that nothing describes."""
    for name in (_WHOLE, _PARTS):
        (state / name).unlink(missing_ok=True)
    shutil.rmtree(state)
