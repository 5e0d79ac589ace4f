"""Weights in 8 and 4 bit, and layers over several devices: against the numbers that they stand for, and against the plain network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from checkpoints import qwen_prm
from stepmark import Solution, load_prm
from stepmark.errors import CheckpointError, UsageError
from stepmark.models import attention
from stepmark.models.engine import Engine
from stepmark.models.packed_tree import pack
from stepmark.models.placement import follow, plan_on, spread, stream_network
from stepmark.models.prm import Ledger
from stepmark.models.quantized import QuantizedLinear, elements, quantized_bytes


def stream_backbone(folder: Path, quantize: str | None = None) -> Any:
    attention.register()
    return stream_network(
        AutoModel,
        folder,
        dtype=torch.float32,
        devices=["cpu"],
        quantize=quantize,  # type: ignore[arg-type]
        attn_implementation=attention.NAME,
    )


SOLUTIONS = [
    Solution.of("How many pens?", ["A box holds 12 pens.", f"{n} boxes hold {12 * n} pens."])
    for n in range(2, 6)
]


def test_the_numbers_of_a_hand_made_row() -> None:
    linear = torch.nn.Linear(64, 2, bias=False)
    with torch.no_grad():
        linear.weight[0] = torch.arange(64) % 16 - 3  # -3 … 12: steps of 1 from a minimum of -3
        linear.weight[1] = 127.0 - torch.arange(64)
    four, eight = QuantizedLinear(linear, "int4"), QuantizedLinear(linear, "int8")
    assert torch.equal(four.plain()[0], linear.weight[0])  # the sixteen values of 4 bit are exact
    assert torch.equal(eight.plain()[1], linear.weight[1])  # and whole numbers to 127 in 8 bit
    assert four.packed.shape == (1, 64) and four.packed.dtype == torch.uint8


@pytest.mark.parametrize("bits", ["int8", "int4"])
@pytest.mark.parametrize(("rows", "width"), [(512, 128), (600, 192), (6, 40), (7, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_weight_is_within_half_a_step(bits: str, rows: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(width, rows, dtype=dtype)
    quantized = QuantizedLinear(linear, bits)  # type: ignore[arg-type]
    weight = linear.weight.detach().float()
    if quantized.low is None:
        step = weight.abs().amax(1, keepdim=True) / 127
    else:
        groups = weight.view(rows, -1, 64)
        step = ((groups.amax(-1) - groups.amin(-1)) / 15).repeat_interleave(64, 1)
    rounding = 0 if dtype == torch.float32 else 2**-7 * weight.abs().amax()
    assert ((quantized.plain().float() - weight).abs() <= 0.5001 * step + rounding).all()
    x = torch.randn(5, width, dtype=dtype)
    expected = x.float() @ quantized.plain().float().T + linear.bias.float()
    assert torch.allclose(quantized(x).float(), expected, atol=1e-5 if dtype == torch.float32 else 3e-2)
    stored = sum(b.numel() * b.element_size() for b in quantized.buffers())
    assert stored == quantized_bytes(rows, width, bits, dtype.itemsize)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_float16_has_room_for_zeros_and_large_products(bits: str) -> None:
    linear = torch.nn.Linear(128, 4, bias=False, dtype=torch.float16)
    with torch.no_grad():
        linear.weight[0], linear.weight[1] = 0, 1e-3  # 127 * 128 * 10 would be beyond float16
    quantized = QuantizedLinear(linear, bits)  # type: ignore[arg-type]
    result = quantized(torch.full((1, 128), 10, dtype=torch.float16))[0]
    assert result[0] == 0 and float(result[1]) == pytest.approx(1.28, rel=0.02)


def test_scores_and_identity_of_a_quantized_prm(tmp_path: Path) -> None:
    qwen_prm(tmp_path)
    plain = load_prm(str(tmp_path), dtype="float32", device="cpu")
    scores = [result.scores for result in plain.score_many(SOLUTIONS)]
    identities = {plain.identity}
    for bits, most in (("int8", 0.02), ("int4", 0.3)):
        prm = load_prm(str(tmp_path), dtype="float32", device="cpu", quantize=bits)  # type: ignore[arg-type]
        others = [result.scores for result in prm.score_many(SOLUTIONS)]
        assert 0 < np.abs(np.subtract(others, scores)).max() < most
        identities.add(prm.identity)
    assert len(identities) == 3


def test_streamed_weights_are_those_that_transformers_loads(tmp_path: Path) -> None:
    qwen_prm(tmp_path)
    plain = load_prm(str(tmp_path), dtype="float32", device="cpu").engines[0].backbone  # type: ignore[attr-defined]
    streamed = stream_backbone(tmp_path)
    others = streamed.state_dict()
    assert plain.state_dict().keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in plain.state_dict().items())
    assert elements(streamed) == elements(plain)
    (tmp_path / "config.json").write_text(
        (tmp_path / "config.json").read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    )
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        stream_backbone(tmp_path, "int8")


def test_layers_are_spread_by_free_memory() -> None:
    assert spread([1] * 6, [10, 10]) == [0, 0, 0, 1, 1, 1]
    assert spread([1] * 6, [20, 10]) == [0, 0, 0, 0, 1, 1]
    assert spread([4, 1, 1, 1, 1], [1, 1]) == [0, 1, 1, 1, 1]
    assert spread([1, 1, 1], [5]) == [0, 0, 0]


def test_a_followed_network_computes_the_same(tmp_path: Path) -> None:
    # Two names of one device: what a second GPU would be is not here; the moves and copies of the plan are made.
    qwen_prm(tmp_path)
    tree = pack([np.array([1, 2, 3, 4]), np.array([1, 2, 5, 6, 7])])
    rows = np.arange(len(tree))
    states = []
    for places in (None, ["cpu", "cpu:0"]):
        backbone = stream_backbone(tmp_path)
        if places is not None:
            follow(backbone, places)
        engine = Engine(backbone, device="cpu", token_budget=3, ledger=Ledger())
        states.append(engine.run(tree, rows))
    assert torch.equal(*states)


def test_a_plan_on_another_device() -> None:
    tree = pack([np.array([1, 2, 3, 4]), np.array([1, 2, 5, 6, 7])])
    plan = attention.Plan.of_trees([tree], "cpu")
    plan.keep, plan.carried[0] = torch.tensor([0, 1]), (torch.zeros(1), torch.zeros(1))
    other = plan_on(plan, "meta")
    assert other.keep is not None and other.keep.is_meta
    masks = [piece.mask for piece in other.pieces if piece.mask is not None]
    assert masks and all(mask.is_meta for mask in masks)
    assert other.carried is plan.carried and other.kept is plan.kept
    assert not plan.keep.is_meta


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_all_needs_a_gpu(tmp_path: Path) -> None:
    qwen_prm(tmp_path)
    with pytest.raises(UsageError, match="all"):
        load_prm(str(tmp_path), device="all")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_all_gpus_score_as_the_processor(tmp_path: Path, quantize: str | None) -> None:
    qwen_prm(tmp_path)
    one, every = (
        [
            result.scores
            for result in load_prm(
                str(tmp_path),
                dtype="float32",
                device=device,
                quantize=quantize,  # type: ignore[arg-type]
            ).score_many(SOLUTIONS)
        ]
        for device in ("cpu", "all")
    )
    assert np.allclose(one, every, atol=1e-5)
