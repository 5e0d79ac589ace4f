"""`stepmark evaluate`: one command an evaluation, each imported only when it is asked for."""

from __future__ import annotations

from cyclopts import App

from stepmark.cli.evaluating import (
    DEFAULTS,
    Data,
    EvaluateOptions,
    check,
    finish,
    limited,
    provenance,
    sampled,
    scored,
    settings_of,
)
from stepmark.errors import UsageError

EVALUATIONS: dict[str, tuple[str, str]] = {
    "processbench": (
        "stepmark.cli.evaluate:processbench_command",
        "First-error accuracy and F1 on ProcessBench.",
    ),
    "prmbench": ("stepmark.cli.evaluate:prmbench_command", "PRMScore by class of error on PRMBench."),
    "best-of-n": (
        "stepmark.cli.evaluate_best_of_n:best_of_n_command",
        "Accuracy of the chosen candidate by every way to choose, against tokens.",
    ),
    "search": (
        "stepmark.cli.evaluate_search:search_command",
        "Search methods at matched compute, beside a majority vote and best-of-N.",
    ),
    "robustness": (
        "stepmark.cli.evaluate_robustness:robustness_command",
        "What controlled changes of a solution do to its scores.",
    ),
    "disagreement": (
        "stepmark.cli.evaluate_disagreement:disagreement_command",
        "Right answers from wrong steps, and the reverse.",
    ),
    "verifier": (
        "stepmark.cli.evaluate_verifier:verifier_command",
        "Errors of the answer checkers on labelled pairs.",
    ),
    "calibration": (
        "stepmark.cli.evaluate_calibration:calibration_command",
        "Whether scores are probabilities: reliability, ECE, Brier, AUC; temperature and Platt scaling.",
    ),
    "drift": (
        "stepmark.cli.evaluate_calibration:drift_command",
        "One PRM on several policies or training stages: is it still right, or hacked.",
    ),
    "compare": ("stepmark.cli.evaluate:compare_command", "Test the difference of two results."),
}
"""Name: where the command lives, and its line in `stepmark evaluate --help`."""

app = App(name="evaluate", help="Measure what a PRM is good for.", help_format="plaintext")
for _name, (_place, _summary) in EVALUATIONS.items():
    app.command(_place, name=_name, help=_summary)


def processbench_command(
    *, data: Data, threshold: str | None = None, options: EvaluateOptions = DEFAULTS
) -> int:
    """First-error accuracy and F1 on ProcessBench, per subset and on average, with intervals.

    Args:
        data: ProcessBench files (JSON lines or its own .json), a folder of them, or "hub" to download the four.
        threshold: under which score a step is an error: a number, argmax, tuned:SUBSET (the best on that subset, used on
            all), or oracle (the best of each subset on itself: a bound, not a result). Left out: the PRM's own.
        options: the flags.
    """
    from stepmark.evaluation.processbench import NAME, evaluate
    from stepmark.evaluation.sources import files_of, read_processbench
    from stepmark.evaluation.thresholds import check_asked

    _check(threshold, options)
    files = files_of(data, dataset=NAME)
    every = read_processbench(files)
    cases = limited(every, options.limit)
    check_asked(threshold, list(dict.fromkeys(case.group for case in cases)))
    sheet = scored(NAME, cases, files, options)
    return finish(
        evaluate(
            sheet,
            threshold=threshold,
            settings=settings_of(options, sheet),
            data=provenance(files),
            facts=sampled(len(cases), len(every)),
            resamples=options.resamples,
            seed=options.seed,
        ),
        options,
    )


def prmbench_command(*, data: Data, threshold: str | None = None, options: EvaluateOptions = DEFAULTS) -> int:
    """PRMScore on PRMBench, per class, per category and overall, as the benchmark defines it, with intervals.

    Args:
        data: PRMBench files, a folder of them, or "hub".
        threshold: over which score a step is called right: a number or argmax. Left out: the PRM's own.
        options: the flags.
    """
    from stepmark.evaluation.prmbench import NAME, check_threshold, evaluate
    from stepmark.evaluation.scores import score_lengths
    from stepmark.evaluation.sources import files_of, read_prmbench

    _check(threshold, options)
    check_threshold(threshold)
    files = files_of(data, dataset=NAME)
    lengths = None if options.scores is None else score_lengths(options.scores, model=options.model_name)
    every = read_prmbench(files, lengths=lengths)
    cases = limited(every, options.limit)
    sheet = scored(NAME, cases, files, options)
    return finish(
        evaluate(
            sheet,
            threshold=threshold,
            settings=settings_of(options, sheet),
            data=provenance(files),
            facts=sampled(len(cases), len(every)),
            resamples=options.resamples,
            seed=options.seed,
        ),
        options,
    )


def _check(threshold: str | None, options: EvaluateOptions) -> None:
    if threshold == "argmax" and options.neutral == "negative":
        raise UsageError(
            "--threshold argmax takes the neutral class for no error, which --neutral negative contradicts; give a number"
        )
    check(options)


def compare_command(
    a: str, b: str, /, *, resamples: int = 2000, seed: int = 0, figure: tuple[str, ...] = ()
) -> int:
    """Test the difference of two results on the same data by a paired bootstrap.

    Args:
        a: the result.json of the first PRM.
        b: that of the second.
        resamples: bootstrap resamples.
        seed: of the resamples.
        figure: only these figures (such as gsm8k/f1); all of them when left out.
    """
    import sys

    from rich.console import Console

    from stepmark.evaluation.compare import compare, table
    from stepmark.evaluation.result import read_result
    from stepmark.show.tables import terminal

    found = compare(read_result(a), read_result(b), resamples=resamples, seed=seed)
    unknown = [name for name in figure if name not in found.differences]
    if unknown:
        raise UsageError(f"--figure {unknown[0]}: there is none; known: {', '.join(found.differences)}")
    Console().print(terminal(table(found, only=figure or None)))
    for warning in found.warnings:
        print(f"note: {warning}", file=sys.stderr)
    return 0
