"""PRMs whose verdicts are tokens, behind servers of this test that answer as vLLM and SGLang do, with a cache of prefixes; and as they should not.

The real vLLM is slow: `STEPMARK_VLLM_PYTHON=…/bin/python pytest -m slow tests/test_completions.py` (see vllm_server.py).
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from checkpoints import FAMILY_EXAMPLES, load_family
from stepmark import load_prm
from stepmark.backends import ScoreRequest
from stepmark.errors import BackendError, CheckpointError, InputError, TooLongError
from stepmark.models.completions import CompletionsPRM
from stepmark.models.encoding import Encoder
from stepmark.models.families import FAMILIES
from stepmark.models.spec import LinearHead
from stepmark.records import Refusal, Solution
from token_servers import TokenServer
from vllm_server import Vllm, needs_vllm

torch.set_num_threads(1)

VOCABULARY = ("math-shepherd", "rlhflow", "versaprm", "three-class")
PENS = "A box holds 12 pens. Ann buys 3 boxes and gives 6 pens away. How many are left?"
STEPS = ["She has 12 * 3 = 36 pens.", "36 - 6 = 30, so 30 are left.", "The answer is: 30"]
SOLUTIONS = [
    Solution.of(PENS, STEPS),
    Solution.of(PENS, [*STEPS[:2], "The answer is 31.", "No, it is: 30"]),
    Solution.of("Find x with 2x + 5 = 17.", ["2x = 12", "Then x = 6."]),
]


class Engine:
    """Log-probabilities by transformers' own class, and a cache of prefixes in blocks."""

    def __init__(self, built, block):
        self.network, self.block = built.network, block
        self.cached: set[tuple[int, ...]] = set()
        self.computed = 0
        self.lock = threading.Lock()

    def read(self, ids, most):
        """All log-probabilities [tokens, vocabulary], and how many tokens the cache had of the first `most`."""
        with self.lock, torch.inference_mode():
            table = torch.log_softmax(self.network(torch.tensor([ids])).logits[0].double(), -1)
            cached = max(
                (n for n in range(0, most + 1, self.block) if tuple(ids[:n]) in self.cached), default=0
            )
            self.cached |= {tuple(ids[:n]) for n in range(0, len(ids) + 1, self.block)}
            self.computed += len(ids) - cached
        return table, cached


def vllm(engine, *, reports=True):
    def answer(body):
        ids, wanted = body["prompt"], body["logprob_token_ids"]
        assert all(type(token) is int for token in ids)
        assert body["max_tokens"] == 1
        assert body["logprobs"] == len(wanted)
        assert "seed" not in body
        table, cached = engine.read(ids, len(ids) - 1)
        top = {f"token_id:{token}": table[-1, token].item() for token in [int(table[-1].argmax()), *wanted]}
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if reports else {}
        return {
            "choices": [{"index": 0, "text": "+", "logprobs": {"top_logprobs": [top]}}],
            "usage": {"prompt_tokens": len(ids), "completion_tokens": 1, **details},
        }

    return "/v1/completions", answer, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 1024}]}


def sglang(engine):
    def answer(body):
        ids, start, wanted = body["input_ids"], body["logprob_start_len"], body["token_ids_logprob"]
        assert body["return_logprob"] is True
        assert body["sampling_params"]["max_new_tokens"] == 0
        table, cached = engine.read(ids, min(len(ids) - 1, start))
        rows = [[[row[token].item(), token, None] for token in wanted] for row in table]
        facts = {
            "input_token_ids_logprobs": [None, *rows[start:-1]],
            "output_token_ids_logprobs": [rows[-1]],
            "prompt_tokens": len(ids),
            "cached_tokens": cached,
        }
        return {"text": "", "meta_info": facts}

    return "/generate", answer, {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 1024}]}


def served(server, zoo, family, **settings):
    return load_prm(
        server.url, tokenizer=str(zoo[FAMILY_EXAMPLES[family].checkpoint].folder), family=family, **settings
    )


@pytest.mark.parametrize("family", VOCABULARY)
@pytest.mark.parametrize(("dialect", "block"), [(vllm, 16), (sglang, 1)])
def test_a_server_gives_the_scores_of_the_model_in_process(zoo, family, dialect, block):
    here = load_family(zoo, family)
    expected = list(here.score_many(SOLUTIONS))
    engine = Engine(zoo[FAMILY_EXAMPLES[family].checkpoint], block)
    with TokenServer(*dialect(engine)) as server, served(server, zoo, family) as prm:
        probed = engine.computed
        results = list(prm.score_many(SOLUTIONS))
    for result, other in zip(results, expected, strict=True):
        assert result.scores == pytest.approx(other.scores, abs=2e-6)
        assert (result.kind, result.class_names) == (other.kind, other.class_names)
        assert (result.problem_tokens, result.solution_tokens) == (
            other.problem_tokens,
            other.solution_tokens,
        )
    flat = [score for result in results for score in result.scores]
    assert max(flat) - min(flat) > 0.1
    assert prm.ledger.tokens_in == here.ledger.tokens_in
    assert prm.ledger.tokens_distinct == here.ledger.tokens_distinct
    assert prm.ledger.tokens_computed == engine.computed - probed
    # The two first steps of the second solution are the first solution's: they are asked once.
    assert len(server.bodies) - 1 == (7 if dialect is vllm else 3)


