"""What matplotlib writes as SVG, made fit for a page: small, without foreign styles, coloured by CSS variables.

A drawing is coloured with sentinels, colours that stand for a role and that no theme has; here each becomes
`var(--role, #light)`, so one picture serves light mode, dark mode and paper, and also stands alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepmark.show import colour

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SERIES: Mapping[colour.Mode, tuple[colour.Rgb, ...]] = {
    "light": (
        (0, 90, 180),
        (205, 85, 0),
        (0, 140, 110),
        (170, 60, 140),
        (140, 102, 0),
        (62, 134, 196),
        (92, 102, 114),
    ),
    "dark": (
        (70, 140, 235),
        (255, 143, 84),
        (120, 226, 170),
        (236, 160, 226),
        (222, 178, 64),
        (150, 206, 250),
        (160, 172, 184),
    ),
}
"""The colours of series, in order: blue, vermilion, green, purple, ochre, sky, grey. At least 3:1 against the page
(WCAG 2.2, criterion 1.4.11); the first four are told apart with the common forms of colour blindness, and series
differ by marker and dashes besides."""

LINE: Mapping[colour.Mode, colour.Rgb] = {"light": (221, 225, 230), "dark": (48, 55, 64)}
"""The colour of grid lines, as `--line` in the stylesheets."""

_ROLES = {"ink": colour.INK, "muted": colour.MUTED, "panel": colour.PAGE, "line": LINE}
_SENTINELS = {
    **{f"#01020{at}": (name, table["light"]) for at, (name, table) in enumerate(_ROLES.items())},
    **{f"#01030{at}": (f"plot-{at}", shade) for at, shade in enumerate(SERIES["light"])},
}
_BY_ROLE = {name: sentinel for sentinel, (name, _) in _SENTINELS.items()}


def role(name: str) -> str:
    """The colour to draw with for "ink", "muted", "panel", "line" or "plot-0" and on."""
    return _BY_ROLE[name]


def series_variables(mode: colour.Mode) -> str:
    """The CSS variables of the series' colours."""
    return "".join(f"--plot-{at}:{colour.hexa(shade)};" for at, shade in enumerate(SERIES[mode]))


def cleaned(drawing: str, *, sentence: str, hovers: Mapping[str, str]) -> str:
    """One `<svg>` element from a file that matplotlib wrote.

    Args:
        drawing: the file's text.
        sentence: what the picture shows, for those who do not see it.
        hovers: by the id of an element, what it says under the pointer.
    """
    # Parsed is only what matplotlib has just written, with every text escaped by it.
    from xml.etree import ElementTree as ET

    root = ET.fromstring(drawing)  # noqa: S314
    _strip_namespace(root)
    # Ids are names in the whole page: a digest of the picture keeps them apart from those of its neighbours.
    prefix = "v" + hashlib.sha256((drawing + sentence).encode()).hexdigest()[:10]
    used = set(re.findall(r"(?:url\(|href=\")#([\w.-]+)", drawing))
    for element in list(root.iter()):
        _settle(element, prefix, used, hovers)
    _thin(root)
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": root.attrib["viewBox"],
        "width": "100%",
        "role": "img",
        "aria-label": sentence,
        "class": "plot",
        "style": "stroke-linejoin:round;font-family:var(--sans,system-ui,sans-serif)",
    }
    return ET.tostring(root, encoding="unicode")


def _settle(element: Element, prefix: str, used: set[str], hovers: Mapping[str, str]) -> None:
    from xml.etree import ElementTree as ET

    element.tail = None
    if element.tag != "text":
        element.text = None
    name = element.attrib.pop("id", None)
    if name in used:
        element.set("id", f"{prefix}-{name}")
    for key, value in list(element.attrib.items()):
        if key in ("d", "x", "y", "transform", "points", "width", "height"):
            element.set(key, _short(value))
        elif key in ("fill", "stroke") and value in _SENTINELS:
            # A variable has no meaning in an attribute.
            del element.attrib[key]
            element.set("style", _style(f"{key}:{value};{element.get('style', '')}", prefix))
        elif key == "style":
            element.set(key, _style(value, prefix))
        elif "#" in value:
            element.set(key, re.sub(r"(^|url\()#", rf"\1#{prefix}-", value))
    if element.get("transform", "").startswith(("rotate(-0 ", "rotate(0 ")):
        del element.attrib["transform"]
    if name is not None and name in hovers:
        # What has no fill is met by the pointer all the same.
        element.set("pointer-events", "all")
        title = ET.Element("title")
        title.text = hovers[name]
        element.insert(0, title)


def _thin(parent: Element) -> None:
    """Take out what is not drawn and the groups that say nothing."""
    kept: list[Element] = []
    for child in list(parent):
        _thin(child)
        unseen = (
            child.tag == "path"
            and child.get("style") == "fill:none"
            and "pointer-events" not in parent.attrib
        )
        if child.tag in ("metadata", "style") or unseen:
            continue
        if child.tag in ("defs", "g") and (len(child) == 0 or (child.tag == "g" and not child.attrib)):
            kept.extend(child)
        else:
            kept.append(child)
    parent[:] = kept


def _strip_namespace(root: Element) -> None:
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in list(element.attrib):
            if "}" in key:
                element.set(key.rpartition("}")[2], element.attrib.pop(key))


def _style(style: str, prefix: str) -> str:
    style = re.sub(r"font-family:[^;]*;?", "", style)
    style = re.sub(r"url\(#", f"url(#{prefix}-", style)
    style = re.sub(r"#01[0-9a-f]{4}\b", _variable, style)
    return re.sub(r"\s*([:;,])\s*", r"\1", style).strip("; ")


def _variable(found: re.Match[str]) -> str:
    name, light = _SENTINELS[found.group()]
    return f"var(--{name},{colour.hexa(light)})"


def _short(numbers: str) -> str:
    numbers = re.sub(
        r"-?\d+\.\d+", lambda found: f"{float(found.group()):.2f}".rstrip("0").rstrip("."), numbers
    )
    return " ".join(numbers.split())
