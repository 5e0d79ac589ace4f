"""The formats by name: who reads, who writes, and by which keys a file is recognised."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from stepmark.catalog import unknown_name
from stepmark.data.columns import Columns, columns_of
from stepmark.data.formats import chat, math_shepherd, openr, potato, prm800k, who_and_when
from stepmark.data.formats import inspect_ai as inspect_logs
from stepmark.data.formats import own as labels
from stepmark.data.formats import processbench as benchmarks
from stepmark.data.formats import trl as texts
from stepmark.data.formats.rows import (
    Item,
    LabelledRow,
    Losses,
    Reader,
    Reading,
    RowWriter,
    Writer,
    Writing,
    each,
)
from stepmark.data.reading import Row, Source, by_file, read_rows
from stepmark.data.solutions import is_solution, step_labels, ungraded
from stepmark.data.steps.thoughts import Reasoning
from stepmark.data.traces import TRACES, chat_rows, trace_format
from stepmark.errors import InputError, StepmarkError, UsageError
from stepmark.records import Refusal
from stepmark.settings import checked
from stepmark.store import Results, check_outputs, fingerprint, is_stream, open_rows, run_input


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format of files: how a row of it is recognised, read and written."""

    about: str
    """What it is, in one line."""
    keys: tuple[tuple[str, ...], ...]
    """A row is of this format when it has all keys of one of these sets."""
    read: Reader
    write: Writer | None = None
    """None for a format that is only read."""


def _format(about: str, *keys: tuple[str, ...], read: Reader, write: RowWriter | None = None) -> Format:
    return Format(about=about, keys=keys, read=read, write=None if write is None else each(write))


FORMATS: Mapping[str, Format] = {
    "stepmark-labels": _format("every judgement of every step; loses nothing", labels.KEYS, read=labels.read, write=labels.write),
    "solutions": _format("problems and steps without labels, as grade and label read them", ("problem", "steps"), ("problem", "solution"),
        read=texts.read_solutions, write=texts.write_solutions),
    "prm800k": Format(about="PRM800K's released records, with branches", keys=(prm800k.KEYS,), read=prm800k.read, write=prm800k.write),
    "prm800k-flat": _format("PRM800K, one row a rated completion", prm800k.FLAT_KEYS, read=prm800k.read_flat, write=prm800k.write_flat),
    "math-shepherd": _format("Math-Shepherd: input and label with ки, + and -", math_shepherd.KEYS,
        read=math_shepherd.read, write=math_shepherd.write),
    "trl": _format("TRL: prompt, completions, labels", texts.TRL_KEYS, ("problem", "steps", "labels"), read=texts.read_trl, write=texts.write_trl),
    "rlhflow": _format("RLHFlow: conversations of steps and + or -", math_shepherd.RLHFLOW_KEYS,
        read=math_shepherd.read_rlhflow, write=math_shepherd.write_rlhflow),
    "processbench": _format("ProcessBench: the first wrong step", benchmarks.PROCESSBENCH_KEYS,
        read=benchmarks.read_processbench, write=benchmarks.write_processbench),
    "prmbench": _format("PRMBench: every wrong step", benchmarks.PRMBENCH_KEYS, read=benchmarks.read_prmbench),
    "openr": _format("OmegaPRM trees of openr, nested or flat", openr.KEYS, read=openr.read),
    "potato": _format("Potato's user_state.json, annotations.jsonl or JSON lines export (with `items`)",
        potato.STATE_KEYS, potato.ANNOTATION_KEYS, potato.EXPORT_KEYS, read=potato.read, write=potato.write),
    "chat": _format("OpenAI chat messages; an assistant's turn is a step", ("messages",), read=texts.chat_reader("chat"), write=chat.write_chat),
    "inspect": _format("logs of inspect_ai: .json, or .eval", inspect_logs.LOG_KEYS, inspect_logs.SAMPLE_KEYS, read=inspect_logs.read),
    **{name: _format(trace.about, read=texts.chat_reader(name), write=trace.write) for name, trace in TRACES.items()},
    "who-and-when": _format("Who&When: conversations of agents with the decisive mistake", read=who_and_when.read, write=who_and_when.write),
}  # fmt: skip
"""Name: format. Those without a writer are only read."""


