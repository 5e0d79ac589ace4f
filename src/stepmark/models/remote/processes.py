"""What a process that is forked must not go on with: open connections, and locks that a thread of the other one may hold for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar, final

Value = TypeVar("Value")


@final
class PerProcess(Generic[Value]):
    """A value for each process, made when it is first asked for; the same one for all threads.

    Args:
        make: makes one. Threads that ask at the same time may each make one, of which all get the same; what nobody got must need no end.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._made: dict[int, Value] = {}

    @property
    def here(self) -> Value:
        """The one of the process that asks."""
        process = os.getpid()
        found = self._made.get(process)
        return self._made.setdefault(process, self._make()) if found is None else found

    @property
    def made(self) -> Value | None:
        """The same, if it has been made."""
        return self._made.get(os.getpid())
