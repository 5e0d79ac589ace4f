"""A discriminative PRM that is fitted anew while the policy moves: to rollouts of the policy as it is, on what it writes now.

A PRM is trained on what some policy wrote once. The policy in training writes other things, and those that the PRM wrongly likes become likelier. From time
to time, its steps are labelled afresh (Wang et al. 2024, Math-Shepherd: the share of rollouts that get there), and the PRM is trained on them.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stepmark.batching import Write
from stepmark.errors import CheckpointError, UsageError
from stepmark.labels.labelling import Labelling, Rollouts
from stepmark.labels.rollout import EveryStep
from stepmark.labels.run import label
from stepmark.metrics.binary import weighted_auc
from stepmark.metrics.intervals import Difference, Floats, paired_bootstrap
from stepmark.models.checkpoint import Tensors, adapter_config
from stepmark.models.detect import spec_of
from stepmark.models.files import ADAPTER_FILE, present
from stepmark.models.generative import critic_spec_of
from stepmark.models.heads import check_head
from stepmark.models.load import load_prm
from stepmark.models.places import NAMES, find_checkpoint
from stepmark.models.policies import answerers as writing
from stepmark.models.policies.prompts import PromptEncoder
from stepmark.models.prm import PRM, Grader, Ledger
from stepmark.models.spec import Layout, LinearHead, MlpHead, ScoringSpec
from stepmark.problems.answers import Verifier
from stepmark.problems.answers import answerers as verifying
from stepmark.records import Problem, Refusal, Solution, StepScores, read_record, to_data
from stepmark.rl.actor import Actor, Padded, passes, rows_of
from stepmark.rl.monitor import Lines, Monitor
from stepmark.rl.rewarding import judge
from stepmark.rl.settings import Implicit, Refitting
from stepmark.rl.settings import Training as PolicyTraining
from stepmark.rl.trainer import Evaluation, Update
from stepmark.sampling import Sampling, prompt_of
from stepmark.solutions.interchange import LabelledRow
from stepmark.training.examples import Example, LabelRules, Target, examples
from stepmark.training.measure import takes_a_map
from stepmark.training.net import Net
from stepmark.training.objectives.base import StepObjective
from stepmark.training.recipe import Recipe, run_recipe
from stepmark.training.settings import Training


@final
class RefittedPRM(Grader):
    """A PRM whose place another can take. It keeps its name, by which a run is known.

    Args:
        prm: the first.
    """

    def __init__(self, prm: PRM) -> None:
        self.name, self.score_kind, self._before = prm.name, prm.score_kind, Ledger()
        self._put(prm)

    def __repr__(self) -> str:
        return self.describe(place={"present": self._prm})

    @property
    def identity(self) -> str:
        """The present one's."""
        return self._prm.identity

    @property
    def ledger(self) -> Ledger:  # type: ignore[override]
        """What all of them together have cost."""
        return _sum(self._before, self._prm.ledger)

    def replace(self, prm: PRM) -> None:
        """Put another in its place.

        Raises:
            UsageError: its scores are of another kind.
        """
        if prm.score_kind != self._prm.score_kind:
            raise UsageError(
                f"{self.name} scores a {self._prm.score_kind}, and {prm.name} a {prm.score_kind}: it cannot take its place"
            )
        self._before = self.ledger
        self._put(prm)

    def _put(self, prm: PRM) -> None:
        self._prm = prm
        self.default_aggregate, self.default_threshold = prm.default_aggregate, prm.default_threshold

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """As `PRM.score_many`, by the one that is present when it is called."""
        return self._prm.score_many(solutions, keep_going=keep_going)


def _sum(a: Ledger, b: Ledger) -> Ledger:
    return Ledger(
        solutions=a.solutions + b.solutions,
        steps=a.steps + b.steps,
        tokens_in=a.tokens_in + b.tokens_in,
        tokens_distinct=a.tokens_distinct + b.tokens_distinct,
        tokens_computed=a.tokens_computed + b.tokens_computed,
        tokens_again=a.tokens_again + b.tokens_again,
        tokens_written=a.tokens_written + b.tokens_written,
    )


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


