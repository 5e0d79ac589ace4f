"""The protocols of a process reward model and of its sessions, and the counts of what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepmark.batching import Graded, Ready, Release, Score
from stepmark.errors import InputError
from stepmark.records import Refusal, ScoredSolution, ScoreKind, Solution, StepScores
from stepmark.solutions.inputs import ProblemLike, SolutionLike


@dataclass(kw_only=True, slots=True)
class Ledger:
    """What scoring has cost so far. Counts only grow."""

    solutions: int = 0
    """Solutions scored."""
    steps: int = 0
    """Steps scored."""
    tokens_in: int = 0
    """Tokens of all solutions, each read alone: what one-at-a-time scoring computes."""
    tokens_distinct: int = 0
    """Distinct prefix tokens among solutions that were scored together."""
    tokens_computed: int = 0
    """Tokens that went through the network. Equal to `tokens_distinct` when nothing is computed twice."""
    tokens_again: int = 0
    """Of those computed, tokens that a session had forgotten for want of memory and read once more (known of the last few times as many as there is room for)."""
    tokens_written: int = 0
    """Tokens that a generative PRM wrote."""

    @property
    def cache_hits(self) -> int:
        """Tokens that were needed and not computed, because a shared prefix had them already."""
        return self.tokens_in - self.tokens_computed


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The size of a model in this process: what one token costs."""

    parameters: int
    """Weights that a token is multiplied with: without the table of embeddings, with the head where the model writes."""
    attention: int
    """Layers times the width of their attention (heads times their size)."""

    @classmethod
    def of(cls, models: Iterable[tuple[Any, Any]]) -> Weights | None:
        """The sum over transformers models, each with its output layer or None where that is not used.

        None where it is not known, or where a token meets a part of a model only (experts).
        """
        parameters = attention = 0
        for model, head in models:
            config = model.config.get_text_config().to_dict()
            heads = config.get("num_attention_heads")
            layers, hidden = config.get("num_hidden_layers"), config.get("hidden_size")
            experts = any("expert" in name for name, _ in model.named_parameters())
            if experts or heads is None or layers is None or hidden is None:
                return None
            table = model.get_input_embeddings().weight
            # A weight that stands at two places is counted once by parameters(), and as the head it is multiplied with.
            parameters += sum(weight.numel() for weight in model.parameters())
            if head is None or head.weight is not table:
                parameters -= table.numel()
            attention += layers * heads * (config.get("head_dim") or hidden // heads)
        return cls(parameters=parameters, attention=attention)


@dataclass(kw_only=True, slots=True)
class Reading:
    """The prompt tokens of a policy in this process. Counts only grow."""

    given: int = 0
    """Tokens of all prompts, each request's once."""
    computed: int = 0
    """Tokens of prompts that went through the network."""
    again: int = 0
    """Of those, tokens that had been evicted (without the last tokens of prompts, which are always computed)."""
    forgotten: int = 0
    """Tokens evicted."""


class Session(Protocol):
    """Scores of prefixes that grow, as a search asks for them."""

    @property
    def reason(self) -> str:
        """Why every prefix is read whole; "" where a step costs its own tokens only."""

    @property
    def in_process(self) -> bool:
        """Whether it stores keys and values in this process: a `session.CachedSession`."""

    def score(self, requests: Sequence[Score], ready: Ready) -> list[Graded | InputError]:
        """One reply a request, in order; an `InputError` for a prefix that the PRM cannot read.

        Raises:
            BackendError: the PRM gave NaN, or another number of scores than there are steps.
        """

    def release(self, requests: Sequence[Release], ready: Ready) -> list[Any]:
        """Free what is stored for some prefixes; unknown ones are ignored."""


def repr_of(prm: PRM, *, family: str | None = None, place: Mapping[str, object] | None = None) -> str:
    """A PRM in one line, for its `__repr__`.

    Args:
        prm: of any kind.
        family: how it is read, where that is known here.
        place: where it computes: device and precision, or an address.
    """
    facts = {
        "name": prm.name,
        **({} if family is None else {"family": family}),
        "score_kind": prm.score_kind,
        "aggregate": prm.default_aggregate,
        "threshold": prm.default_threshold,
        **(place or {}),
    }
    return f"{type(prm).__name__}({', '.join(f'{key}={value!r}' for key, value in facts.items())})"


class PRM(Protocol):
    """A process reward model: reads a prefix of a solution and scores its last step.

    The score of step t depends on the problem and on steps 1..t, never on what follows.
    """

    @property
    def name(self) -> str:
        """Its name in outputs: a catalog name, a hub name, a folder, an address."""

    @property
    def identity(self) -> str:
        """What tells it from every PRM that gives other scores: equal identities, equal scores.

        Scores are recorded under it, and a run is continued under it only. Where weights decide the scores, a digest of them is
        part of it (`models.identity.named`); a PRM of fixed rules may give its name, and changes it with the rules.
        """

    @property
    def score_kind(self) -> ScoreKind:
        """What its scores are."""

    @property
    def default_aggregate(self) -> str:
        """How its authors make one number of the step scores (`metrics/aggregate.py`)."""

    @property
    def default_threshold(self) -> float | None:
        """The score under which a step is an error; None when its scores have no such point."""

    @property
    def ledger(self) -> Ledger:
        """What it has cost so far."""

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions, one result each, in their order, without holding them all.

        Solutions of one problem that stand together share the computation of every common prefix.

        Args:
            solutions: read as needed; may be endless.
            keep_going: yield a `Refusal` for a solution that cannot be scored instead of raising.

        Raises:
            InputError: a blank problem or step, a marker inside the text, too many tokens; unless `keep_going`.
        """

    # Below: what `models.grading.Grader` makes of `score_many`; derive a PRM of your own from it.

    @property
    def default_checks(self) -> str:
        """See `Grader.default_checks`."""

    @property
    def size(self) -> Weights | None:
        """See `Grader.size`."""

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `Grader.open_session`."""

    def score(
        self,
        problem: ProblemLike | None,
        solution: SolutionLike,
        *,
        split: str = "auto",
        marker: str | None = None,
    ) -> list[float | None]:
        """See `Grader.score`."""

    def grade(
        self,
        problem: ProblemLike | None,
        solution: SolutionLike,
        *,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str = "auto",
        split: str = "auto",
        marker: str | None = None,
    ) -> ScoredSolution:
        """See `Grader.grade`."""

    def rank(
        self,
        problem: ProblemLike,
        solutions: Iterable[SolutionLike],
        *,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str = "auto",
        split: str = "auto",
        marker: str | None = None,
    ) -> list[ScoredSolution]:
        """See `Grader.rank`."""
