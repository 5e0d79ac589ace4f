"""`recipes/tiny_calculator.py` and the base that ships: its tables are those of the world, it learns, it knows them, and a killed run resumes to the same weights."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from fractions import Fraction

import pytest

from stepmark.backends import Completions, Message
from stepmark.problems.arithmetic import arithmetic_problems, read_arithmetic
from stepmark.problems.arithmetic_world import true_labels
from stepmark.verifiers.base import load_verifier

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
recipe = pytest.importorskip("tiny_calculator", reason="recipes are not here (an installed package)")

from stepmark.models.backbone import load_tokenizer  # noqa: E402
from stepmark.models.places import ARITHMETIC, CALCULATOR, find_checkpoint  # noqa: E402
from stepmark.models.policies import load_policy  # noqa: E402

TINY = recipe.Calculator(steps=12, warmup=3, facts=16, tokens=200)


def exactly(a: int, sign: str, b: int) -> Fraction:
    left = Fraction(a)
    return {"+": left + b, "-": left - b, "*": left * b, "/": left / b}[sign]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(find_checkpoint(ARITHMETIC))


@pytest.fixture(scope="module")
def calculator():
    return load_policy(CALCULATOR)


# -- what it is taught


def test_the_tables_hold_every_calculation_of_the_world_and_no_other_result() -> None:
    table = recipe.facts(99)
    known = {fact for facts in table.values() for fact in facts}
    asked = {
        problem.calculation(place)
        for problem in arithmetic_problems(2000, seed=7, steps=(3, 7), surface="formula", largest=99)
        for place in range(len(problem.operations))
    }
    assert len(asked) > 2000
    assert asked <= known
    for fact in known:
        assert recipe.result_of(*fact) == exactly(*fact)
        assert 2 <= exactly(*fact) <= 99


def test_false_results_are_false_and_the_bugs_of_the_policy_are_among_them() -> None:
    dice = random.Random(0)
    for facts in recipe.facts(99).values():
        for fact in dice.sample(facts, 60):
            wrong = {recipe.false_result(*fact, dice) for _ in range(40)}
            assert exactly(*fact) not in wrong
            assert min(wrong) >= 0
    # A borrow and a carry forgotten, another sign.
    assert 36 in {recipe.false_result(62, "-", 38, dice) for _ in range(200)}
    assert 75 in {recipe.false_result(47, "+", 38, dice) for _ in range(200)}
    assert 55 in {recipe.false_result(60, "/", 5, dice) for _ in range(200)}


def test_nothing_from_the_first_token_that_is_not_due_is_learnt(tokenizer) -> None:
    parts = recipe.line("Result after the first step", (50, "-", 18), (50, "+", 18), 86)
    text = recipe.encoded(
        [recipe.Part("Start with 50.\n", "Start with 50.\n", learnt=False), *parts], tokenizer
    )
    shown = [(tokenizer.decode([token]), learnt) for token, learnt in zip(text.ids, text.learnt, strict=True)]
    assert shown[:6] == [(t, False) for t in ("Start", " with", " 5", "0", ".", "\n")]
    # 50 + 18 where 50 - 18 is due, then 86 for 68: not the sign, and nothing from the first digit of the result.
    learnt = [(" 5", True), ("0", True), (" +", False), (" 1", True), ("8", True), (" =", True)]
    assert shown[12:] == [*learnt, (" 8", False), ("6", False), ("\n", False)]
    # A number that is cut short differs at what stands in place of its end.
    [cut] = [recipe.encoded([recipe.Part("a", "a"), recipe.Part(" 50\n", " 5\n")], tokenizer)]
    assert cut.learnt[-2:] == [True, False]


def test_what_is_learnt_is_due(tokenizer) -> None:
    """A text of tables is learnt up to its false results; a solution without a part that is not learnt is right in every step."""
    kinds, right, wrong = set(), 0, 0
    for step in range(12):
        kind, batch = recipe.batch_of(step, TINY, tokenizer, recipe.facts(99))
        kinds.add(kind)
        assert (kind, batch) == recipe.batch_of(step, TINY, tokenizer, recipe.facts(99))
        for text in batch:
            whole = tokenizer.decode(text.ids)
            learnt = tokenizer.decode([t for t, learn in zip(text.ids, text.learnt, strict=True) if learn])
            if kind == "tables":
                true = [
                    c
                    for a, sign, b, _, c in (line.split()[1:] for line in whole.splitlines())
                    if exactly(int(a), sign, int(b)) == int(c)
                ]
                # Of a false result the digits before the first wrong one are learnt.
                assert {f" {c}" for c in true} <= {f" {line.split()[-1]}" for line in learnt.splitlines()}
                wrong += 8 - len(true)
                continue
            lines = whole.rpartition("assistant\n" if "assistant" in whole else "\n\n")[2].split("\n")
            lines = [line.removesuffix("<|im_end|>") for line in lines if line]
            labels, _ = true_labels(read_arithmetic(whole), lines)
            if learnt.removesuffix("<|im_end|>").strip() == "\n".join(lines):
                right += 1
                assert all(labels)
            wrong += labels.count(False)
    assert kinds == {"tables", "solutions"}
    assert right > 1
    assert wrong > 10


def test_a_phase_of_products_has_problems_with_a_product_alone(tokenizer) -> None:
    settings = recipe.Calculator(products=True, tokens=300)
    for step in range(4):
        kind, batch = recipe.batch_of(step, settings, tokenizer, recipe.facts(99))
        assert kind == "solutions"
        assert len(batch) > 1
        for text in batch:
            problem = read_arithmetic(tokenizer.decode(text.ids))
            assert any(operation.is_product for operation in problem.operations)


# -- how it is trained


class Killed(Exception):
    pass


def test_a_killed_run_resumes_to_the_same_weights(tmp_path, monkeypatch) -> None:
    recipe.train(tmp_path / "whole", TINY)
    batch_of = recipe.batch_of

    def dies(step: int, *rest: object) -> object:
        if step == 8:
            raise Killed
        return batch_of(step, *rest)

    monkeypatch.setattr(recipe, "batch_of", dies)
    with pytest.raises(Killed):
        recipe.train(tmp_path / "cut", TINY, save_every=0.0)
    assert not (tmp_path / "cut").exists()
    monkeypatch.setattr(recipe, "batch_of", batch_of)
    with pytest.raises(SystemExit, match="other settings"):
        recipe.train(tmp_path / "cut", recipe.Calculator(steps=24))
    recipe.train(tmp_path / "cut", TINY)
    for name in ("model.safetensors", "config.json", "train.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    assert not (tmp_path / "cut.run").exists()
    # A finished run is not repeated.
    before = (tmp_path / "cut" / "model.safetensors").stat().st_mtime_ns
    recipe.train(tmp_path / "cut", TINY)
    assert (tmp_path / "cut" / "model.safetensors").stat().st_mtime_ns == before


# -- the shipped weights


def test_it_ships_small_with_its_settings(tokenizer) -> None:
    folder = find_checkpoint(CALCULATOR)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 8_000_000
    assert json.loads((folder / "train.json").read_text()) == asdict(recipe.PHASES[-1])
    assert load_tokenizer(folder).backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_it_knows_its_tables(calculator) -> None:
    """Facts written out one by one and compared with exact fractions; the recipe's own measure says the same."""
    dice = random.Random(5)
    asked = [fact for facts in recipe.facts(99).values() for fact in dice.sample(facts, 50)]
    written = calculator.complete_many(
        [
            Completions(prompt=f"Result: {a} {sign} {b} =", max_tokens=4, temperature=0.0, stop=("\n",))
            for a, sign, b in asked
        ]
    )
    right = sum(
        exactly(*fact) == Fraction(sample.text.strip() or "-1")
        for fact, [sample] in zip(asked, written, strict=True)
    )
    assert right / len(asked) > 0.94
    shares = recipe.measure(find_checkpoint(CALCULATOR))
    assert sum(shares[sign] for sign in "+-*/") / 4 == pytest.approx(right / len(asked), abs=0.03)


def test_it_solves_held_out_problems(calculator) -> None:
    problems = list(arithmetic_problems(40, seed=900, steps=(3, 6), surface="formula", largest=99))
    written = calculator.complete_many(
        [
            Completions(prompt=(Message(role="user", content=p.text),), max_tokens=200, temperature=0.0)
            for p in problems
        ]
    )
    with load_verifier("number") as verifier:
        verdicts = verifier.verify_many(
            (sample.text, str(problem.answer)) for problem, [sample] in zip(problems, written, strict=True)
        )
        assert sum(verdict.correct is True for verdict in verdicts) > 22
