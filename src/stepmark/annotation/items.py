"""What annotators are shown: one solution, cut into steps, and what is known of it.

Items come from files: labelled solutions in any format that `stepmark convert` reads, plain solutions, chat messages, Potato's traces. The
format of a file is detected from its first row, unless the project names it (`format`): a list under `steps_key` that holds objects is a trace,
else the keys decide as in `stepmark convert`, and a row of no known format with a list of steps is a trace again.

Labels that stand in a file become suggestions: of several judges each step's rating that most of them give; of a single judge its own rating, or
the share of its rollouts that succeeded. So do the scores of rows that `stepmark grade` wrote, where the row has no labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from stepmark.annotation.project import TRACES, Project
from stepmark.data.formats.potato import STEPS_KEYS, PotatoFields, shown
from stepmark.data.formats.rows import Counts, LabelledRow, Rating, ReaderSettings, origin, outcome_of
from stepmark.data.labelled import detect, format_named
from stepmark.data.reading import Row, by_file, read_rows
from stepmark.data.solutions import is_graded, ungraded
from stepmark.data.traces import chat_rows, trace_format
from stepmark.errors import InputError
from stepmark.labels.consensus import Consensus
from stepmark.metrics.aggregate import check_score
from stepmark.records import Judgement, LabelledSolution, ScoreKind, Solution, StepScores, read_record
from stepmark.report.html import text_html
from stepmark.words import amount, visible


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """A machine's judgement of one step."""

    judge: str
    """Whose it is: a PRM's name, "rollout", a judge's name."""
    rating: Rating | None = None
    """What it amounts to; None when there is only a score."""
    score: float | None = None
    """In [0, 1]; None where it gives none."""
    reason: str | None = None
    """In words, where there are any."""


