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
    "tree": (
        "stepmark.cli.label:tree_command",
        "A tree of rollouts, each used again as a solution (OmegaPRM).",
    ),
    "judge": ("stepmark.cli.label:judge_command", "A language model as the critic, sampled and voted."),
    "formulas": ("stepmark.cli.label:formulas_command", "Calculations checked exactly; needs no model."),
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
    batch: int = 2,
    max_rollouts: int = 64,
    max_tokens_a_solution: int | None = None,
    least_bits: float = 0.0,
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
        least_bits: give up when the best rollout promises fewer bits about the place for each solution's length; 0.1 saves
            the tokens of hopeless solutions.
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
        least_bits=least_bits,
        at_budget=at_budget,
        root=root,
        how=options.rollouts(),
    )
    return run_labeller(file, labeller, options)


def tree_command(
    file: FileOrDash,
    /,
    *,
    k: int = 8,
    searches: int = 100,
    alpha: float = 0.5,
    beta: float = 0.9,
    length_scale: float = 500,
    c_puct: float = 0.125,
    retries: int = 1,
    least: int = 1,
    options: LabelOptions,
) -> int:
    """Grow a tree of rollouts from each solution (OmegaPRM): every rollout may become a solution that is searched in turn.

    The output holds the given solutions and all that were labelled on the way, a row each.

    Args:
        file: solutions with reference answers, as JSON lines: {"problem", "steps" or "solution", "answer"}.
        k: rollouts a probe.
        searches: binary searches a solution given.
        alpha: of the selection, how much a low success rate counts against a state.
        beta: of the selection, how much a long rollout counts against itself.
        length_scale: of the selection, the length that beta is about.
        c_puct: of the selection, how much seldom visited states are sought.
        retries: how often a probe whose rollouts all have no verdict is tried again.
        least: verdicts that are needed before "no success" counts as bad.
        options: the flags.
    """
    from stepmark.labels.tree import RolloutTree

    labeller = RolloutTree(
        k=k,
        searches=searches,
        alpha=alpha,
        beta=beta,
        length_scale=length_scale,
        c_puct=c_puct,
        retries=retries,
        least=least,
        how=options.rollouts(),
    )
    return run_labeller(file, labeller, options)


def judge_command(
    file: FileOrDash,
    /,
    *,
    ask: Literal["place", "steps"] = "place",
    votes: int = 8,
    retries: int = 1,
    quorum: int | None = None,
    agreement: float = 0.0,
    beyond: Flag = False,
    options: LabelOptions,
) -> int:
    """Ask a language model for the first wrong step, several times, and take the vote; no reference answer is needed.

    Args:
        file: solutions, as JSON lines: {"problem", "steps" or "solution"}.
        ask: for the place of the first error in the whole solution, or about one step after another.
        votes: replies a question.
        retries: how often replies that name no step are asked for again.
        quorum: votes that a decision needs. Left out: more than half.
        agreement: share of the votes that a decision needs, 0 to 1; 0 for any lead.
        beyond: with --ask steps, ask about the steps after the first wrong one too.
        options: the flags; --policy names the judge.
    """
    from stepmark.labels.judge import Judge

    labeller = Judge(
        ask=ask,
        votes=votes,
        retries=retries,
        quorum=quorum,
        agreement=agreement,
        beyond=beyond,
        name=f"judge:{options.policy}",
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
        seed=options.seed,
    )
    return run_labeller(file, labeller, options, needs_verifier=False)


def formulas_command(file: FileOrDash, /, *, vouch: Flag = False, options: LabelOptions) -> int:
    """Check the calculations that steps write down, exactly; a step with a false one is wrong. Needs no model.

    Args:
        file: solutions, as JSON lines: {"problem", "steps" or "solution"}.
        vouch: call steps right whose calculations are all surely true; they may be the wrong calculations.
        options: the flags; --policy is not needed.
    """
    from stepmark.labels.formulas import Formulas

    return run_labeller(file, Formulas(vouch=vouch), options, needs_policy=False, needs_verifier=False)
