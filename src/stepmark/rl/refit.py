"""A discriminative PRM that is fitted anew while the policy moves: its steps are labelled by rollouts of the policy as it is (Wang et al.
2024, Math-Shepherd), and the PRM is trained on them.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, final

import numpy as np
import torch

from stepmark.data.formats.rows import LabelledRow
from stepmark.errors import CheckpointError, UsageError
from stepmark.labels.labelling import Labelling, Rollouts
from stepmark.labels.methods import label
from stepmark.labels.rollout import EveryStep
from stepmark.metrics.binary import weighted_auc
from stepmark.metrics.intervals import Difference, Floats, paired_bootstrap
from stepmark.models.checkpoint import Tensors, adapter_config, spec_of
from stepmark.models.files import ADAPTER_FILE, present
from stepmark.models.generative import critic_spec_of
from stepmark.models.heads import check_head
from stepmark.models.load import load_prm
from stepmark.models.places import NAMES, find_checkpoint
from stepmark.models.policies import answerers as writing
from stepmark.models.prm import PRM, Grader, Ledger
from stepmark.models.spec import Layout, LinearHead, MlpHead, ScoringSpec
from stepmark.records import Problem, Refusal, Solution, StepScores, read_record, to_data
from stepmark.rl.actor import Actor
from stepmark.rl.monitor import Monitor, known_scores
from stepmark.rl.settings import Refitting
from stepmark.rl.settings import Training as PolicyTraining
from stepmark.rl.trainer import STATE_FILE, Evaluation, Update, collect, seed_of
from stepmark.settings import settings
from stepmark.show.text import amount
from stepmark.training.checkpoint import head_names
from stepmark.training.examples import Example, LabelRules, examples
from stepmark.training.measure import takes_a_map
from stepmark.training.net import Net
from stepmark.training.objectives.families import OnHead
from stepmark.training.objectives.steps import SoftLabels
from stepmark.training.recipe import Recipe, run_recipe
from stepmark.training.settings import Training
from stepmark.training.state import Lines
from stepmark.verifiers.base import Verifier
from stepmark.verifiers.base import answerers as verifying


@final
class RefittedPRM(Grader):
    """A PRM whose place another can take. It keeps its name, by which a run is known."""

    def __init__(self, prm: PRM) -> None:
        self.name, self.score_kind = prm.name, prm.score_kind
        self._put(prm)

    def __repr__(self) -> str:
        return self.describe(place={"present": self._prm})

    @property
    def identity(self) -> str:
        """The present one's."""
        return self._prm.identity

    @property
    def ledger(self) -> Ledger:  # type: ignore[override]
        """The present one's."""
        return self._prm.ledger

    def replace(self, prm: PRM) -> None:
        """Put another of the same kind of scores in its place."""
        if prm.score_kind != self._prm.score_kind:
            raise UsageError(
                f"{self.name} scores a {self._prm.score_kind}, and {prm.name} a {prm.score_kind}: it cannot take its place"
            )
        self._put(prm)

    def _put(self, prm: PRM) -> None:
        self._prm = prm
        self.default_aggregate, self.default_threshold = prm.default_aggregate, prm.default_threshold

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """As `PRM.score_many`, by the one that is present when it is called."""
        return self._prm.score_many(solutions, keep_going=keep_going)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refitted:
    """What one refit did, as a line of `refit.jsonl`."""

    update: int
    replaced: bool
    """Whether the new PRM took the place of the old one."""
    why: str
    """In words."""
    folder: str | None
    """Of the new PRM, under the run's; None where it was not kept."""
    solutions: int
    """Fresh ones that were trained on."""
    steps: int
    """Of theirs, those with a label, up to the first error."""
    held_out_solutions: int
    held_out_steps: int
    refused: int
    """Solutions that could not be labelled, or that a PRM could not read."""
    rollouts: int
    """Written for the labels, beside the solutions themselves; they are in no other count of a run."""
    auc: Difference | None = None
    """Of held-out steps, more than half of whose rollouts were right against less than half: `a` the old PRM's, `b` the new one's, intervals over problems.
    None where nothing was trained."""
    before: float | None = None
    """The old PRM's mean score of held-out steps."""
    after: float | None = None
    """The new one's: by how much the rewards' level moves."""


