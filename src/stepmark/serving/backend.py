"""What computes behind a server: one PRM, from its tree of keys and values where it keeps one, else whole prefixes.

Three things are asked: the scores of a whole solution (`Whole`), the score of one more step of a prefix (`Growth`), and the head's rows for bare token
ids (`Reading`). An `Ask` becomes a `Prepared` in the tokenizer's thread, and a `Result` in the compute thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

from stepmark.backends import ScoreRequest, StepScore
from stepmark.errors import InputError, TooLongError, UsageError
from stepmark.models.prm import PRM, checked_scores, why_whole_prefixes
from stepmark.records import Problem, Refusal, Solution, Step, StepScores
from stepmark.show.text import amount

if TYPE_CHECKING:
    from torch import Tensor

    from stepmark.models.encoding import Encoded
    from stepmark.models.local import HeadPRM
    from stepmark.models.session import Answer, Asked, Place
    from stepmark.models.tree import Ints

_CHARACTERS = 3
"""Characters a token, for estimates."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Whole:
    """Asks for the scores of all steps of a solution; answered by `StepScores` or `Refusal`."""

    solution: Solution

    @property
    def key(self) -> str:
        """The problem: what belongs together."""
        return self.solution.problem.text

    @property
    def characters(self) -> int:
        """Of its texts."""
        return len(self.key) + sum(len(s.text) + len(s.observation) for s in self.solution.steps)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Growth:
    """Asks for the score of one more step; answered by `Grown` or `InputError`."""

    problem: Problem
    steps: tuple[Step, ...] = ()
    """Those before it, with what came back after each."""
    text: str
    """The step."""
    place: Place | None = None
    """The state of the prefix, as `Grown` gave it; None where there is none."""

    @property
    def key(self) -> str:
        """The problem: what belongs together."""
        return self.problem.text

    @property
    def characters(self) -> int:
        """Of its texts."""
        before = sum(len(step.text) + len(step.observation) for step in self.steps)
        return len(self.problem.text) + before + len(self.text)

    @property
    def observed(self) -> bool:
        """Whether anything came back between the steps."""
        return any(step.observation for step in self.steps)

    @property
    def solution(self) -> Solution:
        """The prefix with the step."""
        return Solution(problem=self.problem, steps=(*self.steps, Step(text=self.text)))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """Asks for the head's rows of token ids; answered by `Rows` or `InputError`."""

    tokens: tuple[int, ...]
    activation: bool
    """Probabilities; else logits."""

    key = ""

    @property
    def characters(self) -> int:
        """An estimate."""
        return _CHARACTERS * len(self.tokens)


Ask = Whole | Growth | Reading


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """An ask that can be computed."""

    ask: Ask
    tokens: int
    """An estimate where the PRM has no tokens of its own."""
    encoded: Encoded | None = None
    """None where the PRM tokenizes by itself, or not at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grown:
    """A prefix with one more step."""

    graded: StepScore
    """The step's score and tokens."""
    place: Place | None = field(default=None, repr=False, compare=False)
    """The state of the prefix, to be given back with `Batcher.release`; None where nothing is held."""
    size: int = field(default=0, compare=False)
    """Bytes that it takes, about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The head's rows for a sequence of tokens."""

    rows: tuple[tuple[float, ...], ...]
    """[marks, classes]: a row a step mark where the PRM has one, else a row a token."""
    tokens: int
    """Of the sequence."""


Result = StepScores | Refusal | Grown | Rows | InputError


def refused(ask: Ask, error: InputError) -> Refusal | InputError:
    """The result of an ask that the PRM cannot read."""
    return Refusal(solution=ask.solution, error=error) if isinstance(ask, Whole) else error


