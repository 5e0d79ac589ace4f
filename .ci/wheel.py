"""What must be inside a wheel and a source distribution of stepmark, and what must not.

    python .ci/wheel.py dist/stepmark-VERSION-py3-none-any.whl dist/stepmark-VERSION.tar.gz
    python .ci/wheel.py --extras dist/stepmark-VERSION-py3-none-any.whl

Needs nothing but Python. The first prints the sizes, and ends with 1 and a line for each thing that is wrong; the second prints the wheel's extras.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

NEEDED = {
    "the default PRM": r"stepmark/models/checkpoints/default/adapter_model\.safetensors",
    "the default PRM's settings": r"stepmark/models/checkpoints/default/(stepmark|adapter_config|calibration)\.json",
    "the default PRM's card": r"stepmark/models/checkpoints/default/README\.md",
    "the tiny policy": r"stepmark/models/checkpoints/arithmetic/model\.safetensors",
    "the tiny base": r"stepmark/models/checkpoints/calculator/model\.safetensors",
    "KaTeX": r"stepmark/report/vendor/katex/katex\.min\.js",
    "KaTeX's style": r"stepmark/report/vendor/katex/.*\.css",
    "KaTeX's fonts": r"stepmark/report/vendor/katex/fonts/.*\.woff2",
    "KaTeX's licence": r"stepmark/report/vendor/katex/LICENSE",
    "the pages of stepmark annotate": r"stepmark/annotation/.*\.(html|js|css)",
    "the mark of types": r"stepmark/py\.typed",
    "the licence": r"stepmark-[^/]*\.dist-info/licenses/LICENSE",
    "KaTeX's licence among the licences": r"stepmark-[^/]*\.dist-info/licenses/.*katex/LICENSE",
    "the command": r"stepmark-[^/]*\.dist-info/entry_points\.txt",
}
"""What: a pattern that at least one name in the wheel fits."""

FORBIDDEN = r"(^|/)tests?/|^benchmarks/|(^|/)(__pycache__|\.[^/]+|node_modules)/|\.(pyc|pyo|part|orig|rej|swp|log|sqlite3?)$|(^|/)\."
"""Names that neither may have (`.gitignore` and its like in a source distribution aside)."""

SOURCES = (
    "src/stepmark/__init__.py",
    "tests/conftest.py",
    "docs/conf.py",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "constraints.txt",
)
"""What a source distribution holds, for those who build and test from it."""

MACHINE = rb"/(work|root|home|Users)/[a-z]"
"""A path of the machine that built it, in a text."""


def faults_of_wheel(names: Iterable[str]) -> list[str]:
    """What is wrong with the names in a wheel."""
    listed = list(names)
    found = [
        f"wheel: {what} is not inside"
        for what, pattern in NEEDED.items()
        if not any(re.fullmatch(pattern, name) for name in listed)
    ]
    found += [f"wheel: {name} must not be inside" for name in listed if re.search(FORBIDDEN, name)]
    found += [
        f"wheel: {name} is not stepmark's"
        for name in listed
        if not re.match(r"stepmark/|stepmark-[^/]*\.dist-info/", name)
    ]
    return found


def faults_of_sources(names: Iterable[str]) -> list[str]:
    """What is wrong with the names in a source distribution."""
    inside = {name.partition("/")[2] for name in names}
    found = [f"sdist: {name} is not inside" for name in SOURCES if name not in inside]
    left = re.compile(
        r"(^|/)(__pycache__|_build|\.venv|\.git|\.hypothesis|demo|runs|evaluation)/|\.(pyc|part|log)$"
    )
    return found + [
        f"sdist: {name} must not be inside"
        for name in sorted(inside)
        if left.search(name) and not name.startswith("src/")
    ]


def faults_of_description(text: str) -> list[str]:
    """What is wrong with the long description: on a package index a link goes to an address or nowhere."""
    found = [
        f"wheel: the long description links to {target}, which no index has"
        for target in re.findall(r"\]\(([^)\s]*)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
        if not target.startswith(("https://", "#"))
    ]
    if "pip install" not in text:
        found.append("wheel: the long description does not say how to install")
    return found


def metadata(wheel: Path) -> tuple[str, str]:
    """The head of a wheel's metadata, and its long description."""
    with zipfile.ZipFile(wheel) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        head, _, text = packed.read(name).decode("utf-8").partition("\n\n")
    return head, text


def extras(wheel: Path) -> list[str]:
    """The extras that a wheel has, by its metadata."""
    return re.findall(r"^Provides-Extra: (.+)$", metadata(wheel)[0], re.M)


def main(words: list[str]) -> int:
    """Do what stands above."""
    if words[0] == "--extras":
        print("\n".join(extras(Path(words[1]))))
        return 0
    wheel, sources = (Path(word) for word in words)
    with zipfile.ZipFile(wheel) as packed:
        infos = packed.infolist()
        faults = faults_of_wheel(one.filename for one in infos)
        for one in infos:
            if one.filename.endswith((".py", ".json", ".md", ".toml", "METADATA", ".js", ".html")):
                found = re.search(MACHINE, packed.read(one))
                if found and "/vendor/" not in one.filename:
                    faults.append(f"wheel: {one.filename} names a path of this machine: {found[0].decode()}…")
        largest = sorted(infos, key=lambda one: -one.compress_size)[:5]
        count, unpacked = len(infos), sum(one.file_size for one in infos)
    faults += faults_of_description(metadata(wheel)[1])
    with tarfile.open(sources) as archive:
        names = archive.getnames()
    faults += faults_of_sources(names)
    print(
        f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {count} files, {unpacked / 1e6:.1f} MB unpacked; most of it:"
    )
    for one in largest:
        print(f"  {one.compress_size / 1e6:6.2f} MB  {one.filename}")
    print(f"{sources.name}: {sources.stat().st_size / 1e6:.1f} MB, {len(names)} files")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
