"""Items from files: labelled solutions in any format that `stepmark convert` reads, plain solutions, chat messages, Potato's traces.

The format of a file is detected from its first row, unless the project names it (`format`): a list under `steps_key` that holds objects is a trace, else
the keys decide as in `stepmark convert`, and a row of no known format with a list of steps is a trace again.

A trace says what is right under `gold`: {`first_error`: k} or {`ratings`: […]}, one a step, by the project's mode.

Labels that stand in a file become suggestions or gold, as the project's `labels` says; those in the files of `gold` and `screening` are gold, and
a row of these that does not tell the right answer is refused. What the labels of several judges say together:

- gold in mode `first_error`: the first error that all judges name (`labels.consensus`, rule `first-error-agrees`);
- gold in mode `per_step`: each step's rating that all judges give; a neutral one only where the project allows neutral;
- suggestions: each step's rating that most judges give. Of a single judge, its own rating, or the share of its rollouts that succeeded.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from stepmark.annotation.accounts import RequestError
from stepmark.annotation.items import Item, Suggestion, Turn
from stepmark.annotation.marks import Marks, marks_of_first_error, marks_of_ratings, read_marks
from stepmark.annotation.project import TRACES, Project
from stepmark.annotation.security import too_large
from stepmark.errors import InputError
from stepmark.labels.consensus import Consensus
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.solutions.interchange import LabelledRow, Losses, Reading, detect
from stepmark.solutions.interchange.formats import format_named
from stepmark.solutions.interchange.potato import STEPS_KEYS, Keys, Shown, shown
from stepmark.solutions.interchange.rows import origin, outcome_of
from stepmark.store import Row, read_rows

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
    found = (items_of_file(file, project, role, counted) for file, role in files if file is not None)
    return list(distinct(chain.from_iterable(found)))


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
    rows = read_rows(file, columns=project.columns)
    first = next(rows)
    # Gold for traces may be of another format, and tell what it is itself.
    format = _format(
        first, project if role == "work" or project.format != TRACES else replace(project, format=None)
    )
    counted = losses or Losses()
    for row in chain([first], rows):
        try:
            for item in _items(row, format, project, role, counted):
                _check_size(item.solution, project)
                counted.read += 1
                yield row.where, item
        except InputError as error:
            raise error.at(row.where) from None


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
            "these are Potato's labels, which hold no text: name the data file that was shown under items, and this one under resume",
            where=first.file,
        )
    return format


def _items(row: Row, format: str, project: Project, role: Role, losses: Losses) -> Iterator[Item]:
    if format == TRACES:
        yield _of_trace(row, project, role, losses)
        return
    for labelled in format_named(format).read(row, Reading(quality_control=True), losses):
        suggestions, gold = _labels(labelled.labelled, project, role)
        yield Item(
            id=labelled.solution.id or labelled.origin,
            solution=labelled.solution,
            trace=_chat_turns(row, labelled) if format == "chat" else (),
            outcome=labelled.outcome,
            suggestions=suggestions,
            gold=gold,
            role=role,
            meta=labelled.meta,
        )


def _of_trace(row: Row, project: Project, role: Role, losses: Losses) -> Item:
    own = isinstance(row.data.get(project.steps_key), list)
    found = shown(
        row,
        Keys(
            id=project.id_key,
            problem=project.text_key,
            steps=project.steps_key if own or project.steps_key not in STEPS_KEYS else None,
            text=project.step_text_key,
        ),
    )
    gold = _gold_of_trace(row, len(found.solution.steps), project, role)
    thoughts = sum(found.turns[turn].thought is not None for turn in found.step_of)
    losses.lose(
        "a step's thought is shown in the trace and is no part of the step's text", row.where, thoughts
    )
    meta = origin(row, TRACES, {})
    index = tuple(found.step_of)
    return Item(
        id=found.solution.id or row.place,
        solution=found.solution,
        trace=_turns(found),
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


def _turns(found: Shown) -> tuple[Turn, ...]:
    return tuple(
        Turn(
            role=turn.role or "assistant",
            text="\n\n".join(part for part in (turn.thought, turn.text) if part),
            calls=turn.calls,
            outputs=turn.outputs,
            step=found.step_of.get(number),
        )
        for number, turn in enumerate(found.turns)
    )


def _chat_turns(row: Row, labelled: LabelledRow) -> tuple[Turn, ...]:
    """The conversation as turns; nothing where it is a plain solution that was cut into steps."""
    messages: Sequence[Mapping[str, Any]] = row.data["messages"]
    if labelled.solution.split != "agent":
        return ()
    turns: list[Turn] = []
    step = 0
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else "\n".join(part["text"] for part in content or ())
        graded = message["role"] == "assistant"
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        turns.append(
            Turn(
                role=message["role"],
                text=text,
                calls=tuple((call["name"], call["arguments"]) for call in calls),
                step=step if graded else None,
            )
        )
        step += graded
    return tuple(turns)


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
            wanted = "the first error" if project.mode == "first_error" else "a step's rating"
            raise InputError(f"expected labels that tell {wanted}, as a {role} item must; found none that do")
        return (), gold
    return (suggestions_of(labelled), None) if project.labels == "suggestions" else ((), None)


def gold_of(labelled: LabelledSolution, project: Project) -> Marks | None:
    """The marks that a labelled solution calls right in this project's mode; None where its judges do not tell."""
    rule: Literal["first-error-agrees", "intersection"] = (
        "first-error-agrees" if project.mode == "first_error" else "intersection"
    )
    said = Consensus(rule=rule, least=1).view(labelled)
    if not said.kept:
        return None
    if project.mode == "first_error":
        steps = len(labelled.solution.steps)
        return None if said.first_error is None else marks_of_first_error(said.first_error, steps)
    ratings = [None if rating == 0 and not project.allow_neutral else rating for rating in said.ratings]
    return marks_of_ratings(ratings) if any(rating is not None for rating in ratings) else None


def suggestions_of(labelled: LabelledSolution) -> tuple[Suggestion | None, ...]:
    """What the judges of a labelled solution say of each step; empty where they say nothing."""
    judges = {judgement.judge for step in labelled.judgements for judgement in step}
    if len(judges) > 1:
        said = Consensus(rule="majority", least=1).view(labelled)
        found = [
            None if rating is None else Suggestion(judge="consensus:majority", rating=rating)
            for rating in said.ratings
        ]
    else:
        found = [_of_one_judge(step) for step in labelled.judgements]
    return tuple(found) if any(one is not None for one in found) else ()


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
