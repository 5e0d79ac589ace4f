"""Policies and critics in 8 and 4 bit, or over several devices: against plain models of the numbers that theirs stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

from checkpoints import versaprm_adapter  # noqa: E402
from stepmark import Solution, load_policy, load_prm  # noqa: E402
from stepmark.backends import ChoiceLogprobs, Completions, Message  # noqa: E402
from stepmark.cli import main  # noqa: E402
from stepmark.errors import IdleSettingWarning, UsageError  # noqa: E402
from stepmark.models.backbone import saved_dtype  # noqa: E402
from stepmark.models.critics import ThinkPRM  # noqa: E402
from stepmark.models.generative import CriticSpec, generative_prm  # noqa: E402
from stepmark.models.load import lazy_prm  # noqa: E402
from stepmark.models.placement import follow  # noqa: E402
from stepmark.models.policies import lazy_policy  # noqa: E402
from stepmark.models.policies.local import LocalPolicy, load_language_model  # noqa: E402
from stepmark.models.quantized import QuantizedLinear  # noqa: E402
from stepmark.rl.actor import Actor  # noqa: E402
from tiny_language_model import tiny_model, tiny_tokenizer  # noqa: E402

BITS = ("int8", "int4")
USER = (Message(role="user", content="is it correct?"),)
CHOICES = [
    ChoiceLogprobs(prompt=USER, options=("yes it is", "no")),
    ChoiceLogprobs(
        prompt=USER, prefill="let us see: 2 + 3 = 6, so the step is", options=(" correct", " wrong")
    ),
]
WRITES = [
    Completions(prompt=USER, n=3, temperature=0.9, max_tokens=12, seed=7),
    Completions(prompt="the step", max_tokens=9),
]
SOLUTION = Solution.of("What is 2 + 3?", ["2 + 3 = 6", "So the sum is 6."])


def save(folder, *, tied=False, dtype=torch.float32, context=160):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, hidden=64, tied=tied, context=context).to(dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def dequantized(model, bits):
    """A plain model with the numbers that the quantized one stands for."""
    with torch.no_grad():
        for layer in model.model.layers:
            for part in layer.modules():
                if isinstance(part, torch.nn.Linear):
                    part.weight.copy_(QuantizedLinear(part, bits).plain())
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_a_quantized_policy_is_the_plain_one_of_its_numbers(tmp_path, bits, tied):
    model, tokenizer = save(tmp_path, tied=tied)
    plain = LocalPolicy(model, tokenizer, name="plain").choose_many(CHOICES)
    policy = load_policy(str(tmp_path), quantize=bits, device="cpu", memory_tokens=500)
    assert isinstance(policy, LocalPolicy) and policy.keeps_nothing == ""
    layers = [part for part in policy.model.modules() if isinstance(part, QuantizedLinear)]
    assert len(layers) == 2 * 7 and all((part.low is None) == (bits == "int8") for part in layers)
    truth = LocalPolicy(dequantized(model, bits), tokenizer, name="truth", batch_size=1)
    replies = policy.choose_many(CHOICES)
    for reply, expected, other in zip(replies, truth.choose_many(CHOICES), plain, strict=True):
        assert reply == pytest.approx(expected, abs=2e-5)
        assert abs(reply[0] - other[0]) > 1e-4
    texts = [[(w.text, w.tokens) for w in reply] for reply in policy.complete_many(WRITES)]
    assert texts == [[(w.text, w.tokens) for w in reply] for reply in truth.complete_many(WRITES)]
    assert texts == [[(w.text, w.tokens) for w in reply] for reply in policy.complete_many(WRITES)]


@pytest.mark.parametrize("bits", BITS)
def test_no_weight_is_copied_for_each_row(tmp_path, bits):
    """A head without gradients is copied for every row of a batch, in a product of many (bmm), where its input is a slice."""
    save(tmp_path)
    ids = torch.arange(12).view(3, 4)
    counts = []
    for how in (None, bits):
        model, _ = load_language_model(tmp_path, quantize=how, device="cpu")
        with torch.inference_mode(), torch.profiler.profile() as profile:
            model(input_ids=ids, attention_mask=torch.ones_like(ids), logits_to_keep=1)
        names = {event.key: event.count for event in profile.key_averages()}
        assert names["aten::mm"] >= 14
        counts.append(names.get("aten::bmm", 0))
    assert counts[0] == counts[1]


def test_the_identity_says_how_a_policy_is_quantized(tmp_path):
    save(tmp_path)
    folder = str(tmp_path)
    names = {bits: lazy_policy(folder, quantize=bits).identity for bits in (None, *BITS)}
    assert len(set(names.values())) == 3
    assert names[None] == lazy_policy(folder).identity
    assert load_policy(folder, quantize="int4", device="cpu").identity == names["int4"]
    # In memory, what the layers hold counts too.
    first, second = (load_language_model(folder, quantize="int8", device="cpu") for _ in range(2))
    assert LocalPolicy(*first, name="x").identity == LocalPolicy(*second, name="x").identity
    second[0].model.layers[1].mlp.up_proj.packed[0, 0] += 1
    assert LocalPolicy(*first, name="x").identity != LocalPolicy(*second, name="x").identity


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_precision_is_the_saved_one(tmp_path, dtype):
    save(tmp_path, dtype=dtype)
    if dtype == torch.float16:  # as its tensors are, where the config does not say
        file = tmp_path / "config.json"
        config = json.loads(file.read_text())
        del config["dtype"]
        file.write_text(json.dumps(config))
    assert saved_dtype(tmp_path) == dtype
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    for bits in (None, "int8"):
        model, _ = load_language_model(tmp_path, quantize=bits, device="cpu")
        assert model.dtype == theirs.dtype == dtype
        assert model.generation_config.to_dict() == theirs.generation_config.to_dict()


def test_the_generation_config_says_where_texts_end(tmp_path):
    save(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [2, 77]}))
    model, _ = load_language_model(tmp_path, quantize="int8", device="cpu")
    assert model.generation_config.eos_token_id == [2, 77]


def test_a_head_of_its_own_is_read_though_the_config_ties_it(tmp_path):
    save(tmp_path, tied=True)
    file = tmp_path / "model.safetensors"
    # Copies: safetensors 0.5 maps the file that is written over here.
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, file, {"format": "pt"})
    for bits in (None, "int8"):
        model, _ = load_language_model(tmp_path, quantize=bits, device="cpu")
        assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"])
        assert torch.equal(model.model.embed_tokens.weight, tensors["model.embed_tokens.weight"])


def test_an_adapter_is_merged_before_it_is_quantized(tmp_path):
    folder = versaprm_adapter(tmp_path).folder
    merged, _ = load_language_model(folder, device="cpu")
    quantized, _ = load_language_model(folder, quantize="int8", device="cpu")
    for name, part in merged.model.layers.named_modules():
        if isinstance(part, torch.nn.Linear):
            other = quantized.model.layers.get_submodule(name)
            assert torch.equal(QuantizedLinear(part, "int8").plain(), other.plain())
    assert torch.equal(merged.lm_head.weight, quantized.lm_head.weight)


@pytest.mark.parametrize("memory", [0, 500])
def test_a_policy_over_two_devices_writes_the_same(tmp_path, memory):
    # Two names of one device: a second GPU is not here; the moves are made.
    save(tmp_path)
    texts = []
    for places in (None, ["cpu", "cpu:0"]):
        model, tokenizer = load_language_model(tmp_path, quantize="int8", device="cpu")
        if places is not None:
            follow(model.model, places)
        policy = LocalPolicy(model, tokenizer, name="x", memory_tokens=memory)
        assert bool(policy.keeps_nothing) == (not memory)
        texts.append((policy.complete_many(WRITES), policy.choose_many(CHOICES)))
    assert texts[0] == texts[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
@pytest.mark.parametrize("bits", [None, *BITS])
def test_all_gpus_write_as_the_processor(tmp_path, bits):
    save(tmp_path)
    one, every = (
        load_policy(str(tmp_path), dtype="float32", quantize=bits, device=device, memory_tokens=500)
        for device in ("cpu", "all")
    )
    assert [[w.text for w in reply] for reply in every.complete_many(WRITES)] == [
        [w.text for w in reply] for reply in one.complete_many(WRITES)
    ]
    for mine, other in zip(every.choose_many(CHOICES), one.choose_many(CHOICES), strict=True):
        assert mine == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("bits", BITS)
def test_a_quantized_critic(tmp_path, bits):
    model, tokenizer = save(tmp_path, context=1500)
    settings = ThinkPRM(samples=2, max_tokens=12, seed=3)
    (tmp_path / "stepmark.json").write_text(json.dumps(CriticSpec(settings=settings).data()))
    folder = str(tmp_path)
    [plain] = load_prm(folder, device="cpu", seed=3).score_many([SOLUTION])
    prm = load_prm(folder, device="cpu", quantize=bits, seed=3)
    [scored] = prm.score_many([SOLUTION])
    truth = generative_prm(settings, LocalPolicy(dequantized(model, bits), tokenizer, name="truth"))
    [expected] = truth.score_many([SOLUTION])
    assert scored.critiques == expected.critiques
    assert scored.scores == pytest.approx(expected.scores, abs=1e-5)
    assert scored.scores != pytest.approx(plain.scores, abs=1e-5)
    assert prm.identity == lazy_prm(folder, quantize=bits, seed=3).identity
    assert prm.identity != lazy_prm(folder, seed=3).identity


def test_what_cannot_be_quantized(tmp_path):
    save(tmp_path / "plain")
    with pytest.warns(IdleSettingWarning, match="`quantize`"):
        load_policy("http://localhost:1/v1#x", quantize="int8")
    model, tokenizer = load_language_model(tmp_path / "plain", quantize="int8", device="cpu")
    with pytest.raises(UsageError, match="cannot be trained: load it without `quantize`"):
        Actor(model, tokenizer, name="x")
    file = tmp_path / "plain" / "config.json"
    packed = {"quant_method": "gptq", "bits": 4}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": packed}))
    with pytest.raises(UsageError, match="quantized already"):
        load_policy(str(tmp_path / "plain"), quantize="int8", device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no GPU"):
            load_policy("stepmark:arithmetic", device="all")


PROBLEM = {"id": "p", "problem": "Start with 3. Add 4. What is the result?", "answer": "7"}


def identity_in(out: Path) -> str:
    manifest = json.loads(out.with_name(f"{out.name}.manifest.json").read_text())
    name: str = manifest["models"]["policy"]
    return name


def test_commands_name_the_policys_quantization(tmp_path, capfd):
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(PROBLEM) + "\n")
    policy = ["--policy", "stepmark:arithmetic", "--device", "cpu"]
    expected = lazy_policy("stepmark:arithmetic", quantize="int8").identity
    out = tmp_path / "samples.jsonl"
    assert main(["sample", str(file), *policy, "--quantize", "int8", "--n", "1", "--out", str(out)]) == 0
    assert identity_in(out) == expected
    searched = ["search", "majority", str(file), "--prm", "scripted_prms:arithmetic", "--n", "1"]
    for words, name in (
        (["--policy-quantize", "int8"], expected),
        ([], lazy_policy("stepmark:arithmetic").identity),
    ):
        out = tmp_path / f"found{len(words)}.jsonl"
        assert main([*searched, *policy, *words, "--out", str(out)]) == 0
        assert identity_in(out) == name
    capfd.readouterr()
    served = [*searched, "--policy", "http://localhost:1/v1#x", "--out", str(tmp_path / "x.jsonl")]
    assert main([*served, "--policy-quantize", "int8"]) == 1  # nothing answers there
    assert "quantize has no effect: the policy" in capfd.readouterr().err
