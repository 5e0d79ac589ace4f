"""The client of a score server, against one that is written by hand: what is sent, sent again, waited for, believed and refused."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from score_servers import Words, error
from stepmark import Solution
from stepmark.backends import ScoreRequest, StepScore
from stepmark.errors import (
    BackendError,
    InputError,
    MarkerInTextError,
    TooLongError,
    UnreachableError,
    UsageError,
)
from stepmark.models.http import Patience
from stepmark.models.remote.client import RemotePRM
from stepmark.records import GradedSolution, Problem, Refusal, Step

ADDRESS = "http://there:8000"


class Time:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now, self.slept = 100.0, []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self):
        return self.now


def remote(server, time=None, **more):
    time = time or Time()
    return RemotePRM(
        ADDRESS, transport=server.transport, sleep=time.sleep, clock=time, rng=random.Random(0), **more
    )


def in_turn(*answers):
    """A server's `before`: these, one after the other (an exception is raised), and then as it should be."""
    waiting = list(answers)

    def before(path, body):
        if not waiting or not path.startswith("/v1/s"):
            return None
        one = waiting.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    return before


def solutions(count, words=1):
    return [
        Solution.of(f"problem {i // 3}", [f"step{i}" + " word" * (words - 1)], id=f"n{i}")
        for i in range(count)
    ]


# -- One solution ----------------------------------------------------------------------------------------------


def test_what_is_sent():
    server = Words()
    with remote(server) as prm:
        graded = prm.grade("What is it?", steps=["one", "one two three"], threshold=0.4)
    assert isinstance(graded, GradedSolution)
    assert (graded.scores, graded.score, graded.aggregate, graded.first_error) == (
        (1.0, 1 / 3),
        1 / 3,
        "min",
        1,
    )
    assert graded.prm == "words"
    assert (prm.ledger.solutions, prm.ledger.steps, prm.ledger.tokens_in) == (1, 2, 3 + 4)
    [body] = server.asked("/v1/score")
    assert body.pop("timeout") == pytest.approx(570)  # 0.95 of what is waited for
    # Aggregates, thresholds and checks are made here.
    assert body == {
        "solutions": [{"problem": "What is it?", "steps": ["one", "one two three"]}],
        "aggregate": "min",
        "checks": "none",
        "model": "words",
    }


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(UsageError, match=r"found 'http://…@there:8000'.*STEPMARK_API_KEY") as told:
        RemotePRM("http://me:secret@there:8000")
    assert "secret" not in str(told.value)


# -- Again, and not again --------------------------------------------------------------------------------------


def busy(seconds, status=429):
    return error(status, "the queue is full", type="busy", headers={"Retry-After": str(seconds)})


def test_a_server_that_says_when_to_come_again_is_obeyed():
    time, server = Time(), Words(in_turn(busy(3), busy(2, 503), busy(1)))
    with remote(server, time, patience=Patience(retries=0)) as asking:  # being busy is no failure
        assert asking.score("p", steps=["a"]) == [1.0]
    assert len(server.asked("/v1/score")) == 4
    for slept, asked in zip(time.slept, (3, 2, 1), strict=True):
        assert asked <= slept <= asked + 0.5


def test_failures_are_tried_again_after_growing_pauses():
    time = Time()
    failing = [
        httpx.ConnectError("refused"),
        error(500, "broken"),
        error(502, "gateway"),
        httpx.ReadTimeout("late"),
    ]
    server = Words(in_turn(*failing))
    with remote(server, time, patience=Patience(retries=4, first_wait=1.0, max_wait=3.0)) as asking:
        assert asking.score("p", steps=["a"]) == [1.0]
    for slept, full in zip(time.slept, (1, 2, 3, 3), strict=True):
        assert full / 2 <= slept <= full


