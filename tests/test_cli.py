"""The command line, in this process and, where it must be killed or measured, in another."""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stepmark import __version__
from stepmark.cli import COMMANDS, main
from stepmark.progress import Progress

HERE = Path(__file__).parent
GOOD = {"problem": "p", "steps": ["2 + 3 = 5", "5 + 5 = 10"], "id": "good"}
WRONG = {"problem": "p", "steps": ["2 + 3 = 5", "5 + 5 = 11", "1 + 1 = 2"], "id": "wrong"}
MARKED = {"problem": "p", "steps": ["1 + 1 = 2", "<marker>"], "id": "marked"}
LONG = {"problem": "p", "steps": ["<long>"]}


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "STEPMARK_DEBUG", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def file_of(tmp_path, *rows, name="in.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def rows_of(text):
    return [json.loads(line) for line in text.splitlines()]


def grade(*words, prm="arithmetic"):
    return main(["grade", *map(str, words), "--prm", f"scripted_prms:{prm}"])


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def command(*words):
    # A shell's background jobs, such as these tests may be one of, ignore SIGINT, and what they start inherits that.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    return [
        sys.executable,
        "-c",
        heeding + "import sys; from stepmark.cli import main; sys.exit(main())",
        *map(str, words),
    ]


ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


# --- what comes out


GRADED = [
    {
        **GOOD,
        "scores": [0.9, 0.9],
        "score": 0.9,
        "aggregate": "min",
        "first_error": -1,
        "first_error_step": None,
        "threshold": 0.5,
        "prm": "sums",
        "score_kind": "probability",
    },
    {
        **WRONG,
        "scores": [0.9, 0.1, 0.9],
        "score": 0.1,
        "aggregate": "min",
        "first_error": 1,
        "first_error_step": 2,
        "threshold": 0.5,
        "prm": "sums",
        "score_kind": "probability",
    },
]


@pytest.mark.parametrize("where", [[], ["--out", "-"]])
def test_json_lines_to_standard_output(tmp_path, capfd, where):
    assert grade(file_of(tmp_path, GOOD, WRONG), *where) == 0
    out, err = capfd.readouterr()
    assert rows_of(out) == GRADED
    assert "2 solutions, 5 steps: 1 with an error (a step under 0.5), 1 without" in err
    # Words, 5 a step and 1 for the problem: 11 and 16 alone; the second shares the problem and a step.
    assert "27 tokens read, 21 computed, 21 distinct, 6 from shared prefixes" in err


def test_to_a_file(tmp_path, capfd):
    out = tmp_path / "out.jsonl"
    assert (
        grade(file_of(tmp_path, GOOD, WRONG), "--out", out, "--aggregate", "product", "--threshold", "0.05")
        == 0
    )
    assert capfd.readouterr().out == ""
    rows = rows_of(out.read_text())
    assert [row["score"] for row in rows] == [pytest.approx(0.81), pytest.approx(0.081)]
    assert [row["first_error"] for row in rows] == [-1, -1]
    assert left_in(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.manifest.json"]
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest["stepmark"] == __version__
    assert (manifest["rows"], manifest["left_out"]) == (2, 0)
    assert (manifest["prm"], manifest["aggregate"], manifest["threshold"]) == ("sums", "product", 0.05)
    assert manifest["input"]["bytes"] == (tmp_path / "in.jsonl").stat().st_size
    assert manifest["loaded_with"]["dtype"] == "auto"


def test_packed_in_and_out(tmp_path):
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    assert grade(tmp_path / "in.jsonl.gz", "--out", tmp_path / "out.jsonl.gz") == 0
    assert rows_of(gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()).decode()) == GRADED[:1]


def test_from_standard_input(monkeypatch, capfd, tmp_path):
    for out in ([], ["--out", tmp_path / "out"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(GOOD).encode())))
        assert grade("-", *out) == 0
    assert rows_of(capfd.readouterr().out) == rows_of((tmp_path / "out").read_text()) == GRADED[:1]


def test_an_orm_beside_it(tmp_path, capfd):
    assert grade(file_of(tmp_path, WRONG), "--orm", "scripted_prms:certain") == 0
    (row,) = rows_of(capfd.readouterr().out)
    assert (row["outcome"], row["outcome_model"], row["first_error"]) == (1.0, "certain", 1)


