"""Items from files: labelled solutions in any format that `stepmark convert` reads, plain solutions, chat messages, Potato's traces.

The format of a file is detected from its first row, unless the project names it (`format`): a list under `steps_key` that holds objects is a trace, else
the keys decide as in `stepmark convert`, and a row of no known format with a list of steps is a trace again.

A trace says what is right under `gold`: {`first_error`: k} or {`ratings`: […]}, one a step, by the project's mode.

Labels that stand in a file become suggestions or gold, as the project's `labels` says; those in the files of `gold` and `screening` are gold, and
a row of these that does not tell the right answer is refused. What the labels of several judges say together:

- gold in mode `first_error`: the first error that all judges name (`labels.consensus`, rule `first-error-agrees`);
- gold in mode `per_step`: each step's rating that all judges give; a neutral one only where the project allows neutral;
- suggestions: each step's rating that most judges give. Of a single judge, its own rating, or the share of its rollouts that succeeded.

The scores of rows that `stepmark grade` wrote are suggestions where the row has no labels. Other pre-labels are a PRM's judgements (`from_prm`), or a file of `stepmark grade` or of an evaluation's scores (`from_scores`). Rows of such a file are
joined to items by id, else by the text of the problem and the steps. A row of an item's id with other steps is refused: its scores are of another
solution.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from stepmark.annotation.accounts import RequestError
from stepmark.annotation.items import Item, Suggestion
from stepmark.annotation.marks import Marks, marks_of_first_error, marks_of_ratings, read_marks
from stepmark.annotation.project import TRACES, Project
from stepmark.annotation.security import too_large
from stepmark.data.columns import columns_of
from stepmark.data.formats.potato import STEPS_KEYS, Keys, shown
from stepmark.data.formats.rows import LabelledRow, Losses, Reading, origin, outcome_of
from stepmark.data.labelled import detect, format_named
from stepmark.data.reading import Row, by_file, read_rows
from stepmark.data.solutions import is_graded, ungraded
from stepmark.data.traces.shapes import chat_rows, trace_format
from stepmark.errors import InputError
from stepmark.labels.consensus import Consensus
from stepmark.metrics.aggregate import check_score
from stepmark.models.prm import PRM
from stepmark.records import (
    GradedSolution,
    Judgement,
    LabelledSolution,
    ScoreKind,
    Solution,
    StepScores,
    read_record,
)
from stepmark.show.text import amount

Role = Literal["work", "gold", "screening"]


def read_items(project: Project, losses: Losses | None = None) -> list[Item]:
    """All items of a project: those to work on in their order, then the gold ones, then the screening set; `losses` counts what was left out.

    Raises:
        InputError: with `FILE:LINE`: a row that is not of its format, an item over the limits, an id that stands twice, a gold row that
            does not tell the right answer; with `FILE`, an unrecognised format.
    """
    counted = losses or Losses()
    files: list[tuple[Path | None, Role]] = [(file, "work") for file in project.items]
    files += [(project.gold.items, "gold"), (project.screening.items, "screening")]
    streams = (items_of_file(file, project, role, counted) for file, role in files if file is not None)
    return list(distinct(chain.from_iterable(streams)))


def distinct(items: Iterable[tuple[str, Item]]) -> Iterator[Item]:
    """Items without their places (FILE:LINE), of which no two have the same id.

    Raises:
        InputError: with `FILE:LINE` of the second.
    """
    places: dict[str, str] = {}
    for where, item in items:
        if item.id in places:
            raise InputError(
                f"the id {item.id!r} stands twice (first: {places[item.id]}): each solution needs an id of its own",
                where=where,
                field="id",
            )
        places[item.id] = where
        yield item


def items_of_file(
    file: str | Path, project: Project, role: Role = "work", losses: Losses | None = None
) -> Iterator[tuple[str, Item]]:
    """The items of one file as a stream, each with its FILE:LINE.

    Raises:
        InputError: as `read_items`, but for ids.
    """
    counted = losses or Losses()
    # Gold for traces may be of another format, and tell what it is itself.
    own = project if role == "work" or project.format != TRACES else replace(project, format=None)
    for row, format in _formats(read_rows(file, columns=project.columns), own):
        try:
            for item in _items(row, format, project, role, counted):
                _check_size(item.solution, project)
                counted.read += 1
                yield row.where, item
        except InputError as error:
            raise error.at(row.where) from None


def _formats(rows: Iterable[Row], project: Project) -> Iterator[tuple[Row, str]]:
    """Rows, each with the format of its file; those of traces as conversations."""
    for first, own in by_file(rows):
        format = _format(first, project)
        for row in chat_rows(own) if trace_format(first.data) else own:
            assert isinstance(row, Row)  # without keep_going an error is raised
            yield row, format


def _format(first: Row, project: Project) -> str:
    format = project.format
    if format is None:
        listed = first.data.get(project.steps_key)
        if isinstance(listed, list) and any(isinstance(entry, dict) for entry in listed):
            return TRACES
        try:
            format = detect(first)
        except InputError:
            if any(isinstance(first.data.get(key), list) for key in (project.steps_key, *STEPS_KEYS)):
                return TRACES
            raise
    if format == "potato":
        raise InputError(
            "these are Potato's labels, which hold no text: name the data file that was shown; `stepmark.convert` reads the labels",
            where=first.file,
        )
    return format


def _items(row: Row, format: str, project: Project, role: Role, losses: Losses) -> Iterator[Item]:
    if format == TRACES:
        yield _of_trace(row, project, role, losses)
        return
    reader = format_named(format).read
    scored = is_graded(row) and project.labels == "suggestions" and role == "work"
    row, graded = ungraded(row), row
    results = list(reader(row, Reading(quality_control=True), losses))
    spoken: list[LabelledRow] = []
    if any(labelled.solution.split == "agent" for labelled in results):
        with suppress(InputError):  # a conversation of nothing but thoughts
            spoken = list(reader(row, Reading(quality_control=True, reasoning="drop"), Losses()))
    for labelled, without in zip_longest(results, spoken[: len(results)]):
        suggestions, gold = _labels(labelled.labelled, project, role)
        if scored and not suggestions:
            suggestions = _scores(graded, len(labelled.solution.steps)).suggestions()
        yield Item(
            id=labelled.solution.id or labelled.origin,
            solution=labelled.solution,
            thoughts=_thoughts(labelled.solution, () if without is None else without.solution.texts),
            outcome=labelled.outcome,
            suggestions=suggestions,
            gold=gold,
            role=role,
            meta=labelled.meta,
        )


def _thoughts(solution: Solution, spoken: Sequence[str]) -> tuple[str, ...]:
    """What is thought in each turn of a conversation: its text without what is spoken (the texts without thoughts)."""
    if solution.split != "agent":
        return ()
    thoughts, rest = [], list(spoken)
    for step in solution.steps:
        action = rest.pop(0) if rest and step.text.endswith(rest[0]) else ""
        thoughts.append(step.text.removesuffix(action).rstrip())
    return tuple(thoughts)


def _of_trace(row: Row, project: Project, role: Role, losses: Losses) -> Item:
    own = isinstance(row.data.get(project.steps_key), list)
    trace = shown(
        row,
        Keys(
            id=project.id_key,
            problem=project.text_key,
            steps=project.steps_key if own or project.steps_key not in STEPS_KEYS else None,
            text=project.step_text_key,
        ),
    )
    gold = _gold_of_trace(row, len(trace.solution.steps), project, role)
    thoughts = tuple(trace.turns[turn].thought or "" for turn in trace.step_of)
    losses.lose(
        "a step's thought is shown, and is not in the step's text", row.where, sum(map(bool, thoughts))
    )
    meta = origin(row, TRACES, {})
    index = tuple(trace.step_of)
    return Item(
        id=trace.solution.id or row.place,
        solution=trace.solution,
        thoughts=thoughts,
        outcome=outcome_of(row.data) if "outcome" in row.data else outcome_of(meta),
        gold=gold,
        role=role,
        potato_index=None if index == tuple(range(len(index))) else index,
        meta=meta,
    )


def _gold_of_trace(row: Row, steps: int, project: Project, role: Role) -> Marks | None:
    raw = row.data.get("gold")
    key = "first_error" if project.mode == "first_error" else "ratings"
    if role == "work" and (project.labels != "gold" or raw is None):
        return None
    if not isinstance(raw, dict) or set(raw) != {key}:
        raise InputError(f'expected what is right as {{"{key}": …}}', where=row.where, field="gold")
    try:
        gold = read_marks({"mode": project.mode, "steps": steps, key: raw[key]})
    except InputError as error:
        raise InputError(error.message, where=row.where, field=f"gold.{error.field}") from None
    if not any(rating is not None for rating in gold.ratings):
        raise InputError("expected what is right, found no rating", where=row.where, field="gold")
    return replace(gold, submitted=True)


def _check_size(solution: Solution, project: Project) -> None:
    """Refuse an item that no page could show.

    Raises:
        InputError: more steps or characters than the project's limits.
    """
    limits = project.limits
    characters = len(solution.problem.text) + sum(len(step.raw) for step in solution.steps)
    for name, size in (("steps", len(solution.steps)), ("item_characters", characters)):
        most = getattr(limits, name)
        if size > most:
            what = name.rpartition("_")[2]
            raise InputError(
                f"expected at most {most:,} {what}, found {size:,}: shorten the solution, or raise limits.{name}"
            )


def _labels(
    labelled: LabelledSolution, project: Project, role: Role
) -> tuple[tuple[Suggestion | None, ...], Marks | None]:
    """Suggestions and gold, of which at most one is there."""
    if role != "work" or project.labels == "gold":
        gold = gold_of(labelled, project)
        if gold is None and role != "work":
            needed = "the first error" if project.mode == "first_error" else "a step's rating"
            raise InputError(f"expected labels that tell {needed}, as a {role} item must; found none that do")
        return (), gold
    return (suggestions_of(labelled), None) if project.labels == "suggestions" else ((), None)


def gold_of(labelled: LabelledSolution, project: Project) -> Marks | None:
    """The marks that a labelled solution calls right in this project's mode; None where its judges do not tell."""
    rule: Literal["first-error-agrees", "intersection"] = (
        "first-error-agrees" if project.mode == "first_error" else "intersection"
    )
    view = Consensus(rule=rule, least=1).view(labelled)
    if not view.kept:
        return None
    if project.mode == "first_error":
        steps = len(labelled.solution.steps)
        return None if view.first_error is None else marks_of_first_error(view.first_error, steps)
    ratings = [None if rating == 0 and not project.allow_neutral else rating for rating in view.ratings]
    return marks_of_ratings(ratings) if any(rating is not None for rating in ratings) else None


