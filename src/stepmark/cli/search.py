"""`stepmark search`: the commands of `stepmark.search`, one a method; a method's flags are the fields of its class."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cyclopts import App, Parameter

from stepmark.backends.cluster import Cluster
from stepmark.cli.twin import Call, Model, command, report
from stepmark.errors import UsageError
from stepmark.models.load import check_arguments, load_prm
from stepmark.models.policies import check_policy, load_policy
from stepmark.searches.base import SearchResult
from stepmark.searches.methods import METHODS, OF_THE_RUN
from stepmark.searches.run import count_of, search
from stepmark.show.text import amount

app = App(
    name="search",
    help="Search for solutions with a policy and a PRM, within a budget.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)

_COMMON = ("policy", "prm", "out", "report", "problem", "budget", "verifier", "columns", "keep_going", "seed")


def _typed(*, problem: str | None = None) -> None:
    """Settings of the command alone.

    Args:
        problem: instead of FILE: one problem, whose solution is printed.
    """


def _run(call: Call) -> int:
    settings = dict(call.settings)
    problem, method = settings.pop("problem"), settings.pop("method")
    file = call.inputs[0] if call.inputs and call.inputs[0] is not None else None
    if (file is None) == (problem is None):
        raise UsageError('expected either FILE, a file of problems, or --problem "…", one that is typed')
    if problem is not None and not problem.strip():
        raise UsageError("`problem`: expected a text, found only white space")
    if file is not None and settings["out"] is None:
        raise UsageError("expected `out`: the file that what is found is written to")
    if not isinstance(method, str):  # as a shell passes a new line
        method = replace(method, how=replace(method.how, stop=method.how.stop.replace("\\n", "\n")))
    policy, prm = call.models["policy"], call.models["prm"]
    assert policy is not None
    assert prm is not None
    rows = file if file is not None else [{"problem": problem, "id": "typed"}]
    results = search(rows, policy, prm, method=method, progress=file is not None, **settings)
    if file is None:
        _print_found(results[0], results.manifest["threshold"])
    else:
        report(results.summary)
    return 0


def _print_found(found: SearchResult, threshold: float | None) -> None:
    """Print the chosen solution, its steps coloured by their scores, and what it cost."""
    from rich.console import Console

    from stepmark.models.prm import first_error
    from stepmark.show.terminal import solution_lines
    from stepmark.show.text import number

    solution = found.solution
    if solution is not None:
        headline = (
            "not scored"
            if solution.aggregate is None
            else f"{found.trace.aggregate} {number(solution.aggregate)}"
        )
        console = Console()
        console.print(
            solution_lines(
                found.problem.text,
                solution.steps,
                list(solution.scores),
                kind=found.trace.kind,
                first_error=first_error(solution.scores, threshold),
                headline=headline + ("" if solution.finished else ", unfinished"),
                threshold=threshold,
                title=found.method,
            )
        )
        console.print()
    cost = found.cost
    note = f" ({found.note})" if found.note else ""
    nothing = "nothing was found; " if solution is None else ""
    print(
        f"{nothing}stopped: {found.stopped}{note}; {amount(cost.decoded, 'token')} written in {amount(cost.samples, 'text')}, "
        f"{count_of(cost.prm)} read by the PRM",
        file=sys.stderr,
    )


def _command(name: str | None) -> Callable[..., int]:
    """The command of a method; None: of any, by its name."""
    methods: Mapping[str, Callable[[], Any]] = {} if name is None else {"method": METHODS.load(name)}
    made = command(
        search,
        _run,
        file="problems: JSON lines, CSV, TSV, Parquet or a JSON list, or a folder of them",
        required=False,
        models={
            "policy": Model(
                load=load_policy, check=check_policy, drop=("counts", "memory_tokens"), own=("quantize",)
            ),
            "prm": Model(
                load=load_prm, check=check_arguments, drop=("outcome", "token_budget", "truncate", "seed")
            ),
        },
        methods={**methods, "cluster": Cluster},
        hidden=OF_THE_RUN,
        common=_COMMON if name is not None else ("method", "settings", *_COMMON[:-2]),
        drop=("progress", *(("settings",) if name is not None else ())),
        also=_typed,
    )
    made.__doc__ = (
        METHODS.summary(name)
        if name is not None
        else "Search with any method by its name: `--method beam`, or your own class: `--method package.module:Class`."
    )
    return made


def __getattr__(name: str) -> Callable[..., int]:
    """The command of a method, made when it is asked for."""
    if name not in METHODS:
        raise AttributeError(name)
    return _command(name)


for _name in METHODS:
    app.command(f"{__name__}:{_name}", name=_name, help=METHODS.summary(_name))
app.default(_command(None))
