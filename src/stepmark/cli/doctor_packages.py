"""What is installed, held against what stepmark asks for: its own metadata are the only list.

Nothing is imported here: names, versions and requirements stand in the metadata of the installed packages (the core metadata of
the Python packaging user guide; requirements as PEP 508 has them, versions as PEP 440).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

State = Literal["ok", "missing", "broken"]
"""ok: there and as asked for. missing: not there. broken: there, and not what is asked for, or it does not work."""

PURPOSES: dict[str, str] = {
    "local": "checkpoints in this process: grade, sample and search with models on this machine",
    "default": "the PRM that ships with stepmark; its base model is a package of its own",
    "train": "stepmark train, and stepmark rl",
    "evaluate": "plots and reports of evaluations; the maths verifier",
    "annotate": "stepmark annotate: the web app where people label steps",
    "postgres": "stepmark annotate on PostgreSQL",
    "serve": "stepmark serve: a PRM behind HTTP; the PRM itself needs local or default",
    "hub": "stepmark publish, and records as data sets of the Hugging Face hub",
    "cluster": "requests answered on a Ray cluster (--ray)",
    "dev": "working on stepmark itself: tests, checks, docs",
}
"""What each extra is for. Which packages it has is in the metadata, and only there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """An installed package, as its metadata describe it."""

    name: str
    """As it writes itself."""
    version: str | None
    """None where the metadata are torn: an installation that was cut short."""
    requires: tuple[str, ...] = ()
    """Its requirements, PEP 508 strings."""
    extras: tuple[str, ...] = ()
    """The extras that it has."""
    python: str | None = None
    """The versions of Python that it is for, a PEP 440 specifier; None: it does not say."""
    editable: bool = False
    """Whether it is installed from a folder that is worked in."""


Environment = Mapping[str, Installed]
"""Installed packages by canonical name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """One requirement, and what is there."""

    name: str
    wanted: str
    """The versions that are asked for, "" for any."""
    installed: str | None
    """The version that is there; None when it is not."""
    state: State
    note: str = ""
    """What is wrong, where something is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """An extra of stepmark's, or its core, which is "core"."""

    name: str
    purpose: str
    packages: tuple[Package, ...]
    install: str
    """The line that installs what is missing and replaces what does not fit."""

    @property
    def state(self) -> State:
        """Broken where any package is, else missing where any is."""
        states = {package.state for package in self.packages}
        return "broken" if "broken" in states else "missing" if "missing" in states else "ok"


def environment(path: Sequence[str] | None = None) -> Environment:
    """The packages that are installed.

    Args:
        path: folders to look in, the first one that has a package wins; None: where this process imports from.
    """
    found: dict[str, Installed] = {}
    for one in distributions() if path is None else distributions(path=list(path)):
        name = _field(one, "Name")
        if name:
            found.setdefault(canonicalize_name(name), _installed(one, name))
    return found


def _field(one: Distribution, name: str) -> str | None:
    # Asked first: an absent field is None in Python 3.11 and will be a KeyError.
    return one.metadata[name] if one.metadata is not None and name in one.metadata else None


