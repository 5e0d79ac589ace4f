"""`recipes/default_prm_teacher.py`: a teacher's step probabilities as soft labels, on candidates written by hand."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from stepmark.training.examples import LabelRules, examples
from stepmark.training.run import training_rows
from stepmark.verifiers.base import load_verifier

recipe = pytest.importorskip("default_prm_teacher", reason="recipes are not here (an installed package)")

RIGHT = (["He has 3 + 4 = 7.", "The answer is 7."], [0.9, 0.8])
WRONG = (["He has 3 + 4 = 8.", "So he has 8.", "The answer is 8."], [0.3, 0.2, 0.1])
LATE = (["He has 3 + 4 = 7.", "Twice that is 15.", "The answer is 15."], [0.9, 0.4, 0.9])


def candidate(steps: list[str], scores: list[float], teacher: str = "qwen-7b") -> dict[str, object]:
    return {"text": "\n".join(steps), "steps": steps, "scores": {teacher: scores}}


def row(problem: str, *candidates: tuple[list[str], list[float]], in_processbench: bool = False):
    return {
        "id": problem,
        "problem": problem,
        "gold": "7",
        "in_processbench": in_processbench,
        "candidates": [candidate(*one) for one in candidates],
    }


def file_of(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return path


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *words: object) -> Path:
    monkeypatch.setattr(sys, "argv", ["default_prm_teacher.py", str(out), *map(str, words)])
    recipe.main()
    return out


def agreed(*candidates: tuple[list[str], list[float]]) -> tuple[list, Counter[str]]:
    counts: Counter[str] = Counter()
    with load_verifier("math") as verifier:
        return list(recipe.agreed(row("What has he?", *candidates), "qwen-7b", verifier, counts)), counts


def test_a_solution_ends_at_the_teachers_first_error_and_keeps_its_probabilities() -> None:
    (right, wrong, late), _ = agreed(RIGHT, WRONG, LATE)
    assert (right.solution.texts, right.scores) == (tuple(RIGHT[0]), (0.9, 0.8))
    assert (wrong.solution.texts, wrong.scores) == (("He has 3 + 4 = 8.",), (0.3,))
    assert (late.solution.texts, late.scores) == (("He has 3 + 4 = 7.", "Twice that is 15."), (0.9, 0.4))
    assert [one.right for one in (right, wrong, late)] == [True, False, False]
    assert [j.share for (j,) in late.labelled("qwen-7b").judgements] == [0.9, 0.4]
    assert [j.rating for (j,) in late.labelled("qwen-7b", hard=True).judgements] == [1, -1]


def test_where_teacher_and_answer_disagree_nothing_is_learnt() -> None:
    unseen = (WRONG[0], [0.9, 0.9, 0.9])
    blamed = (RIGHT[0], [0.2, 0.9])
    silent = (["He has some."], [0.2])
    short = (RIGHT[0], [0.9])
    kept, counts = agreed(unseen, blamed, silent, short, ([], []), RIGHT, RIGHT)
    assert [one.solution.texts for one in kept] == [tuple(RIGHT[0])]
    assert counts == {
        "answer wrong, teacher finds no error": 1,
        "answer right, teacher finds an error": 1,
        "no readable answer, teacher finds an error": 1,
        "without usable scores": 2,
        "right": 1,
        "repeated": 1,
    }


@pytest.mark.parametrize(
    ("text", "gold", "correct"),
    [
        ("The answer is 7.", "7", True),
        ("The answer is 8.", "7", False),
        ("So she walks\nHence she has walked 1,200", "1200", True),
        ("Hence she walks and so on", "7", None),
        ("Hence\nshe walks, of the 7 miles, some", "\\frac{1}{2}", None),
    ],
)
def test_the_final_answer(text: str, gold: str, correct: bool | None) -> None:
    with load_verifier("math") as verifier:
        assert recipe.is_correct(verifier, text, gold) is correct


def test_rounds_hold_new_solutions_right_and_wrong_in_equal_parts(monkeypatch, tmp_path) -> None:
    many = [
        *(([f"He has {n} + 7.", "The answer is 7."], [0.9, 0.9]) for n in range(9)),
        *(([f"He has {n} + 8.", "The answer is 8."], [0.4, 0.9]) for n in range(3)),
    ]
    rows = [row(f"Problem {n}: what has he?", *many) for n in range(10)]
    rows.append(row("A problem of the benchmark, marked?", *many, in_processbench=True))
    rows.append(row("A problem of the benchmark, known by its words?", *many))
    benchmark = file_of(tmp_path / "b.jsonl", [{"problem": "a problem of the BENCHMARK, known by its words"}])
    rated = {
        "solution": {"problem": {"text": "Rated?"}, "steps": [{"text": "a"}]},
        "judgements": [[{"kind": "correctness", "judge": "human", "rating": 1}]],
    }
    others = [
        {**rated, "solution": {**rated["solution"], "problem": {"text": f"Rated {n}?"}}} for n in range(6)
    ]
    words = ["--candidates", file_of(tmp_path / "c.jsonl", rows), "--benchmark", benchmark, "--rounds", 3]
    words += ["--easy", 0, "--beside", f"{file_of(tmp_path / 'o.jsonl', others)}=3"]
    out = run(monkeypatch, tmp_path / "out", *words)
    seen: Counter[tuple[str, ...]] = Counter()
    for number, wanted in ((1, 2), (2, 1), (3, 0)):
        made = list(training_rows([str(out / f"round-{number}.jsonl")]))
        taught = [one for one in made if not one.solution.problem.text.startswith("Rated")]
        wrong = [one for one in taught if len(one.solution.steps) == 1]
        assert (len(taught), len(wrong)) == (9 * 2 * wanted, 9 * wanted)
        assert len(made) - len(taught) == 2
        seen.update((one.solution.problem.text, *one.solution.texts) for one in made)
        # What `stepmark train` fits at each step is the teacher's probability.
        values = {
            t.value for e in examples(made, LabelRules(labels="value")) for t in e.targets if t is not None
        }
        assert values == ({0.9, 0.4} if wanted else set())
    assert max(seen.values()) == 1
    held = list(training_rows([str(out / "teacher_held_out.jsonl")]))
    assert {j.rating for one in held for (j,) in one.labelled.judgements} == {1, -1}
    (problem,) = {one.solution.problem.text for one in held}
    lines = (out / "taught.jsonl").read_text(encoding="utf-8").splitlines()
    known = [json.loads(line)["problem"] for line in lines]
    assert len(known) == 9 and problem not in known and all(text.startswith("Problem") for text in known)
    again = run(monkeypatch, tmp_path / "again", *words)
    for file in sorted(out.iterdir()):
        assert file.read_bytes() == (again / file.name).read_bytes()
