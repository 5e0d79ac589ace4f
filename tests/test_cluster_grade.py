"""`stepmark grade --ray`: the rows of a run without, whoever dies; problems kept together, no more read ahead than is needed."""

from __future__ import annotations

import itertools
import json
import random
import sys
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_ray import FakeRay
from stepmark.backends import ScoreSolution
from stepmark.backends.cluster import LARGEST, Cluster, RayWorkers, cut
from stepmark.cli import main
from stepmark.errors import InputError
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Refusal, Solution
from stepmark.scoring.run import BUILD, SpreadPRM
from stepmark.store import PartFile, row_key

SUMS = "scripted_prms:arithmetic"


def workers(ray=None, *, prm=SUMS):
    with mock.patch.dict(sys.modules, {"ray": ray or FakeRay()}):
        return RayWorkers(BUILD, {"prm": prm}, Cluster(ray="local"), tell=lambda line: None)


def solution(problem, number, *, bad=False):
    steps = [f"{number} + {k} = {number + k + bad}" for k in range(1, 2 + number % 3)]
    return Solution.of(f"problem {problem}", steps, id=f"{problem}/{number}")


def solutions(problems, each):
    return [solution(p, n, bad=n % 3 == 1) for p in range(problems) for n in range(each)]


def file_of(tmp_path, rows):
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def rows(problems, each):
    return [
        {"problem": s.problem.text, "steps": list(s.texts), "id": s.id} for s in solutions(problems, each)
    ]


@pytest.fixture
def cluster(monkeypatch):
    """What `--ray` reaches, with the deaths that a test asks for."""

    def make(**how):
        ray = FakeRay(**how)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    return make


def run(file, out, *more, prm=SUMS):
    return main(["grade", str(file), "--prm", prm, "--out", str(out), *map(str, more)])


@pytest.mark.parametrize("deaths", [{}, {1: 1}, {1: 0, 2: 2}])
def test_the_output_is_that_of_a_run_without(tmp_path, cluster, capsys, deaths):
    given = rows(9, 7)
    given.insert(20, {"problem": "refused", "steps": ["1 + 1 = 2", "<marker>"]})
    given.insert(31, {"problem": "no row"})
    file = file_of(tmp_path, given)
    ray = cluster(size=3, deaths=deaths)
    flags = ("--keep-going", "--orm", "scripted_prms:certain")
    assert (
        run(file, tmp_path / "here", *flags) == run(file, tmp_path / "there", *flags, "--ray", "local") == 0
    )
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
    ours, theirs = (json.loads((tmp_path / f"{n}.manifest.json").read_text()) for n in ("here", "there"))
    for manifest in (ours, theirs):
        del manifest["settings"]
    assert ours == theirs
    said = capsys.readouterr().err
    assert said.count("left out 2 rows") == 2
    assert (said.count("will be asked again") >= 1) == bool(deaths)
    # Both models were asked of every solution that can be read.
    asked = [(r.model, r.solution.id) for _, given in ray.given for r in given]
    assert {name for name, _ in asked} == {"prm", "orm"}
    if not deaths:
        assert len(asked) == len(set(asked)) == 2 * 64


def test_a_killed_run_goes_on_with_or_without(tmp_path, cluster):
    file = file_of(tmp_path, rows(30, 8))
    assert run(file, tmp_path / "whole") == 0
    ray = cluster(size=2)
    out = tmp_path / "out"
    manifest = json.loads((tmp_path / "whole.manifest.json").read_text())
    graded = [json.loads(line) for line in (tmp_path / "whole").read_text().splitlines()[:100]]
    with PartFile(out, {key: manifest[key] for key in ("command", "settings")}) as begun:
        begun.identify(manifest["models"])
        for given, row in zip(rows(30, 8), graded, strict=False):
            begun.add(row_key(given), row)
    assert run(file, out, "--ray", "local") == 0
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    asked = [r.solution.id for _, given in ray.given for r in given]
    assert sorted(asked) == sorted(s.id for s in solutions(30, 8)[100:])


def test_what_is_spent_is_added_up(tmp_path, cluster, capsys):
    file = file_of(tmp_path, rows(12, 16))
    cluster(size=3)
    assert run(file, tmp_path / "here") == run(file, tmp_path / "there", "--ray", "local") == 0
    here, there = (
        line.partition(";")[0] for line in capsys.readouterr().err.splitlines() if "computed" in line
    )
    assert here == there


