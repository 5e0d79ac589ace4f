r"""The code verifier: runs unit tests against a model's Python program, in a sandbox.

Tests of HumanEval (Chen et al. 2021, section 2) and of MBPP (Austin et al. 2021) are read by `read_code_tests`. A program that passes all its tests is a
match; one that fails any, raises, does not parse, ends, or runs into a limit is a mismatch; where it cannot be blamed the verdict is `unparsed`.

Deviations from the papers' own harness, which runs the tests inside the program's process: the tests run in a process and a sandbox of their own, and
the program's objects stay with the program (see `code_worker`): tests that compare them, or that hand over functions or objects of their own, have
no verdict; nor have tests that assert nothing; the time limit leaves out the time in which the machine had no processor free; helper functions that
HumanEval's prompt defines are the prompt's own when a test calls them.

    >>> verifier = CodeVerifier()
    >>> tests = CodeTests(tests=("assert double(4) == 8",), entry_point="double")
    >>> verifier.verify("def double(x):\n    return 2 * x", tests).outcome
    'match'
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

from stepmark.errors import BackendError, InputError, UsageError
from stepmark.records import Problem, Verdict, read_record
from stepmark.verifiers.code_sandbox import (
    ISOLATIONS,
    CodeLimits,
    Isolation,
    Sandbox,
    SandboxResult,
    install_line,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeTests:
    """The unit tests of one problem."""

    tests: tuple[str, ...]
    """Python sources, run in order after `setup`; the first that raises fails the program. At least one."""
    entry_point: str | None = None
    """The function that the tests are about; None when the tests alone say it."""
    prompt: str = ""
    """Code that a completion continues (HumanEval); a whole program is run after it, for its imports and helpers."""
    setup: str = ""
    """Python source run before the tests, in their process: imports, helper values."""
    reference: str | None = None
    """A program that passes. Not run here; it says which names the tests take from the program."""
    id: str | None = None
    """The data set's name for the problem."""


