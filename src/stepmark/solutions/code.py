"""Where code may be cut: Python by its syntax tree, other languages by blank lines and indentation.

Python is parsed with `ast.parse` and never run. Its pieces are

- a group of imports;
- the head of a function or class: decorators, signature, docstring; a function of at most `TINY` lines, and a class of
  at most `LONG` lines without methods, stays whole;
- a loop, a branch (`if`, `match`), a `with` or a `try`; one of more than `LONG` lines is cut into its arms (`elif`,
  `else`, `except`, `case`), and an arm of more than `LONG` lines by these rules again, its first line staying with
  what follows it;
- a group of plain statements: up to the next blank line, `LONG` lines at most.

Comment lines go with what they stand above. Cuts lie only at starts of lines where a statement begins, so no string
and no statement is ever cut.

What does not parse, and what is not Python, is cut after blank lines; a piece of more than `LONG` lines also where the
code comes back to its outer indentation, and inside by the same rule, level by level. A line that closes something
("}", "end", "else" …) never begins a piece.

Markdown text is cut into paragraphs and fences; a fence of at most `LONG` lines of code stays whole, a longer one is
cut by the rules above.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepmark.solutions.borders import paragraph_cuts
from stepmark.solutions.protect import Fence, fences_of, lines_of, outside, protected_spans
from stepmark.solutions.python_code import LONG, ParsedPython, holds_program, parse_python, python_cuts

_PYTHON = frozenset({"python", "py", "python3", "py3", "ipython", "sage"})

_REST_OF_LINE = re.compile(r"[^\S\r\n]*(?:\r\n|\n|\r)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeCuts:
    """Where a text with code may be cut, and how that was found."""

    cuts: tuple[int, ...]
    """Sorted character offsets."""
    note: str | None
    """What must be said about it: that Python code did not parse, and where. None when there is nothing."""


def code_cuts(text: str, language: str | None = None) -> CodeCuts:
    """Cuts for code, or for a Markdown text with fenced code.

    Args:
        text: the code or the Markdown.
        language: the language of code that has no language of its own (bare code, a fence without an info word);
            None: Python if it parses as Python.
    """
    language = language.strip().lower() if language else None
    note = None
    if language is None or language in _PYTHON:
        parsed = parse_python(text)
        if isinstance(parsed, ParsedPython):
            return CodeCuts(cuts=tuple(python_cuts(text, parsed)), note=None)
        note = f"it does not parse as Python ({parsed}), so blank lines and indentation decide"
    fences = fences_of(text)
    if fences:
        return _markdown_cuts(text, fences, language)
    cuts = _block_cuts(text)
    if language is None:
        # Nobody said that it is code; where it is not, its formulas stay whole.
        cuts = list(outside(cuts, protected_spans(text, unclosed=False)))
    return CodeCuts(cuts=tuple(cuts), note=note)


def _markdown_cuts(text: str, fences: list[Fence], language: str | None) -> CodeCuts:
    cuts = set(outside(paragraph_cuts(text), protected_spans(text, unclosed=False)))
    notes = []
    for number, fence in enumerate(fences, start=1):
        # Blank lines inside the code are for the rules of code to judge, even in a fence that nothing closes.
        cuts.difference_update(
            [cut for cut in cuts if fence.start < cut < fence.end] if not fence.closed else []
        )
        cuts.add(fence.start)
        rest = _REST_OF_LINE.match(text, fence.end)
        cuts.add(rest.end() if rest else fence.end)
        code = text[fence.body : fence.body_end]
        if len(code.splitlines()) <= LONG:
            continue
        spoken = fence.info or language
        parsed = parse_python(code) if spoken is None or spoken in _PYTHON else "not Python"
        inner: Sequence[int]
        if isinstance(parsed, ParsedPython):
            inner = python_cuts(code, parsed)
        else:
            inner = _block_cuts(code)
            if spoken in _PYTHON:
                notes.append(
                    f"fence {number} does not parse as Python ({parsed}), so blank lines and indentation decide there"
                )
        # No rule cuts before the first statement: the fence's own first line stays with it.
        cuts.update(fence.body + cut for cut in inner)
    return CodeCuts(cuts=tuple(sorted(cuts)), note="; ".join(notes) or None)


# --- other languages ------------------------------------------------------------------------------------------

_CLOSES = re.compile(
    r"[})\]]|(?:end|else|elif|elsif|elseif|except|finally|catch|rescue|ensure|fi|done|esac|then)\b"
)


def _block_cuts(code: str) -> list[int]:
    """Cuts by blank lines and indentation, for any language."""
    rows = [
        (start, len(line) - len(line.lstrip()), _CLOSES.match(line.strip()) is not None)
        for start, end in lines_of(code)
        if (line := code[start:end].expandtabs(4)).strip()
    ]
    starts = [start for start, _, _ in rows]
    # Blank lines first; a closing line never begins a piece.
    heads = [bisect_left(starts, cut) for cut in paragraph_cuts(code)]
    borders = sorted({0, len(rows), *(row for row in heads if not rows[row][2])})
    cuts = {starts[row] for row in borders[:-1] if row}
    ranges = [(a, b) for a, b in pairwise(borders) if b - a > LONG]
    # Then level by level. Each level that a row takes part in costs it at least one column of indentation, so the
    # whole is linear in the length of the code.
    while ranges:
        low, high = ranges.pop()
        base = min(indent for _, indent, _ in rows[low:high])
        pieces = [low]
        for row in range(low + 1, high):
            _, indent, closes = rows[row]
            back = rows[row - 1][1] > base or rows[row - 1][2]
            if indent == base and back and not closes:
                pieces.append(row)
                cuts.add(starts[row])
        for a, b in pairwise([*pieces, high]):
            if b - a <= LONG:
                continue
            run_start = None
            for row in range(a, b + 1):
                deep = row < b and rows[row][1] > base
                if deep and run_start is None:
                    run_start = row
                elif not deep and run_start is not None:
                    if row - run_start > LONG:
                        ranges.append((run_start, row))
                    run_start = None
    return sorted(cuts)


# --- is it code? ----------------------------------------------------------------------------------------------

_PYTHON_LINE = re.compile(
    r"(?:def \w+\(|class \w+[(:]|import \w|from [\w.]+ import |@\w|return\b|assert |raise |print\(|else:|try:|except\b)"
)
_OTHER_LINE = re.compile(
    r"#include\b|using \w|package \w|(?:public|private|static|const|let|var|func|fn|function) |//"
)


def looks_like_code(text: str) -> str | None:
    """Why a text is taken for code ("it parses as Python", …), or None if it is not.

    That a text parses is not enough, since "x = 5" does: it must hold a statement or an expression that mathematics
    does not write. Fenced code counts when it is at least half of the text's characters.
    """
    parsed = parse_python(text)
    if isinstance(parsed, ParsedPython) and holds_program(parsed):
        return "it parses as Python"
    fenced = sum(fence.end - fence.start for fence in fences_of(text))
    if fenced:
        return "at least half of it is fenced code" if 2 * fenced >= len(text.strip()) else None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marks = sum(1 for line in lines if _is_code_line(line))
    return "most of its lines look like code" if marks >= 3 and 2 * marks > len(lines) else None


def _is_code_line(line: str) -> bool:
    if line.startswith(("for ", "while ", "if ", "elif ", "with ")) and line.endswith(":"):
        return True
    if "\\" in line and not line.endswith((";", ":")):
        return False  # TeX ends its lines with braces too
    if line.endswith((";", "{")) or line in ("}", "};", "},", "})", "});"):
        return True
    return _PYTHON_LINE.match(line) is not None or _OTHER_LINE.match(line) is not None
