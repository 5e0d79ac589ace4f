"""Queue and batches: fairness, budgets, leaving early, failures, draining; each answer to its own request."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_backends import Clock, Ruled, solution
from stepmark.errors import BackendError, InputError
from stepmark.records import Problem, Refusal, StepScores
from stepmark.serving.backend import Growth, Prepared, Whole
from stepmark.serving.batcher import Batcher, BusyError, DrainingError, FairQueue, LateError


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def until(condition):
    """Turns of the loop, and of the tokeniser's thread, until something is so."""
    for _ in range(50_000):
        if condition():
            return
        await asyncio.sleep(0.0005)
    raise AssertionError("it never came")


def scores(found):
    return [one.scores if isinstance(one, StepScores) else type(one).__name__ for one in found]


# The queue alone.


def work(text, problem="p", tokens=None):
    return Prepared(ask=Whole(solution=solution(text, problem=problem)), tokens=tokens or len(text))


def whole_cost(one, beside):
    return one.tokens


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(1, 50),
)
def test_batches_keep_their_budget_and_lose_nothing(lanes, budget):
    queue = FairQueue()
    for owner, sizes in enumerate(lanes):
        queue.put(owner, [(i, work("x", tokens=size)) for i, size in enumerate(sizes)])
    assert queue.tokens == sum(map(sum, lanes))
    seen = []
    while len(queue):
        batch = queue.take(budget, whole_cost)
        size = sum(one.work.tokens for one in batch)
        assert size <= budget or len(batch) == 1
        seen += [(one.owner, one.index) for one in batch]
    assert queue.tokens == 0
    assert queue.take(budget, whole_cost) == []
    assert sorted(seen) == [(o, i) for o, sizes in enumerate(lanes) for i in range(len(sizes))]


def test_small_ones_are_finished_one_after_the_other_and_a_large_one_takes_turns():
    queue = FairQueue(quantum=30)
    queue.put("large", [(i, work("x" * 10)) for i in range(100)])
    for owner in ("first", "second"):
        queue.put(owner, [(i, work("y" * 10)) for i in range(2)])
    owners = [one.owner for one in queue.take(100, whole_cost)]
    assert owners == ["large"] * 3 + ["first"] * 2 + ["second"] * 2 + ["large"] * 3
    queue.put("late", [(0, work("z" * 10))])
    owners = [one.owner for one in queue.take(100, whole_cost)]
    assert owners.index("late") <= 3


def test_solutions_of_one_problem_stand_together():
    queue = FairQueue()
    queue.put("one", [(i, work("x", problem=f"p{i % 3}")) for i in range(12)])
    order = [one.work.ask.key for one in queue.take(100, whole_cost)]
    assert order == ["p0"] * 4 + ["p1"] * 4 + ["p2"] * 4


def test_what_is_at_hand_costs_nothing_but_does_not_make_a_batch_endless():
    queue = FairQueue()
    queue.put("one", [(i, work("x" * 10)) for i in range(1000)])
    batch = queue.take(50, lambda one, beside: 0)
    assert len(batch) == 50  # each counts as a token at least
    beside_of = []
    queue.take(50, lambda one, beside: beside_of.append(beside) or 25)
    assert [one is None for one in beside_of] == [True, False, False]


# The batcher.


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
        grown, bad = await batcher.extend([Growth(problem=Problem(text="p"), text=t) for t in ("abcd", "?")])
        assert grown.graded.score == 4.0
        assert isinstance(bad, InputError)
        batcher.release([grown])
        figures = batcher.figures
        assert (figures.requests, figures.answered, figures.refusals) == (3, 3, 3)
        assert (figures.waiting_requests, figures.waiting_tokens, figures.computing_tokens) == (0, 0, 0)
        await batcher.stop(grace=5)
        assert backend.released == ["abcd"]
        assert {kind for kind, _ in backend.threads} == {"prepare", "compute"}
        assert len(backend.threads) == 2  # one thread each

    run(scene())


def test_what_comes_while_a_batch_is_computed_is_the_next_batch():
    async def scene():
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=100, queue_tokens=1000)
        await batcher.start()
        first = asyncio.create_task(batcher.score([solution("a")]))
        await until(lambda: len(backend.batches) == 1)
        others = [asyncio.create_task(batcher.score([solution(text)])) for text in ("bb", "cc", "dd")]
        await until(lambda: batcher._queue.tokens == 6)
        assert batcher.figures.computing_tokens == 1
        for _ in range(2):
            backend.gate.release()
        assert scores(await first) == [(1.0,)]
        assert [scores(one) for one in await asyncio.gather(*others)] == [[(2.0,)]] * 3
        assert backend.batches == [["a"], ["bb", "cc", "dd"]]
        await batcher.stop(grace=5)

    run(scene())


def test_one_solution_does_not_wait_for_a_thousand():
    async def scene():
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=20, queue_tokens=100_000)
        await batcher.start()
        large = asyncio.create_task(batcher.score([solution("xx")] * 1000))
        await until(lambda: len(backend.batches) == 1 and batcher._estimated == 0)
        small = asyncio.create_task(batcher.score([solution("abc")]))
        await until(lambda: len(batcher._queue) == 2)
        backend.gate.release()
        backend.gate.release()
        assert scores(await small) == [(3.0,)]
        assert not large.done()
        assert len(backend.batches) <= 3
        assert all(sum(map(len, batch)) <= 20 for batch in backend.batches)
        large.cancel()
        await until(lambda: batcher._queue.tokens == 0)
        for _ in range(3):
            backend.gate.release()
        await batcher.stop(grace=5)
        assert len(backend.batches) <= 4  # nobody computes for one that left
        assert (batcher.figures.gone, batcher.figures.waiting_tokens) == (1, 0)

    run(scene())


