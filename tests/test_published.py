"""The catalogue of published PRMs: sizes against transformers' own models, figures against the four published subsets, names end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepmark.cli import main
from stepmark.models import families as published
from stepmark.models.families import FAMILIES, PUBLISHED, find_published, full_name, nearest_names, table
from stepmark.models.generative import GENERATIVE
from stepmark.models.places import folder_of
from stepmark.report.tables import markdown

ROOT = Path(__file__).parent.parent

# Widths from the config.json of each base model: hidden, layers, heads, key-value heads, intermediate, vocabulary, tied.
CONFIGS = {
    "QWEN_1_5B": ("Qwen2", 1536, 28, 12, 2, 8960, 151936, True),
    "QWEN_1_5B_UNTIED": ("Qwen2", 1536, 28, 12, 2, 8960, 151936, False),
    "QWEN_7B": ("Qwen2", 3584, 28, 28, 4, 18944, 152064, False),
    "QWEN_14B": ("Qwen2", 5120, 48, 40, 8, 13824, 152064, False),
    "QWEN_32B": ("Qwen2", 5120, 64, 40, 8, 27648, 152064, False),
    "QWEN_72B": ("Qwen2", 8192, 80, 64, 8, 29568, 152064, False),
    "MISTRAL_7B": ("Mistral", 4096, 32, 32, 8, 14336, 32000, False),
    "LLAMA_8B": ("Llama", 4096, 32, 32, 8, 14336, 128256, False),
    "LLEMMA_34B": ("Llama", 8192, 48, 64, 8, 22016, 32000, False),
}

# The published F1 of each subset: GSM8K, MATH, OlympiadBench, Omni-MATH (the tables that `source` names).
SUBSETS = {
    "qwen-7b": (82.4, 77.6, 67.5, 66.3),
    "qwen-72b": (87.3, 80.6, 74.3, 71.1),
    "qwen-7b-prm800k": (68.2, 62.6, 50.7, 44.3),
    "skywork-1.5b": (59.0, 48.0, 19.3, 19.2),
    "skywork-7b": (70.8, 53.6, 22.9, 21.0),
    "math-shepherd": (47.9, 29.5, 24.8, 23.8),
    "rlhflow-mistral": (50.4, 33.4, 13.8, 15.8),
    "rlhflow-deepseek": (38.8, 33.8, 16.9, 16.9),
    "eurus-stage1": (44.3, 35.6, 21.7, 23.1),
    "eurus": (47.3, 35.7, 21.2, 20.9),
    "pure": (69.0, 66.5, 48.4, 45.9),
    "actprm": (81.6, 79.8, 71.4, 67.0),
    "actprm-x": (82.7, 82.0, 72.0, 67.3),
    "genprm-1.5b": (51.3, 74.4, 65.3, 62.5),
    "genprm-7b": (78.7, 80.3, 72.2, 69.8),
    "genprm-32b": (83.1, 81.7, 72.8, 72.8),
    "r-prm-sft": (77.2, 71.6, 59.6, 52.3),
    "r-prm": (80.7, 76.9, 63.8, 60.1),
}


@pytest.fixture
def hub(zoo, monkeypatch):
    """A hub that has one PRM, as a tiny checkpoint; the list of the names that it was asked for."""
    asked: list[str] = []

    def fetch(name: str, *, weights: bool = True) -> Path:
        if Path(name).is_dir():
            return Path(name)
        asked.append(name)
        if name != "Qwen/Qwen2.5-Math-PRM-7B":
            from stepmark.errors import CheckpointError

            raise CheckpointError(f"{name!r} is not on the hub")
        return zoo["qwen-prm"].folder

    monkeypatch.setattr("stepmark.models.places.find_checkpoint", fetch)
    return asked


# --- the data


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_are_those_of_transformers_own_models(name):
    import torch
    import transformers

    kind, hidden, layers, heads, groups, intermediate, vocabulary, tied = CONFIGS[name]
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    base = getattr(published, name)
    assert base.backbone == sum(weight.numel() for weight in model.model.parameters())
    assert base.output == (0 if tied else model.lm_head.weight.numel())


def test_each_figure_is_the_mean_of_its_subsets():
    assert {name for name, entry in PUBLISHED.items() if entry.processbench is not None} == set(SUBSETS)
    for name, parts in SUBSETS.items():
        # Each of the four is rounded to 0.1, and so is the published mean.
        assert PUBLISHED[name].processbench == pytest.approx(sum(parts) / 4, abs=0.1001), name


def test_every_entry_is_complete_and_of_a_family_that_is_read():
    assert len({entry.hub for entry in PUBLISHED.values()}) == len(PUBLISHED) > 20
    for name, entry in PUBLISHED.items():
        assert entry.name == name
        assert entry.family in {*FAMILIES, *GENERATIVE}
        assert "/" not in name
        assert entry.hub.count("/") == 1
        assert (entry.processbench is None) == (entry.source is None)
        if entry.family in FAMILIES:
            assert entry.hub in FAMILIES[entry.family].checkpoints


def test_memory_is_of_what_is_loaded():
    # By hand, two bytes a weight: a backbone alone; a policy and its reference with their output layers; a whole language model.
    assert PUBLISHED["qwen-7b"].memory == pytest.approx(14.141, abs=0.001)
    assert PUBLISHED["eurus"].memory == pytest.approx(30.462, abs=0.001)
    assert PUBLISHED["genprm-7b"].memory == pytest.approx(15.231, abs=0.001)
    for entry in PUBLISHED.values():
        whole = 2 if entry.family.startswith("implicit") else 1 if entry.family in GENERATIVE else 0
        assert entry.language_models == whole


# --- names


def test_a_short_name_is_the_checkpoint_of_its_hub_name(hub, zoo):
    from stepmark import load_prm

    problem, steps = "What is 2 + 3?", ["2 + 3 = 5", "The answer is 5"]
    prm = load_prm("qwen-7b", device="cpu")
    assert hub == ["Qwen/Qwen2.5-Math-PRM-7B"]
    assert prm.name == "Qwen/Qwen2.5-Math-PRM-7B"
    assert prm.spec.family == "qwen-prm"
    folder = load_prm(str(zoo["qwen-prm"].folder), family="qwen-prm", device="cpu")
    assert prm.score(problem, steps=steps) == folder.score(problem, steps=steps)


def test_a_command_writes_the_hub_name(hub, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"problem": "What is 2 + 3?", "steps": ["2 + 3 = 5"]}) + "\n")
    out = tmp_path / "out.jsonl"
    assert main(["grade", str(rows), "--prm", "qwen-7b", "--out", str(out), "--device", "cpu"]) == 0
    assert set(hub) == {"Qwen/Qwen2.5-Math-PRM-7B"}
    assert json.loads(out.read_text())["prm"] == "Qwen/Qwen2.5-Math-PRM-7B"
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
    assert '"Qwen/Qwen2.5-Math-PRM-7B"' in json.dumps(manifest)
    assert '"qwen-7b"' not in json.dumps(manifest)


@pytest.mark.parametrize("name", ["thinkprm-1.5b", "launch/ThinkPRM-1.5B"])
def test_a_published_generative_prm_needs_no_family(monkeypatch, name):
    from stepmark import load_prm
    from stepmark.errors import IdleSettingWarning
    from stepmark.models.policies.local import LocalPolicy

    class Loading(Exception):
        pass

    def load(name: str, **settings: object) -> None:
        raise Loading(name)

    monkeypatch.setattr(LocalPolicy, "load", staticmethod(load))
    with pytest.raises(Loading, match=r"^launch/ThinkPRM-1\.5B$"):
        load_prm(name, samples=2)
    with pytest.raises(Loading), pytest.warns(IdleSettingWarning, match="`token_budget`"):
        load_prm(name, token_budget=100)


def test_a_folder_of_that_name_comes_first(zoo, tmp_path, monkeypatch):
    (tmp_path / "qwen-7b").symlink_to(zoo["qwen-prm"].folder)
    monkeypatch.chdir(tmp_path)
    assert full_name("qwen-7b") == "qwen-7b"
    assert folder_of("qwen-7b").resolve() == zoo["qwen-prm"].folder.resolve()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("qwen-7", "qwen-7b"),
        ("qwen7b", "qwen-7b"),
        ("Math-Shepard", "math-shepherd"),
        ("defualt", "default"),
        ("Qwen/Qwen2.5-PRM-Math-7B", "Qwen/Qwen2.5-Math-PRM-7B"),
        ("qwen/qwen2.5-math-prm-7b", "Qwen/Qwen2.5-Math-PRM-7B"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(hub, name, near):
    from stepmark import load_prm
    from stepmark.errors import CheckpointError

    with pytest.raises(CheckpointError, match=f"Did you mean .*'{near}'"):
        load_prm(name)


def test_a_known_name_that_cannot_be_fetched_suggests_nothing(hub):
    from stepmark.errors import CheckpointError

    for name in ("skywork-7b", "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B", "nobody/nothing-like-it"):
        with pytest.raises(CheckpointError) as caught:
            folder_of(name)
        assert "Did you mean" not in str(caught.value)
    assert hub[0] == hub[1] == "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B"
    assert nearest_names("skywork-7b") == []
    assert find_published("nobody/nothing-like-it") is None


# --- the tables


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    assert markdown(table()) in page
