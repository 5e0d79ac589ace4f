"""`stepmark.evaluate` and `stepmark evaluate` are one: the same files, results without a file, the same refusals."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import scripted_prms
import stepmark
from stepmark.cli import main
from stepmark.errors import IdleSettingWarning, InputError, SettingError, UsageError
from stepmark.problems.arithmetic import arithmetic_problems

PRM = "scripted_prms:arithmetic"
RIGHT, WRONG = "2 + 3 = 5", "2 + 3 = 6"


def solution(id, right, label):
    return {
        "id": id,
        "generator": "A",
        "problem": f"problem of {id}",
        "steps": [RIGHT if one else WRONG for one in right],
        "final_answer_correct": label == -1,
        "label": label,
    }


ROWS = [
    solution("a-0", (True, False), 1),  # found
    solution("a-1", (True, True, True), 2),  # missed
    solution("a-2", (True,), -1),  # left alone
    solution("b-0", (False,), 0),  # found
    solution("b-1", (False, True), -1),  # blamed
]
CANDIDATES = [
    {
        "id": f"q{number}",
        "question": f"question {number}?",
        "gold": "5",
        "candidates": [
            {"model": "weak", "text": RIGHT, "answer": "5", "correct": True, "tokens": 4},
            {"model": "strong", "text": WRONG, "answer": "6", "correct": False, "tokens": 4},
        ],
    }
    for number in range(4)
]
PAIRS = [
    {"gold": "5", "answer": "5.0", "equal": True},
    {"gold": "5", "answer": "6", "equal": False},
]


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def write(rows, name="data.jsonl"):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


def evaluate(method, data, **settings):
    return stepmark.evaluate(
        method, **{"prm": PRM, "resamples": 100, "progress": False, **settings}, data=data
    )


RUNS = [
    (stepmark.evaluation.ProcessBench(threshold="tuned:a"), ["--threshold", "tuned:a"], ROWS),
    (stepmark.evaluation.Disagreement(process="scores"), ["--process", "scores"], ROWS),
    (stepmark.evaluation.Calibration(bins=4), ["--bins", "4"], ROWS),
    (stepmark.evaluation.Robustness(only=("repeated-step",)), ["--only", "repeated-step"], ROWS),
    (
        stepmark.evaluation.BestOfNAccuracy(sizes=(1, 2), verifier="number"),
        ["--sizes", "1", "2", "--verifier", "number"],
        CANDIDATES,
    ),
    (
        stepmark.evaluation.Drift(against="strong", threshold=0.4),
        ["--against", "strong", "--threshold", "0.4"],
        CANDIDATES,
    ),
]


@pytest.mark.parametrize(("method", "words", "rows"), RUNS, ids=[run[0].name for run in RUNS])
def test_the_function_writes_what_the_command_writes(method, words, rows):
    data = write(rows)
    command = ["evaluate", method.name, "--data", data, "--prm", PRM, "--resamples", "100", "--out", "a"]
    assert main([*command, *words]) == 0
    result = evaluate(method, data, out="b")
    names = sorted(path.name for path in Path("a").iterdir())
    assert names == sorted(path.name for path in Path("b").iterdir())
    assert {"result.json", "result.md", "report.html", "scores.jsonl"} <= set(names)
    for name in names:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name
    # Rows of Python have the same figures, and nothing is written.
    before = sorted(Path().iterdir())
    again = evaluate(method, rows)
    assert again.figures == result.figures
    assert sorted(Path().iterdir()) == before


def test_the_verifier_evaluation_asks_no_prm():
    data = write(PAIRS)
    command = ["evaluate", "verifier", "--data", data, "--verifier", "number", "text", "--out", "a"]
    assert main([*command, "--resamples", "100"]) == 0
    method = stepmark.evaluation.VerifierAccuracy(verifier=("number", "text"))
    result = stepmark.evaluate(method, data=data, resamples=100, out="b", progress=False)
    assert result.figures["text/false negatives"].value == 1.0  # 5.0 is no "5" as a text
    assert result.figures["number/false negatives"].value == 0.0
    for name in ("result.json", "result.md", "report.html"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name


def test_a_result_has_figures_and_shows_itself(tmp_path):
    result = evaluate("processbench", ROWS, prm=scripted_prms.arithmetic())
    figure = result.figures["a/error"]
    assert (figure.value, figure.level) == (0.5, 0.95)
    assert figure.low <= figure.value <= figure.high
    assert {name: one.value for name, one in result.figures.items()} == pytest.approx(
        {
            "a/error": 0.5,
            "a/correct": 1.0,
            "a/f1": 2 / 3,
            "b/error": 1.0,
            "b/correct": 0.0,
            "b/f1": 0.0,
            "average/error": 0.75,
            "average/correct": 0.5,
            "average/f1": 1 / 3,
        }
    )
    for text in (str(result), repr(result), result.table()):
        assert text.startswith("ProcessBench: sums\n") and "ProcessBench (%)" in text
    assert "<table" in result._repr_html_() and "<h4>ProcessBench: sums</h4>" in result._repr_html_()
    assert result.save(tmp_path / "saved") == tmp_path / "saved"
    saved = json.loads((tmp_path / "saved" / "result.json").read_text())
    assert {one["name"]: one["value"] for one in saved["figures"]} == {
        name: one.value for name, one in result.figures.items()
    }
    assert saved["data"][0]["rows"] == 5


def test_settings_by_name_and_a_frame():
    named = evaluate("processbench", ROWS, settings=["threshold=0.05"])
    assert named.figures == evaluate(stepmark.evaluation.ProcessBench(threshold="0.05"), ROWS).figures
    assert named.figures["a/f1"].policy == "0.05, given"
    pandas = pytest.importorskip("pandas")
    assert (
        evaluate("processbench", pandas.DataFrame(ROWS), settings=["threshold=0.05"]).figures == named.figures
    )


def test_scores_stand_for_the_prm():
    first = evaluate("processbench", write(ROWS), out="a")
    again = evaluate("processbench", "data.jsonl", prm="scripted_prms:never", scores="a/scores.jsonl")
    assert again.figures == first.figures
    assert again.settings["prm"] is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weakest(stepmark.evaluation.Evaluation):
    """The mean of the weakest scores."""

    name = "weakest"
    over: float = 0.0

    def items(self, sheet):
        return [
            {"id": row.case.id, "problem": row.case.problem, "weakest": max(self.over, *row.scores, 0)}
            for row in sheet.rows
        ]

    def statistic(self, items):
        values = np.array([item["weakest"] for item in items])
        return lambda weights: {
            "all/weakest": stepmark.evaluation.shares(weights @ values, weights.sum(axis=1))
        }


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        ({"method": "procesbench"}, UsageError, "did you mean 'processbench'"),
        ({"method": 3}, UsageError, "`method`: expected agent-processbench, agentrx"),
        ({"limit": 0}, SettingError, "limit=0: expected 1 or more"),
        ({"resamples": 5}, SettingError, "resamples=5: expected 100 or more"),
        ({"seed": "1"}, SettingError, "seed='1': expected a whole number"),
        ({"data": []}, UsageError, "expected `data`"),
        ({"data": [{"steps": ["1"]}]}, InputError, "row 1: a row of no known format"),
        ({"settings": ["treshold=1"]}, UsageError, "threshold"),
        ({"scores": "nowhere.jsonl"}, InputError, "there is no such file"),
    ],
)
def test_what_is_refused(call, kind, said):
    with pytest.raises(kind, match="(?i)" + said.replace("(", r"\(")):
        evaluate(**{"method": "processbench", "data": ROWS, **call})


@pytest.mark.parametrize("idle", [{"orm": PRM}, {"policy": "http://x"}, {"model_name": "mine"}])
def test_what_has_no_effect_is_a_note(idle):
    with pytest.warns(IdleSettingWarning, match=f"`{next(iter(idle))}`"):
        result = evaluate(method="processbench", data=ROWS, **idle)
    assert result.settings["model_name"] is None


def test_a_setting_out_of_its_range():
    with pytest.raises(SettingError, match="bins=0"):
        stepmark.evaluation.Calibration(bins=0)
    with pytest.raises(SettingError, match="only='formatting'"):
        stepmark.evaluation.Robustness(only="formatting")
    assert stepmark.evaluation.SearchContest(budgets=[100, 200]).budgets == [100, 200]
    with pytest.raises(UsageError, match="PRMBench is measured at a number, argmax"):
        stepmark.evaluation.PRMBench(threshold="oracle")


def test_a_search_writes_what_its_command_writes():
    made = arithmetic_problems(2, seed=3, steps=(3, 5))
    rows = [{"id": one.id, "problem": one.text, "answer": str(one.answer)} for one in made]
    data, policy, prm = write(rows), "search_models:policy", "search_models:truth"
    words = ["--policy", policy, "--prm", prm, "--budgets", "150", "400", "--methods", "beam"]
    words += ["--pilot", "1", "--set", "beam.expand=2", "--resamples", "100", "--out", "a"]
    assert main(["evaluate", "search", "--data", data, *words]) == 0
    method = stepmark.evaluation.SearchContest(
        budgets=(150, 400), methods=("beam",), pilot=1, method_settings=("beam.expand=2",)
    )
    result = evaluate(method, data, prm=prm, policy=policy, out="b")
    for name in ("result.json", "result.md", "report.html"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name
    assert {"accuracy/beam/150", "tokens/majority/400"} <= result.figures.keys()
