"""Make the tiny policy of the arithmetic world, and measure one.

    python recipes/tiny_policy.py train OUT         make the weights anew
    python recipes/tiny_policy.py measure [POLICY]  solve rate, majority vote and pass@8 on held-out problems

Both are functions of their seeds. `docs/sample.md#the-arithmetic-world` says what came out.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from pathlib import Path

HELD_OUT = 900
"""Seed of the problems that `measure` asks; the weights are trained on those of another."""


def train(out: Path) -> None:
    """Train with the default settings."""
    import torch
    from tiny_policy_training import TinyPolicy, train_tiny_policy

    torch.set_num_threads(1)
    train_tiny_policy(out, TinyPolicy(), report=lambda figures: print(json.dumps(figures), flush=True))


def measure(name: str, *, problems: int, temperature: float) -> None:
    """Sample 8 solutions of each problem and a greedy one, and print the figures."""
    import torch

    from stepmark.metrics.intervals import wilson
    from stepmark.models.policies import load_policy
    from stepmark.problems.arithmetic import arithmetic_problems
    from stepmark.sampling import Sampling, sample
    from stepmark.verifiers.base import load_verifier

    torch.set_num_threads(1)
    policy = load_policy(name)
    known = list(arithmetic_problems(problems, seed=HELD_OUT, steps=(3, 6), surface="formula", largest=99))
    began = time.monotonic()
    sampled = list(sample((p.problem for p in known), policy, Sampling(temperature=temperature)))
    seconds, tokens = time.monotonic() - began, policy.tokens_written
    solved = votes = some = greedy = 0.0
    by_steps: defaultdict[int, list[int]] = defaultdict(list)
    with load_verifier("number") as verifier:
        for one, found in zip(known, sampled, strict=True):
            assert found.greedy is not None
            texts = [written.text for written in (*found.samples, found.greedy)]
            *drawn, best = verifier.verify_many((text, str(one.answer)) for text in texts)
            right = [verdict.correct is True for verdict in drawn]
            answers = Counter(verdict.answer for verdict in drawn if verdict.answer is not None)
            most = max(answers.values(), default=0)
            top = [answer for answer, count in answers.items() if count == most]
            matching = {verdict.answer for verdict, ok in zip(drawn, right, strict=True) if ok}
            solved += sum(right) / len(right)
            votes += sum(answer in matching for answer in top) / len(top) if top else 0
            some += any(right)
            greedy += best.correct is True
            by_steps[len(one.steps)] += right
    rows = {
        "solve rate": solved,
        "greedy": greedy,
        "majority@8": votes,
        "pass@8": some,
    }
    for what, count in rows.items():
        interval = wilson(round(count), len(known))
        print(f"{what:12} {count / len(known):.3f}   [{interval.low:.3f}, {interval.high:.3f}]")
    print(
        "by steps    ",
        {steps: round(sum(right) / len(right), 2) for steps, right in sorted(by_steps.items())},
    )
    print(f"{tokens} tokens in {seconds:.1f} s")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("train").add_argument("out", type=Path)
    measured = commands.add_parser("measure")
    measured.add_argument("policy", nargs="?", default="stepmark:arithmetic")
    measured.add_argument("--problems", type=int, default=400)
    measured.add_argument("--temperature", type=float, default=0.8)
    asked = parser.parse_args()
    if asked.command == "train":
        train(asked.out)
    else:
        measure(asked.policy, problems=asked.problems, temperature=asked.temperature)


if __name__ == "__main__":
    main()
