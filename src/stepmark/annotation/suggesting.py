"""Pre-labels: what machines say of the items' steps, put beside them as `Suggestion`s.

From a PRM (`from_prm`), from a file of `stepmark grade` or of an evaluation's scores (`from_scores`), or from labels by rollout, judge or people in
any format that `stepmark convert` reads (`from_labels`). Rows of a file are joined to items by id, else by the text of the problem and the steps.
A row of an item's id with other steps is refused: its numbers are of another solution.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stepmark.annotation.items import Item, Suggestion
from stepmark.errors import InputError, UsageError
from stepmark.models.prm import PRM
from stepmark.records import Judgement, ScoredSolution, Solution, StepScores
from stepmark.store import Row, json_type, read_rows
from stepmark.store.columns import columns_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested:
    """Items with suggestions, and those for which there are none."""

    items: tuple[Item, ...]
    """All of them, in their order; `suggestions` replaced, except of those in `without`, which are as they were."""
    without: tuple[tuple[str, str], ...]
    """(item, why): no row in the file, refused by the PRM."""
    threshold: float | None
    """Under which a score is an error; None where there is none (labels)."""


def suggest(
    items: Sequence[Item], source: str | Path, *, threshold: float | None = None, judge: str | None = None
) -> Suggested:
    """From a file, where `source` is one (of scores when its first row has `scores`, else of labels), else from a PRM of that name.

    Raises:
        UsageError: `threshold` for labels, `judge` for scores; and as the three functions say.
    """
    path = Path(source).expanduser()
    if not path.is_file():
        if judge is not None:
            raise UsageError(f"judge {judge!r}: only labels have one, and there is no file {path}")
        return from_prm(items, str(source), threshold=threshold)
    first = next(iter(read_rows(path)), None)
    if first is not None and "scores" in first.data:
        if judge is not None:
            raise UsageError(f"judge {judge!r}: only labels have one, and {path} holds scores")
        return from_scores(items, path, threshold=threshold)
    if threshold is not None:
        raise UsageError(f"threshold {threshold:g}: only scores have one, and {path} holds labels")
    return from_labels(items, path, judge=judge)


def from_prm(items: Sequence[Item], prm: PRM | str, *, threshold: float | None = None) -> Suggested:
    """Grade all items: each step gets a rating by the PRM's own threshold, and its score where that is a probability.

    Args:
        items: those of one problem are cheapest when they stand together.
        prm: one, or a name for `load_prm`; that needs the extra `local`.
        threshold: instead of the PRM's own.

    Raises:
        UsageError, CheckpointError, MissingExtraError, BackendError: as loading and grading do.
        InputError: the PRM could read none of the items.
    """
    from stepmark.models.prm import Grade, grade

    if isinstance(prm, str):
        from stepmark.models.load import load_prm

        prm = load_prm(prm)
    found: dict[str, tuple[Suggestion | None, ...]] = {}
    without: list[tuple[str, str]] = []
    used = Grade(threshold=threshold).of(prm)
    results = grade((item.solution for item in items), prm, used, keep_going=True)
    for item, result in zip(items, results, strict=True):
        if isinstance(result, ScoredSolution):
            found[item.id] = _of_scores(prm.name, result.steps, used.threshold)
        else:
            without.append((item.id, result.error.message))
    if not found:
        why = f", the first because: {without[0][1]}" if without else ""
        raise InputError(f"{prm.name} could read none of {len(items)} items{why}")
    return _suggested(items, found, without, used.threshold if prm.score_kind == "probability" else None)


def from_scores(items: Sequence[Item], path: str | Path, *, threshold: float | None = None) -> Suggested:
    """Read a file of `stepmark grade`, or rows `{"id", "scores": […]}` with optional `prm`, `threshold`, `score_kind`, `critiques`.

    Args:
        items: to join to.
        path: JSON lines, gzip when the name ends in ".gz".
        threshold: instead of the file's own.

    Raises:
        InputError: with `FILE:LINE`: a row of an item with other steps or another number of scores, a score out of range, two rows of one
            item that differ, rows of several PRMs, no row of any item.
    """
    join = _Join(items)
    found: dict[str, tuple[Suggestion | None, ...]] = {}
    refused: dict[str, str] = {}
    firsts: dict[str, Row] = {}
    for row in read_rows(path):
        for item in join.by_row(row):
            if row.data.get("scores") is None and isinstance(row.data.get("refused"), str):
                refused.setdefault(item.id, row.data["refused"])
                continue
            facts = _facts(row)
            head = next(iter(firsts.values()), row)
            if facts != _facts(head):
                raise InputError(
                    f"expected scores of one PRM, with one threshold: {head.where} has {_facts(head)}, here are {facts}",
                    where=row.where,
                )
            own = facts[1] if threshold is None else threshold
            said = _of_scores(facts[0], _step_scores(row, item), own)
            if found.setdefault(item.id, said) != said:
                raise InputError(
                    f"the item {item.id!r} has other scores at {firsts[item.id].where}: expected one row of it",
                    where=row.where,
                    field="scores",
                )
            firsts.setdefault(item.id, row)
    if not found:
        raise join.nothing(path)
    _, own, kind = _facts(next(iter(firsts.values())))
    used = own if threshold is None else threshold
    without = [
        (item.id, refused.get(item.id, f"no row in {Path(path).name}"))
        for item in items
        if item.id not in found
    ]
    return _suggested(items, found, without, used if kind == "probability" else None)


def from_labels(
    items: Sequence[Item], path: str | Path, *, judge: str | None = None, hard: float = 0.0
) -> Suggested:
    """Read labels in any format that `stepmark convert` reads.

    A rating is taken as it is, with the judge's confidence as the score of a step that it calls right, and what is missing to 1 of one that it
    calls wrong. Where a step has rollouts and no rating, the score is the share of them that succeeded.

    Args:
        items: to join to.
        path: the file.
        judge: whose judgements, by name or by the part of it before ":". None: the only one there is.
        hard: a share of successful rollouts above this number, in [0, 1), suggests right, another wrong. 0: right when any succeeded
            (Math-Shepherd's hard labels).

    Raises:
        InputError: as `from_scores`; several judges and none named; none of that name.
        UsageError: `hard` out of its range.
    """
    from stepmark.solutions.interchange import read_labelled

    if not 0 <= hard < 1:
        raise UsageError(f"hard: expected a number from 0 to under 1, found {hard!r}")
    join = _Join(items)
    found: dict[str, tuple[Suggestion | None, ...]] = {}
    firsts: dict[str, str] = {}
    judges: dict[str, str] = {}
    for row in read_labelled(path):
        for item in join.by_solution(row.solution, row.where):
            steps = [
                [one for one in step if judge is None or judge in (one.judge, one.judge.partition(":")[0])]
                for step in row.labelled.judgements
            ]
            judges |= {one.judge: row.where for step in steps for one in step}
            if len(judges) > 1:
                raise InputError(
                    f"expected labels of one judge, found {', '.join(sorted(judges))}: name one",
                    where=row.where,
                )
            said = tuple(_of_judgements(step, hard) for step in steps)
            if found.setdefault(item.id, said) != said:
                raise InputError(
                    f"the item {item.id!r} has other labels at {firsts[item.id]}: expected one row of it",
                    where=row.where,
                )
            firsts.setdefault(item.id, row.where)
    if not found:
        raise join.nothing(path)
    if not judges:
        named = "" if judge is None else f" of {judge!r}"
        raise InputError(f"expected labels{named}, found none on any item", where=str(path))
    without = [(item.id, f"no row in {Path(path).name}") for item in items if item.id not in found]
    return _suggested(items, found, without, None)


class _Join:
    """Finds the items that a row is of: one by id, else all with its texts."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.by_id = {item.id: item for item in items}
        # A solution's own id may differ from the item's, which is unique in the project.
        for item in items:
            if item.solution.id is not None:
                self.by_id.setdefault(item.solution.id, item)
        self.by_text: dict[str, list[Item]] = {}
        for item in items:
            self.by_text.setdefault(_fingerprint(item.solution.problem.text, item.solution.texts), []).append(
                item
            )
        self.rows = 0

    def by_row(self, row: Row) -> Sequence[Item]:
        """Of a row of scores.

        Raises:
            InputError: the row has the id of an item and other texts; it has neither id nor texts.
        """
        self.rows += 1
        data = row.data
        id_ = data.get("id", data.get("idx"))
        problem = next((data[column] for column in columns_of(data, "problem")), None)
        steps = data.get("steps", data.get("completions"))
        if not (isinstance(steps, list) and all(isinstance(step, str) for step in steps)):
            steps = None
        item = self.by_id.get(str(id_)) if isinstance(id_, str | int) and not isinstance(id_, bool) else None
        if item is not None:
            _check_texts(item, problem if isinstance(problem, str) else None, steps, row.where)
            return (item,)
        if isinstance(problem, str) and steps is not None:
            return self.by_text.get(_fingerprint(problem, steps), ())
        if id_ is None:
            raise InputError(
                "expected an id, or the problem and the steps, to know which item this row is of; found neither",
                where=row.where,
                field="id",
            )
        return ()

    def by_solution(self, solution: Solution, where: str) -> Sequence[Item]:
        """Of a labelled solution.

        Raises:
            InputError: it has the id of an item and other texts.
        """
        self.rows += 1
        item = None if solution.id is None else self.by_id.get(solution.id)
        if item is not None:
            _check_texts(item, solution.problem.text, solution.texts, where)
            return (item,)
        return self.by_text.get(_fingerprint(solution.problem.text, solution.texts), ())

    def nothing(self, path: str | Path) -> InputError:
        """The error of a file that has nothing for any item."""
        return InputError(
            f"none of its {self.rows:,} rows has numbers of any of the {len(self.by_text):,} solutions: neither the ids nor the texts are theirs",
            where=str(path),
        )


def _fingerprint(problem: str, steps: Iterable[str]) -> str:
    """Of the texts without white space at their ends: formats differ in what they keep of it."""
    texts = [problem.strip(), *(step.strip() for step in steps)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _check_texts(item: Item, problem: str | None, steps: Sequence[str] | None, where: str) -> None:
    if problem is not None and problem.strip() != item.solution.problem.text.strip():
        raise InputError(
            f"this row has the id of the item {item.id!r} and another problem: {problem[:60]!r} and not "
            f"{item.solution.problem.text[:60]!r}",
            where=where,
            field="problem",
        )
    if steps is None:
        return
    mine = item.solution.texts
    if len(steps) != len(mine):
        raise InputError(
            f"expected the {len(mine)} steps of the item {item.id!r}, found {len(steps)}",
            where=where,
            field="steps",
        )
    for number, (theirs, own) in enumerate(zip(steps, mine, strict=True)):
        if theirs.strip() != own.strip():
            raise InputError(
                f"step {number} (0-based) of the item {item.id!r} is {own[:60]!r}, here it is {theirs[:60]!r}: these numbers "
                "are of another solution",
                where=where,
                field="steps",
            )


def _facts(row: Row) -> tuple[str, float | None, str]:
    """Whose scores these are, their threshold, their kind."""
    name = row.data.get("prm", Path(row.file).name.partition(".")[0])
    own, kind = row.data.get("threshold"), row.data.get("score_kind", "probability")
    if not isinstance(name, str):
        raise InputError(f"expected a name, found {json_type(name)}", where=row.where, field="prm")
    if isinstance(own, bool) or not isinstance(own, int | float | None):
        raise InputError(
            f"expected a number or null, found {json_type(own)}", where=row.where, field="threshold"
        )
    if kind not in ("probability", "margin", "log-ratio", "unbounded"):
        raise InputError(f"expected a kind of score, found {kind!r}", where=row.where, field="score_kind")
    return name, None if own is None else float(own), kind


def _step_scores(row: Row, item: Item) -> StepScores:
    from stepmark.models.prm import from_row

    scores = row.data.get("scores")
    if not isinstance(scores, list):
        raise InputError(
            f"expected a list of scores, found {json_type(scores)}", where=row.where, field="scores"
        )
    name, own, kind = _facts(row)
    rest = {"score": None, "aggregate": "min", "first_error": None}
    critiques = row.data.get("critiques")
    if critiques is not None and not _texts_a_step(critiques, len(scores)):
        raise InputError("expected a list of texts for each step", where=row.where, field="critiques")
    try:
        return from_row(
            item.solution,
            rest
            | {"scores": scores, "prm": name, "threshold": own, "score_kind": kind, "critiques": critiques},
        ).steps
    except InputError as error:
        raise error.at(row.where) from None


def _texts_a_step(critiques: Any, steps: int) -> bool:
    return (
        isinstance(critiques, list)
        and len(critiques) == steps
        and all(isinstance(one, list) and all(isinstance(text, str) for text in one) for one in critiques)
    )


def _of_scores(name: str, steps: StepScores, threshold: float | None) -> tuple[Suggestion | None, ...]:
    found: list[Suggestion | None] = []
    for step, score in enumerate(steps.scores):
        if score is None:
            found.append(None)
            continue
        rating: Literal[-1, 1] | None = None if threshold is None else -1 if score < threshold else 1
        reason = next(iter(steps.critiques[step]), None) if steps.critiques else None
        if steps.kind != "probability" and reason is None:
            # Scores outside [0, 1] are described in words.
            reason = f"{steps.kind} {score:.3g}" + (
                "" if threshold is None else f", threshold {threshold:.3g}"
            )
        found.append(
            Suggestion(
                judge=name,
                rating=rating,
                score=score if steps.kind == "probability" else None,
                reason=reason,
            )
        )
    return tuple(found)


def _of_judgements(step: Sequence[Judgement], hard: float) -> Suggestion | None:
    """The last judgement of a step that says something: a rating before a value."""
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
            return Suggestion(judge=one.judge, rating=1 if share > hard else -1, score=share, reason=reason)
    return None


def _suggested(
    items: Sequence[Item],
    found: Mapping[str, tuple[Suggestion | None, ...]],
    without: Iterable[tuple[str, str]],
    threshold: float | None,
) -> Suggested:
    made: Iterator[Item] = (
        replace(item, suggestions=found[item.id]) if item.id in found else item for item in items
    )
    return Suggested(items=tuple(made), without=tuple(without), threshold=threshold)
