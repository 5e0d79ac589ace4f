"""The training benchmark's own parts: its rows, the equality of both sides, taking turns, and a whole run on something tiny."""

import argparse
import gzip
import json
import math
import random
import re
import stat
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification

from stepmark.models.scripted import ScriptedPRM
from stepmark.problems.loading import Worked
from stepmark.records import Problem, Solution
from stepmark.training.examples import Example, Target
from tiny_language_model import tiny_tokenizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is run from the root of the repository and is not installed

from benchmarks import train, train_rows  # noqa: E402

torch.set_num_threads(1)

LINES = (
    "Ann has 3*4=<<3*4=12>>12 red apples.",
    "Bob has 12+5=<<12+5=17>>17 green apples.",
    "Together they have 12+17=<<12+17=29>>29 apples.",
    "After eating 9 there are 29-9=<<29-9=20>>20 apples.",
)
QUESTION = "Ann has 3 boxes of 4 apples. Bob has 5 more than Ann. They eat 9. How many are left?"
WORKED = Worked(problem=Problem(text=QUESTION, answer="20", id="w1"), lines=LINES)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_whole_solutions_are_labelled_right_up_to_the_error_and_wrong_from_it_on():
    rows = list(train_rows.solutions(WORKED, 16, random.Random(1)))
    assert rows == list(train_rows.solutions(WORKED, 16, random.Random(1)))
    assert len(rows) == 16
    truth = {"12", "17", "29", "20"}
    right = []
    for row in rows:
        ratings = [judged[0].rating for judged in row.labelled.judgements]
        first = ratings.index(-1) if -1 in ratings else len(ratings)
        assert ratings == [1] * first + [-1] * (len(ratings) - first)
        right.append(first == len(ratings))
        for i, text in enumerate(row.solution.texts, start=1):
            assert text.startswith(f"Step {i}: ")
        if right[-1]:
            assert row.solution.texts[-1].endswith("The answer is 20.")
            results = {re.search(r"(\d+)\D*$", text)[1] for text in row.solution.texts[:-1]}
            assert results <= truth
    assert sum(right) == 8


def packed(file, rows):
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    return file


def rated(problem, before, text, rating):
    return {"instruction": problem, "responses": before, "next_response": text, "rating": rating}


def gsm8k(file, problems):
    return packed(
        file,
        [
            {
                "question": f"{QUESTION} Case {n}.",
                "answer": "\n".join(
                    (
                        "There are 2+1=<<2+1=3>>3 boxes.",
                        *LINES,
                        f"There are 20+{n}=<<20+{n}={20 + n}>>{20 + n} with Eve's.",
                    )
                )
                + f"\n#### {20 + n}",
            }
            for n in range(1, problems + 1)
        ],
    )


def stub(file, *, extra="", end=""):
    file.write_text(STUB.format(python=sys.executable, extra=extra, end=end), encoding="utf-8")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def prm800k(file, problems, each):
    """For each problem a line of right steps with a wrong alternative at each."""
    rows = []
    for p in range(problems):
        problem, before = f"What is {p} + {p}?", []
        for n in range(each // 2):
            rows += [
                rated(problem, list(before), f"wrong {n}", -1),
                rated(problem, list(before), f"right {n}", 1),
            ]
            before.append(f"right {n}")
    return packed(file, rows)


def train_rows_of(file, problem):
    """The only group of a problem."""
    (group,) = (g for g in train_rows.branches(file, each=1) if g[0].solution.problem.text == problem)
    return group


def test_branches_are_labelled_at_their_last_step_alone(tmp_path):
    rows = [
        rated("p", [], "a", 1),
        rated("p", ["a"], "b", -1),
        rated("p", ["a"], "by a person", None),
        rated("p", ["a"], "c", 0),
        rated("q", [], "d", 1),
    ]
    (group,) = train_rows.branches(packed(tmp_path / "prm.jsonl.gz", rows), each=3)
    assert [e.solution.texts for e in group] == [("a",), ("a", "b"), ("a", "c")]
    assert [[t and t.value for t in e.targets] for e in group] == [[1.0], [None, 0.0], [None, 1.0]]
    assert train_rows.labels(group) == 3
    two = train_rows.branches(
        tmp_path / "prm.jsonl.gz", each=2, fits=lambda row: "b" not in row.solution.texts
    )
    assert [[e.solution.texts for e in g] for g in two] == [[("a",), ("a", "c")]]
    # Three rated completions of p are more than two: a part of a problem is not what is asked for.
    assert list(train_rows.branches(tmp_path / "prm.jsonl.gz", each=1, most=2)) == [
        train_rows_of(tmp_path / "prm.jsonl.gz", "q")
    ]
    # TRL is told to train the last of the labels only; the others have to be there.
    assert train_rows.for_trl(group) == [
        {"prompt": "p", "completions": ["a"], "labels": [True]},
        {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]},
        {"prompt": "p", "completions": ["a", "c"], "labels": [True, True]},
    ]


