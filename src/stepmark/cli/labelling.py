"""One run of `stepmark label`: its options, rows through a labeller to the output, resumed where it was."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from stepmark.batching import Write
from stepmark.cli.answering import RAY, answering, check_computing, check_ray, models_of
from stepmark.cli.flags import Flag
from stepmark.cli.label_report import Counted, Tally, isolation_of, summary
from stepmark.cli.paths import checked_input, with_hint
from stepmark.cli.progress import Progress
from stepmark.errors import InputError, UsageError
from stepmark.store import STDIO, ResumableRows, check_writable, fingerprint, is_stream, read_rows

if TYPE_CHECKING:
    from stepmark.batching import Answerer, ReplyStore
    from stepmark.labels.labelling import Labeller, Labelling
    from stepmark.records import Refusal, Solution
    from stepmark.solutions.formats import SolutionRow


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class LabelOptions:
    """What every method takes."""

    policy: str | None = None
    """The policy that writes: a model's folder or hub name, http://HOST/v1#MODEL, or "package.module:factory"."""
    out: str
    """Write the labelled solutions to this file (format stepmark-labels), packed if it ends in .gz."""
    verifier: str = "math"
    """What compares final answers: math, number, choice, text, code (runs unit tests), or "package.module:Class"."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too (GSM8K's references leave the sign out)."""
    budget: int | None = None
    """Stop when the labelled solutions have cost this many tokens of the policy; the rest are counted as not labelled."""
    split: str = "auto"
    """How a text is cut into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, whole."""
    in_flight: int = 64
    """Solutions that are worked on at once: more fill a server better and take more memory."""
    keep_going: Flag = False
    """Leave out rows that cannot be labelled, and list them at the end."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of a local policy."""
    device: str = "auto"
    """Where a local policy runs: auto, cpu, cuda."""
    ray: str | None = None
    """Spread the work over a Ray cluster: auto (the one this machine is in), HOST:PORT, ray://HOST:PORT, or local."""
    ray_workers: int | None = None
    """Workers on the cluster, each with its own policy. Left out: as many as have room now, at most --in-flight."""
    ray_cpus: float = 1
    """Processors that each worker is given, and threads of a local policy."""
    ray_gpus: float = 0
    """GPUs that each worker is given; 0.5 puts two on one."""


_NO_LABELS = ("out", "budget", "in_flight", "keep_going", *RAY)
"""The options that do not decide what a label is; a run may be continued with others."""


