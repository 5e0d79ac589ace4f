"""What an annotation project is: its settings, read strictly from `project.yaml`, the command line, or a Potato configuration.

`load_project` (`loading.py`) reads one. A project needs no file of its own: `stepmark annotate ITEMS.jsonl` is one with the defaults.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from stepmark.annotation.marks import Change, Mode
from stepmark.catalog import unknown_name
from stepmark.errors import InputError, SettingError
from stepmark.settings import settings


@settings
class RewardLabels:
    """Words on the buttons."""

    correct: str = "Correct"
    neutral: str = "Neutral"
    incorrect: str = "Wrong"


@settings
class Limits:
    """What is refused before it costs anything."""

    upload_bytes: Annotated[int, Field(ge=1)] = 64 * 1024 * 1024
    """Of one uploaded file of items."""
    body_bytes: Annotated[int, Field(ge=1024)] = 256 * 1024
    """Of any other request."""
    steps: Annotated[int, Field(ge=1)] = 10_000
    """Of one item."""
    item_characters: Annotated[int, Field(ge=1)] = 2_000_000
    """Of one item: its problem, steps, and what the tools answered."""
    note_characters: Annotated[int, Field(ge=1)] = 4000
    requests_per_second: Annotated[float, Field(ge=0.1)] = 50.0
    """Of one account, sustained; a burst of four seconds' worth is let through."""
    logins_per_minute: Annotated[int, Field(ge=1)] = 20
    """Failed ones, of one address."""


@settings
class Screening:
    """A test that every annotator passes before real work."""

    items: Path | None = None
    """A file of items with their right labels, read as those of the project; None: no screening."""
    pass_mark: Annotated[float, Field(ge=0, le=1)] = 0.75
    """Share of items whose first error (or all of whose ratings) must agree, in [0, 1]."""


@settings
class Gold:
    """Items with known labels, hidden among the work."""

    items: Path | None = None
    """A file of items with their right labels, read as those of the project; None: no gold items."""
    every: Annotated[int, Field(ge=2)] = 10
    """One gold item in this many."""


@settings
class Help:
    """What machines say, and when annotators see it."""

    show: Literal["never", "after", "before"] = "never"
    """`after`: once the annotator has submitted a first pass, who may then change it; `before`: from the start."""
    require_verification: bool = False
    """Every suggestion must be accepted or overridden before the item counts."""


@settings
class Project:
    """All settings of a project. Its fields are the keys of `project.yaml`."""

    name: str | None = None
    """What annotators read at the top; None: the name of the first file of items, without its ending."""
    description: str | None = None
    """What annotators are asked to do; None: a sentence about the mode."""
    mode: Mode = "first_error"
    allow_neutral: bool = False
    """`per_step` only."""
    reward_labels: RewardLabels = field(default_factory=RewardLabels)
    items: tuple[Path, ...] = ()
    """Files of items, in any format that `stepmark convert` reads, plain solutions, or traces."""
    format: str | None = None
    """Their format: one of `stepmark.convert`'s, or `traces` (rows with a list of steps under `steps_key`, as Potato shows them);
    None: told by each file's first row."""
    columns: dict[str, str] = field(default_factory=dict)
    """Which column of the files is what, where its name is neither ours nor a common one: {problem: question}; docs: files."""
    labels: Literal["ignore", "suggestions", "gold"] = "suggestions"
    """What labels become that stand in the files of `items`: suggestions (shown as `help.show` says), or gold: who labels such an item is
    measured by it."""
    id_key: str = "id"
    """Where a trace has its id."""
    text_key: str | None = None
    """Where a trace has its problem; None: under task_description, problem, question, prompt or text."""
    steps_key: str = "steps"
    """Where a trace has its steps."""
    step_text_key: str = "action"
    """Where a step of a trace has its text; where it has none, content, reasoning, text and thought are tried."""
    inline_with_trace: bool = False
    """The control stands beside each step of the rendered trace."""
    show_answer: bool = False
    """The reference answer is shown."""
    error_types: tuple[str, ...] = ()
    """A taxonomy to choose from for wrong steps; empty: none is asked."""
    overlap: Annotated[int, Field(ge=1)] = 1
    """How many annotators label each item."""
    blind: bool = True
    """Annotators see neither who wrote a solution nor what others said of it."""
    lease_minutes: Annotated[float, Field(ge=0.1)] = 30.0
    """How long an item that is shown to somebody is kept from others, since their last change."""
    order: Literal["given", "active"] = "given"
    """`active`: convincing wrong answers first, then uncertain and disputed ones."""
    seed: int = 0
    """Of the places of hidden gold items."""
    screening: Screening = field(default_factory=Screening)
    gold: Gold = field(default_factory=Gold)
    help: Help = field(default_factory=Help)
    limits: Limits = field(default_factory=Limits)
    resume: Path | None = None
    """A folder of Potato's (or one of its files) whose labels the project starts with."""

    @property
    def title(self) -> str:
        """`name`, or what stands in its place."""
        if self.name is not None:
            return self.name
        return self.items[0].name.partition(".")[0] or "annotations" if self.items else "annotations"

    @property
    def task(self) -> str:
        """`description`, or what stands in its place."""
        if self.description is not None:
            return self.description
        if self.mode == "first_error":
            return "Find the first wrong step of the solution, or say that no step is wrong."
        return "Rate each step of the solution."


def check_settings(project: Project) -> None:
    """Refuse settings that are each right and do not work together. `loading.load_project` calls it.

    Raises:
        SettingError: a blank name, `allow_neutral` in mode `first_error`, error types that are blank or alike.
    """
    for key, text in (("name", project.title), ("steps_key", project.steps_key), ("id_key", project.id_key)):
        if not text.strip():
            raise SettingError(key, text, "a text that is not blank")
    if project.allow_neutral and project.mode == "first_error":
        raise SettingError(
            "allow_neutral", True, "false in mode first_error, which has no neutral; or mode: per_step"
        )
    blank = [name for name in project.error_types if not name.strip()]
    if blank or len(set(project.error_types)) < len(project.error_types):
        raise SettingError("error_types", list(project.error_types), "different names, none of them blank")


def check_change(project: Project, change: Change) -> None:
    """Refuse a change for what the project says; what the item's own state says is checked by `marks.Folding.take`.

    Raises:
        InputError: a note over `limits.note_characters`, an error type that the project has not.
        UnknownNameError: an error type that is not in `error_types`; the message names the nearest.
    """
    text = change.text
    if text is None:
        return
    if change.kind == "error_type" and text and text not in project.error_types:
        if not project.error_types:
            raise InputError("this project has no error types", field="text")
        raise unknown_name("error type", text, project.error_types)
    if len(text) > project.limits.note_characters:
        raise InputError(
            f"expected at most {project.limits.note_characters} characters, found {len(text)}: shorten the note",
            field="text",
        )
