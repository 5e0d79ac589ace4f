"""What a loaded PRM is to its user: how it prints, where it computes, which steps it takes, what it is known by."""

from __future__ import annotations

import random
from dataclasses import field, make_dataclass, replace

import pytest
import torch

from score_servers import Words
from stepmark import Client, Solution, Step, load_prm, split
from stepmark.errors import InputError, UsageError
from stepmark.models.backbone import compute_device
from stepmark.models.critics.thinkprm import ThinkPRM
from stepmark.models.encoding import Encoder
from stepmark.models.families import FAMILIES
from stepmark.models.generative import generative_prm
from stepmark.models.policies.local import LocalPolicy
from stepmark.models.policies.openai import OpenAIPolicy
from stepmark.models.policies.scripted import ScriptedPolicy
from stepmark.models.pooling import PoolingPRM
from stepmark.models.remote.prm import RemotePRM
from stepmark.models.scripted import ScriptedPRM
from stepmark.models.spec import ChatLayout, LinearHead, Readout, ScoringSpec, TextLayout, spec_key
from stepmark.rl.refit import RefittedPRM
from stepmark.training.settings import Weights
from tiny_language_model import tiny_model, tiny_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def prm(zoo):
    return load_prm(str(zoo["token-classification"].folder), device="cpu", dtype="float32")


# ---- where it computes ---------------------------------------------------------------------------------------

