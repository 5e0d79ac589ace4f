"""A solution as pieces of text that know whose they are: what each layout puts around the problem and the steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stepmark.models.spec import ChatLayout, DialogueLayout, Layout, PieceLayout, Space, TextLayout

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


@dataclass(frozen=True, slots=True)
class Frames:
    """What a chat template puts around the contents of its turns."""

    texts: tuple[str, ...]
    """Before the first content, between contents, after the last: 3 for `ChatLayout`, 5 for `DialogueLayout` (two turns)."""
    trims: tuple[bool, bool]
    """Whether it takes white space from the ends of a user's content, and of an assistant's."""


def spaced(text: str, space: Space) -> str:
    """A text with the white space around it that a layout wants."""
    return {"keep": text, "strip": text.strip(), "rstrip": text.rstrip()}[space]


def units_of(
    layout: Layout, problem: str, texts: Sequence[str], *, frames: Frames | None = None, bos: str = ""
) -> list[list[Piece]]:
    """The pieces of a solution, in units; each unit is tokenised by itself.

    Args:
        layout: the PRM's.
        problem: its text, spaced.
        texts: those of the steps, spaced.
        frames: of `ChatLayout` and `DialogueLayout`.
        bos: the token that begins a text, as text; of `PieceLayout`.
    """
    if isinstance(layout, TextLayout):
        for waste in layout.scrub:
            problem, texts = problem.replace(waste, ""), [t.replace(waste, "") for t in texts]
        return [[*_fill(layout.opening, problem), *_marked(layout, texts)]]
    if isinstance(layout, ChatLayout):
        assert frames is not None
        return [_chat(layout, problem, texts, frames)]
    if isinstance(layout, DialogueLayout):
        assert frames is not None
        return [_dialogue(layout, problem, texts, frames)]
    return _pieces(layout, problem, texts, bos)


def _chat(layout: ChatLayout, problem: str, texts: Sequence[str], frames: Frames) -> list[Piece]:
    head, middle, tail = frames.texts
    trims_user, trims_assistant = frames.trims
    user = _fill(layout.user, problem)
    # To the template a mark at the end is text too, but no white space: what ends a turn may be.
    answer = _marked(layout, texts, ending=layout.ending)
    if trims_user:
        user = _trimmed(user)
    if trims_assistant:
        answer = _trimmed(answer)
    unit = [Piece(head), *user, Piece(middle), *answer]
    last = len(texts) - 1
    if layout.closing:
        unit.append(Piece(tail, read=last))
    elif layout.ending == "turn":
        if end := tail.rstrip():
            unit.append(Piece(end, read=last))
        else:
            unit[-1] = replace(unit[-1], read=last)
    return unit


def _trimmed(pieces: list[Piece]) -> list[Piece]:
    """A content without the white space at its ends, where that is the problem's or a step's."""
    first, last = pieces[0], pieces[-1]
    if first.owner != FRAME:
        pieces = [replace(first, text=first.text.lstrip()), *pieces[1:]]
    if last.owner != FRAME:
        pieces = [*pieces[:-1], replace(pieces[-1], text=pieces[-1].text.rstrip())]
    return pieces


def _dialogue(layout: DialogueLayout, problem: str, texts: Sequence[str], frames: Frames) -> list[Piece]:
    head, ask, between = frames.texts[:3]
    unit = [Piece(head)]
    for i, text in enumerate(texts):
        content = _fill(layout.first, problem, text) if i == 0 else [Piece(text, owner=i)]
        if i > 0:
            unit += [Piece(layout.verdict), Piece(between)]
        unit += _trimmed(content) if frames.trims[0] else content
        # The frame up to the verdict ends where the next token would be the verdict.
        unit.append(Piece(ask, read=i))
    # The verdict after the last read is not needed by a causal model, but it must stand there while the
    # text is tokenised, so that the token before it is cut as in training.
    unit.append(Piece(layout.verdict))
    return unit


def _pieces(layout: PieceLayout, problem: str, texts: Sequence[str], bos: str) -> list[list[Piece]]:
    units = [_fill(layout.opening.replace("{bos}", bos), problem)]
    for i, text in enumerate(_numbered(layout.prefix, texts)):
        if layout.by_line:
            *before, last = text.split("\n")
            for line in before:
                units += [[Piece(line, owner=i)]] if line else []
                units.append([Piece(layout.mark, owner=i)])
            units += [[Piece(last, owner=i)]] if last else []
            units.append([Piece(layout.mark, read=i)])
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


def _marked(
    layout: TextLayout | ChatLayout, texts: Sequence[str], *, ending: Literal["mark", "turn"] = "mark"
) -> list[Piece]:
    pieces = []
    for i, text in enumerate(_numbered(layout.prefix, texts)):
        if i and layout.between:
            pieces.append(Piece(layout.between))
        pieces.append(Piece(text, owner=i))
        if layout.mark and (ending == "mark" or i < len(texts) - 1):
            pieces.append(Piece(layout.mark, read=i))
    return pieces


def _numbered(prefix: str, texts: Sequence[str]) -> list[str]:
    """Steps with what stands before each; one that brings it keeps it.

    The prefix belongs to the step's own text: an implicit PRM sums over it too.
    """
    if not prefix:
        return list(texts)
    numbered = []
    for number, text in enumerate(texts, start=1):
        begin = prefix.replace("{i}", str(number))
        brings = text.lstrip().startswith(begin.strip())
        numbered.append(text.lstrip() if brings else begin + text)
    return numbered


def visible_mark(layout: Layout) -> str:
    """The mark without the white space around it; empty where there is none."""
    return "" if isinstance(layout, DialogueLayout) else layout.mark.strip()
