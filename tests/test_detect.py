"""Which family a checkpoint is of, and what is said of one that cannot be used."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import chatml_tokenizer, save_tokenizer
from stepmark import load_prm
from stepmark.errors import CheckpointError, UnknownFamilyError, UnknownNameError, UsageError
from stepmark.models.checkpoint import spec_of
from stepmark.models.families import FAMILIES


@pytest.fixture
def copy_of(zoo, tmp_path):
    """A copy of a checkpoint, for a test to spoil."""

    def copy(name: str, as_name: str = "somewhere"):
        return shutil.copytree(zoo[name].folder, tmp_path / as_name)

    return copy


def edit_config(folder, **changes):
    """Change config.json; None takes a key away."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text(encoding="utf-8")), **changes}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}), encoding="utf-8")


def edit_tensors(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def load(folder, **settings):
    return load_prm(str(folder), device="cpu", **{"dtype": "float32", **settings})


# ---- told ----------------------------------------------------------------------------------------------------

TOLD = {
    "qwen-prm": "qwen-prm",
    "qwen-prm-sharded": "qwen-prm",
    "skywork": "skywork",
    "token-classification": "token-classification",
    "reasoneval": "reasoneval",
    "reasoneval-34b": "reasoneval-34b",
    "actprm": "actprm",
    "orm": "orm",
}


@pytest.mark.parametrize("name", TOLD)
def test_told_by_what_the_folder_holds(zoo, name):
    assert load(zoo[name].folder).spec.family == TOLD[name]


@pytest.mark.parametrize(
    ("name", "family"), [("skywork", "skywork"), ("actprm", "actprm"), ("reasoneval-34b", "reasoneval-34b")]
)
def test_told_by_head_or_settings_when_the_architecture_says_nothing(copy_of, name, family):
    folder = copy_of(name)
    edit_config(folder, architectures=None)
    assert load(folder).spec.family == family
    edit_config(folder, architectures=["SomethingElse"])
    assert load(folder).spec.family == family


@pytest.mark.parametrize("name", ["math-shepherd", "rlhflow", "implicit", "versaprm", "three-class"])
def test_a_plain_language_model_is_refused(zoo, copy_of, name):
    with pytest.raises(UnknownFamilyError) as caught:
        load(copy_of(name))
    message = str(caught.value)
    assert type(zoo[name].network).__name__ in message
    assert "is a language model without a PRM's head" in message and "`prm` default" in message
    assert "`family`" in message
    assert all(family in message for family in FAMILIES)


def test_the_base_that_ships_is_no_prm_but_may_be_read_as_one_that_needs_no_training():
    with pytest.raises(
        UnknownFamilyError, match=r"^stepmark:arithmetic is a language model .*\(stepmark train\)"
    ):
        load_prm("stepmark:arithmetic")
    assert load_prm("stepmark:arithmetic", family="mean-logprob").name == "stepmark:arithmetic"


def test_the_names_of_published_checkpoints_tell(zoo, tmp_path):
    known = [(spec.family, name) for spec in FAMILIES.values() for name in spec.checkpoints]
    assert len({name for _, name in known}) == len(known)
    for family, name in known:
        # A hub name, and a folder called like it, in any case.
        assert spec_of(tmp_path, name, None).family == family
        assert spec_of(tmp_path, str(tmp_path / name.rsplit("/", 1)[1].upper()) + "/", None).family == family


def test_a_named_family_wins_over_everything(copy_of, zoo):
    folder = copy_of("token-classification", "PURE-PRM-7B")
    assert load(folder, family="token-classification").spec.family == "token-classification"
    assert load(zoo["qwen-prm"].folder, family="reasonflux-prm").spec.family == "reasonflux-prm"


def test_an_unknown_family_names_the_nearest(zoo):
    with pytest.raises(UnknownNameError, match="Did you mean 'qwen-prm'"):
        load(zoo["qwen-prm"].folder, family="qwen_prm")


@pytest.mark.parametrize(
    ("name", "family"), [("token-classification", "token-classification"), ("orm", "orm")]
)
def test_a_classifier_with_other_labels_is_refused(copy_of, name, family):
    folder = copy_of(name)
    edit_tensors(
        folder, lambda t: t.update({"score.weight": torch.randn(3, 32), "score.bias": torch.zeros(3)})
    )
    with pytest.raises(UnknownFamilyError, match=f"a classifier with 3 labels; {family} has .* `family`"):
        load(folder)


# ---- a checkpoint's own spec ---------------------------------------------------------------------------------


def test_its_own_spec_wins_over_name_and_architecture(copy_of):
    folder = copy_of("qwen-prm", "PURE-PRM-7B")
    own = replace(FAMILIES["qwen-prm"], family="mine", aggregate="min", threshold=0.25)
    (folder / "stepmark.json").write_text(json.dumps(asdict(own)), encoding="utf-8")
    prm = load(folder)
    assert prm.spec == own
    assert (prm.default_aggregate, prm.default_threshold) == ("min", 0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"family": "mine"}', "summary"),
        (json.dumps({**asdict(FAMILIES["orm"]), "treshold": 0.5}), "treshold"),
        (json.dumps({**asdict(FAMILIES["orm"]), "threshold": "0.5"}), "threshold"),
    ],
)
def test_a_spec_that_cannot_be_read(copy_of, text, message):
    folder = copy_of("qwen-prm")
    (folder / "stepmark.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder)
    assert "stepmark.json" in str(caught.value)


# ---- spoiled -------------------------------------------------------------------------------------------------


def cut(file, size):
    file.write_bytes(file.read_bytes()[:size])


def drop(name):
    return lambda folder: edit_tensors(folder, lambda t: t.pop(name))


def put(name, *shape):
    return lambda folder: edit_tensors(folder, lambda t: t.update({name: torch.randn(*shape)}))


def write(name, text):
    return lambda folder: (folder / name).write_text(text, encoding="utf-8")


def remove(name):
    return lambda folder: (folder / name).unlink()


SPOILED = {
    "config.json gone": ("qwen-prm", remove("config.json"), "config.json"),
    "no model_type": ("qwen-prm", lambda f: edit_config(f, model_type=None), "names no model_type"),
    "unknown model_type": (
        "qwen-prm",
        lambda f: edit_config(f, model_type="frobnicate"),
        "no architecture 'frobnicate', and stepmark runs no remote code",
    ),
    "a setting of a wrong type": (
        "qwen-prm",
        lambda f: edit_config(f, hidden_size="x"),
        "config.json: .*hidden_size",
    ),
    "weights gone": ("qwen-prm", remove("model.safetensors"), "no weights"),
    "safetensors cut short": (
        "qwen-prm",
        lambda f: cut(f / "model.safetensors", 5000),
        "model.safetensors is not a readable safetensors file .*fetch it again",
    ),
    ".bin cut short": (
        "skywork",
        lambda f: cut(f / "pytorch_model.bin", 5000),
        "cannot be read with weights_only",
    ),
    "head gone": (
        "qwen-prm",
        drop("score.2.weight"),
        r"no tensor 'score.2.weight'; beside the backbone it holds",
    ),
    "head bias gone": ("qwen-prm", drop("score.0.bias"), r"no tensor 'score.0.bias'"),
    "head of another width": (
        "qwen-prm",
        put("score.0.weight", 32, 16),
        r"score.0.weight: expected the shape",
    ),
    "head of three classes": (
        "qwen-prm",
        put("score.2.weight", 3, 32),
        r"score.2.weight: expected the shape \(2, 32\)",
    ),
    "ensemble transposed": (
        "actprm",
        put("score.model.nn1.weight", 5, 16, 32),
        "nn1.weight: expected the shape",
    ),
    "tokenizer gone": (
        "qwen-prm",
        lambda f: [(f / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")],
        "holds no tokenizer .*fetch the whole checkpoint",
    ),
    "tokenizer.json not JSON": (
        "qwen-prm",
        write("tokenizer.json", "{"),
        "tokenizer.json is not JSON .*fetch it again",
    ),
    "no chat template": ("qwen-prm", remove("chat_template.jinja"), "its tokenizer has none; fetch"),
    "a chat template that fails": ("orm", write("chat_template.jinja", "{% if %}"), "fails .*fetch"),
    "another tokenizer": (
        "qwen-prm",
        lambda f: save_tokenizer(f, chatml_tokenizer(marker=None), "Qwen2Tokenizer"),
        "'<extra_0>', which is not one token here .*published with the PRM",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_checkpoint_says_what_is_wrong(copy_of, case):
    name, spoil, message = SPOILED[case]
    folder = copy_of(name)
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder)
    assert caught.value.exit_code == 2


def test_an_implicit_prm_and_its_reference(zoo, copy_of):
    built = zoo["implicit"]
    with pytest.raises(UsageError, match="`reference` is for implicit PRMs"):
        load(zoo["qwen-prm"].folder, reference=str(built.reference.folder))
    with pytest.raises(CheckpointError, match="another vocabulary"):
        load(built.folder, family="implicit", reference=str(zoo["actprm"].folder))
    with pytest.raises(UsageError, match="`family` implicit"):
        load(built.folder, family="implicit-per-step", reference=str(built.reference.folder), outcome=True)


# ---- nothing that a folder holds is run ----------------------------------------------------------------------


class Mischief:
    """Makes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (str(self.file), "w"))


@pytest.mark.parametrize("family", [None, "skywork"])
def test_code_in_a_bin_is_not_run(copy_of, tmp_path, family):
    folder = copy_of("skywork")
    sign = tmp_path / "it ran"
    file = folder / "pytorch_model.bin"
    torch.save({**torch.load(file, weights_only=True), "extra": Mischief(sign)}, file)
    with pytest.raises(CheckpointError):
        load(folder, family=family)
    assert not sign.exists()
    # The trap is a live one: who reads the file without the guard springs it.
    torch.load(file, weights_only=False)["extra"].close()
    assert sign.exists()


def test_remote_code_beside_the_weights_is_not_run(copy_of, tmp_path):
    folder = copy_of("qwen-prm")
    sign = tmp_path / "it ran"
    for module in ("configuration_qwen2_rm", "modeling_qwen2_rm"):
        (folder / f"{module}.py").write_text(f"open({str(sign)!r}, 'w').close()\n", encoding="utf-8")
    edit_tokenizer = folder / "tokenizer_config.json"
    settings = json.loads(edit_tokenizer.read_text(encoding="utf-8"))
    settings["auto_map"] = {"AutoTokenizer": ["modeling_qwen2_rm.Tokenizer", "modeling_qwen2_rm.Tokenizer"]}
    edit_tokenizer.write_text(json.dumps(settings), encoding="utf-8")
    assert len(load(folder).score("p", steps=["a", "b"])) == 2
    assert not sign.exists()
