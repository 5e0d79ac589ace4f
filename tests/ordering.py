"""In which order the tests begin when several workers share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def begun_first(first: Sequence[T], rest: Sequence[T], workers: int) -> list[T]:
    """`first` dealt to the beginnings of the workers' shares, and `rest` after them in its own order.

    The shares are pytest-xdist's with `--dist worksteal`: the list is cut into as many runs as there are workers, each as long as what
    is left over the workers that are left; who is done takes from another's end.
    """
    shares: list[T] = []
    total, taken = len(first) + len(rest), 0
    waiting: list[T] = []  # those for whom an earlier share had no room
    for number in range(workers):
        size = (total - len(shares)) // (workers - number)
        waiting += first[number::workers]
        begins, waiting = waiting[:size], waiting[size:]
        filled = size - len(begins)
        shares += [*begins, *rest[taken : taken + filled]]
        taken += filled
    return shares
