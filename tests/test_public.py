"""The public names, pinned: a change here is a change for every user."""

import importlib

import pytest

import stepmark

PUBLIC = [
    "ArithmeticWorld",
    "AsyncClient",
    "BackgroundServer",
    "ChatModel",
    "Client",
    "Cluster",
    "Finding",
    "GradedSolution",
    "GradedStep",
    "Grader",
    "Judgement",
    "LabelledRow",
    "LabelledSolution",
    "Problem",
    "Refusal",
    "Results",
    "SampledSolution",
    "ScriptedPRM",
    "ScriptedPolicy",
    "ServerSettings",
    "Solution",
    "Step",
    "StepScores",
    "Verdict",
    "aggregate",
    "check",
    "convert",
    "errors",
    "evaluate",
    "grade",
    "krippendorff_alpha",
    "label",
    "load_policy",
    "load_prm",
    "load_problems",
    "load_verifier",
    "publish",
    "read_labelled",
    "rl",
    "sample",
    "search",
    "serve",
    "serve_in_process",
    "split",
    "train",
]


def test_the_names():
    assert stepmark.__all__ == ["__version__", *PUBLIC]
    assert set(dir(stepmark)) >= {*PUBLIC, "__version__"}


@pytest.mark.parametrize("name", PUBLIC)
def test_each_resolves_and_is_documented(name):
    value = getattr(stepmark, name)
    assert value.__doc__
    if name in ("errors", "rl", "search"):  # a module, and packages that can be called
        assert value is importlib.import_module(f"stepmark.{name}")
        return
    if name == "train":  # an object that can be called
        assert value is importlib.import_module("stepmark.training.public").train
        return
    assert value.__name__ == name
    assert getattr(importlib.import_module(value.__module__), name) is value


def test_search_is_a_function_and_the_place_of_its_methods():
    import inspect

    import stepmark.search.beam
    from stepmark.search.run import search

    assert inspect.signature(stepmark.search) == inspect.signature(search)
    assert stepmark.search.BeamSearch is stepmark.search.beam.BeamSearch
    assert stepmark.search.BeamSearch(width=2).width == 2
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = stepmark.search.Nothing


def test_label_is_a_function_and_the_place_of_its_methods():
    import inspect

    from stepmark.labels.solutions import label

    assert inspect.signature(stepmark.label) == inspect.signature(label)
    assert stepmark.label.EveryStep(k=2).k == 2
    for name in ("BinarySearch", "BayesianSearch", "RolloutTree", "Judge", "Formulas"):
        assert getattr(stepmark.label, name)().name


def test_evaluate_is_a_function_and_the_place_of_its_evaluations():
    import inspect

    from stepmark.evaluation.run import evaluate

    assert inspect.signature(stepmark.evaluate) == inspect.signature(evaluate)
    assert stepmark.evaluate.ProcessBench(threshold="argmax").threshold == "argmax"


def test_rl_is_a_function_and_the_place_of_its_settings_and_credit_methods():
    import inspect

    pytest.importorskip("torch")
    from stepmark.rl.credit.methods import CREDITS
    from stepmark.rl.run import rl

    assert inspect.signature(stepmark.rl) == inspect.signature(rl)
    assert {type(method()) for method in CREDITS.values()} <= {
        getattr(stepmark.rl, name) for name in dir(stepmark.rl)
    }
    assert stepmark.rl.Training(updates=3).updates == 3


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stepmark.nothing


def test_python_dash_m_stepmark_is_the_command_line():
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "stepmark", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == stepmark.__version__