def test_cutting_is_reported(tmp_path, capfd):
    cut = {"problem": "p", "solution": "2 + 3 = 5\n5 + 5 = 10"}
    path = file_of(tmp_path, GOOD, cut, cut)
    assert grade(path) == 0
    out, err = capfd.readouterr()
    assert rows_of(out)[1]["steps"] == GOOD["steps"]
    assert "2 by 'line'" in err
    assert grade(path, "--split", "line") == 0
    assert "texts cut" not in capfd.readouterr().err
    assert grade(file_of(tmp_path, GOOD), "--split", "line") == 0
    assert "line had nothing to cut" in capfd.readouterr().err
    assert (
        grade(
            file_of(tmp_path, {"problem": "p", "solution": "2 + 3 = 5"}), "--split", "marker", "--marker", "#"
        )
        == 0
    )
    assert "'#'" in capfd.readouterr().err


def test_shown_for_people(tmp_path, capfd, monkeypatch):
    path = file_of(tmp_path, *({**WRONG, "id": f"number {i}"} for i in range(9)))
    assert grade(path, "--show", "2") == 0
    out, err = capfd.readouterr()
    assert "number 1" in out and "number 2" not in out
    assert "first error: step 2" in out and "5 + 5 = 11" in out and "min 0.100" in out
    assert "9 solutions" in err
    # With a file for the rows, both.
    assert grade(path, "--show", "1", "--out", tmp_path / "out") == 0
    assert "number 0" in capfd.readouterr().out
    assert len(rows_of((tmp_path / "out").read_text())) == 9
    # A terminal shows five without being asked, and takes rows when told 0.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert grade(path) == 0
    assert ("number 4" in (out := capfd.readouterr().out)) and "number 5" not in out
    assert grade(path, "--show", "0") == 0
    assert len(rows_of(capfd.readouterr().out)) == 9


def test_a_report(tmp_path):
    path = file_of(tmp_path, GOOD, WRONG)
    assert grade(path, "--report", tmp_path / "r.html", "--out", tmp_path / "out.jsonl") == 0
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "5 + 5 = 11" in html and "in.jsonl" in html
    assert rows_of((tmp_path / "out.jsonl").read_text()) == GRADED


# --- bad input: (the file's bytes, what the message holds)

ROW = json.dumps(GOOD).encode() + b"\n"
BAD_FILES = [
    (b"", ["in.jsonl: the file is empty"]),
    (b"\n\n", ["in.jsonl: there are no rows"]),
    (ROW + ROW[:30], ["in.jsonl:2: not JSON", "column"]),
    (gzip.compress(ROW, mtime=0), ["in.jsonl:1: not UTF-8", ".gz"]),
    (ROW + b'{"problem": "p", "problem": "q", "steps": ["a"]}\n', ["in.jsonl:2, field 'problem'", "twice"]),
    (
        ROW + b'{"problem": "p", "steps": [3]}\n',
        ["in.jsonl:2, field 'steps'", "a number"],
    ),
    (ROW + b'{"problem": true, "steps": ["a"]}\n', ["in.jsonl:2, field 'problem'", "found true"]),
    (ROW + b'{"problem": "p", "step": ["a"]}\n', ["in.jsonl:2", "steps"]),
    (ROW + b'{"problem": "", "steps": ["a"]}\n', ["in.jsonl:2, field 'problem'", "empty string"]),
    (ROW + b'{"problem": "p", "steps": []}\n', ["in.jsonl:2, field 'steps'", "at least one"]),
    (
        ROW + b'{"problem": "p", "steps": ["1 + 1 = 2", " "]}\n',
        ["in.jsonl:2, field 'steps'", "step 1 (0-based"],
    ),
    (ROW + b'{"problem": "p", "solution": " "}\n', ["in.jsonl:2, field 'solution'", "white space"]),
    (ROW + json.dumps(MARKED).encode(), ["in.jsonl:2, field 'steps'", "the marker stands in the text"]),
    (ROW + json.dumps(LONG).encode(), ["in.jsonl:2 (p): 5000 tokens"]),
]


