"""Tables: the same cells in the terminal, as Markdown and as HTML, whatever stands in them."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from stepmark.errors import InputError
from stepmark.report.tables import Table, interval_text, markdown, table_html, terminal
from stepmark.words import one_line

PLAIN = Table(
    title="First error",
    columns=("Subset", "F1", "Solutions"),
    rows=(("GSM8K", "47.9 [43.9, 51.9]", "400"), ("MATH", "–", "1000")),
    note="In percent.",
)


class Parts(HTMLParser):
    """Texts by the element that holds them, and every tag and attribute."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        self.texts.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def of(self, *tags: str) -> list[str]:
        """The texts of elements, one an element, where nothing is nested in them."""
        found: list[str] = []
        for at, (tag, text) in enumerate(self.texts):
            if tag in tags:
                if text == "" and self._starts(at):
                    found.append("")
                else:
                    found[-1] += text
        return found

    def _starts(self, at: int) -> bool:
        return self.texts[at][1] == ""


# Intervals


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.196, 0.151, 0.243), "19.6 [15.1, 24.3]"),
        ((19.6, 15.1, 24.3, 1), "19.6 [15.1, 24.3]"),
        ((0.8712, 0.855, 0.8839, 1, 3), "0.871 [0.855, 0.884]"),
        ((0.5, None, None), "50.0"),
        ((0.5, 0.25, None), "50.0 [25.0, –]"),
        ((None, 0.1, 0.2), "–"),
        ((None, None, None), "–"),
        ((0.0, -0.0001, 0.0001), "0.0 [0.0, 0.0]"),
        ((-0.034, -0.05, 0.0), "-3.4 [-5.0, 0.0]"),
        ((1.0, 1.0, 1.0, 100, 0), "100 [100, 100]"),
    ],
)
def test_interval_text(arguments: tuple[float | None, ...], expected: str) -> None:
    assert interval_text(*arguments) == expected  # type: ignore[arg-type]


# The record


def test_a_table_is_rectangular_and_of_strings() -> None:
    with pytest.raises(InputError, match=r"table 't'"):
        Table(title="t", columns=("a", "b"), rows=(("1", "2"), ("3",)))
    with pytest.raises(InputError, match=r"0\.5"):
        Table(title="t", columns=("a", "b"), rows=(("1", 0.5),))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="left"):
        Table(title="t", columns=("a", "b"), rows=(), align=("left",))


# Markdown


def test_markdown_is_a_pipe_table() -> None:
    assert markdown(PLAIN) == (
        "**First error**\n\n"
        "| Subset |                F1 | Solutions |\n"
        "| ------ | ----------------: | --------: |\n"
        "| GSM8K  | 47.9 [43.9, 51.9] |       400 |\n"
        "| MATH   |                 – |      1000 |\n"
        "\nIn percent.\n"
    )


@pytest.mark.parametrize(
    ("cell", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("<script>", r"\<script>"),
        ("*a* _b_ `c` ~~d~~ $e$", r"\*a\* \_b\_ \`c\` \~\~d\~\~ \$e\$"),
        ("snake_case [1.0, 2.0]", "snake_case [1.0, 2.0]"),
        ("[x](javascript:1) ![y](z)", r"[x]\(javascript:1) \![y]\(z)"),
        ("a\nb\r\nc", "a b c"),
        ("&lt; & co", r"\&lt; & co"),
        ("http://a.b www.c.d", r"http\://a.b www\.c.d"),
        ("@somebody", r"\@somebody"),
    ],
)
def test_what_markdown_would_obey_is_escaped(cell: str, escaped: str) -> None:
    assert markdown(Table(title="", columns=("c",), rows=((cell,),))).splitlines()[2] == (
        f"| {escaped:<{max(3, len(escaped))}} |"
    )


