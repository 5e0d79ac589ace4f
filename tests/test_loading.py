"""What a loaded PRM is to its user: how it prints, where it computes, which steps it takes, what it is known by."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from score_servers import Words
from stepmark import Solution, load_prm
from stepmark.errors import InputError, UsageError
from stepmark.models.encoding import Encoder
from stepmark.models.families import FAMILIES
from stepmark.models.policies.local import LocalPolicy
from stepmark.models.pooling import PoolingPRM
from stepmark.models.remote.client import RemotePRM
from stepmark.models.spec import ChatLayout, LinearHead, Readout, ScoringSpec, TextLayout, spec_key
from stepmark.training.settings import Weights
from token_servers import TokenServer

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def prm(zoo):
    return load_prm(str(zoo["token-classification"].folder), device="cpu", dtype="float32")


# ---- where it computes ---------------------------------------------------------------------------------------

ADDRESS = "http://words.example"
DEVICES = ["gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "mps", "meta", "", "cpu:0", "cuda:0,1"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_there_is_not_is_a_wrong_setting(zoo, device):
    message = "expected auto, cpu, cuda or cuda:NUMBER"
    with pytest.raises(UsageError, match=message):
        load_prm(str(zoo["token-classification"].folder), device=device)
    with pytest.raises(UsageError, match=message):
        LocalPolicy.load(zoo["three-class"].folder, device=device)
    with pytest.raises(UsageError, match=r"`device` .*"):
        Weights(device=device)


# ---- how it prints -------------------------------------------------------------------------------------------


def test_a_prm_prints_as_what_it_is(zoo, prm):
    for part in (
        str(zoo["token-classification"].folder),
        "token-classification",
        "probability",
        "product",
        "float32",
    ):
        assert repr(part) in repr(prm)
    spec = FAMILIES["qwen-prm"]
    encoder = Encoder(zoo["qwen-prm"].tokenizer, spec.layout, max_tokens=None)
    with (
        TokenServer("/pooling", None, models=("m",)) as server,
        PoolingPRM(server.url, spec, encoder, identity=lambda: "", model="m") as pooling,
    ):
        assert server.url in repr(pooling) and "model='m'" in repr(pooling)
    with RemotePRM(ADDRESS, transport=Words().transport, rng=random.Random(0)) as remote:
        assert ADDRESS in repr(remote) and "name='words'" in repr(remote)


# ---- which steps it takes ------------------------------------------------------------------------------------

TEXT = "2 + 3 = 5\n5 * 2 = 10\nSo it is 10."
TEXTS = ["2 + 3 = 5", "5 * 2 = 10", "So it is 10."]


@pytest.mark.parametrize(
    ("problem", "steps", "message"),
    [
        ("p", "x=5", r"stepmark\.split\(text\)"),
        ("p", b"x=5", r"stepmark\.split\(text\)"),
        ("p", {"a": 1}, "found dict"),
        ("p", 5, "found int"),
        ("p", None, "found NoneType"),
        ("p", ["a", 5], r"steps\[1\]'"),
        (["a"], ["p"], "field 'problem'"),
    ],
)
def test_what_is_no_solution_is_said_to_be_none(problem, steps, message):
    with pytest.raises(InputError, match=message):
        Solution.of(problem, steps)


# ---- what it is known by -------------------------------------------------------------------------------------


def test_specs_that_read_otherwise_have_other_keys():
    keys = {spec_key(replace(spec, family="x")): spec for spec in FAMILIES.values()}
    # Of some families only the name, or what is outside a checkpoint, differs.
    assert len(keys) >= len(FAMILIES) - 2
    base = ScoringSpec(
        family="x", summary="", source="", layout=TextLayout(mark="a"), aggregate="min", score_kind="probability",
        readout=Readout(head=LinearHead(), activation="softmax"),
    )  # fmt: skip
    assert spec_key(base) != spec_key(replace(base, layout=ChatLayout(mark="a")))
    assert spec_key(base) == spec_key(replace(base, source="another", aggregate_source="another"))
    assert "\n" not in spec_key(base)
