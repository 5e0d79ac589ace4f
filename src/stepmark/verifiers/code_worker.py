"""The two sides of a code test: the program, which answers calls, and the checker, which runs the tests.

Runs only inside the sandbox, each side in a process (and a sandbox) of its own; `code_sandbox` starts it as source text
(`python -c`), so it imports nothing of stepmark. The sides are joined by two pipes, over which only plain data goes. So the
tests never run in the program's process, and an object whose `__eq__` is always true, or a builtin that the program replaced,
does not exist on the side that compares. Any other object stays in the program's process and has a number: the tests may call it, hand
it back, read and set its attributes, and ask whether it is true. What a comparison on one would give is not known here: where the
reference has classes of its own there is no verdict; elsewhere an object equals nothing but itself.
"""

from __future__ import annotations

import ast
import builtins
import collections
import contextlib
import datetime
import decimal
import fractions
import importlib
import itertools
import json
import os
import random
import resource
import struct
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

_LARGEST = 16 << 20  # bytes of one message
_LONGEST_ITERATOR = 10_000
_MOST_OBJECTS = 100_000


class _EndedError(BaseException):
    """The other process is gone or talks nonsense. Not an `Exception`: a test's `except` must not swallow it."""


class _FailedError(BaseException):
    """The program failed the tests. Not an `Exception`, for the same reason."""


class _UnsendableError(Exception):
    """A value that is not plain data."""


class _NoVerdictError(BaseException):
    """The tests ask for what only the program's own code could answer."""


class _ProgramError(Exception):
    """The program raised something that is no builtin exception."""


_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, list, tuple),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "deque": (collections.deque, list, collections.deque),
    "dict": (dict, lambda value: [list(item) for item in value.items()], dict),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    "Fraction": (
        fractions.Fraction,
        lambda value: [value.numerator, value.denominator],
        lambda parts: fractions.Fraction(*parts),
    ),
    "Decimal": (decimal.Decimal, str, decimal.Decimal),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
}
"""Plain data that JSON lacks: the type, how its parts are taken, and how it is made of them."""

_HANDED = "bool int float complex str bytes list tuple dict set frozenset abs len max min sorted sum"
_BUILTINS: dict[str, Any] = {name: getattr(builtins, name) for name in _HANDED.split()}
"""Builtins that tests hand over: `remove(items, int)`."""


def pack(value: Any, other: Callable[[Any], Any]) -> Any:
    """A value as JSON data; subclasses travel as the plain type that they extend, and `other` packs what is no plain data."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 53) < value < 1 << 53 else {"int": hex(value)}
    if isinstance(value, float | str):
        return float(value) if isinstance(value, float) else str(value)
    if isinstance(value, list):
        return [pack(item, other) for item in value]
    for name, (kind, parts, _) in _KINDS.items():
        if isinstance(value, kind):
            return {name: pack(parts(value), other)}
    if isinstance(value, collections.abc.KeysView | collections.abc.ItemsView):
        return {"set": [pack(item, other) for item in value]}
    if isinstance(value, Iterator | collections.abc.ValuesView):
        items = list(itertools.islice(value, _LONGEST_ITERATOR + 1))
        if len(items) > _LONGEST_ITERATOR:
            raise _UnsendableError(f"an iterator of more than {_LONGEST_ITERATOR} items")
        return {"iterator": [pack(item, other) for item in items]}
    for name, builtin in _BUILTINS.items():
        if value is builtin:
            return {"builtin": name}
    return other(value)


def unpack(data: Any, other: Callable[[Any], Any]) -> Any:
    """The value that `pack` made data of; `other` gives the object of a number."""
    if isinstance(data, list):
        return [unpack(item, other) for item in data]
    if isinstance(data, dict):
        ((name, parts),) = data.items()
        if name == "int":
            return int(parts, 16)
        if name == "builtin":
            return _BUILTINS[parts]
        if name == "object":
            return other(parts)
        return iter(unpack(parts, other)) if name == "iterator" else _KINDS[name][2](unpack(parts, other))
    return data


class _Peer:
    """One end of the pipes. A message is a length and JSON."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        if len(data) > _LARGEST:
            raise _UnsendableError(f"more than {_LARGEST >> 20} MiB of data")
        rest = memoryview(struct.pack(">I", len(data)) + data)
        try:
            while rest:
                rest = rest[os.write(self._write, rest) :]
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
        data = bytearray()
        while len(data) < size:
            try:
                piece = os.read(self._read, min(size - len(data), 1 << 20))
            except OSError:
                piece = b""
            if not piece:
                raise _EndedError
            data += piece
        return bytes(data)


