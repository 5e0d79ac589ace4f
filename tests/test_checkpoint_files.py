"""Files of a checkpoint that cannot be read: one clear error that names the file."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from stepmark import load_prm
from stepmark.errors import CheckpointError

torch.set_num_threads(1)


@pytest.fixture
def prm(zoo, tmp_path):
    return shutil.copytree(zoo["qwen-prm"].folder, tmp_path / "prm")


def link_to_itself(file):
    file.unlink(missing_ok=True)
    file.symlink_to(file.name)


def link_to_nothing(file):
    file.unlink(missing_ok=True)
    file.symlink_to("nowhere")


def pipe(file):
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def holding(data):
    return lambda file: file.write_bytes(data)


NOT_A_FILE = {"a link to itself": link_to_itself, "a link to nothing": link_to_nothing, "a pipe": pipe}
NOT_JSON = {
    "lists in lists": holding(b"[" * 200_000),
    "objects in objects": holding(b'{"a":' * 200_000),
    "empty": holding(b""),
    "cut": holding(b'{"model_type": "qw'),
    "no text": holding(b"\xff\xfe\x00"),
    "a list": holding(b"[1]"),
    "a number": holding(b"1"),
}
NO_TENSORS = {
    "empty": holding(b""),
    "no header": holding(b"\x00" * 4),
    "a header of 2^62 bytes": holding((2**62).to_bytes(8, "little") + b"{}"),
    "a header of 50 MB": holding((50_000_000).to_bytes(8, "little") + b"{}"),
    "lists in lists": holding((200_000).to_bytes(8, "little") + b"[" * 200_000),
    "2^80 numbers": holding(
        (75).to_bytes(8, "little")
        + json.dumps({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}).encode().ljust(75)
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", [*NOT_A_FILE, *NOT_JSON])
@pytest.mark.parametrize("name", ["config.json", "stepmark.json", "tokenizer_config.json"])
def test_a_json_file_that_cannot_be_read(prm, name, damage):
    (NOT_A_FILE | NOT_JSON)[damage](prm / name)
    with pytest.raises(CheckpointError, match=str(prm / name)):
        load_prm(str(prm), device="cpu")


@pytest.mark.parametrize("damage", [*NOT_A_FILE, *NO_TENSORS])
def test_weights_that_cannot_be_read(prm, damage):
    (NOT_A_FILE | NO_TENSORS)[damage](prm / "model.safetensors")
    with pytest.raises(CheckpointError, match=str(prm / "model.safetensors")):
        load_prm(str(prm), device="cpu")
