"""Searches step by step as a model: a policy that is written down, a PRM that knows sums, and the same search driven directly."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import httpx
import pytest

from integration_worlds import PLAIN, RIGHT, WRONG, prm
from stepmark.batching import Written
from stepmark.cli import main
from stepmark.errors import BackendError, UsageError
from stepmark.models import policies, scorer
from stepmark.models.policies.scripted import ScriptedPolicy
from stepmark.models.scripted import ScriptedPRM
from stepmark.problems import answers
from stepmark.records import Problem
from stepmark.search.base import Grading, Steps
from stepmark.search.run import run
from stepmark.serving.app import serve_in_process
from stepmark.serving.routes_completions import Completions, chat_extensions
from stepmark.serving.settings import ChatModel
from stepmark.serving.stepwise import search_of

ASKED = {
    "messages": [{"role": "system", "content": "One step a line."}, {"role": "user", "content": "2 + 3 + 1?"}]
}
FIVE = "2 + 3 = 5\n5 + 1 = 6\nThe answer is 6."


def write(request, number):
    """Each fourth sum is right; after two sums comes the answer, and the end."""
    said = request.prefill.split("\n")
    if len(said) == 1:
        return f"2 + 3 = {5 if number % 4 == 2 else 7}\n"
    if len(said) == 2:
        before = int(said[0].rsplit(" ", 1)[1])
        return f"{before} + 1 = {before + 1 if number % 4 == 2 else 9}\n"
    return f"The answer is {said[1].rsplit(' ', 1)[1]}."


@asynccontextmanager
async def serving(policy, model=None, **settings):
    settings = {"search": "beam", "verifier": "number", **settings}
    completions = Completions(ChatModel(**settings), policy=lambda: policy)
    async with (
        serve_in_process(model or prm(), extensions=[completions]) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stepmark") as client,
    ):
        yield client, app.service


def ask(policy, body=ASKED, model=None, **settings):
    async def once():
        async with serving(policy, model, **settings) as (client, _):
            return await client.post("/v1/chat/completions", json=body)

    return asyncio.run(once())


@pytest.mark.parametrize("search", ["beam", "dvts", "rebase", "mcts"])
def test_the_answer_is_what_the_search_finds(search):
    answered = ask(ScriptedPolicy(write), {**ASKED, "seed": 3}, search=search, n=8)
    told = answered.json()
    assert answered.status_code == 200, told
    assert told["model"] == f"{search}-of-8"
    assert told["choices"][0]["message"]["content"] == FIVE
    assert told["choices"][0]["finish_reason"] == "stop"
    how = told["stepmark"]
    assert (how["search"], how["choose"], how["prm"]) == (search, "best", "sums")
    best = how["candidates"][how["chosen"]]
    assert (best["scores"], best["score"], best["first_error"], best["answer"]) == (
        [RIGHT, RIGHT, PLAIN],
        PLAIN,
        -1,
        "6",
    )
    # The same search without a server, over the conversation's problem.
    settings = search_of(search, 8, Steps(seed=3), Grading(aggregate="min"))
    policy, model, verifier = ScriptedPolicy(write), prm(), answers.NumberVerifier()
    direct = {**policies.answerers(policy), **scorer.answerers(model), **answers.answerers(verifier)}
    [found] = run([Problem(text="2 + 3 + 1?")], settings, direct)
    assert found.solution.text == FIVE
    assert [one["score"] for one in how["candidates"]] == [one.aggregate for one in found.candidates]


def test_what_the_policy_and_the_prm_are_given():
    prompts, problems = [], []

    def noted(request, number):
        prompts.append(request.prompt)
        return write(request, number)

    def script(problem, steps):
        problems.append(problem)
        return 0.5

    ask(ScriptedPolicy(noted), {**ASKED, "temperature": 1.1}, ScriptedPRM(script), n=4)
    assert {tuple((m.role, m.content) for m in prompt) for prompt in prompts} == {
        (("system", "One step a line."), ("user", "2 + 3 + 1?"))
    }
    assert set(problems) == {"2 + 3 + 1?"}


def test_texts_and_choice_and_width_of_a_request():
    body = {**ASKED, "stepmark": {"n": 4, "choose": "majority", "texts": True, "aggregate": "product"}}
    how = ask(ScriptedPolicy(write), body, n=8).json()["stepmark"]
    assert (how["choose"], how["aggregate"]) == ("majority", "product")
    best = how["candidates"][how["chosen"]]
    assert best["text"] == FIVE
    assert best["steps"] == FIVE.split("\n")
    assert best["score"] == pytest.approx(RIGHT * RIGHT * PLAIN)


def test_tokens_are_counted_where_the_policy_counts():
    def counted(request, number):
        text = write(request, number)
        return Written(
            text=text.rstrip("\n"), finish="stop" if text.endswith("\n") else "end", tokens=3, prompt_tokens=5
        )

    told = ask(ScriptedPolicy(counted), n=4, search="dvts").json()
    # Four first steps, four second ones, four ends: three requests.
    assert told["usage"] == {"prompt_tokens": 15, "completion_tokens": 36, "total_tokens": 51}
    assert "usage" not in ask(ScriptedPolicy(write), n=4).json()


def test_many_at_once_share_the_batcher_and_give_everything_back():
    async def many():
        async with serving(ScriptedPolicy(write), n=4, policy_requests=4) as (client, service):
            every = [client.post("/v1/chat/completions", json=ASKED) for _ in range(9)]
            answered = await asyncio.gather(*every)
            return [
                one.json()["choices"][0]["message"]["content"] for one in answered
            ], service.live.batcher.figures

    texts, figures = asyncio.run(many())
    assert texts == [FIVE] * 9
    assert figures.waiting_requests == 0


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"max_tokens": 50}, "max_tokens"),
        ({"stop": ["END"]}, "stop"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"temperature": 0, "stepmark": {"n": 4}}, "temperature"),
        ({"stepmark": {"n": 6}}, "stepmark"),
        ({"tools": [{}]}, "tools"),
    ],
)
def test_what_cannot_be_honoured(more, field):
    refused = ask(ScriptedPolicy(write), {**ASKED, **more})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, field), refused.text


def test_a_policy_that_fails():
    def broken(request, number):
        if request.prefill:
            raise BackendError("out of memory")
        return write(request, number)

    refused = ask(ScriptedPolicy(broken))
    assert (refused.status_code, refused.json()["error"]["type"]) == (502, "policy")
    assert "out of memory" in refused.json()["error"]["message"]


def test_no_solution_is_no_answer():
    endless = ScriptedPolicy(lambda request, number: Written(text="", finish="length"))
    refused = ask(endless, n=4)
    assert (refused.status_code, refused.json()["error"]["type"]) == (502, "policy")
    assert "came to no solution" in refused.json()["error"]["message"]


def test_a_deadline_ends_the_search_at_its_next_question():
    asked, go = [], threading.Event()

    def slow(request, number):
        asked.append(request.prefill)
        go.wait(30)
        return write(request, number)

    async def late():
        async with serving(ScriptedPolicy(slow), n=4) as (client, _):
            body = {**ASKED, "stepmark": {"timeout": 1.5}}  # by then it has asked
            answered = await client.post("/v1/chat/completions", json=body)
            go.set()
            await asyncio.sleep(0.1)  # a search that went on would ask again at once
            return answered

    answered = asyncio.run(late())
    assert (answered.status_code, answered.json()["error"]["type"]) == (504, "deadline")
    assert set(asked) == {""}


def test_settings_that_cannot_work(capsys):
    for settings, said in (
        ({"search": "beam", "n": 6}, None),
        ({"search": "mcts", "n": 1, "temperature": 0.0}, "all 1 candidates would be"),
        ({"search": "beam", "split": "sentence"}, "beam ends steps"),
    ):
        if said is None:
            ChatModel(**settings)  # what it means is known with the PRM
            continue
        with pytest.raises(UsageError, match=said):
            ChatModel(**settings)
    with pytest.raises(UsageError, match="needs a policy and no writer"):
        Completions(ChatModel(search="beam"), lambda: None)
    with pytest.raises(UsageError, match="needs a writer and no policy"):
        Completions(ChatModel())
    words = [
        "--prm",
        "integration_worlds:prm",
        "--port",
        "0",
        "--search",
        "beam",
        "--policy",
        "integration_worlds:policy",
    ]
    assert main(["serve", *words, "--n", "6", "--verifier", "number"]) == 2
    assert "expected a multiple of 4, found 6" in capsys.readouterr().err


def test_the_flags_make_the_search():
    [made] = chat_extensions("integration_worlds:policy", ChatModel(search="rebase", n=3, verifier="number"))
    assert made is not None
    assert made.settings.model == "rebase-of-3"
    made.load(prm())


def test_a_stream_of_a_search():
    answered = ask(ScriptedPolicy(write), {**ASKED, "stream": True})
    events = [one.removeprefix("data: ") for one in answered.text.split("\n\n") if one]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(one) for one in events]
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in chunks) == FIVE
    assert chunks[-1]["stepmark"]["search"] == "beam"
    assert WRONG < PLAIN


def test_a_model_with_a_memory_reads_each_step_once_and_forgets_what_is_given_back(zoo):
    from stepmark import load_prm

    def loaded():
        return load_prm(str(zoo["token-classification"].folder), dtype="float32", device="cpu")

    async def searched():
        async with serving(ScriptedPolicy(write), loaded(), n=8) as (client, service):
            answered = await client.post("/v1/chat/completions", json={**ASKED, "seed": 3})
            batcher = service.live.batcher
            for _ in range(3000):  # what was given back goes with the next turn of the batcher
                if not batcher.figures.memory_tokens:
                    break
                await asyncio.sleep(0.01)
            return answered.json()["stepmark"], batcher.figures

    how, figures = asyncio.run(searched())
    assert figures.tokens_computed == figures.tokens_distinct > 0
    assert figures.memory_tokens == 0
    model, policy = loaded(), ScriptedPolicy(write)
    settings = search_of("beam", 8, Steps(seed=3), Grading(aggregate=model.default_aggregate))
    direct = {**policies.answerers(policy), **scorer.answerers(model)}
    [found] = run([Problem(text="2 + 3 + 1?")], settings, direct)
    for one, other in zip(how["candidates"], found.candidates, strict=True):
        assert one["scores"] == pytest.approx(other.scores, abs=1e-5)
    assert how["chosen"] == found.chosen
