"""The folders of a run: the one that it works in, and the finished checkpoint that it finds."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stepmark.errors import UsageError
from stepmark.models.spec import SPEC_FILE
from stepmark.store import LOCK_FILE, differences, held
from stepmark.training.card import CARD_FILE
from stepmark.training.monitor import HISTORY_FILE
from stepmark.training.state import check_run, drop_state, is_saved
from stepmark.training.written import TRAIN_FILE

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
