"""The flags by which a command names its PRM and says how it is read: those of `serve`, `grade` and `evaluate`."""

# No `from __future__ import annotations`: cyclopts looks up the types of an inherited field, where they are
# strings, in the module of the class that inherits it.

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from stepmark.errors import UsageError

if TYPE_CHECKING:
    from stepmark.models.prm import PRM


def check_device(device: str) -> None:
    """Refuse a device that is none, before a model is loaded.

    Raises:
        UsageError: not auto, cpu, cuda or one of several.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UsageError(f"--device {device}: expected auto, cpu, cuda or cuda:NUMBER")


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

    def load(self, *, truncate: bool, outcome: bool = False, also: Collection[str] = ()) -> "PRM":
        """The PRM that the flags name; see `models.load.load_prm`, also for what it raises.

        Args:
            truncate: leave what does not fit without a score instead of refusing the solution.
            outcome: read only the last step.
            also: as for `check_meant`.
        """
        from stepmark.models.load import load_prm

        return load_prm(self.prm, **self._loading(truncate=truncate, outcome=outcome, also=also))

    def identity(self, *, truncate: bool, outcome: bool = False, also: Collection[str] = ()) -> str:
        """The identity of the PRM that `load` gives, without reading a checkpoint's weights into memory; see there."""
        from stepmark.models.load import prm_identity

        return prm_identity(self.prm, self._loading(truncate=truncate, outcome=outcome, also=also))

    def check_meant(self, *, truncate: bool = False, also: Collection[str] = ()) -> None:
        """Refuse flags that mean nothing for the PRM, as far as its name tells. What is left is refused where it is loaded.

        Args:
            truncate: whether that flag was given.
            also: fields that mean something beside the PRM in this command, and so are no error.

        Raises:
            UsageError: one of them is given.
            CheckpointError: what the checkpoint says of itself cannot be read.
        """
        from stepmark.models.named import refuse_idle

        idle = {key: why for key, why in self._idle().items() if key not in also}
        refuse_idle(self._settings(truncate=truncate), idle)

    def check_unasked(self, why: str, *, also: Collection[str] = ()) -> None:
        """Refuse flags about a PRM where none is asked.

        Args:
            why: no PRM is asked, and what to do.
            also: as for `check_meant`.

        Raises:
            UsageError: one of them is given.
        """
        from stepmark.models.named import MEANT, refuse_idle

        refuse_idle(self._settings(truncate=False), {key: why for key in MEANT if key not in also})

    def _loading(self, *, truncate: bool, outcome: bool, also: Collection[str]) -> dict[str, Any]:
        return {**self._settings(truncate=truncate), **self._unread(also), "outcome": outcome}

    def _settings(self, *, truncate: bool) -> dict[str, Any]:
        named = {one.name for one in fields(PRMFlags)} - {"prm"}
        return {"truncate": truncate, **{name: getattr(self, name) for name in sorted(named)}}

    def _idle(self) -> dict[str, str]:
        from stepmark.models.named import idle_settings

        return idle_settings(self.prm, family=self.family, tokenizer=self.tokenizer)

    def _unread(self, also: Collection[str]) -> dict[str, Any]:
        """Those of `also` that this PRM does not read, each as if it had been left out."""
        from stepmark.models.named import UNSAID
        from stepmark.models.places import has_neutral_class

        idle = set(self._idle())
        if "neutral" in also and self.neutral != UNSAID["neutral"] and "neutral" not in idle:
            known = has_neutral_class(self.prm, family=self.family, tokenizer=self.tokenizer)
            idle |= set() if known else {"neutral"}
        return {name: UNSAID.get(name) for name in also if name in idle}

    def check_device(self) -> None:
        """Refuse a device that is none, before a model is loaded.

        Raises:
            UsageError: not auto, cpu, cuda or one of several.
        """
        check_device(self.device)

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
