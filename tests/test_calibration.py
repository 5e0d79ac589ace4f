"""Calibration against simulated PRMs whose calibration is known, hand-worked bins and plain loops."""

import json
import math
import random
import shutil

import numpy as np
import pytest

from stepmark.cli import main
from stepmark.errors import ScoreKindError, UsageError
from stepmark.evaluation.base import Run
from stepmark.evaluation.calibration import (
    FIGURES,
    FITTED,
    MEASURED,
    Calibration,
    edges,
    facets,
    floor,
    items_of,
    logits_of,
    split_by,
    statistic,
    targets_of,
)
from stepmark.evaluation.cases import Case
from stepmark.evaluation.comparison import compare
from stepmark.evaluation.result import measured, read_result
from stepmark.evaluation.scores import CaseScores, Sheet, check_how, solution_score
from stepmark.models.spec import LinearHead, Readout, composed
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step, StepScores


def evaluate(sheet, targets, *, split=None, resamples=1000, **settings):
    return Calibration(**settings).calibrated(sheet, Run(resamples=resamples), targets, split=split)


def case(
    id_,
    labels=(),
    *,
    outcome=None,
    group="",
    policy=None,
    problem=None,
    text=None,
    steps=None,
):
    """A case whose steps have those labels: 1, 0, None, or (successes, trials)."""
    judgements = []
    for label in labels:
        if label is None:
            judgements.append(())
        elif isinstance(label, tuple):
            judgements.append((Judgement(kind="value", judge="test", successes=label[0], trials=label[1]),))
        else:
            judgements.append((Judgement(kind="correctness", judge="test", rating=1 if label else -1),))
    judgements += [()] * ((steps or 0) - len(judgements))
    problem = problem or f"problem of {id_}"
    solution = Solution(
        problem=Problem(text=text or problem, id=problem),
        steps=tuple(Step(text=f"step {n}") for n in range(len(judgements))),
        id=id_,
    )
    return Case(
        id=id_,
        labelled=LabelledSolution(solution=solution, judgements=tuple(judgements)),
        where=f"test:{id_}",
        group=group,
        outcome=outcome,
        policy=policy,
    )


def sheet_of(pairs, kind="probability", **more):
    rows = tuple(
        CaseScores(case=one, steps=None, refused="no")
        if scores is None
        else CaseScores(case=one, steps=StepScores(scores=tuple(scores), kind=kind))
        for one, scores in pairs
    )
    return Sheet(prm="test", kind=kind, rows=rows, **more)


def value(items, weights=None):
    found = statistic(items)(np.ones((1, len(items))) if weights is None else weights)
    return {name: float(column[0]) for name, column in found.items()}


def simulated(n, *, sharpness=1.0, shift=0.0, seed=0, steps=4):
    """Steps whose chance to be right is sigmoid(x), scored sigmoid(sharpness * x + shift): calibrated at (1, 0)."""
    rng = random.Random(seed)
    pairs = []
    for at in range(n):
        xs = [rng.gauss(0.4, 1.6) for _ in range(steps)]
        labels = [int(rng.random() < 1 / (1 + math.exp(-x))) for x in xs]
        pairs.append((case(f"s{at}", labels), [1 / (1 + math.exp(-(sharpness * x + shift))) for x in xs]))
    return sheet_of(pairs)


# --- figures ----------------------------------------------------------------------------------------------------------


def by_loops(pairs, bins):
    """All figures of (score, label, weight) triples, one at a time."""
    total = sum(w for _, _, w in pairs)
    found = dict.fromkeys(FIGURES, math.nan)
    if not total:
        return found
    found["share_right"] = sum(w * y for _, y, w in pairs) / total
    found["mean_score"] = sum(w * x for x, _, w in pairs) / total
    found["gap"] = found["mean_score"] - found["share_right"]
    found["brier"] = sum(w * (x - y) ** 2 for x, y, w in pairs) / total
    ece = 0.0
    for at in range(bins):
        part = [(x, y, w) for x, y, w in pairs if at / bins < x <= (at + 1) / bins or (at == 0 and x == 0)]
        ece += abs(sum(w * (x - y) for x, y, w in part))
    found["ece"] = ece / total
    wins = rights = wrongs = 0.0
    for x, y, w in pairs:
        rights, wrongs = rights + w * y, wrongs + w * (1 - y)
        for x2, y2, w2 in pairs:
            wins += w * y * w2 * (1 - y2) * (1.0 if x > x2 else 0.5 if x == x2 else 0.0)
    found["auc"] = wins / (rights * wrongs) if rights * wrongs else math.nan
    return found


