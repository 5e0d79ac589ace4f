"""The code verifier against truth: programs whose result is plain, and hostile ones whose effect would be seen outside."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import re
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepmark.errors import InputError, UsageError
from stepmark.problems import code_sandbox
from stepmark.problems.answers import load_verifier
from stepmark.problems.code import (
    CodeLimits,
    CodeTests,
    CodeVerifier,
    code_problem,
    extract_code,
    read_code_tests,
)
from stepmark.problems.code_sandbox import ISOLATIONS
from stepmark.records import Verdict

DATA = Path(__file__).parents[2] / "shared" / "data" / "code"
ROOT = os.geteuid() == 0
# Its value stands in the command line of every process of a sandbox, and so finds those that are left over.
MARK = 100_000 + secrets.randbelow(800_000)
LIMITS = CodeLimits(seconds=1, wall_seconds=MARK, memory_mb=256, processes=16)


def make(isolation, **settings) -> CodeVerifier:
    """A verifier in an isolation that works here; else the test is skipped, with the line to type."""
    try:
        return CodeVerifier(isolation=isolation, **settings)
    except UsageError:
        pytest.skip(f"no sandbox works here: {code_sandbox.install_line()}")


@pytest.fixture(scope="module", params=ISOLATIONS)
def verifier(request):
    """Each isolation that works here."""
    with make(request.param, limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def walled():
    """The sandbox that is a security boundary."""
    with make("bubblewrap", limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def strongest():
    """The strongest isolation of this machine."""
    with contextlib.suppress(UsageError), CodeVerifier(isolation="bubblewrap"):
        return "bubblewrap"
    return "process"


@pytest.fixture(scope="module")
def plain(strongest):
    """The strongest isolation of this machine, with time enough for a busy one."""
    limits = CodeLimits(seconds=10, wall_seconds=300, memory_mb=256)
    with CodeVerifier(isolation=strongest, limits=limits) as made:
        yield made


@pytest.fixture(scope="module")
def quick(strongest):
    """The strongest isolation of this machine, for programs that run into a limit."""
    with CodeVerifier(isolation=strongest, limits=LIMITS) as made:
        yield made


def run(verifier: CodeVerifier, program: str, *tests: str, **more) -> Verdict:
    return verifier.verify(program, CodeTests(tests=tests or ("assert f() == 1",), entry_point="f", **more))


def left_over() -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            # With its name: a browser of another test has long numbers in its command line, which may hold any six digits.
            if process.name.isdecimal() and re.search(
                rf'wall_seconds(=|": ){MARK}\b', (process / "cmdline").read_bytes().decode("utf-8", "replace")
            ):
                # A zombie has no command line, so what is found here lives.
                found.append(process.name)
    return found


def assert_nothing_left() -> None:
    until = time.monotonic() + 60
    while left_over() and time.monotonic() < until:
        time.sleep(0.05)
    assert left_over() == []


# --- what a verdict is -----------------------------------------------------------------------------------------------

GREET = {
    "task_id": "Hand/0",
    "prompt": 'import math\n\ndef area(r):\n    """The area of a circle."""\n    return math.pi * r * r\n\n\ndef ring(outer, inner):\n    """The area between two circles."""\n',
    "entry_point": "ring",
    "canonical_solution": "    return area(outer) - area(inner)\n",
    "test": "def check(candidate):\n    assert abs(candidate(2, 1) - 9.42477796) < 1e-6\n    assert candidate(3, 3) == 0\n    assert area(1) > 3\n",
}
SQUARES = {
    "task_id": 7,
    "prompt": "Write a function to square the numbers of a list.",
    "code": "def squares(xs):\n    return [x * x for x in xs]\n",
    "test_list": ["assert squares([1, 2]) == [1, 4]", "assert squares([]) == []"],
    "test_imports": ["import math"],
    "test_setup_code": "",
}


def test_a_program_matches_in_every_isolation(verifier):
    assert run(verifier, "def f(): return 1").outcome == "match"
    assert run(verifier, "def f(): return 2").outcome == "mismatch"
    assert_nothing_left()


def test_humaneval_takes_a_completion_and_a_whole_function(plain):
    tests = read_code_tests(GREET)
    for answer in (
        GREET["canonical_solution"],
        "    return math.pi * (outer ** 2 - inner ** 2)\n\n\ndef unrelated():\n    return 0\n",
        "def ring(outer, inner):\n    return area(outer) - area(inner)\n",
        GREET["prompt"] + GREET["canonical_solution"],
        "from __future__ import annotations\n\ndef ring(outer, inner):\n    return area(outer) - area(inner)\n",
        "Here it is:\n```python\ndef ring(outer, inner):\n    return area(outer) - area(inner)\n```\nDone.",
        "```python\ndef ring(a, b):\n    return area(a) - area(b)\n```\nTry it:\n```\nprint(ring(2, 1))\n```\n",
    ):
        verdict = plain.verify(answer, tests)
        assert verdict.outcome == "match", (answer, verdict.note)
        assert verdict.verifier == "code"
        assert verdict.answer is not None and verdict.answer in answer


def test_humaneval_mismatches_say_why(plain):
    tests = read_code_tests(GREET)
    for answer, part in (
        ("    return area(outer)\n", "AssertionError, at: assert abs(candidate(2, 1) - 9.42477796) < 1e-6"),
        ("    return outer.no_such_name\n", "AttributeError: 'int' object has no attribute 'no_such_name'"),
        ("    return area(outer) - )\n", "does not load: SyntaxError"),
        ("def other(outer, inner):\n    return 0\n", "the program does not define 'ring'"),
        ("    raise ValueError('no rings')\n", "ValueError: no rings"),
        ("    import no_such_module_anywhere\n", "ModuleNotFoundError"),
        (
            "    return area(outer) - area(inner)\n\n\nassert ring(1, 1) == 7\n",
            "does not load: AssertionError",
        ),
    ):
        verdict = plain.verify(answer, tests)
        assert verdict.outcome == "mismatch", answer
        assert part in verdict.note, verdict.note


def test_a_helper_of_the_prompt_is_the_tests_own_when_they_call_it(plain):
    # In the program's process this passes: the tests would ask the program itself what the truth is.
    tests = CodeTests(
        entry_point="root",
        prompt="def poly(x):\n    return x * x - 4\n\n\ndef root():\n    '''A root of poly.'''\n",
        tests=("def check(candidate):\n    assert poly(candidate()) == 0\ncheck(root)",),
    )
    assert plain.verify("    return 2\n", tests).outcome == "match"
    assert plain.verify("    return 5\n\n\ndef poly(x):\n    return 0\n", tests).outcome == "mismatch"


def test_mbpp_rows(plain):
    tests = read_code_tests(SQUARES)
    assert plain.verify(SQUARES["code"], tests).note == "all 2 tests pass"
    verdict = plain.verify("def squares(xs):\n    return [x + x for x in xs]", tests)
    assert (verdict.outcome, verdict.note) == (
        "mismatch",
        "test 1 of 2: AssertionError, at: assert squares([1, 2]) == [1, 4]",
    )
    verdict = plain.verify("def wrong_name(xs):\n    return [x * x for x in xs]", tests)
    assert verdict.outcome == "mismatch"
    assert "'squares' is not defined" in verdict.note


def test_a_function_named_like_a_builtin_is_the_programs_where_the_reference_defines_it(plain):
    row = SQUARES | {"code": "def sum(a, b):\n    return a + b\n", "test_list": ["assert sum(10, 15) == 25"]}
    assert plain.verify("def sum(a, b):\n    return a + b", read_code_tests(row)).outcome == "match"
    assert plain.verify("def sum(a, b):\n    return a * b", read_code_tests(row)).outcome == "mismatch"


@pytest.mark.parametrize(
    ("returned", "test"),
    [
        ("(1, [2, {'a': {3}}])", "assert f() == (1, [2, {'a': {3}}])"),
        ("[1, 2]", "assert f() != (1, 2)"),
        ("10 ** 40", "assert f() == 10 ** 40"),
        ("-(2 ** 53)", "assert f() == -(2 ** 53) and type(f()) is int"),
        ("float('nan')", "assert f() != f()"),
        ("float('-inf')", "assert f() < -1e308"),
        ("2.5 + 1j", "assert f() == complex(2.5, 1)"),
        ("b'\\xff\\x00'", "assert f() == bytes([255, 0])"),
        ("'\\ud800 ки'", "assert f() == '\\ud800 ки'"),
        ("True", "assert f() is True"),
        ("None", "assert f() is None"),
        ("range(3)", "assert f() == range(0, 3) and f() != [0, 1, 2]"),
        ("frozenset({1})", "assert f() == {1}"),
        ("__import__('collections').Counter('aab')", "assert f() == {'a': 2, 'b': 1}"),
        ("__import__('fractions').Fraction(1, 2)", "assert f() == 0.5"),
        ("__import__('decimal').Decimal('0.10')", "assert str(f()) == '0.10'"),
        ("__import__('collections').deque([1])", "assert f() != [1] and list(f()) == [1]"),
        ("(x for x in 'ab')", "assert list(f()) == ['a', 'b']"),
        ("{'a': 1}.keys()", "assert f() == {'a'}"),
        ("__import__('re').match('a', 'a')", "assert f()"),
        ("__import__('re').match('b', 'a')", "assert not f()"),
    ],
)
def test_results_mean_the_same_to_the_tests_as_in_the_program(plain, returned, test):
    assert run(plain, f"def f():\n    return {returned}", test).note == "the tests pass"


def test_arguments_that_the_program_changes_are_changed_for_the_tests(plain):
    program = "def f(xs, d, s):\n    xs.sort()\n    d['n'] = len(xs)\n    s.discard(1)"
    test = "xs, d, s = [3, 1, 2], {}, {1, 2}\nf(xs, d, s)\nassert (xs, d, s) == ([1, 2, 3], {'n': 3}, {2})"
    assert run(plain, program, test).outcome == "match"
    assert run(plain, "def f(xs, d, s):\n    return sorted(xs)", test).outcome == "mismatch"


def test_exceptions_reach_the_tests(plain):
    test = "try:\n    f()\nexcept KeyError as error:\n    assert error.args == (\"'k'\",)\nelse:\n    assert False"
    assert run(plain, "def f():\n    raise KeyError('k')", test).outcome == "match"
    assert run(plain, "def f():\n    raise IndexError('k')", test).outcome == "mismatch"


PAIR = """
class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def sum(self, more=0):
        return self.a + self.b + more

