"""The client of a score server, against one that is written by hand: what is sent, sent again, waited for, believed and refused."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys

import httpx
import pytest

from score_servers import Words, error, worth
from stepmark import AsyncClient, Client, Solution
from stepmark.backends import StepScore
from stepmark.errors import (
    BackendError,
    InputError,
    MarkerInTextError,
    TooLongError,
    UnreachableError,
    UsageError,
)
from stepmark.models.http import Patience
from stepmark.models.remote.prm import RemotePRM
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


def client(server, time=None, **more):
    time = time or Time()
    transport = server if isinstance(server, httpx.MockTransport) else server.transport
    return Client(ADDRESS, transport=transport, sleep=time.sleep, clock=time, rng=random.Random(0), **more)


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


def test_a_solution_is_scored():
    server = Words()
    with client(server) as asking:
        scored = asking.grade("What is it?", steps=["one", "one two three"])
    assert isinstance(scored, GradedSolution)
    assert scored.solution == Solution.of("What is it?", ["one", "one two three"])
    assert scored.scores == (1.0, 1 / 3)
    assert scored.score_kind == "probability"
    assert (scored.score, scored.aggregate, scored.first_error, scored.threshold) == (1 / 3, "min", 1, 0.5)
    assert scored.prm == "words"
    assert (asking.ledger.solutions, asking.ledger.steps) == (1, 2)
    assert asking.ledger.tokens_in == asking.ledger.tokens_computed == 3 + 4


def test_what_is_sent():
    server = Words()
    with client(server, model="words") as asking:
        asking.grade("p", steps=["a"], aggregate="mean", threshold=0.25)
    [body] = server.asked("/v1/score")
    assert body.pop("timeout") == pytest.approx(570)  # 0.95 of what is waited for
    assert body == {
        "solutions": [{"problem": "p", "steps": ["a"]}],
        "aggregate": "mean",
        "threshold": 0.25,
        "model": "words",
    }


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(UsageError, match=r"found 'http://…@there:8000'.*STEPMARK_API_KEY") as told:
        Client("http://me:secret@there:8000")
    assert "secret" not in str(told.value)


# -- Again, and not again --------------------------------------------------------------------------------------


def busy(seconds, status=429):
    return error(status, "the queue is full", type="busy", headers={"Retry-After": str(seconds)})


def test_a_server_that_says_when_to_come_again_is_obeyed():
    time, server = Time(), Words(in_turn(busy(3), busy(2, 503), busy(1)))
    with client(server, time, patience=Patience(retries=0)) as asking:  # being busy is no failure
        assert asking.grade("p", steps=["a"]).score == 1.0
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
    with client(server, time, patience=Patience(retries=4, first_wait=1.0, max_wait=3.0)) as asking:
        assert asking.grade("p", steps=["a"]).score == 1.0
    for slept, full in zip(time.slept, (1, 2, 3, 3), strict=True):
        assert full / 2 <= slept <= full


def test_an_address_where_nothing_is_is_given_up_within_three_seconds(caplog):
    def refuse(path, body):
        raise httpx.ConnectError("refused")

    time, server = Time(), Words(refuse)
    with client(server, time, patience=Patience()) as asking:
        for _ in range(2):
            with pytest.raises(
                UnreachableError, match=r"nothing answers there \(ConnectError: refused\).*Start the server"
            ):
                asking.grade("p", steps=["a"])
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
    with client(server, time) as asking, pytest.raises(kind, match=words):
        asking.grade("p", steps=["a"])
    assert len(server.log) == 1
    assert time.slept == []


def test_a_deadline_bounds_everything():
    time, server = Time(), Words(in_turn(busy(3), busy(3), busy(3)))
    with client(server, time) as asking, pytest.raises(BackendError, match=r"within the 5 s.*queue is full"):
        asking.grade("p", steps=["a"], timeout=5)
    assert len(server.log) == 2  # the third would come too late, and is not waited for
    assert sum(time.slept) < 5
    told = [body["timeout"] for body in server.asked("/v1/score")]
    assert told[0] == pytest.approx(4.75)
    assert told[1] == pytest.approx(0.95 * (5 - time.slept[0]))
    assert server.timeouts == pytest.approx([5, 5 - time.slept[0]])
    late = Words(in_turn(error(504, "not in time", type="deadline")))
    with client(late) as asking, pytest.raises(BackendError, match="504: not in time"):
        asking.grade("p", steps=["a"], timeout=5)
    assert len(late.log) == 1


def test_a_key_comes_from_one_variable_and_goes_nowhere_else(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of another service")
    server = Words()
    with client(server) as asking:
        asking.grade("p", steps=["a"])
    monkeypatch.setenv("STEPMARK_API_KEY", "secret")
    with client(server) as asking:
        asking.grade("p", steps=["a"])
    assert server.keys == [None, "Bearer secret"]
    moved = Words(in_turn(httpx.Response(307, headers={"Location": "http://elsewhere/"})))
    with client(moved) as asking, pytest.raises(BackendError) as told:
        asking.grade("p", steps=["a"])
    assert len(moved.log) == 1
    assert "secret" not in str(told.value)


def test_a_client_loads_no_torch():
    code = (
        "import sys, stepmark; from stepmark.models import prm as prms; from stepmark.models.remote import prm; "
        "stepmark.Client('http://there').close(); assert not {'torch', 'transformers', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- Nonsense --------------------------------------------------------------------------------------------------


def answered(change):
    """The right answer to one solution of two steps, changed."""
    right = json.loads(
        Words().answer("POST", "/v1/score", {"solutions": [{"problem": "p", "steps": ["a", "b c"]}]}).content
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
        (with_result(scores=[0.5]), r"expected 2 scores, one a step, found 1"),
        (without("scores"), "expected 2 scores"),
        (with_result(scores=[0.5, "0.5"]), r"scores\[1\]: expected a valid number, found '0.5'"),
        (
            with_result(scores=[0.5, 1.5]),
            r"step 1 .0-based. is 1.5: expected a number in \[0, 1\] .probability.",
        ),
        (with_result(index=1), "indices 0 to 0"),
        (without("index"), "index: expected a value"),
        (without("score"), "found no score"),
        (with_result(first_error=2), "first_error': expected -1 to 1"),
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
    with client(server) as asking, pytest.raises(BackendError, match=words):
        asking.grade("p", steps=["a", "b c"])
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
    with client(server, batch=8) as asking:
        results = list(asking.grade_many(solutions(16)))
    assert [result.solution.id for result in results] == [f"n{i}" for i in range(16)]
    assert [len(body["solutions"]) for body in server.asked("/v1/score")] == [8, 4, 2, 2, 4, 2, 2, 2, 2, 2, 2]


def test_one_that_is_too_large_by_itself_is_refused_alone():
    def before(path, body):
        big = path == "/v1/score" and any(len(one["steps"][0]) > 50 for one in body["solutions"])
        return error(413, "expected at most 50 bytes", type="too_large") if big else None

    many = [*solutions(2), Solution.of("p", ["x" * 60], id="big"), *solutions(2)]
    with client(Words(before)) as asking:
        results = list(asking.grade_many(many, keep_going=True))
    assert [isinstance(result, Refusal) for result in results] == [False, False, True, False, False]
    assert isinstance(results[2].error, TooLongError)
    assert results[2].error.where == "solution 'big'"
    assert "at most 50 bytes" in results[2].error.message


def test_bad_ones_are_refused_in_their_place_or_raise():
    many = solutions(5)
    many[2] = Solution.of("p", ["unreadable"], id="bad")
    many[3] = Solution.of("p", ["half \ud800"], id="half")
    server = Words()
    with client(server) as asking:
        results = list(asking.grade_many(many, keep_going=True))
        assert [isinstance(result, Refusal) for result in results] == [False, False, True, True, False]
        assert isinstance(results[2].error, MarkerInTextError)
        assert (results[2].error.where, results[2].error.field) == ("solution 'bad'", "steps[0]")
        assert results[2].solution == many[2]
        assert (results[3].error.where, results[3].error.field) == ("solution 'half'", "steps[0]")
        assert len(server.asked("/v1/score")[0]["solutions"]) == 4  # what is no character does not travel
        given = []
        with pytest.raises(MarkerInTextError, match="solution 'bad'"):
            for result in asking.grade_many(many):
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
    with client(Words(before)) as asking:
        results = list(asking.grade_many(many, keep_going=True))
        assert isinstance(results[1], Refusal)
        assert (results[1].error.message, results[1].error.field) == (
            "expected a text that is not blank",
            "problem",
        )
        assert scores(results[:1] + results[2:]) == [1.0] * 3


def test_what_was_done_stays_when_the_connection_is_lost():
    server = Words(lambda path, body: lost() if len(server.log) > 2 else None)

    def lost():
        raise httpx.RemoteProtocolError("Server disconnected")

    given = []
    with (
        client(server, batch=2, patience=Patience(retries=1)) as asking,
        pytest.raises(BackendError, match=r"2 attempts.*Server disconnected"),
    ):
        for result in asking.grade_many(solutions(10)):
            given.append(result)
    assert [result.solution.id for result in given] == ["n0", "n1", "n2", "n3"]
    assert asking.ledger.solutions == 4


# -- The order of candidates -----------------------------------------------------------------------------------


def test_candidates_are_put_in_order():
    server = Words()
    with client(server) as asking:
        given = [["a b c"], "a\nb", ["unreadable"], ["a b"]]
        ranked = asking.rank("p", given, split="line", keep_going=True)
        with pytest.raises(MarkerInTextError, match=r"solution 2 \(0-based\)"):
            asking.rank("p", given, split="line")
    assert [one.index for one in ranked] == [1, 3, 0]
    assert [one.score for one in ranked] == [1.0, 0.5, 1 / 3]
    assert ranked[0].solution.texts == ("a", "b")
    assert ranked[0].text == "a\nb"
    body, _ = server.asked("/v1/rank")
    assert body["solutions"] == [
        {"steps": ["a b c"]},
        {"steps": ["a", "b"]},
        {"steps": ["unreadable"]},
        {"steps": ["a b"]},
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda results: results.reverse(), "the best first"),
        (lambda results: results[0].update(index=1), "each index from 0 to 1 once"),
        (lambda results: results.pop(), "each index from 0 to 1 once"),
    ],
)
def test_an_order_that_is_none(change, words):
    body = {"problem": "p", "solutions": [{"steps": ["a"]}, {"steps": ["a b"]}]}
    right = json.loads(Words().answer("POST", "/v1/rank", body).content)
    change(right["results"])

    def before(path, body):
        return httpx.Response(200, json=right) if path == "/v1/rank" else None

    with client(Words(before)) as asking, pytest.raises(BackendError, match=words):
        asking.rank("p", [["a"], ["a b"]])


# -- What is served --------------------------------------------------------------------------------------------


def test_a_remote_prm_is_what_its_server_says():
    server = Words(default_aggregate="product", default_threshold=None)
    with RemotePRM(client(server)) as prm:
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
    with RemotePRM(client(Words(identity="words"))) as prm:
        assert prm.identity == f"words@{ADDRESS}"


def test_what_the_world_answered_goes_beside_the_steps():
    steps = (
        Step(text="look", observation="\n it is 7 "),
        Step(text=" so 7 "),
        Step(text="end", observation="x"),
    )
    solution = Solution(problem=Problem(text="p"), steps=steps, id="o")
    server = Words()
    with client(server) as asking:
        [result] = asking.grade_many([solution])
        assert result.solution == solution
    [sent] = server.asked("/v1/score")[0]["solutions"]
    assert (sent["steps"], sent["observations"]) == (["look", " so 7 ", "end"], ["\n it is 7 ", "", "x"])


# -- Sessions --------------------------------------------------------------------------------------------------


def sent(server):
    """The texts of the steps of every request."""
    return [[step["text"] for step in body["steps"]] for body in server.asked("/v1/sessions/.*/steps")]


def test_a_session_sends_each_step_once():
    server = Words()
    with client(server) as asking:
        with asking.session("the problem") as session:
            one, two = session.extend([("a",), ("b c",)])
            assert one == StepScore(score=1.0, tokens=1, root=2)
            assert two == StepScore(score=0.5, tokens=2, root=2)
            [three] = session.extend([("b c", "d e f")])
            assert three.score == 1 / 3
            assert session.extend([("a",), ("b c", "d e f")]) == [one, three]  # known
            assert session.held == 3
        assert sent(server) == [["a", "b c"], ["d e f"]]
        first, second = server.asked("/v1/sessions/.*/steps")
        assert {"timeout", "steps"} == set(first)
        assert [step["after"] for step in first["steps"]] == [None, None]
        assert second["steps"][0]["after"] is not None
        assert server.sessions == {}  # closed
        ledger = asking.ledger
        assert ledger.steps == 3
        assert ledger.tokens_computed == ledger.tokens_distinct == 2 + 1 + 2 + 3
        assert ledger.tokens_in == (2 + 1) + (2 + 2) + (2 + 2 + 3)
        assert ledger.tokens_again == 0


def test_what_is_released_may_be_asked_again():
    server = Words()
    with client(server) as asking, asking.session("p") as session:
        session.extend([("a",), ("a", "b")])
        session.release([("a",), ("never asked",)])
        assert len(server.asked("/v1/sessions/s1/release")[0]["nodes"]) == 1
        session.extend([("a", "b", "c")])  # goes on from what is held
        assert sent(server) == [["a"], ["b"], ["c"]]
        session.extend([("a", "d")])
        assert sent(server)[3:] == [["a"], ["d"]]
        session.release([("a", "b"), ("a", "b", "c"), ("a", "d")])  # the last
        assert server.sessions == {}
        assert session.extend([("a",)])[0].score == 1.0
        assert server.opened == 2


def grown(names="abc", depth=3):
    """Prefixes of several beginnings, the longest first: none of their rests was asked before."""
    return [
        tuple(f"{name}{i} {'x ' * i}" for i in range(depth - cut)) for cut in range(depth) for name in names
    ]


def test_tasks_that_share_a_session_do_not_mix_their_prefixes_up():
    server = Words()

    async def talk():
        async with AsyncClient(ADDRESS, transport=server.transport) as asking, asking.session("p") as session:
            firsts = await asyncio.gather(*(session.extend([(name,)]) for name in "abc"))
            thens = await asyncio.gather(*(session.extend([(name, f"{name} x")]) for name in "abc"))
            assert [one.score for [one] in firsts + thens] == [1.0] * 3 + [0.5] * 3
            # Each went on from its own beginning.
            [(_, nodes)] = server.sessions.values()
            assert {
                nodes[one["after"]]["text"] + one["text"][1:] for one in nodes.values() if one["after"]
            } == {"a x", "b x", "c x"}
            await asyncio.gather(session.release([("a",)]), session.extend([("a", "a x", "y")]))

    asyncio.run(talk())
    assert server.opened == 1


def test_a_session_that_is_full_of_what_was_let_go_is_opened_anew():
    """The server does not hear of a release, and so has less room than the client thinks; no step is taken for unreadable."""

    def before(path, body):
        if path.endswith("/release"):
            raise httpx.ConnectError("gone")

    server = Words(before, session_nodes=4)
    with client(server) as asking, asking.session("p") as session:
        session.extend([(name,) for name in "abcd"])
        session.release([("a",), ("b",)])
        found = session.extend([("e",), ("f f",), ("c", "g")])
        assert [one.score for one in found] == [1.0, 0.5, 1.0]
        assert list(server.sessions) == ["s2"]  # the full one was closed
        assert asking.ledger.tokens_again == 1 + 1  # the problem and "c"
        assert asking.ledger.steps == 7


def test_what_begins_unreadably_is_unreadable():
    server = Words()
    with client(server) as asking, asking.session("p") as session:
        found = session.extend([("a",), ("unreadable",), ("unreadable", "b"), ("\ud800",)])
        assert isinstance(found[0], StepScore)
        assert [type(one) for one in found[1:]] == [MarkerInTextError, MarkerInTextError, InputError]
        assert sent(server) == [["a", "unreadable"]]
        assert session.held == 1


def test_a_session_that_expired_is_opened_anew_and_the_ledger_says_so():
    server = Words()
    with client(server) as asking, asking.session("a problem") as session:
        session.extend([("a",), ("b",)])
        session.extend([("a", "c d")])
        server.sessions.clear()
        [found] = session.extend([("a", "c d", "e")])
        assert found == StepScore(score=1.0, tokens=1, root=2)
        assert sent(server)[3:] == [["a"], ["c d"], ["e"]] or sent(server)[2:] == [
            ["e"],
            ["a"],
            ["c d"],
            ["e"],
        ]
        assert server.opened == 2
        ledger = asking.ledger
        assert ledger.tokens_again == 2 + 1 + 2  # the problem, a, c d
        assert ledger.tokens_distinct == 2 + 1 + 1 + 2 + 1
        assert ledger.tokens_computed == ledger.tokens_distinct + ledger.tokens_again
        assert ledger.steps == 4


@pytest.mark.parametrize(
    "results",
    [[], [{"node": 1, "score": 2.0}], [{"node": -1, "score": 0.5}], [{"score": 0.5}], [{"node": 1}]],
)
def test_steps_that_are_answered_with_nonsense(results):
    def before(path, body):
        answer = {"object": "steps", "model": "words", "results": results}
        return httpx.Response(200, json=answer) if path.endswith("/steps") else None

    with (
        client(Words(before)) as asking,
        asking.session("p") as session,
        pytest.raises(BackendError, match=r"results|score of step"),
    ):
        session.extend([("a",)])


# -- With await ------------------------------------------------------------------------------------------------


def test_the_same_with_await():
    slept = []

    async def all_of_it():
        server = Words(in_turn(busy(2), httpx.ConnectError("refused")))
        async with AsyncClient(ADDRESS, transport=server.transport, sleep=slept.append, batch=2) as asking:
            assert asking.address == ADDRESS
            assert (await asking.grade("p", steps=["a b"])).score == 0.5
            assert 2 <= slept[0] <= 2.5
            assert len(slept) == 2
            assert [one.id for one in await asking.models()] == ["words"]
            assert (await asking.model()).id == "words"
            found = [result async for result in asking.grade_many(solutions(5))]
            assert [result.solution.id for result in found] == [f"n{i}" for i in range(5)]
            ranked = await asking.rank("p", [["a b"], ["a"]])
            assert [one.index for one in ranked] == [1, 0]
            async with asking.session("p q") as session:
                assert session.problem == "p q"
                assert (await session.extend([("a",), ("a", "b c")]))[1].score == worth("b c")
                await session.release([("a",)])
                assert session.held == 1
            assert server.sessions == {}
            assert asking.ledger.solutions == 8
            with pytest.raises(MarkerInTextError):
                await asking.grade("p", steps=["unreadable"])
            with pytest.raises(MarkerInTextError):
                [result async for result in asking.grade_many([Solution.of("p", ["unreadable"])])]

    asyncio.run(all_of_it())
