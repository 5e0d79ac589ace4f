"""The policy behind a server, against a small real HTTP server on this machine, well-behaved and not."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stepmark.backends import ChoiceLogprobs, Completion, Completions, Message
from stepmark.errors import (
    BackendError,
    TooLongError,
    UsageError,
)
from stepmark.models.http import Patience
from stepmark.models.policies.openai import OpenAIPolicy

USER = (Message(role="user", content="2 + 3 = 6?"),)
PATIENCE = Patience(retries=3, first_wait=0.001, max_wait=1.0, timeout=60.0)


class Fake:
    """A server: `reply(path, body)` gives a JSON object, or (status, headers, bytes), or raises to hang up."""

    def __init__(self, reply):
        self.reply = reply
        self.bodies = []
        self.headers = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def do_GET(self):
                self.serve(None)

            def serve(self, body):
                fake.bodies.append((self.path, body))
                fake.headers.append(dict(self.headers))
                try:
                    answer = fake.reply(self.path, body)
                except ConnectionAbortedError:
                    self.close_connection = True
                    return
                status, headers, data = (
                    answer if isinstance(answer, tuple) else (200, {}, json.dumps(answer).encode())
                )
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_port}/v1"

    @property
    def asked(self):
        """The bodies of the requests that are not the policy's examination of the server."""
        return [body for _, body in self.bodies if "Count from 1 to 9" not in json.dumps(body)]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


def connect(fake, **more):
    return OpenAIPolicy(fake.url, **({"model": "m", "patience": PATIENCE} | more))


