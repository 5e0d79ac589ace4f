"""A configuration of Potato's with a `process_reward` scheme is a project.

Taken up: of the scheme, all that Potato knows (`SCHEME`), with Potato's defaults; of the file, `data_files`, `item_properties` {`id_key`,
`text_key`}, `task_dir` (paths are relative to it, and it to the file) and `output_annotation_dir`, whose labels the project resumes
where the folder is there. `ai_prelabel` shows suggestions from the start.

What is different here, and why:

- Turns of the user and of tools are no steps: nobody rates them, and Potato marks them +1 "human".
- `require_verification` is kept to; Potato (2.12.1) reads it and does nothing.
- Other schemes of the same file (a choice, a text) are not shown; other keys of the file are not used. Both are told by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepmark.errors import InputError
from stepmark.store import json_type

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