# --- the program: nothing here is trusted by the other side ----------------------------------------------------------


def serve(peer: _Peer) -> NoReturn:
    """Answer what the checker asks of the program that it sends, until this process is killed."""
    random.seed(0)
    program = _Program()
    while True:
        question = peer.receive()
        reply: dict[str, Any]
        try:
            reply = program.answer(question)
        except _UnsendableError as error:
            reply = _returned(error)
        except BaseException as error:  # SystemExit too: a program that exits has not answered
            reply = {"error": _described(error)}
        try:
            peer.send(reply)
        except _UnsendableError as error:
            peer.send(_returned(error))


class _Program:
    """The program's names, and the objects of its that the tests know by number."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        ask = question["ask"]
        if ask == "load":
            self._names = _load(question)
            return {"result": None}
        if ask == "names":
            return {"result": {name: self._named(name) for name in question["names"] if name in self._names}}
        thing = self._objects[question["object"]]
        if ask == "truth":
            return {"result": bool(thing)}
        if ask == "attribute":
            return {"result": self._pack(getattr(thing, question["name"]))}
        if ask == "set":
            setattr(thing, question["name"], self._unpack(question["value"]))
            return {"result": None}
        arguments = [self._unpack(value) for value in question["arguments"]]
        keywords = {name: self._unpack(value) for name, value in question["keywords"].items()}
        result = thing(*arguments, **keywords)
        try:
            reply = {"result": self._pack(result)}
            changed = [self._pack(value) for value in arguments]
        except RecursionError:
            return _returned("a value nested too deep, or within itself")
        return reply if changed == question["arguments"] else reply | {"changed": changed}

    def _named(self, name: str) -> Any:
        value = self._names[name]
        return {"module": name} if isinstance(value, types.ModuleType) else self._pack(value)

    def _pack(self, value: Any) -> Any:
        return pack(value, self._numbered)

    def _unpack(self, data: Any) -> Any:
        return unpack(data, lambda parts: self._objects[parts[0]])

    def _numbered(self, value: Any) -> Any:
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            if number >= _MOST_OBJECTS:
                raise _UnsendableError(f"more than {_MOST_OBJECTS} objects")
            self._objects.append(value)  # which keeps its id
        return {"object": [number, type(value).__name__]}


def _load(task: dict[str, Any]) -> dict[str, Any]:
    """Run the program's text and return its names. A text that does not parse alone continues the prompt's code."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    names = module.__dict__
    prompt, program, entry = task["prompt"], task["program"], task["entry_point"]
    try:
        whole = compile(program, "<program>", "exec", dont_inherit=True)
    except SyntaxError:
        if not prompt:
            raise
        exec(compile(prompt + program, "<program>", "exec", dont_inherit=True), names)  # noqa: S102 (this process is for that)
        return names
    # The prompt first: a whole function may use its imports and helpers.
    with contextlib.suppress(SyntaxError):
        exec(compile(prompt, "<prompt>", "exec", dont_inherit=True), names)  # noqa: S102
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
    return ": ".join(filter(None, (str(error["type"])[:100], str(error["message"])[:400])))


# --- the tests -------------------------------------------------------------------------------------------------------


def check(peer: _Peer, task: dict[str, Any]) -> dict[str, str]:
    """Run the tests against the program at the other end.

    Returns:
        `state`: "passed", "failed" (the program's fault), "faulty" (the tests' own fault), "ended" (the program's
        process is gone) or "broken" (it never answered); and a `note`.
    """
    tests = _Tests(peer, task)
    stage = "broken"
    try:
        tests.ask({"ask": "names", "names": []})
        stage = "ended"
        reply = tests.ask({"ask": "load", **{key: task[key] for key in ("prompt", "program", "entry_point")}})
        if "error" in reply:
            return {"state": "failed", "note": f"the program does not load: {_words(reply['error'])}"}
        return tests.run()
    except _UnsendableError as error:
        return {"state": "failed", "note": f"the program is {error}"}
    except (_EndedError, AttributeError, KeyError, TypeError):
        return {"state": stage, "note": "the program's process ended"}