def chat(*texts, finish="stop", tokens=2, prompt=10, **more):
    return {
        "choices": [
            {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": finish, **more}
            for i, text in enumerate(texts)
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": tokens * len(texts)},
    }


def raw(*texts, finish="stop", tokens=2, prompt=10, **more):
    return {
        "choices": [
            {"index": i, "text": text, "finish_reason": finish, **more} for i, text in enumerate(texts)
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": tokens * len(texts)},
    }


def continuing(answer):
    """A server that continues a begun reply; it counts words as tokens, and three around each turn."""

    def reply(path, body):
        if "Count from 1 to 9" not in json.dumps(body):
            return answer(path, body)
        count = sum(3 + len(message["content"].split()) for message in body["messages"])
        count += -1 if body.get("continue_final_message") else 2
        return chat(" 7, 8", prompt=count, finish="length")

    return reply


def afresh(path, body):
    """A server that takes every field and answers anew."""
    count = sum(3 + len(message["content"].split()) for message in body["messages"]) + 2
    return chat("1, 2, 3", prompt=count, finish="length")


# What is sent


def test_messages_go_to_chat_with_their_settings():
    with Fake(lambda path, body: chat("a", "b")) as fake:
        policy = connect(fake)
        request = Completions(
            prompt=USER,
            n=2,
            temperature=0.7,
            top_p=0.9,
            top_k=20,
            max_tokens=55,
            stop=("</think>",),
            seed=5,
        )
        assert policy.complete_many([request]) == [
            [
                Completion(text="a", finish="end or stop", tokens=None, prompt_tokens=10),
                Completion(text="b", finish="end or stop", tokens=None, prompt_tokens=10),
            ]
        ]
    assert fake.bodies == [
        (
            "/v1/chat/completions",
            {
                "model": "m",
                "messages": [{"role": "user", "content": "2 + 3 = 6?"}],
                "n": 2,
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": 20,
                "max_tokens": 55,
                "stop": ["</think>"],
            },
        )
    ]
    assert "Authorization" not in fake.headers[0]
    assert policy.tokens_written == 4
    assert policy.name == policy.identity == "m"


def test_raw_text_goes_to_completions_with_its_prefill():
    with Fake(lambda path, body: raw(" 5", tokens=3)) as fake:
        [[written]] = connect(fake).complete_many([Completions(prompt="2 + 3", prefill=" =")])
    assert written == Completion(text=" 5", finish="end", tokens=3, prompt_tokens=10)
    assert fake.bodies == [
        (
            "/v1/completions",
            {"model": "m", "prompt": "2 + 3 =", "n": 1, "temperature": 0.0, "max_tokens": 1024},
        )
    ]


def test_a_prefill_is_a_last_message_to_be_continued():
    with Fake(continuing(lambda path, body: chat(" six"))) as fake:
        policy = connect(fake)
        policy.complete_many(
            [Completions(prompt=USER, prefill="It is"), Completions(prompt=USER, prefill="It is")]
        )
        policy.complete_many([Completions(prompt=USER, prefill="It is")])
    body = fake.asked[0]
    assert body["messages"] == [
        {"role": "user", "content": "2 + 3 = 6?"},
        {"role": "assistant", "content": "It is"},
    ]
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert len(fake.asked) == 3
    assert len(fake.bodies) == 3 + 3, "the server is examined once"


def test_a_server_that_answers_afresh_is_found_out():
    with Fake(afresh) as fake, pytest.raises(BackendError, match="does not continue a begun reply"):
        connect(fake).complete_many([Completions(prompt=USER, prefill="It is")])
    assert fake.asked == [], "nothing was asked of such a server"


def test_the_api_key_comes_from_the_named_variable(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "not to be sent unasked")
    with Fake(lambda path, body: raw("x")) as fake:
        connect(fake, api_key_env="MY_KEY").complete_many([Completions(prompt="p")])
        connect(fake).complete_many([Completions(prompt="p")])
    assert fake.headers[0]["Authorization"] == "Bearer secret"
    assert "Authorization" not in fake.headers[1]
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(UsageError, match="MY_KEY holds no API key"):
        OpenAIPolicy("http://127.0.0.1:1/v1", "m", api_key_env="MY_KEY")


# What comes back


@pytest.mark.parametrize(
    ("choice", "stop", "finish"),
    [
        ({"finish_reason": "length"}, (), "length"),
        ({"finish_reason": "stop"}, (), "end"),
        ({"finish_reason": "stop"}, ("x",), "end or stop"),
        ({"finish_reason": "stop", "stop_reason": "x"}, ("x",), "stop"),
        ({"finish_reason": "stop", "stop_reason": None}, ("x",), "end"),
        ({"finish_reason": "stop", "stop_reason": 151643}, ("x",), "end"),
        ({"finish_reason": "stop", "matched_stop": "x"}, ("x",), "stop"),
        ({"finish_reason": "stop", "matched_stop": 2}, ("x",), "end"),
    ],
)
def test_why_a_text_ended(choice, stop, finish):
    with Fake(lambda path, body: {"choices": [{"text": "t", **choice}]}) as fake:
        [[written]] = connect(fake).complete_many([Completions(prompt="p", stop=stop)])
    assert written == Completion(text="t", finish=finish, tokens=None)


def test_log_probabilities_of_the_text():
    def reply(path, body):
        if path.endswith("/chat/completions"):
            assert body["logprobs"] is True
            return chat("a b", logprobs={"content": [{"logprob": -0.5}, {"logprob": -0.25}]})
        assert body["logprobs"] == 1
        return raw("a b", "c", logprobs={"token_logprobs": [-1.0, -0.5, -0.25]})

    with Fake(reply) as fake:
        policy = connect(fake, logprobs=True)
        [[one]] = policy.complete_many([Completions(prompt=USER)])
        [two] = policy.complete_many([Completions(prompt="p", n=2, temperature=1.0)])
    assert (one.tokens, one.logprob) == (2, -0.75)
    assert [(sample.tokens, sample.logprob) for sample in two] == [(3, -1.75), (3, -1.75)]


@pytest.mark.parametrize("path", ["chat", "raw"])
def test_a_server_that_refuses_log_probabilities_is_asked_without(path):
    """Several samples have one count; log-probabilities would tell each one's."""

    def reply(path, body):
        if "logprobs" in body:
            return (400, {}, b'{"error": {"message": "logprobs is not supported"}}')
        return chat("a", "b") if path.endswith("chat/completions") else raw("a", "b")

    with Fake(reply) as fake:
        policy = connect(fake, logprobs=True)
        for _ in range(2):
            [found] = policy.complete_many(
                [Completions(prompt=USER if path == "chat" else "ask", n=2, temperature=1)]
            )
            assert [(one.text, one.tokens) for one in found] == [("a", None), ("b", None)]
        assert ["logprobs" in body for body in fake.asked] == [True, False, False]


def test_a_server_that_gives_fewer_samples_is_asked_for_the_rest():
    served = iter("abcdefgh")

    def reply(path, body):
        return raw(*[next(served) for _ in range(min(body["n"], 2))])

    with Fake(reply) as fake:
        [samples] = connect(fake).complete_many([Completions(prompt="p", n=5, temperature=1.0)])
    assert [sample.text for sample in samples] == ["a", "b", "c", "d", "e"]
    assert [body["n"] for body in fake.asked] == [5, 3, 1]


def test_many_requests_keep_their_order():
    later = threading.Event()

    def reply(path, body):
        number = int(body["prompt"].removeprefix("p"))
        if number:
            later.set()
        assert later.wait(30)  # the first is answered after one that was asked later
        return raw(f"answer {number}")

    with Fake(reply) as fake:
        replies = connect(fake, concurrency=8).complete_many([Completions(prompt=f"p{i}") for i in range(20)])
    assert [reply[0].text for reply in replies] == [f"answer {i}" for i in range(20)]


# Trouble


def flaky(failures, good):
    """Fails as often as there are failures, then answers."""
    left = list(failures)

    def reply(path, body):
        if left:
            failure = left.pop(0)
            if failure is ConnectionAbortedError:
                raise ConnectionAbortedError
            return failure
        return good

    return reply


@pytest.mark.parametrize(
    "failures",
    [
        [(429, {}, b"slow down")] * 3,
        [(500, {}, b"oops"), (503, {}, b"oops"), (502, {}, b"<html>bad gateway</html>")],
        [ConnectionAbortedError] * 3,
        [(200, {}, b"not JSON"), (200, {}, b"[1]"), (200, {}, b'{"choices": []}')],
        [
            raw("x", finish="abort"),
            raw("x", finish=None),
            {"choices": [{"text": None, "finish_reason": "stop"}]},
        ],
    ],
)
def test_trouble_that_passes_is_sat_out(failures):
    with Fake(flaky(failures, raw("fine"))) as fake:
        [[written]] = connect(fake).complete_many([Completions(prompt="p")])
    assert written.text == "fine"
    assert len(fake.bodies) == 4


def test_a_request_that_fails_costs_only_itself():
    def reply(path, body):
        return (500, {}, b"dead") if body["prompt"] == "p3" else raw(f"answer to {body['prompt']}")

    async def asked(policy):
        requests = [Completions(prompt=f"p{i}") for i in range(4)]
        return await asyncio.gather(*map(policy.complete, requests), return_exceptions=True)

    with Fake(reply) as fake:
        *replies, failure = asyncio.run(asked(connect(fake, concurrency=4)))
    assert [reply[0].text for reply in replies] == [f"answer to p{i}" for i in range(3)]
    assert isinstance(failure, BackendError)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    ],
)
def test_a_request_that_is_too_long_costs_only_itself(message):
    def reply(path, body):
        if body["prompt"] == "long":
            return (400, {}, json.dumps({"error": {"message": message}}).encode())
        return raw("fine")

    with Fake(reply) as fake:
        first, second = connect(fake).complete_many([Completions(prompt="long"), Completions(prompt="short")])
    assert isinstance(first, TooLongError)
    assert "lower max_tokens" in str(first)
    assert second[0].text == "fine"
    assert len(fake.bodies) == 2, "a refusal is not asked again"


# Choosing


def chat_table(**table):
    entries = [{"token": token, "logprob": value} for token, value in table.items()]
    return chat("x", finish="length", logprobs={"content": [{"logprob": -1.0, "top_logprobs": entries}]})


def test_options_among_the_likeliest_tokens_are_read_there():
    def reply(path, body):
        if path.endswith("/chat/completions"):
            assert (body["max_tokens"], body["temperature"], body["top_logprobs"]) == (1, 1.0, 20)
            return chat_table(**{" yes": -0.25, " Yes": -3.0, " no": -1.5})
        assert (body["max_tokens"], body["temperature"], body["logprobs"]) == (1, 1.0, 20)
        return raw("x", finish="length", logprobs={"top_logprobs": [{" no": -0.5, " yes": -1.0, "!": -4.0}]})

    choice = ChoiceLogprobs(prompt=USER, options=(" yes", " no"))
    with Fake(reply) as fake:
        policy = connect(fake)
        assert policy.choose_many([choice, ChoiceLogprobs(prompt="p", options=(" yes", " no"))]) == [
            [-0.25, -1.5],
            [-1.0, -0.5],
        ]
    assert policy.tokens_written == 0


@pytest.mark.parametrize("prompt", [USER, "p"])
def test_an_option_that_is_not_among_the_likeliest_tokens_is_an_error_and_never_a_guess(prompt):
    def answer(path, body):
        if path.endswith("/chat/completions"):
            return chat_table(**{" yes": -0.01})
        return raw("x", finish="length", logprobs={"top_logprobs": [{" yes": -0.01}]})

    with Fake(continuing(answer)) as fake, pytest.raises(BackendError, match="tokenizer"):
        connect(fake).choose_many([ChoiceLogprobs(prompt=prompt, options=(" yes", " maybe"))])


# With the model's tokenizer: token ids are sent, and a server that runs a model agrees with the local policy


def test_a_model_behind_a_server_agrees_with_the_same_model_here(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from stepmark.models.policies.local import LocalPolicy
    from tiny_language_model import tiny_model, tiny_tokenizer

    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    lock = threading.Lock()

    def serve(path, body):
        ids = body["prompt"]
        assert all(isinstance(token, int) for token in ids)
        with lock, torch.no_grad():
            table = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        if body.get("echo"):
            values = [None] + [float(table[i - 1, ids[i]]) for i in range(1, len(ids))]
            return raw(
                "x",
                finish="length",
                prompt=len(ids),
                logprobs={"tokens": [tokenizer.decode([i]) for i in ids], "token_logprobs": values},
            )
        if "logprobs" in body:
            best = table[-1].topk(4)
            top = {
                tokenizer.decode([int(token)]): float(value)
                for value, token in zip(best.values, best.indices, strict=True)
            }
            return raw("x", finish="length", logprobs={"top_logprobs": [top]})
        new = []
        with lock, torch.no_grad():
            for _ in range(body["max_tokens"]):
                new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
        text = tokenizer.decode(ids + new, skip_special_tokens=True)
        return raw(
            text[len(tokenizer.decode(ids, skip_special_tokens=True)) :], finish="length", tokens=len(new)
        )

    local = LocalPolicy(model, tokenizer, name="tiny")
    # Two options that stand among the likeliest tokens, so that the table is read as well.
    ids = tokenizer("the step")["input_ids"]
    with torch.no_grad():
        best = model(torch.tensor([ids])).logits[0, -1].topk(4).indices.tolist()
    likely = [tokenizer.decode([token]) for token in best]
    likely = [text for text in likely if len(tokenizer("the step" + text)["input_ids"]) == len(ids) + 1]
    assert len(likely) >= 2
    choices = [
        ChoiceLogprobs(prompt=USER, prefill="let us see", options=(" yes", " no")),
        ChoiceLogprobs(prompt=USER, options=("yes it is", "no")),
        ChoiceLogprobs(prompt="is it correct? ", options=("yes", "no")),
        ChoiceLogprobs(prompt="the step", options=(likely[0], likely[1])),
    ]
    writes = [
        Completions(prompt=USER, prefill="let us", max_tokens=5),
        Completions(prompt="the step", max_tokens=4),
    ]
    with Fake(serve) as fake:
        policy = connect(fake, tokenizer=str(tmp_path))
        for here, there in zip(local.choose_many(choices), policy.choose_many(choices), strict=True):
            assert there == pytest.approx(here, abs=1e-5)
        for [here], [there] in zip(local.complete_many(writes), policy.complete_many(writes), strict=True):
            assert (there.text, there.tokens) == (here.text, here.tokens)
    assert {path for path, _ in fake.bodies} == {"/v1/completions"}
