"""The flags by which a command names its PRM and says how it is read: those of `serve`, `grade` and `evaluate`."""

# No `from __future__ import annotations`: cyclopts looks up the types of an inherited field, where they are
# strings, in the module of the class that inherits it.

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from stepmark.errors import UsageError

if TYPE_CHECKING:
    from stepmark.models.prm import PRM


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class PRMFlags:
    """Which PRM, and how it is read. A command's own options are made from these; what it means otherwise it says again.

    What becomes of solutions that are too long is each command's own flag.
    """

    prm: str = "default"
    """The PRM: "default", a hub name, a folder, the address of a server, or "package.module:factory"."""
    family: str | None = None
    """The PRM's family, where it cannot be told from the checkpoint (see: stepmark families)."""
    neutral: Literal["positive", "negative"] = "positive"
    """What the neutral class of a three-class PRM counts as."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the model."""
    device: str = "auto"
    """Where the model runs: auto, cpu, cuda, or one of several as cuda:1."""
    token_budget: int | None = None
    """Tokens computed at once: more is faster and takes more memory."""
    reference: str | None = None
    """The reference model of an implicit PRM."""
    model: str | None = None
    """The model's name on a server."""
    tokenizer: str | None = None
    """The tokenizer's folder, for a PRM on a server."""
    samples: int | None = None
    """Critiques a step that a generative PRM writes. Left out: its family's own number."""
    seed: int = 0
    """The seed of those critiques."""

    def load(self, *, truncate: bool, outcome: bool = False) -> "PRM":
        """The PRM that the flags name; see `models.load.load_prm`, also for what it raises.

        Args:
            truncate: leave what does not fit without a score instead of refusing the solution.
            outcome: read only the last step.
        """
        from stepmark.models.load import load_prm

        return load_prm(
            self.prm,
            family=self.family,
            neutral=self.neutral,
            dtype=self.dtype,
            device=self.device,
            truncate=truncate,
            token_budget=self.token_budget,
            reference=self.reference,
            model=self.model,
            tokenizer=self.tokenizer,
            samples=self.samples,
            seed=self.seed,
            outcome=outcome,
        )

    def check_device(self) -> None:
        """Refuse a device that is none, before a model is loaded.

        Raises:
            UsageError: not auto, cpu, cuda or one of several.
        """
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise UsageError(f"--device {self.device}: expected auto, cpu, cuda or cuda:NUMBER")

    def check_least(self, flags: Sequence[tuple[str, int]]) -> None:
        """Refuse numbers that are too small. One that is left out (None) is not.

        Args:
            flags: names of fields, each with the least it may be.

        Raises:
            UsageError: one is smaller.
        """
        for name, least in flags:
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name.replace('_', '-')} {value}: expected {least} or more")
