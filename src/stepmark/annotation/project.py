"""What an annotation project is: its settings, read strictly from `project.yaml`, the command line, or a Potato configuration.

`load_project` reads one. A project needs no file of its own: `stepmark annotate ITEMS.jsonl` is one with the defaults.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import Field

from stepmark.annotation.marks import Change, Mode
from stepmark.catalog import unknown_name
from stepmark.errors import InputError, MissingExtraError, SettingError
from stepmark.records import read_record
from stepmark.settings import settings
from stepmark.solutions.interchange.formats import FORMATS
from stepmark.store import check_readable, json_type


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
    """How long an item that is shown to one annotator is withheld from others, since their last change."""
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


SCHEME = (
    "steps_key",
    "step_text_key",
    "mode",
    "allow_neutral",
    "inline_with_trace",
    "reward_labels",
    "ai_prelabel",
    "require_verification",
)
"""Options of the scheme beside `annotation_type`, `name` and `description`."""
_ANY_SCHEME = ("label_requirement", "required", "layout", "annotation_id")
_USED = ("annotation_schemes", "data_files", "item_properties", "task_dir", "output_annotation_dir")
_SURELY_MEANT = 0.85


def potato_settings(config: Mapping[str, Any], file: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings of a project (`loading.settings_from`) that a configuration amounts to, and what is not taken up, in words.

    Raises:
        InputError: with `FILE:KEY`: no scheme `process_reward` or several, an option that the scheme does not know (the nearest is named),
            no data files, `cot_segmentation`.
    """
    schemes = config["annotation_schemes"]
    if not isinstance(schemes, list) or not all(isinstance(scheme, dict) for scheme in schemes):
        raise InputError(
            f"expected a list of schemes, found {json_type(schemes)}", where=f"{file}:annotation_schemes"
        )
    wanted = [at for at, scheme in enumerate(schemes) if scheme.get("annotation_type") == "process_reward"]
    if len(wanted) != 1:
        kinds = ", ".join(str(scheme.get("annotation_type")) for scheme in schemes) or "none"
        raise InputError(
            f"expected one scheme with annotation_type: process_reward, found {len(wanted)} (schemes: {kinds})",
            where=f"{file}:annotation_schemes",
        )
    place = f"{file}:annotation_schemes.{wanted[0]}"
    settings, notes = _scheme(schemes[wanted[0]], place)
    others = [
        f"{scheme.get('name', at)} ({scheme.get('annotation_type')})"
        for at, scheme in enumerate(schemes)
        if at != wanted[0]
    ]
    if others:
        notes.append(f"schemes that are not shown, since only process_reward is: {', '.join(others)}")
    settings |= _files(config, file)
    unused = [key for key in config if key not in _USED]
    for key in unused:
        near = difflib.get_close_matches(str(key), _USED, n=1, cutoff=_SURELY_MEANT)
        if near and near[0] not in config:
            raise InputError(f"there is no key {key}. Did you mean {near[0]!r}?", where=f"{file}:{key}")
    if "cot_segmentation" in unused:
        raise InputError(
            "texts are not cut into steps while a project is read: cut them first (`stepmark.convert` to solutions) and name that "
            "file under data_files",
            where=f"{file}:cot_segmentation",
        )
    if unused:
        notes.append(f"keys that are not used: {', '.join(map(str, unused))}")
    return settings, tuple(notes)


