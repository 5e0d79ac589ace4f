"""Whatever a caller has becomes the same `Solution`: a text is split, never taken letter by letter."""

import pytest

import stepmark
from stepmark.data.conversations import problem_of, solution_of
from stepmark.errors import InputError
from stepmark.records import Problem, Solution, Step

PROBLEM = "Add 2 and 3, then double."
TEXTS = ("2 + 3 = 5", "5 * 2 = 10")
MESSAGES = [{"role": "user", "content": PROBLEM}, {"role": "assistant", "content": "\n".join(TEXTS)}]


@pytest.mark.parametrize(
    "given",
    [
        "2 + 3 = 5\n5 * 2 = 10",
        list(TEXTS),
        TEXTS,
        [Step(text=text) for text in TEXTS],
        stepmark.split("2 + 3 = 5\n5 * 2 = 10"),
        Solution.of(PROBLEM, TEXTS),
        MESSAGES,
    ],
    ids=["text", "list", "tuple", "steps", "segmentation", "solution", "messages"],
)
def test_every_form_gives_the_same_steps(given):
    for problem in (PROBLEM, Problem(text=PROBLEM)):
        solution = solution_of(problem, given)
        assert solution.problem.text == PROBLEM
        assert solution.texts == TEXTS


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
        (PROBLEM, {"solution": "x"}, r"found an object \(a row of a file goes to stepmark\.grade"),
        (PROBLEM, 5, "expected a solution as a text, .*found a number"),
        (PROBLEM, [], "expected at least one step, found an empty list"),
        (PROBLEM, ["a", 3], "step 2 of 2: expected a text, found a number"),
        (PROBLEM, ["a", " "], "step 2 of 2: expected a text, found a blank one"),
        (None, "x = 5", "expected a problem, found None"),
        (" ", "x = 5", "expected a problem, found a blank text"),
        (7, "x = 5", "expected a text or a Problem, found a number"),
        (
            "Another.",
            Solution.of(PROBLEM, TEXTS),
            "expected a solution of the problem 'Another.', found one of",
        ),
    ],
)
def test_what_is_refused(problem, given, message):
    with pytest.raises(InputError, match=message):
        solution_of(problem, given)


def test_a_problem_is_a_text_or_the_record():
    assert problem_of("p") == problem_of(Problem(text="p"))


def test_solution_of_takes_no_text_for_a_list_of_letters():
    with pytest.raises(InputError, match=r"found a text: stepmark\.split\(text\) gives its steps"):
        Solution.of("p", "x=5")
