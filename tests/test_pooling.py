"""A PRM behind `/pooling`: a real HTTP server on this machine that answers as vLLM does, and as it should not."""

from __future__ import annotations

import math

import pytest
import torch

from stepmark import load_prm
from stepmark.errors import BackendError, CheckpointError, InputError, UnreachableError, UsageError
from stepmark.models.encoding import Encoder
from stepmark.models.families import FAMILIES
from stepmark.models.pooling import PoolingPRM
from stepmark.records import Refusal, Solution, StepScores
from token_servers import TokenServer

torch.set_num_threads(1)

SOLUTIONS = [
    Solution.of(
        "Ann has 3 boxes of 12 pens. How many pens?", ["3 * 12 = 36 pens.", "The answer is 36."], id="a"
    ),
    Solution.of("Ann has 3 boxes of 12 pens. How many pens?", ["3 * 12 = 36 pens.", "She has 6."], id="b"),
    Solution.of("2x + 5 = 17", ["2x = 12.", "x = 6.", "So x = 6."], id="c"),
    Solution.of("How far in 4 hours?", ["240 / 60 = 4, so it is 240."], id="d"),
]


def answered(rows, *, reverse=False):
    """vLLM's reply: one entry a sequence, each a list of rows."""
    data = [{"index": i, "object": "pooling", "data": r} for i, r in enumerate(rows)]
    return {
        "id": "pool-1",
        "object": "list",
        "created": 1,
        "model": "tiny-prm",
        "data": data[::-1] if reverse else data,
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }


def as_vllm(built, *, every_token, reverse=False):
    """What vLLM computes for Qwen2ForProcessRewardModel, with plain torch: logits at <extra_0>, or everywhere."""
    tag = built.tokenizer.convert_tokens_to_ids("<extra_0>")
    head = built.head

    def pooling(body):
        assert body["task"] == "token_classify"
        assert body["use_activation"] is False
        rows = []
        for ids in body["input"]:
            with torch.inference_mode():
                states = built.network(torch.tensor([ids])).last_hidden_state[0]
                inner = torch.relu(states @ head["score.0.weight"].T + head["score.0.bias"])
                logits = inner @ head["score.2.weight"].T + head["score.2.bias"]
            rows.append((logits if every_token else logits[torch.tensor(ids) == tag]).tolist())
        return answered(rows, reverse=reverse)

    return pooling


@pytest.fixture
def built(zoo):
    return zoo["qwen-prm"]


@pytest.fixture
def here(built):
    return load_prm(str(built.folder), dtype="float32", device="cpu")


def client(server, built, family="qwen-prm", **settings):
    """A PRM behind the server that does not wait before it tries again."""
    spec = FAMILIES[family]
    encoder = Encoder(
        built.tokenizer,
        spec.layout,
        max_tokens=settings.pop("max_tokens", None),
        truncate=settings.pop("truncate", False),
    )
    url = server if isinstance(server, str) else server.url
    return PoolingPRM(url, spec, encoder, identity=lambda: "read so", pause=0.001, timeout=60.0, **settings)


@pytest.mark.parametrize("every_token", [False, True])
def test_a_server_gives_the_scores_of_the_model_in_process(built, here, every_token):
    expected = [here.score(s.problem.text, steps=s.texts) for s in SOLUTIONS]
    with TokenServer("/pooling", as_vllm(built, every_token=every_token)) as server:
        prm = load_prm(server.url, tokenizer=str(built.folder))
        assert prm.name == server.url
        assert (prm.score_kind, prm.default_aggregate, prm.default_threshold) == (
            "probability",
            "product",
            0.5,
        )
        assert prm.score(SOLUTIONS[0].problem.text, steps=SOLUTIONS[0].texts) == pytest.approx(
            expected[0], abs=1e-5
        )
        results = list(prm.score_many(SOLUTIONS))
    for result, scores in zip(results, expected, strict=True):
        assert result.kind == "probability"
        assert result.scores == pytest.approx(scores, abs=1e-5)
    assert max(s for scores in expected for s in scores) - min(s for scores in expected for s in scores) > 0.1


def test_token_ids_are_sent_and_no_text(built, here):
    with TokenServer("/pooling", as_vllm(built, every_token=False)) as server:
        list(client(server, built).score_many(SOLUTIONS))
        (body,) = server.bodies
    assert body["model"] == "tiny-prm"
    assert body["input"] == [here.encoder.encode(s).ids.tolist() for s in SOLUTIONS]
    assert all(type(token) is int for ids in body["input"] for token in ids)
    assert set(body) == {"model", "input", "task", "use_activation"}


