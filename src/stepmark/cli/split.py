"""`stepmark split`: show how a text is cut into steps, and why so."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from stepmark.cli.paths import FileOrDash
from stepmark.errors import InputError, UsageError
from stepmark.records import Step
from stepmark.solutions.segmentation import Segmentation, check_way, split
from stepmark.solutions.segmentation import side_by_side as three_ways
from stepmark.solutions.traces import read_messages

# What would move the cursor or colour the terminal is shown as a picture of itself: text is data.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def split_command(
    file: FileOrDash,
    /,
    *,
    how: Annotated[str, Parameter(name="--split")] = "auto",
    marker: str | None = None,
    language: str | None = None,
    side_by_side: bool = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Cut one solution into steps, and say how and why.

    Args:
        file: a text file in UTF-8 that holds one solution; "-" reads standard input. With `--split agent`, a JSON
            file with chat messages: a list, or an object with "messages".
        how: auto, line, blank-line, numbered, sentence, marker, code, agent, whole, token.
        marker: the string that ends a step, for marker and auto.
        language: the language of code that does not name its own, for code and auto.
        side_by_side: show three granularities next to each other: the whole, the steps, the words.
        as_json: print one JSON object a step: text, start, lead, tail (and observation, for an agent's trace); with
            `--side-by-side` each also says its granularity.

    Raises:
        InputError: the file is not UTF-8, not what the way needs, or blank.
        UsageError: no such file, or a setting that cannot work.
    """
    check_way(how)
    if how == "agent":
        if side_by_side:
            raise UsageError("an agent's trace has one granularity, its turns; leave out --side-by-side")
        if marker is not None or language is not None:
            raise UsageError("an agent's trace is cut at its turns; leave out --marker and --language")
        shown = {"agent": _trace(file)}
    elif file.lower().endswith((".jsonl", ".jsonl.gz", ".json.gz")):
        raise UsageError(
            f"{file}: `stepmark split` reads one solution as plain text, not rows of them; "
            "`stepmark grade` reads rows and splits as it goes"
        )
    else:
        where = _name(file)
        text = _read(file)
        try:
            if side_by_side:
                shown = three_ways(text, how, marker=marker, language=language)
            else:
                shown = {"step": split(text, how, marker=marker, language=language)}
        except InputError as error:
            raise error.at(where) from None
    if as_json:
        for granularity, segmentation in shown.items():
            for row in _rows(segmentation):
                print(json.dumps({"granularity": granularity, **row} if side_by_side else row))
    elif side_by_side:
        _print_columns(shown)
    else:
        for segmentation in shown.values():
            _print(segmentation)


def _name(file: str) -> str:
    return "standard input" if file == "-" else file


def _read(file: str) -> str:
    """The whole text, line ends as they are; a byte order mark at its start is no part of it."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror or error}; expected a text file, or - for standard input"
        ) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"expected UTF-8, found byte 0x{data[error.start]:02x}; convert the file first",
            where=f"{_name(file)}:{line}",
        ) from None


def _trace(file: str) -> Segmentation:
    where = _name(file)
    try:
        data = json.loads(_read(file))
    except json.JSONDecodeError as error:
        raise InputError(
            f"expected chat messages as JSON, found something else ({error.msg})",
            where=f"{where}:{error.lineno}",
        ) from None
    messages: Any = data.get("messages") if isinstance(data, dict) else data
    _, segmentation = read_messages(messages, where=where, how="agent")
    return segmentation


def _rows(segmentation: Segmentation) -> Iterator[dict[str, Any]]:
    for step in segmentation:
        row = {"text": step.text, "start": step.start, "lead": step.lead, "tail": step.tail}
        if segmentation.how == "agent":
            row["observation"] = step.observation
        yield row


def _count(segmentation: Segmentation) -> str:
    return f"{len(segmentation)} step{'s' if len(segmentation) > 1 else ''}"


def _visible(text: str) -> str:
    return "\n".join(text.splitlines()).translate(_VISIBLE)


def _print(segmentation: Segmentation) -> None:
    print(f"{segmentation.how}: {_count(segmentation)} ({_visible(segmentation.why)})")
    width = len(str(len(segmentation)))
    for number, step in enumerate(segmentation, start=1):
        print()
        _print_under(f"{number:>{width}}  ", step)


def _print_under(label: str, step: Step) -> None:
    indent = " " * len(label)
    for position, line in enumerate(_visible(step.text).split("\n")):
        print(f"{label if position == 0 else indent}{line}".rstrip())
    if step.observation.strip():
        for line in _visible(step.observation.strip()).split("\n"):
            print(f"{indent}| {line}".rstrip())


def _print_columns(shown: dict[str, Segmentation]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=True, show_lines=False)
    cells = []
    for segmentation in shown.values():
        table.add_column(Text(f"{segmentation.how}: {_count(segmentation)}"), ratio=1, overflow="fold")
        separator = " · " if segmentation.how == "token" else "\n\n"
        numbered = segmentation.how not in ("token", "whole")
        texts = [_visible(text) for text in segmentation.texts]
        if numbered:
            texts = [f"{number}  {text}" for number, text in enumerate(texts, start=1)]
        cells.append(Text(separator.join(texts)))
    table.add_row(*cells)
    console = Console(highlight=False)
    console.print(table)
    step = shown["step"]
    console.print(Text(f"{step.how}: {_visible(step.why)}"))
