"""Queue and batches: fairness, budgets, leaving early, failures, draining; each answer to its own request."""

from __future__ import annotations

import asyncio
import random

import pytest

pytest.importorskip("fastapi", reason="needs fastapi: pip install stepmark[serve]")

from hypothesis import given, settings
from hypothesis import strategies as st

from serving_backends import Ruled, solution
from stepmark.errors import BackendError
from stepmark.records import Refusal, StepScores
from stepmark.serving.batcher import Batcher
from stepmark.serving.errors import Refused


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def until(condition):
    """Turns of the loop, and of the tokenizer's thread, until something is so."""
    for _ in range(50_000):
        if condition():
            return
        await asyncio.sleep(0.0005)
    raise AssertionError("it never came")


def scores(found):
    return [one.scores if isinstance(one, StepScores) else type(one).__name__ for one in found]


def waiting(batcher):
    """Requests and tokens, as Prometheus reads them."""
    return batcher.metrics.queue_requests._value.get(), batcher.metrics.queue_tokens._value.get()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(1, 50),
)
def test_batches_keep_their_budget_and_lose_nothing(requests, budget):
    async def scene():
        backend = Ruled()
        batcher = Batcher(backend, token_budget=budget, queue_tokens=10_000)
        asking = [
            asyncio.create_task(batcher.score([solution("x" * size) for size in sizes])) for sizes in requests
        ]
        await until(lambda: waiting(batcher)[0] == len(requests))
        await batcher.start()
        for sizes, one in zip(requests, asking, strict=True):
            assert scores(await one) == [(float(size),) for size in sizes]
        await batcher.stop(grace=5)
        assert all(sum(map(len, batch)) <= budget or len(batch) == 1 for batch in backend.batches)
        assert sum(map(len, backend.batches)) == sum(map(len, requests))

    run(scene())


def test_small_ones_are_finished_one_after_the_other_and_a_large_one_takes_turns():
    async def scene():
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=60, queue_tokens=10_000)
        texts = [["l" * 10] * 100, ["f" * 10] * 2, ["s" * 10] * 2]
        asking = []
        for some in texts:
            asking.append(asyncio.create_task(batcher.score([solution(text) for text in some])))
            await until(lambda: waiting(batcher)[0] == len(asking))
        await batcher.start()
        await until(lambda: backend.batches)
        # A turn is half a batch.
        assert [text[0] for text in backend.batches[0]] == ["l", "l", "l", "f", "f", "s"]
        late = asyncio.create_task(batcher.score([solution("z" * 10)]))
        await until(lambda: waiting(batcher)[0] == 4)
        backend.gate.release()
        await until(lambda: len(backend.batches) == 2)
        # What has had the fewest tokens first; one that comes late has no credit for the time before.
        assert [text[0] for text in backend.batches[1]] == ["s", "z", "l", "l", "l", "l"]
        backend.gate.release(100)
        assert len(await asking[0]) == 100
        await late
        await batcher.stop(grace=5)

    run(scene())


def test_solutions_of_one_problem_stand_together():
    async def scene():
        backend = Ruled()
        batcher = Batcher(backend, token_budget=100, queue_tokens=1000)
        await batcher.start()
        found = await batcher.score([solution(f"{i % 3}" * (i + 1), problem=f"p{i % 3}") for i in range(12)])
        assert scores(found) == [(float(i + 1),) for i in range(12)]
        assert [text[0] for batch in backend.batches for text in batch] == [*"0000", *"1111", *"2222"]
        await batcher.stop(grace=5)

    run(scene())


def test_what_is_cached_costs_nothing_but_does_not_make_a_batch_endless():
    async def scene():
        backend = Ruled()
        backend.fresh = lambda work, beside: 0
        batcher = Batcher(backend, token_budget=50, queue_tokens=100_000)
        await batcher.start()
        await batcher.score([solution("x" * 10)] * 500)
        await batcher.stop(grace=5)
        assert max(map(len, backend.batches)) == 50  # each counts as a token at least

    run(scene())


def test_answers_are_in_order_and_what_cannot_be_read_is_a_refusal():
    async def scene():
        backend = Ruled()
        batcher = Batcher(backend, token_budget=100, queue_tokens=1000)
        await batcher.start()
        found = await batcher.score([solution("abc", "d"), solution("?"), solution("#"), solution("ef")])
        assert scores(found) == [(3.0, 1.0), "Refusal", "Refusal", (2.0,)]
        assert [str(one.error) for one in found if isinstance(one, Refusal)] == ["it asks", "too much"]
        assert found[1].solution.texts == ("?",)
        assert await batcher.score([]) == []
        (rows,) = await batcher.rows([[4, 5]])
        assert (rows.rows, rows.tokens) == (((4.0,), (5.0,)), 2)
        assert waiting(batcher) == (0, 0)
        await batcher.stop(grace=5)
        assert {kind for kind, _ in backend.threads} == {"prepare", "compute"}
        assert len(set(backend.threads)) == 2  # one thread each

    run(scene())


def test_what_comes_while_a_batch_is_computed_is_the_next_batch():
    async def scene():
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=100, queue_tokens=1000)
        await batcher.start()
        first = asyncio.create_task(batcher.score([solution("a")]))
        await until(lambda: len(backend.batches) == 1)
        others = [asyncio.create_task(batcher.score([solution(text)])) for text in ("bb", "cc", "dd")]
        await until(lambda: waiting(batcher) == (4, 6))
        assert batcher.metrics.computing_tokens._value.get() == 1
        backend.gate.release(2)
        assert scores(await first) == [(1.0,)]
        assert [scores(one) for one in await asyncio.gather(*others)] == [[(2.0,)]] * 3
        assert backend.batches == [["a"], ["bb", "cc", "dd"]]
        await batcher.stop(grace=5)

    run(scene())


