"""Every command that reads rows reads them as people have them: CSV, Parquet, other names, several solutions."""

from __future__ import annotations

import csv
import io
import json

import pytest

from stepmark.annotation.items import read_items
from stepmark.cli import main
from stepmark.data.columns import parse_columns
from stepmark.data.labelled import read_labelled
from stepmark.training.run import training_rows

GRADE = ["--prm", "scripted_prms:arithmetic"]
SOLUTIONS = [
    {"frage": "What is 2 + 3, doubled?", "antwort": "2 + 3 = 5\n5 + 5 = 11", "stufe": "3", "nr": "a"},
    {"frage": "What is 1 + 1?", "antwort": "1 + 1 = 2", "stufe": "1", "nr": "b"},
]
COLUMNS = "problem=frage,solution=antwort,id=nr"


def table(path, rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")
    return str(path)


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def solutions(tmp_path):
    return table(tmp_path / "in.csv", SOLUTIONS)


def test_grade_gives_the_rows_back_as_they_were(solutions, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert main(["grade", solutions, *GRADE, "--columns", COLUMNS, "--out", str(out)]) == 0
    graded = rows_of(out)
    assert [{key: row[key] for key in SOLUTIONS[0]} for row in graded] == SOLUTIONS
    assert list(graded[0])[:5] == ["frage", "antwort", "stufe", "nr", "steps"]
    assert [(row["first_error"], row["first_error_step"]) for row in graded] == [(1, 2), (-1, None)]
    settings = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())["settings"]
    assert settings["columns"] in (COLUMNS, parse_columns(COLUMNS))
    assert "2 solutions" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_the_same_rows_of_every_kind_are_graded_the_same(tmp_path, kind):
    rows = [{"question": "Add.", "response": "1 + 1 = 2\n2 + 2 = 5", "level": "3"}]
    file = tmp_path / f"in.{kind}"
    if kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), file)
    elif kind in ("csv", "tsv"):
        table(file, rows)
        if kind == "tsv":
            file.write_text(file.read_text().replace(",", "\t"))
    else:
        file.write_text(json.dumps(rows if kind == "json" else rows[0], indent=1 if kind == "json" else None))
    out = tmp_path / "out.jsonl"
    assert main(["grade", str(file), *GRADE, "--out", str(out)]) == 0
    (graded,) = rows_of(out)
    assert {**rows[0], "steps": ["1 + 1 = 2", "2 + 2 = 5"], "scores": [0.9, 0.1]}.items() <= graded.items()


def test_candidates_are_graded_one_by_one_and_resumed(tmp_path, monkeypatch, capsys):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    row = {"id": "q", "question": "Add.", "responses": ["1 + 1 = 2", "1 + 1 = 3", "<marker> = 1"], "level": 3}
    file.write_text(json.dumps(row) + "\n")
    assert main(["grade", str(file), *GRADE, "--out", str(out)]) == 2
    assert f"{file}:1 (candidate 2), field 'steps': the marker" in (told := capsys.readouterr().err)
    assert "--keep-going" in told
    assert main(["grade", str(file), *GRADE, "--out", str(out), "--keep-going"]) == 0
    assert [(one["id"], one["solution"], one["first_error"], one["level"]) for one in rows_of(out)] == [
        ("q#0", "1 + 1 = 2", -1, 3),
        ("q#1", "1 + 1 = 3", 0, 3),
    ]
    assert "responses" not in rows_of(out)[0]
    assert "continued after the 2 rows" in capsys.readouterr().err


def test_an_error_of_a_table_says_its_line(tmp_path, capsys):
    file = tmp_path / "in.csv"
    file.write_text('question,response\n"a\nb",1 + 1 = 2\nc,,3\n')
    assert main(["grade", str(file), *GRADE, "--out", str(tmp_path / "out.jsonl")]) == 2
    told = capsys.readouterr().err
    assert f"{file}:4: expected 2 cells, as the header has, found 3" in told and "--keep-going" in told
    assert not (tmp_path / "out.jsonl").exists()


def test_gsm8k_is_a_file_of_problems(tmp_path, capsys):
    file, out = tmp_path / "gsm8k.jsonl", tmp_path / "out.jsonl"
    file.write_text(json.dumps({"question": "Add 1 and 1.", "answer": "1 + 1 = 2\n#### 2"}) + "\n")
    assert main(["grade", str(file), *GRADE, "--out", str(out)]) == 2
    assert "stepmark sample writes solutions of it" in capsys.readouterr().err
    assert main(["problems", "read", str(file), "--out", str(out)]) == 0
    assert rows_of(out) == [{"problem": "Add 1 and 1.", "answer": "2", "id": f"{file}:1"}]
    assert main(["label", "exact", str(file), "--columns", "question=question", "--out", str(out)]) == 2
    assert "calculation" in capsys.readouterr().err  # it was read as GSM8K's: nothing is marked <<...>> in it