def messy(seed=1, n=40):
    """Groups, soft labels, missing scores and labels, a refused case."""
    rng = random.Random(seed)
    pairs = []
    for at in range(n):
        count = rng.randint(1, 12)
        labels = [rng.choice([0, 1, 1, None, (rng.randint(0, 8), 8)]) for _ in range(count)]
        scores = [rng.choice([None, rng.random(), 0.0, 1.0, 0.3, 0.6]) for _ in range(count)]
        one = case(
            f"m{at}",
            labels,
            outcome=rng.choice([True, False, None]),
            group=rng.choice(["g1", "g2"]),
            problem=f"p{at % 11}",
        )
        pairs.append((one, None if at == 5 else scores))
    return sheet_of(pairs)


def chosen_by(name, item, step):
    key, _, what = name.partition(" ")
    if name == "all":
        return True
    if key == "position":
        at = step + 1
        label = str(at) if at <= 3 else "4–5" if at <= 5 else "6–9" if at <= 9 else "10+"
        return label == what
    return item[key] == what


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_every_figure_equals_plain_loops_for_every_weighting(bins):
    sheet = messy()
    items = items_of(sheet, ["steps", "outcome"], how="min", bins=bins)
    weights = np.array(
        [
            [1.0] * len(items),
            [float(random.Random(3).randint(0, 3)) for _ in items],
            [float(at % 3) for at in range(len(items))],
        ]
    )
    found = statistic(items)(weights)
    seen = set()
    for row, drawn in enumerate(weights):
        for name in found:
            target, rest = name.split("/", 1)
            facet, what = rest.rsplit("/", 1)
            if what != FIGURES[0]:
                continue
            seen.add((target, facet))
            pairs = [
                (x, y, drawn[at])
                for at, item in enumerate(items)
                for step, (x, y) in enumerate(
                    zip(item[target]["scores"], item[target]["labels"], strict=True)
                )
                if x is not None and y is not None and chosen_by(facet, item, step)
            ]
            expected = by_loops(pairs, bins)
            for figure in FIGURES:
                got = float(found[f"{target}/{facet}/{figure}"][row])
                assert got == pytest.approx(expected[figure], nan_ok=True), (name, figure)
    assert {
        ("steps", "all"),
        ("steps", "group g1"),
        ("steps", "position 10+"),
        ("outcome", "group g2"),
    } <= seen
    assert not any(target == "outcome" and facet.startswith("position") for target, facet in seen)


def test_other_kinds_of_scores_have_an_auc_and_no_calibration():
    for kind in ("margin", "log-ratio", "unbounded"):
        sheet = sheet_of([(case("a", [1, 0]), [0.9, -0.4]), (case("b", [1, 0]), [0.1, 0.2])], kind=kind)
        figures = measured(items := items_of(sheet, ["steps"]), statistic(items), resamples=100)
        by_name = figures
        assert by_name["steps/all/auc"].value == pytest.approx(3 / 4)
        assert by_name["steps/all/share_right"].value == 0.5
        for what in ("ece", "brier", "mean_score", "gap"):
            assert (by_name[f"steps/all/{what}"].value, by_name[f"steps/all/{what}"].low) == (None, None)


# --- simulated PRMs ---------------------------------------------------------------------------------------------------


def test_the_floor_is_the_mean_ece_of_calibrated_scores():
    rng = random.Random(5)
    scores = [rng.betavariate(2, 1) for _ in range(600)]
    eces = []
    for _ in range(300):
        labels = [int(rng.random() < s) for s in scores]
        eces.append(by_loops_ece(scores, labels))
    sheet = sheet_of([(case("a", [int(rng.random() < s) for s in scores]), scores)])
    (facet, *_) = facets(items_of(sheet, ["steps"]))
    assert floor(facet) == pytest.approx(sum(eces) / len(eces), rel=0.05)


def by_loops_ece(scores, labels, bins=10):
    gaps = [0.0] * bins
    for s, y in zip(scores, labels, strict=True):
        gaps[min(int(s * bins), bins - 1)] += s - y
    return sum(map(abs, gaps)) / len(scores)


