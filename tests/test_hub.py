"""`stepmark publish`: what is uploaded and what is not, what stands in the way, and the talk with the hub, which is played here."""

from __future__ import annotations

import fnmatch
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import LocalTokenNotFoundError

from checkpoints import token_classifier
from stepmark.cli import main
from stepmark.errors import BackendError, SettingError, UsageError
from stepmark.integrations import hub as module
from stepmark.integrations.hub import plan, publish, refusal, upload
from stepmark.models.checkpoint import spec_of
from stepmark.training.checkpoint import Written
from stepmark.training.report import CardFacts, prm_card

torch.set_num_threads(1)
REPO = "someone/my-prm"


def the_card(folder, *, full=True):
    spec = spec_of(folder, "x", None)
    written = Written(folder=folder, layout="token-classification", architecture="x", spec=spec, tag=None)
    base = "HuggingFaceTB/SmolLM2-135M-Instruct" if full else "here/it/is"
    text = prm_card(
        CardFacts(title="my-prm", base=base, settings={}, seed=0),
        written,
        objective="hard",
        base_fingerprint="abc",
        data="prm800k.jsonl: 10 rows." if full else "Not stated.",
        measured={"AUC": "0.7"} if full else {},
    )
    return text.replace("---\n", "---\nlicense: apache-2.0\n", 1) if full else text


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
    loses: str = ""
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
            if (
                file.is_file()
                and any(fnmatch.fnmatch(name, one) for one in allow_patterns)
                and name != self.loses
            ):
                self.repos[repo_id][name] = file.read_bytes()

        @dataclass
        class Commit:
            commit_url: str = f"https://hub/{repo_id}/commit/1"

        self.message = commit_message
        return Commit()

    def list_repo_files(self, repo_id):
        return sorted(self.repos[repo_id])


BELONGS = {
    "README.md",
    "config.json",
    "model.safetensors",
    "stepmark.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "train.json",
}


def test_what_belongs_to_a_checkpoint_is_uploaded_and_nothing_else(folder):
    planned = plan(folder, REPO)
    assert planned.problems == planned.notes == ()
    names = set(planned.upload)
    assert names >= BELONGS
    assert names <= BELONGS | {"special_tokens_map.json", "chat_template.jinja"}
    assert set(planned.left) == {
        "state.pt",
        "optimizer.pt",
        "train.log",
        "rows.jsonl",
        ".secret",
        "model.bin",
        "checkpoints/",
    }
    assert planned.size == sum((folder / name).stat().st_size for name in names)
    hub = Fake()
    published = upload(planned, hub=hub, message="one")
    assert published.commit == f"https://hub/{REPO}/commit/1"
    assert published.strays == ()
    assert set(hub.repos[REPO]) == names | {".gitattributes"}
    assert hub.repos[REPO]["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert (hub.private[REPO], hub.message) == (False, "one")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("README.md", "there is no README.md"),
        ("config.json", "neither config.json nor adapter_config.json"),
        ("model.safetensors", "there are no weights"),
    ],
)
def test_a_checkpoint_that_is_not_whole(folder, name, said):
    (folder / name).unlink()
    planned = plan(folder, REPO, load=False)
    assert any(said in problem for problem in planned.problems)
    with pytest.raises(UsageError, match=f"not ready to be published:(.|\n)*{said}"):
        upload(planned, hub=Fake())


def test_parts_that_are_missing(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    [problem] = plan(folder, REPO, load=False).problems
    assert problem.endswith("not there: model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{")
    [problem] = plan(folder, REPO, load=False).problems
    assert problem.endswith("not there: none at all")


def test_a_checkpoint_that_cannot_be_read(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    [problem] = plan(folder, REPO).problems
    assert problem.startswith("stepmark cannot read it")
    # Unless nobody tries.
    planned = plan(folder, REPO, load=False)
    assert planned.problems == ()
    assert planned.notes == ("whether the checkpoint can be read was not tried",)


def test_a_card_of_little_words(folder):
    (folder / "README.md").write_text(the_card(folder, full=False))
    lacks = plan(folder, REPO, load=False).problems
    assert [one.split(":")[0] for one in lacks] == [
        "README.md names no licence",
        "README.md names no base",
        "README.md has nothing under `## Data`",
        "README.md has nothing under `## Measured`",
    ]
    planned = plan(folder, REPO, incomplete_card=True, load=False)
    assert planned.problems == ()
    assert planned.notes[:4] == lacks


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (None, "has no head"),
        ("license: Apache 2\nbase_model: a/b", "names no licence"),
        ("license: other\nbase_model: a/b", "`license: other` needs"),
        ("license: mit", "names no base"),
    ],
)
def test_heads_of_cards(folder, head, said):
    body = "\n## Data\n\nSums.\n\n## Measured\n\n0.5\n"
    (folder / "README.md").write_text(body if head is None else f"---\n{head}\n---\n{body}")
    [problem] = plan(folder, REPO, load=False).problems
    assert said in problem


