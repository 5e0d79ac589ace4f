"""The verifier `math` and its worker process: verdicts, deadlines, containment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepmark.errors import MissingExtraError
from stepmark.verifiers import math_process as answer_process
from stepmark.verifiers.base import answer_groups, load_verifier
from stepmark.verifiers.math_process import AnswerProcess
from stepmark.verifiers.math_worker import AuditHook

pytest.importorskip("math_verify")

from stepmark.verifiers.math import MathVerifier

TOWER = "9^{9^{9^9}}"


@pytest.fixture(scope="module")
def math():
    with MathVerifier() as verifier:
        yield verifier


@pytest.mark.parametrize(
    ("gold", "answer", "outcome", "rule"),
    [
        # What bare math-verify matches.
        ("10", r"10\%", "match", "percent sign left out"),
        (r"10\%", "10", "match", "percent sign left out"),
        ("12 cm", "12 m", "mismatch", "units"),
        (r"6\sqrt{3}\text{ cm}", r"6\sqrt{3}\text{ kg}", "mismatch", "different kinds"),
        ("1/3", "0.333333", "mismatch", "exact"),
        (r"\frac{x}{3}", "0.333333x", "mismatch", "math-verify"),
        (r"\frac{\pi}{3}", "1.047198", "mismatch", "decimals are exact"),
        ("12_5", "12", "mismatch", "base"),
        ("e", "2.718281828", "mismatch", "decimals are exact"),
        (r"\pi", "3.141592653589793", "mismatch", "decimals are exact"),
        ("5t", "5", "mismatch", "math-verify"),
        ("C", "c", "mismatch", "sign"),
        ("(1,2)", "(2,1)", "mismatch", "math-verify"),
        # What it tells apart or does not read.
        (r"\frac{1}{10}", r"10\%", "match", "percent"),
        ("3000000", "3 million", "match", "scale word"),
        ("7.5", "7 1/2", "match", "mixed number"),
        ("100", "1e2", "match", "powers of ten"),
        ("(1,2)", r"\begin{pmatrix}1\\2\end{pmatrix}", "match", "math-verify"),
        ("(1,2)", r"\langle 1, 2\rangle", "match", "math-verify"),
        (r"\{\frac{1}{3}, 50\%\}", r"\{0.5, \frac{2}{6}\}", "match", "math-verify"),
        ("2,-3", "x = 2 or x = -3", "match", "math-verify"),
        ("[-2,7]", r"-2\le x\le 7", "match", "math-verify"),
        (r"\sqrt{2}\%", r"\frac{\sqrt{2}}{100}", "match", "math-verify"),
        (r"200\sqrt{3}\text{ cm}", r"2\sqrt{3}\text{ m}", "match", "math-verify"),
        (r"\sqrt{2}", "2^(1/2)", "match", "math-verify"),
        ("k", r"\frac{2k}{2}", "match", "simplified"),
        ("k", "k+1", "mismatch", "math-verify"),
        # Ordinary mathematics.
        ("x^2+2x+1", "(x+1)^2", "match", "math-verify"),
        ("x^2+2x+1", "(x-1)^2", "mismatch", "math-verify"),
        ("0.5x", r"\frac{x}{2}", "match", "math-verify"),
        ("y=2x+1", "2x+1", "match", "math-verify"),
        ("y=2x+1", "y-2x=1", "match", "math-verify"),
        ("x=5", "y=5", "mismatch", "different variables"),
        ("(1,2)", "[1,2]", "mismatch", "math-verify"),
        (r"\text{Evelyn}", "Evelyn", "match", "same text"),
        (r"\text{even}", "odd", "mismatch", "words"),
        # No verdict.
        ("5", "no solution", "unparsed", "words"),
        (r"\sqrt{2}", "the root of two, or 1.4", "unparsed", "words"),
        (r"\sqrt{2}", r"\frac{1}{", "unparsed", "answer"),
        (r"\frac{1}{", r"\sqrt{2}", "unparsed", "reference"),
    ],
)  # fmt: skip
def test_verdicts(math, gold, answer, outcome, rule):
    verdict = math.verify(answer, gold)
    assert verdict.note is not None
    assert (verdict.outcome, rule in verdict.note) == (outcome, True), verdict
    assert verdict.answer == answer


def test_easy_pairs_never_start_a_worker(monkeypatch):
    monkeypatch.setattr(AnswerProcess, "ask", lambda *pair: pytest.fail(f"asked for {pair}"))
    pairs = [("5", "5.0"), ("$7.00", "7"), (r"\frac12", "0.25"), ("x+1", "x + 1"), ("yes", "no")]
    outcomes = [verdict.outcome for verdict in MathVerifier().verify_many(pairs)]
    assert outcomes == ["match", "match", "mismatch", "match", "mismatch"]


def test_a_worker_over_its_time_is_ended_and_the_next_pair_goes_on(monkeypatch):
    with MathVerifier(cpu_seconds=1) as verifier:
        late, after = verifier.verify_many([(TOWER, "3"), ("(x+1)^2", "x^2+2x+1")])
        assert (late.outcome, after.outcome) == ("unparsed", "match")
        assert late.note is not None
        assert "stopped: no verdict in 1 s of CPU time" in late.note
        assert verifier._worker.started == 2
        monkeypatch.delattr(type(verifier._worker), "ask")
        assert verifier.verify(TOWER, "3") == late  # remembered, not tried again


def test_the_clock_ends_a_worker_that_does_not_compute():
    worker = AnswerProcess()
    assert worker.ask("x", "2x")[0] == "mismatch"
    assert worker.process is not None
    os.kill(worker.process.pid, signal.SIGSTOP)  # no CPU time passes
    worker.wall_seconds = 0.2
    outcome, note = worker.ask("x", "3x")
    assert (outcome, "0.2 s" in note) == ("unparsed", True)
    worker.wall_seconds = 30
    assert worker.ask("x", "x+0")[0] == "match"
    worker.close()


def test_a_worker_that_is_killed_from_outside():
    with MathVerifier() as verifier:
        assert verifier.verify("2x", "x+x").outcome == "match"
        process = verifier._worker.process
        assert process is not None
        process.kill()
        process.wait()
        assert verifier.verify("3x", "x+2x").outcome == "match"
        assert verifier._worker.started == 2


def _fake(tmp_path, monkeypatch, body):
    program = tmp_path / "worker.py"
    program.write_text("import sys, json, os\ndef say(x):\n    print(json.dumps(x), flush=True)\n" + body)
    monkeypatch.setattr(answer_process, "_PROGRAM", program)
    return AnswerProcess(wall_seconds=20)


@pytest.mark.parametrize(
    ("reply", "note"),
    [
        ("say({'outcome': 'right', 'note': ''})", "nonsense"),
        ("say([1])", "nonsense"),
        ("print('match', flush=True)", "nonsense"),
        ("sys.exit(3)", "exit status 3"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
    ],
)
def test_a_worker_that_answers_nonsense_or_dies_gives_no_verdict(tmp_path, monkeypatch, reply, note):
    worker = _fake(
        tmp_path, monkeypatch, f"input()\nsay({{'ready': '0'}})\nfor line in sys.stdin:\n    {reply}\n"
    )
    outcome, reason = worker.ask("1", "1")
    assert (outcome, note in reason) == ("unparsed", True), reason
    worker.close()


def test_hostile_answers_do_nothing(math, tmp_path):
    target = tmp_path / "made"
    for attack in (
        f"open('{target}','w')",
        f"__import__('os').system('touch {target}')",
        rf"\text{{open('{target}','w')}}",
        rf"\operatorname{{exec}}(open('{target}','w'))",
        f"(lambda: open('{target}','w'))()",
    ):
        assert math.verify(attack, "x+1").outcome != "match"
    assert not target.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are read from /proc")
def test_the_limits_that_the_system_enforces(math):
    assert math.verify("4x", "x+3x").outcome == "match"
    process = math._worker.process
    assert process is not None
    limits = {}
    for line in Path(f"/proc/{process.pid}/limits").read_text().splitlines()[1:]:
        limits[line[:26].strip()] = line[26:].split()[:2]
    assert limits["Max file size"] == ["0", "0"]
    assert limits["Max core file size"] == ["0", "0"]
    assert limits["Max processes"] == ["0", "0"]
    assert limits["Max address space"] == [str(2048 << 20)] * 2
    assert limits["Max cpu time"][0] != "unlimited"


def test_the_guard_refuses_what_mathematics_does_not_need(tmp_path):
    # In a process of its own: an audit hook cannot be taken off.
    program = f"""