def test_too_sharp_scores_are_mended_by_the_map_that_undoes_it():
    sheet = simulated(3000, sharpness=2.0)
    split = split_by([row.case for row in sheet.rows], 0.5)
    result, maps = evaluate(sheet, ["steps"], split=split, resamples=100)
    assert (maps["steps"].scale, maps["steps"].shift) == pytest.approx((0.5, 0.0), abs=0.04)
    ece = {view: result.figures[f"steps/measured, {view}/ece"].value for view in ("before", "platt")}
    assert ece["before"] > 0.06
    assert ece["platt"] < 0.03  # 0.013 by the floor alone
    # The map rises, so the order stays.
    before, after = (result.figures[f"steps/measured, {view}/auc"].value for view in ("before", "platt"))
    assert after == pytest.approx(before)
    # The map makes of each score what it was sharpened from, up to what was fitted.
    item = result.items[0]["steps"]
    a, b = maps["steps"].scale, maps["steps"].shift
    for score, mapped in zip(item["scores"], item["platt"], strict=True):
        assert mapped == pytest.approx(1 / (1 + math.exp(-(a * math.log(score / (1 - score)) + b))))


def test_scores_that_are_no_probabilities_become_some_by_platt():
    rng = random.Random(7)
    pairs = []
    for at in range(2000):
        x = rng.gauss(0, 2)
        pairs.append((case(f"u{at}", [int(rng.random() < 1 / (1 + math.exp(-(0.8 * x - 0.5))))]), [x]))
    sheet = sheet_of(pairs, kind="unbounded")
    result, maps = evaluate(
        sheet, ["steps"], split=split_by([row.case for row in sheet.rows], 0.5), resamples=100
    )
    assert (maps["steps"].scale, maps["steps"].shift) == pytest.approx((0.8, -0.5), abs=0.12)
    assert result.figures["steps/measured, before/ece"].value is None
    assert result.figures["steps/measured, platt/ece"].value < 0.04


# --- scores of exactly 0 and 1 ----------------------------------------------------------------------------------------


def test_certain_scores_are_taken_for_half_as_far_as_the_nearest_other():
    sheet = sheet_of([(case("a", [1] * 5), [0.0, 0.02, 0.5, 0.996, 1.0])])
    items = items_of(sheet, ["steps"])
    assert edges(items, "steps") == pytest.approx((0.01, 0.998))
    found = logits_of([0.0, 0.5, 1.0], "probability", edges(items, "steps"))
    assert list(found) == pytest.approx([math.log(0.01 / 0.99), 0.0, math.log(0.998 / 0.002)])
    only = items_of(sheet_of([(case("a", [1, 0]), [1.0, 0.0])]), ["steps"])
    assert edges(only, "steps") == (0.25, 0.75)


# --- what is measured -------------------------------------------------------------------------------------------------


def test_targets_are_what_the_data_knows():
    steps, outcome = case("a", [1, 0]), case("b", steps=2, outcome=True)
    assert targets_of([steps], None) == ("steps",)
    assert targets_of([outcome], None) == ("outcome",)
    assert targets_of([steps, outcome], None) == ("steps", "outcome")
    assert targets_of([steps, outcome], "outcome") == ("outcome",)
    with pytest.raises(UsageError, match="judged steps"):
        targets_of([outcome], "steps")
    with pytest.raises(UsageError, match="solutions whose answer"):
        targets_of([steps], "outcome")
    with pytest.raises(UsageError, match="known outcomes"):
        targets_of([case("c", [None])], None)


def test_the_aggregate_must_be_on_the_scale_of_the_scores():
    sheet = sheet_of([(case("a", [1]), [0.5])], aggregate="last")
    assert check_how(None, sheet) == "last"
    assert check_how("product", sheet) == "product"
    with pytest.raises(UsageError, match="sum-logit"):
        check_how("sum-logit", sheet)
    margin = sheet_of([(case("a", [1]), [0.5])], kind="margin")
    assert check_how(None, margin) == "min"
    with pytest.raises(ScoreKindError):
        check_how("product", margin)


def test_a_solution_without_all_its_scores_has_no_aggregate():
    sheet = sheet_of([(case("a", [1, 1]), [None, 0.5]), (case("b", [1]), None)])
    assert solution_score(sheet.rows[0], "min") is None
    assert solution_score(sheet.rows[0], "last") == 0.5
    assert solution_score(sheet.rows[1], "min") is None


