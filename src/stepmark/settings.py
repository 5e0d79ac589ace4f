"""Declared settings: a constraint stands in the type of a setting, and is checked here and nowhere else.

A method is a dataclass made by `settings`; a function of the public API that takes settings as keyword arguments is wrapped by `checked`.
Both read the same declarations, from which the command line makes its flags too. `width: Annotated[int, Field(ge=1)] = 4` refuses 0 with
"width=0: expected 1 or more".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from stepmark.errors import SettingError, UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
P = ParamSpec("P")

_PLAIN = (bool, int, float, str)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass whose values are checked against its annotations.

    Types are strict: no text for a number, no fraction for a whole number. `dataclasses.replace` checks too.

    Raises:
        SettingError: (the class, when called) a value does not fit its annotation.
    """
    from pydantic import ConfigDict, ValidationError
    from pydantic.dataclasses import dataclass

    config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
    made: Any = dataclass(frozen=True, kw_only=True, slots=True, config=config)(cls)
    construct = made.__init__

    @functools.wraps(construct)
    def checked_init(self: Any, **values: Any) -> None:
        try:
            construct(self, **values)
        except ValidationError as error:
            raise _setting_error(error, get_type_hints(made, include_extras=True)) from None

    made.__init__ = checked_init
    return made  # type: ignore[no-any-return]


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Check the keyword-only arguments of a function against their annotations before it runs.

    Only plain settings are checked (numbers, texts, choices, and None beside them); an input or a model is checked by the code that
    reads it.

    Raises:
        SettingError: (the function, when called) a value does not fit its annotation.
    """

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> T:
        check_arguments(function, keywords)
        return function(*args, **keywords)

    return call


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check keyword-only arguments of a function against their annotations, without calling it; see `checked`.

    Args:
        function: of the public API.
        arguments: some of its keyword-only arguments, by name.

    Raises:
        SettingError: a value does not fit its annotation.
    """
    from pydantic import ValidationError

    function = inspect.unwrap(function)
    hints, adapters = _adapters(function)
    for name, value in arguments.items():
        if name in adapters:
            try:
                adapters[name].validate_python(value)
            except ValidationError as error:
                raise _setting_error(error, hints, name) from None


@functools.cache
def _adapters(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, TypeAdapter[Any]]]:
    """The annotations of a function, and what checks its plain settings."""
    from pydantic import ConfigDict, TypeAdapter

    hints = get_type_hints(function, include_extras=True)
    adapters = {
        parameter.name: TypeAdapter(hints[parameter.name], config=ConfigDict(strict=True))
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and _is_plain(hints[parameter.name])
    }
    return hints, adapters


def expected(annotation: Any) -> str:
    """The values that an annotation allows, in words: "a whole number, 1 or more"."""
    if get_origin(annotation) is Annotated:
        base, *metadata = get_args(annotation)
        bounds = _bounds(metadata)
        return (
            bounds
            if bounds.startswith("a number")
            else ", ".join(part for part in (expected(base), bounds) if part)
        )
    if get_origin(annotation) is Literal:
        return _listed([str(choice) for choice in get_args(annotation)])
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(expected(part) for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) in (tuple, Sequence):
        return f"a list, each {expected(get_args(annotation)[0])}"
    if get_origin(annotation) is Mapping:
        return f"names, each with {expected(get_args(annotation)[1])}"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _is_plain(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_plain(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return all(part is type(None) or _is_plain(part) for part in get_args(annotation))
    return origin is Literal or annotation in _PLAIN


def _bounds(metadata: list[Any]) -> str:
    """Bounds of numbers, in words; `Field(ge=…)` and annotated_types' `Ge` alike."""
    constraints = [part for item in metadata for part in getattr(item, "metadata", [item])]
    limits: dict[str, Any] = {}
    for constraint in constraints:
        for name in ("ge", "gt", "le", "lt"):
            if (limit := getattr(constraint, name, None)) is not None:
                limits[name] = limit
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    if low is not None and high is not None:
        return (
            f"a number in {'[' if 'ge' in limits else '('}{low:g}, {high:g}{']' if 'le' in limits else ')'}"
        )
    if low is not None:
        return f"{low:g} or more" if "ge" in limits else f"more than {low:g}"
    if high is not None:
        return f"at most {high:g}" if "le" in limits else f"less than {high:g}"
    return ""


def _setting_error(error: ValidationError, hints: Mapping[str, Any], name: str | None = None) -> UsageError:
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UsageError):  # of a rule between settings, in `__post_init__`
        return cause
    path = [str(part) for part in first["loc"]]
    setting = name or path[0]
    if first["type"] in ("unexpected_keyword_argument", "missing", "missing_keyword_only_argument"):
        known = ", ".join(hints)
        return UsageError(f"{setting}: {first['msg'].lower()}; the settings are {known}")
    if setting not in hints:
        return UsageError(f"{setting}: {first['msg']}")
    if first["type"] in _OUT_OF_BOUNDS and (bounds := _bounds_of(hints[setting])):
        return SettingError(setting, first["input"], bounds)
    return SettingError(setting, first["input"], expected(hints[setting]) if cause is None else str(cause))


_OUT_OF_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def _bounds_of(annotation: Any) -> str:
    """The bounds of the numbers that an annotation allows, without their type: "1 or more"."""
    if get_origin(annotation) is Annotated:
        return _bounds(list(get_args(annotation)[1:]))
    return "".join(map(_bounds_of, get_args(annotation)))


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