@final
class WholeBackend:
    """A PRM that is asked through `PRM.score_many`: generative, behind a server, scripted, an outcome model.

    `estimate` and `fresh` are cheap and called by the event loop, `fresh` only while nothing is computed; `prepare` is called by the tokenizer's
    thread; `compute` and `release` by the compute thread.
    """

    incremental = False
    """Whether a step of a session costs its own tokens only."""
    pooling = False
    """Whether it gives rows of bare token ids."""
    max_tokens = None
    """The most tokens of a solution; None where unknown."""
    memory = (0, 0, 0)
    """Tokens that are held now, that are held at most, and that were evicted."""

    def __init__(self, prm: PRM) -> None:
        self.prm = prm
        self._steps = prm.open_session()

    def estimate(self, ask: Ask) -> int:
        """Tokens, about, before anything is tokenized."""
        return 1 + ask.characters // _CHARACTERS

    def prepare(self, asks: Sequence[Ask]) -> list[Prepared | InputError]:
        """What can be computed of some asks; an `InputError` for what the PRM cannot read."""
        return [Prepared(ask=ask, tokens=self.estimate(ask)) for ask in asks]

    def fresh(self, work: Prepared, beside: Prepared | None) -> int:
        """Tokens to be computed for it, about, where another one of its problem is computed with it."""
        return work.tokens

    def compute(self, works: Sequence[Prepared]) -> list[Result]:
        """One result each, in order; solutions of one problem are given to the PRM one after the other.

        Raises:
            StepmarkError: the model failed; nothing of the batch has a result.
        """
        order = sorted(range(len(works)), key=lambda i: works[i].ask.key)
        results: dict[int, Result] = {}
        whole = [(i, ask.solution) for i in order if isinstance(ask := works[i].ask, Whole)]
        if whole:
            scored = checked_scores((solution for _, solution in whole), self.prm, keep_going=True)
            results |= {i: result for (i, _), (_, result) in zip(whole, scored, strict=True)}
        growing = [(i, ask) for i in order if isinstance(ask := works[i].ask, Growth)]
        results |= {i: self._observed(ask) for i, ask in growing if ask.observed}
        growths = [(i, ask) for i, ask in growing if not ask.observed]
        if growths:
            requests = [
                ScoreRequest(problem=ask.problem.text, steps=ask.solution.texts) for _, ask in growths
            ]
            replies = self._steps.score(requests, lambda index, reply: None)
            for (i, _), reply in zip(growths, replies, strict=True):
                results[i] = reply if isinstance(reply, InputError) else Grown(graded=reply)
        return [results[i] for i in range(len(works))]

    def _observed(self, ask: Growth) -> Grown | InputError:
        growing = self.prm.grow(ask.problem)
        try:
            return Grown(graded=StepScore(score=growing.score(ask.steps, Step(text=ask.text))))
        except InputError as error:
            return error
        finally:
            growing.back(0)

    def release(self, grown: Sequence[Grown]) -> None:
        """Free the state of some prefixes."""


