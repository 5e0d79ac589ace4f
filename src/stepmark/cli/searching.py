"""One run of `stepmark search`: its options, problems through a search to the output, resumed where it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepmark.batching import Answerer, Write
from stepmark.cli.answering import RAY, check_computing, check_ray, models_of
from stepmark.cli.paths import checked_input, with_hint
from stepmark.cli.progress import Progress
from stepmark.cli.search_machines import Machines, Method, SearchOptions
from stepmark.cli.search_report import Tally, print_found, summary, write_page
from stepmark.errors import InputError, UsageError
from stepmark.problems.sources import problems_or_errors, read_problems
from stepmark.records import Problem, Refusal
from stepmark.search.rows import found_row, trace_row
from stepmark.search.searching import (
    Budget,
    Found,
)
from stepmark.store import STDIO, ResumableRows, atomic_rows, check_writable, fingerprint, is_stream

if TYPE_CHECKING:
    from stepmark.batching import Ready, Reply


_NO_RESULTS = (
    "out",
    "trace",
    "report",
    "in_flight",
    "keep_going",
    "memory_tokens",
    "policy_memory_tokens",
    "problem",
    *RAY,
)
"""The options that do not decide what is found; a run may be continued with others."""


def run_search(
    file: str | None, search: Method, options: SearchOptions, *, source: Mapping[str, Any] | None = None
) -> int:
    """Search a file of problems, or one that was typed.

    Every reply is recorded before it is used, a killed run goes on, and the output is whole or absent.

    Args:
        file: problems, as JSON lines.
        search: the method.
        options: the flags.
        source: where a method of one's own is from, which decides what may be continued; None for the library's.

    Raises:
        UsageError: options that cannot work, or a part left by another run.
        InputError: a problem that cannot be searched, unless the run keeps going.
        BackendError: the policy, the PRM or the verifier failed; what was done is kept.
    """
    _check(file, options)
    check_computing(
        options,
        policy=options.policy,
        prm=options.prm if search.asks_prm else None,
        family=options.family,
        tokenizer=options.tokenizer,
    )
    with ExitStack() as stack:
        if options.problem is not None:
            machines = Machines(search, options, stack)
            return _one(machines, options)
        assert file is not None
        assert options.out is not None
        known = fingerprint(file)
        assert known is not None
        manifest = _manifest(file, search, options, asdict(known), source)
        out = stack.enter_context(closing(ResumableRows(options.out, manifest)))
        machines = Machines(search, options, stack)
        out.identify(models_of(machines.answerers))
        tally = _many(file, machines, out, options, lines=known.lines)
        if options.report is not None:
            # Before the part is dropped: a run that is killed here has it to go on from.
            write_page(options.report, _lines(out), file, machines.scorer, machines.verifier)
        outputs = ({} if options.trace is None else {options.trace: "trace"}) | {options.out: "found"}
        out.finish(asdict(tally), {path: partial(_rows, key) for path, key in outputs.items()})
    print(summary(tally, options, machines.saved), file=sys.stderr)
    return 0


def _one(machines: Machines, options: SearchOptions) -> int:
    """Search the problem that was typed, and print what was found."""
    from stepmark.models.replies import MemoryReplies
    from stepmark.search.run import run

    assert options.problem is not None
    problem = Problem(text=options.problem, id="typed")
    [found] = run([problem], machines.search, machines.answerers, store=MemoryReplies())
    if isinstance(found, Refusal):
        raise found.error
    for path, row in ((options.out, found_row(found)), (options.trace, trace_row(found))):
        if path is not None:
            _write(path, [row])
    if options.report is not None:
        rows = [{"found": found_row(found), "trace": trace_row(found)}]
        write_page(options.report, rows, "a typed problem", machines.scorer, machines.verifier)
    print_found(found, None if machines.scorer is None else machines.scorer.threshold)
    return 0


def _many(file: str, machines: Machines, out: ResumableRows, options: SearchOptions, *, lines: int) -> Tally:
    """Search every problem of a file; the part then has a result for each."""
    from stepmark.models.replies import ReplyFile
    from stepmark.search.run import run

    if machines.whole_prefixes:
        print(f"the PRM reads the whole prefix for every step: {machines.whole_prefixes}", file=sys.stderr)
    tally = Tally()
    for earlier in islice(_lines(out), out.done):
        tally.add(earlier)
    before = tally.problems + len(tally.refused)
    progress = Progress(
        lines,
        done=before,
        tokens=lambda: machines.written + machines.read,
        verb="searched",
        facts=machines.told,
        noun="problem",
        together=options.in_flight,
    )
    answerers = {**machines.answerers, Write: _ticking(machines.answerers[Write], progress.tick)}
    with closing(ReplyFile(Path(f"{options.out}.replies.sqlite"))) as store, progress:
        waiting: list[InputError | None] = []

        def problems() -> Iterator[Problem]:
            reader = problems_or_errors if options.keep_going else read_problems
            for number, one in enumerate(reader(file, need_answer=False)):
                if number >= before:
                    waiting.append(one if isinstance(one, InputError) else None)
                    if isinstance(one, Problem):
                        yield one

        def write(found: Found | Refusal | InputError) -> None:
            row = _line(found, keep_going=options.keep_going, trace=options.keeps_traces)
            out.write(row)
            tally.add(row)
            progress.advance()

        try:
            results = run(problems(), machines.search, answerers, store=store, in_flight=options.in_flight)
            for found in results:
                while waiting and (error := waiting.pop(0)) is not None:
                    write(error)
                write(found)
            for error in waiting:
                if error is not None:
                    write(error)
        except InputError as error:
            raise with_hint(error, keep_going=options.keep_going) from error.__cause__
        except KeyboardInterrupt:
            done = tally.problems + len(tally.refused)
            raise KeyboardInterrupt(f"{done} problems are kept; the same command continues") from None
        if tally.problems == 0:
            why = ": " + tally.refused[0] if tally.refused else ""
            raise InputError("no problem could be searched" + why, where=file)
    return tally


def _lines(out: ResumableRows) -> Iterator[dict[str, Any]]:
    """The results so far, as `_line` made them."""
    return (line for line in out.results() if not isinstance(line, InputError))


def _rows(key: str, line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a result has for the file of solutions (`found`) or of trees (`trace`)."""
    return [] if line[key] is None else [line[key]]


