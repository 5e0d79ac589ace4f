"""`stepmark search`: files, one typed problem, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stepmark.cli import main
from stepmark.cli.search import app
from stepmark.problems.arithmetic import arithmetic_problems

TESTS = Path(__file__).parent
MODELS = ["--policy", "search_models:policy", "--prm", "search_models:truth", "--verifier", "number"]
METHODS = [
    "greedy",
    "best-of-n",
    "majority",
    "weighted-vote",
    "beam",
    "dvts",
    "rebase",
    "mcts",
]
SMALL = {
    "best-of-n": ["--n", "3"], "majority": ["--n", "3"], "weighted-vote": ["--n", "3"], "beam": ["--width", "2", "--expand", "2"],
    "dvts": ["--subtrees", "2", "--expand", "2"], "rebase": ["--width", "3"], "mcts": ["--simulations", "4", "--expand", "2"],
}  # fmt: skip


def problems(tmp_path, count=4, *, answers=True, name="problems.jsonl"):
    file = tmp_path / name
    rows = []
    for one in arithmetic_problems(count, seed=3, steps=(3, 5)):
        rows.append({"id": one.id, "problem": one.text} | ({"answer": str(one.answer)} if answers else {}))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_a_file(tmp_path, method, capsys):
    file, out, trace = (
        problems(tmp_path, 2, answers=False),
        tmp_path / "found.jsonl",
        tmp_path / "trace.jsonl",
    )
    words = ["search", method, str(file), *MODELS, *SMALL.get(method, []), "--out", str(out)]
    assert main([*words, "--trace", str(trace)]) == 0
    found, traces = rows_of(out), rows_of(trace)
    assert (
        [row["id"] for row in found] == [row["id"] for row in traces] == ["arithmetic-3-0", "arithmetic-3-1"]
    )
    for row, tree in zip(found, traces, strict=True):
        chosen = row["candidates"][row["chosen"]]
        assert row["solution"] == chosen["text"]
        assert row["answer"] == chosen["answer"]
        assert row["method"] == tree["method"] == method
        assert sum(node["policy_tokens"] for node in tree["nodes"]) == row["cost"]["decoded"]
        assert sum(node["prm_tokens"] for node in tree["nodes"]) == row["cost"]["prm"]
        assert row["cost"]["tokens"] == row["cost"]["decoded"] + row["cost"]["prm"]
        assert tree["chosen"] == chosen["node"]
        assert (row["cost"]["prm"] == 0) == (method in ("greedy", "majority"))
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
    assert manifest["method"]["name"] == method
    assert manifest["problems"] == 2
    assert "2 problems: 2 with a solution" in capsys.readouterr().err
    assert not Path(f"{out}.part").exists()


def test_one_typed_problem_is_printed_with_its_scores(capsys):
    [one] = arithmetic_problems(1, seed=3, steps=(3, 3))
    words = ["search", "beam", "--problem", one.text, *MODELS, "--width", "2", "--expand", "2"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "beam · last" in said.out
    assert f"The answer is {one.answer}" in said.out
    assert "stopped: done" in said.err
    assert "tokens written in" in said.err
    assert main([*words, "--budget", "0"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(
        "nothing was found; stopped: budget; 0 tokens written in 0 texts, 0 read by the PRM"
    )


def test_the_page_of_a_run_and_of_a_typed_problem(tmp_path):
    file, out, page = problems(tmp_path, 2), tmp_path / "found.jsonl", tmp_path / "page.html"
    words = ["search", "beam", str(file), *MODELS, *SMALL["beam"], "--out", str(out), "--report", str(page)]
    assert main(words) == 0
    text = page.read_text()
    for row in rows_of(out):
        assert row["id"] in text
        assert "trace" not in row
    assert "Each step is scored by the PRM truth." in text
    assert main(["search", "beam", "--problem", row["problem"]["text"], *MODELS, "--report", str(page)]) == 0
    assert "Search by beam: rows" in page.read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["beam"], 2, "expected either FILE"),
        (["beam", "FILE", "--problem", "What?"], 2, "expected either FILE"),
        (["beam", "--problem", "  "], 2, "only white space"),
        (["beam", "FILE"], 2, "expected --out"),
        (["beam", "FILE", "--out", "FILE"], 2, "the input too: it would be replaced"),
        (["beam", "FILE", "--out", "OUT", "--trace", "OUT"], 2, "is --out too: it would be replaced"),
        (["beam", "FILE", "--out", "OUT", "--budget", "-1"], 2, "--budget -1: expected 0 or more"),
        (["beam", "FILE", "--out", "OUT", "--in-flight", "0"], 2, "--in-flight 0"),
        (["beam", "FILE", "--out", "OUT", "--memory-tokens", "0"], 2, "--memory-tokens 0"),
        (["beam", "FILE", "--out", "OUT", "--width", "0"], 2, "--width 0: expected 1 or more"),
        (["beam", "FILE", "--out", "OUT", "--aggregate", "best"], 2, "best"),
        (["beam", "nowhere.jsonl", "--out", "OUT"], 2, "nowhere.jsonl"),
        (["swarm", "FILE", "--out", "OUT"], 2, "swarm"),
    ],
)
def test_options_that_cannot_work(tmp_path, capsys, words, code, said):
    names = {"FILE": str(problems(tmp_path)), "OUT": str(tmp_path / "out.jsonl")}
    words = [names.get(word, word) for word in words]
    assert main(["search", *words, *MODELS]) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_the_end_names_every_file(tmp_path, capsys):
    names = [str(tmp_path / name) for name in ("o.jsonl", "t.jsonl", "p.html")]
    words = ["--out", names[0], "--trace", names[1], "--report", names[2]]
    assert main(["search", "beam", str(problems(tmp_path, 1)), *MODELS, *SMALL["beam"], *words]) == 0
    assert f"wrote {names[0]}, {names[1]} and {names[2]}; replies" in capsys.readouterr().err


def mixed(tmp_path):
    file = problems(tmp_path, 2)
    good = file.read_text().splitlines()
    bad = [
        '{"problem": "Not of this world."}',
        '{"answer": "7"}',
        '{"problem": " "}',
        '{"problem": "x", "answer": true}',
        "{",
    ]
    file.write_text("\n".join([bad[0], good[0], *bad[1:], good[1], bad[1]]) + "\n")
    return file


def test_problems_that_cannot_be_searched(tmp_path, capsys):
    file, out = mixed(tmp_path), tmp_path / "out.jsonl"
    words = ["search", "best-of-n", str(file), *MODELS, "--n", "2", "--out", str(out)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "problems.jsonl:" in said
    assert not out.exists()
    Path(f"{out}.part").unlink(missing_ok=True)
    assert main([*words, "--keep-going"]) == 0
    said = capsys.readouterr().err
    assert [row["id"] for row in rows_of(out)] == ["arithmetic-3-0", "arithmetic-3-1"]
    assert "left out 6 problems" in said
    for line in (1, 3, 4, 5, 6, 8):
        assert f"problems.jsonl:{line}" in said


def test_the_same_seed_gives_the_same_file_byte_for_byte(tmp_path):
    file = problems(tmp_path, 3)
    outs = []
    for name, more in (("a", []), ("b", ["--in-flight", "2"]), ("c", ["--seed", "1"])):
        out, trace = tmp_path / f"{name}.jsonl.gz", tmp_path / f"{name}.trace.jsonl.gz"
        words = ["search", "beam", str(file), *MODELS, *SMALL["beam"], "--out", str(out)]
        assert main([*words, "--trace", str(trace), *more]) == 0
        outs.append((out.read_bytes(), trace.read_bytes()))
    assert outs[0] == outs[1]
    assert outs[0][1] != outs[2][1]
    with gzip.open(tmp_path / "a.jsonl.gz", "rt") as handle:
        assert len(handle.readlines()) == 3


def test_a_local_policy_keeps_its_prefixes_and_counts_its_operations(tmp_path, capsys):
    """The tiny model of the arithmetic world: same file with and without memory, a budget of operations from its own size."""
    rows = [
        {"problem": one.text, "answer": str(one.answer)}
        for one in arithmetic_problems(2, seed=5, steps=(3, 4), surface="formula", largest=99)
    ]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["search", "beam", str(file), "--policy", "stepmark:arithmetic", "--prm", "search_models:truth", "--verifier", "number", "--dtype", "float32", "--device", "cpu", *SMALL["beam"]]  # fmt: skip
    outs = {memory: tmp_path / f"{memory}.jsonl" for memory in ("0", "5000")}
    read = {}
    for memory, out in outs.items():
        assert main([*words, "--policy-memory-tokens", memory, "--out", str(out)]) == 0
        said = next(
            line for line in capsys.readouterr().err.splitlines() if line.startswith("policy prompts: ")
        )
        read[memory] = [int(word.replace(",", "")) for word in said.split() if word[0].isdigit()]
    assert outs["0"].read_bytes() == outs["5000"].read_bytes()
    found = rows_of(outs["0"])
    given = sum(row["cost"]["prompt"] for row in found)
    assert read["0"][0] == read["5000"][0] == given
    assert read["0"][1] >= given
    # What the search calls new, less what the two problems share, and the last token of each prompt once more.
    writes = sum(row["cost"]["writes"] for row in found)
    assert read["5000"][1] <= sum(row["cost"]["new"] for row in found) + 3 * writes
    assert read["5000"][1] < given / 2


def test_the_summary_says_how_many_are_right(tmp_path, capsys):
    """The true V leads every search to the right answer; problems without a reference are not counted."""
    file, out = problems(tmp_path, 3), tmp_path / "found.jsonl"
    words = ["search", "beam", *MODELS, *SMALL["beam"], "--out", str(out)]
    assert main([*words, str(file)]) == 0
    found = rows_of(out)
    right = sum(row["answer"] == row["problem"]["answer"] for row in found)
    assert f"{right} of 3" in capsys.readouterr().err
    manifest = json.loads(out.with_name("found.jsonl.manifest.json").read_text())
    assert (manifest["right"], manifest["wrong"]) == (right, 3 - right)
    bare = problems(tmp_path, 2, answers=False, name="bare.jsonl")
    assert main([*words[:-1], str(tmp_path / "bare-found.jsonl"), str(bare)]) == 0
    assert "reference answer" not in capsys.readouterr().err


def test_the_table_of_methods_is_whole():
    assert {name for name in app if not name.startswith("-")} == {*METHODS}
