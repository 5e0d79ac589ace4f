"""One run of `stepmark search`: its options, problems through a search to the output, resumed where it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cyclopts import Parameter

from stepmark.batching import Answerer, Write
from stepmark.cli.grade import Flag
from stepmark.cli.paths import checked_input
from stepmark.cli.problem_rows import problems_of
from stepmark.cli.progress import Progress
from stepmark.cli.search_report import Tally, print_found, summary, write_page
from stepmark.errors import InputError, UsageError
from stepmark.records import Problem, Refusal
from stepmark.search.searching import (
    Budget,
    Found,
    Grading,
    ModelSize,
    Search,
    Sizes,
    Steps,
    found_row,
    trace_row,
)
from stepmark.store import (
    STDIO,
    atomic_rows,
    atomic_write,
    check_writable,
    fingerprint,
    is_stream,
    open_rows,
)

if TYPE_CHECKING:
    from stepmark.batching import Ready, Reply
    from stepmark.models.policies import Policy
    from stepmark.models.prm import PRM


class Method(Search, Protocol):
    """A search whose settings the command line fills in."""

    @property
    def how(self) -> Steps:
        """How the policy writes."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """What every method takes."""

    policy: str
    """The policy that writes: a model's folder or hub name, http://HOST/v1#MODEL, or "package.module:factory"."""
    prm: str = "default"
    """The PRM: "default", a checkpoint's folder or hub name, a server's address, or "package.module:factory"."""
    family: str | None = None
    """How the PRM is read (`stepmark families` lists them). Left out: told from the checkpoint."""
    tokenizer: str | None = None
    """For a PRM behind a server: folder or hub name of its tokenizer."""
    problem: str | None = None
    """Instead of FILE: one problem, whose solution is printed."""
    out: str | None = None
    """Write what is found to this file, one JSON line a problem, packed if it ends in .gz."""
    trace: str | None = None
    """Write the trees to this file, one JSON line a problem, packed if it ends in .gz."""
    report: str | None = None
    """Draw the trees on this HTML page, one file that works without a network."""
    aggregate: str | None = None
    """How step scores make one number: product, min, mean, last, max, sum-logit, softmin. Left out: the PRM's own."""
    budget: int | None = None
    """Tokens that one problem may cost: written by the policy and read by the PRM. No request is made beyond it."""
    budget_flops: float | None = None
    """Floating-point operations that one problem may cost; needs --policy-parameters and --prm-parameters."""
    policy_parameters: float | None = None
    """Weights of the policy, to count operations: 1.5e9, without the table of embeddings."""
    prm_parameters: float | None = None
    """Weights of the PRM, to count operations."""
    verifier: str = "math"
    """What says whether answers are equal, for votes and --verify: math, number, choice, text, code, or "package.module:Class"."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too (GSM8K's references leave the sign out)."""
    in_flight: int = 16
    """Problems that are searched at once: more fill a server better and take more memory."""
    keep_going: Flag = False
    """Leave out problems that cannot be searched, and list them at the end."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of models in this process."""
    device: str = "auto"
    """Where they run: auto, cpu, cuda."""
    memory_tokens: int | None = None
    """Tokens whose keys and values the PRM keeps at most. Left out: 65,536."""

    @property
    def keeps_traces(self) -> bool:
        """Whether the trees are asked for."""
        return self.trace is not None or self.report is not None


_NO_RESULTS = ("out", "trace", "report", "in_flight", "keep_going", "memory_tokens", "problem")
"""The options that do not decide what is found; a run may be continued with others."""


def run_search(file: str | None, search: Method, options: SearchOptions, *, needs_prm: bool = True) -> int:
    """Search a file of problems, or one that was typed.

    Every reply is recorded before it is used, a killed run goes on, and the output is whole or absent.

    Args:
        file: problems, as JSON lines.
        search: the method.
        options: the flags.
        needs_prm: False for a method that asks no PRM, which is then not loaded.

    Raises:
        UsageError: options that cannot work, or a part left by another run.
        InputError: a problem that cannot be searched, unless the run keeps going.
        BackendError: the policy, the PRM or the verifier failed; what was done is kept.
    """
    _check(file, options)
    with ExitStack() as stack:
        if options.problem is not None:
            machines = _Machines(search, options, stack, needs_prm=needs_prm)
            return _one(machines, options)
        assert file is not None
        assert options.out is not None
        known = fingerprint(file)
        assert known is not None
        manifest = _manifest(file, search, options, asdict(known))
        out = stack.enter_context(closing(open_rows(Path(options.out + ".work"), manifest)))
        machines = _Machines(search, options, stack, needs_prm=needs_prm)
        tally = _many(file, machines, out, options, lines=known.lines)
        if options.report is not None:
            lines = Path(f"{options.out}.work").read_text(encoding="utf-8").splitlines()
            write_page(options.report, map(json.loads, lines), file, machines.prm, machines.verifier)
    _flatten(options, manifest, tally)
    print(summary(tally, options), file=sys.stderr)
    return 0