def _line(found: Found | Refusal | InputError, *, keep_going: bool, trace: bool) -> dict[str, Any]:
    """The result of one problem.

    Raises:
        InputError: a problem that cannot be searched, unless the run keeps going.
    """
    if not isinstance(found, Found):
        error = found.error if isinstance(found, Refusal) else found
        if not keep_going:
            raise error
        return {"found": None, "trace": None, "refused": str(error)}
    return {"found": found_row(found), "trace": trace_row(found) if trace else None, "refused": None}


def _ticking(answerer: Answerer, tick: Callable[[], None]) -> Answerer:
    def answer(requests: Sequence[Any], ready: Ready) -> Sequence[Reply]:
        def heard(number: int, reply: Reply) -> None:
            ready(number, reply)
            tick()

        return answerer.answer(requests, heard)

    return Answerer(identity=answerer.identity, answer=answer)


def _check(file: str | None, options: SearchOptions) -> None:
    if (file is None) == (options.problem is None):
        raise UsageError('expected either FILE, problems as JSON lines, or --problem "…", one that is typed')
    if options.problem is not None and not options.problem.strip():
        raise UsageError("--problem: expected a text, found only white space")
    check_ray(options)
    if options.in_flight < 1:
        raise UsageError(f"--in-flight {options.in_flight}: expected 1 or more")
    for name, least in (("memory_tokens", 1), ("policy_memory_tokens", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected {least} or more")
    Budget(tokens=options.budget, flops=options.budget_flops)
    if file is not None:
        if file == STDIO:
            raise UsageError("stepmark search reads its file more than once; give it a name, not -")
        if options.out is None:
            raise UsageError("expected --out: the file that what is found is written to")
        checked_input(file, again=True)
    taken = set[Path]() if file is None else {Path(file).resolve()}
    for name in ("out", "trace", "report"):
        path = getattr(options, name)
        if path is None:
            continue
        if is_stream(path):
            raise UsageError(f"--{name} {path}: expected a file's name")
        check_writable(path)
        if Path(path).resolve() in taken:
            raise UsageError(f"--{name} {path} would replace the input or the other output; choose another")
        taken.add(Path(path).resolve())


def _manifest(
    file: str,
    search: Method,
    options: SearchOptions,
    known: Mapping[str, Any],
    source: Mapping[str, Any] | None,
) -> dict[str, Any]:
    settings = {key: value for key, value in asdict(options).items() if key not in _NO_RESULTS}
    method = asdict(search)  # type: ignore[call-overload]
    # What the run fills in is among the settings.
    flags = {key: value for key, value in method.items() if key not in ("grading", "budget", "sizes")}
    body = {
        "command": "search",
        "input": {"name": Path(file).name, "bytes": known["bytes"], "sha256": known["sha256"]},
        "method": {"name": search.name, **flags},
        **({} if source is None else {"source": source}),
        "settings": {**settings, "trace": options.keeps_traces},
    }
    plain: dict[str, Any] = json.loads(json.dumps(body, default=str))  # a setting may be a path
    return plain


def _write(path: str, rows: Any) -> None:
    with atomic_rows(path) as write:
        for row in rows:
            write(row)
