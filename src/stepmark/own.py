"""Methods of your own by name: "package.module:Class" with settings as name=value, and what tells their runs from others.

A searcher's and a labeller's are treated alike: the class is imported, its settings are read strictly by the types of its fields, and
name, settings and source decide what an interrupted run may be continued with.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import math
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stepmark.catalog import FACTORY, unknown_name
from stepmark.errors import StepmarkError, UsageError
from stepmark.errors import told as of_others

_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf)", re.ASCII)


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
    commands: Sequence[str] = ()
    """Names of the library's own, which are not given this way."""
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
    told = f"`{setting}` {name}"
    given = _pairs(settings)
    factory = _load(name, told, kind)
    if isinstance(factory, type):
        _check_class(factory, told, kind)
        values = _values(factory, None, given, kind)
        lacking = [
            one.name
            for one in fields(factory)
            if one.init and one.name not in values and _default(one) is MISSING
        ]
        if lacking:
            raise UsageError(
                f"{told}: its settings {', '.join(lacking)} have no defaults; give each, as `settings` {lacking[0]}=VALUE"
            )
        made = _called(lambda: factory(**values), told, f"{factory.__name__}({_shown(values)})")
    else:
        made = _called(factory, told, f"{name.partition(':')[2]}()") if callable(factory) else factory
        _check_class(type(made), told, kind)
        values = _values(type(made), made, given, kind)
        if values:
            made = _called(lambda: replace(made, **values), told, f"making it with {_shown(values)}")
    _check(made, told, kind)
    return Own(method=made, source={"method": name, "modules": _sources(name, type(made), told)})


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
        if isinstance(method, type) or not _callable(type(method), kind):
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
    found = own(method, settings, kind, setting=setting)
    return found.method, found.source


def _load(name: str, told: str, kind: Kind) -> Any:
    if not FACTORY.fullmatch(name):
        ours = f" stepmark {kind.what} {name} is the library's own." if name in kind.commands else ""
        raise UsageError(
            f'{told}: expected "package.module:Class", the name of a {kind.what} of your own, found no {kind.what} {name!r}.{ours}'
        )
    place, attribute = name.split(":")
    try:
        module = importlib.import_module(place)
    except StepmarkError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (place + ".").startswith(missing + "."):
            if place.endswith(".py"):
                raise UsageError(
                    f"{told}: a module is named without .py: {place.removesuffix('.py')}:{attribute}"
                ) from error
            raise UsageError(
                f"{told}: there is no module {missing!r}. Where it is a file in this folder, say PYTHONPATH=. before stepmark; else "
                "install the package that has it"
            ) from error
        raise UsageError(f"{told}: importing {place} failed: {of_others(error)}") from error
    if attribute in vars(module):
        return vars(module)[attribute]
    fits = [
        one.__name__
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__ == place and is_dataclass(one) and _callable(one, kind)
    ]
    has = f"; it has the {kind.what} {', '.join(fits)}" if fits else f"; it defines no {kind.what}"
    raise UsageError(f"{told}: {place} has no {attribute!r}{has}")


def _callable(of: type, kind: Kind) -> bool:
    return callable(getattr(of, kind.call, None))


def _check_class(of: type, told: str, kind: Kind) -> None:
    """Refuse what is no such method, before it is made."""
    found = ""
    abstract = sorted(getattr(of, "__abstractmethods__", ()))
    if abstract:
        found = f"is abstract: it lacks {', '.join(abstract)}"
    elif not _callable(of, kind):
        within = kind.base is not None and issubclass(of, kind.base)
        found = (
            f"is abstract: it lacks {kind.call}(…)"
            if within
            else f"has no {kind.call}(…), so it is no {kind.what}"
        )
    elif not is_dataclass(of):
        found = "is no dataclass"
    elif kind.base is not None and not issubclass(of, kind.base):
        found = f"is not derived from {kind.base.__name__}"
    if found:
        raise UsageError(
            f"{told}: expected {kind.wanted}; found {of.__name__}, which {found}. See docs/{kind.page}"
        )


def _called(make: Callable[[], Any], told: str, how: str) -> Any:
    try:
        return make()
    except UsageError as error:
        raise UsageError(f"{told}: {error}") from error
    except StepmarkError:
        raise
    except Exception as error:
        raise UsageError(
            f"{told}: {how} failed: {of_others(error)} (STEPMARK_DEBUG=1 shows how it came there)"
        ) from error


def _check(made: Any, told: str, kind: Kind) -> None:
    name = getattr(made, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"{told}: expected a name, a text that its results are marked with; found {name!r}")
    for one in fields(made):
        value = getattr(made, one.name)
        if one.name not in kind.flags and not _plain(value):
            raise UsageError(
                f"{told}: its setting {one.name} holds a {type(value).__name__}. Settings are written down, so that an interrupted run is "
                "continued with the same ones only: expected numbers, texts, booleans, None, paths, and lists or tables of them. "
                "What is no setting may be a ClassVar or made in the method"
            )