@pytest.mark.parametrize(("dialect", "block"), [(vllm, 16), (sglang, 1)])
def test_a_growing_prefix_costs_its_new_tokens(zoo, dialect, block):
    here = load_family(zoo, "three-class")
    engine = Engine(zoo["three-class"], block)
    steps = STEPS * 4
    whole = here.encoder.encode(Solution.of(PENS, steps))
    expected = here.score(PENS, steps=steps)
    with TokenServer(*dialect(engine)) as server, served(server, zoo, "three-class") as prm:
        probed = engine.computed
        session = prm.open_session()
        assert session.reason == ""
        replies = [
            session.score([ScoreRequest(problem=PENS, steps=tuple(steps[: n + 1]))], lambda *_: None)[0]
            for n in range(len(steps))
        ]
    assert [reply.score for reply in replies] == pytest.approx(expected, abs=2e-6)
    assert [reply.classes is not None for reply in replies] == [True] * len(steps)
    # The account of a search: each step its own tokens.
    assert sum(reply.tokens for reply in replies) + replies[0].root == len(whole.ids)
    # The server: at most a block of each prefix twice (what does not fill a block is not in the cache), and the last token.
    computed = engine.computed - probed
    assert prm.ledger.tokens_computed == computed
    assert len(whole.ids) <= computed <= len(whole.ids) + block * (len(steps) + 1)
    assert prm.ledger.tokens_in > 4 * len(whole.ids)
    assert len(server.bodies) == 1 + len(steps)


def test_a_server_that_does_not_count_says_how_to_start_it(zoo, caplog):
    engine = Engine(zoo["three-class"], 16)
    with (
        TokenServer(*vllm(engine, reports=False)) as server,
        served(server, zoo, "three-class") as prm,
    ):
        assert "--enable-prompt-tokens-details" in caplog.text
        assert "--enable-prompt-tokens-details" in prm.open_session().reason
        prm.score(PENS, steps=STEPS[:1])
        assert prm.ledger.tokens_computed == prm.ledger.tokens_in


def test_what_cannot_be_read_is_not_sent(zoo):
    engine = Engine(zoo["math-shepherd"], 16)
    path, answer, models = vllm(engine)
    length = len(load_family(zoo, "math-shepherd").encoder.encode(SOLUTIONS[0]).ids)
    models["data"][0]["max_model_len"] = length
    marked = Solution.of("p", ["one ки two"])
    with TokenServer(path, answer, models) as server:
        with served(server, zoo, "math-shepherd") as prm:
            results = list(prm.score_many([marked, SOLUTIONS[0], SOLUTIONS[2]], keep_going=True))
            assert [isinstance(result, Refusal) for result in results] == [True, True, False]
            # The server wants room for a token beside these.
            assert isinstance(results[1].error, TooLongError)
            asked = [ScoreRequest(problem=s.problem.text, steps=s.texts) for s in (marked, SOLUTIONS[2])]
            refused, reply = prm.open_session().score(asked, lambda *_: None)
            assert isinstance(refused, InputError)
            assert reply.score == results[2].scores[-1]
        with served(server, zoo, "math-shepherd", truncate=True) as prm:
            assert [s is None for s in prm.score(PENS, steps=STEPS)] == [False, False, True]
        with served(server, zoo, "math-shepherd", outcome=True) as prm:
            assert prm.score(None, SOLUTIONS[2]) == [None, results[2].scores[-1]]
            assert "outcome" in prm.open_session().reason


def test_three_classes_by_hand(zoo):
    """Log-probabilities that are logits less a constant: 1/4, 1/2, 1/4 of negative, neutral, positive."""

    def answer(body):
        values = zip(body["logprob_token_ids"], (-9.0, math.log(2) - 9, -9.0), strict=True)
        top = {f"token_id:{token}": value for token, value in values}
        usage = {"prompt_tokens": len(body["prompt"]), "prompt_tokens_details": {"cached_tokens": 0}}
        return {"choices": [{"logprobs": {"top_logprobs": [top]}}], "usage": usage}

    for neutral, score in (("positive", 0.75), ("negative", 0.25)):
        with (
            TokenServer("/v1/completions", answer) as server,
            served(server, zoo, "three-class", neutral=neutral) as prm,
        ):
            assert prm.score(PENS, steps=STEPS[:1]) == pytest.approx([score])


