r"""GenPRM: a conversation, one turn a step; an analysis, then \boxed{Yes} or \boxed{No}.

Zhao et al., "GenPRM: Scaling Test-Time Compute of Process Reward Models via Generative Reasoning", 2025
(arXiv:2504.00891); checkpoints GenPRM/GenPRM-1.5B, -7B, -32B; format from the authors' code
(`src/prm_evaluation/` in RyanLiu112/GenPRM).

Each step ("paragraph") is a user turn, the first one with the problem before it. The reply is begun with
`<analyze>\nLet's analyze the Paragraph 1 step by step: `, runs to `</analyze>`, and after `<output>\n**Judgement**:
$\boxed` comes the verdict. The turn of a later step follows the critique (the first of k) of every earlier one.
Score: P(Yes) against P(No), mean over k ("Maj@8" in the paper is k = 8).

Deviations from the authors' code:

- **No generated code is run.** The paper's full pipeline has the model write Python after the analysis, executes
  it inside the evaluating process and shows the model the output. Text from a model is never executed here, so
  the stage is left out and the judgement follows the analysis: what the authors' code itself does when its
  rounds of analysis and code are used up. Expect somewhat less than the paper's figures.
- The verdict is read from the probabilities of Yes and No at its place instead of being sampled; theirs reads
  them at the last Yes or No token that was sampled, takes 0.5 where there is none, and an absent option at the
  20th likeliest token's probability. `reading="hard"` gives 1 or 0 a critique, which is what their server
  counted for the published ProcessBench and best-of-N figures.
- The template is rendered with its generation prompt. None of the authors' scripts that run GenPRM does so: their evaluation, their
  notebook and the README's example (all through `build_prompt` of `utils/util.py`) and the client of their server
  (`utils/vllm_worker.py`) leave it out, and take an end token at the end of the text off. Only `policy_refine.py` has it, for the
  prompts of the policy.
- Problem and first step are joined by a newline, as in their ProcessBench runs; their best-of-N script joins
  them by nothing.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

from stepmark.batching import Choose, Message, Request, Write, Written
from stepmark.errors import UsageError
from stepmark.models.critics import Critiqued, Lesson, Part, mean_verdict, probability_of_first

_SYSTEM = {
    "analyze": "You are a math teacher. Your task is to review and critique the paragraphs in solution step by step.",
    "direct": "You are a math teacher. Your task is to review and critique the paragraphs in solution directly. "
    r"Output your judgement in the format of `\boxed{Yes}` if the paragraph is correct, or `\boxed{No}` if the "
    "paragraph is incorrect.",
}
_ANALYZE = "<analyze>\nLet's analyze the Paragraph {step} step by step: "
_ANALYZED = "</analyze>\n"
_OUTPUT = "<output>\n**Judgement**: $\\boxed{"
_CLOSE = "}$\n</output>\n"
_BOXED = re.compile(r"\\boxed\{\s*(Yes|No)\s*\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenPRM:
    """Settings of GenPRM; the sampling defaults are those of the authors' local evaluation."""

    samples: int = 1
    """Critiques a step; their mean counts. The paper's best figures use 8."""
    mode: Literal["analyze", "direct"] = "analyze"
    """`direct` asks for the judgement alone: no critique, so `samples` must be 1."""
    reading: Literal["soft", "hard"] = "soft"
    """`soft`: P(Yes). `hard`: 1 where P(Yes) is one half or more, else 0; the mean over k is then a vote."""
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    max_tokens: int = 2048
    """Tokens an analysis. One that is cut off there is still asked for its judgement, as the authors do."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode == "direct" and self.samples != 1:
            raise UsageError(f"GenPRM direct writes no critique: samples must be 1, found {self.samples}")

    @property
    def causal(self) -> bool:
        """True."""
        return True

    @property
    def markers(self) -> tuple[str, ...]:
        """The tags of the format."""
        return ("<analyze>", "</analyze>", "<verify>", "</verify>", "<output>", "</output>")

    def grade(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...]
    ) -> Generator[Request | tuple[Request, ...], Any, Critiqued]:
        """Grade one solution, step after step; see `Critic.grade`."""
        scores: list[float | None] = []
        earlier_critiques: list[tuple[str, ...]] = []
        missing = 0
        for t, step in enumerate(steps):
            prompt = self._prompt(
                problem, context[:t], step, tuple(critiques[0] for critiques in earlier_critiques)
            )
            begun = yield from self._critiques(prompt, t + 1)
            odds: tuple[tuple[float, ...], ...]
            odds = yield tuple(Choose(prompt=prompt, prefill=text, options=("Yes", "No")) for text in begun)
            chances = [probability_of_first(pair) for pair in odds]
            critiques = tuple(
                text if chance is None else text + ("Yes" if chance >= 0.5 else "No") + _CLOSE
                for text, chance in zip(begun, chances, strict=True)
            )
            verdicts = [
                float(chance >= 0.5) if chance is not None and self.reading == "hard" else chance
                for chance in chances
            ]
            missing += verdicts.count(None)
            scores.append(
                mean_verdict(
                    verdicts,
                    step=t,
                    steps=len(steps),
                    critiques=critiques,
                    expected="a probability of Yes or No",
                )
            )
            earlier_critiques.append(critiques)
        return Critiqued(scores=tuple(scores), critiques=tuple(earlier_critiques), without_verdict=missing)

    def lesson(
        self,
        problem: str,
        steps: tuple[str, ...],
        context: tuple[str, ...],
        step: int,
        critique: str,
        earlier: tuple[str, ...],
    ) -> Lesson | None:
        r"""A critique of one step as training text.

        Its analysis runs to `</analyze>`, where it has that; code and its output, which are never run here, are left out. Its
        verdict is its last `\boxed{Yes}` or `\boxed{No}`.

        Args:
            problem, steps, context: as for `grade`.
            step: 0-based.
            critique: with the given beginning of the reply or without it.
            earlier: the replies to the steps before (`Lesson.reply`), `step` of them.

        Returns:
            None if it gives no verdict.
        """
        verdicts_written = _BOXED.findall(critique)
        if not verdicts_written:
            return None
        parts = []
        begun = _OUTPUT
        if self.mode == "analyze":
            begin = _ANALYZE.format(step=step + 1)
            analysis = critique.removeprefix(begin)
            for border in (_ANALYZED.strip(), "<verify>", "<output>", "\\boxed{"):
                if border in analysis:
                    analysis = analysis.partition(border)[0]
                    break
            parts.append(Part(prefill=begin, text=analysis + _ANALYZED))
            begun = begin + analysis + _ANALYZED + _OUTPUT
        parts.append(Part(prefill=begun, text=verdicts_written[-1], chosen=True))
        verdict = verdicts_written[-1] == "Yes"
        return Lesson(
            prompt=self._prompt(problem, context[:step], steps[step], earlier),
            parts=tuple(parts),
            reply=begun + verdicts_written[-1] + _CLOSE,
            verdict=verdict,
            whole=False,
            said=(*(None,) * step, verdict),
        )

    def judged(self, right: bool) -> str:
        """The reply of `direct` to a step that is right or wrong: it needs no critique."""
        return _OUTPUT + ("Yes" if right else "No") + _CLOSE

    def _prompt(
        self, problem: str, before: tuple[str, ...], step: str, replies: tuple[str, ...]
    ) -> tuple[Message, ...]:
        """The conversation up to a step: the steps before it, each with what was replied."""
        turns = [Message(role="system", content=_SYSTEM[self.mode])]
        for paragraph, reply in zip((*before, step), (*replies, None), strict=True):
            opening = f"{problem}\n" if len(turns) == 1 else ""
            turns.append(Message(role="user", content=opening + paragraph))
            if reply is not None:
                turns.append(Message(role="assistant", content=reply))
        return tuple(turns)

    def _critiques(
        self, prompt: tuple[Message, ...], number: int
    ) -> Generator[Request | tuple[Request, ...], Any, list[str]]:
        """The replies up to the place of the verdict."""
        if self.mode == "direct":
            return [_OUTPUT]
        begin = _ANALYZE.format(step=number)
        written: tuple[Written, ...]
        written = yield Write(
            prompt=prompt,
            prefill=begin,
            n=self.samples,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            stop=(_ANALYZED,),
            seed=self.seed,
            first=0,
        )
        return [begin + sample.text + _ANALYZED + _OUTPUT for sample in written]
