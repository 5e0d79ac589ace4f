"""The arithmetic world: its truth against an evaluator of our own, its V against enumeration and against rollouts."""

from __future__ import annotations

import asyncio
import math
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepmark
from stepmark.backends import ChoiceLogprobs, Completions, Message
from stepmark.errors import InputError, UsageError
from stepmark.problems.arithmetic import arithmetic_problems, read_arithmetic, read_number, write_number
from stepmark.problems.arithmetic_world import (
    ArithmeticPolicy,
    Solver,
    SolverSettings,
    count_tokens,
    next_steps,
    true_labels,
    true_value,
    true_values,
    wrong_solutions,
)
from stepmark.verifiers.base import load_verifier

CHAIN = read_arithmetic(
    "Start with 10. In the first step add 5. The number 8 is not used. In the second step multiply by 2. "
    "In the third step subtract 2 times 3. In the fourth step divide by 4. What is the result?"
)
CHAIN_STEPS = (
    "Result after the first step: 10 + 5 = 15",
    "Result after the second step: 15 * 2 = 30",
    "Product of the third step: 2 * 3 = 6",
    "Result after the third step: 30 - 6 = 24",
    "Result after the fourth step: 24 / 4 = 6",
    "The answer is 6.",
)

seeds = st.integers(0, 10**6)


def problem_of_seed(seed):
    return next(arithmetic_problems(1, seed=seed))


# -- problems


def test_a_problem_worked_by_hand():
    assert CHAIN.steps == CHAIN_STEPS
    assert CHAIN.answer == 6
    assert CHAIN.values == (15, 30, 6, 24, 6)
    assert CHAIN.distractors == (8,)
    assert CHAIN.problem.answer == "6"


_GROUPS = r"(\d+) (?:boxes|groups|crates|presents|bills|chests|fines|baskets) of (\d+)"
_LOSS = r"sells|get off|lends out|spends|loses|are sold|gives away|sends away|pays|go out|subtract"


def evaluate(text):
    """The answer of a problem by the words of its sentences; shares nothing with the package."""
    opening, *events = re.findall(r"[^.?]+[.?]", text)
    quantity = Fraction(re.findall(r"\d+", opening)[0])
    for event in events:
        numbers = [int(number) for number in re.findall(r"\d+", event)]
        if event.startswith(" Then all"):
            quantity *= numbers[0]
        elif re.match(r" (On|At|In) the \w+ (day|stop|week|month|round|hour|step) ", event):
            if re.search(r"times as|multipl", event):
                quantity *= numbers[0]
            elif re.search(r"1 of every|divide", event):
                quantity /= numbers[-1]
            else:
                product = re.search(_GROUPS, event) or re.search(r"(\d+) times (\d+)", event)
                by = int(product[1]) * int(product[2]) if product else numbers[0]
                quantity += -by if re.search(_LOSS, event) else by
    return quantity


@given(seeds)
def test_the_answer_is_what_another_reader_computes(seed):
    problem = problem_of_seed(seed)
    assert evaluate(problem.text) == problem.answer


@given(seeds)
def test_a_problem_is_read_back_from_any_text_around_it(seed):
    first, second = arithmetic_problems(2, seed=seed)
    text = f"Solve this. {first.text}\n{first.steps[0]}\n\nNow this: {second.text}\n\nStep by step."
    assert read_arithmetic(text) == second


def test_the_default_problems():
    problems = list(arithmetic_problems(600, seed=1))
    assert {len(problem.steps) for problem in problems} == set(range(4, 17))
    assert len({problem.domain for problem in problems}) == 7
    assert 240 < sum(problem.domain == "formula" for problem in problems) < 360
    assert 0.57 < sum(true_value(problem, []) for problem in problems) / 600 < 0.63


def test_problems_do_not_depend_on_how_many_are_asked_for():
    assert list(arithmetic_problems(3, seed=4)) == list(arithmetic_problems(8, seed=4))[:3]
    assert list(arithmetic_problems(3, seed=4)) != list(arithmetic_problems(3, seed=5))
    assert [problem.id for problem in arithmetic_problems(2, seed=4)] == ["arithmetic-4-0", "arithmetic-4-1"]


@pytest.mark.parametrize(
    "text",
    [
        "What is 2 + 2?",
        "Start with 10. In the first step add 5.",
        "Start with 10. In the first step ponder. What is the result?",
        "Start with 10. What is the result?",
        "Start with 10. In the first step add 5. In the first step add 6. What is the result?",
        "Start with 10. In the first step divide by 4. What is the result?",
        "Start with 10. In the first step multiply by 1. What is the result?",
        "Start with 10. In the first step divide by 0. What is the result?",
        "Start with 10. In the first step subtract 10. What is the result?",
    ],
)
def test_what_is_no_problem_of_this_world_is_refused(text):
    with pytest.raises(InputError, match="expected"):
        read_arithmetic(text)


