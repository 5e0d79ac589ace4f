"""An HTML page as a tree of elements, to be asked what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"source", "meta", "input", "img"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self) -> Iterator[Element]:
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.all()

    def find(self, what: str) -> list[Element]:
        """Elements by ".class", "#id" or tag."""
        return [
            one
            for one in self.all()
            if what in (one.tag, f"#{one.attributes.get('id')}", *(f".{name}" for name in one.classes))
        ]

    def one(self, what: str) -> Element:
        found = self.find(what)
        assert len(found) == 1, (what, len(found))
        return found[0]


class Tree(HTMLParser):
    """A page as a tree; refuses elements that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("root", {})
        self.path = [self.root]
        self.feed(html)
        self.close()
        assert [one.tag for one in self.path] == ["root"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.path[-1].children.append(element)
        if tag not in _VOID:
            self.path.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.path.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.path[-1].children.append(data)


def contrast(one, other):
    """The contrast ratio of two opaque colours, 1 to 21 (WCAG 2.2, "contrast ratio")."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour):
    parts = (c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
