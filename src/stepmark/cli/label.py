"""`stepmark label`: the commands of `stepmark.label`, one a method; a method's settings are the fields of its class."""

# Without postponed annotations: the function of a method is annotated with its class, which is an argument here.
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from cyclopts import App, Parameter

from stepmark.backends.cluster import Cluster
from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.errors import UsageError
from stepmark.labels.consensus import Rule, combine
from stepmark.labels.criteria import read_criteria
from stepmark.labels.exact import KINDS, Kind, plant_errors
from stepmark.labels.formulas import Formulas
from stepmark.labels.judge import Judge
from stepmark.labels.labellers import METHODS
from stepmark.labels.labelling import Rollouts
from stepmark.labels.run import label
from stepmark.models.policies import lazy_policy
from stepmark.records import DEFAULT_AXIS

app = App(
    name="label",
    help="Label the steps of solutions automatically.",
    help_format="plaintext",
    # A labeller's settings are its flags, and they are plain bools: no --no-stop-at-success.
    default_parameter=Parameter(negative=""),
)

Solutions = Annotated[opt.FileOrDash, Parameter(help=f"solutions: {opt.ROWS}")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """What every labeller takes, under the names that `stepmark.label` has for it."""

    out: Annotated[opt.FileOrDash | None, opt.in_common("--out")] = None
    """Write the labelled solutions to this file (format stepmark-labels), gzipped if its name ends in .gz."""
    report: Annotated[opt.FileOrDash | None, opt.in_common("--report")] = None
    """Write the labelled solutions as one HTML page to this file."""
    split: opt.Split = "auto"
    columns: opt.Columns | None = None
    keep_going: opt.KeepGoing = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """What a labeller takes that asks a policy."""

    policy: opt.PolicyName | None = None
    budget: Annotated[int | None, opt.in_common("--budget")] = None
    """Stop when the labelled solutions have cost this many tokens of the policy; the others are counted as not labelled."""
    in_flight: Annotated[int, opt.in_machine("--in-flight")] = 64
    """Solutions that are labelled at once: more fill a server better and take more memory."""
    quantize: opt.Quantize | None = None
    place: opt.PolicyDevice = opt.PolicyDevice()
    cluster: Annotated[Cluster, opt.CLUSTER] = Cluster()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class VerifierOptions:
    """What a labeller takes that compares answers."""

    verifier: opt.Verifier = "math"
    answers: opt.Answers = "stated"
    isolation: opt.IsolationOption | None = None


def _label(
    file: str,
    method: Any,
    options: LabelOptions,
    asked: PolicyOptions | None = None,
    verifying: VerifierOptions | None = None,
    settings: tuple[str, ...] = (),
) -> int:
    if options.out is None:
        raise UsageError("expected `out`: the file that the labelled solutions are written to")
    policy, arguments = None, {**vars(options), **({} if verifying is None else vars(verifying))}
    if asked is not None:
        arguments |= {"budget": asked.budget, "in_flight": asked.in_flight, "cluster": asked.cluster}
        if asked.policy is not None:
            policy = lazy_policy(asked.policy, quantize=asked.quantize, **vars(asked.place))
    print_note(label(file, policy, method=method, settings=settings, **arguments).summary)
    return 0


@app.default
def any_labeller(
    file: Solutions,
    /,
    *,
    method: Annotated[str, opt.in_common("--method")] = "bayes",
    settings: opt.Settings = (),
    asked: PolicyOptions = PolicyOptions(),
    options: LabelOptions = LabelOptions(),
    verifying: VerifierOptions = VerifierOptions(),
) -> int:
    """Label with any method by its name: `--method bayes`, or your own class: `--method package.module:Class`.

    Args:
        method: rollout, binary, bayes, tree, judge, formulas, or "package.module:Class".
    """
    return _label(file, method, options, asked, verifying, settings)


def _command(kind: Any) -> Callable[..., int]:

    def command(
        file: Solutions,
        /,
        *,
        asked: PolicyOptions = PolicyOptions(),
        options: LabelOptions = LabelOptions(),
        verifying: VerifierOptions = VerifierOptions(),
        method: Annotated[kind, opt.fields_but("how", "prior")] = kind(),
        how: Annotated[Rollouts, opt.FIELDS] = Rollouts(),
    ) -> int:
        return _label(file, replace(method, how=how), options, asked, verifying)

    command.__doc__ = kind.__doc__
    return command


for _name in ("rollout", "binary", "bayes", "tree"):
    app.command(_command(METHODS.load(_name)), name=_name)


@app.command(name="judge", help=Judge.__doc__)
def _judge(
    file: Solutions,
    /,
    *,
    asked: PolicyOptions = PolicyOptions(),
    options: LabelOptions = LabelOptions(),
    criteria: Annotated[tuple[str, ...], opt.in_common("--criteria")] = (),
    method: Annotated[Judge, opt.fields_but("criteria")] = Judge(),
) -> int:
    """Label by a judge, whose help is the docstring of its class.

    Args:
        criteria: judge each step by these in place of the first wrong step; repeat for several: presets (math, code, tools, research, safety), or files of criteria (.toml, .yaml, .json).
    """
    return _label(file, replace(method, criteria=read_criteria(criteria)), options, asked)


@app.command(name="formulas", help=Formulas.__doc__)
def _formulas(
    file: Solutions,
    /,
    *,
    options: LabelOptions = LabelOptions(),
    method: Annotated[Formulas, opt.FIELDS] = Formulas(),
) -> int:
    return _label(file, method, options)


@app.command
@opt.documented_by(plant_errors)
def exact(
    file: Annotated[opt.FileOrDash | None, Parameter(help=f"right solutions: {opt.ROWS}")] = None,
    /,
    *,
    out: Annotated[opt.FileOrDash, opt.in_common("--out")] = "-",
    arithmetic: Annotated[int | None, opt.in_common("--arithmetic")] = None,
    wrong: Annotated[int, opt.in_common("--wrong")] = 4,
    kinds: Annotated[tuple[Kind, ...], opt.in_common("--kinds")] = KINDS,
    seed: Annotated[int, opt.in_common("--seed")] = 0,
    split: opt.Split = "auto",
    columns: opt.Columns | None = None,
    keep_going: opt.KeepGoing = False,
) -> int:
    """See `labels.exact.plant_errors`."""
    made = plant_errors(
        file,
        out=out,
        arithmetic=arithmetic,
        wrong=wrong,
        kinds=kinds,
        seed=seed,
        split=split,
        columns=columns,
        keep_going=keep_going,
    )
    print_note(made.summary)
    return 0


@app.command
@opt.documented_by(combine)
def consensus(
    *file: Annotated[
        opt.FileOrDash,
        Parameter(
            help="labelled solutions, of stepmark label or in any format that stepmark convert reads",
            required=True,
        ),
    ],
    out: Annotated[opt.FileOrDash, opt.in_common("--out")] = "-",
    rule: Annotated[Rule, opt.in_common("--rule")] = "first-error-agrees",
    sources: Annotated[tuple[str, ...], opt.in_common("--sources")] = (),
    least: Annotated[int, opt.in_common("--least")] = 2,
    values: Annotated[float | None, opt.in_common("--values")] = None,
    columns: opt.Columns | None = None,
    axis: Annotated[str, opt.in_method("--axis")] = DEFAULT_AXIS,
) -> int:
    """See `labels.consensus.combine`."""
    combined = combine(
        file, out=out, rule=rule, sources=sources, least=least, values=values, columns=columns, axis=axis
    )
    print_note(combined.summary)
    return 0
