"""The annotation benchmark's own parts: the load, what a label is on both sides, what is lost and what is doubled."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is run from the root of the repository and is not installed

from benchmarks import annotate, annotate_load  # noqa: E402


class Fake:
    """A label server of a few lines: acknowledges, and can close connections or drop every n-th request unanswered."""

    def __init__(self, *, close=False, drop=0, busy=0):
        self.close, self.drop, self.busy = close, drop, busy
        self.requests = 0
        self.heads = []
        self.bodies = []
        self.logs = {}

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                length = next((int(x[15:]) for x in lines if x.lower().startswith("content-length:")), 0)
                body = json.loads(await reader.readexactly(length)) if length else None
                self.requests += 1
                self.heads.append(head)
                if self.drop and self.requests % self.drop == 0:
                    self.answer(lines[0], body)  # done, and nobody hears of it
                    break
                status, answer = (
                    (503, {}) if self.requests == self.busy else (200, self.answer(lines[0], body))
                )
                data = json.dumps(answer, separators=(",", ":")).encode()
                closing = b"Connection: close\r\n" if self.close else b""
                writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n%b\r\n" % (status, len(data), closing))
                # In two pieces, as networks do.
                writer.write(data[:3])
                await writer.drain()
                await asyncio.sleep(0)
                writer.write(data[3:])
                if self.close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, line, body):
        if line.startswith("GET /api/next"):
            number = line.count("after") and int(line.split("after=")[1].split()[0]) + 1
            log = self.logs.setdefault(number, {})
            changes = [one["change"] for one in log.values()]
            view = {"id": str(number), "steps": [{}] * 3}
            return {"item": view, "version": len(log), "changes": changes}
        self.bodies.append(body)
        if "instance_id" in body:
            return {"status": "success"}
        log = self.logs[int(body["item"])]
        if body["id"] not in log:
            assert body["version"] == len(log)
            log[body["id"]] = body
        return {"version": body["version"] + 1, "submitted": body["change"]["kind"] == "submit"}


def clicked(fake, *, kind="stepmark", users=None, seconds=0.8, warm=0.0):
    async def run():
        server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        job = {
            "kind": kind,
            "host": "127.0.0.1",
            "port": port,
            "warm": warm,
            "seconds": seconds,
            "patience": 60,
        }
        users_ = users or [{"name": "ada", "headers": {"Cookie": "c=1", "X-CSRF-Token": "t"}}]
        try:
            return await annotate_load.load(job | {"users": users_})
        finally:
            server.close()

    # Not the policy that an older uvicorn leaves behind it, which is uvloop's.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(run())


def test_ours_is_clicked_in_order():
    fake = Fake()
    told = clicked(fake)
    assert (told["failure"], told["stuck"], told["again"]) == (None, 0, 0)
    # Three steps an item, then it is submitted, which is no label.
    assert told["acknowledged"][:4] == ["ada 0 0", "ada 0 1", "ada 0 2", "ada 1 0"]
    kinds = [body["change"]["kind"] for body in fake.bodies[:5]]
    assert kinds == ["rate", "rate", "rate", "submit", "rate"]
    rates = [body for body in fake.bodies if body["change"]["kind"] == "rate"]
    assert len(told["acknowledged"]) == len(rates)
    assert {body["change"]["rating"] for body in rates} == {1, -1}
    assert told["labels"] == len(told["latencies"])
    assert told["latencies"] == sorted(told["latencies"])
    assert all("Cookie: c=1" in head and "X-CSRF-Token: t" in head for head in fake.heads)


def test_an_item_is_gone_on_with_where_it_was_left():
    fake = Fake()
    fake.logs[0] = {"x": {"change": {"kind": "rate", "step": 0}}}
    assert clicked(fake)["acknowledged"][0] == "ada 0 1"


def test_a_broken_connection_is_answered_with_the_same_click():
    fake = Fake(drop=7)
    told = clicked(fake)
    assert told["failure"] is None
    assert told["again"] > 0
    # Dropped requests were stored, sent again, and stand once.
    stored = [
        (body["item"], body["change"].get("step")) for log in fake.logs.values() for body in log.values()
    ]
    assert len(set(stored)) == len(stored)
    assert len(told["acknowledged"]) == len(set(told["acknowledged"]))


def test_a_busy_server_is_asked_again():
    told = clicked(Fake(busy=3), seconds=1.5)
    assert (told["failure"], told["again"]) == (None, 1)


def test_potato_is_sent_the_whole_item():
    users = [
        {"name": "ada", "headers": {"Cookie": "c=1"}, "items": [str(n) for n in range(100_000)], "steps": 3}
    ]
    fake = Fake(close=True)
    told = clicked(fake, kind="potato", users=users)
    assert told["failure"] is None
    assert told["acknowledged"][:4] == ["ada 0 0", "ada 0 1", "ada 0 2", "ada 1 0"]
    said = json.loads(fake.bodies[1]["annotations"]["step_rewards:step_rewards"])
    assert [step["reward"] for step in said["steps"]] == [1, 1, 0]
    assert said["mode"] == "per_step"
    assert len(told["acknowledged"]) == len(fake.bodies)


@pytest.fixture
def ours(tmp_path):
    return annotate.Stepmark(tmp_path / "ours", 2)


def test_ours_is_read_from_the_log(ours):
    with sqlite3.connect(ours.database) as database:
        database.execute("CREATE TABLE accounts (id, name)")
        database.execute("CREATE TABLE changes (account, item, data)")
        database.executemany("INSERT INTO accounts VALUES (?, ?)", [(1, "ada"), (2, "bob")])
        rate = [{"kind": "rate", "step": step, "rating": 1} for step in (0, 1, 1)]
        rows = [(1, "i", one) for one in (*rate, {"kind": "submit"})] + [(2, "i", rate[0])]
        database.executemany(
            "INSERT INTO changes VALUES (?, ?, ?)", [(who, item, json.dumps(one)) for who, item, one in rows]
        )
    assert ours.stored() == Counter({"ada i 0": 1, "ada i 1": 2, "bob i 0": 1})


def test_potato_is_read_from_its_files(tmp_path):
    potato = annotate.Potato(Path("/nowhere/bin/python"), tmp_path / "potato", 2)
    steps = [{"index": 0, "reward": 1}, {"index": 1, "reward": -1}, {"index": 2, "reward": 0}]
    value = json.dumps({"steps": steps, "mode": "per_step"})
    label = {"schema": "step_rewards", "name": "step_rewards"}
    folder = potato.folder / "annotation_output" / "ada"
    folder.mkdir(parents=True)
    state = {"user_id": "ada", "instance_id_to_label_to_value": {"item-0000": [[label, value]]}}
    (folder / "user_state.json").write_text(json.dumps(state))
    assert potato.stored() == Counter({"ada item-0000 0": 1, "ada item-0000 1": 1})
    rows = [json.loads(line) for line in (potato.folder / "items.jsonl").read_text().splitlines()]
    assert len(rows[0]["steps"]) == annotate.STEPS
    assert rows[0]["steps"][0] == {"action": "Add 1 to 0: that makes 1."}
    assert "annotation_type: process_reward" in (potato.folder / "config.yaml").read_text()


def test_lost_and_doubled(monkeypatch):
    class Server:
        kind = "stepmark"
        process = None
        answers = iter([Counter({"a i 0": 1, "b i 0": 1}), Counter({"a i 0": 1, "a i 1": 2, "a i 3": 1})])

        def start(self):
            return 1.5

        def stored(self):
            return next(self.answers)

    class Load:
        def begin(self, *unused, **settings):
            pass

        def end(self):
            return {"acknowledged": ["a i 1", "a i 2"], "failure": None, "stuck": 0}

    monkeypatch.setattr(annotate, "kill", lambda server: None)
    # Of those before, b's is gone; of those acknowledged, step 2; step 1 stands twice. Step 3 was never acknowledged, which is no fault.
    assert annotate.killed(Server(), Load(), [], seconds=0.0, starting=0.0) == (2, 2, 1, 1.5)
