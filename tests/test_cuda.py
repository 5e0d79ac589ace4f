"""A CUDA device computes what the CPU computes: grading, sessions, training, a local policy. Run by `recipes/gpu.sh tests`.

`STEPMARK_TEST_DEVICE=cpu` runs the same lines on a machine without a GPU.
"""

from __future__ import annotations

import os

import pytest

import stepmark
from stepmark.backends import Completions, Message, ScoreRequest
from stepmark.models.policies import load_policy

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from checkpoints import FAMILY_EXAMPLES, load_family  # noqa: E402

DEVICE = os.environ.get("STEPMARK_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(
    DEVICE.startswith("cuda") and not torch.cuda.is_available(), reason="no CUDA here"
)

TRUNK = ("There are 3 boxes.", "Each holds 12 eggs.", "3 * 12 = 36.")
SOLUTIONS = [
    stepmark.Solution.of(problem, (*TRUNK[: 1 + number % 3], *ends))
    for problem in ("How many eggs?", "What is left of 36 eggs?")
    for number, ends in enumerate(
        (["So 36."], ["So 35.", "That is it."], ["4 are broken.", "36 - 4 = 32."], [])
    )
]


def scores_of(prm, solutions=SOLUTIONS):
    return [score for result in prm.score_many(solutions) for score in result.scores if score is not None]


def prm_on(zoo, family, device=DEVICE, **settings):
    return load_family(zoo, family, device=device, **settings)


@pytest.mark.parametrize("family", FAMILY_EXAMPLES)
def test_each_family_scores_as_on_the_cpu(zoo, family):
    expected = scores_of(prm_on(zoo, family, "cpu"))
    assert expected
    assert scores_of(prm_on(zoo, family, token_budget=64)) == pytest.approx(expected, abs=1e-4)


def test_bfloat16_is_near_float32(zoo):
    expected = scores_of(prm_on(zoo, "qwen-prm", "cpu"))
    assert scores_of(prm_on(zoo, "qwen-prm", dtype="bfloat16")) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("family", ["qwen-prm", "implicit"])
def test_a_session_scores_as_the_whole_and_computes_each_token_once(zoo, family):
    prm = prm_on(zoo, family)
    requests = [
        ScoreRequest(problem=solution.problem.text, steps=tuple(solution.texts))
        for solution in SOLUTIONS
        if solution.steps
    ]
    whole = [
        result.scores[-1] for result in prm_on(zoo, family, "cpu").score_many(SOLUTIONS) if result.scores
    ]
    session = prm.open_session()
    for repeat in range(2):
        before = prm.ledger.tokens_computed
        replies = session.score(requests, lambda *_: None)
        assert [reply.score for reply in replies] == pytest.approx(whole, abs=1e-4)
        computed = prm.ledger.tokens_computed - before
        assert computed > 0 if repeat == 0 else computed == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pass_never_waits_for_the_device(zoo, dtype):
    """torch raises where the host would wait between first and last layer, in grading and in a session."""
    prm = prm_on(zoo, "qwen-prm", dtype=dtype, token_budget=64)
    layers = prm.engine.backbone.layers
    passes = []

    def mode(name):
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode(name)
        passes.append(name)

    hooks = [
        layers[0].register_forward_pre_hook(lambda *_: mode("error")),
        layers[-1].register_forward_hook(lambda *_: mode("default")),
    ]
    try:
        assert scores_of(prm)
        prm.open_session().score([ScoreRequest(problem="How many eggs?", steps=TRUNK)], lambda *_: None)
    finally:
        mode("default")
        for hook in hooks:
            hook.remove()
    assert passes.count("error") > 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_device_scores_as_the_cpu_does(zoo, dtype):
    expected = scores_of(prm_on(zoo, "qwen-prm", "cpu"))
    found = scores_of(prm_on(zoo, "qwen-prm", dtype=dtype, token_budget=64))
    assert found == pytest.approx(expected, abs=1e-4 if dtype == "float32" else 0.1)


def test_training_ends_as_on_the_cpu(tmp_path):
    """A few optimizer steps from the same seed give weights that score alike."""
    rows = [
        {
            "prompt": f"What is {a} + {b}?",
            "completions": [f"{a} + {b} = {a + b + error}"],
            "labels": [error == 0],
        }
        for a in range(2, 12)
        for b in (3, 7)
        for error in (0, 1)
    ]
    solutions = [stepmark.Solution.of(row["prompt"], tuple(row["completions"])) for row in rows[:8]]
    scores = {}
    for device in ("cpu", DEVICE):
        training = stepmark.training.Training(
            full=True, epochs=1, held_out=0.3, dtype="float32", device=device, evaluations=1
        )
        out = tmp_path / device.replace(":", "-") / "prm"
        out.parent.mkdir(exist_ok=True)
        if not out.exists():
            stepmark.train(rows, base="stepmark:arithmetic", out=out, training=training, progress=False)
        scores[device] = scores_of(stepmark.load_prm(str(out), dtype="float32", device=device), solutions)
    assert scores[DEVICE] == pytest.approx(scores["cpu"], abs=2e-3)


def test_a_policy_writes_the_same_greedy_text():
    problems = stepmark.ArithmeticWorld().problems(4, seed=1)
    requests = [
        Completions(prompt=(Message(role="user", content=problem.text),), max_tokens=64)
        for problem in problems
    ]
    texts = [
        [[written.text for written in reply] for reply in policy.complete_many(requests)]
        for policy in (
            load_policy("stepmark:arithmetic", dtype="float32", device=device) for device in ("cpu", DEVICE)
        )
    ]
    assert texts[0] == texts[1]
    assert any(text for reply in texts[0] for text in reply)
