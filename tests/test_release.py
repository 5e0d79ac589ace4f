"""What is released agrees with itself: version, extras, constraints, the page about installing."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import stepmark
from stepmark.cli.doctor import PURPOSES

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
CORE: list[str] = PROJECT["project"]["dependencies"]

PINS = {
    canonicalize_name(name): Version(version)
    for name, _, version in (
        line.partition("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
}


# --- the version


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"] == {"path": "src/stepmark/__init__.py"}
    assert str(Version(stepmark.__version__)) == stepmark.__version__


# --- extras


def named(requirements: list[str]) -> set[str]:
    """Package names, an extra of stepmark's own by the extra's name."""
    found = set()
    for one in map(Requirement, requirements):
        found |= one.extras if one.name == "stepmark" else {one.name.lower()}
    return found


def test_the_page_about_installing_has_the_extras_as_they_are():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = page.partition("| extra | for | packages |")[2].partition("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    told = {
        extra: (purpose, {one.strip(" `") for one in packages.split(",")})
        for extra, purpose, packages in rows
    }
    real = {"": named(CORE)} | {extra: named(wanted) for extra, wanted in EXTRAS.items() if extra != "dev"}
    assert {extra: packages for extra, (_, packages) in told.items()} == real
    assert {extra: purpose for extra, (purpose, _) in told.items() if extra} == {
        extra: purpose for extra, purpose in PURPOSES.items() if extra != "dev"
    }


# --- constraints


def test_every_package_that_is_named_has_its_version():
    for requirement in map(Requirement, [*CORE, *(one for wanted in EXTRAS.values() for one in wanted)]):
        name = canonicalize_name(requirement.name)
        if name != "stepmark":
            assert name in PINS, f"constraints.txt has no version of {name}"
            assert requirement.specifier.contains(PINS[name]), (
                f"constraints.txt: {name} {PINS[name]} is not {requirement}"
            )


def test_what_those_bring_has_its_version_too():
    """Of what is installed here: the whole is tried by `.ci/release`."""
    waiting = [Requirement(one) for one in [*CORE, *(one for wanted in EXTRAS.values() for one in wanted)]]
    seen = {("stepmark", "")}
    lacking = set()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        for extra in ("", *one.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                told = distribution(name).requires or []
            except PackageNotFoundError:
                continue
            if name not in PINS and name != "stepmark":
                lacking.add(name)
            for further in map(Requirement, told):
                if further.marker is None or further.marker.evaluate({"extra": extra}):
                    waiting.append(further)
    assert lacking == set()


def test_constraints_are_versions_and_in_order():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in pins)  # no build tag
    assert len(PINS) == len(pins)
    names = [line.partition("==")[0].lower().replace("_", "-") for line in pins]
    assert names == sorted(names)


# --- floors

INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
SPECIFIERS = {
    canonicalize_name(requirement.name): requirement.specifier
    for requirement in map(Requirement, [*CORE, *(line for wanted in EXTRAS.values() for line in wanted)])
}


def test_the_versions_beside_peers_are_allowed():
    """The table of `make peers` in docs/install.md: what it showed to resolve, pyproject.toml still allows."""
    head, rows = re.search(r"^\| beside \| together \| (.+) \|\n\|[ |-]+\n((?:\|.+\n)+)", INSTALL, re.M).groups()  # fmt: skip
    peers = {}
    for line in rows.splitlines():
        peer, together, *versions = line.strip("| ").split(" | ")
        assert together == "yes", f"{peer} does not resolve beside stepmark"
        peers[peer.split("[")[0].split(" ")[0]] = versions
        for name, version in zip(head.split(" | "), versions, strict=True):
            assert SPECIFIERS[name].contains(version), f"{peer} has {name} {version}, not {SPECIFIERS[name]}"
    assert set(peers) == {"vllm", "sglang", "trl", "verl"}


def test_the_page_names_the_floors():
    table = INSTALL.partition("| package | from |")[2].partition("\n\n")[0]
    cells = [cell.strip() for line in table.splitlines()[2:] for cell in line.strip("|").split("|")]
    shown = dict(zip(cells[::2], cells[1::2], strict=True))
    assert len(shown) == 18
    for name, version in shown.items():
        floors = [part.version for part in SPECIFIERS[name] if part.operator == ">="]
        assert floors == [version], f"docs/install.md says {name} from {version}, pyproject.toml {floors}"


# --- what is inside


@pytest.fixture(scope="module")
def wheel():
    spec = importlib.util.spec_from_file_location("wheel_content", ROOT / ".ci" / "wheel.py")
    if spec is None or not (ROOT / ".ci" / "wheel.py").is_file():
        pytest.skip("the release's script is not here (a source distribution)")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packed() -> list[str]:
    """The names that a wheel of this tree has."""
    package = ROOT / "src" / "stepmark"
    files = [file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    rest = ("entry_points.txt", "licenses/LICENSE", "licenses/src/stepmark/report/vendor/katex/LICENSE")
    return [
        *(file.relative_to(ROOT / "src").as_posix() for file in files),
        *(f"stepmark-{stepmark.__version__}.dist-info/{name}" for name in rest),
    ]


def test_a_wheel_of_this_tree_is_whole(wheel):
    assert wheel.faults_of_wheel(packed()) == []


def test_what_is_on_no_index_is_installed_from_a_checkout():
    """Until a version is released, `pip install stepmark` finds nothing, and the index has no page of it."""
    for page in ("README.md", "docs/install.md", "docs/start.md"):
        lines = (ROOT / page).read_text("utf-8").splitlines()
        first = next(line for line in lines if line.startswith("$ pip install") and "[default" in line)
        assert "--editable '.[" in first, page
    files = [
        file
        for folder in ("src", "docs")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".md"}
    ]
    assert not [
        file
        for file in [ROOT / "README.md", *files]
        if "pypi.org/project/stepmark" in file.read_text("utf-8")
    ]
