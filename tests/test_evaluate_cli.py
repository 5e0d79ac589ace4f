"""stepmark evaluate: what it writes, what it says where, and that nothing is graded twice."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepmark.cli import main

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
FILES = ["report.html", "result.json", "result.md", "scores.jsonl", "scores.jsonl.manifest.json"]

SUMS = {True: "2 + 3 = 5", False: "2 + 3 = 6"}


def solution(id, right, label, *, problem=None):
    """A ProcessBench row: sums that are right or wrong as told."""
    return {
        "id": id,
        "generator": "A",
        "problem": problem or f"problem of {id}",
        "steps": [SUMS[one] for one in right],
        "final_answer_correct": label == -1,
        "label": label,
    }


ROWS = [
    solution("a-0", (True, False), 1),  # found
    solution("b-0", (True, True), -1),  # left alone
    solution("a-1", (True, True, True), 2),  # missed
    solution("a-2", (True,), -1, problem="problem of a-0"),  # left alone
    solution("b-1", (False,), 0),  # found
    solution("b-2", (False, True), -1),  # blamed
]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch, tmp_path):
    for name in ("FORCE_COLOR", "NO_COLOR", "STEPMARK_DEBUG", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


def file_of(*rows, name="data.jsonl"):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


def evaluate(*words, name="processbench", data=None, prm="arithmetic", resamples="100"):
    data = file_of(*ROWS) if data is None else data
    model = [] if prm is None else ["--prm", f"scripted_prms:{prm}"]
    return main(["evaluate", name, "--data", data, "--resamples", resamples, *model, *map(str, words)])


def figures(folder="evaluation/processbench"):
    return {f["name"]: f for f in json.loads(Path(folder, "result.json").read_text())["figures"]}


def left_in(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def graded(folder="evaluation/processbench"):
    return [json.loads(line) for line in Path(folder, "scores.jsonl").read_text().splitlines()]


# --- what comes out


def test_a_run(capfd):
    assert evaluate() == 0
    out, err = capfd.readouterr()
    assert left_in("evaluation/processbench") == FILES
    found = {name: figure["value"] for name, figure in figures().items()}
    assert found == pytest.approx(
        {
            "a/error": 0.5,
            "a/correct": 1.0,
            "a/f1": 2 / 3,
            "b/error": 1.0,
            "b/correct": 0.5,
            "b/f1": 2 / 3,
            "average/error": 0.75,
            "average/correct": 0.75,
            "average/f1": 2 / 3,
        }
    )
    assert {figure["policy"] for figure in figures().values()} == {"0.5, the PRM's own"}
    title, verdict, *facts = out.splitlines()
    assert title == "ProcessBench: sums" and "75.0 % of the wrong solutions" in verdict
    assert facts[0].startswith("6 solutions of 5 problems.")
    lines = [line for line in out.splitlines() if line.startswith(("a ", "b ", "average "))]
    assert [re.findall(r"66\.7", line) != [] for line in lines] == [True] * 3
    assert err == (
        "wrote evaluation/processbench/report.html, evaluation/processbench/result.json and "
        "evaluation/processbench/result.md\n"
    )


def test_the_result_says_what_it_was_made_with(tmp_path):
    assert evaluate("--out", "here", "--threshold", "0.25", "--seed", "3") == 0
    body = json.loads(Path("here/result.json").read_text())
    assert (body["evaluation"], body["prm"], body["format"]) == ("processbench", "sums", 1)
    assert body["settings"]["threshold"] == "0.25"
    assert body["settings"]["seed"] == 3
    assert body["settings"]["prm"] == "scripted_prms:arithmetic"
    assert [(one["name"], one["bytes"]) for one in body["data"]] == [
        ("data.jsonl", Path("data.jsonl").stat().st_size)
    ]
    assert len(body["items"]) == 6
    assert [item["id"] for item in body["items"]] == [row["id"] for row in ROWS]  # in the order of the data
    page = Path("here/report.html").read_text()
    assert "data: data.jsonl" in page and body["data"][0]["sha256"] in page
    assert "http://" not in page and not re.search(r'src="(?!data:)', page)
    assert Path("here/result.md").read_text().startswith("# ProcessBench: sums\n")


# --- the scores are made once


def test_finished_scores_are_used_again(capfd):
    assert evaluate() == 0
    first = {name: Path("evaluation/processbench", name).read_bytes() for name in FILES}
    capfd.readouterr()
    assert evaluate("--threshold", "0.5") == 0
    assert "evaluation/processbench/scores.jsonl has the scores of an earlier run" in capfd.readouterr().err
    assert {f["policy"] for f in figures().values()} == {"0.5, given"}
    assert evaluate() == 0
    assert {name: Path("evaluation/processbench", name).read_bytes() for name in FILES} == first


def test_another_prm_or_other_data_do_not_use_them(capfd):
    assert evaluate() == 0
    assert evaluate(prm="never") == 2
    err = capfd.readouterr().err
    assert 'settings.prm was "scripted_prms:arithmetic" and is now "scripted_prms:never"' in err
    assert "settings.dtype" not in err
    assert evaluate(data=file_of(*ROWS[1:], name="data.jsonl")) == 2
    assert "data was" in capfd.readouterr().err


def start(data, out, log, pause="0"):
    words = ["evaluate", "processbench", "--data", data, "--out", out, "--prm", "scripted_prms:slow"]
    # A shell's background jobs, such as these tests may be one of, ignore SIGINT, and what they start inherits that.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = heeding + "import sys; from stepmark.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(
        [*command, "--resamples", "100"],
        env=ENVIRONMENT | {"ASKED": str(log), "PAUSE": pause},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def many(count):
    return [
        solution(f"{'ab'[n % 2]}-{n}", [(n + step) % 3 != 0 for step in range(1 + n % 4)], -1 if n % 3 else 0)
        for n in range(count)
    ]


def test_killed_and_run_again(tmp_path):
    """What a killed run leaves is continued: nothing asked twice, the same files as of a run that nobody killed."""
    data = str(tmp_path / file_of(*many(30)))
    logs = {name: tmp_path / f"{name}.log" for name in ("killed", "whole")}

    def asked_for(name):
        return logs[name].read_text().splitlines() if logs[name].exists() else []

    folders = {}
    for name in ("killed", "whole"):  # each in a folder of its own, as --out stands in the result
        folders[name] = tmp_path / name
        folders[name].mkdir()
    os.chdir(folders["killed"])
    kills = 0
    for goal in (10, 40):
        process = start(data, "out", logs["killed"], pause="0.06")
        while len(asked_for("killed")) < goal and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert left_in("out") == [".stepmark.lock", "scores.jsonl.part"]
    assert kills == 2
    out, err = start(data, "out", logs["killed"]).communicate()
    assert "ProcessBench: slow" in out, err
    os.chdir(folders["whole"])
    process = start(data, "out", logs["whole"])
    assert process.communicate()[0] == out
    assert process.returncode == 0

    assert left_in(folders["killed"] / "out") == FILES
    for name in FILES:
        assert (folders["killed"] / "out" / name).read_bytes() == (
            folders["whole"] / "out" / name
        ).read_bytes(), name
    # A row that was being graded when the kill came is asked for again; one that was written never is.
    assert set(asked_for("killed")) == set(asked_for("whole"))
    twice = {json.loads(line)[0] for line in asked_for("killed") if asked_for("killed").count(line) > 1}
    assert len(twice) <= kills


def test_interrupting_says_how_to_go_on(tmp_path):
    log = tmp_path / "log"
    process = start(file_of(*many(200)), "out", log, pause="0.02")
    while not log.exists() or log.read_text().count("\n") < 5:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert (
        f"interrupted: the scores so far are kept in {Path('out', 'scores.jsonl.part')}; the same command"
        in err
    )
    assert "Traceback" not in err


# --- scores from a file


def test_the_graded_file_of_stepmark_grade(capfd):
    data = file_of(*ROWS)
    assert main(["grade", data, "--prm", "scripted_prms:arithmetic", "--out", "graded.jsonl"]) == 0
    assert evaluate("--scores", "graded.jsonl", "--out", "of_grade", prm="never") == 0
    assert evaluate("--out", "own") == 0
    assert figures("of_grade") == figures("own")


# --- a part of the data


def test_a_limit(capfd):
    rows = [solution(f"a-{n}", (True, n % 2 == 0), 1 if n % 2 else -1) for n in range(10)]
    rows.insert(1, solution("a-11", (True,), -1, problem="problem of a-0"))
    data = file_of(*rows)
    assert evaluate("--limit", "5", data=data) == 0
    # Evenly spaced over ten problems, with every solution of each.
    assert [row["id"] for row in graded()] == ["a-0", "a-11", "a-2", "a-4", "a-6", "a-8"]
    assert "Only 6 of the data's 11 solutions were taken (limit 5), evenly spaced." in capfd.readouterr().out
    assert evaluate("--limit", "10", "--out", "all", data=data) == 0
    assert len(graded("all")) == 11
    assert "were taken" not in capfd.readouterr().out


# --- what cannot be


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--limit", "0"), "--limit 0"),
        (("--seed", "-1"), "--seed -1"),
        (("--device", "gpu"), "--device gpu"),
        (("--threshold", "half"), "--threshold half"),
        (("--threshold", "tuned:gsm"), "--threshold tuned:gsm"),
        (
            ("--threshold", "argmax", "--neutral", "negative"),
            "--neutral negative",
        ),
        (("--threshld", "1"), "Did you mean --threshold?"),
        (("--out", "data.jsonl"), "--out data.jsonl"),
    ],
)
def test_options_that_cannot_be_are_refused_before_the_model_is_loaded(capfd, words, said):
    assert evaluate(*words, prm="never") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err


# --- quick
