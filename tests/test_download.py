"""Published PRMs by their short names, from a hub that is a real HTTP server, by the real client in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hub_server import HubServer
from stepmark import load_prm
from stepmark.models.families import PUBLISHED
from token_servers import TokenServer

torch.set_num_threads(1)

FAMILIES = {
    "qwen-7b": "qwen-prm",
    "skywork-1.5b": "skywork",
    "math-shepherd": "math-shepherd",
    "rlhflow-mistral": "rlhflow",
    "eurus": "implicit",
    "versa": "versaprm-adapter",
}
"""Short name to a checkpoint of the zoo. ThinkPRM, which writes, is tried apart."""
QWEN = PUBLISHED["qwen-7b"].hub
BASE = "someone/base"
"""Of VersaPRM, which is an adapter."""
REFERENCE = "Qwen/Qwen2.5-Math-7B-Instruct"
PROBLEM, STEPS = "How many pens are 3 boxes of 12?", ["12 * 3 = 36", "The answer is: 36"]
BESIDE = {
    "README.md": b"# card",
    "LICENSE.txt": b"terms",
    "requirements.txt": b"torch",
    "trainer_state.json": b"{}",
    "all_results.json": b"{}",
    "modeling_qwen2_rm.py": b"raise SystemExit('remote code')",
    "training_args.bin": b"not tensors",
    "optimizer.bin": b"not tensors",
    "model.gguf": b"GGUF",
    "figures/plot.png": b"PNG",
    "checkpoint-10/model.safetensors": b"an older state",
    "checkpoint-10/config.json": b"{}",
    "original/params.json": b"{}",
    "original/consolidated.00.pth": b"another form of the weights",
    "consolidated.safetensors": b"another form of the weights",
}
"""What repositories hold beside a checkpoint."""


def repository(folder: Path, source: Path) -> Path:
    shutil.copytree(source, folder)
    for name, content in BESIDE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def in_three(folder: Path) -> Path:
    """Cut model.safetensors into shards, as checkpoints of 7B are."""
    tensors = load_file(folder / "model.safetensors")
    places = {name: f"model-{at % 3 + 1:05d}-of-00003.safetensors" for at, name in enumerate(tensors)}
    for shard in set(places.values()):
        part = {name: tensor for name, tensor in tensors.items() if places[name] == shard}
        save_file(part, folder / shard, {"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture(scope="module")
def repos(zoo, tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    made = {
        PUBLISHED[name].hub: repository(root / name, zoo[checkpoint].folder)
        for name, checkpoint in FAMILIES.items()
    }
    in_three(made[QWEN])
    made[REFERENCE] = repository(root / "reference", zoo["implicit"].reference.folder)
    settings = made[PUBLISHED["versa"].hub] / "adapter_config.json"
    named = json.loads(settings.read_text()) | {"base_model_name_or_path": BASE}
    settings.write_text(json.dumps(named))
    made[BASE] = repository(root / "base", zoo["versaprm-adapter"].folder.parent / "base")
    # ThinkPRM is a language model that writes, and is read by its name.
    made[PUBLISHED["thinkprm-1.5b"].hub] = repository(root / "think", zoo["implicit"].folder)
    return made


@pytest.fixture
def hub(repos):
    with HubServer(repos) as server:
        yield server


def python(hub: HubServer, cache: Path, code: str, *wrapper: str, **variables: str) -> subprocess.Popen[str]:
    """A new Python whose hub is the server, with a cache of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


FETCH = "from stepmark.models.places import folder_of; print(folder_of({name!r}))"


def fetch(hub: HubServer, cache: Path, name: str = "qwen-7b", *wrapper: str, **variables: str) -> Path:
    return Path(done(python(hub, cache, FETCH.format(name=name), *wrapper, **variables)).strip())


def refusal(hub: HubServer, cache: Path, name: str = "qwen-7b", *wrapper: str, **variables: str) -> str:
    """The message of the error (a `CheckpointError`) that a fetch ends with."""
    code = (
        "from stepmark.errors import CheckpointError\n"
        "from stepmark.models.places import folder_of\n"
        f"try: folder_of({name!r})\n"
        "except CheckpointError as error: print(error)\n"
    )
    message = done(python(hub, cache, code, *wrapper, **variables))
    assert name in message or PUBLISHED[name].hub in message
    return message


def test_published_prms_score_as_their_files_do_and_nothing_else_is_downloaded(hub, repos, zoo, tmp_path):
    code = (
        "import json\nfrom stepmark import load_prm\n"
        f"for name in {list(FAMILIES)}:\n"
        "    prm = load_prm(name, dtype='float32', device='cpu')\n"
        f"    scored = prm.score({PROBLEM!r}, steps={STEPS!r})\n"
        "    print(json.dumps([name, prm.identity, scored]))\n"
        "prm = load_prm('thinkprm-1.5b', dtype='float32', device='cpu')\n"
        "print(json.dumps(['thinkprm-1.5b', prm.identity, None]))\n"
    )
    rows = [json.loads(line) for line in done(python(hub, tmp_path, code)).splitlines()]
    for name, identity, scores in rows:
        assert identity.startswith(PUBLISHED[name].hub + "#")
        if name in FAMILIES:
            built = zoo[FAMILIES[name]]
            reference = None if built.reference is None else str(built.reference.folder)
            local = load_prm(
                str(built.folder),
                family=PUBLISHED[name].family,
                reference=reference,
                dtype="float32",
                device="cpu",
            )
            assert scores == pytest.approx(local.score(PROBLEM, steps=STEPS), abs=1e-6)
    assert [row[0] for row in rows] == [*FAMILIES, "thinkprm-1.5b"]
    belongs = {
        (repo, file.relative_to(folder).as_posix())
        for repo, folder in repos.items()
        for file in folder.rglob("*")
        if file.is_file() and file.relative_to(folder).as_posix() not in BESIDE
    }
    assert hub.downloaded() == belongs
    before = len(hub.log)
    assert [
        json.loads(line) for line in done(python(hub, tmp_path, code, HF_HUB_OFFLINE="1")).splitlines()
    ] == rows
    assert len(hub.log) == before