# --- figures ----------------------------------------------------------------------------------------------------------


def test_the_held_out_loss_by_hand():
    rows = [
        Example(
            solution=Solution.of("p", ["1 + 1 = 2", "1 + 1 = 3"]),
            targets=(Target(value=1.0), Target(value=1.0)),
        ),
        Example(solution=Solution.of("p", ["1 + 1 = 3", "1 + 1 = 2"]), targets=(None, Target(value=0.0))),
    ]
    prm = ScriptedPRM(lambda p, s: 0.9 if s[-1].endswith("2") else 0.1, name="sums")
    assert train.held_out_loss(prm, rows) == pytest.approx(
        -(math.log(0.9) + math.log(0.1) + math.log(0.1)) / 3
    )


# --- taking turns -----------------------------------------------------------------------------------------------------

STUB = """#!{python}
# In the place of TRL's Python: it is called with the runner and a job, and does not run the runner.
import json, sys
job = json.loads(open(sys.argv[2], encoding="utf-8").read())
rows = [json.loads(line) for line in open(job["rows"], encoding="utf-8")]
labels = sum(1 if job["last_step_only"] else len(row["labels"]) for row in rows)
print(json.dumps({{"ready": True, "prepared": 0.5, "tokens": 1000, "labels": labels {extra}, "rows": len(rows)}}), flush=True)
for step in range(len(job["rates"])):
    assert sys.stdin.readline() == "go\\n"
    print(json.dumps({{"seconds": 3.0 + step, "cpu": 2.0, "step": step + 1}}), flush=True)
print({{"train_loss": 0.5}})
{end}
print(json.dumps({{"done": True}}), flush=True)
"""


# --- a whole run ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A base of two layers, and a token classifier over it as TRL would write it."""
    base, theirs = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("theirs")
    words = tiny_tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<file_sep>"]})
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.25,
        pad_token_id=None,
        num_labels=2,
    )
    LlamaForCausalLM(config).save_pretrained(base)
    words.save_pretrained(base)
    LlamaForTokenClassification(config).save_pretrained(theirs)
    words.save_pretrained(theirs)
    return base, theirs


def data(folder):
    (folder / "gsm8k").mkdir(parents=True)
    (folder / "prm800k").mkdir()
    file = gsm8k(folder / "gsm8k" / "train.jsonl.gz", 60)
    prm800k(folder / "prm800k" / "phase1_train.jsonl.gz", 8, 72)
    return file


def settings(base, **more):
    return argparse.Namespace(base=str(base), learning_rate=1e-3, precision="float32", seed=0, **more)


def test_both_sides_train_on_the_same_rows_in_the_same_order(tiny, tmp_path, monkeypatch, capsys):
    base, theirs = tiny
    monkeypatch.setattr(train, "BUDGET", 65536)  # letters are tokens here, and texts long
    data(tmp_path / "data")
    copy = f"import shutil; shutil.copytree({str(theirs)!r}, job['out'])"
    python = stub(tmp_path / "python", end=copy)
    found = {}
    for rows in train.sets(tmp_path / "data", base, quick=True, steps=2):
        out = train.compare(rows, settings(base), python, tmp_path / "runs")
        given = [
            json.loads(line)
            for line in (tmp_path / "runs" / rows.name / "rows.jsonl").read_text().splitlines()
        ]
        job = json.loads((tmp_path / "runs" / rows.name / "job.json").read_text())
        assert len(given) == out.rows == 2 * rows.a_step
        assert job["batch"] * job["accumulate"] == rows.a_step
        wanted = [(e.solution.problem.text, *e.solution.texts) for group in rows.training for e in group]
        assert sorted((row["prompt"], *row["completions"]) for row in given) == sorted(wanted)
        # A step of theirs holds whole problems, as a step of ours does, and inside in the order of the file.
        for start in range(0, len(given), rows.a_step):
            part = [(row["prompt"], *row["completions"]) for row in given[start : start + rows.a_step]]
            assert part == [one for one in wanted if one in part]
        held = {e.solution.problem.text for e in rows.held_out}
        assert held and not held & {row["prompt"] for row in given}
        # Linear warm-up over one of two steps, then down a cosine to a tenth.
        assert job["rates"] == pytest.approx([1e-3, 1e-4])
        assert out.distinct < out.ours.tokens or rows.name == "single"
        assert math.isfinite(out.loss_ours) and math.isfinite(out.loss_trl)
        assert out.held_out == train_rows.labels(rows.held_out)
        found |= train.told(rows, out)
    for suffix in ("", "_branches", "_single"):
        assert found[f"speedup_over_trl{suffix}"] > 0
    printed = capsys.readouterr().out
    assert "held-out loss of" in printed and "load" in printed
