"""What training writes: whole checkpoints in three layouts, adapters, all read back by stepmark, transformers and peft."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
)

from checkpoints import (
    _causal_lm,
    _hidden_at_marks,
    _network,
    _rows,
    chatml_tokenizer,
)
from stepmark import load_prm
from stepmark.errors import CheckpointError, UsageError
from stepmark.models.backbone import load_backbone
from stepmark.models.checkpoint import Tensors, spec_of
from stepmark.models.spec import (
    EnsembleHead,
    LinearHead,
    LogRatioHead,
    MlpHead,
    Readout,
    ScoringSpec,
    TextLayout,
    VocabHead,
)
from stepmark.records import Solution
from stepmark.training import saving as module
from stepmark.training.report import snippet
from stepmark.training.saving import layout_of, process_reward_head, write_adapter, write_merged

torch.set_num_threads(1)
MARK = "<extra_0>"
LAYOUT = TextLayout(
    opening="<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n",
    mark=f"\n{MARK}",
    special_tokens=False,
)
SOLUTIONS = [
    Solution.of("A box holds 12 pens. How many in 3 boxes?", ["12 * 3 = 36.", "The answer is 36."]),
    Solution.of("A box holds 12 pens. How many in 3 boxes?", ["12 * 3 = 36.", "She has 6.", "So 6."]),
    Solution.of("2x + 5 = 17", ["x = 6."]),
]
KINDS = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM, "mistral": MistralForCausalLM}


def spec(head, activation, **readout):
    return ScoringSpec(
        family="stepmark",
        summary="a test's",
        source="this test",
        layout=LAYOUT,
        readout=Readout(head=head, activation=activation, **readout),
        score_kind="log-ratio" if isinstance(head, LogRatioHead) else "probability",
        aggregate="min",
        threshold=0.5,
    )


ONE = spec(LinearHead(), "sigmoid", scale=1.5, shift=-0.25)
TWO = spec(LinearHead(), "softmax", good=1)


class Base:
    """A base on disk, its plain network, and what training could have made of it: the same weights with a head."""

    def __init__(self, folder: Path, kind: str, *, tied: bool, seed: int = 1) -> None:
        folder.mkdir()
        self.folder, self.kind = folder, kind
        self.tokenizer = chatml_tokenizer(marker=MARK)
        more = {"sliding_window": None} if kind == "mistral" else {}
        self.network = _network(KINDS[kind], self.tokenizer, seed=seed, tied=tied, **more)
        _causal_lm(folder, self.network, self.tokenizer, "PreTrainedTokenizerFast", **more)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "temperature": 0.7}))
        self.backbone = load_backbone(folder, dtype=torch.float32, device="cpu")
        with torch.no_grad():
            # What was trained is not what the base holds.
            for name, weight in self.backbone.named_parameters():
                weight.mul_(1.05)
                self.network.model.get_parameter(name).copy_(weight)

    def head(self, labels: int, bias: bool = True) -> dict[str, torch.Tensor]:
        states = _hidden_at_marks(self.network, self.tokenizer, MARK)
        made = {"score.weight": _rows(states, labels, 3)}
        return made | ({"score.bias": torch.linspace(-0.3, 0.4, labels)} if bias else {})

    def states(self, solution: Solution, layout: object = LAYOUT) -> torch.Tensor:
        """Hidden states at the step ends, by transformers' own attention."""
        ids, reads = ids_of(self.tokenizer, solution)
        with torch.inference_mode():
            return self.network.model(torch.tensor([ids])).last_hidden_state[0, reads]


def ids_of(tokenizer, solution: Solution) -> tuple[list[int], list[int]]:
    """Token ids and step ends, the latter found by the marker's id."""
    text = f"<|im_start|>user\n{solution.problem.text}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text + "".join(f"{s}\n{MARK}" for s in solution.texts), add_special_tokens=False)
    tag = tokenizer.convert_tokens_to_ids(MARK)
    return ids, [i for i, token in enumerate(ids) if token == tag]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("bases")
    return {
        (kind, tied): Base(root / f"{kind}-{tied}", kind, tied=tied)
        for kind, tied in [
            ("llama", True),
            ("llama", False),
            ("qwen2", True),
            ("qwen2", False),
            ("mistral", False),
        ]
    }


