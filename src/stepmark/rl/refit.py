"""A PRM that is trained further between updates: the policy's own steps are labelled by rollouts (Wang et al. 2024, Math-Shepherd), and the trainer of
`stepmark train` goes on from the PRM. The new PRM takes the old one's place where its held-out AUC is not lower.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from stepmark.data.formats.rows import LabelledRow
from stepmark.errors import UsageError
from stepmark.labels.labellers import label
from stepmark.labels.labelling import Labelling, Rollouts
from stepmark.labels.rollout import EveryStep
from stepmark.metrics.intervals import Difference
from stepmark.models.files import ADAPTER_FILE, present
from stepmark.models.load import load_prm
from stepmark.models.places import folder_of
from stepmark.records import Problem, Solution, read_record, to_data
from stepmark.rl.monitor import Monitor
from stepmark.rl.policy_trainer import STATE_FILE, PolicyEvaluation, PolicyTrainer, Update, collect, seed_of
from stepmark.rl.settings import Refitting
from stepmark.training.examples import LabelRules
from stepmark.training.objectives.steps import SoftLabels
from stepmark.training.recipe import Recipe, run_recipe
from stepmark.training.settings import Training
from stepmark.training.state import LogLines
from stepmark.verifiers.base import BatchVerifier

REFIT_FILE, REFIT_FOLDER = "refit.jsonl", "refit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refitted:
    """What one refit did, as a line of `refit.jsonl`."""

    update: int
    replaced: bool
    """Whether the new PRM took the place of the old one."""
    why: str
    folder: str | None
    """Of the new PRM, under the run's; None where nothing was trained."""
    solutions: int
    rollouts: int
    """Written for the labels, beside the solutions themselves; they are in no other count of a run."""
    auc: Difference | None = None
    """Of held-out steps: `a` the old PRM's, `b` the new one's, intervals over problems."""


@final
class Refit:
    """A listener that trains the PRM further every so many updates. A resumed run goes on with the PRM of its saved state (`attach`).

    Args:
        place: the first PRM's name, which must be a LoRA adapter: "default", a folder or a hub name.
        problems: those that the policy learns on.
    """

    def __init__(
        self, place: str, problems: Sequence[Problem], how: Refitting, *, seed: int, device: str = "auto"
    ) -> None:
        if not present(folder_of(place) / ADAPTER_FILE):
            raise UsageError(
                f"`refit` {place}: expected a PRM that is a LoRA adapter, such as default or what `stepmark train` writes with `adapter`: training "
                "goes on from it"
            )
        self.place, self.how, self._device = place, how, device
        held = random.Random(f"{seed} refit").sample(list(problems), min(how.held_out, len(problems)))
        texts = {problem.text for problem in held}
        self._held, self._pool = held, [problem for problem in problems if problem.text not in texts]
        if not self._pool:
            raise UsageError(
                f"`refit`: expected more problems than the {how.held_out} that a refit holds out, found {len(problems)}"
            )
        self.rows: list[Refitted] = []

    def attach(self, trainer: PolicyTrainer, monitor: Monitor) -> None:
        """Take the place of the trainer's and the monitor's PRM, from the refits of an interrupted run on."""
        self._trainer, self._monitor = trainer, monitor
        state, self._lines = trainer.out / STATE_FILE, LogLines(trainer.out / REFIT_FILE)
        saved = torch.load(state, weights_only=True, mmap=True)["done"] if state.is_file() else 0
        if self._lines.rows:
            self._lines.keep(saved)
        self.rows = [read_record(Refitted, row, where=str(self._lines.file)) for row in self._lines.rows]
        if (last := self._last) is not None:
            self._use(str(last.folder), since=last.update)

    @property
    def _last(self) -> Refitted | None:
        return next((row for row in reversed(self.rows) if row.replaced), None)

    def _use(self, folder: str, *, since: int) -> None:
        self._trainer.prm = self._monitor.prm = load_prm(str(self._trainer.out / folder), device=self._device)
        if not any(row.update >= since for row in self._monitor.rows):
            self._monitor.rebase()

    def updated(self, update: Update) -> None:
        """Train the PRM further, if it is due."""
        if update.number % self.how.every:
            return
        result = self._refit(update.number)
        self._lines.add(to_data(result))
        self.rows = [row for row in self.rows if row.update < result.update] + [result]
        if result.replaced:
            self._use(str(result.folder), since=result.update)

    def evaluated(self, evaluation: PolicyEvaluation) -> bool:
        """Nothing."""
        return False

    def _refit(self, number: int) -> Refitted:
        trainer, how = self._trainer, self.how
        dice = random.Random(seed_of(trainer.settings, "refit problems", number))
        rows, cost = self._labelled(dice.sample(self._pool, min(how.problems, len(self._pool))), number)
        held, more = self._labelled(self._held, number)
        out = trainer.out / REFIT_FOLDER / f"{number:06d}"
        for leftover in (out, out.with_name(f"{out.name}.run")):
            shutil.rmtree(leftover, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        training = Training(
            warm_start=self.place if self._last is None else str(trainer.out / str(self._last.folder)),
            adapter=True,
            learning_rate=how.learning_rate,
            epochs=how.epochs,
            evaluations=1,
            device=self._device,
            seed=trainer.settings.seed,
        )
        recipe = Recipe(objective=SoftLabels(), rules=LabelRules(labels="value"), training=training)
        done, why = None, ""
        try:
            with torch.enable_grad():
                done = run_recipe(rows, out, recipe, held_out=held, report=lambda _: None)
        except UsageError as error:  # no labels, or all of one kind
            why = str(error)
        auc = None if done is None or done.comparison is None else done.comparison.difference
        better = auc is not None and auc.value is not None and auc.value >= 0
        return Refitted(
            update=number,
            replaced=better,
            why=why or ("its AUC is not lower" if better else "its AUC is lower, or not known"),
            folder=None if done is None else f"{REFIT_FOLDER}/{out.name}",
            solutions=len(rows),
            rollouts=cost + more,
            auc=auc,
        )

    def _labelled(self, problems: Sequence[Problem], number: int) -> tuple[list[LabelledRow], int]:
        """Fresh completions with rollouts from their steps, and how many rollouts that took."""
        trainer, settings = self._trainer, self._trainer.settings
        actor, verifier, seed = trainer.actor, trainer.verifier, seed_of(settings, "refit", number)
        rated = collect(actor, problems, verifier, settings, group=self.how.completions, seed=seed)
        written = [item for item in rated if item.steps]
        how = Rollouts(
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=seed + 1,
            prompt=settings.prompt,
            instruction=settings.instruction,
        )
        solutions = [Solution(problem=item.problem, steps=item.steps) for item in written]
        labeller = EveryStep(k=self.how.rollouts, how=how)
        results = label(solutions, labeller, actor.policy(), BatchVerifier(verifier))
        done = [(item, r) for item, r in zip(written, results, strict=True) if isinstance(r, Labelling)]
        rows = [
            LabelledRow(labelled=result.labelled, where=f"refit {number}:{at}", outcome=item.right)
            for at, (item, result) in enumerate(done, start=1)
        ]
        return rows, sum(result.cost.rollouts for _, result in done)
