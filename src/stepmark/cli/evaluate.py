"""`stepmark evaluate`: the commands of `stepmark.evaluate`, one an evaluation; its settings are the fields of its class."""

# Without postponed annotations: the function of an evaluation is annotated with its class, which is an argument here.
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.data.labelled import read_labelled
from stepmark.errors import UsageError
from stepmark.evaluation.base import EVALUATIONS, Evaluation, load_evaluation
from stepmark.evaluation.best_of_n import BestOfNAccuracy
from stepmark.evaluation.comparison import compare as compare_results
from stepmark.evaluation.comparison import table
from stepmark.evaluation.labels import LabelAgreement
from stepmark.evaluation.run import evaluate
from stepmark.evaluation.search import SearchContest
from stepmark.evaluation.verifier import VerifierAccuracy
from stepmark.labels.criteria import read_criteria
from stepmark.labels.judge import Judge
from stepmark.labels.run import label
from stepmark.models.policies import lazy_policy
from stepmark.report.tables import terminal
from stepmark.searches.base import Steps

app = App(
    name="evaluate",
    help="Measure what a PRM is good for.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What every evaluation takes."""

    out: Annotated[opt.FileOrDash | None, opt.in_common("--out")] = None
    """Folder for the scores, the result (JSON, Markdown) and the report (HTML). Default: evaluation/NAME."""
    limit: opt.Limit | None = None
    columns: opt.Columns | None = None
    axis: Annotated[str | None, opt.in_data("--axis")] = None
    """Which judgements of the data count, where steps are judged on several axes: the name of a criterion. Default: whether the step is right; of labels, each axis apart."""
    resamples: Annotated[int, opt.in_method("--resamples")] = 1000
    """Bootstrap resamples of the intervals."""
    seed: Annotated[int, opt.in_method("--seed")] = 0
    """Seed of the resamples, of random changes and samples, and of a generative PRM's critiques."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScoresOptions:
    """Which scores are measured, where they are not made now."""

    scores: Annotated[opt.FileOrDash | None, opt.in_common("--scores")] = None
    """Measure the scores of this file instead of grading: what an earlier run, stepmark grade or others wrote."""
    model_name: Annotated[str | None, opt.in_data("--model-name")] = None
    """Which model's scores, where that file holds several; also the name in the report."""
    truncate: Annotated[bool, opt.in_model("--truncate", negative="--no-truncate")] = True
    """Leave what does not fit into the model without a score instead of refusing it; of a PRM that is named."""


Data = Annotated[
    tuple[str, ...],
    opt.in_common(
        "--data",
        consume_multiple=True,
        help='Files, folders of them, or "hub" to download the evaluation\'s own.',
    ),
]
ORM = Annotated[
    str,
    opt.in_model("--orm", help="An outcome reward model for best-of-n: its choice stands beside the PRM's."),
]

SWITCHES = Parameter.combine(opt.FIELDS, Parameter(negative=None, negative_iterable=()))
"""Fields as flags; a switch that is on is turned off by --no-NAME."""


def _evaluate(method: str | Evaluation, settings: tuple[str, ...] = (), **arguments: Any) -> int:
    """Run an evaluation, print its tables and say where its files are; `arguments` are those of `stepmark.evaluate`."""
    if arguments["out"] is None:
        arguments["out"] = Path("evaluation") / load_evaluation(method, settings)[0].name
    result = evaluate(method, settings=settings, **arguments)
    # Where no terminal is, a fixed width: a table that is wrapped to none helps nobody.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    console.print(result)
    out = arguments["out"]
    print(f"wrote {out}/report.html, {out}/result.json and {out}/result.md", file=sys.stderr)
    return 0


def _policy(name: str, quantize: Any, place: opt.BatchDevice) -> Any:
    return lazy_policy(name, quantize=quantize, dtype=place.dtype, device=place.device)


@app.default
def any_evaluation(
    *,
    method: Annotated[str | None, opt.in_common("--method")] = None,
    settings: opt.Settings = (),
    data: Data = (),
    prm: opt.PRMOptions = opt.PRMOptions(),
    scores: ScoresOptions = ScoresOptions(),
    run: EvaluationOptions = EvaluationOptions(),
    policy: opt.PolicyName | None = None,
    orm: ORM | None = None,
    place: opt.BatchDevice = opt.BatchDevice(),
    policy_quantize: opt.PolicyQuantize | None = None,
) -> int:
    """Measure what a PRM is good for, by an evaluation of your own.

    Args:
        method: the evaluation: one of the library's, or your own class as package.module:Class.
    """
    if method is None:
        raise UsageError(
            f"expected the name of an evaluation ({', '.join(EVALUATIONS)}) or --method package.module:Class, a class of your own"
        )
    writer = None if policy is None else _policy(policy, policy_quantize, place)
    models: dict[str, Any] = {"prm": prm.lazy(**vars(place)), "orm": orm, "policy": writer}
    return _evaluate(method, settings, data=data, **models, **vars(scores), **vars(run))


def _command(kind: Any) -> Callable[..., int]:
    # An evaluation with a setting of this name decides it for the PRM too.
    shared = opt.without("neutral") if "neutral" in {field.name for field in fields(kind)} else Parameter()

    def command(
        *,
        data: Data = (),
        prm: Annotated[opt.PRMOptions, shared] = opt.PRMOptions(),
        scores: ScoresOptions = ScoresOptions(),
        run: EvaluationOptions = EvaluationOptions(),
        method: Annotated[kind, SWITCHES] = kind(),
        place: opt.BatchDevice = opt.BatchDevice(),
    ) -> int:
        return _evaluate(method, data=data, prm=prm.lazy(**vars(place)), **vars(scores), **vars(run))

    command.__doc__ = kind.__doc__
    return command


@app.command(name="best-of-n", help=BestOfNAccuracy.__doc__)
def _best_of_n(
    *,
    data: Data = (),
    prm: opt.PRMOptions = opt.PRMOptions(),
    scores: ScoresOptions = ScoresOptions(),
    run: EvaluationOptions = EvaluationOptions(),
    policy: opt.PolicyName | None = None,
    orm: ORM | None = None,
    method: Annotated[BestOfNAccuracy, opt.FIELDS] = BestOfNAccuracy(),
    place: opt.BatchDevice = opt.BatchDevice(),
    policy_quantize: opt.PolicyQuantize | None = None,
) -> int:
    writer = None if policy is None else _policy(policy, policy_quantize, place)
    models: dict[str, Any] = {"prm": prm.lazy(**vars(place)), "orm": orm, "policy": writer}
    return _evaluate(method, data=data, **models, **vars(scores), **vars(run))


@app.command(name="search", help=SearchContest.__doc__)
def _search(
    *,
    data: Data = (),
    prm: opt.PRMOptions = opt.PRMOptions(),
    scores: ScoresOptions = ScoresOptions(),
    run: EvaluationOptions = EvaluationOptions(),
    policy: opt.PolicyName,
    settings: Annotated[
        tuple[str, ...],
        opt.in_method("--set", help="A field of a method, as METHOD.name=value: beam.expand=2."),
    ] = (),
    method: Annotated[SearchContest, opt.fields_but("how", "method_settings")],
    how: Annotated[Steps, opt.fields_but("seed")] = Steps(),
    place: opt.BatchDevice = opt.BatchDevice(),
    policy_quantize: opt.PolicyQuantize | None = None,
) -> int:
    how = replace(how, stop=how.stop.replace("\\n", "\n"))  # as a shell passes a new line
    contest = replace(method, how=how, method_settings=settings)
    models: dict[str, Any] = {
        "prm": prm.lazy(**vars(place)),
        "policy": _policy(policy, policy_quantize, place),
    }
    return _evaluate(contest, data=data, **models, **vars(scores), **vars(run))


@app.command(name="labels", help=LabelAgreement.__doc__)
def _labels(
    reference: Annotated[
        opt.FileOrDash,
        Parameter(help="the reference's labels: people's, mostly, in any format that stepmark convert reads"),
    ],
    /,
    *labels: Annotated[
        opt.FileOrDash,
        Parameter(help="the judge's labels; several files are repeats. Without any, the PRM is the judge"),
    ],
    judge: Annotated[
        str | None,
        opt.in_common(
            "--judge",
            help="Ask this language model to judge the reference's solutions first, as stepmark label judge does: a folder, a hub name or http://host:port/v1#model.",
        ),
    ] = None,
    criteria: Annotated[
        tuple[str, ...],
        opt.in_common("--criteria", help="With --judge: the criteria, as stepmark label judge takes them."),
    ] = (),
    repeats: Annotated[
        int,
        opt.in_common("--repeats", help="With --judge: how often it judges, each time with another seed."),
    ] = 1,
    prm: opt.PRMOptions = opt.PRMOptions(),
    scores: ScoresOptions = ScoresOptions(),
    run: EvaluationOptions = EvaluationOptions(),
    method: Annotated[LabelAgreement, opt.fields_but("labels")] = LabelAgreement(),
    place: opt.BatchDevice = opt.BatchDevice(),
) -> int:
    if judge is None and (criteria or repeats != 1):
        raise UsageError("`criteria` and `repeats` are about a judge that is asked now: give `judge` too")
    if judge is not None and labels:
        raise UsageError("give files of labels or `judge`, not both")
    if judge is not None:
        out = Path(run.out or Path("evaluation") / method.name)
        labels = _judged(reference, _policy(judge, None, place), criteria, repeats, out, run)
    judged = replace(method, labels=labels)
    return _evaluate(judged, data=reference, prm=prm.lazy(**vars(place)), **vars(scores), **vars(run))


def _judged(
    reference: str, policy: Any, criteria: tuple[str, ...], repeats: int, out: Path, run: EvaluationOptions
) -> tuple[str, ...]:
    """Have a judge label the reference's solutions; the files, `judge-1.jsonl` and so on in the folder `out`."""
    solutions = [row.labelled.solution for row in read_labelled(reference, columns=run.columns)]
    out.mkdir(parents=True, exist_ok=True)
    files = tuple(str(out / f"judge-{number + 1}.jsonl") for number in range(repeats))
    for number, file in enumerate(files):
        method = Judge(criteria=read_criteria(criteria), seed=run.seed + number)
        print_note(label(solutions, policy, method=method, out=file, keep_going=True).summary)
    return files


@app.command(name="verifier", help=VerifierAccuracy.__doc__)
def _verifier(
    *,
    data: Data = (),
    run: EvaluationOptions = EvaluationOptions(),
    method: Annotated[VerifierAccuracy, opt.FIELDS] = VerifierAccuracy(),
) -> int:
    return _evaluate(method, data=data, **vars(run))


@app.command
def compare(
    first: Annotated[str, Parameter(help="the result.json of the first PRM, or its folder")],
    second: Annotated[str, Parameter(help="that of the second PRM")],
    /,
    *,
    method: Annotated[str | None, opt.in_method("--method")] = None,
    resamples: Annotated[int, opt.in_method("--resamples")] = 2000,
    seed: Annotated[int, opt.in_method("--seed")] = 0,
    figure: Annotated[tuple[str, ...], opt.in_method("--figure")] = (),
) -> int:
    """Test the difference of two results on the same data by a paired bootstrap over problems.

    Args:
        method: the evaluation, where files hold results of your own one: "package.module:Class". Default: by its name in the file.
        resamples: bootstrap resamples.
        seed: seed of the resamples.
        figure: only these figures (such as gsm8k/f1); repeat for several. Default: all.
    """
    result = compare_results(first, second, method=method, resamples=resamples, seed=seed)
    unknown = [name for name in figure if name not in result.differences]
    if unknown:
        raise UsageError(f"`figure` {unknown[0]}: there is none; known: {', '.join(result.differences)}")
    Console().print(terminal(table(result, only=figure or None)))
    for warning in result.warnings:
        print_note(f"note: {warning}")
    return 0


for _name in EVALUATIONS:
    if _name not in app:
        app.command(_command(EVALUATIONS.load(_name)), name=_name)
