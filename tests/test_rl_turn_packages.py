"""Turn credit inside SkyRL and verifiers as they are, each in an environment of its own, against numbers computed by hand.

Slow, and outside the default run: `STEPMARK_SKYRL_PYTHON=…/bin/python STEPMARK_VERIFIERS_PYTHON=…/bin/python pytest -m slow tests/test_rl_turn_packages.py`,
environments made from `benchmarks/peers/skyrl.txt` and `verifiers.txt`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rl_adapters_world import conversations, discounted

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent


def run(name, script, folder, **job):
    python = os.environ.get(f"STEPMARK_{name}_PYTHON")
    if python is None:
        pytest.skip(f"STEPMARK_{name}_PYTHON does not name the Python of an environment with it")
    file, out = folder / "job.json", folder / "out.json"
    file.write_text(json.dumps({**job, "out": str(out)}))
    paths = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
    done = subprocess.run(
        [python, str(HERE / script), str(file)],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


def test_skyrl_gives_each_turn_its_credit(tmp_path):
    ids, written = conversations(12, seed=7)
    problems = [f"problem {row % 3}" for row in range(12)]
    outcomes = [float(row % 2) for row in range(12)]
    found = run(
        "SKYRL",
        "skyrl_rewarding.py",
        tmp_path,
        ids=ids,
        written=written,
        problems=problems,
        outcomes=outcomes,
    )
    wanted = discounted(problems, ids, written, outcomes)
    assert max(map(max, wanted)) > 0.1
    for row, by_hand in zip(found["advantages"], wanted, strict=True):
        assert row == pytest.approx(by_hand, abs=1e-5)
    assert found["metrics"]["prm/steps"] == pytest.approx(
        sum(1 for mask in written for at, here in enumerate(mask) if here and not (at and mask[at - 1])) / 12
    )


def test_traces_of_verifiers_carry_the_credit_of_their_turns(tmp_path):
    found = run("VERIFIERS", "verifiers_traces.py", tmp_path)
    # The same three conversations as in tests/test_rl_turn_adapters.py; a template's token and what is not the model's own have 0.
    quiet = [0.0, 0.0]
    by_hand = [
        [*quiet, 0.0, 1.2, 1.2, *quiet, 0.0, 0.45, 0.45],
        [*quiet, 0.0, -0.8, -0.8, *quiet, 0.0, -1.05, -1.05],
        [*quiet, 0.0, 0.2, 0.2],
    ]
    assert found["advantages"] == [[pytest.approx(row)] for row in by_hand]
    assert found["reward"] == 0.5
