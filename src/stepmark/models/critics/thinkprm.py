r"""ThinkPRM: a long critique of the solution so far, then "Is the solution correct?".

Khalifa et al., "Process Reward Models That Think", 2025 (arXiv:2504.16828); checkpoints launch/ThinkPRM-1.5B,
-7B, -14B; format from the authors' code (`utils/helper.py`, `prm/thinkprm_api.py` in mukhal/ThinkPRM).

The model reads problem and solution in one user turn, its reply is begun with "\nLet's verify step by step:",
and it writes a critique in which each step ends in \boxed{correct} or \boxed{incorrect}. Then "\nIs the
solution correct?" is appended and P(yes) is read against P(no). Parallel scaling is the mean of P(yes) over k
critiques.

Two ways to a score a step:

- ``per_step="prefix"`` (default): each prefix is critiqued on its own and its P(yes) is the score of its last
  step. Causal: the score of step t never sees step t+1. k critiques a prefix.
- ``per_step="verdicts"``: k critiques of the whole solution; the score of a step is the share of critiques whose
  verdict on it is "correct". Much cheaper, and *not causal*: the critique of step 1 was written by a model that
  has read the whole solution. The model was also trained on critiques that end at the first wrong step: a step
  that every critique stopped before has no score (None).

Deviations from the authors' code:

- P(yes) comes from the exact log-probabilities of " yes" and " no"; theirs from SGLang's mean log-probability
  a token. (The text is the same: their trailing space belongs to the option's token.)
- A failure is an error; theirs scores 0.269.
- Only a label at a step's beginning ("Step 3:") is taken off; theirs removes it anywhere in the step.
- The stop string "Step n+1:" (used with numbered steps) counts the steps; theirs reads the number out of the
  whole prompt and compares as text, so that 9 is more than 10.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

from stepmark.batching import Choose, Message, Method, Request, Write, Written
from stepmark.models.critics import Critiqued, Lesson, Part, mean_verdict, probability_of_first

_INSTRUCTION = (
    "Review and critique each step in the proposed solution to determine whether each step is correct. "
    "If the solution is incomplete, only verify the provided steps."
)
_PREFILL = "\nLet's verify step by step:"
_DECISION = "\nIs the solution correct?"
_LABEL = re.compile(r"\s*Step \d+:")
_HEADING = re.compile(r"Step (\d+):")
_TEXT = re.compile(r"\\text\{([^}]*)\}")
_DECIDED = re.compile(r"\s*(yes|no)\b", re.IGNORECASE)
_VERDICT = re.compile(r"\\boxed\{\s*(correct|incorrect)\s*\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ThinkPRM:
    """Settings of ThinkPRM; the defaults are those of the authors' `APIThinkPRMVerifier`."""

    samples: int = 1
    """Critiques a prefix (or, with `verdicts`, a solution); their mean counts."""
    per_step: Literal["prefix", "verdicts"] = "prefix"
    """See the module. `verdicts` is not causal."""
    number_steps: bool = False
    """Write "Step 1: " before each step. The authors do so for search only; `verdicts` always does."""
    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 8172
    """Tokens a critique. One that is cut off there is still asked for its decision, as the authors do."""
    options: tuple[str, str] = (" yes", " no")
    """The decision's two texts. The checkpoints were trained on " Yes" and " No", and are read by their
    authors with the small letters."""
    seed: int = 0

    @property
    def causal(self) -> bool:
        """False with `verdicts`."""
        return self.per_step == "prefix"

    @property
    def markers(self) -> tuple[str, ...]:
        """What the base model reads as the borders of its thought."""
        return ("<think>", "</think>")

    def grade(self, problem: str, steps: tuple[str, ...], context: tuple[str, ...]) -> Method[Critiqued]:
        """Grade one solution; see `Critic.grade`."""
        if self.per_step == "verdicts":
            return self._by_verdicts(problem, steps, context)
        return self._by_prefix(problem, steps, context)

    def lesson(
        self,
        problem: str,
        steps: tuple[str, ...],
        context: tuple[str, ...],
        step: int,
        critique: str,
        earlier: tuple[str, ...] = (),
    ) -> Lesson | None:
        """A critique of the steps up to `step` as training text.

        The decision is what the critique itself answers to "Is the solution correct?", else what its verdicts on the steps come to.

        Args:
            problem, steps, context: as for `grade`.
            step: 0-based.
            critique: with the given beginning of the reply or without it.
            earlier: unused; other critics see their critiques of the steps before.

        Returns:
            None if it comes to no decision, or, with `verdicts`, is not of the whole solution.
        """
        if self.per_step == "verdicts" and step != len(steps) - 1:
            return None
        count = step + 1
        bare = critique.lstrip().removeprefix(_PREFILL.lstrip())
        body, _, decided = bare.partition(_DECISION.strip())
        body = body.partition("</think>")[0].rstrip()
        body = body if body[:1].isspace() else f"\n\n{body}"
        said = step_verdicts(body, count)
        answer = _DECIDED.match(decided)
        if answer is None and not (False in said or all(said)):
            return None
        verdict = answer[1].lower() == "yes" if answer is not None else False not in said
        begun = _PREFILL + body + _DECISION
        option = self.options[0 if verdict else 1]
        # Every stop string comes after something that must not stand before the decision: the critique ends itself.
        parts = [Part(prefill=_PREFILL, text=body, ends=True)]
        if self.per_step == "prefix":
            parts.append(Part(prefill=begun, text=option, chosen=True))
        return Lesson(
            prompt=self._prompt(problem, (*context[:step], steps[step])),
            parts=tuple(parts),
            reply=begun + option,
            verdict=verdict,
            whole=True,
            said=tuple(said),
        )

    def _by_prefix(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...]
    ) -> Generator[Request | tuple[Request, ...], Any, Critiqued]:
        prompts = [self._prompt(problem, (*context[:t], step)) for t, step in enumerate(steps)]
        written: tuple[tuple[Written, ...], ...]
        written = yield tuple(self._write(prompt, t + 1) for t, prompt in enumerate(prompts))
        begun = [[_PREFILL + sample.text + _DECISION for sample in critiques] for critiques in written]
        flat: tuple[tuple[float, ...], ...]
        flat = yield tuple(
            Choose(prompt=prompt, prefill=text, options=self.options)
            for prompt, texts in zip(prompts, begun, strict=True)
            for text in texts
        )
        decisions = iter(flat)
        scores, missing = [], 0
        critiques: list[tuple[str, ...]] = []
        for t, texts in enumerate(begun):
            chances = [probability_of_first(next(decisions)) for _ in texts]
            missing += chances.count(None)
            # With the likelier decision: a critique is read again, and trained on, by what it comes to.
            critiques.append(
                tuple(
                    text if chance is None else text + self.options[0 if chance >= 0.5 else 1]
                    for text, chance in zip(texts, chances, strict=True)
                )
            )
            scores.append(
                mean_verdict(
                    chances,
                    step=t,
                    steps=len(steps),
                    critiques=texts,
                    expected="a probability of 'yes' or 'no'",
                )
            )
        return Critiqued(scores=tuple(scores), critiques=tuple(critiques), without_verdict=missing)

    def _by_verdicts(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...]
    ) -> Generator[Request | tuple[Request, ...], Any, Critiqued]:
        written: tuple[Written, ...]
        written = yield self._write(self._prompt(problem, (*context[:-1], steps[-1])), len(steps))
        critiques = tuple(_PREFILL + sample.text for sample in written)
        by_critique = [step_verdicts(text, len(steps)) for text in critiques]
        scores: list[float | None] = []
        missing = 0
        for t in range(len(steps)):
            came = [
                verdicts_of_steps
                for verdicts_of_steps in by_critique
                if not _ended_before(verdicts_of_steps, t)
            ]
            if not came:
                scores.append(None)
                continue
            verdicts = [
                None if (verdict := verdicts_of_steps[t]) is None else float(verdict)
                for verdicts_of_steps in came
            ]
            missing += verdicts.count(None)
            scores.append(
                mean_verdict(
                    verdicts,
                    step=t,
                    steps=len(steps),
                    critiques=critiques,
                    expected=r"\boxed{correct} or \boxed{incorrect} for this step",
                )
            )
        return Critiqued(
            scores=tuple(scores), critiques=tuple(critiques for _ in steps), without_verdict=missing
        )

    def _prompt(self, problem: str, steps: tuple[str, ...]) -> tuple[Message, ...]:
        bare = [
            _LABEL.sub("", step, count=1).strip() if _LABEL.match(step) else step.strip() for step in steps
        ]
        if self.number_steps or self.per_step == "verdicts":
            bare = [f"Step {t}: {step}" for t, step in enumerate(bare, start=1)]
        solution = "\n".join(bare)
        return (
            Message(
                role="user",
                content="You are given a math problem and a proposed step-by-step solution:\n\n"
                f"[Math Problem]\n\n{problem}\n\n[Solution]\n\n{solution}\n\n{_INSTRUCTION}",
            ),
        )

    def _write(self, prompt: tuple[Message, ...], count: int) -> Write:
        stop = ["Is the solution correct?", "</think>"]
        if self.number_steps or self.per_step == "verdicts":
            stop.append(f"Step {count + 1}:")
        return Write(
            prompt=prompt,
            prefill=_PREFILL,
            n=self.samples,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            stop=tuple(stop),
            seed=self.seed,
            first=0,
        )


