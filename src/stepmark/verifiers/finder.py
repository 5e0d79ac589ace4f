r"""Where a solution says its final answer.

Marked answers come first: `\boxed{x}` (the convention of the MATH data set, Hendrycks et al. 2021), `#### x` (GSM8K, Cobbe et al. 2021), a heading
`# Answer` with x under it (PRM800K, Lightman et al. 2023), "The answer is: x" (Math-Shepherd, Wang et al. 2024) and its like in other languages. Of
several, the last in the text counts. A text without a mark is read by its concluding statement (`statement.py`), then by a letter of a multiple-choice
question. Thoughts (`<think>`, harmony's channels) are not read. The last number of a text is not taken: that would be a guess.

    >>> find_answer(r"So $x = \boxed{\frac{1}{2}}$.").text
    '\\frac{1}{2}'
    >>> find_answer("They have 7 red and 5 blue pens. So they have 12 pens.").text
    '12'
    >>> find_answer("They have 7 red and 5 blue pens. So they have 12 pens.", "marked") is None
    True
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from stepmark.data.steps.thoughts import sections
from stepmark.verifiers.statement import concluding_value, value_within

Answers = Literal["stated", "marked"]
"""Which answers are read: "marked", only those behind a mark; "stated", also the value of the concluding statement."""
Way = Literal["boxed", "hashes", "heading", "phrase", "statement", "letter", "whole"]
r"""How an answer was found: `\boxed{}` or `\fbox{}`; `####`; a heading "Answer"; "the answer is"; the concluding statement; a letter; the whole text, which is
one short line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundAnswer:
    """A final answer, and where it stands."""

    text: str
    """The answer as written, without the words or braces around it; not blank."""
    way: Way
    """How it was found."""
    start: int
    """Character offset of `text` in the solution: `solution[start : start + len(text)] == text`."""


@lru_cache(maxsize=64)  # verifiers and votes read a text one after the other
def find_answer(text: str, answers: Answers = "stated") -> FoundAnswer | None:
    """The final answer of a whole solution, or None when it names none."""
    text = without_thoughts(text)
    stated = _marked(text)
    if stated is None and answers == "stated":
        stated = _statement(text)
    return stated or find_letter(text)


@lru_cache(maxsize=64)
def without_thoughts(text: str) -> str:
    """The text with its thoughts and their marks as blanks, so that offsets stay."""
    parts = sections(text)
    if (
        len(parts) == 1
        and not parts[0].thought
        and not text[: parts[0].start].strip()
        and not text[parts[0].end :].strip()
    ):
        return text
    answer = [" "] * len(text)
    for part in parts:
        if not part.thought:
            answer[part.start : part.end] = text[part.start : part.end]
        elif part.end > part.start:
            answer[part.start] = "\n"
    return "".join(answer)


_VALUE = re.compile(r"[\d\\$^=]|\b[A-Z]\b")


@lru_cache(maxsize=64)
def _marked(text: str) -> FoundAnswer | None:
    """The last marked answer. A later phrase outranks a box only where it holds a value: "the answer is therefore clear" does not."""
    boxes = _boxed(text)
    if boxes == "unfinished":
        return None
    ways = [stated for stated in (boxes, _hashes(text), _heading(text), _phrase(text)) if stated is not None]
    if not ways:
        return None
    last = max(ways, key=lambda stated: stated.start)
    if last.way in ("phrase", "heading") and _VALUE.search(last.text) is None:
        return next((stated for stated in ways if stated.way in ("boxed", "hashes")), last)
    return last


def _statement(text: str) -> FoundAnswer | None:
    span = concluding_value(text)
    return None if span is None else _found(text, *span, "statement")


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


_BETWEEN = re.compile(
    r"[\s,;.$]*(?:\\[()\[\]]|\\(?:text|quad|qquad|,|;| )|\{?\s?(?:and|or|\\text\{ ?(?:and|or) ?\})\s?\}?|[A-Za-z](?:_\{?\d\}?)?\s?=|[\s,;.$])*"
)


def _boxed(text: str) -> FoundAnswer | Literal["unfinished"] | None:
    r"""The last box; boxes side by side, one list ("\\boxed{1}, \\boxed{2}"), are one answer. "unfinished": the text was cut off within a box."""
    if _BOX.search(text) is None:
        return None
    boxes: list[
        tuple[int, int, int]
    ] = []  # start of the mark, start and end of the contents, in the order of their ends
    # For each open brace: where its box's mark and contents begin, None for a plain group.
    open_: list[tuple[int, int] | None] = []
    for token in _BRACE.finditer(text):
        mark = token.group()
        if mark == "{":
            open_.append(None)
        elif mark == "}":
            box = open_.pop() if open_ else None
            if box is not None:
                while boxes and boxes[-1][1] > box[1]:
                    boxes.pop()  # a box within this one
                boxes.append((*box, token.start()))
        elif mark.endswith("{") and len(mark) > 2:
            open_.append((token.start(), token.end()))
        elif _BOX.match(mark):
            bare = _UNBRACED.match(text, token.end())
            if bare is not None:
                boxes.append((token.start(), *bare.span()))
    for box in reversed(open_):
        if box is not None and text[box[1] :].strip() and _PARAGRAPH.search(text, box[1]) is None:
            return "unfinished"
    # A box cannot hold a paragraph's end: its brace was never closed.
    boxes = [
        box
        for box in boxes
        if text[box[1] : box[2]].strip() and _PARAGRAPH.search(text, box[1], box[2]) is None
    ]
    if not boxes:
        return None
    first = last = len(boxes) - 1
    while first > 0 and _BETWEEN.fullmatch(text, boxes[first - 1][2] + 1, boxes[first][0]):
        first -= 1
    contents = {text[start:end].strip() for _, start, end in boxes[first:]}
    if len(contents) == 1 or _PARAGRAPH.search(text, boxes[first][0], boxes[last][2]):
        return _found(text, *boxes[last][1:], "boxed")
    end = boxes[last][2]
    return _found(text, boxes[first][0], end + (text[end : end + 1] == "}"), "boxed")


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
        span = _sentence(text, match.start(1), _line_end(text, match.start(1)))
        answer = _found(text, *(value_within(text, *span) or span), "heading")
        if answer is not None:
            return answer
    return None


