"""The program that runs math-verify for `math_process.AnswerProcess`, in a process of its own: JSON lines in, JSON lines out.

Only this process ever parses what a model wrote as mathematics: sympy's parsers can evaluate text. Before the first answer is read it sets limits on
memory, CPU time, size of written files (none), new processes (none, unless it runs as root) and core files, and an audit hook that refuses to write or
delete files, to start programs, to open sockets, and to load code outside the interpreter's folders. That stops accidents and simple attacks; it is no
security boundary. It is started by its path, with an empty environment, and imports only the standard library and math-verify.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import sys
from typing import Any

_REFUSED = (
    "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.", "socket.", "ctypes.",
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.kill", "os.putenv", "os.unsetenv", "os.chdir", "shutil.", "tempfile.", "signal.", "syslog.", "urllib.", "ftplib.",
    "smtplib.", "webbrowser.", "winreg.", "mmap.", "fcntl.", "resource.setrlimit",
)  # fmt: skip


def limit(memory: int) -> None:
    """Set the limits that the system offers."""
    for name, most in (("AS", memory), ("FSIZE", 0), ("NPROC", 0), ("CORE", 0)):
        with contextlib.suppress(
            ValueError, OSError
        ):  # macOS has no RLIMIT_AS; a lower hard limit stands already
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def allow_cpu(seconds: float) -> None:
    """Let the process use this much more CPU time; past it the system ends it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


class AuditHook:
    """The audit hook. Closed while a request is answered; it cannot be taken off again."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self.folders = folders
        self.closed = False
        self.refused: str | None = None

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Refuse an event that mathematics has no need of."""
        if not self.closed:
            return
        if event == "open":
            path, mode, flags = args
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (
                isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            )
            if not writes and isinstance(path, str) and path.startswith(self.folders):
                return  # a module that is imported late
        elif not event.startswith(_REFUSED):
            return
        self.refused = event
        raise PermissionError(f"refused: {event}")


def _rational(expression: Any) -> Any:
    """The expression with every decimal replaced by the rational number that it writes."""
    from sympy import Float, MatrixBase, Rational

    floats = expression.atoms(Float)
    if not floats:
        return expression
    exact = {number: Rational(str(number)) for number in floats}
    return expression.subs(exact) if isinstance(expression, MatrixBase) else expression.xreplace(exact)


def _worked_out(expression: Any) -> Any:
    """The expression with sums and multiples of matrices worked out, and with i as the imaginary unit where it is the only symbol."""
    from sympy import Expr, I, MatrixExpr

    if isinstance(expression, MatrixExpr):
        return expression.doit()
    symbols: set[Any] = getattr(expression, "free_symbols", set())
    if (
        isinstance(expression, Expr)
        and {str(symbol) for symbol in symbols} == {"i"}
        and expression not in symbols
    ):
        return expression.subs(dict.fromkeys(symbols, I))
    return expression


def _differ(gold: Any, answer: Any) -> bool:
    """Whether two expressions that math-verify calls equal hold exact numbers that are not: it rounds, and numbers may be smaller than that."""
    from sympy import Expr, FiniteSet, Float, Interval, MatrixBase, Tuple

    if isinstance(gold, MatrixBase) and isinstance(answer, MatrixBase):
        return gold.shape == answer.shape and any(map(_differ, gold, answer))
    if isinstance(gold, Tuple) and isinstance(answer, Tuple):
        return len(gold) == len(answer) and any(map(_differ, gold, answer))
    if isinstance(gold, FiniteSet) and isinstance(answer, FiniteSet):
        return any(all(_differ(left, right) for right in answer) for left in gold)
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        return _differ(gold.start, answer.start) or _differ(gold.end, answer.end)
    if not (isinstance(gold, Expr) and isinstance(answer, Expr) and gold.is_number and answer.is_number):
        return False
    if gold.has(Float) or answer.has(Float) or not (gold.is_finite and answer.is_finite):
        return False
    if gold.is_Rational and answer.is_Rational:
        return bool(gold != answer)
    size = max(abs(gold.evalf(60)), abs(answer.evalf(60)))
    return bool(size) and bool(abs((gold - answer).evalf(60, maxn=400)) > size * 10**-40)


