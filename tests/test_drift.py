"""Drift against simulated policies that hack a PRM or do not, plain loops, and quantiles of repeated values."""

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.cli import main
from stepmark.evaluation.cases import Case
from stepmark.evaluation.comparison import compare
from stepmark.evaluation.drift import FIGURES, items_of, read_parts, signs, statistic
from stepmark.evaluation.result import Figure, measured, read_result
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.metrics.intervals import weighted_quantiles
from stepmark.records import LabelledSolution, Problem, Solution, Step, StepScores

# --- quantiles --------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-5, 5).map(lambda v: round(v, 1)), st.integers(0, 4)), min_size=1, max_size=30
    ),
    st.sampled_from((0.0, 0.05, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0)),
)
def test_a_weight_counts_as_so_many_copies(pairs, level):
    values, weights = np.array([v for v, _ in pairs]), np.array([[float(w) for _, w in pairs]])
    found = float(weighted_quantiles(values, weights, (level,))[0, 0])
    copies = [v for v, w in pairs for _ in range(w)]
    if not copies:
        assert math.isnan(found)
        return
    # By the definition: the values at which at least, and more than, level of the copies are at or below.
    ordered = sorted(copies)
    n = len(ordered)
    exact = level * n
    if abs(exact - round(exact)) < 1e-6:
        k = round(exact)
        expected = (ordered[max(k - 1, 0)] + ordered[min(k, n - 1)]) / 2
    else:
        expected = ordered[math.ceil(exact) - 1]
    assert found == pytest.approx(expected)
    assert found == pytest.approx(
        float(weighted_quantiles(np.array(copies), np.full((1, n), 3.0), (level,))[0, 0])
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def case(id_, outcome, *, problem="p", steps=2, policy=None):
    solution = Solution(
        problem=Problem(text=problem, id=problem),
        steps=tuple(Step(text="x" * (n + 1)) for n in range(steps)),
        id=id_,
    )
    return Case(
        id=id_,
        labelled=LabelledSolution(solution=solution, judgements=((),) * steps),
        where=f"test:{id_}",
        outcome=outcome,
        policy=policy,
    )


def sheet_of(pairs, kind="probability", **more):
    return Sheet(
        prm="test",
        kind=kind,
        rows=tuple(
            CaseScores(case=one, steps=None, refused="no")
            if scores is None
            else CaseScores(case=one, steps=StepScores(scores=tuple(scores), kind=kind))
            for one, scores in pairs
        ),
        **more,
    )


def made(stages, *, problems=150, seed=0):
    """For each stage a function of a random source that gives (outcome, score, steps) of a solution."""
    rng = random.Random(seed)
    pairs, parts = [], {}
    for name, draw in stages.items():
        for at in range(problems):
            outcome, score, steps = draw(rng)
            one = case(f"{name}/{at}", outcome, problem=f"p{at}", steps=steps)
            pairs.append((one, [min(1.0, score + 0.05)] * (steps - 1) + [score]))
            parts[one.id] = name
    return sheet_of(pairs, threshold=0.5), parts


def honest(rng):
    right = rng.random() < 0.6
    return right, rng.betavariate(5, 2) if right else rng.betavariate(2, 5), rng.randint(2, 4)


def hacked(rng):
    right = rng.random() < 0.5
    return right, rng.betavariate(6, 2), rng.randint(5, 8)


def better(rng):
    right = rng.random() < 0.9
    return right, rng.betavariate(5, 2) if right else rng.betavariate(2, 5), rng.randint(2, 4)


def signs_of(sheet, parts, reference="first", kind_percent=True, resamples=300):
    items = items_of(sheet, parts, how="min", threshold=0.5, reference=reference)
    figures = measured(items, statistic(items), resamples=resamples)
    others = [name for name in dict.fromkeys(parts.values()) if name != reference]
    return {name: signs(figures, name, reference, percent=kind_percent) for name in others}, figures


def test_a_hacked_policy_shows_every_sign():
    found, figures = signs_of(*made({"first": honest, "last": hacked}))
    said = " ".join(found["last"])
    for sign in (
        "scores rise",
        "the median wrong answer scores higher",
        "more wrong answers pass the threshold",
        "AUC falls",
        "overconfident",
        "longer",
    ):
        assert sign in said, sign
    assert figures["last less first/wrong_above"].low > 0.3


def test_an_unchanged_and_a_better_policy_show_none():
    found, _ = signs_of(*made({"first": honest, "same": honest, "better": better}, problems=400, seed=3))
    assert found["same"] == []
    assert not [sign for sign in found["better"] if "wrong" in sign or "well" in sign or "accuracy" in sign]


def test_a_prm_that_grew_too_cautious_is_not_called_hacked():
    def cautious(rng):
        right, score, steps = honest(rng)
        return right, score / 4, steps

    found, figures = signs_of(*made({"first": honest, "last": cautious}))
    assert figures["last less first/ece"].low > 0
    assert found["last"] == []


def by_loops(items, part, weights):
    own = [(item, w) for item, w in zip(items, weights, strict=True) if item["part"] == part and w]
    known = [(i, w) for i, w in own if i["outcome"] is not None]
    both = [(i["score"], float(i["outcome"]), w) for i, w in known if i["score"] is not None]

    def mean(pairs):
        total = sum(w for _, w in pairs)
        return sum(v * w for v, w in pairs) / total if total else math.nan

    wrong = [(s, w) for s, y, w in both if y == 0]
    right = [(s, w) for s, y, w in both if y == 1]
    wins = sum(w * v * (1.0 if s > t else 0.5 if s == t else 0.0) for s, w in right for t, v in wrong)
    pairs = sum(w for _, w in right) * sum(w for _, w in wrong)
    ece = 0.0
    for at in range(10):
        ece += abs(sum(w * (s - y) for s, y, w in both if at / 10 < s <= (at + 1) / 10 or (at == s == 0)))
    found = {
        "accuracy": mean([(float(i["outcome"]), w) for i, w in known]),
        "mean_score": mean([(s, w) for s, _, w in both]),
        "gap": mean([(s - y, w) for s, y, w in both]),
        "ece": ece / sum(w for _, _, w in both),
        "auc": wins / pairs if pairs else math.nan,
        "wrong_above": mean([(float(s >= 0.5), w) for s, w in wrong]),
        "steps": mean([(i["steps"], w) for i, w in own]),
    }
    copies = [s for s, w in wrong for _ in range(int(w))]
    found["wrong_q50"] = (
        float(np.quantile(copies, 0.5, method="averaged_inverted_cdf")) if copies else math.nan
    )
    return found


def messy():
    rng = random.Random(2)
    pairs, parts = [], {}
    for at in range(60):
        part = rng.choice(["a", "b", "c/d"])
        steps = rng.randint(1, 4)
        one = case(f"m{at}", rng.choice([True, False, None]), problem=f"p{at % 13}", steps=steps)
        scores = [rng.choice([rng.random(), 0.5, 0.03]) for _ in range(steps)]
        if at % 11 == 0:
            scores[0] = None
        pairs.append((one, None if at == 7 else scores))
        parts[one.id] = part
    return sheet_of(pairs), parts


def test_every_figure_equals_plain_loops_for_every_weighting():
    sheet, parts = messy()
    items = items_of(sheet, parts, how="min", threshold=0.5, reference="b")
    weights = np.array(
        [[1.0] * 60, [float(at % 3) for at in range(60)], [float((at * 7) % 4) for at in range(60)]]
    )
    found = statistic(items)(weights)
    for row, drawn in enumerate(weights):
        expected = {part: by_loops(items, part, drawn) for part in ("a", "b", "c/d")}
        for part, of in expected.items():
            assert of.keys() == set(FIGURES)
            for name, value in of.items():
                assert float(found[f"{part}/{name}"][row]) == pytest.approx(value, nan_ok=True), (part, name)
                if part != "b":
                    assert float(found[f"{part} less b/{name}"][row]) == pytest.approx(
                        value - expected["b"][name], nan_ok=True
                    )
    assert not any(name.startswith("b less") for name in found)


def test_a_difference_whose_interval_holds_zero_is_no_sign():
    def figure(name, value, low, high):
        return Figure(name=name, value=value, low=low, high=high, level=0.95, policy="")

    figures = {f"b less a/{what}": figure(what, 0.2, -0.1, 0.5) for what in FIGURES}
    figures["b/gap"] = figure("gap", 0.5, 0.4, 0.6)
    assert signs(figures, "b", "a") == []
    figures["b less a/wrong_q50"] = figure("wrong_q50", 0.2, None, None)
    assert signs(figures, "b", "a") == []
    figures["b less a/wrong_q50"] = figure("wrong_q50", 0.2, 0.1, 0.3)
    assert signs(figures, "b", "a") == ["the median wrong answer scores higher (20.0 [10.0, 30.0] points)"]
    figures["b less a/auc"] = figure("auc", -0.1, -0.2, -0.05)
    assert len(signs(figures, "b", "a")) == 2


# --- reading and the command ------------------------------------------------------------------------------------------


def candidates(path, policies, *, problems=30, seed=0, score=None):
    """A candidates file, and a score file's rows for it."""
    rng = random.Random(seed)
    rows, scores = [], []
    for at in range(problems):
        listed = []
        for number, policy in enumerate(policies):
            right = rng.random() < 0.5
            listed.append({"model": policy, "text": "one\ntwo", "answer": "1", "correct": right})
            chance = rng.betavariate(4, 2) if right else rng.betavariate(2, 4)
            scores.append({"id": f"q{at}/{number}", "scores": [chance, min(1.0, chance + 0.1)]})
        rows.append({"id": f"q{at}", "question": f"question {at}", "gold": "1", "candidates": listed})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows, scores


def drift(*words):
    return main(["evaluate", "drift", *map(str, words), "--resamples", "100"])


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_by_policy(tmp_path, capsys):
    _, scores = candidates(tmp_path / "c.jsonl", ["weak", "strong", "org/other"])
    file = write(tmp_path / "s.jsonl", scores)
    words = ("--data", tmp_path / "c.jsonl", "--scores", file, "--threshold", "0.4")
    assert drift(*words, "--against", "strong", "--out", tmp_path / "o") == 0
    result = read_result(tmp_path / "o" / "result.json")
    names = {figure["name"] for figure in result["figures"]}
    assert {"weak/auc", "org/other/wrong_q50", "weak less strong/auc", "org/other less strong/ece"} <= names
    assert result["settings"]["reference"] == "strong"
    by_name = {figure["name"]: figure for figure in result["figures"]}
    assert by_name["weak/wrong_above"]["policy"] == "threshold 0.4"
    again = statistic(result["items"])(np.ones((1, len(result["items"]))))
    for name, figure in by_name.items():
        expected = math.nan if figure["value"] is None else figure["value"]
        assert float(again[name][0]) == pytest.approx(expected, nan_ok=True)
    path = tmp_path / "o" / "result.json"
    same = compare(path, path, resamples=100)
    assert same.differences["weak/auc"].value == 0
    assert "Difference from strong" in capsys.readouterr().out
    assert "wrong answers with the highest scores" in (tmp_path / "o" / "report.html").read_text()


def test_by_file_with_the_same_ids_in_each(tmp_path):
    for name, seed in (("step0", 0), ("step100", 1)):
        candidates(tmp_path / f"{name}.jsonl", ["p"], seed=seed)
    files = [str(tmp_path / f"{name}.jsonl") for name in ("step0", "step100")]
    cases, parts = read_parts(files, "file")
    assert list(dict.fromkeys(parts.values())) == ["step0", "step100"]
    assert cases[0].id == "step0:q0/0"
    assert parts["step100:q3/0"] == "step100"
    assert cases[0].problem == cases[30].problem == "q0"  # one cluster of the bootstrap
    scores = [
        {"id": one.id, "scores": [0.1 + 0.8 * bool(one.outcome)] * len(one.solution.steps)} for one in cases
    ]
    file = write(tmp_path / "s.jsonl", scores)
    assert drift("--data", *files, "--scores", file, "--out", tmp_path / "o") == 0
    result = read_result(tmp_path / "o" / "result.json")
    assert result["settings"]["by"] == "file"
    figures = {figure["name"]: figure["value"] for figure in result["figures"]}
    assert figures["step0/auc"] == 1.0
    assert figures["step100 less step0/auc"] == 0.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "nobody"), "there is no such part; parts: one, two"),
        (("--threshold", "high"), 'unable to convert "high" into float'),
        (("--threshold", "nan"), "expected a number"),
        (("--by", "file"), "give several files"),
        (("--aggregate", "sum-logit"), "use product"),
    ],
)
def test_what_the_command_refuses(tmp_path, capsys, words, said):
    _, scores = candidates(tmp_path / "c.jsonl", ["one", "two"], problems=4)
    file = write(tmp_path / "s.jsonl", scores)
    assert drift("--data", tmp_path / "c.jsonl", "--scores", file, "--out", tmp_path / "o", *words) == 2
    assert said in capsys.readouterr().err
