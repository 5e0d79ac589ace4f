"""One run of `stepmark grade`: rows through the models to the output, counted on the way."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepmark.cli.progress import Progress
from stepmark.errors import InputError, UsageError
from stepmark.records import Refusal, ScoredSolution, Solution
from stepmark.store import STDIO, RowWriter

if TYPE_CHECKING:
    from stepmark.cli.grade import GradeOptions
    from stepmark.models.prm import PRM
    from stepmark.scoring.grade import Grade
    from stepmark.solutions.formats import SolutionRow


@dataclass(kw_only=True, slots=True)
class Tally:
    """What the summary counts."""

    solutions: int = 0
    steps: int = 0
    unread: int = 0
    wrong: int = 0
    right: int = 0
    unknown: int = 0
    refused: list[str] = field(default_factory=list)
    ways: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def read(self, row: SolutionRow) -> None:
        """Count how a row's text was cut."""
        if row.solution.split is not None:
            self.ways[row.solution.split] += 1
            # What a way had to say of a text stands after the reason for it.
            note = (row.why or "").partition("; ")[2]
            self.notes.update([note] if note else [])

    def graded(self, scored: ScoredSolution) -> None:
        """Count a graded solution."""
        self.solutions += 1
        self.steps += len(scored.steps.scores)
        self.unread += scored.steps.scores.count(None)
        self.unknown += scored.first_error is None
        self.right += scored.first_error == -1
        self.wrong += scored.first_error is not None and scored.first_error >= 0


@dataclass(kw_only=True, slots=True)
class Run:
    """The rows of one file on their way through the models to the output."""

    file: str
    rows: Iterator[SolutionRow | Refusal]
    out: RowWriter
    prm: PRM
    orm: PRM | None
    settings: Grade
    options: GradeOptions
    show: int
    """How many graded solutions to print."""
    progress: Progress
    tally: Tally = field(default_factory=Tally)

    def all(self) -> None:
        """Grade every row, write the report, finish the output: last, so that a run that is killed before has its part to go on from."""
        if self.options.report is None:
            for _ in self.results():
                pass
        else:
            from stepmark.scoring.report import write_report

            settings = {
                name: str(value) for name, value in asdict(self.options).items() if value not in (None, False)
            }
            write_report(
                self.options.report,
                self.results(),
                title=Path(self.file).name,
                settings={"file": self.file, **settings},
            )
        facts = {"prm": self.prm.name, "score_kind": self.prm.score_kind, **asdict(self.settings)}
        self.out.finish(facts | ({"orm": self.orm.name} if self.orm else {}))

    def results(self) -> Iterator[ScoredSolution]:
        """Every graded solution, as it is written to the part.

        Raises:
            InputError: there is none, and nothing is left behind.
        """
        yield from self.earlier()
        yield from self.fresh()
        if self.tally.solutions == 0:
            self.out.discard()
            refused = self.tally.refused
            raise InputError(
                f"nothing could be graded: all {len(refused)} rows were left out:\n" + "\n".join(refused),
                where=self.file,
            )

    def earlier(self) -> Iterator[ScoredSolution]:
        """What an interrupted run did already."""
        from stepmark.scoring.grade import from_row

        for result, row in zip(self.out.earlier(), self.rows, strict=False):
            if isinstance(result, InputError):
                self.leave_out(result, recorded=True)
            elif isinstance(row, Refusal):
                raise UsageError("the unfinished output does not fit the input; delete it to start again")
            else:
                self.tally.read(row)
                yield self.shown(from_row(row.solution, result), row)

    def fresh(self) -> Iterator[ScoredSolution]:
        """What is left to do."""
        from stepmark.scoring.grade import grade, to_row

        waiting: deque[SolutionRow | Refusal] = deque()

        def solutions() -> Iterator[Solution]:
            for row in self.rows:
                waiting.append(row)
                if not isinstance(row, Refusal):
                    yield row.solution

        # Always keep_going: a refusal then comes with the row that it is about, and so with its line.
        for result in grade(solutions(), self.prm, self.settings, orm=self.orm, keep_going=True):
            self.progress.advance()
            while isinstance(row := waiting.popleft(), Refusal):
                self.leave_out(row.error)
                self.progress.advance()
            try:
                if isinstance(result, Refusal):
                    raise result.error
                graded = to_row(result, row.row)
            except InputError as error:
                self.leave_out(error.in_row(row.where))
                continue
            self.out.write(graded)
            self.tally.read(row)
            yield self.shown(result, row)
        for rest in waiting:
            if isinstance(rest, Refusal):
                self.leave_out(rest.error)

    def leave_out(self, error: InputError, *, recorded: bool = False) -> None:
        """Note a row that has no result, or stop because of it.

        Raises:
            InputError: that error, unless the run keeps going.
        """
        if not self.options.keep_going:
            raise error
        self.tally.refused.append(str(error))
        if not recorded:
            self.out.refuse(error)

    def shown(self, scored: ScoredSolution, row: SolutionRow) -> ScoredSolution:
        """The same, counted, and printed if it is one of the first."""
        if self.tally.solutions < self.show:
            with self.progress.paused():
                _print_solution(scored, row.where)
        self.tally.graded(scored)
        return scored


