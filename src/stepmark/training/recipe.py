"""From labelled rows to a calibrated checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepmark.errors import CheckpointError, InputError, UsageError
from stepmark.metrics.first_error import FirstErrors
from stepmark.models.backbone import load_tokenizer
from stepmark.models.detect import read_spec
from stepmark.models.generative import CriticSpec
from stepmark.models.load import load_prm
from stepmark.models.places import BUILT_IN_BASE, find_checkpoint
from stepmark.models.spec import SPEC_FILE, LinearHead, MlpHead, ScoringSpec
from stepmark.records import StepScores
from stepmark.solutions.interchange import LabelledRow
from stepmark.training.calibrate import calibrate, can_calibrate, pairs_of, takes_a_map
from stepmark.training.card import write_card
from stepmark.training.checkpoint import check_base
from stepmark.training.describe import card_of, notes_of
from stepmark.training.examples import Dropped, Example, LabelRules, examples, split_problems
from stepmark.training.layouts import LayoutName, layout_for
from stepmark.training.measure import Graded, Measure, solutions_of
from stepmark.training.net import Net
from stepmark.training.objectives.base import Objective
from stepmark.training.objectives.joint import Joint
from stepmark.training.objectives.steps import Hard, keeps_neutral
from stepmark.training.sharding import check_processes
from stepmark.training.trainer import Progress, Train, Trainer
from stepmark.training.write import write_trained


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a checkpoint besides its rows."""

    base: str = BUILT_IN_BASE
    """A folder, a hub name, or a built-in one."""
    objective: Objective = field(default_factory=Hard)
    rules: LabelRules = field(default_factory=LabelRules)
    train: Train = field(default_factory=Train)
    mark: str | None = None
    """The token that ends a step; None: the first known one that the base has (`layouts.MARKS`)."""
    layout: LayoutName = "auto"
    adapter: bool = False
    """Write the LoRA adapter alone, to be read over its base; else the whole checkpoint."""
    tune_threshold: bool = False
    """Take the threshold with the best first-error F1 on the held-out solutions, calibrated; else the spec's, 0.5."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run gave."""

    folder: Path
    held_out: Measure | None
    """On problems that were not trained on, before calibration; None where none were held out."""
    first_errors: FirstErrors | None
    """On the solutions of those problems, calibrated, at the spec's threshold."""
    examples: int
    problems: int
    dropped: Dropped
    first: bool
    """Whether this is the process that writes and talks; of one process it is."""


def train(
    rows: Iterable[LabelledRow],
    out: Path,
    recipe: Recipe,
    *,
    held_out: Iterable[LabelledRow] | None = None,
    data: Sequence[str] = (),
    report: Callable[[Progress], None],
) -> Trained:
    """Train, write and calibrate. Run again with the same arguments after an interruption, it goes on.

    Args:
        rows: labelled rows of any source.
        out: the checkpoint's folder; the state of a run in progress lies in `<out>.run`.
        recipe: see `Recipe`.
        held_out: rows to measure and calibrate on; None: a share of the problems of `rows`.
        data: names of the sources, for the card.
        report: receives the figures of every optimizer step.

    Raises:
        UsageError: `out` exists, no example is left after filtering, all held-out steps are right or all are wrong,
            or `<out>.run` is of another run.
        InputError: labels of a kind that the objective is not for.
        CheckpointError: the base cannot be trained, or what was written is not read as it was trained.
    """
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists; delete it or choose another --out")
    if recipe.adapter and recipe.train.weights.rank is None:
        raise UsageError(
            "--adapter writes an adapter, and --full trains all weights: leave out one of the two"
        )
    base = find_checkpoint(recipe.base)
    layout = layout_for(
        load_tokenizer(base), mark=recipe.mark, layout=recipe.layout, marked=recipe.objective.marked
    )
    folder = Path(recipe.base).expanduser()
    base_name = str(folder.resolve()) if folder.is_dir() else recipe.base
    spec = recipe.objective.spec(layout, base_name)
    settings = recipe.train
    if recipe.adapter and not isinstance(spec, ScoringSpec):
        raise UsageError(
            "--adapter: a generative PRM is written whole, so that any server runs it; leave it out"
        )
    if not recipe.adapter and isinstance(spec, ScoringSpec):
        # Known now, and not after hours of training.
        check_base(base, spec)
    if settings.weights.shard:
        _check_shard(recipe, spec)
    calibrated = isinstance(spec, ScoringSpec) and takes_a_map(spec.readout)
    dropped = Dropped()
    counted = _Counted(rows)
    training, measured_on = _split(counted, held_out, recipe, dropped, calibrated)
    net = Net(base, spec, settings.weights, max_tokens=settings.max_tokens, seed=settings.seed)
    state = out.with_name(f"{out.name}.run")
    trainer = Trainer(net, recipe.objective, settings, state, dropped=dropped)
    trainer.run(training, measured_on, report=report)
    graded, loss, labels = trainer.graded(measured_on) if measured_on else ([], 0.0, 0.0)
    found = trainer.measure(graded, loss, labels) if graded else None
    first = None
    whole = trainer.whole()
    if trainer.workers.first:
        # Made beside the state and moved when it is whole: `out` is calibrated or not there.
        made = state / "checkpoint"
        shutil.rmtree(made, ignore_errors=True)
        notes = notes_of(recipe, base_name, data, training, measured_on, dropped, found)
        written = write_trained(made, whole, adapter=recipe.adapter, base_name=base_name, notes=notes)
        _check_reading(made, graded, net)
        if calibrated and can_calibrate([value for _, value in pairs_of(graded)]):
            assert written.spec is not None
            first = calibrate(made, written.spec, graded, tune=recipe.tune_threshold)
        write_card(
            card_of(
                recipe,
                replace(written, spec=read_spec(made / SPEC_FILE)) if written.spec is not None else written,
                name=out.name,
                base=base_name,
                data=data,
                rows=counted.count,
                training=training,
                measured_on=measured_on,
                dropped=dropped,
                found=found,
                first=first,
            )
        )
        made.rename(out)
        shutil.rmtree(state)
    trainer.workers.wait()
    return Trained(
        folder=out,
        held_out=found,
        first_errors=first,
        examples=sum(map(len, training)),
        problems=len(training),
        dropped=dropped,
        first=trainer.workers.first,
    )


