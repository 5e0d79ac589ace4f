"""A base model of two small layers to train graders on, and branching examples with labels of every kind."""

from __future__ import annotations

import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stepmark.models.spec import TextLayout
from stepmark.records import Problem, Solution, Step
from stepmark.training.examples import Example, Target
from stepmark.training.net import Net
from stepmark.training.settings import Weights
from tiny_language_model import tiny_tokenizer

LAYOUT = TextLayout(opening="{problem}\n", mark="\n<file_sep>", special_tokens=False)


def tokenizer():
    """With the marker of `LAYOUT`."""
    made = tiny_tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<file_sep>"]})
    return made


def write_base(folder, *, tied=True, hidden=32, layers=2, context=256, words=None):
    """A Llama with random weights, wide enough apart that there is something to learn from."""
    words = words or tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.25,
        pad_token_id=None,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def weights_of(*, rank=4, **weights):
    """A LoRA adapter of a rank, or with None all weights; in float32 unless said otherwise."""
    lora = {"full": True} if rank is None else {"lora_rank": rank, "lora_alpha": 32.0}
    return Weights(**({"dtype": "float32", "device": "cpu"} | lora | weights))


def net_for(base, objective, *, max_tokens=200, **weights):
    """A network in training as `objective` reads it, in float32 unless said otherwise."""
    spec = objective.spec(LAYOUT, str(base))
    return Net(base, spec, weights_of(**weights), max_tokens=max_tokens, seed=0)


def target(value):
    """A target of a bare number, a target, or None."""
    return value if value is None or isinstance(value, Target) else Target(value=float(value))


def example(problem, steps, values, *, outcome=None, source=None, where="", observations=()):
    """`values`: numbers, targets or None, one a step."""
    seen = (*observations, *[""] * (len(steps) - len(observations)))
    return Example(
        solution=Solution(
            problem=Problem(text=problem, source=source),
            steps=tuple(Step(text=s, observation=o) for s, o in zip(steps, seen, strict=True)),
        ),
        targets=tuple(target(v) for v in values),
        outcome=outcome,
        where=where,
    )


def rated(rating):
    """What people say: neutral counts as right."""
    return Target(value=0.0 if rating == -1 else 1.0, rating=rating)


def counted(successes, trials):
    """What rollouts say."""
    return Target(value=successes / trials, successes=successes, trials=trials)


def branching(problems=5, seed=0, *, rows=6, make=None, mask=0.2):
    """Rows of few words that share many prefixes. A prefix has one target in all rows, and each row masks some.

    Args:
        make: target of a random source; by default right or wrong.
    """
    rng = random.Random(seed)
    known = {}
    result = {}
    make = make or (lambda dice: Target(value=float(dice.random() < 0.5)))
    for p in range(problems):
        for _ in range(rows):
            steps = tuple(f"{rng.choice('xy')}{i} = {rng.randint(0, 1)}" for i in range(rng.randint(1, 4)))
            values = []
            for n in range(len(steps)):
                key = (p, *steps[: n + 1])
                known.setdefault(key, make(rng))
                values.append(None if rng.random() < mask else known[key])
            if any(v is not None for v in values):
                outcome = known.setdefault((p, steps, "outcome"), rng.random() < 0.5)
                result[p, steps] = example(f"problem {p}", steps, values, outcome=outcome)
    return list(result.values())