def _scheme(scheme: Mapping[str, Any], place: str) -> tuple[dict[str, Any], list[str]]:
    known = ("annotation_type", "name", "description", *SCHEME)
    for key in scheme:
        if key not in known and key not in _ANY_SCHEME:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"process_reward has no option {key}.{hint} Known: {', '.join(known)}", where=f"{place}.{key}"
            )
    for key in ("name", "description"):
        if not isinstance(scheme.get(key), str):
            raise InputError(f"expected a text, found {json_type(scheme.get(key))}", where=f"{place}.{key}")
    for key in ("allow_neutral", "inline_with_trace", "ai_prelabel", "require_verification"):
        if not isinstance(scheme.get(key, False), bool):
            raise InputError(
                f"expected true or false, found {json_type(scheme[key])}", where=f"{place}.{key}"
            )
    settings: dict[str, Any] = {
        key: scheme[key] for key in ("name", "description", *SCHEME[:-2]) if scheme.get(key) is not None
    }
    notes = []
    if scheme.get("allow_neutral") and scheme.get("mode", "first_error") == "first_error":
        settings["allow_neutral"] = False
        notes.append("allow_neutral is for mode: per_step alone, and is off (as in Potato)")
    settings["help"] = {
        "show": "before" if scheme.get("ai_prelabel") else "never",
        "require_verification": scheme.get("require_verification") is True,
    }
    unused = [key for key in scheme if key in _ANY_SCHEME]
    if unused:
        notes.append(f"options of the scheme that are not used: {', '.join(unused)}")
    return settings, notes


def _files(config: Mapping[str, Any], file: str) -> dict[str, Any]:
    task_dir = config.get("task_dir", ".")
    if not isinstance(task_dir, str):
        raise InputError(
            f"expected the name of a folder, found {json_type(task_dir)}", where=f"{file}:task_dir"
        )
    listed = config.get("data_files")
    if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
        raise InputError(
            f"expected a list of files, found {json_type(listed) if listed != [] else 'an empty one'}",
            where=f"{file}:data_files",
        )
    tables = [name for name in listed if name.endswith((".csv", ".tsv"))]
    if tables:
        raise InputError(
            f"expected JSON lines or JSON, which alone hold lists of steps; found {tables[0]}",
            where=f"{file}:data_files",
        )
    settings: dict[str, Any] = {"format": "traces", "items": [str(Path(task_dir) / name) for name in listed]}
    properties = config.get("item_properties", {})
    if not isinstance(properties, dict):
        raise InputError(
            f"expected id_key and text_key, found {json_type(properties)}", where=f"{file}:item_properties"
        )
    settings |= {key: properties[key] for key in ("id_key", "text_key") if properties.get(key) is not None}
    folder = config.get("output_annotation_dir")
    if isinstance(folder, str) and (Path(file).parent / task_dir / folder).is_dir():
        settings["resume"] = str(Path(task_dir) / folder)
    return settings


