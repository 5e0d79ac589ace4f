"""From labelled rows to a calibrated checkpoint."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stepmark.data.formats.rows import LabelledRow
from stepmark.errors import CheckpointError, InputError, UsageError
from stepmark.metrics.first_error import FirstErrors
from stepmark.models.backbone import load_tokenizer
from stepmark.models.files import local_folder
from stepmark.models.generative import CriticSpec
from stepmark.models.identity import checkpoint_fingerprint
from stepmark.models.load import load_prm
from stepmark.models.places import BUILT_IN_BASE, find_checkpoint, folder_of
from stepmark.models.spec import NOTE_FILE, SPEC_FILE, LinearHead, MlpHead, ScoringSpec, read_spec
from stepmark.records import StepScores
from stepmark.show.text import amount
from stepmark.store import atomic_write
from stepmark.training.checkpoint import Written, layout_of, write_trained
from stepmark.training.examples import Dropped, Example, LabelRules, examples, split_problems
from stepmark.training.measure import (
    Graded,
    Measure,
    Trained,
    calibrate,
    can_calibrate,
    pairs_of,
    solutions_of,
    takes_a_map,
)
from stepmark.training.net import Net, layout_for
from stepmark.training.objectives.base import Objective, StepObjective
from stepmark.training.objectives.families import family_layout
from stepmark.training.objectives.steps import HardLabels, keeps_neutral
from stepmark.training.parallel import Workers, check_launched
from stepmark.training.report import CARD_FILE, CardFacts, prm_card
from stepmark.training.settings import Training
from stepmark.training.state import (
    CHECKPOINT,
    HISTORY_FILE,
    WRITTEN,
    Lines,
    check_run,
    drop_state,
    finished_notes,
    refuse_another,
    workplace,
)
from stepmark.training.trainer import Progress, Trainer

Groups = Sequence[Sequence[Example]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a checkpoint besides its rows."""

    base: str = BUILT_IN_BASE
    """A folder, a hub name, or a built-in one."""
    objective: Objective = field(default_factory=HardLabels)
    source: Mapping[str, Any] | None = None
    """Of an objective of the caller's own: its name and the hashes of its modules."""
    rules: LabelRules = field(default_factory=LabelRules)
    training: Training = field(default_factory=Training)
    family: str | None = None
    """The published family in whose layout solutions become text; None: a layout of our own, by `mark` and `layout`."""