def write(base: Base, folder: Path, how: ScoringSpec | None, head, **more):
    more = {"dtype": torch.float32, "notes": {"seed": 0}, **more}
    return write_merged(folder, backbone=base.backbone, head=head, spec=how, base=base.folder, **more)


def truth(base: Base, how: ScoringSpec, head) -> list[list[float]]:
    """The scores by hand: a linear head on the plain network's states."""
    out = []
    for solution in SOLUTIONS:
        logits = base.states(solution) @ head["score.weight"].T + head.get("score.bias", torch.zeros(1))
        r = how.readout
        if r.activation == "sigmoid":
            out.append(torch.sigmoid(r.scale * logits[:, 0] + r.shift).tolist())
        else:
            p = logits.softmax(-1)
            out.append(
                (p[:, r.good] if r.activation == "softmax" else p[:, r.good] - p[:, 1 - r.good]).tolist()
            )
    return out


def close(scores, expected):
    for ours, theirs in zip(scores, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def graded(folder) -> list[list[float | None]]:
    prm = load_prm(str(folder), dtype="float32", device="cpu")
    return [list(r.scores) for r in prm.score_many(SOLUTIONS)]


# Whole checkpoints with a head


@pytest.mark.parametrize(
    "how", [ONE, TWO, replace(TWO, readout=replace(TWO.readout, good=0))], ids=["one", "two", "first"]
)
@pytest.mark.parametrize(
    ("kind", "layout", "architecture"),
    [
        ("llama", "token-classification", "LlamaForTokenClassification"),
        ("mistral", "token-classification", "MistralForTokenClassification"),
        ("qwen2", "qwen2-prm", "Qwen2ForProcessRewardModel"),
    ],
)
def test_a_checkpoint_is_read_as_it_was_trained(bases, tmp_path, kind, layout, architecture, how):
    base = bases[kind, False]
    head = base.head(1 if how is ONE else 2)
    expected = truth(base, how, head)
    assert max(s for row in expected for s in row) - min(s for row in expected for s in row) > 0.1
    written = write(base, tmp_path / "prm", how, head)
    assert (written.layout, written.architecture) == (layout, architecture)
    assert written.tag == base.tokenizer.convert_tokens_to_ids(MARK)
    assert spec_of(written.folder, "prm", None) == written.spec
    close(graded(written.folder), expected)
    config = json.loads((written.folder / "config.json").read_text())
    assert config["architectures"] == [architecture]
    assert config["num_labels"] == (1 if how is ONE and kind != "qwen2" else 2)
    assert config["id2label"][str(written.spec.readout.good if config["num_labels"] == 2 else 0)] == "right"
    assert config["label2id"] == {name: int(i) for i, name in config["id2label"].items()}
    # As the base has it, for readers that do not know the newer keys.
    assert config["rope_theta"] == json.loads((base.folder / "config.json").read_text())["rope_theta"]
    assert config["eos_token_id"] == base.tokenizer.eos_token_id
    assert json.loads((written.folder / "train.json").read_text()) == {"seed": 0}


@pytest.mark.parametrize(("kind", "rope"), [("llama", "llama3"), ("qwen2", "default")])
def test_a_config_of_transformers_5_also_says_what_older_readers_look_for(bases, tmp_path, kind, rope):
    base = bases[kind, False]
    new = tmp_path / "new"
    base.network.save_pretrained(new)
    base.tokenizer.save_pretrained(new)
    held = json.loads((new / "config.json").read_text())
    assert "rope_theta" not in held
    assert held["rope_parameters"]["rope_type"] == rope
    head = base.head(1)
    how = {"spec": ONE, "head": head, "dtype": torch.float32, "base": new}
    written = write_merged(tmp_path / "prm", backbone=base.backbone, **how)
    config = json.loads((written.folder / "config.json").read_text())
    assert config["rope_theta"] == held["rope_parameters"]["rope_theta"]
    assert config["rope_parameters"] == held["rope_parameters"]
    assert ("rope_scaling" in config) == (rope != "default")
    close(graded(written.folder), truth(base, ONE, head))
    # What such a reader sees: the new key means nothing to it.
    del config["rope_parameters"]
    (written.folder / "config.json").write_text(json.dumps(config))
    close(graded(written.folder), truth(base, ONE, head))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("kind", "labels"), [("llama", 1), ("llama", 2), ("llama", 3), ("qwen2", 3)])
