"""`stepmark search`: the commands of `stepmark.search`, one a method; a method's settings are the fields of its class."""

# Without postponed annotations: the function of a method is annotated with its class, which is an argument here.
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from cyclopts import App, Parameter

from stepmark.backends.cluster import Cluster
from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.errors import UsageError
from stepmark.models.policies import lazy_policy
from stepmark.searches.base import SearchResult, Steps
from stepmark.searches.methods import METHODS, OF_THE_RUN
from stepmark.searches.run import count_of, search
from stepmark.words import amount

app = App(
    name="search",
    help="Search for solutions with a policy and a PRM, within a budget.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)

Problems = Annotated[opt.FileOrDash, Parameter(help=f"problems: {opt.ROWS}")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The policy that writes and the PRM that judges."""

    policy: opt.PolicyName
    prm: opt.PRMOptions = opt.PRMOptions()
    place: opt.PolicyDevice = opt.PolicyDevice()
    policy_quantize: opt.PolicyQuantize | None = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What every search takes, under the names that `stepmark.search` has for it."""

    out: Annotated[opt.FileOrDash | None, opt.in_common("--out")] = None
    """Write the solutions to this file, one JSON line a problem, gzipped if its name ends in .gz."""
    report: Annotated[opt.FileOrDash | None, opt.in_common("--report")] = None
    """Draw the trees on this HTML page, one file that works without a network."""
    budget: Annotated[int | None, opt.in_common("--budget")] = None
    """Tokens that one problem may cost: written by the policy and read by the PRM. No request is made beyond it."""
    verifier: opt.Verifier = "math"
    columns: opt.Columns | None = None
    keep_going: opt.KeepGoing = False
    aggregate: Annotated[str | None, opt.in_method("--aggregate")] = None
    """How step scores make one number: product, min, mean, last, max, sum-logit or softmin. Default: the PRM's own."""
    checks: Annotated[str, opt.in_method("--checks")] = "auto"
    """Exact checks that refute steps, which are then given up unscored: all, none, names with commas between them (as for stepmark grade), or auto, which is all with the default PRM and none with any other."""
    answers: opt.Answers = "stated"
    isolation: opt.IsolationOption | None = None
    memory_tokens: Annotated[int | None, opt.in_method("--memory-tokens")] = None
    """Tokens whose keys and values the PRM keeps at most. Default: 65,536."""
    policy_memory_tokens: Annotated[int, opt.in_method("--policy-memory-tokens")] = 65_536
    """Tokens whose keys and values a policy in this process keeps at most; 0 keeps none."""
    trace: Annotated[opt.FileOrDash | None, opt.in_output("--trace")] = None
    """Write the trees to this file, one JSON line a problem, gzipped if its name ends in .gz."""
    in_flight: Annotated[int, opt.in_machine("--in-flight")] = 16
    """Problems that are searched at once: more fill a server better and take more memory."""
    cluster: Annotated[Cluster, opt.CLUSTER] = Cluster()


Problem = Annotated[
    str, opt.in_common("--problem", help="Instead of FILE: one problem, whose solution is printed.")
]


def _search(
    file: str | None,
    problem: str | None,
    models: ModelOptions,
    options: SearchOptions,
    method: Any,
    settings: tuple[str, ...] = (),
) -> int:
    if (file is None) == (problem is None):
        raise UsageError('expected either FILE, a file of problems, or --problem "…", one that is typed')
    if problem is not None and not problem.strip():
        raise UsageError("`problem`: expected a text, found only white space")
    if file is not None and options.out is None:
        raise UsageError("expected `out`: the file that what is found is written to")
    place = vars(models.place)
    results = search(
        file if file is not None else [{"problem": problem, "id": "typed"}],
        lazy_policy(models.policy, quantize=models.policy_quantize, **place),
        models.prm.lazy(**place),
        method=method,
        settings=settings,
        progress=file is not None,
        **vars(options),
    )
    if file is None:
        _print_found(results[0], results.manifest["threshold"])
    else:
        print_note(results.summary)
    return 0


@app.default
def any_search(
    file: Problems | None = None,
    /,
    *,
    method: Annotated[str, opt.in_common("--method")] = "beam",
    settings: opt.Settings = (),
    models: ModelOptions,
    problem: Problem | None = None,
    options: SearchOptions = SearchOptions(),
) -> int:
    """Search with any method by its name: `--method beam`, or your own class: `--method package.module:Class`.

    Args:
        method: greedy, best-of-n, majority, weighted-vote, beam, dvts, rebase, mcts, or "package.module:Class".
    """
    return _search(file, problem, models, options, method, settings)


def _command(kind: Any) -> Callable[..., int]:

    def command(
        file: Problems | None = None,
        /,
        *,
        models: ModelOptions,
        problem: Problem | None = None,
        options: SearchOptions = SearchOptions(),
        method: Annotated[kind, opt.fields_but("how", *OF_THE_RUN)] = kind(),
        how: Annotated[Steps, opt.FIELDS] = Steps(),
    ) -> int:
        how = replace(how, stop=how.stop.replace("\\n", "\n"))  # as a shell passes a new line
        return _search(file, problem, models, options, replace(method, how=how))

    command.__doc__ = kind.__doc__
    return command


def _print_found(result: SearchResult, threshold: float | None) -> None:
    """Print the chosen solution, its steps coloured by their scores, and what it cost."""
    from rich.console import Console

    from stepmark.models.prm import first_error
    from stepmark.report.terminal import solution_lines
    from stepmark.words import number

    solution = result.solution
    if solution is not None:
        headline = (
            "not scored"
            if solution.aggregate is None
            else f"{result.trace.aggregate} {number(solution.aggregate)}"
        )
        console = Console()
        console.print(
            solution_lines(
                result.problem.text,
                solution.steps,
                list(solution.scores),
                kind=result.trace.kind,
                first_error=first_error(solution.scores, threshold),
                headline=headline + ("" if solution.finished else ", unfinished"),
                threshold=threshold,
                title=result.method,
            )
        )
        console.print()
    cost = result.cost
    note = f" ({result.note})" if result.note else ""
    nothing = "nothing was found; " if solution is None else ""
    print(
        f"{nothing}stopped: {result.stopped}{note}; {amount(cost.decoded, 'token')} written in {amount(cost.samples, 'text')}, "
        f"{count_of(cost.prm)} read by the PRM",
        file=sys.stderr,
    )


for _name in METHODS:
    app.command(_command(METHODS.load(_name)), name=_name)
