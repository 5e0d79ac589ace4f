"""The record that every reader gives and every writer takes: a labelled solution, its place, and what was lost."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from stepmark.data.columns import riding
from stepmark.data.reading import Row
from stepmark.data.steps.thoughts import Reasoning
from stepmark.errors import InputError
from stepmark.records import (
    DEFAULT_AXIS,
    Judgement,
    LabelKind,
    LabelledSolution,
    Refusal,
    Solution,
    Step,
)
from stepmark.settings import settings
from stepmark.words import amount


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledRow:
    """A solution with the judgements of its steps, and what the file says beside them."""

    labelled: LabelledSolution
    where: str
    """FILE:LINE of the row that it was read from."""
    outcome: bool | None = None
    """Whether the final answer is right; None where it is not known."""
    repeated: int = 0
    """The judgements of this many first steps stand in another row of the same file too: a branch repeats those of the
    line it leaves. Use `own` to count or to train on judgements."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What else is known, as JSON; `from` is the row's first source as NAME:LINE, `format` that source's format."""
    graded: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """The row that grading wrote, with its scores; None for one that it did not write."""
    messages: Sequence[Mapping[str, Any]] | None = field(default=None, compare=False, repr=False)
    """The chat messages that it was read from; None for no conversation, and where `reasoning` leaves a part out."""

    @property
    def solution(self) -> Solution:
        """The solution alone."""
        return self.labelled.solution

    @property
    def own(self) -> LabelledSolution:
        """Without the judgements that another row has already."""
        judgements = ((),) * self.repeated + self.labelled.judgements[self.repeated :]
        return replace(self.labelled, judgements=judgements)

    def on_axis(self, axis: str) -> LabelledRow:
        """The row with the judgements on one axis alone."""
        labelled = self.labelled.on_axis(axis)
        return self if labelled is self.labelled else replace(self, labelled=labelled)

    @property
    def origin(self) -> str:
        """Where it was first read, as NAME:LINE."""
        source = self.meta.get("from")
        return source if isinstance(source, str) else Path(self.where).name


class Counts:
    """What a conversion read, wrote and left out."""

    def __init__(self) -> None:
        self.formats: dict[str, None] = {}
        """The formats that were read, in their order."""
        self.read = 0
        """Labelled solutions that were read."""
        self.written = 0
        """Rows that were made of them."""
        self.zeros: dict[str, str] = {}
        """What a label of 0 means in the file that is read ("neutral", "wrong"), and the first row that says so."""
        self._dropped: dict[str, tuple[int, str]] = {}

    def drop(self, why: str, where: str) -> None:
        """Count a row that is not in the output."""
        before, first = self._dropped.get(why, (0, where))
        self._dropped[why] = (before + 1, first)

    @property
    def dropped(self) -> int:
        """Rows that are not in the output."""
        return sum(count for count, _ in self._dropped.values())

    def facts(self) -> dict[str, Any]:
        """Counts and reasons, for a manifest."""
        return {
            "read": self.read,
            "dropped": {why: count for why, (count, _) in self._dropped.items()},
        }

    def lines(self) -> list[str]:
        """The same for people, a line a reason."""
        lines = [f"{amount(self.written, 'row')} written of {amount(self.read, 'labelled solution')} read"]
        lines += [f"dropped: {count:,} x {why} (first: {at})" for why, (count, at) in self._dropped.items()]
        return lines


@settings
class ReaderSettings:
    """Settings of readers; each format uses those that it needs."""

    how: str = "auto"
    """How a text that is not cut into steps is cut (`stepmark split`)."""
    marker: str | None = None
    """The separator, when `how` is "marker"."""
    reasoning: Reasoning = "keep"
    """What becomes of thoughts (`data.steps.thoughts`)."""
    items: str | None = None
    """The data file that Potato showed to its annotators: its own files hold no text."""
    zero: Literal["neutral", "unjudged"] | None = None
    """What a 0 means in Potato's per_step mode, or in TRL's labels of -1, 0 and 1, where the file does not tell."""
    quality_control: bool = False
    """Keep PRM800K's screening and quality-control questions, which every labeller was served."""


