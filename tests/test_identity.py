"""The identity of a checkpoint: every byte that decides a number counts, and nothing else does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepmark.errors import CheckpointError
from stepmark.models import identity
from stepmark.models.identity import CheckpointFiles, checkpoint_fingerprint

WEIGHTS = bytes(range(256)) * 64


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPMARK_CACHE", str(tmp_path / "cache"))


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


@pytest.mark.parametrize("at", [0, 1, 5000, len(WEIGHTS) - 1])
def test_one_bit_of_the_weights_is_another_model(tmp_path: Path, at: int) -> None:
    a, b = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b", changed(at))
    assert (a / "model.safetensors").stat().st_size == (b / "model.safetensors").stat().st_size
    assert checkpoint_fingerprint(a) != checkpoint_fingerprint(b)


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


@pytest.mark.parametrize("name", ["README.md", "train.json", "calibration.json", "run.log", "optimizer.bin"])
def test_cards_and_logs_do_not(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "a")
    before = checkpoint_fingerprint(folder)
    (folder / name).write_text("something")
    assert checkpoint_fingerprint(folder) == before


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


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="holds no weights"):
            checkpoint_fingerprint(folder)


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


def test_a_digest_is_remembered_and_never_for_other_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_REMEMBERED_FROM", 1)
    monkeypatch.setattr(identity, "_SETTLED", 0.05)
    read: list[str] = []
    digest = identity._digest
    monkeypatch.setattr(identity, "_digest", lambda file: (read.append(file.name), digest(file))[1])
    folder = checkpoint(tmp_path / "a")
    time.sleep(0.1)
    first = checkpoint_fingerprint(folder)
    assert sorted(read) == ["config.json", "model.safetensors"]
    assert checkpoint_fingerprint(folder) == first
    assert len(read) == 2  # from memory
    # Other bytes of equal size in place, with the old time of modification: only the kernel's own time tells.
    weights = folder / "model.safetensors"
    was = weights.stat()
    weights.write_bytes(changed(9))
    os.utime(weights, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert weights.stat().st_mtime_ns == was.st_mtime_ns
    assert checkpoint_fingerprint(folder) != first
    assert read[2:] == ["model.safetensors"]


def test_a_file_that_was_written_just_now_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_REMEMBERED_FROM", 1)
    monkeypatch.setattr(identity, "_SETTLED", 3600.0)
    checkpoint_fingerprint(checkpoint(tmp_path / "a"))
    assert not (tmp_path / "cache" / "fingerprints.json").exists()


@pytest.mark.parametrize("memory", ["", "[]", "{", '{"x": 1}', '{"x": {"state": 1}}'])
def test_a_broken_memory_costs_time_only(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "a")
    first = checkpoint_fingerprint(folder)
    monkeypatch.setattr(identity, "_REMEMBERED_FROM", 1)
    monkeypatch.setattr(identity, "_SETTLED", 0.0)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "fingerprints.json").write_text(memory)
    assert checkpoint_fingerprint(folder) == first
    monkeypatch.setenv("STEPMARK_CACHE", str(folder / "config.json" / "no-folder"))
    assert checkpoint_fingerprint(folder) == first


def test_it_needs_no_torch(tmp_path: Path) -> None:
    checkpoint(tmp_path / "a")
    code = (
        "import sys; from stepmark.models.identity import checkpoint_fingerprint as f; "
        f"print(f({str(tmp_path / 'a')!r}), 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [checkpoint_fingerprint(tmp_path / "a"), "False"]
