"""`stepmark convert`, as it is typed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stepmark.cli import main
from stepmark.store import open_rows

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
    said = capsys.readouterr().err.splitlines()
    assert said[:3] == [
        "trl -> math-shepherd",
        "kept: 2 rows written of 3 labelled solutions read",
        "dropped: 1 x the first step was not judged, and Math-Shepherd has no word for that (first: "
        f"{file}:2)",
    ]
    manifest = json.loads((tmp_path / "out.jsonl.gz.manifest.json").read_text("utf-8"))
    assert (manifest["rows"], manifest["left_out"], manifest["from"]) == (2, 1, "trl")
    assert manifest["losses"]["read"] == 3
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
    assert (
        f"dropped: 1 x the row is not what its format says (--keep-going) (first: {file}:2)"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "trl", "--from", "tlr"], "trl"),
        (["--to", "trl", "--hard", "2"], "--hard 2.0: expected a number in [0, 1)"),
        (["--to", "trl", "--from", "prm800k"], "expected a row of PRM800K with labeler, question, label"),
    ],
)
def test_settings_that_cannot_work(words, said, tmp_path, capsys):
    file = write(tmp_path / "in.jsonl", ROW)
    assert main(["convert", file, *words, "--out", str(tmp_path / "out.jsonl")]) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_was_killed_is_continued_to_the_same_file(tmp_path, monkeypatch):
    file = write(tmp_path / "in.jsonl", *({**ROW, "id": str(n)} for n in range(9)), {**ROW, "labels": None})
    whole = tmp_path / "whole.jsonl"
    words = ["convert", file, "--to", "trl", "--out"]
    assert main([*words, str(whole)]) == 0

    class Killed(BaseException):
        pass

    def dying(path: Any, manifest: Any, *, resumable: bool = True) -> Any:
        rows = open_rows(path, manifest, resumable=resumable)
        write_one, left = rows.write, iter(range(4))

        def write(row: Any) -> None:
            if next(left, None) is None:
                raise Killed
            write_one(row)

        monkeypatch.setattr(rows, "write", write)
        return rows

    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("stepmark.solutions.interchange.formats.open_rows", dying)
        with pytest.raises(Killed):
            main([*words, str(out)])
    assert len((tmp_path / "out.jsonl.part").read_text("utf-8").splitlines()) == 4
    assert not out.exists()
    assert main([*words, str(out)]) == 0
    assert out.read_bytes() == whole.read_bytes()
    manifests = [json.loads(Path(f"{path}.manifest.json").read_text("utf-8")) for path in (out, whole)]
    assert manifests[0] == manifests[1]
