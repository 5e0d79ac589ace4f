"""verl's own code with stepmark's reward manager, agent loop and estimators in it, against `rl.credit` on a batch made by hand.

Slow, and outside the default run: `STEPMARK_VERL_PYTHON=…/bin/python pytest -m slow tests/test_rl_adapters_verl.py`, the Python of an environment made
from `benchmarks/peers/verl.txt`. Nothing is trained: verl trains on GPUs.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from itertools import accumulate
from pathlib import Path

import pytest
import torch

from rl_adapters_world import CONTROL, PIECES, conversations, discounted, step_score
from stepmark.errors import InputError
from stepmark.rl.batch import Batch
from stepmark.rl.credit.assignment import CREDITS

PYTHON = os.environ.get("STEPMARK_VERL_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None, reason="STEPMARK_VERL_PYTHON does not name the Python of an environment with verl"
    ),
]
HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "rl.md"
METHODS = ("grpo", "process-grpo", "min-form", "progress", "rloo")


def through_verl(tmp_path, texts, problems, *, written=None, methods=METHODS, overrides=()):
    """What verl's own code makes of a batch of token ids."""
    verdicts = tmp_path / "verdicts.py"
    verdicts.write_text(
        "def verdict(data_source, solution_str, ground_truth, extra_info):\n"
        "    return float(ground_truth in solution_str)\n"
    )
    job = {
        "folder": str(tmp_path / "words"),
        # The documentation's lines, with this test's files in the place of its own.
        "overrides": [
            *re.findall(r"^    (\S+=\S+)", PAGE.read_text().split("main_ppo")[1].split("```")[0], re.M),
            f"actor_rollout_ref.model.path={tmp_path / 'words'}",
            f"reward.custom_reward_function.path={verdicts}",
            "reward.reward_kwargs.prm=rl_adapters_world:steps_prm",
            *overrides,
        ],
        "written": written,
        "completions": texts,
        "problems": problems,
        "estimators": [f"stepmark-{name}" for name in methods],
        "out": str(tmp_path / "out.json"),
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [str(PYTHON), str(HERE / "verl_rewarding.py"), str(tmp_path / "job.json")],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((tmp_path / "out.json").read_text())


def test_a_batch_through_verl(tmp_path) -> None:
    dice = random.Random(5)
    texts = [[dice.randrange(len(PIECES) - 3) for _ in range(dice.randrange(4, 20))] for _ in range(12)]
    # Two pieces without a line's end last, so that the last step is longer than a token.
    texts = [[*ids, PIECES.index("4"), PIECES.index("<eos>")] for ids in texts]
    problems = [f"problem {row % 3}" for row in range(12)]
    found = through_verl(tmp_path, texts, problems)

    outcomes, ends, scores, counts = [], [], [], []
    for ids, problem in zip(texts, problems, strict=True):
        pieces = ["" if PIECES[i] in CONTROL else PIECES[i] for i in ids]
        text, reach = "".join(pieces), list(accumulate(map(len, pieces)))
        outcomes.append(float("9" in text))
        at, lines, mine = 0, [], {}
        refused = False
        for line in text.split("\n"):
            if line.strip():
                lines.append(line)
                token = next(n for n, to in enumerate(reach) if to >= at + len(line))
                try:
                    mine.setdefault(token, []).append(step_score(problem, tuple(lines)))
                except InputError:
                    refused = True
            at += len(line) + 1
        counts.append(len(lines))
        ends.append([] if refused else [*list(mine)[:-1], len(ids) - 1])
        scores.append([] if refused else [min(each) for each in mine.values()])
    assert any(scores) and not all(scores), "expected some completions that the PRM refuses"
    for row, extra, outcome, count in zip(found["rm_scores"], found["extras"], outcomes, counts, strict=True):
        assert row[-1] == outcome
        assert (extra["outcome"], extra["acc"], extra["steps"]) == (outcome, outcome, count)
    for row, each in zip(found["rm_scores"], scores, strict=True):
        assert sum(row[:-1]) == pytest.approx(sum(each), abs=1e-5)

    width, most = max(map(len, texts)), max(map(len, ends))
    batch = Batch(
        mask=torch.tensor([[place < len(ids) for place in range(width)] for ids in texts]),
        groups=torch.tensor([row % 3 for row in range(12)]),
        outcome=torch.tensor(outcomes),
        step_ends=torch.tensor([row + [-1] * (most - len(row)) for row in ends]),
        step_rewards=torch.tensor([row + [0.0] * (most - len(row)) for row in scores]),
    )
    for name in METHODS:
        wanted = CREDITS.load(name)().assign(batch).advantages
        assert wanted.abs().max() > 0.1
        torch.testing.assert_close(
            torch.tensor(found["advantages"][f"stepmark-{name}"]), wanted, atol=1e-5, rtol=1e-5
        )
        assert not torch.tensor(found["advantages"][f"stepmark-{name}"])[~batch.mask].any()
    assert found["score"] == pytest.approx(min(step_score("a", ("1",)), step_score("a", ("1", "2"))))


def test_conversations_with_tools_through_verl(tmp_path) -> None:
    ids, written = conversations(12, seed=3)
    problems = [f"problem {row % 3}" for row in range(12)]
    found = through_verl(
        tmp_path,
        ids,
        problems,
        written=written,
        methods=("process-grpo", "discounted"),
        overrides=["actor_rollout_ref.rollout.agent.default_agent_loop=stepmark_tool_agent"],
    )
    outcomes = [extra["outcome"] for extra in found["extras"]]
    wanted = discounted(problems, ids, written, outcomes)
    assert max(map(max, wanted)) > 0.1
    assert any(0 in mask for mask in written)
    for row, by_hand in zip(found["advantages"]["stepmark-discounted"], wanted, strict=True):
        assert row[: len(by_hand)] == pytest.approx(by_hand, abs=1e-5)
        assert not any(row[len(by_hand) :])
