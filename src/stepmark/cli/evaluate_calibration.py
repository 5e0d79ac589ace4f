"""`stepmark evaluate calibration` and `stepmark evaluate drift`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from stepmark.cli.evaluating import (
    DEFAULTS,
    RATINGS,
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

if TYPE_CHECKING:
    from stepmark.evaluation.calibration_fit import Maps, Split
    from stepmark.evaluation.cases import Case
    from stepmark.evaluation.result import Result
    from stepmark.models.spec import ScoringSpec

Data = Annotated[tuple[str, ...], Parameter(name="--data", consume_multiple=True, negative="")]
"""Files or folders."""


def calibration_command(
    *,
    data: Data,
    bins: int = 10,
    target: Literal["steps", "outcome"] | None = None,
    aggregate: str | None = None,
    fit: str | None = None,
    fit_share: float | None = None,
    store: Path | None = None,
    options: EvaluateOptions = DEFAULTS,
) -> int:
    """Does a score of 0.8 mean right four times in five: reliability, ECE, Brier, AUC, by position, policy and difficulty.

    Args:
        data: labelled solutions: ProcessBench, PRMBench, candidates, PRM800K (flat) or TRL files, or a folder of them.
        bins: of the reliability diagram and of ECE, of equal width.
        target: what a score is held against: "steps", the label of its step; "outcome", whether the solution's answer is
            right. Left out: all that the data knows.
        aggregate: what stands for a solution. Left out: the PRM's own.
        fit: fit temperature and Platt scaling on this, measure on the rest: another data file, or a group of the data.
        fit_share: fit on this share of the problems, chosen by a hash of each.
        store: write the fitted Platt map into this checkpoint's stepmark.json; it must be the --prm that graded.
        options: the flags.
    """
    from stepmark.evaluation.calibration import NAME, check_how, targets_of
    from stepmark.evaluation.calibration_report import evaluate
    from stepmark.evaluation.sources import files_of

    check(options, also=RATINGS)
    if bins < 1:
        raise UsageError(f"--bins {bins}: expected 1 or more")
    spec = None if store is None else _storable(store, options, fit, fit_share)
    files = files_of(data)
    every = _cases(files, options)
    cases = limited(every, options.limit)
    whole, split, more = _split(cases, fit, fit_share, options)
    targets = targets_of(cases, target)
    if store is not None and "steps" not in targets:
        raise UsageError(
            "--store: a checkpoint scores steps, and nothing is fitted to steps here: the data judges none, or --target is outcome"
        )
    sheet = scored(NAME, whole, [*files, *more], options, also=RATINGS)
    result, maps = evaluate(
        sheet,
        targets,
        how=check_how(aggregate, sheet),
        bins=bins,
        split=split,
        neutral=options.neutral,
        settings=settings_of(options, sheet)
        | {"target": target, "aggregate": aggregate, "fit": fit, "fit_share": fit_share},
        data=provenance([*files, *more]),
        facts=sampled(len(cases), len(every)),
        resamples=options.resamples,
        seed=options.seed,
    )
    finish(result, options)
    if store is not None:
        assert spec is not None
        assert split is not None
        _store(store, spec, maps["steps"], split, result)
    return 0


def drift_command(
    *,
    data: Data,
    by: Literal["policy", "file"] | None = None,
    against: str | None = None,
    aggregate: str | None = None,
    threshold: str | None = None,
    bins: int = 10,
    options: EvaluateOptions = DEFAULTS,
) -> int:
    """The same PRM on several policies, or stages of a training: does it still tell right from wrong, or is it hacked.

    Args:
        data: solutions whose answer is known to be right or wrong: candidates or ProcessBench files; with --by file one file a
            stage, in their order.
        by: what the parts are: "policy", who wrote the solution; "file", one part a file. Left out: file where there are several.
        against: the part that the others are compared with. Left out: the first.
        aggregate: what stands for a solution. Left out: the PRM's own.
        threshold: at or over which a wrong answer passes. Left out: the PRM's own.
        bins: of ECE.
        options: the flags.
    """
    from stepmark.evaluation.calibration import check_how
    from stepmark.evaluation.drift import NAME, read_parts
    from stepmark.evaluation.drift_report import evaluate
    from stepmark.evaluation.sources import files_of

    check(options)
    if bins < 1:
        raise UsageError(f"--bins {bins}: expected 1 or more")
    files = files_of(data)
    chosen = by or ("file" if len(files) > 1 else "policy")
    every, parts = read_parts(files, chosen)
    cases = limited(every, options.limit)
    sheet = scored(NAME, cases, files, options, by=chosen)
    return finish(
        evaluate(
            sheet,
            parts,
            by=chosen,
            how=check_how(aggregate, sheet),
            threshold=threshold,
            reference=against,
            bins=bins,
            settings=settings_of(options, sheet) | {"aggregate": aggregate},
            data=provenance(files),
            facts=sampled(len(cases), len(every)),
            resamples=options.resamples,
            seed=options.seed,
        ),
        options,
    )


def _cases(files: Sequence[str], options: EvaluateOptions) -> list[Case]:
    """The cases of the data. Of two PRMBench rows with one id, the one that the scores are of, as `evaluate prmbench` has it."""
    from stepmark.evaluation.scores import score_lengths
    from stepmark.evaluation.sources import read_cases, read_prmbench
    from stepmark.solutions.interchange.files import rows_of

    if options.scores is not None and all("modified_process" in next(rows_of(file)).data for file in files):
        return read_prmbench(files, lengths=score_lengths(options.scores, model=options.model_name))
    return read_cases(files)


def _split(
    cases: list[Case], fit: str | None, share: float | None, options: EvaluateOptions
) -> tuple[list[Case], Split | None, list[str]]:
    """The cases to grade, what is fitted on, and the further files."""
    from stepmark.evaluation.calibration_fit import by_file, by_group, by_share
    from stepmark.evaluation.cases import unique
    from stepmark.evaluation.sources import read_cases

    if fit is not None and share is not None:
        raise UsageError("expected --fit or --fit-share, found both")
    if share is not None:
        return cases, by_share(cases, share), []
    if fit is None:
        return cases, None, []
    if any(case.group == fit for case in cases):
        return cases, by_group(cases, fit), []
    if not Path(fit).is_file():
        return cases, by_group(cases, fit), []  # says which groups there are
    whole, split = by_file(cases, limited(read_cases([fit]), options.limit), Path(fit).name)
    return unique(whole), split, [fit]


def _storable(store: Path, options: EvaluateOptions, fit: str | None, share: float | None) -> ScoringSpec:
    """The spec that the checkpoint's scores are made with, once a map may be stored there.

    Raises:
        UsageError: nothing is fitted; the folder is not the PRM that grades; its scores take no map.
    """
    from stepmark.models.calibration import check_readout
    from stepmark.models.detect import spec_of
    from stepmark.models.spec import SPEC_FILE

    if fit is None and share is None:
        raise UsageError("--store needs a map that is fitted: name --fit or --fit-share too")
    if options.scores is not None:
        raise UsageError(
            "--store and --scores do not go together: a file of scores does not show which checkpoint gave them; grade with "
            f"--prm {store}"
        )
    if not store.is_dir():
        raise UsageError(f"--store {store}: expected the folder of a checkpoint")
    if Path(options.prm).resolve() != store.resolve():
        raise UsageError(
            f"--store {store} is not the checkpoint that grades, which is --prm {options.prm}; a calibration belongs to the "
            "checkpoint that it was fitted on"
        )
    if options.family is not None and (store / SPEC_FILE).is_file():
        raise UsageError(
            f"--family {options.family} passes over {store / SPEC_FILE}, into which --store writes; leave one of them out"
        )
    spec = spec_of(store, options.prm, options.family)
    check_readout(spec.readout)
    return spec


def _store(store: Path, spec: ScoringSpec, maps: Maps, split: Split, result: Result) -> None:
    import sys

    from stepmark.models.calibration import store_calibration

    if maps.scale <= 0:
        raise UsageError(
            f"--store: the fitted scale is {maps.scale:.4g}, so that higher scores would become lower; nothing was stored"
        )
    figures = {
        f"{part}, {what}": result.figure(f"steps/{part}/{what}").value
        for part in ("measured, before", "measured, platt")
        for what in ("ece", "brier")
    }
    new = store_calibration(
        store,
        spec,
        scale=maps.scale,
        shift=maps.shift,
        note={"on": split.words, "steps": maps.count, "data": list(result.data), "figures": figures},
    )
    print(
        f"stored in {store / 'stepmark.json'}: scale {new.readout.scale:.4g}, shift {new.readout.shift:+.4g}; what was there "
        f"stands in {store / 'calibration.json'}",
        file=sys.stderr,
    )