Suggestions = tuple[Suggestion | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A solution to be labelled."""

    id: str
    """Unique in the project."""
    solution: Solution
    thoughts: tuple[str, ...] = ()
    """Of an agent's trace: what was thought before each step's action, "" for nothing. The beginning of the step's text, or beside it."""
    outcome: bool | None = None
    """Whether the final answer is right; None when unknown."""
    suggestions: tuple[Suggestion | None, ...] = ()
    """One a step, or empty when there are none."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What else the source row held, kept for the export."""


def read_items(project: Project, tally: Counts | None = None) -> list[Item]:
    """All items of a project, in their order; `tally` counts what was left out.

    Raises:
        InputError: with `FILE:LINE`: a row that is not of its format, an id that stands twice; with `FILE`, an unrecognised format.
    """
    places: dict[str, str] = {}
    items: list[Item] = []
    for file in project.items:
        for where, item in items_of_file(file, project, tally):
            if item.id in places:
                raise InputError(
                    f"the id {item.id!r} stands twice (first: {places[item.id]}): each solution needs an id of its own",
                    where=where,
                    field="id",
                )
            places[item.id] = where
            items.append(item)
    return items


def items_of_file(
    file: str | Path, project: Project, tally: Counts | None = None
) -> Iterator[tuple[str, Item]]:
    """The items of one file as a stream, each with its FILE:LINE.

    Raises:
        InputError: as `read_items`, but for ids.
    """
    counted = tally or Counts()
    for row, format in _formats(read_rows(file, columns=project.columns), project):
        try:
            for item in _items(row, format, project, counted):
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


def _items(row: Row, format: str, project: Project, tally: Counts) -> Iterator[Item]:
    if format == TRACES:
        yield _of_trace(row, project, tally)
        return
    reader = format_named(format).read
    row, graded = ungraded(row), row
    results = list(reader(row, ReaderSettings(quality_control=True), tally))
    spoken: list[LabelledRow] = []
    if any(labelled.solution.split == "agent" for labelled in results):
        with suppress(InputError):  # a conversation of nothing but thoughts
            spoken = list(reader(row, ReaderSettings(quality_control=True, reasoning="drop"), Counts()))
    for labelled, without in zip_longest(results, spoken[: len(results)]):
        suggestions = suggestions_of(labelled.labelled.on_axis(project.axis))
        if not suggestions and is_graded(graded):
            suggestions = score_row(graded, len(labelled.solution.steps)).suggestions()
        yield Item(
            id=labelled.solution.id or labelled.origin,
            solution=labelled.solution,
            thoughts=_thoughts(labelled.solution, () if without is None else without.solution.texts),
            outcome=labelled.outcome,
            suggestions=suggestions,
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


def _of_trace(row: Row, project: Project, tally: Counts) -> Item:
    own = isinstance(row.data.get(project.steps_key), list)
    trace = shown(
        row,
        PotatoFields(
            id=project.id_key,
            problem=project.text_key,
            steps=project.steps_key if own or project.steps_key not in STEPS_KEYS else None,
            text=project.step_text_key,
        ),
    )
    meta = origin(row, TRACES, {})
    return Item(
        id=trace.solution.id or row.place,
        solution=trace.solution,
        thoughts=trace.thoughts,
        outcome=outcome_of(row.data) if "outcome" in row.data else outcome_of(meta),
        meta=meta,
    )


def suggestions_of(labelled: LabelledSolution) -> tuple[Suggestion | None, ...]:
    """What the judges of a solution that is labelled on one axis say of each step; empty where they say nothing."""
    judges = {judgement.judge for step in labelled.judgements for judgement in step}
    if len(judges) > 1:
        (axis,) = labelled.axes
        view = Consensus(rule="majority", least=1, axis=axis).view(labelled)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRow:
    """What a row of a file of scores says."""

    prm: str
    scores: tuple[float | None, ...]
    threshold: float | None = None
    score_kind: ScoreKind = "probability"
    critiques: tuple[tuple[str, ...], ...] | None = None

    def suggestions(self) -> Suggestions:
        """Of each step."""
        steps = StepScores(scores=self.scores, kind=self.score_kind, critiques=self.critiques)
        return _of_scores(self.prm, steps, self.threshold)


def score_row(row: Row, steps: int) -> ScoreRow:
    """The scores of a row, one for each of so many steps.

    Raises:
        InputError: another number of scores, a score out of range, a field of another type.
    """
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


def view(item: Item, project: Project) -> dict[str, Any]:
    """What a page shows of an item, as plain data: nothing of who wrote it, of `suggestions`, `outcome` and `meta`; the reference answer where
    the project shows it. Texts are HTML in which everything from outside is escaped (`text_html`)."""
    solution = item.solution
    is_trace = bool(item.thoughts) or any(step.observation or step.speaker for step in solution.steps)
    thoughts = item.thoughts or ("",) * len(solution.steps)
    answer = solution.problem.answer if project.show_answer else None
    return {
        "id": item.id,
        "problem": _part("text", solution.problem.text),
        "answer": None if answer is None else _part("text", answer),
        "trace": is_trace,
        "steps": [
            {
                "speaker": None if step.speaker is None else visible(step.speaker),
                "parts": list(_parts(step.text, thought, step.observation or "", is_trace)),
            }
            for step, thought in zip(solution.steps, thoughts, strict=True)
        ],
    }


_CALL = re.compile(r"([\w.:-]{1,80})\((\{.*\}|)\)")
"""A line `name(arguments)`, as an agent's calls are written."""
_HEADING = re.compile(r"(?:^|\n\n)(Tool|User|System|Developer|Assistant)(?: \(([^()\n]*)\))?:\n")
"""What stands before each thing that came back after a turn."""
_TALL = {"text": (26, 2600), "thought": (26, 2600), "turn": (26, 2600), "call": (6, 600), "output": (6, 600)}
"""Lines and characters from which a part is shown folded."""
_LONGEST = 200_000
"""Longer texts are shown without formulas."""


def _parts(text: str, thought: str, observation: str, is_trace: bool) -> Iterator[dict[str, Any]]:
    """A step and what came back after it, as what is shown one below the other."""
    if thought:
        yield _part("thought", thought, "thought")
        text = text.removeprefix(thought).lstrip("\n")
    lines, calls = text.split("\n"), list[re.Match[str]]()
    while is_trace and lines and (call := _CALL.fullmatch(lines[-1])):
        calls.insert(0, call)
        lines.pop()
    if "".join(lines).strip():
        yield _part("text", "\n".join(lines) if not calls else "\n".join(lines).rstrip())
    for call in calls:
        yield _part("call", _indented(call[2]), call[1])
    before, *rest = _HEADING.split(observation)
    if before.strip():
        yield _part("output", before.strip(), "tool")
    for role, name, content in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if content.strip():
            yield _part(
                "output" if role == "Tool" else "turn",
                content.strip("\n"),
                name or ("tool" if role == "Tool" else role),
            )


def _part(kind: str, text: str, label: str = "") -> dict[str, Any]:
    most, characters = _TALL[kind]
    lines = text.count("\n") + 1
    long = amount(lines, "line") if lines > most else amount(len(text), "character")
    language = "" if kind in ("call", "output") or len(text) > _LONGEST else None
    return {
        "kind": kind,
        "label": visible(label),
        "html": text_html(text, language=language) if text else "",
        "long": long if lines > most or len(text) > characters else None,
    }


def _indented(arguments: str) -> str:
    """JSON on several lines, where that changes nothing but white space; anything else as it is."""
    try:
        laid_out = json.dumps(json.loads(arguments), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return arguments
    return laid_out if _packed(laid_out) == _packed(arguments) else arguments


def _packed(text: str) -> str:
    return "".join(text.split())
