"""`stepmark serve --search`: its flags; and the clients of others against a running server.

The slow tests need an environment with `openai` and `litellm`: `STEPMARK_OPENAI_PYTHON=…/bin/python pytest -m slow
tests/test_serving_completions_cli.py`, the Python of one made from `benchmarks/peers/openai.txt`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from integration_worlds import PLAIN, WRONG, prm
from stepmark.cli import main
from stepmark.serving.app import serve_in_process
from stepmark.serving.settings import ChatModel

TESTS = Path(__file__).resolve().parent
PYTHON = os.environ.get("STEPMARK_OPENAI_PYTHON")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--search", "majority"], "--policy"),
        (["--policy", "x:y", "--isolation", "unsafe"], "'code'"),
        (["--chats", "4"], "--policy"),
        (["--search", "beams", "--policy", "x:y"], "beams"),
        (["--search", "best-of-n:m=4", "--policy", "x:y"], "m"),
        (
            ["--prm", "integration_worlds:prm", "--port", "0", "--search", "best-of-n", "--policy", "no_such:policy"],
            "no module 'no_such'",
        ),
        (
            [
                *("--prm", "integration_worlds:prm", "--port", "0", "--search", "majority"),
                *("--policy", "integration_worlds:policy", "--verifier", "maths"),
            ],
            "Did you mean 'math'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_and_ends_with_2(words, said, capsys):
    assert main(["serve", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_policy_by_its_factory_answers():
    chat = ChatModel(search="weighted-vote:n=3", verifier="number")

    async def once():
        async with (
            serve_in_process(prm(), policy="integration_worlds:policy", chat=chat) as app,
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stepmark") as client,
        ):
            return await client.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": "2 + 3?"}]}
            )

    told = asyncio.run(once()).json()
    # 0.7 for five, 0.2 + 0.2 for six.
    assert told["choices"][0]["message"]["content"] == "2 + 3 = 5\nThe answer is 5."
    assert [one["aggregate"] for one in told["stepmark"]["candidates"]] == [WRONG, WRONG, PLAIN]
    assert told["usage"] == {"prompt_tokens": 7, "completion_tokens": 33, "total_tokens": 40}


CLIENTS = """
import asyncio, json, sys
import litellm, openai

address, key = sys.argv[1:]
asked = [{"role": "user", "content": "2 + 3?"}]
client = openai.OpenAI(base_url=address + "/v1", api_key=key, max_retries=0)
told = {}
told["models"] = [one.id for one in client.models.list()]
whole = client.chat.completions.create(model="weighted-vote:n=3", messages=asked)
told["whole"] = [whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.completion_tokens]
told["chosen"] = whole.model_extra["stepmark"]["chosen"]
more = client.chat.completions.create(model="best-of-n:n=2", messages=asked, temperature=0.9)
told["more"] = [len(more.model_extra["stepmark"]["candidates"]), more.choices[0].message.content]
stream = client.chat.completions.create(
    model="weighted-vote:n=3", messages=asked, stream=True, stream_options={"include_usage": True}
)
chunks = list(stream)
told["stream"] = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
told["stream usage"] = chunks[-1].usage.completion_tokens
for name, wrong in (("n", {"n": 2}), ("model", {"model": "other"}), ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]})):
    try:
        client.chat.completions.create(**{"model": "weighted-vote:n=3", "messages": asked, **wrong})
    except openai.APIStatusError as error:
        told["error " + name] = [type(error).__name__, error.body["field"]]
try:
    openai.OpenAI(base_url=address + "/v1", api_key="wrong", max_retries=0).models.list()
except openai.AuthenticationError as error:
    told["key"] = error.status_code


async def together():
    async with openai.AsyncOpenAI(base_url=address + "/v1", api_key=key) as several:
        every = [several.chat.completions.create(model="weighted-vote:n=3", messages=asked) for _ in range(8)]
        return [one.choices[0].message.content for one in await asyncio.gather(*every)]


told["together"] = sorted(set(asyncio.run(together())))
found = litellm.completion(model="openai/weighted-vote:n=3", messages=asked, api_base=address + "/v1", api_key=key)
told["litellm"] = [found.choices[0].message.content, found.usage.completion_tokens]
pieces = litellm.completion(
    model="openai/weighted-vote:n=3", messages=asked, api_base=address + "/v1", api_key=key, stream=True
)
told["litellm stream"] = "".join(piece.choices[0].delta.content or "" for piece in pieces)
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    PYTHON is None,
    reason="STEPMARK_OPENAI_PYTHON does not name the Python of an environment with openai and litellm",
)
def test_the_clients_of_others(tmp_path):
    (tmp_path / "keys").write_text("me a-key-for-this-test-alone\n")
    words = [
        "--prm",
        "integration_worlds:prm",
        "--port",
        "0",
        "--keys",
        str(tmp_path / "keys"),
    ]
    words += [
        "--search",
        "weighted-vote:n=3",
        "--policy",
        "integration_worlds:policy",
        "--verifier",
        "number",
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "stepmark", "serve", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        assert server.stderr is not None
        address = None
        while address is None:
            line = server.stderr.readline()
            assert line, "the server ended"
            found = re.search(r"Serving sums on (http://\S+)", line)
            address = found and found[1]
        done = subprocess.run(
            [str(PYTHON), "-c", CLIENTS, address, "a-key-for-this-test-alone"],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
    finally:
        server.send_signal(signal.SIGTERM)
        rest = server.communicate(timeout=60)[1]
    assert done.returncode == 0, done.stderr[-3000:] + rest[-1000:]
    five = "2 + 3 = 5\nThe answer is 5."
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "models": ["sums", "weighted-vote:n=3"],
        "whole": [five, "stop", 33],
        "chosen": 2,
        "more": [2, "2 + 3 = 6\nThe answer is 6."],
        "stream": five,
        "stream usage": 33,
        "error n": ["BadRequestError", "n"],
        "error model": ["NotFoundError", "model"],
        "error tools": ["BadRequestError", "tools"],
        "key": 401,
        "together": [five],
        "litellm": [five, 33],
        "litellm stream": five,
    }
    assert server.returncode == 0
