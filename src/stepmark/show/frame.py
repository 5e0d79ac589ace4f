"""What every page of ours has around it: the head with its security policy, the colours, the scripts.

A page loads nothing, and nothing runs in it but scripts of ours, each allowed by its hash in a content security
policy. Formulas are rendered by KaTeX, which is in the page only where there is a formula.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from stepmark.show import colour
from stepmark.show.html import CODE_NAMES, has_formula, template


def head(title: str, *, style: str, scripts: Sequence[str]) -> str:
    """Everything before the content of the body.

    Args:
        title: of the page.
        style: its stylesheet; the colours and, where there are formulas, KaTeX's are added.
        scripts: those of `foot`.
    """
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts) or "'none'"
    formulas = _katex_css() if asset(_KATEX) in scripts else ""
    return template("frame").head(title, allowed, formulas + style + _palette())


def foot(scripts: Sequence[str]) -> str:
    """Everything after the content of the body."""
    return template("frame").foot(scripts)


def formula_scripts(body: Iterable[str]) -> tuple[str, ...]:
    """The scripts that a body of marked-up texts needs; none where it has no formula."""
    return (asset(_KATEX), asset("page.js")) if any(map(has_formula, body)) else ()


def settings_html(settings: Mapping[str, str]) -> str:
    """Names and values, folded; "" for none."""
    return template("macros").settings_list(settings)


_KATEX = "vendor/katex/katex.min.js"


@functools.cache
def _palette() -> str:
    """The colours of the scale and of the text in both modes, as CSS variables."""
    return (
        f":root{{{_variables('light')}}}{_levels('light')}"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables('dark')}}}{_levels('dark')}}}"
        # On paper the light colours are the right ones, whatever the screen likes.
        f"@media print{{:root{{{_variables('light')}}}{_levels('light')}}}"
    )


def _variables(mode: colour.Mode) -> str:
    named = {"ink": colour.INK, "muted": colour.MUTED, "panel": colour.PAGE}
    ends = {"bad": 0.0, "warn": 0.5, "good": 1.0}
    return (
        "".join(f"--{name}:{colour.hexa(table[mode])};" for name, table in named.items())
        + "".join(
            f"--{name}:{colour.hexa(colour.shade(place, mode).strong)};"
            f"--{name}-tint:{colour.hexa(colour.shade(place, mode).tint)};"
            for name, place in ends.items()
        )
        + "".join(f"--hl-{name}:{colour.hexa(colour.CODE[mode][name])};" for name in CODE_NAMES)
    )


def _levels(mode: colour.Mode) -> str:
    places: list[float | None] = [None, *(at / colour.LEVELS for at in range(colour.LEVELS + 1))]
    rules = []
    for place in places:
        shade = colour.shade(place, mode)
        rules.append(
            f".{colour.level_class(place)}{{--t:{colour.hexa(shade.tint)};--s:{colour.hexa(shade.strong)}}}"
        )
    return "".join(rules)


@functools.cache
def asset(name: str) -> str:
    """A text file that lies beside this module."""
    return (files("stepmark.show") / name).read_text(encoding="utf-8")


@functools.cache
def _katex_css() -> str:
    """KaTeX's stylesheet with its woff2 fonts inside and the other formats left out."""
    fonts = files("stepmark.show") / "vendor/katex/fonts"

    def inlined(source: re.Match[str]) -> str:
        data = base64.b64encode((fonts / f"{source['name']}.woff2").read_bytes()).decode("ascii")
        return f'src:url(data:font/woff2;base64,{data}) format("woff2")'

    return re.sub(
        r"src:url\(fonts/(?P<name>[\w-]+)\.woff2\)[^;}]*", inlined, asset("vendor/katex/katex.min.css")
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