def read_code_tests(row: Mapping[str, Any], *, where: str | None = None) -> CodeTests:
    """The tests of a row of HumanEval or MBPP, told apart by their keys.

    HumanEval: `prompt`, `entry_point`, `test` (defines `check`), and `canonical_solution`, `task_id` where they are.
    MBPP: `test_list`, and `code`, `test_setup_code`, `test_imports`, `task_id` where they are.

    Raises:
        InputError: neither shape, or a field of a wrong type.
    """
    name = None if row.get("task_id") is None else str(row["task_id"])
    if "test_list" in row:
        mbpp = _read(MBPP, row, where)
        if not mbpp.test_list:
            raise InputError("expected at least one test", where=where, field="test_list")
        setup = "\n".join(filter(None, (*(mbpp.test_imports or ()), mbpp.test_setup_code)))
        return CodeTests(id=name, tests=mbpp.test_list, setup=setup, reference=mbpp.code or None)
    if "test" in row:
        human = _read(HumanEval, row, where)
        entry, solution = human.entry_point, human.canonical_solution
        if not entry.isidentifier():
            raise InputError(
                f"expected the name of a function, found {entry!r}", where=where, field="entry_point"
            )
        return CodeTests(
            id=name,
            tests=(f"{human.test}\n\ncheck({entry})\n",),
            entry_point=entry,
            prompt=human.prompt,
            reference=human.prompt + solution if solution else None,
        )
    raise InputError(
        "expected tests: `test` with `prompt` and `entry_point` (HumanEval), or `test_list` (MBPP); found "
        f"{', '.join(map(repr, row)) or 'no key'}",
        where=where,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MBPP:
    """The fields of a row of MBPP that are read."""

    test_list: tuple[str, ...]
    test_imports: tuple[str, ...] | None = None
    test_setup_code: str | None = None
    code: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HumanEval:
    """The fields of a row of HumanEval that are read."""

    prompt: str
    entry_point: str
    test: str
    canonical_solution: str | None = None


_Shape = TypeVar("_Shape", MBPP, HumanEval)


def _read(shape: type[_Shape], row: Mapping[str, Any], where: str | None) -> _Shape:
    names = {field.name for field in fields(shape)}
    return read_record(shape, {name: value for name, value in row.items() if name in names}, where=where)


def code_problem(row: Mapping[str, Any], *, where: str | None = None) -> Problem:
    """A row of HumanEval or MBPP as a problem, whose `answer` is its tests as JSON: what `CodeVerifier.verify` takes."""
    tests = read_code_tests(row, where=where)
    question = next(
        (row[key] for key in ("instruction", "text", "prompt") if isinstance(row.get(key), str)), ""
    )
    if not question.strip():
        raise InputError("expected a question under `prompt` or `text`", where=where, field="prompt")
    source = "MBPP" if "test_list" in row else "HumanEval"
    return Problem(text=question, answer=json.dumps(dict(row)), id=tests.id or where, source=source)


_FENCE = re.compile(
    r"^(?P<before>[ \t]*(?:(?:>|[-*+]|\d{1,9}[.)])[ \t]{0,4}){0,4})(?P<marks>`{3,}|~{3,})[^\n`]*\n(?P<body>.*?)"
    r"(?:^[ \t>]*(?P=marks)[ \t]*$|\Z)",
    re.M | re.S,
)
_QUOTE = re.compile(r"^[ \t]{0,3}>[ \t]?", re.M)


def extract_code(text: str | None, entry_point: str | None = None) -> str | None:
    """The program within a model's text; None where there is none.

    The last fenced block that defines `entry_point`; else the last fenced block; else, where nothing is fenced, the whole text.
    A fence that never closes ends with the text. A block in a list item or a quote loses the indent or the marks of its fence.
    """
    if text is None or not text.strip():
        return None
    blocks = [_dedented(match["before"], match["body"]) for match in _FENCE.finditer(text)]
    if not blocks:
        return text
    if entry_point is not None:
        defines = re.compile(rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(entry_point)}\b", re.M)
        blocks = [block for block in blocks if defines.search(block)] or blocks
    return blocks[-1] if blocks[-1].strip() else None


def _dedented(before: str, body: str) -> str:
    """A fenced block without what stands before its fence: marks of quotes, and as many blanks as there are characters after them."""
    for _ in range(before.count(">")):
        body = _QUOTE.sub("", body)
    indent = len(before.rpartition(">")[2].removeprefix(" ") if ">" in before else before)
    return re.sub(rf"^[ \t]{{1,{indent}}}", "", body, flags=re.M) if indent else body


# Python 3.11 counts the depth of the tree in one place for all threads, and raises SystemError where two parse at once.
_PARSING = Lock()


def _nodes(source: str) -> list[ast.AST]:
    """All nodes of a Python source; none of one that cannot be read."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), _PARSING:
        return list(ast.walk(ast.parse(source)))
    return []


def _asserts(nodes: Sequence[ast.AST]) -> bool:
    """Whether tests can fail: they assert, raise, or call what is named for it (`assertEqual`, `check`, `fail`)."""
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = [name.id for name in calls if isinstance(name, ast.Name)]
    names += [name.attr for name in calls if isinstance(name, ast.Attribute)]
    return any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant))
        for node in nodes
    ) or any(name.startswith(("assert", "fail")) for name in names)


class CodeVerifier:
    """Runs unit tests against programs; a verifier of `verifiers.base.VERIFIERS`, named "code".

    Each program gets a sandbox of its own, which is gone when its verdict comes back. Safe for many threads.

    Args:
        limits: what a program may use.
        isolation: "bubblewrap", a sandbox; or "unsafe", which is none: programs can read and change what this user may.
        workers: how many programs run at once in `verify_many`; None: one for each processor, at most 8.

    Raises:
        UsageError: a setting that cannot be, or an isolation in which a right program does not pass on this machine; says what to type.
    """

    def __init__(
        self,
        *,
        limits: CodeLimits | None = None,
        isolation: Isolation = "bubblewrap",
        workers: int | None = None,
    ) -> None:
        if isolation not in ISOLATIONS:
            raise UsageError(f"isolation: expected {' or '.join(ISOLATIONS)}, found {isolation!r}")
        if workers is not None and workers < 1:
            raise UsageError(f"workers: expected at least 1, found {workers}")
        self.name = "code"
        self.limits = limits or CodeLimits()
        self.isolation: Isolation = isolation
        self.workers = workers or min(8, os.cpu_count() or 1)
        self._sandbox = _tried(isolation, self.limits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(isolation={self.isolation!r}, workers={self.workers})"

    def verify(self, answer: str | None, gold: str | CodeTests) -> Verdict:
        """Run the program that a model's text holds against the tests.

        Args:
            answer: the text: a fenced block, a whole program, or the continuation of the prompt's code; None is `unparsed`.
            gold: the tests, or a row of HumanEval or MBPP as JSON (see `code_problem`).

        Raises:
            InputError: `gold` holds no tests.
        """
        tests = gold if isinstance(gold, CodeTests) else _from_json(gold)
        if not tests.tests:
            raise InputError("expected at least one test", where=tests.id, field="tests")
        code = extract_code(answer, tests.entry_point)
        if code is None:
            return Verdict(outcome="unparsed", verifier=self.name, note="no code in the text")
        parsed = [_nodes(source) for source in (tests.setup, *tests.tests)]
        if all(parsed) and not any(map(_asserts, parsed)):
            return Verdict(
                outcome="unparsed", verifier=self.name, answer=code, note="the tests assert nothing"
            )
        try:
            code.encode()
            result = self._sandbox.run(_task(code, tests))
        except UnicodeError:
            result = SandboxResult(outcome="mismatch", note="the program is no text that Python can read")
        except OSError as error:
            result = SandboxResult(outcome="unparsed", note=f"the sandbox did not start: {error}")
        return Verdict(outcome=result.outcome, verifier=self.name, answer=code, note=result.note)

    def verify_many(self, pairs: Iterable[tuple[str | None, str | CodeTests]]) -> list[Verdict]:
        """`verify` for many pairs (answer, gold), in order, `workers` of them at once."""
        listed = list(pairs)
        if not listed:
            return []
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="stepmark-code")
        try:
            return list(pool.map(lambda pair: self.verify(*pair), listed))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise
        finally:
            pool.shutdown()

    def close(self) -> None:
        """End what still runs. The next `verify` starts anew."""
        self._sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _tried(isolation: Isolation, limits: CodeLimits) -> Sandbox:
    """The sandbox, in which a right program has passed."""
    try:
        sandbox = Sandbox(isolation, limits)
        tests = CodeTests(tests=("assert twice(4) == 8",))
        result = sandbox.run(_task("def twice(x):\n    return 2 * x\n", tests))
        if result.outcome == "match":
            return sandbox
        why = result.note
    except (BackendError, OSError) as error:
        why = str(error)
    if isolation == "unsafe":
        raise UsageError(f"the code verifier does not work on this machine: {why}")
    raise UsageError(
        f"programs need a sandbox, and bubblewrap does not work here: {why}.\n"
        f"  To get it: {install_line()}\n"
        "  In a container it needs user namespaces: see the page on checking programs.\n"
        "  Where the container (docker, podman) or virtual machine itself is the sandbox: `isolation` unsafe, which gives programs\n"
        "  the network and the files of this user"
    )


def _task(code: str, tests: CodeTests) -> dict[str, Any]:
    defined = [
        node for node in _nodes(tests.reference or "") if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    return {
        "program": code,
        "prompt": tests.prompt,
        "entry_point": tests.entry_point,
        "setup": tests.setup,
        "tests": list(tests.tests),
        "owned": [node.name for node in defined],
        "classes": any(isinstance(node, ast.ClassDef) for node in defined),
    }


def _from_json(gold: str) -> CodeTests:
    try:
        row = json.loads(gold)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise InputError(
            "expected the tests as a JSON object, a row of HumanEval or MBPP; found " + repr(gold[:60]),
            field="answer",
        )
    return read_code_tests(row)