def _plain(value: object) -> bool:
    if is_dataclass(value) and not isinstance(value, type):
        return all(_plain(getattr(value, one.name)) for one in fields(value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(one) for key, one in value.items())
    if isinstance(value, tuple | list):
        return all(map(_plain, value))
    if isinstance(value, float):
        return not math.isnan(value)  # which is not equal to itself: no run could be continued
    return value is None or isinstance(value, str | int | PathLike)


def _sources(name: str, of: type, told: str) -> dict[str, str]:
    """The hash of each module that the method is written in, the library's and Python's left out."""
    places = [name.partition(":")[0], *(one.__module__ for one in of.__mro__)]
    found = {}
    for place in dict.fromkeys(places):
        if _is_ours_or_pythons(sys.modules[place]):
            continue
        try:
            text = inspect.getsource(sys.modules[place])
        except (OSError, TypeError) as error:
            raise UsageError(
                f"{told}: the source of {place} cannot be read ({error}), so a run with it could not be told from one with another "
                "version; expected a module in a .py file"
            ) from error
        found[place] = hashlib.sha256(text.encode()).hexdigest()
    return found


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


# -- Settings ----------------------------------------------------------------------------------------------------


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in settings:
        key, equals, value = one.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", key):
            raise UsageError(f"`settings` {one}: expected name=value, such as width=8")
        if key in found:
            raise UsageError(f"`settings` {one}: {key} was set to {found[key]!r} before; give it once")
        found[key] = value
    return found


def _values(of: type, made: Any, given: Mapping[str, str], kind: Kind, at: str = "") -> dict[str, Any]:
    """The fields that settings decide, read by their types.

    Args:
        of: the dataclass.
        made: one of it, whose values are the defaults; None for its defaults.
        given: name to text, as far as it is meant for this class.
        kind: what it is of.
        at: before the name, of a dataclass in a field.
    """
    if not given:
        return {}
    known = {one.name: one for one in fields(of) if one.init}
    types_ = _types(of)
    values: dict[str, Any] = {}
    inner: dict[str, dict[str, str]] = {}
    for key, text in given.items():
        head, dot, rest = key.partition(".")
        whole = f"`settings` {at}{key}={text}"
        if not at and head in kind.flags:
            raise UsageError(f"{whole}: {head} is decided by {kind.flags[head]}")
        if head not in known:
            settings = {one: one for one in known if at or one not in kind.flags}
            raise unknown_name(f"setting of {of.__name__}", at + head, {at + one: one for one in settings})
        type_ = types_[head]
        if not dot and _read(type_) is None and _dataclass(type_) is not None:
            names = ", ".join(f"{at}{head}.{one.name}" for one in fields(_dataclass(type_) or of) if one.init)
            raise UsageError(f"{whole}: {head} has settings of its own: {names}")
        if dot and _dataclass(type_) is None:
            raise UsageError(f"{whole}: {at}{head} is {_words(type_)} and has no settings of its own")
        if dot:
            inner.setdefault(head, {})[rest] = text
        else:
            values[head] = _value(text, type_, whole)
    for head, some in inner.items():
        type_ = _dataclass(types_[head]) or of
        held = _default(known[head]) if made is None else getattr(made, head)
        held = None if held is MISSING else held
        below = _values(type_, held, some, kind, f"{at}{head}.")
        values[head] = _called(
            partial(_put, type_, held, below), f"`settings` {at}{head}", f"making it with {_shown(below)}"
        )
    return values


def _put(of: type, held: Any, values: Mapping[str, Any]) -> Any:
    return of(**values) if held is None else replace(held, **values)


def _types(of: type) -> dict[str, Any]:
    try:
        return get_type_hints(of)
    except (NameError, TypeError) as error:
        raise UsageError(
            f"`settings`: the types of {of.__name__}'s fields cannot be read: {error}. Expected types that its module can name when it runs "
            "(not only under TYPE_CHECKING)"
        ) from error


def _default(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default


def _dataclass(type_: Any) -> type | None:
    """The dataclass of a field; None for another type."""
    return next((one for one in _members(type_) if isinstance(one, type) and is_dataclass(one)), None)


def _members(type_: Any) -> tuple[Any, ...]:
    return get_args(type_) if get_origin(type_) in (Union, types.UnionType) else (type_,)


def _read(type_: Any) -> list[Any] | None:
    """The types that a text is read as, the strictest first; None where one is among them that cannot be given so."""
    members = _members(type_)
    order = [one for one in members if get_origin(one) is Literal]
    order += [one for one in (type(None), bool, int, float, str) if one in members]
    return order if len(order) == len(members) else None


def _value(text: str, type_: Any, whole: str) -> Any:
    order = _read(type_)
    if get_origin(type_) is tuple and get_args(type_) == (str, ...):
        return tuple(text.split(","))
    if order is None:
        raise UsageError(
            f"{whole}: a setting of the type {_name(type_)} is not read from the command line, which reads whole numbers, numbers, "
            "texts, true or false, and choices among them. Name a function that gives the method with its settings: "
            "`method` package.module:function"
        )
    for one in order:
        if one is type(None) and text == "none":
            return None
        if one is bool and text in ("true", "false"):
            return text == "true"
        if one is int and re.fullmatch(r"[+-]?\d+", text, re.ASCII):
            return int(text)
        if one is float and _NUMBER.fullmatch(text):
            return float(text)
        if one is str:
            return text
        if get_origin(one) is Literal and (found := [value for value in get_args(one) if str(value) == text]):
            return found[0]
    near = difflib.get_close_matches(text, [str(value) for one in order for value in get_args(one)], n=1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"{whole}: expected {_words(type_)}, found {text!r}{hint}")


def _words(type_: Any) -> str:
    words = {
        type(None): "none",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text",
    }
    said = [
        " or ".join(map(str, get_args(one)))
        if get_origin(one) is Literal
        else words.get(one, f"a {_name(one)}")
        for one in _read(type_) or _members(type_)
    ]
    return " or ".join([*(one for one in said if one != "none"), *(one for one in said if one == "none")])


def _name(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and get_origin(type_) is None else str(type_)


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())