@dataclass(frozen=True, kw_only=True)
class Further(StepObjective):
    """Binary cross-entropy against the share of rollouts (Wang et al. 2024, Math-Shepherd, equation 4), from a checkpoint's own head and in its own layout."""

    there: ScoringSpec
    """How the checkpoint is read."""
    folder: Path
    """Where its head is; of an adapter, `training.trainer.warm_start` puts the head in its place."""
    adapter: bool
    name: ClassVar[str] = "further"

    @property
    def marked(self) -> bool:
        """Its layout is the checkpoint's: no mark has to be looked for in the vocabulary."""
        return False

    def spec(self, layout: Layout, base: str) -> ScoringSpec:
        """As the checkpoint is read; its calibration is made anew."""
        return replace(
            self.there,
            family="stepmark",
            readout=replace(self.there.readout, scale=1.0, shift=0.0),
            architectures=(),
            settings=(),
            tensors=(),
            checkpoints=(),
        )

    def head(self, net: Net) -> torch.nn.Module:
        """The checkpoint's."""
        form = self.there.readout.head
        single = self.there.readout.activation == "sigmoid"
        if isinstance(form, LinearHead):
            made: torch.nn.Module = torch.nn.Linear(
                net.hidden_size, 1 if single else 2, bias=form.bias is not None
            )
            places = {"weight": form.weight, "bias": form.bias}
        else:
            assert isinstance(form, MlpHead), "refused by `recipe_of`"
            names = [f"{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")]
            places = {name: f"{form.prefix}.{name}" for name in names}
            made = torch.nn.Sequential(
                torch.nn.Linear(net.hidden_size, net.hidden_size),
                torch.nn.ReLU(),
                torch.nn.Linear(net.hidden_size, 2),
            )
        for parameter in made.parameters():
            torch.nn.init.zeros_(parameter)
        if not self.adapter:
            self._fill(made, places)
        return made

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Binary cross-entropy against the share."""
        shares = torch.tensor([t.value for t in targets], dtype=logits.dtype, device=logits.device)
        return F.binary_cross_entropy_with_logits(self._logit(logits), shares, reduction="none")

    def score_of(self, logits: Tensor) -> Tensor:
        """P(right)."""
        return torch.sigmoid(self._logit(logits))

    def _logit(self, logits: Tensor) -> Tensor:
        readout = self.there.readout
        if readout.activation == "sigmoid":
            return logits[:, 0]
        # The softmax of two is the sigmoid of their difference.
        return logits[:, readout.good] - logits[:, 1 - readout.good]

    def _fill(self, made: torch.nn.Module, places: dict[str, str | None]) -> None:
        tensors = Tensors(self.folder)
        readout = self.there.readout
        check_head(readout.head, tensors.facts, folder=self.folder, hidden=None, classes=readout.classes)
        for inner, parameter in made.named_parameters():
            outer = places[inner]
            assert outer is not None, "made without one"
            given = tensors.get(outer)
            if given.shape != parameter.shape:
                raise CheckpointError(
                    f"{self.folder}: {outer} has the shape {tuple(given.shape)}, and a head that is trained further {tuple(parameter.shape)}"
                )
            parameter.data.copy_(given)


def recipe_of(
    place: str,
    *,
    family: str | None,
    rank: int | None,
    learning_rate: float | None,
    epochs: int,
    token_budget: int,
    dtype: str,
    device: str,
    seed: int,
) -> Recipe:
    """How to train a PRM on from where it is.

    An adapter (as "default" is) goes on as an adapter over the same base, with its own rank; of a whole checkpoint all weights are trained, or adapters that
    are merged into what is written.

    Args:
        place: "default", a checkpoint's folder, or a hub name.
        family: how it is read; None tells it from the checkpoint.
        rank: of LoRA over a whole checkpoint; None trains all weights. Of an adapter it is the adapter's, whatever is given here.
        learning_rate: None: `Training`'s.
        epochs: over the rows.
        token_budget: distinct tokens a forward pass; longer rows are left out and counted.
        dtype: as `Training.dtype`.
        device: as `Training.device`.
        seed: of the order.

    Raises:
        UsageError: a PRM that cannot be trained on: one behind a server, a factory's, a generative or an implicit one, one with another head than a linear
            one or a multilayer perceptron with a score of right or wrong.
        CheckpointError: no such checkpoint.
    """
    folder, spec = _read(place, family)
    adapter = present(folder / ADAPTER_FILE)
    base, scale = str(folder), 32.0
    if adapter:
        config = adapter_config(folder)
        base, rank, scale = config["base_model_name_or_path"], int(config["r"]), float(config["lora_alpha"])
        if config.get("use_rslora"):
            assert rank is not None
            scale *= rank**0.5
    lora = {} if rank is None else {"lora_rank": rank, "lora_alpha": scale}
    return Recipe(
        base=base,
        objective=Further(there=spec, folder=folder, adapter=adapter),
        training=Training(
            full=rank is None,
            **lora,  # type: ignore[arg-type]
            dtype=dtype,  # type: ignore[arg-type]
            device=device,
            warm_start=str(folder) if adapter else None,
            learning_rate=learning_rate,
            epochs=epochs,
            token_budget=token_budget,
            max_tokens=token_budget,
            evaluations=1,
            # The plainest layout, which every tokenizer has: the objective takes the checkpoint's own.
            layout="text",
            adapter=adapter,
            seed=seed,
        ),
    )


def _read(place: str, family: str | None) -> tuple[Path, ScoringSpec]:
    wanted = "a refit needs the folder or hub name of a discriminative PRM"
    if place.startswith(("http://", "https://")):
        raise UsageError(f"{place}: {wanted}; a server's weights cannot be trained here")
    if ":" in place and "/" not in place:
        raise UsageError(f"{place}: {wanted}, found a factory")
    folder = NAMES.load(place)() if place in NAMES else find_checkpoint(place)
    if critic_spec_of(folder) is not None:
        raise UsageError(f"{place}: {wanted}, found a generative one")
    spec = spec_of(folder, place, family)
    readout = spec.readout
    if not isinstance(readout.head, LinearHead | MlpHead) or not takes_a_map(readout) or spec.outcome_only:
        raise UsageError(
            f"{place}: {wanted} that scores a step as right or wrong by a head of its own; this one is read as {spec.family} (a {readout.head.kind} head, "
            f"{readout.activation}). Train one with the objective soft"
        )
    return folder, spec


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
        monitor: records replacements.
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
        self._encoder = PromptEncoder(actor.tokenizer, actor.name)
        if fit is None:
            self._recipe(place)  # what cannot be trained on is refused now, and not after the first updates
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
                # It was reported before the kill, and no evaluation that the run keeps has come since.
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


_SETTINGS = Implicit()


@final
class OnlineImplicit:
    """Rewards tokens by a log-ratio of two models and fits one of them to outcomes, on the policy's own tokens.

    The order is PRIME's "after": a batch is rewarded by what was learnt from the ones before it, then learnt from. The cross-entropy is
    `BCE(sigmoid(beta * sum over tokens of log pi_phi / pi_ref), outcome)` (equation 3).

    Args:
        model: pi_phi, with what it began as beside it: an `Actor` with `reference=True` and the policy's tokenizer; as a rule the same checkpoint.
        settings: how.
        token_budget: padded tokens a forward pass.

    Raises:
        UsageError: the model keeps no reference.
    """

    def __init__(self, model: Actor, settings: Implicit = _SETTINGS, *, token_budget: int = 8192) -> None:
        if not model.has_reference:
            raise UsageError("an implicit PRM is a ratio to a reference: make its actor with reference=True")
        self.model, self.settings, self._token_budget = model, settings, token_budget
        self._began = model.identity  # now, for it is not known after the first step
        self.optimizer = torch.optim.AdamW(
            model.trained(), lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )

    @torch.no_grad()
    def rewards(self, rows: Padded) -> Tensor:
        """(B, T): `beta * (log pi_phi - log pi_ref)` of each token, 0 where masked."""
        out = torch.zeros(rows.mask.shape, device=rows.mask.device)
        for part in self._passes(rows):
            chosen = rows_of(rows, part)
            ratio = self.model.logprobs(chosen)[0] - self.model.reference_logprobs(chosen)
            out[part] = self.settings.beta * ratio
        return out

    def learn(self, rows: Padded, outcomes: Tensor) -> dict[str, float]:
        """One optimizer step on the batch's cross-entropy.

        Returns:
            `implicit_loss`; `implicit_right`, the share of completions whose summed reward has the sign of their outcome.

        Raises:
            CheckpointError: the gradient is not finite.
        """
        self.optimizer.zero_grad(set_to_none=True)
        count, total, right = len(outcomes), 0.0, 0
        for part in self._passes(rows):
            chosen = rows_of(rows, part)
            ratio = self.model.logprobs(chosen)[0] - self.model.reference_logprobs(chosen)
            logits = self.settings.beta * ratio.sum(-1)
            loss = F.binary_cross_entropy_with_logits(logits, outcomes[part].float(), reduction="sum") / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
            right += int(((logits > 0) == (outcomes[part] > 0.5)).sum())
        norm = torch.nn.utils.clip_grad_norm_(self.model.trained(), self.settings.clip)
        if not torch.isfinite(norm):
            raise CheckpointError(f"the implicit PRM's gradient is {norm.item()}: lower its learning rate")
        self.optimizer.step()
        return {"implicit_loss": total, "implicit_right": right / count}

    def _passes(self, rows: Padded) -> list[Tensor]:
        every = torch.arange(len(rows.mask), device=rows.mask.device)
        return list(passes(rows, every, self._token_budget))

    def state(self) -> dict[str, Any]:
        """Weights and optimizer, and what the weights began as."""
        return {
            "identity": self._began,
            "weights": [weight.detach() for weight in self.model.trained()],
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            UsageError: the state is of an implicit PRM that began with another model.
        """
        if state["identity"] != self._began:
            raise UsageError(
                f"the saved implicit PRM began with {state['identity']}, and this one with {self._began}; put the former model back, or start "
                "in another folder"
            )
        with torch.no_grad():
            for weight, saved in zip(self.model.trained(), state["weights"], strict=True):
                weight.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
