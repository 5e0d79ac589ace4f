"""From labelled rows to a calibrated checkpoint."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stepmark.data.formats.rows import LabelledRow
from stepmark.errors import CheckpointError, InputError, UsageError
from stepmark.metrics.aggregate import aggregate
from stepmark.models.backbone import load_tokenizer
from stepmark.models.checkpoint import adapter_config
from stepmark.models.files import local_folder, present
from stepmark.models.generative import CriticSpec
from stepmark.models.identity import checkpoint_fingerprint
from stepmark.models.lazy import note_idle
from stepmark.models.load import load_prm
from stepmark.models.places import BUILT_IN_BASE, default_folder, find_checkpoint, folder_of
from stepmark.models.spec import SPEC_FILE, ScoringSpec, read_spec
from stepmark.records import CheckName, StepScores
from stepmark.store import atomic_write
from stepmark.training.examples import (
    OUT_OF_TIME,
    Dropped,
    Example,
    LabelRules,
    by_problem,
    examples,
    examples_of_labels,
    split_problems,
)
from stepmark.training.held_out import HeldOut, Scored, compare
from stepmark.training.measure import (
    Graded,
    Measure,
    Trained,
    calibrate,
    can_calibrate,
    pairs_of,
    solutions_of,
    whole_solutions,
)
from stepmark.training.net import Net, layout_for
from stepmark.training.objectives.base import Objective, StepObjective
from stepmark.training.objectives.published import family_layout
from stepmark.training.objectives.steps import HardLabels, keeps_neutral
from stepmark.training.parallel import ProcessGroup, check_launched
from stepmark.training.report import CARD_FILE, CardFacts, prm_card
from stepmark.training.saving import TRAIN_FILE, Written, layout_of, write_json, write_trained
from stepmark.training.settings import Training
from stepmark.training.state import (
    CHECKPOINT,
    HISTORY_FILE,
    WRITTEN,
    LogLines,
    check_run,
    drop_state,
    finished_notes,
    refuse_another,
    workplace,
)
from stepmark.training.trainer import Trainer, TrainerProgress
from stepmark.verifiers.checks import check, check_names
from stepmark.words import amount

Groups = Sequence[Sequence[Example]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a checkpoint besides its rows."""

    base: str | None = None
    """A folder, a hub name, or a built-in one. None: the default PRM, where the objective and the layout are its own, and its base elsewhere."""
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
    report: Callable[[TrainerProgress], None],
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
    recipe, base, base_name, spec = starting_point(recipe)
    settings = recipe.training
    _check_spec(recipe, base, spec)
    record = record_of(recipe, base, base_name)
    workers = ProcessGroup(settings.place)
    state = out.with_name(f"{out.name}.run")
    with workplace(state) if workers.first else nullcontext():
        if before is None and not out.exists():
            check_run(state, record)
        else:
            before = before or finished_notes(out)
            refuse_another(out, before, record)
        calibrated = isinstance(spec, ScoringSpec) and spec.readout.takes_a_map
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
        history = LogLines(state / HISTORY_FILE, "step")

        def record_step(progress: TrainerProgress) -> None:
            history.add(asdict(progress))
            report(progress)

        trainer.run(training, measured_on, report=record_step)
        graded, loss, labels = trainer.graded(measured_on) if measured_on else ([], 0.0, 0.0)
        done = Trained(
            folder=out,
            held_out=trainer.measure(graded, loss, labels) if graded else None,
            examples=sum(map(len, training)),
            problems=len(training),
            dropped=dropped,
            first=workers.first,
            start=_start(recipe),
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
                "start": done.start,
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
            if written.spec is not None:
                names = check_names(written.spec.checks)
                refuted = [_refuted(item, names) for item in graded]
                tune = (
                    _enough_of_both(measured_on)
                    if settings.tune_threshold is None
                    else settings.tune_threshold
                )
                tune = tune and calibrated
                if calibrated and can_calibrate([value for _, value in pairs_of(graded)]):
                    _, graded = calibrate(made, written.spec, graded, tune=tune, refuted=refuted)
                read = read_spec(made / SPEC_FILE)
                written = replace(written, spec=read)
                comparison = _comparison(recipe, read, graded, refuted, tuned=tune)
                if comparison is not None:
                    comparison = replace(comparison, unmade=dropped.counts.get(OUT_OF_TIME, 0))
                done = replace(done, comparison=comparison)
                add_note(made, "comparison", done.comparison)
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


def starting_point(recipe: Recipe) -> tuple[Recipe, Path, str, ScoringSpec | CriticSpec]:
    """The recipe with its base, its warm start and an adapter that has room for that; the base's folder and name; how the result is read."""
    training, objective = recipe.training, recipe.objective
    start = None if training.warm_start is None else folder_of(training.warm_start)
    stored = read_spec(start / SPEC_FILE) if start is not None and present(start / SPEC_FILE) else None
    name = recipe.base
    if name is None:
        name = BUILT_IN_BASE if start is None else str(adapter_config(start)["base_model_name_or_path"])
    base = find_checkpoint(name)
    layout = None if recipe.family is None else family_layout(recipe.family)
    if layout is None and stored is not None and training.mark is None and training.layout == "auto":
        layout = stored.layout
    if layout is None:
        layout = layout_for(
            load_tokenizer(base), mark=training.mark, layout=training.layout, marked=objective.marked
        )
    folder = local_folder(name)
    base_name = name if folder is None else str(folder.resolve())
    spec = objective.spec(layout, base_name)
    if recipe.base is None and start is None and not training.full and recipe.family is None:
        default = read_spec(default_folder() / SPEC_FILE)
        if (
            isinstance(spec, ScoringSpec)
            and spec.layout == default.layout
            and (spec.readout.head, spec.readout.activation)
            == (
                default.readout.head,
                default.readout.activation,
            )
        ):
            training, start, stored = replace(training, warm_start="default"), default_folder(), default
    if start is not None:
        training = replace(training, lora_rank=max(training.lora_rank, int(adapter_config(start)["r"])))
    if isinstance(spec, ScoringSpec):
        checks = training.checks or ("none" if stored is None else stored.checks)
        spec = replace(spec, checks=checks)
    return replace(recipe, base=name, training=training), base, base_name, spec


def _start(recipe: Recipe) -> str:
    """What is trained, for people."""
    warm = recipe.training.warm_start
    return str(recipe.base) if warm is None else "the default PRM" if warm == "default" else warm


def _refuted(item: Graded, names: Collection[CheckName]) -> tuple[int, ...]:
    """The steps of a solution that exact checks prove wrong."""
    solution = item.example.solution
    findings = check(solution.problem.text, solution.texts, names=names) if names else ()
    return tuple(sorted({finding.step for finding in findings}))


def _comparison(
    recipe: Recipe,
    spec: ScoringSpec,
    graded: Sequence[Graded],
    refuted: Sequence[tuple[int, ...]],
    *,
    tuned: bool,
) -> HeldOut | None:
    """The figures of calibrated held-out examples, beside those of the baseline."""
    settings, outcomes = recipe.training, recipe.objective.outcomes
    name = settings.baseline or settings.warm_start
    baseline = None if name in (None, "none") or not graded else load_prm(str(name), device=settings.device)
    theirs: list[tuple[float | None, ...] | None] = [None] * len(graded)
    if baseline is not None:
        for at, result in enumerate(
            baseline.score_many([g.example.solution for g in graded], keep_going=True)
        ):
            if not isinstance(result, StepScores):
                continue
            how = baseline.default_aggregate
            theirs[at] = (aggregate(result.scores, how, kind=result.kind),) if outcomes else result.scores
    scored = []
    for item, other, proven, whole in zip(graded, theirs, refuted, whole_solutions(graded), strict=True):
        targets = tuple(None if t is None else t.value for t in item.example.targets)
        scores = item.scores
        if outcomes:
            outcome = item.example.outcome
            targets, scores = (None if outcome is None else float(outcome),), scores[-1:]
        scored.append(
            Scored(
                problem=item.example.solution.problem.text,
                targets=targets,
                scores=scores,
                baseline=(None,) * len(scores) if baseline is not None and other is None else other,
                first_error=None if whole is None or outcomes else whole[1],
                steps_to=0 if whole is None else whole[0],
                refuted=proven,
            )
        )
    return compare(
        scored,
        outcomes=outcomes,
        threshold=spec.threshold,
        tuned=tuned,
        checks=spec.checks,
        baseline=None if baseline is None else str(name),
        baseline_threshold=None if baseline is None else baseline.default_threshold,
        baseline_checks="none" if baseline is None else baseline.default_checks,
    )


def add_note(folder: Path, name: str, value: HeldOut | None) -> None:
    """Add an entry to the `train.json` of a checkpoint."""
    notes = json.loads((folder / TRAIN_FILE).read_text(encoding="utf-8"))
    write_json(folder / TRAIN_FILE, {**notes, name: None if value is None else asdict(value)})


def _check_spec(recipe: Recipe, base: Path, spec: ScoringSpec | CriticSpec) -> None:
    """Refuse now, and not after hours of training, what could not be trained or written."""
    settings, objective = recipe.training, recipe.objective
    if not isinstance(spec, ScoringSpec):
        note_idle({"adapter": settings.adapter or None}, {"adapter": "a generative PRM is written whole"})
    if not settings.adapter and isinstance(spec, ScoringSpec):
        layout_of(spec, base)
    if settings.shard:
        check_launched()
        own_head = isinstance(spec, ScoringSpec) and spec.readout.head.on_state
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
    return Trained(
        folder=out,
        held_out=None if notes["held_out"] is None else Measure(**notes["held_out"]),
        examples=notes["examples"],
        problems=notes["problems"],
        dropped=Dropped(counts=notes["dropped"]),
        comparison=None if notes.get("comparison") is None else HeldOut.of_data(notes["comparison"]),
        start=notes["start"],
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
    critiques = not (objective.marked or objective.outcomes or isinstance(objective, StepObjective))
    axes = objective.axes if isinstance(objective, StepObjective) else ()
    shares = isinstance(objective, StepObjective) and objective.fits_shares

    def read(rows: Iterable[LabelledRow]) -> list[Example]:
        if axes:
            return examples_of_labels(rows, rules, axes, dropped=dropped)
        return examples(rows, rules, dropped=dropped, critiques=critiques, shares=shares)

    ready = read(rows)
    if held_out is None:
        share = settings.share_held_out(len(by_problem(ready)))
        training, measured_on = split_problems(ready, share, settings.seed)
    else:
        others = read(held_out)
        training, measured_on = split_problems(ready, 0.0, 0)[0], split_problems(others, 0.0, 0)[0]
        texts = {group[0].solution.problem.text for group in training}
        shared = [g for g in measured_on if g[0].solution.problem.text in texts]
        if shared:
            raise InputError(
                f"{amount(len(shared), 'held-out problem is', 'held-out problems are')} trained on too; leave out of one of the two",
                where=shared[0][0].where,
            )
    if not training:
        raise UsageError(
            "there is nothing to train on: no row has a labelled step. Labels are read from a list beside the steps, such as "
            '"labels": [true, false], or as a format of stepmark convert has them. '
            + " ".join(dropped.lines())
        )
    if held_out is None and not measured_on and (share := settings.share_held_out(len(training))) > 0:
        raise UsageError(
            f"{amount(len(training), 'problem is', 'problems are')} too few to hold out {share:.0%} of them; label more, name `held_out_data`, "
            "or train without measuring (`held_out` 0)"
        )
    fitted = [
        target.value
        for group in measured_on
        for example in group
        for target in objective.wanted(example).targets
        if target is not None and target.value is not None
    ]
    if settings.tune_threshold and not (calibrated and _enough_of_both(measured_on, each=1)):
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


def _enough_of_both(groups: Groups, *, each: int = 5) -> bool:
    """Whether so many held-out solutions are right, and as many have a first error."""
    rows = [Graded(example=e, scores=(0.5,) * len(e.targets)) for group in groups for e in group]
    wrong = [at >= 0 for at in solutions_of(rows)[1]]
    return min(sum(wrong), len(wrong) - sum(wrong)) >= each


def _check_reading(folder: Path, graded: Sequence[Graded], net: Net) -> None:
    """What was written is read as it was trained, or it is not published."""
    if not isinstance(net.spec, ScoringSpec) or not graded:
        return
    if net.spec.score_kind == "log-ratio" and net.weights.torch_dtype.itemsize < 4:
        return  # a sum over all tokens of a solution: in bfloat16 its rounding has no useful bound
    examples = graded[:: max(1, len(graded) // 8)][:8]
    prm = load_prm(str(folder), dtype="float32" if net.weights.torch_dtype.itemsize == 4 else "auto")
    # In bfloat16 a merged adapter rounds otherwise than one beside its base.
    allowed = 1e-3 if net.weights.torch_dtype.itemsize == 4 else 0.1
    for item, result in zip(examples, prm.score_many([g.example.solution for g in examples]), strict=True):
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
        scores = "last scores against outcomes" if objective.outcomes else "step scores"
        on = f"on {amount(figures.labels, 'label')} of {amount(held_out, 'held-out problem')}"
        values = ((f"loss a label, {on}", figures.loss), (f"AUC of {scores}", figures.auc))
        measured = {what: f"{value:.4g}" for what, value in values if value is not None}
        if (comparison := done.comparison) is not None:
            measured |= comparison.table
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
