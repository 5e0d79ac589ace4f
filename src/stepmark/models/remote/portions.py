"""Much to be sent, in requests of a size that the server takes; and what becomes of what it declines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stepmark.errors import BackendError, InputError, StepmarkError, TooLongError, UsageError
from stepmark.models.remote.answers import own_field
from stepmark.models.remote.exchange import DeclinedError, Exchange

Item = TypeVar("Item")
Found = TypeVar("Found")

_TOO_MUCH = frozenset({413, 504})
"""Too large, or not computed in time."""


@dataclass(kw_only=True, slots=True)
class Limits:
    """What is sent in one request. A server that takes less (413), or is too slow for as much (504), lowers it."""

    number: int = 64
    """Solutions, or steps of a session."""
    characters: int = 120_000
    """Of their texts; a single one that has more is sent alone."""


def batches(items: Iterable[Item], size: Callable[[Item], int], limits: Limits) -> Iterator[list[Item]]:
    """A stream in parts that fit a request; reads no further than the part that it gives."""
    part: list[Item] = []
    total = 0
    for item in items:
        if part and (len(part) >= limits.number or total + size(item) > limits.characters):
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
        if len(part) >= limits.number or total >= limits.characters:
            yield part
            part, total = [], 0
    if part:
        yield part


def in_parts(
    items: Sequence[Item],
    limits: Limits,
    under: str,
    send: Callable[[Sequence[Item]], Exchange[list[Found | InputError]]],
) -> Exchange[list[Found | InputError]]:
    """Send items together; what is too much is halved, and what the server will not have goes alone.

    Args:
        items: in order.
        limits: lowered where the server takes less.
        under: the field of the request that holds them.
        send: asks for some of them.

    Raises:
        UsageError: the server declines the request for a reason that is in no single item.
        BackendError: the server failed, or answered nonsense.
    """
    found: dict[int, Found | InputError] = {}
    waiting = [list(range(len(items)))] if items else []
    while waiting:
        group = waiting.pop()
        try:
            answered = yield from send([items[i] for i in group])
        except DeclinedError as declined:
            number = _guilty(declined, under)
            if number is not None and number < len(group):
                field = None if declined.field is None else own_field(declined.field)
                kind = TooLongError if declined.status == 413 else InputError
                found[group.pop(number)] = kind(declined.message, field=field)
                waiting += [group] if group else []
            elif declined.status in _TOO_MUCH and len(group) > 1:
                limits.number = len(group) // 2
                waiting += [group[limits.number :], group[: limits.number]]
            elif declined.status == 413:
                found[group[0]] = TooLongError(f"too large for the server: {declined.message}")
            else:
                raise complaint(declined) from None
        else:
            found |= dict(zip(group, answered, strict=True))
    return [found[i] for i in range(len(items))]


def complaint(declined: DeclinedError) -> StepmarkError:
    """What a declined request is to the caller: a setting that is wrong, or a server that is not what was expected."""
    if declined.status in (400, 413) or (declined.status == 404 and declined.field == "model"):
        named = f", field {declined.field!r}" if declined.field else ""
        return UsageError(f"{declined.url}{named}: {declined.message}")
    hint = "; is it a stepmark server?" if declined.status in (404, 405) and declined.type is None else ""
    error = declined.as_backend_error()
    return BackendError(f"{error}{hint}") if hint else error


def _guilty(declined: DeclinedError, under: str) -> int | None:
    """Which item a declined request was declined for."""
    found = re.match(rf"{under}\.(\d+)(\.|$)(?!split$|marker$)", declined.field or "")
    return int(found[1]) if found and declined.status in (400, 413) else None
