"""Settings that a person writes into a file: TOML, YAML or JSON, one table of names, no name twice."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from stepmark.data.json_rows import json_type, parse_value
from stepmark.errors import InputError, MissingExtraError

ENDINGS = (".toml", ".yaml", ".yml", ".json")
"""The files that are read."""


def read_settings(file: Path) -> dict[str, Any]:
    """The table of a file, which is read by its ending.

    Raises:
        InputError: with `FILE:LINE` where it is known: there is no such file, not of its format, no table, a name twice.
        MissingExtraError: a YAML file, and PyYAML is not installed.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"it cannot be read: {error.strerror}", where=str(file)) from None
    except UnicodeDecodeError:
        raise InputError("expected a text in UTF-8, found other bytes", where=str(file)) from None
    if file.suffix == ".toml":
        try:
            data: Any = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"no TOML: {error}", where=str(file)) from None
    elif file.suffix == ".json":
        try:
            data = parse_value(text)
        except InputError as error:
            raise error.at(str(file)) from None
    else:
        data = _yaml(text, file)
    if not isinstance(data, dict):
        raise InputError(f"expected settings by name, found {json_type(data)}", where=str(file))
    return data


def _yaml(text: str, file: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError('a YAML file needs PyYAML: pip install "stepmark[annotate]"') from error

    class Loader(yaml.SafeLoader):
        """Refuses keys that YAML would let overwrite each other."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys: list[Any] = []
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if key in keys:
                    line = key_node.start_mark.line + 1
                    raise InputError(f"the key {key!r} stands twice; expected once", where=f"{file}:{line}")
                keys.append(key)
            made: dict[Any, Any] = super().construct_mapping(node, deep)
            return made

    try:
        return yaml.load(text, Loader)  # noqa: S506  # it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"no YAML: {error.problem or error.context}", where=f"{file}:{line}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"no YAML: {error}", where=str(file)) from None
