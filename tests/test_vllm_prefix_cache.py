"""The recipe `vllm_prefix_cache.py`: the rows of whole texts, whatever the engine leaves out.

The fast tests have an engine of their own, which leaves out the rows of cached blocks as vLLM does. The slow one starts the recipe with the Python that
`STEPMARK_VLLM_PYTHON` names.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vllm_server import Vllm, needs_vllm

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "vllm_prefix_cache.py"
pytestmark = pytest.mark.skipif(not RECIPE.is_file(), reason="recipes are not here (an installed package)")
BLOCK = 4


def recipe():
    spec = importlib.util.spec_from_file_location("vllm_prefix_cache", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def truth(ids):
    """A row for each token that depends on all tokens before it."""
    rows, state = [], 1
    for token in ids:
        state = (state * 31 + token) % 10_007
        rows.append([float(state), -float(state)])
    return torch.tensor(rows)


class Engine:
    """Caches full blocks from the moment that a request is taken, and gives rows for the rest alone; always at least one."""

    def __init__(self):
        self.cached = set()
        self.computed = self.whole = 0

    async def encode(self, prompt, params, _id):
        ids = prompt["prompt_token_ids"]
        first = 0
        while not params.skip and first + BLOCK < len(ids) and tuple(ids[: first + BLOCK]) in self.cached:
            first += BLOCK
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            self.cached.add(tuple(ids[:end]))
        self.computed += len(ids) - first
        self.whole += params.skip
        await asyncio.sleep(random.random() / 500)
        yield SimpleNamespace(outputs=SimpleNamespace(data=truth(ids)[first:]))


def texts(engine, blocks=1000):
    def params(skip_reading_prefix_cache):
        return SimpleNamespace(skip=skip_reading_prefix_cache)

    return recipe().PrefixRows(engine, params, block=BLOCK, blocks=blocks)


def grown(rng, rounds=6, width=4):
    """Rounds of a search: each prefix grows by some tokens, in several ways."""
    prefixes = [[rng.randrange(9) for _ in range(10)]]
    for _ in range(rounds):
        prefixes = [
            [*rng.choice(prefixes), *(rng.randrange(9) for _ in range(rng.randrange(1, 7)))]
            for _ in range(width)
        ]
        yield prefixes


def test_rows_are_those_of_whole_texts_and_what_was_read_is_not_computed_again():
    rng, engine = random.Random(0), Engine()

    async def search():
        store = texts(engine)
        sent = cached = 0
        for prefixes in grown(rng):
            found = await asyncio.gather(*(store.of(ids) for ids in prefixes))
            for ids, (rows, count) in zip(prefixes, found, strict=True):
                assert torch.equal(rows, truth(ids))
                sent, cached = sent + len(ids), cached + count
        return sent, cached

    sent, cached = asyncio.run(search())
    assert engine.whole == 0
    assert engine.computed == sent - cached
    assert cached > sent / 2


def test_rows_that_were_forgotten_are_computed_again():
    rng, engine = random.Random(1), Engine()

    async def search():
        store = texts(engine, blocks=2)
        for prefixes in grown(rng):
            for ids in prefixes:
                rows, _ = await store.of(ids)
                assert torch.equal(rows, truth(ids))

    asyncio.run(search())
    assert engine.whole > 0


def test_two_requests_at_once_share_what_one_of_them_computes():
    ids = list(range(20))

    async def both():
        engine = Engine()
        store = texts(engine)
        (one, _), (other, cached) = await asyncio.gather(store.of(ids), store.of([*ids, 3]))
        assert torch.equal(one, truth(ids)) and torch.equal(other, truth([*ids, 3]))
        assert cached == 20 and engine.whole == 0

    asyncio.run(both())


@pytest.mark.slow
@needs_vllm
def test_a_growing_search_on_vllm_has_the_scores_of_the_process_and_reads_the_cache(tmp_path):
    from stepmark import load_prm
    from stepmark.records import Solution
    from test_publish_vllm import TWO, written

    made = written(tmp_path, "qwen2", TWO, tied=False)
    words = [str(made.folder), "--step-tag", str(made.tag)]
    words += ["--engine", '{"dtype": "float32", "enforce_eager": true, "block_size": 32}']
    here = load_prm(str(made.folder), dtype="float32", device="cpu")
    rng = random.Random(0)
    with Vllm(words, tmp_path / "log", recipe=RECIPE) as url:
        there = load_prm(url, tokenizer=str(made.folder))
        beams = [()]
        for _ in range(6):
            steps = [" ".join(str(rng.randrange(99)) for _ in range(12)) for _ in range(8)]
            beams = [(*rng.choice(beams), step) for step in steps]
            solutions = [Solution.of("Ann has 3 boxes of 12 pens. " * 3, list(beam)) for beam in beams]
            for one, other in zip(there.score_many(solutions), here.score_many(solutions), strict=True):
                assert one.scores == pytest.approx(other.scores, abs=1e-5)
        assert there.ledger.tokens_computed < 0.5 * there.ledger.tokens_in
