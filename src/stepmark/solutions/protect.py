r"""Spans of a text that no cut may enter: code fences and mathematics.

What counts, and where it ends:

- a **code fence**: a line of three or more backticks or tildes (at any indentation, since models put fences into
  list items) up to the next bare line of the same characters, at least as many;
- **display mathematics**: ``$$…$$``, ``\[…\]`` and ``\begin{x}…\end{x}``, nested environments too;
- **inline mathematics**: ``\(…\)`` and ``$…$``. A dollar sign is more often money, so `$…$` counts by pandoc's
  rule: no space just inside either dollar, no digit right after the closing one, no blank line between; and the
  first dollar does not stand right after a letter or digit with punctuation right behind it (as in "it costs 5$.");
- **inline code** between single backticks on one line: dollars and stops in it mean nothing.

What is opened and never closed: a display, an environment or a fence with a language protects up to the next blank
line (a solution cut off in the middle of a formula keeps that formula whole, and the rest of the text stays free);
inline mathematics and a bare fence line protect nothing. Two `$$` look alike, so an opening one whose partner would
lie past a blank line counts as unclosed when the number of `$$` that are left is odd.

Everything is one pass over the tokens of the text; the work is linear in its length.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""Start and end of a piece of text, in characters; the end is not included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """One fenced code block of a Markdown text. Offsets are in characters of that text."""

    start: int
    """Start of the opening line."""
    body: int
    """Start of the first line of code."""
    body_end: int
    """Start of the closing line."""
    end: int
    """End of the closing line, its line break not included."""
    info: str
    """The first word after the opening characters, in lower case: "python", "" …"""
    closed: bool
    """False when no closing line follows; then the block is taken to run to the end of the text."""


_FENCE = re.compile(r"[ \t]*(?:>[ \t]?)?(?P<bar>`{3,}|~{3,})(?P<info>.*)", re.DOTALL)

_TOKEN = re.compile(
    r"\\begin[ \t]{0,4}\{(?P<begin>[^{}\r\n]{1,40})\}"
    r"|\\end[ \t]{0,4}\{(?P<end>[^{}\r\n]{1,40})\}"
    r"|\\(?P<bracket>[\[\]()])"
    r"|\\[\s\S]"
    r"|(?P<dollar>\$+)"
    r"|(?P<tick>`+)"
)

_PUNCTUATION = frozenset(".,;:!?)]}'\"")


def lines_of(text: str) -> list[Span]:
    """Start and end (line break included) of every line, by Python's idea of a line (`str.splitlines`)."""
    spans = []
    at = 0
    for line in text.splitlines(keepends=True):
        spans.append((at, at + len(line)))
        at += len(line)
    return spans


def fences_of(text: str) -> list[Fence]:
    """The fenced code blocks of a text, in order. An unclosed one, if any, is the last."""
    marks: list[tuple[int, int, str, int, str]] = []  # start and end of the line, its character, length, info
    for start, end in lines_of(text):
        match = _FENCE.match(text, start, end)
        if match is not None:
            bar, info = match["bar"], match["info"].strip()
            if bar[0] == "~" or "`" not in info:
                marks.append((start, end, bar[0], len(bar), info))

    # closers[i]: the nearest later bare line that can close mark i. Walking back, each character keeps its
    # bare lines from far (long) to near (short); a farther and shorter one can never be the nearest.
    closers: list[int | None] = [None] * len(marks)
    bare: dict[str, list[tuple[int, int]]] = {"`": [], "~": []}  # (-length, index), sorted
    for index in range(len(marks) - 1, -1, -1):
        _, _, character, length, info = marks[index]
        stack = bare[character]
        reach = bisect_right(stack, (-length, len(marks)))
        if reach:
            closers[index] = stack[reach - 1][1]
        if not info:
            while stack and -stack[-1][0] <= length:
                stack.pop()
            stack.append((-length, index))

    fences = []
    index = 0
    while index < len(marks):
        start, line_end, _, _, info = marks[index]
        word = info.split()[0].lower().strip("{}.") if info else ""
        closer = closers[index]
        if closer is None:
            if info:  # a bare one that nothing closes is a stray closing line; it opens nothing
                fences.append(
                    Fence(
                        start=start, body=line_end, body_end=len(text), end=len(text), info=word, closed=False
                    )
                )
                break
            index += 1
            continue
        close_start, close_end = marks[closer][:2]
        end = close_start + len(text[close_start:close_end].rstrip())
        fences.append(
            Fence(start=start, body=line_end, body_end=close_start, end=end, info=word, closed=True)
        )
        index = closer + 1
    return fences


def protected_spans(text: str, *, unclosed: bool = True, fences: bool = True) -> list[Span]:
    """The spans that no cut may enter: sorted, apart from one another, cuts at their two ends are free.

    Args:
        text: any text.
        unclosed: whether a display or fence that nothing closes protects up to the next blank line.
        fences: whether closed code fences are among the spans (the "code" way cuts inside them by its own rules).
    """
    blocks = fences_of(text)
    blank = [start for start, end in lines_of(text) if not text[start:end].strip()]
    spans: list[Span] = []
    closed = [(fence.start, fence.end) for fence in blocks if fence.closed]
    # A fence ends a paragraph: no dollar pairs across it.
    breaks = sorted(blank + [start for start, _ in closed])
    if fences:
        spans.extend(closed)
    if unclosed and fences:
        spans.extend((f.start, _next(breaks, f.start, len(text))) for f in blocks if not f.closed)
    spans.extend(_Scan(text, closed, breaks, unclosed).spans())
    return _merged(spans)