def step_verdicts(critique: str, steps: int) -> list[bool | None]:
    r"""The verdict on each step in one critique: True for correct, None where there is none.

    Read under its headings ("Step 2: … \boxed{correct}"); the last verdict on a step stands, because a later
    look at it is the critic's second thought. A critique without headings counts only if it has exactly one
    verdict a step: else it cannot be known which step one is about.
    """
    critique = _TEXT.sub(r"\1", critique)
    verdicts_of_steps: list[bool | None] = [None] * steps
    headings = list(_HEADING.finditer(critique))
    if not headings:
        verdicts = _VERDICT.findall(critique)
        return [verdict == "correct" for verdict in verdicts] if len(verdicts) == steps else verdicts_of_steps
    ends = [heading.start() for heading in headings[1:]] + [len(critique)]
    for heading, end in zip(headings, ends, strict=True):
        number = int(heading.group(1))
        verdicts = _VERDICT.findall(critique, heading.end(), end)
        if verdicts and 1 <= number <= steps:
            verdicts_of_steps[number - 1] = verdicts[-1] == "correct"
    return verdicts_of_steps


def _ended_before(verdicts_of_steps: list[bool | None], step: int) -> bool:
    """Whether a critique ended at a wrong step before this one, as it may."""
    return False in verdicts_of_steps[:step] and all(verdict is None for verdict in verdicts_of_steps[step:])
