r"""Where a text may be cut: one function for each way, each giving sorted character offsets, and the spans that no cut may enter.

An offset is the first character of the next step's share. The spans are

- a **code fence**: a line of three or more backticks or tildes (at any indentation) up to the next bare line of the same characters, at least as many;
- **display mathematics**: ``$$…$$``, ``\[…\]`` and ``\begin{x}…\end{x}``, nested environments too;
- **inline mathematics**: ``\(…\)`` and ``$…$``. A dollar sign is more often money, so `$…$` counts by pandoc's rule: no space just inside either
  dollar, no digit right after the closing one, no blank line between; and the first dollar does not stand right after a letter or digit with
  punctuation right behind it (as in "it costs 5$.");
- **inline code** between single backticks on one line.

What is never closed: a display, an environment or a fence with a language protects up to the next blank line; inline mathematics and a bare fence
line protect nothing. Two `$$` look alike, so an opening one whose partner would lie past a blank line counts as unclosed when the number of `$$`
that are left is odd. Everything is one pass over the tokens of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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
    r"|(?P<dollar>\${1,2}(?!\$))"
    r"|(?P<tick>`(?!`))"
    r"|\$+|`+"
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
    marks: list[tuple[Span, str, str]] = []  # the line, its characters, what follows them
    for start, end in lines_of(text):
        match = _FENCE.match(text, start, end)
        if match is not None:
            bar, info = match["bar"], match["info"].strip()
            if bar[0] == "~" or "`" not in info:
                marks.append(((start, end), bar, info))
    fences = []
    index = 0
    while index < len(marks):
        (start, body), bar, info = marks[index]
        word = info.split()[0].lower().strip("{}.") if info else ""
        # A bare line of the same characters, at least as many, closes it.
        later = range(index + 1, len(marks))
        closer = next((at for at in later if not marks[at][2] and marks[at][1].startswith(bar)), None)
        if closer is not None:
            close, line_end = marks[closer][0]
            end = close + len(text[close:line_end].rstrip())
            fences.append(Fence(start=start, body=body, body_end=close, end=end, info=word, closed=True))
            index = closer
        elif info:  # a bare one that nothing closes is a stray closing line; it opens nothing
            end = len(text)
            fences.append(Fence(start=start, body=body, body_end=end, end=end, info=word, closed=False))
            break
        index += 1
    return fences


def protected_spans(text: str, *, unclosed: bool = True, fences: bool = True) -> list[Span]:
    """The spans that no cut may enter: sorted, apart from one another; cuts at their two ends are free.

    Args:
        text: any text.
        unclosed: whether a display or fence that nothing closes protects up to the next blank line.
        fences: whether closed code fences are among the spans.
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
    spans.extend(_formulas(text, closed, breaks, unclosed))
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
    index = bisect_right(positions, after)
    return positions[index] if index < len(positions) else default


class _Token(NamedTuple):
    """What opens or closes mathematics or inline code."""

    start: int
    end: int
    kind: str
    """"[", "]", "(", ")", "begin", "end", "$", "$$" or "`"."""
    name: str
    """Of an environment."""


_ENDS = {"[": ("[", "]"), "(": ("(", ")"), "$$": ("$$",), "$": ("$", "$$"), "`": ("`",)}
"""What opens: the tokens of which the next one closes it, or leaves it unclosed."""