def outside(cuts: Iterable[int], spans: Sequence[Span]) -> Iterator[int]:
    """Those of the sorted `cuts` that lie strictly inside no span."""
    index = 0
    for cut in cuts:
        while index < len(spans) and spans[index][1] <= cut:
            index += 1
        if index == len(spans) or cut <= spans[index][0]:
            yield cut


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _next(positions: Sequence[int], after: int, default: int) -> int:
    """The first of the sorted positions that is greater than `after`."""
    index = bisect_right(positions, after)
    return positions[index] if index < len(positions) else default


@dataclass(frozen=True, slots=True)
class _Token:
    start: int
    end: int
    kind: str
    """"[", "]", "(", ")", "begin", "end", "$", "$$" or "`"."""
    name: str = ""


class _Scan:
    """One left-to-right reading of the tokens that open and close mathematics and inline code."""

    def __init__(self, text: str, fences: list[Span], breaks: list[int], unclosed: bool) -> None:
        self._text = text
        self._breaks = breaks
        self._unclosed = unclosed
        self._tokens = _tokens(text, fences)
        self._square = self._following("[", "]")
        self._round = self._following("(", ")")
        self._double = self._following("$$")
        self._dollar = self._following("$", "$$")
        self._tick = self._following("`")
        self._environment = _matched_environments(self._tokens)
        self._doubles_left = [0] * (len(self._tokens) + 1)
        for index in range(len(self._tokens) - 1, -1, -1):
            is_double = self._tokens[index].kind == "$$"
            self._doubles_left[index] = self._doubles_left[index + 1] + is_double

    def _following(self, *kinds: str) -> list[int | None]:
        """For each token the index of the next later one of these kinds."""
        following: list[int | None] = [None] * len(self._tokens)
        latest = None
        for index in range(len(self._tokens) - 1, -1, -1):
            following[index] = latest
            if self._tokens[index].kind in kinds:
                latest = index
        return following

    def spans(self) -> Iterator[Span]:
        """The spans of mathematics and inline code; an unclosed display may overlap later ones."""
        index = 0
        half_used = False  # the first dollar of a "$$" has just closed a formula: "$x$$y$"
        while index < len(self._tokens):
            token = self._tokens[index]
            kind = "$" if half_used else token.kind
            start = token.start + half_used
            half_used = False
            closer = self._closer(index, kind, start)
            if closer is None:
                if self._unclosed and kind in ("[", "begin", "$$"):
                    yield start, _next(self._breaks, start, len(self._text))
                index += 1
                continue
            end = self._tokens[closer].end
            if kind == "$" and self._tokens[closer].kind == "$$":
                half_used = True
                end -= 1
                index = closer
            else:
                index = closer + 1
            yield start, end

    def _closer(self, index: int, kind: str, start: int) -> int | None:
        """The index of the token that closes the one at `index`, or None."""
        tokens = self._tokens
        if kind == "begin":
            return self._environment.get(index)
        if kind in ("[", "("):
            closer = (self._square if kind == "[" else self._round)[index]
            closes = closer is not None and tokens[closer].kind == ("]" if kind == "[" else ")")
            return closer if closes else None
        if kind == "$$":
            closer = self._double[index]
            if closer is None:
                return None
            far = self._broken(start, tokens[closer].start)
            return None if far and self._doubles_left[index] % 2 else closer
        if kind == "`":
            closer = self._tick[index]
            if closer is None or "\n" in self._text[start : tokens[closer].start]:
                return None
            return closer
        if kind == "$":
            closer = self._dollar[index]
            return closer if closer is not None and self._is_formula(start, tokens[closer].start) else None
        return None

    def _is_formula(self, start: int, end: int) -> bool:
        """Whether the dollars at `start` and `end` enclose a formula rather than name two sums of money."""
        text = self._text
        if end == start + 1 or text[start + 1].isspace() or text[end - 1].isspace():
            return False
        if text[end + 1 : end + 2].isdecimal():
            return False
        before = text[start - 1] if start else " "
        if before.isascii() and before.isalnum() and text[start + 1] in _PUNCTUATION:
            return False
        return not self._broken(start, end)

    def _broken(self, start: int, end: int) -> bool:
        """Whether a blank line or a fence lies between two places."""
        index = bisect_left(self._breaks, start)
        return index < len(self._breaks) and self._breaks[index] < end


def _tokens(text: str, fences: list[Span]) -> list[_Token]:
    tokens = []
    fence = 0
    for match in _TOKEN.finditer(text):
        while fence < len(fences) and fences[fence][1] <= match.start():
            fence += 1
        if fence < len(fences) and fences[fence][0] <= match.start():
            continue
        kind = name = ""
        if match["bracket"]:
            kind = match["bracket"]
        elif match["begin"]:
            kind, name = "begin", match["begin"].strip()
        elif match["end"]:
            kind, name = "end", match["end"].strip()
        elif match["dollar"] and len(match["dollar"]) <= 2:
            kind = match["dollar"]
        elif match["tick"] and len(match["tick"]) == 1:
            kind = "`"
        if kind:
            tokens.append(_Token(match.start(), match.end(), kind, name))
    return tokens


def _matched_environments(tokens: list[_Token]) -> dict[int, int]:
    r"""The index of the ``\end`` for each ``\begin`` that has one; an ``\end`` closes the nearest of its name."""
    matched = {}
    stack: list[int] = []
    waiting: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.kind == "begin":
            stack.append(index)
            waiting[token.name] = waiting.get(token.name, 0) + 1
        elif token.kind == "end" and waiting.get(token.name):
            while stack:
                opener = stack.pop()
                waiting[tokens[opener].name] -= 1
                if tokens[opener].name == token.name:
                    matched[opener] = index
                    break
    return matched
