"""Draws `_static/whole-library.svg`: how files flow between the commands. `python docs/whole_library_figure.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

from stepmark.report.colour import INK, LINE, MUTED, PAGE, SERIES, Mode, hexa
from stepmark.store import atomic_write

FILE = Path(__file__).parent / "_static" / "whole-library.svg"
WIDTH, HEIGHT = 760, 604
BESIDE = (
    "Beside the way: split cuts a text, watch scores an agent live, families lists what is read,",
    "publish shares a checkpoint, doctor says what is missing.",
)

FILES = {
    "problems": (20, 40, 130, "problems", ""),
    "solutions": (20, 190, 130, "solutions", ""),
    "labels": (310, 190, 130, "labels", ""),
    "prm": (600, 190, 130, "a PRM", ""),
    "graded": (20, 360, 165, "graded rows", "of solutions, with a report"),
    "chosen": (215, 360, 165, "chosen solutions", "of problems, by a policy"),
    "policy": (410, 360, 165, "a better policy", "on problems, watched"),
    "results": (290, 478, 205, "figures with intervals", "of labels, candidates, budgets"),
    "scores": (600, 478, 145, "scores", "over HTTP, for many"),
}
"""What travels: place of the left upper corner, width, name, and what it is of."""
ARROWS = (
    ("M85 78V186", "sample", (93, 128), "a policy writes", (93, 146)),
    ("M150 201H306", "label", (158, 193), "rollouts, judges, rules", (158, 175)),
    ("M150 217H306", "annotate", (158, 234), "people", (232, 234)),
    ("M355 190V150H400V186", "convert", (410, 156), "PRM800K, TRL, …", (410, 174)),
    ("M440 209H596", "train", (448, 201), "or a PRM of others", (448, 229)),
    ("M650 228V300H100V356", "grade", (108, 346), "", (0, 0)),
    ("M650 300H297V356", "search", (305, 346), "", (0, 0)),
    ("M650 300H492V356", "rl", (500, 346), "", (0, 0)),
    ("M650 300V440H392V474", "evaluate", (400, 462), "", (0, 0)),
    ("M690 228V474", "serve", (698, 462), "", (0, 0)),
    ("M166 59H154", "problems", (172, 56), "made from a seed, or read from files of others", (172, 74)),
)
"""Each way: its path, the command, the command's place, a note and its place."""


def theme(mode: Mode) -> str:
    """The colours of the pages, as variables."""
    colours = {
        "ink": INK[mode],
        "muted": MUTED[mode],
        "panel": PAGE[mode],
        "line": LINE[mode],
        "plot-0": SERIES[mode][0],
    }
    return "svg{" + "".join(f"--{name}:{hexa(colour)};" for name, colour in colours.items()) + "}"


def main() -> int:
    """Write the figure."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        'aria-label="How files flow between the commands of stepmark" style="font-family:var(--sans,system-ui,sans-serif)">',
        f"<style>{theme('light')}@media (prefers-color-scheme:dark){{{theme('dark')}}}.name{{font:600 14px ui-monospace,Menlo,monospace;fill:var(--plot-0)}}"
        ".small{font-size:12.5px;fill:var(--muted)}.file{font-size:14.5px;font-weight:600;fill:var(--ink)}"
        ".way{fill:none;stroke:var(--muted);stroke-width:1.6}</style>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" style="fill:var(--muted)"/></marker></defs>',
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" style="fill:var(--panel);stroke:var(--line)"/>',
    ]
    for path, command, (x, y), note, (note_x, note_y) in ARROWS:
        parts.append(f'<path class="way" d="{path}" marker-end="url(#end)"/>')
        parts.append(f'<text class="name" x="{x}" y="{y}">{command}</text>')
        if note:
            parts.append(f'<text class="small" x="{note_x}" y="{note_y}">{escape(note)}</text>')
    for x, y, wide, name, note in FILES.values():
        middle = x + wide / 2
        parts.append(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{54 if note else 38}" rx="7" '
            'style="fill:var(--panel);stroke:var(--plot-0);stroke-width:1.6"/>'
            f'<text class="file" x="{middle:g}" y="{y + 24}" text-anchor="middle">{escape(name)}</text>'
        )
        if note:
            parts.append(
                f'<text class="small" x="{middle:g}" y="{y + 43}" text-anchor="middle">{escape(note)}</text>'
            )
    for y, line in zip((566, 584), BESIDE, strict=True):
        parts.append(f'<text class="small" x="20" y="{y}">{line}</text>')
    parts.append("</svg>\n")
    with atomic_write(FILE) as out:
        out.write("".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