_PHRASE = re.compile(
    r"\banswer(?:[ \t]{1,8}(?:to|for)\b[^.:\n]{1,80}?(?=[ \t]is\b|:))?\**"
    r"(?:[ \t]{1,8}is\b(?:[ \t]{1,8}(?:therefore|thus|then|simply)\b)?|[ \t]{0,8}=)?"
    r"[ \t]{0,8}:?\**(?:[ \t]{0,8}\n?){0,3}[ \t]{0,8}"
    # The same in other languages: the word, and the copula or the colon behind it.
    r"|(?:\b(?:r\u00e9ponse|respuesta|resposta|risposta|antwort|antwoord|odpowied\u017a|odpov\u011b\u010f|cevap|svar(?:et)?|vastaus|jawaban|r\u0103spunsul|"
    r"\u043e\u0442\u0432\u0435\u0442|\u0432\u0456\u0434\u043f\u043e\u0432\u0456\u0434\u044c|\u0111\u00e1p \u00e1n|c\u00e2u tr\u1ea3 l\u1eddi)(?:[ \t](?:finale?|final|correcta|correcte|correta|corretta))?\**"
    r"[ \t]{0,8}(?:(?:est|es|\u00e9|\u00e8|ist|lautet|is|to|jest|je|\u00e4r|er|on|este|adalah|l\u00e0|\u0440\u0430\u0432\u0435\u043d)\b[ \t]{0,8}:?|[:\u2014=-])"
    r"|(?:\u7b54\u6848|\u7b54\u3048|\u6700\u7ec8\u7ed3\u679c)\**[ \t]{0,8}(?:\u662f|\u4e3a|\u7b49\u4e8e|\u306f|[:\uff1a])|(?<!\w)(?:\uc815\ub2f5|\ub2f5)(?:\uc740|[ \t]?[:\uff1a])"
    r"|\u0627\u0644(?:\u062c\u0648\u0627\u0628|\u0625\u062c\u0627\u0628\u0629)[ \t](?:\u0647\u0648|\u0647\u064a)|\u0909\u0924\u094d\u0924\u0930[ \t]?(?:\u0939\u0948|[:]))\**[ \t:\uff1a]{0,8}",
    re.I,
)
_COPULA = re.compile(r"\bis\b|[:=]", re.I)
_NOT = re.compile(r"(?:not|in|given|as|the same|correct|wrong|right|incorrect)\b", re.I)
_END = re.compile(
    r"[.!?;](?=\s|\*|\"|$)|[\u3002\uff01\uff1b]|(?<=[$)\]\d}])[ \t]{0,8},?[ \t]{1,8}(?:because|since|which|where|so|as|i\.e\.)\b|[ \t]I hope\b"
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
        english = match.group()[:6].lower() == "answer"
        if (english and _COPULA.search(match.group()) is None) or _NOT.match(text, match.end()):
            continue
        start, end = _sentence(text, match.end(), _line_end(text, match.end()))
        bold = re.match(r"[*_]{0,4}", text[end:])
        value = value_within(text, start, end + (0 if bold is None else bold.end()))
        answer = _found(text, *(value or (start, end)), "phrase")
        if answer is not None:
            return answer
    return None


_LETTER_LINE = re.compile(r"(?:^|\n)[ \t]{0,8}\**\(?([A-J])(?:\)|\.)?\**[ \t]{0,8}\.?\s{0,64}\Z")
_LETTER_WORD = re.compile(
    r"\b(?:option|choice)[ \t]{1,8}(?:is[ \t]{1,8}(?:option[ \t]{1,8})?)?\**\(?([A-J])\b(?!')", re.I
)


def find_letter(text: str) -> FoundAnswer | None:
    """The letter of a multiple-choice question: alone on the last line, or "option B"."""
    tail = max(0, len(text) - 200)
    line = _LETTER_LINE.search(text, tail)
    if line is not None and (line.start() > 0 or tail == 0):
        return _found(text, *line.span(1), "letter")
    answer = None
    for match in _LETTER_WORD.finditer(text):
        if match.group(1).isupper():
            answer = _found(text, *match.span(1), "letter")
    return answer