def _formulas(text: str, fences: list[Span], breaks: list[int], unclosed: bool) -> Iterator[Span]:
    """The spans of mathematics and inline code, left to right; an unclosed display may overlap later ones."""
    tokens = _tokens(text, fences)
    environments = _matched_environments(tokens)
    places = {
        kind: [at for at, token in enumerate(tokens) if token.kind in ends] for kind, ends in _ENDS.items()
    }

    def broken(start: int, end: int) -> bool:
        """Whether a blank line or a fence lies between two places."""
        index = bisect_left(breaks, start)
        return index < len(breaks) and breaks[index] < end

    def closer(index: int, kind: str, start: int) -> int | None:
        """The index of the token that closes the one at `index`."""
        if kind == "begin":
            return environments.get(index)
        following = places.get(kind, [])
        after = bisect_right(following, index)
        if after == len(following):
            return None
        token = tokens[following[after]]
        if kind == "$$":
            remaining = len(following) - bisect_left(following, index)
            closes = not (broken(start, token.start) and remaining % 2)
        elif kind == "`":
            closes = "\n" not in text[start : token.start]
        elif kind == "$":
            closes = _is_formula(text, start, token.start) and not broken(start, token.start)
        else:
            closes = token.kind == _ENDS[kind][1]
        return following[after] if closes else None

    index = 0
    half_used = False  # the first dollar of a "$$" has just closed a formula: "$x$$y$"
    while index < len(tokens):
        token = tokens[index]
        kind, start = ("$", token.start + 1) if half_used else (token.kind, token.start)
        half_used = False
        closed_by = closer(index, kind, start)
        if closed_by is not None:
            half_used = kind == "$" and tokens[closed_by].kind == "$$"
            yield start, tokens[closed_by].end - half_used
            index = closed_by + (not half_used)
            continue
        if unclosed and kind in ("[", "begin", "$$"):
            yield start, _next(breaks, start, len(text))
        index += 1


def _is_formula(text: str, start: int, end: int) -> bool:
    """Whether the dollars at `start` and `end` enclose a formula rather than name two sums of money."""
    if end == start + 1 or text[start + 1].isspace() or text[end - 1].isspace():
        return False
    if text[end + 1 : end + 2].isdecimal():
        return False
    before = text[start - 1] if start else " "
    return not (before.isascii() and before.isalnum() and text[start + 1] in _PUNCTUATION)


def _tokens(text: str, fences: list[Span]) -> list[_Token]:
    """The tokens outside the fences; a backslash and what it escapes is none."""
    tokens = []
    fence = 0
    for match in _TOKEN.finditer(text):
        while fence < len(fences) and fences[fence][1] <= match.start():
            fence += 1
        group = match.lastgroup
        if group is None or (fence < len(fences) and fences[fence][0] <= match.start()):
            continue
        is_environment = group in ("begin", "end")
        kind, name = (group, match[group].strip()) if is_environment else (match[group], "")
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


def line_cuts(text: str) -> list[int]:
    """The start of every line (`str.splitlines` says what a line is)."""
    return [start for start, _ in lines_of(text)]


def paragraph_cuts(text: str) -> list[int]:
    """The start of every line that follows a blank one and is not blank itself."""
    cuts = []
    after_blank = False
    for start, end in lines_of(text):
        blank = not text[start:end].strip()
        if after_blank and not blank:
            cuts.append(start)
        after_blank = blank
    return cuts


def token_cuts(text: str) -> list[int]:
    """The start of every run of characters that are not whitespace."""
    return [match.start() for match in re.finditer(r"\S+", text)]


# --- numbered lists -------------------------------------------------------------------------------------------

_ITEM = re.compile(
    r"""(?P<indent>[ \t]*+) (?:>[ \t]?)?
        (?: (?:[-*+•][ \t]++)? (?P<heading>\#{1,6}[ \t]++)? (?P<bold>\*\*|__|\*)?
            (?i:step)[ \t]++(?P<step>\d{1,3})(?![\w]|\.\d)
            (?P<after>[ \t]*+(?:[:.)\]\-–—]|\*|__|[\r\n]|$))?
          | (?P<mark>\#{1,6}[ \t]++)? (?P<strong>\*\*|__)?
            (?: (?P<dot>\d{1,3})\.(?=\s|$|\*|_|[^\W\d_a-z])
              | (?P<paren>\d{1,3})\)(?=\s|$|\*|_)
              | \((?P<both>\d{1,3})\)(?=\s|$|\*|_)
            )
        )""",
    re.VERBOSE,
)

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]")


class ListItem(NamedTuple):
    """An item of a numbered list."""

    start: int
    """Offset of its line."""
    number: int
    written: str
    """Its number as it is written: "Step 1", "1.", "(1)"."""


