"""`stepmark label consensus`, and the majority of places, by hand."""

from __future__ import annotations

import json

import pytest

from stepmark.cli import main
from stepmark.cli.label import METHODS
from stepmark.labels.bayes import BayesianSearch
from stepmark.labels.consensus import KINDS, TRUST, Consensus
from stepmark.labels.formulas import Formulas
from stepmark.labels.judge import Judge
from stepmark.labels.labelling import judged_until
from stepmark.labels.rollout import BinarySearch, EveryStep
from stepmark.labels.tree import RolloutTree
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.solutions.interchange import read_labelled, to_row
from stepmark.store import encode_row

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


def test_every_labeller_s_name_is_a_kind_of_source():
    labellers = (EveryStep(), BinarySearch(), BayesianSearch(), RolloutTree(), Judge(), Formulas())
    names = [labeller.name for labeller in labellers]
    commands = [command for command in METHODS if command not in ("consensus", "own")]
    for name in (*names, *commands):
        assert KINDS[name] in TRUST
    both = LabelledSolution(
        solution=SOLUTIONS["a"],
        judgements=(
            tuple(
                Judgement(kind="correctness", judge=f"{name}:model", rating=1) for name in (*names, "exact")
            ),
            *((),) * 2,
        ),
    )
    assert Consensus(rule="priority").view(both).kept


@pytest.mark.parametrize(
    ("places", "sources", "expected", "why"),
    [
        ({"x": 1, "y": 1, "z": 2}, (), 1, "agreed"),
        ({"x": NONE, "y": NONE, "z": 2}, (), NONE, "agreed"),
        ({"x": 1, "y": 2, "z": 0}, (), None, "places differ"),
        ({"x": 1, "y": 2}, (), None, "places differ"),
        ({"x": 1, "y": 1}, (), 1, "agreed"),
        ({"x": 1}, (), None, "too few sources"),
        # Who was named and is silent is a vote for no place.
        ({"x": 1, "y": 1}, ("x", "y", "z"), 1, "agreed"),
        ({"x": 1, "y": 1}, ("x", "y", "z", "w"), None, "place not known"),
    ],
)
def test_the_majority_of_places_by_hand(places, sources, expected, why):
    steps = [()] * 3
    for judge, place in places.items():
        steps = [have + more for have, more in zip(steps, judged_until(place, 3, judge), strict=True)]
    one = LabelledSolution(solution=SOLUTIONS["a"], judgements=tuple(steps))
    view = Consensus(rule="first-error-majority", sources=sources).view(one)
    assert (view.first_error, view.why, view.kept) == (expected, why, why == "agreed")
    if view.kept:
        assert view.ratings == (
            (1, 1, 1)
            if expected == NONE
            else tuple(1 if i < expected else -1 if i == expected else None for i in range(3))
        )


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
    assert {name: (row.meta["why"], row.meta["reason"]) for name, row in dropped.items()} == {
        "b": ("places differ", "different first errors: every-step step 1, judge:m step 3"),
        "d": ("too few sources", "1 source, 2 needed; no conclusion by every-step"),
        "e": ("too few sources", "1 source, 2 needed"),
        "f": ("too few sources", "1 source, 2 needed"),
    }
    said = capsys.readouterr().err
    assert "6 solutions in 2 files; sources: every-step (4), judge:m (5)" in said
    assert "kept 2 by first-error-agrees: 1 with a first error, 1 without" in said
    assert "3 x too few sources" in said
    manifest = json.loads((tmp_path / "agreed.jsonl.manifest.json").read_text())
    assert (manifest["kept"], manifest["dropped"]) == (2, {"too few sources": 3, "places differ": 1})
    assert not any(Consensus().view(row.labelled).kept for row in dropped.values())


def test_one_name_in_two_files_is_one_source(tmp_path):
    files = [write(tmp_path, "bayes", {"a": 1, "b": at}, f"part-{at}") for at in (1, 2)]
    out = tmp_path / "o.jsonl"
    assert run(*files, "--least", "1", "--out", out) == 0
    # Two different ratings of one step by one source cancel out: of b nothing is known from there on.
    assert [row.solution.id for row in read_labelled(out)] == ["a"]


def test_a_source_of_unknown_kind_is_trusted_least(tmp_path):
    files = [write(tmp_path, "mine", {"a": 1}), write(tmp_path, "judge:m", {"a": 0})]
    out = tmp_path / "o.jsonl"
    assert run(*files, "--rule", "priority", "--out", out) == 0
    assert [row.meta["first_error"] for row in read_labelled(out)] == [0]
