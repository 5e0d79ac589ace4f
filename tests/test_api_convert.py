"""`stepmark.convert` and `stepmark convert` are one: the same rows, byte for byte; rows without a file; the same refusals."""

import json

import pytest

import stepmark
from stepmark import Judgement, LabelledSolution, Solution
from stepmark.cli import main
from stepmark.errors import InputError, SettingError, UsageError

ROWS = [
    {"prompt": "How many?", "completions": ["a", "b"], "labels": [True, False], "id": "x", "mine": 1},
    {"prompt": "How many?", "completions": ["a", "b"], "labels": None},
    {"prompt": "How many?", "completions": ["c"], "labels": [True]},
]
SOFT = LabelledSolution(
    solution=Solution.of("2 + 3, doubled?", ["2 + 3 = 5", "5 * 2 = 12"], id="s1"),
    judgements=(
        (Judgement(kind="value", judge="rollout", successes=6, trials=8),),
        (
            Judgement(kind="value", judge="rollout", successes=0, trials=8),
            Judgement(kind="correctness", judge="human:ann", rating=-1),
        ),
    ),
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def test_the_function_writes_what_the_command_writes(tmp_path, file, capsys):
    assert main(["convert", str(file), "--to", "math-shepherd", "--out", str(tmp_path / "a.jsonl")]) == 0
    results = stepmark.convert(file, "math-shepherd", out=tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    manifests = [json.loads((tmp_path / f"{name}.jsonl.manifest.json").read_text()) for name in "ab"]
    assert manifests[0] == manifests[1]
    assert [row["label"] for row in results] == [
        "How many? Step 1: a +\nStep 2: b -",
        "How many? Step 1: c +",
    ]
    assert (len(results), len(results.refused)) == (2, 1)
    assert results.manifest["losses"]["read"] == 3
    assert results.summary.splitlines()[:2] == capsys.readouterr().err.splitlines()[:2]


@pytest.mark.parametrize("make", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_rows_of_python_give_rows(make, file):
    assert [row["labels"] for row in stepmark.convert(make(ROWS), "trl")] == [[True, False], [True]]
    (from_file, *_), (from_rows, *_) = stepmark.convert(file, "trl"), stepmark.convert(make(ROWS), "trl")
    assert from_file["meta"] | {"from": "row:1"} == from_rows["meta"]


def test_records_and_the_settings_that_decide():
    (row,) = stepmark.convert([SOFT], "stepmark-labels")
    assert row["judgements"][0] == [{"kind": "value", "judge": "rollout", "successes": 6, "trials": 8}]
    (trl,) = stepmark.convert([SOFT], "trl", judge="rollout")
    assert trl["labels"] == [0.75, 0.0]
    (hard,) = stepmark.convert([SOFT], "trl", judge="rollout", hard=0.5)
    assert hard["labels"] == [True, False]
    with pytest.raises(InputError, match="`judge`"):
        stepmark.convert([SOFT], "trl", kind="value", judge=None, out=None) and stepmark.convert(
            [SOFT], "trl"
        )
    results = stepmark.convert([SOFT], "stepmark-labels")
    assert "&#x27;rollout&#x27;" in results._repr_html_()


def test_an_iterator_that_is_written_is_read_once_and_hashed(tmp_path):
    a = stepmark.convert(iter(ROWS), "trl", out=tmp_path / "a.jsonl")
    b = stepmark.convert(ROWS, "trl", out=tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert a.manifest["input"] == b.manifest["input"] and a.manifest["input"]["rows"] == 3


@pytest.mark.parametrize(
    ("rows", "to", "settings", "error", "message"),
    [
        ([{"steps": ["a"]}], "trl", {}, InputError, "row 1"),
        (ROWS, "tlr", {}, UsageError, "Did you mean 'trl'"),
        (ROWS, "openr", {}, UsageError, "`to` one of"),
        (
            ROWS,
            "trl",
            {"neutral": "none"},
            SettingError,
            "neutral='none': expected positive, negative or drop",
        ),
        (ROWS, "trl", {"out": "nowhere/a.jsonl"}, UsageError, "there is no folder"),
    ],
)
def test_python_errors_name_settings(rows, to, settings, error, message):
    with pytest.raises(error, match=message):
        stepmark.convert(rows, to, **settings)