@pytest.mark.parametrize(
    ("content", "parts"), BAD_FILES, ids=[str(content[-30:]) for content, _ in BAD_FILES]
)
def test_bad_files(tmp_path, capfd, content, parts):
    (tmp_path / "in.jsonl").write_bytes(content)
    assert grade(tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl", "--report", tmp_path / "r.html") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"error: {tmp_path}")
    assert "Traceback" not in err
    for part in parts:
        assert part in err
    assert not (tmp_path / "out.jsonl").exists() and not (tmp_path / "r.html").exists()
    # What stays, if anything, is the part; and the message says so.
    assert ("out.jsonl.part" in left_in(tmp_path)) == ("1 row is kept in" in err)


@pytest.mark.parametrize("content", [content for content, _ in BAD_FILES if content.startswith(ROW)])
def test_one_bad_row_does_not_cost_the_others(tmp_path, capfd, content):
    (tmp_path / "in.jsonl").write_bytes(content.rstrip(b"\n") + b"\n" + json.dumps(WRONG).encode())
    assert grade(tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl", "--keep-going") == 0
    assert rows_of((tmp_path / "out.jsonl").read_text()) == GRADED
    err = capfd.readouterr().err
    assert "left out 1 row:\n  " in err
    assert f"{tmp_path}/in.jsonl:2" in err
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert (manifest["rows"], manifest["left_out"]) == (2, 1)


def test_nothing_could_be_graded(tmp_path, capfd):
    path = file_of(tmp_path, {"problem": "p", "steps": []}, LONG, {"problem": ""})
    assert grade(path, "--out", tmp_path / "out", "--keep-going") == 2
    err = capfd.readouterr().err
    assert "left out 3 rows" in err
    assert all(f"in.jsonl:{line}" in err for line in (1, 2, 3))
    assert left_in(tmp_path) == ["in.jsonl"]


def test_a_bad_first_row_is_refused_before_the_model_is_loaded(tmp_path, capfd):
    assert grade(file_of(tmp_path, {"problem": 1}), prm="never") == 2
    assert grade(tmp_path / "nothing.jsonl", prm="never") == 2
    assert "there is no such file" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--aggregate", "prodcut"], "Did you mean 'product'"),
        (["--split", "lines"], "Did you mean 'line'"),
        (["--split", "marker"], "needs a marker"),
        (["--out", "nowhere/out"], "there is no folder"),
        (["--report", "nowhere/r.html"], "there is no folder"),
        (["--out", "."], "it is a folder"),
        (["--out", "in.jsonl"], "--out in.jsonl"),
        (["--report", "in.jsonl"], "--report in.jsonl"),
        (["--out", "x", "--report", "./x"], "--report ./x"),
        (["--report", "-"], "--report -"),
        (["--show", "-1"], "--show -1"),
        (["--show", "1", "--out", "-"], "--out -"),
        (["--token-budget", "0"], "--token-budget 0"),
        (["--threshold", "nan"], "--threshold nan"),
        (["--threshold", "high"], "--threshold"),
        (["--dtype", "float16"], "bfloat16"),
        (["--neutral", "maybe"], "positive"),
        (["--device", "gpu"], "--device gpu"),
        (["--samples", "0"], "--samples 0"),
        (["--kep-going"], "Did you mean --keep-going?"),
        (["other.jsonl"], "other.jsonl"),
    ],
)
def test_bad_settings_are_refused_before_the_model_is_loaded(tmp_path, monkeypatch, capfd, words, found):
    file_of(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    assert grade("in.jsonl", *words, prm="never") == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("error: ") and found in err and "Traceback" not in err
    assert left_in(tmp_path) == ["in.jsonl"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--aggregate", "product"], "'margin'"),
        (["--threshold", "3"], "the threshold 3.0 is no margin"),
    ],
)
def test_settings_that_do_not_fit_the_model(tmp_path, capfd, words, found):
    assert grade(file_of(tmp_path, GOOD), "--out", tmp_path / "out", *words, prm="margins") == 2
    assert found in capfd.readouterr().err
    assert left_in(tmp_path) == ["in.jsonl"]


