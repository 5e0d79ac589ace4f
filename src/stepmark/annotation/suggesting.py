"""Pre-labels: machines' judgements of the items' steps, put beside them as `Suggestion`s.

From a PRM (`from_prm`), from a file of `stepmark grade` or of an evaluation's scores (`from_scores`), or from labels by rollout, judge or people in
any format that `stepmark convert` reads (`from_labels`). Rows of a file are joined to items by id, else by the text of the problem and the steps.
A row of an item's id with other steps is refused: its numbers are of another solution.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from stepmark.annotation.items import Item, Suggestion
from stepmark.errors import InputError, UsageError
from stepmark.models.prm import PRM
from stepmark.records import Judgement, ScoredSolution, StepScores, read_record
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


def suggest(
    items: Sequence[Item], source: str | Path, *, threshold: float | None = None, judge: str | None = None
) -> Suggested:
    """From a file, where `source` is one (of scores when its first row has `scores`, else of labels), else from a PRM of that name.

    Raises:
        UsageError: `threshold` for labels, `judge` for scores; and as the three functions say.
    """
    path = Path(source).expanduser()
    is_file = path.is_file()
    scored = is_file and "scores" in getattr(next(iter(read_rows(path)), None), "data", ())
    if judge is not None and (scored or not is_file):
        why = f"{path} holds scores" if scored else f"there is no file {path}"
        raise UsageError(f"judge {judge!r}: only labels have one, and {why}")
    if not is_file:
        return from_prm(items, str(source), threshold=threshold)
    if scored:
        return from_scores(items, path, threshold=threshold)
    if threshold is not None:
        raise UsageError(f"threshold {threshold:g}: only scores have one, and {path} holds labels")
    return from_labels(items, path, judge=judge)


def from_prm(items: Sequence[Item], prm: PRM | str, *, threshold: float | None = None) -> Suggested:
    """Grade all items: each step gets a rating by the PRM's threshold (or `threshold`), and its score where that is a probability.

    Items of one problem are cheapest when they stand together. A PRM by name needs the extra `local`.

    Raises:
        UsageError, CheckpointError, MissingExtraError, BackendError: as loading and grading do.
        InputError: the PRM could read none of the items.
    """
    from stepmark.models.grading import Grade, grade

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
class _SourceRow:
    """A row of a file, of whatever solution."""

    where: str
    id: str | None
    problem: str | None
    steps: tuple[str, ...] | None
    suggestions: Callable[[Item], Suggestions | str]
    """Those for an item, or why there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What a row says of its scores."""

    prm: str
    threshold: float | None = None
    score_kind: Literal["probability", "margin", "log-ratio", "unbounded"] = "probability"
    critiques: tuple[tuple[str, ...], ...] | None = None


def from_scores(items: Sequence[Item], path: str | Path, *, threshold: float | None = None) -> Suggested:
    """Read a file of `stepmark grade`, or rows `{"id", "scores": […]}` with optional `prm`, `threshold`, `score_kind`, `critiques`.

    Raises:
        InputError: with `FILE:LINE`: a row of an item with other steps or another number of scores, a score out of range, two rows of one
            item that differ, rows of several PRMs, no row of any item.
    """
    heads: dict[tuple[object, ...], str] = {}

    def suggestions(row: Row, item: Item) -> Suggestions | str:
        if row.data.get("scores") is None and isinstance(row.data.get("refused"), str):
            return str(row.data["refused"])
        facts = _facts(row)
        heads.setdefault((facts.prm, facts.threshold, facts.score_kind), row.where)
        if len(heads) > 1:
            (first, place), (other, _) = heads.items()
            raise InputError(
                f"expected scores of one PRM, with one threshold: {place} has {first}, here are {other}",
                where=row.where,
            )
        return _of_row(row, facts, item, threshold)

    def rows() -> Iterator[_SourceRow]:
        for row in read_rows(path):
            id_ = row.data.get("id", row.data.get("idx"))
            problem = next((row.data[column] for column in columns_of(row.data, "problem")), None)
            steps = row.data.get("steps", row.data.get("completions"))
            if not (isinstance(steps, list) and all(isinstance(step, str) for step in steps)):
                steps = None
            yield _SourceRow(
                where=row.where,
                id=str(id_) if isinstance(id_, str | int) and not isinstance(id_, bool) else None,
                problem=problem if isinstance(problem, str) else None,
                steps=None if steps is None else tuple(steps),
                suggestions=partial(suggestions, row),
            )

    return _joined(items, path, rows())


def from_labels(items: Sequence[Item], path: str | Path, *, judge: str | None = None) -> Suggested:
    """Read labels of a `judge`, by name or by the part of it before ":" (None: the only one there is), in any format that `stepmark convert` reads.

    A rating is taken as it is, with the judge's confidence as the score of a step that it calls right, and one minus it of a step that it
    calls wrong. Where a step has rollouts and no rating, the score is the share of them that succeeded, and any success means right
    (Math-Shepherd's hard labels).

    Raises:
        InputError: as `from_scores`; several judges and none named; none of that name.
    """
    from stepmark.solutions.interchange import read_labelled

    judges: set[str] = set()

    def rows() -> Iterator[_SourceRow]:
        for row in read_labelled(path):
            steps = [
                [one for one in step if judge is None or judge in (one.judge, one.judge.partition(":")[0])]
                for step in row.labelled.judgements
            ]
            judges.update(one.judge for step in steps for one in step)
            if len(judges) > 1:
                raise InputError(
                    f"expected labels of one judge, found {', '.join(sorted(judges))}: name one",
                    where=row.where,
                )
            suggestions = tuple(map(_of_judgements, steps))
            yield _SourceRow(
                where=row.where,
                id=row.solution.id,
                problem=row.solution.problem.text,
                steps=tuple(row.solution.texts),
                suggestions=lambda _item, suggestions=suggestions: suggestions,  # type: ignore[misc]
            )

    suggested = _joined(items, path, rows())
    if not judges:
        named = "" if judge is None else f" of {judge!r}"
        raise InputError(f"expected labels{named}, found none on any item", where=str(path))
    return suggested


def _joined(items: Sequence[Item], path: str | Path, rows: Iterable[_SourceRow]) -> Suggested:
    """Put each row's suggestions beside its items: the one of its id, else all with its texts."""
    # A solution's own id may differ from the item's, which is unique in the project.
    by_id = {item.solution.id: item for item in reversed(items)} | {item.id: item for item in items}
    by_text: dict[str, list[Item]] = {}
    for item in items:
        by_text.setdefault(_text_key(item.solution.problem.text, item.solution.texts), []).append(item)
    suggestions: dict[str, Suggestions] = {}
    refused: dict[str, str] = {}
    places: dict[str, str] = {}
    count = 0
    for row in rows:
        count += 1
        known = None if row.id is None else by_id.get(row.id)
        if known is not None:
            _check_texts(known, row)
        elif row.id is None and (row.problem is None or row.steps is None):
            raise InputError(
                "expected an id, or the problem and the steps, to know which item this row is of; found neither",
                where=row.where,
                field="id",
            )
        key = None if row.problem is None or row.steps is None else _text_key(row.problem, row.steps)
        for item in [known] if known is not None else by_text.get(key or "", []):
            own = row.suggestions(item)
            if isinstance(own, str):
                refused.setdefault(item.id, own)
            elif suggestions.setdefault(item.id, own) != own:
                raise InputError(
                    f"the item {item.id!r} has other numbers at {places[item.id]}: expected one row of it",
                    where=row.where,
                )
            else:
                places.setdefault(item.id, row.where)
    if not suggestions:
        raise InputError(
            f"none of its {count:,} rows has numbers of any of the {len(by_text):,} solutions: neither the ids nor the texts are theirs",
            where=str(path),
        )
    return _suggested(items, suggestions, refused, f"no row in {Path(path).name}")


def _suggested(
    items: Sequence[Item], suggestions: Mapping[str, Suggestions], refused: Mapping[str, str], absent: str
) -> Suggested:
    return Suggested(
        items=tuple(
            replace(item, suggestions=suggestions[item.id]) if item.id in suggestions else item
            for item in items
        ),
        without=tuple(
            (item.id, refused.get(item.id, absent)) for item in items if item.id not in suggestions
        ),
    )


def _text_key(problem: str, steps: Iterable[str]) -> str:
    """Of the texts without white space at their ends: formats differ in what they keep of it."""
    texts = [problem.strip(), *(step.strip() for step in steps)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _check_texts(item: Item, row: _SourceRow) -> None:
    """Refuse a row with the item's id and another problem or other steps."""
    own = item.solution.texts
    if row.steps is not None and len(row.steps) != len(own):
        message = f"expected the {len(own)} steps of the item {item.id!r}, found {len(row.steps)}"
        raise InputError(message, where=row.where, field="steps")
    pairs = [("problem", row.problem, item.solution.problem.text)]
    pairs += [(f"step {k} (0-based)", theirs, own[k]) for k, theirs in enumerate(row.steps or ())]
    for name, theirs, mine in pairs:
        if theirs is not None and theirs.strip() != mine.strip():
            raise InputError(
                f"{name} of the item {item.id!r} is {mine[:60]!r}, here it is {theirs[:60]!r}: these numbers are of another solution",
                where=row.where,
                field=name.partition(" ")[0].replace("step", "steps"),
            )


def _facts(row: Row) -> _Facts:
    """Whose scores these are, their threshold, their kind, with critiques where there are some."""
    given: dict[str, Any] = {
        key: row.data[key] for key in ("prm", "threshold", "score_kind", "critiques") if key in row.data
    }
    return read_record(_Facts, {"prm": Path(row.file).name.partition(".")[0], **given}, where=row.where)


def _of_row(row: Row, facts: _Facts, item: Item, threshold: float | None) -> Suggestions:
    from stepmark.models.grading import from_row

    scores = row.data.get("scores")
    if not isinstance(scores, list):
        raise InputError(
            f"expected a list of scores, found {json_type(scores)}", where=row.where, field="scores"
        )
    if facts.critiques is not None and len(facts.critiques) != len(scores):
        raise InputError("expected a list of texts for each step", where=row.where, field="critiques")
    data: dict[str, Any] = {
        "score": None,
        "aggregate": "min",
        "first_error": None,
        "scores": scores,
        "prm": facts.prm,
    }
    data |= {"threshold": facts.threshold, "score_kind": facts.score_kind}
    try:
        steps = from_row(item.solution, data | {"critiques": row.data.get("critiques")}).steps
    except InputError as error:
        raise error.at(row.where) from None
    return _of_scores(facts.prm, steps, facts.threshold if threshold is None else threshold)


def _of_scores(name: str, steps: StepScores, threshold: float | None) -> Suggestions:
    suggestions: list[Suggestion | None] = []
    for step, score in enumerate(steps.scores):
        if score is None:
            suggestions.append(None)
            continue
        reason = next(iter(steps.critiques[step]), None) if steps.critiques else None
        if steps.kind != "probability" and reason is None:
            # Scores outside [0, 1] are described in words.
            reason = f"{steps.kind} {score:.3g}" + (
                "" if threshold is None else f", threshold {threshold:.3g}"
            )
        suggestion = Suggestion(
            judge=name,
            rating=None if threshold is None else -1 if score < threshold else 1,
            score=score if steps.kind == "probability" else None,
            reason=reason,
        )
        suggestions.append(suggestion)
    return tuple(suggestions)


def _of_judgements(step: Sequence[Judgement]) -> Suggestion | None:
    """The last judgement of a step with a rating, else the last with a value."""
    for one in reversed(step):
        if one.rating is not None:
            sure = one.confidence
            score = None if sure is None or one.rating == 0 else sure if one.rating == 1 else 1 - sure
            return Suggestion(judge=one.judge, rating=one.rating, score=score, reason=one.note)
    for one in reversed(step):
        share, reason = one.share, one.note
        if one.trials and one.successes is not None:
            share, reason = one.successes / one.trials, f"{one.successes} of {one.trials} rollouts succeeded"
        if share is not None:
            return Suggestion(judge=one.judge, rating=1 if share > 0 else -1, score=share, reason=reason)
    return None
