"""`stepmark publish`: what is uploaded and what is not, what is refused, against a hub in memory."""

from __future__ import annotations

import fnmatch
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from checkpoints import token_classifier
from stepmark.cli import main
from stepmark.errors import BackendError, CheckpointError, UsageError
from stepmark.integrations.hub import publish
from stepmark.models.checkpoint import spec_of
from stepmark.training.report import CardFacts, prm_card
from stepmark.training.saving import Written

torch.set_num_threads(1)
REPO = "someone/my-prm"


def the_card(folder):
    spec = spec_of(folder, "x", None)
    written = Written(folder=folder, layout="token-classification", architecture="x", spec=spec, tag=None)
    return prm_card(
        CardFacts(title="my-prm", base="HuggingFaceTB/SmolLM2-135M-Instruct", settings={}, seed=0),
        written,
        objective="hard",
        base_fingerprint="abc",
        data="prm800k.jsonl: 10 rows.",
        measured={"AUC": "0.7"},
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint with all that belongs to it, and what a run leaves beside it."""
    folder = tmp_path_factory.mktemp("trained") / "prm"
    folder.mkdir()
    with torch.no_grad():
        token_classifier(folder)
    (folder / "stepmark.json").write_text(json.dumps(asdict(spec_of(folder, "x", None))))
    (folder / "README.md").write_text(the_card(folder))
    (folder / "train.json").write_text('{"learning_rate": 0.001}')
    for name in ("state.pt", "optimizer.pt", "train.log", "rows.jsonl", ".secret", "model.bin"):
        (folder / name).write_text("private")
    (folder / "checkpoints").mkdir()
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "prm"))


@dataclass
class Fake:
    """The hub: repositories with their files, and what was asked."""

    signed_in: bool = True
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    fails: Exception | None = None

    def whoami(self):
        if not self.signed_in:
            raise LocalTokenNotFoundError("Token is required, but no token found.")
        return {"name": "someone"}

    def repo_exists(self, repo_id):
        return repo_id in self.repos

    def model_info(self, repo_id):
        @dataclass
        class Info:
            private: bool

        return Info(private=self.private[repo_id])

    def create_repo(self, repo_id, *, private=None, exist_ok=False):
        assert exist_ok
        if repo_id not in self.repos:
            self.repos[repo_id] = {".gitattributes": b""}
            self.private[repo_id] = bool(private)

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, commit_message):
        if self.fails is not None:
            raise self.fails
        for file in Path(folder_path).rglob("*"):
            name = str(file.relative_to(folder_path))
            if file.is_file() and any(fnmatch.fnmatch(name, one) for one in allow_patterns):
                self.repos[repo_id][name] = file.read_bytes()

        @dataclass
        class Commit:
            commit_url: str = f"https://hub/{repo_id}/commit/1"

        self.message = commit_message
        return Commit()


@pytest.fixture
def hub(monkeypatch):
    fake = Fake()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    return fake


def test_the_files_of_a_checkpoint_are_uploaded_and_nothing_else(folder, hub):
    files, commit = publish(folder, REPO, message="one")
    assert commit == f"https://hub/{REPO}/commit/1"
    belongs = {"README.md", "config.json", "model.safetensors", "stepmark.json", "tokenizer.json"}
    belongs |= {"tokenizer_config.json", "train.json"}
    assert belongs <= set(files) <= belongs | {"special_tokens_map.json", "chat_template.jinja"}
    assert set(hub.repos[REPO]) == set(files) | {".gitattributes"}
    assert hub.repos[REPO]["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert files["model.safetensors"] == (folder / "model.safetensors").stat().st_size
    assert (hub.private[REPO], hub.message) == (False, "one")


def test_a_checkpoint_that_cannot_be_loaded_is_not_published(folder, hub):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(CheckpointError):
        publish(folder, REPO)
    (folder / "README.md").unlink()
    with pytest.raises(UsageError, match=r"README\.md"):
        publish(folder, REPO)
    assert hub.repos == {}


@pytest.mark.parametrize("base", ["../base", "/models/base", None])
def test_an_adapter_needs_a_base_that_others_have(folder, hub, base):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    with pytest.raises(UsageError, match="no hub name"):
        publish(folder, REPO)


@pytest.mark.parametrize("repo", ["my-prm", "a/b/c", "https://hub/a/b"])
def test_names_that_no_repository_has(folder, hub, repo):
    with pytest.raises(UsageError, match="OWNER/NAME"):
        publish(folder, repo)


def test_private_stays_private(folder, hub):
    publish(folder, REPO, private=True)
    publish(folder, REPO, private=True)
    assert hub.private[REPO] is True
    hub.private[REPO] = False
    with pytest.raises(UsageError, match="is public"):
        publish(folder, REPO, private=True)


def test_a_hub_that_refuses(folder, hub):
    hub.fails = HfHubHTTPError("403 Forbidden", response=httpx.Response(403, request=httpx.Request("POST", "http://hub")))  # fmt: skip
    with pytest.raises(BackendError, match="403 Forbidden"):
        publish(folder, REPO)
    hub.fails = httpx.ConnectError("no network")
    with pytest.raises(BackendError, match="no network"):
        publish(folder, REPO)
    hub.signed_in = False
    with pytest.raises(UsageError, match="hf auth login"):
        publish(folder, REPO)


def test_the_real_client_without_a_network(folder, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    with pytest.raises(BackendError, match=r"refused"):
        publish(folder, REPO)


def test_the_command(folder, hub, capsys):
    assert main(["publish", str(folder), REPO, "--dry-run"]) == 0
    assert hub.repos == {} and "model.safetensors  " in capsys.readouterr().out
    assert main(["publish", str(folder), REPO, "--private"]) == 0
    assert f"https://hub/{REPO}/commit/1" in capsys.readouterr().out
    assert hub.private[REPO] is True
    assert main(["publish", str(folder)]) == 2
