"""`stepmark rl`: the command of `stepmark.train_policy`."""

from __future__ import annotations

from stepmark.cli.twin import Call, Model, command, report
from stepmark.models.families import full_name
from stepmark.models.load import check_arguments, load_prm
from stepmark.rl.hacking import HackingWatch
from stepmark.rl.run import train_policy
from stepmark.rl.settings import Implicit, PolicyTraining, Refitting


def _policy(policy: str) -> str:
    """The policy's name.

    Args:
        policy: the policy to train: a folder or hub name of a causal language model, or stepmark:arithmetic.
    """
    return policy


def _run(call: Call) -> int:
    settings = dict(call.settings)
    held_out = settings.pop("held_out")
    policy = call.models["policy"]
    assert policy is not None
    trained = train_policy(
        call.inputs[0],
        policy.name,
        call.models["prm"],
        held_out=int(held_out) if str(held_out).isdigit() else held_out,
        **settings,
    )
    report(trained.summary)
    return 0


rl_command = command(
    train_policy,
    _run,
    file="problems with reference answers: JSON lines, CSV, TSV, Parquet or a JSON list, or a folder of them",
    models={
        "policy": Model(load=_policy),
        "prm": Model(
            load=load_prm,
            check=check_arguments,
            full_name=full_name,
            optional=True,
            drop=("dtype", "device", "truncate", "token_budget", "outcome", "seed"),
        ),
    },
    methods={"training": PolicyTraining, "watch": HackingWatch, "implicit": Implicit, "refit": Refitting},
    optional=("implicit", "refit"),
    common=(
        "policy",
        "prm",
        "credit",
        "settings",
        "out",
        "held_out",
        "updates",
        "learning_rate",
        "lora_rank",
        "stop_on_hack",
    ),
    drop=("progress",),
)