# --- fitted on one, measured on the other -----------------------------------------------------------------------------


def many(n=400):
    return [case(f"k{at}", [1], problem=f"k{at // 2}", group="ab"[at % 2]) for at in range(n)]


def test_a_share_of_the_problems_does_not_depend_on_order_or_company():
    cases = many()
    whole = split_by(cases, 0.3)
    assert split_by(list(reversed(cases)), 0.3).roles == whole.roles
    some = split_by(cases[:100], 0.3)
    assert all(whole.roles[id_] == role for id_, role in some.roles.items())
    assert sum(role == FITTED for role in whole.roles.values()) / len(cases) == pytest.approx(0.3, abs=0.07)
    for first, second in zip(cases[::2], cases[1::2], strict=True):  # a problem is on one side
        assert whole.roles[first.id] == whole.roles[second.id]
    # More share, more problems: none changes sides to the other direction.
    more = split_by(cases, 0.6)
    assert all(more.roles[id_] == FITTED for id_, role in whole.roles.items() if role == FITTED)


def test_one_text_under_two_ids_is_never_on_both_sides():
    cases = [case(f"t{at}", [1], problem=f"id {at}", text=f"text {at // 2}") for at in range(400)]
    roles = split_by(cases, 0.5).roles
    for first, second in zip(cases[::2], cases[1::2], strict=True):
        assert {roles[first.id], roles[second.id]} != {FITTED, MEASURED}


def test_problems_that_are_measured_too_are_not_fitted_on():
    fitted = [case("a1", [1], problem="p"), case("a2", [1], problem="q")]
    split = split_by([case("b1", [1], problem="p")], fitted, "a")
    assert split.roles == {"b1": MEASURED, "a2": FITTED}
    assert split.dropped == 1
    with pytest.raises(UsageError, match="leaves nothing"):
        split_by([case("b1", [1], problem="p")], fitted[:1], "a")


def test_what_is_fitted_on_from_another_file_is_in_no_other_figure():
    sheet = simulated(200)
    cases = [row.case for row in sheet.rows]
    split = split_by(cases[:100], cases[100:], "other")
    assert list(split.roles) == [c.id for c in cases]
    result, _ = evaluate(sheet, ["steps"], split=split, resamples=100)
    alone = value(items_of(Sheet(prm="test", kind="probability", rows=sheet.rows[:100]), ["steps"]))
    assert result.figures["steps/all/ece"].value == pytest.approx(alone["steps/all/ece"])
    assert result.figures["steps/measured, before/ece"].value == pytest.approx(alone["steps/all/ece"])
    assert result.facts[0].startswith("100 solutions")


# --- a map in a checkpoint --------------------------------------------------------------------------------------------

SIGMOID = Readout(head=LinearHead(), activation="sigmoid", scale=2.0, shift=-1.0)


def test_two_maps_are_one():
    made = composed(SIGMOID, 0.5, 0.25)
    for x in (-3.0, 0.1, 4.0):
        assert 0.5 * (2.0 * x - 1.0) + 0.25 == pytest.approx(made.scale * x + made.shift)
    assert composed(Readout(head=LinearHead(), activation="softmax", good=1), 2.0, 0.5).scale == 2.0
    for other in (
        Readout(head=LinearHead(), activation="margin"),
        Readout(head=LinearHead(), activation="softmax", good=2, neutral=1),
    ):
        with pytest.raises(UsageError, match="sigmoid of one logit or the softmax of two"):
            composed(other, 1.0, 0.0)
    with pytest.raises(UsageError, match="finite"):
        composed(SIGMOID, math.nan, 0.0)


TEXTS = (
    "box holds 12 pens",
    "Ann buys 3 boxes",
    "she has 36 pens",
    "which leaves 30",
    "the answer is: 30",
    "2x + 5 = 17",
)


@pytest.fixture
def checkpoint(zoo, tmp_path):
    return shutil.copytree(zoo["skywork"].folder, tmp_path / "prm-skywork")