@pytest.mark.parametrize(
    "bad",
    [{"steps": (1, 4)}, {"steps": (5, 4)}, {"steps": (4, 17)}, {"surface": "verse"}, {"distractors": -1}],
)
def test_bad_settings_of_the_maker(bad):
    with pytest.raises(UsageError, match="expected"):
        next(arithmetic_problems(1, **bad))


@given(st.fractions(max_denominator=400))
def test_numbers_are_written_exactly(number):
    assert read_number(write_number(number)) == number


# -- labels


def with_step(place, text):
    return [*CHAIN_STEPS[:place], text, *CHAIN_STEPS[place + 1 :]]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (1, "Result after the second step: 15 * 2 = 31"),  # a slip
        (1, "Result after the second step: 15 + 2 = 17"),  # a wrong operation
        (1, "Result after the second step: 15 * 8 = 120"),  # a wrong number: the distractor
        (1, "Result after the second step: 10 * 2 = 20"),  # an older quantity
        (1, "Result after the second step: 31"),
        (2, "Result after the third step: 30 - 6 = 24"),  # the product is left out
        (2, "Result after the second step: 30 * 2 = 60"),  # done again
        (2, "Product of the third step: 2 * 3 = 6 loaves"),  # a unit where none is
        (3, "Result after the third step: 6 - 30 = -24"),  # sides that may not be changed
        (4, "The answer is 24."),  # an early stop
        (5, "The answer is 7."),
    ],
)
def test_each_kind_of_error(place, text):
    labels, first = true_labels(CHAIN, with_step(place, text)[: place + 1])
    assert labels == (True,) * place + (False,)
    assert first == place


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (1, "Result after the second step: 2 * 15 = 30"),
        (1, "So we double. Result after the second step: 15 × 2 = 30."),
        (1, "Result after the second step: 30"),
        (2, "Result after the second step: 15 * 2 = 30"),
        (5, "So the answer is 6"),
    ],
)
def test_other_ways_to_be_right(place, text):
    assert true_labels(CHAIN, with_step(place, text)[: place + 1]) == ((True,) * (place + 1), -1)


def test_a_step_that_goes_on_from_a_wrong_quantity_is_right():
    steps = (
        "Result after the first step: 10 + 5 = 16",
        "Result after the second step: 16 * 2 = 32",
        "Product of the third step: 2 * 3 = 6",
        "Correction, Result after the second step: 15 * 2 = 30",
        "Result after the third step: 30 - 6 = 24",
        "Result after the fourth step: 24 / 4 = 6",
        "The answer is 6.",
    )
    assert true_labels(CHAIN, steps) == ((False, *(True,) * 6), 0)
    assert (
        true_labels(CHAIN, [*steps[:3], "Correction, Result after the second step: 15 * 2 = 31"])[0][3]
        is False
    )


@pytest.mark.parametrize(
    "text",
    ["Let us think.", "Loaves after the first day: 3 + 4 = 7", "Result after the first step: 3 + 4 + 8 = 15"],
)
def test_a_step_that_is_not_of_this_world_has_no_label(text):
    with pytest.raises(InputError, match="step 1: expected"):
        true_labels(CHAIN, [CHAIN_STEPS[0], text])


def scrambled(problem, dice):
    """Steps with lines altered, left out, repeated, put elsewhere: what no policy of ours writes."""
    steps = list(problem.steps)
    for _ in range(dice.randint(0, 3)):
        at = dice.randrange(len(steps))
        change = dice.choice(["number", "drop", "repeat", "swap", "sign"])
        if change == "number":
            numbers = list(re.finditer(r"\d+", steps[at]))
            if numbers:
                spot = dice.choice(numbers)
                new = str(max(0, int(spot[0]) + dice.choice([-2, -1, 1, 5])))
                steps[at] = steps[at][: spot.start()] + new + steps[at][spot.end() :]
        elif change == "sign":
            steps[at] = re.sub(r" [-+*] ", f" {dice.choice('+-*')} ", steps[at])
        elif change == "drop" and len(steps) > 1:
            del steps[at]
        elif change == "repeat":
            steps.insert(dice.randrange(len(steps)), steps[at])
        elif change == "swap":
            other = dice.randrange(len(steps))
            steps[at], steps[other] = steps[other], steps[at]
    return steps


