"""What computes behind a server: one PRM, from its tree of keys and values where it keeps one, else whole solutions.

Two things are asked: the scores of a whole solution (a `Solution`), and the head's rows for bare token ids (a `TokenIds`). A request becomes a
`Prepared` in the tokenizer's thread, and a `Result` in the compute thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from stepmark.errors import InputError, TooLongError, UsageError
from stepmark.models.prm import PRM, checked_scores, why_whole_prefixes
from stepmark.records import Refusal, Solution, StepScores
from stepmark.words import amount

if TYPE_CHECKING:
    from torch import Tensor

    from stepmark.models.encoding import Encoded
    from stepmark.models.local_prm import HeadPRM
    from stepmark.models.session import Text

_CHARACTERS = 3
"""Characters a token, for estimates."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenIds:
    """Asks for the head's rows at the step marks of a sequence; answered by `Rows` or `InputError`."""

    tokens: tuple[int, ...] | str
    """Token ids, or a text that the tokenizer reads as it stands, with the control tokens in it."""
    activation: bool
    """Probabilities; else logits."""
    last: bool = False
    """The row of the last token alone."""


Ask = Solution | TokenIds


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """What can be computed."""

    ask: Ask
    tokens: int
    """An estimate where the PRM has no tokens of its own."""
    encoded: Encoded | None = None
    """None where the PRM tokenizes by itself, or not at all."""

    @property
    def problem(self) -> str:
        """Its text; what has the same one belongs together."""
        return self.ask.problem.text if isinstance(self.ask, Solution) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The head's rows for a sequence of tokens."""

    rows: tuple[tuple[float, ...], ...]
    """[marks, classes]: a row a step mark where the PRM has one, else a row a token; or the last token's."""
    tokens: int
    """Of the sequence."""


Result = StepScores | Refusal | Rows | InputError


def refusal_of(ask: Ask, error: InputError) -> Refusal | InputError:
    """The result of what the PRM cannot read."""
    return Refusal(solution=ask, error=error) if isinstance(ask, Solution) else error


