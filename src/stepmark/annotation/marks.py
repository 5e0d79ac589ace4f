"""What one annotator says of one item: a log of changes, folded.

The log is the truth. A `Change` is one click or key; `Folding` plays the log from the start and gives the `Marks`. `undo` takes back the
newest change that still holds, `redo` gives back the one undone last; both are entries of the log themselves, so that nothing that
was ever acknowledged is lost.

Modes, as in Potato's `process_reward` and PRM800K's interface:

- `first_error`: one step is the first wrong one, or there is none. Steps before it are right, later ones are *not judged*.
- `per_step`: each step has +1, 0 (where the project allows neutral) or -1, or is unmarked.

The state is five maps and a flag: `first_error` {null: k}, `rating` {step: r}, `unsure` {step or null: true}, `note` {step or null: text},
`error_type` {step: name}; `submitted`. What a map has no key for is not said. Two stacks hold *patches*, `done` and `undone`; a patch is the list of entries (map, key, value before, value after) that a change altered, absence being null.

A change is refused, and alters nothing, when a field that its kind does not use is not null, when a field that it needs is null or out
of range, or by the rule of its kind. Fields in brackets may be null:

============  ====================  ==========================================================================================
kind          fields                what it does
============  ====================  ==========================================================================================
first_error   [step]                Mode `first_error` only. -1 <= step < steps, or null. Sets or removes the first error; every error
                                    type of another step is removed.
rate          step [rating]         Mode `per_step` only. Rating -1, 0 (only with allow_neutral), 1, or null to unmark. A rating other
                                    than -1 removes the step's error type.
unsure        [step] on             Sets (true) or removes (false); step null is the whole item.
note          [step] [text]         Sets; null or "" removes.
error_type    step [text]           Sets; null or "" removes. Setting is refused unless the step is wrong now: it is the first error, or
                                    its rating is -1.
reset                               Empties all five maps.
submit                              Refused while the marks are not complete (below).
reopen                              Refused unless submitted.
undo                                Refused when `done` is empty. Moves its top to `undone` and puts every value before back.
redo                                Refused when `undone` is empty. Moves its top to `done` and puts every value after back.
============  ====================  ==========================================================================================

While submitted, every kind but `reopen` is refused. `submit` and `reopen` set the flag and leave the stacks alone: no undo takes them
back. Any other kind but `undo` and `redo`: if it alters nothing (its patch is empty) the stacks stay as they are; otherwise the patch
goes on `done` and `undone` is emptied.

*Complete* is an item that is unsure as a whole (`unsure` has null); in mode `first_error`, one whose first error is marked; in mode
`per_step`, one where each step is rated, or is unsure, or comes after a step that is rated -1.

`Marks.ratings` in mode `first_error` follow from the first error k: +1 before k, -1 at k, null after; all +1 for -1; all null while nothing
is marked.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from stepmark.data.formats.rows import Rating
from stepmark.errors import InputError
from stepmark.metrics.first_error import first_wrong

Mode = Literal["first_error", "per_step"]


NO_ERROR = -1
"""`first_error` of a solution without one, as everywhere in stepmark."""

ChangeKind = Literal[
    "first_error",
    "rate",
    "unsure",
    "note",
    "error_type",
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
    """`note`: the note, None or "" to remove it. `error_type`: its name in the project's taxonomy, None or "" to remove it."""
    on: bool | None = None
    """`unsure` only: set or cleared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """What an annotator says of an item now."""

    mode: Mode
    steps: int
    """How many steps the item has."""
    first_error: int | None = None
    """Mode `first_error`: 0-based, -1 for no error, None while nothing is marked. Always None in mode `per_step`."""
    ratings: tuple[Rating | None, ...] = ()
    """One a step: +1, 0, -1; None is not judged. In mode `first_error` they follow from `first_error`."""
    unsure: frozenset[int | None] = frozenset()
    """Steps that the annotator is unsure of; None among them: unsure of the whole item."""
    notes: tuple[tuple[int | None, str], ...] = ()
    """(step or None, text), by step, the item's own first."""
    error_types: tuple[tuple[int, str], ...] = ()
    """(step, name in the taxonomy), by step."""
    submitted: bool = False
    """The annotator is done with the item. A later change of marks needs `reopen` first."""

    @property
    def missing(self) -> tuple[int | None, str] | None:
        """What is missing before the item may be submitted: the step (None: no step by itself) and a sentence; None when nothing is."""
        if None in self.unsure:
            return None
        if self.mode == "first_error":
            if self.first_error is not None:
                return None
            return (
                None,
                "mark the first wrong step, or that there is none, or that you are unsure of the whole",
            )
        for step, rating in enumerate(self.ratings):
            if rating == -1:
                return None
            if rating is None and step not in self.unsure:
                return step, f"step {step + 1} is neither rated nor marked as unsure"
        return None

    @property
    def first_wrong(self) -> int | None:
        """The first wrong step in either mode: 0-based, -1 for none, None when it cannot be known.

        In mode `per_step` it is the first step rated -1; a step without a rating before it, or without any -1 an unrated step anywhere,
        leaves it unknown.
        """
        if self.mode == "first_error":
            return self.first_error
        return first_wrong(self.ratings)


