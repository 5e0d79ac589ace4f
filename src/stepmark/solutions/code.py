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

Python's own borders: the syntax tree of a solution says where it may be cut.

The code is parsed with `ast.parse` and never run. `solutions.code` tells the rules.
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepmark.solutions.borders import Fence, fences_of, lines_of, outside, paragraph_cuts, protected_spans

LONG = 8
"""A piece of code with more lines than this is cut inside."""
TINY = 3
"""A function with at most this many lines is one piece."""

_Arm = tuple[int, list[ast.stmt]]
"""Row of the line that opens it (`else:`), and its body."""

_EVIDENCE = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.For,
    ast.While,
    ast.If,
    ast.With,
    ast.Try,
    ast.Return,
    ast.AugAssign,
    ast.ListComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Lambda,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedPython:
    """Python code that parsed."""

    body: list[ast.stmt]
    shift: int
    """Lines that were put before the code so that it parses."""


def parse_python(code: str) -> ParsedPython | str:
    """The statements of Python code, or why it does not parse."""
    reason = "blank"
    first = next((line for line in code.splitlines() if line.strip()), None)
    if first is None:
        return reason
    # A completion may begin in the middle of a function, indented.
    shift = 1 if first[0] in " \t" else 0
    found = _tree("if 1:\n" * shift + code, shift)
    if isinstance(found, str) and not shift:
        # Or its first line has lost its indentation to a `strip`.
        indent = min(re.findall(r"(?<=\n)[ \t]+(?=\S)", code), key=len, default="")
        if indent and isinstance(restored := _tree(f"if 1:\n{indent}{code.lstrip()}", 1), ast.Module):
            shift, found = 1 - code[: len(code) - len(code.lstrip())].count("\n"), restored
    if isinstance(found, str):
        return found
    body = found.body
    if shift and isinstance(body[0], ast.If):
        if body[0].orelse:
            return "it begins inside a branch"
        body = body[0].body + body[1:]
    return ParsedPython(body=body, shift=shift) if body else "no statement"


def _tree(source: str, shift: int) -> ast.Module | str:
    """The syntax tree, or why there is none; `shift` lines of the source are not the author's."""
    with warnings.catch_warnings():
        # An invalid escape in the code is the code's affair; where warnings are errors it must not be ours.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except SyntaxError as error:
            line = f"line {error.lineno - shift}: " if error.lineno and error.lineno > shift else ""
            return f"{line}{error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            # Null bytes, lone surrogates; nesting that is too deep for the parser (which says MemoryError).
            return f"{type(error).__name__}: {str(error) or 'nested too deeply'}"


def python_cuts(code: str, parsed: ParsedPython) -> list[int]:
    """Where parsed code may be cut: sorted offsets of starts of lines, the first piece's left out."""
    return _PythonCuts(code, parsed).cuts()