def test_answers_in_another_order_and_in_several_batches(built, here):
    expected = [here.score(s.problem.text, steps=s.texts) for s in SOLUTIONS]
    with TokenServer("/pooling", as_vllm(built, every_token=False, reverse=True)) as server:
        prm = client(server, built, batch=3)
        results = list(prm.score_many(SOLUTIONS))
        assert [len(body["input"]) for body in server.bodies] == [3, 1]
    for result, scores in zip(results, expected, strict=True):
        assert result.scores == pytest.approx(scores, abs=1e-5)
    tokens = sum(len(ids) for body in server.bodies for ids in body["input"])
    # Whatever a server reuses, it does not tell: every token counts as computed.
    assert (prm.ledger.tokens_in, prm.ledger.tokens_computed) == (tokens, tokens)
    assert (prm.ledger.solutions, prm.ledger.steps) == (4, 8)


def test_what_a_server_reports_as_cached_is_not_counted_as_computed(built):
    vllm = as_vllm(built, every_token=False)

    def reporting(body):
        usage = {"prompt_tokens": 1, "total_tokens": 1, "prompt_tokens_details": {"cached_tokens": 16}}
        return {**vllm(body), "usage": usage}

    with TokenServer("/pooling", reporting) as server:
        prm = client(server, built, batch=3)
        list(prm.score_many(SOLUTIONS))
        tokens = sum(len(ids) for body in server.bodies for ids in body["input"])
    assert (prm.ledger.tokens_in, prm.ledger.tokens_computed) == (tokens, tokens - 2 * 16)


def test_a_refused_solution_is_not_sent(built, here):
    marked = Solution.of("p", ["one <extra_0> two"])
    with TokenServer("/pooling", as_vllm(built, every_token=False)) as server:
        refusal, result = client(server, built).score_many([marked, SOLUTIONS[3]], keep_going=True)
        assert isinstance(refusal, Refusal)
        assert isinstance(result, StepScores)
        assert [len(body["input"]) for body in server.bodies] == [1]
        with pytest.raises(InputError, match="<extra_0>"):
            client(server, built).score("p", steps=marked.texts)


@pytest.mark.parametrize("every_token", [False, True])
def test_truncated_steps_have_no_score(built, here, every_token):
    solution = SOLUTIONS[2]
    reads = here.encoder.encode(solution).reads
    whole = here.score(solution.problem.text, steps=solution.texts)
    with TokenServer("/pooling", as_vllm(built, every_token=every_token)) as server:
        prm = client(server, built, max_tokens=reads[1] + 1, truncate=True)
        (result,) = prm.score_many([solution])
        assert result.scores[:2] == pytest.approx(whole[:2], abs=1e-5)
        assert result.scores[2] is None
        prm = client(server, built, max_tokens=3, truncate=True)
        assert prm.score(solution.problem.text, steps=solution.texts) == [None, None, None]


def test_three_classes_by_hand(zoo):
    """Logits 0, ln 2, 0 for negative, neutral, positive: 1/4, 1/2, 1/4."""
    rows = [[0.0, math.log(2), 0.0], [0.0, 0.0, math.log(2)]]
    built = zoo["reasoneval"]
    with TokenServer("/pooling", lambda body: answered([rows])) as server:
        for neutral, scores in (("positive", [0.75, 0.75]), ("negative", [0.25, 0.5])):
            prm = client(server, built, "reasoneval", neutral=neutral)
            (result,) = prm.score_many([SOLUTIONS[0]])
            assert result.scores == pytest.approx(scores)
            assert result.classes == (pytest.approx((0.25, 0.5, 0.25)), pytest.approx((0.25, 0.25, 0.5)))
            assert result.class_names == ("negative", "neutral", "positive")


# Servers that fail


ROW = [0.5, -0.5]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answered([[ROW]]), r"expected 2 rows \(one a step\) or \d+ \(one a token\).*step tag"),
        (answered([[0.5, 0.5]]), r"expected 2 rows.*\(2,\)"),
        (answered([[ROW, [0.5]]]), "rows of numbers"),
        (answered(["QUJD"]), "rows of numbers"),
        (answered([[[None, 1.0]] * 2]), "rows of numbers"),
        (answered([[[math.nan, 1.0]] * 2]), "no number in JSON"),
        (answered([[[10**400, 1]] * 2]), "rows of numbers"),
        (answered([[[0.1, 0.2, 0.3]] * 2]), "2 classes.*3"),
        (answered([]), "0 answered"),
        ({"data": [{"index": 4, "data": [ROW] * 2}]}, "no answer has index 0"),
        ({"data": [None]}, "no answer has index 0"),
        ({"data": {"0": [ROW] * 2}}, "no list answered"),
        ((200, b"<html>welcome</html>"), "expected JSON, found .<html>welcome"),
        ((200, b"[1, 2]"), "expected a JSON object"),
    ],
)
def test_nonsense_is_an_error_and_never_a_score(built, reply, message):
    with TokenServer("/pooling", lambda body: reply) as server:
        prm = client(server, built)
        with pytest.raises(BackendError, match=message):
            prm.score("2 + 2 = ?", steps=["2 + 2 = 4", "so 4"])
        assert prm.ledger.solutions == 0


