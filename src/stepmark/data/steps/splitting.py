r"""Cut one solution's text into steps, without losing a character.

    >>> segmentation = split("2 + 3 = 5\n5 * 2 = 10")
    >>> segmentation.how, segmentation.why
    ('line', 'it has 2 lines')
    >>> [step.text for step in segmentation]
    ['2 + 3 = 5', '5 * 2 = 10']

Whatever the way: the steps rejoin to the text, `text[step.start:step.start + len(step.text)] == step.text`, no step is blank, a step's text begins
and ends with no line break, and no cut falls inside a code fence or a formula (`data.steps.lines`), with two exceptions: "code" cuts inside fences
by its own rules, and what is known to be code has no formulas; "marker" and "token" heed only what is closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import overload

from stepmark.data.steps import lines as borders
from stepmark.data.steps.code_cuts import code_cuts, looks_like_code
from stepmark.data.steps.lines import Span
from stepmark.data.steps.thoughts import Reasoning, ThoughtSection, limit_cuts, sections, turn_cuts
from stepmark.errors import InputError, UsageError
from stepmark.records import Step
from stepmark.registry import unknown_name
from stepmark.words import amount

WAYS: tuple[str, ...] = (
    "auto", "line", "blank-line", "numbered", "sentence", "marker", "code", "agent", "thought", "whole", "token",
)  # fmt: skip
"""The names that `how` may have, beside "limit:N". "agent" needs messages: `data.conversations.read_messages`."""

_LIMIT = re.compile(r"limit:([1-9][0-9]{0,5})")

_DISPLAYS = ("\\[", "$$", "\\begin")

REASONING: dict[Reasoning, str] = {
    "keep": "its thought and its answer are cut apart, and the marks between them are layout",
    "only": "only its thought is graded",
    "drop": "its thought is not graded",
}
"""The note of a text with a thought."""

ASKED = "asked for"
"""What `Segmentation.why` begins with when the way was named by the caller."""


@dataclass(frozen=True, kw_only=True)
class Segmentation(Sequence[Step]):
    """A text and the steps it was cut into: a sequence of `Step`, one at least."""

    text: str
    """The original."""
    steps: tuple[Step, ...]
    """In order; `"".join(step.raw for step in steps) == text`."""
    how: str
    """The way that was used, one of `WAYS` or "limit:N"; never "auto"."""
    why: str
    """Why this way: "asked for", or what `auto` saw in the text; and what must be said of the outcome."""

    def _repr_html_(self) -> str:
        from stepmark.report.html import steps_fragment

        return steps_fragment(
            self.texts, headline=f"{amount(len(self.steps), 'step')} by {self.how!r}: {self.why}"
        )

    def rejoin(self) -> str:
        """The original text, put together from the steps."""
        return "".join(step.raw for step in self.steps)

    @property
    def texts(self) -> tuple[str, ...]:
        """The graded text of every step."""
        return tuple(step.text for step in self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        return self.steps[index]


def split(
    text: str,
    how: str = "auto",
    *,
    marker: str | None = None,
    language: str | None = None,
    reasoning: Reasoning = "keep",
) -> Segmentation:
    """Cut a solution into steps.

    A thought (`data.steps.thoughts`) is cut apart from the answer, by paragraph where `how` is "auto"; its marks are layout. "whole" with
    `reasoning` "keep" is the text as it is, marks and all.

    Args:
        text: the solution, not blank. Every character of it is kept.
        how: one of `WAYS`. "auto" takes the first of these that applies: the marker, if one is given and occurs;
            code, if a language is given or the text is mostly code; a numbered list; paragraphs, unless one of them
            holds more than half of the text in three or more plain lines; sentences, if formulas stand on lines of
            their own; lines; sentences; the whole. "limit:N" makes steps of whole sentences with at most N words (a
            longer sentence is one step).
        marker: the string that ends a step, as "ки" or "<extra_0>"; it goes into `Step.tail`. For "marker" and "auto".
        language: the language of code that does not name its own. For "code" and "auto".
        reasoning: what becomes of thoughts: "keep" them, grade them "only", or "drop" them.

    Raises:
        InputError: the text is blank, or holds nothing but markers; nothing is left of it by `reasoning`.
        UnknownNameError: no such way.
        UsageError: a setting that cannot work: no marker for "marker", a marker for a way that reads none, "agent".
    """
    _check(how, marker, language)
    if not text.strip():
        raise InputError("expected a solution, found a blank text", field="solution")
    return split_parts(text, sections(text), how, marker=marker, language=language, reasoning=reasoning)


def split_parts(
    text: str,
    parts: Sequence[ThoughtSection],
    how: str,
    *,
    marker: str | None = None,
    language: str | None = None,
    reasoning: Reasoning = "keep",
) -> Segmentation:
    """`split` of a text of which it is known where its thoughts and answers stand."""
    unmarked = [(part.start, part.end) for part in parts if not part.thought] == [(0, len(text))]
    if reasoning == "keep" and (how == "whole" or unmarked):
        return _split(text, how, marker, language)
    steps: list[Step] = []
    at = 0
    chosen, why = how, ASKED
    for part in parts:
        if reasoning == ("drop" if part.thought else "only"):
            continue
        way = "blank-line" if part.thought and how == "auto" else how
        cut = _split(text[part.start : part.end], way, marker, language)
        if how == "auto":
            chosen, why = cut.how, "a thought" if part.thought else cut.why
        gap = text[at : part.start]
        if steps:
            steps[-1] = replace(steps[-1], tail=steps[-1].tail + gap)
            gap = ""
        moved = [replace(step, start=part.start + (step.start or 0)) for step in cut.steps]
        steps += [replace(moved[0], lead=gap + moved[0].lead), *moved[1:]]
        at = part.end
    if not steps:
        needed, present = (
            ("a thought", "no <think> and no channel")
            if reasoning == "only"
            else ("an answer", "only a thought")
        )
        raise InputError(f"expected {needed} (`reasoning` {reasoning}), found {present}", field="solution")
    steps[-1] = replace(steps[-1], tail=steps[-1].tail + text[at:])
    if any(part.thought for part in parts):
        why = f"{why}; {REASONING[reasoning]}"
    return Segmentation(text=text, steps=tuple(steps), how=chosen, why=why)


def _split(text: str, how: str, marker: str | None, language: str | None) -> Segmentation:
    if how == "auto":
        how, why = _choose(text, marker, language)
    else:
        why = ASKED
    if how == "marker" and marker is not None:
        steps, note = _cut_at_marker(text, marker)
    elif how == "code":
        cuts, note = code_cuts(text, language)
        steps = _assemble(text, [(cut, cut) for cut in cuts])
    else:
        cuts, note = _cuts(text, how)
        # Between sentences and between words any white space is the separator.
        blanks = how not in ("sentence", "token", "thought") and not how.startswith("limit")
        steps = _assemble(text, [(cut, cut) for cut in cuts], blanks=blanks)
    return Segmentation(text=text, steps=steps, how=how, why=why if note is None else f"{why}; {note}")


def check_way(how: str) -> None:
    """Refuse a name that is no way to split (`UnknownNameError`)."""
    if how not in WAYS and not _LIMIT.fullmatch(how):
        raise unknown_name("way to split", how, (*WAYS, "limit:N"))


def _check(how: str, marker: str | None, language: str | None) -> None:
    check_way(how)
    if how == "agent":
        raise UsageError(
            "a plain text has no turns to split by 'agent': give the chat messages to "
            "stepmark.data.conversations.read_messages"
        )
    if how == "marker" and marker is None:
        raise UsageError("the way 'marker' needs a marker: the string that ends each step, such as 'ки'")
    if marker is not None and how not in ("marker", "auto"):
        raise UsageError(f"a marker ({marker!r}) is read by the ways 'marker' and 'auto', not by {how!r}")
    if marker == "":
        raise UsageError("the marker is empty; expected the string that ends each step, such as 'ки'")
    if language is not None and how not in ("code", "auto"):
        raise UsageError(f"a language ({language!r}) is read by the ways 'code' and 'auto', not by {how!r}")


def _cuts(text: str, how: str) -> tuple[list[int], str | None]:
    """The cuts of a way that needs only the text, and what must be said about them."""
    if how == "whole":
        return [], None
    if how == "token":
        return list(
            borders.outside(borders.token_cuts(text), borders.protected_spans(text, unclosed=False))
        ), None
    spans = borders.protected_spans(text)
    if how == "numbered":
        numbered = borders.numbered_list(text, spans)
        if not numbered:
            return [], "the text has no numbered list, so it is one step"
        return borders.with_displays(text, borders.numbered_cuts(text, numbered, spans), spans), None
    if limit := _LIMIT.fullmatch(how):
        return limit_cuts(text, int(limit[1]), _cuts(text, "sentence")[0]), None
    ways = {
        "line": borders.line_cuts,
        "blank-line": borders.paragraph_cuts,
        "sentence": borders.sentence_cuts,
        "thought": turn_cuts,
    }
    return borders.with_displays(text, list(borders.outside(ways[how](text), spans)), spans), None


def _choose(text: str, marker: str | None, language: str | None) -> tuple[str, str]:
    """The way that fits a text, and why; the order is described in `split`."""
    if marker is not None and marker in text:
        return "marker", f"the marker {marker!r} occurs in it"
    if language is not None:
        return "code", f"its language is given as {language!r}"
    code = looks_like_code(text)
    if code is not None:
        return "code", code
    spans = borders.protected_spans(text)
    if numbered := borders.numbered_list(text, spans):
        return "numbered", f'it has a numbered list, "{numbered[0].written}" to "{numbered[-1].written}"'
    paragraphs = _shares(text, list(borders.outside(borders.paragraph_cuts(text), spans)))
    lines = _shares(text, list(borders.outside(borders.line_cuts(text), spans)))
    if len(paragraphs) > 1 and not (len(lines) > 2 and _one_paragraph_rules(paragraphs, lines, text)):
        whole = _shares(text, _cuts(text, "blank-line")[0])
        if len(whole) > 1:
            return "blank-line", f"it has {amount(len(whole), 'paragraph')}"
    sentences = _shares(text, _cuts(text, "sentence")[0])
    if len(lines) > 1:
        if any(text[start:end].lstrip().startswith(_DISPLAYS) for start, end in lines):
            return (
                "sentence",
                f"it has formulas on lines of their own within its {amount(len(sentences), 'sentence')}",
            )
        return "line", f"it has {amount(len(lines), 'line')}"
    if len(sentences) > 1:
        return "sentence", f"it is one line of {amount(len(sentences), 'sentence')}"
    return "whole", "it is a single sentence"


def _shares(text: str, cuts: Sequence[int]) -> list[Span]:
    pairs = pairwise([0, *(cut for cut in cuts if cut), len(text)])
    return [(start, end) for start, end in pairs if text[start:end].strip()]


def _one_paragraph_rules(paragraphs: list[Span], lines: list[Span], text: str) -> bool:
    """Whether most of the text is one paragraph of three or more plain lines: there the lines are the steps."""
    start, end = max(paragraphs, key=lambda span: span[1] - span[0])
    inside = [line for line in lines if start <= line[0] < end]
    plain = [line for line in inside if text[line[0]] not in " \t-*+•|>"]
    return 2 * (end - start) > len(text.strip()) and len(inside) >= 3 and 2 * len(plain) > len(inside)


def _cut_at_marker(text: str, marker: str) -> tuple[tuple[Step, ...], str | None]:
    closed = borders.protected_spans(text, unclosed=False)
    separators: list[Span] = []
    at = text.find(marker)
    index = 0
    while at >= 0:
        end = at + len(marker)
        while index < len(closed) and closed[index][1] <= at:
            index += 1
        if index == len(closed) or end <= closed[index][0]:
            separators.append((at, end))
        at = text.find(marker, end)
    steps = _assemble(text, separators)
    if not steps:
        raise InputError(f"expected a solution, found only the marker {marker!r}", field="solution")
    return steps, None if separators else f"the marker {marker!r} does not occur in it, so it is one step"


def own_text(written: str) -> str:
    """A step as it was written, without the line breaks around it; "" for a blank text.

    Its indentation and the blanks at the end of its last line are its own, as in `split` where lines are cut.
    """
    return split(written, "whole").steps[0].text if written.strip() else ""


def _assemble(text: str, separators: Sequence[Span], *, blanks: bool = True) -> tuple[Step, ...]:
    """The steps between sorted separators (empty spans are plain cuts).

    Line breaks around a step and the separator after it are its layout: before the first step that is not blank they
    are its `lead`, anywhere else the `tail` of the step before. Only what stands between a cut and the step's first
    character is that step's `lead`. With `blanks`, the indentation of a step's first line and the blanks at the end of its last
    line belong to its text, unless another step or the separator stands on that line; without, they are layout.
    """
    shares: list[tuple[int, int, int]] = []  # start and end of the text, end of the whole share
    at = 0
    for start, end in [*separators, (len(text), len(text))]:
        chunk = text[at:start]
        bare = chunk.strip()
        if bare:
            first = at + len(chunk) - len(chunk.lstrip())
            last = first + len(bare)
            if blanks:
                first, last = _line_start(text, at, first), _line_end(text, last, start)
            shares.append((first, last, end))
        elif shares:
            shares[-1] = (shares[-1][0], shares[-1][1], end)
        at = end
    steps = []
    at = 0
    for first, last, end in shares:
        steps.append(Step(text=text[first:last], lead=text[at:first], tail=text[last:end], start=first))
        at = end
    return tuple(steps)


def _line_start(text: str, low: int, first: int) -> int:
    """Where the line of `first` starts, if no earlier than `low`; else `first`."""
    at = first
    while at > low and not _breaks_line(text[at - 1]):
        at -= 1
    return at if at == 0 or _breaks_line(text[at - 1]) else first


def _line_end(text: str, last: int, high: int) -> int:
    """Where the line of the character before `last` ends, if no later than `high`; else `last`."""
    at = last
    while at < high and not _breaks_line(text[at]):
        at += 1
    return at if at == len(text) or _breaks_line(text[at]) else last


def _breaks_line(character: str) -> bool:
    return character.splitlines() == [""]
