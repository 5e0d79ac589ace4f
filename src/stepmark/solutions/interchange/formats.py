"""The formats by name: who reads, who writes, and by which keys a file is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepmark.catalog import unknown_name
from stepmark.errors import InputError, UsageError
from stepmark.solutions.formats import is_solution, step_labels
from stepmark.solutions.interchange import (
    benchmarks,
    inspect_logs,
    labels,
    math_shepherd,
    openr,
    potato,
    prm800k_flat,
    prm800k_raw,
    prm800k_records,
    rlhflow,
    texts,
    trl,
)
from stepmark.solutions.interchange.rows import Reader, Writer, each
from stepmark.store import Row
from stepmark.store.columns import columns_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format of files."""

    about: str
    """What it is, in one line."""
    keys: tuple[tuple[str, ...], ...]
    """A row is of this format when it has all keys of one of these sets."""
    read: Reader
    write: Writer | None = None
    """None for a format that is only read."""


FORMATS: Mapping[str, Format] = {
    "stepmark-labels": Format(
        about="every judgement of every step; loses nothing",
        keys=(labels.KEYS,),
        read=labels.read,
        write=each(labels.write),
    ),
    "solutions": Format(
        about="problems and steps without labels, as grade and label read them",
        keys=(("problem", "steps"), ("problem", "solution")),
        read=texts.read_solutions,
        write=each(texts.write_solutions),
    ),
    "prm800k": Format(
        about="PRM800K's released records, with branches",
        keys=(prm800k_raw.KEYS,),
        read=prm800k_raw.read,
        write=prm800k_records.write,
    ),
    "prm800k-flat": Format(
        about="PRM800K, one row a rated completion",
        keys=(prm800k_flat.KEYS,),
        read=prm800k_flat.read,
        write=each(prm800k_flat.write),
    ),
    "math-shepherd": Format(
        about="Math-Shepherd: input and label with ки, + and -",
        keys=(math_shepherd.KEYS,),
        read=math_shepherd.read,
        write=each(math_shepherd.write),
    ),
    "trl": Format(
        about="TRL: prompt, completions, labels",
        keys=(trl.KEYS, ("problem", "steps", "labels")),
        read=trl.read,
        write=each(trl.write),
    ),
    "rlhflow": Format(
        about="RLHFlow: conversations of steps and + or -",
        keys=(rlhflow.KEYS,),
        read=rlhflow.read,
        write=each(rlhflow.write),
    ),
    "processbench": Format(
        about="ProcessBench: the first wrong step",
        keys=(benchmarks.PROCESSBENCH_KEYS,),
        read=benchmarks.read_processbench,
        write=each(benchmarks.write_processbench),
    ),
    "prmbench": Format(
        about="PRMBench: every wrong step",
        keys=(benchmarks.PRMBENCH_KEYS,),
        read=benchmarks.read_prmbench,
    ),
    "openr": Format(
        about="OmegaPRM trees of openr, nested or flat",
        keys=(openr.KEYS,),
        read=openr.read,
    ),
    "potato": Format(
        about="Potato's user_state.json, annotations.jsonl or JSON lines export (with `items`)",
        keys=(potato.STATE_KEYS, potato.ANNOTATION_KEYS, potato.EXPORT_KEYS),
        read=potato.read,
        write=each(potato.write),
    ),
    "chat": Format(
        about="OpenAI chat messages; an assistant's turn is a step",
        keys=(("messages",),),
        read=texts.read_chat,
    ),
    "inspect": Format(
        about="logs of inspect_ai: .json, or .eval",
        keys=(inspect_logs.LOG_KEYS, inspect_logs.SAMPLE_KEYS),
        read=inspect_logs.read,
    ),
}
"""Name: format. Those without a writer are only read."""


def detect(row: Row) -> str:
    """The format of a row, by its keys: of the formats whose keys it has, the one whose keys hold those of all others.

    A row of none is one of solutions where its columns have their common names (`question`, `response`, ...).

    Raises:
        InputError: none, or several of which no one holds the others; the message names them.
    """
    have = set(row.data)
    found = {
        name: max((set(keys) for keys in format.keys if have >= set(keys)), key=len)
        for name, format in FORMATS.items()
        if any(have >= set(keys) for keys in format.keys)
    }
    best = [name for name, keys in found.items() if not any(keys < other for other in found.values())]
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
    known = "; ".join(
        f"{name} ({' or '.join(', '.join(keys) for keys in format.keys)})" for name, format in FORMATS.items()
    )
    raise InputError(
        f"a row of no known format: it has {', '.join(map(repr, row.data)) or 'no keys'}. Known: {known}",
        where=row.where,
    )


def format_named(name: str, *, to_write: bool = False) -> Format:
    """A format by its name.

    Raises:
        UnknownNameError: there is none; the message names the nearest.
        UsageError: it is only read, and `to_write` is set.
    """
    format = FORMATS.get(name)
    if format is None:
        raise unknown_name("format", name, FORMATS)
    if to_write and format.write is None:
        writable = ", ".join(known for known, other in FORMATS.items() if other.write is not None)
        raise UsageError(f"{name} is read and not written; expected `to` one of {writable}")
    return format
