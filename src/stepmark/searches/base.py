"""What every search is, and what it gives: settings, candidates, the trace, the cost.

A search is a frozen dataclass of settings with a coroutine, `search(problem, policy, prm, verifier)`, which awaits what it asks them and returns a
`SearchResult`. It does no other I/O: `search.run` runs many of them at once, records every reply before it is used, and resumes by replay.
"""

# Without postponed annotations: the methods inherit fields from here, and a reader of a method's fields (the command line) finds their
# types themselves and not names that the method's module would have to know.
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field

from stepmark.backends import INSTRUCTION, Completing, Prompt, StepScoring, Verifying, problem_prompt
from stepmark.errors import UsageError
from stepmark.metrics.aggregate import check_aggregate
from stepmark.records import Problem, ScoreKind
from stepmark.report.search import TraceNode
from stepmark.settings import settings
from stepmark.verifiers.checks import check_names
from stepmark.words import amount

Stopped = Literal["done", "budget", "dead end"]
"""Why a search ended: `done` the method came to its end, `budget` nothing more may be spent, `dead end` nothing was left to go on
from."""

Choice = Literal["best", "majority", "vote"]
"""How one of the finished solutions is chosen: the highest aggregate; the commonest answer; the answer with the highest sum of
aggregates."""


@settings
class Steps:
    """How the policy writes.

    Raises:
        UsageError: a setting out of its range.
    """

    stop: Annotated[str, Field(min_length=1)] = "\n"
    """The text that ends a step, and stands between two."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    """The longest step; one that is not ended by then is given up."""
    max_steps: Annotated[int, Field(ge=1)] = 40
    """The longest solution in steps; one that is not ended by then is given up."""
    max_solution_tokens: Annotated[int, Field(ge=1)] = 1024
    """The longest solution, where a solution is written in one go."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.7
    """Sampling temperature; 0 is greedy, and then a prefix has one continuation."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample among the likeliest tokens that together hold this share of the probability."""
    seed: int = 0
    """Seed of the samples."""
    prompt: Literal["chat", "text"] = "chat"
    """Ask as the user's turn of a chat, or as plain text, for base models."""
    instruction: str = INSTRUCTION
    """Text after the problem; "" for nothing."""

    def prompt_of(self, problem: Problem) -> Prompt:
        """What the policy is shown before the solution."""
        return problem_prompt(problem.text, self.instruction, self.prompt)


@settings
class Grading:
    """How step scores make one number, with which prefixes and whole solutions are compared.

    Raises:
        UsageError: no such aggregate, one that means nothing for scores of this kind, or `checks` names no check.
    """

    aggregate: str = "min"
    """One of `metrics.aggregate.AGGREGATES`, of the steps so far."""
    kind: ScoreKind = "probability"
    """What the PRM's scores are."""
    checks: str = "none"
    """Exact checks that refute steps (`stepmark.check`): "all", "none", or names with commas between them."""

    def __post_init__(self) -> None:
        check_aggregate(self.aggregate, self.kind)
        check_names(self.checks)


