"""`stepmark sample`: the command of `stepmark.sample`."""

from __future__ import annotations

from stepmark.backends.cluster import Cluster
from stepmark.cli.twin import Call, Model, command, report
from stepmark.errors import UsageError
from stepmark.models.policies import check_policy, load_policy
from stepmark.sampling.problems import sample


def _run(call: Call) -> int:
    policy = call.models["policy"]
    assert policy is not None
    if call.settings["out"] is None:
        raise UsageError("expected `out`: the file that the solutions are written to")
    report(sample(call.inputs[0], policy, **call.settings).summary)
    return 0


sample_command = command(
    sample,
    _run,
    file="problems: JSON lines, CSV, TSV, Parquet or a JSON list, or a folder of them",
    models={"policy": Model(load=load_policy, check=check_policy, drop=("counts", "memory_tokens"))},
    methods={"cluster": Cluster},
    common=(
        "policy",
        "out",
        "n",
        "temperature",
        "max_tokens",
        "verifier",
        "limit",
        "columns",
        "keep_going",
        "seed",
    ),
    drop=("progress",),
)