ADDRESS = "http://words.example"
DEVICES = ["gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "mps", "meta", "", "cpu:0", "cuda:0,1"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_there_is_not_is_a_wrong_setting(zoo, device):
    message = r"^device should be auto, cpu, cuda or cuda:N .* found '" + device
    with pytest.raises(UsageError, match=message):
        load_prm(str(zoo["token-classification"].folder), device=device)
    with pytest.raises(UsageError, match=message):
        LocalPolicy.load(zoo["three-class"].folder, device=device)
    with pytest.raises(UsageError, match=r"`device` .*: expected auto, cpu, cuda or cuda:NUMBER"):
        Weights(device=device)


@pytest.mark.parametrize(
    ("cards", "device", "found"),
    [(0, "auto", "cpu"), (0, "cpu", "cpu"), (2, "auto", "cuda"), (2, "cuda", "cuda"), (2, "cuda:1", "cuda:1"), (2, "cpu", "cpu")],
)  # fmt: skip
def test_the_device_that_a_setting_means(monkeypatch, cards, device, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    assert compute_device(device) == found


@pytest.mark.parametrize(
    ("cards", "device", "message"),
    [(0, "cuda", "no CUDA; use cpu"), (0, "cuda:0", "no CUDA; use cpu"), (2, "cuda:2", "has the GPUs cuda:0 to cuda:1; use one of them")],
)  # fmt: skip
def test_a_gpu_that_the_machine_has_not(monkeypatch, cards, device, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    with pytest.raises(UsageError, match=message):
        compute_device(device)


@pytest.mark.parametrize("dtype", ["float8", "half", ""])
def test_a_precision_that_there_is_not(zoo, dtype):
    with pytest.raises(UsageError, match=f"dtype='{dtype}': expected auto, float32 or bfloat16"):
        load_prm(str(zoo["token-classification"].folder), device="cpu", dtype=dtype)
    with pytest.raises(UsageError, match=f"dtype should be .*, found '{dtype}'"):
        LocalPolicy.load(zoo["three-class"].folder, device="cpu", dtype=dtype)


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
    with PoolingPRM("http://127.0.0.1:9", spec, encoder, identity=lambda: "", model="m") as pooling:
        assert repr(pooling) == (
            "PoolingPRM(name='http://127.0.0.1:9', family='qwen-prm', score_kind='probability', aggregate='product', "
            "threshold=0.5, model='m')"
        )
    scripted = ScriptedPRM({"a": 0.5}, default_threshold=None)
    assert repr(scripted) == (
        "ScriptedPRM(name='scripted', score_kind='probability', aggregate='min', threshold=None)"
    )
    assert repr(RefittedPRM(scripted)).startswith("RefittedPRM(name='scripted', ")
    with RemotePRM(Client(ADDRESS, transport=Words().transport, rng=random.Random(0))) as remote:
        assert repr(remote) == (
            f"RemotePRM(name='words', score_kind='probability', aggregate='min', threshold=0.5, address={ADDRESS!r})"
        )


def test_a_critic_and_the_policies_print_as_what_they_are():
    tokenizer = tiny_tokenizer()
    policy = LocalPolicy(tiny_model(tokenizer), tokenizer, name="tiny")
    assert repr(policy) == "LocalPolicy(name='tiny', device='cpu', dtype='float32')"
    assert repr(generative_prm(ThinkPRM(), policy)) == (
        "GenerativePRM(name='tiny', family='thinkprm', score_kind='probability', aggregate='last', threshold=0.5, "
        f"policy={policy!r})"
    )
    assert repr(ScriptedPolicy(["x"])) == "ScriptedPolicy(name='scripted')"
    served = OpenAIPolicy("http://somebody:secret@127.0.0.1:9/v1", "m")
    assert repr(served) == "OpenAIPolicy(name='m', address='127.0.0.1:9/v1')"


# ---- which steps it takes ------------------------------------------------------------------------------------

TEXT = "2 + 3 = 5\n5 * 2 = 10\nSo it is 10."
TEXTS = ["2 + 3 = 5", "5 * 2 = 10", "So it is 10."]


def test_the_steps_of_split_are_scored_as_their_texts(prm):
    expected = prm.score("p", TEXTS)
    assert prm.score("p", split(TEXT)) == expected
    assert prm.score("p", split(TEXT).steps) == expected
    assert prm.score("p", list(split(TEXT))) == expected
    assert prm.score("p", tuple(TEXTS)) == expected


def test_what_the_world_answered_stays_with_its_step(prm):
    steps = [Step(text="look", observation="\nit is 7\n"), Step(text="so 7")]
    [scored] = prm.score_many([Solution(problem=Solution.of("p", ["x"]).problem, steps=tuple(steps))])
    assert prm.score("p", steps) == list(scored.scores) != prm.score("p", ["look", "so 7"])


PRMS = {
    "head": lambda zoo: load_prm(str(zoo["token-classification"].folder), device="cpu", dtype="float32"),
    "scripted": lambda zoo: ScriptedPRM(dict.fromkeys(TEXTS, 0.5)),
    "generative": lambda zoo: generative_prm(
        ThinkPRM(), ScriptedPolicy(lambda request, number: "Is the solution correct? Yes", lambda request: [-0.1, -3.0])
    ),
    "refitted": lambda zoo: RefittedPRM(ScriptedPRM(dict.fromkeys(TEXTS, 0.5))),
    "remote": lambda zoo: RemotePRM(Client(ADDRESS, transport=Words().transport, rng=random.Random(0))),
}  # fmt: skip


@pytest.mark.parametrize("kind", PRMS)
def test_every_prm_takes_steps_and_splits_a_text(zoo, kind):
    grader = PRMS[kind](zoo)
    assert grader.score("p", split(TEXT)) == grader.score("p", TEXTS)
    assert grader.score("p", TEXT) == grader.score("p", TEXTS)  # a text is split


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


def with_a_new_field(kind):
    """The class as a later version might have it: one more field, with a default."""
    made = make_dataclass(
        kind.__name__, [("more", int, field(default=0))], bases=(kind,), frozen=True, kw_only=True, slots=True
    )
    return lambda one, **more: made(
        **{name: getattr(one, name) for name in kind.__dataclass_fields__}, **more
    )


def test_a_field_that_a_later_version_adds_changes_no_key():
    for spec in FAMILIES.values():
        later = with_a_new_field(ScoringSpec)
        layout, readout = with_a_new_field(type(spec.layout)), with_a_new_field(Readout)
        assert spec_key(
            later(replace(spec, layout=layout(spec.layout), readout=readout(spec.readout)))
        ) == spec_key(spec)
        assert spec_key(later(spec, more=1)) != spec_key(spec)
        assert spec_key(replace(spec, layout=layout(spec.layout, more=1))) != spec_key(spec)


def test_a_field_that_a_later_version_adds_changes_no_recorded_identity(zoo, prm, monkeypatch):
    spec = FAMILIES["token-classification"]
    folder = str(zoo["token-classification"].folder)

    def identity():
        return load_prm(folder, device="cpu", dtype="float32").identity

    assert identity() == prm.identity
    monkeypatch.setitem(FAMILIES, spec.family, with_a_new_field(ScoringSpec)(spec))
    assert identity() == prm.identity
    # Nor does prose; what changes a score does.
    monkeypatch.setitem(FAMILIES, spec.family, replace(spec, summary="other words", checkpoints=("a/b",)))
    assert identity() == prm.identity
    monkeypatch.setitem(FAMILIES, spec.family, replace(spec, layout=replace(spec.layout, bos=False)))
    assert identity() != prm.identity


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
