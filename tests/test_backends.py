"""Async backends: batches, order, sharing, failures, replay after a stop, and the reply stores."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.backends import (
    BatchPolicy,
    CachedPolicy,
    ChoiceLogprobs,
    Completion,
    Completions,
    Message,
    all_of,
    batched,
    content_key,
    cut_at_stop,
    many,
    replied,
    run_tasks,
    sample_seed,
)
from stepmark.backends.replies import MemoryReplies, ReplyFile
from stepmark.errors import BackendError, InputError, UsageError


class Machine(BatchPolicy):
    """Counts what it is asked. The text of a sample names its prompt and its number."""

    def __init__(self, identity="machine"):
        self.name = self.identity = identity
        self.tokens_written = 0
        self.calls = []
        self.samples = []

    def complete_many(self, requests, ready=None):
        self.calls.append(("complete", len(requests)))
        replies = []
        for index, request in enumerate(requests):
            numbers = range(request.first, request.first + request.n)
            self.samples += [(request.prompt, number) for number in numbers]
            replies.append([sample(request.prompt, number) for number in numbers])
            if ready is not None:
                ready(index, replies[-1])
        return replies

    def choose_many(self, requests, ready=None):
        self.calls.append(("choose", len(requests)))
        return [[-0.1 * place for place in range(len(request.options))] for request in requests]


def sample(prompt, number):
    return Completion(text=f"{prompt}:{number}", finish="end", tokens=3, logprob=-0.1 * number)


def write(prompt, n=1, first=0, **more):
    return Completions(prompt=prompt, n=n, temperature=1.0, first=first, **more)


def texts(reply):
    return [sample.text for sample in reply]


def results(programs, machine, *, store=None, in_flight=64):
    """What programs of requests come to, each a task that asks one after the other; a tuple of requests is asked together."""
    policy = CachedPolicy(machine, store)

    async def ask(request):
        if isinstance(request, tuple):
            return await all_of(map(ask, request))
        if isinstance(request, ChoiceLogprobs):
            return await policy.choose(request)
        return await policy.complete(request)

    async def program(requests):
        return [await ask(request) for request in requests]

    return [result for _, result in run_tasks(programs, program, in_flight=in_flight)]


def test_results_come_in_the_order_of_the_items_whatever_their_length():
    got = results([[write(f"m{i}")] * length for i, length in enumerate((5, 1, 3))], Machine())
    assert [len(result) for result in got] == [5, 1, 3]
    assert texts(got[1][0]) == ["m1:0"]


def test_what_waits_when_every_task_waits_is_one_batch():
    machine = Machine()
    choice = ChoiceLogprobs(prompt="c", options=("a", "b"))
    results([[write("a"), write("d")], [choice], [(write("b"), write("c"))]], machine)
    assert sorted(machine.calls) == [("choose", 1), ("complete", 1), ("complete", 3)]


def test_hundreds_of_tasks_make_few_batches():
    machine = Machine()
    results([[write(f"m{i}", seed=k) for k in range(4)] for i in range(200)], machine, in_flight=100)
    assert sum(count for _, count in machine.calls) == 800
    assert len(machine.calls) <= 24


def test_requests_together_give_their_replies_in_order():
    choice = ChoiceLogprobs(prompt="c", options=("a", "b", "c"))
    [[reply]] = results([[(write("a", 2), choice, write("b"))]], Machine())
    assert texts(reply[0]) == ["a:0", "a:1"]
    assert reply[1] == (-0.0, -0.1, -0.2)
    assert texts(reply[2]) == ["b:0"]
    assert results([[()]], Machine()) == [[[]]]


def test_shared_samples_are_asked_once_and_only_what_is_missing():
    machine = Machine()
    got = results([[write("p", 2)], [write("p", 2)], [write("p", 4)], [write("p", 2, first=3)]], machine)
    assert sorted(machine.samples) == [("p", number) for number in range(5)]
    assert [texts(result[0]) for result in got] == [
        ["p:0", "p:1"],
        ["p:0", "p:1"],
        ["p:0", "p:1", "p:2", "p:3"],
        ["p:3", "p:4"],
    ]


def test_two_models_compute_at_the_same_time():
    both = threading.Barrier(2, timeout=20)

    def compute(requests, ready):
        both.wait()  # passes only when the other one is computing too
        return requests

    def other(requests, ready):
        both.wait()
        return [f"other {request}" for request in requests]

    async def task(number):
        return await batched(compute if number % 2 else other, number)

    assert [result for _, result in run_tasks(range(2), task)] == ["other 0", 1]


def test_one_model_is_asked_by_one_thread_at_a_time():
    class Careful(Machine):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

        def complete_many(self, requests, ready=None):
            assert self.lock.acquire(blocking=False)
            time.sleep(0.02)
            self.lock.release()
            return super().complete_many(requests, ready)

        def choose_many(self, requests, ready=None):
            assert self.lock.acquire(blocking=False)
            time.sleep(0.02)
            self.lock.release()
            return super().choose_many(requests, ready)

    choice = ChoiceLogprobs(prompt="c", options=("a", "b"))
    got = results([[write("a"), choice], [choice, write("b")]] * 3, Careful())
    assert [len(result) for result in got] == [2] * 6


def test_no_thread_is_left_behind():
    before = threading.active_count()
    for number in range(5):
        asyncio.run(Machine().complete(write(f"m{number}")))
    results([[write("a")]], Machine())
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_what_was_answered_is_recorded_though_the_run_is_left_early(tmp_path):
    class Slow(Machine):
        def complete_many(self, requests, ready=None):
            replies = super().complete_many(requests, ready)
            answered.set()
            return replies

    answered = threading.Event()
    with ReplyFile(tmp_path / "replies.sqlite") as store:
        machine = Slow()
        policy = CachedPolicy(machine, store)
        tasks = run_tasks(["a", "b"], lambda name: policy.complete(write(name)))
        next(tasks)
        tasks.close()
        assert len(store) == len(machine.samples) == 2


def test_a_reply_that_is_there_early_lets_its_task_go_on():
    released = threading.Event()

    def compute(requests, ready):
        for place, request in enumerate(requests):
            ready(place, request)
            if request == "slow":
                assert released.wait(20)
        return requests

    def second(requests, ready):
        released.set()
        return requests

    async def task(name):
        await batched(compute, name)
        if name == "fast":
            await batched(second, name)
        return name

    assert [result for _, result in run_tasks(["fast", "slow"], task)] == ["fast", "slow"]


def test_it_works_where_an_event_loop_runs_already():
    async def notebook():
        return results([[write("a")]], Machine())

    assert texts(asyncio.run(notebook())[0][0]) == ["a:0"]


_KILLED = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[2])
from test_backends import Machine, results, write
from stepmark.backends.replies import ReplyFile

class Killed(Machine):
    def complete_many(self, requests, ready=None):
        if len(self.calls) == 1:
            super().complete_many(requests[:2], ready)
            while len(store) < 6:  # a reply is recorded by the loop, in a thread of its own
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().complete_many(requests, ready)

store = ReplyFile(sys.argv[1])
results([[write(f"m{i} a"), write(f"m{i} b")] for i in range(4)], Killed(), store=store)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")
def test_a_killed_process_loses_no_recorded_reply(tmp_path):
    path = tmp_path / "replies.sqlite"
    code = subprocess.run(
        [sys.executable, "-c", _KILLED, str(path), str(Path(__file__).parent)], check=False, timeout=300
    ).returncode
    assert code == -signal.SIGKILL
    machine = Machine()
    with ReplyFile(path) as store:
        assert len(store) >= 6
        known = len(store)
        got = results([[write(f"m{i} a"), write(f"m{i} b")] for i in range(4)], machine, store=store)
    assert len(machine.samples) == 8 - known
    assert [[texts(reply) for reply in result] for result in got] == [
        [[f"m{i} a:0"], [f"m{i} b:0"]] for i in range(4)
    ]


def test_an_error_of_one_task_does_not_lose_the_replies_of_the_others():
    store, machine, closed = MemoryReplies(), Machine(), []
    policy = CachedPolicy(machine, store)

    async def task(name):
        try:
            await policy.complete(write(name))
            if name == "bad":
                raise ZeroDivisionError("mine")
            while True:
                await asyncio.sleep(0.01)
        finally:
            closed.append(name)

    with pytest.raises(ZeroDivisionError, match="mine"):
        list(run_tasks(["bad", "good"], task))
    assert sorted(closed) == ["bad", "good"]
    again = Machine()
    results([[write("good")], [write("bad")]], again, store=store)
    assert again.calls == []


def test_the_results_before_a_failure_are_given_and_no_task_begins_after_it():
    begun = []

    async def task(number):
        begun.append(number)
        await asyncio.sleep(0.05 if number == 0 else 0)
        if number == 1:
            raise BackendError("down")
        return number

    got = []
    with pytest.raises(BackendError, match="down"):
        for _, result in run_tasks(range(100), task, in_flight=2):
            got.append(result)
    assert got == [0]
    assert begun == [0, 1]


def test_a_request_that_cannot_be_answered_raises_in_its_task_alone_and_is_not_recorded():
    class Picky(Machine):
        def complete_many(self, requests, ready=None):
            return [
                InputError("too long") if "long" in request.prompt else [sample(request.prompt, 0)]
                for request in requests
            ]

    store = MemoryReplies()
    policy = CachedPolicy(Picky(), store)

    async def task(names):
        return await all_of(replied(policy.complete(write(name))) for name in names)

    (fine, refused), (other,) = (result for _, result in run_tasks([("fine", "long one"), ("other",)], task))
    assert texts(fine) == ["fine:0"]
    assert str(refused) == "too long"
    assert texts(other) == ["other:0"]
    assert len(store) == 2
    with pytest.raises(InputError, match="too long"):
        results([[write("long one")]], Picky(), store=store)


def test_all_of_waits_for_all_and_prefers_the_failure_to_the_refusal():
    ended = []

    async def one(name, error=None):
        await asyncio.sleep(0 if error else 0.02)
        ended.append(name)
        if error:
            raise error
        return name

    async def together(*errors):
        return await all_of(one(str(place), error) for place, error in enumerate(errors))

    assert asyncio.run(together(None, None)) == ["0", "1"]
    with pytest.raises(InputError, match="unreadable"):
        asyncio.run(together(InputError("unreadable"), None))
    with pytest.raises(BackendError, match="down"):
        asyncio.run(together(InputError("unreadable"), BackendError("down")))
    assert len(ended) == 6


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_would_end_an_event_loop_fails_the_run_and_does_not_hang_it(error):
    class Broken(Machine):
        def complete_many(self, requests, ready=None):
            raise error

    with pytest.raises(BackendError):
        results([[write("a")]], Broken())

    async def cancels(number):
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner

    with pytest.raises(BackendError, match="cancelled"):
        list(run_tasks([1], cancels))


def test_many_asks_coroutines_from_outside_of_any():
    async def ask(number):
        if number == 1:
            raise InputError("odd")
        return number

    zero, odd, two = many([0, 1, 2], ask)
    assert (zero, two) == (0, 2)
    assert isinstance(odd, InputError)
    assert many([], ask) == []


@pytest.mark.parametrize("reply", [[[]], [[Completion(text="x", finish="end")]], [], ["text"], [7]])
def test_an_answer_that_does_not_fit_is_an_error(reply):
    class Broken(Machine):
        def complete_many(self, requests, ready=None):
            return reply

    with pytest.raises(BackendError):
        results([[write("p", 2)]], Broken())


def test_a_choice_with_too_few_numbers_is_an_error():
    class Broken(Machine):
        def choose_many(self, requests, ready=None):
            return [[-1.0]]

    with pytest.raises(BackendError, match="expected 2 log-probabilities"):
        results([[ChoiceLogprobs(prompt="p", options=("a", "b"))]], Broken())


def test_a_policy_that_gives_no_probabilities_says_so():
    class Writer(BatchPolicy):
        name = identity = "writer"
        tokens_written = 0

        def complete_many(self, requests, ready=None):
            return []

    with pytest.raises(UsageError, match="writer"):
        results([[ChoiceLogprobs(prompt="p", options=("a", "b"))]], Writer())


def test_items_are_read_as_needed_and_few_at_once():
    machine = Machine()
    started = itertools.count()

    async def task(number):
        return await machine.complete(write(f"m{number}"))

    got = list(itertools.islice(run_tasks(started, task, in_flight=4), 10))
    assert [number for number, _ in got] == list(range(10))
    assert next(started) <= 27
    assert max(count for _, count in machine.calls) == 4


def test_one_slow_task_does_not_make_the_waiting_results_grow_without_bound():
    started = itertools.count()

    async def task(number):
        await asyncio.sleep(0.2 if number == 0 else 0)
        return number

    assert next(run_tasks(started, task, in_flight=3)) == (0, 0)
    assert next(started) <= 12


def test_in_flight_must_be_positive():
    with pytest.raises(UsageError, match="at least 1, found 0"):
        run_tasks([], asyncio.sleep, in_flight=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n must be at least 1, found 0"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"first": -1}, "first"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ()}, "prompt"),
        ({"temperature": 0.0, "n": 2}, "all 2 samples are one"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        Completions(**({"prompt": "p", "temperature": 1.0} | change))


@pytest.mark.parametrize("options", [(), ("a",), ("a", ""), ("a", "a")])
def test_choose_needs_two_different_options(options):
    with pytest.raises(UsageError, match="options"):
        ChoiceLogprobs(prompt="p", options=options)


def test_everything_that_shapes_the_reply_is_in_the_key_and_the_number_of_samples_is_not():
    base = Completions(prompt="p", n=2, temperature=1.0)
    changes = {
        "prompt": (Message(role="user", content="p"),),
        "prefill": "x",
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "max_tokens": 7,
        "stop": ("x",),
        "seed": 1,
    }
    assert {field.name for field in fields(Completions)} == {*changes, "n", "first"}
    keys = [content_key(base, "m"), content_key(base, "other")]
    keys += [content_key(replace(base, **{name: value}), "m") for name, value in changes.items()]
    keys.append(content_key(ChoiceLogprobs(prompt="p", options=("a", "b")), "m"))
    keys.append(content_key(ChoiceLogprobs(prompt="p", options=("b", "a")), "m"))
    keys.append(content_key(replace(base, prompt=(Message(role="system", content="p"),)), "m"))
    assert len(set(keys)) == len(keys)
    assert content_key(replace(base, n=9, first=4), "m") == content_key(base, "m")


def test_keys_and_seeds_are_the_same_in_another_process():
    request = Completions(prompt=(Message(role="user", content="é\ud800"),), stop=("a", "b"), temperature=0.7)
    code = (
        "from stepmark.backends import *\n"
        "r = Completions(prompt=(Message(role='user', content='é\\ud800'),), stop=('a', 'b'), temperature=0.7)\n"
        "print(content_key(r, 'm'), sample_seed(r, 3))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        check=True,
    )
    assert out.stdout.decode().split() == [content_key(request, "m"), str(sample_seed(request, 3))]


def test_the_seed_of_a_sample_is_the_digest_of_this_record():
    """Another record would draw other samples for the same seed than earlier versions did."""
    content = (
        '{"by": "", "format": 1, "kind": "Write", "request": {"max_tokens": 7, "prefill": "", "prompt": "p", "seed": 3, '
        '"stop": [], "temperature": 1.0, "top_k": null, "top_p": 1.0}}'
    )
    key = hashlib.sha256(content.encode()).hexdigest()
    digest = hashlib.sha256(f"{key}/5".encode()).digest()
    seed = int.from_bytes(digest[:8], "big") // 2
    assert sample_seed(write("p", seed=3, max_tokens=7), 5) == seed


def test_seeds_differ_by_sample_prompt_and_seed():
    base = write("p")
    others = [(base, 0), (base, 1), (write("q"), 0), (write("p", seed=1), 0)]
    seeds = [sample_seed(request, number) for request, number in others]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(write("p", 5, first=2), 1) == sample_seed(base, 1)


def test_the_first_stop_string_cuts():
    assert cut_at_stop("one two three", ("three", "two")) == ("one ", True)
    assert cut_at_stop("one", ("two",)) == ("one", False)
    assert cut_at_stop("one", ()) == ("one", False)


@settings(max_examples=40, deadline=None)
@given(
    programs=st.lists(
        st.lists(st.tuples(st.sampled_from("pq"), st.integers(1, 3), st.sampled_from([0, 2])), max_size=4),
        max_size=6,
    ),
    in_flight=st.integers(1, 4),
    stop_after=st.integers(0, 12),
)
def test_a_run_that_was_stopped_gives_the_same_and_asks_nothing_twice(programs, in_flight, stop_after):
    asked = [[write(prompt, n, first) for prompt, n, first in program] for program in programs]

    class Stopping(Machine):
        def complete_many(self, requests, ready=None):
            for index, request in enumerate(requests):
                if len(self.samples) >= stop_after:
                    raise BackendError("stopped")
                [reply] = super().complete_many([request])
                ready(index, reply)
            return [[] for _ in requests]

    expected = results(asked, Machine())
    store, stopping, second = MemoryReplies(), Stopping(), Machine()
    with contextlib.suppress(BackendError):
        results(asked, stopping, store=store, in_flight=in_flight)
    assert results(asked, second, store=store, in_flight=in_flight) == expected
    assert not set(stopping.samples) & set(second.samples)
    assert len(set(second.samples)) == len(second.samples)


# The stores


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryReplies()
        return
    with ReplyFile(tmp_path / "replies.sqlite") as store:
        yield store


def test_the_first_reply_under_a_key_stands(store):
    assert store.put({"a": "1", "b": "2"}) == {"a": "1", "b": "2"}
    assert store.put({"a": "other", "c": "3"}) == {"a": "1", "c": "3"}
    assert store.get(["a", "c", "absent"]) == {"a": "1", "c": "3"}
    assert store.put({}) == {}
    assert len(store) == 3


def test_many_keys_at_once(store):
    entries = {f"k{i}": json.dumps(i) for i in range(1200)}
    store.put(entries)
    assert store.get(list(entries)) == entries


def test_a_file_keeps_its_replies_and_is_shared_by_two_openers(tmp_path):
    path = tmp_path / "replies.sqlite"
    with ReplyFile(path) as one, ReplyFile(path) as other:
        one.put({"a": "1"})
        assert other.put({"a": "2"}) == {"a": "1"}
    with ReplyFile(path) as again:
        assert again.get(["a"]) == {"a": "1"}


def test_threads_share_a_file(tmp_path):
    with ReplyFile(tmp_path / "replies.sqlite") as store:
        standing = []
        threads = [
            threading.Thread(
                target=lambda i=i: standing.append(store.put({"same": str(i), f"own{i}": "x"})["same"])
            )
            for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(standing)) == 1
        assert len(store) == 9


def test_a_file_that_is_no_reply_store_is_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at as one " * 20)
    with pytest.raises(UsageError, match=r"notes.txt.*expected a reply store"):
        ReplyFile(text)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(UsageError, match="another program's SQLite file"):
        ReplyFile(foreign)
    newer = tmp_path / "newer.sqlite"
    ReplyFile(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UsageError, match="format 99"):
        ReplyFile(newer)
    with pytest.raises(UsageError, match="cannot open"):
        ReplyFile(tmp_path / "no such folder" / "replies.sqlite")


def on_disk(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement, values).fetchall()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE replies SET reply = '\"5\"' WHERE key = 'a'",
        "UPDATE replies SET (reply, digest) = (SELECT reply, digest FROM replies WHERE key = 'b') WHERE key = 'a'",
        "UPDATE replies SET digest = '' WHERE key = 'a'",
    ],
)
def test_a_reply_that_was_altered_in_the_file_is_refused(tmp_path, change):
    path = tmp_path / "replies.sqlite"
    with ReplyFile(path) as store:
        store.put({"a": '"4"', "b": '"6"'})
    on_disk(path, change)
    with ReplyFile(path) as store:
        assert store.get(["b"]) == {"b": '"6"'}
        with pytest.raises(UsageError, match=r"replies\.sqlite: the reply under a was changed.*DELETE FROM"):
            store.get(["a", "b"])
        with pytest.raises(UsageError, match="was changed after it was recorded"):
            store.put({"a": '"4"'})
    # What the message says to do.
    on_disk(path, "DELETE FROM replies WHERE key = 'a'")
    with ReplyFile(path) as store:
        assert store.put({"a": '"4"'}) == {"a": '"4"'}


def test_a_store_of_format_1_goes_on_and_its_new_replies_are_checked(tmp_path):
    path = tmp_path / "replies.sqlite"
    on_disk(
        path,
        "CREATE TABLE replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL, "
        "made TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP) WITHOUT ROWID",
    )
    on_disk(path, "INSERT INTO replies (key, reply) VALUES ('old', '1')")
    on_disk(path, f"PRAGMA application_id = {0x7374706D}")
    on_disk(path, "PRAGMA user_version = 1")
    with ReplyFile(path) as store, ReplyFile(path) as other:
        assert store.put({"old": "2", "new": "3"}) == {"old": "1", "new": "3"}
        assert other.get(["old", "new"]) == {"old": "1", "new": "3"}
    on_disk(path, "UPDATE replies SET reply = '4' WHERE key = 'new'")
    with ReplyFile(path) as store, pytest.raises(UsageError, match="under new was changed"):
        store.get(["new"])
    assert on_disk(path, "PRAGMA user_version") == [(2,)]


@pytest.mark.parametrize("page", range(1, 6))
def test_a_damaged_reply_store_says_what_to_do(tmp_path, page):
    path = tmp_path / "replies.sqlite"
    with ReplyFile(path) as store:
        store.put({f"key {number}": "reply " * 50 for number in range(200)})
    data = bytearray(path.read_bytes())
    data[4096 * page : 4096 * (page + 1)] = bytes([0x5A]) * 4096
    path.write_bytes(data)
    with (
        pytest.raises(UsageError, match=f"^{path}: the reply store is damaged .* restore it, or delete it"),
        ReplyFile(path) as store,
    ):
        store.get([f"key {number}" for number in range(200)])


def test_memory_forgets_the_oldest():
    store = MemoryReplies(limit=2)
    store.put({"a": "1", "b": "2"})
    store.get(["a"])
    store.put({"c": "3"})
    assert store.get(["a", "b", "c"]) == {"a": "1", "c": "3"}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"text": 3, "finish": "end"}',
        '{"score": {"score": 0.5}}',
        '{"verdict": {"outcome": "match", "verifier": "math"}}',
        '{"text": "x", "finish": "end", "logprob": NaN}',
    ],
)
def test_a_damaged_reply_is_no_mistake_of_stepmark(text):
    store = MemoryReplies()
    store.put({f"{content_key(write('p'), 'machine')}/0": text})
    with pytest.raises(UsageError, match="delete it"):
        results([[write("p")]], Machine(), store=store)


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
def test_a_log_probability_that_is_no_number_is_refused_and_not_recorded(logprob):
    class Broken(Machine):
        def complete_many(self, requests, ready=None):
            return [[Completion(text="x", finish="end", logprob=logprob)] for _ in requests]

    store = MemoryReplies()
    with pytest.raises(BackendError, match="finite"):
        results([[write("p")]], Broken(), store=store)
    assert len(store) == 0
