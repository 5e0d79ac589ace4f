"""`stepmark.label` and `stepmark label` are one: the same bytes; records without a file; the same refusals."""

import json
import sys

import pytest

import stepmark
from fake_ray import FakeRay
from stepmark.cli import main
from stepmark.data.labelled import read_labelled
from stepmark.errors import SettingError, UsageError
from stepmark.labels.run import read_labellings
from stepmark.problems.arithmetic_world import ArithmeticPolicy, wrong_solutions

POLICY = "stepmark.problems.arithmetic_world:ArithmeticPolicy"
CASES = list(wrong_solutions(4, seed=5, steps=(4, 8)))
ROWS = [
    {
        "id": case.solution.id,
        "problem": case.solution.problem.text,
        "steps": list(case.solution.texts),
        "answer": case.solution.problem.answer,
    }
    for case in CASES
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "wrong.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def label(rows, policy=POLICY, **settings):
    return stepmark.label(rows, policy, **{"verifier": "number", "progress": False, **settings})


METHODS = {
    "rollout": (stepmark.labels.EveryStep(k=2), ["--k", "2"]),
    "binary": (stepmark.labels.BinarySearch(k=2), ["--k", "2"]),
    "bayes": (stepmark.labels.BayesianSearch(max_rollouts=4), ["--max-rollouts", "4"]),
    "tree": (stepmark.labels.RolloutTree(k=4, searches=3), ["--k", "4", "--searches", "3"]),
    "formulas": (stepmark.labels.Formulas(name="sums"), ["--name", "sums"]),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_function_writes_what_the_command_writes(tmp_path, file, name):
    method, words = METHODS[name]
    asked = {} if name == "formulas" else {"verifier": "number"}
    flags = [] if name == "formulas" else ["--policy", POLICY, "--verifier", "number"]
    assert main(["label", name, str(file), *flags, *words, "--out", str(tmp_path / "a.jsonl")]) == 0
    policy = None if name == "formulas" else POLICY
    results = stepmark.label(file, policy, method=method, out=tmp_path / "b.jsonl", progress=False, **asked)
    for end in ("", ".manifest.json"):
        assert (tmp_path / f"a.jsonl{end}").read_bytes() == (tmp_path / f"b.jsonl{end}").read_bytes()
    in_memory = stepmark.label(ROWS, policy, method=method, progress=False, **asked)
    assert list(in_memory) == list(results) == list(read_labellings(tmp_path / "b.jsonl"))
    assert [one.labelled.solution.id for one in results] == [row["id"] for row in ROWS]
    if name == "tree":
        rows = len(list(read_labelled(tmp_path / "b.jsonl")))
        assert sum(len(one.others) for one in results) == rows - len(ROWS) > 0
    # By its name with settings, as of a class of one's own.
    settings = [
        f"{flag[2:].replace('-', '_')}={value}" for flag, value in zip(words[::2], words[1::2], strict=False)
    ]
    named = stepmark.label(ROWS, policy, method=name, settings=settings, progress=False, **asked)
    assert list(named) == list(in_memory)


def test_the_truth_of_a_known_world_is_found():
    results = label(ROWS, ArithmeticPolicy())  # Bayesian search, the default
    sure = [
        (one.first_error, case.first_error)
        for one, case in zip(results, CASES, strict=True)
        if not one.abstained
    ]
    assert sure and sum(found == truth for found, truth in sure) >= 0.75 * len(sure)
    assert "4 solutions: " in results.summary
    assert [one.first_error_step for one in results] == [
        None if one.first_error in (None, -1) else one.first_error + 1 for one in results
    ]
    assert "wrong" in results._repr_html_()


def test_data_frames_records_and_samples_go_in():
    pandas = pytest.importorskip("pandas")
    method = METHODS["binary"][0]
    first_errors = [one.first_error for one in label(ROWS, method=method)]
    assert [one.first_error for one in label(pandas.DataFrame(ROWS), method=method)] == first_errors
    records = [case.solution for case in CASES]
    assert [one.first_error for one in label(records, method=method)] == first_errors
    problems = [{"problem": row["problem"], "answer": row["answer"], "id": row["id"]} for row in ROWS]
    samples = stepmark.sample(
        problems, POLICY, n=2, prompt="text", instruction="", verifier="number", progress=False
    )
    labels = label(samples, method=method)
    assert [one.labelled.solution.id for one in labels] == [sample.id for sample in samples]
    right = [one.outcome for one in samples]
    # A right answer is not searched.
    assert all(one.first_error is None for one, known in zip(labels, right, strict=True) if known)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"policy": None}, UsageError, "expected `policy`"),
        ({"method": "bays"}, UsageError, "there is no labeller 'bays'"),
        (
            {"method": stepmark.searches.BeamSearch()},
            UsageError,
            "BeamSearch",
        ),
        ({"method": stepmark.labels.EveryStep}, UsageError, "`method`: expected rollout, .*class.*EveryStep"),
        (
            {"method": stepmark.labels.EveryStep(), "settings": ["k=3"]},
            UsageError,
            "`settings`",
        ),
        ({"budget": 0}, SettingError, "budget=0"),
        ({"split": "lines"}, UsageError, "lines"),
        ({"out": "nowhere/o.jsonl"}, UsageError, "there is no folder"),
    ],
)
def test_python_errors_name_settings(settings, error, message):
    with pytest.raises(error, match=message):
        label(ROWS, **settings)


@pytest.mark.parametrize("name", ["binary", "tree"])
def test_labels_of_a_cluster_are_those_of_a_run_without(tmp_path, file, monkeypatch, name):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    method = METHODS[name][0]
    here = label(file, method=method, out=tmp_path / "a.jsonl")
    there = label(file, method=method, out=tmp_path / "b.jsonl", cluster=stepmark.Cluster(ray="local"))
    for end in ("", ".manifest.json"):
        assert (tmp_path / f"a.jsonl{end}").read_bytes() == (tmp_path / f"b.jsonl{end}").read_bytes()
    assert list(here) == list(there)
    assert sum(map(len, (requests for _, requests in ray.given))) > 0
