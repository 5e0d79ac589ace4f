"""`stepmark split`: show how a text is split into steps, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from stepmark.cli import options as opt
from stepmark.data.conversations import read_messages
from stepmark.data.reading import STDIO
from stepmark.data.steps.splitting import Segmentation, check_way
from stepmark.data.steps.splitting import split as split_text
from stepmark.data.steps.thoughts import Reasoning
from stepmark.errors import InputError, UsageError
from stepmark.records import Step
from stepmark.words import amount

# What would move the cursor or colour the terminal is shown as a picture of itself: text is data.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def split_command(
    file: Annotated[opt.FileOrDash, Parameter(help='a text file with one solution; "-" for standard input')],
    /,
    *,
    split: opt.Split = "auto",
    marker: Annotated[str | None, opt.in_common("--marker")] = None,
    language: Annotated[str | None, opt.in_common("--language")] = None,
    reasoning: opt.Reasoning = "keep",
    as_json: Annotated[bool, opt.in_common("--json")] = False,
) -> int:
    """Cut solutions into steps.

    Args:
        marker: the text that ends each step, for split marker and auto.
        language: the language of code that does not name its own, for split code and auto.
        as_json: print one JSON object a step: text, start, lead, tail (and observation, for an agent's trace).
    """
    segmentation = _segmentation(file, split, marker, language, reasoning)
    if as_json:
        for row in _rows(segmentation):
            print(json.dumps(row))
    else:
        _print(segmentation)
    return 0


def _segmentation(
    file: str, split: str, marker: str | None, language: str | None, reasoning: Reasoning
) -> Segmentation:
    """The steps of the one solution in a text file; with `split` agent, of the chat messages in a JSON file.

    Raises:
        InputError: the file is not UTF-8, not what the way needs, or blank.
        UsageError: no such file, or a setting that cannot work.
    """
    check_way(split)
    if split == "agent" and (marker or language):
        setting = "marker" if marker else "language"
        raise UsageError(f"an agent's trace is split at its turns: leave out `{setting}`")
    if str(file).lower().endswith((".jsonl", ".jsonl.gz", ".json.gz")):
        raise UsageError(
            f"{file}: expected one solution as plain text, found a file of rows; `stepmark grade` reads rows and splits as it goes"
        )
    where = "standard input" if file == STDIO else str(file)
    try:
        data = sys.stdin.buffer.read() if file == STDIO else Path(file).read_bytes()
        text = data.decode("utf-8-sig")  # a byte order mark is no part of the text
        if split == "agent":
            read = json.loads(text)
            messages: Any = read.get("messages") if isinstance(read, dict) else read
            return read_messages(messages, where=where, how="agent", reasoning=reasoning)[1]
        return split_text(text, split, marker=marker, language=language, reasoning=reasoning)
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror or error}; expected a text file, or - for standard input"
        ) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"expected UTF-8, found byte 0x{data[error.start]:02x}; convert the file first",
            where=f"{where}:{line}",
        ) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"expected chat messages as JSON, found something else ({error.msg})",
            where=f"{where}:{error.lineno}",
        ) from None
    except InputError as error:
        raise error.at(where) from None


def _rows(segmentation: Segmentation) -> Iterator[dict[str, Any]]:
    for step in segmentation:
        row = {"text": step.text, "start": step.start, "lead": step.lead, "tail": step.tail}
        if segmentation.how == "agent":
            row["observation"] = step.observation
        yield row


def _visible(text: str) -> str:
    return "\n".join(text.splitlines()).translate(_VISIBLE)


def _print(segmentation: Segmentation) -> None:
    print(f"{segmentation.how}: {amount(len(segmentation), 'step')} ({_visible(segmentation.why)})")
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