@settings
class Further(OnHead):
    """Soft labels (Wang et al. 2024, Math-Shepherd, equation 4) on a checkpoint's own head and in its own layout."""

    name: ClassVar[str] = "further"
    marked: ClassVar[bool] = False
    """Its layout is the checkpoint's: no mark has to be looked for in the vocabulary."""
    there: ScoringSpec
    """How the checkpoint is read."""
    folder: Path
    """Where its head is; an adapter's is put in its place by `training.trainer.warm_start`."""
    adapter: bool

    @property
    def target(self) -> ScoringSpec:
        """As the checkpoint is read; its calibration is made anew."""
        return replace(
            self.there, family="stepmark", readout=replace(self.there.readout, scale=1.0, shift=0.0)
        )

    def spec(self, layout: Layout, base: str) -> ScoringSpec:
        """In the checkpoint's own layout."""
        return OnHead.spec(self, self.there.layout, base)

    def head(self, net: Net) -> torch.nn.Module:
        """The checkpoint's."""
        made, tensors, readout = OnHead.head(self, net), Tensors(self.folder), self.there.readout
        if self.adapter:
            return made
        check_head(readout.head, tensors.facts, folder=self.folder, hidden=None, classes=readout.classes)
        net.set_head(made)
        names = head_names(net)
        for inner, parameter in made.named_parameters():
            given = tensors.get(names[inner])
            if given.shape != parameter.shape:
                raise CheckpointError(
                    f"{self.folder}: {names[inner]} has the shape {tuple(given.shape)}, and a head that is trained further {tuple(parameter.shape)}"
                )
            parameter.data.copy_(given)
        return made


def recipe_of(
    place: str,
    how: Refitting,
    *,
    family: str | None,
    token_budget: int,
    dtype: Literal["auto", "float32", "bfloat16"],
    device: str,
    seed: int,
) -> Recipe:
    """How to train a PRM further.

    An adapter (as "default" is) stays one over the same base, with its own rank; of a whole checkpoint all weights are trained, or adapters
    that are merged into what is written. Other PRMs than checkpoints with a head of right or wrong are refused.

    Args:
        place: "default", a checkpoint's folder, or a hub name.
        family: how it is read; None: as the checkpoint says.
        token_budget: distinct tokens a forward pass; longer rows are left out and counted.
    """
    expected = "a refit needs the folder or hub name of a discriminative PRM"
    if place.startswith(("http://", "https://")) or (":" in place and "/" not in place):
        raise UsageError(
            f"{place}: {expected}, found a server or a factory, whose weights cannot be trained here"
        )
    folder = NAMES.load(place)() if place in NAMES else find_checkpoint(place)
    if critic_spec_of(folder) is not None:
        raise UsageError(f"{place}: {expected}, found a generative one")
    spec = spec_of(folder, place, family)
    head = spec.readout.head
    if not isinstance(head, LinearHead | MlpHead) or not takes_a_map(spec.readout) or spec.outcome_only:
        raise UsageError(
            f"{place}: {expected} that scores a step as right or wrong by a head of its own; this one is read as {spec.family} (a {head.kind} head, "
            f"{spec.readout.activation}). Train one with the objective soft"
        )
    adapter = present(folder / ADAPTER_FILE)
    base, lora = str(folder), {"lora_rank": how.lora_rank, "lora_alpha": 32.0}
    if adapter:
        config = adapter_config(folder)
        base, rank = config["base_model_name_or_path"], int(config["r"])
        scale = float(config["lora_alpha"]) * (rank**0.5 if config.get("use_rslora") else 1)
        lora = {"lora_rank": rank, "lora_alpha": scale}
    full = how.full and not adapter
    return Recipe(
        base=base,
        objective=Further(objective=SoftLabels(), there=spec, folder=folder, adapter=adapter),
        training=Training(
            full=full,
            **({} if full else lora),  # type: ignore[arg-type]
            dtype=dtype,
            device=device,
            warm_start=str(folder) if adapter else None,
            learning_rate=how.learning_rate,
            epochs=how.epochs,
            token_budget=token_budget,
            max_tokens=token_budget,
            evaluations=1,
            # The plainest layout, which every tokenizer has: the objective takes the checkpoint's own.
            layout="text",
            adapter=adapter,
            seed=seed,
        ),
    )


REFIT_FILE, REFIT_FOLDER = "refit.jsonl", "refit"
_RULES = LabelRules(labels="value")
_HOW = Refitting()


Fit = Callable[[Sequence[LabelledRow], Sequence[LabelledRow], str, Path], PRM]
"""From rows to train on, others to calibrate on, the present PRM's place and a new folder, to the new PRM, written there."""