@settings
class Writing:
    """Settings of writers: how several judgements of a step become the one label that most formats hold."""

    judge: str | None = None
    """Whose judgements count: a judge's name, or the part of it before ":" ("human" takes "human:ann")."""
    kind: Literal["correctness", "value"] | None = None
    """Which judgements count. None: conclusions about correctness where a row has any, else values."""
    axis: str = DEFAULT_AXIS
    """Which axis is written, where a format holds one label a step."""
    consensus: Literal["agree", "majority"] | None = None
    """How several judges decide: `agree`: all the same; `majority`: more than half the same. Else the step is unjudged."""
    neutral: Literal["positive", "negative", "drop"] | None = None
    """What a neutral rating becomes where a format has only right and wrong; `drop` leaves its step unjudged."""
    hard: Annotated[float, Field(ge=0, lt=1)] | Literal["any"] | None = None
    """A share of successful rollouts above this number, in [0, 1), becomes right, another wrong; "any" is 0."""

    @property
    def above(self) -> float | None:
        """`hard` as a number."""
        return 0.0 if self.hard == "any" else self.hard


class NotRepresentableError(InputError):
    """A row that a format cannot hold; the conversion leaves it out and says why."""


Item = LabelledRow | Refusal
Reader = Callable[[Row, ReaderSettings, Counts], Iterator[LabelledRow]]
"""Reads one row of a file; raises `InputError`, with the field, for one that is not of its format."""
Writer = Callable[[LabelledRow, Writing], Iterator[dict[str, Any]]]
"""Writes one solution; raises `NotRepresentableError` for one that it cannot, and `InputError` where a setting of `Writing` is needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format of files: how a row of it is recognised, read and written."""

    name: str
    about: str
    """What it is, in one line."""
    sniff: Callable[[Mapping[str, Any]], bool]
    """Whether a row is of it."""
    read: Reader
    write: Writer | None = None
    """None for a format that is only read."""
    over: tuple[str, ...] = ()
    """Formats whose keys its rows have too: a row that may be of both is of this one."""


T = TypeVar("T")


def declared(kind: type[T], package: str, base: str) -> dict[str, T]:
    """What the modules of a package but `base` declare, by name: a module has the fields of `kind` as names, functions as they are and constants
    in capitals; its `name` is the file's, with dashes, where it says none."""
    result: dict[str, T] = {}
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if info.name != base:
            module = importlib.import_module(f"{package}.{info.name}")
            values = {"name": info.name.replace("_", "-")}
            for name in kind.__annotations__:
                value = getattr(module, name, getattr(module, name.upper(), None))
                values |= {} if value is None else {name: value}
            result[values["name"]] = kind(**values)
    return result