@given(seeds)
def test_where_every_step_is_right_so_is_the_answer(seed):
    problem = problem_of_seed(seed)
    steps = scrambled(problem, random.Random(seed))
    labels, first = true_labels(problem, steps)
    assert first == next((place for place, right in enumerate(labels) if not right), -1)
    answers = [step for step in steps if step.startswith("The answer")]
    if first == -1 and answers:
        assert answers[-1] == f"The answer is {problem.answer}."


# -- the solver


def test_v_by_hand():
    problem = read_arithmetic("Start with 10. In the first step add 5. What is the result?")
    how = SolverSettings(noise=0.0, repair_rate=0.2, repair_decay=0.5)
    error, last = Solver(problem, how).error_rates
    # Once wrong, only a correction before the answer helps; a tenth of the errors are early stops, the rest leave 15 wrong.
    by_hand = (1 - error) * (1 - last) + error * 0.9 * 0.2 * (1 - last)
    assert true_value(problem, [], how) == pytest.approx(by_hand, abs=1e-12)
    wrong = ["Result after the first step: 10 + 5 = 16"]
    assert true_value(problem, wrong, how) == pytest.approx(0.2 * (1 - last), abs=1e-12)
    assert true_value(problem, [*wrong, "The answer is 16."], how) == 0
    assert true_value(problem, ["Result after the first step: 10 + 5 = 15", "The answer is 15."], how) == 1


@settings(max_examples=25, deadline=None)
@given(seeds, st.sampled_from([SolverSettings(), SolverSettings(error_rate=0.3, repair_rate=0.5)]))
def test_v_is_the_mean_of_v_over_the_next_steps(seed, how):
    dice = random.Random(seed)
    problem = problem_of_seed(seed)
    steps = scrambled(problem, dice)[: dice.randint(0, len(problem.steps))]
    while True:
        following = next_steps(problem, steps, how)
        if not following:
            break
        assert math.fsum(following.values()) == pytest.approx(1, abs=1e-12)
        mean = math.fsum(p * true_value(problem, [*steps, step], how) for step, p in following.items())
        assert true_value(problem, steps, how) == pytest.approx(mean, abs=1e-12)
        steps.append(dice.choice(list(following)))
    assert true_value(problem, steps, how) in (0, 1)


CANCELLING = [
    "Result after the first step: 10 + 5 = 15",
    "Result after the second step: 15 * 2 = 31",
    "Product of the third step: 2 * 3 = 7",
]


@pytest.mark.parametrize(
    "steps",
    [
        [],
        CHAIN_STEPS[:3],
        CANCELLING[:2],
        CANCELLING,
        [CHAIN_STEPS[0], CHAIN_STEPS[2]],
        ["Hm.", CHAIN_STEPS[1]],
    ],
    ids=["start", "right", "wrong", "two that cancel", "one left out", "with a remark"],
)
def test_v_against_rollouts(steps):
    count = 4000
    how = SolverSettings(error_rate=0.12, repair_rate=0.3)
    prefill = "".join(f"{step}\n" for step in steps)
    request = Completions(prompt=f"{CHAIN.text}\n\n", prefill=prefill, n=count, temperature=1.0)
    written = asyncio.run(ArithmeticPolicy(how).complete(request))
    with load_verifier("number") as verifier:
        verdicts = [verifier.verify(prefill + one.text, "6").outcome for one in written[:50]]
    answers = [one.text.rpartition("The answer is ")[2] for one in written]
    assert [answer == "6." for answer in answers[:50]] == [verdict == "match" for verdict in verdicts]
    value = true_value(CHAIN, steps, how)
    assert 0.02 < value < 0.98
    assert abs(answers.count("6.") / count - value) < 4 * math.sqrt(value * (1 - value) / count)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_the_first_error_is_where_the_solver_first_erred(seed):
    dice = random.Random(seed)
    problem = problem_of_seed(seed)
    solver = Solver(problem, SolverSettings(error_rate=0.15, repair_rate=0.2))
    state, steps, erred = solver.start(), [], -1
    while state.answer is None:
        due = solver.faithful(state)[0]
        repaired = solver.wrong(state) and solver.repair(state)[0]
        text, state, logprob = solver.draw(state, dice)
        assert logprob <= 0
        if erred == -1 and not text.endswith(due) and text != repaired:
            erred = len(steps)
        steps.append(text)
        assert solver.after(steps) == state
    assert true_labels(problem, steps)[1] == erred
    if state.answer != problem.answer:
        assert erred >= 0


# -- the policy