class _Machines:
    """Policy, PRM, verifier, and the search with what it must know of them."""

    def __init__(self, search: Method, options: SearchOptions, stack: ExitStack, *, needs_prm: bool) -> None:
        from stepmark.models import policies, scorer
        from stepmark.models.load import load_prm
        from stepmark.problems import answers

        self.verifier = stack.enter_context(
            closing(answers.load_verifier(options.verifier, percent=options.percent))
        )
        self.prm: PRM | None = None
        if needs_prm:
            self.prm = load_prm(
                options.prm,
                family=options.family,
                tokenizer=options.tokenizer,
                dtype=options.dtype,
                device=options.device,
            )
        self.search = _fitted(search, options, self.prm)
        self.policy: Policy = policies.load_policy(
            options.policy, dtype=options.dtype, device=options.device, counts=True
        )
        self.answerers: dict[type, Answerer] = {
            **policies.answerers(self.policy),
            **answers.answerers(self.verifier),
        }
        self.whole_prefixes = ""
        if self.prm is not None:
            self.whole_prefixes = scorer.why_whole_prefixes(self.prm)
            self.answerers |= scorer.answerers(self.prm, memory_tokens=options.memory_tokens)

    @property
    def read(self) -> int:
        """Tokens that the PRM has computed or written."""
        return 0 if self.prm is None else self.prm.ledger.tokens_computed + self.prm.ledger.tokens_written

    def facts(self) -> Sequence[str]:
        """What progress tells."""
        return (f"{self.policy.tokens_written:,} tokens written", f"{self.read:,} read by the PRM")


def _fitted(search: Method, options: SearchOptions, prm: PRM | None) -> Method:
    """The search with the aggregate, the kind of scores, the budget and the sizes of this run."""
    grading = Grading()
    if prm is not None:
        how = prm.default_aggregate if options.aggregate is None else options.aggregate
        grading = Grading(aggregate=how, kind=prm.score_kind)
    sizes = Sizes(
        policy=None if options.policy_parameters is None else ModelSize(parameters=options.policy_parameters),
        prm=None if options.prm_parameters is None else ModelSize(parameters=options.prm_parameters),
    )
    fitted: Method = replace(  # type: ignore[type-var]
        search,
        how=replace(search.how, stop=search.how.stop.replace("\\n", "\n")),  # as a shell passes it
        grading=grading,
        budget=Budget(tokens=options.budget, flops=options.budget_flops),
        sizes=sizes,
    )
    return fitted


def _one(machines: _Machines, options: SearchOptions) -> int:
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
        write_page(options.report, rows, "a typed problem", machines.prm, machines.verifier)
    print_found(found, None if machines.prm is None else machines.prm.default_threshold)
    return 0


def _many(file: str, machines: _Machines, out: Any, options: SearchOptions, *, lines: int) -> Tally:
    """Search every problem of a file; the work file then has a line for each."""
    from stepmark.models.replies import ReplyFile
    from stepmark.search.run import run

    if machines.whole_prefixes:
        print(f"the PRM reads the whole prefix for every step: {machines.whole_prefixes}", file=sys.stderr)
    tally = Tally()
    for earlier in out.earlier():
        tally.add(earlier)
    before = tally.problems + len(tally.refused)
    progress = Progress(
        lines,
        done=before,
        tokens=lambda: machines.policy.tokens_written + machines.read,
        verb="found",
        facts=machines.facts,
    )
    answerers = {**machines.answerers, Write: _ticking(machines.answerers[Write], progress.tick)}
    with closing(ReplyFile(Path(f"{options.out}.replies.sqlite"))) as store, progress:
        waiting: list[InputError | None] = []

        def problems() -> Iterator[Problem]:
            for number, one in enumerate(problems_of(file, keep_going=options.keep_going)):
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
        except KeyboardInterrupt:
            done = tally.problems + len(tally.refused)
            raise KeyboardInterrupt(f"{done} problems are kept; the same command continues") from None
        if tally.problems == 0:
            why = ": " + tally.refused[0] if tally.refused else ""
            raise InputError("no problem could be searched" + why, where=file)
        out.finish({})
    return tally


def _line(found: Found | Refusal | InputError, *, keep_going: bool, trace: bool) -> dict[str, Any]:
    """A line of the work file.

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
    if options.in_flight < 1:
        raise UsageError(f"--in-flight {options.in_flight}: expected 1 or more")
    if options.memory_tokens is not None and options.memory_tokens < 1:
        raise UsageError(f"--memory-tokens {options.memory_tokens}: expected 1 or more")
    Budget(tokens=options.budget, flops=options.budget_flops)
    if file is not None:
        if file == STDIO:
            raise UsageError("stepmark search reads its file more than once; give it a name, not -")
        if options.out is None:
            raise UsageError("expected --out: the file that what is found is written to")
        checked_input(file)
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


def _manifest(file: str, search: Method, options: SearchOptions, known: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: value for key, value in asdict(options).items() if key not in _NO_RESULTS}
    method = asdict(search)  # type: ignore[call-overload]
    # What the run fills in is among the settings.
    flags = {key: value for key, value in method.items() if key not in ("grading", "budget", "sizes")}
    body = {
        "command": "search",
        "input": {"name": Path(file).name, "bytes": known["bytes"], "sha256": known["sha256"]},
        "method": {"name": search.name, **flags},
        "settings": {**settings, "trace": options.keeps_traces},
    }
    plain: dict[str, Any] = json.loads(json.dumps(body))
    return plain


def _flatten(options: SearchOptions, manifest: Mapping[str, Any], tally: Tally) -> None:
    """Make the outputs of the work file, then the manifest, then drop the work file."""
    work = Path(f"{options.out}.work")
    assert options.out is not None
    beside = Path(options.out + ".manifest.json")
    beside.unlink(missing_ok=True)
    for key, path in (("trace", options.trace), ("found", options.out)):
        if path is not None:
            with work.open(encoding="utf-8") as lines:
                rows = (json.loads(line)[key] for line in lines)
                _write(path, (row for row in rows if row is not None))
    with atomic_write(beside) as handle:
        json.dump({**manifest, **asdict(tally)}, handle, ensure_ascii=False, indent=2)
        handle.write("\n")
    work.unlink()
    work.with_name(work.name + ".manifest.json").unlink(missing_ok=True)


def _write(path: str, rows: Any) -> None:
    with atomic_rows(path) as write:
        for row in rows:
            write(row)
