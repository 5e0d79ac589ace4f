"""PRMs that run in this process."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError, InputError
from stepmark.models.encoding import Encoded, Encoder
from stepmark.models.engine import Engine, windows
from stepmark.models.heads import HeadFunction, Neutral, step_scores
from stepmark.models.packed_tree import Ints, pack
from stepmark.models.prm import PRM, Ledger, Session
from stepmark.models.session import CachedSession, Read, States, Text
from stepmark.models.spec import LogRatioHead, ScoringSpec
from stepmark.records import Refusal, ScoreKind, Solution, StepScores

_ROWS = 4096
"""Hidden states that a head reads at a time."""
_WORDS = 256
"""Distributions over a vocabulary that are made at a time."""


class WindowedPRM(PRM, ABC):
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
        self.name, self.spec, self.encoder, self.ledger = name, spec, encoder, ledger
        self.score_kind: ScoreKind = spec.score_kind
        self.default_aggregate, self.default_threshold = spec.aggregate, spec.threshold
        self._token_budget, self._identity = token_budget, identity

    def __repr__(self) -> str:
        return self.describe(family=self.spec.family, place=self._place())

    @property
    def default_checks(self) -> str:
        """Those that the checkpoint names."""
        return self.spec.checks

    @abstractmethod
    def _place(self) -> dict[str, object]:
        """Where it computes, for people."""

    @property
    def identity(self) -> str:
        """See `PRM.identity`: of weights, tokenizer, spec, precision and all else that its scores depend on."""
        return self._identity()

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions; see `PRM.score_many`."""
        for window in windows(self._jobs(solutions, keep_going), 4 * self._token_budget):
            scored = iter(self._window([job for job in window if isinstance(job, Encoded)]))
            for job in window:
                if isinstance(job, Refusal):
                    yield job
                    continue
                result = next(scored)
                self.ledger.solutions += 1
                self.ledger.steps += sum(s is not None for s in result.scores)
                yield result

    def scores_of(
        self, encoded: Encoded, scores: Sequence[float], classes: Sequence[tuple[float, ...]] | None
    ) -> StepScores:
        """The record of what was read of one solution.

        Args:
            encoded: the solution.
            scores: of the steps that were read, in order; none where none was.
            classes: their class probabilities, for PRMs of three classes.
        """
        rows = np.cumsum([read is not None for read in encoded.reads]) - 1
        at = [
            None if read is None or not scores else int(row)
            for read, row in zip(encoded.reads, rows, strict=True)
        ]
        ends = [encoded.problem_tokens]
        for read in encoded.reads:
            ends.append(ends[-1] if read is None else read + 1)
        return StepScores(
            scores=tuple(None if row is None else scores[row] for row in at),
            kind=self.spec.score_kind,
            classes=None if classes is None else tuple(None if row is None else classes[row] for row in at),
            class_names=self.spec.readout.class_names if scores else None,
            problem_tokens=encoded.problem_tokens,
            solution_tokens=encoded.solution_tokens,
            step_tokens=tuple(end - start for start, end in pairwise(ends)),
        )

    def _jobs(
        self, solutions: Iterable[Solution], keep_going: bool
    ) -> Iterator[tuple[str, int, Encoded | Refusal]]:
        for solution in solutions:
            try:
                encoded = self.encoder.encode(solution)
            except InputError as error:
                if not keep_going:
                    raise
                yield solution.problem.text, 1, Refusal(solution=solution, error=error)
            else:
                yield solution.problem.text, len(encoded.ids), encoded

    @abstractmethod
    def _window(self, encoded: list[Encoded]) -> list[StepScores]:
        """One result a solution, in order; solutions given together share their prefixes."""


def no_head(rows: Tensor) -> Tensor:
    """The head of a PRM that has none; it is never called."""
    raise NotImplementedError


