"""The loop: optimizer steps over packed trees, resumed where they were, measured on held-out problems.

The loss of a step is the sum over its labels divided by their true number, over all forward passes and processes of the step: neither
how the rows are cut into passes nor how many processes there are moves it.
"""

from __future__ import annotations

import ctypes
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.models.checkpoint import Tensors, adapter_config
from stepmark.models.files import local_folder, present
from stepmark.models.places import BUILT_IN, default_folder, find_checkpoint
from stepmark.models.spec import SPEC_FILE, ScoringSpec, read_spec
from stepmark.training.examples import OUT_OF_TIME, Dropped, Example
from stepmark.training.measure import Graded, Measure, measure
from stepmark.training.net import Net
from stepmark.training.objectives.base import Objective
from stepmark.training.packing import TrainingItem, batches
from stepmark.training.parallel import (
    ProcessGroup,
    check_launched,
    gathered,
    local,
    norm_of,
    pass_of_nothing,
    shard,
    whole_net,
)
from stepmark.training.saving import head_names
from stepmark.training.settings import Training
from stepmark.training.state import load, save

ENOUGH = 30
"""Optimizer steps an epoch, at least: with fewer, the warm-up and the decay leave hardly one at the peak rate."""
_STEPS, _EPOCHS = 120, (2, 6)
"""Optimizer steps of a run where the user names no epochs, and the fewest and most epochs that are taken for it."""