def ratings_of(first_error: int | None, steps: int) -> tuple[Rating | None, ...]:
    """The ratings that a first error stands for: +1 before it, -1 at it, None (not judged) after it."""
    if first_error is None:
        return (None,) * steps
    right: tuple[Rating | None, ...] = (1,)
    if first_error == NO_ERROR:
        return right * steps
    return (*right * first_error, -1, *(None,) * (steps - first_error - 1))


_Part = Literal["first_error", "rating", "unsure", "note", "error_type"]
_Entry = tuple[_Part, int | None, Any, Any]
_PARTS: tuple[_Part, ...] = get_args(_Part)
_USES = {
    "first_error": ("step",),
    "rate": ("step", "rating"),
    "unsure": ("step", "on"),
    "note": ("step", "text"),
    "error_type": ("step", "text"),
}


class Folding:
    """A log being folded: take one change at a time, ask for the marks at any point.

    `take` costs what the change alters, never the length of the log; a refused change alters nothing. A server that could not write a taken
    change to disk discards the object and folds the log again.
    """

    def __init__(self, mode: Mode, steps: int, *, allow_neutral: bool = False) -> None:
        self.mode: Mode = mode
        self.steps = steps
        self.allow_neutral = allow_neutral
        self.version = 0
        """How many changes were taken: undo, redo, submit and reopen count as well."""
        self.submitted = False
        self._maps: dict[_Part, dict[int | None, Any]] = {part: {} for part in _PARTS}
        self._done: list[list[_Entry]] = []
        self._undone: list[list[_Entry]] = []

    @property
    def can_undo(self) -> bool:
        """Whether there is a change to undo."""
        return bool(self._done)

    @property
    def can_redo(self) -> bool:
        """Whether there is a change to redo."""
        return bool(self._undone)

    def take(self, change: Change) -> None:
        """Play one change.

        Raises:
            InputError: the change cannot be here; `field` names what is wrong with it, `where` its place in the log (counted from 1).
        """
        try:
            self._take(change)
        except InputError as error:
            raise error.at(f"change {self.version + 1} ({change.kind})") from None
        self.version += 1

    def marks(self) -> Marks:
        """What the log amounts to now."""
        maps = self._maps
        first_error: int | None = maps["first_error"].get(None)
        return Marks(
            mode=self.mode,
            steps=self.steps,
            first_error=first_error,
            ratings=ratings_of(first_error, self.steps)
            if self.mode == "first_error"
            else tuple(map(maps["rating"].get, range(self.steps))),
            unsure=frozenset(maps["unsure"]),
            notes=tuple(sorted(maps["note"].items(), key=lambda note: item_first(note[0]))),
            error_types=tuple(sorted(maps["error_type"].items())),  # type: ignore[arg-type]
            submitted=self.submitted,
        )

    def _take(self, change: Change) -> None:
        kind = change.kind
        for name in ("step", "rating", "text", "on"):
            if getattr(change, name) is not None and name not in _USES.get(kind, ()):
                raise InputError(f"a change of the kind {kind!r} has no {name!r}: leave it out", field=name)
        if self.submitted != (kind == "reopen"):
            problem = "is submitted: reopen it to change it" if self.submitted else "is not submitted"
            raise InputError(f"the item {problem}", field="kind")
        match kind:
            case "submit":
                if (missing := self.marks().missing) is not None:
                    raise InputError(missing[1], field="kind")
                self.submitted = True
            case "reopen":
                self.submitted = False
            case "undo":
                if not self._done:
                    raise InputError("there is no change left to undo", field="kind")
                self._undone.append(self._done.pop())
                for part, key, before, _ in self._undone[-1]:
                    self._put(part, key, before)
            case "redo":
                if not self._undone:
                    raise InputError("there is no change to redo: redo follows undo", field="kind")
                self._done.append(self._undone.pop())
                for part, key, _, after in self._done[-1]:
                    self._put(part, key, after)
            case _:
                values = self._values(change)
                patch = [
                    (part, key, before, after)
                    for part, key, after in values
                    if (before := self._maps[part].get(key)) != after
                ]
                for part, key, _, after in patch:
                    self._put(part, key, after)
                if patch:
                    self._done.append(patch)
                    self._undone.clear()

    def _put(self, part: _Part, key: int | None, value: Any) -> None:
        if value is None:
            self._maps[part].pop(key, None)
        else:
            self._maps[part][key] = value

    def _values(self, change: Change) -> list[tuple[_Part, int | None, Any]]:
        """The values that the change sets: (map, key, value), None for absence; each (map, key) at most once."""
        step, on = change.step, change.on
        match change.kind:
            case "first_error":
                self._check_mode("first_error", "rate")
                if step is not None and not NO_ERROR <= step < self.steps:
                    raise InputError(
                        f"expected -1 (no error) or a step from 0 to {self.steps - 1}, found {step}",
                        field="step",
                    )
                values: list[tuple[_Part, int | None, Any]] = [("first_error", None, step)]
                values += [("error_type", key, None) for key in self._maps["error_type"] if key != step]
                return values
            case "rate":
                self._check_mode("per_step", "first_error")
                step = self._checked(step)
                if change.rating == 0 and not self.allow_neutral:
                    raise InputError(
                        "expected 1, -1 or null, found 0: this project does not allow neutral ratings",
                        field="rating",
                    )
                values = [("rating", step, change.rating)]
                if change.rating != -1:
                    values.append(("error_type", step, None))
                return values
            case "unsure":
                return [("unsure", None if step is None else self._checked(step), self._flag(on))]
            case "note":
                return [("note", None if step is None else self._checked(step), change.text or None)]
            case "error_type":
                step = self._checked(step)
                wrong = self._maps["first_error"].get(None) == step or self._maps["rating"].get(step) == -1
                if change.text and not wrong:
                    raise InputError(
                        f"step {step + 1} is not marked as wrong, so its error has no type", field="step"
                    )
                return [("error_type", step, change.text or None)]
            case _:  # reset
                return [(part, key, None) for part in _PARTS for key in self._maps[part]]

    def _check_mode(self, mode: Mode, other: str) -> None:
        if self.mode != mode:
            raise InputError(
                f"this project's mode is {self.mode!r}: expected a change of the kind {other!r}", field="kind"
            )

    def _checked(self, step: int | None) -> int:
        if step is None or not 0 <= step < self.steps:
            raise InputError(f"expected a step from 0 to {self.steps - 1}, found {step}", field="step")
        return step

    def _flag(self, on: bool | None) -> bool | None:
        if on is None:
            raise InputError("expected true or false, found null", field="on")
        return on or None


