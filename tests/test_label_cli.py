"""`stepmark label`: labels against the arithmetic world's truth, trees that solutions share, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepmark.backends import Completions
from stepmark.cli import main
from stepmark.data.labelled import read_labelled
from stepmark.problems.arithmetic_world import ArithmeticPolicy, wrong_solutions

ARITHMETIC = "stepmark.problems.arithmetic_world:ArithmeticPolicy"
TESTS = Path(__file__).parent


def world(tmp_path, count=6, steps=(4, 8)):
    cases = list(wrong_solutions(count, seed=5, steps=steps))
    file = tmp_path / "wrong.jsonl"
    rows = [
        {
            "id": case.solution.id,
            "problem": case.solution.problem.text,
            "steps": list(case.solution.texts),
            "answer": case.solution.problem.answer,
        }
        for case in cases
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file, cases


def run(*words):
    return main(["label", *map(str, words)])


def command(file, out, *, policy="label_policies:slow"):
    code = "import sys; from stepmark.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["label", "tree", file, "--policy", policy, "--verifier", "number", "--k", "4", "--searches", "3"]
    words += ["--out", out]
    return [sys.executable, "-c", code, *map(str, words)]


def environment(tmp_path):
    # A fixed hash seed: the log names requests by their hash.
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "ASKED": str(tmp_path / "asked"), "PYTHONHASHSEED": "0"}


def test_a_dead_server_loses_nothing_and_labels_nothing_wrong(tmp_path):
    file, _ = several(tmp_path)
    out = tmp_path / "labels.jsonl"
    env = environment(tmp_path)
    died = subprocess.run(
        command(file, out, policy="label_policies:dying"),
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert died.returncode == 1
    assert "the server went away" in died.stderr
    assert not out.exists()
    before = len((tmp_path / "asked").read_text().splitlines())
    subprocess.run(command(file, out), env=env, check=True, capture_output=True)
    undisturbed = tmp_path / "undisturbed.jsonl"
    asked = len((tmp_path / "asked").read_text().splitlines())
    (tmp_path / "asked").unlink()
    subprocess.run(command(file, undisturbed), env=env, check=True, capture_output=True)
    assert out.read_bytes() == undisturbed.read_bytes()
    assert before > 8
    assert asked == len((tmp_path / "asked").read_text().splitlines())


def several(tmp_path, problems=2, each=3):
    """Wrong solutions of few problems, mixed, and one that is broken."""
    policy = ArithmeticPolicy()
    rows = []
    for case in wrong_solutions(problems, seed=5, steps=(4, 6)):
        problem = case.solution.problem
        rows.append({"id": case.solution.id, "problem": problem.text, "steps": list(case.solution.texts)})
        rows[-1]["answer"] = problem.answer
        (samples,) = policy.complete_many(
            [Completions(prompt=problem.text + "\n", n=40, temperature=1.5, seed=2)]
        )
        texts = dict.fromkeys(sample.text.strip() for sample in samples)
        wrong = [text for text in texts if "The answer is" in text and f"is {problem.answer}." not in text]
        rows += [
            {
                "id": f"{case.solution.id}-{n}",
                "problem": problem.text,
                "steps": text.split("\n"),
                "answer": problem.answer,
            }
            for n, text in enumerate(wrong[: each - 1])
        ]
    rows = [row for number in range(each) for row in rows[number::each]]  # problems take turns
    file = tmp_path / "several.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file, rows


def test_solutions_of_one_problem_share_a_tree(tmp_path, capsys):
    file, rows = several(tmp_path)
    assert [row["problem"] == rows[0]["problem"] for row in rows] == [True, False] * 3
    words = ["--policy", ARITHMETIC, "--verifier", "number"]
    out = tmp_path / "labels.jsonl"
    assert run("tree", file, *words, "--searches", "6", "--out", out) == 0
    found = list(read_labelled(out))
    given = [row for row in found if "first_error" in row.meta]
    # A problem's solutions together, in the order in which the problems are met.
    assert [row.solution.id for row in given] == [row["id"] for row in rows[::2] + rows[1::2]]
    for tree in (given[:3], given[3:]):
        assert len({row.labelled.root for row in tree}) == 1
        assert tree[0].meta["cost"]["rollouts"] > 0
        assert "cost_at" not in tree[0].meta
        assert [row.meta["cost_at"] for row in tree[1:]] == [tree[0].solution.id] * 2
        assert all(row.meta["cost"]["rollouts"] == 0 for row in tree[1:])
    # No prefix is rolled out for two of them: one tree costs less than three.
    manifest = json.loads((tmp_path / "labels.jsonl.manifest.json").read_text())
    assert manifest["solutions"] == 6
    assert manifest["rollouts"] == sum(row.meta["cost"]["rollouts"] for row in given)
    alone = 0
    for row in rows:
        one = tmp_path / "one.jsonl"
        one.write_text(json.dumps(row) + "\n")
        assert run("tree", one, *words, "--searches", "1", "--out", tmp_path / "o.jsonl") == 0
        (only, *_) = read_labelled(tmp_path / "o.jsonl")
        alone += only.meta["cost"]["rollouts"]
        (shared,) = [other for other in given if other.solution.id == row["id"]]
        assert shared.meta["first_error"] == only.meta["first_error"]
    assert run("tree", file, *words, "--searches", "3", "--out", tmp_path / "o.jsonl") == 0
    assert (
        sum(r.meta["cost"]["rollouts"] for r in read_labelled(tmp_path / "o.jsonl") if "cost" in r.meta)
        < alone
    )


def test_one_solution_of_a_tree_that_cannot_be_labelled_costs_only_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(TESTS)
    texts = {"first": "One.", "odd": "Who knows?", "last": "Two."}
    rows = [
        {"id": name, "problem": "p", "steps": [text, "And more.", "So \\boxed{9}"], "answer": "7"}
        for name, text in texts.items()
    ]
    file, out = tmp_path / "three.jsonl", tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = [
        "tree",
        file,
        "--policy",
        "label_policies:picky",
        "--verifier",
        "number",
        "--k",
        "2",
        "--out",
        out,
    ]
    assert run(*words) == 2
    assert f"{file}:2" in capsys.readouterr().err
    assert run(*words, "--keep-going") == 0
    given = {
        row.solution.id: row.meta["first_error"] for row in read_labelled(out) if "first_error" in row.meta
    }
    assert given == {"first": 0, "last": 0}
    assert "left out 1 row" in capsys.readouterr().err
    file.write_text(json.dumps(rows[1]) + "\n", encoding="utf-8")
    assert run(*words, "--keep-going") == 2
    assert "nothing was labelled" in capsys.readouterr().err


def test_a_false_calculation_that_may_not_be_the_first_error_is_counted(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    steps = [
        ["1 + 1 = 3", "so 3"],  # false, and nothing stands before it
        ["Add them.", "2 + 2 = 5"],  # false, after a step that was not judged
        ["2 + 2 = 4", "4 + 4 = 9"],
        ["2 + 2 = 4"],  # true, which does not make the step right
        ["Words only."],
    ]
    file.write_text("".join(json.dumps({"problem": "p", "steps": one}) + "\n" for one in steps))
    out = tmp_path / "labels.jsonl"
    assert run("formulas", file, "--out", out) == 0
    assert "1 with a first error, 2 with a wrong step" in capsys.readouterr().err
    assert json.loads((tmp_path / "labels.jsonl.manifest.json").read_text())["wrong_later"] == 2


def test_a_budget_ends_the_run_and_says_what_was_left(tmp_path, capsys):
    file, _ = world(tmp_path)
    out = tmp_path / "labels.jsonl"
    words = ["binary", file, "--policy", ARITHMETIC, "--verifier", "number", "--out", out, "--budget", "1"]
    assert run(*words) == 0
    assert len(list(read_labelled(out))) == 1
    assert "5 solutions were not labelled" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bayes", "FILE", "--out", "o.jsonl"], "expected --policy"),
        (["bayes", "-", "--policy", ARITHMETIC, "--budget", "9", "--out", "o.jsonl"], "more than once"),
        (["bayes", "FILE", "--policy", ARITHMETIC, "--out", "FILE"], "is the input"),
        (["bayes", "FILE", "--policy", ARITHMETIC, "--out", "o.jsonl", "--verifier", "numbr"], "number"),
        (["bayes", "FILE", "--policy", ARITHMETIC, "--out", "o.jsonl", "--confidence", "1"], "confidence"),
        (["bayes", "nothere.jsonl", "--policy", ARITHMETIC, "--out", "o.jsonl"], "no such file"),
        (["bays", "FILE"], "bayes"),
        (["FILE", "--method", "bays", "--out", "o.jsonl"], "Did you mean 'bayes'"),
        (["FILE", "--method", "stepmark.searches.sampled:BestOfN", "--out", "o.jsonl"], "found BestOfN"),
        (
            ["FILE", "--method", "stepmark.labels.bayes:BayesianSearch", "--out", "o.jsonl"],
            "expected --policy",
        ),
        (["formulas", "FILE"], "expected --out"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    file, _ = world(tmp_path, count=1)
    assert run(*(str(file) if word == "FILE" else word for word in words)) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize("method", ["rollout", "binary"])
@pytest.mark.parametrize(("named", "shown"), [({}, ""), ({"id": "apples"}, " (apples)")])
def test_a_solution_without_a_reference_answer_is_refused_with_its_line(
    tmp_path, capsys, named, shown, method
):
    file, _ = world(tmp_path, count=2)
    with file.open("a") as handle:
        handle.write(json.dumps({"problem": "p", "steps": ["s"], **named}) + "\n")
    out = tmp_path / "labels.jsonl"
    words = [method, file, "--policy", ARITHMETIC, "--verifier", "number", "--out", out]
    assert run(*words) == 2
    place = f"{file}:3{shown}, field 'answer': rollouts need the problem's reference answer"
    err = capsys.readouterr().err
    assert f"error: {place}" in err and "with --keep-going, such rows are left out" in err
    assert run(*words, "--keep-going") == 0
    err = capsys.readouterr().err
    assert "left out 1 row" in err and f"  {place}" in err
    assert len(list(read_labelled(out))) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT of that kind on Windows")
def test_an_interrupt_while_a_model_computes_ends_with_130_and_no_abort(tmp_path):
    """Python would wait for the model's thread, and native code whose thread is ended in the middle aborts the process."""
    problems = [
        {"problem": f"{number} + 1 = ?", "answer": str(number + 1), "id": f"p{number}"}
        for number in range(400)
    ]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in problems))
    (tmp_path / "busy.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from stepmark.backends import BatchPolicy\n"
        "class Busy(BatchPolicy):\n"
        "    name = identity = 'busy'\n"
        "    tokens_written = 0\n"
        "    def complete_many(self, requests, ready=None):\n"
        f"        Path({str(tmp_path / 'begun')!r}).touch()\n"
        "        end = time.monotonic() + 60\n"
        "        while time.monotonic() < end:\n"
        "            np.ones((300, 300)) @ np.ones((300, 300))\n"
        "        return []\n"
    )
    words = [
        "sample",
        str(file),
        "--policy",
        "busy:Busy",
        "--n",
        "1",
        "--temperature",
        "0",
        "--verifier",
        "none",
    ]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        # A run whose parent ignores the signal inherits that.
        [
            *(sys.executable, "-c"),
            "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from stepmark.cli import main; sys.exit(main())",
            *words,
            *("--out", str(tmp_path / "out.jsonl")),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as run:
        while not (tmp_path / "begun").exists():
            assert run.poll() is None, run.communicate()
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=30)
    assert run.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err


