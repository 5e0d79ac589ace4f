"""The two sides of a code test: the program, which answers calls, and the checker, which runs the tests.

Runs only inside the sandbox, in processes that `code_worker` makes; it is handed over as source text and imports nothing
of stepmark. Everything between the two is plain data over a socket. So an object whose `__eq__` is always true, or a
builtin that the program replaced, does not exist on the side that compares.
"""

from __future__ import annotations

import ast
import builtins
import collections
import contextlib
import decimal
import fractions
import importlib
import itertools
import json
import random
import socket
import struct
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

_LARGEST = 16 << 20  # bytes of one message between program and checker
_LONGEST_ITERATOR = 10_000


class _EndedError(BaseException):
    """The program's process is gone or talks nonsense. Not an `Exception`: a test's `except` must not swallow it."""


class _UnsendableError(Exception):
    """A value that is not plain data."""


class _NeedsSameProcessError(BaseException):
    """A test hands the program something that cannot travel, such as a function."""


class _ProgramError(Exception):
    """The program raised something that is no builtin exception."""


def _pack(value: Any) -> Any:
    """A value as JSON data; subclasses travel as the plain type that they extend."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        return number if -(1 << 53) < number < 1 << 53 else {"int": hex(number)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list):
        return [_pack(item) for item in value]
    for kind in (tuple, set, frozenset, collections.deque):
        if isinstance(value, kind):
            return {kind.__name__: [_pack(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_pack(key), _pack(item)] for key, item in value.items()]}
    if isinstance(value, bytes | bytearray):
        return {"bytearray" if isinstance(value, bytearray) else "bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, fractions.Fraction):
        return {"Fraction": [_pack(value.numerator), _pack(value.denominator)]}
    if isinstance(value, decimal.Decimal):
        return {"Decimal": str(value)}
    if isinstance(value, collections.abc.KeysView | collections.abc.ItemsView):
        return {"set": [_pack(item) for item in value]}
    if isinstance(value, Iterator | collections.abc.ValuesView):
        items = list(itertools.islice(value, _LONGEST_ITERATOR + 1))
        if len(items) > _LONGEST_ITERATOR:
            raise _UnsendableError(f"an iterator of more than {_LONGEST_ITERATOR} items")
        return {"iterator": [_pack(item) for item in items]}
    raise _UnsendableError(f"a value of type {type(value).__name__}, which is not plain data")


_UNPACK: dict[str, Callable[[Any], Any]] = {
    "int": lambda v: int(v, 16),
    "tuple": lambda v: tuple(map(_unpack, v)),
    "set": lambda v: set(map(_unpack, v)),
    "frozenset": lambda v: frozenset(map(_unpack, v)),
    "deque": lambda v: collections.deque(map(_unpack, v)),
    "dict": lambda v: {_unpack(key): _unpack(item) for key, item in v},
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda v: complex(*v),
    "range": lambda v: range(*v),
    "Fraction": lambda v: fractions.Fraction(*map(_unpack, v)),
    "Decimal": decimal.Decimal,
    "iterator": lambda v: iter(list(map(_unpack, v))),
}


def _unpack(data: Any) -> Any:
    if isinstance(data, list):
        return [_unpack(item) for item in data]
    if isinstance(data, dict):
        ((kind, value),) = data.items()
        return _UNPACK[kind](value)
    return data


class _Opaque:
    """A result that is not plain data: as true or false as the program says, equal to nothing but itself."""

    def __init__(self, truth: bool) -> None:
        self._truth = truth

    def __bool__(self) -> bool:
        return self._truth


class _Link:
    """One end of the socket: messages are a length and JSON."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.opaque: str | None = None
        """The last type of a result that was not plain data."""

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        if len(data) > _LARGEST:
            raise _UnsendableError(f"more than {_LARGEST >> 20} MiB of data")
        try:
            self._end.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            raise _EndedError from None

    def receive(self) -> Any:
        (size,) = struct.unpack(">I", self._exactly(4))
        if size > _LARGEST:
            raise _EndedError
        try:
            return json.loads(self._exactly(size))
        except (ValueError, RecursionError):
            raise _EndedError from None

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                got = self._end.recv(min(size - len(parts), 1 << 20))
            except OSError:
                raise _EndedError from None
            if not got:
                raise _EndedError
            parts += got
        return bytes(parts)