def run_labeller(
    file: str,
    labeller: Labeller,
    options: LabelOptions,
    *,
    needs_policy: bool = True,
    needs_verifier: bool = True,
    texts: str = "rollouts",
    source: Mapping[str, Any] | None = None,
) -> int:
    """Label a file: every reply is recorded before use, a killed run goes on, and the output is whole or absent.

    Args:
        file: solutions, as JSON lines.
        labeller: the method.
        options: the flags.
        needs_policy: False for a method that asks nothing of a policy; --policy may then be left out.
        needs_verifier: False for a method that asks for no verdict; what verifiers need is then not loaded.
        texts: what the policy's texts are called.
        source: where a labeller of one's own is from, which decides what may be continued; None for the library's.

    Raises:
        UsageError: options that cannot work, or a part left by another run.
        InputError: a row that cannot be labelled, unless the run keeps going.
        BackendError: the policy or the verifier failed; what was done is kept.
    """
    from stepmark.models.replies import ReplyFile
    from stepmark.solutions.formats import read_solutions

    _check(file, options)
    check_computing(options, policy=options.policy if needs_policy else None)
    if not needs_verifier and options.verifier != "math":
        raise UsageError(
            f"--verifier {options.verifier}: it compares final answers, which {labeller.name} does not ask for: leave it out"
        )
    if needs_policy and options.policy is None:
        raise UsageError(
            "expected --policy: a model's folder or hub name, http://HOST/v1#MODEL, or package.module:factory"
        )
    rows = read_solutions(file, how=options.split, keep_going=options.keep_going)
    try:
        rows = chain([next(rows)], rows)
    except InputError as error:
        raise with_hint(error, keep_going=options.keep_going) from error.__cause__
    known = fingerprint(file)
    assert known is not None
    manifest = _manifest(file, labeller, options, source)
    isolation = isolation_of(options) if needs_verifier else None
    tally, refused = Tally(), list[str]()
    # One result a piece of work, which may be several labelled solutions.
    with (
        closing(ResumableRows(options.out, manifest)) as out,
        closing(ReplyFile(Path(options.out + ".replies.sqlite"))) as store,
        answering(
            options,
            policy=options.policy if needs_policy else None,
            verifier=options.verifier if needs_verifier else None,
        ) as asked,
    ):
        out.identify(models_of(asked.answerers))
        for earlier in out.earlier():
            if not isinstance(earlier, InputError):
                tally.add(earlier, refused)
        counted = Counted(tally, texts)
        progress = Progress(
            known.lines,
            done=tally.solutions + tally.refused,
            tokens=asked.tokens_written,
            verb="labelled",
            facts=counted.facts if needs_policy else tuple,
            together=options.in_flight,
        )
        answerers = {**asked.answerers}
        if Write in answerers:
            answerers[Write] = counted.counting(answerers[Write], progress.tick)
        spent_out = _spent(tally, options)
        try:
            with progress:
                units = islice(_units(rows, labeller), out.done, None)
                for unit, results in _labelled(units, labeller, answerers, store, options):
                    if spent_out:
                        break
                    line = _line(unit, results, keep_going=options.keep_going)
                    out.write(line)
                    tally.add(line, refused)
                    progress.advance(len(unit))
                    spent_out = _spent(tally, options)
        except InputError as error:
            raise with_hint(error, keep_going=options.keep_going) from error.__cause__
        except KeyboardInterrupt:
            done = tally.solutions + tally.refused
            raise KeyboardInterrupt(f"{done} solutions are kept; the same command continues") from None
        if tally.solutions == 0:
            raise InputError("nothing was labelled" + (": " + refused[0] if refused else ""), where=file)
        # Counted only where the budget ended the run: lines of the file are not rows, some may be blank.
        left = 0
        if spent_out:
            left = sum(1 for _ in read_rows(file, keep_going=True)) - tally.solutions - tally.refused
        facts = {**asdict(tally), "not_labelled": left}
        if isolation is not None:
            facts["isolation"] = isolation
        out.finish(facts, {options.out: lambda result: result["rows"]})
    print(summary(tally, refused, left, options, texts=texts if needs_policy else None), file=sys.stderr)
    return 0


_Unit = Sequence["SolutionRow | Refusal"]
"""Rows that are one piece of work: one row; or, for a tree, all that grow it."""


def _units(rows: Iterable[SolutionRow | Refusal], labeller: Labeller) -> Iterator[_Unit]:
    """Rows in their order, a piece each; for a tree those of one problem together, where the first of them stood."""
    from stepmark.labels.tree import RolloutTree
    from stepmark.records import Refusal

    if not isinstance(labeller, RolloutTree):
        yield from ([row] for row in rows)
        return
    groups: dict[object, list[SolutionRow | Refusal]] = {}
    for number, row in enumerate(rows):
        if isinstance(row, Refusal):
            groups[number] = [row]
            continue
        solution = row.solution
        # Rollouts are cut as the solutions were, so that a tree cannot hold solutions that were cut in several ways.
        way = labeller.split_rollouts or solution.split or "line"
        groups.setdefault((solution.problem.text, solution.problem.answer, way), []).append(row)
    yield from groups.values()


