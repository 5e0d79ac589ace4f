"""Files of a checkpoint that cannot be read, and downloads that fail: one clear error that names the file or the model."""

from __future__ import annotations

import json
import os
import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors as hub

from stepmark import load_prm
from stepmark.cli import main
from stepmark.errors import CheckpointError, StepmarkError
from stepmark.models.files import read_object
from stepmark.models.places import find_checkpoint
from stepmark.models.policies.openai import OpenAIPolicy

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
    "not a number": holding(b'{"rope_theta": NaN}'),
    "infinite": holding(b'{"rope_theta": [1e999]}'),
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


def test_an_infinite_setting_of_published_configs_is_read(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"time_step_limit": [0.0, Infinity], "rope_theta": 1e6}', encoding="utf-8")
    assert read_object(file)["rope_theta"] == 1e6


@pytest.mark.parametrize("damage", ["a link to itself", "lists in lists", "not a number"])
def test_the_command_line_says_what_is_wrong_and_asks_for_no_report(prm, tmp_path, capsys, damage):
    (NOT_A_FILE | NOT_JSON)[damage](prm / "config.json")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "p", "steps": ["a"]}\n', encoding="utf-8")
    assert main(["grade", str(rows), "--prm", str(prm), "--out", str(tmp_path / "out.jsonl")]) == 2
    told = capsys.readouterr().err
    assert str(prm / "config.json") in told.replace("\n", "")
    assert "please report" not in told


# ---- the hub -------------------------------------------------------------------------------------------------

JARGON = ("LocalEntryNotFoundError", "RepositoryNotFoundError", "GatedRepoError", "snapshot", "repo_id", "revision", "Request ID", "Traceback")  # fmt: skip


def answer(kind, status):
    """An error of huggingface_hub as it raises it for an HTTP status."""
    response = SimpleNamespace(status_code=status, headers={"x-request-id": "abc"}, request=None)
    return kind(f"{status} Client Error. (Request ID: abc) repo_id snapshot", response=response)


def caused(error, cause):
    error.__cause__ = cause
    return error


FAILURES = {
    "a wrong name": (
        lambda: answer(hub.RepositoryNotFoundError, 404),
        "the hub has no model 'owner/name' that you may see: check the spelling; if it is private, log in",
    ),
    "a wrong name without a token": (
        lambda: answer(hub.RepositoryNotFoundError, 401),
        "the hub has no model 'owner/name' that you may see: check the spelling",
    ),
    "terms not accepted": (
        lambda: answer(hub.GatedRepoError, 403),
        "only to users who accepted its terms: accept them at https://huggingface.co/owner/name, then log in with `hf auth login`",
    ),
    "no token for a gated model": (
        lambda: answer(hub.GatedRepoError, 401),
        "only to users who accepted its terms",
    ),
    "no network": (
        lambda: caused(hub.LocalEntryNotFoundError("snapshot"), ConnectionError("Name or service not known")),
        "the hub cannot be reached: check the network and its proxy settings",
    ),
    "a part is here": (
        lambda: hub.IncompleteSnapshotError("snapshot of revision", snapshot_path="x"),
        "the model is only partly here, and the hub cannot be reached",
    ),
    "offline": (
        lambda: caused(hub.LocalEntryNotFoundError("snapshot"), hub.OfflineModeIsEnabled("x")),
        "HF_HUB_OFFLINE forbids to download it: unset it",
    ),
    "the hub is down": (
        lambda: caused(hub.LocalEntryNotFoundError("snapshot"), answer(hub.HfHubHTTPError, 503)),
        "the hub failed with status 503: try again later",
    ),
    "an impossible name": (
        lambda: hub.HFValidationError("repo_id must be"),
        "is not a name that a model of the hub can have",
    ),
    "a full disk": (lambda: OSError(28, "No space left on device"), "the disk is full"),
    "something else": (
        lambda: RuntimeError("what\n  else"),
        r"could not be fetched from the hub \(RuntimeError: what else\)",
    ),
}


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """A hub that fails in a given way."""
    monkeypatch.chdir(tmp_path)

    def fail(make):
        def download(*args, **kwargs):
            raise make()

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    return fail


@pytest.mark.parametrize("failure", FAILURES)
def test_each_failure_of_the_hub_says_what_to_do(failing, failure):
    if failure == "a part is here" and not hasattr(hub, "IncompleteSnapshotError"):
        pytest.skip("this huggingface_hub has no such error")
    make, message = FAILURES[failure]
    failing(make)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_prm("owner/name")
    told = str(caught.value)
    assert "'owner/name'" in told
    assert "\n" not in told
    assert not [word for word in JARGON if word in told]
    assert isinstance(caught.value.__cause__ or caught.value.__context__, Exception)


def test_a_download_asks_for_files_of_a_checkpoint_alone(monkeypatch, tmp_path):
    asked = []

    def download(name, *, repo_type, allow_patterns):
        asked.append((name, repo_type, sorted(allow_patterns)))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("owner/name") == tmp_path
    weights = ["*.bin", "*.safetensors"]
    config = ["*.jinja", "*.json", "*.model", "*.txt"]
    assert asked == [("owner/name", "model", sorted(weights + config))]
    with pytest.raises(StepmarkError):  # the folder is empty; the tokenizer's weights were not asked for
        OpenAIPolicy("http://127.0.0.1:1/v1", "m", tokenizer="owner/name")
    assert asked[1] == ("owner/name", "model", config)
