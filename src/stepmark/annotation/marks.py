"""What one annotator says of one item: a log of changes, folded.

The log is the truth. A `Change` is one click or key; `fold` plays the log from the start and gives the `Marks`. `undo` takes back the
newest change that still holds, `redo` gives back the one undone last; both are entries of the log themselves, so that nothing that
was ever acknowledged is lost.  The page folds by the same rules (`web/fold.js`); a test compares the two.

Modes, as in Potato's `process_reward` and PRM800K's interface:

- `first_error`: one step is the first wrong one, or there is none. Steps before it are right, later ones are *not judged*.
- `per_step`: each step has +1, 0 (where the project allows neutral) or -1, or is unmarked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Mode = Literal["first_error", "per_step"]
Rating = Literal[-1, 0, 1]
NO_ERROR = -1
"""`first_error` of a solution without one, as everywhere in stepmark."""

ChangeKind = Literal[
    "first_error",
    "rate",
    "unsure",
    "note",
    "error_type",
    "verify",
    "reset",
    "submit",
    "reopen",
    "undo",
    "redo",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One click or key."""

    kind: ChangeKind
    step: int | None = None
    """0-based step that it is about; None for the whole item. `first_error`: the step, -1 for no error, None to take the mark away."""
    rating: Rating | None = None
    """`rate` only; None unmarks the step."""
    text: str | None = None
    """`note`: the note, None or "" to remove it. `error_type`: its name in the project's taxonomy, None to remove it."""
    on: bool | None = None
    """`unsure`: set or cleared. `verify`: the suggestion of this step was looked at and accepted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """What an annotator says of an item now."""

    mode: Mode
    steps: int
    """How many steps the item has."""
    first_error: int | None = None
    """Mode `first_error`: 0-based, -1 for no error, None while nothing is said. Always None in mode `per_step`."""
    ratings: tuple[Rating | None, ...] = ()
    """One a step: +1, 0, -1; None is not judged. In mode `first_error` they follow from `first_error`."""
    unsure: frozenset[int | None] = frozenset()
    """Steps that the annotator is unsure of; None among them: unsure of the whole item."""
    notes: tuple[tuple[int | None, str], ...] = ()
    """(step or None, text), by step, the item's own first."""
    error_types: tuple[tuple[int, str], ...] = ()
    """(step, name in the taxonomy), by step."""
    verified: frozenset[int] = frozenset()
    """Steps whose suggestion the annotator has accepted or overridden."""
    submitted: bool = False
    """The annotator is done with the item. A later change of marks needs `reopen` first."""


def fold(mode: Mode, steps: int, changes: Iterable[Change], *, allow_neutral: bool = False) -> Marks:
    """Play a log from the start.

    Raises:
        InputError: a change that cannot be: a step that the item has not, a kind of the other mode, a neutral rating that the project does not
            allow, a change after `submit`, `submit` of an incomplete item, an undo with nothing to undo. The error names the change's place.
    """
    raise NotImplementedError
