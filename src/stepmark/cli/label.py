"""`stepmark label`: step labels from rollouts, searches for the first error, and judges; a command a method."""

from __future__ import annotations

from typing import Literal

from cyclopts import App

from stepmark.cli.grade import Flag
from stepmark.cli.labelling import LabelOptions, run_labeller
from stepmark.cli.paths import FileOrDash

METHODS: dict[str, tuple[str, str]] = {
    "rollout": ("stepmark.cli.label:rollout_command", "Every step, k rollouts each (Math-Shepherd)."),
    "binary": ("stepmark.cli.label:binary_command", "The first error by binary search (OmegaPRM)."),
    "bayes": ("stepmark.cli.label:bayes_command", "The first error by Bayesian search; fewest tokens."),
}
"""Name: where the command lives, and its line in `stepmark label --help`."""

app = App(name="label", help="Label the steps of solutions automatically.", help_format="plaintext")
for _name, (_place, _summary) in METHODS.items():
    app.command(_place, name=_name, help=_summary)


def rollout_command(
    file: FileOrDash,
    /,
    *,
    k: int = 8,
    stop_at_success: Flag = False,
    stop_at_error: Flag = False,
    only_wrong: Flag = False,
    retries: int = 1,
    least: int = 1,
    options: LabelOptions,
) -> int:
    """Label every step by k rollouts from the prefix that it ends (Math-Shepherd): the share that reaches the right answer.

    Args:
        file: solutions with reference answers, as JSON lines: {"problem", "steps" or "solution", "answer"}.
        k: rollouts a prefix.
        stop_at_success: write no more of a prefix after a success; hard labels stay the same, soft ones do not.
        stop_at_error: stop at the first bad step; the first error stays the same.
        only_wrong: search only solutions whose answer is wrong.
        retries: how often a prefix whose rollouts all have no verdict is tried again.
        least: verdicts that are needed before "no success" counts as bad.
        options: the flags.
    """
    from stepmark.labels.rollout import EveryStep

    labeller = EveryStep(
        k=k,
        stop_at_success=stop_at_success,
        stop_at_error=stop_at_error,
        only_wrong=only_wrong,
        retries=retries,
        least=least,
        how=options.rollouts(),
    )
    return run_labeller(file, labeller, options)


def binary_command(
    file: FileOrDash,
    /,
    *,
    k: int = 8,
    stop_at_success: Flag = False,
    check_start: Flag = False,
    retries: int = 1,
    least: int = 1,
    options: LabelOptions,
) -> int:
    """Find the first error of wrong solutions by binary search (OmegaPRM): k rollouts at each probed prefix.

    Args:
        file: solutions with reference answers, as JSON lines: {"problem", "steps" or "solution", "answer"}.
        k: rollouts a probe.
        stop_at_success: write no more of a probe after a success.
        check_start: probe the problem alone too: a policy that cannot solve it says nothing about steps.
        retries: how often a probe whose rollouts all have no verdict is tried again.
        least: verdicts that are needed before "no success" counts as bad.
        options: the flags.
    """
    from stepmark.labels.first_error import BinarySearch

    labeller = BinarySearch(
        k=k,
        stop_at_success=stop_at_success,
        check_start=check_start,
        retries=retries,
        least=least,
        how=options.rollouts(),
    )
    return run_labeller(file, labeller, options)


def bayes_command(
    file: FileOrDash,
    /,
    *,
    confidence: float = 0.9,
    batch: int = 4,
    max_rollouts: int = 64,
    max_tokens_a_solution: int | None = None,
    at_budget: Literal["abstain", "guess"] = "abstain",
    root: int = 0,
    options: LabelOptions,
) -> int:
    """Find the first error of wrong solutions by Bayesian search: each rollout where it tells most for its tokens.

    Args:
        file: solutions with reference answers, as JSON lines: {"problem", "steps" or "solution", "answer"}.
        confidence: stop when the first error is this sure.
        batch: rollouts a round.
        max_rollouts: at most so many a solution; then it abstains.
        max_tokens_a_solution: at most about so many tokens a solution.
        at_budget: abstain, or name the likeliest place all the same.
        root: rollouts of the problem alone, asked for first.
        options: the flags.
    """
    from stepmark.labels.bayes import BayesianSearch

    labeller = BayesianSearch(
        confidence=confidence,
        batch=batch,
        max_rollouts=max_rollouts,
        max_tokens=max_tokens_a_solution,
        at_budget=at_budget,
        root=root,
        how=options.rollouts(),
    )
    return run_labeller(file, labeller, options)
