"""Grading with a PRM whose scores are known, and the scripted PRM itself."""

import gc
import json
import math
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.data.solutions import GRADED_KEYS, read_solution
from stepmark.errors import (
    BackendError,
    InputError,
    ScoreKindError,
    TooLongError,
    UnknownNameError,
    UsageError,
)
from stepmark.models.prm import PRM, Grade, Ledger, first_error, from_row, grade, graded, to_row
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Finding, GradedSolution, Refusal, Solution, StepScores

TABLE = {"good": 0.9, "fair": 0.5, "bad": 0.1}


def solution(*steps, problem="p", id=None):
    return Solution.of(problem, steps, id=id)


class CannedPRM:
    """Gives the results that it was handed, whatever it is asked; reads `ahead` solutions in advance."""

    name = "canned"
    default_aggregate = "min"
    default_threshold = 0.5

    def __init__(self, results, kind="probability", ahead=1, stop_early=False):
        self.results, self.score_kind, self.ahead, self.stop_early = results, kind, ahead, stop_early
        self.ledger = Ledger()

    def score(self, problem, steps):
        raise NotImplementedError

    def score_many(self, solutions, *, keep_going=False):
        results = iter(self.results)
        while batch := list(islice(solutions, self.ahead)):
            yield from islice(results, len(batch))
            if self.stop_early:
                return
        yield from results


def canned(*scores, kind="probability"):
    return StepScores(scores=scores, kind=kind)


# --- the scripted PRM


def as_prm(prm: PRM) -> PRM:
    return prm  # mypy would refuse what does not keep the protocol; here it documents the intent


def test_scripted_is_a_prm():
    prm = as_prm(ScriptedPRM(TABLE))
    assert prm.score("p", steps=["good", "bad"]) == [0.9, 0.1]
    assert (prm.name, prm.score_kind, prm.default_aggregate, prm.default_threshold) == (
        "scripted",
        "probability",
        "min",
        0.5,
    )


def test_scripted_asks_once_for_each_prefix():
    asked = []

    def script(problem, steps):
        asked.append((problem, steps))
        return 1 / (1 + len(steps))

    prm = ScriptedPRM(script)
    stream = [
        solution("a b", "c"),
        solution("a b", "d", "e"),
        solution("a b", "c"),
        solution("a b", problem="q r"),
    ]
    results = list(prm.score_many(stream))
    assert [r.scores for r in results] == [(1 / 2, 1 / 3), (1 / 2, 1 / 3, 1 / 4), (1 / 2, 1 / 3), (1 / 2,)]
    assert asked == [
        ("p", ("a b",)),
        ("p", ("a b", "c")),
        ("p", ("a b", "d")),
        ("p", ("a b", "d", "e")),
        ("q r", ("a b",)),
    ]
    # Words: alone 4 + 5 + 4 + 4; distinct: p, a b, c, d, e and then q r, a b.
    assert prm.ledger == Ledger(
        solutions=4, steps=8, tokens_in=17, tokens_distinct=10, tokens_computed=10, tokens_written=0
    )
    assert prm.ledger.cache_hits == 7


words = st.lists(st.sampled_from(["good", "fair", "bad"]), min_size=1, max_size=6)


@given(words, words)
def test_scripted_is_causal(steps, others):
    prm = ScriptedPRM(lambda problem, prefix: (len("".join(prefix)) % 7) / 7)
    together = prm.score("p", steps=steps + others)
    assert together[: len(steps)] == prm.score("p", steps=steps)


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (1.5, "probability", r"1\.5.*\[0, 1\]"),
        (-1.01, "margin", r"\[-1, 1\]"),
        (math.nan, "log-ratio", "finite"),
        ("0.5", "probability", "'0.5'"),
        (True, "probability", "True"),
    ],
)
def test_scripted_refuses_a_wrong_script(value, kind, found):
    with pytest.raises(UsageError, match=found):
        ScriptedPRM(lambda problem, steps: value, score_kind=kind).score("p", steps=["a"])


