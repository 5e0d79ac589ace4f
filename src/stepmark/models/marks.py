"""Step marks in bare tokens: where a server that is sent token ids reads them."""

from __future__ import annotations

import numpy as np

from stepmark.models.encoding import Encoder
from stepmark.models.spec import ChatLayout, PieceLayout, TextLayout
from stepmark.models.tree import Ints


def mark_token(encoder: Encoder) -> int | None:
    """The token that ends a step and nothing else, for layouts that have one.

    None where steps end in a token that other text has too (a line break, a word, the step's own last one), where a token before the
    mark is read, or where the verdict's place is: then only the writer of the tokens knows where steps end.
    """
    layout = encoder.layout
    if not isinstance(layout, TextLayout | ChatLayout | PieceLayout) or not layout.mark.strip():
        return None
    if layout.mark_is_text:
        return None
    if isinstance(layout, ChatLayout) and (layout.closing or layout.ending == "turn"):
        return None
    if isinstance(layout, PieceLayout) and layout.read_back:
        return None
    if layout.mark != layout.mark.rstrip():
        return None  # what is read is the white space after it
    ids: list[int] = encoder.tokenizer(layout.mark.strip(), add_special_tokens=False)["input_ids"]
    return ids[0] if len(ids) == 1 else None


def marked(ids: Ints, mark: int | None) -> Ints:
    """Positions of a mark in token ids, ascending; every position where there is no mark."""
    return np.arange(len(ids), dtype=np.int64) if mark is None else np.flatnonzero(ids == mark)
