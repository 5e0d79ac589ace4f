r"""Cut one solution's text into steps, without losing a character.

    >>> segmentation = split("2 + 3 = 5\n5 * 2 = 10")
    >>> segmentation.how, segmentation.why
    ('line', 'it has 2 lines')
    >>> [step.text for step in segmentation]
    ['2 + 3 = 5', '5 * 2 = 10']

Whatever the way: the steps rejoin to the text, `text[step.start:step.start + len(step.text)] == step.text`, no step is blank, a step's text begins
and ends with no line break, and no cut falls inside a code fence or a formula (`data.steps.lines`), with two exceptions: "code" cuts inside fences
by its own rules, and what is known to be code has no formulas; "marker" and "token" heed only what is closed.

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
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import overload

from stepmark.catalog import unknown_name
from stepmark.data.steps import lines as borders
from stepmark.data.steps.lines import Fence, Span
from stepmark.data.steps.thoughts import Reasoning, Section, limit_cuts, sections, turn_cuts
from stepmark.errors import InputError, UsageError
from stepmark.records import Step
from stepmark.show.text import amount

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
    """Whether a statement holds others."""
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


WAYS: tuple[str, ...] = (
    "auto", "line", "blank-line", "numbered", "sentence", "marker", "code", "agent", "thought", "whole", "token",
)  # fmt: skip
"""The names that `how` may have, beside "limit:N". "agent" needs messages: `data.conversations.read_messages`."""

_LIMIT = re.compile(r"limit:([1-9][0-9]{0,5})")

_DISPLAYS = ("\\[", "$$", "\\begin")

REASONING: dict[Reasoning, str] = {
    "keep": "its thought and its answer are cut apart, and the marks between them are layout",
    "only": "only its thought is graded",
    "drop": "its thought is not graded",
}
"""The note of a text with a thought."""

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
    """The way that was used, one of `WAYS` or "limit:N"; never "auto"."""
    why: str
    """Why this way: "asked for", or what `auto` saw in the text; and what must be said of the outcome."""

    def _repr_html_(self) -> str:
        from stepmark.show.html import steps_fragment

        return steps_fragment(
            self.texts, headline=f"{amount(len(self.steps), 'step')} by {self.how!r}: {self.why}"
        )

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
    text: str,
    how: str = "auto",
    *,
    marker: str | None = None,
    language: str | None = None,
    reasoning: Reasoning = "keep",
) -> Segmentation:
    """Cut a solution into steps.

    A thought (`data.steps.thoughts`) is cut apart from the answer, by paragraph where `how` is "auto"; its marks are layout. "whole" with
    `reasoning` "keep" is the text as it is, marks and all.

    Args:
        text: the solution, not blank. Every character of it is kept.
        how: one of `WAYS`. "auto" takes the first of these that applies: the marker, if one is given and occurs;
            code, if a language is given or the text is mostly code; a numbered list; paragraphs, unless one of them
            holds more than half of the text in three or more plain lines; sentences, if formulas stand on lines of
            their own; lines; sentences; the whole. "limit:N" makes steps of whole sentences with at most N words (a
            longer sentence is one step).
        marker: the string that ends a step, as "ки" or "<extra_0>"; it goes into `Step.tail`. For "marker" and "auto".
        language: the language of code that does not name its own. For "code" and "auto".
        reasoning: what becomes of thoughts: "keep" them, grade them "only", or "drop" them.

    Raises:
        InputError: the text is blank, or holds nothing but markers; nothing is left of it by `reasoning`.
        UnknownNameError: no such way.
        UsageError: a setting that cannot work: no marker for "marker", a marker for a way that reads none, "agent".
    """
    _check(how, marker, language)
    if not text.strip():
        raise InputError("expected a solution, found a blank text", field="solution")
    return split_parts(text, sections(text), how, marker=marker, language=language, reasoning=reasoning)


def split_parts(
    text: str,
    parts: Sequence[Section],
    how: str,
    *,
    marker: str | None = None,
    language: str | None = None,
    reasoning: Reasoning = "keep",
) -> Segmentation:
    """`split` of a text of which it is known where its thoughts and answers stand."""
    unmarked = [(part.start, part.end) for part in parts if not part.thought] == [(0, len(text))]
    if reasoning == "keep" and (how == "whole" or unmarked):
        return _split(text, how, marker, language)
    steps: list[Step] = []
    at = 0
    chosen, why = how, ASKED
    for part in parts:
        if reasoning == ("drop" if part.thought else "only"):
            continue
        way = "blank-line" if part.thought and how == "auto" else how
        cut = _split(text[part.start : part.end], way, marker, language)
        if how == "auto":
            chosen, why = cut.how, "a thought" if part.thought else cut.why
        gap = text[at : part.start]
        if steps:
            steps[-1] = replace(steps[-1], tail=steps[-1].tail + gap)
            gap = ""
        moved = [replace(step, start=part.start + (step.start or 0)) for step in cut.steps]
        steps += [replace(moved[0], lead=gap + moved[0].lead), *moved[1:]]
        at = part.end
    if not steps:
        needed, present = (
            ("a thought", "no <think> and no channel")
            if reasoning == "only"
            else ("an answer", "only a thought")
        )
        raise InputError(f"expected {needed} (`reasoning` {reasoning}), found {present}", field="solution")
    steps[-1] = replace(steps[-1], tail=steps[-1].tail + text[at:])
    if any(part.thought for part in parts):
        why = f"{why}; {REASONING[reasoning]}"
    return Segmentation(text=text, steps=tuple(steps), how=chosen, why=why)


def _split(text: str, how: str, marker: str | None, language: str | None) -> Segmentation:
    if how == "auto":
        how, why = _choose(text, marker, language)
    else:
        why = ASKED
    if how == "marker" and marker is not None:
        steps, note = _cut_at_marker(text, marker)
    elif how == "code":
        cuts, note = code_cuts(text, language)
        steps = _assemble(text, [(cut, cut) for cut in cuts])
    else:
        cuts, note = _cuts(text, how)
        # Between sentences and between words any white space is the separator.
        blanks = how not in ("sentence", "token", "thought") and not how.startswith("limit")
        steps = _assemble(text, [(cut, cut) for cut in cuts], blanks=blanks)
    return Segmentation(text=text, steps=steps, how=how, why=why if note is None else f"{why}; {note}")


def check_way(how: str) -> None:
    """Refuse a name that is no way to split (`UnknownNameError`)."""
    if how not in WAYS and not _LIMIT.fullmatch(how):
        raise unknown_name("way to split", how, (*WAYS, "limit:N"))


def _check(how: str, marker: str | None, language: str | None) -> None:
    check_way(how)
    if how == "agent":
        raise UsageError(
            "a plain text has no turns to split by 'agent': give the chat messages to "
            "stepmark.data.conversations.read_messages"
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
        return list(
            borders.outside(borders.token_cuts(text), borders.protected_spans(text, unclosed=False))
        ), None
    spans = borders.protected_spans(text)
    if how == "numbered":
        numbered = borders.numbered_list(text, spans)
        if numbered is None:
            return [], "the text has no numbered list, so it is one step"
        return borders.with_displays(text, borders.numbered_cuts(text, numbered, spans), spans), None
    if limit := _LIMIT.fullmatch(how):
        return limit_cuts(text, int(limit[1]), _cuts(text, "sentence")[0]), None
    ways = {
        "line": borders.line_cuts,
        "blank-line": borders.paragraph_cuts,
        "sentence": borders.sentence_cuts,
        "thought": turn_cuts,
    }
    return borders.with_displays(text, list(borders.outside(ways[how](text), spans)), spans), None


def _choose(text: str, marker: str | None, language: str | None) -> tuple[str, str]:
    """The way that fits a text, and why; the order is described in `split`."""
    if marker is not None and marker in text:
        return "marker", f"the marker {marker!r} occurs in it"
    if language is not None:
        return "code", f"its language is given as {language!r}"
    code = looks_like_code(text)
    if code is not None:
        return "code", code
    spans = borders.protected_spans(text)
    numbered = borders.numbered_list(text, spans)
    if numbered is not None:
        return "numbered", f'it has a numbered list, "{numbered.first}" to "{numbered.last}"'
    paragraphs = _shares(text, list(borders.outside(borders.paragraph_cuts(text), spans)))
    lines = _shares(text, list(borders.outside(borders.line_cuts(text), spans)))
    if len(paragraphs) > 1 and not (len(lines) > 2 and _one_paragraph_rules(paragraphs, lines, text)):
        whole = _shares(text, _cuts(text, "blank-line")[0])
        if len(whole) > 1:
            return "blank-line", f"it has {amount(len(whole), 'paragraph')}"
    sentences = _shares(text, _cuts(text, "sentence")[0])
    if len(lines) > 1:
        if any(text[start:end].lstrip().startswith(_DISPLAYS) for start, end in lines):
            return (
                "sentence",
                f"it has formulas on lines of their own within its {amount(len(sentences), 'sentence')}",
            )
        return "line", f"it has {amount(len(lines), 'line')}"
    if len(sentences) > 1:
        return "sentence", f"it is one line of {amount(len(sentences), 'sentence')}"
    return "whole", "it is a single sentence"


def _shares(text: str, cuts: Sequence[int]) -> list[Span]:
    """The pieces between cuts that are not blank."""
    pairs = pairwise([0, *(cut for cut in cuts if cut), len(text)])
    return [(start, end) for start, end in pairs if text[start:end].strip()]


def _one_paragraph_rules(paragraphs: list[Span], lines: list[Span], text: str) -> bool:
    """Whether most of the text is one paragraph of three or more plain lines: there the lines are the steps."""
    start, end = max(paragraphs, key=lambda span: span[1] - span[0])
    inside = [line for line in lines if start <= line[0] < end]
    plain = [line for line in inside if text[line[0]] not in " \t-*+•|>"]
    return 2 * (end - start) > len(text.strip()) and len(inside) >= 3 and 2 * len(plain) > len(inside)


def _cut_at_marker(text: str, marker: str) -> tuple[tuple[Step, ...], str | None]:
    closed = borders.protected_spans(text, unclosed=False)
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
    at = 0
    for start, end in [*separators, (len(text), len(text))]:
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
