"""A search with other settings, whoever wrote its class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from stepmark.errors import StepmarkError, UsageError, told

S = TypeVar("S")


def remade(search: S, **changes: Any) -> S:
    """A search with some fields changed. Its class may be anybody's, and refuse them.

    Args:
        search: a dataclass.
        changes: field to value.

    Raises:
        UsageError: its class refuses them, with an error of whatever type; it is told with its file and line.
    """
    try:
        return replace(search, **changes)  # type: ignore[type-var]
    except StepmarkError:
        raise
    except Exception as error:
        kind = type(search)
        given = ", ".join(f"{name}={value!r}" for name, value in changes.items())
        raise UsageError(
            f"{kind.__module__}:{kind.__qualname__} refuses {given}: {told(error)} (STEPMARK_DEBUG=1 shows how it came there)"
        ) from error
