"""`stepmark label`: step labels from rollouts, searches for the first error, judges, and arithmetic; a command a method."""

from __future__ import annotations

from cyclopts import App, Parameter

METHODS: dict[str, tuple[str, str]] = {
    "rollout": (
        "stepmark.cli.label_methods:rollout_command",
        "Every step, k rollouts each (Math-Shepherd).",
    ),
    "binary": ("stepmark.cli.label_methods:binary_command", "The first error by binary search (OmegaPRM)."),
    "bayes": (
        "stepmark.cli.label_methods:bayes_command",
        "The first error by Bayesian search; fewest tokens.",
    ),
    "tree": (
        "stepmark.cli.label_methods:tree_command",
        "A tree of rollouts a problem, each used again as a solution (OmegaPRM).",
    ),
    "judge": (
        "stepmark.cli.label_methods:judge_command",
        "A language model as the critic, sampled and voted.",
    ),
    "formulas": (
        "stepmark.cli.label_methods:formulas_command",
        "Calculations checked exactly; needs no model.",
    ),
    "own": (
        "stepmark.cli.label_methods:own_command",
        "A labeller of your own: --method package.module:Class.",
    ),
    "exact": (
        "stepmark.cli.label_exact:exact_command",
        "Errors put on purpose into right solutions; needs no model.",
    ),
    "consensus": (
        "stepmark.cli.label_consensus:consensus_command",
        "What several labelled files of the same solutions agree on.",
    ),
}
"""Name: where the command lives, and its line in `stepmark label --help`."""

app = App(
    name="label",
    help="Label the steps of solutions automatically.",
    help_format="plaintext",
    # A labeller's settings are its flags, and they are plain bools: no --no-stop-at-success.
    default_parameter=Parameter(negative=""),
)
for _name, (_place, _summary) in METHODS.items():
    app.command(_place, name=_name, help=_summary)