class _PythonCuts:
    """The cuts of one piece of parsed Python. Rows count from 0."""

    def __init__(self, text: str, parsed: ParsedPython) -> None:
        self._text = text
        self._parsed = parsed
        # Python's own idea of a line: str.splitlines knows more line ends than the tokenizer does.
        ends = [match.end() for match in re.finditer(r"\r\n|\n|\r", text)]
        self._starts = [0, *ends]
        self._rows: set[int] = set()

    def cuts(self) -> list[int]:
        """Sorted offsets of starts of lines."""
        self._body(self._parsed.body, above=-1, cut_first=False)
        return sorted(self._starts[row] for row in self._rows)

    def _line(self, row: int) -> str:
        end = self._starts[row + 1] if row + 1 < len(self._starts) else len(self._text)
        return self._text[self._starts[row] : end]

    def _first(self, statement: ast.stmt) -> int:
        line = statement.lineno
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            line = min([line, *(decorator.lineno for decorator in statement.decorator_list)])
        return line - 1 - self._parsed.shift

    def _last(self, statement: ast.stmt) -> int:
        return (statement.end_lineno or statement.lineno) - 1 - self._parsed.shift

    def _with_comments(self, above: int, row: int, column: int) -> int:
        """The row where the comments over a line begin; only rows under `above` belong to it."""
        top = row
        for candidate in range(row - 1, above, -1):
            line = self._line(candidate)
            bare = line.strip()
            if bare.startswith("#") and len(line) - len(line.lstrip()) <= column:
                top = candidate
            elif bare:
                break
        return top

    def _body(self, statements: Sequence[ast.stmt], *, above: int, cut_first: bool) -> None:
        """Cut a run of statements whose opening line is row `above`."""
        group = ""  # what the piece being gathered is made of
        began = previous = above
        for position, statement in enumerate(statements):
            row, last = self._first(statement), self._last(statement)
            if row <= previous:  # after a semicolon, or in the opening line itself
                previous = max(previous, last)
                continue
            at = self._with_comments(previous, row, statement.col_offset)
            kind = "import" if isinstance(statement, ast.Import | ast.ImportFrom) else "plain"
            if _arms_or_head(statement):
                kind = "compound"
            joins = kind == group == "import" or (
                kind == group == "plain"
                and last - began < LONG
                and not any(not self._line(r).strip() for r in range(previous + 1, at))
            )
            if position == 0 and not cut_first:
                joins = True
                began = row
            if not joins:
                self._rows.add(at)
                began = at
            group = kind
            if kind == "compound":
                self._compound(statement, row, last)
            previous = last

    def _compound(self, statement: ast.stmt, row: int, last: int) -> None:
        size = last - row + 1
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_class = isinstance(statement, ast.ClassDef)
            plain = is_class and not any(_arms_or_head(inner) for inner in statement.body)
            if size <= TINY or (plain and size <= LONG):
                return
            body, head_end = statement.body, row
            if ast.get_docstring(statement, clean=False) is not None:
                head_end = self._last(body[0])
                body = body[1:]
            self._body(body, above=max(head_end, statement.lineno - 1 - self._parsed.shift), cut_first=True)
            return
        if size <= LONG:
            return
        arms = list(self._arms(statement, row))
        ends = [opening for opening, _ in arms[1:]] + [last + 1]
        for (opening, body), end in zip(arms, ends, strict=True):
            if opening != row:
                self._rows.add(opening)
            if end - opening > LONG:
                self._body(body, above=opening, cut_first=False)

    def _arms(self, statement: ast.stmt, row: int) -> Iterator[_Arm]:
        """The arms of a loop, branch, `with` or `try`. An `elif` chain is walked, not recursed into."""
        column = statement.col_offset
        while isinstance(statement, ast.If):
            yield row, statement.body
            rest = statement.orelse
            if not rest:
                return
            end = self._last(statement.body[-1])
            chained = rest[0]
            if isinstance(chained, ast.If) and self._line(self._first(chained)).lstrip().startswith("elif"):
                statement = chained
                row = self._with_comments(end, self._first(chained), column)
            else:
                yield self._keyword(rest, end, column), rest
                return
        if isinstance(statement, ast.Match):
            yield row, statement.cases[0].body
            for case in statement.cases[1:]:
                yield case.pattern.lineno - 1 - self._parsed.shift, case.body
            return
        body: list[ast.stmt] = getattr(statement, "body", [])
        yield row, body
        end = self._last(body[-1])
        if isinstance(statement, ast.Try | ast.TryStar):
            for handler in statement.handlers:
                first = handler.lineno - 1 - self._parsed.shift
                yield self._with_comments(end, first, column), handler.body
                end = self._last(handler.body[-1])
        for rest in (getattr(statement, "orelse", []), getattr(statement, "finalbody", [])):
            if rest:
                yield self._keyword(rest, end, column), rest
                end = self._last(rest[-1])

    def _keyword(self, body: list[ast.stmt], above: int, column: int) -> int:
        """The row of the `else:` or `finally:` before a body; the tree does not hold it."""
        first = self._first(body[0])
        for row in range(first, above, -1):
            if re.match(r"[ \t\f]*(?:else|finally)\b\s*(?::|\\)", self._line(row)):
                return self._with_comments(above, row, column)
        return first


def _arms_or_head(statement: ast.stmt) -> bool:
    """Whether a statement holds others."""
    return isinstance(
        statement,
        ast.FunctionDef
        | ast.AsyncFunctionDef
        | ast.ClassDef
        | ast.For
        | ast.AsyncFor
        | ast.While
        | ast.If
        | ast.With
        | ast.AsyncWith
        | ast.Try
        | ast.TryStar
        | ast.Match,
    )


def holds_program(parsed: ParsedPython) -> bool:
    """Whether parsed text is a program: "x = 5" and "f(2)" parse too, and are mathematics.

    A program holds a statement or an expression that mathematics does not write, or prints.
    """
    return any(
        isinstance(node, _EVIDENCE)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print")
        for statement in parsed.body
        for node in ast.walk(statement)
    )


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