@pytest.mark.parametrize(
    ("problem", "steps", "found"),
    [
        ("", ["a"], "problem"),
        ("p", [], "at least one step"),
        ("p", ["a", " "], r"step 2 of 2"),
    ],
)
def test_scripted_refuses_bad_input(problem, steps, found):
    with pytest.raises(InputError, match=found):
        ScriptedPRM(lambda problem, steps: 0.5).score(problem, steps=steps)


def test_scripted_table_names_the_step_it_lacks():
    prm = ScriptedPRM(TABLE)
    with pytest.raises(InputError, match=r"step 1 \(0-based\), 'odd'"):
        prm.score("p", steps=["good", "odd"])
    results = list(prm.score_many([solution("good"), solution("odd"), solution("bad")], keep_going=True))
    assert [type(r) for r in results] == [StepScores, Refusal, StepScores]
    with pytest.raises(InputError):
        list(prm.score_many([solution("odd")]))


# --- grade


def test_grade_by_hand():
    (scored,) = grade([solution("good", "bad", "fair", id="x")], ScriptedPRM(TABLE))
    assert scored == GradedSolution(
        solution=solution("good", "bad", "fair", id="x"),
        step_scores=canned(0.9, 0.1, 0.5),
        score=0.1,
        aggregate="min",
        first_error=1,
        threshold=0.5,
        prm="scripted",
    )
    (scored,) = grade(
        [solution("good", "fair")], ScriptedPRM(TABLE), Grade(aggregate="product", threshold=0.95)
    )
    assert (scored.score, scored.aggregate) == (pytest.approx(0.45), "product")
    assert (scored.first_error, scored.threshold) == (0, 0.95)


@pytest.mark.parametrize(
    ("scores", "threshold", "expected"),
    [
        ((0.9, 0.5), 0.5, -1),  # at the threshold is not under it
        ((0.9, math.nextafter(0.5, 0)), 0.5, 1),
        ((0.1, 0.1), 0.5, 0),
        ((None, 0.1), 0.5, None),  # an unread step may have been the first error
        ((0.9, None), 0.5, None),
        ((0.1, None), 0.5, 0),  # found before the unread one
        ((0.9,), None, None),
        ((-0.2, 0.3), 0.0, 0),
    ],
)
def test_first_error(scores, threshold, expected):
    assert first_error(scores, threshold) == expected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1))
def test_first_error_is_what_its_words_say(scores, threshold):
    found = first_error(tuple(scores), threshold)
    if found == -1:
        assert min(scores) >= threshold
    else:
        assert scores[found] < threshold
        assert all(score >= threshold for score in scores[:found])


def test_a_step_that_was_not_read():
    prm = CannedPRM([canned(0.9, None), canned(None, 0.7)])
    truncated, outcome = grade([solution("a", "b"), solution("a", "b")], prm, Grade(aggregate="last"))
    assert (truncated.score, truncated.first_error) == (None, None)
    assert (outcome.score, outcome.first_error) == (0.7, None)
    (by_min,) = grade([solution("a", "b")], CannedPRM([canned(0.9, None)]))
    assert by_min.score is None


def test_no_threshold_no_first_error():
    prm = CannedPRM([canned(3.0, -2.0, kind="unbounded")], kind="unbounded")
    prm.default_threshold = None
    (scored,) = grade([solution("a", "b")], prm)
    assert (scored.first_error, scored.threshold, scored.score) == (None, None, -2.0)
    (scored,) = grade([solution("a", "b")], CannedPRM(prm.results, kind="unbounded"), Grade(threshold=0.0))
    assert scored.first_error == 1


def test_settings_are_checked_at_the_call():
    margin = CannedPRM([], kind="margin")
    with pytest.raises(ScoreKindError, match=r"product.*margin"):
        grade([], margin, Grade(aggregate="product"))
    with pytest.raises(UnknownNameError, match="'mean'"):
        grade([], margin, Grade(aggregate="maen"))
    with pytest.raises(UnknownNameError):
        grade([], margin, Grade(aggregate=""))
    with pytest.raises(UsageError, match=r"threshold 2 is no margin.*canned"):
        grade([], margin, Grade(threshold=2))
    with pytest.raises(UsageError, match="threshold nan"):
        grade([], margin, Grade(threshold=math.nan))


