"""`stepmark evaluate search`: figures by hand, sizes, the separation of scores, the command, and resume."""

from __future__ import annotations

import json
import math
import random
import re

import numpy as np
import pytest

from search_worlds import World, full_tree
from stepmark.batching import Written
from stepmark.cli import main
from stepmark.evaluation.evaluation import Run
from stepmark.evaluation.result import Figure
from stepmark.evaluation.search import SearchContest, advice
from stepmark.evaluation.search_contest import (
    METHODS,
    Arena,
    Contest,
    Shape,
    between,
    contest,
    entrants,
    spread_statistic,
    spread_sums,
    statistic,
)  # fmt: skip
from stepmark.models.replies import MemoryReplies
from stepmark.models.scripted import ScriptedPolicy
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.records import Problem
from stepmark.search.base import Grading, Searching, Sizes, Steps
from stepmark.verifiers.base import load_verifier

MODELS = ["--policy", "search_models:policy", "--prm", "search_models:truth", "--verifier", "number"]


# -- Figures -----------------------------------------------------------------------------------------------------


def one(right, spent, *, end=None, stopped="done", found=None):
    """A run as items have them."""
    end = end or ("right" if right else "wrong")
    return {
        "right": right,
        "end": end,
        "stopped": stopped,
        "spent": spent,
        "found": bool(right) if found is None else found,
    }


def item(name, **runs):
    empty = spread_sums([], Grading())
    return {
        "id": name,
        "problem": name,
        "runs": {key.replace("_", "-"): cells for key, cells in runs.items()},
        "spread": empty,
    }


def figures(rows, weights=None):
    weights = np.ones((1, len(rows))) if weights is None else np.array(weights, dtype=float)
    return dict(statistic(rows)(weights))


def test_figures_by_hand():
    rows = [
        item(
            "a",
            majority={"100": [one(True, 100)], "200": [one(True, 200)]},
            best_of_n={"100": [one(False, 90)], "200": [one(True, 180)]},
            beam={"100": [one(True, 60, stopped="budget")], "200": [one(True, 160)]},
        ),
        item(
            "b",
            majority={"100": [one(False, 100)], "200": [one(False, 200)]},
            best_of_n={"100": [one(False, 90, found=True)], "200": [one(True, 180)]},
            beam={
                "100": [one(False, 60, end="nothing", stopped="dead end")],
                "200": [one(None, 160, end="no verdict")],
            },
        ),
    ]
    found = {name: float(values[0]) for name, values in figures(rows).items()}
    assert found["accuracy/majority/100"] == 0.5
    assert found["accuracy/best-of-n/200"] == 1.0
    assert found["accuracy/beam/200"] == 1.0  # the one without a verdict is left out
    assert found["no verdict/beam/200"] == 0.5
    assert (
        found["nothing/beam/100"] == found["dead end/beam/100"] == found["stopped by budget/beam/100"] == 0.5
    )
    assert "nothing/beam/200" not in found
    assert found["found/best-of-n/100"] == 0.5
    assert found["spent/beam/100"] == 60
    assert found["over best-of-n/beam/100"] == 0.5
    assert found["over majority/beam/200"] == 0.5
    # 160 tokens of best-of-N lie between its points at 90 (0) and 180 (1), on a logarithmic axis.
    there = math.log(160 / 90) / math.log(2)
    assert found["over best-of-n at equal spend/beam/200"] == pytest.approx(1 - there)
    # 60 tokens are more than a tenth below the first point of either.
    assert math.isnan(found["over majority at equal spend/beam/100"])
    # Problem b alone: nothing is known of beam at 200.
    alone = figures(rows, [[0, 1]])
    assert math.isnan(alone["accuracy/beam/200"][0])


def test_seeds_are_averaged():
    rows = [item(name, majority={"9": [one(True, 1), one(False, 3)]}) for name in "ab"]
    found = {name: float(values[0]) for name, values in figures(rows).items()}
    assert (found["accuracy/majority/9"], found["spent/majority/9"]) == (0.5, 2.0)