def test_transformers_alone_reads_a_token_classifier(bases, tmp_path, kind, tied, labels):
    base = bases[kind, tied]
    how = {
        1: ONE,
        2: TWO,
        3: spec(LinearHead(), "softmax", good=2, neutral=1, class_names=("negative", "neutral", "positive")),
    }[labels]
    head = base.head(labels)
    written = write(base, tmp_path / "prm", how, head)
    assert written.layout == "token-classification"
    model, report = AutoModelForTokenClassification.from_pretrained(written.folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.num_labels == labels
    model.eval()
    for solution in SOLUTIONS:
        ids, reads = ids_of(base.tokenizer, solution)
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, reads]
        by_hand = base.states(solution) @ head["score.weight"].T + head["score.bias"]
        assert torch.allclose(logits, by_hand, atol=1e-5)
    if labels < 3:
        close(graded(written.folder), truth(base, how, head))


@pytest.mark.parametrize(("kind", "layout"), [("llama", "token-classification"), ("qwen2", "qwen2-prm")])
def test_the_snippet_of_the_card_gives_the_numbers(bases, tmp_path, kind, layout):
    base = bases[kind, True]
    head = base.head(1)
    written = write(base, tmp_path / "prm", ONE, head)
    assert written.layout == layout
    code = snippet(written)
    assert code is not None
    for solution, expected in zip(SOLUTIONS, truth(base, ONE, head), strict=True):
        ids, reads = ids_of(base.tokenizer, solution)
        names: dict = {"ids": ids}
        exec(compile(code.replace("FOLDER", str(written.folder)), "card", "exec"), names)  # noqa: S102
        logits = names["logits"][reads]
        z = logits[:, 0] if layout == "token-classification" else logits[:, 1] - logits[:, 0]
        assert torch.sigmoid(1.5 * z - 0.25).tolist() == pytest.approx(expected, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    labels=st.sampled_from([1, 2]),
    hidden=st.sampled_from([4, 7, 32]),
    good=st.sampled_from([0, 1]),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_a_linear_head_is_the_same_function_as_two_layers(labels, hidden, good, bias, seed):
    # Whole numbers, so that every sum is exact and "the same" means equal.
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-50, 50, (labels, hidden), generator=generator).float()
    added = torch.randint(-50, 50, (labels,), generator=generator).float() if bias else None
    made = process_reward_head(weight, added, good=good)
    assert {name: tuple(t.shape) for name, t in made.items()} == {
        "score.0.weight": (hidden, hidden),
        "score.0.bias": (hidden,),
        "score.2.weight": (2, hidden),
        "score.2.bias": (2,),
    }
    rows = torch.randint(-50, 50, (50, hidden), generator=generator).float()
    linear = rows @ weight.T + (0 if added is None else added)
    middle = torch.relu(rows @ made["score.0.weight"].T + made["score.0.bias"])
    logits = middle @ made["score.2.weight"].T + made["score.2.bias"]
    if labels == 1:
        wanted = torch.cat([torch.zeros(50, 1), linear], dim=1)
    else:
        wanted = linear if good == 1 else linear.flip(1)
    assert torch.equal(logits, wanted)