def detect(row: Row) -> str:
    """The format of a row, by its keys: of the formats whose keys it has, the one whose keys hold those of all others.

    A row of none is one of solutions where its columns have their common names (`question`, `response`, ...).

    Raises:
        InputError: none, or several; the message names them.
    """
    row = ungraded(row)
    trace = trace_format(row.data)
    if trace is not None:
        return trace
    have = set(row.data)
    matched = {
        name: max((set(keys) for keys in format.keys if have >= set(keys)), key=len)
        for name, format in FORMATS.items()
        if any(have >= set(keys) for keys in format.keys)
    }
    best = [name for name, keys in matched.items() if not any(keys < other for other in matched.values())]
    if len(best) == 1:
        return best[0]
    if best:
        raise InputError(
            f"this row may be {' or '.join(best)}, by its keys: name it with `from_format`", where=row.where
        )
    if is_solution(row.data):
        if columns_of(row.data, "messages"):
            return "chat"
        return "solutions" if step_labels(row.data) is None else "trl"
    if columns_of(row.data, "problem") and columns_of(row.data, "answer"):
        raise InputError(
            f"expected a solution, found a problem with its reference answer ({', '.join(map(repr, row.data))}): stepmark sample writes "
            "solutions of it",
            where=row.where,
        )
    known = "; ".join(
        f"{name} ({' or '.join(', '.join(keys) for keys in format.keys) or format.about})"
        for name, format in FORMATS.items()
    )
    raise InputError(
        f"a row of no known format: it has {', '.join(map(repr, row.data)) or 'no keys'}. Known: {known}",
        where=row.where,
    )


def format_named(name: str, *, to_write: bool = False) -> Format:
    """A format by its name; `UnknownNameError` for another, `UsageError` for one that is only read and is `to_write`."""
    format = FORMATS.get(name)
    if format is None:
        raise unknown_name("format", name, FORMATS)
    if to_write and format.write is None:
        writable = ", ".join(known for known, other in FORMATS.items() if other.write is not None)
        raise UsageError(f"{name} is read and not written; expected `to` one of {writable}")
    return format


_READING = Reading()
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
    consensus: Literal["agree", "majority"] | None = None,
    neutral: Literal["positive", "negative", "drop"] | None = None,
    hard: Annotated[float, Field(ge=0, lt=1)] | Literal["any"] | None = None,
    split: str = "auto",
    marker: str | None = None,
    reasoning: Reasoning = "keep",
    trials: Annotated[int, Field(ge=1)] | None = None,
    items: str | Path | None = None,
    zero: Literal["neutral", "unjudged"] | None = None,
    quality_control: bool = False,
    keep_going: bool = False,
) -> Results[dict[str, Any]]:
    """Convert labelled solutions from one format to another.

    What a format cannot hold is never silently turned into something else: a row that needs a decision stops the run, and the message
    names the setting that makes it. What is left out is counted in the summary and in the manifest.

    Args:
        source: a file or a folder of them (JSON lines, CSV, TSV, Parquet, a JSON list or document, .eval), dicts, records, a data set or a data frame.
        to: the format to write: stepmark-labels, solutions, prm800k, prm800k-flat, math-shepherd, trl, rlhflow, processbench, potato, who-and-when; of conversations chat, responses or otel.
        out: write the rows to this file, gzipped if its name ends in .gz; "-" for standard output.
        from_format: the format of the source: one of those, prmbench, openr, inspect, or a trace (sharegpt, swe-agent, mini-swe-agent, claude-code, codex, chat-calls, langsmith, langfuse). Default: recognised by the first row of each file.
        columns: names of columns, where they differ: problem=question,solution=response.
        judge: whose judgements count, where a step has several: a judge's name, or the part of it before ":" ("human").
        kind: which judgements count. Default: conclusions about correctness where a row has any, else values.
        consensus: how several judges decide together; where they do not agree, the step is unjudged.
        neutral: what a neutral rating becomes where a format has only right and wrong; drop leaves the step unjudged.
        hard: make hard labels of shares of rollouts: right above this number in [0, 1), or "any" for at least one success.
        split: how a solution that is one text is split into steps: auto, line, blank-line, numbered, sentence, marker, code, thought, whole, token, or limit:N (words).
        marker: the text that ends each step, for `split` marker.
        reasoning: what becomes of a thought (<think>, reasoning_content): keep it as steps, grade it only, or drop it.
        trials: rollouts behind each share of an openr tree, which its files do not say.
        items: the data file that Potato's annotators were shown: Potato's own files hold no text.
        zero: what a reward of 0 means in Potato's per_step mode, where its file does not say.
        quality_control: keep PRM800K's screening and quality-control questions, which every labeller was served.
        keep_going: leave out rows that are not what their format says, and count them.

    Returns:
        The rows of the new format, as dicts. With `out` they are read from that file when they are asked for. `summary` and
        `manifest["losses"]` say what was left out or changed.

    Raises:
        InputError: with the place: a row that is not of its format (unless `keep_going`), one that needs a setting which is not given;
            nothing could be written.
        UsageError: an unknown format, one that is only read, or an output that cannot be written.
    """
    format_named(to, to_write=True)
    if from_format is not None:
        format_named(from_format)
    check_outputs({"out": out}, source)
    reading = Reading(
        how=split,
        marker=marker,
        reasoning=reasoning,
        trials=trials,
        items=None if items is None else str(items),
        zero=zero,
        quality_control=quality_control,
    )
    writing = Writing(judge=judge, kind=kind, consensus=consensus, neutral=neutral, hard=hard)
    given = run_input(source, hashed=out is not None and not is_stream(out))
    rows = read_rows(given.source, columns=columns)
    first = next(rows)
    rows, name = chain([first], rows), from_format or detect(first)
    known = None if items is None else fingerprint(items)
    manifest = {
        "command": "convert",
        "input": given.manifest,
        "from": name,
        "to": to,
        "settings": {
            **asdict(writing),
            **{"split" if key == "how" else key: value for key, value in asdict(reading).items()},
            "columns": columns,
            "keep_going": keep_going,
        },
        **({} if known is None else {"items": asdict(known)}),
    }
    losses = Losses()
    made: list[dict[str, Any]] = []
    refused: list[str] = []
    writer = open_rows(os.devnull if out is None else out, manifest, resumable=given.manifest is not None)
    with closing(writer):
        labelled = _hinted(items_of_rows(rows, from_format, reading, losses, keep_going=keep_going))
        try:
            for number, row in enumerate(write_labelled(labelled, to, writing, losses)):
                fresh = (
                    number >= writer.done
                )  # what an interrupted run wrote is made again only to count what is lost
                if isinstance(row, InputError):
                    refused.append(str(row))
                    if fresh:
                        writer.refuse(row)
                elif fresh:
                    writer.write(row)
                if out is None and not isinstance(row, InputError):
                    made.append(row)
            if not losses.written:
                raise InputError(
                    "no row could be written: " + "; ".join(losses.lines()[1:] or ["there was none"]),
                    where=given.name,
                )
        except StepmarkError:
            writer.discard()  # the same call would stop at the same row
            raise
        writer.finish({"losses": losses.facts()})
    written = Path(out) if out is not None and not is_stream(out) else None
    return Results(
        (lambda: iter(made)) if written is None else lambda: (row.data for row in read_rows(written)),
        losses.written,
        out=written,
        refused=refused,
        manifest={**manifest, "losses": losses.facts()},
        summary="\n".join(
            [
                f"{', '.join(losses.formats)} -> {to}",
                *losses.lines(),
                *([] if written is None else [f"wrote {out}"]),
            ]
        ),
    )


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
    settings: Reading = _READING,
    losses: Losses | None = None,
) -> Iterator[LabelledRow]:
    """Read labelled solutions of any format as a stream.

    Args:
        file: as `store.read_rows`.
        columns: as there.
        format: a key of `FORMATS`; None: recognised by the first row of each file.
        settings: how to read.
        losses: counts what is left out.

    Raises:
        InputError: with the place: a row that is not of the format, a format that is not recognised.
        UnknownNameError: no such format.
    """
    for item in items_of_rows(read_rows(file, columns=columns), format, settings, losses or Losses()):
        assert isinstance(item, LabelledRow)  # without keep_going an error is raised
        yield item