TEAM = '[criteria]\npolite = "It is polite."\ntested = { missing = "A run of the tests." }\n'
CRITERIA_RULES = """
import json, stepmark

def judge():
    reply = {"polite": [], "tested": [{"paragraph": 0, "reason": "Nothing was run <b>."}]}
    return stepmark.ScriptedPolicy(lambda request, number: json.dumps(reply), name="rules")
"""


def test_the_command_labels_by_a_file_and_shows_what_is_missing_after_its_step(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "criteria_rules.py").write_text(CRITERIA_RULES)
    (tmp_path / "team.toml").write_text(TEAM)
    trace = [
        {"role": "user", "content": "Fix f."},
        {"role": "assistant", "content": "Edit f.py."},
        {"role": "tool", "content": "written"},
        {"role": "assistant", "content": "All done."},
    ]
    (tmp_path / "t.jsonl").write_text(json.dumps({"messages": trace, "id": "t"}))
    command = ["label", "judge", "t.jsonl", "--policy", "criteria_rules:judge", "--criteria", "team.toml"]
    command += ["--votes", "1", "--temperature", "0", "--out", "j.jsonl", "--report", "p.html"]
    assert main(command) == 0
    assert "tested: fails in 1 solution, at 1 step" in capsys.readouterr().err
    (row,) = read_labelled("j.jsonl")
    assert row.labelled.on_axis("tested").judgements[0][0].note == "Nothing was run <b>."
    page = (tmp_path / "p.html").read_text()
    assert "Nothing was run &lt;b&gt;." in page and "<b>." not in page
    assert page.index("written") < page.index("Nothing was run &lt;b&gt;.") < page.index("All done.")
    assert "It is polite." in page  # what each axis means stands at the top
    manifest = json.loads((tmp_path / "j.jsonl.manifest.json").read_text())
    assert [one["text"] for one in manifest["method"]["criteria"]] == ["It is polite.", "A run of the tests."]
    assert manifest["failed"]["tested"] == {"solutions": 1, "steps": 1, "open": 0}


def test_a_criterion_that_the_judge_left_open_everywhere_is_called_open(tmp_path, monkeypatch, capsys):
    """Replies that split evenly on one criterion decide nothing of it: it neither fails nor holds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rules = CRITERIA_RULES.replace(
        "json.dumps(reply)", "json.dumps({**reply, 'tested': []} if number % 2 else reply)"
    )
    (tmp_path / "open_rules.py").write_text(rules)
    (tmp_path / "team.toml").write_text(TEAM)
    (tmp_path / "t.jsonl").write_text(json.dumps({"problem": "1 + 1?", "steps": ["2"], "id": "t"}))
    command = ["label", "judge", "t.jsonl", "--policy", "open_rules:judge", "--criteria", "team.toml"]
    assert main([*command, "--votes", "2", "--out", "j.jsonl"]) == 0
    printed = capsys.readouterr().err.splitlines()
    (line,) = [line for line in printed if line.startswith("tested:")]
    assert "open in 1 solution" in line and "fails" not in line
    manifest = json.loads((tmp_path / "j.jsonl.manifest.json").read_text())
    assert manifest["failed"] == {
        "polite": {"solutions": 0, "steps": 0, "open": 0},
        "tested": {"solutions": 0, "steps": 0, "open": 1},
    }
