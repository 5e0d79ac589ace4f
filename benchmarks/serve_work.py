"""What the clients of `benchmarks.serve` ask: the same for every server, drawn from a seed, from stories of sums and a solver that errs.

Three workloads. In the first two a client works on one problem after the other, and every fourth problem is one of a few that all clients work on. `search`: a beam
search (four prefixes a request, each a step longer than those of the request before, two kept, each of them continued twice). `bulk`: best of eight (whole
candidates, two a request). In `separate`, every solution is of a problem of its own, three a request: nothing is shared but the opening of the prompt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from stepmark.problems.arithmetic import ArithmeticProblem, arithmetic_problems
from stepmark.problems.arithmetic_world import SolverSettings, WorldState, solver_of

Workload = Literal["search", "bulk", "separate"]

CANDIDATES = 8
"""Of a problem that best of n is asked about."""
TOGETHER = 2
"""Of them in a request."""
BEAMS = 4
SEPARATE = 3
"""Solutions a request of the workload without sharing."""
COMMON = 8
"""Problems that all clients come back to."""
_SOLVER = SolverSettings()
_LONGEST = 14


class Asked(NamedTuple):
    """A solution, or the beginning of one."""

    problem: str
    steps: tuple[str, ...]


Request = list[Asked]


def requests(workload: Workload, client: int, seed: str) -> Iterator[Request]:
    """What a client asks, one request after the other, without an end.

    Args:
        workload: which.
        client: its number; another client asks other things, save for the common problems.
        seed: another seed, other problems.
    """
    dice = random.Random(f"{workload} {seed} {client}")
    number = 0
    while True:
        number += 1
        if workload == "separate":
            names = [f"{seed} {client} {number} {one}" for one in range(SEPARATE)]
            yield [_whole(_problem(name), random.Random(name)) for name in names]
            continue
        common = dice.random() < 0.25
        name = f"common {dice.randrange(COMMON)}" if common else f"{client} {number}"
        problem = _problem(f"{seed} {name}")
        if workload == "bulk":
            whole = [_whole(problem, dice) for _ in range(CANDIDATES)]
            yield from (whole[at : at + TOGETHER] for at in range(0, CANDIDATES, TOGETHER))
        else:
            yield from _beams(problem, dice)


def taken(workload: Workload, client: int, seed: str, solutions: int) -> list[Request]:
    """The first requests of a client, as many as have that many solutions."""
    found: list[Request] = []
    for request in requests(workload, client, seed):
        if solutions <= 0:
            break
        found.append(request)
        solutions -= len(request)
    return found


def _problem(name: str) -> ArithmeticProblem:
    seed = random.Random(name).getrandbits(32)
    [problem] = islice(arithmetic_problems(1, seed=seed, surface="story", steps=(4, 9)), 1)
    return problem


def _whole(problem: ArithmeticProblem, dice: random.Random) -> Asked:
    """A candidate solution: right, or wrong from some step on."""
    solver = solver_of(problem, _SOLVER)
    state, steps = solver.start(), list[str]()
    while state.answer is None and len(steps) < _LONGEST:
        text, state, _ = solver.draw(state, dice)
        steps.append(text)
    return Asked(problem.text, tuple(steps))


def _beams(problem: ArithmeticProblem, dice: random.Random) -> Iterator[Request]:
    """What a beam search sends: in each round the prefixes that are one step longer."""
    solver = solver_of(problem, _SOLVER)
    beams: Sequence[tuple[tuple[str, ...], WorldState]] = [((), solver.start())] * BEAMS
    while True:
        grown = []
        for steps, state in beams:
            text, after, _ = solver.draw(state, dice)
            grown.append(((*steps, text), after))
        yield [Asked(problem.text, steps) for steps, _ in grown]
        open_ones = [one for one in grown if one[1].answer is None and len(one[0]) < _LONGEST]
        if not open_ones:
            return
        kept = dice.sample(open_ones, min(len(open_ones), BEAMS // 2))
        beams = [one for one in kept for _ in range(BEAMS // len(kept))]


class Distinct:
    """Counts tokens, and distinct prefixes of them, without any tree of ours: a set of (prefix's number, token)."""

    def __init__(self) -> None:
        self.read = 0
        """Tokens of all sequences, each by itself."""
        self._numbers: dict[tuple[int, int], int] = {}

    @property
    def count(self) -> int:
        """Distinct prefixes so far."""
        return len(self._numbers)

    def add(self, tokens: Sequence[int]) -> None:
        """Count a sequence."""
        self.read += len(tokens)
        at = 0
        for token in tokens:
            at = self._numbers.setdefault((at, token), len(self._numbers) + 1)