def suggestions_of(labelled: LabelledSolution) -> tuple[Suggestion | None, ...]:
    """What the judges of a labelled solution say of each step; empty where they say nothing."""
    judges = {judgement.judge for step in labelled.judgements for judgement in step}
    if len(judges) > 1:
        view = Consensus(rule="majority", least=1).view(labelled)
        suggestions = [
            None if rating is None else Suggestion(judge="consensus:majority", rating=rating)
            for rating in view.ratings
        ]
    else:
        suggestions = [_of_one_judge(step) for step in labelled.judgements]
    return tuple(suggestions) if any(suggestion is not None for suggestion in suggestions) else ()


def _of_one_judge(step: Sequence[Judgement]) -> Suggestion | None:
    ratings = {judgement.rating for judgement in step if judgement.rating is not None}
    trials = sum(judgement.trials or 0 for judgement in step)
    shares = [judgement.share for judgement in step if judgement.share is not None]
    score = sum(judgement.successes or 0 for judgement in step) / trials if trials else None
    if score is None and len(shares) == 1:
        score = shares[0]
    rating = ratings.pop() if len(ratings) == 1 else None
    if rating is None and score is None:
        return None
    reason = next((judgement.note for judgement in step if judgement.note), None)
    return Suggestion(judge=step[0].judge, rating=rating, score=score, reason=reason)


