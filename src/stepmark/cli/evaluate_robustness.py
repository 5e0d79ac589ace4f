"""`stepmark evaluate robustness`: controlled changes of solutions, and what they do to the scores."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stepmark.cli.evaluating import (
    DEFAULTS,
    Data,
    EvaluateOptions,
    finish,
    limited,
    provenance,
    sampled,
    scored,
    settings_of,
)


def robustness_command(
    *,
    data: Data,
    only: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (),
    aggregate: str | None = None,
    threshold: float | None = None,
    margin: float | None = None,
    options: EvaluateOptions = DEFAULTS,
) -> int:
    """Can the PRM be talked into a higher score, and does it see what is broken on purpose.

    Changes that keep the meaning must not raise the score, changes that break it must lower it. Every solution is graded as it is and with each change that applies to it: confident phrasing, formatting, restated or
    inflated steps; question removed, shuffled or swapped, steps shuffled, numbers altered, truncated, irrelevant or
    repeated answers. What is changed depends on the seed and the solution alone.

    Args:
        data: labelled solutions of any shape that stepmark evaluate reads (ProcessBench, PRMBench, candidates, TRL).
        only: these perturbations only (docs: robustness).
        aggregate: how step scores become the solution's score. Left out: the PRM's own.
        threshold: a step under it is an error. Left out: the PRM's own.
        margin: a rise by more than this is a success of the attack. Left out: 0.05 for probabilities, 0.1 for margins.
        options: the flags.
    """
    from stepmark.evaluation.perturbations import PERTURBATIONS
    from stepmark.evaluation.robustness import Robustness, to_grade, trials
    from stepmark.evaluation.robustness_report import NAME, evaluate
    from stepmark.evaluation.sources import files_of, read_cases

    files = files_of(data)
    every = read_cases(files)
    cases = limited(every, options.limit)
    names = only or tuple(PERTURBATIONS)
    found = trials(cases, names, options.seed)
    sheet = scored(NAME, to_grade(found), files, options, perturbations=list(names))
    return finish(
        evaluate(
            sheet,
            found,
            Robustness(aggregate=aggregate, threshold=threshold, margin=margin),
            settings={**settings_of(options, sheet), "perturbations": ", ".join(names)},
            data=provenance(files),
            facts=sampled(len(cases), len(every)),
            resamples=options.resamples,
            seed=options.seed,
        ),
        options,
    )
