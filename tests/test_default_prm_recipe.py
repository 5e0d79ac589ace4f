"""`recipes/default_prm.sh` and the rows that it trains on."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from stepmark.cli import main
from stepmark.training.sources import training_rows
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
    written(recipe, monkeypatch, capsys, tmp_path, out, "--held-out", 3)
    text = (ROOT / "recipes" / "default_prm.sh").read_text().replace("\\\n", " ")
    (line,) = [one for one in text.splitlines() if one.strip().startswith("stepmark train")]
    words = line.replace("$out/rows", str(out)).replace('"', "").partition("${WARM")[0].split()[1:]
    words[words.index("--frozen-layers") + 1] = "1"
    assert main([*words, "--base", str(base), "--dtype", "float32", "--out", str(tmp_path / "prm")]) == 0
    assert "held out:" in capsys.readouterr().out
    fitted = json.loads((tmp_path / "prm" / "calibration.json").read_text())
    assert fitted["threshold_tuned"] is True
    assert fitted["solutions"] == 12
