"""`stepmark doctor`: what is installed, what is missing, and the line to type."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import stepmark
from stepmark.cli.doctor_machine import (
    Check,
    Machine,
    check_browser,
    check_cache,
    check_default_prm,
    check_gpu,
    check_sandbox,
    machine,
)
from stepmark.cli.doctor_packages import (
    Clash,
    Environment,
    Extra,
    State,
    clashes,
    core_and_extras,
    environment,
    modules_of,
)

IMPORT_SECONDS = 300.0
"""After which `--deep` gives up importing what is installed, and scoring one solution."""

_PAGE = "the docs' page about installing"
_MARGIN = " " * 19
_SIGNS: dict[State, str] = {"ok": "ok", "missing": "--", "broken": "!!"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """All that `stepmark doctor` found."""

    version: str
    """Of stepmark's code."""
    python: str
    interpreter: str
    core: Extra
    extras: list[Extra]
    clashes: list[Clash]
    checks: list[Check]
    machine: Machine

    @property
    def healthy(self) -> bool:
        """Whether the core works and nothing that is installed is broken; what is missing is no illness."""
        states = [one.state for one in self.extras] + [check.state for check in self.checks]
        return (
            self.core.state == "ok" and "broken" not in states and not any(one.ours for one in self.clashes)
        )


