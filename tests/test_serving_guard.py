"""What stands before the routes: keys, sizes, slow and vanished clients, deadlines, full queues."""

from __future__ import annotations

import asyncio
import json
import re
import threading

import httpx
import pytest

from serving_site import prm, site, talk  # isort: skip  (it skips where fastapi is not installed)

from stepmark.errors import InputError, TooLongError, UsageError
from stepmark.models.remote.wire import ErrorResponse
from stepmark.serving.app import build_app
from stepmark.serving.guard import Keys
from stepmark.serving.service import Service
from stepmark.serving.settings import ServerSettings

ONE = {"problem": "p", "steps": ["1 + 1 = 2"]}
JSON = {"content-type": "application/json"}
ALICE = "a-key-that-is-alice's-own"
BOB = "bobs-key-0123456789"


def error(answer, status, kind):
    assert answer.status_code == status, answer.text
    body = ErrorResponse.model_validate(answer.json()).error
    assert body.type == kind
    return body.message


class Gate:
    """A script that waits until it is let through, and says when it is reached."""

    def __init__(self):
        self.reached, self.open = threading.Event(), threading.Event()
        self.asked = []

    def __call__(self, problem, steps):
        self.asked.append(problem)
        self.reached.set()
        assert self.open.wait(20)
        return 0.5

    async def entered(self):
        await asyncio.to_thread(self.reached.wait, 20)


async def until(condition):
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not come to pass")


# ---- keys ----


def test_only_those_with_a_key_are_answered():
    async def conversation(client):
        keys = [None, "", ALICE, f"Basic {ALICE}", "Bearer", f"Bearer {ALICE}x", f"Bearer {ALICE} {ALICE}"]
        for header in keys:
            headers = {} if header is None else {"authorization": header}
            answer = await client.post("/v1/score", json=ONE, headers=headers)
            assert "Authorization: Bearer KEY" in error(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/metrics", "/v1/models", "/nowhere"):
            error(await client.get(path), 401, "unauthorized")
        for path in ("/health", "/docs", "/openapi.json"):
            assert (await client.get(path)).status_code == 200
        for scheme in ("Bearer", "bearer"):
            for key in (ALICE, BOB):
                headers = {"authorization": f"{scheme} {key}"}
                assert (await client.post("/v1/score", json=ONE, headers=headers)).status_code == 200
        assert (await client.get("/metrics", headers=headers)).status_code == 200
        document = (await client.get("/openapi.json")).json()
        assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"

    talk(conversation, keys=Keys({"alice": ALICE, "bob": BOB}))


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("", UsageError, "at least one key, found none"),
        ("# nobody\n", UsageError, "found none"),
        (f"alice {ALICE}\nbob\n", InputError, "keys:2: expected NAME KEY, found 1 word"),
        (f"alice {ALICE} extra\n", InputError, "found 3 words"),
        (f"alice {ALICE}\nalice {BOB}\n", InputError, "'alice' has a key already"),
        (f"alice {ALICE}\nbob {ALICE}\n", UsageError, "'alice' and 'bob' have the same key"),
        ("alice short\n", UsageError, "16 or more"),
        ("alice schlüssel-schlüssel\n", UsageError, "visible ASCII"),
    ],
)
def test_a_file_that_holds_no_keys(tmp_path, text, kind, words):
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(kind) as caught:
        Keys.read(file)
    assert words in str(caught.value)
    assert ALICE not in str(caught.value)


# ---- bodies ----


