"""The two sides of a code test: the program, which answers calls, and the checker, which runs the tests.

Runs only inside the sandbox, in processes that `code_worker` makes; it is handed over as source text and imports nothing of stepmark.

What crosses the socket between the two is plain data, or the number of something that stays where it is: a function of the tests', which
the program may call; an object of a class that the reference solution defines, whose attributes and methods the tests may use. So the
tests never run in the program's process, and an object whose `__eq__` is always true, or a builtin that the program replaced, does not
exist on the side that compares. Any other object of the program's is opaque: the tests see whether it is true, and fail when they hand it
back.
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

_LARGEST = 16 << 20  # bytes of one message between program and checker
_LONGEST_ITERATOR = 10_000


class _EndedError(BaseException):
    """The program's process is gone or talks nonsense. Not an `Exception`: a test's `except` must not swallow it."""


class _FailedError(BaseException):
    """The program failed the tests. Not an `Exception`, for the same reason."""


class _UnsendableError(Exception):
    """A value that cannot travel."""


class _ProgramError(Exception):
    """The program raised something that is no builtin exception."""


_UNPACK: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "int": lambda data, _: int(data, 16),
    "tuple": lambda data, unpack: tuple(map(unpack, data)),
    "set": lambda data, unpack: set(map(unpack, data)),
    "frozenset": lambda data, unpack: frozenset(map(unpack, data)),
    "deque": lambda data, unpack: collections.deque(map(unpack, data)),
    "dict": lambda data, unpack: {unpack(key): unpack(item) for key, item in data},
    "bytes": lambda data, _: bytes.fromhex(data),
    "bytearray": lambda data, _: bytearray.fromhex(data),
    "complex": lambda data, _: complex(*data),
    "range": lambda data, _: range(*data),
    "Fraction": lambda data, unpack: fractions.Fraction(*map(unpack, data)),
    "Decimal": lambda data, _: decimal.Decimal(data),
    "iterator": lambda data, unpack: iter(list(map(unpack, data))),
}


class _Peer(ABC):
    """One end of the socket. A message is a length and JSON: a question, which has "ask", or a reply."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lent: list[Any] = []
        """What the other side knows by its number."""

    @abstractmethod
    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """The reply to a question of the other side."""

    @abstractmethod
    def refer(self, value: Any) -> dict[str, Any]:
        """What stands for a value that is not plain data.

        Raises:
            _UnsendableError: nothing does.
        """

    @abstractmethod
    def referred(self, kind: str, number: Any) -> Any:
        """The value that `refer` of the other side, or of this one, stands for."""

    def lend(self, value: Any) -> int:
        """The number by which the other side knows a value."""
        for number, known in enumerate(self._lent):
            if known is value:
                return number
        self._lent.append(value)
        return len(self._lent) - 1

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        if len(data) > _LARGEST:
            raise _UnsendableError(f"more than {_LARGEST >> 20} MiB of data")
        try:
            self._end.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            raise _EndedError from None

    def receive(self) -> dict[str, Any]:
        (size,) = struct.unpack(">I", self._exactly(4))
        if size > _LARGEST:
            raise _EndedError
        try:
            message = json.loads(self._exactly(size))
        except (ValueError, RecursionError):
            raise _EndedError from None
        if not isinstance(message, dict):
            raise _EndedError
        return message

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                piece = self._end.recv(min(size - len(parts), 1 << 20))
            except OSError:
                raise _EndedError from None
            if not piece:
                raise _EndedError
            parts += piece
        return bytes(parts)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The reply to a question; until it comes, the other side may ask in its turn."""
        self.send(question)
        while "ask" in (message := self.receive()):
            self.send(self.answer(message))
        return message

    def call(self, target: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        """The question that calls a function of the other side."""
        packed = {name: self.pack(value) for name, value in keywords.items()}
        return {
            "ask": "call",
            "target": target,
            "arguments": list(map(self.pack, arguments)),
            "keywords": packed,
        }

    def pack(self, value: Any) -> Any:
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
            return [self.pack(item) for item in value]
        for kind in (tuple, set, frozenset, collections.deque):
            if isinstance(value, kind):
                return {kind.__name__: [self.pack(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[self.pack(key), self.pack(item)] for key, item in value.items()]}
        if isinstance(value, bytes | bytearray):
            return {"bytearray" if isinstance(value, bytearray) else "bytes": value.hex()}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, range):
            return {"range": [value.start, value.stop, value.step]}
        if isinstance(value, fractions.Fraction):
            return {"Fraction": [self.pack(value.numerator), self.pack(value.denominator)]}
        if isinstance(value, decimal.Decimal):
            return {"Decimal": str(value)}
        if isinstance(value, collections.abc.KeysView | collections.abc.ItemsView):
            return {"set": [self.pack(item) for item in value]}
        if isinstance(value, Iterator | collections.abc.ValuesView):
            items = list(itertools.islice(value, _LONGEST_ITERATOR + 1))
            if len(items) > _LONGEST_ITERATOR:
                raise _UnsendableError(f"an iterator of more than {_LONGEST_ITERATOR} items")
            return {"iterator": [self.pack(item) for item in items]}
        return self.refer(value)

    def unpack(self, data: Any) -> Any:
        """The value that `pack` made data of."""
        if isinstance(data, list):
            return [self.unpack(item) for item in data]
        if isinstance(data, dict):
            ((kind, value),) = data.items()
            return _UNPACK[kind](value, self.unpack) if kind in _UNPACK else self.referred(kind, value)
        return data


def _unsendable(value: Any) -> _UnsendableError:
    return _UnsendableError(f"a value of type {type(value).__name__}, which is not plain data")


# --- the program -----------------------------------------------------------------------------------------------------


def serve(end: socket.socket) -> NoReturn:
    """Answer what the checker asks of the program that it sends, until this process is killed."""
    random.seed(0)
    program = _Program(end)
    while True:
        reply = program.answer(program.receive())
        try:
            program.send(reply)
        except _UnsendableError as error:
            program.send(_returned(error))


class _Program(_Peer):
    """The side that holds the program. Nothing here is trusted by the other side."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end)
        self._names: dict[str, Any] = {}
        self._classes: list[str] = []
        self._functions: dict[int, tuple[Any, dict[str, Any]]] = {}
        """What was handed over by the tests, by its `id`, and what stands for it."""

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        arguments, keywords = [], {}
        try:
            match question["ask"]:
                case "load":
                    self._classes = question["classes"]
                    self._names = _load(question)
                    return {"result": None}
                case "names":
                    return {
                        "kinds": {
                            n: self._kind(self._names[n]) for n in question["names"] if n in self._names
                        }
                    }
                case "get":
                    result = getattr(self._lent[question["target"]], question["name"])
                    if callable(result):
                        return {"method": True}
                case "set":
                    value = self.unpack(question["value"])
                    setattr(self._lent[question["target"]], question["name"], value)
                    result = None
                case _:
                    arguments = list(map(self.unpack, question["arguments"]))
                    keywords = {name: self.unpack(value) for name, value in question["keywords"].items()}
                    match question["target"]:
                        case [number, name]:
                            function = getattr(self._lent[number], name)
                        case name:
                            function = self._names[name]
                    result = function(*arguments, **keywords)
        except BaseException as error:  # SystemExit too: a program that exits has not answered
            return {"error": _described(error)}
        try:
            try:
                reply = {"result": self.pack(result)}
            except _UnsendableError as error:
                reply = {"opaque": str(error), "truth": bool(result)}
            after = list(map(self.pack, arguments))
            return reply if after == question.get("arguments", []) else reply | {"changed": after}
        except RecursionError:
            return _returned("a value nested too deep, or within itself")
        except _UnsendableError as error:
            return _returned(error)
        except BaseException as error:  # a generator runs only when its items are asked for
            return {"error": _described(error)}

    def refer(self, value: Any) -> dict[str, Any]:
        if id(value) in self._functions:
            return self._functions[id(value)][1]
        name = type(value).__name__
        if name not in self._classes or self._names.get(name) is not type(value):
            raise _unsendable(value)
        return {"object": self.lend(value)}

    def referred(self, kind: str, number: Any) -> Any:
        if kind == "object":
            return self._lent[number]
        number, name = number
        for known, reference in self._functions.values():
            if reference["function"][0] == number:
                return known

        def function(*arguments: Any, **keywords: Any) -> Any:
            reply = self.ask(self.call(number, arguments, keywords))
            if "error" in reply:
                raise _raised(reply["error"])
            return self.unpack(reply["result"])

        made = getattr(builtins, name) if name else function
        self._functions[id(made)] = (made, {"function": [number, name]})
        return made

    def _kind(self, value: Any) -> Any:
        if callable(value):
            return "call"
        if isinstance(value, types.ModuleType):
            return "module"
        try:
            return {"value": self.pack(value)}
        except (_UnsendableError, RecursionError):
            return "other"


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


