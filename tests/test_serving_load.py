"""The server under load and restarts, over real connections: SIGTERM and `kill -9`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import serving_site  # noqa: F401  (it skips where fastapi is not installed)
from ports import lasting_port
from stepmark.models.http import Patience
from stepmark.models.remote.client import RemotePRM
from stepmark.records import Solution

TESTS = Path(__file__).parent


def until(condition):
    for _ in range(12_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come to pass")


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
    """A client that asks one thing after the other and keeps the answers."""

    def __init__(self, url, number, stop):
        self.url, self.number, self.stop = url, number, stop
        self.answers = {}

    def run(self):
        patience = Patience(retries=500, first_wait=0.05, max_wait=10.0, timeout=120.0)
        # It comes again sooner than it is told to, so that the test does not wait.
        with RemotePRM(self.url, patience=patience, sleep=lambda wait: time.sleep(min(wait, 0.2))) as prm:
            problem = f"client {self.number}"
            if self.number % 2:
                session = prm.open_session()
                self._ask(lambda step: session.score_last([Solution.of(problem, [step])])[0].score)
            else:
                self._ask(lambda step: prm.score(problem, steps=[step])[0])

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
    wanted = {(f"client {one.number}", step) for one in askers for step in one.answers}
    assert set(counts) == wanted
    # Only what was in work when it was killed, or had been answered to nobody, is computed again.
    assert max(counts.values()) <= 2
    assert sum(count - 1 for count in counts.values()) <= len(askers)
