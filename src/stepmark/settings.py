"""Declared settings: a constraint stands in the type of a setting, and is checked here and nowhere else.

A method is a dataclass made by `settings`; a function of the public API that takes settings as keyword arguments is wrapped by `checked`.
Both read the same declarations, from which the command line makes its flags too. `width: Annotated[int, Field(ge=1)] = 4` refuses 0 with
"width=0: expected 1 or more".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
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
    made: Any = dataclass(frozen=True, kw_only=True, slots=True)(cls)
    made.__pydantic_config__ = {"strict": True, "extra": "forbid", "arbitrary_types_allowed": True}
    construct = made.__init__
    known = {field.name: field for field in fields(made) if field.init}
    needed = {
        name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING
    }

    @functools.wraps(construct)
    def checked_init(self: Any, **values: Any) -> None:
        if wrong := sorted(values.keys() - known) or sorted(needed - values.keys()):
            problem = "is no setting" if wrong[0] in values else "is missing"
            raise UsageError(f"{wrong[0]} {problem}; the settings are {', '.join(known)}")
        construct(self, **{name: _valid(made, name, value) for name, value in values.items()})

    # Of a class with bases they are names of several modules, which a reader of this function's hints cannot resolve.
    checked_init.__annotations__ = {}
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
    function = inspect.unwrap(function)
    parameters = inspect.signature(function).parameters
    for name, value in arguments.items():
        if (
            name in parameters
            and parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
            and _is_plain(_hints(function)[name])
        ):
            _valid(function, name, value)


def _valid(owner: Any, name: str, value: Any) -> Any:
    """The value of a setting of a class or function; `SettingError` for one that does not fit its annotation."""
    from pydantic import ValidationError

    try:
        return _adapter(owner, name).validate_python(value)
    except ValidationError as error:
        raise setting_error(error, name, _hints(owner)[name]) from None


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    return get_type_hints(owner, include_extras=True)


@functools.cache
def _adapter(owner: Any, name: str) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    hint = _hints(owner)[name]
    # A dataclass has a configuration of its own.
    config = None if is_dataclass(hint) else ConfigDict(strict=True, arbitrary_types_allowed=True)
    return TypeAdapter(hint, config=config)


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


def setting_error(error: ValidationError, name: str, annotation: Any) -> UsageError:
    """The error of a setting for what pydantic found in its value; where a reader of the value refused it, the reader's own."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UsageError):
        return cause
    bounds = _bounds_of(annotation) if first["type"] in _OUT_OF_BOUNDS else ""
    return SettingError(name, first["input"], bounds or expected(annotation))


_OUT_OF_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def _bounds_of(annotation: Any) -> str:
    """The bounds of the numbers that an annotation allows, without their type: "1 or more"."""
    if get_origin(annotation) is Annotated:
        return _bounds(list(get_args(annotation)[1:]))
    return "".join(map(_bounds_of, get_args(annotation)))


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
