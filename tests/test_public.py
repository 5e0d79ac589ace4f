"""The public names, pinned: a change here is a change for every user."""

import importlib

import pytest

import stepmark

PUBLIC = [
    "AsyncClient",
    "Client",
    "Judgement",
    "LabelledSolution",
    "Problem",
    "Refusal",
    "ScoredSolution",
    "Solution",
    "Step",
    "StepScores",
    "Verdict",
    "aggregate",
    "grade",
    "load_prm",
    "split",
]


def test_the_names():
    assert stepmark.__all__ == ["__version__", *PUBLIC]
    assert set(dir(stepmark)) >= {*PUBLIC, "__version__"}


@pytest.mark.parametrize("name", PUBLIC)
def test_each_resolves_and_is_documented(name):
    value = getattr(stepmark, name)
    assert value.__doc__
    assert value.__name__ == name
    assert getattr(importlib.import_module(value.__module__), name) is value


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stepmark.nothing
