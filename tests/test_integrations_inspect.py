"""The scorer and the solver for inspect_ai, run by inspect in an environment of its own, with its mock model.

Slow, and outside the default run: `STEPMARK_INSPECT_PYTHON=…/bin/python pytest -m slow tests/test_integrations_inspect.py`, the Python of an
environment made from `benchmarks/peers/inspect.txt`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from integration_worlds import PLAIN, RIGHT, WRONG

PYTHON = os.environ.get("STEPMARK_INSPECT_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None,
        reason="STEPMARK_INSPECT_PYTHON does not name the Python of an environment with inspect_ai",
    ),
]
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    # stepmark is not installed there. What an installation looks like to inspect: the package in a site-packages, and the entry
    # points of pyproject.toml beside it.
    entries = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["entry-points"]
    site = folder / "site-packages"
    told = site / "stepmark-0.0.0.dist-info"
    told.mkdir(parents=True)
    (site / "stepmark").symlink_to(HERE.parent / "src" / "stepmark")
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: stepmark\nVersion: 0.0.0\n")
    lines = [
        line
        for group, names in entries.items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in names.items()))
    ]
    (told / "entry_points.txt").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join(map(str, (site, HERE)))
    done = subprocess.run(
        [str(PYTHON), str(HERE / "inspect_run.py"), str(folder / "logs")],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "INSPECT_LOG_LEVEL": "warning"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_samples_are_scored_beside_another_scorer(results):
    plain = results["plain"]
    good, bad, blank = (one["scores"] for one in plain["samples"])
    assert good["prm_scorer"]["value"] == pytest.approx(min(RIGHT, PLAIN))
    assert good["prm_scorer"]["answer"] == "5"
    assert good["prm_scorer"]["metadata"]["scores"] == [RIGHT, PLAIN]
    assert good["prm_scorer"]["metadata"]["first_error"] == -1
    assert bad["prm_scorer"]["value"] == pytest.approx(WRONG)
    assert "0.200 ✗  4 + 4 = 9" in bad["prm_scorer"]["explanation"]
    # inspect's own scorer looked at the targets.
    assert [one["match"]["value"] for one in (good, bad, blank)] == ["C", "I", "I"]
    assert plain["metrics"]["match"]["accuracy"] == pytest.approx(1 / 3)


def test_a_sample_that_cannot_be_graded_is_unscored_and_not_zero(results):
    blank = results["plain"]["samples"][2]["scores"]["prm_scorer"]
    assert (blank["value"], blank["reason"]) == (None, "no_response")
    assert "blank" in blank["explanation"]
    assert results["plain"]["metrics"]["prm_scorer"]["mean"] == pytest.approx((PLAIN + WRONG) / 2)
    # The standard error of two numbers: half of their distance.
    assert results["plain"]["metrics"]["prm_scorer"]["stderr"] == pytest.approx((PLAIN - WRONG) / 2)


def test_a_log_is_scored_again_by_the_name_of_the_entry_point(results):
    values = [next(iter(one["scores"].values()))["value"] for one in results["again"]["samples"]]
    assert values[:2] == pytest.approx([RIGHT * PLAIN, WRONG * PLAIN])
    assert values[2] is None


def test_the_best_of_n_goes_on(results):
    [sample] = results["best"]["samples"]
    assert sample["completion"] == sample["last"] == "2 + 3 = 5\nThe answer is 5"
    assert sample["messages"] == 2
    found = sample["metadata"]["stepmark"]
    assert (found["chosen"], found["choice"]) == (1, "best")
    assert [one.get("score") for one in found["candidates"]] == [WRONG, PLAIN, None, WRONG]
    assert "blank" in found["candidates"][2]["error"]
    assert results["best"]["metrics"]["match"]["accuracy"] == 1


def test_the_majority_of_n_may_be_wrong(results):
    [sample] = results["majority"]["samples"]
    found = sample["metadata"]["stepmark"]
    assert (found["chosen"], found["choice"]) == (0, "majority")
    assert [one["votes"] for one in found["candidates"]] == [2, 1, None, 2]
    assert results["majority"]["metrics"]["match"]["accuracy"] == 0


def test_a_conversation_is_graded_turn_by_turn(results):
    [sample] = results["agent"]["samples"]
    scored = sample["scores"]["prm_scorer"]
    assert scored["metadata"]["steps"][0].startswith("2 + 3 = 5\nadd(")
    assert scored["metadata"]["scores"] == [RIGHT, WRONG]
    assert (scored["value"], scored["metadata"]["first_error"]) == (WRONG, 1)


def test_an_agent_writes_again_from_the_turn_that_the_watch_names(results):
    watched = results["watched"]
    assert [(one["score"], one["advice"]) for one in watched["turns"]] == [
        (WRONG, "go back"),
        (RIGHT, "go on"),
        (RIGHT, "go on"),
    ]
    assert watched["why"] == "the model called no tool"
    # The wrong turn is forgotten, and its tool did not run.
    assert watched["roles"] == ["user", "assistant", "tool", "assistant"]
    assert watched["texts"] == ["2 + 3?", "2 + 3 = 5", "6", "So 5 + 1 = 6"]


def test_an_agent_reads_what_an_exact_check_finds_wrong(results):
    told = results["told"]
    assert told["roles"] == ["user", "user", "assistant", "tool", "assistant"]
    assert "2 + 3 = 6" in told["texts"][1] and "5" in told["texts"][1]
    assert [one.get("message") for one in told["turns"]] == [told["texts"][1], None, None]


def test_an_agent_stops_where_no_return_is_left(results):
    stopped = results["stopped"]
    assert [one["advice"] for one in stopped["turns"]] == ["go on", "go back", "stop"]
    assert "no return is left" in stopped["why"]
    assert stopped["texts"][-1] == "5 + 1 = 8"
