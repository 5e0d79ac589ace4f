"""The rollout tree of OmegaPRM: every rollout that a search for a first error has paid for becomes a solution to search itself.

Luo et al. 2024, "Improve Mathematical Reasoning in Language Models by Automated Process Supervision", section 3.3. States are the prefixes that
were rolled out, each with MC(s) = successes / trials and N(s), the searches that started there. The pool holds the wrong rollouts of all states
with 0 < MC(s) < 1. One search:

1. *Select* the pair (state s, wrong rollout r) with the largest Q(s, r) + U(s), and take it out of the pool::

       Q(s, r) = alpha^(1 - MC(s)) * beta^(len(r) / L)
       U(s)    = c_puct * sqrt(sum over all states i of N(i)) / (1 + N(s))

2. *Search* the first error of s + r by binary search (`rollout.first_bad_prefix`); each new prefix in between is rolled out k times.
3. *Maintain*: N(s) grows by one, and the wrong rollouts of the new states join the pool.

It ends after `searches` of them, or when the pool is empty. No text is searched twice and no prefix is rolled out twice.

    >>> round(priority(mc=0.5, length=250, visits=1, total=4, settings=RolloutTree()), 4)
    0.7958

Deviations from the paper:

* The solutions to be labelled are searched first, as wrong rollouts of the root; those of one problem share its tree.
* Rollouts are cut into steps and probed at ends of steps, so labels are for single steps. Steps between two probed prefixes are labelled by
  the search's assumption (right before the first error).
* Problems are not filtered by 32 rollouts beforehand. Where no rollout of the root is right, the labeller abstains.
* A rollout without a verdict is in no count and never in the pool. A state with too few verdicts gets k more rollouts, `retries` times at most;
  then the search that asked for it abstains.
* len(r) is the rollout's own tokens, without the state's; words, where the policy does not report tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import sqrt
from typing import Annotated, ClassVar, final

from pydantic import Field

from stepmark.backends import Completing, Verifying
from stepmark.data.steps.splitting import split
from stepmark.errors import InputError
from stepmark.labels.labelling import Cost, LabellerNeeds, Labelling, Probe
from stepmark.labels.rollout import RolloutLabeller, count_steps, first_bad_prefix, labelled, own_answer
from stepmark.records import Problem, Refusal, Solution, Step, Verdict
from stepmark.settings import settings


@final
@settings
class RolloutTree(RolloutLabeller):
    """A tree of rollouts a problem, each used again as a solution (OmegaPRM).

    The defaults are the paper's.
    """

    needs: ClassVar[LabellerNeeds] = LabellerNeeds(
        policy="required", texts=("rollout", "rollouts"), whole_problems=True
    )

    name: str = "rollout-tree"
    """Name of the judge in the output; "rollout-tree:MODEL" names the policy."""
    searches: Annotated[int, Field(ge=1)] = 100
    """Searches for a first error, a problem: of the given solutions, then of rollouts."""
    omega_alpha: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Alpha of the selection: how much failures lower a state."""
    omega_beta: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Beta of the selection: how much length lowers a rollout."""
    length_scale: Annotated[float, Field(gt=0)] = 500.0
    """L of the selection, in tokens."""
    c_puct: Annotated[float, Field(ge=0)] = 0.125
    """Exploration of the selection: preference for states that were seldom searched from."""

    async def label(self, solution: Solution, policy: Completing, verifier: Verifying) -> Labelling:
        """Grow a tree that starts with one solution; `others` are the rollouts that were searched.

        Returns:
            `first_error` of the solution itself; never -1, and None without `abstained` where nothing is to be searched
            (see `rollout.BinarySearch`).

        Raises:
            InputError: no reference answer, or no steps.
        """
        labelled = await self.grow(solution.problem, (solution,), policy, verifier)
        return labelled.whole(labelled.given[0])

    async def label_together(
        self, solutions: Sequence[Solution], policy: Completing, verifier: Verifying
    ) -> tuple[Labelling | Refusal, ...]:
        """Grow the one tree of several solutions of one problem; one result a solution, a `Refusal` for one that the policy cannot read.

        The first labelling has the whole tree's cost and its `others`; the cost of the rest is nothing.

        Raises:
            InputError: as `grow`; or the policy can read none of them.
        """
        refused: dict[int, InputError] = {}
        labelled = await self.grow(solutions[0].problem, solutions, policy, verifier, refused)
        if len(refused) == len(solutions):
            raise refused[0]
        searched = iter((labelled.whole(labelled.given[0]), *labelled.given[1:]))
        return tuple(
            Refusal(solution=solution, error=refused[number]) if number in refused else next(searched)
            for number, solution in enumerate(solutions)
        )

    async def grow(
        self,
        problem: Problem,
        solutions: Sequence[Solution],
        policy: Completing,
        verifier: Verifying,
        refused: dict[int, InputError] | None = None,
    ) -> TreeLabels:
        """Grow the tree of one problem, with the solutions of it that are searched first.

        `refused` takes the numbers of those that the policy cannot read, and why; without it the first of them ends the growing.

        Raises:
            InputError: no reference answer, a solution without steps or of another problem, or one that cannot be read.
        """
        for solution in solutions:
            count_steps(solution)
            if (solution.problem.text, solution.problem.answer) != (problem.text, problem.answer):
                raise InputError(
                    "expected a solution of the problem whose tree it is given to", where=solution.id
                )
        tree = _Tree(self, problem, solutions, policy, verifier)
        root = await tree.state(())
        firsts = []
        for number, solution in enumerate(solutions):
            try:
                firsts.append(await tree.begin(solution))
            except InputError as error:
                if refused is None:
                    raise
                refused[number] = error
        while not tree.spent and (chosen := tree.select()) is not None:
            await tree.search(chosen)
        return TreeLabels(
            given=tuple(tree.conclude(first) for first in firsts),
            rollouts=tuple(tree.conclude(path) for path in tree.paths),
            successes=root.probe.successes,
            trials=root.probe.trials,
            cost=tree.cost,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeLabels:
    """A problem's tree. Solutions that share a beginning repeat its evidence: count it once."""

    given: tuple[Labelling, ...]
    """The solutions that it was given, in their order, each with the evidence of every state on its way; without the cost."""
    rollouts: tuple[Labelling, ...]
    """The rollouts that were searched, in that order. Every state lies on one of these or of `given`."""
    successes: int
    """Of the problem's own rollouts."""
    trials: int
    """The problem's own rollouts with a verdict."""
    cost: Cost
    """Of the whole tree."""

    def whole(self, labelling: Labelling) -> Labelling:
        """A labelling with the whole tree's cost and the rollouts as its `others`."""
        return replace(labelling, cost=self.cost, others=tuple(each.labelled for each in self.rollouts))


