"""`stepmark.convert` and `stepmark convert` are one: the same rows, byte for byte; losses, refusals, kills; rows without a file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

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
    assert results.manifest["counts"]["read"] == 3
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
        (ROWS, "prmbench", {}, UsageError, "`to` one of"),
        (
            ROWS,
            "trl",
            {"neutral": "none"},
            SettingError,
            "neutral='none'",
        ),
        (ROWS, "trl", {"out": "nowhere/a.jsonl"}, UsageError, "there is no folder"),
    ],
)
def test_python_errors_name_settings(rows, to, settings, error, message):
    with pytest.raises(error, match=message):
        stepmark.convert(rows, to, **settings)


# --- as it is typed

ROW = {"prompt": "How many?", "completions": ["a", "b"], "labels": [True, False]}
NEUTRAL = {
    "solution": {"problem": {"text": "How many?"}, "steps": [{"text": "a"}]},
    "judgements": [[{"kind": "correctness", "judge": "ann", "rating": 0}]],
}


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def lines(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_a_file_is_converted_and_the_losses_are_listed(tmp_path, capsys):
    file = write(tmp_path / "in.jsonl", ROW, {**ROW, "labels": None}, ROW)
    out = tmp_path / "out.jsonl.gz"
    assert main(["convert", file, "--to", "math-shepherd", "--out", str(out)]) == 0
    rows = lines(out)
    assert [row["label"] for row in rows] == ["How many? Step 1: a +\nStep 2: b -"] * 2
    assert [row["meta"]["from"] for row in rows] == ["in.jsonl:1", "in.jsonl:3"]
    assert f"{file}:2)" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "out.jsonl.gz.manifest.json").read_text("utf-8"))
    assert (manifest["rows"], manifest["left_out"], manifest["from"]) == (2, 1, "trl")
    assert manifest["counts"]["read"] == 3
    assert not list(tmp_path.glob("*.part*"))


def test_a_decision_that_is_missing_stops_the_run_and_names_the_option(tmp_path, capsys):
    file = write(tmp_path / "in.jsonl", NEUTRAL)
    out = tmp_path / "out.jsonl"
    assert main(["convert", file, "--to", "trl", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"{file}:1: step 0 (0-based) is rated neutral" in said
    assert "--neutral" in said
    assert "--keep-going" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    assert main(["convert", file, "--to", "trl", "--neutral", "positive", "--out", str(out)]) == 0
    assert lines(out)[0]["labels"] == [True]


def test_rows_that_are_not_of_the_format(tmp_path, capsys):
    file = write(tmp_path / "in.jsonl", ROW, {**ROW, "labels": [True]}, ROW)
    out = tmp_path / "out.jsonl"
    assert main(["convert", file, "--to", "rlhflow", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"{file}:2, field 'labels': expected one label a completion (2), found 1" in said
    assert "--keep-going" in said
    assert main(["convert", file, "--to", "rlhflow", "--out", str(out), "--keep-going"]) == 0
    assert len(lines(out)) == 2
    assert f"dropped: 1 x the row is not what its format says (first: {file}:2)" in capsys.readouterr().err
