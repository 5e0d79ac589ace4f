"""Runs that are killed, begun twice, or continued with another model: nothing is mixed, paid twice, lost or left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stepmark.cli import main
from stepmark.models.load import load_prm
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.problems.arithmetic_world import wrong_solutions
from stepmark.store import PartFile, held

TESTS = Path(__file__).parent
RUN = "import sys; from stepmark.cli import main; sys.exit(main(sys.argv[1:]))"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")


def environment(**more: str) -> dict[str, str]:
    # A fixed hash seed: the logs name requests by their hash.
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **more}


def started(*words: object, code: str = RUN, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(
        command, env=environment(**more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def killed(process: subprocess.Popen[str], when: Callable[[], bool]) -> None:
    """Kill a process at a moment; it must not have come to its end before."""
    with process:
        while not when():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def file_of(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def solutions(path: Path, count: int) -> Path:
    return file_of(
        path, [{"problem": f"problem {n}", "steps": ["2 + 3 = 5", "2 + 3 = 6"]} for n in range(count)]
    )


def problems(path: Path, count: int) -> Path:
    rows = [
        {"id": one.id, "problem": one.text, "answer": str(one.answer)}
        for one in arithmetic_problems(count, seed=3, steps=(3, 5))
    ]
    return file_of(path, rows)


def wrong(path: Path, count: int) -> Path:
    rows = [
        {
            "id": case.solution.id,
            "problem": case.solution.problem.text,
            "steps": list(case.solution.texts),
            "answer": case.solution.problem.answer,
        }
        for case in wrong_solutions(count, seed=5, steps=(4, 8))
    ]
    return file_of(path, rows)


# --- another model under one name

CPU = {"dtype": "float32", "device": "cpu"}


class Weights:
    """A checkpoint whose weights can be replaced in its folder by others of equal size, and put back."""

    def __init__(self, folder: Path, of: Path) -> None:
        self.file = folder / "model.safetensors"
        shutil.copytree(of, folder)
        self.first = self.file.read_bytes()

    def replace(self) -> None:
        content = bytearray(self.first)
        content[-2] ^= 1
        self.put(bytes(content))

    def put(self, content: bytes) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(self.file)


def test_a_killed_grade_is_not_continued_by_other_weights(zoo, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    prm = Weights(tmp_path / "m", zoo["token-classification"].folder)
    orm = Weights(tmp_path / "o", zoo["orm"].folder)
    solutions(tmp_path / "in.jsonl", 500)
    words = ["grade", "in.jsonl", "--prm", "m", "--orm", "o", "--dtype", "float32", "--device", "cpu"]
    words += ["--token-budget", "64", "--out"]
    part = tmp_path / "out.part"
    killed(started(*words, "out"), lambda: lines(part) > 32)
    held, rows = part.read_bytes(), lines(part) - 1
    for weights, which in ((prm, "prm"), (orm, "orm")):
        weights.replace()
        assert main([*words, "out"]) == 2
        said = capfd.readouterr().err
        name = "m" if which == "prm" else "o"
        assert (
            f'holds {rows} rows of an interrupted run that another model made: models.{which} was "{name}#'
            in said
        )
        assert f'and is now "{name}#' in said and "Delete out.part to start again" in said
        assert (part.read_bytes(), Path("out").exists()) == (held, False)
        weights.put(weights.first)
    assert main([*words, "out"]) == 0
    assert f"continued after the {rows:,} rows" in capfd.readouterr().err
    models = json.loads(Path("out.manifest.json").read_text())["models"]
    assert models == {
        "prm": load_prm("m", **CPU).identity,
        "orm": load_prm("o", outcome=True, **CPU).identity,
    }
    here = load_prm("m", **CPU)
    for row in [json.loads(line) for line in Path("out").read_text().splitlines()][::50]:
        assert row["scores"] == pytest.approx(here.score(row["problem"], steps=row["steps"]), abs=1e-5)


def test_scores_of_before_a_training_are_not_reported_as_those_of_after(zoo, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    weights = Weights(tmp_path / "m", zoo["token-classification"].folder)
    rows = [
        {"id": f"a-{n}", "problem": "p", "steps": ["x", "y"], "generator": "g", "final_answer_correct": True}
        | {"label": n - 1}
        for n in range(3)
    ]
    file_of(tmp_path / "data.jsonl", rows)
    words = ["evaluate", "processbench", "--data", "data.jsonl", "--resamples", "100"]
    asked = [*words, "--prm", "m", "--dtype", "float32", "--device", "cpu", "--out", "ev"]
    assert main(asked) == 0
    result = json.loads(Path("ev/result.json").read_text())
    identity = result["settings"]["prm_identity"]
    assert identity.startswith("m#")
    capfd.readouterr()
    assert main(asked) == 0  # nothing has changed: nothing is graded
    assert f"has the scores of an earlier run with these settings, by {identity}" in capfd.readouterr().err
    weights.replace()
    assert main(asked) == 2
    said = capfd.readouterr().err
    assert f'models.prm was "{identity}" and is now "m#' in said
    assert "Choose another --out, delete it, or measure it as it is with --scores" in said
    assert main([*words, "--scores", "ev/scores.jsonl", "--out", "as-it-is"]) == 0
    assert json.loads(Path("as-it-is/result.json").read_text())["settings"]["prm_identity"] == identity
    Path("ev/scores.jsonl").unlink()
    assert main(asked) == 0
    again = json.loads(Path("ev/result.json").read_text())
    assert again["settings"]["prm_identity"] not in (None, identity)


def test_candidates_of_a_policy_that_was_trained_further_are_not_used(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    from stepmark.models.places import find_checkpoint

    weights = Weights(tmp_path / "w", find_checkpoint("stepmark:arithmetic"))
    problems(tmp_path / "p.jsonl", 2)
    words = ["evaluate", "best-of-n", "--policy", "w", "--data", "p.jsonl", "--n", "1", "--max-tokens", "4"]
    words += ["--prompt", "text", "--prm", "scripted_prms:arithmetic", "--device", "cpu", "--out", "ev"]
    main(words)
    candidates = Path("ev/candidates.jsonl").read_bytes()
    capfd.readouterr()
    weights.replace()
    assert main(words) == 2
    said = capfd.readouterr().err
    assert (
        'candidates.jsonl was made with other settings: models.policy was "w#' in said
        and 'and is now "w#' in said
    )
    assert Path("ev/candidates.jsonl").read_bytes() == candidates


SLOW = ["--policy", "label_policies:slow", "--verifier", "number"]
SEARCHING = ["--policy", "search_models:policy", "--prm", "search_models:truth", "--verifier", "number"]
LONG = {
    "sample": lambda folder: ["sample", problems(folder / "in.jsonl", 30), *SLOW, "--n", "2", "--in-flight", "2"],
    "label": lambda folder: ["label", "binary", wrong(folder / "in.jsonl", 10), *SLOW, "--k", "4", "--in-flight", "1"],
    "search": lambda folder: ["search", "best-of-n", problems(folder / "in.jsonl", 20), *SEARCHING, "--n", "2", "--in-flight", "1"],
}  # fmt: skip
"""Commands that ask a policy for some seconds, where $PAUSE says so."""


@pytest.mark.parametrize("command", list(LONG))
def test_a_killed_run_is_not_continued_by_another_model(tmp_path, monkeypatch, capfd, command):
    monkeypatch.chdir(tmp_path)
    words = [*map(str, LONG[command](tmp_path)), "--out", "out"]
    log = {"ASKED": str(tmp_path / "asked")}
    models = {"policy": "w#1"} | ({"prm": "m#1"} if command == "search" else {})
    given = {which.upper(): identity for which, identity in models.items()}
    part = tmp_path / "out.part"
    killed(started(*words, **log, **given, PAUSE="0.03"), lambda: lines(part) > 1)
    held = part.read_bytes()
    for name, value in {**log, **given, "PAUSE": "0"}.items():
        monkeypatch.setenv(name, value)
    for which, was in models.items():
        monkeypatch.setenv(which.upper(), "other")
        assert main(words) == 2
        assert f'models.{which} was "{was}" and is now "other"' in capfd.readouterr().err
        assert (part.read_bytes(), Path("out").exists()) == (held, False)
        monkeypatch.setenv(which.upper(), was)
    assert main(words) == 0
    assert json.loads(Path("out.manifest.json").read_text())["models"] == models
    assert names(tmp_path) == ["asked", "in.jsonl", "out", "out.manifest.json", "out.replies.sqlite"]


# --- an output is finished when all of its files are


DIES_WHILE_IT_DRAWS = """
import os, signal, sys
from stepmark.scoring import report
from stepmark.cli import main
chunks = report.page_html

