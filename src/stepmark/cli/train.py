"""`stepmark train`: the command of `stepmark.train`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.training.examples import LabelRules
from stepmark.training.run import REPORT_FILE, Log, train
from stepmark.training.settings import Training

TRAINING = Group("Training", sort_key=4)


@opt.documented_by(train)
def train_command(
    *file: Annotated[
        opt.FileOrDash,
        Parameter(
            help="labelled solutions: files in any format of stepmark convert, or OWNER/NAME of data sets on the hub. For worked solutions "
            "without labels: stepmark label exact first",
            required=True,
        ),
    ],
    out: Annotated[opt.FileOrDash, opt.in_common("--out")],
    base: Annotated[str | None, opt.in_common("--base")] = None,
    objective: Annotated[str | None, opt.in_common("--objective")] = None,
    settings: Annotated[tuple[str, ...], opt.in_common("--set")] = (),
    family: Annotated[str | None, opt.in_common("--family")] = None,
    columns: opt.Columns | None = None,
    training: Annotated[Training, Parameter(name="*", group=TRAINING, negative=None)] = Training(),
    held_out_data: Annotated[tuple[str, ...], opt.in_data("--held-out-data")] = (),
    rules: Annotated[LabelRules, opt.in_data("*")] = LabelRules(),
    log: Annotated[tuple[Log, ...], opt.in_output("--log")] = (),
) -> int:
    """See `stepmark.train`."""
    trained = train(
        file,
        out=out,
        base=base,
        objective=objective,
        settings=settings,
        family=family,
        rules=rules,
        training=training,
        held_out_data=held_out_data or None,
        columns=columns,
        log=log,
        on_warning=print_note,
    )
    if not trained.first:
        return 0
    if not trained.new:
        print(
            f"{trained.folder}: this run is done, and everything is there; its page is {trained.folder / REPORT_FILE}"
        )
        return 0
    for line in trained.dropped.lines():
        print_note(line)
    print(*trained.figures, f"curves: {trained.folder / REPORT_FILE}", sep="\n")
    return 0
