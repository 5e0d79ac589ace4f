"""`stepmark.evaluate`: an evaluation of a PRM on data, with intervals; what was graded is kept, and a run that stopped continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field

from stepmark.data.reading import Source, check_readable
from stepmark.evaluation.base import Evaluation, Run, load_evaluation, settings_of
from stepmark.evaluation.result import EvaluationResult
from stepmark.evaluation.sources import files_of
from stepmark.models.lazy import UNSAID, Lazy, note_idle
from stepmark.models.load import PRMLike, idle_settings, lazy_prm, read_by
from stepmark.models.places import has_neutral_class
from stepmark.models.policies import PolicyLike, lazy_policy
from stepmark.models.prm import PRM
from stepmark.settings import checked


@checked
def evaluate(
    method: str | Evaluation,
    prm: PRMLike = "default",
    *,
    data: Source | Sequence[str | Path] = (),
    scores: str | Path | None = None,
    model_name: str | None = None,
    orm: str | None = None,
    policy: PolicyLike | None = None,
    settings: Sequence[str] = (),
    out: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    axis: str | None = None,
    limit: Annotated[int, Field(ge=1)] | None = None,
    resamples: Annotated[int, Field(ge=100)] = 1000,
    seed: Annotated[int, Field(ge=0)] = 0,
    truncate: bool = True,
    progress: bool = True,
) -> EvaluationResult:
    """Measure what a PRM is good for, with bootstrap intervals over problems.

    A run with `out` that is interrupted continues when the same call is made again, and grades nothing twice.

    Args:
        method: the name of an evaluation (`stepmark evaluate --help` lists them: processbench, best-of-n, calibration and so on), an
            evaluation with its settings (`stepmark.evaluation.ProcessBench(threshold="argmax")`), or "package.module:Class".
        prm: the PRM, or its name: "default", a hub name, a folder, the address of a server, or "package.module:factory".
        data: files, folders of them, or "hub" to download the evaluation's own; or rows: dicts, records, a data set, a data frame.
        scores: measure the scores of this file instead of grading: what an earlier run, stepmark grade or others wrote.
        model_name: which model's scores, where that file holds several; also the name in the report.
        orm: an outcome reward model for best-of-n: its choice stands beside the PRM's.
        policy: the policy that writes, for search, and for best-of-n on problems: a model's folder or hub name, http://HOST/v1#MODEL, or
            "package.module:factory".
        settings: a field of the evaluation, as name=value; repeat for several.
        out: folder for the scores, the result (JSON, Markdown) and the report (HTML). Default: nothing; of the command,
            evaluation/NAME.
        columns: names of columns, where they differ: problem=question,solution=response.
        axis: which judgements of the data count, where steps are judged on several axes: the name of a criterion. Default: whether the
            step is right; of labels, each axis apart.
        limit: take only this many problems, evenly spaced over the data.
        resamples: bootstrap resamples of the intervals.
        seed: seed of the resamples, of random changes and samples, and of a generative PRM's critiques.
        truncate: leave what does not fit into the model without a score instead of refusing it; of a PRM that is named.
        progress: show how far the run is, on standard error.

    Returns:
        The result: its `figures` by name, `table()`, `save(folder)`.

    Raises:
        InputError: data that cannot be read or measured.
        UsageError: a setting that cannot work, or a finished run in `out` that was made with other settings or another model.
        BackendError: a model failed; what was graded so far is kept in `out`.
    """
    evaluation, source = load_evaluation(method, settings)
    given = {"orm": orm, "policy": policy, "scores": scores, "model_name": model_name}
    unread = {
        name: f"{evaluation.name} reads none"
        for name, needs in (("orm", "orm"), ("policy", "policy"), ("scores", "prm"))
        if needs not in evaluation.models or (name == "scores" and not evaluation.reads_scores)
    }
    if scores is None or "scores" in unread:
        unread["model_name"] = "it names a model of a file of scores, and none is read"
    note_idle(given, unread)
    orm = None if "orm" in unread else orm
    policy = None if "policy" in unread else policy
    scores = None if "scores" in unread else scores
    model_name = None if "model_name" in unread else model_name
    neutral = getattr(evaluation, "neutral", None)
    grader = _prm(prm, truncate=truncate, seed=seed, neutral=neutral) if "prm" in evaluation.models else None
    writer = lazy_policy(policy) if isinstance(policy, str) else policy
    outcome = None if orm is None else _orm(orm, grader, truncate=truncate)
    sources = _sources(data, evaluation)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()) if out is None else out)
        run = Run(
            columns=columns,
            axis=axis,
            limit=limit,
            resamples=resamples,
            seed=seed,
            scores=scores,
            model_name=model_name,
            prm=grader,
            orm=outcome,
            policy=writer,
            folder=folder,
            progress=progress,
        )
        _check(evaluation, run)
        asked = grader is not None and evaluation.asks_prm(run)
        facts: dict[str, Any] = {
            "evaluation": evaluation.name,
            **(settings_of(grader) if asked and grader is not None else {"prm": None}),
            "scores": None if scores is None else str(scores),
            "model_name": model_name,
            **({} if orm is None else {"orm": orm}),
            **({} if writer is None else {"policy": writer.name}),
            "columns": columns,
            **({} if axis is None else {"axis": axis}),
            "limit": limit,
            "resamples": resamples,
            "seed": seed,
            "truncate": truncate,
            **({} if source is None else {"source": dict(source)}),
        }
        run = replace(run, data=tuple(map(run.add_input, sources)), settings=facts)
        result = evaluation.measure(run)
        if out is not None:
            result.save(folder)
    return result


def _sources(data: Source | Sequence[str | Path], evaluation: Evaluation) -> tuple[Source, ...]:
    """The files of the data, or its rows."""
    if isinstance(data, str | Path):
        data = [data]
    if isinstance(data, Sequence) and all(isinstance(datum, str | Path) for datum in data):
        return files_of([str(datum) for datum in data], dataset=evaluation.dataset, names=evaluation.files)
    return (data,)


def _prm(prm: PRMLike, *, truncate: bool, seed: int, neutral: str | None) -> PRM | Lazy[PRM]:
    """The PRM; where it is named, with the settings that the evaluation shares with it, as far as they mean something for it."""
    if not isinstance(prm, str | Lazy):
        return prm
    named = lazy_prm(prm) if isinstance(prm, str) else prm
    if neutral is not None:
        named = named.with_arguments(neutral=neutral)
    named = named.with_arguments(truncate=truncate, seed=seed)
    about = {"family": named.arguments.get("family"), "tokenizer": named.arguments.get("tokenizer")}
    idle = idle_settings(named.name, **about)
    shared = {"truncate", "seed", *({"neutral"} if neutral is not None else ())}
    unread = shared & set(idle)
    if neutral not in (None, UNSAID["neutral"]) and "neutral" not in idle:
        unread |= set() if has_neutral_class(named.name, **about) else {"neutral"}
    return named.with_arguments(**{name: UNSAID.get(name) for name in unread})


def _orm(name: str, prm: PRM | Lazy[PRM] | None, *, truncate: bool) -> Lazy[PRM]:
    """The outcome model, which is loaded with the PRM's device and precision."""
    given = prm.arguments if isinstance(prm, Lazy) else {}
    shared: dict[str, Any] = {
        key: given[key] for key in ("dtype", "quantize", "device", "token_budget") if key in given
    }
    return lazy_prm(name, outcome=True, **read_by(name, {**shared, "truncate": truncate}))


def _check(evaluation: Evaluation, run: Run) -> None:
    """Refuse what can be known to be wrong before anything is read or loaded."""
    evaluation.check(run)
    if run.scores is not None:
        check_readable(run.scores)
    prm = run.prm
    if isinstance(prm, Lazy):
        prm.check()
        if not evaluation.asks_prm(run):
            why = "no PRM is asked here" if run.scores is None else "with `scores` no PRM is asked"
            own = {"truncate", "seed", *({"neutral"} if hasattr(evaluation, "neutral") else ())}
            note_idle(prm.arguments, {key: why for key in UNSAID if key not in own})
    if run.orm is not None:
        run.orm.check()
    if isinstance(run.policy, Lazy):
        run.policy.check()