def test_two_layers_that_were_trained_as_such(bases, tmp_path):
    base = bases["qwen2", False]
    generator = torch.Generator().manual_seed(5)
    head = {
        "score.0.weight": torch.randn(32, 32, generator=generator) / 6,
        "score.0.bias": torch.randn(32, generator=generator),
        "score.2.weight": torch.randn(2, 32, generator=generator) / 6,
        "score.2.bias": torch.randn(2, generator=generator),
    }
    how = spec(MlpHead(), "softmax", good=1)
    written = write(base, tmp_path / "prm", how, head)
    assert written.layout == "qwen2-prm"
    for scores, solution in zip(graded(written.folder), SOLUTIONS, strict=True):
        middle = torch.relu(base.states(solution) @ head["score.0.weight"].T + head["score.0.bias"])
        logits = middle @ head["score.2.weight"].T + head["score.2.bias"]
        assert scores == pytest.approx(logits.softmax(-1)[:, 1].tolist(), abs=1e-5)
    narrow = {**head, "score.0.weight": head["score.0.weight"][:8], "score.0.bias": head["score.0.bias"][:8]}
    narrow["score.2.weight"] = head["score.2.weight"][:, :8]
    with pytest.raises(UsageError, match="as many middle units as its hidden size, 32; this head has 8"):
        write(base, tmp_path / "other", how, narrow)


# Language models


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_target_tokens(bases, tmp_path, tied, trained):
    base = bases["llama", tied]
    how = spec(VocabHead(candidates=("-", "+")), "softmax", good=1)
    if trained:
        rows = base.network.lm_head.weight.clone()
        picked = [base.tokenizer.encode(v, add_special_tokens=False)[-1] for v in "-+"]
        rows[picked] = _rows(_hidden_at_marks(base.network, base.tokenizer, MARK), 2, 9, spread=0.6)
    else:
        # What the base has: where tied, the embedding as it was trained.
        rows = base.network.model.embed_tokens.weight if tied else Tensors(base.folder).get("lm_head.weight")
    written = write(base, tmp_path / "prm", how, {}, output=rows if trained else None)
    assert (written.layout, written.architecture) == ("causal-lm", "LlamaForCausalLM")
    config = json.loads((written.folder / "config.json").read_text())
    assert config["tie_word_embeddings"] == (tied and not trained)
    assert "num_labels" not in config
    assert json.loads((written.folder / "generation_config.json").read_text())["temperature"] == 0.7
    model, report = AutoModelForCausalLM.from_pretrained(written.folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    minus, plus = (base.tokenizer.encode(v, add_special_tokens=False)[-1] for v in "-+")
    for scores, solution in zip(graded(written.folder), SOLUTIONS, strict=True):
        by_hand = base.states(solution) @ rows.T
        assert scores == pytest.approx(by_hand[:, [minus, plus]].softmax(-1)[:, 1].tolist(), abs=1e-5)
        ids, reads = ids_of(base.tokenizer, solution)
        with torch.inference_mode():
            assert torch.allclose(model.eval()(torch.tensor([ids])).logits[0, reads], by_hand, atol=1e-4)


def test_an_implicit_prm(bases, tmp_path):
    base = bases["qwen2", False]
    how = replace(
        spec(LogRatioHead(beta=0.5, reference=str(base.folder)), "identity"),
        threshold=0.0,
    )
    written = write(base, tmp_path / "prm", how, {})
    original = AutoModelForCausalLM.from_pretrained(base.folder).eval()
    trained = AutoModelForCausalLM.from_pretrained(written.folder).eval()
    for scores, solution in zip(graded(written.folder), SOLUTIONS, strict=True):
        ids, reads = ids_of(base.tokenizer, solution)
        first = ids.index(base.tokenizer.convert_tokens_to_ids("<|im_start|>"), 1)
        start = first + len(base.tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False))
        at = torch.arange(start, len(ids))
        with torch.inference_mode():
            of = [
                m(torch.tensor([ids])).logits[0].log_softmax(-1)[at - 1, torch.tensor(ids)[at]]
                for m in (trained, original)
            ]
        summed = 0.5 * (of[0] - of[1]).cumsum(0)
        assert scores == pytest.approx([summed[r - start].item() for r in reads], abs=1e-4)


# Whole or not at all, and what cannot be written


