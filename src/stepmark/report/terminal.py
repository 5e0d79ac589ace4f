"""A graded solution in the terminal, by rich.

Every row sets its own background and text colour, so it is legible on any terminal theme. Without colours
(`NO_COLOR`, a pipe) the number, the bar and the words "first error" say the same. What a model wrote is shown and never
obeyed: neither control characters nor rich's markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stepmark.report import colour
from stepmark.report.tables import TerminalLines
from stepmark.words import check_solution, first_error_words, number, one_line, visible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult

SCORE = 8
"""Columns for a score: as wide as "not read" and "1.23e-05"."""

BAR = 8
"""Columns for a bar."""

_NARROW = 56
"""Under this many columns the text stands below its score and not beside it."""


def solution_lines(
    problem: str,
    steps: Sequence[str],
    scores: Sequence[float | None],
    *,
    kind: str,
    first_error: int | None,
    headline: str,
    threshold: float | None = None,
    outcome: str | None = None,
    title: str | None = None,
    findings: Mapping[int, Sequence[str]] | None = None,
) -> RenderableType:
    """A graded solution, to be given to `rich.console.Console.print`; it takes the console's width.

    The arguments are those of `stepmark.report.html.solution_fragment`; `title` stands before the headline: the solution's id.
    """
    check_solution(steps, scores, first_error)
    proofs = findings or {}
    # A proof outranks a score: what is refuted is red, however high its score.
    places = [
        0.0 if proofs.get(at) else colour.position(score, kind, threshold) for at, score in enumerate(scores)
    ]
    widths = [colour.extent(score, kind, threshold) for score in scores]
    facts = [fact for fact in (title, headline, first_error_words(first_error), outcome) if fact]

    def lines(options: ConsoleOptions) -> RenderResult:
        from rich.style import Style
        from rich.table import Table
        from rich.text import Text

        def text(content: str, style: Style | str = "") -> Text:
            # A terminal that cannot show a character gets its escape, not an exception.
            shown = content.encode(options.encoding, "backslashreplace").decode(options.encoding)
            return Text(shown, style=style, overflow="fold")

        plain = options.ascii_only
        sign, dot = ("x", " - ") if plain else ("✗", " · ")
        yield text(visible(problem).strip())
        yield text(dot.join(map(one_line, facts)), "bold")
        narrow = options.max_width < _NARROW
        table = Table.grid(expand=True, padding=(0, 1, 0, 0))
        for columns in (2,) if narrow else (3, SCORE):
            table.add_column(width=columns, no_wrap=True, justify="right")
        if not narrow:
            table.add_column(width=BAR, no_wrap=True)
        table.add_column(ratio=1)
        for at, (step, score, place, width) in enumerate(zip(steps, scores, places, widths, strict=True)):
            shade = colour.shade(place, "dark")
            ink, tint = colour.hexa(colour.INK["dark"]), colour.hexa(shade.tint)
            bar = text(meter(width, plain=plain), Style(color=colour.hexa(shade.strong)))
            shown = text("not read" if score is None else number(score), Style(bold=score is not None))
            body = text("")
            if narrow:
                body.append_text(shown).append(" ").append_text(bar).append("\n")
            if at == first_error:
                body.append_text(text(f"{sign} first error\n", Style(bold=True)))
            body.append_text(text(visible(step)))
            for finding in proofs.get(at, ()):
                body.append_text(text(f"\n{sign} {one_line(finding)}", Style(bold=True)))
            cells = [body] if narrow else [shown, bar, body]
            table.add_row(text(str(at + 1)), *cells, style=Style(color=ink, bgcolor=tint))
        yield table

    return TerminalLines(lines)


def meter(width: float | None, *, plain: bool) -> str:
    """A bar of at most `BAR` columns, in half columns where the terminal has the signs.

    `width` is from 0 to 1 (`colour.extent`), None for a blank; `plain` is for a terminal of ASCII only.
    """
    if width is None:
        return " " * BAR
    if plain:
        return ("#" * round(width * BAR)).ljust(BAR, "-")
    full, half = divmod(round(width * BAR * 2), 2)
    return ("━" * full + "╸" * half).ljust(BAR, "─")
