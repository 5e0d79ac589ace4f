"""What computes behind the server: tiny models through the batcher, against the PRM alone; whole prefixes; memory."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from stepmark import load_prm
from stepmark.errors import UsageError
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Solution, StepScores
from stepmark.serving.backend import CachedBackend, WholeBackend, backend_of
from stepmark.serving.batcher import Batcher

torch.set_num_threads(1)


def load(zoo, name):
    built = zoo["implicit" if name.startswith("implicit") else name]
    reference = str(built.reference.folder) if name.startswith("implicit") else None
    family = name if name.startswith("implicit") else None
    return load_prm(str(built.folder), family=family, reference=reference, dtype="float32", device="cpu")


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def solutions(count, *, problems=4, seed=0):
    rng = random.Random(seed)
    words = ["12 * 3 = 36 pens", "so x = 6", "36 - 6 = 30", "Let x be 4.\n\nThen 2x = 8"]
    return [
        Solution.of(
            f"How many pens are left of {rng.randrange(problems)}?",
            [f"{rng.choice(words)} ({rng.randrange(3)})" for _ in range(rng.randint(1, 4))],
        )
        for _ in range(count)
    ]


def distinct(prm, asked):
    texts = [prm.encoder.encode(one).ids.tolist() for one in asked]
    return len({tuple(ids[:n]) for ids in texts for n in range(1, len(ids) + 1)})


@pytest.mark.parametrize("name", ["qwen-prm", "implicit-per-step"])
def test_many_clients_are_answered_right_and_nothing_is_computed_twice(zoo, name):
    prm, alone = load(zoo, name), load(zoo, name)
    unit = 0.001 if name.startswith("implicit") else 1.0
    asked = solutions(40)
    expected = list(alone.score_many(asked))
    order = list(range(40)) * 2
    random.Random(1).shuffle(order)

    async def scene():
        backend = backend_of(prm, memory_tokens=20_000)
        assert isinstance(backend, CachedBackend)
        batcher = Batcher(backend, token_budget=200, queue_tokens=100_000)
        await batcher.start()
        parts = [order[start : start + 3] for start in range(0, len(order), 3)]
        found = await asyncio.gather(*(batcher.score([asked[i] for i in part]) for part in parts))
        for part, results in zip(parts, found, strict=True):
            for i, result in zip(part, results, strict=True):
                assert [s / unit for s in result.scores] == pytest.approx(
                    [s / unit for s in expected[i].scores], abs=1e-5 if unit == 1.0 else 1e-4
                )
        assert prm.ledger.tokens_computed == prm.ledger.tokens_distinct == distinct(prm, asked)
        assert backend.memory == (distinct(prm, asked), 20_000, 0)
        assert prm.ledger.tokens_again == 0
        assert batcher.metrics.items._value.get() == 80
        assert (
            batcher.metrics.tokens_read._value.get()
            == prm.ledger.tokens_in
            == 2 * sum(len(prm.encoder.encode(s).ids) for s in asked)
        )
        await batcher.stop(grace=5)

    run(scene())


def test_a_batch_computes_its_budget_and_the_memory_keeps_its_bound(zoo):
    prm = load(zoo, "qwen-prm")
    asked = solutions(60, problems=30, seed=3)
    longest = max(len(prm.encoder.encode(s).ids) for s in asked)

    async def scene():
        backend = CachedBackend(prm, memory_tokens=3 * longest)
        batcher = Batcher(backend, token_budget=2 * longest, queue_tokens=100)
        computed = []
        compute = backend.compute

        def noting(works):
            before = prm.ledger.tokens_computed
            result = compute(works)
            computed.append(prm.ledger.tokens_computed - before)
            return result

        backend.compute = noting
        await batcher.start()
        found = await batcher.score(asked)
        assert all(isinstance(one, StepScores) for one in found)
        assert max(computed) <= 2 * longest
        assert len(computed) < len(asked)
        assert backend.session.pool.peak <= 3 * longest
        assert batcher.backend.memory[2] > 0
        await batcher.stop(grace=5)

    run(scene())


def test_prefixes_solutions_and_tokens_share_one_tree(zoo):
    prm, alone = load(zoo, "qwen-prm"), load(zoo, "qwen-prm")
    problem, steps = "How many pens are left?", ("12 * 3 = 36 pens", "36 - 6 = 30")
    truth = alone.score(problem, steps=list(steps))

    async def scene():
        batcher = Batcher(backend_of(prm), token_budget=1000, queue_tokens=10_000)
        await batcher.start()
        (first,) = await batcher.score([Solution.of(problem, steps[:1])])
        (whole,) = await batcher.score([Solution.of(problem, steps)])
        assert [*first.scores, whole.scores[-1]] == pytest.approx(truth, abs=1e-5)
        ids = prm.encoder.encode(Solution.of(problem, steps)).ids
        assert whole.problem_tokens + sum(whole.step_tokens) == len(ids) == prm.ledger.tokens_computed
        assert first.step_tokens == whole.step_tokens[:1]
        (rows,) = await batcher.rows([ids.tolist()], activation=True)
        assert [row[1] for row in rows.rows] == pytest.approx(truth, abs=1e-5)
        assert rows.tokens == len(ids)
        assert prm.ledger.tokens_computed == len(ids)  # all of that was one path
        assert batcher.backend.memory[0] == len(ids)
        await batcher.stop(grace=5)

    run(scene())


def test_whole_prefixes_for_what_keeps_no_state(zoo):
    prm = ScriptedPRM({"good": 0.9, "bad": 0.1}, default_threshold=0.5)
    backend = backend_of(prm)
    assert isinstance(backend, WholeBackend)
    assert (backend.caches, backend.pooling, backend.max_tokens, backend.memory) == (
        False,
        False,
        None,
        (0, 0, 0),
    )
    outcome = backend_of(load_prm(str(zoo["orm"].folder), dtype="float32", device="cpu"))
    assert isinstance(outcome, WholeBackend)
    with pytest.raises(UsageError, match="an outcome model"):
        CachedBackend(outcome.prm)

    async def scene():
        batcher = Batcher(backend, token_budget=1000, queue_tokens=10_000)
        await batcher.start()
        found = await batcher.score([Solution.of("p", ["good", "bad"]), Solution.of("p", ["bad"])])
        assert [one.scores for one in found] == [(0.9, 0.1), (0.1,)]
        with pytest.raises(UsageError, match="no rows"):
            await batcher.rows([[1]])
        await batcher.stop(grace=5)

    run(scene())
