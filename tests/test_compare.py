"""Two results laid side by side: differences worked by hand, and what makes a comparison worthless."""

import re

import pytest

from stepmark.cli import main
from stepmark.errors import InputError
from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmarks.processbench import ProcessBench
from stepmark.evaluation.cases import Case, ratings_until
from stepmark.evaluation.comparison import compare, table
from stepmark.evaluation.result import read_result, write_json
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.records import Problem, Solution, Step, StepScores


def evaluate(sheet, *, threshold=None, data=(), resamples=1000):
    run = Run(resamples=resamples, inputs=list(data))
    return ProcessBench(threshold=threshold).of_sheet(sheet, run)


FILE = {"name": "data.jsonl", "bytes": 1, "sha256": "a" * 64}
TRUTH = {"w0": 0, "w1": 1, "w2": 1, "w3": 0, "r0": -1, "r1": -1}


def result(tmp_path, name, found, *, threshold="0.5", prm=None, sha=FILE["sha256"], groups=None):
    """The result of a PRM that names these steps: id to 0-based step, -1 for none."""
    rows = []
    for id, named in found.items():
        solution = Solution(
            problem=Problem(text=f"problem of {id}"), steps=(Step(text="x"), Step(text="y")), id=id
        )
        case = Case(
            id=id,
            labelled=ratings_until(solution, TRUTH[id.rpartition("-")[2]], judge="human"),
            where=f"data.jsonl:{id}",
            group=(groups or {}).get(id, "g"),
        )
        scores = tuple(0.1 if step == named else 0.9 for step in range(2))
        rows.append(CaseScores(case=case, steps=StepScores(scores=scores, kind="probability")))
    sheet = Sheet(prm=prm or name, kind="probability", rows=tuple(rows), threshold=0.5)
    path = tmp_path / f"{name}.json"
    write_json(evaluate(sheet, threshold=threshold, data=[{**FILE, "sha256": sha}], resamples=100), path)
    return path


ALL = dict(TRUTH)  # everything named rightly
A = ALL | {"w0": 1, "w1": -1, "r0": 0}  # 2 of 4 wrong ones, 1 of 2 right ones
B = ALL | {"w0": 1}  # 3 of 4, 2 of 2


@pytest.fixture
def of(tmp_path):
    def of(one, other, **more):
        left = result(tmp_path, "one", one)
        return compare(left, result(tmp_path, "other", other, **more), resamples=500)

    return of


def test_a_difference_by_hand(of):
    found = of(A, B)
    assert (found.evaluation, found.a, found.b, found.common) == ("processbench", "one", "other", 6)
    assert (found.only_a, found.only_b, found.warnings) == (0, 0, ())
    error, correct, f1 = (found.differences[f"g/{name}"] for name in ("error", "correct", "f1"))
    assert (error.a, error.b, error.value) == pytest.approx((0.5, 0.75, 0.25))
    assert (correct.a, correct.b, correct.value) == pytest.approx((0.5, 1.0, 0.5))
    assert (f1.a, f1.b, f1.value) == pytest.approx((0.5, 6 / 7, 6 / 7 - 0.5))
    # Nowhere is B worse, and in many resamples the two are equal.
    assert error.low == 0.0
    assert 0.25 < error.high <= 1.0
    assert 0.05 < error.p < 1.0


def test_only_common_items_are_compared(of):
    more = {f"x-{id}": named for id, named in A.items()}
    found = of(A | more, {id: B[id] for id in ("w3", "r1", "w0", "w1")} | {"y-w0": 0})
    assert (found.common, found.only_a, found.only_b) == (4, 8, 1)
    # w0, w1, w3: A finds one, B two. r1: both leave it alone.
    one = found.differences["g/error"]
    assert (one.a, one.b) == pytest.approx((1 / 3, 2 / 3))
    assert found.differences["g/correct"].value == 0.0
    assert "4 common items (8 only in A, 1 only in B)" in table(found).title


def test_a_figure_that_one_of_them_does_not_have(of):
    only = {"w0": 0, "w1": 1, "w2": 1}
    found = of(only, only)
    one = found.differences["g/f1"]
    assert (one.a, one.b, one.value, one.low, one.high, one.p) == (None,) * 6
    assert table(found, only=["g/f1"]).rows == (("g/f1", "–", "–", "–", "–"),)


def test_different_thresholds_are_warned_about(of):
    assert of(A, B, threshold="0.5").warnings == ()
    (said,) = of(A, B, threshold="0.25").warnings
    assert "0.5" in said and "0.25" in said


def renamed(path, name):
    path.write_text(path.read_text().replace('"evaluation": "processbench"', f'"evaluation": "{name}"'))
    return path


def test_results_of_two_evaluations(tmp_path):
    a, b = result(tmp_path, "a", A), renamed(result(tmp_path, "b", A), "prmbench")
    with pytest.raises(InputError, match="'processbench' and 'prmbench'"):
        compare(a, b)


def test_a_result_names_no_code_to_load(tmp_path):
    a = renamed(result(tmp_path, "a", A), "os:system")
    with pytest.raises(InputError, match="os:system"):
        compare(a, a)
    assert compare(a, a, method=ProcessBench(), resamples=100).differences["g/f1"].value == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("{", "expected the result of stepmark evaluate as JSON"),
        ("[]", "found something else"),
        ('{"id": "a-0", "scores": [1]}', "found something else"),
    ],
)
def test_what_is_no_result(tmp_path, text, said):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        read_result(path)
    assert caught.value.where == str(path)


def test_a_folder_stands_for_its_result(tmp_path):
    a = result(tmp_path, "result", A)
    assert compare(tmp_path, a, resamples=100) == compare(a, a, resamples=100)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty/result.json"):
        read_result(tmp_path / "empty")


# --- the command


def test_the_command(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    a, b = result(tmp_path, "a", A), result(tmp_path, "b", B, threshold="0.25")
    assert main(["evaluate", "compare", str(a), str(b), "--resamples", "200"]) == 0
    out, err = capfd.readouterr()
    assert "A = a, B = b; 6 common items" in " ".join(out.split())
    row = next(line for line in out.splitlines() if line.startswith("g/error"))
    assert re.match(
        r"g/error +0\.5000 +0\.7500 +0\.2500 \[0\.0000, [01]\.\d{4}\] +[01]\.\d{3}$", row.rstrip()
    )
    assert err.startswith("note: the thresholds differ") and "thresholds" not in out
