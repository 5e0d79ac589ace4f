"""The documentation says only what is so: its code runs, its commands exist, every public name is in it."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import stepmark
from stepmark.cli import COMMANDS
from stepmark.errors import UsageError
from stepmark.evaluation.base import EVALUATIONS
from stepmark.evaluation.benchmarks import declared
from stepmark.evaluation.perturbations import PERTURBATIONS
from stepmark.models.families import FAMILIES
from stepmark.models.generative import GENERATIVE
from stepmark.registry import Registry
from stepmark.verifiers.base import VERIFIERS
from stepmark.verifiers.code import CodeVerifier
from stepmark.verifiers.code_sandbox import install_line

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.M | re.S)
_PRINTED = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.M | re.S)
"""A block that is run, and what it prints where the next block shows that."""
_SHOWN_PYTHON = re.compile(r"^```(?:python|\{code-block\} python)[^\n]*\n(.*?)^```$", re.M | re.S)
_ADAPTERS = {f"stepmark.rl.adapters.{name}" for name in ("trl", "skyrl", "verifiers")} | {
    "stepmark.integrations.inspect_ai"
}
"""Public by their module's path: importing them imports another package."""


def _blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in _FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def _consoles(page: Path) -> list[str]:
    """Shell lines, both of blocks that tests run and of those that they only parse."""
    return re.findall(
        r"^```(?:console|\{code-block\} console)\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = _blocks(page, "python")
    if not blocks:
        pytest.skip("no Python on this page")
    if any('load_verifier("code"' in block for block in blocks):
        try:
            CodeVerifier().close()
        except UsageError:
            pytest.skip(f"no sandbox works here: {install_line()}")
    monkeypatch.chdir(tmp_path)
    # A page may write a module of its own and import it; no other test shall meet that.
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    namespace: dict[str, object] = {"__name__": page.stem}
    try:
        for number, (block, shown) in enumerate(_PRINTED.findall(page.read_text("utf-8")), start=1):
            printed = StringIO()
            with redirect_stdout(printed):
                program = compile(block, f"{page.name}, block {number}", "exec", dont_inherit=True)
                exec(program, namespace)  # noqa: S102
            assert not shown or printed.getvalue() == shown
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]


def _programs(page: Path) -> Iterator[ast.Module]:
    """The Python that a page shows, and that of modules which it writes."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        blocks = [
            "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"
        ]
    else:
        blocks = _SHOWN_PYTHON.findall(text)
    for block in blocks:
        program = ast.parse(block)
        yield program
        for node in ast.walk(program):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.search(r"^(from|import) stepmark", text, re.M):
                yield ast.parse(text)


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))], ids=lambda p: p.name
)
def test_pages_use_public_names_alone(page: Path) -> None:
    imports: dict[str, set[str]] = {}  # the statement: the modules that it imports
    for program in _programs(page):
        for node in ast.walk(program):
            if isinstance(node, ast.Import):
                modules = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules = {node.module or "."}
                if node.module == "stepmark":
                    assert {alias.name for alias in node.names} <= set(stepmark.__all__)
            else:
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    assert node.value.id != "stepmark" or node.attr in stepmark.__all__, ast.unparse(node)
                continue
            if any(name.split(".")[0] == "stepmark" for name in modules):
                imports[ast.unparse(node)] = modules
    assert set().union(*imports.values()) <= {"stepmark", *_ADAPTERS}
    # An adapter is imported where its own package is.
    own = [line for line, modules in imports.items() if not modules <= _ADAPTERS]
    assert len(own) <= 3, f"merge these imports: {'; '.join(own)}"


def test_every_command_is_documented() -> None:
    for command in COMMANDS:
        assert f"stepmark {command}" in TEXT, f"no page shows `stepmark {command}`"


def test_every_command_that_is_shown_exists() -> None:
    shown = {
        m
        for page in PAGES
        for block in _consoles(page)
        for m in re.findall(r"^\$ stepmark (\w+)", block, re.M)
    }
    assert shown
    assert shown <= set(COMMANDS)


def test_every_evaluation_is_documented_and_every_one_that_is_shown_exists() -> None:
    shown = {
        m
        for page in PAGES
        for block in _consoles(page)
        for m in re.findall(r"^\$ stepmark evaluate ([\w-]+)", block, re.M)
    }
    # Step benchmarks are in a table that the documentation generates.
    assert shown | set(declared()) == {*EVALUATIONS, "compare"}


def test_every_perturbation_and_verifier_is_documented() -> None:
    for name in [*PERTURBATIONS, *VERIFIERS]:
        assert f"`{name}`" in TEXT, f"no page names {name}"


def test_every_family_is_documented() -> None:
    for name in [*FAMILIES, *GENERATIVE]:
        assert f"`{name}`" in TEXT, f"no page names the family {name}"


def test_every_public_name_is_documented() -> None:
    for name in stepmark.__all__:
        if not name.startswith("__"):
            assert re.search(rf"\b{name}\b", TEXT), f"no page names stepmark.{name}"


def test_the_pages_are_in_the_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.M), (
            f"docs/index.md leaves out {page.name}"
        )


def test_no_page_has_the_name_of_one_that_sphinx_writes_itself() -> None:
    """It would be written over: the links to it would lead to an empty search."""
    for name in ("search", "genindex", "py-modindex"):
        assert not (ROOT / "docs" / f"{name}.md").exists(), f"docs/{name}.md would be written over"


def test_every_way_into_a_catalog_is_real() -> None:
    from stepmark.models.places import NAMES

    assert isinstance(NAMES, Registry)
    for name in NAMES:
        assert callable(NAMES.load(name))


def _prose(page: Path) -> str:
    """A page without its blocks of code, with the files that it includes."""
    text = re.sub(
        r"^```\{include\} (\S+)\n.*?^```$",
        lambda found: (page.parent / found[1]).read_text(encoding="utf-8"),
        page.read_text(encoding="utf-8"),
        flags=re.M | re.S,
    )
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def _anchors(page: Path) -> set[str]:
    """Of a page: the anchors of its headings and its own labels."""
    text = _prose(page)
    found = {name for label in re.findall(r"^\((.+)\)=$", text, re.M) for name in (label, label.lower())}
    for heading in re.findall(r"^#{1,3} (.+)$", text, re.M):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower())
        found.add(words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    # These include files whose links start at the root.
    text = page.read_text(encoding="utf-8") if page.stem in ("index", "changelog") else _prose(page)
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'href="([^"]+)"', text):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / re.sub(r"\.html$", ".md", name) if name else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{link}: {target.name} has no such heading"
