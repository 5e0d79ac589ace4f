"""Python's own borders: the syntax tree of a solution says where it may be cut.

The code is parsed with `ast.parse` and never run. `solutions.code` tells the rules.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
