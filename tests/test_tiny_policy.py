"""The tiny policy of the arithmetic world: it is small, loads by its name, goes on from prefixes, solves what it should."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.backends import Completions, Message, run_tasks
from stepmark.errors import CheckpointError, InputError, UsageError
from stepmark.models.policies import load_policy
from stepmark.problems.arithmetic import arithmetic_problems, read_arithmetic
from stepmark.problems.arithmetic_world import Solver, SolverSettings, true_labels
from stepmark.sampling import Sampling, sample
from stepmark.verifiers.base import BatchVerifier, load_verifier

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from stepmark.labels.labelling import Rollouts, probe  # noqa: E402
from stepmark.models.backbone import load_tokenizer  # noqa: E402
from stepmark.models.encoding import Encoder  # noqa: E402
from stepmark.models.places import ARITHMETIC, find_checkpoint  # noqa: E402
from stepmark.training.net import layout_for  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))
pytest.importorskip("tiny_policy_training", reason="recipes are not here (an installed package)")
from tiny_policy_student import (  # noqa: E402
    STUDENT,
    StudentSettings,
    misconception,
    student_solution,
    student_solutions,
)
from tiny_policy_training import (  # noqa: E402
    SPECIAL,
    Progress,
    TinyPolicy,
    _tokenizer_texts,
    encoded_drills,
    prompts_and_solutions,
    train_tiny_policy,
    world_tokenizer,
)

torch.set_num_threads(1)
NEVER = SolverSettings(error_rate=0.0, noise=0.0, verbosity=0.0, repair_rate=0.0)


@pytest.fixture(scope="module")
def folder():
    try:
        return find_checkpoint(ARITHMETIC)
    except CheckpointError:
        pytest.skip("the weights are not in this tree: python recipes/tiny_policy.py train makes them")


@pytest.fixture(scope="module")
def policy(folder):
    return load_policy(ARITHMETIC)


@pytest.fixture(scope="module")
def tokenizer():
    return world_tokenizer(list(_tokenizer_texts(TinyPolicy())))


def test_the_shipped_tokenizer_is_the_one_that_the_recipe_makes(folder, tokenizer) -> None:
    shipped = load_tokenizer(folder)
    assert shipped.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert shipped.chat_template == tokenizer.chat_template
    assert (shipped.eos_token, shipped.pad_token) == (tokenizer.eos_token, tokenizer.pad_token)


# -- the student


def _student(**rates: float) -> StudentSettings:
    names = ("divide_as_subtract", "smaller_from_larger", "forgotten_carry")
    return StudentSettings(solver=NEVER, **(dict.fromkeys(names, 0.0) | rates))


@pytest.mark.parametrize(
    ("operation", "rates", "line"),
    [
        ("subtract 38", {"smaller_from_larger": 1.0}, "62 - 38 = 36"),  # 6 - 3 tens, 8 - 2 units
        ("subtract 38", {"forgotten_carry": 1.0}, "62 - 38 = 24"),
        ("subtract 31", {"smaller_from_larger": 1.0}, "62 - 31 = 31"),  # nothing to borrow
        ("add 49", {"forgotten_carry": 1.0}, "62 + 49 = 101"),
        ("add 49", {"smaller_from_larger": 1.0}, "62 + 49 = 111"),
        ("add 27", {"forgotten_carry": 1.0}, "62 + 27 = 89"),
        ("divide by 2", {"divide_as_subtract": 1.0}, "62 - 2 = 60"),
        ("multiply by 3", {"divide_as_subtract": 1.0, "forgotten_carry": 1.0}, "62 * 3 = 186"),
    ],
)
def test_misconceptions_by_hand(operation: str, rates: dict[str, float], line: str) -> None:
    problem = read_arithmetic(f"Start with 62. In the first step {operation}. What is the result?")
    first, answer = student_solution(problem, random.Random(0), _student(**rates))
    assert first == f"Result after the first step: {line}"
    assert answer == f"The answer is {line.rsplit(maxsplit=1)[-1]}."


def test_a_misconception_strikes_with_its_rate() -> None:
    problem = read_arithmetic("Start with 162. In the first step subtract 38. What is the result?")
    found = misconception(Solver(problem, NEVER), Solver(problem, NEVER).start())
    assert found is not None
    assert (found[0], found[2].running) == (STUDENT.smaller_from_larger, 136)
    draws = 2000
    quiet = replace(STUDENT, solver=NEVER)
    struck = sum(student_solution(problem, random.Random(i), quiet)[0].endswith("136") for i in range(draws))
    spread = (STUDENT.smaller_from_larger * (1 - STUDENT.smaller_from_larger) / draws) ** 0.5
    assert abs(struck / draws - STUDENT.smaller_from_larger) < 4.5 * spread


def test_students_are_the_same_from_their_seed_and_rates_are_checked() -> None:
    assert list(student_solutions(6, seed=4)) == [*student_solutions(9, seed=4)][:6]
    assert list(student_solutions(6, seed=4)) != list(student_solutions(6, seed=5))
    with pytest.raises(UsageError, match=r"forgotten_carry must be in \[0, 1\], found 1.5"):
        StudentSettings(forgotten_carry=1.5)


def test_without_misconceptions_and_errors_a_student_is_right() -> None:
    for problem, _ in student_solutions(20, seed=1):
        assert student_solution(problem, random.Random(0), _student()) == problem.steps


def test_quantities_can_be_kept_small() -> None:
    problems = list(arithmetic_problems(60, seed=3, largest=99))
    assert max(max(problem.values) for problem in problems) <= 99
    assert max(max(problem.values) for problem in arithmetic_problems(60, seed=3)) > 99
    with pytest.raises(UsageError, match="largest=1000"):
        list(arithmetic_problems(1, largest=1000))


# -- the tokenizer


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_from_its_tokens(tokenizer, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text


@given(st.integers(0, 10**6), st.integers(1, 7))
@settings(max_examples=50, deadline=None)
def test_a_solution_cut_after_any_step_has_the_tokens_that_it_had(tokenizer, seed: int, cut: int) -> None:
    [(problem, lines)] = student_solutions(1, seed=seed)
    prompt, begun, rest = (
        problem.text + "\n\n",
        "".join(f"{one}\n" for one in lines[:cut]),
        "\n".join(lines[cut:]),
    )
    parts = [token for part in (prompt, begun, rest) for token in tokenizer(part)["input_ids"]]
    assert tokenizer(prompt + begun + rest)["input_ids"] == parts


def test_a_digit_is_a_token_and_so_is_a_line_end(tokenizer) -> None:
    pieces = tokenizer("Result: 905 - 17 = 888\n\n")["input_ids"]
    assert [tokenizer.decode([piece]) for piece in pieces] == [
        *("Result", ":", " 9", "0", "5", " -", " 1", "7", " =", " 8", "8", "8", "\n", "\n")
    ]


def test_a_prm_made_from_it_reads_a_marker_after_each_step(tokenizer) -> None:
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == list(SPECIAL)
    layout = layout_for(tokenizer)
    assert layout.mark == "\n<file_sep>"
    encoder = Encoder(tokenizer, layout, max_tokens=1024)
    encoder.check()
    problem = next(arithmetic_problems(1, seed=900, steps=(6, 6)))
    encoded = encoder.encode(problem.solution())
    assert [int(encoded.ids[end]) for end in encoded.reads if end is not None] == [3] * 6


# -- the shipped weights


def test_it_is_small(folder) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3_000_000
    assert sorted(file.suffix for file in folder.iterdir()) == [
        ".jinja",
        *[".json"] * 5,
        ".md",
        ".safetensors",
    ]
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_it_is_the_model_that_its_settings_describe(folder, policy) -> None:
    import json

    written = json.loads((folder / "train.json").read_text())
    ours = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(TinyPolicy()).items()}
    assert written == ours
    assert policy.name == ARITHMETIC


def _right(problems, policy, how: Sampling) -> list[list[bool]]:
    with load_verifier("number") as verifier:
        return [
            [
                verdict.correct is True
                for verdict in verifier.verify_many((w.text, str(problem.answer)) for w in found.samples)
            ]
            for problem, found in zip(
                problems, sample([p.problem for p in problems], policy, how), strict=True
            )
        ]


@pytest.mark.parametrize("prompt", ["chat", "text"])
def test_it_solves_about_one_in_three(policy, prompt) -> None:
    problems = list(arithmetic_problems(40, seed=900, steps=(3, 6), surface="formula", largest=99))
    right = _right(
        problems, policy, Sampling(n=8, temperature=0.8, prompt=prompt, greedy=False, max_tokens=256)
    )
    rate = sum(map(sum, right)) / 320
    assert 0.25 < rate < 0.5
    # Some problems are solved always, some never, most now and then: there is something to label and to choose.
    assert sum(any(row) and not all(row) for row in right) >= 12


def test_it_goes_on_from_a_prefix_and_carries_its_error(policy) -> None:
    problem = read_arithmetic(
        "Start with 20. In the first step add 30. In the second step multiply by 2. "
        "In the third step add 11. What is the result?"
    )
    begun = "Result after the first step: 20 + 30 = 53\n"
    [samples] = policy.complete_many(
        [
            Completions(
                prompt=(Message(role="user", content=problem.text),),
                prefill=begun,
                n=16,
                temperature=0.8,
                max_tokens=100,
                first=0,
            )
        ]
    )
    nexts = [sample.text.split("\n")[0] for sample in samples]
    assert all(
        re.match(r"(Correction, )?Result after the (first|second|third) step: ", line) for line in nexts
    )
    carried = sum(line.startswith("Result after the second step: 53 * 2 = ") for line in nexts)
    assert carried >= 8
    assert all(sample.finish == "end" for sample in samples)


def test_v_is_measured_from_any_prefix(policy) -> None:
    problem = read_arithmetic(
        "Start with 20. In the first step add 30. In the second step multiply by 2. What is the result?"
    )
    wrong = problem.solution(
        ["Result after the first step: 20 + 30 = 51", "Result after the second step: 51 * 2 = 102"]
    )
    how = Rollouts(max_tokens=120)
    with load_verifier("number") as verifier:
        compared = BatchVerifier(verifier)
        values = [
            value
            for _, value in run_tasks((0, 1, 2), lambda steps: probe(wrong, steps, 60, how, policy, compared))
        ]
    assert values[0].successes > 30 > values[2].successes
    assert all(value.trials + value.cost.unparsed == 60 for value in values)


# -- how they are made


def test_training_lowers_the_loss_and_is_the_same_each_time(tmp_path) -> None:
    tiny = TinyPolicy(
        width=32, layers=1, heads=2, inner=48, drills=300, student=150, formulas=120, batch_tokens=256, seed=3
    )
    runs: list[list[Progress]] = []
    for name in ("one", "two"):
        runs.append([])
        train_tiny_policy(tmp_path / name, tiny, report=runs[-1].append)
    losses = [(p.phase, p.loss) for p in runs[0]]
    assert losses == [(p.phase, p.loss) for p in runs[1]]
    assert [p.phase for p in runs[0] if p.seen == 1] == ["drills", "student", "formulas"]
    for phase, share in (("drills", 0.9), ("student", 0.9), ("formulas", 1.0)):
        own = [loss for name, loss in losses if name == phase]
        assert len(own) >= 2
        assert own[-1] < share * own[0]
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    [[written]] = load_policy(str(tmp_path / "one")).complete_many(
        [Completions(prompt="Start with 3.", max_tokens=3)]
    )
    assert written.tokens is not None
    with pytest.raises(UsageError, match="exists; delete it"):
        train_tiny_policy(tmp_path / "one", tiny, report=runs[-1].append)


def test_only_results_of_drills_and_only_solutions_are_learnt() -> None:
    problems = list(student_solutions(40, seed=2))
    texts = list(prompts_and_solutions(iter(problems), seed=2))
    assert {prompt.startswith("<|im_start|>user\n") for prompt, _ in texts} == {True, False}
    assert {Sampling().instruction in prompt for prompt, _ in texts} == {True, False}
    tokenizer = world_tokenizer([prompt + solution for prompt, solution in texts])
    [drill] = encoded_drills(1, tokenizer, seed=2, steps=(3, 8), largest=99, lines=3)
    lines = tokenizer.decode(drill.ids).splitlines()
    assert len(lines) == 3
    learnt = [token for token, is_learnt in zip(drill.ids, drill.learnt, strict=True) if is_learnt]
    assert tokenizer.decode(learnt).split() == [line.split("= ")[1] for line in lines]


def test_the_true_labels_can_be_told_of_what_it_writes(policy) -> None:
    problems = list(arithmetic_problems(10, seed=901, steps=(3, 6), surface="formula", largest=99))
    told = 0
    for problem, found in zip(
        problems, sample([p.problem for p in problems], policy, Sampling(n=4, greedy=False)), strict=True
    ):
        for written in found.samples:
            try:
                labels, _ = true_labels(problem, written.text.split("\n"))
            except InputError:
                continue
            told += 1
            if all(labels):
                assert problem.steps[-1] == written.text.split("\n")[-1]
    # Of 40: now and then it writes a line that states no quantity of the problem.
    assert told >= 28
