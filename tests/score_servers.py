"""Score servers for the tests of their client: one that is written by hand and can be made to misbehave, and the real one in this process."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from contextlib import AsyncExitStack

import httpx

FACTS = {
    "version": "0.2.0",
    "identity": "words#0123456789ab",
    "score_kind": "probability",
    "default_aggregate": "min",
    "default_threshold": 0.5,
    "default_checks": "none",
    "max_tokens": None,
    "prefix_cache": True,
    "pooling": False,
    "max_solutions": 1024,
}


def worth(step):
    """What the server by hand thinks of a step: 1 over its words."""
    return 1 / len(step.split())


def error(status, message, *, type="invalid_request", field=None, headers=None):
    told = {"type": type, "message": message} | ({} if field is None else {"field": field})
    return httpx.Response(status, json={"error": told}, headers=headers)


class Words:
    """A server whose PRM gives a step 1 over its words, and counts words as tokens. `log` holds what it was asked.

    `before(path, body)` may answer, or raise, instead; what it returns None for is answered as it should be.
    """

    def __init__(self, before=None, **facts):
        self.before, self.facts = before or (lambda path, body: None), {**FACTS, **facts}
        self.log, self.keys, self.timeouts = [], [], []
        self.answers = []

    def __call__(self, request):
        body = json.loads(request.content) if request.content else None
        self.log.append((request.url.path, body))
        self.keys.append(request.headers.get("Authorization"))
        self.timeouts.append(request.extensions["timeout"]["read"])
        answer = self.before(request.url.path, body) or self.answer(request.url.path, body)
        self.answers.append((request.url.path, answer))
        return answer

    @property
    def transport(self):
        return httpx.MockTransport(self)

    def asked(self, path):
        """The bodies of the requests to a path."""
        return [body for one, body in self.log if re.fullmatch(path, one)]

    def answer(self, path, body):
        if path == "/v1/models":
            entry = {"id": "words", "object": "model", "created": 1, "owned_by": "stepmark"}
            return httpx.Response(200, json={"object": "list", "data": [{**entry, "stepmark": self.facts}]})
        if path == "/v1/score":
            results = [self.result(i, one["problem"], one) for i, one in enumerate(body["solutions"])]
            return self.graded("scores", body, results)
        return error(404, "no such address", type="not_found")

    def graded(self, kind, body, results):
        fine = [one for one in results if "error" not in one]
        usage = {
            "solutions": len(fine),
            "steps": sum(len(one["scores"]) for one in fine),
            "tokens": sum(one["tokens"] for one in fine),
        }
        above = {
            "object": kind,
            "model": "words",
            "score_kind": "probability",
            "aggregate": body.get("aggregate", "min"),
            "threshold": body.get("threshold", 0.5),
            "usage": usage,
        }
        return httpx.Response(200, json={**above, "results": results})

    def result(self, index, problem, one):
        steps = one["steps"] if "steps" in one else one["solution"].split("\n")
        if any("unreadable" in step for step in steps):
            told = {"type": "marker_in_text", "message": "cannot be read"}
            return {"index": index, "error": {**told, "field": f"solutions.{index}.steps[0]"}}
        scores = [worth(step) for step in steps]
        wrong = [i for i, score in enumerate(scores) if score < 0.5]
        cut = {} if "steps" in one else {"steps": steps}
        each = [len(step.split()) for step in steps]
        root = len(problem.split())
        return {
            "index": index,
            "scores": scores,
            "score": min(scores),
            "first_error": wrong[0] if wrong else -1,
            **cut,
            "tokens": root + sum(each),
            "problem_tokens": root,
            "step_tokens": each,
        }


class InProcess:
    """The real server, its event loop in a thread; `transport` is what a `Client` reaches it by, and `requests` are the bodies it sent."""

    def __init__(self, prm, settings=None, keys=None):
        self.prm, self._settings, self._keys = prm, settings, keys
        self.requests, self.answers = [], []

    def __enter__(self):
        from stepmark.serving.app import serve_in_process
        from stepmark.serving.settings import ServerSettings

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._stack = AsyncExitStack()
        entering = serve_in_process(self.prm, self._settings or ServerSettings(), keys=self._keys)
        self.app = self._do(self._stack.enter_async_context(entering))
        return self

    def __exit__(self, *_):
        self._do(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    @property
    def transport(self):
        return httpx.MockTransport(self._pass)

    def _pass(self, request):
        async def ask():
            inner = httpx.ASGITransport(self.app)
            reply = await inner.handle_async_request(request)
            content = await reply.aread()
            return httpx.Response(reply.status_code, headers=reply.headers, content=content)

        reply = self._do(ask())
        self.requests.append((request.method, request.url.path, request.content))
        self.answers.append((request.url.path, reply.status_code, reply.content))
        return reply


class OnPort:
    """The real server on a port of this machine; `url` is its address."""

    def __init__(self, prm, port=0, settings=None, *, loop="auto"):
        import uvicorn

        from stepmark.serving.app import build_app
        from stepmark.serving.service import Service
        from stepmark.serving.settings import DEFAULTS

        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.service = Service(prm, settings or DEFAULTS)
        self.metrics = self.service.metrics
        config = uvicorn.Config(build_app(self.service), lifespan="on", ws="none", log_config=None, loop=loop)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    @property
    def open(self):
        """Requests that are being served."""
        return self.metrics.open._value.get()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