def test_between_is_piecewise_linear_over_the_logarithm():
    xs = np.array([[400.0, 100.0, 200.0]] * 5)
    ys = np.array([[0.9, 0.1, 0.5]] * 5)
    at = np.array([100.0, 200.0, math.sqrt(200 * 400), 430.0, 450.0])
    assert between(xs, ys, at)[:4] == pytest.approx([0.1, 0.5, 0.7, 0.9])
    assert math.isnan(between(xs, ys, at)[4])
    single = between(np.array([[100.0]]), np.array([[0.4]]), np.array([105.0]))
    assert single == pytest.approx([0.4])


# -- The separation of scores --------------------------------------------------------------------------------------


def test_the_spread_is_measured_as_it_was_made():
    """Problems of different levels, one gap and one noise: the level must not be taken for noise."""
    dice = random.Random(4)
    rows = []
    for _ in range(300):
        level = dice.uniform(-5, 5)
        judged = []
        for _ in range(12):
            right = dice.random() < 0.4
            judged.append((right, (level, level + 1.2 * right + dice.gauss(0, 0.8))))
        rows.append(spread_sums(judged, Grading(aggregate="last", kind="unbounded")))
    found = {name: float(values[0]) for name, values in spread_statistic(rows)(np.ones((1, 300))).items()}
    assert found["spread/gap"] == pytest.approx(1.2, abs=0.06)
    assert found["spread/noise"] == pytest.approx(0.8, abs=0.03)
    assert found["spread/separation"] == pytest.approx(1.5, abs=0.1)


def test_the_advice_follows_the_separation():
    def figure(value):
        name = "spread/separation"
        return {name: Figure(name=name, value=value, low=None, high=None, level=0.95, policy="")}

    assert "is not known" in advice({}) and "is not known" in advice(figure(None))
    assert advice(figure(0.5)).endswith("so sample whole solutions and vote.")
    assert "lie 1.50 standard deviations" in advice(figure(1.5)) and "by a vote" in advice(figure(1.5))
    assert advice(figure(2.5)).endswith("read its size off the curves.")
    assert "more than 20 standard deviations" in advice(figure(50.0))


# -- Sizes, budgets, and a whole comparison ----------------------------------------------------------------------


def arena(world, *, store=None, aggregate="last", sizes=None, **how):
    return Arena(
        answerers=world.answerers,
        verifier=load_verifier("number"),
        common=Searching(
            how=Steps(max_tokens=16, max_solution_tokens=64, **how),
            grading=Grading(aggregate=aggregate),
            sizes=sizes or Sizes(),
        ),
        store=MemoryReplies() if store is None else store,
    )


def small_world():
    """Three steps of three options each; the answer is the place of the last one; the PRM likes the second option."""
    tree, ends = full_tree(3, 3)
    return World(tree, lambda steps: 0.9 if steps[-1].endswith(("b", "1")) else 0.3), ends


def test_every_method_keeps_the_budget_and_the_ends_are_counted():
    world, _ = small_world()
    problems = [Problem(text=f"What is {n}?", id=str(n), answer="121") for n in range(3)]
    settings = Contest(budgets=(80, 300), entrants=entrants(METHODS, Shape(expand=3, tau=2)), pilot=2)
    found = contest(problems, settings, arena(world))
    for row in found.items:
        assert set(row["runs"]) == set(METHODS)
        for cells in row["runs"].values():
            for budget in ("80", "300"):
                [cell] = cells[budget]
                # Beyond the limit there is at most what the PRM reads of the request in flight.
                assert cell["decoded"] <= int(budget)
                assert cell["spent"] == cell["decoded"] + cell["prm"] <= 1.5 * int(budget)
                assert (cell["end"] == "right") == (cell["right"] is True)
    # Every tree method was fitted, within the tries that it has.
    tried = {method: fit.tried for (method, _), fit in found.fits.items() if fit.tried}
    assert set(tried) == {"beam", "dvts", "rebase", "mcts", "early-rejection"}
    assert max(tried.values()) <= 5