def test_the_deadline_passes_while_it_is_computed():
    async def scene():
        clock = Clock()
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=100, queue_tokens=1000, clock=clock)
        await batcher.start()
        asking = asyncio.create_task(batcher.score([solution("aa")], deadline=clock.now + 1000))
        await until(lambda: backend.batches)
        (request,) = batcher._live
        batcher._watch(request)  # as its timer does: too early
        assert not request.answer.done()
        clock.now += 1000
        batcher._watch(request)
        with pytest.raises(LateError):
            await asking
        assert backend.batches == [["aa"]]  # it was in work, and is finished for nobody
        backend.gate.release()
        backend.gate.release()
        assert scores(await batcher.score([solution("bb")])) == [(2.0,)]
        await batcher.stop(grace=5)

    run(scene())


def test_a_full_queue_refuses_and_tells_when_to_come_back():
    async def scene():
        clock = Clock()
        backend = Ruled(gated=True, clock=clock, seconds=2.0)
        batcher = Batcher(backend, token_budget=10, queue_tokens=25, clock=clock)
        await batcher.start()
        backend.gate.release()
        await batcher.score([solution("x" * 10)])  # 10 tokens in 2 seconds
        assert batcher.figures.tokens_per_second == 5.0
        computing = asyncio.create_task(batcher.score([solution("a" * 10)]))
        await until(lambda: len(backend.batches) == 2)
        waiting = asyncio.create_task(batcher.score([solution("b" * 20)]))
        await until(lambda: batcher.figures.waiting_tokens == 20)
        with pytest.raises(
            BusyError, match="asked were about 6 tokens, 20 wait, and the queue takes 25"
        ) as caught:
            await batcher.score([solution("c" * 6)])
        assert caught.value.retry_after == (20 + 10) / 5.0
        fitting = asyncio.create_task(batcher.score([solution("d" * 5)]))
        await until(lambda: batcher.figures.waiting_tokens == 25)
        for _ in range(3):
            backend.gate.release()
        await asyncio.gather(computing, waiting, fitting)
        assert batcher.figures.busy == 1
        # One that is larger than the queue is taken when nothing waits, and computed a budget at a time.
        for _ in range(10):
            backend.gate.release()
        assert len(await batcher.score([solution("e" * 5)] * 20)) == 20
        assert all(sum(map(len, batch)) <= 10 for batch in backend.batches if "e" * 5 in batch)
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
        await until(lambda: len(batcher._queue) == 3)
        await batcher.start()
        good, bad, other = await asyncio.gather(*tasks, return_exceptions=True)
        assert (scores(good), scores(other)) == ([(1.0,), (1.0,)], [(2.0,)])
        assert isinstance(bad, BackendError)
        assert str(bad) == "it broke"
        assert [sorted(batch) for batch in backend.batches[1:]] == [["a", "b"], ["!", "c"], ["dd"]]
        assert scores(await batcher.score([solution("eee")])) == [(3.0,)]
        figures = batcher.figures
        assert (figures.failed, figures.failed_batches, figures.batches, figures.answered) == (1, 2, 5, 3)
        await batcher.stop(grace=5)

    run(scene())


def test_it_finishes_what_waits_and_takes_nothing_new():
    async def scene():
        backend = Ruled(gated=True)
        batcher = Batcher(backend, token_budget=2, queue_tokens=1000)
        await batcher.start()
        tasks = [asyncio.create_task(batcher.score([solution("aa")])) for _ in range(3)]
        await until(lambda: len(batcher._live) == 3)
        stopping = asyncio.create_task(batcher.stop(grace=20))
        await until(lambda: batcher.draining)
        with pytest.raises(DrainingError, match="shutting down"):
            await batcher.score([solution("b")])
        for _ in range(3):
            backend.gate.release()
        assert [scores(one) for one in await asyncio.gather(*tasks)] == [[(2.0,)]] * 3
        await stopping

    run(scene())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000))
def test_results_belong_to_their_request_whatever_else_happens(seed):
    """Random requests, some of which leave, are late or break the model; what is answered is right, and all is given back."""

    async def scene():
        rng = random.Random(seed)
        backend = Ruled()
        batcher = Batcher(backend, token_budget=rng.choice([3, 12, 80]), queue_tokens=10_000)
        if rng.random() < 0.5:
            await batcher.start()

        async def ask(number):
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            texts = ["x" * rng.randint(1, 9) for _ in range(rng.randint(1, 6))]
            if rng.random() < 0.15:
                texts[rng.randrange(len(texts))] = "!"
            if number % 2:
                return texts, await batcher.score([solution(t, problem=f"p{len(t) % 2}") for t in texts])
            growths = [Growth(problem=Problem(text="p"), text=t) for t in texts]
            return texts, await batcher.extend(growths)

        tasks = [asyncio.create_task(ask(number)) for number in range(12)]
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        for task in rng.sample(tasks, 3):
            task.cancel()
        await batcher.start()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        grown = []
        for one in found:
            if isinstance(one, BaseException):
                assert isinstance(one, BackendError | asyncio.CancelledError)
                continue
            texts, results = one
            assert "!" not in texts
            assert len(results) == len(texts)
            for text, result in zip(texts, results, strict=True):
                if isinstance(result, StepScores):
                    assert result.scores == (float(len(text)),)
                else:
                    assert result.graded.score == float(len(text))
                    grown.append(result)
        batcher.release(grown)
        await batcher.stop(grace=5)
        assert backend.kept == 0
        figures = batcher.figures
        assert (figures.waiting_requests, figures.waiting_tokens, figures.computing_tokens) == (0, 0, 0)
        assert figures.requests == figures.answered + figures.gone + figures.failed

    run(scene())
