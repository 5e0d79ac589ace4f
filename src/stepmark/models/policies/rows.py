"""Samples being written by a policy in this process."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from stepmark.batching import Finish, Write, Written


@dataclass(kw_only=True, slots=True, eq=False)
class Row:
    """One sample being written."""

    index: int
    """Of its request."""
    number: int
    """Of the sample."""
    request: Write
    prompt: list[int]
    limit: int
    """Tokens that may be written."""
    dice: torch.Generator
    new: list[int] = field(default_factory=list)
    logprob: float = 0.0
    text: str = ""
    finish: Finish | None = None
    kept: bool = False
    """Its keys and values were put by."""

    def written(self) -> Written:
        """It, finished."""
        if self.finish is None:
            raise AssertionError("a row without an end")
        return Written(
            text=self.text,
            finish=self.finish,
            tokens=len(self.new),
            logprob=self.logprob,
            prompt_tokens=len(self.prompt),
        )

    def drawn(self) -> Drawn:
        """It, finished, with its tokens."""
        if self.finish is None:
            raise AssertionError("a row without an end")
        return Drawn(prompt=tuple(self.prompt), ids=tuple(self.new), text=self.text, finish=self.finish)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A sample and the tokens that it was written in: encoding its text again may give others."""

    prompt: tuple[int, ...]
    """Tokens that it was written after."""
    ids: tuple[int, ...]
    """Its own, the end token among them where it ended by itself."""
    text: str
    finish: Finish
