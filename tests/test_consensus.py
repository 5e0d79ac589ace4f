"""Consensus as a view: the rules by hand, nothing changed, nothing unjudged turned into wrong; and `stepmark label consensus`."""

from __future__ import annotations

import collections
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.cli import main
from stepmark.data.formats.own import to_row
from stepmark.data.labelled import read_labelled
from stepmark.errors import InputError
from stepmark.labels.consensus import Consensus, combine, side_by_side
from stepmark.labels.labelling import judged_until
from stepmark.metrics.first_error import first_wrong
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.store import encode_row

R, W, N, _ = 1, -1, 0, None


def solution(steps, name="s"):
    return Solution.of("p", [f"step {i}" for i in range(steps)], id=name)


def of(**sources):
    """A labelled solution from one row of ratings a source; `judge_x` stands for "judge:x"."""
    steps = {len(row) for row in sources.values()}.pop()
    return LabelledSolution(
        solution=solution(steps),
        judgements=tuple(
            tuple(
                Judgement(kind="correctness", judge=name.replace("_", ":"), rating=row[i])
                for name, row in sources.items()
                if row[i] is not None
            )
            for i in range(steps)
        ),
    )


# --- the place --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratings", "place"),
    [
        ((R, R, W), 2),
        ((R, N, W), 2),
        ((W, _, _), 0),
        ((R, R, R), -1),
        ((N, N, N), -1),
        ((R, _, W), None),
        ((_, _, W), None),
        ((R, R, _), None),
        ((_, _, _), None),
    ],
)
def test_first_wrong(ratings, place):
    assert first_wrong(ratings) == place


# --- first-error-agrees -----------------------------------------------------------------------------------------------


def test_the_same_place_is_kept():
    row = of(rollout=(R, R, W, _), judge=(R, R, W, _))
    view = Consensus().view(row)
    assert view.kept and view.why == "agreed" and view.first_error == 2
    assert view.ratings == (R, R, W, _)
    assert view.places == {"rollout": 2, "judge": 2}
    assert view.labelled == row


def test_a_source_that_does_not_know_the_place():
    view = Consensus().view(of(formulas=(_, _, W), judge=(R, R, W)))
    assert not view.kept and view.why == "place not known"
    assert view.reason == "the first error is left open by formulas"
    assert Consensus(sources=("judge",), least=1).view(of(formulas=(_, _, W), judge=(R, R, W))).kept


# --- majority ---------------------------------------------------------------------------------


def test_majority_by_hand():
    view = Consensus(rule="majority").view(of(a=(R, R, W, _), b=(R, W, _, _), c=(R, R, W, _), d=(N, _, _, _)))
    assert view.ratings == (R, R, W, _) and view.first_error == 2
    assert view.confidences == (pytest.approx(3 / 4), pytest.approx(2 / 3), 1.0, None)


def test_who_took_a_wrong_step_for_right_is_not_heard_after_it():
    view = Consensus(rule="majority").view(of(a=(W, _, _), b=(W, R, _), c=(R, W, W)))
    assert view.ratings == (W, R, _)


# --- values, contradictions, views in views ---------------------------------------------------------------------------


def valued(*pairs):
    return LabelledSolution(
        solution=solution(len(pairs)),
        judgements=tuple(
            () if p is None else (Judgement(kind="value", judge="rollout", successes=p[0], trials=p[1]),)
            for p in pairs
        ),
    )


def test_values_are_no_ratings_unless_asked():
    row = next(side_by_side([valued((8, 8), (1, 8), (0, 8))], [of(judge=(R, R, W))]))
    assert Consensus().view(row).why == "too few sources"
    assert Consensus(values=0).view(row).first_error == 2
    view = Consensus(values=0.5).view(row)
    assert view.why == "places differ" and view.places["rollout"] == 1
    # No trials: nothing is known.
    assert Consensus(values=0, least=1).view(valued((8, 8), (0, 0), (0, 8))).places == {"rollout": None}


def test_a_source_that_contradicts_itself_is_silent_there():
    one, other = of(human=(R, R, W)), of(human=(R, W, _))
    both = next(side_by_side([one], [other]))
    assert Consensus(least=1).view(both).places == {"human": None}
    assert Consensus(rule="majority", least=1).view(both).ratings == (R, _, W)


def test_a_view_stands_beside_the_evidence_and_is_no_source():
    row = of(rollout=(R, W), judge=(R, W))
    once = Consensus().view(row).with_view()
    for old, new in zip(row.judgements, once.judgements, strict=True):
        assert new[:-1] == old
        assert (new[-1].judge, new[-1].kind, new[-1].confidence) == (
            "consensus:first-error-agrees",
            "correctness",
            1,
        )
    assert [step[-1].rating for step in once.judgements] == [R, W]
    assert Consensus().view(once).places == {"rollout": 1, "judge": 1}
    assert Consensus().view(once).with_view() == once
    dropped = Consensus().view(of(rollout=(R, W), judge=(W, _)))
    assert dropped.with_view() == dropped.labelled


# --- joining and counting ---------------------------------------------------------------------------------------------