@final
class CachedBackend:
    """A PRM in this process, answered from one tree of keys and values over all clients.

    Args:
        prm: with a head, or implicit; not read as an outcome model.
        memory_tokens: see `backend_of`.

    Raises:
        UsageError: another PRM, or a memory that holds no token.
    """

    incremental = True

    def __init__(self, prm: PRM, *, memory_tokens: int | None = None) -> None:
        from stepmark.models.encoding import mark_token
        from stepmark.models.local import HeadPRM, LocalPRM
        from stepmark.models.session import CachedSession

        if reason := why_whole_prefixes(prm):
            raise UsageError(f"{prm.name} keeps no state: {reason}")
        assert isinstance(prm, LocalPRM)
        self.prm: PRM = prm
        self.session = CachedSession(prm, memory_tokens=65_536 if memory_tokens is None else memory_tokens)
        self._encoder = prm.encoder
        self._head: HeadPRM | None = prm if isinstance(prm, HeadPRM) else None
        self._mark = mark_token(prm.encoder)

    @property
    def pooling(self) -> bool:
        """Where there is a head."""
        return self._head is not None

    @property
    def max_tokens(self) -> int | None:
        """Of the model, or of the memory where that is smaller."""
        capacity, limit = self.session.pool.capacity, self._encoder.max_tokens
        return capacity if limit is None else min(limit, capacity)

    @property
    def memory(self) -> tuple[int, int, int]:
        """See `WholeBackend.memory`."""
        return self.session.pool.held, self.session.pool.capacity, self.session.cache.evicted

    def estimate(self, ask: Ask) -> int:
        """By its characters."""
        return 1 + ask.characters // _CHARACTERS

    def prepare(self, asks: Sequence[Ask]) -> list[Prepared | InputError]:
        """Everything that needs the tokenizer, which two threads must not use at once."""
        works: list[Prepared | InputError] = []
        for ask in asks:
            try:
                encoded = (
                    self._tokens(ask) if isinstance(ask, Reading) else self._encoder.encode(ask.solution)
                )
            except InputError as error:
                works.append(error)
            else:
                works.append(Prepared(ask=ask, tokens=len(encoded.ids), encoded=encoded))
        return works

    def fresh(self, work: Prepared, beside: Prepared | None) -> int:
        """What neither the tree nor the other one has."""
        from stepmark.models.tree import common_prefix

        lacking = self.session.lacks(_asked(work))
        if lacking and beside is not None:
            ours, theirs = _encoded(work).ids, _encoded(beside).ids
            lacking = min(lacking, len(ours) - common_prefix(ours, theirs))
        return lacking

    def compute(self, works: Sequence[Prepared]) -> list[Result]:
        """All of them in one pass, as far as the memory holds them at once."""
        answers = self.session.answer([_asked(work) for work in works])
        return [self._result(work, answer) for work, answer in zip(works, answers, strict=True)]

    def release(self, grown: Sequence[Grown]) -> None:
        """See `WholeBackend.release`."""
        self.session.drop(item.place for item in grown if item.place is not None)

    def _tokens(self, ask: Reading) -> Encoded:
        """Token ids, with the positions at which steps are read."""
        import numpy as np

        from stepmark.models.encoding import Encoded, marked

        if self._head is None:
            raise UsageError(f"{self.prm.name} is an implicit PRM: it has no head to read tokens with")
        known = int(self._head.engine.backbone.config.vocab_size)
        wrong = next((token for token in ask.tokens if not 0 <= token < known), None)
        if wrong is not None:
            raise InputError(f"the token {wrong} is none of the model's {known}", field="input")
        limit = self.max_tokens
        if limit is not None and len(ask.tokens) > limit:
            raise TooLongError(
                f"{amount(len(ask.tokens), 'token')}, and this model reads {limit}", field="input"
            )
        ids: Ints = np.asarray(ask.tokens, dtype=np.int64)
        return Encoded(ids=ids, reads=tuple(marked(ids, self._mark).tolist()), answer=0)

    def _result(self, work: Prepared, answer: Answer) -> Result:
        from stepmark.models.session import Extended, NextStep, graded

        ask = work.ask
        if isinstance(answer, InputError):
            return refused(ask, answer)
        if isinstance(answer, StepScores):
            return answer
        if isinstance(answer, Extended):
            step = _asked(work)
            assert isinstance(step, NextStep)
            return Grown(graded=graded(step, answer), place=answer.place, size=answer.place.size)
        assert isinstance(ask, Reading)
        return Rows(rows=self._rows(answer, ask.activation), tokens=work.tokens)

    def _rows(self, logits: Tensor, activation: bool) -> tuple[tuple[float, ...], ...]:
        if activation and len(logits):
            import torch

            assert self._head is not None
            # Softmax over classes that exclude each other; sigmoid of one class, and of each member of an ensemble.
            own = logits.shape[1] == 1 or self._head.spec.readout.activation == "sigmoid-mean"
            logits = torch.sigmoid(logits) if own else torch.softmax(logits, -1)
        return tuple(tuple(row) for row in logits.tolist())


def _encoded(work: Prepared) -> Encoded:
    assert work.encoded is not None
    return work.encoded


def _asked(work: Prepared) -> Asked:
    """As a session is asked."""
    import numpy as np

    from stepmark.models.session import NextStep, TokenRows, WholeSolution, root_of

    ask, encoded = work.ask, _encoded(work)
    if isinstance(ask, Whole):
        return WholeSolution(encoded=encoded)
    if isinstance(ask, Reading):
        return TokenRows(ids=encoded.ids, positions=np.asarray(encoded.reads, dtype=np.int64))
    place = root_of(ask.problem) if ask.place is None else ask.place
    return NextStep(place=replace(place, solution=ask.solution), encoded=encoded)


Backend = WholeBackend | CachedBackend


def backend_of(prm: PRM, *, memory_tokens: int | None = None) -> Backend:
    """The backend of a PRM: with a tree of keys and values where its family allows it.

    Args:
        prm: as `load_prm` gives it.
        memory_tokens: tokens whose keys and values are held at most; None: 65,536.
    """
    if not prm.open_session().in_process:
        return WholeBackend(prm)
    return CachedBackend(prm, memory_tokens=memory_tokens)
