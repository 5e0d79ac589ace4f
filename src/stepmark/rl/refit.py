"""A discriminative PRM that is fitted anew while the policy moves: to rollouts of the policy as it is, on what it writes now.

A PRM is trained on what some policy wrote once. The policy in training writes other things, and those that the PRM wrongly likes become likelier. From time
to time, its steps are labelled afresh (Wang et al. 2024, Math-Shepherd: the share of rollouts that get there), and the PRM is trained on them.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch

from stepmark.batching import Write
from stepmark.errors import UsageError
from stepmark.labels.labelling import Labelling, Rollouts
from stepmark.labels.rollout import EveryStep
from stepmark.labels.run import label
from stepmark.metrics.binary import weighted_auc
from stepmark.metrics.intervals import Difference, Floats, paired_bootstrap
from stepmark.models.load import load_prm
from stepmark.models.policies import answerers as writing
from stepmark.models.policies.prompts import PromptEncoder
from stepmark.models.prm import PRM
from stepmark.problems.answers import Verifier
from stepmark.problems.answers import answerers as verifying
from stepmark.records import Problem, Refusal, Solution, StepScores, read_record, to_data
from stepmark.rl.actor import Actor
from stepmark.rl.monitor import Lines, Monitor
from stepmark.rl.refit_training import recipe_of
from stepmark.rl.refitted import Refitted, RefittedPRM
from stepmark.rl.rewarding import judge
from stepmark.rl.settings import Refitting, Training
from stepmark.rl.trainer import Evaluation, Update
from stepmark.sampling import Sampling, prompt_of
from stepmark.solutions.interchange import LabelledRow
from stepmark.training.examples import Example, LabelRules, examples
from stepmark.training.recipe import Recipe, run_recipe

REFIT_FILE, REFIT_FOLDER, STATE_FILE = "refit.jsonl", "refit", "state.pt"
_RULES = LabelRules(labels="value")
_HOW = Refitting()


Fit = Callable[[Sequence[LabelledRow], Sequence[LabelledRow], str, Path], PRM]
"""From rows to train on, others to calibrate on, the present PRM's place and a new folder, to the new PRM, written there."""


