r"""The verifier `math`: our own exact rules first, math-verify in a worker process for the rest.

The rules mend what math-verify 0.9.0 gets wrong by design, each named in `Verdict.note`:

- percent: 10% is 1/10, not 10;
- units: 12 cm is not 12 m, but 0.12 m; a unit on one side only is left out;
- decimals are exact: 0.333333 is not 1/3 and 2.718281828 is not e;
- a base is read: 12_5 is 7, not 12;
- mixed numbers ("7 1/2"), scale words ("3 million"), powers of ten (1e2) and repeating decimals are numbers;
- a column vector is the tuple of its entries; tuples are compared entry by entry and in order, sets and plain lists in any
  order, intervals with their brackets;
- words are compared as words, not as products of variables.

Numbers against numbers and equal texts never reach the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from stepmark.errors import BackendError, MissingExtraError
from stepmark.problems.answers import VerifierBase, number_within, same_words
from stepmark.problems.quantities import clean, key, plain, read_quantity, same_quantity
from stepmark.solutions.units import unit_of

Outcome = tuple[Literal["match", "mismatch", "unparsed"], str]
"""An outcome and its note."""

_START_SECONDS = 120.0
_PROGRAM = Path(__file__).with_name("answer_worker.py")


class _WorkerError(Exception):
    """A worker that gave no answer, and why; it has been ended."""


class AnswerProcess:
    """One process of `answer_worker`, started when first asked; one that is late or dies is replaced for the next request.

    Requests and replies are lines of JSON over pipes; nothing that comes back is more than a word and a note. Not safe for
    two threads at once: the caller holds a lock.

    Args:
        cpu_seconds: CPU time for one pair, so that a busy machine does not change a verdict.
        wall_seconds: the same by the clock, for a worker that hangs without computing.
        memory_mb: address space of the worker, in MiB.

    Raises:
        MissingExtraError: math-verify is not installed.
    """

    def __init__(
        self, *, cpu_seconds: float = 5.0, wall_seconds: float = 30.0, memory_mb: int = 2048
    ) -> None:
        if find_spec("math_verify") is None:
            raise MissingExtraError("the verifier `math` needs math-verify: pip install 'stepmark[evaluate]'")
        self.cpu_seconds = cpu_seconds
        self.wall_seconds = wall_seconds
        self._memory = memory_mb << 20
        self.process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., AnswerProcess] | None = None
        self._unread = b""
        self.started = 0
        """How many workers have been started so far."""

    def ask(self, gold: str, answer: str) -> Outcome:
        """Compare two answers in a worker.

        Raises:
            BackendError: the worker does not even start.
        """
        if self.process is None or self.process.poll() is not None:
            self._start()
        try:
            reply = self._exchange({"gold": gold, "answer": answer}, self.wall_seconds)
            outcome, note = reply.get("outcome"), reply.get("note")
            if outcome not in ("match", "mismatch", "unparsed") or not isinstance(note, str):
                self.close()
                raise _WorkerError("the worker answered nonsense and was ended")
        except _WorkerError as error:
            return "unparsed", str(error)
        return outcome, note[:200]

    def _start(self) -> None:
        self.close()
        folder = tempfile.mkdtemp(prefix="stepmark-answers-")
        # A loader path may be what the interpreter itself needs to start; the rest of the environment stays out.
        # A fixed hash seed: the order of sympy's sets, and so its way through a comparison, must not vary.
        environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        path = [str(Path(entry).resolve()) for entry in sys.path]
        settings = {"cpu_seconds": self.cpu_seconds, "memory": self._memory, "path": path}
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-s", "-B", "-X", "utf8", str(_PROGRAM), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment | {"PYTHONHASHSEED": "0"},
            start_new_session=True,
            bufsize=0,
        )
        self._end = weakref.finalize(self, _end, self.process, folder, os.getpid())
        self._unread = b""
        self.started += 1
        try:
            self._exchange({}, _START_SECONDS)
        except _WorkerError as error:
            raise BackendError(
                f"the worker for math-verify does not start: {error}. Try: python -c 'import math_verify'"
            ) from None

    def _exchange(self, request: dict[str, str], seconds: float) -> dict[str, Any]:
        """The reply to a request; a worker that gives none is ended."""
        process, until = self.process, time.monotonic() + seconds
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            # Requests are short (answers have a bound) and the pipe is empty: this write does not block.
            process.stdin.write(json.dumps(request).encode() + b"\n")
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while b"\n" not in self._unread:
                    if not selector.select(max(0, until - time.monotonic())):
                        raise _WorkerError(f"stopped: no verdict in {seconds:g} s; the worker was ended")
                    piece = os.read(process.stdout.fileno(), 65536)
                    self._unread += piece
                    if not piece or len(self._unread) > 65536:
                        raise BrokenPipeError
            line, _, self._unread = self._unread.partition(b"\n")
            reply = json.loads(line)
            return reply if isinstance(reply, dict) else {}
        except ValueError:
            return {}
        except BrokenPipeError:
            raise _WorkerError(self._ended(process)) from None
        finally:
            if sys.exc_info()[0] is not None:
                self.close()

    def _ended(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(5)
            if code == -signal.SIGXCPU:
                return f"stopped: no verdict in {self.cpu_seconds:g} s of CPU time; the worker was ended"
            return f"the worker died ({f'signal {-code}' if code < 0 else f'exit status {code}'})"
        return "the worker closed its output"

    def close(self) -> None:
        """End the worker. The next request starts a new one."""
        if self._end is not None:
            self._end()
        self.process, self._end = None, None


def _end(process: subprocess.Popen[bytes], folder: str, owner: int) -> None:
    if os.getpid() != owner:  # a fork of this process ends; the worker is not its own
        return
    # The whole session: a worker's own children too.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    shutil.rmtree(folder, ignore_errors=True)


_REMEMBERED = 50_000
_DEEPEST = 3
_MOST_ENTRIES = 24


class MathVerifier(VerifierBase):
    """Mathematical answers: numbers, expressions, equations, tuples, sets, intervals, matrices, words.

    Safe for several threads: the worker is asked by one at a time. Verdicts are remembered.

    Args:
        percent: "distinct": 10% is 1/10 and not 10. "sign": 10% is also 10.
        cpu_seconds: CPU time for one pair before the worker is ended and the verdict is unparsed.
        wall_seconds: the same by the clock.

    Raises:
        MissingExtraError: math-verify is not installed.
    """

    def __init__(
        self,
        *,
        percent: Literal["distinct", "sign"] = "distinct",
        cpu_seconds: float = 5.0,
        wall_seconds: float = 30.0,
    ) -> None:
        self.name = "math"
        self.percent: Literal["distinct", "sign"] = percent
        self._worker = AnswerProcess(cpu_seconds=cpu_seconds, wall_seconds=wall_seconds)
        self._lock = threading.Lock()
        self._verdicts: dict[tuple[str, str], Outcome] = {}

    def compare(self, gold: str, answer: str) -> Outcome:
        """See `Verifier.verify`; both are bare."""
        return self._compare(clean(gold), clean(answer), 0)

    def close(self) -> None:
        """End the worker process, if one runs."""
        with self._lock:
            self._worker.close()

    def _compare(self, gold: str, answer: str, depth: int) -> Outcome:
        if key(gold) == key(answer):
            return "match", "the same text"
        gold, answer = _without_names(gold, answer)
        left, right = read_quantity(gold), read_quantity(answer)
        if left is not None and right is not None:
            result = same_quantity(left, right, percent=self.percent)
            if not result.same and "," in gold + answer and depth < _DEEPEST:
                # 10,200 may be a list of two numbers where the other side is one.
                lists = _entries(gold), _entries(answer)
                if lists[0] and lists[1] and ", " in gold + answer:
                    return self._entry_by_entry(lists[0], lists[1], depth)
            return "match" if result.same else "mismatch", result.rule
        if left is not None:
            within = number_within(answer)
            if within is not None:
                result = same_quantity(left, within[0], percent=self.percent)
                return "match" if result.same else "mismatch", f"{within[1]}; {result.rule}"
        if len(gold) == len(answer) == 1:
            return "mismatch", "one sign against another"  # math-verify takes C for c
        if _is_words(gold) or _is_words(answer):
            return self._words(gold, answer)
        if depth < _DEEPEST:
            lists = _entries(gold), _entries(answer)
            if lists[0] is not None and lists[1] is not None and _comparable(lists[0], lists[1]):
                return self._entry_by_entry(lists[0], lists[1], depth)
        rewritten = _without_units(gold, answer)
        if isinstance(rewritten, str):
            return "mismatch", rewritten
        for what, text in zip(("reference", "answer"), rewritten, strict=True):
            if _has_words(text):
                return "unparsed", f"the {what} has words in it"  # math-verify would multiply their letters
        return self._ask(*rewritten)

    def _words(self, gold: str, answer: str) -> Outcome:
        if same_words(gold, answer):
            return "match", "the same words"
        if _is_words(gold) and _is_words(answer):
            return "mismatch", "words"
        return "unparsed", f"the {'reference' if _is_words(gold) else 'answer'} is in words"

    def _entry_by_entry(self, gold: _Entries, answer: _Entries, depth: int) -> Outcome:
        if len(gold.parts) != len(answer.parts):
            return "mismatch", f"{len(gold.parts)} entries against {len(answer.parts)}"
        ordered = gold.ordered or answer.ordered
        open_parts = list(answer.parts)
        unclear = ""
        for ours in gold.parts:
            for place, theirs in enumerate(open_parts[:1] if ordered else open_parts):
                outcome, note = self._compare(ours, theirs, depth + 1)
                unclear = note if outcome == "unparsed" else unclear
                if outcome == "match" or (outcome == "unparsed" and ordered):
                    del open_parts[place]
                    break
            else:
                if ordered:
                    return "mismatch", f"entry by entry: {note}"
                return (
                    ("unparsed", f"entry by entry: {unclear}")
                    if unclear
                    else ("mismatch", "entry by entry, in any order")
                )
        if unclear and ordered:
            return "unparsed", f"entry by entry: {unclear}"
        return "match", "entry by entry" + ("" if ordered else ", in any order")

    def _ask(self, gold: str, answer: str) -> Outcome:
        pair = (_for_worker(gold), _for_worker(answer))
        with self._lock:
            if pair not in self._verdicts:
                if len(self._verdicts) >= _REMEMBERED:
                    self._verdicts.clear()
                self._verdicts[pair] = self._worker.ask(*pair)
            return self._verdicts[pair]


_NAMED = re.compile(
    r"([A-Za-z](?:_\{?\w{1,8}\}?|'{1,2})?(?:\s?\([a-z]\))?)\s?(?:=|\\in(?![a-z]))\s?(?=[^=]+$)(?!.*(?:[<>]|\\[lg]e(?![a-z])))"
)


def _without_names(gold: str, answer: str) -> tuple[str, str]:
    """Cut the opening of "x = 5" off where only one side names a variable, or both name the same one."""
    ours, theirs = _NAMED.match(gold), _NAMED.match(answer)
    if ours and theirs:
        same = ours.group(1).replace(" ", "") == theirs.group(1).replace(" ", "")
        return (gold[ours.end() :], answer[theirs.end() :]) if same else (gold, answer)
    # "y = 2x + 1" against "2x + 1" says the same, but "y - 2x = 1" needs the whole equation.
    if ours and "=" not in answer:
        return gold[ours.end() :], answer
    if theirs and "=" not in gold:
        return gold, answer[theirs.end() :]
    return gold, answer


_MATHS_WORD = re.compile(
    r"\\[A-Za-z]+|\b(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|mod|det|lim|max|min|gcd|lcm|arcsin|arccos|arctan|sinh|cosh|"
    r"tanh|infty|infinity|and|or)\b|\{|\}"
)
_NAMES = re.compile(r"\\(?:begin|end|operatorname)\s?\{[A-Za-z*]*\}")
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")


def _has_words(text: str) -> bool:
    return _LONG_WORD.search(_MATHS_WORD.sub(" ", _NAMES.sub(" ", plain(text)))) is not None


_WORD = re.compile(
    r"[^\W\d_]{4,}|[^\W\d_]{2,}(?=\s+[^\W\d_]{2,})|(?<=\\text\{)\s?[^\W\d_]{2,}|\b(?:yes|no|odd)\b", re.I
)


def _is_words(text: str) -> bool:
    r"""Whether an answer is words and not mathematics: "no solution", \text{Evelyn}, "even"."""
    opened = plain(text)
    rest = _MATHS_WORD.sub(" ", opened)
    if re.search(r"[\d=<>^+*/\\]", opened) or not rest.strip():
        return False
    return _WORD.search(rest) is not None or (text != opened and re.search(r"[^\W\d_]{2,}", rest) is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entries:
    """A tuple, interval, vector, set or list, cut at its commas."""

    parts: tuple[str, ...]
    brackets: Literal["()", "[]", "(]", "[)", "{}", ""]

    @property
    def ordered(self) -> bool:
        return self.brackets not in {"{}", ""}


_VECTOR = re.compile(r"\\begin\{([pb]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}", re.S)
_BRACKETED = re.compile(r"(\\\{|\\lbrace|\\langle|[(\[<])(.*)(\\\}|\\rbrace|\\rangle|[)\]>])", re.S)
_PAIRS: dict[tuple[str, str], Literal["()", "[]", "(]", "[)", "{}"]] = {
    ("(", ")"): "()", ("[", "]"): "[]", ("(", "]"): "(]", ("[", ")"): "[)", ("\\{", "\\}"): "{}",
    ("\\lbrace", "\\rbrace"): "{}", ("\\langle", "\\rangle"): "()", ("<", ">"): "()",
}  # fmt: skip
_JOINT = re.compile(
    r"\\begin|\\end|\\[{}]|[()\[\]{}]|,?\s?(?:\\text\{\s?(?:and|or)\s?\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))|[,;]"
)
_DEPTH = {"(": 1, "[": 1, "{": 1, "\\{": 1, "\\begin": 1, ")": -1, "]": -1, "}": -1, "\\}": -1, "\\end": -1}


def _cut(text: str) -> tuple[str, ...] | None:
    """The text cut at its outer commas, "and" and "or"; None when its brackets do not close."""
    parts, start, depth = [], 0, 0
    for joint in _JOINT.finditer(text):
        step = _DEPTH.get(joint.group())
        if step is not None:
            depth += step
            if depth < 0:
                return None
        elif depth == 0:
            parts.append(text[start : joint.start()].strip())
            start = joint.end()
    parts.append(text[start:].strip())
    return tuple(parts) if depth == 0 and all(parts) and len(parts) <= _MOST_ENTRIES else None


def _entries(text: str) -> _Entries | None:
    vector = _VECTOR.fullmatch(text)
    if vector is not None:
        body = vector.group(2).strip().removesuffix("\\\\")
        rows = [row.strip() for row in re.split(r"\\\\(?:\[[^\]]*\])?|\\cr(?![a-z])", body)]
        if len(rows) == 1:
            rows = [cell.strip() for cell in body.split("&")]
        if (
            "\\begin" in body
            or any("&" in row or not row for row in rows)
            or not 2 <= len(rows) <= _MOST_ENTRIES
        ):
            return None
        return _Entries(parts=tuple(rows), brackets="()")
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed is not None:
        kind = _PAIRS.get((bracketed.group(1), bracketed.group(3)))
        parts = _cut(bracketed.group(2)) if kind is not None else None
        if kind is not None and parts is not None and (len(parts) > 1 or kind == "{}"):
            return _Entries(parts=parts, brackets=kind)
    parts = _cut(text)
    return _Entries(parts=parts, brackets="") if parts is not None and len(parts) > 1 else None


def _comparable(gold: _Entries, answer: _Entries) -> bool:
    """Whether two kinds of brackets may say the same thing; where not, math-verify decides."""
    kinds = {gold.brackets, answer.brackets}
    return len(kinds) == 1 or kinds in ({"{}", ""}, {"()", ""})


_UNIT = re.compile(
    r"\s?(?:\\text|\\mathrm|\\textrm|\\mbox|\\rm)\s?\{\s?([A-Za-z][^{}]*)\}((?:\s?\^\s?\{?[23]\}?)?)$|(?<=[\d})\s])\s([A-Za-z]{2,}(?:\s[A-Za-z]+)?(?:\^\{?[23]\}?)?)$|\s?(\^\\circ)$"
)


def _without_units(gold: str, answer: str) -> tuple[str, str] | str:
    """Both without the unit or percent sign at their end; a note where these cannot be equal."""
    texts, units, percents = [gold, answer], [], []
    for place in range(2):
        text = texts[place]
        percent = text.endswith("%")
        if percent:
            text = text[:-1].rstrip()
        match = _UNIT.search(text)
        unit = None
        if match is not None and match.start() > 0:
            name = (match.group(1) or match.group(3) or match.group(4)).strip() + (match.group(2) or "")
            unit = unit_of(name)
            if unit is not None or (
                match.group(1) is not None
                and not re.search(r"[\d=]", name)
                and re.search(r"\d|\\", text[: match.start()])
            ):
                text = text[: match.start()].strip()
        texts[place] = text
        units.append(unit)
        percents.append(percent)
    if units[0] and units[1]:
        if units[0].kind != units[1].kind:
            return f"units of different kinds: {units[1].name} ({units[1].kind}), {units[0].name} ({units[0].kind})"
        if units[0].factor != units[1].factor:
            factor = units[1].factor / units[0].factor
            texts[1] = rf"\frac{{{factor.numerator}}}{{{factor.denominator}}} \cdot \left({texts[1]}\right)"
    if percents[0] != percents[1]:
        place = percents.index(True)
        texts[place] = rf"\frac{{{texts[place]}}}{{100}}"
    return texts[0], texts[1]


_POWER = re.compile(r"\^\s?\(")


def _for_worker(text: str) -> str:
    """The text as math-verify should see it: `^(…)` with braces, no dollar signs, one line."""
    text = text.replace("$", "").replace("\n", " ").replace("\\lvert", "|").replace("\\rvert", "|")
    start = 0
    while (power := _POWER.search(text, start)) is not None:
        depth, place = 1, power.end()
        while place < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[place], 0)
            place += 1
        if depth:
            break
        text = f"{text[: power.start()]}^{{{text[power.end() : place - 1]}}}{text[place:]}"
        start = power.start() + 1
    return text
