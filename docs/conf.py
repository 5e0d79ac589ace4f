"""Sphinx settings: MyST Markdown, furo, nothing fetched."""

from __future__ import annotations

project = "stepmark"
author = "the stepmark developers"
copyright = "2026, the stepmark developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "stepmark"
html_static_path = ["_static"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Names of records and of standard types stand in docstrings as plain code.
nitpicky = False