@settings
class Budget:
    """What a search may spend on one problem; None: no limit but the method's own.

    It is hard: a request that writes is cut to what is left (fewer samples, then a lower `max_tokens`), half of it kept back for the
    PRM that reads what is written. So it is exceeded by no more than what a PRM reads of the request in flight. Where it does not do
    for a tree search's next round and no solution is finished, what is left takes the best step to its end.

    Raises:
        UsageError: a negative one.
    """

    tokens: Annotated[int, Field(ge=0)] | None = None
    """Tokens that the policy writes and the PRM reads. Prompts that the policy reads are not counted in it: not every policy tells
    them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchCost:
    """What one search has cost. All are properties of the texts: replays, batches and caches change nothing."""

    prompt: int | None = 0
    """Tokens of all prompts and prefixes that the policy was given, each request's once, however many samples it asked for. None
    where the policy does not tell."""
    new: int | None = 0
    """Of those, what no earlier request had given it and it had not written itself: the problem's prompt. The rest, `cached`, is what a
    policy with a prefix cache does not compute again."""
    told_cached: int | None = 0
    """Of those, what the policy's server said that it took from its cache, when it was asked. None where it does not say. The one
    count that is not a property of the texts; nothing is counted with it."""
    decoded: int | None = 0
    """Tokens that the policy wrote."""
    prm_prompt: int | None = 0
    """Tokens of all prefixes that the PRM scored, each whole: what rescoring whole prefixes reads."""
    prm: int | None = 0
    """Of those, what the PRM read: the problem once, each step once (for a PRM that reads whole prefixes, all of them)."""
    writes: int = 0
    """Requests to the policy."""
    samples: int = 0
    """Texts that it wrote."""
    scores: int = 0
    """Distinct prefixes that the PRM scored."""

    @property
    def tokens(self) -> int | None:
        """What a token budget counts: decoded and PRM tokens."""
        return None if self.decoded is None or self.prm is None else self.decoded + self.prm

    @property
    def cached(self) -> int | None:
        """Of `prompt`, all but `new`."""
        return None if self.prompt is None or self.new is None else self.prompt - self.new

    @property
    def prm_cached(self) -> int | None:
        """Of `prm_prompt`, all but `prm`: what a session saves."""
        return None if self.prm_prompt is None or self.prm is None else self.prm_prompt - self.prm


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTrace:
    """The tree of a search. The tokens of its nodes sum to `SearchCost.decoded` and `SearchCost.prm`."""

    method: str
    aggregate: str
    kind: ScoreKind
    nodes: tuple[TraceNode, ...] = ()
    """Parents before their children."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A solution that a search may choose."""

    node: int
    """The number of its last node."""
    steps: tuple[str, ...]
    text: str
    """The whole text as the policy wrote it."""
    scores: tuple[float | None, ...]
    """The PRM's, one a step; None where it was not asked."""
    aggregate: float | None
    """Of the scores; None where one is missing."""
    finished: bool
    """The policy ended it; else it was cut off, by the budget or by the longest solution."""
    refuted: bool = False
    """An exact check proves one of its steps wrong: it is never chosen."""
    answer: str | None = None
    """The final answer that it names; None for none."""
    votes: float | None = None
    """What its answer got in the vote; None without a vote, or where it did not vote."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """What a search gives for one problem."""

    problem: Problem
    method: str
    chosen: int | None
    """Index into `candidates`; None where there is nothing to choose."""
    candidates: tuple[Candidate, ...]
    """Every solution that it may choose. Where none was finished, the best unfinished one."""
    trace: SearchTrace
    cost: SearchCost
    stopped: Stopped
    note: str = ""
    """What else is to be known of its end."""

    @property
    def solution(self) -> Candidate | None:
        """The chosen candidate."""
        return None if self.chosen is None else self.candidates[self.chosen]

    def to_dict(self) -> dict[str, Any]:
        """The problem and the chosen solution, without the other candidates and the tree; plain data."""
        chosen = self.solution
        return {
            "id": self.problem.id,
            "problem": self.problem.text,
            "method": self.method,
            "solution": None if chosen is None else chosen.text,
            "steps": None if chosen is None else list(chosen.steps),
            "scores": None if chosen is None else list(chosen.scores),
            "score": None if chosen is None else chosen.aggregate,
            "answer": None if chosen is None else chosen.answer,
            "candidates": len(self.candidates),
            "stopped": self.stopped,
            "note": self.note,
            "cost": asdict(self.cost),
        }

    def _repr_html_(self) -> str:
        from stepmark.report.html import steps_fragment

        steps = () if self.solution is None else self.solution.steps
        result = "nothing was found" if self.solution is None else amount(len(steps), "step")
        headline = f"{self.method}: {result}"
        return steps_fragment(steps, problem=self.problem.text, headline=headline)


class Search(Protocol):
    """A way to search: a frozen dataclass of settings with one method."""

    @property
    def name(self) -> str:
        """Its name in files."""

    @property
    def how(self) -> Steps:
        """How the policy writes."""

    @property
    def asks_prm(self) -> bool:
        """Whether it asks a PRM, which else is not loaded."""

    async def search(
        self, problem: Problem, policy: Completing, prm: StepScoring, verifier: Verifying
    ) -> SearchResult:
        """Search one problem.

        Args:
            problem: with its reference answer, where the method needs one.
            policy: writes steps and solutions.
            prm: scores the last step of a prefix; not to be asked where `asks_prm` is False.
            verifier: compares answers.

        Raises:
            InputError: the problem cannot be searched: the policy cannot read it, or a reference answer is missing.
            UsageError: a budget that cannot be kept, because a model does not count what it must.
            BackendError: the PRM gave a score out of its range.
        """


@settings
class Searching:
    """The settings that all searches share."""

    name: ClassVar[str]
    """Its name in files."""
    asks_prm: ClassVar[bool] = True
    """Whether it asks a PRM. A search that says False is run without one: none is loaded, and it must never ask for a score."""
    sized_by: ClassVar[str | None] = None
    """For a comparison at equal tokens (`stepmark evaluate search`): the field, a whole number from 1, that is enlarged until the
    budget is spent. None: the settings stay as they are, and the budget alone bounds it."""

    how: Steps = Steps()
    """How the policy writes."""
    grading: Grading = Grading()
    """How step scores are put together."""
    budget: Budget = Budget()
    """What may be spent on a problem."""


@settings
class Choosing(Searching):
    """A search that comes to several solutions. Abstract.

    Raises:
        UsageError: scores that cannot be weights, and a vote weighted by them.
    """

    choose: Choice = "best"
    """How one of the finished solutions is chosen."""

    def __post_init__(self) -> None:
        check_choice(self.choose, self.grading)


@settings
class Expanding(Choosing):
    """A search that writes step by step, several steps after one. Abstract."""

    expand: Annotated[int, Field(ge=1)] = 4
    """Steps written after each one that is continued (k)."""


def check_choice(choice: Choice, grading: Grading) -> None:
    """Refuse a vote whose weights would be no weights.

    Raises:
        UsageError: the aggregate can be negative, so that a bad solution would vote against its own answer.
    """
    if choice == "vote" and (grading.kind != "probability" or grading.aggregate == "sum-logit"):
        raise UsageError(
            f"a vote is weighed by numbers of 0 and more; a {grading.aggregate} of scores of the kind {grading.kind!r} can be "
            "negative. Choose the best, or by majority"
        )
