"""Scores of cases: graded and kept as they come, continued, read back, and joined by id."""

import json

import pytest

from stepmark.data.reading import read_rows
from stepmark.errors import BackendError, InputError, UsageError
from stepmark.evaluation.cases import Case, ratings_until
from stepmark.evaluation.scores import CaseScores, grade_cases, read_scores, score_lengths
from stepmark.evaluation.sources import read_cases
from stepmark.models.prm import Ledger
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Problem, Solution, Step, StepScores

NAMES = ("negative", "neutral", "positive")


def case(id, steps=("x", "y"), *, problem="p", label=-1):
    solution = Solution(problem=Problem(text=problem), steps=tuple(Step(text=step) for step in steps), id=id)
    return Case(id=id, labelled=ratings_until(solution, label, judge="human"), where=f"data.jsonl:{id}")


CASES = (case("a-0"), case("a-1", ("z",)))
A, B = {"id": "a-0", "scores": [0.1, 0.2]}, {"id": "a-1", "scores": [0.3]}


@pytest.fixture
def write(tmp_path):
    def write(*rows, name="scores.jsonl"):
        path = tmp_path / name
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return path

    return write


def scores_of(sheet):
    return [row.scores for row in sheet.rows]


def graded(cases, prm, path, manifest, **more):
    grade_cases(cases, prm, path, manifest, **more)
    return read_scores(path, cases)


def refused(path, said, *, line=None, model=None):
    with pytest.raises(InputError) as caught:
        read_scores(path, CASES, model=model)
    assert caught.value.where == (str(path) if line is None else f"{path}:{line}")
    assert said in str(caught.value)


# --- joining


def test_scores_are_joined_by_id_and_not_by_place(write):
    sheet = read_scores(write(B, {"id": "other", "scores": [1]}, A), CASES)
    assert [row.case.id for row in sheet.rows] == ["a-0", "a-1"]
    assert scores_of(sheet) == [(0.1, 0.2), (0.3,)]
    assert (sheet.prm, sheet.kind, sheet.threshold, sheet.aggregate) == ("scores", "probability", None, None)
    assert (sheet.refused, sheet.unread_steps) == ((), 0)


def test_scores_of_candidates_under_the_names_that_grading_gives_them(tmp_path, write):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"id": "x", "problem": "P", "candidates": ["a\n\nb", "c"], "answer": "3"}))
    cases = read_cases([str(rows)])
    for sign in "#/":
        named = write({"id": f"x{sign}1", "scores": [0.3]}, {"id": f"x{sign}0", "scores": [0.1, 0.2]})
        assert scores_of(read_scores(named, cases)) == [(0.1, 0.2), (0.3,)]
    # texts that say otherwise win over a name
    other = write(
        {"id": "x#0", "scores": [0.1, 0.2], "problem": "P", "steps": ["a", "other"]},
        {"id": "x#1", "scores": [0.3], "problem": "P", "steps": ["c"]},
    )
    with pytest.raises(InputError):
        read_scores(other, cases)


def test_what_this_module_and_stepmark_grade_write(write):
    own = {"prm": "made", "score_kind": "margin", "threshold": 0, "aggregate": "mean"}
    path = write(
        A
        | own
        | {"scores": [-0.5, None], "score": None, "first_error": 0, "problem": "p", "steps": ["x", "y"]},
        {"id": "a-1", "scores": None, "refused": "too long"} | own,
    )
    sheet = read_scores(path, CASES)
    assert (sheet.prm, sheet.kind, sheet.threshold, sheet.aggregate) == ("made", "margin", 0.0, "mean")
    assert scores_of(sheet) == [(-0.5, None), (None,)]
    assert [(row.case.id, row.refused) for row in sheet.refused] == [("a-1", "too long")]
    assert sheet.unread_steps == 1  # that of the solution that was read
    assert sheet.rows[1].steps is None
    assert read_scores(path, CASES, model="my name").prm == "my name"


def test_scores_of_several_models(write):
    both = write(
        {"id": "a-0", "scores": {"m": [0.1, 0.2], "n": [1, 1]}},
        {"id": "a-1", "scores": {"n": [1], "m": [0.3]}},
    )
    for model, expected in (("m", [(0.1, 0.2), (0.3,)]), ("n", [(1.0, 1.0), (1.0,)])):
        sheet = read_scores(both, CASES, model=model)
        assert (sheet.prm, scores_of(sheet)) == (model, expected)
    with pytest.raises(UsageError, match=r"scores\.jsonl:1: scores of m, n; name one with `model_name`"):
        read_scores(both, CASES)
    with pytest.raises(UsageError, match="name one with `model_name`"):
        score_lengths(read_rows(both))
    refused(both, "there are no scores of 'o'; known: m, n", line=1, model="o")
    one = write(
        {"id": "a-0", "scores": {"m": [0.1, 0.2]}}, {"id": "a-1", "scores": {"m": [0.3]}}, name="one.jsonl"
    )
    assert read_scores(one, CASES).prm == "m"
    mixed = write(
        {"id": "a-0", "scores": {"m": [0.1, 0.2]}}, {"id": "a-1", "scores": {"n": [0.3]}}, name="mix.jsonl"
    )
    with pytest.raises(UsageError, match="scores of m, n; name one with `model_name`"):
        read_scores(mixed, CASES)


