"""What an annotation project is: its settings, read strictly from `project.yaml`, the command line, or a Potato configuration.

`load_project` reads one. A project needs no file of its own: `stepmark annotate ITEMS.jsonl` is one with the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import Field

from stepmark.annotation.marks import Change, Mode
from stepmark.data.json_rows import json_type
from stepmark.data.labelled import FORMATS
from stepmark.data.reading import check_readable, read_rows
from stepmark.data.settings_file import read_settings
from stepmark.data.solutions import is_graded
from stepmark.errors import InputError, SettingError, UnknownNameError
from stepmark.records import DEFAULT_AXIS, read_record
from stepmark.registry import unknown_name
from stepmark.settings import settings

TRACES = "traces"
"""The format of items that Potato shows: rows with a list of steps, of any further keys."""

NOTE_CHARACTERS = 4000
"""Of one note."""

Record = TypeVar("Record")


@settings
class RewardLabels:
    """Words on the buttons."""

    correct: str = "Correct"
    neutral: str = "Neutral"
    incorrect: str = "Wrong"


@settings
class Help:
    """What machines say, and when annotators see it."""

    show: Literal["never", "after", "before"] = "never"
    """`after`: once the annotator has submitted a first pass, who may then change it; `before`: from the start."""


@settings
class Project:
    """All settings of a project. Its fields are the keys of `project.yaml`."""

    name: str | None = None
    """What annotators read at the top; None: the name of the first file of items, without its ending."""
    description: str | None = None
    """What annotators are asked to do; None: a sentence about the mode."""
    axis: str = DEFAULT_AXIS
    """What is judged: the name of a criterion. Default: whether the step is right. Several criteria are several projects of the same items."""
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
    id_key: str = "id"
    """Where a trace has its id."""
    text_key: str | None = None
    """Where a trace has its problem; None: under task_description, problem, question, prompt or text."""
    steps_key: str = "steps"
    """Where a trace has its steps."""
    step_text_key: str = "action"
    """Where a step of a trace has its text; where it has none, content, reasoning, text and thought are tried."""
    inline_with_trace: bool = False
    """A trace is shown as one conversation, the rating beside each turn of the agent; else each step is a card, with what came back in it."""
    show_answer: bool = False
    """The reference answer is shown."""
    error_types: tuple[str, ...] = ()
    """A taxonomy to choose from for wrong steps; empty: none is asked."""
    overlap: Annotated[int, Field(ge=1)] = 1
    """How many annotators label each item."""
    help: Help = field(default_factory=Help)

    @property
    def title(self) -> str:
        """`name`, or what stands in its place."""
        if self.name is not None:
            return self.name
        return (self.items[0].name.partition(".")[0] if self.items else "") or "annotations"

    @property
    def task(self) -> str:
        """`description`, or what stands in its place."""
        if self.description is not None:
            return self.description
        if self.axis != DEFAULT_AXIS:
            first = self.mode == "first_error"
            return f"{'Find the first step that fails' if first else 'Rate each step by'} the criterion: {self.axis}."
        if self.mode == "first_error":
            return "Find the first wrong step of the solution, or say that no step is wrong."
        return "Rate each step of the solution."


def check_change(project: Project, change: Change) -> None:
    """Refuse a change that the project's settings forbid; `labels.Folding.take` checks it against the item's state.

    Raises:
        InputError: a note of more than `NOTE_CHARACTERS`, an error type in a project without any.
        UnknownNameError: an error type that is not in `error_types`; the message names the nearest.
    """
    text = change.text
    if text is None:
        return
    if change.kind == "error_type" and text and text not in project.error_types:
        if not project.error_types:
            raise InputError("this project has no error types", field="text")
        raise unknown_name("error type", text, project.error_types)
    if len(text) > NOTE_CHARACTERS:
        raise InputError(
            f"expected at most {NOTE_CHARACTERS} characters, found {len(text)}: shorten the note",
            field="text",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A project, and what of its file is not used."""

    project: Project
    notes: tuple[str, ...] = ()
    """In words: keys that are not used, schemes that are not shown."""