def test_nothing_is_written_over_and_nothing_is_left_behind(bases, tmp_path, monkeypatch):
    base = bases["llama", False]
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(UsageError, match="taken exists; delete it or choose another"):
        write(base, taken, ONE, base.head(1))
    assert list(taken.iterdir()) == []

    def full_disk(*_):
        raise OSError("no space left")

    monkeypatch.setattr(module, "build_head", full_disk)
    with pytest.raises(OSError, match="no space"):
        write(base, tmp_path / "prm", ONE, base.head(1))
    assert sorted(tmp_path.iterdir()) == [taken]


@pytest.mark.parametrize(
    ("kind", "head", "fits"),
    [
        ("llama", LinearHead(), True),
        ("gemma", LinearHead(), True),
        ("olmo2", LinearHead(), False),
        ("olmo2", VocabHead(candidates=("-", "+")), True),
        ("qwen2", MlpHead(), True),
        ("qwen3", MlpHead(), False),
        ("qwen2", EnsembleHead(), False),
    ],
)
def test_what_cannot_be_written_is_known_before_training(tmp_path, kind, head, fits):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    assert layout_of(None, tmp_path) == "causal-lm"
    how = spec(head, "softmax", good=1)
    if fits:
        layout_of(how, tmp_path)
    else:
        with pytest.raises(
            UsageError, match=f"a {head.kind} head over a {kind} base is in no layout.*`adapter`"
        ):
            layout_of(how, tmp_path)


def test_weights_that_are_no_numbers(bases, tmp_path):
    base = bases["llama", False]
    head = base.head(1)
    head["score.weight"][0, 3] = torch.nan
    with pytest.raises(CheckpointError, match=r"score.weight holds NaN.*nothing was written"):
        write(base, tmp_path / "prm", ONE, head)


# Adapters


def lora(base: Base, layers, *, rank=2, seed=7) -> dict[str, torch.Tensor]:
    """Adapter weights named as peft has them in a network."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for layer in layers:
        for target in ("self_attn.q_proj", "mlp.down_proj"):
            out, into = base.backbone.get_parameter(f"layers.{layer}.{target}.weight").shape
            name = f"layers.{layer}.{target}"
            made[f"{name}.lora_A.weight"] = 0.3 * torch.randn(rank, into, generator=generator)
            made[f"{name}.lora_B.weight"] = 0.3 * torch.randn(out, rank, generator=generator)
    return made


def adapted(base: Base, tensors, scale):
    """The base's network with the adapter's products added to its weights."""
    model = AutoModelForCausalLM.from_pretrained(base.folder).eval()
    with torch.no_grad():
        for name, down in tensors.items():
            if ".lora_A." in name:
                target = name.split(".lora_A.")[0]
                up = tensors[name.replace(".lora_A.", ".lora_B.")]
                model.model.get_parameter(f"{target}.weight").add_(scale * up @ down)
    return model


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("layers", [(0, 1), (1,)])
def test_an_adapter_is_read_by_stepmark_and_by_peft(bases, tmp_path, kind, layers):
    from peft import PeftModel

    base, head = bases[kind, False], bases[kind, False].head(1)
    tensors = lora(base, layers)
    written = write_adapter(
        tmp_path / "adapter",
        adapter=tensors,
        head=head,
        spec=ONE,
        base_name=str(base.folder),
        rank=2,
        alpha=6.0,
        notes={"seed": 1},
    )
    assert (written.layout, written.architecture, written.spec) == ("adapter", None, ONE)
    model = adapted(base, tensors, 3.0)
    peft = PeftModel.from_pretrained(
        AutoModelForTokenClassification.from_pretrained(base.folder, num_labels=1), written.folder
    ).eval()
    for scores, solution in zip(graded(written.folder), SOLUTIONS, strict=True):
        ids, reads = ids_of(base.tokenizer, solution)
        with torch.inference_mode():
            states = model.model(torch.tensor([ids])).last_hidden_state[0, reads]
            logits = peft(torch.tensor([ids])).logits[0, reads, 0]
        by_hand = states @ head["score.weight"][0] + head["score.bias"]
        assert logits.tolist() == pytest.approx(by_hand.tolist(), abs=1e-4)
        assert scores == pytest.approx(torch.sigmoid(1.5 * by_hand - 0.25).tolist(), abs=1e-5)
