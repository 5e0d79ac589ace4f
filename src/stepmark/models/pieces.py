"""A solution as pieces of text that know whose they are: what each layout puts around the problem and the steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepmark.models.spec import ChatLayout, DialogueLayout, Layout, PieceLayout, TextLayout

FRAME, PROBLEM = -1, -2
"""Owners of a piece that are no step: the template's own text, and the problem."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text of one owner."""

    text: str
    owner: int = FRAME
    """Step index, `PROBLEM`, or `FRAME` for the template's own text."""
    read: int | None = None
    """The step that is read at this piece's last token."""


def units_of(
    layout: Layout, problem: str, texts: Sequence[str], *, frames: Sequence[str] = (), bos: str = ""
) -> list[list[Piece]]:
    """The pieces of a solution, in units; each unit is tokenised by itself.

    Args:
        layout: the PRM's.
        problem: its text.
        texts: those of the steps.
        frames: the chat template's own text around its contents; of `ChatLayout` and `DialogueLayout`.
        bos: the token that begins a text, as text; of `PieceLayout`.
    """
    if isinstance(layout, TextLayout):
        for waste in layout.scrub:
            problem, texts = problem.replace(waste, ""), [t.replace(waste, "") for t in texts]
        return [[*_fill(layout.opening, problem), *_marked(layout, texts)]]
    if isinstance(layout, ChatLayout):
        head, middle, tail = frames
        unit = [Piece(head), *_fill(layout.user, problem), Piece(middle), *_marked(layout, texts)]
        if layout.closing:
            unit.append(Piece(tail, read=len(texts) - 1))
        return [unit]
    if isinstance(layout, DialogueLayout):
        return [_dialogue(layout, problem, texts, frames)]
    return _pieces(layout, problem, texts, bos)


def _dialogue(
    layout: DialogueLayout, problem: str, texts: Sequence[str], frames: Sequence[str]
) -> list[Piece]:
    head, ask, between = frames[:3]
    unit = [Piece(head)]
    for i, text in enumerate(texts):
        if i == 0:
            unit += _fill(layout.first, problem, text)
        else:
            unit += [Piece(layout.verdict), Piece(between), Piece(text, owner=i)]
        # The frame up to the verdict ends where the next token would be the verdict.
        unit.append(Piece(ask, read=i))
    # The verdict after the last read is not needed by a causal model, but it must stand there while the
    # text is tokenised, so that the token before it is cut as in training.
    unit.append(Piece(layout.verdict))
    return unit


def _pieces(layout: PieceLayout, problem: str, texts: Sequence[str], bos: str) -> list[list[Piece]]:
    units = [_fill(layout.opening.replace("{bos}", bos), problem)]
    for i, text in enumerate(texts):
        if layout.by_line:
            lines = text.split("\n")
            for j, line in enumerate(lines):
                if line:
                    units.append([Piece(line, owner=i)])
                units.append([Piece(layout.mark, read=i if j == len(lines) - 1 else None)])
        elif layout.mark:
            units += [[Piece(text, owner=i)], [Piece(layout.mark, read=i)]]
        else:
            units.append([Piece(text, owner=i, read=i)])
    return units


def _fill(template: str, problem: str, first_step: str | None = None) -> list[Piece]:
    pieces = []
    for part in re.split(r"(\{problem\}|\{step\})", template):
        if part == "{problem}":
            pieces.append(Piece(problem, owner=PROBLEM))
        elif part == "{step}":
            assert first_step is not None
            pieces.append(Piece(first_step, owner=0))
        elif part:
            pieces.append(Piece(part))
    return pieces


def _marked(layout: TextLayout | ChatLayout, texts: Sequence[str]) -> list[Piece]:
    pieces = []
    for i, text in enumerate(texts):
        if i and layout.between:
            pieces.append(Piece(layout.between))
        prefix = layout.prefix.replace("{i}", str(i + 1))
        if prefix and not text.startswith(prefix.strip()):
            # The prefix belongs to the solution's own text: an implicit PRM sums over it too.
            pieces.append(Piece(prefix + text, owner=i))
        else:
            pieces.append(Piece(text, owner=i))
        if layout.mark:
            pieces.append(Piece(layout.mark, read=i))
    return pieces


def visible_mark(layout: Layout) -> str:
    """The mark without the white space around it; empty where there is none."""
    return "" if isinstance(layout, DialogueLayout) else layout.mark.strip()
