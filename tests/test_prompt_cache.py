"""A policy in this process that keeps what it has read and written: the same samples, fewer tokens computed."""

from __future__ import annotations

import pytest
import torch

from stepmark.backends import Completions, Message
from stepmark.backends.replies import MemoryReplies
from stepmark.errors import UsageError
from stepmark.models.policies.local import LocalPolicy, why_not
from tiny_language_model import tiny_model, tiny_tokenizer

torch.set_num_threads(1)

USER = (Message(role="user", content="is the sum of the numbers 5 or 6? let us see"),)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_model(tokenizer, context=400)


def pair(model, tokenizer, memory=5000, **more):
    return [LocalPolicy(model, tokenizer, name="tiny", memory_tokens=m, **more) for m in (0, memory)]


def grown(policy, *, rounds=5, expand=3, width=2, seed=0):
    """A search in miniature: each round writes after the texts of the round before, of two problems; all that was written."""
    told = []
    tips = [("a", ""), ("b", "")]
    for _ in range(rounds):
        requests = [
            Completions(prompt=(*USER, Message(role="user", content=which)), prefill=text, n=expand, temperature=1.0, max_tokens=7, seed=seed)
            for which, text in tips
        ]  # fmt: skip
        replies = policy.complete_many(requests)
        tips_after = []
        for (which, text), reply in zip(tips, replies, strict=True):
            told += [(which, text, one.text, one.finish, one.tokens, one.prompt_tokens) for one in reply]
            tips_after += [(which, text + one.text) for one in reply[:width]]
        tips = tips_after[: 2 * width]
    return told


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_the_same_samples_and_only_new_tokens_are_computed(model, tokenizer, batch_size):
    plain, keeping = pair(model, tokenizer, batch_size=batch_size)
    assert (plain.keeps_nothing, keeping.keeps_nothing) == ("it was given no memory", "")
    told = grown(keeping)
    assert told == grown(plain)
    assert len({text for _, _, text, *_ in told}) > 20
    assert keeping.read.given == plain.read.given
    assert plain.read.computed >= plain.read.given
    assert keeping.read.again == keeping.read.forgotten == 0
    assert keeping.read.computed < plain.read.computed / 5


def test_what_is_computed_by_hand(model, tokenizer):
    """Whole prompt first, then only what was put behind what it wrote."""
    _, keeping = pair(model, tokenizer)
    ids = tokenizer("the step is")["input_ids"]
    [[one]] = keeping.complete_many([Completions(prompt="the step is", max_tokens=4)])
    assert (keeping.read.given, keeping.read.computed) == (len(ids), len(ids))
    whole = tokenizer("the step is" + one.text)["input_ids"]
    # The last token that it wrote was never read.
    known = 0
    text = [*ids, *_written(keeping, model, ids, 4)][:-1]
    while known < min(len(text), len(whole) - 1) and text[known] == whole[known]:
        known += 1
    keeping.complete_many([Completions(prompt="the step is", prefill=one.text, max_tokens=1)])
    assert keeping.read.computed - len(ids) == len(whole) - 1 - known + 1
    before = keeping.read.computed
    keeping.complete_many([Completions(prompt="the step is", prefill=one.text, max_tokens=1)])
    assert keeping.read.computed == before + 1  # the last one again, for what comes next


def _written(policy, model, ids, count):
    new = []
    with torch.no_grad():
        for _ in range(count):
            new.append(int(model(torch.tensor([[*ids, *new]])).logits[0, -1].argmax()))
    return new


def test_log_probabilities_are_those_of_the_whole_text(model, tokenizer):
    plain, keeping = pair(model, tokenizer)
    requests = [
        Completions(prompt=USER, prefill=prefill, n=2, temperature=0.8, max_tokens=9)
        for prefill in ("", "yes ", "yes it")
    ]
    for _ in range(2):
        for mine, theirs in zip(keeping.complete_many(requests), plain.complete_many(requests), strict=True):
            assert [one.text for one in mine] == [one.text for one in theirs]
            assert [one.logprob for one in mine] == pytest.approx([one.logprob for one in theirs], abs=1e-4)


@pytest.mark.parametrize("memory", [1, 60, 150])
def test_a_small_memory_costs_time_and_nothing_else(model, tokenizer, memory):
    plain, keeping = pair(model, tokenizer, memory, batch_size=4)
    assert grown(keeping, rounds=6) == grown(plain, rounds=6)
    assert len(keeping._kept) <= memory
    assert keeping.read.computed <= plain.read.computed
    if memory == 150:
        assert keeping.read.forgotten > 0
        assert keeping.read.again > 0


def test_an_attention_that_does_not_take_the_plan_is_found_out(model, tokenizer, monkeypatch):
    from stepmark.models import attention

    right = attention._attend

    def wrong(module, query, key, value, attention_mask, **more):
        out, weights = right(module, query, key, value, attention_mask, **more)
        return out.flip(1), weights

    monkeypatch.setattr(attention, "_attend", wrong)
    assert "more than the plan says" in why_not(model)

    def refuses(*_, **__):
        raise TypeError("unexpected keyword")

    monkeypatch.setattr(attention, "_attend", refuses)
    assert "TypeError" in why_not(model)
    monkeypatch.undo()
    attention.register()
    assert why_not(model) == ""
    with pytest.raises(UsageError, match="memory_tokens must be at least 0"):
        LocalPolicy(model, tokenizer, name="tiny", memory_tokens=-1)


def test_a_model_with_a_window_writes_by_its_own_cache(tokenizer):
    """Its keys are not all kept; samples end at different lengths, and are those of the whole text, computed anew for each token."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(1)
    config = MistralConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        vocab_size=len(tokenizer), sliding_window=5, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    policy = LocalPolicy(model, tokenizer, name="window", memory_tokens=1000)
    assert "window" in policy.keeps_nothing
    prompts = ["the step is", "is the sum of the numbers 5 or 6? let us see", "yes"]
    lengths = [9, 3, 6]
    drawn = policy.draw([Completions(prompt=p, max_tokens=n) for p, n in zip(prompts, lengths, strict=True)])
    for [one] in drawn:
        assert list(one.ids) == _written(policy, model, list(one.prompt), len(one.ids))
    assert {len(one.ids) for [one] in drawn} == {9, 3, 2}  # the last one ends by itself


def test_a_beam_search_computes_its_prefixes_once(model, tokenizer):
    """The policy of a beam search: what it computes of its prompts is what the search calls new, and little more."""
    from stepmark.models.scripted import ScriptedPRM
    from stepmark.records import Problem
    from stepmark.searches.base import Steps
    from stepmark.searches.beam import BeamSearch
    from stepmark.searches.run import models_of, run
    from stepmark.verifiers.base import load_verifier

    search = BeamSearch(width=2, expand=3, how=Steps(stop="t", max_tokens=12, max_steps=8, prompt="text"))
    prm = ScriptedPRM(lambda problem, steps: 1 / (2 + len("".join(steps)) % 7))
    problems = [Problem(text=f"is the sum of the numbers {n}?", id=str(n)) for n in range(3)]
    found = []
    for policy in pair(model, tokenizer):
        models, verifier = models_of(policy, prm), load_verifier("number")
        found.append(list(run(problems, search, models, verifier, store=MemoryReplies())))
    plain, keeping = found
    assert keeping == plain
    assert sum(one.cost.prompt for one in keeping) == policy.read.given
    assert sum(one.cost.writes for one in keeping) > 20
    new = sum(one.cost.new for one in keeping)
    assert new < policy.read.computed < sum(one.cost.prompt for one in keeping) / 2
