"""`recipes/default_prm.sh` and the rows that it trains on."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
from pathlib import Path

import pytest
from default_prm_contrasts import contrasts

from stepmark.cli import main
from stepmark.problems.loading import Worked
from stepmark.records import Problem
from stepmark.training.run import training_rows
from tiny_base import write_base

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "default_prm_data.py"

pytestmark = pytest.mark.skipif(not RECIPE.is_file(), reason="recipes are not here (an installed package)")


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("default_prm_data", RECIPE)
    made = importlib.util.module_from_spec(spec)
    sys.modules["default_prm_data"] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules["default_prm_data"]


def file_of(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sources(folder, count=10):
    gsm8k = [
        {
            "question": f"Ann has {a} pens. She buys {b} boxes of {c} pens each. How many pens has she?",
            "answer": f"She buys {b} * {c} = <<{b}*{c}={b * c}>>{b * c} pens.\n"
            f"She has {a} + {b * c} = <<{a}+{b * c}={a + b * c}>>{a + b * c} pens.\n#### {a + b * c}",
        }
        for a, b, c in ((11 + n, 3 + n, 4 + n) for n in range(count))
    ]
    svamp = [
        {
            "Body": f"Ben has {20 + n} apples and eats 3",
            "Question": "How many apples are left?",
            "Equation": f"( {20 + n}.0 - 3.0 )",
            "Answer": 17.0 + n,
        }
        for n in range(count)
    ]

    def step(n, before, text, rating, solution=False):
        return {
            "instruction": f"What is {n} + 2 + 3?",
            "responses": before,
            "next_response": text,
            "answer": None,
            "is_human_response": False,
            "is_solution": solution,
            "is_preferred_response": rating == 1,
            "rating": rating,
        }

    rated = []
    for n in range(count):
        first, last = f"{n} + 2 is {n + 2}.", f"So it is {n + 5}."
        rated += [step(n, [], first, 1), step(n, [], f"{n} + 2 is {n + 3}.", -1)]
        rated += [step(n, [first], last, 1, True), step(n, [first], f"So it is {n + 6}.", -1)]
    return {
        "--gsm8k": file_of(folder / "g.jsonl", gsm8k),
        "--svamp": file_of(folder / "s.jsonl", svamp),
        "--prm800k": file_of(folder / "p.jsonl", rated),
    }


def written(recipe, monkeypatch, capsys, folder, out, *more):
    words = [str(word) for pair in sources(folder).items() for word in pair]
    monkeypatch.setattr(sys, "argv", ["default_prm_data.py", str(out), *words, *map(str, more)])
    recipe.main()
    return capsys.readouterr().out


def test_the_mixture_and_what_is_held_out_of_it(recipe, monkeypatch, capsys, tmp_path):
    base = write_base(tmp_path / "base", context=512)
    out = tmp_path / "rows"
    said = written(
        recipe, monkeypatch, capsys, tmp_path, out, "--tokens", 4000, "--held-out", 3, "--base", base
    )
    names = ("gsm8k", "svamp", "prm800k")
    rows = {name: list(training_rows([str(out / f"{name}.jsonl")])) for name in names}
    held = list(training_rows([str(out / "held_out.jsonl")]))
    assert "held out: 12 solutions of 6 problems" in said
    # In equal parts: of each problem a right solution and one that ends at its only error, every step judged.
    sources = [row.solution.problem.source for row in held]
    assert sources == ["GSM8K"] * 6 + ["PRM800K"] * 6
    for right, wrong in zip(held[::2], held[1::2], strict=True):
        assert right.solution.problem == wrong.solution.problem
        for row, end in ((right, 1), (wrong, -1)):
            ratings = [j.rating for (j,) in row.labelled.judgements]
            assert ratings == [1] * (len(ratings) - 1) + [end]
    # PRM800K's right ones come to their end.
    assert all("So it is" in right.solution.texts[-1] for right in held[6::2])
    texts = {row.solution.problem.text for row in held}
    assert not texts & {row.solution.problem.text for some in rows.values() for row in some}
    # By their shares, but for the problem that goes over it; where a source runs out, all of it.
    tokens = {
        n: int(re.search(rf"{n}: .* problems, ([\d,]+) tokens", said)[1].replace(",", "")) for n in names
    }
    assert 2400 <= tokens["gsm8k"] < 2400 + 1500
    assert 480 <= tokens["svamp"] < 480 + 600
    whole_prm = {row.solution.problem.text for row in rows["prm800k"]}
    assert len(whole_prm) == 7 or tokens["prm800k"] >= 1120
    again = tmp_path / "again"
    written(recipe, monkeypatch, capsys, tmp_path, again, "--tokens", 4000, "--held-out", 3, "--base", base)
    for file in sorted(out.iterdir()):
        assert file.read_bytes() == (again / file.name).read_bytes()


def test_what_cannot_be_written_as_prose_keeps_its_own_words(recipe):
    lines = ("They split it.", "Each gets a third.", "They eat <<6/3=2>>2 each.")
    worked = Worked(problem=Problem(text="Three share 6 pies. How many each?", answer="2"), lines=lines)
    assert list(contrasts(worked, random.Random(0))) == []
    (rows,) = recipe._contrasts([(0, worked)], 0, passes=3)
    texts = [row.solution.texts for row in rows]
    assert len(set(texts)) == len(texts)
    right = [row.solution.texts[-1] for row in rows if row.judgements[-1][0].rating == 1]
    assert right == ["They split it.", "Each gets a third.", "They eat 2 each.", "The answer is 2."]


def test_problems_that_are_tested_on_are_left_out(recipe, monkeypatch, capsys, tmp_path):
    asked = "Ann has 12 pens. She buys 4 boxes of 5 pens each. How many pens has she?"
    benchmark = file_of(tmp_path / "benchmark.jsonl", [{"problem": asked.upper() + "!"}])
    out = tmp_path / "rows"
    said = written(recipe, monkeypatch, capsys, tmp_path, out, "--benchmark", benchmark)
    assert "gsm8k: left out 1 of 10, of problems that are tested on" in said
    texts = {row.solution.problem.text for row in training_rows([str(out / "gsm8k.jsonl")])}
    assert asked not in texts and asked.replace("12", "11").replace("4", "3").replace("5", "4") in texts


def test_thirteen_words_in_a_row_make_two_problems_the_same(recipe, tmp_path):
    story = "a b c d e f g h i j k l m"
    problems = recipe.Problems([file_of(tmp_path / "p.jsonl", [{"question": f"One {story} two."}])])
    assert f"Another, {story.upper()}?" in problems
    assert story.removesuffix(" m") not in problems
    assert "one two" not in problems


def test_samples_become_soft_labels(recipe):
    problem = "Ann has 12 pens. She buys 4 boxes of 5 pens each. How many pens has she?"
    reference = "She buys 4 * 5 = <<4*5=20>>20 pens.\nShe has 12 + 20 = <<12+20=32>>32 pens."
    wrong = ["She buys 4 * 5 = 20 pens.", "She has 12 * 20 = 240 pens.", "The answer is 240."]
    rows = [
        {"problem": problem, "steps": wrong, "correct": False, "answer": "32", "model": "m"},
        {"problem": problem.upper(), "steps": wrong, "correct": False, "first_errors": [1, 1, 0]},
        {"problem": problem, "solution": "4 * 5 = 20\n12 + 20 = 32", "correct": True},
        {
            "problem": problem,
            "steps": ["So it is 32."],
            "correct": False,
            "answer": "32",
        },  # its set's check is wrong
        {"problem": "Another?", "steps": wrong, "correct": False},  # nothing to compare with
        {"problem": problem, "steps": wrong, "correct": None},
    ]
    (group, other) = recipe.sampled(rows, {recipe.normal(problem): [reference]})
    assert other == []
    shares = [[[j.share for j in step] for step in row.judgements] for row in group]
    assert (
        shares
        == [
            [[0.75], [0.22], []],  # located: the result 240, of which 0.78 are at or after the first error
            [
                [0.6364],
                [0.0909],
                [],
            ],  # 7/11 and 1/11: one of three people named step 0, two step 1; a third of a vote is added to each side
            [[0.97], [0.97]],
        ]
    )
    assert {j.kind for row in group for step in row.judgements for j in step} == {"value"}
    assert group[0].judgements[1][0].note == "result: 12 * 20 = 240: no worked solution comes to this"


def test_what_candidates_are_for(recipe, tmp_path):
    # printf 'how many 3' | sha256sum begins with 95b01e40: 2511347264 ends in 4
    assert recipe.part_of("How many? 3!") == "threshold"
    rows = [
        {
            "question": f"What is {n} + 1?",
            "gold": str(n + 1),
            "candidates": [{"model": "m", "text": f"It is {n + 1}.", "correct": True}],
        }
        for n in range(200)
    ]
    candidates = file_of(tmp_path / "c.jsonl", rows)
    parts = recipe.candidates(candidates, recipe.Problems([]))
    problems = {name: {row["problem"] for row in some} for name, some in parts.items()}
    assert sum(map(len, problems.values())) == 200 == len(set.union(*problems.values()))
    assert 40 < len(problems["training"]) < 80 and 40 < len(problems["threshold"]) < 80
    # A benchmark's problem is for best-of-N alone.
    one = min(problems["training"])
    benchmark = recipe.Problems([file_of(tmp_path / "b.jsonl", [{"problem": one}])])
    again = recipe.candidates(candidates, benchmark)
    assert one in {row["problem"] for row in again["best-of-N"]}
    assert len(again["training"]) == len(parts["training"]) - 1
    # What a teacher's labels were learnt on measures nothing.
    learnt = [min(problems["threshold"]), min(problems["best-of-N"])]
    taught = recipe.Problems([file_of(tmp_path / "t.jsonl", [{"problem": text} for text in learnt])])
    parted = recipe.candidates(candidates, recipe.Problems([]), taught)
    assert {row["problem"] for row in parted["training"]} == problems["training"] | set(learnt)


def test_samples_and_candidates_join_the_mixture(recipe, monkeypatch, capsys, tmp_path):
    base = write_base(tmp_path / "base", context=512)
    problem = "Ann has 11 pens. She buys 3 boxes of 4 pens each. How many pens has she?"
    wrong = {"problem": problem, "solution": "3 * 4 = 12\n11 * 12 = 132", "correct": False, "answer": "23"}
    samples = file_of(tmp_path / "samples.jsonl", [wrong])
    candidates = file_of(
        tmp_path / "c.jsonl",
        [
            {
                "question": f"What is {n} + 1?",
                "gold": str(n + 1),
                "candidates": [{"model": "m", "text": f"It is {n + 1}.", "correct": True}],
            }
            for n in range(40)
        ],
    )
    out = tmp_path / "rows"
    said = written(
        recipe,
        monkeypatch,
        capsys,
        tmp_path,
        out,
        "--samples",
        samples,
        "--candidates",
        candidates,
        "--train-on-candidates",
        "--tokens",
        99999,
        "--base",
        base,
    )
    counts = [
        int(n)
        for n in re.search(r"candidates: (\d+) \S+ \S+ training, (\d+) .* threshold, (\d+)", said).groups()
    ]
    assert sum(counts) == 40
    assert len((out / "threshold.jsonl").read_text().splitlines()) == counts[1]
    assert len((out / "best_of_n.txt").read_text().splitlines()) == counts[2]
    rows = list(training_rows([str(out / "samples.jsonl")]))
    assert len(rows) == counts[0] + 1
    (row,) = [row for row in rows if row.solution.problem.text == problem]
    assert [[j.share for j in step] for step in row.labelled.judgements] == [[0.75], [0.22]]
    tokens = [int(n.replace(",", "")) for n in re.findall(r"problems, ([\d,]+) tokens", said)]
    assert f"together: {sum(tokens):,} distinct tokens" in said


def flags_of(script, command):
    """The words of a command in a script, with its continued lines."""
    text = script.read_text().replace("\\\n", " ")
    (line,) = [one.strip() for one in text.splitlines() if one.strip().startswith(command)]
    return re.findall(r"--[a-z0-9-]+", line)


def test_the_script_and_its_commands_know_the_same_flags(recipe, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")  # in which no flag is broken
    script = ROOT / "recipes" / "default_prm.sh"
    assert main(["train", "--help"]) == 0
    known = capsys.readouterr().out
    used = flags_of(script, "stepmark train")
    assert {"--tune-threshold", "--warm-start", "--minutes", "--head-rate", "--set"} <= set(used)
    for flag in used:
        assert re.search(rf"{flag}\b", known), flag
    mine = RECIPE.read_text()
    for flag in flags_of(script, "python recipes/default_prm_data.py"):
        assert f'"{flag}"' in mine, flag
    benchmark = (ROOT / "benchmarks" / "default_prm.py").read_text()
    for flag in flags_of(script, "python -m benchmarks.default_prm"):
        assert f'"{flag}"' in benchmark, flag


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_its_rows_make_a_grader(recipe, monkeypatch, capsys, tmp_path):
    """The recipe's own flags, on a base of two small layers."""
    base, out = write_base(tmp_path / "base", context=512), tmp_path / "rows"
    problem = "Ann has 11 pens. She buys 3 boxes of 4 pens each. How many pens has she?"
    wrong = {"problem": problem, "solution": "3 * 4 = 12\n11 * 12 = 132", "correct": False}
    samples = file_of(tmp_path / "samples.jsonl", [wrong, {**wrong, "problem": "new", "first_errors": [1]}])
    written(recipe, monkeypatch, capsys, tmp_path, out, "--held-out", 3, "--samples", samples)
    text = (ROOT / "recipes" / "default_prm.sh").read_text().replace("\\\n", " ")
    (line,) = [one for one in text.splitlines() if one.strip().startswith("stepmark train")]
    rows = " ".join(str(out / f"{name}.jsonl") for name in ("gsm8k", "svamp", "prm800k", "samples"))
    line = line.replace("${rows[@]}", rows).replace("$out/rows", str(out))
    words = line.replace('"', "").partition("${WARM")[0].split()[1:]
    words[words.index("--frozen-layers") + 1] = "1"
    words[words.index("--base") + 1] = str(base)
    assert main([*words, "--dtype", "float32", "--out", str(tmp_path / "prm")]) == 0
    assert "held out:" in capsys.readouterr().out
    fitted = json.loads((tmp_path / "prm" / "calibration.json").read_text())
    assert fitted["threshold_tuned"] is True
    assert fitted["solutions"] == 12
