"""`stepmark families`: the published PRMs, and the families of PRMs that can be read."""

from __future__ import annotations


def families_command() -> int:
    """List the published PRMs by short name, then the PRM families that stepmark can read.

    Of each published PRM: its name on the hub, the memory of its weights in bfloat16, its licence, and its published F1
    on ProcessBench with the source. Short names work wherever a PRM is named: `--prm qwen-7b`.

    Of each family: its name, the kind of its scores, its authors' aggregate, a summary, and the source. A checkpoint's family is detected
    by its name, its config or its weights; where that is not possible, name it with `stepmark grade --family NAME`.
    """
    import shutil
    import sys
    import textwrap

    from rich.console import Console

    from stepmark.models.families import FAMILIES, table
    from stepmark.models.generative import GENERATIVE, GenerativeFamily
    from stepmark.models.spec import ScoringSpec
    from stepmark.report.tables import terminal

    # Outside a terminal nothing is folded: a line is a row.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    console.print(terminal(table()))
    print("\nFamilies\n")
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
