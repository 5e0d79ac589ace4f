"""What stepmark gives to other tools, as far as it needs none of them: graded texts, a choice among them, problems of documents."""

from __future__ import annotations

import threading
import time
import warnings

import pytest

from integration_worlds import PLAIN, RIGHT, WRONG, prm
from stepmark.errors import BackendError, InputError, UnknownNameError, UsageError
from stepmark.integrations.candidates import (
    CandidateGrader,
    UnreadWarning,
    facts_of,
    grade_texts,
    problem_of,
    tell,
)
from stepmark.models.prm import Grade
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import GradedSolution, Solution
from stepmark.searches.choosing import pick
from stepmark.verifiers.text import TextVerifier

LINES = {"split": "line"}
GOOD = "2 + 3 = 5\nThe answer is 5."
BAD = "2 + 3 = 6\nThe answer is 6."


def texts(*some, problem="2 + 3?", prm_=None, settings=None):
    return grade_texts(
        [(problem, text) for text in some], CandidateGrader(prm_ or prm(), settings or Grade()), **LINES
    )


# Graded texts


def test_texts_are_graded_each_in_its_place():
    good, blank, bad, refused = texts(GOOD, " \n", BAD, "2 + 3 = 5\nunreadable")
    assert good.scored.scores == (RIGHT, PLAIN)
    assert good.score == PLAIN
    assert good.answer == "5"
    assert bad.scored.scores == (WRONG, PLAIN)
    assert (bad.score, bad.scored.first_error) == (WRONG, 0)
    assert blank.scored is None and "blank" in str(blank.error) and blank.score is None
    assert refused.scored is None and "unreadable" in str(refused.error)


def test_texts_that_cannot_be_cut_that_way_are_the_callers_fault():
    with pytest.raises(UnknownNameError, match="lines"):
        grade_texts([("p", GOOD)], CandidateGrader(prm()), split="lines")


def test_callers_on_many_threads_are_graded_together_and_the_prm_is_never_entered_twice():
    inside, most, calls = 0, 0, []
    guard = threading.Lock()
    first_is_in, others_wait = threading.Event(), threading.Event()

    def score(problem, steps):
        return float(problem) / 100

    class Watched:
        """The scripted PRM, which notes who is inside."""

        def __init__(self):
            self._prm = ScriptedPRM(score)
            for name in ("name", "score_kind", "default_aggregate", "default_threshold", "ledger"):
                setattr(self, name, getattr(self._prm, name))

        def score(self, problem, steps):
            raise AssertionError("not asked one at a time")

        def score_many(self, solutions, *, keep_going=False):
            nonlocal inside, most
            with guard:
                inside += 1
                most = max(most, inside)
            given = list(solutions)
            calls.append(len(given))
            if len(calls) == 1:
                first_is_in.set()
                others_wait.wait(60)
            yield from self._prm.score_many(given, keep_going=keep_going)
            with guard:
                inside -= 1

    grader = CandidateGrader(Watched())
    results = {}

    def ask(number):
        results[number] = grader.grade(
            [Solution.of(str(number), ["a"]), Solution.of(str(number + 50), ["a"])]
        )

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    threads[0].start()
    assert first_is_in.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(grader._waiting) < 7:
        time.sleep(0.001)
    others_wait.set()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert calls == [2, 14]
    assert {number: [one.score for one in some] for number, some in results.items()} == {
        number: [number / 100, (number + 50) / 100] for number in range(8)
    }


def test_a_prm_that_fails_fails_everyone_who_waited_and_nobody_after():
    fails = [True]

    def score(problem, steps):
        if fails:
            fails.clear()
            raise BackendError("the server is away")
        return 0.5

    grader = CandidateGrader(ScriptedPRM(score))
    with pytest.raises(BackendError, match="away"):
        grader.grade([Solution.of("p", ["a"])])
    [after] = grader.grade([Solution.of("p", ["a"])])
    assert isinstance(after, GradedSolution)


def test_a_graded_text_as_data():
    [bad] = texts("2 + 3 = 5\n5 + 1 = 7\nThe answer is 7.")
    assert facts_of(bad) == {
        "score": WRONG,
        "steps": ["2 + 3 = 5", "5 + 1 = 7", "The answer is 7."],
        "scores": [RIGHT, WRONG, PLAIN],
        "first_error": 1,
        "first_error_step": 2,
        "threshold": 0.5,
        "aggregate": "min",
        "score_kind": "probability",
        "split": "line",
        "prm": "sums",
    }
    [_, blank] = texts(GOOD, "")
    assert list(facts_of(blank)) == ["error"]
    [endless] = texts("x", prm_=ScriptedPRM({"x": 1.0}, default_aggregate="sum-logit"))
    assert endless.score == float("inf")
    assert facts_of(endless)["score"] is None


# A choice among them

SAME = TextVerifier()


