"""Best-of-N from graded cases to tables and plots."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stepmark
from stepmark.cli import main
from stepmark.evaluation import best_of_n as best_of_n_report
from stepmark.evaluation.base import Run
from stepmark.evaluation.best_of_n import (
    BestOfNAccuracy,
    candidate_sets,
    items_of,
    price_plot,
    statistic,
)
from stepmark.evaluation.cases import Case
from stepmark.evaluation.result import Figure, html, measured, read_result, write_json
from stepmark.evaluation.scores import CaseScores, Sheet, read_scores
from stepmark.evaluation.sources import read_cases
from stepmark.records import LabelledSolution, Problem, Solution, Step, StepScores
from stepmark.report.evaluation import Examples


def evaluate(sheet, *, resamples=1000):
    return BestOfNAccuracy().of_candidates(sheet, Run(resamples=resamples))


def point(values: dict[str, np.ndarray]) -> dict[str, Figure]:
    found = {}
    for name, value in values.items():
        number = float(value[0])
        found[name] = Figure(
            name=name, value=None if np.isnan(number) else number, low=None, high=None, level=0.95, policy=""
        )
    return found


def case(id_: str, problem: str, answer: str | None, outcome: bool | None, texts: tuple[str, ...]) -> Case:
    solution = Solution(
        problem=Problem(text="q", id=problem), steps=tuple(Step(text=t, tail="\n") for t in texts)
    )
    return Case(
        id=id_,
        labelled=LabelledSolution(solution=solution, judgements=((),) * len(texts)),
        where="candidates.jsonl:1",
        outcome=outcome,
        policy="tiny",
        answer=answer,
        tokens=5,
    )


def sheet() -> Sheet:
    def scored(*scores: float, problem_tokens: int | None = 7) -> StepScores:
        return StepScores(
            scores=scores, kind="probability", problem_tokens=problem_tokens, solution_tokens=10 * len(scores)
        )

    return Sheet(
        prm="p",
        kind="probability",
        rows=(
            CaseScores(case=case("a/0", "a", "18", True, ("one", "two")), steps=scored(0.9, 0.8)),
            CaseScores(case=case("b/0", "b", None, False, ("x",)), steps=scored(0.4)),
            CaseScores(case=case("a/1", "a", "$18", True, ("one",)), steps=scored(0.5)),
            CaseScores(case=case("b/1", "b", "3", None, ("y",)), steps=None, refused="too long"),
            CaseScores(case=case("a/2", "a", "17", False, ("one",)), steps=scored(0.7)),
            CaseScores(case=case("b/2", "b", "4", True, ("z",)), steps=scored(0.2)),
        ),
    )


def test_cases_become_one_set_a_problem() -> None:
    a, b = candidate_sets(sheet(), outcomes={"a/0": 0.25})
    assert (a.id, b.id) == ("a", "b")
    assert [c.answer for c in a.candidates] == [0, 0, 1]
    assert [c.correct for c in b.candidates] == [False, None, True]
    assert [c.prm_tokens for c in b.candidates] == [10, 0, 10]  # refused: nothing was read
    assert (a.prm_once, b.prm_once) == (7, 7)
    assert [c.outcome for c in a.candidates] == [0.25, None, None]
    assert b.candidates[1].steps is None


def test_the_plot_stands_on_tokens_where_all_are_counted() -> None:
    rows = items_of(candidate_sets(sheet()))
    plot = price_plot(rows, point(statistic(rows)(np.ones((1, 2)))), "min")
    found = {series.name: series for series in plot.series}
    assert found["majority"].x == (5.0, 10.0, 15.0)
    assert found["best min"].x == pytest.approx((5 + 7 + 10, 10 + 7 + 20, 15 + 7 + 30))
    assert found["best min"].y[-1] == pytest.approx(50.0)
    assert found["single"].x == (5.0,)
    assert "vote min" in found
    assert "best max" not in found


def test_answers_and_tokens_that_the_data_does_not_give() -> None:
    bare = replace(
        sheet(),
        rows=tuple(
            replace(
                row,
                case=replace(
                    case(row.case.id, row.case.problem, None, True, ("so", f"The answer is: {at % 2}")),
                    tokens=None,
                ),
            )
            for at, row in enumerate(sheet().rows)
        ),
    )
    a, b = candidate_sets(bare)
    assert [c.answer for c in a.candidates] == [0, 0, 0]  # rows 0, 2, 4
    assert [c.answer for c in b.candidates] == [0, 0, 0]
    assert [c.tokens for c in a.candidates] == [20, 10, 10]
    assert [c.tokens for c in b.candidates] == [10, None, 10]  # refused: nobody counted


def test_the_result_can_be_written_and_its_items_give_its_figures_again(tmp_path: Path) -> None:
    result = evaluate(replace(sheet(), threshold=0.5, aggregate="min"), resamples=100)
    assert result.figures["accuracy/single/1"].value == pytest.approx(0.6)
    assert any("by its min" in fact for fact in result.facts)
    write_json(result, tmp_path / "result.json")
    items_read = read_result(tmp_path / "result.json")["items"]
    again = measured(items_read, best_of_n_report.statistic(items_read), resamples=100)
    assert again == result.figures
    groups = [item for section in result.sections for item in section.items if isinstance(item, Examples)]
    passed_over = next(group for group in groups if group.problems)
    # In b the wrong candidate has the highest score, and a right one is there.
    assert [c.title for c in passed_over.problems[0].cards] == ["b/0", "b/2"]
    assert passed_over.problems[0].cards[0].first_error == 0
    pytest.importorskip("matplotlib")
    assert "b/2" in "".join(html(result))


def candidates(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps({"question": "1 + 1?", **row}) + "\n" for row in rows))
    return path


def run_best_of_n(folder: Path, data: Path, *more: str) -> int:
    words = ["evaluate", "best-of-n", "--data", str(data)]
    words += ["--prm", "scripted_prms:certain", "--verifier", "number"]
    return main([*words, "--out", str(folder / "out"), "--resamples", "100", *more])


def test_candidates_that_nobody_checked_are_compared_with_the_reference(tmp_path: Path, capsys) -> None:
    data = candidates(
        tmp_path / "c.jsonl",
        {
            "id": "a",
            "gold": "2",
            "candidates": [{"text": "So 2.", "answer": "2"}, {"text": "The answer is 3."}],
        },
        {
            "id": "b",
            "gold": 4,
            # What the row itself says is not checked again, and unknown stays unknown.
            "candidates": [
                {"text": "The answer is 4.", "correct": False},
                {"text": "The answer is 4.", "correct": None},
            ],
        },
        {"id": "c", "gold": "5", "candidates": [{"text": "I do not know."}, {"text": "The answer is 5."}]},
    )
    assert run_best_of_n(tmp_path, data) == 0
    assert "4 candidates" in capsys.readouterr().err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [item["missing"]["correct"] for item in result["items"]] == [0, 1, 1]
    figures = {one["name"]: one["value"] for one in result["figures"]}
    # Per problem 1/2, 0/1, 1/1 of those known: the ratio of the means (1/2 + 0 + 1/2) / (1 + 1/2 + 1/2).
    assert figures["accuracy/single/1"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"candidates": [{"text": "So 2."}]}, '"answer"'),
        ({"gold": "  ", "candidates": [{"text": "So 2."}]}, "b/0"),
        ({"candidates": [{"text": "A.", "correct": True}, {"text": "B."}]}, "b/1"),
    ],
)
def test_a_row_that_nothing_can_check_is_refused_before_anything_is_graded(
    tmp_path: Path, capsys, row: dict[str, object], why: str
) -> None:
    good = {"id": "a", "candidates": [{"text": "So 2.", "correct": True}]}
    data = candidates(tmp_path / "c.jsonl", good, {"id": "b", **row})
    assert run_best_of_n(tmp_path, data) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {data}:2, field 'correct': ") and why in err, err
    assert not list(tmp_path.rglob("scores*"))


def test_one_candidate_a_problem_leaves_nothing_to_choose() -> None:
    rows = [{"problem": f"p{n}", "solution": "a", "correct": n > 0} for n in range(2)]
    prm = stepmark.ScriptedPRM(lambda problem, steps: 0.5)
    result = stepmark.evaluate("best-of-n", prm, data=rows, resamples=100)
    assert "50.0" in result.verdict
    assert result.figures["accuracy/single/1"].value == 0.5


def rows_of_candidates(count: int, correct: tuple[bool | None, ...]) -> list[dict[str, object]]:
    texts = ["one", "two", "three", "four"]
    return [
        {
            "id": f"p{number}",
            "question": f"{number}?",
            "candidates": [
                {"text": text, "correct": right, "answer": "9" if right else "8"}
                for text, right in zip(texts, correct, strict=False)
            ],
        }
        for number in range(count)
    ]


def test_the_headline_names_the_best_way_and_its_lead_over_the_vote() -> None:
    """Of 3 wrong ones and a right one the vote is wrong, and the PRM likes the right one best."""
    prm = stepmark.ScriptedPRM({"one": 0.9, "two": 0.1, "three": 0.2, "four": 0.2})
    rows = rows_of_candidates(12, (True, False, False, False))
    result = stepmark.evaluate(BestOfNAccuracy(verifier="number"), prm, data=rows, resamples=100)
    assert "highest product" in result.verdict and "+100.0 over the majority vote" in result.verdict
    assert result.figures["held out/over majority/4"].value == 1.0
    # Half as many candidates and their grading cost as much as the vote.
    assert result.figures["over majority at equal tokens/best product/2"].value == pytest.approx(0.5)


def test_exact_checks_put_what_they_refute_behind(tmp_path: Path) -> None:
    prm = stepmark.ScriptedPRM({"2 + 2 = 5": 0.9, "2 + 2 = 4": 0.2})
    texts = (("2 + 2 = 5", False), ("2 + 2 = 4", True))
    rows = [
        {
            "id": name,
            "question": "2 + 2?",
            "candidates": [{"text": text, "correct": right} for text, right in texts],
        }
        for name in "ab"
    ]
    for checks, right in (
        ("none", 0.0),
        ("auto", 0.0),
        ("all", 1.0),
    ):  # a scripted PRM has no checks of its own
        result = stepmark.evaluate(
            BestOfNAccuracy(verifier="number", checks=checks), prm, data=rows, resamples=100
        )
        assert result.figures["accuracy/best min/2"].value == right
    assert [item["refuted"] for item in result.items] == [1, 1]


def test_a_file_of_scores_that_does_not_fit_is_found_before_answers_are_compared(
    tmp_path: Path, monkeypatch
) -> None:
    from stepmark.errors import InputError

    scores = tmp_path / "scores.jsonl"
    scores.write_text('{"id": "else", "scores": [0.5]}\n')
    monkeypatch.setattr(best_of_n_report, "checked", lambda *_: pytest.fail("answers were compared"))
    rows = [{"id": "a", "question": "1?", "gold": "2", "candidates": [{"text": "So 2."}]}]
    with pytest.raises(InputError):
        stepmark.evaluate(BestOfNAccuracy(verifier="number"), data=rows, scores=scores)


def test_a_wrong_number_of_scores_is_found_at_its_row_with_both_counts(tmp_path: Path) -> None:
    from stepmark.errors import InputError

    scores = tmp_path / "scores.jsonl"
    scores.write_text('{"id": "a/0", "scores": [0.5, 0.6, 0.7]}\n')
    rows = [{"id": "a", "question": "1?", "gold": "2", "candidates": [{"text": "1 + 1 = 2.\n\nSo 2."}]}]
    never = {"id": "b", "question": "1?", "gold": "2", "candidates": [{"text": 5}]}  # not read any more
    with pytest.raises(InputError) as caught:
        stepmark.evaluate(BestOfNAccuracy(verifier="number"), data=[*rows, never], scores=scores)
    for part in ("expected 2 scores", "found 3", "`steps`"):
        assert part in str(caught.value)
    steps = [rows[0] | {"candidates": [{"steps": ["1 + 1", "= 2.", "So 2."], "correct": True}]}]
    result = stepmark.evaluate(BestOfNAccuracy(verifier="number"), data=steps, scores=scores, progress=False)
    assert result.figures["accuracy/single/1"].value == 1


def test_scores_of_grade_are_those_of_the_candidates(tmp_path: Path) -> None:
    rows = [{"problem": f"p{n}", "solutions": ["bad", "good"], "answer": "3", "id": n} for n in range(2)]
    data, scores = tmp_path / "rows.jsonl", tmp_path / "graded.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stepmark.grade(data, stepmark.ScriptedPRM({"bad": 0.1, "good": 0.9}), out=scores)
    sheet = read_scores(scores, read_cases([data]))
    assert [(row.case.id, row.scores) for row in sheet.rows] == [
        (f"{n}/{at}", (score,)) for n in range(2) for at, score in enumerate((0.1, 0.9))
    ]
