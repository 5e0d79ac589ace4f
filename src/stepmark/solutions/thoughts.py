r"""Thoughts of reasoning models: where they stand in a text, and where a long one may be cut.

A thought is what stands between `<think>` and `</think>` (DeepSeek-R1, Qwen3; the first mark may be missing, since chat templates
write it, and the last where the reply was cut off), or on a channel of gpt-oss's harmony format other than `final` and `commentary`:
`<|channel|>analysis<|message|>…<|end|>`.

    >>> [(text, thought) for text, thought in texts_of("<think>2 + 2</think>4")]
    [('2 + 2', True), ('4', False)]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from stepmark.solutions.borders import line_cuts, sentence_cuts

Reasoning = Literal["keep", "only", "drop"]
"""What becomes of thoughts: steps like the rest, the only steps, or layout that no grader reads."""

_MARKS = re.compile(
    r"(?P<think></?think>)"
    r"|(?:<\|start\|>[^<]*)?<\|channel\|>\s*(?P<channel>\w+)(?:(?!<\|(?:message|channel|start)\|>).)*<\|message\|>"
    r"|(?P<end><\|(?:end|return|call)\|>)",
    re.DOTALL,
)
_SPOKEN = ("final", "commentary")

_TURN = re.compile(
    r"\s*(?:[*_#>-]+\s*)?(?:(?:But|And|So|Oh|Okay|OK|Hmm+|No),?\s+)?"
    r"(?:wait|hold on|hmm+|alternatively|actually|on second thought|another (?:way|approach|idea|thought|method|possibility)"
    r"|let(?: me|'s|\N{RIGHT SINGLE QUOTATION MARK}s) (?:just |also |quickly |now )?(?:check|double|verify|confirm|re-?\w+|try|test|go back|start over|see if)"
    r"|maybe|perhaps|what if|to (?:verify|check|double-check|confirm)|instead)\b",
    re.IGNORECASE,
)
"""How a turn of thought begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A share of a text; between sections stand their marks."""

    start: int
    end: int
    thought: bool


def sections(text: str) -> list[Section]:
    """The thoughts and answers of a text in order, blank ones left out; one answer where it has no marks."""
    parts: list[Section] = []
    marks = list(_MARKS.finditer(text))
    at, thought = 0, bool(marks) and marks[0]["think"] == "</think>"
    for mark in marks:
        parts.append(Section(start=at, end=mark.start(), thought=thought))
        at = mark.end()
        thought = mark["think"] == "<think>" or (
            mark["channel"] is not None and mark["channel"] not in _SPOKEN
        )
    parts.append(Section(start=at, end=len(text), thought=thought))
    return [part for part in parts if text[part.start : part.end].strip()]


def texts_of(text: str) -> Iterator[tuple[str, bool]]:
    """The sections' texts, and whether each is a thought."""
    return ((text[part.start : part.end], part.thought) for part in sections(text))


def turn_cuts(text: str) -> list[int]:
    """Where a thought turns: sentences and lines that begin with "Wait", "Alternatively", "Let me check" and the like."""
    borders = {*sentence_cuts(text), *line_cuts(text)}
    return sorted(cut for cut in borders if _TURN.match(text, cut))


def limit_cuts(text: str, words: int, allowed: Sequence[int]) -> list[int]:
    """The fewest of the allowed cuts, taken from the left, that leave at most so many words between two; more where there is no cut."""
    cuts: list[int] = []
    last, previous = 0, 0
    for cut in [*allowed, len(text)]:
        if previous > last and len(text[last:cut].split()) > words:
            cuts.append(previous)
            last = previous
        previous = cut
    return cuts