@pytest.fixture
def labelled(checkpoint, tmp_path):
    """TRL rows whose labels rise with the checkpoint's scores, with noise."""
    from stepmark import load_prm

    rng = random.Random(10)
    prm = load_prm(str(checkpoint), family=None, device="cpu")
    rows = [
        {
            "prompt": f"How many, {at}?",
            "completions": [f"{rng.choice(TEXTS)} {rng.randint(1, 9)}" for _ in range(3)],
        }
        for at in range(40)
    ]
    scores = [prm.score(row["prompt"], steps=row["completions"]) for row in rows]
    middle = sorted(s for row in scores for s in row)[60]
    for row, own in zip(rows, scores, strict=True):
        row["labels"] = [(s > middle) != (rng.random() < 0.2) for s in own]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path, rows, scores


def calibrate(*words):
    words = list(map(str, words))
    computes = "--prm" in words and "--scores" not in words and ":" not in words[words.index("--prm") + 1]
    device = ["--device", "cpu"] if computes else []
    return main(["evaluate", "calibration", *words, *device, "--resamples", "100"])


def test_a_stored_map_gives_the_calibrated_scores(checkpoint, labelled, tmp_path, capsys):
    from stepmark import load_prm
    from stepmark.models.spec import read_spec

    path, rows, before = labelled
    words = ("--data", path, "--prm", checkpoint, "--fit-share", "0.5")
    assert calibrate(*words, "--store", checkpoint, "--out", tmp_path / "one") == 0
    result = read_result(tmp_path / "one" / "result.json")
    readout = read_spec(checkpoint / "stepmark.json").readout
    note = json.loads((checkpoint / "calibration.json").read_text())
    assert (readout.scale, readout.shift) == (note["scale"], note["shift"])  # the family's own is 1 and 0
    assert note["before"] == {"scale": 1.0, "shift": 0.0}
    assert note["after"] == {"scale": readout.scale, "shift": readout.shift}
    assert note["on"] == "50% of the problems"
    prm = load_prm(str(checkpoint), device="cpu")
    loaded = [prm.score(row["prompt"], steps=row["completions"]) for row in rows]
    for old, new, item in zip(before, loaded, result["items"], strict=True):
        assert new == pytest.approx(item["steps"]["platt"], abs=1e-6)
        expected = [1 / (1 + math.exp(-(note["scale"] * math.log(s / (1 - s)) + note["shift"]))) for s in old]
        assert new == pytest.approx(expected, abs=1e-6)
    assert any(
        abs(a - b) > 0.01
        for old, new in zip(before, loaded, strict=True)
        for a, b in zip(old, new, strict=True)
    )
    # The scores of before are not fitted to the checkpoint of now.
    capsys.readouterr()
    assert calibrate(*words, "--store", checkpoint, "--out", tmp_path / "one") == 2
    assert "made with other settings" in capsys.readouterr().err
    assert calibrate(*words, "--out", tmp_path / "one") == 2
    assert read_spec(checkpoint / "stepmark.json").readout == readout
    # Graded again there is nothing left to correct, and the note keeps the one before.
    assert calibrate(*words, "--store", checkpoint, "--out", tmp_path / "two") == 0
    again = json.loads((checkpoint / "calibration.json").read_text())
    assert (again["scale"], again["shift"]) == pytest.approx((1, 0), abs=0.1)
    assert again["earlier"] == note
    assert again["before"] == note["after"]
    after = read_spec(checkpoint / "stepmark.json").readout
    assert after.scale == pytest.approx(again["scale"] * readout.scale)
    assert after.shift == pytest.approx(again["scale"] * readout.shift + again["shift"])


def test_a_map_is_stored_only_where_it_belongs(checkpoint, labelled, zoo, tmp_path, capsys):
    path, _, _ = labelled

    def refused(*words):
        capsys.readouterr()
        assert calibrate("--data", path, *words, "--out", tmp_path / "out") == 2
        return capsys.readouterr().err

    names = sorted(file.name for file in checkpoint.iterdir())
    other = zoo["skywork"].folder
    fitting = ("--fit-share", "0.5")
    assert "--store" in refused("--prm", other, *fitting, "--store", checkpoint)
    assert "--store" in refused(*fitting, "--store", checkpoint)
    assert "--store" in refused("--prm", checkpoint, "--store", checkpoint)
    assert "--scores" in refused("--prm", checkpoint, *fitting, "--store", checkpoint, "--scores", path)
    assert "--store" in refused("--prm", checkpoint, *fitting, "--store", path)
    three = zoo["reasoneval"].folder
    assert "sigmoid" in refused("--prm", three, *fitting, "--store", three)
    assert "--target outcome" in refused(
        "--prm", checkpoint, *fitting, "--store", checkpoint, "--target", "outcome"
    )
    assert sorted(file.name for file in checkpoint.iterdir()) == names