@final
class Refit:
    """A listener that fits the PRM anew every so many updates.

    The new PRM takes the old one's place if its AUC on held-out problems is not worse. The same run gives the same refits, and a resumed one
    goes on with the PRM of its saved state.

    Args:
        prm: what the trainer and the monitor score with.
        place: of the first PRM: "default", a checkpoint's folder, or a hub name.
        problems: with reference answers: those that the policy learns on.
        folder: of the run; where its state is saved.
        family: how the PRM is read; None: as the checkpoint says.
        fit: trains; None: `training.recipe`, from the present PRM's weights.
    """

    def __init__(
        self,
        actor: Actor,
        prm: RefittedPRM,
        place: str,
        problems: Sequence[Problem],
        verifier: Verifier,
        settings: PolicyTraining,
        folder: Path,
        *,
        how: Refitting = _HOW,
        monitor: Monitor | None = None,
        family: str | None = None,
        device: str = "auto",
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        fit: Fit | None = None,
    ) -> None:
        self.actor, self.prm, self.place, self.verifier = actor, prm, place, verifier
        self.settings, self.folder, self.how, self.monitor = settings, folder, how, monitor
        self._family, self._device, self._dtype = family, device, dtype
        if fit is None:
            self._recipe(place)  # what cannot be trained on is refused now, and not after the first updates
        self._fit = fit or self._train
        order = random.Random(seed_of(settings, "refit held out", 0)).sample(
            range(len(problems)), len(problems)
        )
        self._held = [problems[n] for n in sorted(order[: how.held_out])]
        # The same text twice would be on both sides.
        texts = {problem.text for problem in self._held}
        self._pool = [problems[n] for n in sorted(order[how.held_out :]) if problems[n].text not in texts]
        if not self._pool:
            raise UsageError(
                f"a refit holds out {how.held_out} of the {amount(len(problems), 'problem')}, which leaves none to train the PRM on; give more problems, or hold out fewer"
            )
        self._lines = Lines(folder / REFIT_FILE)
        saved = saved_updates(folder)
        if self._lines.rows:
            self._lines.keep(saved)
        self.rows: list[Refitted] = [
            read_record(Refitted, row, where=f"{self._lines.file}:{number}")
            for number, row in enumerate(self._lines.rows, start=1)
        ]
        last = _in_force(self.rows)
        if last is not None and last.folder is not None:
            prm.replace(self._load(folder / last.folder))
            if monitor is not None and not any(last.update <= row.update <= saved for row in monitor.rows):
                # It was reported before the kill, and no evaluation that the run keeps has come since.
                monitor.rebase()

    def updated(self, update: Update) -> None:
        """Fit the PRM anew, if it is due."""
        if update.number % self.how.every:
            return
        self._tidy()
        result = self._refit(update.number)
        self._lines.add(to_data(result))
        self.rows = [row for row in self.rows if row.update < result.update] + [result]
        if result.replaced and self.monitor is not None:
            self.monitor.rebase()

    def evaluated(self, evaluation: Evaluation) -> bool:
        """Nothing."""
        return False

    def _refit(self, number: int) -> Refitted:
        dice = random.Random(seed_of(self.settings, "refit problems", number))
        chosen = dice.sample(self._pool, min(self.how.problems, len(self._pool)))
        training, cost, refused = self._labelled(chosen, number)
        held, more, refused_too = self._labelled(self._held, number)
        learnt, asked = examples(training, _RULES), examples(held, _RULES)
        before = after = _scores(self.prm, asked)
        new: PRM | None = None
        folder = self.folder / REFIT_FOLDER / f"{number:06d}"
        read = [item for item, scores in zip(asked, before, strict=True) if scores is not None]
        why = ""
        if not _labels(learnt):
            why = "no step of the fresh solutions has a label"
        elif len({right for _, _, right in _sides(read)}) < 2:
            why = "all held-out steps are right or all are wrong: no AUC"
        else:
            for leftover in (folder, folder.with_name(f"{folder.name}.run")):
                shutil.rmtree(leftover, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            last = _in_force(self.rows)
            place = self.place if last is None or last.folder is None else str(self.folder / last.folder)
            new = self._fit(training, held, place, folder)
            after = _scores(new, asked)
        both = [n for n, pair in enumerate(zip(before, after, strict=True)) if None not in pair]
        auc = None
        if new is not None:
            auc = _compared([asked[n] for n in both], *([s[n] or () for n in both] for s in (before, after)))
        better = auc is not None and auc.value is not None and auc.value >= 0
        if new is not None and better:
            why = "its AUC is not worse"
            self.prm.replace(new)
        elif new is not None:
            why = "its AUC is worse, or not known"
            shutil.rmtree(folder, ignore_errors=True)
        return Refitted(
            update=number,
            replaced=better,
            why=why,
            folder=f"{REFIT_FOLDER}/{folder.name}" if better else None,
            solutions=len(learnt),
            steps=_labels(learnt),
            held_out_solutions=len(both),
            held_out_steps=_labels([asked[n] for n in both]),
            refused=refused + refused_too + len(asked) - len(both),
            rollouts=cost + more,
            auc=auc,
            before=_mean([before[n] for n in both]),
            after=_mean([after[n] for n in both]) if new is not None else None,
        )

    def _labelled(self, problems: Sequence[Problem], number: int) -> tuple[list[LabelledRow], int, int]:
        """Fresh completions with rollouts from their steps; how many rollouts that took; how many could not be labelled."""
        settings = self.settings
        rated = collect(
            self.actor,
            problems,
            self.verifier,
            settings,
            group=self.how.completions,
            seed=seed_of(settings, "refit completions", number),
        )
        whole = [item for item in rated if item.steps]
        labeller = EveryStep(
            k=self.how.rollouts,
            how=Rollouts(
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                seed=seed_of(settings, "refit rollouts", number),
                prompt=settings.prompt,
                instruction=settings.instruction,
            ),
        )
        solutions = [Solution(problem=item.problem, steps=item.steps) for item in whole]
        answering = writing(self.actor.policy()) | verifying(self.verifier)
        results = [*zip(whole, label(solutions, labeller, answering), strict=True)]
        labelled = [(item, result) for item, result in results if isinstance(result, Labelling)]
        rows = [
            LabelledRow(labelled=result.labelled, where=f"refit {number}:{at}", outcome=item.right)
            for at, (item, result) in enumerate(labelled, start=1)
        ]
        cost = sum(result.cost.rollouts for _, result in labelled)
        return rows, cost, len(results) - len(labelled)

    def _train(
        self, training: Sequence[LabelledRow], held: Sequence[LabelledRow], place: str, out: Path
    ) -> PRM:
        # The network in training is a second one in memory; its gradients want autograd, whatever the caller does.
        with torch.enable_grad():
            run_recipe(
                training,
                out,
                self._recipe(place),
                held_out=held,
                data=("fresh completions",),
                report=lambda _: None,
            )
        return self._load(out)

    def _recipe(self, place: str) -> Recipe:
        return recipe_of(
            place,
            self.how,
            family=self._family if place == self.place else None,
            token_budget=self.settings.token_budget,
            dtype=self._dtype,
            device=self._device,
            seed=self.settings.seed,
        )

    def _load(self, folder: Path) -> PRM:
        return load_prm(str(folder), device=self._device, dtype=self._dtype)

    def _tidy(self) -> None:
        """Delete the PRMs that neither this run nor one that goes on from the saved state reads."""
        saved = saved_updates(self.folder)
        needed = _in_force([row for row in self.rows if row.update <= saved])
        for row in self.rows:
            if needed is not None and row.update < needed.update and row.folder is not None:
                shutil.rmtree(self.folder / row.folder, ignore_errors=True)


def _in_force(rows: Sequence[Refitted]) -> Refitted | None:
    """The refit whose PRM scores; None where it is the first one's."""
    return next((row for row in reversed(rows) if row.replaced), None)


def saved_updates(folder: Path) -> int:
    """The updates in a run's saved state (`Trainer._save`); 0 without one."""
    file = folder / STATE_FILE
    if not file.is_file():
        return 0
    done = torch.load(file, weights_only=True, map_location="cpu", mmap=True)["done"]
    assert isinstance(done, int)
    return done


def _scores(prm: PRM, asked: Sequence[Example]) -> list[tuple[float, ...] | None]:
    """Of each example its steps' scores; None for one that the PRM cannot read."""
    results = prm.score_many([item.solution for item in asked], keep_going=True)
    return [known_scores(result) for result in results]


def _sides(asked: Sequence[Example]) -> list[tuple[int, int, bool]]:
    """(example, step, right) of every step that more or less than half of the rollouts speak for."""
    return [
        (n, at, target.value > 0.5)
        for n, item in enumerate(asked)
        for at, target in enumerate(item.targets)
        if target is not None and target.value != 0.5
    ]


def _compared(
    asked: Sequence[Example], before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]
) -> Difference | None:
    sides = _sides(asked)
    if len({right for _, _, right in sides}) < 2:
        return None
    right = np.array([float(item) for _, _, item in sides])
    old, new = (np.array([scores[n][at] for n, at, _ in sides]) for scores in (before, after))

    def statistic(scores: Floats) -> Callable[[Floats], dict[str, Floats]]:
        return lambda weights: {"auc": weighted_auc(scores, right, weights)}

    problems = [asked[n].solution.problem.text for n, _, _ in sides]
    return paired_bootstrap(statistic(old), statistic(new), problems, resamples=1000)["auc"]


def _labels(known: Sequence[Example]) -> int:
    return sum(target is not None for item in known for target in item.targets)


def _mean(scores: Sequence[Sequence[float] | None]) -> float | None:
    values = [value for score in scores if score is not None for value in score]
    return sum(values) / len(values) if values else None
