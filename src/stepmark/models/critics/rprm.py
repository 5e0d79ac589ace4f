r"""R-PRM: an analysis of one step in its context, then "Is the step correct (Yes/No)?".

She et al., "R-PRM: Reasoning-Driven Process Reward Modeling", 2025 (arXiv:2503.21295); checkpoints
kevinpro/R-PRM-7B-SFT, -DPO; format from the authors' code (`src/prompts/GenPRM/GenPRM-evaluate-new3-qwen.txt` and
`src/evaluate/GenPRM/` in NJUNLP/R-PRM).

A raw prompt a step (ChatML written by hand, so it goes to the model as text and not through its template); k
analyses are sampled; each is cut after its first "Is the step correct (Yes/No)?" and P(" Yes") is read against
P(" No") there; the score is the mean over k.

In the published prompt file the line breaks around the assistant's header are a backslash and an n, two
characters, and the evaluation sends them so. That is the format of the published figures and the default here;
`real_newlines=True` writes true line breaks, as the model's own chat template would.

Deviations from the authors' code:

- An analysis without the question is left out of the mean (as in their search script); their evaluation appends
  another question ("Is the answer correct") and reads that.
- An analysis is read as it was written. Theirs strips every line and breaks lines at each backslash-n, which also
  cuts \neq and \nu in two.
- Previous steps are joined by a newline, as in their search script; how their ProcessBench files join them is not
  published.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from stepmark.batching import Choose, Request, Write, Written
from stepmark.models.critics import Critiqued, Lesson, Part, mean_verdict, probability_of_first

_QUESTION = "Is the step correct (Yes/No)?"
_ANSWER = re.compile(r"\s*(Yes|No)\b")
_NO_STEPS = "Since the Now Step is the first step, there are no Previous Steps."
_TASK = """\
<|im_start|>system
You are a helpful assistant.<|im_end|>
<|im_start|>user
You are an excellent math teacher. Please verify the correctness of the Now Step.

You first need to analyze the Now Step and the Previous Steps and then summarize based on your analysis.
Analysis:
You need to analyze the following aspects.
**Previous Steps Analysis**: You need to analyze the Previous Steps step by step. For each step, you need to first \
explain what the current step is doing, then you try to find any error in the current step.
**Now Step Analysis**: You first need to explain what the Now Step is doing, and then point out which part of the \
Question it is trying to solve or which part of the information it states.
**Data Source Analysis**: First you need to find out what data are used in the Now Step, and then you need to \
determine whether the source of the data is reasonable and correct. When you judge whether the source of a data is \
reasonable and correct, you need to specify the specific source of this data: such as which part of the question, or \
which content of the previous step; and then determine the source and current use is consistent, the Now Step is used \
correctly.
**Consistency Analysis**: You need to check that the Now Step is consistent with the contents of the Previous Steps, \
and then you need to check that all the information inside the Now Step is consistent.
**Calculation Analysis**: If the Now Step involves any calculations, such as addition, subtraction, multiplication, \
division, equations, modulo operations, etc., you will first need to perform a check on the calculation, such as a \
reverse operation, to see if the calculation was done correctly, and then analyze the results of your check to see if \
there was an error in the calculation.
Conclusion:\x20
Please verify the correctness of the Now Step based on your analysis, if there is any error in the Now Step then the \
Now Step is wrong and vice versa the Now Step is correct. At the end of the Conclusion, when you give your final \
answer, write it in the form "Verification: Is the step correct (Yes/No)? X", where X is either Yes or No.

Question: """


@dataclass(frozen=True, kw_only=True, slots=True)
class RPRM:
    """Settings of R-PRM; the defaults are those of the authors' evaluation scripts."""

    samples: int = 10
    """Analyses a step; their mean counts."""
    temperature: float = 0.95
    top_p: float = 0.95
    max_tokens: int = 4096
    real_newlines: bool = False
    """See the module."""
    seed: int = 0

    @property
    def causal(self) -> bool:
        """True."""
        return True

    @property
    def markers(self) -> tuple[str, ...]:
        """None but the control tokens that every critic refuses."""
        return ()

    def grade(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...]
    ) -> Generator[Request | tuple[Request, ...], Any, Critiqued]:
        """Grade one solution; see `Critic.grade`."""
        prompts = [self._prompt(problem, context[:t], step) for t, step in enumerate(steps)]
        written: tuple[tuple[Written, ...], ...]
        written = yield tuple(
            Write(
                prompt=prompt,
                n=self.samples,
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=self.max_tokens,
                seed=self.seed,
                first=0,
            )
            for prompt in prompts
        )
        critiques = tuple(tuple(sample.text for sample in samples) for samples in written)
        asking = [
            (t, place, text[: text.index(_QUESTION)] + _QUESTION)
            for t, texts in enumerate(critiques)
            for place, text in enumerate(texts)
            if _QUESTION in text
        ]
        odds: tuple[tuple[float, ...], ...]
        odds = yield tuple(
            Choose(prompt=prompts[t], prefill=text, options=(" Yes", " No")) for t, _, text in asking
        )
        verdicts: list[list[float | None]] = [[None] * len(texts) for texts in critiques]
        for (t, place, _), pair in zip(asking, odds, strict=True):
            verdicts[t][place] = probability_of_first(pair)
        scores = tuple(
            mean_verdict(
                verdicts[t], step=t, steps=len(steps), critiques=critiques[t], expected=f"{_QUESTION!r}"
            )
            for t in range(len(steps))
        )
        return Critiqued(
            scores=scores,
            critiques=critiques,
            without_verdict=sum(of_step.count(None) for of_step in verdicts),
        )

    def lesson(
        self,
        problem: str,
        steps: tuple[str, ...],
        context: tuple[str, ...],
        step: int,
        critique: str,
        earlier: tuple[str, ...] = (),
    ) -> Lesson | None:
        """An analysis of one step as training text: up to the answer to its first question.

        Args:
            problem, steps, context: as for `grade`.
            step: 0-based.
            critique: the analysis.
            earlier: unused; other critics see their critiques of the steps before.

        Returns:
            None if the question is not in it, or not answered.
        """
        before, asked, after = critique.partition(_QUESTION)
        answer = _ANSWER.match(after)
        if not asked or answer is None:
            return None
        verdict = answer[1] == "Yes"
        text = f"{before}{_QUESTION} {answer[1]}"
        return Lesson(
            prompt=self._prompt(problem, context[:step], steps[step]),
            parts=(Part(prefill="", text=text, ends=True),),
            reply=text,
            verdict=verdict,
            whole=False,
            said=(*(None,) * step, verdict),
        )

    def _prompt(self, problem: str, previous: tuple[str, ...], step: str) -> str:
        line = "\n" if self.real_newlines else "\\n"
        before = "\n".join(previous) or _NO_STEPS
        return (
            f"{_TASK}{problem}\nPrevious Steps: {before}\nNow Step: {step}\n"
            "Please carefully analyze the correctness of the Now Step.\n"
            f"Reply: <|im_end|>{line}<|im_start|>assistant{line}"
        )
