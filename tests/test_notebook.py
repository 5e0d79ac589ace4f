"""The notebooks: their code runs as it stands, what is committed as output is what comes out, and they become pages."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
SMALLER = {
    "make(120, seed=1)": "make(16, seed=1)",
    "make(40, seed=2)": "make(10, seed=2)",
    "count=400": "count=60",
}
"""The full loop on fewer problems."""


@pytest.fixture(scope="module")
def runner():
    spec = importlib.util.spec_from_file_location("notebooks_run", DOCS / "notebooks_run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _said(outputs):
    return ["".join(o["text"]) if o["output_type"] == "stream" else sorted(o["data"]) for o in outputs]


def _shape(said):
    """Without numbers: a network's differ between processors."""
    return [
        re.sub(r" +", " ", re.sub(r"\d[\d,.]*", "#", one)) if isinstance(one, str) else one for one in said
    ]


def test_outputs_of_a_cell(runner):
    class Shown:
        def __repr__(self):
            return "plain"

        def _repr_html_(self):
            return "<b>rich</b>"

    namespace = {"Shown": Shown}
    assert runner.run_cell("x = 2\nprint(x)\nx + 1", "cell", namespace) == [
        {"name": "stdout", "output_type": "stream", "text": ["2\n"]},
        {"data": {"text/plain": ["3"]}, "execution_count": None, "metadata": {}, "output_type": "execute_result"},
    ]  # fmt: skip
    assert runner.run_cell("None", "cell", namespace) == []
    (shown,) = runner.run_cell("Shown()", "cell", namespace)
    assert shown["data"] == {"text/plain": ["plain"], "text/html": ["<b>rich</b>"]}
    with pytest.raises(ZeroDivisionError):
        runner.run_cell("1 / 0", "cell", namespace)


def test_a_notebook_as_a_page(runner):
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title\n", "text"]},
            {
                "cell_type": "code",
                "source": "1 + 1",
                "outputs": [
                    {"output_type": "stream", "text": "a\n"},
                    {
                        "output_type": "execute_result",
                        "data": {"text/plain": ["x"], "text/html": ["<b>x</b>"]},
                    },
                ],
            },
        ]
    }
    assert runner.as_markdown(notebook) == (
        "# Title\ntext\n\n```python\n1 + 1\n```\n\n```text\na\n```\n\n```{raw} html\n<b>x</b>\n```\n"
    )


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_what_is_committed(file, runner):
    raw = file.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.:/])/(home|root|tmp|usr|work|Users|var)/|[A-Z]:\\\\", raw)
    notebook = runner.read(file)
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == list(range(1, len(codes) + 1))
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for link in re.findall(r"\]\((?!http)([^)#]+)", raw):
        assert (file.parent / link).is_file(), link
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert f"notebooks/{file.stem}\n" in index


def test_the_full_loop_on_fewer_problems(runner, one_thread):
    notebook = runner.read(DOCS / "notebooks" / "full_loop.ipynb")
    source = json.dumps(notebook)
    for old, new in SMALLER.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    found = runner.run(json.loads(source))
    committed = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # The same lines, with other numbers; which solution is graded and shown differs.
    assert [_shape(_said(one)) for one in found] == [_shape(_said(one)) for one in committed]


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_a_run_gives_the_committed_outputs(file, runner, one_thread):
    notebook = runner.read(file)
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, outputs in zip(codes, runner.run(notebook), strict=True):
        found, committed = _said(outputs), _said(cell["outputs"])
        if "exact" in cell["metadata"].get("tags", []):
            assert found == committed
        assert _shape(found) == _shape(committed)