def items_of_rows(
    rows: Iterable[Row], format: str | None, settings: Reading, losses: Losses, *, keep_going: bool = False
) -> Iterator[Item]:
    """The labelled solutions of rows, of one format a file (None: that of its first row); with `keep_going`, a refusal in the place of a
    row that is not of it."""
    for first, own in by_file(rows):
        name = format or detect(first)
        losses.formats.setdefault(name)
        yield from _items(own, name, settings, losses, keep_going)


def _items(
    rows: Iterable[Row], format: str, settings: Reading, losses: Losses, keep_going: bool
) -> Iterator[Item]:
    read, rows = format_named(format).read, map(ungraded, rows)
    for row in chat_rows(rows, keep_going=keep_going) if format in TRACES else rows:
        if isinstance(row, Refusal):
            losses.drop("the row is not what its format says (`keep_going`)", row.error.where or "")
            yield row
            continue
        try:
            for solution in read(row, settings, losses):
                losses.read += 1
                yield solution
        except InputError as error:
            if not keep_going:
                raise error.at(row.where) from None
            losses.drop("the row is not what its format says (`keep_going`)", row.where)
            yield Refusal(solution=None, error=error.at(row.where))


def write_labelled(
    items: Iterable[Item], to: str, settings: Writing = _WRITING, losses: Losses | None = None
) -> Iterator[dict[str, Any] | InputError]:
    """Rows of a format, and an error in the place of each that is left out.

    Raises:
        InputError: with the place: a row that needs a setting (`Writing`) which is not given.
        UsageError: the format is unknown, or only read.
    """
    write = format_named(to, to_write=True).write
    assert write is not None
    counted = losses or Losses()
    for row in write(items, settings, counted):
        if not isinstance(row, InputError):
            counted.written += 1
        yield row