def load_project(path: str | Path, settings: Mapping[str, Any] | None = None) -> Loaded:
    """A project from a `.yaml` file of settings or of a Potato configuration (it has `annotation_schemes`), or from a file of items.

    `settings` are more, as plain data with the same keys (a part's as a mapping), which override the file's. Suggestions are shown from the
    start where the items were graded, and no project says otherwise.

    Raises:
        InputError: with `FILE:KEY`: a key that is not known (the nearest is named), a value of another type or out of range, a file that
            is not there; with `FILE:LINE`, no YAML.
        MissingExtraError: PyYAML is not installed.
    """
    file, notes = Path(path), list[str]()
    check_readable(str(file), folder=True)
    if file.suffix not in (".yaml", ".yml"):
        shown = {"help": {"show": "before"}} if is_graded(next(read_rows(file))) else {}
        given = {"items": [str(file)], **shown, **(settings or {})}
        return Loaded(project=_project(given, "command line", Path()))
    data = read_settings(file)
    if "annotation_schemes" in data:
        data, notes = potato_settings(data, str(file))
    project = _project(_merged(data, settings or {}), str(file), file.parent)
    if not project.items:
        raise InputError(
            "expected at least one file of items: items: [solutions.jsonl]", where=f"{file}:items"
        )
    return Loaded(project=project, notes=tuple(notes))


def _project(data: dict[str, Any], where: str, folder: Path) -> Project:
    items = data.get("items", [])
    project = _read(Project, data | {"items": items if isinstance(items, list) else [items]}, f"{where}:")

    def found(path: Path) -> Path:
        file = folder / path.expanduser()
        if not file.exists():
            raise InputError(
                f"there is no {file}; names are relative to {folder.resolve().name}/", where=f"{where}:items"
            )
        return file

    try:
        _check_settings(project)
    except SettingError as error:
        message = f"expected {error.expected}, found {error.value!r}"
        raise InputError(message, where=f"{where}:{error.setting}") from None
    except UnknownNameError as error:
        raise InputError(str(error), where=f"{where}:format") from None
    return replace(project, items=tuple(map(found, project.items)))


def _check_settings(project: Project) -> None:
    """Refuse settings that are each right and do not work together."""
    for key, text in (
        ("axis", project.axis),
        ("name", project.title),
        ("steps_key", project.steps_key),
        ("id_key", project.id_key),
    ):
        if not text.strip():
            raise SettingError(key, text, "a text that is not blank")
    if project.allow_neutral and project.mode == "first_error":
        raise SettingError(
            "allow_neutral", True, "false in mode first_error, which has no neutral; or mode: per_step"
        )
    types = [name.strip() for name in project.error_types]
    if "" in types or len({*types}) < len(types):
        raise SettingError("error_types", list(project.error_types), "different names, none of them blank")
    formats = (*FORMATS, TRACES)
    if project.format not in (None, *formats):
        raise unknown_name("format", str(project.format), formats)


def _read(record: type[Record], data: Mapping[str, Any], where: str) -> Record:
    """A record from plain data.

    Raises:
        InputError: with `where` and the key behind it: an unknown key (the nearest is named), a value that does not fit.
    """
    _check_keys(record, data, where)
    try:
        return read_record(record, data)
    except InputError as error:
        message = error.message.removeprefix(f"{record.__name__}: ")
        raise InputError(message, where=f"{where}{error.field or ''}") from None


def _check_keys(record: type[Any], data: Any, where: str) -> None:
    if not isinstance(data, Mapping):
        raise InputError(f"expected settings by name, found {json_type(data)}", where=where.rstrip(".:"))
    hints = get_type_hints(record)
    for key, value in data.items():
        if key not in hints:
            message = str(unknown_name("setting", str(key), tuple(hints)))
            raise InputError(message, where=f"{where}{key}")
        if is_dataclass(hints[key]):
            _check_keys(hints[key], value, f"{where}{key}.")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    parts = {
        key: _merged(below[key], value)
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **above, **parts}


