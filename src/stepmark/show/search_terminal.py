"""A search in the terminal, by rich: the chosen solution step by step, and what each round kept and pruned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepmark.show import colour
from stepmark.show.search import STATES, NodeView, Round, SearchView, rounds
from stepmark.show.terminal import BAR, SCORE, meter
from stepmark.show.text import number, one_line, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.style import Style
    from rich.text import Text


def search_lines(view: SearchView) -> RenderableType:
    """A search, to be given to `rich.console.Console.print`; it takes the console's width.

    Every round says how many nodes were written in it and what became of them, and the steps of the chosen solution stand
    under the round in which they were written. Rounds without such a step are told of together.
    """
    return _Lines(view=view)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lines:
    view: SearchView

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        def text(content: str, style: Style | str = "") -> Text:
            # A terminal that cannot show a character gets its escape, not an exception.
            shown = content.encode(options.encoding, "backslashreplace").decode(options.encoding)
            return Text(shown, style=style, overflow="fold")

        view, plain = self.view, options.ascii_only
        yield text(visible(view.problem).strip())
        yield text((" - " if plain else " · ").join(_facts(view)), "bold")
        places = (
            {node.number: at for at, node in enumerate(view.path(view.chosen), start=1)}
            if view.chosen is not None
            else {}
        )
        for part in _together(rounds(view)):
            name = f"round {part.first}" if part.first == part.last else f"rounds {part.first} to {part.last}"
            best = "" if part.best is None else f"; best score {number(part.best)}"
            yield text(f"{'+-' if plain else '├─'} {name}: {part.counts}{best}", "dim")
            if not part.chosen:
                continue
            table = Table.grid(expand=True, padding=(0, 1, 0, 0))
            for width in (1, 3, SCORE, BAR):
                table.add_column(width=width, no_wrap=True, justify="right")
            table.add_column(ratio=1)
            for node in part.chosen:
                table.add_row(*self._step(node, places[node.number], text, plain=plain))
            yield table
        yield text(f"{'+-' if plain else '└─'} stopped: {one_line(view.stopped)}")

    def _step(
        self, node: NodeView, at: int, text: Callable[[str, Style | str], Text], *, plain: bool
    ) -> list[Text]:
        from rich.style import Style

        place = self.view.place(node.score)
        shade = colour.shade(place, "dark")
        ground = Style(color=colour.hexa(colour.INK["dark"]), bgcolor=colour.hexa(shade.tint))
        score = "not read" if node.score is None else number(node.score)
        return [
            text("*" if plain else "★", "bold"),
            text(str(at), ground),
            text(score, ground + Style(bold=node.score is not None)),
            text(
                meter(self.view.width(node.score), plain=plain),
                ground + Style(color=colour.hexa(shade.strong)),
            ),
            text(visible(node.text).strip() or "(no text)", ground),
        ]


def _facts(view: SearchView) -> Iterator[str]:
    choice = view.choice
    if view.method:
        yield one_line(view.method)
    if choice is None:
        yield "nothing was chosen"
    else:
        yield "no answer" if choice.answer is None else f"answer {one_line(choice.answer)}"
        if choice.right is not None:
            yield "right" if choice.right else "wrong"
        if choice.aggregate is not None:
            yield f"{one_line(view.aggregate)} {number(choice.aggregate)}"
    yield f"{len(view.candidates):,} candidates" if len(view.candidates) != 1 else "1 candidate"
    if view.tokens is not None:
        yield f"{view.tokens:,} tokens"


def _together(parts: Iterator[Round]) -> Iterator[Round]:
    """Rounds, those without a chosen step as one with those like them before."""
    waiting: Round | None = None
    for part in parts:
        if part.chosen:
            if waiting is not None:
                yield waiting
                waiting = None
            yield part
        elif waiting is None:
            waiting = part
        else:
            scores = [best for best in (waiting.best, part.best) if best is not None]
            waiting = Round(
                first=waiting.first,
                last=part.last,
                states={state: waiting.states[state] + part.states[state] for state in STATES},
                best=max(scores, default=None),
            )
    if waiting is not None:
        yield waiting
