"""The formats by name: who reads, who writes, and by which keys a file is recognised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from stepmark.data.columns import Columns, columns_of
from stepmark.data.formats import formats, own
from stepmark.data.formats.rows import (
    Counts,
    Format,
    Item,
    LabelledRow,
    NotRepresentableError,
    ReaderSettings,
    Writing,
)
from stepmark.data.formats.solutions import reader
from stepmark.data.reading import Row, Source, by_file, read_rows
from stepmark.data.solutions import graded_data, ungraded
from stepmark.data.steps.thoughts import Reasoning
from stepmark.data.trace_scores import SCORES
from stepmark.data.traces import TRACES, chat_rows, trace_format
from stepmark.data.traces.base import Trace
from stepmark.errors import InputError, UsageError
from stepmark.records import DEFAULT_AXIS, Refusal
from stepmark.registry import unknown_name
from stepmark.settings import checked
from stepmark.store import (
    Results,
    atomic_rows,
    check_outputs,
    fingerprint,
    is_stream,
    run_input,
    write_manifest,
)


def _of_trace(trace: Trace) -> Format:
    """A format of traces, whose rows are conversations when they come here (`chat_rows`)."""
    conversations = reader(trace.name)

    def read(row: Row, settings: ReaderSettings, counts: Counts) -> Iterator[LabelledRow]:
        for conversation in conversations(row, settings, counts):
            yield conversation if trace.label is None else trace.label(row, conversation)

    return Format(
        name=trace.name,
        about=trace.about,
        sniff=trace.sniff,
        read=read,
        write=trace.write,
    )


FORMATS: Mapping[str, Format] = {**formats(), **{name: _of_trace(trace) for name, trace in TRACES.items()}}
"""Name: format. Those without a writer are only read; `SCORES` has those that are only written."""


def detect(row: Row) -> str:
    """The format of a row, by its keys. A row of none is one of solutions where its columns have their common names (`question`, `response`, ...).

    Raises:
        InputError: none, or several; the message names them.
    """
    row = ungraded(row)
    trace = trace_format(row.data)
    if trace is not None:
        return trace
    matched = [name for name, format in formats().items() if format.sniff(row.data)]
    wider = {"solutions", *(other for name in matched for other in FORMATS[name].over)}
    best = [name for name in matched if name not in wider] or matched
    if len(best) == 1:
        return best[0]
    if best:
        raise InputError(
            f"this row may be {' or '.join(best)}, by its keys: name it with `from_format`", where=row.where
        )
    if columns_of(row.data, "problem") and columns_of(row.data, "answer"):
        raise InputError(
            f"expected a solution, found a problem with its reference answer ({', '.join(map(repr, row.data))}): stepmark sample writes "
            "solutions of it. Where a column holds the solution, say so with `columns` (solution=COLUMN)",
            where=row.where,
        )
    known = "; ".join(f"{name} ({format.about})" for name, format in FORMATS.items())
    raise InputError(
        f"a row of no known format: it has {', '.join(map(repr, row.data)) or 'no keys'}. Say what its columns hold with `columns` "
        f"(problem=COLUMN,solution=COLUMN). Known: {known}",
        where=row.where,
    )


def format_named(name: str, *, to_write: bool = False) -> Format:
    """A format by its name; `UnknownNameError` for another, `UsageError` for one that is only read and is `to_write`."""
    known = {**FORMATS, **SCORES} if to_write else FORMATS
    format = known.get(name)
    if format is None:
        raise unknown_name("format", name, known)
    if to_write and format.write is None:
        writable = ", ".join(name for name, other in known.items() if other.write is not None)
        raise UsageError(f"{name} is read and not written; expected `to` one of {writable}")
    return format


_READING = ReaderSettings()
_WRITING = Writing()


@checked
def convert(
    source: Source,
    to: str,
    *,
    out: str | Path | None = None,
    from_format: str | None = None,
    columns: Mapping[str, str] | None = None,
    judge: str | None = None,
    kind: Literal["correctness", "value"] | None = None,
    axis: str = DEFAULT_AXIS,
    consensus: Literal["agree", "majority"] | None = None,
    neutral: Literal["positive", "negative", "drop"] | None = None,
    hard: Annotated[float, Field(ge=0, lt=1)] | Literal["any"] | None = None,
    split: str = "auto",
    marker: str | None = None,
    reasoning: Reasoning = "keep",
    items: str | Path | None = None,
    zero: Literal["neutral", "unjudged"] | None = None,
    quality_control: bool = False,
    keep_going: bool = False,
) -> Results[dict[str, Any]]:
    """Convert labelled solutions from one format to another.

    What a format cannot hold is never silently turned into something else: a row that needs a decision stops the run, and the message
    names the setting that makes it. A format has no place for some fields (docs: convert); rows that are left out are counted, and fields of published
    rows that are not known.

    Args:
        source: a file or a folder of them (JSON lines, CSV, TSV, Parquet, a JSON list or document, .eval), dicts, records, a data set or a data frame.
        to: the format to write: stepmark-labels, prm800k, math-shepherd, trl, rlhflow, processbench or who-and-when; of conversations chat; of graded traces langfuse-scores, langsmith-feedback or phoenix-annotations.
        out: write the rows to this file, gzipped if its name ends in .gz; "-" for standard output.
        from_format: the format of the source: one of those, prm800k-flat, potato, solutions, prmbench, openrlhf, inspect, or a trace (otel, messages, sharegpt, chat-calls, responses, swe-agent, mini-swe-agent, openhands, claude-code, codex, gemini-cli, langsmith, langfuse, who-and-when). Default: recognised by the first row of each file.
        columns: names of columns, where they differ: problem=question,solution=response.
        judge: whose judgements count, where a step has several: a judge's name, or the part of it before ":" ("human").
        kind: which judgements count. Default: conclusions about correctness where a row has any, else values.
        axis: which axis is written, where a format holds one label a step: the name of a criterion. Default: whether the step is right.
        consensus: how several judges decide together; where they do not agree, the step is unjudged.
        neutral: what a neutral rating becomes where a format has only right and wrong; drop leaves the step unjudged.
        hard: make hard labels of shares of rollouts: right above this number in [0, 1), or "any" for at least one success.
        split: how a solution that is one text is split into steps: auto, line, blank-line, numbered, sentence, marker, code, thought, whole, token, or limit:N (words).
        marker: the text that ends each step, for `split` marker.
        reasoning: what becomes of a thought (<think>, reasoning_content): keep it as steps, grade it only, or drop it.
        items: the data file that Potato's annotators were shown: Potato's own files hold no text.
        zero: what a 0 means in Potato's per_step mode, or in TRL's labels of -1, 0 and 1, where the file does not say.
        quality_control: keep PRM800K's screening and quality-control questions, which every labeller was served.
        keep_going: leave out rows that are not what their format says, and count them.

    Returns:
        The rows of the new format, as dicts. With `out` they are read from that file when they are asked for. `summary` and
        `manifest["counts"]` say what was left out.

    Raises:
        InputError: with the place: a row that is not of its format (unless `keep_going`), one that needs a setting which is not given;
            nothing could be written.
        UsageError: an unknown format, one that is only read, or an output that cannot be written.
    """
    format_named(to, to_write=True)
    if from_format is not None:
        format_named(from_format)
    check_outputs({"out": out}, source)
    reading = ReaderSettings(
        how=split,
        marker=marker,
        reasoning=reasoning,
        items=None if items is None else str(items),
        zero=zero,
        quality_control=quality_control,
    )
    writing = Writing(judge=judge, kind=kind, axis=axis, consensus=consensus, neutral=neutral, hard=hard)
    run = run_input(source, hashed=out is not None and not is_stream(out))
    rows = read_rows(run.source, columns=columns)
    first = next(rows)
    rows, name = chain([first], rows), from_format or detect(first)
    digest = None if items is None else fingerprint(items)
    manifest = {
        "command": "convert",
        "input": run.manifest,
        "from": name,
        "to": to,
        "settings": {
            **asdict(writing),
            **{"split" if key == "how" else key: value for key, value in asdict(reading).items()},
            "columns": columns,
            "keep_going": keep_going,
        },
        **({} if digest is None else {"items": asdict(digest)}),
    }
    counts = Counts()
    made: list[dict[str, Any]] = []
    refused: list[str] = []
    with atomic_rows(out) as write:
        labelled = _hinted(items_of_rows(rows, from_format, reading, counts, keep_going=keep_going))
        for row in write_labelled(labelled, to, writing, counts):
            if isinstance(row, InputError):
                refused.append(str(row))
                continue
            write(row)
            if out is None:
                made.append(row)
        if not counts.written:
            raise InputError(
                "no row could be written: " + "; ".join(counts.lines()[1:] or ["there was none"]),
                where=run.name,
            )
    facts = {"counts": counts.facts(), "rows": counts.written, "left_out": len(refused)}
    write_manifest(out, {**manifest, **facts})
    written = Path(out) if out is not None and not is_stream(out) else None
    return Results(
        (lambda: iter(made)) if written is None else lambda: (row.data for row in read_rows(written)),
        counts.written,
        out=written,
        refused=refused,
        manifest={**manifest, "counts": counts.facts()},
        summary="\n".join(
            [
                f"{', '.join(counts.formats)} -> {to}",
                *counts.lines(),
                *([] if written is None else [f"wrote {out}"]),
            ]
        ),
    )


def _on_axis(row: LabelledRow, axis: str) -> LabelledRow:
    """The same with one axis.

    Raises:
        InputError: it is judged on others alone.
    """
    chosen = row.on_axis(axis)
    if not chosen.labelled.axes and row.labelled.axes:
        raise InputError(
            f"expected judgements on the axis {axis!r}, found {', '.join(row.labelled.axes)}: choose one with `axis`",
            where=row.where,
        )
    return chosen


def _hinted(items: Iterator[Item]) -> Iterator[Item]:
    """The same; an error of a row that cannot be read names the setting that leaves it out."""
    try:
        yield from items
    except InputError as error:
        error.add_note("with `keep_going`, rows that are not what their format says are left out and counted")
        raise


def read_labelled(
    file: Source,
    *,
    columns: Columns | None = None,
    format: str | None = None,
    settings: ReaderSettings = _READING,
    counts: Counts | None = None,
) -> Iterator[LabelledRow]:
    """Read labelled solutions of any format as a stream.

    Args:
        file: as `store.read_rows`.
        columns: as there.
        format: a key of `FORMATS`; None: recognised by the first row of each file.
        settings: how to read.
        counts: counts what is left out.

    Raises:
        InputError: with the place: a row that is not of the format, a format that is not recognised.
        UnknownNameError: no such format.
    """
    for item in items_of_rows(read_rows(file, columns=columns), format, settings, counts or Counts()):
        assert isinstance(item, LabelledRow)  # without keep_going an error is raised
        yield item


def items_of_rows(
    rows: Iterable[Row],
    format: str | None,
    settings: ReaderSettings,
    counts: Counts,
    *,
    keep_going: bool = False,
) -> Iterator[Item]:
    """The labelled solutions of rows, of one format a file (None: that of its first row); with `keep_going`, a refusal in the place of a
    row that is not of it."""
    for first, of_file in by_file(rows):
        name = format or detect(first)
        counts.formats.setdefault(name)
        counts.zeros = {}
        for row in chat_rows(of_file, keep_going=keep_going) if name in TRACES else of_file:
            try:
                if isinstance(row, Refusal):
                    raise row.error
                graded = graded_data(row)
                for solution in format_named(name).read(ungraded(row), settings, counts):
                    counts.read += 1
                    yield solution if graded is None else replace(solution, graded=graded)
            except InputError as error:
                refusal = (
                    row if isinstance(row, Refusal) else Refusal(solution=None, error=error.at(row.where))
                )
                if not keep_going:
                    raise refusal.error from None
                counts.drop("the row is not what its format says", refusal.error.where or "")
                yield refusal


def write_labelled(
    items: Iterable[Item], to: str, settings: Writing = _WRITING, counts: Counts | None = None
) -> Iterator[dict[str, Any] | InputError]:
    """Rows of a format, and an error in the place of each that is left out.

    Raises:
        InputError: with the place: a row that needs a setting (`Writing`) which is not given.
        UsageError: the format is unknown, or only read.
    """
    write = format_named(to, to_write=True).write
    assert write is not None
    counted = counts or Counts()
    for item in items:
        if isinstance(item, Refusal):
            yield item.error
            continue
        try:
            for row in write(item if to == own.NAME else _on_axis(item, settings.axis), settings):
                counted.written += 1
                yield row
        except NotRepresentableError as error:
            counted.drop(error.message, item.where)
            yield error.at(item.where)