def total(pairs):
    return sum(pair.sum() for pair in pairs)
"""


def test_tests_may_use_objects_of_a_class_that_the_reference_defines(plain):
    rows = SQUARES | {
        "code": PAIR,
        "test_setup_code": "pair = Pair(1, 2)\npair.a, pair.next = 4, Pair(5, 6)",
        "test_list": [
            "assert total([pair, pair.next]) == 17",
            "assert pair.sum(more=1) == 7 and pair.next.b == 6 and pair.next == pair.next != pair",
            "assert not hasattr(pair, 'c')",
        ],
    }
    tests = read_code_tests(rows)
    assert plain.verify(PAIR, tests).note == "all 3 tests pass"
    verdict = plain.verify(PAIR.replace("+ self.b", "* self.b"), tests)
    assert (verdict.outcome, verdict.note) == (
        "mismatch",
        "test 1 of 3: AssertionError, at: assert total([pair, pair.next]) == 17",
    )


def test_tests_may_hand_over_functions(plain):
    assert run(plain, "def f(g):\n    return g(2)", "assert f(lambda x: x + 1) == 3").outcome == "match"
    assert run(plain, "def f(g):\n    return g(3)", "assert f(lambda x: x + 1) == 3").outcome == "mismatch"
    assert (
        run(plain, "def f(g):\n    return [g is int, g('7')]", "assert f(int) == [True, 7]").outcome
        == "match"
    )
    compose = "def f(g, n):\n    return n if n > 9 else g(g, n)"
    assert run(plain, compose, "assert f(lambda g, n: f(g, n + 4), 1) == 13").outcome == "match"
    caught = "def f(g):\n    try:\n        g()\n    except KeyError as error:\n        return 1"
    assert run(plain, caught, "def g(): raise KeyError\nassert f(g) == 1").outcome == "match"
    # What a function of the tests' asserts holds, whatever the program makes of the exception.
    swallowed = "def f(g):\n    try:\n        g(2)\n    except BaseException:\n        return 1"
    verdict = run(plain, swallowed, "def g(x):\n    assert x == 3\nassert f(g) == 1")
    assert (verdict.outcome, verdict.note) == (
        "mismatch",
        "test 1 of 1: AssertionError, at: assert f(g) == 1",
    )


def test_no_verdict_where_the_program_cannot_be_blamed(plain):
    assert plain.verify(None, read_code_tests(SQUARES)).note == "no code in the text"
    assert plain.verify(" \n", read_code_tests(SQUARES)).outcome == "unparsed"
    assert plain.verify("I give up.\n```python\n```\n", read_code_tests(SQUARES)).outcome == "unparsed"
    verdict = run(plain, "def f(): return 1", "assert f( == 1")
    assert (verdict.outcome, verdict.note.split(":")[0]) == ("unparsed", "test 1 of 1 cannot run")
    verdict = run(plain, "def f(): return 1", setup="import no_such_module_anywhere")
    assert (verdict.outcome, verdict.correct) == ("unparsed", None)
    verdict = run(plain, "def f(x): return 1", "class Own: pass\nassert f(Own()) == 1")
    assert (verdict.outcome, verdict.note.split(",")[0]) == (
        "unparsed",
        "test 1 of 1: the test hands over a value of type Own",
    )


def test_a_clock_that_runs_out_is_no_verdict(monkeypatch, strongest):
    # The program wants a processor all the time and the machine is slow: here the clock's limit is simply the shorter.
    with CodeVerifier(isolation=strongest, limits=CodeLimits(seconds=10, wall_seconds=300)) as slow:
        monkeypatch.setattr(
            slow._sandbox, "limits", _unchecked(CodeLimits(seconds=10, wall_seconds=300), wall_seconds=1)
        )
        verdict = run(slow, "while True: pass")
    assert verdict.outcome == "unparsed"
    assert "1 s by the clock" in verdict.note


def _unchecked(limits: CodeLimits, **changes: int) -> CodeLimits:
    for name, value in changes.items():
        object.__setattr__(limits, name, value)
    return limits


def test_many_are_answered_in_order(plain, strongest):
    tests = CodeTests(tests=("assert f() % 3 == 0",))
    verdicts = CodeVerifier(isolation=strongest, workers=3).verify_many(
        [(f"def f(): return {n}", tests) for n in range(9)] + [(None, tests)]
    )
    assert [v.outcome for v in verdicts] == ["match", "mismatch", "mismatch"] * 3 + ["unparsed"]
    assert plain.verify_many([]) == []


def test_verdicts_do_not_depend_on_hash_seeds_or_chance(plain):
    program = "import random\ndef f(): return [list({'a', 'b', 'c', 'd', 'e'}), random.random()]"
    first = run(plain, program, "raise ValueError(f())").note
    assert run(plain, program, "raise ValueError(f())").note == first


def test_it_is_a_verifier_like_the_others(strongest):
    problem = code_problem(GREET)
    assert (problem.id, problem.source, problem.text) == ("Hand/0", "HumanEval", GREET["prompt"])
    assert problem.answer is not None
    with load_verifier("code", isolation=strongest) as verifier:
        assert verifier.name == "code"
        assert verifier.verify(GREET["canonical_solution"], problem.answer).outcome == "match"
        with pytest.raises(InputError, match=r"row of HumanEval or MBPP; found '42'"):
            verifier.verify("x", "42")
    assert code_problem(SQUARES).text == SQUARES["prompt"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "found no key"),
        ({"question": "?"}, "found 'question'"),
        ({"test_list": []}, "at least one test"),
        ({"test_list": "assert f()"}, "test_list.*list of texts"),
        ({"test": "x", "prompt": "y", "entry_point": "a b"}, "name of a function, found 'a b'"),
        ({"test": "x", "entry_point": "f"}, "'prompt'.*expected a text, found NoneType"),
        ({"test_list": ["assert 1"], "code": 3}, "'code'.*found int"),
    ],
)
def test_rows_that_hold_no_tests_are_refused(row, message):
    with pytest.raises(InputError, match=message):
        read_code_tests(row, where="rows.jsonl:3")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f(): pass", "def f(): pass"),
        ("A\n```python\nx = 1\n```\nB\n```py\nx = 2\n```\n", "x = 2\n"),
        ("```python\ndef f(): pass\n```\n```\n>>> f()\n```", "def f(): pass\n"),
        ("```python\nasync def f(): pass\n", "async def f(): pass\n"),
        ("~~~\nx\n```\ny\n~~~", "x\n```\ny\n"),
        ("````\n```\n````", "```\n"),
        ("```python\n    return 1\n```", "    return 1\n"),
        ("use `f` here", "use `f` here"),
        ("```\n```", None),
        ("", None),
        (None, None),
    ],
)
def test_the_program_within_a_text(text, code):
    assert extract_code(text, "f") == code


def test_settings_that_cannot_be_are_refused():
    for wrong in ({"seconds": 0}, {"memory_mb": 10}, {"seconds": 10, "wall_seconds": 5}, {"processes": True}):
        with pytest.raises(UsageError, match=next(iter(reversed(wrong)))):
            CodeLimits(**wrong)
    with pytest.raises(UsageError, match="docker"):
        CodeVerifier(isolation="docker")
    with pytest.raises(UsageError, match="workers"):
        CodeVerifier(workers=0)


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "To install it: apt-get install bubblewrap"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "To install it: dnf install bubblewrap"),
        ({"ID": "strange"}, "To install it: install the package bubblewrap (https://"),
    ],
)
def test_without_bubblewrap_programs_are_refused_with_the_line_to_type(monkeypatch, release, line):
    monkeypatch.setattr(code_sandbox.shutil, "which", lambda name: None)
    monkeypatch.setattr(code_sandbox.platform, "freedesktop_os_release", lambda: release)
    for make_one in (CodeVerifier, lambda: load_verifier("code")):
        with pytest.raises(UsageError) as caught:
            make_one()
        assert "bubblewrap is not installed" in str(caught.value)
        assert line in str(caught.value) and "`isolation` process" in str(caught.value)
    assert CodeVerifier(isolation="process").isolation == "process"
    monkeypatch.setattr(code_sandbox.platform, "system", lambda: "Darwin")
    with pytest.raises(UsageError, match="bubblewrap needs Linux"):
        CodeVerifier()


def test_a_bubblewrap_that_does_not_work_is_refused_with_what_it_says(monkeypatch, tmp_path):
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setattr(code_sandbox.shutil, "which", lambda name: str(bwrap))
    with pytest.raises(UsageError, match=r"does not work here: .*No permissions to create new namespace"):
        CodeVerifier()


def test_an_isolation_is_for_verifiers_that_run_programs():
    assert load_verifier("number", isolation=None).name == "number"
    with pytest.raises(UsageError, match="only the verifier 'code' runs programs, found 'number'"):
        load_verifier("number", isolation="process")


def test_a_sandbox_that_fails_is_no_verdict(plain, monkeypatch):
    monkeypatch.setattr(
        plain._sandbox, "_command", lambda uid: ["/bin/sh", "-c", "echo out of order; exit 4"]
    )
    verdict = run(plain, "def f(): return 1")
    assert (verdict.outcome, verdict.note) == ("unparsed", "the sandbox ended without a result: out of order")


def test_a_machine_that_runs_out_of_memory_is_no_verdict(plain, monkeypatch):
    program = "import os\ndef f(): os.kill(os.getpid(), 9)"
    assert run(plain, program).outcome == "mismatch"
    counts = iter([7, 8])
    monkeypatch.setattr(code_sandbox, "_memory_kills", lambda: next(counts))
    verdict = run(plain, program)
    assert (verdict.outcome, verdict.note) == ("unparsed", "killed while the machine ran out of memory")


def test_a_verifier_that_is_closed_gives_no_verdict(strongest):
    verifier = CodeVerifier(isolation=strongest, limits=CodeLimits(seconds=60, wall_seconds=MARK))
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(run, verifier, "import time\ntime.sleep(600)")
        while not verifier._sandbox._running:
            time.sleep(0.01)
        time.sleep(0.3)
        verifier.close()
        verdict = pending.result()
    assert (verdict.outcome, verdict.note) == ("unparsed", "the verifier was closed")
    assert run(verifier, "def f(): return 1").outcome == "match"
    assert_nothing_left()


# --- hostile programs ------------------------------------------------------------------------------------------------


def test_a_fork_bomb(verifier):
    program = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    assert run(verifier, program).outcome == "mismatch"
    assert_nothing_left()
    assert run(verifier, "def f(): return 1").outcome == "match"


def test_infinite_loops(quick):
    for program in ("while True: pass", "def f():\n    while True: pass"):
        verdict = run(quick, program)
        assert verdict.outcome == "mismatch"
        assert verdict.note.startswith("over its time limit of 1 s")


def test_an_infinite_sleep(verifier):
    verdict = run(verifier, "import threading\ndef f(): threading.Event().wait()")
    assert (verdict.outcome, verdict.note) == ("mismatch", "over its time limit of 1 s")


def test_signals_cannot_be_ignored(verifier):
    program = (
        "import signal\nfor s in signal.valid_signals():\n    try:\n        signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "while True: pass"
    )
    verdict = run(verifier, program)
    assert verdict.outcome == "mismatch"
    assert verdict.note.startswith("over its time limit of 1 s")
    assert_nothing_left()


def test_a_huge_allocation(verifier):
    verdict = run(verifier, "def f(): return len(bytearray(100 << 30))")
    assert verdict.outcome == "mismatch"
    assert "MemoryError" in verdict.note


def test_memory_of_many_processes_together(verifier):
    program = (
        "import ctypes, os, time\ndef f():\n    for _ in range(6):\n        if os.fork() == 0:\n"
        # 15 is PR_SET_NAME: what /proc shows of a process need not be text.
        "            ctypes.CDLL(None).prctl(15, b') \\xff \\n', 0, 0, 0)\n"
        "            block = bytearray(os.urandom(1)) * (100 << 20)\n            time.sleep(600)\n    time.sleep(600)"
    )
    patient = make(verifier.isolation, limits=CodeLimits(seconds=60, wall_seconds=MARK, memory_mb=256))
    verdict = run(patient, program)
    assert (verdict.outcome, verdict.note) == (
        "mismatch",
        "over its memory limit of 256 MiB, all processes together",
    )
    assert_nothing_left()


READ = """
import os, glob
def f(path):
    found = []
    for name in [path] + glob.glob('/proc/[0-9]*/root' + path) + glob.glob('/proc/[0-9]*/cwd'):
        for base in ('', '/..', '/../..'):
            try:
                found.append(open(name + base).read())
            except OSError:
                pass
    try:
        found += [name for name in os.listdir(os.path.dirname(path)) if 'secret' in name]
    except OSError:
        pass
    return found
