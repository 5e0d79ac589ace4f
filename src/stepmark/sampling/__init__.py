"""Sampling: n independent solutions of each problem from a policy, and a greedy one beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from stepmark.backends import (
    INSTRUCTION,
    CachedPolicy,
    Completing,
    Completion,
    Completions,
    Prompt,
    ReplyStore,
    Verifying,
    all_of,
    problem_prompt,
    run_tasks,
)
from stepmark.errors import InputError
from stepmark.records import Problem, Verdict
from stepmark.settings import settings


@settings
class Sampling:
    """How solutions are sampled."""

    n: Annotated[int, Field(ge=1)] = 8
    """Sampled solutions a problem."""
    greedy: bool = True
    """One more at temperature 0, for comparison; it is never among the n."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.8
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    seed: int = 0
    prompt: Literal["chat", "text"] = "chat"
    """`chat`: the problem as the user's turn, through the model's own template; `text`: as raw text, for base models."""
    instruction: str = INSTRUCTION
    """Text after the problem; "" for nothing."""


SAMPLING = Sampling()
"""How solutions are sampled by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """What a policy wrote for one problem."""

    problem: Problem
    samples: tuple[Completion, ...]
    """The n independent samples; empty when the problem was refused."""
    verdicts: tuple[Verdict | None, ...] = ()
    """One for each sample; None where none was asked for, or nothing was written."""
    greedy: Completion | None = None
    refused: str | None = None
    """Why the policy cannot answer this problem (too long, a marker in the text)."""


def sample(
    problems: Iterable[Problem],
    policy: Completing,
    settings: Sampling = SAMPLING,
    *,
    store: ReplyStore | None = None,
    in_flight: int = 64,
) -> Iterator[Sampled]:
    """Sample solutions of problems, as a stream in their order.

    Samples are asked for by number (0 … n - 1), so equal settings give equal samples, more of them on asking for more, and
    a run over the same store repeats none.

    Raises:
        BackendError: the policy failed; what it had written is kept in the store.
    """
    cached = CachedPolicy(policy, store)
    for _, result in run_tasks(
        problems, lambda problem: sample_and_judge(problem, settings, cached), in_flight=in_flight
    ):
        yield result


async def sample_and_judge(
    problem: Problem, settings: Sampling, policy: Completing, verifier: Verifying | None = None
) -> Sampled:
    """Sample solutions of one problem and, where there is a verifier, have each final answer compared with the reference."""
    prompt = prompt_of(problem, settings)
    asked = [
        Completions(
            prompt=prompt,
            n=settings.n,
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
        )
    ]
    if settings.greedy:
        asked.append(Completions(prompt=prompt, max_tokens=settings.max_tokens))
    try:
        replies = await all_of(map(policy.complete, asked))
    except InputError as error:
        return Sampled(problem=problem, samples=(), refused=str(error))
    samples = tuple(replies[0])
    gold = None if verifier is None else problem.answer

    async def verdict(sample: Completion) -> Verdict | None:
        if verifier is None or gold is None or not sample.text.strip():
            return None
        return await verifier.verify(sample.text, gold)

    return Sampled(
        problem=problem,
        samples=samples,
        verdicts=tuple(await all_of(map(verdict, samples))),
        greedy=replies[1][0] if settings.greedy else None,
    )


def prompt_of(problem: Problem, settings: Sampling) -> Prompt:
    """What the policy is shown."""
    return problem_prompt(problem.text, settings.instruction, settings.prompt)
