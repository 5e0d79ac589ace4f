"""`recipes/tiny.sh` the whole way: problems, solutions, rollouts, labels, a PRM, and a choice that beats the vote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MARGIN = 0.1
"""By how much the PRM's choice of sixteen (by the product of its step scores) must beat the majority vote of the same sixteen, in accuracy."""


@pytest.mark.long
@pytest.mark.skipif(
    not (ROOT / "recipes" / "tiny.sh").is_file(), reason="recipes are not here (an installed package)"
)
@pytest.mark.slow
def test_from_problems_to_a_prm_that_beats_the_vote(tmp_path):
    environment = dict(os.environ) | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        # No hub is asked for anything.
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        ["bash", str(ROOT / "recipes" / "tiny.sh"), str(tmp_path / "tiny")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    labels = [json.loads(line) for line in (tmp_path / "tiny" / "rollouts.jsonl").read_text().splitlines()]
    shares = {
        judged["successes"] / judged["trials"]
        for row in labels
        for step in row["judgements"]
        for judged in step
        if judged.get("trials")
    }
    assert {0.0, 1.0} < shares  # counted, and not only right and wrong
    accuracy = accuracies(tmp_path / "tiny" / "best-of-16")
    assert accuracy["best product"] >= accuracy["majority"] + MARGIN, accuracy
    assert accuracy["oracle"] >= accuracy["best product"]
    assert accuracy["oracle"] >= accuracy["best orm"] >= accuracy["majority"] + MARGIN, accuracy


def accuracies(folder: Path) -> dict[str, float]:
    """Accuracy at N = 16 by the way of choosing."""
    result = json.loads((folder / "result.json").read_text())
    return {
        one["name"].removeprefix("accuracy/").removesuffix("/16"): one["value"]
        for one in result["figures"]
        if one["name"].startswith("accuracy/") and one["name"].endswith("/16")
    }
