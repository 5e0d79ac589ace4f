r"""Which parts of a text are mathematics, which are code, and which are prose.

A dollar is more often money than mathematics in school problems, so `$…$` follows the rule of Pandoc's
Markdown (User's Guide, "tex_math_dollars"): no space after the opening dollar, none before the closing one, no
digit after it. Two plain words in a row between them make it prose, and so does a first dollar that follows a number
and is followed by punctuation. What is not closed is prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_LONGEST = 5000
"""Characters of one formula at most. Also what keeps a text of many openings linear to read."""

_ENVIRONMENTS = (
    "align|alignat|aligned|alignedat|array|cases|CD|dcases|equation|gather|gathered|[bBpvV]?matrix|rcases|smallmatrix"
    "|split|subarray"
)
_OPENING = re.compile(
    r"(?P<fence>(?m:^)[ ]{0,12}(?P<ticks>```+|~~~+)[ ]*(?P<language>[\w+#.-]{0,30})[^\n`]*(?:\n|\Z))"
    r"|(?P<asy>\[asy\])"
    r"|(?P<escaped>\\[\\$`])"
    r"|(?P<display>\$\$|\\\[)"
    r"|(?P<inline>\\\()"
    rf"|\\begin\{{(?P<environment>(?:{_ENVIRONMENTS})\*?)\}}"
    r"|(?P<dollar>\$)"
    r"|(?P<quoted>(?P<marks>`+)(?!`))"
)
_CLOSING = {"$$": "$$", r"\[": r"\]", r"\(": r"\)"}
_NAMED_TEXT = re.compile(r"\\(?:text\w*|mbox|hbox|operatorname\*?|mathrm)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORDS = re.compile(r"[A-Za-z]{2,}[,.;:]?\s+[A-Za-z]{3,}|[A-Za-z]{3,}[,.;:]?\s+[A-Za-z]{2,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of text that is shown in one manner."""

    kind: Literal["prose", "inline", "display", "quoted", "code"]
    """Prose; a formula in the line; a formula on its own line; code in the line; a block of code."""
    text: str
    """Without the delimiters."""
    source: str
    """With them: the sources of all pieces, in order, are the whole text."""
    language: str = ""
    """What a code fence names; "" when it names none."""


def pieces(text: str) -> Iterator[Piece]:
    r"""Cut a text into prose, formulas and code, in order; their `source`s rejoin to the text.

    Formulas: `$…$`, `$$…$$`, `\(…\)`, `\[…\]` and the environments of amsmath. Code: fenced blocks (an unclosed
    fence runs to the end), backticks, and the figures between `[asy]` and `[/asy]` in the MATH data.
    """
    prose = at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        piece = _closed(text, opening)
        if piece is None:
            at = opening.start() + (2 if opening["escaped"] else 1)
            if opening["quoted"] or opening["display"]:
                at = opening.end()
            continue
        if opening.start() > prose:
            yield _prose(text[prose : opening.start()])
        yield piece
        prose = at = opening.start() + len(piece.source)
    if prose < len(text):
        yield _prose(text[prose:])


def _prose(text: str) -> Piece:
    return Piece(kind="prose", text=text, source=text)


def _closed(text: str, opening: re.Match[str]) -> Piece | None:
    """The piece that starts here; None when nothing closes it, or when it is prose after all."""
    start, inside = opening.span()
    if opening["escaped"]:
        return None
    if ticks := opening["ticks"]:
        closing = re.compile(rf"^[ ]{{0,12}}{re.escape(ticks)}{re.escape(ticks[0])}*[ ]*$\n?", re.M).search(
            text, inside
        )
        body, end = (closing.start(), closing.end()) if closing else (len(text), len(text))
        return Piece(
            kind="code", text=text[inside:body], source=text[start:end], language=opening["language"].lower()
        )
    if opening["asy"]:
        end = text.find("[/asy]", inside, inside + _LONGEST)
        return (
            None
            if end < 0
            else Piece(kind="code", text=text[inside:end].strip("\n"), source=text[start : end + 6])
        )
    if marks := opening["marks"]:
        line = text.find("\n", inside)
        end = text.find(marks, inside, line if line >= 0 else len(text))
        if end <= inside or text[end + len(marks) : end + len(marks) + 1] == "`":
            return None
        return Piece(kind="quoted", text=text[inside:end], source=text[start : end + len(marks)])
    if opening["dollar"]:
        return _between_dollars(text, start)
    if environment := opening["environment"]:
        closer = rf"\end{{{environment}}}"
        end = text.find(closer, inside, inside + _LONGEST)
        if end < 0:
            return None
        source = text[start : end + len(closer)]
        return Piece(kind="display", text=source, source=source)
    closer = _CLOSING[opening.group()]
    end = text.find(closer, inside, inside + _LONGEST)
    if end < 0 or not text[inside:end].strip():
        return None
    return Piece(
        kind="display" if opening["display"] else "inline",
        text=text[inside:end].strip(),
        source=text[start : end + len(closer)],
    )


def _between_dollars(text: str, start: int) -> Piece | None:
    closing = re.compile(r"(?<!\\)(?:\\\\)*\$").search(text, start + 1, start + _LONGEST)
    if closing is None:
        return None
    end = closing.end() - 1
    formula = text[start + 1 : end]
    if not formula or formula[0].isspace() or formula[-1].isspace() or text[end + 1 : end + 2].isdigit():
        return None
    if start and text[start - 1].isalnum() and formula[0] in ".,;:!?)":
        return None  # "it costs 5$. Then 6$"
    if "\n\n" in formula or _WORDS.search(_NAMED_TEXT.sub(" 0 ", formula)):
        return None
    return Piece(kind="inline", text=formula, source=text[start : end + 1])
