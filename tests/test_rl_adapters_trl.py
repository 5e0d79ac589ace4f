"""TRL's trainer with credit for tokens, run in TRL's own environment, against `rl.credit` on batches made by hand from what it wrote.

Slow, and outside the default run: `STEPMARK_TRL_PYTHON=…/bin/python pytest -m slow tests/test_rl_adapters_trl.py`, the Python of an environment made
from `benchmarks/peers/trl-current.txt`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from itertools import accumulate
from pathlib import Path

import pytest
import torch

from rl_adapters_world import CONTROL, PIECES, discounted, first, second, step_score
from stepmark.errors import InputError
from stepmark.rl.batch import Batch
from stepmark.rl.credit.assignment import CREDITS

PYTHON = os.environ.get("STEPMARK_TRL_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None, reason="STEPMARK_TRL_PYTHON does not name the Python of an environment with TRL"
    ),
]
HERE = Path(__file__).resolve().parent
GROUP = 4


def trained(folder, *, processes=1, **job):
    """What each process wrote down."""
    job = {
        "out": str(folder / f"run{processes}"),
        "tokens": 24,
        "batch": 12,
        "generations": 1,
        "mask_cut": False,
        "scripted": False,
        "turns": False,
        "plain": False,
        "evaluate": False,
        **job,
    }
    path = folder / f"job{processes}.json"
    path.write_text(json.dumps(job))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(processes):
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)]),
            "OMP_NUM_THREADS": "1",
            "TRL_EXPERIMENTAL_SILENCE": "1",
        }
        if processes > 1:
            env |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "ACCELERATE_USE_CPU": "true",
            }
        log = (folder / f"log{processes}.{rank}").open("wb")
        command = [str(PYTHON), str(HERE / "trl_training.py"), str(path)]
        running.append((subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env), log))
    for process, log in running:
        code = process.wait(timeout=900)
        log.close()
        assert code == 0, Path(log.name).read_text()[-3000:]
    return [json.loads(Path(f"{job['out']}.{rank}.json").read_text()) for rank in range(processes)]


def written(ids, mask):
    """A completion's tokens without padding. A masked one was cut off and is one of the scripted ones, which hold no padding token."""
    return ids[: sum(mask)] if any(mask) else [one for one in ids if PIECES[one] != "<pad>"]


def steps_of(text, problem, ends_of_tokens):
    """Steps by hand: lines that are not blank; each one's score and the token that holds its last character."""
    lines, found = [], {}
    for match in re.finditer(r"[^\n]+", text):
        if not match.group().strip():
            continue
        lines.append(match.group())
        end = match.end()
        token = next(n for n, at in enumerate(ends_of_tokens) if at >= end)
        found.setdefault(token, []).append(step_score(problem, tuple(lines)))
    return {token: min(scores) for token, scores in found.items()}


