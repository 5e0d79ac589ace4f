"""Best-of-N as a model: the wire by hand, in both directions; a policy's server that the test plays, and a PRM that knows sums."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import httpx
import pytest

from integration_worlds import PLAIN, RIGHT, WRONG, prm
from stepmark.backends import Completion, Message
from stepmark.models.http import Patience
from stepmark.models.policies.openai import OpenAIPolicy
from stepmark.models.remote.wire import ModelsAnswer
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM
from stepmark.serving.app import serve_in_process
from stepmark.serving.chat import problem_of
from stepmark.serving.settings import ChatModel, ServerSettings

QUICK = Patience(retries=2, first_wait=0.001)
FIVE, SIX = "2 + 3 = 5\nThe answer is 5.", "2 + 3 = 6\nThe answer is 6."
ASKED = {"messages": [{"role": "user", "content": "2 + 3?"}]}
LINES = {"split": "line", "verifier": "number"}


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
    if isinstance(upstream, ScriptedPolicy):
        return upstream
    transport = httpx.MockTransport(upstream)
    return OpenAIPolicy("http://policy/v1", "tiny", patience=QUICK, logprobs=True, transport=transport)


@asynccontextmanager
async def serving(upstream, model=None, **settings):
    """A client of a server in this process."""
    chat = ChatModel(**{**LINES, **settings})
    async with (
        serve_in_process(model or prm(), policy=policy_of(upstream), chat=chat) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stepmark") as client,
    ):
        yield client


def ask(upstream, body, model=None, **settings):
    async def once():
        async with serving(upstream, model, **settings) as client:
            return await client.post("/v1/chat/completions", json=body)

    return asyncio.run(once())


# What is answered


def test_the_best_of_four_in_openais_shape():
    upstream = Upstream(SIX, FIVE, " ", "2 + 3 = 5\n5 + 1 = 7")
    answered = ask(upstream, ASKED, n=4)
    assert answered.status_code == 200
    told = answered.json()
    assert told["object"] == "chat.completion"
    assert told["id"].startswith("chatcmpl-")
    assert told["model"] == "best-of-4"
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
    assert {key: how[key] for key in ("n", "chosen", "choose", "policy", "prm", "score_kind", "aggregate", "threshold")} == {
        "n": 4,
        "chosen": 1,
        "choose": "best",
        "policy": "tiny",
        "prm": "sums",
        "score_kind": "probability",
        "aggregate": "min",
        "threshold": 0.5,
    }  # fmt: skip
    six, five, blank, slip = how["candidates"]
    assert five == {
        "index": 1,
        "finish_reason": "stop",
        "answer": "5",
        "score": PLAIN,
        "scores": [RIGHT, PLAIN],
        "first_error": -1,
        "first_error_step": None,
        "tokens": 10,
    }
    assert (six["score"], six["first_error"]) == (WRONG, 0)
    assert (slip["scores"], slip["first_error"]) == ([RIGHT, WRONG], 1)
    assert blank["error"]["field"] == "candidates.2.solution"
    assert "score" not in blank
    [body] = upstream.bodies
    assert (body["model"], body["messages"]) == ("tiny", [{"role": "user", "content": "2 + 3?"}])
    assert (body["n"], body["temperature"]) == (4, 0.7)


def test_the_policy_is_asked_for_what_was_asked():
    upstream = Upstream(FIVE, SIX)
    ask(
        upstream,
        {
            "model": "best-of-8",
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
            "stop": "END",
            "seed": 3,
            "presence_penalty": 0,
            "user": "someone",
            "metadata": {"run": "1"},
            "n": 1,
            "tools": [],
            "tool_choice": "none",
            "response_format": {"type": "text"},
            "logprobs": False,
            "stream": False,
            "store": False,
            "stepmark": {"n": 2},
        },
        n=8,
    )
    [body] = upstream.bodies
    assert body == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2 + 3?"},
            {"role": "assistant", "content": "4"},
            {"role": "user", "content": "Sure?"},
        ],
        "n": 2,
        "temperature": 1.2,
        "top_p": 0.9,
        "max_tokens": 50,
        "stop": ["END"],
        "logprobs": True,
    }


def test_a_server_that_gives_one_at_a_time_is_asked_for_the_rest():
    upstream = Upstream(SIX, FIVE, SIX, at_once=1)
    told = ask(upstream, ASKED, n=3).json()
    assert told["stepmark"]["chosen"] == 1
    assert [body["n"] for body in upstream.bodies] == [3, 2, 1]
    assert told["usage"] == {"prompt_tokens": 7, "completion_tokens": 30, "total_tokens": 37}


def test_a_candidate_that_was_cut_off_is_passed_over():
    cut = Completion(text="2 + 3 = 5", finish="length", tokens=4)
    whole = Completion(text=SIX, finish="end", tokens=4)
    told = ask(ScriptedPolicy([cut, whole]), ASKED, n=2).json()
    assert [one["score"] for one in told["stepmark"]["candidates"]] == [RIGHT, WRONG]
    assert (told["stepmark"]["chosen"], told["choices"][0]["finish_reason"]) == (1, "stop")
    told = ask(ScriptedPolicy([cut, cut]), ASKED, n=2).json()
    assert (told["stepmark"]["chosen"], told["choices"][0]["finish_reason"]) == (0, "length")


def test_votes():
    texts = [FIVE, SIX, SIX, "It is hard."]
    told = ask(Upstream(*texts), ASKED, n=4, search="majority").json()
    assert told["model"] == "majority-of-4"
    assert told["choices"][0]["message"]["content"] == SIX
    how = told["stepmark"]
    assert (how["chosen"], how["choose"], how["why"][:28]) == (1, "majority", "its answer has 2 of 3 votes;")
    assert [one["votes"] for one in how["candidates"]] == [1, 2, 2, None]
    # 0.7 for five; 0.2 + 0.2 for six.
    told = ask(Upstream(*texts), ASKED, n=4, search="weighted-vote").json()
    assert told["choices"][0]["message"]["content"] == FIVE
    assert [one["votes"] for one in told["stepmark"]["candidates"]] == [
        pytest.approx(PLAIN),
        pytest.approx(2 * WRONG),
        pytest.approx(2 * WRONG),
        None,
    ]


def test_the_prm_reads_the_conversation_without_the_system():
    read = []

    def script(problem, steps):
        read.append(problem)
        return 0.5

    body = {"messages": [{"role": "system", "content": "Be brief."}, *ASKED["messages"]]}
    ask(Upstream(FIVE), body, ScriptedPRM(script), n=1)
    assert set(read) == {"2 + 3?"}
    several = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
    ]
    assert problem_of(several) == "User:\na\n\nAssistant:\nb\n\nUser:\nc"


def test_a_policy_in_this_process():
    counted = Completion(text=FIVE, finish="end", tokens=9, prompt_tokens=4)
    policy = ScriptedPolicy(lambda request, number: counted if number else SIX)
    told = ask(policy, {**ASKED, "seed": 1}, n=2).json()
    assert told["stepmark"]["chosen"] == 1
    assert told["stepmark"]["candidates"][1]["tokens"] == 9
    assert "usage" not in told  # of one of them nobody counted
    told = ask(ScriptedPolicy([counted, counted]), ASKED, n=2).json()
    assert told["usage"] == {"prompt_tokens": 4, "completion_tokens": 18, "total_tokens": 22}
    refused = ask(policy, {**ASKED, "presence_penalty": 1.0}, n=2)
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "presence_penalty")


def test_a_stream():
    body = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
    answered = ask(Upstream(SIX, FIVE), body, n=2)
    assert answered.headers["content-type"].startswith("text/event-stream")
    events = answered.text.split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[1:-1]]
    assert "".join(texts) == FIVE
    assert len([text for text in texts if text]) == 2
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert chunks[-2]["stepmark"]["chosen"] == 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 20
    plain = ask(Upstream(SIX, FIVE), {**ASKED, "stream": True}, n=2).text
    assert "usage" not in plain.replace("stepmark", "")


def test_models_lists_both():
    async def listed():
        async with serving(Upstream(), n=2) as client:
            return (await client.get("/v1/models")).json(), (await client.get("/openapi.json")).json()

    models, document = asyncio.run(listed())
    assert [(one["id"], "stepmark" in one) for one in models["data"]] == [
        ("sums", True),
        ("best-of-2", False),
    ]
    # stepmark's own client finds the PRM among them.
    read = ModelsAnswer.model_validate(models)
    assert [one.stepmark is None for one in read.data] == [False, True]
    operation = document["paths"]["/v1/chat/completions"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("ChatRequest")
    assert set(operation["responses"]) == {"200", "default"}


# What is refused


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"store": True}, "store"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"stop": ["a", ""]}, "stop"),
        ({"best_of": 4}, "best_of"),
        ({"stepmark": {"n": 65}}, "stepmark.n"),
        ({"stepmark": {"N": 4}}, "stepmark.N"),
        ({"stepmark": {"choose": "worst"}}, "stepmark.choose"),
        ({"stepmark": {"aggregate": "median"}}, "aggregate"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages.0.content"),
        ({"messages": [*ASKED["messages"], {"role": "assistant", "content": "So"}]}, "messages.1.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content.0.image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"stop": 4}, "stop"),
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


# A policy that fails


def failing(*answers, **settings):
    upstream = Upstream(FIVE, SIX)
    upstream.answers = list(answers)
    refused = ask(upstream, ASKED, n=2, **settings)
    return refused, upstream


OPENAI_ERROR = {"error": {"message": "This model's maximum context length is 512 tokens", "type": "x"}}
NO_CHOICES = {"choices": []}


@pytest.mark.parametrize(
    ("answers", "status", "kind", "said"),
    [
        ([httpx.Response(503, text="no")] * 3, 503, "policy_away", "HTTP 503: no"),
        ([httpx.Response(401, json={"error": {"message": "who?"}})], 502, "policy", "401"),
        ([httpx.Response(400, json=OPENAI_ERROR)], 400, "too_long", "maximum context length is 512"),
        ([httpx.Response(200, text="<html>")] * 3, 503, "policy_away", "expected JSON"),
        ([httpx.Response(200, json=NO_CHOICES)] * 3, 503, "policy_away", "expected a list of choices"),
    ],
)
def test_a_policy_that_fails(answers, status, kind, said):
    refused, _ = failing(*answers)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (status, kind), error
    assert said in error["message"]
    assert ("retry-after" in refused.headers) == (status == 503)


# Time, and clients that go away


def test_a_deadline():
    async def late():
        upstream = Upstream(FIVE, SIX)
        upstream.wait = threading.Event()
        async with serving(upstream, n=2) as client:
            body = {**ASKED, "stepmark": {"timeout": 1.0}}
            answered = await client.post("/v1/chat/completions", json=body)
            upstream.wait.set()
        return answered

    answered = asyncio.run(late())
    assert (answered.status_code, answered.json()["error"]["type"]) == (504, "deadline")


def test_more_conversations_than_may_wait_are_sent_away():
    async def many():
        upstream = Upstream(*[FIVE] * 99)
        upstream.wait = threading.Event()
        async with serving(upstream, n=1, policy_requests=1) as client:
            first = [asyncio.create_task(client.post("/v1/chat/completions", json=ASKED)) for _ in range(7)]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            await asyncio.sleep(0.05)
            entered = len(upstream.bodies)
            upstream.wait.set()
            answers = await asyncio.gather(*first)
        return [one.status_code for one in answers], entered

    statuses, entered = asyncio.run(many())
    # One is with the policy and four wait.
    assert sorted(statuses) == [200] * 5 + [429] * 2
    assert entered == 1


# Settings


@pytest.mark.parametrize("choose", ["best", "vote", "majority"])
def test_what_a_check_refutes_is_never_the_answer(choose):
    """The refuted text has the highest score, and two of three votes."""
    grader = ScriptedPRM(lambda problem, steps: 0.9 if "6" in "".join(steps) else 0.6)
    policy = ScriptedPolicy([SIX, SIX, FIVE])

    async def conversation():
        settings = ServerSettings(checks="equation")
        chat = ChatModel(n=3, **LINES)
        async with (
            serve_in_process(grader, settings, policy=policy, chat=chat) as app,
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stepmark") as http,
        ):
            answer = await http.post("/v1/chat/completions", json={**ASKED, "stepmark": {"choose": choose}})
            return answer.json()

    told = asyncio.run(conversation())
    assert told["choices"][0]["message"]["content"] == FIVE, told
    assert [bool(one.get("findings")) for one in told["stepmark"]["candidates"]] == [True, True, False]
