"""The public names, pinned: a change here is a change for every user."""

import importlib

import pytest

import stepmark

MODULES = ["errors", "evaluation", "labels", "rl", "searches", "training"]
PUBLIC = [
    "ArithmeticWorld",
    "BackgroundServer",
    "ChatModel",
    "Cluster",
    "Finding",
    "GradedSolution",
    "GradedStep",
    "PRM",
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
    "sample",
    "search",
    "serve",
    "serve_in_process",
    "split",
    "train",
    "train_policy",
    *MODULES,
]


def test_the_names():
    assert set(stepmark.__all__) == {"__version__", *PUBLIC}
    assert set(dir(stepmark)) >= {*PUBLIC, "__version__"}


@pytest.mark.parametrize("name", PUBLIC)
def test_each_resolves_and_is_documented(name):
    value = getattr(stepmark, name)
    assert value.__doc__
    if name in MODULES:
        assert value is importlib.import_module(f"stepmark.{name}")
        return
    assert value.__name__ == name
    assert getattr(importlib.import_module(value.__module__), name) is value


@pytest.mark.parametrize("package", ["labels", "searches", "training", "rl", "evaluation"])
def test_every_name_of_a_package_is_there_and_documented(package):
    pytest.importorskip("torch")
    module = importlib.import_module(f"stepmark.{package}")
    assert len(module.__all__) > 10
    for name in module.__all__:
        assert getattr(module, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = module.Nothing


def test_packages_hold_the_methods_of_the_verbs():
    pytest.importorskip("torch")
    from stepmark.labels.labellers import METHODS as LABELLERS
    from stepmark.rl.credit.assignment import CREDITS
    from stepmark.searches.methods import METHODS as SEARCHES
    from stepmark.training.objectives import OBJECTIVES

    for package, methods in (
        (stepmark.labels, LABELLERS),
        (stepmark.searches, SEARCHES),
        (stepmark.rl, CREDITS),
        (stepmark.training, OBJECTIVES),
    ):
        for kind in map(methods.load, methods):
            assert getattr(package, kind.__name__) is kind
    assert stepmark.evaluation.ProcessBench(threshold="argmax").threshold == "argmax"
    assert {"ProcessBench", "BestOfNAccuracy"} <= set(dir(stepmark.evaluation))
    assert "lazy_names" not in dir(stepmark)
    assert stepmark.labels.EveryStep(k=2).k == 2


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
