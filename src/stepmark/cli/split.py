"""`stepmark split`: show how a text is split into steps, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from stepmark.cli import options as opt
from stepmark.data.conversations import split_file
from stepmark.data.steps.splitting import Segmentation
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
    segmentation = split_file(file, split=split, marker=marker, language=language, reasoning=reasoning)
    if as_json:
        for row in _rows(segmentation):
            print(json.dumps(row))
    else:
        _print(segmentation)
    return 0


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
