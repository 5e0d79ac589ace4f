"""How a setting that cannot be is named: by its flag of `stepmark rl`, and by its field where that is another word."""

from __future__ import annotations


def said(field: str, flag: str | None = None) -> str:
    """The name of a setting in messages.

    Args:
        field: of the dataclass.
        flag: of `stepmark rl`, without its dashes; None where it is the field's name.
    """
    flag = (field if flag is None else flag).replace("_", "-")
    return f"--{flag}" if flag == field else f"--{flag} ({field})"
