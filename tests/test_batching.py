"""The driver of methods: order, batches, sharing, replay after a stop, and the reply stores."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.backends import (
    Answerer,
    ChoiceLogprobs,
    Completion,
    Completions,
    Message,
    content_key,
    cut_at_stop,
    run,
    sample_seed,
)
from stepmark.errors import BackendError, InputError, UsageError
from stepmark.models.replies import MemoryReplies, ReplyFile


class Machine:
    """Counts what it is asked. The text of a sample names its prompt, its number, and how often anything was asked."""

    def __init__(self, identity="machine"):
        self.identity = identity
        self.calls = []
        self.samples = []
        self.chosen = []

    def write(self, requests, ready):
        self.calls.append(("write", len(requests)))
        replies = []
        for index, request in enumerate(requests):
            reply = []
            for number in range(request.first, request.first + request.n):
                self.samples.append((request.prompt, number))
                reply.append(
                    Completion(
                        text=f"{request.prompt}:{number}", finish="end", tokens=3, logprob=-0.1 * number
                    )
                )
            replies.append(reply)
            ready(index, reply)
        return replies

    def choose(self, requests, ready):
        self.calls.append(("choose", len(requests)))
        self.chosen.extend(request.prompt for request in requests)
        return [[-0.1 * place for place in range(len(request.options))] for request in requests]

    @property
    def answerers(self):
        return {
            Completions: Answerer(identity=self.identity, answer=self.write),
            ChoiceLogprobs: Answerer(identity=self.identity, answer=self.choose),
        }


def asks(*requests):
    """A method that asks one after the other and returns all replies."""
    replies = []
    for request in requests:
        replies.append((yield request))
    return replies


def write(prompt, n=1, first=None, **more):
    return Completions(prompt=prompt, n=n, temperature=1.0, first=first, **more)


def results(methods, machine, **more):
    return [result for _, result in run(methods, machine.answerers, **more)]


def texts(reply):
    return [sample.text for sample in reply]


def test_results_come_in_the_order_of_the_methods_whatever_their_length():
    machine = Machine()
    methods = [asks(*(write(f"m{i}") for _ in range(length))) for i, length in enumerate((5, 1, 3))]
    got = list(run(methods, machine.answerers))
    assert [number for number, _ in got] == [0, 1, 2]
    assert [len(result) for _, result in got] == [5, 1, 3]
    assert texts(got[1][1][0]) == ["m1:0"]


def test_all_pending_requests_of_one_kind_are_one_call():
    machine = Machine()
    choice = ChoiceLogprobs(prompt="c", options=("a", "b"))
    results([asks(write("a")), asks(choice), asks(write("b"), write("c"))], machine)
    assert sorted(machine.calls[:2]) == [("choose", 1), ("write", 2)]
    assert machine.calls[2:] == [("write", 1)]


def test_a_tuple_of_requests_gets_a_tuple_of_replies():
    machine = Machine()
    choice = ChoiceLogprobs(prompt="c", options=("a", "b", "c"))
    [[reply]] = results([asks((write("a", 2), choice, write("b")))], machine)
    assert texts(reply[0]) == ["a:0", "a:1"]
    assert reply[1] == (-0.0, -0.1, -0.2)
    assert texts(reply[2]) == ["b:0"]
    assert results([asks(())], machine) == [[()]]


def test_fresh_samples_are_never_handed_out_twice():
    machine = Machine()
    got = results([asks(write("p", 2), write("p")), asks(write("p", 3))], machine)
    handed = [text for result in got for reply in result for text in texts(reply)]
    assert sorted(handed) == [f"p:{number}" for number in range(6)]
    assert texts(got[0][0]) == ["p:0", "p:1"]
    assert texts(got[1][0]) == ["p:2", "p:3", "p:4"]
    assert texts(got[0][1]) == ["p:5"]


def test_shared_samples_are_asked_once_and_only_what_is_missing():
    machine = Machine()
    shared = write("p", 2, first=0)
    got = results(
        [asks(shared), asks(shared), asks(write("p", 4, first=0)), asks(write("p", 2, first=3))], machine
    )
    assert machine.samples == [("p", number) for number in range(5)]
    assert [texts(result[0]) for result in got] == [
        ["p:0", "p:1"],
        ["p:0", "p:1"],
        ["p:0", "p:1", "p:2", "p:3"],
        ["p:3", "p:4"],
    ]


_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from test_batching import Machine, asks, write, results
from stepmark.models.replies import ReplyFile

class Killed(Machine):
    def write(self, requests, ready):
        if len(self.calls) == 1:
            super().write(requests[:2], ready)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(requests, ready)

results([asks(write(f"m{i} a"), write(f"m{i} b")) for i in range(4)], Killed(), store=ReplyFile(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")
def test_a_killed_process_loses_no_reported_reply(tmp_path):
    path = tmp_path / "replies.sqlite"
    code = subprocess.run(
        [sys.executable, "-c", _KILLED, str(path), str(Path(__file__).parent)], check=False, timeout=300
    ).returncode
    assert code == -signal.SIGKILL
    machine = Machine()
    with ReplyFile(path) as store:
        assert len(store) == 6
        got = results([asks(write(f"m{i} a"), write(f"m{i} b")) for i in range(4)], machine, store=store)
    assert sorted(machine.samples) == [("m2 b", 0), ("m3 b", 0)]
    assert [[texts(reply) for reply in result] for result in got] == [
        [[f"m{i} a:0"], [f"m{i} b:0"]] for i in range(4)
    ]


def test_an_error_of_one_method_does_not_lose_the_replies_of_the_others():
    store = MemoryReplies()
    closed = []

    def failing():
        yield write("bad")
        raise ZeroDivisionError("mine")

    def closing():
        try:
            yield write("good")
            yield write("more")
        finally:
            closed.append(True)

    held = closing()  # a reference, so that closing it is not left to the garbage collector
    with pytest.raises(ZeroDivisionError, match="mine"):
        results([held, failing()], Machine(), store=store)
    assert closed == [True]
    again = Machine()
    results([asks(write("good"))], again, store=store)
    assert again.calls == []


def test_a_request_that_cannot_be_answered_raises_at_its_yield_and_is_not_recorded():
    class Picky(Machine):
        def write(self, requests, ready):
            return [
                InputError("too long")
                if "long" in request.prompt
                else super(Picky, self).write([request], ready)[0]
                for request in requests
            ]

    def careful():
        try:
            yield (write("fine"), write("long one"))
        except InputError as error:
            return f"caught {error.message}"

    store = MemoryReplies()
    machine = Picky()
    # The nested calls would report under index 0, so this machine reports through its return value only.
    machine.write = lambda requests, ready: Picky.write(machine, requests, lambda index, reply: None)
    got = results([careful(), asks(write("other"))], machine, store=store)
    assert got[0] == "caught too long"
    assert texts(got[1][0]) == ["other:0"]
    assert len(store) == 2

    def careless():
        yield write("long one")

    with pytest.raises(InputError, match="too long"):
        results([careless()], machine, store=store)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ([[]], "expected 2 texts in reply to a Write, found 0"),
        ([[Completion(text="x", finish="end")]], "expected 2 texts in reply to a Write, found 1"),
        ([], "gave 0 replies to 1 request"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error(reply, message):
    answer = Answerer(identity="m", answer=lambda requests, ready: reply)
    with pytest.raises(BackendError, match=message):
        list(run([asks(write("p", 2))], {Completions: answer}))


def test_a_choice_with_too_few_numbers_is_an_error():
    answer = Answerer(identity="m", answer=lambda requests, ready: [[-1.0]])
    with pytest.raises(
        BackendError, match=r"expected 2 log-probabilities in reply to a Choose, found \[-1.0\]"
    ):
        list(run([asks(ChoiceLogprobs(prompt="p", options=("a", "b")))], {ChoiceLogprobs: answer}))


def test_a_kind_that_nothing_answers_is_named():
    with pytest.raises(UsageError, match="nothing here answers a Choose; there are answerers for Write"):
        list(
            run(
                [asks(ChoiceLogprobs(prompt="p", options=("a", "b")))],
                {Completions: Machine().answerers[Completions]},
            )
        )


def test_methods_are_read_as_needed_and_few_at_once():
    machine = Machine()
    started = itertools.count()

    def endless():
        for number in started:
            yield asks(write(f"m{number}"))

    got = list(itertools.islice(run(endless(), machine.answerers, in_flight=4), 10))
    assert [number for number, _ in got] == list(range(10))
    assert next(started) <= 12
    assert max(count for _, count in machine.calls) == 4


def test_one_slow_method_does_not_make_the_waiting_results_grow_without_bound():
    machine = Machine()
    started = itertools.count()

    def methods():
        yield asks(*(write("slow") for _ in range(100)))
        for number in started:
            yield asks(write(f"m{number}"))

    first = next(iter(run(methods(), machine.answerers, in_flight=3)))
    assert first[0] == 0
    assert next(started) <= 12


def test_in_flight_must_be_positive():
    with pytest.raises(UsageError, match="at least 1, found 0"):
        next(run([], {}, in_flight=0))


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
        "r = Write(prompt=(Message(role='user', content='é\\ud800'),), stop=('a', 'b'), temperature=0.7)\n"
        "print(content_key(r, 'm'), sample_seed(r, 3))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        check=True,
    )
    assert out.stdout.decode().split() == [content_key(request, "m"), str(sample_seed(request, 3))]


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
        st.lists(
            st.tuples(st.sampled_from("pq"), st.integers(1, 3), st.sampled_from([None, 0, 2])), max_size=4
        ),
        max_size=6,
    ),
    in_flight=st.integers(1, 4),
    stop_after=st.integers(0, 12),
)
def test_replay_gives_the_same_and_fresh_samples_are_fresh(programs, in_flight, stop_after):
    def methods():
        return [asks(*(write(prompt, n, first) for prompt, n, first in program)) for program in programs]

    class Stopping(Machine):
        def write(self, requests, ready):
            for index, request in enumerate(requests):
                if len(self.samples) >= stop_after:
                    raise BackendError("stopped")
                [reply] = Machine.write(self, [request], lambda *_: None)
                ready(index, reply)
            return [[] for _ in requests]

    expected = results(methods(), Machine(), in_flight=in_flight)
    fresh = [
        text
        for program, result in zip(programs, expected, strict=True)
        for (_, _, first), reply in zip(program, result, strict=True)
        if first is None
        for text in texts(reply)
    ]
    assert len(set(fresh)) == len(fresh)

    store, stopping, second = MemoryReplies(), Stopping(), Machine()
    with contextlib.suppress(BackendError):
        results(methods(), stopping, store=store, in_flight=in_flight)
    assert results(methods(), second, store=store, in_flight=in_flight) == expected
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
    with pytest.raises(InputError, match=r"notes.txt.*expected a reply store"):
        ReplyFile(text)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(InputError, match="another program's SQLite file"):
        ReplyFile(foreign)
    newer = tmp_path / "newer.sqlite"
    ReplyFile(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(InputError, match="format 99"):
        ReplyFile(newer)
    with pytest.raises(InputError, match="cannot open"):
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
        with pytest.raises(InputError, match=r"replies\.sqlite: the reply under a was changed.*DELETE FROM"):
            store.get(["a", "b"])
        with pytest.raises(InputError, match="was changed after it was recorded"):
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
    with ReplyFile(path) as store, pytest.raises(InputError, match="under new was changed"):
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
        pytest.raises(InputError, match=f"^{path}: the reply store is damaged .* restore it, or delete it"),
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
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ('{"text": 3, "finish": "end"}', "expected a text in reply to a Write"),
        ('{"graded": {"score": 0.5}}', "'classes'"),
        (
            '{"verdict": {"outcome": "match", "verifier": "math"}}',
            "expected a text in reply to a Write, found Verdict",
        ),
        (
            '{"text": "x", "finish": "end", "logprob": NaN}',
            "expected a finite number as the log-probability of 'x'",
        ),
    ],
)
def test_a_damaged_reply_is_no_mistake_of_stepmark(text, why):
    store = MemoryReplies()
    store.put({f"{content_key(write('p'), 'machine')}/0": text})
    with pytest.raises(InputError, match="delete it; what it recorded is then asked for again") as caught:
        results([asks(write("p"))], Machine(), store=store)
    assert why in str(caught.value)


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
def test_a_log_probability_that_is_no_number_is_refused_and_not_recorded(logprob):
    class Broken(Machine):
        def write(self, requests, ready):
            return [[Completion(text="x", finish="end", logprob=logprob)] for _ in requests]

    store = MemoryReplies()
    with pytest.raises(BackendError, match="expected a finite number as the log-probability of 'x', found"):
        results([asks(write("p"))], Broken(), store=store)
    assert len(store) == 0
