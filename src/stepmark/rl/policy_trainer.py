"""The policy's trainer: sample groups, verify, score each step, assign credit, take a clipped step; again.

One update is `PolicyTrainer._update`, which reads like the papers' algorithm. Everything random is a function of the seed and the update's number, so a run
that was killed goes on from its last saved state to the same weights.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from stepmark.backends import Completions
from stepmark.errors import InputError, UsageError
from stepmark.models.encoding import PromptEncoder
from stepmark.models.prm import PRM
from stepmark.records import Problem
from stepmark.rl.actor import Actor, Learner, Padded, padded, passes, read_rows, rows_of
from stepmark.rl.credit import Assigned, Credit
from stepmark.rl.credit.advantages import Estimator, kl, kl_reward
from stepmark.rl.prime import OnlineImplicit
from stepmark.rl.rewarding import RewardedCompletion, batch_of, figures, judge, scored
from stepmark.rl.settings import PolicyTraining
from stepmark.sampling import Sampling, prompt_of
from stepmark.training.state import write_tensors
from stepmark.verifiers.base import Verifier

STATE_FILE = "state.pt"
Average = Literal["token", "sequence", "constant"]


def token_weights(mask: Tensor, average: Average, *, max_tokens: int) -> Tensor:
    """(B, T): each token's share in the loss of the whole batch, so that parts of the batch can be added up in any cut.

    `token`: one over all tokens; `sequence`: one over completions with tokens, times their lengths; `constant`: one over completions times
    `max_tokens`, the longest completion that there could be.
    """
    counted = mask.float()
    if average == "token":
        return counted / counted.sum().clamp_min(1)
    if average == "sequence":
        rows = (counted.sum(-1) > 0).sum().clamp_min(1)
        return counted / counted.sum(-1, keepdim=True).clamp_min(1) / rows
    return counted / (len(mask) * max_tokens)


def share_of(weights: Tensor, chosen: Tensor, average: Average) -> Tensor:
    """Scalar, above 0: what the `token_weights` of some rows are divided by, so that an optimizer step on them is of the size of one on all.

    By `constant` it is their share of the rows: their share of the tokens would make a mean over tokens of it again.
    """
    if average == "constant":
        return weights.new_tensor(len(chosen) / len(weights))
    return weights[chosen].sum().clamp_min(1e-12)


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """The loss and what is watched beside it, all without the parts of other rows: they add up."""

    loss: Tensor
    """Scalar, to be minimised."""
    clipped: Tensor
    """Weighted share of tokens of which the clipping took the gradient."""
    divergence: Tensor | None
    """Weighted k3 estimate of the distance from the reference; None without one."""


def policy_loss(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    reference: Tensor | None = None,
    kl_loss: Estimator | None = None,
    kl_weight: float = 0.0,
) -> PolicyLoss:
    """PPO's clipped objective a token (Schulman et al. 2017, equation 7), negated; plus `kl_weight` times an estimate of the divergence.

    All are (B, T): log-probabilities of the policy now, with gradient, when the completions were written and of the reference, advantages,
    and weights from `token_weights`. A ratio counts from 1 - `clip_low` to 1 + `clip_high`. `kl_loss` None: no divergence in the loss.
    """
    weighted = weights > 0
    delta = torch.where(weighted, logprobs - old, 0.0)
    ratio = delta.exp()
    plain = ratio * advantages
    cut = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = -(torch.minimum(plain, cut) * weights).sum()
    divergence = None
    if reference is not None:
        divergence = (kl(logprobs.detach(), reference, weighted, estimator="k3") * weights).sum()
        if kl_loss is not None and kl_weight:
            loss = loss + kl_weight * (kl(logprobs, reference, weighted, estimator=kl_loss) * weights).sum()
    return PolicyLoss(loss=loss, clipped=((cut < plain) * weights).sum().detach(), divergence=divergence)


def value_loss(values: Tensor, returns: Tensor, weights: Tensor) -> Tensor:
    """Scalar: half the weighted mean square between a critic's values and the returns."""
    return 0.5 * ((values - returns) ** 2 * weights).sum()


