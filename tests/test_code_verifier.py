"""The code verifier against truth: programs whose result is plain, and hostile ones whose effect would be seen outside."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from stepmark.errors import BackendError, InputError, UsageError
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
    verifier = CodeVerifier(isolation=isolation, **settings)
    try:
        assert verifier.isolation.name == isolation
    except BackendError as error:
        pytest.skip(f"{isolation} does not work here: {error}")
    return verifier


@pytest.fixture(scope="module", params=ISOLATIONS)
def verifier(request):
    """Each sandbox that works here."""
    with make(request.param, limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module", params=[name for name in ISOLATIONS if name != "process"])
def walled(request):
    """Each sandbox that claims to be a security boundary."""
    with make(request.param, limits=LIMITS) as made:
        assert made.isolation.boundary
        yield made


@pytest.fixture(scope="module")
def plain():
    """The strongest sandbox of this machine, with time enough for a busy one."""
    with CodeVerifier(limits=CodeLimits(seconds=10, wall_seconds=300, memory_mb=256)) as made:
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


def test_a_program_matches_in_every_sandbox(verifier):
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


def test_tests_that_need_the_programs_own_objects_run_in_its_process_and_say_so(plain):
    row = SQUARES | {
        "code": "class Pair:\n    def __init__(self, a, b):\n        self.a = a\n        self.b = b\n\ndef total(p):\n    return p.a + p.b\n",
        "test_list": ["assert total(Pair(1, 2)) == 3"],
    }
    verdict = plain.verify(row["code"], read_code_tests(row))
    assert verdict.outcome == "match"
    assert verdict.note.endswith("(the tests ran in the program's own process)")
    verdict = plain.verify(row["code"].replace("+", "*"), read_code_tests(row))
    assert (verdict.outcome, verdict.answer) == ("mismatch", row["code"].replace("+", "*"))
    assert run(plain, "def f(g):\n    return g(2)", "assert f(lambda x: x + 1) == 3").note.endswith(
        "own process)"
    )


def test_no_verdict_where_the_program_cannot_be_blamed(plain):
    assert plain.verify(None, read_code_tests(SQUARES)).note == "no code in the text"
    assert plain.verify(" \n", read_code_tests(SQUARES)).outcome == "unparsed"
    assert plain.verify("I give up.\n```python\n```\n", read_code_tests(SQUARES)).outcome == "unparsed"
    verdict = run(plain, "def f(): return 1", "assert f( == 1")
    assert (verdict.outcome, verdict.note.split(":")[0]) == ("unparsed", "test 1 of 1 cannot run")
    verdict = run(plain, "def f(): return 1", setup="import no_such_module_anywhere")
    assert (verdict.outcome, verdict.correct) == ("unparsed", None)


def test_a_clock_that_runs_out_is_no_verdict(monkeypatch):
    # The program wants a processor all the time and the machine is slow: here the clock's limit is simply the shorter.
    with CodeVerifier(limits=CodeLimits(seconds=10, wall_seconds=300)) as slow:
        monkeypatch.setattr(
            slow._chosen()[0], "limits", _unchecked(CodeLimits(seconds=10, wall_seconds=300), wall_seconds=1)
        )
        verdict = run(slow, "while True: pass")
    assert verdict.outcome == "unparsed"
    assert "1 s by the clock" in verdict.note


def _unchecked(limits: CodeLimits, **changes: int) -> CodeLimits:
    for name, value in changes.items():
        object.__setattr__(limits, name, value)
    return limits


def test_many_are_answered_in_order(plain):
    tests = CodeTests(tests=("assert f() % 3 == 0",))
    verdicts = CodeVerifier(workers=3).verify_many(
        [(f"def f(): return {n}", tests) for n in range(9)] + [(None, tests)]
    )
    assert [v.outcome for v in verdicts] == ["match", "mismatch", "mismatch"] * 3 + ["unparsed"]
    assert plain.verify_many([]) == []


def test_verdicts_do_not_depend_on_hash_seeds_or_chance(plain):
    program = "import random\ndef f(): return [list({'a', 'b', 'c', 'd', 'e'}), random.random()]"
    first = run(plain, program, "raise ValueError(f())").note
    assert run(plain, program, "raise ValueError(f())").note == first


def test_it_is_a_verifier_like_the_others():
    problem = code_problem(GREET)
    assert (problem.id, problem.source, problem.text) == ("Hand/0", "HumanEval", GREET["prompt"])
    assert problem.answer is not None
    with load_verifier("code") as verifier:
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


def test_what_is_missing_is_named_and_the_next_best_is_taken(monkeypatch):
    monkeypatch.setattr(code_sandbox.shutil, "which", lambda name: None)
    with pytest.raises(BackendError, match="bwrap is not installed"):
        assert CodeVerifier(isolation="bubblewrap").isolation
    weak = CodeVerifier(isolation="auto").isolation
    assert (weak.name, weak.boundary) == ("process", False)
    assert weak.refused == ("bubblewrap: bwrap is not installed", "namespaces: unshare is not installed")


def test_a_sandbox_that_fails_is_no_verdict(plain, monkeypatch):
    monkeypatch.setattr(
        plain._chosen()[0], "_command", lambda uid: ["/bin/sh", "-c", "echo out of order; exit 4"]
    )
    verdict = run(plain, "def f(): return 1")
    assert (verdict.outcome, verdict.note) == ("unparsed", "the sandbox ended without a result: out of order")


# --- hostile programs ------------------------------------------------------------------------------------------------


def test_a_fork_bomb(verifier):
    program = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    assert run(verifier, program).outcome == "mismatch"
    assert_nothing_left()
    assert run(verifier, "def f(): return 1").outcome == "match"


def test_infinite_loops(plain):
    quick = CodeVerifier(isolation=plain.isolation.name, limits=LIMITS)
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
        "import os, time\ndef f():\n    for _ in range(6):\n        if os.fork() == 0:\n"
        "            block = bytearray(os.urandom(1)) * (100 << 20)\n            time.sleep(600)\n    time.sleep(600)"
    )
    patient = make(verifier.isolation.name, limits=CodeLimits(seconds=60, wall_seconds=MARK, memory_mb=256))
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
    if verifier.isolation.name == "process" and not ROOT:
        pytest.skip("without namespaces or root the program is this user and reads what it reads")
    handle, name = tempfile.mkstemp(prefix=".stepmark-secret-", dir=Path.home())
    try:
        os.write(handle, b"the secret")
        os.close(handle)
        assert Path(name).read_text() == "the secret"
        verdict = verifier.verify(READ, CodeTests(tests=(f"assert 'the secret' not in f({name!r})",)))
        assert verdict.outcome == "match", verdict.note
        if verifier.isolation.boundary:
            verdict = verifier.verify(READ, CodeTests(tests=(f"assert f({name!r}) == []",)))
            assert verdict.outcome == "match", verdict.note
    finally:
        Path(name).unlink()


def test_a_socket_reaches_nothing(walled):
    program = (
        "import socket\ndef f(where):\n    kind = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET\n"
        "    s = socket.socket(kind)\n    s.settimeout(1)\n    try:\n        s.connect(where)\n        return 'connected'\n"
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


def test_nothing_is_written_outside(verifier, tmp_path):
    if verifier.isolation.name == "process" and not ROOT:
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
    if verifier.isolation.boundary:
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
    if verifier.isolation.name == "process":
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
    if verifier.isolation.name == "process" and not ROOT:
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
    if verifier.isolation.name == "process" and not ROOT:
        pytest.skip(
            "without namespaces or root the program can write to whatever this user's processes have open"
        )
    verdict = run(verifier, forge)
    # Not root, it has the user of bubblewrap's own process and can disturb that; but not make a match.
    assert verdict.outcome == "mismatch" or (not ROOT and verdict.outcome == "unparsed")
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
        f"v = CodeVerifier(isolation={verifier.isolation.name!r}, limits=CodeLimits(seconds=600, wall_seconds={MARK}))\n"
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
    if verifier.isolation.name == "process" and not ROOT:
        pytest.skip("without namespaces or root the program may look into all that this user runs")
    program = (
        "import glob, os\ndef f():\n    opened = []\n    for name in glob.glob('/proc/[0-9]*/mem') + glob.glob('/proc/[0-9]*/fd/[0-9]*'):\n"
        "        if name.split('/')[2] == str(os.getpid()): continue\n        try:\n"
        "            os.close(os.open(name, os.O_RDONLY | os.O_NONBLOCK))\n            opened.append(name)\n"
        "        except OSError:\n            pass\n    return [name for name in opened if not name.startswith('/proc/1/')]"
    )
    # 1 is bubblewrap's own: it has the pipe of the result open, which is why a result needs the token.
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
def test_deep_recursion_crashes_and_monsters_are_mismatches(plain, program):
    quick = CodeVerifier(isolation=plain.isolation.name, limits=LIMITS)
    assert run(quick, program).outcome == "mismatch"


# --- the public data sets --------------------------------------------------------------------------------------------


def rows(name: str) -> list[dict]:
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def check_solutions(found: list[dict]) -> None:
    with CodeVerifier(workers=2) as verifier:
        pairs = [(row.get("canonical_solution") or row["code"], read_code_tests(row)) for row in found]
        verdicts = verifier.verify_many(pairs)
    assert [
        (row["task_id"], v.note) for row, v in zip(found, verdicts, strict=True) if v.outcome != "match"
    ] == []


@pytest.mark.parametrize(("name", "every"), [("humaneval", 16), ("mbpp", 45)])
def test_a_sample_of_the_canonical_solutions_passes(name, every):
    found = rows(name)[::every]
    assert len(found) >= 9
    check_solutions(found)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("mbpp", 399)])
def test_all_canonical_solutions_pass(name, count):
    found = rows(name)
    assert len(found) == count
    check_solutions(found)


def check_agreement(count: int, seed: int) -> None:
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
    with CodeVerifier(workers=2, limits=CodeLimits(seconds=5)) as verifier:
        verdicts = verifier.verify_many([(text, tests[task]) for task, text, _ in drawn])
    wrong = [
        (task, text, passed, verdict.note)
        for (task, text, passed), verdict in zip(drawn, verdicts, strict=True)
        if verdict.correct is not (passed if text.strip() else None)
    ]
    assert wrong == []


def test_verdicts_agree_with_published_outcomes():
    check_agreement(20, seed=3)


@pytest.mark.slow
def test_a_thousand_verdicts_agree_with_published_outcomes():
    check_agreement(1000, seed=1)