class LocalPRM(WindowedPRM):
    """What PRMs in this process share: sessions and sizes. Abstract: `read` reads what a session has stored. Made by `load_prm`.

    Args:
        models: of each network an engine, and the weight of its language-model head, [vocabulary, hidden], where that is read.
        head: from hidden states to logits, where there is one.
        neutral: whether a neutral step counts as good, for PRMs of three classes.
        identity: gives `PRM.identity`; called when it is asked for, because hashing weights takes time.
    """

    has_head = True
    """Whether it gives logits of single tokens."""

    def __init__(
        self,
        *,
        name: str,
        spec: ScoringSpec,
        encoder: Encoder,
        models: Sequence[tuple[Engine, Tensor | None]],
        head: HeadFunction = no_head,
        neutral: Neutral = "positive",
        identity: Callable[[], str],
    ) -> None:
        self.engines = tuple(engine for engine, _ in models)
        self.outputs = tuple(output for _, output in models if output is not None)
        self.engine, self.head, self.neutral = self.engines[0], head, neutral
        super().__init__(name, spec, encoder, self.engine.ledger, self.engine.token_budget, identity)

    def _place(self) -> dict[str, object]:
        engine = self.engines[0]
        return {"device": engine.device, "dtype": str(engine.backbone.dtype).removeprefix("torch.")}

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `PRM.open_session`."""
        if self.spec.outcome_only:
            return Session(self, "an outcome model gives a whole solution one score")
        return CachedSession(self, memory_tokens=65_536 if memory_tokens is None else memory_tokens)

    def _window(self, encoded: list[Encoded]) -> list[StepScores]:
        texts = [Text.of(e) for e in encoded]
        nonempty = [text for text in texts if len(text.ids)]
        reads: list[Read] = []
        if nonempty:
            tree = pack([text.ids for text in nonempty])
            needed = [path[self.needed(text)] for text, path in zip(nonempty, tree.paths, strict=True)]
            rows = np.unique(np.concatenate(needed))
            states = ReadRows(rows, [engine.run(tree, rows) for engine in self.engines], len(tree))
            with torch.inference_mode():
                reads = self.read(states, nonempty, tree.paths)
        rest = iter(reads)
        found = [next(rest) if len(text.ids) else Read(scores=[]) for text in texts]
        return [self.scores_of(e, read.scores, read.classes) for e, read in zip(encoded, found, strict=True)]

    @abstractmethod
    def needed(self, text: Text) -> Ints:
        """The positions of a text whose hidden states `read` looks at, ascending."""

    @abstractmethod
    def read(self, states: States, texts: Sequence[Text], paths: Sequence[Ints]) -> list[Read]:
        """The scores of texts whose tokens are in the places `paths`.

        Raises:
            CheckpointError: the model gave NaN or an infinity.
        """


class ReadRows:
    """Hidden states [rows, hidden] of some tokens (`rows`, ascending) of a packed tree, one tensor a network (`session.States`)."""

    def __init__(self, rows: Ints, states: Sequence[Tensor], tokens: int) -> None:
        self._rows, self._states = rows, states
        self.value = np.full(tokens, np.nan)

    def states(self, slots: Ints, backbone: int = 0) -> Tensor:
        """Hidden states of some tokens, [slots, hidden]."""
        result = self._states[backbone]
        return result[torch.from_numpy(np.searchsorted(self._rows, slots)).to(result.device)]


class HeadPRM(LocalPRM):
    """A PRM with a head read at step ends."""

    def needed(self, text: Text) -> Ints:
        """Step ends."""
        return text.reads

    def read(self, states: States, texts: Sequence[Text], paths: Sequence[Ints]) -> list[Read]:
        """See `LocalPRM.read`; a token that several texts share is read once."""
        slots = [path[text.reads] for text, path in zip(texts, paths, strict=True)]
        ends, which = np.unique(np.concatenate(slots), return_inverse=True)
        logits = torch.cat(
            [
                self.head(states.states(ends[start : start + _ROWS]).float()).float().cpu()
                for start in range(0, len(ends), _ROWS)
            ]
        )
        scores, classes = step_scores(self.spec.readout, logits, self.neutral)
        results = []
        at = 0
        for text in texts:
            mine = which[at : at + len(text.reads)]
            at += len(text.reads)
            results.append(
                Read(
                    scores=[scores[row] for row in mine],
                    classes=None if classes is None else [classes[row] for row in mine],
                    logits=logits[torch.from_numpy(mine)],
                )
            )
        return results


class TokenValuePRM(LocalPRM):
    """A PRM that gives each token of the answer a value, from what language models say of it, and makes scores of those. Abstract.

    Of an agent's conversation only the agent's own tokens count: what tools and users answer is read and has no value.
    """

    has_head = False

    def needed(self, text: Text) -> Ints:
        """What stands before each token that counts."""
        return self.written(text)

    def written(self, text: Text) -> Ints:
        """What stands before each token of the answer that its author, and no tool or user, wrote."""
        encoded = encoded_of(text)
        if encoded.answer < 1:
            raise CheckpointError(
                "a language model needs a token before the answer, and the template gives none"
            )
        return np.flatnonzero(encoded.own(len(text.ids))) + encoded.answer - 1

    def read(self, states: States, texts: Sequence[Text], paths: Sequence[Ints]) -> list[Read]:
        """See `LocalPRM.read`."""
        results = []
        for values, ends in self.token_spans(states, texts, paths):
            scores = self.step_values(values, ends)
            if not all(map(math.isfinite, scores)):
                raise CheckpointError(
                    f"{self.name} gave NaN or an infinity as a score: its weights are damaged, or too large for {self.outputs[0].dtype}"
                )
            results.append(Read(scores=scores))
        return results

    def token_spans(
        self, states: States, texts: Sequence[Text], paths: Sequence[Ints]
    ) -> list[tuple[Any, list[int]]]:
        """Of each text the values of its author's tokens, and where steps begin and end in them (see `step_values`).

        A token's value is stored beside it (`States.value`).
        """
        needed = [self.written(text) for text in texts]
        above = np.concatenate([path[n] for n, path in zip(needed, paths, strict=True)])
        tokens = np.concatenate([path[n + 1] for n, path in zip(needed, paths, strict=True)])
        ids = np.concatenate([text.ids[n + 1] for n, text in zip(needed, texts, strict=True)])
        _, first = np.unique(tokens, return_index=True)
        fresh = first[np.isnan(states.value[tokens[first]])]
        # By what they follow, so that alternatives share its logits.
        fresh = fresh[np.argsort(above[fresh], kind="stable")]
        for start in range(0, len(fresh), _WORDS):
            batch = fresh[start : start + _WORDS]
            parents, which = np.unique(above[batch], return_inverse=True)
            tables = [
                torch.log_softmax((states.states(parents, at).to(output.dtype) @ output.T).float(), -1)
                for at, output in enumerate(self.outputs)
            ]
            states.value[tokens[batch]] = self.token_values(tables, which, ids[batch]).double().cpu().numpy()
        results = []
        for text, path, places in zip(texts, paths, needed, strict=True):
            # A step that is read begins where the one before it ends; that one may have been read earlier.
            reads = encoded_of(text).reads
            before = reads[-2] if text.last and len(reads) > 1 else None
            ends = np.searchsorted(places + 1, [-1 if before is None else before, *text.reads], side="right")
            results.append((states.value[path[places + 1]], ends.tolist()))
        return results

    @abstractmethod
    def token_values(self, tables: Sequence[Tensor], which: Ints, ids: Ints) -> Tensor:
        """Values of tokens, [tokens].

        Args:
            tables: of each model the log-probabilities, [places, vocabulary].
            which: of each token the place before it.
            ids: the tokens.
        """

    @abstractmethod
    def step_values(self, values: Any, ends: Sequence[int]) -> list[float]:
        """Scores of steps from the values of the tokens that the author wrote: [tokens].

        Args:
            values: see `token_values`.
            ends: where the first step that is read begins, then where each ends, counted in those tokens.
        """


class ImplicitPRM(TokenValuePRM):
    """An implicit PRM: a policy and its reference, and the log-ratio of the answer's tokens.

    Source: Yuan et al. 2024, "Free process rewards without process labels", equation 4. Own tokens only: Oh et al. 2026, "Progress
    Advantage", arXiv 2606.26080.
    """

    def token_values(self, tables: Sequence[Tensor], which: Ints, ids: Ints) -> Tensor:
        """The log-ratios of tokens."""
        policy, reference = (
            table[torch.from_numpy(which).to(table.device), torch.from_numpy(ids).to(table.device)].double()
            for table in tables
        )
        return policy - reference

    def step_values(self, values: Any, ends: Sequence[int]) -> list[float]:
        """The sums of the log-ratios up to each step's end, or each step's share."""
        rule = self.spec.readout.head
        assert isinstance(rule, LogRatioHead)
        total = np.concatenate([[0.0], rule.beta * np.cumsum(values)])
        begin, *at = (float(total[end]) for end in ends)
        if not rule.per_step:
            return at
        return [end - start for end, start in zip(at, [begin, *at], strict=False)]


def encoded_of(text: Text) -> Encoded:
    """The solution of a request for scores."""
    assert text.encoded is not None
    return text.encoded
