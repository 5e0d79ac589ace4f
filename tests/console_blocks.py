"""The shell lines of a page: what a reader types who follows it from top to bottom.

A ```` ```console ```` block holds commands after `$ `, each with the lines of its output after it; a command goes on while its line ends in a backslash.
A comment `<!-- file: NAME -->` on the line before a block of any language says that the reader saves the block under that name; `<!-- not run -->` before a
console block, that the reader need not type it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>file: (?P<name>\S+)|not run) -->\n)?```(?P<language>[^\n]*)\n(?P<body>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True, kw_only=True)
class Typed:
    """One command, or a file that is saved."""

    command: str
    """What a shell runs."""
    shown: tuple[str, ...] = ()
    """The lines of output on the page; `…` stands for lines that were left out."""
    python: bool = False
    """Whether the command is a block of Python, for the page's one interpreter."""


def typed(page: Path, *, python: bool = False) -> list[Typed]:
    """What a page lets its reader type, in order.

    Args:
        page: the page.
        python: also its blocks of Python that are not only saved.

    Raises:
        ValueError: output before the first command of a block, or a file that holds the end mark of a here-document.
    """
    found: list[Typed] = []
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        body = block["body"]
        if block["name"]:
            if re.search(r"^END$", body, re.M):
                raise ValueError(f"{page.name}: the file {block['name']} holds a line END")
            found.append(Typed(command=f"cat > {block['name']} <<'END'\n{body}END"))
        elif block["language"] == "console" and not block["mark"]:
            found += _commands(page, body)
        if python and block["language"] == "python":
            found.append(Typed(command=body, python=True))
    return found


def _commands(page: Path, body: str) -> list[Typed]:
    commands: list[tuple[list[str], list[str]]] = []
    for line in body.splitlines():
        if commands and commands[-1][0][-1].endswith("\\") and not commands[-1][1]:
            commands[-1][0].append(line)
        elif line.startswith("$ "):
            commands.append(([line.removeprefix("$ ")], []))
        elif commands:
            commands[-1][1].append(line)
        else:
            raise ValueError(f"{page.name}: a console block begins with {line!r}, not with '$ '")
    return [Typed(command="\n".join(shell), shown=tuple(shown)) for shell, shown in commands]


def script(page: Path) -> str:
    """A page as one bash script that stops at the first failure."""
    return "set -euo pipefail\n" + "".join(f"{one.command}\n" for one in typed(page))


def missing(shown: tuple[str, ...], output: str) -> list[str]:
    """Lines of the page that the output does not have, numbers and bars set aside: those differ between machines.

    A line that ends in `…` is the beginning of one.
    """
    said = {_shape(line) for line in output.replace("\r", "\n").splitlines()}

    def known(line: str) -> bool:
        shape = _shape(line)
        return shape in said or (
            shape.endswith("…") and any(one.startswith(shape[:-1].strip()) for one in said)
        )

    return [line for line in shown if line.strip() and not known(line)]


def _shape(line: str) -> str:
    """Without numbers, bars and the width of gaps, which differ between machines; where the first error is, differs with them."""
    plain = re.sub(r"\d[\d,.]*", "#", re.sub(r"[━╸─]+", "━", line))
    plain = re.sub(r"first error: step #|no error", "", plain)
    return re.sub(r"\s+", " ", plain.replace("✗ first error", "")).strip()