class Pace:
    """The learning rate over a run, and the time that is left. With a time limit all processes go by the clock of the first."""

    def __init__(self, settings: Training, workers: ProcessGroup) -> None:
        self.settings, self._workers = settings, workers
        self.seconds = 0.0
        """Spent on optimizer steps, before an interruption too; measurements are not counted."""

    def spend(self, seconds: float) -> None:
        """Count the time of one step."""
        if self.settings.minutes is not None:
            (seconds,) = self._workers.sum(seconds if self._workers.first else 0.0)
        self.seconds += seconds

    @property
    def share(self) -> float:
        """How much of the time limit is spent; 0 without one."""
        return 0.0 if self.settings.minutes is None else self.seconds / (60 * self.settings.minutes)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 1."""
        return self.settings.peak * schedule(step, steps, self.settings.warmup, least=self.share)

    def left(self, by_steps: float) -> float:
        """Seconds left, where the steps that are left would take `by_steps`."""
        minutes = self.settings.minutes
        return by_steps if minutes is None else max(0.0, min(by_steps, 60 * minutes - self.seconds))


def rate_groups(names: Iterable[str], masters: Sequence[Tensor], head_rate: float) -> list[dict[str, Any]]:
    """Groups for the optimizer, each with its `share` of the learning rate: what is named "head." and the rest."""
    groups: dict[float, list[Tensor]] = {}
    for name, master in zip(names, masters, strict=True):
        groups.setdefault(head_rate if name.startswith("head.") else 1.0, []).append(master)
    return [{"params": group, "share": share} for share, group in groups.items()]


def schedule(step: int, steps: int, warmup: float, *, least: float = 0.0) -> float:
    """Share of the peak rate at a step, counted from 1: linear warm-up, cosine decay to a tenth. The decay is at least `least` of its way: a share
    of time, where that ends sooner than the steps.
    """
    warm = max(1, round(steps * warmup))
    if step <= warm:
        return step / warm
    far = min(1.0, max((step - warm) / max(1, steps - warm), least))
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * far))


def few_steps(steps: int, settings: Training) -> str | None:
    """A warning for a run with too few optimizer steps, with the setting to change; None for a run with enough."""
    if steps >= 2 * ENOUGH:
        return None
    each = steps / (settings.epochs or _EPOCHS[1])
    lower = ""
    for name, value in (("rows_per_step", settings.rows_per_step), ("token_budget", settings.token_budget)):
        fewer = 1 if value is None else max(1, int(value * each / ENOUGH))
        if value is not None and fewer < value:
            lower = f"lower `{name}` from {value:,} to about {fewer:,}, "
            break
    return f"{steps:,} optimizer steps are few to learn from: {lower}raise `epochs`, or label more rows"


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees: glibc gives large pieces back, and zeroes them anew at 5 to 10 % of a small model's step. False
    where the C library is another.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trim_threshold, mmap_threshold = -1, -3  # of glibc's malloc.h
    # Older versions take no more than 32 MB for the second.
    large = bool(mallopt(mmap_threshold, 2**30)) or bool(mallopt(mmap_threshold, 2**25))
    return bool(mallopt(trim_threshold, 2**31 - 1)) and large


_NAME = re.compile(r"(?:base_model\.model\.)?(?:model\.)?(.+\.lora_[AB])(?:\.\w+)?\.weight")


def warm_start(name: str, masters: Mapping[str, Tensor], net: Net) -> None:
    """Put an adapter's matrices and its head where training begins, in place.

    An adapter of a lower rank fills the first rows of A and columns of B; the rest of A stays as drawn and of B zero. A scale of its own
    (alpha / rank) goes into B.

    Args:
        name: "default" for the PRM that ships, a folder, or a hub name.
        masters: what is trained, by name (`Net.named_parameters`), as it was drawn.
    """
    folder = default_folder() if name == "default" else find_checkpoint(name)
    config = adapter_config(folder)
    _same_base(folder, config.get("base_model_name_or_path"), net)
    if present(folder / SPEC_FILE) and isinstance(net.spec, ScoringSpec):
        spec = read_spec(folder / SPEC_FILE)
        if spec.layout != net.spec.layout:
            raise UsageError(
                f"`warm_start` {name}: it reads solutions otherwise than this run would ({spec.layout!r} and {net.spec.layout!r}); "
                "take the same `mark` and `layout`"
            )
    rank = int(config["r"])
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    scale /= net.weights.alpha / net.weights.lora_rank
    places = {match[1]: tensor for key, tensor in masters.items() if (match := _NAME.fullmatch(key))}
    tensors = Tensors(folder)
    filled = 0
    with torch.no_grad():
        for key in sorted(tensors.names):
            if (match := _NAME.fullmatch(key)) is None:
                continue
            place, given = places.get(match[1]), tensors.get(key)
            if place is None:
                raise CheckpointError(
                    f"{folder}: the adapter changes {match[1]}, which is not trained here; lower `frozen_layers`"
                )
            if given.shape[1] > place.shape[1] or given.shape[0] > place.shape[0]:
                raise CheckpointError(
                    f"{folder}: {match[1]} has the shape {tuple(given.shape)}, which {tuple(place.shape)} cannot hold; `lora_rank` "
                    f"must be at least {rank}, and the base the same"
                )
            if match[1].endswith("B"):
                place.zero_()[:, :rank] = given.to(place) * scale
            else:
                place[: len(given)] = given.to(place)
            filled += 1
        if not filled:
            raise CheckpointError(f"{folder} holds no LoRA weights")
        for inner, outer in head_names(net).items():
            if (key := f"base_model.model.{outer}") not in tensors.names:
                continue
            given, place = tensors.get(key), masters[f"head.{inner}"]
            if given.shape != place.shape:
                raise CheckpointError(
                    f"{folder}: its head's {outer} has the shape {tuple(given.shape)}, and this objective's {tuple(place.shape)}; "
                    "train with the objective that it was trained with"
                )
            place.copy_(given)


def _same_base(folder: Path, named: object, net: Net) -> None:
    if not isinstance(named, str) or not (named in BUILT_IN or local_folder(named)):
        return  # a hub name, or a folder of another machine: shapes are all that can be compared
    if find_checkpoint(named).resolve() != net.base.resolve():
        raise CheckpointError(f"{folder} is an adapter over {named}, and the base here is {net.base}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerProgress:
    """Figures of one optimizer step."""

    step: int
    steps: int
    loss: float
    """A label, over this step."""
    labels: float
    gradient: float
    """Norm before clipping."""
    learning_rate: float
    tokens_per_second: float
    rows_per_second: float
    seconds_left: float
    """At the speed so far, without evaluations."""
    held_out: Measure | None = None
    """Measured after this step."""


class Trainer:
    """A network, an objective, and the loop.

    Args:
        dropped: takes note of rows that cannot be read.
        workers: this process among its like; None: as launched.
        run: everything that decides the result, as plain data: a saved state is continued with the same only.
    """

    def __init__(
        self,
        net: Net,
        objective: Objective,
        settings: Training,
        state: Path,
        *,
        dropped: Dropped | None = None,
        workers: ProcessGroup | None = None,
        run: Mapping[str, Any] | None = None,
    ) -> None:
        self.net, self.objective, self.settings, self.folder = net, objective, settings, state
        self.dropped = Dropped() if dropped is None else dropped
        self.workers = ProcessGroup(net.device) if workers is None else workers
        self._run = {} if run is None else run
        torch.manual_seed(settings.seed)
        net.set_head(objective.head(net))
        named = net.named_parameters
        self._take(named)
        if settings.warm_start is not None:
            warm_start(settings.warm_start, dict(zip(named, self.masters, strict=True)), net)
            self._publish()
        if net.weights.shard:
            check_launched()
            del self.masters  # or the whole of them would be held beside the parts
            shard(net, self.workers)
            named = net.named_parameters
            self._take(named)
        self._parts = [net.weights.shard and not name.startswith("head.") for name in named]
        self.optimizer = torch.optim.AdamW(
            rate_groups(named, self.masters, settings.head_rate),
            lr=settings.peak,
            betas=(0.9, 0.98),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.done = 0
        self.best: tuple[float, list[torch.Tensor]] | None = None
        self._measured = False
        self.waited = 0
        self.pace = Pace(settings, self.workers)

    def _take(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        self.parameters = list(named.values())
        # Small updates vanish in bfloat16, so they are made in float32 and copied back.
        self.masters: list[torch.Tensor] = [
            p if p.dtype == torch.float32 else p.float().clone()
            for p in (local(parameter.detach()) for parameter in self.parameters)
        ]

    def whole(self) -> Net:
        """The network with all of its weights, to be written: itself, or in the first process a copy; all processes call this."""
        if not self.net.weights.shard:
            return self.net
        trained = gathered(self.net, self.workers)
        return whole_net(self.net, self.objective, trained) if self.workers.first else self.net

    def epoch(self, groups: Sequence[Sequence[Example]], number: int) -> list[list[list[TrainingItem]]]:
        """The steps of one epoch: the same for the same seed, so that a run can resume inside it."""
        rng = random.Random(self.settings.seed * 1000 + number)
        shuffled = list(groups)
        rng.shuffle(shuffled)
        # Each epoch reads the same rows again: what cannot be read is counted in the first.
        dropped = self.dropped if number == 0 else Dropped()
        return self._steps(list(self._items(shuffled, dropped, every_step=False)), rng)

    def _steps(self, items: Sequence[TrainingItem], rng: random.Random) -> list[list[list[TrainingItem]]]:
        """Optimizer steps, at least `ENOUGH` of a small set where no setting says how large they are: forward passes of fewer trees."""
        settings = self.settings
        budget, state = settings.pass_tokens, rng.getstate()
        while True:
            rng.setstate(state)
            steps = batches(items, budget=budget, rng=rng, rows=settings.rows_per_step)
            chosen = settings.token_budget is not None or settings.rows_per_step is not None
            if chosen or len(steps) >= min(ENOUGH, len(items)):
                return steps
            budget = budget * len(steps) // (ENOUGH + 1)

    def _items(
        self, groups: Sequence[Sequence[Example]], dropped: Dropped, *, every_step: bool
    ) -> Iterator[TrainingItem]:
        for group in groups:
            yield from self.objective.items(
                group,
                self.net,
                budget=self.settings.pass_tokens,
                dropped=dropped,
                every_step=every_step,
            )

    def run(
        self,
        groups: Sequence[Sequence[Example]],
        held_out: Sequence[Sequence[Example]] = (),
        *,
        report: Callable[[TrainerProgress], None],
    ) -> None:
        """Training, resuming from the saved state of an interrupted run if there is one; `report` gets every step's figures, in the first process.

        Raises:
            UsageError: nothing to train on, patience without held-out problems, or the state is of another run.
            CheckpointError: the loss or the gradient is not finite; the state before it is kept.
        """
        if self.settings.patience is not None and not held_out:
            raise UsageError(
                "patience watches held-out problems, and none are held out; leave it out, or hold some out"
            )
        plan = [self.epoch(groups, 0)]
        fewest, most = _EPOCHS
        enough = min(most, max(fewest, math.ceil(_STEPS / max(1, len(plan[0])))))
        plan += [self.epoch(groups, n) for n in range(1, self.settings.epochs or enough)]
        steps = [step for epoch in plan for step in epoch]
        if not steps:
            raise UsageError(
                "there is nothing to train on: no row that can be read has what the objective fits. "
                + " ".join(self.dropped.lines())
            )
        self._resume()
        due = self._due(len(steps)) if held_out else set()
        if self.net.device == "cpu":
            keep_freed_memory()
        began, tokens, rows, first = time.monotonic(), 0, 0, self.done
        for number, step in enumerate(steps, start=1):
            if number <= self.done or self._patient_no_more():
                continue
            if self.pace.share >= 1:
                remaining = len(steps) - self.done
                self.dropped.note(OUT_OF_TIME, f"step {number}", remaining)
                break
            rate, at = self.pace.rate(number, len(steps)), time.monotonic()
            loss, labels, norm = self._step(step, rate)
            self.pace.spend(time.monotonic() - at)
            self.done = number
            tokens += sum(len(item.tree) for part in step for item in part)
            rows += sum(len(item.rows) for part in step for item in part)
            seconds = time.monotonic() - began
            measured = None
            if number in due:
                measured = self.measured(held_out)
                self._watch(measured.loss)
                began += time.monotonic() - began - seconds
            if self.workers.first:
                report(
                    TrainerProgress(
                        step=number,
                        steps=len(steps),
                        loss=loss / labels,
                        labels=labels,
                        gradient=norm,
                        learning_rate=rate,
                        tokens_per_second=tokens / seconds,
                        rows_per_second=rows / seconds,
                        seconds_left=self.pace.left((len(steps) - number) * seconds / (number - first)),
                        held_out=measured,
                    )
                )
            if number % self.settings.save_every == 0 or number in due or number == len(steps):
                self._save()
        if self.settings.patience is not None and self.best is not None:
            for master, best in zip(self.masters, self.best[1], strict=True):
                master.copy_(best)
            self._publish()

    def _step(self, parts: Sequence[Sequence[TrainingItem]], rate: float) -> tuple[float, float, float]:
        """One optimizer step: sum of losses, labels, and the norm of the gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.net.train(True)
        loss, labels = 0.0, 0.0
        # Passes add up in float32: in bfloat16 a sum soon takes no more of them.
        sums: list[torch.Tensor | None] = [None] * len(self.parameters)
        for part in self.workers.passes(parts, as_many=self.net.weights.shard):
            if part is None:
                pass_of_nothing(self.net, parts[0][0]).backward()  # type: ignore[no-untyped-call]
            else:
                fitted = self.objective.fit(self.net, part)
                fitted.loss.backward()  # type: ignore[no-untyped-call]
                loss += fitted.loss.item()
                labels += fitted.labels
            for at, parameter in enumerate(self.parameters):
                if parameter.grad is not None:
                    before = sums[at]
                    gradient = local(parameter.grad).float()
                    sums[at] = gradient if before is None else before.add_(gradient)
                parameter.grad = None
        gradients = [
            torch.zeros_like(m) if total is None else total
            for m, total in zip(self.masters, sums, strict=True)
        ]
        # Those of parts are added up already.
        self.workers.add([g for g, part in zip(gradients, self._parts, strict=True) if not part])
        loss, labels = self.workers.sum(loss, labels)
        norm = norm_of(gradients, self._parts, self.workers) / max(labels, 1e-12)
        for what, value in (("loss", loss), ("gradient", norm)):
            if not math.isfinite(value):
                raise CheckpointError(
                    f"the {what} of step {self.done + 1} is {value}; lower the learning rate, or compute in float32 (`dtype` float32)"
                )
        # One pass over them divides by the labels and clips.
        clipped = min(1.0, self.settings.clip / (norm + 1e-6)) / max(labels, 1e-12)
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient.mul_(clipped)
        self.optimizer.step()
        for master in self.masters:
            master.grad = None
        self._publish()
        return loss, labels, norm

    def measured(self, groups: Sequence[Sequence[Example]]) -> Measure:
        """Figures of the network as it is on held-out problems; the same in every process."""
        graded, loss, labels = self.graded(groups)
        return self.measure(graded, loss, labels)

    def measure(self, graded: Sequence[Graded], loss: float, labels: float) -> Measure:
        """Figures of what `graded` gave."""
        threshold, outcomes = self.net.threshold, self.objective.outcomes
        return measure(graded, loss=loss, labels=labels, threshold=threshold, outcomes=outcomes)

    def graded(self, groups: Sequence[Sequence[Example]]) -> tuple[list[Graded], float, float]:
        """Held-out examples with the scores of every step, the sum of losses, the sum of weights."""
        self.net.train(False)
        dropped = Dropped() if self._measured else self.dropped
        self._measured = True
        items = list(self._items(groups, dropped, every_step=True))
        parts = [p for s in batches(items, budget=self.settings.pass_tokens, rng=random.Random(0)) for p in s]
        graded: list[Graded] = []
        loss, labels = 0.0, 0.0
        sharded = self.net.weights.shard
        for part in self.workers.passes(parts, as_many=sharded, whole=True):
            # What is put together of shared weights outlives the pass, and must not be a tensor of inference mode.
            with torch.no_grad() if sharded else torch.inference_mode():
                if part is None:
                    pass_of_nothing(self.net, parts[0][0])
                    continue
                fitted = self.objective.fit(self.net, part)
            loss += float(fitted.loss)
            labels += fitted.labels
            at = 0
            for item in part:
                for row in item.rows:
                    scores = tuple(None if r is None else fitted.scores[at + r] for r in row.reads)
                    graded.append(Graded(example=row.example, scores=scores))
                at += len(item.reads)
        loss, labels = self.workers.sum(loss, labels)
        return self.workers.gather(graded), loss, labels

    def _due(self, steps: int) -> set[int]:
        count = max(1, min(self.settings.evaluations, steps))
        return {round(steps * (i + 1) / count) for i in range(count)}

    def _watch(self, loss: float) -> None:
        if self.settings.patience is None:
            return
        if self.best is None or loss < self.best[0]:
            self.best, self.waited = (loss, [m.detach().clone() for m in self.masters]), 0
        else:
            self.waited += 1

    def _patient_no_more(self) -> bool:
        return self.settings.patience is not None and self.waited >= self.settings.patience

    def _publish(self) -> None:
        """Copy the float32 masters into the parameters that compute."""
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters, strict=True):
                if parameter.dtype != torch.float32:
                    parameter.copy_(master)

    def _save(self) -> None:
        best = None if self.best is None else {"loss": self.best[0], "parameters": self.best[1]}
        state = {
            "done": self.done,
            "parameters": self.masters,
            "optimizer": self.optimizer.state_dict(),
            "best": best,
            "waited": self.waited,
            "seconds": self.pace.seconds,
        }
        save(self.folder, state, self.workers, run=self._run, parts=self.net.weights.shard)

    def _resume(self) -> None:
        parts = self.net.weights.shard
        state = load(self.folder, self.workers, run=self._run, parts=parts, device=self.net.device)
        if state is None:
            return
        with torch.no_grad():
            for master, saved in zip(self.masters, state["parameters"], strict=True):
                master.copy_(saved)
        self._publish()
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self.waited, self.pace.seconds = state["done"], state["waited"], state["seconds"]
        if state["best"] is not None:
            self.best = (state["best"]["loss"], state["best"]["parameters"])
