"""The loop: optimizer steps over packed trees, resumed where they were, watched on held-out problems.

The loss of a step is the sum over its labels divided by their true number, over all forward passes and processes of the step: neither
how the rows are cut into passes nor how many processes there are moves it.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepmark.errors import CheckpointError, UsageError
from stepmark.training.examples import Dropped, Example, coarsen, problem_of
from stepmark.training.items import Item, batches
from stepmark.training.measure import Graded, Measure, measure
from stepmark.training.memory import keep_freed_memory
from stepmark.training.net import Net
from stepmark.training.objectives.base import Objective
from stepmark.training.pace import Pace, rate_groups, schedule
from stepmark.training.parallel import Workers
from stepmark.training.settings import Train
from stepmark.training.warm_start import warm_start

__all__ = ["Progress", "Train", "Trainer", "schedule"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What is told after each optimizer step."""

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
        net: the network; its head is set here.
        objective: what is fitted.
        settings: see `Train`.
        state: folder for the state while running.
        dropped: takes note of rows that cannot be read.
        workers: this process among its like; None: as launched.
    """

    def __init__(
        self,
        net: Net,
        objective: Objective,
        settings: Train,
        state: Path,
        *,
        dropped: Dropped | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.net, self.objective, self.settings, self.folder = net, objective, settings, state
        self.dropped = Dropped() if dropped is None else dropped
        self.workers = Workers.joined(net.device) if workers is None else workers
        torch.manual_seed(settings.seed)
        net.set_head(objective.head(net))
        named = net.named_parameters
        self.parameters = list(named.values())
        # Small updates vanish in bfloat16, so they are made in float32 and copied back.
        self.masters = [
            p.data if p.dtype == torch.float32 else p.detach().float().clone() for p in self.parameters
        ]
        if settings.warm_start is not None:
            warm_start(settings.warm_start, dict(zip(named, self.masters, strict=True)), net)
            self._publish()
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

    def epoch(self, groups: Sequence[Sequence[Example]], number: int) -> list[list[list[Item]]]:
        """The steps of one epoch: the same for the same seed, so that a run can resume inside it."""
        settings = self.settings
        seed = settings.seed * 1000 + number
        rng = random.Random(seed)
        sources: dict[str | None, list[Sequence[Example]]] = {}
        for group in groups:
            sources.setdefault(problem_of(group).source, []).append(group)
        # Each epoch reads the same rows again: what cannot be read is counted in the first.
        dropped = self.dropped if number == 0 else Dropped()
        limit = math.inf if settings.limit_tokens is None else settings.limit_tokens / len(sources)
        items: list[Item] = []
        for members in sources.values():
            rng.shuffle(members)
            size = 0
            for item in self._items(members, seed, dropped, every_step=False):
                if size >= limit:
                    break
                items.append(item)
                size += len(item.tree)
        return batches(items, budget=settings.token_budget, rng=rng, rows=settings.rows_per_step)

    def _items(
        self, groups: Sequence[Sequence[Example]], seed: int, dropped: Dropped, *, every_step: bool
    ) -> Iterator[Item]:
        for group in groups:
            coarse = (
                (coarsen(e, self.settings.coarsen, seed) for e in group) if self.settings.coarsen else group
            )
            yield from self.objective.items(
                list(coarse),
                self.net,
                budget=self.settings.token_budget,
                dropped=dropped,
                every_step=every_step,
            )

    def run(
        self,
        groups: Sequence[Sequence[Example]],
        held_out: Sequence[Sequence[Example]] = (),
        *,
        report: Callable[[Progress], None],
    ) -> None:
        """Train, resuming from the saved state of an interrupted run if there is one.

        Args:
            groups: examples by problem.
            held_out: others, measured on the way.
            report: receives the figures of every step (in the first process only).

        Raises:
            UsageError: nothing to train on, patience without held-out problems, or the state is of a run with other settings,
                another base or other rows.
            CheckpointError: the loss or the gradient is not finite; the state before it is kept.
        """
        if self.settings.patience is not None and not held_out:
            raise UsageError(
                "patience watches held-out problems, and none are held out; leave it out, or hold some out"
            )
        plan = [self.epoch(groups, n) for n in range(self.settings.epochs)]
        steps = [step for epoch in plan for step in epoch]
        if not steps:
            raise UsageError(
                "there is nothing to train on: no row that can be read has what the objective fits. "
                + " ".join(self.dropped.lines())
            )
        run = self._identity(steps, held_out if self.settings.patience is not None else ())
        self._resume(run)
        due = self._due(len(steps)) if held_out else set()
        if self.net.device == "cpu":
            keep_freed_memory()
        began, tokens, rows, first = time.monotonic(), 0, 0, self.done
        for number, step in enumerate(steps, start=1):
            if number <= self.done or self._patient_no_more():
                continue
            if self.pace.share >= 1:
                left = len(steps) - self.done
                self.dropped.note(
                    "optimizer steps that the time limit left no time for", f"step {number}", left
                )
                break
            rate, at = self.pace.rate(number, len(steps)), time.monotonic()
            loss, labels, norm = self._step(step, rate)
            self.pace.spend(time.monotonic() - at)
            self.done = number
            tokens += sum(len(item.tree) for part in step for item in part)
            rows += sum(len(item.rows) for part in step for item in part)
            seconds = time.monotonic() - began
            found = None
            if number in due:
                found = self.measured(held_out)
                self._watch(found.loss)
                began += time.monotonic() - began - seconds
            if self.workers.first:
                report(
                    Progress(
                        step=number,
                        steps=len(steps),
                        loss=loss / labels,
                        labels=labels,
                        gradient=norm,
                        learning_rate=rate,
                        tokens_per_second=tokens / seconds,
                        rows_per_second=rows / seconds,
                        seconds_left=self.pace.left((len(steps) - number) * seconds / (number - first)),
                        held_out=found,
                    )
                )
            if number % self.settings.save_every == 0 or number in due:
                self._save(run)
        if self.settings.patience is not None and self.best is not None:
            for master, kept in zip(self.masters, self.best[1], strict=True):
                master.copy_(kept)
            self._publish()

    def _step(self, parts: Sequence[Sequence[Item]], rate: float) -> tuple[float, float, float]:
        """One optimizer step: sum of losses, labels, and the norm of the gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.net.train(True)
        loss, labels = 0.0, 0.0
        # Passes add up in float32: in bfloat16 a sum soon takes no more of them.
        sums: list[torch.Tensor | None] = [None] * len(self.parameters)
        for part in (
            self.workers.share(parts) if self.workers.size > 1 and len(parts) > 1 else self._own(parts)
        ):
            fitted = self.objective.fit(self.net, part)
            fitted.loss.backward()  # type: ignore[no-untyped-call]
            loss += fitted.loss.item()
            labels += fitted.labels
            for at, parameter in enumerate(self.parameters):
                if parameter.grad is not None:
                    before = sums[at]
                    gradient = parameter.grad.float()
                    sums[at] = gradient if before is None else before.add_(gradient)
                parameter.grad = None
        gradients = [
            torch.zeros_like(m) if total is None else total
            for m, total in zip(self.masters, sums, strict=True)
        ]
        self.workers.add(gradients)
        loss, labels = self.workers.sum(loss, labels)
        if not math.isfinite(loss):
            raise CheckpointError(
                f"the loss of step {self.done + 1} is {loss}; lower the learning rate, or compute in float32 (--dtype float32)"
            )
        norm = float(torch.nn.utils.get_total_norm(gradients)) / max(labels, 1e-12)
        if not math.isfinite(norm):
            raise CheckpointError(
                f"the gradient of step {self.done + 1} is {norm}; lower the learning rate, or compute in float32 (--dtype float32)"
            )
        # One pass over them divides by the labels and clips.
        clipped = min(1.0, self.settings.clip / (norm + 1e-6)) / max(labels, 1e-12)
        torch._foreach_mul_(gradients, clipped)
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient
        self.optimizer.step()
        for master in self.masters:
            master.grad = None
        self._publish()
        return loss, labels, norm

    def _own(self, parts: Sequence[Sequence[Item]]) -> list[list[Item]]:
        """A step of one pass is shared by trees; a process may be left without any."""
        if self.workers.size == 1:
            return [list(part) for part in parts]
        return [own for part in parts if (own := self.workers.share(part))]

    def measured(self, groups: Sequence[Sequence[Example]]) -> Measure:
        """Figures of the network as it is on held-out problems; the same in every process."""
        graded, loss, labels = self.graded(groups)
        return self.measure(graded, loss, labels)

    def measure(self, graded: Sequence[Graded], loss: float, labels: float) -> Measure:
        """Figures of what `graded` gave."""
        return measure(
            graded,
            loss=loss,
            labels=labels,
            threshold=self.net.threshold,
            outcomes=self.objective.outcomes,
        )

    def graded(self, groups: Sequence[Sequence[Example]]) -> tuple[list[Graded], float, float]:
        """Held-out examples with the scores of every step, the sum of losses, the sum of weights."""
        self.net.train(False)
        dropped = Dropped() if self._measured else self.dropped
        self._measured = True
        items = list(self._items(groups, self.settings.seed * 1000 - 1, dropped, every_step=True))
        parts = [
            p for s in batches(items, budget=self.settings.token_budget, rng=random.Random(0)) for p in s
        ]
        own: list[Graded] = []
        loss, labels = 0.0, 0.0
        for part in self.workers.share(parts):
            with torch.inference_mode():
                fitted = self.objective.fit(self.net, part)
            loss += float(fitted.loss)
            labels += fitted.labels
            at = 0
            for item in part:
                for row in item.rows:
                    own.append(
                        Graded(
                            example=row.example,
                            scores=tuple(None if r is None else fitted.scores[at + r] for r in row.reads),
                        )
                    )
                at += len(item.reads)
        loss, labels = self.workers.sum(loss, labels)
        return [one for some in self.workers.gather(own) for one in some], loss, labels

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

    def _state(self) -> Path:
        return self.folder / "state.pt"

    def _identity(
        self, steps: Sequence[Sequence[Sequence[Item]]], held_out: Sequence[Sequence[Example]]
    ) -> str:
        """What a run is told by: a state goes on with the same batches or with none.

        Held-out examples count where they decide when to stop.
        """
        rows = hashlib.sha256()
        for item in (item for step in steps for part in step for item in part):
            for numbers in (item.tree.ids, item.tree.parents, item.reads, item.weights):
                rows.update(np.asarray(numbers, dtype=np.float64).tobytes())
            rows.update(repr(item.targets).encode())
            rows.update(repr([row.example.outcome for row in item.rows]).encode())
        facts = {
            "settings": asdict(self.settings),
            "objective": repr(self.objective),
            "base": str(self.net.base),
            "rows": rows.hexdigest(),
            "held_out": hashlib.sha256(
                repr([(e.solution.texts, e.targets, e.outcome) for group in held_out for e in group]).encode()
            ).hexdigest(),
        }
        return json.dumps(facts, sort_keys=True)

    def _save(self, run: str) -> None:
        if not self.workers.first:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self._state().with_suffix(".part")
        torch.save(
            {
                "run": run,
                "done": self.done,
                "parameters": self.masters,
                "optimizer": self.optimizer.state_dict(),
                "best": None if self.best is None else {"loss": self.best[0], "parameters": self.best[1]},
                "waited": self.waited,
                "seconds": self.pace.seconds,
            },
            temporary,
        )
        temporary.rename(self._state())

    def _resume(self, run: str) -> None:
        if not self._state().is_file():
            return
        state: dict[str, Any] = torch.load(self._state(), weights_only=True, map_location=self.net.device)
        if state.get("run") != run:
            raise UsageError(
                f"{self._state()} is of a run with other settings, another base or other rows; delete it or choose "
                "another folder"
            )
        with torch.no_grad():
            for master, saved in zip(self.masters, state["parameters"], strict=True):
                master.copy_(saved)
        self._publish()
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self.waited, self.pace.seconds = state["done"], state["waited"], state["seconds"]
        if state["best"] is not None:
            self.best = (state["best"]["loss"], state["best"]["parameters"])
