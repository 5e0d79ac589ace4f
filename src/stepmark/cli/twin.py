"""A command from a function of the public API: its keyword arguments are the flags, its docstring is the help.

Nothing about a setting stands twice: types, defaults, constraints and descriptions come from the function (or from the dataclass that one
of its arguments is), and a flag that loads a model from the function that loads it (`load_prm`, `load_policy`).
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
import shlex
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter

from stepmark.data.columns import parse_columns
from stepmark.errors import IdleSettingWarning, SettingError, UsageError
from stepmark.models.lazy import Lazy


def _only_a_dash(type_: object, value: str | None) -> None:
    # With leading hyphens allowed, a misspelt option in front of the file would be taken for the file.
    if value is not None and value.startswith("-") and value != "-":
        raise ValueError(f"There is no option {value}; a file of that name is written ./{value}")


FileOrDash = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_only_a_dash)]
"""A file's name, or "-"."""

COMMON = Group("Common", sort_key=1)
DATA = Group("Data", sort_key=2)
MODEL = Group("Model", sort_key=3)
METHOD = Group("Method", sort_key=4)
OUTPUT = Group("Output", sort_key=5)
MACHINE = Group("Machine", sort_key=6)

_PANELS: Mapping[str, Group] = {
    **dict.fromkeys(
        [
            "columns",
            "split",
            "marker",
            "reasoning",
            "limit",
            "keep_going",
            "data",
            "scores",
            "model_name",
            "format",
        ],
        DATA,
    ),
    **dict.fromkeys(("truncate", "orm"), MODEL),
    **dict.fromkeys(("out", "report", "show", "trace", "log"), OUTPUT),
    **dict.fromkeys(("cluster", "in_flight", "dtype", "quantize", "device", "token_budget"), MACHINE),
}
"""Which panel of the help a setting stands in; a method's settings by default."""

NAMES = {"settings": "--set", "method_settings": "--set", "from_format": "--from"}
"""Flags that are not named like their setting."""

_SEVERAL = ("data", "sizes", "verifier", "only", "budgets", "methods")
"""Flags that take several values at once: --data A B."""

_HINT = 60
"""Characters of a default that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model that a command loads."""

    load: Callable[..., Any]
    """Its first argument is the model's name; its other arguments are flags."""
    check: Callable[[str, Mapping[str, Any]], None] | None = None
    """Refuses arguments of `load` that cannot work, before anything is read; called with the name and the other arguments."""
    drop: Sequence[str] = ()
    """Arguments of `load` that are no flags here."""
    own: Sequence[str] = ()
    """Arguments of `load` that another model of the command has too: their flags begin with this model's name (--policy-quantize)."""
    optional: bool = False
    """Whether the command runs without it; its name is then None by default."""
    full_name: Callable[[str], str] = str
    """The name that outputs say, of a short one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A command line, read: the arguments of the API function."""

    inputs: Sequence[str]
    """What stands before the flags: names of files."""
    models: Mapping[str, Lazy[Any] | None]
    """By the names of the function's arguments; not loaded yet."""
    settings: Mapping[str, Any]
    """The other keyword arguments."""