def test_of_two_forms_of_the_weights_one_is_downloaded(hub, repos, zoo, tmp_path):
    both = repository(tmp_path / "both", zoo["qwen-prm"].folder)
    torch.save(load_file(both / "model.safetensors"), both / "pytorch_model.bin")
    hub.repos = {"someone/both": both}
    fetch(hub, tmp_path / "cache", "someone/both")
    names = {name for _, name in hub.downloaded()}
    assert "model.safetensors" in names and "pytorch_model.bin" not in names


def test_a_server_s_tokenizer_is_had_without_the_weights(hub, tmp_path):
    with TokenServer("/pooling", None) as server:
        code = (
            f"from stepmark import load_prm\nprint(load_prm({server.url!r}, tokenizer='qwen-7b').identity)\n"
        )
        assert done(python(hub, tmp_path, code)).startswith(f"{server.url}#")
    names = {name for _, name in hub.downloaded()}
    assert "tokenizer.json" in names and not any(name.endswith((".safetensors", ".bin")) for name in names)


def test_a_transfer_that_breaks_off_goes_on_where_it_was(hub, repos, tmp_path):
    shard = "model-00002-of-00003.safetensors"
    size = (repos[QWEN] / shard).stat().st_size
    hub.cut[shard] = size // 2
    # The client keeps whole chunks, of 10 MB, which is more than a tiny shard.
    chunk = "from huggingface_hub import constants; constants.DOWNLOAD_CHUNK_SIZE = 4096\n"
    folder = Path(done(python(hub, tmp_path, chunk + FETCH.format(name="qwen-7b"))).strip())
    had = size // 2 - size // 2 % 4096
    assert (folder / shard).read_bytes() == (repos[QWEN] / shard).read_bytes()
    first, second = hub.transfers(shard)
    assert "Range" not in first.headers
    assert second.headers["Range"] == f"bytes={had}-"
    assert second.sent == size - had


def test_a_killed_download_resumes_and_says_so_offline(hub, repos, tmp_path):
    held, other = "model-00003-of-00003.safetensors", "model-00001-of-00003.safetensors"
    hub.held[held] = 1000
    process = python(hub, tmp_path, FETCH.format(name="qwen-7b"))
    assert hub.holding.wait(60)
    blobs = tmp_path / "hub" / "models--Qwen--Qwen2.5-Math-PRM-7B" / "snapshots"
    while not list(blobs.glob(f"*/{other}")):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    hub.held.clear()
    hub.release.set()
    asked = len(hub.log)
    message = refusal(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in message and len(hub.log) == asked
    folder = fetch(hub, tmp_path)
    for file in folder.iterdir():
        assert file.read_bytes() == (repos[QWEN] / file.name).read_bytes()
    assert len(hub.transfers(other)) == 1
    assert len(hub.transfers(held)) == 2


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("missing", ["name"]),
        ("private", ["name", "hf auth login"]),
        ("gated", ["terms", "hf auth login", QWEN]),
        ("not granted", ["terms", QWEN]),
        ("bad token", ["token", "hf auth login"]),
        ("forbidden", ["token"]),
    ],
)
def test_a_refusal_says_what_to_do(hub, tmp_path, why, advice):
    hub.refusals[QWEN] = why
    message = refusal(hub, tmp_path)
    assert all(part in message for part in advice)
    # The client takes every other refusal for a broken line.
    assert "internet connection" not in message
    assert ("HF_TOKEN" in message) == (why != "x")


def test_a_hub_that_is_not_there(hub, tmp_path):
    message = refusal(hub, tmp_path / "empty", HF_ENDPOINT="http://127.0.0.1:9")
    assert "network" in message
    fetch(hub, tmp_path / "full")
    folder = fetch(hub, tmp_path / "full", HF_ENDPOINT="http://127.0.0.1:9")
    assert (folder / "config.json").is_file()


def test_a_full_disk(hub, tmp_path):
    wrapper = ("bwrap", "--dev-bind", "/", "/", "--size", "60000", "--tmpfs", str(tmp_path))
    if shutil.which("bwrap") is None or subprocess.call([*wrapper, "true"], stderr=subprocess.DEVNULL):
        pytest.skip("no bubblewrap that makes a small disk")
    message = refusal(hub, tmp_path, "qwen-7b", *wrapper)
    assert str(tmp_path) in message and "HF_HOME" in message