def test_the_best_and_of_equals_the_earlier():
    assert pick([0.1, 0.4, None, 0.4], [None] * 4, "best").index == 1
    picked = pick([None, -2.0], [None, None], "best")
    assert (picked.index, picked.choice, picked.votes) == (1, "best", None)


def test_a_vote_counts_heads_or_scores():
    answers = ["six", "five", "Six", None, "five", "six"]
    scores = [0.2, 0.9, 0.3, 0.99, 0.8, 0.1]
    # six: three heads, 0.6; five: two heads, 1.7.
    picked = pick(scores, answers, "majority", verifier=SAME)
    assert (picked.index, picked.choice) == (2, "majority")
    assert picked.votes == (3.0, 2.0, 3.0, None, 2.0, 3.0)
    assert "3 of 5 votes" in picked.why
    picked = pick(scores, answers, "vote", verifier=SAME)
    assert picked.index == 1
    assert picked.votes[3] is None
    assert [vote for vote in picked.votes if vote is not None] == pytest.approx([0.6, 1.7, 0.6, 1.7, 0.6])


def test_who_has_no_score_does_not_vote_with_it():
    picked = pick([None, 0.1], ["six", "five"], "vote", verifier=SAME)
    assert (picked.index, picked.votes) == (1, (None, 0.1))
    # By heads it does, and may win.
    picked = pick([None, 0.1, None], ["six", "five", "six"], "majority", verifier=SAME)
    assert picked.index == 0


def test_where_nobody_can_vote_the_best_is_taken_and_it_is_said():
    picked = pick([0.1, 0.4], [None, " "], "majority", verifier=SAME)
    assert (picked.index, picked.choice, picked.votes) == (1, "best", None)
    assert picked.why.startswith("no candidate could vote")


def test_who_was_cut_off_is_passed_over_while_others_are_finished():
    scores, answers = [0.9, 0.3, 0.95], ["a", "b", "a"]
    assert pick(scores, answers, "best", finished=[False, True, False]).index == 1
    picked = pick(scores, answers, "majority", verifier=SAME, finished=[False, True, False])
    assert (picked.index, picked.votes) == (1, (None, 1.0, None))
    # None is both finished and graded: all are looked at.
    assert pick(scores, answers, "best", finished=[False] * 3).index == 2


def test_what_a_check_refutes_is_never_picked_before_the_rest():
    scores, answers, refuted = [0.9, 0.2, 0.8], ["six", "five", "six"], [True, False, True]
    assert pick(scores, answers, "best", refuted=refuted).index == 1
    for choice in ("majority", "vote"):
        assert pick(scores, answers, choice, verifier=SAME, refuted=refuted).index == 1
    # A proof outranks an end: what was cut off goes before what is wrong.
    assert pick(scores, answers, "best", refuted=refuted, finished=[True, False, True]).index == 1
    assert pick(scores, answers, "best", refuted=[True] * 3).index == 0
    assert pick([0.9, None, 0.95], answers, "best", finished=[False, True, False]).index == 2
    with pytest.raises(UsageError, match="whether it is finished"):
        pick(scores, answers, "best", finished=[True])


@pytest.mark.parametrize(
    ("scores", "answers", "choice", "error", "match"),
    [
        ([], [], "best", InputError, "at least one candidate"),
        ([None, None], [None, None], "best", InputError, "none of the 2 candidates could be graded"),
        ([None, None], [None, None], "vote", InputError, "none of the 2"),
        ([0.5], ["a", "b"], "best", UsageError, "a candidate"),
        ([0.5], ["a"], "vote", UsageError, "needs a verifier"),
    ],
)
def test_what_cannot_be_chosen_from(scores, answers, choice, error, match):
    with pytest.raises(error, match=match):
        pick(scores, answers, choice, verifier=None if "needs" in match else SAME)


def test_weights_below_zero_are_no_votes():
    with pytest.raises(UsageError, match="below 0"):
        pick([-0.5, 0.5], ["a", "b"], "vote", verifier=SAME)


# Documents


def test_the_problem_of_a_document():
    doc = {"question": "2 + 3?", "passage": "Sums."}
    assert problem_of(doc, "question", 0) == "2 + 3?"
    assert problem_of(doc, "{{passage}}\n\n{{ question }}", 0) == "Sums.\n\n2 + 3?"


@pytest.mark.parametrize(
    ("doc", "problem", "match"),
    [
        (
            {"query": "x"},
            "question",
            r"document 4, field 'question': expected the problem; the document has 'query'",
        ),
        ({"question": 3}, "question", "expected a text, found a number"),
        ({"question": " "}, "question", "only white space"),
        ({"question": "x"}, "{{question | upper}}", "double braces"),
        ({"question": "x"}, "{{passage}}", "field 'passage'"),
    ],
)
def test_documents_without_a_problem(doc, problem, match):
    with pytest.raises(InputError, match=match):
        problem_of(doc, problem, 4)


def test_unread_documents_are_told():
    with pytest.warns(UnreadWarning, match="2 of 7 documents.*the first one"):
        tell(["the first one", "another"], 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell([], 7)
