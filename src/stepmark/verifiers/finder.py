r"""Where a solution says its final answer.

Five ways are tried in this order, and the first that finds something wins: `\boxed{x}` (the convention of the MATH data set, Hendrycks et al. 2021),
`#### x` (GSM8K, Cobbe et al. 2021), a heading `# Answer` with x under it (PRM800K, Lightman et al. 2023), "The answer is: x" (Math-Shepherd, Wang et
al. 2024), and a letter for multiple-choice questions. Within a way the last place counts. The last number of a text is not taken: that would be a
guess. Every way reads the text once.

    >>> find_answer(r"So $x = \boxed{\frac{1}{2}}$.").text
    '\\frac{1}{2}'
    >>> find_answer("There were 7, and 5 left.") is None
    True
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Way = Literal["boxed", "hashes", "heading", "phrase", "letter"]
r"""How an answer was found: `\boxed{}` or `\fbox{}`; `####`; a heading "Answer"; "the answer is"; a letter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundAnswer:
    """A final answer, and where it stands."""

    text: str
    """The answer as written, without the words or braces around it; not blank."""
    way: Way
    """How it was found."""
    start: int
    """Character offset of `text` in the solution: `solution[start : start + len(text)] == text`."""


def find_answer(text: str) -> FoundAnswer | None:
    """The final answer of a whole solution, or None when it names none."""
    return next((answer for find in _WAYS if (answer := find(text)) is not None), None)


