"""`stepmark evaluate`: the commands of `stepmark.evaluate`, one an evaluation; its flags are the fields of its class."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cyclopts import App
from rich.console import Console

from stepmark.cli.twin import Call, Model, command, report
from stepmark.errors import UsageError
from stepmark.evaluation.evaluation import EVALUATIONS, SUMMARIES, Evaluation, load_evaluation
from stepmark.evaluation.run import evaluate
from stepmark.models.families import full_name
from stepmark.models.load import check_arguments, load_prm
from stepmark.models.policies import check_policy, load_policy

app = App(name="evaluate", help="Measure what a PRM is good for.", help_format="plaintext")

_COMMON = ("data", "prm", "scores", "out", "threshold", "policy", "budgets", "limit", "columns")


def _run(call: Call) -> int:
    settings = dict(call.settings)
    method = settings.pop("method")
    if method is None:
        raise UsageError(
            f"expected the name of an evaluation ({', '.join(EVALUATIONS)}) or --method package.module:Class, a class of your own"
        )
    if not isinstance(method, str) and method.name == "search":  # as a shell passes a new line
        method = replace(method, how=replace(method.how, stop=method.how.stop.replace("\\n", "\n")))
    if call.inputs:
        settings["data"], method = call.inputs[0], replace(method, labels=tuple(call.inputs[1:]))
    name = load_evaluation(method, settings.get("settings", ()))[0].name
    settings["out"] = settings["out"] or Path("evaluation") / name
    models = {key: model for key, model in call.models.items() if model is not None}
    result = evaluate(method, models.pop("prm", "default"), **models, **settings)  # type: ignore[arg-type]
    # Where no terminal is, a fixed width: a table that is wrapped to none helps nobody.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    console.print(result)
    out = settings["out"]
    print(f"wrote {out}/report.html, {out}/result.json and {out}/result.md", file=sys.stderr)
    return 0


def _typed(*, method: str | None = None) -> None:
    """Settings of the command alone.

    Args:
        method: the evaluation: one of the library's, or your own class as package.module:Class.
    """


def _command(kind: type[Evaluation] | None) -> Callable[..., int]:
    """The command of an evaluation; None: of any, by its name."""
    used = ("prm", "orm", "policy") if kind is None else kind.models
    models = {
        "prm": Model(load=load_prm, check=check_arguments, full_name=full_name, drop=("outcome", "truncate")),
        "policy": Model(
            load=load_policy,
            check=check_policy,
            drop=("counts", "memory_tokens"),
            own=("quantize",),
            optional=kind is None or kind.name != "search",
        ),
    }
    drop = ["progress", *(name for name in ("prm", "orm", "policy") if name not in used)]
    if "prm" not in used:
        drop += ["scores", "model_name", "truncate"]
    if kind is not None:
        drop.append("settings")
    typed = "" if kind is None else kind.typed
    if typed:
        drop.append("data")
    made = command(
        evaluate,
        _run,
        file=typed or None,
        many=bool(typed),
        models={name: model for name, model in models.items() if name in used},
        methods={} if kind is None else {"method": kind},
        hidden=("seed", "labels") if typed else ("seed",),
        common=_COMMON if kind is not None else ("method", "settings", *_COMMON),
        drop=drop,
        also=_typed if kind is None else None,
    )
    made.__doc__ = (
        kind.__doc__ if kind is not None else "Measure what a PRM is good for, by an evaluation of your own."
    )
    return made


def _compare(call: Call) -> int:
    from stepmark.evaluation.comparison import compare, table
    from stepmark.show.tables import terminal

    settings = dict(call.settings)
    figure = settings.pop("figure")
    if len(call.inputs) != 2:
        raise UsageError(f"expected two files of results, found {len(call.inputs)}")
    result = compare(*call.inputs, **settings)
    unknown = [name for name in figure if name not in result.differences]
    if unknown:
        raise UsageError(f"`figure` {unknown[0]}: there is none; known: {', '.join(result.differences)}")
    Console().print(terminal(table(result, only=figure or None)))
    for warning in result.warnings:
        report(f"note: {warning}")
    return 0


def _compared(*, figure: Sequence[str] = ()) -> None:
    """Settings of the command alone.

    Args:
        figure: only these figures (such as gsm8k/f1). Default: all.
    """


def _comparison() -> Callable[..., int]:
    from stepmark.evaluation.comparison import compare

    return command(
        compare,
        _compare,
        file="the result.json of the first PRM, or its folder, then that of the second",
        many=True,
        also=_compared,
    )


def __getattr__(name: str) -> Callable[..., int]:
    """The command of an evaluation, made when it is asked for: the evaluations take a second to import."""
    if name == "compare":
        return _comparison()
    if name not in EVALUATIONS:
        raise AttributeError(name)
    # Its own help is the docstring of its class, which is longer than its line in the list of commands.
    app._commands[name].help = None
    return _command(EVALUATIONS.load(name))


for _name, _summary in SUMMARIES.items():
    app.command(f"{__name__}:{_name}", name=_name, help=_summary)
app.command(
    f"{__name__}:compare",
    name="compare",
    help="Test the difference of two results on the same data by a paired bootstrap over problems.",
)
app.default(_command(None))