def test_one_solution_does_not_wait_for_a_thousand():
    async def scene():
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=20, queue_tokens=1000)
        await batcher.start()
        large = asyncio.create_task(batcher.score([solution("xx")] * 1000))
        await until(lambda: len(backend.batches) == 1)
        # It is twice as large as the queue and leaves half of it to others.
        small = asyncio.create_task(batcher.score([solution("abc")]))
        await until(lambda: waiting(batcher)[0] == 2)
        backend.gate.release(2)
        assert scores(await small) == [(3.0,)]
        assert not large.done()
        assert len(backend.batches) <= 3
        assert all(sum(map(len, batch)) <= 20 for batch in backend.batches)
        large.cancel()
        await until(lambda: waiting(batcher) == (0, 0))
        backend.gate.release(3)
        await batcher.stop(grace=5)
        assert len(backend.batches) <= 4  # nobody computes for one that left

    run(scene())


def test_a_full_queue_refuses_and_tells_when_to_come_back():
    async def scene():
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=10, queue_tokens=25)
        await batcher.start()
        computing = asyncio.create_task(batcher.score([solution("a" * 10)]))
        await until(lambda: len(backend.batches) == 1)
        waits = [asyncio.create_task(batcher.score([solution(c * 10)])) for c in "bc"]
        await until(lambda: waiting(batcher) == (3, 20))
        with pytest.raises(Refused, match="6 tokens, 20 wait, and the queue takes 25") as caught:
            await batcher.score([solution("c" * 6)])
        assert caught.value.status_code == 429
        assert int(caught.value.headers["retry-after"]) >= 1
        # What can never be read is said to be so, whatever the load.
        assert scores(await batcher.score([solution("~" * 100)])) == ["Refusal"]
        fitting = asyncio.create_task(batcher.score([solution("d" * 5)]))
        await until(lambda: waiting(batcher) == (4, 25))
        own = asyncio.create_task(batcher.score([solution("e" * 9)], bounded=False))
        await until(lambda: waiting(batcher) == (5, 34))
        backend.gate.release(20)
        await asyncio.gather(computing, *waits, fitting, own)
        await batcher.stop(grace=5)

    run(scene())


def test_a_request_that_breaks_the_model_fails_alone():
    async def scene():
        backend = Ruled()
        batcher = Batcher(backend, token_budget=100, queue_tokens=1000)
        tasks = [
            asyncio.create_task(batcher.score([solution(t) for t in texts]))
            for texts in (["a", "b"], ["!", "c"], ["dd"])
        ]
        await until(lambda: waiting(batcher)[0] == 3)
        await batcher.start()
        good, bad, other = await asyncio.gather(*tasks, return_exceptions=True)
        assert (scores(good), scores(other)) == ([(1.0,), (1.0,)], [(2.0,)])
        assert isinstance(bad, BackendError)
        assert str(bad) == "it broke"
        assert [sorted(batch) for batch in backend.batches[1:]] == [["a", "b"], ["!", "c"], ["dd"]]
        assert scores(await batcher.score([solution("eee")])) == [(3.0,)]
        assert batcher.metrics.batches_failed._value.get() == 2
        await batcher.stop(grace=5)

    run(scene())


def test_it_finishes_what_waits_and_takes_nothing_new():
    async def scene():
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=2, queue_tokens=1000)
        await batcher.start()
        tasks = [asyncio.create_task(batcher.score([solution("aa")])) for _ in range(3)]
        await until(lambda: waiting(batcher)[0] == 3)
        stopping = asyncio.create_task(batcher.stop(grace=20))
        await until(lambda: batcher.draining)
        with pytest.raises(Refused) as caught:
            await batcher.score([solution("b")])
        assert caught.value.status_code == 503
        backend.gate.release(3)
        assert [scores(one) for one in await asyncio.gather(*tasks)] == [[(2.0,)]] * 3
        await stopping

    run(scene())


def test_after_its_time_of_grace_it_refuses_what_waits():
    async def scene():
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=2, queue_tokens=1000)
        await batcher.start()
        tasks = [asyncio.create_task(batcher.score([solution("aa")])) for _ in range(2)]
        await until(lambda: waiting(batcher)[0] == 2)
        stopping = asyncio.create_task(batcher.stop(grace=0.01))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [one.status_code for one in found] == [503, 503]
        backend.gate.release(2)
        await stopping

    run(scene())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000))
def test_results_belong_to_their_request_whatever_else_happens(seed):
    """Random requests, some of which leave or break the model; what is answered is right."""

    async def scene():
        rng = random.Random(seed)
        batcher = Batcher(Ruled(), token_budget=rng.choice([3, 12, 80]), queue_tokens=10_000)
        if rng.random() < 0.5:
            await batcher.start()

        async def ask():
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            texts = ["x" * rng.randint(1, 9) for _ in range(rng.randint(1, 6))]
            if rng.random() < 0.15:
                texts[rng.randrange(len(texts))] = "!"
            return texts, await batcher.score([solution(t, problem=f"p{len(t) % 2}") for t in texts])

        tasks = [asyncio.create_task(ask()) for _ in range(12)]
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        for task in rng.sample(tasks, 3):
            task.cancel()
        await batcher.start()
        for one in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(one, BaseException):
                assert isinstance(one, BackendError | asyncio.CancelledError)
                continue
            texts, results = one
            assert "!" not in texts
            assert scores(results) == [(float(len(text)),) for text in texts]
        await batcher.stop(grace=5)
        assert waiting(batcher) == (0, 0)

    run(scene())
