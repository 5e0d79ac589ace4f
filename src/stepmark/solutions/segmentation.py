r"""Cut one solution's text into steps, without losing a character.

    >>> segmentation = split("2 + 3 = 5\n5 * 2 = 10")
    >>> segmentation.how, segmentation.why
    ('line', 'it has 2 lines')
    >>> [step.text for step in segmentation]
    ['2 + 3 = 5', '5 * 2 = 10']

The ways to cut are those that the field's data sets use: lines (Math-Shepherd, GSM8K), blank lines (RLHFlow,
ProcessBench), numbered steps (PRM800K-like solutions), a marker that the writer was told to put (the separator of a
PRM), sentences, code by its syntax tree, an agent's turns (`solutions.traces`); and the two ends of the scale, the
whole solution and every word, to study what granularity does.

Whatever the way: the steps rejoin to the text, `text[step.start:step.start + len(step.text)] == step.text`, no step
is blank, a step's text begins and ends with no line break (its indentation is its own), and no cut falls inside a code fence or a formula (`solutions.protect`), with two exceptions: "code" cuts
inside fences by its own rules, and what is known to be code (it parses as Python, or its language is given) has no
formulas; "marker" and "token" heed only what is closed. Lines, paragraphs, numbered lists and sentences keep a displayed formula with
the sentence that it belongs to (`borders.with_displays`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

from stepmark.catalog import unknown_name
from stepmark.errors import InputError, UsageError
from stepmark.records import Step
from stepmark.solutions.borders import (
    Span,
    line_cuts,
    numbered_cuts,
    numbered_list,
    outside,
    paragraph_cuts,
    protected_spans,
    sentence_cuts,
    token_cuts,
    with_displays,
)
from stepmark.solutions.code import code_cuts, looks_like_code

WAYS: tuple[str, ...] = (
    "auto",
    "line",
    "blank-line",
    "numbered",
    "sentence",
    "marker",
    "code",
    "agent",
    "whole",
    "token",
)
"""The names that `how` may have. "agent" needs messages: `solutions.traces.read_messages`."""

_DISPLAYS = ("\\[", "$$", "\\begin")

REASONING = "it has <think> or </think>: the reasoning inside is split like any other text, and the marks stay in its steps"
"""The note of a reasoning trace, which no way to split knows."""

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
    """The way that was used, one of `WAYS`; never "auto"."""
    why: str
    """Why this way: "asked for", or what `auto` saw in the text; and what must be said of the outcome."""

    def _repr_html_(self) -> str:
        from stepmark.show.html import steps_fragment

        return steps_fragment(self.texts, headline=f"{len(self.steps)} steps by {self.how!r}: {self.why}")

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
    text: str, how: str = "auto", *, marker: str | None = None, language: str | None = None
) -> Segmentation:
    """Cut a solution into steps.

    Args:
        text: the solution, not blank. Every character of it is kept.
        how: one of `WAYS`. "auto" takes the first of these that applies: the marker, if one is given and occurs;
            code, if a language is given or the text is mostly code; a numbered list; paragraphs, unless one of them
            holds more than half of the text in three or more plain lines; sentences, if formulas stand on lines of
            their own; lines; sentences; the whole.
        marker: the string that ends a step, as "ки" or "<extra_0>"; it goes into `Step.tail`. For "marker" and "auto".
        language: the language of code that does not name its own. For "code" and "auto".

    Raises:
        InputError: the text is blank, or holds nothing but markers.
        UnknownNameError: no such way.
        UsageError: a setting that cannot work: no marker for "marker", a marker for a way that reads none, "agent".
    """
    _check(how, marker, language)
    if not text.strip():
        raise InputError("expected a solution, found a blank text", field="solution")
    if how == "auto":
        how, why = _choose(text, marker, language)
    else:
        why = ASKED
    if how == "marker" and marker is not None:
        steps, note = _cut_at_marker(text, marker)
    elif how == "code":
        program = code_cuts(text, language)
        steps, note = _assemble(text, [(cut, cut) for cut in program.cuts]), program.note
    else:
        cuts, note = _cuts(text, how)
        # Between sentences and between words any white space is the separator.
        steps = _assemble(text, [(cut, cut) for cut in cuts], blanks=how not in ("sentence", "token"))
    notes = [note] if note else []
    if "<think>" in text or "</think>" in text:
        notes.append(REASONING)
    return Segmentation(text=text, steps=steps, how=how, why="; ".join([why, *notes]))


def side_by_side(
    text: str, how: str = "auto", *, marker: str | None = None, language: str | None = None
) -> dict[str, Segmentation]:
    """The three granularities of one solution: "whole", "step" (by `how`) and "token".

    For the study of what granularity does to a grade. Arguments and errors are those of `split`.
    """
    return {
        "whole": split(text, "whole"),
        "step": split(text, how, marker=marker, language=language),
        "token": split(text, "token"),
    }


def check_way(how: str) -> None:
    """Refuse a name that is no way to split.

    Raises:
        UnknownNameError: with the nearest names.
    """
    if how not in WAYS:
        raise unknown_name("way to split", how, WAYS)


def _check(how: str, marker: str | None, language: str | None) -> None:
    check_way(how)
    if how == "agent":
        raise UsageError(
            "a plain text has no turns to split by 'agent': give the chat messages to "
            "stepmark.solutions.inputs.read_messages"
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
        return list(outside(token_cuts(text), protected_spans(text, unclosed=False))), None
    spans = protected_spans(text)
    if how == "numbered":
        numbered = numbered_list(text, spans)
        if numbered is None:
            return [], "the text has no numbered list, so it is one step"
        return with_displays(text, numbered_cuts(text, numbered, spans), spans), None
    border = {"line": line_cuts, "blank-line": paragraph_cuts, "sentence": sentence_cuts}[how]
    return with_displays(text, list(outside(border(text), spans)), spans), None


def _choose(text: str, marker: str | None, language: str | None) -> tuple[str, str]:
    """The way that fits a text, and why; the order is told in `split`."""
    if marker is not None and marker in text:
        return "marker", f"the marker {marker!r} occurs in it"
    if language is not None:
        return "code", f"its language is given as {language!r}"
    code = looks_like_code(text)
    if code is not None:
        return "code", code
    spans = protected_spans(text)
    numbered = numbered_list(text, spans)
    if numbered is not None:
        return "numbered", f'it has a numbered list, "{numbered.first}" to "{numbered.last}"'
    paragraphs = _shares(text, list(outside(paragraph_cuts(text), spans)))
    lines = _shares(text, list(outside(line_cuts(text), spans)))
    if len(paragraphs) > 1 and not (len(lines) > 2 and _one_paragraph_rules(paragraphs, lines, text)):
        whole = _shares(text, _cuts(text, "blank-line")[0])
        if len(whole) > 1:
            return "blank-line", f"it has {len(whole)} paragraphs"
    sentences = _shares(text, _cuts(text, "sentence")[0])
    if len(lines) > 1:
        if any(text[start:end].lstrip().startswith(_DISPLAYS) for start, end in lines):
            return "sentence", f"it has formulas on lines of their own within its {len(sentences)} sentences"
        return "line", f"it has {len(lines)} lines"
    if len(sentences) > 1:
        return "sentence", f"it is one line of {len(sentences)} sentences"
    return "whole", "it is a single sentence"


def _shares(text: str, cuts: Sequence[int]) -> list[Span]:
    """The pieces between cuts that are not blank."""
    borders = [0, *(cut for cut in cuts if cut), len(text)]
    pairs = pairwise(borders)
    return [(start, end) for start, end in pairs if text[start:end].strip()]


def _one_paragraph_rules(paragraphs: list[Span], lines: list[Span], text: str) -> bool:
    """Whether most of the text is one paragraph of three or more plain lines: there the lines are the steps."""
    start, end = max(paragraphs, key=lambda span: span[1] - span[0])
    inside = [line for line in lines if start <= line[0] < end]
    plain = [line for line in inside if text[line[0]] not in " \t-*+•|>"]
    return 2 * (end - start) > len(text.strip()) and len(inside) >= 3 and 2 * len(plain) > len(inside)


def _cut_at_marker(text: str, marker: str) -> tuple[tuple[Step, ...], str | None]:
    closed = protected_spans(text, unclosed=False)
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
    borders = [*separators, (len(text), len(text))]
    at = 0
    for start, end in borders:
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