def _load(task: dict[str, Any]) -> dict[str, Any]:
    """Run the program's text and return its names. A text that does not parse alone continues the prompt's code."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    names = module.__dict__
    prompt, program = task["prompt"], task["program"]
    try:
        whole = compile(program, "<program>", "exec", dont_inherit=True)
    except SyntaxError:
        if not prompt:
            raise
        exec(compile(prompt + program, "<program>", "exec", dont_inherit=True), names)  # noqa: S102 (this process is for that)
    else:
        # The prompt first: a whole function may use its imports and helpers.
        with contextlib.suppress(SyntaxError):
            exec(compile(prompt, "<prompt>", "exec", dont_inherit=True), names)  # noqa: S102
        entry = task["entry_point"]
        stub = names.pop(entry, None) if entry else None
        exec(whole, names)  # noqa: S102
        if stub is not None and entry not in names:
            raise NameError(f"the program does not define {entry!r}")
    return names


def serve(end: socket.socket) -> None:
    """Load the program that comes over the socket, then answer calls until the checker is content."""
    link = _Link(end)
    task = link.receive()
    random.seed(0)
    try:
        names = _load(task)
    except BaseException as error:  # SystemExit too: a program that exits has not passed
        link.send({"error": _described(error)})
        return
    link.send({"loaded": True})
    while True:
        request = link.receive()
        if "names" in request:
            link.send({"kinds": {name: _kind(names[name]) for name in request["names"] if name in names}})
        elif "tests" in request:
            link.send({"ran": _run_tests(names, request["setup"], request["tests"])})
        else:
            try:
                link.send(_call(names, request))
            except _UnsendableError as error:
                link.send({"unsendable": f"the program returned {error}"})


def _kind(value: Any) -> Any:
    if callable(value):
        return "call"
    if isinstance(value, types.ModuleType):
        return "module"
    try:
        return {"value": _pack(value)}
    except (_UnsendableError, RecursionError):
        return "other"


def _call(names: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    arguments = [_unpack(argument) for argument in request["arguments"]]
    keywords = {name: _unpack(argument) for name, argument in request["keywords"].items()}
    try:
        result = names[request["call"]](*arguments, **keywords)
    except BaseException as error:  # SystemExit too: a program that exits has not answered
        return {"error": _described(error)}
    try:
        try:
            reply = {"result": _pack(result)}
        except _UnsendableError as error:
            reply = {"opaque": str(error), "truth": bool(result)}
        after = [_pack(argument) for argument in arguments]
        if after != request["arguments"]:
            reply["changed"] = after
        return reply
    except RecursionError:
        return {"unsendable": "the program returned a value nested too deep, or within itself"}
    except BaseException as error:  # a generator runs only when its items are asked for
        return {"error": _described(error)}


def _described(error: BaseException) -> dict[str, str]:
    try:
        message = str(error)[:300]
    except BaseException:
        message = ""
    where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
    return {"type": type(error).__name__[:100], "message": where + message}


def check(end: socket.socket, task: dict[str, Any]) -> dict[str, str]:
    """Run the tests against the program at the other end.

    Returns:
        `state`: "passed", "failed" (the program's fault), "faulty" (the tests' own fault) or "ended" (the program's
        process is gone); and a `note`.
    """
    link = _Link(end)
    try:
        link.send({key: task[key] for key in ("prompt", "program", "entry_point")})
        reply = link.receive()
        if "error" in reply:
            return {"state": "failed", "note": f"the program does not load: {_words(reply['error'])}"}
    except _EndedError:
        return {"state": "ended", "note": "while it loaded"}
    try:
        if not task["same_process"]:
            with contextlib.suppress(_NeedsSameProcessError):
                found = _run_tests(_names_for_tests(link, task), task["setup"], task["tests"])
                if link.opaque is not None and found["state"] == "failed":
                    found["note"] += f" (the program returned {link.opaque})"
                return found
        link.send({"setup": task["setup"], "tests": task["tests"]})
        ran = link.receive()["ran"]
        state, note = str(ran["state"]), str(ran["note"])
    except (_EndedError, KeyError, TypeError):
        return {"state": "ended", "note": "while the tests ran"}
    if state not in {"passed", "failed", "faulty"}:
        return {"state": "ended", "note": "while the tests ran"}
    return {"state": state, "note": f"{note} (the tests ran in the program's own process)"}


def _names_for_tests(link: _Link, task: dict[str, Any]) -> dict[str, Any]:
    """The names that the tests see: the prompt's own helpers, run here, and calls to the program."""
    names: dict[str, Any] = {"__name__": "tests"}
    with contextlib.suppress(SyntaxError):
        exec(compile(task["prompt"], "<prompt>", "exec", dont_inherit=True), names)  # noqa: S102
    entry, owned = task["entry_point"], set(task["owned"])
    used: set[str] = set()
    for source in (task["setup"], *task["tests"]):
        with contextlib.suppress(SyntaxError):
            tree = ast.parse(source)
            used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    wanted = {n for n in used if n not in names and (n in owned or n not in builtins.__dict__)}
    wanted |= {entry} if entry else set()
    link.send({"names": sorted(wanted)})
    kinds = link.receive()["kinds"]
    for name in sorted(wanted):
        kind = kinds.get(name)
        if kind == "call":
            names[name] = _caller(link, name)
        elif kind == "module" and name in sys.stdlib_module_names:
            names[name] = importlib.import_module(name)
        elif isinstance(kind, dict):
            names[name] = _decoded(kind["value"])
        elif name == entry:
            names.pop(name, None)
    return names


