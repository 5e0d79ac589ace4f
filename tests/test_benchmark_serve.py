"""The serving benchmark's own parts: what clients ask, how it is counted, what the tables say, and when memory is flat."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is run from the root of the repository and is not installed

pytest.importorskip("fastapi", reason="needs fastapi: pip install stepmark[serve]")

from benchmarks import serve, serve_load, serve_soak, serve_work  # noqa: E402

# --- what is asked -----------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=12))
def test_distinct_prefixes_are_a_set_of_tuples(sequences):
    distinct = serve_work.Distinct()
    for sequence in sequences:
        distinct.add(sequence)
    assert distinct.count == len({tuple(s[:n]) for s in sequences for n in range(1, len(s) + 1)})
    assert distinct.read == sum(map(len, sequences))


def test_requests_are_the_same_for_every_server():
    some = [serve_work.taken("search", client, "a", 40) for client in range(3)]
    assert some == [serve_work.taken("search", client, "a", 40) for client in range(3)]
    assert some != [serve_work.taken("search", client, "b", 40) for client in range(3)]
    assert all(sum(map(len, one)) >= 40 for one in some)


def test_a_search_sends_prefixes_that_grow_by_a_step():
    searches = list(islice(serve_work.requests("search", 0, "a"), 60))
    assert {len(request) for request in searches} == {serve_work.BEAMS}
    for before, after in pairwise(searches):
        depth = len(before[0].steps)
        if before[0].problem == after[0].problem and len(after[0].steps) == depth + 1:
            parents = {one.steps for one in before}
            assert all(one.steps[:-1] in parents for one in after)
            assert len({one.steps[:-1] for one in after}) <= serve_work.BEAMS // 2
        else:
            assert {len(one.steps) for one in after} == {1}


def test_bulk_sends_whole_candidates():
    candidates = list(islice(serve_work.requests("bulk", 0, "a"), 40))
    assert {len(request) for request in candidates} == {serve_work.TOGETHER}
    assert all("answer is" in one.steps[-1] for request in candidates for one in request)


# --- the load ----------------------------------------------------------------------------------------------------------


class Fake:
    """A server of a few lines: echoes a number, after a while; some answers are something else."""

    def __init__(self, *, wait=0.0, status=None, drop=()):
        self.wait, self.status, self.drop = wait, status or {}, drop
        self.bodies = []

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                asked = json.loads(await reader.readexactly(length))
                self.bodies.append(asked)
                number = len(self.bodies)
                if number in self.drop:
                    break
                await asyncio.sleep(self.wait)
                status = self.status.get(number, 200)
                body = json.dumps({"echo": asked}).encode()
                if number % 2:
                    sent = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                else:
                    sent = b"Transfer-Encoding: chunked\r\n\r\n3\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (
                        body[:3],
                        len(body) - 3,
                        body[3:],
                    )
                writer.write(b"HTTP/1.1 %d X\r\nRetry-After: 0\r\n%b" % (status, sent))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def loaded(fake, tmp_path, *, clients=2, requests=500, warm=0.0, seconds=1.0, patience=60):
    work = tmp_path / "work.jsonl"
    rows = [[[json.dumps([c, r]), 3] for r in range(requests)] for c in range(clients)]
    work.write_text("".join(json.dumps(row) + "\n" for row in rows))

    async def run():
        server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
        job = {
            "host": "127.0.0.1",
            "port": server.sockets[0].getsockname()[1],
            "path": "/",
            "work": str(work),
        }
        try:
            return await serve_load.load(job | {"warm": warm, "seconds": seconds, "patience": patience})
        finally:
            server.close()

    # Not the policy that an older uvicorn leaves behind it, which is uvloop's.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(run())


def test_each_client_asks_in_order_and_everything_is_counted(tmp_path):
    fake = Fake(wait=0.01)
    told = loaded(fake, tmp_path)
    assert (told["failure"], told["errors"]) == (None, {})
    assert sum(told["asked"]) == len(fake.bodies)
    for client in range(2):
        assert [r for c, r in fake.bodies if c == client] == list(range(told["asked"][client]))
        assert told["answers"][client] == [{"echo": [client, 0]}, {"echo": [client, 1]}]
    # All were sent in the counted time; the last one of each client may have come after it.
    assert len(told["latencies"]) == len(fake.bodies)
    assert len(fake.bodies) - 2 <= told["requests"] <= len(fake.bodies)
    assert told["solutions"] == 3 * told["requests"]
    assert min(told["latencies"]) >= 0.005  # clocks are coarse


def test_what_is_no_answer_is_counted_and_asked_again_where_that_helps(tmp_path):
    fake = Fake(wait=0.005, status={3: 429, 5: 504}, drop=(7,))
    told = loaded(fake, tmp_path, clients=1, seconds=2.0)
    assert told["failure"] is None
    assert told["errors"] == {"429": 1, "504": 1, "IncompleteReadError": 1}
    numbers = [r for _, r in fake.bodies]
    # Sent away: again; the server failed at it: not again; broken off: again.
    assert numbers[:8] == [0, 1, 2, 2, 3, 4, 5, 5]


def test_a_request_that_is_refused_or_too_few_requests_are_a_failure(tmp_path):
    assert "400" in loaded(Fake(status={2: 400}), tmp_path, clients=1)["failure"]
    assert "--most" in loaded(Fake(), tmp_path, clients=1, requests=2)["failure"]
    assert "without an answer" in loaded(Fake(wait=30), tmp_path, seconds=0.1, patience=0.1)["failure"]


# --- figures -----------------------------------------------------------------------------------------------------------


def row(server, clients=16, workload="search", **more):
    base = {
        "server": server,
        "workload": workload,
        "clients": clients,
        "seconds": 10.0,
        "dtype": "float32",
        "threads": 1,
        "requests": 50,
        "solutions": 150,
        "latencies": [n / 100 for n in range(1, 101)],
        "errors": {},
        "asked_solutions": 200,
        "tokens_read": 3000,
        "tokens_distinct": 1000,
        "processor": 4.0,
        "load_share": 0.1,
        "answers": [[[[0.5, 0.25]]]],
    }
    if server == "ours":
        base |= {
            "tokens_computed": 1010.0,
            "tokens_again": 0.0,
            "batches": 20.0,
            "compute_seconds": 9.0,
            "wall": 12.0,
        }
    return base | more


def test_figures_by_hand():
    rows = [
        row("ours", solutions=300, processor=2.0),
        row("naive", errors={"504": 2}),
        row("vllm", solutions=600, asked_solutions=800, processor=4.0),
        row("ours", 1, tokens_computed=1030.0),
        row("naive", workload="separate"),
        row("naive", 64, solutions=0, latencies=[]),
        row("ours", 64),
    ]
    figures = serve.figures_of(rows)
    assert figures["solutions_per_second_search_at_16"] == 30
    assert figures["naive_solutions_per_second_search_at_16"] == 15
    assert figures["speedup_over_naive_search_at_16"] == 2
    assert figures["speedup_over_vllm_search_at_16"] == 0.5
    assert figures["speedup_over_naive_in_processor_time_search_at_16"] == 2
    assert figures["speedup_over_vllm_in_processor_time_search_at_16"] == 0.5
    assert figures["p99_ms_search_at_16"] == 1000
    assert figures["p50_ms_search_at_16"] == 510
    assert figures["naive_errors_search_at_16"] == 2
    assert figures["tokens_computed_over_distinct_search_at_16"] == 1.01
    assert figures["tokens_computed_over_distinct"] == 1.03
    assert figures["speedup_over_naive"] == 1  # with 64 clients
    assert figures["solutions_a_batch_search_at_16"] == 10
    assert figures["share_of_time_in_the_model_search_at_16"] == 0.75
    assert figures["naive_requests_per_second_separate_at_16"] == 5
    # Nothing was answered, so there is no ratio and no latency.
    assert "speedup_over_naive_search_at_64" not in figures
    assert "naive_p99_ms_search_at_64" not in figures
    assert all(math.isfinite(value) for value in figures.values())


def test_the_page_has_the_tables_in_their_place():
    rows = [row("ours"), row("naive", processor=10.0, errors={"504": 2})]
    figures = serve.figures_of(rows)
    text = serve.page((ROOT / "docs" / "serve.md").read_text(encoding="utf-8"), rows, figures)
    assert "to be measured" not in text
    assert "| search | 16 | `stepmark serve` | 20 ms | 2.50x | 3.00 | 1.010 |" in text
    assert "| search | 16 | naive | 50 ms | 1.00x | 3.00 |  |" in text
    assert "Requests that failed: 2." in text
    assert "| `speedup_over_naive` | 2.5 | 5 |" in text
    assert text.count(serve.BEGIN) == text.count(serve.END) == 1
    assert "10 seconds a turn, float32" in text
    longer = [*rows, row("ours", 64, seconds=40.0)]
    assert serve.lengths(longer) == "10 seconds a turn, 40 with 64 clients"
    # Written again, it is the same.
    assert serve.page(text, rows, figures) == text
    with pytest.raises(ValueError, match="no place"):
        serve.page("# A page", rows, figures)


def test_scores_are_held_against_ours():
    rows = [row("ours"), row("naive", answers=[[[[0.5, 0.25005]], [[0.9]]]])]
    # The second request was answered by one of them only.
    assert serve.check_scores(rows, "float32") == {"scores_differ_from_naive": pytest.approx(5e-5)}
    with pytest.raises(SystemExit, match=r"scores_differ_from_naive: 0\.3000, more than 0\.1"):
        serve.check_scores([row("ours"), row("naive", answers=[[[[0.2, 0.25]]]])], "bfloat16")
    with pytest.raises(ValueError, match="zip"):
        serve.check_scores([row("ours"), row("naive", answers=[[[[0.5]]]])], "bfloat16")


def test_turns_that_were_kept_are_not_repeated(tmp_path):
    options = serve.arguments(["--quick", "--clients", "1", "16", "--keep", str(tmp_path / "turns")])
    turns = serve.plan(options, ["ours", "naive"])
    names = [(turn.workload, turn.clients) for turn in turns["naive"]]
    assert names == [("search", 1), ("search", 16), ("bulk", 1), ("bulk", 16), ("separate", 16)]
    assert {turn.seconds for turn in turns["naive"]} == {6.0}
    many = serve.plan(serve.arguments(["--seconds", "20", "--clients", "16", "64"]), ["ours"])["ours"]
    assert [(turn.clients, turn.seconds) for turn in many] == [
        *[(16, 20.0), (64, 80.0)] * 2,
        (16, 20.0),
    ]
    kept = row("naive", 1, seconds=options.seconds, dtype=options.dtype)
    options.keep.write_text(json.dumps(kept) + "\n")
    assert serve.read_kept(options.keep) == {turns["naive"][0]: kept}
    assert serve.read_kept(tmp_path / "none") == {}


# --- the soak ----------------------------------------------------------------------------------------------------------


def samples(resident, *, count=240, rate=20):
    return [
        serve_soak.Sample(
            seconds=i / 2,
            requests=i * rate // 2,
            resident=int(resident(i / 2)),
            files=20,
            threads=5,
            memory_tokens=100,
            open=4,
        )
        for i in range(count)
    ]


def judged(resident, *, files=20, left=0):
    some = samples(resident)
    after = serve_soak.Sample(
        seconds=130, requests=2400, resident=10**8, files=files, threads=5, memory_tokens=0, open=left
    )  # fmt: skip
    return serve_soak.judged(some, some[0], after, warm=40, bound=200)


def test_the_slope_of_a_line_is_the_lines():
    slope = serve_soak.slope_of(samples(lambda t: 10**8 + 5000 * t))
    assert slope.value == pytest.approx(5000)
    assert slope.low == pytest.approx(slope.value, abs=1)
    assert slope.high == pytest.approx(slope.value, abs=1)


def test_the_interval_holds_the_slope_about_95_times_in_100():
    held = 0
    for seed in range(200):
        dice = random.Random(seed)
        noisy = samples(lambda t, dice=dice: 10**8 + 3000 * t + dice.gauss(0, 10**6))
        slope = serve_soak.slope_of(noisy)
        held += slope.low <= 3000 <= slope.high
    assert 180 <= held <= 199


def test_what_is_flat_and_what_is_not():
    dice = random.Random(1)
    figures, faults = judged(lambda t: 10**8 + dice.gauss(0, 10**5))
    assert faults == []
    assert (figures["flat"], figures["requests_per_second"]) == (1, 20)
    # It settles while it warms up, and that is not looked at.
    assert judged(lambda t: 10**8 - 5 * 10**7 * math.exp(-t / 3))[1] == []
    # 20 requests a second that each leave a kilobyte.
    figures, faults = judged(lambda t: 10**8 + 20 * 1024 * t)
    assert figures["flat"] == 0
    assert figures["bytes_a_request"] == pytest.approx(1024, rel=0.01)
    assert "1024 bytes a request" in faults[0]
    # So little a request that it can be no request.
    assert judged(lambda t: 10**8 + 20 * 100 * t)[1] == []
    assert judged(lambda t: 10**8, files=22, left=1)[1] == [
        "files_more: 2",
        "requests_left: 1",
    ]
    with pytest.raises(ValueError, match="run longer"):
        serve_soak.slope_of(samples(lambda t: 1, count=5))


@pytest.mark.slow
def test_a_minute_of_mixed_traffic_leaves_nothing(zoo, capsys):
    folder = str(zoo["token-classification"].folder)
    serve_soak.main(["--minutes", "1", "--prm", folder, "--bound", "1000000"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["requests"] > 100
    assert figures["files_more"] <= 0
    assert (figures["requests_left"], figures["threads_more"]) == (0, 0)