async def read_upload(request: Request, project: Project) -> list[Item]:
    """The items of a request's body, JSON lines or JSON, packed with gzip or not.

    Raises:
        RequestError: too large, unpacked too (413), or not what any format says (400).
    """
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "upload"
        try:
            with raw.open("wb") as file:
                async for chunk in request.stream():
                    file.write(chunk)
            return await run_in_threadpool(_read_file, raw, project)
        except ClientDisconnect:
            raise RequestError(400, "the connection was closed before the file was complete") from None
        except InputError as error:
            # The place in our own folder tells the sender nothing but the line.
            raise RequestError(400, str(error).replace(f"{folder}/", ""), field=error.field) from None


def _read_file(raw: Path, project: Project) -> list[Item]:
    data, limit = raw.read_bytes(), project.limits.upload_bytes
    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(raw) as packed:
                data = packed.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"expected gzip, found {error}") from None
    if len(data) > limit:
        raise too_large(limit)
    if not data:
        raise InputError("expected a file of items, found an empty one")
    file = raw.with_name("upload.json" if data.lstrip().startswith(b"[") else "upload.jsonl")
    file.write_bytes(data)
    return list(distinct(items_of_file(file, project)))


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
        if isinstance(result, GradedSolution):
            suggestions[item.id] = _of_scores(prm.name, result.step_scores, settings.threshold)
        else:
            refused[item.id] = result.error.message
    if not suggestions:
        why = "".join(f", the first because: {reason}" for reason in [*refused.values()][:1])
        raise InputError(f"{prm.name} can read no item (of {len(items):,}){why}")
    return _suggested(items, suggestions, refused, "")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRow:
    """What a row of a file of scores says."""

    prm: str
    scores: tuple[float | None, ...]
    threshold: float | None = None
    score_kind: ScoreKind = "probability"
    critiques: tuple[tuple[str, ...], ...] | None = None

    def suggestions(self, threshold: float | None = None) -> Suggestions:
        """Of each step; `threshold` in the place of the row's own."""
        steps = StepScores(scores=self.scores, kind=self.score_kind, critiques=self.critiques)
        return _of_scores(self.prm, steps, self.threshold if threshold is None else threshold)


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
            given = _scores(row, len(item.solution.steps))
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


def _scores(row: Row, steps: int) -> ScoreRow:
    names = ("prm", "scores", "threshold", "score_kind", "critiques")
    known = {name: row.data[name] for name in names if name in row.data}
    default = Path(row.file).name.partition(".")[0]  # where the row does not name the PRM
    given = read_record(ScoreRow, {"prm": default} | known, where=row.where)
    for name, entries in (("scores", given.scores), ("critiques", given.critiques)):
        if entries is not None and len(entries) != steps:
            raise row.error(f"expected {steps} {name}, one a step, found {len(entries)}", name)
    try:
        for step, score in enumerate(given.scores):
            if score is not None:
                check_score(score, given.score_kind, step=step)
    except InputError as error:
        raise error.at(row.where) from None
    return given


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
