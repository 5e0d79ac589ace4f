r"""Thoughts of reasoning models: where they stand in a text, and where a long one may be cut.

A thought is what stands between `<think>` and `</think>` (DeepSeek-R1, Qwen3; the first mark may be missing, since chat templates
write it, and the last where the reply was cut off). Other models write `<thinking>`, `<thought>`, `<reasoning>`, `<seed:think>`, `[THINK]` or
`◁think▷`, in capitals or not. In gpt-oss's harmony format a thought is on a channel other than `final` and `commentary`:
`<|channel|>analysis<|message|>…<|end|>`. A mark between backticks is text, and so is one in a closed code fence of an answer. Within a
thought the first closing mark ends it, as servers read it.

    >>> [(text, thought) for text, thought in texts_of("<think>2 + 2</think>4")]
    [('2 + 2', True), ('4', False)]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from stepmark.data.steps.lines import line_cuts, sentence_cuts

Reasoning = Literal["keep", "only", "drop"]
"""What becomes of thoughts: steps like the rest, the only steps, or layout that no grader reads."""

_MARKS = re.compile(
    r"(?:<(?P<close>/)?(?:think(?:ing)?|thought|reasoning|seed:think)>|\[(?P<close_bracket>/)?think\]|◁(?P<close_arrow>/)?think▷)"
    r"|(?:<\|start\|>[^<]*)?<\|channel\|>\s*(?P<channel>\w+)(?:(?!<\|(?:message|channel|start)\|>).)*<\|message\|>"
    r"|(?P<end><\|(?:end|return|call)\|>)",
    re.DOTALL | re.IGNORECASE,
)
_SPOKEN = ("final", "commentary")
_FENCE = re.compile(r"^[ \t]*(?P<bar>`{3,}|~{3,})(?P<info>[^`\r\n]*)", re.MULTILINE)

_TURN = re.compile(
    r"\s*(?:[*_#>-]+\s*)?(?:(?:But|And|So|Oh|Okay|OK|Hmm+|No),?\s+)?"
    r"(?:wait|hold on|hmm+|alternatively|actually|on second thought|another (?:way|approach|idea|thought|method|possibility)"
    r"|let(?: me|'s|\N{RIGHT SINGLE QUOTATION MARK}s) (?:just |also |quickly |now )?(?:check|double|verify|confirm|re-?\w+|try|test|go back|start over|see if)"
    r"|maybe|perhaps|what if|to (?:verify|check|double-check|confirm)|instead)\b",
    re.IGNORECASE,
)
"""How a turn of thought begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThoughtSection:
    """A share of a text; between sections stand their marks."""

    start: int
    end: int
    thought: bool


def sections(text: str) -> list[ThoughtSection]:
    """The thoughts and answers of a text in order, blank ones left out; one answer, the whole, where it has no marks."""
    parts: list[ThoughtSection] = []
    marks = [mark for mark in _MARKS.finditer(text) if not _quoted(text, mark)]
    at, thought = 0, bool(marks) and _closes_thought(marks[0])
    fences = list(_FENCE.finditer(text)) if marks else []
    opened: re.Match[str] | None = None
    line = 0
    for mark in marks:
        while line < len(fences) and fences[line].start() < mark.start():
            fence = fences[line]
            line += 1
            if opened is not None and _closes(opened, fence):
                opened = None
            elif opened is None and fence.start() >= at and not thought:
                opened = fence
        if opened is not None and line < len(fences) and _closes(opened, fences[line]):
            continue
        opened = None
        parts.append(ThoughtSection(start=at, end=mark.start(), thought=thought))
        at = mark.end()
        thought = _opens_thought(mark)
    parts.append(ThoughtSection(start=at, end=len(text), thought=thought))
    return [part for part in parts if text[part.start : part.end].strip()]


def _closes_thought(mark: re.Match[str]) -> bool:
    return any(mark[group] for group in ("close", "close_bracket", "close_arrow"))


def _opens_thought(mark: re.Match[str]) -> bool:
    if mark["channel"] is not None:
        return mark["channel"].lower() not in _SPOKEN
    return mark["end"] is None and not _closes_thought(mark)


def _quoted(text: str, mark: re.Match[str]) -> bool:
    return text.endswith("`", 0, mark.start()) and text.startswith("`", mark.end())


def _closes(opened: re.Match[str], line: re.Match[str]) -> bool:
    return line["bar"].startswith(opened["bar"]) and not line["info"].strip()


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
    count = last = previous = 0
    for cut in [*allowed, len(text)]:
        # A word that a cut divides is one.
        divided = 0 < previous < cut and not any(map(str.isspace, text[previous - 1 : previous + 1]))
        more = len(text[previous:cut].split())
        if previous > last and count + more - divided > words:
            cuts.append(previous)
            last, count = previous, more
        else:
            count += more - divided
        previous = cut
    return cuts