def test_an_address_where_nothing_is_is_given_up_within_three_seconds(caplog):
    def refuse(path, body):
        raise httpx.ConnectError("refused")

    time = Time()
    with pytest.raises(
        UnreachableError, match=r"nothing answers there \(ConnectError: refused\).*Start the server"
    ):
        remote(Words(refuse), time, patience=Patience())
    assert sum(time.slept) <= 2
    assert re.search(r"ConnectError: refused; next attempt in 0\.[2-5] s$", caplog.messages[0])


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            error(400, "no aggregate 'most'", field="aggregate"),
            UsageError,
            r"'aggregate'.*no aggregate 'most'",
        ),
        (error(404, "no model", type="not_found", field="model"), UsageError, "no model"),
        (
            error(401, "expected a key", type="unauthorized"),
            BackendError,
            r"401: expected a key .*STEPMARK_API_KEY",
        ),
        (error(403, "another site's page"), BackendError, "403"),
        (httpx.Response(404, text="Not Found"), BackendError, "is it a stepmark server"),
        (httpx.Response(301, headers={"Location": "http://elsewhere/"}), BackendError, "301"),
        (error(405, "GET only"), BackendError, "405"),
    ],
)
def test_what_is_declined_is_not_asked_again(answer, kind, words):
    server, time = Words(in_turn(answer)), Time()
    with remote(server, time) as asking, pytest.raises(kind, match=words):
        asking.score("p", steps=["a"])
    assert len(server.asked("/v1/score")) == 1
    assert time.slept == []


def test_a_server_that_is_too_slow_is_asked_for_less():
    def before(path, body):
        slow = path == "/v1/score" and len(body["solutions"]) > 1
        return error(504, "not in time", type="deadline") if slow else None

    server = Words(before)
    with remote(server) as asking:
        assert [one.scores for one in asking.score_many(solutions(3))] == [(1.0,)] * 3
    assert [len(body["solutions"]) for body in server.asked("/v1/score")] == [3, 1, 2, 1, 1]
    late = Words(in_turn(error(504, "not in time", type="deadline")))
    with remote(late) as asking, pytest.raises(BackendError, match="504: not in time"):
        asking.score("p", steps=["a"])
    assert len(late.asked("/v1/score")) == 1


def test_a_key_comes_from_one_variable_and_goes_nowhere_else(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of another service")
    server = Words()
    with remote(server) as asking:
        asking.score("p", steps=["a"])
    monkeypatch.setenv("STEPMARK_API_KEY", "secret")
    with remote(server) as asking:
        asking.score("p", steps=["a"])
    assert server.keys == [None, None, "Bearer secret", "Bearer secret"]
    moved = Words(in_turn(httpx.Response(307, headers={"Location": "http://elsewhere/"})))
    with remote(moved) as asking, pytest.raises(BackendError) as told:
        asking.score("p", steps=["a"])
    assert len(moved.asked("/v1/score")) == 1
    assert "secret" not in str(told.value)


def test_a_client_loads_no_torch():
    code = (
        "import sys; from score_servers import Words; from stepmark.models.remote.client import RemotePRM; "
        "prm = RemotePRM('http://there', transport=Words().transport); assert prm.score('p', steps=['a b']) == [0.5]; "
        "assert not {'torch', 'transformers', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


# -- Nonsense --------------------------------------------------------------------------------------------------


def answered(change):
    """The right answer to one solution of two steps, changed."""
    right = json.loads(
        Words().answer("/v1/score", {"solutions": [{"problem": "p", "steps": ["a", "b c"]}]}).content
    )
    change(right)
    return right


def with_result(**changes):
    return answered(lambda right: right["results"][0].update(changes))


def without(*keys):
    return answered(lambda right: [right["results"][0].pop(key) for key in keys])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (with_result(scores=[0.5]), r"scores': expected 2 entries, one a step, found 1"),
        (without("scores"), "expected 2 entries"),
        (with_result(scores=[0.5, "0.5"]), r"scores\[1\]: expected a valid number, found '0.5'"),
        (
            with_result(scores=[0.5, 1.5]),
            r"step 1 .0-based. is 1.5: expected a number in \[0, 1\] .probability.",
        ),
        (with_result(index=1), "indices 0 to 0"),
        (without("index"), "index: expected a value"),
        (with_result(classes=[[0.1, 0.9]]), "classes': expected 2 entries"),
        (with_result(error="bad"), "error: expected a valid dictionary"),
        (answered(lambda right: right["results"].append(right["results"][0])), "indices 0 to 0"),
        (answered(lambda right: right.pop("results")), "results: expected a value"),
        (answered(lambda right: right.update(score_kind="odds")), "score_kind: expected .*, found 'odds'"),
        (answered(lambda right: right.pop("model")), "model: expected a value"),
    ],
)
def test_nonsense_is_an_error_that_says_what_came(answer, words):
    server = Words(in_turn(httpx.Response(200, json=answer)))
    with remote(server) as asking, pytest.raises(BackendError, match=words):
        asking.score("p", steps=["a", "b c"])
    assert asking.ledger.solutions == 0