def expected(rows, credit, *, plain=False):
    """The advantages of all rows, computed from their token ids alone; the credit's formula is `rl.credit`'s."""
    width = max(len(ids) for ids, _ in rows)
    known, facts = [], []
    for row, (ids, problem) in enumerate(rows):
        pieces = ["" if PIECES[i] in CONTROL else PIECES[i] for i in ids]
        text = "".join(pieces)
        one, two = first([text])[0], second([text])[0]
        try:
            scores = steps_of(text, problem, list(accumulate(map(len, pieces))))
            # The mean of the plain reward is over the steps of the text, also of those that share a token.
            lines = [line for line in text.split("\n") if line.strip()]
            each = [step_score(problem, tuple(lines[: n + 1])) for n in range(len(lines))]
        except InputError:
            scores, each = {}, []
        extra = sum(each) / len(each) if plain and each else None
        if one is None and extra is None:
            continue
        known.append(row)
        outcome = (one or 0.0) + 0.5 * (two or 0.0) + 0.25 * (extra or 0.0)
        ends, rewards = list(scores), list(scores.values())
        if ends:
            ends[-1] = len(ids) - 1
        facts.append((row // GROUP, outcome, ends, rewards, len(ids)))
    # A group of which one row is left has nothing to compare it with.
    groups = [fact[0] for fact in facts]
    both = [(row, fact) for row, fact in zip(known, facts, strict=True) if groups.count(fact[0]) > 1]
    most = max(1, *(len(fact[2]) for _, fact in both))
    batch = Batch(
        mask=torch.tensor([[place < fact[4] for place in range(width)] for _, fact in both]),
        groups=torch.tensor([fact[0] for _, fact in both]),
        outcome=torch.tensor([fact[1] for _, fact in both]),
        step_ends=torch.tensor([fact[2] + [-1] * (most - len(fact[2])) for _, fact in both]),
        step_rewards=torch.tensor([fact[3] + [0.0] * (most - len(fact[3])) for _, fact in both]),
    )
    found = torch.zeros(len(rows), width)
    found[[row for row, _ in both]] = CREDITS.load(credit)().assign(batch).advantages
    return found


def check(batch, credit, **options):
    """A batch's advantages are those that are expected; rows of several processes one after another."""
    columns = (batch[name] for name in ("completion_ids", "completion_mask", "problems"))
    rows = [(written(ids, mask), problem) for ids, mask, problem in zip(*columns, strict=True)]
    wanted = expected(rows, credit, **options)
    assert len({len(ids) for ids, _ in rows}) > 1, "no padding in this batch"
    assert wanted.abs().max() > 0.1
    for (ids, _), row, mask, want in zip(
        rows, batch["advantages"], batch["completion_mask"], wanted, strict=True
    ):
        assert len(row) == len(mask)
        trained_on = torch.tensor(mask[: len(ids)])
        torch.testing.assert_close(
            torch.tensor(row[: len(ids)]), want[: len(ids)] * trained_on, atol=1e-5, rtol=1e-5
        )
        assert not any(row[len(ids) :])
    return rows


def test_three_steps_of_training_use_the_credit_of_the_same_batch(tmp_path) -> None:
    [result] = trained(tmp_path, credit="process-grpo", generations=2, plain=True, evaluate=True)
    batches = [one for one in result["batches"] if one["training"]]
    assert len(batches) == 3
    assert result["moved"] > 1e-4
    for number, batch in enumerate(batches):
        check(batch, "process-grpo", plain=True)
        # TRL shuffles the batch and trains on its halves: they hold the same rows and nothing else.
        given = sorted(zip(batch["completion_ids"], batch["advantages"], strict=True))
        halves = result["used"][2 * number : 2 * number + 2]
        assert given == sorted(
            pair for half in halves for pair in zip(half["completion_ids"], half["advantages"], strict=True)
        )
    # In evaluation TRL's own stay: one number a completion.
    [evaluated] = [one for one in result["batches"] if not one["training"]]
    assert all(isinstance(one, float) for one in evaluated["advantages"])
    logged = [line for line in result["log"] if "prm/score" in line]
    assert len(logged) == 3
    assert all(
        0 < float(line["prm/score"]) < 1 and float(line["rewards/prm_mean/mean"]) > 0 for line in logged
    )


def test_a_group_on_two_processes_gets_what_it_gets_on_one(tmp_path) -> None:
    how = {"credit": "min-form", "scripted": True, "mask_cut": True}
    [alone] = trained(tmp_path, **how)
    left, right = trained(tmp_path, processes=2, **how)
    for one, two, three in zip(alone["batches"], left["batches"], right["batches"], strict=True):
        both = {
            name: two[name] + three[name]
            for name in ("completion_ids", "completion_mask", "advantages", "problems")
        }
        assert two["problems"][-1] == three["problems"][0], "no group on both"
        assert check(both, "min-form") == check(one, "min-form")
        # Cut off, so TRL leaves them out of its loss; their group counted them.
        assert any(not any(mask) for mask in one["completion_mask"])
    weights = [torch.tensor(result["weights"]) for result in (alone, left, right)]
    assert alone["moved"] > 1e-3
    torch.testing.assert_close(weights[1], weights[2], atol=0, rtol=0)
    torch.testing.assert_close(weights[0], weights[1], atol=1e-5, rtol=1e-4)


def test_conversations_get_the_credit_of_their_turns(tmp_path) -> None:
    [result] = trained(tmp_path, credit="discounted", turns=True)
    assert result["moved"] > 1e-4
    for batch, masks in zip(result["batches"], result["written"], strict=True):
        ids = [row[: len(mask)] for row, mask in zip(batch["completion_ids"], masks, strict=True)]
        texts = ["".join("" if PIECES[i] in CONTROL else PIECES[i] for i in row) for row in ids]
        outcomes = [
            (one or 0.0) + 0.5 * (two or 0.0) for one, two in zip(first(texts), second(texts), strict=True)
        ]
        rated = [row for row, text in enumerate(texts) if first([text]) != [None]]
        groups = [f"{batch['problems'][row]}|{row // GROUP}" for row in rated]
        # step_score reads the problem; the group is the block of rows.
        assert len(set(groups)) == len({row // GROUP for row in rated})
        wanted = discounted(
            [batch["problems"][row] for row in rated],
            [ids[row] for row in rated],
            [masks[row] for row in rated],
            [outcomes[row] for row in rated],
        )
        assert any(0 in mask for mask in masks)
        for row, by_hand in zip(rated, wanted, strict=True):
            assert batch["advantages"][row][: len(by_hand)] == pytest.approx(by_hand, abs=1e-5)