@final
class WholeBackend:
    """A PRM that is asked through `PRM.score_many`: generative, behind a server, scripted, an outcome model.

    `fresh` is cheap and called by the event loop, while nothing is computed; `prepare` is called by the tokenizer's thread, `compute` by the
    compute thread.
    """

    caches = False
    """Whether a prefix that was read before costs nothing."""
    pooling = False
    """Whether it gives rows of bare token ids."""
    labels: tuple[str, ...] = ()
    """The names of a row's classes, where they have some."""
    max_tokens = None
    """The most tokens of a solution; None where unknown."""
    memory = (0, 0, 0)
    """Tokens that are held now, that are held at most, and that were evicted."""

    def __init__(self, prm: PRM) -> None:
        self.prm = prm

    def prepare(self, asks: Sequence[Ask]) -> list[Prepared | InputError]:
        """What can be computed of some asks; an `InputError` for what the PRM cannot read."""
        return [Prepared(ask=ask, tokens=1 + _characters(ask) // _CHARACTERS) for ask in asks]

    def fresh(self, work: Prepared, beside: Prepared | None) -> int:
        """Tokens to be computed for it, about, where another one of its problem is computed with it."""
        return work.tokens

    def compute(self, works: Sequence[Prepared]) -> list[Result]:
        """One result each, in order; solutions of one problem are given to the PRM one after the other.

        Raises:
            StepmarkError: the model failed; nothing of the batch has a result.
        """
        order = sorted(range(len(works)), key=lambda i: works[i].problem)
        solutions = [ask for i in order if isinstance(ask := works[i].ask, Solution)]
        scored = checked_scores(iter(solutions), self.prm, keep_going=True)
        results = {i: result for i, (_, result) in zip(order, scored, strict=True)}
        return [results[i] for i in range(len(works))]


@final
class CachedBackend:
    """A PRM in this process, answered from one tree of keys and values over all clients; what was used longest ago is evicted.

    Args:
        prm: with a head, or implicit; not read as an outcome model.
        memory_tokens: see `backend_of`.

    Raises:
        UsageError: another PRM, or a memory that holds no token.
    """

    caches = True

    def __init__(self, prm: PRM, *, memory_tokens: int | None = None) -> None:
        from stepmark.models.encoding import mark_token
        from stepmark.models.local_prm import HeadPRM, LocalPRM
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
    def labels(self) -> tuple[str, ...]:
        """See `WholeBackend.labels`."""
        return () if self._head is None else self._head.spec.readout.class_names or ()

    @property
    def max_tokens(self) -> int:
        """Of the model, or of the memory where that is smaller."""
        capacity, limit = self.session.pool.capacity, self._encoder.max_tokens
        return capacity if limit is None else min(limit, capacity)

    @property
    def memory(self) -> tuple[int, int, int]:
        """See `WholeBackend.memory`."""
        return self.session.pool.held, self.session.pool.capacity, self.session.cache.evicted

    def prepare(self, asks: Sequence[Ask]) -> list[Prepared | InputError]:
        """Everything that needs the tokenizer, which two threads must not use at once."""
        works: list[Prepared | InputError] = []
        for ask in asks:
            try:
                if isinstance(ask, Solution):
                    encoded, most = self._encoder.encode(ask), self.session.pool.capacity
                else:
                    encoded, most = self._sequence(ask), self.max_tokens
                if len(encoded.ids) > most:  # refused now, whatever the load
                    raise TooLongError(f"{amount(len(encoded.ids), 'token')}, and this server reads {most}")
                works.append(Prepared(ask=ask, tokens=len(encoded.ids), encoded=encoded))
            except InputError as error:
                works.append(error)
        return works

    def fresh(self, work: Prepared, beside: Prepared | None) -> int:
        """What neither the tree nor the other one has."""
        from stepmark.models.packed_tree import common_prefix

        lacking = self.session.lacks(_text(work).ids)
        if lacking and beside is not None:
            ours, theirs = _encoded(work).ids, _encoded(beside).ids
            lacking = min(lacking, len(ours) - common_prefix(ours, theirs))
        return lacking

    def compute(self, works: Sequence[Prepared]) -> list[Result]:
        """All of them in one pass, as far as the memory holds them at once."""
        results: list[Result] = []
        for work, read in zip(works, self.session.answer([_text(work) for work in works]), strict=True):
            if isinstance(read, InputError):
                results.append(refusal_of(work.ask, read))
            elif isinstance(work.ask, Solution):
                results.append(self.session.scores(_encoded(work), read))
            else:
                assert read.logits is not None
                results.append(Rows(rows=self._rows(read.logits, work.ask.activation), tokens=work.tokens))
        return results

    def _sequence(self, ask: TokenIds) -> Encoded:
        """Token ids, with the positions at which rows are read."""
        import numpy as np

        from stepmark.models.encoding import Encoded, marked

        assert self._head is not None
        tokens = ask.tokens
        if isinstance(tokens, str):
            tokens = self._encoder.tokenizer(tokens)["input_ids"]
        known = int(self._head.engine.backbone.config.vocab_size)
        wrong = next((token for token in tokens if not 0 <= token < known), None)
        if wrong is not None:
            raise InputError(f"the token {wrong} is none of the model's {known}", field="input")
        ids = np.asarray(tokens, dtype=np.int64)
        reads = (len(ids) - 1,) if ask.last else tuple(marked(ids, self._mark).tolist())
        return Encoded(ids=ids, reads=reads, answer=0)

    def _rows(self, logits: Tensor, activation: bool) -> tuple[tuple[float, ...], ...]:
        if activation and len(logits):
            import torch

            assert self._head is not None
            # Softmax over classes that exclude each other; sigmoid of one class, of each label, and of each member of an ensemble.
            own = logits.shape[1] == 1 or self._head.spec.readout.activation in ("labels", "sigmoid-mean")
            logits = torch.sigmoid(logits) if own else torch.softmax(logits, -1)
        return tuple(tuple(row) for row in logits.tolist())


def _characters(ask: Ask) -> int:
    if isinstance(ask, TokenIds):
        return _CHARACTERS * len(ask.tokens)
    return len(ask.problem.text) + sum(len(step.text) + len(step.observation) for step in ask.steps)


def _encoded(work: Prepared) -> Encoded:
    assert work.encoded is not None
    return work.encoded


def _text(work: Prepared) -> Text:
    """As a session is asked."""
    import numpy as np

    from stepmark.models.session import Text

    encoded = _encoded(work)
    if isinstance(work.ask, Solution):
        return Text.of(encoded)
    return Text.bare(encoded.ids, np.asarray(encoded.reads, dtype=np.int64))


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
