"""The arithmetic world as one object: problems with known truth, a policy with known error rates, a PRM that is never wrong.

The policy is the solver of `arithmetic_solver`: it needs no model and no GPU and writes thousands of rollouts a second. Its
samples depend on the request and the sample's number alone (`batching.sample_seed`).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import final

from stepmark.batching import Choose, Prompt, Ready, Write, Written, cut_at_stop, sample_seed
from stepmark.errors import InputError, UsageError
from stepmark.models.scripted import ScriptedPRM
from stepmark.problems.arithmetic import (
    LARGEST,
    ArithmeticProblem,
    Surface,
    arithmetic_problems,
    find_problem,
    make_problems,
    read_arithmetic,
)
from stepmark.problems.arithmetic_solver import (
    DEFAULT,
    Solver,
    SolverSettings,
    State,
    next_steps,
    solver_of,
    true_labels,
    true_value,
    true_values,
)
from stepmark.records import Problem as Record
from stepmark.records import Solution

_WORLD = 1
"""Changes whenever equal requests get other texts, for replies are recorded under it."""
_TOKEN = re.compile(r"[0-9]|[A-Za-z]+|\n|[^\sA-Za-z0-9]")
_problem_in = lru_cache(maxsize=4096)(find_problem)


def count_tokens(text: str) -> int:
    """Tokens of a text: words, digits, line ends and other signs count one each; spaces none."""
    return len(_TOKEN.findall(text))


@final
class ArithmeticPolicy:
    """A policy (`models.policies.Policy`) that solves problems of the arithmetic world, with known error rates.

    It takes the last problem in the prompt, reads the steps in what follows it (the rest of the prompt and the prefill), and
    goes on from what they state; what states nothing is passed over. A prefill that does not end at the end of a line is
    continued on a new one. Temperature 0 writes the likeliest lines, which are the faithful ones. Any temperature above 0 samples the
    solver as it is: temperature, `top_p` and `top_k` do not change its chances, so that it has one V.

    Tokens are those of `count_tokens`, and one for the end of the text or the stop string.

    Args:
        settings: how well it solves.
    """

    def __init__(self, settings: SolverSettings = DEFAULT) -> None:
        self.settings = settings
        self.name = "arithmetic"
        digest = hashlib.sha256(json.dumps([_WORLD, asdict(settings)], sort_keys=True).encode())
        self.identity = f"arithmetic#{digest.hexdigest()[:12]}"
        self.tokens_written = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(error_rate={self.settings.error_rate})"

    def write(
        self, requests: Sequence[Write], ready: Ready | None = None
    ) -> list[list[Written] | InputError]:
        """Solutions, from where each request stands; an `InputError` where the prompt holds no problem of this world."""
        replies: list[list[Written] | InputError] = []
        for index, request in enumerate(requests):
            try:
                samples = self._samples(request)
                self.tokens_written += sum(written.tokens or 0 for written in samples)
                replies.append(samples)
            except InputError as error:
                replies.append(error)
            if ready is not None:
                ready(index, replies[-1])
        return replies

    def choose(
        self, requests: Sequence[Choose], ready: Ready | None = None
    ) -> list[list[float] | InputError]:
        """An `InputError` for each request: this policy writes solutions and answers no questions."""
        replies: list[list[float] | InputError] = []
        for index, _ in enumerate(requests):
            replies.append(InputError(f"{self.name}: expected a problem to solve, found a choice of options"))
            if ready is not None:
                ready(index, replies[-1])
        return replies

    def _samples(self, request: Write) -> list[Written]:
        prompt, prefill = _text(request.prompt), request.prefill
        problem, rest = _problem_in(prompt)
        begun = prefill if not isinstance(request.prompt, str) else rest + prefill
        lead = "\n" if begun and not begun.endswith("\n") else ""
        if isinstance(request.prompt, str) and not begun:
            lead = "\n"  # the text would go on right after the question
        solver = solver_of(problem, self.settings)
        state = solver.after(f"{rest}\n{prefill}".split("\n") if begun == prefill else begun.split("\n"))
        prompt_tokens = count_tokens(prompt) + count_tokens(prefill)
        first = request.first or 0
        return [
            _write(solver, state, lead, request, number, prompt_tokens)
            for number in range(first, first + request.n)
        ]


def _text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(turn.content for turn in prompt)


def _write(
    solver: Solver, state: State, lead: str, request: Write, number: int, prompt_tokens: int
) -> Written:
    """Sample `number` of a request."""
    dice = random.Random(sample_seed(request, number)) if request.temperature else None
    text, logprob, tokens = lead, 0.0, count_tokens(lead)
    stopped = False
    while state.answer is None and not stopped and tokens < request.max_tokens:
        line, state, chance = solver.likeliest(state) if dice is None else solver.draw(state, dice)
        line += "\n" if state.answer is None else ""
        text, logprob, tokens = text + line, logprob + chance, tokens + count_tokens(line)
        stopped = any(mark in text for mark in request.stop)
    if stopped:
        text, _ = cut_at_stop(text, request.stop)
        tokens = count_tokens(text)
    # One more token ends the text.
    if tokens >= request.max_tokens:
        cut = list(_TOKEN.finditer(text))[request.max_tokens - 1].end()
        return Written(
            text=text[:cut], finish="length", tokens=request.max_tokens, prompt_tokens=prompt_tokens
        )
    return Written(
        text=text,
        finish="stop" if stopped else "end",
        tokens=tokens + 1,
        logprob=None if stopped else logprob,
        prompt_tokens=prompt_tokens,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownSolution:
    """A solution that the solver wrote, with its truth."""

    problem: ArithmeticProblem
    solution: Solution
    labels: tuple[bool, ...]
    """Whether each step is right in itself; see `true_labels`."""
    first_error: int
    """0-based; -1 for none."""
    values: tuple[float, ...]
    """V before the first step and after each, one more than steps; see `true_values`."""
    repaired: bool
    """Whether a correction undid its first error: then V has risen again, and the answer is wrong by a later error."""


def wrong_solutions(
    count: int, *, seed: int = 0, steps: tuple[int, int] = (4, 16), settings: SolverSettings = DEFAULT
) -> Iterator[KnownSolution]:
    """Solutions with a wrong answer, as the solver writes them: one of each problem that it fails.

    Problems are those of `arithmetic_problems(seed=seed, steps=steps)`, tried in order; `steps` bounds the written solution too. Long and hard
    ones are more common than among all problems. Solution i depends on the settings and on i alone.

    Raises:
        UsageError: a setting out of its range, or the solver hardly ever fails.
    """
    made = 0
    tries = 100 * count + 1000
    for number, problem in enumerate(arithmetic_problems(tries, seed=seed, steps=steps)):
        if made == count:
            return
        solver = solver_of(problem, settings)
        dice = random.Random(f"wrong solutions {_WORLD}/{seed}/{number}")
        state, lines = solver.start(), list[str]()
        while state.answer is None:
            line, state, _ = solver.draw(state, dice)
            lines.append(line)
        if state.answer == problem.answer or not steps[0] <= len(lines) <= steps[1]:
            continue
        made += 1
        labels, first_error = true_labels(problem, lines)
        ends = range(first_error + 1, len(lines))
        yield KnownSolution(
            problem=problem,
            solution=problem.solution(lines, id=f"{problem.id}-wrong"),
            labels=labels,
            first_error=first_error,
            values=true_values(problem, lines, settings),
            repaired=any(not solver.wrong(solver.after(lines[:end])) for end in ends),
        )
    if made < count:
        raise UsageError(
            f"wrong_solutions: found {made} of {count} in {tries} problems; raise error_rate or widen steps"
        )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ArithmeticWorld:
    """A world of arithmetic problems in which everything is known: for trying a method out, and for measuring it against the truth.

    Raises:
        UsageError: an error rate outside [0, 0.5].
    """

    error_rate: float = 0.065
    """Probability, in [0, 0.5], that the policy errs at a calculation of middling difficulty; 0.065 solves about 60 % of the default problems."""

    Problem = ArithmeticProblem
    Policy = ArithmeticPolicy
    SolverSettings = SolverSettings
    make_problems = staticmethod(make_problems)
    read = staticmethod(read_arithmetic)
    true_labels = staticmethod(true_labels)
    true_value = staticmethod(true_value)
    next_steps = staticmethod(next_steps)
    wrong_solutions = staticmethod(wrong_solutions)

    def __post_init__(self) -> None:
        self.policy()

    def problems(
        self,
        count: int,
        *,
        seed: int = 0,
        steps: tuple[int, int] = (4, 16),
        surface: Surface = "both",
        largest: int = LARGEST,
    ) -> list[Record]:
        """Problems with their answers; the settings are those of `make_problems`.

        Raises:
            UsageError: a setting out of its range.
        """
        made = arithmetic_problems(count, seed=seed, steps=steps, surface=surface, largest=largest)
        return [Record(text=problem.text, id=problem.id, answer=str(problem.answer)) for problem in made]

    def policy(self) -> ArithmeticPolicy:
        """A policy that solves the problems step by step, and errs at the world's rate; it needs no model."""
        return ArithmeticPolicy(SolverSettings(error_rate=self.error_rate))

    def prm(self) -> ScriptedPRM:
        """A PRM that is never wrong: the score of a step is the exact probability that the policy gets from there to the right answer."""
        return ScriptedPRM(self._value, name="truth", default_aggregate="last")

    def _value(self, problem: str, steps: Sequence[str]) -> float:
        return true_value(read_arithmetic(problem), steps, SolverSettings(error_rate=self.error_rate))