@pytest.mark.parametrize("ahead", [1, 2, 3, 10])
def test_order_is_kept_whatever_is_read_ahead(ahead):
    solutions = [solution("a", id=str(i)) for i in range(7)]
    results = [canned(i / 10) for i in range(7)]
    results[3] = Refusal(solution=solutions[3], error=InputError("no"))
    graded = list(grade(solutions, CannedPRM(results, ahead=ahead), keep_going=True))
    assert [g.solution.id for g in graded] == [str(i) for i in range(7)]
    assert [g.score for g in graded if isinstance(g, GradedSolution)] == [0.0, 0.1, 0.2, 0.4, 0.5, 0.6]
    assert isinstance(graded[3], Refusal)


def test_grading_is_a_stream():
    endless = (solution("good", problem=str(i)) for i in count())
    assert len(list(islice(grade(endless, ScriptedPRM(TABLE)), 5))) == 5


def test_an_outcome_model_reads_beside_the_prm():
    solutions = [solution("good", "bad"), solution("odd"), solution("fair")]
    orm = CannedPRM(
        [
            canned(None, 0.7),
            canned(None),
            Refusal(solution=solutions[2], error=TooLongError("too long for the ORM")),
        ],
        ahead=2,
    )
    graded = list(grade(solutions, ScriptedPRM(TABLE), orm=orm, keep_going=True))
    assert (graded[0].outcome, graded[0].outcome_model, graded[0].score) == (0.7, "canned", 0.1)
    assert isinstance(graded[1], Refusal) and "odd" in str(graded[1].error)
    assert isinstance(graded[2], Refusal) and isinstance(graded[2].error, TooLongError)
    with pytest.raises(InputError, match="odd"):
        list(
            grade(solutions, ScriptedPRM(TABLE), orm=CannedPRM([canned(0.1, 0.1), canned(0.1), canned(0.1)]))
        )


@pytest.mark.parametrize(
    ("results", "options", "found"),
    [
        ([canned(0.5)], {}, r"gave 1 score for the 2 steps of solution 'x'"),
        ([canned(0.5, 0.5, 0.5)], {}, "gave 3 scores for the 2 steps"),
        ([canned(0.5, math.nan)], {}, r"solution 'x'.*step 1 \(0-based\) is nan"),
        ([canned(0.5, 1.2)], {}, r"step 1 .*1\.2"),
        ([], {}, "stopped before the last solution"),
        ([canned(0.5, 0.5)] * 2, {}, "more results than"),
        ([canned(0.5, 0.5)], {"stop_early": True}, "stopped before the last solution"),
    ],
)
def test_a_model_that_breaks_its_promise(results, options, found):
    with pytest.raises(BackendError, match=found):
        list(grade([solution("a", "b", id="x")], CannedPRM(results, **options), keep_going=True))


def test_scores_that_are_there_already_are_graded_alike():
    prm, one = CannedPRM([]), solution("a", "b", id="x")
    assert graded(one, canned(0.9, 0.4), prm) == GradedSolution(
        solution=one,
        step_scores=canned(0.9, 0.4),
        score=0.4,
        aggregate="min",
        first_error=1,
        threshold=0.5,
        prm="canned",
    )
    unread, settings = canned(0.9, None), Grade(aggregate="product", threshold=0.95)
    [asked] = grade([one], CannedPRM([unread]), settings)
    assert graded(one, unread, prm, settings) == asked
    assert (asked.score, asked.first_error) == (None, 0)
    for wrong, found in ((canned(0.9), "1 score for the 2 steps"), (canned(0.9, 1.2), "step 1 ")):
        with pytest.raises(BackendError, match=found):
            graded(one, wrong, prm)
    with pytest.raises(UsageError, match="threshold"):
        graded(one, unread, prm, Grade(threshold=7.0))


# --- rows


