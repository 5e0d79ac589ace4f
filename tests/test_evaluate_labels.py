"""A judge's labels against a reference: figures against counts by hand and another computation of alpha."""

from __future__ import annotations

import json
from typing import Any

import pytest

import stepmark
from stepmark.cli import main
from stepmark.data.formats.own import to_row
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.run import evaluate

STEPS = ["One.", "Two.", "Three."]


def row(name: str, *raters: list[int | None], notes: dict[int, str] | None = None) -> dict[str, Any]:
    """A solution of three steps with the ratings of each rater; None for a step that one left out."""
    solution = stepmark.Solution.of(f"Problem {name}?", STEPS, id=name)
    judgements = tuple(
        tuple(
            stepmark.Judgement(
                kind="correctness", judge=f"r{at}", rating=ratings[step], note=(notes or {}).get(step)
            )
            for at, ratings in enumerate(raters)
            if ratings[step] is not None
        )
        for step in range(3)
    )
    return to_row(stepmark.LabelledSolution(solution=solution, judgements=judgements))


def written(tmp_path, name: str, rows: list[dict[str, Any]]) -> str:
    (tmp_path / name).write_text("".join(json.dumps(one) + "\n" for one in rows))
    return str(tmp_path / name)


PEOPLE = [
    row("a", [1, -1, None], notes={1: "error type: algebra"}),
    row("b", [-1, 1, 1], notes={0: "error type: reading"}),
    row("c", [1, 1, 1]),
    row("d", [1, 1, -1], notes={2: "error type: algebra"}),
]
JUDGE = [
    row("a", [1, -1, None], notes={1: "error type: algebra"}),  # exact
    row("b", [1, -1, 1], notes={1: "error type: algebra"}),  # a step late; its algebra is none
    row("c", [1, 1, 1]),
    row("d", [1, 1, 1]),  # missed
]


def values(result: Any) -> dict[str, float]:
    return {name: figure.value for name, figure in result.figures.items()}


def test_figures_by_hand(tmp_path):
    people, judge = written(tmp_path, "people.jsonl", PEOPLE), written(tmp_path, "judge.jsonl", JUDGE)
    method = stepmark.evaluation.LabelAgreement(labels=[judge])
    found = values(evaluate(method, data=people, resamples=100, progress=False))
    # 11 pairs: a (1, 1), (-1, -1); b (-1, 1), (1, -1), (1, 1); c three (1, 1); d two (1, 1), (-1, 1).
    equal, chance = 8 / 11, (3 * 2 + 8 * 9) / 11**2
    assert found["all/equal"] == pytest.approx(equal)
    assert found["all/kappa"] == pytest.approx((equal - chance) / (1 - chance))
    pairs = [(1, 1), (-1, -1), (-1, 1), (1, -1), (1, 1), *[(1, 1)] * 3, (1, 1), (1, 1), (-1, 1)]
    for level, name in (("nominal", "all/alpha"), ("ordinal", "all/alpha, ordinal")):
        assert found[name] == pytest.approx(stepmark.krippendorff_alpha(pairs, level).value.value)
    assert (found["all/precision"], found["all/recall"]) == (1 / 2, 1 / 3)
    assert (found["all/error"], found["all/correct"], found["all/within one"]) == (1 / 3, 1, 2 / 3)
    assert found["all/f1"] == pytest.approx(2 * (1 / 3) / (4 / 3))
    assert found["error type/algebra/recall"] == 1 / 2
    assert found["error type/algebra/precision"] == 1 / 2
    assert found["error type/reading/recall"] == 0
    assert "error type/reading/precision" not in found  # the judge names none
    assert [found[f"step/{n}/recall"] for n in (1, 2, 3)] == [0, 1, 0]
    assert found["step/2/precision"] == 1 / 2


