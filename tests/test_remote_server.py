"""The client against the real server, in this process: its PRM is the local one, through the network and back."""

from __future__ import annotations

import json
from dataclasses import replace

import httpx
import pytest
import torch

from score_servers import InProcess
from stepmark import Solution, grade, load_prm
from stepmark.backends.replies import MemoryReplies
from stepmark.models import prm as prms
from stepmark.models.http import Patience
from stepmark.models.remote.client import RemotePRM
from stepmark.models.scripted import ScriptedPRM
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.problems.arithmetic_world import ArithmeticPolicy
from stepmark.records import Problem, Refusal, Step, StepScores
from stepmark.searches.base import Grading
from stepmark.searches.beam import BeamSearch
from stepmark.searches.mcts import MCTS
from stepmark.searches.run import models_of
from stepmark.searches.run import run as search_run
from stepmark.searches.sampled import BestOfN
from stepmark.verifiers.base import load_verifier

torch.set_num_threads(1)

ADDRESS = "http://here"
PENS = "Ann has 3 boxes of 12 pens. How many pens?"
SOLUTIONS = [
    Solution.of(PENS, ["3 * 12 = 36 pens.", "The answer is 36."], id="a"),
    Solution.of(PENS, ["3 * 12 = 36 pens.", "She has 6."], id="b"),
    Solution.of("2x + 5 = 17", ["2x = 12.", "x = 6.", "So x = 6."]),
    Solution.of("How far in 4 hours?", ["240 / 60 = 4, so it is 240."], id="d"),
    Solution.of("Blank?", ["something", "  "], id="blank"),
    Solution.of(" ", ["something"], id="no problem"),
    Solution.of("Marked?", ["a step <extra_0> in it"], id="marked"),
    Solution.of("Long?", ["word " * 3000], id="long"),
    Solution.of("Half?", ["half of \ud83d"], id="half"),
    Solution(
        problem=Problem(text="Observed?"),
        steps=(
            Step(text="I look.", observation="\n\nTool:\n41 \n"),
            Step(text=" So 42. "),
            Step(text="It is 42."),
        ),
        id="observed",
    ),
]


def prm_of(zoo, name="qwen-prm"):
    built, more = zoo[name], {} if name == "qwen-prm" else {"family": name}
    if built.reference:
        more["reference"] = str(built.reference.folder)
    return load_prm(str(built.folder), dtype="float32", device="cpu", **more)


def remote(server, **more):
    patience = Patience(retries=1, first_wait=0.001, timeout=300)
    return RemotePRM(ADDRESS, transport=server.transport, patience=patience, **more)


def alike(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, Refusal):
        assert type(found.error) is type(expected.error)
        assert (found.error.where, found.solution) == (expected.error.where, expected.solution)
        return
    assert found.scores == pytest.approx(expected.scores, abs=1e-5)
    assert (found.kind, found.class_names) == (expected.kind, expected.class_names)
    assert (found.classes is None) == (expected.classes is None)
    for row, other in zip(found.classes or (), expected.classes or (), strict=True):
        assert row == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("name", ["qwen-prm", "three-class", "implicit"])
def test_it_scores_as_the_prm_does_here(zoo, name):
    here = prm_of(zoo, name)
    with InProcess(prm_of(zoo, name)) as server, remote(server, batch=4) as there:
        assert (there.score_kind, there.default_aggregate, there.default_threshold) == (
            here.score_kind,
            here.default_aggregate,
            here.default_threshold,
        )
        found = list(there.score_many(SOLUTIONS, keep_going=True))
        for one, other in zip(found, here.score_many(SOLUTIONS, keep_going=True), strict=True):
            alike(one, other)
        assert sum(isinstance(one, Refusal) for one in found) >= 4
        assert there.ledger.solutions == here.ledger.solutions
        assert there.ledger.tokens_in == here.ledger.tokens_in
        assert there.score(PENS, steps=["3 * 12 = 36 pens."]) == pytest.approx(
            here.score(PENS, steps=["3 * 12 = 36 pens."]), abs=1e-5
        )
        good = SOLUTIONS[:4]
        for one, other in zip(grade(good, there), grade(good, here), strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-5)
            assert (one.first_error, one.aggregate, one.threshold) == (
                other.first_error,
                other.aggregate,
                other.threshold,
            )


# -- Searches --------------------------------------------------------------------------------------------------


def arithmetic(count):
    return [
        Problem(text=p.text, id=p.id, answer=str(p.answer))
        for p in arithmetic_problems(count, seed=3, steps=(3, 5))
    ]