def test_a_prm_that_fails_ends_the_run_and_what_was_done_is_kept(tmp_path, cluster, capsys):
    given = rows(40, 8)
    given[200]["steps"] = ["no sum"]  # what this PRM cannot read it does not refuse: it breaks
    file = file_of(tmp_path, given)
    cluster(size=2)
    assert run(file, tmp_path / "out", "--ray", "local") == 1
    said = capsys.readouterr().err
    assert "ValueError" in said
    kept = len((tmp_path / "out.part").read_text().splitlines()) - 1
    assert f"{kept} rows are kept" in said
    assert 0 < kept <= 200


def test_flags_without_a_cluster_are_refused(tmp_path, capsys):
    file = file_of(tmp_path, rows(1, 1))
    assert run(file, tmp_path / "out", "--ray-gpus", "1") == 2
    assert "give --ray ADDRESS too" in capsys.readouterr().err


def test_solutions_of_a_problem_are_scored_by_one_worker_together():
    ray = FakeRay(size=4)
    prm = SpreadPRM(workers(ray))
    assert len(list(prm.score_many(solutions(50, 13)))) == 650
    where = {}
    for number, (_, requests) in enumerate(ray.given):
        assert len(requests) >= LARGEST or number == len(ray.given) - 1
        for request in requests:
            where.setdefault(request.solution.problem.text, set()).add(number)
    assert all(len(chunks) == 1 for chunks in where.values())
    # Each worker reads a problem once, so that all of them compute what one would.
    alone = ScriptedPRM(lambda p, s: 0.5)
    list(alone.score_many(solutions(50, 13)))
    assert prm.ledger.tokens_computed == alone.ledger.tokens_computed
    assert prm.ledger.solutions == 650


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 300), max_size=12), st.integers(1, 64))
def test_a_problem_is_cut_only_where_it_is_very_large(sizes, limit):
    given_ = [
        ScoreSolution(solution=Solution.of(f"p{p}", ["s"], id=f"{p}/{n}"))
        for p, each in enumerate(sizes)
        for n in range(each)
    ]
    chunks = [list(chunk.values()) for chunk in cut(enumerate(given_), limit)]
    assert [request for chunk in chunks for request in chunk] == given_
    of = [{request.solution.problem.text for request in chunk} for chunk in chunks]
    for p, each in enumerate(sizes):
        assert sum(f"p{p}" in problems for problems in of) == 1 or each > 256 - limit
    assert all(len(chunk) <= max(256, limit) for chunk in chunks)
    assert all(len(chunk) >= limit for chunk in chunks[:-1])


def test_few_solutions_are_shared_out_too():
    ray = FakeRay(size=4)
    list(SpreadPRM(workers(ray), expected=96).score_many(solutions(96, 1)))
    assert {worker for worker, _ in ray.given} == {1, 2, 3, 4}


@pytest.mark.parametrize("deaths", [{}, {1: 0}])
def test_no_more_is_read_than_keeps_the_workers_busy(deaths):
    read = 0

    def endless():
        nonlocal read
        for number in itertools.count():
            read += 1
            yield solution(number, 1)

    results = SpreadPRM(workers(FakeRay(size=2, deaths=deaths))).score_many(endless())
    ahead = 0
    for done in range(3000):
        next(results)
        ahead = max(ahead, read - done)
    results.close()
    # At most four chunks a worker, of which one more row is read to know where it ends.
    assert ahead <= 4 * 2 * LARGEST + 1 + LARGEST


@settings(deadline=None, max_examples=25)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.lists(st.integers(0, 60), max_size=3))
def test_whoever_dies_every_solution_has_its_scores_in_order(dice: random.Random, size, deaths):
    given_ = [solution(dice.randint(0, 5), n, bad=dice.random() < 0.3) for n in range(dice.randint(0, 200))]
    given_ = [
        Solution.of(s.problem.text, ["<marker>"], id=s.id) if dice.random() < 0.05 else s for s in given_
    ]
    there = workers(FakeRay(size=size, deaths=dict(enumerate(deaths[:2], start=1))))
    results = list(SpreadPRM(there, expected=len(given_)).score_many(given_, keep_going=True))
    assert len(results) == len(given_)
    for asked, result in zip(given_, results, strict=True):
        if "<marker>" in asked.texts:
            assert isinstance(result, Refusal)
            assert result.solution is asked
        else:
            right = [sum(map(int, t.split("=")[0].split("+"))) == int(t.split("=")[1]) for t in asked.texts]
            assert list(result.scores) == [0.9 if one else 0.1 for one in right]


def test_without_keep_going_a_solution_that_cannot_be_read_is_raised():
    with pytest.raises(InputError, match="marker stands in the text"):
        list(SpreadPRM(workers()).score_many([Solution.of("p", ["<marker>"])]))


def test_one_solution_alone():
    assert SpreadPRM(workers()).score("p", steps=["1 + 1 = 2", "1 + 1 = 3"]) == [0.9, 0.1]
