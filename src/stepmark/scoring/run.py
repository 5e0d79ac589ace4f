"""`stepmark.grade`: rows of solutions in; scores, verdicts and a summary out, written as they come and resumed where they stopped."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, cast, final, get_args

from pydantic import Field

from stepmark.backends import Ready, ScoreSolution
from stepmark.backends.cluster import Cluster, Fact, RayWorkers, Reply, WorkerModels
from stepmark.data.reading import Source, read_rows
from stepmark.data.solutions import SolutionRow, candidates_of, read_solutions, solutions_of
from stepmark.data.steps.splitting import check_way, split
from stepmark.data.steps.thoughts import Reasoning
from stepmark.errors import BackendError, InputError
from stepmark.metrics.aggregate import check_aggregate
from stepmark.metrics.first_error import threshold_misfit
from stepmark.models.lazy import Lazy, check_models, note_idle
from stepmark.models.load import SHARED, PRMLike, lazy_prm, read_by
from stepmark.models.places import NOTICE
from stepmark.models.prm import PRM, Grade, Ledger, from_row, input_row, to_row
from stepmark.models.prm import grade as grade_stream
from stepmark.progress import Progress
from stepmark.records import GradedSolution, Refusal, ScoreKind, Solution, StepScores
from stepmark.settings import checked
from stepmark.store import (
    PartFile,
    Results,
    RunInput,
    atomic_rows,
    check_outputs,
    is_stream,
    resumed,
    row_key,
    run_input,
)
from stepmark.store.runs import working
from stepmark.verifiers.checks import check_names
from stepmark.words import amount

BUILD = "stepmark.scoring.run:build"
"""`build`, as `backends.cluster.RayWorkers` takes it."""


def build(
    *, prm: str, prm_arguments: str = "{}", orm: str | None = None, orm_arguments: str = "{}"
) -> WorkerModels:
    """A PRM, and an outcome model beside it where one is named, that answer `ScoreSolution`.

    Args:
        prm, orm: as `models.load.load_prm` takes them.
        prm_arguments, orm_arguments: their other arguments, as JSON.
    """
    from stepmark.models.load import load_prm

    prms = {"prm": load_prm(prm, **json.loads(prm_arguments))}
    if orm is not None:
        prms["orm"] = load_prm(orm, **json.loads(orm_arguments))
    facts: dict[str, Fact] = {}
    for which, model in prms.items():
        facts |= {
            f"{which}.name": model.name,
            f"{which}.identity": model.identity,
            f"{which}.score_kind": model.score_kind,
            f"{which}.aggregate": model.default_aggregate,
            f"{which}.threshold": model.default_threshold,
        }

    def answer(requests: Sequence[ScoreSolution], ready: Ready) -> list[Reply]:
        replies: dict[int, Reply] = {}
        for which, model in prms.items():
            places = [place for place, request in enumerate(requests) if request.model == which]
            results = model.score_many((requests[place].solution for place in places), keep_going=True)
            for place, result in zip(places, results, strict=False):
                replies[place] = result.error if isinstance(result, Refusal) else result
                ready(place, replies[place])
        if len(replies) < len(requests):
            raise BackendError(
                f"{len(requests) - len(replies)} of {amount(len(requests), 'solution')} got no result; what a PRM did not score has no score"
            )
        return [replies[place] for place in range(len(requests))]

    identity = " and ".join(model.identity for model in prms.values())
    return WorkerModels(
        answers={ScoreSolution: (identity, answer)},
        facts=facts,
        counters=lambda: {
            f"{which}.{field.name}": getattr(model.ledger, field.name)
            for which, model in prms.items()
            for field in fields(Ledger)
        },
    )


@final
class SpreadPRM(PRM):
    """A PRM (see `models.prm.PRM`) whose solutions are scored by the workers of a cluster, each with a PRM of its own.

    Only what keeps them busy is read ahead. Neighbours of one problem are scored by one worker together. Its name, identity, kind of
    scores, aggregate and threshold are those of the workers' PRMs, which are all equal.

    Args:
        workers: built with `BUILD`.
        which: the PRM, or the outcome model.
        expected: about how many solutions will come; None where that is not known.
    """

    def __init__(
        self, workers: RayWorkers, *, which: Literal["prm", "orm"] = "prm", expected: int | None = None
    ) -> None:
        self._workers = workers
        self._which: Literal["prm", "orm"] = which
        self._expected = expected
        facts = workers.facts
        self.name, self._identity, self.default_aggregate = (
            str(facts[f"{which}.{fact}"]) for fact in ("name", "identity", "aggregate")
        )
        assert facts[f"{which}.score_kind"] in get_args(ScoreKind)
        self.score_kind = cast(ScoreKind, facts[f"{which}.score_kind"])
        threshold = facts[f"{which}.threshold"]
        assert threshold is None or isinstance(threshold, int | float)
        self.default_threshold = threshold

    def __repr__(self) -> str:
        return self.describe()

    @property
    def identity(self) -> str:
        """That of the workers' PRMs."""
        return self._identity

    @property
    def ledger(self) -> Ledger:  # type: ignore[override]
        """The sum over all workers; of one that died, its last report."""
        counters = self._workers.counters
        return Ledger(
            **{field.name: counters.get(f"{self._which}.{field.name}", 0) for field in fields(Ledger)}
        )

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions; see `PRM.score_many`.

        Raises:
            BackendError: no worker is left, one solution killed several workers, or their PRM failed.
        """
        waiting: deque[Solution] = deque()

        def requests() -> Iterator[ScoreSolution]:
            for solution in solutions:
                waiting.append(solution)
                yield ScoreSolution(solution=solution, model=self._which)

        for reply in self._workers.stream(requests(), expected=self._expected):
            solution = waiting.popleft()
            if isinstance(reply, StepScores):
                yield reply
            elif not isinstance(reply, InputError):
                raise BackendError(f"{self.name}: expected the scores of a solution, found {reply!r}")
            elif keep_going:
                yield Refusal(solution=solution, error=reply)
            else:
                raise reply


@checked
def grade(
    rows: Source,
    prm: PRMLike = "default",
    *,
    out: str | Path | None = None,
    report: str | Path | None = None,
    aggregate: str | None = None,
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None,
    checks: str = "auto",
    orm: str | None = None,
    split: str = "auto",
    marker: str | None = None,
    reasoning: Reasoning = "keep",
    columns: Mapping[str, str] | None = None,
    keep_going: bool = False,
    cluster: Cluster | None = None,
    progress: bool = True,
    on_result: Callable[[GradedSolution, str], None] | None = None,
) -> Results[GradedSolution]:
    """Grade solutions step by step with a PRM.

    A row is a problem and its steps, {"problem": "…", "steps": ["…", "…"]}, or a problem and a text that is split into steps,
    {"problem": "…", "solution": "…"}. Chat messages, TRL rows, ProcessBench rows and rows with a list of candidates are read too. A run
    with `out` that is interrupted continues when the same call is made again.

    Args:
        rows: a file or a folder of them (JSON lines, CSV, TSV, Parquet, a JSON list), dicts, records, a data set or a data frame.
        prm: the PRM, or its name: "default", a hub name, a folder, the address of a server, or "package.module:factory".
        out: write the graded rows to this file, gzipped if its name ends in .gz; "-" for standard output.
        report: write an HTML report, which needs no network, to this file.
        aggregate: how step scores become one number: product, min, mean, last, max, sum-logit or softmin. Default: the PRM's own.
        threshold: a step whose score is under this is an error. Default: the PRM's own.
        checks: exact checks beside the PRM, which prove that a step is wrong: all, none, names with commas between them (equation,unit,algebra,answer), or auto, which is all with the default PRM and none with any other. Thoughts are checked only with `all,thoughts`.
        orm: an outcome reward model: its one verdict on the whole solution stands beside the steps.
        split: how a text is split into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, thought, whole, token, or limit:N (words).
        marker: the text that ends each step, for `split` marker and auto.
        reasoning: what becomes of a thought (<think>, reasoning_content): keep it as steps, grade it only, or drop it.
        columns: names of columns, where they differ: problem=question,solution=response.
        keep_going: leave out rows that cannot be graded, and list them at the end.
        cluster: spread the work over a Ray cluster.
        progress: show how far the run is, on standard error.
        on_result: called with each graded solution and the place of its row, in order.

    Returns:
        The graded solutions, in the order of the rows. With `out` they are read from that file when they are asked for.

    Raises:
        InputError: a row that cannot be graded (unless `keep_going`), or no rows.
        UsageError: a setting that cannot work, an output that is an input, or a part of a run with other settings or another model.
        CheckpointError: the PRM cannot be loaded.
        BackendError: a server failed; what was graded so far is kept beside `out`.
    """
    if marker is not None and split not in ("marker", "auto"):
        note_idle({"marker": marker}, {"marker": f"`split` {split} does not read it"})
        marker = None
    source = run_input(rows, hashed=(out is not None and not is_stream(out)) or _is_small(rows))
    grader = prm if not isinstance(prm, str) else lazy_prm(prm)
    grader, outcome = _with_outcome_model(grader, orm)
    _check(source, grader, outcome, {"out": out, "report": report}, aggregate, checks, split, marker, cluster)
    read = read_solutions(
        source.source,
        columns=columns,
        how=split,
        marker=marker,
        reasoning=reasoning,
        keep_going=keep_going,
    )
    # The first row before the model: a file of something else is refused at once.
    read = chain([next(read)], read)
    settings: dict[str, Any] = {"aggregate": aggregate, "threshold": threshold, "checks": checks}
    settings |= {"split": split, "marker": marker, "reasoning": reasoning, "columns": columns}
    graded = Path(out) if out is not None and not is_stream(out) else None
    with ExitStack() as stack:
        part = stack.enter_context(PartFile(graded, {"command": "grade", "settings": settings}))
        stream = stack.enter_context(atomic_rows(out if graded is None else None))
        total = _count(source, columns)
        scorer, verdicts = _load(
            grader, outcome, cluster, stack, None if total is None else max(1, total - part.kept)
        )
        part.identify({"prm": scorer.identity} | ({} if verdicts is None else {"orm": verdicts.identity}))
        run = _GradingRun(
            source=source,
            rows=read,
            part=part,
            stream=stream,
            prm=scorer,
            orm=verdicts,
            settings=Grade(aggregate=aggregate, threshold=threshold, checks=checks).of(scorer),
            on_result=on_result,
            progress=Progress(total, tokens=lambda: scorer.ledger.tokens_computed, shown=progress),
            collect=out is None,
        )
        with working(part, run.progress, source, keep_going=keep_going):
            effective = None if run.settings.checks == "none" else run.settings.checks
            run.all(report, {**settings, "checks": effective, "prm": scorer.name}, keep_going=keep_going)
            loading = {"loaded_with": grader.arguments} if isinstance(grader, Lazy) else {}
            part.finish({**run.facts(), **loading}, {} if graded is None else {graded: lambda row: [row]})
    written = [str(path) for path in (graded, report) if path is not None]
    records = run.records
    return Results(
        (lambda: iter(records)) if graded is None else lambda: read_graded(graded),
        run.tally.counts["solutions"],
        out=graded,
        refused=run.tally.refused,
        manifest={**part.manifest, "input": source.manifest},
        summary=_summary(run, split, written),
    )


_COUNTED_UP_TO = 1 << 28
"""Bytes of a file that are read beforehand only to know how many rows there are."""


def _is_small(rows: Source) -> bool:
    return (
        isinstance(rows, str | Path) and Path(rows).is_file() and Path(rows).stat().st_size <= _COUNTED_UP_TO
    )


def _count(source: RunInput, columns: Mapping[str, str] | None) -> int | None:
    """How many solutions there are: a row of several counts as many. None where that is not known."""
    rows = source.source
    if source.rows is None or (isinstance(rows, str | Path) and not _is_small(rows)):
        return source.rows
    try:
        several = map(candidates_of, read_rows(rows, columns=columns))
        return sum(1 if listed is None else len(listed) for listed in several)
    except InputError:
        return source.rows


def read_graded(path: str | Path) -> Iterator[GradedSolution]:
    """The graded solutions of a file that `grade` wrote.

    Raises:
        InputError: a row that is no graded one.
    """
    for row in read_rows(path):
        if isinstance(row.record, GradedSolution):
            yield row.record
            continue
        try:
            (read,) = solutions_of(row)
            yield from_row(read.solution, row.data)
        except InputError as error:
            raise error.at(row.where) from None


@dataclass(kw_only=True, slots=True)
class _GradingCounts:
    """What the summary counts."""

    counts: Counter[str] = field(default_factory=Counter)
    """Solutions, steps, unread steps, and solutions that are wrong, right, unknown, and wrong by a check alone."""
    refused: list[str] = field(default_factory=list)
    ways: Counter[str] = field(default_factory=Counter)
    """How texts were split."""
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, scored: GradedSolution, row: SolutionRow) -> None:
        """Count a graded solution, and how its text was split."""
        verdict = "unknown" if scored.first_error is None else "right" if scored.first_error < 0 else "wrong"
        self.counts.update(("solutions", verdict))
        self.counts["steps"] += len(scored)
        self.counts["unread"] += scored.scores.count(None)
        self.counts["by_check"] += scored.first_error_by == "check"
        if row.solution.split is not None:
            self.ways[row.solution.split] += 1
            # What a way reports of a text stands after the reason for it.
            note = (row.why or "").partition("; ")[2]
            self.notes.update([note] if note else [])


@dataclass(kw_only=True, slots=True)
class _GradingRun:
    """Rows on their way through the models to the output."""

    source: RunInput
    rows: Iterator[SolutionRow | Refusal]
    part: PartFile
    stream: Callable[[Mapping[str, Any]], None]
    """Writes a graded row at once, where the output is no file."""
    prm: PRM
    orm: PRM | None
    settings: Grade
    on_result: Callable[[GradedSolution, str], None] | None
    progress: Progress
    collect: bool
    """Whether the records are kept in memory."""
    records: list[GradedSolution] = field(default_factory=list)
    tally: _GradingCounts = field(default_factory=_GradingCounts)

    def all(self, report: str | Path | None, settings: Mapping[str, Any], *, keep_going: bool) -> None:
        """Grade every row, and write the report: before the output is made, so that a run that is killed has its part to resume from."""
        results = self.results(keep_going=keep_going)
        if report is None:
            deque(results, maxlen=0)
            return
        from stepmark.scoring.report import write_report

        shown = {name: str(value) for name, value in settings.items() if value not in (None, False)}
        title, shown = Path(self.source.name).name, {"file": self.source.name, **shown}
        write_report(report, results, title=title, settings=shown)

    def facts(self) -> dict[str, Any]:
        """What the manifest says beside what the run is."""
        counts = {"rows": self.tally.counts["solutions"], "left_out": len(self.tally.refused)}
        names = {"prm": self.prm.name} | ({} if self.orm is None else {"orm": self.orm.name})
        about = {"input": self.source.manifest, "score_kind": self.prm.score_kind, **asdict(self.settings)}
        return {**about, **names, **counts}

    def results(self, *, keep_going: bool) -> Iterator[GradedSolution]:
        """Every graded solution, when it is in the part.

        Raises:
            InputError: a row that has no result, unless the run keeps going; there is none at all, and nothing is left behind.
        """
        for row, stored, result in resumed(
            self.part, self.rows, _key, self.graded, _graded_row, keep_going=keep_going
        ):
            self.progress.advance(fresh=result is not None)
            if row is None or isinstance(stored, InputError):
                self.tally.refused.append(str(stored))
                continue
            self.stream(stored)
            scored = result if isinstance(result, GradedSolution) else from_row(row.solution, stored)
            if self.on_result is not None:
                with self.progress.paused():
                    self.on_result(scored, row.where)
            if self.collect:
                self.records.append(scored)
            self.tally.add(scored, row)
            yield scored
        refused = self.tally.refused
        if not self.tally.counts["solutions"]:
            self.part.discard()
            raise InputError(
                f"nothing could be graded: left out {amount(len(refused), 'row')}, which is all:\n"
                + "\n".join(refused),
                where=self.source.name,
            )

    def graded(self, rows: Iterator[SolutionRow]) -> Iterator[GradedSolution | Refusal]:
        """Ask the models; a refusal comes in its place, and so with the row that it is about."""
        solutions = (row.solution for row in rows)
        return grade_stream(solutions, self.prm, self.settings, orm=self.orm, keep_going=True)


def _key(row: SolutionRow) -> str:
    return row_key(input_row(row.solution, row.row))


def _graded_row(row: SolutionRow, result: GradedSolution | Refusal) -> dict[str, Any]:
    """The graded row; `InputError` with the row's place where there is none."""
    try:
        if isinstance(result, Refusal):
            raise result.error
        return to_row(result, row.row)
    except InputError as error:
        raise error.in_row(row.where) from None


