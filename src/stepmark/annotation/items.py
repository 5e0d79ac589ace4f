"""What annotators are shown: one solution, cut into steps, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from stepmark.annotation.marks import Marks, marks_data, read_marks
from stepmark.annotation.project import Help, Project
from stepmark.errors import InputError
from stepmark.records import Solution, read_record, to_data


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of a rendered trace (`inline_with_trace`)."""

    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    """Tool calls: (name, arguments or input as text)."""
    outputs: tuple[str, ...] = ()
    """What the tools answered."""
    step: int | None = None
    """The step that this turn is; None for a turn that nobody rates (the user's, a tool's)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """What a machine says of one step."""

    judge: str
    """Whose it is: a PRM's name, "rollout", a judge's name."""
    rating: Literal[-1, 0, 1] | None = None
    """What it amounts to; None when it says no more than a number."""
    score: float | None = None
    """In [0, 1]; None where it gives none."""
    reason: str | None = None
    """In words, where there are any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A solution to be labelled."""

    id: str
    """Unique in the project."""
    solution: Solution
    trace: tuple[Turn, ...] = ()
    """The whole trace as it is shown when the project has `inline_with_trace`; empty: the steps alone."""
    outcome: bool | None = None
    """Whether the final answer is right; None when nobody says."""
    suggestions: tuple[Suggestion | None, ...] = ()
    """One a step, or empty when there are none."""
    gold: Marks | None = None
    """What is known to be right: for the screening set and hidden gold items. Never sent to an annotator."""
    role: Literal["work", "gold", "screening"] = "work"
    order: float = 0.0
    """The higher the earlier, where the project says `order: active`; made from scores and disputes."""
    potato_index: tuple[int, ...] | None = None
    """For each step, its index in Potato's list of steps, which counts turns of users and tools too; None: the same."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What else the source row held, kept for the export."""


def unverified(item: Item, marks: Marks) -> tuple[int, ...]:
    """Judged steps whose suggestion the annotator has neither accepted nor overridden; 0-based."""
    return tuple(
        step
        for step, (said, rating) in enumerate(zip(item.suggestions, marks.ratings, strict=False))
        if said is not None and rating is not None and step not in marks.verified
    )


def counts(item: Item, marks: Marks, help: Help) -> bool:
    """Whether an answer counts: it is submitted and, where the project has `require_verification`, no suggestion is left to verify."""
    return marks.submitted and not (
        help.show != "never" and help.require_verification and unverified(item, marks)
    )


def view(item: Item, project: Project) -> dict[str, Any]:
    """What an annotator is sent of an item, as plain data: nothing of `gold`, `role`, `order`, `suggestions`, `outcome` and `meta`; no answer
    unless the project shows it; no source where it is blind; the trace where the control stands beside it."""
    solution = item.solution
    trace = item.trace if project.inline_with_trace else ()
    return {
        "id": item.id,
        "problem": solution.problem.text,
        "answer": solution.problem.answer if project.show_answer else None,
        "steps": [{"text": step.text, "observation": step.observation} for step in solution.steps],
        "trace": [
            {
                "role": turn.role,
                "text": turn.text,
                "calls": [list(call) for call in turn.calls],
                "outputs": list(turn.outputs),
                "step": turn.step,
            }
            for turn in trace
        ],
        "outcome": None,
        "source": None if project.blind else solution.source,
    }


def item_data(item: Item) -> dict[str, Any]:
    """An item as plain data for JSON; `read_item` reads it back."""
    return {
        "id": item.id,
        "solution": to_data(item.solution),
        "trace": [asdict(turn) for turn in item.trace],
        "outcome": item.outcome,
        "suggestions": [None if said is None else asdict(said) for said in item.suggestions],
        "gold": None if item.gold is None else marks_data(item.gold),
        "role": item.role,
        "order": item.order,
        "potato_index": None if item.potato_index is None else list(item.potato_index),
        "meta": dict(item.meta),
    }


def read_item(data: Mapping[str, Any], *, where: str | None = None) -> Item:
    """An item from what `item_data` wrote.

    Raises:
        InputError: another shape; the error names the field.
    """
    gold = data.get("gold")
    if not isinstance(gold, Mapping | None):
        raise InputError("expected marks or null", where=where, field="gold")
    rest = read_record(Item, {key: value for key, value in data.items() if key != "gold"}, where=where)
    if gold is None:
        return rest
    return replace(rest, gold=read_marks(gold, where=where))
