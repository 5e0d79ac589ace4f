"""Sphinx settings: MyST Markdown, furo, nothing fetched."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from myst_parser.parsers.sphinx_ import MystParser

sys.path.insert(0, str(Path(__file__).parent))
from notebooks_run import as_markdown

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx

project = "stepmark"
author = "the stepmark developers"
copyright = "2026, the stepmark developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "stepmark"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
# Curly quotes, but never a dash for the two hyphens of a flag.
smartquotes_action = "qe"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Names of records and of standard types stand in docstrings as plain code.
nitpicky = False


class NotebookParser(MystParser):
    """A notebook as a page: what is committed is shown, nothing is run."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: document) -> None:
        """As Markdown."""
        super().parse(as_markdown(json.loads(inputstring)), document)


def setup(app: Sphinx) -> None:
    """Add what is ours to Sphinx."""
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
