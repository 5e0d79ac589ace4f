"""Searches and labellers of one's own, and a world with a trap, for `--method own_searches:NAME` and `--policy own_searches:NAME`."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NoReturn

from stepmark.backends import Completion, Completions, ScoreRequest
from stepmark.errors import UsageError
from stepmark.labels.labelling import Rollouts
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM
from stepmark.searches.base import Expanding, Searching, Steps
from stepmark.searches.beam import BeamSearch
from stepmark.searches.choosing import choose
from stepmark.searches.tree import Tree, ranked

# "a" looks better than "b" and dies one step later: a greedy way ends with a minimum of 0.2, the other with 0.7.
NEXT = {"": ["a", "b"], "a\n": ["a dead end", "so 1"], "b\n": ["so 4", "so 5"]}
SCORES = {"a": 0.9, "b": 0.8, "a dead end": 0.1, "so 1": 0.2, "so 4": 0.7, "so 5": 0.3}


def _write(request: Completions, number: int) -> Completion:
    text = NEXT[request.prefill][number % 2] if request.prefill in NEXT else "over"
    return Completion(text=text, finish="stop" if text in ("a", "b") else "end", tokens=1)


def trap_policy() -> ScriptedPolicy:
    """Walks the trap, a token a step."""
    return ScriptedPolicy(_write, name="trap")


def trap_prm() -> ScriptedPRM:
    """The trap's scores."""
    return ScriptedPRM(SCORES, name="trap-prm", default_aggregate="min")


def never() -> NoReturn:
    """Must not be loaded."""
    raise AssertionError("the PRM was loaded by a search that asks none")


@dataclass(frozen=True, kw_only=True, slots=True)
class BestFirst(Expanding):
    """Always goes on from the best open prefix."""

    name: ClassVar[str] = "best-first"
    sized_by: ClassVar[str | None] = "expand"
    rounds: int = 40
    slack: float = 0.0
    early: bool = False
    label: str | None = None
    order: Literal["best", "first"] = "best"
    also: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        Expanding.__post_init__(self)
        if self.rounds < 1:
            raise UsageError("rounds: expected 1 or more")

    async def search(self, problem, policy, prm, verifier):
        tree = Tree(problem, self, self.name, policy, prm, verifier)
        open_ = [tree.root]
        for round_ in range(self.rounds):
            best, *rest = open_
            (grown,) = await tree.grow([(best, self.expand)], round_)
            open_ = ranked([*rest, *grown])
            if not open_ or open_[0].ended or tree.spent:
                break
        return await choose(tree, tree.finished, self.choose)


def two() -> BestFirst:
    """Two steps after each."""
    return BestFirst(expand=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Two(BestFirst):
    """A class with a default of its own for how steps are written."""

    name: ClassVar[str] = "two"
    sized_by: ClassVar[str | None] = None
    how: Steps = Steps(temperature=1.0, prompt="text", max_steps=7)  # noqa: RUF009 - frozen
    expand: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class First(Searching):
    """The first of some solutions; asks no PRM."""

    name: ClassVar[str] = "the-first"
    asks_prm: ClassVar[bool] = False
    n: int = 2

    async def search(self, problem, policy, prm, verifier):
        tree = Tree(problem, self, self.name, policy, prm, verifier, scored=False)
        ends = await tree.write_whole(tree.root, self.n, 0)
        return await choose(tree, ends[:1], "best")


@dataclass(frozen=True, kw_only=True, slots=True)
class Liar(Searching):
    """Says that it asks no PRM, and does."""

    name: ClassVar[str] = "liar"
    asks_prm: ClassVar[bool] = False

    async def search(self, problem, policy, prm, verifier):
        await prm.score_step(ScoreRequest(problem=problem.text, steps=("a",)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs(BestFirst):
    """One setting without a default."""

    much: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Breaks(Searching):
    """Cannot be made."""

    name: ClassVar[str] = "breaks"

    def __post_init__(self) -> None:
        raise ZeroDivisionError("nothing divided")

    async def search(self, problem, policy, prm, verifier):
        """Nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nameless(Searching):
    """Has no name."""

    async def search(self, problem, policy, prm, verifier):
        """Nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holds(Searching):
    """A setting that cannot be written down."""

    name: ClassVar[str] = "holds"
    key: Callable[[int], int] = field(default=abs)

    async def search(self, problem, policy, prm, verifier):
        """Nothing."""


@dataclass(frozen=True)
class Door:
    """A dataclass that holds what can be neither written down nor copied."""

    lock: object = field(default_factory=threading.Lock)


@dataclass(frozen=True, kw_only=True, slots=True)
class Locked(Searching):
    """A setting that holds such a one."""

    name: ClassVar[str] = "locked"
    door: Door = field(default_factory=Door)

    async def search(self, problem, policy, prm, verifier):
        """Nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unwritten(Expanding, abc.ABC):
    """Abstract."""

    @abc.abstractmethod
    def weigh(self) -> float:
        """Nothing."""

    async def search(self, problem, policy, prm, verifier):
        """Nothing."""


class Plain:
    """No dataclass."""

    name = "plain"

    async def search(self, problem, policy, prm, verifier):
        """Nothing."""


@dataclass(frozen=True)
class Apart:
    """A search that takes nothing of a run's."""

    name: ClassVar[str] = "apart"

    async def search(self, problem, policy, prm, verifier):
        """Nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nothing(Searching):
    """Returns no Found."""

    name: ClassVar[str] = "nothing"

    async def search(self, problem, policy, prm, verifier):
        """Nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoCoroutine(Searching):
    """Returns at once."""

    name: ClassVar[str] = "no-coroutine"

    def search(self, problem, policy, prm, verifier):
        return 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Generator(Searching):
    """Yields what it asks, where it must await."""

    name: ClassVar[str] = "generator"

    def search(self, problem, policy, prm, verifier):
        yield ScoreRequest(problem=problem.text, steps=("a",))


@dataclass(frozen=True, kw_only=True, slots=True)
class LargeOnly(BestFirst):
    """Refuses small sizes."""

    name: ClassVar[str] = "large-only"
    expand: int = 8

    def __post_init__(self) -> None:
        if self.expand < 3:
            raise UsageError("expand: expected 3 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvenOnly(BestFirst):
    """Refuses half of the sizes, in words of its own."""

    name: ClassVar[str] = "even-only"

    def __post_init__(self) -> None:
        if self.expand % 2:
            raise ValueError("even numbers only")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slash(BestFirst):
    """A name that cannot stand in a figure's."""

    name: ClassVar[str] = "best/first"


@dataclass(frozen=True, kw_only=True, slots=True)
class AsBeam(BestFirst):
    """The name of another."""

    name: ClassVar[str] = "beam"


THE_BEAM = BeamSearch(width=2)
HOW = Rollouts()


@dataclass(frozen=True, kw_only=True, slots=True)
class Picky(BestFirst):
    """Refuses how steps are written, with an error of its own."""

    name: ClassVar[str] = "picky"

    def __post_init__(self) -> None:
        if self.how.max_tokens > 100_000:
            raise ValueError(f"steps of {self.how.max_tokens} tokens?\nNo.")
        if self.budget.tokens == 1:
            raise TypeError("one token is too few")


@dataclass(frozen=True, kw_only=True, slots=True)
class Falls(Searching):
    """Can be made, and breaks at its first problem."""

    name: ClassVar[str] = "falls"
    asks_prm: ClassVar[bool] = False

    async def search(self, problem, policy, prm, verifier):
        raise KeyError(problem.text)