def priority(*, mc: float, length: float, visits: int, total: int, settings: RolloutTree) -> float:
    """Q(s, r) + U(s), by which rollouts are selected.

    `mc` is the share of the state's rollouts that were right, `length` the rollout's, `visits` the searches that started from the state, `total` those
    from any state.
    """
    value: float = settings.omega_alpha ** (1 - mc) * settings.omega_beta ** (length / settings.length_scale)
    return value + settings.c_puct * sqrt(total) / (1 + visits)


@dataclass(kw_only=True, slots=True, eq=False)
class PrefixState:
    """A prefix that was rolled out."""

    steps: tuple[Step, ...]
    probe: Probe
    visits: int = 0


@dataclass(kw_only=True, slots=True, eq=False)
class Path:
    """A solution or a rollout, from the problem to its end."""

    solution: Solution
    texts: tuple[str, ...]
    """The prefix of each number of steps, from none to all."""
    own: Verdict
    """On its own answer."""
    first_error: int | None = None
    abstained: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolEntry:
    """A wrong rollout of a state, not yet searched."""

    state: PrefixState
    path: Path
    length: int


@final
class _Tree:
    """The states, the pool, and the operations of one search."""

    def __init__(
        self,
        settings: RolloutTree,
        problem: Problem,
        solutions: Sequence[Solution],
        policy: Completing,
        verifier: Verifying,
    ) -> None:
        self._settings = settings
        self._policy, self._verifier = policy, verifier
        self._problem = problem
        self._way = way_of(solutions)
        self._id = solutions[0].id if solutions and solutions[0].id else problem.id
        self._states: dict[str, PrefixState] = {}
        self._pool: list[PoolEntry] = []
        # Before any rollout: one that repeats a given solution must not enter the pool.
        self._texts = {prefixes(on_lines(solution.steps))[-1].rstrip() for solution in solutions}
        self._begun: set[str] = set()
        self.paths: list[Path] = []
        """Rollouts that were selected."""
        self.searched = 0
        self.cost = Cost()

    @property
    def spent(self) -> bool:
        """Whether no more search may start."""
        return self.searched >= self._settings.searches

    async def state(self, steps: tuple[Step, ...]) -> PrefixState:
        """The state of a prefix, rolled out if it is new; its wrong rollouts then join the pool."""
        text = prefixes(steps)[-1]
        if text not in self._states:
            # The last step is not shown: it is there for the root, and its tail says that layout is not to be added.
            holder = Solution(problem=self._problem, steps=(*steps, Step(text="-", tail="\n")))
            probed = await self._settings.try_prefix(holder, len(steps), self._policy, self._verifier)
            self.cost += probed.cost
            self._states[text] = PrefixState(steps=steps, probe=probed)
            if 0 < probed.successes < probed.trials:
                self._add_wrong(self._states[text])
        return self._states[text]

    async def begin(self, solution: Solution) -> Path:
        """Take in a given solution, and search it if it is wrong."""
        own = await own_answer(solution, self._verifier)
        steps = on_lines(solution.steps)
        path = Path(solution=solution, texts=prefixes(steps), own=own)
        root = self._states[""]
        if own.correct:
            return path
        if not root.probe.successes or self.spent:
            path.abstained = True
            return path
        if own.correct is None:
            end = (await self.state(steps)).probe
            if end.successes or not self._settings.known(end):
                path.abstained = not end.successes
                return path
        if path.texts[-1] not in self._begun:
            self._begun.add(path.texts[-1])
            self.searched += 1
            root.visits += 1
        await self._search(path, steps, low=0)
        return path

    def select(self) -> PoolEntry | None:
        """Take the best candidate out of the pool; the earliest of equals."""
        if not self._pool:
            return None
        total = sum(state.visits for state in self._states.values())
        best = max(
            self._pool,
            key=lambda candidate: priority(
                mc=candidate.state.probe.successes / candidate.state.probe.trials,
                length=candidate.length,
                visits=candidate.state.visits,
                total=total,
                settings=self._settings,
            ),
        )
        self._pool.remove(best)
        return best

    async def search(self, chosen: PoolEntry) -> None:
        """Find the first error of a selected rollout; one that the policy cannot read again is abstained from."""
        self.searched += 1
        chosen.state.visits += 1
        self.paths.append(chosen.path)
        try:
            await self._search(chosen.path, chosen.path.solution.steps, low=len(chosen.state.steps))
        except InputError:
            chosen.path.abstained = True

    def conclude(self, path: Path) -> Labelling:
        """A path with all evidence that now stands on its way."""
        values: dict[int, Probe | Verdict] = (
            {} if path.own.correct is None else {len(path.texts) - 1: path.own}
        )
        for steps, text in enumerate(path.texts):
            if text in self._states:
                values[steps] = self._states[text].probe
        return Labelling(
            labelled=labelled(path.solution, values, self._settings.name, path.first_error),
            method=self._settings.name,
            first_error=path.first_error,
            abstained=path.abstained,
        )

    async def _search(self, path: Path, steps: tuple[Step, ...], *, low: int) -> None:
        async def at(middle: int) -> Probe:
            return (await self.state(steps[:middle])).probe

        first_bad = await first_bad_prefix(low, len(steps), at, self._settings.known)
        path.first_error = None if first_bad is None else first_bad - 1
        path.abstained = first_bad is None

    def _add_wrong(self, state: PrefixState) -> None:
        begun, probed = prefixes(state.steps)[-1], state.probe
        for text, verdict, count in zip(probed.texts, probed.verdicts, probed.tokens, strict=True):
            whole = (begun + text).rstrip()
            # A rollout that adds nothing is its state's own text, and has no step to blame.
            if verdict.correct is not False or not text.strip() or whole in self._texts:
                continue
            self._texts.add(whole)
            steps, way = cut_branch(state.steps, text, self._way)
            name = f"{self._id}/rollout-{len(self._texts)}" if self._id else None
            solution = Solution(problem=self._problem, steps=steps, id=name, split=way)
            path = Path(solution=solution, texts=prefixes(steps), own=verdict)
            self._pool.append(
                PoolEntry(state=state, path=path, length=len(text.split()) if count is None else count)
            )