def command(
    function: Callable[..., Any],
    run: Callable[[Call], int],
    *,
    models: Mapping[str, Model] | None = None,
    common: Sequence[str] = (),
    drop: Sequence[str] = (),
    methods: Mapping[str, Callable[[], Any]] | None = None,
    optional: Sequence[str] = (),
    hidden: Sequence[str] = (),
    file: str | None = "a file of rows",
    many: bool = False,
    required: bool = True,
    also: Callable[..., Any] | None = None,
    panels: Mapping[str, Group] | None = None,
    flags: Sequence[str] = (),
) -> Callable[..., int]:
    """The command of a function.

    Args:
        function: of the public API. Its positional arguments are the command's file and models.
        run: what the command does with what was typed; its result is the exit code.
        models: arguments of the function that are models, by name.
        common: settings in the first panel of the help, in this order.
        drop: keyword arguments of the function that are no flags.
        methods: arguments of the function that are a method: its class, whose fields become flags.
        optional: methods that are None by default: a flag of their own name turns them on, and the flags of their fields begin with it.
        hidden: fields of methods that are no flags.
        file: the description of the positional argument; None where there is none.
        many: whether several files may be given.
        required: whether a file must be given.
        flags: positional arguments of the function that are flags all the same.
        also: a function whose keyword-only arguments are flags of the command alone, which `run` finds in `Call.settings`.
        panels: in which panel of the help a setting, or the settings of a method, stand, where it is another than usual.
    """
    models, methods, panels = models or {}, methods or {}, panels or {}
    parameters: dict[str, inspect.Parameter] = {}
    # Model: the flags that it is loaded with, and the arguments that they are.
    flags_of: dict[str, dict[str, str]] = {}

    def add(name: str, annotation: Any, default: Any, help_: str, panel: Group | None = None) -> None:
        group = COMMON if name in common else panels.get(name, panel or _PANELS.get(name, METHOD))
        annotation, options = _flag(annotation, default)
        if annotation is FileOrDash and isinstance(default, int):
            default = str(default)  # a number or a file
        if name in NAMES:
            options["name"] = NAMES[name]
        if name in _SEVERAL and get_origin(annotation) is tuple:
            options["consume_multiple"] = True
        if default is True:
            options["negative"] = f"--no-{name.replace('_', '-')}"
        parameters[name] = inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[annotation, Parameter(help=help_, group=group, **options)],
        )

    def add_fields(kind: Any, panel: Group, prefix: str = "") -> None:
        hints, texts = get_type_hints(kind, include_extras=True), _field_texts(kind)
        for field in fields(kind):
            if field.name in hidden:
                continue
            if is_dataclass(hints[field.name]):
                add_fields(hints[field.name], panel, prefix)
            else:
                add(prefix + field.name, hints[field.name], _default(field), texts.get(field.name, ""), panel)

    for source in (function, *([] if also is None else [also])):
        hints, texts = get_type_hints(source, include_extras=True), _argument_texts(source)
        for parameter in inspect.signature(source).parameters.values():
            name = parameter.name
            if name in optional:
                add(name, bool, False, texts.get(name, ""))
                add_fields(methods[name], METHOD, f"{name}_")
                continue
            if name in methods:
                add_fields(methods[name], panels.get(name, _PANELS.get(name, METHOD)))
                continue
            if name in models or name in drop:
                continue
            if parameter.kind is not parameter.KEYWORD_ONLY and name not in flags:
                continue
            add(name, hints[name], parameter.default, texts.get(name, ""))
    for name, model in models.items():
        hints, texts = get_type_hints(model.load, include_extras=True), _argument_texts(model.load)
        first, *rest = inspect.signature(model.load).parameters.values()
        default = None if model.optional else first.default
        annotation: Any = str | None if model.optional else str
        add(name, annotation, default, texts.get(first.name, ""), MODEL)
        for parameter in rest:
            if parameter.name in model.drop:
                continue
            flag = f"{name}_{parameter.name}" if parameter.name in model.own else parameter.name
            flags_of.setdefault(name, {})[flag] = parameter.name
            if flag not in parameters:
                panel = _PANELS.get(parameter.name, MODEL)
                add(
                    flag,
                    hints[parameter.name],
                    parameter.default,
                    texts.get(parameter.name, ""),
                    panel,
                )

    def call(*files: str, **values: Any) -> int:
        defaults = {name: item.default for name, item in parameters.items() if item.default is not item.empty}
        values = {**defaults, **values}
        loaded: dict[str, Lazy[Any] | None] = {}
        for name, model in models.items():
            given = values.pop(name)
            arguments = {key: values[flag] for flag, key in flags_of.get(name, {}).items() if flag in values}
            if given is None:
                loaded[name] = None
                continue
            check = _naming(name, model) if model.own else model.check
            loaded[name] = Lazy(model.load, model.full_name(given), arguments, check=check)
        for name, kind in methods.items():
            values[name] = (_made_if if name in optional else _made)(kind, values, hidden, name)
        own = [
            item.name
            for item in inspect.signature(function).parameters.values()
            if item.kind is item.KEYWORD_ONLY or item.name in flags or item.name in methods
        ]
        extra = () if also is None else inspect.signature(also).parameters
        settings = {key: value for key, value in values.items() if key in own or key in extra}
        if settings.get("columns") is not None:
            settings["columns"] = parse_columns(settings["columns"])
        return run(Call(inputs=files, models=loaded, settings=settings))

    call.__name__ = function.__name__
    call.__doc__ = _summary(function)
    ordered = sorted(
        parameters.values(), key=lambda one: common.index(one.name) if one.name in common else len(common)
    )
    if file is not None:
        place = inspect.Parameter.VAR_POSITIONAL if many else inspect.Parameter.POSITIONAL_ONLY
        default = inspect.Parameter.empty if required or many else None
        typed: Any = FileOrDash if required or many else FileOrDash | None
        ordered.insert(
            0,
            inspect.Parameter(
                "file", place, default=default, annotation=Annotated[typed, Parameter(help=file)]
            ),
        )
    call.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    call.__annotations__ = {item.name: item.annotation for item in ordered}
    return call


def _naming(name: str, model: Model) -> Callable[[str, Mapping[str, Any]], None]:
    """A model's check, whose errors and notes name the flags that begin with the model's name."""

    def named(text: str) -> str:
        for own in model.own:
            text = text.replace(f"`{own}`", f"`{name}_{own}`")
        return text

    def check(address: str, arguments: Mapping[str, Any]) -> None:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", IdleSettingWarning)
                if model.check is not None:
                    model.check(address, arguments)
        except UsageError as error:
            raise UsageError(named(str(error))) from error
        for warning in caught:
            warnings.warn(named(str(warning.message)), warning.category, stacklevel=2)

    return check


