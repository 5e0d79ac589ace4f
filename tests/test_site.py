"""The site of the docs: what Sphinx is told, so that the pages read as they were meant."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest

import stepmark

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def conf():
    pytest.importorskip("myst_parser")
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    module = importlib.util.module_from_spec(spec)
    before = [*sys.path]
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.mark.parametrize(
    "told",
    ["Layout before the step: blank lines, an opening separator.", "What it is.\n\nTwo: a second paragraph."],
)
def test_a_field_is_described_by_its_whole_docstring(conf, told):
    from sphinx.ext.napoleon import Config, GoogleDocstring

    lines = told.splitlines()
    conf.whole_sentences(None, "attribute", "Step.lead", None, None, lines)
    shown = GoogleDocstring(lines, Config(), None, "attribute", "Step.lead", None, None).lines()
    assert [line for line in shown if line not in ("..", "")] == [line for line in told.splitlines() if line]


def test_a_function_keeps_its_sections(conf):
    lines = ["Cut a text.", "", "Args:", "    text: the text."]
    conf.whole_sentences(None, "function", "split", None, None, lines)
    assert lines[0] == "Cut a text."


def test_a_price_is_no_mathematics(conf):
    """ "$5 and $6" would be set in italics, by a script from elsewhere."""
    assert not {"dollarmath", "amsmath"} & set(conf.myst_enable_extensions)


def test_links_of_docstrings_lead_somewhere(conf):
    from docutils import nodes
    from docutils.core import publish_doctree

    doctree = publish_doctree(
        "Asks `http://…` or http://… at FILE:LINE; see https://example.org/a and the mailto:a@example.org."
    )
    conf.words_that_look_like_addresses(None, doctree)
    assert [one["refuri"] for one in doctree.findall(nodes.reference)] == [
        "https://example.org/a",
        "mailto:a@example.org",
    ]
    assert "or http://… at FILE:LINE; see" in doctree.astext()


def test_every_public_name_is_in_the_reference():
    reference = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert "automodule:: stepmark.records" in reference
    for name in stepmark.__all__:
        if name == "__version__":
            continue
        if name == "errors":  # a module
            assert ".. automodule:: stepmark.errors" in reference
            continue
        if name in (
            "evaluation",
            "labels",
            "rl",
            "searches",
            "training",
        ):  # packages, whose classes are listed below
            continue
        places = {
            "search": "searches.run.search",
            "label": "labels.run.label",
            "train": "training.run.train",
            "evaluate": "evaluation.run.evaluate",
            "train_policy": "rl.run.train_policy",
        }
        if name in places:
            assert f".. autofunction:: stepmark.{places[name]}" in reference
            continue
        one = getattr(stepmark, name)
        directive = "autoclass" if inspect.isclass(one) else "autofunction"
        assert (one.__module__ == "stepmark.records" and f"`{name}`" in reference) or re.search(
            rf"^\.\. {directive}:: stepmark\.{name}$", reference, re.M
        ), f"the reference leaves out stepmark.{name}"


def test_every_labeller_is_in_the_reference():
    from stepmark.labels.labellers import METHODS

    page = (DOCS / "reference.md").read_text(encoding="utf-8")
    for place in METHODS.values():
        assert f".. autoclass:: {place.replace(':', '.')}" in page


def test_every_search_is_in_the_reference():
    from stepmark.searches.methods import METHODS

    page = (DOCS / "reference.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\.\. autoclass:: (stepmark\.searches\.\w+)\.(\w+)$", page, re.M)
    assert sorted(getattr(importlib.import_module(module), name).name for module, name in shown) == sorted(
        METHODS
    )