def test_a_body_is_too_large_by_its_header_and_by_its_bytes():
    async def conversation(client):
        body = json.dumps({**ONE, "id": "x" * 2000}).encode()
        assert len(body) > 1000
        answer = await client.post("/v1/score", content=body, headers=JSON)
        assert "1000 bytes" in error(answer, 413, "too_long")
        assert answer.headers["connection"] == "close"
        sent = []

        async def pieces():
            for start in range(0, len(body), 100):
                sent.append(start)
                yield body[start : start + 100]

        error(await client.post("/v1/score", content=pieces(), headers=JSON), 413, "too_long")
        assert len(sent) <= 12, "the rest was read all the same"
        lying = {**JSON, "content-length": "10"}
        error(await client.post("/v1/score", content=pieces(), headers=lying), 413, "too_long")
        for length in ("-1", "1e3", "9" * 30):
            answer = await client.post("/v1/score", content=b"{}", headers={**JSON, "content-length": length})
            error(answer, 413, "too_long")
        exact = json.dumps(ONE).encode()
        exact += b" " * (1000 - len(exact))
        assert (await client.post("/v1/score", content=exact, headers=JSON)).status_code == 200

    talk(conversation, settings=ServerSettings(max_body_mb=1000 / 2**20))


def test_the_bodies_of_all_requests_together_are_bounded():
    """Two halves fit and a third does not, whether it waits to be answered or is still being sent; what was answered makes room again."""
    gate = Gate()

    async def conversation():
        size = 2000 / 2**20
        async with site(prm(script=gate), ServerSettings(max_body_mb=size, queue_mb=size)) as (client, _):
            half = json.dumps({**ONE, "id": "x" * 800}).encode()
            assert 800 < len(half) < 1000
            more = asyncio.Event()

            async def slow():
                yield half[:-1]
                await more.wait()
                yield half[-1:]

            first = asyncio.create_task(client.post("/v1/score", content=half, headers=JSON))
            await gate.entered()
            second = asyncio.create_task(client.post("/v1/score", content=slow(), headers=JSON))
            await asyncio.sleep(0.1)
            refused = await client.post("/v1/score", content=half, headers=JSON)
            error(refused, 429, "busy")
            assert int(refused.headers["retry-after"]) >= 1 and refused.headers["connection"] == "close"
            gate.open.set()
            more.set()
            assert {(await one).status_code for one in (first, second)} == {200}
            for _ in range(4):
                answer = await client.post("/v1/score", content=half, headers=JSON)
                assert answer.status_code == 200

    asyncio.run(conversation())
    with pytest.raises(UsageError, match="queue_mb"):
        ServerSettings(max_body_mb=16, queue_mb=8)


def test_a_body_that_does_not_come_is_not_waited_for():
    async def conversation(client):
        async def pieces():
            yield b"{"
            await asyncio.sleep(60)

        answer = await client.post("/v1/score", content=pieces(), headers=JSON)
        error(answer, 504, "deadline")
        assert answer.headers["connection"] == "close"

    talk(conversation, settings=ServerSettings(timeout=0.1))


def test_what_is_no_json_by_its_header_is_refused():
    """Browsers send such a body from any site's page without asking."""

    async def conversation(client):
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            answer = await client.post("/v1/score", content=json.dumps(ONE), headers={"content-type": kind})
            error(answer, 400, "invalid_request")

    talk(conversation)


# ---- clients that go away, deadlines, a full queue ----


async def raw(app, body, receive_more):
    """A request by the ASGI protocol itself; gives what was sent."""
    sent = []
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive():
        message = next(messages, None)
        return message if message is not None else await receive_more()

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/score",
        "raw_path": b"/v1/score",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"stepmark"), (b"content-type", b"application/json")],
        "client": ("1.2.3.4", 5),
        "server": ("stepmark", 80),
    }
    await app(scope, receive, send)
    return sent


def test_what_a_vanished_client_asked_leaves_the_queue():
    gate = Gate()

    async def conversation():
        async with site(prm(script=gate)) as (client, app):
            first = asyncio.create_task(client.post("/v1/score", json=ONE))
            await gate.entered()
            gone = asyncio.Event()

            async def disconnect():
                await gone.wait()
                return {"type": "http.disconnect"}

            body = json.dumps({**ONE, "problem": "never"}).encode()
            second = asyncio.create_task(raw(app, body, disconnect))
            waiting = app.state.service.metrics.queue_requests._value.get
            await until(lambda: waiting() == 2)
            gone.set()
            assert await second == [], "there is nobody to send to"
            assert waiting() == 1
            gate.open.set()
            assert (await first).status_code == 200
            assert "never" not in gate.asked
            metrics = (await client.get("/metrics")).text
            assert 'method="POST",route="/v1/score",status="499"} 1' in metrics
            assert "stepmark_http_requests_open 1.0\n" in metrics  # this one

    asyncio.run(conversation())