"""


def test_the_home_directory_cannot_be_read(verifier):
    if verifier.isolation == "process" and not ROOT:
        pytest.skip("without namespaces or root the program is this user and reads what it reads")
    handle, name = tempfile.mkstemp(prefix=".stepmark-secret-", dir=Path.home())
    try:
        os.write(handle, b"the secret")
        os.close(handle)
        assert Path(name).read_text() == "the secret"
        verdict = verifier.verify(READ, CodeTests(tests=(f"assert 'the secret' not in f({name!r})",)))
        assert verdict.outcome == "match", verdict.note
        if verifier.isolation == "bubblewrap":
            verdict = verifier.verify(READ, CodeTests(tests=(f"assert f({name!r}) == []",)))
            assert verdict.outcome == "match", verdict.note
    finally:
        Path(name).unlink()


def test_there_are_no_sockets_to_reach_anything_by(verifier):
    program = (
        "import socket\ndef f(where):\n    kind = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET\n"
        "    try:\n        s = socket.socket(kind)\n        s.settimeout(1)\n        s.connect(where)\n        return 'connected'\n"
        "    except OSError:\n        return 'refused'"
    )
    name = f"\0stepmark-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(name)
        local.listen()
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        for where in (("127.0.0.1", port), ("192.0.2.1", 80), name):
            assert run(verifier, program, f"assert f({where!r}) == 'refused'").outcome == "match"
    loop = "import asyncio\nasync def g():\n    await asyncio.sleep(0)\n    return 1\ndef f(): return asyncio.run(g())"
    assert run(verifier, loop).note == "the tests pass"


def test_a_sandbox_has_no_network_even_without_the_filter(monkeypatch):
    with make("bubblewrap", limits=LIMITS) as walled:
        sources = walled._sandbox._sources
        monkeypatch.setattr(
            walled._sandbox, "_sources", [sources[0].replace("    _filter_calls()\n", ""), sources[1]]
        )
        with socket.create_server(("127.0.0.1", 0)) as server:
            program = (
                "import socket\ndef f(port):\n    s = socket.socket()\n    try:\n        s.connect(('127.0.0.1', port))\n"
                "    except OSError:\n        return 1"
            )
            assert run(walled, program, f"assert f({server.getsockname()[1]}) == 1").note == "the tests pass"


def test_nothing_is_written_outside(verifier, tmp_path):
    if verifier.isolation == "process" and not ROOT:
        pytest.skip("without namespaces or root the program is this user and writes what it may write")
    name = f"stepmark-was-here-{secrets.token_hex(8)}"
    tmp_path.chmod(0o755)
    places = [
        str(tmp_path),
        str(Path.home()),
        "/",
        "/usr",
        "/usr/bin",
        "/etc",
        "/dev",
        str(Path(code_sandbox.__file__).parent),
    ]
    if verifier.isolation == "bubblewrap":
        places += ["/var/tmp", "/dev/shm", "/tmp"]  # noqa: S108 (open to all users, so a user of its own does not help there)
    program = (
        "import os\ndef f(places, name):\n    for place in places:\n        try:\n"
        "            open(os.path.join(place, name), 'w').write('x')\n        except OSError:\n            pass\n    return 1"
    )
    assert run(verifier, program, f"assert f({places!r}, {name!r}) == 1").outcome == "match"
    assert [place for place in places if (Path(place) / name).exists()] == []


def test_the_temporary_folder_is_empty_bounded_and_gone_afterwards(verifier):
    assert (
        run(
            verifier,
            "import os\ndef f(): return os.listdir('.') + os.listdir(os.path.expanduser('~'))",
            "assert f() == []",
        ).note
        == "the tests pass"
    )
    fill = "def f():\n    with open('big', 'wb') as out:\n        for _ in range(100):\n            out.write(bytes(1 << 20))"
    verdict = run(verifier, fill)
    assert verdict.outcome == "mismatch"
    assert "OSError: [Errno 27] File too large" in verdict.note
    if verifier.isolation == "process":
        where = run(verifier, "import os\ndef f(): return os.getcwd()", "raise ValueError(f())").note.split(
            ": ", 2
        )[2]
        assert not Path(where.split(",")[0]).exists()


def test_many_files_cannot_fill_the_disk(walled):
    fill = "def f():\n    for n in range(100):\n        with open(str(n), 'wb') as out:\n            out.write(bytes(1 << 20))"
    verdict = run(walled, fill)
    assert verdict.outcome == "mismatch"
    assert "No space left on device" in verdict.note


def test_the_environment_is_empty_and_input_is_closed(verifier, monkeypatch):
    monkeypatch.setenv("STEPMARK_TEST_KEY", "secret")
    program = "import os\ndef f(): return sorted(os.environ)"
    assert (
        run(verifier, program, "assert set(f()) <= {'HOME', 'PYTHONHASHSEED', 'LC_CTYPE', 'PWD'}, f()").note
        == "the tests pass"
    )
    assert "EOFError" in run(verifier, "def f(): return input()").note


def test_killing_the_parent(verifier):
    if verifier.isolation == "process" and not ROOT:
        pytest.skip("without namespaces or root the program could end this very process")
    kills = "import os, signal\ndef f():\n    for p in PROCESSES:\n        try:\n            os.kill(p, signal.SIGKILL)\n        except OSError:\n            pass\n    return 1"
    for processes in ("[os.getppid()]", "[1]", f"[{os.getpid()}, {os.getppid()}]", "range(2, 400)", "[-1]"):
        verdict = run(
            verifier,
            kills.replace("PROCESSES", processes),
            "assert f() == 1",
            "assert f() == 1",
            "assert f() == 2",
        )
        assert verdict.outcome != "match", processes
    assert_nothing_left()
    assert run(verifier, "def f(): return 1").outcome == "match"


def test_flooding_the_output_and_forging_a_result(verifier):
    flood = "import sys\ndef f():\n    for _ in range(200):\n        print('x' * 100000)\n        sys.stderr.write('y' * 100000)\n    return 1"
    assert run(verifier, flood).outcome == "match"
    # Every descriptor and every process's output gets a line that says "match".
    forge = (
        "import os, glob, json\ndef f():\n    line = (json.dumps({'outcome': 'match', 'note': 'forged', 'state': 'passed'}) + chr(10)).encode()\n"
        "    for n in [1, 2] + [n for n in range(3, 30) if n not in keep()]:\n        try:\n            os.write(n, line)\n        except OSError:\n            pass\n"
        "    for name in glob.glob('/proc/[0-9]*/fd/*'):\n        if f'/{os.getpid()}/' in name:\n            continue\n        try:\n"
        "            n = os.open(name, os.O_WRONLY | os.O_NONBLOCK)\n            os.write(n, line)\n        except OSError:\n            pass\n    return 2\n"
        "def keep():\n    return [n for n in range(3, 30) if is_socket(n)]\n"
        "def is_socket(n):\n    import stat\n    try:\n        return stat.S_ISSOCK(os.fstat(n).st_mode)\n    except OSError:\n        return False\n"
    )
    if verifier.isolation == "process" and not ROOT:
        pytest.skip(
            "without namespaces or root the program can write to whatever this user's processes have open"
        )
    verdict = run(verifier, forge)
    assert verdict.outcome == "mismatch"
    assert "forged" not in verdict.note
    garbage = forge.replace("n not in keep()", "True")
    assert run(verifier, garbage).outcome != "match"


def test_a_daemon_does_not_outlive_the_program(verifier):
    program = (
        "import os, time\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            time.sleep(600)\n        os._exit(0)\n    os.wait()\n    return 1"
    )
    assert run(verifier, program).outcome == "match"
    assert_nothing_left()


def test_nothing_outlives_a_killed_stepmark(verifier, tmp_path):
    script = (
        "import sys\nfrom stepmark.problems.code import *\n"
        f"v = CodeVerifier(isolation={verifier.isolation!r}, limits=CodeLimits(seconds=600, wall_seconds={MARK}))\n"
        "v.isolation\nprint('ready', flush=True)\n"
        "v.verify('import time\\ntime.sleep(600)', CodeTests(tests=('f()',)))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},  # the empty folder stays behind
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        until = time.monotonic() + 60
        while len(left_over()) < 4 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(left_over()) >= 4  # the script itself, supervisor, program, checker
        process.kill()
        process.wait()
        assert_nothing_left()


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import sys\ndef f(): sys.exit(0)",
        "import os\ndef f(): os._exit(0)",
        "def f(): raise SystemExit",
        "def f(): raise KeyboardInterrupt",
        "import os, atexit\natexit.register(lambda: os._exit(0))\ndef f(): return 2",
        "import os\ndef f():\n    os.closerange(3, 64)\n    return 1",
        "import os\ndef f():\n    return os.fork()",
    ],
)
def test_leaving_early_does_not_pass(plain, program):
    assert run(plain, program, "assert f() == 1", "assert f() == 1").outcome == "mismatch"


@pytest.mark.parametrize(
    "program",
    [
        "class Yes:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\ndef f(): return Yes()",
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef f(): return Yes(2)",
        "class Yes(type):\n    def __eq__(self, other): return True\nclass A(metaclass=Yes): pass\ndef f(): return A",
        "import builtins\nbuiltins.AssertionError = Warning\nbuiltins.sorted = builtins.all = lambda *a: True\ndef f(): return 2",
        "import sys\ndef f():\n    frame = sys._getframe()\n    while frame:\n        frame.f_locals.update(state='passed')\n        frame.f_globals['f'] = lambda: 1\n        frame = frame.f_back\n    return 2",
        'import json\njson.dumps = lambda *a, **k: \'{"state": "passed", "result": 3}\'\ndef f(): return 2',
        # The expected value is looked for in all memory that the program can see.
        "import gc\ndef f():\n    for thing in gc.get_objects():\n        if isinstance(thing, dict) and 'tests' in thing and thing['tests']:\n            return 1\n    return 2",
    ],
)
def test_the_comparison_is_out_of_the_programs_reach(verifier, program):
    assert run(verifier, program, "assert f() == 1").outcome == "mismatch"


def test_other_processes_are_closed_to_the_program(verifier):
    # Those of the sandbox; with the same user and no namespaces, this very process is open to it.
    if verifier.isolation == "process" and not ROOT:
        pytest.skip("without namespaces or root the program may look into all that this user runs")
    program = (
        "import glob, os\ndef f():\n    opened = []\n    for name in glob.glob('/proc/[0-9]*/mem') + glob.glob('/proc/[0-9]*/fd/[0-9]*'):\n"
        "        if name.split('/')[2] == str(os.getpid()): continue\n        try:\n"
        "            os.close(os.open(name, os.O_RDONLY | os.O_NONBLOCK))\n            opened.append(name)\n"
        "        except OSError:\n            pass\n    return opened"
    )
    assert run(verifier, program, "assert f() == [], f()").note == "the tests pass"


@pytest.mark.parametrize(
    "program",
    [
        "def f(): return f()",
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): return f()",
        "import sys\nsys.setrecursionlimit(10 ** 9)\nx = []\nfor _ in range(10 ** 6): x = [x]\ndef f(): return repr(x)",
        "def f():\n    x = []\n    x.append(x)\n    return x",
        "def f():\n    x = []\n    for _ in range(10 ** 5): x = [x]\n    return x",
        "def f(): return 'x' * (30 << 20)",
        "def f():\n    while True: yield 1",
        "import ctypes\ndef f(): return ctypes.string_at(0)",
        "x = " + "(" * 5000 + ")" * 5000,
        "def f(): return 1\n\0",
        "\ud800",
    ],
    ids=range(11),
)
def test_deep_recursion_crashes_and_monsters_are_mismatches(quick, program):
    assert run(quick, program).outcome == "mismatch"


# --- forged results --------------------------------------------------------------------------------------------------

FORGE = """
import sys

