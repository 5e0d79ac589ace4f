"""The server under clients that misbehave and under restarts, over real connections: killed clients, slow ones, floods, SIGTERM and `kill -9`."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import serving_site  # noqa: F401  (it skips where fastapi is not installed)
from ports import lasting_port
from score_servers import OnPort
from stepmark import Client
from stepmark.models.http import Patience
from stepmark.models.scripted import ScriptedPRM
from stepmark.serving.settings import ServerSettings

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("STEPMARK_API_KEY", raising=False)
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Gate:
    """A script that waits until it is let through, and notes what it was asked."""

    def __init__(self):
        self.reached, self.open = threading.Event(), threading.Event()
        self.asked = []

    def __call__(self, problem, steps):
        self.asked.append((problem, steps[-1]))
        self.reached.set()
        assert self.open.wait(120)
        return 0.5


def until(condition):
    for _ in range(12_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come to pass")


def message(problem, *steps, more=None):
    """A request for scores, as it goes over the wire."""
    body = json.dumps({"problem": problem, "steps": steps} if more is None else more).encode()
    head = "POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Raw:
    """A connection that does what it is told to and no more."""

    def __init__(self, server, sent=b"", *, buffer=None):
        self.socket = socket.socket()
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(60)
        port = int(server.url.rpartition(":")[2])
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(sent)

    def answer(self):
        """Status, headers, body."""
        with self.socket.makefile("rb") as stream:
            status = int(stream.readline().split()[1])
            headers = {}
            while line := stream.readline().strip().decode():
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            return status, headers, json.loads(stream.read(int(headers["content-length"])))

    def close(self):
        self.socket.close()

    def break_off(self):
        """As a cable that is pulled, or a process that is killed with bytes unread: a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def figures(server):
    return server.service.live.batcher.figures


# --- clients -----------------------------------------------------------------------------------------------------------

VICTIM = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(sys.stdin.buffer.read())
print("sent", flush=True)
connection.recv(1)
"""


def test_killed_clients_leave_the_queue_and_nobody_else_notices():
    gate = Gate()
    with OnPort(ScriptedPRM(gate), settings=ServerSettings(token_budget=1)) as server:
        with Raw(server, message("first", "a")) as first:
            assert gate.reached.wait(60)
            port = server.url.rpartition(":")[2]
            command = [sys.executable, "-S", "-c", VICTIM, port]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
                many = [{"problem": "killed", "steps": [f"{i}"]} for i in range(50)]
                victim.stdin.write(message("", more={"solutions": many}))
                victim.stdin.close()
                assert victim.stdout.readline() == b"sent\n"
                broken = Raw(server, message("broken", "b"))
                closed = Raw(server, message("closed", "c"))
                with Raw(server, message("last", "d")) as last:
                    until(lambda: figures(server).waiting_requests == 5)
                    waiting = figures(server).waiting_tokens
                    victim.kill()
                    broken.break_off()
                    closed.close()
                    until(lambda: figures(server).waiting_requests == 2)
                    assert figures(server).waiting_tokens < waiting / 10
                    gate.open.set()
                    for one in (first, last):
                        status, _, answer = one.answer()
                        assert (status, answer["results"][0]["scores"]) == (200, [0.5])
        until(lambda: server.open == 0)
        assert gate.asked == [("first", "a"), ("last", "d")]
        assert (figures(server).gone, figures(server).answered) == (3, 2)
        assert 'status="499"} 3.0\n' in server.metrics.text().decode()


# --- restarts ----------------------------------------------------------------------------------------------------------


class Process:
    """`stepmark serve` in a process of its own, with a PRM that takes a while and notes what it was asked."""

    def __init__(self, port, log):
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        environment |= {"PYTHONPATH": str(TESTS), "ASKED": str(log), "PAUSE": "0.01"}
        command = [sys.executable, "-m", "stepmark", "serve", "--prm", "scripted_prms:slow"]
        self.process = subprocess.Popen(
            [*command, "--port", str(port), "--quiet"], env=environment, stderr=subprocess.PIPE, text=True
        )

    def ready(self):
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith("All of it:"):
                return
        raise AssertionError("".join(said))

    def end(self, number):
        self.process.send_signal(number)
        said = self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait(60), said


class Asker:
    """A client that asks one thing after the other and keeps the answers; every second one in a session."""

    def __init__(self, url, number, stop):
        self.url, self.number, self.stop = url, number, stop
        self.answers = {}

    def run(self):
        patience = Patience(retries=500, first_wait=0.05, max_wait=10.0, timeout=120.0)
        # It comes again sooner than it is told to, so that the test does not wait.
        with Client(self.url, patience=patience, sleep=lambda wait: time.sleep(min(wait, 0.2))) as client:
            if self.number % 2:
                with client.session(f"session {self.number}") as session:
                    self._ask(lambda step: session.extend([[step]])[0].score)
            else:
                self._ask(lambda step: client.score(f"client {self.number}", [step]).steps.scores[0])

    def _ask(self, score):
        while not self.stop.is_set():
            count = len(self.answers)
            # A true sum and a false one by turns, so that an answer to another question shows.
            step = f"{count} + {self.number} = {count + self.number + count % 2}"
            self.answers[step] = score(step)


def test_restarts_under_load_lose_nothing(tmp_path):
    log, port, stop = tmp_path / "asked.jsonl", lasting_port(), threading.Event()
    server = Process(port, log)
    askers = [Asker(f"http://127.0.0.1:{port}", number, stop) for number in range(8)]

    running = []

    def all_go_on():
        before = [len(one.answers) for one in askers]

        def did():
            for one in running:
                assert not one.done(), one.result()
            return all(len(one.answers) >= then + 3 for one, then in zip(askers, before, strict=True))

        until(did)

    with ThreadPoolExecutor(8) as pool:
        try:
            server.ready()
            running += [pool.submit(one.run) for one in askers]
            all_go_on()
            status, said = server.end(signal.SIGTERM)
            assert status == 0, said
            assert said.endswith("stopped\n")
            # What was taken in was answered, and what was answered was asked once: nothing was computed for nobody.
            asked = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
            assert sorted(asked) == sorted(set(asked))
            server = Process(port, log)
            server.ready()
            all_go_on()
            server.end(signal.SIGKILL)
            server = Process(port, log)
            server.ready()
            all_go_on()
        finally:
            stop.set()
            server.process.kill() if server.process.poll() is not None else None
        for one in running:
            one.result(60)
        assert server.end(signal.SIGTERM)[0] == 0
    for one in askers:
        assert one.answers == {step: 0.1 if index % 2 else 0.9 for index, step in enumerate(one.answers)}
    counts = Counter(tuple(json.loads(line)) for line in log.read_text().splitlines())
    wanted = {
        (f"{'session' if one.number % 2 else 'client'} {one.number}", step)
        for one in askers
        for step in one.answers
    }
    assert set(counts) == wanted
    # Only what was in work when it was killed, or had been answered to nobody, is computed again.
    assert max(counts.values()) <= 2
    assert sum(count - 1 for count in counts.values()) <= len(askers)
