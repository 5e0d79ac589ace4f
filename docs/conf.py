"""Sphinx settings: MyST Markdown, furo, nothing fetched."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before autodoc, which imports with TYPE_CHECKING set: FastAPI's models cannot be made under it.
import fastapi  # noqa: F401
from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser

sys.path.insert(0, str(Path(__file__).parent))
from notebooks_run import as_markdown

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "stepmark"
author = "the stepmark developers"
copyright = "2026, the stepmark developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "stepmark"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
# The one that furo takes by itself underlines the names of modules, as if they were links.
pygments_dark_style = "github-dark"
# Curly quotes, but never a dash for the two hyphens of a flag.
smartquotes_action = "qe"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
# Not dollarmath: "$5 and $6" are prices, and mathematics on a page would fetch MathJax.
myst_enable_extensions = ["colon_fence", "deflist"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Names of records and of standard types stand in docstrings as plain code.
nitpicky = False


SUMMARY = (
    "Process reward models (PRMs) in Python and on the command line: cut solutions into steps, label steps, train graders, grade, "
    "search, train policies, evaluate, serve. `import stepmark` has `load_prm`, `grade`, `label`, `train`, `search`, `train_policy`, "
    "`evaluate`, `sample`, `convert`, `split`, `serve`; the command `stepmark` has the same tasks, and `stepmark COMMAND --help` lists "
    "all settings. Rows are JSON lines with `problem` and `steps` or `solution`. Apache-2.0, Python 3.11+."
)


class NotebookParser(MystParser):
    """A notebook as a page: what is committed is shown, nothing is run."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """As Markdown."""
        super().parse(as_markdown(json.loads(inputstring)), document)


def whole_sentences(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Keep napoleon from taking the first words of a field's docstring, up to a colon, for the field's type."""
    if what in {"attribute", "data", "property"} and lines:
        # An empty comment: the first line has no colon then.
        lines[:0] = ["..", ""]


def plain_types(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Take pydantic's constraints out of the types of arguments: the texts say them in words."""
    types = app.env.current_document.autodoc_annotations.get(name, {})
    for argument, text in types.items():
        types[argument] = re.sub(r"Annotated\[(.+?), FieldInfo\(.*?\]\)\]", r"\1", text)


def dashes(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Between a parameter and what it is, the two hyphens that Sphinx writes become a dash."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def words_that_look_like_addresses(app: Sphinx, doctree: nodes.document) -> None:
    """What docutils took for an address in a docstring, and is none: "http://…", FILE:LINE."""
    for link in list(doctree.findall(nodes.reference)):
        address = link.get("refuri", "")
        if address == link.astext() and not re.match(r"(https?://\w|mailto:)", address):
            link.parent.replace(link, nodes.Text(link.astext()))


def generated(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill in what is generated from the step benchmarks: their table, and their classes."""
    from stepmark.evaluation.base import load_evaluation
    from stepmark.evaluation.benchmarks import declared
    from stepmark.report.tables import ABSENT

    def _place(one: Any) -> str:
        return (
            "`--data hub`"
            if one.dataset
            else f"[{one.home.split('/')[-1]}](https://{one.home})"
            if one.home
            else ABSENT
        )

    known = {benchmark: load_evaluation(benchmark)[0] for benchmark in declared()}
    rows = [
        f"| `{name}` | {one.question} | {'; '.join(list(one.shown)[: one.headlines])} | {_place(one)} | {one.paper} | {one.licence or ABSENT} |"
        for name, one in known.items()
    ]
    head = [
        "| `stepmark evaluate` | the question | main figures | data | paper | licence |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    places = [f".. autoclass:: {place.replace(':', '.')}" for place in declared().values()]
    source[0] = source[0].replace("<!-- step benchmarks -->", "\n".join([*head, *rows]))
    source[0] = source[0].replace(".. step benchmarks", "\n".join(places))


def list_pages(app: Sphinx, exception: Exception | None) -> None:
    """Write llms.txt, the list of pages for language models, from the table of contents."""
    if exception is not None or app.builder.format != "html":
        return
    lines = ["# stepmark", "", f"> {SUMMARY}"]
    index = Path(app.srcdir, "index.md").read_text(encoding="utf-8")
    for caption, pages in re.findall(r':caption: "(.+)"\n\n(.*?)```', index, re.S):
        lines += ["", f"## {caption}", ""]
        lines += [f"- [{app.env.titles[page].astext()}]({page}.html)" for page in pages.split()]
    Path(app.outdir, "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Add what is ours to Sphinx."""
    app.connect("build-finished", list_pages)
    app.connect("source-read", generated)
    # Before napoleon, which has the priority 500.
    app.connect("autodoc-process-docstring", whole_sentences, priority=400)
    app.connect("autodoc-process-docstring", plain_types)
    app.connect("doctree-read", words_that_look_like_addresses)
    app.connect("doctree-resolved", dashes)
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