def _decoded(data: Any) -> Any:
    try:
        return _unpack(data)
    except Exception:  # whatever a forged message makes of the decoder
        raise _EndedError from None


def _caller(link: _Link, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            packed, named = [_pack(value) for value in arguments], {k: _pack(v) for k, v in keywords.items()}
            request = {"call": name, "arguments": packed, "keywords": named}
        except _UnsendableError:
            raise _NeedsSameProcessError from None
        link.send(request)
        reply = link.receive()
        if not isinstance(reply, dict):
            raise _EndedError
        if "error" in reply:
            raise _raised(reply["error"]) from _ProgramError()
        if "unsendable" in reply:
            raise _ProgramError(str(reply["unsendable"])[:300])
        for argument, new in zip(arguments, _decoded(reply.get("changed", [])), strict=False):
            _replace(argument, new)
        if "opaque" in reply:
            link.opaque = str(reply["opaque"])[:200]
            return _Opaque(reply.get("truth") is True)
        return _decoded(reply.get("result"))

    call.__name__ = name
    return call


def _replace(argument: Any, new: Any) -> None:
    # A test may look at what became of its own list; the program changed a copy.
    if type(argument) is not type(new):
        return
    if isinstance(argument, list | bytearray):
        argument[:] = new
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(new)


def _raised(error: dict[str, str]) -> Exception:
    found = getattr(builtins, str(error["type"]), None)
    message = str(error["message"])
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, UnicodeError):
        return found(message)
    return _ProgramError(_words(error))


def _words(error: dict[str, str]) -> str:
    kind, message = str(error["type"]), str(error["message"])
    if kind == _ProgramError.__name__:
        return message  # it has the name of what the program raised
    return f"{kind}: {message}" if message else kind


def _run_tests(names: dict[str, Any], setup: str, tests: list[str]) -> dict[str, str]:
    random.seed(0)
    for number, source in enumerate((setup, *tests)):
        which = f"test {number} of {len(tests)}" if number else "the tests' setup"
        try:
            code = compile(source, "<tests>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return {"state": "faulty", "note": f"{which} cannot run: {_words(_described(error))}"}
        try:
            exec(code, names)  # noqa: S102 (the data set's tests, in a process of their own)
        except (Exception, SystemExit) as error:
            # The program's own exceptions come with a cause that says so; an import of the tests' own that fails is theirs.
            faulty = isinstance(error, ImportError) and not isinstance(error.__cause__, _ProgramError)
            what = f"{which}: {_words(_described(error))}{_place(error, source)}"
            return {"state": "faulty" if faulty else "failed", "note": what}
    note = f"all {len(tests)} tests pass" if len(tests) != 1 else "the tests pass"
    return {"state": "passed", "note": note}


def _place(error: BaseException, source: str) -> str:
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<tests>":
            line = trace.tb_lineno
        trace = trace.tb_next
    lines = source.splitlines()
    return f", at: {lines[line - 1].strip()[:200]}" if 0 < line <= len(lines) else ""
