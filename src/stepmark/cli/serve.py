"""`stepmark serve`: the command of `stepmark.serve`."""

from __future__ import annotations

from stepmark.cli.twin import Call, Model, command
from stepmark.models.families import full_name
from stepmark.models.load import check_arguments, load_prm
from stepmark.models.policies import check_policy, load_policy
from stepmark.serving.run import serve
from stepmark.serving.settings import ChatModel, ServerSettings


def _run(call: Call) -> int:
    prm = call.models["prm"]
    assert prm is not None
    serve(prm, call.models["policy"], **call.settings)
    return 0


serve_command = command(
    serve,
    _run,
    file=None,
    models={
        "prm": Model(
            load=load_prm, check=check_arguments, full_name=full_name, drop=("outcome", "token_budget")
        ),
        "policy": Model(
            load=load_policy,
            check=check_policy,
            optional=True,
            drop=("counts", "memory_tokens"),
            own=("quantize",),
        ),
    },
    methods={"settings": ServerSettings, "chat": ChatModel},
    common=("prm", "host", "port", "keys", "open", "name", "aggregate", "threshold", "policy", "search"),
)