@final
class Refit:
    """A listener that fits the PRM anew every so many updates.

    Fresh completions are labelled by rollouts of the policy as it is, the PRM is trained on some of them, and takes the old one's place if its AUC on the
    others is not worse. The same run gives the same refits, and a resumed one goes on with the PRM of its saved state.

    Args:
        actor: the policy in training.
        prm: what the trainer and the monitor score with.
        place: of the first PRM: "default", a checkpoint's folder, or a hub name.
        problems: with reference answers: those that the policy learns on.
        verifier: says what is right.
        settings: of the run.
        folder: of the run; where its state is saved.
        how: see `Refitting`.
        monitor: is told of replacements.
        family: how the PRM is read; None tells it from the checkpoint.
        device: of the PRM.
        dtype: of the PRM: "auto", "float32", "bfloat16".
        fit: trains; None: `training.recipe`, from the present PRM's weights.

    Raises:
        UsageError: too few problems, or a PRM that cannot be trained on.
        InputError: a line of an earlier run that is no `Refitted`.
    """

    def __init__(
        self,
        actor: Actor,
        prm: RefittedPRM,
        place: str,
        problems: Sequence[Problem],
        verifier: Verifier,
        settings: Training,
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
        self._encoder = PromptEncoder(actor.tokenizer, actor.name)
        if fit is None:
            self._recipe(place)  # what cannot be trained on is said now, and not after the first updates
        self._fit = fit or self._train
        order = random.Random(self._seed("held out", 0)).sample(range(len(problems)), len(problems))
        self._held = [problems[n] for n in sorted(order[: how.held_out])]
        # The same text twice would be on both sides.
        texts = {problem.text for problem in self._held}
        self._pool = [problems[n] for n in sorted(order[how.held_out :]) if problems[n].text not in texts]
        if not self._pool:
            raise UsageError(
                f"a refit holds out {how.held_out} of the {len(problems)} problems, which leaves none to train the PRM on; give more problems, or hold out fewer"
            )
        self._lines = Lines(folder / REFIT_FILE)
        saved = saved_updates(folder)
        if self._lines.rows:
            self._lines.keep(saved)
        self.rows: list[Refitted] = [
            read_record(Refitted, row, where=f"{self._lines.file}:{number}")
            for number, row in enumerate(self._lines.rows, start=1)
        ]
        last = self._in_force(self.rows)
        if last is not None and last.folder is not None:
            prm.replace(self._load(folder / last.folder))
            if monitor is not None and not any(last.update <= row.update <= saved for row in monitor.rows):
                # It was told before the kill, and no evaluation that the run keeps has come since.
                monitor.rebase()

    def updated(self, update: Update) -> None:
        """Fit the PRM anew, if it is due."""
        if update.number % self.how.every:
            return
        self._tidy()
        found = self._refit(update.number)
        self._lines.add(to_data(found))
        self.rows = [row for row in self.rows if row.update < found.update] + [found]
        if found.replaced and self.monitor is not None:
            self.monitor.rebase()

    def evaluated(self, evaluation: Evaluation) -> bool:
        """Nothing."""
        return False

    def _refit(self, number: int) -> Refitted:
        dice = random.Random(self._seed("problems", number))
        chosen = dice.sample(self._pool, min(self.how.problems, len(self._pool)))
        training, cost, refused = self._labelled(chosen, number)
        held, more, refused_too = self._labelled(self._held, number)
        told, asked = examples(training, _RULES), examples(held, _RULES)
        before = _scores(self.prm, asked)
        place = self._in_force(self.rows)
        new: PRM | None = None
        folder = self.folder / REFIT_FOLDER / f"{number:06d}"
        why = _cannot(told, asked, before)
        if why is None:
            for leftover in (folder, folder.with_name(f"{folder.name}.run")):
                shutil.rmtree(leftover, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            there = self.place if place is None or place.folder is None else str(self.folder / place.folder)
            new = self._fit(training, held, there, folder)
            after = _scores(new, asked)
        else:
            after = before
        both = [n for n, pair in enumerate(zip(before, after, strict=True)) if None not in pair]
        auc = _compared([asked[n] for n in both], *([s[n] or () for n in both] for s in (before, after)))
        better = new is not None and auc is not None and auc.value is not None and auc.value >= 0
        if new is not None:
            why = "its AUC is not worse" if better else "its AUC is worse, or not known"
            if better:
                self.prm.replace(new)
            else:
                shutil.rmtree(folder, ignore_errors=True)
        assert why is not None
        return Refitted(
            update=number,
            replaced=better,
            why=why,
            folder=f"{REFIT_FOLDER}/{folder.name}" if better else None,
            solutions=len(told),
            steps=_labels(told),
            held_out_solutions=len(both),
            held_out_steps=_labels([asked[n] for n in both]),
            refused=refused + refused_too + len(asked) - len(both),
            rollouts=cost + more,
            auc=auc if new is not None else None,
            before=_mean([before[n] for n in both]),
            after=_mean([after[n] for n in both]) if new is not None else None,
        )

    def _labelled(self, problems: Sequence[Problem], number: int) -> tuple[list[LabelledRow], int, int]:
        """Fresh completions with rollouts from their steps; how many rollouts that took; how many could not be labelled."""
        settings = self.settings
        how = Sampling(prompt=settings.prompt, instruction=settings.instruction)
        drawn = self.actor.write(
            [
                Write(
                    prompt=prompt_of(problem, how),
                    n=self.how.completions,
                    temperature=settings.temperature,
                    max_tokens=settings.max_tokens,
                    seed=self._seed("completions", number),
                    first=0,
                )
                for problem in problems
            ]
        )
        there = [
            (problem, one) for problem, one in zip(problems, drawn, strict=True) if isinstance(one, list)
        ]
        rated = judge(
            [problem for problem, _ in there],
            [one for _, one in there],
            self.verifier,
            settings,
            self._encoder.text,
        )
        whole = [one for one in rated if one.steps]
        labeller = EveryStep(
            k=self.how.rollouts,
            how=Rollouts(
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                seed=self._seed("rollouts", number),
                prompt=settings.prompt,
                instruction=settings.instruction,
            ),
        )
        solutions = [Solution(problem=one.problem, steps=one.steps) for one in whole]
        answering = writing(self.actor.policy()) | verifying(self.verifier)
        rows, cost = [], 0
        refused = len(problems) - len(there)
        for at, (one, found) in enumerate(
            zip(whole, label(solutions, labeller, answering), strict=True), start=1
        ):
            if not isinstance(found, Labelling):
                refused += 1
                continue
            cost += found.cost.rollouts
            rows.append(LabelledRow(labelled=found.labelled, where=f"refit {number}:{at}", outcome=one.right))
        return rows, cost, refused

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
        how = self.how
        return recipe_of(
            place,
            family=self._family if place == self.place else None,
            rank=None if how.full else how.lora_rank,
            learning_rate=how.learning_rate,
            epochs=how.epochs,
            token_budget=self.settings.token_budget,
            dtype=self._dtype,
            device=self._device,
            seed=self.settings.seed,
        )

    def _load(self, folder: Path) -> PRM:
        return load_prm(str(folder), device=self._device, dtype=self._dtype)

    def _in_force(self, rows: Sequence[Refitted]) -> Refitted | None:
        return next((row for row in reversed(rows) if row.replaced), None)

    def _tidy(self) -> None:
        """Delete the PRMs that neither this run nor one that goes on from the saved state reads."""
        saved = saved_updates(self.folder)
        needed = self._in_force([row for row in self.rows if row.update <= saved])
        for row in self.rows:
            if needed is not None and row.update < needed.update and row.folder is not None:
                shutil.rmtree(self.folder / row.folder, ignore_errors=True)

    def _seed(self, what: str, number: int) -> int:
        text = f"{self.settings.seed} refit {what} {number}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


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
    found: list[tuple[float, ...] | None] = []
    for result in prm.score_many([one.solution for one in asked], keep_going=True):
        known = () if isinstance(result, Refusal) else [s for s in result.scores if s is not None]
        whole = isinstance(result, StepScores) and len(known) == len(result.scores)
        found.append(tuple(known) if whole else None)
    return found


def _sides(asked: Sequence[Example]) -> list[tuple[int, int, bool]]:
    """(example, step, right) of every step that more or less than half of the rollouts speak for."""
    return [
        (n, at, target.value > 0.5)
        for n, one in enumerate(asked)
        for at, target in enumerate(one.targets)
        if target is not None and target.value != 0.5
    ]


def _cannot(
    told: Sequence[Example], asked: Sequence[Example], before: Sequence[tuple[float, ...] | None]
) -> str | None:
    """Why nothing can be trained or compared; None where it can."""
    if not _labels(told):
        return "no step of the fresh solutions has a label"
    read = [one for one, scores in zip(asked, before, strict=True) if scores is not None]
    if len({right for _, _, right in _sides(read)}) < 2:
        return "all held-out steps are right or all are wrong: no AUC"
    return None


def _compared(
    asked: Sequence[Example], before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]
) -> Difference | None:
    sides = _sides(asked)
    if len({right for _, _, right in sides}) < 2:
        return None
    right = np.array([float(one) for _, _, one in sides])
    old, new = (np.array([scores[n][at] for n, at, _ in sides]) for scores in (before, after))

    def statistic(scores: Floats) -> Callable[[Floats], dict[str, Floats]]:
        return lambda weights: {"auc": weighted_auc(scores, right, weights)}

    problems = [asked[n].solution.problem.text for n, _, _ in sides]
    return paired_bootstrap(statistic(old), statistic(new), problems, resamples=1000)["auc"]


def _labels(known: Sequence[Example]) -> int:
    return sum(target is not None for one in known for target in one.targets)


def _mean(scores: Sequence[Sequence[float] | None]) -> float | None:
    values = [value for one in scores if one is not None for value in one]
    return sum(values) / len(values) if values else None
