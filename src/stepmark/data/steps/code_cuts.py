r"""Where code is cut.

Python is parsed with `ast.parse` and never run. Its pieces are a group of imports; the head of a function or class with decorators, signature and
docstring (a function of at most `TINY` lines, and a class of at most `LONG` lines without methods, stays whole); a loop, branch, `with` or `try`, of
which one of more than `LONG` lines is cut into its arms, and a long arm by these rules again; a group of plain statements, up to the next blank line,
`LONG` lines at most. Comment lines go with what they stand above. What does not parse, and what is not Python, is cut after blank lines; a piece of
more than `LONG` lines also where the code comes back to its outer indentation, level by level. A line that closes something ("}", "end", "else" …)
never begins a piece. Markdown is cut into paragraphs and fences; a fence of more than `LONG` lines by the rules above.
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from stepmark.data.steps import lines as borders
from stepmark.data.steps.lines import Fence

LONG = 8
"""A piece of code with more lines than this is cut inside."""
TINY = 3
"""A function with at most this many lines is one piece."""

_EVIDENCE = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.For, ast.While, ast.If, ast.With, ast.Try,
    ast.Return, ast.AugAssign, ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.Lambda,
)  # fmt: skip
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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
    tree = _tree("if 1:\n" * shift + code, shift)
    if isinstance(tree, str) and not shift:
        # Or its first line has lost its indentation to a `strip`.
        indent = min(re.findall(r"(?<=\n)[ \t]+(?=\S)", code), key=len, default="")
        if indent and isinstance(restored := _tree(f"if 1:\n{indent}{code.lstrip()}", 1), ast.Module):
            shift, tree = 1 - code[: len(code) - len(code.lstrip())].count("\n"), restored
    if isinstance(tree, str):
        return tree
    body = tree.body
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
        if isinstance(statement, _Definition):
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
            if _is_compound(statement):
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
        if isinstance(statement, _Definition):
            is_class = isinstance(statement, ast.ClassDef)
            plain = is_class and not any(_is_compound(inner) for inner in statement.body)
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
        for (opening, body), end in zip(arms, [*(opening for opening, _ in arms[1:]), last + 1], strict=True):
            if opening != row:
                self._rows.add(opening)
            if end - opening > LONG:
                self._body(body, above=opening, cut_first=False)

    def _arms(self, statement: ast.stmt, row: int) -> Iterator[tuple[int, list[ast.stmt]]]:
        """The arms of a loop, branch, `with` or `try`: the row of the line that opens each (`else:`), and its body."""
        end = None
        for body in _bodies(statement):
            if end is not None:  # the tree does not hold where `else` and `finally` stand
                rows = range(end + 1, self._first(body[0]) + 1)
                row = next((at for at in rows if _OPENS_ARM.match(self._line(at))), rows[-1])
                row = self._with_comments(end, row, statement.col_offset)
            yield row, body
            end = self._last(body[-1])


_OPENS_ARM = re.compile(r"[ \t\f]*(?:elif|else|except|finally|case)\b")


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The bodies of a compound statement, in order. An `elif` chain is walked, not recursed into."""
    while isinstance(statement, ast.If):
        yield statement.body
        rest = statement.orelse
        if not rest:
            return
        if not isinstance(rest[0], ast.If) or rest[0].col_offset != statement.col_offset:
            yield rest
            return
        statement = rest[0]
    parts = [part for name in ("handlers", "cases") for part in getattr(statement, name, [])]
    named = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    yield from filter(None, [named[0], *(part.body for part in parts), *named[1:]])


def _is_compound(statement: ast.stmt) -> bool:
    return not {"body", "cases"}.isdisjoint(statement._fields)


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


def code_cuts(text: str, language: str | None = None) -> tuple[list[int], str | None]:
    """Sorted cuts for code, or for Markdown with fenced code, and what must be said about them: Python that does not parse.

    `language` is that of code that names none; None: Python if it parses as Python.
    """
    language = language.strip().lower() if language else None
    note = None
    if language is None or language in _PYTHON:
        parsed = parse_python(text)
        if isinstance(parsed, ParsedPython):
            return _PythonCuts(text, parsed).cuts(), None
        note = f"it does not parse as Python ({parsed}), so blank lines and indentation decide"
    fences = borders.fences_of(text)
    if fences:
        return _markdown_cuts(text, fences, language)
    cuts = _block_cuts(text)
    if language is None:
        # Nobody said that it is code; where it is not, its formulas stay whole.
        cuts = list(borders.outside(cuts, borders.protected_spans(text, unclosed=False)))
    return cuts, note


def _markdown_cuts(text: str, fences: list[Fence], language: str | None) -> tuple[list[int], str | None]:
    cuts = set(borders.outside(borders.paragraph_cuts(text), borders.protected_spans(text, unclosed=False)))
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
            inner = _PythonCuts(code, parsed).cuts()
        else:
            inner = _block_cuts(code)
            if spoken in _PYTHON:
                notes.append(
                    f"fence {number} does not parse as Python ({parsed}), so blank lines and indentation decide there"
                )
        # No rule cuts before the first statement: the fence's own first line stays with it.
        cuts.update(fence.body + cut for cut in inner)
    return sorted(cuts), "; ".join(notes) or None


# --- other languages ------------------------------------------------------------------------------------------

_CLOSES = re.compile(
    r"[})\]]|(?:end|else|elif|elsif|elseif|except|finally|catch|rescue|ensure|fi|done|esac|then)\b"
)


def _block_cuts(code: str) -> list[int]:
    """Cuts by blank lines and indentation, for any language."""
    rows = [
        (start, len(line) - len(line.lstrip()), _CLOSES.match(line.strip()) is not None)
        for start, end in borders.lines_of(code)
        if (line := code[start:end].expandtabs(4)).strip()
    ]
    starts = [start for start, _, _ in rows]
    # Blank lines first; a closing line never begins a piece.
    heads = [bisect_left(starts, cut) for cut in borders.paragraph_cuts(code)]
    edges = sorted({0, len(rows), *(row for row in heads if not rows[row][2])})
    cuts = {starts[row] for row in edges[:-1] if row}
    ranges = [(a, b) for a, b in pairwise(edges) if b - a > LONG]
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
            for is_deep, run in groupby(range(a, b), key=lambda row: rows[row][1] > base):
                inside = list(run)
                if is_deep and len(inside) > LONG:
                    ranges.append((inside[0], inside[-1] + 1))
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
    fenced = sum(fence.end - fence.start for fence in borders.fences_of(text))
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