def test_side_by_side_keeps_all():
    a, b = of(judge=(R, W)), of(rollout=(R, R))
    other = LabelledSolution(solution=solution(3), judgements=((), (), ()))
    joined = list(side_by_side([a, other], [b]))
    assert [len(row.solution.steps) for row in joined] == [2, 3]
    assert joined[0].judgements == tuple((*x, *y) for x, y in zip(a.judgements, b.judgements, strict=True))
    assert list(side_by_side([a], [a])) == [a]
    broken = LabelledSolution(solution=solution(2, "row 3"), judgements=((),))
    with pytest.raises(InputError, match=r"row 3.*2 steps, found 1"):
        list(side_by_side([broken]))


# --- properties -------------------------------------------------------------------------------------------------------

NAMES = ("human", "formulas", "judge", "rollout")


@st.composite
def rows(draw):
    steps = draw(st.integers(1, 5))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    return of(
        **{name: tuple(draw(st.sampled_from([R, R, W, N, _])) for _i in range(steps)) for name in names}
    )


@given(rows(), st.sampled_from(["first-error-agrees", "majority"]))
@settings(max_examples=400, deadline=None)
def test_a_rating_is_always_some_sources_own(row, rule):
    view = Consensus(rule=rule).view(row)
    assert view.labelled is row
    for step, rating, confidence in zip(row.judgements, view.ratings, view.confidences, strict=True):
        assert (rating is None) == (confidence is None)
        assert rating is None or rating in {j.rating for j in step}
        assert confidence is None or 0 < confidence <= 1
    if not view.kept:
        assert view.why != "agreed" and not any(r is not None for r in view.ratings)
    before = itertools.takewhile(lambda r: r is not W, view.ratings)
    if rule == "majority":
        for i, rating in enumerate(before):
            said = [j.rating for j in row.judgements[i]]
            expected = next((r for r, c in collections.Counter(said).items() if 2 * c > len(said)), None)
            if view.kept:
                assert rating == expected


@given(rows())
@settings(max_examples=200, deadline=None)
def test_agreement_on_the_place_against_a_plain_reading(row):
    """Each source's place read straight off its own ratings."""
    own = {}
    for name in {j.judge for step in row.judgements for j in step}:
        given_ = [next((j.rating for j in step if j.judge == name), None) for step in row.judgements]
        wrong = given_.index(W) if W in given_ else len(given_)
        own[name] = None if None in given_[:wrong] else (-1 if wrong == len(given_) else wrong)
    view = Consensus().view(row)
    assert view.places == own
    agree = len(own) >= 2 and None not in own.values() and len(set(own.values())) == 1
    if view.kept:
        assert agree and view.first_error == next(iter(own.values()))
    elif agree:
        assert view.why == "nothing agreed"  # right to one and neutral to the other at every step


SOLUTIONS = {name: Solution.of(f"Problem {name}", ["one", "two", "three"], id=name) for name in "abcdef"}
NONE = -1


def labelled(name: str, judge: str, place: int | None) -> LabelledSolution:
    """A solution with one judge's first error; None: rollouts only, which name no place."""
    judgements = (
        [(Judgement(kind="value", judge=judge, successes=1, trials=4),), (), ()]
        if place is None
        else judged_until(place, 3, judge)
    )
    return LabelledSolution(solution=SOLUTIONS[name], judgements=tuple(judgements))


def write(tmp_path, judge: str, places: dict[str, int | None], name: str | None = None):
    file = tmp_path / f"{name or judge.replace(':', '-')}.jsonl"
    file.write_bytes(b"".join(encode_row(to_row(labelled(key, judge, at))) for key, at in places.items()))
    return file


def run(*words):
    return main(["label", "consensus", *map(str, words)])


def test_files_are_joined_by_solution_and_every_drop_has_a_reason(tmp_path, capsys):
    rollout = write(tmp_path, "every-step", {"a": 1, "b": 0, "c": NONE, "d": None, "e": 2})
    # In another order.
    judge = write(tmp_path, "judge:m", {"d": 1, "c": NONE, "b": 2, "a": 1, "f": 0})
    out = tmp_path / "agreed.jsonl"
    assert run(rollout, judge, "--out", out) == 0
    kept = {row.solution.id: row for row in read_labelled(out)}
    assert {name: row.meta["first_error"] for name, row in kept.items()} == {"a": 1, "c": NONE}
    judges = {j.judge for step in kept["a"].labelled.judgements for j in step}
    assert judges == {"every-step", "judge:m", "consensus:first-error-agrees"}
    assert kept["a"].meta["places"] == {"every-step": 1, "judge:m": 1}
    dropped = {row.solution.id: row for row in read_labelled(tmp_path / "agreed.jsonl.dropped.jsonl")}
    few = "too few sources"
    assert {name: row.meta["why"] for name, row in dropped.items()} == {
        "b": "places differ",
        "d": few,
        "e": few,
        "f": few,
    }
    assert "3 x too few sources" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "agreed.jsonl.manifest.json").read_text())
    assert (manifest["kept"], manifest["dropped"]) == (2, {"too few sources": 3, "places differ": 1})
    assert not any(Consensus().view(row.labelled).kept for row in dropped.values())


def test_records_go_in_and_every_judgement_is_kept():
    (row,) = combine(
        [[labelled("a", "bayes", 1), labelled("b", "bayes", 0)], iter([labelled("a", "judge:m", 1)])]
    )
    assert row.meta["first_error"] == 1
    judges = {j.judge for step in row.labelled.judgements for j in step}
    assert judges == {"bayes", "judge:m", "consensus:first-error-agrees"}
