"""Requests spread over workers that die: a Ray in this process, every schedule of deaths that hypothesis thinks of."""

from __future__ import annotations

import sys
from collections import Counter
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_ray import FakeRay
from stepmark.backends import (
    BatchPolicy,
    BatchScorer,
    CachedPolicy,
    CachedPRM,
    CachedVerifier,
    Completion,
    Completions,
    Release,
    ScoreRequest,
    StepScore,
    VerdictRequest,
    all_of,
    run_tasks,
)
from stepmark.backends.cluster import LARGEST, Cluster, RayModel, RayWorkers, WorkerModels, cut
from stepmark.errors import BackendError
from stepmark.records import Verdict

KINDS = (Completions, VerdictRequest, ScoreRequest, Release)


def writes(count, n=1):
    return [
        Completions(prompt=f"question {number}", n=n, temperature=1.0, first=0) for number in range(count)
    ]


def reply(request):
    if isinstance(request, VerdictRequest):
        right = request.answer == request.gold
        return Verdict(outcome="match" if right else "mismatch", verifier="v", answer=request.answer, note="")
    if isinstance(request, ScoreRequest):
        return StepScore(score=len(request.steps) / 10)
    if isinstance(request, Release):
        return None
    texts = [f"{request.prompt}: {request.first + number}" for number in range(request.n)]
    return [Completion(text=text, finish="end", tokens=2) for text in texts]


def answer(requests, ready):
    replies = []
    for place, request in enumerate(requests):
        if isinstance(request, Completions) and request.prompt == "breaks":
            raise BackendError("the server went away")
        replies.append(reply(request))
        ready(place, replies[-1])
    return replies


def built():
    """What a worker builds, by name."""
    spent = Counter()

    def counting(requests, ready):
        spent["written"] += 2 * sum(request.n for request in requests)
        return answer(requests, ready)

    answers = dict.fromkeys(KINDS, ("it", answer)) | {Completions: ("it", counting)}
    return WorkerModels(answers=answers, counters=lambda: spent)


def started(ray, **options):
    """Workers on it; what they report goes to a list."""
    lines = []
    with mock.patch.dict(sys.modules, {"ray": ray}):
        workers = RayWorkers(f"{__name__}:built", {}, Cluster(ray="local"), tell=lines.append, **options)
    return workers, lines


def ask(ray, workers, requests):
    """A round; who was asked."""
    ray.given.clear()
    assert workers.answer(requests, lambda place, reply: None) == [reply(request) for request in requests]
    return {request: worker for worker, chunk in ray.given for request in chunk}


@settings(deadline=None)
@given(
    st.integers(0, 40),
    st.integers(1, 6),
    st.lists(st.integers(0, 5), max_size=60),
    # At most two deaths over any request: more are an error, tested below.
    st.dictionaries(st.integers(1, 6), st.integers(0, 6), max_size=2),
)
def test_whatever_dies_every_request_has_its_reply_and_is_reported_once(count, size, order, deaths):
    requests = writes(count, n=3)
    ray = FakeRay(size=size, order=order, deaths=deaths)
    workers, lines = started(ray)
    reported = []
    replies = workers.answer(requests, lambda place, reply: reported.append((place, reply)))
    assert replies == [reply(request) for request in requests]
    assert sorted(reported) == list(enumerate(replies))
    assert sum("will be asked again" in line for line in lines) == sum(ray.died.values())
    assert workers.counters.get("written", 0) == 6 * count
    # What was answered before a death is not asked again.
    asked = Counter(request for _, chunk in ray.given for request in chunk)
    assert sum(asked.values()) <= count + sum(ray.died.values()) * LARGEST


def test_a_request_that_kills_every_worker_is_named_and_the_others_are_recorded():
    requests = writes(30)
    ray = FakeRay(size=3, deadly=lambda request: request.prompt == "question 4")
    workers, _ = started(ray)
    reported = []
    with pytest.raises(BackendError, match=r"3 workers died over one request.*question 4") as caught:
        workers.answer(requests, lambda place, _: reported.append(place))
    assert "died: " in str(caught.value)
    assert sum(ray.died.values()) == 3
    assert 4 not in reported
    assert {0, 1, 2, 3} <= set(reported)


def test_a_failure_ends_the_round_after_what_is_under_way_is_kept():
    ray = FakeRay(size=2)
    workers, _ = started(ray)
    requests = [Completions(prompt="first"), Completions(prompt="breaks"), *writes(10)]
    reported = []
    with pytest.raises(BackendError, match=r"worker \d \(process .*\): the server went away"):
        workers.answer(requests, lambda place, _: reported.append(place))
    # What came before it in its chunk, and the other worker's chunk; the rest was not begun.
    assert sorted(reported) == [0, *list(cut(enumerate(requests), 2))[1]]


def test_workers_that_die_before_they_are_ready_end_the_run():
    ray = FakeRay()
    with (
        mock.patch.object(FakeRay, "get", side_effect=FakeRay.exceptions.RayError("The node died.")),
        pytest.raises(BackendError, match=r"no worker is left\. .* died 3 times before it was ready"),
    ):
        started(ray)
    assert not ray.is_initialized()