def doctor_command(
    *,
    deep: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Say what is installed, what is missing and what it is for, and the line to type.

    Looks at Python, stepmark and its extras (versions against what stepmark asks for), packages that clash, the machine, the
    default PRM, the sandboxes for programs, and the cache. Without `--deep` nothing large is imported. Exit code 0: the
    core works, and what is installed fits; 1: something that is installed is broken.

    Args:
        deep: import every package of the extras, load the default PRM, score one solution and time it.
        as_json: print one JSON object.
    """
    health = examine(environment(), deep=deep)
    if as_json:
        print(json.dumps({**asdict(health), "healthy": health.healthy, **_states(health)}, indent=2))
    else:
        print("\n".join(_lines(health, width=max(60, min(110, shutil.get_terminal_size().columns)))))
    return 0 if health.healthy else 1


def examine(packages: Environment, *, deep: bool = False) -> Health:
    """Look at everything.

    Args:
        packages: what is installed, as `environment` reads it.
        deep: as the command's.
    """
    installer = _installer()
    found = machine()
    try:
        core, extras = core_and_extras(packages, installer=installer)
    except LookupError:
        return _not_installed(found, installer)
    own = packages["stepmark"]
    checks = [
        _check_version(own.version, editable=own.editable, installer=installer),
        _check_python(own.python),
    ]
    checks += [check_default_prm(installer), check_gpu(found), check_sandbox(), check_cache()]
    if own.editable:
        checks.append(check_browser())
    checks += _check_imports(core, extras, deep=deep)
    if deep:
        checks.append(_check_grading(extras))
    return Health(
        version=stepmark.__version__,
        python=".".join(map(str, sys.version_info[:3])),
        interpreter=sys.executable,
        core=core,
        extras=extras,
        clashes=clashes(packages),
        checks=checks,
        machine=found,
    )


def _installer() -> str:
    """The words that install packages into the environment of this interpreter."""
    beside = Path(sys.executable).parent
    if (pip := shutil.which("pip")) and Path(pip).parent == beside:
        return "pip install"
    if not (beside / "pip").exists() and shutil.which("uv"):
        return "uv pip install"
    return f"{sys.executable} -m pip install"


def _not_installed(found: Machine, installer: str) -> Health:
    place = Path(stepmark.__file__).parent
    check = Check(
        name="stepmark",
        state="broken",
        found=f"it runs from {place} and is not installed, so what it needs is not known",
        todo=f"{installer} --editable {place.parents[1]}",
    )
    core = Extra(name="core", purpose="", packages=(), install=f"{installer} stepmark")
    return Health(
        version=stepmark.__version__,
        python=".".join(map(str, sys.version_info[:3])),
        interpreter=sys.executable,
        core=core,
        extras=[],
        clashes=[],
        checks=[check],
        machine=found,
    )


def _check_version(installed: str | None, *, editable: bool, installer: str) -> Check:
    place = Path(stepmark.__file__).parent
    name = "stepmark"
    if installed != stepmark.__version__:
        folder = f"--editable {place.parents[1]}" if editable else "--force-reinstall stepmark"
        text = f"the code in {place} is {stepmark.__version__}, its metadata are of {installed}"
        return Check(name=name, state="broken", found=text, todo=f"{installer} {folder}")
    return Check(name=name, state="ok", found=f"{installed}{' (editable)' if editable else ''} in {place}")


def _check_python(wanted: str | None) -> Check:
    from packaging.specifiers import SpecifierSet

    here = ".".join(map(str, sys.version_info[:3]))
    if wanted is not None and not SpecifierSet(wanted).contains(here, prereleases=True):
        text = f"{here}; stepmark needs {wanted}"
        return Check(name="Python", state="broken", found=text, todo=f"an environment of Python {wanted}")
    return Check(name="Python", state="ok", found=f"{here} ({sys.executable})")


def _check_imports(core: Extra, extras: Sequence[Extra], *, deep: bool) -> list[Check]:
    """Import what is installed; without `deep` the core's packages only, which are small."""
    names = {
        package.name
        for one in (core, *(extras if deep else ()))
        for package in one.packages
        if package.state == "ok" and "[" not in package.name
    }
    modules = {module: name for name in sorted(names) for module in modules_of(name)}
    failed = _import(list(modules))
    found = [
        Check(
            name=f"import {module}",
            state="broken",
            found=f"{modules[module]} is installed and cannot be imported: {error}",
            todo=f"{_installer()} --force-reinstall {modules[module]}",
        )
        for module, error in failed.items()
    ]
    if found:
        return found
    text = (
        "all that is installed can be"
        if deep
        else "the core's packages can be; `stepmark doctor --deep` tries all"
    )
    return [Check(name="imports", state="ok", found=text)]


def _import(modules: list[str]) -> dict[str, str]:
    """Those that cannot be imported, and why. In a process of its own, which a broken library may kill."""
    failed: dict[str, str] = {}
    while modules:
        lines, ended = _child(["import", *modules])
        for line in lines:
            if line.get("error"):
                failed[line["module"]] = line["error"]
        done = {line["module"] for line in lines if "module" in line}
        begun = next((line["begins"] for line in reversed(lines) if "begins" in line), None)
        if begun is not None and begun not in done:
            failed[begun] = ended
            done.add(begun)
        if not done:  # the process did not even start
            failed[modules[0]] = ended
            done.add(modules[0])
        modules = [one for one in modules if one not in done]
    return failed


def _child(words: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """The JSON lines of a `doctor_deep` process, and how it ended."""
    line = [sys.executable, "-m", "stepmark.cli.doctor_deep", *words]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)  # noqa: S603
        said, code = done.stdout, done.returncode
        last = done.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired as late:
        said, code, last = (
            str(late.stdout or b"", "utf-8", "replace"),
            None,
            [],
        )  # bytes, whatever was asked for
    lines = [json.loads(text) for text in said.splitlines() if text.startswith("{")]
    if code is None:
        ended = f"not done after {IMPORT_SECONDS:.0f} s"
    elif code < 0:
        ended = f"the process was killed by {signal.Signals(-code).name}"
    else:
        ended = f"the process ended with {code}{': ' + last[0] if last else ''}"
    return lines, ended


def _check_grading(extras: Sequence[Extra]) -> Check:
    name = "scoring"
    wanted = next((one for one in extras if one.name == "default"), None)
    if wanted is not None and wanted.state == "missing":
        return Check(name=name, state="missing", found="the default PRM was not tried", todo=wanted.install)
    lines, ended = _child(["grade"])
    told: dict[str, Any] = lines[-1] if lines else {"error": ended}
    if told["error"] is not None:
        state: State = "missing" if told["error"].startswith("MissingExtraError") else "broken"
        return Check(name=name, state=state, found=f"the default PRM did not score: {told['error']}")
    rows = told["scores"]
    if any(len(row) != 2 or not all(_probability(score) for score in row) for row in rows):
        return Check(
            name=name, state="broken", found=f"expected two probabilities, the default PRM gave {rows}"
        )
    text = (
        f"the default PRM loads in {told['load_seconds']:.1f} s and scores two steps in {told['again_seconds'] * 1e3:.0f} ms"
        f" ({told['first_seconds'] * 1e3:.0f} ms the first time), on "
        + (", ".join(told["gpus"]) or f"{told['threads']} threads with {told['cpu_capability']}")
    )
    return Check(name=name, state="ok", found=text)


def _probability(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and 0.0 <= value <= 1.0


def _states(health: Health) -> dict[str, Any]:
    return {
        "core": {**asdict(health.core), "state": health.core.state},
        "extras": [{**asdict(one), "state": one.state} for one in health.extras],
    }


def _lines(health: Health, width: int) -> Iterator[str]:
    yield f"stepmark {health.version} on Python {health.python}"
    shown: set[str] = set()  # each package is shown where it stands first
    for title, extras in (("core", [health.core]), ("extras", health.extras)):
        yield f"\n{title}"
        for one in extras:
            yield from _row(one.state, one.name, one.purpose, width)
            there = [p for p in one.packages if p.state == "ok" and p.name not in shown]
            shown.update(p.name for p in there)
            if there:
                yield from _more(", ".join(f"{p.name} {p.installed}" for p in there), width)
            for package in one.packages:
                if package.state == "broken":
                    yield from _more(f"{package.name}: {package.note}", width)
            absent = [f"{p.name}{p.wanted}" for p in one.packages if p.state == "missing"]
            if absent:
                yield from _more(f"not installed: {', '.join(absent)}", width)
            if one.state != "ok":
                yield f"{_MARGIN}to do: {one.install}"
    if _torch_would_bring_cuda(health):
        yield f"\n  On Linux torch comes with several GB for NVIDIA GPUs, and none is here: {_PAGE} has the smaller way."
    yield "\nchecks"
    for check in health.checks:
        yield from _row(check.state, check.name, check.found, width)
        if check.todo is not None:
            yield f"{_MARGIN}to do: {check.todo}"
    for clash in health.clashes:
        there_is = f"{clash.installed} is installed" if clash.installed else "it is not installed"
        rest = "" if clash.ours else "; it may fail beside stepmark: give it an environment of its own"
        text = f"{clash.package} asks for {clash.wants}, and {there_is}{rest}"
        yield from _row("broken" if clash.ours else "missing", "versions", text, width)
        if clash.ours:
            yield f"{_MARGIN}to do: {_installer()} '{clash.wants}'"
    yield "\nmachine"
    for text in _machine(health.machine):
        yield f"    {text}"
    yield f"\n{'All is well.' if health.healthy else 'Something that is installed is broken: see !! above.'}"


def _torch_would_bring_cuda(health: Health) -> bool:
    absent = {p.name for one in health.extras for p in one.packages if p.state == "missing"}
    return "torch" in absent and health.machine.system.startswith("Linux") and not health.machine.gpus


def _machine(found: Machine) -> Iterator[str]:
    yield f"{found.system}, {found.cores} core{'s' if found.cores > 1 else ''}" + (
        f", {found.processor}" if found.processor else ""
    )
    if found.memory_bytes is not None:
        free = "" if found.free_memory_bytes is None else f", {found.free_memory_bytes / 2**30:.1f} GiB free"
        yield f"{found.memory_bytes / 2**30:.1f} GiB of memory{free}"
    if found.abilities is not None:
        yield ", ".join(found.abilities) or "no AVX-512 and no AMX: bfloat16 is slow here"


def _row(state: State, name: str, text: str, width: int) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=f"  {_SIGNS[state]} {name:<13} ",
        subsequent_indent=_MARGIN,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [f"  {_SIGNS[state]} {name}"]


def _more(text: str, width: int) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=" " * 19,
        subsequent_indent=_MARGIN,
        break_on_hyphens=False,
        break_long_words=False,
    )
