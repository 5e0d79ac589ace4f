"""What every labeller is, what it gives, and the probe that those who roll out share.

A labeller is a coroutine: it awaits `policy.complete` (continue this prefix) and `verifier.verify` (is this answer right), and returns a
`Labelling`. It does no I/O of its own, so its code is the paper's pseudo-code; `backends.run_tasks` runs many solutions at once, so that what they
wait for is computed together, and the caches record every reply before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from stepmark.backends import (
    INSTRUCTION,
    Completing,
    Completion,
    Completions,
    Prompt,
    Verifying,
    all_of,
    problem_prompt,
)
from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution, Solution, Verdict, step_number
from stepmark.settings import settings
from stepmark.verifiers.finder import find_answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a labelling has cost."""

    rollouts: int = 0
    """Continuations that were written."""
    tokens: int | None = 0
    """Tokens of those; None when the policy does not say."""
    probes: int = 0
    """Prefixes that were tried, each as often as it was asked about."""
    unparsed: int = 0
    """Rollouts whose answer no verdict could be reached on: neither successes nor failures, and in no count of trials."""

    def __add__(self, other: Cost) -> Cost:
        """Both together."""
        return Cost(
            rollouts=self.rollouts + other.rollouts,
            tokens=None if self.tokens is None or other.tokens is None else self.tokens + other.tokens,
            probes=self.probes + other.probes,
            unparsed=self.unparsed + other.unparsed,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Critiques:
    """What a judge wrote and was heard with: its votes, word for word."""

    asked: Literal["place", "steps", "criteria"]
    """For the place of the first error in the whole solution, about one step after another (`judge.Judge.ask`), or for criteria."""
    texts: tuple[tuple[str, ...], ...]
    """One list a step, possibly empty; those on the whole solution stand at its last step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelling:
    """What a labeller found out about one solution."""

    labelled: LabelledSolution
    """The evidence: (successes, trials) at every prefix that was tried, as judgements of the kind `value`, those of the problem
    alone under `root`; conclusions as judgements of the kind `correctness`. A step that nothing was learnt of has none."""
    method: str
    """The labeller's name."""
    first_error: int | None
    """0-based; -1 for none; None where the method does not say or abstained."""
    confidence: float | None = None
    """How sure it is of `first_error`, in [0, 1]; None for methods that do not say."""
    abstained: bool = False
    """It came to no conclusion within its budget; the evidence stays."""
    cost: Cost = Cost()
    others: tuple[LabelledSolution, ...] = ()
    """Further solutions that were labelled on the way: rollouts used again as solutions."""
    critiques: Critiques | None = None
    """Of a judge, and of no other labeller."""

    @property
    def first_error_step(self) -> int | None:
        """The number of the first error's step as people count, from 1; None when there is none, or it is not known."""
        return step_number(self.first_error)

    def to_dict(self) -> dict[str, Any]:
        """The solution's row with its labels in words, and what the labeller found; plain data."""
        return {
            **self.labelled.to_dict(),
            "method": self.method,
            "first_error": self.first_error,
            "first_error_step": self.first_error_step,
            "confidence": self.confidence,
            "abstained": self.abstained,
            "cost": asdict(self.cost),
        }

    def _repr_html_(self) -> str:
        return self.labelled._repr_html_()


@dataclass(frozen=True, kw_only=True, slots=True)
class LabellerNeeds:
    """What a labeller asks, as its class says under `needs`."""

    policy: Literal["required", "optional", "none"] = "optional"
    verifier: bool = True
    """Whether it compares final answers."""
    whole_problems: bool = False
    """Whether it labels all solutions of a problem together, by `label_together`."""
    texts: tuple[str, str] = ("text", "texts")
    """What a text that the policy writes for it is called, and several."""
    named_after_policy: bool = False
    """Whether its labels are the policy's opinion, and carry its name."""


class Labeller(Protocol):
    """A way to label the steps of a solution: a frozen dataclass of settings with one method."""

    @property
    def name(self) -> str:
        """Its name in judgements and files."""

    async def label(self, solution: Solution, policy: Completing, verifier: Verifying) -> Labelling:
        """Label one solution.

        Raises:
            InputError: what it needs is missing: no reference answer, no steps.
        """


@settings
class Rollouts:
    """How prefixes are continued."""

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.7
    """Temperature of the rollouts; 0 is greedy, and then all rollouts of a prefix are one."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample among the likeliest tokens that together hold this share of the probability."""
    max_tokens: Annotated[int, Field(ge=1)] = 512
    """The longest rollout; one that is cut off before it names an answer has no verdict."""
    seed: int = 0
    """Seed of the rollouts."""
    prompt: Literal["chat", "text"] = "chat"
    """Ask as the user's turn of a chat, or as plain text, for base models."""
    instruction: str = INSTRUCTION
    """Text after the problem; "" for nothing."""


def token_sum(counts: Sequence[int | None]) -> int | None:
    """Tokens in all; None where one count is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


CUT_OFF = "cut off by max_tokens before it named an answer of its own"
"""Note of the verdict on a rollout that has none: its prefix's answer is not its own, and half an answer is none."""
NO_TEXT = "the rollout has no text"
"""Note of the verdict on a rollout that a policy ended before it wrote anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What some continuations of one prefix came to."""

    steps: int
    """Length of the prefix in steps."""
    texts: tuple[str, ...] = ()
    """What was written, in the order of the samples."""
    verdicts: tuple[Verdict, ...] = ()
    """One a text."""
    tokens: tuple[int | None, ...] = ()
    """Tokens of each text; None where the policy does not say."""

    @property
    def successes(self) -> int:
        """Rollouts that reached the right answer."""
        return sum(verdict.correct is True for verdict in self.verdicts)

    @property
    def trials(self) -> int:
        """Rollouts with a verdict."""
        return sum(verdict.correct is not None for verdict in self.verdicts)

    @property
    def cost(self) -> Cost:
        """Of all its rollouts; one prefix that was tried."""
        return Cost(
            rollouts=len(self.texts),
            tokens=token_sum(self.tokens),
            probes=1,
            unparsed=len(self.verdicts) - self.trials,
        )

    def joined(self, more: Probe) -> Probe:
        """These and later rollouts of the same prefix as one probe."""
        return Probe(
            steps=self.steps,
            texts=self.texts + more.texts,
            verdicts=self.verdicts + more.verdicts,
            tokens=self.tokens + more.tokens,
        )


def prefix_text(solution: Solution, steps: int) -> str:
    """The first `steps` steps as they stood in the text; ready-made steps are put on a line each."""
    prefix = solution.steps[:steps]
    if any(step.start is not None or step.lead or step.tail for step in solution.steps):
        return "".join(step.raw for step in prefix)
    return "".join(step.raw + "\n" for step in prefix)


def prompt_of(solution: Solution, how: Rollouts) -> Prompt:
    """What the policy is shown before the prefix."""
    return problem_prompt(solution.problem.text, how.instruction, how.prompt)


def gold_of(solution: Solution) -> str:
    """The reference answer.

    Raises:
        InputError: the problem has none.
    """
    if solution.problem.answer is None or not solution.problem.answer.strip():
        raise InputError(
            "rollouts need the problem's reference answer; add it under 'answer'",
            where=solution.id,
            field="answer",
        )
    return solution.problem.answer


async def probe(
    solution: Solution,
    steps: int,
    count: int,
    how: Rollouts,
    policy: Completing,
    verifier: Verifying,
    *,
    first: int = 0,
) -> Probe:
    """Continue the first `steps` steps of a solution `count` times and verify where each continuation ends.

    Samples are asked for by number, from `first`, so equal prefixes of different solutions share theirs, and a prefix that is
    probed again continues.

    Raises:
        InputError: no reference answer, or the policy cannot read this prefix.
    """
    gold = gold_of(solution)
    begun = prefix_text(solution, steps)
    written = await policy.complete(
        Completions(
            prompt=prompt_of(solution, how),
            prefill=begun,
            n=count,
            temperature=how.temperature,
            top_p=how.top_p,
            max_tokens=how.max_tokens,
            seed=how.seed,
            first=first,
        )
    )
    verdicts = await all_of(verifier.verify((begun + sample.text) or " ", gold) for sample in written)
    return Probe(
        steps=steps,
        texts=tuple(sample.text for sample in written),
        verdicts=tuple(own_verdict(begun, *pair) for pair in zip(written, verdicts, strict=True)),
        tokens=tuple(sample.tokens for sample in written),
    )


def own_verdict(begun: str, written: Completion, verdict: Verdict) -> Verdict:
    """The verdict on a rollout, "unparsed" if the rollout did not come to an answer of its own.

    - A rollout without text says nothing (a server may answer "" at once), unless its prefix ends with a marked answer.
    - A prefix may name an answer already. A rollout that ends there, or goes on without naming another, stands by it; one that was
      cut off might have named another. So is one unparsed whose answer reaches to the place of the cut ("The answer is 1" of
      18), or for which the verifier does not say which answer it compared.
    """
    if verdict.correct is None:
        return verdict
    if written.finish != "length" and not written.text.strip():
        stated = find_answer(begun, "marked")
        rest = None if stated is None else begun[stated.start + len(stated.text) :]
        return (
            verdict
            if rest is not None and not rest.strip(" \t\n.,*_`$})]\\")
            else replace(verdict, outcome="unparsed", note=NO_TEXT)
        )
    if written.finish != "length":
        return verdict
    whole = begun + written.text
    stated = find_answer(whole)
    if stated is not None and stated.way == "statement":  # the statement that a cut happens to end with
        return replace(verdict, outcome="unparsed", note=CUT_OFF)
    answer = verdict.answer or ""
    if stated is not None and stated.text == answer:
        end = stated.start + len(answer)
    else:  # a program, or a reply that is a bare answer
        end = whole.rfind(answer) + len(answer) if answer and answer in whole else 0
    # "7." may have been on the way to 7.5; a new line ends every answer.
    after = whole[end:]
    if end > len(begun) and ("\n" in after or after.strip(" \t.,")):
        return verdict
    return replace(verdict, outcome="unparsed", note=CUT_OFF)


def value_judgement(probed: Probe, judge: str) -> Judgement:
    """The evidence of a probe, for the step that its prefix ends with."""
    return Judgement(kind="value", judge=judge, successes=probed.successes, trials=probed.trials)


def judged_until(first_error: int, steps: int, judge: str) -> list[tuple[Judgement, ...]]:
    """Correctness of each step by the place of the first error (-1 for none): right before it, wrong at it, nothing after it."""
    right = (Judgement(kind="correctness", judge=judge, rating=1),)
    if first_error == -1:
        return [right] * steps
    wrong = (Judgement(kind="correctness", judge=judge, rating=-1),)
    return [*[right] * first_error, wrong, *[()] * (steps - first_error - 1)]
