"""The code verifier against truth: programs whose result is plain, and hostile ones whose effect would be seen outside."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
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
from stepmark.records import Verdict
from stepmark.verifiers import code_sandbox
from stepmark.verifiers.base import load_verifier
from stepmark.verifiers.code import CodeTests, CodeVerifier, code_problem, extract_code, read_code_tests
from stepmark.verifiers.code_sandbox import ISOLATIONS, CodeLimits

DATA = Path(__file__).parents[2] / "shared" / "data" / "code"
# It stands in the command line of every process of a sandbox, and so finds those that are left over.
MARK = 100_000 + secrets.randbelow(800_000)
LIMITS = CodeLimits(seconds=1, wall_seconds=120, memory_mb=256, file_mb=MARK)


@pytest.fixture(scope="module")
def walled():
    """The sandbox, for hostile programs."""
    try:
        with CodeVerifier(limits=LIMITS) as made:
            yield made
    except UsageError:
        pytest.skip(f"no sandbox works here: {code_sandbox.install_line()}")


@pytest.fixture(scope="module")
def strongest():
    """The strongest isolation of this machine."""
    with contextlib.suppress(UsageError), CodeVerifier():
        return "bubblewrap"
    return "unsafe"


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
    mark = f'"FSIZE": {MARK << 20}'.encode()
    processes = []
    for process in Path("/proc").iterdir():
        # A zombie has no command line, so each of these lives.
        with contextlib.suppress(OSError):
            if process.name.isdecimal() and mark in (process / "cmdline").read_bytes():
                processes.append(process.name)
    return processes


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


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_program_matches_in_every_isolation(isolation, request):
    if isolation == "bubblewrap":
        request.getfixturevalue("walled")
    with CodeVerifier(isolation=isolation, limits=LIMITS) as verifier:
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


@pytest.mark.parametrize(
    ("test", "note"),
    [
        ("assert f( == 1", "cannot run"),
        ("import no_such_module_anywhere\nassert f() == 1", "no_such_module_anywhere"),
        ("class Own: pass\nassert f(Own()) == 1", "hands over a value of type Own"),
        ("assert f(lambda x: x) == 1", "hands over a value of type function"),
    ],
)
def test_no_verdict_where_the_program_cannot_be_blamed(plain, test, note):
    verdict = run(plain, "def f(*x): return 1", test)
    assert (verdict.outcome, verdict.correct) == ("unparsed", None)
    assert note in verdict.note


def test_no_verdict_without_code(plain):
    for text in (None, " \n", "I give up.\n```python\n```\n"):
        assert plain.verify(text, read_code_tests(SQUARES)).note == "no code in the text"


@pytest.mark.parametrize("test", ["f(1)", "x = f(1)", "assert True", "print(f(1))", "assert 1 == 1"])
def test_no_verdict_where_tests_assert_nothing(plain, test):
    assert run(plain, "def f(x): return x", test).outcome == "unparsed"


PAIR = """
class Pair:
    def __init__(self, a, b=0):
        self.a, self.b = a, b
    def swapped(self):
        return Pair(self.b, self.a)
    def __len__(self):
        return 2
    def __eq__(self, other):
        return self.a == other.a
def longest(pairs):
    return max(pairs, key=lambda pair: pair.b - pair.a).a
def pairs(n):
    return [Pair(i, i * i) for i in range(n)]
def adder(x):
    return lambda y: x + y
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert longest([Pair(1, 2), Pair(3, 9), Pair(5, 6)]) == 3",
        "assert longest(pairs(4)) == 3",
        "p = Pair(1)\np.b = Pair(7, 8)\nassert p.b.a == 7 and p.b.swapped().a == 8",
        "assert len(Pair(1)) == 2",
        "assert adder(2)(3) == 5",
        "assert longest(sorted(pairs(4), key=lambda pair: -pair.a)) == 3",
        "p = Pair(1)\nassert p == p",
    ],
)
def test_objects_of_the_program_go_back_to_it(plain, test):
    tests = CodeTests(tests=(test,), reference=PAIR)
    assert plain.verify(PAIR, tests).outcome == "match", plain.verify(PAIR, tests).note
    broken = (
        PAIR.replace("return max", "return min").replace("x + y", "x - y").replace("return 2", "return 3")
    )
    wrong = plain.verify(broken.replace("self.a, self.b = a, b", "self.a, self.b = b, a"), tests)
    assert wrong.outcome == ("match" if test.endswith("p == p") else "mismatch")