TRACES = "traces"
"""The format of items that Potato shows: rows with a list of steps, of any further keys."""
YAML = (".yaml", ".yml")
COMMAND_LINE = "command line"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A project, and what its file says that is not taken up."""

    project: Project
    notes: tuple[str, ...] = ()
    """In words, for the person who started it: keys that are not used, schemes that are not shown."""


def load_project(path: str | Path, settings: Mapping[str, Any] | None = None) -> Loaded:
    """A project from a file.

    Args:
        path: a `.yaml` (or `.yml`) file of settings, or of a Potato configuration (it has `annotation_schemes`); any other name is a file
            of items.
        settings: more settings, as plain data with the same keys (a part's as a mapping): what the command line says. They come before
            the file's, and their paths are relative to the working directory.

    Raises:
        InputError: with `FILE:KEY`: a key that is not known (the nearest is named), a value of another type or out of range, a file that
            is not there; with `FILE:LINE`, no YAML.
        MissingExtraError: PyYAML is not installed.
    """
    file = Path(path)
    given = settings_from(settings or {}, COMMAND_LINE, Path())
    if file.suffix not in YAML:
        check_readable(str(file))
        return Loaded(project=_made({"items": [str(file)], **given}, COMMAND_LINE))
    data = _yaml(file)
    if "annotation_schemes" in data:
        taken, notes = potato_settings(data, str(file))
    else:
        taken, notes = data, ()
    known = settings_from(taken, str(file), file.parent)
    project = _made(_merged(known, given), str(file))
    if not project.items:
        raise InputError(
            "expected at least one file of items: items: [solutions.jsonl]", where=f"{file}:items"
        )
    return Loaded(project=project, notes=notes)


def settings_from(data: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """Settings as plain data, with their keys checked and their paths made relative to the working directory.

    Raises:
        InputError: with `WHERE:KEY`: an unknown key, a file that is not there.
    """
    return _checked(Project, data, where, folder, "")


def _checked(record: type[Any], data: Any, where: str, folder: Path, before: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise InputError(
            f"expected settings by name, found {json_type(data)}", where=f"{where}:{before.rstrip('.')}"
        )
    hints = get_type_hints(record)
    checked: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            near = difflib.get_close_matches(str(key), list(hints), n=1, cutoff=0.5)
            hint = f" Did you mean {before + near[0]!r}?" if near else ""
            raise InputError(
                f"there is no setting {before}{key}.{hint} Known: {', '.join(before + name for name in hints)}",
                where=f"{where}:{before}{key}",
            )
        hint_type = hints[key]
        if is_dataclass(hint_type):
            assert isinstance(hint_type, type)
            checked[key] = _checked(hint_type, value, where, folder, f"{before}{key}.")
        elif Path in _parts(hint_type):
            checked[key] = _paths(hint_type, value, f"{where}:{before}{key}", folder)
        else:
            checked[key] = value
    return checked


def _parts(hint: Any) -> set[Any]:
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return set(get_args(hint))
    return {hint}


def _paths(hint: Any, value: Any, where: str, folder: Path) -> Any:
    if get_origin(hint) is tuple:
        listed = value if isinstance(value, list | tuple) else [value]
        return [_path(one, where, folder) for one in listed]
    return None if value is None else _path(value, where, folder)


def _path(value: Any, where: str, folder: Path) -> str:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise InputError(f"expected the name of a file, found {json_type(value)}", where=where)
    path = folder / Path(value).expanduser()
    if not path.exists():
        raise InputError(f"there is no {path}; names are relative to {folder.resolve().name}/", where=where)
    return str(path)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def _made(data: Mapping[str, Any], where: str) -> Project:
    try:
        project = read_record(Project, data)
        check_settings(project)
    except SettingError as error:
        raise InputError(
            f"expected {error.expected}, found {error.value!r}", where=f"{where}:{error.setting}"
        ) from None
    except InputError as error:
        raise InputError(
            error.message.removeprefix("Project: "), where=f"{where}:{error.field or 'settings'}"
        ) from None
    if project.format is not None and project.format not in (*FORMATS, TRACES):
        near = difflib.get_close_matches(project.format, [*FORMATS, TRACES], n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"there is no format {project.format!r}.{hint} Known: {', '.join((*FORMATS, TRACES))}",
            where=f"{where}:format",
        )
    return project


def _yaml(file: Path) -> dict[str, Any]:
    """A YAML mapping, without a key twice.

    Raises:
        InputError: with `FILE:LINE`.
    """
    check_readable(str(file))
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError('a project file needs PyYAML: pip install "stepmark[annotate]"') from error

    class Loader(yaml.SafeLoader):
        """Keeps keys apart that YAML would let overwrite each other."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                line = node.value[number][0].start_mark.line + 1
                raise InputError(f"the key {key!r} stands twice; expected once", where=f"{file}:{line}")
        made: dict[Any, Any] = loader.construct_mapping(node, deep=True)
        return made

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        data = yaml.load(file.read_text(encoding="utf-8-sig"), Loader)  # noqa: S506  # it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"no YAML: {error.problem or error.context}", where=f"{file}:{line}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"no YAML: {error}", where=str(file)) from None
    if not isinstance(data, dict):
        raise InputError(f"expected settings by name, found {json_type(data)}", where=str(file))
    return data


def setting_names() -> tuple[str, ...]:
    """All keys of a project file, those of a part with its name and a dot before them; in order."""
    names: list[str] = []
    hints = get_type_hints(Project)
    for setting in fields(Project):
        part = hints[setting.name]
        if is_dataclass(part):
            names += [f"{setting.name}.{inner.name}" for inner in fields(part)]
        else:
            names.append(setting.name)
    return tuple(names)
