"""`stepmark label`: the commands of `stepmark.label`, one a method; a method's flags are the fields of its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cyclopts import App, Parameter

from stepmark.batching.cluster import Cluster
from stepmark.cli.twin import Call, Model, command, report
from stepmark.errors import UsageError
from stepmark.labels.labelling import Labeller
from stepmark.labels.methods import METHODS
from stepmark.labels.solutions import label
from stepmark.models.policies import check_policy, load_policy

app = App(
    name="label",
    help="Label the steps of solutions automatically.",
    help_format="plaintext",
    # A labeller's settings are its flags, and they are plain bools: no --no-stop-at-success.
    default_parameter=Parameter(negative=""),
)

_SUMMARIES = {
    "rollout": "Every step, k rollouts each (Math-Shepherd).",
    "binary": "The first error by binary search (OmegaPRM).",
    "bayes": "The first error by Bayesian search; fewest tokens.",
    "tree": "A tree of rollouts a problem, each used again as a solution (OmegaPRM).",
    "judge": "A language model as the critic, sampled and voted; needs no reference answer.",
    "formulas": "Calculations checked exactly; needs no model.",
    "exact": "Errors put on purpose into right solutions; needs no model.",
    "consensus": "What several labelled files of the same solutions agree on.",
}

_VERIFYING = ("verifier", "answers", "isolation")
_UNASKED: Mapping[str, tuple[str, ...]] = {
    "judge": _VERIFYING,
    "formulas": (*_VERIFYING, "policy", "budget", "in_flight", "cluster"),
}
"""Settings that mean nothing for a method."""

_COMMON = ("policy", "out", "verifier", "budget", "split", "columns", "keep_going", "seed")


def _run(call: Call) -> int:
    if call.settings["out"] is None:
        raise UsageError("expected `out`: the file that the labelled solutions are written to")
    report(label(call.inputs[0], call.models.get("policy"), **call.settings).summary)
    return 0


def _run_exact(call: Call) -> int:
    from stepmark.labels.exact import exact

    settings = dict(call.settings)
    file = call.inputs[0] if call.inputs else None
    report(exact(file, out=settings.pop("out") or "-", **settings).summary)
    return 0


def _run_consensus(call: Call) -> int:
    from stepmark.labels.consensus import consensus

    settings = dict(call.settings)
    report(consensus(call.inputs, out=settings.pop("out") or "-", **settings).summary)
    return 0


def _command(name: str | None) -> Callable[..., int]:
    """The command of a method; None: of any, by its name."""
    labeller: Callable[[], Labeller] | None = None if name is None else METHODS[name]
    unasked = () if name is None else ("settings", *_UNASKED.get(name, ()))
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
        _SUMMARIES[name]
        if name is not None
        else "Label with any method by its name: `--method bayes`, or your own class: `--method package.module:Class`."
    )
    return made


def _exact() -> Callable[..., int]:
    from stepmark.labels.exact import exact

    return command(
        exact,
        _run_exact,
        file="right solutions: JSON lines, CSV, TSV, Parquet or a JSON list, or a folder of them",
        required=False,
        common=("out", "arithmetic", "wrong", "kinds", "seed", "split", "columns", "keep_going"),
    )


def _consensus() -> Callable[..., int]:
    from stepmark.labels.consensus import consensus

    return command(
        consensus,
        _run_consensus,
        file="labelled solutions, of stepmark label or in any format that stepmark convert reads",
        many=True,
        common=("out", "rule", "sources", "least", "values", "columns"),
    )


def __getattr__(name: str) -> Callable[..., int]:
    """The command of a method, made when it is asked for."""
    if name in METHODS:
        return _command(name)
    if name in _SUMMARIES:
        return _exact() if name == "exact" else _consensus()
    raise AttributeError(name)


for _name, _summary in _SUMMARIES.items():
    app.command(f"{__name__}:{_name}", name=_name, help=_summary)
app.default(_command(None))
