"""The public names, pinned: a change here is a change for every user."""

import importlib

import pytest

import stepmark

PUBLIC = [
    "AsyncClient",
    "Client",
    "Cluster",
    "Finding",
    "Grader",
    "Judgement",
    "LabelledSolution",
    "Problem",
    "Refusal",
    "Results",
    "ScoredSolution",
    "Solution",
    "Step",
    "StepScores",
    "Verdict",
    "aggregate",
    "check",
    "grade",
    "load_policy",
    "load_prm",
    "load_verifier",
    "search",
    "split",
]


def test_the_names():
    assert stepmark.__all__ == ["__version__", *PUBLIC]
    assert set(dir(stepmark)) >= {*PUBLIC, "__version__"}


@pytest.mark.parametrize("name", PUBLIC)
def test_each_resolves_and_is_documented(name):
    value = getattr(stepmark, name)
    assert value.__doc__
    if name == "search":  # a package that can be called
        assert value is importlib.import_module("stepmark.search")
        return
    assert value.__name__ == name
    assert getattr(importlib.import_module(value.__module__), name) is value


def test_search_is_a_function_and_the_place_of_its_methods():
    import inspect

    import stepmark.search.beam
    from stepmark.search.problems import search

    assert inspect.signature(stepmark.search) == inspect.signature(search)
    assert stepmark.search.BeamSearch is stepmark.search.beam.BeamSearch
    assert stepmark.search.BeamSearch(width=2).width == 2
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = stepmark.search.Nothing


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stepmark.nothing
