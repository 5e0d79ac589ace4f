"""The two sides of a code test: the program, which answers calls, and the checker, which runs the tests.

Runs only inside the sandbox, each side in a process (and a sandbox) of its own; `code_sandbox` starts it as source text
(`python -c`), so it imports nothing of stepmark. The sides are joined by two pipes, over which only plain data goes. So the
tests never run in the program's process, and an object whose `__eq__` is always true, or a builtin that the program replaced,
does not exist on the side that compares. Any other object of the program's is opaque: the tests see whether it is true, and
fail when they hand it back.
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


class _EndedError(BaseException):
    """The other process is gone or talks nonsense. Not an `Exception`: a test's `except` must not swallow it."""


class _FailedError(BaseException):
    """The program failed the tests. Not an `Exception`, for the same reason."""


class _UnsendableError(Exception):
    """A value that is not plain data."""


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
}
"""Plain data that JSON lacks: the type, how its parts are taken, and how it is made of them."""


def pack(value: Any) -> Any:
    """A value as JSON data, else `_UnsendableError`; subclasses travel as the plain type that they extend."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 53) < value < 1 << 53 else {"int": hex(value)}
    if isinstance(value, float | str):
        return float(value) if isinstance(value, float) else str(value)
    if isinstance(value, list):
        return [pack(item) for item in value]
    for name, (kind, parts, _) in _KINDS.items():
        if isinstance(value, kind):
            return {name: pack(parts(value))}
    if isinstance(value, collections.abc.KeysView | collections.abc.ItemsView):
        return {"set": [pack(item) for item in value]}
    if isinstance(value, Iterator | collections.abc.ValuesView):
        items = list(itertools.islice(value, _LONGEST_ITERATOR + 1))
        if len(items) > _LONGEST_ITERATOR:
            raise _UnsendableError(f"an iterator of more than {_LONGEST_ITERATOR} items")
        return {"iterator": [pack(item) for item in items]}
    raise _UnsendableError(f"a value of type {type(value).__name__}, which is not plain data")


def unpack(data: Any) -> Any:
    """The value that `pack` made data of."""
    if isinstance(data, list):
        return [unpack(item) for item in data]
    if isinstance(data, dict):
        ((name, parts),) = data.items()
        if name == "int":
            return int(parts, 16)
        return iter(unpack(parts)) if name == "iterator" else _KINDS[name][2](unpack(parts))
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
    names: dict[str, Any] = {}
    while True:
        question = peer.receive()
        reply: dict[str, Any]
        try:
            if question["ask"] == "load":
                names = _load(question)
                reply = {"result": None}
            elif question["ask"] == "names":
                reply = {"result": {name: _kind(names[name]) for name in question["names"] if name in names}}
            else:
                reply = _called(names[question["name"]], question)
        except BaseException as error:  # SystemExit too: a program that exits has not answered
            reply = {"error": _described(error)}
        try:
            peer.send(reply)
        except _UnsendableError as error:
            peer.send(_returned(error))


def _kind(value: Any) -> str:
    return "call" if callable(value) else "module" if isinstance(value, types.ModuleType) else ""


def _called(function: Any, question: dict[str, Any]) -> dict[str, Any]:
    arguments = [unpack(value) for value in question["arguments"]]
    result = function(*arguments, **{name: unpack(value) for name, value in question["keywords"].items()})
    try:
        try:
            reply = {"result": pack(result)}
        except _UnsendableError as error:
            reply = {"opaque": str(error), "truth": bool(result)}
        changed = [pack(value) for value in arguments]
        return reply if changed == question["arguments"] else reply | {"changed": changed}
    except RecursionError:
        return _returned("a value nested too deep, or within itself")
    except _UnsendableError as error:
        return _returned(error)


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
        self._sources: list[str] = [task["setup"], *task["tests"]]
        self._failure: str | None = None
        """Why the program failed, whatever the tests make of the exception that says so."""
        self._opaque: str | None = None
        """The last result that was not plain data."""
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
            except _EndedError:
                raise
            except BaseException as error:
                # An import of the tests' own that fails is theirs, and so is a value that cannot be handed over.
                own = isinstance(error, ImportError | _UnsendableError) and self._failure is None
                own &= not isinstance(error.__cause__, _ProgramError)
                what = str(error) if isinstance(error, _FailedError) else _words(_described(error))
                if isinstance(error, _UnsendableError):
                    what = f"the test hands over {error}"
                note = f"{which}: {what}{_place(error, source)}"
                if self._opaque is not None and not own:
                    note += f" (the program returned {self._opaque})"
                return {"state": "faulty" if own else "failed", "note": note}
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
        kinds = self.ask({"ask": "names", "names": sorted(asked)})["result"]
        for name in asked:
            if kinds.get(name) == "call":
                names[name] = self._caller(name)
            elif kinds.get(name) == "module" and name in sys.stdlib_module_names:
                with contextlib.suppress(ImportError):
                    names[name] = importlib.import_module(name)  # as the program does
        return names

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The program's reply."""
        try:
            self._peer.send(question)
            return self._peer.receive()
        except _EndedError:
            self._failure = "the program's process ended"
            raise

    def _caller(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            packed = [self._pack(value) for value in arguments]
            named = {key: self._pack(value) for key, value in keywords.items()}
            question = {"ask": "call", "name": name, "arguments": packed, "keywords": named}
            return self._result(self.ask(question), arguments)

        call.__name__ = name
        return call

    def _pack(self, value: Any) -> Any:
        try:
            return pack(value)
        except _UnsendableError:
            if self._opaque is not None:
                self._fail("the test hands back what the program returned")
            raise

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
            result = unpack(reply.get("result"))
            for argument, new in zip(arguments, unpack(reply.get("changed", [])), strict=False):
                _replace(argument, new)
        except Exception:  # whatever a forged message makes of the decoder
            self._fail("the program's answer cannot be read")
        if "opaque" in reply:
            self._opaque = str(reply["opaque"])[:200]
            return _Opaque(reply.get("truth") is True)
        return result


def _raised(error: dict[str, Any]) -> Exception:
    """The exception that `_described` described, where it is a builtin one."""
    kind = builtins.__dict__.get(str(error["type"]))
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # some take other arguments
            return kind(str(error["message"]))
    return _ProgramError(_words(error))


class _Opaque:
    """A result that is not plain data: as true or false as the program says, equal to nothing but itself."""

    def __init__(self, truth: bool) -> None:
        self._truth = truth

    def __bool__(self) -> bool:
        return self._truth


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