def test_the_layout_of_r_prm(write):
    labels = {"step_level_validity_labels": [True, False]}
    path = write(
        {"idx": "a-0", "scores": {"step_level_validity_scores": [0.1, 0.2], **labels}},
        {"idx": "a-1", "scores": {"step_level_validity_scores": [0.3], **labels}},
    )
    sheet = read_scores(path, CASES)
    assert (sheet.prm, scores_of(sheet)) == ("scores", [(0.1, 0.2), (0.3,)])
    assert read_scores(path, CASES, model="R-PRM").prm == "R-PRM"
    assert score_lengths(read_rows(path)) == {"a-0": 2, "a-1": 1}


def test_where_an_idx_of_a_published_file_stands_twice_the_first_row_counts(write):
    first, second = (
        {"idx": "a-0", "scores": {"step_level_validity_scores": of}} for of in ([0.1, 0.2], [0.9, 0.9])
    )
    path = write(first, second, B)
    assert scores_of(read_scores(path, CASES))[0] == (0.1, 0.2)
    assert score_lengths(read_rows(path)) == {"a-0": 2, "a-1": 1}


def test_an_id_that_stands_twice_is_refused(write):
    path = write(A, B, {**A, "scores": [0.9, 0.9]})
    with pytest.raises(InputError) as caught:
        read_scores(path, CASES)
    assert (caught.value.field, caught.value.where) == ("id", f"{path}:3")


# --- what cannot be joined


def test_a_case_without_a_row(write):
    refused(
        write(A), "there are no scores for 'a-1' (data.jsonl:a-1): no row has this id, or this problem and"
    )
    refused(write({**A, "id": "x"}), "there are no scores for 'a-0' (data.jsonl:a-0) and for 1 more")
    with pytest.raises(UsageError, match="no cases"):
        read_scores(write(A), [])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**B, "scores": [0.1, 0.2]}, "data.jsonl:a-1), found 2"),
        ({**B, "scores": []}, "found 0"),
        ({**B, "scores": None}, "found null"),
        ({**B, "scores": 0.5}, "found a number"),
        ({**B, "scores": {}}, "found an empty object"),
        ({"id": "a-1"}, "found null"),
        ({**B, "scores": ["1"]}, "field 'scores.0'"),
        ({**B, "scores": [True]}, "field 'scores.0'"),
        (
            {**B, "scores": [1.5]},
            "[0, 1] (probability)",
        ),
        ({**B, "scores": [-2], "score_kind": "margin"}, "[-1, 1] (margin)"),
        ('{"id": "a-1", "scores": [NaN]}\n', "found NaN"),
        ('{"id": "a-1", "scores": [1e999]}\n', "too large"),
        (
            {**B, "score_kind": "logit"},
            "found 'logit'",
        ),
        ({**B, "score_kind": "margin"}, "found probability and here margin"),
        ({"id": None, "scores": [1]}, "expected an id"),
        ({"scores": [1]}, "expected an id"),
        ({**B, "id": True}, "expected an id"),
        ({**B, "prm": "another"}, "one PRM"),
        ({**B, "threshold": 0.7}, "one PRM"),
        (
            {**B, "classes": [[0.5]], "class_names": list(NAMES)},
            "class_names",
        ),
        ({**B, "classes": [[0.5, 0.2, 3]], "class_names": list(NAMES)}, "class_names"),
        ({**B, "classes": [], "class_names": list(NAMES)}, "1 step"),
        ({**B, "classes": [[1.0]]}, "class_names"),
        ({**B, "critiques": "so"}, "field 'critiques'"),
        ({**B, "problem_tokens": "5"}, "field 'problem_tokens'"),
    ],
)
def test_rows_that_cannot_be(write, row, said):
    refused(write(A, row), said, line=2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"threshold": "0.5"}, "found '0.5'"),
        ({"threshold": 5}, "found 5"),
        ({"threshold": True}, "expected a threshold"),
        ({"aggregate": "median"}, "expected one of product, min"),
    ],
)
def test_settings_that_cannot_be(write, more, said):
    refused(write(A | more, B | more), said, line=1)


# --- grading


MANIFEST = {"data": "d", "settings": {"prm": "made"}}
MANY = tuple(
    case(f"c-{n}", tuple(f"{n} {m}" for m in range(1 + n % 3)), problem=f"p{n // 2}") for n in range(8)
)