def _found(text: str, start: int, end: int, way: Way) -> FoundAnswer | None:
    part = text[start:end]
    stripped = part.strip()
    if not stripped:
        return None
    return FoundAnswer(text=stripped, way=way, start=start + part.index(stripped))


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ \t]{0,8}")
_UNBRACED = re.compile(r"[^\s${}\\]+")
_BRACE = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ \t]{0,8}\{?|\\.|[{}]", re.S)
_PARAGRAPH = re.compile(r"\n[ \t]{0,64}\n")


def _boxed(text: str) -> FoundAnswer | None:
    if _BOX.search(text) is None:
        return None
    boxes: list[tuple[int, int]] = []  # of the contents, in the order of their ends
    open_: list[
        int | None
    ] = []  # for each open brace: where its box's contents begin, None for a plain group
    for token in _BRACE.finditer(text):
        mark = token.group()
        if mark == "{":
            open_.append(None)
        elif mark == "}":
            start = open_.pop() if open_ else None
            if start is not None:
                while boxes and boxes[-1][0] > start:
                    boxes.pop()  # a box within this one
                boxes.append((start, token.start()))
        elif mark.endswith("{") and len(mark) > 2:
            open_.append(token.end())
        elif _BOX.match(mark):
            bare = _UNBRACED.match(text, token.end())
            if bare is not None:
                boxes.append(bare.span())
    for start, end in reversed(boxes):
        if _PARAGRAPH.search(text, start, end) is None:  # a box cannot hold one: its brace was never closed
            answer = _found(text, start, end, "boxed")
            if answer is not None:
                return answer
    return None


_HASHES = re.compile(r"^####[ \t]*([^\s#].*)$", re.M)
_PLAIN = re.compile(r"[-+]?[$€£]?[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?\s?%?")


def _hashes(text: str) -> FoundAnswer | None:
    matches = list(_HASHES.finditer(text))
    for number, match in enumerate(reversed(matches)):
        # `####` is also a heading of Markdown ("#### 2. Add them up"): only the last line, or a bare number.
        last_line = number == 0 and not text[match.end() :].strip()
        if last_line or _PLAIN.fullmatch(match.group(1).strip()):
            return _found(text, *match.span(1), "hashes")
    return None


_HEADING = re.compile(
    r"^#{1,6}[ \t]{0,8}\**(?:final[ \t]{1,8})?answer\**[ \t]{0,8}:?\**[ \t]{0,8}\n\s{0,64}(\S)", re.M | re.I
)


def _heading(text: str) -> FoundAnswer | None:
    for match in reversed(list(_HEADING.finditer(text))):
        answer = _found(text, *_sentence(text, match.start(1), _line_end(text, match.start(1))), "heading")
        if answer is not None:
            return answer
    return None


_PHRASE = re.compile(
    r"\banswer(?:[ \t]{1,8}(?:to|for)\b[^.:\n]{1,80}?(?=[ \t]is\b|:))?\**"
    r"(?:[ \t]{1,8}is\b(?:[ \t]{1,8}(?:therefore|thus|then|simply)\b)?|[ \t]{0,8}=)?"
    r"[ \t]{0,8}:?\**(?:[ \t]{0,8}\n?){0,3}[ \t]{0,8}",
    re.I,
)
_MARKED = re.compile(r"\bis\b|[:=]", re.I)
_NOT = re.compile(r"(?:not|in|given|as|the same|correct|wrong|right|incorrect)\b", re.I)
_END = re.compile(
    r"[.!?;](?=\s|\*|\"|$)|(?<=[$)\]\d}])[ \t]{0,8},?[ \t]{1,8}(?:because|since|which|where|so|as|i\.e\.)\b|[ \t]I hope\b"
)
_DELIMITED = (
    (re.compile(r"\$\$"), "$$"),
    (re.compile(r"\$"), "$"),
    (re.compile(r"\\\("), r"\)"),
    (re.compile(r"\\\["), r"\]"),
)
_LONGEST = 1000
_DRESS = re.compile(r"[\s*_`\"“]+")


def _sentence(text: str, start: int, end: int) -> tuple[int, int]:
    """The answer that begins at `start`: within its mathematics signs when it begins with one, else to the end of the
    sentence, without bold marks, quotes and the final full stop."""
    markup = _DRESS.match(text, start, end)
    if markup is not None:
        start = markup.end()
    for opening, closing in _DELIMITED:
        sign = opening.match(text, start, end)
        if sign is not None:
            close = text.find(closing, sign.end(), end)
            # "$5 and $6": a price, not mathematics.
            if close >= 0 and not (closing == "$" and text[close + 1 : close + 2].isdigit()):
                after = text[close + len(closing) : end].lstrip(" *")
                if not after or after[0] in ".,;:!?)":
                    return sign.end(), close
            break
    stop = _END.search(text, start, end)
    if stop is not None:
        end = stop.start()
    while end > start and text[end - 1] in ' \t*_`"”.,;:':
        end -= 1
    return start, end


def _line_end(text: str, start: int) -> int:
    # The bound keeps a text of a hundred thousand markers without a newline linear; no answer is so long.
    line = text.find("\n", start, start + _LONGEST)
    return min(len(text), start + _LONGEST) if line < 0 else line


def _phrase(text: str) -> FoundAnswer | None:
    for match in reversed(list(_PHRASE.finditer(text))):
        if _MARKED.search(match.group()) is None or _NOT.match(text, match.end()):
            continue
        answer = _found(text, *_sentence(text, match.end(), _line_end(text, match.end())), "phrase")
        if answer is not None:
            return answer
    return None


_LETTER_LINE = re.compile(r"(?:^|\n)[ \t]{0,8}\**\(?([A-J])(?:\)|\.)?\**[ \t]{0,8}\.?\s{0,64}\Z")
_LETTER_WORD = re.compile(r"\b(?:option|choice)[ \t]{1,8}\**\(?([A-J])\b", re.I)


def _letter(text: str) -> FoundAnswer | None:
    tail = max(0, len(text) - 200)
    line = _LETTER_LINE.search(text, tail)
    if line is not None and (line.start() > 0 or tail == 0):
        return _found(text, *line.span(1), "letter")
    answer = None
    for match in _LETTER_WORD.finditer(text):
        if match.group(1).isupper():
            answer = _found(text, *match.span(1), "letter")
    return answer


_WAYS: tuple[Callable[[str], FoundAnswer | None], ...] = (_boxed, _hashes, _heading, _phrase, _letter)