def _returned(what: object) -> dict[str, Any]:
    return {"error": {"type": "", "message": f"the program returned {what}"}}


def _described(error: BaseException) -> dict[str, str]:
    try:
        message = str(error)[:300]
    except BaseException:
        message = ""
    where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
    return {"type": type(error).__name__[:100], "message": where + message}


def _words(error: dict[str, Any]) -> str:
    """What `_described` described, in a line."""
    kind = str(error["type"])[:100]
    if kind == _ProgramError.__name__:
        kind = ""  # the message begins with the name of what the program raised
    return ": ".join(filter(None, (kind, str(error["message"])[:400])))


def _raised(error: dict[str, Any]) -> Exception:
    """The exception that `_described` described, where it is a builtin one."""
    kind = getattr(builtins, str(error["type"]), None)
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, UnicodeError | ExceptionGroup)
    ):
        return kind(str(error["message"]))
    return _ProgramError(_words(error))


# --- the tests -------------------------------------------------------------------------------------------------------


def check(end: socket.socket, task: dict[str, Any]) -> dict[str, str]:
    """Run the tests against the program at the other end.

    Returns:
        `state`: "passed", "failed" (the program's fault), "faulty" (the tests' own fault) or "ended" (the program's
        process is gone); and a `note`.
    """
    tests = _Tests(end, task)
    stage = "while it loaded"
    try:
        question = {key: task[key] for key in ("prompt", "program", "entry_point", "classes")}
        reply = tests.ask({"ask": "load", **question})
        if "error" in reply:
            return {"state": "failed", "note": f"the program does not load: {_words(reply['error'])}"}
        stage = "while the tests ran"
        return tests.run()
    except _UnsendableError as error:
        return {"state": "failed", "note": f"the program is {error}"}
    except (_EndedError, AttributeError, KeyError, TypeError):
        return {"state": "ended", "note": stage}