def _installed(one: Distribution, name: str) -> Installed:
    origin = one.read_text("direct_url.json")
    try:
        editable = bool(origin and json.loads(origin).get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        editable = False
    return Installed(
        name=name,
        version=_field(one, "Version"),
        requires=tuple(one.requires or ()),
        extras=tuple(one.metadata.get_all("Provides-Extra") or ()),
        python=_field(one, "Requires-Python"),
        editable=editable,
    )


def core_and_extras(packages: Environment, *, installer: str) -> tuple[Extra, list[Extra]]:
    """What stepmark needs, and each of its extras.

    Args:
        packages: what is installed.
        installer: the words before the packages' names in a line that installs, such as "pip install".

    Raises:
        LookupError: stepmark itself is not among the packages: it runs from a folder that nobody installed.
    """
    own = packages.get("stepmark")
    if own is None:
        raise LookupError("stepmark")
    core = Extra(
        name="core",
        purpose="reading, cutting, aggregating, reports; PRMs behind a server",
        packages=tuple(_held_against(_wanted(own, ""), packages)),
        install=f"{installer} stepmark",
    )
    extras = [
        Extra(
            name=name,
            purpose=PURPOSES.get(name, ""),
            packages=tuple(_held_against(_wanted(own, name), packages)),
            install=f"{installer} 'stepmark[{name}]'",
        )
        for name in own.extras
        if name != "dev" or own.editable
    ]
    order = list(PURPOSES)
    return core, sorted(extras, key=lambda one: order.index(one.name) if one.name in order else len(order))


def _parsed(texts: Sequence[str]) -> Iterator[Requirement]:
    for text in texts:
        try:
            yield Requirement(text)
        except InvalidRequirement:  # of another's old package: pip does not read it either
            continue


def _applies(one: Requirement, extra: str) -> bool:
    return one.marker is None or one.marker.evaluate({"extra": extra})


def _wanted(own: Installed, extra: str, seen: tuple[str, ...] = ()) -> list[Requirement]:
    """What an extra asks for beyond the core ("": what the core asks for), its references to other extras followed."""
    found = []
    for one in _parsed(own.requires):
        if not _applies(one, extra) or (extra and _applies(one, "")):
            continue
        if canonicalize_name(one.name) == canonicalize_name(own.name):
            for other in sorted(one.extras - set(seen)):
                found += _wanted(own, other, (*seen, extra, other))
        else:
            found.append(one)
    return found


def _held_against(wanted: Sequence[Requirement], packages: Environment) -> Iterator[Package]:
    for one in sorted(wanted, key=lambda one: one.name.lower()):
        there = packages.get(canonicalize_name(one.name))
        yield _package(one, there)
        if there is None:
            continue
        # What the extra of another package brings: psycopg[binary].
        for extra in sorted(one.extras):
            for part in _wanted(there, extra):
                found = _package(part, packages.get(canonicalize_name(part.name)))
                if found.state != "ok":
                    yield Package(
                        name=f"{one.name}[{extra}]",
                        wanted=f"{part.name}{part.specifier}",
                        installed=found.installed,
                        state=found.state,
                        note=f"{part.name}: {found.note}",
                    )


def _package(wanted: Requirement, there: Installed | None) -> Package:
    state: State = "ok"
    note = ""
    if there is None:
        state, note = "missing", "not installed"
    elif there.version is None:
        state, note = "broken", "its metadata are torn: install it again"
    elif not wanted.specifier.contains(there.version, prereleases=True):
        state, note = "broken", f"version {there.version} does not fit {wanted.specifier}"
    return Package(
        name=wanted.name,
        wanted=str(wanted.specifier),
        installed=None if there is None else there.version,
        state=state,
        note=note,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Clash:
    """A package that asks for what is not there."""

    package: str
    """Who asks, with its version."""
    wants: str
    installed: str | None
    ours: bool
    """Whether stepmark runs on the package that asks; if not, that one may fail beside stepmark, and stepmark does not."""


def clashes(packages: Environment) -> list[Clash]:
    """Requirements that the installed packages have of each other and that are not met.

    Only where it touches stepmark: what a package that stepmark runs on asks for, and what any other package asks of one that
    stepmark runs on.
    """
    ours: set[str] = set()
    waiting = ["stepmark"]
    found = []
    own = packages.get("stepmark")
    if own is not None:
        for extra in own.extras:
            if extra != "dev" or own.editable:
                waiting += [canonicalize_name(one.name) for one in _wanted(own, extra)]
    while waiting:
        name = waiting.pop()
        if name in ours or name not in packages:
            continue
        ours.add(name)
        for one in _parsed(packages[name].requires):
            if not _applies(one, ""):
                continue
            other = canonicalize_name(one.name)
            waiting.append(other)
            clash = _clash(packages[name], one, packages.get(other), ours=True)
            if clash is not None and name != "stepmark":
                found.append(clash)
    for name, package in packages.items():
        if name in ours:
            continue
        texts = [text for text in package.requires if _name_of(text) in ours]
        for one in _parsed(texts):
            there = packages[canonicalize_name(one.name)]
            clash = _clash(package, one, there, ours=False) if _applies(one, "") else None
            if clash is not None:
                found.append(clash)
    return sorted(found, key=lambda one: (not one.ours, one.package.lower(), one.wants))


def _name_of(text: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", text.strip())
    return canonicalize_name(found[0]) if found else ""


def _clash(package: Installed, wanted: Requirement, there: Installed | None, *, ours: bool) -> Clash | None:
    if _package(wanted, there).state == "ok":
        return None
    return Clash(
        package=f"{package.name} {package.version or ''}".strip(),
        wants=f"{wanted.name}{wanted.specifier}",
        installed=None if there is None else there.version,
        ours=ours,
    )


def modules_of(name: str, path: Sequence[str] | None = None) -> tuple[str, ...]:
    """What a package is imported by: the module of its own name where it has one, else all that it has at the top.

    Empty for a package without modules, such as one of type stubs, and for one that is not there.
    """
    found = distributions(name=name) if path is None else distributions(name=name, path=list(path))
    for one in found:
        listed = (one.read_text("top_level.txt") or "").split()
        if not listed:
            listed = sorted({_module(file.parts) for file in one.files or ()} - {""})
        public = [module for module in listed if module.isidentifier() and not module.startswith("_")]
        own = [module for module in public if canonicalize_name(module) == canonicalize_name(name)]
        return tuple(own or public)
    return ()


def _module(parts: tuple[str, ...]) -> str:
    if len(parts) == 2 and parts[1] == "__init__.py":
        return parts[0]
    return parts[0].removesuffix(".py") if len(parts) == 1 and parts[0].endswith(".py") else ""
