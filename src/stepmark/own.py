"""Methods of your own by name: "package.module:Class" with settings as name=value, and the fingerprint of a run with one.

Searches, labellers, evaluations, objectives and credit methods are treated alike: the class is imported, its settings are read by the
types of its fields, and name, settings and source decide what an interrupted run may be continued with.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from stepmark.catalog import FACTORY, unknown_name
from stepmark.errors import StepmarkError, UsageError, told
from stepmark.settings import expected

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What sort of method is named."""

    what: str
    """In messages: "search"."""
    call: str
    """The method that makes it one."""
    base: type | None = None
    """What it must be derived from; None for nothing."""
    wanted: str
    """In messages: what is expected."""
    page: str
    """The page of the documentation that builds one."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Field: the flags that decide it, which is why it is no setting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """A user's method."""

    method: Any
    """It, with its settings."""
    source: Mapping[str, Any]
    """The run's fingerprint, beside name and settings: how it was called, and the hash of the source of each module that defines it."""


def own(name: str, settings: Sequence[str], kind: Kind, *, setting: str = "method") -> Own:
    """The method behind a name.

    Args:
        name: "package.module:Class", or "package.module:function", whose call without arguments gives one.
        settings: "name=value" each; of a field that is a dataclass, "field.name=value".
        kind: what it must be.
        setting: that named it.

    Raises:
        UsageError: no such thing, one that is no such method or cannot be made, or a setting that it does not have or take.
    """
    where = f"`{setting}` {name}"
    thing = _load(name, where, kind)
    made = None
    if not isinstance(thing, type):
        made = _called(thing, where, f"{name.partition(':')[2]}()") if callable(thing) else thing
    of = thing if isinstance(thing, type) else type(made)
    _check_class(of, where, kind)
    values = _values(of, made, _pairs(settings), kind)
    shown = ", ".join(f"{key}={value!r}" for key, value in values.items())
    made = _called(partial(_put, of, made, values), where, f"{of.__name__}({shown})")
    _check(made, where, kind)
    return Own(method=made, source={"method": name, "modules": _sources(name, of, where)})


def load_method(
    method: Any,
    settings: Sequence[str],
    kind: Kind,
    known: Mapping[str, Callable[[], Any] | str],
    *,
    setting: str = "method",
) -> tuple[Any, Mapping[str, Any] | None]:
    """A method, and where it is from if it is a caller's own.

    Args:
        method: a name in `known`, "package.module:Class", or the method itself.
        settings: "name=value" each, for a name; of a field that is a dataclass, "how.temperature=0.5".
        kind: what it must be.
        known: the library's own, by name: each a class, or "module:Class", which is loaded when it is asked for.
        setting: that named it.

    Raises:
        UnknownNameError: no such method.
        UsageError: what is no such method, a setting that it does not have or take, or settings for a method that is made already.
    """
    if not isinstance(method, str):
        if settings:
            raise UsageError(
                f"`settings` are for a {kind.what} by its name: set the fields of the {kind.what} itself"
            )
        if isinstance(method, type) or not callable(getattr(type(method), kind.call, None)):
            raise UsageError(
                f"`{setting}`: expected {', '.join(known)}, or {kind.wanted}; found {method!r}. See docs/{kind.page}"
            )
        return method, None
    if method in known:
        made = known[method]
        if callable(made) and not settings:
            return made(), None
        place = made if isinstance(made, str) else f"{made.__module__}:{made.__name__}"
        return own(place, settings, kind, setting=setting).method, None
    if not FACTORY.fullmatch(method):
        raise unknown_name(kind.what, method, dict.fromkeys(known, ""))
    result = own(method, settings, kind, setting=setting)
    return result.method, result.source


def _load(name: str, where: str, kind: Kind) -> Any:
    if not FACTORY.fullmatch(name):
        raise UsageError(
            f'{where}: expected "package.module:Class", the name of a {kind.what} of your own; there is no {kind.what} {name!r}'
        )
    place, attribute = name.split(":")
    module = _called(lambda: importlib.import_module(place), where, f"importing {place}")
    if attribute in vars(module):
        return vars(module)[attribute]
    fits = [
        var.__name__
        for var in vars(module).values()
        if isinstance(var, type) and var.__module__ == place and callable(getattr(var, kind.call, None))
    ]
    raise UsageError(f"{where}: {unknown_name(f'{kind.what} in {place}', attribute, tuple(fits))}")


def _called(make: Callable[[], T], where: str, how: str) -> T:
    try:
        return make()
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    except StepmarkError:
        raise
    except Exception as error:
        hint = "STEPMARK_DEBUG=1 shows how it came there"
        if isinstance(error, ModuleNotFoundError):
            hint = "a file in this folder needs PYTHONPATH=. before stepmark, a package has to be installed"
        raise UsageError(f"{where}: {how} failed: {told(error)} ({hint})") from error


def _check_class(of: type, where: str, kind: Kind) -> None:
    if not callable(getattr(of, kind.call, None)):
        problem = f"has no {kind.call}(…)"
    elif inspect.isabstract(of):
        problem = f"is abstract: it lacks {', '.join(sorted(getattr(of, '__abstractmethods__', ())))}"
    elif not is_dataclass(of):
        problem = "is no dataclass"
    elif kind.base is not None and not issubclass(of, kind.base):
        problem = f"is not derived from {kind.base.__name__}"
    else:
        return
    raise UsageError(
        f"{where}: expected {kind.wanted}; found {of.__name__}, which {problem}. See docs/{kind.page}"
    )


