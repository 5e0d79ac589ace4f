"""`stepmark evaluate search`: figures by hand, sizes, votes at equal tokens, the command, and resume."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import stepmark
from search_worlds import World, full_tree
from stepmark.backends import Completion
from stepmark.cli import main
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.best_of_n import between
from stepmark.evaluation.search import VOTES, SearchContest, statistic
from stepmark.models.scripted import ScriptedPolicy
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.searches.base import Steps
from stepmark.searches.methods import METHODS

MODELS = ["--policy", "search_models:policy", "--prm", "search_models:truth", "--verifier", "number"]


def run_row(right, tokens):
    return {"right": right, "tokens": tokens}


def item(name, **runs):
    return {"id": name, "problem": name, "runs": {key.replace("_", "-"): of for key, of in runs.items()}}


def test_figures_by_hand():
    rows = [
        item(
            "a",
            majority={"n=1": run_row(False, 50), "200": run_row(True, 200)},
            best_of_n={"n=1": run_row(False, 90), "200": run_row(True, 180)},
            beam={"100": run_row(True, 60), "200": run_row(True, 160)},
        ),
        item(
            "b",
            majority={"n=1": run_row(False, 50), "200": run_row(False, 200)},
            best_of_n={"n=1": run_row(False, 90), "200": run_row(True, 180)},
            beam={"100": run_row(False, 60), "200": run_row(None, 160)},
        ),
    ]
    figures = {name: float(values[0]) for name, values in statistic(rows)(np.ones((1, 2))).items()}
    assert figures["accuracy/majority/200"] == 0.5
    assert figures["accuracy/beam/200"] == 1.0  # the one without a verdict is left out
    assert figures["tokens/beam/100"] == 60
    # 160 tokens of best-of-N lie between its points at 90 (0) and 180 (1), on a logarithmic axis.
    there = math.log(160 / 90) / math.log(2)
    assert figures["over best-of-n/beam/200"] == pytest.approx(1 - there)
    # 60 tokens lie between the vote's points at 50 (0) and 200 (0.5), and far below those of best-of-N.
    assert figures["over majority/beam/100"] == pytest.approx(0.5 - 0.5 * math.log(60 / 50) / math.log(4))
    assert math.isnan(figures["over best-of-n/beam/100"])
    alone = statistic(rows)(np.array([[0.0, 1.0]]))
    assert math.isnan(alone["accuracy/beam/200"][0])


def test_between_is_piecewise_linear_over_the_logarithm():
    xs = np.array([[400.0, 100.0, 200.0]] * 5)
    ys = np.array([[0.9, 0.1, 0.5]] * 5)
    at = np.array([100.0, 200.0, math.sqrt(200 * 400), 430.0, 450.0])
    assert between(xs, ys, at)[:4] == pytest.approx([0.1, 0.5, 0.7, 0.9])
    assert math.isnan(between(xs, ys, at)[4])
    assert between(np.array([[100.0]]), np.array([[0.4]]), np.array([105.0])) == pytest.approx([0.4])


def compared(world, problems, **settings):
    how = Steps(max_tokens=16, max_solution_tokens=64)
    contest = SearchContest(how=how, verifier="number", aggregate="last", **settings)
    return stepmark.evaluate(contest, world.prm, policy=world.policy, data=problems, resamples=100)


PROBLEMS = [{"problem": f"What is {n}?", "id": str(n), "answer": "121"} for n in range(3)]


def test_every_method_keeps_the_budget():
    tree, _ = full_tree(3, 3)
    world = World(tree, lambda steps: 0.9 if steps[-1].endswith(("b", "1")) else 0.3)
    result = compared(world, PROBLEMS, budgets=(80, 300), pilot=2)
    for row in result.items:
        assert set(row["runs"]) == set(METHODS)
        for runs in row["runs"].values():
            for budget in (80, 300):
                # Beyond the limit there is at most what the PRM reads of the request in flight.
                assert runs[str(budget)]["decoded"] <= budget
                assert runs[str(budget)]["tokens"] <= 1.5 * budget
    assert {name.partition(" at ")[0] for name in result.settings["sizes"]} == {
        "beam",
        "dvts",
        "rebase",
        "mcts",
    }


def test_a_size_is_enlarged_until_the_budget_is_spent():
    """Steps of four tokens that all differ: three rounds of n steps cost n * 3 * (written + read)."""

    def write(request, number):
        depth = request.prefill.count("\n")
        if not request.stop:
            text = "\n".join(f"step {number} {at} of it" for at in range(2)) + f"\nthe answer is {number}"
            return Completion(text=text, finish="end", tokens=12)
        end = depth == 2
        text = f"the answer is {number}" if end else f"step {request.prefill[-9:]!r} {number} of"
        return Completion(text=text, finish="end" if end else "stop", tokens=4)

    world = World({}, lambda steps: 0.5)
    world.policy = ScriptedPolicy(write)
    result = compared(world, PROBLEMS[:1], budgets=(480,), methods=("rebase",), pilot=1)
    assert result.items[0]["runs"]["rebase"]["480"]["tokens"] >= 0.75 * 480
    assert result.settings["sizes"]["rebase at 480"] > 4


def test_a_search_that_the_prm_guides_beats_the_votes_at_equal_tokens():
    """Whole samples walk the first options and are wrong; the PRM knows the right way, step by step."""
    tree, _ = full_tree(3, 3)
    world = World(tree, lambda steps: 0.9 if all(step[-1] in "b1" for step in steps) else 0.1)
    result = compared(world, PROBLEMS, budgets=(60, 120), methods=("beam", "mcts"), pilot=1)
    assert result.figures["accuracy/beam/120"].value == 1.0
    assert (
        result.figures["accuracy/majority/120"].value == result.figures["accuracy/best-of-n/120"].value == 0.0
    )
    assert all(result.figures[f"over {vote}/beam/120"].value == 1.0 for vote in VOTES)
    assert "beam" in result.verdict
    # Of votes the samples are those of one store, and cost what they cost alone.
    assert result.items[0]["runs"]["majority"]["n=2"]["decoded"] == 2 * result.items[0]["runs"]["majority"]["n=1"]["decoded"]  # fmt: skip


def test_what_cannot_be_compared_is_refused():
    tree, _ = full_tree(2, 2)
    world = World(tree, lambda steps: 0.5)
    for settings in (
        {"budgets": (200, 100)},
        {"budgets": ()},
        {"budgets": (100,), "method_settings": ["x=1"]},
    ):
        with pytest.raises(UsageError):
            compared(world, PROBLEMS, **settings)
    with pytest.raises(InputError):
        compared(world, [PROBLEMS[0], PROBLEMS[0]], budgets=(100,))


def test_a_method_that_the_scores_do_not_allow_is_left_out_unless_it_is_named():
    tree, _ = full_tree(2, 2)
    world = World(tree, lambda steps: 0.5, kind="margin")
    result = compared(world, PROBLEMS, budgets=(100,), pilot=1)
    assert "accuracy/weighted-vote/100" not in result.figures
    assert any(fact.startswith("Without weighted-vote") for fact in result.facts)
    with pytest.raises(UsageError):
        compared(world, PROBLEMS, budgets=(100,), methods=("weighted-vote",), pilot=1)


# -- The command -------------------------------------------------------------------------------------------------


def problem_file(tmp_path, count=3):
    file = tmp_path / "problems.jsonl"
    rows = [
        {"id": one.id, "problem": one.text, "answer": str(one.answer)}
        for one in arithmetic_problems(count, seed=3, steps=(3, 5))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_command_writes_a_report_and_a_second_run_asks_nothing(tmp_path, monkeypatch, capsys):
    file, out = problem_file(tmp_path), tmp_path / "out"
    asked = tmp_path / "asked"
    monkeypatch.setenv("ASKED", str(asked))
    words = ["evaluate", "search", "--data", str(file), *MODELS, "--budgets", "150", "400"]
    words += ["--methods", "beam", "mcts", "--set", "beam.expand=2", "--pilot", "2", "--resamples", "100"]
    assert main([*words, "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    names = {one["name"] for one in result["figures"]}
    for method in (*VOTES, "beam", "mcts"):
        assert {f"accuracy/{method}/150", f"tokens/{method}/400"} <= names
    assert {"over majority/beam/150", "over best-of-n/mcts/400"} <= names
    assert len(result["items"]) == 3
    assert "Accuracy against tokens" in (out / "report.html").read_text()
    before = asked.read_text()
    assert main([*words, "--out", str(out)]) == 0
    assert asked.read_text() == before
    assert json.loads((out / "result.json").read_text()) == result
    path = str(out / "result.json")  # compared with itself, nothing differs
    assert main(["evaluate", "compare", path, path, "--figure", "accuracy/beam/150"]) == 0
    assert "0.0000" in capsys.readouterr().out


def test_a_run_that_dies_goes_on(tmp_path, capsys):
    file, whole, broken = problem_file(tmp_path), tmp_path / "whole", tmp_path / "broken"
    words = ["evaluate", "search", "--data", str(file), *MODELS[2:], "--budgets", "200", "--methods", "beam"]
    words += ["--pilot", "1", "--resamples", "100", "--policy"]
    assert main([*words, "search_models:policy", "--out", str(whole)]) == 0
    assert main([*words, "search_models:dying", "--out", str(broken)]) == 1
    assert "the server went away" in capsys.readouterr().err
    assert not (broken / "result.json").exists()
    assert main([*words, "search_models:policy", "--out", str(broken)]) == 0
    first, second = (json.loads((one / "result.json").read_text()) for one in (whole, broken))
    assert first["items"] == second["items"]