def prm(asked=None, *, stop_at=None):
    """Scores a step by its text; refuses case 3; stops with an error at a step."""

    def script(problem, steps):
        if asked is not None:
            asked.append(steps[-1])
        if steps[-1] == stop_at:
            raise KeyboardInterrupt
        if steps[-1].startswith("3 "):
            raise InputError("a marker stands in the text")
        return int(steps[-1][0]) / 8 if not steps[-1].endswith("2") else None

    return ScriptedPRM(script, name="made", default_aggregate="mean", default_threshold=0.25)


def test_graded_scores_are_what_is_on_disk(tmp_path):
    path = tmp_path / "scores.jsonl"
    sheet = graded(MANY, prm(), path, MANIFEST)
    assert (sheet.prm, sheet.kind, sheet.threshold, sheet.aggregate) == ("made", "probability", 0.25, "mean")
    assert [row.case.id for row in sheet.rows] == [one.id for one in MANY]
    assert [row.case.id for row in sheet.refused] == ["c-3"]
    assert sheet.rows[5].scores == (5 / 8, 5 / 8, None)
    assert sheet.unread_steps == 2
    again = read_scores(path, MANY)
    assert again == sheet
    assert scores_of(read_scores(path, MANY[::-1])) == scores_of(sheet)[::-1]


def test_classes_and_critiques_are_kept(tmp_path):
    made = StepScores(
        scores=(0.5, None),
        kind="probability",
        classes=((0.5, 0.25, 0.25), None),
        class_names=NAMES,
        critiques=(("so",), ()),
        problem_tokens=5,
        solution_tokens=9,
    )

    class Tells:
        name = identity = "tells"
        score_kind = "probability"
        default_threshold = 0.5
        default_aggregate = "min"
        default_checks = "none"
        ledger = Ledger()

        def score(self, problem, steps):
            raise AssertionError("cases are graded as a stream")

        def score_many(self, solutions, *, keep_going=False):
            assert keep_going
            for _ in solutions:
                yield made

    path = tmp_path / "scores.jsonl"
    sheet = graded(CASES[:1], Tells(), path, MANIFEST)
    assert sheet.rows == (CaseScores(case=CASES[0], steps=made),)
    assert read_scores(path, CASES[:1]) == sheet
    # Two scores for the one step of the second case.
    with pytest.raises(BackendError, match="tells gave 2 scores for the 1 step of solution 'a-1'"):
        graded(CASES, Tells(), tmp_path / "other.jsonl", MANIFEST)


@pytest.mark.parametrize("stop_at", ["0 0", "2 1", "7 0"])
def test_a_stopped_run_continues(tmp_path, stop_at):
    asked, path, whole = [], tmp_path / "scores.jsonl", tmp_path / "whole.jsonl"
    with pytest.raises(KeyboardInterrupt):
        graded(MANY, prm(asked, stop_at=stop_at), path, MANIFEST)
    assert not path.exists()
    done = [step for step in asked if step[0] != stop_at[0]]
    rest = []
    sheet = graded(MANY, prm(rest), path, MANIFEST)
    assert not set(rest) & set(done)
    assert sheet == graded(MANY, prm(), whole, MANIFEST)
    assert path.read_bytes() == whole.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "scores.jsonl",
        "scores.jsonl.manifest.json",
        "whole.jsonl",
        "whole.jsonl.manifest.json",
    ]


def test_what_was_scored_of_other_cases_is_kept_where_they_are_the_same(tmp_path):
    path, whole = tmp_path / "scores.jsonl", tmp_path / "whole.jsonl"
    with pytest.raises(KeyboardInterrupt):
        graded(MANY, prm(stop_at="3 0"), path, MANIFEST)
    asked, other = [], case("c-1", ("1 x",))
    cases = (MANY[5], MANY[2], other, MANY[0])  # another c-1, another order
    sheet = graded(cases, prm(asked), path, {**MANIFEST, "data": "e"})
    assert {step[0] for step in asked} == {"5", "1"}
    assert sheet == graded(cases, prm(), whole, {**MANIFEST, "data": "e"})
    assert path.read_bytes() == whole.read_bytes()


def test_another_prm_does_not_continue_and_the_scores_say_whose_they_are(tmp_path):
    path = tmp_path / "scores.jsonl"
    with pytest.raises(KeyboardInterrupt):
        graded(MANY, prm(stop_at="2 1"), path, MANIFEST)
    other = prm()
    other.identity = "made#2"
    with pytest.raises(UsageError, match=r'another model made: models\.prm was "made" and is now "made#2"'):
        graded(MANY, other, path, MANIFEST)
    sheet = graded(MANY, prm(), path, MANIFEST)
    assert sheet.identity == read_scores(path, MANY).identity == "made"
    manifest = tmp_path / "scores.jsonl.manifest.json"
    for damaged in ("{", "[1]", '{"models": 1}'):
        manifest.write_text(damaged)
        with pytest.raises(InputError, match=r"scores\.jsonl\.manifest\.json"):
            read_scores(path, MANY)
    manifest.unlink()
    assert read_scores(path, MANY).identity is None
