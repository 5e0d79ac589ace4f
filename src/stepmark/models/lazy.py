"""A model by its name, loaded when it is needed: what can be refused before is refused before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class Lazy(Generic[T]):
    """A model that is not loaded yet.

    Args:
        load: loads it.
        name: as the caller wrote it.
        check: refuses settings that cannot work for this model, without loading it; None where there is nothing to check.
    """

    def __init__(self, load: Callable[[], T], *, name: str, check: Callable[[], None] | None = None) -> None:
        self.name = name
        """As the caller wrote it."""
        self._load = load
        self._check = check

    def check(self) -> None:
        """Refuse settings that cannot work for this model.

        Raises:
            UsageError: what `load` would refuse, as far as the name tells.
        """
        if self._check is not None:
            self._check()

    def load(self) -> T:
        """The model; loaded anew at each call.

        Raises:
            StepmarkError: whatever loading raises.
        """
        return self._load()

    def __repr__(self) -> str:
        return f"Lazy({self.name!r})"