def test_a_factory_that_raises_is_named_and_shows_where_when_asked(tmp_path, capfd, monkeypatch):
    file = file_of(tmp_path, GOOD)
    assert grade(file, prm="breaks") == 2
    err = capfd.readouterr().err
    assert (
        "KeyError: 'weights'" in err
        and re.search(r"scripted_prms\.py:\d+", err)
        and "STEPMARK_DEBUG=1" in err
    )
    (tmp_path / "spoilt_prms.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["grade", str(file), "--prm", "spoilt_prms:made"]) == 2
    assert "spoilt_prms:made: importing it failed: ZeroDivisionError: " in capfd.readouterr().err
    monkeypatch.setenv("STEPMARK_DEBUG", "1")
    assert grade(file, prm="breaks") == 2
    err = capfd.readouterr().err
    assert "Traceback" in err and 'ScriptedPRM({}["weights"])' in err


def test_an_infinite_score_is_refused_with_its_row(tmp_path, capfd):
    assert grade(file_of(tmp_path, GOOD), "--aggregate", "sum-logit", prm="certain") == 2
    assert "in.jsonl:1: the sum-logit is inf" in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_a_gzip_that_breaks_off_midway(tmp_path, capfd):
    rows = b"".join(json.dumps({**GOOD, "id": os.urandom(40).hex()}).encode() + b"\n" for _ in range(300))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(rows)[:-2000])
    # A file is read through once for its fingerprint, so it is found out before the model is loaded; a pipe is not.
    assert grade(tmp_path / "in.jsonl.gz", "--out", tmp_path / "out", "--keep-going", prm="never") == 2
    assert "damaged or cut off" in capfd.readouterr().err
    os.mkfifo(tmp_path / "pipe.gz")
    writer = threading.Thread(
        target=lambda: (tmp_path / "pipe.gz").write_bytes((tmp_path / "in.jsonl.gz").read_bytes())
    )
    writer.start()
    assert grade(tmp_path / "pipe.gz", "--out", tmp_path / "out") == 2
    writer.join()
    err = capfd.readouterr().err
    assert "damaged or cut off" in err
    assert "--keep-going" not in err  # it would not help
    assert left_in(tmp_path) == ["in.jsonl.gz", "out.part", "pipe.gz"]  # for a pipe that is fed again


def test_unknown_words(capfd):
    for words, found in (
        ([], None),
        (["grad"], "Did you mean 'grade'? Known: "),
        (["grade"], "FILE"),
        (["grade", "--keep-goin", "x"], "There is no option --keep-goin"),
        (["--grade"], "there is no option '--grade'. Did you mean 'grade'?"),
    ):
        assert main(words) == (0 if found is None else 2)
        err = capfd.readouterr().err
        assert found is None or (err.startswith("error: ") and found in err and "Traceback" not in err)


# --- stopping and going on


def test_an_error_keeps_what_was_graded_and_keep_going_continues(tmp_path, capfd):
    out = tmp_path / "out.jsonl"
    path = file_of(tmp_path, GOOD, MARKED, WRONG)
    assert grade(path, "--out", out) == 2
    err = capfd.readouterr().err
    assert f"1 row is kept in {out}.part" in err and "--keep-going" in err
    assert grade(path, "--out", out, "--keep-going", "--report", tmp_path / "r.html", "--show", "1") == 0
    printed, err = capfd.readouterr()
    assert "continued after the 1 row" in err
    assert "2 solutions, 5 steps: 1 with an error" in err  # the summary is of the whole file
    assert "good" in printed and "5 + 5 = 10" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert rows_of(out.read_text()) == GRADED


def test_other_settings_do_not_continue(tmp_path, capfd):
    out = tmp_path / "out.jsonl"
    path = file_of(tmp_path, GOOD, MARKED)
    assert grade(path, "--out", out) == 2
    capfd.readouterr()
    assert grade(path, "--out", out, "--aggregate", "mean", prm="never") == 2
    err = capfd.readouterr().err
    assert 'settings.aggregate was null and is now "mean"' in err and f"Delete {out}.part" in err
    assert (
        grade(file_of(tmp_path, GOOD, WRONG), "--out", out) == 0
    )  # only the input was changed: it is corrected
    assert "the 1 row of an interrupted run" in capfd.readouterr().err