# -- Many ------------------------------------------------------------------------------------------------------


def scores(results):
    return [result.scores[0] for result in results]


def large(most):
    def before(path, body):
        if path == "/v1/score" and len(body["solutions"]) > most:
            return error(413, f"expected at most {most}", type="too_large", field="solutions")
        return None

    return before


def test_a_request_that_is_too_large_is_halved_and_stays_small():
    server = Words(large(3))
    with remote(server, batch=8) as asking:
        results = list(asking.score_many(solutions(16)))
    assert [result.scores for result in results] == [(1.0,)] * 16
    assert [len(body["solutions"]) for body in server.asked("/v1/score")] == [8, 4, 2, 2, 4, 2, 2, 2, 2, 2, 2]


def test_one_that_is_too_large_by_itself_is_refused_alone():
    def before(path, body):
        big = path == "/v1/score" and any(len(one["steps"][0]) > 50 for one in body["solutions"])
        return error(413, "expected at most 50 bytes", type="too_large") if big else None

    many = [*solutions(2), Solution.of("p", ["x" * 60], id="big"), *solutions(2)]
    with remote(Words(before)) as asking:
        results = list(asking.score_many(many, keep_going=True))
    assert [isinstance(result, Refusal) for result in results] == [False, False, True, False, False]
    assert isinstance(results[2].error, TooLongError)
    assert results[2].error.where == "solution 'big'"
    assert "at most 50 bytes" in results[2].error.message


def test_bad_ones_are_refused_in_their_place_or_raise():
    many = solutions(5)
    many[2] = Solution.of("p", ["unreadable"], id="bad")
    many[3] = Solution.of("p", ["half \ud800"], id="half")
    server = Words()
    with remote(server) as asking:
        results = list(asking.score_many(many, keep_going=True))
        assert [isinstance(result, Refusal) for result in results] == [False, False, True, True, False]
        assert isinstance(results[2].error, MarkerInTextError)
        assert (results[2].error.where, results[2].error.field) == ("solution 'bad'", "steps[0]")
        assert results[2].solution == many[2]
        assert (results[3].error.where, results[3].error.field) == ("solution 'half'", "steps[0]")
        assert len(server.asked("/v1/score")[0]["solutions"]) == 4  # what is no character does not travel
        given = []
        with pytest.raises(MarkerInTextError, match="solution 'bad'"):
            for result in asking.score_many(many):
                given.append(result)
        assert len(given) == 2


def test_a_request_that_is_declined_for_one_solution_goes_without_it():
    def before(path, body):
        for i, one in enumerate(body["solutions"] if path == "/v1/score" else ()):
            if not one["problem"]:
                return error(400, "expected a text that is not blank", field=f"solutions.{i}.problem")
        return None

    many = solutions(4)
    many[1] = Solution.of("", ["a"])
    with remote(Words(before)) as asking:
        results = list(asking.score_many(many, keep_going=True))
        assert isinstance(results[1], Refusal)
        assert (results[1].error.message, results[1].error.field) == (
            "expected a text that is not blank",
            "problem",
        )
        assert scores(results[:1] + results[2:]) == [1.0] * 3