def test_a_size_is_enlarged_until_the_budget_is_spent():
    """Steps of four tokens that all differ: three rounds of n steps cost n * 3 * (written + read)."""

    def write(request, number):
        depth = request.prefill.count("\n")
        if not request.stop:
            text = "\n".join(f"step {number} {at} of it" for at in range(2)) + f"\nthe answer is {number}"
            return Written(text=text, finish="end", tokens=12)
        end = depth == 2
        text = f"the answer is {number}" if end else f"step {request.prefill[-9:]!r} {number} of"
        return Written(text=text, finish="end" if end else "stop", tokens=4)

    world = World({}, lambda steps: 0.5)
    world.policy = ScriptedPolicy(write)
    problems = [Problem(text="What?", id="a", answer="1")]
    settings = Contest(budgets=(480,), entrants=entrants(("rebase",)), pilot=1)
    found = contest(problems, settings, arena(world))
    [cell] = found.items[0]["runs"]["rebase"]["480"]
    # With all that it may spend: a size that is one step a round smaller would leave more than a tenth.
    assert cell["spent"] >= 0.75 * 480


def test_the_report_shows_where_methods_disagree():
    """Whole solutions are wrong, the PRM finds the right way step by step: an example that only trees get right."""
    tree, _ = full_tree(3, 3)
    # Of whole solutions, every third sample only walks the first options.
    world = World(tree, lambda steps: 0.9 if all(step[-1] in "b1" for step in steps) else 0.1)
    problems = [Problem(text=f"What is {n}?", id=str(n), answer="121") for n in range(3)]
    settings = Contest(budgets=(60, 120), entrants=entrants(("beam", "mcts"), Shape(expand=3)), pilot=1)
    result = SearchContest(budgets=(60.0, 120.0)).of_arena(
        problems, settings, arena(world), Run(), prm="oracle", policy="tree"
    )
    assert result.figures["accuracy/beam/120"].value == 1.0
    assert (
        result.figures["accuracy/majority/120"].value == result.figures["accuracy/best-of-n/120"].value == 0.0
    )
    assert result.figures["over best-of-n/beam/120"].value == 1.0
    titles = [table.title for table in result.tables]
    assert "Accuracy by method and budget, %" in titles
    assert "Over best-of-N, percentage points" in titles
    disagree = result.sections[-1]
    assert disagree.title == "Where they disagree"
    [table] = disagree.items
    assert table.title == "Right only by growing trees (3)" and len(table.rows) == 3
    for row in table.rows:
        ends = dict(zip(table.columns, row, strict=True))
        assert ends["Reference"] == "121" and ends["beam"] == "121, right"
        assert all(ends[name].endswith("wrong") for name in ("majority", "best-of-n"))
    page = "".join(result.pages["trees.html"]())
    assert all(f"{number}: {name}" in page for number in range(3) for name in ("beam", "mcts"))


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
    words = ["evaluate", "search", "--data", str(file), *MODELS]
    words += [
        "--budgets",
        "150",
        "400",
        "--methods",
        "beam",
        "mcts",
        "--pilot",
        "2",
        "--seeds",
        "2",
        "--resamples",
        "100",
    ]
    assert main([*words, "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    names = {one["name"] for one in result["figures"]}
    for method in ("majority", "best-of-n", "beam", "mcts"):
        assert {f"accuracy/{method}/150", f"spent/{method}/400"} <= names
    assert "over majority/beam/150" in names
    assert "over best-of-n at equal spend/mcts/400" in names
    assert len(result["items"]) == 3
    page = (out / "report.html").read_text()
    assert "Accuracy against compute" in page
    assert "How well do the scores separate right from wrong?" in page
    assert re.search(r"Over best-of-N", (out / "result.md").read_text())
    before = asked.read_text()
    assert main([*words, "--out", str(out)]) == 0
    assert asked.read_text() == before
    assert json.loads((out / "result.json").read_text()) == result
    # Compared with itself, nothing differs.
    path = str(out / "result.json")
    assert main(["evaluate", "compare", path, path, "--figure", "accuracy/beam/150"]) == 0
    assert "0.0000" in capsys.readouterr().out


def test_a_run_that_dies_goes_on(tmp_path, monkeypatch, capsys):
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
