"""Draws `_static/first-error.svg`: how often each labeller finds the first error, against its tokens. `python docs/first_error_figure.py`.

The figures are those of the table in `label.md`, which `python -m benchmarks.label` prints.
"""

from __future__ import annotations

import math
from pathlib import Path

from stepmark.store import atomic_write

FILE = Path(__file__).parent / "_static" / "first-error.svg"
METHODS = (
    ("every step, 8 rollouts (Math-Shepherd)", "c2", ((8223, 61.8), (1976, 61.8))),
    ("binary search (OmegaPRM)", "c3", ((2613, 51.0), (1622, 51.0))),
    ("Bayesian search (stepmark)", "c1", ((533, 62.3), (927, 72.8), (1262, 78.0), (3781, 93.2))),
)
"""Name, class, and (tokens a solution, first errors found exactly in %)."""
LEFT, RIGHT, TOP, BOTTOM = 60, 700, 56, 300


def x(tokens: float) -> float:
    """Logarithmic, from 400 to 10,000 tokens."""
    return LEFT + (RIGHT - LEFT) * math.log(tokens / 400) / math.log(10_000 / 400)


def y(percent: float) -> float:
    """From 40 to 100 %."""
    return BOTTOM - (BOTTOM - TOP) * (percent - 40) / 60


def main() -> None:
    """Write the file."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 350" role="img" font-family="system-ui,sans-serif" font-size="13">',
        "<title>First errors found exactly, against tokens a solution: Bayesian search 62 to 93 % at 533 to 3,781 tokens, every step 62 % at 1,976 or 8,223, binary search 51 %</title>",
        "<style>.c1{fill:#0072b2;stroke:#0072b2}.c2{fill:#d55e00;stroke:#d55e00}.c3{fill:#7a7a7a;stroke:#7a7a7a}"
        "text{stroke:none}.ink{fill:#1c2128}.grid{stroke:#8884}rect{fill:#fff}"
        "@media (prefers-color-scheme:dark){.ink{fill:#e6edf3}rect{fill:#161b22}.c1{fill:#56b4e9;stroke:#56b4e9}}</style>",
        '<rect width="760" height="350" rx="6"/>',
        '<text x="16" y="26" class="ink" font-weight="600">First errors found exactly (%), on a world with known truth</text>',
    ]
    for percent in (40, 60, 80, 100):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y(percent):g}" y2="{y(percent):g}"/>')
        parts.append(
            f'<text class="ink" x="{LEFT - 8}" y="{y(percent) + 4:g}" text-anchor="end">{percent}</text>'
        )
    for tokens in (500, 1000, 2000, 4000, 8000):
        parts.append(
            f'<text class="ink" x="{x(tokens):.1f}" y="{BOTTOM + 20}" text-anchor="middle">{tokens:,}</text>'
        )
    parts.append(
        f'<text class="ink" x="{(LEFT + RIGHT) / 2:g}" y="{BOTTOM + 40}" text-anchor="middle">tokens a solution</text>'
    )
    for name, colour, points in METHODS:
        path = " ".join(f"{x(tokens):.1f},{y(percent):.1f}" for tokens, percent in points)
        parts.append(f'<polyline class="{colour}" points="{path}" style="fill:none" stroke-width="2"/>')
        parts += [
            f'<circle class="{colour}" cx="{x(tokens):.1f}" cy="{y(percent):.1f}" r="5"/>'
            for tokens, percent in points
        ]
        tokens, percent = points[0] if colour != "c1" else points[2]
        side = "end" if colour != "c3" else "start"
        at = x(tokens) + (12 if side == "start" else -12 if colour == "c1" else 0)
        parts.append(
            f'<text class="{colour}" x="{at:.1f}" y="{y(percent) - 12:.1f}" text-anchor="{side}">{name}</text>'
        )
    with atomic_write(FILE) as file:
        file.write("\n".join([*parts, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