def numbered_list(text: str, spans: Sequence[Span]) -> list[ListItem]:
    """The items of the numbered list that carries a text; none where there is no such list.

    An item is "Step 3:", "### Step 3", "**Step 3**", "3.", "3)" or "(3)" at the start of a line outside `spans`. Items of one list look alike: the same
    kind of number, heading level, boldness and indentation (up to two spaces count as none), and count up by one from its first item; a number 1 out
    of turn begins it anew. "Step N" goes before every other kind; then headings, bold, less indentation, more items.
    """
    groups: dict[tuple[str, int, bool, int], list[ListItem]] = {}
    for start in outside(line_cuts(text), spans):
        match = _ITEM.match(text, start)
        if match is None:
            continue
        if match["step"]:
            if match["after"] is None and not (match["heading"] or match["bold"]):
                continue  # "Step 3 follows from …" is a sentence
            # One kind, however each is decorated: nobody nests "Step 2" inside "Step 1".
            style, number, written = ("step", 0, False, 0), match["step"], f"Step {match['step']}"
        else:
            number = match["dot"] or match["paren"] or match["both"]
            form = "{}." if match["dot"] else "{})" if match["paren"] else "({})"
            indent = len(match["indent"].expandtabs(4))
            level = len((match["mark"] or "").strip())
            style = (form, level, bool(match["strong"]), indent if indent > 2 else 0)
            written = form.format(number)
        groups.setdefault(style, []).append(ListItem(start, int(number), written))

    def rank(style: tuple[str, int, bool, int]) -> tuple[bool, bool, bool, int, int, int]:
        kind, level, bold, indent = style
        return kind != "step", not level, not bold, indent, -len(lists[style]), lists[style][0].start

    lists = {style: items for style, members in groups.items() if (items := _consecutive(members))}
    return lists[min(lists, key=rank)] if lists else []


def _consecutive(candidates: list[ListItem]) -> list[ListItem]:
    """The candidates that count up by one; runs of a single item are left out."""
    runs: list[list[ListItem]] = []
    for candidate in candidates:
        if runs and candidate.number == runs[-1][-1].number + 1:
            runs[-1].append(candidate)
        elif not runs or candidate.number == 1 or len(runs[-1]) == 1:
            runs.append([candidate])
    return [item for run in runs if len(run) >= 2 for item in run]


def numbered_cuts(text: str, items: Sequence[ListItem], spans: Sequence[Span]) -> list[int]:
    """Cuts for a text that a numbered list carries: its items, and the paragraphs around the list.

    What stands between two items belongs to the first. The last item of a run has no such end: if none of the items before it holds a paragraph of
    prose that is not indented (or a heading), the first such thing ends the list. A heading as high as the items' own always ends it.
    """
    paragraphs = list(outside(paragraph_cuts(text), spans))
    begins = [at for at, item in enumerate(items) if at == 0 or item.number != items[at - 1].number + 1]
    cuts: set[int] = set()
    outer = 0  # where the text outside any list begins
    for begin, end in pairwise([*begins, len(items)]):
        run = [item.start for item in items[begin:end]]
        limit = items[end].start if end < len(items) else len(text)
        cuts.update(run, _between(paragraphs, outer, run[0]))
        outer = _end_of_list(text, run, limit, paragraphs)
    cuts.update(_between(paragraphs, outer, len(text)))
    return sorted(cuts)


def _between(positions: list[int], start: int, end: int) -> list[int]:
    return positions[bisect_left(positions, start) : bisect_left(positions, end)]


def _end_of_list(text: str, run: list[int], limit: int, paragraphs: list[int]) -> int:
    """Where the last item of a run ends: the start of a paragraph, or `limit`."""
    level = _heading_level(text, run[-1])
    inside = set(_between(paragraphs, run[0], run[-1])).difference(run)
    has_heading = any(_heading_level(text, cut) for cut in inside)
    has_prose = any(_is_loose_prose(text, cut) for cut in inside)
    for cut in _between(paragraphs, run[-1] + 1, limit):
        if own := _heading_level(text, cut):
            if not has_heading or own <= level:
                return cut
        elif not has_prose and _is_loose_prose(text, cut):
            return cut
    return limit


def _heading_level(text: str, start: int) -> int:
    match = _HEADING.match(text, start)
    return len(match[1]) if match else 0


def _is_loose_prose(text: str, start: int) -> bool:
    """Whether a paragraph begins with prose at the margin: not indented, no formula, bullet, table or fence."""
    first = text[start : start + 2]
    return first == "**" or first[0] not in " \t\\$-+*•|`~>=#"


