"""What an annotation project is: its settings, read strictly from `project.yaml`, the command line, or a Potato configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stepmark.annotation.marks import Mode


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardLabels:
    """Words on the buttons."""

    correct: str = "Correct"
    neutral: str = "Neutral"
    incorrect: str = "Wrong"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What is refused before it costs anything."""

    upload_bytes: int = 64 * 1024 * 1024
    """Of one uploaded file of items."""
    body_bytes: int = 256 * 1024
    """Of any other request."""
    note_characters: int = 4000
    requests_per_second: float = 50.0
    """Of one account, sustained; a burst of four seconds' worth is let through."""
    logins_per_minute: int = 20
    """Failed ones, of one address."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Screening:
    """A test that every annotator passes before real work."""

    items: Path | None = None
    """A file of items with their right labels; None: no screening."""
    pass_mark: float = 0.75
    """Share of items whose first error (or all of whose ratings) must agree, in [0, 1]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gold:
    """Items with known labels, hidden among the work."""

    items: Path | None = None
    every: int = 10
    """One gold item in this many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Help:
    """What machines say, and when annotators see it."""

    show: Literal["never", "after", "before"] = "never"
    """`after`: once the annotator has submitted a first pass, who may then change it; `before`: from the start."""
    require_verification: bool = False
    """Every suggestion must be accepted or overridden before the item counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """All settings of a project. Its fields are the keys of `project.yaml`."""

    name: str = "step_rewards"
    """Also the schema's name in a Potato export."""
    description: str = "Rate each step of the solution."
    mode: Mode = "first_error"
    allow_neutral: bool = False
    """`per_step` only."""
    reward_labels: RewardLabels = field(default_factory=RewardLabels)
    items: tuple[Path, ...] = ()
    """Files of items, in any format that `stepmark convert` reads or plain solutions."""
    steps_key: str = "steps"
    step_text_key: str = "action"
    inline_with_trace: bool = False
    """The control stands beside each step of the rendered trace."""
    show_answer: bool = False
    """The reference answer is shown."""
    error_types: tuple[str, ...] = ()
    """A taxonomy to choose from for wrong steps; empty: none is asked."""
    overlap: int = 1
    """How many annotators label each item."""
    blind: bool = True
    """Annotators see neither who wrote a solution nor what others said of it."""
    lease_minutes: float = 30.0
    """How long an item that is shown to somebody is kept from others, since their last change."""
    order: Literal["given", "active"] = "given"
    """`active`: convincing wrong answers first, then uncertain and disputed ones."""
    seed: int = 0
    """Of the places of hidden gold items."""
    screening: Screening = field(default_factory=Screening)
    gold: Gold = field(default_factory=Gold)
    help: Help = field(default_factory=Help)
    limits: Limits = field(default_factory=Limits)
