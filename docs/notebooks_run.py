"""Notebooks without a kernel: they are run, kept and shown by this.

`OMP_NUM_THREADS=1 python docs/notebooks_run.py docs/notebooks/full_loop.ipynb` runs the cells in an empty folder and writes their outputs into the file; `conf.py`
shows a notebook as a page with `as_markdown`.

The code of a notebook is plain Python, so that it can be executed as a program is: no magic, no shell lines. What a cell prints to standard output and the value of
its last expression are its outputs, as in Jupyter.
"""

from __future__ import annotations

import ast
import json
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any


def read(file: Path) -> dict[str, Any]:
    """A notebook, format 4."""
    notebook: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if notebook.get("nbformat") != 4:
        raise ValueError(f"{file.name}: expected nbformat 4, found {notebook.get('nbformat')!r}")
    return notebook


def text(source: str | list[str]) -> str:
    """A multi-line string of a notebook."""
    return source if isinstance(source, str) else "".join(source)


def run_cell(source: str, name: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell in a namespace; its outputs."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    said, aside = StringIO(), StringIO()
    value = None
    with redirect_stdout(said), redirect_stderr(aside):  # progress, and what the loading of weights says
        exec(compile(tree, name, "exec"), namespace)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if said.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(said.getvalue())})
    if value is not None:
        data: dict[str, Any] = {"text/plain": _lines(repr(value))}
        html = getattr(value, "_repr_html_", None)
        if html is not None:
            data["text/html"] = _lines(html())
        outputs.append(
            {"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def run(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run all code cells in an empty folder; the outputs of each."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return [
            run_cell(text(cell["source"]), f"cell {number}", namespace)
            for number, cell in enumerate(notebook["cells"])
            if cell["cell_type"] == "code"
        ]


def as_markdown(notebook: dict[str, Any]) -> str:
    """A notebook as MyST Markdown: code in fences, outputs under it."""
    parts = []
    for cell in notebook["cells"]:
        source = text(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(f"```{{raw}} html\n{text(data['text/html'])}\n```")
            else:
                plain = text(output["text"] if "text" in output else data["text/plain"])
                parts.append(f"```text\n{plain.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _lines(source: str) -> list[str]:
    return source.splitlines(keepends=True)


def main() -> int:
    """Run the notebooks that are named, and write their outputs into them."""
    for name in sys.argv[1:]:
        notebook = read(Path(name))
        found = iter(run(notebook))
        for number, cell in enumerate(one for one in notebook["cells"] if one["cell_type"] == "code"):
            cell["outputs"] = next(found)
            cell["execution_count"] = number + 1
            for output in cell["outputs"]:
                if output["output_type"] == "execute_result":
                    output["execution_count"] = number + 1
        whole = Path(f"{name}.part")
        whole.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        whole.replace(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