def run_recipe(
    rows: Iterable[LabelledRow],
    out: Path,
    recipe: Recipe,
    *,
    held_out: Iterable[LabelledRow] | None = None,
    data: Sequence[str] = (),
    report: Callable[[Progress], None],
    complete: Callable[[Trained, Path], None] | None = None,
) -> Trained:
    """Train, write and calibrate. The same call after an interruption continues the run; after its end it changes nothing.

    The state of a run in progress lies in `<out>.run`, which one process at a time holds. The checkpoint is made there and takes its name
    when all of its files are in it, so `out` is whole or absent.

    Args:
        held_out: rows to measure and calibrate on; None: a share of the problems of `rows`.
        complete: adds files to the checkpoint's folder, its second argument, before that takes its name; `history.jsonl` is there by then.
            Called again where the run had finished earlier, so that it can add what is missing.

    Raises:
        UsageError: `out` is of another run, another process is at this one, or the rows are too few, or only right or only wrong.
        InputError: labels of a kind that the objective is not for.
        CheckpointError: the base cannot be trained or changed meanwhile, or what was written is not read as it was trained.
    """
    before = finished_notes(out) if out.exists() or out.is_symlink() else None
    settings = recipe.training
    base = find_checkpoint(recipe.base)
    layout = None if recipe.family is None else family_layout(recipe.family)
    if layout is None:
        layout = layout_for(
            load_tokenizer(base), mark=settings.mark, layout=settings.layout, marked=recipe.objective.marked
        )
    folder = local_folder(recipe.base)
    base_name = recipe.base if folder is None else str(folder.resolve())
    spec = recipe.objective.spec(layout, base_name)
    _check_spec(recipe, base, spec)
    record = record_of(recipe, base, base_name)
    workers = Workers(settings.place)
    state = out.with_name(f"{out.name}.run")
    with workplace(state) if workers.first else nullcontext():
        if before is None and not out.exists():
            check_run(state, record)
        else:
            before = before or finished_notes(out)
            refuse_another(out, before, record)
        calibrated = isinstance(spec, ScoringSpec) and takes_a_map(spec.readout)
        dropped = Dropped()
        rows = list(rows)
        training, measured_on = _split(rows, held_out, recipe, dropped, calibrated)
        run = {**record, "rows": digest_of(training), "held_out_rows": digest_of(measured_on)}
        if before is not None:
            refuse_another(out, before, run)
            done = _earlier(out, before, first=workers.first)
            if workers.first:
                # What a kill left behind; another run's is refused above only where `out` is not there.
                with suppress(UsageError):
                    check_run(state, record)
                    drop_state(state)
                if complete is not None:
                    complete(done, out)
            return done
        net = Net(base, spec, settings, max_tokens=settings.max_tokens, seed=settings.seed)
        trainer = Trainer(net, recipe.objective, settings, state, dropped=dropped, workers=workers, run=run)
        history = Lines(state / HISTORY_FILE, "step")

        def record_step(progress: Progress) -> None:
            history.add(asdict(progress))
            report(progress)

        trainer.run(training, measured_on, report=record_step)
        graded, loss, labels = trainer.graded(measured_on) if measured_on else ([], 0.0, 0.0)
        done = Trained(
            folder=out,
            held_out=trainer.measure(graded, loss, labels) if graded else None,
            first_errors=None,
            examples=sum(map(len, training)),
            problems=len(training),
            dropped=dropped,
            first=workers.first,
        )
        whole = trainer.whole()
        if workers.first:
            if checkpoint_fingerprint(base) != record["base_fingerprint"]:
                raise CheckpointError(
                    f"the files of the base {base} were changed while it was trained on. Put back what was there, and the same command continues "
                    f"from its saved state; or delete {state} to train on what is there now"
                )
            made = state / CHECKPOINT
            for leftover in (made, *state.glob(f".{CHECKPOINT}-*")):
                shutil.rmtree(leftover, ignore_errors=True)
            notes = {
                **record,
                "data": list(data),
                "rows": run["rows"],
                "held_out_rows": run["held_out_rows"],
                "problems": done.problems,
                "examples": done.examples,
                "held_out_problems": len(measured_on),
                "dropped": dict(dropped.counts),
                "held_out": None if done.held_out is None else asdict(done.held_out),
            }
            written = write_trained(made, whole, adapter=settings.adapter, base_name=base_name, notes=notes)
            _check_reading(made, graded, net)
            if calibrated and can_calibrate([value for _, value in pairs_of(graded)]):
                assert written.spec is not None
                first = calibrate(made, written.spec, graded, tune=settings.tune_threshold)
                done = replace(done, first_errors=first)
            if written.spec is not None:
                written = replace(written, spec=read_spec(made / SPEC_FILE))
            with atomic_write(made / CARD_FILE) as card:
                card.write(_card(recipe, written, done, notes, rows=len(rows)))
            history.keep(trainer.done)
            # Copied: a kill before the next lines must leave the curves where the next run finds them.
            shutil.copyfile(history.file, made / HISTORY_FILE)
            if complete is not None:
                complete(done, made)
            made.rename(out)
            drop_state(state)
        workers.wait()
    return done


