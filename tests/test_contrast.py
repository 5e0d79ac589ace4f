"""Right steps beside wrong ones: hand-worked dresses, true calculations, labels that the numbers confirm."""

import importlib.util
import json
import random
import re
from fractions import Fraction
from pathlib import Path

from default_prm_contrasts import Calculation, contrasts, parse

from stepmark.problems.loading import Worked
from stepmark.records import Problem
from stepmark.verifiers.checks.equations import calculations

BAKER = Worked(
    problem=Problem(
        text="A baker fills 6 trays with 14 rolls each. She sells 50 rolls. Then she packs what is left into 2 equal boxes. How many rolls are in a box?",
        answer="17",
        id="hand:1",
        source="GSM8K",
    ),
    lines=(
        "She bakes 6*14 = <<6*14=84>>84 rolls.",
        "After the sale 84-50 = <<84-50=34>>34 rolls are left.",
        "So each box holds 34/2 = <<34/2=17>>17 rolls.",
    ),
)
SEEDS = range(60)


def rows(seed, **how):
    return list(contrasts(BAKER, random.Random(seed), **how))


def note(row):
    return row.judgements[-1][0].note


# --- one step ---------------------------------------------------------------------------------------------------------


def test_a_line_is_read():
    made = parse("He pays 3 * $1.50 = $<<3*1.50=4.5>>4.50 for pens.")
    assert made == Calculation(
        head="He pays ",
        terms=(Fraction(3), "*", Fraction(3, 2)),
        money=(False, False, True),
        result=Fraction(9, 2),
        paid=True,
        tail=" for pens.",
    )


# --- the tree ---------------------------------------------------------------------------------------------------------


def test_judged_is_the_last_step_alone_and_nothing_follows_an_error():
    for seed in SEEDS:
        wrong = {row.solution.texts for row in rows(seed) if note(row)}
        for row in rows(seed):
            assert [len(j) for j in row.judgements] == [0] * (len(row.judgements) - 1) + [1]
            assert row.judgements[-1][0].rating == (-1 if note(row) else 1)
            assert not any(row.solution.texts[:n] in wrong for n in range(1, len(row.solution.texts)))


def test_every_kind_is_made():
    made = {note(row) for seed in SEEDS for row in rows(seed, changed=1.0)}
    assert made >= {
        None,
        "value",
        "operand",
        "operation",
        "skipped",
        "surplus",
        "misread",
        "given",
        "early stop",
        "overshoot",
        "question",
    }


def test_right_rows_hold_true_calculations_and_the_right_numbers():
    results = {Fraction(84), Fraction(34), Fraction(17)}
    for seed in SEEDS:
        for row in rows(seed, changed=0.0):
            if note(row) is None:
                found = calculations(row.solution.texts[-1])
                assert all(formula.truth != "wrong" for formula in found)
                shown = {Fraction(m) for m in re.findall(r"= ([0-9]+)", row.solution.texts[-1])}
                assert shown <= results


def test_only_a_wrong_value_is_a_false_calculation():
    found = 0
    for seed in SEEDS:
        for row in rows(seed):
            false = [f for f in calculations(row.solution.texts[-1]) if f.truth == "wrong"]
            if note(row) == "value" and "=" in row.solution.texts[-1]:
                found += 1
                assert len(false) == 1
            else:
                assert not false, row.solution.texts[-1]
    assert found > 20


def test_a_wrong_calculation_states_something_that_is_not_so():
    """Of every wrong step but those that stop or read wrongly, the results shown are not all results of the right solution's."""
    results = [{84}, {34}, {17}]
    for seed in SEEDS:
        for row in rows(seed, changed=0.0, joined=0.0):
            if note(row) in ("value", "operand", "operation", "skipped", "surplus"):
                shown = [int(m.replace(",", "")) for m in re.findall(r"= ([0-9,]+)", row.solution.texts[-1])]
                before = sum("=" in t for t in row.solution.texts[:-1])
                if shown:
                    assert set(shown) != results[before]


def test_the_changed_problem_by_its_numbers():
    """The changed number stands in the problem, the right step uses it, the wrong one the old number."""
    seen = 0
    for seed in SEEDS:
        mine = [row for row in rows(seed, changed=1.0) if row.solution.problem.text != BAKER.problem.text]
        for row in mine:
            if note(row) != "question":
                continue
            seen += 1
            assert row.solution.problem.answer is None
            old = set(re.findall("[0-9]+", BAKER.problem.text)) - set(
                re.findall("[0-9]+", row.solution.problem.text)
            )
            assert len(old) == 1
            assert old <= set(re.findall("[0-9]+", row.solution.texts[-1]))
            twins = [r for r in mine if note(r) is None and r.solution.texts[:-1] == row.solution.texts[:-1]]
            assert any(not old & set(re.findall("[0-9]+", twin.solution.texts[-1])) for twin in twins)
    assert seen > 20


def test_a_right_step_and_its_wrong_twin_differ_in_what_is_said_only():
    """Without digits, signs and the words for them the two are the same text."""

    def skeleton(text):
        text = re.sub(r"\\times|\\div|[-+*/×÷=]|[0-9.,]", "", text)
        text = re.sub(
            r"\b(?:add|subtract|multiply|divide|by|and|from|calculate|compute|the following)\b", "", text
        )
        return " ".join(text.split())

    checked = 0
    for seed in SEEDS:
        found = rows(seed, joined=0.0, changed=0.0)
        for row in found:
            if note(row) not in ("value", "operand", "skipped") or "=" not in row.solution.texts[-1]:
                continue
            twins = [r for r in found if note(r) is None and r.solution.texts[:-1] == row.solution.texts[:-1]]
            assert skeleton(row.solution.texts[-1]) in {skeleton(t.solution.texts[-1]) for t in twins}
            checked += 1
    assert checked > 50


def test_the_recipe_writes_rows_that_training_reads(tmp_path):
    from stepmark.training.run import training_rows

    file = Path(__file__).resolve().parents[1] / "recipes" / "default_prm_data.py"
    spec = importlib.util.spec_from_file_location("default_prm_data", file)
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    problem = {
        "Body": "Ann has 12 pens and gives 5 away",
        "Question": "How many pens are left?",
        "Type": "x",
        "ID": "1",
    }
    (tmp_path / "svamp.jsonl").write_text(
        "".join(
            json.dumps(problem | {"Equation": equation, "Answer": 7.0}) + "\n"
            for equation in ("( 12.0 - 5.0 )", "( 12.0 + 5.0 )")
        )
    )
    # The other one's equation does not give its answer.
    (worked,) = recipe.read_svamp(tmp_path / "svamp.jsonl")
    assert worked.problem.text == "Ann has 12 pens and gives 5 away. How many pens are left?"
    assert worked.lines == ("The result is 12-5 = <<12-5=7>>7 pens.",)
    written = recipe.write_contrasts([worked, BAKER], tmp_path / "rows.jsonl", seed=3)
    read = list(training_rows([str(tmp_path / "rows.jsonl")]))
    assert len(read) == written > 5
    assert {row.solution.problem.source for row in read} == {"SVAMP", "GSM8K"}