def seed_of(settings: PolicyTraining, what: str, number: int) -> int:
    """The seed of one random choice of a run: the same for the same choice, another for every other."""
    text = f"{settings.seed} {what} {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def collect(
    actor: Actor,
    problems: Sequence[Problem],
    verifier: Verifier,
    settings: PolicyTraining,
    *,
    group: int,
    seed: int,
) -> list[RewardedCompletion]:
    """`group` completions of each problem, verified and cut into steps."""
    how = Sampling(prompt=settings.prompt, instruction=settings.instruction)
    prompts = [prompt_of(problem, how) for problem in problems]
    requests = [
        Completions(
            prompt=prompt,
            n=group,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=seed,
            # The same prompt again would else be answered with the same samples again.
            first=group * prompts[:place].count(prompt),
        )
        for place, prompt in enumerate(prompts)
    ]
    samples = []
    for problem, reply in zip(problems, actor.write(requests), strict=True):
        if isinstance(reply, InputError):
            raise reply.at(f"problem {problem.id or problem.text[:40]!r}")
        samples.append(reply)
    return judge(problems, samples, verifier, settings, PromptEncoder(actor.tokenizer, actor.name).text)


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one update did."""

    number: int
    """From 1."""
    rollouts: int
    """Completions written for training so far."""
    figures: dict[str, float | None]
    """By name: `accuracy` of the samples, `reward` the mean step score, `loss`, `gradient`, `clipped`, `kl`, `steps` and `tokens` a completion, shares `cut`,
    `unparsed`, `refuted`, `unscored`, `blank` and `flat` (groups all right or all wrong, which teach nothing)."""


@dataclass(frozen=True, kw_only=True)
class PolicyEvaluation:
    """Held-out problems, as the policy solves them now."""

    update: int
    """Updates before it."""
    rollouts: int
    rated: tuple[RewardedCompletion, ...]
    """The completions, scored when there is a PRM."""


class Listener(Protocol):
    """Told of everything that a run does: history, display, monitor."""

    def updated(self, update: Update) -> None:
        """An update is done."""

    def evaluated(self, evaluation: PolicyEvaluation) -> bool:
        """The held-out problems were solved. True stops the run after its state is saved."""


@final
class PolicyTrainer:
    """Trains a policy.

    Args:
        problems: to learn on, each with a reference answer.
        held_out: others to measure on.
        out: folder of the state (`state.pt`) while running.
        prm: scores steps; required where `credit.needs.steps`, else it only watches.
        token_rewards: an implicit PRM; required where `credit.needs.tokens`.
        listeners: told of updates and evaluations.
    """

    def __init__(
        self,
        actor: Actor,
        problems: Sequence[Problem],
        held_out: Sequence[Problem],
        verifier: Verifier,
        credit: Credit,
        settings: PolicyTraining,
        *,
        out: Path,
        prm: PRM | None = None,
        token_rewards: OnlineImplicit | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        if credit.needs.values and actor.value_head is None:
            raise UsageError(f"{type(credit).__name__} needs a value head: make the actor with values=True")
        if any(weight.dtype != torch.float32 for weight in actor.trained()):
            raise UsageError(
                "small updates vanish in less than float32: load the actor with dtype='float32', or train adapters with a rank"
            )
        if actor.temperature != settings.temperature:
            # Else the ratio of probabilities would not be 1 where nothing was learnt yet.
            raise UsageError(
                f"expected an actor that reads probabilities at the temperature {settings.temperature:g} that it samples at, found one at "
                f"{actor.temperature:g}"
            )
        self.actor, self.verifier, self.credit, self.settings = actor, verifier, credit, settings
        self.problems, self.held_out = tuple(problems), tuple(held_out)
        self.prm, self.token_rewards, self.listeners, self.out = prm, token_rewards, tuple(listeners), out
        self._learner = Learner(actor, settings.peak, settings.clip)
        self.done = 0
        self.rollouts = 0

    def run(self, *, until: int | None = None) -> None:
        """Train, from the saved state of an interrupted run if there is one, to the end or until so many updates in all. The state is saved.

        Raises:
            InputError: a reward that is no number; the state before it is kept.
            CheckpointError: a loss or gradient that is not finite; the state before it is kept.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        self._resume()
        last = self.settings.updates if until is None else min(until, self.settings.updates)
        if self.done == 0 and self._evaluate():
            return
        while self.done < last:
            update = self._update(self.done)
            self.done += 1
            for listener in self.listeners:
                listener.updated(update)
            due = self.done % self.settings.evaluate_every == 0 or self.done == self.settings.updates
            stopped = due and self._evaluate()
            if stopped or self.done == last or self.done % self.settings.save_every == 0:
                self._save()
            if stopped:
                return

    def _update(self, number: int) -> Update:
        settings = self.settings
        problems = self._problems(number)
        rated = self._collect(problems, seed=seed_of(settings, "train", number))
        self.rollouts += len(rated)
        rows = padded([item.drawn for item in rated], self.actor.device)
        penalised = settings.kl == "reward" and settings.kl_weight > 0
        # A single step is taken by the policy that wrote: its own forward pass tells the old probabilities.
        once = settings.epochs == settings.minibatches == 1 and self.actor.value_head is None
        old, reference, values = self._read(rows, old=penalised or not once)
        token_rewards = self.token_rewards.rewards(rows) if self.token_rewards is not None else None
        batch = batch_of(
            rated, rows.mask, asked=self.prm is not None, token_rewards=token_rewards, values=values
        )
        penalty = None
        if old is not None and reference is not None and penalised:
            penalty = kl_reward(old, reference, rows.mask, weight=settings.kl_weight)
        assigned = self.credit.assign(batch, kl=penalty)
        included = torch.tensor([not item.left_out for item in rated], device=rows.mask.device)
        weights = token_weights(
            rows.mask & included[:, None], settings.average, max_tokens=settings.max_tokens
        )

        steps: list[dict[str, float]] = []
        dice = random.Random(seed_of(self.settings, "order", number))
        for _ in range(settings.epochs):
            order = dice.sample(range(len(rated)), len(rated))
            size = -(-len(order) // settings.minibatches)
            for start in range(0, len(order), size):
                chosen = torch.tensor(order[start : start + size], device=rows.mask.device)
                steps.append(self._step(rows, chosen, old, reference, assigned, weights))
        means = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
        record = figures(rated, settings.group) | means
        whole = [row for row, item in enumerate(rated) if not item.left_out]
        if self.token_rewards is not None and whole:
            outcomes = torch.tensor([rated[row].outcome for row in whole], device=rows.mask.device)
            chosen = torch.tensor(whole, device=rows.mask.device)
            record |= self.token_rewards.learn(rows_of(rows, chosen), outcomes)
        return Update(number=number + 1, rollouts=self.rollouts, figures=record)

    def _step(
        self,
        rows: Padded,
        chosen: Tensor,
        old: Tensor | None,
        reference: Tensor | None,
        assigned: Assigned,
        weights: Tensor,
    ) -> dict[str, float]:
        """One optimizer step on some rows, in passes that fit into memory."""
        settings = self.settings
        share = share_of(weights, chosen, settings.average)
        totals = {"loss": 0.0, "clipped": 0.0}
        for part in passes(rows, chosen, settings.token_budget):
            now, values = self.actor.logprobs(rows_of(rows, part))
            result = policy_loss(
                now,
                now.detach() if old is None else old[part],
                assigned.advantages[part],
                weights[part] / share,
                clip_low=settings.clip_low,
                clip_high=settings.clip_high,
                reference=None if reference is None else reference[part],
                kl_loss=None if settings.kl == "reward" else settings.kl,
                kl_weight=settings.kl_weight,
            )
            loss = result.loss
            if values is not None and (returns := assigned.returns) is not None:
                loss = loss + settings.value_weight * value_loss(values, returns[part], weights[part] / share)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            totals["loss"] += loss.item()
            totals["clipped"] += result.clipped.item()
            if result.divergence is not None:
                totals["kl"] = totals.get("kl", 0.0) + result.divergence.item()
        rate = settings.peak * min(1.0, (self.done + 1) / (settings.warmup + 1))
        remedy = f"lower `learning_rate`, or use `dtype` float32; the state of {self.out} is from before update {self.done + 1}"
        return totals | {"gradient": self._learner.step(rate, remedy)}

    def _read(self, rows: Padded, *, old: bool) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Log-probabilities when the completions were written if `old`, the reference's, and the critic's values."""
        actor, budget = self.actor, self.settings.token_budget
        written = reference = values = None
        if old:
            both = read_rows(
                rows, budget, lambda part: torch.stack([t for t in actor.logprobs(part) if t is not None], 1)
            )
            written, values = both[:, 0], both[:, 1] if actor.value_head is not None else None
        if actor.has_reference:
            reference = read_rows(rows, budget, actor.reference_logprobs)
        return written, reference, values

    def _collect(
        self, problems: Sequence[Problem], *, seed: int, group: int | None = None
    ) -> list[RewardedCompletion]:
        """Completions of problems, verified, and scored when there is a PRM."""
        count = group or self.settings.group
        rated = collect(self.actor, problems, self.verifier, self.settings, group=count, seed=seed)
        return rated if self.prm is None else scored(rated, self.prm, refuted=self.settings.refuted)

    def _problems(self, number: int) -> list[Problem]:
        """Those of an update: each has its turn before any comes again."""
        size, count = self.settings.problems, len(self.problems)
        chosen = []
        for place in range(number * size, (number + 1) * size):
            turn, at = divmod(place, count)
            order = random.Random(seed_of(self.settings, "problems", turn)).sample(range(count), count)
            chosen.append(self.problems[order[at]])
        return chosen

    def _evaluate(self) -> bool:
        if not self.held_out:
            return False
        # The same seed each time: what changes is the policy.
        rated = self._collect(self.held_out, seed=seed_of(self.settings, "held out", 0), group=1)
        evaluation = PolicyEvaluation(
            update=self.done,
            rollouts=self.rollouts,
            rated=tuple(rated),
        )
        # Not `any`, which would leave out those after the first that says stop.
        return bool(sum([listener.evaluated(evaluation) for listener in self.listeners]))

    def _save(self) -> None:
        state = {
            "done": self.done,
            "rollouts": self.rollouts,
            **self._learner.state(),
            "token_rewards": self.token_rewards.state() if self.token_rewards is not None else None,
        }
        write_tensors(self.out / STATE_FILE, state)

    def _resume(self) -> None:
        file = self.out / STATE_FILE
        if not file.is_file():
            return
        state = torch.load(file, weights_only=True, map_location=self.actor.device)
        self._learner.load_state(state)
        self.done, self.rollouts = state["done"], state["rollouts"]
        if self.token_rewards is not None and state["token_rewards"] is not None:
            self.token_rewards.load_state(state["token_rewards"])