class Box:
    def __init__(self, value):
        self.value = value

def enc(x):
    return Box(x)

def dec(box):
    # Whatever runs tests in this process finds every one of them passed.
    frame = sys._getframe()
    while frame is not None:
        for name in list(frame.f_globals):
            if "test" in name or name in ("check", "_run_tests"):
                frame.f_globals[name] = lambda *a, **k: {"state": "passed", "note": ""}
        frame = frame.f_back
    return "wrong"
"""


def test_an_object_that_the_test_hands_back_fails_it(verifier):
    for test in (
        "assert dec(enc(3)) == 3",
        "assert dec([enc(3)]) == 3",
        "x = {'a': enc(3)}\nassert dec(b=x) == 3",
    ):
        verdict = verifier.verify(FORGE, CodeTests(tests=(test,)))
        assert verdict.outcome == "mismatch", test
        assert "the test hands back what the program returned" in verdict.note
        assert "Box" in verdict.note
    # Not even where the rest of the test would hold, or where the test catches what that raises.
    honest = "class Box:\n    def __init__(self, x): self.x = x\ndef enc(x): return Box(x)\ndef dec(box): return box.x"
    for test in ("assert dec(enc(3)) == 3", "try:\n    dec(enc(3))\nexcept:\n    pass"):
        assert verifier.verify(honest, CodeTests(tests=(test,))).outcome == "mismatch"


def test_objects_of_other_classes_stay_opaque_where_the_reference_defines_some(plain):
    tests = read_code_tests(
        SQUARES | {"code": PAIR, "test_list": ["assert total([Pair(1, 2)]) == 3", "total(total)"]}
    )
    program = PAIR + "\nclass Other: pass\n\ndef total(pairs):\n    return Other()\n"
    assert plain.verify(program, tests).outcome == "mismatch"
    assert plain.verify(PAIR + "\nPair = lambda a, b: open\n", tests).outcome == "mismatch"


@pytest.mark.parametrize(
    ("body", "test"),
    [
        ("raise StopIteration", "assert all(map(lambda c: f(c[0]) == c[1], [(1, 2)]))"),
        ("raise StopIteration", "assert next(map(f, [1]), 7) == 7"),
        ("raise StopIteration", "assert list(map(f, [1, 2])) == []"),
        ("raise StopIteration", "for x in map(f, [1]): assert x == 2"),
        ("raise StopIteration", "assert not any(filter(f, [1]))"),
        ("class StopIteration(Exception): pass\n    raise StopIteration", "assert all(map(f, [1]))"),
        ("raise StopIteration", "try:\n    assert all(map(f, [1]))\nexcept KeyError: pass"),
        ("raise IndexError", "class S:\n    def __getitem__(self, n): return f(n)\nassert list(S()) == []"),
        (
            "raise AttributeError",
            "class S:\n    x = property(lambda self: f(1))\nassert not hasattr(S(), 'x')",
        ),
        ("raise SystemExit(0)", "assert all(map(f, [1]))"),
        ("raise GeneratorExit", "assert all(map(f, [1]))"),
        ("raise ImportError", "assert f(1) == 2"),
        ("__import__('os')._exit(0)", "try:\n    f(1)\nexcept:\n    pass"),
        (
            "raise ValueError",
            "import threading\nt = threading.Thread(target=f, args=(1,))\nt.start()\nt.join()",
        ),
    ],
)
def test_an_exception_of_the_program_is_not_swallowed_by_chance(plain, body, test):
    assert run(plain, f"def f(x):\n    {body}", test).outcome == "mismatch"


def test_a_test_that_expects_stop_iteration_gets_it(plain):
    test = "try:\n    f()\nexcept StopIteration:\n    pass\nelse:\n    assert False"
    assert run(plain, "def f(): raise StopIteration", test).outcome == "match"
    assert run(plain, "def f(): return 1", test).outcome == "mismatch"


LIES = "__eq__ = __ge__ = __le__ = __contains__ = lambda self, other=None: True\n    __hash__ = None\n    __ne__ = lambda self, other: False"


@pytest.mark.parametrize(
    "program",
    [
        # Objects that lie about their equality, their class, their length.
        f"class Yes:\n    {LIES}\n    __class__ = int\n    __int__ = __index__ = lambda self: 2\ndef f(): return Yes()",
        f"class Yes(str):\n    {LIES}\ndef f(): return Yes('2')",
        f"class Yes(list):\n    {LIES}\n    __iter__ = lambda self: iter([1])\ndef f(): return Yes()",
        f"class Yes(dict):\n    {LIES}\n    items = lambda self: [(1, 1)]\ndef f(): return Yes()",
        f"class Yes(float):\n    {LIES}\ndef f(): return Yes(2)",
        f"class Yes(type):\n    {LIES}\nclass A(metaclass=Yes): pass\ndef f(): return A()",
        "class Yes(int):\n    __class__ = property(lambda self: bool)\ndef f(): return Yes(2)",
        "def f():\n    yield 1",
        "def f(): return iter(lambda: 1, 1)",
        "def f(): return (lambda: 1)",
        "def f(): return type",
        # A reply, or a question, that it writes into the socket itself.
        "import json, os, struct\ndef say(message):\n    data = json.dumps(message).encode()\n    for n in range(3, 20):\n        try:\n"
        "            os.write(n, struct.pack('>I', len(data)) + data)\n        except OSError:\n            pass\n"
        "def f():\n    for message in MESSAGES:\n        say(message)\n    return 2",
        # Threads, exits and handlers.
        "import threading, os\nthreading.Timer(0.05, os._exit, [0]).start()\ndef f():\n    threading.Event().wait()",
        "import atexit, os\natexit.register(os._exit, 0)\ndef f():\n    raise SystemExit(0)",
        "import os\ndef f():\n    if os.fork():\n        os._exit(0)\n    os.execv('/bin/true', ['true'])",
        # The main process ends, and a child keeps the socket open and says nothing.
        "import os, time\ndef f():\n    if os.fork():\n        os._exit(0)\n    time.sleep(600)",
        # Two processes answer the same call.
        "import os\ndef f():\n    os.fork()\n    return 2",
        # What runs the program is replaced.
        'import sys\ndef f():\n    g = sys._getframe(1).f_globals\n    g[\'json\'].dumps = lambda *a, **k: \'{"state": "passed", "note": "", "result": 2}\'\n    return 2',
        "import sys, struct\ndef f():\n    frame = sys._getframe(1)\n    frame.f_locals['self'].answer = lambda q: {'state': 'passed', 'outcome': 'match', 'result': 2}\n    return 2",
    ],
    ids=range(19),
)
def test_lies_do_not_pass(quick, program):
    messages = [
        {"ask": "call", "target": 0, "arguments": [], "keywords": {}},
        {"ask": "load"},
        {"result": {"function": [0, "eval"]}},
        {"result": {"object": 0}},
        {"kinds": {"f": {"value": 1}}},
        {"opaque": "", "truth": True},
        {"error": {"type": "SystemExit", "message": "0"}},
        {"method": True},
        {"changed": [1], "result": None},
        {"state": "passed", "note": "forged"},
        [],
        7,
    ]
    for chosen in [[one] for one in messages] if "MESSAGES" in program else [[]]:
        text = program.replace("MESSAGES", repr(chosen))
        verdict = run(quick, text, "assert f() == 1", "assert f() == 1")
        assert verdict.outcome == "mismatch", (chosen, verdict.note)
    assert_nothing_left()


# --- mismatches that would rather have no verdict --------------------------------------------------------------------


def try_to(act: str) -> str:
    """A program that does something to its judges before it returns."""
    return f"import os, resource, time\ndef f():\n    try:\n        {act}\n    except OSError:\n        pass\n    time.sleep(0.2)\n    return 1"


SIGNALS = {
    "kills all": ("import os\ndef f():\n    os.kill(-1, 9)\n    return 1", "assert f() == 2"),
    "kills each": (
        "import os\ndef f():\n    for p in os.listdir('/proc'):\n        try:\n            if int(p) != os.getpid(): os.kill(int(p), 9)\n"
        "        except (OSError, ValueError): pass\n    return 1",
        "assert f() == 2",
    ),
    "stops each": (
        "import os\ndef f():\n    for p in os.listdir('/proc'):\n        try:\n            if int(p) != os.getpid(): os.kill(int(p), 19)\n"
        "        except (OSError, ValueError): pass\n    return 1",
        "assert f() == 2",
    ),
    "kills its parent": (try_to("os.kill(os.getppid(), 9)"), "assert f() == 2"),
    "interrupts its parent": (try_to("os.kill(os.getppid(), 2)"), "assert f() == 2"),
    "kills its group": (try_to("os.kill(0, 9)"), "assert f() == 2"),
    "starves its parent": (
        try_to("resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))"),
        "assert f() == 2",
    ),
    "blinds its parent": (
        try_to("resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))").replace("0.2", "600"),
        "f()",
    ),
    "locks its folder": (try_to("os.chmod('.', 0)").replace("0.2", "600"), "f()"),
    "kills itself": ("import os\ndef f(): os.kill(os.getpid(), 9)", "f()"),
    "stops itself": ("import os\ndef f(): os.kill(os.getpid(), 19)", "f()"),
    "dies as it loads": ("import os\nos.kill(os.getpid(), 9)", "f()"),
}
EXCESSES = {
    "a range to sum": ("def f(): return range(10 ** 14)", "assert sum(f()) == 1"),
    "a decimal to write out": (
        "import decimal\ndef f(): return decimal.Decimal('1e999999999')",
        "assert int(f()) == 1",
    ),
    "a decimal to add": (
        "import decimal\ndef f(): return decimal.Decimal('1e999999999')",
        "from fractions import Fraction\nassert Fraction(f()) == 1",
    ),
    "numbers with one hash": (
        "def f(): return [n * (2 ** 61 - 1) for n in range(90_000)]",
        "assert len(set(f())) == 1",
    ),
    "a long text": ("def f(): return ['x' * 1000] * 10_000", "assert '\\n'.join(f() * 1000) == 1"),
    "a test that catches": (
        "def f(): return range(10 ** 14)",
        "try:\n    sum(f())\nexcept Exception:\n    pass",
    ),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_a_program_that_ends_what_judges_it_is_a_mismatch(verifier, name):
    program, test = SIGNALS[name]
    if verifier.isolation == "process" and not ROOT and name in {"kills each", "stops each"}:
        pytest.skip("without a sandbox or root the program could end this very process")
    assert run(verifier, program, test).outcome == "mismatch"
    assert_nothing_left()


@pytest.mark.parametrize("name", EXCESSES)
def test_a_result_that_the_tests_cannot_finish_with_is_a_mismatch(quick, name):
    assert run(quick, *EXCESSES[name]).outcome == "mismatch"
    assert_nothing_left()


# --- memory and time of all processes together -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "grab",
    [
        "import os\ndef f(): os.memfd_create('x')",
        "import mmap\ndef f(): mmap.mmap(-1, 1 << 20)",
        "import mmap\ndef f():\n    with open('/dev/zero', 'r+b') as zero:\n        mmap.mmap(zero.fileno(), 1 << 20)",
        "import mmap\ndef f():\n    with open('x', 'w+b') as out:\n        out.truncate(1 << 20)\n        mmap.mmap(out.fileno(), 1 << 20)",
        "import ctypes\ndef f():\n    if ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) < 0: raise OSError",
        "import ctypes\ndef f():\n    if ctypes.CDLL(None).unshare(0x10000000) < 0: raise OSError",
        # clone3 with the flags of fork and a user namespace; the raw call, and the raw `clone`.
        "import ctypes\ndef f():\n    flags = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)\n"
        "    child = ctypes.CDLL(None).syscall(435, ctypes.byref(flags), 88)\n    if child < 0: raise OSError\n    if child == 0: import os; os._exit(0)",
        "import ctypes, os\ndef f():\n    child = ctypes.CDLL(None).syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0)\n"
        "    if child < 0: raise OSError\n    if child == 0: os._exit(0)",
        "def f():\n    with open('/dev/shm/x', 'wb') as out: out.write(b'x')",
    ],
    ids=["memfd", "shared", "zero", "file", "shm", "unshare", "clone3", "clone", "dev-shm"],
)
def test_memory_that_no_process_shows_cannot_be_had(verifier, grab):
    if "/dev/shm" in grab and verifier.isolation == "process":  # noqa: S108
        pytest.skip("without a sandbox the program writes what its user may write")
    verdict = run(verifier, grab, "try:\n    f()\nexcept OSError:\n    pass\nelse:\n    assert False")
    assert verdict.note == "the tests pass"


@pytest.mark.parametrize(
    ("few", "many", "grab"),
    [
        (
            1,
            4,
            "    for n in range(MANY):\n        with open(str(n), 'wb') as out:\n            out.write(bytes(15 << 20))",
        ),
        (300, 60_000, "    for n in range(MANY):\n        open(str(n), 'wb').close()"),
        (
            1,
            5,
            "    for _ in range(MANY):\n        if os.fork() == 0:\n            ends = [socket.socketpair() for _ in range(28)]\n"
            "            time.sleep(600)",
        ),
    ],
    ids=["bytes", "files", "sockets"],
)
def test_what_the_kernel_keeps_in_memory_for_it_counts(walled, few, many, grab):
    limits = CodeLimits(seconds=60, wall_seconds=MARK, memory_mb=128)
    program = f"import os, socket, time\ndef f():\n{grab}\n    held = bytearray(b'x') * (40 << 20)\n    time.sleep(WAIT)\n    return 1"
    with make("bubblewrap", limits=limits) as small:
        assert run(small, program.replace("MANY", str(few)).replace("WAIT", "0.3")).note == "the tests pass"
        assert run(small, program.replace("MANY", str(many)).replace("WAIT", "600")).note == (
            "over its memory limit of 128 MiB, all processes together"
        )


BRIEF = """
import os, time

