"""Searches that others have recorded (crucible-ttc, MATH-500): ours over their texts and scores, where the method is the same.

Best of 4, the majority vote over the same samples, the beam search's ways, and of MCTS what the two have in common. Theirs is another one: each child is counted as visited once, with its own value, when it is scored
(`N` 1, `Q` that value), so an unvisited child's exploration is half of ours, and a child's own value stays in its mean. With no exploration
(`c_puct` 0) both go to the best child until its mean falls below another's value; the records, made with 1.4, agree with that in their
first expansions only.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from stepmark.backends import Completion
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM
from stepmark.records import Problem
from stepmark.searches.base import Grading, Steps
from stepmark.searches.beam import BeamSearch
from stepmark.searches.mcts import MCTS
from stepmark.searches.run import models_of, run
from stepmark.searches.sampled import BestOfN, Majority
from stepmark.verifiers.base import load_verifier

DATA = Path(__file__).parents[2] / "shared" / "data" / "best_of_n"
STOP = "\n%%\n"


def recorded(name):
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"the recorded searches are not here: {path}")
    with gzip.open(path, "rt") as handle:
        return json.loads(handle.read())


def found_by(search, problem, policy, prm=None, verifier=None):
    [found] = run(
        [Problem(text=problem)], search, models_of(policy, prm), verifier or load_verifier("number")
    )
    return found


def key_of(problem, texts):
    return f"{problem}:{hashlib.sha256(chr(0x1F).join(texts).encode()).hexdigest()[:16]}"


def test_majority_of_four_is_right_as_often_as_recorded():
    """crucible-ttc's README: 45.0% over three seeds of 40 problems, the same samples as its best of 4 (53.3%)."""
    right = total = 0
    with load_verifier("math") as verifier:
        for seed in (0, 1, 2):
            for record in recorded(f"math500-bestofn-seed{seed}")["records"]:
                traces = record["traces"][:4]
                policy = ScriptedPolicy(
                    lambda request, number, traces=traces: Completion(
                        text=traces[number]["text"], finish="end", tokens=traces[number]["tokens"]
                    )
                )
                search = Majority(n=4, how=Steps(stop="%%%"))
                found = found_by(search, record["problem_id"], policy, verifier=verifier)
                if found.solution is not None:
                    right += next(t for t in traces if t["text"] == found.solution.text)["correct"]
                total += 1
    assert total == 120
    # Answers are grouped by another rule than theirs (a verifier, not a text), so a vote may fall otherwise.
    assert abs(right - 54) <= 4, right


def test_mcts_begins_as_recorded():
    steps, scores = recorded("math500-mcts-hard-steps"), recorded("math500-mcts-hard-prm")["records"]
    batches = {record["key"]: record["batches"] for record in steps["step_records"]}
    for problem in steps["problems"]:
        asked, missing = [], []

        def write(request, number, asked=asked, missing=missing, name=problem["id"]):
            texts = [text for text in request.prefill.split(STOP) if text]
            key = key_of(name, texts)
            if not request.temperature:  # after the last simulation: the best leaf is written to its end
                return Completion(text="so be it", finish="end")
            if key not in batches:
                missing.append(texts)
                return Completion(text="?", finish="end")
            asked.append((key, number))
            text = batches[key][0][number]["text"]
            return Completion(text=text, finish="end" if "boxed" in text else "stop")

        def score(_, texts, name=problem["id"]):
            return 0.0 if texts[-1] == "so be it" else scores[key_of(name, texts)][-1]

        search = MCTS(
            simulations=2, expand=2, c_puct=0.0, how=Steps(stop=STOP), grading=Grading(aggregate="mean")
        )
        found = found_by(search, problem["prompt"], ScriptedPolicy(write), ScriptedPRM(score))
        assert not missing
        assert asked[0] == (key_of(problem["id"], []), 0)
        # The second expansion is that of the step with the higher score.
        first = [node for node in found.trace.nodes if node.parent is None]
        best = max(first, key=lambda node: node.score)
        assert asked[2][0] == key_of(problem["id"], [best.step])


def test_best_of_four_chooses_as_recorded():
    """crucible-ttc's README: over three seeds of 40 MATH-500 problems, the best of the first 4 by its PRM is right in 53.3%."""
    right = total = 0
    for seed in (0, 1, 2):
        for record in recorded(f"math500-bestofn-seed{seed}")["records"]:
            traces = record["traces"][:4]
            policy = ScriptedPolicy(
                lambda request, number, traces=traces: Completion(
                    text=traces[number]["text"], finish="end", tokens=traces[number]["tokens"]
                )
            )
            scores = {(trace["text"].strip(),): trace["prm_score"] for trace in traces}
            prm = ScriptedPRM(lambda problem, steps, scores=scores: scores[steps])
            # Their one number a solution is the score of one step, the whole.
            search = BestOfN(n=4, how=Steps(stop="%%%"), grading=Grading(aggregate="last"))
            found = found_by(search, record["problem_id"], policy, prm)
            chosen = next(trace for trace in traces if trace["text"] == found.solution.text)
            assert chosen["prm_score"] == max(trace["prm_score"] for trace in traces)
            right += chosen["correct"]
            total += 1
    assert (right, total) == (64, 120)


def test_beam_search_goes_the_recorded_ways():
    """crucible-ttc's beam: two beams, two steps after each, the mean of the scores, five steps, the same step kept twice.

    Its records hold the steps after exactly those prefixes that it went on from. Ours asks for exactly these.
    """
    steps, scores = recorded("math500-beam-hard-steps"), recorded("math500-beam-hard-prm")["records"]
    batches = {record["key"]: record["batches"] for record in steps["step_records"]}
    for problem in steps["problems"]:
        asked, missing = set(), []

        def write(request, number, asked=asked, missing=missing, name=problem["id"]):
            texts = [text for text in request.prefill.split(STOP) if text]
            key = key_of(name, texts)
            if key not in batches:
                missing.append(texts)
                return Completion(text="?", finish="end")
            asked.add(key)
            if not texts and number > 1:  # its first round writes two steps, ours four
                return Completion(text="", finish="stop")
            text = batches[key][0][number % 2]["text"]
            ended = len(texts) == 4 or "boxed" in text
            return Completion(text=text, finish="end" if ended else "stop")

        def score(_, texts, name=problem["id"]):
            return scores[key_of(name, texts)][-1] if key_of(name, texts) in scores else 0.0

        search = BeamSearch(width=2, expand=2, how=Steps(stop=STOP), grading=Grading(aggregate="mean"))
        found = found_by(search, problem["prompt"], ScriptedPolicy(write), ScriptedPRM(score))
        assert not missing
        assert asked == {key for key in batches if key.startswith(problem["id"] + ":")}
        assert found.solution.finished