@pytest.mark.parametrize(
    "head", ["license: 'mit'\nbase_model: a/b", 'license: "bsd-3-clause"\nbase_model:\n- "a/b"\n- c/d']
)
def test_heads_that_do(folder, head):
    (folder / "README.md").write_text(f"---\n{head}\n---\n## Data\nSums.\n## Measured\n0.5\n")
    assert plan(folder, REPO, load=False).problems == ()


def test_an_adapter_needs_a_base_that_others_have(folder):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).unlink()
    (folder / "adapter_model.safetensors").write_bytes(b"")
    for base, good in (
        ("a/b", True),
        ("stepmark:smollm2", True),
        ("../base", False),
        ("/models/base", False),
    ):
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        problems = plan(folder, REPO, load=False).problems
        assert (problems == ()) is good
        assert good or "no hub name" in problems[0]


def test_the_way_past_an_incomplete_card_is_said_where_there_is_one(folder):
    (folder / "README.md").write_text("---\nlicense: mit\nbase_model: a/b\n---\n## Data\nSums.\n")
    assert refusal(plan(folder, REPO, load=False)).endswith("with `incomplete_card`.")
    (folder / "stepmark.json").unlink()
    assert "incomplete_card" not in refusal(plan(folder, REPO, load=False))


def test_folders_of_this_machine_are_told(folder):
    (folder / "train.json").write_text('{"data": ["/home/me/rows.jsonl"]}')
    assert (
        plan(folder, REPO, load=False).notes[0]
        == "train.json names a folder of this machine: /home/me/rows.jsonl"
    )


@pytest.mark.parametrize("repo", ["my-prm", "a/b/c", "https://hub/a/b", "a/../b", "a/b.git"])
def test_names_that_no_repository_has(folder, repo):
    with pytest.raises(UsageError, match="OWNER/NAME"):
        plan(folder, repo, load=False)


def test_private_stays_private(folder):
    planned = plan(folder, REPO, load=False)
    hub = Fake()
    upload(planned, hub=hub, private=True)
    assert hub.private[REPO] is True
    upload(planned, hub=hub, private=True)
    hub.private[REPO] = False
    with pytest.raises(UsageError, match="is public"):
        upload(planned, hub=hub, private=True)


def test_what_an_earlier_upload_left_is_told(folder):
    planned = plan(folder, REPO, load=False)
    hub = Fake(
        repos={REPO: {"model-00001-of-00002.safetensors": b"", "figure.png": b"", ".gitattributes": b""}}
    )
    hub.private[REPO] = False
    assert upload(planned, hub=hub).strays == ("model-00001-of-00002.safetensors",)


class Answer:
    def __init__(self, status):
        self.status_code = status


class RefusedByHubError(OSError):
    def __init__(self, status):
        super().__init__(f"{status} Client Error\nfor url: x")
        self.response = Answer(status)


@pytest.mark.parametrize(
    ("hub", "error", "said"),
    [
        (Fake(signed_in=False), UsageError, "hf auth login"),
        (Fake(fails=RefusedByHubError(401)), UsageError, "hf auth login"),
        (Fake(fails=RefusedByHubError(403)), UsageError, f"may not write to {REPO}"),
        (Fake(fails=RefusedByHubError(500)), BackendError, r"RefusedByHubError: 500 Client Error\)"),
        (Fake(fails=ConnectionError("no network")), BackendError, "ConnectionError: no network"),
        (Fake(loses="model.safetensors"), BackendError, "does not have model.safetensors"),
    ],
)
def test_a_hub_that_does_not_take_it(folder, hub, error, said):
    planned = plan(folder, REPO, load=False)
    with pytest.raises(error, match=said):
        upload(planned, hub=hub)


def test_the_command(folder, monkeypatch, capsys):
    hub = Fake()
    monkeypatch.setattr(module, "_hub", lambda: hub)
    assert main(["publish", str(folder), REPO, "--dry-run", "--no-load"]) == 0
    said = capsys.readouterr()
    assert hub.repos == {}
    assert "model.safetensors  " in said.out
    assert "left out: " in said.out and "state.pt" in said.out
    assert "nothing was sent" in said.out
    assert main(["publish", str(folder), REPO, "--private"]) == 0
    assert f"published: https://hub/{REPO}/commit/1" in capsys.readouterr().out
    assert hub.private[REPO] is True
    (folder / "README.md").unlink()
    assert main(["publish", str(folder), REPO, "--dry-run"]) == 2
    assert "there is no README.md" in capsys.readouterr().err


def test_the_function_publishes_what_the_command_publishes(folder, monkeypatch):
    hub = Fake()
    monkeypatch.setattr(module, "_hub", lambda: hub)
    plans = []
    assert publish(folder, REPO, dry_run=True, no_load=True, on_plan=plans.append) is None
    assert hub.repos == {} and plans[0].repo == REPO
    assert publish(folder, REPO, no_load=True).commit == f"https://hub/{REPO}/commit/1"
    assert main(["publish", str(folder), "someone/other", "--no-load"]) == 0
    assert hub.repos[REPO] == hub.repos["someone/other"]
    with pytest.raises(SettingError, match="private='yes': expected true or false"):
        publish(folder, REPO, private="yes")
    with pytest.raises(UsageError, match="OWNER/NAME"):
        publish(folder, "mine")
