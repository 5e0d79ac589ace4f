"""How solutions become text for a base that has not been a PRM before: its turns, and a marker that is one token."""

from __future__ import annotations

from typing import Any

from stepmark.errors import UsageError
from stepmark.models.spec import ChatLayout, Layout, TextLayout
from stepmark.training.settings import LayoutName

MARKS = (
    "<extra_0>",  # Qwen2.5-Math-PRM's own
    "<file_sep>",  # SmolLM2, StarCoder
    "<|extra_0|>",
    "<|reserved_special_token_0|>",  # Llama 3
    "<|fim_pad|>",  # Qwen2.5, Qwen3
    "<unused0>",  # Gemma
    "<|placeholder1|>",  # Phi 3
    "[control_8]",  # Mistral
)
"""Tokens of known vocabularies that no mathematics uses, in the order in which they are looked for."""


def layout_for(
    tokenizer: Any, *, mark: str | None = None, layout: LayoutName = "auto", marked: bool = True
) -> Layout:
    """The layout of a new PRM.

    Args:
        tokenizer: the base's.
        mark: what ends a step and is read: one token of this tokenizer, or a text with a space in it, such as "Is this step right?",
            which stands on a line of its own and is read at its last token. None takes the first of `MARKS` that it has.
        layout: `chatml`: the problem as the user's turn and the steps as the assistant's, in ChatML without a system message; `chat`:
            through the tokenizer's own chat template; `text`: problem, blank line, steps. auto: chatml where the tokenizer has its two
            tokens, else chat where it has a template, else text.
        marked: a token ends a step and is read. False, for PRMs that are read from the probabilities of the text itself: a blank line
            ends it, unless `mark` names a token.

    Raises:
        UsageError: the mark is neither one token nor a text, none of the known marks is there, or the layout does not fit the tokenizer.
    """
    is_text = mark is not None and len(mark.split()) > 1 and not _is_token(tokenizer, mark)
    if is_text:
        # With its line break it ends where a token ends, whatever the next step begins with.
        mark = f"\n{mark}\n"
    else:
        mark = f"\n{_mark(tokenizer, mark)}" if marked or mark is not None else "\n\n"
    chatml = all(_is_token(tokenizer, token) for token in ("<|im_start|>", "<|im_end|>"))
    if layout == "auto":
        layout = "chatml" if chatml else "chat" if tokenizer.chat_template else "text"
    if layout == "chatml":
        if not chatml:
            raise UsageError(
                "`layout` chatml: this tokenizer has no <|im_start|> and <|im_end|>; take chat or text"
            )
        return TextLayout(
            opening="<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n",
            mark=mark,
            mark_is_text=is_text,
            special_tokens=False,
        )
    if layout == "chat":
        if not tokenizer.chat_template:
            raise UsageError("`layout` chat: this tokenizer has no chat template; take text")
        return ChatLayout(mark=mark, mark_is_text=is_text)
    return TextLayout(opening="{problem}\n\n", mark=mark, mark_is_text=is_text)


def _mark(tokenizer: Any, mark: str | None) -> str:
    if mark is not None:
        if not _is_token(tokenizer, mark):
            raise UsageError(
                f"`mark` {mark!r} is not one token of this base but "
                f"{tokenizer.tokenize(mark)}; name a token that no solution holds, or a question of several words"
            )
        return mark
    for known in MARKS:
        if _is_token(tokenizer, known):
            return known
    raise UsageError(
        f"none of the known marks ({', '.join(MARKS)}) is a token of this base; name one as `mark`: a token of its vocabulary "
        "that no solution holds"
    )


def _is_token(tokenizer: Any, text: str) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return len(ids) == 1 and ids[0] != tokenizer.unk_token_id
