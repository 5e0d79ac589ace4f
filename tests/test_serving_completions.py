"""Best-of-N as a model: the wire by hand, in both directions; a policy's server that the test plays, and a PRM that knows sums."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from integration_worlds import PLAIN, RIGHT, WRONG, prm
from stepmark.batching import Message, Written
from stepmark.errors import BackendError, InputError, UsageError
from stepmark.models.http import Patience
from stepmark.models.policies.scripted import ScriptedPolicy
from stepmark.models.remote.wire import ModelsAnswer
from stepmark.models.scripted import ScriptedPRM
from stepmark.serving.app import serve_in_process
from stepmark.serving.chat import (
    ChatAnswer,
    ChatRequest,
    Completions,
    Selection,
    ServedWriter,
    ThreadWriter,
    problem_of,
)
from stepmark.serving.settings import ChatModel

QUICK = Patience(retries=2, first_wait=0.001)
FIVE, SIX = "2 + 3 = 5\nThe answer is 5.", "2 + 3 = 6\nThe answer is 6."
ASKED = {"messages": [{"role": "user", "content": "2 + 3?"}]}
LINES = {"split": "line", "verifier": "number"}


class Upstream:
    """An OpenAI-compatible server, played: gives texts in order, at most `at_once` a request."""

    def __init__(self, *texts, at_once=99, usage=True):
        self.texts, self.at_once, self.usage = list(texts), at_once, usage
        self.bodies, self.answers, self.cancelled = [], [], 0
        self.wait: asyncio.Event | None = None
        self.entered = asyncio.Event()

    async def __call__(self, request):
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"object": "list", "data": [{"id": "tiny"}]})
        self.bodies.append(json.loads(request.content))
        self.entered.set()
        if self.wait is not None:
            try:
                await self.wait.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.answers:
            return self.answers.pop(0)
        given = [self.texts.pop(0) for _ in range(min(self.bodies[-1]["n"], self.at_once))]
        choices = [
            {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for i, text in enumerate(given)
        ]
        usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 10 * len(given)}} if self.usage else {}
        return httpx.Response(200, json={"id": "x", "choices": choices, **usage})


@asynccontextmanager
async def serving(upstream, model=None, **settings):
    """A client of a server in this process."""
    writer = (
        (lambda: ThreadWriter(upstream))
        if isinstance(upstream, ScriptedPolicy)
        else (
            lambda: ServedWriter(
                "http://policy/v1#tiny", patience=QUICK, transport=httpx.MockTransport(upstream)
            )
        )
    )
    extension = Completions(ChatModel(**{**LINES, **settings}), writer)
    async with (
        serve_in_process(model or prm(), extensions=[extension]) as app,
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
    }
    assert (six["score"], six["first_error"]) == (WRONG, 0)
    assert (slip["scores"], slip["first_error"]) == ([RIGHT, WRONG], 1)
    assert blank["error"]["field"] == "candidates.2.solution"
    assert "score" not in blank
    assert upstream.bodies == [
        {"model": "tiny", "messages": [{"role": "user", "content": "2 + 3?"}], "n": 4, "temperature": 0.7}
    ]


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
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
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
        "seed": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
    }


def test_a_server_that_gives_one_at_a_time_is_asked_for_the_rest():
    upstream = Upstream(SIX, FIVE, SIX, at_once=1)
    told = ask(upstream, {**ASKED, "seed": 5}, n=3).json()
    assert told["stepmark"]["chosen"] == 1
    assert [(body["n"], body["seed"]) for body in upstream.bodies] == [(3, 5), (2, 6), (1, 7)]
    # Each request read the prompt.
    assert told["usage"] == {"prompt_tokens": 21, "completion_tokens": 30, "total_tokens": 51}


def test_a_candidate_that_was_cut_off_is_passed_over():
    cut = Written(text="2 + 3 = 5", finish="length", tokens=4)
    whole = Written(text=SIX, finish="end", tokens=4)
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


def test_a_vote_without_an_answer_falls_back_and_says_so():
    told = ask(Upstream("Good evening.", "2 + 3 = 5"), ASKED, n=2, search="majority").json()
    how = told["stepmark"]
    assert (how["chosen"], how["choose"]) == (1, "best")
    assert how["why"].startswith("no candidate could vote")


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
    counted = Written(text=FIVE, finish="end", tokens=9, prompt_tokens=4)
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


def test_the_document_describes_every_field_and_the_answers_are_as_it_says():
    described = 0
    for model in (ChatRequest, ChatAnswer):
        schema = model.model_json_schema()
        for name, one in {model.__name__: schema, **schema["$defs"]}.items():
            assert one["description"], name
            for field, what in one["properties"].items():
                known = field in ("error", "object") or "$ref" in what
                assert known or what.get("description"), f"{name}.{field}"
                described += 1
    assert described > 40
    body = {**ASKED, "stepmark": {"n": 3, "choose": "majority", "texts": True}}
    ChatAnswer.model_validate(ask(Upstream(SIX, FIVE, " "), body).json())


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


ODD = [
    None,
    True,
    -1,
    0,
    1.5,
    10**400,
    "",
    "x",
    "\ud800",
    [],
    [None],
    [{}],
    {},
    {"a": 1},
    {"type": "text"},
    [[]],
]


def test_no_value_of_any_field_is_a_failure_of_the_server():
    async def every():
        statuses = {}
        policy = ScriptedPolicy(lambda request, number: FIVE)
        async with serving(policy, n=1) as client:
            fields = [*ChatRequest.model_fields, "unknown"]
            places = [(name,) for name in fields] + [("stepmark", name) for name in Selection.model_fields]
            places += [("messages", 0, name) for name in ("role", "content", "name", "x")]
            places += [("messages", 0, "content", 0, name) for name in ("type", "text", "image_url")]
            for place in places:
                for odd in ODD:
                    body = {
                        "messages": [{"role": "user", "content": [{"type": "text", "text": "2 + 3?"}]}],
                        "stepmark": {},
                    }
                    at = body
                    for step in place[:-1]:
                        at = at[step]
                    at[place[-1]] = odd
                    raw = json.dumps(body).encode()
                    headers = {"content-type": "application/json"}
                    answered = await client.post("/v1/chat/completions", content=raw, headers=headers)
                    statuses[place, repr(odd)[:20]] = answered.status_code
                    if answered.status_code >= 400:
                        assert set(answered.json()["error"]) >= {"type", "message"}
        return statuses

    statuses = asyncio.run(every())
    assert set(statuses.values()) == {200, 400, 404}
    assert {key for key, status in statuses.items() if status == 404} <= {
        (("model",), repr(odd)[:20]) for odd in ODD
    }


def test_scores_below_zero_do_not_vote():
    model = ScriptedPRM(lambda problem, steps: -0.5, score_kind="margin", default_threshold=0.0)
    refused = ask(Upstream(FIVE, SIX), {**ASKED, "stepmark": {"n": 2, "choose": "vote"}}, model)
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "stepmark.choose")


@pytest.mark.parametrize(
    ("texts", "status", "kind", "said"),
    [
        ([" ", "\n"], 502, "policy", "the policy wrote nothing in any of 2 candidates"),
        (["unreadable", " "], 400, "input", "the PRM can read no candidate; of the first: the step says"),
    ],
)
def test_where_nothing_can_be_graded_nothing_is_chosen(texts, status, kind, said):
    refused = ask(Upstream(*texts), ASKED, n=2)
    assert (refused.status_code, refused.json()["error"]["type"]) == (status, kind)
    assert said in refused.json()["error"]["message"]


# A policy that fails


def failing(*answers, **settings):
    upstream = Upstream(FIVE, SIX)
    upstream.answers = list(answers)
    refused = ask(upstream, ASKED, n=2, **settings)
    return refused, upstream


def test_a_policy_that_is_full_for_a_moment_is_asked_again():
    answered, upstream = failing(httpx.Response(429), httpx.Response(503, text="loading"))
    assert answered.status_code == 200
    assert len(upstream.bodies) == 3


OPENAI_ERROR = {"error": {"message": "This model's maximum context length is 512 tokens", "type": "x"}}
NO_CHOICES = {"choices": []}
TOOL_CALL = {"choices": [{"message": {"content": "x"}, "finish_reason": "tool_calls"}]}


@pytest.mark.parametrize(
    ("answers", "status", "kind", "said"),
    [
        ([httpx.Response(503, text="no")] * 3, 503, "policy_away", "HTTP 503: no); try again later"),
        ([httpx.Response(500, json={"message": "oh"})] * 3, 503, "policy_away", "HTTP 500: oh"),
        ([httpx.Response(401, json={"error": {"message": "who?"}})], 502, "policy", "STEPMARK_API_KEY"),
        ([httpx.Response(404, text="nothing here")], 502, "policy", "answers 404: nothing here"),
        ([httpx.Response(400, json=OPENAI_ERROR)], 400, "too_long", "maximum context length is 512"),
        (
            [httpx.Response(422, json={"message": "temperature"})],
            400,
            "input",
            "refuses the request: temperature",
        ),
        ([httpx.Response(200, text="<html>")] * 3, 503, "policy_away", "expected JSON"),
        ([httpx.Response(200, json=NO_CHOICES)], 502, "policy", "expected a list of choices"),
        ([httpx.Response(200, json=TOOL_CALL)], 502, "policy", "found 'tool_calls'"),
    ],
)
def test_a_policy_that_fails(answers, status, kind, said):
    refused, _ = failing(*answers)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (status, kind), error
    assert said in error["message"]
    assert ("retry-after" in refused.headers) == (status == 503)


def test_a_policy_that_is_not_there():
    async def gone(request):
        raise httpx.ConnectError("refused")

    refused = ask(gone, ASKED)
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "policy_away")
    assert "ConnectError" in refused.json()["error"]["message"]


def test_a_policy_in_this_process_that_fails():
    def broken(request, number):
        raise BackendError("out of memory")

    refused = ask(ScriptedPolicy(broken), ASKED)
    assert (refused.status_code, refused.json()["error"]["type"]) == (502, "policy")

    def unread(request, number):
        raise InputError("a control token", field="messages")

    refused = ask(ScriptedPolicy(unread), ASKED)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "input")


def test_the_only_model_of_a_server_needs_no_name():
    upstream = Upstream(FIVE, SIX)

    async def once():
        writer = ServedWriter("http://policy/v1", patience=QUICK, transport=httpx.MockTransport(upstream))
        extension = Completions(ChatModel(n=2, **LINES), lambda: writer)
        async with (
            serve_in_process(prm(), extensions=[extension]) as app,
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stepmark") as client,
        ):
            return (await client.post("/v1/chat/completions", json=ASKED)).json()

    assert asyncio.run(once())["stepmark"]["policy"] == "tiny"
    assert upstream.bodies[0]["model"] == "tiny"


# Time, and clients that go away


def test_a_deadline():
    async def late():
        upstream = Upstream(FIVE, SIX)
        upstream.wait = asyncio.Event()
        async with serving(upstream, n=2) as client:
            answered = await client.post(
                "/v1/chat/completions",
                json={**ASKED, "stepmark": {"timeout": 1.5}},  # by then it is with the policy
            )
        return answered, upstream.cancelled

    answered, cancelled = asyncio.run(late())
    assert (answered.status_code, answered.json()["error"]["type"]) == (504, "deadline")
    assert "within 1.5 s" in answered.json()["error"]["message"]
    assert cancelled == 1


def test_a_client_that_goes_away_takes_its_request_to_the_policy_along():
    async def gone():
        upstream = Upstream(FIVE, SIX)
        upstream.wait = asyncio.Event()
        writer = ServedWriter(
            "http://policy/v1#tiny", patience=QUICK, transport=httpx.MockTransport(upstream)
        )
        extension = Completions(ChatModel(n=2, **LINES), lambda: writer)
        body = json.dumps(ASKED).encode()
        async with serve_in_process(prm(), extensions=[extension]) as app:
            messages = [{"type": "http.request", "body": body, "more_body": False}]
            sent = []

            async def receive():
                if messages:
                    return messages.pop(0)
                await upstream.entered.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                sent.append(message)

            scope = {
                "type": "http",
                "method": "POST",
                "path": "/v1/chat/completions",
                "raw_path": b"/v1/chat/completions",
                "root_path": "",
                "scheme": "http",
                "query_string": b"",
                "headers": [(b"host", b"stepmark"), (b"content-type", b"application/json")],
                "client": ("127.0.0.1", 1),
                "server": ("stepmark", 80),
                "http_version": "1.1",
            }
            await asyncio.wait_for(app(scope, receive, send), 60)
        return upstream.cancelled, sent

    assert asyncio.run(gone()) == (1, [])


def test_more_conversations_than_may_wait_are_sent_away():
    async def many():
        upstream = Upstream(*[FIVE] * 99)
        upstream.wait = asyncio.Event()
        async with serving(upstream, n=1, policy_requests=1) as client:
            first = [asyncio.create_task(client.post("/v1/chat/completions", json=ASKED)) for _ in range(7)]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            entered = len(upstream.bodies)
            upstream.wait.set()
            answers = await asyncio.gather(*first)
        return [one.status_code for one in answers], entered

    statuses, entered = asyncio.run(many())
    # One is with the policy and four wait.
    assert sorted(statuses) == [200] * 5 + [429] * 2
    assert entered == 1


# Settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n": 0}, "n=0: expected 1 or more"),
        ({"n": 100}, "`n` 100: expected 1 to 64"),
        ({"max_n": 1000}, r"max_n=1000: expected a number in \[1, 256\]"),
        ({"temperature": 0.0}, "all 8 candidates would be the same"),
        ({"chat_timeout": 0.0}, "chat_timeout"),
        ({"split": "lines"}, "Did you mean 'line'"),
        ({"split": "marker"}, "marker"),
    ],
)
def test_settings_that_cannot_work(settings, said):
    with pytest.raises(UsageError, match=said):
        ChatModel(**settings)
    assert ChatModel(n=1, temperature=0.0).model == "best-of-1"
    assert ChatModel(search="weighted-vote", chat_name="mine").model == "mine"
