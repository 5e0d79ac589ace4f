"""What a loaded PRM is to its user: how it prints, where it computes, which steps it takes, what it is known by."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from score_servers import Words
from stepmark import Client, Solution, load_prm
from stepmark.errors import InputError, UsageError
from stepmark.models.encoding import Encoder
from stepmark.models.families import FAMILIES
from stepmark.models.policies.local import LocalPolicy
from stepmark.models.pooling import PoolingPRM
from stepmark.models.remote.prm import RemotePRM
from stepmark.models.scripted import ScriptedPRM
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
    with pytest.raises(UsageError, match=r"`device` .*: expected auto, cpu, cuda or cuda:NUMBER"):
        Weights(device=device)


# ---- how it prints -------------------------------------------------------------------------------------------


def test_a_prm_prints_as_what_it_is(zoo, prm):
    folder = zoo["token-classification"].folder
    assert repr(prm) == (
        f"HeadPRM(name={str(folder)!r}, family='token-classification', score_kind='probability', aggregate='product', "
        "threshold=0.5, device='cpu', dtype='float32')"
    )
    built = zoo["implicit"]
    implicit = load_prm(
        str(built.folder), family="implicit", reference=str(built.reference.folder), device="cpu", dtype="bfloat16"
    )  # fmt: skip
    assert repr(implicit) == (
        f"ImplicitPRM(name={str(built.folder)!r}, family='implicit', score_kind='log-ratio', aggregate='min', threshold=0.0, "
        "device='cpu', dtype='bfloat16')"
    )
    spec = FAMILIES["qwen-prm"]
    encoder = Encoder(zoo["qwen-prm"].tokenizer, spec.layout, max_tokens=None)
    with (
        TokenServer("/pooling", None, models=("m",)) as server,
        PoolingPRM(server.url, spec, encoder, identity=lambda: "", model="m") as pooling,
    ):
        assert repr(pooling) == (
            f"PoolingPRM(name='{server.url}', family='qwen-prm', score_kind='probability', aggregate='product', "
            "threshold=0.5, model='m')"
        )
    scripted = ScriptedPRM({"a": 0.5}, default_threshold=None)
    assert repr(scripted) == (
        "ScriptedPRM(name='scripted', score_kind='probability', aggregate='min', threshold=None)"
    )
    with RemotePRM(Client(ADDRESS, transport=Words().transport, rng=random.Random(0))) as remote:
        assert repr(remote) == (
            f"RemotePRM(name='words', score_kind='probability', aggregate='min', threshold=0.5, address={ADDRESS!r})"
        )


# ---- which steps it takes ------------------------------------------------------------------------------------

TEXT = "2 + 3 = 5\n5 * 2 = 10\nSo it is 10."
TEXTS = ["2 + 3 = 5", "5 * 2 = 10", "So it is 10."]


@pytest.mark.parametrize(
    ("problem", "steps", "message"),
    [
        ("p", "x=5", r"stepmark\.split\(text\)"),
        ("p", b"x=5", r"stepmark\.split\(text\)"),
        ("p", {"a": 1}, "expected a list of step texts, found dict"),
        ("p", 5, "expected a list of step texts, found int"),
        ("p", None, "expected a list of step texts, found NoneType"),
        ("p", ["a", 5], r"steps\[1\]': expected a text or a Step, found int"),
        (["a"], ["p"], "field 'problem': expected a text, found list"),
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
