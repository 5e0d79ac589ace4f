"""The identity of a checkpoint: every byte that decides a number counts, and nothing else does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepmark.errors import CheckpointError, UsageError
from stepmark.models.files import folder_of_name
from stepmark.models.generative import GENERATIVE, generative_prm
from stepmark.models.identity import (
    CheckpointFiles,
    checkpoint_fingerprint,
    tensors_fingerprint,
)
from stepmark.models.load import lazy_prm, load_prm
from stepmark.models.policies import lazy_policy, load_policy

WEIGHTS = bytes(range(256)) * 64


def checkpoint(folder: Path, weights: bytes = WEIGHTS, **files: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text('{"hidden_size": 8}')
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def changed(at: int) -> bytes:
    return WEIGHTS[:at] + bytes([WEIGHTS[at] ^ 1]) + WEIGHTS[at + 1 :]


def test_equal_content_in_two_places_is_one_model(tmp_path: Path) -> None:
    a, b = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b" / "c")
    assert checkpoint_fingerprint(a) == checkpoint_fingerprint(str(b))
    assert len(checkpoint_fingerprint(a)) == 64


@pytest.mark.parametrize(
    "name",
    [
        "stepmark.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "vocab.txt",
        "merges.txt",
    ],
)
def test_files_that_decide_numbers_count(tmp_path: Path, name: str) -> None:
    without = checkpoint_fingerprint(checkpoint(tmp_path / "a"))
    folder = checkpoint(tmp_path / "b")
    (folder / name).write_text("{}")
    one = checkpoint_fingerprint(folder)
    (folder / name).write_text("[]")
    assert len({without, one, checkpoint_fingerprint(folder)}) == 3


def test_the_base_of_an_adapter_counts(tmp_path: Path) -> None:
    base = checkpoint(tmp_path / "base")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"adapter")
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    before = checkpoint_fingerprint(adapter)
    (base / "model.safetensors").write_bytes(changed(7))
    assert checkpoint_fingerprint(adapter) != before
    (base / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        checkpoint_fingerprint(adapter)


def test_weights_in_a_folder_of_a_training_run_are_named(tmp_path: Path) -> None:
    inside = checkpoint(tmp_path / "checkpoint-10")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=rf"holds no weights .*; there are some in {inside}: name that"):
        checkpoint_fingerprint(tmp_path)


def test_weights_that_change_between_loading_and_naming_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    files = CheckpointFiles(folder)
    time.sleep(0.02)  # more than a tick of the file system's clock
    (folder / "model.safetensors").write_bytes(changed(3))
    with pytest.raises(CheckpointError, match=r"model\.safetensors was changed while"):
        files.fingerprint()
    files = CheckpointFiles(folder)
    (folder / "stepmark.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"stepmark\.json was changed"):
        files.fingerprint()


def test_it_needs_no_torch(tmp_path: Path) -> None:
    checkpoint(tmp_path / "a")
    code = (
        "import sys; from stepmark.models.identity import checkpoint_fingerprint as f; "
        f"print(f({str(tmp_path / 'a')!r}), 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [checkpoint_fingerprint(tmp_path / "a"), "False"]


# --- the identity of a PRM

CPU = {"dtype": "float32", "device": "cpu"}


def altered(built_folder: Path, to: Path, *, file: str = "model.safetensors") -> Path:
    """A copy of a checkpoint with one bit of its last weight flipped."""
    shutil.copytree(built_folder, to)
    content = bytearray((to / file).read_bytes())
    content[-2] ^= 1
    (to / file).write_bytes(bytes(content))
    return to


@pytest.mark.parametrize(
    ("name", "family"),
    [("qwen-prm", None), ("math-shepherd", "math-shepherd"), ("versaprm-adapter", "versaprm")],
)
def test_a_prm_is_named_without_reading_its_weights_as_it_is_with(zoo, name: str, family: str | None) -> None:
    folder = str(zoo[name].folder)
    prm = load_prm(folder, family=family, **CPU)
    assert prm.identity == lazy_prm(folder, family=family, **CPU).identity
    assert prm.identity.startswith(f"{folder}#")


def test_every_setting_that_decides_a_score_decides_the_identity(zoo, tmp_path: Path) -> None:
    folder = str(zoo["token-classification"].folder)
    settings = [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "float32", "truncate": True},
        {"dtype": "float32", "outcome": True},
        {"dtype": "float32", "family": "pure"},
    ]
    names = {lazy_prm(folder, device="cpu", **one).identity for one in settings}
    assert len(names) == len(settings)
    # And what decides none does not.
    assert lazy_prm(folder, token_budget=64, **CPU).identity == lazy_prm(folder, **CPU).identity
    three = str(zoo["three-class"].folder)
    read = CPU | {"family": "three-class"}
    assert lazy_prm(three, neutral="negative", **read).identity != lazy_prm(three, **read).identity


def test_a_prm_whose_weights_were_replaced_after_loading_has_no_identity(zoo, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(zoo["token-classification"].folder, folder)
    prm = load_prm(str(folder), **CPU)
    time.sleep(0.02)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"model\.safetensors was changed while"):
        _ = prm.identity


def test_one_bit_of_a_model_in_memory_is_another_identity() -> None:
    torch = pytest.importorskip("torch")
    weights = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(500, dtype=torch.bfloat16)}
    first = tensors_fingerprint(weights.items())
    assert first == tensors_fingerprint(reversed(weights.items()))
    assert tensors_fingerprint((weights | {"b": weights["b"].reshape(3, 2)}).items()) != first
    assert tensors_fingerprint((weights | {"b": weights["b"].to(torch.int32)}).items()) != first
    weights["a"][317] = torch.nextafter(weights["a"][317], torch.tensor(2.0, dtype=torch.bfloat16))
    assert tensors_fingerprint(weights.items()) != first


def test_a_generative_prm_is_its_policy_and_its_settings() -> None:
    policy = load_policy("stepmark:arithmetic", device="cpu")
    assert policy.identity == lazy_policy("stepmark:arithmetic", device="cpu").identity
    names = {
        generative_prm(family, policy, samples=samples, seed=seed).identity
        for family in GENERATIVE
        for samples in (1, 2)
        for seed in (0, 1)
    }
    assert len(names) == 4 * len(GENERATIVE)
    assert all(name.startswith(f"{policy.identity}#") for name in names)


def test_a_prm_of_ones_own_names_itself_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_identities.py").write_text(
        "from stepmark.models.scripted import ScriptedPRM\n"
        "def named(): return ScriptedPRM({'a': 0.5}, name='rules 1')\n"
        "class Nameless:\n"
        "    name, score_kind, default_aggregate = 'own', 'probability', 'min'\n"
        "    def score_many(self, solutions, *, keep_going=False): return iter(())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert lazy_prm("own_identities:named").identity == "rules 1"
    with pytest.raises(UsageError, match=r"own: a Nameless has no identity.*Add the property `identity`"):
        load_prm("own_identities:Nameless")


def test_the_nearest_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    checkpoint(tmp_path / "run").rename(tmp_path / "checkpoint-10")
    (tmp_path / "run").mkdir()
    (tmp_path / "checkpoint-10").rename(tmp_path / "run" / "checkpoint-10")
    for name, near in (("run/checkpoint-11", "run/checkpoint-10"), ("./runn", "run")):
        with pytest.raises(CheckpointError, match=rf"Did you mean '{near}'\?"):
            folder_of_name(name, ["config.json"])