@pytest.mark.parametrize(
    "test", ["assert Pair(1) == Pair(1)", "assert Pair(1) in pairs(3)", "assert pairs(2) == pairs(2)"]
)
def test_a_comparison_of_objects_has_no_verdict(plain, test):
    assert plain.verify(PAIR, CodeTests(tests=(test,), reference=PAIR)).outcome == "unparsed"


def test_builtin_types_are_handed_over(plain):
    program = "def f(xs, kind): return [x for x in xs if not isinstance(x, kind)]"
    assert run(plain, program, "assert f([1, 2.5, 'a'], int) == [2.5, 'a']").outcome == "match"


@pytest.mark.parametrize(
    "value",
    ["datetime.date(2024, 2, 29)", "datetime.datetime(2024, 2, 29, 1, 2)", "datetime.timedelta(days=1, seconds=2)",
     "decimal.Decimal('1.50')", "fractions.Fraction(2, 3)", "{1, 2}", "frozenset({1})", "complex(1, 2)"],
)  # fmt: skip
def test_values_of_the_standard_library_are_compared_by_value(plain, value):
    imports = "import datetime, decimal, fractions\n"
    program = f"{imports}def f(): return {value}"
    assert run(plain, program, f"{imports}assert f() == {value}").outcome == "match"
    assert run(plain, program, f"{imports}assert f() != {value}").outcome == "mismatch"


def test_a_clock_that_runs_out_is_no_verdict(monkeypatch, strongest):
    # A slow machine: the program stands in the queue for a processor all the time.
    monkeypatch.setattr(code_sandbox, "_times", lambda process: (0.0, 1e9))
    with CodeVerifier(isolation=strongest, limits=CodeLimits(seconds=1, wall_seconds=2)) as slow:
        verdict = run(slow, "import time\ntime.sleep(600)")
    assert verdict.outcome == "unparsed"
    assert "2 s by the clock" in verdict.note


def test_a_sandbox_that_ends_is_no_verdict(plain, monkeypatch):
    monkeypatch.setattr(code_sandbox.sys, "executable", "/bin/false")
    assert run(plain, "def f(): return 1").outcome == "unparsed"


def test_many_are_answered_in_order(plain, strongest):
    tests = CodeTests(tests=("assert f() % 3 == 0",))
    verdicts = CodeVerifier(isolation=strongest, workers=3).verify_many(
        [(f"def f(): return {n}", tests) for n in range(9)] + [(None, tests)]
    )
    assert [v.outcome for v in verdicts] == ["match", "mismatch", "mismatch"] * 3 + ["unparsed"]
    assert plain.verify_many([]) == []


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
        ({"test_list": "assert f()"}, "test_list.*found 'assert f\\(\\)'"),
        ({"test": "x", "prompt": "y", "entry_point": "a b"}, "name of a function, found 'a b'"),
        ({"test": "x", "entry_point": "f"}, "'prompt'.*required"),
        ({"test_list": ["assert 1"], "code": 3}, "'code'.*found 3"),
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
        ("1. So:\n\n   ```python\n   def f():\n       return 1\n   ```\n", "def f():\n    return 1\n"),
        ("- ```python\n  def f():\n      return 1\n  ```\n", "def f():\n    return 1\n"),
        ("> ```python\n> def f():\n>\n>     return 1\n> ```\n", "def f():\n\n    return 1\n"),
        (">```\n>def f(): pass\n>```", "def f(): pass\n"),
        ("  ```python\n  def f():\n      return 1\n  ```", "def f():\n    return 1\n"),
        ("```\n```", None),
        ("", None),
        (None, None),
    ],
)
def test_the_program_within_a_text(text, code):
    assert extract_code(text, "f") == code