import sys, os, socket, subprocess
sys.path.insert(0, {str(Path(answer_process.__file__).parent)!r})
from math_worker import AuditHook
guard = AuditHook(({str(tmp_path)!r} + os.sep,))
sys.addaudithook(guard)
inside = {str(tmp_path / "module.py")!r}
open(inside, "w").close()
guard.closed = True
def refused(act):
    try:
        act()
    except PermissionError:
        return True
    return False
print([refused(act) for act in (
    lambda: open(inside), lambda: open(inside, "w"), lambda: open("/etc/hostname"), lambda: os.open(inside, os.O_RDWR),
    lambda: os.remove(inside), lambda: os.system("true"), lambda: subprocess.run(["true"]),
    lambda: socket.socket(), lambda: os.fork(), lambda: os.kill(os.getpid(), 0))], guard.refused is not None)
os._exit(0) if sys.stdout.flush() is None else None
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split("\n")[0] == f"{[False, *[True] * 9]} True", done.stderr
    assert AuditHook(()).closed is False


def test_groups_of_expressions(math):
    answers = ["(x+1)^2", "x^2+2x+1", None, "x^2", r"(1+x)^{2}", r"\frac{1}{", r"\frac{2}{"]
    assert answer_groups(answers, math) == [0, 0, None, 1, 0, 2, 3]


def test_without_math_verify(monkeypatch):
    monkeypatch.setattr(answer_process, "find_spec", lambda name: None)
    verifier = load_verifier("math")
    assert verifier.verify("The answer is 1,200.", "1200").correct is True
    assert verifier.verify("The answer is 3/4.", "0.7").correct is False
    with pytest.raises(MissingExtraError, match=r"pip install 'stepmark\[evaluate\]'"):
        verifier.verify(r"The answer is $(x+1)^2$.", "x^2+2x+1")