def test_killed_and_run_again(tmp_path):
    """What an interrupted run leaves is continued: nothing lost, nothing asked twice, the same bytes."""
    rows = [
        {"problem": f"problem {i}", "steps": [f"{i} + {j} = {i + j + (j == 3)}" for j in range(1, 2 + i % 4)]}
        for i in range(60)
    ]
    rows.insert(10, {"problem": "bad", "steps": []})
    rows.insert(20, {"problem": "refused by the model", "steps": ["<marker>"]})
    path = file_of(tmp_path, *rows)
    asked = {name: tmp_path / f"{name}.log" for name in ("killed", "whole")}

    def start(name, pause="0"):
        words = command(
            "grade", path, "--prm", "scripted_prms:slow", "--out", tmp_path / name, "--keep-going"
        )
        environment = ENVIRONMENT | {"ASKED": str(asked[name]), "PAUSE": pause}
        return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)

    def asked_for(name):
        return asked[name].read_text().splitlines() if asked[name].exists() else []

    kills = 0
    for goal in (20, 70):
        process = start("killed", pause="0.05")
        while len(asked_for("killed")) < goal and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert not (tmp_path / "killed").exists()
    assert kills == 2
    process = start("killed")
    err = process.communicate()[1]
    assert process.returncode == 0, err
    assert "left out 2 rows" in err and "continued after" in err

    whole = start("whole")
    whole.communicate()
    assert whole.returncode == 0
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert len(rows_of((tmp_path / "killed").read_text())) == 60
    # A row that was being graded when the kill came is asked for again; one that was written never is.
    assert set(asked_for("killed")) == set(asked_for("whole"))
    finished_twice = [line for line in set(asked_for("killed")) if asked_for("killed").count(line) > 1]
    assert len({json.loads(line)[0] for line in finished_twice}) <= kills
    manifests = [json.loads((tmp_path / f"{name}.manifest.json").read_text()) for name in ("killed", "whole")]
    assert manifests[0] == manifests[1]


