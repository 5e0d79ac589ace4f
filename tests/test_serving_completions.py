"""A search as a chat model: the wire by hand, in both directions; a policy's server that the test plays, and a PRM that knows sums."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs fastapi: pip install stepmark[serve]")

from integration_worlds import PLAIN, RIGHT, WRONG, prm
from stepmark.backends import INSTRUCTION, Completion, Message
from stepmark.models.http import Patience
from stepmark.models.policies.openai import OpenAIPolicy
from stepmark.models.remote.wire import ModelsResponse
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM
from stepmark.problems.arithmetic_world import ArithmeticPolicy
from stepmark.searches.run import search
from stepmark.serving.app import serve_in_process
from stepmark.serving.chat import problem_of
from stepmark.serving.settings import ChatModel, ServerSettings, search_of

QUICK = Patience(retries=2, first_wait=0.001)
FIVE, SIX = "2 + 3 = 5\nThe answer is 5.", "2 + 3 = 6\nThe answer is 6."
ASKED = {"messages": [{"role": "user", "content": "2 + 3?"}]}
PROMPT = f"2 + 3?\n\n{INSTRUCTION}"


class Upstream:
    """An OpenAI-compatible server, played: gives texts in order, at most `at_once` a request. Each text has ten tokens."""

    def __init__(self, *texts, at_once=99):
        self.texts, self.at_once = list(texts), at_once
        self.bodies, self.answers = [], []
        self.wait: threading.Event | None = None

    def __call__(self, request):
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"object": "list", "data": [{"id": "tiny"}]})
        self.bodies.append(json.loads(request.content))
        if self.wait is not None:
            self.wait.wait(20)
        if self.answers:
            return self.answers.pop(0)
        given = [self.texts.pop(0) for _ in range(min(self.bodies[-1]["n"], self.at_once))]
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
                "logprobs": {"content": [{"logprob": -1.0}] * 10},
            }
            for i, text in enumerate(given)
        ]
        usage = {"prompt_tokens": 7, "completion_tokens": 10 * len(given)}
        return httpx.Response(200, json={"id": "x", "choices": choices, "usage": usage})


def policy_of(upstream):
    if not isinstance(upstream, Upstream):
        return upstream
    transport = httpx.MockTransport(upstream)
    return OpenAIPolicy("http://policy/v1", "tiny", patience=QUICK, logprobs=True, transport=transport)


@asynccontextmanager
async def serving(upstream, spec="best-of-n:n=2", model=None, settings=None, **chat):
    """A client of a server in this process."""
    chat = ChatModel(**{"search": spec, "verifier": "number", **chat})
    async with (
        serve_in_process(
            model or prm(), settings or ServerSettings(), policy=policy_of(upstream), chat=chat
        ) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stepmark") as client,
    ):
        yield client


def ask(upstream, body, spec="best-of-n:n=2", **more):
    async def once():
        async with serving(upstream, spec, **more) as client:
            return await client.post("/v1/chat/completions", json=body)

    return asyncio.run(once())


# What is answered


def test_the_best_of_four_in_openais_shape():
    upstream = Upstream(SIX, FIVE, "2 + 3 = 5\n5 + 1 = 7", "It is 5.")
    answered = ask(upstream, ASKED, "best-of-n:n=4")
    assert answered.status_code == 200, answered.text
    told = answered.json()
    assert told["object"] == "chat.completion"
    assert told["id"].startswith("chatcmpl-")
    assert told["model"] == "best-of-n:n=4"
    assert told["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": FIVE, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert told["usage"] == {"prompt_tokens": 7, "completion_tokens": 40, "total_tokens": 47}
    how = told["stepmark"]
    assert {key: how[key] for key in ("method", "policy", "prm", "score_kind", "aggregate", "chosen")} == {
        "method": "best-of-n",
        "policy": "tiny",
        "prm": "sums",
        "score_kind": "probability",
        "aggregate": "min",
        "chosen": 1,
    }
    assert [one["scores"] for one in how["candidates"]] == [
        [WRONG, PLAIN],
        [RIGHT, PLAIN],
        [RIGHT, WRONG],
        [PLAIN],
    ]
    second = how["candidates"][1]
    assert (second["text"], second["steps"]) == (FIVE, FIVE.splitlines())
    assert (second["answer"], second["aggregate"], second["votes"]) == ("5", PLAIN, None)
    assert (second["finished"], second["refuted"]) == (True, False)
    [body] = upstream.bodies
    assert (body["model"], body["messages"]) == ("tiny", [{"role": "user", "content": PROMPT}])
    assert (body["n"], body["temperature"]) == (4, 0.7)


@pytest.mark.parametrize(
    "spec", ["beam:width=2,expand=2", "best-of-n:n=3", "mcts:simulations=4,expand=2", "greedy"]
)
def test_the_answer_is_that_of_the_search(spec):
    """With equal settings and seed the chat model answers what `stepmark.search` finds, whichever of the two names the method."""
    [problem] = arithmetic(1)
    grader = ScriptedPRM(lambda problem, steps: 1 / (1 + sum(map(ord, steps[-1])) % 7), name="of letters")
    method = search_of(spec)
    method = replace(method, how=replace(method.how, seed=5))
    [expected] = search(
        [problem], ArithmeticPolicy(), grader, method=method, verifier="number", progress=False
    )
    body = {"messages": [{"role": "user", "content": problem["problem"]}], "seed": 5}
    for own, model in ((spec, None), ("majority", spec)):
        asked = body if model is None else {**body, "model": model}
        told = ask(ArithmeticPolicy(), asked, own, model=grader).json()
        assert told["choices"][0]["message"]["content"] == expected.solution.text
        assert [one["text"] for one in told["stepmark"]["candidates"]] == [
            one.text for one in expected.candidates
        ]
        assert told["stepmark"]["cost"]["decoded"] == expected.cost.decoded
        assert told["stepmark"]["cost"]["scores"] == expected.cost.scores
        assert told["model"] == spec


def arithmetic(count):
    from stepmark.problems.arithmetic import arithmetic_problems

    return [{"problem": one.text} for one in arithmetic_problems(count, seed=3, steps=(3, 5))]


def test_the_policy_is_asked_for_what_was_asked():
    upstream = Upstream(FIVE, SIX)
    answered = ask(
        upstream,
        {
            "model": "best-of-n:n=2",
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "2 + "}, {"type": "text", "text": "3?"}],
                },
                {"role": "assistant", "content": "4", "name": "me"},
                {"role": "user", "content": "Sure?"},
            ],
            "temperature": 1.2,
            "top_p": 0.9,
            "max_completion_tokens": 50,
            "seed": 3,
            "presence_penalty": 0.5,
            "reasoning_effort": "high",
            "tool_choice": "auto",
            "user": "someone",
            "metadata": {"run": "1"},
            "store": False,
            "n": 1,
            "tools": [],
            "response_format": {"type": "text"},
            "stream": False,
        },
        "majority",
    )
    assert answered.status_code == 200, answered.text
    [body] = upstream.bodies
    assert body == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2 + 3?"},
            {"role": "assistant", "content": "4"},
            {"role": "user", "content": f"Sure?\n\n{INSTRUCTION}"},
        ],
        "n": 2,
        "temperature": 1.2,
        "top_p": 0.9,
        "max_tokens": 50,
        "logprobs": True,
    }


def test_a_solution_ends_before_the_clients_stop_text():
    told = ask(Upstream("2 + 3 = 5\nQuestion: 1 + 1?", SIX), {**ASKED, "stop": ["Question:"]}).json()
    assert [one["text"] for one in told["stepmark"]["candidates"]] == ["2 + 3 = 5\n", SIX]
    assert told["choices"][0]["finish_reason"] == "stop"


def test_a_candidate_that_was_cut_off_is_passed_over():
    cut = Completion(text="2 + 3 = 5", finish="length", tokens=4)
    whole = Completion(text=SIX, finish="end", tokens=4)
    told = ask(ScriptedPolicy([cut, whole]), ASKED).json()
    assert (told["choices"][0]["message"]["content"], told["choices"][0]["finish_reason"]) == (SIX, "stop")
    told = ask(ScriptedPolicy([cut, cut]), ASKED).json()
    assert (told["choices"][0]["message"]["content"], told["choices"][0]["finish_reason"]) == (
        cut.text,
        "length",
    )


def test_votes():
    texts = [FIVE, SIX, SIX, "It is hard."]
    told = ask(Upstream(*texts), ASKED, "majority:n=4").json()
    assert told["choices"][0]["message"]["content"] == SIX
    assert [one["votes"] for one in told["stepmark"]["candidates"]] == [1, 2, 2, None]
    # 0.7 for five; 0.2 + 0.2 for six.
    told = ask(Upstream(*texts), ASKED, "weighted-vote:n=4").json()
    assert told["choices"][0]["message"]["content"] == FIVE
    assert [one["votes"] for one in told["stepmark"]["candidates"]] == [
        pytest.approx(PLAIN),
        pytest.approx(2 * WRONG),
        pytest.approx(2 * WRONG),
        None,
    ]
    # Where no answer can be voted for, the client gets a text all the same, and a note.
    told = ask(Upstream("It is hard.", "2 + 2 = 5 I think", "Who knows?"), ASKED, "weighted-vote:n=3").json()
    assert [one["answer"] for one in told["stepmark"]["candidates"]] == [None] * 3
    assert told["stepmark"]["chosen"] == 0
    assert told["stepmark"]["note"]
    assert told["choices"][0]["message"]["content"] == "It is hard."


def test_the_prm_reads_the_conversation_without_the_system():
    read = []

    def script(problem, steps):
        read.append(problem)
        return 0.5

    body = {"messages": [{"role": "system", "content": "Be brief."}, *ASKED["messages"]]}
    ask(Upstream(FIVE), body, "best-of-n:n=1", model=ScriptedPRM(script))
    assert set(read) == {"2 + 3?"}
    several = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
    ]
    assert problem_of(several) == "User:\na\n\nAssistant:\nb\n\nUser:\nc"


def test_a_stream():
    body = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
    answered = ask(Upstream(SIX, FIVE), body)
    assert answered.headers["content-type"].startswith("text/event-stream")
    events = answered.text.split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[1:-2]]
    assert texts == ["2 + 3 = 5\n", "The answer is 5."]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert chunks[-2]["stepmark"]["chosen"] == 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 20
    plain = ask(Upstream(SIX, FIVE), {**ASKED, "stream": True}).text
    assert "usage" not in plain.replace("stepmark", "")


def test_models_lists_both():
    async def listed():
        async with serving(Upstream()) as client:
            return (await client.get("/v1/models")).json(), (await client.get("/openapi.json")).json()

    models, document = asyncio.run(listed())
    assert [(one["id"], "stepmark" in one) for one in models["data"]] == [
        ("sums", True),
        ("best-of-n:n=2", False),
    ]
    # stepmark's own client finds the PRM among them.
    read = ModelsResponse.model_validate(models)
    assert [one.stepmark is None for one in read.data] == [False, True]
    operation = document["paths"]["/v1/chat/completions"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("ChatRequest")


# What is refused


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": "beam:width=65"}, "model"),
        ({"model": "best-of-n:n=1000000000"}, "model"),
        ({"model": "beam:breadth=4"}, "model"),
        ({"model": "beam:width=many"}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages.0.content"),
        ({"messages": [*ASKED["messages"], {"role": "assistant", "content": "So"}]}, "messages.1.role"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(more, field):
    upstream = Upstream()
    refused = ask(upstream, {**ASKED, **more})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["type"] == "invalid_request"
    assert error["field"] == field
    assert upstream.bodies == []


@pytest.mark.parametrize("content", [[{"type": "image_url", "image_url": {}}], None, 4])
def test_what_is_no_text_is_refused(content):
    refused = ask(Upstream(), {"messages": [{"role": "user", "content": content}]})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request")


@pytest.mark.parametrize("model", ["gpt-4", "sums", "os:system", "integration_worlds:policy:n=2"])
def test_a_client_names_a_search_of_the_library_and_no_module(model):
    refused = ask(Upstream(), {**ASKED, "model": model})
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "not_found")


# A policy that fails


OPENAI_ERROR = {"error": {"message": "This model's maximum context length is 512 tokens", "type": "x"}}
NO_CHOICES = {"choices": []}


@pytest.mark.parametrize(
    ("answers", "status", "kind", "said"),
    [
        ([httpx.Response(503, text="no")] * 3, 503, "unavailable", "HTTP 503: no"),
        ([httpx.Response(401, json={"error": {"message": "who?"}})], 500, "failed", "401"),
        ([httpx.Response(400, json=OPENAI_ERROR)], 413, "too_long", "maximum context length is 512"),
        ([httpx.Response(200, text="<html>")] * 3, 503, "unavailable", "expected JSON"),
        ([httpx.Response(200, json=NO_CHOICES)] * 3, 503, "unavailable", "expected a list of choices"),
    ],
)
def test_a_policy_that_fails(answers, status, kind, said):
    upstream = Upstream(FIVE, SIX)
    upstream.answers = list(answers)
    refused = ask(upstream, ASKED)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (status, kind), error
    assert said in error["message"]
    assert ("retry-after" in refused.headers) == (status == 503)


# Time, and clients that go away


def test_a_deadline():
    async def late():
        upstream = Upstream(FIVE, SIX)
        upstream.wait = threading.Event()
        async with serving(upstream, chat_timeout=0.5) as client:
            answered = await client.post("/v1/chat/completions", json=ASKED)
            upstream.wait.set()
        return answered

    answered = asyncio.run(late())
    assert (answered.status_code, answered.json()["error"]["type"]) == (504, "deadline")


def test_more_searches_than_may_run_are_sent_away():
    async def many():
        upstream = Upstream(*[FIVE] * 99)
        upstream.wait = threading.Event()
        async with serving(upstream, "best-of-n:n=1", chats=3) as client:
            asked = [asyncio.create_task(client.post("/v1/chat/completions", json=ASKED)) for _ in range(5)]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            upstream.wait.set()
            answers = await asyncio.gather(*asked)
            again = await client.post("/v1/chat/completions", json=ASKED)
        return [one.status_code for one in answers], again.status_code

    statuses, again = asyncio.run(many())
    assert sorted(statuses) == [200] * 3 + [429] * 2
    assert again == 200


# Settings


@pytest.mark.parametrize("spec", ["best-of-n:n=3", "weighted-vote:n=3", "majority:n=3"])
def test_what_a_check_refutes_is_never_the_answer(spec):
    """The refuted text has the highest score, and two of three votes."""
    grader = ScriptedPRM(lambda problem, steps: 0.9 if "6" in "".join(steps) else 0.6)
    settings = ServerSettings(checks="equation")
    told = ask(ScriptedPolicy([SIX, SIX, FIVE]), ASKED, spec, model=grader, settings=settings).json()
    assert told["choices"][0]["message"]["content"] == FIVE, told
