"""Pre-labels: a PRM's judgements of the items' steps, put beside them as `Suggestion`s.

From a PRM (`from_prm`), or from a file of `stepmark grade` or of an evaluation's scores (`from_scores`). Rows of a file are joined to items by id,
else by the text of the problem and the steps. A row of an item's id with other steps is refused: its scores are of another solution.
Labels by rollout, judge or people become suggestions when their file is one of the project's `items` (`reading`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stepmark.annotation.items import Item, Suggestion
from stepmark.errors import InputError
from stepmark.models.prm import PRM
from stepmark.records import ScoredSolution, StepScores, read_record
from stepmark.store import Row, json_type, read_rows
from stepmark.store.columns import columns_of

Suggestions = tuple[Suggestion | None, ...]


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
        if isinstance(result, ScoredSolution):
            suggestions[item.id] = _of_scores(prm.name, result.steps, settings.threshold)
        else:
            refused[item.id] = result.error.message
    if not suggestions:
        why = "".join(f", the first because: {reason}" for reason in [*refused.values()][:1])
        raise InputError(f"{prm.name} could read none of {len(items)} items{why}")
    return _suggested(items, suggestions, refused, "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """Whose scores a row has, and how they are read."""

    prm: str
    threshold: float | None = None
    score_kind: Literal["probability", "margin", "log-ratio", "unbounded"] = "probability"


def from_scores(items: Sequence[Item], path: str | Path, *, threshold: float | None = None) -> Suggested:
    """Read a file of `stepmark grade`, or rows `{"id", "scores": […]}` with optional `prm`, `threshold`, `score_kind`, `critiques`.

    Raises:
        InputError: with `FILE:LINE`: a row of an item with other steps or another number of scores, a score out of range, two rows of one
            item that differ, rows of several PRMs, no row of any item.
    """
    # A solution's own id may differ from the item's, which is unique in the project.
    by_id = {item.solution.id: item for item in reversed(items)} | {item.id: item for item in items}
    by_text: dict[str, list[Item]] = {}
    for item in items:
        by_text.setdefault(_text_key(item.solution.problem.text, item.solution.texts), []).append(item)
    suggestions: dict[str, Suggestions] = {}
    refused: dict[str, str] = {}
    places: dict[str, str] = {}
    heads: dict[_Facts, str] = {}
    count = 0
    for row in read_rows(path):
        count += 1
        for item in _items_of(row, by_id, by_text):
            if row.data.get("scores") is None and isinstance(row.data.get("refused"), str):
                refused.setdefault(item.id, row.data["refused"])
                continue
            facts = _facts(row)
            heads.setdefault(facts, row.where)
            if len(heads) > 1:
                (first, place), (other, _) = heads.items()
                raise InputError(
                    f"expected scores of one PRM, with one threshold: {place} has {first}, here are {other}",
                    where=row.where,
                )
            own = _of_row(row, facts, item, threshold)
            if suggestions.setdefault(item.id, own) != own:
                raise InputError(
                    f"the item {item.id!r} has other scores at {places[item.id]}: expected one row of it",
                    where=row.where,
                )
            places.setdefault(item.id, row.where)
    if not suggestions:
        raise InputError(
            f"none of its {count:,} rows has scores of any of the {len(by_text):,} solutions: neither the ids nor the texts are theirs",
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
    row: Row, by_id: Mapping[str | None, Item], by_text: Mapping[str, list[Item]]
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


def _text_key(problem: str, steps: Iterable[str]) -> str:
    """Of the texts without white space at their ends: formats differ in what they keep of it."""
    texts = [problem.strip(), *(step.strip() for step in steps)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _check_texts(item: Item, problem: str | None, steps: Sequence[str] | None, where: str) -> None:
    """Refuse a row with the item's id and another problem or other steps."""
    own = item.solution.texts
    if steps is not None and len(steps) != len(own):
        message = f"expected the {len(own)} steps of the item {item.id!r}, found {len(steps)}"
        raise InputError(message, where=where, field="steps")
    pairs = [("problem", problem, item.solution.problem.text)]
    pairs += [(f"step {k} (0-based)", theirs, own[k]) for k, theirs in enumerate(steps or ())]
    for name, theirs, mine in pairs:
        if theirs is not None and theirs.strip() != mine.strip():
            raise InputError(
                f"{name} of the item {item.id!r} is {mine[:60]!r}, here it is {theirs[:60]!r}: these scores are of another solution",
                where=where,
                field="problem" if name == "problem" else "steps",
            )


def _facts(row: Row) -> _Facts:
    given = {key: row.data[key] for key in ("prm", "threshold", "score_kind") if key in row.data}
    name = Path(row.file).name.partition(".")[0]  # where the row does not name the PRM
    return read_record(_Facts, {"prm": name} | given, where=row.where)


def _of_row(row: Row, facts: _Facts, item: Item, threshold: float | None) -> Suggestions:
    from stepmark.models.prm import from_row

    scores, critiques = row.data.get("scores"), row.data.get("critiques")
    if not isinstance(scores, list):
        raise InputError(
            f"expected a list of scores, found {json_type(scores)}", where=row.where, field="scores"
        )
    if critiques is not None and not _are_texts_of_steps(critiques, len(scores)):
        raise InputError("expected a list of texts for each step", where=row.where, field="critiques")
    data = {"score": None, "aggregate": "min", "first_error": None, "scores": scores, "critiques": critiques}
    own = {"prm": facts.prm, "threshold": facts.threshold, "score_kind": facts.score_kind}
    try:
        steps = from_row(item.solution, {**data, **own}).steps
    except InputError as error:
        raise error.at(row.where) from None
    return _of_scores(facts.prm, steps, facts.threshold if threshold is None else threshold)


def _are_texts_of_steps(critiques: Any, steps: int) -> bool:
    lists = isinstance(critiques, list) and all(isinstance(texts, list) for texts in critiques)
    return lists and len(critiques) == steps and all(isinstance(t, str) for texts in critiques for t in texts)


def _of_scores(name: str, steps: StepScores, threshold: float | None) -> Suggestions:
    suggestions: list[Suggestion | None] = []
    for step, score in enumerate(steps.scores):
        if score is None:
            suggestions.append(None)
            continue
        reason = next(iter(steps.critiques[step]), None) if steps.critiques else None
        is_probability = steps.kind == "probability"
        if not is_probability and reason is None:
            limit = "" if threshold is None else f", threshold {threshold:.3g}"
            reason = f"{steps.kind} {score:.3g}{limit}"
        rating: Literal[-1, 1] | None = None if threshold is None else -1 if score < threshold else 1
        shown = score if is_probability else None
        suggestions.append(Suggestion(judge=name, rating=rating, score=shown, reason=reason))
    return tuple(suggestions)