def test_repeats_are_means_and_show_how_stable_a_judge_is(tmp_path):
    people = written(tmp_path, "people.jsonl", PEOPLE)
    same = [row("a", [1, 1, 1]), *JUDGE[1:]]
    files = [written(tmp_path, "one.jsonl", JUDGE), written(tmp_path, "two.jsonl", same)]
    method = stepmark.evaluation.LabelAgreement(labels=files)
    found = values(evaluate(method, data=people, resamples=100, progress=False))
    assert found["all/stability/step"] == pytest.approx(10 / 11)  # of a only two are rated twice
    assert found["all/stability/first error"] == 3 / 4
    assert found["all/error"] == pytest.approx((1 / 3 + 0) / 2)


def test_people_agree_among_themselves(tmp_path):
    people = [row("a", [1, -1, 1], [1, -1, -1]), row("b", [1, 1, None], [1, 1, 1])]
    judge = written(tmp_path, "judge.jsonl", [row("a", [1, -1, 1]), row("b", [1, 1, 1])])
    data = written(tmp_path, "people.jsonl", people)
    result = evaluate(
        stepmark.evaluation.LabelAgreement(labels=[judge]), data=data, resamples=100, progress=False
    )
    alpha = stepmark.krippendorff_alpha([(1, 1), (-1, -1), (1, -1), (1, 1), (1, 1)]).value.value
    assert result.figures["all/reference/alpha"].value == pytest.approx(alpha)


def test_a_prm_is_a_judge_too(tmp_path):
    people = written(tmp_path, "people.jsonl", PEOPLE)
    scores = [{"id": one, "scores": s} for one, s in zip("abcd", ([0.9, 0.1, 0.9], [0.1, 0.9, 0.9], [0.9] * 3, [0.9] * 3), strict=True)]  # fmt: skip
    method = stepmark.evaluation.LabelAgreement(threshold="0.5")
    data = {"data": people, "scores": written(tmp_path, "scores.jsonl", scores)}
    found = values(evaluate(method, **data, resamples=100, progress=False))
    assert (found["all/precision"], found["all/recall"], found["all/error"]) == (1, 2 / 3, 2 / 3)
    with pytest.raises(UsageError):
        evaluate(stepmark.evaluation.LabelAgreement(labels=["x"]), **data, progress=False)


def test_the_command_takes_two_files(tmp_path, capsys):
    people, judge = written(tmp_path, "people.jsonl", PEOPLE), written(tmp_path, "judge.jsonl", JUDGE[:3])
    out = tmp_path / "out"
    assert main(["evaluate", "labels", people, judge, "--resamples", "100", "--out", str(out)]) == 0
    assert "1 solution of the reference" in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert "Their first errors differ (1)" in page
    assert "step 1: the reference wrong, the judge right" in page


def a_judge() -> stepmark.ScriptedPolicy:
    """Names the second step of problem a, and no step of any other problem."""
    return stepmark.ScriptedPolicy(
        lambda request, number: r"\boxed{1}" if "Problem a?" in str(request.prompt) else r"\boxed{-1}",
        name="a judge",
    )


def test_a_judge_is_asked_and_measured(tmp_path, capsys):
    people, out = written(tmp_path, "people.jsonl", PEOPLE), tmp_path / "out"
    line = ["evaluate", "labels", people, "--judge", "tests.test_evaluate_labels:a_judge", "--repeats", "2"]
    assert main([*line, "--resamples", "100", "--out", str(out)]) == 0
    figures = {one["name"]: one["value"] for one in json.loads((out / "result.json").read_text())["figures"]}
    # Of three wrong solutions it names the error of one, and leaves the right one alone; the same twice.
    assert (figures["all/error"], figures["all/correct"]) == (1 / 3, 1)
    assert figures["all/stability/first error"] == 1
    judged = [json.loads(line) for line in (out / "judge-2.jsonl").read_text().splitlines()]
    assert len(judged) == 4
    assert main([*line, people, "--out", str(out)]) == 2  # files and a judge
    assert main(["evaluate", "labels", people, "--repeats", "2", "--out", str(out)]) == 2


def test_labels_of_other_solutions_are_refused(tmp_path):
    people = written(tmp_path, "people.jsonl", PEOPLE)
    other = written(tmp_path, "other.jsonl", [row("z", [1, 1, 1])])
    with pytest.raises(InputError, match="none in common"):
        evaluate(stepmark.evaluation.LabelAgreement(labels=[other]), data=people, progress=False)