@settings
class _Scheme:
    """The options of Potato's scheme `process_reward`; the defaults are those of `Project`, as Potato's are."""

    annotation_type: str
    name: str
    description: str
    steps_key: str | None = None
    step_text_key: str | None = None
    mode: Mode | None = None
    allow_neutral: bool = False
    reward_labels: RewardLabels = field(default_factory=RewardLabels)
    inline_with_trace: bool = False
    ai_prelabel: bool = False


@settings
class _Potato:
    """The keys of a Potato configuration that are used."""

    annotation_schemes: tuple[dict[str, Any], ...]
    data_files: tuple[str, ...]
    annotation_task_name: str | None = None
    item_properties: dict[str, Any] = field(default_factory=dict)
    task_dir: str = "."


_UNUSED_OPTIONS = ("label_requirement", "required", "layout", "annotation_id", "require_verification")
_SHARED = ("description", "steps_key", "step_text_key", "mode", "reward_labels", "inline_with_trace")


def potato_settings(config: Mapping[str, Any], file: str) -> tuple[dict[str, Any], list[str]]:
    """The settings of a project that a Potato configuration amounts to, and what of it is not used, in words.

    Raises:
        InputError: with `FILE:KEY`: no scheme `process_reward` or several, an option that the scheme does not know (the nearest is named),
            no data files, `cot_segmentation`.
    """
    if "cot_segmentation" in config:
        raise InputError(
            "texts are not cut into steps while a project is read: cut them first (`stepmark.convert` to solutions) and name that "
            "file under data_files",
            where=f"{file}:cot_segmentation",
        )
    used = get_type_hints(_Potato)
    given = _read(_Potato, {key: value for key, value in config.items() if key in used}, f"{file}:")
    for name in given.data_files:
        if name.endswith((".csv", ".tsv")):
            raise InputError(
                f"expected JSON lines or JSON, which alone hold lists of steps; found {name}",
                where=f"{file}:data_files",
            )
    settings, notes = _scheme(given.annotation_schemes, f"{file}:annotation_schemes")
    if unused := [str(key) for key in config if key not in used]:
        notes.append(f"keys that are not used: {', '.join(unused)}")
    keys = {key: given.item_properties.get(key) for key in ("id_key", "text_key")}
    return {
        "name": given.annotation_task_name,
        "format": TRACES,
        "items": [str(Path(given.task_dir) / name) for name in given.data_files],
        **{key: value for key, value in keys.items() if value is not None},
        **settings,
    }, notes


def _scheme(schemes: Sequence[Mapping[str, Any]], place: str) -> tuple[dict[str, Any], list[str]]:
    kinds = [str(scheme.get("annotation_type")) for scheme in schemes]
    if kinds.count("process_reward") != 1:
        raise InputError(
            f"expected one scheme with annotation_type: process_reward, found {kinds.count('process_reward')} "
            f"(schemes: {', '.join(kinds) or 'none'})",
            where=place,
        )
    at = kinds.index("process_reward")
    data = {key: value for key, value in schemes[at].items() if key not in _UNUSED_OPTIONS}
    scheme = _read(_Scheme, data, f"{place}.{at}.")
    neutral = scheme.allow_neutral and scheme.mode == "per_step"
    notes = []
    if scheme.allow_neutral and not neutral:
        notes.append("allow_neutral is for mode: per_step alone, and is off (as in Potato)")
    if unused := [key for key in schemes[at] if key in _UNUSED_OPTIONS]:
        notes.append(f"options of the scheme that are not used: {', '.join(unused)}")
    if others := [f"{other.get('name', n)} ({kinds[n]})" for n, other in enumerate(schemes) if n != at]:
        notes.append(f"schemes that are not shown, since only process_reward is: {', '.join(others)}")
    help = {"show": "before" if scheme.ai_prelabel else "never"}
    shared = {key: data[key] for key in _SHARED if data.get(key) is not None}
    return {**shared, "allow_neutral": neutral, "help": help}, notes