def _check_spec(recipe: Recipe, base: Path, spec: ScoringSpec | CriticSpec) -> None:
    """Refuse now, and not after hours of training, what could not be trained or written."""
    settings, objective = recipe.training, recipe.objective
    if settings.adapter and not isinstance(spec, ScoringSpec):
        raise UsageError(
            "`adapter`: a generative PRM is written whole, so that any server runs it; leave it out"
        )
    if not settings.adapter and isinstance(spec, ScoringSpec):
        layout_of(spec, base)
    if settings.shard:
        check_launched()
        own_head = isinstance(spec, ScoringSpec) and isinstance(spec.readout.head, LinearHead | MlpHead)
        if not own_head or (isinstance(objective, StepObjective) and objective.language_weight > 0):
            raise UsageError(
                f"`shard`: {objective.name} reads the language-model head, which is not shared out; take an objective with a head of its own and "
                "no language_weight, or leave `shard` out"
            )


def _earlier(out: Path, notes: Mapping[str, Any], *, first: bool) -> Trained:
    """What a finished run gave, read from its checkpoint. One that lacks a file is refused."""
    missing = [name for name in WRITTEN if not (out / name).is_file()]
    if missing:
        raise UsageError(
            f"{out} was trained by this command and lacks {', '.join(missing)} now; put it back, or delete the folder to train again"
        )
    figures = None
    if (out / NOTE_FILE).is_file():
        figures = json.loads((out / NOTE_FILE).read_text(encoding="utf-8")).get("first_errors")
    return Trained(
        folder=out,
        held_out=None if notes["held_out"] is None else Measure(**notes["held_out"]),
        first_errors=None if figures is None else FirstErrors(**figures),
        examples=notes["examples"],
        problems=notes["problems"],
        dropped=Dropped(counts=notes["dropped"]),
        first=first,
        new=False,
    )


def _split(
    rows: Iterable[LabelledRow],
    held_out: Iterable[LabelledRow] | None,
    recipe: Recipe,
    dropped: Dropped,
    calibrated: bool,
) -> tuple[list[list[Example]], list[list[Example]]]:
    settings, objective = recipe.training, recipe.objective
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
                f"{amount(len(shared), 'held-out problem is', 'held-out problems are')} trained on too; leave out of one of the two",
                where=shared[0][0].where,
            )
    if not training:
        raise UsageError(
            "there is nothing to train on: no row has a labelled step. " + " ".join(dropped.lines())
        )
    if settings.held_out > 0 and held_out is None and not measured_on:
        raise UsageError(
            f"{amount(len(training), 'problem is', 'problems are')} too few to hold out {settings.held_out:.0%} of them; label more, name `held_out_data`, "
            "or train without measuring (`held_out` 0)"
        )
    fitted = [
        target.value
        for group in measured_on
        for example in group
        for target in objective.wanted(example).targets
        if target is not None
    ]
    if settings.tune_threshold and not (calibrated and _both_kinds(measured_on)):
        raise UsageError(
            "a threshold is tuned on held-out solutions of which some are right and some have a first error, for objectives of one logit or two; "
            "hold out others, or leave `tune_threshold` out"
        )
    if calibrated and measured_on and not can_calibrate(fitted):
        # Known now, and not after hours of training, when calibration would need them.
        raise UsageError(
            f"there is no right or no wrong step in {amount(len(measured_on), 'held-out problem')}; hold out more, or label more"
        )
    return training, measured_on


def _both_kinds(groups: Groups) -> bool:
    """Whether some held-out solutions are right and some have a first error."""
    rows = [Graded(example=e, scores=(0.5,) * len(e.targets)) for group in groups for e in group]
    return len({at >= 0 for at in solutions_of(rows)[1]}) == 2