def item_first(key: int | None) -> int:
    """Sorts steps with the item's own entry (None) before them."""
    return -1 if key is None else key


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatorMarks:
    """One annotator's marks on one item."""

    item: str
    account: str
    """The annotator's name."""
    marks: Marks
    first_pass: Marks | None = None
    """The marks at the first `submit`, before suggestions were shown; None when there was none yet or nothing changed since."""
    seconds: float = 0.0
    """Time on the item with the page in view, as the page reports it; capped by the clock between changes."""
    at: float | None = None
    """Unix time of the last change."""

    @property
    def first_marks(self) -> Marks:
        """The marks before suggestions were shown, where there are such."""
        return self.first_pass or self.marks


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What the admin decided about an item that annotators disagree on."""

    item: str
    account: str
    """The admin's name."""
    marks: Marks
    reason: str = ""
    over: tuple[str, ...] = ()
    """The annotators whose answers were compared."""
    at: float | None = None
    """Unix time."""


def changes_of(marks: Marks) -> list[Change]:
    """Changes that give a log the ratings and error types of other marks, in the place of its own."""
    made = [Change(kind="reset")]
    if marks.mode == "first_error":
        made.append(Change(kind="first_error", step=marks.first_error))
    else:
        rated = enumerate(marks.ratings)
        made += [
            Change(kind="rate", step=step, rating=rating) for step, rating in rated if rating is not None
        ]
    return [*made, *(Change(kind="error_type", step=step, text=name) for step, name in marks.error_types)]


def change_data(change: Change) -> dict[str, Any]:
    """A change as plain data, without the fields that are null."""
    fields = ("kind", "step", "rating", "text", "on")
    return {name: value for name in fields if (value := getattr(change, name)) is not None}


def marks_data(marks: Marks) -> dict[str, Any]:
    """Marks as plain data for JSON: sets as sorted lists (the item's own first), all fields present."""
    return asdict(marks) | {
        "ratings": list(marks.ratings),
        "unsure": sorted(marks.unsure, key=item_first),
        "notes": [list(note) for note in marks.notes],
        "error_types": [list(entry) for entry in marks.error_types],
    }
