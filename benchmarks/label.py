"""What a first error costs: labellers on wrong solutions of the arithmetic world, against its known truth.

`python -m benchmarks.label [--quick] [--count 400] [--repair 0.04]`. Every labeller sees the same solutions and the same policy
(about 60 % of problems solved; after an error it still succeeds in some of its rollouts). A labeller that abstains has not found
the error. Token ratios are of means over solutions; intervals are a paired bootstrap over them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.common import benchmark_parser, finish
from stepmark.labels.bayes import BayesianSearch
from stepmark.labels.labellers import label
from stepmark.labels.labelling import Labeller, Labelling
from stepmark.labels.rollout import BinarySearch, EveryStep
from stepmark.metrics.intervals import Floats, Interval, bootstrap, shares
from stepmark.problems.arithmetic_world import ArithmeticPolicy, SolverSettings, wrong_solutions
from stepmark.verifiers.base import BatchVerifier, load_verifier

BASE, HALF = "every-step, k=8", "binary, k=8"


def labellers() -> dict[str, Labeller]:
    """Those that are compared, by the name in the table."""
    return {
        BASE: EveryStep(k=8),
        "every-step, k=8, stop early": EveryStep(k=8, stop_at_success=True, stop_at_error=True),
        HALF: BinarySearch(k=8),
        "binary, k=8, stop at success": BinarySearch(k=8, stop_at_success=True),
        "bayes, 8 rollouts": BayesianSearch(max_rollouts=8, at_budget="guess"),
        "bayes, 12 rollouts": BayesianSearch(max_rollouts=12, at_budget="guess"),
        "bayes, 16 rollouts": BayesianSearch(max_rollouts=16, at_budget="guess"),
        "bayes, 64 rollouts": BayesianSearch(at_budget="guess"),
        "bayes, sure or silent": BayesianSearch(),
    }


AT_EIGHTH, AT_HALF = "bayes, 12 rollouts", "bayes, 16 rollouts"
"""The budgets that come nearest to an eighth of every-step's tokens and to half of binary search's."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--repair", type=float, default=SolverSettings().repair_rate)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    count = 60 if arguments.quick else arguments.count
    settings = SolverSettings(repair_rate=arguments.repair)
    cases = list(wrong_solutions(count, seed=arguments.seed, settings=settings))
    truth = np.array([case.first_error for case in cases])
    columns: dict[str, dict[str, Floats]] = {}
    print(
        f"{count} wrong solutions of 4 to 16 steps, repair rate {arguments.repair:g}\n"
        f"{'labeller':32} {'exact %':>20} {'within one %':>13} {'abstained %':>12} {'rollouts':>9} {'tokens':>8} {'seconds':>8}"
    )
    for name, labeller in labellers().items():
        began = time.perf_counter()
        with load_verifier("number") as verifier:
            solutions = (case.solution for case in cases)
            found = list(label(solutions, labeller, ArithmeticPolicy(settings), BatchVerifier(verifier)))
        seconds = time.perf_counter() - began
        columns[name] = measured(found, truth)
        exact = interval(columns[name]["exact"])
        mean = {key: float(column.mean()) for key, column in columns[name].items()}
        print(
            f"{name:32} {100 * mean['exact']:6.1f} [{percent(exact.low)}, {percent(exact.high)}] {100 * mean['near']:13.1f} "
            f"{100 * mean['abstained']:12.1f} {mean['rollouts']:9.1f} {mean['tokens']:8.0f} {seconds:8.1f}",
            flush=True,
        )
    figures: dict[str, float] = {}
    for figure, bayes, other in (
        ("every_step", AT_EIGHTH, BASE),
        ("binary", AT_HALF, HALF),
    ):
        both = compared(columns[bayes], columns[other])
        for what, one in both.items():
            key = f"bayes_token_ratio_to_{figure}" if what == "ratio" else f"bayes_minus_{figure}_exact"
            assert one.value is not None
            figures[key] = one.value
            print(f"{key}: {one.value:.3f} [{one.low}, {one.high}] ({bayes} against {other})")
    silent = columns["bayes, sure or silent"]
    named = silent["abstained"] == 0
    figures["bayes_exact_where_sure"] = float(silent["exact"][named].mean())
    figures["bayes_sure"] = float(named.mean())
    finish(
        "label",
        figures,
        {
            "bayes_token_ratio_to_every_step": 0.125,
            "bayes_token_ratio_to_binary": 0.5,
            "bayes_minus_every_step_exact": 0.0,
            "bayes_minus_binary_exact": 0.0,
        },
    )


def measured(found: Sequence[object], truth: Floats) -> dict[str, Floats]:
    """One column a figure, one entry a solution."""
    rows = []
    for one, first in zip(found, truth, strict=True):
        assert isinstance(one, Labelling), one
        assert one.cost.tokens is not None
        place = one.first_error
        rows.append(
            (
                place == first,
                place is not None and abs(place - first) <= 1,
                place is None,
                one.cost.rollouts,
                one.cost.tokens,
            )
        )
    table = np.array(rows, dtype=float)
    return dict(zip(("exact", "near", "abstained", "rollouts", "tokens"), table.T, strict=True))


def interval(column: Floats) -> Interval:
    """The mean with its bootstrap interval."""
    return bootstrap(lambda w: {"mean": shares(w @ column, w.sum(axis=1))}, range(len(column)))["mean"]


def percent(value: float | None) -> str:
    """In percent, or a dash."""
    return "–" if value is None else f"{100 * value:.1f}"


def compared(a: Mapping[str, Floats], b: Mapping[str, Floats]) -> dict[str, Interval]:
    """Tokens of a over tokens of b, and the difference of exactness, drawn together."""
    return bootstrap(
        lambda w: {
            "ratio": shares(w @ a["tokens"], w @ b["tokens"]),
            "exact": shares(w @ (a["exact"] - b["exact"]), w.sum(axis=1)),
        },
        range(len(a["exact"])),
    )


if __name__ == "__main__":
    main()
