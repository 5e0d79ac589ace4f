"""`label exact` and `label consensus` as functions: the same files as the commands, rows and records in, errors that name settings."""

import json

import pytest

from stepmark.cli import main
from stepmark.errors import InputError, SettingError, UsageError
from stepmark.labels.consensus import consensus
from stepmark.labels.labelling import judged_until
from stepmark.labels.variants import exact
from stepmark.records import LabelledSolution, Solution

PENS = {
    "id": "pens",
    "problem": "She packs 6 pens a day and sells 9 after a week. Each weighs 4 grams. What do the rest weigh?",
    "steps": [
        "She packs 6 * 7 = 42 pens in the week.",
        "So 42 - 9 = 33 pens are left.",
        "These weigh 33 * 4 = 132 grams.",
    ],
    "answer": "132",
}
WRONG = {**PENS, "id": "wrong", "steps": [*PENS["steps"], "The answer is 131."]}


def written(tmp_path, name, rows):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def same_files(a, b):
    assert a.read_bytes() == b.read_bytes()
    first, second = (json.loads(path.with_name(path.name + ".manifest.json").read_text()) for path in (a, b))
    assert first == second


def test_exact_writes_what_the_command_writes(tmp_path, capsys):
    file = written(tmp_path, "in.jsonl", [PENS, WRONG])
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    words = ["--wrong", "2", "--kinds", "value", "--kinds", "unit", "--seed", "3", "--out", str(a)]
    assert main(["label", "exact", str(file), *words]) == 0
    results = exact(file, wrong=2, kinds=("value", "unit"), seed=3, out=b)
    same_files(a, b)
    refused = [path.with_name(path.name + ".refused.jsonl").read_bytes() for path in (a, b)]
    assert refused[0] == refused[1]
    assert results.summary.splitlines()[0] == capsys.readouterr().err.splitlines()[0]
    assert results.refused == ("in.jsonl:2: it is no right solution: its answer is 131, the reference 132",)


@pytest.mark.parametrize("make", [list, iter])
def test_exact_takes_rows_and_gives_labels_that_hold(make):
    results = exact(make([PENS]), wrong=2, kinds=("value", "operation"))
    right, *wrong = results
    assert [row.meta["first_error"] for row in results].count(-1) == 1
    assert (right.outcome, len(right.labelled.judgements)) == (True, 4)
    assert len(wrong) == len(results) - 1 == 2
    for row in wrong:
        place = row.meta["first_error"]
        assert [j.rating for step in row.labelled.judgements[: place + 1] for j in step] == [1] * place + [-1]
        assert row.solution.texts[:place] == right.solution.texts[:place]
        assert row.solution.texts[place] != right.solution.texts[place]


@pytest.mark.parametrize(
    ("rows", "settings", "error", "message"),
    [
        (None, {}, UsageError, "`arithmetic`"),
        ([PENS], {"arithmetic": 2}, UsageError, "and not both"),
        ([PENS], {"wrong": 0}, SettingError, "wrong=0: expected 1 or more"),
        ([PENS], {"kinds": ("unt",)}, SettingError, "kinds='unt': expected a list, each value, operand"),
        ([PENS], {"kinds": ()}, SettingError, "one or more different kinds"),
        ([{"steps": ["1 + 1 = 2"]}], {}, InputError, "row 1"),
        (
            [{**PENS, "steps": 5}],
            {"keep_going": True},
            InputError,
            "no error could be put into any solution: row 1",
        ),
        ([PENS], {"out": "nowhere/a.jsonl"}, UsageError, "there is no folder"),
    ],
)
def test_errors_of_exact(rows, settings, error, message):
    with pytest.raises(error, match=message):
        exact(rows, **settings)


def labelled(name, judge, place):
    solution = Solution.of(f"Problem {name}", ["one", "two", "three"], id=name)
    return LabelledSolution(solution=solution, judgements=tuple(judged_until(place, 3, judge)))


MINE = [labelled("a", "bayes", 1), labelled("b", "bayes", 0)]
OTHERS = [labelled("b", "judge:m", 2), labelled("a", "judge:m", 1)]


def test_consensus_takes_records_and_keeps_every_judgement():
    (row,) = consensus([MINE, iter(OTHERS)])
    assert row.meta["first_error"] == 1
    assert {j.judge for step in row.labelled.judgements for j in step} == {
        "bayes",
        "judge:m",
        "consensus:first-error-agrees",
    }