def test_without_bubblewrap_programs_are_refused_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setattr(code_sandbox.shutil, "which", lambda name: None)
    for make_one in (CodeVerifier, lambda: load_verifier("code")):
        with pytest.raises(UsageError) as caught:
            make_one()
        assert "bubblewrap is not installed" in str(caught.value)
        assert "apt-get install bubblewrap" in str(caught.value) and "`isolation` unsafe" in str(caught.value)
    assert CodeVerifier(isolation="unsafe").isolation == "unsafe"
    monkeypatch.setattr(code_sandbox.platform, "system", lambda: "Darwin")
    with pytest.raises(UsageError, match="bubblewrap needs Linux"):
        CodeVerifier()


def test_a_verifier_that_is_closed_gives_no_verdict(strongest):
    verifier = CodeVerifier(isolation=strongest, limits=CodeLimits(seconds=60, file_mb=MARK))
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(run, verifier, "import time\ntime.sleep(600)")
        until = time.monotonic() + 60
        while len(left_over()) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)
        verifier.close()
        verdict = pending.result()
    assert (verdict.outcome, verdict.note) == ("unparsed", "the verifier was closed")
    assert run(verifier, "def f(): return 1").outcome == "match"
    assert_nothing_left()


# --- hostile programs ------------------------------------------------------------------------------------------------

HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
    "loop": "while True: pass",
    "loop in a call": "def f():\n    while True: pass",
    "sleep": "import threading\ndef f(): threading.Event().wait()",
    "ignored signals": (
        "import signal\nfor s in signal.valid_signals():\n    try:\n        signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "while True: pass"
    ),
    "allocation": "def f(): return len(bytearray(100 << 30))",
    "a parent killed": "import os\nos.kill(os.getppid(), 9)\nos.kill(os.getppid(), 2)\nwhile True: pass",
    "all killed": "import os\ndef f():\n    os.kill(-1, 9)\n    return 2",
    "each stopped": (
        "import os\ndef f():\n    for p in os.listdir('/proc'):\n        try:\n            if int(p) != os.getpid(): os.kill(int(p), 19)\n"
        "        except (OSError, ValueError): pass\n    return 2"
    ),
    "its group killed": "import os\ndef f(): os.kill(0, 9)",
    "itself killed": "import os\ndef f(): os.kill(os.getpid(), 9)",
    "itself stopped": "import os\ndef f(): os.kill(os.getpid(), 19)",
    "many files": (
        "def f():\n    for n in range(100):\n        with open(str(n), 'wb') as out:\n            out.write(bytes(1 << 20))\n    return 1"
    ),
    "input": "def f(): return input() or 1",
    # Memory that no process's address space counts.
    "System V shared memory": (
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\ndef f():\n    for n in range(30):\n"
        "        i = c.shmget(0, 100 << 20, 0o1600)\n        if i < 0: raise MemoryError\n"
        "        c.shmat.restype = ctypes.c_void_p\n        a = c.shmat(i, None, 0)\n        ctypes.memset(a, 1, 100 << 20)\n"
        "        c.shmdt(ctypes.c_void_p(a))\n    return 1"
    ),
    "files in memory": (
        "import os\ndef f():\n    for n in range(30):\n        fd = os.memfd_create(str(n))\n        os.write(fd, bytes(8 << 20))\n    return 1"
    ),
    "a daemon": (
        "import os, time\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            time.sleep(600)\n        os._exit(0)\n    os.wait()\n    return 2"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_a_mismatch_and_leaves_nothing(walled, name):
    assert run(walled, HOSTILE[name]).outcome == "mismatch"
    assert_nothing_left()
    assert run(walled, "def f(): return 1").outcome == "match"


READ = """
import os, glob
def f(path):
    texts = []
    for name in [path] + glob.glob('/proc/[0-9]*/root' + path) + glob.glob('/proc/[0-9]*/cwd'):
        for base in ('', '/..', '/../..'):
            try:
                texts.append(open(name + base).read())
            except OSError:
                pass
    return texts + os.listdir('.') + os.listdir(os.path.expanduser('~'))
"""


def test_the_home_directory_cannot_be_read(walled):
    with tempfile.NamedTemporaryFile(prefix=".stepmark-secret-", dir=Path.home()) as secret:
        secret.write(b"the secret")
        secret.flush()
        assert Path(secret.name).read_text() == "the secret"
        verdict = walled.verify(READ, CodeTests(tests=(f"assert f({secret.name!r}) == []",)))
    assert verdict.outcome == "match", verdict.note


def test_there_is_no_network(walled):
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
            assert run(walled, program, f"assert f({where!r}) == 'refused'").outcome == "match"


def test_nothing_is_written_outside(walled, tmp_path):
    name = f"stepmark-was-here-{secrets.token_hex(8)}"
    tmp_path.chmod(0o755)
    places = [tmp_path, Path.home(), Path(code_sandbox.__file__).parent]
    places += map(Path, ("/", "/usr", "/usr/bin", "/etc", "/dev", "/var/tmp", "/dev/shm", "/tmp"))  # noqa: S108
    program = (
        "import os\ndef f(places, name):\n    for place in places:\n        try:\n"
        "            open(os.path.join(place, name), 'w').write('x')\n        except OSError:\n            pass\n    return 1"
    )
    assert run(walled, program, f"assert f({[str(p) for p in places]!r}, {name!r}) == 1").outcome == "match"
    assert [place for place in places if (place / name).exists()] == []


def test_flooding_the_output_and_forging_a_result(walled):
    flood = "import sys\ndef f():\n    for _ in range(200):\n        print('x' * 100000)\n        sys.stderr.write('y' * 100000)\n    return 1"
    assert run(walled, flood).outcome == "match"
    # Every descriptor and every process's output gets a line that says "passed".
    forge = (
        "import os, glob, json\ndef f():\n    line = (json.dumps({'note': 'forged', 'state': 'passed'}) + chr(10)).encode()\n"
        "    for n in range(1, 30):\n        try:\n            os.write(n, line)\n        except OSError:\n            pass\n"
        "    for name in glob.glob('/proc/[0-9]*/fd/*'):\n        if f'/{os.getpid()}/' in name:\n            continue\n        try:\n"
        "            n = os.open(name, os.O_WRONLY | os.O_NONBLOCK)\n            os.write(n, line)\n        except OSError:\n            pass\n    return 2\n"
    )
    verdict = run(walled, forge)
    assert verdict.outcome == "mismatch"
    assert "forged" not in verdict.note


def test_nothing_outlives_a_killed_stepmark(walled, tmp_path):
    script = (
        "from stepmark.verifiers.code import *\n"
        f"v = CodeVerifier(limits=CodeLimits(seconds=600, wall_seconds=900, file_mb={MARK}))\n"
        "print('ready', flush=True)\n"
        "v.verify('import time\\ntime.sleep(600)', CodeTests(tests=('assert f()',)))\n"
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
        assert len(left_over()) >= 4  # bubblewrap and its worker, twice
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
def test_the_comparison_is_out_of_the_programs_reach(plain, program):
    assert run(plain, program, "assert f() == 1").outcome == "mismatch"


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


def test_an_object_that_the_test_hands_back_goes_to_the_program_only(plain):
    honest = "class Box:\n    def __init__(self, x): self.x = x\ndef enc(x): return Box(x)\ndef dec(box): return box.x"
    tests = CodeTests(tests=("assert dec(enc(3)) == 3",))
    assert plain.verify(FORGE, tests).outcome == "mismatch"
    assert plain.verify(honest, tests).outcome == "match"


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
        ("__import__('os')._exit(0)", "try:\n    f(1)\nexcept:\n    pass\nassert f"),
        (
            "raise ValueError",
            "import threading\nt = threading.Thread(target=f, args=(1,))\nt.start()\nt.join()\nassert f",
        ),
    ],
)
def test_an_exception_of_the_program_is_not_swallowed_by_chance(plain, body, test):
    assert run(plain, f"def f(x):\n    {body}", test).outcome == "mismatch"


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
        "try:\n    sum(f())\nexcept Exception:\n    pass\nassert f",
    ),
}


@pytest.mark.parametrize("name", EXCESSES)
def test_a_result_that_the_tests_cannot_finish_with_is_a_mismatch(quick, name):
    assert run(quick, *EXCESSES[name]).outcome == "mismatch"
    assert_nothing_left()


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