def burn():
    until = time.thread_time() + 0.03
    while time.thread_time() < until:
        pass

def f():
    for _ in range(6):
        if os.fork() == 0:
            while True:
                try:
                    NEXT
                except OSError:
                    pass
    while True:
        burn()
"""


@pytest.mark.parametrize(
    "link",
    ["os.wait() if os.fork() else (burn(), os._exit(0))", "burn(), os._exit(0) if os.fork() else None"],
    ids=["reaped", "orphans"],
)
def test_processor_time_of_children_that_have_ended_counts(verifier, link):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    verdict = run(verifier, BRIEF.replace("NEXT", link))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (verdict.outcome, verdict.note) == (
        "mismatch",
        "over its time limit of 1 s, all processes together",
    )
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # Of bubblewrap's processes the kernel tells us nothing: their init is not our child.
    assert verifier.isolation == "bubblewrap" or 0.9 < spent < 3, spent
    assert_nothing_left()


@pytest.mark.parametrize(
    "ask",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",  # the time of children that have ended would be lost
        "os.setpriority(os.PRIO_PROCESS, 0, 19)",  # its waiting would look like the machine's fault
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setaffinity(0, {0})",
    ],
)
def test_the_kernel_cannot_be_asked_to_count_less(verifier, ask):
    note = run(verifier, f"import os, signal\ndef f(): {ask}").note or ""
    assert "PermissionError" in note


# --- the public data sets --------------------------------------------------------------------------------------------


def rows(name: str) -> list[dict]:
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def check_solutions(found: list[dict], isolation: str) -> None:
    with CodeVerifier(isolation=isolation, workers=2) as verifier:
        pairs = [(row.get("canonical_solution") or row["code"], read_code_tests(row)) for row in found]
        verdicts = verifier.verify_many(pairs)
    assert [
        (row["task_id"], v.note) for row, v in zip(found, verdicts, strict=True) if v.outcome != "match"
    ] == []


@pytest.mark.parametrize(("name", "every"), [("humaneval", 16), ("mbpp", 45)])
def test_a_sample_of_the_canonical_solutions_passes(name, every, strongest):
    found = rows(name)[::every]
    assert len(found) >= 9
    check_solutions(found, strongest)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("mbpp", 399)])
def test_all_canonical_solutions_pass(name, count, strongest):
    found = rows(name)
    assert len(found) == count
    check_solutions(found, strongest)


def check_agreement(count: int, seed: int, isolation: str) -> None:
    """As many that passed as did not, drawn at random; an empty completion is no verdict, whatever was recorded of it."""
    tests = {row["task_id"]: read_code_tests(row) for row in rows("humaneval")}
    samples = [
        (row["task_id"], text, passed)
        for row in rows("humaneval_samples_100")
        for text, passed in zip(row["samples"], row["passed"], strict=True)
    ]
    chance = random.Random(seed)
    drawn = [
        s
        for passed in (True, False)
        for s in chance.sample([s for s in samples if s[2] is passed], count // 2)
    ]
    with CodeVerifier(isolation=isolation, workers=2, limits=CodeLimits(seconds=5)) as verifier:
        verdicts = verifier.verify_many([(text, tests[task]) for task, text, _ in drawn])
    wrong = [
        (task, text, passed, verdict.note)
        for (task, text, passed), verdict in zip(drawn, verdicts, strict=True)
        if verdict.correct is not (passed if text.strip() else None)
    ]
    assert wrong == []


def test_verdicts_agree_with_published_outcomes(strongest):
    check_agreement(20, seed=3, isolation=strongest)


@pytest.mark.slow
def test_a_thousand_verdicts_agree_with_published_outcomes(strongest):
    check_agreement(1000, seed=1, isolation=strongest)
