"""Process against outcome: hand-worked tables, plain counting, and what must not change the figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.cli import main
from stepmark.evaluation.base import Run
from stepmark.evaluation.cases import Case
from stepmark.evaluation.comparison import compare
from stepmark.evaluation.disagreement import (
    CELLS,
    Disagreement,
    cell_of,
    confident,
    items_of,
    steps_right,
)
from stepmark.evaluation.result import read_result, write_json
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.metrics.intervals import wilson
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step, StepScores

pytest.importorskip("matplotlib")


def evaluate(cases, sheet=None, *, resamples=1000, **settings):
    process = "labels" if sheet is None else "scores"
    return Disagreement(process=process, **settings).of_cases(cases, Run(resamples=resamples), sheet)


def case(
    number: int,
    outcome: bool | None,
    ratings: tuple[int | None, ...],
    *,
    group: str = "g",
    policy: str | None = None,
    problem: int | None = None,
) -> Case:
    solution = Solution(
        problem=Problem(text="?", id=f"p{number if problem is None else problem}"),
        steps=tuple(Step(text=f"step {at}") for at in range(len(ratings))),
        id=f"c{number}",
    )
    judgements = tuple(
        () if rating is None else (Judgement(kind="correctness", judge="human", rating=rating),)
        for rating in ratings
    )
    return Case(
        id=f"c{number}",
        labelled=LabelledSolution(solution=solution, judgements=judgements),
        where=f"folder/data.jsonl:{number + 1}",
        group=group,
        outcome=outcome,
        policy=policy,
    )


def sheet_of(cases: list[Case], scores: list[tuple[float | None, ...] | None]) -> Sheet:
    rows = tuple(
        CaseScores(
            case=one,
            steps=None if given is None else StepScores(scores=given, kind="probability"),
            refused="too long" if given is None else None,
        )
        for one, given in zip(cases, scores, strict=True)
    )
    return Sheet(prm="a PRM", kind="probability", rows=rows, threshold=0.5, aggregate="min")


def values(items: list[dict[str, object]]) -> dict[str, float]:
    return {
        name: float(value[0])
        for name, value in Disagreement().statistic(items)(np.ones((1, len(items)))).items()
    }


# Hand-worked: by labels 3 right, 1 lucky, 2 unlucky, 4 wrong, and two of which something is not known.
HAND = [
    case(0, True, (1, 1), policy="a"),
    case(1, True, (1, 0), policy="a"),
    case(2, True, (1,), policy="b"),
    case(3, True, (1, -1), policy="b"),
    case(4, False, (1, 1), policy="a"),
    case(5, False, (1,), policy="b"),
    case(6, False, (-1, None), policy="a"),
    case(7, False, (1, -1), policy="a"),
    case(8, False, (None, -1), policy="b"),
    case(9, False, (1, 1, -1), policy="b"),
    case(10, None, (1,), policy="a"),
    case(11, True, (1, None), policy="b"),
]
# The PRM passes 0, 2, 3, 4, 9, 10 and 11, blames 1, 5, 6, 7, and cannot tell of 8.
SCORES: list[tuple[float | None, ...] | None] = [
    (0.9, 0.8),
    (0.9, 0.2),
    (0.5,),
    (0.7, 0.6),
    (0.99, 0.95),
    (0.1,),
    (0.3, None),
    (0.9, 0.4),
    None,
    (0.9, 0.6, 0.7),
    (0.9,),
    (0.9, 0.8),
]


def test_the_four_cells():
    assert [
        cell_of(process, outcome)
        for process, outcome in ((True, True), (False, True), (True, False), (False, False))
    ] == list(CELLS)
    assert cell_of(None, True) is cell_of(False, None) is cell_of(None, None) is None


def test_steps_are_right_wrong_or_not_known():
    known = [steps_right(one.labelled) for one in HAND]
    assert known == [True, True, True, False, True, True, False, False, False, False, True, None]
    assert steps_right(HAND[1].labelled, "negative") is False
    rolled = LabelledSolution(
        solution=HAND[0].solution,
        judgements=tuple(
            (Judgement(kind="value", judge="rollouts", successes=successes, trials=8),)
            for successes in (1, 0)
        ),
    )
    assert steps_right(rolled) is False


def test_figures_of_a_table_worked_by_hand():
    found = values(items_of(HAND))
    expected = {
        "right": 3 / 10,
        "lucky": 1 / 10,
        "unlucky": 2 / 10,
        "wrong": 4 / 10,
        "lucky-of-right": 1 / 4,
        "unlucky-of-wrong": 2 / 6,
    }
    assert found == pytest.approx({f"g/labels/{name}": value for name, value in expected.items()})


def test_scores_beside_labels_worked_by_hand():
    result = evaluate(HAND, sheet_of(HAND, SCORES), resamples=100)
    found = {figure.name: figure.value for figure in result.figures.values()}
    # By scores: right 0 2 3 11, lucky 1, unlucky 4 9, wrong 5 6 7; not known 8 and 10.
    assert [found[f"g/scores/{name}"] for name in CELLS] == pytest.approx([4 / 10, 1 / 10, 2 / 10, 3 / 10])
    assert found["g/labels/lucky"] == pytest.approx(1 / 10)
    assert result.figures["g/scores/lucky"].policy == "0.5, the PRM's own"
    assert result.figures["g/labels/lucky"].policy == ""


def test_the_most_confident_disagreements_come_first():
    items = items_of(HAND, sheet_of(HAND, SCORES), _half())
    high, low = confident(items)
    assert [(item["id"], item["weakest"]) for item in high] == [("c4", 0.95), ("c9", 0.6)]
    assert [(item["id"], item["weakest"]) for item in low] == [("c1", 0.2)]


def _half():
    from stepmark.evaluation.thresholds import ThresholdRule

    return {"g": ThresholdRule(threshold=0.5, words="0.5")}


def test_what_is_not_known_is_said_and_in_no_share():
    result = evaluate(HAND, sheet_of(HAND, SCORES), resamples=100)
    assert "too long" in " ".join(result.facts)
    table = result.tables[0]
    assert [row[-1] for row in table.rows] == ["2", "2"]
    known = [at for at in range(12) if at not in (8, 10)]  # not read; outcome not known
    without = evaluate(
        [HAND[at] for at in known],
        sheet_of([HAND[at] for at in known], [SCORES[at] for at in known]),
        resamples=100,
    )
    assert result.figures["g/scores/wrong"].value == without.figures["g/scores/wrong"].value


def test_where_none_was_seen_the_interval_says_how_many_there_may_be():
    cases = [case(n, True, (1,), problem=n // 2) for n in range(20)]
    figure = evaluate(cases, resamples=100).figures["g/labels/lucky-of-right"]
    bound = wilson(0, 10)  # of ten problems
    assert (figure.value, figure.low, figure.high) == (0.0, bound.low, bound.high)
    always = evaluate(cases, resamples=100).figures["g/labels/right"]
    assert (always.low, always.high) == (wilson(10, 10).low, 1.0)


def plain(items: list[dict[str, object]]) -> dict[str, float]:
    """Every figure by counting, one loop a question."""

    def share(above: int, below: int) -> float:
        return above / below if below else math.nan

    def count(rows, source, process, outcome):
        return sum(r[source] is process and r["outcome"] is outcome for r in rows)

    found: dict[str, float] = {}
    groups = list(dict.fromkeys(r["group"] for r in items))
    parts = {g: [r for r in items if r["group"] == g] for g in groups}
    if len(groups) > 1:
        parts["overall"] = items
    sources = [s for s in ("labels", "scores") if any(r[s] is not None for r in items)]
    for name, rows in parts.items():
        for s in sources:
            a, b = count(rows, s, True, True), count(rows, s, False, True)
            c, d = count(rows, s, True, False), count(rows, s, False, False)
            n = a + b + c + d
            for key, value in (
                ("right", a),
                ("lucky", b),
                ("unlucky", c),
                ("wrong", d),
            ):
                found[f"{name}/{s}/{key}"] = share(value, n)
            found[f"{name}/{s}/lucky-of-right"] = share(b, a + b)
            found[f"{name}/{s}/unlucky-of-wrong"] = share(c, c + d)
    return found


maybe = st.sampled_from([True, False, None])
rows_of_items = st.lists(
    st.fixed_dictionaries(
        {
            "group": st.sampled_from(["g", "h"]),
            "policy": st.sampled_from(["a", "b/c", None]),
            "problem": st.sampled_from("pqrs"),
            "outcome": maybe,
            "labels": maybe,
            "scores": maybe,
        }
    ),
    min_size=1,
    max_size=25,
)


@given(rows_of_items)
@settings(max_examples=150, deadline=None)
def test_figures_are_those_of_plain_counting(items):
    assert values(items) == pytest.approx(plain(items), nan_ok=True)


def test_a_prm_that_repeats_the_labels_has_their_table():
    scores = [
        tuple(0.0 if r == -1 else 1.0 for r in (j[0].rating if j else 1 for j in c.labelled.judgements))
        for c in HAND
    ]
    found = {
        f.name: f.value
        for f in evaluate(HAND[:10], sheet_of(HAND[:10], scores[:10]), resamples=100).figures.values()
    }
    for name in [*CELLS, "lucky-of-right"]:
        assert found[f"g/scores/{name}"] == found[f"g/labels/{name}"]


def test_two_results_are_compared_from_their_files(tmp_path: Path):
    paths = []
    for number, scores in enumerate((SCORES, [None if s is None else (0.9,) * len(s) for s in SCORES])):
        result = evaluate(HAND, sheet_of(HAND, scores), resamples=100)
        paths.append(tmp_path / f"{number}.json")
        write_json(result, paths[-1])
        rebuilt = values(read_result(paths[-1])["items"])
        for figure in result.figures.values():
            assert figure.value == pytest.approx(rebuilt[figure.name]) or (
                figure.value is None and math.isnan(rebuilt[figure.name])
            )
    found = compare(*paths, resamples=200)
    assert found.differences["g/labels/lucky-of-right"].value == 0
    # The second blames nothing: of the five right answers (one blamed by the first) none has a wrong step.
    assert found.differences["g/scores/lucky-of-right"].value == pytest.approx(-1 / 5)


def processbench(number: int, label: int, right: bool) -> dict[str, object]:
    return {
        "id": f"gsm8k-{number}",
        "generator": "writer",
        "problem": f"Problem {number}?",
        "steps": ["One.", "Two."],
        "final_answer_correct": right,
        "label": label,
    }


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data, scores = tmp_path / "data.jsonl", tmp_path / "scores.jsonl"
    rows = [processbench(n, *of) for n, of in enumerate([(-1, True), (1, True), (0, False), (1, False)])]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [[0.9, 0.9], [0.9, 0.8], [0.2, 0.9], [0.9, 0.1]]
    scores.write_text(
        "".join(json.dumps({"id": f"gsm8k-{n}", "scores": s}) + "\n" for n, s in enumerate(given))
    )
    asked = ["evaluate", "disagreement", "--data", str(data), "--resamples", "100", "--out"]
    assert main([*asked, str(tmp_path / "labels")]) == 0
    result = read_result(tmp_path / "labels" / "result.json")
    figures = {figure["name"]: figure["value"] for figure in result["figures"]}
    assert result["prm"] == "labels"
    assert result["settings"]["prm"] is None
    assert figures["gsm8k/labels/lucky-of-right"] == 0.5
    by_scores = ["--process", "scores", "--scores", str(scores), "--threshold", "0.5"]
    assert main([*asked, str(tmp_path / "both"), *by_scores]) == 0
    figures = {f["name"]: f["value"] for f in read_result(tmp_path / "both" / "result.json")["figures"]}
    assert figures["gsm8k/scores/lucky-of-right"] == 0
    assert (tmp_path / "both" / "report.html").is_file()
    assert "Lucky" in capsys.readouterr().out
