"""`stepmark train`: the command of `stepmark.train`."""

from __future__ import annotations

import sys

from stepmark.cli.twin import DATA, MACHINE, MODEL, OUTPUT, Call, command, report
from stepmark.training.examples import LabelRules
from stepmark.training.run import REPORT_FILE, train
from stepmark.training.settings import Training

_PANELS = {
    **dict.fromkeys(
        ("rules", "held_out", "held_out_data", "baseline", "max_tokens", "limit_tokens", "coarsen"), DATA
    ),
    **dict.fromkeys(
        ("lora_rank", "lora_alpha", "frozen_layers", "mark", "layout", "warm_start", "checks"), MODEL
    ),
    **dict.fromkeys(("dtype", "device", "token_budget", "gradient_checkpointing", "shard"), MACHINE),
    "adapter": OUTPUT,
}


def _run(call: Call) -> int:
    trained = train(list(call.inputs), on_warning=report, **call.settings)
    if not trained.first:
        return 0
    if not trained.new:
        print(
            f"{trained.folder}: this run is done, and everything is there; its page is {trained.folder / REPORT_FILE}"
        )
        return 0
    for line in trained.dropped.lines():
        print(line, file=sys.stderr)
    print(*trained.figures, f"curves: {trained.folder / REPORT_FILE}", sep="\n")
    return 0


train_command = command(
    train,
    _run,
    file="labelled solutions: files in any format of `stepmark convert`, or OWNER/NAME of data sets on the hub. For worked solutions "
    "without labels: `stepmark label exact` first",
    many=True,
    methods={"rules": LabelRules, "training": Training},
    common=(
        "out",
        "base",
        "objective",
        "settings",
        "family",
        "epochs",
        "learning_rate",
        "full",
        "columns",
        "seed",
    ),
    hidden=("warmup", "clip", "save_every"),
    drop=("progress", "on_warning"),
    panels=_PANELS,
)