def test_without_room_a_run_ends_at_once_or_after_two_minutes_of_waiting_for_a_node():
    with pytest.raises(BackendError, match=r"a worker needs 1 CPU, the cluster has 1 node, 0 CPUs"):
        started(FakeRay(size=0))
    waited = []

    class Full(FakeRay):
        def wait(self, refs, *, num_returns, timeout):
            waited.append(timeout)
            return [], refs

    with (
        mock.patch.dict(sys.modules, {"ray": Full(size=0)}),
        pytest.raises(BackendError, match=r"for 120 s the cluster had no room"),
    ):
        RayWorkers(f"{__name__}:built", {}, Cluster(ray="local", ray_workers=2), tell=lambda line: None)
    assert sum(waited) == 120


@given(st.lists(st.integers(1, 200), max_size=60), st.integers(1, LARGEST))
def test_chunks_are_neighbours_and_small(sizes, limit):
    requests = {at: Completions(prompt=f"p{at}", n=n, temperature=1.0) for at, n in enumerate(sizes)}
    chunks = list(cut(requests.items(), limit))
    assert [place for chunk in chunks for place in chunk] == list(requests)
    for chunk in chunks:
        assert len(chunk) == 1 or sum(sizes[place] for place in chunk) <= limit


def test_a_chunk_is_of_one_type():
    ray = FakeRay(size=1)
    workers, _ = started(ray)
    verdicts = [VerdictRequest(answer=text, gold="1") for text in "0123"]
    ask(ray, workers, [request for pair in zip(writes(4), verdicts, strict=True) for request in pair])
    assert all(len(set(map(type, chunk))) == 1 for _, chunk in ray.given)


def test_tasks_come_to_the_same_with_workers_as_without():
    class Here(BatchPolicy):
        name = identity = "it"
        tokens_written = 0

        def complete_many(self, requests, ready=None):
            return answer(requests, ready)

    class Comparing:
        identity = "it"

        async def verify(self, given, gold):
            return reply(VerdictRequest(answer=given, gold=gold))

    def come_to(policy, prm, verifier):
        policy, prm, verifier = CachedPolicy(policy), CachedPRM(prm), CachedVerifier(verifier)

        async def task(number):
            first, second = await all_of(
                [
                    policy.complete(Completions(prompt=f"q{number % 3}", n=2, temperature=1.0)),
                    policy.complete(Completions(prompt="shared", temperature=1.0)),
                ]
            )
            verdict = await verifier.verify(first[0].text, "q1: 0")
            step = await prm.score_step(ScoreRequest(problem=f"p{number}", steps=("a", "b")))
            return [sample.text for sample in (*first, *second)], verdict.outcome, step.score

        return list(run_tasks(range(20), task, in_flight=8))

    ray = FakeRay(size=3, deaths={1: 1, 2: 3})
    workers, _ = started(ray)
    there = come_to(*(RayModel(workers, kind) for kind in (Completions, ScoreRequest, VerdictRequest)))
    assert there == come_to(Here(), BatchScorer("it", answer), Comparing())
    assert sum(ray.died.values()) == 2


# Homes.


def score(problem, *steps):
    return ScoreRequest(problem=problem, steps=steps or ("step",))


def release(problem):
    return Release(problem=problem, prefixes=(("step",),))


def test_a_problem_stays_with_its_worker_and_new_ones_are_dealt_out():
    ray = FakeRay(size=3)
    workers, _ = started(ray, homes=True)
    ask(ray, workers, [score("warms up", str(number)) for number in range(9)])  # until all are ready
    ask(ray, workers, [score(p) for p in "xyz"])
    first = {
        request.problem: worker for request, worker in ask(ray, workers, [score(p) for p in "abc"]).items()
    }
    assert sorted(first.values()) == [1, 2, 3]
    again = ask(ray, workers, [score(p, "step", str(k)) for p in "cab" for k in range(2)])
    assert {request.problem: worker for request, worker in again.items()} == first
    # The worker that has scored a problem is told what may go, and no other.
    assert ask(ray, workers, [release(p) for p in "ab"]) == {release(p): first[p] for p in "ab"}
    workers.answer([release("unread")], lambda place, reply: None)
    assert all(request.problem != "unread" for _, chunk in ray.given for request in chunk)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=20), max_size=6),
    st.integers(1, 4),
    st.lists(st.integers(0, 5), max_size=60),
    st.dictionaries(st.integers(1, 4), st.integers(0, 8), max_size=2),
)
def test_with_homes_too_every_request_has_its_reply(rounds, size, order, deaths):
    ray = FakeRay(size=size, order=order, deaths=deaths)
    workers, _ = started(ray, homes=True)
    for number, problems in enumerate(rounds):
        ask(ray, workers, [score(problem, str(number), str(k)) for k, problem in enumerate(problems)])
        workers.answer([release(problem) for problem in problems], lambda place, reply: None)