def prefixes(steps: Sequence[Step]) -> tuple[str, ...]:
    """The text of each number of steps, from none to all: len(steps) + 1 texts."""
    return ("", *accumulate(step.raw for step in steps))


def on_lines(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Ready-made steps on a line each, as `labelling.prefix_text` shows them; others as they are."""
    if any(step.start is not None or step.lead or step.tail for step in steps):
        return tuple(steps)
    lines = [replace(step, tail="\n") for step in steps]
    return tuple(replace(step, start=len(text)) for step, text in zip(lines, prefixes(lines), strict=False))


def way_of(given: Sequence[Solution]) -> str:
    """How rollouts are cut: as the given solutions were, "line" where their steps were ready-made.

    Raises:
        InputError: they were cut in several ways, or in one that rollouts cannot be cut in.
    """
    ways = {solution.split or "line" for solution in given} or {"line"}
    if len(ways) > 1 or ways & {"agent", "marker"}:
        raise InputError(
            f"rollouts cannot be cut as these solutions were ({', '.join(sorted(ways))}); split all of them in one way, such as line",
            where=given[0].id,
            field="split",
        )
    return ways.pop()


def cut_branch(begun: tuple[Step, ...], text: str, way: str) -> tuple[tuple[Step, ...], str]:
    """The steps of a prefix, kept as they are, followed by those of a text that continues it; and the way that cut the text (never "auto").

    The whole is cut where that puts a border at the prefix's end: a numbered list, or a formula that the prefix opened, is then
    seen whole. Else the text, which is not blank, is cut by itself. Offsets count from the beginning of the whole.
    """
    before = prefixes(begun)[-1]
    whole = split(before + text, way)
    ends = [len(share) for share in prefixes(whole.steps)]
    if len(before) in ends:
        return (*begun, *whole.steps[ends.index(len(before)) :]), whole.how
    alone = split(text, way)
    moved = (replace(step, start=len(before) + (step.start or 0)) for step in alone)
    return (*begun, *moved), alone.how
