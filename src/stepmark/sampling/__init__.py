"""Sampling: n independent solutions of each problem from a policy, and a greedy one beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from stepmark.backends import (
    INSTRUCTION,
    Completion,
    Completions,
    Method,
    Prompt,
    ReplyStore,
    VerdictRequest,
    problem_prompt,
    run,
)
from stepmark.errors import InputError
from stepmark.models.policies import Policy, answerers
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
    policy: Policy,
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
    methods = (sample_and_judge(problem, settings, False) for problem in problems)
    for _, result in run(methods, answerers(policy), store=store, in_flight=in_flight):
        yield result


def sample_and_judge(problem: Problem, settings: Sampling, judged: bool) -> Method[Sampled]:
    """Sample solutions of one problem and, if `judged`, have each final answer compared with the reference."""
    asked = [
        Completions(
            prompt=prompt_of(problem, settings),
            n=settings.n,
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            first=0,
        )
    ]
    if settings.greedy:
        asked.append(Completions(prompt=asked[0].prompt, max_tokens=settings.max_tokens, first=0))
    try:
        replies: tuple[tuple[Completion, ...], ...] = yield tuple(asked)
    except InputError as error:
        return Sampled(problem=problem, samples=(), refused=str(error))
    samples = replies[0]
    verdicts: list[Verdict | None] = [None] * len(samples)
    there = [i for i, written in enumerate(samples) if written.text.strip()]
    if judged and problem.answer is not None and there:
        judgements = yield tuple(VerdictRequest(answer=samples[i].text, gold=problem.answer) for i in there)
        for i, verdict in zip(there, judgements, strict=True):
            verdicts[i] = verdict
    greedy = replies[1][0] if settings.greedy else None
    return Sampled(problem=problem, samples=samples, verdicts=tuple(verdicts), greedy=greedy)


def prompt_of(problem: Problem, settings: Sampling) -> Prompt:
    """What the policy is shown."""
    return problem_prompt(problem.text, settings.instruction, settings.prompt)