def _labelled(
    units: Iterable[_Unit],
    labeller: Labeller,
    answerers: Mapping[type, Answerer],
    store: ReplyStore,
    options: LabelOptions,
) -> Iterator[tuple[_Unit, Sequence[Labelling | Refusal]]]:
    """The pieces in their order, each with a result a row."""
    from stepmark.labels.run import label, label_together
    from stepmark.labels.tree import RolloutTree
    from stepmark.records import Refusal

    waiting: deque[_Unit] = deque()

    def groups() -> Iterator[tuple[Solution, ...]]:
        for unit in units:
            waiting.append(unit)
            solutions = tuple(row.solution for row in unit if not isinstance(row, Refusal))
            if solutions:
                yield solutions

    results: Iterator[tuple[Labelling | Refusal, ...]]
    if isinstance(labeller, RolloutTree):
        results = label_together(groups(), labeller, answerers, store=store, in_flight=options.in_flight)
    else:
        singles = (solution for (solution,) in groups())
        one_each = label(singles, labeller, answerers, store=store, in_flight=options.in_flight)
        results = ((result,) for result in one_each)
    for result in results:
        while isinstance(unread := waiting[0][0], Refusal):
            yield waiting.popleft(), (unread,)
        yield waiting.popleft(), result
    for rest in waiting:
        if isinstance(rest[0], Refusal):
            yield rest, (rest[0],)


def _line(unit: _Unit, results: Sequence[Labelling | Refusal], *, keep_going: bool) -> dict[str, Any]:
    """The result of a piece of work: rows of the given solutions, then those of others; and why rows are left out.

    Raises:
        InputError: a row that cannot be labelled, unless the run keeps going.
    """
    from stepmark.records import Refusal
    from stepmark.solutions.interchange.labels import to_row

    given, others, refused = [], [], []
    payer: str | None = None
    for row, result in zip(unit, results, strict=True):
        if isinstance(result, Refusal):
            error = result.error if isinstance(row, Refusal) else result.error.in_row(row.where)
            if not keep_going:
                raise error
            refused.append(str(error))
            continue
        assert not isinstance(row, Refusal)
        shared = {} if payer is None else {"cost_at": payer}
        given.append(to_row(result.labelled, meta={**_facts(result), **shared}))
        payer = payer or result.labelled.solution.id or Path(row.where).name
        others += [to_row(other, meta={"method": result.method}) for other in result.others]
    return {"rows": [*given, *others], "given": len(given), "refused": refused}


def _facts(result: Labelling) -> dict[str, Any]:
    found = result.critiques
    # The names that `stepmark train --objective generative` reads.
    written = {} if found is None else {"asked": found.asked, "critiques": list(map(list, found.texts))}
    return {
        "method": result.method,
        "first_error": result.first_error,
        "confidence": result.confidence,
        "abstained": result.abstained,
        "cost": asdict(result.cost),
        **written,
    }


def _spent(tally: Tally, options: LabelOptions) -> bool:
    # By what stands in the output, in its order: the same rows are written however often the run was killed.
    if options.budget is None:
        return False
    if tally.tokens is None:
        raise UsageError("--budget: this policy does not say how many tokens it writes; leave the budget out")
    return tally.tokens >= options.budget


def _check(file: str, options: LabelOptions) -> None:
    from stepmark.solutions.segmentation import check_way

    check_way(options.split)
    if file == STDIO:
        raise UsageError("stepmark label reads its file more than once; give it a name, not -")
    check_ray(options)
    checked_input(file, again=True)
    if is_stream(options.out):
        raise UsageError(f"--out {options.out}: expected a file's name")
    check_writable(options.out)
    if Path(options.out).resolve() == Path(file).resolve():
        raise UsageError(f"--out {options.out} is the input: it would be replaced; choose another")
    for name, least in (("in_flight", 1), ("budget", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected {least} or more")


def _manifest(
    file: str, labeller: Labeller, options: LabelOptions, source: Mapping[str, Any] | None
) -> dict[str, Any]:
    known = fingerprint(file)
    assert known is not None
    settings = {key: value for key, value in asdict(options).items() if key not in _NO_LABELS}
    method = {"name": labeller.name, **asdict(labeller)}  # type: ignore[call-overload]
    body = {
        "command": "label",
        "input": {"name": Path(file).name, "bytes": known.bytes, "sha256": known.sha256},
        "method": method,
        **({} if source is None else {"source": source}),
        "settings": settings,
    }
    plain: dict[str, Any] = json.loads(json.dumps(body, default=str))
    return plain