def test_the_row_is_the_input_and_exactly_what_grading_adds():
    read = read_solution({"problem": "p", "steps": ["good", "bad"], "id": 3, "meta": {"k": None}})
    (scored,) = grade([read.solution], ScriptedPRM(TABLE, name="mine"))
    assert to_row(scored, read.row) == {
        "problem": "p",
        "steps": ["good", "bad"],
        "id": 3,
        "meta": {"k": None},
        "scores": [0.9, 0.1],
        "score": 0.1,
        "aggregate": "min",
        "first_error": 1,
        "first_error_step": 2,
        "threshold": 0.5,
        "prm": "mine",
        "score_kind": "probability",
    }
    assert list(to_row(scored, read.row))[:4] == ["problem", "steps", "id", "meta"]


def full():
    return GradedSolution(
        solution=solution("a", "b"),
        step_scores=StepScores(
            scores=(0.9, None),
            kind="probability",
            classes=((0.1, 0.2, 0.7), None),
            class_names=("negative", "neutral", "positive"),
            critiques=(("fine", "yes"), ()),
        ),
        score=None,
        aggregate="min",
        first_error=None,
        threshold=0.5,
        prm="m",
        outcome=0.25,
        outcome_model="o",
        findings=(Finding(step=1, check="unit", written="w", right="it is r", start=0, end=1),),
    )


def test_every_key_that_grading_adds_is_known_as_such():
    row = to_row(full(), {"problem": "p", "steps": ["a", "b"]})
    assert set(row) - {"problem", "steps"} == set(GRADED_KEYS)
    assert row["classes"] == [[0.1, 0.2, 0.7], None]
    assert row["critiques"] == [["fine", "yes"], []]


def test_rows_are_read_back():
    row = json.loads(json.dumps(to_row(full(), {"problem": "p", "steps": ["a", "b"]})))
    assert from_row(solution("a", "b"), row) == full()
    for scored in grade([solution("good", "bad")], ScriptedPRM(TABLE)):
        assert from_row(scored.solution, json.loads(json.dumps(to_row(scored, {})))) == scored
    with pytest.raises(InputError, match="expected 1 score"):
        from_row(solution("a"), row)
    with pytest.raises(InputError, match=r"step 0 .*7"):
        from_row(solution("a", "b"), row | {"scores": [7, None]})
    with pytest.raises(InputError, match="field 'prm'"):
        from_row(solution("a", "b"), {key: value for key, value in row.items() if key != "prm"})


def test_a_cut_text_brings_its_steps():
    read = read_solution({"problem": "p", "solution": "good\nbad"})
    (scored,) = grade([read.solution], ScriptedPRM(TABLE))
    row = to_row(scored, read.row)
    assert row["solution"] == "good\nbad"
    assert (row["steps"], row["scores"]) == (["good", "bad"], [0.9, 0.1])
    trl = read_solution({"prompt": "p", "completions": ["good"]})
    (scored,) = grade([trl.solution], ScriptedPRM(TABLE))
    assert "steps" not in to_row(scored, trl.row)


def test_an_infinite_score_has_no_row():
    prm = ScriptedPRM({"a": 0.5, "b": 1.0, "c": 0.0})
    for steps, found in (
        (("a", "b"), r"is inf, because step 1 .*exactly 1;"),
        (("c", "a"), r"is -inf, .*step 0 "),
    ):
        (scored,) = grade([solution(*steps)], prm, Grade(aggregate="sum-logit"))
        assert math.isinf(scored.score)
        with pytest.raises(InputError, match=found):
            to_row(scored, {})


def test_a_stream_is_not_held_in_memory() -> None:
    def living() -> int:
        gc.collect()
        return sum(type(thing) is Solution for thing in gc.get_objects())

    before = living()
    graded = grade(
        (Solution.of("p", [f"step {i}"]) for i in range(200)), ScriptedPRM(lambda problem, steps: 0.5)
    )
    for _ in range(150):
        next(graded)
    assert living() - before < 20


def test_a_graded_row_is_read_back():
    (scored,) = grade([solution("good", "bad")], ScriptedPRM(TABLE, name="mine"))
    row = to_row(scored, {})
    assert (row["first_error"], row["first_error_step"]) == (1, 2)
    assert from_row(scored.solution, row) == scored