def cells_of(line: str) -> list[str]:
    """A row of a pipe table as GitHub reads it: cut at pipes that no backslash escapes, then unescaped."""
    assert line.startswith("| ") and line.endswith(" |")
    cells, cell, escaped = [], "", False
    for sign in line[1:-1]:
        if escaped or sign not in "\\|":
            cell += sign
            escaped = False
        elif sign == "\\":
            escaped = True
        else:
            cells.append(cell)
            cell = ""
    return [part.strip() for part in [*cells, cell]]


@given(
    st.lists(
        st.tuples(st.text(max_size=20), st.text(alphabet="\\|`*_<&a[](:/", max_size=9)),
        min_size=1,
        max_size=4,
    )
)
def test_markdown_keeps_every_cell(rows: list[tuple[str, str]]) -> None:
    lines = markdown(Table(title="", columns=("one", "two"), rows=tuple(rows))).split("\n")
    assert len(lines) == len(rows) + 3  # the head, the rule, and the end of the last line
    read = [cells_of(line) for line in lines[2:-1]]
    assert read == [[one_line(cell).strip() for cell in row] for row in rows]


# HTML


def test_html_holds_the_table() -> None:
    parts = Parts(table_html(PLAIN))
    assert parts.of("figcaption") == ["First error"]
    assert parts.of("th") == ["Subset", "F1", "Solutions", "GSM8K", "MATH"]
    assert [cell.strip() for cell in parts.of("td")] == ["47.9", "400", "–", "1000"]
    assert parts.of("span") == ["[43.9, 51.9]"]  # where the window is narrow, the line breaks before it
    assert parts.of("p") == ["In percent."]


@given(st.text(max_size=60))
@settings(deadline=None)
def test_html_of_any_text_is_inert(text: str) -> None:
    parts = Parts(table_html(Table(title=text, columns=(text, "b"), rows=((text, text),), note=text)))
    assert set(parts.tags) <= {
        "figure",
        "figcaption",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
        "p",
        "button",
        "details",
        "summary",
        "pre",
    }
    assert parts.names <= {"class", "scope", "tabindex", "type", "hidden"}
    assert parts.of("td") == [one_line(text)]
    assert parts.of("th") == [one_line(text), "b", one_line(text)]


# The terminal


def printed(table: Table, width: int = 80, *, encoding: str = "utf-8", colours: bool = False) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = Console(
        file=file,
        width=width,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
        legacy_windows=False,
        _environ={},
    )
    console.print(terminal(table))
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(encoding)


def test_a_narrow_terminal_gets_lines_of_column_and_cell() -> None:
    lines = [line.rstrip() for line in printed(PLAIN, 26).splitlines()]
    assert lines[:4] == ["First error", "GSM8K", "  F1: 47.9 [43.9, 51.9]", "  Solutions: 400"]


@pytest.mark.parametrize("width", [8, 21, 39, 40, 60, 120])
def test_terminal_keeps_to_its_width_and_loses_nothing(width: int) -> None:
    words = [f"w{at}" for at in range(12)]
    table = Table(
        title="数学" * 9,
        columns=("name", "value"),
        rows=((" ".join(words), "12.5"), ("x" * 50, "7.25")),
        note="n " * 40,
    )
    out = printed(table, width)
    assert max(cell_len(line) for line in out.splitlines()) <= width
    assert re.findall(r"w\d+", out) == words
    assert out.count("x") == 50 and out.count("数") == 9 and out.count("n ") + out.count("n\n") >= 40
    assert "12.5" in out and "7.25" in out


def test_terminal_obeys_neither_control_characters_nor_markup() -> None:
    cell = "[bold red]x[/] :smile: \x1b]0;t\a\x1b[2J \u202e"
    out = printed(Table(title=cell, columns=("a", cell), rows=(("1", cell),)), 160)
    assert out.count("[bold red]x[/] :smile: \\x1b]0;t\\x07\\x1b[2J \\u202e") == 3
    assert not set(out) & set("\x1b\a\u202e")
