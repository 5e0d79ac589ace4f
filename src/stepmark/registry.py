"""The registry: a name, or "package.module:Class", to a class that says all about itself.

Models, verifiers, labellers, searches, objectives, credit methods and evaluations are found in one way. A table of names imports nothing until a
name is used, so `stepmark --help` stays light, and gives one error for a misspelt name everywhere. A class of your own needs no entry: its place is
its name. Its settings are read by the types of its fields, and name, settings and source decide what an interrupted run may be continued with.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from stepmark.errors import StepmarkError, UnknownNameError, UsageError, told
from stepmark.settings import expected

T = TypeVar("T")

FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""What "package.module:attribute" looks like."""


class Registry(Mapping[str, str]):
    """A read-only table of names, and how a method of the caller's own is checked.

    Args:
        what: what it lists, in the singular, for messages: "search".
        entries: name to "module:Attribute".
        setting: the argument that takes such a name.
        call: of methods with settings, what makes a class one: the name of a function that it has.
        base: what such a class must be derived from; None for nothing.
        expected: in messages, what is expected of a class.
        page: the page of the documentation that builds one.
        decided: field to what decides it, which is why it is no setting.
    """

    def __init__(
        self,
        what: str,
        entries: Mapping[str, str],
        *,
        setting: str = "method",
        call: str = "__call__",
        base: Callable[[], type] | None = None,
        expected: str = "",
        page: str = "",
        decided: Mapping[str, str] | None = None,
    ) -> None:
        self.what, self.setting, self.call, self.expected, self.page = what, setting, call, expected, page
        self.decided = decided or {}
        self._entries, self._base = dict(entries), base

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @cached_property
    def base(self) -> type | None:
        """What a class of the caller's own must be derived from."""
        return None if self._base is None else self._base()

    def load(self, name: str) -> Any:
        """The object behind a name, or behind "package.module:Attribute"."""
        target = self._entries.get(name)
        if target is None:
            if not FACTORY.fullmatch(name):
                raise self.unknown(name)
            target = name
        module, attribute = target.split(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name is not None and not (module + ".").startswith(error.name + "."):
                raise  # a dependency of that module is missing; that error is the one to read
            raise UsageError(f"{self.what} {name!r}: there is no module {module!r}; {_NO_MODULE}") from error
        except AttributeError as error:
            raise UsageError(f"{self.what} {name!r}: {module} has no {attribute!r}") from error

    def make(self, name: str, attributes: Sequence[str], *, article: str = "a") -> Any:
        """What the call of a user's function or class gives.

        Args:
            name: a name here, or "package.module:factory".
            attributes: names that it must have.
            article: of `what`, in messages.
        """
        thing = f"{article} {self.what}"
        factory = _called(lambda: self.load(name), name, "importing it")
        if not callable(factory):
            raise UsageError(
                f"{name} is a {type(factory).__name__}; expected a function or class whose call gives {thing}"
            )
        instance = _called(factory, name, "its call")
        lacking = [item for item in attributes if getattr(instance, item, _ABSENT) is _ABSENT]
        if lacking:
            raise UsageError(
                f"{name}: expected {thing} from its call, found a {type(instance).__name__}, which has no {', '.join(lacking)}"
            )
        return instance

    def method(self, method: Any, settings: Sequence[str] = ()) -> tuple[Any, Mapping[str, Any] | None]:
        """A method with its settings, and where it is from if it is a caller's own.

        Args:
            method: a name here, "package.module:Class", "package.module:function", whose call without arguments gives one, or the method itself.
            settings: "name=value" each, for a name; of a field that is a dataclass, "how.temperature=0.5".

        Returns:
            The method; and for one of the caller's own the run's fingerprint beside name and settings: how it was called, and the hash of the
            source of each module that defines it.
        """
        if not isinstance(method, str):
            if settings:
                raise UsageError(
                    f"`settings` are for a {self.what} by its name: set the fields of the {self.what} itself"
                )
            if isinstance(method, type) or not callable(getattr(type(method), self.call, None)):
                raise UsageError(
                    f"`{self.setting}`: expected {', '.join(self)}, or {self.expected}; found {method!r}. See docs/{self.page}"
                )
            if not isinstance(getattr(method, "name", None), str):
                raise UsageError(
                    f"`{self.setting}`: expected {self.expected}; found {method!r}, which has no name. See docs/{self.page}"
                )
            return method, None
        if method not in self and not FACTORY.fullmatch(method):
            raise self.unknown(method)
        made, of = self._made(self._entries.get(method, method), settings)
        if method in self:
            return made, None
        return made, {"method": method, "modules": _sources(method, of, f"`{self.setting}` {method}")}

    def _made(self, place: str, settings: Sequence[str]) -> tuple[Any, type]:
        where = f"`{self.setting}` {place}"
        thing = self._found(place, where)
        instance = None
        if not isinstance(thing, type):
            instance = _called(thing, where, f"{place.partition(':')[2]}()") if callable(thing) else thing
        of = thing if isinstance(thing, type) else type(instance)
        self._check_class(of, where)
        values = _values(of, instance, _pairs(settings), self.decided)
        shown = ", ".join(f"{key}={value!r}" for key, value in values.items())
        instance = _called(partial(_put, of, instance, values), where, f"{of.__name__}({shown})")
        self._check(instance, where)
        return instance, of

    def _found(self, name: str, where: str) -> Any:
        place, attribute = name.split(":")
        module = _called(lambda: importlib.import_module(place), where, f"importing {place}")
        if attribute in vars(module):
            return vars(module)[attribute]
        fits = [
            var.__name__
            for var in vars(module).values()
            if isinstance(var, type) and var.__module__ == place and callable(getattr(var, self.call, None))
        ]
        raise UsageError(f"{where}: {unknown_name(f'{self.what} in {place}', attribute, tuple(fits))}")

    def _check_class(self, of: type, where: str) -> None:
        if not callable(getattr(of, self.call, None)):
            problem = f"has no {self.call}(…)"
        elif inspect.isabstract(of):
            problem = f"is abstract: it lacks {', '.join(sorted(getattr(of, '__abstractmethods__', ())))}"
        elif not is_dataclass(of):
            problem = "is no dataclass"
        elif self.base is not None and not issubclass(of, self.base):
            problem = f"is not derived from {self.base.__name__}"
        else:
            return
        raise UsageError(
            f"{where}: expected {self.expected}; found {of.__name__}, which {problem}. See docs/{self.page}"
        )

    def _check(self, instance: Any, where: str) -> None:
        name = getattr(instance, "name", None)
        if not isinstance(name, str) or not name.strip():
            raise UsageError(
                f"{where}: expected a name, a text that its results are marked with; found {name!r}"
            )
        for item in fields(instance):
            value = getattr(instance, item.name)
            if item.name not in self.decided and not _plain(value):
                raise UsageError(
                    f"{where}: its setting {item.name} holds a {type(value).__name__}. Settings are written down, so that an interrupted run is "
                    "continued with the same ones only: expected numbers, texts, booleans, None, paths, and lists or tables of them. "
                    "Anything else may be a ClassVar or made in the method"
                )

    def unknown(self, name: str) -> UnknownNameError:
        """The error for a name that is not here."""
        return unknown_name(self.what, name, self)


_ABSENT = object()
_NO_MODULE = "a file in this folder needs PYTHONPATH=. before stepmark, a package has to be installed"


def unknown_name(what: str, name: str, choices: Mapping[str, Any] | tuple[str, ...]) -> UnknownNameError:
    """The error for an unknown name, with the nearest known ones and then all of them."""
    near = difflib.get_close_matches(name, list(choices), n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return UnknownNameError(f"there is no {what} {name!r}.{hint} Known: {', '.join(sorted(choices))}")


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
            hint = _NO_MODULE
        raise UsageError(f"{where}: {how} failed: {told(error)} ({hint})") from error


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


def _values(
    of: type, instance: Any, arguments: Mapping[str, str], decided: Mapping[str, str], at: str = ""
) -> dict[str, Any]:
    """The fields that settings decide, read by their types.

    Args:
        of: the dataclass.
        made: one of it, whose values are the defaults; None for its defaults.
        given: name to text, as far as it is meant for this class.
        decided: see `Registry`.
        at: before the name, of a dataclass in a field.
    """
    settable = {field.name: field for field in fields(of) if field.init and (at or field.name not in decided)}
    hints = get_type_hints(of, include_extras=True) if arguments else {}
    values: dict[str, Any] = {}
    inner: dict[str, dict[str, str]] = {}
    for key, text in arguments.items():
        name, dot, rest = key.partition(".")
        whole = f"`settings` {at}{key}={text}"
        if not at and name in decided:
            raise UsageError(f"{whole}: {name} is decided by {decided[name]}")
        if name not in settable:
            raise unknown_name(f"setting of {of.__name__}", at + name, tuple(at + item for item in settable))
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
        item = settable[name]
        if instance is not None:
            current = getattr(instance, name)
        elif item.default_factory is not MISSING:
            current = item.default_factory()
        else:
            current = None if item.default is MISSING else item.default
        read = _values(below, current, texts, decided, f"{at}{name}.")
        values[name] = _called(partial(_put, below, current, read), f"`settings` {at}{name}", below.__name__)
    return values


def _put(of: type, instance: Any, values: Mapping[str, Any]) -> Any:
    return of(**values) if instance is None else replace(instance, **values)


def _dataclass(type_: Any) -> type | None:
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