def test_interrupting_says_how_to_go_on(tmp_path):
    path = file_of(tmp_path, *({**GOOD, "problem": f"p {i}"} for i in range(500)))
    log = tmp_path / "log"
    process = subprocess.Popen(
        command("grade", path, "--prm", "scripted_prms:slow", "--out", tmp_path / "out"),
        env=ENVIRONMENT | {"ASKED": str(log)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not log.exists() or log.read_text().count("\n") < 10:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    err = process.communicate()[1]
    assert process.returncode == 130
    assert (
        "interrupted: " in err
        and f"rows are kept in {tmp_path / 'out'}.part; the same command continues" in err
    )
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    path = file_of(tmp_path, *({**GOOD, "problem": f"p {i} " + "x" * 2000} for i in range(2000)))
    process = subprocess.Popen(
        command("grade", path, "--prm", "scripted_prms:arithmetic"),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert json.loads(process.stdout.readline())["prm"] == "sums"
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141
    assert err == b""


# --- quick and light


def loaded_by(code):
    code += "; import sys; print('\\n'.join(sys.modules), file=sys.stderr)"  # help goes to standard output
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_stepmark_is_light():
    assert loaded_by("import stepmark").isdisjoint(
        {"torch", "transformers", "pydantic", "rich", "numpy", "cyclopts"}
    )


@pytest.mark.parametrize(
    "words",
    [["--help"], ["grade", "--help"], ["--version"], ["families", "--help"], ["search", "beam", "--help"]],
)
def test_help_is_light(words):
    loaded = loaded_by(f"from stepmark.cli import main; main({words})")
    assert loaded.isdisjoint({"torch", "transformers"})
    if words[0] not in (
        "grade",
        "search",
    ):  # whose settings are checked by pydantic, whose modules read scores
        assert loaded.isdisjoint({"pydantic", "numpy", "httpx"})


def test_help_lists_every_command(capfd):
    assert main(["--help"]) == 0
    out = capfd.readouterr().out
    for name in COMMANDS:
        assert f" {name} " in out
    assert main(["grade", "--help"]) == 0
    out = capfd.readouterr().out
    for option in (
        "--prm",
        "--family",
        "--aggregate",
        "--neutral",
        "--threshold",
        "--split",
        "--out",
        "--report",
    ):
        assert option in out


def test_families_are_listed(capfd):
    from stepmark.models.families import FAMILIES
    from stepmark.models.generative import GENERATIVE

    assert main(["families"]) == 0
    lines = capfd.readouterr().out.partition("\nFamilies\n\n")[2].splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == [*FAMILIES, *GENERATIVE]
    assert len(FAMILIES) > 5
    assert "math-shepherd: probability, min" in lines


def test_version(capfd):
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.strip() == __version__


# --- progress


def test_no_bars_of_libraries_where_standard_error_is_no_terminal():
    code = "from stepmark.cli import main; main(['--version']); import tqdm; list(tqdm.tqdm(range(3)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stderr == b""


def test_progress_line(capfd):
    now = [0.0]
    progress = Progress(400, tokens=lambda: int(500 * now[0]), clock=lambda: now[0])
    progress.advance(100, fresh=False)
    assert progress.line() == "graded 100 of 400 solutions"
    with progress:
        for _ in range(20):
            now[0] += 2.0
            progress.advance()
    # 20 in 40 s is 0.5/s, and 280 are left. The rows of an earlier run count as done, not as fast.
    assert progress.line() == "graded 120 of 400 solutions, 0.5 solutions/s, 500 tokens/s, 9:20 left"
    assert capfd.readouterr().err == ""  # not yet a tenth of the 300
    with progress:
        for _ in range(280):
            now[0] += 2.0
            progress.advance()
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(" solutions")[0] for line in lines] == [
        f"graded {done} of 400" for done in range(130, 401, 30)
    ]
    assert lines[-1] == "graded 400 of 400 solutions, 0.5 solutions/s, 500 tokens/s, 0:00 left"
    unknown = Progress(None, tokens=lambda: 0, clock=lambda: now[0])
    now[0] += 4000
    unknown.advance()
    assert "left" not in unknown.line() and "of" not in unknown.line()


def test_no_time_left_is_shown_before_it_can_be_known(capfd):
    """Rows that were computed together come together: the first of them says nothing of the rate."""
    now = [0.0]
    progress = Progress(400, tokens=lambda: 0, clock=lambda: now[0])
    shown: dict[int, float | None] = {}
    with progress:
        for batch in range(20):
            now[0] += 30.0  # the first takes as long as the others
            for row in range(20):
                now[0] += 0.001
                progress.advance()
                shown[20 * batch + row + 1] = progress.seconds_left
    assert all(shown[done] is None for done in range(1, 21))  # one batch
    for done in range(21, 401):
        # The truth: 30 s for each batch of 20 that is not begun.
        truth = 30.02 * ((400 - done) / 20)
        assert shown[done] == pytest.approx(truth, rel=0.01), done
    assert len(capfd.readouterr().err.splitlines()) == 10


def test_no_time_left_is_shown_before_as_many_are_done_twice_as_are_worked_on_at_once():
    now = [0.0]
    progress = Progress(1000, tokens=lambda: 0, together=64, clock=lambda: now[0])
    for done in range(1, 1001):
        now[0] += 1.0
        progress.advance()
        assert (progress.seconds_left is None) == (done < 128), done
    few = Progress(60, tokens=lambda: 0, together=64, clock=lambda: now[0])
    for done in range(1, 61):
        now[0] += 1.0
        few.advance()
        assert (few.seconds_left is None) == (done < 30), done


def test_a_run_of_unknown_length_is_shown_ever_more_rarely(capfd):
    now = [0.0]
    progress = Progress(None, tokens=lambda: 0, clock=lambda: now[0])
    for _ in range(1000):
        now[0] += 1.0
        progress.advance()
    # After 10 s, then 20 s, 40 s, … later.
    counts = [line.split()[1] for line in capfd.readouterr().err.splitlines()]
    assert counts == ["10", "30", "70", "150", "310", "630"]


def test_it_runs_from_a_source_tree_that_is_not_installed(tmp_path):
    """As `recipes/gpu.sh` has it where nothing can be installed: nothing asks for the package's own metadata."""
    code = """
import importlib.metadata as m, sys
found = m.version
def version(name):
    if name == "stepmark":
        raise m.PackageNotFoundError(name)
    return found(name)
m.version = version
from stepmark.cli import main
sys.exit(main(["label", "exact", sys.argv[1], "--out", sys.argv[2]]))
"""
    worlds, out = tmp_path / "right.jsonl", tmp_path / "labelled.jsonl"
    words = [
        "problems",
        "arithmetic",
        "--count",
        "2",
        "--seed",
        "1",
        "--out",
        str(tmp_path / "problems.jsonl"),
    ]
    assert main([*words, "--solutions", str(worlds)]) == 0
    subprocess.run([sys.executable, "-c", code, str(worlds), str(out)], check=True)
    assert out.read_text()