def _with_outcome_model(prm: PRM | Lazy[PRM], orm: str | None) -> tuple[PRM | Lazy[PRM], Lazy[PRM] | None]:
    """The PRM, and the outcome model, which is loaded with the same device and precision."""
    if orm is None:
        return prm, None
    if not isinstance(prm, Lazy):
        return prm, lazy_prm(orm, outcome=True)
    shared = read_by(orm, {name: prm.arguments[name] for name in SHARED if name in prm.arguments})
    return prm, lazy_prm(orm, outcome=True, **shared)


def _load(
    prm: PRM | Lazy[PRM],
    orm: Lazy[PRM] | None,
    cluster: Cluster | None,
    stack: ExitStack,
    expected: int | None,
) -> tuple[PRM, PRM | None]:
    """The PRM and the outcome model: of this process, or of a cluster's workers for about so many solutions."""
    if cluster is None or cluster.ray is None:
        return (prm.load() if isinstance(prm, Lazy) else prm, None if orm is None else orm.load())
    assert isinstance(prm, Lazy)
    arguments = {"prm": prm.name, "prm_arguments": json.dumps(prm.arguments)}
    if orm is not None:
        arguments |= {"orm": orm.name, "orm_arguments": json.dumps(orm.arguments)}
    workers = stack.enter_context(cluster.start(BUILD, arguments, most=min(expected or MOST, MOST)))
    verdicts = None if orm is None else SpreadPRM(workers, which="orm", expected=expected)
    return SpreadPRM(workers, expected=expected), verdicts