def test_label_keeps_what_the_row_says(tmp_path):
    file = table(
        tmp_path / "in.csv",
        [
            {
                "frage": "Add 1 and 1.",
                "antwort": "1 + 1 = 2\n2 + 2 = 5",
                "stufe": "3",
                "meta": '{"outcome": false}',
            }
        ],
    )
    out = tmp_path / "labels.jsonl"
    words = ["label", "formulas", file, "--columns", "problem=frage,solution=antwort", "--out", str(out)]
    assert main(words) == 0
    (row,) = read_labelled(out)
    assert (row.outcome, row.meta["stufe"], row.meta["method"]) == (False, "3", "formulas")
    assert main(["label", "consensus", str(out), "--least", "1", "--out", str(tmp_path / "one.jsonl")]) == 0


def test_convert_train_and_annotate(tmp_path):
    file = table(
        tmp_path / "in.csv", [{"frage": "q", "schritte": '["a", "b"]', "gut": "[true, false]", "stufe": "3"}]
    )
    columns = "problem=frage,steps=schritte,labels=gut"
    out = tmp_path / "out.jsonl"
    assert main(["convert", file, "--columns", columns, "--to", "math-shepherd", "--out", str(out)]) == 0
    (row,) = rows_of(out)
    assert row["input"] == "q Step 1: a ки\nStep 2: b ки"
    assert row["meta"]["stufe"] == "3"
    (read,) = training_rows([file], columns={"problem": "frage", "steps": "schritte", "labels": "gut"})
    assert [step[0].rating for step in read.labelled.judgements] == [1, -1]
    from stepmark.annotation.project import load_project

    names = {"problem": "frage", "steps": "schritte", "labels": "gut"}
    (item,) = read_items(load_project(file, {"columns": names}).project)
    assert (item.solution.texts, item.meta["stufe"]) == (("a", "b"), "3")
    project = tmp_path / "project.yaml"
    project.write_text("items: [in.csv]\ncolumns: {problem: frage, steps: schritte, labels: gut}\n")
    assert [one.solution for one in read_items(load_project(project).project)] == [item.solution]


READERS = [
    ["grade", "IN", *GRADE],
    ["sample", "IN", "--policy", "test_sample_cli:scripted", "--out", "o.jsonl"],
    ["problems", "read", "IN", "--out", "o.jsonl"],
    ["label", "formulas", "IN", "--out", "o.jsonl"],
    ["label", "exact", "IN", "--out", "o.jsonl"],
    ["label", "consensus", "IN", "--out", "o.jsonl"],
    ["search", "majority", "IN", "--policy", "test_sample_cli:scripted", "--out", "o.jsonl"],
    ["convert", "IN", "--to", "trl", "--out", "o.jsonl"],
    ["evaluate", "verifier", "--data", "IN"],
    ["evaluate", "processbench", "--data", "IN", *GRADE],
    ["evaluate", "prmbench", "--data", "IN", *GRADE],
    ["evaluate", "best-of-n", "--data", "IN", *GRADE],
    ["evaluate", "robustness", "--data", "IN", *GRADE],
    ["evaluate", "disagreement", "--data", "IN", *GRADE],
    ["evaluate", "calibration", "--data", "IN", *GRADE],
    ["evaluate", "drift", "--data", "IN", *GRADE],
    ["train", "IN", "--out", "o"],
    ["annotate", "IN"],
    ["rl", "IN", "--policy", "x", "--credit", "grpo", "--out", "o"],
]


@pytest.mark.parametrize("words", READERS, ids=[" ".join(words[:2]) for words in READERS])
def test_every_reader_has_the_flag(words, solutions, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [solutions if word == "IN" else word for word in words]
    assert main([*words, "--columns", "nonsense"]) == 2
    assert "--columns nonsense: expected NAME=VALUE" in capsys.readouterr().err
    if words[0] not in ("train", "rl"):  # which would load a model first
        assert main([*words, "--columns", "id=nowhere"]) == 2
        told = capsys.readouterr().err
        assert "there is no column 'nowhere'" in told and "found 'frage', 'antwort', 'stufe', 'nr'" in told