def has(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a row has all of these keys."""
    return lambda data: all(key in data for key in keys)


# --- meta and fields ------------------------------------------------------------------------------------------

_OURS = {"from": (), "format": (), "kind": (), "record": (), "judge": (str,), "outcome": (bool,)}
"""The names in `meta` that are ours, and the types that a column of that name may have to be taken as it."""

RECORD_FIELDS = ("id", "answer", "source", "problem_id", "problem_source")
"""What a solution may say beside its texts; rows of `solutions` and `trl` have places for all of it."""


def origin(row: Row, format: str, columns: Mapping[str, Any], **known: Any) -> dict[str, Any]:
    """The `meta` of a row that was read: where it came from, what the reader knows, the row's own `meta` (whose `from` stays), and the columns
    that mean nothing here."""
    given = row.data.get("meta")
    meta = {"from": row.place, "format": format, **known, **(given if isinstance(given, Mapping) else {})}
    return with_columns(meta, columns)


def with_columns(meta: dict[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """`meta` with columns added; one whose name is taken is put under "column.NAME"."""
    for name, value in columns.items():
        occupied = name in meta and meta[name] != value
        free = not occupied and (name not in _OURS or isinstance(value, _OURS[name]))
        meta[name if free else f"column.{name}"] = value
    return meta


def other_columns(row: Row, keys: Iterable[str]) -> dict[str, Any]:
    """The columns of a row that its format does not know."""
    return riding(row.data, {*keys, "meta"})


def solution_fields(solution: Solution) -> dict[str, str]:
    """`RECORD_FIELDS`, where they are known."""
    problem = solution.problem
    values = (solution.id, problem.answer, solution.source, problem.id, problem.source)
    return {name: value for name, value in zip(RECORD_FIELDS, values, strict=True) if value is not None}


def written_meta(
    row: LabelledRow, judge: str | None = None, kind: str | None = None, *, held: Collection[str]
) -> dict[str, Any]:
    """The `meta` of a written row: `from`, `judge`, `kind` and `outcome` (null where it is not known), then the rest.

    The `RECORD_FIELDS` that the format does not hold stand under `record` (see `labelled`).
    """
    record = {name: value for name, value in solution_fields(row.solution).items() if name not in held}
    return {
        "from": row.origin,
        "judge": judge,
        "kind": kind,
        "outcome": row.outcome,
        **({"record": record} if record else {}),
        **{name: value for name, value in row.meta.items() if name not in _OURS},
    }


def labelled(
    row: Row,
    solution: Solution,
    judgements: Sequence[tuple[Judgement, ...]],
    meta: dict[str, Any],
    outcome: bool | None = None,
) -> LabelledRow:
    """A labelled solution that was read. The outcome that `written_meta` put into `meta` is taken over, and the fields under `record` are taken out."""
    record = meta.get("record")
    if isinstance(record, dict) and all(
        name in RECORD_FIELDS and isinstance(value, str) for name, value in record.items()
    ):
        del meta["record"]
        fields = {**solution_fields(solution), **record}
        problem = replace(
            solution.problem,
            id=fields.get("problem_id"),
            answer=fields.get("answer"),
            source=fields.get("problem_source"),
        )
        solution = replace(solution, problem=problem, id=fields.get("id"), source=fields.get("source"))
    return LabelledRow(
        labelled=LabelledSolution(solution=solution, judgements=tuple(judgements)),
        where=row.where,
        outcome=outcome_of(meta) if "outcome" in meta else outcome,
        meta=meta,
    )


def outcome_of(meta: Mapping[str, Any]) -> bool | None:
    """The outcome that `written_meta` wrote."""
    outcome = meta.get("outcome")
    return outcome if isinstance(outcome, bool) else None


def judge_and_kind(meta: Mapping[str, Any], judge: str, kind: LabelKind) -> tuple[str, LabelKind]:
    """Who judged what, as a row's `meta` says, else as its format does."""
    known = meta.get("judge")
    kinds: dict[object, LabelKind] = {"correctness": "correctness", "value": "value"}
    return (known if isinstance(known, str) and known else judge), kinds.get(meta.get("kind"), kind)


def signed(signs: Iterable[bool], judge: str, kind: LabelKind) -> tuple[tuple[Judgement, ...], ...]:
    """One judgement a step: right or wrong."""
    return tuple((Judgement(kind=kind, judge=judge, rating=1 if sign else -1),) for sign in signs)


def _whole(value: Any) -> Any:
    # A literal type compares with ==, so that JSON's `true` and `1.0` would pass as 1.
    if type(value) is not int:
        raise ValueError("Input should be -1, 0 or 1")
    return value


Rating = Annotated[Literal[-1, 0, 1], BeforeValidator(_whole)]
"""A rating in a file or a request."""

UNKNOWN = "unknown"
"""What is written where a format wants a word that is not known; it is read as None."""

# --- conversations and texts ----------------------------------------------------------------------------------------------------


def messages_of(row: LabelledRow) -> Sequence[Mapping[str, Any]]:
    """The messages of a row that was read as a conversation.

    Raises:
        NotRepresentableError: it was not.
    """
    if row.messages is None:
        raise NotRepresentableError(
            "expected a conversation, whole (`reasoning` keep); found a solution without its messages"
        )
    return row.messages


def need(row: Row, keys: Sequence[str], shape: str) -> None:
    """Refuse a row without these keys; the error names the first that is missing."""
    missing = [key for key in keys if key not in row.data]
    if missing:
        raise row.error(
            f"expected a row of {shape} with {', '.join(keys)}, found no {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, row.data))}",
            missing[0],
        )


STEP_NUMBER = re.compile(r"\s*step\s+\d+\s*:\s*", re.I)
FIRST_STEP = re.compile(r"(?<!\S)step\s+1\s*:", re.I)


def steps_of(row: Row, pieces: Iterable[str], field: str, marker: str = "") -> tuple[Step, ...]:
    """Pieces of a text as steps: white space, a number before it ("Step 3:") and the marker after it are layout.

    Raises:
        InputError: a piece without text.
    """
    steps = []
    for number, piece in enumerate(pieces):
        match = STEP_NUMBER.match(piece)
        start = len(piece) - len(piece.lstrip()) if match is None else match.end()
        text = piece[start:].rstrip()
        if not text:
            raise row.error(f"step {number} (0-based) is blank", field)
        steps.append(Step(text=text, lead=piece[:start], tail=piece[start + len(text) :] + marker))
    return tuple(steps)


def numbered(texts: Iterable[str]) -> list[str]:
    """Steps with their numbers before them, "Step 1: …", unless they have them already."""
    return [
        text if re.match(rf"\s*step\s+{number}\s*:", text, re.I) else f"Step {number}: {text}"
        for number, text in enumerate(texts, start=1)
    ]


# --- one label a step, by rules that the caller chose: what the format cannot hold is an error that names the setting which decides ---

WRITTEN = "written by the labeller, not rated"
"""The note of a judgement of a step that a labeller of PRM800K wrote: taken for right, and from no model's distribution."""

Labels = Sequence[Judgement | None]
"""One a step, with a rating or a share, never both; None for a step without a label."""


def labels_of(row: LabelledRow, settings: Writing, *, neutral: bool = True, shares: bool = True) -> Labels:
    """One label a step, None where there is none.

    Of one judge, rollouts are pooled; two different ratings, or shares of unknown numbers of rollouts, leave a step unjudged.

    Args:
        row: a labelled solution.
        settings: how several judgements become one.
        neutral: whether the format has a word for a rating of 0.
        shares: whether the format has a place for the share of rollouts.

    Raises:
        InputError: judgements of several judges, with neither `judge` nor `consensus`; a rating or a share that the format does not hold,
            with no `neutral` or `hard`.
    """
    steps = [[j for j in step if _counts(j, settings)] for step in row.labelled.judgements]
    judges = list(dict.fromkeys(j.judge for step in steps for j in step))
    if len(judges) > 1 and settings.consensus is None:
        raise InputError(
            f"the steps have judgements of {amount(len(judges), 'judge')} ({', '.join(judges)}) and this format holds one label a "
            "step: choose one with `judge`, or set how they decide together with `consensus` agree or majority",
            where=row.where,
        )
    if settings.kind is None and any(j.kind == "correctness" for step in steps for j in step):
        steps = [[j for j in step if j.kind == "correctness"] for step in steps]
    labels = [_label(step, settings, row) for step in steps]
    for step, label in enumerate(labels):
        if label is not None and label.rating is None and not shares:
            raise InputError(
                f"step {step} (0-based) has the share {label.share:g} of successful rollouts, and this format holds hard "
                "labels: set with `hard` above which share a step is right (a number, or any)",
                where=row.where,
            )
        if label is not None and label.rating == 0 and not neutral:
            if settings.neutral is None:
                raise InputError(
                    f"step {step} (0-based) is rated neutral, and this format knows only right and wrong: set what it becomes "
                    "with `neutral` positive, negative or drop",
                    where=row.where,
                )
            rated = replace(label, rating=1 if settings.neutral == "positive" else -1)
            labels[step] = None if settings.neutral == "drop" else rated
    return labels


def _counts(judgement: Judgement, settings: Writing) -> bool:
    judged = bool(judgement.trials) or judgement.share is not None or judgement.rating is not None
    judge = settings.judge in (None, judgement.judge, judgement.judge.partition(":")[0])
    return judged and judge and settings.kind in (None, judgement.kind)


def _label(judgements: Sequence[Judgement], settings: Writing, row: LabelledRow) -> Judgement | None:
    by_judge: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        by_judge.setdefault(judgement.judge, []).append(judgement)
    labels = [label for own in by_judge.values() if (label := _of_one_judge(own, settings)) is not None]
    if len(labels) <= 1:
        return labels[0] if labels else None
    if any(label.rating is None for label in labels):
        raise InputError(
            "several judges, and one of them gives a share of rollouts: set with `hard` above which share a step is right",
            where=row.where,
        )
    rating, count = Counter(label.rating for label in labels).most_common(1)[0]
    if count == len(labels) or (settings.consensus == "majority" and 2 * count > len(labels)):
        return Judgement(kind=labels[0].kind, judge=f"consensus:{settings.consensus}", rating=rating)
    return None


def _of_one_judge(own: Sequence[Judgement], settings: Writing) -> Judgement | None:
    label = Judgement(kind=own[0].kind, judge=own[0].judge)
    if ratings := {j.rating for j in own if j.rating is not None}:
        note = next((j.note for j in own if j.note), None)
        return replace(label, rating=ratings.pop(), note=note) if len(ratings) == 1 else None
    shares = {j.share for j in own if not j.trials and j.share is not None}
    if trials := sum(j.trials or 0 for j in own):
        shares.add(sum(j.successes or 0 for j in own if j.trials) / trials)
    above = settings.above
    if above is None:
        return replace(label, share=shares.pop()) if len(shares) == 1 else None
    sides = {share > above for share in shares}
    # "any": one success is enough, however many estimates there are.
    return None if len(sides) > 1 and above > 0 else replace(label, rating=1 if True in sides else -1)


def until_unjudged(labels: Labels, row: LabelledRow, format: str) -> list[Judgement]:
    """The labels before the first step without one; `NotRepresentableError` where none is left that another row has not."""
    first = next((step for step, label in enumerate(labels) if label is None), len(labels))
    if not first:
        raise NotRepresentableError(f"the first step was not judged, and {format} has no word for that")
    if first <= row.repeated:
        raise NotRepresentableError(
            f"a branch was cut before the step that it adds, by a step that was not judged ({format} has no word for that)"
        )
    return [label for label in labels[:first] if label is not None]
