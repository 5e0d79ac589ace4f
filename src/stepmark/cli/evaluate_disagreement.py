"""`stepmark evaluate disagreement`: right answers from wrong steps, and the reverse."""

from __future__ import annotations

from typing import Literal

from stepmark.cli.evaluating import (
    DEFAULTS,
    RATINGS,
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


def disagreement_command(
    *,
    data: Data,
    process: Literal["labels", "scores"] = "labels",
    threshold: str | None = None,
    trials: int | None = None,
    show: int = 6,
    options: EvaluateOptions = DEFAULTS,
) -> int:
    """How often a right answer rests on a wrong step, and right steps end in a wrong answer, with intervals.

    Args:
        data: labelled solutions with outcomes: ProcessBench, candidates, Math-Shepherd, openr's rollout trees.
        process: what says whether the steps are right: the data's labels, or a PRM's scores. The other is shown
            beside it where there is one: with labels, the PRM of --scores or of a --prm other than the default.
        threshold: under which score a step is wrong: a number, argmax, tuned:GROUP (the best on that group's labels), or
            oracle. Left out: the PRM's own.
        trials: rollouts behind each share of an openr tree, which its files do not say. Left out: of a share only whether
            any rollout succeeded is used.
        show: examples of each cell, and rows of each list of confident disagreements.
        options: the flags.
    """
    from stepmark.evaluation.disagreement import NAME, evaluate
    from stepmark.evaluation.rollouts import read_openr
    from stepmark.evaluation.sources import files_of, read_cases

    graded = process == "scores" or options.scores is not None or options.prm != DEFAULTS.prm
    check(options, also=RATINGS, asked=graded)
    files = files_of(data)
    every = read_cases(files) if trials is None else read_openr(files, trials=trials)
    cases = limited(every, options.limit)
    sheet = scored(NAME, cases, files, options, also=RATINGS, trials=trials) if graded else None
    return finish(
        evaluate(
            cases,
            sheet,
            process=process,
            threshold=threshold,
            neutral=options.neutral,
            show=show,
            settings={**settings_of(options, sheet), "trials": trials} | ({} if graded else {"prm": None}),
            data=provenance(files),
            facts=sampled(len(cases), len(every)),
            resamples=options.resamples,
            seed=options.seed,
        ),
        options,
    )