# --- the command ------------------------------------------------------------------------------------------------------


def processbench(tmp_path, n=60):
    """Two subsets of solutions with a first error, and the scores of two models."""
    rng = random.Random(11)
    rows, scores = [], []
    for at in range(n):
        count = rng.randint(2, 6)
        label = rng.choice([-1, rng.randrange(count)])
        id_ = f"{'gsm8k' if at % 2 else 'math'}-{at}"
        rows.append(
            {
                "id": id_,
                "generator": rng.choice(["org/one", "org/two"]),
                "problem": f"problem {at}",
                "steps": [f"s{k}" for k in range(count)],
                "final_answer_correct": label == -1,
                "label": label,
            }
        )
        good = [
            round(rng.betavariate(4, 2) if k != label else rng.betavariate(2, 3), 3) for k in range(count)
        ]
        flat = [round(rng.random(), 3) for _ in range(count)]
        scores.append({"id": id_, "scores": {"good": good, "flat": flat}})
    data, file = tmp_path / "pb.jsonl", tmp_path / "scores.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file.write_text("".join(json.dumps(row) + "\n" for row in scores))
    return data, file, rows, scores


def test_the_command_on_processbench(tmp_path, capsys):
    data, file, rows, scores = processbench(tmp_path)
    for model in ("good", "flat"):
        words = ("--model-name", model, "--fit-share", "0.5", "--out", tmp_path / model)
        assert calibrate("--data", data, "--scores", file, *words) == 0
    printed = capsys.readouterr().out
    assert "by Platt" in printed
    result = read_result(tmp_path / "good" / "result.json")
    figures = {figure["name"]: figure for figure in result["figures"]}
    # Steps up to and with the first error, and no further.
    pairs = [
        (s, float(k != row["label"]), 1.0)
        for row, own in zip(rows, scores, strict=True)
        for k, s in enumerate(own["scores"]["good"])
        if row["label"] == -1 or k <= row["label"]
    ]
    for what, expected in by_loops(pairs, 10).items():
        assert figures[f"steps/all/{what}"]["value"] == pytest.approx(expected)
    ends = [
        (min(own["scores"]["good"]), float(row["final_answer_correct"]), 1.0)
        for row, own in zip(rows, scores, strict=True)
    ]
    for what, expected in by_loops(ends, 10).items():
        assert figures[f"outcome/all/{what}"]["value"] == pytest.approx(expected)
    assert (
        figures["steps/measured, platt/ece"]["policy"]
        == "fitted on 50% of the problems, measured on the rest"
    )
    # The items alone give every figure again.
    again = value(result["items"])
    assert again.keys() == figures.keys()
    for name, figure in figures.items():
        expected = math.nan if figure["value"] is None else figure["value"]
        assert again[name] == pytest.approx(expected, nan_ok=True)
    difference = compare(*(tmp_path / name / "result.json" for name in ("good", "flat")), resamples=200)
    assert difference.differences["steps/all/auc"].value < 0
    # The page of a PRM that knows nothing begins with that.
    verdicts = {model: read_result(tmp_path / model / "result.json")["verdict"] for model in ("good", "flat")}
    assert "AUC" in verdicts["flat"].split(".")[0] and "AUC" not in verdicts["good"]
    page = (tmp_path / "good" / "report.html").read_text()
    assert "Reliability: steps, measured, as scored" in page
    assert "Steps: wrong, and scored highest" in page


def test_a_file_to_fit_on(tmp_path, capsys):
    data, file, _, _ = processbench(tmp_path)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    lines = data.read_text().splitlines(keepends=True)
    first.write_text("".join(lines[:30]))
    second.write_text("".join(lines[20:]))  # ten solutions are in both
    words = ("--scores", file, "--model-name", "good", "--target", "steps", "--out", tmp_path / "o")
    assert calibrate("--data", first, "--fit", second, *words) == 0
    result = read_result(tmp_path / "o" / "result.json")
    roles = [item["role"] for item in result["items"]]
    assert (roles.count("measured"), roles.count("fitted")) == (30, 30)
    assert any(fact.startswith("10 solutions of second.jsonl not fitted on") for fact in result["facts"])
    assert [one["name"] for one in result["data"]] == ["first.jsonl", "second.jsonl"]
