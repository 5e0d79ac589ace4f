"""What annotators are shown: one solution, cut into steps, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepmark.annotation.marks import Marks, Rating
from stepmark.annotation.project import Help, Project
from stepmark.records import Solution


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
    gold: Marks | None = None
    """What is known to be right: for the screening set and hidden gold items. Never sent to an annotator."""
    role: Literal["work", "gold", "screening"] = "work"
    order: float = 0.0
    """The higher the earlier, where the project has `order: active`; made from scores and disputes."""
    potato_index: tuple[int, ...] | None = None
    """For each step, its index in Potato's list of steps, which counts turns of users and tools too; None: the same."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What else the source row held, kept for the export."""


def unverified(item: Item, marks: Marks) -> tuple[int, ...]:
    """Judged steps whose suggestion the annotator has neither accepted nor overridden; 0-based."""
    return tuple(
        step
        for step, (suggestion, rating) in enumerate(zip(item.suggestions, marks.ratings, strict=False))
        if suggestion is not None and rating is not None and step not in marks.verified
    )


def counts(item: Item, marks: Marks, help: Help) -> bool:
    """Whether an answer counts: it is submitted and, where the project has `require_verification`, no suggestion is left to verify."""
    required = help.show != "never" and help.require_verification
    return marks.submitted and not (required and unverified(item, marks))


def view(item: Item, project: Project) -> dict[str, Any]:
    """What an annotator is sent of an item, as plain data: nothing of `gold`, `role`, `order`, `suggestions`, `outcome` and `meta`; no answer
    unless the project shows it; no source where it is blind."""
    solution = item.solution
    thoughts = item.thoughts or ("",) * len(solution.steps)
    return {
        "id": item.id,
        "problem": solution.problem.text,
        "answer": solution.problem.answer if project.show_answer else None,
        "agent": bool(item.thoughts) or any(step.observation or step.speaker for step in solution.steps),
        "steps": [
            {
                "speaker": step.speaker,
                "thought": thought,
                "text": step.text.removeprefix(thought).lstrip("\n") if thought else step.text,
                "observation": step.observation,
            }
            for step, thought in zip(solution.steps, thoughts, strict=True)
        ],
        "source": None if project.blind else solution.source,
    }
