"""`stepmark families`: the PRM families that can be read."""

from __future__ import annotations


def families_command() -> int:
    """List the PRM families that stepmark can read.

    For each: its name, what its scores are, how its authors make one number of them, what it is, and where that is
    told. A checkpoint's family is read from its config and weights; where that cannot be, name it with
    `stepmark grade --family NAME`. Generative families are always named.
    """
    import shutil
    import textwrap

    from stepmark.models.families import FAMILIES
    from stepmark.models.generative import GENERATIVE, GenerativeFamily
    from stepmark.models.spec import ScoringSpec

    width = max(shutil.get_terminal_size().columns, 40)
    families: dict[str, ScoringSpec | GenerativeFamily] = {**FAMILIES, **GENERATIVE}
    for name, family in families.items():
        generative = ", generative" if name in GENERATIVE else ""
        print(f"{name}: {family.score_kind}, {family.aggregate}{generative}")
        for text in (family.summary, f"Source: {family.source}"):
            indent = " " * 4
            lines = textwrap.wrap(
                text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )
            print("\n".join(lines))
    return 0
