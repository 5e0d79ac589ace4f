"""Judgements on several axes: a file with them is, for whoever selects one, the file of that axis alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

import stepmark
from stepmark.annotation.export import export
from stepmark.annotation.items import items_of_file
from stepmark.annotation.marks import AnnotatorMarks, Change, Marks, ratings_of
from stepmark.annotation.project import Project
from stepmark.annotation.store import Store
from stepmark.data.formats.own import to_row
from stepmark.data.formats.rows import LabelledRow
from stepmark.errors import InputError, UsageError
from stepmark.labels.consensus import combine
from stepmark.records import Judgement, LabelledSolution
from stepmark.store import atomic_rows
from stepmark.training.examples import Dropped, LabelRules, examples

STEPS = ["Look.", "Change.", "Say done."]


def labelled(name, judge, **ratings):
    """A solution of three steps with the ratings of each axis."""
    solution = stepmark.Solution.of(f"Problem {name}?", STEPS, id=name)
    judgements = tuple(
        tuple(
            Judgement(kind="correctness", judge=judge, rating=of[step], axis=axis)
            for axis, of in ratings.items()
            if of[step] is not None
        )
        for step in range(len(STEPS))
    )
    return LabelledSolution(solution=solution, judgements=judgements)


PEOPLE = [
    labelled("a", "human", correctness=(1, 1, 1), tested=(1, -1, 1)),
    labelled("b", "human", correctness=(1, -1, None), tested=(1, 1, 1)),
    labelled("c", "human", correctness=(1, 1, -1), tested=(1, -1, 1), polite=(1, 1, 1)),
]
JUDGE = [
    labelled("a", "judge:m", correctness=(1, 1, -1), tested=(1, -1, 1)),
    labelled("b", "judge:m", correctness=(1, -1, None), tested=(1, -1, 1)),
    labelled("c", "judge:m", correctness=(1, 1, -1), tested=(1, -1, 1)),
]


def on(rows, axis):
    """The rows as they would be with this axis alone, written by hand as the default one."""
    return [
        replace(
            row,
            judgements=tuple(
                tuple(replace(j, axis="correctness") for j in step if j.axis == axis)
                for step in row.judgements
            ),
        )
        for row in rows
    ]


def file_of(tmp_path, name, rows):
    with atomic_rows(tmp_path / name) as write:
        for row in rows:
            write(to_row(row))
    return str(tmp_path / name)


def test_the_default_axis_is_not_written_and_others_are_read_back(tmp_path):
    row = to_row(PEOPLE[0])
    assert [sorted(one) for one in row["judgements"][0]] == [
        ["judge", "kind", "rating"],
        ["axis", "judge", "kind", "rating"],
    ]
    read = [one.labelled for one in stepmark.read_labelled(file_of(tmp_path, "p.jsonl", PEOPLE))]
    assert read == PEOPLE
    assert read[2].axes == ("correctness", "tested", "polite")
    assert read[0].labels == ("right, tested: right", "right, tested: wrong", "right, tested: right")


def figures(tmp_path, people, judge, **settings):
    paths = [file_of(tmp_path, name, rows) for name, rows in (("p.jsonl", people), ("j.jsonl", judge))]
    method = stepmark.evaluation.LabelAgreement(labels=[paths[1]])
    result = stepmark.evaluate(method, data=paths[0], resamples=100, progress=False, **settings)
    return result, {name: figure.value for name, figure in result.figures.items()}


def test_agreement_is_measured_on_each_axis_as_if_it_stood_alone(tmp_path):
    result, every = figures(tmp_path, PEOPLE, JUDGE)
    for axis in ("correctness", "tested"):
        _, alone = figures(tmp_path, on(PEOPLE, axis), on(JUDGE, axis))
        _, asked = figures(tmp_path, PEOPLE, JUDGE, axis=axis)
        for name, value in alone.items():
            if name.startswith("all/"):
                assert every[name.replace("all/", f"{axis}/")] == value
                assert asked[name] == value
    assert every["tested/recall"] == 1 and every["tested/precision"] == 2 / 3
    assert any("polite" in fact for fact in result.facts)  # people alone judged it


def test_labels_of_each_axis_may_stand_in_rows_of_their_own(tmp_path):
    _, together = figures(tmp_path, PEOPLE, JUDGE)
    _, apart = figures(
        tmp_path, [row.on_axis(axis) for axis in ("correctness", "tested") for row in PEOPLE], JUDGE
    )
    assert apart == together


def test_agreement_without_an_axis_in_common_names_both_sides(tmp_path):
    with pytest.raises(InputError, match=r"correctness, tested, polite.* and honest"):
        figures(tmp_path, PEOPLE, [labelled("a", "judge", honest=(1, 1, 1))])
    with pytest.raises(InputError, match=r"'polite'.*correctness, tested"):
        figures(tmp_path, PEOPLE, JUDGE, axis="polite")


def test_consensus_of_an_axis_leaves_the_others_alone():
    kept = combine([PEOPLE, JUDGE], axis="tested")
    assert [row.solution.id for row in kept] == ["a", "c"]
    (row, _) = kept
    alone = combine([on(PEOPLE, "tested"), on(JUDGE, "tested")])
    assert row.meta["first_error"] == 1 == next(iter(alone)).meta["first_error"]
    made = [j for step in row.labelled.judgements for j in step if j.judge.startswith("consensus")]
    assert {j.axis for j in made} == {"tested"}
    assert row.labelled.on_axis("correctness").axes == ("correctness",)


def rows(*labelled):
    return [LabelledRow(labelled=one, where=f"f:{at}") for at, one in enumerate(labelled, start=1)]


def test_training_takes_one_axis():
    values = [
        [None if target is None else target.value for target in example.targets]
        for example in examples(rows(*PEOPLE), LabelRules(axis="tested", after_error="keep"))
    ]
    assert values == [[1, 0, 1], [1, 1, 1], [1, 0, 1]]
    dropped = Dropped()
    (only,) = examples(rows(*PEOPLE), LabelRules(axis="polite"), dropped=dropped)
    assert only.solution.id == "c"
    assert dropped.first["rows judged on correctness, tested and not on polite"] == "f:1"


def test_a_format_of_one_label_a_step_holds_the_axis_that_is_asked_for(tmp_path):
    source = file_of(tmp_path, "p.jsonl", PEOPLE)
    found = [row["labels"] for row in stepmark.convert(source, "trl", axis="tested")]
    assert found == [[True, False, True], [True, True, True], [True, False, True]]
    assert [row["labels"] for row in stepmark.convert(source, "trl")] == [
        [True, True, True],
        [True, False],
        [True, True, False],
    ]
    with pytest.raises(InputError, match=r"polite.*correctness, tested"):
        stepmark.convert(source, "trl", axis="polite")


def test_a_project_is_of_one_axis(tmp_path):
    source = tmp_path / "p.jsonl"
    file_of(tmp_path, "p.jsonl", PEOPLE)
    project = Project(items=(source,), axis="tested", mode="per_step")
    items = [item for _, item in items_of_file(source, project)]
    assert [s.rating for s in items[0].suggestions] == [1, -1, 1]
    marks = Marks(mode="first_error", steps=3, first_error=2, ratings=ratings_of(2, 3), submitted=True)
    answers = [AnnotatorMarks(item="a", account="ann", marks=marks, seconds=1.0, at=None)]
    (row,) = export(project, items, answers)
    assert [[(j["axis"], j["rating"]) for j in step] for step in row["judgements"]] == [
        [("tested", 1)],
        [("tested", 1)],
        [("tested", -1)],
    ]


def test_other_axes_do_not_change_what_labels_say_of_correctness(tmp_path):
    both = [to_row(one, outcome=at != 1) for at, one in enumerate(PEOPLE)]
    alone = [to_row(one, outcome=at != 1) for at, one in enumerate(on(PEOPLE, "correctness"))]
    found = [
        stepmark.evaluate("disagreement", data=data, resamples=100, progress=False).figures
        for data in (both, alone)
    ]
    assert found[0] == found[1]


def test_a_prm_is_measured_on_the_axis_that_is_named(tmp_path):
    prm = stepmark.ScriptedPRM({"Look.": 0.9, "Change.": 0.1, "Say done.": 0.9})
    found = stepmark.evaluate(
        "labels", prm, data=file_of(tmp_path, "p.jsonl", PEOPLE), axis="tested", resamples=100, progress=False
    ).figures
    assert found["all/recall"].value == 1 and found["all/precision"].value == 2 / 3
    with pytest.raises(InputError, match="'honest'"):
        stepmark.evaluate("labels", prm, data=PEOPLE, axis="honest", resamples=100, progress=False)


def test_an_axis_is_part_of_what_the_labels_of_a_project_mean(tmp_path):
    file_of(tmp_path, "p.jsonl", PEOPLE)
    project = Project(items=(tmp_path / "p.jsonl",), axis="tested")
    items = [item for _, item in items_of_file(tmp_path / "p.jsonl", project)]
    with Store(str(tmp_path / "a.sqlite")) as store:
        store.prepare(project, items, "http://x")
        me = store.person("Ann").id
        given = store.next_item(project, me)
        store.take(project, me, given, "1", Change(kind="first_error", step=1))
        with pytest.raises(UsageError, match="axis 'tested'"):
            store.prepare(replace(project, axis="polite"), items, "http://x")
