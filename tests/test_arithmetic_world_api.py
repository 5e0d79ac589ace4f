"""`stepmark.ArithmeticWorld`: the same world as its parts, in five lines; models print as what they are."""

from __future__ import annotations

import pytest

import stepmark
from stepmark.errors import UsageError
from stepmark.problems.arithmetic import arithmetic_problems, read_arithmetic
from stepmark.problems.arithmetic_solver import SolverSettings, true_value


def test_problems_policy_and_prm_are_of_one_world():
    world = stepmark.ArithmeticWorld(error_rate=0.2)
    problems = world.problems(3, seed=5, steps=(3, 4))
    assert [(one.text, one.answer) for one in problems] == [
        (one.text, str(one.answer)) for one in arithmetic_problems(3, seed=5, steps=(3, 4))
    ]
    steps = ["3 + 4 = 7", "7 * 2 = 15"]
    text = "Start with 3. In the first step add 4. In the second step multiply by 2. What is the result?"
    settings = SolverSettings(error_rate=0.2)
    expected = [true_value(read_arithmetic(text), steps[:count], settings) for count in (1, 2)]
    assert world.prm().score(text, steps) == expected


def test_a_search_in_five_lines():
    world = stepmark.ArithmeticWorld(error_rate=0.1)
    results = stepmark.search(
        world.problems(4), world.policy(), world.prm(), method="beam", verifier="number", progress=False
    )
    verifier = stepmark.load_verifier("number")
    right = [verifier.verify(one.solution.text, one.problem.answer).correct for one in results]
    assert right == [True] * 4  # the PRM is never wrong


def test_an_error_rate_that_cannot_be():
    with pytest.raises(UsageError, match=r"error_rate must be in \[0, 0.5\], found 0.6"):
        stepmark.ArithmeticWorld(error_rate=0.6)


def test_models_print_as_what_they_are():
    world = stepmark.ArithmeticWorld(error_rate=0.2)
    assert repr(world.policy()) == "ArithmeticPolicy(error_rate=0.2)"
    assert repr(stepmark.load_verifier("number")) == "NumberVerifier(name='number')"
    assert repr(world.prm()).startswith("ScriptedPRM(name='truth', score_kind='probability'")
    assert repr(stepmark.ScriptedPolicy(["a"], name="x")) == "ScriptedPolicy(name='x')"
