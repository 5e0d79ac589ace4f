"""Suggestions beside items: a PRM's judgements (`from_prm`), or a file of `stepmark grade` or of an evaluation's scores (`from_scores`).

Rows of such a file are joined to items by id, else by the text of the problem and the steps. A row of an item's id with other steps is refused: its
scores are of another solution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from stepmark.annotation.items import Item, Suggestions, score_row, suggestions_of_scores
from stepmark.data.columns import columns_of
from stepmark.data.reading import Row, read_rows
from stepmark.errors import InputError
from stepmark.models.prm import PRM
from stepmark.records import GradedSolution, ScoreKind
from stepmark.show.text import amount


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested:
    """Items with suggestions, and those for which there are none."""

    items: tuple[Item, ...]
    """All of them, in their order; `suggestions` replaced, except of those in `without`, which are as they were."""
    without: tuple[tuple[str, str], ...]
    """(item, why): no row in the file, refused by the PRM."""


def suggest(items: Sequence[Item], source: str | Path, *, threshold: float | None = None) -> Suggested:
    """From a file of scores, where `source` is one, else from a PRM of that name.

    Raises:
        StepmarkError: as `from_scores` and `from_prm` do.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return from_scores(items, path, threshold=threshold)
    return from_prm(items, str(source), threshold=threshold)


def from_prm(items: Sequence[Item], prm: PRM | str, *, threshold: float | None = None) -> Suggested:
    """Grade all items: each step gets a rating by the PRM's threshold (or `threshold`), and its score where that is a probability.

    Items of one problem are cheapest when they stand together. A PRM by name needs the extra `local`.

    Raises:
        UsageError, CheckpointError, MissingExtraError, BackendError: as loading and grading do.
        InputError: the PRM could read none of the items.
    """
    from stepmark.models.prm import Grade, grade

    if isinstance(prm, str):
        from stepmark.models.load import load_prm

        prm = load_prm(prm)
    suggestions: dict[str, Suggestions] = {}
    refused: dict[str, str] = {}
    settings = Grade(threshold=threshold).of(prm)
    results = grade((item.solution for item in items), prm, settings, keep_going=True)
    for item, result in zip(items, results, strict=True):
        if isinstance(result, GradedSolution):
            suggestions[item.id] = suggestions_of_scores(prm.name, result.step_scores, settings.threshold)
        else:
            refused[item.id] = result.error.message
    if not suggestions:
        why = "".join(f", the first because: {reason}" for reason in [*refused.values()][:1])
        raise InputError(f"{prm.name} can read no item (of {len(items):,}){why}")
    return _suggested(items, suggestions, refused, "")


def from_scores(items: Sequence[Item], path: str | Path, *, threshold: float | None = None) -> Suggested:
    """Read a file of `stepmark grade`, or rows `{"id", "scores": […]}` with optional `prm`, `threshold`, `score_kind`, `critiques`.

    Raises:
        InputError: with `FILE:LINE`: a row of an item with other steps or another number of scores, a score out of range, two rows of one
            item that differ, rows of several PRMs, no row of any item.
    """
    # A solution's own id may differ from the item's, which is unique in the project.
    by_id = {item.solution.id: item for item in reversed(items)} | {item.id: item for item in items}
    by_text: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        by_text.setdefault(_text_key(item.solution.problem.text, item.solution.texts), []).append(item)
    suggestions: dict[str, Suggestions] = {}
    refused: dict[str, str] = {}
    places: dict[str, str] = {}
    heads: dict[tuple[str, float | None, ScoreKind], str] = {}
    count = 0
    for row in read_rows(path):
        count += 1
        for item in _items_of(row, by_id, by_text):
            if row.data.get("scores") is None and isinstance(row.data.get("refused"), str):
                refused.setdefault(item.id, row.data["refused"])
                continue
            given = score_row(row, len(item.solution.steps))
            heads.setdefault((given.prm, given.threshold, given.score_kind), row.where)
            if len(heads) > 1:
                (first, place), (other, _) = heads.items()
                message = (
                    f"expected scores of one PRM, with one threshold: {place} has {first}, here are {other}"
                )
                raise InputError(message, where=row.where)
            own = given.suggestions(threshold)
            if suggestions.setdefault(item.id, own) != own:
                message = (
                    f"the item {item.id!r} has other scores at {places[item.id]}: expected one row of it"
                )
                raise InputError(message, where=row.where)
            places.setdefault(item.id, row.where)
    if not suggestions:
        raise InputError(
            f"expected scores of the items ({len(items):,}), found none: the {amount(count, 'row has', 'rows have')} other ids and other texts",
            where=str(path),
        )
    return _suggested(items, suggestions, refused, f"no row in {Path(path).name}")


def _suggested(
    items: Sequence[Item], suggestions: Mapping[str, Suggestions], refused: Mapping[str, str], absent: str
) -> Suggested:
    known = (replace(i, suggestions=suggestions[i.id]) if i.id in suggestions else i for i in items)
    without = ((i.id, refused.get(i.id, absent)) for i in items if i.id not in suggestions)
    return Suggested(items=tuple(known), without=tuple(without))


def _items_of(
    row: Row, by_id: Mapping[str | None, Item], by_text: Mapping[tuple[str, ...], list[Item]]
) -> Sequence[Item]:
    """The items that a row is of: the one with its id, else all with its texts."""
    id_ = row.data.get("id", row.data.get("idx"))
    problem = next((row.data[column] for column in columns_of(row.data, "problem")), None)
    steps = row.data.get("steps", row.data.get("completions"))
    if not (isinstance(steps, list) and all(isinstance(step, str) for step in steps)):
        steps = None
    item = by_id.get(str(id_)) if isinstance(id_, str | int) and not isinstance(id_, bool) else None
    if item is not None:
        _check_texts(item, problem if isinstance(problem, str) else None, steps, row.where)
        return (item,)
    if isinstance(problem, str) and steps is not None:
        return by_text.get(_text_key(problem, steps), ())
    if id_ is None:
        raise InputError(
            "expected an id, or the problem and the steps, to know which item this row is of; found neither",
            where=row.where,
            field="id",
        )
    return ()


def _text_key(problem: str, steps: Iterable[str]) -> tuple[str, ...]:
    """The texts without white space at their ends: formats differ in what they keep of it."""
    return (problem.strip(), *(step.strip() for step in steps))


def _check_texts(item: Item, problem: str | None, steps: Sequence[str] | None, where: str) -> None:
    """Refuse a row with the item's id and another problem or other steps."""
    own = _text_key(item.solution.problem.text, item.solution.texts)
    given = _text_key(own[0] if problem is None else problem, own[1:] if steps is None else steps)
    for place, (ours, theirs) in enumerate(zip_longest(own, given)):
        if ours != theirs:
            name = f"step {place - 1} (0-based)" if place else "the problem"
            raise InputError(
                f"{name} of the item {item.id!r} is {(ours or 'absent')[:60]!r}, here it is {(theirs or 'absent')[:60]!r}: these scores are of another solution",
                where=where,
                field="steps" if place else "problem",
            )