def report(text: str) -> None:
    """Print what a run says of itself, with flags in the place of settings in backticks."""
    print(re.sub(r"`([a-z][a-z_]*)`", lambda match: f"--{match[1].replace('_', '-')}", text), file=sys.stderr)


_LISTS = (tuple, Sequence, collections.abc.Sequence)


def _flag(annotation: Any, default: Any) -> tuple[Any, dict[str, Any]]:
    """The annotation of a flag, without the constraints, which the library checks; and what cyclopts must know of it."""
    annotation = plain = _typed(_without_metadata(annotation))
    if plain is bool:
        return bool, {"negative": "", "show_default": False}
    parts = get_args(plain) if get_origin(plain) in (Union, types.UnionType) else (plain,)
    if any(get_origin(part) in (Mapping, dict) or part is Mapping for part in parts):
        return str | None, {"show_default": False}
    if any(get_origin(part) is tuple and ... not in get_args(part) for part in parts):
        return annotation, {"negative": "", "show_default": _words}  # so many values, as (least, most)
    if any(get_origin(part) in _LISTS for part in parts):
        listed = next(part for part in parts if get_origin(part) in _LISTS)
        inner = _without_metadata(get_args(listed)[0])
        kind = inner if inner in (int, float) else str
        several: Any = tuple[kind, ...]  # type: ignore[valid-type]
        return several | None if default is None else several, {
            "negative": "",
            "show_default": _words if default else False,
        }
    if Path in get_args(plain):
        return (FileOrDash | None if default is None else FileOrDash), {}
    if isinstance(default, str) and not default.strip():
        return annotation, {"show_default": repr if default else False}
    return annotation, {"show_default": False} if isinstance(default, str) and len(default) > _HINT else {}


def _words(values: Sequence[object]) -> str:
    """A default of several values, as they are typed."""
    return " ".join(shlex.quote(str(value)) for value in values)


def _typed(annotation: Any) -> Any:
    """What can be typed of an annotation: of a model, a verifier or a method that may be an object too, its name."""
    parts = get_args(annotation)
    if get_origin(annotation) not in (Union, types.UnionType) or str not in parts:
        return annotation
    # typing.is_protocol is of Python 3.13.
    return Union[tuple(part for part in parts if not getattr(part, "_is_protocol", False))]  # noqa: UP007 - made at run time


def _without_metadata(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _without_metadata(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return Union[tuple(_without_metadata(part) for part in get_args(annotation))]  # noqa: UP007 - made at run time
    return annotation


def _summary(function: Callable[..., Any]) -> str:
    from docstring_parser import parse

    parsed = parse(inspect.getdoc(function) or "")
    return "\n\n".join(part for part in (parsed.short_description, parsed.long_description) if part)


@functools.cache
def _argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    from docstring_parser import parse

    texts = {
        param.arg_name: (param.description or "").replace("\n", " ")
        for param in parse(inspect.getdoc(function) or "").params
    }
    return {name: _help(text) for name, text in texts.items()}


def _help(text: str) -> str:
    """A description as one line of plain text."""
    plain = " ".join(re.sub(r"`{1,2}", "", text).split())
    return plain[:1].upper() + plain[1:]


@functools.cache
def _field_texts(kind: type) -> dict[str, str]:
    from docstring_parser import parse_from_object

    texts: dict[str, str] = {}
    for item in reversed(kind.__mro__[:-1]):
        texts |= {param.arg_name: _help(param.description or "") for param in parse_from_object(item).params}
    return texts


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return inspect.Parameter.empty if field.default_factory is MISSING else field.default_factory()


def _made(kind: Any, values: Mapping[str, Any], hidden: Sequence[str], name: str = "") -> Any:
    """A method from the values of its flags, which are those of its nested settings too."""
    hints = get_type_hints(kind)
    return kind(
        **{
            field.name: _made(hints[field.name], values, hidden)
            if is_dataclass(hints[field.name])
            else values[field.name]
            for field in fields(kind)
            if field.name not in hidden
        }
    )


def _made_if(kind: Any, values: Mapping[str, Any], hidden: Sequence[str], name: str) -> Any:
    """An optional method from the values of its flags, which begin with its name; None where its own flag is not given.

    Raises:
        UsageError: a field's flag without the flag of the method.
    """
    own = {field: values[f"{name}_{field.name}"] for field in fields(kind) if field.name not in hidden}
    if values[name]:
        try:
            return kind(**{field.name: value for field, value in own.items()})
        except SettingError as error:
            raise SettingError(f"{name}_{error.setting}", error.value, error.expected) from None
    given = [field.name for field, value in own.items() if value != _default(field)]
    if given:
        raise UsageError(f"`{name}_{given[0]}` needs `{name}`: give both")
    return None