def _check_reading(folder: Path, graded: Sequence[Graded], net: Net) -> None:
    """What was written is read as it was trained, or it is not published."""
    if not isinstance(net.spec, ScoringSpec) or not graded:
        return
    if net.spec.score_kind == "log-ratio" and net.weights.torch_dtype.itemsize < 4:
        return  # a sum over all tokens of a solution: in bfloat16 its rounding has no useful bound
    some = graded[:: max(1, len(graded) // 8)][:8]
    prm = load_prm(str(folder), dtype="float32" if net.weights.torch_dtype.itemsize == 4 else "auto")
    # In bfloat16 a merged adapter rounds otherwise than one beside its base.
    allowed = 1e-3 if net.weights.torch_dtype.itemsize == 4 else 0.1
    for item, result in zip(some, prm.score_many([g.example.solution for g in some]), strict=True):
        assert isinstance(result, StepScores)
        for ours, theirs in zip(item.scores, result.scores, strict=True):
            if ours is not None and theirs is not None and abs(ours - theirs) > allowed:
                raise CheckpointError(
                    f"{folder}: the written checkpoint scores a step {theirs:.4f} where the network in training gave {ours:.4f}; "
                    "it is kept there and not published. Please report this"
                )


def record_of(recipe: Recipe, base: Path, base_name: str) -> dict[str, Any]:
    """Everything but the rows that decides a checkpoint, as plain data: what tells a run from others. Models by their files."""
    warm = recipe.training.warm_start
    return {
        "base": base_name,
        "base_fingerprint": checkpoint_fingerprint(base),
        "warm_start_fingerprint": None if warm is None else checkpoint_fingerprint(folder_of(warm)),
        "objective": {"name": recipe.objective.name, "settings": repr(recipe.objective)},
        **({} if recipe.source is None else {"source": dict(recipe.source)}),
        "family": recipe.family,
        "rules": asdict(recipe.rules),
        "settings": asdict(recipe.training),
    }


def digest_of(groups: Groups) -> str:
    """What tells examples from others, wherever they were read."""
    digest = hashlib.sha256()
    for item in (item for group in groups for item in group):
        digest.update(repr((item.solution, item.targets, item.outcome, item.critiques, item.asked)).encode())
    return digest.hexdigest()


def _card(recipe: Recipe, written: Written, done: Trained, notes: Mapping[str, Any], *, rows: int) -> str:
    """The model card: what was done and measured, and nothing else."""
    objective, settings = recipe.objective, asdict(recipe.training)
    problems, held_out = done.problems, notes["held_out_problems"]
    dropped = "; ".join(f"{count:,} {reason}" for reason, count in done.dropped.counts.items())
    data = f"{', '.join(notes['data']) or 'Rows without a name'}: {amount(rows, 'row')}" + (
        f", of which were left out: {dropped}." if dropped else "."
    )
    if held_out:
        data += f" {held_out:,} of {amount(problems + held_out, 'problem')} were held out, each with all of its solutions."
    measured = {}
    if (figures := done.held_out) is not None:
        threshold = 0.5 if written.spec is None else written.spec.threshold
        scores = "last scores against outcomes" if objective.outcomes else "step scores"
        on = f"on {amount(figures.labels, 'label')} of {amount(held_out, 'held-out problem')}"
        values = (
            (f"loss a label, {on}", figures.loss),
            (f"accuracy of {scores} at {threshold:g}, not calibrated", figures.accuracy),
            (f"AUC of {scores}", figures.auc),
        )
        measured = {what: f"{value:.4g}" for what, value in values if value is not None}
        if (first := done.first_errors) is not None:
            tuned = " and the threshold chosen" if recipe.training.tune_threshold else ""
            what = f"first-error F1 at {first.threshold:g}, calibrated{tuned} on the same {amount(figures.solutions, 'solution')}"
            measured[what] = f"{first.f1:.4g}"
    seed = settings.pop("seed")
    return prm_card(
        CardFacts(
            title=done.folder.name,
            base=notes["base"],
            settings={**settings, **asdict(recipe.rules)},
            seed=seed,
        ),
        written,
        objective=f"{objective.name} (`{objective!r}`)",
        base_fingerprint=notes["base_fingerprint"],
        data=data,
        measured=measured,
    )