class _Tests(_Peer):
    """The side that runs the tests. It takes whatever comes over the socket for data, and nothing for granted."""

    def __init__(self, end: socket.socket, task: dict[str, Any]) -> None:
        super().__init__(end)
        self._task = task
        self._sources: list[str] = [task["setup"], *task["tests"]]
        self._failure: str | None = None
        """Why the program failed, whatever the tests make of the exception that says so."""
        self._opaque: str | None = None
        """The last type of a result that was not plain data."""
        nodes: list[ast.AST] = []
        for source in self._sources:
            with contextlib.suppress(SyntaxError, ValueError):
                nodes += ast.walk(ast.parse(source))
        self._used = {node.id for node in nodes if isinstance(node, ast.Name)}
        # Tests that catch no exception on purpose must not do so by chance: `all(map(f, cases))` ends at a StopIteration.
        self._catch = any(isinstance(node, ast.Try | ast.TryStar | ast.With) for node in nodes) or any(
            "raises" in source.lower() for source in self._sources
        )

    def run(self) -> dict[str, str]:
        """Run the tests in order, until one fails."""
        names = self._names()
        random.seed(0)
        count = len(self._sources) - 1
        for number, source in enumerate(self._sources):
            which = f"test {number} of {count}" if number else "the tests' setup"
            try:
                code = compile(source, "<tests>", "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                return {"state": "faulty", "note": f"{which} cannot run: {_words(_described(error))}"}
            try:
                exec(code, names)  # noqa: S102 (the data set's tests, in a process of their own)
                if self._failure is not None:
                    raise _FailedError(self._failure)
            except _EndedError:
                raise
            except BaseException as error:
                # The program's own exceptions come with a cause that says so; an import of the tests' own that fails is theirs.
                faulty = isinstance(error, ImportError) and not isinstance(error.__cause__, _ProgramError)
                faulty |= isinstance(error, _UnsendableError) and self._opaque is None
                what = str(error) if isinstance(error, _FailedError) else _words(_described(error))
                if isinstance(error, _UnsendableError):
                    what = f"the test hands over {error}"
                note = f"{which}: {what}{_place(error, source)}"
                if self._opaque is not None and not faulty:
                    note += f" (the program returned {self._opaque})"
                return {"state": "faulty" if faulty else "failed", "note": note}
        return {"state": "passed", "note": f"all {count} tests pass" if count != 1 else "the tests pass"}

    def _names(self) -> dict[str, Any]:
        """The names that the tests see: the prompt's own helpers, run here, and calls to the program."""
        names: dict[str, Any] = {"__name__": "tests"}
        with contextlib.suppress(Exception):
            exec(compile(self._task["prompt"], "<prompt>", "exec", dont_inherit=True), names)  # noqa: S102
        entry, owned = self._task["entry_point"], set(self._task["owned"])
        asked = {n for n in self._used if n not in names and (n in owned or n not in builtins.__dict__)}
        asked |= {entry} if entry else set()
        kinds = self.ask({"ask": "names", "names": sorted(asked)})["kinds"]
        for name in sorted(asked):
            kind = kinds.get(name)
            if kind == "call":
                names[name] = self._caller(name, name)
            elif kind == "module" and name in sys.stdlib_module_names:
                with contextlib.suppress(ImportError):
                    names[name] = importlib.import_module(name)
            elif isinstance(kind, dict):
                names[name] = self._decoded(kind["value"])
            elif name == entry:
                names.pop(name, None)
        return names

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Call a function of the tests' that the program was handed."""
        if question["ask"] != "call":
            raise _EndedError
        function = self._decoded({"function": [question["target"], ""]})
        arguments = self._decoded(question["arguments"])
        keywords = {name: self._decoded(value) for name, value in question["keywords"].items()}
        try:
            result = function(*arguments, **keywords)
        except AssertionError as error:
            self._fail(_words(_described(error)))
        except Exception as error:
            return {"error": _described(error)}
        return {"result": self.pack(result)}

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            return super().ask(question)
        except _EndedError:
            self._failure = "the program's process ended"  # whatever the tests make of it
            raise

    def refer(self, value: Any) -> dict[str, Any]:
        if isinstance(value, _Object):
            return {"object": value._number}
        if isinstance(value, _Opaque):
            self._fail("the test hands back what the program returned")
        name = str(getattr(value, "__name__", ""))
        name = name if builtins.__dict__.get(name) is value else ""
        if not callable(value) or (not name and isinstance(value, type)):
            raise _unsendable(value)
        return {"function": [self.lend(value), name]}

    def referred(self, kind: str, number: Any) -> Any:
        if kind == "function":
            return self._lent[number[0]]
        if kind == "object":
            return _Object(self, int(number))
        raise _EndedError

    def _decoded(self, data: Any) -> Any:
        try:
            return self.unpack(data)
        except Exception:  # whatever a forged message makes of the decoder
            self._fail("the program's answer cannot be read")

    def _fail(self, why: str) -> NoReturn:
        self._failure = why
        raise _FailedError(why)

    def result(self, question: dict[str, Any], arguments: Sequence[Any] = ()) -> Any:
        """What the program answers: a value, or its exception."""
        reply = self.ask(question)
        if "error" in reply:
            error = reply["error"]
            if question["ask"] == "get" and error["type"] == "AttributeError":
                raise AttributeError(_words(error))  # as `hasattr` and `getattr` of a test expect it
            if not self._catch:
                self._fail(_words(error))
            stops = str(error["type"]) in {"StopIteration", "StopAsyncIteration"}
            if stops and not any(str(error["type"]) in source for source in self._sources):
                raise _ProgramError(_words(error))
            raise _raised(error) from _ProgramError()
        for argument, new in zip(arguments, self._decoded(reply.get("changed", [])), strict=False):
            _replace(argument, new)
        if "opaque" in reply:
            self._opaque = str(reply["opaque"])[:200]
            return _Opaque(reply.get("truth") is True)
        if "method" in reply:
            return self._caller([question["target"], question["name"]], question["name"])
        return self._decoded(reply.get("result"))

    def _caller(self, target: Any, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return self.result(self.call(target, arguments, keywords), arguments)

        call.__name__ = name
        return call


class _Opaque:
    """A result that is not plain data: as true or false as the program says, equal to nothing but itself."""

    def __init__(self, truth: bool) -> None:
        self._truth = truth

    def __bool__(self) -> bool:
        return self._truth


class _Object:
    """An object of the program's, of a class that the reference defines: its attributes are asked for, and it equals only itself."""

    def __init__(self, tests: _Tests, number: int) -> None:
        object.__setattr__(self, "_tests", tests)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._tests.result({"ask": "get", "target": self._number, "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        question = {"ask": "set", "target": self._number, "name": name, "value": self._tests.pack(value)}
        self._tests.result(question)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self._number == other._number

    def __hash__(self) -> int:
        return hash(self._number)


def _replace(argument: Any, new: Any) -> None:
    # A test may look at what became of its own list; the program changed a copy.
    if type(argument) is not type(new):
        return
    if isinstance(argument, list | bytearray):
        argument[:] = new
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(new)


def _place(error: BaseException, source: str) -> str:
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<tests>":
            line = trace.tb_lineno
        trace = trace.tb_next
    lines = source.splitlines()
    return f", at: {lines[line - 1].strip()[:200]}" if 0 < line <= len(lines) else ""