# --- sentences ------------------------------------------------------------------------------------------------

# Only the first of a run of stops is looked at, and nothing is given back: else a text of dots takes quadratic time.
_STOP = re.compile(
    r"(?<![.!?…])(?P<stop>[.!?…]++)(?P<close>[\"'”’»*_]*+)(?P<gap>\s++)|(?P<wide>[。！？]++[」』”’）]*+\s*+)"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER = _words(
    "e.g i.e cf vs viz ca approx dr mr mrs ms prof st fig figs eq eqs eqn thm lem prop def resp al incl excl"
)
"""Abbreviations after which a sentence goes on, without their last stop."""
_BEFORE_NUMBER = _words("no nos nr p pp vol art ex sec chap ch ref")
"""Abbreviations when a number follows; ordinary words otherwise ("No. He …")."""
_AT_EITHER = _words("a.m p.m")
"""Abbreviations that may end a sentence as well: what follows decides."""
_NAMES_A_LETTER = _words(
    "is are be equals option options choice choices answer answers point points case line set side variable "
    "and or to angle vertex event = :"
)
"""Words before a capital letter that is the name of something, not a person's initial."""

_BEGINS = _words(
    "a an the this that these those there here he she it its they we i you his her their our my in on at by for "
    "from to with of as if since because when while after before so then thus therefore hence now next first "
    "finally also let each every both all one how what which and but however is are"
)
"""Words that begin a sentence and are no surname: "from Farm Y. There are …"."""

_LIST_LIKE = re.compile(r"[ \t]*(?:[-*+•][ \t]|#{1,6}[ \t]|\(?\d{1,3}[.)][ \t]|>[ \t])")
_FIRST_WORD = re.compile(r"[A-Za-z]{1,12}(?![\w.])")
_LAST_WORD = re.compile(r"[\w.]+\Z")
_LOOK_BACK = 48


def sentence_cuts(text: str) -> list[int]:
    """The start of every sentence.

    A sentence ends at ".", "!" or "?" (a closing quote or emphasis may follow) before whitespace and something that
    can begin a sentence; not after an abbreviation, an initial or a number that counts items; never at "…", "..."
    or before a closing bracket, as in "(is it?)". The full-width 。！？ end one anywhere. A blank line always ends
    one; a line break does where the next line is a list item or a heading, or begins with a capital letter or a
    digit and the line before does not end with a comma, a colon or an operator.
    """
    cuts = set(paragraph_cuts(text))
    for match in _STOP.finditer(text):
        if match["wide"] or _ends_sentence(text, match):
            cuts.add(match.end())
    previous = ""
    for start, end in lines_of(text):
        line = text[start:end].strip()
        if previous and line and _breaks_line(text, start, line, previous):
            cuts.add(start)
        previous = line
    return sorted(cuts)


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    following = text[match.end() : match.end() + 1]
    stop = match["stop"]
    if not following or following.islower() or following in ",;:)]}=+*/<>%^|&":
        return False
    if following in "-–—" and not re.search(r"[\r\n]", match["gap"]):
        return False
    if "…" in stop or stop.count(".") > 1:
        return False
    if stop != ".":
        return True
    before = text[max(0, match.start() - _LOOK_BACK) : match.start()]
    word_match = _LAST_WORD.search(before)
    if word_match is None:
        return True
    word = word_match[0]
    earlier = before[: word_match.start()].rstrip(" \t*_(\"'“‘$")
    lowered = word.lower()
    if lowered in _NEVER:
        return False
    if lowered in _BEFORE_NUMBER:
        return not following.isdigit()
    if word.isdecimal() and len(word) <= 3:
        # "1. Add" counts items at the start of a line and after a stop or a colon; "it is 12. He" does not.
        return not _counts_items(earlier)
    if len(word) == 1 and word.isalpha() and word.isupper():
        if not following.isalpha():
            return True
        word_after = _FIRST_WORD.match(text, match.end())
        begins = word_after is not None and word_after[0].lower() in _BEGINS
        return begins or _names_a_letter(earlier)
    if "." in word and all(len(part) <= 1 for part in word.split(".")) and not word[-1:].isdigit():
        return lowered in _AT_EITHER and following.isupper()
    return True


def _counts_items(earlier: str) -> bool:
    """Whether a number after these words is the number of an item ("1. Add") and no amount or "Fig. 1"."""
    if not earlier or earlier.lower().endswith("step"):
        return True
    if earlier[-1] == ".":
        word = _LAST_WORD.search(earlier[:-1])
        return word is None or word[0].lower() not in _NEVER | _BEFORE_NUMBER
    return earlier[-1] in "!?:;\r\n#>"


def _names_a_letter(earlier: str) -> bool:
    """Whether a capital letter after these words names a thing ("option B.") and is no initial ("J. Smith")."""
    words = earlier[-20:].lower().split()
    return bool(words) and (words[-1] in _NAMES_A_LETTER or words[-1][-1] in "=:")


def _breaks_line(text: str, start: int, line: str, previous: str) -> bool:
    if _LIST_LIKE.match(text, start):
        return True
    if previous[-1] in ",:=+-*/\\(":
        return False
    first = line.lstrip("*_\"'“‘(")[:1]
    return first.isdigit() or (first.isalpha() and not first.islower())


# --- displayed formulas ---------------------------------------------------------------------------------------

_DISPLAY = re.compile(
    r"\\\[|\$\$|\\begin\{(?:align|alignat|array|cases|displaymath|eqnarray|equation|flalign|gather|multline|split|\w{0,2}matrix)\*?\}"
)
_CLOSED_BY = r"\s{0,9}(?:\\\]|\$\$|\\end\{[^{}]{1,40}\})\Z"
_GOES_ON = re.compile(r"[,，]" + _CLOSED_BY)
_IS_OVER = re.compile(r"[.。]" + _CLOSED_BY)
_RELATION = re.compile(r"(?:\\\[|\$\$)\s{0,9}(?:[=<>]|\\(?:leq?|geq?|neq?|approx|equiv|sim)(?![A-Za-z]))")
_INLINE = re.compile(r"\$[^$]*\$|\\\(.*?\\\)")
_WORD = re.compile(r"[^\W\d_]{2,}")


def with_displays(text: str, cuts: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """Those of the sorted cuts (outside the spans) that do not part a displayed formula from the sentence that it belongs to.

    A formula belongs to the text before it unless that text ends a sentence or has no words. After a formula that does not end in a full stop, text
    that begins with a lower-case word or with punctuation goes on with the same sentence. Of two formulas in a row the second belongs to the first only
    where that ends in a comma, or the second begins with a relation: otherwise each is a step of a derivation.
    """
    displays = {start: end for start, end in spans if _DISPLAY.match(text, start)}
    if not displays:
        return list(cuts)
    closes = set(displays.values())
    borders = [*cuts, len(text)]
    nexts = [len(text)] * len(borders)  # where what follows a cut begins, blank lines skipped
    for index in range(len(cuts) - 1, -1, -1):
        share = text[borders[index] : borders[index + 1]]
        bare = share.lstrip()
        nexts[index] = borders[index] + len(share) - len(bare) if bare else nexts[index + 1]
    free = []
    at = end = 0  # where the share before begins, and where what is written in it or before it ends
    for cut, start in zip(cuts, nexts, strict=False):
        end = at + len(bare) if (bare := text[at:cut].rstrip()) else end
        at = cut
        before = text[max(0, end - _LOOK_BACK * 2) : end]
        if end in closes:
            same = (
                bool(_GOES_ON.search(before) or _RELATION.match(text, start))
                if start in displays
                else _continues(text, start) and not _IS_OVER.search(before)
            )
        else:
            same = start in displays and _introduces(before)
        if not same:
            free.append(cut)
    return free


def _introduces(before: str) -> bool:
    """Whether a sentence that a formula may end stands right before a place."""
    line = before.splitlines()[-1].rstrip("*_ \t\"'”’") if before.strip() else ""
    if line[-1:] in tuple(":：,，;；"):
        return True
    return line[-1:] not in tuple(".!?…。！？|`") and _WORD.search(_INLINE.sub(" ", line)) is not None


def _continues(text: str, start: int) -> bool:
    """Whether what begins at a place goes on with a sentence."""
    word = _WORD.match(text, start)
    return text[start : start + 1] in tuple(",.;:)") or (word is not None and word[0].islower())