# Which model, which tokenizer


def test_the_identity_is_how_it_is_read_and_what_the_server_reports(built):
    def identity(*, entry=None, model="m", name="read so"):
        listed = {"data": [{"id": "other"}, {"id": "m", "created": 1, "root": "/weights/1", **(entry or {})}]}
        with TokenServer("/pooling", as_vllm(built, every_token=False), models=listed) as server:
            encoder = Encoder(built.tokenizer, FAMILIES["qwen-prm"].layout, max_tokens=None)
            made = {"identity": lambda: name, "model": model}
            with PoolingPRM(server.url, FAMILIES["qwen-prm"], encoder, **made) as prm:
                return prm.identity

    first = identity()
    assert first == identity(entry={"created": 2})  # which vLLM sets to the time of the request
    others = [
        identity(entry={"root": "/weights/2"}),
        identity(model="other"),
        identity(name="read otherwise"),
    ]
    assert len({first, *others}) == 4
    with TokenServer("/pooling", as_vllm(built, every_token=False), models={"data": None}) as server:
        assert client(server, built, model="m").identity.startswith("read so#")


@pytest.mark.parametrize("family", ["math-shepherd", "implicit", "rlhflow"])
def test_families_that_read_the_language_model_head_are_refused(built, family):
    encoder = Encoder(built.tokenizer, FAMILIES["qwen-prm"].layout, max_tokens=None)
    with pytest.raises(CheckpointError, match=f"{family} reads the language-model head"):
        PoolingPRM("http://127.0.0.1:9", FAMILIES[family], encoder, identity=lambda: "")


# Where it is, and what it serves


def test_a_model_that_is_not_served_is_refused_with_those_that_are(built):
    with (
        TokenServer("/pooling", as_vllm(built, every_token=False), models=("a", "b")) as server,
        pytest.raises(BackendError, match=r"serves \['a', 'b'\] and not 'nope'"),
    ):
        client(server, built, model="nope")


def test_the_identity_outlives_the_server(built):
    with TokenServer("/pooling", as_vllm(built, every_token=False)) as server:
        prm = client(server, built, model="tiny-prm")
        while_it_is_there = prm.identity
    assert prm.identity == while_it_is_there
    # An identity without what the server reports would be another PRM's, and a run that begins so could not be continued.
    with pytest.raises(UnreachableError):
        client(server, built, model="tiny-prm")


@pytest.mark.parametrize(
    "address", ["http://[::1", "http://", "ftp://a", "http://a/?b=c", "http://me:secret@127.0.0.1:9"]
)
def test_an_address_that_is_none_or_holds_a_password_is_refused_unshown(built, address):
    encoder = Encoder(built.tokenizer, FAMILIES["qwen-prm"].layout, max_tokens=None)
    with pytest.raises(UsageError, match="expected a server's address") as caught:
        PoolingPRM(address, FAMILIES["qwen-prm"], encoder, identity=lambda: "")
    assert "secret" not in str(caught.value)


def test_v1_at_the_end_of_an_address_is_left_out(built):
    with TokenServer("/pooling", as_vllm(built, every_token=False)) as server:
        encoder = Encoder(built.tokenizer, FAMILIES["qwen-prm"].layout, max_tokens=None)
        spec = FAMILIES["qwen-prm"]
        with PoolingPRM(f"{server.url}/v1", spec, encoder, identity=lambda: "") as prm:
            assert len(prm.score("2 + 2 = ?", steps=["2 + 2 = 4", "so 4"])) == 2


@pytest.mark.parametrize("status", [200, 400])
def test_json_that_is_nested_too_deeply_is_no_answer(built, status):
    with TokenServer("/pooling", lambda body: (status, b"[" * 200_000)) as server:
        prm = client(server, built)
        with pytest.raises(BackendError, match=r"expected JSON, found|HTTP 400"):
            prm.score("2 + 2 = ?", steps=["2 + 2 = 4", "so 4"])