def test_equal_requests_give_equal_samples():
    policy = ArithmeticPolicy()
    ask = Completions(prompt=CHAIN.text, n=6, temperature=0.7)
    (six,) = policy.complete_many([ask])
    assert policy.identity != ArithmeticPolicy(SolverSettings(noise=0.1)).identity
    assert policy.tokens_written == sum(one.tokens for one in six)
    (last,) = ArithmeticPolicy().complete_many(
        [Completions(prompt=CHAIN.text, n=2, temperature=0.7, first=4)]
    )
    assert six[4:] == last
    (other,) = policy.complete_many([Completions(prompt=CHAIN.text, n=6, temperature=0.7, seed=1)])
    assert other != six


def test_chat_and_text_prompts():
    policy = ArithmeticPolicy()
    turn = (Message(role="user", content=f"{CHAIN.text}\n\nSolve it step by step."),)
    text = "\n".join(CHAIN_STEPS)
    ((greedy,),) = policy.complete_many([Completions(prompt=turn)])
    assert (greedy.text, greedy.finish, greedy.tokens) == (text, "end", count_tokens(text) + 1)
    ((greedy,),) = policy.complete_many([Completions(prompt=CHAIN.text)])
    assert greedy.text == "\n" + text
    ((greedy,),) = policy.complete_many(
        [Completions(prompt=f"{CHAIN.text}\n\n{CHAIN_STEPS[0]}\n", prefill=CHAIN_STEPS[1])]
    )
    assert greedy.text == "\n" + "\n".join(CHAIN_STEPS[2:])
    ((greedy,),) = policy.complete_many(
        [Completions(prompt=turn, prefill="Result after the first step: 10 + 5 = 19\n")]
    )
    assert greedy.text.endswith("Result after the fourth step: 32 / 4 = 8\nThe answer is 8.")
    ((done,),) = policy.complete_many([Completions(prompt=turn, prefill=text + "\n")])
    assert (done.text, done.finish, done.tokens) == ("", "end", 1)


def test_a_prompt_without_a_problem_is_refused_alone_and_choices_always():
    policy = ArithmeticPolicy()
    refused, good = policy.complete_many(
        [Completions(prompt="What is 2 + 2?"), Completions(prompt=CHAIN.text)]
    )
    assert isinstance(refused, InputError)
    assert good[0].text.endswith("The answer is 6.")
    (refused,) = policy.choose_many([ChoiceLogprobs(prompt=CHAIN.text, options=("+", "-"))])
    assert isinstance(refused, InputError)


def test_log_probabilities_are_those_of_the_lines():
    (written,) = ArithmeticPolicy().complete_many(
        [Completions(prompt=CHAIN.text + "\n", n=100, temperature=1.0)]
    )
    for one in written:
        lines = one.text.split("\n")
        chances = [next_steps(CHAIN, lines[:place])[line] for place, line in enumerate(lines)]
        assert one.logprob == pytest.approx(sum(math.log(chance) for chance in chances))


def test_stop_and_length():
    policy = ArithmeticPolicy()
    prompt = CHAIN.text + "\n"
    ((step,),) = policy.complete_many([Completions(prompt=prompt, stop=("\n",))])
    assert (step.text, step.finish, step.tokens) == (CHAIN_STEPS[0], "stop", count_tokens(CHAIN_STEPS[0]) + 1)
    whole = count_tokens("\n".join(CHAIN_STEPS))
    ((fits,), (short,), (cut,)) = policy.complete_many(
        [Completions(prompt=prompt, max_tokens=limit) for limit in (whole + 1, whole, 7)]
    )
    assert (fits.finish, fits.tokens, fits.text) == ("end", whole + 1, "\n".join(CHAIN_STEPS))
    assert (short.finish, short.tokens) == ("length", whole)
    assert (cut.finish, cut.tokens, cut.text) == ("length", 7, "Result after the first step: 1")


# -- wrong solutions


def test_wrong_solutions():
    known = list(wrong_solutions(120, seed=3))
    assert len({one.solution.id for one in known}) == 120
    with load_verifier("number") as verifier:
        for one in known:
            text = "".join(step.raw for step in one.solution.steps)
            assert verifier.verify(text, one.solution.problem.answer).outcome == "mismatch"
            assert 4 <= len(one.solution.steps) <= 16
            assert (one.labels, one.first_error) == true_labels(one.problem, one.solution.texts)
            assert all(one.labels[: one.first_error])
            assert not one.labels[one.first_error]
            assert one.values == true_values(one.problem, one.solution.texts)
            assert one.values[-1] == 0
            before, after = one.values[one.first_error : one.first_error + 2]
            assert after < 0.15 < before
            top = max(one.values[one.first_error + 1 :])
            assert (top > 0.15) == one.repaired
    assert 0 < sum(one.repaired for one in known) < 20
    assert list(wrong_solutions(5, seed=3)) == known[:5]


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
    assert world.prm().score(text, steps=steps) == expected