def _unparsed(note: str) -> dict[str, str]:
    return {"outcome": "unparsed", "note": note}


class Checker:
    """math-verify with its extraction, time-outs and unit stripping off: the caller has done these."""

    def __init__(self) -> None:
        from latex2sympy2_extended import NormalizationConfig
        from math_verify import LatexExtractionConfig, parse, verify

        logging.disable(logging.CRITICAL)
        self._parse, self._verify = parse, verify
        # No ExprExtractionConfig: it takes a part of what it cannot read, and evaluates it. No units: it takes 5t for 5.
        self._config = [
            LatexExtractionConfig(
                boxed_match_priority=-1,
                normalization_config=NormalizationConfig(
                    basic_latex=True,
                    units=False,
                    malformed_operators=True,
                    nits=True,
                    boxed="none",
                    equations=False,
                ),
            )
        ]
        self._parsed: dict[str, Any] = {}

    def _read(self, text: str) -> Any:
        if text not in self._parsed:
            if len(self._parsed) > 1000:
                self._parsed.clear()
            parsed = self._parse(
                f"${text}$",
                self._config,
                fallback_mode="no_fallback",
                parsing_timeout=None,
                raise_on_error=True,
            )
            self._parsed[text] = _worked_out(parsed[0]) if parsed else None
        return self._parsed[text]

    def check(self, gold: str, answer: str) -> dict[str, str]:
        """Compare two answers written in LaTeX; `outcome` and `note` of the reply."""
        read = []
        for what, text in (("reference", gold), ("answer", answer)):
            try:
                expression = self._read(text)
            except (Exception, RecursionError) as error:
                return _unparsed(f"math-verify failed to read the {what}: {type(error).__name__}")
            if expression is None:
                return _unparsed(f"math-verify does not understand the {what}")
            read.append(expression)
        try:
            if not self._same(*read):
                if self._simplifies(*read):
                    return {"outcome": "match", "note": "equal when simplified"}
                return {"outcome": "mismatch", "note": "math-verify"}
            if _differ(*read):
                return {"outcome": "mismatch", "note": "exact numbers, equal only after rounding"}
            exact = [_rational(expression) for expression in read]
            if exact != read and not self._same(*exact):
                return {"outcome": "mismatch", "note": "decimals are exact: equal only after rounding"}
        except (Exception, RecursionError) as error:
            return _unparsed(f"math-verify failed to compare: {type(error).__name__}")
        return {"outcome": "match", "note": "math-verify"}

    def _simplifies(self, gold: Any, answer: Any) -> bool:
        """Whether a single variable is the simplified other side: math-verify compares these two as text."""
        from sympy import Expr, Symbol, simplify

        if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
            return False
        return isinstance(gold, Symbol) != isinstance(answer, Symbol) and simplify(gold - answer) == 0

    def _same(self, gold: Any, answer: Any) -> bool:
        # Gold first: the comparison is not symmetric.
        return bool(
            self._verify(
                gold, answer, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True
            )
        )


def main() -> None:
    """Take over standard output, so that no library can print into the protocol, and answer requests until there are no more."""
    settings = json.loads(sys.argv[1])
    sys.path[:] = settings["path"]
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    limit(settings["memory"])
    allow_cpu(60)
    checker = Checker()
    # Whatever is imported at first use is imported now, before the guard closes.
    for gold, answer in (
        (r"\frac{1}{2}", "0.5"),
        ("x^2+1", "1+x^2"),
        ("(1,2)", "[1,2]"),
        (r"\{1,2\}", r"\sqrt{4}"),
        ("x<2", r"(-\infty,2)"),
    ):
        checker.check(gold, answer)
    folders = [name for path in sys.path if path for name in (path, os.path.realpath(path))]
    guard = AuditHook(tuple(folder + os.sep for folder in folders))
    sys.addaudithook(guard)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        result = {"ready": "yes"}
        if request:
            allow_cpu(settings["cpu_seconds"])
            guard.refused, guard.closed = None, True
            result = checker.check(request["gold"], request["answer"])
            guard.closed = False
            if guard.refused is not None:
                note = f"the worker refused what the answer tried: {guard.refused}"
                result = {"outcome": "unparsed", "note": note}
        out.write(json.dumps(result).encode() + b"\n")


if __name__ == "__main__":
    main()