def _check_shard(recipe: Recipe, spec: ScoringSpec | CriticSpec) -> None:
    """Refuse before anything is loaded what weights that are shared out cannot be trained for.

    Raises:
        UsageError: one process, or an objective that reads the language-model head.
    """
    check_processes(int(os.environ.get("WORLD_SIZE", "1")))
    own_head = isinstance(spec, ScoringSpec) and isinstance(spec.readout.head, LinearHead | MlpHead)
    if not own_head or isinstance(recipe.objective, Joint):
        raise UsageError(
            f"--shard: {recipe.objective.name} reads the language-model head, which is not shared out; take an objective with a head of its "
            "own and no --language-weight, or leave --shard out"
        )


class _Counted:
    """An iterable that counts what it gave."""

    def __init__(self, rows: Iterable[LabelledRow]) -> None:
        self._rows, self.count = rows, 0

    def __iter__(self) -> Iterator[LabelledRow]:
        for row in self._rows:
            self.count += 1
            yield row


def _split(
    rows: Iterable[LabelledRow],
    held_out: Iterable[LabelledRow] | None,
    recipe: Recipe,
    dropped: Dropped,
    calibrated: bool,
) -> tuple[list[list[Example]], list[list[Example]]]:
    settings, objective = recipe.train, recipe.objective
    rules = replace(recipe.rules, neutral="keep") if keeps_neutral(objective) else recipe.rules
    # Rows of a judge hold critiques; who reads neither step ends nor outcomes reads those.
    critiques = not (objective.marked or objective.outcomes)
    ready = examples(rows, rules, dropped=dropped, critiques=critiques)
    if held_out is None:
        training, measured_on = split_problems(ready, settings.held_out, settings.seed)
    else:
        others = examples(held_out, rules, dropped=dropped, critiques=critiques)
        training, measured_on = split_problems(ready, 0.0, 0)[0], split_problems(others, 0.0, 0)[0]
        known = {group[0].solution.problem.text for group in training}
        shared = [g for g in measured_on if g[0].solution.problem.text in known]
        if shared:
            raise InputError(
                f"{len(shared)} held-out problems are trained on too; leave them out of one of the two",
                where=shared[0][0].where,
            )
    if not training:
        raise UsageError(
            "there is nothing to train on: no row has a labelled step. " + " ".join(dropped.lines())
        )
    if settings.held_out > 0 and held_out is None and not measured_on:
        raise UsageError(
            f"{len(training)} problems are too few to hold out {settings.held_out:.0%} of them; label more, name --held-out-data, "
            "or train without measuring (--held-out 0)"
        )
    fitted = [
        target.value
        for group in measured_on
        for example in group
        for target in objective.wanted(example).targets
        if target is not None
    ]
    if recipe.tune_threshold and not (calibrated and _both_kinds(measured_on)):
        raise UsageError(
            "a threshold is tuned on held-out solutions of which some are right and some have a first error, for objectives of one logit or two; "
            "hold out others, or leave --tune-threshold out"
        )
    if calibrated and measured_on and not can_calibrate(fitted):
        # Known now, and not after hours of training, when calibration would need them.
        raise UsageError(
            f"the {len(measured_on)} held-out problems have no right or no wrong step; hold out more, or label more"
        )
    return training, measured_on


def _both_kinds(groups: Sequence[Sequence[Example]]) -> bool:
    """Whether some held-out solutions are right and some have a first error."""
    rows = [Graded(example=e, scores=(0.5,) * len(e.targets)) for group in groups for e in group]
    return len({at >= 0 for at in solutions_of(rows)[1]}) == 2


def _check_reading(folder: Path, graded: Sequence[Graded], net: Net) -> None:
    """What was written is read as it was trained, or it is not published.

    Raises:
        CheckpointError: `load_prm` gives other scores than the network in training did.
    """
    if not isinstance(net.spec, ScoringSpec) or not graded:
        return
    if net.spec.score_kind == "log-ratio" and net.weights.torch_dtype.itemsize < 4:
        return  # a sum over all tokens of a solution: in bfloat16 its rounding has no useful bound
    some = graded[:: max(1, len(graded) // 8)][:8]
    prm = load_prm(str(folder), dtype="float32" if net.weights.torch_dtype.itemsize == 4 else "auto")
    # In bfloat16 a merged adapter rounds otherwise than one beside its base.
    allowed = 1e-3 if net.weights.torch_dtype.itemsize == 4 else 0.1
    for one, result in zip(some, prm.score_many([g.example.solution for g in some]), strict=True):
        assert isinstance(result, StepScores)
        for ours, theirs in zip(one.scores, result.scores, strict=True):
            if ours is not None and theirs is not None and abs(ours - theirs) > allowed:
                raise CheckpointError(
                    f"{folder}: the written checkpoint scores a step {theirs:.4f} where the network in training gave {ours:.4f}; "
                    "it is kept there and not published. Please report this"
                )