def searched(search, models, **more):
    return list(search_run(arithmetic(2), search, models, load_verifier("number"), **more))


def scored_nodes(found):
    return [(node.parent, node.step, node.state) for node in found.trace.nodes]


@pytest.mark.parametrize(
    "search",
    [BestOfN(n=3), BeamSearch(width=2, expand=2), MCTS(simulations=5, expand=2)],
    ids=lambda s: s.name,
)
def test_a_search_over_a_server_is_the_search_here_and_computes_every_token_once(zoo, search):
    here, served = prm_of(zoo), prm_of(zoo)
    search = replace(search, grading=Grading(aggregate="min", kind=here.score_kind))
    expected = searched(search, models_of(ArithmeticPolicy(), here))
    with InProcess(served) as server, remote(server) as there:
        assert prms.why_whole_prefixes(there) == ""
        assert there.identity == f"{there.name}#{here.identity.rpartition('#')[2]}"
        store = MemoryReplies()
        results = searched(search, models_of(ArithmeticPolicy(), there), store=store)
        sent = [json.loads(body) for _, path, body in server.requests if path == "/v1/score"]
        # A replay asks nothing.
        assert searched(search, models_of(ArithmeticPolicy(), there), store=store) == results
        assert sum(path == "/v1/score" for _, path, _ in server.requests) == len(sent)
        prefixes = [(one["problem"], tuple(one["steps"])) for body in sent for one in body["solutions"]]
        assert len(prefixes) == len(set(prefixes)) == sum(found.cost.scores for found in results)
    for one, other in zip(results, expected, strict=True):
        assert scored_nodes(one) == scored_nodes(other)
        assert one.cost == other.cost
        for node, twin in zip(one.trace.nodes, other.trace.nodes, strict=True):
            assert node.score == (None if twin.score is None else pytest.approx(twin.score, abs=1e-5))
    assert served.ledger.tokens_again == 0
    assert served.ledger.tokens_computed == served.ledger.tokens_distinct == here.ledger.tokens_computed


def test_a_watch_over_the_network_is_the_watch_here(zoo):
    """Turns, tool output and a return: equal scores, and each token computed once by the server."""

    def watched(prm):
        watch = prm.watch(PENS, threshold=0.5, retries=9)
        for turn in ("12 * 3 = 36 pens", "so x = 6", "36 - 6 = 30"):
            watch.add(turn)
            watch.add({"role": "tool", "name": "sum", "content": f"{len(turn)}"})
        watch.back(2)
        watch.add("36 - 5 = 31")
        return watch.scores

    served = prm_of(zoo)
    here = prm_of(zoo)
    with InProcess(served) as server, remote(server) as there:
        assert watched(there) == pytest.approx(watched(here), abs=1e-5)
        assert served.ledger.tokens_again == 0
        assert served.ledger.tokens_computed == served.ledger.tokens_distinct
        # A session in this process forgets at once what is gone back from; the server's cache has it still.
        assert served.ledger.tokens_computed <= here.ledger.tokens_computed


def test_a_watch_of_a_prm_that_keeps_no_state_over_the_network():
    class Seeing(prms.PRM):
        """The share of words in a step that stood in what came back before."""

        name = identity = "seeing"
        score_kind, default_aggregate, default_threshold = "probability", "min", 0.5

        def __init__(self):
            self.ledger = prms.Ledger()

        def score_many(self, solutions, *, keep_going=False):
            for solution in solutions:
                before, scores = "", []
                for step in solution.steps:
                    words = step.text.split()
                    scores.append(sum(word in before for word in words) / len(words))
                    before = step.observation
                yield StepScores(scores=tuple(scores), kind="probability")

    with InProcess(Seeing()) as server, remote(server) as there:
        watch = there.watch(PENS, retries=9)
        assert watch.add("look").score == 0.0
        watch.add({"role": "tool", "content": "36 pens"})
        assert watch.add("36 pens or 6").score == 0.75


@pytest.mark.parametrize("fields", [{"steps": ["a", "b"]}, {"solution": "a\nb"}])
def test_observations_belong_to_steps(fields):
    with InProcess(ScriptedPRM(lambda problem, steps: 0.5)) as server:
        body = {"solutions": [{"problem": "p", **fields, "observations": ["41"]}]}
        with httpx.Client(base_url=ADDRESS, transport=server.transport) as client:
            answer = client.post("/v1/score", json=body).json()
        [result] = answer["results"]
    assert result["error"]["field"] == "solutions.0.observations"