def changed(change):
    """vLLM's answer for two candidates, after a change."""

    def answer(body):
        top = {f"token_id:{token}": -1.0 for token in body["logprob_token_ids"]}
        data = {
            "choices": [{"logprobs": {"top_logprobs": [top]}}],
            "usage": {"prompt_tokens": len(body["prompt"])},
        }
        return change(data, top) or data

    return answer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data, top: top.clear(), r"vLLM 0\.32 or later"),
        (lambda data, top: data["choices"][0].update(logprobs=None), r"vLLM 0\.32 or later"),
        (lambda data, top: data.update(choices=[]), r"vLLM 0\.32 or later"),
        (lambda data, top: data["usage"].update(prompt_tokens=7), "1 token sent, 7 read"),
        (lambda data, top: top.update(dict.fromkeys(top, None)), "expected log-probabilities"),
        (lambda data, top: top.update(dict.fromkeys(top, -9999.0)), "none of the verdicts"),
        (lambda data, top: (404, b"no such page"), "served by: vllm serve"),
    ],
)
def test_a_server_without_them_is_refused_with_the_line_to_type(zoo, change, message):
    with (
        TokenServer("/v1/completions", changed(change)) as server,
        pytest.raises(BackendError, match=message),
    ):
        served(server, zoo, "math-shepherd")


def test_sglang_rows_that_do_not_fit_are_refused(zoo):
    path, answer, models = sglang(Engine(zoo["math-shepherd"], 1))

    def short(body):
        data = answer(body)
        if len(body["input_ids"]) > 1:
            data["meta_info"]["input_token_ids_logprobs"].pop()
        return data

    with (
        TokenServer(path, short, models) as server,
        served(server, zoo, "math-shepherd") as prm,
        pytest.raises(BackendError, match="rows for"),
    ):
        prm.score(PENS, steps=STEPS)


def test_what_is_not_a_comparison_of_tokens_is_refused(zoo):
    spec = FAMILIES["math-shepherd"]
    encoder = Encoder(zoo["math-shepherd"].tokenizer, spec.layout, max_tokens=None)
    one = replace(
        spec, readout=replace(spec.readout, head=replace(spec.readout.head, candidates=("+",)), activation="sigmoid")
    )  # fmt: skip
    other = replace(spec, readout=replace(spec.readout, head=LinearHead()))
    for wrong in (one, other):
        with pytest.raises(CheckpointError, match="comparing tokens"):
            CompletionsPRM("http://127.0.0.1:9", wrong, encoder, identity=lambda: "", model="m")


@pytest.mark.slow
@needs_vllm
def test_vllm_itself_gives_the_scores_and_computes_new_tokens_only(tmp_path, monkeypatch, zoo):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    # vLLM's attention on a CPU wants heads of 32.
    tokenizer, folder = zoo["three-class"].tokenizer, tmp_path / "prm"
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    here = load_prm(str(folder), family="three-class", dtype="float32", device="cpu")
    steps = [f"{n} * 12 = {n * 12}, and {n * 12} - 6 = {n * 12 - 6}." for n in range(1, 25)]
    candidates = [Solution.of(PENS, [*steps[:n], f"So it is {n}."]) for n in range(1, 17)]
    words = ["serve", str(folder), "--enable-prompt-tokens-details", "--block-size", "32"]
    with Vllm(words, tmp_path / "vllm.log") as url:
        prm = load_prm(url, tokenizer=str(folder), family="three-class")
        with prm:
            ledger = replace(prm.ledger)
            session = prm.open_session()
            found = [
                session.score([ScoreRequest(problem=PENS, steps=tuple(steps[: n + 1]))], lambda *_: None)[
                    0
                ].score
                for n in range(len(steps))
            ]
            sent = prm.ledger.tokens_in - ledger.tokens_in
            computed = prm.ledger.tokens_computed - ledger.tokens_computed
            whole = len(here.encoder.encode(Solution.of(PENS, steps)).ids)
            many = list(prm.score_many(candidates))
            graded = replace(prm.ledger)
    expected = here.score(PENS, steps=steps)
    assert max(expected) - min(expected) > 0.1
    local = list(here.score_many(candidates))
    differences = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    differences += [
        abs(a - b) for x, y in zip(many, local, strict=True) for a, b in zip(x.scores, y.scores, strict=True)
    ]
    print(
        f"largest difference {max(differences):.1e} of {len(differences)} steps; a session of {len(steps)} steps sent {sent} tokens, "
        f"{whole} of them distinct; {computed} computed, {1 - computed / sent:.1%} cached; {len(candidates)} candidates: "
        f"{graded.tokens_computed - computed} computed of {graded.tokens_in - sent} in whole solutions"
    )
    assert max(differences) < 1e-5
    # At most a block of each prefix is computed again.
    assert whole <= computed <= whole + 32 * len(steps)