def test_what_was_done_stays_when_the_connection_is_lost():
    server = Words(lambda path, body: lost() if len(server.log) > 3 else None)

    def lost():
        raise httpx.RemoteProtocolError("Server disconnected")

    given = []
    with (
        remote(server, batch=2, patience=Patience(retries=1)) as asking,
        pytest.raises(BackendError, match=r"2 attempts.*Server disconnected"),
    ):
        for result in asking.score_many(solutions(10)):
            given.append(result)
    assert [result.scores for result in given] == [(1.0,)] * 4
    assert asking.ledger.solutions == 4


# -- What is served --------------------------------------------------------------------------------------------


def test_a_remote_prm_is_what_its_server_says():
    server = Words(default_aggregate="product", default_threshold=None)
    with remote(server) as prm:
        assert (prm.name, prm.score_kind, prm.default_aggregate, prm.default_threshold) == (
            "words",
            "probability",
            "product",
            None,
        )
        assert prm.identity == "words#0123456789ab"
        assert prm.score("p", steps=["a", "a b"]) == [1.0, 0.5]
        assert [result.scores for result in prm.score_many(solutions(2, words=4))] == [(0.25,)] * 2
        with pytest.raises(InputError, match="cannot be read"):
            prm.score("p", steps=["unreadable"])
        assert prm.ledger.solutions == 3
    with remote(Words(identity="words")) as prm:
        assert prm.identity == f"words@{ADDRESS}"


def test_what_the_world_answered_goes_beside_the_steps():
    steps = (
        Step(text="look", observation="\n it is 7 "),
        Step(text=" so 7 "),
        Step(text="end", observation="x"),
    )
    solution = Solution(problem=Problem(text="p"), steps=steps, id="o")
    server = Words()
    with remote(server) as asking:
        [result] = asking.score_many([solution])
        assert result.scores == (1.0, 0.5, 1.0)
    [sent] = server.asked("/v1/score")[0]["solutions"]
    assert (sent["steps"], sent["observations"]) == (["look", " so 7 ", "end"], ["\n it is 7 ", "", "x"])


# -- Prefixes that grow ----------------------------------------------------------------------------------------


def asked(*prefixes, problem="the problem"):
    return [ScoreRequest(problem=problem, steps=steps) for steps in prefixes]


def test_a_prefix_is_sent_whole_and_costs_its_last_step():
    server = Words()
    with remote(server) as prm:
        session = prm.open_session()
        assert session.reason == ""
        found = session.score(
            asked(("a",), ("b c", "d e f"), ("unreadable", "b"), ("\ud800",)), lambda i, reply: None
        )
        assert found[:2] == [
            StepScore(score=1.0, tokens=1, root=2),
            StepScore(score=1 / 3, tokens=3, root=2),
        ]
        assert [type(one) for one in found[2:]] == [MarkerInTextError, InputError]
        [body] = server.asked("/v1/score")
        assert [one["steps"] for one in body["solutions"]] == [["a"], ["b c", "d e f"], ["unreadable", "b"]]
    with remote(Words(prefix_cache=False)) as prm:
        session = prm.open_session()
        assert "keeps no state" in session.reason
        [found] = session.score(asked(("b c", "d e f")), lambda i, reply: None)
        assert found == StepScore(score=1 / 3, tokens=2 + 2 + 3, root=0)


def test_steps_that_are_answered_with_nonsense():
    for scores in ([], [2.0], [None, 0.5], ["0.5"]):
        answer = with_result(scores=scores)
        server = Words(in_turn(httpx.Response(200, json=answer)))
        with remote(server) as prm, pytest.raises(BackendError, match="no score was made"):
            prm.open_session().score(asked(("a",)), lambda i, reply: None)
