"""`stepmark convert`: labelled solutions from one format to another, with what was lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from stepmark.cli.flags import ColumnsFlag, Flag, columns_of
from stepmark.cli.paths import FileOrDash, check_out, checked_input
from stepmark.errors import InputError, StepmarkError, UsageError
from stepmark.store import STDIO, Fingerprint, fingerprint, is_stream, open_rows

if TYPE_CHECKING:
    from stepmark.solutions.interchange.rows import Item


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions:
    """The settings of one conversion."""

    to: str
    """The format to write: stepmark-labels, solutions, prm800k, prm800k-flat, math-shepherd, trl, rlhflow, processbench,
    potato."""
    out: FileOrDash | None = None
    """The file to write, packed if it ends in .gz; "-" or left out for standard output."""
    from_: Annotated[str | None, Parameter(name="--from")] = None
    """The format of FILE: any of these, prmbench, openr, chat or inspect. Left out: told by the first row."""
    columns: ColumnsFlag = None
    """Which column of FILE is what, where the names differ: problem=question,solution=response (docs: files)."""
    judge: str | None = None
    """Whose judgements count, where a step has several: a judge's name, or the part before ":" ("human")."""
    kind: Literal["correctness", "value"] | None = None
    """Which judgements count. Left out: conclusions about correctness where a row has any, else values."""
    consensus: Literal["agree", "majority"] | None = None
    """What several judges say together; where they do not, the step is unjudged."""
    neutral: Literal["positive", "negative", "drop"] | None = None
    """What a neutral rating becomes where a format has only right and wrong; drop leaves the step unjudged."""
    hard: str | None = None
    """From shares of rollouts to hard labels: right above this number in [0, 1), or "any" for at least one success."""
    split: str = "auto"
    """How a solution that is one text is cut into steps (stepmark split)."""
    marker: str | None = None
    """The text that ends each step, for --split marker."""
    trials: int | None = None
    """Rollouts behind each share of an openr tree, which its files do not say."""
    items: str | None = None
    """The data file that Potato's annotators were shown: Potato's own files hold no text."""
    zero: Literal["neutral", "unjudged"] | None = None
    """What a reward of 0 means in Potato's per_step mode, where its file does not tell."""
    quality_control: Flag = False
    """Keep PRM800K's screening and quality-control questions, which every labeller was served."""
    keep_going: Flag = False
    """Leave out rows that are not what their format says, and count them."""


def convert_command(file: FileOrDash, /, *, options: ConvertOptions) -> int:
    """Convert labelled solutions from one format to another.

    What a format cannot hold is never silently turned into something else: a row that needs a decision stops the run and the
    message names the option that makes it; what is left out is counted, and listed on standard error at the end.

    Args:
        file: by its ending .csv, .tsv, .parquet, .json (a list, or one document), .eval (a log), or else JSON lines; packed if it
            ends in .gz; "-" for standard input.
        options: the flags.
    """
    from stepmark.solutions.interchange.conversion import convert, first_row, items_of_rows
    from stepmark.solutions.interchange.formats import detect, format_named
    from stepmark.solutions.interchange.rows import Losses, Reading, Writing

    format_named(options.to, to_write=True)
    writing = Writing(
        judge=options.judge,
        kind=options.kind,
        consensus=options.consensus,
        neutral=options.neutral,
        hard=_hard(options.hard),
    )
    reading = Reading(
        how=options.split,
        marker=options.marker,
        trials=options.trials,
        items=options.items,
        zero=options.zero,
        quality_control=options.quality_control,
    )
    if options.from_ is not None:
        format_named(options.from_)
    first, rows = first_row(checked_input(file), columns_of(options.columns))
    if options.out is not None:
        check_out(options.out, file, streams=True)
    source = options.from_ or detect(first)
    losses = Losses()
    known = fingerprint(file) if not is_stream(options.out) else None
    with closing(
        open_rows(options.out, _manifest(file, known, source, options), resumable=known is not None)
    ) as out:
        items = _hinted(items_of_rows(rows, source, reading, losses, keep_going=options.keep_going))
        try:
            for number, row in enumerate(convert(items, options.to, writing, losses)):
                if number < out.done:
                    continue  # made again only to count what is lost
                if isinstance(row, InputError):
                    out.refuse(row)
                else:
                    out.write(row)
            if not losses.written:
                raise InputError(
                    "no row could be written: " + "; ".join(losses.lines()[1:] or ["there was none"]),
                    where=file,
                )
        except StepmarkError:
            out.discard()  # what stops a conversion is not mended by running it again as it was
            raise
        out.finish({"losses": losses.facts()})
    print("\n".join([f"{source} -> {options.to}", *losses.lines()]), file=sys.stderr)
    return 0


def _hinted(items: Iterator[Item]) -> Iterator[Item]:
    """The same; what cannot be read says that it can be left out."""
    try:
        yield from items
    except InputError as error:
        error.add_note("--keep-going leaves out rows that are not what their format says, and counts them")
        raise


def _hard(word: str | None) -> float | Literal["any"] | None:
    if word is None:
        return None
    if word == "any":
        return "any"
    try:
        return float(word)
    except ValueError:
        raise UsageError(f"--hard {word}: expected a number from 0 to under 1, or any") from None


def _manifest(file: str, known: Fingerprint | None, source: str, options: ConvertOptions) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(options).items() if name not in ("out", "from_")}
    items = None if options.items is None else fingerprint(options.items)
    return {
        "command": "convert",
        "input": {"file": "stdin" if file == STDIO else file, **({} if known is None else asdict(known))},
        "from": source,
        "settings": settings,
        **({} if items is None else {"items": asdict(items)}),
    }
