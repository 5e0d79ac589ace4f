"""What `integrations.lm_eval` does with documents that needs no lm_eval."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.errors import InputError
from stepmark.store import json_type

_FIELD = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class UnreadWarning(UserWarning):
    """Documents of which no response could be graded, so that the first was kept."""


def problem_of(doc: Mapping[str, Any], problem: str, number: int) -> str:
    """The problem's text in a document.

    Args:
        doc: one.
        problem: a field's name, or a template with fields in double braces. (Not a Jinja program: only fields are put in.)
        number: which document, from 0, for errors.

    Raises:
        InputError: a field that is missing or no text, or a blank problem.
    """

    def field(name: str) -> str:
        if name not in doc:
            raise InputError(
                f"expected the problem, found only {', '.join(map(repr, doc))}; name its field with `problem`",
                where=f"document {number}",
                field=name,
            )
        value = doc[name]
        if not isinstance(value, str):
            raise InputError(
                f"expected a text, found {json_type(value)}", where=f"document {number}", field=name
            )
        return value

    if "{{" in problem:
        text = _FIELD.sub(lambda found: field(found[1]), problem)
        if "{{" in _FIELD.sub("", problem):
            raise InputError(
                f"expected fields in double braces, {{{{question}}}}, found {problem!r}", field="problem"
            )
    else:
        text = field(problem)
    if not text.strip():
        raise InputError("expected a problem, found only white space", where=f"document {number}")
    return text


def tell(unread: Sequence[str], documents: int) -> None:
    """Warn of documents of which no response could be graded.

    Args:
        unread: one line each.
        documents: how many there are in all.
    """
    if unread:
        warnings.warn(
            f"stepmark: none of the responses to {len(unread)} of {documents} documents could be graded, so the first was kept "
            f"({unread[0]})",
            UnreadWarning,
            stacklevel=3,
        )