class _Tests:
    """Runs the tests. It takes whatever comes over the pipe for data, and nothing for granted."""

    def __init__(self, peer: _Peer, task: dict[str, Any]) -> None:
        self._peer, self._task = peer, task
        self.classes: bool = task["classes"]
        """Whether the reference has classes, so that its results may be objects."""
        self._sources: list[str] = [task["setup"], *task["tests"]]
        self._failure: str | None = None
        """Why the program failed, whatever the tests make of the exception that says so."""
        self._unsure: str | None = None
        """Why there is no verdict, likewise."""
        self._asked = False
        """Whether the tests asked anything of the program."""
        self._objects: dict[int, _Object] = {}
        self._object: str | None = None
        """The type of the last result that was not plain data."""
        nodes: list[ast.AST] = []
        for source in self._sources:
            with contextlib.suppress(SyntaxError, ValueError):
                nodes += ast.walk(ast.parse(source))
        self._used = {node.id for node in nodes if isinstance(node, ast.Name)}
        # Tests that catch no exception on purpose must not do so by chance: `all(map(f, cases))` ends at a StopIteration.
        self._catch = any(isinstance(node, ast.Try | ast.TryStar | ast.With) for node in nodes)

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
                if self._unsure is not None:
                    raise _NoVerdictError
            except _EndedError:
                raise
            except BaseException as error:
                if self._unsure is not None and self._failure is None:
                    return {"state": "faulty", "note": f"{which}: {self._unsure}{_place(error, source)}"}
                # An import of the tests' own that fails is theirs, and so is a value that cannot be handed over.
                own = isinstance(error, ImportError | _UnsendableError) and self._failure is None
                own &= not isinstance(error.__cause__, _ProgramError)
                what = str(error) if isinstance(error, _FailedError) else _words(_described(error))
                if isinstance(error, _UnsendableError):
                    what = f"the test hands over {error}"
                note = f"{which}: {what}{_place(error, source)}"
                if self._object is not None and not own:
                    note += f" (the program returned a value of type {self._object}, which is not plain data)"
                return {"state": "faulty" if own else "failed", "note": note}
        if not self._asked:
            return {"state": "faulty", "note": "the tests ask nothing of the program"}
        return {"state": "passed", "note": f"all {count} tests pass" if count != 1 else "the tests pass"}

    def _names(self) -> dict[str, Any]:
        """The names that the tests see: the prompt's own helpers, run here, and calls to the program."""
        names: dict[str, Any] = {"__name__": "tests"}
        with contextlib.suppress(Exception):
            exec(compile(self._task["prompt"], "<prompt>", "exec", dont_inherit=True), names)  # noqa: S102
        entry, owned = self._task["entry_point"], set(self._task["owned"])
        asked = {n for n in self._used if n not in names and (n in owned or n not in builtins.__dict__)}
        if entry:
            asked.add(entry)
            names.pop(entry, None)
        values = self.ask({"ask": "names", "names": sorted(asked)})["result"]
        for name in asked & set(values):
            if values[name] == {"module": name}:
                with contextlib.suppress(ImportError):
                    if name in sys.stdlib_module_names:
                        names[name] = importlib.import_module(name)  # as the program does
            else:
                with contextlib.suppress(Exception):  # whatever a forged message makes of the decoder
                    names[name] = self._unpack(values[name])
        return names

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The program's reply."""
        try:
            self._peer.send(question)
            return self._peer.receive()
        except _EndedError:
            self._failure = "the program's process ended"
            raise

    def question(self, number: int, ask: str, **more: Any) -> Any:
        """What the program answers about one of its objects."""
        self._asked = True
        return self._result(self.ask({"ask": ask, "object": number, **more}), ())

    def call(self, number: int, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Call one of the program's objects."""
        self._asked = True
        packed = [self.pack(value) for value in arguments]
        named = {key: self.pack(value) for key, value in keywords.items()}
        question = {"ask": "call", "object": number, "arguments": packed, "keywords": named}
        return self._result(self.ask(question), arguments)

    def compared(self, what: str) -> None:
        """Note that the tests compare objects: no verdict where the reference's results may be objects.

        Raises:
            _NoVerdictError: they may.
        """
        if self.classes:
            self._unsure = f"the tests compare objects of the program's ({what})"
            raise _NoVerdictError

    def pack(self, value: Any) -> Any:
        """A value of the tests as data; the program's objects go back by their number."""
        return pack(value, _handed)

    def _unpack(self, data: Any) -> Any:
        return unpack(data, self._known)

    def _known(self, parts: Any) -> _Object:
        number, kind = int(parts[0]), str(parts[1])[:100]
        if number not in self._objects:
            self._objects[number] = _Object(self, number, kind)
        return self._objects[number]

    def _fail(self, why: str) -> NoReturn:
        self._failure = why
        raise _FailedError(why)

    def _result(self, reply: dict[str, Any], arguments: Sequence[Any]) -> Any:
        """What the program answered: a value, or its exception."""
        if "error" in reply:
            error = reply["error"]
            expected = any(str(error["type"]) in source for source in self._sources)
            if not self._catch or ("StopIteration" in str(error["type"]) and not expected):
                self._fail(_words(error))
            raise _raised(error) from _ProgramError()
        try:
            result = self._unpack(reply["result"])
            for argument, new in zip(arguments, self._unpack(reply.get("changed", [])), strict=False):
                _replace(argument, new)
        except Exception:  # whatever a forged message makes of the decoder
            self._fail("the program's answer cannot be read")
        if isinstance(result, _Object):
            self._object = result.stepmark_kind
        return result


def _raised(error: dict[str, Any]) -> Exception:
    """The exception that `_described` described, where it is a builtin one."""
    kind = builtins.__dict__.get(str(error["type"]))
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # some take other arguments
            return kind(str(error["message"]))
    return _ProgramError(_words(error))


def _handed(value: Any) -> Any:
    if type(value) is _Object:
        return {"object": [value.stepmark_number, value.stepmark_kind]}
    raise _UnsendableError(f"a value of type {type(value).__name__}, which is not plain data")


def _special(name: str) -> Callable[..., Any]:
    def method(self: _Object, *arguments: Any) -> Any:
        # An object that takes the place of plain data has none of its methods.
        if not self.stepmark_tests.classes:
            raise TypeError(f"the program's {self.stepmark_kind!r} object has no {name}")
        return self.stepmark_tests.question(self.stepmark_number, "attribute", name=name)(*arguments)

    return method


class _Object:
    """An object of the program's, as the tests hold it."""

    __slots__ = ("stepmark_kind", "stepmark_number", "stepmark_tests")
    stepmark_tests: _Tests
    stepmark_number: int
    stepmark_kind: str

    def __init__(self, tests: _Tests, number: int, kind: str) -> None:
        for name, value in zip(sorted(self.__slots__), (kind, number, tests), strict=True):
            object.__setattr__(self, name, value)

    def __bool__(self) -> bool:
        return self.stepmark_tests.question(self.stepmark_number, "truth") is True

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.stepmark_tests.call(self.stepmark_number, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.stepmark_tests.question(self.stepmark_number, "attribute", name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        value = self.stepmark_tests.pack(value)
        self.stepmark_tests.question(self.stepmark_number, "set", name=name, value=value)

    def __eq__(self, other: object) -> bool:
        if other is not self:
            self.stepmark_tests.compared(self.stepmark_kind)
        return other is self

    def __hash__(self) -> int:
        return self.stepmark_number

    def _ordered(self, other: object) -> Any:
        self.stepmark_tests.compared(self.stepmark_kind)
        return NotImplemented

    __lt__ = __le__ = __gt__ = __ge__ = _ordered

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.stepmark_tests.compared(f"a copy of {self.stepmark_kind}")
        raise TypeError(f"the program's {self.stepmark_kind!r} object cannot be copied")


for _name in ("__len__", "__iter__", "__getitem__", "__contains__", "__str__"):
    setattr(_Object, _name, _special(_name))


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


def main() -> NoReturn:
    """Take on the limits, then serve a program or check it. The arguments are the role, the limits, and a user id or null."""
    role, limits, uid = json.loads(sys.argv[1])
    sys.argv = ["program"]
    read, write, result = os.dup(0), os.dup(1), os.dup(2)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        ceiling = resource.getrlimit(kind)[1]
        most = float("inf") if ceiling == resource.RLIM_INFINITY else ceiling
        # The soft limit on CPU seconds tells the cause but can be ignored.
        resource.setrlimit(kind, (int(min(value, most)), int(min(value + (name == "CPU"), most))))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    peer = _Peer(read, write)
    if role == "serve":
        os.close(result)
        serve(peer)
    task = peer.receive()
    os.write(result, f"{task['token']} started\n".encode())
    line = json.dumps(check(peer, task))
    os.write(result, f"{task['token']} {line}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
