"""Whatever a caller has becomes the same `Solution`: a text is split, never taken letter by letter."""

import pytest

import stepmark
from stepmark.data.conversations import each_solution, problem_of, solution_of
from stepmark.errors import InputError
from stepmark.records import Problem, SampledSolution, Solution, Step

PROBLEM = "Add 2 and 3, then double."
TEXTS = ("2 + 3 = 5", "5 * 2 = 10")
MESSAGES = [{"role": "user", "content": PROBLEM}, {"role": "assistant", "content": "\n".join(TEXTS)}]


@pytest.mark.parametrize(
    "given",
    [
        "2 + 3 = 5\n5 * 2 = 10",
        stepmark.split("2 + 3 = 5\n5 * 2 = 10"),
        Solution.of(PROBLEM, TEXTS),
        SampledSolution(problem=Problem(text=PROBLEM), text="\n".join(TEXTS)),
        stepmark.ScriptedPRM(lambda problem, steps: 0.5).grade(PROBLEM, steps=TEXTS),
        MESSAGES,
    ],
    ids=["text", "segmentation", "solution", "sampled", "graded", "messages"],
)
def test_every_form_gives_the_same_steps(given):
    for problem in (PROBLEM, Problem(text=PROBLEM)):
        solution = solution_of(problem, given)
        assert solution.problem.text == PROBLEM
        assert solution.texts == TEXTS


@pytest.mark.parametrize("given", [list(TEXTS), TEXTS, [Step(text=text) for text in TEXTS]])
def test_steps_are_given_as_steps(given):
    assert solution_of(PROBLEM, steps=given).texts == TEXTS
    with pytest.raises(InputError, match=r"`steps`.*`grade_many`.*`rank`"):  # steps, or several solutions?
        solution_of(PROBLEM, given)
    one, other = each_solution(PROBLEM, [given, "\n".join(TEXTS)])
    assert one.texts == other.texts == TEXTS


def test_a_short_text_is_one_step():
    assert solution_of("x?", "x=5").texts == ("x=5",)


def test_how_a_text_is_split():
    assert solution_of("p", "a. b.", split_by="whole").texts == ("a. b.",)
    assert solution_of("p", "a#b", split_by="marker", marker="#").texts == ("a", "b")


def test_messages_and_solutions_say_their_own_problem():
    assert solution_of(None, MESSAGES).problem.text == PROBLEM
    assert solution_of(None, Solution.of(PROBLEM, TEXTS)).problem.text == PROBLEM


@pytest.mark.parametrize(
    ("problem", "given", "message"),
    [
        (PROBLEM, {"solution": "x"}, r"stepmark\.grade"),
        (PROBLEM, 5, "found a number"),
        (None, "x = 5", "found None"),
        (" ", "x = 5", "found a blank text"),
        ({"problem": PROBLEM, "solution": "x"}, None, r"stepmark\.grade"),
        (7, "x = 5", "found a number"),
        (
            "Another.",
            Solution.of(PROBLEM, TEXTS),
            "found one of",
        ),
    ],
)
def test_what_is_refused(problem, given, message):
    with pytest.raises(InputError, match=message):
        solution_of(problem, given)


@pytest.mark.parametrize(
    ("steps", "field"), [([], "steps"), ("a text", "steps"), (["a", 3], "steps[1]"), (["a", " "], "steps[1]")]
)
def test_steps_that_are_refused(steps, field):
    with pytest.raises(InputError) as caught:
        solution_of(PROBLEM, steps=steps)
    assert caught.value.field == field


def test_a_solution_is_given_once():
    for both in ({}, {"solution": "a", "steps": ["a"]}):
        with pytest.raises(InputError) as caught:
            solution_of(PROBLEM, **both)
        assert caught.value.field == "solution"


def test_a_problem_is_a_text_or_the_record():
    assert problem_of("p") == problem_of(Problem(text="p"))


def test_solution_of_takes_no_text_for_a_list_of_letters():
    with pytest.raises(InputError, match=r"found a text: stepmark\.split\(text\) gives its steps"):
        Solution.of("p", "x=5")