def _check(made: Any, where: str, kind: Kind) -> None:
    name = getattr(made, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"{where}: expected a name, a text that its results are marked with; found {name!r}")
    for item in fields(made):
        value = getattr(made, item.name)
        if item.name not in kind.flags and not _plain(value):
            raise UsageError(
                f"{where}: its setting {item.name} holds a {type(value).__name__}. Settings are written down, so that an interrupted run is "
                "continued with the same ones only: expected numbers, texts, booleans, None, paths, and lists or tables of them. "
                "Anything else may be a ClassVar or made in the method"
            )


def _plain(value: object) -> bool:
    if is_dataclass(value) and not isinstance(value, type):
        return all(_plain(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, tuple | list):
        return all(map(_plain, value))
    if isinstance(value, float):
        return not math.isnan(value)  # which is not equal to itself: no run could be continued
    return value is None or isinstance(value, str | int | PathLike)


def _sources(name: str, of: type, where: str) -> dict[str, str]:
    """The hash of each module that the method is written in, the library's and Python's left out."""
    places = [name.partition(":")[0], *(item.__module__ for item in of.__mro__)]
    result = {}
    for place in dict.fromkeys(places):
        if _is_ours_or_pythons(sys.modules[place]):
            continue
        try:
            text = inspect.getsource(sys.modules[place])
        except (OSError, TypeError) as error:
            raise UsageError(
                f"{where}: the source of {place} cannot be read ({error}), so a run with it could not be where from one with another "
                "version; expected a module in a .py file"
            ) from error
        result[place] = hashlib.sha256(text.encode()).hexdigest()
    return result


def _is_ours_or_pythons(module: types.ModuleType) -> bool:
    """By where it lies: a user's module may have the name of one of Python's (code, queue, types)."""
    spec = module.__spec__
    if spec is not None and spec.origin in ("built-in", "frozen"):
        return True
    if module.__file__ is None:
        return False
    file = Path(module.__file__).resolve()
    if file.is_relative_to(Path(__file__).resolve().parent):
        return True
    paths = sysconfig.get_paths()
    # What is installed may lie below Python's own folder.
    if any(file.is_relative_to(Path(paths[name]).resolve()) for name in ("purelib", "platlib")):
        return False
    return any(file.is_relative_to(Path(paths[name]).resolve()) for name in ("stdlib", "platstdlib"))


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", key):
            raise UsageError(f"`settings` {setting}: expected name=value, such as width=8")
        if key in pairs:
            raise UsageError(f"`settings` {setting}: {key} was set to {pairs[key]!r} before; give it once")
        pairs[key] = value
    return pairs


def _values(of: type, made: Any, given: Mapping[str, str], kind: Kind, at: str = "") -> dict[str, Any]:
    """The fields that settings decide, read by their types.

    Args:
        of: the dataclass.
        made: one of it, whose values are the defaults; None for its defaults.
        given: name to text, as far as it is meant for this class.
        kind: what it is of.
        at: before the name, of a dataclass in a field.
    """
    known = {field.name: field for field in fields(of) if field.init and (at or field.name not in kind.flags)}
    hints = get_type_hints(of, include_extras=True) if given else {}
    values: dict[str, Any] = {}
    inner: dict[str, dict[str, str]] = {}
    for key, text in given.items():
        name, dot, rest = key.partition(".")
        whole = f"`settings` {at}{key}={text}"
        if not at and name in kind.flags:
            raise UsageError(f"{whole}: {name} is decided by {kind.flags[name]}")
        if name not in known:
            raise unknown_name(f"setting of {of.__name__}", at + name, tuple(at + item for item in known))
        below = _dataclass(hints[name])
        if dot and below is None:
            raise UsageError(f"{whole}: {at}{name} is {expected(hints[name])} and has no settings of its own")
        if dot:
            inner.setdefault(name, {})[rest] = text
        elif below is not None:
            names = ", ".join(f"{at}{name}.{field.name}" for field in fields(below) if field.init)
            raise UsageError(f"{whole}: {name} has settings of its own: {names}")
        else:
            values[name] = _value(text, hints[name], whole)
    for name, texts in inner.items():
        below = _dataclass(hints[name])
        assert below is not None
        item = known[name]
        if made is not None:
            current = getattr(made, name)
        elif item.default_factory is not MISSING:
            current = item.default_factory()
        else:
            current = None if item.default is MISSING else item.default
        read = _values(below, current, texts, kind, f"{at}{name}.")
        values[name] = _called(partial(_put, below, current, read), f"`settings` {at}{name}", below.__name__)
    return values


def _put(of: type, made: Any, values: Mapping[str, Any]) -> Any:
    return of(**values) if made is None else replace(made, **values)


def _dataclass(type_: Any) -> type | None:
    """The dataclass of a field; None for another type."""
    parts = get_args(type_) if get_origin(type_) in (Union, types.UnionType) else (type_,)
    return next((part for part in parts if isinstance(part, type) and is_dataclass(part)), None)


def _value(text: str, type_: Any, whole: str) -> Any:
    """A text as a value of a type; "none" is None where that is allowed, commas part the members of a tuple."""
    from pydantic import PydanticUserError, TypeAdapter, ValidationError

    if text == "none" and type(None) in get_args(type_):
        return None
    if get_origin(type_) is tuple:
        inner = get_args(type_)[0]
        return tuple(_value(part, inner, whole) for part in text.split(","))
    try:
        return TypeAdapter(type_).validate_strings(text)
    except ValidationError:
        raise UsageError(f"{whole}: expected {expected(type_)}, found {text!r}") from None
    except PydanticUserError:
        raise UsageError(
            f"{whole}: a setting of the type {type_} is not read from text. Name a function that gives the method with its settings: "
            "`method` package.module:function"
        ) from None