MOST = 1024
"""Workers on a cluster, where no setting says how many."""


def _check(
    source: RunInput,
    prm: PRM | Lazy[PRM],
    orm: Lazy[PRM] | None,
    outputs: Mapping[str, str | Path | None],
    aggregate: str | None,
    checks: str,
    split_by: str,
    marker: str | None,
    cluster: Cluster | None,
) -> None:
    """Everything that can be known to be wrong before a row is read or a model loaded."""
    if aggregate is not None:
        check_aggregate(aggregate, "probability")
    if checks != "auto":
        check_names(checks)
    check_way(split_by)
    if split_by != "agent":
        split("-", split_by, marker=marker)
    check_models(cluster, prm, orm)
    check_outputs(outputs, source.source)


def _summary(run: _GradingRun, split_by: str, written: list[str]) -> str:
    """What was graded, what it cost, what was left out, what was written."""
    tally, count, ledger = run.tally, run.tally.counts, run.prm.ledger
    lines = []
    if split_by == "auto" and tally.ways:
        ways = ", ".join(f"{number:,} by {way!r}" for way, number in tally.ways.most_common())
        lines.append(f"texts cut into steps: {ways}")
    elif split_by != "auto" and not tally.ways:
        lines.append(f"`split` {split_by} had nothing to cut: every row came with its steps")
    lines += [f"{amount(number, 'text')}: {note}" for note, number in tally.notes.most_common()]
    threshold, checked = run.settings.threshold, run.settings.checks != "none"
    causes = []
    if threshold is not None:
        by_score = f"{count['wrong'] - count['by_check']:,} by a score under {threshold:g}"
        causes.append(by_score if checked else f"a step under {threshold:g}")
    if checked:
        causes.append(f"{count['by_check']:,} by an exact check")
    under = f" ({', '.join(causes)})" if causes else ""
    verdicts = [f"{count['wrong']:,} with an error{under}", f"{count['right']:,} without"]
    if count["unknown"]:
        verdicts.append(f"{count['unknown']:,} where that is not known")
    unread = f" ({count['unread']:,} of them not read)" if count["unread"] else ""
    wrote = f"{ledger.tokens_written:,} written; " if ledger.tokens_written else ""
    rate = f"{ledger.solutions / max(run.progress.seconds, 1e-9):,.1f} solutions/s"
    # A server that writes is asked step by step, and may read the beginning of a text several times.
    hits = ledger.cache_hits
    shared = f"{hits:,} from shared prefixes" if hits >= 0 else f"{-hits:,} more than once"
    lines += [
        f"{amount(count['solutions'], 'solution')}, {amount(count['steps'], 'step')}{unread}: {', '.join(verdicts)}",
        f"{amount(ledger.tokens_in, 'token')} read, {ledger.tokens_computed:,} computed, {ledger.tokens_distinct:,} distinct, "
        f"{shared}; {wrote}{run.progress.seconds:,.1f} s, {rate}",
    ]
    if (
        misfit := threshold_misfit(count["wrong"] - count["by_check"], count["solutions"], threshold)
    ) is not None:
        lines.append(misfit)
    if run.part.reused:
        lines.append(f"continued after the {amount(run.part.reused, 'row')} of an interrupted run")
    if tally.refused:
        lines += [
            f"left out {amount(len(tally.refused), 'row')}:",
            *(f"  {error}" for error in tally.refused),
        ]
    if run.prm.name == "default":
        lines.append(NOTICE)
    if written:
        lines.append(f"wrote {' and '.join(written)}")
    return "\n".join(lines)