def _print_solution(scored: ScoredSolution, where: str) -> None:
    from rich.console import Console

    from stepmark.show.terminal import solution_lines
    from stepmark.show.text import number

    outcome = "not read" if scored.outcome is None else number(scored.outcome)
    lines = solution_lines(
        scored.solution.problem.text,
        scored.solution.texts,
        scored.steps.scores,
        kind=scored.steps.kind,
        first_error=scored.first_error,
        headline=f"{scored.aggregate} {'unknown' if scored.score is None else number(scored.score)}",
        threshold=scored.threshold,
        outcome=None if scored.outcome_model is None else f"outcome {outcome}",
        title=scored.solution.id or where,
    )
    console = Console()
    console.print(lines)
    console.print()


def summary(run: Run) -> str:
    """What was graded, what it cost, what was left out, what was written."""
    tally, options = run.tally, run.options
    lines = []
    if options.split == "auto" and tally.ways:
        ways = ", ".join(f"{count:,} by {way!r}" for way, count in tally.ways.most_common())
        lines.append(f"texts cut into steps: {ways}")
    elif options.split != "auto" and not tally.ways:
        lines.append(f"--split {options.split} had nothing to cut: every row came with its steps")
    lines += [f"{count:,} texts: {note}" for note, count in tally.notes.most_common()]
    under = "" if run.settings.threshold is None else f" (a step under {run.settings.threshold:g})"
    verdicts = [f"{tally.wrong:,} with an error{under}", f"{tally.right:,} without"]
    if tally.unknown:
        verdicts.append(f"{tally.unknown:,} where that is not known")
    unread = f" ({tally.unread:,} of them not read)" if tally.unread else ""
    lines.append(f"{tally.solutions:,} solutions, {tally.steps:,} steps{unread}: {', '.join(verdicts)}")
    ledger = run.prm.ledger
    wrote = f"{ledger.tokens_written:,} written; " if ledger.tokens_written else ""
    rate = f"{ledger.solutions / max(run.progress.seconds, 1e-9):,.1f} solutions/s"
    lines.append(
        f"{ledger.tokens_in:,} tokens read, {ledger.tokens_computed:,} computed, {ledger.tokens_distinct:,} distinct, "
        f"{ledger.cache_hits:,} from shared prefixes; {wrote}{run.progress.seconds:,.1f} s, {rate}"
    )
    if run.out.done:
        lines.append(f"continued after the {run.out.done:,} rows of an interrupted run")
    if tally.refused:
        lines += [f"left out {len(tally.refused):,} rows:", *(f"  {error}" for error in tally.refused)]
    written = [path for path in (options.out, options.report) if path not in (None, STDIO)]
    if written:
        lines.append(f"wrote {' and '.join(map(str, written))}")
    return "\n".join(lines)