def page_html(*given):
    yield next(iter(chunks(*given)))
    os.kill(os.getpid(), signal.SIGKILL)

report.page_html = page_html
main(sys.argv[1:])
"""


def test_killed_while_the_report_is_drawn_nothing_is_graded_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    solutions(tmp_path / "in.jsonl", 20)
    words = ["grade", "in.jsonl", "--prm", "scripted_prms:slow", "--out", "out", "--report", "page.html"]
    more = {"ASKED": str(tmp_path / "asked"), "PAUSE": "0"}
    with started(*words, code=DIES_WHILE_IT_DRAWS, **more) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not Path("out").exists() and not Path("page.html").exists()
    assert lines(tmp_path / "asked") == 40
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 0
    assert lines(tmp_path / "asked") == 40
    assert names(tmp_path) == ["asked", "in.jsonl", "out", "out.manifest.json", "page.html"]
    assert "problem 19" in Path("page.html").read_text()
    assert main([*words[:4], "--out", "whole", "--report", "whole.html"]) == 0
    assert Path("out").read_bytes() == Path("whole").read_bytes()


# --- two runs with one output


def test_a_second_sample_into_one_output_asks_for_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = [*map(str, LONG["sample"](tmp_path)), "--out", "out"]
    log = tmp_path / "asked"
    with started(*words, ASKED=str(log), PAUSE="0.05") as first:
        while lines(log) < 3:
            assert first.poll() is None, first.communicate()[1]
            time.sleep(0.005)
        monkeypatch.setenv("ASKED", str(tmp_path / "asked by the second"))
        assert main(words) == 2
        assert (
            "another run is writing out.part; wait for it, or choose another --out" in capfd.readouterr().err
        )
        first.communicate()
    assert first.returncode == 0
    assert lines(tmp_path / "asked by the second") == 0
    assert set(Counter(log.read_text().splitlines()).values()) == {1}
    assert lines(log) == 30


NEVER = ["--prm", "scripted_prms:never"]
DATA = {
    "id": "a-0",
    "problem": "p",
    "steps": ["x"],
    "generator": "g",
    "final_answer_correct": True,
    "label": 0,
}


@pytest.mark.parametrize(
    "words",
    [
        ["grade", "in.jsonl", *NEVER, "--out", "out"],
        ["sample", "in.jsonl", "--policy", "scripted_prms:never", "--out", "out"],
        ["label", "rollout", "in.jsonl", "--policy", "scripted_prms:never", "--out", "out"],
        ["label", "formulas", "in.jsonl", "--out", "out"],
        ["search", "greedy", "in.jsonl", "--policy", "scripted_prms:never", "--out", "out"],
        ["evaluate", "processbench", "--data", "in.jsonl", *NEVER, "--out", "."],
        [
            "evaluate",
            "search",
            "--data",
            "in.jsonl",
            *NEVER,
            "--policy",
            "scripted_prms:never",
            "--out",
            ".",
            "--budgets",
            "9",
        ],
    ],
    ids=lambda words: " ".join(word for word in words[:2] if "." not in word),
)
def test_a_second_run_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch, capfd, words):
    monkeypatch.chdir(tmp_path)
    file_of(tmp_path / "in.jsonl", [DATA if "processbench" in words else DATA | {"answer": "4"}])
    with PartFile("out", {}), held(tmp_path):
        assert main(words) == 2
    assert "another run is writing" in capfd.readouterr().err


# --- what is left behind


@pytest.mark.parametrize("command", list(LONG))
def test_kills_leave_a_part_and_replies_and_no_draft(tmp_path, command):
    leave_nothing(tmp_path, command, kills=3)


@pytest.mark.slow
def test_many_kills_leave_a_part_and_replies_and_no_draft(tmp_path):
    leave_nothing(tmp_path, "sample", kills=30)


def leave_nothing(folder: Path, command: str, *, kills: int) -> None:
    """Kill a command at random moments, its last ones among them; then let it end, and compare with an undisturbed run."""
    words = LONG[command](folder)
    log, out = folder / "asked", folder / "out"
    with started(*words, "--out", folder / "whole", ASKED=str(folder / "whole.log"), PAUSE="0") as process:
        process.communicate()
    whole = (folder / "whole").read_bytes()
    always = {"in.jsonl", "asked", "whole.log", "whole", "whole.manifest.json", "whole.replies.sqlite"}
    store = {"out.replies.sqlite", "out.replies.sqlite-wal", "out.replies.sqlite-shm"}
    unfinished, finished = {"out.part"}, {"out", "out.manifest.json"}
    dice = random.Random(kills)
    since = 0
    for _ in range(kills):
        goal = min(30, lines(log) + dice.randint(5, 15))
        with started(*words, "--out", out, ASKED=str(log), PAUSE="0.02") as process:
            while lines(log) < goal and process.poll() is None:
                time.sleep(0.002)
            time.sleep(dice.uniform(0, 0.06))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        since += process.returncode == -signal.SIGKILL
        drafts = {name for name in names(folder) if name.endswith(".tmp")}
        assert len(drafts) <= 1  # of the file that is made at the very end; the next run removes it
        assert set(names(folder)) - drafts <= always | store | unfinished | finished
        if out.exists():
            assert out.read_bytes() == whole
            for name in (store | unfinished | finished | {"asked"}) & set(names(folder)):
                (folder / name).unlink()
            since = 0
    with started(*words, "--out", out, ASKED=str(log), PAUSE="0") as process:
        process.communicate()
    assert out.read_bytes() == whole
    assert set(names(folder)) == always | finished | {"out.replies.sqlite"}
    asked = Counter(log.read_text().splitlines())
    assert set(asked) == set((folder / "whole.log").read_text().splitlines())
    # What was written and not yet recorded when the kill came may be asked again; one a kill.
    assert sum(asked.values()) - len(asked) <= since


def test_a_text_that_was_altered_among_the_replies_is_noticed(tmp_path, monkeypatch, capfd):
    import sqlite3

    monkeypatch.chdir(tmp_path)
    words = [*map(str, LONG["sample"](tmp_path)), "--out", "out"]
    for name, value in {"ASKED": str(tmp_path / "asked"), "PAUSE": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 0
    whole = Path("out").read_bytes()
    with closing(sqlite3.connect("out.replies.sqlite")) as db, db:
        [(key, reply)] = db.execute(
            "SELECT key, reply FROM replies WHERE reply LIKE '%text%' LIMIT 1"
        ).fetchall()
        at = reply.index('"text": "') + len('"text": "')
        db.execute("UPDATE replies SET reply = ? WHERE key = ?", (f"{reply[:at]}X{reply[at + 1 :]}", key))
    Path("out").unlink()
    assert main(words) == 2
    said = capfd.readouterr().err
    assert f"out.replies.sqlite: the reply under {key} was changed after it was recorded" in said
    with closing(sqlite3.connect("out.replies.sqlite")) as db, db:
        db.execute("DELETE FROM replies WHERE key = ?", (key,))
    assert main(words) == 0
    assert Path("out").read_bytes() == whole
