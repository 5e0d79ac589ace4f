"""`recipes/tiny_calculator.py`: its tables are those of the world, it learns, and a killed run resumes to the same weights."""

from __future__ import annotations

import pytest

from stepmark.backends import Completions
from stepmark.problems.arithmetic import arithmetic_problems

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
recipe = pytest.importorskip("tiny_calculator", reason="recipes are not here (an installed package)")
from tiny_policy_training import TinyPolicy, _tokenizer_texts, world_tokenizer  # noqa: E402

from stepmark.models.policies import load_policy  # noqa: E402

TINY = recipe.Calculator(
    width=32, heads=2, layers=1, inner=48, steps=24, warmup=5, facts=16, tokens=200, tables=12
)


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
    for a, sign, b in known:
        result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
        assert 2 <= result <= 99
        assert sign != "/" or a % b == 0


def test_only_results_and_solutions_are_learnt_and_a_batch_depends_on_its_number_alone() -> None:
    tokenizer = world_tokenizer(list(_tokenizer_texts(TinyPolicy())))
    table = recipe.facts(99)
    kinds = set()
    for step in (0, 11, 12, 13, 14, 15, 16):
        kind, texts = recipe.batch_of(step, TINY, tokenizer, table)
        kinds.add(kind)
        assert step >= 12 or kind == "tables"
        assert (kind, texts) == recipe.batch_of(step, TINY, tokenizer, table)
        for text in texts:
            learnt = tokenizer.decode(
                [t for t, is_learnt in zip(text.ids, text.learnt, strict=True) if is_learnt]
            )
            whole = tokenizer.decode(text.ids)
            if kind == "tables":
                lines = whole.splitlines()
                assert learnt.split() == [line.split("= ")[1] for line in lines]
                for line in lines:
                    a, sign, b, _, c = line.removeprefix("Result: ").split()
                    assert eval(f"{a} {sign} {b}") == int(c)  # noqa: S307 - digits and a sign of ours
            else:
                assert learnt.startswith(("Result after", "Product"))
    assert kinds == {"tables", "solutions"}


class Killed(Exception):
    pass


def test_a_killed_run_resumes_to_the_same_weights_and_learns(tmp_path, monkeypatch, capsys) -> None:
    recipe.train(tmp_path / "whole", TINY)
    batch_of = recipe.batch_of

    def dies(step: int, *rest: object) -> object:
        if step == 15:
            raise Killed
        return batch_of(step, *rest)

    monkeypatch.setattr(recipe, "batch_of", dies)
    with pytest.raises(Killed):
        recipe.train(tmp_path / "cut", TINY, save_every=0.0)
    assert not (tmp_path / "cut").exists()
    monkeypatch.setattr(recipe, "batch_of", batch_of)
    with pytest.raises(SystemExit, match="other settings"):
        recipe.train(tmp_path / "cut", recipe.Calculator(width=32, heads=2, steps=24))
    recipe.train(tmp_path / "cut", TINY)
    for name in ("model.safetensors", "config.json", "train.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    assert not (tmp_path / "cut.run").exists()
    # A finished run is not repeated.
    before = (tmp_path / "cut" / "model.safetensors").stat().st_mtime_ns
    recipe.train(tmp_path / "cut", TINY)
    assert (tmp_path / "cut" / "model.safetensors").stat().st_mtime_ns == before


def test_what_it_measures_is_what_it_writes(tmp_path) -> None:
    """Quotients after a training on nothing else: the share that is right when each is written out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "_SIGNS", {"/": 1.0})
        recipe.train(
            tmp_path / "made",
            recipe.Calculator(
                width=32, heads=2, layers=1, inner=48, steps=150, warmup=5, facts=64, tables=15050
            ),
        )
    shares = recipe.measure(tmp_path / "made")
    asked = recipe.facts(99)["/"]
    policy = load_policy(str(tmp_path / "made"))
    right = 0
    for a, sign, b in asked:
        [[written]] = policy.complete_many(
            [Completions(prompt=f"Result: {a} {sign} {b} =", max_tokens=4, temperature=0.0, stop=("\n",))]
        )
        right += written.text.strip() == str(a // b)
    assert shares["/"] > 0.3 > shares["+"]
    assert abs(right / len(asked) - shares["/"]) < 0.03
