"""`stepmark label`: the commands of `stepmark.label`, one a method; a method's flags are the fields of its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cyclopts import App, Parameter

from stepmark.backends.cluster import Cluster
from stepmark.cli.twin import Call, Model, command, report
from stepmark.errors import UsageError
from stepmark.labels.labelling import Labeller
from stepmark.labels.methods import METHODS, needs_of
from stepmark.labels.solutions import label
from stepmark.models.policies import check_policy, load_policy

app = App(
    name="label",
    help="Label the steps of solutions automatically.",
    help_format="plaintext",
    # A labeller's settings are its flags, and they are plain bools: no --no-stop-at-success.
    default_parameter=Parameter(negative=""),
)

_OTHERS = {
    "exact": "Errors put on purpose into right solutions; needs no model.",
    "consensus": "What several labelled files of the same solutions agree on.",
}
"""Commands that are no labellers."""

_VERIFYING = ("verifier", "answers", "isolation")
_ASKING = ("policy", "budget", "in_flight", "cluster")

_COMMON = ("policy", "out", "verifier", "budget", "split", "columns", "keep_going", "seed")


def _run(call: Call) -> int:
    if call.settings["out"] is None:
        raise UsageError("expected `out`: the file that the labelled solutions are written to")
    report(label(call.inputs[0], call.models.get("policy"), **call.settings).summary)
    return 0


def _run_exact(call: Call) -> int:
    from stepmark.labels.exact import plant_errors

    settings = dict(call.settings)
    file = call.inputs[0] if call.inputs else None
    report(plant_errors(file, out=settings.pop("out") or "-", **settings).summary)
    return 0


def _run_consensus(call: Call) -> int:
    from stepmark.labels.consensus import combine

    settings = dict(call.settings)
    report(combine(call.inputs, out=settings.pop("out") or "-", **settings).summary)
    return 0


def _command(name: str | None) -> Callable[..., int]:
    """The command of a method; None: of any, by its name."""
    labeller: Callable[[], Labeller] | None = None if name is None else METHODS.load(name)
    unasked: tuple[str, ...] = ()
    if labeller is not None:
        needs = needs_of(labeller())
        unasked = (
            "settings",
            *(() if needs.verifier else _VERIFYING),
            *(_ASKING if needs.policy == "none" else ()),
        )
    methods: dict[str, Callable[[], Any]] = {} if labeller is None else {"method": labeller}
    policy = Model(load=load_policy, check=check_policy, drop=("counts", "memory_tokens"), optional=True)
    made = command(
        label,
        _run,
        file="solutions: JSON lines, CSV, TSV, Parquet or a JSON list, or a folder of them",
        models={} if "policy" in unasked else {"policy": policy},
        methods=methods if "cluster" in unasked else {**methods, "cluster": Cluster},
        hidden=("prior",),
        common=_COMMON if name is not None else ("method", "settings", *_COMMON[:-1]),
        drop=("progress", *unasked),
    )
    made.__doc__ = (
        METHODS.summary(name)
        if name is not None
        else "Label with any method by its name: `--method bayes`, or your own class: `--method package.module:Class`."
    )
    return made


def _exact() -> Callable[..., int]:
    from stepmark.labels.exact import plant_errors

    return command(
        plant_errors,
        _run_exact,
        file="right solutions: JSON lines, CSV, TSV, Parquet or a JSON list, or a folder of them",
        required=False,
        common=("out", "arithmetic", "wrong", "kinds", "seed", "split", "columns", "keep_going"),
    )


def _consensus() -> Callable[..., int]:
    from stepmark.labels.consensus import combine

    return command(
        combine,
        _run_consensus,
        file="labelled solutions, of stepmark label or in any format that stepmark convert reads",
        many=True,
        common=("out", "rule", "sources", "least", "values", "columns"),
    )


def __getattr__(name: str) -> Callable[..., int]:
    """The command of a method, made when it is asked for."""
    if name in METHODS:
        return _command(name)
    if name in _OTHERS:
        return _exact() if name == "exact" else _consensus()
    raise AttributeError(name)


for _name, _summary in {**{name: METHODS.summary(name) for name in METHODS}, **_OTHERS}.items():
    app.command(f"{__name__}:{_name}", name=_name, help=_summary)
app.default(_command(None))
