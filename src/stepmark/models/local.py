"""PRMs that run in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError, InputError
from stepmark.models.encoding import Encoded, Encoder
from stepmark.models.engine import Engine, Take, windows
from stepmark.models.heads import HeadFunction, Neutral, step_scores
from stepmark.models.prm import Ledger
from stepmark.models.spec import LogRatioHead, ScoringSpec
from stepmark.models.tree import Ints, PackedTree
from stepmark.records import Refusal, ScoreKind, Solution, StepScores


@dataclass(frozen=True, kw_only=True)
class _Job:
    solution: Solution
    encoded: Encoded | None
    error: InputError | None


class WindowedPRM(ABC):
    """What PRMs that read tokens share: streaming, windows, refusals. Abstract: `_window` scores."""

    def __init__(
        self,
        name: str,
        spec: ScoringSpec,
        encoder: Encoder,
        ledger: Ledger,
        token_budget: int,
        identity: Callable[[], str],
    ) -> None:
        self._name, self.spec, self.encoder, self._ledger = name, spec, encoder, ledger
        self._token_budget, self._identity = token_budget, identity

    @property
    def name(self) -> str:
        """Its name in outputs."""
        return self._name

    @property
    def identity(self) -> str:
        """See `PRM.identity`: of weights, tokenizer, spec, precision and all else that its scores depend on."""
        return self._identity()

    @property
    def score_kind(self) -> ScoreKind:
        """What its scores are."""
        return self.spec.score_kind

    @property
    def default_aggregate(self) -> str:
        """Its authors' way to one number."""
        return self.spec.aggregate

    @property
    def default_threshold(self) -> float | None:
        """The score under which a step is an error."""
        return self.spec.threshold

    @property
    def ledger(self) -> Ledger:
        """What it has cost so far."""
        return self._ledger

    def score(self, problem: str, steps: Sequence[str]) -> list[float | None]:
        """Score every step of one solution; see `PRM.score`."""
        result = next(self.score_many([Solution.of(problem, tuple(steps))]))
        assert isinstance(result, StepScores)
        return list(result.scores)

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions; see `PRM.score_many`."""
        for window in windows(self._jobs(solutions, keep_going), 4 * self._token_budget):
            good = [job for job in window if job.encoded is not None]
            scored = iter(self._window([job.encoded for job in good if job.encoded is not None]))
            for job in window:
                if job.error is not None:
                    yield Refusal(solution=job.solution, error=job.error)
                    continue
                result = next(scored)
                self._ledger.solutions += 1
                self._ledger.steps += sum(s is not None for s in result.scores)
                yield result

    def _jobs(self, solutions: Iterable[Solution], keep_going: bool) -> Iterator[tuple[str, int, _Job]]:
        for solution in solutions:
            try:
                encoded = self.encoder.encode(solution)
            except InputError as error:
                if not keep_going:
                    raise
                yield solution.problem.text, 1, _Job(solution=solution, encoded=None, error=error)
            else:
                yield (
                    solution.problem.text,
                    len(encoded.ids),
                    _Job(solution=solution, encoded=encoded, error=None),
                )

    @abstractmethod
    def _window(self, encoded: list[Encoded]) -> list[StepScores]:
        """One result a solution, in order; solutions given together share their prefixes."""


class HeadPRM(WindowedPRM):
    """A PRM with a head read at step ends. Made by `load_prm`.

    Args:
        identity: gives `PRM.identity`; called when it is asked for, because hashing weights takes time.
    """

    def __init__(
        self,
        *,
        name: str,
        spec: ScoringSpec,
        encoder: Encoder,
        engine: Engine,
        head: HeadFunction,
        neutral: Neutral,
        identity: Callable[[], str],
    ) -> None:
        super().__init__(name, spec, encoder, engine.ledger, engine.token_budget, identity)
        self.engine, self.head, self.neutral = engine, head, neutral

    def _window(self, encoded: list[Encoded]) -> list[StepScores]:
        if not encoded:
            return []
        where: dict[int, int] = {}
        logits: list[Tensor] = []

        def wanted(tree: PackedTree) -> Ints:
            reads = [
                int(path[r])
                for e, path in zip(encoded, tree.paths, strict=True)
                for r in e.reads
                if r is not None
            ]
            return np.unique(np.asarray(reads, dtype=np.int64))

        def take(tree: PackedTree) -> Take:
            del tree

            def receive(indices: Ints, hidden: Tensor) -> None:
                for index in indices.tolist():
                    where[index] = len(where)
                logits.append(self.head(hidden.float()).float().cpu())

            return receive

        tree = self.engine.run([e.ids for e in encoded], wanted, take)
        if not logits:
            return [
                StepScores(
                    scores=(None,) * len(e.reads),
                    kind=self.spec.score_kind,
                    problem_tokens=e.problem_tokens,
                    solution_tokens=e.solution_tokens,
                )
                for e in encoded
            ]
        readout = self.spec.readout
        scores, classes = step_scores(readout, torch.cat(logits), self.neutral)
        result = []
        for e, path in zip(encoded, tree.paths, strict=True):
            rows = [None if r is None else where[int(path[r])] for r in e.reads]
            result.append(
                StepScores(
                    scores=tuple(None if row is None else scores[row] for row in rows),
                    kind=self.spec.score_kind,
                    classes=(
                        None
                        if classes is None
                        else tuple(None if row is None else classes[row] for row in rows)
                    ),
                    class_names=readout.class_names,
                    problem_tokens=e.problem_tokens,
                    solution_tokens=e.solution_tokens,
                )
            )
        return result


class ImplicitPRM(WindowedPRM):
    """An implicit PRM: two language models, and the log-ratio of the answer's tokens. Made by `load_prm`.

    Source: Yuan et al. 2024, "Free process rewards without process labels", equation 4.

    Args:
        policy, reference: an engine and the weight of its language-model head, [vocabulary, hidden].
        identity: as of `HeadPRM`.
    """

    def __init__(
        self,
        *,
        name: str,
        spec: ScoringSpec,
        encoder: Encoder,
        policy: tuple[Engine, Tensor],
        reference: tuple[Engine, Tensor],
        identity: Callable[[], str],
    ) -> None:
        super().__init__(name, spec, encoder, policy[0].ledger, policy[0].token_budget, identity)
        if not isinstance(spec.readout.head, LogRatioHead):
            raise CheckpointError(f"{spec.family} is no implicit PRM")
        self.policy, self.reference, self.rule = policy, reference, spec.readout.head

    def _window(self, encoded: list[Encoded]) -> list[StepScores]:
        if not encoded:
            return []
        ours, tree = _token_logprobs(*self.policy, encoded)
        theirs, _ = _token_logprobs(*self.reference, encoded)
        result = []
        for e, path in zip(encoded, tree.paths, strict=True):
            answer = path[e.answer :]
            ratio = self.rule.beta * (ours[answer] - theirs[answer])
            total = np.cumsum(ratio)
            scores: list[float | None] = []
            before = 0.0
            for read in e.reads:
                if read is None:
                    scores.append(None)
                    continue
                at = float(total[read - e.answer])
                scores.append(at - before if self.rule.per_step else at)
                before = at
            result.append(
                StepScores(
                    scores=tuple(scores),
                    kind="log-ratio",
                    problem_tokens=e.problem_tokens,
                    solution_tokens=e.solution_tokens,
                )
            )
        return result


def _token_logprobs(engine: Engine, output: Tensor, encoded: list[Encoded]) -> tuple[Any, PackedTree]:
    """Log-probability of each answer token given what stands before it: [packed tokens], float64, else 0.

    Vocabulary logits are made only for tokens that have an answer token after them, a slice at a time.
    """
    found: dict[str, Any] = {}

    def wanted(tree: PackedTree) -> Ints:
        targets = np.unique(
            np.concatenate([path[e.answer :] for e, path in zip(encoded, tree.paths, strict=True)])
        )
        parents = tree.parents[targets]
        if (parents < 0).any():
            raise CheckpointError(
                "an implicit PRM needs a token before the answer, and the template gives none"
            )
        order = np.argsort(parents, kind="stable")
        found["targets"], found["parents"] = targets[order], parents[order]
        found["logprobs"] = np.zeros(len(tree), dtype=np.float64)
        return np.unique(parents)

    def take(tree: PackedTree) -> Take:
        def receive(indices: Ints, hidden: Tensor) -> None:
            low, high = np.searchsorted(found["parents"], [indices[0], indices[-1] + 1])
            targets, parents = found["targets"][low:high], found["parents"][low:high]
            rows = np.searchsorted(indices, parents)
            for a in range(0, len(indices), 256):
                part = hidden[a : a + 256].to(output.dtype) @ output.T
                logprobs = torch.log_softmax(part.float(), -1)
                here = (rows >= a) & (rows < a + 256)
                picked = logprobs[
                    torch.from_numpy(rows[here] - a).to(logprobs.device),
                    torch.from_numpy(tree.ids[targets[here]]).to(logprobs.device),
                ]
                found["logprobs"][targets[here]] = picked.double().cpu().numpy()

        return receive

    tree = engine.run([e.ids for e in encoded], wanted, take)
    return found["logprobs"], tree