def test_a_request_may_be_late_and_what_waits_of_it_is_not_computed():
    gate = Gate()

    async def conversation():
        async with site(prm(script=gate)) as (client, _):
            first = asyncio.create_task(client.post("/v1/score", json=ONE))
            await gate.entered()
            late = await client.post("/v1/score", json={**ONE, "problem": "never", "timeout": 0.05})
            error(late, 504, "deadline")
            gate.open.set()
            assert (await first).status_code == 200
            assert "never" not in gate.asked

    asyncio.run(conversation())


def test_a_full_queue_is_429_and_too_long_is_413_whatever_the_load():
    gate = Gate()

    def script(problem, steps):
        if "long" in problem:
            raise TooLongError("5000 tokens, more than 4096")
        return gate(problem, steps)

    async def conversation():
        settings = ServerSettings(queue_tokens=10, token_budget=10, max_body_mb=2000 / 2**20)
        async with site(prm(script=script), settings) as (client, app):
            first = asyncio.create_task(client.post("/v1/score", json=ONE))
            await gate.entered()
            others = [asyncio.create_task(client.post("/v1/score", json=ONE)) for _ in range(2)]
            waiting = app.state.service.metrics.queue_requests._value.get
            await until(lambda: waiting() == 3)
            refused = await client.post("/v1/score", json=ONE)
            error(refused, 429, "busy")
            assert int(refused.headers["retry-after"]) >= 1
            error(await client.post("/v1/score", json={**ONE, "id": "x" * 3000}), 413, "too_long")
            gate.open.set()
            assert {(await one).status_code for one in (first, *others)} == {200}
            error(await client.post("/v1/score", json={**ONE, "problem": "long"}), 413, "too_long")

    asyncio.run(conversation())


# ---- other sites' pages, other names, headers, the log ----


def test_requests_to_other_hosts_names_are_refused():
    async def conversation():
        service = Service(prm())
        app = build_app(service, hosts=frozenset({"127.0.0.1", "localhost", "[::1]"}))
        await service.start()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8008") as client:
            for host in ("127.0.0.1:8008", "localhost", "LOCALHOST:1", "[::1]:8008"):
                assert (await client.get("/health", headers={"host": host})).status_code == 200
            for host in ("evil.example", "evil.example:8008", "127.0.0.1.evil.example", ""):
                error(await client.get("/health", headers={"host": host}), 400, "invalid_request")
        await service.stop()

    asyncio.run(conversation())


def test_the_log_has_a_line_a_request_but_none_a_probe_and_nothing_of_what_was_asked():
    lines = []

    async def conversation():
        service = Service(prm(), log=lines.append)
        app = build_app(service, keys=Keys({"alice": ALICE}))
        await service.start()
        transport = httpx.ASGITransport(app, client=("10.0.0.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://stepmark") as client:
            headers = {"authorization": f"Bearer {ALICE}"}
            body = {"problem": "secret problem", "steps": ["1 + 1 = 2"]}
            await client.post("/v1/score", json=body, headers=headers)
            await client.get("/a%0ab%1b[31m")
            await client.get("/health")
            await client.get("/v1/models", headers=headers)
        await service.stop()

    asyncio.run(conversation())
    text = "\n".join(lines)
    assert "secret" not in text
    assert ALICE not in text
    assert [re.sub(r"^\S+Z | [\d.]+ ms$", "", line) for line in lines] == [
        "10.0.0.9 alice POST /v1/score 200",
        "10.0.0.9 - GET /a?b?[31m 401",
        "10.0.0.9 alice GET /v1/models 200",
    ]
